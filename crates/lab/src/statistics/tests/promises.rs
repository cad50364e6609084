//! What docs/lab/compare.md promises: how often equal things are called different, and which differences are
//! found. The data are synthetic: buckets, two modes, drift, and runs that differ from each other.

use super::super::*;
use super::synthetic::{Machine, fresh_seed, seeds};
use Pairing::{Independent, Paired};

/// The trials of a rate. The standard deviation of a rate of 5 % is 0.7 %.
const TRIALS: u32 = 1000;

/// A rate of 5 %, and four standard deviations.
const FALSE_MAX: f64 = 0.08;

/// A rate of 95 %, less four standard deviations.
const FOUND_MIN: f64 = 0.92;

/// What disturbs a machine: a name, and what it changes.
type World = (&'static str, fn(&mut Machine));

const WORLDS: [World; 6] = [
    ("noise", |_| ()),
    ("slow rounds", |machine| machine.slow_one_in = 10),
    ("buckets", |machine| machine.quantized = true),
    ("two modes", |machine| machine.second_mode_one_in = 3),
    ("drift", |machine| machine.drift = 0.01),
    ("all of it", |machine| {
        (machine.quantized, machine.second_mode_one_in, machine.drift) = (true, 3, 0.01);
    }),
];

/// Returns the share of trials in which a change is significant.
fn rate(machine: &mut Machine, mut trial: impl FnMut(&mut Machine) -> Change) -> f64 {
    f64::from((0..TRIALS).map(|_| u32::from(trial(machine).significant)).sum::<u32>()) / f64::from(TRIALS)
}

fn change(machine: &Machine, (base, other): (&[f64], &[f64]), pairing: Pairing) -> Change {
    let [base, other] = [base, other].map(|samples| Series::new(samples, machine.resolution()));
    percent_change(base, other, pairing)
}

fn paired(rounds: usize, ratio: f64) -> impl FnMut(&mut Machine) -> Change {
    move |machine| {
        let (base, other) = machine.paired(rounds, ratio);
        change(machine, (&base, &other), Paired)
    }
}

fn independent(rounds: usize, ratio: f64) -> impl FnMut(&mut Machine) -> Change {
    move |machine| {
        let (base, other) = (machine.series(rounds, 500.0), machine.series(rounds, 500.0 * ratio));
        change(machine, (&base, &other), Independent)
    }
}

/// Runs whose truths differ by `between`; each is one sample.
fn runs(count: usize, between: f64, ratio: f64) -> impl FnMut(&mut Machine) -> Change {
    move |machine| {
        let mut side = |truth: f64| -> Vec<f64> {
            machine.runs((count, 9), truth, between).iter().map(|run| center(run)).collect()
        };
        let (base, other) = (side(500.0), side(500.0 * ratio));
        change(machine, (&base, &other), Independent)
    }
}

#[test]
fn equal_things_are_called_different_in_one_comparison_of_twenty_at_most() {
    for seed in [1, fresh_seed()] {
        for (name, disturb) in WORLDS {
            let mut machine = Machine::new(seed);
            disturb(&mut machine);
            for rounds in [5, 9] {
                let rates = [
                    ("paired", rate(&mut machine, paired(rounds, 1.0))),
                    ("independent", rate(&mut machine, independent(rounds, 1.0))),
                ];
                for (kind, rate) in rates {
                    assert!(rate <= FALSE_MAX, "seed {seed}, {name}, {rounds} rounds, {kind}: {rate}");
                }
            }
        }
    }
}

#[test]
fn equal_runs_are_called_different_in_one_comparison_of_twenty_at_most() {
    for seed in [1, fresh_seed()] {
        for (name, disturb) in WORLDS {
            for (count, between) in [(3, 0.03), (5, 0.03), (5, 0.002)] {
                let mut machine = Machine { noise: 0.01, ..Machine::new(seed) };
                disturb(&mut machine);
                let rate = rate(&mut machine, runs(count, between, 1.0));
                assert!(rate <= FALSE_MAX, "seed {seed}, {name}, {count} runs, {between}: {rate}");
            }
        }
    }
}

/// 3 % with noise of 1.5 % between paired rounds; of latencies in buckets, so much beyond the width of a
/// bucket.
#[test]
fn nine_rounds_find_three_percent_beyond_the_resolution() {
    for seed in seeds() {
        for (name, disturb, ratio) in
            [("noise", WORLDS[0].1, 1.03), ("slow rounds", WORLDS[1].1, 1.03), ("buckets", WORLDS[2].1, 1.05)]
        {
            let mut machine = Machine::new(seed);
            disturb(&mut machine);
            let found = rate(&mut machine, paired(9, ratio));
            assert!(found >= FOUND_MIN, "seed {seed}, {name}: {found}");
        }
    }
}

/// Three times the spread of the runs, and of latencies in buckets so much beyond the width of a bucket.
#[test]
fn five_runs_find_three_times_their_spread_beyond_the_resolution() {
    for seed in seeds() {
        for (quantized, between, ratio) in
            [(false, 0.01, 1.03), (true, 0.01, 1.05), (false, 0.03, 1.1), (true, 0.03, 1.12)]
        {
            let mut machine = Machine { noise: 0.01, quantized, ..Machine::new(seed) };
            let found = rate(&mut machine, runs(5, between, ratio));
            assert!(found >= FOUND_MIN, "seed {seed}, {between} between runs, {ratio}: {found}");
        }
    }
}

/// Five runs on each side, whose truths differ by 2 %.
fn sides(machine: &mut Machine, ratio: f64) -> [Vec<f64>; 2] {
    [500.0, 500.0 * ratio]
        .map(|truth| machine.runs((5, 9), truth, 0.02).iter().map(|run| center(run)).collect())
}

/// What a comparison prints as the smallest change that it finds, in families of several sizes: so large a
/// change is found in nine cases of ten, and a third of it seldom.
#[test]
fn a_change_as_large_as_the_comparison_says_is_found() {
    for seed in seeds() {
        for (quantized, family) in [(false, 1), (false, 20), (false, 800), (true, 20)] {
            let mut machine = Machine { noise: 0.01, quantized, ..Machine::new(seed) };
            let resolution = machine.resolution();
            let mut told: Vec<f64> = (0..TRIALS)
                .filter_map(|_| {
                    let runs = sides(&mut machine, 1.0);
                    let [base, other] = runs.each_ref().map(|side| Series::new(side, resolution));
                    smallest_found(base, other, Independent, family)
                })
                .collect();
            told.sort_by(f64::total_cmp);
            let least = median(&told);
            let mut found = |percent: f64| {
                rate(&mut machine, |machine| {
                    let [base, other] = sides(machine, 1.0 + percent / 100.0);
                    let change = change(machine, (&base, &other), Independent);
                    Change { significant: change.p * to_float(family) < LEVEL, ..change }
                })
            };
            let (whole, third) = (found(least), found(least / 3.0));
            let case = format!("seed {seed}, quantized {quantized}, family of {family}: {least} %");
            // Nine of ten, less two standard deviations.
            assert!(whole >= 0.88, "{case}: {whole}");
            assert!(third <= 0.4, "{case}: {third} of a third");
        }
    }
}

/// The rounds of one run on each side cannot tell runs apart from what was changed between them.
#[test]
fn rounds_of_single_runs_take_the_difference_of_runs_for_a_change() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut machine = Machine { noise: 0.01, ..Machine::new(seed) };
    let false_found = rate(&mut machine, |machine| {
        let (base, other) = (machine.runs((1, 9), 500.0, 0.03), machine.runs((1, 9), 500.0, 0.03));
        change(machine, (&base[0], &other[0]), Independent)
    });
    assert!(false_found > 0.5, "seed {seed}: {false_found}; docs/lab/compare.md warns of it");
}
