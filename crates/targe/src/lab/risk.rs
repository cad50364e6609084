//! `targe lab risk`: measures what becomes of damaged PDUs.

use clap::Args;
use lab::risk::plan::RiskPlan;
use lab::risk::{Subject, run as run_experiment};

use super::experiment::{ExperimentArgs, Plans, WriteArgs, this_program};
use crate::cli::URL_HELP;
use crate::{Failure, confirm, connect};

#[derive(Debug, Args)]
pub(crate) struct RiskArgs {
    #[arg(help = format!("{URL_HELP} [default: a target with a RAM disk on 127.0.0.1]"))]
    url: Option<String>,
    #[command(flatten)]
    experiment: ExperimentArgs,
    #[command(flatten)]
    consent: WriteArgs,
}

const PLANS: Plans<RiskPlan> =
    Plans { full: RiskPlan::default, quick: RiskPlan::quick, parse: RiskPlan::from_toml };

pub(super) fn run(args: &RiskArgs) -> Result<(), Failure> {
    let plan = args.experiment.plan(&PLANS)?;
    let subject = subject(args)?;
    args.experiment.run("risk", |command, control| run_experiment(&plan, &subject, command, control))
}

fn subject(args: &RiskArgs) -> Result<Subject, Failure> {
    let Some(text) = &args.url else { return Ok(Subject::Child { program: this_program()? }) };
    let url = connect::url(text)?;
    confirm::ask(args.consent.write, &format!("this overwrites what is on {url}"))?;
    Ok(Subject::Url { url: Box::new(url), force: args.consent.force })
}
