//! What does encryption cost here, and which one is the cheapest? Measures a simple socket and iSCSI in the
//! clear, with TLS 1.3, with AEAD records and through IPsec, and iSCSI in the clear to a proxy that has them.
//!
//! One target process serves the same RAM disk through every protection, and one initiator loads it. Within a
//! round, the protections run directly one after the other for each workload, by a Williams square.

mod certificate;
mod findings;
mod ipsec;
mod measure;
mod plan;
mod protection;
mod records;
mod samples;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Instant;

use crate::experiment::{Control, LabError};
use crate::machine;
use crate::report::{Ended, Report};
use crate::rounds::{self, Place, Turn};

pub use plan::{Access, SecurityPlan};
pub use protection::Protection;

use measure::TestPath;
use samples::{Cell, CellSamples, Measured};

/// Runs the experiment with a target that `program serve` provides on a [bed](crate::bed), which needs root.
/// `command` is the command line that repeats it, for the report.
///
/// # Errors
/// [`LabError`] if nothing could be measured. A failure after the first measurement ends in a report.
pub fn run(
    plan: &SecurityPlan,
    program: &Path,
    command: &str,
    control: &mut Control<'_>,
) -> Result<Report, LabError> {
    let (started, clock, mut machine) = (machine::timestamp(), Instant::now(), machine::describe());
    let load = machine::load_average().unwrap_or(0.0);
    let mut path = TestPath::open(program, plan, control.stop)?;
    let absent = path.absent(plan);
    let cells: Vec<CellSamples> =
        Cell::all(plan).into_iter().map(|cell| CellSamples::new(cell, plan, &absent)).collect();
    let esp = path.tunnels.as_ref().map(|tunnels| tunnels.carrier.clone()).unwrap_or_default();
    let mut measured = Measured { cells, absent, esp, ..Measured::default() };
    if let Some(why) = nothing_to_measure(&measured) {
        return Err(LabError::Plan(why));
    }
    let ended = match measure_all(plan, &mut path, &mut measured, control) {
        Ok(ended) => ended,
        Err(why) if measured.cells.iter().all(|cell| cell.rounds() == 0) => return Err(why),
        Err(why) => Ended::Early(why.to_string()),
    };
    drop(path);
    if !measured.engine.is_empty() {
        machine.push(("I/O engine of the initiator".to_owned(), measured.engine.clone()));
    }
    if !measured.esp.is_empty() {
        machine.push(("IPsec".to_owned(), measured.esp.clone()));
    }
    Ok(Report {
        started,
        seconds: clock.elapsed().as_secs_f64(),
        caveats: findings::caveats(&measured, load),
        machine,
        command: command.to_owned(),
        ..findings::report(plan, &measured, &ended)
    })
}

/// Returns why no protection of the plan can be measured, if that is so.
fn nothing_to_measure(measured: &Measured) -> Option<String> {
    let is_empty = measured.cells.iter().all(|cell| cell.settings.is_empty());
    is_empty.then(|| match measured.absent.first() {
        Some(row) => format!("protection: {} cannot be measured here: {}", row.protection.name(), row.why),
        None => "protection: a proxy carries iSCSI alone; add read or write to access".to_owned(),
    })
}

/// Measures round after round.
fn measure_all(
    plan: &SecurityPlan,
    path: &mut TestPath,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<Ended, LabError> {
    let settings: Vec<usize> = measured.cells.iter().map(|cell| cell.settings.len()).collect();
    rounds::measure_all((plan.rounds, plan.seed), &settings, control, |place, control| {
        measure_cell(plan, place, path, measured, control)
    })
}

/// Measures one workload with every protection. A round that is not complete leaves no samples.
fn measure_cell(
    plan: &SecurityPlan,
    place: Place,
    path: &mut TestPath,
    measured: &mut Measured,
    control: &mut Control<'_>,
) -> Result<(), LabError> {
    let Some(samples) = measured.cells.get_mut(place.at) else { return Ok(()) };
    let cell = samples.cell;
    let link = cell.link_plan();
    let fresh = measured.calibrations.iter().all(|(known, _)| *known != link);
    measured.calibrations.extend(path.set_link(link, fresh)?.map(|found| (link, found)));
    rounds::measure_cell(place, &mut samples.settings, |done, protection| {
        let what = format!("{}, {}, {}", cell.path(), protection.title(), cell.workload());
        control.step(done, place.total, &what);
        let found = path.measure(plan, &cell, protection, place.round_seed(), control.stop)?;
        let Some(found) = found else { return Ok(Turn::Stopped) };
        measured.connections_lost += found.connections_lost;
        if let Some((engine, negotiated)) = found.session {
            measured.sessions.record(protection.title(), negotiated);
            measured.engine = engine;
        }
        Ok(Turn::Measured(found.sample))
    })
}
