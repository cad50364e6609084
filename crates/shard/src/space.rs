//! The storage that units share with others.

use base::time::Instant;
use device::space_threshold::SpaceThreshold;
use target::units::UnitId;

use crate::shard::Shard;

impl Shard {
    /// Records when the storage of a unit counts as short, and whether it is short.
    pub fn set_space_threshold(&mut self, now: Instant, id: UnitId, threshold: SpaceThreshold) {
        self.target.set_space_threshold(now, id, threshold);
        self.process_pending(now);
    }
}
