//! Comparisons whose result is known.

use base::rng::Rng;

use super::super::testing::{SEED, report, samples};
use super::*;

/// A report whose samples of one quantity are multiplied.
fn scaled(report: &Report, quantity: &str, digests: &str, factor: f64) -> Report {
    let mut scaled = report.clone();
    for metric in &mut scaled.metrics {
        if metric.quantity == quantity && metric.circumstances[0].1 == digests {
            metric.samples.iter_mut().for_each(|sample| *sample *= factor);
        }
    }
    scaled
}

fn verdicts(comparison: &Comparison, verdict: Verdict) -> Vec<&MetricChange> {
    comparison.changes.iter().filter(|change| change.verdict == verdict).collect()
}

#[test]
fn a_report_does_not_differ_from_itself() {
    let report = report(SEED, 9);
    let comparison = compare(&report, &report);
    assert_eq!(comparison.changes.len(), report.metrics.len());
    assert_eq!(verdicts(&comparison, Verdict::Unclear).len(), report.metrics.len());
    assert!(comparison.changes.iter().all(|change| change.change.percent == 0.0));
    assert!(comparison.warnings.is_empty() && comparison.only_first.is_empty());
}

#[test]
fn better_and_worse_depend_on_the_metric() {
    let first = report(SEED, 9);
    let second = scaled(&scaled(&first, "throughput", "both", 1.2), "latency p99", "none", 1.1);
    let comparison = compare(&first, &second);
    let (better, worse) = (verdicts(&comparison, Verdict::Better), verdicts(&comparison, Verdict::Worse));
    assert_eq!((better.len(), worse.len()), (4, 4));
    for change in better {
        assert_eq!((change.name.quantity.as_str(), change.name.unit.as_str()), ("throughput", "MB/s"));
        assert!((change.change.percent - 20.0).abs() < 1e-6 && change.change.low > 15.0, "{change:?}");
    }
    for change in worse {
        assert_eq!(change.name.quantity, "latency p99");
        assert_eq!(change.name.circumstances[0].1, "none");
    }
    let back = compare(&second, &first);
    assert_eq!((verdicts(&back, Verdict::Better).len(), verdicts(&back, Verdict::Worse).len()), (4, 4));
}

#[test]
fn a_metric_without_a_direction_is_only_different() {
    let mut first = report(SEED, 9);
    first.metrics.iter_mut().for_each(|metric| metric.better = Better::Neither);
    let comparison = compare(&first, &scaled(&first, "throughput", "both", 0.5));
    assert_eq!(verdicts(&comparison, Verdict::Different).len(), 4);
    assert_eq!(verdicts(&comparison, Verdict::Unclear).len(), first.metrics.len() - 4);
}

#[test]
fn metrics_are_matched_by_name_and_not_by_place() {
    let first = report(SEED, 9);
    let mut second = first.clone();
    second.metrics.reverse();
    second.metrics.iter_mut().for_each(|metric| metric.circumstances.reverse());
    assert!(compare(&first, &second).changes.iter().all(|change| change.change.percent == 0.0));

    second.metrics[0].unit = "ms".to_owned();
    second.metrics[1].circumstances[0].1 = "other".to_owned();
    let comparison = compare(&first, &second);
    assert_eq!(comparison.changes.len(), first.metrics.len() - 2);
    assert_eq!(comparison.only_first.len(), 2);
    assert_eq!(comparison.only_second[0].unit, "ms");
    assert_eq!(comparison.only_second[1].circumstances[0].1, "other");
}

#[test]
fn reasons_to_doubt_are_said() {
    let first = report(SEED, 9);
    let mut second = first.clone();
    second.machine[0].1 = "another".to_owned();
    second.machine.pop();
    second.plan.push_str("more = 1\n");
    second.ended = Ended::Early("SIGINT".to_owned());
    let warnings = compare(&first, &second).warnings;
    let expected = [
        "the plans of the two runs differ",
        "the second run ended early: SIGINT",
        "the machines or their software differ: processor was AMD EPYC 7R13, 2 cores, and then another",
        "the machines or their software differ: governor was unknown: the machine is a guest, and then not recorded",
    ];
    assert_eq!(warnings, expected);
    second.experiment = "risk".to_owned();
    assert_eq!(
        compare(&first, &second).warnings[0],
        "the reports are of different experiments: digests and risk"
    );
}

/// 32 metrics of two runs that do not differ: without the correction, most pairs of runs seem to differ.
#[test]
fn equal_runs_differ_in_few_comparisons() {
    let seed = super::super::testing::fresh_seed();
    let mut rng = Rng::from_seed(seed);
    let mut different = 0;
    for _ in 0..200 {
        let mut first = report(SEED, 9);
        first.metrics.iter_mut().for_each(|metric| metric.samples = samples(&mut rng, 100.0, 9));
        let mut second = first.clone();
        second.metrics.iter_mut().for_each(|metric| metric.samples = samples(&mut rng, 100.0, 9));
        let comparison = compare(&first, &second);
        different += u32::from(verdicts(&comparison, Verdict::Unclear).len() < first.metrics.len());
    }
    assert!(different <= 36, "seed {seed}: {different} of 200");
}
