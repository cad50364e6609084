//! How series differ: colours, shapes of points, dashes of lines and hatching of bars.

use std::fmt::Write;

use super::super::markup::Escaped;
use super::super::model::{Plot, PlotKind};

/// The number of colours, `--s0` to `--s7` in the style sheet.
const COLOURS: usize = 8;

/// The dashes of lines.
const DASHES: [&str; 7] = ["none", "7 3", "2 3", "9 3 2 3", "5 2", "12 4", "2 2 6 2"];

/// The shapes of points: paths around (0, 0).
const SHAPES: [&str; 6] = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "M0 -4.6L4.4 3.4H-4.4Z",
    "M0 -5L5 0L0 5L-5 0Z",
    "M0 4.6L4.4 -3.4H-4.4Z",
    "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
];

/// The hatching of bars, for the whole page. Series 0 has none.
pub(in super::super) const HATCHES: &str = "<svg class=\"hatches\" aria-hidden=\"true\"><defs>\
    <pattern id=\"hatch1\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
    <path d=\"M0 0V6\"/></pattern>\
    <pattern id=\"hatch2\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(-45)\">\
    <path d=\"M0 0V6\"/></pattern>\
    <pattern id=\"hatch3\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><path d=\"M0 2H5\"/></pattern>\
    <pattern id=\"hatch4\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
    <path d=\"M0 3H7M3 0V7\"/></pattern>\
    <pattern id=\"hatch5\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><path d=\"M2 0V5\"/></pattern>\
    <pattern id=\"hatch6\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><path d=\"M2 3H4\"/></pattern>\
    </defs></svg>";

/// The number of hatchings, with the missing one of series 0.
const HATCHINGS: usize = 7;

/// Returns the colour of a series.
pub(super) fn colour(series: usize) -> String {
    format!("var(--s{})", series % COLOURS)
}

/// Returns the dashes of the line of a series.
pub(super) fn dashes(series: usize) -> &'static str {
    DASHES.get(series % DASHES.len()).copied().unwrap_or("none")
}

/// Returns the shape of the points of a series.
pub(super) fn shape(series: usize) -> &'static str {
    SHAPES.get(series % SHAPES.len()).copied().unwrap_or_default()
}

/// Returns the fill of the hatching of a series.
pub(super) fn hatch(series: usize) -> Option<String> {
    let hatching = series % HATCHINGS;
    (hatching > 0).then(|| format!("url(#hatch{hatching})"))
}

/// Returns the legend as a list; nothing for a plot of one series.
pub(in super::super) fn legend(plot: &Plot) -> String {
    let mut html = String::new();
    if plot.series.len() < 2 {
        return html;
    }
    html.push_str("<ul class=\"legend\">");
    for (index, series) in plot.series.iter().enumerate() {
        let (width, swatch) = match plot.kind {
            PlotKind::Lines => (34, line_swatch(index)),
            PlotKind::Bars => (18, bar_swatch(index)),
        };
        let _ = write!(
            html,
            "<li><svg aria-hidden=\"true\" width=\"{width}\" height=\"14\" viewBox=\"0 0 {width} 14\">{swatch}</svg>\
             {}</li>",
            Escaped(&series.name)
        );
    }
    html.push_str("</ul>");
    html
}

fn line_swatch(series: usize) -> String {
    format!(
        "<path class=\"line\" stroke=\"{colour}\" stroke-dasharray=\"{}\" d=\"M1 7H33\"/>\
         <path class=\"point\" fill=\"{colour}\" transform=\"translate(17 7)\" d=\"{}\"/>",
        dashes(series),
        shape(series),
        colour = colour(series),
    )
}

fn bar_swatch(series: usize) -> String {
    const PLACE: &str = "x=\"1\" y=\"1\" width=\"16\" height=\"12\"";
    let mut swatch = format!("<rect class=\"bar\" fill=\"{}\" {PLACE}/>", colour(series));
    if let Some(fill) = hatch(series) {
        let _ = write!(swatch, "<rect fill=\"{fill}\" {PLACE}/>");
    }
    swatch
}
