//! The daemon's end of the admin socket.

use crate::mailbox::{Sender, channel};
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drivers::peer_credentials::{self, PeerCredentials};
use drivers::waker::Waker;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use serde_json::Value;

use super::api::{ErrorKind as Kind, Failure, Method, REQUEST_LEN_MAX, Request, Response};
use super::change::{Client as Caller, Continuation, Peer};
use super::open_api::READS;
use super::socket_dir::SocketLock;
use crate::os_error;

/// The most clients at a time: a few operators and a few monitoring programs.
const CLIENTS_MAX: usize = 16;

/// How many of them can be members of the group that only reads, so that they keep no operator out.
const READERS_MAX: usize = CLIENTS_MAX / 2;

/// How long a client may send nothing, or take to read a response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a request may take from its first byte to its last.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// How long the acceptor sleeps after a client could not be accepted, for lack of descriptors for example.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How often a daemon that ends checks whether its clients have their responses.
const RESPONSES_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Handles the requests of clients. It is called from several threads.
pub trait RequestHandler: Send + Sync {
    /// Returns the result of a request of a client as a JSON object.
    ///
    /// # Errors
    /// The failure that is sent to the client instead.
    fn handle(&self, request: Request, caller: &mut Caller) -> Result<Value, Failure>;
}

/// Why the admin socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminSocketError {
    /// Another daemon listens on the socket.
    #[error("another targe is running: it listens on the admin socket {}", path.display())]
    AlreadyRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be created.
    #[error("admin socket {}: {why}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// The running server. It stops when dropped.
#[derive(Debug)]
pub struct Server {
    socket: SocketLock,
    /// Another descriptor of the listening socket, for a daemon that takes it over.
    listener: UnixListener,
    orders: Arc<Orders>,
    clients: Arc<Clients>,
    acceptor: Option<JoinHandle<()>>,
    /// Makes the acceptor begin; `None` when it has begun.
    begin: Option<Sender<()>>,
}

/// What the thread that accepts clients is told.
#[derive(Debug)]
struct Orders {
    waker: Waker,
    is_ending: AtomicBool,
    is_paused: AtomicBool,
}

/// A socket that is bound and not served yet. Clients that connect wait until it is served.
#[derive(Debug)]
pub struct BoundSocket {
    socket: SocketLock,
    listener: UnixListener,
    /// The group whose members may read.
    readers: Option<u32>,
}

impl BoundSocket {
    /// Binds the socket and locks it, so that no other daemon starts on it. Members of the group `readers`
    /// can connect, and read.
    ///
    /// # Errors
    /// [`AdminSocketError`]
    pub fn bind(path: &Path, readers: Option<u32>) -> Result<Self, AdminSocketError> {
        SocketLock::bind(path, readers).map(|(place, listener)| Self { socket: place, listener, readers })
    }

    /// Takes over the socket at `path` and its lock from another daemon. Dropping this leaves the socket
    /// there.
    pub fn take_over(path: &Path, [listener, lock]: [OwnedFd; 2], readers: Option<u32>) -> Self {
        Self { socket: SocketLock::take_over(path, lock.into()), listener: listener.into(), readers }
    }

    /// Serves the socket on a thread of its own.
    ///
    /// # Errors
    /// [`AdminSocketError`]
    pub fn serve(self, answers: Arc<dyn RequestHandler>) -> Result<Server, AdminSocketError> {
        let mut server = self.prepare(answers)?;
        server.begin();
        Ok(server)
    }

    /// Prepares everything to serve the socket. [`Server::begin`] cannot fail then.
    ///
    /// # Errors
    /// [`AdminSocketError`]
    pub fn prepare(self, answers: Arc<dyn RequestHandler>) -> Result<Server, AdminSocketError> {
        Server::prepare(self.socket, self.listener, self.readers, answers)
    }
}

impl Server {
    /// Binds the socket and serves it on a thread of its own.
    ///
    /// # Errors
    /// [`AdminSocketError`]
    pub fn start(path: &Path, answers: Arc<dyn RequestHandler>) -> Result<Self, AdminSocketError> {
        BoundSocket::bind(path, None)?.serve(answers)
    }

    fn prepare(
        place: SocketLock,
        listener: UnixListener,
        readers: Option<u32>,
        answers: Arc<dyn RequestHandler>,
    ) -> Result<Self, AdminSocketError> {
        let failed = |error: &std::io::Error| AdminSocketError::Socket {
            path: place.path().to_path_buf(),
            why: os_error(error),
        };
        let other = listener.try_clone().map_err(|error| failed(&error))?;
        // Another process may accept the client that both wait for.
        listener.set_nonblocking(true).map_err(|error| failed(&error))?;
        let waker = Waker::new().map_err(|error| failed(&error))?;
        let orders =
            Arc::new(Orders { waker, is_ending: AtomicBool::new(false), is_paused: AtomicBool::new(false) });
        let clients = Arc::<Clients>::default();
        let theirs = (Arc::clone(&orders), Arc::clone(&clients));
        let (begin, begins) = channel();
        let acceptor = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                if begins.recv().is_ok() {
                    accept_all(&listener, readers, &answers, &theirs.0, &theirs.1);
                }
            })
            .map_err(|error| failed(&error))?;
        let (acceptor, begin) = (Some(acceptor), Some(begin));
        Ok(Self { socket: place, listener: other, orders, clients, acceptor, begin })
    }

    /// Begins to accept clients. The socket is removed at the end from now on.
    pub fn begin(&mut self) {
        if let Some(begin) = self.begin.take() {
            self.socket.own();
            // The acceptor receives it, or ended with a panic that is reported elsewhere.
            let _ = begin.send(());
        }
    }

    /// Returns other descriptors of the listening socket and of its lock, for a daemon that takes them over.
    ///
    /// # Errors
    /// The error of the system.
    pub fn descriptors(&self) -> std::io::Result<[OwnedFd; 2]> {
        Ok([self.listener.try_clone()?.into(), self.socket.try_clone_lock()?.into()])
    }

    /// Stops accepting clients, or goes on. Clients that connect meanwhile wait, also for another process
    /// that accepts on the same socket. Those that are connected are served.
    pub fn pause(&self, is_paused: bool) {
        self.orders.is_paused.store(is_paused, Ordering::Release);
        self.orders.waker.wake();
    }

    /// Waits until each client has the response to its request, at most for `within`.
    pub fn wait_for_responses(&self, within: Duration) {
        let deadline = Instant::now() + within;
        while self.clients.list().iter().any(|client| client.asking) && Instant::now() < deadline {
            std::thread::sleep(RESPONSES_POLL_INTERVAL);
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.begin.take().is_some() {
            // The acceptor has not begun, and ends.
            return;
        }
        self.orders.is_ending.store(true, Ordering::Release);
        self.orders.waker.wake();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic was reported where it happened.
            let _ = acceptor.join();
        }
    }
}

fn accept_all(
    listener: &UnixListener,
    readers: Option<u32>,
    answers: &Arc<dyn RequestHandler>,
    orders: &Orders,
    clients: &Arc<Clients>,
) {
    let mut number = 0;
    loop {
        let mut fds = vec![PollFd::new(&orders.waker, PollFlags::IN)];
        if !orders.is_paused.load(Ordering::Acquire) {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        if let Err(errno) = poll(&mut fds, None)
            && errno != rustix::io::Errno::INTR
        {
            crate::warning!("admin socket: cannot wait for clients: {}", os_error(&errno.into()));
            std::thread::sleep(ACCEPT_REST);
        }
        orders.waker.clear();
        if orders.is_ending.load(Ordering::Acquire) {
            return;
        }
        if orders.is_paused.load(Ordering::Acquire) {
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                start_client(stream, readers, answers, clients, number);
                number += 1;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                crate::warning!("admin socket: cannot accept: {}", os_error(&error));
                std::thread::sleep(ACCEPT_REST);
            }
        }
    }
}

/// The connected clients.
#[derive(Debug, Default)]
struct Clients {
    list: Mutex<Vec<Client>>,
}

#[derive(Debug)]
struct Client {
    /// Distinguishes this client from the others.
    number: u64,
    stream: UnixStream,
    access: Access,
    /// The time of its last request or response, or of its connection.
    since: Instant,
    /// Whether a request of this client is being handled, or a change that it has prepared waits for its
    /// verdict.
    asking: bool,
}

impl Clients {
    fn list(&self) -> MutexGuard<'_, Vec<Client>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a client. When the list is full, the client that has been idle longest is disconnected,
    /// which ends its thread at once. Returns false when the list is full and no client is idle. Clients that
    /// only read have a part of the list, and only clients like them make room for them.
    fn register(&self, number: u64, stream: UnixStream, access: Access) -> bool {
        let mut list = self.list();
        let readers = list.iter().filter(|client| client.access == Access::Read).count();
        let is_full_of_readers = access == Access::Read && readers >= READERS_MAX;
        if is_full_of_readers || list.len() >= CLIENTS_MAX {
            let may_go = |client: &Client| access == Access::Full || client.access == Access::Read;
            let idle = list.iter().enumerate().filter(|(_, client)| !client.asking && may_go(client));
            let Some(oldest) = idle.min_by_key(|(_, client)| client.since).map(|(at, _)| at) else {
                return false;
            };
            let _ = list.remove(oldest).stream.shutdown(Shutdown::Both);
        }
        list.push(Client { number, stream, access, since: Instant::now(), asking: false });
        true
    }

    fn set_asking(&self, number: u64, asking: bool) {
        if let Some(client) = self.list().iter_mut().find(|client| client.number == number) {
            client.asking = asking;
            client.since = Instant::now();
        }
    }

    fn leave(&self, number: u64) {
        self.list().retain(|client| client.number != number);
    }
}

/// Removes a client from the list when dropped.
struct ClientGuard {
    number: u64,
    clients: Arc<Clients>,
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.clients.leave(self.number);
    }
}

fn start_client(
    stream: UnixStream,
    readers: Option<u32>,
    answers: &Arc<dyn RequestHandler>,
    clients: &Arc<Clients>,
    number: u64,
) {
    let timeouts = stream
        .set_read_timeout(Some(CLIENT_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(CLIENT_TIMEOUT)));
    if timeouts.is_err() {
        return;
    }
    let Some((peer, access)) = admitted(&stream, readers) else {
        let message = "the admin socket is for the user of the daemon and for root".to_owned();
        send(&stream, &Response::<Value>::Error(Failure { kind: Kind::Refused, message }));
        return;
    };
    let Ok(other) = stream.try_clone() else { return };
    if !clients.register(number, other, access) {
        let message = format!("{CLIENTS_MAX} clients already wait for their responses");
        send(&stream, &Response::<Value>::Error(Failure { kind: Kind::Busy, message }));
        return;
    }
    let guard = ClientGuard { number, clients: Arc::clone(clients) };
    let answers = Arc::clone(answers);
    let spawned = std::thread::Builder::new().name("admin-client".to_owned()).spawn(move || {
        serve_client(&stream, &*answers, (peer, access), &guard);
    });
    if let Err(error) = spawned {
        crate::warning!("admin socket: cannot start a thread for a client: {}", os_error(&error));
    }
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everything: it runs as our user or as root.
    Full,
    /// Ask for the state.
    Read,
}

/// Returns the peer and what it may do. The permissions of the socket enforce the same; this check also
/// covers a descriptor that was passed to another process.
fn admitted(stream: &UnixStream, readers: Option<u32>) -> Option<(Peer, Access)> {
    let PeerCredentials { uid, gid, pid } = peer_credentials::of(stream).ok()?;
    let is_reader =
        |group| gid == group || peer_credentials::groups(stream).is_ok_and(|all| all.contains(&group));
    let access = if uid == rustix::process::geteuid().as_raw() || uid == 0 {
        Access::Full
    } else if readers.is_some_and(is_reader) {
        Access::Read
    } else {
        return None;
    };
    Some((Peer::process(uid, pid), access))
}

/// Refuses what changes something to a client that only reads.
fn expect_access(method: Method, access: Access) -> Result<(), Failure> {
    if access == Access::Full || READS.contains(&method) {
        return Ok(());
    }
    let message = "this user may only read the daemon's state (\"admin_readers\"): for anything else, run the command as \
                   the user of the daemon or as root";
    Err(Failure { kind: Kind::Refused, message: message.to_owned() })
}

/// Handles the requests of one client until it disconnects, sends nothing for too long, or sends a line that
/// is too long or takes too long.
///
/// If a change is prepared when the client disconnects, dropping `caller` tells so to the thread that
/// prepared it.
fn serve_client(
    stream: &UnixStream,
    answers: &dyn RequestHandler,
    (peer, access): (Peer, Access),
    guard: &ClientGuard,
) {
    let mut caller = Caller::new(peer);
    let mut held = Vec::new();
    loop {
        let line = match next_line(stream, &mut held) {
            Line::Whole(line) => line,
            Line::TooLong => {
                let message = format!("a request has at most {REQUEST_LEN_MAX} bytes");
                send(stream, &Response::<Value>::Error(Failure { kind: Kind::TooLong, message }));
                return;
            }
            Line::None => return,
        };
        guard.clients.set_asking(guard.number, true);
        let response = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => {
                crate::debug!("admin socket: request for {:?}", request.method);
                let permitted = expect_access(request.method, access);
                match permitted.and_then(|()| answers.handle(request, &mut caller)) {
                    Ok(result) => Response::Result(result),
                    Err(failure) => Response::Error(failure),
                }
            }
            Err(error) => Response::Error(Failure { kind: Kind::Malformed, message: error.to_string() }),
        };
        let continues = caller.continuation.take();
        guard.clients.set_asking(guard.number, caller.prepared.is_some() || continues.is_some());
        if !send(stream, &response) {
            return;
        }
        if let Some(Continuation(write)) = continues {
            return write(stream);
        }
    }
}

/// The result of reading a line from a client.
enum Line {
    Whole(Vec<u8>),
    TooLong,
    /// The client disconnected, or is too slow.
    None,
}

/// The bytes that are read from a client at a time.
const PIECE_LEN: usize = 64 << 10;

/// Returns the next line. Bytes after it stay in `held` for the next call.
fn next_line(mut stream: &UnixStream, held: &mut Vec<u8>) -> Line {
    let mut begun = None;
    let mut searched = 0;
    let mut piece = vec![0; PIECE_LEN];
    loop {
        let mut new = held.get(searched..held.len().min(REQUEST_LEN_MAX)).unwrap_or_default();
        // A slice is never refused.
        searched += new.skip_until(b'\n').unwrap_or(0);
        if held.get(..searched).is_some_and(|line| line.ends_with(b"\n")) {
            let rest = held.split_off(searched);
            return Line::Whole(std::mem::replace(held, rest));
        }
        if held.len() >= REQUEST_LEN_MAX {
            return Line::TooLong;
        }
        if !held.is_empty() {
            begun = begun.or_else(|| Some(Instant::now()));
        }
        let left = begun.map_or(CLIENT_TIMEOUT, |begun: Instant| REQUEST_MAX.saturating_sub(begun.elapsed()));
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Line::None;
        }
        match stream.read(&mut piece) {
            Ok(0) if held.is_empty() => return Line::None,
            Ok(0) => return Line::Whole(std::mem::take(held)),
            Ok(len) => held.extend_from_slice(piece.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Line::None,
        }
    }
}

/// Sends a line; returns whether it was sent.
fn send<T: Serialize>(mut stream: &UnixStream, response: &Response<T>) -> bool {
    let Ok(mut line) = serde_json::to_vec(response) else { return false };
    line.push(b'\n');
    stream.write_all(&line).is_ok()
}
