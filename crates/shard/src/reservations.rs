//! The reservations of units, for their operator.

use alloc::vec::Vec;

use base::time::Instant;
use device::unit::reservations::{
    RemovalError, RemovalProgress, RemovedReservations, ReservationDetails, ReservationRemoval,
    ReservationReport,
};
use target::units::UnitId;

use crate::shard::Shard;

impl Shard {
    /// Returns the reservations of the units that have any.
    pub fn reservations(&self) -> Vec<(UnitId, ReservationReport)> {
        self.target.reservations()
    }

    /// Returns every reservation and registration of a unit.
    pub fn reservation_details(&self, id: UnitId) -> Option<ReservationDetails> {
        self.target.reservation_details(id)
    }

    /// Removes reservations and registrations of a unit for its operator; `None` if there is no such unit.
    pub fn remove_reservations(
        &mut self,
        now: Instant,
        id: UnitId,
        selection: ReservationRemoval,
        is_forced: bool,
    ) -> Option<Result<RemovedReservations, RemovalError>> {
        let removed = self.target.remove_reservations(now, id, selection, is_forced);
        self.process_pending(now);
        removed
    }

    /// Returns how far the last removal of reservations of a unit is.
    pub fn removal_progress(&self, id: UnitId) -> Option<RemovalProgress> {
        self.target.removal_progress(id)
    }
}
