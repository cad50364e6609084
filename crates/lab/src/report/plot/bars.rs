//! Groups of bars.

use std::fmt::Write;

use super::super::markup::Escaped;
use super::super::model::{Plot, Point, Series};
use super::lines::draw_error_bar;
use super::{Canvas, GAP_MIN, hint, style, to_f64};

pub(super) fn draw(svg: &mut String, canvas: &Canvas, plot: &Plot) {
    let count = to_f64(plot.series.len().max(1));
    let width = ((canvas.slot() - GAP_MIN) / count).clamp(1.0, BAR_WIDTH_MAX);
    for (index, series) in plot.series.iter().enumerate() {
        let offset = (to_f64(index) - count / 2.0) * width;
        for point in &series.points {
            draw_bar(svg, canvas, plot, (index, series), point, (offset, width));
        }
    }
}

/// Draws a bar that starts at `offset` from the middle of its group.
fn draw_bar(
    svg: &mut String,
    canvas: &Canvas,
    plot: &Plot,
    (index, series): (usize, &Series),
    point: &Point,
    (offset, width): (f64, f64),
) {
    let Some((middle, y)) = canvas.position(point) else { return };
    let zero = canvas.y_at(canvas.y.clamped(0.0));
    let (x, top, height) = (middle + offset, y.min(zero), (y - zero).abs());
    let drawn = (width - 1.0).max(0.5);
    let place = format!("x=\"{x:.1}\" y=\"{top:.1}\" width=\"{drawn:.1}\" height=\"{height:.1}\"");
    let _ = write!(
        svg,
        "<g><title>{}</title><rect class=\"bar\" fill=\"{}\" {place}/>",
        Escaped(&hint(plot, series, point)),
        style::colour(index),
    );
    if let Some(fill) = style::hatch(index) {
        let _ = write!(svg, "<rect fill=\"{fill}\" {place}/>");
    }
    if let Some((high, low)) = canvas.error_bar(point) {
        draw_error_bar(svg, x + drawn / 2.0, high, low, "var(--text)");
    }
    svg.push_str("</g>");
}

/// A wider bar shows no more.
const BAR_WIDTH_MAX: f64 = 44.0;
