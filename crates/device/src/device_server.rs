//! The device server's working state: what handlers and jobs reach besides their own task.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList, Pool};
use base::fault_injection::{self, Bug};
use base::time::{Duration, Instant};
use base::units::{BlockSize, Blocks, ByteLen};
use scsi::sense::{Asc, Sense, SenseKey};
use store::Store;
use store::api::{Capabilities, Durability, Failure, Fault, OpAction};

use crate::contract::{
    Access, NexusId, TaskRules, ThirdPartyCall, ThirdPartyCaller, ThirdPartyRequest, ThirdPartyResult,
    ThirdPartyUnit, UnitConfig, UnitEvent,
};
use crate::copy::CopyManager;
use crate::log::ErrorCounts;
use crate::medium::{self, EndedOp, MediumAccess};
use crate::medium_error::{self, IoKind};
use crate::nexus::Nexuses;
use crate::range_lock::ByteRange;
use crate::save_queue::SaveQueue;
use crate::sbc::orw_generation::OrwGenerations;
use crate::sbc::sanitize::Sanitizer;
use crate::settings::Settings;
use crate::spc;
use crate::table::Table;
use crate::task::{Origin, TaskId, TaskInfo};
use crate::unit::UnitStats;

/// What is fixed about a unit between two reconfigurations.
pub(crate) struct UnitInfo {
    /// What the administrator said.
    pub(crate) config: UnitConfig,
    /// What the medium is.
    pub(crate) capabilities: Capabilities,
    /// Whether the medium tells how much storage it takes.
    pub(crate) tells_space: bool,
    /// Whether there are ROD tokens: there is a seed for their secrets.
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

    /// Returns whether the unit is thinly provisioned: the administrator wants it and the medium can.
    pub(crate) const fn is_thin(&self) -> bool {
        self.config.thin && self.capabilities.thin
    }

    /// Returns whether no nexus can ever write.
    pub(crate) const fn is_read_only(&self) -> bool {
        self.config.read_only || self.capabilities.read_only
    }
}

/// What a command hears that needs a medium which is withheld. Not MEDIUM NOT PRESENT: hosts forget the size and the
/// partitions of a disk whose medium is out, while this one comes back as it was once its operator has seen to it.
const WITHHELD: Sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_MANUAL_INTERVENTION_REQUIRED);

/// A flush failed, so writes that were acknowledged may be lost. INTERNAL TARGET FAILURE ends the command for good on every
/// path. Linux retries MEDIUM ERROR with WRITE ERROR and fails the path in the end, and dm-multipath would go through all
/// paths to a medium that no path mends.
pub(crate) const LOST_WRITES: Sense = Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);

/// By how much the storage that a medium takes has to change after it ran out before that counts as space that had returned:
/// by more than what writes that fail allocate on their way.
const SPACE_AGAIN: u64 = 16 << 20;

/// What handlers and jobs work with.
pub(crate) struct DeviceServer {
    /// The time of the call that is being handled.
    pub(crate) now: Instant,
    /// What is fixed.
    pub(crate) info: UnitInfo,
    /// What application clients have set.
    pub(crate) settings: Settings,
    /// What the commands of every device leave behind.
    pub(crate) spc: spc::State,
    /// Work on the whole medium that outlives its command.
    pub(crate) sanitizer: Sanitizer,
    pub(crate) orw_generations: OrwGenerations,
    /// Who reaches this unit.
    pub(crate) nexuses: Nexuses,
    /// Every command.
    pub(crate) table: Table,
    /// Where buffers come from.
    pub(crate) pool: Pool,
    /// What happened so far.
    pub(crate) stats: UnitStats,
    pub(crate) medium: MediumAccess,
    /// The copy manager.
    pub(crate) copy_manager: CopyManager,
    events: VecDeque<UnitEvent>,
    /// Data-Out that tasks of peers have asked for: it is already here.
    peer_fetches: VecDeque<(TaskId, u32, u32)>,
    /// Tasks to be told that something they wait for happened.
    woken: VecDeque<TaskId>,
    /// Operations refused before the medium saw them.
    refused: VecDeque<(TaskId, u32)>,
    /// Calls of other units under way.
    calls: BTreeMap<u32, TaskId>,
    call_next: u32,
    /// Whether the medium is withheld: it is not what it was, and the operator has not said that this is right.
    withheld: bool,
    /// Whether a flush has failed: what was acknowledged before it may be lost, so none can be vouched for again.
    flush_failed: bool,
    /// What the error counter log pages tell.
    pub(crate) errors: ErrorCounts,
    /// For how long there was no task, up to `idle_since`.
    idle: Duration,
    /// Since when there is no task.
    idle_since: Option<Instant>,
    /// How much storage the medium took when it ran out, since everyone was told that.
    full_at: Option<u64>,
    /// The change that is being stored, and the tasks that wait to make one.
    pub(crate) saves: SaveQueue,
    /// Tasks that disable the write cache: while there is one, every write is durable when it is acknowledged.
    closing_cache: Vec<TaskId>,
    /// Tasks that wait until every write submitted before this mark has ended.
    drains: Vec<(TaskId, u32)>,
    retiring: Retiring,
}

/// How far the removal of a unit is.
#[derive(Clone, Copy, Debug)]
enum Retiring {
    /// It serves.
    No,
    /// It was removed; what it has under way comes to its end.
    Draining,
    /// The last flush has begun, or none is needed.
    Flushed,
}

impl DeviceServer {
    pub(crate) fn new(config: UnitConfig, store: Box<dyn Store>, spc: spc::State, pool: Pool) -> Self {
        let medium = MediumAccess::new(store, pool.clone());
        let profile = medium.capabilities();
        Self {
            now: Instant::ORIGIN,
            settings: Settings::new(config.write_cache, config.tasks),
            info: UnitInfo {
                config,
                capabilities: profile,
                tells_space: medium.space().is_some(),
                makes_tokens: false,
            },
            spc,
            sanitizer: Sanitizer::default(),
            orw_generations: OrwGenerations::default(),
            nexuses: Nexuses::default(),
            table: Table::new(),
            pool,
            stats: UnitStats::default(),
            medium,
            copy_manager: CopyManager::default(),
            events: VecDeque::new(),
            peer_fetches: VecDeque::new(),
            woken: VecDeque::new(),
            refused: VecDeque::new(),
            calls: BTreeMap::new(),
            call_next: 0,
            withheld: false,
            flush_failed: false,
            errors: ErrorCounts::default(),
            idle: Duration::ZERO,
            idle_since: Some(Instant::ORIGIN),
            full_at: None,
            saves: SaveQueue::default(),
            closing_cache: Vec::new(),
            drains: Vec::new(),
            retiring: Retiring::No,
        }
    }

    /// Takes a changed configuration into use.
    pub(crate) fn reconfigure(&mut self, config: UnitConfig) {
        let block_size = self.info.config.block_size;
        let before = core::mem::replace(&mut self.info.config, UnitConfig { block_size, ..config });
        let now = &self.info.config;
        let inquiry_changed = (&now.overrides, &now.identity) != (&before.overrides, &before.identity);
        let cache_changed = now.write_cache != before.write_cache;
        let mode_changed = cache_changed || now.read_only != before.read_only;
        let tasks = before.tasks;
        if self.info.config.tasks != tasks {
            self.apply_task_rules(tasks);
        }
        if inquiry_changed {
            self.nexuses.establish_ua_all(Asc::INQUIRY_DATA_HAS_CHANGED, None);
        }
        if cache_changed {
            self.settings.write_cache = self.power_on_settings().write_cache;
        }
        if mode_changed {
            self.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, None);
        }
        if !self.info.config.removable {
            // Nobody could put it in again.
            self.spc.removal.load();
        } else {
            // It starts by itself.
            self.spc.removal.stop(false);
        }
        self.refresh_capabilities();
    }

    /// Takes changed rules for tasks into use. TAS that MODE SELECT has set or saved stays.
    fn apply_task_rules(&mut self, before: TaskRules) {
        let now = self.info.config.tasks;
        self.settings.nexus_task_sets = now.nexus_task_sets;
        let is_default = self.settings.task_aborted_status == before.task_aborted_status;
        if is_default && self.spc.saved_settings.is_none() {
            self.settings.task_aborted_status = now.task_aborted_status;
        }
        self.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, None);
    }

    /// Looks at the medium again; everyone hears of a changed capacity.
    pub(crate) fn refresh_capabilities(&mut self) {
        let before = self.info.capacity();
        self.info.capabilities = self.medium.capabilities();
        self.info.tells_space = self.medium.space().is_some();
        if self.info.capacity() != before {
            self.nexuses.establish_ua_all(Asc::CAPACITY_DATA_HAS_CHANGED, None);
        }
    }

    /// Returns why the medium cannot be used now, if so.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        self.sanitizer
            .progress(self.info.capabilities.len)
            .or_else(|| self.withheld.then_some(WITHHELD))
            .or_else(|| self.sanitizer.failure())
            .or_else(|| self.spc.not_ready())
    }

    /// Withholds the medium, or gives it back; everyone hears when it is back.
    pub(crate) fn withhold(&mut self, withheld: bool) {
        if core::mem::replace(&mut self.withheld, withheld) && !withheld {
            self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
        }
        if !withheld {
            self.refresh_capabilities();
        }
    }

    /// Has state stored durably on behalf of a task.
    pub(crate) fn save(&mut self, task: TaskId, state: Vec<u8>) {
        let ticket = self.saves.begin(task);
        self.events.push_back(UnitEvent::SaveState { ticket, state });
    }

    /// Starts an operation of the medium on behalf of a task; a job hears of its end with `tag`.
    pub(crate) fn submit(&mut self, task: &TaskInfo, tag: u32, action: OpAction) {
        task.ops.set(task.ops.get().saturating_add(1));
        if self.sanitizer.is_running() {
            // The task began before, and would undo what is being done.
            return self.refused.push_back((task.id, tag));
        }
        if medium::changes(&action) {
            self.copy_manager
                .tokens
                .revoke_overlapping_bytes(self.info.block_size(), medium::range_of(&action));
        }
        self.medium.submit(self.now, task.id, tag, action);
    }

    /// Returns the next operation that ended, also one that never began.
    pub(crate) fn next_ended(&mut self) -> Option<EndedOp> {
        if let Some((owner, tag)) = self.refused.pop_front() {
            return Some(EndedOp { owner, tag, flushes: false, result: Err(Fault::NotSubmitted.into()) });
        }
        let ended = self.medium.poll();
        if self.medium.take_late_flush_failure() {
            self.record_lost_flush();
        }
        ended
    }

    /// Ends operations that have taken too long, and returns the tasks that have waited for a range of the medium for too
    /// long.
    pub(crate) fn expire_operations(&mut self, limit: Duration) -> Vec<TaskId> {
        let before = self.medium.expired_ever();
        let waiters = self.medium.expire(self.now, limit);
        let operations = self.medium.expired_ever().saturating_sub(before);
        let waiting = u64::try_from(waiters.len()).unwrap_or(u64::MAX);
        self.stats.io_timeouts = self.stats.io_timeouts.saturating_add(operations).saturating_add(waiting);
        waiters
    }

    /// Takes note that the unit is removed.
    pub(crate) fn retire(&mut self) {
        self.retiring = Retiring::Draining;
        // What it was about to do is written down, and done when the medium is served again.
        self.sanitizer.stop();
    }

    /// Returns whether the unit is removed, and everything that was acknowledged is as durable as it will be.
    pub(crate) const fn is_retired(&self) -> bool {
        matches!(self.retiring, Retiring::Flushed)
    }

    /// Makes durable what a removed unit has acknowledged, once `tasks`, which is how many are left, is zero: nobody can ask
    /// for it any more. Returns whether it has begun to.
    pub(crate) fn final_flush(&mut self, tasks: usize) -> bool {
        if !matches!(self.retiring, Retiring::Draining) || tasks > 0 || !self.medium.is_idle() {
            return false;
        }
        self.retiring = Retiring::Flushed;
        if self.info.capabilities.volatile_cache && !self.info.is_read_only() {
            self.medium.submit(self.now, TaskId::BACKGROUND, 0, OpAction::Flush);
        }
        true
    }

    /// Has a job told that something it waits for happened.
    pub(crate) fn wake(&mut self, task: TaskId) {
        self.woken.push_back(task);
    }

    pub(crate) fn next_woken(&mut self) -> Option<TaskId> {
        self.woken.pop_front().or_else(|| {
            let at = self.drains.iter().position(|(_, mark)| self.medium.has_drained(*mark))?;
            Some(self.drains.swap_remove(at).0)
        })
    }

    /// Makes every write durable from now on as long as `task` lives, and wakes it when no write that was submitted before
    /// is under way any more.
    pub(crate) fn disable_cache(&mut self, task: TaskId) {
        self.closing_cache.push(task);
        let mark = self.medium.drain_mark();
        self.drains.push((task, mark));
    }

    /// Returns whether `task` has made every write durable.
    pub(crate) fn is_disabling_cache(&self, task: TaskId) -> bool {
        self.closing_cache.contains(&task)
    }

    /// Forgets what a task that is gone had begun.
    pub(crate) fn task_ended(&mut self, task: TaskId) {
        self.medium.unlock(task);
        if !self.closing_cache.is_empty() {
            self.closing_cache.retain(|other| *other != task);
            self.drains.retain(|(other, _)| *other != task);
        }
    }

    /// Asks for an exclusive range of the medium: the job gets `JobInput::Locked` when no other access overlaps it,
    /// and keeps it until the task ends. Ask only when all data is at hand: others wait meanwhile.
    pub(crate) fn lock(&mut self, task: &TaskInfo, range: ByteRange) {
        self.medium.lock(self.now, task.id, range);
    }

    /// Asks for bytes of the Data-Out buffer. Never beyond `data_out_len`; never zero.
    pub(crate) fn fetch_data_out(&mut self, task: &TaskInfo, offset: u32, len: u32) {
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
        match &task.origin {
            Origin::Transport(key) => self.events.push_back(UnitEvent::DataIn { key: *key, offset, data }),
            Origin::ThirdParty(peer) => {
                let mut list = peer.data_in.borrow_mut();
                data.into_parts().for_each(|part| list.push(part));
            }
            Origin::Background => {}
        }
    }

    /// Calls another unit, or this one, in the name of the task's nexus; the job hears with the returned number.
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
        self.events.push_back(UnitEvent::ThirdPartyCall(ThirdPartyCall {
            call,
            nexus: task.nexus,
            unit,
            request,
        }));
        call
    }

    /// Says something to the outside.
    pub(crate) fn emit(&mut self, event: UnitEvent) {
        self.events.push_back(event);
    }

    /// Copies bytes into a buffer of the pool.
    pub(crate) fn buffer_of(&self, bytes: &[u8]) -> Bytes {
        let mut buf = self.pool.take(bytes.len());
        buf.append(bytes);
        buf.freeze()
    }

    /// Returns when a write that is submitted now may be acknowledged, given its FUA bit.
    pub(crate) fn durability(&self, force_unit_access: bool) -> Durability {
        let force_unit_access = force_unit_access && !fault_injection::is_injected(Bug::IgnoreFua);
        let cached = self.settings.write_cache && self.closing_cache.is_empty();
        if self.info.capabilities.volatile_cache && (force_unit_access || !cached) {
            Durability::Stable
        } else {
            Durability::Cached
        }
    }

    /// Returns why `nexus` may not write, if so.
    pub(crate) fn write_protection(&self, nexus: NexusId) -> Option<Sense> {
        let access = self.nexuses.find(nexus).map(|state| state.nexus.access);
        if self.info.is_read_only() || access != Some(Access::ReadWrite) {
            return Some(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED));
        }
        let protected = Sense::new(SenseKey::DATA_PROTECT, Asc::SOFTWARE_WRITE_PROTECTED);
        self.settings.software_write_protect.then_some(protected)
    }

    /// Returns the sense data for a failure of the medium, and establishes the unit attention it calls for.
    /// `at` is the byte at which the operation started.
    pub(crate) fn medium_failure(&mut self, failure: Failure, doing: IoKind, at: Option<u64>) -> Sense {
        if let Some(sense) = self.sanitizer.progress(self.info.capabilities.len) {
            return sense;
        }
        self.stats.medium_failures = self.stats.medium_failures.saturating_add(1);
        self.count_error(failure.fault, doing);
        if self.withheld {
            return WITHHELD;
        }
        if failure.fault == Fault::NoSpace && self.info.is_thin() {
            self.report_out_of_space();
        }
        medium_error::sense_of(failure, doing, at, self.info.block_size())
    }

    /// SBC-4 §4.7.3.6: everyone learns that the space has run out, not only who hit it. Each learns it once, however many
    /// writes fail, until there has been space again.
    fn report_out_of_space(&mut self) {
        let used = self.medium.space().map_or(0, |space| space.used);
        let is_known = self.full_at.is_some_and(|full_at| used.abs_diff(full_at) < SPACE_AGAIN);
        if !is_known {
            self.full_at = Some(used);
            self.nexuses.establish_ua_all(Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED, None);
        }
    }

    /// Records that storage was given back.
    pub(crate) const fn space_returned(&mut self) {
        self.full_at = None;
    }

    /// Counts an error for the error counter log pages: only the medium's own.
    fn count_error(&mut self, fault: Fault, doing: IoKind) {
        if matches!(fault, Fault::Medium | Fault::Hardware) {
            let count = match doing {
                IoKind::Reading => &mut self.errors.reading,
                IoKind::Verifying => &mut self.errors.verifying,
                IoKind::Writing => &mut self.errors.writing,
            };
            *count = count.saturating_add(1);
        }
    }

    /// Takes note of whether the unit has anything to do.
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

    /// Returns for how long the unit had nothing to do so far.
    pub(crate) fn idle_time(&self) -> Duration {
        let now = self.idle_since.map_or(Duration::ZERO, |since| self.now.since(since));
        self.idle.saturating_add(now)
    }

    /// Takes note that a flush failed and returns the sense data for it.
    pub(crate) fn flush_failed(&mut self, failure: Failure) -> Sense {
        // One that took too long is still under way. If it fails in the end, that is noticed then. One that the medium never
        // had has lost nothing.
        self.flush_failed |= !matches!(failure.fault, Fault::Busy | Fault::NotSubmitted);
        let sense = self.medium_failure(failure, IoKind::Writing, None);
        if sense.key == SenseKey::MEDIUM_ERROR { LOST_WRITES } else { sense }
    }

    /// Takes note that a flush failed for whose command nobody waits any more.
    pub(crate) fn record_lost_flush(&mut self) {
        self.flush_failed = true;
        self.stats.medium_failures = self.stats.medium_failures.saturating_add(1);
    }

    /// Returns whether a flush can still vouch for everything acknowledged so far. Once one has failed, the medium may
    /// have dropped what it held, and a later success says nothing about that.
    pub(crate) const fn is_flush_trusted(&self) -> bool {
        !self.flush_failed
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

    /// Gathers `data` into one run of bytes.
    pub(crate) fn gather(data: &DataList) -> Vec<u8> {
        let mut bytes = alloc::vec![0; data.len()];
        data.copy_to(0, &mut bytes);
        bytes
    }
}
