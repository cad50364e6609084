//! The geometry of a disk: the data of its pages in the form that I/O needs.

use base::buffer::DataList;
use base::units::{BlockSize, Lba};
use scsi::block::{self, Capacity};
use scsi::lun::Lun;
use scsi::vpd::{BlockLimits, LogicalBlockProvisioning};
use store::api::Capabilities;

use crate::command::Command;
use crate::error::Error;
use crate::unit::Caching;

/// The most bytes of one command: large enough that its round trip costs little in comparison, and small
/// enough that several commands are under way and that its buffer comes from the pool.
const COMMAND_BYTES_MAX: u64 = 1 << 20;

/// The most blocks of one UNMAP or WRITE SAME where the unit reports no limit.
const RANGE_BLOCKS_MAX: u64 = 1 << 16;

/// The longest operation in bytes that callers may request, whatever the limit of the unit: it is divided
/// into commands.
const IO_LEN_MAX: usize = 64 << 20;

/// The geometry and the limits of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Geometry {
    /// The data of READ CAPACITY.
    pub capacity: Capacity,
    /// Whether the unit supports commands of 16 bytes.
    pub long_commands: bool,
    /// The most blocks of one read or write.
    pub transfer_max: u32,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY in blocks; zero if the unit does not report it.
    pub transfer_granularity: u16,
    /// The most blocks of one UNMAP; zero if UNMAP is not supported.
    pub unmap_max: u32,
    /// The most blocks of one WRITE SAME.
    pub write_same_max: u32,
    /// The most blocks of one COMPARE AND WRITE; zero if it is not supported.
    pub compare_and_write_max: u8,
    /// The most blocks that are written atomically.
    pub atomic_max: u32,
    /// Whether WRITE SAME can unmap blocks.
    pub write_same_unmaps: bool,
    /// Whether unmapped blocks read as zeros.
    pub reads_zero: bool,
    /// Whether blocks can be unmapped (thin provisioning).
    pub thin: bool,
    /// Whether every write is refused.
    pub write_protected: bool,
    /// Whether reads and writes can bypass the cache.
    pub force_unit_access: bool,
    /// Whether writes may be acknowledged before they are on the medium: also true while the unit has not
    /// reported it again after a change.
    pub write_cache: bool,
    /// Whether the medium rotates.
    pub rotational: bool,
}

impl Geometry {
    pub(super) fn new(capacity: Capacity, long_commands: bool) -> Self {
        let mut geometry = Self {
            capacity,
            long_commands,
            transfer_max: 0,
            transfer_granularity: 0,
            unmap_max: 0,
            write_same_max: 0,
            compare_and_write_max: 0,
            atomic_max: 0,
            write_same_unmaps: false,
            reads_zero: capacity.reads_zero,
            thin: capacity.provisioning,
            write_protected: false,
            force_unit_access: false,
            // A volatile cache is assumed until the unit reports otherwise.
            write_cache: true,
            rotational: false,
        };
        geometry.limit(&BlockLimits::default());
        geometry
    }

    pub(super) fn limit(&mut self, limits: &BlockLimits) {
        let own = COMMAND_BYTES_MAX >> self.block_size().shift();
        // READ(10) counts blocks in 16 bits.
        let own = if self.long_commands { own } else { own.min(0xffff) };
        let max = |told: u64, own: u64| {
            u32::try_from(if told == 0 { own } else { told.min(own) }).unwrap_or(u32::MAX)
        };
        self.transfer_max = max(limits.transfer_max.into(), own.max(1));
        self.transfer_granularity = limits.transfer_granularity;
        // SBC-4: UNMAP is supported only if both of its limits are reported.
        let unmaps = limits.unmap_max != 0 && limits.unmap_descriptors_max != 0;
        self.unmap_max = if unmaps { limits.unmap_max } else { 0 };
        self.write_same_max = max(limits.write_same_max, RANGE_BLOCKS_MAX);
        self.compare_and_write_max = limits.compare_and_write_max;
        self.atomic_max = limits.atomic_max;
    }

    pub(super) fn provision(&mut self, provisioning: &LogicalBlockProvisioning) {
        self.write_same_unmaps = provisioning.write_same_16;
        self.reads_zero |= provisioning.reads_zero;
        if provisioning.unmap && self.unmap_max == 0 {
            self.unmap_max = u32::try_from(RANGE_BLOCKS_MAX).unwrap_or(u32::MAX);
        }
        if !provisioning.unmap {
            self.unmap_max = 0;
        }
        self.thin |= provisioning.unmap || provisioning.write_same_16;
    }

    pub(super) const fn cache(&mut self, caching: Caching) {
        self.write_protected = caching.write_protected;
        self.force_unit_access = caching.force_unit_access;
        self.write_cache = caching.write_cache;
    }

    /// Assumes a volatile cache until the unit reports its caching mode page again.
    pub(super) const fn doubt_cache(&mut self) {
        self.write_cache = true;
        self.force_unit_access = false;
    }

    /// Sets a new capacity. A capacity with another logical block length is ignored: the session takes the
    /// unit for another device, and refuses its commands.
    pub(super) fn resize(&mut self, capacity: Capacity) {
        if capacity.block_size == self.capacity.block_size {
            self.capacity = capacity;
        }
    }

    /// Returns the logical block length.
    pub const fn block_size(&self) -> BlockSize {
        self.capacity.block_size
    }

    /// Returns the size of the disk in bytes.
    pub fn bytes(&self) -> u64 {
        self.capacity.bytes()
    }

    /// Returns the command that reads `blocks` blocks starting at `first`; at most [`Self::transfer_max`] of
    /// them.
    pub fn read(&self, lun: Lun, first: Lba, blocks: u32) -> Command {
        let len = u32::try_from(u64::from(blocks) << self.block_size().shift()).unwrap_or(u32::MAX);
        let cdb = match self.short(first, blocks) {
            Some((first, blocks)) => block::read_10(first, blocks, false),
            None => block::read_16(first, blocks, false),
        };
        Command::new(lun, cdb).reading(len).repeatable()
    }

    /// Returns the command that writes `data`, which is `blocks` blocks long, starting at `first`; at most
    /// [`Self::transfer_max`] of them.
    pub fn write(&self, lun: Lun, (first, blocks): (Lba, u32), data: DataList, fua: bool) -> Command {
        let cdb = match self.short(first, blocks) {
            Some((first, blocks)) => block::write_10(first, blocks, fua),
            None => block::write_16(first, blocks, fua),
        };
        Command::new(lun, cdb).writing(data).repeatable()
    }

    /// Returns address and length for the 10-byte commands, if the unit supports no longer ones. Such a unit
    /// has no blocks that these commands cannot address.
    fn short(&self, first: Lba, blocks: u32) -> Option<(u32, u16)> {
        if self.long_commands {
            return None;
        }
        Some((u32::try_from(first.0).ok()?, u16::try_from(blocks).ok()?))
    }

    /// Converts a range of bytes to blocks.
    pub(super) fn blocks(&self, at: u64, len: usize) -> Result<(Lba, u64), Error> {
        self.blocks_of(at, u64::try_from(len).unwrap_or(u64::MAX))
    }

    /// Converts a range of bytes to blocks.
    pub(super) fn blocks_of(&self, at: u64, len: u64) -> Result<(Lba, u64), Error> {
        let size = u64::from(self.block_size().bytes());
        if !at.is_multiple_of(size) || !len.is_multiple_of(size) {
            return Err(Error::Unaligned { offset: at, len, block_size: self.block_size().bytes() });
        }
        match at.checked_add(len) {
            Some(end) if end <= self.bytes() => Ok((Lba(at / size), len / size)),
            _ => Err(Error::OutOfRange { offset: at, len, size: self.bytes() }),
        }
    }

    /// Returns whether zeros are written by WRITE SAME with UNMAP, where blocks may be deallocated.
    pub(super) const fn zeroes_by_unmapping(&self) -> bool {
        self.write_same_unmaps && self.reads_zero
    }

    pub(super) fn profile(&self) -> Capabilities {
        let block = self.block_size().bytes();
        let physical = u64::from(block) << self.capacity.physical_exponent;
        let atomic = u64::from(self.atomic_max) * u64::from(block);
        Capabilities {
            len: self.bytes(),
            logical_block_len: block,
            preferred_block_len: u32::try_from(physical.clamp(512, 1 << 20)).unwrap_or(block),
            io_len_max: IO_LEN_MAX,
            atomic_len_max: usize::try_from(atomic.min(u64::from(self.transfer_max) * u64::from(block)))
                .unwrap_or(0),
            read_only: self.write_protected,
            volatile_cache: self.write_cache,
            thin: self.thin && (self.unmap_max != 0 || self.write_same_unmaps),
            deallocated_reads_zero: self.reads_zero,
            zeroes_by_deallocating: self.zeroes_by_unmapping(),
            deallocated_is_gone: self.reads_zero,
            rotational: self.rotational,
            crypto_erase: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use base::units::Blocks;

    use super::*;

    #[test]
    fn only_write_same_zeroes_by_unmapping() {
        for (unmap, write_same_16) in [(true, false), (false, true), (true, true)] {
            let capacity = Capacity {
                blocks: Blocks(1024),
                block_size: BlockSize::B512,
                physical_exponent: 0,
                lowest_aligned: 0,
                provisioning: true,
                reads_zero: true,
                protection: false,
            };
            let mut geometry = Geometry::new(capacity, true);
            geometry.provision(&LogicalBlockProvisioning { unmap, write_same_16, ..Default::default() });
            let profile = geometry.profile();
            assert!(profile.thin && profile.deallocated_reads_zero);
            assert_eq!(profile.zeroes_by_deallocating, write_same_16, "{unmap}");
        }
    }
}
