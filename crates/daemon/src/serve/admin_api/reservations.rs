//! The responses about reservations.

use device::unit::reservations::{ReservationKind, ReservationReport};
use scsi::pr::ReservationType;

use super::count;
use crate::admin::lun_api::Reservation;

/// Returns the reservation of a unit in the words of the protocol.
pub(super) fn reservation(report: &ReservationReport) -> Reservation {
    Reservation {
        kind: report.kind.map(|kind| word(kind).to_owned()),
        holders: report.holders.clone(),
        registrations: count(report.registrations),
        persists: report.persists,
        lost: report.is_lost,
    }
}

const fn word(kind: ReservationKind) -> &'static str {
    let kind = match kind {
        ReservationKind::Spc2 => return "reserve",
        ReservationKind::Persistent(kind) => kind,
    };
    match kind {
        ReservationType::WriteExclusive => "write exclusive",
        ReservationType::ExclusiveAccess => "exclusive access",
        ReservationType::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
        ReservationType::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
        ReservationType::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
        ReservationType::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
    }
}
