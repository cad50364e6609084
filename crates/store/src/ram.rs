//! A medium in memory: chunks that are allocated on the first write and shared with their readers.
//!
//! A read copies nothing: it returns references to the chunks. A write to a chunk that is still shared (with
//! a response that is being sent) copies the chunk first, so data that was read never changes.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::to_u64;

use crate::api::{
    Capabilities, Completion, Extent, ExtentState, Failure, Fault, Op, OpAction, OpOutput, Space, Store,
};

/// The length of a chunk in bytes. A write to a shared chunk copies at most this much; smaller chunks need a
/// larger table.
const CHUNK: usize = 64 << 10;

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
    zeros: Bytes,
    completions: VecDeque<Completion>,
}

/// `CHUNKS_PER_SHEET` chunks; those never written are `None`.
type Sheet = Box<[Option<Bytes>]>;

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
        Self { len, sheets: table, chunks: 0, zeros: zero_chunk(), completions: VecDeque::new() }
    }

    /// Changes the size to `len` bytes. Data beyond the new end is lost; added bytes read as zeros.
    pub fn resize(&mut self, len: u64) {
        let grown = Self::new(len).sheets.len();
        if len < self.len {
            self.deallocate(len, self.len - len);
        }
        self.sheets.resize_with(grown, || None);
        self.len = len;
    }

    fn perform(&mut self, action: OpAction) -> Result<OpOutput, Failure> {
        let done = Ok(OpOutput::Done(DataList::new()));
        match action {
            OpAction::Read { at, len } => {
                self.check_transfer(at, len)?;
                Ok(OpOutput::Data(self.read(at, len)))
            }
            OpAction::Write { at, data, .. } => {
                self.check_transfer(at, data.len())?;
                self.write(at, &data);
                Ok(OpOutput::Done(data))
            }
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => Err(Fault::Unsupported.into()),
            OpAction::Flush => done,
            OpAction::Deallocate { at, len }
            | OpAction::WriteZeroes { at, len, may_deallocate: true, .. } => {
                self.check(at, len)?;
                self.deallocate(at, len);
                done
            }
            OpAction::WriteZeroes { at, len, may_deallocate: false, .. } => {
                self.check(at, len)?;
                self.write_zeros(at, len);
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

    fn read(&self, at: u64, len: usize) -> DataList {
        let mut list = DataList::new();
        for piece in pieces(at, to_u64(len)) {
            let chunk = self.chunk(piece.chunk).unwrap_or(&self.zeros);
            list.push(chunk.slice(piece.start, piece.end));
        }
        list
    }

    fn write(&mut self, at: u64, data: &DataList) {
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
    }

    fn write_zeros(&mut self, at: u64, len: u64) {
        let zeros = self.zeros.clone();
        for piece in pieces(at, len) {
            if let Some(chunk) = self.allocated(piece.chunk) {
                chunk.overwrite(piece.start, zeros.get(..piece.len()).unwrap_or_default());
            }
        }
    }

    fn deallocate(&mut self, at: u64, len: u64) {
        let zeros = self.zeros.clone();
        let medium_len = self.len;
        let mut freed = 0;
        for piece in pieces(at, len) {
            let whole = piece.start == 0
                && (piece.end == CHUNK || piece.chunk * to_u64(CHUNK) + to_u64(piece.end) == medium_len);
            let Some(slot) = self.slot(piece.chunk) else { continue };
            if whole {
                freed += u64::from(slot.take().is_some());
            } else if let Some(chunk) = slot {
                chunk.overwrite(piece.start, zeros.get(..piece.len()).unwrap_or_default());
            }
        }
        self.chunks -= freed;
    }

    fn extents(&self, at: u64, len: u64, count_max: usize) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = at;
        for piece in pieces(at, len) {
            let mapped = self.chunk(piece.chunk).is_some();
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

    fn chunk(&self, number: u64) -> Option<&Bytes> {
        let (sheet, within) = place(number);
        self.sheets.get(sheet)?.as_ref()?.get(within)?.as_ref()
    }

    /// Returns the slot of a chunk, if its sheet exists.
    fn slot(&mut self, number: u64) -> Option<&mut Option<Bytes>> {
        let (sheet, within) = place(number);
        self.sheets.get_mut(sheet)?.as_mut()?.get_mut(within)
    }

    /// Returns a chunk for writing and allocates it if it was never written.
    fn allocated(&mut self, number: u64) -> Option<&mut Bytes> {
        let (sheet, within) = place(number);
        let sheet = self.sheets.get_mut(sheet)?.get_or_insert_with(|| {
            let mut chunks = Vec::new();
            chunks.resize_with(CHUNKS_PER_SHEET, || None);
            chunks.into_boxed_slice()
        });
        let slot = sheet.get_mut(within)?;
        self.chunks += u64::from(slot.is_none());
        Some(slot.get_or_insert_with(zero_chunk))
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
