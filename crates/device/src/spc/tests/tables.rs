//! What only a test beside the unit sees: the table of commands, and a clock that no command advances.

use scsi::pr::ReservationType;

use super::access::{is_refused, limited};
use super::*;
use crate::pr::PrRole;
use crate::pr::conflict::Conflict;
use crate::unit::table;

/// The commands that it may send: each only reports to the nexus itself, or changes state that only this
/// nexus uses. A new command in the table requires a decision here.
const ADMITTED: &[&str] = &[
    "COPY OPERATION ABORT",
    "EXTENDED COPY(LID1)",
    "EXTENDED COPY(LID4)",
    "GET LBA STATUS(16)",
    "GET LBA STATUS(32)",
    "INQUIRY",
    "LOG SENSE",
    "MODE SENSE(10)",
    "MODE SENSE(6)",
    "PERSISTENT RESERVE IN, READ FULL STATUS",
    "PERSISTENT RESERVE IN, READ KEYS",
    "PERSISTENT RESERVE IN, READ RESERVATION",
    "PERSISTENT RESERVE IN, REPORT CAPABILITIES",
    "POPULATE TOKEN",
    "PRE-FETCH(10)",
    "PRE-FETCH(16)",
    // For these two, the form that changes nothing; see below.
    "PREVENT ALLOW MEDIUM REMOVAL",
    "READ BUFFER(10)",
    "READ BUFFER(16)",
    "READ CAPACITY(10)",
    "READ CAPACITY(16)",
    "READ DEFECT DATA(10)",
    "READ DEFECT DATA(12)",
    "READ(10)",
    "READ(12)",
    "READ(16)",
    "READ(32)",
    "READ(6)",
    "RECEIVE COPY DATA(LID1)",
    "RECEIVE COPY FAILURE DETAILS(LID1)",
    "RECEIVE COPY OPERATING PARAMETERS",
    "RECEIVE COPY STATUS(LID1)",
    "RECEIVE COPY STATUS(LID4)",
    "RECEIVE DIAGNOSTIC RESULTS",
    "RECEIVE ROD TOKEN INFORMATION",
    "RELEASE(10)",
    "RELEASE(6)",
    "REPORT ALL ROD TOKENS",
    "REPORT IDENTIFYING INFORMATION",
    "REPORT LUNS",
    "REPORT SUPPORTED OPERATION CODES",
    "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
    "REPORT TARGET PORT GROUPS",
    "REPORT TIMESTAMP",
    "REQUEST SENSE",
    "SYNCHRONIZE CACHE(10)",
    "SYNCHRONIZE CACHE(16)",
    "TEST UNIT READY",
    "VERIFY(10)",
    "VERIFY(12)",
    "VERIFY(16)",
    "VERIFY(32)",
];

#[test]
fn a_read_only_nexus_is_refused_every_command_that_changes_what_others_meet() {
    let mut admitted = Vec::new();
    for row in table(&crate::sbc::COMMAND_SET).rows() {
        let mut cdb = alloc::vec![0; row.usage.len()];
        cdb[0] = row.opcode;
        match (row.service_action, row.opcode) {
            (Some(action), op::VARIABLE_LENGTH) => {
                cdb[7] = 0x18;
                cdb[8..10].copy_from_slice(&action.to_be_bytes());
            }
            (Some(action), _) => cdb[1] = u8::try_from(action).unwrap(),
            (None, _) => {}
        }
        let mut rig = limited();
        rig.unit.seed(&[7; 32]);
        rig.unit.server.info.capabilities.crypto_erase = true;
        rig.unit.server.info.capabilities.atomic_len_max = 1 << 20;
        assert!(row.is_enabled(&rig.unit.server.info), "{}", row.name);
        if !is_refused(&mut rig, B, &cdb) {
            admitted.push(row.name);
        }
    }
    admitted.sort_unstable();
    assert_eq!(admitted, ADMITTED, "START STOP UNIT stops if no bit is set");
}

/// ALLOW COMMANDS makes a statement about commands all over the table.
#[test]
fn what_reservations_let_pass_is_what_capabilities_tell() {
    let rig = Rig::new();
    let stranger_reads =
        |class: Conflict| !class.conflicts_with(ReservationType::WriteExclusive, PrRole::Unregistered);
    let always =
        |class: Conflict| !class.conflicts_with(ReservationType::ExclusiveAccess, PrRole::Unregistered);
    for row in rig.unit.server.table.rows() {
        match (row.opcode, row.service_action) {
            (op::TEST_UNIT_READY | op::THIRD_PARTY_COPY_IN, _) => {
                assert!(always(row.conflict), "{}", row.name)
            }
            (
                op::MODE_SENSE_6
                | op::MODE_SENSE_10
                | op::READ_BUFFER_10
                | op::READ_BUFFER_16
                | op::RECEIVE_DIAGNOSTIC_RESULTS
                | op::READ_DEFECT_DATA_10
                | op::READ_DEFECT_DATA_12,
                _,
            )
            | (op::MAINTENANCE_IN, Some(0x0c | 0x0d)) => {
                assert!(stranger_reads(row.conflict) && !always(row.conflict), "{}", row.name);
            }
            _ => {}
        }
    }
}

/// The data that `smartctl -x` requests: how long the unit was idle.
#[test]
fn idle_time_is_counted() {
    let mut rig = Rig::new();
    rig.unit.handle_timeout(Instant(7_000_000));
    let cdb = [op::LOG_SENSE, 0, 0x40 | 0x19, 0, 0, 0, 2, 1, 0, 0];
    rig.unit.server.now = Instant(7_000_000);
    assert_eq!(rig.unit.server.idle_time().as_millis(), 7);
    assert_eq!(rig.run(A, &cdb, 256, &[]).good()[4..8], [0, 2, 0x23, 8]);
}
