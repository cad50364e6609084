use alloc::vec::Vec;

use scsi::cdb::Cdb;

use super::*;
use crate::contract::{TaskKey, UnitConfig};
use crate::device_server::command_set::CommandSet;
use crate::task::Origin;
use crate::testing::{A, Rig, config};
use crate::unit::table;

/// Returns the names of the commands of a device type that count.
fn counted(set: &CommandSet, device: DeviceKind) -> Vec<&'static str> {
    let mut rig = Rig::new();
    rig.unit.server.info.config = UnitConfig { device, ..config() };
    let mut names: Vec<&str> = Vec::new();
    for row in table(set).rows() {
        let mut bytes = [0; 32];
        bytes[..row.usage.len()].copy_from_slice(row.usage);
        bytes[0] = row.opcode;
        match (row.service_action, row.opcode) {
            (Some(action), opcode::VARIABLE_LENGTH) => {
                bytes[7] = 24;
                bytes[8..10].copy_from_slice(&action.to_be_bytes());
            }
            (Some(action), _) => bytes[1] = action.to_be_bytes()[1],
            (None, _) => {}
        }
        let cdb = Cdb::from_bytes(&bytes[..row.usage.len()]).unwrap();
        let task = TaskInfo::new(Origin::Transport(TaskKey(1)), A, cdb).with_lengths(512, 0);
        if cost_of(&rig.unit.server.info, &task).is_some() {
            names.push(row.name.split('(').next().unwrap());
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn commands_that_use_the_medium_count_and_no_others() {
    assert_eq!(
        counted(&crate::sbc::COMMAND_SET, DeviceKind::Disk),
        [
            "COMPARE AND WRITE",
            "FORMAT UNIT",
            "ORWRITE",
            "PRE-FETCH",
            "READ",
            "SANITIZE BLOCK ERASE",
            "SANITIZE CRYPTOGRAPHIC ERASE",
            "SANITIZE EXIT FAILURE MODE",
            "SANITIZE OVERWRITE",
            "SYNCHRONIZE CACHE",
            "UNMAP",
            "VERIFY",
            "WRITE",
            "WRITE AND VERIFY",
            "WRITE ATOMIC",
            "WRITE SAME",
        ]
    );
    assert_eq!(
        counted(&crate::ssc::COMMAND_SET, DeviceKind::Tape),
        ["ERASE", "FORMAT MEDIUM", "LOCATE", "READ", "SPACE", "VERIFY", "WRITE", "WRITE FILEMARKS"]
    );
    let disc = DeviceKind::Disc { profile: None };
    assert_eq!(counted(&crate::mmc::COMMAND_SET, disc), ["READ", "READ CD", "READ CD MSF"]);
}

#[test]
fn a_command_counts_by_what_it_transfers_or_changes_up_to_the_longest_transfer() {
    let rig = Rig::new();
    let info = &rig.unit.server.info;
    let of = |opcode: u8, blocks: u32, len: u32| {
        let mut bytes = [0; 16];
        bytes[0] = opcode;
        bytes[10..14].copy_from_slice(&blocks.to_be_bytes());
        let cdb = Cdb::from_bytes(&bytes).unwrap();
        let task = TaskInfo::new(Origin::Transport(TaskKey(1)), A, cdb).with_lengths(len, 0);
        cost_of(info, &task).map(|cost| (cost.operations, cost.bytes))
    };
    assert_eq!(of(opcode::READ_16, 1, 512), Some((1, 512)));
    assert_eq!(of(opcode::READ_16, 2048, 1 << 20), Some((4, 1 << 20)));
    assert_eq!(of(opcode::WRITE_SAME_16, 4096, 512), Some((8, 2 << 20)));
    assert_eq!(of(opcode::WRITE_SAME_16, u32::MAX, 512), Some((32, 8 << 20)));
    assert_eq!(of(opcode::SYNCHRONIZE_CACHE_16, u32::MAX, 0), Some((1, 0)));
    assert_eq!(of(opcode::REPORT_LUNS, 1, 512), None);
}
