//! The driver: a thread that accepts clients, and one thread per client, which sleeps in `poll` until its
//! socket or the medium has work for it.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::buffer::Pool;
use base::transmit::Transmit;
use drivers::waker::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, SocketFlags};
use store::api::{Failure, OpOutput};
use store::shared::SharedStore;
use thiserror::Error;

use super::Export;
use super::error::ProtocolError;
use super::session::{Session, Ticket};
use super::socket::{SocketFile, listen};
use crate::events::{AttachEvent, EventHandler, submit};
use crate::flush::flush;
use crate::unaligned::UnalignedStore;

/// The most clients at a time. QEMU's and libnbd's tools open up to 16 connections to one disk. Each may hold
/// some 100 MiB in the worst case.
const CLIENTS_MAX: usize = 32;
/// The bytes that one receive takes, besides payloads.
const RECEIVE_LEN: usize = 64 << 10;
/// The unused buffers that each client's thread keeps, in bytes.
const POOL_KEPT_BYTES: usize = 8 << 20;
/// How long to wait before accepting again, after the process ran out of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How long a client may take until it has chosen the export: a client that says nothing would keep its place
/// for ever.
const NEGOTIATION_MAX: Duration = Duration::from_secs(30);

/// How long a client may take to read its last answers once the server stops.
const LAST_ANSWERS: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Why a disk cannot be served.
#[derive(Debug, Error)]
pub enum NbdStartError {
    /// Another process listens on this socket.
    #[error("{}: another process listens on this socket", .0.display())]
    InUse(PathBuf),
    /// A file that is no socket has this path.
    #[error("{}: the file is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The path is longer than the system allows for a socket.
    #[error("{}: the path of a socket has at most 107 bytes", .0.display())]
    PathTooLong(PathBuf),
    /// Any other error about the path.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// The path of the socket.
        path: PathBuf,
        /// The error that the system returned.
        source: io::Error,
    },
    /// The system has no thread or descriptor to spare.
    #[error("cannot start the server")]
    Start(#[source] io::Error),
}

/// A disk that is served on a Unix socket. When dropped without [`Self::stop`], it is served until the
/// process ends.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    disk: UnalignedStore,
    export: Export,
    watch: EventHandler,
    negotiation_max: Duration,
    stopping: AtomicBool,
    waker: Waker,
    clients: Mutex<Vec<Client>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("export", &self.export).finish_non_exhaustive()
    }
}

struct Client {
    inbox: Arc<CompletionQueue>,
    thread: JoinHandle<()>,
}

/// The results of operations. The threads that complete the operations put them in.
struct CompletionQueue {
    results: Mutex<Vec<(Ticket, Result<OpOutput, Failure>)>>,
    waker: Waker,
}

impl Server {
    /// Serves `disk` at `path`. When this returns, clients can connect.
    ///
    /// # Errors
    /// Fails when the disk cannot be served there.
    pub fn start(
        path: &Path,
        disk: Arc<dyn SharedStore>,
        export: Export,
        watch: EventHandler,
    ) -> Result<Self, NbdStartError> {
        Self::start_with(path, disk, export, watch, NEGOTIATION_MAX)
    }

    fn start_with(
        path: &Path,
        disk: Arc<dyn SharedStore>,
        export: Export,
        watch: EventHandler,
        negotiation_max: Duration,
    ) -> Result<Self, NbdStartError> {
        let (socket, file) = listen(path)?;
        let shared = Arc::new(Shared {
            disk: UnalignedStore::new(disk),
            export,
            watch,
            negotiation_max,
            stopping: AtomicBool::new(false),
            waker: Waker::new().map_err(NbdStartError::Start)?,
            clients: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let accepting = std::thread::Builder::new()
            .name("nbd".to_owned())
            .spawn(move || accept_all(&theirs, &socket, file))
            .map_err(NbdStartError::Start)?;
        Ok(Self { shared, accepting })
    }

    /// Stops: accepts no new clients, refuses new requests, answers those under way, disconnects, and makes
    /// all that was written durable.
    ///
    /// # Errors
    /// Returns the medium's failure when what was written is not durable.
    pub fn stop(self) -> Result<(), Failure> {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.waker.wake();
        // A thread that panicked has nothing left to wait for.
        let _ = self.accepting.join();
        let clients = std::mem::take(&mut *self.shared.clients());
        clients.iter().for_each(|client| client.inbox.waker.wake());
        for client in clients {
            let _ = client.thread.join();
        }
        flush(&self.shared.disk)
    }
}

impl Shared {
    fn clients(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        // No thread panics while it holds this lock.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Starts a client's thread.
    fn start_client(self: &Arc<Self>, socket: OwnedFd) -> io::Result<()> {
        let mut clients = self.clients();
        clients.retain(|client| !client.thread.is_finished());
        if clients.len() >= CLIENTS_MAX {
            (self.watch)(AttachEvent::TooManyClients);
            return Ok(());
        }
        let inbox = Arc::new(CompletionQueue { results: Mutex::default(), waker: Waker::new()? });
        let (shared, theirs) = (Arc::clone(self), Arc::clone(&inbox));
        let thread = std::thread::Builder::new()
            .name("nbd client".to_owned())
            .spawn(move || Connection::new(&shared, theirs, socket).run())?;
        clients.push(Client { inbox, thread });
        Ok(())
    }
}

/// Accepts clients until the server stops; then closes the socket and removes its file.
fn accept_all(shared: &Arc<Shared>, socket: &OwnedFd, file: SocketFile) {
    while !shared.is_stopping() {
        let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::new(&shared.waker, PollFlags::IN)];
        // If the call was interrupted or out of memory, the loop checks again.
        let _ = poll(&mut fds, None);
        if shared.is_stopping() {
            break;
        }
        let accepted = rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match accepted.map_err(io::Error::from).and_then(|client| shared.start_client(client)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The client was gone already, or the process lacks a resource that may become free.
            Err(_) => std::thread::sleep(ACCEPT_AGAIN),
        }
    }
    drop(file);
}

/// One client's socket and its session.
struct Connection<'a> {
    shared: &'a Arc<Shared>,
    inbox: Arc<CompletionQueue>,
    socket: OwnedFd,
    session: Session,
    pool: Pool,
    out: Transmit,
    /// Whether the socket accepts no more bytes for now.
    congested: bool,
    /// When the negotiation must be complete.
    negotiated_by: Instant,
}

/// The connection is no longer usable.
struct Disconnected;

impl<'a> Connection<'a> {
    fn new(shared: &'a Arc<Shared>, inbox: Arc<CompletionQueue>, socket: OwnedFd) -> Self {
        let pool = Pool::new(POOL_KEPT_BYTES);
        let session = Session::new(shared.export.clone(), shared.disk.capabilities(), pool.clone());
        let negotiated_by = Instant::now() + shared.negotiation_max;
        Self { shared, inbox, socket, session, pool, out: Transmit::new(), congested: false, negotiated_by }
    }

    fn run(mut self) {
        let mut receive = vec![0; RECEIVE_LEN];
        while self.run_once(&mut receive).is_ok() && !self.is_over() {}
        if let Some(why) = self.session.cut_off() {
            (self.shared.watch)(AttachEvent::Misbehaved(why));
        }
    }

    fn is_over(&self) -> bool {
        let stopped = self.shared.is_stopping() && self.session.is_idle();
        self.out.is_empty() && (stopped || self.session.is_over())
    }

    /// Processes all pending work, sleeps until there is more, then reads from the socket.
    fn run_once(&mut self, receive: &mut [u8]) -> Result<(), Disconnected> {
        if self.shared.is_stopping() {
            self.session.shut_down();
        }
        self.session.medium_is(self.shared.disk.capabilities());
        let results = std::mem::take(&mut *self.inbox.results.lock().unwrap_or_else(PoisonError::into_inner));
        for (ticket, result) in results {
            self.session.completed(ticket, result);
        }
        while let Some((ticket, action)) = self.session.poll() {
            let inbox = Arc::clone(&self.inbox);
            let done = Box::new(move |result| inbox.put(ticket, result));
            submit(&self.shared.disk, action, &self.shared.watch, done);
        }
        if self.out.is_empty() {
            self.session.transmit(&mut self.out);
        }
        self.send()?;
        if self.is_over() {
            return Ok(());
        }
        if self.sleep()? { self.receive(receive) } else { Ok(()) }
    }

    /// Waits for the socket or the medium. Returns whether the socket is readable.
    fn sleep(&mut self) -> Result<bool, Disconnected> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.session.wants_input());
        wanted.set(PollFlags::OUT, self.congested);
        // `poll` reports a disconnected peer again and again, even when no event is requested.
        let mut fds = [PollFd::new(&self.inbox.waker, PollFlags::IN), PollFd::new(&self.socket, wanted)];
        let watched = if wanted.is_empty() { 1 } else { 2 };
        let at_once = self.session.has_output() && !self.congested;
        let last = self.congested && self.shared.is_stopping();
        let left = self
            .session
            .is_negotiating()
            .then(|| self.negotiated_by.saturating_duration_since(Instant::now()));
        let timeout = match left {
            _ if at_once => Some(Timespec::default()),
            _ if last => Some(LAST_ANSWERS),
            left => left.and_then(|left| Timespec::try_from(left).ok()),
        };
        // If the call was interrupted or out of memory, the caller checks again.
        let woken = poll(fds.get_mut(..watched).unwrap_or_default(), timeout.as_ref());
        if last && woken == Ok(0) {
            return Err(Disconnected);
        }
        if left.is_some_and(|left| left.is_zero()) {
            self.session.cut(ProtocolError::TooSlow);
            // A client that reads nothing does not get the answers that are left either.
            return Err(Disconnected);
        }
        let [waker, socket] = fds.map(|fd| fd.revents());
        if waker.contains(PollFlags::IN) {
            self.inbox.waker.clear();
        }
        if socket.intersects(PollFlags::OUT | PollFlags::HUP | PollFlags::ERR) {
            self.congested = false;
        }
        Ok(wanted.contains(PollFlags::IN) && !socket.is_empty())
    }

    fn send(&mut self) -> Result<(), Disconnected> {
        while !self.out.is_empty() && !self.congested {
            let slices: Vec<IoSlice<'_>> =
                self.out.pieces().take(Transmit::BATCH_PIECES).map(IoSlice::new).collect();
            let mut nothing = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.socket, &slices, &mut nothing, SendFlags::NOSIGNAL) {
                Ok(len) => self.out.sent(len, &self.pool),
                Err(Errno::AGAIN) => self.congested = true,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Disconnected),
            }
        }
        Ok(())
    }

    fn receive(&mut self, receive: &mut [u8]) -> Result<(), Disconnected> {
        let mut rx_buffer = self.session.take_rx_buffer();
        let mut room = 0;
        let result = if let Some(rx_buffer) = &mut rx_buffer {
            let spare = rx_buffer.buf.spare_mut();
            room = rx_buffer.len_max.min(spare.len());
            let place = spare.get_mut(..room).unwrap_or_default();
            rustix::io::readv(&self.socket, &mut [IoSliceMut::new(place), IoSliceMut::new(receive)])
        } else {
            rustix::io::readv(&self.socket, &mut [IoSliceMut::new(receive)])
        };
        let len = result.unwrap_or(0);
        if let Some(mut rx_buffer) = rx_buffer {
            rx_buffer.buf.advance(len.min(room));
            self.session.return_rx_buffer(rx_buffer);
        }
        match result {
            Ok(0) => self.session.input_ended(),
            Ok(_) => {
                if let Some(rest) = receive.get(..len.saturating_sub(room)).filter(|rest| !rest.is_empty()) {
                    self.session.received(rest);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Err(Disconnected),
        }
        Ok(())
    }
}

impl CompletionQueue {
    fn put(&self, ticket: Ticket, result: Result<OpOutput, Failure>) {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).push((ticket, result));
        self.waker.wake();
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;
