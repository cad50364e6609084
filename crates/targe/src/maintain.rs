//! `targe lun drain`, `snapshot` and `clone`: maintain single LUNs of the running daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use daemon::admin::api::{Method, Request};
use daemon::admin::client::Connection;
use daemon::admin::lun_api::{Drained, LossAccepted, LunList, LunSelector, Snapshot, Snapshots};
use daemon::config::{Edit, Setting};
use daemon::config_file::LockedFile;
use serde_json::json;

use crate::change::{self, ChangeArgs, Target, call, candidate, setting};
use crate::{Failure, daemon_socket, print};

/// How much longer than the daemon the command waits.
const MORE: Duration = Duration::from_secs(60);
/// The longest wait for tasks, in seconds.
const WAIT_MAX_S: u32 = 240;

/// A LUN of the running daemon.
#[derive(Debug, Args)]
pub(crate) struct LunArgs {
    /// The target's name
    #[arg(value_name = "IQN")]
    target: String,
    /// Its number
    lun: u16,
}

/// How the daemon is found, and how its answer is shown.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    lun: LunArgs,
    /// Let initiators use the LUN again
    #[arg(long, conflicts_with = "wait")]
    undo: bool,
    /// Wait this many seconds for the end of its tasks
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=i64::from(WAIT_MAX_S)))]
    wait: u32,
    #[command(flatten)]
    daemon: DaemonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    lun: LunArgs,
    /// The new file, on the file system of the LUN's file
    file: PathBuf,
    /// Copy this LUN too, at the same point in time; repeat it for more. All files are made, or none
    #[arg(long, num_args = 3, value_names = ["IQN", "LUN", "FILE"])]
    and: Vec<String>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    #[command(flatten)]
    lun: LunArgs,
    /// The new file, on the file system of the LUN's file
    file: PathBuf,
    /// Set keys of [[target.lun]] in docs/config.md that differ from those of the LUN; KEY= removes a key
    #[arg(value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<Setting>,
    /// Add the clone to this target [default: that of the LUN]
    #[arg(long, value_name = "IQN")]
    to: Option<String>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn drain(args: DrainArgs) -> Result<(), Failure> {
    let DrainArgs { lun: LunArgs { target, lun }, undo, wait, daemon } = args;
    let mut connection = connect(&daemon)?;
    let wait_s = (!undo).then_some(wait);
    let selector = LunSelector { target: target.clone(), lun, path: None, wait_s };
    let request = Request { lun: Some(selector), ..Request::new(Method::DrainLun) };
    let Drained { drained, ended, durable, tasks } = call(&mut connection, &request)?;
    if daemon.json {
        print(&format!(
            "{:#}\n",
            json!({ "drained": drained, "ended": ended, "durable": durable, "tasks": tasks })
        ));
    }
    let name = format!("LUN {lun} of {target}");
    if drained && tasks > 0 {
        return Err(Failure::Failed(format!(
            "{name} still has {tasks} tasks after {wait} s, and takes no new ones; wait for them by the same command, \
             end their sessions (targe session drop), or say --undo"
        )));
    }
    if drained && !ended {
        return Err(Failure::Failed(format!(
            "{name} has no tasks, but its medium still works after {wait} s (for an aborted command, SANITIZE, FORMAT UNIT \
             or the last flush), and it takes no new ones; wait for it by the same command, or say --undo"
        )));
    }
    let durable = match durable {
        true => "and what it acknowledged is durable",
        false => "but the device may still hold data that hosts have not had written out",
    };
    match (daemon.json, drained) {
        (true, _) => {}
        (false, true) => {
            print(&format!("{name} is drained: it has no tasks, {durable}. Initiators wait until --undo\n"));
        }
        (false, false) => print(&format!("{name} can be used again\n")),
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct AcceptLossArgs {
    #[command(flatten)]
    lun: LunArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn accept_loss(args: AcceptLossArgs) -> Result<(), Failure> {
    let AcceptLossArgs { lun: LunArgs { target, lun }, daemon } = args;
    let mut connection = connect(&daemon)?;
    let selector = LunSelector { target: target.clone(), lun, path: None, wait_s: None };
    let request = Request { lun: Some(selector), ..Request::new(Method::AcceptLoss) };
    let LossAccepted { lost, failed } = call(&mut connection, &request)?;
    if daemon.json {
        print(&format!("{:#}\n", json!({ "lost": lost, "failed": failed })));
    } else if let Some(failed) = failed {
        print(&format!("the failure of LUN {lun} of {target} is no problem any more ({failed})\n"));
    } else {
        let lost = lost.unwrap_or_default();
        print(&format!("LUN {lun} of {target} can be flushed again; what it lost stays lost ({lost})\n"));
    }
    Ok(())
}

pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<(), Failure> {
    if !args.and.is_empty() {
        return snapshots(args);
    }
    let made = make(&args.lun, &absolute(&args.file)?, &args.daemon)?;
    if args.daemon.json {
        print(&format!("{:#}\n", json!({ "path": made.path, "bytes": made.bytes })));
    } else {
        print(&format!("{}: {} bytes\n", made.path, made.bytes));
    }
    Ok(())
}

/// Copies several LUNs at one point in time.
fn snapshots(args: &SnapshotArgs) -> Result<(), Failure> {
    let LunArgs { target, lun } = &args.lun;
    let mut luns = vec![selector(target, *lun, &absolute(&args.file)?)?];
    for words in args.and.chunks(3) {
        let [target, lun, file] = words else { continue };
        let lun = lun.parse().map_err(|_| Failure::Misused(format!("--and: \"{lun}\" is not a LUN")))?;
        luns.push(selector(target, lun, &absolute(Path::new(file))?)?);
    }
    let request = Request { luns: Some(LunList { luns }), ..Request::new(Method::SnapshotLuns) };
    let Snapshots { snapshots } = call(&mut connect(&args.daemon)?, &request)?;
    if args.daemon.json {
        print(&format!("{:#}\n", json!({ "snapshots": snapshots })));
    } else {
        for made in snapshots {
            print(&format!("{}: {} bytes\n", made.path, made.bytes));
        }
    }
    Ok(())
}

/// Makes the file first, and then the LUN. If the LUN is refused, the file is removed.
pub(crate) fn clone(args: CloneArgs) -> Result<(), Failure> {
    let CloneArgs { lun, file, settings, to, daemon } = args;
    let file = absolute(&file)?;
    let how = ChangeArgs { dry_run: false, socket: daemon.socket.clone(), json: daemon.json };
    let to = to.unwrap_or_else(|| lun.target.clone());
    let reserved = change::bound_luns(&how, &to)?;
    let edit = Edit::CloneLun {
        target: lun.target.clone(),
        lun: lun.lun,
        to,
        path: file.display().to_string(),
        settings,
        reserved,
    };
    let open = || {
        let mut target = Target::open(&how, LockedFile::open)?;
        let candidate = candidate(&edit, "lun clone", false, &target.source()?)?;
        Ok((target, candidate))
    };
    // Mistakes are told before the file is made. That can take longer than the daemon waits for a client.
    drop(open()?);
    make(&lun, &file, &daemon)?;
    open().and_then(|(mut target, candidate)| target.change(&candidate, &how)).inspect_err(|_| {
        let medium = format!("file:{}", file.display());
        let is_served = change::luns(&how).map(|luns| luns.iter().any(|known| known.medium == medium));
        // A daemon that does not answer may have applied the change.
        if matches!(is_served, Ok(false))
            && let Err(error) = std::fs::remove_file(&file)
        {
            eprintln!("targe: warning: cannot remove {}: {error}", file.display());
        }
    })
}

fn make(lun: &LunArgs, file: &Path, daemon: &DaemonArgs) -> Result<Snapshot, Failure> {
    let selector = selector(&lun.target, lun.lun, file)?;
    let request = Request { lun: Some(selector), ..Request::new(Method::SnapshotLun) };
    call(&mut connect(daemon)?, &request)
}

/// Names a LUN and the file of its snapshot.
fn selector(target: &str, lun: u16, file: &Path) -> Result<LunSelector, Failure> {
    let path = file.to_str().ok_or_else(|| Failure::Misused(format!("{} is not UTF-8", file.display())))?;
    Ok(LunSelector { target: target.to_owned(), lun, path: Some(path.to_owned()), wait_s: None })
}

/// Connects for a request that waits for initiators or for a file system.
fn connect(daemon: &DaemonArgs) -> Result<Connection, Failure> {
    let connection = daemon_socket::connect(daemon.socket.as_deref())?;
    let longest = Duration::from_secs(WAIT_MAX_S.into()) + MORE;
    connection.wait_for(longest).map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(connection)
}

fn absolute(file: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(file).map_err(|error| Failure::Misused(format!("{}: {error}", file.display())))
}
