//! `targe lab security`: measures what encryption costs.

use clap::Args;
use lab::security::{SecurityPlan, run as run_experiment};

use super::experiment::{ExperimentArgs, Plans, this_program};
use crate::Failure;

#[derive(Debug, Args)]
pub(crate) struct SecurityArgs {
    #[command(flatten)]
    experiment: ExperimentArgs,
}

const PLANS: Plans<SecurityPlan> =
    Plans { full: SecurityPlan::full, quick: SecurityPlan::quick, parse: SecurityPlan::parse };

pub(super) fn run(args: &SecurityArgs) -> Result<(), Failure> {
    let plan = args.experiment.plan(&PLANS)?;
    let program = this_program()?;
    args.experiment.run("security", |command, control| run_experiment(&plan, &program, command, control))
}
