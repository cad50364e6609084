//! `targe session drop`.

use std::path::PathBuf;

use clap::Subcommand;
use daemon::admin::api::{Method, Request};
use daemon::admin::change_api::{DroppedSessions, SessionSelector};
use serde_json::json;

use crate::change::call;
use crate::{Failure, daemon_socket, print};

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// End the sessions of an initiator; it may log in again unless the access list refuses it
    Drop {
        /// The initiator's name
        initiator: String,
        /// Only its sessions with this target
        #[arg(long, value_name = "IQN")]
        target: Option<String>,
        /// Only its session with this ISID, as `targe sessions` shows it
        #[arg(long, value_name = "HEX")]
        isid: Option<String>,
        /// The daemon's admin socket [default: that of a daemon without a configuration]
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(command: SessionCommand) -> Result<(), Failure> {
    let SessionCommand::Drop { initiator, target, isid, socket, json } = command;
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
