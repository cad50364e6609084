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
pub(crate) mod orw_generation;
pub(crate) mod read;
pub(crate) mod sanitize;
mod table;
mod unmap;
mod verify;
pub(crate) mod write;
mod write_same;

use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::device_server::DeviceServer;
use crate::outcome::{JobStep, Outcome};

pub(crate) use table::ROWS;

/// How many bytes one operation of a long transfer moves: enough that a disk streams, little enough that a buffer
/// comes from the pool.
const PART_LEN: usize = 1 << 20;

/// How many parts of a long transfer are under way at a time: one being written, one on the wire, two to hide the
/// latency between. A task's share of memory is bounded by this many parts.
const PARTS_UNDER_WAY: usize = 4;

/// Returns how many bytes one operation may move; a whole number of blocks.
fn part_len(server: &DeviceServer) -> usize {
    PART_LEN.min(server.info.capabilities.io_len_max).max(server.info.block_len())
}

/// Returns whether a command that has FUA where all of them have it wants it. FUA_NV, obsolete since SBC-4, asks for
/// a cache that survives a loss of power, which only the medium is.
fn force_unit_access(cdb: &Cdb) -> bool {
    const FUA: u8 = 0x08;
    const FUA_NV: u8 = 0x02;
    match cdb.len_by_opcode() {
        Some(6) => false,
        Some(10 | 12 | 16) => cdb.u8(1) & (FUA | FUA_NV) != 0,
        _ => cdb.u8(10) & (FUA | FUA_NV) != 0,
    }
}

/// The initiator is set up to send where it should receive, or the other way round, or sends what cannot be used: less
/// than a block, or other than a command needs.
const fn wrong_data_out() -> Sense {
    Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
}

/// We are wrong.
const fn bug() -> Outcome {
    Outcome::CheckCondition(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))
}

/// A job was told something it did not ask for: we are wrong.
const fn unexpected_input() -> JobStep {
    JobStep::Done(bug())
}

#[cfg(test)]
mod tests;
