//! What the transports share to protect a session: the password login, the key schedule, the ciphers of
//! records, and a random generator.
//!
//! | module | content |
//! |---|---|
//! | [`opaque`] | passwords, the records that targets keep of them, and the key exchange that proves them |
//! | [`password_file`] | the text in which a target stores these records |
//! | [`guess_limit`] | how fast passwords and tokens can be guessed, and who waits for whom |
//! | [`key_schedule`] | from a session key to the keys of records: HKDF with one label for each purpose |
//! | [`aead`] | AES-256-GCM and ChaCha20-Poly1305, with a nonce that follows from a record number |
//! | [`record_key`] | AES-256-GCM with a key that a user chose, for data that are stored |
//! | [`random`] | HMAC_DRBG, and HMAC-SHA-512 |
//! | [`secret_access`] | who may have access to a file with a secret in it |
//! | [`secret_text`] | the bytes of a secret in a file |
//!
//! A transport decides what a record is, how records are numbered, when keys change, and which messages the
//! key exchange is bound to.
//!
//! **Invariant:** this crate knows no PDUs and no frames. It does no I/O. Its callers pass in all random
//! bytes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aead;
pub mod guess_limit;
pub mod key_schedule;
pub mod opaque;
pub mod password_file;
pub mod random;
pub mod record_key;
pub mod secret_access;
pub mod secret_text;

use core::fmt;

/// The protection of one command or frame, and the least protection that a logical unit asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Against accidental damage only.
    #[default]
    None = 0,
    /// Against modification by an attacker: an authentication tag. The content stays readable.
    Integrity = 1,
    /// The same, and the content is encrypted.
    Encrypt = 2,
}

impl Level {
    /// Returns the level with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::None,
            1 => Self::Integrity,
            2 => Self::Encrypt,
            _ => return None,
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Encrypt => "encrypt",
        })
    }
}
