//! The table rows of the commands of a drive for discs (MMC-6).
//!
//! Bits that select what no image has are in no usage map, so such a request is refused: C2 error pointers
//! and sub-channels of READ CD, and the authentication of READ DISC STRUCTURE.

use scsi::opcode as op;

use super::{close, disc_structure, events, features, format, information, performance, read_cd, write};
use crate::device_server::table::{AttentionRule, MediumNeed, ReadOnlyNexus, Row, always};
use crate::pr::conflict::Conflict;
use crate::sbc::{capacity, read, verify};

/// The common values of commands that report the state of the drive: they pass reservations and need no
/// medium.
const REPORTS: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Never,
    attention: AttentionRule::Reported,
    medium: MediumNeed::NotNeeded,
    read_only: ReadOnlyNexus::Admitted,
    timeout_s: 30,
    handler: features::get_configuration,
    enabled: always,
};

/// A command that is executed although a unit attention is pending (MMC-6).
const POLLS: Row = Row { attention: AttentionRule::Exempt, timeout_s: 10, ..REPORTS };
/// A command that reads the disc, or what is known of it.
const READS: Row = Row { conflict: Conflict::Reads, medium: MediumNeed::Ready, ..REPORTS };

/// A command that writes the disc.
const WRITES: Row = Row {
    conflict: Conflict::Writes,
    medium: MediumNeed::Writable,
    read_only: ReadOnlyNexus::Refused,
    ..READS
};

/// Every command beside those of SPC.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row { opcode: op::GET_CONFIGURATION, name: "GET CONFIGURATION",
        usage: &[0x46, 0x03, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0], handler: features::get_configuration, ..POLLS },
    Row { opcode: op::GET_EVENT_STATUS_NOTIFICATION, name: "GET EVENT STATUS NOTIFICATION",
        usage: &[0x4a, 0x01, 0, 0, 0xff, 0, 0, 0xff, 0xff, 0], handler: events::get_event_status, ..POLLS },
    Row { opcode: op::MECHANISM_STATUS, name: "MECHANISM STATUS",
        usage: &[0xbd, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0], handler: events::mechanism_status, ..REPORTS },
    Row { opcode: op::READ_BUFFER_CAPACITY, name: "READ BUFFER CAPACITY",
        usage: &[0x5c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: performance::read_buffer_capacity, ..REPORTS },
    Row { opcode: op::SET_CD_SPEED, name: "SET CD SPEED",
        usage: &[0xbb, 0x03, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0], handler: performance::set_cd_speed, ..REPORTS },
    Row { opcode: op::SET_STREAMING, name: "SET STREAMING",
        usage: &[0xb6, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0], handler: performance::set_streaming, ..REPORTS },
    Row { opcode: op::GET_PERFORMANCE, name: "GET PERFORMANCE",
        usage: &[0xac, 0x1f, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0],
        handler: performance::get_performance, ..READS },

    Row { opcode: op::READ_CAPACITY_10, name: "READ CAPACITY(10)",
        usage: &[0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0], conflict: Conflict::Never,
        handler: capacity::read_capacity_10, ..READS },
    Row { opcode: op::READ_TOC_PMA_ATIP, name: "READ TOC/PMA/ATIP",
        usage: &[0x43, 0x02, 0x0f, 0, 0, 0, 0xff, 0xff, 0xff, 0xc0], handler: information::read_toc, ..READS },
    Row { opcode: op::READ_DISC_INFORMATION, name: "READ DISC INFORMATION",
        usage: &[0x51, 0x07, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: information::read_disc_information, ..READS },
    Row { opcode: op::READ_TRACK_INFORMATION, name: "READ TRACK INFORMATION",
        usage: &[0x52, 0x03, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0],
        handler: information::read_track_information, ..READS },
    Row { opcode: op::READ_DISC_STRUCTURE, name: "READ DISC STRUCTURE",
        usage: &[0xad, 0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: disc_structure::read_disc_structure, ..READS },

    Row { opcode: op::READ_10, name: "READ(10)", usage: &[0x28, 0x1a, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0],
        handler: read::read, ..READS },
    Row { opcode: op::READ_12, name: "READ(12)",
        usage: &[0xa8, 0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x80, 0], handler: read::read, ..READS },
    Row { opcode: op::VERIFY_10, name: "VERIFY(10)",
        usage: &[0x2f, 0x12, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], handler: verify::verify, ..READS },
    Row { opcode: op::READ_CD, name: "READ CD",
        usage: &[0xbe, 0x1c, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf8, 0, 0], handler: read_cd::read_cd, ..READS },
    Row { opcode: op::READ_CD_MSF, name: "READ CD MSF",
        usage: &[0xb9, 0x1c, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf8, 0, 0], handler: read_cd::read_cd_msf, ..READS },

    Row { opcode: op::READ_FORMAT_CAPACITIES, name: "READ FORMAT CAPACITIES",
        usage: &[0x23, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: format::read_format_capacities, ..REPORTS },
    Row { opcode: op::FORMAT_UNIT, name: "FORMAT UNIT",
        usage: &[0x04, 0x1f, 0, 0, 0, 0], timeout_s: 3600, handler: format::format_unit, ..WRITES },
    Row { opcode: op::WRITE_10, name: "WRITE(10)", usage: &[0x2a, 0x1a, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0],
        handler: write::write, ..WRITES },
    Row { opcode: op::WRITE_12, name: "WRITE(12)",
        usage: &[0xaa, 0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x80, 0], handler: write::write, ..WRITES },
    Row { opcode: op::WRITE_AND_VERIFY_10, name: "WRITE AND VERIFY(10)",
        usage: &[0x2e, 0x12, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], handler: write::write, ..WRITES },
    Row { opcode: op::SYNCHRONIZE_CACHE_10, name: "SYNCHRONIZE CACHE(10)",
        usage: &[0x35, 0x06, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], conflict: Conflict::Writes, timeout_s: 120,
        handler: write::synchronize_cache, ..READS },
    Row { opcode: op::CLOSE_TRACK_SESSION, name: "CLOSE TRACK SESSION",
        usage: &[0x5b, 0x01, 0x07, 0, 0xff, 0xff, 0, 0, 0, 0], timeout_s: 120, handler: close::close_track_session,
        ..WRITES },
    Row { opcode: op::RESERVE_TRACK, name: "RESERVE TRACK",
        usage: &[0x53, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0], handler: close::reserve_track, ..WRITES },
    Row { opcode: op::SEND_OPC_INFORMATION, name: "SEND OPC INFORMATION",
        usage: &[0x54, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: close::send_opc_information, ..WRITES },
];
