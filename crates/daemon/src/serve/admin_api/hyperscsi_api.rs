//! The responses about HyperSCSI.

use hyperscsi::connection::{DropCounts, PathTotals, PathView};
use security::Level;
use shard::admin::HyperScsiSessionReport;

use super::{count, limit, wide};
use crate::admin::api::{FrameRepairs, FrameSession, FrameTotals, Path};
use crate::serve::reactor_shard::HyperScsiReport;

pub(super) fn frame_session(
    (report, interfaces): (HyperScsiSessionReport, Vec<String>),
    least: &impl Fn(&str) -> Level,
) -> FrameSession {
    let path = |(view, interface): (&PathView, String)| Path {
        interface,
        peer: view.address.mac.to_string(),
        up: view.is_up,
        mtu: wide(view.stats.mtu),
        interface_mtu: wide(view.stats.port_mtu),
        peer_mtu: wide(view.stats.peer_mtu),
        frames_out: view.stats.frames_sent,
        frames_in: view.stats.frames_received,
        frames_lost: view.stats.frames_lost,
        round_trip_us: u64::try_from(view.stats.round_trip.as_micros()).unwrap_or(u64::MAX),
    };
    FrameSession {
        isid: report.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
        authenticated: report.authenticated,
        protection: least(&report.group).to_string(),
        tasks: report.tasks,
        commands: report.traffic.commands,
        data_in_bytes: report.traffic.data_in_bytes,
        data_out_bytes: report.traffic.data_out_bytes,
        paths: report.paths.iter().zip(interfaces).map(path).collect(),
        other_disk_luns: report.withheld_luns,
        protection_by: report.authenticated.then(|| format!("the password of group {:?}", report.group)),
        hidden_luns: count(report.hidden_luns),
        limit: report.limit.and_then(|(rate, _)| limit(rate)),
        delayed_commands: report.limit.map_or(0, |(_, stats)| stats.delayed),
        delayed_ms: report.limit.map_or(0, |(_, stats)| stats.delayed_ns / 1_000_000),
        repairs: frame_repairs(
            (report.traffic.duplicates, report.traffic.strays),
            &report.drops,
            &report.totals,
        ),
        target: report.target,
        initiator: report.initiator,
        group: report.group,
    }
}

pub(super) fn frame_repairs(
    (duplicate_requests, late_frames): (u64, u64),
    drops: &DropCounts,
    paths: &PathTotals,
) -> FrameRepairs {
    FrameRepairs {
        duplicate_requests,
        late_frames,
        damaged_frames: drops.damaged,
        replayed_frames: drops.replayed,
        refused_frames: drops.foreign
            + drops.protection
            + drops.beyond_credit
            + drops.malformed
            + drops.false_acks,
        frames_lost: paths.frames_lost,
        frames_lost_wrongly: paths.frames_late,
        timeouts: paths.timeouts,
        overruns: paths.frames_overrun,
    }
}

impl FrameTotals {
    pub(super) const NONE: Self = Self {
        commands: 0,
        management: 0,
        refused_level: 0,
        busy: 0,
        bad_frames: 0,
        unknown_sessions: 0,
        handshakes_refused: 0,
        handshakes_unfinished: 0,
        handshakes_put_off: 0,
        repairs: FrameRepairs {
            duplicate_requests: 0,
            late_frames: 0,
            damaged_frames: 0,
            replayed_frames: 0,
            refused_frames: 0,
            frames_lost: 0,
            frames_lost_wrongly: 0,
            timeouts: 0,
            overruns: 0,
        },
    };

    pub(super) fn with(self, more: &HyperScsiReport) -> Self {
        let HyperScsiReport { stats, handshakes, paths } = more;
        let (ours, theirs) =
            (self.repairs, frame_repairs((stats.duplicates, stats.strays), &stats.drops, paths));
        Self {
            commands: self.commands + stats.commands,
            management: self.management + stats.management,
            refused_level: self.refused_level + stats.refused_level,
            busy: self.busy + stats.busy,
            bad_frames: self.bad_frames + stats.bad_frames,
            unknown_sessions: self.unknown_sessions + stats.unknown_sids,
            handshakes_refused: self.handshakes_refused + handshakes.refused,
            handshakes_unfinished: self.handshakes_unfinished + handshakes.unfinished,
            handshakes_put_off: self.handshakes_put_off + handshakes.put_off,
            repairs: FrameRepairs {
                duplicate_requests: ours.duplicate_requests + theirs.duplicate_requests,
                late_frames: ours.late_frames + theirs.late_frames,
                damaged_frames: ours.damaged_frames + theirs.damaged_frames,
                replayed_frames: ours.replayed_frames + theirs.replayed_frames,
                refused_frames: ours.refused_frames + theirs.refused_frames,
                frames_lost: ours.frames_lost + theirs.frames_lost,
                frames_lost_wrongly: ours.frames_lost_wrongly + theirs.frames_lost_wrongly,
                timeouts: ours.timeouts + theirs.timeouts,
                overruns: ours.overruns + theirs.overruns,
            },
        }
    }
}
