//! What do iSCSI digests cost on this path? Measures throughput, latency and processor time with no digest,
//! the header digest, the data digest and both, and gives advice.
//!
//! Within a round, all settings of the digests run directly one after the other for each workload, in the
//! order of a Williams square, so that whatever else the machine does disturbs all of them alike. Costs are
//! computed from the ratios within the rounds.

mod advice;
mod costs;
mod findings;
mod measure;
mod plan;
mod samples;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Instant;

use initiator::Url;

use crate::experiment::{Control, LabError};
use crate::machine;
use crate::report::{Ended, Report, caveats};
use crate::rounds::{self, Place, Turn};

use crate::plan::{Digests, Link, Mix};
pub use plan::DigestsPlan;

use findings::Run;
use measure::{Setting, TestPath};
use samples::{Cell, CellSamples, Measured};

/// What is measured.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A target that `program serve` provides on a [bed](crate::bed). Needs root.
    Bed {
        /// The targe binary.
        program: PathBuf,
    },
    /// A LUN on the path to it, whose MTU and rate are what they are.
    Url {
        /// The LUN.
        url: Box<Url>,
        /// Whether to write to it. Otherwise the mixes of the plan are replaced by reads.
        write: bool,
        /// Whether to write even if the LUN holds a file system or a partition table.
        force: bool,
    },
}

/// Runs the experiment. `command` is the command line that repeats it, for the report.
///
/// # Errors
/// [`LabError`] if nothing could be measured. A failure after the first measurement ends in a report.
pub fn run(
    plan: &DigestsPlan,
    subject: &Subject,
    command: &str,
    control: &mut Control<'_>,
) -> Result<Report, LabError> {
    let (started, clock, mut machine) = (machine::timestamp(), Instant::now(), machine::describe());
    let (plan, mut caveats) = adapted(plan, subject);
    caveats.extend(machine::load_average().and_then(caveats::busy_machine));
    let mut path = TestPath::open(subject, &plan, control.stop)?;
    let mut measured = Measured::default();
    let offered = offered_settings(&plan, &path, &mut measured)?;
    measured.cells = Cell::all(&plan).into_iter().map(|cell| CellSamples::new(cell, &offered)).collect();
    let ended = match measure_all(&plan, &offered, &mut path, &mut measured, control) {
        Ok(ended) => ended,
        Err(why) if measured.cells.iter().all(|cell| cell.rounds() == 0) => return Err(why),
        Err(why) => Ended::Early(why.to_string()),
    };
    drop(path);
    caveats.extend(findings::caveats(subject, &measured));
    machine.push(("I/O engine of the initiator".to_owned(), measured.engine.clone()));
    let run = Run { plan: &plan, measured: &measured, ended: &ended };
    Ok(Report {
        started,
        seconds: clock.elapsed().as_secs_f64(),
        caveats,
        machine,
        command: command.to_owned(),
        ..findings::report(&run)
    })
}

/// Returns the plan as the subject allows it, and what that changes.
fn adapted(plan: &DigestsPlan, subject: &Subject) -> (DigestsPlan, Vec<String>) {
    let Subject::Url { write, .. } = subject else { return (plan.clone(), Vec::new()) };
    let mut plan = DigestsPlan { link: vec![Link::AsItIs], ..plan.clone() };
    if *write || !plan.mix.iter().any(|mix| mix.writes()) {
        return (plan, Vec::new());
    }
    plan.mix = vec![Mix(100)];
    let caveat = "Only reads were measured, since the command did not allow writes (--write).";
    (plan, vec![caveat.to_owned()])
}

/// Finds out which settings of the plan the target agrees to, and records the others.
fn offered_settings(
    plan: &DigestsPlan,
    path: &TestPath,
    measured: &mut Measured,
) -> Result<Vec<Digests>, LabError> {
    let mut offered = Vec::new();
    for digests in &plan.digests {
        match path.offers(*digests)? {
            Ok(()) => offered.push(*digests),
            Err(why) => measured.not_offered.push((*digests, why)),
        }
    }
    match measured.not_offered.first() {
        Some((digests, why)) if offered.is_empty() => {
            Err(LabError::Plan(format!("digests: the target does not offer {}: {why}", digests.name())))
        }
        _ => Ok(offered),
    }
}

/// Measures round after round.
fn measure_all(
    plan: &DigestsPlan,
    offered: &[Digests],
    path: &mut TestPath,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<Ended, LabError> {
    let settings = vec![offered.len(); measured.cells.len()];
    rounds::measure_all((plan.rounds, plan.seed), &settings, control, |place, control| {
        measure_cell(plan, place, path, measured, control)
    })
}

/// Measures one workload with every setting. A round that is not complete leaves no samples.
fn measure_cell(
    plan: &DigestsPlan,
    place: Place,
    path: &mut TestPath,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<(), LabError> {
    let Some(cell) = measured.cells.get(place.at).map(|samples| samples.cell) else { return Ok(()) };
    let rate = measured.offered_rate(&cell, place.round).filter(|_| !cell.is_full_load());
    if rate.is_none() && !cell.is_full_load() {
        return Ok(());
    }
    if let Some(link) = cell.link_plan() {
        let fresh = measured.calibrations.iter().all(|(known, _)| *known != link);
        measured.calibrations.extend(path.set_link(link, fresh)?.map(|found| (link, found)));
    }
    let Some(samples) = measured.cells.get_mut(place.at) else { return Ok(()) };
    if place.round == 0 && cell.is_full_load() {
        samples.echo = path.echo(&cell)?;
    }
    rounds::measure_cell(place, &mut samples.settings, |done, digests| {
        let what = format!("{}, digests: {}, {}", cell.path(), digests.name(), cell.workload());
        control.step(done, place.total, &what);
        let variant = Setting { digests, rate, seed: place.round_seed() };
        let measured_once = path.measure(plan, &cell, variant, control.stop)?;
        let Some((sample, report)) = measured_once else { return Ok(Turn::Stopped) };
        measured.connections_lost += report.connections_lost;
        measured.sessions.record(&format!("digests: {}", digests.name()), report.negotiated);
        measured.engine = report.engine;
        Ok(Turn::Measured(sample))
    })
}
