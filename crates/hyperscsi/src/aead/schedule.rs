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

use security::aead::{Algorithm, Cipher};
use security::key_schedule::Secret;

use crate::Role;

/// The beginning of every label.
pub(super) const PROTOCOL: &str = "hyperscsi 2 ";
/// The label of the secret of the next generation.
pub(super) const UPDATE: &str = "update";

/// The first secrets of both directions of a session. Dropping them erases them.
#[derive(Clone)]
pub struct SessionKeys {
    initiator: Secret,
    target: Secret,
}

impl SessionKeys {
    /// Derives the secrets from the result of the key exchange and from the transcript of its messages.
    pub fn from_secret(secret: &[u8], transcript: &[u8; 64]) -> Self {
        let prk = Secret::extract(PROTOCOL, transcript, secret);
        Self { initiator: prk.expand("initiator to target"), target: prk.expand("target to initiator") }
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

/// The ciphers of one generation of one direction. No key serves both levels.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) integrity: Cipher,
    pub(super) encrypt: Cipher,
}

impl Generation {
    /// Derives the ciphers from the secret of their generation.
    pub(super) fn of(secret: &Secret) -> Self {
        let cipher = |key, iv| Cipher::derive(Algorithm::Aes256Gcm, secret, key, iv);
        Self {
            integrity: cipher("integrity key", "integrity iv"),
            encrypt: cipher("encrypt key", "encrypt iv"),
        }
    }
}
