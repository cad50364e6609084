//! What was measured: the samples of each workload with each protection.

use crate::bed::{Calibration, LinkPlan};
use crate::bench::Histogram;
use crate::plan::{Link, size_text};
use crate::report::negotiated::Sessions;
use crate::report::{Better, Metric, Resolution};
use crate::target_process::SplitTime;

use super::plan::{Access, SecurityPlan};
use super::protection::Protection;

/// A workload on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) link: Link,
    pub(super) mtu: u32,
    pub(super) access: Access,
    pub(super) block: u32,
    pub(super) depth: u32,
}

/// The result of one measurement. A GiB is one of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// MB/s, a million bytes.
    pub(super) throughput: f64,
    /// Latencies in microseconds; none if too few commands ended in the measurement.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    /// Processor seconds of both ends and of the programs beside them, per GiB.
    pub(super) user: f64,
    pub(super) system: f64,
    /// How finely these two parts are known, per GiB.
    pub(super) part_width: f64,
}

/// What a measurement counted.
#[derive(Debug)]
pub(super) struct Counted<'a> {
    /// The bytes in the measurement, and its duration in seconds.
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    /// How many commands ended in the measurement, and their latencies.
    pub(super) commands: u64,
    pub(super) latency: &'a Histogram,
    /// The bytes of all commands, warm-up included, and the processor time that they took.
    pub(super) bytes_in_all: f64,
    pub(super) spent: SplitTime,
}

/// A workload and its samples.
#[derive(Clone, Debug)]
pub(super) struct CellSamples {
    pub(super) cell: Cell,
    /// For each protection, one sample for each complete round.
    pub(super) settings: Vec<(Protection, Vec<Sample>)>,
}

/// A protection that is not measured, and why.
#[derive(Clone, Debug)]
pub(super) struct AbsentRow {
    pub(super) protection: Protection,
    pub(super) why: String,
}

/// All that a run measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) cells: Vec<CellSamples>,
    pub(super) absent: Vec<AbsentRow>,
    pub(super) calibrations: Vec<(LinkPlan, Calibration)>,
    /// What carries the packets of IPsec; empty if nothing does.
    pub(super) esp: String,
    /// What the iSCSI sessions through each protection agreed on.
    pub(super) sessions: Sessions,
    /// The I/O engine of the initiator.
    pub(super) engine: String,
    /// Connections that were lost and established again.
    pub(super) connections_lost: u64,
}

impl Cell {
    /// Returns the workloads of a plan. Those on one link with one MTU follow each other.
    pub(super) fn all(plan: &SecurityPlan) -> Vec<Self> {
        let mut cells = Vec::new();
        for link in &plan.link {
            for mtu in &plan.mtu {
                for access in &plan.access {
                    for block in &plan.block {
                        let cell =
                            |depth| Self { link: *link, mtu: *mtu, access: *access, block: *block, depth };
                        cells.extend(plan.depths(*block).into_iter().map(cell));
                    }
                }
            }
        }
        cells
    }

    pub(super) const fn link_plan(&self) -> LinkPlan {
        self.link.with_mtu(self.mtu)
    }

    /// Returns the name of the path in tables and captions.
    pub(super) fn path(&self) -> String {
        format!("{}, MTU {}", self.link.name(), self.mtu)
    }

    /// Returns the workload without its path: `read 4K, depth 1`.
    pub(super) fn workload(&self) -> String {
        format!("{} {}, depth {}", self.access, size_text(self.block), self.depth)
    }
}

impl Sample {
    /// Returns none if nothing moved.
    pub(super) fn of(counted: &Counted<'_>) -> Option<Self> {
        let gib = counted.bytes_in_all / f64::from(1 << 30);
        if gib <= 0.0 || counted.bytes <= 0.0 || counted.seconds <= 0.0 {
            return None;
        }
        let us = |span: std::time::Duration| span.as_secs_f64() * 1e6;
        let (is_any, latency) = (counted.commands > 0, counted.latency);
        Some(Self {
            throughput: counted.bytes / counted.seconds / 1e6,
            p50: is_any.then(|| us(latency.percentile(5000))),
            p99: latency.tail_percentile(9900).filter(|_| is_any).map(us),
            user: counted.spent.user / gib,
            system: counted.spent.system / gib,
            part_width: 2.0 * counted.spent.unsure / gib,
        })
    }

    /// Returns all processor seconds per GiB.
    pub(super) const fn processor(&self) -> f64 {
        self.user + self.system
    }
}

/// A quantity of samples: its name, its unit, which values are better, and its value in a sample.
type Quantity = (&'static str, &'static str, Better, fn(&Sample) -> Option<f64>);

const QUANTITIES: [Quantity; 6] = [
    ("throughput", "MB/s", Better::Higher, |sample| Some(sample.throughput)),
    ("latency, median", "µs", Better::Lower, |sample| sample.p50),
    ("latency, 99th percentile", "µs", Better::Lower, |sample| sample.p99),
    ("processor time", "s/GiB", Better::Lower, |sample| Some(sample.processor())),
    ("processor time, user", "s/GiB", Better::Lower, |sample| Some(sample.user)),
    ("processor time, system", "s/GiB", Better::Lower, |sample| Some(sample.system)),
];

impl CellSamples {
    /// Prepares the samples of a workload with each protection that can be measured with it.
    pub(super) fn new(cell: Cell, plan: &SecurityPlan, absent: &[AbsentRow]) -> Self {
        let is_absent = |protection: Protection| absent.iter().any(|row| row.protection == protection);
        let is_possible = |protection: Protection| cell.access.is_iscsi() || !protection.is_of_iscsi();
        let is_present = |protection: Protection| is_possible(protection) && !is_absent(protection);
        let present = plan.protection.iter().filter(|protection| is_present(**protection));
        Self { cell, settings: present.map(|protection| (*protection, Vec::new())).collect() }
    }

    /// Returns the values of one quantity with one protection, in the order of the rounds.
    pub(super) fn values(&self, protection: Protection, of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        let found = self.settings.iter().find(|(setting, _)| *setting == protection);
        found.map_or_else(Vec::new, |(_, samples)| samples.iter().filter_map(of).collect())
    }

    /// Returns the number of complete rounds.
    pub(super) fn rounds(&self) -> usize {
        self.settings.iter().map(|(_, samples)| samples.len()).min().unwrap_or(0)
    }
}

impl Measured {
    /// Returns everything as metrics. A quantity that some rounds lack is left out.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for CellSamples { cell, settings } in &self.cells {
            for (protection, samples) in settings.iter().filter(|(_, samples)| !samples.is_empty()) {
                let circumstances = [
                    ("link", cell.link.to_string()),
                    ("mtu", cell.mtu.to_string()),
                    ("access", cell.access.to_string()),
                    ("block", size_text(cell.block)),
                    ("depth", cell.depth.to_string()),
                    ("protection", protection.name().to_owned()),
                ];
                // The kernel tells the user and the system part of other processes in ticks.
                let absolute = samples.iter().map(|sample| sample.part_width).fold(0.0, f64::max);
                let parts = Resolution { absolute, ..Resolution::EXACT };
                for (quantity, unit, better, of) in QUANTITIES {
                    let values: Vec<f64> = samples.iter().filter_map(of).collect();
                    if values.len() == samples.len() {
                        metrics.push(Metric {
                            circumstances: circumstances
                                .clone()
                                .map(|(name, value)| (name.to_owned(), value))
                                .into(),
                            quantity: quantity.to_owned(),
                            unit: unit.to_owned(),
                            better,
                            samples: values,
                            resolution: quantity.contains("time, ").then_some(parts),
                        });
                    }
                }
            }
        }
        metrics
    }
}
