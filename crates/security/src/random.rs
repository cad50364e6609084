//! A random generator for secrets, challenges and names. The driver supplies the blocks of entropy.
//!
//! The generator is HMAC_DRBG of NIST SP 800-90A (§10.1.2) with SHA-512. Earlier output cannot be computed
//! from the state, and mixing a block of entropy in can only make the state better.

use core::fmt;

use hmac::{Hmac, KeyInit, Mac as _};
use opaque_ke::rand::{CryptoRng, Error, RngCore};
use sha2::Sha512;
use zeroize::Zeroizing;

/// A generator of random bytes.
pub struct HmacDrbg {
    key: Zeroizing<[u8; 64]>,
    value: Zeroizing<[u8; 64]>,
    /// How many blocks of entropy were mixed in.
    blocks: u64,
}

impl HmacDrbg {
    /// Makes a generator without entropy. It must not be used for secrets before [`Self::reseed`].
    pub fn empty() -> Self {
        Self { key: Zeroizing::new([0; 64]), value: Zeroizing::new([1; 64]), blocks: 0 }
    }

    /// Makes a generator from a block that comes fresh from the operating system's generator.
    pub fn new(entropy: [u8; 32]) -> Self {
        let mut random = Self::empty();
        random.reseed(entropy);
        random
    }

    /// Returns whether any entropy was mixed in. Without it the output is not secret.
    pub const fn is_ready(&self) -> bool {
        self.blocks > 0
    }

    /// Mixes a fresh block of entropy in.
    pub fn reseed(&mut self, entropy: [u8; 32]) {
        self.mix(&*Zeroizing::new(entropy));
        self.blocks += 1;
    }

    /// Returns the next `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }

    /// Fills `out` with the next bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(64) {
            self.value = Zeroizing::new(mac(&self.key, &[&*self.value]));
            for (to, from) in part.iter_mut().zip(self.value.iter()) {
                *to = *from;
            }
        }
        self.mix(&[]);
    }

    fn mix(&mut self, data: &[u8]) {
        self.key = Zeroizing::new(mac(&self.key, &[&*self.value, &[0], data]));
        self.value = Zeroizing::new(mac(&self.key, &[&*self.value]));
        if !data.is_empty() {
            self.key = Zeroizing::new(mac(&self.key, &[&*self.value, &[1], data]));
            self.value = Zeroizing::new(mac(&self.key, &[&*self.value]));
        }
    }
}

impl fmt::Debug for HmacDrbg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

impl RngCore for HmacDrbg {
    fn next_u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    fn next_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        self.fill(out);
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        self.fill(out);
        Ok(())
    }
}

impl CryptoRng for HmacDrbg {}

/// Returns the HMAC-SHA-512 of the concatenated `parts`.
pub fn mac(key: &[u8; 64], parts: &[&[u8]]) -> [u8; 64] {
    // A key shorter than a block of the hash is padded with zeros (RFC 2104 §2).
    let mut block = Zeroizing::new([0; 128]);
    for (to, from) in block.iter_mut().zip(key) {
        *to = *from;
    }
    let mut mac = Hmac::<Sha512>::new((&*block).into());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> alloc::string::String {
        bytes.iter().map(|byte| alloc::format!("{byte:02x}")).collect()
    }

    #[test]
    fn is_the_generator_of_the_standard() {
        // Computed independently, with Python's `hmac` and the text of §10.1.2.
        let mut random = HmacDrbg::new(core::array::from_fn(|at| u8::try_from(at).unwrap()));
        assert!(random.is_ready());
        assert_eq!(hex(&random.bytes::<80>()), VECTOR_1);
        random.reseed([0xa5; 32]);
        assert_eq!(hex(&random.bytes::<16>()), VECTOR_2);
        assert!(!HmacDrbg::empty().is_ready());
    }

    const VECTOR_1: &str = "76d8c2e11138023e4f3dffb2f17fb1c2b8402c92e376568ba01156da764c66b19c339f72ca07362f167bce65c78e7e9fd2a391216669c2f7d441d85714aa21d2f836535bf00bd7f38ffcf15fc92f3461";
    const VECTOR_2: &str = "8019d35373aa5dea459c5222943f20aa";
}
