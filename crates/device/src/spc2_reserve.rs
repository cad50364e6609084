//! RESERVE and RELEASE (SPC-2), and their interaction with persistent reservations
//! (SPC-5 §5.14.3).

use scsi::status::Status;

use crate::contract::NexusId;
use crate::pr::{PersistentReservations, PrRole};

/// The SPC-2 reservation of the unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spc2Reservation {
    holder: Option<NexusId>,
}

impl Spc2Reservation {
    /// Returns the nexus that has reserved the unit.
    pub(crate) const fn holder(&self) -> Option<NexusId> {
        self.holder
    }

    /// Restores the reservation of a nexus.
    pub(crate) const fn of_holder(holder: Option<NexusId>) -> Self {
        Self { holder }
    }

    /// Executes RESERVE.
    pub(crate) fn reserve(&mut self, from: NexusId, standing: PrRole, pr: &PersistentReservations) -> Status {
        match compatible(standing, pr) {
            Some(status) => status,
            None if self.holder.is_some_and(|holder| holder != from) => Status::RESERVATION_CONFLICT,
            None => {
                self.holder = Some(from);
                Status::GOOD
            }
        }
    }

    /// Executes RELEASE. From a nexus that has reserved nothing it succeeds and does nothing.
    pub(crate) fn release(&mut self, from: NexusId, standing: PrRole, pr: &PersistentReservations) -> Status {
        if let Some(status) = compatible(standing, pr) {
            return status;
        }
        self.lose(from);
        Status::GOOD
    }

    /// Handles the loss of a nexus.
    pub(crate) fn lose(&mut self, nexus: NexusId) {
        if self.holder == Some(nexus) {
            self.holder = None;
        }
    }

    /// Handles a reset.
    pub(crate) const fn reset(&mut self) {
        self.holder = None;
    }
}

/// Returns the status of a RESERVE or RELEASE while any nexus is registered. The command does nothing. It
/// succeeds for a nexus that may execute every command under the persistent reservation (CRH), and conflicts
/// for every other nexus (SPC-2).
fn compatible(standing: PrRole, pr: &PersistentReservations) -> Option<Status> {
    if !pr.has_registrants() {
        return None;
    }
    let admitted = match standing {
        PrRole::Holder => true,
        PrRole::Registrant => pr.kind().is_some_and(|kind| kind.admits_registrants()),
        PrRole::Unregistered => false,
    };
    Some(if admitted { Status::GOOD } else { Status::RESERVATION_CONFLICT })
}

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;

    use scsi::pr::{BasicList, ReservationKey, ReservationType};
    use scsi::transport_id::TransportId;

    use super::*;
    use crate::contract::RelativePort;
    use crate::pr::NexusName;
    use crate::pr::out::{KnownPorts, Request};

    const A: NexusId = NexusId(1);
    const B: NexusId = NexusId(2);

    #[test]
    fn one_nexus_reserves_at_a_time() {
        let pr = PersistentReservations::new();
        let mut unit = Spc2Reservation::default();
        for (from, reserve, status, holder) in [
            (B, false, Status::GOOD, None),
            (A, true, Status::GOOD, Some(A)),
            (A, true, Status::GOOD, Some(A)),
            (B, true, Status::RESERVATION_CONFLICT, Some(A)),
            (B, false, Status::GOOD, Some(A)),
            (A, false, Status::GOOD, None),
            (B, true, Status::GOOD, Some(B)),
        ] {
            let answer = if reserve {
                unit.reserve(from, PrRole::Unregistered, &pr)
            } else {
                unit.release(from, PrRole::Unregistered, &pr)
            };
            assert_eq!((answer, unit.holder()), (status, holder));
        }
        unit.lose(A);
        assert_eq!(unit.holder(), Some(B));
        unit.lose(B);
        assert_eq!(unit.holder(), None);
    }

    #[test]
    fn a_reset_releases() {
        let mut unit = Spc2Reservation::default();
        unit.reserve(A, PrRole::Unregistered, &PersistentReservations::new());
        unit.reset();
        assert_eq!(unit.holder(), None);
    }

    #[test]
    fn registrants_find_it_compatible_and_strangers_conflict() {
        for kind in core::iter::once(None).chain(ReservationType::ALL.map(Some)) {
            let name = TransportId::iscsi_port("iqn.a", [0; 6]).unwrap();
            let from = NexusName { initiator_port: Rc::from(name.encode()), target_port: RelativePort(1) };
            let key = ReservationKey(1);
            let list = BasicList { service_action_key: key, ..BasicList::default() };
            let world = KnownPorts { target_ports: &[], initiator_ports: &[] };
            let mut pr = PersistentReservations::new();
            pr.out(&from, Request::Register(list), world).unwrap();
            if let Some(kind) = kind {
                pr.out(&from, Request::Reserve(key, kind), world).unwrap();
            }
            let registrants = kind.is_some_and(ReservationType::admits_registrants);
            for (standing, good) in
                [(PrRole::Holder, true), (PrRole::Registrant, registrants), (PrRole::Unregistered, false)]
            {
                let status = if good { Status::GOOD } else { Status::RESERVATION_CONFLICT };
                let mut unit = Spc2Reservation::default();
                assert_eq!(unit.reserve(A, standing, &pr), status, "{kind:?} {standing:?}");
                assert_eq!(unit.release(A, standing, &pr), status, "{kind:?} {standing:?}");
                assert_eq!(unit.holder(), None);
            }
        }
    }
}
