//! The tasks that limits delay: one queue for each nexus.
//!
//! A task that may start, and that counts, enters the queue of its nexus. The first task of a queue reserves
//! its cost from the limiter of its initiator, waits until that permits it to start, and does the same with
//! the limiter of the unit. As every queue has one reservation at a time, nexuses take turns, however many
//! tasks each has. Data of a write is fetched when it starts, so a delayed task holds no buffer.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::time::{Duration, Instant};
use base::units::Blocks;
use scsi::opcode::{self, variable_length as long};

use crate::contract::{DeviceKind, NexusId};
use crate::device_server::UnitInfo;
use crate::device_server::table::service_action;
use crate::rate_limit::handover::LimiterState;
use crate::rate_limit::{Cost, Limiter, RateLimit, Reservation};
use crate::sbc::address;
use crate::task::{TaskId, TaskInfo};

/// A task that would wait for longer than this behind others of its nexus ends with TASK SET FULL, and its
/// initiator sends fewer at a time (status codes: SAM-5 §5.3.1). Initiators abort what takes 15 s or more.
const DELAY_MAX: Duration = Duration::from_secs(5);

/// The shortest wait. Tasks that may start within it start together, so that limits cost no more than a
/// thousand timers per second. The shortest burst is longer, so no rate is lost.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// The bytes of a command that count as one operation.
const OPERATION_BYTES: u64 = 256 << 10;

/// The tasks of a unit that limits delay.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// The limiter of the unit.
    limiter: Limiter,
    queues: Vec<Queue>,
    /// When the queues are to be checked; `None` while no task waits.
    check_at: Option<Instant>,
    /// Whether a limit has changed since tasks were last checked for a delay that is too long.
    has_changed: bool,
}

/// What becomes of a delayed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndOfDelay {
    /// It starts, after having waited for this long.
    Start(TaskId, Duration),
    /// It would wait for too long.
    Refuse(TaskId),
}

/// The delayed tasks of a nexus.
#[derive(Debug)]
struct Queue {
    nexus: NexusId,
    /// The limiter of the initiator.
    limiter: Option<Rc<RefCell<Limiter>>>,
    waiting: VecDeque<Waiting>,
    /// The cost of all tasks that wait behind the first one.
    behind: Cost,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    task: TaskId,
    cost: Cost,
    since: Instant,
    /// Whether its initiator can be told that the task set is full.
    refusable: bool,
}

/// What the first task of a queue waits for.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// It has reserved nothing yet.
    Unreserved,
    /// For the limiter of its initiator.
    Initiator(Reservation),
    /// For the limiter of the unit, after that of its initiator if there is one.
    Unit { own: Option<Reservation>, unit: Reservation },
}

impl Throttle {
    /// Creates the queues of a unit with this limit.
    pub(crate) fn new(now: Instant, limit: RateLimit) -> Self {
        Self { limiter: Limiter::new(now, limit), queues: Vec::new(), check_at: None, has_changed: false }
    }

    /// Changes the limit of the unit.
    pub(crate) fn change(&mut self, now: Instant, limit: RateLimit) {
        if limit != self.limiter.limit() {
            self.limiter.change(now, limit);
            self.recheck(now);
        }
    }

    /// Returns what the limit of the unit has saved up, for the next process. No task waits.
    pub(crate) fn export(&self, now: Instant) -> LimiterState {
        let Self { limiter, queues: _, check_at: _, has_changed: _ } = self;
        limiter.export(now)
    }

    /// Takes over what the limit of the unit had saved up.
    pub(crate) fn adopt(&mut self, now: Instant, state: &LimiterState) {
        self.limiter.adopt(now, state);
    }

    /// Sets the limiter of a nexus, or records that it has changed.
    pub(crate) fn limit_nexus(&mut self, now: Instant, nexus: NexusId, limiter: &Rc<RefCell<Limiter>>) {
        let Self { limiter: unit, queues, .. } = self;
        let Some(queue) = queue_of(queues, nexus) else { return };
        if !queue.limiter.as_ref().is_some_and(|own| Rc::ptr_eq(own, limiter)) {
            let is_waiting = u64::from(!queue.waiting.is_empty());
            if let Some(former) = queue.limiter.clone() {
                // What the first task has reserved is that of the former limiter.
                queue.release_reservation(unit);
                let mut former = former.borrow_mut();
                former.queues = former.queues.saturating_sub(is_waiting);
            }
            limiter.borrow_mut().queues += is_waiting;
            queue.limiter = Some(Rc::clone(limiter));
        }
        self.recheck(now);
    }

    fn recheck(&mut self, now: Instant) {
        self.has_changed = true;
        if self.check_at.is_some() {
            self.check_at = Some(now);
        }
    }

    /// Adds a task that may start as far as the order of the task set is concerned.
    pub(crate) fn add(&mut self, now: Instant, task: &TaskInfo, cost: Cost) {
        let waiting = Waiting { task: task.id, cost, since: now, refusable: task.key().is_some() };
        let Self { limiter: unit, queues, .. } = self;
        let Some(queue) = queue_of(queues, task.nexus) else { return };
        if queue.waiting.is_empty() {
            unit.queues += 1;
            queue.with_limiter(|limiter| limiter.queues += 1);
        }
        if task.attribute == scsi::status::TaskAttribute::HeadOfQueue {
            queue.release_reservation(unit);
            queue.behind = queue.behind.plus(queue.waiting.front().map_or_else(Cost::default, |w| w.cost));
            queue.waiting.push_front(waiting);
        } else {
            if !queue.waiting.is_empty() {
                queue.behind = queue.behind.plus(cost);
            }
            queue.waiting.push_back(waiting);
        }
        self.has_changed |= queue.waiting.len() > 1;
        self.check_at = Some(now);
    }

    /// Returns whether tasks of a nexus wait.
    pub(crate) fn delays(&self, nexus: NexusId) -> bool {
        self.queues.iter().any(|queue| queue.nexus == nexus && !queue.waiting.is_empty())
    }

    /// Removes a task, which is aborted or was answered.
    pub(crate) fn forget(&mut self, now: Instant, nexus: NexusId, task: TaskId) {
        let Some(queue) = self.queues.iter_mut().find(|queue| queue.nexus == nexus) else { return };
        let Some(at) = queue.waiting.iter().position(|waiting| waiting.task == task) else { return };
        if at == 0 {
            queue.release_reservation(&mut self.limiter);
            queue.take_first(&mut self.limiter);
            self.check_at = Some(now);
        } else if let Some(waiting) = queue.waiting.remove(at) {
            queue.behind = queue.behind.minus(waiting.cost);
        }
    }

    /// Removes the queue of a nexus that is lost. Its tasks are removed before.
    pub(crate) fn forget_queue(&mut self, nexus: NexusId) {
        self.queues.retain(|queue| queue.nexus != nexus || !queue.waiting.is_empty());
    }

    /// Returns the next task whose delay is over.
    pub(crate) fn next(&mut self, now: Instant) -> Option<EndOfDelay> {
        if self.check_at.is_none_or(|at| at > now) {
            return None;
        }
        let mut soonest = None;
        for queue in &mut self.queues {
            match queue.starts_at(now, &mut self.limiter) {
                None => {}
                Some(at) if at > now => {
                    soonest = Some(soonest.map_or(at, |other: Instant| other.min(at)));
                }
                Some(_) => {
                    queue.use_reservation(&mut self.limiter);
                    let Some(first) = queue.take_first(&mut self.limiter) else { continue };
                    return Some(EndOfDelay::Start(first.task, now.since(first.since)));
                }
            }
        }
        if core::mem::take(&mut self.has_changed) {
            let refused = self.queues.iter_mut().find_map(|queue| queue.refuse_last(now, &mut self.limiter));
            if let Some(task) = refused {
                self.has_changed = true;
                return Some(EndOfDelay::Refuse(task));
            }
        }
        self.check_at = soonest.map(|at| at.max(now.after(DELAY_MIN)));
        None
    }

    /// Returns when [`Self::next`] is to be called.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.check_at
    }

    /// Returns how many tasks wait.
    pub(crate) fn waiting(&self) -> u64 {
        let waiting: usize = self.queues.iter().map(|queue| queue.waiting.len()).sum();
        u64::try_from(waiting).unwrap_or(u64::MAX)
    }
}

impl Queue {
    /// Returns when the first task may start, not later than `now` if it may at once; `None` if no task
    /// waits.
    fn starts_at(&mut self, now: Instant, unit: &mut Limiter) -> Option<Instant> {
        let cost = self.waiting.front()?.cost;
        if let Stage::Unreserved = self.stage {
            self.stage = match &self.limiter {
                Some(limiter) => Stage::Initiator(limiter.borrow_mut().reserve(now, cost)),
                None => Stage::Unit { own: None, unit: unit.reserve(now, cost) },
            };
        }
        if let Stage::Initiator(reservation) = self.stage {
            let at = self.limiter.as_ref().map(|limiter| limiter.borrow_mut().starts_at(now, reservation));
            if let Some(at) = at.filter(|at| *at > now) {
                return Some(at);
            }
            self.stage = Stage::Unit { own: Some(reservation), unit: unit.reserve(now, cost) };
        }
        match self.stage {
            Stage::Unit { unit: reservation, .. } => Some(unit.starts_at(now, reservation)),
            Stage::Unreserved | Stage::Initiator(_) => Some(now),
        }
    }

    /// Takes the first task.
    fn take_first(&mut self, unit: &mut Limiter) -> Option<Waiting> {
        let first = self.waiting.pop_front()?;
        match self.waiting.front() {
            Some(next) => self.behind = self.behind.minus(next.cost),
            None => {
                unit.queues = unit.queues.saturating_sub(1);
                self.with_limiter(|limiter| limiter.queues = limiter.queues.saturating_sub(1));
            }
        }
        Some(first)
    }

    /// Uses what the first task has reserved: it starts.
    fn use_reservation(&mut self, unit: &mut Limiter) {
        if let Stage::Unit { own, unit: reservation } = core::mem::replace(&mut self.stage, Stage::Unreserved)
        {
            unit.start(reservation);
            own.into_iter().for_each(|own| self.with_limiter(|limiter| limiter.start(own)));
        }
    }

    /// Gives back what the first task has reserved.
    fn release_reservation(&mut self, unit: &mut Limiter) {
        match core::mem::replace(&mut self.stage, Stage::Unreserved) {
            Stage::Unreserved => {}
            Stage::Initiator(own) => self.with_limiter(|limiter| limiter.refund(own)),
            Stage::Unit { own, unit: reservation } => {
                unit.refund(reservation);
                own.into_iter().for_each(|own| self.with_limiter(|limiter| limiter.refund(own)));
            }
        }
    }

    /// Takes the last task if it would wait for too long behind others.
    fn refuse_last(&mut self, now: Instant, unit: &mut Limiter) -> Option<TaskId> {
        if self.waiting.len() < 2 || !self.waiting.back()?.refusable {
            return None;
        }
        let own = self.limiter.as_ref().map(|limiter| limiter.borrow_mut().delay(now, self.behind));
        if unit.delay(now, self.behind).max(own.unwrap_or_default()) <= DELAY_MAX {
            return None;
        }
        let last = self.waiting.pop_back()?;
        self.behind = self.behind.minus(last.cost);
        Some(last.task)
    }

    fn with_limiter(&self, change: impl FnOnce(&mut Limiter)) {
        if let Some(limiter) = &self.limiter {
            change(&mut limiter.borrow_mut());
        }
    }
}

/// Returns the queue of a nexus, which is created if there is none.
fn queue_of(queues: &mut Vec<Queue>, nexus: NexusId) -> Option<&mut Queue> {
    let at = queues.iter().position(|queue| queue.nexus == nexus).unwrap_or_else(|| {
        let (waiting, behind, stage) = (VecDeque::new(), Cost::default(), Stage::Unreserved);
        queues.push(Queue { nexus, limiter: None, waiting, behind, stage });
        queues.len() - 1
    });
    queues.get_mut(at)
}

/// Returns whether a command of a nexus does not overtake the delayed ones: on devices that execute commands
/// one after the other, unless it only asks what the device is or what has happened.
pub(crate) const fn keeps_order(info: &UnitInfo, task: &TaskInfo) -> bool {
    matches!(info.config.device, DeviceKind::Tape | DeviceKind::PassThrough { .. })
        && !matches!(
            task.cdb.opcode(),
            opcode::TEST_UNIT_READY | opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE
        )
}

/// Returns what a command counts as; `None` for one that is exempt. Commands that read, write, check or erase
/// what is on the medium count. A copy counts by the reads and writes of its copy manager.
pub(crate) fn cost_of(info: &UnitInfo, task: &TaskInfo) -> Option<Cost> {
    let is_disk = info.config.device == DeviceKind::Disk;
    let ranged = match task.cdb.opcode() {
        opcode::READ_6
        | opcode::READ_10
        | opcode::READ_12
        | opcode::READ_16
        | opcode::READ_CD
        | opcode::READ_CD_MSF
        | opcode::WRITE_6
        | opcode::WRITE_10
        | opcode::WRITE_12
        | opcode::WRITE_16
        | opcode::WRITE_ATOMIC_16
        | opcode::ORWRITE_16
        | opcode::COMPARE_AND_WRITE
        | opcode::WRITE_AND_VERIFY_10
        | opcode::WRITE_AND_VERIFY_12
        | opcode::WRITE_AND_VERIFY_16
        | opcode::UNMAP
        | opcode::FORMAT_UNIT
        | opcode::SANITIZE
        | opcode::SYNCHRONIZE_CACHE_10
        | opcode::ERASE_6
        | opcode::VERIFY_6
        | opcode::SPACE_6
        | opcode::LOCATE_16
        | opcode::WRITE_FILEMARKS_6
        | opcode::WRITE_FILEMARKS_16
        // SPACE(16) of a tape drive.
        | opcode::SYNCHRONIZE_CACHE_16 => false,
        opcode::VERIFY_10 => true,
        opcode::VERIFY_12
        | opcode::VERIFY_16
        | opcode::PRE_FETCH_16
        | opcode::WRITE_SAME_10
        // ERASE(16) of a tape drive.
        | opcode::WRITE_SAME_16 => is_disk,
        // READ POSITION of a tape drive.
        opcode::PRE_FETCH_10 if is_disk => true,
        opcode::LOCATE_10 => false,
        opcode::VARIABLE_LENGTH => match service_action(&task.cdb) {
            long::GET_LBA_STATUS_32 => return None,
            action => matches!(action, long::VERIFY_32 | long::WRITE_SAME_32),
        },
        _ => return None,
    };
    let transferred = u64::from(task.data_in_len) + u64::from(task.data_out_len);
    let range = if ranged { info.block_size().len_of(address::fields(&task.cdb).1) } else { None };
    let longest = info.block_size().len_of(Blocks(info.config.transfer_blocks_max.into()));
    let bytes = transferred.max(range.map_or(0, |len| len.0)).min(longest.map_or(u64::MAX, |len| len.0));
    Some(Cost { operations: bytes.div_ceil(OPERATION_BYTES).max(1), bytes })
}

#[cfg(test)]
mod tests;
