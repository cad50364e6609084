//! What a report consists of. `result.json` is this model as JSON.

use serde::{Deserialize, Serialize};

use crate::bench::Histogram;
pub use crate::statistics::{Estimate, Resolution};
use crate::statistics::{Series as Samples, null_as_nan, nulls_as_nan};

/// The version of the JSON form. It grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// The report of one run of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] at the time of writing.
    pub schema: u32,
    /// The name of the experiment on the command line: `digests`.
    pub experiment: String,
    /// The question that the experiment answers, as a heading.
    pub title: String,
    /// When the run started: RFC 3339, UTC.
    pub started: String,
    /// The duration of the run in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub seconds: f64,
    /// Whether the run was completed.
    pub ended: Ended,
    /// What the experiment found, in sentences for a reader in a hurry. The first one is the answer.
    pub summary: Vec<String>,
    /// What the reader must know to trust the figures: what limits them, what was left out.
    pub caveats: Vec<String>,
    /// The machine and the software: name and value.
    pub machine: Vec<(String, String)>,
    /// The command that runs the experiment again.
    pub command: String,
    /// The plan of the run, TOML.
    pub plan: String,
    /// The findings in detail.
    pub sections: Vec<Section>,
    /// Every measured quantity with its samples.
    pub metrics: Vec<Metric>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// All of the plan was carried out.
    Complete,
    /// The run ended early; the report covers what was measured before. The text tells why.
    Early(String),
}

/// A part of the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Plots.
    pub plots: Vec<Plot>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What the table shows, one sentence.
    pub caption: String,
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The rows; each has one cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// The heading.
    pub title: String,
    /// The unit of its numbers; empty if there is none.
    pub unit: String,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cell {
    /// A word or a name.
    Text(String),
    /// A number that was counted or measured once.
    Number(#[serde(deserialize_with = "null_as_nan")] f64),
    /// A measured number with its 95 % confidence interval.
    Estimate(Estimate),
    /// There is no value; the text tells why ("not installed").
    Absent(String),
}

/// A plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// What the plot shows, one sentence.
    pub caption: String,
    /// Lines over a numeric axis, or groups of bars over names.
    pub kind: PlotKind,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines, or the bars of one colour.
    pub series: Vec<Series>,
}

/// The kind of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlotKind {
    /// Points joined by lines.
    Lines,
    /// Groups of bars.
    Bars,
}

/// An axis of a plot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// What the axis shows.
    pub label: String,
    /// The unit; empty if there is none.
    pub unit: String,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
    /// The names of the positions 0, 1, 2 …; empty for a numeric axis.
    pub names: Vec<String>,
}

/// A line of a plot, or its bars of one colour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points.
    pub points: Vec<Point>,
}

/// A point of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The position on the horizontal axis.
    #[serde(deserialize_with = "null_as_nan")]
    pub x: f64,
    /// The value with its error bar.
    pub y: Estimate,
}

/// A measured quantity with its samples, by which two reports are compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The circumstances, each as a name and a value: `[("digests", "both"), ("block", "4K")]`. Together with
    /// `quantity` they are unique in a report.
    pub circumstances: Vec<(String, String)>,
    /// What was measured: `throughput`.
    pub quantity: String,
    /// The unit: `MB/s`.
    pub unit: String,
    /// Which values are better.
    pub better: Better,
    /// One sample for each round, in the order of the rounds.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub samples: Vec<f64>,
    /// How finely the samples were measured, if not as finely as [`Metric::resolution`] assumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Resolution>,
}

impl Metric {
    /// Returns how finely the samples were measured. Unless the metric says so, latencies are percentiles of
    /// a [`Histogram`], in earlier reports too, and everything else is exact.
    pub fn resolution(&self) -> Resolution {
        let is_latency = self.quantity.starts_with("latency");
        let usual = if is_latency { Histogram::RESOLUTION } else { Resolution::EXACT };
        self.resolution.unwrap_or(usual)
    }

    /// Returns the samples with their resolution.
    pub fn measured(&self) -> Samples<'_> {
        Samples::new(&self.samples, self.resolution())
    }
}

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Higher ones.
    Higher,
    /// Lower ones.
    Lower,
    /// None: the metric describes the circumstances.
    Neither,
}
