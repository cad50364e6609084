//! Quantities that must not be confused: block addresses, block counts, byte counts.

use core::fmt;

/// A logical block address (SBC-4 §4.5). Zero is the first block of the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// A number of logical blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocks(pub u64);

/// A number of bytes, or a byte offset from the start of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteLen(pub u64);

/// The length of a logical block: a power of two between 512 and 65536 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSize {
    shift: u32,
}

impl BlockSize {
    /// 512 bytes.
    pub const B512: Self = Self { shift: 9 };
    /// 2048 bytes.
    pub const B2048: Self = Self { shift: 11 };
    /// 4096 bytes.
    pub const B4096: Self = Self { shift: 12 };

    /// Returns the block size of `bytes`, or `None` unless it is a power of two in 512..=65536.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 512 && bytes <= 65536 {
            Some(Self { shift: bytes.trailing_zeros() })
        } else {
            None
        }
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u32 {
        1 << self.shift
    }

    /// Returns the base-2 logarithm of the size.
    pub const fn shift(self) -> u32 {
        self.shift
    }

    /// Returns how many bytes `blocks` occupy, or `None` when that exceeds 64 bits.
    pub fn len_of(self, blocks: Blocks) -> Option<ByteLen> {
        blocks.0.checked_mul(u64::from(self.bytes())).map(ByteLen)
    }

    /// Returns the byte offset at which `lba` starts, or `None` when that exceeds 64 bits.
    pub fn offset_of(self, lba: Lba) -> Option<ByteLen> {
        lba.0.checked_mul(u64::from(self.bytes())).map(ByteLen)
    }

    /// Returns how many whole blocks fit in `len`.
    pub const fn whole_blocks_in(self, len: ByteLen) -> Blocks {
        Blocks(len.0 >> self.shift)
    }
}

impl Lba {
    /// Returns the address `blocks` after this one, or `None` past 2^64 - 1.
    pub fn after(self, blocks: Blocks) -> Option<Self> {
        self.0.checked_add(blocks.0).map(Self)
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_size_takes_powers_of_two_from_512_to_64_kib() {
        for (bytes, ok) in [
            (0, false),
            (256, false),
            (512, true),
            (520, false),
            (4096, true),
            (65536, true),
            (131072, false),
        ] {
            assert_eq!(BlockSize::from_bytes(bytes).is_some(), ok, "{bytes}");
        }
    }

    #[test]
    fn an_offset_beyond_64_bits_is_none() {
        assert_eq!(BlockSize::B512.offset_of(Lba(1 << 55)), None);
        assert_eq!(BlockSize::B512.offset_of(Lba(1 << 54)), Some(ByteLen(1 << 63)));
    }
}
