//! Block devices (VIRTIO 1.2, clause 5.2): what a device says of itself, and requests.
//!
//! Each request owns a part of the shared memory. The data of a write is copied into it, and the data of a
//! read out of it: one copy for each byte.

use base::buffer::DataList;
use base::int_cast::to_usize;

use crate::memory::SharedMemory;
use crate::ring::{self, Ring, RingError, SLOTS, Segment};

/// The feature bits of a block device that this driver uses.
pub mod feature {
    /// `size_max` limits the length of a segment.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// The device is read-only.
    pub const READ_ONLY: u64 = 1 << 5;
    /// `blk_size` is the length of a logical block.
    pub const BLOCK_LEN: u64 = 1 << 6;
    /// The device has a volatile cache, and a flush command.
    pub const FLUSH: u64 = 1 << 9;
    /// `topology` has the length of a physical block.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The device can deallocate.
    pub const DISCARD: u64 = 1 << 13;
    /// The device can write zeros.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// The device complies with VIRTIO 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;
    /// Every bit that this driver understands.
    pub const ALL: u64 =
        SIZE_MAX | READ_ONLY | BLOCK_LEN | FLUSH | TOPOLOGY | DISCARD | WRITE_ZEROES | VERSION_1;
}

/// The length of the configuration up to the topology, which every device has.
pub const CONFIG_LEN_SHORT: u32 = 32;

/// The length of the configuration with the limits of DISCARD and WRITE ZEROES.
pub const CONFIG_LEN: u32 = 60;

/// The length of a sector, the unit of all addresses.
const SECTOR_LEN: u64 = 512;

/// The longest block that a device may have.
const BLOCK_LEN_MAX: u32 = 1 << 20;

/// The longest data of one request: QEMU's own driver sends about as much.
const DATA_LEN_MAX: u32 = 256 << 10;

/// The headers of the requests, behind the queue; [`HEADER_LEN`] bytes each.
const HEADERS: usize = ring::END.next_multiple_of(4096);
const HEADER_LEN: usize = 64;
/// The offset of the range of a DISCARD or WRITE ZEROES, and that of the status.
const RANGE: usize = 16;
const STATUS: usize = 32;
/// The data of the requests.
const DATA: usize = (HEADERS + SLOTS as usize * HEADER_LEN).next_multiple_of(4096);

/// The types of requests.
const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const TYPE_DISCARD: u32 = 11;
const TYPE_WRITE_ZEROES: u32 = 13;

/// The device may deallocate what it zeroes.
const FLAG_UNMAP: u32 = 1;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlkInfo {
    /// The size in bytes.
    pub len: u64,
    /// The length of a logical block in bytes: a power of two, at least 512.
    pub block_len: u32,
    /// The length of a physical block in bytes: a power of two, at least `block_len`.
    pub physical_block_len: u32,
    /// The longest data of one request in bytes, a multiple of `block_len`.
    pub data_len_max: u32,
    /// Whether the device refuses every change.
    pub read_only: bool,
    /// Whether the device has a volatile cache.
    pub flush: bool,
    /// The most bytes that one request deallocates, a multiple of `block_len`; zero if it cannot.
    pub discard_len_max: u32,
    /// The most bytes that one request zeroes, a multiple of `block_len`; zero if it cannot.
    pub zeroes_len_max: u32,
}

/// What a device says of itself is illegal, or nothing that this driver can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The configuration is too short.
    #[error("its configuration is too short")]
    TooShort,
    /// The size overflows.
    #[error("it claims a size of {0} sectors, which no device has")]
    Size(u64),
    /// The length of a block is illegal.
    #[error("it claims blocks of {0} bytes, and they must be a power of two from 512 bytes to 1 MiB")]
    BlockLen(u32),
    /// The device has no queue.
    #[error("it claims to have no queue")]
    NoQueues,
    /// A segment is shorter than a block.
    #[error("it takes no more than {0} bytes at once, which is less than one block")]
    SegmentLen(u32),
}

impl BlkInfo {
    /// Reads the configuration of a device that has these features.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn parse(features: u64, config: &[u8]) -> Result<Self, ConfigError> {
        let has = |bit: u64| features & bit != 0;
        let sectors = u64::from_le_bytes(field(config, 0)?);
        let len = sectors.checked_mul(SECTOR_LEN).filter(|len| *len <= i64::MAX.cast_unsigned());
        let block_len = if has(feature::BLOCK_LEN) { u32::from_le_bytes(field(config, 20)?) } else { 512 };
        if !block_len.is_power_of_two() || !(512..=BLOCK_LEN_MAX).contains(&block_len) {
            return Err(ConfigError::BlockLen(block_len));
        }
        let [exponent] = if has(feature::TOPOLOGY) { field(config, 24)? } else { [0] };
        let physical = block_len.checked_shl(u32::from(exponent)).unwrap_or(0);
        let is_usable = physical.is_power_of_two() && physical <= BLOCK_LEN_MAX;
        // QEMU's storage daemon offers a limit of zero, and means none.
        let segment = match if has(feature::SIZE_MAX) { u32::from_le_bytes(field(config, 8)?) } else { 0 } {
            0 => u32::MAX,
            segment => segment,
        };
        if segment < block_len {
            return Err(ConfigError::SegmentLen(segment));
        }
        let whole = |len: u32| len - len % block_len;
        let limit = |bit: u64, sectors_at: usize, segments_at: usize| {
            if !has(bit) {
                return Ok(0);
            }
            let sectors = u64::from(u32::from_le_bytes(field(config, sectors_at)?));
            let segments = u32::from_le_bytes(field(config, segments_at)?);
            let len = u32::try_from(sectors * SECTOR_LEN).unwrap_or(u32::MAX);
            Ok::<_, ConfigError>(if segments == 0 { 0 } else { whole(len) })
        };
        let len = len.ok_or(ConfigError::Size(sectors))?;
        Ok(Self {
            len: len - len % u64::from(block_len),
            block_len,
            physical_block_len: if is_usable { physical } else { block_len },
            data_len_max: whole(segment.min(DATA_LEN_MAX.max(block_len))),
            read_only: has(feature::READ_ONLY),
            flush: has(feature::FLUSH),
            discard_len_max: limit(feature::DISCARD, 36, 40)?,
            zeroes_len_max: limit(feature::WRITE_ZEROES, 48, 52)?,
        })
    }

    /// Returns how much memory a queue to this device needs.
    pub fn memory_len(&self) -> usize {
        DATA + usize::from(SLOTS) * to_usize(self.data_len_max)
    }
}

fn field<const LEN: usize>(config: &[u8], at: usize) -> Result<[u8; LEN], ConfigError> {
    let bytes = config.get(at..).and_then(|rest| rest.first_chunk());
    bytes.copied().ok_or(ConfigError::TooShort)
}

/// A request. Offsets and lengths are in bytes, and multiples of the length of a block.
#[derive(Clone, Copy, Debug)]
pub enum BlkRequest<'a> {
    /// Reads `len` bytes at `at`.
    Read {
        /// The offset of the first byte.
        at: u64,
        /// At most [`BlkInfo::data_len_max`].
        len: u32,
    },
    /// Writes bytes at `at`.
    Write {
        /// The offset of the first byte.
        at: u64,
        /// At most [`BlkInfo::data_len_max`] bytes.
        data: &'a DataList,
    },
    /// Makes durable what was written.
    Flush,
    /// Deallocates a range.
    Discard {
        /// The offset of the first byte.
        at: u64,
        /// At most [`BlkInfo::discard_len_max`].
        len: u32,
    },
    /// Zeroes a range.
    WriteZeroes {
        /// The offset of the first byte.
        at: u64,
        /// At most [`BlkInfo::zeroes_len_max`].
        len: u32,
        /// Whether the device may deallocate it.
        may_deallocate: bool,
    },
}

/// How a device ended a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlkStatus {
    /// It is done.
    Done,
    /// It failed.
    Failed,
    /// The device does not support it.
    Unsupported,
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlkReply {
    /// The token of the request.
    pub token: u64,
    /// How it ended.
    pub status: BlkStatus,
    /// Where the data of a read is, and how much, until the next request is submitted.
    pub data: Option<(usize, usize)>,
}

/// The queue to a device.
#[derive(Debug)]
pub struct BlkQueue {
    memory: SharedMemory,
    ring: Ring,
    data_len_max: u32,
    /// The token of each request under way, and the length of its data if it is a read.
    requests: [(u64, Option<u32>); SLOTS as usize],
}

impl BlkQueue {
    /// Makes an empty queue, in memory of its own.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(info: &BlkInfo) -> std::io::Result<Self> {
        let memory = SharedMemory::new(info.memory_len())?;
        let ring = Ring::new(memory.clone(), 0);
        let requests = [(0, None); SLOTS as usize];
        Ok(Self { memory, ring, data_len_max: info.data_len_max, requests })
    }

    /// Returns the memory that the device must map.
    pub const fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns whether no more requests fit.
    pub const fn is_full(&self) -> bool {
        self.ring.under_way() >= SLOTS
    }

    /// Makes a request available to the device. [`Self::tell`] tells it.
    ///
    /// # Errors
    /// [`RingError::Bug`]
    pub fn submit(&mut self, token: u64, request: BlkRequest<'_>) -> Result<(), RingError> {
        let slot = self.ring.free_slot().ok_or(RingError::Bug("too many requests"))?;
        let header = HEADERS + slot * HEADER_LEN;
        let data = DATA + slot * to_usize(self.data_len_max);
        let mut read = None;
        let (kind, at, part) = match request {
            BlkRequest::Read { at, len } => {
                read = Some(len);
                (TYPE_IN, at, Some(Segment { at: data, len, is_written: true }))
            }
            BlkRequest::Write { at, data: bytes } => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if len <= self.data_len_max {
                    let mut end = data;
                    for part in bytes.parts() {
                        self.memory.write(end, part)?;
                        end += part.len();
                    }
                }
                (TYPE_OUT, at, Some(Segment { at: data, len, is_written: false }))
            }
            BlkRequest::Flush => (TYPE_FLUSH, 0, None),
            BlkRequest::Discard { at, len } => (TYPE_DISCARD, 0, Some(self.put_range(header, at, len, 0)?)),
            BlkRequest::WriteZeroes { at, len, may_deallocate } => {
                let flags = if may_deallocate { FLAG_UNMAP } else { 0 };
                (TYPE_WRITE_ZEROES, 0, Some(self.put_range(header, at, len, flags)?))
            }
        };
        if part.is_some_and(|part| part.len > self.data_len_max) {
            return Err(RingError::Bug("a request longer than its place"));
        }
        let mut bytes = [0; RANGE];
        let fields = [u64::from(kind), at / SECTOR_LEN];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        self.memory.write(header, &bytes)?;
        // No legal status, so that one which the device has not written is seen.
        self.memory.write(header + STATUS, &[u8::MAX])?;
        let first = Segment { at: header, len: 16, is_written: false };
        let last = Segment { at: header + STATUS, len: 1, is_written: true };
        match part {
            Some(part) => self.ring.put(slot, &[first, part, last])?,
            None => self.ring.put(slot, &[first, last])?,
        }
        if let Some(place) = self.requests.get_mut(slot) {
            *place = (token, read);
        }
        Ok(())
    }

    /// Writes the range of a DISCARD or WRITE ZEROES.
    fn put_range(&self, header: usize, at: u64, len: u32, flags: u32) -> Result<Segment, RingError> {
        let sectors = u64::from(len) / SECTOR_LEN;
        let mut bytes = [0; 16];
        let fields = [at / SECTOR_LEN, sectors | u64::from(flags) << 32];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        self.memory.write(header + RANGE, &bytes)?;
        Ok(Segment { at: header + RANGE, len: 16, is_written: false })
    }

    /// Tells the device of the requests that were submitted. Returns whether it needs a notice.
    ///
    /// # Errors
    /// [`RingError::Bug`]
    pub fn tell(&mut self) -> Result<bool, RingError> {
        self.ring.tell()
    }

    /// Returns the next request that the device has ended.
    ///
    /// # Errors
    /// [`RingError`]; nothing that the device says can be trusted any more.
    pub fn next_reply(&mut self) -> Result<Option<BlkReply>, RingError> {
        let Some((slot, written)) = self.ring.next_used()? else { return Ok(None) };
        let Some((token, read)) = self.requests.get(slot).copied() else { return Ok(None) };
        let mut status = [0];
        self.memory.read(HEADERS + slot * HEADER_LEN + STATUS, &mut status)?;
        let status = match status {
            [0] => BlkStatus::Done,
            [1] => BlkStatus::Failed,
            [2] => BlkStatus::Unsupported,
            _ => return Err(RingError::UnknownStatus),
        };
        let data = read.filter(|_| status == BlkStatus::Done);
        // Some devices do not count the status.
        if data.is_some_and(|len| written < len) {
            return Err(RingError::DataMissing);
        }
        let at = DATA + slot * to_usize(self.data_len_max);
        Ok(Some(BlkReply { token, status, data: data.map(|len| (at, to_usize(len))) }))
    }
}

/// Every request has a place of its own, and all of them are in the memory.
const _: () = assert!(ring::SIZE as usize >= SLOTS as usize * ring::CHAIN_MAX && STATUS < HEADER_LEN);

#[cfg(test)]
mod tests;
