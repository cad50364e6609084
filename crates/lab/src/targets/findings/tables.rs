//! The tables of the report.

use crate::plan::Mix;
use crate::report::cells::{NOT_MEASURED, absent, change_cell, columns_without_units, estimated, finite};
use crate::report::{Cell, Column, Table};
use crate::statistics::estimate;
use crate::targets::comparison::{Comparison, processor_ratios};
use crate::targets::plan::{TargetsPlan, Workload};
use crate::targets::samples::{Fate, Measured, Sample, TargetSamples, mebibytes};

const NOT_ATTRIBUTABLE: &str = "in the kernel, not attributable";

/// Returns who was there.
pub(super) fn targets(measured: &Measured) -> Vec<Table> {
    let columns = columns_without_units(&["target", "what it is", "version", "what holds the data", "state"]);
    let row = |target: &TargetSamples| {
        let version = target.version.clone().map_or_else(|| Cell::Absent("unknown".to_owned()), Cell::Text);
        let state = match &target.fate {
            Fate::Complete => Cell::Text("measured".to_owned()),
            Fate::Absent(why) => Cell::Absent(format!("absent: {why}")),
            Fate::Failed(why) => Cell::Absent(why.clone()),
        };
        let file = &target.rival.file;
        let texts = [&file.title, &file.about].map(|text| Cell::Text(text.clone()));
        texts.into_iter().chain([version, Cell::Text(file.backing.clone()), state]).collect()
    };
    let rows = measured.targets.iter().map(row).collect();
    vec![Table { caption: "The targets".to_owned(), columns, rows }]
}

/// Returns the rates, and what they are beside ours.
pub(super) fn rates(measured: &Measured, list: &[Comparison]) -> Vec<Table> {
    let mut tables = vec![
        by_target(measured, "Commands per second", "1/s", |target, at| {
            values(target, at, |sample| Some(sample.iops))
        }),
        by_target(measured, "Throughput", "MB/s", |target, at| {
            values(target, at, |sample| Some(sample.throughput))
        }),
    ];
    if !list.is_empty() {
        tables.push(changes(measured, list));
    }
    tables
}

fn changes(measured: &Measured, list: &[Comparison]) -> Table {
    let others: Vec<&str> =
        measured.measured().filter(|target| !target.is_ours()).map(TargetSamples::title).collect();
    let mut columns = vec![Column { title: "workload".to_owned(), unit: String::new() }];
    columns.extend(
        others.iter().map(|name| Column { title: format!("targe beside {name}"), unit: "%".to_owned() }),
    );
    columns.push(Column { title: "significant".to_owned(), unit: String::new() });
    let row = |at: usize, name: String| {
        let found = |other: &str| {
            list.iter().find(|comparison| comparison.workload == at && comparison.other == other)
        };
        let significant: Vec<&str> = others
            .iter()
            .filter(|other| found(other).is_some_and(|comparison| comparison.change.significant))
            .copied()
            .collect();
        let mut row = vec![Cell::Text(name)];
        row.extend(others.iter().map(|other| change_cell(found(other).map(|found| &found.change))));
        let text = if significant.is_empty() { "no".to_owned() } else { significant.join(", ") };
        row.push(Cell::Text(text));
        row
    };
    let rows = measured.workloads.iter().enumerate().map(|(at, workload)| row(at, workload.name())).collect();
    Table { caption: "Change of the rate of commands from another target to targe".to_owned(), columns, rows }
}

/// Returns the latencies.
pub(super) fn latency(measured: &Measured) -> Vec<Table> {
    type Percentile = (&'static str, fn(&Sample) -> Option<f64>);
    let percentiles: [Percentile; 3] = [
        ("Median latency", |sample| Some(sample.p50)),
        ("99th percentile of the latency", |sample| sample.p99),
        ("99.9th percentile of the latency", |sample| sample.p999),
    ];
    let table =
        |(caption, of): Percentile| by_target(measured, caption, "µs", |target, at| values(target, at, of));
    percentiles.map(table).into()
}

/// Returns the processor time of the targets, and that of the others as multiples of ours.
pub(super) fn processor_time(measured: &Measured) -> Vec<Table> {
    let caption = "Processor time of the target for each command";
    let mut tables = vec![by_target(measured, caption, "µs", |target, at| {
        attributed(target, values(target, at, |sample| sample.target_cpu))
    })];
    let others: Vec<&TargetSamples> = measured.measured().filter(|target| !target.is_ours()).collect();
    let Some(ours) = measured.ours().filter(|_| !others.is_empty()) else { return tables };
    let mut columns = vec![Column { title: "workload".to_owned(), unit: String::new() }];
    let titles = others.iter().map(|other| other.title().to_owned());
    columns.extend(titles.map(|title| Column { title, unit: "times targe".to_owned() }));
    let row = |(at, workload): (usize, &Workload)| {
        let cell = |other: &&TargetSamples| {
            let ratios = processor_ratios(ours, other, at);
            let absent = || attributed(other, Cell::Absent(NOT_MEASURED.to_owned()));
            if ratios.is_empty() { absent() } else { Cell::Estimate(estimate(&ratios)) }
        };
        std::iter::once(Cell::Text(workload.name())).chain(others.iter().map(cell)).collect()
    };
    let rows = measured.workloads.iter().enumerate().map(row).collect();
    let caption = "Processor time of another target for each command, as a multiple of that of targe";
    tables.push(Table { caption: caption.to_owned(), columns, rows });
    tables
}

/// Returns the system calls and context switches.
pub(super) fn calls(measured: &Measured) -> Vec<Table> {
    let system_calls = |target: &TargetSamples, at: usize| {
        let counted = target.counts(at).and_then(|counts| counts.system_calls.as_ref());
        attributed(
            target,
            match counted {
                Some(Ok(calls)) => Cell::Number(*calls),
                Some(Err(why)) => Cell::Absent(format!("{NOT_MEASURED}: {why}")),
                None => Cell::Absent(NOT_MEASURED.to_owned()),
            },
        )
    };
    let switches = |target: &TargetSamples, at: usize| {
        attributed(target, number(target.counts(at).and_then(|counts| counts.switches)))
    };
    vec![
        by_target(measured, "System calls of the target for each command", "", system_calls),
        by_target(measured, "Voluntary context switches of the target for each command", "", switches),
    ]
}

/// Returns the resident memory.
pub(super) fn memory(measured: &Measured) -> Vec<Table> {
    let row = |target: &TargetSamples| {
        let [idle, loaded] = [target.idle_resident, target.resident_under_load()]
            .map(|bytes| attributed(target, number(bytes.map(mebibytes))));
        vec![Cell::Text(target.title().to_owned()), idle, loaded]
    };
    let mut columns = columns_without_units(&["target", "without load", "under load, largest"]);
    columns.iter_mut().skip(1).for_each(|column| column.unit = "MiB".to_owned());
    let rows = measured.measured().map(row).collect();
    vec![Table { caption: "Resident memory".to_owned(), columns, rows }]
}

/// Returns the conformance scores.
pub(super) fn conformance(plan: &TargetsPlan, measured: &Measured) -> Vec<Table> {
    let row = |target: &TargetSamples| {
        let mut row = vec![Cell::Text(target.title().to_owned())];
        match &target.conformance {
            Some(Ok(score)) => row
                .extend([score.passed, score.failed, score.skipped].map(|count| Cell::Number(count.into()))),
            Some(Err(why)) => row.extend([(); 3].map(|()| Cell::Absent(why.clone()))),
            None => row.extend([(); 3].map(|()| Cell::Absent(NOT_MEASURED.to_owned()))),
        }
        row
    };
    let cases = match plan.conformance.as_slice() {
        [] => "none: the plan names none".to_owned(),
        [all] if all == "*" => "all".to_owned(),
        some => some.join(", "),
    };
    let rows = measured.measured().map(row).collect();
    let columns = columns_without_units(&["target", "passed", "failed", "skipped"]);
    vec![Table { caption: format!("Verdicts of conformance cases ({cases})"), columns, rows }]
}

/// Returns the bare echo with each target beside it, and what limits the client.
pub(super) fn client(measured: &Measured) -> Vec<Table> {
    let echo =
        |at: usize| measured.echoes.get(at).filter(|rates| !rates.is_empty()).map(|rates| estimate(rates));
    let row = |(at, workload): (usize, &Workload)| {
        let echo = echo(at);
        let share = |target: &TargetSamples| {
            let rate = estimate(&target.values(at, |sample| Some(sample.iops))).value;
            number(echo.map(|echo| 100.0 * rate / echo.value))
        };
        let bare = echo.map_or_else(|| Cell::Absent(NOT_MEASURED.to_owned()), Cell::Estimate);
        let mut row = vec![Cell::Text(workload.name()), bare];
        row.extend(measured.measured().map(share));
        row
    };
    let mut columns = vec![
        Column { title: "workload".to_owned(), unit: String::new() },
        Column { title: "bare echo".to_owned(), unit: "1/s".to_owned() },
    ];
    let titles = measured.measured().map(|target| target.title().to_owned());
    columns.extend(titles.map(|title| Column { title, unit: "% of the echo".to_owned() }));
    let rows = measured.workloads.iter().enumerate().map(row).collect();
    vec![
        Table { caption: "The bare echo, and each target beside it".to_owned(), columns, rows },
        by_target(measured, "Processors that the client uses", "", |target, at| {
            values(target, at, |sample| Some(sample.client_busy))
        }),
    ]
}

/// A row of the published table: network, target, and MB/s at blocks of 0.5 KiB and 1 MiB.
type PublishedRow = (&'static str, &'static str, [f64; 2]);

/// Van Assche, Bolkhovitin and Bottomley, 2008: sequential reads.
const PUBLISHED: [PublishedRow; 6] = [
    ("1 Gbit/s Ethernet", "STGT", [77.0, 77.0]),
    ("1 Gbit/s Ethernet", "SCST", [78.0, 89.0]),
    ("IP over InfiniBand", "STGT", [163.0, 201.0]),
    ("IP over InfiniBand", "SCST", [185.0, 239.0]),
    ("iSER", "STGT", [250.0, 360.0]),
    ("SRP", "SCST", [421.0, 683.0]),
];

/// Returns the published figures with ours of the nearest workloads.
pub(super) fn published(measured: &Measured) -> Vec<Table> {
    let mut columns = columns_without_units(&["network", "target", "0.5 KiB", "1 MiB"]);
    columns.iter_mut().skip(2).for_each(|column| column.unit = "MB/s".to_owned());
    let row = |network: &str, target: &str, cells: [Cell; 2]| {
        let names = [network, target].map(|name| Cell::Text(name.to_owned()));
        names.into_iter().chain(cells).collect::<Vec<Cell>>()
    };
    let mut rows: Vec<Vec<Cell>> = PUBLISHED
        .iter()
        .map(|(network, target, rates)| row(network, target, rates.map(Cell::Number)))
        .collect();
    for target in measured.measured() {
        let cells = [512, 1 << 20].map(|block| {
            let nearest = measured
                .workloads
                .iter()
                .position(|workload| !workload.random && workload.mix == Mix(100) && workload.block == block);
            nearest.map_or_else(absent, |at| values(target, at, |sample| Some(sample.throughput)))
        });
        rows.push(row("this run: veth", target.title(), cells));
    }
    vec![Table { caption: "Sequential reads, published and here".to_owned(), columns, rows }]
}

/// Returns a table with a row for each workload and a column for each target.
fn by_target(
    measured: &Measured,
    caption: &str,
    unit: &str,
    cell: impl Fn(&TargetSamples, usize) -> Cell,
) -> Table {
    let mut columns = vec![Column { title: "workload".to_owned(), unit: String::new() }];
    columns.extend(
        measured.measured().map(|target| Column { title: target.title().to_owned(), unit: unit.to_owned() }),
    );
    let row = |(at, workload): (usize, &Workload)| {
        let cells = measured.measured().map(|target| match target.refusal(workload.digests) {
            Some(why) => Cell::Absent(format!("{NOT_MEASURED}: {why}")),
            None => cell(target, at),
        });
        std::iter::once(Cell::Text(workload.name())).chain(cells).collect()
    };
    let rows = measured.workloads.iter().enumerate().map(row).collect();
    Table { caption: caption.to_owned(), columns, rows }
}

fn values(target: &TargetSamples, workload: usize, of: impl Fn(&Sample) -> Option<f64>) -> Cell {
    estimated(&target.values(workload, of))
}

pub(super) fn number(value: Option<f64>) -> Cell {
    value.map_or_else(absent, finite)
}

/// Replaces a missing number of a kernel target by the reason.
fn attributed(target: &TargetSamples, cell: Cell) -> Cell {
    match cell {
        Cell::Absent(_) if target.rival.is_in_kernel() => Cell::Absent(NOT_ATTRIBUTABLE.to_owned()),
        cell => cell,
    }
}
