//! A buffer of a fixed length for bytes on their way.

use std::io::{self, ErrorKind, Read, Write};

/// How many bytes are read and written at a time: almost four of the longest records.
pub(crate) const CHUNK_LEN: usize = 64 << 10;

/// What a read from a socket brought.
pub(crate) enum Taken {
    Bytes,
    Nothing,
    End,
}

/// Bytes on their way: added at the end, and consumed from the start.
pub(crate) struct Chunk {
    space: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Chunk {
    pub(crate) fn new() -> Self {
        Self { space: vec![0; CHUNK_LEN].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Returns a chunk with these bytes. Returns `None` if they are too many.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let mut chunk = Self::new();
        chunk.space.get_mut(..bytes.len())?.copy_from_slice(bytes);
        chunk.end = bytes.len();
        Some(chunk)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.space.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the first bytes to be changed in place, before they are consumed.
    pub(crate) fn first_mut(&mut self, len: usize) -> &mut [u8] {
        let end = self.start.saturating_add(len).min(self.end);
        self.space.get_mut(self.start..end).unwrap_or_default()
    }

    pub(crate) fn consumed(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns whether so many bytes can be added.
    pub(crate) const fn has_room(&self, len: usize) -> bool {
        self.space.len() - self.end >= len
    }

    /// Adds bytes, for which there is room.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let end = self.end.saturating_add(bytes.len());
        if let Some(space) = self.space.get_mut(self.end..end) {
            space.copy_from_slice(bytes);
            self.end = end;
        }
    }

    /// Adds what can be read, up to the length of the chunk.
    pub(crate) fn read_from(&mut self, mut source: impl Read) -> io::Result<Taken> {
        if self.start > 0 {
            self.space.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let space = self.space.get_mut(self.end..).unwrap_or_default();
        if space.is_empty() {
            return Ok(Taken::Nothing);
        }
        loop {
            match source.read(space) {
                Ok(0) => return Ok(Taken::End),
                Ok(len) => {
                    self.end = self.end.saturating_add(len).min(self.space.len());
                    return Ok(Taken::Bytes);
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(Taken::Nothing),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Writes what the chunk holds. Returns whether it is empty now.
    pub(crate) fn write_to(&mut self, sink: impl Write) -> io::Result<bool> {
        let (written, result) = write_from(self.bytes(), sink);
        self.consumed(written);
        result.map(|()| self.is_empty())
    }
}

/// Writes as many bytes as is possible without waiting. Returns how many, and the error that ended that.
pub(crate) fn write_from(bytes: &[u8], mut sink: impl Write) -> (usize, io::Result<()>) {
    let mut left = bytes;
    while !left.is_empty() {
        match sink.write(left) {
            Ok(len) => left = left.get(len..).unwrap_or_default(),
            Err(why) if why.kind() == ErrorKind::WouldBlock => break,
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return (bytes.len() - left.len(), Err(why)),
        }
    }
    (bytes.len() - left.len(), Ok(()))
}
