//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What `--lun` takes; its brackets are no links.
const LUN_HELP: &str = "Serve a LUN: file:PATH[,size=10G][,ro][,bs=4096][,direct], block:/dev/X, ram:512M, null:1T; \
                        lun=N fixes its number";

/// Serve disks over the network.
#[derive(Debug, Parser)]
#[command(name = "targe", version, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve disks until a signal ends it; without a flag, one of 1 GiB on 127.0.0.1:3260
    Serve(Box<ServeArgs>),
    /// Validate a configuration; mistakes are told as FILE:LINE:COLUMN, all at once
    Check(CheckArgs),
    /// Tell how the running daemon is
    Status(AskArgs),
    /// List the sessions of the running daemon
    Sessions(AskArgs),
    /// List the LUNs of the running daemon
    Luns(AskArgs),
    /// Run experiments, and the instruments they are made of
    Lab(crate::lab::LabArgs),
    /// Test whether a target or an initiator keeps to RFC 7143, whoever made it
    Conform(crate::conform::ConformArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Serve what a configuration file says
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Listen on an address; replaces the portals of the file [default: 127.0.0.1:3260]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Vec<String>,
    /// Serve HyperSCSI on an Ethernet interface (not in this build)
    #[arg(long)]
    pub(crate) iface: Vec<String>,
    /// Belong to a HyperSCSI group (not in this build)
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Vec<String>,
    /// Name the target
    #[arg(long, value_name = "IQN")]
    pub(crate) target: Option<String>,
    #[arg(long, value_name = "SPEC", help = LUN_HELP)]
    pub(crate) lun: Vec<String>,
    /// Drive sockets and files by io_uring or epoll: auto, uring or epoll
    #[arg(long, value_name = "KIND")]
    pub(crate) reactor: Option<String>,
    /// Spin instead of sleeping
    #[arg(long)]
    pub(crate) poll: bool,
    /// Run reactors on these cores, such as 0-3,6
    #[arg(long, value_name = "LIST")]
    pub(crate) cores: Option<String>,
    /// Keep state here [default: $XDG_STATE_HOME/targe or ~/.local/state/targe]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Answer questions on this admin socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Log this much: error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
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
