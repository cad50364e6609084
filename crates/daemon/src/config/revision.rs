//! Revisions of a configuration file, by which concurrent changes are detected.

use std::fmt;

use sha2::{Digest, Sha256};

/// The SHA-256 of a configuration file: two files with the same revision have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision([u8; 32]);

impl Revision {
    /// Returns the revision of a file with these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

/// Formats the revision as 64 hexadecimal digits, as `sha256sum` does.
impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_what_sha256sum_prints() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Revision::of(b"").to_string(), empty);
        assert_ne!(Revision::of(b"a"), Revision::of(b"b"));
    }
}
