//! The experiment `risk`: what becomes of PDUs that are damaged after TCP has checked them, with and without
//! iSCSI digests, at each ErrorRecoveryLevel.
//!
//! A trial is one READ or WRITE of signed blocks with exactly one fault, which a
//! [`Corrupter`] injects between the initiator and the target, or with none: trials without a fault count
//! false alarms. Each trial has exactly one [`outcome::Outcome`]. It is judged by what can be seen of every
//! target: the data, the blocks on the medium as a path without faults reads them, the counters of the
//! initiator, and the PDUs on the wire. At the end of each combination all blocks are verified.
//!
//! Several sessions run trials at a time, each with its own corrupter and its own range of blocks, so that
//! no trial affects another.

mod findings;
mod lane;
pub mod outcome;
pub mod plan;
pub mod region;
mod stories;

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::rng::Rng;
use initiator::endpoint::{TargetAddress, Transport};
use initiator::{Client, Disk, Url, block_on};
use oracle::block_header::DeviceId;

use crate::bench::Negotiated;
use crate::corrupter::Corrupter;
use crate::experiment::{Control, LabError};
use crate::machine;
use crate::plan::Digests;
use crate::report::{Ended, Report};
use crate::signature::{SIGNATURE_LEN, signature};
use crate::target_process::ServedTarget;
use lane::{Bench, Combination, Lane, Trial};
use outcome::Counts;
use plan::{Fault, RiskPlan};
use region::Region;
use stories::Story;

/// What is tested.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A target that this program starts on 127.0.0.1, with a RAM disk of 64 MiB.
    Child {
        /// The program, which `serve` makes a target.
        program: PathBuf,
    },
    /// A LUN, whose data is lost.
    Url {
        /// The LUN.
        url: Box<Url>,
        /// Whether to write even if the LUN holds a file system or a partition table.
        force: bool,
    },
}

/// What a run measured.
#[derive(Clone, Debug)]
pub struct RiskResults {
    /// The cells of the matrix, in the order of the plan.
    pub cells: Vec<Cell>,
    /// The cases that the report tells in detail.
    pub(crate) stories: Vec<Story>,
    /// How the run ended.
    pub ended: Ended,
}

/// A combination of digests and ErrorRecoveryLevel.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The digests.
    pub digests: Digests,
    /// The ErrorRecoveryLevel.
    pub erl: u8,
    /// Why the target does not offer the combination, if it does not.
    pub not_offered: Option<String>,
    /// The counts of all faults.
    pub counts: Counts,
    /// The counts of each fault.
    pub faults: BTreeMap<&'static str, Counts>,
    /// What the trials without a fault that raised an alarm saw.
    pub alarms: Vec<String>,
    /// What the sessions agreed on with the target, each different set once.
    pub negotiated: Vec<Negotiated>,
}

/// One trial to run: the fault, if any, and the length of the command in bytes.
type Job = (Option<&'static Fault>, u32);

/// How often the progress is reported while trials run.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How many alarms of a cell are described.
const ALARMS_MAX: usize = 5;

/// The medium of a target that this module starts.
const CHILD_LUN: &str = "ram:64M";

/// Runs the experiment. `command` is the command line that repeats it, for the report.
///
/// # Errors
/// [`LabError`] if nothing could be measured. A later failure ends in a report.
pub fn run(
    plan: &RiskPlan,
    subject: &Subject,
    command: &str,
    control: &mut Control<'_>,
) -> Result<Report, LabError> {
    let (started, clock) = (machine::timestamp(), Instant::now());
    let (url, _child) = subject.open()?;
    let results = measure(plan, &url, subject.must_check(), control)?;
    Ok(Report {
        started,
        seconds: clock.elapsed().as_secs_f64(),
        machine: machine::describe(),
        command: command.to_owned(),
        ..findings::report(plan, subject, &results)
    })
}

/// Measures the matrix and tells the stories. With `check`, refuses a LUN that holds a file system or a
/// partition table.
///
/// # Errors
/// As [`run`].
pub fn measure(
    plan: &RiskPlan,
    url: &Url,
    check: bool,
    control: &mut Control<'_>,
) -> Result<RiskResults, LabError> {
    plan.check()?;
    let target = address(url)?;
    let failed = |error: initiator::Error| LabError::Target(error.report().to_string());
    let client = Client::new().map_err(failed)?;
    let clean = block_on(client.open(url)).map_err(failed)?;
    if check {
        check_is_free(url, &clean)?;
    }
    let bench = Bench { plan, client: &client, url, clean: &clean };
    let mut lanes = lanes(&bench, target)?;
    let mut results = RiskResults { cells: Vec::new(), stories: Vec::new(), ended: Ended::Complete };
    if let Err(why) = measure_all(plan, &mut lanes, &mut results, control) {
        results.ended = Ended::Early(why.to_string());
    } else if control.is_stopped() {
        results.ended = Ended::Early("it was interrupted".to_owned());
    }
    lanes.iter_mut().for_each(Lane::log_out);
    Ok(results)
}

impl Subject {
    fn open(&self) -> Result<(Url, Option<ServedTarget>), LabError> {
        match self {
            Self::Url { url, .. } => Ok((url.as_ref().clone(), None)),
            Self::Child { program } => {
                let child = ServedTarget::start(None, program, &[CHILD_LUN.to_owned()])?;
                let url = Url::parse(&child.url(0)).map_err(|error| LabError::Target(error.to_string()))?;
                Ok((url, Some(child)))
            }
        }
    }

    const fn must_check(&self) -> bool {
        matches!(self, Self::Url { force: false, .. })
    }
}

fn address(url: &Url) -> Result<SocketAddr, LabError> {
    let Transport::Iscsi(address) = &url.endpoint.transport else {
        return Err(LabError::Plan("the experiment damages iSCSI PDUs; give an iscsi:// URL".to_owned()));
    };
    let (name, port) = match address {
        TargetAddress::Socket(address) => return Ok(*address),
        TargetAddress::Host { name, port } => (name.as_str(), *port),
    };
    let system = |why| LabError::System { what: format!("resolve {name}"), why };
    let mut found = (name, port).to_socket_addrs().map_err(system)?;
    found.next().ok_or_else(|| LabError::Target(format!("{name} has no address")))
}

fn check_is_free(url: &Url, disk: &Disk) -> Result<(), LabError> {
    let len = disk.size().min(u64::try_from(SIGNATURE_LEN).unwrap_or(u64::MAX));
    let mut first = vec![0; usize::try_from(len).unwrap_or(SIGNATURE_LEN)];
    block_on(disk.read_at(0, &mut first)).map_err(|error| LabError::Target(error.report().to_string()))?;
    match signature(&first) {
        None => Ok(()),
        Some(what) => Err(LabError::Plan(format!(
            "{url} holds {what}: the experiment would destroy it; --force writes all the same"
        ))),
    }
}

/// Divides the range among the sessions, and writes all blocks.
fn lanes<'a>(bench: &'a Bench<'a>, target: SocketAddr) -> Result<Vec<Lane<'a>>, LabError> {
    let block_len = bench.clean.block_size();
    let block = u64::try_from(block_len).unwrap_or(u64::MAX);
    if !(512..=65536).contains(&block) {
        return Err(LabError::Plan(format!(
            "the logical block length is {block}; possible are 512 to 65536"
        )));
    }
    let sessions = u64::try_from(bench.plan.sessions).unwrap_or(1);
    let blocks = bench.plan.range.min(bench.clean.size()) / block / sessions;
    let longest = bench.plan.lengths.iter().copied().max().unwrap_or(0);
    let needed = u64::from(longest).div_ceil(block) * 4;
    if blocks < needed {
        return Err(LabError::Plan(format!(
            "range: with {sessions} sessions and commands of {longest} bytes, at least {} bytes are needed",
            needed * sessions * block
        )));
    }
    let device = DeviceId(Rng::from_seed(bench.plan.seed).next_u64());
    (0..bench.plan.sessions)
        .zip((0..).map(|number| number * blocks..(number + 1) * blocks))
        .map(|(number, blocks)| {
            let system = |why| LabError::System { what: "start a corrupter".to_owned(), why };
            let corrupter = Corrupter::start(target).map_err(system)?;
            Lane::new(bench, number, corrupter, Region::new(device, block_len, &blocks))
        })
        .collect()
}

/// Measures all cells, and then the stories.
fn measure_all(
    plan: &RiskPlan,
    lanes: &mut [Lane<'_>],
    results: &mut RiskResults,
    control: &mut Control<'_>,
) -> Result<(), LabError> {
    let combinations = combinations(plan);
    let per_cell = plan.trials + plan.controls;
    let total = per_cell * combinations.len();
    for (number, combination) in combinations.into_iter().enumerate() {
        if control.is_stopped() {
            return Ok(());
        }
        let mut cell = Cell::new(combination);
        cell.not_offered = lanes.first_mut().map_or(Ok(None), |lane| lane.log_in(combination))?;
        let measured = match cell.not_offered {
            Some(_) => Ok(()),
            None => measure_cell(plan, lanes, &mut cell, control, (number * per_cell, total)),
        };
        results.cells.push(cell);
        measured?;
    }
    if let Some(lane) = lanes.first_mut().filter(|_| !control.is_stopped()) {
        control.step(total, total, "the cases in detail");
        results.stories = stories::tell(lane, plan, &results.cells)?;
    }
    Ok(())
}

fn combinations(plan: &RiskPlan) -> Vec<Combination> {
    let of = |digests: &Digests| {
        let digests = *digests;
        plan.erl.iter().map(move |erl| Combination { digests, erl: *erl })
    };
    plan.digests.iter().flat_map(of).collect()
}

/// Runs the trials of a cell in all lanes, and verifies all blocks.
fn measure_cell(
    plan: &RiskPlan,
    lanes: &mut [Lane<'_>],
    cell: &mut Cell,
    control: &mut Control<'_>,
    (before, total): (usize, usize),
) -> Result<(), LabError> {
    let combination = Combination { digests: cell.digests, erl: cell.erl };
    let what = format!("digests {}, ErrorRecoveryLevel {}", cell.digests.name(), cell.erl);
    let jobs = jobs(plan, lanes, combination);
    let (done, stop) = (AtomicUsize::new(0), control.stop);
    let parts = std::thread::scope(|scope| {
        let work = |(lane, jobs): (_, Vec<Job>)| {
            let done = &done;
            scope.spawn(move || work(lane, combination, &jobs, stop, done))
        };
        let workers: Vec<_> = lanes.iter_mut().zip(jobs).map(work).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            control.step(before + done.load(Ordering::Relaxed), total, &what);
            std::thread::sleep(POLL_INTERVAL);
        }
        let lost =
            || (Cell::new(combination), Err(LabError::Target("a thread of the run failed".to_owned())));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| lost())).collect::<Vec<_>>()
    });
    let mut result = Ok(());
    for (part, ended) in parts {
        cell.add(part);
        result = result.and(ended);
    }
    result
}

/// Distributes the trials of a cell over the lanes, those with and without a fault in random order.
fn jobs(plan: &RiskPlan, lanes: &[Lane<'_>], combination: Combination) -> Vec<Vec<Job>> {
    let (faults, lengths) = (plan.chosen_faults(), &plan.lengths);
    let mut jobs = vec![Vec::new(); lanes.len()];
    let mut next = 0;
    for number in 0..plan.trials + plan.controls {
        let fault = faults.get(number % faults.len().max(1)).copied().filter(|_| number < plan.trials);
        let len = lengths.get(number / faults.len().max(1) % lengths.len().max(1)).copied().unwrap_or(512);
        let fits = |lane: &Lane<'_>| !(lane.immediate && fault.is_some_and(Fault::needs_data_out));
        let Some(place) =
            (next..next + lanes.len()).map(|at| at % lanes.len()).find(|at| lanes.get(*at).is_some_and(fits))
        else {
            continue;
        };
        next = place + 1;
        if let Some(jobs) = jobs.get_mut(place) {
            jobs.push((fault, len));
        }
    }
    let mut rng = Rng::from_seed(plan.seed ^ u64::from(combination.erl));
    for jobs in &mut jobs {
        for last in (1..jobs.len()).rev() {
            let other = usize::try_from(rng.below(u64::try_from(last + 1).unwrap_or(1))).unwrap_or(0);
            jobs.swap(last, other);
        }
    }
    jobs
}

/// Runs the trials of one lane. The counts cover the trials before an error.
fn work(
    lane: &mut Lane<'_>,
    combination: Combination,
    jobs: &[Job],
    stop: &AtomicBool,
    done: &AtomicUsize,
) -> (Cell, Result<(), LabError>) {
    let mut cell = Cell::new(combination);
    let result = run_jobs(lane, combination, jobs, stop, done, &mut cell);
    lane.log_out();
    (cell, result)
}

fn run_jobs(
    lane: &mut Lane<'_>,
    combination: Combination,
    jobs: &[Job],
    stop: &AtomicBool,
    done: &AtomicUsize,
    cell: &mut Cell,
) -> Result<(), LabError> {
    if let Some(why) = lane.log_in(combination)? {
        return Err(LabError::Target(why));
    }
    cell.negotiated.push(lane.negotiated().clone());
    for (fault, len) in jobs {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        cell.count(&lane.trial(combination, *fault, *len)?);
        done.fetch_add(1, Ordering::Relaxed);
    }
    cell.counts.unexplained += lane.verify()?;
    Ok(())
}

impl Cell {
    fn new(combination: Combination) -> Self {
        Self {
            digests: combination.digests,
            erl: combination.erl,
            not_offered: None,
            counts: Counts::default(),
            faults: BTreeMap::new(),
            alarms: Vec::new(),
            negotiated: Vec::new(),
        }
    }

    fn count(&mut self, trial: &Trial) {
        self.counts.timed_out += u64::from(trial.timed_out);
        let Some(fault) = trial.fault else { return self.count_control(trial) };
        let mut counts = Counts::default();
        match trial.outcome() {
            Some(outcome) => counts.count(outcome, trial.dropped),
            None => counts.missed += 1,
        }
        *self.faults.entry(fault.name).or_default() += counts;
        self.counts += counts;
    }

    fn count_control(&mut self, trial: &Trial) {
        self.counts.controls += 1;
        if trial.facts.is_alarm(trial.timed_out) {
            self.counts.false_alarms += 1;
            if self.alarms.len() < ALARMS_MAX {
                self.alarms.push(format!("{}; seen on the wire: {:?}", trial.result, trial.passage.seen));
            }
        }
    }

    fn add(&mut self, part: Self) {
        self.counts += part.counts;
        for found in part.negotiated {
            if !self.negotiated.contains(&found) {
                self.negotiated.push(found);
            }
        }
        for (fault, counts) in part.faults {
            *self.faults.entry(fault).or_default() += counts;
        }
        self.alarms.extend(part.alarms);
        self.alarms.truncate(ALARMS_MAX);
    }
}
