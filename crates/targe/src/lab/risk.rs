//! `targe lab risk`: measures what becomes of damaged PDUs.

use std::path::PathBuf;

use clap::Args;
use lab::experiment::{Control, Progress};
use lab::machine;
use lab::risk::plan::RiskPlan;
use lab::risk::{Subject, run as run_experiment};

use super::output::{ProgressLine, command_line, default_directory, failure, publish};
use crate::cli::URL_HELP;
use crate::{Failure, confirm, connect, signals};

#[derive(Debug, Args)]
pub(crate) struct RiskArgs {
    #[arg(help = format!("{URL_HELP} [default: a target with a RAM disk on 127.0.0.1]"))]
    url: Option<String>,
    /// Read what varies from this TOML file: digests, erl, faults, trials, controls, lengths, range,
    /// sessions, timeout_ms, reseal, seed
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    plan: Option<PathBuf>,
    /// Damage fewer PDUs: about one minute instead of five
    #[arg(long)]
    quick: bool,
    /// Write the report to this directory [default: targe-lab-risk-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write to the LUN without asking; data on it is lost
    #[arg(long, requires = "url")]
    write: bool,
    /// Write even if the LUN holds a file system or a partition table
    #[arg(long, requires = "write")]
    force: bool,
}

pub(super) fn run(args: &RiskArgs) -> Result<(), Failure> {
    let plan = plan(args)?;
    let subject = subject(args)?;
    let stop = signals::flag()?;
    let mut line = ProgressLine::new();
    let mut progress = |progress: Progress<'_>| line.show(&progress);
    let mut control = Control { stop: &stop, progress: &mut progress };
    let measured = run_experiment(&plan, &subject, &command_line(), &mut control);
    line.clear();
    let report = measured.map_err(failure)?;
    let directory = args.out.clone().unwrap_or_else(|| default_directory("risk", &machine::timestamp()));
    publish(&report, &directory)
}

fn plan(args: &RiskArgs) -> Result<RiskPlan, Failure> {
    let Some(file) = &args.plan else {
        return Ok(if args.quick { RiskPlan::quick() } else { RiskPlan::default() });
    };
    let misused = |why: String| Failure::Misused(format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|why| misused(why.to_string()))?;
    RiskPlan::from_toml(&text).map_err(|why| misused(why.to_string()))
}

fn subject(args: &RiskArgs) -> Result<Subject, Failure> {
    let Some(text) = &args.url else {
        let program = std::env::current_exe();
        let program = program.map_err(|why| Failure::Failed(format!("cannot find this program: {why}")))?;
        return Ok(Subject::Child { program });
    };
    let url = connect::url(text)?;
    confirm::ask(args.write, &format!("this overwrites what is on {url}"))?;
    Ok(Subject::Url { url: Box::new(url), force: args.force })
}
