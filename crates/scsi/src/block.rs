//! The commands of direct access block devices (SBC-4 §5) that an initiator sends, and the parameter data
//! that it reads: capacity and provisioning status of blocks.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};
use base::units::{BlockSize, Blocks, Lba};

use crate::cdb::Cdb;
use crate::opcode::{self, service_action_in_16};

/// FUA in byte 1 of reads and writes: no status before the blocks are on the medium.
const FUA: u8 = 0x08;
/// UNMAP in byte 1 of WRITE SAME: the device server may deallocate the blocks.
const UNMAP_BIT: u8 = 0x08;

/// Builds READ(16).
pub fn read_16(lba: Lba, blocks: u32, fua: bool) -> Cdb {
    transfer_16(opcode::READ_16, if fua { FUA } else { 0 }, lba, blocks)
}

/// Builds WRITE(16).
pub fn write_16(lba: Lba, blocks: u32, fua: bool) -> Cdb {
    transfer_16(opcode::WRITE_16, if fua { FUA } else { 0 }, lba, blocks)
}

/// Builds READ(10), for devices that do not support READ(16).
pub fn read_10(lba: u32, blocks: u16, fua: bool) -> Cdb {
    transfer_10(opcode::READ_10, if fua { FUA } else { 0 }, lba, blocks)
}

/// Builds WRITE(10), for devices that do not support WRITE(16).
pub fn write_10(lba: u32, blocks: u16, fua: bool) -> Cdb {
    transfer_10(opcode::WRITE_10, if fua { FUA } else { 0 }, lba, blocks)
}

/// Builds SYNCHRONIZE CACHE(10) of the whole medium.
pub fn synchronize_cache_10() -> Cdb {
    transfer_10(opcode::SYNCHRONIZE_CACHE_10, 0, 0, 0)
}

/// Builds SYNCHRONIZE CACHE(16) of the whole medium.
pub fn synchronize_cache_16() -> Cdb {
    transfer_16(opcode::SYNCHRONIZE_CACHE_16, 0, Lba(0), 0)
}

/// Builds WRITE SAME(16): the data-out is one block. With `unmap` the device server may deallocate the blocks
/// instead, if they then read the same.
pub fn write_same_16(lba: Lba, blocks: u32, unmap: bool) -> Cdb {
    transfer_16(opcode::WRITE_SAME_16, if unmap { UNMAP_BIT } else { 0 }, lba, blocks)
}

/// Builds COMPARE AND WRITE: the data-out is twice `blocks` blocks, first those to compare with, then those
/// to write.
pub fn compare_and_write(lba: Lba, blocks: u8, fua: bool) -> Cdb {
    let [a, b, c, d, e, f, g, h] = lba.0.to_be_bytes();
    let fua = if fua { FUA } else { 0 };
    Cdb::from_16([opcode::COMPARE_AND_WRITE, fua, a, b, c, d, e, f, g, h, 0, 0, 0, blocks, 0, 0])
}

/// The length of the parameter list of an UNMAP of one range in bytes.
pub const UNMAP_LIST_LEN: usize = 24;

/// Builds UNMAP of one range, and its parameter list.
pub fn unmap(lba: Lba, blocks: u32) -> (Cdb, [u8; UNMAP_LIST_LEN]) {
    let mut list = [0; UNMAP_LIST_LEN];
    let head = [0, 22, 0, 16, 0, 0, 0, 0].into_iter();
    let body = head.chain(lba.0.to_be_bytes()).chain(blocks.to_be_bytes());
    for (to, from) in list.iter_mut().zip(body) {
        *to = from;
    }
    let cdb = Cdb::from_16([opcode::UNMAP, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0]);
    (cdb, list)
}

/// Builds READ CAPACITY(10).
pub const fn read_capacity_10() -> Cdb {
    Cdb::from_16([opcode::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// Builds READ CAPACITY(16).
pub fn read_capacity_16(allocation_len: u32) -> Cdb {
    service_action_in(service_action_in_16::READ_CAPACITY_16, Lba(0), allocation_len)
}

/// Builds GET LBA STATUS(16).
pub fn get_lba_status(lba: Lba, allocation_len: u32) -> Cdb {
    service_action_in(service_action_in_16::GET_LBA_STATUS, lba, allocation_len)
}

fn transfer_16(opcode: u8, flags: u8, lba: Lba, blocks: u32) -> Cdb {
    let [a, b, c, d, e, f, g, h] = lba.0.to_be_bytes();
    let [i, j, k, l] = blocks.to_be_bytes();
    Cdb::from_16([opcode, flags, a, b, c, d, e, f, g, h, i, j, k, l, 0, 0])
}

fn transfer_10(opcode: u8, flags: u8, lba: u32, blocks: u16) -> Cdb {
    let [a, b, c, d] = lba.to_be_bytes();
    let [e, f] = blocks.to_be_bytes();
    Cdb::from_16([opcode, flags, a, b, c, d, 0, e, f, 0, 0, 0, 0, 0, 0, 0])
}

fn service_action_in(action: u16, lba: Lba, allocation_len: u32) -> Cdb {
    let [_, action] = action.to_be_bytes();
    let [a, b, c, d, e, f, g, h] = lba.0.to_be_bytes();
    let [i, j, k, l] = allocation_len.to_be_bytes();
    Cdb::from_16([opcode::SERVICE_ACTION_IN_16, action, a, b, c, d, e, f, g, h, i, j, k, l, 0, 0])
}

/// The size of a medium and the layout of its blocks, from READ CAPACITY (SBC-4 §5.20, §5.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The number of logical blocks.
    pub blocks: Blocks,
    /// LOGICAL BLOCK LENGTH.
    pub block_size: BlockSize,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub physical_exponent: u8,
    /// LOWEST ALIGNED LOGICAL BLOCK ADDRESS.
    pub lowest_aligned: u16,
    /// LBPME: blocks can be deallocated (thin provisioning).
    pub provisioning: bool,
    /// LBPRZ: deallocated blocks read as zeros.
    pub reads_zero: bool,
    /// PROT_EN: blocks carry protection information.
    pub protection: bool,
}

/// Why the response to READ CAPACITY is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCapacity {
    /// The data is too short.
    #[error("the answer to READ CAPACITY is too short")]
    Short,
    /// The block length is not a power of two between 512 and 65536.
    #[error("the device has blocks of {0} bytes, which is no power of two from 512 to 65536")]
    BlockLength(u32),
    /// The size in bytes exceeds 64 bits.
    #[error("the device claims more bytes than 64 bits hold")]
    Size,
}

impl Capacity {
    /// The length of the parameter data of READ CAPACITY(16).
    pub const LEN_16: u32 = 32;

    /// Parses the parameter data of READ CAPACITY(10). Returns `None` if the medium is too large for this
    /// form.
    ///
    /// # Errors
    /// [`BadCapacity`]
    pub fn parse_10(bytes: &[u8]) -> Result<Option<Self>, BadCapacity> {
        let mut data = Reader::new(bytes);
        let (last, len) = (data.u32()?, data.u32()?);
        if last == u32::MAX {
            return Ok(None);
        }
        Self::new(u64::from(last), len).map(Some)
    }

    /// Parses the parameter data of READ CAPACITY(16).
    ///
    /// # Errors
    /// [`BadCapacity`]
    pub fn parse_16(bytes: &[u8]) -> Result<Self, BadCapacity> {
        let mut data = Reader::new(bytes);
        let mut capacity = Self::new(data.u64()?, data.u32()?)?;
        // Devices older than SBC-3 end the data here, or send zeros.
        let [protection, exponents] = data.array().unwrap_or_default();
        let aligned = data.u16().unwrap_or(0);
        capacity.protection = protection & 1 == 1;
        capacity.physical_exponent = exponents & 0x0f;
        capacity.provisioning = aligned & 0x8000 != 0;
        capacity.reads_zero = aligned & 0x4000 != 0;
        capacity.lowest_aligned = aligned & 0x3fff;
        Ok(capacity)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        // `new` has checked that the size fits.
        self.block_size.len_of(self.blocks).map_or(u64::MAX, |len| len.0)
    }

    fn new(last: u64, block_len: u32) -> Result<Self, BadCapacity> {
        let block_size = BlockSize::from_bytes(block_len).ok_or(BadCapacity::BlockLength(block_len))?;
        let blocks = Blocks(last.checked_add(1).ok_or(BadCapacity::Size)?);
        block_size.len_of(blocks).ok_or(BadCapacity::Size)?;
        Ok(Self {
            blocks,
            block_size,
            physical_exponent: 0,
            lowest_aligned: 0,
            provisioning: false,
            reads_zero: false,
            protection: false,
        })
    }
}

impl From<UnexpectedEof> for BadCapacity {
    fn from(_: UnexpectedEof) -> Self {
        Self::Short
    }
}

/// PROVISIONING STATUS of a run of blocks (SBC-4 §5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Provisioning(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl Provisioning {
    pub const MAPPED: Self = Self(0);
    pub const DEALLOCATED: Self = Self(1);
    pub const ANCHORED: Self = Self(2);
}

/// A run of blocks in one state (SBC-4 §5.6.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaStatus {
    /// The first block.
    pub lba: Lba,
    /// The number of blocks.
    pub blocks: u32,
    /// The provisioning status.
    pub state: Provisioning,
}

impl LbaStatus {
    /// Parses the parameter data of GET LBA STATUS and returns every whole descriptor.
    ///
    /// # Errors
    /// When the data is shorter than the header.
    pub fn list(bytes: &[u8]) -> Result<Vec<Self>, UnexpectedEof> {
        let mut data = Reader::new(bytes);
        let _len = data.u32()?;
        data.u32()?;
        let mut next = || -> Result<Self, UnexpectedEof> {
            let (lba, blocks) = (Lba(data.u64()?), data.u32()?);
            let [state, _, _, _] = data.array()?;
            Ok(Self { lba, blocks, state: Provisioning(state & 0x0f) })
        };
        Ok(core::iter::from_fn(|| next().ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_stands_where_sbc_puts_it() {
        let lba = Lba(0x0102_0304_0506_0708);
        for (cdb, bytes) in [
            (read_16(lba, 0x090a_0b0c, true), "88080102030405060708090a0b0c0000"),
            (write_16(lba, 1, false), "8a000102030405060708000000010000"),
            (read_10(0x0102_0304, 0x0506, false), "28000102030400050600"),
            (write_10(1, 2, true), "2a080000000100000200"),
            (synchronize_cache_10(), "35000000000000000000"),
            (synchronize_cache_16(), "91000000000000000000000000000000"),
            (write_same_16(lba, 3, true), "93080102030405060708000000030000"),
            (compare_and_write(lba, 4, false), "89000102030405060708000000040000"),
            (read_capacity_10(), "25000000000000000000"),
            (read_capacity_16(32), "9e100000000000000000000000200000"),
            (get_lba_status(lba, 24), "9e120102030405060708000000180000"),
            (unmap(lba, 5).0, "42000000000000001800"),
        ] {
            assert_eq!(alloc::format!("{cdb:?}"), alloc::format!("Cdb({bytes})"));
        }
        let (_, list) = unmap(lba, 5);
        assert_eq!(list[..8], [0, 22, 0, 16, 0, 0, 0, 0]);
        assert_eq!(list[8..], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 5, 0, 0, 0, 0]);
    }

    #[test]
    fn capacities_are_read_and_lies_are_told() {
        let mut data = [0_u8; 32];
        data[7] = 99;
        data[10] = 0x10;
        data[13] = 3;
        data[14] = 0xc0;
        let capacity = Capacity::parse_16(&data).unwrap();
        assert_eq!((capacity.blocks, capacity.bytes()), (Blocks(100), 409_600));
        assert_eq!((capacity.physical_exponent, capacity.provisioning, capacity.reads_zero), (3, true, true));
        assert_eq!(Capacity::parse_16(&data[..11]), Err(BadCapacity::Short));
        assert_eq!(Capacity::parse_16(&data[..12]).unwrap().bytes(), 409_600);
        data[10] = 0x11;
        assert_eq!(Capacity::parse_16(&data), Err(BadCapacity::BlockLength(0x1100)));
        data[..8].fill(0xff);
        data[10] = 2;
        assert_eq!(Capacity::parse_16(&data), Err(BadCapacity::Size));
        data[7] = 0xfe;
        assert_eq!(Capacity::parse_16(&data), Err(BadCapacity::Size));
        assert_eq!(Capacity::parse_10(&[0, 0, 0, 1, 0, 0, 2, 0]).unwrap().unwrap().bytes(), 1024);
        assert_eq!(Capacity::parse_10(&[0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]), Ok(None));
    }

    #[test]
    fn states_end_with_the_last_whole_descriptor() {
        let mut data = [0_u8; 8 + 16 + 15];
        data[15] = 7;
        data[19] = 9;
        data[20] = 1;
        let found = LbaStatus::list(&data).unwrap();
        assert_eq!(found, [LbaStatus { lba: Lba(7), blocks: 9, state: Provisioning::DEALLOCATED }]);
        assert_eq!(LbaStatus::list(&data[..7]), Err(UnexpectedEof));
    }
}
