//! AES-128 and AES-256 in XTS mode (IEEE Std 1619): encrypts each data unit in place under its number.
//!
//! A data unit is a whole number of cipher blocks here, so there is no ciphertext stealing.

use aes::cipher::array::Array;
use aes::cipher::consts::U16;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes256, Block};

use super::{KeyHalves, MediaKey};

/// How many blocks the cipher gets in one call: processors work on several blocks at a time.
const LANES: usize = 32;

/// The cipher with both halves of a key.
#[expect(clippy::large_enum_variant, reason = "there is one for each medium, and each sector uses it")]
pub(crate) enum Xts {
    /// AES-128.
    Aes128(Halves<Aes128>),
    /// AES-256.
    Aes256(Halves<Aes256>),
}

/// The ciphers of the data and of the tweaks.
pub(crate) struct Halves<C> {
    data: C,
    tweak: C,
}

impl Xts {
    pub(crate) fn new(key: &MediaKey) -> Self {
        match key.halves() {
            KeyHalves::Aes128(halves) => Self::Aes128(Halves::new(halves)),
            KeyHalves::Aes256(halves) => Self::Aes256(Halves::new(halves)),
        }
    }

    pub(crate) fn encrypt(&self, number: u64, unit: &mut [u8]) {
        match self {
            Self::Aes128(halves) => halves.encrypt(number, unit),
            Self::Aes256(halves) => halves.encrypt(number, unit),
        }
    }

    pub(crate) fn decrypt(&self, number: u64, unit: &mut [u8]) {
        match self {
            Self::Aes128(halves) => halves.decrypt(number, unit),
            Self::Aes256(halves) => halves.decrypt(number, unit),
        }
    }
}

impl<C> Halves<C>
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>,
{
    fn new<const N: usize>([data, tweak]: &[[u8; N]; 2]) -> Self
    where
        Array<u8, C::KeySize>: From<[u8; N]>,
    {
        Self { data: C::new(&(*data).into()), tweak: C::new(&(*tweak).into()) }
    }

    fn encrypt(&self, number: u64, unit: &mut [u8]) {
        self.each_batch(number, unit, |blocks| self.data.encrypt_blocks(blocks));
    }

    fn decrypt(&self, number: u64, unit: &mut [u8]) {
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

    /// Checks vector 4 of IEEE Std 1619-2007, annex B: AES-128, data unit 0.
    #[test]
    fn a_vector_with_the_short_key_comes_out() {
        let key = hex("27182818284590452353602874713526 31415926535897932384626433832795");
        let xts = Xts::new(&MediaKey::from_slice(&key).unwrap());
        let plain: Vec<u8> = (0..512).map(|at| u8::try_from(at % 256).unwrap()).collect();
        let mut unit = plain.clone();
        xts.encrypt(0, &mut unit);
        assert_eq!(unit[..16], hex("27a7479befa1d476489f308cd4cfa6e2"));
        xts.decrypt(0, &mut unit);
        assert_eq!(unit, plain);
    }
}
