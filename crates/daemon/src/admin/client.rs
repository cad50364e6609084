//! The client's end of the admin socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::api::{Failure, LINE_LEN_MAX, Method, REQUEST_LEN_MAX, Request, Response};
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
    /// The socket is closed to this user.
    #[error(
        "permission denied: {} is for the user of the daemon and for root: run the command with sudo. Members of the group \
         \"admin_readers\" (see docs/config.md) can read the state without it",
        path.display()
    )]
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
    Connection::open(path)?.call(&Request::new(method))
}

/// A connection to the daemon, over which several requests are sent in turn.
#[derive(Debug)]
pub struct Connection {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects to the daemon on the socket at `path`.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn open(path: &Path) -> Result<Self, ClientError> {
        let path = path.to_path_buf();
        let stream = UnixStream::connect(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::Absent { path: path.clone() },
            ErrorKind::PermissionDenied => ClientError::Denied { path: path.clone() },
            _ => ClientError::Broken { path: path.clone(), why: os_error(&error) },
        })?;
        let connection = Self { path, stream: BufReader::new(stream) };
        connection.wait_for(ANSWER_TIMEOUT)?;
        Ok(connection)
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets how long each request may take.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn wait_for(&self, longest: Duration) -> Result<(), ClientError> {
        let stream = self.stream.get_ref();
        let set =
            stream.set_read_timeout(Some(longest)).and_then(|()| stream.set_write_timeout(Some(longest)));
        set.map_err(|error| self.io(&error))
    }

    /// Sends a request, and returns its result.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn call(&mut self, request: &Request) -> Result<Value, ClientError> {
        let mut line = serde_json::to_vec(request).map_err(|error| self.broken(error.to_string()))?;
        line.push(b'\n');
        if line.len() > REQUEST_LEN_MAX {
            return Err(self.broken(format!("the request is longer than {REQUEST_LEN_MAX} bytes")));
        }
        match self.stream.get_mut().write_all(&line) {
            // A daemon that refuses a client says so before it closes the connection.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(self.io(&error)),
            Ok(()) | Err(_) => line.clear(),
        }
        let limit = u64::try_from(LINE_LEN_MAX).unwrap_or(u64::MAX);
        let read = (&mut self.stream).take(limit).read_until(b'\n', &mut line);
        read.map_err(|error| self.io(&error))?;
        if line.last() != Some(&b'\n') {
            return Err(self.broken("the daemon closed the connection".to_owned()));
        }
        match serde_json::from_slice(&line)
            .map_err(|error| self.broken(format!("the daemon sent a malformed response: {error}")))?
        {
            Response::Result(result) => Ok(result),
            Response::Error(failure) => Err(ClientError::Refused(failure)),
        }
    }

    /// Returns the connection itself, for what follows the last answer.
    pub fn into_stream(self) -> BufReader<UnixStream> {
        self.stream
    }

    fn broken(&self, why: String) -> ClientError {
        ClientError::Broken { path: self.path.clone(), why }
    }

    fn io(&self, error: &std::io::Error) -> ClientError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                self.broken("the daemon did not answer in time".to_owned())
            }
            _ => self.broken(os_error(error)),
        }
    }
}
