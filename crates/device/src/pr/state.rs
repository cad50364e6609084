//! Encodes registrations and reservation for the persistent state (APTPL).

use alloc::vec::Vec;

use base::bytes::Reader;
use scsi::pr::{ReservationKey, ReservationType};
use scsi::transport_id::{self, TransportId};

use super::{Held, MAX_REGISTRANTS, NexusName, PersistentReservations, Registrant};
use crate::contract::RelativePort;
use crate::state_decode_error::StateDecodeError;

/// The most bytes that [`PersistentReservations::encode`] appends: every registrant with the longest
/// TransportID.
pub(crate) const MAX_LEN: usize = HEADER_LEN + MAX_REGISTRANTS * (12 + transport_id::MAX_LEN);

const HEADER_LEN: usize = 1 + 1 + 2 + 2;
/// The index of the holder when there is none, or when all registrants hold the reservation.
const NOBODY: u16 = 0xffff;

impl PersistentReservations {
    /// Appends the encoded state: whether registrations are to survive (1), type code of the reservation or
    /// zero (1), index of the holder or FFFFh (2), count of registrants (2); for each: key (8), relative
    /// target port (2), length of the TransportID (2), the TransportID. Without APTPL, there is no
    /// reservation and no registrant in it.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if !self.persist {
            out.extend_from_slice(&[0, 0, 0xff, 0xff, 0, 0]);
            return;
        }
        let holder = match &self.reservation {
            Some(Held::ByOne(_, holder)) => self.registrants.iter().position(|one| one.nexus == *holder),
            _ => None,
        };
        out.extend_from_slice(&[1, self.kind().map_or(0, ReservationType::code)]);
        let index = holder.and_then(|index| u16::try_from(index).ok()).unwrap_or(NOBODY);
        out.extend_from_slice(&index.to_be_bytes());
        out.extend_from_slice(&len16(self.registrants.len()));
        for Registrant { nexus, key } in &self.registrants {
            out.extend_from_slice(&key.0.to_be_bytes());
            out.extend_from_slice(&nexus.target_port.0.to_be_bytes());
            out.extend_from_slice(&len16(nexus.initiator_port.len()));
            out.extend_from_slice(&nexus.initiator_port);
        }
    }

    /// Decodes the output of [`Self::encode`].
    ///
    /// # Errors
    /// Why the bytes cannot be used.
    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, StateDecodeError> {
        let [persist, code] = reader.array()?;
        let (holder, count) = (reader.u16()?, usize::from(reader.u16()?));
        if count > MAX_REGISTRANTS || persist > 1 || (persist == 0 && (count, code) != (0, 0)) {
            return Err(StateDecodeError::Inconsistent);
        }
        let mut state = Self { persist: persist == 1, ..Self::default() };
        for _ in 0..count {
            let registrant = registrant(reader)?;
            if registrant.key == ReservationKey::NONE || state.registrant(&registrant.nexus).is_some() {
                return Err(StateDecodeError::Inconsistent);
            }
            state.registrants.push(registrant);
        }
        state.reservation = match (code, ReservationType::from_code(code)) {
            (0, _) if holder == NOBODY => None,
            (_, Some(kind)) if kind.is_all_registrants() && holder == NOBODY && count > 0 => {
                Some(Held::ByAll(kind))
            }
            (_, Some(kind)) if !kind.is_all_registrants() => {
                let holder =
                    state.registrants.get(usize::from(holder)).ok_or(StateDecodeError::Inconsistent)?;
                Some(Held::ByOne(kind, holder.nexus.clone()))
            }
            _ => return Err(StateDecodeError::Inconsistent),
        };
        Ok(state)
    }
}

fn registrant(reader: &mut Reader<'_>) -> Result<Registrant, StateDecodeError> {
    let key = ReservationKey(reader.u64()?);
    let target_port = RelativePort(reader.u16()?);
    let len = usize::from(reader.u16()?);
    let initiator_port = reader.take(len)?;
    TransportId::from_bytes(initiator_port).map_err(|_| StateDecodeError::Inconsistent)?;
    Ok(Registrant { nexus: NexusName { initiator_port: initiator_port.into(), target_port }, key })
}

fn len16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}
