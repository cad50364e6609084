//! Writes that the medium of a unit has lost.

use base::time::Instant;
use target::units::UnitId;

use crate::shard::Shard;

impl Shard {
    /// Records that writes to the medium of a unit are lost.
    pub fn record_lost_writes(&mut self, now: Instant, id: UnitId) {
        self.target.record_lost_writes(now, id);
        self.process_pending(now);
    }

    /// Lets the flushes of a unit succeed again: its operator accepts what is lost.
    pub fn accept_lost_writes(&mut self, now: Instant, id: UnitId) {
        self.target.accept_lost_writes(now, id);
        self.process_pending(now);
    }
}
