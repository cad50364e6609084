//! `targe lab digests`: measures what iSCSI digests cost.

use std::path::PathBuf;

use clap::Args;
use lab::digests::{DigestsPlan, Subject, run as run_experiment};
use lab::experiment::{Control, Progress};
use lab::machine;

use super::output::{ProgressLine, command_line, default_directory, failure, publish};
use crate::cli::URL_HELP;
use crate::{Failure, connect, signals};

#[derive(Debug, Args)]
pub(crate) struct DigestsArgs {
    #[arg(help = format!("{URL_HELP} [default: a target on a virtual link of this machine, which needs root]"))]
    url: Option<String>,
    /// Read what varies from this TOML file: rounds, seconds, warmup, digests, mtu, depth, block, mix, link, seed
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    plan: Option<PathBuf>,
    /// Measure for two minutes instead of fifteen
    #[arg(long)]
    quick: bool,
    /// Write the report to this directory [default: targe-lab-digests-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write to the LUN too; data on it is lost
    #[arg(long, requires = "url")]
    write: bool,
    /// Write even if the LUN holds a file system or a partition table
    #[arg(long, requires = "write")]
    force: bool,
}

pub(super) fn run(args: &DigestsArgs) -> Result<(), Failure> {
    let plan = plan(args)?;
    let subject = subject(args)?;
    let stop = signals::flag()?;
    let mut line = ProgressLine::new();
    let mut progress = |progress: Progress<'_>| line.show(&progress);
    let mut control = Control { stop: &stop, progress: &mut progress };
    let measured = run_experiment(&plan, &subject, &command_line(), &mut control);
    line.clear();
    let report = measured.map_err(failure)?;
    let directory = args.out.clone().unwrap_or_else(|| default_directory("digests", &machine::timestamp()));
    publish(&report, &directory)
}

fn plan(args: &DigestsArgs) -> Result<DigestsPlan, Failure> {
    let Some(file) = &args.plan else {
        return Ok(if args.quick { DigestsPlan::quick() } else { DigestsPlan::full() });
    };
    let misused = |why: String| Failure::Misused(format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|why| misused(why.to_string()))?;
    DigestsPlan::parse(&text).map_err(|why| misused(why.to_string()))
}

fn subject(args: &DigestsArgs) -> Result<Subject, Failure> {
    let Some(text) = &args.url else {
        let program = std::env::current_exe();
        let program = program.map_err(|why| Failure::Failed(format!("cannot find this program: {why}")))?;
        return Ok(Subject::Bed { program });
    };
    let url = connect::url(text)?;
    Ok(Subject::Url { url: Box::new(url), write: args.write, force: args.force })
}
