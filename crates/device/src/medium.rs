//! The medium as handlers use it: operations with an owner and a tag, held back where an exclusive range forbids them.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::buffer::{DataList, Pool};
use store::Store;
use store::contract::{Failure, Op, OpAction, OpId, Outcome, Profile, Space};

use crate::range_lock::{ByteRange, RangeLocks, Waiter, Want};
use crate::task::TaskId;

/// The medium of a unit, and what is under way on it.
pub(crate) struct MediumAccess {
    store: Box<dyn Store>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    locks: RangeLocks<Op>,
    pool: Pool,
}

/// An operation that ended.
pub(crate) struct Ended {
    pub(crate) owner: TaskId,
    pub(crate) tag: u32,
    pub(crate) result: Result<Outcome, Failure>,
}

/// Who was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// The task that now holds the exclusive range it asked for.
    Exclusive(TaskId),
    /// An operation, which is now under way and may have ended.
    Operation,
}

struct Slot {
    generation: u32,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Free,
    /// Waits for an exclusive range to go.
    HeldBack(Owned),
    UnderWay(Owned),
}

#[derive(Clone, Copy)]
struct Owned {
    owner: TaskId,
    tag: u32,
    range: ByteRange,
    changes: bool,
}

impl MediumAccess {
    /// Takes charge of a medium.
    pub(crate) const fn new(store: Box<dyn Store>, pool: Pool) -> Self {
        Self { store, slots: Vec::new(), free: Vec::new(), locks: RangeLocks::new(), pool }
    }

    /// Returns what the medium is now.
    pub(crate) fn profile(&self) -> Profile {
        self.store.profile()
    }

    /// Returns how much storage the medium takes and could take, if it can tell.
    pub(crate) fn space(&self) -> Option<Space> {
        self.store.space()
    }

    /// Starts an operation, or queues it behind the exclusive range that forbids it.
    pub(crate) fn submit(&mut self, owner: TaskId, tag: u32, action: OpAction) {
        let range = range_of(&action);
        let owned = Owned { owner, tag, range, changes: !matches!(action, OpAction::Read { .. }) };
        if self.locks.admits(owner, range) {
            let id = self.register(State::UnderWay(owned));
            self.store.submit(Op { id, action });
        } else {
            let id = self.register(State::HeldBack(owned));
            self.locks.wait(owner, range, Want::Plain(Op { id, action }));
        }
    }

    /// Returns the ranges of the changes that wait for an exclusive range to go.
    pub(crate) fn writes_held_back(&self) -> Vec<ByteRange> {
        self.locks.waiting_plain().filter(|op| changes(&op.action)).map(|op| range_of(&op.action)).collect()
    }

    /// Asks for an exclusive range. [`Self::grant`] tells when it is held.
    pub(crate) fn lock(&mut self, owner: TaskId, range: ByteRange) {
        self.locks.wait(owner, range, Want::Exclusive);
    }

    /// Releases every exclusive range of `owner`.
    pub(crate) fn unlock(&mut self, owner: TaskId) {
        if !self.locks.is_idle() {
            self.locks.release(owner);
        }
    }

    /// Keeps everybody out of what `owner` is changing until [`Self::unlock`]. For owners that are given up: nobody waits
    /// for their operations, but no later write may be overtaken by them.
    pub(crate) fn fence(&mut self, owner: TaskId) {
        for slot in &self.slots {
            if let State::UnderWay(op) = slot.state
                && op.owner == owner
                && op.changes
            {
                self.locks.hold(owner, op.range);
            }
        }
    }

    /// Lets through the next who has waited long enough. Call again until it gives `None`.
    pub(crate) fn grant(&mut self) -> Option<Granted> {
        if !self.locks.has_waiters() {
            return None;
        }
        let slots = &self.slots;
        let busy = |range: ByteRange| {
            slots.iter().any(|slot| matches!(slot.state, State::UnderWay(op) if op.range.overlaps(range)))
        };
        match self.locks.next(busy)? {
            Waiter { owner, want: Want::Exclusive, .. } => Some(Granted::Exclusive(owner)),
            Waiter { want: Want::Plain(op), .. } => {
                if let Some(slot) = self.slot_mut(op.id)
                    && let State::HeldBack(owned) = slot.state
                {
                    slot.state = State::UnderWay(owned);
                }
                self.store.submit(op);
                Some(Granted::Operation)
            }
        }
    }

    /// Returns the next operation that ended.
    pub(crate) fn poll(&mut self) -> Option<Ended> {
        loop {
            let completion = self.store.poll()?;
            let Some(slot) = self.slot_mut(completion.id) else { continue };
            let State::UnderWay(Owned { owner, tag, .. }) = slot.state else { continue };
            self.release_slot(completion.id);
            return Some(Ended { owner, tag, result: completion.result });
        }
    }

    /// Forgets what `owner` waits for, and returns how many operations that were.
    pub(crate) fn forget_waiting(&mut self, owner: TaskId) -> u32 {
        if !self.locks.has_waiters() {
            return 0;
        }
        let mut dropped = Vec::new();
        self.locks.forget(owner, |op| dropped.push(op));
        let count = u32::try_from(dropped.len()).unwrap_or(u32::MAX);
        for op in dropped {
            self.release_slot(op.id);
            if let OpAction::Write { data, .. } = op.action {
                self.recycle(data);
            }
        }
        count
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
            self.free.push(u32::try_from(id.0 & 0xffff_ffff).unwrap_or(u32::MAX));
        }
    }
}

fn to_usize(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// Whether an operation changes bytes of the medium.
pub(crate) const fn changes(action: &OpAction) -> bool {
    match action {
        OpAction::Write { .. }
        | OpAction::Deallocate { .. }
        | OpAction::WriteZeroes { .. }
        | OpAction::ForgetKey => true,
        OpAction::Read { .. } | OpAction::Flush | OpAction::Extents { .. } => false,
    }
}

/// The bytes an operation touches.
pub(crate) fn range_of(action: &OpAction) -> ByteRange {
    let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
    match action {
        OpAction::Read { at, len } => ByteRange::new(*at, wide(*len)),
        OpAction::Write { at, data, .. } => ByteRange::new(*at, wide(data.len())),
        OpAction::Deallocate { at, len } | OpAction::WriteZeroes { at, len, .. } => ByteRange::new(*at, *len),
        OpAction::Flush | OpAction::Extents { .. } | OpAction::ForgetKey => ByteRange::NOTHING,
    }
}
