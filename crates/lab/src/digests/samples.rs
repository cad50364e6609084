//! What was measured: the samples of each workload with each setting of the digests.

use std::time::Duration;

use crate::bed::{Calibration, Echo, LinkPlan, to_f64};
use crate::bench::BenchReport;
use crate::report::negotiated::Sessions;
use crate::report::{Better, Metric};

use super::plan::{DigestsPlan, LOAD_FULL};
use crate::plan::{Digests, Link, Mix, size_text};

/// A workload on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) link: Link,
    /// The MTU of the bed; the path to a URL has its own.
    pub(super) mtu: Option<u32>,
    pub(super) depth: u32,
    pub(super) block: u32,
    pub(super) mix: Mix,
    /// The offered load in percent.
    pub(super) load: u32,
}

/// The result of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// MB/s, a million bytes.
    pub(super) throughput: f64,
    /// Commands per second.
    pub(super) iops: f64,
    /// Latencies in microseconds; percentiles near the end need many commands.
    pub(super) p50: f64,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    /// Processor seconds per GiB.
    pub(super) initiator_cpu: f64,
    pub(super) target_cpu: Option<f64>,
    /// What a load below 100 % offered.
    pub(super) offered: Option<Offered>,
}

/// What a paced load offered in one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Offered {
    /// The commands that were due, in MB/s.
    pub(super) throughput: f64,
    /// The percentage of them that was started before the end of the measurement.
    pub(super) started_percent: f64,
}

/// A workload and its samples.
#[derive(Clone, Debug)]
pub(super) struct CellSamples {
    pub(super) cell: Cell,
    /// For each setting, one sample for each complete round.
    pub(super) settings: Vec<(Digests, Vec<Sample>)>,
    /// The bare echo of the same block length and depth.
    pub(super) echo: Option<Echo>,
}

/// All that a run measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) cells: Vec<CellSamples>,
    /// The settings that the target does not offer, and what it answered.
    pub(super) not_offered: Vec<(Digests, String)>,
    pub(super) calibrations: Vec<(LinkPlan, Calibration)>,
    /// What the sessions with each setting agreed on.
    pub(super) sessions: Sessions,
    /// The I/O engine of the initiator.
    pub(super) engine: String,
    /// Connections that were lost and established again.
    pub(super) connections_lost: u64,
}

impl Cell {
    /// Returns the workloads of a plan. Those on one link with one MTU follow each other, and loads below
    /// 100 % follow the load that they are a part of.
    pub(super) fn all(plan: &DigestsPlan) -> Vec<Self> {
        let mut cells = Vec::new();
        for link in &plan.link {
            let real: Vec<_> = plan.mtu.iter().copied().map(Some).collect();
            let mtus = if *link == Link::AsItIs { vec![None] } else { real };
            for mtu in mtus {
                for depth in &plan.depth {
                    for block in &plan.block {
                        for mix in &plan.mix {
                            let (link, depth, block, mix) = (*link, *depth, *block, *mix);
                            let cell = Self { link, mtu, depth, block, mix, load: LOAD_FULL };
                            cells.push(cell);
                            let lower = plan.lower_loads().filter(|_| depth == plan.paced_depth());
                            cells.extend(lower.map(|load| Self { load, ..cell }));
                        }
                    }
                }
            }
        }
        cells
    }

    /// Returns the link of a bed; a path to a URL has none.
    pub(super) fn link_plan(&self) -> Option<LinkPlan> {
        let mtu = self.mtu.filter(|_| self.link != Link::AsItIs)?;
        Some(self.link.with_mtu(mtu))
    }

    /// Returns the workload that a load below 100 % is a part of.
    pub(super) const fn at_full_load(&self) -> Self {
        Self { load: LOAD_FULL, ..*self }
    }

    pub(super) const fn is_full_load(&self) -> bool {
        self.load == LOAD_FULL
    }

    /// Returns the workload without the path: `4K, depth 1`.
    pub(super) fn workload(&self) -> String {
        let workload = format!("{}, {}, depth {}", size_text(self.block), self.mix, self.depth);
        if self.is_full_load() { workload } else { format!("{workload}, load {} %", self.load) }
    }

    /// Returns the path: `1 Gbit/s, MTU 1500`.
    pub(super) fn path(&self) -> String {
        let link = self.link.name();
        self.mtu.map_or_else(|| link.clone(), |mtu| format!("{link}, MTU {mtu}"))
    }

    fn circumstances(&self, digests: &str) -> Vec<(String, String)> {
        let mtu = self.mtu.map_or_else(|| Link::AsItIs.to_string(), |mtu| mtu.to_string());
        let pairs = [
            ("link", self.link.to_string()),
            ("mtu", mtu),
            ("depth", self.depth.to_string()),
            ("block", size_text(self.block)),
            ("mix", self.mix.to_string()),
            ("load", format!("{} %", self.load)),
            ("digests", digests.to_owned()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

impl Sample {
    /// Reads a sample from a benchmark. `target` is the processor time that the target used for all of its
    /// commands, warm-up included. Returns none if no command ended.
    pub(super) fn of(report: &BenchReport, block: u32, target: Option<Duration>) -> Option<Self> {
        let total = report.total();
        if total.count == 0 || report.bytes_moved <= 0.0 || report.seconds <= 0.0 {
            return None;
        }
        let us = |span: Duration| span.as_secs_f64() * 1e6;
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        Some(Self {
            throughput: report.bytes_moved / report.seconds / 1e6,
            iops: report.bytes_moved / f64::from(block) / report.seconds,
            p50: us(total.latency.percentile(5000)),
            p99: total.latency.tail_percentile(9900).map(us),
            p999: total.latency.tail_percentile(9990).map(us),
            initiator_cpu: report.cpu_s / gib(report.bytes_moved),
            target_cpu: target
                .map(|spent| spent.as_secs_f64() / gib(to_f64(report.commands) * f64::from(block))),
            offered: Offered::of(report, block),
        })
    }
}

impl Offered {
    /// Reads what a paced load offered; none if nothing was due, as in a load that is not paced.
    fn of(report: &BenchReport, block: u32) -> Option<Self> {
        let due = to_f64(report.due);
        (report.due > 0).then(|| Self {
            throughput: due * f64::from(block) / report.seconds / 1e6,
            started_percent: (1.0 - to_f64(report.waiting) / due).max(0.0) * 100.0,
        })
    }
}

/// A quantity of samples: its name, its unit, which values are better, and its value in a sample.
type Quantity = (&'static str, &'static str, Better, fn(&Sample) -> Option<f64>);

const QUANTITIES: [Quantity; 8] = [
    ("throughput", "MB/s", Better::Higher, |sample| Some(sample.throughput)),
    ("commands", "1/s", Better::Higher, |sample| Some(sample.iops)),
    ("latency, median", "µs", Better::Lower, |sample| Some(sample.p50)),
    ("latency, 99th percentile", "µs", Better::Lower, |sample| sample.p99),
    ("latency, 99.9th percentile", "µs", Better::Lower, |sample| sample.p999),
    ("processor time of the initiator", "s/GiB", Better::Lower, |sample| Some(sample.initiator_cpu)),
    ("processor time of the target", "s/GiB", Better::Lower, |sample| sample.target_cpu),
    ("offered load", "MB/s", Better::Neither, |sample| Some(sample.offered?.throughput)),
];

impl CellSamples {
    pub(super) fn new(cell: Cell, offered: &[Digests]) -> Self {
        Self { cell, settings: offered.iter().map(|digests| (*digests, Vec::new())).collect(), echo: None }
    }

    /// Returns the values of one quantity with one setting, in the order of the rounds.
    pub(super) fn values(&self, digests: Digests, of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        let found = self.settings.iter().find(|(setting, _)| *setting == digests);
        found.map_or_else(Vec::new, |(_, samples)| samples.iter().filter_map(of).collect())
    }

    /// Returns the number of complete rounds.
    pub(super) fn rounds(&self) -> usize {
        self.settings.iter().map(|(_, samples)| samples.len()).min().unwrap_or(0)
    }
}

impl Measured {
    /// Returns the workloads at a load of 100 %.
    pub(super) fn full_load(&self) -> impl Iterator<Item = &CellSamples> + Clone {
        self.cells.iter().filter(|samples| samples.cell.is_full_load())
    }

    /// Returns the workloads at loads below 100 %.
    pub(super) fn lower_loads(&self) -> impl Iterator<Item = &CellSamples> + Clone {
        self.cells.iter().filter(|samples| !samples.cell.is_full_load())
    }

    /// Returns the commands per second of a workload that a load below 100 % offers in a round: its share of
    /// what sessions without digests, or with the fewest, reached at 100 %.
    pub(super) fn offered_rate(&self, cell: &Cell, round: usize) -> Option<f64> {
        let full = self.full_load().find(|samples| samples.cell == cell.at_full_load())?;
        let (_, samples) = full.settings.iter().min_by_key(|(digests, _)| *digests)?;
        samples.get(round).map(|sample| sample.iops * f64::from(cell.load) / f64::from(LOAD_FULL))
    }

    /// Returns everything as metrics. A quantity that some rounds lack is left out.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for cell in &self.cells {
            for (digests, samples) in cell.settings.iter().filter(|(_, samples)| !samples.is_empty()) {
                for (quantity, unit, better, of) in QUANTITIES {
                    let values: Vec<f64> = samples.iter().filter_map(of).collect();
                    if values.len() == samples.len() {
                        metrics.push(Metric {
                            circumstances: cell.cell.circumstances(digests.name()),
                            quantity: quantity.to_owned(),
                            unit: unit.to_owned(),
                            better,
                            samples: values,
                            resolution: None,
                        });
                    }
                }
            }
            if let Some(echo) = cell.echo {
                let rate = echo.per_second * f64::from(cell.cell.block) / 1e6;
                metrics.push(Metric {
                    circumstances: cell.cell.circumstances("bare echo"),
                    quantity: "throughput".to_owned(),
                    unit: "MB/s".to_owned(),
                    better: Better::Neither,
                    samples: vec![rate],
                    resolution: None,
                });
            }
        }
        metrics
    }
}
