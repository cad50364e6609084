//! What a failure of the medium becomes on the wire: one total function.

use base::units::BlockSize;
use scsi::sense::{Asc, Sense, SenseKey};
use store::contract::{Failure, Fault};

/// What the medium was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// To read.
    Reading,
    /// To write, or to free.
    Writing,
}

/// Returns the sense data for a failure. `at` is where the operation started, for media that cannot tell the block.
pub(crate) fn sense_of(failure: Failure, doing: Doing, at: Option<u64>, block: BlockSize) -> Sense {
    let lba = failure.at.or(at).map(|at| at >> block.shift());
    let at_block = |sense: Sense| lba.map_or(sense, |lba| sense.with_information(lba));
    match (failure.fault, doing) {
        (Fault::Medium, Doing::Reading) => {
            at_block(Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR))
        }
        (Fault::Medium, Doing::Writing) => at_block(Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR)),
        (Fault::NoSpace, _) => {
            at_block(Sense::new(SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT))
        }
        (Fault::ReadOnly, _) => Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED),
        (Fault::Gone, _) => Sense::new(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION),
        (Fault::OutOfRange, _) => at_block(Sense::illegal(Asc::LBA_OUT_OF_RANGE)),
        (Fault::Unsupported, _) => Sense::illegal(Asc::INVALID_FIELD_IN_CDB),
        // A medium beyond another network: whoever holds it there is no nexus of ours.
        (Fault::Reserved | Fault::Forbidden, _) => {
            Sense::new(SenseKey::DATA_PROTECT, Asc::ACCESS_DENIED_NO_ACCESS_RIGHTS)
        }
        (Fault::Busy | Fault::Aborted, _) => Sense::new(SenseKey::ABORTED_COMMAND, Asc::NONE),
        (Fault::Hardware | Fault::Bug, _) => {
            Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)
        }
    }
}
