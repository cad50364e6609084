//! The client of experiments that load a LUN: its session, its plan, and what it learns of the LUN first.

use std::time::Duration;

use drivers::config::{Config, SpinMode};
use initiator::driver::plan as session_plan;
use initiator::{Client, Disk, EnvSecrets, Error, Geometry, Lun, OpenOptions, Url, block_on};

use crate::bed::{Bed, is_not_permitted};
use crate::bench::{BenchPlan, Job};
use crate::experiment::LabError;

/// How long a session waits for a target that is gone, unless the URL sets a limit.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `work` on the initiator's host of a bed, or here.
pub(crate) fn run_on<T: Send>(bed: Option<&Bed>, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
    match bed {
        Some(bed) => bed.initiator().run(work),
        None => Ok(work()),
    }
}

/// Returns one session for a load of so many commands at a time.
pub(crate) fn job(url: &Url, geometry: &Geometry, depth: usize) -> Result<Job, LabError> {
    let mut session = session_plan(url, &EnvSecrets).map_err(|why| LabError::Plan(why.to_string()))?;
    session.renew_isid();
    session.want_tasks(depth);
    Ok(Job {
        session,
        lun: Lun::from_number(url.lun).unwrap_or(Lun(0)),
        geometry: geometry.clone(),
        name: url.to_string(),
        command_timeout: url.endpoint.options.command_timeout,
        cipher: None,
    })
}

/// Returns a load of random reads without a duration.
pub(crate) fn load(jobs: Vec<Job>, block_bytes: u32, depth: usize) -> BenchPlan {
    BenchPlan {
        jobs,
        read_percent: 100,
        random: true,
        block_bytes,
        depth,
        rate: None,
        range: (0, u64::MAX),
        time: Duration::ZERO,
        warmup: Duration::ZERO,
        count: None,
        seed: 0,
        threads: 1,
        // Processor time spent on polling would hide what is measured.
        reactor: Config { spin_mode: SpinMode::Never, ..Config::default() },
    }
}

pub(crate) fn seconds(count: f64) -> Duration {
    Duration::try_from_secs_f64(count).unwrap_or_default()
}

/// Logs in with the URL's own digests, reads the geometry of the unit and logs out.
pub(crate) fn geometry_of(url: &Url) -> Result<Geometry, LabError> {
    let client = Client::new().map_err(|why| unreachable_target(&why))?;
    let geometry = block_on(async {
        let disk: Disk = OpenOptions::new().open(&client, url).await?;
        let geometry = disk.geometry();
        let _ = disk.session().log_out().await;
        Ok(geometry)
    });
    geometry.map_err(|why: Error| unreachable_target(&why))
}

pub(crate) fn unreachable_target(why: &Error) -> LabError {
    LabError::Target(why.report().to_string())
}

/// Explains an error of [`Bed::create`] for want of rights; `otherwise` is what to do without them.
pub(crate) fn explain_rights(why: LabError, otherwise: &str) -> LabError {
    if !is_not_permitted(&why) {
        return why;
    }
    LabError::Plan(format!(
        "{why}: an experiment that makes its own target needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN). Run it as \
         root{otherwise}"
    ))
}
