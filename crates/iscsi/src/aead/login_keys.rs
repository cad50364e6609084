//! From a login to the keys of its connection: the values that confirm its transcript, and the key schedule.
//! [`crate::login::transcript`] makes the transcript.
//!
//! ```text
//! login key               = Extract(salt = context, OPAQUE's session key)
//! confirmation key[side]  = Expand(login key, "iscsi aead 1 confirm " side, 64)
//! main key                = Expand(login key, "iscsi aead 1 main", 64)
//! connection key          = Extract(salt = transcript of the whole login, main key)
//! secret[direction, 0]    = Expand(connection key, "iscsi aead 1 " direction, 64)
//! secret[direction, g+1]  = Expand(secret[direction, g], "iscsi aead 1 update", 64)
//! key[direction, g]       = Expand(secret[direction, g], "iscsi aead 1 key", 32)
//! iv[direction, g]        = Expand(secret[direction, g], "iscsi aead 1 iv", 12)
//! ```

use security::key_schedule::Secret;
use security::opaque::SessionKey;
use security::random::mac;

use super::{AeadDigest, Decryptor, Direction, Encryptor, GenerationLimits, RecordKeys};
use crate::keys::Role;

/// The length of a confirmation, in bytes.
pub const CONFIRMATION_LEN: usize = 32;

/// The keys of a login in which the password was proven. Dropping them erases them.
#[derive(Clone, Debug)]
pub struct LoginKeys(Secret);

impl LoginKeys {
    /// Derives the keys from the result of the key exchange and from its context.
    pub fn new(session_key: &SessionKey, context: &[u8; 64]) -> Self {
        Self(Secret::extract(PROTOCOL, context, &**session_key))
    }

    /// Returns the value by which `sender` confirms a transcript. The receiver must compare it in constant
    /// time.
    pub fn confirmation(&self, sender: Role, transcript: &[u8; 64]) -> [u8; CONFIRMATION_LEN] {
        let key = self.0.derive::<64>(match sender {
            Role::Initiator => "confirm initiator",
            Role::Target => "confirm target",
        });
        let whole = mac(&key, &[transcript]);
        whole.first_chunk().copied().unwrap_or([0; CONFIRMATION_LEN])
    }

    /// Derives the keys of the connection from the transcript of the whole login.
    pub fn connection_keys(&self, transcript: &[u8; 64]) -> ConnectionKeys {
        let main = self.0.expand("main");
        ConnectionKeys(Secret::extract(PROTOCOL, transcript, main.secret_bytes()))
    }
}

/// The keys of both directions of a connection. Dropping them erases them.
#[derive(Clone, Debug)]
pub struct ConnectionKeys(Secret);

impl ConnectionKeys {
    /// Returns what seals the PDUs that `role` sends.
    pub fn encryptor(&self, role: Role, digest: AeadDigest, limits: GenerationLimits) -> Encryptor {
        Encryptor(Direction::new(self.secret_of(role), digest, limits))
    }

    /// Returns what opens the PDUs that `role` receives.
    pub fn decryptor(&self, role: Role, digest: AeadDigest, limits: GenerationLimits) -> Decryptor {
        Decryptor(Direction::new(self.secret_of(role.peer()), digest, limits))
    }

    /// Returns what protects the PDUs that `role` sends and receives.
    pub fn record_keys(&self, role: Role, digest: AeadDigest, limits: GenerationLimits) -> RecordKeys {
        let (encryptor, decryptor) =
            (self.encryptor(role, digest, limits), self.decryptor(role, digest, limits));
        RecordKeys { digest, encryptor, decryptor }
    }

    /// Returns the first secret of the PDUs that `sender` sends.
    pub(super) fn secret_of(&self, sender: Role) -> Secret {
        self.0.expand(match sender {
            Role::Initiator => "initiator to target",
            Role::Target => "target to initiator",
        })
    }
}

/// The beginning of every label.
pub(super) const PROTOCOL: &str = "iscsi aead 1 ";
