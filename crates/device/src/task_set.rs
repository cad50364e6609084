//! The task set (SAM-5 §8): which tasks it holds, which may start, and which tasks and functions wait for
//! aborted tasks to end.
//!
//! Every nexus has a task set of its own (TST 001b), or all share one (TST 000b). SIMPLE tasks may be
//! reordered freely (QUEUE ALGORITHM MODIFIER 1h). While only SIMPLE tasks are present, ordering costs one
//! comparison. With a task set per nexus, a nexus that sends only SIMPLE tasks pays nothing for the ordering
//! of another nexus.

mod key_index;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use scsi::status::TaskAttribute;

use crate::contract::{NexusId, TaskKey};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::one_operation::{Read, Write};
use crate::device_server::outcome::{AfterSave, Job, Outcome};
use crate::fault_injection::{self, Bug};
use crate::task::{Origin, TaskId, TaskInfo};
use key_index::KeyIndex;

/// How many tasks of copy managers are served besides the task set. A copy manager has a handful of tasks per
/// copy in progress, and its copies are themselves tasks of some task set.
const MAX_THIRD_PARTY_TASKS: usize = 1024;

/// How many tasks a nexus may have although other nexuses fill the set, so that no nexus can shut another
/// out. There are at most as many nexuses as sessions, which bounds what this adds.
const MIN_TASKS_OF_NEXUS: usize = 8;

/// How many tasks the key index holds before it grows. Keys are spread over the whole index: an index sized
/// for the largest task set would miss the near caches when few tasks are present.
const KEYS_AT_FIRST: usize = 64;

/// Every task of a unit.
pub(crate) struct TaskSet {
    slots: Vec<Slot>,
    free: Vec<u32>,
    keys: KeyIndex,
    /// The number of tasks of transports, for TASK SET FULL.
    transport_count: usize,
    peer_count: usize,
    capacity: usize,
    sequence_next: u64,
    /// Whether every nexus has a task set of its own.
    per_nexus: bool,
    /// The order of every task set in which order matters now.
    orders: Vec<Order>,
    /// Aborted tasks with operations or calls still in progress.
    draining: Vec<TaskId>,
    /// How many tasks each wait still waits for.
    waits: Vec<(AbortWait, usize)>,
    wait_next: u64,
}

/// Names a task set: that of a nexus, or `None` for the one that all share.
type SetName = Option<NexusId>;

/// The ordering state of a task set. A set of SIMPLE tasks that have all been started has none.
struct Order {
    set: SetName,
    /// How many tasks in the set are ORDERED or HEAD OF QUEUE.
    restrictive: usize,
    /// Dormant tasks, which may not start yet, in order of arrival.
    dormant: VecDeque<TaskId>,
    /// Whether a task has left the set since the dormant tasks were last checked: only that lets a dormant
    /// task start.
    left: bool,
}

/// Names a wait for certain aborted tasks to end, and for no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortWait(u64);

#[derive(Default)]
struct Slot {
    generation: u32,
    task: Option<Task>,
}

/// A task.
pub(crate) struct Task {
    pub(crate) info: TaskInfo,
    pub(crate) state: TaskState,
    /// Set when the task is aborted and only waits for its operations and calls to end.
    pub(crate) aborted: Option<AbortReport>,
    /// The waits that last until this task is removed.
    awaited_by: Vec<AbortWait>,
    sequence: u64,
    set: SetName,
}

/// The state of a task.
pub(crate) enum TaskState {
    /// Not started: the order of the task set does not allow it yet, or the start follows at once.
    Dormant,
    /// May start, but a limit delays it.
    Delayed,
    Read(Read),
    Write(Write),
    Job(Box<dyn Job>),
    /// A parameter list is being fetched.
    Parameters(fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome),
    /// Waits until no other change of the persistent state is in progress.
    StateChangeQueued(Vec<u8>, fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome),
    /// State is being stored.
    Saving(AfterSave),
    /// Other tasks are being aborted; the task continues when they are removed.
    AbortingOthers(AbortWait, Box<Outcome>),
    /// The outcome is decided; the task waits for its operations and calls to end.
    Ending(Box<Outcome>),
    /// Aborted; waits for its operations and calls to end.
    Draining,
}

/// How an aborted task is reported to its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortReport {
    /// `UnitEvent::Aborted`.
    Aborted,
    /// Status TASK ABORTED.
    TaskAborted,
    /// LOGICAL UNIT NOT SUPPORTED: its nexus no longer sees the unit.
    LunNotSupported,
    /// Not at all: the transport has dropped the task.
    Unreported,
}

/// Why a task was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmitError {
    /// The set is full.
    Full,
    /// The key is in use.
    Overlapped,
}

impl TaskSet {
    /// Creates task sets for `capacity` tasks in total, one set for every nexus or one for all.
    pub(crate) fn new(capacity: u16, per_nexus: bool) -> Self {
        let capacity = usize::from(capacity.max(1));
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            keys: KeyIndex::with_room_for(capacity.min(KEYS_AT_FIRST)),
            transport_count: 0,
            peer_count: 0,
            capacity,
            sequence_next: 0,
            per_nexus,
            orders: Vec::new(),
            draining: Vec::new(),
            waits: Vec::new(),
            wait_next: 0,
        }
    }

    /// Changes the maximum number of tasks, and the sets that later tasks belong to.
    pub(crate) fn reconfigure(&mut self, capacity: u16, per_nexus: bool) {
        self.capacity = usize::from(capacity.max(1));
        self.per_nexus = per_nexus;
    }

    /// Returns whether every nexus has a task set of its own.
    pub(crate) const fn is_per_nexus(&self) -> bool {
        self.per_nexus
    }

    /// Adds a task in the dormant state, or returns its description with the error.
    #[expect(
        clippy::result_large_err,
        reason = "a command that is refused is passed back once, to be answered"
    )]
    pub(crate) fn add(&mut self, mut info: TaskInfo) -> Result<TaskId, (AdmitError, TaskInfo)> {
        match &info.origin {
            Origin::Transport(_)
                if self.transport_count >= self.capacity && !self.is_owed_room(info.nexus) =>
            {
                return Err((AdmitError::Full, info));
            }
            Origin::Transport(key) if self.keys.find(*key).is_some() => {
                return Err((AdmitError::Overlapped, info));
            }
            Origin::ThirdParty(_) | Origin::Background if self.peer_count >= MAX_THIRD_PARTY_TASKS => {
                return Err((AdmitError::Full, info));
            }
            _ => {}
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let sequence = self.sequence_next;
        self.sequence_next += 1;
        let Some(entry) = usize::try_from(slot).ok().and_then(|at| self.slots.get_mut(at)) else {
            return Err((AdmitError::Full, info));
        };
        let id = TaskId { slot, generation: entry.generation };
        info.id = id;
        let set = self.per_nexus.then_some(info.nexus);
        match &info.origin {
            Origin::Transport(key) => {
                self.keys.insert(*key, slot);
                self.transport_count += 1;
                if is_restrictive(info.attribute) {
                    change_order(&mut self.orders, set, |order| order.restrictive += 1);
                }
            }
            Origin::ThirdParty(_) | Origin::Background => self.peer_count += 1,
        }
        let awaited_by = Vec::new();
        entry.task = Some(Task { info, state: TaskState::Dormant, aborted: None, awaited_by, sequence, set });
        Ok(id)
    }

    /// Removes a task that has no operation or call in progress. It is dropped where it lies: a move of a
    /// task costs as much as all else here.
    pub(crate) fn remove(&mut self, id: TaskId) {
        let Some(entry) = usize::try_from(id.slot).ok().and_then(|slot| self.slots.get_mut(slot)) else {
            return;
        };
        let Some(task) = entry.task.as_ref().filter(|task| task.info.id == id) else { return };
        match &task.info.origin {
            Origin::Transport(key) => {
                if task.aborted != Some(AbortReport::Unreported) {
                    self.keys.remove(*key);
                }
                self.transport_count -= 1;
                if let Some(order) = self.orders.iter_mut().find(|order| order.set == task.set) {
                    order.restrictive -= usize::from(is_restrictive(task.info.attribute));
                    order.left = true;
                }
            }
            Origin::ThirdParty(_) | Origin::Background => self.peer_count -= 1,
        }
        if task.aborted.is_some() {
            self.draining.retain(|other| *other != id);
        }
        for wait in &task.awaited_by {
            if let Some((_, left)) = self.waits.iter_mut().find(|(other, _)| other == wait) {
                *left = left.saturating_sub(1);
            }
        }
        if !task.awaited_by.is_empty() {
            self.waits.retain(|(_, left)| *left > 0);
        }
        entry.task = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.slot);
    }

    /// Returns a task.
    pub(crate) fn find_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        let entry = self.slots.get_mut(usize::try_from(id.slot).ok()?)?;
        entry.task.as_mut().filter(|task| task.info.id == id)
    }

    /// Returns the task with the transport's key `key`.
    pub(crate) fn find_key(&self, key: TaskKey) -> Option<TaskId> {
        let slot = self.keys.find(key)?;
        self.slots.get(usize::try_from(slot).ok()?)?.task.as_ref().map(|task| task.info.id)
    }

    /// Returns every task that is not aborted yet, by slot.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Task> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref()).filter(|task| task.aborted.is_none())
    }

    /// Returns the live tasks that `chosen` admits, oldest first.
    pub(crate) fn select_live(&self, chosen: impl Fn(&TaskInfo) -> bool) -> Vec<TaskId> {
        let mut found: Vec<_> =
            self.live().filter(|task| chosen(&task.info)).map(|task| (task.sequence, task.info.id)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns every task that `chosen` admits, aborted ones included, oldest first.
    pub(crate) fn select_all(&self, chosen: impl Fn(&TaskInfo) -> bool) -> Vec<TaskId> {
        let tasks = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        let mut found: Vec<_> =
            tasks.filter(|task| chosen(&task.info)).map(|task| (task.sequence, task.info.id)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns how many tasks there are, aborted ones included.
    pub(crate) const fn len(&self) -> usize {
        self.transport_count + self.peer_count
    }

    /// Returns whether there is a task of a transport, aborted ones included.
    pub(crate) const fn has_transport_tasks(&self) -> bool {
        self.transport_count > 0
    }

    /// Returns whether a task may start at once; if not, it is queued.
    pub(crate) fn enable_or_queue(&mut self, id: TaskId) -> bool {
        if self.orders.is_empty() {
            return true;
        }
        let Some(set) = self.find_mut(id).map(|task| task.set) else { return false };
        if !self.orders.iter().any(|order| order.set == set) || self.can_enable(id) {
            return true;
        }
        change_order(&mut self.orders, set, |order| order.dormant.push_back(id));
        false
    }

    /// Takes the next dormant task that may start.
    pub(crate) fn next_enabled(&mut self) -> Option<TaskId> {
        while let Some(at) = self.orders.iter().position(|order| order.left) {
            if let Some(id) = self.wake_in(at) {
                return Some(id);
            }
            let order = self.orders.get_mut(at)?;
            order.left = false;
            if order.restrictive == 0 && order.dormant.is_empty() {
                self.orders.swap_remove(at);
            }
        }
        None
    }

    /// Takes the next dormant task of one set. If the oldest may not start, no younger one may.
    fn wake_in(&mut self, at: usize) -> Option<TaskId> {
        loop {
            let id = *self.orders.get(at)?.dormant.front()?;
            let lives = self.find_mut(id).is_some_and(|task| task.aborted.is_none());
            if lives && !self.can_enable(id) {
                return None;
            }
            self.orders.get_mut(at)?.dormant.pop_front();
            if lives {
                return Some(id);
            }
        }
    }

    /// Marks a task aborted.
    pub(crate) fn mark_aborted(&mut self, id: TaskId, answer: AbortReport) {
        let Some(task) = self.find_mut(id).filter(|task| task.aborted.is_none()) else { return };
        task.aborted = Some(answer);
        if !matches!(task.state, TaskState::Saving(_)) {
            task.state = TaskState::Draining;
        }
        if answer == AbortReport::Unreported
            && let Some(key) = task.info.key()
        {
            self.keys.remove(key);
        }
        self.draining.push(id);
    }

    /// Discards the keys of tasks of a lost nexus that are already aborted: no event names them any more.
    pub(crate) fn forget_keys_of(&mut self, nexus: NexusId) {
        let mut at = 0;
        while let Some(id) = self.draining.get(at).copied() {
            if self.find_mut(id).is_some_and(|task| task.info.nexus == nexus) {
                self.forget_key(id);
            }
            at += 1;
        }
    }

    /// Discards the key of a task that is already aborted: no event names it any more.
    pub(crate) fn forget_key(&mut self, id: TaskId) {
        // A key that is already discarded may belong to another task by now.
        let Some(task) = self.find_mut(id).filter(|task| task.aborted != Some(AbortReport::Unreported))
        else {
            return;
        };
        task.aborted = Some(AbortReport::Unreported);
        if let Some(key) = task.info.key() {
            self.keys.remove(key);
        }
    }

    /// Starts a wait for those of `tasks` that are aborted and not removed yet.
    pub(crate) fn wait_for(&mut self, tasks: &[TaskId]) -> AbortWait {
        let wait = AbortWait(self.wait_next);
        self.wait_next += 1;
        let mut left = 0;
        for id in tasks {
            if let Some(task) = self.find_mut(*id).filter(|task| task.aborted.is_some()) {
                task.awaited_by.push(wait);
                left += 1;
            }
        }
        if left > 0 {
            self.waits.push((wait, left));
        }
        wait
    }

    /// Returns whether every task that `wait` waits for is removed.
    pub(crate) fn is_over(&self, wait: AbortWait) -> bool {
        self.waits.iter().all(|(other, _)| *other != wait)
    }

    /// Returns whether `nexus` has so few tasks that it must be admitted although other nexuses fill the set.
    fn is_owed_room(&self, nexus: NexusId) -> bool {
        let few = MIN_TASKS_OF_NEXUS.min(self.capacity / 2);
        let tasks = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        tasks.filter(|task| task.info.nexus == nexus && task.info.key().is_some()).take(few).count() < few
    }

    /// Returns whether `nexus` has a live task.
    pub(crate) fn has_tasks_of(&self, nexus: NexusId) -> bool {
        self.live().any(|task| task.info.nexus == nexus && task.info.key().is_some())
    }

    /// Applies SAM-5 §8: a SIMPLE task waits for older ORDERED and HEAD OF QUEUE tasks, an ORDERED task for
    /// all older ones.
    fn can_enable(&mut self, id: TaskId) -> bool {
        let Some(task) = self.find_mut(id) else { return false };
        let (attribute, sequence, set) = (task.info.attribute, task.sequence, task.set);
        if attribute == TaskAttribute::HeadOfQueue || task.info.key().is_none() {
            return true;
        }
        let tasks = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        let mut older =
            tasks.filter(|task| task.sequence < sequence && task.set == set && task.info.key().is_some());
        match attribute {
            TaskAttribute::Ordered => {
                fault_injection::is_injected(Bug::OrderedStartsEarly) || older.next().is_none()
            }
            _ if fault_injection::is_injected(Bug::SimplePassesOrdered) => true,
            _ => !older.any(|task| is_restrictive(task.info.attribute)),
        }
    }
}

/// Changes the order of a task set, and creates the order if there is none.
fn change_order(orders: &mut Vec<Order>, set: SetName, change: impl FnOnce(&mut Order)) {
    if let Some(order) = orders.iter_mut().find(|order| order.set == set) {
        return change(order);
    }
    let mut order = Order { set, restrictive: 0, dormant: VecDeque::new(), left: false };
    change(&mut order);
    orders.push(order);
}

const fn is_restrictive(attribute: TaskAttribute) -> bool {
    matches!(attribute, TaskAttribute::Ordered | TaskAttribute::HeadOfQueue)
}
