//! Measurements on an imaginary machine whose truth is known.

use base::rng::Rng;

use super::super::Resolution;
use crate::bench::Histogram;

/// A machine that measures: what is true, noise, and what else disturbs it.
pub(crate) struct Machine {
    pub(crate) rng: Rng,
    /// The standard deviation of a sample, as a share of it.
    pub(crate) noise: f64,
    /// One round in so many is 30 % slower; zero for none.
    pub(crate) slow_one_in: u64,
    /// One measurement in so many is 30 % slower, whatever the others of its round are; zero for none.
    pub(crate) second_mode_one_in: u64,
    /// By how much the machine becomes faster from one round to the next, as a share; half of that from one
    /// measurement of a round to the other.
    pub(crate) drift: f64,
    /// Whether samples are latencies in the buckets of a histogram.
    pub(crate) quantized: bool,
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::from_seed(seed),
            noise: 0.015,
            slow_one_in: 0,
            second_mode_one_in: 0,
            drift: 0.0,
            quantized: false,
        }
    }

    /// How finely the machine measures.
    pub(crate) fn resolution(&self) -> Resolution {
        if self.quantized { Histogram::RESOLUTION } else { Resolution::EXACT }
    }

    /// A number of the normal distribution, by Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let mut uniform = || (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let (a, b) = (1.0 - uniform(), uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    fn slowdown(&mut self) -> f64 {
        if self.slow_one_in > 0 && self.rng.chance(1, self.slow_one_in) { 0.7 } else { 1.0 }
    }

    pub(crate) fn sample(&mut self, truth: f64) -> f64 {
        let is_slow = self.second_mode_one_in > 0 && self.rng.chance(1, self.second_mode_one_in);
        let mode = if is_slow { 0.7 } else { 1.0 };
        let exact = truth * mode * (self.noise * self.normal()).exp();
        if self.quantized { bucketed(exact) } else { exact }
    }

    /// Rounds that measure both, one right after the other, in the order of the laboratory.
    pub(crate) fn paired(&mut self, rounds: usize, ratio: f64) -> (Vec<f64>, Vec<f64>) {
        let seed = self.rng.next_u64();
        let round = |round: usize| {
            let slow = self.slowdown();
            let mut both = [0.0; 2];
            for (turn, which) in crate::rounds::order(2, (round, 0), seed).into_iter().enumerate() {
                let moment = round as f64 + turn as f64 / 2.0;
                let truth = 500.0 * if which == 1 { ratio } else { 1.0 };
                both[which] = self.sample(truth * slow * (self.drift * moment).exp());
            }
            (both[0], both[1])
        };
        (0..rounds).map(round).unzip()
    }

    pub(crate) fn series(&mut self, rounds: usize, truth: f64) -> Vec<f64> {
        let round = |round: usize| {
            let slow = self.slowdown();
            self.sample(truth * slow * (self.drift * round as f64).exp())
        };
        (0..rounds).map(round).collect()
    }

    /// Runs of so many rounds, whose truths differ from each other by `between`, as a share.
    pub(crate) fn runs(&mut self, (runs, rounds): (usize, usize), truth: f64, between: f64) -> Vec<Vec<f64>> {
        let run = |_| {
            let of_run = truth * (between * self.normal()).exp();
            self.series(rounds, of_run)
        };
        (0..runs).map(run).collect()
    }
}

/// Rounds a duration in microseconds up to the end of its bucket, as a histogram reports it: of 64 for each
/// doubling.
pub(crate) fn bucketed(us: f64) -> f64 {
    let ns = us * 1e3;
    let width = 2_f64.powf((ns.log2().floor() - 6.0).max(0.0));
    (((ns / width).floor() + 1.0) * width - 1.0) / 1e3
}

/// A seed that differs from run to run.
pub(crate) fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos() % u128::from(u64::MAX)).unwrap()
}

/// Fixed seeds, and one that differs from run to run.
pub(crate) fn seeds() -> [u64; 3] {
    let seeds = [1, 2, fresh_seed()];
    println!("seeds {seeds:?}");
    seeds
}
