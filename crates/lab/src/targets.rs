//! How do iSCSI targets compare on this machine? Loads targets side by side with the same client and the same
//! workloads, and measures throughput, latency, processor time, system calls, context switches and memory,
//! and how many conformance cases they pass.
//!
//! All targets run at the same time on one host of a [bed](crate::bed), and the client on the other. Within
//! a round, all targets meet each workload directly one after the other, by a Williams square, so that
//! whatever else the machine does disturbs all of them alike. Differences are computed from the ratios
//! within the rounds. A target that fails is reported, and the others go on.
//!
//! [Rival files](rivals) describe how a target is started, so that another one needs no change here.

mod comparison;
mod conformance;
mod contestant;
mod counting;
mod findings;
mod idle_sessions;
mod plan;
mod rival;
mod samples;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::statfs;

use crate::bed::{Bed, echo_rate, write_echo_rate};
use crate::bench::BenchReport;
use crate::client_load::explain_rights;
use crate::experiment::{Control, LabError};
use crate::machine;
use crate::plan::Digests;
use crate::report::{Ended, Report};
use crate::rounds;

pub use plan::{TargetsPlan, Workload};
pub use rival::{Rival, choose, rivals};
pub(crate) use rival::{find_program, search_path};

use conformance::{ConformanceRun, Score};
use contestant::{Contestant, Stage};
use findings::Run;
use samples::{Fate, Measured, TargetSamples};

/// The duration of a bare echo.
const ECHO: Duration = Duration::from_millis(200);

/// The longest that the conformance cases of a target may take. A target that sleeps at each login takes four
/// minutes.
const CONFORMANCE_WITHIN: Duration = Duration::from_secs(900);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What is compared.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The targe binary: one of the targets, and the conformance suite.
    pub program: PathBuf,
    /// The targets.
    pub rivals: Vec<Rival>,
}

/// Runs the experiment. `command` is the command line that repeats it, for the report.
///
/// # Errors
/// [`LabError`] if nothing could be measured. A failure after the first measurement ends in a report.
pub fn run(
    plan: &TargetsPlan,
    subject: &Subject,
    command: &str,
    control: &mut Control<'_>,
) -> Result<Report, LabError> {
    let (started, clock, mut machine) = (machine::timestamp(), Instant::now(), machine::describe());
    let load = machine::load_average();
    let bed = Bed::create().map_err(|why| explain_rights(why, ""))?;
    let (parent, in_memory) = disk_directory();
    let stage = Stage { bed: &bed, program: &subject.program, parent, stop: control.stop };
    idle_sessions::raise_file_limit(plan);
    let mut measured = Measured {
        workloads: plan.workload.clone(),
        idle_counts: plan.idle_sessions.clone(),
        in_memory,
        ..Measured::default()
    };
    let mut contestants = start_all(&stage, subject, &mut measured, control)?;
    learn_digests(plan, &stage, &mut contestants, &mut measured);
    let mut ended = match measure_all(plan, &stage, &mut contestants, &mut measured, control) {
        Ok(ended) => ended,
        Err(why) if measured.measured().next().is_none() => return Err(why),
        Err(why) => Ended::Early(why.to_string()),
    };
    if ended == Ended::Complete {
        ended = judge_all(plan, &stage, &mut contestants, &mut measured, control);
    }
    drop(contestants);
    if ended == Ended::Complete {
        ended = measure_idle_sessions(plan, &stage, &mut measured, control);
    }
    machine.push(("I/O engine of the client".to_owned(), measured.engine.clone()));
    let run = Run { plan, measured: &measured, ended: &ended };
    Ok(Report {
        started,
        seconds: clock.elapsed().as_secs_f64(),
        caveats: findings::caveats(plan, &measured, load),
        machine,
        command: command.to_owned(),
        ..findings::report(&run)
    })
}

/// Returns the directory for the disks, and whether it is in memory.
pub(crate) fn disk_directory() -> (PathBuf, bool) {
    let is_tmpfs = |path: &Path| statfs(path).is_ok_and(|found| found.f_type == TMPFS_MAGIC);
    let candidates = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
    match candidates.into_iter().find(|path| is_tmpfs(path)) {
        Some(path) => (path, true),
        None => (std::env::temp_dir(), false),
    }
}

/// linux/magic.h
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Starts every target that is on this machine. The list has the place of each among the samples.
fn start_all(
    stage: &Stage<'_>,
    subject: &Subject,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<Vec<(usize, Contestant)>, LabError> {
    let mut contestants = Vec::new();
    for (at, rival) in subject.rivals.iter().enumerate() {
        let mut samples = TargetSamples::new(rival.clone(), measured.workloads.len());
        control.step(0, 1, &format!("starting {}", rival.file.title));
        if let Some(why) = rival.absence() {
            samples.fate = Fate::Absent(why);
        } else if !control.is_stopped() {
            samples.version = contestant::version(rival, stage);
            match Contestant::start(rival, stage, u16::try_from(at).unwrap_or(0)) {
                Ok(contestant) => {
                    samples.idle_resident = contestant.idle_resident;
                    contestants.push((at, contestant));
                }
                Err(why) => samples.fate = Fate::Failed(format!("it did not start: {why}")),
            }
        }
        measured.targets.push(samples);
    }
    if !contestants.is_empty() {
        return Ok(contestants);
    }
    let why = |target: &TargetSamples| match &target.fate {
        Fate::Absent(why) | Fate::Failed(why) => Some(format!("{}: {why}", target.title())),
        Fate::Complete => None,
    };
    let reasons: Vec<String> = measured.targets.iter().filter_map(why).collect();
    Err(LabError::Target(format!("no target runs: {}", reasons.join("; "))))
}

/// Measures round after round. The last round counts.
fn measure_all(
    plan: &TargetsPlan,
    stage: &Stage<'_>,
    contestants: &mut Vec<(usize, Contestant)>,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<Ended, LabError> {
    measured.echoes = vec![Vec::new(); plan.workload.len()];
    let rounds = usize::try_from(plan.rounds).unwrap_or(usize::MAX);
    let total = (rounds + 1) * plan.workload.len();
    for round in 0..=rounds {
        for (at, workload) in plan.workload.iter().enumerate() {
            let done = round * plan.workload.len() + at;
            // Every target of a round meets the same addresses and data.
            let seed = rounds::round_seed(plan.seed, round);
            let mut step = Step { plan, stage, workload, at, seed, counts: round == rounds };
            if round < rounds {
                let echo = echo_of(stage, workload)?;
                measured.echoes.get_mut(at).into_iter().for_each(|list| list.push(echo));
            }
            for place in rounds::order(contestants.len(), (round, at), plan.seed) {
                let Some((target, contestant)) = contestants.get_mut(place) else { continue };
                let Some(samples) = measured.targets.get_mut(*target) else { continue };
                if samples.fate != Fate::Complete || samples.refusal(workload.digests).is_some() {
                    continue;
                }
                control.step(done, total, &format!("{}: {}", samples.title(), workload.name()));
                let outcome = step.measure(contestant, samples);
                if control.is_stopped() {
                    return Ok(Ended::Early(format!("it was stopped in round {} of {rounds}", round + 1)));
                }
                match outcome {
                    Ok(None) => {}
                    Ok(Some(report)) => {
                        let digests = workload.digests.name();
                        let session = format!("{}, digests: {digests}", samples.title());
                        measured.sessions.record(&session, report.negotiated);
                        measured.engine = report.engine;
                    }
                    Err(why) => {
                        let when = format!("round {} with {}", round + 1, workload.name());
                        samples.fate = Fate::Failed(format!("it failed in {when}: {why}"));
                    }
                }
            }
            // A target that failed is ended at once: what is left of it could disturb the others.
            contestants.retain(|(target, _)| {
                measured.targets.get(*target).is_some_and(|samples| samples.fate == Fate::Complete)
            });
            if contestants.is_empty() {
                return Ok(Ended::Early(format!("no target runs any more in round {}", round + 1)));
            }
        }
    }
    Ok(Ended::Complete)
}

/// Tries a login with each choice of digests that the plan names. A target that refuses one is measured
/// without it.
fn learn_digests(
    plan: &TargetsPlan,
    stage: &Stage<'_>,
    contestants: &mut [(usize, Contestant)],
    measured: &mut Measured,
) {
    let is_planned = |digests: &Digests| plan.workload.iter().any(|workload| workload.digests == *digests);
    for digests in Digests::ALL.into_iter().filter(|digests| *digests != Digests::None).filter(is_planned) {
        for (target, contestant) in &mut *contestants {
            let Some(samples) = measured.targets.get_mut(*target) else { continue };
            samples.refused.extend(contestant.refuses(stage, digests).map(|why| (digests, why)));
        }
    }
}

/// Returns the rate of a bare echo with the block length and the depth of a workload. If most commands write,
/// the blocks travel to the server.
fn echo_of(stage: &Stage<'_>, workload: &Workload) -> Result<f64, LabError> {
    let [block, depth] = [workload.block, workload.depth].map(|number| usize::try_from(number).unwrap_or(1));
    let echo = if workload.mix.0 < 50 { write_echo_rate } else { echo_rate };
    echo(stage.bed, block, depth, ECHO).map(|echo| echo.per_second)
}

/// A workload of a round.
struct Step<'a> {
    plan: &'a TargetsPlan,
    stage: &'a Stage<'a>,
    workload: &'a Workload,
    at: usize,
    seed: u64,
    counts: bool,
}

impl Step<'_> {
    /// Measures one target, or counts. Returns the report of the client, if it measured.
    fn measure(
        &mut self,
        contestant: &mut Contestant,
        samples: &mut TargetSamples,
    ) -> Result<Option<BenchReport>, String> {
        if self.counts {
            let counts = contestant.count(self.stage, self.plan, self.workload, self.seed)?;
            samples.counts.get_mut(self.at).into_iter().for_each(|place| place.clone_from(&counts));
            return Ok(None);
        }
        let found = contestant.measure(self.stage, self.plan, self.workload, self.seed);
        let found = found.map_err(|why| contestant.failed(&why))?;
        let Some((sample, report)) = found else { return Ok(None) };
        samples.samples.get_mut(self.at).into_iter().for_each(|list| list.push(sample));
        Ok(Some(report))
    }
}

/// Runs the conformance cases of all targets at the same time: most of the time they wait.
fn judge_all(
    plan: &TargetsPlan,
    stage: &Stage<'_>,
    contestants: &mut [(usize, Contestant)],
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Ended {
    if plan.conformance.is_empty() {
        return Ended::Complete;
    }
    let mut runs = Vec::new();
    for (target, contestant) in &*contestants {
        contestant.pause(false);
        let run = ConformanceRun::start(stage.bed, stage.program, &contestant.place(), &plan.conformance);
        match run {
            Ok(run) => runs.push((*target, run)),
            Err(why) => set_score(measured, *target, Err(why.to_string())),
        }
    }
    let (deadline, total) = (Instant::now() + CONFORMANCE_WITHIN, runs.len());
    while !runs.is_empty() {
        if control.is_stopped() {
            return Ended::Early("it was stopped during the conformance cases".to_owned());
        }
        control.step(total - runs.len(), total, "conformance cases");
        let is_late = Instant::now() >= deadline;
        runs.retain_mut(|(target, run)| {
            let late = || is_late.then(|| Err("the cases took too long".to_owned()));
            let Some(result) = run.result().or_else(late) else { return true };
            set_score(measured, *target, result);
            false
        });
        std::thread::sleep(POLL_INTERVAL);
    }
    for (target, contestant) in contestants {
        let Some(samples) = measured.targets.get_mut(*target) else { continue };
        if let Some(why) = contestant.end() {
            samples.fate = Fate::Failed(format!("it failed during the conformance cases: {why}"));
        }
    }
    Ended::Complete
}

/// Starts every target anew, one after the other, and measures what idle sessions cost it.
fn measure_idle_sessions(
    plan: &TargetsPlan,
    stage: &Stage<'_>,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Ended {
    if plan.idle_sessions.is_empty() {
        return Ended::Complete;
    }
    let total = measured.targets.len();
    for (at, samples) in measured.targets.iter_mut().enumerate() {
        if samples.fate != Fate::Complete {
            continue;
        }
        control.step(at, total, &format!("{}: idle sessions", samples.title()));
        samples.idle_sessions = Some(if samples.rival.is_in_kernel() {
            Err("in the kernel, not attributable".to_owned())
        } else {
            // No target uses the port of another one.
            let number = u16::try_from(total + at).unwrap_or(u16::MAX);
            idle_sessions::measure(&samples.rival, stage, number, plan)
        });
        if control.is_stopped() {
            return Ended::Early("it was stopped during the measurement of idle sessions".to_owned());
        }
    }
    Ended::Complete
}

fn set_score(measured: &mut Measured, target: usize, score: Result<Score, String>) {
    measured
        .targets
        .get_mut(target)
        .into_iter()
        .for_each(|samples| samples.conformance = Some(score.clone()));
}
