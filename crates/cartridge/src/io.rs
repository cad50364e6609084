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

/// The bits of an address that hold the offset in a file: segments of up to 2 TiB.
const OFFSET_BITS: u32 = 41;
/// The bits that hold the number of a segment: as many as a label can have.
const SEGMENT_BITS: u32 = 20;

impl FileId {
    /// Returns the address of a byte of this file in one address space that holds every file of a cartridge,
    /// so that a [`store::Store`] can be all of them. `None` if the file has no such byte.
    pub fn address(self, at: u64) -> Option<u64> {
        let (number, segment) = match self {
            Self::Label => (0, 0),
            Self::Log { partition, segment } => (u64::from(partition) + 1, u64::from(segment)),
        };
        let fits = at >> OFFSET_BITS == 0 && segment >> SEGMENT_BITS == 0 && number < 1 << 3;
        fits.then_some(number << (OFFSET_BITS + SEGMENT_BITS) | segment << OFFSET_BITS | at)
    }

    /// Returns the file and the offset in it of an address that [`Self::address`] returned.
    pub fn of_address(address: u64) -> (Self, u64) {
        let at = address & ((1 << OFFSET_BITS) - 1);
        let segment = address >> OFFSET_BITS & ((1 << SEGMENT_BITS) - 1);
        let number = address >> (OFFSET_BITS + SEGMENT_BITS);
        let file = match number.checked_sub(1) {
            None => Self::Label,
            Some(partition) => Self::Log {
                partition: u8::try_from(partition).unwrap_or(u8::MAX),
                segment: u32::try_from(segment).unwrap_or(u32::MAX),
            },
        };
        (file, at)
    }
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
    pub(crate) fn submit(&mut self, purpose: Purpose, file: FileId, action: OpAction) -> OpId {
        self.last += 1;
        self.pending.insert(self.last, purpose);
        let id = OpId(self.last);
        self.queue.push_back(Request { id, file, action });
        id
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_cartridge_has_an_address_of_its_own() {
        let log = |partition, segment| FileId::Log { partition, segment };
        let last = (1 << OFFSET_BITS) - 1;
        let mut before = None;
        for file in
            [FileId::Label, log(0, 0), log(0, 1), log(0, (1 << SEGMENT_BITS) - 1), log(1, 0), log(3, 7)]
        {
            for at in [0, 1, 4096, last] {
                let address = file.address(at).unwrap();
                assert_eq!(FileId::of_address(address), (file, at));
                assert!(before < Some(address), "addresses ascend with files and offsets");
                before = Some(address);
            }
            assert_eq!(file.address(last + 1), None);
        }
        assert_eq!(log(0, 1 << SEGMENT_BITS).address(0), None);
        assert_eq!(log(7, 0).address(0), None);
    }
}
