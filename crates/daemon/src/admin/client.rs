//! The client's end of the admin socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::api::{Failure, LINE_LEN_MAX, Method, Request, Response};
use crate::os_error;

/// How long the client waits for a response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the socket.
    #[error("no targe is running (no process listens on {})", path.display())]
    Absent {
        /// The socket.
        path: PathBuf,
    },
    /// The socket belongs to another user.
    #[error("permission denied: {} belongs to another user", path.display())]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// The connection broke, or no complete response was received in time.
    #[error("{}: {why}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The daemon returned an error.
    #[error("{}", .0.message)]
    Refused(Failure),
}

/// Sends one request to the daemon on the socket at `path`, and returns its result.
///
/// # Errors
/// [`ClientError`]
pub fn request(path: &Path, method: Method) -> Result<Value, ClientError> {
    let broken = |why: String| ClientError::Broken { path: path.to_path_buf(), why };
    let io = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => broken("the daemon did not answer in time".to_owned()),
        _ => broken(os_error(&error)),
    };
    let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            ClientError::Absent { path: path.to_path_buf() }
        }
        ErrorKind::PermissionDenied => ClientError::Denied { path: path.to_path_buf() },
        _ => broken(os_error(&error)),
    })?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
    let mut line = serde_json::to_vec(&Request { method }).map_err(|error| broken(error.to_string()))?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(io)?;
    line.clear();
    let limit = u64::try_from(LINE_LEN_MAX).unwrap_or(u64::MAX);
    BufReader::new(&stream).take(limit).read_until(b'\n', &mut line).map_err(io)?;
    if line.last() != Some(&b'\n') {
        return Err(broken("the daemon closed the connection".to_owned()));
    }
    match serde_json::from_slice(&line)
        .map_err(|error| broken(format!("the daemon sent a malformed response: {error}")))?
    {
        Response::Result(result) => Ok(result),
        Response::Error(failure) => Err(ClientError::Refused(failure)),
    }
}
