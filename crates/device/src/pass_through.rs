//! A device of this host that commands are passed to: any device type, for many initiators at once.
//!
//! The device sees one initiator. What SAM makes per I_T nexus, and what needs one owner, is therefore done
//! here: the task set, task management, reservations, unit attentions, REPORT LUNS, target port groups, and
//! the prevention of medium removal. Every other command reaches the device unchanged ([`table`] lists what
//! is known of it, [`transfer`] how much data it moves), and its status, sense data and data return as they
//! are. [`identity`] corrects INQUIRY data, and [`observe`] learns from commands that succeed.

mod forward;
mod identity;
mod observe;
mod supported_codes;
mod table;
mod transfer;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use scsi::inquiry::DeviceType;
use scsi::opcode;
use scsi::sense::{Asc, Sense, SenseKey};
use store::api::{DeviceCommand, DeviceResponse, DeviceReturn, Failure, OpAction, OpOutput, Transfer};

use crate::contract::{NexusId, SenseBytes};
use crate::device_server::command_set::CommandSet;
use crate::device_server::outcome::Outcome;
use crate::device_server::{DeviceServer, UnitInfo};
use crate::mode::{ModeLayout, TapeParameters};
use crate::task::{TaskId, TaskInfo};
use forward::{Forward, ThenFn, USUAL_TIMEOUT_S};

pub(crate) use table::COMMON_ROWS;

/// Returns the command set of a device type.
pub(crate) const fn command_set(kind: u8) -> &'static CommandSet {
    match kind {
        0x00 | 0x04 | 0x07 | 0x0e | 0x14 => &BLOCKS,
        0x01 => &TAPE,
        0x05 => &DISC,
        0x08 => &CHANGER,
        _ => &OTHER,
    }
}

/// The command sets. INQUIRY data, mode pages and log pages are those of the device.
static BLOCKS: CommandSet = set(table::BLOCK_ROWS);
static TAPE: CommandSet = set(table::TAPE_ROWS);
static DISC: CommandSet = set(table::DISC_ROWS);
static CHANGER: CommandSet = set(table::CHANGER_ROWS);
static OTHER: CommandSet = set(&[]);

const fn set(rows: &'static [crate::device_server::table::Row]) -> CommandSet {
    CommandSet {
        device_type: DeviceType::UNKNOWN,
        rows,
        ignores_obsolete_bits: false,
        fallback: Some(&table::FALLBACK),
        third_party_copy: false,
        mode: ModeLayout {
            is_tape: false,
            device_specific: 0,
            write_protected: 0,
            has_block_descriptor: false,
            pages: &[],
        },
        log_pages: &[],
        log_parameters: |_, _, _| None,
        tape_parameters: |_| TapeParameters::EMPTY,
        vital_pages: |_: &UnitInfo| Vec::new(),
        versions: |_| &[],
        ask_operation_codes: supported_codes::ask,
    }
}

/// Passes a command to the device. A command that asks whether the device is ready does not wait for one that
/// is away.
pub(super) fn forward(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if matches!(task.cdb.opcode(), opcode::TEST_UNIT_READY | opcode::START_STOP_UNIT)
        && let Some(sense) = server.not_ready()
    {
        return Outcome::CheckCondition(sense);
    }
    forward_then(server, task, observe::of(task.cdb.opcode()))
}

/// Passes a command to the device, and its answer to `then`.
fn forward_then(server: &DeviceServer, task: &TaskInfo, then: Option<ThenFn>) -> Outcome {
    let Some(pass_through) = &server.pass_through else { return Outcome::bug() };
    if let Some(byte) = naca_byte(task) {
        return Outcome::CheckCondition(Sense::invalid_cdb(byte, Some(2)));
    }
    match transfer::plan(pass_through, task) {
        Ok(plan) => Outcome::Run(Box::new(Forward::new(task, plan, then))),
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// Returns the byte of the CDB with NACA, if the bit is set: an auto contingent allegiance of the device
/// would stop every nexus.
fn naca_byte(task: &TaskInfo) -> Option<u16> {
    let byte = match task.cdb.opcode() {
        opcode::VARIABLE_LENGTH | 0x7e => 1,
        _ => task.cdb.len_by_opcode()?.checked_sub(1)?,
    };
    (task.cdb.u8(byte) & 0x04 != 0).then_some(u16::try_from(byte).ok()?)
}

/// Reports a unit attention of the nexus, or that the device is away. Otherwise the device answers, which
/// knows its progress.
pub(super) fn request_sense(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let waiting = server.nexuses.find_mut(task.nexus).and_then(|state| state.attentions.take());
    match waiting.or_else(|| server.not_ready()) {
        Some(sense) => {
            let bytes = SenseBytes::new(&sense, task.cdb.u8(1) & 1 == 1);
            Outcome::ParameterData { bytes: bytes.bytes().to_vec(), allocation: task.cdb.u8(4).into() }
        }
        None => match forward(server, task) {
            Outcome::Run(_) => observe::ask_sense(task),
            refused => refused,
        },
    }
}

/// Executes PREVENT ALLOW MEDIUM REMOVAL: the device prevents removal while any nexus does.
pub(super) fn prevent_allow(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match task.cdb.u8(4) & 3 {
        prevent @ (0 | 1) => {
            server.spc.removal.prevent(task.nexus, prevent == 1);
            // While the device has not confirmed the prevention of one nexus, it can refuse it. Another nexus
            // does not rely on it, and asks the device itself.
            let device = server.pass_through.as_mut().filter(|device| !device.has_confirmed_prevention);
            if let (1, Some(device)) = (prevent, device) {
                device.prevents = true;
                return forward_then(server, task, Some(observe::prevention));
            }
            Outcome::Good
        }
        _ => Outcome::CheckCondition(Sense::invalid_cdb(4, Some(1))),
    }
}

/// Executes WRITE BUFFER in the modes that only write the buffer. The others download firmware.
pub(super) fn write_buffer(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const DATA: u8 = 0x02;
    const ECHO: u8 = 0x0a;
    if table::allows_dangerous(&server.info) || matches!(task.cdb.u8(1) & 0x1f, DATA | ECHO) {
        forward(server, task)
    } else {
        Outcome::CheckCondition(Sense::invalid_cdb(1, Some(4)))
    }
}

impl DeviceServer {
    /// Lets the device allow the removal of its medium when no nexus prevents it any more, for whatever
    /// reason. Returns whether that began.
    pub(crate) fn synchronize_prevention(&mut self) -> bool {
        let is_free = self.is_retiring() || self.spc.removal.check().is_ok();
        let Some(pass_through) = self.pass_through.as_mut().filter(|device| device.prevents && is_free)
        else {
            return false;
        };
        pass_through.prevents = false;
        pass_through.has_confirmed_prevention = false;
        let bytes = vec![opcode::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0, 0];
        let allow = DeviceCommand { bytes, transfer: Transfer::Nothing, timeout_s: USUAL_TIMEOUT_S };
        self.medium.submit(self.now, TaskId::DEVICE, 0, OpAction::Command(Box::new(allow)));
        true
    }

    /// Resets the device, so that it ends what it executes for the tasks that were just aborted.
    pub(crate) fn reset_device(&mut self) {
        if let Some(pass_through) = &mut self.pass_through {
            pass_through.expects_reset_report = true;
            self.medium.submit(self.now, TaskId::DEVICE, 0, OpAction::Reset);
        }
    }

    /// Handles the end of a command that the unit sent by itself: nobody waits for it. If the device reported
    /// a unit attention instead of allowing the removal, it is told again.
    pub(crate) fn device_command_ended(&mut self, result: Result<OpOutput, Failure>) {
        let Ok(OpOutput::Response(response)) = result else { return };
        let is_refused = self.unheard_attention(&response);
        if let Some(pass_through) = &mut self.pass_through {
            pass_through.prevents |= is_refused && pass_through.allows_refused < ALLOWS_REFUSED_MAX;
            let refused = pass_through.allows_refused.saturating_add(1);
            pass_through.allows_refused = if is_refused { refused } else { 0 };
        }
        self.recycle(response.data);
    }

    /// Tells every nexus of a unit attention or a deferred error in an answer of the device that no nexus
    /// receives. Returns whether there was one.
    pub(crate) fn unheard_attention(&mut self, response: &DeviceResponse) -> bool {
        let Ok(sense) = Sense::parse(&response.sense) else { return false };
        if sense.deferred {
            self.deferred_error_of_device(sense, None);
        } else if sense.key == SenseKey::UNIT_ATTENTION {
            self.attention_of_device(sense, None);
        }
        sense.deferred || sense.key == SenseKey::UNIT_ATTENTION
    }

    /// Handles a deferred error, which the device reported with the answer to a command of the nexus `told`,
    /// if one receives it: the device lost what it had acknowledged to some nexus, and does not tell which.
    fn deferred_error_of_device(&mut self, sense: Sense, told: Option<NexusId>) {
        self.nexuses.establish_ua_of_device(sense, told);
    }

    /// Records that a command succeeded: the device has no unit attention to report, unless the command
    /// passes them.
    fn device_succeeded(&mut self, opcode: u8) {
        let reports = !matches!(opcode, opcode::REQUEST_SENSE | opcode::INQUIRY);
        if let Some(pass_through) = self.pass_through.as_mut().filter(|_| reports) {
            pass_through.expects_reset_report = false;
        }
    }

    /// Handles a unit attention that the device reported with the answer to a command of the nexus `told`, if
    /// one receives it. Returns whether the command must be sent again, because every nexus has been told.
    fn attention_of_device(&mut self, sense: Sense, told: Option<NexusId>) -> bool {
        let Some(pass_through) = &mut self.pass_through else { return false };
        pass_through.block_len = None;
        let [asc, _] = sense.asc.0.to_be_bytes();
        if asc == RESET_OCCURRED && core::mem::take(&mut pass_through.expects_reset_report) {
            return true;
        }
        if asc == RESET_OCCURRED {
            pass_through.was_reset();
            self.spc.removal.reset();
        }
        self.nexuses.establish_ua_of_device(sense, told);
        false
    }

    /// Handles that the device is there again. The kernel examines a device that was plugged in, and takes
    /// the unit attentions of its start, so every nexus receives one from here.
    pub(crate) fn device_returned(&mut self, back: DeviceReturn) {
        let Some(pass_through) = &mut self.pass_through else { return };
        // It can have another medium, or blocks of another length.
        pass_through.block_len = None;
        if back == DeviceReturn::Restarted {
            pass_through.was_reset();
            pass_through.expects_reset_report = true;
            self.spc.removal.reset();
            self.nexuses.establish_ua_all(Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET, None);
        }
    }
}

/// The additional sense code of the unit attentions for a power on and for every kind of reset.
const RESET_OCCURRED: u8 = 0x29;

/// After how many unit attentions in a row the device is no longer told to allow the removal.
const ALLOWS_REFUSED_MAX: u8 = 8;

#[cfg(test)]
mod tests;
