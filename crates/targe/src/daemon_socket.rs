//! Finds the daemon that a command asks or changes.

use std::path::Path;

use daemon::admin::client::{ClientError, Connection};
use daemon::config::Environment;
use serde_json::Value;

use crate::Failure;

/// Connects to the daemon on a socket, or to the only one on its possible sockets: a command that changes
/// something must not choose.
pub(crate) fn connect(socket: Option<&Path>) -> Result<Connection, Failure> {
    if let Some(path) = socket {
        return Connection::open(path).map_err(|error| Failure::Failed(error.to_string()));
    }
    let around = Environment::from_process().map_err(|error| Failure::Failed(error.to_string()))?;
    let sockets = around.sockets();
    let (mut found, mut refused) = (Vec::new(), None);
    for socket in &sockets {
        match Connection::open(socket) {
            Ok(connection) => found.push((socket, connection)),
            Err(ClientError::Absent { .. }) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let mut found = found.into_iter();
    match (found.next(), found.next(), refused) {
        (Some((_, connection)), None, _) => Ok(connection),
        (Some((one, _)), Some((other, _)), _) => Err(Failure::Failed(format!(
            "daemons listen on {} and on {}; select one with --socket",
            one.display(),
            other.display()
        ))),
        (None, _, Some(error)) => Err(Failure::Failed(error.to_string())),
        (None, _, None) => {
            let names: Vec<String> = sockets.iter().map(|socket| socket.display().to_string()).collect();
            Err(Failure::Failed(format!(
                "no targe is running at the usual places (no process listens on {}); name its socket with --socket",
                names.join(", ")
            )))
        }
    }
}

/// Reads what the daemon answered.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(answer: Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|error| {
        Failure::Failed(format!("the daemon uses another version of the admin protocol: {error}"))
    })
}
