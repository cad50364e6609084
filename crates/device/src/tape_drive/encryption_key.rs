//! The key of encrypted records, and what a host stores with them to find it again.

use alloc::vec::Vec;
use core::fmt;

use security::aead::KEY_LEN;
use security::record_key::{CHECK_LEN, RecordKey};

/// A key with its check value.
pub(crate) struct Key {
    pub(crate) cipher: RecordKey,
    pub(crate) check: [u8; CHECK_LEN],
}

impl Key {
    pub(crate) fn new(bytes: &[u8; KEY_LEN]) -> Self {
        let cipher = RecordKey::new(bytes);
        Self { check: cipher.check_value(), cipher }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Key-associated data (KAD): what a host stores with each record to find the key again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyAssociated {
    /// KAD FORMAT.
    pub(crate) format: u8,
    /// U-KAD, which nothing protects from being changed.
    pub(crate) unauthenticated: Vec<u8>,
    /// A-KAD, which the tag of the record covers.
    pub(crate) authenticated: Vec<u8>,
}
