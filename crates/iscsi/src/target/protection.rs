//! The protection of connections and sessions against an attacker on the network.

use security::Level;

use crate::negotiate::{ConnectionParameters, Digest};

/// What protects a connection. A session has the protection of its first connection, and no other one has a
/// lower level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing, or a CRC, which anyone can compute.
    None,
    /// TLS below iSCSI.
    Tls,
    /// The digest that was negotiated for headers and data.
    Digest(Digest),
}

impl Protection {
    /// Returns the protection of a connection from what is below it and what it negotiated.
    pub fn of_connection(has_tls: bool, parameters: &ConnectionParameters) -> Self {
        // An AEAD digest is that of headers and of data (docs/iscsi-aead.md §5).
        let digest = parameters.header_digest;
        match digest_level(digest).min(digest_level(parameters.data_digest)) {
            _ if has_tls => Self::Tls,
            Level::None => Self::None,
            Level::Integrity | Level::Encrypt => Self::Digest(digest),
        }
    }

    /// Returns the level.
    pub const fn level(self) -> Level {
        match self {
            Self::None => Level::None,
            Self::Tls => Level::Encrypt,
            Self::Digest(digest) => digest_level(digest),
        }
    }
}

/// Returns the protection of a digest. A CRC protects against accidental damage only.
const fn digest_level(digest: Digest) -> Level {
    match digest {
        Digest::None | Digest::Crc32c => Level::None,
        Digest::Aead(digest) => digest.level(),
    }
}
