//! The connections of portals with TLS, as they move to another process. Their secrets are here as the keys
//! of AEAD digests are in the state of a session.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

/// A connection inside TLS, and the bytes that its relay holds. The relay's sockets do not tell which session
/// it belongs to, and none needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct RelayState {
    /// The index of its portal, as in [`ReactorState::connections`](super::ReactorState::connections).
    pub(in crate::serve) portal: usize,
    /// The number of the cipher suite in TLS.
    pub(in crate::serve) suite: u16,
    /// What the target sends, and what it receives.
    pub(in crate::serve) send: DirectionState,
    pub(in crate::serve) receive: DirectionState,
    /// The beginning of a handshake message whose rest is missing.
    pub(in crate::serve) handshake: Bytes,
    /// Whether the initiator has asked for new keys.
    pub(in crate::serve) owes_key_update: bool,
    /// How many records without data were received since one with.
    pub(in crate::serve) fruitless: u8,
    /// Received bytes whose records are not processed.
    pub(in crate::serve) received: Bytes,
    /// Whether nothing more can be received.
    pub(in crate::serve) network_ended: bool,
    /// Whether the initiator has said that it sends nothing more.
    pub(in crate::serve) is_closed: bool,
    /// Decrypted bytes that the reactor's end has not taken.
    pub(in crate::serve) incoming: Bytes,
    pub(in crate::serve) incoming_ended: bool,
    /// Bytes of the reactor's end that are not encrypted.
    pub(in crate::serve) outgoing: Bytes,
    pub(in crate::serve) outgoing_ended: bool,
    /// Records that are not sent.
    pub(in crate::serve) unsent: Bytes,
}

/// One direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct DirectionState {
    /// The traffic secret of the present generation.
    pub(in crate::serve) secret: Bytes,
    /// The number of the next record.
    pub(in crate::serve) sequence: u64,
}

#[cfg(test)]
impl RelayState {
    pub(in crate::serve) fn for_tests() -> Self {
        let direction = |secret, sequence| DirectionState { secret: vec![secret; 48].into(), sequence };
        Self {
            portal: 1,
            suite: 0x1302,
            send: direction(1, 1 << 24),
            receive: direction(2, 9),
            handshake: vec![24].into(),
            owes_key_update: true,
            fruitless: 3,
            received: vec![23, 3, 3].into(),
            network_ended: false,
            is_closed: true,
            incoming: vec![5].into(),
            incoming_ended: false,
            outgoing: vec![6, 7].into(),
            outgoing_ended: false,
            unsent: vec![8].into(),
        }
    }
}

/// Bytes that can be secret, as hexadecimal digits. Dropping them erases them.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::serve) struct Bytes(pub(in crate::serve) Zeroizing<Vec<u8>>);

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bytes(…)")
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Zeroizing::new(String::with_capacity(2 * self.0.len()));
        for byte in self.0.iter() {
            // Writing to a string cannot fail.
            let _ = write!(*text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;

        impl de::Visitor<'_> for Digits {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("hexadecimal digits")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                // The text itself can be a secret, so the error does not show it.
                decode(text).ok_or_else(|| E::invalid_length(text.len(), &self))
            }
        }

        deserializer.deserialize_str(Digits)
    }
}

/// Decodes bytes from lower-case hexadecimal digits.
fn decode(text: &str) -> Option<Bytes> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for digits in text.as_bytes().chunks(2) {
        let [high, low] = digits else { return None };
        bytes.push(value_of(*high)? << 4 | value_of(*low)?);
    }
    Some(Bytes(bytes))
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
    use super::*;

    #[test]
    fn bytes_are_read_as_they_were_written_and_never_displayed() {
        let bytes = Bytes::from((0..=255).collect::<Vec<u8>>());
        let text = serde_json::to_string(&bytes).unwrap();
        assert!(text.starts_with("\"000102") && text.ends_with("fdfeff\""));
        assert!(serde_json::from_str::<Bytes>(&text).unwrap() == bytes);
        assert_eq!(format!("{bytes:?}"), "Bytes(…)");
        assert!(serde_json::from_str::<Bytes>("\"\"").unwrap().0.is_empty());
        for bad in ["\"0\"", "\"0g\"", "\"0A\"", "\"00é\"", "7"] {
            let error = serde_json::from_str::<Bytes>(bad).unwrap_err().to_string();
            assert!(!error.contains("0g") && !error.contains("0A"), "{error}");
        }
    }
}
