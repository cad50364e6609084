//! The working state of the device server: everything that handlers and jobs use besides their own task.

pub(crate) mod command_set;
mod handover;
pub(crate) mod medium_change;
pub(crate) mod medium_failure;
pub(crate) mod outcome;
mod slow_commands;
pub(crate) mod table;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList, Pool};
use base::int_cast::to_u64;
use base::time::{Duration, Instant};
use base::units::{BlockSize, Blocks, ByteLen};
use scsi::sense::{Asc, Sense, SenseKey};
use security::Level;
use store::Store;
use store::api::{Capabilities, Durability, Fault, OpAction};

use crate::changer::Changer;
use crate::contract::{
    Access, NexusId, TaskRules, ThirdPartyCall, ThirdPartyCaller, ThirdPartyRequest, ThirdPartyResult,
    ThirdPartyUnit, UnitConfig, UnitEvent,
};
use crate::copy_manager::CopyManager;
use crate::disc_record::WritableKind;
use crate::drain::Drain;
use crate::fault_injection::{self, Bug};
use crate::log::ErrorCounts;
use crate::medium::{self, EndedOp, MediumAccess};
use crate::medium_removal::MediaEvent;
use crate::nexus::Nexuses;
use crate::orw_generation::OrwGenerations;
use crate::passed_device::PassedDevice;
use crate::pr::operator::OperatorRemoval;
use crate::range_lock::ByteRange;
use crate::recorder::Recorder;
use crate::sanitizer::Sanitizer;
use crate::save_queue::SaveQueue;
use crate::settings::Settings;
use crate::slow_command::SlowCommands;
use crate::space_threshold::KnownThreshold;
use crate::spc_state::SpcState;
use crate::stats::UnitStats;
use crate::tape_drive::TapeDrive;
use crate::task::{Origin, TaskId, TaskInfo};
use command_set::CommandSet;
use outcome::{Job, SpawnedJob};
use table::Table;

/// The properties of a unit that are fixed between two reconfigurations.
pub(crate) struct UnitInfo {
    /// The configuration from the administrator.
    pub(crate) config: UnitConfig,
    /// The capabilities of the medium.
    pub(crate) capabilities: Capabilities,
    /// The kind of the writable disc that is in a drive for discs, if one is.
    pub(crate) writable: Option<WritableKind>,
    /// Whether the medium reports how much storage it uses.
    pub(crate) tells_space: bool,
    /// Whether the unit creates ROD tokens, and a tape drive encrypts: secrets and nonces need a seed.
    pub(crate) makes_tokens: bool,
}

impl UnitInfo {
    /// Returns the logical block size.
    pub(crate) const fn block_size(&self) -> BlockSize {
        self.config.block_size
    }

    /// Returns the logical block size as a length in memory.
    pub(crate) const fn block_len(&self) -> usize {
        1 << self.config.block_size.shift()
    }

    /// Returns the capacity in logical blocks.
    pub(crate) const fn capacity(&self) -> Blocks {
        self.config.block_size.whole_blocks_in(ByteLen(self.capabilities.len))
    }

    /// Returns whether the store holds a medium. That of a disk always does. Nothing can be read from a blank
    /// disc.
    pub(crate) const fn has_medium(&self) -> bool {
        self.capacity().0 > 0 || self.writable.is_some()
    }

    /// Returns whether the unit is thinly provisioned: the configuration asks for it and the medium supports
    /// it.
    pub(crate) const fn is_thin(&self) -> bool {
        self.config.thin && self.capabilities.thin
    }

    /// Returns whether no nexus can ever write.
    pub(crate) const fn is_read_only(&self) -> bool {
        self.config.read_only || self.capabilities.read_only
    }
}

/// The state that handlers and jobs work with.
pub(crate) struct DeviceServer {
    /// The time of the call that is being handled.
    pub(crate) now: Instant,
    /// The fixed properties of the unit.
    pub(crate) info: UnitInfo,
    /// The settings that application clients can change.
    pub(crate) settings: Settings,
    /// The state of the commands that every device type has.
    pub(crate) spc: SpcState,
    /// The SANITIZE or FORMAT UNIT operation, which outlives its command.
    pub(crate) sanitizer: Sanitizer,
    pub(crate) orw_generations: OrwGenerations,
    /// The nexuses that reach this unit.
    pub(crate) nexuses: Nexuses,
    /// The drive, if the unit is a tape drive.
    pub(crate) tape: Option<Box<TapeDrive>>,
    /// The writable disc that is in a drive for discs, if one is.
    pub(crate) recorder: Option<Box<Recorder>>,
    /// The changer, if the unit is one.
    pub(crate) changer: Option<Box<Changer>>,
    /// The device that commands are passed to, if the unit is a pass-through.
    pub(crate) pass_through: Option<Box<PassedDevice>>,
    /// What the device type of the unit brings.
    pub(crate) command_set: &'static CommandSet,
    /// Every command.
    pub(crate) table: Table,
    /// The source of buffers.
    pub(crate) pool: Pool,
    /// Counters.
    pub(crate) stats: UnitStats,
    pub(crate) slow: SlowCommands,
    pub(crate) medium: MediumAccess,
    /// The copy manager.
    pub(crate) copy_manager: CopyManager,
    /// Jobs that continue after their command was answered.
    spawned: VecDeque<SpawnedJob>,
    events: VecDeque<UnitEvent>,
    /// Data-Out requests of third-party tasks: their data was received together with the request.
    peer_fetches: VecDeque<(TaskId, u32, u32)>,
    /// Tasks to be informed of an event that they wait for.
    woken: VecDeque<TaskId>,
    /// Operations refused before they were submitted to the medium.
    refused: VecDeque<(TaskId, u32)>,
    /// Calls of other units that are not answered yet.
    calls: BTreeMap<u32, TaskId>,
    call_next: u32,
    /// Whether the medium is withheld: it is not the same as before, and the operator has not confirmed that
    /// this is right.
    withheld: bool,
    /// How far the operator's drain of the unit is. In a drain, tasks end, and no new one uses the medium.
    drain: Drain,
    /// Whether a flush has failed: writes acknowledged before it may be lost, so no later flush can guarantee
    /// them.
    flush_failed: bool,
    /// The values of the error counter log pages.
    pub(crate) errors: ErrorCounts,
    /// How long the unit had no task, up to `idle_since`.
    idle: Duration,
    /// Since when the unit has no task.
    idle_since: Option<Instant>,
    /// How much storage the medium used when it ran out of space, if every nexus has been informed of that;
    /// `u64::MAX` while that is not measured.
    full_at: Option<u64>,
    /// When the storage that the unit shares with others counts as short, if its owner knows.
    pub(crate) space_threshold: Option<KnownThreshold>,
    /// The state change that is being stored, and the tasks that wait to make one.
    pub(crate) saves: SaveQueue,
    /// How far the operator's last change of the reservations is.
    pub(crate) operator_removal: OperatorRemoval,
    /// Tasks that disable the write cache. While there is one, every write is durable when it is
    /// acknowledged.
    closing_cache: Vec<TaskId>,
    /// Tasks that wait until every write submitted before this mark has ended.
    drains: Vec<(TaskId, u32)>,
    retiring: Retiring,
}

/// The progress of the removal of a unit.
#[derive(Clone, Copy, Debug)]
enum Retiring {
    /// The unit serves commands.
    No,
    /// The unit was removed; its operations are still ending.
    Draining,
    /// The record of a writable disc is being saved.
    Saving,
    /// The last flush has begun, or none is needed.
    Flushed,
}

impl DeviceServer {
    pub(crate) fn new(
        config: UnitConfig,
        store: Box<dyn Store>,
        spc: SpcState,
        pool: Pool,
        (command_set, table): (&'static CommandSet, Table),
    ) -> Self {
        let mut medium = MediumAccess::new(store, pool.clone());
        let profile = medium.adopt_capabilities();
        Self {
            now: Instant::ORIGIN,
            settings: Settings::new(config.write_cache, config.tasks)
                .with_provisioning_reports(config.reports_provisioning()),
            info: UnitInfo {
                config,
                capabilities: profile,
                writable: None,
                tells_space: medium.space().is_some(),
                makes_tokens: false,
            },
            spc,
            sanitizer: Sanitizer::default(),
            orw_generations: OrwGenerations::default(),
            nexuses: Nexuses::default(),
            tape: None,
            recorder: None,
            changer: None,
            pass_through: None,
            command_set,
            table,
            pool,
            stats: UnitStats::default(),
            slow: SlowCommands::default(),
            medium,
            copy_manager: CopyManager::default(),
            spawned: VecDeque::new(),
            events: VecDeque::new(),
            peer_fetches: VecDeque::new(),
            woken: VecDeque::new(),
            refused: VecDeque::new(),
            calls: BTreeMap::new(),
            call_next: 0,
            withheld: false,
            drain: Drain::No,
            flush_failed: false,
            errors: ErrorCounts::default(),
            idle: Duration::ZERO,
            idle_since: Some(Instant::ORIGIN),
            full_at: None,
            space_threshold: None,
            saves: SaveQueue::default(),
            operator_removal: OperatorRemoval::default(),
            closing_cache: Vec::new(),
            drains: Vec::new(),
            retiring: Retiring::No,
        }
    }

    /// Applies a changed configuration.
    pub(crate) fn reconfigure(&mut self, config: UnitConfig) {
        let block_size = self.info.config.block_size;
        let before = core::mem::replace(&mut self.info.config, UnitConfig { block_size, ..config });
        let now = &self.info.config;
        let inquiry_changed = (&now.overrides, &now.identity) != (&before.overrides, &before.identity);
        let cache_changed = now.write_cache != before.write_cache;
        let mode_changed = cache_changed || now.read_only != before.read_only;
        if now.device != before.device {
            self.nexuses.record_media_event(MediaEvent::NewMedia);
            self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
        }
        let tasks = before.tasks;
        if self.info.config.tasks != tasks {
            self.apply_task_rules(tasks);
        }
        if inquiry_changed {
            self.nexuses.establish_ua_all(Asc::INQUIRY_DATA_HAS_CHANGED, None);
        }
        if cache_changed {
            self.reset_write_cache();
        }
        if mode_changed {
            self.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, None);
        }
        if !self.info.config.removable {
            // No initiator could load a non-removable medium again.
            self.spc.removal.load(true);
        } else {
            // A removable unit starts by itself.
            self.spc.removal.stop(false);
        }
        self.refresh_capabilities();
    }

    /// Applies changed rules for tasks. A TAS bit that MODE SELECT has set or saved stays.
    fn apply_task_rules(&mut self, before: TaskRules) {
        let now = self.info.config.tasks;
        self.settings.nexus_task_sets = now.nexus_task_sets;
        let is_default = self.settings.task_aborted_status == before.task_aborted_status;
        if is_default && self.spc.saved_settings.is_none() {
            self.settings.task_aborted_status = now.task_aborted_status;
        }
        self.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, None);
    }

    /// Requests that `state` be stored durably on behalf of a task.
    pub(crate) fn save(&mut self, task: TaskId, state: Vec<u8>) {
        let ticket = self.saves.begin(task);
        self.events.push_back(UnitEvent::SaveState { ticket, state });
    }

    /// Starts an operation of the medium on behalf of a task. The job receives the result with `tag`.
    pub(crate) fn submit(&mut self, task: &TaskInfo, tag: u32, action: OpAction) {
        task.ops.set(task.ops.get().saturating_add(1));
        task.timing.use_medium(self.now);
        if self.sanitizer.is_running() {
            // The task began before SANITIZE or FORMAT UNIT, and would undo its work.
            return self.refused.push_back((task.id, tag));
        }
        if action.is_change() {
            self.copy_manager
                .tokens
                .revoke_overlapping_bytes(self.info.block_size(), medium::range_of(&action));
        }
        self.medium.submit(self.now, task.id, tag, action);
    }

    /// Returns the next operation that ended, including operations that were never submitted.
    pub(crate) fn next_ended(&mut self) -> Option<EndedOp> {
        if let Some((owner, tag)) = self.refused.pop_front() {
            return Some(EndedOp { owner, tag, flushes: false, result: Err(Fault::NotSubmitted.into()) });
        }
        let ended = self.medium.poll();
        if let Some(back) = self.medium.take_return() {
            self.device_returned(back);
        }
        if self.medium.take_late_flush_failure() {
            self.record_lost_flush();
        }
        ended
    }

    /// Ends operations that have exceeded the time limit, and returns the tasks that have waited for a range
    /// of the medium for longer than that.
    pub(crate) fn expire_operations(&mut self, limit: Duration) -> Vec<TaskId> {
        let before = self.medium.expired_ever();
        let waiters = self.medium.expire(self.now, limit);
        let operations = self.medium.expired_ever().saturating_sub(before);
        let waiting = u64::try_from(waiters.len()).unwrap_or(u64::MAX);
        self.stats.io_timeouts = self.stats.io_timeouts.saturating_add(operations).saturating_add(waiting);
        waiters
    }

    /// Records that the unit is removed.
    pub(crate) fn retire(&mut self) {
        self.retiring = Retiring::Draining;
        // The sanitize journal holds the remaining work; it continues when the medium is served again.
        self.sanitizer.stop();
    }

    /// Returns whether the unit is removed, so that no host can be told anything.
    pub(crate) const fn is_retiring(&self) -> bool {
        !matches!(self.retiring, Retiring::No)
    }

    /// Returns whether the unit is removed, and every acknowledged write is as durable as it will be.
    pub(crate) const fn is_retired(&self) -> bool {
        matches!(self.retiring, Retiring::Flushed)
    }

    /// Flushes the medium of a removed unit once `tasks`, the number of tasks left, is zero: no initiator can
    /// request the flush any more. The record of a writable disc is saved before. Returns whether one of them
    /// has begun.
    pub(crate) fn final_flush(&mut self, tasks: usize) -> bool {
        let is_busy = tasks > 0 || !self.medium.is_idle();
        if !matches!(self.retiring, Retiring::Draining | Retiring::Saving) || is_busy {
            return false;
        }
        if matches!(self.retiring, Retiring::Draining) && self.save_disc() {
            self.retiring = Retiring::Saving;
            return true;
        }
        if self.close_tape() {
            return true;
        }
        self.retiring = Retiring::Flushed;
        if self.has_to_flush() && !self.info.is_read_only() {
            self.medium.submit(self.now, TaskId::BACKGROUND, 0, OpAction::Flush);
        }
        true
    }

    /// Queues a `JobInput::Woken` for a job: an event that it waits for happened.
    pub(crate) fn wake(&mut self, task: TaskId) {
        self.woken.push_back(task);
    }

    pub(crate) fn next_woken(&mut self) -> Option<TaskId> {
        self.woken.pop_front().or_else(|| {
            let at = self.drains.iter().position(|(_, mark)| self.medium.has_drained(*mark))?;
            Some(self.drains.swap_remove(at).0)
        })
    }

    /// Makes every write durable from now on until `task` ends, and wakes the task when no write that was
    /// submitted before is in progress.
    pub(crate) fn disable_cache(&mut self, task: TaskId) {
        self.closing_cache.push(task);
        let mark = self.medium.drain_mark();
        self.drains.push((task, mark));
    }

    /// Returns whether `task` has disabled the write cache.
    pub(crate) fn is_disabling_cache(&self, task: TaskId) -> bool {
        self.closing_cache.contains(&task)
    }

    /// Releases the range locks and the disabled write cache of a task that has ended.
    pub(crate) fn task_ended(&mut self, task: TaskId) {
        self.medium.unlock(task);
        self.end_turn(task);
        self.forget_motion(task);
        self.end_append(task);
        if !self.closing_cache.is_empty() {
            self.closing_cache.retain(|other| *other != task);
            self.drains.retain(|(other, _)| *other != task);
        }
    }

    /// Requests an exclusive range of the medium. The job receives `JobInput::Locked` when no other access
    /// overlaps the range, and keeps the range until the task ends. Request a range only when all data has
    /// been received: other tasks wait meanwhile.
    pub(crate) fn lock(&mut self, task: &TaskInfo, range: ByteRange) {
        self.medium.lock(self.now, task.id, range);
    }

    /// Requests bytes of the Data-Out buffer: never beyond `data_out_len`, never zero bytes.
    pub(crate) fn fetch_data_out(&mut self, task: &TaskInfo, offset: u32, len: u32) {
        task.timing.await_data(self.now, len);
        match &task.origin {
            Origin::Transport(key) => {
                self.events.push_back(UnitEvent::FetchDataOut { key: *key, offset, len })
            }
            Origin::ThirdParty(_) => self.peer_fetches.push_back((task.id, offset, len)),
            Origin::Background => {}
        }
    }

    /// Delivers bytes of the Data-In buffer: in order, without gaps, never beyond `data_in_len`.
    pub(crate) fn send_data_in(&mut self, task: &TaskInfo, offset: u32, data: DataList) {
        let end = u64::from(offset).saturating_add(to_u64(data.len()));
        task.delivered.set(task.delivered.get().max(end));
        match &task.origin {
            Origin::Transport(key) => self.events.push_back(UnitEvent::DataIn { key: *key, offset, data }),
            Origin::ThirdParty(peer) => {
                let mut list = peer.data_in.borrow_mut();
                data.into_parts().for_each(|part| list.push(part));
            }
            Origin::Background => {}
        }
    }

    /// Calls another unit, or this one, on behalf of the task's nexus. The job receives the answer with the
    /// returned number.
    pub(crate) fn call_third_party(
        &mut self,
        task: &TaskInfo,
        unit: ThirdPartyUnit,
        request: ThirdPartyRequest,
    ) -> u32 {
        let call = self.call_next;
        self.call_next = self.call_next.wrapping_add(1);
        self.calls.insert(call, task.id);
        task.calls.set(task.calls.get().saturating_add(1));
        self.events.push_back(UnitEvent::ThirdPartyCall(Box::new(ThirdPartyCall {
            call,
            nexus: task.nexus,
            level: task.level,
            unit,
            request,
        })));
        call
    }

    /// Queues a job that runs without a command, on behalf of the nexus of a task and with its protection.
    pub(crate) fn spawn(&mut self, task: &TaskInfo, job: Box<dyn Job>) {
        self.spawned.push_back(SpawnedJob { nexus: task.nexus, level: task.level, job });
    }

    /// Queues a job that runs without a command, for the unit itself.
    pub(crate) fn spawn_own(&mut self, job: Box<dyn Job>) {
        self.spawned.push_back(SpawnedJob { nexus: NexusId::OWN, level: Level::None, job });
    }

    /// Removes and returns the next job that runs without a command.
    pub(crate) fn take_spawned(&mut self) -> Option<SpawnedJob> {
        self.spawned.pop_front()
    }

    /// Queues an event for the transport or target.
    pub(crate) fn emit(&mut self, event: UnitEvent) {
        self.events.push_back(event);
    }

    /// Copies bytes into a buffer of the pool.
    pub(crate) fn buffer_of(&self, bytes: &[u8]) -> Bytes {
        let mut buf = self.pool.take(bytes.len());
        buf.append(bytes);
        buf.freeze()
    }

    /// Returns when a write that is submitted now may be acknowledged, given its FUA bit. A write with that
    /// bit is stable on a medium without a cache too: it may wait for a range while the cache is enabled.
    pub(crate) fn durability(&self, force_unit_access: bool) -> Durability {
        let force_unit_access = force_unit_access && !fault_injection::is_injected(Bug::IgnoreFua);
        let cached = self.settings.write_cache && self.closing_cache.is_empty();
        if force_unit_access || (self.info.capabilities.volatile_cache && !cached) {
            Durability::Stable
        } else {
            Durability::Cached
        }
    }

    /// Returns why `nexus` may not write, or `None` if it may.
    pub(crate) fn write_protection(&self, nexus: NexusId) -> Option<Sense> {
        let access = self.nexuses.find(nexus).map(|state| state.nexus.access);
        if self.info.is_read_only() || self.is_cartridge_protected() || access != Some(Access::ReadWrite) {
            return Some(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED));
        }
        let protected = Sense::new(SenseKey::DATA_PROTECT, Asc::SOFTWARE_WRITE_PROTECTED);
        self.settings.software_write_protect.then_some(protected)
    }

    /// Records whether the unit has any task.
    pub(crate) fn note_idle(&mut self, idle: bool) {
        match self.idle_since {
            Some(since) if !idle => {
                self.idle = self.idle.saturating_add(self.now.since(since));
                self.idle_since = None;
            }
            None if idle => self.idle_since = Some(self.now),
            _ => {}
        }
    }

    /// Returns how long the unit had no task so far.
    pub(crate) fn idle_time(&self) -> Duration {
        let now = self.idle_since.map_or(Duration::ZERO, |since| self.now.since(since));
        self.idle.saturating_add(now)
    }

    pub(crate) fn poll_event(&mut self) -> Option<UnitEvent> {
        self.events.pop_front()
    }

    pub(crate) fn next_third_party_fetch(&mut self) -> Option<(TaskId, u32, u32)> {
        self.peer_fetches.pop_front()
    }

    pub(crate) fn take_call(&mut self, call: u32) -> Option<TaskId> {
        self.calls.remove(&call)
    }

    pub(crate) fn reply_third_party(&mut self, caller: ThirdPartyCaller, result: ThirdPartyResult) {
        self.events.push_back(UnitEvent::ThirdPartyReply { caller, result });
    }

    /// Gives the blocks of `data` back to the pool.
    pub(crate) fn recycle(&self, data: DataList) {
        self.medium.recycle(data);
    }

    /// Copies `data` into one contiguous run of bytes.
    pub(crate) fn gather(data: &DataList) -> Vec<u8> {
        let mut bytes = alloc::vec![0; data.len()];
        data.copy_to(0, &mut bytes);
        bytes
    }
}
