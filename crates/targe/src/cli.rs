//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The help text of `--lun`; its brackets are no links.
const LUN_HELP: &str = "Serve a LUN: file:PATH[,size=10G][,ro][,bs=4096][,direct], block:/dev/X, ram:512M, null:1T, disc:FILE.iso, nbd:URI; \
                        lun=N sets its number, protection=encrypt requires encrypted access; docs/config.md lists the \
                        keys";

/// Serve disks over the network.
#[derive(Debug, Parser)]
#[command(name = "targe", version, long_version = crate::version::BUILD, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve disks until a signal; without flags, one disk of 1 GiB on 127.0.0.1:3260
    Serve(Box<ServeArgs>),
    /// Validate a configuration and print all mistakes with FILE:LINE:COLUMN
    Check(CheckArgs),
    /// Show the state of the running daemon
    Status(AdminArgs),
    /// List the sessions of the running daemon
    Sessions(AdminArgs),
    /// List the LUNs of the running daemon
    Luns(AdminArgs),
    /// Show what the LUNs and sessions of the running daemon do, from second to second
    Top(crate::top::TopArgs),
    /// Make the running daemon serve what a configuration file says; show the difference first
    Apply(crate::change::ApplyArgs),
    /// Add, change or remove a target of the running daemon and of its configuration file
    #[command(subcommand)]
    Target(crate::edit::TargetCommand),
    /// Add, change, enlarge or remove a LUN of the running daemon and of its configuration file
    #[command(subcommand)]
    Lun(crate::edit::LunCommand),
    /// Change who may use a target, in the running daemon and in its configuration file
    #[command(subcommand)]
    Acl(crate::edit::AclCommand),
    /// Change what initiators must prove, in the running daemon and in its configuration file
    #[command(subcommand)]
    User(crate::edit::UserCommand),
    /// End sessions
    #[command(subcommand)]
    Session(crate::session::SessionCommand),
    /// Show reservations of LUNs, and remove those of hosts that are gone
    #[command(subcommand)]
    Reservation(crate::reservation::ReservationCommand),
    /// Record what the sessions of an initiator do in a capture that Wireshark opens
    Trace(crate::trace::TraceArgs),
    /// Replace the running daemon by a new process, which takes over its sessions
    Upgrade(crate::upgrade::UpgradeArgs),
    /// List the targets of an iSCSI portal, or of a HyperSCSI group, and their LUNs
    Discover(DiscoverArgs),
    /// Show what a LUN reports: INQUIRY, vital product data, capacity, negotiated parameters
    Info(InfoArgs),
    /// Write blocks of a LUN to stdout
    Read(ReadArgs),
    /// Write stdin to a LUN
    Write(WriteArgs),
    /// Benchmark LUNs: generate load, report throughput and latency
    Bench(Box<BenchArgs>),
    /// Write blocks that hold their own identity, read them back and report every wrong one
    Verify(Box<VerifyArgs>),
    /// Attach LUNs as a local disk until a signal
    Attach(crate::attach::AttachArgs),
    /// Make and show LUKS2 images, the form of encrypted disks
    Luks(crate::luks::LuksArgs),
    /// Keep records of users' passwords for a target, which then needs no password in the clear
    Passwd(crate::passwd::PasswdArgs),
    /// Make, list and verify virtual tape cartridges, and import and export tape images
    Tape(crate::tape::TapeArgs),
    /// Make and list tape libraries, and put cartridges into them or take them out, as an operator does
    Changer(crate::changer::ChangerArgs),
    /// Make images of blank writable discs, and show what is on one
    Disc(crate::disc::DiscArgs),
    /// Carry iSCSI of an initiator of this host to a portal, encrypted by TLS or a password, until a signal
    Proxy(crate::proxy::ProxyArgs),
    /// Serve volumes to Kubernetes (CSI), as controller, as node or as both, until a signal
    Csi(Box<crate::csi::CsiArgs>),
    /// Run experiments with reports, and test instruments: fault-injecting proxies
    Lab(crate::lab::LabArgs),
    /// Test the conformance of any target or initiator to RFC 7143, or of a device to SSC, SMC or MMC
    Conform(crate::conform::ConformArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Write the manual pages of targe and of each subcommand to a directory
    Man(ManArgs),
    /// Describe a command
    Help(HelpArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Serve the targets of a configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Listen on an address; replaces the portals of the file [default: 127.0.0.1:3260]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Vec<String>,
    /// Serve HyperSCSI on these Ethernet interfaces, separated by commas; without --listen, no iSCSI
    #[arg(long, value_delimiter = ',')]
    pub(crate) iface: Vec<String>,
    /// Serve HyperSCSI to a group
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Vec<String>,
    /// Require the password in this file of all groups; --config can set one for each group
    #[arg(long, value_name = "FILE", requires = "group")]
    pub(crate) group_password_file: Option<PathBuf>,
    /// Name the target
    #[arg(long, value_name = "IQN")]
    pub(crate) target: Option<String>,
    #[arg(long, value_name = "SPEC", help = LUN_HELP)]
    pub(crate) lun: Vec<String>,
    /// Use this I/O interface for sockets and files: auto, uring or epoll
    #[arg(long, value_name = "KIND")]
    pub(crate) reactor: Option<String>,
    /// Busy-poll instead of sleeping
    #[arg(long)]
    pub(crate) poll: bool,
    /// Run reactors on these cores, such as 0-3,6
    #[arg(long, value_name = "LIST")]
    pub(crate) cores: Option<String>,
    /// Keep persistent state in this directory [default: $XDG_STATE_HOME/targe or ~/.local/state/targe]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Serve the admin API on this socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Write the log as text, or as one JSON object a line: text or json
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Serve a status page, an API and metrics by HTTP; other hosts need a token or a TLS certificate
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) http: Option<String>,
    /// Require a token of this file of HTTP clients; a line is NAME ROLE TOKEN, a role read or admin
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) http_token_file: Option<PathBuf>,
    /// Do not start unless every medium is there; without it, LUNs whose media come later wait for them
    #[arg(long)]
    pub(crate) strict: bool,
    /// End when stdin closes, and remove the state directory then
    #[arg(long, hide = true, requires = "state_dir")]
    pub(crate) ephemeral: bool,
    /// Log messages of this level and above: error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file
    pub(crate) file: PathBuf,
    /// The state directory of its daemon, which has the drives of tape libraries that cannot be read now
    /// [default: that of the file, else /var/lib/targe for a file in /etc/targe]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON object, as docs/admin-api.json describes it
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    /// The portal, or a URL without a target; its query sets protocol keys
    #[arg(value_name = "HOST[:PORT]")]
    pub(crate) portal: Option<String>,
    /// Print one JSON array with an object for each LUN
    #[arg(long)]
    pub(crate) json: bool,
    /// Authenticate as this CHAP user
    #[arg(long, value_name = "NAME", conflicts_with = "group")]
    pub(crate) user: Option<String>,
    /// Read the CHAP password from a file [default: $TARGE_PASSWORD]
    #[arg(long, value_name = "FILE", conflicts_with = "group")]
    pub(crate) password_file: Option<String>,
    /// Require the target to authenticate as this CHAP user
    #[arg(long, value_name = "NAME", conflicts_with = "group")]
    pub(crate) target_user: Option<String>,
    /// Read the target's CHAP password from a file [default: $TARGE_TARGET_PASSWORD]
    #[arg(long, value_name = "FILE", conflicts_with = "group")]
    pub(crate) target_password_file: Option<String>,
    /// Use this initiator name
    #[arg(long, value_name = "IQN", conflicts_with = "group")]
    pub(crate) initiator: Option<String>,
    /// Discover the targets of a HyperSCSI group on the networks of --iface; this needs no password
    #[arg(long, value_name = "NAME", requires = "iface", conflicts_with = "portal")]
    pub(crate) group: Option<String>,
    /// Search on these Ethernet interfaces, separated by commas
    #[arg(long, value_delimiter = ',', requires = "group")]
    pub(crate) iface: Vec<String>,
    /// Wait this many seconds for answers [default: until no new ones arrive; 2 if there is none]
    #[arg(long, value_name = "SECONDS", requires = "group", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) wait: Option<u64>,
}

/// The help text of `URL`; its brackets are no links.
pub(crate) const URL_HELP: &str = "The LUN: iscsi://[USER@]HOST[:PORT]/IQN/LUN[?KEY=VALUE&...], or \
                                   hyperscsi://GROUP@INTERFACE/IQN/LUN[?...]; docs/initiator.md lists the keys. A \
                                   password comes from ?password_file=FILE or $TARGE_PASSWORD";

#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    #[arg(help = URL_HELP)]
    pub(crate) url: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    #[arg(help = URL_HELP)]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) span: SpanArgs,
    /// Write to stdout even if it is a terminal
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    #[arg(help = URL_HELP)]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) span: SpanArgs,
    /// Write without confirmation
    #[arg(long)]
    pub(crate) write: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SpanArgs {
    /// Start at this byte of the LUN
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub(crate) offset: u64,
    /// Transfer this many bytes [default: to the end of the LUN, or of the input]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) length: Option<u64>,
    /// Transfer this many bytes in each command
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    pub(crate) bs: u64,
    /// Queue depth: keep this many commands outstanding
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[arg(required = true, help = URL_HELP)]
    pub(crate) url: Vec<String>,
    /// Read, write, or mix both: read, write, mixed or mixed:PERCENT-OF-READS
    #[arg(long, value_name = "KIND", default_value = "read", value_parser = read_percent)]
    pub(crate) rw: u8,
    /// Use random addresses instead of sequential ones
    #[arg(long)]
    pub(crate) random: bool,
    /// Transfer this many bytes in each command
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    pub(crate) bs: u64,
    /// Queue depth: keep this many commands outstanding in each session
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) depth: u32,
    /// Use this many connections in each session [default: that of the URL, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) connections: Option<u16>,
    /// Open this many sessions with each URL
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) sessions: u32,
    /// Distribute the sessions over this many reactors [default: one for each session, up to the processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Measure for this many seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = some_seconds)]
    pub(crate) time: std::time::Duration,
    /// Warm up for this many seconds before the measurement
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    pub(crate) warmup: std::time::Duration,
    /// Instead, measure this many commands of each session, from the start of the first to the end of the
    /// last
    #[arg(long, value_name = "N", conflicts_with_all = ["time", "warmup"], value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Decrypt the LUKS2 image on each LUN with the secret in this file, and load its data; the target never
    /// sees plain data
    #[arg(long, value_name = "KEY_FILE")]
    pub(crate) luks: Option<PathBuf>,
    /// Use this part of each LUN only: LENGTH, or OFFSET,LENGTH
    #[arg(long, value_name = "RANGE", value_parser = range)]
    pub(crate) range: Option<(u64, u64)>,
    /// Derive addresses and data from this seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Use this I/O interface for sockets: auto, uring or epoll
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub(crate) reactor: drivers::config::EngineChoice,
    /// Busy-poll instead of sleeping
    #[arg(long)]
    pub(crate) poll: bool,
    /// Write without confirmation; data on the LUNs is lost
    #[arg(long)]
    pub(crate) write: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[arg(help = URL_HELP)]
    pub(crate) url: String,
    /// Decrypt the LUKS2 image on the LUN with the secret in this file; the target never sees plain data
    #[arg(long, value_name = "KEY_FILE")]
    pub(crate) luks: Option<PathBuf>,
    /// Write every block of the LUN instead of as many as time allows
    #[arg(long)]
    pub(crate) full: bool,
    /// Without --full, write for this many seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) time: std::time::Duration,
    /// Perform this many random operations instead; with --depth 1, the same seed repeats the run exactly
    #[arg(long, value_name = "N", conflicts_with_all = ["full", "time"])]
    pub(crate) count: Option<u64>,
    /// Fill blocks with this pattern: fixed, walking-one, walking-zero, long-runs, checksum-neutral, random,
    /// counting [default: each in turn]
    #[arg(long, value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,
    /// Use this part of the LUN only: LENGTH, or OFFSET,LENGTH
    #[arg(long, value_name = "RANGE", value_parser = range)]
    pub(crate) range: Option<(u64, u64)>,
    /// Sign blocks of this length, 512 to 64K [default: 4K, more on large LUNs]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) unit: Option<u64>,
    /// Transfer at most this many bytes in each command
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    pub(crate) bs: u64,
    /// Queue depth: keep this many commands outstanding
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,
    /// Derive addresses and contents from this seed [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// End at the first wrong block
    #[arg(long)]
    pub(crate) stop_on_corruption: bool,
    /// Only write: use no WRITE SAME and no UNMAP
    #[arg(long)]
    pub(crate) no_zeroes: bool,
    /// Use no COMPARE AND WRITE
    #[arg(long)]
    pub(crate) no_compare: bool,
    /// End after this many failed commands
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) errors: u64,
    /// Record what was sent and acknowledged in this new journal file
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Flush each entry of the journal to stable storage before its command is sent
    #[arg(long, requires = "journal")]
    pub(crate) sync_journal: bool,
    /// Write nothing: judge the LUN by the journal of an earlier run
    #[arg(long, requires = "journal", conflicts_with_all = ["full", "sync_journal"])]
    pub(crate) check: bool,
    /// With --check: the target lost power, so writes that were not flushed may be lost
    #[arg(long, requires = "check")]
    pub(crate) power_lost: bool,
    /// Write without confirmation; data on the LUN is lost
    #[arg(long)]
    pub(crate) write: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A command and its subcommand, such as `lun add`
    #[arg(value_name = "COMMAND")]
    pub(crate) words: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: CompletionShell,
}

/// A shell that targe has completions for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory, which is created if it is missing
    pub(crate) dir: PathBuf,
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    daemon::config::parse_size(text)
}

/// Parses a duration that is longer than zero.
fn some_seconds(text: &str) -> Result<std::time::Duration, String> {
    match seconds(text)? {
        std::time::Duration::ZERO => Err("the duration must be longer than zero".to_owned()),
        span => Ok(span),
    }
}

fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let span = std::time::Duration::try_from_secs_f64(number).map_err(|error| error.to_string())?;
    if span > std::time::Duration::from_secs(86_400) {
        return Err("more than a day".to_owned());
    }
    Ok(span)
}

/// Parses `read`, `write`, `mixed` and `mixed:PCT`: the percentage of commands that are reads.
fn read_percent(text: &str) -> Result<u8, String> {
    let percent = match text {
        "read" => Some(100),
        "write" => Some(0),
        "mixed" => Some(50),
        _ => text.strip_prefix("mixed:").and_then(|percent| percent.parse().ok()),
    };
    percent
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| "expected read, write, mixed or mixed:PERCENT, such as mixed:70".to_owned())
}

fn range(text: &str) -> Result<(u64, u64), String> {
    match text.split_once(',') {
        Some((offset, length)) => Ok((size(offset)?, size(length)?)),
        None => Ok((0, size(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn kinds_of_load_are_shares_of_reads() {
        for (text, percent) in [("read", 100), ("write", 0), ("mixed", 50), ("mixed:70", 70), ("mixed:0", 0)]
        {
            assert_eq!(read_percent(text), Ok(percent));
        }
        for text in ["", "reads", "mixed:", "mixed:101", "mixed:-1"] {
            assert!(read_percent(text).is_err(), "{text}");
        }
    }
}
