//! Names of initiators and targets, in the format of iSCSI, and names of groups.

use alloc::string::String;
use core::fmt;
use core::ops::Deref;

use super::Malformed;

/// The longest name of an initiator or target, in bytes (RFC 7143 §4.2.7.2).
pub const NAME_MAX: usize = 223;
/// The longest name of a group, in bytes: a line of text, which leaves most of a frame free.
pub const GROUP_MAX: usize = 64;

/// The name of an initiator or target: an iqn, eui or naa name (RFC 7143 §4.2.7), in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Copies `text`; `None` if it is not such a name.
    pub fn new(text: &str) -> Option<Self> {
        let prefix = ["iqn.", "eui.", "naa."].iter().any(|prefix| text.starts_with(prefix));
        // Beyond ASCII, iSCSI allows letters and digits after normalization. Normalizing them is left to the
        // author of the configuration.
        let legal = |c: char| match c {
            '-' | '.' | ':' => true,
            c if c.is_ascii() => c.is_ascii_lowercase() || c.is_ascii_digit(),
            c => c.is_alphanumeric(),
        };
        (prefix && text.len() > 4 && text.len() <= NAME_MAX && text.chars().all(legal))
            .then(|| Self(text.into()))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        core::str::from_utf8(bytes).ok().and_then(Self::new).ok_or(Malformed::Name)
    }
}

/// The name of a group: 1 to [`GROUP_MAX`] bytes of UTF-8 without control characters, compared byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

impl GroupName {
    /// Copies `text`; `None` if no group can have that name.
    pub fn new(text: &str) -> Option<Self> {
        let legal = !text.is_empty() && text.len() <= GROUP_MAX && !text.chars().any(char::is_control);
        legal.then(|| Self(text.into()))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        core::str::from_utf8(bytes).ok().and_then(Self::new).ok_or(Malformed::Name)
    }
}

macro_rules! text {
    ($name:ident) => {
        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

text!(Name);
text!(GroupName);
