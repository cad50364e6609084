//! The parameters that the kernel receives for a disk, and which of them must stay valid as long as the
//! device lives.

use store::api::Capabilities;

use super::wire::{
    BasicParams, DiscardParams, PARAMS_BASIC, PARAMS_DISCARD, Params, SECTOR, SECTOR_SHIFT, attributes,
};
use base::int_cast::{to_u32, to_u64};

/// The most requests that the kernel sends at once (the queue depth): they fill the longest command window of
/// a session.
pub(super) const DEPTH: u16 = 128;
/// The longest read or write, which is a size of pooled buffers. All tags at their longest hold 32 MiB.
pub(super) const IO_BYTES_MAX: u32 = 256 << 10;
/// The longest logical block that a device may have on any architecture: the smallest page.
const LOGICAL_MAX: u32 = 4096;
/// The largest preferred I/O size that is reported to the kernel.
const PREFERRED_MAX: u32 = 1 << 20;
/// The longest discard. The medium cuts it further, and completes it quickly.
const DISCARD_BYTES_MAX: u64 = 4 << 30;
/// The most zeros in one request: the medium may have to write them, which at 10 MB/s takes 26 seconds.
const ZEROES_BYTES_MAX: u64 = 256 << 20;

/// The length of the structure that holds the parameters.
#[allow(clippy::cast_possible_truncation, reason = "a hundred bytes")]
pub(super) const LEN: u32 = size_of::<Params>() as u32;

/// Why a disk cannot be a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The disk is smaller than one block.
    #[error("the disk is smaller than one block")]
    Empty,
    /// A device that waits for its server has other parameters than the disk.
    #[error(
        "it is {device} bytes in blocks of {device_block}, and the disk {disk} bytes in blocks of {disk_block}"
    )]
    Form {
        /// The size of the device in bytes.
        device: u64,
        /// The block length of the device.
        device_block: u64,
        /// The size of the disk in bytes.
        disk: u64,
        /// The block length of the disk.
        disk_block: u64,
    },
}

/// The parameters that the kernel received and uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceParams {
    /// The size in bytes.
    pub(super) len: u64,
    /// The block length: offsets and lengths are multiples of it.
    pub(super) block: u64,
    /// The longest read or write, in bytes.
    pub(super) io_len_max: u64,
    /// Whether the kernel sends flushes, and marks the writes that must be durable (FUA).
    pub(super) cache: bool,
}

impl DeviceParams {
    /// Extracts them from the parameters that the kernel has or will receive.
    pub(super) fn of(params: &Params) -> Self {
        let basic = &params.basic;
        Self {
            len: basic.sectors.saturating_mul(SECTOR),
            block: power(basic.logical_shift),
            io_len_max: u64::from(basic.io_sectors_max) * SECTOR,
            cache: basic.attributes & attributes::VOLATILE_CACHE != 0,
        }
    }

    /// Checks that a disk can serve a device with these parameters: the same block length, and no block
    /// beyond its end.
    pub(super) fn fits(&self, disk: &Self) -> Result<(), Unfit> {
        if self.len > disk.len || self.block != disk.block || self.io_len_max > IO_BYTES_MAX.into() {
            let (device, device_block) = (self.len, self.block);
            return Err(Unfit::Form { device, device_block, disk: disk.len, disk_block: disk.block });
        }
        Ok(())
    }
}

/// Returns the kernel's parameters for a disk.
pub(super) fn params(profile: &Capabilities) -> Result<Params, Unfit> {
    // If the blocks of the medium are longer than a device allows, requests are patched into them, like those
    // of any length.
    let logical = profile.logical_block_len.clamp(to_u32(SECTOR), LOGICAL_MAX);
    let physical = profile.preferred_block_len.max(profile.logical_block_len).clamp(logical, PREFERRED_MAX);
    let len = profile.len - profile.len % u64::from(logical);
    if len == 0 {
        return Err(Unfit::Empty);
    }
    let sectors = |bytes: u64| to_u32(bytes >> SECTOR_SHIFT);
    let mut told = 0;
    for (attribute, holds) in [
        (attributes::READ_ONLY, profile.read_only),
        (attributes::ROTATIONAL, profile.rotational),
        // The medium ensures that a write is durable, if need be by a flush after it.
        (attributes::VOLATILE_CACHE | attributes::FUA, profile.volatile_cache),
    ] {
        told |= if holds { attribute } else { 0 };
    }
    Ok(Params {
        len: LEN,
        types: PARAMS_BASIC | PARAMS_DISCARD,
        basic: BasicParams {
            attributes: told,
            logical_shift: shift(logical),
            physical_shift: shift(physical),
            io_opt_shift: shift(physical),
            io_min_shift: shift(physical),
            io_sectors_max: sectors(
                to_u64(profile.io_len_max).clamp(LOGICAL_MAX.into(), IO_BYTES_MAX.into()),
            ),
            chunk_sectors: 0,
            sectors: len / SECTOR,
            virt_boundary_mask: 0,
        },
        discard: DiscardParams {
            alignment: 0,
            granularity: physical,
            discard_sectors_max: if profile.thin { sectors(DISCARD_BYTES_MAX) } else { 0 },
            write_zeroes_sectors_max: sectors(ZEROES_BYTES_MAX),
            segments_max: 1,
            reserved: 0,
        },
        rest: [0; 13],
    })
}

/// Returns the exponent of the power of two that a length is, or of the next lower one.
fn shift(len: u32) -> u8 {
    u8::try_from(len.max(1).ilog2()).unwrap_or(0)
}

fn power(shift: u8) -> u64 {
    1_u64.checked_shl(shift.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
