//! The text of the metrics, in the format of OpenMetrics 1.0 or in that of Prometheus before it.

use std::fmt;
use std::fmt::Write;

use device::stats::LATENCY_BOUNDS_US;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as TextUnit};

use super::{Family, Kind, Unit, Value, families};
use crate::serve::reactor_shard::counts::Snapshot;

/// The content type of OpenMetrics 1.0.
pub(in crate::serve) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The content type of the text format of Prometheus.
pub(in crate::serve) const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics in the format of OpenMetrics.
pub(in crate::serve) fn open_metrics(snapshot: &Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families(snapshot))));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.iter().try_for_each(|family| write_family(family, &mut encoder))
    }
}

fn write_family(family: &Family, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
        Kind::Info => MetricType::Info,
    };
    let unit = family.unit.map(|unit| match unit {
        Unit::Bytes => TextUnit::Bytes,
        Unit::Seconds => TextUnit::Seconds,
    });
    let mut metric = encoder.encode_descriptor(family.name, &family.help(), unit.as_ref(), kind)?;
    for sample in &family.samples {
        let labels: Vec<(&str, &str)> =
            family.labels.iter().copied().zip(sample.labels.iter().map(String::as_str)).collect();
        if family.kind == Kind::Info {
            metric.encode_info(&labels)?;
            continue;
        }
        // Without labels, a family would write empty braces.
        if labels.is_empty() {
            write_sample(&sample.value, family.kind, &mut metric)?;
        } else {
            write_sample(&sample.value, family.kind, &mut metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn write_sample(value: &Value, kind: Kind, metric: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match (value, kind) {
        (Value::Count(count), Kind::Counter) => metric.encode_counter::<NoLabelSet, _, u64>(count, None),
        (Value::Count(count), _) => metric.encode_gauge(count),
        (Value::Seconds(seconds), Kind::Counter) => {
            metric.encode_counter::<NoLabelSet, _, u64>(seconds, None)
        }
        (Value::Seconds(seconds), _) => metric.encode_gauge(seconds),
        (Value::Latencies(latencies), _) => {
            let bounds = LATENCY_BOUNDS_US.iter().map(|bound| seconds_of(*bound, 1e6));
            let buckets: Vec<(f64, u64)> = bounds.chain([f64::INFINITY]).zip(latencies.buckets).collect();
            let sum = seconds_of(latencies.sum_ns, 1e9);
            metric.encode_histogram::<NoLabelSet>(sum, latencies.commands(), &buckets, None)
        }
    }
}

/// Converts a whole number of parts of a second, `parts` of which make one.
#[expect(clippy::cast_precision_loss, reason = "a float has 53 bits: 104 days in nanoseconds are exact")]
pub(super) fn seconds_of(count: u64, parts: f64) -> f64 {
    count as f64 / parts
}

impl Family {
    /// Returns the documentation as one line of plain text.
    pub(super) fn help(&self) -> String {
        self.doc.replace(['`', '\\'], "")
    }
}

/// Converts the text of OpenMetrics to the format of Prometheus before it, which knows no units and no info
/// metrics, and in which the name of a counter has its suffix everywhere.
pub(in crate::serve) fn plain_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["#", "EOF"] | ["#", "UNIT", ..] => {}
            ["#", "HELP", name, help @ ..] => {
                let kind = lines.peek().and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                // Writing to a string does not fail.
                let _ = writeln!(text, "# HELP {name}{suffix} {}", help.join(" "));
                let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
                lines.next();
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}
