//! A SCSI command as a transport carries it: the task attribute and the CDB.

use alloc::boxed::Box;
use core::fmt;
use core::ops::Deref;

base::code8! {
    /// The task attribute: when a task may run relative to others (SAM-5 §8), with the numbers of iSCSI
    /// (RFC 7143 §11.3.1). HyperSCSI uses the same numbers.
    pub struct TaskAttribute {
        /// No attribute given: treated as SIMPLE. Only iSCSI has this number.
        UNTAGGED = 0;
        /// The task may be reordered.
        SIMPLE = 1;
        /// The task waits for all earlier tasks, and all later tasks wait for it.
        ORDERED = 2;
        /// The task runs before all others.
        HEAD_OF_QUEUE = 3;
        /// The task handles an auto contingent allegiance.
        ACA = 4;
    }
}

/// The longest CDB that the standards define, in bytes (SPC-5 §4.2).
pub const CDB_MAX: usize = 260;

/// CDBs of up to this many bytes need no allocation.
const INLINE: usize = 32;

/// A command descriptor block of 1 to [`CDB_MAX`] bytes. A transport does not interpret it.
#[derive(Clone, PartialEq, Eq)]
pub struct Cdb {
    /// The bytes, unless `long` has them; zeros behind `len`.
    short: [u8; INLINE],
    len: u8,
    /// All bytes of a CDB that is longer than [`INLINE`].
    long: Option<Box<[u8]>>,
}

impl Cdb {
    /// Copies `bytes`. Returns `None` if no CDB has that length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if let Ok(bytes) = bytes.try_into() {
            return Some(Self::from_16(bytes));
        }
        let mut short = [0; INLINE];
        match u8::try_from(bytes.len()) {
            Ok(0) => None,
            Ok(len) if bytes.len() <= INLINE => {
                for (to, from) in short.iter_mut().zip(bytes) {
                    *to = *from;
                }
                Some(Self { short, len, long: None })
            }
            _ if bytes.len() <= CDB_MAX => Some(Self { short, len: 0, long: Some(bytes.into()) }),
            _ => None,
        }
    }

    /// Wraps sixteen bytes: a CDB of up to this length in iSCSI, padded with zeros.
    pub fn from_16(bytes: [u8; 16]) -> Self {
        let mut short = [0; INLINE];
        if let Some(head) = short.first_chunk_mut() {
            *head = bytes;
        }
        Self { short, len: 16, long: None }
    }
}

impl Deref for Cdb {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let short = || self.short.get(..usize::from(self.len)).unwrap_or_default();
        self.long.as_deref().unwrap_or_else(short)
    }
}

impl fmt::Debug for Cdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn a_cdb_has_the_bytes_and_the_length_that_were_given() {
        for len in 0..=CDB_MAX + 1 {
            let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let cdb = Cdb::new(&bytes);
            assert_eq!(cdb.is_some(), (1..=CDB_MAX).contains(&len), "{len} bytes");
            assert!(cdb.is_none_or(|cdb| *cdb == bytes));
        }
        assert_eq!(Some(Cdb::from_16([7; 16])), Cdb::new(&[7; 16]));
    }
}
