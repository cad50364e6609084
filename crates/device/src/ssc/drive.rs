//! The drive at work: it passes the operations of the cartridge to the medium, and gives turns to commands.
//!
//! A drive has one position, so commands that use the medium run one after the other, in the order in which
//! they were started. A command has its *turn* until its task ends. A command of the cartridge that is under
//! way when its task is aborted runs to its end, and the next turn begins after that.
//!
//! The store of a drive holds every file of the cartridge in one address space
//! ([`cartridge::io::FileId::address`]). A flush of the store flushes every file.

use alloc::boxed::Box;

use base::time::Instant;
use cartridge::command::{Command, Outcome, Position, Space, StoredCounts};
use cartridge::error::Error;
use cartridge::io::{FileId, Request};
use scsi::sense::{Asc, Sense, SenseKey, stream_bits};
use store::api::{Failure, Fault, OpAction, OpOutput};

use crate::contract::{NexusId, UnitEvent};
use crate::device_server::DeviceServer;
use crate::fault_injection::{self, Bug};
use crate::library::LibraryEvent;
use crate::tape_drive::{Alert, DriveState, NOT_PRESENT, Overwrite, Running, TapeDrive};
use crate::task::{TaskId, TaskInfo};

impl DeviceServer {
    /// Puts the cartridge of the store, if it has one, into a new drive. Begins to load it, unless another
    /// process uses it and hands the drive over.
    pub(crate) fn install_drive(&mut self, is_handed_over: bool) {
        self.tape = Some(Box::new(TapeDrive::new()));
        if is_handed_over {
            return;
        }
        if self.info.has_medium() {
            self.begin_load(None);
        } else {
            self.empty_drive();
        }
    }

    /// Makes durable what was acknowledged, if no task uses the drive.
    pub(crate) fn synchronize_idle_tape(&mut self) {
        let is_idle = |drive: &&mut Box<TapeDrive>| drive.is_free() && drive.is_unsynchronized();
        if self.tape.as_mut().filter(is_idle).is_some() {
            self.begin_cartridge(Command::Synchronize, Running::Synchronize);
        }
    }

    /// Returns why the cartridge cannot be used now, or `None` if it can or the unit is no tape drive.
    pub(crate) fn tape_not_ready(&self) -> Option<Sense> {
        self.tape.as_ref().and_then(|drive| drive.not_ready())
    }

    /// Returns why the task that has its turn must not use the cartridge: it was loaded, by another nexus or
    /// because it was put in, after the task had been accepted.
    pub(super) fn tape_changed(&self) -> Option<Sense> {
        const CHANGED: Sense = Sense::new(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        let is_outdated = self.tape.as_ref().is_some_and(|drive| drive.is_turn_outdated);
        (is_outdated && !fault_injection::is_injected(Bug::OutdatedTurnRuns)).then_some(CHANGED)
    }

    /// Returns how often a cartridge was unloaded; 0 if the unit is no tape drive.
    pub(crate) fn demounts(&self) -> u32 {
        self.tape.as_ref().map_or(0, |drive| drive.demounts)
    }

    /// Returns whether the cartridge in the drive refuses to be written.
    pub(crate) fn is_cartridge_protected(&self) -> bool {
        self.tape.as_ref().is_some_and(|drive| drive.is_write_protected())
    }

    /// Raises the alert of a command that was refused because nothing can be written on the cartridge.
    pub(crate) fn tape_write_refused(&mut self) {
        if self.tape.is_some() && (self.info.is_read_only() || self.is_cartridge_protected()) {
            self.nexuses.raise_alert(Alert::WriteProtect);
        }
    }

    /// Returns why the cartridge must stay in the drive: a host prevents its removal.
    pub(super) fn removal_prevented(&mut self) -> Option<Sense> {
        let refusal = self.spc.removal.check().err()?;
        if self.tape.as_ref().is_some_and(|drive| drive.is_loaded()) {
            self.nexuses.raise_alert(Alert::NoRemoval);
        }
        Some(refusal)
    }

    /// Lets a task wait for its turn. The task is woken when it has its turn ([`Self::has_turn`]), and before
    /// that when it must request its first data, of `first_data_len` bytes: the turn then waits until
    /// [`Self::turn_data_arrived`].
    pub(super) fn request_turn(&mut self, task: &TaskInfo, first_data_len: u32) {
        let Some(drive) = &mut self.tape else { return };
        drive.waiting.add(task.id, task.nexus, first_data_len);
        self.wake_requesting();
        self.grant_turn();
    }

    fn wake_requesting(&mut self) {
        let Some(drive) = &mut self.tape else { return };
        drive.waiting.requesting().into_iter().for_each(|task| self.wake(task));
    }

    /// Records that the first data of a task that waits for its turn has arrived.
    pub(super) fn turn_data_arrived(&mut self, task: TaskId) {
        if let Some(drive) = &mut self.tape {
            drive.waiting.data_arrived(task);
            self.grant_turn();
        }
    }

    /// Returns whether a task has its turn.
    pub(super) fn has_turn(&self, task: TaskId) -> bool {
        self.tape.as_ref().is_some_and(|drive| drive.turn == Some(task))
    }

    /// Returns the position of the cartridge.
    pub(super) fn tape_position(&self) -> Position {
        self.tape.as_ref().map_or(Position::START, |drive| drive.cartridge().position())
    }

    /// Returns how many bytes of records the cartridge has written and read, as they are stored.
    pub(super) fn stored_counts(&self) -> StoredCounts {
        self.tape.as_ref().map(|drive| drive.cartridge().stored_counts()).unwrap_or_default()
    }

    /// Takes the position back to where it was, before a block that was read and is not passed on.
    pub(super) fn return_tape_to(&mut self, position: Position) {
        if let Some(drive) = &mut self.tape {
            drive.cartridge_mut().return_to(position);
        }
    }

    /// Starts a command of the cartridge for the task that has its turn, which is woken when it has ended.
    pub(super) fn run_cartridge(&mut self, command: Command) {
        let stays =
            matches!(command, Command::Peek | Command::Drain | Command::Synchronize | Command::SaveLabel);
        if let Some(drive) = self.tape.as_mut().filter(|_| !stays) {
            // It was allowed for the position where the drive is, and for the next command.
            drive.overwrite = Overwrite::Disabled;
        }
        let running = match &command {
            Command::Unload => Running::Unload,
            Command::Write(_) | Command::WriteFilemarks { is_immediate: true, .. } | Command::Erase => {
                Running::Write
            }
            Command::WriteFilemarks { .. } | Command::Synchronize | Command::Format { .. } => {
                Running::Synchronize
            }
            _ => Running::Other,
        };
        self.begin_cartridge(command, running);
    }

    /// Begins to load the cartridge, for a host or for the unit itself.
    pub(super) fn begin_load(&mut self, by: Option<NexusId>) {
        let is_writable = !self.info.is_read_only();
        // They are about the cartridge that was loaded before, or about what happened to this one then.
        self.nexuses.clear_alerts();
        if let Some(drive) = &mut self.tape {
            drive.state = DriveState::Loading;
            drive.loss_heard.clear();
            // It was allowed for the cartridge that was loaded before.
            drive.overwrite = Overwrite::Disabled;
        }
        self.begin_cartridge(Command::Load { is_writable }, Running::Load(by));
    }

    pub(super) fn begin_cartridge(&mut self, command: Command, running: Running) {
        let Some(drive) = &mut self.tape else { return };
        drive.running = Some(running);
        drive.cartridge.handle_command(command);
        self.continue_cartridge();
    }

    /// Removes and returns the outcome of the command that the task with its turn has started.
    pub(super) fn take_cartridge_outcome(&mut self) -> Option<Result<Outcome, Error>> {
        self.tape.as_mut()?.outcome.take()
    }

    /// Handles the end of an operation on a file of the cartridge.
    pub(crate) fn cartridge_operation_ended(&mut self, tag: u32, result: Result<OpOutput, Failure>) {
        if let Some(drive) = &mut self.tape
            && let Some(id) = drive.operations.remove(&tag)
        {
            drive.cartridge.handle_completion(id, result);
            self.continue_cartridge();
        }
    }

    /// Submits what the cartridge requests, and handles the end of its command.
    fn continue_cartridge(&mut self) {
        let Some(drive) = &mut self.tape else { return };
        // The next read of a chunk takes it from the pool, or the next data of an initiator.
        while let Some(spare) = drive.cartridge.take_spare() {
            self.pool.recycle_buf(spare);
        }
        while let Some(Request { id, file, action }) = drive.cartridge.poll_request() {
            let Some(action) = at_address(file, action) else {
                drive.cartridge.handle_completion(id, Err(Fault::OutOfRange.into()));
                continue;
            };
            let tag = drive.tag_next;
            drive.tag_next = tag.wrapping_add(1);
            drive.operations.insert(tag, id);
            self.medium.submit(self.now, TaskId::TAPE, tag, action);
        }
        if let Some(result) = drive.cartridge.poll_outcome() {
            self.cartridge_ended(result);
        }
    }

    fn cartridge_ended(&mut self, result: Result<Outcome, Error>) {
        let Some(drive) = &mut self.tape else { return };
        drive.is_reading = matches!(&result, Ok(Outcome::Record(_)));
        let running = drive.running.take();
        // A cartridge can be put in while a task waits for its data in its turn, because the drive is empty.
        let is_unasked_load = matches!(running, Some(Running::Load(None)));
        drive.is_turn_outdated |= is_unasked_load;
        match (running, &result) {
            (Some(Running::Load(by)), result) => {
                drive.state = match result {
                    Ok(_) => DriveState::Loaded,
                    Err(error) => DriveState::Unusable(error_sense(error)),
                };
                drive.is_unsynced = false;
                let is_new = core::mem::take(&mut drive.is_new);
                self.spc.removal.load(true);
                if by.is_some() || is_new {
                    drive.waiting.cartridge_loaded(by);
                    self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, by);
                }
            }
            (Some(Running::Unload), result) => {
                drive.state = DriveState::Unloaded;
                drive.is_unsynced = false;
                let is_untold = drive.turn.is_none();
                self.spc.removal.eject();
                if let Err(error) = result
                    && is_untold
                {
                    self.untold_loss(error);
                }
            }
            (Some(Running::Eject), result) => {
                let failure = result.as_ref().err().cloned();
                self.unloaded_for_eject(failure);
            }
            (Some(Running::Write), _) => drive.is_unsynced = true,
            (Some(Running::Synchronize), Ok(_)) => drive.is_unsynced = false,
            // Some of the filemarks are in the buffer.
            (Some(Running::Synchronize), Err(Error::EndOfPartition | Error::StorageFull)) => {
                drive.is_unsynced = true;
            }
            _ => {}
        }
        let Some(drive) = &mut self.tape else { return };
        if let Some(task) = drive.turn.filter(|_| !is_unasked_load) {
            drive.outcome = Some(result);
            self.wake(task);
        }
        self.grant_turn();
    }

    /// Keeps the error of an unload whose task is gone. If the unit is not removed, the next host that uses
    /// the drive is told.
    pub(super) fn untold_loss(&mut self, error: &Error) {
        let sense = self.cartridge_failure(error);
        let is_removed = self.is_retiring();
        if let Some(drive) = &mut self.tape {
            drive.is_close_failed |= is_removed;
            if !is_removed {
                drive.deferred.record_unload(sense);
            }
        }
    }

    /// Ends the turn of a task that has ended, or its waiting.
    pub(crate) fn end_turn(&mut self, task: TaskId) {
        let Some(drive) = &mut self.tape else { return };
        drive.waiting.remove(task);
        // It did not end with GOOD.
        if let Some(nexus) = drive.repositioning.remove(&task) {
            drive.lost_positions.insert(nexus);
        }
        if let Some(nexus) = drive.immediate.remove(&task) {
            drive.immediate_aborted(nexus);
        }
        if drive.turn == Some(task) {
            drive.turn = None;
            drive.outcome = None;
            drive.is_write_aborted |= !core::mem::take(&mut drive.is_turn_over);
        }
        self.wake_requesting();
        self.grant_turn();
    }

    pub(super) fn grant_turn(&mut self) {
        let Some(drive) = self.tape.as_mut().filter(|drive| drive.is_free()) else { return };
        if core::mem::take(&mut drive.is_write_aborted) && drive.is_loaded() && drive.cartridge.is_unfiled() {
            // No host hears of what does not fit: nothing of it was acknowledged.
            return self.begin_cartridge(Command::Drain, Running::Write);
        }
        if drive.is_ejecting {
            // A host may have prevented it since.
            if !drive.is_loaded() {
                return self.unload_for_eject();
            }
            let Some(sense) = self.removal_prevented() else { return self.unload_for_eject() };
            if let Some(drive) = &mut self.tape {
                drive.is_ejecting = false;
            }
            self.emit(UnitEvent::Library(LibraryEvent::Ejected(Err(sense))));
            return self.grant_turn();
        }
        if core::mem::take(&mut drive.sync_wanted) && drive.is_loaded() && drive.is_unsynced {
            return self.begin_cartridge(Command::Synchronize, Running::Synchronize);
        }
        if let Some((next, is_outdated)) = drive.waiting.take_next() {
            drive.turn = Some(next);
            drive.is_turn_outdated = is_outdated;
            self.wake(next);
            self.wake_requesting();
        }
    }

    /// Returns when to call [`Self::check_ahead`]: at once, if a record was read and no task uses the drive.
    /// What the initiator waits for is sent before.
    pub(crate) fn check_ahead_at(&self) -> Option<Instant> {
        self.tape.as_ref().is_some_and(|drive| drive.is_reading && drive.is_free()).then_some(self.now)
    }

    /// Checks the record that is likely to be read next.
    pub(crate) fn check_ahead(&mut self) {
        if self.check_ahead_at().is_some()
            && let Some(drive) = &mut self.tape
        {
            drive.is_reading = false;
            drive.cartridge.check_ahead();
        }
    }

    /// Makes durable what was acknowledged, because a host is gone that could still request it.
    pub(crate) fn synchronize_tape(&mut self) {
        if let Some(drive) = &mut self.tape {
            drive.sync_wanted = true;
            self.grant_turn();
        }
    }

    /// Unloads the cartridge of a unit that is removed. Returns whether that has begun.
    pub(crate) fn close_tape(&mut self) -> bool {
        let Some(drive) = self.tape.as_mut().filter(|drive| drive.is_loaded() && drive.is_free()) else {
            return false;
        };
        drive.state = DriveState::Unloaded;
        self.begin_cartridge(Command::Unload, Running::Unload);
        true
    }

    /// Records that a nexus is told of writes that were lost.
    pub(super) fn loss_is_heard(&mut self, nexus: NexusId) {
        if let Some(drive) = &mut self.tape {
            drive.loss_heard.insert(nexus);
        }
    }

    /// Returns the sense data of writes that were lost, if another nexus was told of them and this one was
    /// not: they may have been its own.
    pub(super) fn unheard_loss(&mut self, nexus: NexusId) -> Option<Sense> {
        let drive = self.tape.as_mut()?;
        let sense = error_sense(drive.cartridge.told_loss()?);
        drive.loss_heard.insert(nexus).then_some(sense)
    }

    /// Returns the sense data of an error of the cartridge, and raises the alert that belongs to it.
    pub(super) fn cartridge_failure(&mut self, error: &Error) -> Sense {
        let alerts: &[Alert] = match error {
            Error::Damaged { .. } | Error::DamagedLog | Error::Read(_) => {
                &[Alert::HardError, Alert::Media, Alert::ReadFailure]
            }
            // The cartridge is as good as before.
            Error::WriteLost { failure, .. } | Error::LabelWrite(failure)
                if failure.fault == Fault::NoSpace =>
            {
                &[]
            }
            Error::WriteLost { .. } | Error::LabelWrite(_) => {
                &[Alert::HardError, Alert::Media, Alert::WriteFailure]
            }
            Error::WriteProtected => &[Alert::WriteProtect],
            Error::Worm => &[Alert::WormOverwrite],
            _ => &[],
        };
        if matches!(error, Error::WriteLost { .. })
            && let Some(drive) = &mut self.tape
        {
            drive.cartridge.loss_told();
        }
        let is_reading = matches!(error, Error::Damaged { .. } | Error::DamagedLog | Error::Read(_));
        let is_writing = matches!(error, Error::WriteLost { .. } | Error::LabelWrite(_));
        self.errors.reading = self.errors.reading.saturating_add(u64::from(is_reading));
        self.errors.writing = self.errors.writing.saturating_add(u64::from(is_writing));
        if is_reading || is_writing || matches!(error, Error::StorageFull) {
            self.stats.medium_failures = self.stats.medium_failures.saturating_add(1);
        }
        alerts.iter().for_each(|alert| self.nexuses.raise_alert(*alert));
        error_sense(error)
    }
}

/// Returns an operation on a file as one on the store. `None` if the store has no such bytes.
fn at_address(file: FileId, mut action: OpAction) -> Option<OpAction> {
    match &mut action {
        OpAction::Read { at, .. }
        | OpAction::Write { at, .. }
        | OpAction::Deallocate { at, .. }
        | OpAction::WriteZeroes { at, .. }
        | OpAction::MapStatus { at, .. } => *at = file.address(*at)?,
        OpAction::Flush => {}
        OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => return None,
    }
    Some(action)
}

/// Returns the sense data of an error of the cartridge.
pub(super) fn error_sense(error: &Error) -> Sense {
    let medium = |asc| Sense::new(SenseKey::MEDIUM_ERROR, asc);
    match error {
        Error::NotLoaded => NOT_PRESENT,
        Error::AlreadyLoaded | Error::Misuse => {
            Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)
        }
        Error::NoLabel => medium(Asc::CANNOT_READ_MEDIUM_UNKNOWN_FORMAT),
        Error::UnknownVersion(_) => medium(Asc::CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT),
        Error::ImpossibleLabel => medium(Asc::MEDIUM_FORMAT_CORRUPTED),
        Error::WriteProtected => Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED),
        Error::Worm => Sense::new(SenseKey::DATA_PROTECT, Asc::WORM_OVERWRITE_ATTEMPTED),
        Error::NoPartition | Error::RecordLen => Sense::illegal(Asc::INVALID_FIELD_IN_CDB),
        Error::EndOfPartition | Error::StorageFull => END_OF_PARTITION,
        Error::Damaged { .. } | Error::DamagedLog | Error::Read(_) => medium(Asc::UNRECOVERED_READ_ERROR),
        // The record was acknowledged before. WRITE knows when it was not.
        Error::WriteLost { failure, .. } => write_failure(failure).as_deferred(),
        Error::LabelWrite(failure) => write_failure(failure),
        Error::PartitionSizes | Error::Attribute(_) => Sense::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        Error::EpochsExhausted => medium(Asc::WRITE_ERROR),
    }
}

fn write_failure(failure: &Failure) -> Sense {
    match failure.fault {
        Fault::NoSpace => END_OF_PARTITION,
        Fault::ReadOnly => Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED),
        _ => Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR),
    }
}

/// The space of the partition when a command began, and the programmable early warning zone (PEWS) in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyWarning {
    before: Option<Space>,
    zone: u64,
}

impl EarlyWarning {
    /// Records the position where a command begins to write.
    pub(super) fn new(server: &DeviceServer) -> Self {
        let before = server.tape.as_ref().and_then(|drive| drive.cartridge().space());
        Self { before, zone: server.settings.stream.early_warning_zone() }
    }

    /// Returns whether a position is in the programmable early warning zone, or behind it. Without PEWS there
    /// is none.
    pub(super) fn is_behind(self, space: Space) -> bool {
        self.zone > 0 && space.remaining <= space.early_warning_len.saturating_add(self.zone)
    }

    /// Returns the sense data of a command that wrote everything, if the position has come into the
    /// programmable early warning zone, or is behind the early warning. The programmable one comes first,
    /// also if the command wrote beyond both.
    pub(super) fn sense(self, space: Space) -> Option<Sense> {
        let was_before = self.before.is_some_and(|before| !self.is_behind(before));
        let asc = if was_before && self.is_behind(space) {
            Asc::PROGRAMMABLE_EARLY_WARNING
        } else if space.is_early_warning {
            Asc::END_OF_PARTITION
        } else {
            return None;
        };
        let sense = Sense::new(SenseKey::NO_SENSE, asc);
        Some(sense.with_stream_bits(stream_bits::EOM).with_information(0))
    }
}

const END_OF_PARTITION: Sense =
    Sense::new(SenseKey::VOLUME_OVERFLOW, Asc::END_OF_PARTITION).with_stream_bits(stream_bits::EOM);
