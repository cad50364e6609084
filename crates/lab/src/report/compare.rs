//! Two reports of one experiment, compared quantity by quantity.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use super::model::{Better, Ended, Estimate, Metric, Report};
use crate::statistics::{self, Change, Pairing};

/// What changed from one report to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Reasons to doubt that the reports can be compared, as sentences.
    pub warnings: Vec<String>,
    /// The metrics of both reports, in the order of the first.
    pub changes: Vec<MetricChange>,
    /// The metrics that only the first report has.
    pub only_first: Vec<MetricName>,
    /// The metrics that only the second report has.
    pub only_second: Vec<MetricName>,
}

/// What identifies a metric in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MetricName {
    /// The circumstances, in the order of the report.
    pub circumstances: Vec<(String, String)>,
    /// What was measured.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
}

/// How a metric changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricChange {
    /// The metric.
    #[serde(flatten)]
    pub name: MetricName,
    /// The median in the first report.
    pub first: Estimate,
    /// The median in the second report.
    pub second: Estimate,
    /// The change in percent of the first report. It is significant if it is after Holm's correction for all
    /// metrics of the comparison.
    pub change: Change,
    /// What the change means.
    pub verdict: Verdict,
}

/// What a change means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The second report is significantly worse.
    Worse,
    /// The second report is significantly better.
    Better,
    /// The change is significant, and neither better nor worse.
    Different,
    /// The change is not significant: the samples show no difference, which does not prove that there is none.
    Unclear,
}

/// Compares two reports by the circumstances and quantities of their metrics.
///
/// The two runs took place at different times, so their samples are independent. The order of circumstances
/// does not matter. A metric whose unit differs is not compared.
pub fn compare(first: &Report, second: &Report) -> Comparison {
    let (in_first, in_second) = (by_key(first), by_key(second));
    let partner = |metric: &Metric| in_second.get(&key(metric)).copied();
    let mut changes: Vec<(MetricChange, Better)> = first
        .metrics
        .iter()
        .filter_map(|metric| Some((change(metric, partner(metric)?), metric.better)))
        .collect();
    statistics::holm(changes.iter_mut().map(|(change, _)| &mut change.change));
    let judged = changes.into_iter().map(|(mut change, better)| {
        change.verdict = verdict(better, &change.change);
        change
    });
    Comparison {
        warnings: warnings(first, second),
        changes: judged.collect(),
        only_first: missing_from(&in_second, first),
        only_second: missing_from(&in_first, second),
    }
}

/// Circumstances in ascending order, quantity and unit.
type Key<'a> = (Vec<&'a (String, String)>, &'a str, &'a str);

fn key(metric: &Metric) -> Key<'_> {
    let mut circumstances: Vec<&(String, String)> = metric.circumstances.iter().collect();
    circumstances.sort();
    (circumstances, &metric.quantity, &metric.unit)
}

fn by_key(report: &Report) -> BTreeMap<Key<'_>, &Metric> {
    report.metrics.iter().map(|metric| (key(metric), metric)).collect()
}

fn missing_from(others: &BTreeMap<Key<'_>, &Metric>, report: &Report) -> Vec<MetricName> {
    report.metrics.iter().filter(|metric| !others.contains_key(&key(metric))).map(name).collect()
}

fn name(metric: &Metric) -> MetricName {
    let Metric { circumstances, quantity, unit, .. } = metric;
    MetricName { circumstances: circumstances.clone(), quantity: quantity.clone(), unit: unit.clone() }
}

fn change(first: &Metric, second: &Metric) -> MetricChange {
    MetricChange {
        name: name(first),
        first: statistics::estimate(&first.samples),
        second: statistics::estimate(&second.samples),
        change: statistics::percent_change(&first.samples, &second.samples, Pairing::Independent),
        verdict: Verdict::Unclear,
    }
}

fn verdict(better: Better, change: &Change) -> Verdict {
    match (change.significant, better) {
        (false, _) => Verdict::Unclear,
        (true, Better::Neither) => Verdict::Different,
        (true, Better::Higher) if change.percent > 0.0 => Verdict::Better,
        (true, Better::Lower) if change.percent < 0.0 => Verdict::Better,
        (true, Better::Higher | Better::Lower) => Verdict::Worse,
    }
}

fn warnings(first: &Report, second: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    if first.experiment != second.experiment {
        warnings.push(format!(
            "the reports are of different experiments: {} and {}",
            first.experiment, second.experiment
        ));
    } else if first.plan != second.plan {
        warnings.push("the plans of the two runs differ".to_owned());
    }
    for (report, which) in [(first, "first"), (second, "second")] {
        if let Ended::Early(why) = &report.ended {
            warnings.push(format!("the {which} run ended early: {why}"));
        }
    }
    warnings.extend(machine_differences(first, second));
    warnings
}

/// Returns a sentence for each entry of the machines that differs.
fn machine_differences(first: &Report, second: &Report) -> Vec<String> {
    let value = |report: &Report, name: &str| {
        let entry = report.machine.iter().find(|(other, _)| other == name);
        entry.map_or_else(|| "not recorded".to_owned(), |(_, value)| value.clone())
    };
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in first.machine.iter().chain(&second.machine) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let pairs = names.into_iter().map(|name| (name, value(first, name), value(second, name)));
    pairs
        .filter(|(_, first, second)| first != second)
        .map(|(name, first, second)| {
            format!("the machines or their software differ: {name} was {first}, and then {second}")
        })
        .collect()
}
