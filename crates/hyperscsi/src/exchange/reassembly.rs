//! Reassembly of data that arrives in pieces, in any order, some of them twice: one buffer, and the record of
//! the bytes that were received.

use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, Pool};
use base::int_cast::to_usize;

/// A range of a command's data that is being received. A received byte is never overwritten.
#[derive(Debug)]
pub struct Reassembly {
    buf: Option<Buf>,
    /// The offset of the first byte in the command's data.
    start: u32,
    len: u32,
    /// How many bytes from the start were received without a gap.
    received: u32,
    /// The received spans behind a gap, relative to `start`: sorted, not touching.
    spans: Vec<(u32, u32)>,
    /// Whether the buffer is filled to its end, so that data can be written at any offset.
    placed: bool,
}

/// How many separate spans may lie behind gaps: half the frames that a replay window records.
const MAX_SPANS: usize = 8192;

/// Why a piece was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReassemblyError {
    /// It lies outside the range, in part or in whole.
    #[error("the data is outside the requested range")]
    Outside,
    /// The piece would make more separate spans than any order of arrival explains.
    #[error("the data arrived in too many pieces")]
    Scattered,
}

impl Reassembly {
    /// Returns an empty reassembly of the range `start..start + len`; the buffer is taken when the first
    /// piece arrives.
    pub const fn new(start: u32, len: u32) -> Self {
        Self { buf: None, start, len, received: 0, spans: Vec::new(), placed: false }
    }

    /// Returns the length of the range.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the range is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the offset behind the range.
    pub const fn end(&self) -> u32 {
        self.start.saturating_add(self.len)
    }

    /// Returns whether `offset` lies within the range.
    pub const fn covers(&self, offset: u32) -> bool {
        offset >= self.start && offset < self.end()
    }

    /// Returns how many bytes from the start were received without a gap.
    pub const fn received(&self) -> u32 {
        self.received
    }

    /// Returns the offset behind the bytes that were received from the start without a gap.
    pub const fn front(&self) -> u32 {
        self.start.saturating_add(self.received)
    }

    /// Returns the end of the last received byte, relative to the start of the range.
    pub fn reach(&self) -> u32 {
        self.spans.last().map_or(self.received, |(_, end)| *end)
    }

    /// Returns whether the whole range was received.
    pub const fn is_whole(&self) -> bool {
        self.received == self.len
    }

    /// Shortens the range to `len` bytes. No byte beyond may have been received.
    ///
    /// # Errors
    /// [`ReassemblyError::Outside`] when a byte beyond `len` was received, or `len` exceeds the range.
    pub fn shorten(&mut self, len: u32) -> Result<(), ReassemblyError> {
        if len > self.len || self.reach() > len {
            return Err(ReassemblyError::Outside);
        }
        self.len = len;
        Ok(())
    }

    /// Stores a piece at its offset. Bytes that were received before stay as they are. Returns how many bytes
    /// were new.
    ///
    /// # Errors
    /// [`ReassemblyError`]; then no byte was written.
    pub fn put(&mut self, pool: &Pool, offset: u32, piece: &[u8]) -> Result<u32, ReassemblyError> {
        let len = u32::try_from(piece.len()).map_err(|_| ReassemblyError::Outside)?;
        let from = offset.checked_sub(self.start).ok_or(ReassemblyError::Outside)?;
        let to = from.checked_add(len).filter(|to| *to <= self.len).ok_or(ReassemblyError::Outside)?;
        if to <= self.received || len == 0 {
            return Ok(0);
        }
        if self.spans.len() >= MAX_SPANS {
            return Err(ReassemblyError::Scattered);
        }
        let whole = to_usize(self.len);
        let buf = self.buf.get_or_insert_with(|| pool.take(whole));
        if !self.placed && from == self.received && self.spans.is_empty() {
            buf.append(piece);
            self.received = to;
            return Ok(len);
        }
        if !self.placed {
            buf.append_zeros(whole.saturating_sub(buf.len()));
            self.placed = true;
        }
        let mut new = 0;
        let mut at = from.max(self.received);
        // Copies into the gaps within the piece, one after another, and skips the spans between them.
        let first = self.spans.partition_point(|(_, end)| *end <= at);
        let mut spans = self.spans.iter().skip(first).copied();
        while at < to {
            let (start, next) = spans.next().unwrap_or((to, to));
            let end = start.clamp(at, to);
            let source = piece.get(to_usize(at - from)..to_usize(end - from));
            let room = buf.filled_mut().get_mut(to_usize(at)..to_usize(end));
            if let (Some(room), Some(source)) = (room, source) {
                room.copy_from_slice(source);
            }
            new += end - at;
            at = next;
        }
        if new > 0 {
            self.note(from, to);
        }
        Ok(new)
    }

    fn note(&mut self, from: u32, to: u32) {
        // The spans `begin..end` touch the new one and are merged with it.
        let begin = self.spans.partition_point(|(_, span_end)| *span_end < from);
        let end = self.spans.partition_point(|(span_start, _)| *span_start <= to);
        let touched = self.spans.get(begin..end).unwrap_or_default();
        let start = touched.first().map_or(from, |(start, _)| from.min(*start));
        let stop = touched.last().map_or(to, |(_, stop)| to.max(*stop));
        if start <= self.received {
            // All stored spans begin behind the received bytes, so all up to `end` are merged.
            self.received = stop;
            self.spans.drain(..end);
        } else {
            self.spans.splice(begin..end, [(start, stop)]);
        }
    }

    /// Takes out the bytes that were received from the start without a gap.
    pub fn take(&mut self) -> Option<Bytes> {
        let mut buf = self.buf.take()?;
        buf.truncate(to_usize(self.received));
        Some(buf.freeze())
    }

    /// Discards everything that was received.
    pub fn clear(&mut self, pool: &Pool) {
        if let Some(buf) = self.buf.take() {
            pool.recycle_buf(buf);
        }
        (self.received, self.placed) = (0, false);
        self.spans = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use base::rng::Rng;

    use super::*;
    use base::int_cast::to_u32;

    #[test]
    fn pieces_land_where_they_belong_whatever_their_order_and_however_they_overlap() {
        for seed in 0..500 {
            let mut rng = Rng::from_seed(seed);
            let pool = Pool::new(1 << 20);
            let (start, len) = (1000, 1 + u32::try_from(rng.below(5000)).unwrap());
            let want: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let mut reassembly = Reassembly::new(start, len);
            let mut new = 0;
            while !reassembly.is_whole() {
                let from = if rng.below(3) == 0 {
                    reassembly.received()
                } else {
                    u32::try_from(rng.below(u64::from(len))).unwrap()
                };
                let to = from + u32::try_from(rng.below(u64::from(len - from) + 1)).unwrap().min(700);
                let piece = &want[from as usize..to as usize];
                new += reassembly.put(&pool, start + from, piece).unwrap();
            }
            assert_eq!(new, len, "seed {seed}: every byte is new once");
            assert!(reassembly.spans.is_empty());
            assert_eq!(reassembly.take().as_deref(), Some(&want[..]), "seed {seed}");
        }
    }

    #[test]
    fn many_scattered_pieces_are_known_one_by_one() {
        for seed in 0..100 {
            let mut rng = Rng::from_seed(seed);
            let pool = Pool::new(1 << 20);
            let len = 300;
            let (mut reassembly, mut truth) = (Reassembly::new(7, len), alloc::vec![0_u8; len as usize]);
            for round in 1..=120 {
                let from = u32::try_from(rng.below(u64::from(len))).unwrap();
                let to = (from + 1 + u32::try_from(rng.below(1 + round / 10)).unwrap()).min(len);
                let piece = alloc::vec![u8::try_from(round).unwrap(); (to - from) as usize];
                let room = &mut truth[from as usize..to as usize];
                let new = room.iter().filter(|byte| **byte == 0).count();
                room.iter_mut()
                    .zip(&piece)
                    .filter(|(byte, _)| **byte == 0)
                    .for_each(|(byte, new)| *byte = *new);
                assert_eq!(reassembly.put(&pool, 7 + from, &piece), Ok(to_u32(new)), "seed {seed}");
                let here: Vec<bool> = truth.iter().map(|byte| *byte != 0).collect();
                let received = here.iter().take_while(|here| **here).count();
                let runs = here.chunk_by(|one, other| one == other).filter(|run| run[0]).count();
                assert_eq!(
                    (to_usize(reassembly.received()), reassembly.spans.len() + usize::from(received > 0)),
                    (received, runs),
                    "seed {seed}"
                );
                let reach = here.iter().rposition(|here| *here).map_or(0, |last| last + 1);
                assert_eq!(to_usize(reassembly.reach()), reach, "seed {seed}");
            }
            reassembly.put(&pool, 7, &[255; 300]).unwrap();
            truth.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 255);
            assert_eq!(reassembly.take().as_deref(), Some(&truth[..]), "seed {seed}");
        }
    }

    #[test]
    fn a_byte_that_is_here_is_never_written_again() {
        let pool = Pool::new(1 << 20);
        let mut reassembly = Reassembly::new(0, 8);
        reassembly.put(&pool, 2, b"cd").unwrap();
        assert_eq!(reassembly.put(&pool, 0, b"XXXXX"), Ok(3));
        assert_eq!(reassembly.put(&pool, 0, b"YYYYYYYY"), Ok(3));
        assert_eq!(reassembly.put(&pool, 0, b"ZZZZZZZZ"), Ok(0));
        assert_eq!(reassembly.take().as_deref(), Some(&b"XXcdXYYY"[..]));
    }

    #[test]
    fn no_offset_leads_outside() {
        let pool = Pool::new(1 << 20);
        let mut reassembly = Reassembly::new(100, 10);
        for (offset, len) in [(99, 1), (0, 200), (109, 2), (110, 1), (u32::MAX, 1), (u32::MAX - 5, 10)] {
            let piece = alloc::vec![7; len];
            assert_eq!(
                reassembly.put(&pool, offset, &piece),
                Err(ReassemblyError::Outside),
                "{offset} {len}"
            );
        }
        assert!(reassembly.buf.is_none());
        assert_eq!(reassembly.put(&pool, 100, &[1; 10]), Ok(10));
    }

    #[test]
    fn a_range_is_shortened_only_to_where_nothing_came_beyond() {
        let pool = Pool::new(1 << 20);
        let mut reassembly = Reassembly::new(0, 100);
        reassembly.put(&pool, 10, &[1; 10]).unwrap();
        assert_eq!(reassembly.shorten(15), Err(ReassemblyError::Outside));
        assert_eq!(reassembly.shorten(20), Ok(()));
        reassembly.put(&pool, 0, &[1; 10]).unwrap();
        assert!(reassembly.is_whole());
    }

    #[test]
    fn more_pieces_than_any_order_explains_are_refused() {
        let pool = Pool::new(1 << 20);
        let mut reassembly = Reassembly::new(0, 1 << 20);
        let mut at = 1;
        let end = loop {
            match reassembly.put(&pool, at, &[1]) {
                Ok(_) => at += 2,
                Err(why) => break why,
            }
        };
        assert_eq!((end, reassembly.spans.len()), (ReassemblyError::Scattered, MAX_SPANS));
    }
}
