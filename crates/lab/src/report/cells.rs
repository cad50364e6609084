//! The cells, columns and bars of experiments: how samples become a part of a report.

use super::model::{Axis, Cell, Column, Estimate, Plot, PlotKind, Point, Series};
use crate::statistics::{Change, estimate};

/// Why a cell has no value, where nothing more is known.
pub(crate) const NOT_MEASURED: &str = "not measured";

/// Returns the columns with these titles and units.
pub(crate) fn columns<T: AsRef<str>>(titles: &[(T, &str)]) -> Vec<Column> {
    let column =
        |(title, unit): &(T, &str)| Column { title: title.as_ref().to_owned(), unit: (*unit).to_owned() };
    titles.iter().map(column).collect()
}

/// Returns the columns with these titles, whose values have units of their own.
pub(crate) fn columns_without_units(titles: &[&str]) -> Vec<Column> {
    titles.iter().map(|title| Column { title: (*title).to_owned(), unit: String::new() }).collect()
}

/// Returns the cell of some samples.
pub(crate) fn estimated(samples: &[f64]) -> Cell {
    if samples.is_empty() { absent() } else { Cell::Estimate(estimate(samples)) }
}

/// Returns the cell of a change in percent.
pub(crate) fn change_cell(change: Option<&Change>) -> Cell {
    let Some(change) = change.filter(|change| change.percent.is_finite()) else { return absent() };
    if change.low.is_finite() && change.high.is_finite() {
        Cell::Estimate(Estimate { value: change.percent, low: change.low, high: change.high })
    } else {
        Cell::Number(change.percent)
    }
}

/// Returns the cell of a number that was counted or measured once.
pub(crate) fn finite(value: f64) -> Cell {
    if value.is_finite() { Cell::Number(value) } else { absent() }
}

/// Returns a cell without a value.
pub(crate) fn absent() -> Cell {
    Cell::Absent(NOT_MEASURED.to_owned())
}

/// Returns a plot with the samples of each series in each group of bars, or none if there are none. The names
/// of the groups are those of the horizontal axis.
pub(crate) fn bars(
    caption: String,
    (x, y): (Axis, Axis),
    series: impl IntoIterator<Item = (String, Vec<Vec<f64>>)>,
) -> Option<Plot> {
    let point = |(at, samples): (u32, Vec<f64>)| {
        (!samples.is_empty()).then(|| Point { x: f64::from(at), y: estimate(&samples) })
    };
    let series: Vec<Series> = series
        .into_iter()
        .map(|(name, groups)| Series { name, points: (0..).zip(groups).filter_map(point).collect() })
        .filter(|series| !series.points.is_empty())
        .collect();
    (!series.is_empty()).then_some(Plot { caption, kind: PlotKind::Bars, x, y, series })
}
