//! How often each event happened: a case that never occurs proves nothing.

use std::collections::BTreeMap;

use hyperscsi::connection::DropCounts;
use hyperscsi::initiator::contract::SessionStats;
use hyperscsi::target::engine::EngineStats;
use netem::frame::FrameStats;

/// Counters by name.
#[derive(Clone, Debug)]
pub(super) struct Counters(BTreeMap<&'static str, u64>);

/// The events that are counted one at a time. Counters of zero are shown.
const EVENTS: [&str; 18] = [
    "sessions begun anew by their owners",
    "changes of the MTU, told",
    "changes of the MTU, not told",
    "hosts that stood still",
    "frames lost in full rings",
    "initiators that died",
    "strangers turned away",
    "paths that came up",
    "paths lost",
    "sessions ended with their keys used up",
    "sessions found to be forgotten",
    "sessions lost with their last path",
    "sessions lost otherwise",
    "losses of the target's power",
    "reservation commands",
    "upgrades",
    "upgrades that failed",
    "upgrades given up",
];

impl Counters {
    pub(super) fn new() -> Self {
        Self(EVENTS.into_iter().map(|name| (name, 0)).collect())
    }

    pub(super) fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    pub(super) fn one(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    pub(super) fn into_counts(self) -> Vec<(&'static str, u64)> {
        self.0.into_iter().collect()
    }

    pub(super) fn wire(&mut self, stats: &FrameStats) {
        self.add("frames sent", stats.sent);
        self.add("frames lost by dice", stats.lost);
        self.add("frames lost in full queues", stats.queue_full);
        self.add("frames lost for their length", stats.too_long);
        self.add("frames lost in cuts", stats.cut);
        self.add("frames repeated by the wire", stats.duplicated);
        self.add("frames overtaken", stats.reordered);
        self.add("frames damaged", stats.corrupted);
    }

    fn drops(&mut self, drops: &DropCounts) {
        self.add("refused: from elsewhere", drops.foreign);
        self.add("refused: damaged", drops.damaged);
        self.add("refused: came before", drops.replayed);
    }

    pub(super) fn session(&mut self, stats: &SessionStats) {
        self.drops(&stats.drops);
        self.add("handshakes that succeeded", stats.logins);
        self.add("handshakes that failed", stats.logins_failed);
        self.add("keys changed by initiators", stats.key_updates);
        self.add("commands begun again in a new session", stats.replays);
        self.add("commands sent again with more protection", stats.raised);
        self.add("hints that a session is forgotten", stats.hints);
    }

    pub(super) fn engine(&mut self, stats: &EngineStats) {
        self.drops(&stats.drops);
        self.add("keys changed by the target", stats.key_updates);
        self.add("sessions that took the place of an older one", stats.reinstated);
        self.add("commands", stats.commands);
        self.add("task management functions", stats.management);
        self.add("requests that came again", stats.duplicates);
        self.add("frames of exchanges that are over", stats.strays);
        self.add("commands refused for want of protection", stats.refused_level);
        self.add("commands answered BUSY", stats.busy);
        self.add("requests for data that waited for memory", stats.withheld);
        self.add("commands that waited for memory", stats.held_back);
    }
}
