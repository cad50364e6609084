//! Append-only mode (SSC-4): writes anywhere but at the end of data need ALLOW OVERWRITE before.

use cartridge::command;
use cartridge::error::Error;
use scsi::sense::{Asc, Sense, SenseKey};

use super::turn::{TapeCommand, in_turn};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::tape_drive::Overwrite;
use crate::task::TaskInfo;

/// The ALLOW OVERWRITE field.
mod allow {
    pub(super) const DISABLED: u8 = 0;
    pub(super) const CURRENT_POSITION: u8 = 1;
    pub(super) const FORMAT: u8 = 2;
}

pub(super) fn allow_overwrite(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let overwrite = match cdb.u8(2) & 0x0f {
        allow::DISABLED => Overwrite::Disabled,
        allow::CURRENT_POSITION => Overwrite::AtPosition { partition: cdb.u8(3), object: cdb.u64(4) },
        allow::FORMAT => Overwrite::Format,
        _ => return Outcome::CheckCondition(Sense::invalid_cdb(2, Some(3))),
    };
    in_turn(AllowOverwrite { overwrite })
}

#[derive(Debug)]
struct AllowOverwrite {
    overwrite: Overwrite,
}

impl TapeCommand for AllowOverwrite {
    fn start(&mut self, server: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        let Some(drive) = &mut server.tape else { return JobStep::unexpected_input() };
        let position = drive.cartridge().position();
        if let Overwrite::AtPosition { partition, object } = self.overwrite
            && (partition, object) != (position.partition, position.object)
        {
            drive.overwrite = Overwrite::Disabled;
            return JobStep::Done(Outcome::CheckCondition(ELSEWHERE));
        }
        drive.overwrite = self.overwrite;
        JobStep::Done(Outcome::Good)
    }

    fn ended(&mut self, _: &mut DeviceServer, _: &TaskInfo, _: Result<command::Outcome, Error>) -> JobStep {
        JobStep::unexpected_input()
    }
}

impl DeviceServer {
    /// Checks that a command may write at the position.
    ///
    /// # Errors
    /// In append-only mode something is there, and no host has allowed to overwrite it.
    pub(super) fn check_append(&self) -> Result<(), Sense> {
        let Some(drive) = self.tape.as_ref().filter(|_| self.settings.stream.is_append_only) else {
            return Ok(());
        };
        let position = drive.cartridge().position();
        let part = drive.cartridge().partition(position.partition);
        let is_at_end = part.is_some_and(|part| position.object >= part.objects);
        let is_allowed = matches!(drive.overwrite, Overwrite::AtPosition { .. });
        if is_at_end || is_allowed { Ok(()) } else { Err(NOT_AT_END) }
    }

    /// Checks that a command may give up everything on the cartridge.
    ///
    /// # Errors
    /// In append-only mode something is there, and no host has allowed to format it.
    pub(super) fn check_format(&self) -> Result<(), Sense> {
        let Some(drive) = self.tape.as_ref().filter(|_| self.settings.stream.is_append_only) else {
            return Ok(());
        };
        let mut parts = (0..=u8::MAX).map_while(|number| drive.cartridge().partition(number));
        let is_blank = parts.all(|part| part.objects == 0);
        if is_blank || drive.overwrite == Overwrite::Format { Ok(()) } else { Err(NOT_AT_END) }
    }
}

const ELSEWHERE: Sense = Sense::illegal(Asc::SEQUENTIAL_POSITIONING_ERROR);
const NOT_AT_END: Sense = Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_APPEND_ERROR);
