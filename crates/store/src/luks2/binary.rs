//! The binary part of a header copy: 512 bytes of fields and a checksum over the whole copy, the JSON area
//! included (LUKS2 On-Disk Format Specification §2.1).

use alloc::vec::Vec;

use sha2::{Digest, Sha256};

use super::LuksError;

/// The length in bytes of the binary part; the JSON area follows it.
pub(super) const BINARY_LEN: usize = 4096;
/// The least and the greatest length of a header copy in bytes, of which there are two.
pub(super) const COPY_LEN_MIN: usize = 16 << 10;
pub(super) const COPY_LEN_MAX: usize = 4 << 20;

const PRIMARY_MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
const SECONDARY_MAGIC: &[u8; 6] = b"SKUL\xba\xbe";
const CHECKSUM_AT: usize = 448;
const CHECKSUM_LEN: usize = 64;
const CHECKSUM_NAME: &[u8] = b"sha256";

/// Which of the two copies of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// The copy at the start of the medium.
    Primary,
    /// The copy behind the primary one.
    Secondary,
}

impl Which {
    const fn magic(self) -> &'static [u8; 6] {
        match self {
            Self::Primary => PRIMARY_MAGIC,
            Self::Secondary => SECONDARY_MAGIC,
        }
    }
}

/// A header copy whose checksum is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderCopy {
    /// The length in bytes of one copy.
    pub(super) copy_len: usize,
    /// Counts changes of the header: the copy with the higher number is the newer one.
    pub(super) seqid: u64,
    /// The label, filled with zeros.
    pub(super) label: [u8; 48],
    /// The UUID as text, filled with zeros.
    pub(super) uuid: [u8; 40],
    /// The second label, filled with zeros.
    pub(super) subsystem: [u8; 48],
    /// The metadata, without the zeros behind it.
    pub(super) json: Vec<u8>,
}

/// Returns the length of a copy that the first bytes of a medium claim, if they can be the first bytes of a
/// header copy.
///
/// # Errors
/// [`LuksError::NotLuks`], [`LuksError::Version`] and [`LuksError::Damaged`].
pub(super) fn claimed_len(which: Which, start: &[u8; BINARY_LEN], at: u64) -> Result<usize, LuksError> {
    let mut fields = Fields(start);
    if fields.array::<6>() != *which.magic() {
        return Err(LuksError::NotLuks);
    }
    match u16::from_be_bytes(fields.array()) {
        2 => {}
        version => return Err(LuksError::Version(version)),
    }
    let len = usize::try_from(u64::from_be_bytes(fields.array())).unwrap_or(usize::MAX);
    let known = (COPY_LEN_MIN..=COPY_LEN_MAX).contains(&len) && len.is_power_of_two();
    let here = start.get(256..264).is_some_and(|field| field == at.to_be_bytes());
    if known && here { Ok(len) } else { Err(LuksError::Damaged) }
}

impl HeaderCopy {
    /// Reads a copy that [`claimed_len`] accepted.
    ///
    /// # Errors
    /// [`LuksError::Damaged`] if the checksum is wrong, [`LuksError::Checksum`] if its algorithm is not
    /// SHA-256.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, LuksError> {
        let Some((binary, area)) = bytes.split_at_checked(BINARY_LEN) else { return Err(LuksError::Damaged) };
        let mut fields = Fields(binary);
        let _magic_and_version = fields.array::<8>();
        let _len = fields.array::<8>();
        let seqid = u64::from_be_bytes(fields.array());
        let label = fields.array();
        let algorithm = fields.array::<32>();
        let _salt = fields.array::<64>();
        let uuid = fields.array();
        let subsystem = fields.array();
        if algorithm.trim_suffix_zeros() != CHECKSUM_NAME {
            return Err(LuksError::Checksum);
        }
        let stored = binary.get(CHECKSUM_AT..CHECKSUM_AT + 32).unwrap_or_default();
        if stored != checksum(binary, area).as_slice() {
            return Err(LuksError::Damaged);
        }
        let json = area.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        Ok(Self { copy_len: bytes.len(), seqid, label, uuid, subsystem, json })
    }

    /// Returns the bytes of one copy. `salt` makes the checksums of two copies differ.
    ///
    /// # Errors
    /// [`LuksError::NoRoom`] if the metadata is longer than the JSON area.
    pub(super) fn encode(&self, which: Which, salt: &[u8; 64]) -> Result<Vec<u8>, LuksError> {
        let at = match which {
            Which::Primary => 0,
            Which::Secondary => self.copy_len,
        };
        let mut out = Vec::with_capacity(self.copy_len);
        out.extend_from_slice(which.magic());
        out.extend_from_slice(&2_u16.to_be_bytes());
        out.extend_from_slice(&base::int_cast::to_u64(self.copy_len).to_be_bytes());
        out.extend_from_slice(&self.seqid.to_be_bytes());
        out.extend_from_slice(&self.label);
        let mut algorithm = [0; 32];
        algorithm.iter_mut().zip(CHECKSUM_NAME).for_each(|(to, from)| *to = *from);
        out.extend_from_slice(&algorithm);
        out.extend_from_slice(salt);
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.subsystem);
        out.extend_from_slice(&base::int_cast::to_u64(at).to_be_bytes());
        out.resize(BINARY_LEN, 0);
        out.extend_from_slice(&self.json);
        // At least one zero ends the metadata.
        if out.len() >= self.copy_len {
            return Err(LuksError::NoRoom);
        }
        out.resize(self.copy_len, 0);
        let (binary, area) = out.split_at_mut(BINARY_LEN);
        let sum = checksum(binary, area);
        if let Some(field) = binary.get_mut(CHECKSUM_AT..CHECKSUM_AT + sum.len()) {
            field.copy_from_slice(&sum);
        }
        Ok(out)
    }
}

/// Computes the checksum of a copy, in which the field of the checksum itself counts as zeros.
fn checksum(binary: &[u8], area: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(binary.get(..CHECKSUM_AT).unwrap_or_default());
    hash.update([0; CHECKSUM_LEN]);
    hash.update(binary.get(CHECKSUM_AT + CHECKSUM_LEN..).unwrap_or_default());
    hash.update(area);
    hash.finalize().into()
}

/// Takes fields off the front of bytes. Missing bytes are zeros, which no check of a header accepts.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}

/// Text in a field that zeros fill up.
pub(super) trait TrimZeros {
    /// Returns the bytes before the first zero.
    fn trim_suffix_zeros(&self) -> &[u8];
}

impl<const N: usize> TrimZeros for [u8; N] {
    fn trim_suffix_zeros(&self) -> &[u8] {
        self.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}
