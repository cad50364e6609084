//! The metrics: everything that the state machines and drivers count, under names that follow OpenMetrics.
//!
//! [`Snapshot`] has what one message brings from each reactor. [`luns`], [`transports`] and [`process`] give
//! it names, and [`exposition`] writes the text.

pub(super) mod exposition;
mod luns;
mod process;
#[cfg(test)]
mod tests;
mod transports;

use device::stats::Latencies;

use super::reactor_shard::counts::Snapshot;

/// A metric: a name, and a sample for each set of label values.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// The name without unit and suffix.
    name: &'static str,
    unit: Option<Unit>,
    kind: Kind,
    labels: &'static [&'static str],
    doc: &'static str,
    samples: Vec<Sample>,
}

/// The base units of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Seconds,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// The value of a metric for one set of label values, in the order of the labels.
#[derive(Clone, Debug)]
struct Sample {
    labels: Vec<String>,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Count(u64),
    Seconds(f64),
    Latencies(Latencies),
}

impl Family {
    const fn counter(name: &'static str, labels: &'static [&'static str], doc: &'static str) -> Self {
        Self { name, unit: None, kind: Kind::Counter, labels, doc, samples: Vec::new() }
    }

    const fn gauge(name: &'static str, labels: &'static [&'static str], doc: &'static str) -> Self {
        Self { name, unit: None, kind: Kind::Gauge, labels, doc, samples: Vec::new() }
    }

    const fn info(name: &'static str, labels: &'static [&'static str], doc: &'static str) -> Self {
        Self { name, unit: None, kind: Kind::Info, labels, doc, samples: Vec::new() }
    }

    const fn histogram(name: &'static str, labels: &'static [&'static str], doc: &'static str) -> Self {
        Self { name, unit: Some(Unit::Seconds), kind: Kind::Histogram, labels, doc, samples: Vec::new() }
    }

    const fn in_bytes(mut self) -> Self {
        self.unit = Some(Unit::Bytes);
        self
    }

    const fn in_seconds(mut self) -> Self {
        self.unit = Some(Unit::Seconds);
        self
    }

    /// Adds the value of one set of label values.
    fn with<const N: usize>(mut self, labels: [&str; N], count: u64) -> Self {
        self.push(labels.iter().map(|label| (*label).to_owned()).collect(), Value::Count(count));
        self
    }

    fn push(&mut self, labels: Vec<String>, value: Value) {
        self.samples.push(Sample { labels, value });
    }

    #[cfg(test)]
    /// Returns the name as in the text, without the suffixes of a histogram.
    fn full_name(&self) -> String {
        let unit = match self.unit {
            Some(Unit::Bytes) => "_bytes",
            Some(Unit::Seconds) => "_seconds",
            None => "",
        };
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{unit}{suffix}", self.name)
    }
}

/// Returns every metric with its samples.
fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut families = process::families(snapshot);
    families.extend(transports::families(snapshot));
    families.extend(luns::families(snapshot));
    families.extend(luns::file_systems(snapshot));
    families
}
