//! Runs sessions on a reactor, for callers with a loop of their own.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use base::buffer::{Bytes, Pool};
use base::state_machine::PortalId;
use base::time::Instant;
use drivers::config::{Config, EngineKind};
use drivers::ether::{PortConfig, PortError, PortSocket, Steering};
use drivers::message_queue::{Adoption, Handle};
use drivers::reactor::Reactor;
use hyperscsi::ETHERTYPE;
use hyperscsi::frame::SID_AT;
use iscsi::initiator::contract::{ConnectionView, SessionStats, Slot};
use iscsi::name::IscsiName;
use iscsi::text::TextBuilder;
use scsi::lun::Lun;
use tls::TlsError;
use transport::initiator::SubmitError;
use transport::task_management::TmfFunction;

use crate::command::Command;
use crate::error::Error;
use crate::identity::Identity;
use crate::protocol::unusable;
use crate::session_error::{SessionError, SessionLoss};
use crate::sessions::frames::stretch;
use crate::sessions::{DiskCapacity, DriverRequest, Path, Sessions, TlsServer};

pub use crate::login::{HyperScsiPlan, IscsiPlan, ProtocolPlan, TlsPlan, plan, plan_for};
pub use crate::sessions::{DriverEvent, SessionId, TextAnswer, WAITING_MAX};
#[cfg(doc)]
use {crate::sessions::Event, transport::task_management::TmfResult};

/// The size in bytes of the receive ring of an interface, as the kernel counts it. A session has some MiB
/// under way at most, and a ring of that size fits into a processor's cache.
const RECEIVE_BYTES: usize = 8 << 20;

/// How long the system may try to open a connection. The session gives an address up earlier, when it has
/// used up its share of `Limits::login_within`, and a connection that opens later is closed.
const CALL_PATIENCE: Duration = Duration::from_secs(30);

/// How many rounds [`Driver::run_ready`] processes before it returns to its caller.
const ROUNDS_MAX: usize = 16;

/// Sessions on a reactor.
///
/// Nothing happens except within [`Self::run_once`] and [`Self::run_ready`]. A driver is created, used and
/// dropped on one thread; [`crate::Client`] runs one on a thread of its own.
///
/// The types of plans, of the engine, the pool, the clock, connections and the counters of the reactor are
/// part of [`crate::unstable`].
pub struct Driver {
    reactor: Reactor<Sessions>,
    sessions: Sessions,
    errands: Vec<DriverRequest>,
}

impl Driver {
    /// Creates a driver.
    ///
    /// # Errors
    /// Returns [`Error::Start`] if the system cannot create the event loop or its memory.
    pub fn new() -> Result<Self, Error> {
        Self::with_config(&Config::default())
    }

    /// Creates a driver whose reactor has this configuration. The type of the configuration is part of
    /// [`crate::unstable`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_config(config: &Config) -> Result<Self, Error> {
        let reactor = Reactor::new(config).map_err(Error::start)?;
        let sessions = Sessions::new(reactor.pool().clone());
        Ok(Self { reactor, sessions, errands: Vec::new() })
    }

    /// Returns which engine the reactor uses.
    pub fn engine(&self) -> EngineKind {
        self.reactor.engine()
    }

    /// Returns the buffer pool. [`Self::recycle`] returns received data to it.
    pub fn pool(&self) -> &Pool {
        self.reactor.pool()
    }

    /// Returns the data of a reply to the buffer pool, so that its memory is used again.
    pub fn recycle(&self, data: Bytes) {
        self.reactor.pool().recycle(data);
    }

    /// Returns the present time of the clock that sessions use.
    pub fn now(&self) -> Instant {
        self.reactor.now()
    }

    /// Opens a session; [`crate::Event`] reports its progress.
    pub fn open(&mut self, plan: impl Into<ProtocolPlan>) -> SessionId {
        self.sessions.open(self.reactor.now(), plan.into())
    }

    /// Submits a command. [`DriverEvent::Finished`] with this `token` reports its result in every case. The
    /// caller chooses the tokens; [`Self::abort`] finds a command by its token. A command waits until the
    /// session is up and has a free task. At most [`WAITING_MAX`] commands may wait; more
    /// are refused.
    pub fn submit(&mut self, session: SessionId, token: u64, command: Command) {
        let now = self.reactor.now();
        self.sessions.submit(now, session, token, command);
    }

    /// Sends a task management request for a unit, and for one of its commands if `command` names one;
    /// [`DriverEvent::TmfDone`] with this `token` reports the result.
    pub fn submit_tmf(
        &mut self,
        session: SessionId,
        token: u64,
        function: TmfFunction,
        lun: Lun,
        command: Option<u64>,
    ) {
        let task = command.and_then(|command| self.sessions.task_of(session, command));
        let now = self.reactor.now();
        self.sessions.submit_tmf(now, session, token, (function, lun, task));
    }

    /// Aborts the command that was submitted as `command`, and no other: a command that waits in the queue is
    /// removed, and a command that the target has received is aborted with ABORT TASK.
    /// [`DriverEvent::TmfDone`] with this `token` reports the result: [`TmfResult::COMPLETE`], or
    /// [`TmfResult::NO_TASK`] if the command had ended before; `None` if no connection is up, or the session
    /// was lost before the response arrived. [`DriverEvent::Finished`] reports the end of the command in any
    /// case. From now on the command is not retried.
    pub fn abort(&mut self, session: SessionId, token: u64, command: u64) {
        let now = self.reactor.now();
        self.sessions.abort(now, session, token, command);
    }

    /// Sets the command timeout of a session: how long a command may go without a response and without data
    /// being moved. It is one minute at first; `None` for no timeout. When it expires, the command is aborted
    /// with ABORT TASK. If ABORT TASK is not answered, LOGICAL UNIT RESET follows. If that is not answered
    /// either, a new session follows. [`Event::Unanswered`] reports each step. Then the command is
    /// retried if it is repeatable and was not aborted three times; otherwise it fails with
    /// [`crate::CommandError::Silence`]. Time without a connection does not count.
    /// [`Command::answer_within`] sets the timeout of one command.
    pub fn limit_commands(&mut self, session: SessionId, limit: Option<Duration>) {
        let now = self.reactor.now();
        self.sessions.limit_commands(now, session, limit);
    }

    /// Guards a unit with an identity check: after a session recovery, the session sends the unit nothing
    /// before the unit has reported again that it is the device of `identity`. If it is another device,
    /// [`Event::OtherDevice`] reports that, and commands for the unit fail. While the unit is not there or
    /// not ready, its commands wait as long as they would wait for the target, and fail after that until the
    /// unit reports its device.
    pub fn guard(&mut self, session: SessionId, lun: Lun, identity: Identity) {
        let now = self.reactor.now();
        self.sessions.guard(now, session, lun, identity);
    }

    /// Guards a unit with its capacity: a unit of this LUN with blocks of another length is another device,
    /// as for [`Self::guard`], and so is one without a name whose number of blocks has changed. It is checked
    /// in every new session, and after a unit attention that says that the capacity or the device may have
    /// changed.
    pub(crate) fn guard_capacity(&mut self, session: SessionId, lun: Lun, capacity: DiskCapacity) {
        let now = self.reactor.now();
        self.sessions.guard_capacity(now, session, lun, capacity);
    }

    /// Negotiates keys in the full feature phase, on the connection at `on` or on any; only one text
    /// negotiation runs at a time. [`DriverEvent::TextDone`] follows.
    /// Few keys may be negotiated in this phase (RFC 7143 §13): MaxRecvDataSegmentLength, for that connection
    /// as long as it lasts, our alias, and keys that no standard defines.
    ///
    /// # Errors
    /// Returns [`SubmitError`] if a text negotiation is under way, the session is down or not up, a key is
    /// not allowed in this phase, or the session is not an iSCSI session.
    pub fn negotiate(
        &mut self,
        session: SessionId,
        on: Option<Slot>,
        keys: &[(&str, &str)],
    ) -> Result<(), SubmitError> {
        let now = self.reactor.now();
        let mut text = TextBuilder::new();
        for (name, value) in keys {
            text.put(name, value);
        }
        self.sessions.iscsi(session)?.send_text(now, on, text)
    }

    /// Sends SendTargets: for all targets (in a discovery session), or for one target.
    ///
    /// # Errors
    /// Returns [`SubmitError`], as [`Self::negotiate`].
    pub fn send_targets(&mut self, session: SessionId, only: Option<&IscsiName>) -> Result<(), SubmitError> {
        let now = self.reactor.now();
        self.sessions.iscsi(session)?.send_targets(now, only)
    }

    /// Changes how many connections a session is to have, at most as many as the target allows. New ones are
    /// opened one after the other. Surplus ones finish their tasks and log out, while commands continue.
    /// [`Event::PathUp`] and [`Event::PathDown`] report both.
    ///
    /// # Errors
    /// Returns [`SubmitError::Down`] if there is no such session, [`SubmitError::NotPossible`] if it is not
    /// an iSCSI session.
    pub fn set_connections(&mut self, session: SessionId, count: u16) -> Result<(), SubmitError> {
        let now = self.reactor.now();
        self.sessions.iscsi(session)?.set_connections(now, count);
        Ok(())
    }

    /// Ends a session with a logout.
    pub fn log_out(&mut self, session: SessionId) {
        let now = self.reactor.now();
        if let Some(session) = self.sessions.session(session) {
            session.services_mut().logout(now);
        }
    }

    /// Ends a session at once, whatever is under way.
    pub fn close(&mut self, session: SessionId) {
        let now = self.reactor.now();
        if let Some(session) = self.sessions.session(session) {
            session.services_mut().close(now);
        }
    }

    /// Pings the target of a session, on every connection (iSCSI) or a path (HyperSCSI) that is up. Returns
    /// how many messages have been received from it so far; `None` if the session has ended.
    pub fn ping(&mut self, session: SessionId) -> Option<u64> {
        if self.sessions.down(session).is_some() {
            return None;
        }
        let now = self.reactor.now();
        self.sessions.session(session).map(|session| session.services_mut().ping(now))
    }

    /// Forgets a session that is down, with its memory and its counters. Does nothing if the session is not
    /// down.
    pub fn forget(&mut self, session: SessionId) {
        self.sessions.forget(session);
    }

    /// Returns the paths of a session that are up; `None` if it has ended.
    pub fn paths(&self, session: SessionId) -> Option<Vec<Path>> {
        self.sessions.paths(session)
    }

    /// Returns the connections of a session, none for one of HyperSCSI; `None` if it was forgotten.
    pub fn connections(&self, session: SessionId) -> Option<Vec<ConnectionView>> {
        self.sessions.connections(session)
    }

    /// Returns the counters of a session; `None` if it was forgotten.
    pub fn stats(&self, session: SessionId) -> Option<SessionStats> {
        self.sessions.stats(session)
    }

    /// Returns why a session was last lost, whether it recovered or not; `None` if it was never lost, if its
    /// owner ended it, or if it was forgotten.
    pub fn loss(&self, session: SessionId) -> Option<SessionLoss> {
        self.sessions.loss(session)
    }

    /// Returns why a session ended; `None` if it has not ended, or was forgotten.
    pub(crate) fn down(&self, session: SessionId) -> Option<SessionError> {
        self.sessions.down(session)
    }

    /// Returns the counters of the reactor.
    pub fn reactor_stats(&mut self) -> drivers::stats::Stats {
        self.reactor.stats()
    }

    /// Returns the sessions that were not forgotten.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.sessions.ids()
    }

    /// Returns whether every session has ended.
    pub fn all_down(&self) -> bool {
        self.sessions.all_down()
    }

    /// Returns whether a session that has ended still has to send its closing message to the target, which
    /// takes at most one second.
    pub fn has_unacked_closings(&self) -> bool {
        self.sessions.has_unacked_closings()
    }

    /// Does all work that is due, sleeps until the next event but for `wait_max` at most, and handles that
    /// event. Does not sleep while events wait to be polled.
    ///
    /// # Errors
    /// Returns the system error of the reactor's own descriptors. Errors of sessions are reported as events.
    pub fn run_once(&mut self, wait_max: Option<Duration>) -> io::Result<()> {
        self.process_pending();
        // Requests that fail at once end sessions, and no other event would wake the reactor to report that.
        let wait_max = if self.sessions.events.is_empty() { wait_max } else { Some(Duration::ZERO) };
        self.reactor.run_once(&mut self.sessions, wait_max)?;
        self.process_pending();
        Ok(())
    }

    /// Does everything that can be done without sleeping. Returns how long the caller may sleep before it
    /// calls again, unless [`Self::as_fd`] becomes readable or the caller submits something before. For
    /// callers with a loop of their own.
    ///
    /// # Errors
    /// As [`Self::run_once`].
    pub fn run_ready(&mut self) -> io::Result<Option<Duration>> {
        self.process_pending();
        for _ in 0..ROUNDS_MAX {
            let sleep = self.reactor.run_ready(&mut self.sessions)?;
            if !self.process_pending() {
                return Ok(sleep);
            }
        }
        Ok(Some(Duration::ZERO))
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<DriverEvent> {
        self.sessions.events.pop_front()
    }

    /// Returns a handle that wakes the driver from any thread.
    pub(crate) fn handle(&self) -> Handle<Sessions> {
        self.reactor.handle()
    }

    /// Processes the requests of the sessions. Returns whether there were any.
    fn process_pending(&mut self) -> bool {
        let now = self.reactor.now();
        let mut any = false;
        while let Some((PortalId(number), why)) = self.reactor.next_failure() {
            self.sessions.dial_failed(now, number, &why);
            any = true;
        }
        any |= self.sessions.process_pending(now, &mut self.errands);
        // The result of a request may be known at once, and may end a session.
        while !self.errands.is_empty() {
            self.run_errands(now);
            self.sessions.process_pending(now, &mut self.errands);
        }
        any
    }

    fn run_errands(&mut self, now: Instant) {
        for errand in std::mem::take(&mut self.errands) {
            match errand {
                DriverRequest::OpenPort(port, interface) => {
                    let first = self.sessions.sid_first.get();
                    let opened = PortSocket::open(port_config(&interface, first)).and_then(|socket| {
                        self.reactor.open_port(port, socket).map_err(|why| PortError::Io(interface, why))
                    });
                    if let Err(why) = opened {
                        self.sessions.port_failed(now, port, &unusable(&why));
                    }
                }
                DriverRequest::Stretch(id, job) => stretch(self.reactor.handle(), id, *job),
                DriverRequest::Connect(number, address, None) => {
                    self.reactor.connect(address, PortalId(number), CALL_PATIENCE);
                }
                DriverRequest::Connect(number, address, Some(server)) => {
                    connect_tls(self.reactor.handle(), number, address, *server);
                }
                DriverRequest::Resolve(number, name, port) => {
                    resolve(self.reactor.handle(), number, name, port)
                }
            }
        }
    }
}

/// Returns the configuration with which an initiator opens an interface. The initiator receives the frames
/// that belong to no session, and those of sessions whose session identifiers begin with the byte
/// `sid_first`.
pub(crate) fn port_config(interface: &str, sid_first: u8) -> PortConfig {
    PortConfig {
        steering: Some(Steering { at: SID_AT, mine: sid_first..=sid_first }),
        receive_bytes: RECEIVE_BYTES,
        ..PortConfig::new(interface, ETHERTYPE)
    }
}

impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.engine())
    }
}

/// Makes a connection with TLS on a thread of its own. The thread gives it to the reactor once the handshake
/// is complete.
fn connect_tls(reactor: Handle<Sessions>, number: u32, peer: SocketAddr, server: TlsServer) {
    let report = reactor.clone();
    // A reactor that has ended needs neither the connection nor the error.
    let work = move || {
        let TlsServer { settings, name, refusal } = server;
        let refused = move |why: TlsError| refusal.record(why.to_string());
        match tls::connect(peer, &name, &settings, CALL_PATIENCE, refused) {
            Ok((socket, local)) => {
                let (socket, portal) = (socket.into(), PortalId(number));
                let _ = reactor.adopt(Adoption { socket, portal, local, peer, bytes: Vec::new() });
            }
            Err(why) => {
                let why = match why {
                    TlsError::Io(why) => why,
                    other => io::Error::other(other),
                };
                let _ = reactor.post(move |sessions, _| sessions.connect_failed(number, why));
            }
        }
    };
    if let Err(why) = std::thread::Builder::new().name("targe-tls".to_owned()).spawn(work) {
        let _ = report.post(move |sessions, _| sessions.connect_failed(number, why));
    }
}

/// Resolves a host name on a thread of its own, since the system's resolver blocks. The thread ends with the
/// lookup, whose time the resolver bounds. Host names are resolved only when a connection is opened, which is
/// rare.
fn resolve(reactor: Handle<Sessions>, number: u32, name: String, port: u16) {
    let report = reactor.clone();
    let work = move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // A reactor that has ended needs no address.
        let _ = reactor.post(move |sessions, _| sessions.host_resolved(number, found));
    };
    if let Err(why) = std::thread::Builder::new().name("targe-resolver".to_owned()).spawn(work) {
        let _ = report.post(move |sessions, _| sessions.host_resolved(number, Err(why)));
    }
}
