//! The replay guard: a bitmap of the packet numbers that were received, which slides along with the largest.
//!
//! A new number is accepted once. A number that was received before is refused, and so is one that is too old
//! for the bitmap (as in RFC 6479). The replay guard must be consulted after the frame's tag or CRC was
//! verified, so that a forged number changes nothing.

use alloc::boxed::Box;

/// How many numbers below the largest the bitmap distinguishes: more than any credit window plus the frames
/// that can be late.
pub(crate) const REPLAY_WINDOW: u64 = 16_384;

const WORDS: usize = 256;
const BITS: u64 = 64;

/// The bitmap of one packet number space.
#[derive(Clone, Debug)]
pub(crate) struct ReplayGuard {
    words: Box<[u64; WORDS]>,
    /// One more than the largest number that was received.
    next: u64,
}

impl ReplayGuard {
    /// Begins behind the number `last`: all numbers up to it count as received.
    pub(crate) fn behind(last: u64) -> Self {
        let next = last.saturating_add(1);
        let mut words = Box::new([u64::MAX; WORDS]);
        // Later words are cleared when the window moves over them.
        if let Some(word) = words.get_mut(Self::word(next)) {
            *word = Self::bit(next) - 1;
        }
        Self { words, next }
    }

    /// Returns whether the number is new.
    pub(crate) fn is_new(&self, pn: u64) -> bool {
        if pn >= self.next {
            return true;
        }
        // A word is cleared as a whole when the largest number enters it, so the window is one word shorter.
        if self.next - pn > REPLAY_WINDOW - BITS {
            return false;
        }
        self.words.get(Self::word(pn)).is_some_and(|word| word & Self::bit(pn) == 0)
    }

    /// Records a number. Returns whether it was new.
    pub(crate) fn take(&mut self, pn: u64) -> bool {
        if !self.is_new(pn) {
            return false;
        }
        if pn >= self.next {
            let (first, last) = (self.next.div_ceil(BITS), pn / BITS);
            // Words that the window moves over hold bits of the previous cycle and are cleared.
            for number in first..=last.min(first.saturating_add(WORDS as u64 - 1)) {
                if let Some(word) = self.words.get_mut(Self::word(number.wrapping_mul(BITS))) {
                    *word = 0;
                }
            }
            self.next = pn.saturating_add(1);
        }
        if let Some(word) = self.words.get_mut(Self::word(pn)) {
            *word |= Self::bit(pn);
        }
        true
    }

    fn word(pn: u64) -> usize {
        usize::try_from(pn / BITS % WORDS as u64).unwrap_or(0)
    }

    const fn bit(pn: u64) -> u64 {
        1 << (pn % BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use base::rng::Rng;

    #[test]
    fn a_number_is_taken_once_and_an_old_one_never() {
        let mut replay = ReplayGuard::behind(0);
        assert!(replay.take(1) && !replay.take(1) && !replay.take(0) && replay.take(5000));
        assert!(replay.take(4999) && !replay.take(5000) && replay.take(2));
        assert!(replay.take(40_000));
        assert!(!replay.take(3) && !replay.is_new(40_000 - REPLAY_WINDOW));
        assert!(replay.take(40_001 - REPLAY_WINDOW + 64) && !replay.take(40_001 - REPLAY_WINDOW + 64));
        assert!(replay.take(u64::MAX >> 8) && !replay.take(40_001));
    }

    #[test]
    fn up_to_where_it_begins_everything_came_and_behind_that_nothing() {
        for last in [0, 1, 62, 63, 64, 65, 16_383, 16_384, 1 << 40] {
            let mut replay = ReplayGuard::behind(last);
            assert!((0..=last).rev().take(20_000).all(|pn| !replay.is_new(pn)), "{last}");
            assert!((1..20_000).all(|more| replay.is_new(last + more) && replay.take(last + more)), "{last}");
            assert!(!replay.is_new(last) && !replay.is_new(last + 1), "{last}");
        }
    }

    #[test]
    fn whatever_the_order_no_number_is_taken_twice_and_recent_ones_are_taken() {
        for seed in 0..20 {
            let mut rng = Rng::from_seed(seed);
            let (mut replay, mut seen, mut largest) = (ReplayGuard::behind(0), BTreeSet::from([0]), 0_u64);
            for _ in 0..20_000 {
                let jump = if rng.chance(1, 500) { 20_000 } else { 40 };
                let pn = (largest + rng.below(jump)).saturating_sub(rng.below(300));
                let recent = largest.saturating_sub(pn) < REPLAY_WINDOW - 65;
                let taken = replay.take(pn);
                assert_eq!(taken, recent && !seen.contains(&pn), "seed {seed}, {pn} below {largest}");
                seen.insert(pn);
                largest = largest.max(pn);
            }
        }
    }
}
