//! CRC32C over header and data segments (RFC 7143 §13.1): the polynomial of Castagnoli, bits reflected,
//! initial and final value inverted, and the result sent least significant byte first.
//!
//! The crate `crc-fast` computes it, and picks the processor's widest carry-less multiplication when it
//! starts.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// The length of a digest on the wire.
pub const DIGEST_LEN: usize = 4;

/// A digest that is computed part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c {
    state: u32,
}

impl Crc32c {
    /// Returns the digest of no bytes, to be updated.
    pub const fn new() -> Self {
        Self { state: u32::MAX }
    }

    /// Returns the digest of `bytes` alone, in wire order.
    pub fn of(bytes: &[u8]) -> [u8; DIGEST_LEN] {
        crc32_iscsi(bytes).to_le_bytes()
    }

    /// Adds `bytes` to the digest.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.state));
        digest.update(bytes);
        // The state of a 32-bit CRC has 32 bits.
        self.state = u32::try_from(digest.get_state()).unwrap_or_default();
    }

    /// Returns the digest in wire order.
    pub const fn finish(self) -> [u8; DIGEST_LEN] {
        (!self.state).to_le_bytes()
    }
}

/// The position of the one wrong bit that explains a digest error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flipped {
    /// In the bytes: the index of the byte, and the mask of the bit.
    Byte(usize, u8),
    /// In the digest itself.
    Digest,
}

/// Finds the one bit that, flipped back, makes `bytes` match the received digest; `None` when no single bit
/// does, or when `bytes` is longer than 651 bytes.
///
/// Two strings that both match their digests differ in at least six bits (the Hamming distance of CRC32C up
/// to that length), so damage of two to four bits is never mistaken for damage of one.
pub fn single_flip(bytes: &[u8], digest: [u8; DIGEST_LEN]) -> Option<Flipped> {
    if bytes.len() > SIX_APART {
        return None;
    }
    let syndrome = u32::from_le_bytes(Crc32c::of(bytes)) ^ u32::from_le_bytes(digest);
    if syndrome.count_ones() <= 1 {
        return (syndrome != 0).then_some(Flipped::Digest);
    }
    // The effect of a flipped bit on the digest depends only on its distance from the end. This loop walks
    // backwards from the last bit, one step of the shift register per bit.
    let mut effect = POLYNOMIAL;
    for at in (0..bytes.len()).rev() {
        for bit in (0..8).rev() {
            if effect == syndrome {
                return Some(Flipped::Byte(at, 1 << bit));
            }
            effect = (effect >> 1) ^ if effect & 1 == 1 { POLYNOMIAL } else { 0 };
        }
    }
    None
}

/// The number of bytes up to which CRC32C has a Hamming distance of six (Koopman 2002: 5243 bits).
const SIX_APART: usize = 651;

/// The polynomial of Castagnoli, bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7143, appendix A.4 (RFC 3720 B.4).
    #[test]
    fn matches_the_examples_of_the_standard() {
        let ascending: [u8; 32] = core::array::from_fn(|i| u8::try_from(i).unwrap());
        let descending: [u8; 32] = core::array::from_fn(|i| u8::try_from(31 - i).unwrap());
        let mut read = [0; 48];
        read[..2].copy_from_slice(&[0x01, 0xc0]);
        read[16] = 0x14;
        read[22] = 0x04;
        read[27] = 0x14;
        read[31] = 0x18;
        read[32] = 0x28;
        read[40] = 0x02;
        for (bytes, crc) in [
            (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&ascending, [0x4e, 0x79, 0xdd, 0x46]),
            (&descending, [0x5c, 0xdb, 0x3f, 0x11]),
            (&read, [0x56, 0x3a, 0x96, 0xd9]),
        ] {
            assert_eq!(Crc32c::of(bytes), crc, "{bytes:x?}");
        }
    }

    #[test]
    fn parts_give_the_same_digest_as_the_whole() {
        let mut rng = base::rng::Rng::from_seed(1);
        let mut bytes = [0; 5000];
        rng.fill(&mut bytes);
        for cut in [0, 1, 3, 47, 48, 255, 256, 1024, 4999, 5000] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.finish(), Crc32c::of(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn one_flipped_bit_is_found_wherever_it_is_and_two_to_four_are_not_taken_for_one() {
        for len in [48, 64] {
            let bytes: alloc::vec::Vec<u8> =
                (0..len).map(|i: usize| u8::try_from(i * 37 % 251).unwrap()).collect();
            let digest = Crc32c::of(&bytes);
            assert_eq!(single_flip(&bytes, digest), None);
            for at in 0..len {
                for bit in 0..8 {
                    let mut hurt = bytes.clone();
                    hurt[at] ^= 1 << bit;
                    assert_eq!(single_flip(&hurt, digest), Some(Flipped::Byte(at, 1 << bit)));
                }
            }
            for bit in 0..32 {
                let hurt = (u32::from_le_bytes(digest) ^ (1 << bit)).to_le_bytes();
                assert_eq!(single_flip(&bytes, hurt), Some(Flipped::Digest));
            }
            let mut rng = base::rng::Rng::from_seed(7);
            for _ in 0..20_000 {
                let mut hurt = bytes.clone();
                let mut at = alloc::collections::BTreeSet::new();
                while at.len() < 2 + usize::try_from(rng.below(3)).unwrap() {
                    at.insert(usize::try_from(rng.below(u64::try_from(len * 8).unwrap())).unwrap());
                }
                for bit in &at {
                    hurt[bit / 8] ^= 1 << (bit % 8);
                }
                assert_eq!(single_flip(&hurt, digest), None, "{at:?}");
            }
        }
    }
}
