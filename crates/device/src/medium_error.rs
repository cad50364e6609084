//! Maps every failure of the medium to sense data: one total function.

use base::units::BlockSize;
use scsi::sense::{Asc, Sense, SenseKey};
use store::api::{Failure, Fault};

/// What kind of operation the medium executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoKind {
    /// A read.
    Reading,
    /// A read for a command that verifies.
    Verifying,
    /// A write or a deallocation.
    Writing,
}

/// The sense data for an operation of the medium that exceeded the unit's time limit.
///
/// ABORTED COMMAND, because the command may well succeed when it is sent again, and initiators do send it
/// again: Linux retries it at once, several times, and dm-multipath tries another path then. HARDWARE ERROR
/// would end the command permanently, on every path, and make file systems read-only although the medium was
/// unavailable for only a minute. Linux interprets COMMAND TIMEOUT DURING PROCESSING as a command duration
/// limit and does not retry that either.
pub(crate) const TIMED_OUT: Sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);

/// Returns the sense data for a failure. `at` is where the operation started, for media that cannot report
/// the block.
///
/// Initiators take the blocks before the one that the sense data names as read or written. A write that
/// failed may have changed any part of its range, so that the sense data names the first block of the write,
/// even if the medium knows the block.
pub(crate) fn sense_of(failure: Failure, doing: IoKind, at: Option<u64>, block: BlockSize) -> Sense {
    let known = if doing == IoKind::Writing { at.or(failure.at) } else { failure.at.or(at) };
    let lba = known.map(|at| at >> block.shift());
    let at_block = |sense: Sense| lba.map_or(sense, |lba| sense.with_information(lba));
    match (failure.fault, doing) {
        (Fault::Medium, IoKind::Reading | IoKind::Verifying) => {
            at_block(Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR))
        }
        (Fault::Medium, IoKind::Writing) => at_block(Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR)),
        (Fault::NoSpace, _) => {
            at_block(Sense::new(SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT))
        }
        (Fault::ReadOnly, _) => Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED),
        (Fault::Gone | Fault::NotSubmitted, _) => {
            Sense::new(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION)
        }
        (Fault::OutOfRange, _) => at_block(Sense::illegal(Asc::LBA_OUT_OF_RANGE)),
        (Fault::Unsupported, _) => Sense::illegal(Asc::INVALID_FIELD_IN_CDB),
        // The medium is reached over another network: the initiator that has reserved it there is no nexus of
        // this unit.
        (Fault::Reserved | Fault::Forbidden, _) => {
            Sense::new(SenseKey::DATA_PROTECT, Asc::ACCESS_DENIED_NO_ACCESS_RIGHTS)
        }
        (Fault::Busy, _) => TIMED_OUT,
        (Fault::Aborted, _) => Sense::new(SenseKey::ABORTED_COMMAND, Asc::NONE),
        (Fault::Hardware | Fault::Bug, _) => {
            Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)
        }
    }
}
