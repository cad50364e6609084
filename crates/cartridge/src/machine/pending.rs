//! The part of a chunk that is not written yet: long pieces of records stay in the buffers that they came in.

use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, DataList};

/// The shortest piece of a record that is written from the buffer that it came in. A shorter one is copied.
const SHARED_LEN_MIN: usize = 16 << 10;

/// How many times its length such a piece may hold of its buffer until it is written.
const HELD_FACTOR_MAX: usize = 2;

/// What is not written yet, at most up to the end of the chunk.
#[derive(Debug)]
pub(super) struct Pending {
    /// What was copied: headers, alignment and short pieces.
    buf: Buf,
    /// Long pieces of records, each with how many bytes of `buf` are before it.
    shared: Vec<(usize, Bytes)>,
    shared_len: usize,
    /// How many of the first bytes are in the file already.
    filed: usize,
}

impl Pending {
    /// Starts with `buf`, which is empty or holds what comes first.
    pub(super) const fn new(buf: Buf) -> Self {
        Self { buf, shared: Vec::new(), shared_len: 0, filed: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.buf.len() + self.shared_len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether any of it is not in the file.
    pub(super) const fn is_unfiled(&self) -> bool {
        self.len() > self.filed
    }

    /// Appends what is in the file already, and will be written once more.
    pub(super) fn append_filed(&mut self, data: &DataList) {
        for part in data.parts() {
            self.filed += self.buf.append(part);
        }
    }

    /// Appends a copy of bytes, as far as they fit. Returns how many.
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        self.buf.append(bytes)
    }

    /// Appends zeros, as far as they fit. Returns how many.
    pub(super) fn append_zeros(&mut self, len: usize) -> usize {
        self.buf.append_zeros(len)
    }

    /// Appends a piece of a record.
    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.len() < SHARED_LEN_MIN || piece.block_len() > piece.len().saturating_mul(HELD_FACTOR_MAX) {
            self.buf.append(&piece);
        } else {
            self.shared_len += piece.len();
            self.shared.push((self.buf.len(), piece));
        }
    }

    /// Returns all of it.
    pub(super) fn into_data(self) -> DataList {
        let copied = self.buf.freeze();
        let mut data = DataList::new();
        let mut start = 0;
        for (end, piece) in self.shared {
            if end > start {
                data.push(copied.slice(start, end));
            }
            data.push(piece);
            start = end;
        }
        if copied.len() > start {
            data.push(copied.slice(start, copied.len()));
        }
        data
    }
}
