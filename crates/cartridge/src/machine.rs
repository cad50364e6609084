//! The cartridge as a state machine: one command at a time, its steps, and the file operations under way.
//!
//! A step that needs a file operation submits it and halts. When the operation has completed, the step runs
//! again and finds the result. The task records what a step has done, so that no step does it twice.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::{to_u64, to_usize};
use store::api::{Failure, Fault, OpId, OpOutput};

use crate::attributes::AttributeFormat;
use crate::command::{Command, Destination, Outcome, Position, Space, StoredCounts};
use crate::error::Error;
use crate::io::{Io, Purpose, Request};
use crate::label::{Checkpoint, Label};
use crate::layout::{CHUNK_LEN, ItemHeader, Seal, occupied};

mod append;
mod cache;
mod chunk;
mod end;
mod give_up;
pub mod handover;
mod label_write;
mod load;
mod mam;
mod pending;
mod read;
mod resync;
mod search;
mod space;
mod write;

use append::Append;
use cache::Cache;
use give_up::GivingUp;
use label_write::LabelWrite;
use load::Load;
use read::{ReadTask, StoredBytes};
use resync::Skip;
use search::Search;
use space::SpaceTask;
use write::{FilemarksTask, WriteTask, Writer};

/// How many bytes are written to files before further commands wait.
const WRITING_MAX: usize = 4 << 20;
/// How many write buffers are kept for reuse.
const SPARES_MAX: usize = 4;
/// How many bytes are written at most between two checkpoints, whether the host synchronises or not, and
/// recovered before that is kept: this is what a load reads after a crash, some seconds' worth.
const CHECKPOINT_DISTANCE: u64 = 512 << 20;
/// The same for small partitions.
const CHECKPOINT_DISTANCE_MIN: u64 = 8 << 20;
/// How many damaged chunk headers are remembered.
const DAMAGED_HEADERS_MAX: usize = 1024;

/// A cartridge.
#[derive(Debug, Default)]
pub struct Cartridge {
    io: Io,
    cache: Cache,
    label: Option<Label>,
    label_write: LabelWrite,
    parts: Vec<Partition>,
    is_writable: bool,
    position: Position,
    writer: Option<Writer>,
    append: Append,
    /// The search for the filemark before the position, on a WORM cartridge.
    trailing: Option<Search>,
    spares: Vec<Buf>,
    /// The segments written since they were flushed.
    dirty: BTreeSet<(u8, u32)>,
    /// The first write or flush of a log that failed, unless the storage was full.
    lost: Option<Error>,
    /// Whether the owner has told of it ([`Self::loss_told`]).
    is_loss_told: bool,
    /// Whether a write of a log has failed, so that what is not in the files is to be given up.
    is_cut: bool,
    /// How far the label is with that.
    giving_up: Option<GivingUp>,
    damaged_headers: BTreeSet<(u8, u64)>,
    /// Whether the last movement skipped what cannot be read behind the end of data.
    is_end_skipped: bool,
    /// The record at the position, if it was checked before a command reads it.
    ahead: Option<StoredBytes>,
    task: Option<Task>,
    outcome: Option<Result<Outcome, Error>>,
    stored: StoredCounts,
}

/// A partition of a loaded cartridge.
#[derive(Clone, Debug)]
struct Partition {
    now: Checkpoint,
    seal: Seal,
    /// Up to where in the stream everything is durable.
    durable: u64,
    /// Where the data ended when the label was last written.
    checkpoint: u64,
    /// Why the log behind the end cannot be read: more objects may be there.
    unreadable: Option<Failure>,
}

#[derive(Debug)]
enum Task {
    Load(Load),
    /// With the error of what was given up meanwhile.
    Unload(Option<Error>),
    Read(ReadTask),
    Peek,
    Write(WriteTask),
    Filemarks(FilemarksTask),
    Drain,
    Synchronize,
    Locate(Option<Search>, u8, Destination),
    Space(SpaceTask),
    Erase(end::Erase),
    Format(end::Format),
    SaveLabel,
    SkipDamage(Option<Skip>),
}

/// Why a step ends early.
#[derive(Debug)]
enum Halt {
    /// A file operation is under way.
    Wait,
    /// The command fails.
    Fail(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Fail(error)
    }
}

impl Cartridge {
    /// Makes a cartridge that is not loaded.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a command. Its outcome comes from [`Self::poll_outcome`], perhaps at once.
    pub fn handle_command(&mut self, command: Command) {
        if self.task.is_some() || self.outcome.is_some() {
            // The outcome of the command under way stays: the owner has broken the rules.
            return;
        }
        self.is_end_skipped &= matches!(command, Command::Read | Command::Peek | Command::SkipDamage);
        if !matches!(command, Command::Read | Command::Peek) {
            self.ahead = None;
        }
        match self.task_of(command) {
            Ok(task) => {
                self.task = Some(task);
                self.run();
            }
            Err(error) => self.outcome = Some(Err(error)),
        }
    }

    /// Returns the next file operation to start, if there is one. Operations that are under way together can
    /// be carried out in any order.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.io.poll()
    }

    /// Returns a buffer that is no longer needed, if there is one: of a chunk that was read, into which the
    /// next one can be read, or of a record that was written. A buffer that is allocated anew costs more than
    /// the read.
    pub fn take_spare(&mut self) -> Option<Buf> {
        self.cache.take_spent()
    }

    /// Handles the completion of a file operation.
    pub fn handle_completion(&mut self, id: OpId, result: Result<OpOutput, Failure>) {
        let Some(purpose) = self.io.complete(id) else { return };
        match (purpose, result) {
            (Purpose::LogWrite { .. }, Ok(OpOutput::Done(data))) => {
                self.log_written(id);
                self.reuse(data);
            }
            (Purpose::LogWrite { .. }, Err(failure)) => {
                self.is_cut = true;
                if failure.fault != Fault::NoSpace {
                    self.lost.get_or_insert(Error::WriteLost { failure, is_flush: false });
                }
            }
            (Purpose::LogFlush, Err(failure)) => {
                let lost = self.lost.get_or_insert(Error::WriteLost { failure, is_flush: true });
                if let Error::WriteLost { is_flush, .. } = lost {
                    *is_flush = true;
                }
            }
            (Purpose::Label, Err(failure)) => self.label_write.fail(failure),
            (Purpose::LabelRead { copy }, result) => self.label_write.handle_copy(copy, result),
            (Purpose::Chunk { partition, chunk }, result) => {
                self.cache.handle_chunk((partition, chunk), result);
                self.check_chunk_header(partition, chunk);
            }
            (Purpose::Block { partition, chunk, block }, result) => {
                self.cache.handle_block((partition, chunk), block, result);
                self.check_chunk_header(partition, chunk);
            }
            (Purpose::ChunkHeader { partition, chunk }, result) => {
                let seal = self.parts.get(usize::from(partition)).map(|part| part.seal);
                self.cache.handle_header((partition, chunk), seal.as_ref(), result);
            }
            // Storage that is not freed is only not freed.
            (Purpose::LogWrite { .. } | Purpose::LogFlush | Purpose::Label | Purpose::Deallocate, _) => {}
        }
        self.run();
    }

    /// Keeps the buffers of what was written, for the next chunks or for the owner.
    fn reuse(&mut self, data: DataList) {
        for buf in data.into_parts().filter_map(Bytes::into_spare) {
            if buf.capacity() == to_usize(CHUNK_LEN) && self.spares.len() < SPARES_MAX {
                self.spares.push(buf);
            } else {
                self.cache.spend(buf);
            }
        }
    }

    /// Returns how the command ended, once it has.
    pub fn poll_outcome(&mut self) -> Option<Result<Outcome, Error>> {
        self.outcome.take()
    }

    /// Returns whether a command or a file operation is under way.
    pub fn is_busy(&self) -> bool {
        self.task.is_some() || !self.io.is_idle()
    }

    /// Returns whether anything is on its way to the files, or only in memory. [`Command::Drain`] brings it
    /// there.
    pub fn is_unfiled(&self) -> bool {
        self.is_cut || self.io.writing() > 0 || self.writer.as_ref().is_some_and(Writer::is_unfiled)
    }

    /// Returns whether a write or flush of a log has failed since the cartridge was loaded, and not because
    /// the storage was full.
    pub const fn has_lost_writes(&self) -> bool {
        self.lost.is_some()
    }

    /// Lets movements and reads go on after a write or flush that has failed: the owner has told whose data
    /// are lost. Nothing is written before the cartridge is loaded again.
    pub const fn loss_told(&mut self) {
        self.is_loss_told = self.lost.is_some();
    }

    /// Returns the first write or flush that has failed, if the owner has told of it.
    pub fn told_loss(&self) -> Option<&Error> {
        self.lost.as_ref().filter(|_| self.is_loss_told)
    }

    /// Returns the label, with the counters as they are now, if the cartridge is loaded. Its checkpoints are
    /// those of the label file.
    pub fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// Returns where the next command begins.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Moves back to a position that the cartridge has had since its last change, such as that of the record
    /// which [`Command::Read`] has just read. While a command is under way this does nothing.
    pub fn return_to(&mut self, position: Position) {
        if self.task.is_none()
            && self.partition(position.partition).is_some_and(|part| position.at <= part.end)
        {
            self.position = position;
        }
    }

    /// Returns how many bytes the records took that were written and read.
    pub const fn stored_counts(&self) -> StoredCounts {
        self.stored
    }

    /// Returns a partition as it is now: its end, objects and filemarks.
    pub fn partition(&self, partition: u8) -> Option<Checkpoint> {
        self.parts.get(usize::from(partition)).map(|part| part.now)
    }

    /// Returns how much is left behind the position, as if the partition ended there.
    pub fn space(&self) -> Option<Space> {
        let part = self.parts.get(usize::from(self.position.partition))?;
        let remaining = part.now.capacity.saturating_sub(occupied(self.position.at));
        let early_warning_len = early_warning(part.now.capacity);
        Some(Space { remaining, is_early_warning: remaining <= early_warning_len, early_warning_len })
    }

    /// Returns the damaged chunk headers that were met: partition and number, at most the first 1024.
    pub fn damaged_headers(&self) -> impl Iterator<Item = (u8, u64)> {
        self.damaged_headers.iter().copied()
    }

    /// Writes an attribute of a host, or removes it if the value is empty. [`Command::SaveLabel`] makes it
    /// durable.
    ///
    /// # Errors
    /// No cartridge is loaded for writing, or the attribute cannot be written.
    pub fn set_attribute(
        &mut self,
        partition: u8,
        id: u16,
        format: AttributeFormat,
        value: &[u8],
    ) -> Result<(), Error> {
        if usize::from(partition) >= self.parts.len() {
            return Err(Error::NoPartition);
        }
        let label = self.changeable_label()?;
        label.attributes.set(partition, id, format, value).map_err(Error::Attribute)?;
        self.label_write.mark_changed();
        Ok(())
    }

    /// Moves the write protect switch. [`Command::SaveLabel`] makes it durable.
    ///
    /// # Errors
    /// No cartridge is loaded for writing.
    pub fn set_write_protected(&mut self, is_write_protected: bool) -> Result<(), Error> {
        let label = self.label.as_mut().filter(|_| self.is_writable).ok_or(Error::NotLoaded)?;
        label.is_write_protected = is_write_protected;
        self.label_write.mark_changed();
        Ok(())
    }

    fn changeable_label(&mut self) -> Result<&mut Label, Error> {
        let label = self.label.as_mut().ok_or(Error::NotLoaded)?;
        if !self.is_writable || label.is_write_protected {
            return Err(Error::WriteProtected);
        }
        Ok(label)
    }

    fn task_of(&mut self, command: Command) -> Result<Task, Error> {
        match (&command, self.label.is_some()) {
            (Command::Load { .. }, true) => return Err(Error::AlreadyLoaded),
            (Command::Load { .. }, false) | (_, true) => {}
            (_, false) => return Err(Error::NotLoaded),
        }
        Ok(match command {
            Command::Load { is_writable } => Task::Load(Load::new(is_writable)),
            Command::Unload => Task::Unload(None),
            Command::Read => Task::Read(ReadTask::default()),
            Command::Peek => Task::Peek,
            Command::Write(record) => Task::Write(WriteTask::new(record)?),
            Command::WriteFilemarks { count, is_immediate } => {
                Task::Filemarks(FilemarksTask::new(count, is_immediate))
            }
            Command::Drain => Task::Drain,
            Command::Synchronize => Task::Synchronize,
            Command::Locate { partition, destination } => {
                if usize::from(partition) >= self.parts.len() {
                    return Err(Error::NoPartition);
                }
                Task::Locate(None, partition, destination)
            }
            Command::Space { unit, count } => Task::Space(SpaceTask::new(unit, count)),
            Command::Erase => Task::Erase(end::Erase::default()),
            Command::Format { partitions } => Task::Format(end::Format::new(partitions)),
            Command::SaveLabel => Task::SaveLabel,
            Command::SkipDamage => Task::SkipDamage(None),
        })
    }

    fn run(&mut self) {
        let Some(mut task) = self.task.take() else { return };
        if self.is_cut {
            if self.io.writing() > 0 {
                // How the writes under way end tells what is in the files.
                self.task = Some(task);
                return;
            }
            self.is_cut = false;
            self.give_up_unfiled();
        }
        if let Some(stage) = self.giving_up {
            if !self.is_giving_up_over(stage) {
                self.task = Some(task);
                return;
            }
            match &mut task {
                // The step fails.
                _ if self.lost.is_some() => {}
                Task::Unload(given_up) => *given_up = Some(Error::StorageFull),
                _ => return self.fail(Error::StorageFull),
            }
        }
        match self.step(&mut task) {
            Ok(outcome) => self.outcome = Some(Ok(outcome)),
            Err(Halt::Wait) => self.task = Some(task),
            Err(Halt::Fail(error)) => self.fail(error),
        }
    }

    fn fail(&mut self, error: Error) {
        self.append = Append::Idle;
        self.trailing = None;
        self.label_write.give_up();
        self.cache.forget_failures();
        self.outcome = Some(Err(error));
    }

    fn step(&mut self, task: &mut Task) -> Result<Outcome, Halt> {
        match task {
            Task::Load(load) => self.step_load(load),
            Task::Unload(given_up) => self.step_unload(*given_up),
            Task::Read(read) => self.step_read(read),
            Task::Peek => self.step_peek(),
            Task::Write(write) => self.step_write(write),
            Task::Filemarks(filemarks) => self.step_filemarks(filemarks),
            Task::Drain => self.drain().map(|()| Outcome::Done),
            Task::Synchronize => self.synchronize().map(|()| Outcome::Done),
            Task::Locate(search, partition, destination) => {
                self.step_locate(search, *partition, *destination)
            }
            Task::Space(space) => self.step_space(space),
            Task::Erase(erase) => self.step_erase(erase),
            Task::Format(format) => self.step_format(format),
            Task::SaveLabel => self.step_save_label(),
            Task::SkipDamage(skip) => self.step_skip(skip),
        }
    }

    fn part(&self, partition: u8) -> Result<&Partition, Error> {
        self.parts.get(usize::from(partition)).ok_or(Error::NoPartition)
    }

    fn part_mut(&mut self, partition: u8) -> Result<&mut Partition, Error> {
        self.parts.get_mut(usize::from(partition)).ok_or(Error::NoPartition)
    }

    /// Takes over the partitions, which are durable now, for the next write of the label.
    fn checkpoint(&mut self) {
        let Some(label) = &mut self.label else { return };
        label.partitions = self.parts.iter().map(|part| part.now).collect();
        for part in &mut self.parts {
            part.checkpoint = part.now.end;
        }
        self.label_write.mark_changed();
    }

    /// Returns whether so much is behind the last checkpoint that there must be another one.
    fn is_checkpoint_due(&self) -> bool {
        let is_far = |part: &Partition| {
            let distance = (part.now.capacity / 4).clamp(CHECKPOINT_DISTANCE_MIN, CHECKPOINT_DISTANCE);
            part.now.end.saturating_sub(part.checkpoint) > distance
        };
        self.is_writable && self.parts.iter().any(is_far)
    }

    fn check_chunk_header(&mut self, partition: u8, chunk: u64) {
        let Ok(part) = self.part(partition) else { return };
        let is_written = chunk * crate::layout::BODY_LEN < part.now.end;
        let is_damaged = self.cache.is_header_damaged((partition, chunk), &part.seal);
        if is_written && is_damaged && self.damaged_headers.len() < DAMAGED_HEADERS_MAX {
            self.damaged_headers.insert((partition, chunk));
        }
    }
}

/// Returns how many bytes before the end of a partition the early warning is: 2 %, at least what can be under
/// way, and at most 5 GB.
pub(crate) fn early_warning(capacity: u64) -> u64 {
    (capacity / 50).clamp(to_u64(WRITING_MAX).min(capacity / 4), 5_000_000_000)
}

/// Returns the segment and the offset in it of a byte of a log.
const fn segment_of(physical: u64, segment_len: u64) -> (u64, u64) {
    debug_assert!(segment_len.is_multiple_of(CHUNK_LEN));
    (physical / segment_len, physical % segment_len)
}

/// Returns the position before an item.
fn before(partition: u8, item: &ItemHeader) -> Position {
    Position { partition, object: item.object, filemarks: item.filemarks, at: item.at, epoch: item.epoch }
}

/// Returns the position at the end of data.
fn end_of(partition: u8, now: &Checkpoint) -> Position {
    Position { partition, object: now.objects, filemarks: now.filemarks, at: now.end, epoch: now.epoch }
}

#[cfg(test)]
mod tests;
