//! Memory for data in flight, shared so that nobody's greed is somebody else's want.
//!
//! An engine of a target has three: for data that comes unasked, for data that it asks for, and for answers that wait to
//! be sent. Each bounds itself, so none waits for another. A session may take more only while it holds no more than what is left
//! over then (the dynamic thresholds of Choudhury and Hahne, 1998): a greedy one alone gets half, many greedy ones
//! leave about as much free as each of them holds, and who holds nothing finds room. Who finds none waits in line, or
//! is told to come again.
//!
//! What is free may be too little all the time for one large step, as small ones of others fit again and again. So a part
//! is kept free while somebody waits: for who holds nothing, and has waited for a while. Of those the one that has waited the longest
//! comes first, whatever it needs: the others leave as much free until it has got it.

use alloc::collections::VecDeque;

use crate::arena::Key;
use crate::time::{Duration, Instant};

/// A bound on the memory that peers can make us take for data of one kind.
#[derive(Debug)]
pub struct MemoryQuota {
    used: usize,
    max: usize,
    /// Sessions that wait for room.
    line: VecDeque<Key>,
    /// Those who came, or got something, since the line was looked at: they stand behind it.
    behind: VecDeque<Key>,
    /// How many of them were not looked at since room was made, or since a while went by without any.
    unserved: usize,
    looked: Instant,
    /// Who holds nothing and has waited the longest.
    eldest: Option<Eldest>,
}

/// What somebody waits for that shall not be passed.
#[derive(Clone, Copy, Debug)]
struct Eldest {
    since: Instant,
    wants: usize,
    /// When it was refused last.
    asked: Instant,
}

/// What one session holds of a budget.
#[derive(Debug, Default)]
pub struct QuotaShare {
    held: usize,
    in_line: bool,
    /// Since when it got nothing of what it wanted.
    wants_since: Option<Instant>,
    /// Whether it was called out of the line.
    its_turn: bool,
}

/// What a session that holds nothing gets although memory is short: one step of anything small. With the usual limit of
/// 4096 sessions, all of them at it, this goes 256 MiB beyond a budget.
const FLOOR: usize = 64 << 10;

/// How much of a budget is kept for those who are late while somebody waits: one in so many.
const KEPT: usize = 4;

/// After this long, who holds nothing need not leave as much as it takes: many times what a medium takes for one step.
const LATE: Duration = Duration::from_millis(100);

/// After this long without asking again, who waited the longest does not want it any more.
const GONE: Duration = Duration::from_secs(1);

/// How many sessions in line are looked at between two other things.
pub const WAITERS_PER_TURN: usize = 16;

impl MemoryQuota {
    /// Makes a budget of `max` bytes.
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

    /// Takes `len` bytes for a session, if it may have them. What is larger than all there is passes alone, when it is its
    /// turn, or nearly so, when it has waited the longest.
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
        // Small steps may never leave it alone.
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

    /// Returns how much one step takes that says it needs `len` bytes, where `most` is all that a session may have under way:
    /// no more than the half that a greedy session gets, since it may say anything and then take its time. What it brings
    /// beyond that is [charged](Self::charge) when it is there. It stays more than what passes although memory is short.
    pub fn reservation_len(&self, len: usize, most: usize) -> usize {
        len.min(most.min(self.max / 2).max(FLOOR + 1))
    }

    /// Takes `len` bytes that are there already, beyond what was taken for them.
    pub const fn charge(&mut self, share: &mut QuotaShare, len: usize) {
        self.used = self.used.saturating_add(len);
        share.held = share.held.saturating_add(len);
    }

    /// Gives bytes back; `share` is `None` when the session that held them is gone.
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

    /// Lines a session up that found no room, once.
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

    /// Takes the next session out of the line that may find room now; it lines up again if it does not.
    #[inline]
    pub fn next_waiter(&mut self, now: Instant) -> Option<Key> {
        // This is asked several times for each command.
        if self.has_waiters() { self.next_of_line(now) } else { None }
    }

    fn next_of_line(&mut self, now: Instant) -> Option<Key> {
        // Who waits may be late by now, though nothing was given back; and where nothing is taken, nobody will give anything
        // back.
        if self.unserved == 0 && (self.used == 0 || now.since(self.looked) >= LATE) {
            self.look_again();
            self.looked = now;
        }
        self.unserved = self.unserved.checked_sub(1)?;
        self.line.pop_front()
    }

    /// Returns whether somebody waits for room.
    pub fn has_waiters(&self) -> bool {
        !self.line.is_empty() || !self.behind.is_empty()
    }

    /// Returns how much is taken.
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Returns whether more than half of it is taken.
    pub const fn is_under_pressure(&self) -> bool {
        self.used > self.max / 2
    }

    /// Returns whether a session should not be encouraged to send more: memory is short, and it has some of it.
    pub const fn should_throttle(&self, share: &QuotaShare) -> bool {
        self.used > self.max / 2 && share.held > FLOOR
    }
}

impl QuotaShare {
    /// Returns how many bytes are held.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Returns whether it has waited as long as the one that waited the longest.
    fn is_older(&self, eldest: Option<Eldest>) -> bool {
        eldest.is_none_or(|eldest| self.wants_since.is_some_and(|since| since <= eldest.since))
    }

    /// Takes note that the session was taken out of the line: it is its turn.
    pub const fn mark_dequeued(&mut self) {
        (self.in_line, self.its_turn) = (false, true);
    }
}

#[cfg(test)]
mod tests;
