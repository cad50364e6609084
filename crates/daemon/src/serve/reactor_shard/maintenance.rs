//! Draining and snapshots of single units.

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use base::state_machine::{MediumId, StreamMachine as _};
use base::time::Instant;
use device::drain::Drain;
use target::units::UnitId;

use super::ReactorShard;

impl ReactorShard {
    /// Drains a unit, or ends that. Units of other reactors are ignored.
    pub(in crate::serve) fn drain_unit(&mut self, now: Instant, id: UnitId, drained: bool) {
        if self.naas.contains_key(&id) {
            self.nbd.set_time(now);
            self.shard.set_unit_drained(now, id, drained);
        }
    }

    /// Returns how far the drain of a unit is, and how many tasks the unit has; `None` if it is not a unit of
    /// this reactor.
    pub(in crate::serve) fn drain_progress(&self, id: UnitId) -> Option<(Drain, u64)> {
        self.naas.get(&id)?;
        let report = self.shard.units().into_iter().find(|report| report.unit == id)?;
        Some((report.drain, report.stats.tasks))
    }

    /// Makes `to` have the contents of the file of a unit, and sends the result. Nothing is sent for units of
    /// other reactors, or if the unit is removed meanwhile.
    pub(in crate::serve) fn snapshot(
        &mut self,
        now: Instant,
        id: UnitId,
        to: Arc<File>,
        told: Sender<Result<(), String>>,
    ) {
        if let Some(disk) = self.disks.get(&id) {
            disk.snapshot(to, told);
            // The first step may have ended at once, and then nothing else announces it.
            self.medium_ready(now, MediumId(id.0));
        }
    }
}
