//! Range locks: exclusive byte ranges of the medium, for commands that must be atomic against every other
//! access (COMPARE AND WRITE, ORWRITE, WRITE ATOMIC). They also order reads and writes of the same bytes.
//!
//! A plain operation of the medium may start if it overlaps no exclusive range of another owner. While no
//! exclusive range exists and nothing waits, this check is one comparison. Requests that must wait stand in
//! one queue in order of arrival, so that none starves: a plain operation also waits behind an exclusive
//! range that is only requested, and behind a queued operation that it conflicts with.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::time::Instant;

use crate::task::TaskId;

/// A range of bytes of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl ByteRange {
    /// A range that overlaps no other: that of an operation that accesses no bytes.
    pub(crate) const NOTHING: Self = Self { start: 0, end: 0 };

    /// Returns the range of `len` bytes at `at`.
    pub(crate) const fn new(at: u64, len: u64) -> Self {
        Self { start: at, end: at.saturating_add(len) }
    }

    /// Returns whether the ranges have a byte in common.
    pub(crate) const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The exclusive ranges held, and the queue. `P` is the plain operation that waits.
#[derive(Debug)]
pub(crate) struct RangeLocks<P> {
    held: Vec<(TaskId, ByteRange)>,
    waiting: VecDeque<Waiter<P>>,
}

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Waiter<P> {
    pub(crate) owner: TaskId,
    pub(crate) range: ByteRange,
    pub(crate) request: LockRequest<P>,
    /// When the request was queued.
    since: Instant,
}

/// What a plain operation does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Reads,
    Writes,
    /// An operation that neither reads nor writes data.
    Other,
}

impl AccessKind {
    /// Returns whether operations of these kinds must not be in progress together on the same bytes: the page
    /// cache of Linux copies a block to a reader while it is being written, so that a reader could receive a
    /// block that is partly old.
    pub(crate) const fn conflicts_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Reads, Self::Writes) | (Self::Writes, Self::Reads))
    }
}

/// What a queued request waits for.
#[derive(Debug)]
pub(crate) enum LockRequest<P> {
    /// An exclusive range.
    Exclusive,
    /// The start of a plain operation.
    Plain(P, AccessKind),
}

impl<P> LockRequest<P> {
    /// Returns whether this request must not pass the request `earlier` for the same bytes.
    const fn waits_for(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Plain(_, own), Self::Plain(_, earlier)) => own.conflicts_with(*earlier),
            _ => true,
        }
    }
}

impl<P> RangeLocks<P> {
    /// Creates an empty set of locks.
    pub(crate) const fn new() -> Self {
        Self { held: Vec::new(), waiting: VecDeque::new() }
    }

    /// Returns whether no range is held or requested.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Returns whether any request waits.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether a plain operation of `owner` may start now. The holder of an exclusive range always
    /// may: it keeps to its range.
    pub(crate) fn admits(&self, owner: TaskId, range: ByteRange, touch: AccessKind) -> bool {
        self.is_idle()
            || self.holds(owner)
            || !self.blocked_by_held(range) && !self.blocked_by_asked(range, touch)
    }

    /// Adds a request to the queue.
    pub(crate) fn wait(&mut self, since: Instant, owner: TaskId, range: ByteRange, want: LockRequest<P>) {
        self.waiting.push_back(Waiter { owner, range, request: want, since });
    }

    /// Gives `owner` an exclusive range at once, even if operations of others are in progress there.
    pub(crate) fn lock_now(&mut self, owner: TaskId, range: ByteRange) {
        self.held.push((owner, range));
    }

    /// Removes the first request that can proceed from the queue and returns it. An exclusive range is then
    /// held. `busy` returns whether operations in progress access a range, or conflict there with a plain
    /// operation.
    pub(crate) fn next(&mut self, busy: impl Fn(ByteRange, Option<AccessKind>) -> bool) -> Option<Waiter<P>> {
        let ready = |(at, waiter): (usize, &Waiter<P>)| {
            let touch = match &waiter.request {
                LockRequest::Exclusive => None,
                LockRequest::Plain(_, touch) => Some(*touch),
            };
            !self.blocked_by_held(waiter.range)
                && !busy(waiter.range, touch)
                && !self.waiting.iter().take(at).any(|earlier| {
                    waiter.request.waits_for(&earlier.request) && earlier.range.overlaps(waiter.range)
                })
        };
        let at = self.waiting.iter().enumerate().position(ready)?;
        let waiter = self.waiting.remove(at)?;
        if matches!(waiter.request, LockRequest::Exclusive) {
            self.held.push((waiter.owner, waiter.range));
        }
        Some(waiter)
    }

    /// Returns the plain operations in the queue.
    pub(crate) fn waiting_plain(&self) -> impl Iterator<Item = &P> {
        self.waiting.iter().filter_map(|waiter| match &waiter.request {
            LockRequest::Plain(plain, _) => Some(plain),
            LockRequest::Exclusive => None,
        })
    }

    /// Returns the tasks that wait for an exclusive range, and since when.
    pub(crate) fn waiting_exclusive(&self) -> impl Iterator<Item = (TaskId, Instant)> {
        let exclusive = |waiter: &&Waiter<P>| matches!(waiter.request, LockRequest::Exclusive);
        self.waiting.iter().filter(exclusive).map(|waiter| (waiter.owner, waiter.since))
    }

    /// Removes one plain operation from the queue.
    pub(crate) fn take_plain(&mut self, chosen: impl Fn(&P) -> bool) -> Option<P> {
        let is_it =
            |waiter: &Waiter<P>| matches!(&waiter.request, LockRequest::Plain(plain, _) if chosen(plain));
        let at = self.waiting.iter().position(is_it)?;
        match self.waiting.remove(at)?.request {
            LockRequest::Plain(plain, _) => Some(plain),
            LockRequest::Exclusive => None,
        }
    }

    /// Releases every exclusive range of `owner`.
    pub(crate) fn release(&mut self, owner: TaskId) {
        self.held.retain(|(holder, _)| *holder != owner);
    }

    /// Removes the requests of `owner` from the queue, and passes its plain operations to `dropped`.
    pub(crate) fn forget(&mut self, owner: TaskId, mut dropped: impl FnMut(P)) {
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(waiter) if waiter.owner != owner => self.waiting.push_back(waiter),
                Some(Waiter { request: LockRequest::Plain(plain, _), .. }) => dropped(plain),
                _ => {}
            }
        }
    }

    /// Returns whether `owner` holds an exclusive range.
    pub(crate) fn holds(&self, owner: TaskId) -> bool {
        self.held.iter().any(|(holder, _)| *holder == owner)
    }

    fn blocked_by_held(&self, range: ByteRange) -> bool {
        self.held.iter().any(|(_, held)| held.overlaps(range))
    }

    fn blocked_by_asked(&self, range: ByteRange, touch: AccessKind) -> bool {
        let goes_first = |waiter: &&Waiter<P>| match &waiter.request {
            LockRequest::Exclusive => true,
            LockRequest::Plain(_, earlier) => touch.conflicts_with(*earlier),
        };
        self.waiting.iter().filter(goes_first).any(|waiter| waiter.range.overlaps(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TaskId = TaskId { slot: 0, generation: 0 };
    const B: TaskId = TaskId { slot: 1, generation: 0 };
    const C: TaskId = TaskId { slot: 2, generation: 0 };

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn lock(locks: &mut RangeLocks<u32>, owner: TaskId, at: ByteRange, busy: bool) -> bool {
        locks.wait(Instant::ORIGIN, owner, at, LockRequest::Exclusive);
        locks.next(|_, _| busy).is_some_and(|waiter| waiter.owner == owner)
    }

    #[test]
    fn an_exclusive_range_stops_others_and_not_its_holder() {
        let mut locks = RangeLocks::new();
        assert!(lock(&mut locks, A, range(10, 20), false));
        assert!(locks.admits(A, range(10, 20), AccessKind::Reads));
        assert!(!locks.admits(B, range(19, 30), AccessKind::Reads));
        assert!(locks.admits(B, range(20, 30), AccessKind::Reads));
        locks.release(A);
        assert!(locks.is_idle());
    }

    #[test]
    fn an_exclusive_range_waits_for_operations_under_way_and_holds_back_later_ones() {
        let mut locks = RangeLocks::new();
        assert!(!lock(&mut locks, A, range(0, 10), true));
        assert!(!locks.admits(B, range(5, 6), AccessKind::Reads));
        locks.wait(Instant::ORIGIN, B, range(5, 6), LockRequest::Plain(7, AccessKind::Reads));
        assert!(locks.next(|_, _| true).is_none());
        assert_eq!(locks.next(|_, _| false).unwrap().owner, A);
        assert!(locks.next(|_, _| false).is_none());
        locks.release(A);
        assert!(matches!(
            locks.next(|_, _| false).unwrap().request,
            LockRequest::Plain(7, AccessKind::Reads)
        ));
    }

    #[test]
    fn the_queue_is_served_in_order_where_ranges_overlap() {
        let mut locks = RangeLocks::<u32>::new();
        assert!(lock(&mut locks, A, range(0, 10), false));
        assert!(!lock(&mut locks, B, range(5, 15), false));
        assert!(!lock(&mut locks, C, range(12, 20), false));
        locks.release(A);
        assert_eq!(locks.next(|_, _| false).unwrap().owner, B);
        locks.release(B);
        assert_eq!(locks.next(|_, _| false).unwrap().owner, C);
    }

    #[test]
    fn who_leaves_the_queue_lets_the_others_through() {
        let mut locks = RangeLocks::new();
        assert!(lock(&mut locks, A, range(0, 10), false));
        locks.wait(Instant::ORIGIN, B, range(0, 10), LockRequest::Exclusive);
        locks.wait(Instant::ORIGIN, B, range(50, 60), LockRequest::Plain(1, AccessKind::Reads));
        locks.wait(Instant::ORIGIN, C, range(0, 1), LockRequest::Plain(2, AccessKind::Reads));
        let mut dropped = 0;
        locks.forget(B, |plain| dropped += plain);
        assert_eq!(dropped, 1);
        locks.release(A);
        assert_eq!(locks.next(|_, _| false).unwrap().owner, C);
        assert!(locks.is_idle());
    }

    #[test]
    fn reads_and_writes_of_the_same_bytes_take_turns_in_order_of_arrival() {
        let mut locks = RangeLocks::new();
        for (owner, touch, at) in
            [(A, AccessKind::Writes, (0, 8)), (B, AccessKind::Reads, (4, 5)), (C, AccessKind::Writes, (4, 8))]
        {
            locks.wait(Instant::ORIGIN, owner, range(at.0, at.1), LockRequest::Plain(0, touch));
        }
        // A read is in progress there: it delays the write, and operations that conflict with the write wait
        // behind it.
        assert!(locks.next(|_, touch| touch == Some(AccessKind::Writes)).is_none());
        assert!(!locks.admits(B, range(0, 1), AccessKind::Reads));
        assert!(locks.admits(B, range(8, 9), AccessKind::Reads));
        assert!(locks.admits(B, range(0, 1), AccessKind::Other));
        assert_eq!(locks.next(|_, _| false).unwrap().owner, A);
        assert_eq!(locks.next(|_, _| false).unwrap().owner, B);
        assert_eq!(locks.next(|_, _| false).unwrap().owner, C);
    }
}
