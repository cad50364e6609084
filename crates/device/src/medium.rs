//! Access to the medium for handlers: operations with an owner and a tag, delayed where a range lock requires
//! it.

mod cached_changes;
mod device_return;
mod in_flight;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::buffer::{DataList, Pool};
use base::int_cast::to_usize;
use base::time::{Duration, Instant};
use store::Store;
use store::api::{Capabilities, Durability, Failure, Fault, Op, OpAction, OpId, OpOutput, Space};

use crate::range_lock::{AccessKind, ByteRange, LockRequest, RangeLocks, Waiter};
use crate::task::TaskId;
use cached_changes::CachedChanges;
use in_flight::InFlight;

/// The limits on abandoned operations, and on bytes in their buffers, before a unit refuses commands that use
/// the medium. An abandoned operation no longer counts against the memory quota of any session; a medium that
/// hangs for ever must not collect the buffers of one command after another.
const ABANDONED_MAX: usize = 128;
const ABANDONED_BYTES_MAX: u64 = 64 << 20;

/// Deallocating and zeroing are one operation for a range of any length. The time limit of such an operation
/// is extended by one more limit for every whole piece of this many bytes (as a power of two): 70 MB/s with
/// the default limit, slower than any disk in use.
const BULK_PIECE_SHIFT: u32 = 32;

/// The medium of a unit, and the operations in progress on it.
pub(crate) struct MediumAccess {
    store: Box<dyn Store>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    locks: RangeLocks<Op>,
    pool: Pool,
    /// Counts the calls of [`Self::drain_mark`].
    epoch: u32,
    /// Operations that are reported to their owners as failed although the medium has not ended them.
    expired: VecDeque<EndedOp>,
    /// How many operations the medium has in progress, abandoned ones included.
    busy: usize,
    /// The operations in progress that are not abandoned.
    in_flight: InFlight,
    /// Whether something has changed since [`Self::grant`] last returned `None`.
    may_grant: bool,
    abandoned: usize,
    abandoned_bytes: u64,
    expired_ever: u64,
    /// Whether an abandoned flush has failed since [`Self::take_late_flush_failure`] was last called.
    late_flush_failed: bool,
    /// Whether the medium had a volatile cache when its capabilities were last adopted.
    is_cached: bool,
    cached: CachedChanges,
}

/// An operation that ended.
pub(crate) struct EndedOp {
    pub(crate) owner: TaskId,
    pub(crate) tag: u32,
    /// Whether it was a flush.
    pub(crate) flushes: bool,
    pub(crate) result: Result<OpOutput, Failure>,
}

/// The waiter that was granted its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// The task that now holds the exclusive range that it requested.
    Exclusive(TaskId),
    /// An operation, which is now submitted and may have ended.
    Operation,
}

struct Slot {
    generation: u32,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Free,
    /// Waits for a range lock to be released.
    Queued(OwnedOp),
    InFlight(OwnedOp),
    /// In progress, but no task waits for it. It keeps its buffers, and its range if it changes the medium.
    Abandoned(OwnedOp),
}

#[derive(Clone, Copy)]
struct OwnedOp {
    owner: TaskId,
    tag: u32,
    range: ByteRange,
    access: AccessKind,
    changes: bool,
    /// The epoch in which the operation was submitted, if it is a change that may be acknowledged before it
    /// is durable.
    cached_since: Option<u32>,
    /// Whether the medium then had a volatile cache.
    is_cached: bool,
    /// Whether the write cache was enabled then, and has been disabled without a flush since.
    is_owed: bool,
    flushes: bool,
    /// The acknowledged changes that the operation makes durable if it is a flush.
    covers: u64,
    /// How many bytes the operation holds in buffers.
    held_bytes: u64,
    /// When the operation was requested.
    since: Instant,
}

impl OwnedOp {
    /// Returns when the operation exceeds the time limit.
    fn expires(&self, limit: Duration) -> Instant {
        let len = if self.held_bytes == 0 { self.range.end.saturating_sub(self.range.start) } else { 0 };
        let times = u32::try_from(len >> BULK_PIECE_SHIFT).unwrap_or(u32::MAX).saturating_add(1);
        self.since.after(limit.saturating_mul(times))
    }
}

impl MediumAccess {
    /// Takes ownership of a medium.
    pub(crate) const fn new(store: Box<dyn Store>, pool: Pool) -> Self {
        Self {
            store,
            slots: Vec::new(),
            free: Vec::new(),
            locks: RangeLocks::new(),
            pool,
            expired: VecDeque::new(),
            busy: 0,
            in_flight: InFlight::new(),
            may_grant: false,
            abandoned: 0,
            abandoned_bytes: 0,
            expired_ever: 0,
            late_flush_failed: false,
            is_cached: false,
            cached: CachedChanges::new(),
            epoch: 0,
        }
    }

    /// Returns the present capabilities of the medium.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Returns the present capabilities of the medium, which apply to operations from now on.
    pub(crate) fn adopt_capabilities(&mut self) -> Capabilities {
        let capabilities = self.store.capabilities();
        self.is_cached = capabilities.volatile_cache;
        capabilities
    }

    /// Returns how much storage the medium uses and could use, if it can report that.
    pub(crate) fn space(&self) -> Option<Space> {
        self.store.space()
    }

    /// Returns whether the medium does not answer now.
    pub(crate) fn is_away(&self) -> bool {
        self.store.is_away()
    }

    /// Returns the last bytes of the image of a writable disc, if the medium is one.
    pub(crate) fn trailer(&self) -> Option<Vec<u8>> {
        self.store.trailer()
    }

    /// Starts an operation, or queues it behind the range lock that it conflicts with.
    pub(crate) fn submit(&mut self, now: Instant, owner: TaskId, tag: u32, action: OpAction) {
        let range = range_of(&action);
        let cached_since = is_cached(&action).then_some(self.epoch);
        let owned = OwnedOp {
            owner,
            tag,
            range,
            access: touch_of(&action),
            changes: !matches!(action, OpAction::Read { .. }),
            cached_since,
            is_cached: cached_since.is_some() && self.is_cached,
            is_owed: false,
            flushes: matches!(action, OpAction::Flush),
            covers: self.cached.mark(),
            held_bytes: held_bytes(&action),
            since: now,
        };
        let touch = owned.access;
        if self.locks.admits(owner, range, touch)
            && (!self.in_flight.clashes(range, touch) || self.locks.holds(owner))
        {
            let id = self.register(State::InFlight(owned));
            self.busy += 1;
            self.in_flight.begin(slot_of(id), range, touch);
            self.store.submit(Op { id, action });
        } else {
            let id = self.register(State::Queued(owned));
            self.may_grant = true;
            self.locks.wait(now, owner, range, LockRequest::Plain(Op { id, action }, touch));
        }
    }

    /// Returns whether the medium has ended every operation submitted to it.
    pub(crate) const fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// Returns whether no operation is in progress, no request waits, and no result has yet to be polled.
    pub(crate) fn is_at_rest(&self) -> bool {
        // Every field is named here, so that a new one is not forgotten by those who hand a unit over.
        let Self {
            store: _,
            slots: _,
            free: _,
            locks,
            pool: _,
            epoch: _,
            expired,
            busy,
            in_flight: _,
            may_grant: _,
            abandoned: _,
            abandoned_bytes: _,
            expired_ever: _,
            late_flush_failed: _,
            is_cached: _,
            cached: _,
        } = self;
        *busy == 0 && expired.is_empty() && locks.is_idle() && !locks.has_waiters()
    }

    /// Returns whether an abandoned flush has failed and nobody has been told.
    pub(crate) const fn has_late_flush_failure(&self) -> bool {
        self.late_flush_failed
    }

    /// Returns whether an owner waits for the medium.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.busy > self.abandoned || self.locks.has_waiters()
    }

    /// Returns whether so many operations are abandoned that no more may be submitted.
    pub(crate) const fn has_too_many_abandoned(&self) -> bool {
        self.abandoned >= ABANDONED_MAX || self.abandoned_bytes >= ABANDONED_BYTES_MAX
    }

    /// Returns whether a flush failed whose owner had ended or had received a timeout, and clears that
    /// record.
    pub(crate) const fn take_late_flush_failure(&mut self) -> bool {
        core::mem::replace(&mut self.late_flush_failed, false)
    }

    /// Forgets which operations in progress are flushes, that one failed late, and what is not flushed: this
    /// was on a medium that has been replaced.
    pub(crate) fn forget_flushes(&mut self) {
        self.late_flush_failed = false;
        self.cached = CachedChanges::new();
        self.expired.iter_mut().for_each(|ended| ended.flushes = false);
        for slot in &mut self.slots {
            if let State::Queued(op) | State::InFlight(op) | State::Abandoned(op) = &mut slot.state {
                op.flushes = false;
            }
        }
    }

    /// Returns the earliest time at which an operation or lock request that a task waits for exceeds the time
    /// limit.
    pub(crate) fn next_expiry(&self, limit: Duration) -> Option<Instant> {
        let operations = self.slots.iter().filter_map(|slot| slot.awaited()).map(|op| op.expires(limit));
        operations.chain(self.awaited_ranges().map(|(_, since)| since.after(limit))).min()
    }

    /// Returns the tasks that wait for an exclusive range, and since when. The unit's own work on the medium
    /// may wait without limit.
    fn awaited_ranges(&self) -> impl Iterator<Item = (TaskId, Instant)> {
        self.locks.waiting_exclusive().filter(|(owner, _)| *owner != TaskId::BACKGROUND)
    }

    /// Ends the wait of every owner for longer than `limit`: operations end with [`Fault::Busy`], and the
    /// returned tasks no longer wait for an exclusive range. The medium continues its operations.
    pub(crate) fn expire(&mut self, now: Instant, limit: Duration) -> Vec<TaskId> {
        let late = |(at, slot): (usize, &Slot)| {
            let op = slot.awaited().filter(|op| op.expires(limit) <= now)?;
            Some((at, slot.generation, op))
        };
        let late: Vec<_> = self.slots.iter().enumerate().filter_map(late).collect();
        for (at, generation, op) in late {
            let OwnedOp { owner, tag, flushes, .. } = op;
            let Ok(index) = u32::try_from(at) else { continue };
            let id = OpId(u64::from(generation) << 32 | u64::from(index));
            if matches!(self.slots.get(at).map(|slot| slot.state), Some(State::Queued(_))) {
                if let Some(op) = self.locks.take_plain(|waiting| waiting.id == id) {
                    self.drop_unstarted(op);
                }
            } else {
                self.abandon_slot(index, op);
            }
            self.expired_ever = self.expired_ever.saturating_add(1);
            self.expired.push_back(EndedOp { owner, tag, flushes, result: Err(Fault::Busy.into()) });
        }
        let late = self.awaited_ranges().filter(|(_, since)| since.after(limit) <= now);
        late.map(|(owner, _)| owner).collect()
    }

    /// Returns how many operations have exceeded the time limit so far.
    pub(crate) const fn expired_ever(&self) -> u64 {
        self.expired_ever
    }

    /// Abandons the operations of `owner` that are in progress: no task waits for them any more. The ranges
    /// that they change stay locked until the medium has ended them, so that such an operation cannot
    /// overwrite a later write.
    pub(crate) fn abandon(&mut self, owner: TaskId) {
        for at in 0..self.slots.len() {
            if let Some(State::InFlight(op)) = self.slots.get(at).map(|slot| slot.state)
                && op.owner == owner
                && let Ok(index) = u32::try_from(at)
            {
                self.abandon_slot(index, op);
            }
        }
        self.expired.retain(|ended| ended.owner != owner);
    }

    fn abandon_slot(&mut self, index: u32, op: OwnedOp) {
        if op.changes {
            self.locks.lock_now(TaskId::abandoned(index), op.range);
        }
        self.in_flight.end(index);
        self.may_grant = true;
        self.abandoned += 1;
        self.abandoned_bytes = self.abandoned_bytes.saturating_add(op.held_bytes);
        if let Some(slot) = self.slots.get_mut(to_usize(index)) {
            slot.state = State::Abandoned(op);
        }
    }

    /// Returns a mark after every operation submitted so far, for [`Self::has_drained`].
    pub(crate) const fn drain_mark(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Returns whether no change that was submitted before `mark`, and may be acknowledged before it is
    /// durable, is in progress or queued.
    pub(crate) fn has_drained(&self, mark: u32) -> bool {
        self.slots.iter().all(|slot| match slot.state {
            // An abandoned operation was not acknowledged.
            State::Free | State::Abandoned(_) => true,
            State::Queued(op) | State::InFlight(op) => {
                op.cached_since.is_none_or(|since| mark.wrapping_sub(since).cast_signed() <= 0)
            }
        })
    }

    /// Returns the ranges of the changes that wait for a range lock to be released.
    pub(crate) fn writes_held_back(&self) -> Vec<ByteRange> {
        self.locks.waiting_plain().filter(|op| op.action.is_change()).map(|op| range_of(&op.action)).collect()
    }

    /// Requests an exclusive range. [`Self::grant`] reports when it is held.
    pub(crate) fn lock(&mut self, now: Instant, owner: TaskId, range: ByteRange) {
        self.may_grant = true;
        self.locks.wait(now, owner, range, LockRequest::Exclusive);
    }

    /// Releases every exclusive range of `owner`.
    pub(crate) fn unlock(&mut self, owner: TaskId) {
        if !self.locks.is_idle() {
            self.may_grant = true;
            self.locks.release(owner);
        }
    }

    /// Locks the ranges that `owner` is changing until [`Self::unlock`]. This is for owners that are aborted:
    /// no task waits for their operations, but none of these may overwrite a later write.
    pub(crate) fn lock_unfinished_writes(&mut self, owner: TaskId) {
        for slot in &self.slots {
            if let State::InFlight(op) = slot.state
                && op.owner == owner
                && op.changes
            {
                self.locks.lock_now(owner, op.range);
            }
        }
    }

    /// Grants the next waiting request that can proceed. Call again until it returns `None`.
    pub(crate) fn grant(&mut self) -> Option<Granted> {
        if !self.may_grant || !self.locks.has_waiters() {
            return None;
        }
        let under_way = &self.in_flight;
        // An abandoned operation that changes its range holds that range as a lock.
        let busy = |range: ByteRange, touch: Option<AccessKind>| {
            touch.map_or_else(|| under_way.touches(range), |touch| under_way.clashes(range, touch))
        };
        let Some(waiter) = self.locks.next(busy) else {
            self.may_grant = false;
            return None;
        };
        match waiter {
            Waiter { owner, request: LockRequest::Exclusive, .. } => Some(Granted::Exclusive(owner)),
            Waiter { request: LockRequest::Plain(op, touch), range, .. } => {
                if let Some(slot) = self.slot_mut(op.id)
                    && let State::Queued(owned) = slot.state
                {
                    slot.state = State::InFlight(owned);
                }
                self.busy += 1;
                self.in_flight.begin(slot_of(op.id), range, touch);
                self.store.submit(op);
                Some(Granted::Operation)
            }
        }
    }

    /// Returns the next operation that ended.
    pub(crate) fn poll(&mut self) -> Option<EndedOp> {
        if let Some(ended) = self.expired.pop_front() {
            return Some(ended);
        }
        loop {
            let completion = self.store.poll()?;
            let Some(slot) = self.slot_mut(completion.id) else { continue };
            match slot.state {
                State::InFlight(OwnedOp { owner, tag, flushes, is_cached, is_owed, covers, .. }) => {
                    self.busy -= 1;
                    if completion.result.is_ok() {
                        if is_cached {
                            self.cached.acknowledge();
                            if is_owed {
                                self.cached.owe();
                            }
                        } else if flushes {
                            self.cached.flushed(covers);
                        }
                    }
                    self.in_flight.end(slot_of(completion.id));
                    self.may_grant = true;
                    self.release_slot(completion.id);
                    return Some(EndedOp { owner, tag, flushes, result: completion.result });
                }
                State::Abandoned(op) => {
                    self.busy -= 1;
                    self.release_slot(completion.id);
                    let answer = self.finish_abandoned(completion.id, op, completion.result);
                    if answer.is_some() {
                        return answer;
                    }
                }
                State::Free | State::Queued(_) => {}
            }
        }
    }

    /// Handles the end of an operation that no task waits for. Returns what a device answered, which may be a
    /// unit attention.
    fn finish_abandoned(
        &mut self,
        id: OpId,
        op: OwnedOp,
        result: Result<OpOutput, Failure>,
    ) -> Option<EndedOp> {
        self.abandoned -= 1;
        self.abandoned_bytes = self.abandoned_bytes.saturating_sub(op.held_bytes);
        self.unlock(TaskId::abandoned(slot_of(id)));
        self.late_flush_failed |= op.flushes
            && result.as_ref().is_err_and(|failure| failure.fault != Fault::NotSubmitted)
            && !self.keeps_changes();
        match result {
            Ok(OpOutput::Data(data) | OpOutput::Done(data)) => self.recycle(data),
            Ok(OpOutput::Response(_)) => {
                let owner = TaskId::abandoned(slot_of(id));
                return Some(EndedOp { owner, tag: op.tag, flushes: false, result });
            }
            Ok(OpOutput::MapStatus(_)) | Err(_) => {}
        }
        None
    }

    /// Removes the requests that `owner` waits for, and returns how many operations were among them.
    pub(crate) fn forget_waiting(&mut self, owner: TaskId) -> u32 {
        if !self.locks.has_waiters() {
            return 0;
        }
        let mut dropped = Vec::new();
        self.may_grant = true;
        self.locks.forget(owner, |op| dropped.push(op));
        let count = u32::try_from(dropped.len()).unwrap_or(u32::MAX);
        dropped.into_iter().for_each(|op| self.drop_unstarted(op));
        count
    }

    fn drop_unstarted(&mut self, op: Op) {
        self.may_grant = true;
        self.release_slot(op.id);
        if let OpAction::Write { data, .. } = op.action {
            self.recycle(data);
        }
    }

    /// Gives the blocks of `data` back to the pool.
    pub(crate) fn recycle(&self, data: DataList) {
        for part in data.into_parts() {
            self.pool.recycle(part);
        }
    }

    fn register(&mut self, state: State) -> OpId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: State::Free });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(slot) = self.slots.get_mut(to_usize(index)) else { return OpId(u64::MAX) };
        slot.state = state;
        OpId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    fn slot_mut(&mut self, id: OpId) -> Option<&mut Slot> {
        let (generation, index) = (id.0 >> 32, id.0 & 0xffff_ffff);
        let slot = self.slots.get_mut(usize::try_from(index).ok()?)?;
        (u64::from(slot.generation) == generation).then_some(slot)
    }

    fn release_slot(&mut self, id: OpId) {
        if let Some(slot) = self.slot_mut(id) {
            slot.state = State::Free;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(slot_of(id));
        }
    }
}

impl Slot {
    /// Returns the operation if a task waits for it. The unit's own work on the medium has no time limit, nor
    /// has that of a cartridge.
    fn awaited(&self) -> Option<OwnedOp> {
        match self.state {
            State::Queued(op) | State::InFlight(op)
                if !matches!(op.owner, TaskId::BACKGROUND | TaskId::TAPE | TaskId::DEVICE) =>
            {
                Some(op)
            }
            _ => None,
        }
    }
}

/// Returns how many bytes an operation holds in buffers.
fn held_bytes(action: &OpAction) -> u64 {
    let len = match action {
        OpAction::Read { len, .. } => *len,
        OpAction::Write { data, .. } => data.len(),
        OpAction::Command(command) => command.transfer.len(),
        _ => 0,
    };
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Returns the slot of an operation.
fn slot_of(id: OpId) -> u32 {
    u32::try_from(id.0 & 0xffff_ffff).unwrap_or(u32::MAX)
}

/// Returns whether an operation changes bytes and may be acknowledged before the change is durable.
const fn is_cached(action: &OpAction) -> bool {
    match action {
        OpAction::Write { durability, .. } | OpAction::WriteZeroes { durability, .. } => {
            matches!(durability, Durability::Cached)
        }
        OpAction::Deallocate { .. } => true,
        _ => false,
    }
}

/// Returns how an operation accesses its bytes.
const fn touch_of(action: &OpAction) -> AccessKind {
    match action {
        OpAction::Read { .. } => AccessKind::Reads,
        // Some media zero a range by writing it, in pieces.
        OpAction::Write { .. } | OpAction::WriteZeroes { .. } => AccessKind::Writes,
        _ => AccessKind::Other,
    }
}

/// Returns the bytes that an operation reads or changes.
pub(crate) fn range_of(action: &OpAction) -> ByteRange {
    match (action, action.range()) {
        (OpAction::MapStatus { .. } | OpAction::Command(_) | OpAction::Reset, _) => ByteRange::NOTHING,
        (_, (at, len)) => ByteRange::new(at, len),
    }
}
