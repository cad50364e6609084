//! In which direction a command moves data, and how much: by its CDB where the standards say, otherwise by
//! what its initiator announces.

use base::int_cast::{to_u32, to_usize};
use scsi::cdb::Cdb;
use scsi::opcode as op;
use scsi::sense::{Asc, Sense};

use crate::passed_device::PassedDevice;
use crate::task::TaskInfo;

/// How a command moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Not at all.
    Nothing,
    /// The device sends up to this many bytes.
    In(usize),
    /// The device receives this many bytes.
    Out(u32),
}

/// What a CDB says of its data. `at` is the byte of the CDB with the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Nothing,
    /// An allocation length: the device sends as many bytes or fewer.
    Allocation {
        len: u64,
        at: u16,
    },
    /// The device sends this many bytes.
    In {
        len: u64,
        at: u16,
    },
    /// The device receives this many bytes.
    Out {
        len: u64,
        at: u16,
    },
    /// The device sends this many blocks.
    BlocksIn {
        count: u64,
        at: u16,
    },
    /// The device receives this many blocks.
    BlocksOut {
        count: u64,
        at: u16,
    },
    /// Whatever the initiator announces.
    Announced,
}

/// Decides how a command moves data.
///
/// # Errors The sense data that refuses a transfer which is longer than the device supports, or than its
/// initiator sends.
pub(super) fn plan(pass_through: &PassedDevice, task: &TaskInfo) -> Result<Plan, Sense> {
    let max = u64::from(pass_through.device.transfer_max);
    let (announced_in, announced_out) = (u64::from(task.data_in_len), u64::from(task.data_out_len));
    let bytes = |count: u64, announced: u64| {
        let Some(len) = pass_through.block_len.map(u64::from) else { return announced };
        let told = count.saturating_mul(len);
        if pass_through.device.kind == DISC {
            // Sectors can be longer than the blocks of READ CAPACITY.
            announced.clamp(told, count.saturating_mul(len.max(SECTOR_LEN_MAX)))
        } else {
            told
        }
    };
    let shape = match shape_of(pass_through.device.kind, &task.cdb) {
        Shape::BlocksIn { count, at } => Shape::In { len: bytes(count, announced_in), at },
        Shape::BlocksOut { count, at } => Shape::Out { len: bytes(count, announced_out), at },
        Shape::Allocation { len, at } if announced_in <= max => Shape::In { len: len.min(max), at },
        Shape::Allocation { len, at } => Shape::In { len, at },
        Shape::Announced if announced_in > 0 => Shape::In { len: announced_in, at: 0 },
        Shape::Announced => Shape::Out { len: announced_out, at: 0 },
        shape => shape,
    };
    let mismatch = Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    match shape {
        Shape::In { len: 1.., .. } if announced_out > 0 => Err(mismatch),
        Shape::Out { len: 1.., .. } if announced_in > 0 => Err(mismatch),
        Shape::In { len, at } | Shape::Out { len, at } if len > max => Err(Sense::invalid_cdb(at, None)),
        Shape::Out { len, .. } if announced_out < len => Err(mismatch),
        Shape::In { len: len @ 1.., .. } => Ok(Plan::In(to_usize(len))),
        Shape::Out { len: len @ 1.., .. } => Ok(Plan::Out(to_u32(len))),
        _ => Ok(Plan::Nothing),
    }
}

/// The device type of drives for discs.
const DISC: u8 = 0x05;
/// The longest sector of a CD: 2352 bytes of the main channel, and 96 of the sub-channels.
const SECTOR_LEN_MAX: u64 = 2448;

/// Returns what a CDB says of its data. `kind` is the device type.
fn shape_of(kind: u8, cdb: &Cdb) -> Shape {
    common(cdb).unwrap_or_else(|| match kind {
        0x00 | 0x04 | 0x07 | 0x0e | 0x14 => of_blocks(cdb),
        0x01 => of_tape(cdb),
        DISC => of_disc(cdb),
        0x08 => of_changer(cdb),
        _ => Shape::Announced,
    })
}

/// The commands of SPC.
fn common(cdb: &Cdb) -> Option<Shape> {
    Some(match cdb.opcode() {
        op::TEST_UNIT_READY | op::START_STOP_UNIT | op::PREVENT_ALLOW_MEDIUM_REMOVAL => Shape::Nothing,
        op::REQUEST_SENSE | op::MODE_SENSE_6 => allocation(cdb.u8(4).into(), 4),
        op::INQUIRY | op::RECEIVE_DIAGNOSTIC_RESULTS => allocation(cdb.u16(3).into(), 3),
        op::MODE_SENSE_10 | op::LOG_SENSE => allocation(cdb.u16(7).into(), 7),
        op::READ_BUFFER_10 => allocation(cdb.u24(6).into(), 6),
        op::READ_BUFFER_16 => allocation(cdb.u32(10).into(), 10),
        op::SECURITY_PROTOCOL_IN => allocation(security_len(cdb), 6),
        op::MODE_SELECT_6 => out(cdb.u8(4).into(), 4),
        op::SEND_DIAGNOSTIC => out(cdb.u16(3).into(), 3),
        op::MODE_SELECT_10 | op::LOG_SELECT => out(cdb.u16(7).into(), 7),
        op::WRITE_BUFFER => out(cdb.u24(6).into(), 6),
        _ => return None,
    })
}

/// The commands of disks.
fn of_blocks(cdb: &Cdb) -> Shape {
    const SECURITY_PROTOCOL_OUT: u8 = 0xb5;
    // With protection information, blocks are longer: PROTECT bits of the commands that have them.
    let is_protected = cdb.u8(1) & 0xe0 != 0;
    match cdb.opcode() {
        op::READ_6 => blocks_in(six_byte_count(cdb), 4),
        op::WRITE_6 => blocks_out(six_byte_count(cdb), 4),
        op::READ_CAPACITY_10 => Shape::In { len: 8, at: 0 },
        op::READ_10 | op::READ_12 | op::READ_16 if is_protected => Shape::Announced,
        op::WRITE_10
        | op::WRITE_12
        | op::WRITE_16
        | op::WRITE_AND_VERIFY_10
        | op::WRITE_AND_VERIFY_12
        | op::WRITE_AND_VERIFY_16
        | op::ORWRITE_16
        | op::COMPARE_AND_WRITE
        | op::WRITE_ATOMIC_16
            if is_protected =>
        {
            Shape::Announced
        }
        op::READ_10 => blocks_in(cdb.u16(7).into(), 7),
        op::READ_12 => blocks_in(cdb.u32(6).into(), 6),
        op::READ_16 => blocks_in(cdb.u32(10).into(), 10),
        op::WRITE_10 | op::WRITE_AND_VERIFY_10 => blocks_out(cdb.u16(7).into(), 7),
        op::WRITE_12 | op::WRITE_AND_VERIFY_12 => blocks_out(cdb.u32(6).into(), 6),
        op::WRITE_16 | op::WRITE_AND_VERIFY_16 | op::ORWRITE_16 => blocks_out(cdb.u32(10).into(), 10),
        op::WRITE_ATOMIC_16 => blocks_out(cdb.u16(12).into(), 12),
        op::COMPARE_AND_WRITE => blocks_out(u64::from(cdb.u8(13)) * 2, 13),
        op::UNMAP => out(cdb.u16(7).into(), 7),
        op::READ_DEFECT_DATA_10 => allocation(cdb.u16(7).into(), 7),
        op::READ_DEFECT_DATA_12 => allocation(cdb.u32(6).into(), 6),
        ZBC_IN => allocation(cdb.u32(10).into(), 10),
        // The others have no data, and some of them have other fields there.
        op::SERVICE_ACTION_IN_16 if matches!(cdb.u8(1) & 0x1f, 0x10..=0x14 | 0x16 | 0x17) => {
            allocation(cdb.u32(10).into(), 10)
        }
        SECURITY_PROTOCOL_OUT => out(security_len(cdb), 6),
        op::PRE_FETCH_10 | op::PRE_FETCH_16 | op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16 => {
            Shape::Nothing
        }
        // VERIFY, WRITE SAME and the others have data or not, by bits of their CDBs.
        _ => Shape::Announced,
    }
}

const ZBC_IN: u8 = 0x95;

/// The commands of tape drives. With FIXED, blocks have the length of the mode parameters.
fn of_tape(cdb: &Cdb) -> Shape {
    const SECURITY_PROTOCOL_OUT: u8 = 0xb5;
    let is_fixed = cdb.u8(1) & 1 == 1;
    match cdb.opcode() {
        op::READ_6 if !is_fixed => Shape::In { len: cdb.u24(2).into(), at: 2 },
        op::WRITE_6 if !is_fixed => out(cdb.u24(2).into(), 2),
        op::READ_16 if !is_fixed => Shape::In { len: cdb.u24(12).into(), at: 12 },
        op::WRITE_16 if !is_fixed => out(cdb.u24(12).into(), 12),
        op::READ_BLOCK_LIMITS => Shape::In { len: if is_fixed { 20 } else { 6 }, at: 0 },
        op::READ_POSITION if cdb.u16(7) > 0 => allocation(cdb.u16(7).into(), 7),
        op::READ_POSITION if cdb.u8(1) & 0x1f == 6 => Shape::In { len: 32, at: 0 },
        op::READ_POSITION => Shape::In { len: 20, at: 0 },
        op::REPORT_DENSITY_SUPPORT => allocation(cdb.u16(7).into(), 7),
        op::READ_ATTRIBUTE => allocation(cdb.u32(10).into(), 10),
        op::WRITE_ATTRIBUTE => out(cdb.u32(10).into(), 10),
        SECURITY_PROTOCOL_OUT => out(security_len(cdb), 6),
        op::REWIND
        | op::WRITE_FILEMARKS_6
        | op::WRITE_FILEMARKS_16
        | op::SPACE_6
        | op::SPACE_16
        | op::ERASE_6
        | op::ERASE_16
        | op::LOCATE_10
        | op::LOCATE_16 => Shape::Nothing,
        _ => Shape::Announced,
    }
}

/// The commands of drives for discs.
fn of_disc(cdb: &Cdb) -> Shape {
    match cdb.opcode() {
        op::READ_CAPACITY_10 => Shape::In { len: 8, at: 0 },
        op::READ_10 => blocks_in(cdb.u16(7).into(), 7),
        op::READ_12 => blocks_in(cdb.u32(6).into(), 6),
        op::WRITE_10 | op::WRITE_AND_VERIFY_10 => blocks_out(cdb.u16(7).into(), 7),
        op::WRITE_12 => blocks_out(cdb.u32(6).into(), 6),
        0x23
        | 0x42
        | op::READ_TOC_PMA_ATIP
        | op::GET_CONFIGURATION
        | op::GET_EVENT_STATUS_NOTIFICATION
        | op::READ_DISC_INFORMATION
        | op::READ_TRACK_INFORMATION
        | op::READ_BUFFER_CAPACITY => allocation(cdb.u16(7).into(), 7),
        op::READ_DISC_STRUCTURE | op::MECHANISM_STATUS => allocation(cdb.u16(8).into(), 8),
        op::SET_STREAMING => out(cdb.u16(9).into(), 9),
        0xbf => out(cdb.u16(8).into(), 8),
        0x5d => out(cdb.u24(6).into(), 6),
        op::SYNCHRONIZE_CACHE_10 | op::SET_CD_SPEED | 0xa1 | 0x53 | 0x58 | 0x5b | 0xa6 => Shape::Nothing,
        // The sectors of READ CD have the parts that its flags select.
        _ => Shape::Announced,
    }
}

/// The commands of media changers.
fn of_changer(cdb: &Cdb) -> Shape {
    match cdb.opcode() {
        0xb8 => allocation(cdb.u24(7).into(), 7),
        0xb5 => allocation(cdb.u24(7).into(), 7),
        0xb6 => out(cdb.u16(8).into(), 8),
        op::READ_ATTRIBUTE => allocation(cdb.u32(10).into(), 10),
        0x07 | 0x2b | 0x37 | 0xa5 | 0xa6 => Shape::Nothing,
        _ => Shape::Announced,
    }
}

/// The length of SECURITY PROTOCOL IN and OUT: in bytes, or in units of 512 (INC_512).
fn security_len(cdb: &Cdb) -> u64 {
    let unit = if cdb.u8(4) & 0x80 == 0 { 1 } else { 512 };
    u64::from(cdb.u32(6)) * unit
}

/// The number of blocks of READ(6) and WRITE(6), in which zero stands for 256.
fn six_byte_count(cdb: &Cdb) -> u64 {
    match cdb.u8(4) {
        0 => 256,
        count => count.into(),
    }
}

const fn allocation(len: u64, at: u16) -> Shape {
    Shape::Allocation { len, at }
}

const fn out(len: u64, at: u16) -> Shape {
    Shape::Out { len, at }
}

const fn blocks_in(count: u64, at: u16) -> Shape {
    Shape::BlocksIn { count, at }
}

const fn blocks_out(count: u64, at: u16) -> Shape {
    Shape::BlocksOut { count, at }
}
