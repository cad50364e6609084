//! The key schedule, from the session key to the keys of frames: HKDF (RFC 5869) with SHA-512, with one label
//! for each purpose.
//!
//! ```text
//! PRK                        = Extract(salt = transcript, session key)
//! secret[direction, 0]       = Expand(PRK, "hyperscsi 2 " direction, 64)
//! secret[direction, n + 1]   = Expand(secret[direction, n], "hyperscsi 2 update", 64)
//! key[direction, n, level]   = Expand(secret[direction, n], "hyperscsi 2 " level " key", 32)
//! iv[direction, n, level]    = Expand(secret[direction, n], "hyperscsi 2 " level " iv", 12)
//! ```

use core::fmt;

use aws_lc_rs::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use hkdf::Hkdf;
use sha2::Sha512;
use zeroize::{Zeroize, Zeroizing};

use super::Cipher;
use crate::Role;

/// The first secrets of both directions of a session. Dropping them erases them.
#[derive(Clone)]
pub struct SessionKeys {
    initiator: Secret,
    target: Secret,
}

impl SessionKeys {
    /// Derives the secrets from the result of the key exchange and from the transcript of its messages.
    pub fn from_secret(secret: &[u8], transcript: &[u8; 64]) -> Self {
        let (mut prk, _) = Hkdf::<Sha512>::extract(Some(transcript), secret);
        let keys = Self {
            initiator: expand(&prk, "initiator to target"),
            target: expand(&prk, "target to initiator"),
        };
        prk.as_mut_slice().zeroize();
        keys
    }

    /// Returns the first secret of the frames that `role` sends.
    pub(super) fn secret_of(&self, role: Role) -> Secret {
        match role {
            Role::Initiator => self.initiator.clone(),
            Role::Target => self.target.clone(),
        }
    }
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys(…)")
    }
}

/// The secret from which one generation of one direction is derived.
#[derive(Clone)]
pub(super) struct Secret(Zeroizing<[u8; 64]>);

/// The ciphers of one generation of one direction. No key serves both levels.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) integrity: Cipher,
    pub(super) encrypt: Cipher,
}

impl Secret {
    /// Returns the secret of the next generation.
    pub(super) fn next(&self) -> Self {
        expand(&*self.0, "update")
    }

    /// Derives the ciphers of this generation.
    pub(super) fn generation(&self) -> Generation {
        Generation {
            integrity: self.cipher("integrity key", "integrity iv"),
            encrypt: self.cipher("encrypt key", "encrypt iv"),
        }
    }

    fn cipher(&self, key: &str, iv: &str) -> Cipher {
        let mut nonce = [0; 12];
        self.derive(iv, &mut nonce);
        Cipher { key: self.key(key), iv: nonce }
    }

    #[allow(clippy::expect_used, reason = "a key of 32 bytes is one for AES-256")]
    fn key(&self, label: &str) -> LessSafeKey {
        let mut bytes = Zeroizing::new([0; 32]);
        self.derive(label, &mut *bytes);
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*bytes).expect("32 bytes"))
    }

    /// Fills `out` with the bytes derived for this label.
    pub(super) fn derive(&self, label: &str, out: &mut [u8]) {
        derive(&*self.0, label, out);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

fn expand(prk: &[u8], label: &str) -> Secret {
    let mut out = Zeroizing::new([0; 64]);
    derive(prk, label, &mut *out);
    Secret(out)
}

#[allow(clippy::expect_used, reason = "64 bytes are enough for a PRK and few enough to expand")]
fn derive(prk: &[u8], label: &str, out: &mut [u8]) {
    let hkdf = Hkdf::<Sha512>::from_prk(prk).expect("64 bytes");
    hkdf.expand_multi_info(&[b"hyperscsi 2 ", label.as_bytes()], out).expect("64 bytes at most");
}
