//! How fast is HyperSCSI beside iSCSI on the same link? Measures both, on links of different rates and MTUs,
//! with loss, and beside other traffic; bare Ethernet frames and bare TCP streams show the limits.
//!
//! One target process serves the same RAM disks over both protocols, and one initiator loads them. Within a
//! round, the protocols run directly one after the other for each workload, by a Williams square.

mod aoe;
mod carrier;
mod copies;
mod findings;
mod measure;
mod plan;
mod samples;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Instant;

use crate::experiment::{Control, LabError};
use crate::machine;
use crate::report::{Ended, Report};
use crate::rounds::{self, Place, Turn};
use crate::targets::find_program;

pub use plan::{Access, HyperScsiPlan, Workload};

use carrier::Carrier;
use copies::{Copies, CopyFolder};
use measure::TestPaths;
use samples::{Cell, CellSamples, Measured, Protocol};

/// Runs the experiment with a target that `program serve` provides on a [bed](crate::bed), which needs root.
/// `command` is the command line that repeats it, for the report.
///
/// # Errors
/// [`LabError`] if nothing could be measured. A failure after the first measurement ends in a report.
pub fn run(
    plan: &HyperScsiPlan,
    program: &Path,
    command: &str,
    control: &mut Control<'_>,
) -> Result<Report, LabError> {
    let (started, clock, mut machine) = (machine::timestamp(), Instant::now(), machine::describe());
    let load = machine::load_average().unwrap_or(0.0);
    let mut copies = Copies::new(plan);
    let folder = copy_folder(plan, &mut copies);
    let mut paths = TestPaths::open(program, plan, folder.as_ref(), control.stop)?;
    let cells = Cell::all(plan).into_iter().map(|cell| CellSamples::new(cell, plan)).collect();
    let mut measured = Measured { cells, aoe_absent: aoe_absence(plan), copies, ..Measured::default() };
    let ended = match measure_all(plan, &mut paths, &mut measured, control) {
        Ok(Ended::Complete) => match &folder {
            Some(folder) => copy_all(plan, (&mut paths, folder), &mut measured.copies, control),
            None => Ended::Complete,
        },
        Ok(ended) => ended,
        Err(why) if measured.cells.iter().all(|cell| cell.rounds() == 0) => return Err(why),
        Err(why) => Ended::Early(why.to_string()),
    };
    drop((paths, folder));
    machine.push(("I/O engine of the initiator".to_owned(), measured.engine.clone()));
    Ok(Report {
        started,
        seconds: clock.elapsed().as_secs_f64(),
        caveats: findings::caveats(&measured, load),
        machine,
        command: command.to_owned(),
        ..findings::report(plan, &measured, &ended)
    })
}

/// Creates the files to copy. Without them, the others are measured nevertheless.
fn copy_folder(plan: &HyperScsiPlan, copies: &mut Copies) -> Option<CopyFolder> {
    let why = if plan.copy.is_empty() {
        "the plan has no files to copy (copy = [\"4 16M\"])".to_owned()
    } else {
        match CopyFolder::create(plan) {
            Ok(folder) => return Some(folder),
            Err(why) => why.to_string(),
        }
    };
    copies.absent = Carrier::ALL.map(|carrier| (carrier, why.clone())).into();
    None
}

/// Copies files with every carrier.
fn copy_all(
    plan: &HyperScsiPlan,
    (paths, folder): (&mut TestPaths, &CopyFolder),
    copies: &mut Copies,
    control: &mut Control<'_>,
) -> Ended {
    let copied = copies::measure_all(plan, &mut paths.copy_stage(folder), copies, control);
    copied.unwrap_or_else(|why| Ended::Early(why.to_string()))
}

/// Returns why ATA over Ethernet cannot be measured.
fn aoe_absence(plan: &HyperScsiPlan) -> Option<String> {
    if !plan.aoe {
        return Some("the plan does not ask for it (aoe = true)".to_owned());
    }
    find_program(aoe::PROGRAM).is_none().then(|| format!("the program {} is not there", aoe::PROGRAM))
}

/// Measures round after round.
fn measure_all(
    plan: &HyperScsiPlan,
    paths: &mut TestPaths,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<Ended, LabError> {
    let contestants: Vec<usize> = measured.cells.iter().map(|cell| cell.contestants.len()).collect();
    rounds::measure_all((plan.rounds, plan.seed), &contestants, control, |place, control| {
        measure_cell(plan, place, paths, measured, control)
    })
}

/// Measures one workload with every protocol. A round that is not complete leaves no samples.
fn measure_cell(
    plan: &HyperScsiPlan,
    place: Place,
    paths: &mut TestPaths,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<(), LabError> {
    let Some(samples) = measured.cells.get_mut(place.at) else { return Ok(()) };
    let (cell, seed) = (samples.cell, place.round_seed());
    paths.prepare(plan, &cell, seed, control.stop)?;
    let is_fresh = |bounds: &samples::Bounds| bounds.link != cell.link_plan();
    if cell.disturbance.is_none() && measured.bounds.iter().all(is_fresh) {
        measured.bounds.push(paths.bounds()?);
    }
    rounds::measure_cell(place, &mut samples.contestants, |done, protocol| {
        let is_aoe = protocol == Protocol::Aoe;
        if is_aoe && measured.aoe_absent.is_some() {
            return Ok(Turn::Skipped);
        }
        control.step(done, place.total, &format!("{}, {}, {}", cell.path(), protocol.name(), cell.workload));
        let found = match paths.measure(plan, &cell, protocol, seed, control.stop) {
            // The others go on without it.
            Err(why) if is_aoe && !control.is_stopped() => {
                measured.aoe_absent =
                    Some(format!("it failed with {}, {}: {why}", cell.path(), cell.workload));
                return Ok(Turn::Skipped);
            }
            found => found?,
        };
        let Some(found) = found else { return Ok(Turn::Stopped) };
        measured.connections_lost += found.connections_lost;
        if !is_aoe {
            measured.engine = found.engine;
        }
        let session = format!("{}, MTU {}", protocol.name(), cell.mtu);
        measured.sessions.record(&session, found.negotiated);
        Ok(Turn::Measured(found.sample))
    })
}
