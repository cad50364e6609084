//! Bytes as hexadecimal digits, which a document of text holds in two characters for each byte.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes that are written as hexadecimal digits. Some are secret, so that they are not printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct HexBytes(pub(crate) Vec<u8>);

impl HexBytes {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Vec::from(bytes))
    }
}

impl fmt::Debug for HexBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HexBytes({} bytes)", self.0.len())
    }
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
        let digits = self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]);
        serializer.serialize_str(&digits.collect::<String>())
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        match bytes {
            Some(bytes) if rest.is_empty() => Ok(Self(bytes)),
            _ => Err(de::Error::custom("bytes need two hexadecimal digits each")),
        }
    }
}
