//! Load for one or more logical units, and what came of it: rates, a histogram of latencies, the processor time of
//! our own side.
//!
//! Each session keeps a fixed number of commands under way; when one ends, the next is started. A reactor handles
//! everything that one wake-up brought before it sends, so that the load costs about one system call for many
//! commands. Latency is from the moment a command is handed to its session to the moment the reactor learns of its
//! end.

mod histogram;
mod worker;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use drivers::config::Config;
use initiator::disk::Geometry;
use scsi::lun::Lun;

pub use histogram::Histogram;

/// What to do.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// One for each session.
    pub jobs: Vec<Job>,
    /// How many commands in a hundred are reads.
    pub read_percent: u8,
    /// Whether addresses are random; else each session goes through its share of the range in order.
    pub random: bool,
    /// Bytes of each command, a multiple of every unit's block size.
    pub block_bytes: u32,
    /// Commands under way in each session.
    pub depth: usize,
    /// The part of each unit that is used, in bytes from its start; to `u64::MAX` for the rest of it.
    pub range: (u64, u64),
    /// How long is measured.
    pub time: Duration,
    /// How long load runs before that.
    pub warmup: Duration,
    /// How many commands each session carries out, from a standing start to the end of the last one, in place of a time.
    pub count: Option<u64>,
    /// Where addresses and data come from.
    pub seed: u64,
    /// How many reactors, each on a thread of its own, share the sessions.
    pub threads: usize,
    /// How they are set up.
    pub reactor: Config,
}

/// One session and the unit it loads.
#[derive(Clone, Debug)]
pub struct Job {
    /// The session.
    pub session: initiator::login::ProtocolPlan,
    /// The unit.
    pub lun: Lun,
    /// How it lies.
    pub geometry: Geometry,
    /// What it is called in messages.
    pub name: String,
    /// How long a command may go without an answer, if not as long as the library lets it: zero for any time.
    pub command_timeout: Option<Duration>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct BenchReport {
    /// What was measured of reads.
    pub reads: DirectionStats,
    /// What was measured of writes.
    pub writes: DirectionStats,
    /// How long was measured.
    pub seconds: f64,
    /// Processor time of this process meanwhile.
    pub cpu_s: f64,
    /// System calls of the reactors meanwhile, and warm-up.
    pub system_calls: u64,
    /// Commands in all, warm-up included.
    pub commands: u64,
    /// Connections that were lost meanwhile, and came back.
    pub connections_lost: u64,
    /// Connections that were up.
    pub connections: usize,
    /// Which engine ran.
    pub engine: String,
    /// What ended it before its time, if something went wrong; what was measured until then is told.
    pub failure: Option<String>,
}

/// What was measured of one direction.
#[derive(Clone, Debug, Default)]
pub struct DirectionStats {
    /// Commands.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies.
    pub latency: Histogram,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The plan cannot be carried out.
    #[error("{0}")]
    Plan(String),
    /// A reactor does not work.
    #[error("cannot run a reactor: {0}")]
    Reactor(String),
    /// A session was lost for good, or a command failed.
    #[error("{name}: {why}")]
    Unit {
        /// Which unit.
        name: String,
        /// Why.
        why: String,
    },
}

/// Runs the load, until it is over or `stop` is set: the report is then of what was measured until that.
///
/// # Errors
/// [`BenchError`]: the first thing that went wrong, if nothing was measured before it; else the report names it. Everything stops then.
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
    BenchError::Reactor("its thread died".to_owned())
}

impl BenchPlan {
    fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Plan(text));
        let (from, to) = self.range;
        for Job { geometry, name, .. } in &self.jobs {
            let block = geometry.block_size().bytes();
            if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(block) {
                return wrong(format!(
                    "{name} has blocks of {block} bytes; commands of {} do not fit",
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
            let end = to.min(geometry.bytes());
            if !from.is_multiple_of(block.into()) || end.saturating_sub(from) < self.block_bytes.into() {
                return wrong(format!(
                    "{name} has {} bytes; the range from {from} on holds no whole command of {}, or does not start at \
                     a block",
                    geometry.bytes(),
                    self.block_bytes
                ));
            }
            if to > geometry.bytes() && to != u64::MAX {
                return wrong(format!(
                    "{name} has {} bytes; the range goes beyond that, to {to}",
                    geometry.bytes()
                ));
            }
        }
        if self.jobs.is_empty() || self.depth == 0 {
            return wrong("there is nothing to do".to_owned());
        }
        Ok(())
    }
}

impl BenchReport {
    /// Returns what was measured of both directions.
    pub fn total(&self) -> DirectionStats {
        let mut total = self.reads.clone();
        total.add(&self.writes);
        total
    }

    fn add(&mut self, part: Self) {
        self.reads.add(&part.reads);
        self.writes.add(&part.writes);
        // They measure at the same time.
        self.seconds = self.seconds.max(part.seconds);
        self.system_calls += part.system_calls;
        self.commands += part.commands;
        self.connections_lost += part.connections_lost;
        self.connections += part.connections;
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
