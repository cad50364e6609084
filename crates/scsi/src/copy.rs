//! Data structures of third-party copy (SPC-4 §5.17, §6.4, §6.20; SBC-4 §5.12, §5.59): the parameter lists of
//! EXTENDED COPY, POPULATE TOKEN and WRITE USING TOKEN, the parameter data of RECEIVE COPY RESULTS, ROD
//! tokens, VPD page 8Fh.
//!
//! The parsers get the limits of the copy manager and return only values within them. The copy manager checks
//! the rest: that each descriptor names an existing unit, that each range is within its medium.

pub mod cscd;
pub mod list;
pub mod results;
pub mod rod;
pub mod segment;
pub mod vpd;

use crate::sense::{Asc, Sense, SenseKeySpecific};

/// Service actions of THIRD-PARTY COPY OUT (83h).
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod copy_out {
    pub const EXTENDED_COPY_LID1: u16 = 0x00;
    pub const EXTENDED_COPY_LID4: u16 = 0x01;
    pub const POPULATE_TOKEN: u16 = 0x10;
    pub const WRITE_USING_TOKEN: u16 = 0x11;
    pub const COPY_OPERATION_ABORT: u16 = 0x1c;
}

/// Service actions of THIRD-PARTY COPY IN (84h).
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod copy_in {
    pub const RECEIVE_COPY_STATUS_LID1: u16 = 0x00;
    pub const RECEIVE_COPY_DATA_LID1: u16 = 0x01;
    pub const RECEIVE_COPY_OPERATING_PARAMETERS: u16 = 0x03;
    pub const RECEIVE_COPY_FAILURE_DETAILS_LID1: u16 = 0x04;
    pub const RECEIVE_COPY_STATUS_LID4: u16 = 0x05;
    pub const RECEIVE_COPY_DATA_LID4: u16 = 0x06;
    pub const RECEIVE_ROD_TOKEN_INFORMATION: u16 = 0x07;
    pub const REPORT_ALL_ROD_TOKENS: u16 = 0x08;
}

/// Identifies a copy operation among those of one I_T nexus. The one-byte identifiers of LID1 commands are
/// the first 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u32);

/// Why the copy manager refuses a parameter list before it copies anything. The pointers are byte offsets in
/// the parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The list is cut short, or its lengths exceed the limits of the copy manager.
    LengthError,
    /// A field has an invalid value.
    Field {
        /// The first byte of the field.
        byte: usize,
        /// The most significant bit of the field, unless the field is the whole byte.
        bit: Option<u8>,
    },
    /// More CSCD descriptors than the copy manager accepts.
    TooManyCscds {
        /// The field with the length of the CSCD descriptors.
        byte: usize,
    },
    /// A CSCD descriptor of a type that the copy manager does not support.
    UnsupportedCscdType {
        /// The type code of the descriptor.
        byte: usize,
    },
    /// More segment descriptors (or block range descriptors) than the copy manager accepts.
    TooManySegments {
        /// The first descriptor beyond the limit, or the field with the length of the descriptors.
        byte: usize,
    },
    /// A segment descriptor of a type that the copy manager does not support.
    UnsupportedSegmentType {
        /// The type code of the descriptor.
        byte: usize,
    },
    /// More inline data than the copy manager accepts.
    InlineDataTooLong {
        /// The field with the length of the inline data.
        byte: usize,
    },
}

impl CopyError {
    const fn field(byte: usize) -> Self {
        Self::Field { byte, bit: None }
    }

    const fn bits(byte: usize, bit: u8) -> Self {
        Self::Field { byte, bit: Some(bit) }
    }
}

impl From<CopyError> for Sense {
    fn from(refusal: CopyError) -> Self {
        let pointing = |asc, byte: usize, bit| {
            // A list too long for the offsets of a field pointer was already refused for its length.
            let byte = u16::try_from(byte).unwrap_or(u16::MAX);
            Self::illegal(asc).with_specific(SenseKeySpecific::FieldPointer { in_cdb: false, bit, byte })
        };
        match refusal {
            CopyError::LengthError => Self::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR),
            CopyError::Field { byte, bit } => pointing(Asc::INVALID_FIELD_IN_PARAMETER_LIST, byte, bit),
            CopyError::TooManyCscds { byte } => pointing(Asc::TOO_MANY_TARGET_DESCRIPTORS, byte, None),
            CopyError::UnsupportedCscdType { byte } => {
                pointing(Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE, byte, None)
            }
            CopyError::TooManySegments { byte } => pointing(Asc::TOO_MANY_SEGMENT_DESCRIPTORS, byte, None),
            CopyError::UnsupportedSegmentType { byte } => {
                pointing(Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE, byte, None)
            }
            CopyError::InlineDataTooLong { byte } => pointing(Asc::INLINE_DATA_LENGTH_EXCEEDED, byte, None),
        }
    }
}

/// Returns `N` bytes at `at`, with zeros beyond the end.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(bytes.get(at..).unwrap_or_default()) {
        *to = *from;
    }
    out
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

fn u8_at(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// Widens a count that was received; our platforms have addresses of at least 32 bits.
fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Narrows a length for a 16-bit field. Longer ones do not occur, because every list is bounded below that.
fn len16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// Narrows a length for a 32-bit field.
fn len32(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes()
}
