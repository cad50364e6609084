//! File operations under way.

use alloc::collections::{BTreeMap, VecDeque};

use store::api::{OpAction, OpId};

/// A file of a cartridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileId {
    /// The label file.
    Label,
    /// A segment of the log of a partition. The owner makes the file when something is written to it, and a
    /// flush of it makes its name durable too. A read of a file that is not there ends with
    /// [`store::api::Fault::OutOfRange`]. A deallocation of a whole segment can remove the file.
    Log {
        /// The partition.
        partition: u8,
        /// The number of the segment.
        segment: u32,
    },
}

/// A file operation. Writes begin at multiples of [`crate::layout::BLOCK_LEN`] and have such lengths.
#[derive(Debug)]
pub struct Request {
    /// Identifies the operation.
    pub id: OpId,
    /// The file.
    pub file: FileId,
    /// The operation.
    pub action: OpAction,
}

/// Why an operation is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    LogWrite { len: usize },
    LogFlush,
    Label,
    LabelRead { copy: u8 },
    Chunk { partition: u8, chunk: u64 },
    Block { partition: u8, chunk: u64, block: u16 },
    ChunkHeader { partition: u8, chunk: u64 },
    Deallocate,
}

#[derive(Debug, Default)]
pub(crate) struct Io {
    last: u64,
    queue: VecDeque<Request>,
    pending: BTreeMap<u64, Purpose>,
}

impl Io {
    pub(crate) fn submit(&mut self, purpose: Purpose, file: FileId, action: OpAction) {
        self.last += 1;
        self.pending.insert(self.last, purpose);
        self.queue.push_back(Request { id: OpId(self.last), file, action });
    }

    pub(crate) fn poll(&mut self) -> Option<Request> {
        self.queue.pop_front()
    }

    pub(crate) fn complete(&mut self, id: OpId) -> Option<Purpose> {
        self.pending.remove(&id.0)
    }

    pub(crate) fn is_pending(&self, purpose: Purpose) -> bool {
        self.pending.values().any(|pending| *pending == purpose)
    }

    /// Returns how many bytes of log writes are under way.
    pub(crate) fn writing(&self) -> usize {
        let len = |purpose: &Purpose| if let Purpose::LogWrite { len } = purpose { *len } else { 0 };
        self.pending.values().map(len).sum()
    }

    /// Returns whether a log is being read, perhaps ahead.
    pub(crate) fn is_reading(&self) -> bool {
        self.pending.values().any(|purpose| {
            matches!(purpose, Purpose::Chunk { .. } | Purpose::Block { .. } | Purpose::ChunkHeader { .. })
        })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}
