//! The chunks of logs that were read last.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::buffer::{Buf, Bytes};
use base::int_cast::to_usize;
use store::api::{Failure, Fault, OpAction, OpOutput};

use super::chunk::{BLOCKS, Chunk, Salvage, in_one_piece};
use super::{Cartridge, Halt, segment_of};
use crate::error::Error;
use crate::io::{FileId, Purpose};
use crate::layout::{BLOCK_LEN, BODY_LEN, CHUNK_LEN, ChunkHeader, HEADER_LEN, ItemHeader, Seal};

/// How many chunks are kept.
const CHUNKS_MAX: usize = 8;
/// How many chunks are read ahead, so that one is there while the next one is read.
const AHEAD: u64 = 2;
/// How many chunk headers are kept.
const HEADERS_MAX: usize = 4096;

/// How many bytes the buffers have together that wait for the owner: those of the records of a chunk, and two
/// chunks.
const SPENT_BYTES_MAX: usize = 4 << 20;

/// A chunk: its partition and number.
pub(super) type ChunkId = (u8, u64);

#[derive(Debug, Default)]
pub(super) struct Cache {
    /// The chunk used last is at the back. A chunk of a file that is not there has no bytes.
    chunks: VecDeque<(ChunkId, Option<Chunk>)>,
    headers: BTreeMap<ChunkId, Option<ChunkHeader>>,
    /// The reads that failed since the last command that failed.
    failed: BTreeMap<ChunkId, Failure>,
    /// The chunk that is read block by block, since it cannot be read as a whole.
    salvage: Option<(ChunkId, Salvage)>,
    /// Buffers that are no longer needed.
    spent: Vec<Buf>,
    /// The chunk that the last record ended in.
    last_read: Option<ChunkId>,
}

impl Cache {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets what could not be read, so that the next command tries again.
    pub(super) fn forget_failures(&mut self) {
        self.failed.clear();
        self.chunks.retain(|(_, chunk)| chunk.as_ref().is_none_or(Chunk::is_whole));
    }

    /// Forgets a chunk, which is written again.
    pub(super) fn forget(&mut self, id: ChunkId) {
        self.chunks.retain(|(of, _)| *of != id);
        self.headers.remove(&id);
        self.failed.remove(&id);
    }

    pub(super) fn handle_chunk(&mut self, id: ChunkId, result: Result<OpOutput, Failure>) {
        match bytes_of(result) {
            Ok(Some(bytes)) if bytes.len() != to_usize(CHUNK_LEN) => self.fail(id, Fault::Bug.into()),
            Ok(bytes) => self.keep(id, bytes.map(Chunk::from)),
            Err(failure) => self.fail(id, failure),
        }
    }

    pub(super) fn handle_block(&mut self, id: ChunkId, block: u16, result: Result<OpOutput, Failure>) {
        let Some((_, salvage)) = self.salvage.as_mut().filter(|(of, _)| *of == id) else { return };
        salvage.handle_block(block, bytes_of(result));
        if salvage.is_done()
            && let Some((_, salvage)) = self.salvage.take()
        {
            self.failed.remove(&id);
            self.keep(id, Some(salvage.chunk()));
        }
    }

    pub(super) fn handle_header(
        &mut self,
        id: ChunkId,
        seal: Option<&Seal>,
        result: Result<OpOutput, Failure>,
    ) {
        match bytes_of(result) {
            Ok(bytes) => {
                if self.headers.len() >= HEADERS_MAX {
                    self.headers.clear();
                }
                let header =
                    bytes.zip(seal).and_then(|(bytes, seal)| ChunkHeader::decode(&bytes, seal, id.1));
                self.headers.insert(id, header);
            }
            Err(failure) => self.fail(id, failure),
        }
    }

    fn keep(&mut self, id: ChunkId, chunk: Option<Chunk>) {
        self.chunks.retain(|(of, _)| *of != id);
        if self.chunks.len() >= CHUNKS_MAX
            && let Some((_, Some(oldest))) = self.chunks.pop_front()
            && let Some(buf) = oldest.into_buf()
        {
            self.spend(buf);
        }
        self.chunks.push_back((id, chunk));
    }

    fn fail(&mut self, id: ChunkId, failure: Failure) {
        if self.failed.len() >= HEADERS_MAX {
            self.failed.pop_first();
        }
        self.failed.insert(id, failure);
    }

    /// Keeps a buffer for the owner, or frees it if too much waits.
    pub(super) fn spend(&mut self, buf: Buf) {
        let waiting = self.spent.iter().map(Buf::capacity).fold(buf.capacity(), usize::saturating_add);
        if waiting <= SPENT_BYTES_MAX {
            self.spent.push(buf);
        }
    }

    pub(super) fn take_spent(&mut self) -> Option<Buf> {
        self.spent.pop()
    }

    pub(super) fn is_header_damaged(&self, id: ChunkId, seal: &Seal) -> bool {
        let chunk = self.chunks.iter().find(|(of, _)| *of == id).and_then(|(_, chunk)| chunk.as_ref());
        chunk.is_some_and(|chunk| chunk.header(seal, id.1).is_none())
    }

    fn chunk(&mut self, id: ChunkId) -> Option<Option<Chunk>> {
        let at = self.chunks.iter().position(|(of, _)| *of == id)?;
        let entry = self.chunks.remove(at)?;
        let chunk = entry.1.clone();
        self.chunks.push_back(entry);
        Some(chunk)
    }

    /// Returns whether the chunks of these bytes of the stream are kept, including those of both ends.
    pub(super) fn has_chunks(&self, partition: u8, first: u64, last: u64) -> bool {
        let has = |number| self.chunks.iter().any(|(of, _)| *of == (partition, number));
        (first / BODY_LEN..=last / BODY_LEN).all(has)
    }

    fn is_salvaged(&self, id: ChunkId) -> bool {
        self.salvage.as_ref().is_some_and(|(of, _)| *of == id)
    }
}

impl Cartridge {
    /// Returns a chunk, or nothing if its file is not there. Of a chunk that cannot be read as a whole, it
    /// reads what can be read.
    pub(super) fn chunk(&mut self, id: ChunkId) -> Result<Option<Chunk>, Halt> {
        if let Some(chunk) = self.cache.chunk(id) {
            return Ok(chunk);
        }
        match self.cache.failed.get(&id).copied() {
            None => self.request_chunk(id),
            Some(_) if self.cache.is_salvaged(id) => {}
            Some(failure) if failure.fault == Fault::Medium => {
                self.cache.salvage = Some((id, Salvage::new(failure)));
                for block in 0..BLOCKS {
                    let purpose = Purpose::Block { partition: id.0, chunk: id.1, block };
                    self.request_read(purpose, id, u64::from(block) * BLOCK_LEN, BLOCK_LEN);
                }
            }
            Some(failure) => return Err(Error::Read(failure).into()),
        }
        Err(Halt::Wait)
    }

    /// Returns the header of a chunk, or nothing if it is damaged or missing.
    pub(super) fn chunk_header(&mut self, id: ChunkId) -> Result<Option<ChunkHeader>, Halt> {
        if let Some(header) = self.cache.headers.get(&id) {
            return Ok(*header);
        }
        let seal = self.part(id.0)?.seal;
        if let Some(chunk) = self.cache.chunk(id) {
            return Ok(chunk.and_then(|chunk| chunk.header(&seal, id.1)));
        }
        if let Some(failure) = self.cache.failed.get(&id).copied() {
            return Err(Error::Read(failure).into());
        }
        let purpose = Purpose::ChunkHeader { partition: id.0, chunk: id.1 };
        if !self.io.is_pending(purpose) {
            self.request_read(purpose, id, 0, BLOCK_LEN);
        }
        Err(Halt::Wait)
    }

    /// Returns the header of a chunk whose body is needed too.
    pub(super) fn header_in_chunk(&mut self, id: ChunkId) -> Result<Option<ChunkHeader>, Halt> {
        let seal = self.part(id.0)?.seal;
        Ok(self.chunk(id)?.and_then(|chunk| chunk.header(&seal, id.1)))
    }

    /// Returns bytes of the stream from `at` on, at most to the end of the chunk, or nothing if they are not
    /// there.
    pub(super) fn stream(&mut self, partition: u8, at: u64) -> Result<Option<Bytes>, Halt> {
        let Some(chunk) = self.chunk((partition, at / BODY_LEN))? else { return Ok(None) };
        let bytes = chunk.bytes_from(to_usize(HEADER_LEN + at % BODY_LEN)).map_err(Error::Read)?;
        Ok(Some(bytes))
    }

    /// Returns the header of the item at `at` in the stream, or nothing if there is none.
    pub(super) fn item(&mut self, partition: u8, at: u64) -> Result<Option<ItemHeader>, Halt> {
        let seal = self.part(partition)?.seal;
        let item = self.stream(partition, at)?.and_then(|bytes| ItemHeader::decode(&bytes, &seal, at));
        match item {
            Some(item)
                if at.is_multiple_of(BODY_LEN) && !self.is_chunk_of(partition, at / BODY_LEN, &item)? =>
            {
                Ok(None)
            }
            item => Ok(item),
        }
    }

    /// Requests the chunks behind one that is read, if reads are sequential.
    pub(super) fn read_ahead(&mut self, id: ChunkId) {
        let before = self.cache.last_read.replace(id);
        let Ok(part) = self.part(id.0) else { return };
        let end = part.now.end;
        let is_sequential =
            before.is_some_and(|before| before == id || (before.0, before.1 + 1) == id) || id.1 == 0;
        if !is_sequential {
            return;
        }
        for next in (id.1 + 1..=id.1 + AHEAD).take_while(|next| next * BODY_LEN < end) {
            let next = (id.0, next);
            let is_known =
                self.cache.chunks.iter().any(|(of, _)| *of == next) || self.cache.failed.contains_key(&next);
            if !is_known {
                self.request_chunk(next);
            }
        }
    }

    fn request_chunk(&mut self, id: ChunkId) {
        let purpose = Purpose::Chunk { partition: id.0, chunk: id.1 };
        if !self.io.is_pending(purpose) {
            self.request_read(purpose, id, 0, CHUNK_LEN);
        }
    }

    /// Requests `len` bytes of a chunk from `from` on.
    fn request_read(&mut self, purpose: Purpose, (partition, chunk): ChunkId, from: u64, len: u64) {
        let segment_len = self.label.as_ref().map_or(CHUNK_LEN, |label| label.segment_len);
        let (segment, at) = segment_of(chunk * CHUNK_LEN + from, segment_len);
        let segment = u32::try_from(segment).unwrap_or(u32::MAX);
        let file = FileId::Log { partition, segment };
        self.io.submit(purpose, file, OpAction::Read { at, len: to_usize(len) });
    }
}

/// Returns the bytes of a read in one piece, or none if the file is not there.
pub(super) fn bytes_of(result: Result<OpOutput, Failure>) -> Result<Option<Bytes>, Failure> {
    match result {
        Ok(OpOutput::Data(data)) => Ok(Some(in_one_piece(data))),
        Ok(_) => Err(Fault::Bug.into()),
        Err(Failure { fault: Fault::OutOfRange, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}
