//! The chunks of logs that were read last.

use alloc::collections::{BTreeMap, VecDeque};

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::to_usize;
use store::api::{Failure, Fault, OpAction, OpOutput};

use super::{Cartridge, Halt, segment_of};
use crate::error::Error;
use crate::io::{FileId, Purpose};
use crate::layout::{BLOCK_LEN, BODY_LEN, CHUNK_LEN, ChunkHeader, HEADER_LEN, ItemHeader, Seal};

/// How many chunks are kept.
const CHUNKS_MAX: usize = 8;
/// How many chunk headers are kept.
const HEADERS_MAX: usize = 4096;

/// A chunk: its partition and number.
pub(super) type ChunkId = (u8, u64);

#[derive(Debug, Default)]
pub(super) struct Cache {
    /// The chunk used last is at the back. A chunk of a file that is not there has no bytes.
    chunks: VecDeque<(ChunkId, Option<Bytes>)>,
    headers: BTreeMap<ChunkId, Option<ChunkHeader>>,
    /// The reads that failed during this command. The next command tries again.
    failed: BTreeMap<ChunkId, Failure>,
    /// The chunk that the last record ended in.
    last_read: Option<ChunkId>,
}

impl Cache {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets which reads failed.
    pub(super) fn forget_failures(&mut self) {
        self.failed.clear();
    }

    /// Forgets a chunk, which is written again.
    pub(super) fn forget(&mut self, id: ChunkId) {
        self.chunks.retain(|(of, _)| *of != id);
        self.headers.remove(&id);
    }

    pub(super) fn handle_chunk(&mut self, id: ChunkId, result: Result<OpOutput, Failure>) {
        match bytes_of(result) {
            Ok(bytes) => {
                self.chunks.retain(|(of, _)| *of != id);
                if self.chunks.len() >= CHUNKS_MAX {
                    self.chunks.pop_front();
                }
                self.chunks.push_back((id, bytes));
            }
            Err(failure) => self.fail(id, failure),
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

    fn fail(&mut self, id: ChunkId, failure: Failure) {
        if self.failed.len() >= HEADERS_MAX {
            self.failed.pop_first();
        }
        self.failed.insert(id, failure);
    }

    pub(super) fn is_header_damaged(&self, id: ChunkId, seal: &Seal) -> bool {
        let chunk = self.chunks.iter().find(|(of, _)| *of == id).and_then(|(_, bytes)| bytes.as_ref());
        chunk.is_some_and(|bytes| ChunkHeader::decode(bytes, seal, id.1).is_none())
    }

    fn chunk(&mut self, id: ChunkId) -> Option<Option<Bytes>> {
        let at = self.chunks.iter().position(|(of, _)| *of == id)?;
        let entry = self.chunks.remove(at)?;
        let bytes = entry.1.clone();
        self.chunks.push_back(entry);
        Some(bytes)
    }
}

impl Cartridge {
    /// Returns a chunk, or nothing if its file is not there.
    pub(super) fn chunk(&mut self, id: ChunkId) -> Result<Option<Bytes>, Halt> {
        if let Some(bytes) = self.cache.chunk(id) {
            return Ok(bytes);
        }
        if let Some(failure) = self.cache.failed.get(&id).copied() {
            return Err(Error::Read(failure).into());
        }
        self.request_chunk(id);
        Err(Halt::Wait)
    }

    /// Returns the header of a chunk, or nothing if it is damaged or missing.
    pub(super) fn chunk_header(&mut self, id: ChunkId) -> Result<Option<ChunkHeader>, Halt> {
        if let Some(header) = self.cache.headers.get(&id) {
            return Ok(*header);
        }
        let seal = self.part(id.0)?.seal;
        if let Some(chunk) = self.cache.chunk(id) {
            return Ok(chunk.and_then(|bytes| ChunkHeader::decode(&bytes, &seal, id.1)));
        }
        if let Some(failure) = self.cache.failed.get(&id).copied() {
            return Err(Error::Read(failure).into());
        }
        let purpose = Purpose::ChunkHeader { partition: id.0, chunk: id.1 };
        if !self.io.is_pending(purpose) {
            self.request_read(purpose, id, BLOCK_LEN);
        }
        Err(Halt::Wait)
    }

    /// Returns the bytes of the stream from `at` to the end of the chunk, or nothing if they are not there.
    pub(super) fn stream(&mut self, partition: u8, at: u64) -> Result<Option<Bytes>, Halt> {
        let chunk = self.chunk((partition, at / BODY_LEN))?;
        let start = to_usize(HEADER_LEN + at % BODY_LEN);
        Ok(chunk.map(|bytes| bytes.slice(start, bytes.len())).filter(|bytes| !bytes.is_empty()))
    }

    /// Returns the header of the item at `at` in the stream, or nothing if there is none.
    pub(super) fn item(&mut self, partition: u8, at: u64) -> Result<Option<ItemHeader>, Halt> {
        let seal = self.part(partition)?.seal;
        Ok(self.stream(partition, at)?.and_then(|bytes| ItemHeader::decode(&bytes, &seal, at)))
    }

    /// Requests the chunk behind one that is read, if reads are sequential.
    pub(super) fn read_ahead(&mut self, id: ChunkId) {
        let before = self.cache.last_read.replace(id);
        let next = (id.0, id.1 + 1);
        let Ok(part) = self.part(id.0) else { return };
        let is_sequential =
            before.is_some_and(|before| before == id || (before.0, before.1 + 1) == id) || id.1 == 0;
        let is_known = self.cache.chunks.iter().any(|(of, _)| *of == next);
        if is_sequential && next.1 * BODY_LEN < part.now.end && !is_known {
            self.request_chunk(next);
        }
    }

    fn request_chunk(&mut self, id: ChunkId) {
        let purpose = Purpose::Chunk { partition: id.0, chunk: id.1 };
        if !self.io.is_pending(purpose) {
            self.request_read(purpose, id, CHUNK_LEN);
        }
    }

    fn request_read(&mut self, purpose: Purpose, (partition, chunk): ChunkId, len: u64) {
        let segment_len = self.label.as_ref().map_or(CHUNK_LEN, |label| label.segment_len);
        let (segment, at) = segment_of(chunk * CHUNK_LEN, segment_len);
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

fn in_one_piece(data: DataList) -> Bytes {
    if let [one] = data.parts() {
        return one.clone();
    }
    let mut buf = Buf::with_capacity(data.len());
    data.parts().iter().for_each(|part| {
        buf.append(part);
    });
    buf.freeze()
}
