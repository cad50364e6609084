//! `targe session drop` and `targe session forget`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use daemon::admin::api::{Method, Request};
use daemon::admin::change_api::{DroppedSessions, ForgottenPorts, SessionSelector};
use serde_json::json;

use crate::change::call;
use crate::{Failure, daemon_socket, print};

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// End the sessions of an initiator; it may log in again unless the access list refuses it
    Drop(SelectArgs),
    /// Forget which disks an initiator has used, so that its LUNs can lead it to other disks
    ///
    /// Only for a host that no longer has these disks open and cannot log out. A port that has a session
    /// keeps its record.
    Forget(SelectArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SelectArgs {
    /// The initiator's name
    initiator: String,
    /// Only with this target
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// Only its port with this ISID, as `targe sessions` and the log show it
    #[arg(long, value_name = "HEX")]
    isid: Option<String>,
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: SessionCommand) -> Result<(), Failure> {
    match command {
        SessionCommand::Drop(args) => drop_sessions(args),
        SessionCommand::Forget(args) => forget_ports(args),
    }
}

fn forget_ports(args: SelectArgs) -> Result<(), Failure> {
    let SelectArgs { initiator, target, isid, socket, json } = args;
    let mut connection = daemon_socket::connect(socket.as_deref())?;
    let selector = SessionSelector { initiator: initiator.clone(), target, isid };
    let request = Request { sessions: Some(selector), ..Request::new(Method::ForgetPorts) };
    let ForgottenPorts { records, in_use } = call(&mut connection, &request)?;
    if json {
        print(&format!("{:#}\n", json!({ "records": records, "in_use": in_use })));
    } else if records > 0 {
        print(&format!("{records} {} removed\n", if records == 1 { "record is" } else { "records are" }));
    }
    match (records, in_use) {
        (0, 0) => Err(Failure::Failed(format!("there is no record of such a port of {initiator}"))),
        (_, 0) => Ok(()),
        _ => Err(Failure::Failed(format!(
            "{initiator} is logged in, so its record stays: log out on the host, or stop the host and end its session \
             (targe session drop)"
        ))),
    }
}

fn drop_sessions(args: SelectArgs) -> Result<(), Failure> {
    let SelectArgs { initiator, target, isid, socket, json } = args;
    let mut connection = daemon_socket::connect(socket.as_deref())?;
    let selector = SessionSelector { initiator: initiator.clone(), target, isid };
    let request = Request { sessions: Some(selector), ..Request::new(Method::DropSessions) };
    let DroppedSessions { sessions, within_s } = call(&mut connection, &request)?;
    if json {
        print(&format!("{:#}\n", json!({ "sessions": sessions, "within_s": within_s })));
    }
    match sessions {
        0 => Err(Failure::Failed(format!("{initiator} has no such session"))),
        _ if json => Ok(()),
        1 => {
            print(&format!("1 session ends within {within_s} s\n"));
            Ok(())
        }
        some => {
            print(&format!("{some} sessions end within {within_s} s\n"));
            Ok(())
        }
    }
}
