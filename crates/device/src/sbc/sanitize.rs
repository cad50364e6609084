//! SANITIZE (SBC-4 §5.30) and FORMAT UNIT (SBC-4 §5.4): operations on the whole medium that outlive their
//! command, its nexus and every reset.
//!
//! They outlive the daemon as well: the sanitize journal records the operation before it begins, and its end
//! before any initiator may write again. A unit that is started in between executes the whole operation
//! again.
//!
//! While an operation runs, the unit processes only commands that report about the device. The operation is
//! limited in speed, so that the other units of its thread are served meanwhile.

mod worker;

use alloc::boxed::Box;
use alloc::vec::Vec;

use scsi::opcode as op;
use scsi::sense::{Asc, Sense, SenseKey};

use super::limits::supports_block_erase;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::device_server::{DeviceServer, UnitInfo};
use crate::sanitizer::{Kind, Method, Sanitizer};
use crate::task::TaskInfo;

/// Bits of byte 1.
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;

/// The header of the OVERWRITE parameter list.
const OVERWRITE_HEADER_LEN: usize = 4;

/// SANITIZE with BLOCK ERASE: the medium deallocates all storage and reads as zeros.
pub(super) fn block_erase(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match without_parameters(server, task) {
        Ok(()) => start(server, task, Kind::Sanitize, Method::Erase),
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// SANITIZE with CRYPTOGRAPHIC ERASE: the medium replaces its key, and deallocates all storage if it is thin.
pub(super) fn crypto_erase(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let deallocates = server.info.is_thin();
    match without_parameters(server, task) {
        Ok(()) => start(server, task, Kind::Sanitize, Method::CryptoErase { deallocates }),
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// SANITIZE with OVERWRITE.
pub(super) fn overwrite(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let len = task.cdb.u16(7);
    let longest = server.info.block_len() + OVERWRITE_HEADER_LEN;
    if usize::from(len) <= OVERWRITE_HEADER_LEN || usize::from(len) > longest {
        return Outcome::CheckCondition(Sense::invalid_cdb(7, None));
    }
    match server.write_protection(task.nexus) {
        Some(sense) => Outcome::CheckCondition(sense),
        None => Outcome::FetchParameterList { len: u32::from(len), then: overwrite_with },
    }
}

fn overwrite_with(server: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    let [first, _, high, low, pattern @ ..] = list else {
        return Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    };
    // TEST requests vendor-specific behaviour, which is not supported.
    if first & 0x60 != 0 {
        return Outcome::CheckCondition(Sense::invalid_parameter(0, Some(6)));
    }
    let passes = first & 0x1f;
    if passes == 0 {
        return Outcome::CheckCondition(Sense::invalid_parameter(0, Some(4)));
    }
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    match pattern.get(..len) {
        Some(pattern) if (1..=server.info.block_len()).contains(&len) => {
            let block = pattern.iter().copied().cycle().take(server.info.block_len()).collect();
            let plan = Method::Overwrite { block, passes, invert: first & 0x80 != 0 };
            start(server, task, Kind::Sanitize, plan)
        }
        _ => Outcome::CheckCondition(Sense::invalid_parameter(2, None)),
    }
}

/// SANITIZE with EXIT FAILURE MODE.
pub(super) fn exit_failure_mode(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if let Err(sense) = without_parameters(server, task) {
        return Outcome::CheckCondition(sense);
    }
    if !server.sanitizer.may_leave_failure() {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(4)));
    }
    Outcome::QueueStateChange { list: Vec::new(), then: exit_in_turn }
}

/// Leaves the failure only when the journal records that: otherwise the next start would close the unit
/// again.
fn exit_in_turn(server: &mut DeviceServer, _: &TaskInfo, _: &[u8]) -> Outcome {
    if server.spc.sanitize_journal.is_none() || server.sanitizer.is_running() {
        server.sanitizer.leave_failure();
        return Outcome::Good;
    }
    let then = |server: &mut DeviceServer, _: &TaskInfo, saved| {
        if saved {
            server.spc.sanitize_journal = None;
            server.sanitizer.leave_failure();
            Outcome::Good
        } else {
            Outcome::CheckCondition(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))
        }
    };
    Outcome::SaveState { state: server.spc.to_save_without_work(), then: Box::new(then) }
}

/// FORMAT UNIT: no protection information, no defect lists; all blocks become zeros.
pub(super) fn format(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if let Some(sense) = server.write_protection(task.nexus) {
        return Outcome::CheckCondition(sense);
    }
    if task.cdb.u8(1) & FMTDATA == 0 {
        return start_formatting(server, task, false);
    }
    // The header alone, short or long (LONGLIST).
    let len = if task.cdb.u8(1) & LONGLIST == 0 { 4 } else { 8 };
    Outcome::FetchParameterList { len, then: format_with }
}

const FMTDATA: u8 = 0x10;
const LONGLIST: u8 = 0x20;
/// FOV, DPRY, DCRT and STPF only control how defects are handled; IP and the protection fields request
/// unsupported features.
const FORMAT_OPTIONS_IGNORED: u8 = 0xf0;
const FORMAT_IMMED: u8 = 0x02;

fn format_with(server: &mut DeviceServer, task: &TaskInfo, header: &[u8]) -> Outcome {
    let (protection, options, rest) = match header {
        [protection, options, rest @ ..] if header.len() == 4 || header.len() == 8 => {
            (protection, options, rest)
        }
        _ => return Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
    };
    if *protection != 0 {
        return Outcome::CheckCondition(Sense::invalid_parameter(0, None));
    }
    if options & !(FORMAT_OPTIONS_IGNORED | FORMAT_IMMED) != 0 {
        return Outcome::CheckCondition(Sense::invalid_parameter(1, None));
    }
    if rest.iter().any(|byte| *byte != 0) {
        return Outcome::CheckCondition(Sense::invalid_parameter(2, None));
    }
    start_formatting(server, task, options & FORMAT_IMMED != 0)
}

fn start_formatting(server: &mut DeviceServer, task: &TaskInfo, immediate: bool) -> Outcome {
    let plan = if supports_block_erase(&server.info) {
        Method::Erase
    } else {
        Method::zeros(server.info.block_len())
    };
    begin(server, task, Kind::Format, plan, immediate, true)
}

/// Returns whether the unit supports BLOCK ERASE.
pub(super) fn erases_blocks(facts: &UnitInfo) -> bool {
    supports_block_erase(facts)
}

fn without_parameters(server: &DeviceServer, task: &TaskInfo) -> Result<(), Sense> {
    if task.cdb.u16(7) != 0 {
        return Err(Sense::invalid_cdb(7, None));
    }
    server.write_protection(task.nexus).map_or(Ok(()), Err)
}

fn start(server: &mut DeviceServer, task: &TaskInfo, kind: Kind, plan: Method) -> Outcome {
    let flags = task.cdb.u8(1);
    begin(server, task, kind, plan, flags & IMMED != 0, flags & AUSE != 0)
}

fn begin(
    server: &mut DeviceServer,
    task: &TaskInfo,
    kind: Kind,
    plan: Method,
    immediate: bool,
    may_leave_failure: bool,
) -> Outcome {
    // Another operation may have begun while the parameter list of this one was being fetched.
    if let Some(sense) = server.sanitizer.progress(server.info.capabilities.len) {
        return Outcome::CheckCondition(sense);
    }
    server.start_sanitizing(kind, plan, may_leave_failure, (task.id, immediate));
    Outcome::Run(Box::new(Waiting))
}

/// A command that waits for the operation that it started, or (IMMED) for its journal entry. Aborting the
/// command does not abort the operation.
struct Waiting;

impl Job for Waiting {
    fn step(&mut self, server: &mut DeviceServer, _: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Woken => JobStep::Done(match server.sanitizer.take_answer() {
                Some(sense) => Outcome::CheckCondition(sense),
                None => Outcome::Good,
            }),
            _ => JobStep::Wait,
        }
    }
}

/// Returns whether a command is processed while the unit sanitizes or has failed to (SBC-4 §4.11.2): only
/// commands that report about the device.
const fn passes_meanwhile(opcode: u8) -> bool {
    matches!(
        opcode,
        op::INQUIRY
            | op::REPORT_LUNS
            | op::REQUEST_SENSE
            | op::LOG_SENSE
            | op::MODE_SENSE_6
            | op::MODE_SENSE_10
            | op::MAINTENANCE_IN
            | op::PERSISTENT_RESERVE_IN
            | op::RECEIVE_DIAGNOSTIC_RESULTS
    )
}

impl Sanitizer {
    /// Returns why a command is not processed now, or `None` if it is.
    pub(crate) fn obstacle(&self, opcode: u8) -> Option<Sense> {
        if self.is_idle() || passes_meanwhile(opcode) {
            return None;
        }
        let mends = opcode == op::SANITIZE || (opcode == op::FORMAT_UNIT && self.failed_to_format());
        self.in_progress().or_else(|| self.failure().filter(|_| !mends))
    }
}
