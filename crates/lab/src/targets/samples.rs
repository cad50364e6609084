//! What was measured: the samples of each target with each workload.

use std::time::Duration;

use crate::bed::to_f64;
use crate::bench::BenchReport;
use crate::plan::{Digests, size_text};
use crate::report::negotiated::Sessions;
use crate::report::{Better, Metric};

use super::conformance::Score;
use super::plan::Workload;
use super::rival::{OURS, Rival};

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
    /// The processor time of the target for each command in microseconds; a kernel target has none.
    pub(super) target_cpu: Option<f64>,
    /// The share of one processor that the client used.
    pub(super) client_busy: f64,
}

/// What the last round counted, for each command.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// System calls of the target, or why they were not counted.
    pub(super) system_calls: Option<Result<f64, String>>,
    /// Voluntary context switches of the target's threads.
    pub(super) switches: Option<f64>,
    /// The largest resident memory, in bytes.
    pub(super) resident: Option<f64>,
}

/// What idle sessions cost a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct IdleSessions {
    /// The time from the start of the process to the first connection that it accepts, in seconds.
    pub(super) listens_after: f64,
    /// The resident memory without sessions, in bytes.
    pub(super) before: f64,
    /// For each number of sessions of the plan; the first error ends the list.
    pub(super) costs: Vec<Result<IdleCost, String>>,
    /// The resident memory after all have logged out, in bytes.
    pub(super) after: Option<f64>,
}

/// What a number of idle sessions costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct IdleCost {
    /// The time of all logins, one after the other, in seconds.
    pub(super) logins: f64,
    /// The resident memory with the sessions, in bytes.
    pub(super) resident: f64,
}

/// What became of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It ran until the end.
    Complete,
    /// It is not on this machine; the text tells what is missing.
    Absent(String),
    /// It failed; the text tells when and why.
    Failed(String),
}

/// A target and its samples.
#[derive(Clone, Debug)]
pub(super) struct TargetSamples {
    pub(super) rival: Rival,
    pub(super) version: Option<String>,
    pub(super) fate: Fate,
    /// The resident memory before the first load, in bytes.
    pub(super) idle_resident: Option<f64>,
    /// For each workload of the plan, one sample for each round.
    pub(super) samples: Vec<Vec<Sample>>,
    /// For each workload of the plan.
    pub(super) counts: Vec<Option<Counts>>,
    pub(super) conformance: Option<Result<Score, String>>,
    /// The digests with which the target accepts no login, and why.
    pub(super) refused: Vec<(Digests, String)>,
    /// None if the plan names no idle sessions, or the run ended before.
    pub(super) idle_sessions: Option<Result<IdleSessions, String>>,
}

/// All that a run measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) targets: Vec<TargetSamples>,
    pub(super) workloads: Vec<Workload>,
    /// The numbers of idle sessions of the plan.
    pub(super) idle_counts: Vec<u32>,
    /// The rates of a bare echo of the block length and depth of each workload, one for each round.
    pub(super) echoes: Vec<Vec<f64>>,
    /// What the sessions with each target agreed on.
    pub(super) sessions: Sessions,
    /// The I/O engine of the client.
    pub(super) engine: String,
    /// Whether the disks are in tmpfs.
    pub(super) in_memory: bool,
}

impl Sample {
    /// Reads a sample from a benchmark with commands of `block` bytes. `target` is the processor time that
    /// the target used for all of its commands, warm-up included. Returns none if no command ended.
    pub(super) fn of(report: &BenchReport, block: u32, target: Option<Duration>) -> Option<Self> {
        let total = report.total();
        if total.count == 0 || report.bytes_moved <= 0.0 || report.seconds <= 0.0 {
            return None;
        }
        let us = |span: Duration| span.as_secs_f64() * 1e6;
        Some(Self {
            throughput: report.bytes_moved / report.seconds / 1e6,
            iops: report.bytes_moved / f64::from(block) / report.seconds,
            p50: us(total.latency.percentile(5000)),
            p99: total.latency.tail_percentile(9900).map(us),
            p999: total.latency.tail_percentile(9990).map(us),
            target_cpu: target.map(|spent| spent.as_secs_f64() * 1e6 / to_f64(report.commands.max(1))),
            client_busy: report.cpu_s / report.seconds,
        })
    }
}

impl TargetSamples {
    pub(super) fn new(rival: Rival, workloads: usize) -> Self {
        Self {
            rival,
            version: None,
            fate: Fate::Complete,
            idle_resident: None,
            samples: vec![Vec::new(); workloads],
            counts: vec![None; workloads],
            conformance: None,
            refused: Vec::new(),
            idle_sessions: None,
        }
    }

    /// Returns why the target cannot be measured with these digests.
    pub(super) fn refusal(&self, digests: Digests) -> Option<&str> {
        self.refused.iter().find(|(refused, _)| *refused == digests).map(|(_, why)| why.as_str())
    }

    pub(super) fn title(&self) -> &str {
        &self.rival.file.title
    }

    pub(super) fn is_ours(&self) -> bool {
        self.rival.name == OURS
    }

    /// Returns whether there is any sample.
    pub(super) fn is_measured(&self) -> bool {
        self.samples.iter().any(|samples| !samples.is_empty())
    }

    /// Returns the values of one quantity with a workload, in the order of the rounds.
    pub(super) fn values(&self, workload: usize, of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        self.samples.get(workload).map_or_else(Vec::new, |list| list.iter().filter_map(of).collect())
    }

    /// Returns what the last round counted with a workload.
    pub(super) fn counts(&self, workload: usize) -> Option<&Counts> {
        self.counts.get(workload)?.as_ref()
    }

    /// Returns the largest resident memory under load.
    pub(super) fn resident_under_load(&self) -> Option<f64> {
        self.counts.iter().flatten().filter_map(|counts| counts.resident).reduce(f64::max)
    }

    /// Returns what each number of idle sessions costs: the number, and KiB of memory for each session.
    pub(super) fn memory_of_sessions(&self, counts: &[u32]) -> Vec<(u32, IdleCost, f64)> {
        let Some(Ok(idle)) = &self.idle_sessions else { return Vec::new() };
        let costs = counts.iter().zip(idle.costs.iter().flatten());
        costs
            .map(|(count, cost)| (*count, *cost, (cost.resident - idle.before) / 1024.0 / f64::from(*count)))
            .collect()
    }

    fn idle_metrics(&self, counts: &[u32]) -> Vec<Metric> {
        let metric = |count: u32, quantity: &str, unit: &str, value: f64| Metric {
            circumstances: vec![
                ("target".to_owned(), self.rival.name.clone()),
                ("idle sessions".to_owned(), count.to_string()),
            ],
            quantity: quantity.to_owned(),
            unit: unit.to_owned(),
            better: Better::Lower,
            samples: vec![value],
            resolution: None,
        };
        let costs = self.memory_of_sessions(counts).into_iter();
        costs
            .flat_map(|(count, cost, memory)| {
                [
                    metric(count, "resident memory for each session", "KiB", memory),
                    metric(count, "time of all logins", "ms", cost.logins * 1e3),
                ]
            })
            .collect()
    }

    fn metrics(&self, workloads: &[Workload]) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for (at, workload) in workloads.iter().enumerate() {
            let rounds = self.samples.get(at).map_or(0, Vec::len);
            let mut push = |quantity: &str, unit: &str, better, samples: Vec<f64>| {
                metrics.push(Metric {
                    circumstances: circumstances(self.rival.name.as_str(), workload),
                    quantity: quantity.to_owned(),
                    unit: unit.to_owned(),
                    better,
                    samples,
                    resolution: None,
                });
            };
            for (quantity, unit, better, of) in QUANTITIES {
                let values = self.values(at, of);
                if !values.is_empty() && values.len() == rounds {
                    push(quantity, unit, better, values);
                }
            }
            let Some(counts) = self.counts(at) else { continue };
            let calls = counts.system_calls.as_ref().and_then(|calls| calls.as_ref().ok()).copied();
            for (quantity, unit, value) in [
                ("system calls of the target for each command", "1", calls),
                ("voluntary context switches of the target for each command", "1", counts.switches),
                ("resident memory of the target", "MiB", counts.resident.map(mebibytes)),
            ] {
                if let Some(value) = value {
                    push(quantity, unit, Better::Lower, vec![value]);
                }
            }
        }
        metrics
    }
}

/// A quantity of samples: its name, its unit, which values are better, and its value in a sample.
type Quantity = (&'static str, &'static str, Better, fn(&Sample) -> Option<f64>);

const QUANTITIES: [Quantity; 7] = [
    ("throughput", "MB/s", Better::Higher, |sample| Some(sample.throughput)),
    ("commands", "1/s", Better::Higher, |sample| Some(sample.iops)),
    ("latency, median", "µs", Better::Lower, |sample| Some(sample.p50)),
    ("latency, 99th percentile", "µs", Better::Lower, |sample| sample.p99),
    ("latency, 99.9th percentile", "µs", Better::Lower, |sample| sample.p999),
    ("processor time of the target for each command", "µs", Better::Lower, |sample| sample.target_cpu),
    ("processors that the client uses", "1", Better::Neither, |sample| Some(sample.client_busy)),
];

fn circumstances(target: &str, workload: &Workload) -> Vec<(String, String)> {
    let access = if workload.random { "random" } else { "sequential" };
    let pairs = [
        ("target", target.to_owned()),
        ("access", access.to_owned()),
        ("mix", workload.mix.to_string()),
        ("block", size_text(workload.block)),
        ("depth", workload.depth.to_string()),
    ];
    let digests = ("digests", workload.digests.name().to_owned());
    // Reports of workloads without digests compare with those that had no such choice.
    let digests = Some(digests).filter(|_| workload.digests != Digests::None);
    pairs.into_iter().chain(digests).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Converts bytes to MiB.
pub(super) fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

impl Measured {
    /// Returns our target, if it was measured.
    pub(super) fn ours(&self) -> Option<&TargetSamples> {
        self.targets.iter().find(|target| target.is_ours() && target.is_measured())
    }

    /// Returns the targets with samples.
    pub(super) fn measured(&self) -> impl Iterator<Item = &TargetSamples> + Clone {
        self.targets.iter().filter(|target| target.is_measured())
    }

    /// Returns everything as metrics. A quantity that some rounds lack is left out.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<Metric> =
            self.targets.iter().flat_map(|target| target.metrics(&self.workloads)).collect();
        metrics.extend(self.targets.iter().flat_map(|target| target.idle_metrics(&self.idle_counts)));
        let echoes = self.workloads.iter().zip(&self.echoes).filter(|(_, rates)| !rates.is_empty());
        for (workload, rates) in echoes {
            metrics.push(Metric {
                circumstances: circumstances("bare echo", workload),
                quantity: "commands".to_owned(),
                unit: "1/s".to_owned(),
                better: Better::Neither,
                samples: rates.clone(),
                resolution: None,
            });
        }
        metrics
    }
}
