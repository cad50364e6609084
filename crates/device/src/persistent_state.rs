//! The state of a logical unit that survives a loss of power, encoded as bytes that the caller stores:
//! persistent reservations with APTPL, the identifying information, saved mode parameters, and the journal of
//! an unfinished or failed SANITIZE or FORMAT UNIT.
//!
//! This module reads every version that was ever written. It writes the newest only if the state needs it, so
//! that an earlier release can be installed again. Unreadable state is an
//! error with a reason, never a guess: a forgotten reservation would let a fenced host write.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::bytes::Reader;

use crate::contract::RelativePort;
use crate::identifying_info::IdentifyingInformation;
use crate::pr::{self, PersistentReservations};
use crate::sanitizer::SanitizeJournal;
use crate::settings::Settings;
use crate::state_decode_error::StateDecodeError;

/// The longest state that is read or written, in bytes.
pub const MAX_LEN: usize = MAGIC.len()
    + 2
    + pr::state::MAX_LEN
    + IdentifyingInformation::ENCODED_LEN_MAX
    + SETTINGS_LEN
    + SanitizeJournal::ENCODED_LEN_MAX
    + CHECKSUM_LEN;

const MAGIC: [u8; 4] = *b"TgLU";
const CHECKSUM_LEN: usize = 4;
const SETTINGS_LEN: usize = 3;

/// The versions of the format. All numbers are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// `TgLU`, version (2), persistent reservations, identifying information, CRC32C of all before (4). The
    /// two parts are described where they are encoded.
    V1 = 1,
    /// As V1, with the mode parameters after the identifying information: whether any are saved (1), and
    /// their bits (2), zero if none are.
    V2 = 2,
    /// As V2, with the sanitize journal after the mode parameters, described where it is encoded.
    V3 = 3,
    /// As V3. The bits of the mode parameters have two more: whether LBPERE is saved, and its value.
    V4 = 4,
}

/// The bits of the mode parameters that the versions before V4 have.
const SETTINGS_BITS_BEFORE_V4: u16 = 0x7f;

/// The state that is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersistentState {
    pub(crate) reservations: PersistentReservations,
    pub(crate) information: IdentifyingInformation,
    /// The mode parameters that MODE SELECT saved last, if it ever did.
    pub(crate) settings: Option<Settings>,
    /// A SANITIZE or FORMAT UNIT operation that is in progress or has failed.
    pub(crate) sanitize_journal: Option<SanitizeJournal>,
}

impl PersistentState {
    /// Returns the state of a unit of which nothing was saved.
    pub(crate) fn nothing() -> Self {
        Self {
            reservations: PersistentReservations::new(),
            information: IdentifyingInformation::default(),
            settings: None,
            sanitize_journal: None,
        }
    }
}

/// A SANITIZE or FORMAT UNIT that the saved state of a unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfinishedSanitize {
    /// It was under way: a unit with this state begins it again.
    InProgress,
    /// It failed.
    Failed,
}

/// Returns the SANITIZE or FORMAT UNIT that a saved state holds, if there is one. State that cannot be
/// decoded holds none: a unit that is made without it erases nothing.
pub fn unfinished_sanitize(state: &[u8]) -> Option<UnfinishedSanitize> {
    let journal = decode(state).ok()?.sanitize_journal?;
    Some(if journal.is_failure() { UnfinishedSanitize::Failed } else { UnfinishedSanitize::InProgress })
}

/// Returns the I_T nexuses whose registrations for persistent reservations a saved state holds: the initiator
/// port as a TransportID, and the target port. State that cannot be decoded holds none.
pub fn registered(state: &[u8]) -> Vec<(Box<[u8]>, RelativePort)> {
    let Ok(state) = decode(state) else { return Vec::new() };
    let nexuses = state.reservations.registrants().map(|(nexus, _)| nexus);
    nexuses.map(|nexus| ((*nexus.initiator_port).into(), nexus.target_port)).collect()
}

/// Returns the encoded state; empty when there is nothing to save.
pub(crate) fn encode(
    reservations: &PersistentReservations,
    information: &IdentifyingInformation,
    settings: Option<&Settings>,
    medium_work: Option<&SanitizeJournal>,
) -> Vec<u8> {
    let empty = information.is_empty() && settings.is_none() && medium_work.is_none();
    if empty && !reservations.persists() {
        return Vec::new();
    }
    let bits = settings.map_or(0, Settings::to_bits);
    let version = if bits <= SETTINGS_BITS_BEFORE_V4 { Version::V3 } else { Version::V4 };
    let mut bytes = Vec::from(MAGIC);
    bytes.extend_from_slice(&(version as u16).to_be_bytes());
    reservations.encode(&mut bytes);
    information.encode(&mut bytes);
    bytes.push(u8::from(settings.is_some()));
    bytes.extend_from_slice(&bits.to_be_bytes());
    SanitizeJournal::encode(medium_work, &mut bytes);
    bytes.extend_from_slice(&crc32c(&bytes).to_be_bytes());
    bytes
}

/// Decodes the output of [`encode`].
///
/// # Errors
/// Why the bytes cannot be used.
pub(crate) fn decode(bytes: &[u8]) -> Result<PersistentState, StateDecodeError> {
    if bytes.is_empty() {
        return Ok(PersistentState::nothing());
    }
    if bytes.len() > MAX_LEN {
        return Err(StateDecodeError::TooLong);
    }
    let (body, sum) = bytes.split_last_chunk::<CHECKSUM_LEN>().ok_or(StateDecodeError::Truncated)?;
    let mut reader = Reader::new(body);
    if reader.array()? != MAGIC {
        return Err(StateDecodeError::Foreign);
    }
    let version = match reader.u16()? {
        1 => Version::V1,
        2 => Version::V2,
        3 => Version::V3,
        4 => Version::V4,
        other => return Err(StateDecodeError::UnknownVersion(other)),
    };
    if crc32c(body) != u32::from_be_bytes(*sum) {
        return Err(StateDecodeError::Corrupt);
    }
    let reservations = PersistentReservations::take(&mut reader)?;
    let information = IdentifyingInformation::take(&mut reader)?;
    let settings = match version {
        Version::V1 => None,
        Version::V2 | Version::V3 => take_settings(&mut reader, SETTINGS_BITS_BEFORE_V4)?,
        Version::V4 => take_settings(&mut reader, u16::MAX)?,
    };
    let medium_work = match version {
        Version::V1 | Version::V2 => None,
        Version::V3 | Version::V4 => SanitizeJournal::take(&mut reader)?,
    };
    if !reader.is_empty() {
        return Err(StateDecodeError::Inconsistent);
    }
    Ok(PersistentState { reservations, information, settings, sanitize_journal: medium_work })
}

/// Decodes the mode parameters, which have no other bits than these.
fn take_settings(reader: &mut Reader<'_>, known: u16) -> Result<Option<Settings>, StateDecodeError> {
    match (reader.u8()?, reader.u16()?) {
        (0, 0) => Ok(None),
        (1, bits) if bits <= known => {
            Settings::from_bits(bits).map(Some).ok_or(StateDecodeError::Inconsistent)
        }
        _ => Err(StateDecodeError::Inconsistent),
    }
}

/// Computes CRC32C (Castagnoli) bit by bit: its input is a few kilobytes, each time an initiator registers.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests;
