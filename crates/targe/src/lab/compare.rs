//! `targe lab compare`: what changed between runs of an experiment.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use lab::report::compare::{Comparison, Family, MetricChange, MetricName, Unit, Verdict, compare};
use lab::report::{Estimate, Report, number};
use serde::Serialize;

use crate::tables::Table;
use crate::{Failure, print};

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The first run: its result.json or its directory; or a directory of the directories of several runs
    #[arg(value_name = "FIRST")]
    first: PathBuf,
    /// The second run, or a directory of several, as the first
    #[arg(value_name = "SECOND")]
    second: PathBuf,
    /// Compare only this quantity, as the output names it without its unit: `throughput`. Can be repeated.
    ///
    /// The fewer quantities are judged together, the smaller the changes that can be found. Choose before you
    /// look at the result.
    #[arg(long, value_name = "QUANTITY")]
    quantity: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The most runs of a side: they are in memory together.
const RUNS_MAX: usize = 100;

/// The JSON form of the output.
#[derive(Serialize)]
struct Output<'a> {
    first: SideOutput<'a>,
    second: SideOutput<'a>,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// A side: where it is, and what its first run is.
#[derive(Serialize)]
struct SideOutput<'a> {
    path: &'a Path,
    experiment: &'a str,
    started: &'a str,
    /// When each of its runs started.
    started_all: Vec<&'a str>,
}

/// Compares reports. A change for the worse is no failure: the command did what it was asked for.
pub(super) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let (mut first, mut second) = (read_runs(&args.first)?, read_runs(&args.second)?);
    if !args.quantity.is_empty() {
        choose(&mut [&mut first, &mut second], &args.quantity)?;
    }
    let comparison = compare(&first, &second);
    if args.json {
        let output = Output {
            first: side_output(&args.first, &first),
            second: side_output(&args.second, &second),
            comparison: &comparison,
        };
        print(&format!("{}\n", serde_json::json!(output)));
    } else {
        eprint!("{}", warnings(&comparison));
        print(&format!("{}{}", limits(&comparison), show(&comparison)));
    }
    Ok(())
}

/// Leaves the chosen quantities alone in the reports of both sides.
fn choose(sides: &mut [&mut Vec<Report>; 2], quantities: &[String]) -> Result<(), Failure> {
    let metrics = || sides.iter().flat_map(|runs| runs.iter()).flat_map(|report| &report.metrics);
    if let Some(unknown) = quantities.iter().find(|one| metrics().all(|metric| metric.quantity != **one)) {
        let known: BTreeSet<String> =
            metrics().map(|metric| metric.quantity.escape_debug().to_string()).collect();
        let known: Vec<String> = known.into_iter().collect();
        return Err(Failure::Failed(format!(
            "--quantity: no report has {unknown}; they have: {}",
            known.join("; ")
        )));
    }
    for report in sides.iter_mut().flat_map(|runs| runs.iter_mut()) {
        report.metrics.retain(|metric| quantities.contains(&metric.quantity));
    }
    Ok(())
}

/// Reads the report of a file or directory, or those of the directories in it, in the order of their names.
fn read_runs(path: &Path) -> Result<Vec<Report>, Failure> {
    let read = |path: &Path| Report::read(path).map_err(|error| Failure::Failed(error.to_string()));
    let has_report = |path: &Path| path.join("result.json").is_file();
    if !path.is_dir() || has_report(path) {
        return Ok(vec![read(path)?]);
    }
    let cannot = |why: std::io::Error| Failure::Failed(format!("{}: {why}", path.display()));
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let run = entry.map_err(cannot)?.path();
        if has_report(&run) {
            runs.push(run);
        }
    }
    runs.sort();
    match runs.len() {
        // The error names the file that is missing.
        0 => Ok(vec![read(path)?]),
        1..=RUNS_MAX => runs.iter().map(|run| read(run)).collect(),
        count => Err(Failure::Failed(format!("{}: {count} runs; the most is {RUNS_MAX}", path.display()))),
    }
}

fn side_output<'a>(path: &'a Path, runs: &'a [Report]) -> SideOutput<'a> {
    let first = |of: fn(&Report) -> &String| runs.first().map_or("", |report| of(report).as_str());
    SideOutput {
        path,
        experiment: first(|report| &report.experiment),
        started: first(|report| &report.started),
        started_all: runs.iter().map(|report| report.started.as_str()).collect(),
    }
}

/// Tells what the samples are, and what the comparison cannot tell.
fn limits(comparison: &Comparison) -> String {
    let mut text = String::new();
    if comparison.unit == Unit::Run {
        let [first, second] = comparison.runs;
        text = format!("{first} against {second} runs: each run is one sample\n");
    }
    for limit in &comparison.limits {
        text = format!("{text}note: {limit}\n");
    }
    if text.is_empty() { text } else { text + "\n" }
}

fn warnings(comparison: &Comparison) -> Table {
    let mut table = Table::bare();
    for warning in &comparison.warnings {
        table.row(&[&format!("warning: {warning}")]);
    }
    table
}

/// Shows the significant changes first, the worse ones before the better ones.
fn show(comparison: &Comparison) -> String {
    let mut changes: Vec<&MetricChange> = comparison.changes.iter().collect();
    changes.sort_by_key(|change| change.verdict);
    let names = circumstance_names(&changes);
    let mut table = Table::bare();
    let heading: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    let fixed = ["QUANTITY", "FIRST", "SECOND", "CHANGE", "95 % INTERVAL", "FINDS FROM", ""];
    add_row(&mut table, heading.iter().map(String::as_str).chain(fixed));
    for change in changes {
        let cells = row(&names, change);
        add_row(&mut table, cells.iter().map(String::as_str));
    }
    let mut text = if comparison.changes.is_empty() { String::new() } else { format!("{table}\n") };
    text.push_str(&counts(comparison));
    text.push_str(&power(comparison));
    text.push_str(&only("first", &comparison.only_first));
    text.push_str(&only("second", &comparison.only_second));
    text
}

fn add_row<'a>(table: &mut Table, cells: impl Iterator<Item = &'a str>) {
    table.row(&cells.collect::<Vec<_>>());
}

fn circumstance_names<'a>(changes: &[&'a MetricChange]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (name, _) in changes.iter().flat_map(|change| &change.name.circumstances) {
        if !names.contains(&name.as_str()) {
            names.push(name.as_str());
        }
    }
    names
}

fn row(names: &[&str], change: &MetricChange) -> Vec<String> {
    let circumstance = |name: &&str| {
        let found = change.name.circumstances.iter().find(|(other, _)| other == name);
        found.map_or_else(String::new, |(_, value)| value.clone())
    };
    let (percent, interval) = percent(change);
    let median = |estimate: &Estimate| number::estimate(estimate).0;
    let measured = [quantity(&change.name), median(&change.first), median(&change.second)];
    let finds_from = change.finds_from.map_or_else(String::new, |from| format!("{} %", number::Short(from)));
    let judged = [percent, interval, finds_from, word(change.verdict).to_owned()];
    names.iter().map(circumstance).chain(measured).chain(judged).collect()
}

fn quantity(name: &MetricName) -> String {
    match name.unit.as_str() {
        "" => name.quantity.clone(),
        unit => format!("{} ({unit})", name.quantity),
    }
}

/// Returns the change and its interval: `+4.1 %` and `+2.0 to +6.3 %`.
fn percent(change: &MetricChange) -> (String, String) {
    let estimate =
        Estimate { value: change.change.percent, low: change.change.low, high: change.change.high };
    if estimate.value.is_infinite() {
        return ("from zero".to_owned(), String::new());
    }
    let (value, interval) = number::estimate(&estimate);
    let interval = interval.map_or_else(String::new, |(low, high)| {
        format!("{} to {} %", signed(estimate.low, low), signed(estimate.high, high))
    });
    (format!("{} %", signed(estimate.value, value)), interval)
}

fn signed(value: f64, text: String) -> String {
    if value > 0.0 { format!("+{text}") } else { text }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Worse => "worse",
        Verdict::Better => "better",
        Verdict::NotSignificant => "not significant",
        Verdict::NotJudged => "not judged",
    }
}

/// Returns how many changes have each verdict: `32 quantities: 1 worse, 3 better, 28 not significant`.
fn counts(comparison: &Comparison) -> String {
    let all = [Verdict::Worse, Verdict::Better, Verdict::NotSignificant, Verdict::NotJudged];
    let count = |verdict| comparison.changes.iter().filter(|change| change.verdict == verdict).count();
    let counts =
        all.into_iter().map(|verdict| (count(verdict), word(verdict))).filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
    match comparison.changes.len() {
        0 => "the reports have no quantity in common\n".to_owned(),
        1 => format!("1 quantity: {}\n", counts.join(", ")),
        total => format!("{total} quantities: {}\n", counts.join(", ")),
    }
}

/// Tells how many changes are judged together, what that promises, and which changes it can find.
fn power(comparison: &Comparison) -> String {
    let Family { size, finds_from, .. } = comparison.family;
    if size == 0 {
        return String::new();
    }
    let mut text = match size {
        1 => "family: 1 quantity is judged. If nothing differs, it is called different in at most 5 % of such comparisons\n"
            .to_owned(),
        size => format!(
            "family: {size} quantities are judged together (Holm's correction). If nothing differs, one or more of them are \
             called different in at most 5 % of such comparisons\n"
        ),
    };
    if let Some([least, median, most]) = finds_from.map(|found| found.map(number::Short)) {
        let range = match size {
            1 => String::new(),
            _ => format!(
                " in the median quantity, from {least} % in the one with the smallest error, and from {most} % in the \
                          one with the largest"
            ),
        };
        text = format!("{text}power: a change is found in nine cases of ten from {median} % on{range}\n");
    }
    if size > FAMILY_LARGE {
        text.push_str(
            "note: in so large a family, only large changes can be found. If you ask about one quantity, compare it alone \
             (--quantity throughput)\n",
        );
    }
    text
}

/// From this size on, a change must be about twice as large as alone to be found with five runs on a side.
const FAMILY_LARGE: usize = 50;

/// Lists the metrics that only one report has.
fn only(which: &str, names: &[MetricName]) -> String {
    let mut table = Table::bare();
    for name in names {
        let circumstances: Vec<String> =
            name.circumstances.iter().map(|(name, value)| format!("{name}={value}")).collect();
        table.row(&[&format!("only in the {which} report:"), &quantity(name), &circumstances.join(" ")]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use lab::report::{Better, Ended, Metric, SCHEMA};

    use super::*;

    fn report(metrics: &[(&str, f64)]) -> Report {
        let metric = |(block, value): &(&str, f64)| Metric {
            circumstances: vec![("block".to_owned(), (*block).to_owned())],
            quantity: "throughput".to_owned(),
            unit: "MB/s".to_owned(),
            better: Better::Higher,
            samples: (0..9).map(|round| value * (1.0 + f64::from(round) / 1000.0)).collect(),
            resolution: None,
        };
        Report {
            schema: SCHEMA,
            experiment: "digests".to_owned(),
            title: String::new(),
            started: "2026-11-23T23:40:12Z".to_owned(),
            seconds: 1.0,
            ended: Ended::Complete,
            summary: Vec::new(),
            caveats: Vec::new(),
            machine: Vec::new(),
            command: String::new(),
            plan: String::new(),
            sections: Vec::new(),
            metrics: metrics.iter().map(metric).collect(),
        }
    }

    #[test]
    fn a_comparison_of_single_runs_says_what_it_cannot_tell() {
        let one = || [report(&[("4K", 100.0)])];
        let several = |count: usize| vec![report(&[("4K", 100.0)]); count];
        let said = |first: &[Report], second: &[Report]| limits(&compare(first, second));
        let text = said(&one(), &one());
        assert!(
            text.starts_with("note: one run on each side: the verdicts are about these two runs."),
            "{text}"
        );
        let text = said(&several(3), &several(6));
        assert!(
            text.starts_with("3 against 6 runs: each run is one sample\nnote: 3 runs on a side: only"),
            "{text}"
        );
        assert!(said(&several(5), &one()).contains("The spread of the other side counts for both"));
        assert_eq!(said(&several(5), &several(5)), "5 against 5 runs: each run is one sample\n\n");
    }

    #[test]
    fn changes_are_shown_with_the_worst_first() {
        let first = report(&[("4K", 100.0), ("8K", 200.0), ("16K", 300.0), ("32K", 0.0), ("gone", 1.0)]);
        let second = report(&[("4K", 100.0), ("8K", 240.0), ("16K", 270.0), ("32K", 5.0)]);
        let text = show(&compare(&[first], &[second]));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["BLOCK", "QUANTITY", "FIRST", "SECOND"]);
        assert!(text.contains("FINDS FROM"), "{text}");
        let shown = |line: usize| (lines[line][0], *lines[line].last().unwrap());
        assert_eq!((shown(1), shown(2)), (("16K", "worse"), ("8K", "better")));
        assert_eq!((shown(3), shown(4)), (("32K", "better"), ("4K", "significant")));
        assert!(text.contains("+20.0 %") && text.contains("−10.0 %") && text.contains("from zero"), "{text}");
        assert!(text.contains("4 quantities: 1 worse, 2 better, 1 not significant\n"), "{text}");
        assert!(text.ends_with("only in the first report:  throughput (MB/s)  block=gone\n"), "{text}");
    }

    #[test]
    fn the_size_of_the_family_and_what_it_can_find_are_said() {
        let names: Vec<String> = (0..60).map(|at| format!("{at}K")).collect();
        let many: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 100.0)).collect();
        let mut side = report(&many);
        side.metrics.iter_mut().take(2).for_each(|metric| metric.better = Better::Neither);
        let text = show(&compare(&[side.clone()], &[side]));
        assert!(text.contains("60 quantities: 58 not significant, 2 not judged\n"), "{text}");
        assert!(
            text.contains("\nfamily: 58 quantities are judged together (Holm's correction). If"),
            "{text}"
        );
        assert!(text.contains(" % on in the median quantity, from "), "{text}");
        assert!(text.contains("\nnote: in so large a family, only large changes can be found."), "{text}");
        let text = show(&compare(&[report(&many[..3])], &[report(&many[..3])]));
        assert!(text.contains("family: 3 quantities") && !text.contains("so large a family"), "{text}");
    }

    #[test]
    fn reports_without_a_common_quantity_are_said_to_be() {
        let text = show(&compare(&[report(&[])], &[report(&[("4K", 1.0)])]));
        assert!(
            text.starts_with("the reports have no quantity in common\nonly in the second report:"),
            "{text}"
        );
    }

    #[test]
    fn text_from_a_report_cannot_control_the_terminal() {
        let (first, mut second) = (report(&[("\u{1b}[31m", 1.0)]), report(&[("\u{1b}[31m", 1.0)]));
        second.machine.push(("\u{7}kernel".to_owned(), "\u{1b}]0;".to_owned()));
        let comparison = compare(&[first], &[second]);
        let text = show(&comparison) + &warnings(&comparison).to_string();
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}') && text.contains("kernel"), "{text}");
    }
}
