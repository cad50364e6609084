//! Representations of data (ROD, SPC-4 §5.17.6) of block devices: tokens, and the parameter lists of POPULATE
//! TOKEN and WRITE USING TOKEN (SBC-4 §5.12, §5.59), which Windows uses for offloaded data transfer (ODX).

use alloc::vec::Vec;

use base::units::{Blocks, Lba};

use super::cscd::CSCD_LEN;
use super::{CopyError, array, len16, u8_at, u16_at, u32_at, u64_at};

/// The length of a ROD token in bytes.
pub const ROD_TOKEN_LEN: usize = 512;

/// The length in bytes of the part of a token that REPORT ALL ROD TOKENS returns. It identifies the token but
/// does not give access to the data.
pub const ROD_MANAGEMENT_TOKEN_LEN: usize = 96;

/// The kind of data that a ROD represents, and what happens to the ROD when the blocks change
/// (SPC-4 §5.17.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RodType(pub u32);

#[allow(missing_docs, reason = "the names are the standard's")]
impl RodType {
    pub const ACCESS_UPON_REFERENCE: Self = Self(0x0001_0000);
    pub const POINT_IN_TIME_DEFAULT: Self = Self(0x0080_0000);
    pub const POINT_IN_TIME_CHANGE_VULNERABLE: Self = Self(0x0080_0001);
    pub const POINT_IN_TIME_PERSISTENT: Self = Self(0x0080_0002);
    pub const POINT_IN_TIME_ANY: Self = Self(0x0080_ffff);
    pub const BLOCK_DEVICE_ZERO: Self = Self(0xffff_0001);
}

/// A token: 512 bytes that give their holder access to the data that the token represents.
#[derive(Clone, PartialEq, Eq)]
pub struct RodToken(pub [u8; ROD_TOKEN_LEN]);

/// The fields of a token that its creator sets (SPC-4 §5.17.6, SBC-4 §4.28).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFields<'a> {
    /// The kind of data that the token represents.
    pub rod_type: RodType,
    /// The number that the creator gave to the token.
    pub id: u64,
    /// The creating unit, as a CSCD descriptor.
    pub creator: [u8; CSCD_LEN],
    /// The number of bytes that the token represents.
    pub len: u64,
    /// The logical block length in bytes.
    pub block_len: u32,
    /// The base-2 logarithm of the logical blocks per physical block.
    pub physical_exponent: u8,
    /// Whether the unit is thinly provisioned (LBPME), and whether unmapped blocks read as zeros (LBPRZ).
    pub provisioning: (bool, bool),
    /// The target device, as a designation descriptor; at most [`Self::TARGET_LEN_MAX`] bytes.
    pub target: &'a [u8],
    /// The random secret, which makes the token impossible to guess.
    pub secret: [u8; SECRET_LEN],
}

/// The length of the secret in a token in bytes: 256 bits.
pub const SECRET_LEN: usize = 32;

/// The offset of the secret: at the end of the extended token data.
const SECRET_AT: usize = ROD_TOKEN_LEN - SECRET_LEN;

impl TokenFields<'_> {
    /// The number of bytes between the fixed fields and the secret.
    pub const TARGET_LEN_MAX: usize = SECRET_AT - 128;
}

impl RodToken {
    /// Makes the block device zero ROD token, with which any initiator can write zeros.
    pub fn zeros() -> Self {
        let mut bytes = [0; ROD_TOKEN_LEN];
        put(&mut bytes, 0, &RodType::BLOCK_DEVICE_ZERO.0.to_be_bytes());
        put(&mut bytes, 6, &TOKEN_LENGTH_FIELD.to_be_bytes());
        Self(bytes)
    }

    /// Makes a token from its fields.
    pub fn new(fields: &TokenFields<'_>) -> Self {
        let mut bytes = [0; ROD_TOKEN_LEN];
        put(&mut bytes, 0, &fields.rod_type.0.to_be_bytes());
        put(&mut bytes, 6, &TOKEN_LENGTH_FIELD.to_be_bytes());
        put(&mut bytes, 8, &fields.id.to_be_bytes());
        put(&mut bytes, 16, &fields.creator);
        put(&mut bytes, 48, &u128::from(fields.len).to_be_bytes());
        put(&mut bytes, 96, &fields.block_len.to_be_bytes());
        let (managed, zeros) = fields.provisioning;
        let provisioning = u8::from(managed) << 7 | u8::from(zeros) << 6;
        put(&mut bytes, 101, &[fields.physical_exponent & 0xf, provisioning]);
        put(&mut bytes, 128, fields.target.get(..TokenFields::TARGET_LEN_MAX).unwrap_or(fields.target));
        put(&mut bytes, SECRET_AT, &fields.secret);
        Self(bytes)
    }

    /// Returns all bytes.
    pub const fn bytes(&self) -> &[u8; ROD_TOKEN_LEN] {
        &self.0
    }

    /// Returns the kind of data that the token claims to represent.
    pub fn rod_type(&self) -> RodType {
        RodType(u32_at(&self.0, 0))
    }

    /// Returns whether the length field has its only valid value.
    pub fn is_well_formed(&self) -> bool {
        u16_at(&self.0, 6) == TOKEN_LENGTH_FIELD
    }

    /// Returns the number that the creator gave to the token.
    pub fn id(&self) -> u64 {
        u64_at(&self.0, 8)
    }

    /// Returns the CSCD descriptor of the unit that the token claims as its creator.
    pub fn creator(&self) -> [u8; CSCD_LEN] {
        array(&self.0, 16)
    }

    /// Returns the number of bytes that the token claims to represent; `u64::MAX` if that exceeds 64 bits.
    pub fn len_represented(&self) -> u64 {
        u64::try_from(u128::from_be_bytes(array(&self.0, 48))).unwrap_or(u64::MAX)
    }

    /// Returns the part that REPORT ALL ROD TOKENS returns.
    pub fn management_part(&self) -> &[u8] {
        self.0.get(..ROD_MANAGEMENT_TOKEN_LEN).unwrap_or_default()
    }

    /// Compares two tokens in a time that does not depend on where they differ (constant time), so that an
    /// attacker cannot guess a token byte by byte.
    pub fn same(&self, other: &[u8]) -> bool {
        let difference = self.0.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
        other.len() == ROD_TOKEN_LEN && difference == 0
    }
}

impl core::fmt::Debug for RodToken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RodToken({:#010x}, id {}, …)", self.rod_type().0, self.id())
    }
}

const TOKEN_LENGTH_FIELD: u16 = 0x01f8;

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in out.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// A run of blocks of the unit that received the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub lba: Lba,
    /// The number of blocks; zero is valid.
    pub blocks: Blocks,
}

const RANGE_LEN: usize = 16;

/// The parameter list of POPULATE TOKEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopulateToken {
    /// Whether status is returned before the token exists (IMMED).
    pub immediate: bool,
    /// The ROD type that the initiator requests, if it requests one (RTV).
    pub rod_type: Option<RodType>,
    /// The inactivity timeout in seconds; 0 for the default.
    pub inactivity_timeout_s: u32,
    /// The ranges that the token represents, in order.
    pub ranges: Vec<BlockRange>,
}

const POPULATE_HEADER_LEN: usize = 16;
const WRITE_HEADER_LEN: usize = 536;

impl PopulateToken {
    /// Parses the parameter list; `ranges_max` is MAXIMUM RANGE DESCRIPTORS.
    ///
    /// # Errors
    /// The list is cut short, has no ranges or too many, or ranges overlap.
    pub fn parse(list: &[u8], ranges_max: u16) -> Result<Self, CopyError> {
        let ranges = ranges(list, POPULATE_HEADER_LEN, ranges_max)?;
        let flags = u8_at(list, 2);
        Ok(Self {
            immediate: flags & 1 != 0,
            rod_type: (flags & 2 != 0).then(|| RodType(u32_at(list, 8))),
            inactivity_timeout_s: u32_at(list, 4),
            ranges,
        })
    }

    /// Builds the parameter list.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(len16(POPULATE_HEADER_LEN - 2 + self.ranges.len() * RANGE_LEN));
        out.extend([u8::from(self.rod_type.is_some()) << 1 | u8::from(self.immediate), 0]);
        out.extend(self.inactivity_timeout_s.to_be_bytes());
        out.extend(self.rod_type.map_or(0, |kind| kind.0).to_be_bytes());
        out.extend([0; 2]);
        append_ranges(&mut out, &self.ranges);
        out
    }
}

/// The parameter list of WRITE USING TOKEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteUsingToken {
    /// Whether status is returned before anything is copied (IMMED).
    pub immediate: bool,
    /// Whether the copy manager may discard the token afterwards (DEL_TKN).
    pub delete_token: bool,
    /// The offset of the first block in the token's data.
    pub offset: Blocks,
    /// The token.
    pub token: RodToken,
    /// The ranges to write, in order.
    pub ranges: Vec<BlockRange>,
}

impl WriteUsingToken {
    /// Parses the parameter list; `ranges_max` is MAXIMUM RANGE DESCRIPTORS.
    ///
    /// # Errors
    /// The list is cut short, has no ranges or too many, or ranges overlap.
    pub fn parse(list: &[u8], ranges_max: u16) -> Result<Self, CopyError> {
        let ranges = ranges(list, WRITE_HEADER_LEN, ranges_max)?;
        let flags = u8_at(list, 2);
        Ok(Self {
            immediate: flags & 1 != 0,
            delete_token: flags & 2 != 0,
            offset: Blocks(u64_at(list, 8)),
            token: RodToken(array(list, 16)),
            ranges,
        })
    }

    /// Builds the parameter list.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(len16(WRITE_HEADER_LEN - 2 + self.ranges.len() * RANGE_LEN));
        out.extend([u8::from(self.delete_token) << 1 | u8::from(self.immediate), 0, 0, 0, 0, 0]);
        out.extend(self.offset.0.to_be_bytes());
        out.extend_from_slice(self.token.bytes());
        out.extend([0; 6]);
        append_ranges(&mut out, &self.ranges);
        out
    }
}

fn append_ranges(out: &mut Vec<u8>, ranges: &[BlockRange]) {
    out.extend(len16(ranges.len() * RANGE_LEN));
    for range in ranges {
        out.extend(range.lba.0.to_be_bytes());
        out.extend(u32::try_from(range.blocks.0).unwrap_or(u32::MAX).to_be_bytes());
        out.extend([0; 4]);
    }
}

/// Parses the block device range descriptors after a header of `header` bytes. The last two bytes of the
/// header are the length of the descriptors. Its first two bytes are the length of everything after them.
fn ranges(list: &[u8], header: usize, ranges_max: u16) -> Result<Vec<BlockRange>, CopyError> {
    let list_len = usize::from(u16_at(list, 0)) + 2;
    if list.len() < header || list_len > list.len() {
        return Err(CopyError::LengthError);
    }
    if list_len < header + RANGE_LEN {
        return Err(CopyError::field(0));
    }
    let length_field = header - 2;
    let len = usize::from(u16_at(list, length_field));
    // Bytes after the last whole descriptor are ignored (SBC-4 §5.12).
    let count = len / RANGE_LEN;
    if count == 0 || header + len > list_len {
        return Err(CopyError::field(length_field));
    }
    if count > usize::from(ranges_max) {
        return Err(CopyError::TooManySegments { byte: length_field });
    }
    let mut ranges: Vec<BlockRange> = Vec::with_capacity(count);
    for index in 0..count {
        let at = header + index * RANGE_LEN;
        let range =
            BlockRange { lba: Lba(u64_at(list, at)), blocks: Blocks(u64::from(u32_at(list, at + 8))) };
        if ranges.iter().any(|earlier| overlap(earlier, &range)) {
            return Err(CopyError::field(at));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

/// Returns whether two runs of blocks share a block.
pub fn overlap(a: &BlockRange, b: &BlockRange) -> bool {
    let starts_inside = |a: &BlockRange, b: &BlockRange| {
        b.lba.0.checked_sub(a.lba.0).is_some_and(|distance| distance < a.blocks.0) && b.blocks.0 > 0
    };
    (starts_inside(a, b) || starts_inside(b, a)) && a.blocks.0 > 0
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn range(lba: u64, blocks: u64) -> BlockRange {
        BlockRange { lba: Lba(lba), blocks: Blocks(blocks) }
    }

    fn populate(ranges: Vec<BlockRange>) -> PopulateToken {
        PopulateToken {
            immediate: false,
            rod_type: Some(RodType::POINT_IN_TIME_DEFAULT),
            inactivity_timeout_s: 60,
            ranges,
        }
    }

    fn write(ranges: Vec<BlockRange>) -> WriteUsingToken {
        WriteUsingToken {
            immediate: true,
            delete_token: true,
            offset: Blocks(9),
            token: RodToken::zeros(),
            ranges,
        }
    }

    #[test]
    fn the_lists_stand_as_sbc_has_them() {
        let sent = populate(vec![range(1, 2), range(1 << 33, u64::from(u32::MAX))]);
        let bytes = sent.to_bytes();
        assert_eq!(bytes[..16], [0, 46, 2, 0, 0, 0, 0, 60, 0, 0x80, 0, 0, 0, 0, 0, 32]);
        assert_eq!(bytes[16..32], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(PopulateToken::parse(&bytes, 2), Ok(sent));
        let sent = write(vec![range(3, 4)]);
        let bytes = sent.to_bytes();
        assert_eq!(bytes[..17], [2, 38, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0xff]);
        assert_eq!(bytes[528..544], [0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(WriteUsingToken::parse(&bytes, 2), Ok(sent));
    }

    #[test]
    fn a_list_cut_anywhere_is_a_length_error() {
        let bytes = populate(vec![range(1, 2)]).to_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(PopulateToken::parse(&bytes[..cut], 2), Err(CopyError::LengthError), "{cut}");
        }
        let bytes = write(vec![range(1, 2)]).to_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(WriteUsingToken::parse(&bytes[..cut], 2), Err(CopyError::LengthError), "{cut}");
        }
    }

    #[test]
    fn refuses_no_ranges_too_many_and_overlapping_ones() {
        let cases = [
            (vec![], CopyError::field(0)),
            (vec![range(0, 1), range(1, 1), range(2, 1)], CopyError::TooManySegments { byte: 14 }),
            (vec![range(5, 2), range(6, 1)], CopyError::field(32)),
            (vec![range(u64::MAX, 2), range(u64::MAX, 1)], CopyError::field(32)),
        ];
        for (ranges, refusal) in cases {
            let bytes = populate(ranges).to_bytes();
            assert_eq!(PopulateToken::parse(&bytes, 2), Err(refusal), "{bytes:?}");
        }
        let mut bytes = populate(vec![range(0, 1)]).to_bytes();
        bytes[15] = 15;
        assert_eq!(PopulateToken::parse(&bytes, 2), Err(CopyError::field(14)), "less than one");
        bytes[15] = 17;
        assert_eq!(PopulateToken::parse(&bytes, 2), Err(CopyError::field(14)), "more than there is");
    }

    #[test]
    fn empty_ranges_overlap_nothing() {
        let bytes = populate(vec![range(5, 0), range(5, 1), range(5, 0)]).to_bytes();
        assert_eq!(PopulateToken::parse(&bytes, 8).unwrap().ranges.len(), 3);
    }

    #[test]
    fn a_token_says_who_made_it_and_hides_its_secret_from_management() {
        let fields = TokenFields {
            rod_type: RodType::POINT_IN_TIME_CHANGE_VULNERABLE,
            id: 77,
            creator: [0xe4; CSCD_LEN],
            len: 1 << 40,
            block_len: 512,
            physical_exponent: 3,
            provisioning: (true, true),
            target: &[1; 400],
            secret: [0x5c; SECRET_LEN],
        };
        let token = RodToken::new(&fields);
        assert!(token.is_well_formed());
        assert_eq!((token.rod_type(), token.id()), (fields.rod_type, 77));
        assert_eq!((token.creator(), token.len_represented()), (fields.creator, 1 << 40));
        assert_eq!(token.bytes()[96..104], [0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!(token.bytes()[480..], [0x5c; 32]);
        assert!(!token.management_part().contains(&0x5c));
        assert!(token.same(&token.bytes()[..]));
        for at in 0..ROD_TOKEN_LEN {
            let mut other = token.clone();
            other.0[at] ^= 1;
            assert!(!token.same(other.bytes()), "byte {at}");
        }
        assert!(!token.same(&token.bytes()[..511]));
    }
}
