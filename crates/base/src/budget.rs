//! Memory for data in flight, shared so that nobody's greed is somebody else's want.
//!
//! An engine of a target has three: for data that comes unasked, for data that it asks for, and for answers that wait to
//! be sent. Each bounds itself, so none waits for another. A session may take more only while it holds no more than what is left
//! over then (the dynamic thresholds of Choudhury and Hahne, 1998): a greedy one alone gets half, many greedy ones
//! leave about as much free as each of them holds, and who holds nothing finds room. Who finds none waits in line, or
//! is told to come again.

use alloc::collections::VecDeque;

use crate::arena::Key;

/// A bound on the memory that peers can make us take for data of one kind.
#[derive(Debug)]
pub struct Budget {
    used: usize,
    max: usize,
    /// Sessions that wait for room.
    line: VecDeque<Key>,
    /// How many of them were not looked at since room was made.
    unserved: usize,
}

/// What one session holds of a budget.
#[derive(Debug, Default)]
pub struct Share {
    held: usize,
    in_line: bool,
}

/// What a session that holds nothing gets although memory is short: one step of anything small. With the usual limit of
/// 4096 sessions, all of them at it, this goes 256 MiB beyond a budget.
const FLOOR: usize = 64 << 10;

/// How many sessions in line are looked at between two other things.
pub const LOOKS: usize = 16;

impl Budget {
    /// Makes a budget of `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self { used: 0, max, line: VecDeque::new(), unserved: 0 }
    }

    /// Takes `len` bytes for a session, if it may have them. What is larger than all there is passes alone.
    pub fn take(&mut self, share: &mut Share, len: usize) -> bool {
        let used = self.used.saturating_add(len);
        let held = share.held.saturating_add(len);
        let leaves_as_much = self.max.checked_sub(used).is_some_and(|free| held <= free);
        let fits = len == 0 || self.used == 0 || leaves_as_much || share.held == 0 && len <= FLOOR;
        if fits {
            (self.used, share.held) = (used, held);
        }
        fits
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
        self.unserved = self.line.len();
    }

    /// Lines a session up, once.
    pub fn wait(&mut self, session: Key, share: &mut Share) {
        if !core::mem::replace(&mut share.in_line, true) {
            self.line.push_back(session);
        }
    }

    /// Takes the next session out of the line that may find room now; it lines up again if it does not.
    pub fn next_in_line(&mut self) -> Option<Key> {
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

    /// Takes note that the session is not in the line any more.
    pub const fn called(&mut self) {
        self.in_line = false;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Takes a mebibyte at a time until that fails.
    fn fill(budget: &mut Budget, share: &mut Share) -> usize {
        while budget.take(share, MIB) {}
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
            assert!(budget.take(&mut modest, (free / 2).max(FLOOR)), "{count} greedy sessions, {free} free");
        }
    }

    #[test]
    fn a_session_that_holds_nothing_takes_a_small_step_from_an_empty_budget() {
        let mut budget = Budget::new(MIB);
        let (mut greedy, mut modest) = (Share::default(), Share::default());
        assert!(budget.take(&mut greedy, 5 * MIB), "larger than all there is, and alone");
        assert!(!budget.take(&mut modest, FLOOR + 1));
        assert!(budget.take(&mut modest, FLOOR));
        assert!(!budget.take(&mut modest, 1));
        assert!(budget.is_pressed(&greedy) && !budget.is_pressed(&modest));
        budget.give(Some(&mut greedy), 5 * MIB);
        assert!(budget.take(&mut modest, 1) && !budget.is_pressed(&greedy));
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
        budget.take(&mut shares[0], 10);
        for _ in 0..2 {
            for (key, share) in keys.iter().zip(&mut shares) {
                budget.wait(*key, share);
            }
        }
        assert_eq!(budget.next_in_line(), None, "no room was made");
        budget.give(Some(&mut shares[0]), 5);
        for key in &keys {
            assert_eq!(budget.next_in_line(), Some(*key));
        }
        assert_eq!(budget.next_in_line(), None);
        shares[1].called();
        budget.wait(keys[1], &mut shares[1]);
        budget.give(None, 5);
        assert_eq!(budget.next_in_line(), Some(keys[1]));
    }
}
