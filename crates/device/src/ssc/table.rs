//! The table rows of the commands of a tape drive (SSC-4).
//!
//! Bits that select what the drive does not have are in no usage map, so such a request is refused: setmarks,
//! HOLD of LOAD UNLOAD, and the maximum logical object identifier of READ BLOCK
//! LIMITS.

use scsi::opcode as op;
use scsi::opcode::{read_attribute, read_position};

use super::{
    append_only, attribute, density, format, load, motion, position, read, security_protocol, set_encryption,
    write,
};
use crate::device_server::UnitInfo;
use crate::device_server::table::{AttentionRule, MediumNeed, ReadOnlyNexus, Row, always};
use crate::pr::conflict::Conflict;

/// The common values of commands that report what the drive is.
const REPORTS: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Never,
    attention: AttentionRule::Reported,
    medium: MediumNeed::NotNeeded,
    read_only: ReadOnlyNexus::Admitted,
    timeout_s: 60,
    handler: density::read_block_limits,
    enabled: always,
};

/// A command that reads what the drive or the cartridge is.
const READS: Row = Row { conflict: Conflict::Reads, medium: MediumNeed::Ready, timeout_s: 600, ..REPORTS };
/// A command that moves the position, as a read of the medium does. Every host shares the position, and a
/// host that may only read moves it too: the next write of a host with a reservation would begin elsewhere.
const MOVES: Row = Row { conflict: Conflict::Writes, ..READS };
/// A command that writes.
const WRITES: Row = Row {
    conflict: Conflict::Writes,
    medium: MediumNeed::Writable,
    read_only: ReadOnlyNexus::Refused,
    ..READS
};

/// Encryption needs random nonces, so the unit must have a seed.
const fn can_encrypt(info: &UnitInfo) -> bool {
    info.makes_tokens
}

/// A form of READ POSITION.
const fn position_form(action: u16, name: &'static str, usage: &'static [u8; 10]) -> Row {
    Row {
        opcode: op::READ_POSITION,
        service_action: Some(action),
        name,
        usage,
        timeout_s: 60,
        handler: position::read_position,
        ..READS
    }
}

/// A form of READ ATTRIBUTE.
const fn attribute_form(action: u16, name: &'static str, usage: &'static [u8; 16]) -> Row {
    Row {
        opcode: op::READ_ATTRIBUTE,
        service_action: Some(action),
        name,
        usage,
        timeout_s: 60,
        handler: attribute::read_attribute,
        ..READS
    }
}

const fn attribute_usage(action: u8) -> [u8; 16] {
    [0x8c, action, 0, 0, 0, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0]
}

/// Every command beside those of SPC.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row { opcode: op::REWIND, name: "REWIND", usage: &[0x01, 0x01, 0, 0, 0, 0],
        handler: motion::rewind, ..MOVES },
    Row { opcode: op::FORMAT_MEDIUM, name: "FORMAT MEDIUM", usage: &[0x04, 0x01, 0x0f, 0, 0, 0],
        timeout_s: 3600, handler: format::format_medium, ..WRITES },
    Row { opcode: op::READ_BLOCK_LIMITS, name: "READ BLOCK LIMITS", usage: &[0x05, 0, 0, 0, 0, 0], ..REPORTS },
    Row { opcode: op::READ_6, name: "READ(6)", usage: &[0x08, 0x03, 0xff, 0xff, 0xff, 0],
        handler: read::read, ..MOVES },
    Row { opcode: op::WRITE_6, name: "WRITE(6)", usage: &[0x0a, 0x01, 0xff, 0xff, 0xff, 0],
        handler: write::write, ..WRITES },
    Row { opcode: op::SET_CAPACITY, name: "SET CAPACITY", usage: &[0x0b, 0x01, 0, 0xff, 0xff, 0],
        timeout_s: 3600, handler: format::set_capacity, ..WRITES },
    Row { opcode: op::WRITE_FILEMARKS_6, name: "WRITE FILEMARKS(6)", usage: &[0x10, 0x01, 0xff, 0xff, 0xff, 0],
        handler: write::write_filemarks, ..WRITES },
    Row { opcode: op::SPACE_6, name: "SPACE(6)", usage: &[0x11, 0x07, 0xff, 0xff, 0xff, 0],
        handler: motion::space, ..MOVES },
    Row { opcode: op::VERIFY_6, name: "VERIFY(6)", usage: &[0x13, 0x3f, 0xff, 0xff, 0xff, 0],
        handler: read::verify, ..MOVES },
    Row { opcode: op::ERASE_6, name: "ERASE(6)", usage: &[0x19, 0x03, 0, 0, 0, 0],
        handler: motion::erase, ..WRITES },
    Row { opcode: op::LOAD_UNLOAD, name: "LOAD UNLOAD", usage: &[0x1b, 0x01, 0, 0, 0x07, 0],
        conflict: Conflict::ByCdb(load::conflict), medium: MediumNeed::Optional, read_only: ReadOnlyNexus::Refused,
        handler: load::load_unload, ..MOVES },
    Row { opcode: op::LOCATE_10, name: "LOCATE(10)",
        usage: &[0x2b, 0x07, 0, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0], handler: motion::locate, ..MOVES },
    position_form(read_position::SHORT, "READ POSITION, SHORT FORM", &[0x34, 0x00, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    position_form(read_position::SHORT_VENDOR_SPECIFIC, "READ POSITION, SHORT FORM, VENDOR-SPECIFIC",
        &[0x34, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    position_form(read_position::LONG, "READ POSITION, LONG FORM", &[0x34, 0x06, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    position_form(read_position::EXTENDED, "READ POSITION, EXTENDED FORM",
        &[0x34, 0x08, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    Row { opcode: op::REPORT_DENSITY_SUPPORT, name: "REPORT DENSITY SUPPORT",
        usage: &[0x44, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: density::report_density_support, ..REPORTS },
    Row { opcode: op::WRITE_FILEMARKS_16, name: "WRITE FILEMARKS(16)",
        usage: &[0x80, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0],
        handler: write::write_filemarks, ..WRITES },
    Row { opcode: op::ALLOW_OVERWRITE, name: "ALLOW OVERWRITE",
        usage: &[0x82, 0, 0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        handler: append_only::allow_overwrite, ..WRITES },
    Row { opcode: op::READ_16, name: "READ(16)",
        usage: &[0x88, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0], handler: read::read, ..MOVES },
    Row { opcode: op::WRITE_16, name: "WRITE(16)",
        usage: &[0x8a, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0], handler: write::write, ..WRITES },
    attribute_form(read_attribute::VALUES, "READ ATTRIBUTE, ATTRIBUTE VALUES", &attribute_usage(0)),
    attribute_form(read_attribute::LIST, "READ ATTRIBUTE, ATTRIBUTE LIST", &attribute_usage(1)),
    attribute_form(read_attribute::LOGICAL_VOLUME_LIST, "READ ATTRIBUTE, LOGICAL VOLUME LIST", &attribute_usage(2)),
    attribute_form(read_attribute::PARTITION_LIST, "READ ATTRIBUTE, PARTITION LIST", &attribute_usage(3)),
    Row { opcode: op::WRITE_ATTRIBUTE, name: "WRITE ATTRIBUTE",
        usage: &[0x8d, 0x01, 0, 0, 0, 0xff, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: attribute::write_attribute, ..WRITES },
    Row { opcode: op::VERIFY_16, name: "VERIFY(16)",
        usage: &[0x8f, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0], handler: read::verify, ..MOVES },
    Row { opcode: op::SPACE_16, name: "SPACE(16)",
        usage: &[0x91, 0x0f, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        handler: motion::space, ..MOVES },
    Row { opcode: op::LOCATE_16, name: "LOCATE(16)",
        usage: &[0x92, 0x3b, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        handler: motion::locate, ..MOVES },
    Row { opcode: op::ERASE_16, name: "ERASE(16)",
        usage: &[0x93, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], handler: motion::erase, ..WRITES },
    // It reads the next block for its encryption status.
    Row { opcode: op::SECURITY_PROTOCOL_IN, name: "SECURITY PROTOCOL IN", conflict: Conflict::Reads,
        usage: &[0xa2, 0xff, 0xff, 0xff, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0, 0], medium: MediumNeed::Optional,
        handler: security_protocol::security_protocol_in, enabled: can_encrypt, ..REPORTS },
    Row { opcode: op::SECURITY_PROTOCOL_OUT, name: "SECURITY PROTOCOL OUT", conflict: Conflict::Writes,
        usage: &[0xb5, 0xff, 0xff, 0xff, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0, 0], read_only: ReadOnlyNexus::Refused,
        handler: set_encryption::security_protocol_out, enabled: can_encrypt, ..REPORTS },
];
