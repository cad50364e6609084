//! `targe lab hyperscsi`: measures HyperSCSI beside iSCSI.

use clap::Args;
use lab::hyperscsi::{HyperScsiPlan, run as run_experiment};

use super::experiment::{ExperimentArgs, Plans, this_program};
use crate::Failure;

#[derive(Debug, Args)]
pub(crate) struct HyperScsiArgs {
    #[command(flatten)]
    experiment: ExperimentArgs,
}

const PLANS: Plans<HyperScsiPlan> =
    Plans { full: HyperScsiPlan::full, quick: HyperScsiPlan::quick, parse: HyperScsiPlan::parse };

pub(super) fn run(args: &HyperScsiArgs) -> Result<(), Failure> {
    let plan = args.experiment.plan(&PLANS)?;
    let program = this_program()?;
    args.experiment.run("hyperscsi", |command, control| run_experiment(&plan, &program, command, control))
}
