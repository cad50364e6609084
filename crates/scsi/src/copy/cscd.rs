//! CSCD descriptors (copy source or copy destination, SPC-4 §6.4.5): they name the units that a copy reads
//! and writes.

use alloc::vec::Vec;

use super::list::{CscdFields, Limits};
use super::{CopyError, u8_at, u16_at, u32_at};

/// The type code of an identification descriptor, the only type that this module supports.
pub const IDENTIFICATION: u8 = 0xe4;

/// The length in bytes of an identification descriptor, and of every other type below EAh.
pub const CSCD_LEN: usize = 32;

/// The longest designator that fits in an identification descriptor, in bytes.
pub const MAX_DESIGNATOR_LEN: usize = 20;

/// LU ID TYPE in byte 1 of an identification descriptor, a field of SPC-3.
const LU_ID_TYPE: u8 = 0xc0;
const NUL: u8 = 0x20;

/// Identifies a CSCD in a segment descriptor: an index into the list of descriptors, or a code
/// (SPC-4 §6.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CscdId(pub u16);

impl CscdId {
    /// The logical unit that received the command.
    pub const COPY_MANAGER_UNIT: Self = Self(0xffff);
}

/// An identification descriptor (E4h) for a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cscd {
    /// Peripheral device type.
    pub device_type: u8,
    /// Code set of the designator (SPC-4 §7.8.6).
    pub code_set: u8,
    /// Designator type.
    pub kind: u8,
    /// The association of the designator; 0 for a logical unit.
    pub association: u8,
    /// The designator, at most [`MAX_DESIGNATOR_LEN`] bytes.
    pub designator: Vec<u8>,
    /// Whether inexact segments are padded with zeros.
    pub pad: bool,
    /// The block length in bytes that the initiator assumes; 0 if it gives none.
    pub block_len: u32,
    /// Whether the CSCD is a null device (NUL, SPC-3 only), whose designator has no meaning.
    pub null: bool,
}

impl Cscd {
    /// Parses the descriptor that starts at byte `at` of the parameter list `list`.
    ///
    /// # Errors
    /// The descriptor is cut short, its type is not supported, its designator is empty or longer than its
    /// field, or, with the fields of SPC-3, LU ID TYPE is not that of a logical unit number.
    pub fn parse(list: &[u8], at: usize, fields: CscdFields) -> Result<Self, CopyError> {
        let bytes = list.get(at..).and_then(|rest| rest.get(..CSCD_LEN)).ok_or(CopyError::LengthError)?;
        if u8_at(bytes, 0) != IDENTIFICATION {
            return Err(CopyError::UnsupportedCscdType { byte: at });
        }
        let spc_3 = fields == CscdFields::Spc3;
        if spc_3 && u8_at(bytes, 1) & LU_ID_TYPE != 0 {
            return Err(CopyError::bits(at + 1, 7));
        }
        let null = spc_3 && u8_at(bytes, 1) & NUL != 0;
        // In the descriptor of a null device, bytes 4 to 27 are ignored.
        let len = if null { 0 } else { usize::from(u8_at(bytes, 7)) };
        if (len == 0 && !null) || len > MAX_DESIGNATOR_LEN {
            return Err(CopyError::field(at + 7));
        }
        let designator = bytes.get(8..8 + len).unwrap_or_default().to_vec();
        Ok(Self {
            device_type: u8_at(bytes, 1) & 0x1f,
            code_set: u8_at(bytes, 4) & 0xf,
            kind: u8_at(bytes, 5) & 0xf,
            association: u8_at(bytes, 5) >> 4 & 3,
            designator,
            pad: u8_at(bytes, 28) & 0x04 != 0,
            block_len: u32_at(bytes, 28) & 0x00ff_ffff,
            null,
        })
    }

    /// Builds the descriptor. It cuts a designator that is too long; none of our units has one.
    pub fn to_bytes(&self) -> [u8; CSCD_LEN] {
        let mut out = [0; CSCD_LEN];
        let len = self.designator.len().min(MAX_DESIGNATOR_LEN);
        let [_, high, middle, low] = self.block_len.to_be_bytes();
        let head = [
            IDENTIFICATION,
            u8::from(self.null) << 5 | self.device_type & 0x1f,
            0,
            0,
            self.code_set & 0xf,
            (self.association & 3) << 4 | self.kind & 0xf,
            0,
            u8::try_from(len).unwrap_or(0),
        ];
        let tail = [u8::from(self.pad) << 2, high, middle, low];
        let fields = head.iter().chain(self.designator.iter().take(len));
        for (to, from) in out.iter_mut().zip(fields) {
            *to = *from;
        }
        for (to, from) in out.iter_mut().skip(CSCD_LEN - tail.len()).zip(tail) {
            *to = from;
        }
        out
    }
}

/// Parses all CSCD descriptors in `start..start + len` of a list.
///
/// `length_field` is the offset of the field that contains `len`.
pub(super) fn parse_all(
    list: &[u8],
    start: usize,
    len: usize,
    length_field: usize,
    limits: &Limits,
) -> Result<Vec<Cscd>, CopyError> {
    if len.div_ceil(CSCD_LEN) > usize::from(limits.cscds_max) {
        return Err(CopyError::TooManyCscds { byte: length_field });
    }
    // The type is checked first: a longer descriptor of an unsupported type is refused for its type.
    let mut cscds = Vec::new();
    let mut at = start;
    while at < start + len {
        if u8_at(list, at) != IDENTIFICATION {
            return Err(CopyError::UnsupportedCscdType { byte: at });
        }
        if at + CSCD_LEN > start + len {
            return Err(CopyError::field(length_field));
        }
        cscds.push(Cscd::parse(list, at, limits.cscd_fields)?);
        at += CSCD_LEN;
    }
    Ok(cscds)
}

/// Returns the CSCD identifier at `at`.
pub(super) fn id_at(bytes: &[u8], at: usize) -> CscdId {
    CscdId(u16_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naa() -> Cscd {
        Cscd {
            device_type: 0,
            code_set: 1,
            kind: 3,
            association: 0,
            designator: (0x60..0x70).collect(),
            pad: false,
            block_len: 4096,
            null: false,
        }
    }

    #[test]
    fn an_identification_descriptor_stands_as_spc_has_it() {
        let bytes = naa().to_bytes();
        assert_eq!(bytes[..9], [0xe4, 0, 0, 0, 1, 3, 0, 16, 0x60]);
        assert_eq!(bytes[23..32], [0x6f, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(Cscd::parse(&bytes, 0, CscdFields::Spc4), Ok(naa()));
        let padded = Cscd { pad: true, block_len: 512, association: 2, ..naa() };
        assert_eq!(padded.to_bytes()[28..], [4, 0, 2, 0]);
        assert_eq!(Cscd::parse(&padded.to_bytes(), 0, CscdFields::Spc4), Ok(padded));
    }

    #[test]
    fn refuses_other_types_and_impossible_designators() {
        for kind in (0xe0..=0xff).filter(|kind| *kind != IDENTIFICATION) {
            let mut bytes = naa().to_bytes();
            bytes[0] = kind;
            assert_eq!(
                Cscd::parse(&bytes, 0, CscdFields::Spc4),
                Err(CopyError::UnsupportedCscdType { byte: 0 }),
                "{kind:#x}"
            );
        }
        for len in [0, 21, 255] {
            let mut bytes = [0; 40];
            bytes[8..].copy_from_slice(&naa().to_bytes());
            bytes[15] = len;
            assert_eq!(Cscd::parse(&bytes, 8, CscdFields::Spc4), Err(CopyError::field(15)), "{len}");
        }
        assert_eq!(Cscd::parse(&naa().to_bytes()[..31], 0, CscdFields::Spc4), Err(CopyError::LengthError));
    }

    #[test]
    fn spc_3_knows_two_fields_that_spc_4_ignores() {
        let mut bytes = naa().to_bytes();
        bytes[1] = 0xc0;
        assert_eq!(Cscd::parse(&bytes, 0, CscdFields::Spc4), Ok(naa()));
        assert_eq!(Cscd::parse(&bytes, 0, CscdFields::Spc3), Err(CopyError::bits(1, 7)));
        bytes[1] = 0x20;
        assert_eq!(Cscd::parse(&bytes, 0, CscdFields::Spc4), Ok(naa()));
        // The designator field of a null device may have any contents.
        bytes[7] = 0xff;
        let null = Cscd::parse(&bytes, 0, CscdFields::Spc3).unwrap();
        assert!(null.null && null.designator.is_empty());
        assert_eq!(Cscd::parse(&null.to_bytes(), 0, CscdFields::Spc3), Ok(null));
    }
}
