//! The rows of the block commands.

use scsi::opcode as op;

use super::{capacity, read, write};
use crate::pr::conflict::Conflict;
use crate::table::{Attention, Medium, Row, always};

/// A row with what most commands have in common.
const ROW: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Changes,
    attention: Attention::Reported,
    medium: Medium::Ready,
    timeout_s: 30,
    handler: capacity::test_unit_ready,
    enabled: always,
};

/// A command that reads.
const READS: Row = Row { conflict: Conflict::Looks, ..ROW };
/// A command that writes.
const WRITES: Row = Row { conflict: Conflict::Changes, medium: Medium::Written, ..ROW };

/// Every block command, and the two of SPC that the medium answers.
pub(crate) const ROWS: &[Row] = &[
    Row {
        opcode: op::TEST_UNIT_READY,
        name: "TEST UNIT READY",
        usage: &[0x00, 0, 0, 0, 0, 0],
        conflict: Conflict::Reserve,
        handler: capacity::test_unit_ready,
        ..ROW
    },
    Row {
        opcode: op::READ_CAPACITY_10,
        name: "READ CAPACITY(10)",
        usage: &[0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0],
        conflict: Conflict::Never,
        handler: capacity::read_capacity_10,
        ..ROW
    },
    Row {
        opcode: op::SERVICE_ACTION_IN_16,
        service_action: Some(op::service_action_in_16::READ_CAPACITY_16),
        name: "READ CAPACITY(16)",
        usage: &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        conflict: Conflict::Never,
        handler: capacity::read_capacity_16,
        ..ROW
    },
    Row {
        opcode: op::READ_10,
        name: "READ(10)",
        usage: &[0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0],
        handler: read::read,
        ..READS
    },
    Row {
        opcode: op::READ_16,
        name: "READ(16)",
        usage: &[0x88, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0],
        handler: read::read,
        ..READS
    },
    Row {
        opcode: op::WRITE_10,
        name: "WRITE(10)",
        usage: &[0x2a, 0x18, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0],
        handler: write::write,
        ..WRITES
    },
    Row {
        opcode: op::WRITE_16,
        name: "WRITE(16)",
        usage: &[0x8a, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0],
        handler: write::write,
        ..WRITES
    },
];
