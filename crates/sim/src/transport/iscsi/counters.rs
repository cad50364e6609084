//! The counters of a run: how often each kind of recovery happened.

use iscsi::initiator::contract::SessionStats;

/// The counters of a run, for display.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: u64,
    pub(super) restarts: u64,
    pub(super) faults: u64,
    /// Connections whose PDUs were sealed, and those that ended because too many were modified on the way.
    pub(super) sealed: u64,
    pub(super) modified: u64,
    /// Live upgrades, the sessions that they moved, those that were given up because the target did not
    /// become idle, and those that ended after the export.
    pub(super) upgrades: u64,
    pub(super) moved_sessions: u64,
    pub(super) upgrades_given_up: u64,
    pub(super) upgrades_undone: u64,
    /// From here on: counters of sessions that have ended.
    pub(super) retries: u64,
    pub(super) replays: u64,
    pub(super) reassigns: u64,
    pub(super) data_snacks: u64,
    pub(super) status_snacks: u64,
    pub(super) rebuilt: u64,
    pub(super) continued: u64,
    pub(super) damaged_answers: u64,
    pub(super) bugs: u64,
    /// From here on: counters of shards that have ended.
    pub(super) shard_bugs: u64,
    pub(super) damaged_requests: u64,
    pub(super) recovery_r2ts: u64,
    pub(super) taken_over: u64,
    pub(super) sent_again: u64,
    pub(super) withheld: u64,
    pub(super) held_back: u64,
    pub(super) revoked: u64,
    pub(super) data_late: u64,
}

impl Counters {
    /// Adds the counters of a session.
    pub(super) const fn session(&mut self, stats: &SessionStats) {
        self.retries += stats.retries;
        self.replays += stats.replays;
        self.reassigns += stats.reassigns;
        self.data_snacks += stats.data_snacks;
        self.status_snacks += stats.status_snacks;
        self.rebuilt += stats.sessions_rebuilt;
        self.continued += stats.sessions_continued;
        self.damaged_answers += stats.data_digest_errors + stats.header_digest_errors;
        self.bugs += stats.bugs;
    }

    /// Adds the counters of a shard.
    pub(super) const fn shard(&mut self, stats: &iscsi::target::engine::EngineStats) {
        self.damaged_requests += stats.data_digest_errors + stats.header_digest_errors;
        self.recovery_r2ts += stats.recovery_r2ts;
        self.taken_over += stats.reassigns;
        self.sent_again += stats.snacks;
        self.withheld += stats.withheld;
        self.held_back += stats.held_back;
        self.revoked += stats.revoked;
        self.data_late += stats.data_late;
        self.shard_bugs += stats.bugs;
    }

    /// Returns the counters. Each event must happen in at least one of many worlds.
    pub(super) fn into_counts(self) -> Vec<(&'static str, u64)> {
        vec![
            ("connections", self.connections),
            ("connections with an AEAD digest", self.sealed),
            ("connections that ended because PDUs were modified", self.modified),
            ("sessions begun anew by their owners", self.restarts),
            ("commands sent again under their numbers", self.retries),
            ("commands carried out again in another session", self.replays),
            ("tasks that initiators moved", self.reassigns),
            ("tasks that the target let move", self.taken_over),
            ("SNACKs for data", self.data_snacks),
            ("SNACKs for statuses", self.status_snacks),
            ("SNACKs that the target served or refused", self.sent_again),
            ("recovery R2Ts", self.recovery_r2ts),
            ("sessions rebuilt", self.rebuilt),
            ("sessions continued", self.continued),
            ("damaged PDUs at initiators", self.damaged_answers),
            ("damaged PDUs at the target", self.damaged_requests),
            ("R2Ts that waited for memory", self.withheld),
            ("commands that waited for memory", self.held_back),
            ("commands whose data stood still and lost its memory", self.revoked),
            ("commands that failed because their data stood still", self.data_late),
            ("live upgrades", self.upgrades),
            ("sessions that moved to another process", self.moved_sessions),
            ("live upgrades given up because the target was busy", self.upgrades_given_up),
            ("live upgrades undone after the export", self.upgrades_undone),
        ]
    }
}
