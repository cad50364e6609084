//! AES-256 in XTS mode (IEEE Std 1619): encrypts each data unit in place under its number.
//!
//! A data unit is a whole number of cipher blocks here, so there is no ciphertext stealing.

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};

use super::MediaKey;

/// How many blocks the cipher gets in one call: processors work on several blocks at a time.
const LANES: usize = 32;

/// The cipher with both halves of a key.
pub(super) struct Xts {
    data: Aes256,
    tweak: Aes256,
}

impl Xts {
    pub(super) fn new(key: &MediaKey) -> Self {
        let [data, tweak] = key.halves();
        Self { data: Aes256::new(&(*data).into()), tweak: Aes256::new(&(*tweak).into()) }
    }

    pub(super) fn encrypt(&self, number: u64, unit: &mut [u8]) {
        self.each_batch(number, unit, |blocks| self.data.encrypt_blocks(blocks));
    }

    pub(super) fn decrypt(&self, number: u64, unit: &mut [u8]) {
        self.each_batch(number, unit, |blocks| self.data.decrypt_blocks(blocks));
    }

    fn each_batch(&self, number: u64, unit: &mut [u8], work: impl Fn(&mut [Block])) {
        let mut first = Block::from(u128::from(number).to_le_bytes());
        self.tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.into());
        let (blocks, _) = Block::slice_as_chunks_mut(unit);
        for batch in blocks.chunks_mut(LANES) {
            let start = tweak;
            tweak = mask(batch, tweak);
            work(batch);
            mask(batch, start);
        }
    }
}

/// XORs the blocks with successive tweaks, starting with `tweak`, and returns the tweak after the last.
fn mask(blocks: &mut [Block], mut tweak: u128) -> u128 {
    for block in blocks {
        let bytes: [u8; 16] = (*block).into();
        *block = (u128::from_le_bytes(bytes) ^ tweak).to_le_bytes().into();
        tweak = doubled(tweak);
    }
    tweak
}

/// Multiplies a tweak by the primitive element of the field (IEEE Std 1619 §5.2).
const fn doubled(tweak: u128) -> u128 {
    let carry = if tweak >> 127 == 1 { 0x87 } else { 0 };
    (tweak << 1) ^ carry
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.chars().filter_map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
        digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect()
    }

    /// Checks vectors 10 to 14 of IEEE Std 1619-2007, annex B: 512 bytes 00 01 … ff 00 01 … under one key.
    /// The table holds the first and the last cipher block of each. OpenSSL computes the same.
    #[test]
    fn the_vectors_of_the_standard_come_out() {
        let key = hex("2718281828459045235360287471352662497757247093699959574966967627
             3141592653589793238462643383279502884197169399375105820974944592");
        let xts = Xts::new(&MediaKey::new(*key.as_chunks().0.first_chunk().unwrap()));
        let plain: Vec<u8> = (0..512).map(|at| u8::try_from(at % 256).unwrap()).collect();
        for (number, first, last) in [
            (0xff, "1c3b3a102f770386e4836c99e370cf9b", "c4f36ffda9fcea70b9c6e693e148c151"),
            (0xffff, "77a31251618a15e6b92d1d66dffe7b50", "a4f9e27b42af8100cb9d59cef9645803"),
            (0xff_ffff, "e387aaa58ba483afa7e8eb469778317e", "2263a1eef52dd6888c309f5a7d712826"),
            (0xffff_ffff, "bf53d2dade78e822a4d949a9bc6766b0", "4c82f335abb152c4a93411373aaa8220"),
            (0xff_ffff_ffff, "64497e5a831e4a932c09be3e5393376d", "d609d273ad5b0d59631c531f6a0a57b9"),
        ] {
            let mut unit = plain.clone();
            xts.encrypt(number, &mut unit);
            assert_eq!((&unit[..16], &unit[496..]), (&hex(first)[..], &hex(last)[..]), "{number:x}");
            xts.decrypt(number, &mut unit);
            assert_eq!(unit, plain);
        }
    }
}
