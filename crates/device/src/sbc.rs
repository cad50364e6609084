//! The commands of a direct access block device (SBC-4 §5).

pub(crate) mod address;
mod atomic;
mod bulk_change;
mod cache;
mod capacity;
mod compare;
mod data_out_collector;
mod defects;
mod lba_status;
pub(crate) mod limits;
pub(crate) mod read;
pub(crate) mod sanitize;
mod table;
mod unmap;
mod verify;
pub(crate) mod write;
mod write_same;

use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense};

use crate::device_server::DeviceServer;

pub(crate) use table::ROWS;

/// How many bytes one operation of a long transfer moves: large enough that a disk streams, small enough that
/// the buffer comes from the pool.
const PART_LEN: usize = 1 << 20;

/// How many parts of a long transfer are in progress at a time: one being written, one on the wire, two to
/// hide the latency between. This bounds the memory of a task.
const PARTS_UNDER_WAY: usize = 4;

/// Returns how many bytes one operation may move: a whole number of blocks.
fn part_len(server: &DeviceServer) -> usize {
    PART_LEN.min(server.info.capabilities.io_len_max).max(server.info.block_len())
}

/// Returns whether a command requests FUA, for commands with the FUA bit at the usual offset. FUA_NV,
/// obsolete since SBC-4, requests a cache that survives a loss of power; only the medium itself survives one.
fn force_unit_access(cdb: &Cdb) -> bool {
    const FUA: u8 = 0x08;
    const FUA_NV: u8 = 0x02;
    match cdb.len_by_opcode() {
        Some(6) => false,
        Some(10 | 12 | 16) => cdb.u8(1) & (FUA | FUA_NV) != 0,
        _ => cdb.u8(10) & (FUA | FUA_NV) != 0,
    }
}

/// The sense data for an initiator that sends although it should receive, or the reverse, or that sends data
/// of a wrong length: less than a block, or not as much as the command needs.
const fn wrong_data_out() -> Sense {
    Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
}

#[cfg(test)]
mod tests;
