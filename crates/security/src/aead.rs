//! Authenticated encryption of records: AES-256-GCM (NIST SP 800-38D) and ChaCha20-Poly1305 (RFC 8439), both
//! with a key of 32 bytes, a nonce of 12 bytes and a tag of 16 bytes.
//!
//! The nonce of a record is the IV of its key, whose last 8 bytes are XORed with the record number (as in RFC
//! 8446 §5.3). A record number used twice under one key would reveal what authenticates the records, so the
//! caller must use each number once. The ciphers are AWS-LC's.

use core::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::key_schedule::Secret;

/// The length of an authentication tag, in bytes.
pub const TAG_LEN: usize = 16;
/// The length of a key, in bytes.
pub const KEY_LEN: usize = 32;
/// The length of an IV, in bytes.
pub const IV_LEN: usize = 12;

/// An AEAD algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// AES-256-GCM, the faster one where the processor has instructions for AES.
    Aes256Gcm,
    /// ChaCha20-Poly1305, the faster one on other processors.
    ChaCha20Poly1305,
}

/// A key and the IV from which its nonces are made. Dropping it erases the key.
pub struct Cipher {
    key: LessSafeKey,
    iv: [u8; IV_LEN],
}

impl Cipher {
    /// Derives the key for the label `key` and the IV for the label `iv` from `secret`.
    #[allow(clippy::expect_used, reason = "both algorithms take a key of 32 bytes")]
    pub fn derive(algorithm: Algorithm, secret: &Secret, key: &str, iv: &str) -> Self {
        let algorithm = match algorithm {
            Algorithm::Aes256Gcm => &AES_256_GCM,
            Algorithm::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let bytes = secret.derive::<KEY_LEN>(key);
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &*bytes).expect("32 bytes"));
        Self { key, iv: *secret.derive::<IV_LEN>(iv) }
    }

    /// Encrypts `content` in place and returns the tag over it and over `authenticated`, which stays
    /// readable. `number` must be new under this key.
    ///
    /// Returns `None` only if `content` is longer than the algorithm allows: 64 GiB.
    pub fn seal(&self, number: u64, authenticated: &[u8], content: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let tag = self
            .key
            .seal_in_place_separate_tag(self.nonce(number), Aad::from(authenticated), content)
            .ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Encrypts `content` into `out`, which is as long, and then `rest` into `rest_and_tag`, which is as long
    /// as `rest` and a tag. One tag, at the end, covers both and `authenticated`. `number` must be new under
    /// this key.
    ///
    /// Returns `None`, and encrypts nothing, if a length is wrong.
    pub fn seal_into(
        &self,
        number: u64,
        authenticated: &[u8],
        (content, out): (&[u8], &mut [u8]),
        (rest, rest_and_tag): (&[u8], &mut [u8]),
    ) -> Option<()> {
        let (nonce, authenticated) = (self.nonce(number), Aad::from(authenticated));
        self.key.seal_out_of_place_scatter(nonce, authenticated, content, out, rest, rest_and_tag).ok()
    }

    /// Checks `tag`, and decrypts `content` in place. Returns `None`, and destroys `content`, if the tag does
    /// not match.
    pub fn open(&self, number: u64, authenticated: &[u8], tag: &[u8], content: &mut [u8]) -> Option<()> {
        self.key
            .open_in_place_separate_tag(self.nonce(number), Aad::from(authenticated), tag, content)
            .ok()
            .map(|_| ())
    }

    /// Checks `tag`, and decrypts `content` into `out`, which is as long. Returns `None`, and leaves nothing
    /// of use in `out`, if the tag does not match.
    pub fn open_into(
        &self,
        number: u64,
        authenticated: &[u8],
        tag: &[u8],
        (content, out): (&[u8], &mut [u8]),
    ) -> Option<()> {
        let (nonce, authenticated) = (self.nonce(number), Aad::from(authenticated));
        self.key.open_separate_gather(nonce, authenticated, content, tag, out).ok()
    }

    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce.iter_mut().skip(IV_LEN - 8).zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALGORITHMS: [Algorithm; 2] = [Algorithm::Aes256Gcm, Algorithm::ChaCha20Poly1305];

    fn cipher(algorithm: Algorithm) -> Cipher {
        Cipher::derive(algorithm, &Secret::extract("test ", &[1], &[2]), "key", "iv")
    }

    #[test]
    fn opens_what_it_sealed_under_the_same_number_and_nothing_else() {
        for algorithm in ALGORITHMS {
            let cipher = cipher(algorithm);
            let mut content = *b"content";
            let tag = cipher.seal(7, b"head", &mut content).unwrap();
            assert_ne!(&content, b"content");
            let open = |number, head: &[u8], tag: &[u8], mut content: [u8; 7]| {
                cipher.open(number, head, tag, &mut content).map(|()| content)
            };
            assert_eq!(open(7, b"head", &tag, content), Some(*b"content"));
            assert_eq!(open(8, b"head", &tag, content), None);
            assert_eq!(open(7, b"heap", &tag, content), None);
            assert_eq!(open(7, b"head", &tag[..15], content), None);
            assert_eq!(open(7, b"head", &[0; 16], content), None);
            content[6] ^= 1;
            assert_eq!(open(7, b"head", &tag, content), None);
        }
    }

    #[test]
    fn from_one_buffer_into_another_gives_the_same_as_in_place() {
        for algorithm in ALGORITHMS {
            let cipher = cipher(algorithm);
            let content: [u8; 100] = core::array::from_fn(|at| u8::try_from(at).unwrap());
            let mut in_place = content;
            let tag = cipher.seal(7, b"head", &mut in_place).unwrap();
            for cut in [0, 1, 16, 97, 100] {
                let (front, rest) = content.split_at(cut);
                let (mut out, mut rest_and_tag) = ([0; 100], [0; 100 + TAG_LEN]);
                let ends = (&mut out[..cut], &mut rest_and_tag[..100 - cut + TAG_LEN]);
                cipher.seal_into(7, b"head", (front, ends.0), (rest, ends.1)).unwrap();
                assert_eq!(out[..cut], in_place[..cut], "{cut}");
                assert_eq!(rest_and_tag[..100 - cut], in_place[cut..], "{cut}");
                assert_eq!(rest_and_tag[100 - cut..][..TAG_LEN], tag, "{cut}");
            }
            let mut out = [0; 100];
            assert_eq!(cipher.open_into(7, b"head", &tag, (&in_place, &mut out)), Some(()));
            assert_eq!(out, content);
            assert_eq!(cipher.open_into(8, b"head", &tag, (&in_place, &mut out)), None);
            assert_ne!(out, content);
            assert_eq!(cipher.open_into(7, b"head", &tag, (&in_place, &mut out[1..])), None);
            assert_eq!(cipher.seal_into(7, b"head", (&content, &mut out[1..]), (&[], &mut [0; 16])), None);
            assert_eq!(cipher.seal_into(7, b"head", (&content, &mut out), (&[], &mut [0; 17])), None);
        }
    }

    #[test]
    fn what_one_algorithm_sealed_the_other_does_not_open() {
        let [aes, chacha] = ALGORITHMS.map(cipher);
        let tag = aes.seal(1, b"head", &mut []).unwrap();
        assert_eq!(chacha.open(1, b"head", &tag, &mut []), None);
    }
}
