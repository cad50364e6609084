//! Loads below 100 %: the throughput is given, and digests cost latency and processor time.

use super::STRONGEST;
use super::tables::{by_path, change_cell, processor_time, values};
use crate::bench::Histogram;
use crate::digests::costs::{change_of, mean_change};
use crate::digests::samples::{CellSamples, Measured, Sample};
use crate::plan::{Digests, Link};
use crate::report::Table;
use crate::report::cells::finite;
use crate::report::doubts::Doubts;
use crate::statistics::{Resolution, estimate};
use crate::text::{capitalized, change, counted, percent};

/// Below this percentage of commands that could be started, the offered load was not reached.
const REACHED_FROM: f64 = 98.0;

/// A quantity of a sample, if the sample has it.
type Quantity = fn(&Sample) -> Option<f64>;

const MEDIAN: Quantity = |sample| Some(sample.p50);
const P99: Quantity = |sample| sample.p99;

/// Returns for each path the latency that digests cost, and the processor time.
pub(super) fn tables(measured: &Measured) -> Vec<Table> {
    let titles = [
        ("workload", ""),
        ("offered", "MB/s"),
        ("started, none", "%"),
        ("started, both", "%"),
        ("median, none", "µs"),
        ("median, both", "µs"),
        ("change", "%"),
        ("99 %, none", "µs"),
        ("99 %, both", "µs"),
        ("change", "%"),
    ];
    let mut tables = by_path(measured.lower_loads(), "Latency at lower loads", &titles, |samples| {
        let started =
            |digests| values(samples, digests, measured, |sample| Some(sample.offered?.started_percent));
        let mut row = vec![finite(offered(samples)), started(Digests::None), started(Digests::Both)];
        for of in [MEDIAN, P99] {
            row.extend([Digests::None, Digests::Both].map(|digests| values(samples, digests, measured, of)));
            let change = change_of(samples, Digests::Both, (of, Histogram::RESOLUTION));
            row.push(change_cell(change.as_ref(), Digests::Both, measured));
        }
        row
    });
    let caption = "Processor time for each GiB at lower loads";
    tables.extend(processor_time(measured, measured.lower_loads(), caption));
    tables
}

/// Returns what was offered, in MB/s.
fn offered(samples: &CellSamples) -> f64 {
    let all = samples.settings.iter().flat_map(|(_, list)| list);
    let offered: Vec<f64> = all.filter_map(|sample| Some(sample.offered?.throughput)).collect();
    estimate(&offered).value
}

/// Returns what speaks against means over the lower loads on a link. The throughput is given there, so the
/// latencies tell.
pub(super) fn doubts(measured: &Measured, link: Link) -> Doubts {
    let mut doubts = Doubts::default();
    for samples in measured.lower_loads().filter(|samples| samples.cell.link == link) {
        let workload = format!("{}, {}", samples.cell.workload(), samples.cell.path());
        let base = || format!("the median latency without digests ({workload})");
        doubts.look_at_base(base, &samples.values(Digests::None, MEDIAN));
        for (digests, name) in STRONGEST {
            if let Some(change) = change_of(samples, digests, (MEDIAN, Histogram::RESOLUTION)) {
                doubts.add_latency(format!("{name} than none ({workload})"), change);
            }
        }
    }
    doubts
}

/// Tells what both digests, or the strongest setting that was measured, change on a link at the highest of
/// the lower loads.
pub(super) fn answer(measured: &Measured, link: Link) -> Option<String> {
    let on_link = || measured.lower_loads().filter(move |samples| samples.cell.link == link);
    let load = on_link().map(|samples| samples.cell.load).max()?;
    let at_load = || on_link().filter(move |samples| samples.cell.load == load);
    let is_measured = |digests| mean_change(at_load(), digests, (MEDIAN, Histogram::RESOLUTION)).is_some();
    let (digests, name) = STRONGEST.into_iter().find(|(digests, _)| is_measured(*digests))?;
    let latency = |of: Quantity| mean_change(at_load(), digests, (of, Histogram::RESOLUTION));
    let spent = |of: Quantity| mean_change(at_load(), digests, (of, Resolution::EXACT));
    let (median, count) = latency(MEDIAN)?;
    let p99 = latency(P99).map_or_else(String::new, |(p99, of)| {
        let of = if of == count { String::new() } else { format!(" (of {})", counted(of, "workload")) };
        format!(", the 99th percentile by {}{of}", change(&p99))
    });
    let (ends, cpu) = match spent(|sample| Some(sample.initiator_cpu + sample.target_cpu?)) {
        Some((cpu, _)) => ("both ends", cpu),
        None => ("the initiator", spent(|sample| Some(sample.initiator_cpu))?.0),
    };
    let place = match link {
        Link::AsItIs => "this path".to_owned(),
        Link::Unshaped => "the link without a rate limit".to_owned(),
        Link::Shaped(_) => format!("the link of {}", link.name()),
    };
    let mean =
        if count == 1 { String::new() } else { format!(", the means of {}", counted(count, "workload")) };
    let throughput = if at_load().any(|samples| missed(samples).next().is_some()) {
        format!("At {load} % of what {place} can do, not all of the offered load was reached")
    } else {
        format!("If an application uses only {load} % of what {place} can do, digests cost it no throughput")
    };
    Some(format!(
        "{throughput}. {} change the median latency by {}{p99}, and the processor time of {ends} \
         by {}{mean}.",
        capitalized(name),
        change(&median),
        change(&cpu)
    ))
}

/// Returns the settings with which less than the offered load was reached, and the percentage of commands
/// that could be started.
fn missed(samples: &CellSamples) -> impl Iterator<Item = (Digests, f64)> {
    let started = |digests| {
        let started = samples.values(digests, |sample| Some(sample.offered?.started_percent));
        (digests, estimate(&started).value)
    };
    samples
        .settings
        .iter()
        .map(move |(digests, _)| started(*digests))
        .filter(|(_, started)| *started < REACHED_FROM)
}

/// Warns if an offered load was not reached, with the worst case.
pub(super) fn caveat(measured: &Measured) -> Option<String> {
    let missed: Vec<_> = measured
        .lower_loads()
        .flat_map(|samples| missed(samples).map(move |(digests, started)| (samples, digests, started)))
        .collect();
    let (samples, digests, started) = missed.iter().min_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(format!(
        "The offered load was not reached in {}. The worst is {}, {}, digests: {}: only {} % of the commands that were \
         due could be started. Such latencies grow with the duration of the measurement.",
        counted(missed.len(), "case"),
        samples.cell.workload(),
        samples.cell.path(),
        digests.name(),
        percent(*started)
    ))
}
