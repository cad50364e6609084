//! Why the saved state of a logical unit cannot be read.

use core::fmt;

use base::bytes::UnexpectedEof;

/// Why saved state cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDecodeError {
    /// It is longer than any state that a unit writes.
    TooLong,
    /// It ends too early.
    Truncated,
    /// It does not start with the signature of this format.
    Foreign,
    /// It was written by a newer release.
    UnknownVersion(u16),
    /// Its checksum is wrong.
    Corrupt,
    /// Its checksum is right, but its contents are contradictory.
    Inconsistent,
}

impl fmt::Display for StateDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "longer than the state of any logical unit",
            Self::Truncated => "ends too early",
            Self::Foreign => "not the state of a logical unit",
            Self::UnknownVersion(version) => {
                return write!(f, "state of unknown version {version}");
            }
            Self::Corrupt => "checksum does not match",
            Self::Inconsistent => "contradicts itself",
        })
    }
}

impl core::error::Error for StateDecodeError {}

impl From<UnexpectedEof> for StateDecodeError {
    fn from(_: UnexpectedEof) -> Self {
        Self::Truncated
    }
}
