//! The schedule of a paced load: commands are due at random times, whether or not the commands before them
//! have ended.

use std::time::{Duration, Instant};

use base::rng::Rng;

/// A Poisson process: the gaps between commands are independent, and exponentially distributed.
pub(super) struct Pace {
    rng: Rng,
    gap_mean_s: f64,
    start: Instant,
    /// When the next command is due, in seconds after the start. A sum of rounded gaps would drift.
    due_s: f64,
}

impl Pace {
    /// Starts a schedule of `rate` commands per second.
    pub(super) fn new(rate: f64, seed: u64, start: Instant) -> Self {
        let mut pace = Self { rng: Rng::from_seed(seed), gap_mean_s: 1.0 / rate, start, due_s: 0.0 };
        pace.due_s = pace.gap_s();
        pace
    }

    /// Returns when the next command is due.
    pub(super) fn due(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.due_s.min(FAR_S))
    }

    /// Takes the next command off the schedule if it is due, and returns when it was.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Instant> {
        let due = self.due();
        (due <= now).then(|| {
            self.due_s += self.gap_s();
            due
        })
    }

    fn gap_s(&mut self) -> f64 {
        // A number of 32 bits, from 1 on, limits a gap to 22 times the mean.
        let random = u32::try_from(self.rng.below(u32::MAX.into())).unwrap_or(0);
        let uniform = (f64::from(random) + 1.0) / f64::from(u32::MAX);
        -uniform.ln() * self.gap_mean_s
    }
}

/// Longer than any load takes, in seconds.
const FAR_S: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_due_at_the_rate_and_at_random() {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let start = Instant::now();
        let mut pace = Pace::new(1000.0, seed, start);
        let end = start + Duration::from_secs(100);
        let mut gaps = Vec::new();
        let mut last = start;
        while let Some(due) = pace.take_due(end) {
            assert!(last <= due && due <= end);
            gaps.push((due - last).as_secs_f64());
            last = due;
        }
        // 100 000 commands are expected, with a standard deviation of 316.
        assert!((98_000..102_000).contains(&gaps.len()), "{}", gaps.len());
        // A gap exceeds the mean in 36.8 % of an exponential distribution.
        let long = gaps.iter().filter(|gap| **gap > 0.001).count();
        assert!((35_000..39_000).contains(&long), "{long}");
        assert!(pace.due() > end);
    }

    #[test]
    fn a_seed_gives_the_same_schedule_again() {
        let start = Instant::now();
        let schedule = |seed| {
            let mut pace = Pace::new(1e6, seed, start);
            (0..100).map(|_| pace.take_due(start + Duration::from_secs(1)).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(schedule(3), schedule(3));
        assert_ne!(schedule(3), schedule(4));
    }

    #[test]
    fn nothing_is_taken_before_it_is_due() {
        let start = Instant::now();
        let mut pace = Pace::new(10.0, 5, start);
        let due = pace.due();
        assert!(due > start && pace.take_due(start).is_none() && pace.due() == due);
        assert_eq!(pace.take_due(due), Some(due));
    }
}
