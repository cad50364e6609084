//! The driver half of a split virtqueue (VIRTIO 1.2, clause 2.7).
//!
//! Each request has a slot with a chain of up to [`CHAIN_MAX`] descriptors of its own, so there is no list of
//! free descriptors that a device could damage.

use std::sync::atomic::{Ordering, fence};

use base::int_cast::to_u64;

use crate::memory::{OutOfBounds, SharedMemory};

/// The most descriptors of one request: a header, data, and a status.
pub const CHAIN_MAX: usize = 3;

/// The number of descriptors: a power of two. Many back ends take no more.
pub const SIZE: u16 = 128;

/// The most requests under way.
pub const SLOTS: u16 = SIZE / 3;

/// The parts of the queue, as offsets from its start. Each is aligned as the standard demands.
pub const DESCRIPTORS: usize = 0;
/// The ring of available chains: flags, an index, and an entry of 2 bytes for each descriptor.
pub const AVAILABLE: usize = 16 * SIZE as usize;
/// The ring of used chains: flags, an index, and an entry of 8 bytes for each descriptor.
pub const USED: usize = AVAILABLE + 8 + 2 * SIZE as usize;
/// Where the queue ends.
pub const END: usize = USED + 8 + 8 * SIZE as usize;

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;

/// The device needs no notice of available chains.
const USED_FLAG_NO_NOTIFY: u16 = 1;

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The offset in the shared memory.
    pub at: usize,
    /// The length in bytes.
    pub len: u32,
    /// Whether the device writes it.
    pub is_written: bool,
}

/// How a device broke the protocol of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The index of the used ring moved further than requests are under way.
    #[error("the device reports more used requests than are under way")]
    TooManyUsed,
    /// A used entry has a number that is not that of a request.
    #[error("the device reports a used request that does not exist")]
    UnknownRequest,
    /// A used entry is about a request that is not under way.
    #[error("the device reports a used request that is not under way")]
    NotUnderWay,
    /// A used entry says that more was written than the request has room for.
    #[error("the device reports more bytes than the request has room for")]
    TooLong,
    /// A read succeeded, and fewer bytes were written than it asked for.
    #[error("the device reports a read as good and has not written all of its data")]
    DataMissing,
    /// The status of a request has no legal value.
    #[error("the device reports a status that does not exist")]
    UnknownStatus,
    /// This process is wrong.
    #[error("internal error of targe: {0}")]
    Bug(&'static str),
}

impl From<OutOfBounds> for RingError {
    fn from(_: OutOfBounds) -> Self {
        Self::Bug("an access outside the shared memory")
    }
}

/// The queue.
#[derive(Debug)]
pub struct Ring {
    memory: SharedMemory,
    /// The offset of the queue in the memory.
    at: usize,
    /// The index of the next chain that is made available, and the one that the device was told of.
    available: u16,
    told: u16,
    /// The index of the next used chain.
    used: u16,
    /// The number of bytes that the device may write, for each slot with a request under way.
    under_way: [Option<u32>; SLOTS as usize],
    count: u16,
}

impl Ring {
    /// Makes an empty queue at an offset of the memory, which is a multiple of 16.
    pub const fn new(memory: SharedMemory, at: usize) -> Self {
        Self { memory, at, available: 0, told: 0, used: 0, under_way: [None; SLOTS as usize], count: 0 }
    }

    /// Returns how many requests are under way.
    pub const fn under_way(&self) -> u16 {
        self.count
    }

    /// Returns the index of the next used chain, from which a device that was restarted goes on.
    pub const fn used_index(&self) -> u16 {
        self.used
    }

    /// Returns a slot without a request.
    pub fn free_slot(&self) -> Option<usize> {
        self.under_way.iter().position(Option::is_none)
    }

    /// Makes a request available to the device. [`Self::tell`] tells it.
    ///
    /// # Errors
    /// [`RingError::Bug`]
    pub fn put(&mut self, slot: usize, segments: &[Segment]) -> Result<(), RingError> {
        let place = self.under_way.get_mut(slot).ok_or(RingError::Bug("a slot that does not exist"))?;
        if place.is_some() || segments.is_empty() || segments.len() > CHAIN_MAX {
            return Err(RingError::Bug("a request that does not fit its slot"));
        }
        let written = segments.iter().filter(|segment| segment.is_written).map(|segment| segment.len);
        *place = Some(written.fold(0, u32::saturating_add));
        self.count = self.count.saturating_add(1);
        let head = u16::try_from(slot * CHAIN_MAX).map_err(|_| RingError::Bug("a slot beyond the queue"))?;
        for (number, segment) in (head..).zip(segments) {
            let is_last = usize::from(number - head) + 1 == segments.len();
            let next = if is_last { 0 } else { FLAG_NEXT };
            let flags = next | if segment.is_written { FLAG_WRITE } else { 0 };
            let mut entry = [0; 16];
            let fields = [
                SharedMemory::device_address(segment.at),
                u64::from(segment.len) | u64::from(flags) << 32 | u64::from(number.wrapping_add(1)) << 48,
            ];
            for (place, field) in entry.chunks_exact_mut(8).zip(fields) {
                place.copy_from_slice(&field.to_le_bytes());
            }
            self.memory.write(self.at + DESCRIPTORS + 16 * usize::from(number), &entry)?;
        }
        let entry = self.at + AVAILABLE + 4 + 2 * usize::from(self.available % SIZE);
        self.memory.write(entry, &head.to_le_bytes())?;
        self.available = self.available.wrapping_add(1);
        Ok(())
    }

    /// Tells the device of the requests that were put. Returns whether it needs a notice.
    ///
    /// # Errors
    /// [`RingError::Bug`]
    pub fn tell(&mut self) -> Result<bool, RingError> {
        if std::mem::replace(&mut self.told, self.available) == self.available {
            return Ok(false);
        }
        self.memory.store(self.at + AVAILABLE + 2, self.available)?;
        // The device looks for requests after it has asked for notices, and this side for the flag after it
        // has published requests: one of the two sees what the other has written.
        fence(Ordering::SeqCst);
        Ok(self.memory.load(self.at + USED)? & USED_FLAG_NO_NOTIFY == 0)
    }

    /// Returns the slot of the next request that the device has used, and how many bytes it has written.
    ///
    /// # Errors
    /// [`RingError`]; nothing that the device says can be trusted any more.
    pub fn next_used(&mut self) -> Result<Option<(usize, u32)>, RingError> {
        let waiting = self.memory.load(self.at + USED + 2)?.wrapping_sub(self.used);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.count {
            return Err(RingError::TooManyUsed);
        }
        let mut entry = [0; 8];
        self.memory.read(self.at + USED + 4 + 8 * usize::from(self.used % SIZE), &mut entry)?;
        let entry = u64::from_le_bytes(entry);
        let (head, len) = (entry & u64::from(u32::MAX), u32::try_from(entry >> 32).unwrap_or(u32::MAX));
        let chain = to_u64(CHAIN_MAX);
        let slot = usize::try_from(head / chain).map_err(|_| RingError::UnknownRequest)?;
        if !head.is_multiple_of(chain) || slot >= self.under_way.len() {
            return Err(RingError::UnknownRequest);
        }
        let room = self.under_way.get_mut(slot).and_then(Option::take).ok_or(RingError::NotUnderWay)?;
        if len > room {
            return Err(RingError::TooLong);
        }
        self.used = self.used.wrapping_add(1);
        self.count = self.count.saturating_sub(1);
        Ok(Some((slot, len)))
    }
}
