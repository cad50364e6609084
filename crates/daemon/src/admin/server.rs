//! The daemon's end of the admin socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::api::{ErrorKind as Kind, Failure, Method, REQUEST_LEN_MAX, Request, Response};
use super::place::Place;
use crate::os_error;

/// The most clients at a time: a few people and a few programs that watch.
const CLIENTS_MAX: usize = 16;

/// How long a client may be silent, or take for reading an answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to rest when no client can be accepted for lack of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Answers questions. Called from several threads.
pub trait Answers: Send + Sync {
    /// Returns the object that belongs to the method, as JSON.
    ///
    /// # Errors
    /// What the client is told instead.
    fn answer(&self, method: Method) -> Result<Value, Failure>;
}

/// Why the admin socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon answers there.
    #[error("another targe is running: it holds the admin socket {}", path.display())]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("admin socket {}: {why}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// The running server. It ends when dropped.
#[derive(Debug)]
pub struct Server {
    place: Place,
    ending: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

/// A socket that is taken and not served yet. Clients that connect wait until it is.
#[derive(Debug)]
pub struct Reserved {
    place: Place,
    listener: UnixListener,
}

impl Reserved {
    /// Takes the socket, so that no other daemon starts on it.
    ///
    /// # Errors
    /// [`StartError`]
    pub fn take(path: &Path) -> Result<Self, StartError> {
        Place::take(path).map(|(place, listener)| Self { place, listener })
    }

    /// Serves it from a thread of its own.
    ///
    /// # Errors
    /// [`StartError`]
    pub fn serve(self, answers: Arc<dyn Answers>) -> Result<Server, StartError> {
        Server::run(self.place, self.listener, answers)
    }
}

impl Server {
    /// Takes the socket and serves it from a thread of its own.
    ///
    /// # Errors
    /// [`StartError`]
    pub fn start(path: &Path, answers: Arc<dyn Answers>) -> Result<Self, StartError> {
        Reserved::take(path)?.serve(answers)
    }

    fn run(place: Place, listener: UnixListener, answers: Arc<dyn Answers>) -> Result<Self, StartError> {
        let ending = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ending);
        let acceptor = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || accept_all(&listener, &answers, &flag))
            .map_err(|error| StartError::Socket {
                path: place.path().to_path_buf(),
                why: os_error(&error),
            })?;
        Ok(Self { place, ending, acceptor: Some(acceptor) })
    }

    /// Returns where it listens.
    pub fn path(&self) -> &Path {
        self.place.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // Wakes the acceptor. If nobody can connect any more, neither can a client, and the thread ends with us.
        if UnixStream::connect(self.place.path()).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            let _ = acceptor.join();
        }
    }
}

fn accept_all(listener: &UnixListener, answers: &Arc<dyn Answers>, ending: &AtomicBool) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if ending.load(Ordering::Acquire) {
            return;
        }
        match stream {
            Ok(stream) => admit(stream, answers, &clients),
            Err(error) => {
                crate::warning!("admin socket: cannot accept: {}", os_error(&error));
                std::thread::sleep(ACCEPT_REST);
            }
        }
    }
}

/// A client's place among the few that there are.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn admit(stream: UnixStream, answers: &Arc<dyn Answers>, clients: &Arc<AtomicUsize>) {
    let seat = Seat(Arc::clone(clients));
    let taken = clients.fetch_add(1, Ordering::AcqRel);
    let timeouts = stream
        .set_read_timeout(Some(CLIENT_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(CLIENT_TIMEOUT)));
    if timeouts.is_err() || !is_owner(&stream) {
        return;
    }
    if taken >= CLIENTS_MAX {
        let message = format!("{CLIENTS_MAX} clients are connected already");
        send(&stream, &Response::<Value>::Error(Failure { kind: Kind::Busy, message }));
        return;
    }
    let answers = Arc::clone(answers);
    let spawned = std::thread::Builder::new().name("admin-client".to_owned()).spawn(move || {
        let _seat = seat;
        converse(&stream, &*answers);
    });
    if let Err(error) = spawned {
        crate::warning!("admin socket: no thread for a client: {}", os_error(&error));
    }
}

/// Returns whether the peer runs as our user or as root. The permissions of the socket say the same; this also holds
/// for a descriptor that was passed on.
fn is_owner(stream: &UnixStream) -> bool {
    let ours = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == ours || peer.uid.is_root())
}

/// Answers one client until it leaves, falls silent, or sends a line that is too long.
fn converse(stream: &UnixStream, answers: &dyn Answers) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let limit = u64::try_from(REQUEST_LEN_MAX).unwrap_or(u64::MAX);
        match reader.by_ref().take(limit).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) if line.last() != Some(&b'\n') && line.len() >= REQUEST_LEN_MAX => {
                let message = format!("a request has at most {REQUEST_LEN_MAX} bytes");
                send(stream, &Response::<Value>::Error(Failure { kind: Kind::TooLong, message }));
                return;
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        let response = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => match answers.answer(request.method) {
                Ok(result) => Response::Result(result),
                Err(failure) => Response::Error(failure),
            },
            Err(error) => Response::Error(Failure { kind: Kind::Malformed, message: error.to_string() }),
        };
        if !send(stream, &response) {
            return;
        }
    }
}

/// Sends a line; returns whether that went well.
fn send<T: Serialize>(mut stream: &UnixStream, response: &Response<T>) -> bool {
    let Ok(mut line) = serde_json::to_vec(response) else { return false };
    line.push(b'\n');
    stream.write_all(&line).is_ok()
}
