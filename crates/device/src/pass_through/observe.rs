//! What the unit learns from commands that succeed, and what it corrects in their data.

use alloc::boxed::Box;
use alloc::vec;

use scsi::cdb::Cdb;
use scsi::opcode as op;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;

use super::forward::{Answer, Forward, ThenFn};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

/// The service action of SERVICE ACTION IN(16) that reports the capacity.
const READ_CAPACITY_16: u8 = 0x10;

const FORMAT_WITH_PRESET: u8 = 0x38;

/// Returns what handles the answer to a command.
pub(super) fn of(opcode: u8) -> Option<ThenFn> {
    Some(match opcode {
        op::READ_CAPACITY_10 | op::SERVICE_ACTION_IN_16 => capacity,
        op::READ_BLOCK_LIMITS => block_limits,
        op::MODE_SENSE_6 | op::MODE_SENSE_10 => mode_sense,
        op::MODE_SELECT_6 | op::MODE_SELECT_10 => mode_select,
        op::LOG_SELECT => log_select,
        op::FORMAT_UNIT | FORMAT_WITH_PRESET => format,
        op::START_STOP_UNIT => start_stop,
        _ => return None,
    })
}

/// Asks the device for its sense data. They are asked for up to the additional sense code also if the
/// initiator allows fewer bytes, since the device forgets a unit attention that it reports.
pub(super) fn ask_sense(task: &TaskInfo) -> Outcome {
    const LEN_MIN: u8 = 18;
    let len = task.cdb.u8(4).max(LEN_MIN);
    let command = vec![op::REQUEST_SENSE, task.cdb.u8(1), 0, 0, len, 0];
    Outcome::Run(Box::new(Forward::asking(command, len.into(), sense)))
}

/// Tells the other nexuses of a unit attention that the device reported as data.
fn sense(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if answer.status != Status::GOOD {
        return None;
    }
    let sense = Sense::parse(&answer.data).ok();
    if let Some(sense) = sense.filter(|sense| sense.key == SenseKey::UNIT_ATTENTION)
        && server.attention_of_device(sense, Some(task.nexus))
    {
        return Some(ask_sense(task));
    }
    Some(Outcome::ParameterData { bytes: answer.data.clone(), allocation: task.cdb.u8(4).into() })
}

/// Learns the length of blocks.
fn capacity(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    let at = match task.cdb.opcode() {
        op::READ_CAPACITY_10 => 4,
        _ if task.cdb.u8(1) & 0x1f == READ_CAPACITY_16 => 8,
        _ => return None,
    };
    let len = answer.data.get(at..at + 4)?.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    if answer.status == Status::GOOD && len > 0 {
        server.pass_through.as_mut()?.block_len = Some(len);
    }
    None
}

/// Limits the longest block of a tape to what one command can transfer.
fn block_limits(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    let max = server.pass_through.as_ref()?.device.transfer_max.min(0x00ff_ffff);
    let mut data = answer.data.clone();
    let field = data.get_mut(1..4).filter(|_| answer.status == Status::GOOD && task.cdb.u8(1) & 1 == 0)?;
    let had = field.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    if had != 0 && had <= max {
        return None;
    }
    let [_, limit @ ..] = max.to_be_bytes();
    field.copy_from_slice(&limit);
    let allocation = u64::try_from(data.len()).unwrap_or(u64::MAX);
    Some(Outcome::ParameterData { bytes: data, allocation })
}

/// Sets WP for a nexus that may not write.
fn mode_sense(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    const WP: u8 = 0x80;
    let has_wp = matches!(server.pass_through.as_ref()?.device.kind, 0x00 | 0x01 | 0x04 | 0x07 | 0x0e | 0x14);
    if answer.status != Status::GOOD || !has_wp || server.write_protection(task.nexus).is_none() {
        return None;
    }
    let mut data = answer.data.clone();
    let (at, allocation) = match task.cdb.opcode() {
        op::MODE_SENSE_6 => (2, u64::from(task.cdb.u8(4))),
        _ => (3, u64::from(task.cdb.u16(7))),
    };
    *data.get_mut(at)? |= WP;
    Some(Outcome::ParameterData { bytes: data, allocation })
}

/// Tells the other nexuses. The device does not: it knows of one initiator.
fn mode_select(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if answer.status == Status::GOOD {
        // The block descriptor may have changed the length of blocks.
        server.pass_through.as_mut()?.block_len = None;
        server.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, Some(task.nexus));
    }
    None
}

fn log_select(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if answer.status == Status::GOOD {
        server.nexuses.establish_ua_all(Asc::LOG_PARAMETERS_CHANGED, Some(task.nexus));
    }
    None
}

fn format(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if answer.status == Status::GOOD {
        server.pass_through.as_mut()?.block_len = None;
        server.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, Some(task.nexus));
    }
    None
}

/// Tells the other nexuses of a medium that was loaded.
fn start_stop(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if answer.status == Status::GOOD {
        let kind = server.pass_through.as_ref()?.device.kind;
        server.pass_through.as_mut()?.block_len = None;
        if loads(kind, &task.cdb) {
            server.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, Some(task.nexus));
        }
    }
    None
}

/// Returns whether START STOP UNIT, or LOAD UNLOAD of a tape drive, loads a medium.
fn loads(kind: u8, cdb: &Cdb) -> bool {
    const LOAD: u8 = 0x01;
    const LOEJ_START: u8 = 0x03;
    if kind == 0x01 { cdb.u8(4) & LOAD != 0 } else { cdb.u8(4) & LOEJ_START == LOEJ_START }
}

/// Records that the device prevents removal, or forgets a prevention that it refused. What other nexuses
/// asked for stays: the device has confirmed it, or has still to answer it.
pub(super) fn prevention(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    let is_confirmed = answer.status == Status::GOOD;
    if !is_confirmed {
        server.spc.removal.allow(task.nexus);
    }
    let is_free = server.spc.removal.check().is_ok();
    let device = server.pass_through.as_mut()?;
    device.has_confirmed_prevention |= is_confirmed && device.prevents;
    // A reset that another command reported meanwhile, or ALLOW, may have come before or after it: the device
    // may prevent removal, and gets ALLOW when no nexus prevents it.
    device.prevents = is_confirmed || device.prevents && (device.has_confirmed_prevention || !is_free);
    None
}
