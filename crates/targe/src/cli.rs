//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Serve disks over the network.
#[derive(Debug, Parser)]
#[command(name = "targe", version, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Validate a configuration; mistakes are told as FILE:LINE:COLUMN, all at once
    Check(CheckArgs),
    /// Tell how the running daemon is
    Status(AskArgs),
    /// List the sessions of the running daemon
    Sessions(AskArgs),
    /// List the LUNs of the running daemon
    Luns(AskArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file
    pub(crate) file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON object, as docs/admin-api.json describes it
    #[arg(long)]
    pub(crate) json: bool,
}
