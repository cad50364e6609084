//! The commands that are known, by device type: which reservations they conflict with, whether they change
//! the medium, and how long they may take. All bits of their CDBs are the device's.

use scsi::cdb::Cdb;
use scsi::opcode as op;
use scsi::opcode::service_action_in_16 as in_16;

use super::forward::USUAL_TIMEOUT_S;
use super::{forward, identity, prevent_allow, request_sense, write_buffer};
use crate::contract::DeviceKind;
use crate::device_server::UnitInfo;
use crate::device_server::table::{AttentionRule, MediumNeed, ReadOnlyNexus, Row, always};
use crate::pr::conflict::Conflict;

/// After how many seconds the system aborts a command that moves a tape or a cartridge, or works on a whole
/// medium.
const LONG_TIMEOUT_S: u32 = 4 * 3600;
/// The same of a command that is not known.
const UNKNOWN_TIMEOUT_S: u32 = 600;

/// A command that changes the medium.
const WRITES: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Writes,
    attention: AttentionRule::Reported,
    medium: MediumNeed::Writable,
    read_only: ReadOnlyNexus::Refused,
    timeout_s: USUAL_TIMEOUT_S,
    handler: forward,
    enabled: always,
};
/// A command that changes the state of the device, but not the medium.
const CONTROLS: Row = Row { medium: MediumNeed::Ready, ..WRITES };
/// A command that moves the medium, whose position every nexus shares.
const MOVES: Row = Row { read_only: ReadOnlyNexus::Admitted, timeout_s: LONG_TIMEOUT_S, ..CONTROLS };
/// A command that reads.
const READS: Row = Row { conflict: Conflict::Reads, read_only: ReadOnlyNexus::Admitted, ..CONTROLS };
/// A command that reports something and passes reservations.
const REPORTS: Row = Row { conflict: Conflict::Never, ..READS };

/// The row of every operation code without one: it may change the medium.
pub(super) const FALLBACK: Row = Row { name: "other commands", timeout_s: UNKNOWN_TIMEOUT_S, ..WRITES };

const fn writes(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, ..WRITES }
}

const fn writes_long(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, timeout_s: LONG_TIMEOUT_S, ..WRITES }
}

const fn controls(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, ..CONTROLS }
}

const fn moves(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, ..MOVES }
}

const fn reads(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, ..READS }
}

const fn reports(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, ..REPORTS }
}

/// The service action `action` of the operation code of `row`.
const fn action(action: u16, name: &'static str, row: Row) -> Row {
    Row { service_action: Some(action), name, ..row }
}

/// The service actions of an operation code that have no rows: they may change the medium.
const fn others(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, ..FALLBACK }
}

/// A command that is refused unless `dangerous_commands` is set.
const fn dangerous(row: Row) -> Row {
    Row { enabled: allows_dangerous, timeout_s: LONG_TIMEOUT_S, ..row }
}

/// A command that is always refused.
const fn refused(opcode: u8, name: &'static str) -> Row {
    Row { opcode, name, enabled: |_| false, ..WRITES }
}

/// Returns whether initiators may send commands that change the device itself.
pub(super) fn allows_dangerous(facts: &UnitInfo) -> bool {
    matches!(facts.config.device, DeviceKind::PassThrough { dangerous_commands: true })
}

/// Starting a disk passes reservations of other nexuses.
fn start_stop_conflict(cdb: &Cdb) -> Conflict {
    if cdb.u8(4) & 0xf1 == 1 { Conflict::Never } else { Conflict::Writes }
}

fn prevent_allow_conflict(cdb: &Cdb) -> Conflict {
    if cdb.u8(4) & 3 == 0 { Conflict::Never } else { Conflict::Writes }
}

const ZBC_IN: u8 = 0x95;

const START_STOP: Row = Row {
    conflict: Conflict::ByCdb(start_stop_conflict),
    timeout_s: LONG_TIMEOUT_S,
    ..controls(op::START_STOP_UNIT, "START STOP UNIT")
};

/// The commands of SPC that the device executes, and those that nobody does.
pub(crate) const COMMON_ROWS: &[Row] = &[
    Row { conflict: Conflict::Reserve, ..reports(op::TEST_UNIT_READY, "TEST UNIT READY") },
    Row {
        attention: AttentionRule::Exempt,
        handler: request_sense,
        ..reports(op::REQUEST_SENSE, "REQUEST SENSE")
    },
    Row {
        attention: AttentionRule::Exempt,
        medium: MediumNeed::NotNeeded,
        handler: identity::inquiry,
        ..reports(op::INQUIRY, "INQUIRY")
    },
    controls(op::MODE_SELECT_6, "MODE SELECT(6)"),
    refused(0x18, "COPY"),
    reads(op::MODE_SENSE_6, "MODE SENSE(6)"),
    START_STOP,
    reads(op::RECEIVE_DIAGNOSTIC_RESULTS, "RECEIVE DIAGNOSTIC RESULTS"),
    Row { timeout_s: LONG_TIMEOUT_S, ..controls(op::SEND_DIAGNOSTIC, "SEND DIAGNOSTIC") },
    Row {
        conflict: Conflict::ByCdb(prevent_allow_conflict),
        read_only: ReadOnlyNexus::ByCdb(|cdb| cdb.u8(4) & 3 == 0),
        handler: prevent_allow,
        ..controls(op::PREVENT_ALLOW_MEDIUM_REMOVAL, "PREVENT ALLOW MEDIUM REMOVAL")
    },
    refused(0x39, "COMPARE"),
    refused(0x3a, "COPY AND VERIFY"),
    Row { handler: write_buffer, timeout_s: UNKNOWN_TIMEOUT_S, ..controls(op::WRITE_BUFFER, "WRITE BUFFER") },
    reads(op::READ_BUFFER_10, "READ BUFFER(10)"),
    refused(0x40, "CHANGE DEFINITION"),
    controls(op::LOG_SELECT, "LOG SELECT"),
    reports(op::LOG_SENSE, "LOG SENSE"),
    controls(op::MODE_SELECT_10, "MODE SELECT(10)"),
    reads(op::MODE_SENSE_10, "MODE SENSE(10)"),
    refused(op::THIRD_PARTY_COPY_OUT, "third-party copies (out)"),
    refused(op::THIRD_PARTY_COPY_IN, "third-party copies (in)"),
    refused(0x86, "ACCESS CONTROL IN"),
    refused(0x87, "ACCESS CONTROL OUT"),
    reads(op::READ_BUFFER_16, "READ BUFFER(16)"),
    // The kernel executes the commands of SAT for a device of any type that is behind an ATA host adapter.
    dangerous(writes(0x85, "ATA PASS-THROUGH(16)")),
    dangerous(writes(0xa1, "ATA PASS-THROUGH(12)")),
    dangerous(action(0x1ff0, "ATA PASS-THROUGH(32)", writes(op::VARIABLE_LENGTH, ""))),
    others(op::VARIABLE_LENGTH, "variable length commands"),
    reads(op::SECURITY_PROTOCOL_IN, "SECURITY PROTOCOL IN"),
];

/// The commands of disks (SBC, ZBC, RBC).
pub(super) const BLOCK_ROWS: &[Row] = &[
    dangerous(writes(op::FORMAT_UNIT, "FORMAT UNIT")),
    writes(op::REASSIGN_BLOCKS, "REASSIGN BLOCKS"),
    reads(op::READ_6, "READ(6)"),
    writes(op::WRITE_6, "WRITE(6)"),
    reports(op::READ_CAPACITY_10, "READ CAPACITY(10)"),
    reads(op::READ_10, "READ(10)"),
    writes(op::WRITE_10, "WRITE(10)"),
    writes(op::WRITE_AND_VERIFY_10, "WRITE AND VERIFY(10)"),
    reads(op::VERIFY_10, "VERIFY(10)"),
    reads(op::PRE_FETCH_10, "PRE-FETCH(10)"),
    Row { read_only: ReadOnlyNexus::Admitted, ..controls(op::SYNCHRONIZE_CACHE_10, "SYNCHRONIZE CACHE(10)") },
    reads(op::READ_DEFECT_DATA_10, "READ DEFECT DATA(10)"),
    dangerous(writes(0x38, "FORMAT WITH PRESET")),
    reads(0x3e, "READ LONG(10)"),
    writes(0x3f, "WRITE LONG(10)"),
    writes_long(op::WRITE_SAME_10, "WRITE SAME(10)"),
    writes_long(op::UNMAP, "UNMAP"),
    dangerous(writes(op::SANITIZE, "SANITIZE")),
    reads(op::READ_16, "READ(16)"),
    writes(op::COMPARE_AND_WRITE, "COMPARE AND WRITE"),
    writes(op::WRITE_16, "WRITE(16)"),
    writes(op::ORWRITE_16, "ORWRITE(16)"),
    writes(op::WRITE_AND_VERIFY_16, "WRITE AND VERIFY(16)"),
    reads(op::VERIFY_16, "VERIFY(16)"),
    reads(op::PRE_FETCH_16, "PRE-FETCH(16)"),
    Row { read_only: ReadOnlyNexus::Admitted, ..controls(op::SYNCHRONIZE_CACHE_16, "SYNCHRONIZE CACHE(16)") },
    writes_long(op::WRITE_SAME_16, "WRITE SAME(16)"),
    writes_long(0x94, "ZBC OUT"),
    action(0x00, "REPORT ZONES", reads(ZBC_IN, "")),
    action(0x06, "REPORT REALMS", reads(ZBC_IN, "")),
    action(0x07, "REPORT ZONE DOMAINS", reads(ZBC_IN, "")),
    action(0x09, "ZONE QUERY", reads(ZBC_IN, "")),
    // ZONE ACTIVATE among them.
    others(ZBC_IN, "other service actions of ZBC IN"),
    writes(op::WRITE_ATOMIC_16, "WRITE ATOMIC(16)"),
    action(in_16::READ_CAPACITY_16, "READ CAPACITY(16)", reports(op::SERVICE_ACTION_IN_16, "")),
    action(0x11, "READ LONG(16)", reads(op::SERVICE_ACTION_IN_16, "")),
    action(in_16::GET_LBA_STATUS, "GET LBA STATUS(16)", reads(op::SERVICE_ACTION_IN_16, "")),
    action(0x13, "REPORT REFERRALS", reads(op::SERVICE_ACTION_IN_16, "")),
    action(0x16, "GET STREAM STATUS", reads(op::SERVICE_ACTION_IN_16, "")),
    action(0x17, "GET PHYSICAL ELEMENT STATUS", reads(op::SERVICE_ACTION_IN_16, "")),
    dangerous(action(0x18, "REMOVE ELEMENT AND TRUNCATE", writes(op::SERVICE_ACTION_IN_16, ""))),
    dangerous(action(0x19, "RESTORE ELEMENTS AND REBUILD", writes(op::SERVICE_ACTION_IN_16, ""))),
    dangerous(action(0x1a, "REMOVE ELEMENT AND MODIFY ZONES", writes(op::SERVICE_ACTION_IN_16, ""))),
    // STREAM CONTROL and BACKGROUND CONTROL among them.
    others(op::SERVICE_ACTION_IN_16, "other service actions of SERVICE ACTION IN(16)"),
    reads(op::READ_12, "READ(12)"),
    writes(op::WRITE_12, "WRITE(12)"),
    writes(op::WRITE_AND_VERIFY_12, "WRITE AND VERIFY(12)"),
    reads(op::VERIFY_12, "VERIFY(12)"),
    dangerous(controls(0xb5, "SECURITY PROTOCOL OUT")),
    reads(op::READ_DEFECT_DATA_12, "READ DEFECT DATA(12)"),
];

/// The commands of tape drives (SSC).
pub(super) const TAPE_ROWS: &[Row] = &[
    moves(op::REWIND, "REWIND"),
    writes_long(op::FORMAT_UNIT, "FORMAT MEDIUM"),
    reports(op::READ_BLOCK_LIMITS, "READ BLOCK LIMITS"),
    Row { timeout_s: LONG_TIMEOUT_S, ..reads(op::READ_6, "READ(6)") },
    writes_long(op::WRITE_6, "WRITE(6)"),
    writes_long(0x0b, "SET CAPACITY"),
    Row { timeout_s: LONG_TIMEOUT_S, ..reads(0x0f, "READ REVERSE(6)") },
    writes_long(op::WRITE_FILEMARKS_6, "WRITE FILEMARKS(6)"),
    moves(op::SPACE_6, "SPACE(6)"),
    moves(op::VERIFY_6, "VERIFY(6)"),
    writes_long(op::ERASE_6, "ERASE(6)"),
    Row { timeout_s: LONG_TIMEOUT_S, ..controls(op::LOAD_UNLOAD, "LOAD UNLOAD") },
    moves(op::LOCATE_10, "LOCATE(10)"),
    reads(op::READ_POSITION, "READ POSITION"),
    reports(op::REPORT_DENSITY_SUPPORT, "REPORT DENSITY SUPPORT"),
    writes_long(op::WRITE_FILEMARKS_16, "WRITE FILEMARKS(16)"),
    Row { timeout_s: LONG_TIMEOUT_S, ..reads(0x81, "READ REVERSE(16)") },
    writes(0x82, "ALLOW OVERWRITE"),
    Row { timeout_s: LONG_TIMEOUT_S, ..reads(op::READ_16, "READ(16)") },
    writes_long(op::WRITE_16, "WRITE(16)"),
    reads(op::READ_ATTRIBUTE, "READ ATTRIBUTE"),
    writes(op::WRITE_ATTRIBUTE, "WRITE ATTRIBUTE"),
    moves(op::VERIFY_16, "VERIFY(16)"),
    moves(op::SPACE_16, "SPACE(16)"),
    moves(op::LOCATE_16, "LOCATE(16)"),
    writes_long(op::ERASE_16, "ERASE(16)"),
    controls(0xb5, "SECURITY PROTOCOL OUT"),
];

/// The commands of drives for discs (MMC).
pub(super) const DISC_ROWS: &[Row] = &[
    writes_long(op::FORMAT_UNIT, "FORMAT UNIT"),
    reports(0x23, "READ FORMAT CAPACITIES"),
    reports(op::READ_CAPACITY_10, "READ CAPACITY"),
    reads(op::READ_10, "READ(10)"),
    writes(op::WRITE_10, "WRITE(10)"),
    writes(op::WRITE_AND_VERIFY_10, "WRITE AND VERIFY(10)"),
    reads(op::VERIFY_10, "VERIFY(10)"),
    writes_long(op::SYNCHRONIZE_CACHE_10, "SYNCHRONIZE CACHE"),
    reads(0x42, "READ SUB-CHANNEL"),
    reads(op::READ_TOC_PMA_ATIP, "READ TOC/PMA/ATIP"),
    reports(op::GET_CONFIGURATION, "GET CONFIGURATION"),
    reports(op::GET_EVENT_STATUS_NOTIFICATION, "GET EVENT STATUS NOTIFICATION"),
    reads(op::READ_DISC_INFORMATION, "READ DISC INFORMATION"),
    reads(op::READ_TRACK_INFORMATION, "READ TRACK INFORMATION"),
    writes_long(0x53, "RESERVE TRACK"),
    writes_long(0x54, "SEND OPC INFORMATION"),
    writes_long(0x58, "REPAIR TRACK"),
    writes_long(0x5b, "CLOSE TRACK/SESSION"),
    reads(op::READ_BUFFER_CAPACITY, "READ BUFFER CAPACITY"),
    writes(0x5d, "SEND CUE SHEET"),
    writes_long(0xa1, "BLANK"),
    Row { timeout_s: LONG_TIMEOUT_S, ..controls(0xa6, "LOAD/UNLOAD MEDIUM") },
    reads(op::READ_12, "READ(12)"),
    writes(op::WRITE_12, "WRITE(12)"),
    reads(0xab, "READ MEDIA SERIAL NUMBER"),
    reads(op::GET_PERFORMANCE, "GET PERFORMANCE"),
    reads(op::READ_DISC_STRUCTURE, "READ DISC STRUCTURE"),
    controls(op::SET_STREAMING, "SET STREAMING"),
    reads(op::READ_CD_MSF, "READ CD MSF"),
    controls(op::SET_CD_SPEED, "SET CD SPEED"),
    reports(op::MECHANISM_STATUS, "MECHANISM STATUS"),
    reads(op::READ_CD, "READ CD"),
    writes(0xbf, "SEND DISC STRUCTURE"),
];

/// The commands of media changers (SMC).
pub(super) const CHANGER_ROWS: &[Row] = &[
    moves(0x07, "INITIALIZE ELEMENT STATUS"),
    Row { timeout_s: LONG_TIMEOUT_S, ..controls(0x1b, "OPEN/CLOSE IMPORT/EXPORT ELEMENT") },
    moves(0x2b, "POSITION TO ELEMENT"),
    moves(0x37, "INITIALIZE ELEMENT STATUS WITH RANGE"),
    reads(op::READ_ATTRIBUTE, "READ ATTRIBUTE"),
    writes_long(0xa5, "MOVE MEDIUM"),
    writes_long(0xa6, "EXCHANGE MEDIUM"),
    reads(0xb5, "REQUEST VOLUME ELEMENT ADDRESS"),
    controls(0xb6, "SEND VOLUME TAG"),
    reads(0xb8, "READ ELEMENT STATUS"),
];
