//! REPORT SUPPORTED OPERATION CODES: the commands of the device that initiators can send, and those that are
//! executed here.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use base::int_cast::{to_u32, to_usize};
use scsi::opcode as op;
use scsi::opcode::maintenance_in::REPORT_SUPPORTED_OPERATION_CODES;
use scsi::sense::Sense;
use scsi::status::Status;
use scsi::supported::{OneCommand, SupportedCommand};

use super::forward::{Answer, Forward};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::device_server::table::Row;
use crate::task::TaskInfo;

/// How many bytes of a list of commands are asked for. Linux's scsi_debug refuses to send more.
const LIST_LEN_MAX: usize = 0xffff;
/// The peripheral device type of drives for discs.
const KIND_DISC: u8 = 0x05;
/// RCTD, in byte 2: the timeouts are reported too.
const TIMEOUTS: u8 = 0x80;
/// REPORTING OPTIONS of every command, and the highest that asks for one.
const ALL: u8 = 0b000;
const ONE: u8 = 0b011;

/// Asks the device for its commands, if the unit passes commands to one and does not know the answer.
pub(super) fn ask(server: &DeviceServer, task: &TaskInfo) -> Option<Outcome> {
    let pass_through = server.pass_through.as_ref()?;
    let (option, opcode, action) = (task.cdb.u8(2) & 0x07, task.cdb.u8(3), task.cdb.u16(4));
    if pass_through.device.kind == KIND_DISC {
        // To a drive for discs these bytes are SEND KEY.
        return Some(Outcome::CheckCondition(Sense::invalid_cdb(1, Some(4))));
    }
    if option == ALL {
        let len = LIST_LEN_MAX.min(to_usize(pass_through.device.transfer_max));
        let mut command = vec![op::MAINTENANCE_IN, 0, task.cdb.u8(2) & TIMEOUTS, 0, 0, 0];
        if let Some(byte) = command.get_mut(1) {
            *byte = u8::try_from(REPORT_SUPPORTED_OPERATION_CODES).ok()?;
        }
        command.extend_from_slice(&to_u32(len).to_be_bytes());
        command.extend_from_slice(&[0, 0]);
        return Some(Outcome::Run(Box::new(Forward::asking(command, len, all))));
    }
    if option > ONE || server.table.rows_of(opcode).any(is_executed_here) {
        return None;
    }
    if is_refused(server, opcode, action) {
        let one = OneCommand { usage: None, timeouts: None };
        return Some(Outcome::ParameterData { bytes: one.encode(), allocation: task.cdb.u32(6).into() });
    }
    Some(super::forward_then(server, task, None))
}

/// Returns the commands of the device that reach it, and those that are executed here instead.
fn all(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if answer.status != Status::GOOD {
        return None;
    }
    let has_timeouts = task.cdb.u8(2) & TIMEOUTS != 0;
    let mut commands = SupportedCommand::parse_all(&answer.data).unwrap_or_default();
    commands.retain(|command| {
        let is_ours = server.table.rows_of(command.opcode).any(is_executed_here);
        !is_ours && !is_refused(server, command.opcode, command.service_action.unwrap_or(0))
    });
    let own = server.table.rows().filter(|row| is_executed_here(row) && row.is_enabled(&server.info));
    commands.extend(own.map(|row| row.describe(has_timeouts)));
    commands.sort_by_key(|command| (command.opcode, command.service_action));
    let bytes: Vec<u8> = SupportedCommand::encode_all(commands.into_iter());
    Some(Outcome::ParameterData { bytes, allocation: task.cdb.u32(6).into() })
}

/// Returns whether a command never reaches the device because the unit executes it. Of the commands of the
/// device the unit knows no usage map.
const fn is_executed_here(row: &Row) -> bool {
    !row.usage.is_empty()
}

/// Returns whether the unit refuses a command that the device may have.
fn is_refused(server: &DeviceServer, opcode: u8, action: u16) -> bool {
    let rows = || server.table.rows_of(opcode);
    let row = rows().find(|row| row.service_action == Some(action));
    let row = row.or_else(|| rows().find(|row| row.service_action.is_none()));
    row.map_or_else(|| rows().next().is_some(), |row| !row.is_enabled(&server.info))
}
