//! Locks ranges of bytes against changes at the same time.
//!
//! A change that does not cover whole logical blocks is a read-modify-write. Meanwhile no other change may
//! touch those blocks: the write-back would undo a write that was already acknowledged. So each change takes
//! the range lock: changes of whole blocks share it, and a read-modify-write holds its range exclusively.
//! Waiting changes get the lock in the order of their arrival, so that none starves.
//!
//! A change that is still executed when its client has gone is *orphaned*. Nothing may use its range before
//! it has ended: its data would land on newer data, or change what was read already. So an orphaned change
//! holds its range exclusively, against reads too, and a client that has gone gets no further lock.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The callback that runs once its range is free, or once its client has gone.
type Entrant = Box<dyn FnOnce(Result<RangeGuard, ClientGone>) + Send>;

/// The callback of a read, which runs once no orphaned change overlaps it.
type Reader = Box<dyn FnOnce() + Send>;

/// The range lock of one medium.
#[derive(Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
    /// Whether a change inside may be orphaned. If not, reads need no look at the state.
    has_orphans: AtomicBool,
}

/// One of the clients whose changes take the lock.
#[derive(Default)]
pub(crate) struct LockClient {
    is_gone: AtomicBool,
}

/// The client has gone: the change must not be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientGone;

#[derive(Default)]
struct State {
    next_id: u64,
    inside: Vec<Visit>,
    waiting: VecDeque<(Visit, Entrant)>,
    /// The reads that wait for orphaned changes.
    readers: Vec<(Range<u64>, Reader)>,
    /// The visits that have ended and still count as inside.
    released: Vec<u64>,
    /// Whether a thread handles [`Self::released`].
    is_releasing: bool,
}

#[derive(Clone)]
struct Visit {
    id: u64,
    client: Arc<LockClient>,
    range: Range<u64>,
    alone: bool,
}

/// The callbacks that a release lets run.
#[derive(Default)]
struct Admitted {
    changes: Vec<(Result<RangeGuard, ClientGone>, Entrant)>,
    reads: Vec<Reader>,
}

impl LockClient {
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

impl Visit {
    fn excludes(&self, other: &Self) -> bool {
        let exclusive = |visit: &Self| visit.alone || visit.client.is_gone();
        self.overlaps(&other.range) && (exclusive(self) || exclusive(other))
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

impl State {
    fn has_orphans(&self) -> bool {
        self.inside.iter().any(|visit| visit.client.is_gone())
    }

    fn has_orphans_in(&self, range: &Range<u64>) -> bool {
        self.inside.iter().any(|visit| visit.client.is_gone() && visit.overlaps(range))
    }
}

/// A locked range; dropping the guard unlocks it.
pub(crate) struct RangeGuard {
    gate: Arc<RangeLock>,
    id: u64,
}

impl RangeLock {
    /// Runs `entrant` as soon as `range` is free for it: at once, or on the thread that releases the range.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        client: &Arc<LockClient>,
        range: Range<u64>,
        alone: bool,
        entrant: Entrant,
    ) {
        let mut state = self.lock();
        // Under the lock, so that a change is either refused or inside when its client is abandoned.
        if client.is_gone() {
            drop(state);
            return entrant(Err(ClientGone));
        }
        let visit = Visit { id: state.next_id, client: Arc::clone(client), range, alone };
        state.next_id += 1;
        let blocked = |other: &Visit| other.excludes(&visit);
        if state.inside.iter().any(blocked) || state.waiting.iter().any(|(other, _)| blocked(other)) {
            state.waiting.push_back((visit, entrant));
            return;
        }
        let pass = RangeGuard { gate: Arc::clone(self), id: visit.id };
        state.inside.push(visit);
        drop(state);
        entrant(Ok(pass));
    }

    /// Records that a client has gone. Its changes that are executed are orphaned now; those that wait, and
    /// any that come, are refused.
    pub(crate) fn abandon(&self, client: &LockClient) {
        let state = self.lock();
        // A thread that sees the client gone also sees that there may be orphans, and waits for the lock.
        self.has_orphans.store(true, Ordering::Release);
        client.is_gone.store(true, Ordering::Release);
        self.has_orphans.store(state.has_orphans(), Ordering::Release);
    }

    /// Returns whether reads must wait for orphaned changes, with [`Self::read_after_orphans`].
    pub(crate) fn has_orphans(&self) -> bool {
        self.has_orphans.load(Ordering::Acquire)
    }

    /// Runs `reader` as soon as no orphaned change overlaps `range`.
    pub(crate) fn read_after_orphans(&self, range: Range<u64>, reader: Reader) {
        let mut state = self.lock();
        if state.has_orphans_in(&range) {
            state.readers.push((range, reader));
            return;
        }
        drop(state);
        reader();
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
            let Admitted { changes, reads } = self.admit(&mut state);
            drop(state);
            for (pass, entrant) in changes {
                entrant(pass);
            }
            reads.into_iter().for_each(|reader| reader());
            state = self.lock();
        }
        state.is_releasing = false;
    }

    /// Ends the visits that were released, and returns the changes and reads that are let in by that, and the
    /// changes whose client has gone.
    fn admit(self: &Arc<Self>, state: &mut State) -> Admitted {
        let mut released = std::mem::take(&mut state.released);
        released.sort_unstable();
        state.inside.retain(|visit| released.binary_search(&visit.id).is_err());
        let (mut admitted, mut still) = (Admitted::default(), VecDeque::with_capacity(state.waiting.len()));
        for (visit, entrant) in std::mem::take(&mut state.waiting) {
            let blocked = |other: &Visit| other.excludes(&visit);
            if visit.client.is_gone() {
                admitted.changes.push((Err(ClientGone), entrant));
            } else if state.inside.iter().any(blocked) || still.iter().any(|(other, _)| blocked(other)) {
                still.push_back((visit, entrant));
            } else {
                let pass = RangeGuard { gate: Arc::clone(self), id: visit.id };
                admitted.changes.push((Ok(pass), entrant));
                state.inside.push(visit);
            }
        }
        state.waiting = still;
        for (range, reader) in std::mem::take(&mut state.readers) {
            if state.has_orphans_in(&range) {
                state.readers.push((range, reader));
            } else {
                admitted.reads.push(reader);
            }
        }
        self.has_orphans.store(state.has_orphans(), Ordering::Release);
        admitted
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
        client: Arc<LockClient>,
        inside: Arc<Mutex<Vec<(u32, RangeGuard)>>>,
        refused: Arc<Mutex<Vec<u32>>>,
        read: Arc<Mutex<Vec<u32>>>,
    }

    impl LockFixture {
        fn new() -> Self {
            Self {
                gate: Arc::default(),
                client: Arc::default(),
                inside: Arc::default(),
                refused: Arc::default(),
                read: Arc::default(),
            }
        }

        fn visit(&self, name: u32, range: Range<u64>, alone: bool) {
            self.visit_of(&self.client, name, range, alone);
        }

        fn visit_of(&self, client: &Arc<LockClient>, name: u32, range: Range<u64>, alone: bool) {
            let (inside, refused) = (Arc::clone(&self.inside), Arc::clone(&self.refused));
            let entrant = move |pass| match pass {
                Ok(pass) => inside.lock().unwrap().push((name, pass)),
                Err(ClientGone) => refused.lock().unwrap().push(name),
            };
            self.gate.acquire(client, range, alone, Box::new(entrant));
        }

        fn read(&self, name: u32, range: Range<u64>) {
            let read = Arc::clone(&self.read);
            self.gate.read_after_orphans(range, Box::new(move || read.lock().unwrap().push(name)));
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
            let at_once = Box::new(move |_: Result<RangeGuard, ClientGone>| *ended.lock().unwrap() += 1);
            // They share their range, so that each is let in by the first.
            fixture.gate.acquire(&fixture.client, 0..10, false, at_once);
        }
        fixture.visit(2, 0..10, true);
        fixture.leave(1);
        assert_eq!((*ended.lock().unwrap(), fixture.names()), (COUNT, vec![2]));
        // And one after the other.
        for _ in 0..200 {
            let ended = Arc::clone(&ended);
            let slow = Box::new(move |pass: Result<RangeGuard, ClientGone>| {
                let _used = [0_u8; 64 << 10];
                std::hint::black_box(&_used);
                drop(pass);
                *ended.lock().unwrap() += 1;
            });
            fixture.gate.acquire(&fixture.client, 0..10, true, slow);
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

    #[test]
    fn an_orphaned_change_is_alone_in_its_range() {
        let fixture = LockFixture::new();
        let dead: Arc<LockClient> = Arc::default();
        fixture.visit_of(&dead, 1, 0..10, false);
        fixture.visit(2, 0..10, false);
        fixture.gate.abandon(&dead);
        assert!(fixture.gate.has_orphans());
        fixture.visit(3, 5..15, false);
        fixture.visit(4, 10..20, false);
        fixture.read(5, 5..15);
        fixture.read(6, 10..20);
        assert_eq!(fixture.names(), [1, 2, 4], "2 came before the end of the client");
        assert_eq!(*fixture.read.lock().unwrap(), [6]);
        fixture.leave(2);
        assert_eq!((fixture.names(), fixture.read.lock().unwrap().len()), (vec![1, 4], 1));
        fixture.leave(1);
        assert_eq!((fixture.names(), fixture.read.lock().unwrap().clone()), (vec![4, 3], vec![6, 5]));
        assert!(!fixture.gate.has_orphans());
    }

    #[test]
    fn a_client_that_has_gone_gets_no_further_lock() {
        let fixture = LockFixture::new();
        let dead: Arc<LockClient> = Arc::default();
        fixture.visit(1, 0..10, true);
        fixture.visit_of(&dead, 2, 0..10, false);
        fixture.gate.abandon(&dead);
        assert!(!fixture.gate.has_orphans());
        fixture.visit(3, 0..10, false);
        fixture.visit_of(&dead, 4, 20..30, false);
        assert_eq!((fixture.names(), fixture.refused.lock().unwrap().clone()), (vec![1], vec![4]));
        fixture.leave(1);
        assert_eq!((fixture.names(), fixture.refused.lock().unwrap().clone()), (vec![3], vec![4, 2]));
    }
}
