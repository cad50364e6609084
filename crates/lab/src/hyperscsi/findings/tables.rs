//! The tables of the report.

use super::{Comparison, copies, median, throughput as throughput_of};
use crate::hyperscsi::samples::{Cell as Workload, CellSamples, Measured, Protocol, Sample};
use crate::machine::ProcessorShares;
use crate::plan::Link;
use crate::report::cells::{absent as no_value, change_cell, columns, estimated, finite};
use crate::report::{Cell, Table};
use crate::statistics::{Pairing, percent_change};

/// Returns a table for each undisturbed path: throughput, the bound, and the changes.
pub(super) fn throughput(measured: &Measured, comparisons: &[Comparison]) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("HyperSCSI", "MB/s"),
        ("of its bound", "%"),
        ("iSCSI", "MB/s"),
        ("iSCSI, both digests", "MB/s"),
        ("HyperSCSI against iSCSI", "%"),
        ("against both digests", "%"),
        ("significant", ""),
    ];
    by_path(measured, "Throughput", &titles, |samples| {
        let [ours, plain, digests] = Protocol::ALL.map(|protocol| values(samples, protocol, throughput_of));
        let share = median(samples, Protocol::HyperScsi, throughput_of)
            .zip(measured.bound(&samples.cell))
            .map(|(reached, bound)| 100.0 * reached / bound);
        let share = share.map_or_else(|| Cell::Absent("no bound".to_owned()), Cell::Number);
        let find = |base| {
            comparisons
                .iter()
                .find(|found| found.cell == samples.cell && found.base == base)
                .map(|found| &found.change)
        };
        let bases = [Protocol::Iscsi, Protocol::IscsiDigests];
        let [against_plain, against_digests] = bases.map(|base| change_cell(find(base)));
        let names: Vec<&str> = bases
            .into_iter()
            .filter(|base| find(*base).is_some_and(|change| change.significant))
            .map(Protocol::name)
            .collect();
        let significant = if names.is_empty() { "no".to_owned() } else { names.join("; ") };
        vec![ours, share, plain, digests, against_plain, against_digests, Cell::Text(significant)]
    })
}

/// Returns a table for each undisturbed path with the latencies.
pub(super) fn latency(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("median, HyperSCSI", "µs"),
        ("median, iSCSI", "µs"),
        ("median, both digests", "µs"),
        ("99 %, HyperSCSI", "µs"),
        ("99 %, iSCSI", "µs"),
        ("99 %, both digests", "µs"),
    ];
    let of: [fn(&Sample) -> Option<f64>; 2] = [|sample| sample.p50, |sample| sample.p99];
    by_path(measured, "Latency", &titles, |samples| three_each(samples, &of))
}

/// Returns a table for each undisturbed path with another protocol beside HyperSCSI; none without samples.
pub(super) fn beside(measured: &Measured, protocol: Protocol) -> Vec<Table> {
    let has_samples = |samples: &CellSamples| !samples.values(protocol, throughput_of).is_empty();
    if !measured.cells.iter().any(has_samples) {
        return Vec::new();
    }
    let name = protocol.name();
    let ours = Protocol::HyperScsi.name();
    let titles = [
        ("workload", ""),
        (ours, "MB/s"),
        (name, "MB/s"),
        ("change", "%"),
        ("median latency", "µs"),
        ("of HyperSCSI", "µs"),
        ("99 %", "µs"),
        ("of HyperSCSI", "µs"),
    ];
    let of: [fn(&Sample) -> Option<f64>; 2] = [|sample| sample.p50, |sample| sample.p99];
    let mut tables = by_path(measured, name, &titles, |samples| {
        let [base, other] = [Protocol::HyperScsi, protocol].map(|one| samples.values(one, throughput_of));
        let paired = !other.is_empty() && base.len() == other.len();
        let change = paired.then(|| percent_change(&base, &other, Pairing::Paired));
        let mut row = vec![
            values(samples, Protocol::HyperScsi, throughput_of),
            values(samples, protocol, throughput_of),
            change_cell(change.as_ref()),
        ];
        row.extend(
            of.iter().flat_map(|of| [protocol, Protocol::HyperScsi].map(|one| values(samples, one, *of))),
        );
        row
    });
    // A stripe has several disks, which ATA over Ethernet is not measured with.
    for table in &mut tables {
        table.rows.retain(|row| !matches!(row.get(2), Some(Cell::Absent(_))));
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// Returns a table for each undisturbed path with processor time, context switches and packets.
pub(super) fn costs(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("processor, HyperSCSI", "s"),
        ("processor, iSCSI", "s"),
        ("processor, both digests", "s"),
        ("switches, HyperSCSI", ""),
        ("switches, iSCSI", ""),
        ("switches, both digests", ""),
        ("packets, HyperSCSI", ""),
        ("packets, iSCSI", ""),
        ("packets, both digests", ""),
    ];
    let of: [fn(&Sample) -> Option<f64>; 3] =
        [|sample| Some(sample.processor), |sample| Some(sample.switches), |sample| Some(sample.packets)];
    by_path(measured, "For each GB", &titles, |samples| three_each(samples, &of))
}

/// Returns for each quantity its value with each protocol.
fn three_each(samples: &CellSamples, of: &[fn(&Sample) -> Option<f64>]) -> Vec<Cell> {
    of.iter().flat_map(|of| Protocol::ALL.map(|protocol| values(samples, protocol, *of))).collect()
}

/// Returns a table of the workloads with one kind of disturbance; none if there are none.
pub(super) fn disturbed(
    measured: &Measured,
    caption: &str,
    title: &str,
    strength: impl Fn(&Workload) -> Option<f64>,
) -> Vec<Table> {
    let chosen: Vec<(f64, &CellSamples)> =
        measured.cells.iter().filter_map(|samples| Some((strength(&samples.cell)?, samples))).collect();
    let Some((_, first)) = chosen.first() else { return Vec::new() };
    let mut titles = vec![
        ("workload", ""),
        (title, "%"),
        ("HyperSCSI", "MB/s"),
        ("kept", "%"),
        ("iSCSI", "MB/s"),
        ("kept", "%"),
    ];
    let has_traffic = !first.values(Protocol::HyperScsi, |sample| sample.traffic).is_empty();
    if has_traffic {
        titles.extend([("other traffic beside HyperSCSI", "%"), ("beside iSCSI", "%")]);
    }
    let both = [Protocol::HyperScsi, Protocol::Iscsi];
    let row = |(strength, samples): &(f64, &CellSamples)| {
        let mut row = vec![Cell::Text(samples.cell.workload.to_string()), Cell::Number(*strength)];
        for protocol in both {
            let mut same = chosen.iter().filter(|(_, other)| other.cell.workload == samples.cell.workload);
            let base = same.find(|(strength, _)| *strength == 0.0);
            let base = base.and_then(|(_, base)| median(base, protocol, throughput_of));
            let kept =
                median(samples, protocol, throughput_of).zip(base).map(|(value, base)| 100.0 * value / base);
            row.push(values(samples, protocol, throughput_of));
            row.push(kept.map_or_else(no_value, finite));
        }
        if has_traffic {
            row.extend(both.map(|protocol| values(samples, protocol, |sample| sample.traffic)));
        }
        row
    };
    let path = Workload { disturbance: crate::hyperscsi::samples::Disturbance::None, ..first.cell }.path();
    vec![Table {
        caption: format!("{caption}: {path}"),
        columns: columns(&titles),
        rows: chosen.iter().map(row).collect(),
    }]
}

/// Returns what the links carry bare.
pub(super) fn bounds(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("link", ""),
        ("bare frames", "MB/s"),
        ("idle processors", "%"),
        ("stolen by a hypervisor", "%"),
        ("deviation", "%"),
        ("frames of a disk", "MB/s"),
        ("TCP to the target", "MB/s"),
        ("TCP to the initiator", "MB/s"),
        ("TCP by the framing", "MB/s"),
        ("idle processors", "%"),
        ("stolen by a hypervisor", "%"),
        ("deviation", "%"),
    ];
    let no_limit = |value: Option<f64>| value.map_or_else(|| Cell::Absent("no limit".to_owned()), finite);
    let no_bound = || Cell::Absent("the limit is the bound".to_owned());
    let idle = |shares: Option<ProcessorShares>| shares.map_or(f64::NAN, |shares| shares.idle);
    let stolen = |shares: Option<ProcessorShares>| shares.map_or(f64::NAN, |shares| shares.stolen);
    let rows = measured.bounds.iter().map(|found| {
        vec![
            Cell::Text(found.link.name()),
            finite(found.frames.payload / 1e6),
            finite(idle(found.frames.processors)),
            finite(stolen(found.frames.processors)),
            no_limit(found.frames.deviation_percent),
            found.disk_frames.map_or_else(no_bound, |frames| finite(frames.payload / 1e6)),
            finite(found.tcp.to_target / 1e6),
            finite(found.tcp.to_initiator / 1e6),
            no_limit(found.tcp.expected.map(|rate| rate / 1e6)),
            finite(idle(found.tcp.processors)),
            finite(stolen(found.tcp.processors)),
            no_limit(found.tcp.deviation_percent()),
        ]
    });
    let caption = "Bare Ethernet frames to the initiator, and bare TCP streams".to_owned();
    vec![Table { caption, columns: columns(&titles), rows: rows.collect() }]
}

/// A published figure: what, the unit, and HyperSCSI, iSCSI and NFS.
type PublishedRow = (&'static str, &'static str, [Option<f64>; 3]);

const PUBLISHED: [PublishedRow; 5] = [
    ("Fast Ethernet, bound 12.16 MB/s", "MB/s", [Some(12.11), None, None]),
    ("Gigabit Ethernet, RAID 0 of 8 disks, jumbo frames: over 100", "MB/s", [Some(100.0), None, None]),
    ("share of the local disk's speed, dd", "%", [Some(98.97), Some(79.01), None]),
    ("share of the local disk's speed, cp", "%", {
        let [(_, hyperscsi), (_, iscsi), (_, nfs)] = copies::PUBLISHED;
        [Some(hyperscsi), Some(iscsi), Some(nfs)]
    }),
    ("interrupts for each GB, jumbo frames", "1", [Some(170_307.0), Some(199_627.0), None]),
];

/// Returns the published figures and ours of the nearest workloads.
pub(super) fn published(measured: &Measured) -> Vec<Table> {
    let titles =
        [("figure", ""), ("measured by", ""), ("unit", ""), ("HyperSCSI", ""), ("iSCSI", ""), ("NFS", "")];
    let text = |text: &str| Cell::Text(text.to_owned());
    let mut rows: Vec<Vec<Cell>> = PUBLISHED
        .iter()
        .map(|(what, unit, figures)| {
            let cell = |figure: Option<f64>| {
                figure.map_or_else(|| Cell::Absent("not published".to_owned()), Cell::Number)
            };
            let row = [text(what), text("Khoo, Wang, Yeo"), text(unit)];
            row.into_iter().chain(figures.map(cell)).collect()
        })
        .collect();
    let nearest = |bits: u64, mtu: u32, striped: bool| {
        measured.cells.iter().filter(move |samples| {
            let cell = samples.cell;
            let access = cell.workload.access;
            cell.disturbance.is_none()
                && (cell.link, cell.mtu) == (Link::Shaped(bits), mtu)
                && access.read
                && !access.random
                && access.striped == striped
        })
    };
    let (fast, gigabit) = (100_000_000, 1_000_000_000);
    for (samples, quantity, unit, of) in [
        (
            nearest(fast, 1500, false).next(),
            "throughput",
            "MB/s",
            throughput_of as fn(&Sample) -> Option<f64>,
        ),
        (nearest(gigabit, 9000, true).next(), "throughput", "MB/s", throughput_of),
        (nearest(gigabit, 9000, false).next_back(), "packets for each GB", "1", |sample| {
            Some(sample.packets)
        }),
    ] {
        let Some(samples) = samples else { continue };
        let what = format!("{quantity}: {}, {}", samples.cell.path(), samples.cell.workload);
        let both = [Protocol::HyperScsi, Protocol::Iscsi].map(|protocol| values(samples, protocol, of));
        let row = [Cell::Text(what), text("this run"), text(unit)].into_iter().chain(both);
        rows.push(row.chain([no_value()]).collect());
    }
    for (what, shares) in copies::published_rows(&measured.copies) {
        rows.push([Cell::Text(what), text("this run"), text("%")].into_iter().chain(shares).collect());
    }
    let caption = "Published figures, and the nearest of this run".to_owned();
    vec![Table { caption, columns: columns(&titles), rows }]
}

/// Returns what was not measured, and why.
pub(super) fn absent(measured: &Measured) -> Vec<Table> {
    let copies = measured.copies.absent.iter();
    let copies = copies.map(|(carrier, why)| (format!("copies of files, {}", carrier.name()), why.as_str()));
    let aoe = measured.aoe_absent.as_deref().map(|why| ("ATA over Ethernet".to_owned(), why));
    let encrypted = measured.cells.iter().any(|samples| samples.has(Protocol::Encrypted));
    let encrypted =
        (!encrypted).then(|| ("encryption".to_owned(), "the plan does not ask for it (encrypt = true)"));
    let interrupts = ("interrupts".to_owned(), "virtual Ethernet interfaces raise none");
    let row = |(what, why): (String, &str)| vec![Cell::Text(what), Cell::Absent(why.to_owned())];
    let columns = columns(&[("what", ""), ("why not", "")]);
    vec![Table {
        caption: "Not measured".to_owned(),
        columns,
        rows: copies.chain([interrupts]).chain(aoe).chain(encrypted).map(row).collect(),
    }]
}

/// Returns a table for each undisturbed path; `row` gives the cells behind the workload's name.
fn by_path(
    measured: &Measured,
    caption: &str,
    titles: &[(&str, &str)],
    row: impl Fn(&CellSamples) -> Vec<Cell>,
) -> Vec<Table> {
    let mut tables: Vec<(String, Table)> = Vec::new();
    for samples in measured.cells.iter().filter(|samples| samples.cell.disturbance.is_none()) {
        let path = samples.cell.path();
        let mut cells = vec![Cell::Text(samples.cell.workload.to_string())];
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

fn values(samples: &CellSamples, protocol: Protocol, of: impl Fn(&Sample) -> Option<f64>) -> Cell {
    estimated(&samples.values(protocol, of))
}
