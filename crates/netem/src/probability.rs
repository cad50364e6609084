//! Defines the types of values in plans: probabilities, durations, and bits to flip.

use base::rng::Rng;
use base::time::Duration;

/// A probability, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(pub u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(1_000_000);

    /// Returns the probability of once in `times` on average; never for zero.
    pub const fn one_in(times: u32) -> Self {
        match 1_000_000_u32.checked_div(times) {
            Some(parts) => Self(parts),
            None => Self::NEVER,
        }
    }

    /// Decides at random whether the event occurs.
    pub fn occurs(self, rng: &mut Rng) -> bool {
        // A plan without this fault uses no random numbers, so that a new kind of fault leaves other runs as
        // they are.
        self.0 > 0 && rng.chance(self.0.into(), 1_000_000)
    }
}

/// A range of durations, both bounds included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationRange {
    /// The shortest.
    pub from: Duration,
    /// The longest.
    pub to: Duration,
}

impl DurationRange {
    /// The range that has only the duration zero.
    pub const ZERO: Self = Self { from: Duration::ZERO, to: Duration::ZERO };

    /// Returns the range that has only this duration.
    pub const fn exactly(time: Duration) -> Self {
        Self { from: time, to: time }
    }

    /// Returns the range of all durations from `from` to `to`.
    pub const fn between(from: Duration, to: Duration) -> Self {
        Self { from, to }
    }

    /// Picks a duration at random.
    pub fn pick(self, rng: &mut Rng) -> Duration {
        let width = u64::try_from(self.to.saturating_sub(self.from).as_nanos()).unwrap_or(u64::MAX);
        if width == 0 {
            return self.from;
        }
        self.from.saturating_add(Duration::from_nanos(rng.below(width.saturating_add(1))))
    }
}

/// Picks a number from `0..bound` at random, as an index.
pub(crate) fn index(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(wide(bound))).unwrap_or(0)
}

/// Flips one to `most` different bits of `bytes`. Most often it flips one bit, since CRCs detect that most
/// easily and broken memory does that. Returns how many bits were flipped.
pub(crate) fn flip_bits(rng: &mut Rng, bytes: &mut [u8], most: u32) -> u32 {
    let most = if rng.chance(1, 2) { 1 } else { most.clamp(1, 64) };
    let wanted = rng.below(most.into()).saturating_add(1);
    let bits = bytes.len().saturating_mul(8);
    let first = index(rng, bits);
    let mut flipped = 0;
    let mut at = first;
    for _ in 0..wanted {
        let Some(byte) = bytes.get_mut(at / 8) else { break };
        *byte ^= 1 << (at % 8);
        flipped += 1;
        // The next bit is always behind this one, since a bit that is flipped twice is unchanged.
        at = at.saturating_add(1).saturating_add(index(rng, 24));
    }
    flipped
}

/// Widens a length.
pub(crate) fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Returns how long `len` bytes take at `bytes_per_s`; zero at a rate of zero, which means unlimited.
pub(crate) fn time_of(len: usize, bytes_per_s: u64) -> Duration {
    let nanos = u128::from(wide(len)).saturating_mul(1_000_000_000).checked_div(bytes_per_s.into());
    Duration::from_nanos(u64::try_from(nanos.unwrap_or(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odds_come_true_about_as_often_as_they_say() {
        let mut rng = Rng::from_seed(1);
        let hits = (0..100_000).filter(|_| Probability::one_in(10).occurs(&mut rng)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!(!Probability::NEVER.occurs(&mut rng) && Probability::ALWAYS.occurs(&mut rng));
        assert_eq!(Probability::one_in(0), Probability::NEVER);
    }

    #[test]
    fn flipping_changes_as_many_bits_as_it_says() {
        let mut rng = Rng::from_seed(2);
        for round in 0..2000_usize {
            let mut bytes = alloc::vec![0_u8; 1 + round % 50];
            let flipped = flip_bits(&mut rng, &mut bytes, 8);
            assert!(flipped >= 1);
            assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), flipped);
        }
        assert_eq!(flip_bits(&mut rng, &mut [], 8), 0);
    }

    #[test]
    fn a_span_stays_within_its_bounds() {
        let mut rng = Rng::from_seed(3);
        let span = DurationRange::between(Duration::from_nanos(5), Duration::from_nanos(8));
        let mut seen = [false; 10];
        for _ in 0..200 {
            seen[usize::try_from(span.pick(&mut rng).as_nanos()).unwrap()] = true;
        }
        assert_eq!(seen, [false, false, false, false, false, true, true, true, true, false]);
    }
}
