//! Persistent reservations in a document that one process hands over to the next. Unlike the saved state it
//! has those without APTPL as well, and the generation.

use alloc::vec::Vec;

use scsi::pr::{ReservationKey, ReservationType};
use scsi::transport_id::TransportId;
use serde::{Deserialize, Serialize};

use super::{Held, MAX_REGISTRANTS, NexusName, PersistentReservations, Registrant};
use crate::contract::RelativePort;
use crate::handover::RestoreError;
use crate::handover::hex::HexBytes;

/// Registrations and reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReservationsState {
    registrants: Vec<RegistrantState>,
    reservation: Option<HeldState>,
    generation: u32,
    persist: bool,
    lost: bool,
}

/// The ports of a nexus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NexusNameState {
    initiator_port: HexBytes,
    target_port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistrantState {
    nexus: NexusNameState,
    key: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeldState {
    /// The type code.
    kind: u8,
    /// The holder; `None` if every registrant holds the reservation.
    holder: Option<NexusNameState>,
}

impl NexusNameState {
    pub(crate) fn of(name: &NexusName) -> Self {
        let NexusName { initiator_port, target_port: RelativePort(target_port) } = name;
        Self { initiator_port: HexBytes::of(initiator_port), target_port: *target_port }
    }

    /// Returns the name.
    ///
    /// # Errors
    /// [`RestoreError::InitiatorPort`] for bytes that are no TransportID.
    pub(crate) fn restore(&self) -> Result<NexusName, RestoreError> {
        let port = self.initiator_port.0.as_slice();
        TransportId::from_bytes(port).map_err(|_| RestoreError::InitiatorPort)?;
        Ok(NexusName { initiator_port: port.into(), target_port: RelativePort(self.target_port) })
    }
}

impl PersistentReservations {
    /// Returns everything in a document.
    pub(crate) fn export(&self) -> ReservationsState {
        let Self { registrants, reservation, generation, persist, lost } = self;
        let registrant = |Registrant { nexus, key: ReservationKey(key) }: &Registrant| RegistrantState {
            nexus: NexusNameState::of(nexus),
            key: *key,
        };
        let held = |held: &Held| HeldState {
            kind: held.kind().code(),
            holder: match held {
                Held::ByOne(_, holder) => Some(NexusNameState::of(holder)),
                Held::ByAll(_) => None,
            },
        };
        ReservationsState {
            registrants: registrants.iter().map(registrant).collect(),
            reservation: reservation.as_ref().map(held),
            generation: *generation,
            persist: *persist,
            lost: *lost,
        }
    }

    /// Returns the registrations and the reservation of a document.
    ///
    /// # Errors
    /// [`RestoreError`] for too many registrations, for one that is there twice or has no key, and for a
    /// reservation of a type that does not exist or without the registration of its holder.
    pub(crate) fn restore(state: &ReservationsState) -> Result<Self, RestoreError> {
        let ReservationsState { registrants, reservation, generation, persist, lost } = state;
        if registrants.len() > MAX_REGISTRANTS {
            return Err(RestoreError::TooMany("registrations"));
        }
        let mut pr = Self { generation: *generation, persist: *persist, lost: *lost, ..Self::default() };
        for RegistrantState { nexus, key } in registrants {
            let registrant = Registrant { nexus: nexus.restore()?, key: ReservationKey(*key) };
            if registrant.key == ReservationKey::NONE || pr.registrant(&registrant.nexus).is_some() {
                return Err(RestoreError::Registration);
            }
            pr.registrants.push(registrant);
        }
        let Some(HeldState { kind, holder }) = reservation else { return Ok(pr) };
        let kind = ReservationType::from_code(*kind).ok_or(RestoreError::ReservationType)?;
        let holder = holder.as_ref().map(NexusNameState::restore).transpose()?;
        pr.reservation = Some(match holder {
            None if kind.is_all_registrants() && pr.has_registrants() => Held::ByAll(kind),
            Some(holder) if !kind.is_all_registrants() && pr.registrant(&holder).is_some() => {
                Held::ByOne(kind, holder)
            }
            _ => return Err(RestoreError::ReservationWithoutRegistration),
        });
        Ok(pr)
    }
}
