//! AES-256-GCM (NIST SP 800-38D) with a key that a user chose and nonces that the caller makes: for data that
//! are stored, where [`crate::aead`] is for records that are sent.

use core::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::aead::{IV_LEN, KEY_LEN, TAG_LEN};

/// The length of a key check value, in bytes.
pub const CHECK_LEN: usize = 8;

/// What the key check value is the tag of.
const CHECKED: &[u8] = b"targe key check";

/// The nonce of the key check value. A random nonce is the same with a probability of 2^-96.
const CHECK_NONCE: [u8; IV_LEN] = [0xff; IV_LEN];

/// A key. Dropping it erases it.
pub struct RecordKey {
    cipher: LessSafeKey,
    bytes: Zeroizing<[u8; KEY_LEN]>,
}

impl RecordKey {
    /// Takes a key over. The caller erases its own copy.
    #[allow(clippy::expect_used, reason = "the algorithm takes a key of 32 bytes")]
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes"));
        Self { cipher, bytes: Zeroizing::new(*key) }
    }

    /// Returns the key, to pass it to another process. It must not be stored.
    pub fn key_bytes(&self) -> &[u8; KEY_LEN] {
        &self.bytes
    }

    /// Encrypts `content` in place and returns the tag over it and over `authenticated`, which stays
    /// readable. `nonce` must be new under this key: for random ones, up to 2^32 of them are.
    ///
    /// Returns `None` only if `content` is longer than the algorithm allows: 64 GiB.
    pub fn seal(
        &self,
        nonce: [u8; IV_LEN],
        authenticated: &[u8],
        content: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.cipher.seal_in_place_separate_tag(nonce, Aad::from(authenticated), content).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Checks `tag`, and decrypts `content` in place. Returns `None`, and destroys `content`, if the tag does
    /// not match.
    pub fn open(
        &self,
        nonce: [u8; IV_LEN],
        authenticated: &[u8],
        tag: &[u8; TAG_LEN],
        content: &mut [u8],
    ) -> Option<()> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.cipher.open_in_place_separate_tag(nonce, Aad::from(authenticated), tag, content).ok().map(|_| ())
    }

    /// Returns a value that tells a wrong key from damaged data, and tells nothing else of the key.
    pub fn check_value(&self) -> [u8; CHECK_LEN] {
        let tag = self.seal(CHECK_NONCE, CHECKED, &mut []).unwrap_or_default();
        let mut check = [0; CHECK_LEN];
        for (to, from) in check.iter_mut().zip(tag) {
            *to = from;
        }
        check
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        core::array::from_fn(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).unwrap())
    }

    #[test]
    fn is_the_cipher_of_the_standard() {
        // Test case 16 of the GCM specification of McGrew and Viega.
        let key = RecordKey::new(&hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"));
        let nonce = hex("cafebabefacedbaddecaf888");
        let authenticated: [u8; 20] = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let plain: [u8; 60] = hex(concat!(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c9595680953",
            "2fcf0e2449a6b525b16aedf5aa0de657ba637b39"
        ));
        let mut content = plain;
        let tag = key.seal(nonce, &authenticated, &mut content).unwrap();
        assert_eq!(tag, hex("76fc6ece0f4e1768cddf8853bb2d551b"));
        assert_eq!(content[..8], hex::<8>("522dc1f099567d07"));
        assert_eq!(key.open(nonce, &authenticated, &tag, &mut content), Some(()));
        assert_eq!(content, plain);
        let mut content = plain;
        assert_eq!(key.open(nonce, &authenticated, &tag, &mut content), None);
    }

    #[test]
    fn the_check_value_belongs_to_the_key() {
        let of = |byte| RecordKey::new(&[byte; 32]).check_value();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_eq!(alloc::format!("{:?}", RecordKey::new(&[1; 32])), "RecordKey(…)");
    }
}
