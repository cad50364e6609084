//! The keys and counters of a connection with an AEAD digest, as they move to another process.
//!
//! A record number must never be used twice under one key. So the sender of the old process must not seal
//! anything after its state was taken, and the receiver of the state begins with the next number.

use alloc::string::{String, ToString};
use core::fmt::{self, Write as _};

use security::key_schedule::{SECRET_LEN, Secret};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

use super::login_keys::PROTOCOL;
use super::{AeadDigest, Decryptor, Direction, Encryptor, GenerationLimits, RecordKeys};

/// The record keys of a connection between two PDUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordKeysState {
    /// The name of the digest.
    digest: String,
    /// After so many PDUs and bytes keys are changed, in each direction.
    generation_pdus: u64,
    generation_bytes: u64,
    send: DirectionState,
    receive: DirectionState,
}

/// One direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectionState {
    secret: SecretState,
    /// The number of the last PDU; `None` before the first.
    last_pdu: Option<u64>,
    /// How many PDUs and bytes the present generation has protected.
    used_pdus: u64,
    used_bytes: u64,
}

/// The secret of the present generation, as hexadecimal digits. Dropping it erases it.
#[derive(Clone, PartialEq, Eq)]
struct SecretState(Zeroizing<[u8; SECRET_LEN]>);

/// The highest number of a PDU that is accepted: no connection lasts that long, and record numbers, which are
/// twice as high, stay far below their limit.
const PDU_MAX: u64 = 1 << 60;

/// By how many bytes a generation may exceed its limit: one PDU of the longest kind.
const PDU_BYTES_MAX: u64 = 1 << 25;

impl RecordKeysState {
    /// Returns the state of a connection that sends with one and receives with the other.
    pub(crate) fn of(encryptor: &Encryptor, decryptor: &Decryptor) -> Self {
        let GenerationLimits { pdus, bytes } = encryptor.0.limits;
        Self {
            digest: encryptor.digest().name().to_string(),
            generation_pdus: pdus,
            generation_bytes: bytes,
            send: DirectionState::of(&encryptor.0),
            receive: DirectionState::of(&decryptor.0),
        }
    }

    /// Returns the keys. Returns `None` if the state is not one that [`Self::of`] can return.
    pub(crate) fn keys(&self) -> Option<RecordKeys> {
        let digest = AeadDigest::by_name(&self.digest)?;
        let limits = GenerationLimits { pdus: self.generation_pdus, bytes: self.generation_bytes };
        let most = GenerationLimits::default();
        let are_legal = (1..=most.pdus).contains(&limits.pdus) && (1..=most.bytes).contains(&limits.bytes);
        are_legal.then_some(())?;
        let encryptor = Encryptor(self.send.direction(digest, limits)?);
        let decryptor = Decryptor(self.receive.direction(digest, limits)?);
        Some(RecordKeys { digest, encryptor, decryptor })
    }
}

impl DirectionState {
    fn of(direction: &Direction) -> Self {
        Self {
            secret: SecretState(Zeroizing::new(*direction.secret.secret_bytes())),
            last_pdu: direction.begun.then_some(direction.pdu),
            used_pdus: direction.used.pdus,
            used_bytes: direction.used.bytes,
        }
    }

    fn direction(&self, digest: AeadDigest, limits: GenerationLimits) -> Option<Direction> {
        let used = GenerationLimits { pdus: self.used_pdus, bytes: self.used_bytes };
        let is_legal = used.pdus <= limits.pdus
            && used.bytes <= limits.bytes + PDU_BYTES_MAX
            && self.last_pdu.is_none_or(|last| last <= PDU_MAX);
        is_legal.then_some(())?;
        let secret = Secret::from_secret_bytes(PROTOCOL, self.secret.0.clone());
        let mut direction = Direction::new(secret, digest, limits);
        direction.used = used;
        (direction.pdu, direction.begun) = (self.last_pdu.unwrap_or(0), self.last_pdu.is_some());
        Some(direction)
    }
}

impl fmt::Debug for SecretState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretState(…)")
    }
}

impl Serialize for SecretState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Zeroizing::new(String::with_capacity(2 * SECRET_LEN));
        for byte in self.0.iter() {
            // Writing to a string cannot fail.
            let _ = write!(*text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for SecretState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;

        impl de::Visitor<'_> for Digits {
            type Value = SecretState;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} hexadecimal digits", 2 * SECRET_LEN)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SecretState, E> {
                // The text itself is a secret, so the error does not show it.
                decode(text).ok_or_else(|| E::invalid_length(text.len(), &self))
            }
        }

        deserializer.deserialize_str(Digits)
    }
}

/// Decodes a secret from lower-case hexadecimal digits.
fn decode(text: &str) -> Option<SecretState> {
    if text.len() != 2 * SECRET_LEN {
        return None;
    }
    let mut bytes = Zeroizing::new([0; SECRET_LEN]);
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digits.iter().try_fold(0u8, |byte, digit| Some(byte << 4 | value_of(*digit)?))?;
    }
    Some(SecretState(bytes))
}

const fn value_of(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use security::opaque::SessionKey;

    use super::*;
    use crate::aead::login_keys::LoginKeys;
    use crate::keys::Role;
    use crate::pdu::{BHS_LEN, Opcode};

    fn keys(role: Role) -> RecordKeys {
        let connection = LoginKeys::new(&SessionKey::new([1; 64]), &[2; 64]).connection_keys(&[3; 64]);
        connection.record_keys(role, AeadDigest::ALL[0], GenerationLimits { pdus: 3, bytes: 1 << 20 })
    }

    fn moved(keys: &RecordKeys) -> RecordKeys {
        let state = RecordKeysState::of(&keys.encryptor, &keys.decryptor);
        let text = serde_json::to_string(&state).unwrap();
        let again: RecordKeysState = serde_json::from_str(&text).unwrap();
        assert_eq!(again, state);
        again.keys().unwrap()
    }

    #[test]
    fn both_directions_go_on_after_each_pdu_across_changes_of_keys() {
        let (mut ours, mut theirs) = (keys(Role::Target), keys(Role::Initiator));
        for number in 0..20u8 {
            for _ in 0..number % 3 {
                ours = moved(&ours);
            }
            let mut header = [0; BHS_LEN];
            (header[0], header[9]) = (Opcode::NOP_IN.0, number);
            for (from, to) in
                [(&mut ours.encryptor, &mut theirs.decryptor), (&mut theirs.encryptor, &mut ours.decryptor)]
            {
                let mut sealed = header;
                let tag = from.seal_header(&mut sealed).unwrap();
                assert_eq!(to.open_header(&mut sealed, &tag), Some(()), "PDU {number}");
                assert_eq!(sealed, header);
            }
        }
    }

    #[test]
    fn states_that_no_connection_can_have_are_refused() {
        let keys = keys(Role::Target);
        let good = RecordKeysState::of(&keys.encryptor, &keys.decryptor);
        assert!(good.keys().is_some());
        let last = |last_pdu| DirectionState { last_pdu, ..good.send.clone() };
        let used = |used_pdus, used_bytes| DirectionState { used_pdus, used_bytes, ..good.receive.clone() };
        for bad in [
            RecordKeysState { digest: "CRC32C".into(), ..good.clone() },
            RecordKeysState { generation_pdus: 0, ..good.clone() },
            RecordKeysState { generation_pdus: u64::MAX, ..good.clone() },
            RecordKeysState { generation_bytes: u64::MAX, ..good.clone() },
            RecordKeysState { send: last(Some(u64::MAX)), ..good.clone() },
            RecordKeysState { receive: used(4, 0), ..good.clone() },
            RecordKeysState { receive: used(0, u64::MAX), ..good.clone() },
        ] {
            assert!(bad.keys().is_none(), "{bad:?}");
        }
    }

    #[test]
    fn the_secret_is_never_displayed() {
        let keys = keys(Role::Target);
        let state = RecordKeysState::of(&keys.encryptor, &keys.decryptor);
        assert!(alloc::format!("{state:?}").contains("SecretState(…)"));
        for bad in ["\"\"", "7", &alloc::format!("\"{}\"", "g".repeat(128))] {
            let error = serde_json::from_str::<SecretState>(bad).unwrap_err();
            assert!(!alloc::format!("{error}").contains("ggg"), "{error}");
        }
    }
}
