//! READ and VERIFY (SSC-4), which reads without delivering.

use alloc::rc::Rc;

use base::buffer::DataList;
use base::int_cast::to_u32;
use cartridge::command::{self, Command, Position};
use cartridge::error::Error;
use scsi::sense::{Asc, Sense, SenseKey, stream_bits};
use store::api::Fault;

use super::data_in::DataIn;
use super::protection::{GUARD_FAILED, guard_len, guarded, is_intact};
use super::transfer::{TRANSFER_LEN_MAX, Transfer, stream_sense, too_long, transfer_length};
use super::turn::{TapeCommand, failed, in_turn, in_turn_or_at_once, run};
use super::verify::VerifyRange;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::fault_injection::{self, Bug};
use crate::settings::ProtectionMethod;
use crate::tape_drive::encryption::EncryptionParameters;
use crate::task::TaskInfo;

/// SILI of READ: no report of a block that is shorter than requested.
const SILI: u8 = 0x02;
/// The bits of VERIFY.
mod verify_bit {
    /// FIXED
    pub(super) const FIXED: u8 = 0x01;
    /// BYTCMP
    pub(super) const BYTE_COMPARE: u8 = 0x02;
    /// IMMED
    pub(super) const IMMEDIATE: u8 = 0x04;
    /// VBF: the verification length counts filemarks.
    pub(super) const BY_FILEMARKS: u8 = 0x08;
    /// VLBPM: the guards that are stored with blocks are checked.
    pub(super) const GUARDS: u8 = 0x10;
    /// VTE: verify to the end of data.
    pub(super) const TO_END: u8 = 0x20;
}

pub(super) fn read(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let transfer = match Transfer::of(server, task) {
        Ok(transfer) => transfer,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    if task.data_out_len > 0 {
        return Outcome::CheckCondition(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    let is_silent = task.cdb.u8(1) & SILI != 0;
    if transfer.is_fixed && is_silent {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(1)));
    }
    if transfer.blocks == 0 {
        return Outcome::Good;
    }
    server.stats.reads += 1;
    let guard = server.nexuses.settings(task.nexus).protection.read();
    in_turn(Read { guard, ..Read::new(transfer, is_silent, true) })
}

pub(super) fn verify(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let flags = task.cdb.u8(1);
    let is_set = |bit| flags & bit != 0;
    if is_set(verify_bit::BYTE_COMPARE) {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(1)));
    }
    let guard = server.nexuses.settings(task.nexus).protection.read();
    let (checks_guards, is_immediate) = (is_set(verify_bit::GUARDS), is_set(verify_bit::IMMEDIATE));
    if is_set(verify_bit::BY_FILEMARKS) || is_set(verify_bit::TO_END) {
        if is_set(verify_bit::BY_FILEMARKS) && is_set(verify_bit::TO_END) {
            return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(5)));
        }
        let block_len = server.nexuses.settings(task.nexus).block_len;
        if is_set(verify_bit::FIXED) && block_len == 0 {
            return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(0)));
        }
        let filemarks = is_set(verify_bit::BY_FILEMARKS).then(|| transfer_length(&task.cdb).1);
        if filemarks == Some(0) {
            return Outcome::Good;
        }
        // The guards count, although they are not delivered. No block has the length 0.
        let data_len = block_len.saturating_sub(guard_len(guard));
        let block_len = is_set(verify_bit::FIXED).then_some(data_len);
        let command = VerifyRange::new(filemarks, block_len, checks_guards);
        return in_turn_or_at_once(server, task, is_immediate, command);
    }
    let transfer = match Transfer::of(server, task) {
        Ok(transfer) => transfer,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    if transfer.blocks == 0 {
        return Outcome::Good;
    }
    let command = Read { guard, checks_guards, ..Read::new(transfer, false, false) };
    in_turn_or_at_once(server, task, is_immediate, command)
}

#[derive(Debug)]
struct Read {
    transfer: Transfer,
    is_silent: bool,
    /// Whether the blocks go to the initiator.
    is_delivered: bool,
    /// How many blocks of the right length were read.
    done: u32,
    /// How many bytes the initiator was sent, or would have been if it accepted so many.
    sent: u32,
    data_in: DataIn,
    /// The sense data, while the position moves behind a block that cannot be read.
    ending: Option<Sense>,
    /// Where the command began.
    first: Position,
    /// Where the block that is being read begins.
    before: Position,
    /// How many stored bytes were read before that block.
    read_before: u64,
    /// The data encryption parameters of the nexus, as they were when the command began.
    encryption: Option<Rc<EncryptionParameters>>,
    /// The method of the guards that come with blocks. They count although VERIFY does not deliver them.
    guard: Option<ProtectionMethod>,
    /// Whether the guards that are stored with blocks are checked.
    checks_guards: bool,
}

impl Read {
    const fn new(transfer: Transfer, is_silent: bool, is_delivered: bool) -> Self {
        Self {
            transfer,
            is_silent,
            is_delivered,
            done: 0,
            sent: 0,
            data_in: DataIn::new(),
            ending: None,
            first: Position::START,
            before: Position::START,
            read_before: 0,
            encryption: None,
            guard: None,
            checks_guards: false,
        }
    }

    fn read_next(&mut self, server: &mut DeviceServer) -> JobStep {
        self.before = server.tape_position();
        self.read_before = server.stored_counts().read;
        run(server, Command::Read)
    }

    /// Ends the command before a block that cannot be decrypted.
    fn not_decrypted(&self, server: &mut DeviceServer, sense: Sense) -> JobStep {
        server.return_tape_to(self.before);
        JobStep::Done(Outcome::CheckCondition(sense.with_information(self.transfer.left(self.done))))
    }

    fn block(&mut self, server: &mut DeviceServer, task: &TaskInfo, data: DataList) -> JobStep {
        let guard_len = if self.is_delivered { 0 } else { guard_len(self.guard) };
        let (len, wanted) = (to_u32(data.len()).saturating_add(guard_len), self.transfer.block_len);
        if len != wanted && self.transfer.is_fixed {
            return self.wrong_length(u64::from(self.transfer.blocks - self.done));
        }
        if self.transfer.is_fixed && self.exceeds(task, len) {
            // What was delivered counts for nothing.
            server.return_tape_to(self.first);
            return JobStep::Done(Outcome::CheckCondition(too_long(&task.cdb)));
        }
        self.deliver(server, task, data);
        self.done += 1;
        if len != wanted && self.is_length_reported(server, task, len) {
            return self.wrong_length((i64::from(wanted) - i64::from(len)).cast_unsigned());
        }
        if self.done < self.transfer.blocks { self.read_next(server) } else { JobStep::Done(Outcome::Good) }
    }

    /// Returns whether the initiator would receive more than a command delivers with a block of `len` bytes.
    fn exceeds(&self, task: &TaskInfo, len: u32) -> bool {
        self.is_delivered && self.sent.saturating_add(len).min(task.data_in_len) > TRANSFER_LEN_MAX
    }

    /// Returns whether the length of a variable-length block is reported. With SILI it is only if the block
    /// is longer than requested, and the mode parameters have a block length.
    fn is_length_reported(&self, server: &DeviceServer, task: &TaskInfo, len: u32) -> bool {
        let is_longer = len > self.transfer.block_len;
        !self.is_silent || (is_longer && server.nexuses.settings(task.nexus).block_len != 0)
    }

    fn wrong_length(&self, information: u64) -> JobStep {
        let sense = stream_sense(SenseKey::NO_SENSE, Asc::NONE, stream_bits::ILI, information);
        JobStep::Done(Outcome::CheckCondition(sense))
    }

    fn deliver(&mut self, server: &mut DeviceServer, task: &TaskInfo, data: DataList) {
        let len = to_u32(data.len()).min(self.transfer.block_len);
        if !self.is_delivered {
            let bytes = &mut server.errors.verified_bytes;
            *bytes = bytes.saturating_add(u64::from(len));
            return;
        }
        let room = task.data_in_len.saturating_sub(self.sent);
        let sent = usize::try_from(len.min(room)).unwrap_or(usize::MAX);
        if sent > 0 {
            let data = if data.len() > sent { data.slice(0, sent) } else { data };
            self.data_in.deliver(server, task, data, self.transfer.len().min(task.data_in_len) - self.sent);
        }
        self.sent = self.sent.saturating_add(len);
        if !fault_injection::is_injected(Bug::ReadLengthUntold) {
            task.transferable.set(u64::from(self.sent));
        }
        server.stats.read_bytes += u64::from(len);
        if let Some(drive) = &mut server.tape {
            drive.counts.read = drive.counts.read.saturating_add(u64::from(len));
        }
    }

    fn proceed(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        if let Some(sense) = self.ending {
            return JobStep::Done(Outcome::CheckCondition(sense));
        }
        match result {
            Ok(command::Outcome::Record(record)) => {
                let stored = record.guard;
                let stored_len = server.stored_counts().read.saturating_sub(self.read_before);
                if let Some(drive) = server.tape.as_mut().filter(|_| self.is_delivered) {
                    let count = &mut drive.counts.read_from_medium;
                    *count = count.saturating_add(stored_len);
                }
                match server.block_of(self.encryption.as_deref(), record) {
                    Ok(data)
                        if self.checks_guards && stored.is_some_and(|guard| !is_intact(&data, guard)) =>
                    {
                        let left = self.transfer.left(self.done);
                        JobStep::Done(Outcome::CheckCondition(GUARD_FAILED.with_information(left)))
                    }
                    Ok(data) => {
                        let data = match self.guard {
                            Some(method) if self.is_delivered => guarded(method, data, stored),
                            _ => data,
                        };
                        self.block(server, task, data)
                    }
                    Err(sense) => self.not_decrypted(server, sense),
                }
            }
            Ok(command::Outcome::Filemark) => {
                self.stopped(SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED, stream_bits::FILEMARK)
            }
            Ok(command::Outcome::EndOfData) => self.stopped(SenseKey::BLANK_CHECK, Asc::END_OF_DATA, 0),
            Ok(_) => JobStep::unexpected_input(),
            Err(error @ (Error::Damaged { .. } | Error::Read(_))) => {
                let sense = server.cartridge_failure(&error).with_information(self.transfer.left(self.done));
                if !is_passed_over(server, &error) {
                    return JobStep::Done(Outcome::CheckCondition(sense));
                }
                self.ending = Some(sense);
                // The position is behind the block that cannot be read.
                run(server, Command::SkipDamage)
            }
            Err(error) => failed(server, &error),
        }
    }

    fn stopped(&self, key: SenseKey, asc: Asc, bits: u8) -> JobStep {
        let done = if fault_injection::is_injected(Bug::FixedLeftWhole) { 0 } else { self.done };
        let sense = stream_sense(key, asc, bits, self.transfer.left(done));
        JobStep::Done(Outcome::CheckCondition(sense))
    }
}

/// Returns whether an error belongs to the object at the position: it will not be read, but those behind it
/// may be. Behind the last object that is known there is nothing to go to, and other failures can pass.
fn is_passed_over(server: &DeviceServer, error: &Error) -> bool {
    let is_of_object = match error {
        Error::Damaged { .. } => return true,
        Error::Read(failure) => failure.fault == Fault::Medium,
        _ => false,
    };
    is_of_object
        && server.tape.as_ref().is_some_and(|drive| {
            let position = drive.cartridge().position();
            let partition = drive.cartridge().partition(position.partition);
            partition.is_some_and(|partition| position.object < partition.objects)
        })
}

impl TapeCommand for Read {
    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.encryption = server.tape.as_ref().and_then(|drive| drive.encryption.parameters(task.nexus));
        self.first = server.tape_position();
        self.read_next(server)
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        let step = self.proceed(server, task, result);
        if matches!(step, JobStep::Done(_)) {
            self.data_in.pass_on(server, task);
        }
        step
    }
}
