//! How the chunks of a medium in memory move to a storage that outlives its process.
//!
//! While a medium moves, the caller takes chunks with [`Ram::next_to_move`], copies them to the storage, and
//! returns them to [`Ram::moved`]. A chunk that was written meanwhile stays in memory, and is taken again.
//! What is left at the end, the caller copies while nothing uses the medium. Another process makes the medium
//! of the storage and the list of its chunks.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::{fmt, ptr};

use base::buffer::{Buf, Bytes};
use base::int_cast::to_u64;

use super::{CHUNK, CHUNKS_PER_SHEET, Chunk, Piece, Ram, pieces};
use crate::api::{Failure, Fault};

/// A storage of the length of a medium, in which chunks have the place that they have in the medium.
pub trait ChunkStorage: fmt::Debug + Send {
    /// Fills `buf` with the bytes at `at`.
    ///
    /// # Errors
    /// [`Fault::Medium`]
    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Fault>;

    /// Releases the memory of a range of whole chunks, whose data is not used any more.
    fn discard(&mut self, at: u64, len: u64);
}

/// Chunks next to each other that are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRun {
    /// The number of the first one.
    pub first: u64,
    /// How many there are.
    pub count: u64,
}

impl Ram {
    /// Makes a medium of `len` bytes with these chunks of a storage. `None` if the runs are not in ascending
    /// order, or extend beyond the medium.
    pub fn from_storage(len: u64, storage: Box<dyn ChunkStorage>, runs: &[ChunkRun]) -> Option<Self> {
        let mut ram = Self::new(len);
        let (mut free, end) = (0, len.div_ceil(to_u64(CHUNK)));
        for ChunkRun { first, count } in runs.iter().copied() {
            let after = first.checked_add(count).filter(|after| first >= free && *after <= end)?;
            for number in first..after {
                *ram.slot_made(number)? = Chunk::Stored;
            }
            ram.chunks += count;
            free = after;
        }
        ram.stored = ram.chunks;
        ram.storage = Some(storage).filter(|_| ram.stored > 0);
        Some(ram)
    }

    /// Begins to move. A medium with chunks in a storage keeps that one.
    pub fn begin_move(&mut self, storage: Box<dyn ChunkStorage>) {
        self.is_moving = true;
        self.cursor = 0;
        self.storage.get_or_insert(storage);
    }

    /// Ends the move: chunks return to memory when they are used.
    pub fn end_move(&mut self) {
        self.is_moving = false;
        self.drop_empty_storage();
    }

    /// Returns whether there is a storage.
    pub const fn has_storage(&self) -> bool {
        self.storage.is_some()
    }

    /// Returns how many bytes would have to be copied to move the rest.
    pub fn len_to_move(&self) -> u64 {
        (self.chunks - self.stored).saturating_mul(to_u64(CHUNK))
    }

    /// Returns the next chunks that are not in the storage, each with its place in the medium; none at the
    /// end of the medium. After that it begins anew.
    pub fn next_to_move(&mut self, count_max: usize) -> Vec<(u64, Bytes)> {
        let mut found = Vec::new();
        let end = self.len.div_ceil(to_u64(CHUNK));
        while found.len() < count_max && self.cursor < end {
            let number = self.cursor;
            let per_sheet = to_u64(CHUNKS_PER_SHEET);
            let has_sheet = usize::try_from(number / per_sheet)
                .is_ok_and(|sheet| self.sheets.get(sheet).is_some_and(Option::is_some));
            if has_sheet {
                if let Chunk::Memory(chunk) = self.chunk(number) {
                    found.push((number * to_u64(CHUNK), chunk.clone()));
                }
                self.cursor += 1;
            } else {
                self.cursor = (number / per_sheet + 1) * per_sheet;
            }
        }
        if found.is_empty() {
            self.cursor = 0;
        }
        found
    }

    /// Returns all chunks that are not in the storage.
    pub fn rest_to_move(&mut self) -> Vec<(u64, Bytes)> {
        self.cursor = 0;
        let rest = self.next_to_move(usize::MAX);
        self.cursor = 0;
        rest
    }

    /// Takes chunks back that are in the storage now, with the data that they had when they were taken.
    pub fn moved(&mut self, chunks: Vec<(u64, Bytes)>) {
        for (at, copied) in chunks {
            let Some(slot) = self.slot(at / to_u64(CHUNK)) else { continue };
            match slot {
                // A write to a chunk that others hold moves it to another address.
                Chunk::Memory(chunk) if ptr::eq(chunk.as_ptr(), copied.as_ptr()) => {
                    *slot = Chunk::Stored;
                    self.stored += 1;
                }
                Chunk::Stored => {}
                // The copy does not count.
                Chunk::Memory(_) | Chunk::Hole => self.discard(at, to_u64(CHUNK)),
            }
        }
    }

    /// Returns all allocated chunks.
    pub fn allocated_runs(&self) -> Vec<ChunkRun> {
        let mut runs: Vec<ChunkRun> = Vec::new();
        let mut first = 0;
        for sheet in &self.sheets {
            for (number, chunk) in (first..).zip(sheet.iter().flatten()) {
                if matches!(chunk, Chunk::Hole) {
                    continue;
                }
                match runs.last_mut() {
                    Some(run) if run.first + run.count == number => run.count += 1,
                    _ => runs.push(ChunkRun { first: number, count: 1 }),
                }
            }
            first += to_u64(CHUNKS_PER_SHEET);
        }
        runs
    }

    /// Brings the chunks of a range to memory that are in the storage.
    pub(super) fn load(&mut self, at: u64, len: u64) -> Result<(), Failure> {
        if self.storage.is_none() {
            return Ok(());
        }
        pieces(at, len).try_for_each(|piece| self.load_chunk(piece.chunk))
    }

    /// Brings a chunk to memory if it is in the storage.
    pub(super) fn load_chunk(&mut self, number: u64) -> Result<(), Failure> {
        if !matches!(self.chunk(number), Chunk::Stored) {
            return Ok(());
        }
        let chunk = self.read_stored(Piece { chunk: number, start: 0, end: CHUNK })?;
        if let Some(slot) = self.slot(number) {
            *slot = Chunk::Memory(chunk);
            self.stored -= 1;
        }
        self.discard(number * to_u64(CHUNK), to_u64(CHUNK));
        Ok(())
    }

    /// Reads a part of a chunk that is in the storage.
    pub(super) fn read_stored(&mut self, piece: Piece) -> Result<Bytes, Failure> {
        let at = piece.chunk * to_u64(CHUNK) + to_u64(piece.start);
        let failed = |fault| Failure { fault, at: Some(at) };
        let storage = self.storage.as_mut().ok_or(failed(Fault::Bug))?;
        let mut buf = Buf::with_capacity(piece.len());
        buf.append_zeros(piece.len());
        storage.read(at, buf.filled_mut()).map_err(failed)?;
        Ok(buf.freeze())
    }

    /// Releases what the storage has of the whole chunks of a range, which reaches to the end of the chunk at
    /// the end of the medium.
    pub(super) fn discard(&mut self, at: u64, len: u64) {
        let Some(storage) = &mut self.storage else { return };
        let (chunk, end) = (to_u64(CHUNK), at.saturating_add(len));
        let rounded_up = |at: u64| at.checked_next_multiple_of(chunk).unwrap_or(u64::MAX);
        let from = rounded_up(at);
        let to = if end >= self.len { rounded_up(end) } else { end - end % chunk };
        if from < to {
            storage.discard(from, to - from);
        }
        self.drop_empty_storage();
    }

    fn drop_empty_storage(&mut self) {
        if self.stored == 0 && !self.is_moving {
            self.storage = None;
        }
    }
}
