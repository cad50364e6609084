//! A report that uses every part of the model.

use std::collections::BTreeMap;

use base::rng::Rng;

use super::model::*;

/// Numbers that look measured: `truth` with 2 % of noise.
pub(super) fn samples(rng: &mut Rng, truth: f64, rounds: usize) -> Vec<f64> {
    (0..rounds).map(|_| truth * (1.0 + (rng.below(4001) as f64 - 2000.0) / 100_000.0)).collect()
}

pub(super) fn axis(label: &str, unit: &str) -> Axis {
    Axis { label: label.to_owned(), unit: unit.to_owned(), ..Axis::default() }
}

pub(super) fn named(label: &str, names: &[&str]) -> Axis {
    Axis { names: names.iter().map(|name| (*name).to_owned()).collect(), ..axis(label, "") }
}

/// The seed of reports whose numbers do not matter.
pub(super) const SEED: u64 = 7;

/// A seed that differs from run to run.
pub(super) fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = u64::try_from(now.as_nanos() % u128::from(u64::MAX)).unwrap();
    println!("seed {seed}");
    seed
}

const DIGESTS: [&str; 4] = ["none", "header", "data", "both"];
const BLOCKS: [(&str, f64); 4] = [("4 KiB", 4.0), ("16 KiB", 16.0), ("64 KiB", 64.0), ("256 KiB", 256.0)];

/// Returns a report of an imaginary experiment with digests.
pub(super) fn report(seed: u64, rounds: usize) -> Report {
    let mut rng = Rng::from_seed(seed);
    let mut metrics = Vec::new();
    for (d, digests) in DIGESTS.iter().enumerate() {
        for (block, kib) in BLOCKS {
            let circumstances =
                vec![("digests".to_owned(), (*digests).to_owned()), ("block".to_owned(), block.to_owned())];
            let rate = 1180.0 * kib / (kib + 12.0) * (1.0 - 0.03 * d as f64);
            let metric = |quantity: &str, unit: &str, better, samples| Metric {
                circumstances: circumstances.clone(),
                quantity: quantity.to_owned(),
                unit: unit.to_owned(),
                better,
                samples,
                resolution: None,
            };
            metrics.push(metric("throughput", "MB/s", Better::Higher, samples(&mut rng, rate, rounds)));
            let latency = 1000.0 * 32.0 * kib / rate;
            metrics.push(metric("latency p99", "µs", Better::Lower, samples(&mut rng, latency, rounds)));
        }
    }
    Report {
        schema: SCHEMA,
        experiment: "digests".to_owned(),
        title: "What do CRC32C digests cost?".to_owned(),
        started: "2026-11-23T23:40:12Z".to_owned(),
        seconds: 754.2,
        ended: Ended::Complete,
        summary: vec![
            "Both digests cost 8.9 % of the throughput of 256 KiB reads, and 9.1 % of that of 4 KiB reads.".to_owned(),
            "The processor computes CRC32C at 24 GB/s, so that the digests take 0.04 µs of each 4 KiB read; the rest of \
             the cost is the second pass over the data.".to_owned(),
            "On a 1 Gbit/s link, no change is significant.".to_owned(),
        ],
        caveats: vec![
            "Initiator and target share two cores of one machine: the figures show what both ends pay together.".to_owned(),
            "The link is a veth pair whose rate is limited by the kernel, not a network adapter with offloads.".to_owned(),
        ],
        machine: [
            ("processor", "AMD EPYC 7R13, 2 cores"),
            ("memory", "7.6 GiB"),
            ("kernel", "Linux 6.1.0-44-amd64"),
            ("targe", "0.1.0 (d4290ec)"),
            ("governor", "unknown: the machine is a guest"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        command: "targe lab digests --plan plan.toml --out results".to_owned(),
        plan: "rounds = 9\nblocks = [\"4K\", \"16K\", \"64K\", \"256K\"]\ndigests = [\"none\", \"header\", \"data\", \"both\"]\n"
            .to_owned(),
        sections: sections(&metrics),
        metrics,
    }
}

fn series(metrics: &[Metric], quantity: &str, x: impl Fn(usize) -> f64) -> Vec<Series> {
    let of = |digests: &str| {
        let found = metrics.iter().filter(|m| m.quantity == quantity && m.circumstances[0].1 == digests);
        let points = found.enumerate();
        points.map(|(i, m)| Point { x: x(i), y: crate::statistics::estimate(&m.samples) }).collect()
    };
    DIGESTS.iter().map(|digests| Series { name: (*digests).to_owned(), points: of(digests) }).collect()
}

fn sections(metrics: &[Metric]) -> Vec<Section> {
    let names = BLOCKS.map(|(name, _)| name);
    let bars = Plot {
        caption: "Throughput of reads by length, with each combination of digests".to_owned(),
        kind: PlotKind::Bars,
        x: named("length of a read", &names),
        y: axis("throughput", "MB/s"),
        series: series(metrics, "throughput", |index| index as f64),
    };
    let lines = Plot {
        caption: "Latency of reads at the 99th percentile, by length".to_owned(),
        kind: PlotKind::Lines,
        x: Axis { logarithmic: true, ..axis("length of a read", "KiB") },
        y: Axis { logarithmic: true, ..axis("latency", "µs") },
        series: series(metrics, "latency p99", |index| BLOCKS[index].1),
    };
    let long_names = Plot {
        caption: "Change of the throughput against no digests".to_owned(),
        kind: PlotKind::Bars,
        x: named(
            "load",
            &[
                "random reads, depth 1",
                "random reads, depth 32",
                "sequential writes",
                "mixed 70:30, depth 32",
            ],
        ),
        y: axis("change", "%"),
        series: vec![Series {
            name: "both digests".to_owned(),
            points: [(-1.2, 0.8), (-8.9, 0.7), (-6.1, 1.1), (2.3, 0.5)]
                .iter()
                .enumerate()
                .map(|(i, (v, w))| Point { x: i as f64, y: Estimate { value: *v, low: v - w, high: v + w } })
                .collect(),
        }],
    };
    vec![
        Section {
            title: "Throughput".to_owned(),
            text: vec!["Every round measures all combinations one after the other, in random order. A bar is the median of \
                        all rounds, and its error bar the 95 % confidence interval.".to_owned()],
            tables: vec![throughput(metrics)],
            plots: vec![bars, lines],
        },
        Section { title: "Loads".to_owned(), plots: vec![long_names], ..Section::default() },
    ]
}

fn throughput(metrics: &[Metric]) -> Table {
    let column = |title: &str, unit: &str| Column { title: title.to_owned(), unit: unit.to_owned() };
    let row = |digests: &str| {
        let found = metrics.iter().filter(|m| m.quantity == "throughput" && m.circumstances[0].1 == digests);
        let cells = found.map(|m| Cell::Estimate(crate::statistics::estimate(&m.samples)));
        std::iter::once(Cell::Text(digests.to_owned()))
            .chain(cells)
            .chain([Cell::Number(12_345.0), Cell::Absent("not installed".to_owned())])
            .collect()
    };
    Table {
        caption: "Throughput of reads".to_owned(),
        columns: std::iter::once(column("digests", ""))
            .chain(BLOCKS.map(|(name, _)| column(name, "MB/s")))
            .chain([column("retransmissions", ""), column("tgt, 4 KiB", "MB/s")])
            .collect(),
        rows: DIGESTS.map(row).to_vec(),
    }
}

/// An element of a page.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) attributes: BTreeMap<String, String>,
    /// The text directly in the element, with its character references.
    pub(super) text: String,
}

impl Element {
    /// A number among the attributes.
    pub(super) fn number(&self, name: &str) -> f64 {
        let text = self.attributes.get(name).unwrap_or_else(|| panic!("{self:?} has no {name}"));
        text.parse().unwrap_or_else(|_| panic!("{name} of {self:?} is no number"))
    }

    pub(super) fn has_class(&self, class: &str) -> bool {
        self.attributes.get("class").is_some_and(|classes| classes.split(' ').any(|name| name == class))
    }
}

/// Returns the elements of a page in the order of their start tags. Panics if the tags do not nest, an
/// attribute is not quoted or occurs twice, or text contains a bare `&` or `>`.
pub(super) fn elements(html: &str) -> Vec<Element> {
    let (mut found, mut open): (Vec<Element>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut rest = html.strip_prefix("<!DOCTYPE html>").unwrap_or(html);
    while let Some((text, tagged)) = rest.split_once('<') {
        if let Some(element) = open.last() {
            if found[*element].name != "style" {
                check_text(text);
            }
            found[*element].text.push_str(text);
        }
        let (tag, after) = tagged.split_once('>').unwrap_or_else(|| panic!("no end of <{tagged:.80}"));
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let start = open.pop().unwrap_or_else(|| panic!("</{name}> without a start"));
            assert_eq!(found[start].name, name, "ends {:?}", found[start]);
            continue;
        }
        let element = element(tag.trim_end_matches('/'));
        if !tag.ends_with('/') && element.name != "meta" {
            open.push(found.len());
        }
        found.push(element);
    }
    assert!(open.is_empty(), "not ended: {open:?}");
    found
}

fn element(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let mut attributes = BTreeMap::new();
    while let Some((name, quoted)) = rest.split_once("=\"") {
        let (value, after) = quoted.split_once('"').unwrap_or_else(|| panic!("no end of {quoted}"));
        check_text(value);
        assert!(attributes.insert(name.trim().to_owned(), value.to_owned()).is_none(), "{name} twice: {tag}");
        rest = after;
    }
    assert!(rest.trim().is_empty(), "not quoted: {rest} in {tag}");
    Element { name: name.to_owned(), attributes, text: String::new() }
}

fn check_text(text: &str) {
    assert!(!text.contains('>'), "bare > in {text}");
    for reference in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
        assert!(known.iter().any(|name| reference.starts_with(name)), "bare & in {text}");
    }
}

/// Checks what the report of every experiment must hold.
pub(crate) fn check_form(report: &Report) {
    assert!(!report.summary.is_empty() && report.summary.iter().all(|text| text.ends_with('.')));
    for table in report.sections.iter().flat_map(|section| &section.tables) {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.caption);
        for cell in table.rows.iter().flatten() {
            match cell {
                Cell::Number(value) => assert!(value.is_finite(), "{}", table.caption),
                Cell::Estimate(value) => assert!(value.low <= value.value && value.value <= value.high),
                Cell::Text(text) | Cell::Absent(text) => assert!(!text.is_empty(), "{}", table.caption),
            }
        }
    }
    let names: Vec<_> =
        report.metrics.iter().map(|metric| (&metric.circumstances, &metric.quantity)).collect();
    for (at, name) in names.iter().enumerate() {
        assert!(!names[..at].contains(name), "{name:?} is there twice");
    }
}

/// The noise of synthetic samples.
pub(crate) struct Noise(Rng);

impl Noise {
    pub(crate) const fn from_seed(seed: u64) -> Self {
        Self(Rng::from_seed(seed))
    }

    /// Returns a factor that is at most so many percent from 1.
    pub(crate) fn factor(&mut self, percent: f64) -> f64 {
        let thousandths = f64::from(u16::try_from(self.0.below(2001)).unwrap());
        1.0 + (thousandths / 1000.0 - 1.0) * percent / 100.0
    }
}
