//! A load generator for one or more logical units. It measures rates, a histogram of latencies, and the
//! processor time of the initiator.
//!
//! Each session keeps a fixed number of commands (the queue depth) under way; when one ends, the session
//! starts the next. A paced load starts commands at random times of a given rate instead, and the queue depth
//! is the most that are under way. A reactor handles all events of one wake-up before it sends, so that the
//! load costs about one system call for many commands.
//!
//! Latency is measured from the moment a command is handed to its session to the moment the reactor learns of
//! its end. In a paced load it is measured from the moment the command was due, so that a slow command also
//! counts in the latencies of those that wait for it (no coordinated omission).

mod histogram;
mod negotiated;
mod pace;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::units::Lba;
use drivers::config::Config;
use initiator::Geometry;
use scsi::lun::Lun;
use store::encrypt::shared_volume::VolumeCipher;

pub use histogram::Histogram;
pub use negotiated::Negotiated;

/// The plan of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// One job for each session.
    pub jobs: Vec<Job>,
    /// The percentage of commands that are reads.
    pub read_percent: u8,
    /// Whether addresses are random. Otherwise each session accesses the range sequentially, and the sessions
    /// start at different places.
    pub random: bool,
    /// Bytes of each command, a multiple of every unit's block size.
    pub block_bytes: u32,
    /// The queue depth: commands under way in each session.
    pub depth: usize,
    /// The rate of a paced load, in commands per second over all sessions. Without one, each session always
    /// keeps `depth` commands under way.
    pub rate: Option<f64>,
    /// The start and end of the range to use in each unit, in bytes; an end of `u64::MAX` means the end of
    /// the unit.
    pub range: (u64, u64),
    /// The duration of the measurement.
    pub time: Duration,
    /// The duration of the warm-up, during which the load runs without being measured.
    pub warmup: Duration,
    /// The number of commands for each session to execute. It replaces `time` and `warmup`: the measurement
    /// lasts from the first command to the end of the last.
    pub count: Option<u64>,
    /// The seed of addresses and data.
    pub seed: u64,
    /// The number of reactors that share the sessions, each on its own thread.
    pub threads: usize,
    /// The configuration of the reactors.
    pub reactor: Config,
}

/// One session and the unit it loads.
#[derive(Clone, Debug)]
pub struct Job {
    /// How the session logs in.
    pub session: initiator::driver::ProtocolPlan,
    /// The LUN of the unit.
    pub lun: Lun,
    /// The unit's block size, length and longest transfer.
    pub geometry: Geometry,
    /// The name of the unit in messages.
    pub name: String,
    /// How long a command may go without a response, if not the default of the initiator library; zero means
    /// no limit.
    pub command_timeout: Option<Duration>,
    /// The cipher of a LUKS2 image on the unit. The load then uses the data of the image, and encrypts and
    /// decrypts it here.
    pub cipher: Option<Arc<VolumeCipher>>,
}

impl Job {
    /// Returns where the bytes begin that the load uses.
    fn offset(&self) -> u64 {
        self.cipher.as_ref().map_or(0, |cipher| cipher.offset())
    }

    /// Returns the offset of a block on the unit, in bytes.
    const fn offset_of(&self, block: Lba) -> u64 {
        block.0 << self.geometry.block_size().shift()
    }

    /// Returns how many bytes there are for the load.
    fn bytes(&self) -> u64 {
        let bytes = self.geometry.bytes();
        self.cipher.as_ref().map_or(bytes, |cipher| cipher.data_len(bytes))
    }
}

/// The result of a benchmark.
#[derive(Clone, Debug, Default)]
pub struct BenchReport {
    /// The measurements of reads.
    pub reads: DirectionStats,
    /// The measurements of writes.
    pub writes: DirectionStats,
    /// The duration of the measurement.
    pub seconds: f64,
    /// The bytes that moved during the measurement: a command that lies partly within it counts by that part
    /// of its duration. Where few commands end in a second, this is more exact than the count of those that
    /// ended.
    pub bytes_moved: f64,
    /// The processor time of this process during the measurement.
    pub cpu_s: f64,
    /// The system calls of the reactors, warm-up included.
    pub system_calls: u64,
    /// All commands, warm-up included.
    pub commands: u64,
    /// The commands of a paced load that were due during the measurement.
    pub due: u64,
    /// The commands of a paced load that were due, and at the end of the measurement still waited to be
    /// started, since as many as the queue depth were under way.
    pub waiting: u64,
    /// Connections that were lost during the run and established again.
    pub connections_lost: u64,
    /// Connections that were up at the end of the measurement.
    pub connections: usize,
    /// What the sessions agreed on with their targets, each different set once.
    pub negotiated: Vec<Negotiated>,
    /// The I/O engine of the reactors: io_uring or epoll.
    pub engine: String,
    /// The error that ended the run early, if any; the report then covers the time before it.
    pub failure: Option<String>,
}

/// The measurements of one direction.
#[derive(Clone, Debug, Default)]
pub struct DirectionStats {
    /// The number of commands.
    pub count: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The latencies of the commands.
    pub latency: Histogram,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The plan cannot be carried out.
    #[error("{0}")]
    Plan(String),
    /// A reactor failed.
    #[error("cannot start a reactor: {0}")]
    Reactor(String),
    /// A session was lost for good, or a command failed.
    #[error("{name}: {why}")]
    Unit {
        /// The name of the unit.
        name: String,
        /// The error.
        why: String,
    },
}

/// Runs the load until it is complete or `stop` is set. If it is stopped, the report covers the time before
/// that.
///
/// # Errors
/// [`BenchError`]: the first error, if nothing was measured before it; otherwise the report names the error.
/// An error stops the whole run.
pub fn run(plan: &BenchPlan, stop: &AtomicBool) -> Result<BenchReport, BenchError> {
    plan.check()?;
    let threads = plan.threads.clamp(1, plan.jobs.len());
    let gate = worker::RunControl::new(threads, stop);
    let parts: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let gate = &gate;
                scope.spawn(move || worker::work(plan, number, threads, gate))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(died()))).collect()
    });
    let (mut report, mut failed) = (BenchReport::default(), None);
    for part in parts {
        match part {
            Ok(part) => report.add(part),
            Err(why) => failed = failed.or(Some(why)),
        }
    }
    if let Some(why) = failed {
        if report.reads.count + report.writes.count == 0 {
            return Err(why);
        }
        report.failure = report.failure.or_else(|| Some(why.to_string()));
    }
    report.cpu_s = gate.cpu_seconds();
    Ok(report)
}

fn died() -> BenchError {
    BenchError::Reactor("its thread ended early".to_owned())
}

impl BenchPlan {
    fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Plan(text));
        let (from, to) = self.range;
        for job in &self.jobs {
            let Job { geometry, name, cipher, .. } = job;
            let block = geometry.block_size().bytes();
            if let Some(sector) = cipher.as_ref().map(|cipher| cipher.sector_len())
                && !self.block_bytes.is_multiple_of(sector)
            {
                return wrong(format!(
                    "the LUKS2 image on {name} has sectors of {sector} bytes; {} bytes per command is not a multiple",
                    self.block_bytes
                ));
            }
            if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(block) {
                return wrong(format!(
                    "{name} has blocks of {block} bytes; {} bytes per command is not a multiple",
                    self.block_bytes
                ));
            }
            if self.block_bytes / block > geometry.transfer_max {
                let most = u64::from(geometry.transfer_max) * u64::from(block);
                return wrong(format!(
                    "{name} takes at most {most} bytes in one command, not {}",
                    self.block_bytes
                ));
            }
            let end = to.min(job.bytes());
            let start = cipher.as_ref().map_or(block, |cipher| cipher.sector_len().max(block));
            if !from.is_multiple_of(start.into()) || end.saturating_sub(from) < self.block_bytes.into() {
                return wrong(format!(
                    "{name} has {} bytes; the range from {from} on holds no whole command of {}, or does not start at \
                     a block boundary",
                    job.bytes(),
                    self.block_bytes
                ));
            }
            if to > job.bytes() && to != u64::MAX {
                return wrong(format!(
                    "{name} has {} bytes; the range ends beyond that, at {to}",
                    job.bytes()
                ));
            }
        }
        if self.jobs.is_empty() || self.depth == 0 {
            return wrong("there are no LUNs or no commands to run".to_owned());
        }
        if self.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return wrong("the rate of a paced load must be above zero".to_owned());
        }
        Ok(())
    }
}

impl BenchReport {
    /// Returns the sum of both directions.
    pub fn total(&self) -> DirectionStats {
        let mut total = self.reads.clone();
        total.add(&self.writes);
        total
    }

    fn add(&mut self, part: Self) {
        self.reads.add(&part.reads);
        self.writes.add(&part.writes);
        // The workers measure at the same time.
        self.seconds = self.seconds.max(part.seconds);
        self.bytes_moved += part.bytes_moved;
        self.system_calls += part.system_calls;
        self.commands += part.commands;
        self.due += part.due;
        self.waiting += part.waiting;
        self.connections_lost += part.connections_lost;
        self.connections += part.connections;
        for found in part.negotiated {
            if !self.negotiated.contains(&found) {
                self.negotiated.push(found);
            }
        }
        self.engine = part.engine;
        self.failure = self.failure.take().or(part.failure);
    }
}

impl DirectionStats {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.latency.add(&other.latency);
    }
}
