use alloc::vec;

use scsi::supported::{OneCommand, SupportedCommand, TaskManagement};
use scsi::target_port_groups::{Format, Groups};

use super::*;
use crate::contract::UnitConfig;

fn opcodes(rig: &mut Rig, options: u8, opcode: u8, action: u16) -> Reply {
    let [high, low] = action.to_be_bytes();
    let cdb = [op::MAINTENANCE_IN, 0x0c, options, opcode, high, low, 0, 0, 0xff, 0xff, 0, 0];
    rig.run(A, &cdb, 0xffff, &[])
}

fn all(rig: &mut Rig, timeouts: bool) -> Vec<SupportedCommand> {
    let options = if timeouts { 0x80 } else { 0 };
    SupportedCommand::parse_all(&opcodes(rig, options, 0, 0).good()).unwrap()
}

/// libiscsi ReportSupportedOpcodes.OneCommand.
#[test]
fn every_command_can_be_asked_for_by_itself() {
    let mut rig = removable();
    for command in all(&mut rig, false) {
        let action = command.service_action.unwrap_or(0);
        let (right, wrong) = if command.service_action.is_some() { (2, 1) } else { (1, 2) };
        opcodes(&mut rig, wrong, command.opcode, action).illegal(Asc::INVALID_FIELD_IN_CDB);
        for option in [right, 3] {
            let one = OneCommand::parse(&opcodes(&mut rig, option, command.opcode, action).good()).unwrap();
            let usage = one.usage.unwrap();
            assert_eq!(usage[0], command.opcode);
            assert_eq!(usage.len(), usize::from(command.cdb_len));
            if let Some(action) = command.service_action {
                let told = if command.opcode == op::VARIABLE_LENGTH {
                    u16::from_be_bytes([usage[8], usage[9]])
                } else {
                    u16::from(usage[1] & 0x1f)
                };
                assert_eq!(told, action, "{:02x}", command.opcode);
            }
        }
    }
}

/// libiscsi ReportSupportedOpcodes.RCTD, .SERVACTV.
#[test]
fn timeouts_come_when_they_are_asked_for() {
    let mut rig = Rig::new();
    let (without, with) = (all(&mut rig, false), all(&mut rig, true));
    assert_eq!(without.len(), with.len());
    assert!(without.iter().all(|command| command.timeouts.is_none()));
    assert!(with.iter().all(|command| command.timeouts.is_some_and(|timeouts| timeouts.recommended_s > 0)));
    let one = OneCommand::parse(&opcodes(&mut rig, 0x81, op::INQUIRY, 0).good()).unwrap();
    assert!(one.timeouts.is_some());
}

#[test]
fn the_list_is_in_order_and_has_no_command_twice() {
    let mut rig = Rig::new();
    let commands = all(&mut rig, false);
    let codes: Vec<_> = commands.iter().map(|command| (command.opcode, command.service_action)).collect();
    assert!(codes.is_sorted_by(|a, b| a < b));
    assert!(!codes.iter().any(|(opcode, _)| *opcode == op::PREVENT_ALLOW_MEDIUM_REMOVAL));
    assert!(all(&mut removable(), false).iter().any(|one| one.opcode == op::PREVENT_ALLOW_MEDIUM_REMOVAL));
}

/// CVE-2024-42416: an unchecked operation code or service action became an index.
#[test]
fn any_operation_code_and_service_action_is_answered() {
    let mut rig = Rig::new();
    let known = all(&mut rig, false);
    for option in 0..8 {
        for opcode in 0..=255 {
            for action in [0, 1, 0x0a, 0x1f, 0x20, 0x7fff, 0xffff] {
                let reply = opcodes(&mut rig, option, opcode, action);
                if option == 0 {
                    reply.good();
                    break;
                }
                if reply.sense.is_some() {
                    reply.illegal(Asc::INVALID_FIELD_IN_CDB);
                    continue;
                }
                let one = OneCommand::parse(&reply.good()).unwrap();
                let exists = known.iter().any(|command| {
                    command.opcode == opcode && command.service_action.is_none_or(|known| known == action)
                });
                let exists = exists && (option != 3 || action == 0 || has_actions(&known, opcode));
                assert_eq!(one.usage.is_some(), exists, "{option} {opcode:02x} {action:04x}");
            }
        }
        if option > 3 {
            opcodes(&mut rig, option, op::INQUIRY, 0).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
    }
}

fn has_actions(known: &[SupportedCommand], opcode: u8) -> bool {
    known.iter().any(|command| command.opcode == opcode && command.service_action.is_some())
}

#[test]
fn the_functions_that_are_told_are_those_that_work() {
    let mut rig = Rig::new();
    let cdb = |extended: u8| [op::MAINTENANCE_IN, 0x0d, extended, 0, 0, 0, 0, 0, 0, 16, 0, 0];
    let short = rig.run(A, &cdb(0), 16, &[]).good();
    let long = rig.run(A, &cdb(0x80), 16, &[]).good();
    assert_eq!((short.len(), long.len()), (4, 16));
    let told = TaskManagement::parse(&short).unwrap();
    use crate::contract::{TaskKey, Tmf as Function, TmfOutcome};
    for (function, told) in [
        (Function::AbortTask(TaskKey(999)), told.abort_task),
        (Function::AbortTaskSet, told.abort_task_set),
        (Function::ClearTaskSet, told.clear_task_set),
        (Function::ClearAca, told.clear_aca),
        (Function::QueryTask(TaskKey(999)), told.query_task),
        (Function::QueryTaskSet, told.query_task_set),
        (Function::QueryAsynchronousEvent, told.query_asynchronous_event),
        (Function::NexusReset, told.nexus_reset),
        (Function::LogicalUnitReset, told.logical_unit_reset),
    ] {
        let works = rig.manage(A, function) != Some(TmfOutcome::NotSupported);
        assert_eq!(works, told, "{function:?}");
    }
}

/// libiscsi ReportTargetPortGroups.AllocLength: a short allocation length cuts the data, and changes no
/// count.
#[test]
fn target_port_groups_keep_their_counts_however_short_the_data() {
    let mut rig = Rig::new();
    let cdb = |format: u8, len: u8| [op::MAINTENANCE_IN, format << 5 | 0x0a, 0, 0, 0, 0, 0, 0, 0, len, 0, 0];
    let whole = rig.run(A, &cdb(0, 255), 255, &[]).good();
    assert_eq!(whole, [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    for len in 0..16 {
        assert_eq!(rig.run(A, &cdb(0, len), 255, &[]).good(), whole[..usize::from(len)]);
    }
    let extended = rig.run(A, &cdb(1, 255), 255, &[]).good();
    let groups = Groups::parse(Format::Extended, &extended).unwrap();
    assert_eq!(groups.groups, Groups::parse(Format::LengthOnly, &whole).unwrap().groups);
    rig.run(A, &cdb(2, 255), 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    let set = [op::MAINTENANCE_OUT, 0x0a, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
    rig.run(A, &set, 0, &[0; 4]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// CVE-2024-43110: sense data contained three bytes of unrelated memory.
#[test]
fn request_sense_tells_and_clears_what_waits() {
    let mut rig = Rig::fresh(config(), Box::new(Ram::new(BLOCKS * 512)));
    let request = |descriptor: u8, len: u8| [op::REQUEST_SENSE, descriptor, 0, 0, len, 0];
    let sense = rig.run(A, &request(0, 252), 252, &[]).good();
    assert_eq!(sense, [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0]);
    assert_eq!(
        rig.run(A, &request(0, 252), 252, &[]).good(),
        [&[0x70, 0, 0, 0, 0, 0, 0, 10][..], &[0; 10]].concat()
    );
    assert_eq!(rig.run(B, &request(1, 252), 252, &[]).good(), [0x72, 6, 0x29, 0, 0, 0, 0, 0]);
    assert_eq!(rig.run(A, &request(1, 252), 252, &[]).good(), [0x72, 0, 0, 0, 0, 0, 0, 0]);
    for len in 0..18 {
        assert_eq!(rig.run(A, &request(0, len), 252, &[]).good().len(), usize::from(len));
    }
}

#[test]
fn statistics_count_commands_and_blocks_until_they_are_reset() {
    let mut rig = Rig::new();
    let statistics = [op::LOG_SENSE, 0, 0x59, 0, 0, 0, 0, 0, 255, 0];
    let counts = |rig: &mut Rig| {
        let page = rig.run(A, &statistics, 255, &[]).good();
        page[8..40].chunks(8).map(|count| u64::from_be_bytes(count.try_into().unwrap())).collect::<Vec<_>>()
    };
    read(&mut rig, A).good();
    write(&mut rig, B).good();
    write(&mut rig, B).good();
    assert_eq!(counts(&mut rig), [1, 2, 2, 1]);
    let select = |flags: u8, page: u8, len: u8| [op::LOG_SELECT, flags, page, 0, 0, 0, 0, 0, len, 0];
    rig.run(A, &select(0, 0x40, 0), 0, &[]).good();
    rig.run(A, &select(2, 0x40, 4), 0, &[0; 4]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &select(2, 0x59, 0), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &select(1, 0x40, 0), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(counts(&mut rig), [1, 2, 2, 1]);
    rig.run(A, &select(2, 0x40, 0), 0, &[]).good();
    rig.hears(B, Asc::LOG_PARAMETERS_CHANGED);
    assert_eq!(counts(&mut rig), [0, 0, 0, 0]);
}

#[test]
fn a_thin_unit_counts_its_storage_in_the_sets_that_it_names() {
    let counts = |rig: &mut Rig| {
        let page = rig.run(A, &[op::LOG_SENSE, 0, 0x4c, 0, 0, 0, 0, 0, 64, 0], 64, &[]).good();
        let count = |at: usize| u32::from_be_bytes(page[at..at + 4].try_into().unwrap());
        assert_eq!((page.len(), page[0], page[12], page[24]), (28, 0x8c, 2, 1));
        (count(8), count(20))
    };
    let mut rig = Rig::with(config(), Box::new(Ram::new(16 << 20)));
    let page = rig.run(A, &[op::INQUIRY, 1, 0xb2, 0, 64, 0], 64, &[]).good();
    assert_eq!(page[4], 11, "sets of a mebibyte");
    assert_eq!(counts(&mut rig), (16, 0));
    // A threshold set that is partly used counts as used, and the rest of it does not count as available.
    rig.write(0, &[1; 512]);
    assert_eq!(counts(&mut rig), (15, 1));
    rig.write(4 << 11, &vec![1; 2 << 20]);
    assert_eq!(counts(&mut rig), (13, 3));
    for lba in [0, 16384] {
        rig.run(A, &crate::testing::cdb_16(op::WRITE_SAME_16, 0x08, lba, 16384), 0, &[0; 512]).good();
    }
    assert_eq!(counts(&mut rig), (16, 0));
    let full = UnitConfig { thin: false, ..config() };
    let mut rig = Rig::with(full, Box::new(Ram::new(16 << 20)));
    rig.run(A, &[op::LOG_SENSE, 0, 0x4c, 0, 0, 0, 0, 0, 64, 0], 64, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// The data that `smartctl -x` requests: errors that the medium did not correct.
#[test]
fn errors_are_counted_and_put_back() {
    let (medium, faults) = store::fault_inject::FaultInjector::new(Ram::new(BLOCKS * 512), 1);
    let mut rig = Rig::with(config(), Box::new(medium));
    use store::fault_inject::{OpKind, Rule};
    for kind in [OpKind::Read, OpKind::Write] {
        faults.add(Rule::always(kind, 512, 512, store::api::Fault::Medium));
    }
    read(&mut rig, A);
    read(&mut rig, A);
    write(&mut rig, A);
    rig.run(A, &crate::testing::cdb_10(op::VERIFY_10, 0, 1, 1), 0, &[]);
    let last = |rig: &mut Rig, page: u8| {
        let cdb = [op::LOG_SENSE, 0, 0x40 | page, 0, 0, 0, 6, 1, 0, 0];
        let page = rig.run(A, &cdb, 256, &[]).good();
        page[page.len() - 1]
    };
    assert_eq!([0x02, 0x03, 0x05].map(|page| last(&mut rig, page)), [1, 2, 1]);
    rig.run(A, &[op::LOG_SELECT, 2, 0x40, 0, 0, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!([0x02, 0x03, 0x05].map(|page| last(&mut rig, page)), [0, 0, 0]);
}
