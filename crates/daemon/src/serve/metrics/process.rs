//! The metrics of the daemon as a whole, and of its reactors.

use std::time::UNIX_EPOCH;

use drivers::stats::Stats;

use super::{Family, Value};
use crate::serve::reactor_shard::counts::Snapshot;

pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut families = daemon(snapshot);
    families.extend(reactors(snapshot));
    families
}

fn daemon(snapshot: &Snapshot) -> Vec<Family> {
    let mut start =
        Family::gauge("targe_start_time", &[], "When the daemon started, since 1970.").in_seconds();
    let since = snapshot.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    start.push(Vec::new(), Value::Seconds(since.as_secs_f64()));
    let data = snapshot.reactors.iter().map(|reactor| u64::try_from(reactor.data_bytes).unwrap_or(u64::MAX));
    let problems = snapshot.problems();
    let withheld =
        snapshot.units().filter(|view| view.health.withheld.is_some()).count() + snapshot.late.len();
    let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    vec![
        Family::info("targe_build", &["version"], "The version of targe.")
            .with([env!("CARGO_PKG_VERSION")], 1),
        start,
        Family::gauge(
            "targe_ready",
            &[],
            "1 if everything that is configured is served, as `/readyz` tells.",
        )
        .with([], u64::from(problems.is_empty())),
        Family::gauge(
            "targe_luns_not_ready",
            &[],
            "LUNs that are not ready because their file or device has changed, was removed or is not there yet.",
        )
        .with([], wide(withheld)),
        Family::counter("targe_config_reloads", &[], "How often the configuration was reloaded.")
            .with([], snapshot.reloads),
        Family::gauge("targe_config_generation", &[], "Increases with every change of what runs.")
            .with([], snapshot.generation),
        Family::gauge("targe_config_reload_failed", &[], "1 if the last reload was not applied.")
            .with([], u64::from(snapshot.reload_failure.is_some())),
        Family::counter("targe_internal_errors", &[], "Violated invariants and panics: bugs in targe.")
            .with([], snapshot.bugs()),
        Family::counter(
            "targe_log_lines_dropped",
            &[],
            "Lines of the log that were counted instead of written.",
        )
        .with([], snapshot.log_lines_dropped),
        Family::gauge("targe_memory_used", &[], "Data in flight that commands hold.")
            .in_bytes()
            .with([], data.sum()),
        Family::gauge("targe_memory_limit", &[], "The most data in flight (`memory`).")
            .in_bytes()
            .with([], snapshot.memory_max),
        Family::counter(
            "targe_tls_handshakes",
            &["result"],
            "TLS handshakes of portals: `completed`, `failed`.",
        )
        .with(["completed"], snapshot.tls.completed)
        .with(["failed"], snapshot.tls.failed),
    ]
}

fn reactors(snapshot: &Snapshot) -> Vec<Family> {
    let each = |mut family: Family, values: fn(&Stats) -> Vec<(&'static str, u64)>| {
        for (index, stats) in snapshot.drivers.iter().enumerate() {
            for (label, value) in values(stats) {
                let label = Some(label).filter(|label| !label.is_empty()).map(str::to_owned);
                let labels = [index.to_string()].into_iter().chain(label).collect();
                family.push(labels, Value::Count(value));
            }
        }
        family
    };
    let reactor = &["reactor"][..];
    vec![
        each(Family::gauge("targe_reactor_connections", reactor, "Open connections."), |stats| {
            vec![("", stats.connections)]
        }),
        each(
            Family::counter(
                "targe_reactor_connections_refused",
                &["reactor", "reason"],
                "Connections that were refused: a `limit`, or no `descriptor` or memory was left.",
            ),
            |stats| vec![("limit", stats.refused), ("descriptor", stats.accept_failures)],
        ),
        each(Family::counter("targe_reactor_wakeups", reactor, "How often it woke up."), |stats| {
            vec![("", stats.wakeups)]
        }),
        each(
            Family::counter(
                "targe_reactor_enters",
                reactor,
                "System calls that wait or submit: `io_uring_enter` or `epoll_wait`. With io_uring there are hardly any others.",
            ),
            |stats| vec![("", stats.enters)],
        ),
        each(
            Family::counter(
                "targe_reactor_network",
                &["reactor", "direction"],
                "Bytes of connections, protocol included: `in`, `out`.",
            )
            .in_bytes(),
            |stats| vec![("in", stats.bytes_in), ("out", stats.bytes_out)],
        ),
        each(
            Family::counter(
                "targe_reactor_transfers",
                &["reactor", "direction"],
                "Receives and sends of connections that the kernel completed: `in`, `out`.",
            ),
            |stats| vec![("in", stats.receives), ("out", stats.sends)],
        ),
        each(
            Family::counter(
                "targe_reactor_file_operations",
                &["reactor", "method"],
                "Operations on files: by the reactor itself (`inline`), io_uring (`ring`), the thread pool (`threads`).",
            ),
            |stats| {
                vec![
                    ("inline", stats.file_inline),
                    ("ring", stats.file_ring),
                    ("threads", stats.file_threads),
                ]
            },
        ),
        each(
            Family::counter(
                "targe_reactor_frames",
                &["reactor", "direction"],
                "Ethernet frames: `in`, `out`.",
            ),
            |stats| vec![("in", stats.frames_in), ("out", stats.frames_out)],
        ),
        each(
            Family::counter(
                "targe_reactor_frames_lost",
                &["reactor", "reason"],
                "Ethernet frames that were lost here: the receive buffer was full (`overrun`), or they were not sent \
                 (`too_long`, `unsent`).",
            ),
            |stats| {
                vec![
                    ("overrun", stats.frames_dropped),
                    ("too_long", stats.frames_too_long),
                    ("unsent", stats.frames_unsent),
                ]
            },
        ),
    ]
}
