//! The tables of the report.

use super::{BASES, Comparison, change_of, throughput as throughput_of};
use crate::bed::{Calibration, LinkPlan};
use crate::report::cells::{change_cell, columns, estimated, finite};
use crate::report::{Cell, Table};
use crate::security::plan::Access;
use crate::security::protection::Protection;
use crate::security::samples::{AbsentRow, CellSamples, Measured, Sample};

/// The value of a quantity in a sample.
type Quantity = fn(&Sample) -> Option<f64>;

/// Returns a table for each path with the throughput of each protection.
pub(super) fn throughput(measured: &Measured) -> Vec<Table> {
    let shown = shown(measured);
    let titles = with_workload(shown.iter().map(|protection| (protection.title().to_owned(), "MB/s")));
    by_path(
        measured,
        "Throughput",
        &titles,
        |_| true,
        |samples| shown.iter().map(|protection| values(samples, *protection, throughput_of)).collect(),
    )
}

/// Returns a table for each base and path with the ratios of the other protections to it.
pub(super) fn ratios(measured: &Measured, comparisons: &[Comparison]) -> Vec<Table> {
    let mut tables = Vec::new();
    for base in BASES.into_iter().filter(|base| shown(measured).contains(base)) {
        let others: Vec<Protection> =
            shown(measured).into_iter().filter(|protection| *protection != base).collect();
        if others.is_empty() {
            continue;
        }
        let columns = others.iter().map(|protection| (protection.title().to_owned(), "%"));
        let mut titles = with_workload(columns);
        titles.push(("significant".to_owned(), ""));
        let caption = format!("Change of throughput against {}", base.title());
        let has_base = |samples: &CellSamples| !samples.values(base, throughput_of).is_empty();
        tables.extend(by_path(measured, &caption, &titles, has_base, |samples| {
            let find = |protection: Protection| {
                let found = comparisons.iter().find(|found| {
                    (found.cell, found.base, found.protection) == (samples.cell, base, protection)
                });
                found.map(|found| &found.change)
            };
            let mut row: Vec<Cell> = others.iter().map(|protection| change_cell(find(*protection))).collect();
            let significant: Vec<&str> = others
                .iter()
                .filter(|protection| find(**protection).is_some_and(|change| change.significant))
                .map(|protection| protection.name())
                .collect();
            row.push(Cell::Text(if significant.is_empty() {
                "no".to_owned()
            } else {
                significant.join(", ")
            }));
            row
        }));
    }
    tables
}

/// Returns two tables for each path with the latencies of one command at a time: medians and 99th
/// percentiles.
pub(super) fn latency(measured: &Measured) -> Vec<Table> {
    let shown = shown(measured);
    let titles = with_workload(shown.iter().map(|protection| (protection.title().to_owned(), "µs")));
    let percentiles: [(&str, Quantity); 2] =
        [("Median latency", |sample| sample.p50), ("99th percentile of latency", |sample| sample.p99)];
    let tables = percentiles.into_iter().flat_map(|(caption, of)| {
        by_path(
            measured,
            caption,
            &titles,
            |samples| samples.cell.depth == 1,
            |samples| shown.iter().map(|protection| values(samples, *protection, of)).collect(),
        )
    });
    tables.collect()
}

/// Returns a table for each path with the processor time of each protection, user and system.
pub(super) fn processor_time(measured: &Measured) -> Vec<Table> {
    let shown = shown(measured);
    let both = |protection: &Protection| {
        ["user", "system"].map(|part| (format!("{}, {part}", protection.title()), "s/GiB"))
    };
    let titles = with_workload(shown.iter().flat_map(both));
    by_path(
        measured,
        "Processor time for each GiB",
        &titles,
        |_| true,
        |samples| {
            let both = |protection: &Protection| {
                let parts: [Quantity; 2] = [|sample| Some(sample.user), |sample| Some(sample.system)];
                parts.map(|of| values(samples, *protection, of))
            };
            shown.iter().flat_map(both).collect()
        },
    )
}

/// Returns the protections that have samples.
fn shown(measured: &Measured) -> Vec<Protection> {
    let has_samples = |protection: &Protection| {
        measured.cells.iter().any(|samples| !samples.values(*protection, throughput_of).is_empty())
    };
    Protection::ALL.into_iter().filter(has_samples).collect()
}

fn with_workload(columns: impl Iterator<Item = (String, &'static str)>) -> Vec<(String, &'static str)> {
    std::iter::once(("workload".to_owned(), "")).chain(columns).collect()
}

/// Returns a table for each path with the workloads that are `chosen`; `row` gives the cells behind the name
/// of the workload.
fn by_path(
    measured: &Measured,
    caption: &str,
    titles: &[(String, &str)],
    chosen: impl Fn(&CellSamples) -> bool,
    row: impl Fn(&CellSamples) -> Vec<Cell>,
) -> Vec<Table> {
    let mut tables: Vec<(String, Table)> = Vec::new();
    for samples in measured.cells.iter().filter(|samples| samples.rounds() > 0 && chosen(samples)) {
        let path = samples.cell.path();
        let mut cells = vec![Cell::Text(samples.cell.workload())];
        cells.extend(row(samples));
        match tables.last_mut().filter(|(last, _)| *last == path) {
            Some((_, table)) => table.rows.push(cells),
            None => {
                let caption = format!("{caption}: {path}");
                tables.push((path, Table { caption, columns: columns(titles), rows: vec![cells] }));
            }
        }
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

fn values(samples: &CellSamples, protection: Protection, of: impl Fn(&Sample) -> Option<f64>) -> Cell {
    estimated(&samples.values(protection, of))
}

/// A published figure: what, the throughput of the higher layer in MB/s, and the changes of throughput and of
/// processor load against IPsec in percent.
type PublishedRow = (&'static str, Option<f64>, Option<f64>, Option<f64>);

/// Kamisaka, Yamaguchi and Oguchi: 3DES above IPsec and in IPsec.
const KAMISAKA: [PublishedRow; 3] = [
    ("simple socket", Some(12.3), Some(30.0), Some(-3.0)),
    ("simple socket, 4 MiB", None, None, Some(-15.0)),
    ("iSCSI, sequential reads", Some(10.4), Some(17.0), Some(-8.0)),
];

/// Returns the published figures with ours of the longest blocks.
pub(super) fn published(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("measured by", ""),
        ("higher layer", ""),
        ("throughput", "MB/s"),
        ("against IPsec", "%"),
        ("processor time against IPsec", "%"),
    ];
    let number =
        |value: Option<f64>| value.map_or_else(|| Cell::Absent("not published".to_owned()), Cell::Number);
    let text = |text: &str| Cell::Text(text.to_owned());
    let mut rows: Vec<Vec<Cell>> = KAMISAKA
        .iter()
        .map(|(what, reached, change, processor)| {
            let cells = [*reached, *change, *processor].map(number);
            [text(what), text("Kamisaka, Yamaguchi, Oguchi"), text("3DES above IPsec")]
                .into_iter()
                .chain(cells)
                .collect()
        })
        .collect();
    for access in [Access::Socket, Access::Read] {
        let of_access =
            measured.cells.iter().filter(|samples| samples.cell.access == access && samples.rounds() > 0);
        let Some(longest) = of_access.clone().map(|samples| samples.cell.block).max() else { continue };
        for samples in of_access.filter(|samples| samples.cell.block == longest) {
            for layer in [Protection::Tls, Protection::AeadEncrypt] {
                if samples.values(layer, throughput_of).is_empty() {
                    continue;
                }
                let change =
                    |of: Quantity| change_cell(change_of(samples, Protection::Ipsec, layer, of).as_ref());
                rows.push(vec![
                    Cell::Text(format!("{}, {}", samples.cell.path(), samples.cell.workload())),
                    text("this run"),
                    text(layer.title()),
                    values(samples, layer, throughput_of),
                    change(throughput_of),
                    change(|sample| Some(sample.processor())),
                ]);
            }
        }
    }
    let caption = "Encryption above IPsec against IPsec, published and here".to_owned();
    vec![Table { caption, columns: columns(&titles), rows }]
}

/// Returns the calibration of the links.
pub(super) fn links(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("link", ""),
        ("payload of the wire", "MB/s"),
        ("to the target", "MB/s"),
        ("to the initiator", "MB/s"),
        ("deviation", "%"),
    ];
    let row = |(link, found): &(LinkPlan, Calibration)| {
        let no_limit = |value: Option<f64>| value.map_or_else(|| Cell::Absent("no limit".to_owned()), finite);
        vec![
            Cell::Text(link.name()),
            no_limit(found.expected.map(|rate| rate / 1e6)),
            finite(found.to_target / 1e6),
            finite(found.to_initiator / 1e6),
            no_limit(found.deviation_percent()),
        ]
    };
    let caption = "Bare TCP streams through each link".to_owned();
    vec![Table { caption, columns: columns(&titles), rows: measured.calibrations.iter().map(row).collect() }]
}

/// Returns what was not measured, and why.
pub(super) fn absent(measured: &Measured) -> Vec<Table> {
    let row =
        |row: &AbsentRow| vec![Cell::Text(row.protection.title().to_owned()), Cell::Absent(row.why.clone())];
    let columns = columns(&[("protection", ""), ("why not", "")]);
    let rows = measured.absent.iter().map(row).collect();
    vec![Table { caption: "Protections that were not measured".to_owned(), columns, rows }]
}
