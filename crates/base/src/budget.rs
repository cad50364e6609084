//! Memory for data in flight, shared so that nobody's greed is somebody else's want.
//!
//! An engine of a target has three: for data that comes unasked, for data that it asks for, and for answers that wait to
//! be sent. Each bounds itself, so none waits for another. A session may take more only while it holds no more than what is left
//! over then (the dynamic thresholds of Choudhury and Hahne, 1998): a greedy one alone gets half, many greedy ones
//! leave about as much free as each of them holds, and who holds nothing finds room. Who finds none waits in line, or
//! is told to come again.
//!
//! What is free may be too little all the time for one large step, as small ones of others fit again and again. So a part
//! is kept free while somebody waits: for who holds nothing, and has waited for a while.

use alloc::collections::VecDeque;

use crate::arena::Key;
use crate::time::{Duration, Instant};

/// A bound on the memory that peers can make us take for data of one kind.
#[derive(Debug)]
pub struct Budget {
    used: usize,
    max: usize,
    /// Sessions that wait for room.
    line: VecDeque<Key>,
    /// Those who came, or got something, since the line was looked at: they stand behind it.
    behind: VecDeque<Key>,
    /// How many of them were not looked at since room was made, or since a while went by without any.
    unserved: usize,
    looked: Instant,
}

/// What one session holds of a budget.
#[derive(Debug, Default)]
pub struct Share {
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

/// How many sessions in line are looked at between two other things.
pub const LOOKS: usize = 16;

impl Budget {
    /// Makes a budget of `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self {
            used: 0,
            max,
            line: VecDeque::new(),
            behind: VecDeque::new(),
            unserved: 0,
            looked: Instant::ORIGIN,
        }
    }

    /// Takes `len` bytes for a session, if it may have them. What is larger than all there is passes alone, when it is its turn.
    pub fn take(&mut self, now: Instant, share: &mut Share, len: usize) -> bool {
        let used = self.used.saturating_add(len);
        let held = share.held.saturating_add(len);
        let others_wait = !self.line.is_empty() || !self.behind.is_empty();
        let kept = if others_wait { self.max / KEPT } else { 0 };
        let leaves_as_much = (self.max - kept).checked_sub(used).is_some_and(|free| held <= free);
        let alone = self.used == 0 && (share.its_turn || !others_wait);
        let late = share.wants_since.is_some_and(|since| now.since(since) >= LATE);
        let first = share.held == 0 && (len <= FLOOR || late && used <= self.max);
        let fits = len == 0 || alone || leaves_as_much || first;
        if fits {
            (self.used, share.held) = (used, held);
            (share.wants_since, share.its_turn) = (None, false);
        }
        fits
    }

    /// Returns how much one step takes that says it needs `len` bytes, where `most` is all that a session may have under way:
    /// no more than the half that a greedy session gets, since it may say anything and then take its time. What it brings
    /// beyond that is [charged](Self::charge) when it is there. It stays more than what passes although memory is short.
    pub fn claim(&self, len: usize, most: usize) -> usize {
        len.min(most.min(self.max / 2).max(FLOOR + 1))
    }

    /// Takes `len` bytes that are there already, beyond what was taken for them.
    pub const fn charge(&mut self, share: &mut Share, len: usize) {
        self.used = self.used.saturating_add(len);
        share.held = share.held.saturating_add(len);
    }

    /// Gives bytes back; `share` is `None` when the session that held them is gone.
    pub fn give(&mut self, share: Option<&mut Share>, len: usize) {
        if len == 0 {
            return;
        }
        self.used = self.used.saturating_sub(len);
        if let Some(share) = share {
            share.held = share.held.saturating_sub(len);
        }
        self.look_again();
    }

    fn look_again(&mut self) {
        self.line.append(&mut self.behind);
        self.unserved = self.line.len();
    }

    /// Lines a session up that found no room, once.
    pub fn wait(&mut self, now: Instant, session: Key, share: &mut Share) {
        share.wants_since.get_or_insert(now);
        let was_called = core::mem::take(&mut share.its_turn);
        if !core::mem::replace(&mut share.in_line, true) {
            if was_called { &mut self.line } else { &mut self.behind }.push_back(session);
        }
    }

    /// Takes the next session out of the line that may find room now; it lines up again if it does not.
    pub fn next_in_line(&mut self, now: Instant) -> Option<Key> {
        // Who waits may be late by now, though nothing was given back; and where nothing is taken, nobody will give anything
        // back.
        if self.unserved == 0 && (self.used == 0 || now.since(self.looked) >= LATE) {
            self.look_again();
            self.looked = now;
        }
        self.unserved = self.unserved.checked_sub(1)?;
        self.line.pop_front()
    }

    /// Returns how much is taken.
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Returns whether a session should not be encouraged to send more: memory is short, and it has some of it.
    pub const fn is_pressed(&self, share: &Share) -> bool {
        self.used > self.max / 2 && share.held > FLOOR
    }
}

impl Share {
    /// Returns how many bytes are held.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Takes note that the session was taken out of the line: it is its turn.
    pub const fn called(&mut self) {
        (self.in_line, self.its_turn) = (false, true);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MIB: usize = 1 << 20;
    const NOW: Instant = Instant::ORIGIN;

    /// Takes a mebibyte at a time until that fails.
    fn fill(budget: &mut Budget, share: &mut Share) -> usize {
        while budget.take(NOW, share, MIB) {}
        share.held / MIB
    }

    #[test]
    fn greedy_sessions_leave_as_much_as_each_of_them_holds() {
        for count in [1, 2, 3, 7, 15] {
            let mut budget = Budget::new(64 * MIB);
            let mut shares: Vec<Share> = (0..count).map(|_| Share::default()).collect();
            let first = fill(&mut budget, &mut shares[0]);
            assert_eq!(first, 32);
            // Whoever comes first has more; nobody gets nothing.
            let held: Vec<_> = shares.iter_mut().map(|share| fill(&mut budget, share)).collect();
            assert!(held.windows(2).all(|two| two[0] >= two[1]), "{held:?}");
            let mut modest = Share::default();
            let free = budget.max - budget.used;
            assert!(
                budget.take(NOW, &mut modest, (free / 2).max(FLOOR)),
                "{count} greedy sessions, {free} free"
            );
        }
    }

    #[test]
    fn a_session_that_holds_nothing_takes_a_small_step_from_an_empty_budget() {
        let mut budget = Budget::new(MIB);
        let (mut greedy, mut modest) = (Share::default(), Share::default());
        assert!(budget.take(NOW, &mut greedy, 5 * MIB), "larger than all there is, and alone");
        assert!(!budget.take(NOW, &mut modest, FLOOR + 1));
        assert!(budget.take(NOW, &mut modest, FLOOR));
        assert!(!budget.take(NOW, &mut modest, 1));
        assert!(budget.is_pressed(&greedy) && !budget.is_pressed(&modest));
        budget.give(Some(&mut greedy), 5 * MIB);
        assert!(budget.take(NOW, &mut modest, 1) && !budget.is_pressed(&greedy));
        budget.give(None, FLOOR + 1);
        assert_eq!((budget.used, greedy.held), (0, 0));
    }

    #[test]
    fn everyone_in_line_is_looked_at_once_for_each_time_that_room_was_made() {
        use crate::arena::Arena;
        let mut arena = Arena::new();
        let keys: Vec<Key> = (0..3).map(|_| arena.insert_with(|_| ())).collect();
        let mut shares: Vec<Share> = keys.iter().map(|_| Share::default()).collect();
        let mut budget = Budget::new(MIB);
        budget.take(NOW, &mut shares[0], 10);
        for _ in 0..2 {
            for (key, share) in keys.iter().zip(&mut shares) {
                budget.wait(NOW, *key, share);
            }
        }
        assert_eq!(budget.next_in_line(NOW), None, "no room was made");
        budget.give(Some(&mut shares[0]), 5);
        for key in &keys {
            assert_eq!(budget.next_in_line(NOW), Some(*key));
        }
        assert_eq!(budget.next_in_line(NOW), None);
        shares[1].called();
        budget.wait(NOW, keys[1], &mut shares[1]);
        budget.give(None, 5);
        assert_eq!(budget.next_in_line(NOW), Some(keys[1]));
    }

    /// Sessions that want one thing again and again, each time as soon as it may, and give it back in turns.
    fn served(max: usize, wants: &[usize], rounds: u64) -> Vec<usize> {
        use crate::arena::Arena;
        let mut arena = Arena::new();
        let keys: Vec<Key> = wants.iter().map(|_| arena.insert_with(|_| ())).collect();
        let mut shares: Vec<Share> = keys.iter().map(|_| Share::default()).collect();
        let (mut budget, mut counts) = (Budget::new(max), alloc::vec![0; wants.len()]);
        let want = |now, budget: &mut Budget, shares: &mut [Share], counts: &mut [usize], at: usize| {
            while budget.take(now, &mut shares[at], wants[at]) {
                counts[at] += 1;
            }
            budget.wait(now, keys[at], &mut shares[at]);
        };
        for round in 0..rounds {
            let now = Instant(round * 1_000_000);
            for at in 0..wants.len() {
                if shares[at].held >= wants[at] {
                    budget.give(Some(&mut shares[at]), wants[at]);
                }
                // Whoever gives something back looks first whether there is room now.
                want(now, &mut budget, &mut shares, &mut counts, at);
                for _ in 0..LOOKS {
                    let Some(key) = budget.next_in_line(now) else { break };
                    let at = keys.iter().position(|other| *other == key).unwrap();
                    shares[at].called();
                    want(now, &mut budget, &mut shares, &mut counts, at);
                }
                assert!(budget.used <= budget.max, "{wants:?}: {} of {}", budget.used, budget.max);
            }
        }
        counts
    }

    #[test]
    fn a_large_step_is_not_passed_by_small_ones_for_ever() {
        // In 10 s, one that wants much beside others that leave too little of what is free.
        for others in [1, 3, 15] {
            let mut wants = alloc::vec![MIB; others];
            wants.push(15 * MIB);
            let counts = served(64 * MIB, &wants, 10_000);
            assert!(counts.iter().all(|count| *count >= 50), "{counts:?}");
        }
        // Two that both want more than goes beside each other.
        let counts = served(64 * MIB, &[40 * MIB, 41 * MIB], 1000);
        assert!(counts.iter().all(|count| *count >= 400), "{counts:?}");
    }

    #[test]
    fn who_is_late_is_looked_at_although_nothing_is_given_back() {
        use crate::arena::Arena;
        let mut arena = Arena::new();
        let [one, other] = [0; 2].map(|_| arena.insert_with(|_| ()));
        let mut budget = Budget::new(64 * MIB);
        let (mut greedy, mut modest) = (Share::default(), Share::default());
        assert_eq!(fill(&mut budget, &mut greedy), 32);
        budget.wait(NOW, one, &mut greedy);
        assert!(!budget.take(NOW, &mut modest, 20 * MIB));
        budget.wait(NOW, other, &mut modest);
        assert_eq!(budget.next_in_line(NOW), None);
        let later = NOW.after(LATE);
        assert_eq!(budget.next_in_line(later), Some(one));
        greedy.called();
        assert!(!budget.take(later, &mut greedy, MIB), "it holds something");
        budget.wait(later, one, &mut greedy);
        assert_eq!(budget.next_in_line(later), Some(other));
        modest.called();
        assert!(budget.take(later, &mut modest, 20 * MIB));
        assert_eq!(budget.next_in_line(later), None);
    }

    #[test]
    fn whoever_says_anything_gets_no_more_than_half_beforehand() {
        for (max, most) in [(64 * MIB, 16 * MIB), (64 * MIB, 64 * MIB), (MIB, 16 * MIB), (FLOOR, FLOOR)] {
            let mut budget = Budget::new(max);
            let (mut greedy, mut modest) = (Share::default(), Share::default());
            let claim = budget.claim(usize::MAX, most);
            assert!(claim <= max / 2 || claim == FLOOR + 1, "{claim} of {max}");
            assert!(claim <= most.max(FLOOR + 1) && claim > FLOOR, "{claim} of {max}");
            assert_eq!(budget.claim(FLOOR, most), FLOOR);
            assert!(budget.take(NOW, &mut greedy, claim));
            assert!(budget.take(NOW, &mut modest, (max / 4).max(FLOOR)));
            // What came anyway counts, and is given back like all else.
            budget.charge(&mut greedy, 2 * max);
            assert!(!budget.take(NOW, &mut modest, 1));
            budget.give(Some(&mut greedy), claim + 2 * max);
            assert_eq!((greedy.held, budget.used), (0, modest.held));
        }
    }

    #[test]
    fn nobody_waits_where_nothing_is_taken() {
        use crate::arena::Arena;
        let mut arena = Arena::new();
        let [gone, other] = [0; 2].map(|_| arena.insert_with(|_| ()));
        let mut budget = Budget::new(MIB);
        let (mut first, mut second) = (Share::default(), Share::default());
        budget.wait(NOW, gone, &mut first);
        assert!(!budget.take(NOW, &mut second, 2 * MIB), "another one waits");
        budget.wait(NOW, other, &mut second);
        // The first one does not want anything any more.
        assert_eq!(budget.next_in_line(NOW), Some(gone));
        first.called();
        assert_eq!(budget.next_in_line(NOW), Some(other));
        second.called();
        assert!(budget.take(NOW, &mut second, 2 * MIB));
    }
}
