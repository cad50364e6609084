//! The plots of the report.

use crate::digests::costs::{RATE, change_of, throughput as throughput_of};
use crate::digests::samples::{Cell, CellSamples, Measured};
use crate::plan::{Digests, size_text};
use crate::report::cells::bars;
use crate::report::{Axis, Estimate, Plot, PlotKind, Point, Series};

/// Returns for each path, depth and mix the throughput over the block length, a bar for each setting.
pub(super) fn throughput(measured: &Measured) -> Vec<Plot> {
    let groups = groups(measured, |a, b| a.path() == b.path() && a.depth == b.depth && a.mix == b.mix);
    groups.into_iter().filter_map(|cells| bars_of(&cells)).collect()
}

fn bars_of(cells: &[&CellSamples]) -> Option<Plot> {
    let of = |digests: Digests| {
        let groups = cells.iter().map(|samples| samples.values(digests, throughput_of)).collect();
        (digests.name().to_owned(), groups)
    };
    let first = cells.first()?.cell;
    let names = cells.iter().map(|samples| size_text(samples.cell.block)).collect();
    let x = Axis { label: "block length".to_owned(), unit: "bytes".to_owned(), names, ..Axis::default() };
    let y = Axis { label: "throughput".to_owned(), unit: "MB/s".to_owned(), ..Axis::default() };
    let caption = format!("Throughput by digests: {}, depth {}, {}", first.path(), first.depth, first.mix);
    bars(caption, (x, y), Digests::ALL.map(of))
}

/// Returns for each path what both digests change, over the depth, a line for each block length and mix.
pub(super) fn cost_by_depth(measured: &Measured) -> Vec<Plot> {
    let paths = groups(measured, |a, b| a.path() == b.path());
    paths.into_iter().filter_map(|cells| lines(&cells)).collect()
}

fn lines(cells: &[&CellSamples]) -> Option<Plot> {
    let path = cells.first()?.cell.path();
    let mut series: Vec<Series> = Vec::new();
    for samples in cells {
        let change = change_of(samples, Digests::Both, RATE);
        let Some(change) = change.filter(|change| change.low.is_finite() && change.high.is_finite()) else {
            continue;
        };
        let Cell { block, mix, depth, .. } = samples.cell;
        let name = format!("{}, {mix}", size_text(block));
        let y = Estimate { value: change.percent, low: change.low, high: change.high };
        let point = Point { x: f64::from(depth), y };
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, points: vec![point] }),
        }
    }
    let has_lines = series.iter().any(|series| series.points.len() > 1);
    has_lines.then(|| Plot {
        caption: format!("Change of throughput by both digests: {path}"),
        kind: PlotKind::Lines,
        x: Axis {
            label: "queue depth".to_owned(),
            unit: "commands".to_owned(),
            logarithmic: true,
            ..Axis::default()
        },
        y: Axis { label: "change of throughput".to_owned(), unit: "%".to_owned(), ..Axis::default() },
        series,
    })
}

/// Groups the workloads at a load of 100 % that are alike, in the order of the plan.
fn groups(measured: &Measured, alike: impl Fn(&Cell, &Cell) -> bool) -> Vec<Vec<&CellSamples>> {
    let mut groups: Vec<Vec<&CellSamples>> = Vec::new();
    for samples in measured.full_load() {
        let known = groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|first| alike(&first.cell, &samples.cell)));
        match known {
            Some(group) => group.push(samples),
            None => groups.push(vec![samples]),
        }
    }
    groups
}
