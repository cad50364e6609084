//! Synthetic samples whose truth is known.

mod promises;
pub(crate) mod synthetic;

use self::synthetic::{Machine, bucketed, fresh_seed, seeds};
use super::Pairing::{Independent, Paired};
use super::*;

/// Returns in which share of the trials a change is found, and in which share the interval contains the
/// truth.
fn trials(machine: &mut Machine, count: u32, rounds: usize, ratio: f64, pairing: Pairing) -> (f64, f64) {
    let (mut found, mut covered) = (0, 0);
    for _ in 0..count {
        let (base, other) = match pairing {
            Paired => machine.paired(rounds, ratio),
            Independent => (machine.series(rounds, 500.0), machine.series(rounds, 500.0 * ratio)),
        };
        let change = percent_change(&base, &other, pairing);
        found += u32::from(change.significant);
        let truth = 100.0 * (ratio - 1.0);
        covered += u32::from(change.low <= truth && truth <= change.high);
    }
    (f64::from(found) / f64::from(count), f64::from(covered) / f64::from(count))
}

/// The true power is 95.5 %. The share of a fresh seed differs from it by up to 1 %.
#[test]
fn nine_paired_rounds_find_three_percent_on_a_shared_machine() {
    for (seed, expected) in seeds().into_iter().zip([0.95, 0.95, 0.94]) {
        for slow_one_in in [0, 10] {
            let mut machine = Machine { slow_one_in, ..Machine::new(seed) };
            let (found, covered) = trials(&mut machine, 10_000, 9, 1.03, Paired);
            assert!(found >= expected, "seed {seed}, slow {slow_one_in}: {found} found");
            assert!((0.935..0.965).contains(&covered), "seed {seed}, slow {slow_one_in}: {covered} covered");
        }
    }
}

#[test]
fn equal_series_differ_in_one_trial_of_twenty() {
    for (seed, expected) in seeds().into_iter().zip([0.06, 0.06, 0.07]) {
        for (slow_one_in, pairing) in [(0, Paired), (10, Paired), (0, Independent), (10, Independent)] {
            let mut machine = Machine { slow_one_in, ..Machine::new(seed) };
            let (found, _) = trials(&mut machine, 4000, 9, 1.0, pairing);
            assert!(found <= expected, "seed {seed}, slow {slow_one_in}, {pairing:?}: {found} found");
        }
    }
}

/// Welch's test finds 3 % in a quarter of these trials: slow rounds of one series hide it.
#[test]
fn independent_series_lose_only_some_power_to_slow_rounds() {
    for seed in seeds() {
        let mut machine = Machine { slow_one_in: 10, ..Machine::new(seed) };
        let (found, covered) = trials(&mut machine, 4000, 12, 1.03, Independent);
        assert!(found >= 0.7, "seed {seed}: {found} found");
        assert!(covered >= 0.94, "seed {seed}: {covered} covered");
    }
}

#[test]
fn a_slow_round_of_both_leaves_the_ratio_as_it_is() {
    let base = [500.0, 350.0, 510.0, 495.0];
    let other = base.map(|sample| sample * 1.1);
    let change = percent_change(&base, &other, Paired);
    assert!(change.significant && (change.percent - 10.0).abs() < 1e-9, "{change:?}");
    assert!(change.high - change.low < 1e-9, "{change:?}");
}

/// Student's sleep data; the figures are those of R's `t.test(paired = TRUE)`, in percent of the mean of the
/// first group, 0.75.
#[test]
fn samples_around_zero_are_compared_by_their_differences() {
    let base = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    let other = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
    let change = percent_change(&base, &other, Paired);
    let near = |value: f64, expected: f64| (value * 0.75 / 100.0 - expected).abs() < 1e-6;
    assert!(near(change.percent, 1.58), "{change:?}");
    assert!(near(change.low, 0.700_114_2) && near(change.high, 2.459_885_8), "{change:?}");
    assert!((change.p - 0.002_833).abs() < 1e-6 && change.significant, "{change:?}");
}

#[test]
fn a_change_from_zero_is_infinite_and_none_is_none() {
    let change = percent_change(&[0.0; 5], &[3.0, 4.0, 5.0, 4.0, 4.0], Paired);
    assert!(change.significant && change.percent == f64::INFINITY, "{change:?}");
    for pairing in [Paired, Independent] {
        for value in [0.0, 7.0] {
            let change = percent_change(&[value; 5], &[value; 5], pairing);
            assert_eq!((change.percent, change.low, change.high, change.p), (0.0, 0.0, 0.0, 1.0));
            assert!(!change.significant);
        }
    }
}

#[test]
fn one_sample_is_a_change_without_an_interval() {
    for pairing in [Paired, Independent] {
        let change = percent_change(&[100.0], &[150.0], pairing);
        assert!((change.percent - 50.0).abs() < 1e-9, "{change:?}");
        assert!(change.low <= -100.0 && change.high == f64::INFINITY && !change.significant, "{change:?}");
        assert!(percent_change(&Vec::<f64>::new(), &[1.0], pairing).percent.is_nan());
    }
}

#[test]
fn a_round_with_a_sample_that_is_not_finite_is_left_out() {
    let change = percent_change(&[100.0, f64::NAN, 102.0, 98.0], &[110.0, 3.0, 112.2, 107.8], Paired);
    assert!((change.percent - 10.0).abs() < 1e-9 && change.significant, "{change:?}");
    let independent = percent_change(&[100.0, f64::INFINITY], &[110.0], Independent);
    assert!((independent.percent - 10.0).abs() < 1e-9, "{independent:?}");
}

/// The ranks of the usual tables, such as Conover's.
#[test]
fn the_interval_of_the_median_lies_between_the_ranks_of_the_tables() {
    for (count, low, high) in
        [(1, 1, 1), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (15, 4, 12), (20, 6, 15), (100, 40, 61)]
    {
        let samples: Vec<f64> = (1..=count).rev().map(f64::from).collect();
        let found = estimate(&samples);
        assert_eq!((found.low, found.high), (f64::from(low), f64::from(high)), "{count}");
        assert_eq!(found.value, (1.0 + f64::from(count)) / 2.0, "{count}");
    }
    let found = estimate(&(1..=10_000).map(f64::from).collect::<Vec<_>>());
    assert!((4900.0..=4902.0).contains(&found.low) && (5099.0..=5101.0).contains(&found.high), "{found:?}");
}

#[test]
fn the_interval_of_the_median_contains_it_in_95_percent_of_trials() {
    for seed in seeds() {
        for rounds in [6, 9, 15, 40] {
            let mut machine = Machine { noise: 0.5, ..Machine::new(seed) };
            let mut covered = 0;
            for _ in 0..4000 {
                let samples: Vec<f64> = (0..rounds).map(|_| machine.sample(500.0)).collect();
                let found = estimate(&samples);
                covered += u32::from(found.low <= 500.0 && 500.0 <= found.high);
            }
            assert!(covered >= 3740, "seed {seed}, {rounds} rounds: {covered} of 4000");
        }
    }
}

#[test]
fn samples_that_are_not_finite_are_no_samples() {
    let found = estimate(&[3.0, f64::NAN, 1.0, f64::INFINITY, 2.0]);
    assert_eq!(found, Estimate { value: 2.0, low: 1.0, high: 3.0 });
    assert!(estimate(&[]).value.is_nan() && estimate(&[f64::NAN]).low.is_nan());
}

#[test]
fn holm_demands_more_of_the_smallest_of_many() {
    let change = |p: f64| Change { percent: 1.0, low: 0.5, high: 1.5, p, significant: p < LEVEL };
    let mut changes = [0.04, 0.01, 0.03, 0.005].map(change);
    holm(&mut changes);
    assert_eq!(changes.map(|change| change.significant), [false, true, false, true]);
    let mut alone = [change(0.04)];
    holm(&mut alone);
    assert!(alone[0].significant);
}

#[test]
fn holm_calls_something_significant_in_one_family_of_twenty() {
    let seed = fresh_seed();
    let mut machine = Machine::new(seed);
    let mut families = 0;
    for _ in 0..1000 {
        let mut family: Vec<Change> = (0..10)
            .map(|_| machine.paired(9, 1.0))
            .map(|(base, other)| percent_change(&base, &other, Paired))
            .collect();
        holm(&mut family);
        families += u32::from(family.iter().any(|change| change.significant));
    }
    assert!(families <= 80, "seed {seed}: {families} of 1000 families");
}

#[test]
fn synthetic_latencies_are_those_of_a_histogram() {
    for us in [0.9, 65.535, 65.537, 100.0, 777.7, 12_345.0] {
        let mut histogram = crate::bench::Histogram::default();
        histogram.record(std::time::Duration::from_secs_f64(us / 1e6));
        // The longest duration is exact.
        histogram.record(std::time::Duration::from_secs(1000));
        let reported = histogram.percentile(5000).as_secs_f64() * 1e6;
        assert!((bucketed(us) - reported).abs() < 1e-6, "{us}: {} is {reported}", bucketed(us));
    }
}

/// Two latencies on either side of the border of a bucket, with noise that is far below its width.
#[test]
fn a_difference_within_the_resolution_is_never_significant() {
    let resolution = crate::bench::Histogram::RESOLUTION;
    for pairing in [Paired, Independent] {
        let (below, above) = ([bucketed(65.535); 9], [bucketed(65.537); 9]);
        assert!(above[0] / below[0] > 1.01);
        assert!(percent_change(&below, &above, pairing).significant, "as exact numbers they differ");
        let change =
            percent_change(Series::new(&below, resolution), Series::new(&above, resolution), pairing);
        assert!(!change.significant && change.p == 1.0, "{change:?}");
        assert!(change.low < 0.0 && 0.0 < change.high, "{change:?}");
        // Without noise, a step is the width of the interval, and not nothing.
        let same = percent_change(Series::new(&below, resolution), Series::new(&below, resolution), pairing);
        assert!(same.high - same.low > 3.0 && !same.significant, "{same:?}");
        let far = below.map(|sample| sample * 1.06);
        let change = percent_change(Series::new(&below, resolution), Series::new(&far, resolution), pairing);
        assert!(change.significant && change.p > 0.0 && change.low > 2.0, "{change:?}");
    }
}

/// A clock with ticks of 10 ms, and values around zero.
#[test]
fn an_absolute_resolution_counts_in_the_unit_of_the_samples() {
    let ticks = Resolution { absolute: 0.01, ..Resolution::EXACT };
    for (step, is_found) in [(0.01, false), (0.05, true)] {
        let (base, other) =
            ([0.0, 0.01, 0.0, 0.01, 0.0, 0.01], [0.0, 0.01, 0.0, 0.01, 0.0, 0.01].map(|s| s + step));
        let change = percent_change(Series::new(&base, ticks), Series::new(&other, ticks), Paired);
        assert_eq!(change.significant, is_found, "{change:?}");
        let positive = [base, other].map(|samples| samples.map(|sample| sample + 0.02));
        let [base, other] = positive.each_ref().map(|samples| Series::new(samples, ticks));
        assert_eq!(percent_change(base, other, Independent).significant, is_found, "{step}");
    }
}

/// Nine samples, of which Yuen's test leaves out one at either end. Computed by hand from his formulas, as
/// `yuen` of Wilcox' WRS2 does.
#[test]
fn trimmed_means_have_the_variance_and_the_freedom_of_yuen() {
    let points = |values: [f64; 9]| values.map(|value| Point { value, width: 0.0 });
    let mean = TrimmedMean::robust(&points([-90.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 400.0]));
    // The winsorized samples are -3 -3 -2 -1 0 1 2 3 3.
    assert_eq!((mean.value, mean.kept, mean.freedom), (0.0, 7, Some(6.0)));
    assert!((mean.variance - 46.0 / (7.0 * 6.0)).abs() < 1e-12, "{mean:?}");
    let plain = TrimmedMean::of(&points([-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]), 0);
    assert_eq!((plain.value, plain.kept, plain.freedom), (0.0, 9, Some(8.0)));
    assert!((plain.variance - 60.0 / (9.0 * 8.0)).abs() < 1e-12, "Student's: {plain:?}");
    // Of one more sample: the variance of a sample, 7.5, and that of the mean.
    assert!((plain.prediction_error().powi(2) - 7.5 * (1.0 + 1.0 / 9.0)).abs() < 1e-12, "{plain:?}");
    let rounded = points([-90.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 400.0])
        .map(|point| Point { width: if point.value.abs() > 50.0 { 1e6 } else { 1.2 }, ..point });
    let rounded = TrimmedMean::robust(&rounded);
    assert!((rounded.width - 1.2).abs() < 1e-12, "extreme samples have no part in it: {rounded:?}");
    assert!((rounded.variance - mean.variance - 1.2 * 1.2 / 12.0 / 7.0).abs() < 1e-12, "{rounded:?}");
}

#[test]
fn a_single_sample_is_compared_by_the_spread_of_the_other_side() {
    let five = [99.0, 100.0, 101.0, 100.5, 99.5];
    for (one, is_found) in [(101.5, false), (110.0, true)] {
        let change = percent_change(&five, &[one], Independent);
        assert_eq!(change.significant, is_found, "{change:?}");
        let back = percent_change(&[one], &five, Independent);
        assert!((back.p - change.p).abs() < 1e-12 && back.significant == is_found, "{back:?}");
    }
    // The change is that to the mean of all samples: of nine, nothing is left out.
    let nine = [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 9.0];
    let change = percent_change(&nine, &[8.0], Independent);
    let (mean, error) = (5.0 / 9.0, f64::sqrt((125.0 - 25.0 / 9.0) / 8.0 * (1.0 + 1.0 / 9.0)));
    let half = error * 2.306_004;
    assert!((change.percent / 100.0 * mean - (8.0 - mean)).abs() < 1e-9, "{change:?}");
    assert!(((change.high - change.low) / 200.0 * mean - half).abs() < 1e-5, "{change:?}");
}

/// Of a normal distribution, 5 % of single samples lie outside, and not more with two modes: the variance of
/// a trimmed mean calls 11 % of them different. Rare slow samples are called different more often, whatever
/// the method: ten samples cannot show what happens once in ten.
#[test]
fn one_single_sample_of_twenty_is_called_different() {
    for seed in seeds() {
        for (count, second_mode_one_in, expected) in
            [(5, 0, 140..=270), (9, 0, 140..=260), (10, 3, 80..=210), (9, 10, 270..=440)]
        {
            let mut machine = Machine { second_mode_one_in, ..Machine::new(seed) };
            let mut found = 0;
            for _ in 0..4000 {
                let (base, other) = (machine.series(count, 500.0), machine.series(1, 500.0));
                found += u32::from(percent_change(&base, &other, Independent).significant);
            }
            assert!(expected.contains(&found), "seed {seed}, {count}, {second_mode_one_in}: {found} of 4000");
        }
    }
}

#[test]
fn the_center_of_a_run_leaves_out_its_extreme_rounds() {
    assert!((center(&[4.0, 1.0]) - 2.0).abs() < 1e-12);
    assert!((center(&[5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 900.0]) - 5.0).abs() < 1e-12);
    assert!((center(&[-1.0, 3.0]) - 1.0).abs() < 1e-12);
    assert!(center(&[]).is_nan() && center(&[f64::NAN]).is_nan());
}
