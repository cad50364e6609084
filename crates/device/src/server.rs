//! The device server's working state: what handlers and jobs reach besides their own task.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList, Pool};
use base::planted::{self, Bug};
use base::time::Instant;
use base::units::{BlockSize, Blocks, ByteLen};
use scsi::sense::{Asc, Sense, SenseKey};
use store::Store;
use store::contract::{Durability, Failure, Fault, OpAction, Profile};

use crate::contract::{
    Access, Event, NexusId, PeerCall, PeerCaller, PeerRequest, PeerResult, PeerUnit, UnitConfig,
};
use crate::copy::Copies;
use crate::fault::{self, Doing};
use crate::medium::{self, Ended, MediumAccess};
use crate::nexus::Nexuses;
use crate::range_lock::ByteRange;
use crate::sbc::orw_generation::OrwGenerations;
use crate::sbc::sanitize::Sanitizer;
use crate::settings::Settings;
use crate::spc;
use crate::table::Table;
use crate::task::{Origin, TaskId, TaskInfo};
use crate::unit::UnitStats;

/// What is fixed about a unit between two reconfigurations.
pub(crate) struct Facts {
    /// What the administrator said.
    pub(crate) config: UnitConfig,
    /// What the medium is.
    pub(crate) profile: Profile,
    /// Whether the medium tells how much storage it takes.
    pub(crate) tells_space: bool,
    /// Whether there are ROD tokens: there is a seed for their secrets.
    pub(crate) makes_tokens: bool,
}

impl Facts {
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
        self.config.block_size.whole_blocks_in(ByteLen(self.profile.len))
    }

    /// Returns whether the unit is thinly provisioned: the administrator wants it and the medium can.
    pub(crate) const fn is_thin(&self) -> bool {
        self.config.thin && self.profile.thin
    }

    /// Returns whether no nexus can ever write.
    pub(crate) const fn is_read_only(&self) -> bool {
        self.config.read_only || self.profile.read_only
    }
}

/// What handlers and jobs work with.
pub(crate) struct Core {
    /// The time of the call that is being handled.
    pub(crate) now: Instant,
    /// What is fixed.
    pub(crate) facts: Facts,
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
    pub(crate) copies: Copies,
    events: VecDeque<Event>,
    /// Data-Out that tasks of peers have asked for: it is already here.
    peer_fetches: VecDeque<(TaskId, u32, u32)>,
    /// Tasks to be told that something they wait for happened.
    woken: VecDeque<TaskId>,
    /// Operations refused before the medium saw them.
    refused: VecDeque<(TaskId, u32)>,
    /// Calls of other units under way.
    calls: BTreeMap<u32, TaskId>,
    call_next: u32,
    /// Whether a flush has failed: what was acknowledged before it may be lost, so none can be vouched for again.
    flush_failed: bool,
    /// State that is being stored, and the task that waits for it.
    saves: BTreeMap<u64, TaskId>,
    ticket_next: u64,
}

impl Core {
    pub(crate) fn new(config: UnitConfig, store: Box<dyn Store>, spc: spc::State, pool: Pool) -> Self {
        let medium = MediumAccess::new(store, pool.clone());
        let profile = medium.profile();
        Self {
            now: Instant::ORIGIN,
            settings: Settings::new(config.write_cache),
            facts: Facts { config, profile, tells_space: medium.space().is_some(), makes_tokens: false },
            spc,
            sanitizer: Sanitizer::default(),
            orw_generations: OrwGenerations::default(),
            nexuses: Nexuses::default(),
            table: Table::new(),
            pool,
            stats: UnitStats::default(),
            medium,
            copies: Copies::default(),
            events: VecDeque::new(),
            peer_fetches: VecDeque::new(),
            woken: VecDeque::new(),
            refused: VecDeque::new(),
            calls: BTreeMap::new(),
            call_next: 0,
            flush_failed: false,
            saves: BTreeMap::new(),
            ticket_next: 0,
        }
    }

    /// Takes a changed configuration into use.
    pub(crate) fn reconfigure(&mut self, config: UnitConfig) {
        let UnitConfig { identity, block_size, claims, .. } = self.facts.config.clone();
        self.facts.config = UnitConfig { identity, block_size, ..config };
        if self.facts.config.claims != claims {
            self.nexuses.attend_all(Asc::INQUIRY_DATA_HAS_CHANGED, None);
        }
        if !self.facts.config.removable {
            // Nobody could put it in again.
            self.spc.removal.load();
        }
        self.refresh_profile();
    }

    /// Looks at the medium again; everyone hears of a changed capacity.
    pub(crate) fn refresh_profile(&mut self) {
        let before = self.facts.capacity();
        self.facts.profile = self.medium.profile();
        self.facts.tells_space = self.medium.space().is_some();
        if self.facts.capacity() != before {
            self.nexuses.attend_all(Asc::CAPACITY_DATA_HAS_CHANGED, None);
        }
    }

    /// Returns why the medium cannot be used now, if so.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        self.sanitizer
            .progress(self.facts.profile.len)
            .or_else(|| self.sanitizer.failure())
            .or_else(|| self.spc.not_ready())
    }

    /// Has state stored durably on behalf of a task.
    pub(crate) fn save(&mut self, task: TaskId, state: Vec<u8>) {
        let ticket = self.ticket_next;
        self.ticket_next += 1;
        self.saves.insert(ticket, task);
        self.events.push_back(Event::Save { ticket, state });
    }

    pub(crate) fn take_ticket(&mut self, ticket: u64) -> Option<TaskId> {
        self.saves.remove(&ticket)
    }

    /// Starts an operation of the medium on behalf of a task; a job hears of its end with `tag`.
    pub(crate) fn submit(&mut self, task: &TaskInfo, tag: u32, action: OpAction) {
        task.ops.set(task.ops.get().saturating_add(1));
        if self.sanitizer.is_running() {
            // The task began before, and would undo what is being done.
            return self.refused.push_back((task.id, tag));
        }
        if medium::changes(&action) {
            self.copies.tokens.touched_bytes(self.facts.block_size(), medium::range_of(&action));
        }
        self.medium.submit(task.id, tag, action);
    }

    /// Returns the next operation that ended, also one that never began.
    pub(crate) fn next_ended(&mut self) -> Option<Ended> {
        if let Some((owner, tag)) = self.refused.pop_front() {
            return Some(Ended { owner, tag, result: Err(Fault::Gone.into()) });
        }
        self.medium.poll()
    }

    /// Has a job told that something it waits for happened.
    pub(crate) fn wake(&mut self, task: TaskId) {
        self.woken.push_back(task);
    }

    pub(crate) fn next_woken(&mut self) -> Option<TaskId> {
        self.woken.pop_front()
    }

    /// Asks for an exclusive range of the medium: the job gets `JobInput::Locked` when no other access overlaps it,
    /// and keeps it until the task ends. Ask only when all data is at hand: others wait meanwhile.
    pub(crate) fn lock(&mut self, task: &TaskInfo, range: ByteRange) {
        self.medium.lock(task.id, range);
    }

    /// Asks for bytes of the Data-Out buffer. Never beyond `data_out_len`; never zero.
    pub(crate) fn fetch(&mut self, task: &TaskInfo, offset: u32, len: u32) {
        match &task.origin {
            Origin::Transport(key) => self.events.push_back(Event::Fetch { key: *key, offset, len }),
            Origin::Peer(_) => self.peer_fetches.push_back((task.id, offset, len)),
            Origin::Background => {}
        }
    }

    /// Delivers bytes of the Data-In buffer: in order, without gaps, never beyond `data_in_len`.
    pub(crate) fn deliver(&mut self, task: &TaskInfo, offset: u32, data: DataList) {
        match &task.origin {
            Origin::Transport(key) => self.events.push_back(Event::DataIn { key: *key, offset, data }),
            Origin::Peer(peer) => {
                let mut list = peer.data_in.borrow_mut();
                data.into_parts().for_each(|part| list.push(part));
            }
            Origin::Background => {}
        }
    }

    /// Calls another unit, or this one, in the name of the task's nexus; the job hears with the returned number.
    pub(crate) fn call_peer(&mut self, task: &TaskInfo, unit: PeerUnit, request: PeerRequest) -> u32 {
        let call = self.call_next;
        self.call_next = self.call_next.wrapping_add(1);
        self.calls.insert(call, task.id);
        task.calls.set(task.calls.get().saturating_add(1));
        self.events.push_back(Event::Peer(PeerCall { call, nexus: task.nexus, unit, request }));
        call
    }

    /// Says something to the outside.
    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Copies bytes into a buffer of the pool.
    pub(crate) fn buffer_of(&self, bytes: &[u8]) -> Bytes {
        let mut buf = self.pool.take(bytes.len());
        buf.append(bytes);
        buf.freeze()
    }

    /// Returns when a write may be acknowledged, given its FUA bit.
    pub(crate) fn durability(&self, force_unit_access: bool) -> Durability {
        let force_unit_access = force_unit_access && !planted::is(Bug::IgnoreFua);
        if self.facts.profile.volatile_cache && (force_unit_access || !self.settings.write_cache) {
            Durability::Stable
        } else {
            Durability::Cached
        }
    }

    /// Returns why `nexus` may not write, if so.
    pub(crate) fn write_protection(&self, nexus: NexusId) -> Option<Sense> {
        let access = self.nexuses.find(nexus).map(|state| state.nexus.access);
        if self.facts.is_read_only() || access != Some(Access::ReadWrite) {
            return Some(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED));
        }
        let protected = Sense::new(SenseKey::DATA_PROTECT, Asc::SOFTWARE_WRITE_PROTECTED);
        self.settings.software_write_protect.then_some(protected)
    }

    /// Returns the sense data for a failure of the medium, and establishes the unit attention it calls for.
    /// `at` is the byte at which the operation started.
    pub(crate) fn failed(&mut self, failure: Failure, doing: Doing, at: Option<u64>) -> Sense {
        if let Some(sense) = self.sanitizer.progress(self.facts.profile.len) {
            return sense;
        }
        self.stats.medium_failures = self.stats.medium_failures.saturating_add(1);
        if failure.fault == Fault::NoSpace && self.facts.is_thin() {
            // SBC-4 §4.7.3.6: everyone learns that the space has run out, not only who hit it.
            self.nexuses.attend_all(Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED, None);
        }
        fault::sense_of(failure, doing, at, self.facts.block_size())
    }

    /// Takes note that a flush failed and returns the sense data for it.
    pub(crate) fn flush_failed(&mut self, failure: Failure) -> Sense {
        self.flush_failed = true;
        self.failed(failure, Doing::Writing, None)
    }

    /// Returns whether a flush can still vouch for everything acknowledged so far. Once one has failed, the medium may
    /// have dropped what it held, and a later success says nothing about that.
    pub(crate) const fn can_vouch(&self) -> bool {
        !self.flush_failed
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn next_peer_fetch(&mut self) -> Option<(TaskId, u32, u32)> {
        self.peer_fetches.pop_front()
    }

    pub(crate) fn take_call(&mut self, call: u32) -> Option<TaskId> {
        self.calls.remove(&call)
    }

    pub(crate) fn answer_peer(&mut self, caller: PeerCaller, result: PeerResult) {
        self.events.push_back(Event::PeerDone { caller, result });
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
