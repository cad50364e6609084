//! Points joined by lines.

use std::fmt::Write;

use super::super::markup::Escaped;
use super::super::model::{Plot, Series};
use super::{Canvas, hint, style};

pub(super) fn draw(svg: &mut String, canvas: &Canvas, plot: &Plot) {
    for (index, series) in plot.series.iter().enumerate() {
        draw_line(svg, canvas, index, series);
    }
    // The points of all series lie above all lines.
    for (index, series) in plot.series.iter().enumerate() {
        draw_points(svg, canvas, plot, index, series);
    }
}

/// Joins the points in their order. The line is interrupted at a point that cannot be drawn.
fn draw_line(svg: &mut String, canvas: &Canvas, index: usize, series: &Series) {
    let mut path = String::new();
    let mut command = 'M';
    for point in &series.points {
        command = match canvas.position(point) {
            Some((x, y)) => {
                let _ = write!(path, "{command}{x:.1} {y:.1}");
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

fn draw_points(svg: &mut String, canvas: &Canvas, plot: &Plot, index: usize, series: &Series) {
    let (colour, shape) = (style::colour(index), style::shape(index));
    for point in &series.points {
        let Some((x, y)) = canvas.position(point) else { continue };
        let _ = write!(svg, "<g><title>{}</title>", Escaped(&hint(plot, series, point)));
        if let Some((high, low)) = canvas.error_bar(point) {
            draw_error_bar(svg, x, high, low, &colour);
        }
        let _ = write!(
            svg,
            "<path class=\"point\" fill=\"{colour}\" transform=\"translate({x:.1} {y:.1})\" d=\"{shape}\"/></g>"
        );
    }
}

/// Draws an error bar from `high` down to `low`.
pub(super) fn draw_error_bar(svg: &mut String, x: f64, high: f64, low: f64, colour: &str) {
    let (left, right) = (x - CAP, x + CAP);
    let _ = write!(
        svg,
        "<path class=\"error\" stroke=\"{colour}\" \
         d=\"M{left:.1} {high:.1}H{right:.1}M{x:.1} {high:.1}V{low:.1}M{left:.1} {low:.1}H{right:.1}\"/>"
    );
}

/// Half of the width of the caps of an error bar.
const CAP: f64 = 3.5;
