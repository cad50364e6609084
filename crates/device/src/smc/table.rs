//! The table rows of the commands of a medium changer (SMC-3).
//!
//! Bits that turn a cartridge over are in no usage map, so such a request is refused.

use scsi::opcode as op;

use super::{element_status, motion};
use crate::device_server::table::{AttentionRule, MediumNeed, ReadOnlyNexus, Row, always};
use crate::pr::conflict::Conflict;

/// The common values.
const ROW: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Writes,
    attention: AttentionRule::Reported,
    medium: MediumNeed::NotNeeded,
    read_only: ReadOnlyNexus::Refused,
    timeout_s: 600,
    handler: motion::move_medium,
    enabled: always,
};

/// A command that moves cartridges: it writes the file of the library.
const MOVES: Row = Row { medium: MediumNeed::Optional, ..ROW };
/// A command that only asks.
const READS: Row =
    Row { conflict: Conflict::Reads, read_only: ReadOnlyNexus::Admitted, timeout_s: 60, ..ROW };

/// Every command beside those of SPC.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row { opcode: op::INITIALIZE_ELEMENT_STATUS, name: "INITIALIZE ELEMENT STATUS",
        usage: &[0x07, 0, 0, 0, 0, 0], handler: element_status::initialize, ..READS },
    Row { opcode: op::OPEN_CLOSE_IMPORT_EXPORT_ELEMENT, name: "OPEN/CLOSE IMPORT/EXPORT ELEMENT",
        usage: &[0x1b, 0, 0xff, 0xff, 0x1f, 0], handler: motion::open_close, ..ROW },
    Row { opcode: op::POSITION_TO_ELEMENT, name: "POSITION TO ELEMENT",
        usage: &[0x2b, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], handler: motion::position_to_element, ..ROW },
    Row { opcode: op::INITIALIZE_ELEMENT_STATUS_WITH_RANGE, name: "INITIALIZE ELEMENT STATUS WITH RANGE",
        usage: &[0x37, 0x03, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0], handler: element_status::initialize_range, ..READS },
    Row { opcode: op::MOVE_MEDIUM, name: "MOVE MEDIUM",
        usage: &[0xa5, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], ..MOVES },
    Row { opcode: op::EXCHANGE_MEDIUM, name: "EXCHANGE MEDIUM",
        usage: &[0xa6, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: motion::exchange_medium, ..MOVES },
    Row { opcode: op::READ_ELEMENT_STATUS, name: "READ ELEMENT STATUS",
        usage: &[0xb8, 0x1f, 0xff, 0xff, 0xff, 0xff, 0x03, 0xff, 0xff, 0xff, 0, 0],
        conflict: Conflict::ByCdb(element_status::conflict), handler: element_status::read_element_status, ..READS },
];
