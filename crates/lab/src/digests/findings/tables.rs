//! The tables of the report.

use crate::bed::LinkPlan;
use crate::digests::costs::{Cost, RATE, change_of, link_limit};
use crate::digests::samples::{Cell as Workload, CellSamples, Measured, Sample};
use crate::plan::{Digests, Link, Mix};
use crate::report::cells::{NOT_MEASURED, change_cell as cell_of_change, columns, finite};
use crate::report::{Cell, Table};
use crate::statistics::{Change, Resolution, estimate};

/// What stands where a target does not offer a setting, or where the run ended too early.
const NOT_OFFERED: &str = "not offered";

/// Returns a table for each path: throughput without digests, its limits, and what digests change.
pub(super) fn throughput(measured: &Measured, costs: &[Cost]) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("no digest", "MB/s"),
        ("of the link", "%"),
        ("bare echo", "MB/s"),
        ("header", "%"),
        ("data", "%"),
        ("both", "%"),
        ("significant", ""),
    ];
    by_path(measured.full_load(), "Throughput, and its change by digests", &titles, |samples| {
        let base = values(samples, Digests::None, measured, |sample| Some(sample.throughput));
        let limit = link_limit(&samples.cell, measured);
        let reached = estimate(&samples.values(Digests::None, |sample| Some(sample.throughput))).value;
        let of_link = limit
            .map_or_else(|| Cell::Absent("no limit".to_owned()), |limit| finite(reached / limit * 100.0));
        let echo = samples.echo.map(|echo| echo.per_second * f64::from(samples.cell.block) / 1e6);
        let echo = echo.map_or_else(|| Cell::Absent(NOT_MEASURED.to_owned()), finite);
        let mut row = vec![base, of_link, echo];
        row.extend(
            COMPARED.map(|digests| change_cell(find(costs, &samples.cell, digests), digests, measured)),
        );
        row.push(Cell::Text(significant(costs, &samples.cell)));
        row
    })
}

const COMPARED: [Digests; 3] = [Digests::Header, Digests::Data, Digests::Both];

fn find<'a>(costs: &'a [Cost], cell: &Workload, digests: Digests) -> Option<&'a Change> {
    costs.iter().find(|cost| cost.cell == *cell && cost.digests == digests).map(|cost| &cost.change)
}

/// Names the settings whose change is significant.
fn significant(costs: &[Cost], cell: &Workload) -> String {
    let is_significant =
        |digests: &Digests| find(costs, cell, *digests).is_some_and(|change| change.significant);
    let names: Vec<&str> = COMPARED.into_iter().filter(is_significant).map(Digests::name).collect();
    if names.is_empty() { "no".to_owned() } else { names.join(", ") }
}

/// Returns a table for each path with the latencies without digests and with both.
pub(super) fn latency(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("median, none", "µs"),
        ("median, both", "µs"),
        ("99 %, none", "µs"),
        ("99 %, both", "µs"),
        ("99.9 %, none", "µs"),
        ("99.9 %, both", "µs"),
    ];
    let percentiles: [fn(&Sample) -> Option<f64>; 3] =
        [|sample| Some(sample.p50), |sample| sample.p99, |sample| sample.p999];
    by_path(measured.full_load(), "Latency", &titles, |samples| {
        let both = |of| [Digests::None, Digests::Both].map(|digests| values(samples, digests, measured, of));
        percentiles.into_iter().flat_map(both).collect()
    })
}

/// Returns a table for each path with the processor time without digests and what both add, for some of the
/// workloads.
pub(super) fn processor_time<'a>(
    measured: &Measured,
    workloads: impl Iterator<Item = &'a CellSamples>,
    caption: &str,
) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("initiator, none", "s/GiB"),
        ("initiator, both", "s/GiB"),
        ("change", "%"),
        ("target, none", "s/GiB"),
        ("target, both", "s/GiB"),
        ("change", "%"),
    ];
    let ends: [fn(&Sample) -> Option<f64>; 2] =
        [|sample| Some(sample.initiator_cpu), |sample| sample.target_cpu];
    by_path(workloads, caption, &titles, |samples| {
        let end = |of: fn(&Sample) -> Option<f64>| {
            let [none, both] =
                [Digests::None, Digests::Both].map(|digests| values(samples, digests, measured, of));
            let change = change_of(samples, Digests::Both, (of, Resolution::EXACT));
            [none, both, change_cell(change.as_ref(), Digests::Both, measured)]
        };
        ends.into_iter().flat_map(end).collect()
    })
}

/// Returns a table for each path; `row` gives the cells behind the workload's name.
pub(super) fn by_path<'a>(
    workloads: impl Iterator<Item = &'a CellSamples>,
    caption: &str,
    titles: &[(&str, &str)],
    row: impl Fn(&CellSamples) -> Vec<Cell>,
) -> Vec<Table> {
    let mut tables: Vec<(String, Table)> = Vec::new();
    for samples in workloads {
        let path = samples.cell.path();
        let mut cells = vec![Cell::Text(samples.cell.workload())];
        cells.extend(row(samples));
        match tables.last_mut().filter(|(last, _)| *last == path) {
            Some((_, table)) => table.rows.push(cells),
            None => {
                let table = Table {
                    caption: format!("{caption}: {path}"),
                    columns: columns(titles),
                    rows: vec![cells],
                };
                tables.push((path, table));
            }
        }
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

pub(super) fn values(
    samples: &CellSamples,
    digests: Digests,
    measured: &Measured,
    of: impl Fn(&Sample) -> Option<f64>,
) -> Cell {
    let values = samples.values(digests, of);
    if values.is_empty() { absent(digests, measured) } else { Cell::Estimate(estimate(&values)) }
}

pub(super) fn change_cell(change: Option<&Change>, digests: Digests, measured: &Measured) -> Cell {
    match cell_of_change(change) {
        Cell::Absent(_) => absent(digests, measured),
        cell => cell,
    }
}

fn absent(digests: Digests, measured: &Measured) -> Cell {
    let refused = |wanted| measured.not_offered.iter().any(|(setting, _)| *setting == wanted);
    let text = if refused(digests) || refused(Digests::None) { NOT_OFFERED } else { NOT_MEASURED };
    Cell::Absent(text.to_owned())
}

/// A row of Daugherty's table: the MTU, MB/s without digests, and the changes in percent by the header
/// digest, the data digest and both.
type PublishedRow = (u32, f64, [f64; 3]);

/// Daugherty, "Understanding iSCSI Digests": half reads, 64 KiB, 60 s, mean MB/s.
const DAUGHERTY: [PublishedRow; 2] =
    [(1500, 123.91, [-0.93, -14.95, -16.66]), (9000, 179.92, [-2.08, -9.76, -8.36])];

const PUBLISHED_BLOCK: u32 = 64 << 10;

/// Returns the published figures with ours of the nearest workloads.
pub(super) fn published(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("measured by", ""),
        ("MTU", ""),
        ("no digest", "MB/s"),
        ("header", "%"),
        ("data", "%"),
        ("both", "%"),
    ];
    let mut rows = Vec::new();
    for (mtu, base, changes) in DAUGHERTY {
        let mut row =
            vec![Cell::Text("Daugherty".to_owned()), Cell::Text(mtu.to_string()), Cell::Number(base)];
        row.extend(changes.map(Cell::Number));
        rows.push(row);
    }
    rows.extend(nearest(measured).map(|samples| {
        let name = format!("this run: {}, {}", samples.cell.link.name(), samples.cell.workload());
        let mtu = samples.cell.mtu.map_or_else(|| Link::AsItIs.to_string(), |mtu| mtu.to_string());
        let base = values(samples, Digests::None, measured, |sample| Some(sample.throughput));
        let mut row = vec![Cell::Text(name), Cell::Text(mtu), base];
        row.extend(COMPARED.map(|digests| {
            let change = change_of(samples, digests, RATE);
            change_cell(change.as_ref(), digests, measured)
        }));
        row
    }));
    let caption = "Half reads and half writes of 64 KiB, change of throughput by digests, published and here";
    vec![Table { caption: caption.to_owned(), columns: columns(&titles), rows }]
}

/// Returns our workloads with the published block length and mix, or those with reads only.
fn nearest(measured: &Measured) -> impl Iterator<Item = &CellSamples> {
    let has_half = measured.full_load().any(|samples| samples.cell.mix == Mix(50));
    let mix = if has_half { Mix(50) } else { Mix(100) };
    measured
        .full_load()
        .filter(move |samples| samples.cell.block == PUBLISHED_BLOCK && samples.cell.mix == mix)
}

/// Returns the calibration of the links.
pub(super) fn links(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("link", ""),
        ("payload of the wire", "MB/s"),
        ("to the target", "MB/s"),
        ("to the initiator", "MB/s"),
        ("idle processors", "%"),
        ("stolen by a hypervisor", "%"),
        ("deviation", "%"),
    ];
    let row = |(link, found): &(LinkPlan, crate::bed::Calibration)| {
        let no_limit = || Cell::Absent("no limit".to_owned());
        vec![
            Cell::Text(link.name()),
            found.expected.map_or_else(no_limit, |rate| finite(rate / 1e6)),
            finite(found.to_target / 1e6),
            finite(found.to_initiator / 1e6),
            finite(found.processors.map_or(f64::NAN, |shares| shares.idle)),
            finite(found.processors.map_or(f64::NAN, |shares| shares.stolen)),
            found.deviation_percent().map_or_else(no_limit, finite),
        ]
    };
    let caption = "Bare TCP streams through each link";
    let rows = measured.calibrations.iter().map(row).collect();
    vec![Table { caption: caption.to_owned(), columns: columns(&titles), rows }]
}

/// Returns what the target refuses.
pub(super) fn not_offered(measured: &Measured) -> Vec<Table> {
    let row = |(digests, why): &(Digests, String)| {
        vec![
            Cell::Text(digests.name().to_owned()),
            Cell::Absent(NOT_OFFERED.to_owned()),
            Cell::Text(why.clone()),
        ]
    };
    let columns = columns(&[("digests", ""), ("throughput", "MB/s"), ("the target's answer", "")]);
    let rows = measured.not_offered.iter().map(row).collect();
    vec![Table { caption: "Settings that the target does not offer".to_owned(), columns, rows }]
}
