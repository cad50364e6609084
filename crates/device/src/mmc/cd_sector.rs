//! Sectors of a CD in mode 1 (ECMA-130): synchronisation, header, user data, error detection code, and
//! the two layers of Reed-Solomon error correction code.

use alloc::vec::Vec;

use super::information::msf;

pub(super) const SYNC_LEN: usize = 12;
pub(super) const HEADER_LEN: usize = 4;
pub(super) const USER_LEN: usize = 2048;
/// The error detection code, eight zeros, and the error correction code.
pub(super) const EDC_ECC_LEN: usize = 4 + 8 + P_LEN + Q_LEN;

const P_LEN: usize = 172;
const Q_LEN: usize = 104;

/// The synchronisation field.
const SYNC: [u8; SYNC_LEN] = [0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0];

/// MODE in the header.
const MODE_1: u8 = 1;

/// The parts of a sector that a command asks for, in the order in which they are on the disc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) sync: bool,
    pub(super) header: bool,
    pub(super) user: bool,
    pub(super) edc_ecc: bool,
}

impl Parts {
    /// Only the user data.
    pub(super) const USER: Self = Self { sync: false, header: false, user: true, edc_ecc: false };

    /// Returns how many bytes of each sector they are.
    pub(super) const fn len(self) -> usize {
        let mut len = 0;
        if self.sync {
            len += SYNC_LEN;
        }
        if self.header {
            len += HEADER_LEN;
        }
        if self.user {
            len += USER_LEN;
        }
        if self.edc_ecc {
            len += EDC_ECC_LEN;
        }
        len
    }

    /// Returns whether they follow each other on the disc, and the error correction code is not alone, as
    /// READ CD requires.
    pub(super) const fn are_contiguous(self) -> bool {
        let parts = (self.sync, self.header, self.user, self.edc_ecc);
        !matches!(parts, (true, false, true, _) | (_, _, false, true))
    }

    /// Appends these parts of the sector at `lba`, which has this user data.
    pub(super) fn append(self, lba: u32, user: &[u8], out: &mut Vec<u8>) {
        let header = header(lba);
        if self.sync {
            out.extend_from_slice(&SYNC);
        }
        if self.header {
            out.extend_from_slice(&header);
        }
        if self.user {
            out.extend_from_slice(user);
        }
        if self.edc_ecc {
            out.extend_from_slice(&edc_ecc(header, user));
        }
    }
}

/// Returns the header: the address in minutes, seconds and frames as binary coded decimals, and the mode.
fn header(lba: u32) -> [u8; HEADER_LEN] {
    let [minutes, seconds, frames] = msf(lba).map(|value| ((value / 10 % 10) << 4) | (value % 10));
    [minutes, seconds, frames, MODE_1]
}

/// Returns the error detection code, the zeros and the error correction code of a sector.
fn edc_ecc(header: [u8; HEADER_LEN], user: &[u8]) -> Vec<u8> {
    let code = edc(SYNC.iter().chain(&header).chain(user));
    // What the error correction code covers begins with the header.
    let mut covered = Vec::with_capacity(HEADER_LEN + USER_LEN + EDC_ECC_LEN);
    covered.extend_from_slice(&header);
    covered.extend_from_slice(user);
    covered.extend_from_slice(&code.to_le_bytes());
    covered.extend_from_slice(&[0; 8]);
    // P: 86 columns of 24 bytes; Q: 52 diagonals of 43 bytes, which cross P.
    let p = parity(&covered, 86, 24, |column| column, 86);
    covered.extend_from_slice(&p);
    let q = parity(&covered, 52, 43, |diagonal| diagonal / 2 * 86 + diagonal % 2, 88);
    covered.extend_from_slice(&q);
    covered.split_off(HEADER_LEN + USER_LEN)
}

/// Returns the error detection code: a CRC with the polynomial (x^16 + x^15 + x^2 + 1)(x^16 + x^2 + x + 1),
/// the lowest bit first.
fn edc<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    const POLYNOMIAL: u32 = 0xd801_8001;
    bytes.fold(0, |code, byte| {
        (0..8).fold(
            code ^ u32::from(*byte),
            |code, _| {
                if code & 1 == 1 { code >> 1 ^ POLYNOMIAL } else { code >> 1 }
            },
        )
    })
}

/// Returns the two parity bytes of `words` code words, first the first byte of each, then the second. Word
/// `n` has `len` bytes: the one at `first(n)`, and those that follow at a distance of `step`, modulo the
/// number of bytes that the code covers.
fn parity(data: &[u8], words: usize, len: usize, first: fn(usize) -> usize, step: usize) -> Vec<u8> {
    /// The inverse of 3, which is α + 1.
    const INVERSE_OF_3: u8 = 0xf4;
    let covered = words * len;
    let word = |number: usize| {
        let bytes = (0..len).map(|at| data.get((first(number) + at * step) % covered).copied().unwrap_or(0));
        let (weighted, sum) =
            bytes.fold((0, 0), |(weighted, sum), byte| (times(weighted ^ byte, 2), sum ^ byte));
        let a = times(times(weighted, 2) ^ sum, INVERSE_OF_3);
        (a, a ^ sum)
    };
    let pairs: Vec<(u8, u8)> = (0..words).map(word).collect();
    pairs.iter().map(|(a, _)| *a).chain(pairs.iter().map(|(_, b)| *b)).collect()
}

/// Multiplies in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1.
fn times(a: u8, b: u8) -> u8 {
    let (product, _) = (0..8).fold((0, a), |(product, shifted), bit| {
        let product = if b >> bit & 1 == 1 { product ^ shifted } else { product };
        (product, shifted << 1 ^ if shifted & 0x80 == 0 { 0 } else { 0x1d })
    });
    product
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// Every part of a sector.
    const WHOLE: Parts = Parts { sync: true, header: true, user: true, edc_ecc: true };

    fn sector(lba: u32, seed: u32) -> Vec<u8> {
        let user: Vec<u8> = (0..2048_u32).map(|at| (at.wrapping_mul(seed) >> 3).to_le_bytes()[0]).collect();
        let mut out = Vec::new();
        WHOLE.append(lba, &user, &mut out);
        out
    }

    #[test]
    fn a_sector_has_its_parts_in_order() {
        let bytes = sector(16, 12345);
        assert_eq!((bytes.len(), WHOLE.len()), (2352, 2352));
        assert_eq!(bytes[..12], SYNC);
        assert_eq!(bytes[12..16], [0x00, 0x02, 0x16, 0x01], "LBA 16 is frame 16 of second 2");
        assert_eq!(bytes[2068..2076], [0; 8]);
    }

    /// The remainder of a CRC over data with its code is zero.
    #[test]
    fn the_error_detection_code_divides_the_sector() {
        for seed in [1, 77, 99_991] {
            let bytes = sector(449_000, seed);
            assert_eq!(edc(bytes[..2068].iter()), 0);
        }
    }

    /// Each code word, parity included, is a zero of both rows of the parity check matrix (ECMA-130 annex A).
    #[test]
    fn every_code_word_has_no_syndrome() {
        let power = |exponent: usize| (0..exponent).fold(1, |value, _| times(value, 2));
        let check = |word: &[u8]| {
            let sum = word.iter().fold(0, |sum, byte| sum ^ byte);
            let last = word.len() - 1;
            let weighted =
                word.iter().enumerate().fold(0, |sum, (at, byte)| sum ^ times(*byte, power(last - at)));
            assert_eq!((sum, weighted), (0, 0));
        };
        for (lba, seed) in [(0, 3), (5000, 0x9e37_79b9), (123_456, 0)] {
            let whole = sector(lba, seed);
            let body = &whole[12..];
            for column in 0..86 {
                let word: Vec<u8> = (0..26).map(|row| body[column + 86 * row]).collect();
                check(&word);
            }
            for diagonal in 0..52 {
                let first = diagonal / 2 * 86 + diagonal % 2;
                let mut word: Vec<u8> = (0..43).map(|at| body[(first + at * 88) % 2236]).collect();
                word.extend([body[2236 + diagonal], body[2236 + 52 + diagonal]]);
                check(&word);
            }
        }
    }

    #[test]
    fn only_parts_that_follow_each_other_can_be_read_together() {
        let parts = |bits: u8| Parts {
            sync: bits & 8 != 0,
            header: bits & 4 != 0,
            user: bits & 2 != 0,
            edc_ecc: bits & 1 != 0,
        };
        let legal: Vec<u8> = (0..16).filter(|bits| parts(*bits).are_contiguous()).collect();
        assert_eq!(
            legal,
            vec![0b0000, 0b0010, 0b0011, 0b0100, 0b0110, 0b0111, 0b1000, 0b1100, 0b1110, 0b1111]
        );
    }
}
