//! Reports of one experiment, compared quantity by quantity: one run or several on each of two sides.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::model::{Better, Ended, Estimate, Metric, Report};
use crate::statistics::{self, Change, Pairing, Series};
use crate::text::counted;

/// What changed from the runs of one side to those of another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// How many runs each side has.
    pub runs: [usize; 2],
    /// What the samples are that the verdicts compare.
    pub unit: Unit,
    /// What the comparison cannot tell, as sentences.
    pub limits: Vec<String>,
    /// Reasons to doubt that the reports can be compared, as sentences.
    pub warnings: Vec<String>,
    /// What the verdicts promise together.
    pub family: Family,
    /// The metrics of both sides, in the order of the first.
    pub changes: Vec<MetricChange>,
    /// The metrics that only the first side has.
    pub only_first: Vec<MetricName>,
    /// The metrics that only the second side has.
    pub only_second: Vec<MetricName>,
}

/// What the samples of a comparison are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The rounds of one run on each side. They do not show how runs differ from each other.
    Round,
    /// The runs: each counts as one sample, however many rounds it has.
    Run,
}

/// The changes that are judged together: if nothing differs, one or more of them are called different in at
/// most 5 % of comparisons. The promise holds for each comparison by itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Family {
    /// How many changes are judged. The more, the larger a change must be to be found.
    pub size: usize,
    /// How many are not: [`Verdict::NotJudged`].
    pub not_judged: usize,
    /// The smallest changes, in percent, that are found in nine cases of ten: in the quantity with the
    /// smallest error, the median one and the one with the largest. None if nothing can be found.
    pub finds_from: Option<[f64; 3]>,
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
    /// The median of the first side, over its rounds or its runs.
    pub first: Estimate,
    /// The median of the second side.
    pub second: Estimate,
    /// The change in percent of the first side. If it is judged, it is significant if it is so after Holm's
    /// correction for the family.
    pub change: Change,
    /// The smallest change, in percent, that the comparison finds in nine cases of ten; none if it is not
    /// judged, or nothing can be found.
    pub finds_from: Option<f64>,
    /// What the change means.
    pub verdict: Verdict,
}

/// What a change means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The second side is significantly worse.
    Worse,
    /// The second side is significantly better.
    Better,
    /// The change is not significant: the samples show no difference, which does not prove that there is
    /// none.
    NotSignificant,
    /// The metric has no part in the family: it describes the circumstances, another metric answers the same
    /// question, or there are too few samples for a test.
    NotJudged,
}

/// Compares the runs of two sides by the circumstances and quantities of their metrics.
///
/// With one run on each side, the samples are its rounds, and a verdict is one about these two runs only.
/// Otherwise each run is a sample: the mean of its rounds without the extreme ones. Runs take place at
/// different times, so the samples are independent. The order of circumstances does not matter. A metric
/// whose unit differs is not compared. A change is one of trimmed geometric means, so it can differ a little
/// from that of the medians. A side without runs has no metrics.
pub fn compare(first: &[Report], second: &[Report]) -> Comparison {
    let runs = [first.len(), second.len()];
    let unit = if runs.iter().any(|count| *count > 1) { Unit::Run } else { Unit::Round };
    let (in_first, in_second) = (by_key(first), by_key(second));
    let mut compared: Vec<Compared<'_>> = names_in_order(first)
        .filter_map(|metric| {
            let key = key(metric);
            let sides = [in_first.get(&key)?, in_second.get(&key)?].map(|runs| Side::of(runs, unit));
            Some(Compared::new(metric, sides, is_question(metric, [&in_first, &in_second])))
        })
        .collect();
    let size = compared.iter().filter(|one| one.is_judged).count();
    statistics::holm(compared.iter_mut().filter(|one| one.is_judged).map(|one| &mut one.change));
    let changes: Vec<MetricChange> = compared.iter().map(|one| one.judged(size)).collect();
    Comparison {
        runs,
        unit,
        limits: limits(runs),
        warnings: warnings(first, second),
        family: family(&changes, size),
        changes,
        only_first: missing_from(&in_second, first),
        only_second: missing_from(&in_first, second),
    }
}

/// Quantities that another one with the same circumstances tells too: the number of commands in a second is
/// the throughput divided by their length, and the others are parts of a sum.
const RESTATED: [(&str, &str); 3] = [
    ("commands", "throughput"),
    ("processor time, user", "processor time"),
    ("processor time, system", "processor time"),
];

/// Returns whether a metric asks a question of its own. Each question takes power from all others.
fn is_question(metric: &Metric, sides: [&BySide<'_>; 2]) -> bool {
    let (circumstances, ..) = key(metric);
    // Whatever its unit: keys with the same circumstances and quantity follow each other.
    let has = |side: &BySide<'_>, other: &str| {
        let next = side.range((circumstances.clone(), other, "")..).next();
        next.is_some_and(|((found, quantity, _), _)| *found == circumstances && *quantity == other)
    };
    let is_restated = RESTATED
        .iter()
        .any(|(quantity, by)| *quantity == metric.quantity && sides.iter().all(|side| has(side, by)));
    metric.better != Better::Neither && !is_restated
}

fn family(changes: &[MetricChange], size: usize) -> Family {
    let mut found: Vec<f64> = changes.iter().filter_map(|change| change.finds_from).collect();
    found.sort_by(f64::total_cmp);
    let ends = found.first().zip(found.last());
    let finds_from = ends.map(|(least, most)| [*least, statistics::median(&found), *most]);
    Family { size, not_judged: changes.len().saturating_sub(size), finds_from }
}

/// Tells what a comparison of so many runs cannot tell.
fn limits(runs: [usize; 2]) -> Vec<String> {
    let one_run = "one run on each side: the verdicts are about these two runs. The rounds of a run do not show how runs \
                   differ from each other, which can be by several percent without any cause of interest. To judge what \
                   was changed between the runs, compare several runs of each (a directory of runs on each side)";
    let few = |least: usize| {
        format!(
            "{} on a side: only changes that are several times larger than the differences between runs can be found",
            counted(least, "run")
        )
    };
    match runs {
        [0, _] | [_, 0] => Vec::new(),
        [1, 1] => vec![one_run.to_owned()],
        [1, _] | [_, 1] => vec![format!("{}. The spread of the other side counts for both", few(1))],
        [first, second] if first.min(second) < RUNS_ENOUGH => vec![few(first.min(second))],
        _ => Vec::new(),
    }
}

/// With fewer runs on a side, chance hides changes that are several times the spread of the runs.
const RUNS_ENOUGH: usize = 5;

/// The samples of a metric on one side, and how finely they were measured.
struct Side {
    samples: Vec<f64>,
    resolution: statistics::Resolution,
}

impl Side {
    /// The samples are the rounds of the only run, or a value for each run. The coarsest resolution counts.
    fn of(runs: &[&Metric], unit: Unit) -> Self {
        let samples = match (unit, runs) {
            (Unit::Round, [only]) => only.samples.clone(),
            _ => runs.iter().map(|metric| statistics::center(&metric.samples)).collect(),
        };
        let resolution = runs.iter().map(|metric| metric.resolution()).fold(
            statistics::Resolution::EXACT,
            |coarsest, one| statistics::Resolution {
                relative: coarsest.relative.max(one.relative),
                absolute: coarsest.absolute.max(one.absolute),
            },
        );
        Self { samples, resolution }
    }

    fn series(&self) -> Series<'_> {
        Series::new(&self.samples, self.resolution)
    }
}

/// Circumstances in ascending order, quantity and unit.
type Key<'a> = (Vec<&'a (String, String)>, &'a str, &'a str);

fn key(metric: &Metric) -> Key<'_> {
    let mut circumstances: Vec<&(String, String)> = metric.circumstances.iter().collect();
    circumstances.sort();
    (circumstances, &metric.quantity, &metric.unit)
}

/// The metrics of a side, each with those of the runs that have it.
type BySide<'a> = BTreeMap<Key<'a>, Vec<&'a Metric>>;

/// Returns the metrics of a side, each with those of the runs that have it.
fn by_key(runs: &[Report]) -> BySide<'_> {
    let mut found = BySide::new();
    for metric in runs.iter().flat_map(|report| &report.metrics) {
        found.entry(key(metric)).or_default().push(metric);
    }
    found
}

/// Returns each metric of a side once, in the order of the runs.
fn names_in_order(runs: &[Report]) -> impl Iterator<Item = &Metric> {
    let mut seen = BTreeSet::new();
    let metrics = runs.iter().flat_map(|report| &report.metrics);
    metrics.filter(move |metric| seen.insert(key(metric)))
}

fn missing_from(others: &BySide<'_>, runs: &[Report]) -> Vec<MetricName> {
    names_in_order(runs).filter(|metric| !others.contains_key(&key(metric))).map(name).collect()
}

fn name(metric: &Metric) -> MetricName {
    let Metric { circumstances, quantity, unit, .. } = metric;
    MetricName { circumstances: circumstances.clone(), quantity: quantity.clone(), unit: unit.clone() }
}

/// A metric of both sides.
struct Compared<'a> {
    metric: &'a Metric,
    sides: [Side; 2],
    change: Change,
    /// Whether it belongs to the family: a question that the samples can answer.
    is_judged: bool,
}

impl<'a> Compared<'a> {
    fn new(metric: &'a Metric, sides: [Side; 2], is_question: bool) -> Self {
        let [first, second] = &sides;
        let change = statistics::percent_change(first.series(), second.series(), Pairing::Independent);
        let is_tested =
            statistics::smallest_found(first.series(), second.series(), Pairing::Independent, 1).is_some();
        Self { metric, sides, change, is_judged: is_question && is_tested }
    }

    /// Returns the verdict in a family of this size.
    fn judged(&self, size: usize) -> MetricChange {
        let [first, second] = &self.sides;
        let finds_from =
            || statistics::smallest_found(first.series(), second.series(), Pairing::Independent, size);
        let verdict = match (self.is_judged, self.change.significant) {
            (false, _) => Verdict::NotJudged,
            (true, false) => Verdict::NotSignificant,
            (true, true) if (self.change.percent > 0.0) == (self.metric.better == Better::Higher) => {
                Verdict::Better
            }
            (true, true) => Verdict::Worse,
        };
        MetricChange {
            name: name(self.metric),
            first: statistics::estimate(&first.samples),
            second: statistics::estimate(&second.samples),
            change: Change { significant: self.is_judged && self.change.significant, ..self.change },
            finds_from: if self.is_judged { finds_from().filter(|from| from.is_finite()) } else { None },
            verdict,
        }
    }
}

fn warnings(first: &[Report], second: &[Report]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (Some(one), Some(other)) = (first.first(), second.first()) {
        warnings.extend(plan_difference(one, other, "of the two runs"));
    }
    for (runs, which) in [(first, "first"), (second, "second")] {
        for (number, report) in (1..).zip(runs) {
            if let Ended::Early(why) = &report.ended {
                let run = if runs.len() == 1 { "run".to_owned() } else { format!("side's run {number}") };
                warnings.push(format!("the {which} {run} ended early: {why}"));
            }
        }
    }
    if let (Some(one), Some(other)) = (first.first(), second.first()) {
        warnings.extend(machine_differences(one, other).into_iter().map(|(name, first, second)| {
            format!("the machines or their software differ: {name} was {first}, and then {second}")
        }));
    }
    for (runs, which) in [(first, "first"), (second, "second")] {
        warnings.extend(differences_within(runs, which));
    }
    warnings
}

fn plan_difference(one: &Report, other: &Report, of: &str) -> Option<String> {
    if one.experiment != other.experiment {
        let (one, other) = (&one.experiment, &other.experiment);
        return Some(format!("the reports are of different experiments: {one} and {other}"));
    }
    (one.plan != other.plan).then(|| format!("the plans {of} differ"))
}

/// Warns if the runs of one side are not alike: what differs between them hides what is sought.
fn differences_within(runs: &[Report], which: &str) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    let Some((first, others)) = runs.split_first() else { return warnings };
    for other in others {
        let of = format!("of the {which} side's runs");
        let machines = machine_differences(first, other);
        let machines = machines.into_iter().map(|(name, _, _)| {
            format!("the machines or the software of the {which} side's runs differ: {name}")
        });
        for warning in plan_difference(first, other, &of).into_iter().chain(machines) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

/// Returns the entries of the machines that differ, with both values.
fn machine_differences(first: &Report, second: &Report) -> Vec<(String, String, String)> {
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
    let pairs = names.into_iter().map(|name| (name.to_owned(), value(first, name), value(second, name)));
    pairs.filter(|(_, first, second)| first != second).collect()
}
