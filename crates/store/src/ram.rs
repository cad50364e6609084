//! A medium in memory: chunks that are allocated on the first write and shared with their readers.
//!
//! A read copies nothing: it returns references to the chunks. A write to a chunk that is still shared (with
//! a response that is being sent) copies the chunk first, so data that was read never changes.
//!
//! The chunks can move to a [`ChunkStorage`] while the medium is in use, and another process can make a
//! medium of that storage. There a chunk returns to memory when it is first used.

mod moving;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::to_u64;

use crate::api::{
    Capabilities, Completion, Extent, ExtentState, Failure, Fault, Op, OpAction, OpOutput, Space, Store,
};

pub use self::moving::{ChunkRun, ChunkStorage};

/// The length of a chunk in bytes. A write to a shared chunk copies at most this much; smaller chunks need a
/// larger table.
pub const CHUNK: usize = 64 << 10;

/// The number of chunks under one entry of the upper table: 32 MiB of medium.
const CHUNKS_PER_SHEET: usize = 512;

/// The longest read or write in bytes.
const IO_LEN_MAX: usize = 64 << 20;

/// A medium in memory. Its contents are lost when it is dropped.
#[derive(Debug)]
pub struct Ram {
    len: u64,
    sheets: Vec<Option<Sheet>>,
    /// The number of allocated chunks.
    chunks: u64,
    /// The number of chunks that are in the storage.
    stored: u64,
    /// There is one while chunks are in it, or are to move there.
    storage: Option<Box<dyn ChunkStorage>>,
    /// Whether chunks are to stay in the storage when they are read.
    is_moving: bool,
    /// The chunk that [`Self::next_to_move`] begins with.
    cursor: u64,
    zeros: Bytes,
    completions: VecDeque<Completion>,
}

/// `CHUNKS_PER_SHEET` chunks.
type Sheet = Box<[Chunk]>;

/// The place of a chunk.
#[derive(Clone, Debug, Default)]
enum Chunk {
    /// It was never written, or was deallocated.
    #[default]
    Hole,
    /// It is in memory. The storage can have a copy of it, which does not count.
    Memory(Bytes),
    /// It is in the storage.
    Stored,
}

/// The part of an operation that lies in one chunk.
#[derive(Clone, Copy)]
struct Piece {
    chunk: u64,
    start: usize,
    end: usize,
}

impl Piece {
    const fn len(self) -> usize {
        self.end - self.start
    }
}

impl Ram {
    /// Makes a medium of `len` bytes, all zeros, that occupies no memory yet.
    pub fn new(len: u64) -> Self {
        let sheets = len.div_ceil(to_u64(CHUNK * CHUNKS_PER_SHEET));
        let mut table = Vec::new();
        table.resize_with(usize::try_from(sheets).unwrap_or(0), || None);
        Self {
            len,
            sheets: table,
            chunks: 0,
            stored: 0,
            storage: None,
            is_moving: false,
            cursor: 0,
            zeros: zero_chunk(),
            completions: VecDeque::new(),
        }
    }

    /// Changes the size to `len` bytes. Data beyond the new end is lost; added bytes read as zeros.
    ///
    /// # Errors
    /// [`Fault::Medium`], if a part of the chunk at the new end cannot be read from the storage. Nothing has
    /// changed then.
    pub fn resize(&mut self, len: u64) -> Result<(), Failure> {
        let grown = Self::new(len).sheets.len();
        if len < self.len {
            self.deallocate(len, self.len - len)?;
        }
        self.sheets.resize_with(grown, || None);
        self.len = len;
        Ok(())
    }

    fn perform(&mut self, action: OpAction) -> Result<OpOutput, Failure> {
        let done = Ok(OpOutput::Done(DataList::new()));
        match action {
            OpAction::Read { at, len } => {
                self.check_transfer(at, len)?;
                self.read(at, len).map(OpOutput::Data)
            }
            OpAction::Write { at, data, .. } => {
                self.check_transfer(at, data.len())?;
                self.write(at, &data)?;
                Ok(OpOutput::Done(data))
            }
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => Err(Fault::Unsupported.into()),
            OpAction::Flush => done,
            OpAction::Deallocate { at, len }
            | OpAction::WriteZeroes { at, len, may_deallocate: true, .. } => {
                self.check(at, len)?;
                self.deallocate(at, len)?;
                done
            }
            OpAction::WriteZeroes { at, len, may_deallocate: false, .. } => {
                self.check(at, len)?;
                self.write_zeros(at, len)?;
                done
            }
            OpAction::MapStatus { at, len, count_max } => {
                self.check(at, len)?;
                Ok(OpOutput::MapStatus(self.extents(at, len, count_max)))
            }
        }
    }

    fn check(&self, at: u64, len: u64) -> Result<(), Failure> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Failure { fault: Fault::OutOfRange, at: Some(at) }),
        }
    }

    fn check_transfer(&self, at: u64, len: usize) -> Result<(), Failure> {
        if len > IO_LEN_MAX {
            return Err(Fault::Bug.into());
        }
        self.check(at, to_u64(len))
    }

    fn read(&mut self, at: u64, len: usize) -> Result<DataList, Failure> {
        if !self.is_moving {
            self.load(at, to_u64(len))?;
        }
        let mut list = DataList::new();
        for piece in pieces(at, to_u64(len)) {
            list.push(match self.chunk(piece.chunk) {
                Chunk::Memory(chunk) => chunk.slice(piece.start, piece.end),
                Chunk::Hole => self.zeros.slice(piece.start, piece.end),
                Chunk::Stored => self.read_stored(piece)?,
            });
        }
        Ok(list)
    }

    fn write(&mut self, at: u64, data: &DataList) -> Result<(), Failure> {
        // Nothing fails from then on: a write is carried out as a whole or not at all.
        self.load(at, to_u64(data.len()))?;
        let mut at = at;
        for part in data.parts() {
            let mut from = 0;
            for piece in pieces(at, to_u64(part.len())) {
                if let (Some(bytes), Some(chunk)) =
                    (part.get(from..from + piece.len()), self.allocated(piece.chunk))
                {
                    chunk.overwrite(piece.start, bytes);
                }
                from += piece.len();
            }
            at = at.saturating_add(to_u64(part.len()));
        }
        Ok(())
    }

    fn write_zeros(&mut self, at: u64, len: u64) -> Result<(), Failure> {
        self.load(at, len)?;
        let zeros = self.zeros.clone();
        for piece in pieces(at, len) {
            if let Some(chunk) = self.allocated(piece.chunk) {
                chunk.overwrite(piece.start, zeros.get(..piece.len()).unwrap_or_default());
            }
        }
        Ok(())
    }

    fn deallocate(&mut self, at: u64, len: u64) -> Result<(), Failure> {
        let zeros = self.zeros.clone();
        let medium_len = self.len;
        let is_whole = |piece: &Piece| {
            piece.start == 0
                && (piece.end == CHUNK || piece.chunk * to_u64(CHUNK) + to_u64(piece.end) == medium_len)
        };
        // Only the first and the last chunk can keep data. Nothing fails from then on.
        let end = at.saturating_add(len);
        let last = at.max(end.saturating_sub(1) / to_u64(CHUNK) * to_u64(CHUNK));
        for part in [pieces(at, len).next(), pieces(last, end.saturating_sub(last)).next()] {
            if let Some(piece) = part.filter(|piece| !is_whole(piece)) {
                self.load_chunk(piece.chunk)?;
            }
        }
        for piece in pieces(at, len) {
            if is_whole(&piece) {
                let chunk = self.slot(piece.chunk).map(mem::take).unwrap_or_default();
                self.chunks -= u64::from(!matches!(chunk, Chunk::Hole));
                self.stored -= u64::from(matches!(chunk, Chunk::Stored));
            } else if let Some(Chunk::Memory(chunk)) = self.slot(piece.chunk) {
                chunk.overwrite(piece.start, zeros.get(..piece.len()).unwrap_or_default());
            }
        }
        self.discard(at, len);
        Ok(())
    }

    fn extents(&self, at: u64, len: u64, count_max: usize) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = at;
        for piece in pieces(at, len) {
            let mapped = !matches!(self.chunk(piece.chunk), Chunk::Hole);
            let state = if mapped { ExtentState::Mapped } else { ExtentState::Hole };
            let len = to_u64(piece.len());
            let full = extents.len() >= count_max;
            match extents.last_mut() {
                Some(last) if last.state == state => last.len += len,
                _ if full => break,
                _ => extents.push(Extent { at, len, state }),
            }
            at += len;
        }
        extents
    }

    fn chunk(&self, number: u64) -> &Chunk {
        let (sheet, within) = place(number);
        let sheet = self.sheets.get(sheet).and_then(Option::as_ref);
        sheet.and_then(|sheet| sheet.get(within)).unwrap_or(&Chunk::Hole)
    }

    /// Returns the slot of a chunk, if its sheet exists.
    fn slot(&mut self, number: u64) -> Option<&mut Chunk> {
        let (sheet, within) = place(number);
        self.sheets.get_mut(sheet)?.as_mut()?.get_mut(within)
    }

    /// Returns the slot of a chunk, and makes its sheet if there is none.
    fn slot_made(&mut self, number: u64) -> Option<&mut Chunk> {
        let (sheet, within) = place(number);
        let sheet = self.sheets.get_mut(sheet)?.get_or_insert_with(|| {
            let mut chunks = Vec::new();
            chunks.resize_with(CHUNKS_PER_SHEET, Chunk::default);
            chunks.into_boxed_slice()
        });
        sheet.get_mut(within)
    }

    /// Returns a chunk for writing and allocates it if it was never written. It must not be in the storage.
    fn allocated(&mut self, number: u64) -> Option<&mut Bytes> {
        let was_hole = matches!(self.chunk(number), Chunk::Hole);
        self.chunks += u64::from(was_hole);
        let slot = self.slot_made(number)?;
        if was_hole {
            *slot = Chunk::Memory(zero_chunk());
        }
        match slot {
            Chunk::Memory(chunk) => Some(chunk),
            Chunk::Hole | Chunk::Stored => None,
        }
    }
}

impl Store for Ram {
    fn space(&self) -> Option<Space> {
        let used = self.chunks.saturating_mul(to_u64(CHUNK)).min(self.len);
        Some(Space { used, available: self.len - used, shared: true })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            len: self.len,
            logical_block_len: 1,
            preferred_block_len: 4096,
            io_len_max: IO_LEN_MAX,
            atomic_len_max: IO_LEN_MAX,
            read_only: false,
            volatile_cache: false,
            thin: true,
            deallocated_reads_zero: true,
            zeroes_by_deallocating: true,
            deallocated_is_gone: true,
            rotational: false,
            crypto_erase: false,
        }
    }

    fn submit(&mut self, op: Op) {
        let result = self.perform(op.action);
        self.completions.push_back(Completion { id: op.id, result });
    }

    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
}

/// Splits a range at chunk boundaries.
fn pieces(at: u64, len: u64) -> impl Iterator<Item = Piece> {
    let (mut at, end) = (at, at.saturating_add(len));
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let chunk = at / to_u64(CHUNK);
        let base = chunk * to_u64(CHUNK);
        let stop = end.min(base.saturating_add(to_u64(CHUNK)));
        let within = |at: u64| usize::try_from(at - base).unwrap_or(CHUNK);
        let piece = Piece { chunk, start: within(at), end: within(stop) };
        at = stop;
        Some(piece)
    })
}

fn place(chunk: u64) -> (usize, usize) {
    let per_sheet = to_u64(CHUNKS_PER_SHEET);
    let narrow = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    (narrow(chunk / per_sheet), narrow(chunk % per_sheet))
}

fn zero_chunk() -> Bytes {
    let mut buf = Buf::with_capacity(CHUNK);
    buf.append_zeros(CHUNK);
    buf.freeze()
}

#[cfg(test)]
mod tests;
