//! What experiments have in common on the command line: their options, and how they are run.

use std::path::PathBuf;

use clap::Args;
use lab::experiment::{Control, LabError, Progress};
use lab::machine;
use lab::report::Report;

use super::output::{ProgressLine, command_line, default_directory, failure, publish};
use crate::{Failure, signals};

/// The options of every experiment.
#[derive(Debug, Args)]
pub(super) struct ExperimentArgs {
    /// Read what varies from this TOML file; docs/lab describes its keys
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    plan: Option<PathBuf>,
    /// Run the short plan, of about two minutes
    #[arg(long)]
    quick: bool,
    /// Write the report to this directory [default: targe-lab-EXPERIMENT-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The built-in plans of an experiment, and how a file is read.
pub(super) struct Plans<P> {
    pub(super) full: fn() -> P,
    pub(super) quick: fn() -> P,
    pub(super) parse: fn(&str) -> Result<P, LabError>,
}

impl ExperimentArgs {
    /// Returns the plan that the options choose.
    pub(super) fn plan<P>(&self, plans: &Plans<P>) -> Result<P, Failure> {
        let Some(file) = &self.plan else {
            return Ok(if self.quick { (plans.quick)() } else { (plans.full)() });
        };
        let misused = |why: String| Failure::Misused(format!("{}: {why}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|why| misused(why.to_string()))?;
        (plans.parse)(&text).map_err(|why| misused(why.to_string()))
    }

    /// Runs an experiment until its end or a signal, and writes the report. `run` receives the command line
    /// for the report.
    pub(super) fn run(
        &self,
        name: &str,
        run: impl FnOnce(&str, &mut Control<'_>) -> Result<Report, LabError>,
    ) -> Result<(), Failure> {
        let stop = signals::flag()?;
        let mut line = ProgressLine::new();
        let mut progress = |progress: Progress<'_>| line.show(&progress);
        let measured = run(&command_line(), &mut Control { stop: &stop, progress: &mut progress });
        line.clear();
        let mut report = measured.map_err(failure)?;
        name_commit(&mut report);
        let directory = self.out.clone().unwrap_or_else(|| default_directory(name, &machine::timestamp()));
        publish(&report, &directory)
    }
}

/// Adds the commit of this build to the version in the table of the machine.
fn name_commit(report: &mut Report) {
    let versions = report.machine.iter_mut().filter(|(name, _)| name == "targe");
    versions.for_each(|(_, version)| *version = format!("{version}, {COMMIT}"));
}

/// The commit of this build, or the reason why it is not known.
const COMMIT: &str = env!("TARGE_COMMIT");

/// The consent to write to the LUN of a URL.
#[derive(Debug, Args)]
pub(super) struct WriteArgs {
    /// Write to the LUN; data on it is lost
    #[arg(long, requires = "url")]
    pub(super) write: bool,
    /// Write even if the LUN holds a file system or a partition table
    #[arg(long, requires = "write")]
    pub(super) force: bool,
}

/// Returns this program, which experiments start as a target.
pub(super) fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|why| Failure::Failed(format!("cannot find this program: {why}")))
}
