//! The samples as CSV (RFC 4180): one line for each sample.

use std::fmt::Write;

use super::model::{Metric, Report};

/// Returns the samples of a report.
///
/// The columns are the names of all circumstances in the order in which they first occur, `quantity`, `unit`,
/// `round` (from 1) and `value`. The cell of a circumstance that a metric does not have is empty, as is
/// the value of a sample that is not finite.
pub(super) fn samples(report: &Report) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in report.metrics.iter().flat_map(|metric| &metric.circumstances) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut csv = line(names.iter().copied().chain(["quantity", "unit", "round", "value"]));
    for metric in &report.metrics {
        add_metric(&mut csv, &names, metric);
    }
    csv
}

fn add_metric(csv: &mut String, names: &[&str], metric: &Metric) {
    let circumstances = names.iter().map(|name| {
        let found = metric.circumstances.iter().find(|(other, _)| other == name);
        found.map_or("", |(_, value)| value)
    });
    let fixed = line(circumstances.chain([metric.quantity.as_str(), &metric.unit]));
    let fixed = fixed.trim_end_matches("\r\n");
    for (index, sample) in metric.samples.iter().enumerate() {
        let value = if sample.is_finite() { sample.to_string() } else { String::new() };
        let _ = write!(csv, "{fixed},{},{value}\r\n", index + 1);
    }
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let cells: Vec<String> = cells.map(quoted).collect();
    format!("{}\r\n", cells.join(","))
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}
