//! Points joined by lines.

use std::fmt::Write;

use super::super::markup::Escaped;
use super::super::model::{Plot, Series};
use super::{Canvas, ErrorBar, distinct_x, hint, style, to_f64};

pub(super) fn draw(svg: &mut String, canvas: &Canvas, plot: &Plot) {
    for (index, series) in plot.series.iter().enumerate() {
        draw_line(svg, canvas, (index, series), offset(plot, index));
    }
    // The points of all series lie above all lines.
    for (index, series) in plot.series.iter().enumerate() {
        draw_points(svg, canvas, plot, (index, series), offset(plot, index));
    }
}

/// Returns how far to the right a series is drawn, so that the error bars of several series do not hide each
/// other. If there are many positions, all series are drawn at their true ones.
fn offset(plot: &Plot, index: usize) -> f64 {
    let steps = plot.series.len().saturating_sub(1);
    if steps == 0 || distinct_x(plot).len() > OFFSET_POSITIONS_MAX {
        return 0.0;
    }
    let steps = to_f64(steps);
    (to_f64(index) - steps / 2.0) * (OFFSETS / steps).min(OFFSET_MAX)
}

/// The distance between the first and the last of many series, and the longest one between two neighbours.
const OFFSETS: f64 = 14.0;
const OFFSET_MAX: f64 = 4.0;

/// With more positions than this, the offsets would be as long as their distances.
const OFFSET_POSITIONS_MAX: usize = 12;

/// Joins the points in their order. The line is interrupted at a point that cannot be drawn.
fn draw_line(svg: &mut String, canvas: &Canvas, (index, series): (usize, &Series), offset: f64) {
    let mut path = String::new();
    let mut command = 'M';
    for point in &series.points {
        command = match canvas.position(point) {
            Some((x, y)) => {
                let _ = write!(path, "{command}{:.1} {y:.1}", x + offset);
                'L'
            }
            None => 'M',
        };
    }
    if path.is_empty() {
        return;
    }
    let (colour, dashes) = (style::colour(index), style::dashes(index));
    let _ =
        write!(svg, "<path class=\"line\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\" d=\"{path}\"/>");
}

fn draw_points(
    svg: &mut String,
    canvas: &Canvas,
    plot: &Plot,
    (index, series): (usize, &Series),
    offset: f64,
) {
    let (colour, shape) = (style::colour(index), style::shape(index));
    for point in &series.points {
        let Some((x, y)) = canvas.position(point) else { continue };
        let x = x + offset;
        let _ = write!(svg, "<g><title>{}</title>", Escaped(&hint(plot, series, point)));
        if let Some(bar) = canvas.error_bar(point) {
            draw_error_bar(svg, x, &bar, &colour);
        }
        let _ = write!(
            svg,
            "<path class=\"point\" fill=\"{colour}\" transform=\"translate({x:.1} {y:.1})\" d=\"{shape}\"/></g>"
        );
    }
}

/// Draws an error bar. An end beyond the plot has no cap.
pub(super) fn draw_error_bar(svg: &mut String, x: f64, bar: &ErrorBar, colour: &str) {
    let (left, right) = (x - CAP, x + CAP);
    let _ =
        write!(svg, "<path class=\"error\" stroke=\"{colour}\" d=\"M{x:.1} {:.1}V{:.1}", bar.top, bar.bottom);
    for (y, has_cap) in [(bar.top, bar.ends_above), (bar.bottom, bar.ends_below)] {
        if has_cap {
            let _ = write!(svg, "M{left:.1} {y:.1}H{right:.1}");
        }
    }
    svg.push_str("\"/>");
}

/// Half of the width of the caps of an error bar.
const CAP: f64 = 3.5;
