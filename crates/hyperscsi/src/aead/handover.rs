//! The keys of a session that moves to another process (live upgrade).
//!
//! The secret of a generation moves, and both ciphers follow from it. The ciphers that a receiver keeps of the
//! generation before do not move: nobody can derive them from the present secret any more. A late frame of
//! that generation therefore fails its check, changes nothing, and is sent again under the present keys.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use base::time::{Duration, Instant};
use security::key_schedule::{SECRET_LEN, Secret};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::schedule::{Generation, PROTOCOL};
use super::{Decryptor, Encryptor, KEEP_MAX, KeyLimits, OpeningKeys, PN_COUNT, SealingKeys};

/// The keys of both directions. They are as secret as the session's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeysState {
    /// The keys of the frames that this end sends.
    pub send: SendKeysState,
    /// The keys of the frames that this end receives.
    pub receive: ReceiveKeysState,
}

/// The keys of sent frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendKeysState {
    /// The secret of the present generation.
    pub secret: SecretState,
    /// The value of PHASE in frames of this generation.
    pub phase: bool,
    /// How many frames this generation has protected.
    pub frames: u64,
    /// How many bytes this generation has protected.
    pub bytes: u64,
    /// How long ago this generation began, in microseconds; `None` for the first.
    pub updated_us: Option<u64>,
}

/// The keys of received frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveKeysState {
    /// The secret of the present generation.
    pub secret: SecretState,
    /// The value of PHASE in frames of this generation.
    pub phase: bool,
}

/// The secret of one generation of keys, as hexadecimal digits. Dropping it erases it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretState(Zeroizing<[u8; SECRET_LEN]>);

impl SecretState {
    fn of(secret: &Secret) -> Self {
        Self(Zeroizing::new(*secret.secret_bytes()))
    }

    fn secret(&self) -> Secret {
        Secret::from_secret_bytes(PROTOCOL, self.0.clone())
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = |pair: &[u8]| match pair {
            [high, low] if pair.iter().all(u8::is_ascii_hexdigit) => {
                let digit =
                    |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                Some(digit(*high)? << 4 | digit(*low)?)
            }
            _ => None,
        };
        let mut bytes = Zeroizing::new([0; SECRET_LEN]);
        let pairs = text.as_bytes().chunks(2);
        if text.len() != 2 * SECRET_LEN {
            return None;
        }
        for (to, pair) in bytes.iter_mut().zip(pairs) {
            *to = digits(pair)?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Debug for SecretState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretState(…)")
    }
}

impl Serialize for SecretState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nibbles = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = nibbles.filter_map(|nibble| char::from_digit(u32::from(nibble), 16));
        let mut text = Zeroizing::new(String::with_capacity(2 * SECRET_LEN));
        text.extend(digits);
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for SecretState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a secret is 128 hexadecimal digits"))
    }
}

impl Encryptor {
    /// Returns the keys; `None` in a session without keys.
    pub(crate) fn export(&self, now: Instant) -> Option<SendKeysState> {
        let keys = self.keys.as_ref()?;
        Some(SendKeysState {
            secret: SecretState::of(&keys.secret),
            phase: keys.phase,
            frames: keys.frames,
            bytes: keys.bytes,
            updated_us: keys.since.map(|since| micros(now.since(since))),
        })
    }

    /// Makes the encryptor of a session that came from another process. `last` has the last packet number of
    /// each path that was or will be left out: it takes no number up to that.
    pub(crate) fn resume(
        now: Instant,
        state: &SendKeysState,
        limits: KeyLimits,
        last: impl Iterator<Item = (u8, u64)>,
    ) -> Self {
        let secret = state.secret.secret();
        let mut keys = SealingKeys {
            generation: Generation::of(&secret),
            secret,
            phase: state.phase,
            frames: state.frames,
            bytes: state.bytes,
            since: state.updated_us.map(|span| now.before(Duration::from_micros(span))),
            last: [0; 256],
        };
        for (path, count) in last {
            if let Some(last) = keys.last.get_mut(usize::from(path)) {
                *last = count & PN_COUNT;
            }
        }
        Self { keys: Some(Box::new(keys)), limits: KeyLimits::default(), whole: Vec::new() }.limited(limits)
    }
}

impl Decryptor {
    /// Returns the keys; `None` in a session without keys.
    pub(crate) fn export(&self) -> Option<ReceiveKeysState> {
        let keys = self.keys.as_ref()?;
        Some(ReceiveKeysState { secret: SecretState::of(&keys.secret), phase: keys.phase })
    }

    /// Makes the decryptor of a session that came from another process.
    pub(crate) fn resume(state: &ReceiveKeysState) -> Self {
        let secret = state.secret.secret();
        let (generation, phase) = (Generation::of(&secret), state.phase);
        let keys = OpeningKeys { secret, generation, phase, previous: None, next: None, keep: KEEP_MAX };
        Self { keys: Some(Box::new(keys)), forged: 0 }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
