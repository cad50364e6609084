//! The table rows of the third-party copy commands.
//!
//! No reservation stops a command that reads the state of copies, so that a nexus can query the end of its
//! copy after another nexus has reserved the unit. The conflict class of a command that moves blocks follows
//! from its effect on this unit.

use scsi::copy::{copy_in, copy_out};
use scsi::opcode as op;

use super::{extended, results, rod};
use crate::contract::SpcLevel;
use crate::device_server::UnitInfo;
use crate::device_server::table::{AttentionRule, MediumNeed, ReadOnlyNexus, Row, always};
use crate::pr::conflict::Conflict;

/// The common values of most of these commands. Their state in this unit belongs to the nexus that sent them.
/// Blocks that they change are written through the unit that holds the blocks, with the access that the nexus
/// has there.
const ROW: Row = Row {
    opcode: op::THIRD_PARTY_COPY_OUT,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Never,
    attention: AttentionRule::Reported,
    medium: MediumNeed::NotNeeded,
    read_only: ReadOnlyNexus::Admitted,
    timeout_s: 30,
    handler: results::operating_parameters,
    enabled: always,
};

/// The timeout of a copy, in seconds: 64 segments of 256 MiB take a slow disk this long.
const COPY_TIMEOUT_S: u32 = 600;

fn makes_tokens(facts: &UnitInfo) -> bool {
    facts.makes_tokens && is_of_spc_4(facts)
}

/// For commands that SPC-4 introduced.
fn is_of_spc_4(facts: &UnitInfo) -> bool {
    facts.config.overrides.level > SpcLevel::Spc3
}

/// A THIRD-PARTY COPY IN command.
const IN: Row = Row { opcode: op::THIRD_PARTY_COPY_IN, ..ROW };
/// A command that uses tokens.
const TOKEN: Row = Row { enabled: makes_tokens, ..ROW };

/// Every third-party copy command.
pub(crate) const ROWS: &[Row] = &[
    Row {
        service_action: Some(copy_out::EXTENDED_COPY_LID1),
        name: "EXTENDED COPY(LID1)",
        usage: &[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        conflict: Conflict::Writes,
        timeout_s: COPY_TIMEOUT_S,
        handler: extended::extended_copy_lid1,
        ..ROW
    },
    Row {
        service_action: Some(copy_out::EXTENDED_COPY_LID4),
        name: "EXTENDED COPY(LID4)",
        usage: &[0x83, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        conflict: Conflict::Writes,
        timeout_s: COPY_TIMEOUT_S,
        handler: extended::extended_copy_lid4,
        enabled: is_of_spc_4,
        ..ROW
    },
    Row {
        service_action: Some(copy_out::POPULATE_TOKEN),
        name: "POPULATE TOKEN",
        usage: &[0x83, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0],
        conflict: Conflict::Reads,
        medium: MediumNeed::Ready,
        handler: rod::populate_token,
        ..TOKEN
    },
    Row {
        service_action: Some(copy_out::WRITE_USING_TOKEN),
        name: "WRITE USING TOKEN",
        usage: &[0x83, 0x11, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0],
        conflict: Conflict::Writes,
        medium: MediumNeed::Writable,
        read_only: ReadOnlyNexus::Refused,
        timeout_s: COPY_TIMEOUT_S,
        handler: rod::write_using_token,
        ..TOKEN
    },
    Row {
        service_action: Some(copy_out::COPY_OPERATION_ABORT),
        name: "COPY OPERATION ABORT",
        usage: &[0x83, 0x1c, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        conflict: Conflict::Writes,
        handler: extended::copy_operation_abort,
        enabled: is_of_spc_4,
        ..ROW
    },
    Row {
        service_action: Some(copy_in::RECEIVE_COPY_STATUS_LID1),
        name: "RECEIVE COPY STATUS(LID1)",
        usage: &[0x84, 0x00, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: results::copy_status_lid1,
        ..IN
    },
    Row {
        service_action: Some(copy_in::RECEIVE_COPY_DATA_LID1),
        name: "RECEIVE COPY DATA(LID1)",
        usage: &[0x84, 0x01, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: results::copy_data_lid1,
        ..IN
    },
    Row {
        service_action: Some(copy_in::RECEIVE_COPY_OPERATING_PARAMETERS),
        name: "RECEIVE COPY OPERATING PARAMETERS",
        // SPC-3 defined a list identifier here, and initiators still fill it in.
        usage: &[0x84, 0x03, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: results::operating_parameters,
        ..IN
    },
    Row {
        service_action: Some(copy_in::RECEIVE_COPY_FAILURE_DETAILS_LID1),
        name: "RECEIVE COPY FAILURE DETAILS(LID1)",
        usage: &[0x84, 0x04, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: results::failure_details_lid1,
        ..IN
    },
    Row {
        service_action: Some(copy_in::RECEIVE_COPY_STATUS_LID4),
        name: "RECEIVE COPY STATUS(LID4)",
        usage: &[0x84, 0x05, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: results::copy_status_lid4,
        enabled: is_of_spc_4,
        ..IN
    },
    Row {
        service_action: Some(copy_in::RECEIVE_ROD_TOKEN_INFORMATION),
        name: "RECEIVE ROD TOKEN INFORMATION",
        usage: &[0x84, 0x07, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: results::rod_token_information,
        enabled: makes_tokens,
        ..IN
    },
    Row {
        service_action: Some(copy_in::REPORT_ALL_ROD_TOKENS),
        name: "REPORT ALL ROD TOKENS",
        usage: &[0x84, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: results::all_rod_tokens,
        enabled: makes_tokens,
        ..IN
    },
];
