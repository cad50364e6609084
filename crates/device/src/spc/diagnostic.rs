//! SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS (SPC-5 §6.26).
//!
//! A self-test reads blocks. That of a tape drive reads the label of the cartridge. A drive without a medium
//! and a medium changer have nothing to read, and pass. A test takes a moment only, so a background test ends
//! before its command is answered.

use alloc::boxed::Box;

use scsi::sense::{Asc, Sense, SenseKey};
use store::api::{OpAction, OpOutput};

use super::{data, length_error, whole};
use crate::contract::DeviceKind;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::self_test::{self, SelfTestCode};
use crate::task::TaskInfo;

/// The only diagnostic page: the list of diagnostic pages.
const SUPPORTED_PAGES: u8 = 0x00;

/// How many blocks, spread evenly over the medium, a test reads.
const SHORT_SAMPLES: u64 = 2;
const EXTENDED_SAMPLES: u64 = 64;

/// SELF-TEST CODE 100b: abort the background test. No test ever runs when a command arrives.
const ABORT_BACKGROUND: u8 = 0b100;

pub(super) fn send(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let flags = task.cdb.u8(1);
    let (code, self_test, len) = (flags >> 5, flags & 0x04 != 0, u32::from(task.cdb.u16(3)));
    if self_test && code != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(7)));
    }
    if self_test || code != 0 {
        if len != 0 {
            return Outcome::CheckCondition(Sense::invalid_cdb(3, None));
        }
        return start(server, code);
    }
    match len {
        0 => Outcome::Good,
        // A parameter list consists of pages, which PF must announce.
        _ if flags & 0x10 == 0 => Outcome::CheckCondition(Sense::invalid_cdb(1, Some(4))),
        len => Outcome::FetchParameterList { len, then: send_list },
    }
}

pub(super) fn receive(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if task.cdb.u8(1) & 1 == 1 && task.cdb.u8(2) != SUPPORTED_PAGES {
        return Outcome::CheckCondition(Sense::invalid_cdb(2, None));
    }
    data([SUPPORTED_PAGES, 0, 0, 1, SUPPORTED_PAGES].into(), u32::from(task.cdb.u16(3)))
}

/// Handles the parameter list. The only page that an initiator can send requests the list of pages, which
/// RECEIVE DIAGNOSTIC RESULTS returns anyway.
fn send_list(_: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    match whole(list, u32::from(task.cdb.u16(3))) {
        Ok([SUPPORTED_PAGES, _, 0, 0]) => Outcome::Good,
        Ok([SUPPORTED_PAGES, _, _, _, ..]) => length_error(),
        Ok([_, _, _, _, ..]) => Outcome::CheckCondition(Sense::invalid_parameter(0, None)),
        Ok(_) => length_error(),
        Err(verdict) => verdict,
    }
}

fn start(server: &DeviceServer, code: u8) -> Outcome {
    let is_empty = is_empty_drive(server);
    if let Some(sense) = if is_empty { server.medium_trouble() } else { server.not_ready() } {
        return Outcome::CheckCondition(sense);
    }
    let known = SelfTestCode::from_code(code);
    if known.is_none() && code != 0 {
        let byte = if code == ABORT_BACKGROUND { Some(7) } else { Some(6) };
        return Outcome::CheckCondition(Sense::invalid_cdb(1, byte));
    }
    let extended = matches!(known, Some(SelfTestCode::BackgroundExtended | SelfTestCode::ForegroundExtended));
    let samples = if extended { EXTENDED_SAMPLES } else { SHORT_SAMPLES };
    let blocks = match server.info.config.device {
        _ if is_empty => 0,
        // Most addresses of the store belong to files that are not there. The label is at the first ones.
        DeviceKind::Tape => 1,
        _ => server.info.capacity().0,
    };
    Outcome::Run(Box::new(SelfTest { code: known, blocks, samples: samples.min(blocks), done: 0 }))
}

/// Returns whether the unit is a drive without a medium. A removable disk is not tested without its medium.
fn is_empty_drive(server: &DeviceServer) -> bool {
    let is_drive = matches!(server.info.config.device, DeviceKind::Tape | DeviceKind::Disc { .. });
    is_drive && !server.spc.removal.is_present()
}

/// Reads samples of the medium, one after the other. What is read is not checked.
struct SelfTest {
    /// `None` for the default self-test, which records no result.
    code: Option<SelfTestCode>,
    /// How many blocks of the medium can be read.
    blocks: u64,
    samples: u64,
    done: u64,
}

impl Job for SelfTest {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => self.read_next(server, task),
            JobInput::OpCompleted { result: Ok(OpOutput::Data(bytes)), .. } => {
                server.recycle(bytes);
                self.done += 1;
                self.read_next(server, task)
            }
            JobInput::OpCompleted { .. } => {
                // The label is no block that an initiator can address.
                let lba = if server.tape.is_some() { self_test::NO_ADDRESS } else { self.lba() };
                self.end(server, self_test::SelfTestResult::Failed { lba })
            }
            _ => JobStep::Wait,
        }
    }
}

impl SelfTest {
    fn read_next(&self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        if self.done >= self.samples {
            return self.end(server, self_test::SelfTestResult::Passed);
        }
        let (block, lba) = (server.info.block_size(), self.lba());
        let len = usize::try_from(block.bytes()).unwrap_or(0);
        server.submit(task, 0, OpAction::Read { at: lba << block.shift(), len });
        JobStep::Wait
    }

    /// Returns the block of the next sample. The first sample is the first block of the medium, the last
    /// sample is the last block.
    fn lba(&self) -> u64 {
        let last = self.blocks.saturating_sub(1);
        let step = last / self.samples.saturating_sub(1).max(1);
        if self.done + 1 >= self.samples { last } else { self.done.saturating_mul(step) }
    }

    fn end(&self, server: &mut DeviceServer, outcome: self_test::SelfTestResult) -> JobStep {
        if let Some(code) = self.code {
            let hours = server.spc.uptime(server.now).as_secs() / 3600;
            server.spc.self_tests.record(code, outcome, hours);
        }
        let in_background = self.code.is_some_and(SelfTestCode::is_background);
        JobStep::Done(if outcome == self_test::SelfTestResult::Passed || in_background {
            Outcome::Good
        } else {
            Outcome::CheckCondition(Sense::new(SenseKey::HARDWARE_ERROR, Asc::LOGICAL_UNIT_FAILED_SELF_TEST))
        })
    }
}
