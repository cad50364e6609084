//! Draining, reservations and snapshots of units.

use crate::mailbox::Sender;
use std::sync::Arc;

use base::state_machine::{MediumId, StreamMachine as _};
use base::time::Instant;
use device::drain::Drain;
use device::unit::reservations::{
    RemovalError, RemovalProgress, RemovedReservations, ReservationDetails, ReservationRemoval,
};
use drivers::files::ReleasedFile;
use target::units::UnitId;

use super::ReactorShard;
use crate::serve::media::disk::snapshot::{SnapshotId, SnapshotOrder, SnapshotReport, SnapshotReporter};

impl ReactorShard {
    /// Drains a unit, or ends that. Units of other reactors are ignored.
    pub(in crate::serve) fn drain_unit(&mut self, now: Instant, id: UnitId, drained: bool) {
        if self.state_files.contains_key(&id) {
            self.nbd.set_time(now);
            self.shard.set_unit_drained(now, id, drained);
        }
    }

    /// Returns how far the drain of a unit is, and how many tasks the unit has; `None` if it is not a unit of
    /// this reactor.
    pub(in crate::serve) fn drain_progress(&self, id: UnitId) -> Option<(Drain, u64)> {
        self.state_files.get(&id)?;
        let report = self.shard.units().into_iter().find(|report| report.unit == id)?;
        Some((report.drain, report.stats.tasks))
    }

    /// Returns every reservation and registration of a unit; `None` if it is not a unit of this reactor.
    pub(in crate::serve) fn reservation_details(&self, id: UnitId) -> Option<ReservationDetails> {
        self.shard.reservation_details(id)
    }

    /// Begins to remove reservations and registrations of a unit; `None` if it is not a unit of this reactor.
    pub(in crate::serve) fn remove_reservations(
        &mut self,
        now: Instant,
        id: UnitId,
        removal: ReservationRemoval,
        is_forced: bool,
    ) -> Option<Result<RemovedReservations, RemovalError>> {
        self.nbd.set_time(now);
        self.shard.remove_reservations(now, id, removal, is_forced)
    }

    /// Returns how far the last removal of reservations of a unit is.
    pub(in crate::serve) fn removal_progress(&self, id: UnitId) -> Option<RemovalProgress> {
        self.shard.removal_progress(id)
    }

    /// Begins to make each file have the contents of the file of a unit, and reports the progress of each
    /// unit by its number in `wanted`. Returns how many of the units are of this reactor; nothing is reported
    /// of the others.
    pub(in crate::serve) fn begin_snapshot(
        &mut self,
        now: Instant,
        snapshot: SnapshotId,
        wanted: &[(UnitId, Arc<ReleasedFile>)],
        reports: &Sender<SnapshotReport>,
    ) -> usize {
        let mut found = 0;
        for (number, (id, to)) in wanted.iter().enumerate() {
            if let Some(disk) = self.disk(*id) {
                found += 1;
                let reporter = SnapshotReporter::new(number, reports.clone());
                disk.begin_snapshot(snapshot, Arc::clone(to), reporter);
                // The first step may have ended at once, and then nothing else announces it.
                self.medium_ready(now, MediumId(id.0));
            }
        }
        found
    }

    /// Gives an order for a snapshot to units. Those of other reactors are ignored.
    pub(in crate::serve) fn order_snapshot(
        &mut self,
        now: Instant,
        snapshot: SnapshotId,
        order: SnapshotOrder,
        units: &[UnitId],
    ) {
        for id in units {
            if let Some(disk) = self.disk(*id) {
                disk.order_snapshot(snapshot, order);
                self.medium_ready(now, MediumId(id.0));
            }
        }
    }
}
