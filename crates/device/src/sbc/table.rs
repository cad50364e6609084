//! The table rows of the block commands.
//!
//! Protection fields (RDPROTECT and similar) are in no usage map, so a command that requests protection
//! information is refused. ANCHOR is in none either: no medium distinguishes a block that keeps its storage
//! from one that has none (see [`limits::provisioning`]).

use scsi::opcode as op;
use scsi::opcode::{sanitize as erase, service_action_in_16 as in_16, variable_length as long};

use super::{
    atomic, cache, capacity, defects, lba_status, limits, read, sanitize, unmap, verify, write, write_same,
};
use crate::device_server::UnitInfo;
use crate::device_server::table::{AttentionRule, Handler, MediumNeed, ReadOnlyNexus, Row, always};
use crate::pr::conflict::Conflict;

/// The common values of most commands.
const ROW: Row = Row {
    opcode: 0,
    service_action: None,
    name: "",
    usage: &[],
    conflict: Conflict::Never,
    attention: AttentionRule::Reported,
    medium: MediumNeed::Ready,
    read_only: ReadOnlyNexus::Refused,
    timeout_s: 30,
    handler: capacity::read_capacity_10,
    enabled: always,
};

/// A command that passes reservations and changes nothing.
const REPORTS: Row = Row { read_only: ReadOnlyNexus::Admitted, ..ROW };
/// A command that reads.
const READS: Row = Row { conflict: Conflict::Reads, ..REPORTS };
/// A command that writes caches: it conflicts with reservations as a write does, but other nexuses observe no
/// change.
const FLUSHES: Row = Row { conflict: Conflict::Writes, timeout_s: 120, ..REPORTS };
/// A command that writes.
const WRITES: Row = Row { conflict: Conflict::Writes, medium: MediumNeed::Writable, ..ROW };
/// A command that works on the whole medium and itself checks whether it may.
const ERASES: Row =
    Row { conflict: Conflict::Writes, medium: MediumNeed::Optional, timeout_s: 86_400, ..ROW };

/// Returns the usage map of a 10-byte CDB with an address of four bytes and a length of two.
const fn usage_10(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0]
}

/// Returns the usage map of a 12-byte CDB with an address of four bytes and a length of four.
const fn usage_12(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0]
}

/// Returns the usage map of a 16-byte CDB with an address of eight bytes and a length of four.
const fn usage_16(opcode: u8, flags: u8) -> [u8; 16] {
    let f = 0xff;
    [opcode, flags, f, f, f, f, f, f, f, f, f, f, f, f, 0x3f, 0]
}

/// Returns the usage map of a 32-byte CDB with an address of eight bytes and a length of four. The expected
/// tags between them belong to protection information; without it they are accepted and ignored.
const fn usage_32(action: u16, flags: u8) -> [u8; 32] {
    let [high, low] = action.to_be_bytes();
    let f = 0xff;
    [
        0x7f, 0, 0, 0, 0, 0, 0x3f, 0x18, high, low, flags, 0, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f,
        f, f, f, f,
    ]
}

/// Returns the usage map of ORWRITE(32): as [`usage_32`] with BMOP, PREVIOUS GENERATION PROCESSING, and
/// generations in place of the tags.
const fn usage_orwrite_32() -> [u8; 32] {
    let mut usage = usage_32(long::ORWRITE_32, CACHING);
    usage[2] = 0x07;
    usage[3] = 0x0f;
    usage
}

/// Returns the row of the 32-byte form of a command.
const fn long(like: Row, action: u16, name: &'static str, usage: &'static [u8; 32], handler: Handler) -> Row {
    Row { opcode: op::VARIABLE_LENGTH, service_action: Some(action), name, usage, handler, ..like }
}

/// DPO, FUA and the obsolete FUA_NV.
const CACHING: u8 = 0x1a;
/// DPO and BYTCHK.
const CHECKING: u8 = 0x16;

const fn is_thin(facts: &UnitInfo) -> bool {
    facts.is_thin()
}

/// Every block command.
#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    Row { opcode: op::READ_CAPACITY_10, name: "READ CAPACITY(10)", usage: &[0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0],
        handler: capacity::read_capacity_10, ..REPORTS },
    Row { opcode: op::SERVICE_ACTION_IN_16, service_action: Some(in_16::READ_CAPACITY_16), name: "READ CAPACITY(16)",
        usage: &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: capacity::read_capacity_16, ..REPORTS },
    Row { opcode: op::SERVICE_ACTION_IN_16, service_action: Some(in_16::GET_LBA_STATUS), name: "GET LBA STATUS(16)",
        usage: &[0x9e, 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        handler: lba_status::get_16, ..READS },
    Row { opcode: op::VARIABLE_LENGTH, service_action: Some(long::GET_LBA_STATUS_32), name: "GET LBA STATUS(32)",
        usage: &[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x12, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        handler: lba_status::get_32, ..READS },

    Row { opcode: op::READ_6, name: "READ(6)", usage: &[0x08, 0x1f, 0xff, 0xff, 0xff, 0], handler: read::read, ..READS },
    Row { opcode: op::READ_10, name: "READ(10)", usage: &usage_10(op::READ_10, CACHING), handler: read::read, ..READS },
    Row { opcode: op::READ_12, name: "READ(12)", usage: &usage_12(op::READ_12, CACHING), handler: read::read, ..READS },
    Row { opcode: op::READ_16, name: "READ(16)", usage: &usage_16(op::READ_16, CACHING), handler: read::read, ..READS },
    long(READS, long::READ_32, "READ(32)", &usage_32(long::READ_32, CACHING), read::read),

    Row { opcode: op::WRITE_6, name: "WRITE(6)", usage: &[0x0a, 0x1f, 0xff, 0xff, 0xff, 0], handler: write::write, ..WRITES },
    Row { opcode: op::WRITE_10, name: "WRITE(10)", usage: &usage_10(op::WRITE_10, CACHING), handler: write::write, ..WRITES },
    Row { opcode: op::WRITE_12, name: "WRITE(12)", usage: &usage_12(op::WRITE_12, CACHING), handler: write::write, ..WRITES },
    Row { opcode: op::WRITE_16, name: "WRITE(16)", usage: &usage_16(op::WRITE_16, CACHING), handler: write::write, ..WRITES },
    long(WRITES, long::WRITE_32, "WRITE(32)", &usage_32(long::WRITE_32, CACHING), write::write),

    Row { opcode: op::VERIFY_10, name: "VERIFY(10)", usage: &usage_10(op::VERIFY_10, CHECKING), handler: verify::verify, ..READS },
    Row { opcode: op::VERIFY_12, name: "VERIFY(12)", usage: &usage_12(op::VERIFY_12, CHECKING), handler: verify::verify, ..READS },
    Row { opcode: op::VERIFY_16, name: "VERIFY(16)", usage: &usage_16(op::VERIFY_16, CHECKING), handler: verify::verify, ..READS },
    long(READS, long::VERIFY_32, "VERIFY(32)", &usage_32(long::VERIFY_32, CHECKING), verify::verify),

    Row { opcode: op::WRITE_AND_VERIFY_10, name: "WRITE AND VERIFY(10)",
        usage: &usage_10(op::WRITE_AND_VERIFY_10, CHECKING), handler: verify::write_and_verify, ..WRITES },
    Row { opcode: op::WRITE_AND_VERIFY_12, name: "WRITE AND VERIFY(12)",
        usage: &usage_12(op::WRITE_AND_VERIFY_12, CHECKING), handler: verify::write_and_verify, ..WRITES },
    Row { opcode: op::WRITE_AND_VERIFY_16, name: "WRITE AND VERIFY(16)",
        usage: &usage_16(op::WRITE_AND_VERIFY_16, CHECKING), handler: verify::write_and_verify, ..WRITES },
    long(WRITES, long::WRITE_AND_VERIFY_32, "WRITE AND VERIFY(32)",
        &usage_32(long::WRITE_AND_VERIFY_32, CHECKING), verify::write_and_verify),

    Row { opcode: op::COMPARE_AND_WRITE, name: "COMPARE AND WRITE",
        usage: &[0x89, CACHING, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0x3f, 0],
        handler: atomic::compare_and_write, ..WRITES },
    Row { opcode: op::ORWRITE_16, name: "ORWRITE(16)", usage: &usage_16(op::ORWRITE_16, CACHING),
        handler: atomic::or_write_16, ..WRITES },
    long(WRITES, long::ORWRITE_32, "ORWRITE(32)", &usage_orwrite_32(), atomic::or_write_32),
    Row { opcode: op::WRITE_ATOMIC_16, name: "WRITE ATOMIC(16)",
        usage: &[0x9c, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0x3f, 0],
        handler: atomic::write_atomic, enabled: limits::writes_atomically, ..WRITES },
    Row { enabled: limits::writes_atomically,
        ..long(WRITES, long::WRITE_ATOMIC_32, "WRITE ATOMIC(32)", &usage_32(long::WRITE_ATOMIC_32, 0x18), atomic::write_atomic) },

    Row { opcode: op::WRITE_SAME_10, name: "WRITE SAME(10)", usage: &usage_10(op::WRITE_SAME_10, 0x08),
        handler: write_same::write_same, timeout_s: 120, ..WRITES },
    Row { opcode: op::WRITE_SAME_16, name: "WRITE SAME(16)", usage: &usage_16(op::WRITE_SAME_16, 0x09),
        handler: write_same::write_same, timeout_s: 120, ..WRITES },
    Row { timeout_s: 120,
        ..long(WRITES, long::WRITE_SAME_32, "WRITE SAME(32)", &usage_32(long::WRITE_SAME_32, 0x09), write_same::write_same) },
    Row { opcode: op::UNMAP, name: "UNMAP", usage: &[0x42, 0, 0, 0, 0, 0, 0x3f, 0xff, 0xff, 0],
        handler: unmap::unmap, timeout_s: 120, enabled: is_thin, ..WRITES },

    Row { opcode: op::SYNCHRONIZE_CACHE_10, name: "SYNCHRONIZE CACHE(10)",
        usage: &usage_10(op::SYNCHRONIZE_CACHE_10, 0x06), handler: cache::synchronize, ..FLUSHES },
    Row { opcode: op::SYNCHRONIZE_CACHE_16, name: "SYNCHRONIZE CACHE(16)",
        usage: &usage_16(op::SYNCHRONIZE_CACHE_16, 0x06), handler: cache::synchronize, ..FLUSHES },
    Row { opcode: op::PRE_FETCH_10, name: "PRE-FETCH(10)", usage: &usage_10(op::PRE_FETCH_10, 0x02),
        handler: cache::pre_fetch, ..READS },
    Row { opcode: op::PRE_FETCH_16, name: "PRE-FETCH(16)", usage: &usage_16(op::PRE_FETCH_16, 0x02),
        handler: cache::pre_fetch, ..READS },

    Row { opcode: op::READ_DEFECT_DATA_10, name: "READ DEFECT DATA(10)",
        usage: &[0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0], handler: defects::read_10, ..READS },
    Row { opcode: op::READ_DEFECT_DATA_12, name: "READ DEFECT DATA(12)",
        usage: &[0xb7, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], handler: defects::read_12, ..READS },

    Row { opcode: op::SANITIZE, service_action: Some(erase::OVERWRITE), name: "SANITIZE OVERWRITE",
        usage: &[0x48, 0xa1, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: sanitize::overwrite, ..ERASES },
    Row { opcode: op::SANITIZE, service_action: Some(erase::BLOCK_ERASE), name: "SANITIZE BLOCK ERASE",
        usage: &[0x48, 0xa2, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: sanitize::block_erase,
        enabled: sanitize::erases_blocks, ..ERASES },
    Row { opcode: op::SANITIZE, service_action: Some(erase::CRYPTOGRAPHIC_ERASE), name: "SANITIZE CRYPTOGRAPHIC ERASE",
        usage: &[0x48, 0xa3, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: sanitize::crypto_erase,
        enabled: limits::supports_crypto_erase, ..ERASES },
    Row { opcode: op::SANITIZE, service_action: Some(erase::EXIT_FAILURE_MODE), name: "SANITIZE EXIT FAILURE MODE",
        usage: &[0x48, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, 0], handler: sanitize::exit_failure_mode, ..ERASES },
    Row { opcode: op::FORMAT_UNIT, name: "FORMAT UNIT", usage: &[0x04, 0x38, 0, 0, 0, 0], handler: sanitize::format, ..ERASES },
];
