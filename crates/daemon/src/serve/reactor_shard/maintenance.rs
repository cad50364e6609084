//! What the operator does with single units: draining and snapshots.

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use base::time::Instant;
use target::units::UnitId;

use super::ReactorShard;

impl ReactorShard {
    /// Drains a unit, or ends that. Units of other reactors are ignored.
    pub(in crate::serve) fn drain_unit(&mut self, now: Instant, id: UnitId, drained: bool) {
        if self.naas.contains_key(&id) {
            self.shard.set_unit_drained(now, id, drained);
        }
    }

    /// Returns how many tasks a unit has; `None` if it is not a unit of this reactor.
    pub(in crate::serve) fn tasks_of(&self, id: UnitId) -> Option<u64> {
        self.naas.get(&id)?;
        self.shard.units().iter().find(|report| report.unit == id).map(|report| report.stats.tasks)
    }

    /// Makes `to` have the contents of the file of a unit, and sends the result. Nothing is sent for units of
    /// other reactors, or if the unit is removed meanwhile.
    pub(in crate::serve) fn snapshot(&self, id: UnitId, to: Arc<File>, told: Sender<Result<(), String>>) {
        if let Some(disk) = self.disks.get(&id) {
            disk.snapshot(to, told);
        }
    }
}
