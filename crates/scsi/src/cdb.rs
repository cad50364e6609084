//! Command descriptor blocks as bytes (SPC-5 §4.2). The other modules have typed views of single commands.

use alloc::boxed::Box;

/// The longest CDB: 16 bytes and an extended CDB of up to 244 more (SPC-5 §4.2, additional CDB length 252).
pub const MAX_CDB_LEN: usize = 260;

/// A command descriptor block.
#[derive(Clone, PartialEq, Eq)]
pub struct Cdb {
    /// The first sixteen bytes, padded with zeros if the CDB is shorter.
    head: [u8; 16],
    /// All bytes, if there are more than sixteen.
    whole: Option<Box<[u8]>>,
}

impl Cdb {
    /// Wraps sixteen bytes.
    pub const fn from_16(head: [u8; 16]) -> Self {
        Self { head, whole: None }
    }

    /// Copies `bytes` and pads them with zeros to sixteen. Returns `None` if they are longer than
    /// [`MAX_CDB_LEN`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut head = [0; 16];
        for (to, from) in head.iter_mut().zip(bytes) {
            *to = *from;
        }
        let whole = match bytes.len() {
            0..=16 => None,
            17..=MAX_CDB_LEN => Some(bytes.into()),
            _ => return None,
        };
        Some(Self { head, whole })
    }

    /// Returns the operation code.
    pub const fn opcode(&self) -> u8 {
        self.head[0]
    }

    /// Returns all bytes, at least sixteen.
    pub fn bytes(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or(&self.head)
    }

    /// Returns byte `at`, or zero beyond the end.
    pub fn u8(&self, at: usize) -> u8 {
        self.bytes().get(at).copied().unwrap_or(0)
    }

    /// Returns the two bytes at `at` as a number. Bytes beyond the end count as zeros.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    /// Returns the three bytes at `at` as a number. Bytes beyond the end count as zeros.
    pub fn u24(&self, at: usize) -> u32 {
        let [a, b, c] = self.array(at);
        u32::from_be_bytes([0, a, b, c])
    }

    /// Returns the four bytes at `at` as a number. Bytes beyond the end count as zeros.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    /// Returns the eight bytes at `at` as a number. Bytes beyond the end count as zeros.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    /// Returns the `N` bytes at `at`. Bytes beyond the end are zeros.
    pub fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let tail = self.bytes().get(at..).unwrap_or_default();
        if let Some(whole) = tail.first_chunk() {
            return *whole;
        }
        let mut out = [0; N];
        for (to, from) in out.iter_mut().zip(tail) {
            *to = *from;
        }
        out
    }

    /// Returns the length that the group code of the operation code fixes (SPC-5 §4.2.5.1), or for
    /// variable-length and extended CDBs the length that their length field gives. Returns `None` for
    /// vendor-specific groups.
    pub fn len_by_opcode(&self) -> Option<usize> {
        match self.opcode() {
            0x7f => Some(usize::from(self.u8(7)) + 8),
            0x7e => Some(usize::from(self.u16(2)) + 4),
            code => match code >> 5 {
                0 => Some(6),
                1 | 2 => Some(10),
                4 => Some(16),
                5 => Some(12),
                _ => None,
            },
        }
    }
}

impl core::fmt::Debug for Cdb {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Cdb(")?;
        for byte in self.bytes().iter().take(self.len_by_opcode().unwrap_or(16)) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_the_end_read_as_zero() {
        let cdb = Cdb::from_bytes(&[0x28, 0, 0, 0, 0, 1]).unwrap();
        assert_eq!((cdb.opcode(), cdb.u32(2), cdb.u64(12)), (0x28, 1, 0));
        assert_eq!(cdb.len_by_opcode(), Some(10));
        assert!(Cdb::from_bytes(&[0; 261]).is_none());
        assert_eq!(Cdb::from_bytes(&[0x7f, 0, 0, 0, 0, 0, 0, 24]).unwrap().len_by_opcode(), Some(32));
    }
}
