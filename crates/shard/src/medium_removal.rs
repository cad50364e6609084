//! The removal of media by the operator, on behalf of the owner of a shard.

use base::time::Instant;
use device::removal_obstacle::RemovalObstacle;
use target::units::UnitId;

use crate::shard::Shard;

impl Shard {
    /// Notifies a unit that its store holds another disc, or none.
    pub fn medium_replaced(&mut self, now: Instant, id: UnitId) {
        self.target.medium_replaced(now, id);
        self.process_pending(now);
    }

    /// Notifies a unit that the operator wants to remove its medium, and an initiator prevents it.
    pub fn removal_requested(&mut self, now: Instant, id: UnitId) {
        self.target.removal_requested(now, id);
        self.process_pending(now);
    }

    /// Returns why the operator must not take the medium of a unit out now.
    pub fn removal_obstacle(&self, id: UnitId) -> Option<RemovalObstacle> {
        self.target.removal_obstacle(id)
    }

    /// Makes durable what initiators have appended to the disc in a drive.
    pub fn save_medium(&mut self, now: Instant, id: UnitId) {
        self.target.save_medium(now, id);
        self.process_pending(now);
    }

    /// Returns whether an initiator prevents the removal of the medium of a unit.
    pub fn is_removal_prevented(&self, id: UnitId) -> bool {
        self.target.is_removal_prevented(id)
    }
}
