//! What the kernel is told of the disk, and what of that must hold as long as the device lives.

use store::api::Capabilities;

use super::wire::{
    BasicParams, DiscardParams, PARAMS_BASIC, PARAMS_DISCARD, Params, SECTOR, SECTOR_SHIFT, attributes,
};
use crate::int_cast::{to_u32, to_u64};

/// Requests that the kernel hands out at once: what the longest window of commands of a session is filled with.
pub(super) const DEPTH: u16 = 128;
/// The longest read or write, a size that buffers come in. All tags at their longest hold 32 MiB.
pub(super) const IO_BYTES_MAX: u32 = 256 << 10;
/// The longest block that a device may have, on any machine: the smallest page.
const LOGICAL_MAX: u32 = 4096;
/// The longest unit that the kernel is told to prefer.
const PREFERRED_MAX: u32 = 1 << 20;
/// The longest discard, which the medium cuts further: it is over in a moment.
const DISCARD_BYTES_MAX: u64 = 4 << 30;
/// The most zeros at once: the medium may have to write them, which at 10 MB/s takes 26 seconds.
const ZEROES_BYTES_MAX: u64 = 256 << 20;

/// The length of the structure that parameters travel in.
#[allow(clippy::cast_possible_truncation, reason = "a hundred bytes")]
pub(super) const LEN: u32 = size_of::<Params>() as u32;

/// Why a disk makes no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is nothing to be a device.
    #[error("the disk is smaller than one of its blocks")]
    Empty,
    /// A device that waits for its server is of another form.
    #[error(
        "it is {device} bytes in blocks of {device_block}, and the disk {disk} bytes in blocks of {disk_block}"
    )]
    Form {
        /// The size that the kernel knows.
        device: u64,
        /// Its blocks.
        device_block: u64,
        /// The size of the disk.
        disk: u64,
        /// Its blocks.
        disk_block: u64,
    },
}

/// What the kernel was told and goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceParams {
    /// The size in bytes.
    pub(super) len: u64,
    /// What offsets and lengths are multiples of.
    pub(super) block: u64,
    /// The longest read or write.
    pub(super) io_len_max: u64,
    /// Whether it sends flushes, and says which writes are to be durable.
    pub(super) cache: bool,
}

impl DeviceParams {
    /// Reads it from what the kernel was or will be told.
    pub(super) fn of(params: &Params) -> Self {
        let basic = &params.basic;
        Self {
            len: basic.sectors.saturating_mul(SECTOR),
            block: power(basic.logical_shift),
            io_len_max: u64::from(basic.io_sectors_max) * SECTOR,
            cache: basic.attributes & attributes::VOLATILE_CACHE != 0,
        }
    }

    /// Checks that a device which was told this can be served by a disk: the same blocks, and none beyond its end.
    pub(super) fn fits(&self, disk: &Self) -> Result<(), Unfit> {
        if self.len > disk.len || self.block != disk.block || self.io_len_max > IO_BYTES_MAX.into() {
            let (device, device_block) = (self.len, self.block);
            return Err(Unfit::Form { device, device_block, disk: disk.len, disk_block: disk.block });
        }
        Ok(())
    }
}

/// Says what the kernel is told of a disk.
pub(super) fn params(profile: &Capabilities) -> Result<Params, Unfit> {
    // A medium of longer blocks than a device can have is patched, as for requests of any length.
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
        // The medium sees to it that a write is durable, if need be by a flush behind it.
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

/// The power of two that a length is, or the next one below.
fn shift(len: u32) -> u8 {
    u8::try_from(len.max(1).ilog2()).unwrap_or(0)
}

fn power(shift: u8) -> u64 {
    1_u64.checked_shl(shift.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
