//! How fast is HyperSCSI beside iSCSI on the same link? Measures both, on links of different rates and MTUs,
//! with loss, and beside other traffic; bare Ethernet frames and bare TCP streams show the limits.
//!
//! One target process serves the same RAM disks over both protocols, and one initiator loads them. Within a
//! round, the protocols run directly one after the other for each workload, in an order that rotates.

mod aoe;
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
use crate::targets::find_program;

pub use plan::{Access, HyperScsiPlan, Workload};

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
    let mut paths = TestPaths::open(program, plan, control.stop)?;
    let cells = Cell::all(plan).into_iter().map(|cell| CellSamples::new(cell, plan)).collect();
    let mut measured = Measured { cells, aoe_absent: aoe_absence(plan), ..Measured::default() };
    let ended = match measure_all(plan, &mut paths, &mut measured, control) {
        Ok(ended) => ended,
        Err(why) if measured.cells.iter().all(|cell| cell.rounds() == 0) => return Err(why),
        Err(why) => Ended::Early(why.to_string()),
    };
    drop(paths);
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
    let rounds = usize::try_from(plan.rounds).unwrap_or(usize::MAX);
    let per_round: usize = measured.cells.iter().map(|cell| cell.contestants.len()).sum();
    let mut done = 0;
    for round in 0..rounds {
        for at in 0..measured.cells.len() {
            let is_measured = measure_cell(plan, (round, at), paths, measured, control, |step| {
                (done + step, per_round * rounds)
            });
            // A signal may also have made a system call fail.
            if control.is_stopped() {
                return Ok(Ended::Early(format!("it was stopped in round {} of {rounds}", round + 1)));
            }
            is_measured?;
            done += measured.cells.get(at).map_or(0, |cell| cell.contestants.len());
        }
    }
    Ok(Ended::Complete)
}

/// Measures one workload with every protocol. A round that is not complete leaves no samples.
fn measure_cell(
    plan: &HyperScsiPlan,
    (round, at): (usize, usize),
    paths: &mut TestPaths,
    measured: &mut Measured,
    control: &mut Control<'_>,
    progress: impl Fn(usize) -> (usize, usize),
) -> Result<(), LabError> {
    let Some(samples) = measured.cells.get_mut(at) else { return Ok(()) };
    let cell = samples.cell;
    let seed = plan.seed.wrapping_add(u64::try_from(round).unwrap_or(0));
    paths.prepare(&cell, seed)?;
    let is_fresh = |bounds: &samples::Bounds| bounds.link != cell.link_plan();
    if cell.disturbance.is_none() && measured.bounds.iter().all(is_fresh) {
        measured.bounds.push(paths.bounds()?);
    }
    let mut order: Vec<usize> = (0..samples.contestants.len()).collect();
    order.rotate_left((round + at) % samples.contestants.len().max(1));
    let mut fresh = Vec::new();
    for (step, contestant) in order.into_iter().enumerate() {
        let Some((protocol, _)) = samples.contestants.get(contestant) else { continue };
        let is_aoe = *protocol == Protocol::Aoe;
        if is_aoe && measured.aoe_absent.is_some() {
            continue;
        }
        let (done, total) = progress(step);
        control.step(done, total, &format!("{}, {}, {}", cell.path(), protocol.name(), cell.workload));
        let found = match paths.measure(plan, &cell, *protocol, seed, control.stop) {
            // The others go on without it.
            Err(why) if is_aoe && !control.is_stopped() => {
                measured.aoe_absent =
                    Some(format!("it failed with {}, {}: {why}", cell.path(), cell.workload));
                continue;
            }
            found => found?,
        };
        let Some(found) = found else { return Ok(()) };
        measured.connections_lost += found.connections_lost;
        if !is_aoe {
            measured.engine = found.engine;
        }
        fresh.push((contestant, found.sample));
    }
    for (contestant, sample) in fresh {
        samples.contestants.get_mut(contestant).into_iter().for_each(|(_, list)| list.push(sample));
    }
    Ok(())
}
