//! `targe lab compare`: what changed between two runs of an experiment.

use std::path::{Path, PathBuf};

use clap::Args;
use lab::report::compare::{Comparison, MetricChange, MetricName, Verdict, compare};
use lab::report::{Estimate, Report, number};
use serde::Serialize;

use crate::tables::Table;
use crate::{Failure, print};

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The result.json of the first run, or its directory
    #[arg(value_name = "FIRST")]
    first: PathBuf,
    /// The result.json of the second run, or its directory
    #[arg(value_name = "SECOND")]
    second: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The JSON form of the output.
#[derive(Serialize)]
struct Output<'a> {
    first: Run<'a>,
    second: Run<'a>,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

#[derive(Serialize)]
struct Run<'a> {
    path: &'a Path,
    experiment: &'a str,
    started: &'a str,
}

/// Compares two reports. A change for the worse is no failure: the command did what it was asked for.
pub(super) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let read = |path: &Path| Report::read(path).map_err(|error| Failure::Failed(error.to_string()));
    let (first, second) = (read(&args.first)?, read(&args.second)?);
    let comparison = compare(&first, &second);
    if args.json {
        let output = Output {
            first: run_of(&args.first, &first),
            second: run_of(&args.second, &second),
            comparison: &comparison,
        };
        print(&format!("{}\n", serde_json::json!(output)));
    } else {
        eprint!("{}", warnings(&comparison));
        print(&show(&comparison));
    }
    Ok(())
}

fn run_of<'a>(path: &'a Path, report: &'a Report) -> Run<'a> {
    Run { path, experiment: &report.experiment, started: &report.started }
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
    let fixed = ["QUANTITY", "FIRST", "SECOND", "CHANGE", "95 % INTERVAL", ""];
    add_row(&mut table, heading.iter().map(String::as_str).chain(fixed));
    for change in changes {
        let cells = row(&names, change);
        add_row(&mut table, cells.iter().map(String::as_str));
    }
    let mut text = if comparison.changes.is_empty() { String::new() } else { format!("{table}\n") };
    text.push_str(&counts(comparison));
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
    let judged = [percent, interval, word(change.verdict).to_owned()];
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
        Verdict::Different => "different",
        Verdict::NotSignificant => "not significant",
    }
}

/// Returns how many changes have each verdict: `32 quantities: 1 worse, 3 better, 28 not significant`.
fn counts(comparison: &Comparison) -> String {
    let all = [Verdict::Worse, Verdict::Better, Verdict::Different, Verdict::NotSignificant];
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
    fn changes_are_shown_with_the_worst_first() {
        let first = report(&[("4K", 100.0), ("8K", 200.0), ("16K", 300.0), ("32K", 0.0), ("gone", 1.0)]);
        let second = report(&[("4K", 100.0), ("8K", 240.0), ("16K", 270.0), ("32K", 5.0)]);
        let text = show(&compare(&first, &second));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["BLOCK", "QUANTITY", "FIRST", "SECOND"]);
        let shown = |line: usize| (lines[line][0], *lines[line].last().unwrap());
        assert_eq!((shown(1), shown(2)), (("16K", "worse"), ("8K", "better")));
        assert_eq!((shown(3), shown(4)), (("32K", "better"), ("4K", "significant")));
        assert!(text.contains("+20.0 %") && text.contains("−10.0 %") && text.contains("from zero"), "{text}");
        assert!(text.contains("4 quantities: 1 worse, 2 better, 1 not significant\n"), "{text}");
        assert!(text.ends_with("only in the first report:  throughput (MB/s)  block=gone\n"), "{text}");
    }

    #[test]
    fn reports_without_a_common_quantity_are_said_to_be() {
        let text = show(&compare(&report(&[]), &report(&[("4K", 1.0)])));
        assert!(
            text.starts_with("the reports have no quantity in common\nonly in the second report:"),
            "{text}"
        );
    }

    #[test]
    fn text_from_a_report_cannot_control_the_terminal() {
        let (first, mut second) = (report(&[("\u{1b}[31m", 1.0)]), report(&[("\u{1b}[31m", 1.0)]));
        second.machine.push(("\u{7}kernel".to_owned(), "\u{1b}]0;".to_owned()));
        let comparison = compare(&first, &second);
        let text = show(&comparison) + &warnings(&comparison).to_string();
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}') && text.contains("kernel"), "{text}");
    }
}
