//! Reads and writes signed blocks.
//!
//! Every 512-byte sector of a signed block begins with the same header, except for the sector's index
//! (big-endian):
//!
//! | offset | length | what |
//! |---|---|---|
//! | 0 | 4 | `tarG` |
//! | 4 | 1 | version of this layout: 1 |
//! | 5 | 1 | base-2 logarithm of the block's length |
//! | 6 | 1 | index of the sector in the block |
//! | 7 | 1 | pattern of the filler |
//! | 8 | 8 | device |
//! | 16 | 8 | logical block address |
//! | 24 | 8 | generation: the number of this write among the writes to this block |
//! | 32 | 8 | sequence: the number of this operation among those of the writer |
//! | 40 | 8 | time, in nanoseconds since an origin that the writer chose |
//! | 48 | 4 | writer |
//! | 52 | 4 | seed of the filler |
//! | 56 | 8 | CRC-64/NVME of everything else in the sector |
//! | 64 | 448 | filler |
//!
//! With the pattern [`Pattern::ChecksumNeutral`] the last two bytes of the sector balance its Internet
//! checksum. The CRC does not cover these two bytes; the checksum protects them.

use base::bytes::{Reader, UnexpectedEof, Writer};
use base::units::{BlockSize, Lba};
use crc_fast::{CrcAlgorithm, Digest};

use crate::pattern::Pattern;

/// The length of a sector in bytes. Every medium writes a sector as a whole, and each sector carries its own
/// header.
pub const SECTOR: usize = 512;

/// The length of the header in bytes.
pub const HEADER: usize = 64;

const MAGIC: [u8; 4] = *b"tarG";
const VERSION: u8 = 1;
const CRC_AT: usize = 56;

/// A device under test, as the caller numbers it. The caller uses 64 random bits, so that the devices of two
/// runs differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u64);

/// A writer: one initiator in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u32);

/// The number of an operation of a writer. No two writes of one writer have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// The number of a write to a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The header of a signed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockHeader {
    /// The device it was written to.
    pub device: DeviceId,
    /// The block it was written to.
    pub lba: Lba,
    /// The number of this write among the writes to that block.
    pub generation: Generation,
    /// The writer.
    pub writer: WriterId,
    /// The operation that wrote it.
    pub sequence: Sequence,
    /// The time of the write, in nanoseconds since the writer's origin.
    pub time_ns: u64,
    /// The seed of the filler.
    pub seed: u32,
    /// The pattern of the filler.
    pub pattern: Pattern,
}

impl BlockHeader {
    /// Fills `block` with this header and its filler.
    ///
    /// # Errors
    /// Returns [`BadBlockLen`] without writing anything if the length of `block` is not allowed.
    pub fn sign(&self, block: &mut [u8]) -> Result<(), BadBlockLen> {
        let size = block_size(block.len())?;
        for (index, sector) in (0..=u8::MAX).zip(block.chunks_mut(SECTOR)) {
            // A sector is 512 bytes long, so everything fits.
            let _ = self.sign_sector(size, index, sector);
        }
        Ok(())
    }

    fn sign_sector(&self, size: BlockSize, index: u8, sector: &mut [u8]) -> Result<(), UnexpectedEof> {
        let (header, filler) = sector.split_at_mut_checked(HEADER).ok_or(UnexpectedEof)?;
        self.pattern.fill(self.seed, self.lba, index, filler);
        let mut writer = Writer::new(header);
        writer.put(&MAGIC)?;
        writer.put(&[VERSION, shift_of(size), index, self.pattern.code()])?;
        for word in [self.device.0, self.lba.0, self.generation.0, self.sequence.0, self.time_ns] {
            writer.u64(word)?;
        }
        writer.u32(self.writer.0)?;
        writer.u32(self.seed)?;
        writer.u64(0)?;
        let crc = crc_of(self.pattern, sector);
        sector.get_mut(CRC_AT..HEADER).ok_or(UnexpectedEof)?.copy_from_slice(&crc.to_be_bytes());
        if self.pattern == Pattern::ChecksumNeutral {
            balance(sector);
        }
        Ok(())
    }
}

impl core::fmt::Display for BlockHeader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "generation {} of {} on device {:016x}, by writer {:08x} as its operation {} at {}.{:09} s",
            self.generation.0,
            self.lba,
            self.device.0,
            self.writer.0,
            self.sequence.0,
            self.time_ns / 1_000_000_000,
            self.time_ns % 1_000_000_000,
        )
    }
}

/// The error for a block length that is not a power of two from 512 to 65536 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBlockLen(pub usize);

impl core::fmt::Display for BadBlockLen {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a signed block cannot be {} bytes long", self.0)
    }
}

impl core::error::Error for BadBlockLen {}

/// A sector that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sector {
    pub(crate) block_header: BlockHeader,
    pub(crate) index: u8,
    pub(crate) size: BlockSize,
    /// Whether its checksums are correct. If not, any part of the header may be wrong.
    pub(crate) sound: bool,
}

impl Sector {
    /// Reads a sector. Returns `None` when it has no header.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let magic = reader.array::<4>().ok()?;
        let [version, shift, index, pattern] = reader.array::<4>().ok()?;
        let size = BlockSize::from_bytes(1_u32.checked_shl(shift.into())?)?;
        let pattern = Pattern::from_code(pattern)?;
        let block_header = BlockHeader {
            device: DeviceId(reader.u64().ok()?),
            lba: Lba(reader.u64().ok()?),
            generation: Generation(reader.u64().ok()?),
            sequence: Sequence(reader.u64().ok()?),
            time_ns: reader.u64().ok()?,
            writer: WriterId(reader.u32().ok()?),
            seed: reader.u32().ok()?,
            pattern,
        };
        let crc = reader.u64().ok()?;
        if magic != MAGIC || version != VERSION {
            return None;
        }
        let balanced = pattern != Pattern::ChecksumNeutral || internet_sum(bytes) == u16::MAX;
        Some(Self { block_header, index, size, sound: balanced && crc_of(pattern, bytes) == crc })
    }

    /// Returns the bytes that the sector should have.
    pub(crate) fn restore(&self) -> [u8; SECTOR] {
        let mut whole = [0; SECTOR];
        let _ = self.block_header.sign_sector(self.size, self.index, &mut whole);
        whole
    }
}

pub(crate) fn block_size(len: usize) -> Result<BlockSize, BadBlockLen> {
    u32::try_from(len).ok().and_then(BlockSize::from_bytes).ok_or(BadBlockLen(len))
}

fn shift_of(size: BlockSize) -> u8 {
    u8::try_from(size.shift()).unwrap_or(0)
}

fn crc_of(pattern: Pattern, sector: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let end = if pattern == Pattern::ChecksumNeutral { SECTOR - 2 } else { SECTOR };
    digest.update(sector.get(..CRC_AT).unwrap_or_default());
    digest.update(sector.get(HEADER..end).unwrap_or_default());
    digest.finalize()
}

/// Chooses the last two bytes so that the ones' complement sum of the sector is FFFFh, as for every other
/// such sector. The TCP checksum then does not detect that such sectors, or parts of them, were swapped.
fn balance(sector: &mut [u8]) {
    let Some((rest, last)) = sector.split_last_chunk_mut::<2>() else { return };
    *last = (!internet_sum(rest)).to_be_bytes();
}

/// Returns the sum of RFC 1071, before it is complemented.
fn internet_sum(bytes: &[u8]) -> u16 {
    let words = bytes.as_chunks::<2>().0;
    let mut sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn block_header(pattern: Pattern) -> BlockHeader {
        BlockHeader {
            device: DeviceId(0x0102_0304_0506_0708),
            lba: Lba(0x1112_1314),
            generation: Generation(3),
            writer: WriterId(0x2122_2324),
            sequence: Sequence(77),
            time_ns: 1_500_000_001,
            seed: 0x3132_3334,
            pattern,
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let mut block = [0xa5; 1024];
        block_header(Pattern::Fixed).sign(&mut block).unwrap();
        assert_eq!(block[..8], *b"tarG\x01\x0a\x00\x00");
        assert_eq!(block[512..520], *b"tarG\x01\x0a\x01\x00");
        assert_eq!(block[8..24], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14]);
        assert_eq!(block[31], 3);
        assert_eq!(block[39], 77);
        assert_eq!(block[48..56], [0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34]);
        assert_eq!(block[64..72], [0x31, 0x32, 0x33, 0x34, 0x31, 0x32, 0x33, 0x34]);
        // CRC-64/NVME of the sector without its own eight bytes, computed bit by bit.
        let mut crc = u64::MAX;
        for byte in block[..56].iter().chain(&block[64..512]) {
            crc ^= u64::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x9a6c_9329_ac4b_c9b5 } else { crc >> 1 };
            }
        }
        assert_eq!(block[56..64], (!crc).to_be_bytes());
    }

    #[test]
    fn a_sector_gives_back_its_stamp_whatever_the_pattern() {
        for pattern in Pattern::ALL {
            for shift in 9..=16 {
                let mut block = vec![0xa5; 1 << shift];
                block_header(pattern).sign(&mut block).unwrap();
                for (index, sector) in (0..).zip(block.chunks(SECTOR)) {
                    let read = Sector::read(sector).unwrap();
                    assert_eq!(
                        (read.block_header, read.index, read.sound),
                        (block_header(pattern), index, true)
                    );
                    assert_eq!(read.restore(), sector);
                }
            }
        }
    }

    #[test]
    fn every_single_flipped_bit_shows() {
        for pattern in [Pattern::Random, Pattern::ChecksumNeutral, Pattern::Fixed] {
            let mut block = [0; 512];
            block_header(pattern).sign(&mut block).unwrap();
            for bit in 0..512 * 8 {
                let mut damaged = block;
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(Sector::read(&damaged).is_none_or(|sector| !sector.sound), "{pattern:?}, bit {bit}");
            }
        }
    }

    #[test]
    fn neutral_sectors_all_have_the_same_internet_checksum() {
        for lba in 0..500 {
            let mut block = [0; 512];
            BlockHeader { lba: Lba(lba), ..block_header(Pattern::ChecksumNeutral) }.sign(&mut block).unwrap();
            assert_eq!(internet_sum(&block), u16::MAX);
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        for len in [0, 256, 513, 520, 131_072] {
            assert_eq!(block_header(Pattern::Fixed).sign(&mut vec![0; len]), Err(BadBlockLen(len)));
        }
    }
}
