//! The state that survives a loss of power (APTPL), as bytes that somebody else keeps.
//!
//! Every version that was ever written can be read; only the newest is written. What cannot be read is an error with a
//! reason, never a guess: forgetting a reservation would let a fenced host write.

use alloc::vec::Vec;
use core::fmt;

use base::bytes::{PastEnd, Reader};
use scsi::pr::{ReservationKey, ReservationType};
use scsi::transport_id::{self, TransportId};

use super::{Held, MAX_REGISTRANTS, NexusName, PersistentReservations, Registrant};
use crate::contract::RelativePort;

/// The longest state that is read or written: a header, every registrant with the longest TransportID, a checksum.
pub(crate) const MAX_LEN: usize = HEADER_LEN + MAX_REGISTRANTS * (12 + transport_id::MAX_LEN) + 4;

const MAGIC: [u8; 4] = *b"TgPR";
const HEADER_LEN: usize = 4 + 2 + 1 + 1 + 2 + 2;
/// HOLDER when there is none, or all registrants hold the reservation.
const NOBODY: u16 = 0xffff;

/// The versions of the format. All numbers are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// `TgPR`, version (2), type code of the reservation or zero (1), reserved (1), index of the holder or FFFFh (2),
    /// count of registrants (2); for each: key (8), relative target port (2), length of the TransportID (2), the
    /// TransportID; CRC32C of all before (4).
    V1 = 1,
}

/// Why saved state cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFault {
    /// It is longer than any state we write.
    TooLong,
    /// It ends too early.
    Truncated,
    /// It does not start as ours does.
    Foreign,
    /// It was written by a newer release.
    UnknownVersion(u16),
    /// Its checksum is wrong.
    Corrupt,
    /// It is whole and contradicts itself.
    Inconsistent,
}

impl fmt::Display for StateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "longer than any reservation state",
            Self::Truncated => "ends too early",
            Self::Foreign => "not a reservation state",
            Self::UnknownVersion(version) => {
                return write!(f, "reservation state of unknown version {version}");
            }
            Self::Corrupt => "checksum does not match",
            Self::Inconsistent => "contradicts itself",
        })
    }
}

impl core::error::Error for StateFault {}

impl From<PastEnd> for StateFault {
    fn from(_: PastEnd) -> Self {
        Self::Truncated
    }
}

impl PersistentReservations {
    /// Returns the state as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let holder = match &self.reservation {
            Some(Held::ByOne(_, holder)) => self.registrants.iter().position(|one| one.nexus == *holder),
            _ => None,
        };
        let mut bytes = Vec::from(MAGIC);
        bytes.extend_from_slice(&(Version::V1 as u16).to_be_bytes());
        bytes.extend_from_slice(&[self.kind().map_or(0, ReservationType::code), 0]);
        let index = holder.and_then(|index| u16::try_from(index).ok()).unwrap_or(NOBODY);
        bytes.extend_from_slice(&index.to_be_bytes());
        bytes.extend_from_slice(&len16(self.registrants.len()));
        for Registrant { nexus, key } in &self.registrants {
            bytes.extend_from_slice(&key.0.to_be_bytes());
            bytes.extend_from_slice(&nexus.target_port.0.to_be_bytes());
            bytes.extend_from_slice(&len16(nexus.initiator_port.len()));
            bytes.extend_from_slice(&nexus.initiator_port);
        }
        bytes.extend_from_slice(&crc32c(&bytes).to_be_bytes());
        bytes
    }

    /// Reads what [`Self::encode`] wrote; no bytes at all mean that nothing was to survive.
    ///
    /// # Errors
    /// Why the bytes cannot be used.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StateFault> {
        if bytes.is_empty() {
            return Ok(Self::new());
        }
        if bytes.len() > MAX_LEN {
            return Err(StateFault::TooLong);
        }
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(StateFault::Truncated)?;
        let mut reader = Reader::new(body);
        if reader.array()? != MAGIC {
            return Err(StateFault::Foreign);
        }
        let version = reader.u16()?;
        if version != Version::V1 as u16 {
            return Err(StateFault::UnknownVersion(version));
        }
        if crc32c(body) != u32::from_be_bytes(*sum) {
            return Err(StateFault::Corrupt);
        }
        Self::decode_v1(reader)
    }

    fn decode_v1(mut reader: Reader<'_>) -> Result<Self, StateFault> {
        let [code, _reserved] = reader.array()?;
        let holder = reader.u16()?;
        let count = usize::from(reader.u16()?);
        if count > MAX_REGISTRANTS {
            return Err(StateFault::Inconsistent);
        }
        let mut state = Self { persist: true, ..Self::default() };
        for _ in 0..count {
            let registrant = registrant(&mut reader)?;
            if registrant.key == ReservationKey::NONE || state.registrant(&registrant.nexus).is_some() {
                return Err(StateFault::Inconsistent);
            }
            state.registrants.push(registrant);
        }
        if !reader.is_empty() {
            return Err(StateFault::Inconsistent);
        }
        state.reservation = match (code, ReservationType::from_code(code)) {
            (0, _) if holder == NOBODY => None,
            (_, Some(kind)) if kind.is_all_registrants() && holder == NOBODY && count > 0 => {
                Some(Held::ByAll(kind))
            }
            (_, Some(kind)) if !kind.is_all_registrants() => {
                let holder = state.registrants.get(usize::from(holder)).ok_or(StateFault::Inconsistent)?;
                Some(Held::ByOne(kind, holder.nexus.clone()))
            }
            _ => return Err(StateFault::Inconsistent),
        };
        Ok(state)
    }
}

fn registrant(reader: &mut Reader<'_>) -> Result<Registrant, StateFault> {
    let key = ReservationKey(reader.u64()?);
    let target_port = RelativePort(reader.u16()?);
    let len = usize::from(reader.u16()?);
    let initiator_port = reader.take(len)?;
    TransportId::from_bytes(initiator_port).map_err(|_| StateFault::Inconsistent)?;
    Ok(Registrant { nexus: NexusName { initiator_port: initiator_port.into(), target_port }, key })
}

fn len16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// CRC32C (Castagnoli), bit by bit: it runs over a few kilobytes when somebody registers.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests;
