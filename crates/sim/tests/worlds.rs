//! Worlds that are right stay right, and one seed is one run. `make sim` runs many more.

#![allow(clippy::panic, reason = "a test")]

use sim::scenario::Scenario;
use sim::trace::Trace;
use sim::world::{self, Report};

/// Few, since this runs without optimisation.
const SEEDS: u64 = 18;

fn run(seed: u64) -> Report {
    world::run(&Scenario::of(seed), &Trace::new(30, false)).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn nothing_goes_wrong_in_any_world() {
    for seed in 0..SEEDS {
        let report = run(seed);
        assert!(report.judged > 0, "seed {seed} judged nothing");
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..SEEDS / 3 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(0).hash, run(1).hash);
}
