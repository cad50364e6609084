//! VERIFY up to a filemark (VBF) or to the end of data (VTE).

use alloc::rc::Rc;

use base::int_cast::to_u32;
use cartridge::command::{self, Command, Position, Record};
use cartridge::error::Error;
use scsi::sense::{Asc, Sense, SenseKey, stream_bits};

use super::protection::{GUARD_FAILED, is_intact};
use super::turn::{TapeCommand, failed, run};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::tape_drive::encryption::EncryptionParameters;
use crate::task::TaskInfo;

/// Reads everything up to where it shall end, without delivering.
#[derive(Debug)]
pub(super) struct VerifyRange {
    /// How many filemarks are left, or nothing if the end of data ends the command.
    filemarks: Option<u32>,
    /// The length that every block must have, if it matters.
    block_len: Option<u32>,
    /// Whether the stored guards of blocks are checked.
    checks_guards: bool,
    encryption: Option<Rc<EncryptionParameters>>,
    /// The sense data, while the position moves behind a block that cannot be read.
    ending: Option<Sense>,
    /// Where the block that is being read begins.
    before: Position,
}

impl VerifyRange {
    pub(super) const fn new(filemarks: Option<u32>, block_len: Option<u32>, checks_guards: bool) -> Self {
        let (encryption, ending, before) = (None, None, Position::START);
        Self { filemarks, block_len, checks_guards, encryption, ending, before }
    }

    fn read_next(&mut self, server: &mut DeviceServer) -> JobStep {
        self.before = server.tape_position();
        run(server, Command::Read)
    }

    /// Ends the command with sense data. Of a command that ends at the end of data nothing is left to tell.
    fn stop(&self, sense: Sense) -> JobStep {
        JobStep::Done(Outcome::CheckCondition(self.told(sense)))
    }

    fn told(&self, sense: Sense) -> Sense {
        match self.filemarks {
            Some(left) => sense.with_information(u64::from(left)),
            None => sense,
        }
    }

    fn record(&self, server: &mut DeviceServer, record: Record) -> Result<(), Sense> {
        let guard = record.guard.filter(|_| self.checks_guards);
        let block = server
            .block_of(self.encryption.as_deref(), record)
            .inspect_err(|_| server.return_tape_to(self.before))?;
        let len = to_u32(block.len());
        let bytes = &mut server.errors.verified_bytes;
        *bytes = bytes.saturating_add(u64::from(len));
        let is_wrong_len = self.block_len.is_some_and(|wanted| wanted != len);
        let is_guard_wrong = guard.is_some_and(|guard| !is_intact(&block, guard));
        server.recycle(block);
        if is_wrong_len {
            return Err(Sense::new(SenseKey::NO_SENSE, Asc::NONE).with_stream_bits(stream_bits::ILI));
        }
        if is_guard_wrong { Err(GUARD_FAILED) } else { Ok(()) }
    }
}

impl TapeCommand for VerifyRange {
    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.encryption = server.tape.as_ref().and_then(|drive| drive.encryption.parameters(task.nexus));
        self.read_next(server)
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        _: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        if let Some(sense) = self.ending {
            return JobStep::Done(Outcome::CheckCondition(sense));
        }
        match result {
            Ok(command::Outcome::Record(record)) => match self.record(server, record) {
                Ok(()) => self.read_next(server),
                Err(sense) => self.stop(sense),
            },
            Ok(command::Outcome::Filemark) => match &mut self.filemarks {
                Some(left) if *left <= 1 => JobStep::Done(Outcome::Good),
                left => {
                    *left = left.map(|left| left - 1);
                    self.read_next(server)
                }
            },
            Ok(command::Outcome::EndOfData) if self.filemarks.is_none() => JobStep::Done(Outcome::Good),
            Ok(command::Outcome::EndOfData) => self.stop(Sense::new(SenseKey::BLANK_CHECK, Asc::END_OF_DATA)),
            Ok(_) => JobStep::unexpected_input(),
            Err(error @ Error::Damaged { .. }) => {
                self.ending = Some(self.told(server.cartridge_failure(&error)));
                // The position is behind the block that cannot be read.
                run(server, Command::SkipDamage)
            }
            Err(error @ Error::Read(_)) => {
                let sense = server.cartridge_failure(&error);
                self.stop(sense)
            }
            Err(error) => failed(server, &error),
        }
    }
}
