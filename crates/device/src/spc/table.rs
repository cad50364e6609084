//! The table rows of the commands that every device type has.

use scsi::opcode as op;
use scsi::opcode::{maintenance_in as report, maintenance_out as set};
use scsi::pr::{service_action_in as pr_in, service_action_out as pr_out};

use super::{
    buffer, diagnostic, identity, information, medium_removal, mode, report as reports, reservation,
};
use crate::device_server::UnitInfo;
use crate::device_server::table::{AttentionRule, MediumNeed, ReadOnlyNexus, Row, always};
use crate::pr::conflict::Conflict;

/// The common values of most of these commands: they need no medium.
const ROW: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Never,
    attention: AttentionRule::Reported,
    medium: MediumNeed::NotNeeded,
    read_only: ReadOnlyNexus::Refused,
    timeout_s: 10,
    handler: identity::inquiry,
    enabled: always,
};

/// A command that passes reservations and unit attentions.
const UA_EXEMPT: Row = Row { attention: AttentionRule::Exempt, ..REPORTS };
/// A command that passes reservations and changes nothing.
const REPORTS: Row = Row { read_only: ReadOnlyNexus::Admitted, ..ROW };
/// A command that reads.
const READS: Row = Row { conflict: Conflict::Reads, ..REPORTS };
/// A command that changes.
const WRITES: Row = Row { conflict: Conflict::Writes, ..ROW };

const fn is_removable(facts: &UnitInfo) -> bool {
    facts.config.removable
}

/// Returns the row of a service action of PERSISTENT RESERVE IN.
const fn persistent_in(action: u16, name: &'static str, usage: &'static [u8; 10]) -> Row {
    Row {
        opcode: op::PERSISTENT_RESERVE_IN,
        service_action: Some(action),
        name,
        usage,
        conflict: Conflict::Persistent,
        handler: reservation::persistent_reserve_in,
        ..REPORTS
    }
}

/// Returns the row of a service action of PERSISTENT RESERVE OUT. SCOPE and TYPE are evaluated where they
/// apply.
const fn persistent_out(action: u16, name: &'static str, usage: &'static [u8; 10]) -> Row {
    Row {
        opcode: op::PERSISTENT_RESERVE_OUT,
        service_action: Some(action),
        name,
        usage,
        conflict: Conflict::Persistent,
        timeout_s: 30,
        handler: reservation::persistent_reserve_out,
        ..ROW
    }
}

/// The commands.
pub(crate) const ROWS: &[Row] = &[
    Row {
        opcode: op::TEST_UNIT_READY,
        name: "TEST UNIT READY",
        usage: &[0x00, 0, 0, 0, 0, 0],
        conflict: Conflict::Reserve,
        medium: MediumNeed::Ready,
        timeout_s: 30,
        handler: reports::test_unit_ready,
        ..REPORTS
    },
    Row {
        opcode: op::INQUIRY,
        name: "INQUIRY",
        usage: &[0x12, 0x01, 0xff, 0xff, 0xff, 0],
        handler: identity::inquiry,
        ..UA_EXEMPT
    },
    Row {
        opcode: op::REPORT_LUNS,
        name: "REPORT LUNS",
        usage: &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: reports::luns,
        ..UA_EXEMPT
    },
    Row {
        opcode: op::REQUEST_SENSE,
        name: "REQUEST SENSE",
        usage: &[0x03, 0x01, 0, 0, 0xff, 0],
        handler: reports::request_sense,
        ..UA_EXEMPT
    },
    Row {
        opcode: op::MODE_SENSE_6,
        name: "MODE SENSE(6)",
        usage: &[0x1a, 0x08, 0xff, 0xff, 0xff, 0],
        handler: mode::sense,
        ..READS
    },
    Row {
        opcode: op::MODE_SENSE_10,
        name: "MODE SENSE(10)",
        usage: &[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
        handler: mode::sense,
        ..READS
    },
    Row {
        opcode: op::MODE_SELECT_6,
        name: "MODE SELECT(6)",
        usage: &[0x15, 0x11, 0, 0, 0xff, 0],
        timeout_s: 60,
        medium: MediumNeed::Optional,
        handler: mode::select,
        ..WRITES
    },
    Row {
        opcode: op::MODE_SELECT_10,
        name: "MODE SELECT(10)",
        usage: &[0x55, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0],
        timeout_s: 60,
        medium: MediumNeed::Optional,
        handler: mode::select,
        ..WRITES
    },
    Row {
        opcode: op::LOG_SENSE,
        name: "LOG SENSE",
        usage: &[0x4d, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0],
        handler: reports::log_sense,
        ..REPORTS
    },
    Row {
        opcode: op::LOG_SELECT,
        name: "LOG SELECT",
        usage: &[0x4c, 0x02, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
        handler: reports::log_select,
        ..WRITES
    },
    Row {
        opcode: op::SEND_DIAGNOSTIC,
        name: "SEND DIAGNOSTIC",
        usage: &[0x1d, 0xf7, 0, 0xff, 0xff, 0],
        timeout_s: 60,
        medium: MediumNeed::Optional,
        handler: diagnostic::send,
        ..WRITES
    },
    Row {
        opcode: op::RECEIVE_DIAGNOSTIC_RESULTS,
        name: "RECEIVE DIAGNOSTIC RESULTS",
        usage: &[0x1c, 0x01, 0xff, 0xff, 0xff, 0],
        handler: diagnostic::receive,
        ..READS
    },
    Row {
        opcode: op::READ_BUFFER_10,
        name: "READ BUFFER(10)",
        usage: &[0x3c, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        handler: buffer::read,
        ..READS
    },
    Row {
        opcode: op::READ_BUFFER_16,
        name: "READ BUFFER(16)",
        usage: &[0x9b, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        handler: buffer::read,
        ..READS
    },
    Row {
        opcode: op::WRITE_BUFFER,
        name: "WRITE BUFFER",
        usage: &[0x3b, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        handler: buffer::write,
        ..WRITES
    },
    Row {
        opcode: op::START_STOP_UNIT,
        name: "START STOP UNIT",
        usage: &[0x1b, 0x01, 0, 0x0f, 0xf7, 0],
        conflict: Conflict::ByCdb(medium_removal::start_stop_conflict),
        read_only: ReadOnlyNexus::ByCdb(medium_removal::only_starts),
        timeout_s: 60,
        medium: MediumNeed::Optional,
        handler: medium_removal::start_stop,
        ..ROW
    },
    Row {
        opcode: op::PREVENT_ALLOW_MEDIUM_REMOVAL,
        name: "PREVENT ALLOW MEDIUM REMOVAL",
        usage: &[0x1e, 0, 0, 0, 0x03, 0],
        conflict: Conflict::ByCdb(medium_removal::prevent_allow_conflict),
        read_only: ReadOnlyNexus::ByCdb(medium_removal::only_allows),
        handler: medium_removal::prevent_allow,
        enabled: is_removable,
        ..ROW
    },
    Row {
        opcode: op::RESERVE_6,
        name: "RESERVE(6)",
        usage: &[0x16, 0, 0, 0, 0, 0],
        conflict: Conflict::Own,
        handler: reservation::reserve,
        ..ROW
    },
    Row {
        opcode: op::RESERVE_10,
        name: "RESERVE(10)",
        usage: &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        conflict: Conflict::Own,
        handler: reservation::reserve,
        ..ROW
    },
    Row {
        opcode: op::RELEASE_6,
        name: "RELEASE(6)",
        usage: &[0x17, 0, 0, 0, 0, 0],
        conflict: Conflict::Own,
        // Admitted: it releases only what this nexus holds, and a read-only nexus holds nothing.
        handler: reservation::release,
        ..REPORTS
    },
    Row {
        opcode: op::RELEASE_10,
        name: "RELEASE(10)",
        usage: &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        conflict: Conflict::Own,
        // Admitted: it releases only what this nexus holds, and a read-only nexus holds nothing.
        handler: reservation::release,
        ..REPORTS
    },
    persistent_in(pr_in::READ_KEYS, "PERSISTENT RESERVE IN, READ KEYS", &in_usage(0)),
    persistent_in(pr_in::READ_RESERVATION, "PERSISTENT RESERVE IN, READ RESERVATION", &in_usage(1)),
    persistent_in(pr_in::REPORT_CAPABILITIES, "PERSISTENT RESERVE IN, REPORT CAPABILITIES", &in_usage(2)),
    persistent_in(pr_in::READ_FULL_STATUS, "PERSISTENT RESERVE IN, READ FULL STATUS", &in_usage(3)),
    persistent_out(pr_out::REGISTER, "PERSISTENT RESERVE OUT, REGISTER", &out_usage(0)),
    persistent_out(pr_out::RESERVE, "PERSISTENT RESERVE OUT, RESERVE", &out_usage(1)),
    persistent_out(pr_out::RELEASE, "PERSISTENT RESERVE OUT, RELEASE", &out_usage(2)),
    persistent_out(pr_out::CLEAR, "PERSISTENT RESERVE OUT, CLEAR", &out_usage(3)),
    persistent_out(pr_out::PREEMPT, "PERSISTENT RESERVE OUT, PREEMPT", &out_usage(4)),
    persistent_out(pr_out::PREEMPT_AND_ABORT, "PERSISTENT RESERVE OUT, PREEMPT AND ABORT", &out_usage(5)),
    persistent_out(
        pr_out::REGISTER_AND_IGNORE_EXISTING_KEY,
        "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
        &out_usage(6),
    ),
    persistent_out(pr_out::REGISTER_AND_MOVE, "PERSISTENT RESERVE OUT, REGISTER AND MOVE", &out_usage(7)),
    persistent_out(
        pr_out::REPLACE_LOST_RESERVATION,
        "PERSISTENT RESERVE OUT, REPLACE LOST RESERVATION",
        &out_usage(8),
    ),
    Row {
        opcode: op::MAINTENANCE_IN,
        service_action: Some(report::REPORT_IDENTIFYING_INFORMATION),
        name: "REPORT IDENTIFYING INFORMATION",
        usage: &[0xa3, 0x05, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xfe, 0],
        handler: information::report,
        ..REPORTS
    },
    Row {
        opcode: op::MAINTENANCE_IN,
        service_action: Some(report::REPORT_TARGET_PORT_GROUPS),
        name: "REPORT TARGET PORT GROUPS",
        usage: &[0xa3, 0xea, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: reports::target_port_groups,
        ..REPORTS
    },
    Row {
        opcode: op::MAINTENANCE_IN,
        service_action: Some(report::REPORT_SUPPORTED_OPERATION_CODES),
        name: "REPORT SUPPORTED OPERATION CODES",
        usage: &[0xa3, 0x0c, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: reports::supported_operation_codes,
        ..READS
    },
    Row {
        opcode: op::MAINTENANCE_IN,
        service_action: Some(report::REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS),
        name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        usage: &[0xa3, 0x0d, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: reports::supported_task_management,
        ..READS
    },
    Row {
        opcode: op::MAINTENANCE_IN,
        service_action: Some(report::REPORT_TIMESTAMP),
        name: "REPORT TIMESTAMP",
        usage: &[0xa3, 0x0f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: information::report_timestamp,
        ..REPORTS
    },
    Row {
        opcode: op::MAINTENANCE_OUT,
        service_action: Some(set::SET_IDENTIFYING_INFORMATION),
        name: "SET IDENTIFYING INFORMATION",
        usage: &[0xa4, 0x06, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xfe, 0],
        handler: information::set,
        ..WRITES
    },
    Row {
        opcode: op::MAINTENANCE_OUT,
        service_action: Some(set::SET_TIMESTAMP),
        name: "SET TIMESTAMP",
        usage: &[0xa4, 0x0f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: information::set_timestamp,
        ..WRITES
    },
];

const fn in_usage(action: u8) -> [u8; 10] {
    [0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0]
}

const fn out_usage(action: u8) -> [u8; 10] {
    [0x5f, action, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]
}
