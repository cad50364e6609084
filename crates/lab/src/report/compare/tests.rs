//! Comparisons whose result is known.

use base::rng::Rng;

use super::super::testing::{SEED, report, samples};
use super::*;
use crate::statistics::tests::synthetic::Machine;

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

/// Compares two runs.
fn compare(first: &Report, second: &Report) -> Comparison {
    super::compare(std::slice::from_ref(first), std::slice::from_ref(second))
}

fn verdicts(comparison: &Comparison, verdict: Verdict) -> Vec<&MetricChange> {
    comparison.changes.iter().filter(|change| change.verdict == verdict).collect()
}

#[test]
fn a_report_does_not_differ_from_itself() {
    let report = report(SEED, 9);
    let comparison = compare(&report, &report);
    assert_eq!(comparison.changes.len(), report.metrics.len());
    assert_eq!(verdicts(&comparison, Verdict::NotSignificant).len(), report.metrics.len());
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
fn what_is_no_question_of_its_own_is_not_judged() {
    let mut first = report(SEED, 9);
    let like = |metric: &Metric, quantity: &str, better| Metric {
        quantity: quantity.to_owned(),
        unit: "1".to_owned(),
        better,
        ..metric.clone()
    };
    let rates: Vec<Metric> =
        first.metrics.iter().filter(|metric| metric.quantity == "throughput").cloned().collect();
    let questions = first.metrics.len();
    for metric in &rates {
        // A restatement, a circumstance, and what was counted once.
        first.metrics.push(like(metric, "commands", Better::Higher));
        first.metrics.push(like(metric, "offered load", Better::Neither));
        let once = Metric { samples: vec![1.0], ..like(metric, "resident memory", Better::Lower) };
        first.metrics.push(once);
    }
    let mut second = first.clone();
    for metric in second.metrics.iter_mut().skip(questions) {
        metric.samples.iter_mut().for_each(|sample| *sample *= 0.5);
    }
    let comparison = compare(&first, &second);
    assert_eq!((comparison.family.size, comparison.family.not_judged), (questions, 3 * rates.len()));
    assert_eq!(verdicts(&comparison, Verdict::NotSignificant).len(), questions);
    for change in verdicts(&comparison, Verdict::NotJudged) {
        assert!((change.change.percent + 50.0).abs() < 1e-6, "it is shown: {change:?}");
        assert!(!change.change.significant && change.finds_from.is_none(), "{change:?}");
    }
    // Without the throughput, the commands answer a question.
    let only = |quantity: &str| {
        [&first, &second].map(|report| {
            let mut report = report.clone();
            report.metrics.retain(|metric| metric.quantity == quantity);
            report
        })
    };
    let [before, after] = only("commands");
    assert_eq!(verdicts(&compare(&before, &after), Verdict::Worse).len(), rates.len());
    let [before, after] = only("offered load");
    let none = compare(&before, &after).family;
    assert_eq!((none.size, none.not_judged, none.finds_from), (0, rates.len(), None));
}

/// Five runs on each side with a change in one of many quantities that a large family hides.
#[test]
fn the_family_says_which_changes_it_can_find() {
    let seed = super::super::testing::fresh_seed();
    let mut machine = Machine { noise: 0.001, ..Machine::new(seed) };
    let mut side = |factor: f64| -> Vec<Report> {
        let mut reports = vec![Report { metrics: Vec::new(), ..report(SEED, 5) }; 5];
        for at in 0..400 {
            let truth = if at == 0 { 500.0 * factor } else { 500.0 };
            for (report, samples) in reports.iter_mut().zip(machine.runs((5, 5), truth, 0.01)) {
                let circumstances = vec![("workload".to_owned(), at.to_string())];
                let quantity = if at == 0 { "throughput" } else { "rate" }.to_owned();
                report.metrics.push(Metric {
                    circumstances,
                    quantity,
                    better: Better::Higher,
                    ..latency(samples)
                });
            }
        }
        reports
    };
    let [first, second] = [side(1.0), side(1.0)];
    let large = super::compare(&first, &second).family;
    let [least, median, most] = large.finds_from.unwrap();
    assert!(least < median && median < most && large.size == 400, "seed {seed}: {large:?}");
    // About 7.5 times the spread between runs, which is 1 %.
    assert!((6.0..10.0).contains(&median), "seed {seed}: {large:?}");
    let alone = |reports: &[Report]| -> Vec<Report> {
        let mut reports = reports.to_vec();
        reports.iter_mut().for_each(|report| report.metrics.truncate(1));
        reports
    };
    let small = super::compare(&alone(&first), &alone(&second));
    let found = small.changes[0].finds_from.unwrap();
    assert_eq!(small.family.finds_from, Some([found; 3]));
    let of_large = super::compare(&first, &second).changes[0].finds_from.unwrap();
    assert!(found * 2.0 < of_large, "seed {seed}: {found} alone, {of_large} of 400");
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
        different += u32::from(verdicts(&comparison, Verdict::NotSignificant).len() < first.metrics.len());
    }
    assert!(different <= 36, "seed {seed}: {different} of 200");
}

/// Two runs of 1472 latencies that have the same truth, up to 0.2 % between runs.
#[test]
fn latencies_on_the_border_of_a_bucket_are_not_worse() {
    let seed = super::super::testing::fresh_seed();
    let mut machine = Machine { noise: 0.0005, quantized: true, ..Machine::new(seed) };
    let mut run = |truths: &[f64]| -> Vec<Metric> {
        let metric = |(at, truth): (usize, &f64)| {
            let samples = machine.runs((1, 5), *truth, 0.002).concat();
            Metric { circumstances: vec![("workload".to_owned(), at.to_string())], ..latency(samples) }
        };
        truths.iter().enumerate().map(metric).collect()
    };
    let truths: Vec<f64> = (0..1472).map(|at| 20.0 * 1.005_f64.powi(at)).collect();
    let [first, second] = [run(&truths), run(&truths)].map(|metrics| Report { metrics, ..report(SEED, 5) });
    let stepped = first.metrics.iter().zip(&second.metrics).filter(|(a, b)| a.samples[0] != b.samples[0]);
    assert!(stepped.count() > 50, "seed {seed}: many are in another bucket");
    let found = compare(&first, &second);
    assert_eq!(verdicts(&found, Verdict::NotSignificant).len(), 1472, "seed {seed}");
    assert_eq!((found.unit, found.runs, found.family.size), (Unit::Round, [1, 1], 1472));
    assert!(found.limits[0].contains("do not show how runs differ"), "{:?}", found.limits);
}

fn latency(samples: Vec<f64>) -> Metric {
    Metric {
        circumstances: Vec::new(),
        quantity: "latency, median".to_owned(),
        unit: "µs".to_owned(),
        better: Better::Lower,
        samples,
        resolution: None,
    }
}

/// Returns runs of 20 latencies that differ by `between` from run to run, and by 1 % from round to round.
fn runs_of(machine: &mut Machine, count: usize, between: f64, factor: f64) -> Vec<Report> {
    let mut reports = vec![Report { metrics: Vec::new(), ..report(SEED, 9) }; count];
    for at in 0..20 {
        let truth = 30.0 * 1.3_f64.powi(at) * factor;
        let runs = machine.runs((count, 9), truth, between);
        for (report, samples) in reports.iter_mut().zip(runs) {
            let circumstances = vec![("workload".to_owned(), at.to_string())];
            report.metrics.push(Metric { circumstances, ..latency(samples) });
        }
    }
    reports
}

#[test]
fn runs_that_differ_are_no_change_and_a_change_beyond_them_is_found() {
    let seed = super::super::testing::fresh_seed();
    let mut machine = Machine { noise: 0.01, quantized: true, ..Machine::new(seed) };
    let (mut families, mut found, mut of_rounds) = (0, 0, 0);
    for _ in 0..100 {
        let [first, second] = [0; 2].map(|_| runs_of(&mut machine, 5, 0.03, 1.0));
        let comparison = super::compare(&first, &second);
        assert_eq!((comparison.unit, comparison.runs), (Unit::Run, [5, 5]));
        assert!(comparison.limits.is_empty());
        families += u32::from(verdicts(&comparison, Verdict::NotSignificant).len() < 20);
        of_rounds += 20 - verdicts(&compare(&first[0], &second[0]), Verdict::NotSignificant).len();
        let slower = runs_of(&mut machine, 5, 0.01, 1.12);
        let comparison = super::compare(&runs_of(&mut machine, 5, 0.01, 1.0), &slower);
        found += verdicts(&comparison, Verdict::Worse).len();
    }
    // 5 % of the families, and four standard deviations.
    assert!(families <= 14, "seed {seed}: {families} of 100 families");
    assert!(found >= 1900, "seed {seed}: {found} of 2000 changes of 12 %");
    assert!(
        of_rounds > 200,
        "seed {seed}: single runs differ in {of_rounds} of 2000, and their limits say so"
    );
}

#[test]
fn a_side_of_one_run_is_judged_by_the_spread_of_the_other() {
    let seed = super::super::testing::fresh_seed();
    let mut machine = Machine { noise: 0.01, quantized: true, ..Machine::new(seed) };
    let many = runs_of(&mut machine, 5, 0.01, 1.0);
    for (factor, least) in [(1.3, 18), (1.0, 0)] {
        let one = runs_of(&mut machine, 1, 0.01, factor);
        let comparison = super::compare(&many, &one);
        assert!(comparison.limits[0].starts_with("1 run on a side"), "{:?}", comparison.limits);
        let worse = verdicts(&comparison, Verdict::Worse).len();
        assert!(if least == 0 { worse <= 2 } else { worse >= least }, "seed {seed}: {worse} with {factor}");
    }
}

#[test]
fn runs_of_a_side_that_are_not_alike_are_said_to_be() {
    let mut runs = vec![report(SEED, 9); 3];
    runs[1].plan.push_str("more = 1\n");
    runs[2].machine[0].1 = "another".to_owned();
    runs[2].ended = Ended::Early("SIGINT".to_owned());
    runs[2].metrics.truncate(1);
    let comparison = super::compare(&runs, &runs[..1]);
    let expected = [
        "the first side's run 3 ended early: SIGINT",
        "the plans of the first side's runs differ",
        "the machines or the software of the first side's runs differ: processor",
    ];
    assert_eq!(comparison.warnings, expected);
    assert_eq!(comparison.changes.len(), runs[0].metrics.len(), "two runs have all of them");
    assert!(super::compare(&runs, &[]).changes.is_empty());
}
