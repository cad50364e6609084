//! Cursors over big-endian bytes. Reading past the end is an error, never a panic.

/// A read or a write went past the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedEof;

impl core::fmt::Display for UnexpectedEof {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("past the end of the bytes")
    }
}

impl core::error::Error for UnexpectedEof {}

/// Reads big-endian fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the bytes that are not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns how many bytes are not read yet.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns whether everything is read.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` when fewer are left; then none is taken.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], UnexpectedEof> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(UnexpectedEof)?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes the next `N` bytes as an array.
    ///
    /// # Errors
    /// `UnexpectedEof` when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], UnexpectedEof> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(UnexpectedEof)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// `UnexpectedEof` when none is left.
    pub fn u8(&mut self) -> Result<u8, UnexpectedEof> {
        self.array::<1>().map(|[b]| b)
    }

    /// Takes a 16-bit big-endian number.
    ///
    /// # Errors
    /// `UnexpectedEof` when fewer than two bytes are left.
    pub fn u16(&mut self) -> Result<u16, UnexpectedEof> {
        self.array().map(u16::from_be_bytes)
    }

    /// Takes a 24-bit big-endian number.
    ///
    /// # Errors
    /// `UnexpectedEof` when fewer than three bytes are left.
    pub fn u24(&mut self) -> Result<u32, UnexpectedEof> {
        self.array::<3>().map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }

    /// Takes a 32-bit big-endian number.
    ///
    /// # Errors
    /// `UnexpectedEof` when fewer than four bytes are left.
    pub fn u32(&mut self) -> Result<u32, UnexpectedEof> {
        self.array().map(u32::from_be_bytes)
    }

    /// Takes a 64-bit big-endian number.
    ///
    /// # Errors
    /// `UnexpectedEof` when fewer than eight bytes are left.
    pub fn u64(&mut self) -> Result<u64, UnexpectedEof> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Writes big-endian fields to the front of a slice. Every byte skipped is written as zero.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Starts at the front of `out`.
    pub const fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    /// Returns how many bytes are written.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing is written yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` when they do not fit; then nothing is written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), UnexpectedEof> {
        self.gap(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes `len` zeros.
    ///
    /// # Errors
    /// `UnexpectedEof` when they do not fit.
    pub fn zeros(&mut self, len: usize) -> Result<(), UnexpectedEof> {
        self.gap(len)?.fill(0);
        Ok(())
    }

    /// Writes one byte.
    ///
    /// # Errors
    /// `UnexpectedEof` when it does not fit.
    pub fn u8(&mut self, value: u8) -> Result<(), UnexpectedEof> {
        self.put(&[value])
    }

    /// Writes a 16-bit big-endian number.
    ///
    /// # Errors
    /// `UnexpectedEof` when it does not fit.
    pub fn u16(&mut self, value: u16) -> Result<(), UnexpectedEof> {
        self.put(&value.to_be_bytes())
    }

    /// Writes a 32-bit big-endian number.
    ///
    /// # Errors
    /// `UnexpectedEof` when it does not fit.
    pub fn u32(&mut self, value: u32) -> Result<(), UnexpectedEof> {
        self.put(&value.to_be_bytes())
    }

    /// Writes a 64-bit big-endian number.
    ///
    /// # Errors
    /// `UnexpectedEof` when it does not fit.
    pub fn u64(&mut self, value: u64) -> Result<(), UnexpectedEof> {
        self.put(&value.to_be_bytes())
    }

    fn gap(&mut self, len: usize) -> Result<&mut [u8], UnexpectedEof> {
        let end = self.len.checked_add(len).ok_or(UnexpectedEof)?;
        let gap = self.out.get_mut(self.len..end).ok_or(UnexpectedEof)?;
        self.len = end;
        Ok(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written_and_stops_at_the_end() {
        let mut space = [0xa5; 20];
        let mut writer = Writer::new(&mut space);
        writer.u8(1).unwrap();
        writer.u16(0x0203).unwrap();
        writer.u32(0x0405_0607).unwrap();
        writer.u64(0x08090a0b_0c0d0e0f).unwrap();
        writer.zeros(2).unwrap();
        assert_eq!(writer.u32(9), Err(UnexpectedEof));
        assert_eq!(writer.len(), 17);
        let mut reader = Reader::new(&space[..17]);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u24(), Ok(0x02_0304));
        assert_eq!(reader.take(3), Ok(&[5, 6, 7][..]));
        assert_eq!(reader.u64(), Ok(0x0809_0a0b_0c0d_0e0f));
        assert_eq!(reader.u32(), Err(UnexpectedEof));
        assert_eq!(reader.u16(), Ok(0));
        assert!(reader.is_empty());
    }
}
