//! The commands of a direct access block device (SBC-4 §5).

pub(crate) mod address;
mod capacity;
pub(crate) mod limits;
pub(crate) mod read;
mod table;
pub(crate) mod write;

use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::server::Core;
use crate::verdict::{JobStep, Verdict};

pub(crate) use table::ROWS;

/// How many bytes one operation of a long transfer moves: enough that a disk streams, little enough that a buffer
/// comes from the pool.
const PART_LEN: usize = 1 << 20;

/// How many parts of a long transfer are under way at a time: one being written, one on the wire, two to hide the
/// latency between. A task's share of memory is bounded by this many parts.
const PARTS_UNDER_WAY: usize = 4;

/// Returns how many bytes one operation may move; a whole number of blocks.
fn part_len(core: &Core) -> usize {
    PART_LEN.min(core.facts.profile.io_len_max).max(core.facts.block_len())
}

/// Returns the FUA bit of a command that has one where all of them have it.
fn force_unit_access(cdb: &Cdb) -> bool {
    match cdb.len_by_opcode() {
        Some(6) => false,
        Some(10 | 12 | 16) => cdb.u8(1) & 0x08 != 0,
        _ => cdb.u8(10) & 0x08 != 0,
    }
}

/// The initiator is set up to send where it should receive, or the other way round.
const fn wrong_direction() -> Sense {
    Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
}

/// We are wrong.
const fn bug() -> Verdict {
    Verdict::Check(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))
}

/// A job was told something it did not ask for: we are wrong.
const fn confused() -> JobStep {
    JobStep::Done(bug())
}

#[cfg(test)]
mod tests;
