//! The responses to commands for a LUN without a logical unit (SAM-5 §5.11).

use alloc::vec::Vec;

use scsi::cdb::Cdb;
use scsi::inquiry::{DeviceType, Qualifier, StandardInquiry, VERSION_SPC_4};
use scsi::lun::Lun;
use scsi::opcode;
use scsi::sense::{Asc, Sense};
use scsi::status::Status;
use scsi::vpd::{self, page};

use crate::contract::SenseBytes;
use crate::device_server::medium_change::AWAY;
use crate::report_luns;

/// A response that is complete at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The data for the initiator, cut to the allocation length and to the length that the initiator accepts.
    pub data: Vec<u8>,
    /// The status.
    pub status: Status,
    /// The sense data of a CHECK CONDITION.
    pub sense: Option<SenseBytes>,
    /// How many bytes would be returned to a larger buffer (see `UnitEvent::CommandComplete`).
    pub transferable: u64,
}

/// Why a LUN leads to no logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The nexus has no such LUN.
    NotMapped,
    /// The LUN is in the map of the nexus, and its unit has no medium yet.
    WithoutMedium,
}

/// Answers `cdb` for a LUN without a logical unit. `luns` are the units that the nexus may see, `data_in_len`
/// is how many bytes the initiator accepts.
///
/// INQUIRY reports that there is no unit, REPORT LUNS lists the units that exist, and REQUEST SENSE returns
/// the reason. Every other command ends with that reason, LOGICAL UNIT NOT SUPPORTED, if the nexus has no
/// such LUN.
///
/// For a unit that is still to come, the commands that only ask for the state of the unit end with NOT
/// READY, so that path checkers see immediately that this path is down. All others end with BUSY, because a
/// host that used the LUN before this process began repeats them (SAM-5 §5.3.1): Linux for 180 s, QEMU for
/// some 40 s. NOT READY, LOGICAL UNIT DOES NOT RESPOND TO SELECTION would fail a read, a write or READ
/// CAPACITY immediately, and the host's file system with it.
pub fn respond(cdb: &Cdb, luns: &[Lun], absence: Absence, data_in_len: u32) -> Response {
    let reason = match absence {
        Absence::NotMapped => NOT_SUPPORTED,
        Absence::WithoutMedium => AWAY,
    };
    let found = match cdb.opcode() {
        opcode::INQUIRY => inquiry(cdb).map(|data| (data, u64::from(cdb.u16(3)))),
        opcode::REPORT_LUNS => report_luns::answer(cdb, luns),
        opcode::REQUEST_SENSE => {
            let sense = SenseBytes::new(&reason, cdb.u8(1) & 1 == 1);
            Ok((Vec::from(sense.bytes()), u64::from(cdb.u8(4))))
        }
        other if absence == Absence::WithoutMedium && !asks_for_state(other) => {
            return Response { data: Vec::new(), status: Status::BUSY, sense: None, transferable: 0 };
        }
        _ => Err(reason),
    };
    match found {
        Ok((mut data, allocation)) => {
            data.truncate(usize::try_from(allocation).unwrap_or(usize::MAX));
            let transferable = data.len() as u64;
            data.truncate(usize::try_from(data_in_len).unwrap_or(usize::MAX));
            Response { data, status: Status::GOOD, sense: None, transferable }
        }
        Err(sense) => Response {
            data: Vec::new(),
            status: Status::CHECK_CONDITION,
            sense: Some(SenseBytes::new(&sense, false)),
            transferable: 0,
        },
    }
}

/// Returns whether a command only asks for, or changes, the state of the unit. A host repeats it by itself as
/// long as it needs the answer.
const fn asks_for_state(opcode: u8) -> bool {
    matches!(opcode, opcode::TEST_UNIT_READY | opcode::START_STOP_UNIT | opcode::SEND_DIAGNOSTIC)
}

/// LOGICAL UNIT NOT SUPPORTED.
pub(crate) const NOT_SUPPORTED: Sense = Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED);

/// PERIPHERAL QUALIFIER 011b, PERIPHERAL DEVICE TYPE 1Fh.
const NO_UNIT: u8 = Qualifier::NOT_SUPPORTED.0 << 5 | DeviceType::UNKNOWN.0;

fn inquiry(cdb: &Cdb) -> Result<Vec<u8>, Sense> {
    match (cdb.u8(1) & 1, cdb.u8(2)) {
        (0, 0) => Ok(Vec::from(
            StandardInquiry {
                qualifier: Qualifier::NOT_SUPPORTED,
                device_type: DeviceType::UNKNOWN,
                removable: false,
                version: VERSION_SPC_4,
                hierarchical: true,
                target_port_groups: 0,
                third_party_copy: false,
                protect: false,
                multi_port: false,
                command_queuing: false,
                vendor: [b' '; 8],
                product: [b' '; 16],
                revision: [b' '; 4],
                versions: [0; 8],
            }
            .encode(),
        )),
        (1, page::SUPPORTED_PAGES) => {
            let body = &[page::SUPPORTED_PAGES];
            Ok(vpd::Page { peripheral: NO_UNIT, code: page::SUPPORTED_PAGES, body }.encode())
        }
        _ => Err(Sense::invalid_cdb(2, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(cdb: &[u8], data_in_len: u32) -> Response {
        respond(&Cdb::from_bytes(cdb).unwrap(), &[Lun(0)], Absence::NotMapped, data_in_len)
    }

    #[test]
    fn inquiry_says_that_no_unit_is_there() {
        let whole = ask(&[0x12, 0, 0, 1, 0, 0], 256);
        assert_eq!((whole.status, whole.data.len(), whole.transferable), (Status::GOOD, 96, 96));
        assert_eq!(whole.data[..5], [0x7f, 0, 6, 0x12, 91]);
        assert_eq!(ask(&[0x12, 1, 0, 0, 255, 0], 255).data, [0x7f, 0, 0, 1, 0]);
        assert_eq!(ask(&[0x12, 1, 0x80, 0, 255, 0], 255).status, Status::CHECK_CONDITION);
        assert_eq!(ask(&[0x12, 0, 1, 0, 255, 0], 255).status, Status::CHECK_CONDITION);
    }

    #[test]
    fn the_allocation_length_and_the_initiator_both_limit_the_data() {
        let short = ask(&[0x12, 0, 0, 0, 36, 0], 10);
        assert_eq!((short.data.len(), short.transferable), (10, 36));
        assert_eq!(ask(&[0x12, 0, 0, 0, 0, 0], 10).data, [0_u8; 0]);
    }

    #[test]
    fn report_luns_answers_at_any_lun() {
        let answer = ask(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32);
        assert_eq!(answer.data, [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn request_sense_tells_why_in_the_format_asked_for() {
        let fixed = ask(&[0x03, 0, 0, 0, 252, 0], 252);
        assert_eq!(
            (fixed.status, fixed.data[0], fixed.data[2], fixed.data[12]),
            (Status::GOOD, 0x70, 5, 0x25)
        );
        let descriptor = ask(&[0x03, 1, 0, 0, 252, 0], 252);
        assert_eq!(descriptor.data[..4], [0x72, 5, 0x25, 0]);
    }

    #[test]
    fn a_unit_whose_medium_is_still_to_come_is_not_ready() {
        let ask =
            |cdb: &[u8]| respond(&Cdb::from_bytes(cdb).unwrap(), &[Lun(0)], Absence::WithoutMedium, 252);
        for cdb in [[0; 6], [0x1b, 0, 0, 0, 1, 0], [0x1d, 4, 0, 0, 0, 0]] {
            let sense = ask(&cdb).sense.unwrap();
            assert_eq!((sense.bytes()[2], &sense.bytes()[12..14]), (2, &[0x05, 0][..]));
        }
        // A host that used the unit before repeats what it needs.
        for cdb in [&[0x28; 10][..], &[0x2a; 10], &[0x35; 10], &[0x25; 10], &[0x5e; 10], &[0x1a; 6]] {
            let answer = ask(cdb);
            assert_eq!((answer.status, answer.sense, answer.data.len()), (Status::BUSY, None, 0));
        }
        assert_eq!(ask(&[0x12, 0, 0, 0, 36, 0]).data[0], 0x7f, "a host that looks for LUNs attaches none");
        let requested = ask(&[0x03, 0, 0, 0, 252, 0]);
        assert_eq!((requested.status, requested.data[2], requested.data[12]), (Status::GOOD, 2, 0x05));
    }

    #[test]
    fn everything_else_is_not_supported() {
        for cdb in [&[0x00; 6][..], &[0x28; 10], &[0xff; 16]] {
            let answer = ask(cdb, 512);
            assert_eq!((answer.status, answer.data.len()), (Status::CHECK_CONDITION, 0));
            let sense = answer.sense.unwrap();
            assert_eq!((sense.bytes()[2], &sense.bytes()[12..14]), (5, &[0x25, 0][..]));
        }
    }
}
