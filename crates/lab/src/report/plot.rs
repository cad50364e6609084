//! Plots as SVG.
//!
//! The colours are those of Okabe and Ito, which colour-blind readers can tell apart. The series of a plot
//! also differ in the shapes of their points and the dashes of their lines, or in the hatching of their bars.

mod bars;
mod lines;
mod scale;
mod style;

#[cfg(test)]
mod tests;

use std::fmt::Write;

use scale::Scale;

use super::markup::{Escaped, estimate_in_words, with_unit};
use super::model::{Axis, Column, Plot, PlotKind, Point, Series, Table};
use super::{model::Cell, number::Short};

pub(super) use style::{HATCHES, legend};

/// Returns the plot as an `svg` element, whose text has identifiers that start with `id`.
pub(super) fn svg(plot: &Plot, id: &str) -> String {
    let canvas = Canvas::of(plot);
    let mut svg = String::new();
    let (width, height) = (canvas.width, canvas.height);
    let _ = write!(
        svg,
        "<svg role=\"img\" viewBox=\"0 0 {width:.0} {height:.0}\" style=\"--w:{width:.0}\" \
         aria-labelledby=\"{id}-title\" aria-describedby=\"{id}-desc\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-desc\">{}</desc>",
        Escaped(&plot.caption),
        Escaped(&description(plot)),
    );
    canvas.draw_y_axis(&mut svg, &plot.y);
    canvas.draw_x_axis(&mut svg, &plot.x);
    match plot.kind {
        PlotKind::Lines => lines::draw(&mut svg, &canvas, plot),
        PlotKind::Bars => bars::draw(&mut svg, &canvas, plot),
    }
    svg.push_str("</svg>");
    svg
}

/// Returns whether a plot needs more width than others.
pub(super) fn is_wide(plot: &Plot) -> bool {
    Canvas::of(plot).width > WIDTH_MIN * 1.25
}

/// Returns how many points a plot cannot show: those at or below zero of a logarithmic axis, those without
/// a number, and those beyond the names of the axis.
pub(super) fn hidden_points(plot: &Plot) -> usize {
    let canvas = Canvas::of(plot);
    plot.series
        .iter()
        .flat_map(|series| &series.points)
        .filter(|point| canvas.position(point).is_none())
        .count()
}

/// Returns how many error bars go beyond the plot.
pub(super) fn cut_error_bars(plot: &Plot) -> usize {
    let canvas = Canvas::of(plot);
    let points = plot.series.iter().flat_map(|series| &series.points);
    let drawn = points.filter(|point| canvas.position(point).is_some());
    drawn
        .filter_map(|point| canvas.error_bar(point))
        .filter(|bar| !(bar.ends_above && bar.ends_below))
        .count()
}

/// Returns the values of a plot as a table, with a row for each position on the horizontal axis.
pub(super) fn values(plot: &Plot) -> Table {
    let column = |title: &str, unit: &str| Column { title: title.to_owned(), unit: unit.to_owned() };
    let columns = plot.series.iter().map(|series| column(&series.name, &plot.y.unit));
    let rows = distinct_x(plot).into_iter().map(|x| {
        let cells = plot.series.iter().map(|series| {
            let point = series.points.iter().find(|point| point.x.total_cmp(&x).is_eq());
            point.map_or(Cell::Absent(String::new()), |point| Cell::Estimate(point.y))
        });
        std::iter::once(Cell::Text(x_label(&plot.x, x))).chain(cells).collect()
    });
    Table {
        caption: with_unit(&plot.y.label, &plot.y.unit),
        rows: rows.collect(),
        columns: std::iter::once(column(&plot.x.label, &plot.x.unit)).chain(columns).collect(),
    }
}

/// The areas of a plot, in units of its view box, and its scales.
#[derive(Debug)]
struct Canvas {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: XScale,
    y: Scale,
    /// The lines of the labels of the horizontal axis; empty if they are drawn at an angle.
    wrapped: Vec<Vec<String>>,
}

/// Where an error bar is drawn.
#[derive(Clone, Copy, Debug)]
struct ErrorBar {
    top: f64,
    bottom: f64,
    /// Whether its upper end lies within the plot.
    ends_above: bool,
    /// Whether its lower end lies within the plot.
    ends_below: bool,
}

/// The scale of the horizontal axis.
#[derive(Debug)]
enum XScale {
    Numeric(Scale),
    /// The labels of groups of equal width, and for each its value on the axis.
    Groups(Vec<(String, f64)>),
}

impl Canvas {
    fn of(plot: &Plot) -> Self {
        let y = y_scale(plot);
        let x = x_scale(plot);
        let groups = x.groups();
        let bars = if plot.kind == PlotKind::Bars { plot.series.len() } else { 1 };
        let needed = to_f64(groups.len()) * (to_f64(bars) * BAR_WIDTH_MIN + GAP_MIN);
        let labels_width =
            y.ticks().map(|(_, label)| text_width(label)).chain([text_width("0")]).fold(0.0, f64::max);
        let left = (labels_width + 2.0 * TICK).ceil();
        let width = (left + needed + RIGHT).clamp(WIDTH_MIN, WIDTH_MAX).ceil();
        let slot = (width - left - RIGHT) / to_f64(groups.len().max(1));
        let wrapped: Vec<Vec<String>> = groups.iter().map(|(name, _)| wrap(name, slot)).collect();
        let fits = wrapped.iter().all(|lines| {
            lines.len() <= LABEL_LINES_MAX
                && lines.iter().all(|line| text_width(line) <= slot - GAP_MIN / 4.0)
        });
        let longest = groups.iter().map(|(name, _)| text_width(&cut(name, NAME_MAX))).fold(0.0, f64::max);
        let (wrapped, labels_height, left) = if fits {
            let lines = wrapped.iter().map(Vec::len).max().unwrap_or(1).max(1);
            (wrapped, to_f64(lines) * LINE, left)
        } else {
            (Vec::new(), longest * SLOPE + LINE, left.max(longest * SLOPE - slot / 2.0).ceil())
        };
        let bottom = TOP + INNER_HEIGHT;
        let height = (bottom + TICK + labels_height + LINE + 8.0).ceil();
        Self { width, height, left, right: width - RIGHT, top: TOP, bottom, x, y, wrapped }
    }

    /// Returns where a point lies; nothing if it cannot be drawn.
    fn position(&self, point: &Point) -> Option<(f64, f64)> {
        Some((self.x_of(point.x)?, self.y_at(self.y.fraction(point.y.value)?)))
    }

    /// Returns the ends of the error bar of a point; nothing without an interval.
    fn error_bar(&self, point: &Point) -> Option<ErrorBar> {
        let (low, high) = (point.y.low, point.y.high);
        let is_drawn = scale::can_draw(low) && scale::can_draw(high) && low < high;
        is_drawn.then(|| ErrorBar {
            top: self.y_at(self.y.clamped(high)),
            bottom: self.y_at(self.y.clamped(low)),
            ends_above: self.y.contains(high),
            ends_below: self.y.contains(low),
        })
    }

    fn x_of(&self, value: f64) -> Option<f64> {
        match &self.x {
            XScale::Numeric(scale) => {
                let (left, right) = (self.left + INSET, self.right - INSET);
                Some(left + scale.fraction(value)? * (right - left))
            }
            XScale::Groups(groups) => {
                let index = groups.iter().position(|(_, x)| (x - value).abs() < 1e-9 * x.abs().max(1.0))?;
                Some(self.left + (to_f64(index) + 0.5) * self.slot())
            }
        }
    }

    /// Returns the width of a group.
    fn slot(&self) -> f64 {
        (self.right - self.left) / to_f64(self.x.groups().len().max(1))
    }

    fn y_at(&self, fraction: f64) -> f64 {
        self.bottom - fraction * (self.bottom - self.top)
    }

    fn draw_y_axis(&self, svg: &mut String, axis: &Axis) {
        let (left, right) = (self.left, self.right);
        for (fraction, label) in self.y.ticks() {
            let y = self.y_at(fraction);
            let class = if label == "0" { "axis" } else { "grid" };
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - TICK,
                y + ASCENT / 2.0,
                Escaped(label),
            );
        }
        let title = cut(&with_unit(&axis.label, &axis.unit), chars_in(self.width - 4.0));
        let _ = write!(svg, "<text class=\"label\" x=\"2\" y=\"{:.1}\">{}</text>", LINE, Escaped(&title));
    }

    fn draw_x_axis(&self, svg: &mut String, axis: &Axis) {
        let (left, right, bottom) = (self.left, self.right, self.bottom);
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{left:.1}\" y1=\"{bottom:.1}\" x2=\"{right:.1}\" y2=\"{bottom:.1}\"/>"
        );
        match &self.x {
            XScale::Numeric(scale) => self.draw_x_ticks(svg, scale),
            XScale::Groups(groups) if self.wrapped.is_empty() => self.draw_sloping_names(svg, groups),
            XScale::Groups(groups) => self.draw_wrapped_names(svg, groups),
        }
        let title = cut(&with_unit(&axis.label, &axis.unit), chars_in(self.width - 4.0));
        let middle = f64::midpoint(left, right);
        let half = text_width(&title) / 2.0;
        let middle = middle.min(self.width - half - 2.0).max(half + 2.0);
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            self.height - 6.0,
            Escaped(&title),
        );
    }

    /// Leaves out the labels that would overlap the one before.
    fn draw_x_ticks(&self, svg: &mut String, scale: &Scale) {
        let (left, right, bottom) = (self.left + INSET, self.right - INSET, self.bottom);
        let mut free_from = f64::NEG_INFINITY;
        for (fraction, label) in scale.ticks() {
            let x = left + fraction * (right - left);
            let end = bottom + TICK / 2.0;
            let _ = write!(
                svg,
                "<line class=\"axis\" x1=\"{x:.1}\" y1=\"{bottom:.1}\" x2=\"{x:.1}\" y2=\"{end:.1}\"/>"
            );
            let half = text_width(label) / 2.0;
            if x - half < free_from {
                continue;
            }
            free_from = x + half + GAP_MIN / 2.0;
            self.draw_name(svg, x.min(self.width - half), 0, label);
        }
    }

    fn draw_wrapped_names(&self, svg: &mut String, groups: &[(String, f64)]) {
        for ((_, value), lines) in groups.iter().zip(&self.wrapped) {
            let x = self.x_of(*value).unwrap_or(self.left);
            for (index, line) in lines.iter().enumerate() {
                self.draw_name(svg, x, index, line);
            }
        }
    }

    fn draw_name(&self, svg: &mut String, x: f64, line: usize, text: &str) {
        let y = self.bottom + TICK + ASCENT + to_f64(line) * LINE;
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
            Escaped(text)
        );
    }

    fn draw_sloping_names(&self, svg: &mut String, groups: &[(String, f64)]) {
        for (name, value) in groups {
            let (x, y) = (self.x_of(*value).unwrap_or(self.left) + ASCENT / 2.0, self.bottom + TICK + ASCENT);
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" \
                 transform=\"rotate(-45 {x:.1} {y:.1})\">{}</text>",
                Escaped(&cut(name, NAME_MAX)),
            );
        }
    }
}

impl XScale {
    /// Returns the groups; none on a numeric axis.
    fn groups(&self) -> &[(String, f64)] {
        match self {
            Self::Numeric(_) => &[],
            Self::Groups(groups) => groups,
        }
    }
}

/// Returns a scale that contains all values, and the error bars as far as these do not dwarf the values.
fn y_scale(plot: &Plot) -> Scale {
    let points: Vec<&Point> = plot.series.iter().flat_map(|series| &series.points).collect();
    let mut values: Vec<f64> = points.iter().map(|point| point.y.value).collect();
    let (lowest, highest) = error_bar_limits(&values, plot.y.logarithmic);
    let ends =
        points.iter().flat_map(|point| [point.y.low, point.y.high]).filter(|end| scale::can_draw(*end));
    values.extend(ends.map(|end| end.clamp(lowest, highest)));
    if plot.y.logarithmic { Scale::logarithmic(&values) } else { Scale::linear_from_zero(&values) }
}

/// Returns how far error bars may reach: on a linear axis as far beyond the values as these span with zero,
/// and on a logarithmic axis a factor beyond them.
fn error_bar_limits(values: &[f64], is_logarithmic: bool) -> (f64, f64) {
    let drawn = || values.iter().copied().filter(|value| scale::can_draw(*value));
    if is_logarithmic {
        let positive = || drawn().filter(|value| *value > 0.0);
        let (low, high) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
        return if low <= high { (low / LOG_REACH, high * LOG_REACH) } else { (0.0, f64::INFINITY) };
    }
    let (low, high) = (drawn().fold(0.0, f64::min), drawn().fold(0.0, f64::max));
    match high - low {
        0.0 => (f64::NEG_INFINITY, f64::INFINITY),
        span => (low - span, high + span),
    }
}

fn x_scale(plot: &Plot) -> XScale {
    if !plot.x.names.is_empty() {
        let names = plot.x.names.iter().enumerate();
        return XScale::Groups(names.map(|(index, name)| (name.clone(), to_f64(index))).collect());
    }
    let values = distinct_x(plot);
    match plot.kind {
        PlotKind::Bars => {
            let values = values.into_iter().filter(|x| x.is_finite());
            XScale::Groups(values.map(|x| (Short(x).to_string(), x)).collect())
        }
        PlotKind::Lines if plot.x.logarithmic => XScale::Numeric(Scale::logarithmic_tight(&values)),
        PlotKind::Lines => XScale::Numeric(Scale::linear_tight(&values)),
    }
}

/// Returns the positions on the horizontal axis, in ascending order.
fn distinct_x(plot: &Plot) -> Vec<f64> {
    let points = plot.series.iter().flat_map(|series| &series.points);
    let mut values: Vec<f64> = points.map(|point| point.x).collect();
    values.sort_by(f64::total_cmp);
    values.dedup_by(|a, b| a.total_cmp(b).is_eq());
    values
}

/// Returns the name of a position, or its number.
fn x_label(axis: &Axis, x: f64) -> String {
    let name = axis.names.iter().enumerate().find(|(index, _)| to_f64(*index) == x);
    name.map_or_else(|| Short(x).to_string(), |(_, name)| name.clone())
}

/// Returns what a pointer over a point shows: `header, 4 KiB: 523 (518 to 531) MB/s`.
fn hint(plot: &Plot, series: &Series, point: &Point) -> String {
    let x = x_label(&plot.x, point.x);
    let unit = if plot.x.names.is_empty() { plot.x.unit.as_str() } else { "" };
    let text = format!("{}, {x} {unit}", series.name);
    format!("{}: {} {}", text.trim_end(), estimate_in_words(&point.y), plot.y.unit).trim_end().to_owned()
}

/// Returns the axes and the ranges of the series in words.
fn description(plot: &Plot) -> String {
    let kind = match plot.kind {
        PlotKind::Lines => "Lines",
        PlotKind::Bars => "Bars",
    };
    let scale = |axis: &Axis| if axis.logarithmic { ", logarithmic" } else { "" };
    let name = |axis: &Axis| format!("{}{}", with_unit(&axis.label, &axis.unit), scale(axis));
    let mut text = format!("{kind}. Horizontal: {}. Vertical: {}.", name(&plot.x), name(&plot.y));
    for series in &plot.series {
        let values = || series.points.iter().map(|point| point.y.value).filter(|value| value.is_finite());
        let (low, high) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        let range = match low <= high {
            true => format!("from {} to {} {}", Short(low), Short(high), plot.y.unit),
            false => "no values".to_owned(),
        };
        let _ = write!(text, " {}: {}.", series.name, range.trim_end());
    }
    text
}

/// Breaks a name at spaces into lines that fit into `width`, as far as its words do.
fn wrap(name: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + text_width(" ") <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Cuts text to so many characters.
fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(chars_max.saturating_sub(1)).collect();
            format!("{}…", kept.trim_end())
        }
    }
}

/// Returns about how wide text is: the fonts of readers differ.
fn text_width(text: &str) -> f64 {
    text.chars().map(|c| if c == '\u{202f}' || c == '.' { CHAR_WIDTH / 2.0 } else { CHAR_WIDTH }).sum()
}

/// Returns how many characters fit into a width.
fn chars_in(width: f64) -> usize {
    (1..CHARS_MAX).take_while(|count| to_f64(*count) * CHAR_WIDTH <= width).last().unwrap_or(1)
}

fn to_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

/// How far error bars reach beyond the values of a logarithmic axis.
const LOG_REACH: f64 = 100.0;

/// More characters fit into no plot.
const CHARS_MAX: usize = 400;

/// The average width of a character of text.
const CHAR_WIDTH: f64 = 7.0;

/// The height of the digits.
const ASCENT: f64 = 10.0;

/// The distance of two lines of text.
const LINE: f64 = 15.0;

/// The distance between an axis and the labels of its ticks.
const TICK: f64 = 7.0;

/// The width of a plot: on a phone its text remains readable. A plot with many bars is wider.
const WIDTH_MIN: f64 = 480.0;
const WIDTH_MAX: f64 = 4000.0;

/// The space above the vertical axis, for its title and the uppermost label.
const TOP: f64 = 28.0;

/// The space to the right of the plot, for half of the last label.
const RIGHT: f64 = 14.0;

const INNER_HEIGHT: f64 = 220.0;

/// The space beside the first and the last point of lines.
const INSET: f64 = 12.0;

/// The narrowest bar, and the narrowest gap between groups of bars.
const BAR_WIDTH_MIN: f64 = 9.0;
const GAP_MIN: f64 = 12.0;

/// Names of positions with more lines are drawn at an angle, and with more characters are cut.
const LABEL_LINES_MAX: usize = 3;
const NAME_MAX: usize = 24;

/// The height of sloping text of length one, and its width.
const SLOPE: f64 = std::f64::consts::FRAC_1_SQRT_2;
