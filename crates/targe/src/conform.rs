//! `targe conform`: which suite runs against which peer, and how its results are shown.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use conformance::{
    CaseInfo, CaseResult, Credentials, Secret, Selection, Summary, Verdict, initiator, report, target,
};

use crate::{Failure, print};

#[derive(Debug, Args)]
pub(crate) struct ConformArgs {
    #[command(subcommand)]
    pub(crate) side: Conformed,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Conformed {
    /// Test a target
    Target(Box<ConformTarget>),
    /// Test an initiator by serving it a scripted disk
    Initiator(Box<ConformInitiator>),
}

/// The cases to run, and how they are reported.
#[derive(Debug, Args)]
pub(crate) struct ConformShown {
    /// Run the cases that match these patterns, such as `ffp-t-16.*`
    #[arg(long, value_name = "PATTERN")]
    pub(crate) only: Vec<String>,
    /// List the cases and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Print one JSON object on stdout, and the lines on stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the PDUs of every case, not only of those that failed
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Write a report in Markdown too
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// The subject of the report [default: the address]
    #[arg(long, value_name = "TEXT")]
    pub(crate) subject: Option<String>,
    /// The time limit of one case, in seconds [default: 20 for a target, 30 for an initiator]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) limit: Option<u64>,
    /// The time limit of a response, in milliseconds [default: 3000 for a target, 5000 for an initiator]
    #[arg(long, value_name = "MS")]
    pub(crate) patience: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ConformTarget {
    /// Its portals, `HOST[:PORT]`; several are used in turn for the connections of a session
    #[arg(value_name = "ADDR")]
    pub(crate) portals: Vec<String>,
    /// Its name [default: the first that discovery shows]
    #[arg(long, value_name = "IQN")]
    pub(crate) target: Option<String>,
    /// The LUN to use, whose type decides the cases: a disk, tape drive, medium changer or disc drive
    /// [default: the first disk, or else the first LUN of another of these types]
    #[arg(long)]
    pub(crate) lun: Option<u16>,
    /// Let cases overwrite the first blocks of a disk and the cartridge of a tape drive, move the cartridges
    /// of a changer and eject a disc
    #[arg(long)]
    pub(crate) write: bool,
    /// Restart the target with this command when it cannot be reached any more, and continue; the first line
    /// that the command prints is reported with the case. Without it, the remaining cases are skipped
    #[arg(long, value_name = "CMD")]
    pub(crate) revive: Option<String>,
    /// Log in with this initiator name
    #[arg(long, value_name = "IQN")]
    pub(crate) initiator: Option<String>,
    /// Authenticate by CHAP as this user; the password may also come from TARGE_PASSWORD
    #[arg(long, value_name = "NAME[%PASSWORD]")]
    pub(crate) user: Option<String>,
    /// Read the password of --user from a file
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Require the target to authenticate as this user; the password may also come from TARGE_MUTUAL_PASSWORD
    #[arg(long, value_name = "NAME[%PASSWORD]")]
    pub(crate) mutual_user: Option<String>,
    /// Read the password of --mutual-user from a file
    #[arg(long, value_name = "FILE")]
    pub(crate) mutual_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) shown: ConformShown,
}

#[derive(Debug, Args)]
pub(crate) struct ConformInitiator {
    /// Listen on this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Start the initiator with this command, once for each case; {url}, {portal}, {iqn} and {id} are
    /// replaced. Without it, start one by hand when a case asks for it
    #[arg(long, value_name = "CMD")]
    pub(crate) exec: Option<String>,
    /// Start the discovery of targets by the initiator with this command
    #[arg(long, value_name = "CMD")]
    pub(crate) discover: Option<String>,
    #[command(flatten)]
    pub(crate) shown: ConformShown,
}

pub(crate) fn run(args: ConformArgs) -> Result<(), Failure> {
    match args.side {
        Conformed::Target(args) => on_target(&args),
        Conformed::Initiator(args) => on_initiator(&args),
    }
}

fn on_target(args: &ConformTarget) -> Result<(), Failure> {
    let shown = &args.shown;
    let selection = Selection::new(&shown.only);
    if let Some(pattern) = selection.idle(&target::list()) {
        return Err(Failure::Misused(format!("--only {pattern}: no case matches; see --list")));
    }
    if shown.list {
        list(&target::list(), &selection);
        return Ok(());
    }
    let options = options(args)?;
    let run = target::run(&options, &selection, |result| tell(result, shown.json, shown.verbose))
        .map_err(Failure::Failed)?;
    if let Some(words) = run.left_out_words() {
        eprintln!("targe: {words}");
    }
    let subject = shown.subject.clone().unwrap_or_else(|| args.portals.join(", "));
    finish(&run.results, shown.json, shown.report.as_deref(), &subject, "targe conform target")
}

fn on_initiator(args: &ConformInitiator) -> Result<(), Failure> {
    let shown = &args.shown;
    let selection = Selection::new(&shown.only);
    if let Some(pattern) = selection.idle(&initiator::list()) {
        return Err(Failure::Misused(format!("--only {pattern}: no case matches; see --list")));
    }
    if shown.list {
        list(&initiator::list(), &selection);
        return Ok(());
    }
    let Some(listen) = args.listen else {
        return Err(Failure::Misused("name an address to listen on: --listen ADDR:PORT".to_owned()));
    };
    let options = initiator::Options {
        listen,
        exec: args.exec.clone(),
        discover: args.discover.clone(),
        limit: shown.limit.map_or(initiator::LIMIT, Duration::from_secs),
        patience: shown.patience.map_or(initiator::PATIENCE, Duration::from_millis),
    };
    let results = initiator::run(&options, &selection, |result| tell(result, shown.json, shown.verbose))
        .map_err(Failure::Failed)?;
    let subject = shown.subject.clone().unwrap_or_else(|| args.exec.clone().unwrap_or_default());
    finish(&results, shown.json, shown.report.as_deref(), &subject, "targe conform initiator")
}

fn options(args: &ConformTarget) -> Result<target::Options, Failure> {
    let mut portals = Vec::new();
    for portal in &args.portals {
        portals.push(resolve(portal)?);
    }
    if portals.is_empty() {
        return Err(Failure::Misused("name the target's portal: targe conform target ADDR".to_owned()));
    }
    let user = credentials(args.user.as_deref(), args.password_file.as_deref(), "TARGE_PASSWORD", "--user")?;
    let mutual = credentials(
        args.mutual_user.as_deref(),
        args.mutual_password_file.as_deref(),
        "TARGE_MUTUAL_PASSWORD",
        "--mutual-user",
    )?;
    Ok(target::Options {
        portals,
        target: args.target.clone(),
        lun: args.lun,
        initiator: args.initiator.clone().unwrap_or_else(|| target::INITIATOR.to_owned()),
        user,
        mutual,
        write: args.write,
        limit: args.shown.limit.map_or(target::LIMIT, Duration::from_secs),
        patience: args.shown.patience.map_or(target::PATIENCE, Duration::from_millis),
        revive: args.revive.clone(),
    })
}

/// The port that IANA assigned to iSCSI.
const PORT: u16 = 3260;

fn resolve(portal: &str) -> Result<SocketAddr, Failure> {
    let found = match portal.to_socket_addrs() {
        Ok(found) => Ok(found),
        Err(_) => (portal.trim_start_matches('[').trim_end_matches(']'), PORT).to_socket_addrs(),
    };
    let mut found = found.map_err(|error| Failure::Failed(format!("{portal}: {error}")))?;
    found.next().ok_or_else(|| Failure::Failed(format!("{portal}: no address")))
}

/// Returns a user name, with its password from after a `%`, from a file, or from the environment.
fn credentials(
    name: Option<&str>,
    file: Option<&Path>,
    variable: &str,
    flag: &str,
) -> Result<Option<Credentials>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let (name, password) = match (name.split_once('%'), file) {
        (Some((name, password)), None) => (name, password.to_owned()),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| Failure::Misused(format!("{}: {error}", file.display())))?;
            (name, text.trim_end_matches(['\r', '\n']).to_owned())
        }
        (None, None) => match std::env::var(variable) {
            Ok(password) => (name, password),
            Err(_) => {
                let ways = format!("{flag} NAME%PASSWORD, {flag} with a password file, or {variable}");
                return Err(Failure::Misused(format!("{flag}: no password; give it by {ways}")));
            }
        },
        (Some(_), Some(_)) => return Err(Failure::Misused(format!("{flag}: two passwords"))),
    };
    match Secret::of_any_strength(password.as_bytes()) {
        Ok(secret) => Ok(Some(Credentials { name: name.to_owned(), secret })),
        Err(error) => Err(Failure::Misused(format!("{flag}: {error}"))),
    }
}

fn list(entries: &[CaseInfo], selection: &Selection) {
    let mut table = crate::tables::Table::new(&["ID", "CLAUSE", "TITLE"]);
    for entry in entries.iter().filter(|entry| selection.takes(entry.id)) {
        table.row(&[entry.id, entry.clause, entry.title]);
    }
    print(&table.to_string());
}

/// Prints the result of a case when it ends: a line, and for a failure the PDUs that were sent and received.
fn tell(result: &CaseResult, json: bool, verbose: bool) {
    let line = result.line();
    if json {
        eprintln!("{line}");
        return;
    }
    let mut text = format!("{line}\n");
    if verbose || result.verdict == Verdict::Fail {
        for line in &result.record {
            text.push_str(&format!("    {line}\n"));
        }
    }
    print(&text);
}

fn finish(
    results: &[CaseResult],
    json: bool,
    file: Option<&Path>,
    subject: &str,
    command: &str,
) -> Result<(), Failure> {
    let sum = Summary::of(results);
    if json {
        print(&report::json(results));
    } else {
        print(&format!("{sum}\n"));
    }
    if let Some(file) = file {
        std::fs::write(file, report::markdown(subject, command, results))
            .map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))?;
    }
    if sum.failed > 0 {
        Err(Failure::Failed(format!("{} of {} failed", sum.failed, results.len())))
    } else {
        Ok(())
    }
}
