use scsi::sense::Sense;
use transport::initiator::SubmitError;

use super::*;

#[test]
fn statuses_and_sense_are_told_apart() {
    let sense = |key, asc| CommandError::Sense(Sense::new(key, asc));
    for (error, fault) in [
        (CommandError::ReservationConflict, Fault::Reserved),
        (CommandError::Busy, Fault::Busy),
        (CommandError::Aborted, Fault::Aborted),
        (CommandError::Status(0x30), Fault::Hardware),
        (CommandError::TargetFailure, Fault::Hardware),
        (CommandError::Refused(SubmitError::Down), Fault::Gone),
        (CommandError::Lost(None), Fault::Gone),
        (CommandError::NoSense, Fault::Medium),
        (CommandError::Short { came: 1, wanted: 2 }, Fault::Medium),
        (CommandError::Untaken { taken: 1, wanted: 2 }, Fault::Medium),
        (sense(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR), Fault::Medium),
        (sense(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE), Fault::Hardware),
        (sense(SenseKey::ABORTED_COMMAND, Asc::NONE), Fault::Aborted),
        (sense(SenseKey::NOT_READY, Asc::NONE), Fault::Busy),
        (sense(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT), Fault::Gone),
        (sense(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION), Fault::Gone),
        (sense(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED), Fault::ReadOnly),
        (sense(SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT), Fault::NoSpace),
        (sense(SenseKey::DATA_PROTECT, Asc::ACCESS_DENIED_NO_ACCESS_RIGHTS), Fault::Forbidden),
        (sense(SenseKey::ILLEGAL_REQUEST, Asc::LOGICAL_UNIT_ACCESS_NOT_AUTHORIZED), Fault::Forbidden),
        (sense(SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB), Fault::Unsupported),
        (sense(SenseKey::ILLEGAL_REQUEST, Asc::LBA_OUT_OF_RANGE), Fault::OutOfRange),
    ] {
        let told = fault_of(&Error::Command(error.clone()), BlockSize::B512);
        assert_eq!(told, Failure::from(fault), "{error}");
    }
}
