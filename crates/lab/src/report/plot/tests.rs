//! Where the parts of a plot are drawn.

use base::rng::Rng;

use super::super::model::Estimate;
use super::super::testing::{Element, SEED, axis, elements, fresh_seed, named, report};
use super::*;

fn point(x: f64, value: f64) -> Point {
    Point { x, y: Estimate { value, low: value, high: value } }
}

fn plot(kind: PlotKind, values: &[f64]) -> Plot {
    let points = values.iter().enumerate().map(|(index, value)| point(to_f64(index), *value)).collect();
    Plot {
        caption: "A plot".to_owned(),
        kind,
        x: axis("position", ""),
        y: axis("value", "ms"),
        series: vec![Series { name: "one".to_owned(), points }],
    }
}

fn drawn(plot: &Plot) -> Vec<Element> {
    elements(&svg(plot, "p"))
}

fn with_class<'a>(elements: &'a [Element], class: &str) -> Vec<&'a Element> {
    elements.iter().filter(|element| element.has_class(class)).collect()
}

/// Returns the coordinates of a path of absolute commands.
fn path_points(path: &str) -> Vec<(f64, f64)> {
    let (mut points, mut at) = (Vec::new(), (0.0, 0.0));
    let starts: Vec<usize> = path.match_indices(['M', 'L', 'H', 'V']).map(|(index, _)| index).collect();
    for (index, start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(path.len());
        let numbers: Vec<f64> =
            path[start + 1..end].split(' ').map(|number| number.parse().expect(path)).collect();
        at = match path.as_bytes()[*start] {
            b'H' => (numbers[0], at.1),
            b'V' => (at.0, numbers[0]),
            _ => (numbers[0], numbers[1]),
        };
        points.push(at);
    }
    points
}

/// Returns the corners of what an element draws.
fn corners(element: &Element) -> Vec<(f64, f64)> {
    let at = |x: &str, y: &str| (element.number(x), element.number(y));
    match element.name.as_str() {
        "line" => vec![at("x1", "y1"), at("x2", "y2")],
        "rect" => {
            let ((x, y), (width, height)) = (at("x", "y"), at("width", "height"));
            assert!(width > 0.0 && height >= 0.0, "{element:?}");
            vec![(x, y), (x + width, y + height)]
        }
        "text" => text_corners(element, at("x", "y")),
        "path" if element.has_class("point") => {
            let inner = element.attributes["transform"].strip_prefix("translate(").unwrap();
            path_points(&format!("M{}", inner.trim_end_matches(')')))
        }
        "path" => path_points(&element.attributes["d"]),
        _ => Vec::new(),
    }
}

fn text_corners(element: &Element, (x, y): (f64, f64)) -> Vec<(f64, f64)> {
    let width = text_width(&element.text);
    let anchor = element.attributes.get("text-anchor").map_or("start", String::as_str);
    match (anchor, element.attributes.contains_key("transform")) {
        (_, true) => vec![(x, y), (x - width * SLOPE, y + width * SLOPE)],
        ("end", _) => vec![(x - width, y - ASCENT), (x, y)],
        ("middle", _) => vec![(x - width / 2.0, y - ASCENT), (x + width / 2.0, y)],
        _ => vec![(x, y - ASCENT), (x + width, y)],
    }
}

/// Checks that everything lies in the view box, and returns the elements.
fn check(plot: &Plot, what: &str) -> Vec<Element> {
    let elements = drawn(plot);
    let view: Vec<f64> =
        elements[0].attributes["viewBox"].split(' ').map(|number| number.parse().unwrap()).collect();
    for element in &elements {
        for (x, y) in corners(element) {
            let is_inside = (0.0..=view[2]).contains(&x) && (0.0..=view[3]).contains(&y);
            assert!(is_inside, "{what}: ({x}, {y}) is not in {view:?}: {element:?}\n{plot:?}");
        }
    }
    let points = plot.series.iter().map(|series| series.points.len()).sum::<usize>();
    let shown = with_class(&elements, "point").len() + with_class(&elements, "bar").len();
    assert_eq!(shown + hidden_points(plot), points, "{what}: {plot:?}");
    elements
}

#[test]
fn everything_lies_in_the_view_box_for_any_series() {
    let seed = fresh_seed();
    let mut rng = Rng::from_seed(seed);
    for round in 0..2000 {
        let plot = random_plot(&mut rng);
        check(&plot, &format!("seed {seed}, round {round}"));
    }
}

fn random_plot(rng: &mut Rng) -> Plot {
    let mut plot = plot(PlotKind::Lines, &[]);
    if rng.chance(1, 2) {
        plot.kind = PlotKind::Bars;
    }
    let count = rng.below(13);
    if rng.chance(1, 2) {
        plot.x = random_names(rng, count);
    }
    plot.x.logarithmic = rng.chance(1, 2);
    plot.y.logarithmic = rng.chance(1, 2);
    plot.y.label = "value ".repeat(usize::try_from(rng.below(30)).unwrap());
    let scale = 10_f64.powi(i32::try_from(rng.below(25)).unwrap() - 12);
    plot.series.clear();
    for index in 0..rng.below(6) {
        let points = (0..count).map(|x| random_point(rng, x, scale)).collect();
        plot.series.push(Series { name: format!("series {index}"), points });
    }
    plot
}

fn random_names(rng: &mut Rng, count: u64) -> Axis {
    let words = ["4K", "reads", "depth 32,", "an-extraordinarily-long-word", ""];
    let name = |_| {
        let words = (0..=rng.below(4)).map(|_| words[usize::try_from(rng.below(5)).unwrap()]);
        words.collect::<Vec<_>>().join(" ")
    };
    let names: Vec<String> = (0..count).map(name).collect();
    named("a name", &names.iter().map(String::as_str).collect::<Vec<_>>())
}

fn random_point(rng: &mut Rng, x: u64, scale: f64) -> Point {
    let value = random_value(rng, scale);
    let width = value.abs() * rng.below(200) as f64 / 100.0;
    let y = match rng.below(4) {
        0 => Estimate { value, low: value, high: value },
        1 => Estimate { value, low: f64::NEG_INFINITY, high: f64::NAN },
        _ => Estimate { value, low: value - width, high: value + width },
    };
    Point { x: x as f64, y }
}

fn random_value(rng: &mut Rng, scale: f64) -> f64 {
    match rng.below(40) {
        0 => 0.0,
        1 => f64::NAN,
        2 => f64::INFINITY,
        3 => f64::MAX,
        4 => f64::MIN_POSITIVE,
        5 => -scale,
        6 => scale * 1e-9,
        7 => 5e-324,
        _ => scale * (1.0 + rng.below(1000) as f64),
    }
}

#[test]
fn degenerate_series_are_drawn() {
    for kind in [PlotKind::Lines, PlotKind::Bars] {
        for values in [&[][..], &[0.0], &[7.0], &[7.0; 5], &[-7.0; 5], &[1.0, 1.0 + 1e-15], &[-1e300, 1e300]]
        {
            for logarithmic in [false, true] {
                let mut plot = plot(kind, values);
                plot.y.logarithmic = logarithmic;
                plot.x.logarithmic = logarithmic;
                check(&plot, "degenerate");
                assert!(!with_class(&drawn(&plot), "tick").is_empty(), "{plot:?}");
            }
        }
        let empty = Plot { series: Vec::new(), ..plot(kind, &[]) };
        check(&empty, "no series");
    }
}

#[test]
fn heights_are_proportional_to_values() {
    let elements = check(&plot(PlotKind::Bars, &[10.0, 20.0, 40.0]), "bars");
    let heights: Vec<f64> =
        with_class(&elements, "bar").iter().map(|element| element.number("height")).collect();
    assert!((heights[1] / heights[0] - 2.0).abs() < 0.01 && (heights[2] / heights[0] - 4.0).abs() < 0.01);

    let mut lines = plot(PlotKind::Lines, &[1.0, 10.0, 100.0, 1000.0]);
    lines.y.logarithmic = true;
    let elements = check(&lines, "lines");
    let line = path_points(&with_class(&elements, "line")[0].attributes["d"]);
    let steps: Vec<f64> = line.windows(2).map(|pair| pair[0].1 - pair[1].1).collect();
    assert!(steps.iter().all(|step| (step - steps[0]).abs() < 0.2 && *step > 0.0), "{steps:?}");
}

/// Reads values back from the drawing: by two ticks and the pixels of the points.
#[test]
fn points_lie_where_the_ticks_say() {
    let seed = fresh_seed();
    let mut rng = Rng::from_seed(seed);
    for _ in 0..200 {
        let values: Vec<f64> = (0..8).map(|_| rng.below(9_000) as f64 + 100.0).collect();
        let elements = check(&plot(PlotKind::Lines, &values), "lines");
        let ticks: Vec<(f64, f64)> = with_class(&elements, "tick")
            .iter()
            .filter(|tick| tick.attributes["text-anchor"] == "end")
            .map(|tick| (tick.text.replace('\u{202f}', "").parse().unwrap(), tick.number("y") - ASCENT / 2.0))
            .collect();
        let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
        assert_eq!(first.0, 0.0, "the axis starts at zero");
        let unit = (last.0 - first.0) / (first.1 - last.1);
        for (value, element) in values.iter().zip(with_class(&elements, "point")) {
            let read = (first.1 - corners(element)[0].1) * unit;
            assert!((read - value).abs() <= 0.2 * unit, "seed {seed}: {value} is drawn at {read}");
        }
    }
}

#[test]
fn error_bars_span_the_interval() {
    let mut plot = plot(PlotKind::Lines, &[50.0, 100.0]);
    plot.series[0].points[0].y = Estimate { value: 50.0, low: 25.0, high: 100.0 };
    let elements = check(&plot, "error bars");
    let bars = with_class(&elements, "error");
    assert_eq!(bars.len(), 1, "a point without an interval has no error bar");
    let ys: Vec<f64> = path_points(&bars[0].attributes["d"]).iter().map(|point| point.1).collect();
    let high = corners(with_class(&elements, "point")[1])[0].1;
    assert!(ys.contains(&high), "{ys:?} ends where 100 is drawn: {high}");
}

#[test]
fn a_line_is_interrupted_where_a_value_is_missing() {
    let elements = check(&plot(PlotKind::Lines, &[1.0, 2.0, f64::NAN, 3.0]), "gap");
    let line = &with_class(&elements, "line")[0].attributes["d"];
    assert_eq!(line.matches('M').count(), 2, "{line}");
}

#[test]
fn a_logarithmic_axis_counts_what_it_cannot_show() {
    let mut plot = plot(PlotKind::Lines, &[0.0, -1.0, 5.0, 50.0]);
    assert_eq!(hidden_points(&plot), 0);
    plot.y.logarithmic = true;
    assert_eq!(hidden_points(&plot), 2);
}

#[test]
fn series_differ_in_more_than_colour() {
    for plot in
        report(SEED, 9).sections.iter().flat_map(|section| &section.plots).filter(|p| p.series.len() > 1)
    {
        let elements = drawn(plot);
        let distinct = |class: &str, attribute: &str| {
            let mut values: Vec<&String> =
                with_class(&elements, class).iter().map(|element| &element.attributes[attribute]).collect();
            values.sort();
            values.dedup();
            values.len()
        };
        let count = plot.series.len();
        match plot.kind {
            PlotKind::Lines => {
                assert_eq!((distinct("line", "stroke-dasharray"), distinct("point", "d")), (count, count));
            }
            PlotKind::Bars => {
                let fills = elements.iter().filter(|element| element.name == "rect");
                let mut hatches: Vec<&String> = fills.map(|element| &element.attributes["fill"]).collect();
                hatches.retain(|fill| fill.starts_with("url(#hatch"));
                hatches.sort();
                hatches.dedup();
                assert_eq!((distinct("bar", "fill"), hatches.len()), (count, count - 1));
            }
        }
        assert_eq!(elements[0].attributes["role"], "img");
        assert_eq!((elements[1].name.as_str(), elements[2].name.as_str()), ("title", "desc"));
        assert!(plot.series.iter().all(|series| elements[2].text.contains(&series.name)));
        assert!(plot.series.iter().all(|series| legend(plot).contains(&series.name)));
    }
}

#[test]
fn axes_have_labels_with_units_and_names() {
    let mut plot = plot(PlotKind::Bars, &[1.0, 2.0]);
    plot.x = named("load", &["random reads, depth 32", "sequential"]);
    let text: String = drawn(&plot).iter().map(|element| format!("{} ", element.text)).collect();
    for expected in ["value (ms)", "load", "random reads, depth 32", "sequential", "sequential: 2 ms"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
