//! `targe upgrade`: another process takes over the sessions of the running daemon.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daemon::admin::api::{Method, Request};
use daemon::admin::upgrade_api::{UpgradeRequest, Upgraded, WAIT_MAX_S};

use crate::change::call;
use crate::{Failure, daemon_socket, print};

/// How much longer than it waits for the sessions an upgrade may take: the other process opens everything,
/// and the memory of LUNs is copied.
const MORE: Duration = Duration::from_secs(780);

/// The usual wait in seconds.
const WAIT_S: u32 = 10;

#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// Start this program [default: the one that runs, as it is installed now]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Try for so many seconds to find a moment in which no session has anything under way
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_S, value_parser = clap::value_parser!(u32).range(..=i64::from(WAIT_MAX_S)))]
    wait: u32,
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &UpgradeArgs) -> Result<(), Failure> {
    let binary = args.binary.as_deref().map(absolute).transpose()?;
    let mut connection = daemon_socket::connect(args.socket.as_deref())?;
    let longest = Duration::from_secs(args.wait.into()) + MORE;
    connection.wait_for(longest).map_err(|error| Failure::Failed(error.to_string()))?;
    let upgrade = UpgradeRequest { binary, wait_s: Some(args.wait) };
    let request = Request { upgrade: Some(upgrade), ..Request::new(Method::Upgrade) };
    let upgraded: Upgraded = call(&mut connection, &request)?;
    if args.json {
        let text = serde_json::to_string_pretty(&upgraded);
        print(&(text.map_err(|error| Failure::Failed(error.to_string()))? + "\n"));
        return Ok(());
    }
    let Upgraded { version, pid, sessions, connections, pause_ms, attempts: _ } = upgraded;
    print(&format!(
        "targe {version} serves now, as process {pid}; it took over {sessions} sessions with {connections} connections, \
         which waited for {pause_ms} ms\n"
    ));
    Ok(())
}

/// Returns the path of the program as the daemon finds it.
fn absolute(path: &std::path::Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path)
        .map_err(|error| Failure::Misused(format!("{}: {error}", path.display())))?;
    let text = whole.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::Misused(format!("{} is not UTF-8", path.display())))
}
