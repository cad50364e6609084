//! The metrics of sessions, of iSCSI and of HyperSCSI.

use super::{Family, Value};
use crate::serve::reactor_shard::counts::{ReactorCounts, Snapshot};

pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut families = sessions(snapshot);
    families.extend(logins(snapshot));
    families.extend(iscsi(snapshot));
    families.extend(hyperscsi(snapshot));
    families
}

fn sessions(snapshot: &Snapshot) -> Vec<Family> {
    let mut open =
        Family::gauge("targe_sessions", &["target", "transport"], "Sessions with each target that are open.");
    let mut limit = Family::gauge("targe_session_limit", &["target"], "The most sessions of each target.");
    let mut restricted = Family::gauge(
        "targe_sessions_restricted",
        &["target"],
        "Sessions that do not see some LUNs, because these require more protection.",
    );
    for target in &snapshot.runtime.config.targets {
        let name = target.name.as_str();
        let all = snapshot.reactors.iter().flat_map(|reactor| &reactor.sessions);
        let (mut iscsi, mut hyperscsi, mut hidden) = (0, 0, 0);
        for counts in all.filter(|counts| counts.target == name) {
            iscsi += counts.iscsi;
            hyperscsi += counts.hyperscsi;
            hidden += counts.restricted;
        }
        open = open.with([name, "iscsi"], iscsi).with([name, "hyperscsi"], hyperscsi);
        limit = limit.with([name], u64::from(target.max_sessions));
        restricted = restricted.with([name], hidden);
    }
    vec![open, limit, restricted, session_info(snapshot)]
}

/// Names the sessions. Labels with an initiator stand here only, so that the number of series stays bounded.
fn session_info(snapshot: &Snapshot) -> Family {
    let mut family = Family::info(
        "targe_session",
        &["target", "initiator", "transport"],
        "The initiators that have a session, once for each target; at most 256 of each reactor.",
    );
    let mut names = std::collections::BTreeSet::new();
    for session in snapshot.reactors.iter().flat_map(|reactor| &reactor.session_names) {
        let transport = if session.hyperscsi { "hyperscsi" } else { "iscsi" };
        if names.insert((&session.target, &session.initiator, transport)) {
            let labels = vec![session.target.clone(), session.initiator.clone(), transport.to_owned()];
            family.push(labels, Value::Count(1));
        }
    }
    family
}

fn logins(snapshot: &Snapshot) -> Vec<Family> {
    let sum = |counter: fn(&ReactorCounts) -> u64| snapshot.sum(counter);
    let refused = Family::counter(
        "targe_logins_refused",
        &["transport", "reason"],
        "Logins that failed. iSCSI: `authentication`, `authorization`, `not_found`, `resources`, `timeout`, \
         `protocol`. HyperSCSI: `refused`, and `unfinished`, which includes wrong passwords.",
    );
    vec![
        Family::counter(
            "targe_logins",
            &["transport"],
            "Logins that succeeded. iSCSI counts those of connections.",
        )
        .with(["iscsi"], sum(|reactor| reactor.iscsi.logins))
        .with(["hyperscsi"], sum(|reactor| reactor.hyperscsi.stats.sessions)),
        refused
            .with(["iscsi", "authentication"], sum(|reactor| reactor.iscsi.refusals.authentication))
            .with(["iscsi", "authorization"], sum(|reactor| reactor.iscsi.refusals.authorization))
            .with(["iscsi", "not_found"], sum(|reactor| reactor.iscsi.refusals.not_found))
            .with(["iscsi", "resources"], sum(|reactor| reactor.iscsi.refusals.resources))
            .with(["iscsi", "timeout"], sum(|reactor| reactor.iscsi.refusals.timeout))
            .with(["iscsi", "protocol"], sum(|reactor| reactor.iscsi.refusals.protocol))
            .with(["hyperscsi", "refused"], sum(|reactor| reactor.hyperscsi.handshakes.refused))
            .with(["hyperscsi", "unfinished"], sum(|reactor| reactor.hyperscsi.handshakes.unfinished)),
        Family::counter(
            "targe_rival_logins",
            &[],
            "Logins that ended the session of another host with the same initiator name.",
        )
        .with([], sum(|reactor| reactor.iscsi.rival_logins)),
        Family::counter(
            "targe_sessions_evicted",
            &[],
            "Silent sessions that were ended so that new sessions could begin.",
        )
        .with([], sum(|reactor| reactor.iscsi.evicted)),
        Family::counter(
            "targe_busy_responses",
            &["transport"],
            "Commands that were answered BUSY because memory was short.",
        )
        .with(["iscsi"], sum(|reactor| reactor.iscsi.busy))
        .with(["hyperscsi"], sum(|reactor| reactor.hyperscsi.stats.busy)),
        Family::counter(
            "targe_memory_waits",
            &["transport", "direction"],
            "How often a command waited for memory: for data `in` to the initiator, or `out` of it.",
        )
        .with(["iscsi", "in"], sum(|reactor| reactor.iscsi.held_back))
        .with(["iscsi", "out"], sum(|reactor| reactor.iscsi.withheld))
        .with(["hyperscsi", "in"], sum(|reactor| reactor.hyperscsi.stats.held_back))
        .with(["hyperscsi", "out"], sum(|reactor| reactor.hyperscsi.stats.withheld)),
        Family::counter("targe_transport_commands", &["transport"], "SCSI commands that were received.")
            .with(["iscsi"], sum(|reactor| reactor.iscsi.commands))
            .with(["hyperscsi"], sum(|reactor| reactor.hyperscsi.stats.commands)),
        Family::counter(
            "targe_transport_data",
            &["transport", "direction"],
            "Data of commands: `in` to the initiator, `out` of it.",
        )
        .in_bytes()
        .with(["iscsi", "in"], sum(|reactor| reactor.iscsi.data_in_bytes))
        .with(["iscsi", "out"], sum(|reactor| reactor.iscsi.data_out_bytes))
        .with(["hyperscsi", "in"], sum(|reactor| reactor.hyperscsi.stats.data_in_bytes))
        .with(["hyperscsi", "out"], sum(|reactor| reactor.hyperscsi.stats.data_out_bytes)),
        Family::counter(
            "targe_task_management",
            &["transport"],
            "Task management requests that were received.",
        )
        .with(["iscsi"], sum(|reactor| reactor.iscsi.management))
        .with(["hyperscsi"], sum(|reactor| reactor.hyperscsi.stats.management)),
    ]
}

fn iscsi(snapshot: &Snapshot) -> Vec<Family> {
    let sum = |counter: fn(&ReactorCounts) -> u64| snapshot.sum(counter);
    vec![
        Family::counter("targe_iscsi_connections", &[], "Connections that were accepted, refused ones included.")
            .with([], sum(|reactor| reactor.iscsi.connections)),
        Family::counter(
            "targe_iscsi_connections_dropped",
            &[],
            "Connections that were dropped because the initiator broke a rule.",
        )
        .with([], sum(|reactor| reactor.iscsi.dropped)),
        Family::counter("targe_iscsi_pdus", &["direction"], "PDUs: `in` from initiators, `out` to them.")
            .with(["in"], sum(|reactor| reactor.iscsi.pdus_in))
            .with(["out"], sum(|reactor| reactor.iscsi.pdus_out)),
        Family::counter("targe_iscsi_digest_errors", &["part"], "PDUs with a wrong digest: `header`, `data`.")
            .with(["header"], sum(|reactor| reactor.iscsi.header_digest_errors))
            .with(["data"], sum(|reactor| reactor.iscsi.data_digest_errors)),
        Family::counter(
            "targe_iscsi_recoveries",
            &["level", "kind"],
            "What was repaired, by the error recovery level that it needs: 0 `session` (reinstated by a login), 1 \
             `snack` (the initiator asked again) and `r2t` (the target asked again), 2 `connection` (reinstated by a \
             login) and `task` (reassigned to another connection).",
        )
        .with(["0", "session"], sum(|reactor| reactor.iscsi.sessions_reinstated))
        .with(["1", "snack"], sum(|reactor| reactor.iscsi.snacks))
        .with(["1", "r2t"], sum(|reactor| reactor.iscsi.recovery_r2ts))
        .with(["2", "connection"], sum(|reactor| reactor.iscsi.connections_reinstated))
        .with(["2", "task"], sum(|reactor| reactor.iscsi.reassigns)),
        Family::counter("targe_iscsi_rejects", &[], "Reject PDUs that were sent.")
            .with([], sum(|reactor| reactor.iscsi.rejects)),
        Family::counter(
            "targe_iscsi_ignored_requests",
            &[],
            "Requests that were ignored, such as numbers outside the command window.",
        )
        .with([], sum(|reactor| reactor.iscsi.ignored)),
        Family::counter(
            "targe_iscsi_late_data",
            &["kind"],
            "Commands whose data stalled: `failed` because it never came, `revoked` because others needed the memory.",
        )
        .with(["failed"], sum(|reactor| reactor.iscsi.data_late))
        .with(["revoked"], sum(|reactor| reactor.iscsi.revoked)),
    ]
}

fn hyperscsi(snapshot: &Snapshot) -> Vec<Family> {
    let sum = |counter: fn(&ReactorCounts) -> u64| snapshot.sum(counter);
    vec![
        Family::counter(
            "targe_hyperscsi_frames_lost",
            &[],
            "Sent frames that were declared lost; their content was sent again.",
        )
        .with([], sum(|reactor| reactor.hyperscsi.paths.frames_lost)),
        Family::counter("targe_hyperscsi_frames_lost_wrongly", &[], "Of those, frames that had arrived.")
            .with([], sum(|reactor| reactor.hyperscsi.paths.frames_late)),
        Family::counter(
            "targe_hyperscsi_timeouts",
            &[],
            "Probe timeouts, after which the oldest data was sent again.",
        )
        .with([], sum(|reactor| reactor.hyperscsi.paths.timeouts)),
        Family::counter(
            "targe_hyperscsi_frames_refused",
            &["reason"],
            "Frames that were ignored. `damaged` are those with a wrong CRC or authentication tag.",
        )
        .with(["damaged"], sum(|reactor| reactor.hyperscsi.stats.drops.damaged))
        .with(["replayed"], sum(|reactor| reactor.hyperscsi.stats.drops.replayed))
        .with(["protection"], sum(|reactor| reactor.hyperscsi.stats.drops.protection))
        .with(["foreign"], sum(|reactor| reactor.hyperscsi.stats.drops.foreign))
        .with(["beyond_credit"], sum(|reactor| reactor.hyperscsi.stats.drops.beyond_credit))
        .with(["malformed"], sum(|reactor| reactor.hyperscsi.stats.drops.malformed))
        .with(["false_ack"], sum(|reactor| reactor.hyperscsi.stats.drops.false_acks))
        .with(["bad_header"], sum(|reactor| reactor.hyperscsi.stats.bad_frames))
        .with(["unknown_session"], sum(|reactor| reactor.hyperscsi.stats.unknown_sids)),
        Family::counter(
            "targe_hyperscsi_duplicate_requests",
            &[],
            "Repeated requests, which were not executed again.",
        )
        .with([], sum(|reactor| reactor.hyperscsi.stats.duplicates)),
        Family::counter(
            "targe_hyperscsi_commands_refused",
            &[],
            "Commands that had less protection than their LUN requires.",
        )
        .with([], sum(|reactor| reactor.hyperscsi.stats.refused_level)),
        Family::counter(
            "targe_hyperscsi_handshakes_deferred",
            &[],
            "Handshakes that were deferred: memory was short, or too many passwords were guessed.",
        )
        .with([], sum(|reactor| reactor.hyperscsi.handshakes.put_off)),
        Family::counter("targe_hyperscsi_key_updates", &[], "How often sessions updated their keys.")
            .with([], sum(|reactor| reactor.hyperscsi.stats.key_updates)),
    ]
}
