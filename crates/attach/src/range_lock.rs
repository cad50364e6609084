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

    fn release(self: &Arc<Self>, id: u64) {
        let mut free = Vec::new();
        let mut state = self.lock();
        state.inside.retain(|visit| visit.id != id);
        let mut still = VecDeque::with_capacity(state.waiting.len());
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
        drop(state);
        for (pass, entrant) in free {
            entrant(pass);
        }
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
