//! `targe lab digests`: measures what iSCSI digests cost.

use clap::Args;
use lab::digests::{DigestsPlan, Subject, run as run_experiment};

use super::experiment::{ExperimentArgs, Plans, WriteArgs, this_program};
use crate::cli::URL_HELP;
use crate::{Failure, connect};

#[derive(Debug, Args)]
pub(crate) struct DigestsArgs {
    #[arg(help = format!("{URL_HELP} [default: a target on a virtual link of this machine, which needs root]"))]
    url: Option<String>,
    #[command(flatten)]
    experiment: ExperimentArgs,
    #[command(flatten)]
    consent: WriteArgs,
}

const PLANS: Plans<DigestsPlan> =
    Plans { full: DigestsPlan::full, quick: DigestsPlan::quick, parse: DigestsPlan::parse };

pub(super) fn run(args: &DigestsArgs) -> Result<(), Failure> {
    let plan = args.experiment.plan(&PLANS)?;
    let subject = subject(args)?;
    args.experiment.run("digests", |command, control| run_experiment(&plan, &subject, command, control))
}

fn subject(args: &DigestsArgs) -> Result<Subject, Failure> {
    let Some(text) = &args.url else { return Ok(Subject::Bed { program: this_program()? }) };
    let WriteArgs { write, force } = args.consent;
    Ok(Subject::Url { url: Box::new(connect::url(text)?), write, force })
}
