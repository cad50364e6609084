//! How frames are protected.

use core::fmt;

/// How a frame is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// By a CRC32C, against accidents alone.
    #[default]
    None = 0,
    /// By an authentication tag over header and payload, which stay readable.
    Integrity = 1,
    /// By the same, and the payload is encrypted.
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
