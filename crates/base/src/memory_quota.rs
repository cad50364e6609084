//! Memory quotas: memory for data in flight, shared so that no session starves because of the greed of
//! another.
//!
//! An engine of a target has three quotas: for unsolicited data, for solicited data, and for responses that
//! wait to be sent. Each is bounded on its own, so none waits for another. A session may take more only if it
//! then holds no more than what remains free (the dynamic thresholds of Choudhury and Hahne, 1998). A single
//! greedy session gets half. Many greedy sessions leave about as much free as each of them holds, and a
//! session that holds nothing finds free memory. A session that finds none waits in a queue, or is told to
//! try again.
//!
//! The free memory can be too small all the time for one large step, since small steps of other sessions fit
//! again and again. So while any session waits, a part is kept free for sessions that hold nothing and have
//! waited for a while. Among these the one that has waited longest has priority, whatever it needs: the
//! others leave that much free until it has got it.

use alloc::collections::VecDeque;

use crate::arena::Key;
use crate::time::{Duration, Instant};

/// A bound on the memory of one kind of data that peers can make us allocate.
#[derive(Debug)]
pub struct MemoryQuota {
    used: usize,
    max: usize,
    /// The queue of sessions that wait for memory.
    line: VecDeque<Key>,
    /// Sessions that began to wait, or got something, since the queue was last checked. They are after the
    /// queue.
    behind: VecDeque<Key>,
    /// How many sessions in the queue were not checked since memory was released, or since [`LATE`] passed
    /// without a release.
    unserved: usize,
    looked: Instant,
    /// The session that holds nothing and has waited longest.
    eldest: Option<Eldest>,
}

/// A waiting session that others must not overtake.
#[derive(Clone, Copy, Debug)]
struct Eldest {
    since: Instant,
    wants: usize,
    /// When its reservation was last refused.
    asked: Instant,
}

/// The memory that one session holds of a quota.
#[derive(Debug, Default)]
pub struct QuotaShare {
    held: usize,
    in_line: bool,
    /// Since when the session has got nothing of what it wanted.
    wants_since: Option<Instant>,
    /// Whether the session was dequeued to try again.
    its_turn: bool,
}

/// What a session that holds nothing gets even when memory is short, in bytes: one step of a small operation.
/// With the usual limit of 4096 sessions, all of them doing so, this exceeds a quota by 256 MiB.
const FLOOR: usize = 64 << 10;

/// The part of a quota that is kept for late sessions while any session waits: one in `KEPT`.
const KEPT: usize = 4;

/// How many times what remains free a session may hold after [`MemoryQuota::try_reserve_beyond`]: a quarter
/// of the quota stays free for other sessions.
const BEYOND: usize = 3;

/// After waiting this long, a session that holds nothing need not leave as much free as it takes. This is
/// many times what a medium needs for one step.
const LATE: Duration = Duration::from_millis(100);

/// A session that waited longest, but has not asked again for this long, no longer wants the memory.
const GONE: Duration = Duration::from_secs(1);

/// How many waiting sessions are checked between two other events.
pub const WAITERS_PER_TURN: usize = 16;

impl MemoryQuota {
    /// Creates a quota of `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self {
            used: 0,
            max,
            line: VecDeque::new(),
            behind: VecDeque::new(),
            unserved: 0,
            looked: Instant::ORIGIN,
            eldest: None,
        }
    }

    /// Takes `len` bytes for a session, if it may have them. Returns whether it got them. A step larger than
    /// the whole quota is allowed alone, when it is the session's turn; or nearly alone, when the session has
    /// waited longest.
    pub fn try_reserve(&mut self, now: Instant, share: &mut QuotaShare, len: usize) -> bool {
        let used = self.used.saturating_add(len);
        let held = share.held.saturating_add(len);
        let others_wait = self.has_waiters();
        let late = share.held == 0 && share.wants_since.is_some_and(|since| now.since(since) >= LATE);
        self.eldest = self.eldest.filter(|eldest| now.since(eldest.asked) < GONE);
        let is_eldest = late && len > FLOOR && share.is_older(self.eldest);
        let ahead = self.eldest.filter(|_| !is_eldest).map_or(0, |eldest| eldest.wants.min(self.max));
        let kept = if others_wait { self.max / KEPT } else { 0 }.max(ahead);
        let leaves_as_much = (self.max - kept).checked_sub(used).is_some_and(|free| held <= free);
        let alone = self.used == 0 && (share.its_turn || !others_wait);
        let small = share.held == 0 && len <= FLOOR;
        // Small steps of other sessions may never leave it alone.
        let nearly_alone = is_eldest && len > self.max && self.used <= self.max / KEPT;
        let in_time = late && used.saturating_add(ahead) <= self.max;
        let fits = len == 0 || alone || leaves_as_much || small || in_time || nearly_alone;
        if is_eldest {
            let since = share.wants_since.unwrap_or(now);
            self.eldest = (!fits).then_some(Eldest { since, wants: len, asked: now });
        }
        if fits {
            (self.used, share.held) = (used, held);
            (share.wants_since, share.its_turn) = (None, false);
        }
        fits
    }

    /// As [`Self::try_reserve`], for a step that must not wait for what the session already holds. The
    /// session may then hold `BEYOND` times what remains free. A small step may use all of the quota.
    pub fn try_reserve_beyond(&mut self, now: Instant, share: &mut QuotaShare, len: usize) -> bool {
        let used = self.used.saturating_add(len);
        let held = share.held.saturating_add(len);
        self.eldest = self.eldest.filter(|eldest| now.since(eldest.asked) < GONE);
        let ahead = self.eldest.map_or(0, |eldest| eldest.wants.min(self.max));
        let leaves_enough =
            (self.max - ahead).checked_sub(used).is_some_and(|free| held <= free.saturating_mul(BEYOND));
        let fits = len == 0 || leaves_enough || len <= FLOOR && used <= self.max;
        if fits {
            (self.used, share.held) = (used, held);
            (share.wants_since, share.its_turn) = (None, false);
        }
        fits
    }

    /// Returns how much to reserve for a step that announces `len` bytes, where `most` is all that a session
    /// may have under way. It is no more than the half that a greedy session gets, since a session may
    /// announce any length and then take its time. Data received beyond that is [charged](Self::charge) when
    /// it is received. The result stays above what is granted even when memory is short.
    pub fn reservation_len(&self, len: usize, most: usize) -> usize {
        len.min(most.min(self.max / 2).max(FLOOR + 1))
    }

    /// Takes `len` bytes that were already received, beyond what was reserved for them.
    pub const fn charge(&mut self, share: &mut QuotaShare, len: usize) {
        self.used = self.used.saturating_add(len);
        share.held = share.held.saturating_add(len);
    }

    /// Releases bytes; `share` is `None` when the session that held them has ended.
    pub fn release(&mut self, share: Option<&mut QuotaShare>, len: usize) {
        if len == 0 {
            return;
        }
        self.used = self.used.saturating_sub(len);
        if let Some(share) = share {
            share.held = share.held.saturating_sub(len);
        }
        if self.has_waiters() {
            self.look_again();
        }
    }

    fn look_again(&mut self) {
        self.line.append(&mut self.behind);
        self.unserved = self.line.len();
    }

    /// Adds a session that got no memory to the queue, once.
    pub fn enqueue_waiter(&mut self, now: Instant, session: Key, share: &mut QuotaShare) {
        if !self.has_waiters() {
            self.looked = now;
        }
        share.wants_since.get_or_insert(now);
        let was_called = core::mem::take(&mut share.its_turn);
        if !core::mem::replace(&mut share.in_line, true) {
            if was_called { &mut self.line } else { &mut self.behind }.push_back(session);
        }
    }

    /// Dequeues the next session that may get memory now. The session is queued again if it does not.
    #[inline]
    pub fn next_waiter(&mut self, now: Instant) -> Option<Key> {
        // This is called several times for each command.
        if self.has_waiters() { self.next_of_line(now) } else { None }
    }

    fn next_of_line(&mut self, now: Instant) -> Option<Key> {
        // A waiting session may have become late, although nothing was released. And if no memory is in use,
        // no session will release any.
        if self.unserved == 0 && (self.used == 0 || now.since(self.looked) >= LATE) {
            self.look_again();
            self.looked = now;
        }
        self.unserved = self.unserved.checked_sub(1)?;
        self.line.pop_front()
    }

    /// Returns whether a session waits for memory.
    pub fn has_waiters(&self) -> bool {
        !self.line.is_empty() || !self.behind.is_empty()
    }

    /// Returns how many bytes are in use.
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Returns whether more than half of the quota is in use.
    pub const fn is_under_pressure(&self) -> bool {
        self.used > self.max / 2
    }

    /// Returns whether a session should not be encouraged to send more: memory is short, and the session
    /// holds some of it.
    pub const fn should_throttle(&self, share: &QuotaShare) -> bool {
        self.used > self.max / 2 && share.held > FLOOR
    }
}

impl QuotaShare {
    /// Returns how many bytes the session holds.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Returns whether the session has waited as long as the one that waited longest.
    fn is_older(&self, eldest: Option<Eldest>) -> bool {
        eldest.is_none_or(|eldest| self.wants_since.is_some_and(|since| since <= eldest.since))
    }

    /// Records that the session was dequeued, so that it may try again.
    pub const fn mark_dequeued(&mut self) {
        (self.in_line, self.its_turn) = (false, true);
    }
}

#[cfg(test)]
mod tests;
