//! The share of each medium: how many of its operations are with the kernel at the same time.
//!
//! An operation on a disk that hangs keeps its worker until the disk answers. If media shared a number of
//! workers, one such disk would take them all, and the healthy ones would wait. So each medium has limits of
//! its own, and the number of workers is bounded by their sum only. What exceeds a limit waits in the queue
//! of its medium. The classes of one medium have separate limits too, so that a copy that takes minutes does
//! not delay its reads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use base::state_machine::MediumId;
use base::time::Instant;

use super::{FileDone, FileOpKind, PendingOp};

/// How an operation is carried out, and what it may keep busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// By the ring. The kernel does not wait for the disk while it takes the operation, and needs a worker
    /// only where the queue of the disk is full.
    Ring,
    /// A write into the page cache. File systems do these one after the other for each file, so one thread
    /// does all that have come.
    CachedWrite,
    /// A read or write for which a thread waits.
    Transfer,
    /// Everything else. Some of these operations take minutes.
    Long,
}

/// A value for each class.
#[derive(Default)]
struct ByClass<T> {
    ring: T,
    cached_write: T,
    transfer: T,
    long: T,
}

impl<T> ByClass<T> {
    const fn of(&self, class: Class) -> &T {
        match class {
            Class::Ring => &self.ring,
            Class::CachedWrite => &self.cached_write,
            Class::Transfer => &self.transfer,
            Class::Long => &self.long,
        }
    }
}

/// The most operations of one medium that the ring has: enough to keep any disk busy.
pub(super) const RING_MAX: usize = 64;

/// The most writes into the page cache that one thread is given in one piece, so that others follow soon.
pub(super) const CACHED_WRITES_MAX: usize = 64;

/// The most reads and writes of one medium for which threads wait. With many media each has less, so that
/// hosts whose disks all hang cannot use up the threads of the system.
const TRANSFERS_MAX: usize = 24;
const TRANSFERS_MIN: usize = 2;
const TRANSFERS_OF_ALL: usize = 768;

/// The same for other operations.
const LONG_MAX: usize = 6;
const LONG_MIN: usize = 1;
const LONG_OF_ALL: usize = 256;

/// A medium that has ended none of its operations for this long does not answer.
const STALLED: Duration = Duration::from_millis(50);

/// The operations of one medium.
pub(super) struct QueueState {
    pub(super) medium: MediumId,
    pub(super) done: RefCell<VecDeque<FileDone>>,
    /// Whether the queue is listed in `Hub::ready`.
    pub(super) listed: Cell<bool>,
    /// Whether the queue is listed in `Hub::writers`.
    pub(super) writes: Cell<bool>,
    waiting: ByClass<RefCell<VecDeque<PendingOp>>>,
    running: ByClass<Cell<usize>>,
    /// When an operation of a class other than [`Class::Ring`] last began with none running, or ended.
    moved: Cell<Instant>,
    media: Rc<Cell<usize>>,
}

impl QueueState {
    /// Creates the queue of a medium. `media` counts the queues of the reactor.
    pub(super) fn new(medium: MediumId, media: Rc<Cell<usize>>) -> Self {
        media.set(media.get() + 1);
        Self {
            medium,
            done: RefCell::default(),
            listed: Cell::new(false),
            writes: Cell::new(false),
            waiting: ByClass::default(),
            running: ByClass::default(),
            moved: Cell::new(Instant::ORIGIN),
            media,
        }
    }

    /// Returns `work` if it may begin now. Otherwise it waits until [`Self::end`] returns it.
    pub(super) fn begin(&self, work: PendingOp, now: impl FnOnce() -> Instant) -> Option<PendingOp> {
        let class = work.class;
        if self.running.of(class).get() >= self.limit(class) {
            self.waiting.of(class).borrow_mut().push_back(work);
            return None;
        }
        self.count(class, 1, now);
        Some(work)
    }

    /// Ends an operation of this class. Returns the next one, which has begun.
    pub(super) fn end(&self, class: Class, now: Instant) -> Option<PendingOp> {
        let running = self.running.of(class);
        running.set(running.get().saturating_sub(1));
        self.moved.set(now);
        if class == Class::CachedWrite || running.get() >= self.limit(class) {
            return None;
        }
        let next = self.waiting.of(class).borrow_mut().pop_front()?;
        running.set(running.get() + 1);
        Some(next)
    }

    /// Lets a write into the page cache wait for [`Self::begin_writes`].
    pub(super) fn put_write(&self, work: PendingOp) {
        self.waiting.cached_write.borrow_mut().push_back(work);
    }

    /// Returns whether [`Self::begin_writes`] returns something.
    pub(super) fn may_write(&self) -> bool {
        self.running.cached_write.get() == 0 && !self.waiting.cached_write.borrow().is_empty()
    }

    /// Returns the writes into the page cache that one thread does next. Those before must have ended.
    pub(super) fn begin_writes(&self, now: impl FnOnce() -> Instant) -> Vec<PendingOp> {
        let mut waiting = self.waiting.cached_write.borrow_mut();
        let count = waiting.len().min(CACHED_WRITES_MAX);
        let works: Vec<_> = waiting.drain(..count).collect();
        self.count(Class::CachedWrite, works.len(), now);
        works
    }

    /// Returns whether operations that threads do have begun, and none of them has ended for a while.
    pub(super) fn is_stalled(&self, now: impl FnOnce() -> Instant) -> bool {
        self.threads_running() > 0 && now().since(self.moved.get()) >= STALLED
    }

    /// Returns whether an operation runs that is neither a read nor a write.
    pub(super) fn has_long(&self) -> bool {
        self.running.long.get() > 0
    }

    fn count(&self, class: Class, count: usize, now: impl FnOnce() -> Instant) {
        if class != Class::Ring && self.threads_running() == 0 {
            self.moved.set(now());
        }
        let running = self.running.of(class);
        running.set(running.get() + count);
    }

    fn threads_running(&self) -> usize {
        let ByClass { ring: _, cached_write, transfer, long } = &self.running;
        cached_write.get() + transfer.get() + long.get()
    }

    fn limit(&self, class: Class) -> usize {
        let media = self.media.get().max(1);
        match class {
            Class::Ring => RING_MAX,
            Class::CachedWrite => CACHED_WRITES_MAX,
            Class::Transfer => (TRANSFERS_OF_ALL / media).clamp(TRANSFERS_MIN, TRANSFERS_MAX),
            Class::Long => (LONG_OF_ALL / media).clamp(LONG_MIN, LONG_MAX),
        }
    }
}

impl Drop for QueueState {
    fn drop(&mut self) {
        self.media.set(self.media.get().saturating_sub(1));
    }
}

impl Class {
    /// Returns the class of an operation that a thread does.
    pub(super) fn of(kind: &FileOpKind, direct: bool) -> Self {
        match kind {
            FileOpKind::Write { stable: false, .. } if !direct => Self::CachedWrite,
            FileOpKind::Read { .. } | FileOpKind::Write { .. } => Self::Transfer,
            _ => Self::Long,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "all of this is test code, where a panic is the verdict")]
mod tests {
    use std::fs::File;

    use super::super::{FileOp, IoFile};
    use super::*;

    const EARLY: Instant = Instant(1);
    const LATE: Instant = Instant(10_000_000_000);

    fn media(count: usize) -> Vec<Rc<QueueState>> {
        let media = Rc::new(Cell::new(0));
        (0..count).map(|_| Rc::new(QueueState::new(MediumId(0), Rc::clone(&media)))).collect()
    }

    fn op(lane: &Rc<QueueState>, token: u64, class: Class) -> PendingOp {
        let file = IoFile::new(File::open("/dev/null").unwrap(), false);
        let op = FileOp { token, file, kind: FileOpKind::Sync { data_only: true } };
        PendingOp { op, done: 0, lane: Rc::clone(lane), class }
    }

    #[test]
    fn a_medium_has_a_share_of_each_class_and_the_rest_waits_in_order() {
        let lanes = media(2);
        for class in [Class::Ring, Class::Transfer, Class::Long] {
            for lane in &lanes {
                let begun = (0..1000).filter_map(|token| lane.begin(op(lane, token, class), || EARLY));
                let begun: Vec<u64> = begun.map(|work| work.op.token).collect();
                let limit = u64::try_from(lane.limit(class)).unwrap();
                assert_eq!(begun, (0..limit).collect::<Vec<_>>(), "{class:?}");
                assert_eq!(lane.end(class, EARLY).map(|work| work.op.token), Some(limit), "{class:?}");
            }
        }
    }

    #[test]
    fn the_threads_of_all_media_are_bounded_and_none_is_without() {
        for count in [1, 10, 100, 2000] {
            let lanes = media(count);
            let (transfers, long) = (lanes[0].limit(Class::Transfer), lanes[0].limit(Class::Long));
            assert!(transfers >= 2 && long >= 1);
            let all = count * (transfers + long);
            assert!(all <= TRANSFERS_OF_ALL + LONG_OF_ALL || (transfers, long) == (2, 1), "{count}: {all}");
        }
    }

    #[test]
    fn one_thread_writes_for_a_medium_what_has_come_since_the_last_one() {
        let lane = &media(1)[0];
        let put = |token| lane.put_write(op(lane, token, Class::CachedWrite));
        (0..3).for_each(put);
        assert_eq!(lane.begin_writes(|| EARLY).len(), 3);
        (3..200).for_each(put);
        for _ in 0..3 {
            assert!(!lane.may_write());
            assert!(lane.end(Class::CachedWrite, EARLY).is_none());
        }
        assert!(lane.may_write());
        assert_eq!(lane.begin_writes(|| EARLY).len(), CACHED_WRITES_MAX);
    }

    #[test]
    fn a_medium_that_ends_nothing_for_a_while_is_stalled() {
        let lane = &media(1)[0];
        assert!(!lane.is_stalled(|| LATE));
        assert!(lane.begin(op(lane, 0, Class::Transfer), || EARLY).is_some());
        assert!(lane.begin(op(lane, 1, Class::Long), || LATE).is_some());
        assert!(!lane.is_stalled(|| EARLY) && lane.is_stalled(|| LATE));
        lane.end(Class::Long, LATE);
        assert!(!lane.is_stalled(|| LATE), "one has ended");
    }
}
