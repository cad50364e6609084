//! A chunk of a log in memory. Blocks of it that cannot be read are marked.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::to_usize;
use store::api::{Failure, Fault};

use crate::layout::{BLOCK_LEN, CHUNK_LEN, ChunkHeader, Seal};

/// How many blocks a chunk has.
pub(super) const BLOCKS: u16 = 256;
const _: () = assert!(BLOCK_LEN * 256 == CHUNK_LEN, "a chunk has this many blocks");

#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Zeros stand for what cannot be read.
    bytes: Bytes,
    unreadable: Option<Arc<Unreadable>>,
}

#[derive(Debug)]
struct Unreadable {
    blocks: BTreeSet<u16>,
    failure: Failure,
}

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, unreadable: None }
    }
}

impl Chunk {
    pub(super) fn is_whole(&self) -> bool {
        self.unreadable.is_none()
    }

    /// Returns the buffer, if nobody else holds it.
    pub(super) fn into_buf(self) -> Option<Buf> {
        self.bytes.try_into_buf().ok()
    }

    /// Returns the header, or nothing if it is damaged or cannot be read.
    pub(super) fn header(&self, seal: &Seal, number: u64) -> Option<ChunkHeader> {
        ChunkHeader::decode(&self.bytes, seal, number)
    }

    /// Returns the bytes from `start` on, up to the end of the chunk or the first block that cannot be read.
    ///
    /// # Errors
    /// The block at `start` cannot be read.
    pub(super) fn bytes_from(&self, start: usize) -> Result<Bytes, Failure> {
        let end = match &self.unreadable {
            None => self.bytes.len(),
            Some(unreadable) => {
                let here = u16::try_from(start / block_len()).unwrap_or(BLOCKS);
                match unreadable.blocks.range(here..).next() {
                    Some(block) if *block == here => return Err(unreadable.failure),
                    Some(block) => usize::from(*block) * block_len(),
                    None => self.bytes.len(),
                }
            }
        };
        Ok(self.bytes.slice(start, end))
    }
}

/// A chunk that is read block by block.
#[derive(Debug)]
pub(super) struct Salvage {
    buf: Buf,
    left: u16,
    unreadable: BTreeSet<u16>,
    failure: Failure,
}

impl Salvage {
    /// Starts without any block. `failure` is how the read of the whole chunk failed.
    pub(super) fn new(failure: Failure) -> Self {
        let mut buf = Buf::with_capacity(to_usize(CHUNK_LEN));
        buf.append_zeros(to_usize(CHUNK_LEN));
        Self { buf, left: BLOCKS, unreadable: BTreeSet::new(), failure }
    }

    pub(super) fn handle_block(&mut self, block: u16, result: Result<Option<Bytes>, Failure>) {
        self.left = self.left.saturating_sub(1);
        let start = usize::from(block) * block_len();
        let room = self.buf.filled_mut().get_mut(start..start + block_len());
        match (result, room) {
            (Ok(Some(bytes)), Some(room)) if bytes.len() == room.len() => room.copy_from_slice(&bytes),
            // The file is gone meanwhile: what it held is missing.
            (Ok(None), _) => {}
            (result, _) => {
                self.failure = result.err().unwrap_or(Fault::Bug.into());
                self.unreadable.insert(block);
            }
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    pub(super) fn chunk(self) -> Chunk {
        let unreadable = Unreadable { blocks: self.unreadable, failure: self.failure };
        let is_whole = unreadable.blocks.is_empty();
        Chunk { bytes: self.buf.freeze(), unreadable: (!is_whole).then(|| Arc::new(unreadable)) }
    }
}

/// Returns the bytes in one piece.
pub(super) fn in_one_piece(data: DataList) -> Bytes {
    if let [one] = data.parts() {
        return one.clone();
    }
    let mut buf = Buf::with_capacity(data.len());
    data.parts().iter().for_each(|part| {
        buf.append(part);
    });
    buf.freeze()
}

fn block_len() -> usize {
    to_usize(BLOCK_LEN)
}
