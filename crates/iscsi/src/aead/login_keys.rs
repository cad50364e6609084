//! From a login to the keys of its connection: the transcript of the Login PDUs, the confirmations by which
//! both sides check that they have the same transcript, and the key schedule.
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

use core::fmt;

use security::key_schedule::Secret;
use security::opaque::SessionKey;
use security::random::mac;
use sha2::{Digest as _, Sha512};

use super::{AeadDigest, Decryptor, Direction, Encryptor, GenerationLimits};
use crate::keys::Role;
use crate::name::Tsih;

/// The key whose value confirms the transcript. It is the last pair of the text of the last Login Request and
/// of the last Login Response.
pub const CONFIRMATION_KEY: &str = "X-org.targe.confirm";
/// The length of a confirmation, in bytes.
pub const CONFIRMATION_LEN: usize = 32;
/// The length of a confirmation's pair in the text, in bytes: key, `=0x`, hexadecimal digits, zero byte.
pub const CONFIRMATION_PAIR_LEN: usize = CONFIRMATION_KEY.len() + 3 + 2 * CONFIRMATION_LEN + 1;

/// A hash over the Login PDUs of a connection, from the first one on, in the order in which they are sent.
#[derive(Clone)]
pub struct LoginTranscript(Sha512);

impl LoginTranscript {
    /// Returns the transcript of no PDUs.
    pub fn new() -> Self {
        Self(Sha512::new_with_prefix(TRANSCRIPT))
    }

    /// Adds a Login PDU: those bytes of its header that count, and its text.
    pub(crate) fn add(&mut self, header: &[u8], text: &[u8]) {
        self.0.update(header);
        self.0.update(text);
    }

    /// Returns the hash of the PDUs so far. After the request that completes the text with OPAQUE's first
    /// message, it is the context of the key exchange.
    pub fn digest(&self) -> [u8; 64] {
        self.0.clone().finalize().into()
    }

    /// Returns the hash of the PDUs so far and of one whose text ends with the pair of a confirmation,
    /// without that pair. Returns `None` if the text is too short for it.
    pub(crate) fn without_confirmation(&self, header: &[u8], text: &[u8]) -> Option<[u8; 64]> {
        let text = text.get(..text.len().checked_sub(CONFIRMATION_PAIR_LEN)?)?;
        Some(self.0.clone().chain_update(header).chain_update(text).finalize().into())
    }

    /// Returns the hash of the whole login, which led to the session with this TSIH.
    pub fn finish(self, tsih: Tsih) -> [u8; 64] {
        self.0.chain_update(tsih.0.to_be_bytes()).finalize().into()
    }
}

impl Default for LoginTranscript {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LoginTranscript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginTranscript")
    }
}

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

    /// Returns the first secret of the PDUs that `sender` sends.
    pub(super) fn secret_of(&self, sender: Role) -> Secret {
        self.0.expand(match sender {
            Role::Initiator => "initiator to target",
            Role::Target => "target to initiator",
        })
    }
}

/// The beginning of every label.
const PROTOCOL: &str = "iscsi aead 1 ";
/// The beginning of every transcript.
const TRANSCRIPT: &[u8] = b"iscsi aead 1 login";
