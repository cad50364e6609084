//! WRITE and WRITE FILEMARKS (SSC-4).

use alloc::rc::Rc;

use base::buffer::DataList;
use base::int_cast::to_usize;
use cartridge::command::{self, Command, Record, Space};
use cartridge::error::Error;
use scsi::opcode as op;
use scsi::sense::{Asc, Sense};

use super::arrived::Arrived;
use super::drive::EarlyWarning;
use super::protection::{checked, data_len};
use super::transfer::{Transfer, transfer_length};
use super::turn::{TapeCommand, failed, in_turn, run};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::fault_injection::{self, Bug};
use crate::settings::ProtectionMethod;
use crate::tape_drive::encryption::EncryptionParameters;
use crate::task::TaskInfo;

/// IMMED of WRITE FILEMARKS.
const IMMEDIATE: u8 = 0x01;

/// How many bytes of fixed-length blocks are requested from the initiator at a time; a longer block is
/// requested whole.
const PIECE_LEN: u32 = 1 << 20;

/// Returns the command after which blocks are acknowledged: they survive the end of the process, and a loss
/// of power too if the drive does not buffer.
fn kept(server: &DeviceServer) -> Command {
    let is_buffered =
        server.settings.stream.is_buffered || fault_injection::is_injected(Bug::UnbufferedUnsynced);
    if is_buffered { Command::Drain } else { Command::Synchronize }
}

pub(super) fn write(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let transfer = match Transfer::to_write(server, task) {
        Ok(transfer) => transfer,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    // A part of a block is no block.
    if task.data_in_len > 0 || task.data_out_len < transfer.len() {
        task.transferable.set(u64::from(transfer.len()));
        return Outcome::CheckCondition(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    task.transferable.set(u64::from(transfer.len()));
    if transfer.blocks == 0 {
        return Outcome::Good;
    }
    let guard = server.nexuses.settings(task.nexus).protection.written();
    if data_len(guard, transfer.block_len).is_none() {
        // There is no block before the guard.
        let at = transfer_length(&task.cdb).0;
        return Outcome::CheckCondition(Sense::invalid_cdb(at, None));
    }
    server.stats.writes += 1;
    in_turn(Write {
        transfer,
        requested: 0,
        arrived: Arrived::default(),
        buffers: DataList::new(),
        is_fetching: false,
        is_writing: false,
        written_before: 0,
        first: 0,
        done: 0,
        space: None,
        is_alone: false,
        is_first_loss: false,
        ending: None,
        encryption: None,
        guard,
        warning: EarlyWarning::default(),
    })
}

pub(super) fn write_filemarks(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let is_immediate = cdb.u8(1) & IMMEDIATE != 0;
    let count = if cdb.opcode() == op::WRITE_FILEMARKS_16 { cdb.u24(12) } else { cdb.u24(2) };
    if is_immediate && !server.settings.stream.is_buffered {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(0)));
    }
    in_turn(Filemarks { count, is_immediate, first: 0, ending: None, warning: EarlyWarning::default() })
}

/// Blocks that are written when they have arrived, while the next ones are fetched.
#[derive(Debug)]
struct Write {
    transfer: Transfer,
    /// How many blocks were requested from the initiator.
    requested: u32,
    /// Blocks that have arrived and are not written.
    arrived: Arrived,
    /// What holds these blocks, and others that are written already.
    buffers: DataList,
    is_fetching: bool,
    is_writing: bool,
    /// How many bytes were stored before the record that is being written.
    written_before: u64,
    /// The number of the first block among the objects of the partition.
    first: u64,
    /// How many blocks were written.
    done: u32,
    /// What is left of the partition behind the last block.
    space: Option<Space>,
    /// Whether a block that is lost can only be one of this command.
    is_alone: bool,
    /// Whether nothing was lost when the command began. Every command before has waited until its blocks were
    /// in the files, so a write of a file that fails is one of this command.
    is_first_loss: bool,
    /// The sense data, while the blocks that they report as written go to the files.
    ending: Option<Sense>,
    /// The data encryption parameters of the nexus, as they were when the command began.
    encryption: Option<Rc<EncryptionParameters>>,
    /// The method of the guards that come with the blocks.
    guard: Option<ProtectionMethod>,
    warning: EarlyWarning,
}

impl Write {
    /// Returns how many of the `left` blocks are requested at a time.
    fn piece(&self, left: u32) -> u32 {
        (PIECE_LEN / self.transfer.block_len).clamp(1, left)
    }

    fn fetch(&mut self, server: &mut DeviceServer, task: &TaskInfo) {
        let len = self.transfer.block_len;
        let left = self.transfer.blocks - self.requested;
        // At most one piece waits while another one is being written.
        if left == 0 || self.is_fetching || self.arrived.len() > to_usize(PIECE_LEN) {
            return;
        }
        let blocks = self.piece(left);
        server.fetch_data_out(task, self.requested.saturating_mul(len), blocks.saturating_mul(len));
        self.requested += blocks;
        self.is_fetching = true;
    }

    fn proceed(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        if self.ending.is_some() {
            return JobStep::Wait;
        }
        self.fetch(server, task);
        let len = to_usize(self.transfer.block_len);
        if self.is_writing || self.arrived.len() < len {
            return JobStep::Wait;
        }
        let data = self.arrived.take(len);
        match self.record(server, data) {
            Ok(record) => {
                self.is_writing = true;
                self.written_before = server.stored_counts().written;
                run(server, Command::Write(record))
            }
            Err(sense) => {
                let sense = sense.with_information(self.transfer.left(self.done));
                self.stop(server, sense)
            }
        }
    }

    /// Returns the record of a block as it came. The guard of a block that is encrypted is not stored: it
    /// would tell of the plain data.
    fn record(&self, server: &mut DeviceServer, block: DataList) -> Result<Record, Sense> {
        let Some(method) = self.guard else { return server.record_of(self.encryption.as_deref(), block) };
        let (data, guard) = checked(method, &block)?;
        let record = server.record_of(self.encryption.as_deref(), data)?;
        let guard = (record.encryption == 0).then_some(guard);
        Ok(Record { guard, ..record })
    }

    /// Ends the command behind the blocks that were written.
    fn stop(&mut self, server: &mut DeviceServer, sense: Sense) -> JobStep {
        if self.done > 0 {
            self.ending = Some(sense);
            return run(server, kept(server));
        }
        JobStep::Done(Outcome::CheckCondition(sense))
    }

    fn written(&mut self, server: &mut DeviceServer, task: &TaskInfo, space: Space) -> JobStep {
        self.is_writing = false;
        self.done += 1;
        self.space = Some(space);
        let len = u64::from(self.transfer.block_len);
        let stored_len = server.stored_counts().written.saturating_sub(self.written_before);
        server.stats.write_bytes += len;
        if let Some(drive) = &mut server.tape {
            let counts = &mut drive.counts;
            counts.written = counts.written.saturating_add(len);
            counts.written_to_medium = counts.written_to_medium.saturating_add(stored_len);
        }
        if self.arrived.len() == 0 {
            server.recycle(core::mem::take(&mut self.buffers));
        }
        if self.done < self.transfer.blocks {
            self.proceed(server, task)
        } else if fault_injection::is_injected(Bug::WriteUndrained) {
            JobStep::Done(self.finished())
        } else {
            run(server, kept(server))
        }
    }

    /// Ends the command because the file system is full, behind the blocks that are in the files.
    fn storage_full(&mut self, server: &mut DeviceServer, sense: Sense) -> JobStep {
        let written = server.tape_position().object.saturating_sub(self.first);
        let written = u32::try_from(written).unwrap_or(u32::MAX).min(self.done);
        let given_up = u64::from(self.done - written) * u64::from(self.transfer.block_len);
        server.stats.write_bytes = server.stats.write_bytes.saturating_sub(given_up);
        if let Some(drive) = &mut server.tape {
            drive.counts.written = drive.counts.written.saturating_sub(given_up);
        }
        (self.is_writing, self.done) = (false, written);
        self.stop(server, sense.with_information(self.transfer.left(written)))
    }

    fn finished(&self) -> Outcome {
        self.space.and_then(|space| self.warning.sense(space)).map_or(Outcome::Good, Outcome::CheckCondition)
    }
}

impl TapeCommand for Write {
    fn first_data_len(&self) -> u32 {
        self.piece(self.transfer.blocks).saturating_mul(self.transfer.block_len)
    }

    fn request_data(&mut self, server: &mut DeviceServer, task: &TaskInfo) {
        if self.requested == 0 {
            self.fetch(server, task);
        }
    }

    fn keep_data(&mut self, data: DataList) {
        self.is_fetching = false;
        for part in data.into_parts() {
            self.buffers.push(part.clone());
            self.arrived.push(part);
        }
    }

    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let is_unsynced = server.tape.as_ref().is_some_and(|drive| drive.is_unsynced());
        self.is_alone = !server.settings.stream.is_buffered && !is_unsynced;
        self.is_first_loss = server.tape.as_ref().is_some_and(|drive| !drive.cartridge().has_lost_writes());
        self.warning = EarlyWarning::new(server);
        self.first = server.tape_position().object;
        let appended = server.check_append();
        if let Some(drive) = &server.tape {
            if let Err(sense) = drive.encryption.check_lock(task.nexus).and(appended) {
                return JobStep::Done(Outcome::CheckCondition(sense.with_information(self.transfer.left(0))));
            }
            self.encryption = drive.encryption.parameters(task.nexus);
        }
        self.proceed(server, task)
    }

    fn data_arrived(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.proceed(server, task)
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        match result {
            Ok(command::Outcome::Written(space)) => self.written(server, task, space),
            Ok(_) => JobStep::Done(self.ending.map_or_else(|| self.finished(), Outcome::CheckCondition)),
            Err(error @ Error::StorageFull) => {
                let sense = server.cartridge_failure(&error);
                self.storage_full(server, sense)
            }
            Err(error) => {
                let sense = server.cartridge_failure(&error);
                let is_of_this = match error {
                    Error::WriteLost { is_flush, .. } => self.is_alone || (self.is_first_loss && !is_flush),
                    _ => false,
                };
                if is_of_this {
                    // Nothing of this command was acknowledged, and nothing of it may be in the files.
                    let sense = Sense { deferred: false, ..sense };
                    let none = self.transfer.left(0);
                    return JobStep::Done(Outcome::CheckCondition(sense.with_information(none)));
                }
                let is_about_this = !sense.deferred && sense.information.is_none();
                let left = self.transfer.left(self.done);
                let sense = if is_about_this { sense.with_information(left) } else { sense };
                if matches!(error, Error::EndOfPartition) {
                    return self.stop(server, sense);
                }
                JobStep::Done(Outcome::CheckCondition(sense))
            }
        }
    }
}

#[derive(Debug)]
struct Filemarks {
    count: u32,
    is_immediate: bool,
    /// The number of the first filemark among the objects of the partition.
    first: u64,
    /// The sense data, while the filemarks that they report as written go to the files.
    ending: Option<Sense>,
    warning: EarlyWarning,
}

impl Filemarks {
    /// Returns how many filemarks are not written.
    fn left(&self, server: &DeviceServer) -> u64 {
        let object = server.tape.as_ref().map_or(0, |drive| drive.cartridge().position().object);
        u64::from(self.count).saturating_sub(object.saturating_sub(self.first))
    }
}

impl TapeCommand for Filemarks {
    fn start(&mut self, server: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        self.first = server.tape.as_ref().map_or(0, |drive| drive.cartridge().position().object);
        self.warning = EarlyWarning::new(server);
        if let Err(sense) =
            server.check_append().or_else(|sense| if self.count > 0 { Err(sense) } else { Ok(()) })
        {
            let left = u64::from(self.count);
            return JobStep::Done(Outcome::CheckCondition(sense.with_information(left)));
        }
        let is_short = fault_injection::is_injected(Bug::FilemarksWrittenOnce);
        let count = if is_short { self.count.min(1) } else { self.count };
        run(server, Command::WriteFilemarks { count, is_immediate: self.is_immediate })
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        _: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        match result {
            Ok(command::Outcome::Written(space)) if self.count > 0 => {
                self.ending = self.warning.sense(space);
                if self.is_immediate {
                    return run(server, Command::Drain);
                }
                JobStep::Done(self.ending.map_or(Outcome::Good, Outcome::CheckCondition))
            }
            Ok(_) => JobStep::Done(self.ending.map_or(Outcome::Good, Outcome::CheckCondition)),
            Err(error @ (Error::EndOfPartition | Error::StorageFull)) => {
                let sense = server.cartridge_failure(&error).with_information(self.left(server));
                self.ending = Some(sense);
                run(server, if self.is_immediate { Command::Drain } else { Command::Synchronize })
            }
            Err(error) => failed(server, &error),
        }
    }
}
