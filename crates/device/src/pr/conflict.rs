//! Which commands conflict with a reservation (SPC-5 §5.14, SBC-4 §4.17, SPC-2).

use scsi::cdb::Cdb;
use scsi::opcode;
use scsi::pr::{ReservationType, service_action_out};

use super::{PersistentReservations, PrRole};
use crate::fault_injection::{self, Bug};

/// The conflict class of a command: which reservations of other nexuses stop it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Conflict {
    /// No reservation stops it (INQUIRY, LOG SENSE, READ CAPACITY, …).
    Never,
    /// A RESERVE stops it; a persistent reservation does not (TEST UNIT READY).
    Reserve,
    /// It reads: exclusive access stops it (READ, MODE SENSE, …).
    Reads,
    /// It changes: every reservation stops it (WRITE, MODE SELECT, …).
    Writes,
    /// PERSISTENT RESERVE IN and OUT: any RESERVE stops them, even the sender's own (SPC-2). The code
    /// that executes OUT checks its conflicts with persistent reservations.
    Persistent,
    /// RESERVE and RELEASE, whose own code checks both kinds of reservation.
    Own,
    /// Depends on other bytes of the CDB.
    ByCdb(fn(&Cdb) -> Conflict),
}

impl Conflict {
    /// Returns the class of `cdb`, never [`Conflict::ByCdb`].
    pub(crate) fn of(self, cdb: &Cdb) -> Self {
        match self {
            Self::ByCdb(class) => match class(cdb) {
                Self::ByCdb(_) => Self::Writes,
                class => class,
            },
            class => class,
        }
    }

    /// Returns whether a persistent reservation of type `kind` stops a command of this class from a nexus
    /// with the role `standing`.
    pub(crate) const fn conflicts_with(self, kind: ReservationType, standing: PrRole) -> bool {
        let admitted = match standing {
            PrRole::Holder => true,
            PrRole::Registrant => kind.admits_registrants(),
            PrRole::Unregistered => false,
        };
        match self {
            Self::Never | Self::Reserve | Self::Persistent | Self::Own => false,
            Self::Reads => !admitted && !kind.admits_readers(),
            Self::Writes | Self::ByCdb(_) => !admitted,
        }
    }

    /// Returns whether a RESERVE stops a command of this class, from its holder or from another nexus.
    pub(crate) const fn conflicts_with_reserve(self, from_holder: bool) -> bool {
        match self {
            Self::Never | Self::Own => false,
            Self::Persistent => true,
            Self::Reserve | Self::Reads | Self::Writes | Self::ByCdb(_) => !from_holder,
        }
    }
}

impl PersistentReservations {
    /// Returns whether the reservation stops a command of `class` from a nexus with the role `standing`.
    pub(crate) fn conflicts(&self, class: Conflict, standing: PrRole) -> bool {
        if standing == PrRole::Unregistered && fault_injection::is_injected(Bug::ReserveAdmitsStranger) {
            return false;
        }
        self.kind().is_some_and(|kind| class.conflicts_with(kind, standing))
    }

    /// Returns whether `cdb` is one of the few commands that are still processed while saved state is lost
    /// (SPC-5 §5.14.5).
    pub(crate) fn passes_while_lost(cdb: &Cdb) -> bool {
        match cdb.opcode() {
            opcode::INQUIRY
            | opcode::LOG_SENSE
            | opcode::READ_BUFFER_10
            | opcode::READ_BUFFER_16
            | opcode::REPORT_LUNS
            | opcode::REQUEST_SENSE
            | opcode::WRITE_BUFFER => true,
            opcode::MAINTENANCE_IN => {
                u16::from(cdb.u8(1) & 0x1f) == opcode::maintenance_in::REPORT_TARGET_PORT_GROUPS
            }
            opcode::START_STOP_UNIT => cdb.u8(4) & 0xf1 == 1,
            opcode::PERSISTENT_RESERVE_OUT => {
                u16::from(cdb.u8(1) & 0x1f) == service_action_out::REPLACE_LOST_RESERVATION
            }
            _ => false,
        }
    }
}
