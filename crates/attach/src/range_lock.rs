//! Locks ranges of bytes against changes at the same time.
//!
//! A change that does not cover whole logical blocks is a read-modify-write. Meanwhile no other change may
//! touch those blocks: the write-back would undo a write that was already acknowledged. So each change takes
//! the range lock: changes of whole blocks share it, and a read-modify-write holds its range exclusively.
//! Waiting changes get the lock in the order of their arrival, so that none starves.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The callback that runs once its range is free.
type Entrant = Box<dyn FnOnce(RangeGuard) + Send>;

/// The range lock of one medium.
#[derive(Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    inside: Vec<Visit>,
    waiting: VecDeque<(Visit, Entrant)>,
    /// The visits that have ended and still count as inside.
    released: Vec<u64>,
    /// Whether a thread handles [`Self::released`].
    is_releasing: bool,
}

#[derive(Clone)]
struct Visit {
    id: u64,
    range: Range<u64>,
    alone: bool,
}

impl Visit {
    fn excludes(&self, other: &Self) -> bool {
        let overlap = self.range.start < other.range.end && other.range.start < self.range.end;
        overlap && (self.alone || other.alone)
    }
}

/// A locked range; dropping the guard unlocks it.
pub(crate) struct RangeGuard {
    gate: Arc<RangeLock>,
    id: u64,
}

impl RangeLock {
    /// Runs `entrant` as soon as `range` is free for it: at once, or on the thread that releases the range.
    pub(crate) fn acquire(self: &Arc<Self>, range: Range<u64>, alone: bool, entrant: Entrant) {
        let mut state = self.lock();
        let visit = Visit { id: state.next_id, range, alone };
        state.next_id += 1;
        let blocked = |other: &Visit| other.excludes(&visit);
        if state.inside.iter().any(blocked) || state.waiting.iter().any(|(other, _)| blocked(other)) {
            state.waiting.push_back((visit, entrant));
            return;
        }
        let pass = RangeGuard { gate: Arc::clone(self), id: visit.id };
        state.inside.push(visit);
        drop(state);
        entrant(pass);
    }

    /// Unlocks a range, and runs the entrants that this lets in. An entrant can release its range at once:
    /// what it releases is handled here when it has returned, not within it, or many that wait would use up
    /// the stack.
    fn release(self: &Arc<Self>, id: u64) {
        let mut state = self.lock();
        state.released.push(id);
        if std::mem::replace(&mut state.is_releasing, true) {
            return;
        }
        while !state.released.is_empty() {
            let free = self.admit(&mut state);
            drop(state);
            for (pass, entrant) in free {
                entrant(pass);
            }
            state = self.lock();
        }
        state.is_releasing = false;
    }

    /// Ends the visits that were released, and returns the changes that are let in by that.
    fn admit(self: &Arc<Self>, state: &mut State) -> Vec<(RangeGuard, Entrant)> {
        let mut released = std::mem::take(&mut state.released);
        released.sort_unstable();
        state.inside.retain(|visit| released.binary_search(&visit.id).is_err());
        let (mut free, mut still) = (Vec::new(), VecDeque::with_capacity(state.waiting.len()));
        for (visit, entrant) in std::mem::take(&mut state.waiting) {
            let blocked = |other: &Visit| other.excludes(&visit);
            if state.inside.iter().any(blocked) || still.iter().any(|(other, _)| blocked(other)) {
                still.push_back((visit, entrant));
            } else {
                free.push((RangeGuard { gate: Arc::clone(self), id: visit.id }, entrant));
                state.inside.push(visit);
            }
        }
        state.waiting = still;
        free
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No thread panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.gate.release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Locks ranges and records which of them are held, with their guards.
    struct LockFixture {
        gate: Arc<RangeLock>,
        inside: Arc<Mutex<Vec<(u32, RangeGuard)>>>,
    }

    impl LockFixture {
        fn new() -> Self {
            Self { gate: Arc::default(), inside: Arc::default() }
        }

        fn visit(&self, name: u32, range: Range<u64>, alone: bool) {
            let inside = Arc::clone(&self.inside);
            self.gate.acquire(range, alone, Box::new(move |pass| inside.lock().unwrap().push((name, pass))));
        }

        fn leave(&self, name: u32) {
            let mut inside = self.inside.lock().unwrap();
            let at = inside.iter().position(|(other, _)| *other == name).unwrap();
            let pass = inside.remove(at);
            drop(inside);
            drop(pass);
        }

        fn names(&self) -> Vec<u32> {
            self.inside.lock().unwrap().iter().map(|(name, _)| *name).collect()
        }
    }

    #[test]
    fn changes_of_whole_granules_go_side_by_side() {
        let fixture = LockFixture::new();
        fixture.visit(1, 0..10, false);
        fixture.visit(2, 5..15, false);
        assert_eq!(fixture.names(), [1, 2]);
    }

    #[test]
    fn a_patching_change_is_alone_in_its_range_only() {
        let fixture = LockFixture::new();
        fixture.visit(1, 0..10, true);
        fixture.visit(2, 5..15, false);
        fixture.visit(3, 10..20, true);
        assert_eq!(fixture.names(), [1], "3 waits behind 2, which came first");
        fixture.visit(4, 20..30, true);
        assert_eq!(fixture.names(), [1, 4]);
        fixture.leave(1);
        assert_eq!(fixture.names(), [4, 2]);
        fixture.leave(2);
        assert_eq!(fixture.names(), [4, 3]);
    }

    /// A disk that has shrunk refuses each of many changes as it begins.
    #[test]
    fn changes_that_end_at_once_use_no_stack_however_many_wait() {
        const COUNT: u32 = 2000;
        let fixture = LockFixture::new();
        fixture.visit(1, 0..10, true);
        let ended = Arc::new(Mutex::new(0));
        for _ in 0..COUNT {
            let ended = Arc::clone(&ended);
            let at_once = Box::new(move |_: RangeGuard| *ended.lock().unwrap() += 1);
            // They share their range, so that each is let in by the first.
            fixture.gate.acquire(0..10, false, at_once);
        }
        fixture.visit(2, 0..10, true);
        fixture.leave(1);
        assert_eq!((*ended.lock().unwrap(), fixture.names()), (COUNT, vec![2]));
        // And one after the other.
        for _ in 0..200 {
            let ended = Arc::clone(&ended);
            let slow = Box::new(move |pass: RangeGuard| {
                let _used = [0_u8; 64 << 10];
                std::hint::black_box(&_used);
                drop(pass);
                *ended.lock().unwrap() += 1;
            });
            fixture.gate.acquire(0..10, true, slow);
        }
        fixture.leave(2);
        assert_eq!(*ended.lock().unwrap(), COUNT + 200);
    }

    #[test]
    fn a_waiting_patch_is_not_overtaken_by_a_stream_of_others() {
        let fixture = LockFixture::new();
        fixture.visit(1, 0..10, false);
        fixture.visit(2, 0..10, true);
        fixture.visit(3, 0..10, false);
        assert_eq!(fixture.names(), [1]);
        fixture.leave(1);
        assert_eq!(fixture.names(), [2]);
        fixture.leave(2);
        assert_eq!(fixture.names(), [3]);
    }
}
