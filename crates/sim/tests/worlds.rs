//! Correct code passes in every world, and two runs of one seed are identical. `make sim` runs many more
//! seeds.

#![allow(clippy::panic, clippy::indexing_slicing, reason = "a test")]

use sim::scenario::{SPECIAL, Scenario};
use sim::trace::Trace;
use sim::world::{self, Report};

/// A small number, since this runs without optimisation.
const SEEDS: u64 = 18;

fn run(scenario: &Scenario) -> Report {
    world::run(scenario, &Trace::new(30, false)).unwrap_or_else(|failure| panic!("{failure}"))
}

/// The worlds of a seed: iSCSI (or no transport), and HyperSCSI.
fn worlds(seed: u64) -> [Scenario; 2] {
    [Scenario::of(seed, SPECIAL), Scenario::hyperscsi(seed, SPECIAL)]
}

#[test]
fn nothing_goes_wrong_in_any_world() {
    for seed in 0..SEEDS {
        for scenario in worlds(seed) {
            assert!(run(&scenario).judged > 0, "judged nothing: {scenario}");
        }
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..SEEDS / 3 {
        for scenario in worlds(seed) {
            assert_eq!(run(&scenario), run(&scenario), "{scenario}");
        }
    }
    for at in 0..2 {
        assert_ne!(run(&worlds(0)[at]).hash, run(&worlds(1)[at]).hash);
    }
}
