//! Identifying information (SPC-5 §6.31): data with which application clients label a logical unit.
//!
//! It survives power cycles and resets, so a change is answered only when it is saved.

use alloc::vec::Vec;

use base::bytes::Reader;
use scsi::sense::{Asc, Sense};
use serde::{Deserialize, Serialize};

use crate::handover::RestoreError;
use crate::handover::hex::HexBytes;
use crate::state_decode_error::StateDecodeError;

/// The identifying information of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdentifyingInformation {
    peripheral: Vec<u8>,
    text: Vec<u8>,
}

/// INFORMATION TYPE (SPC-5 §6.31).
mod kind {
    pub(super) const PERIPHERAL: u8 = 0x00;
    pub(super) const TEXT: u8 = 0x02;
    pub(super) const SUPPORTED: u8 = 0x7f;
}

/// The maximum length of each type: 64 bytes of any kind, 256 of text with its null (SPC-5 §6.31).
const MAX_PERIPHERAL: usize = 64;
const MAX_TEXT: usize = 256;

impl IdentifyingInformation {
    /// The most bytes that [`Self::encode`] appends.
    pub(crate) const ENCODED_LEN_MAX: usize = 2 + MAX_PERIPHERAL + 2 + MAX_TEXT;

    /// Returns whether none is set.
    pub(crate) const fn is_empty(&self) -> bool {
        self.peripheral.is_empty() && self.text.is_empty()
    }

    /// Returns the parameter data of REPORT IDENTIFYING INFORMATION for INFORMATION TYPE `code`.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for a type that is not supported.
    pub(crate) fn report(&self, code: u8) -> Result<Vec<u8>, Sense> {
        let supported = SUPPORTED_TYPES.concat();
        let body = match code {
            kind::PERIPHERAL => &self.peripheral,
            kind::TEXT => &self.text,
            kind::SUPPORTED => &supported,
            _ => return Err(Sense::invalid_cdb(10, Some(7))),
        };
        let mut data = Vec::from([0, 0]);
        data.extend_from_slice(&u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
        data.extend_from_slice(body);
        Ok(data)
    }

    /// Checks the CDB of a SET IDENTIFYING INFORMATION: its type, and whether that type can hold `len` bytes.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB or PARAMETER LIST LENGTH ERROR.
    pub(crate) fn check(code: u8, len: u32) -> Result<(), Sense> {
        let max = match code {
            kind::PERIPHERAL => MAX_PERIPHERAL,
            kind::TEXT => MAX_TEXT,
            _ => return Err(Sense::invalid_cdb(10, Some(7))),
        };
        if usize::try_from(len).is_ok_and(|len| len <= max) { Ok(()) } else { Err(length_error()) }
    }

    /// Sets the information of INFORMATION TYPE `code`; an empty list removes it. Returns whether the
    /// information changed.
    ///
    /// # Errors
    /// As [`Self::check`]; INVALID FIELD IN PARAMETER LIST for text that is not UTF-8 ended by a null.
    pub(crate) fn set(&mut self, code: u8, bytes: &[u8]) -> Result<bool, Sense> {
        Self::check(code, u32::try_from(bytes.len()).unwrap_or(u32::MAX))?;
        let old = if code == kind::TEXT {
            if let Some((last, text)) = bytes.split_last() {
                let null_at = text.iter().position(|byte| *byte == 0);
                if *last != 0 || null_at.is_some() || core::str::from_utf8(text).is_err() {
                    let at = null_at.unwrap_or(text.len());
                    return Err(Sense::invalid_parameter(u16::try_from(at).unwrap_or(u16::MAX), None));
                }
            }
            &mut self.text
        } else {
            &mut self.peripheral
        };
        let changed = *old != bytes;
        *old = Vec::from(bytes);
        Ok(changed)
    }

    /// Appends the encoded information: length (2) and bytes of each type.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for bytes in [&self.peripheral, &self.text] {
            out.extend_from_slice(&u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes());
            out.extend_from_slice(bytes);
        }
    }

    /// Decodes the output of [`Self::encode`].
    ///
    /// # Errors
    /// Why the bytes cannot be used.
    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, StateDecodeError> {
        let mut information = Self::default();
        for code in [kind::PERIPHERAL, kind::TEXT] {
            let len = usize::from(reader.u16()?);
            information.set(code, reader.take(len)?).map_err(|_| StateDecodeError::Inconsistent)?;
        }
        Ok(information)
    }

    /// Returns the information in a document that one process hands over to the next.
    pub(crate) fn export(&self) -> IdentifyingState {
        let Self { peripheral, text } = self;
        IdentifyingState { peripheral: HexBytes::of(peripheral), text: HexBytes::of(text) }
    }

    /// Returns the information of a document.
    ///
    /// # Errors
    /// [`RestoreError::IdentifyingInformation`] for information that no initiator could have set.
    pub(crate) fn restore(state: &IdentifyingState) -> Result<Self, RestoreError> {
        let IdentifyingState { peripheral, text } = state;
        let mut information = Self::default();
        for (code, bytes) in [(kind::PERIPHERAL, peripheral), (kind::TEXT, text)] {
            information.set(code, &bytes.0).map_err(|_| RestoreError::IdentifyingInformation)?;
        }
        Ok(information)
    }
}

/// The information in such a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdentifyingState {
    peripheral: HexBytes,
    text: HexBytes,
}

/// The descriptors of the supported types: type, and the maximum length of its information.
const SUPPORTED_TYPES: [[u8; 4]; 3] =
    [[kind::PERIPHERAL << 1, 0, 0, 64], [kind::TEXT << 1, 0, 1, 0], [kind::SUPPORTED << 1, 0, 0, 12]];

const fn length_error() -> Sense {
    Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn what_is_set_is_reported() {
        let mut information = IdentifyingInformation::default();
        assert_eq!(information.report(kind::PERIPHERAL), Ok(vec![0, 0, 0, 0]));
        assert_eq!(information.set(kind::PERIPHERAL, &[0xff, 0]), Ok(true));
        assert_eq!(information.set(kind::TEXT, b"rack 7\0"), Ok(true));
        assert_eq!(information.set(kind::TEXT, b"rack 7\0"), Ok(false));
        assert_eq!(information.report(kind::PERIPHERAL), Ok(vec![0, 0, 0, 2, 0xff, 0]));
        assert_eq!(information.report(kind::TEXT).unwrap()[4..], *b"rack 7\0");
        assert_eq!(information.set(kind::TEXT, b""), Ok(true));
        assert_eq!(information.report(kind::TEXT), Ok(vec![0, 0, 0, 0]));
    }

    #[test]
    fn the_types_there_are_can_be_asked() {
        let expected = [&[0, 0, 0, 12][..], &[0, 0, 0, 64, 4, 0, 1, 0, 0xfe, 0, 0, 12]].concat();
        assert_eq!(IdentifyingInformation::default().report(kind::SUPPORTED), Ok(expected));
        for code in [1, 3, 0x7e] {
            let wrong = Sense::invalid_cdb(10, Some(7));
            assert_eq!(IdentifyingInformation::default().report(code), Err(wrong));
            assert_eq!(IdentifyingInformation::check(code, 0), Err(wrong));
        }
        assert!(IdentifyingInformation::check(kind::SUPPORTED, 0).is_err());
    }

    #[test]
    fn too_much_and_garbled_text_are_refused() {
        let mut information = IdentifyingInformation::default();
        assert_eq!(information.set(kind::PERIPHERAL, &[1; 65]), Err(length_error()));
        assert_eq!(IdentifyingInformation::check(kind::TEXT, u32::MAX), Err(length_error()));
        assert!(information.set(kind::PERIPHERAL, &[1; 64]).is_ok());
        let at = |byte| Err(Sense::invalid_parameter(byte, None));
        assert_eq!(information.set(kind::TEXT, b"abc"), at(2));
        assert_eq!(information.set(kind::TEXT, b"a\0c\0"), at(1));
        assert_eq!(information.set(kind::TEXT, b"\xff\xfe\0"), at(2));
        assert_eq!(information.text, b"");
    }
}
