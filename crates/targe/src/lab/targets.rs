//! `targe lab targets`: compares targets side by side.

use std::path::PathBuf;

use clap::Args;
use lab::targets::{Subject, TargetsPlan, choose, rivals, run as run_experiment};

use super::experiment::{ExperimentArgs, Plans, this_program};
use super::output::failure;
use crate::Failure;

#[derive(Debug, Args)]
pub(crate) struct TargetsArgs {
    /// Compare targe with this target only, such as tgt, istgt, lio, scst or spdk; can be repeated
    /// [default: all]
    #[arg(long = "rival", value_name = "NAME")]
    names: Vec<String>,
    /// Read more rival files, NAME.toml, from this directory; docs/lab/targets.md describes their keys.
    /// Their commands run as root
    #[arg(long, value_name = "DIR")]
    rivals: Option<PathBuf>,
    #[command(flatten)]
    experiment: ExperimentArgs,
}

const PLANS: Plans<TargetsPlan> =
    Plans { full: TargetsPlan::full, quick: TargetsPlan::quick, parse: TargetsPlan::parse };

pub(super) fn run(args: &TargetsArgs) -> Result<(), Failure> {
    let plan = args.experiment.plan(&PLANS)?;
    let known = rivals(args.rivals.as_deref()).map_err(failure)?;
    let rivals = choose(known, &args.names).map_err(failure)?;
    let subject = Subject { program: this_program()?, rivals };
    args.experiment.run("targets", |command, control| run_experiment(&plan, &subject, command, control))
}
