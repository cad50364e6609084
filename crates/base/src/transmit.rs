//! Batches of bytes to send: headers are written into a slab, data is referenced.
//!
//! The state machine appends to a batch. The driver turns the pieces into one vectored send and calls
//! [`Transmit::sent`] with the number of bytes that the socket accepted. A batch in flight must not be
//! appended to: the driver keeps two batches per busy connection.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::buffer::{Bytes, DataList, Pool};

/// A batch of bytes to send, in order.
#[derive(Debug, Default)]
pub struct Transmit {
    slab: Vec<u8>,
    pieces: VecDeque<Piece>,
    len: usize,
    narrow: bool,
}

#[derive(Debug)]
enum Piece {
    Slab { start: usize, end: usize },
    Shared(Bytes),
}

impl Transmit {
    /// A state machine stops appending once a batch holds this many bytes. So the link is busy while the next
    /// batch is prepared, and a slow peer occupies no more than this of our memory. One PDU may exceed it.
    pub const BATCH_BYTES: usize = 512 << 10;

    /// A state machine stops appending at this many pieces: one `sendmsg` takes 1024 (`UIO_MAXIOV`).
    pub const BATCH_PIECES: usize = 900;

    /// A narrow batch is full at this many bytes.
    pub const NARROW_BYTES: usize = 64 << 10;

    /// How much of a slab is kept for the next use, in bytes: the headers of a whole batch.
    pub const SLAB_KEPT: usize = 64 << 10;

    /// Creates an empty batch, without an allocation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the state machine should stop appending.
    pub fn is_full(&self) -> bool {
        let bytes_max = if self.narrow { Self::NARROW_BYTES } else { Self::BATCH_BYTES };
        self.len >= bytes_max || self.pieces.len() >= Self::BATCH_PIECES
    }

    /// Makes the batch a small one until it is cleared, because memory is short.
    pub const fn narrow(&mut self) {
        self.narrow = true;
    }

    /// Returns how much data the next PDU may carry at most, in bytes.
    pub const fn segment_max(&self) -> usize {
        if self.narrow { Self::NARROW_BYTES } else { usize::MAX }
    }

    /// Returns whether nothing is left to send.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many bytes are left to send.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns how much memory the batch keeps allocated, in bytes: the slab, and the block of each shared
    /// piece.
    pub fn memory(&self) -> usize {
        let blocks = self.pieces.iter().map(|piece| match piece {
            Piece::Slab { .. } => 0,
            Piece::Shared(bytes) => bytes.block_len(),
        });
        self.slab.capacity() + blocks.sum::<usize>()
    }

    /// Appends a copy of `bytes` (headers, digests, padding).
    pub fn put(&mut self, bytes: &[u8]) {
        let start = self.slab.len();
        self.slab.extend_from_slice(bytes);
        let end = self.slab.len();
        self.len += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Slab { end: last, .. }) if *last == start => *last = end,
            _ if start == end => {}
            _ => self.pieces.push_back(Piece::Slab { start, end }),
        }
    }

    /// Appends shared bytes without copying them.
    pub fn put_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.pieces.push_back(Piece::Shared(bytes));
        }
    }

    /// Appends every part of `data` without copying.
    pub fn put_shared_list(&mut self, data: DataList) {
        for part in data.into_parts() {
            self.put_shared(part);
        }
    }

    /// Returns the pieces that are left to send, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| match piece {
            Piece::Slab { start, end } => self.slab.get(*start..*end).unwrap_or_default(),
            Piece::Shared(bytes) => bytes,
        })
    }

    /// Removes the first `len` bytes, which the socket accepted. Blocks that were sent completely are
    /// returned to `pool`.
    pub fn sent(&mut self, len: usize, pool: &Pool) {
        let mut left = len.min(self.len);
        self.len -= left;
        while let Some(front) = self.pieces.pop_front() {
            let size = match &front {
                Piece::Slab { start, end } => end - start,
                Piece::Shared(bytes) => bytes.len(),
            };
            if size > left {
                self.pieces.push_front(match front {
                    Piece::Slab { start, end } => Piece::Slab { start: start + left, end },
                    Piece::Shared(bytes) => Piece::Shared(bytes.slice(left, size)),
                });
                break;
            }
            left -= size;
            if let Piece::Shared(bytes) = front {
                pool.recycle(bytes);
            }
        }
        if self.pieces.is_empty() {
            self.slab.clear();
        }
    }

    /// Gives up the part of the slab that was sent, for a caller that appends to a batch which never becomes
    /// empty. The kernel must hold no pointer into the batch.
    pub fn compact(&mut self) {
        let used = self.pieces.iter().find_map(|piece| match piece {
            Piece::Slab { start, .. } => Some(*start),
            Piece::Shared(_) => None,
        });
        let used = used.unwrap_or(self.slab.len());
        // Moving the rest costs no more than sending the bytes before it did: there are at least as many.
        if used < Self::SLAB_KEPT || used < self.slab.len() / 2 {
            return;
        }
        self.slab.drain(..used);
        for piece in &mut self.pieces {
            if let Piece::Slab { start, end } = piece {
                *start -= used;
                *end -= used;
            }
        }
    }

    /// Returns every block to `pool` and empties the batch.
    pub fn clear(&mut self, pool: &Pool) {
        self.sent(self.len, pool);
        self.narrow = false;
        if self.slab.capacity() > Self::SLAB_KEPT {
            self.slab = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(batch: &Transmit) -> Vec<u8> {
        batch.pieces().flatten().copied().collect()
    }

    #[test]
    fn sends_in_order_and_resumes_in_the_middle_of_a_piece() {
        let pool = Pool::new(1 << 20);
        let mut batch = Transmit::new();
        batch.put(b"head");
        batch.put(b"er");
        batch.put_shared(Bytes::copied_from(b"payload"));
        batch.put(b"crc");
        assert_eq!(batch.pieces().count(), 3);
        assert_eq!(content(&batch), b"headerpayloadcrc");
        for step in [1, 4, 3, 6] {
            let before = content(&batch);
            batch.sent(step, &pool);
            assert_eq!(content(&batch), before[step..]);
            assert_eq!(batch.len(), before.len() - step);
        }
        batch.sent(99, &pool);
        assert!(batch.is_empty());
        assert_eq!(pool.kept_bytes(), 4096);
    }

    #[test]
    fn a_batch_that_never_becomes_empty_stays_small_when_it_is_compacted() {
        let pool = Pool::new(1 << 20);
        let mut batch = Transmit::new();
        let mut wanted = VecDeque::new();
        for count in 0..10_000_u32 {
            let header = count.to_be_bytes().repeat(20);
            batch.put(&header);
            batch.put_shared(Bytes::copied_from(&header));
            wanted.extend(header.iter().chain(&header).copied());
            let sent = batch.len() - 7;
            wanted.drain(..sent);
            batch.sent(sent, &pool);
            batch.compact();
            assert_eq!(content(&batch), wanted.make_contiguous());
            assert!(batch.slab.len() <= Transmit::SLAB_KEPT + 80, "{}", batch.slab.len());
        }
    }

    #[test]
    fn a_narrow_batch_is_full_early_until_it_is_cleared() {
        let pool = Pool::new(1 << 20);
        let mut batch = Transmit::new();
        assert_eq!(batch.segment_max(), usize::MAX);
        batch.narrow();
        batch.put(&[7; Transmit::NARROW_BYTES - 1]);
        assert!(!batch.is_full());
        batch.put(&[7]);
        assert!(batch.is_full() && batch.segment_max() == Transmit::NARROW_BYTES);
        batch.clear(&pool);
        batch.put(&[7; Transmit::BATCH_BYTES - 1]);
        assert!(!batch.is_full());
        batch.clear(&pool);
        assert!(batch.slab.capacity() <= Transmit::SLAB_KEPT);
    }
}
