//! A logical unit: it accepts commands and task management functions, and returns events.
//!
//! # Order of calls
//!
//! After any call that takes `&mut self`, drain [`LogicalUnit::poll`] until it returns `None`. When the
//! medium reports completions, call [`LogicalUnit::store_ready`].

mod checks;
mod delay;
mod handover;
mod medium_change;
mod passed_command;
pub mod reservations;
mod response;
mod task_execution;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::buffer::{DataList, Pool};
use base::time::{Duration, Instant};
use base::units::{BlockSize, Blocks};
use scsi::sense::Asc;
use store::Store;
use store::api::DeviceInfo;

use crate::contract::{
    Access, Command, DataOutFault, DeviceKind, Nexus, NexusId, TaskKey, ThirdPartyCaller, ThirdPartyRequest,
    ThirdPartyResult, Tmf, TmfKey, TmfOutcome, UnitConfig, UnitEvent,
};
use crate::copy;
use crate::device_server::DeviceServer;
use crate::device_server::command_set::CommandSet;
use crate::device_server::table::Table;
use crate::fault_injection::{self, Bug};
use crate::inquiry::unit_designators;
use crate::library::LibraryInput;
use crate::mmc;
use crate::pass_through;
use crate::passed_device::PassedDevice;
use crate::persistent_state::{self, PersistentState};
use crate::pr::PersistentReservations;
use crate::sbc;
use crate::slow_command::SlowCommand;
use crate::smc;
use crate::spc;
use crate::spc_state::SpcState;
use crate::ssc;
use crate::state_decode_error::StateDecodeError;
use crate::stats::UnitStats;
use crate::task::{Origin, TaskId, TaskInfo};
use crate::task_set::{AbortReport, AbortWait, TaskSet};
use crate::throttle::Throttle;

/// A logical unit.
pub struct LogicalUnit {
    pub(crate) server: DeviceServer,
    pub(crate) tasks: TaskSet,
    /// Task management functions that wait until the tasks they aborted are removed.
    pending_tmfs: VecDeque<PendingTmf>,
    /// Tasks that wait until other tasks, which they aborted, are removed.
    waiting_for_aborts: Vec<TaskId>,
    /// What the operator's last removal of reservations waits for: the tasks that it aborted, and those that
    /// were aborted before.
    removal_wait: Option<AbortWait>,
    /// When to check for operations of the medium that take too long.
    io_deadline: Option<Instant>,
    /// The tasks that limits delay; `None` if neither the unit nor a nexus had a limit so far.
    throttle: Option<Box<Throttle>>,
}

/// A task management function whose outcome is known and not yet answered.
struct PendingTmf {
    key: TmfKey,
    nexus: NexusId,
    outcome: TmfOutcome,
    /// The function is answered when the tasks that it aborted are removed. It waits for no other tasks: a
    /// hanging task of another nexus must not delay the functions of this nexus.
    wait: AbortWait,
}

/// Why a logical unit cannot be made of a configuration and a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitError {
    /// The medium holds less than one block.
    TooSmall,
    /// The logical blocks of a disc have 2048 bytes.
    DiscBlockLength,
    /// The medium must be read and written in units larger than a logical block.
    BlockTooSmall,
    /// A pass-through needs a medium that is a device.
    NotADevice,
    /// The saved state of the unit cannot be read.
    SavedState(StateDecodeError),
}

impl core::fmt::Display for UnitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::SavedState(fault) => return write!(f, "saved state: {fault}"),
            Self::DiscBlockLength => "the logical blocks of a disc have 2048 bytes",
            Self::NotADevice => "the medium is no device that commands can be passed to",
            Self::TooSmall => "medium holds less than one logical block",
            Self::BlockTooSmall => "logical block is smaller than what the medium can write",
        })
    }
}

impl core::error::Error for UnitError {}

/// The kind of reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reset {
    /// LOGICAL UNIT RESET.
    LogicalUnit,
    /// TARGET WARM RESET or TARGET COLD RESET.
    Target,
}

impl LogicalUnit {
    /// Creates a unit from a medium and from the state that the last [`UnitEvent::SaveState`] had stored, if
    /// any. The unit serves no initiator until a nexus is established.
    ///
    /// # Errors
    /// [`UnitError`] when configuration and medium do not fit, or the saved state cannot be read. In the
    /// latter case [`Self::new_without_reservations`] creates a unit that waits until an application client
    /// sets the reservations again.
    pub fn new(
        config: UnitConfig,
        store: Box<dyn Store>,
        saved: Option<&[u8]>,
        pool: Pool,
    ) -> Result<Self, UnitError> {
        let saved = persistent_state::decode(saved.unwrap_or_default()).map_err(UnitError::SavedState)?;
        Self::with_state(config, store, SpcState::new(saved), pool, false)
    }

    /// Creates a unit that takes over the state of another process, which still serves it, by
    /// [`Self::restore`] and before anything else. Its reservations and settings come with that state. A tape
    /// drive does nothing on its cartridge.
    ///
    /// # Errors
    /// [`UnitError`] when configuration and medium do not fit.
    pub fn new_to_restore(config: UnitConfig, store: Box<dyn Store>, pool: Pool) -> Result<Self, UnitError> {
        Self::with_state(config, store, SpcState::new(PersistentState::nothing()), pool, true)
    }

    /// Creates a unit whose saved state is lost. The unit refuses nearly every command with PERSISTENT
    /// RESERVATION INFORMATION LOST until an application client sends REPLACE LOST RESERVATION
    /// (SPC-5 §5.14.5): to serve without knowing which initiators were fenced would be worse.
    ///
    /// # Errors
    /// [`UnitError`] when configuration and medium do not fit.
    pub fn new_without_reservations(
        config: UnitConfig,
        store: Box<dyn Store>,
        pool: Pool,
    ) -> Result<Self, UnitError> {
        let saved =
            PersistentState { reservations: PersistentReservations::lost(), ..PersistentState::nothing() };
        Self::with_state(config, store, SpcState::new(saved), pool, false)
    }

    fn with_state(
        config: UnitConfig,
        store: Box<dyn Store>,
        state: SpcState,
        pool: Pool,
        is_handed_over: bool,
    ) -> Result<Self, UnitError> {
        let profile = store.capabilities();
        let device = store.device();
        let set = command_set(config.device, device);
        let is_disc = matches!(config.device, DeviceKind::Disc { .. });
        if is_disc && config.block_size != BlockSize::B2048 {
            return Err(UnitError::DiscBlockLength);
        }
        let is_tape = config.device == DeviceKind::Tape;
        let is_pass_through = matches!(config.device, DeviceKind::PassThrough { .. });
        if is_pass_through && device.is_none() {
            return Err(UnitError::NotADevice);
        }
        let is_changer = config.device == DeviceKind::Changer;
        let may_be_empty = is_disc || is_tape || is_changer || is_pass_through;
        if !may_be_empty && profile.len < u64::from(config.block_size.bytes()) {
            return Err(UnitError::TooSmall);
        }
        if !config.block_size.bytes().is_multiple_of(profile.logical_block_len.max(1)) {
            return Err(UnitError::BlockTooSmall);
        }
        let tasks = TaskSet::new(config.task_set_max, config.tasks.nexus_task_sets);
        let limit = config.limit;
        let mut server = DeviceServer::new(config, store, state, pool, (set, table(set)));
        if is_disc {
            server.spc.removal.add_tray();
            server.adopt_disc();
            server.spc.removal.load(server.info.has_medium());
        }
        if is_tape {
            server.install_drive(is_handed_over);
        }
        if is_changer {
            server.changer = Some(Box::default());
        }
        if let (true, Some(device)) = (is_pass_through, device) {
            server.pass_through = Some(Box::new(PassedDevice::new(device)));
        }
        server.settings = server.power_on_settings();
        server.resume_sanitizing();
        Ok(Self {
            server,
            tasks,
            pending_tmfs: VecDeque::new(),
            waiting_for_aborts: Vec::new(),
            removal_wait: None,
            io_deadline: None,
            throttle: (!limit.is_none()).then(|| Box::new(Throttle::new(Instant::ORIGIN, limit))),
        })
    }

    /// Returns whether a designator of VPD page 83h with these CODE SET and DESIGNATOR TYPE names this unit.
    pub fn is_designated_by(&self, code_set: u8, kind: u8, designator: &[u8]) -> bool {
        unit_designators(&self.server.info.config.identity)
            .iter()
            .any(|own| (own.code_set.0, own.kind.0) == (code_set, kind) && own.bytes == designator)
    }

    /// Passes in 32 bytes from the operating system's random generator. The secrets of ROD tokens, and the
    /// nonces of a tape drive, are derived from them. A unit without a seed creates no tokens, encrypts
    /// nothing and supports no command for either.
    pub fn seed(&mut self, entropy: &[u8; 32]) {
        self.server.copy_manager.seed(entropy);
        if let Some(drive) = &mut self.server.tape {
            drive.encryption.seed(entropy);
        }
        self.server.info.makes_tokens = true;
    }

    /// Records a new nexus. The nexus first receives a unit attention.
    pub fn nexus_established(&mut self, now: Instant, nexus: Nexus) {
        self.server.now = now;
        self.limit_nexus(&nexus);
        self.server.nexuses.establish(nexus);
        self.server.refresh_pr_roles();
    }

    /// Replaces the description of a nexus, when its units or its access changed. A command of the nexus that
    /// its new access does not admit ends when the next part of its data arrives.
    pub fn nexus_changed(&mut self, now: Instant, nexus: Nexus) {
        self.server.now = now;
        let id = nexus.id;
        let before = self.server.nexuses.find(id).map(|state| &state.nexus);
        let luns_changed = before.is_some_and(|before| before.luns != nexus.luns);
        // The device-specific parameter of mode parameter headers tells the access (SBC-4 §6.5.1).
        let access_changed = before.is_some_and(|before| before.access != nexus.access);
        if nexus.access == Access::ReadOnly {
            self.server.spc.release_holds(id);
            self.server.forget_keys_of_reservations(None, None);
        }
        self.limit_nexus(&nexus);
        self.server.nexuses.establish(nexus);
        self.server.refresh_pr_roles();
        if access_changed {
            self.server.nexuses.establish_ua(id, Asc::MODE_PARAMETERS_CHANGED);
        }
        if luns_changed {
            self.server.nexuses.establish_ua(id, Asc::REPORTED_LUNS_DATA_HAS_CHANGED);
        }
    }

    /// Establishes the unit attention for changed LUN data for one nexus. A LUN can lead to another unit
    /// although the LUNs are the same.
    pub fn luns_changed(&mut self, id: NexusId) {
        self.server.nexuses.establish_ua(id, Asc::REPORTED_LUNS_DATA_HAS_CHANGED);
    }

    /// Records the loss of a nexus. Aborts its tasks; no later event names their keys.
    pub fn nexus_lost(&mut self, now: Instant, id: NexusId) {
        self.server.now = now;
        for task in self.tasks.select_live(|task| task.nexus == id) {
            self.abort(task, AbortReport::Unreported);
        }
        self.tasks.forget_keys_of(id);
        self.forget_queue(id);
        self.server.nexus_was_lost(id);
        self.server.nexuses.lose(id);
        self.server.refresh_pr_roles();
        self.server.synchronize_tape();
        self.process_pending();
    }

    /// Records that a nexus no longer sees this unit although the nexus itself remains. The unit answers the
    /// tasks of the nexus, and every later command under that LUN, with LOGICAL UNIT NOT SUPPORTED. It
    /// answers the nexus' task management functions with the outcome they have reached.
    ///
    /// The unit does not wait for the operations of the medium for these tasks. They end on their own, and
    /// keep their buffers and the ranges that they change until then.
    pub fn nexus_withdrawn(&mut self, now: Instant, id: NexusId) {
        if fault_injection::is_injected(Bug::RemovalForgetsCommands) {
            return self.nexus_lost(now, id);
        }
        self.server.now = now;
        self.withdraw_tasks(|task| task.nexus == id);
        self.answer_functions(|managing| managing.nexus == id);
        self.forget_queue(id);
        self.server.nexus_was_lost(id);
        self.server.nexuses.lose(id);
        self.server.refresh_pr_roles();
        self.server.synchronize_tape();
        self.process_pending();
    }

    /// Records that the unit is removed: no initiator reaches it any more. Every task and function is
    /// answered, as by [`Self::nexus_withdrawn`]; [`Self::is_retired`] returns whether the medium has ended
    /// all its operations.
    ///
    /// A task that waits for a call to another unit, or for its state to be stored, is answered when that has
    /// ended.
    pub fn retire(&mut self, now: Instant) {
        self.server.now = now;
        self.server.retire();
        self.withdraw_tasks(|_| true);
        self.answer_functions(|_| true);
        self.process_pending();
    }

    /// Returns whether a retired unit has no task, no operation of the medium and no state to save left, so
    /// that its medium can be closed and its saved state read.
    pub fn is_retired(&self) -> bool {
        let is_saved = self.server.saves.is_idle();
        self.server.is_retired() && self.tasks.len() == 0 && self.server.medium.is_idle() && is_saved
    }

    /// Returns whether a removed drive, for tapes or discs, could not make durable what hosts had written.
    pub fn has_lost_writes(&self) -> bool {
        self.server.tape.as_ref().is_some_and(|drive| drive.has_untold_loss())
            || self.server.recorder.as_ref().is_some_and(|disc| disc.has_unsaved())
    }

    /// Returns whether a SANITIZE or FORMAT UNIT is under way that a unit with the saved state begins again.
    pub fn is_sanitizing(&self) -> bool {
        self.server.spc.sanitize_journal.as_ref().is_some_and(|journal| !journal.is_failure())
    }

    /// Executes a command.
    pub fn execute(&mut self, now: Instant, command: Command) {
        self.server.now = now;
        self.server.stats.commands += 1;
        let info = TaskInfo::new(Origin::Transport(command.key), command.nexus, command.cdb)
            .with_level(command.level)
            .with_arrival(now)
            .with_attribute(command.attribute)
            .with_lengths(command.data_in_len, command.data_out_len);
        self.admit(info);
        self.process_pending();
    }

    /// Passes in bytes that a [`UnitEvent::FetchDataOut`] requested, or the reason why they were not
    /// received. Bytes for a task that no longer exists are discarded.
    pub fn data_out(
        &mut self,
        now: Instant,
        key: TaskKey,
        offset: u32,
        data: Result<DataList, DataOutFault>,
    ) {
        self.server.now = now;
        match self.tasks.find_key(key) {
            Some(id) => self.data_arrived(id, offset, data),
            None => data.into_iter().for_each(|data| self.server.recycle(data)),
        }
        self.process_pending();
    }

    /// Performs a task management function; [`UnitEvent::TmfComplete`] answers when its effects are complete.
    pub fn execute_tmf(&mut self, now: Instant, nexus: NexusId, key: TmfKey, function: Tmf) {
        self.server.now = now;
        let (outcome, aborted) = self.run_tmf(nexus, function);
        let wait = self.tasks.wait_for(&aborted);
        self.pending_tmfs.push_back(PendingTmf { key, nexus, outcome, wait });
        self.process_pending();
    }

    /// Records that the transport dropped a task: the task is aborted, no later event names its key, and the
    /// transport may use the key again at once.
    pub fn task_gone(&mut self, now: Instant, key: TaskKey) {
        self.server.now = now;
        if let Some(id) = self.tasks.find_key(key) {
            self.abort(id, AbortReport::Unreported);
            self.tasks.forget_key(id);
        }
        self.process_pending();
    }

    /// Records that the transport ended tasks of a nexus without a response. A unit attention with this code
    /// tells the nexus.
    pub fn tasks_cleared(&mut self, now: Instant, id: NexusId, code: Asc) {
        self.server.now = now;
        self.server.nexuses.establish_ua(id, code);
    }

    /// Executes a request of a copy manager as if `nexus` had sent it; [`UnitEvent::ThirdPartyReply`]
    /// answers.
    pub fn execute_third_party(
        &mut self,
        now: Instant,
        caller: ThirdPartyCaller,
        nexus: NexusId,
        request: ThirdPartyRequest,
    ) {
        self.server.now = now;
        self.admit_third_party(caller, nexus, request);
        self.process_pending();
    }

    /// Handles the answer to a [`UnitEvent::ThirdPartyCall`].
    pub fn third_party_reply(&mut self, now: Instant, call: u32, result: ThirdPartyResult) {
        self.server.now = now;
        if let Some(id) = self.server.take_call(call) {
            self.third_party_replied(id, call, result);
        }
        self.process_pending();
    }

    /// Records that the state of a [`UnitEvent::SaveState`] is stored durably, or could not be stored.
    pub fn state_saved(&mut self, now: Instant, ticket: u64, ok: bool) {
        self.server.now = now;
        self.finish_save(ticket, ok);
        self.process_pending();
    }

    /// Collects completions of the medium.
    pub fn store_ready(&mut self, now: Instant) {
        self.server.now = now;
        self.process_pending();
    }

    /// Resets the unit. Every nexus receives the unit attention for it.
    pub fn reset(&mut self, now: Instant, why: Reset) {
        self.server.now = now;
        self.reset_for(None, why);
        self.process_pending();
    }

    /// Applies a changed configuration. Every nexus receives a unit attention for changed INQUIRY data or
    /// mode parameters. The block size does not change.
    pub fn reconfigure(&mut self, now: Instant, config: UnitConfig) {
        self.server.now = now;
        self.tasks.reconfigure(config.task_set_max, config.tasks.nexus_task_sets);
        self.limit_unit(config.limit);
        self.server.reconfigure(config);
        self.process_pending();
    }

    /// Handles what the owner of a library tells its changer, or a drive in it.
    pub fn library_input(&mut self, now: Instant, input: LibraryInput) {
        self.server.now = now;
        match input {
            LibraryInput::Eject => self.server.eject_cartridge(),
            LibraryInput::Inserted => self.server.cartridge_inserted(),
            input => self.server.changer_input(input),
        }
        self.process_pending();
    }

    /// Returns how many results of motions the changer keeps for their tasks.
    #[cfg(test)]
    pub(crate) fn motions_kept(&self) -> usize {
        self.server.changer.as_ref().map_or(0, |changer| changer.ended.len())
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<UnitEvent> {
        self.server.poll_event()
    }

    /// Returns when to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sanitizer = self.server.sanitizer.poll_timeout(self.server.info.capabilities.len);
        let delay = self.throttle.as_ref().and_then(|limits| limits.poll_timeout());
        [sanitizer, self.io_deadline, delay, self.server.check_ahead_at()].into_iter().flatten().min()
    }

    /// Handles the expiry of the deadline.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.server.now = now;
        self.server.continue_sanitizing();
        self.server.check_ahead();
        if self.io_deadline.is_some_and(|at| at <= now) {
            self.expire_operations();
        }
        self.process_pending();
    }

    /// Returns the counters of the unit.
    pub fn stats(&self) -> UnitStats {
        let tasks = u64::try_from(self.tasks.len()).unwrap_or(u64::MAX);
        let waiting = self.throttle.as_ref().map_or(0, |limits| limits.waiting());
        UnitStats { tasks, waiting, ..self.server.stats }
    }

    /// Sets from which time on a command is slow; `None` for no limit.
    pub fn set_slow_limit(&mut self, limit: Option<Duration>) {
        self.server.slow.limit = limit;
    }

    /// Returns a slow command to report, at most one in a second.
    pub fn take_slow_command(&mut self) -> Option<SlowCommand> {
        self.server.slow.report.take()
    }

    /// Returns the configuration in use.
    pub const fn config(&self) -> &UnitConfig {
        &self.server.info.config
    }

    /// Returns the capacity in logical blocks.
    pub const fn capacity(&self) -> Blocks {
        self.server.info.capacity()
    }

    /// Returns the logical block size.
    pub const fn block_size(&self) -> BlockSize {
        self.server.info.block_size()
    }
}

fn command_set(kind: DeviceKind, device: Option<DeviceInfo>) -> &'static CommandSet {
    match kind {
        DeviceKind::PassThrough { .. } => {
            pass_through::command_set(device.map_or(0x1f, |device| device.kind))
        }
        DeviceKind::Disk => &sbc::COMMAND_SET,
        DeviceKind::Disc { .. } => &mmc::COMMAND_SET,
        DeviceKind::Tape => &ssc::COMMAND_SET,
        DeviceKind::Changer => &smc::COMMAND_SET,
    }
}

/// Returns the table of every command of a device type.
pub(crate) fn table(set: &CommandSet) -> Table {
    let copies = if set.third_party_copy { copy::ROWS } else { &[] };
    let passed = if set.fallback.is_some() { pass_through::COMMON_ROWS } else { &[] };
    let table = Table::new(&[spc::ROWS, passed, set.rows, copies]).with_fallback(set.fallback);
    if set.ignores_obsolete_bits { table.without_obsolete_bits() } else { table }
}

#[cfg(test)]
mod tests;
