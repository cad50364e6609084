//! The driver: a thread that accepts clients, and one thread per client, which sleeps in `poll` until its
//! socket or the medium has work for it.
//!
//! The thread of a client that has gone lives until the client's operations have ended, and keeps the
//! client's place. Before a thread starts operations, it looks for clients that have closed their
//! connections: requests that overlap with their changes must wait until these have ended
//! ([`UnalignedStore::abandon`]). Otherwise the write of a client that was killed could land on newer data of
//! the next one, or of another connection over which the same client repeats it.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
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

/// The most clients at a time, with those that have gone and whose operations have not ended. QEMU's and
/// libnbd's tools open up to 16 connections to one disk. Each may hold some 100 MiB in the worst case.
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
    /// Clients of an earlier server of another disk may wait at this socket.
    #[error(
        "{}: NBD clients of an earlier targe attach may still wait to reconnect here, and it served another disk, or the \
         same disk otherwise (--luks, another initiator name): they would continue on this one. Nothing was written. \
         Attach as before; or, once these clients have ended, remove {}.disk",
        .0.display(), .0.display()
    )]
    OtherDisk(PathBuf),
    /// The path is longer than the system allows for a socket.
    #[error("{}: the path of a socket has at most 107 bytes", .0.display())]
    PathTooLong(PathBuf),
    /// The directory of the socket does not exist.
    #[error("the directory {} does not exist; make it first: mkdir -p {}", .0.display(), .0.display())]
    NoDirectory(PathBuf),
    /// This user may not make files in the directory of the socket.
    #[error(
        "this user may not make a socket in {}: choose a path in a directory of your own, such as $XDG_RUNTIME_DIR, or run \
         targe as another user",
        .0.display()
    )]
    NotWritable(PathBuf),
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
    /// Whether a client was refused because there were too many, or disconnected because the server stops. It
    /// may try again, on the next server too.
    has_turned_away: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("export", &self.export).finish_non_exhaustive()
    }
}

struct Client {
    inbox: Arc<CompletionQueue>,
    /// The thread, until the server waits for its end.
    thread: Option<JoinHandle<()>>,
    /// The socket, until the client's thread closes it.
    socket: Weak<OwnedFd>,
    disk: UnalignedStore,
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
        let (socket, file) = listen(path, export.key)?;
        let shared = Arc::new(Shared {
            disk: UnalignedStore::new(disk),
            export,
            watch,
            negotiation_max,
            stopping: AtomicBool::new(false),
            waker: Waker::new().map_err(NbdStartError::Start)?,
            clients: Mutex::default(),
            has_turned_away: AtomicBool::new(false),
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
        let mut threads = Vec::new();
        for client in &mut *self.shared.clients() {
            client.inbox.waker.wake();
            threads.extend(client.thread.take());
        }
        for thread in threads {
            let _ = thread.join();
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
        clients.retain(|client| client.thread.as_ref().is_some_and(|thread| !thread.is_finished()));
        if clients.len() >= CLIENTS_MAX {
            self.has_turned_away.store(true, Ordering::Release);
            (self.watch)(AttachEvent::TooManyClients);
            return Ok(());
        }
        let inbox = Arc::new(CompletionQueue { results: Mutex::default(), waker: Waker::new()? });
        let (shared, theirs) = (Arc::clone(self), Arc::clone(&inbox));
        let (socket, disk) = (Arc::new(socket), self.disk.for_new_client());
        let client = Client { inbox, thread: None, socket: Arc::downgrade(&socket), disk: disk.clone() };
        let thread = std::thread::Builder::new()
            .name("nbd client".to_owned())
            .spawn(move || Connection::new(&shared, theirs, socket, disk).run())?;
        clients.push(Client { thread: Some(thread), ..client });
        Ok(())
    }

    /// Abandons the requests of all clients but `own` that have closed their connection, whether their
    /// threads have noticed it or not.
    fn abandon_closed(&self, own: &Arc<OwnedFd>) {
        self.abandon_closed_and_count(Some(own));
    }

    /// Returns whether clients are connected, or were refused, so that they may connect to the next server.
    fn leaves_clients(&self) -> bool {
        self.abandon_closed_and_count(None) > 0 || self.has_turned_away.load(Ordering::Acquire)
    }

    /// Abandons the requests of all clients but `own` that have closed their connection. Returns how many
    /// others are connected.
    fn abandon_closed_and_count(&self, own: Option<&Arc<OwnedFd>>) -> usize {
        let clients = self.clients();
        let others = clients.iter().filter(|client| !client.disk.is_abandoned());
        let others = others.filter_map(|client| Some((client.socket.upgrade()?, &client.disk)));
        let is_other = |socket: &Arc<OwnedFd>| own.is_none_or(|own| !Arc::ptr_eq(socket, own));
        let others: Vec<_> = others.filter(|(socket, _)| is_other(socket)).collect();
        if others.is_empty() {
            return 0;
        }
        // `poll` reports a closed connection even when no event is requested.
        let mut fds: Vec<_> =
            others.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::empty())).collect();
        while poll(&mut fds, Some(&Timespec::default())).is_err() {
            // The call was interrupted or out of memory.
        }
        let closed = fds.iter().zip(&others).filter(|(fd, _)| !fd.revents().is_empty());
        others.len() - closed.map(|(_, (_, disk))| disk.abandon()).count()
    }
}

/// Accepts clients until the server stops; then removes the file of the socket.
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
    file.remove(|| {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        let waits_to_be_accepted = poll(&mut fds, Some(&Timespec::default())) != Ok(0);
        waits_to_be_accepted || shared.leaves_clients()
    });
}

/// One client's socket and its session.
struct Connection<'a> {
    shared: &'a Arc<Shared>,
    inbox: Arc<CompletionQueue>,
    socket: Arc<OwnedFd>,
    disk: UnalignedStore,
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
    fn new(
        shared: &'a Arc<Shared>,
        inbox: Arc<CompletionQueue>,
        socket: Arc<OwnedFd>,
        disk: UnalignedStore,
    ) -> Self {
        let pool = Pool::new(POOL_KEPT_BYTES);
        let session = Session::new(shared.export.clone(), disk.capabilities(), pool.clone());
        let (out, negotiated_by) = (Transmit::new(), Instant::now() + shared.negotiation_max);
        Self { shared, inbox, socket, disk, session, pool, out, congested: false, negotiated_by }
    }

    fn run(mut self) {
        let mut receive = vec![0; RECEIVE_LEN];
        let is_turned_away = loop {
            if self.run_once(&mut receive).is_err() {
                break false;
            }
            if self.is_over() {
                break !self.session.is_over() && !self.is_closed();
            }
        };
        if is_turned_away {
            self.shared.has_turned_away.store(true, Ordering::Release);
        }
        if let Some(why) = self.session.cut_off() {
            (self.shared.watch)(AttachEvent::Misbehaved(why));
        }
        drop(receive);
        self.await_operations();
    }

    /// Returns whether the client has closed its connection.
    fn is_closed(&self) -> bool {
        // `poll` reports that even when no event is requested.
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())) == Ok(1)
    }

    /// Disconnects the client, and waits until its operations have ended: until then they hold memory, and
    /// can change the medium.
    fn await_operations(self) {
        let Self { inbox, socket, disk, mut session, pool, out, .. } = self;
        disk.abandon();
        drop((socket, out, pool));
        session.disconnected();
        while !session.is_idle() {
            // If the call was interrupted or out of memory, the loop checks again.
            let _ = poll(&mut [PollFd::new(&inbox.waker, PollFlags::IN)], None);
            inbox.waker.clear();
            for (ticket, result) in inbox.take() {
                session.completed(ticket, result);
            }
            session.disconnected();
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
        self.session.medium_is(self.disk.capabilities());
        for (ticket, result) in self.inbox.take() {
            self.session.completed(ticket, result);
        }
        if self.session.has_operations() {
            self.shared.abandon_closed(&self.socket);
        }
        while let Some((ticket, action)) = self.session.poll() {
            let inbox = Arc::clone(&self.inbox);
            let done = Box::new(move |result| inbox.put(ticket, result));
            submit(&self.disk, action, &self.shared.watch, done);
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
    fn take(&self) -> Vec<(Ticket, Result<OpOutput, Failure>)> {
        std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, ticket: Ticket, result: Result<OpOutput, Failure>) {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).push((ticket, result));
        self.waker.wake();
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;
