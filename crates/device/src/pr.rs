//! Persistent reservations (SPC-5 §5.14) as a value: which nexuses are registered, which hold the
//! reservation, and what each may do.
//!
//! This module knows no tasks, sessions or media. A PERSISTENT RESERVE OUT is passed in as an
//! [`out::Request`]. The actions that it requires elsewhere are returned as [`Effects`]: unit attentions to
//! establish, tasks to abort, state to save. A refused request has changed nothing.

pub(crate) mod conflict;
pub(crate) mod handover;
pub(crate) mod operator;
pub(crate) mod out;
pub(crate) mod report;
pub(crate) mod state;
#[cfg(test)]
mod tests;

use alloc::rc::Rc;
use alloc::vec::Vec;

use scsi::pr::{ReservationKey, ReservationType};
use scsi::sense::{Asc, Sense};

use crate::contract::{Nexus, RelativePort};

/// How many nexuses can be registered with one logical unit: 64 hosts with 8 paths each, which is what the
/// largest clusters in use need. READ KEYS then returns 4 KiB, and the saved state stays under 128 KiB.
pub(crate) const MAX_REGISTRANTS: usize = 512;

/// The name of an I_T nexus that persists across sessions and restarts: the names of its two ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NexusName {
    /// The initiator port, as an encoded TransportID.
    pub(crate) initiator_port: Rc<[u8]>,
    /// The target port.
    pub(crate) target_port: RelativePort,
}

impl NexusName {
    /// Returns the persistent name of `nexus`.
    pub(crate) fn of(nexus: &Nexus) -> Self {
        Self { initiator_port: Rc::clone(&nexus.initiator_port), target_port: nexus.target_port }
    }
}

/// The role of a nexus in the persistent reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PrRole {
    /// Not registered.
    Unregistered,
    /// Registered, and not the holder.
    Registrant,
    /// Holds the reservation. With a reservation of an all registrants type, every registrant is a holder.
    Holder,
}

/// The actions that a successful PERSISTENT RESERVE OUT requires of the rest of the logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// The unit attentions to establish, never one for the nexus that sent the command.
    pub(crate) attentions: Vec<(NexusName, Asc)>,
    /// The nexuses whose tasks, except the command itself, are to be aborted and whose prevention of medium
    /// removal is to end (PREEMPT AND ABORT).
    pub(crate) abort: Vec<NexusName>,
    /// Whether the saved state is out of date and must be replaced before the command is answered.
    pub(crate) save: bool,
}

/// Why a PERSISTENT RESERVE OUT was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrError {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION with this sense.
    Check(Sense),
}

impl From<Sense> for PrError {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// The registrations and the reservation of one logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PersistentReservations {
    registrants: Vec<Registrant>,
    reservation: Option<Held>,
    generation: u32,
    /// APTPL of the last registration.
    persist: bool,
    /// Whether the saved state could not be read (SPC-5 §5.14.5).
    lost: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Registrant {
    nexus: NexusName,
    key: ReservationKey,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    /// By one nexus, which is registered.
    ByOne(ReservationType, NexusName),
    /// By every registered nexus, of which there is at least one.
    ByAll(ReservationType),
}

impl Held {
    const fn kind(&self) -> ReservationType {
        match self {
            Self::ByOne(kind, _) | Self::ByAll(kind) => *kind,
        }
    }

    fn new(kind: ReservationType, holder: &NexusName) -> Self {
        if kind.is_all_registrants() { Self::ByAll(kind) } else { Self::ByOne(kind, holder.clone()) }
    }
}

impl PersistentReservations {
    /// Starts with no registration.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts with lost state: every command but a few is refused until an application client sends REPLACE
    /// LOST RESERVATION (SPC-5 §5.14.5).
    pub(crate) fn lost() -> Self {
        Self { lost: true, ..Self::default() }
    }

    /// Returns the role of `nexus` in the reservation.
    pub(crate) fn role_of(&self, nexus: &NexusName) -> PrRole {
        if self.registrant(nexus).is_none() {
            return PrRole::Unregistered;
        }
        match &self.reservation {
            Some(Held::ByAll(_)) => PrRole::Holder,
            Some(Held::ByOne(_, holder)) if holder == nexus => PrRole::Holder,
            _ => PrRole::Registrant,
        }
    }

    /// Returns the type of the reservation, if there is one.
    pub(crate) fn kind(&self) -> Option<ReservationType> {
        self.reservation.as_ref().map(Held::kind)
    }

    /// Returns the nexuses that hold the reservation.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &NexusName> {
        let (one, all) = match &self.reservation {
            None => (None, None),
            Some(Held::ByOne(_, holder)) => (Some(holder), None),
            Some(Held::ByAll(_)) => (None, Some(&self.registrants)),
        };
        one.into_iter().chain(all.into_iter().flatten().map(|registrant| &registrant.nexus))
    }

    /// Returns every registered nexus and its key.
    pub(crate) fn registrants(&self) -> impl Iterator<Item = (&NexusName, u64)> {
        self.registrants.iter().map(|registrant| (&registrant.nexus, registrant.key.0))
    }

    /// Returns how many nexuses are registered.
    pub(crate) const fn registrations(&self) -> usize {
        self.registrants.len()
    }

    /// Returns whether any nexus is registered.
    pub(crate) const fn has_registrants(&self) -> bool {
        !self.registrants.is_empty()
    }

    /// Returns whether registrations and reservation survive a loss of power (APTPL).
    pub(crate) const fn persists(&self) -> bool {
        self.persist
    }

    /// Returns whether saved state could not be read and has not been replaced.
    pub(crate) const fn is_lost(&self) -> bool {
        self.lost
    }

    fn registrant(&self, nexus: &NexusName) -> Option<&Registrant> {
        self.registrants.iter().find(|registrant| registrant.nexus == *nexus)
    }

    fn holder_key(&self) -> Option<ReservationKey> {
        match &self.reservation {
            Some(Held::ByOne(_, holder)) => self.registrant(holder).map(|registrant| registrant.key),
            _ => None,
        }
    }
}
