//! Sessions on a reactor, for owners with a loop of their own.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use base::buffer::{Bytes, Pool};
use base::state_machine::PortalId;
use base::time::Instant;
use drivers::config::{Config, EngineKind};
use drivers::ether::{PortConfig, PortError, PortSocket, Steering};
use drivers::message_queue::Handle;
use drivers::reactor::{Reactor, ReactorError};
use hyperscsi::ETHERTYPE;
use hyperscsi::frame::SID_AT;
use iscsi::initiator::contract::{ConnectionView, SessionStats, Slot, SubmitError};
use iscsi::name::IscsiName;
use iscsi::pdu::tmf_request::TmfFunction;
use iscsi::text::TextBuilder;
use scsi::lun::Lun;

use crate::command::Command;
use crate::identity::Identity;
use crate::login::ProtocolPlan;
use crate::protocol::unusable;
use crate::session_error::{SessionError, SessionLoss};
use crate::sessions::frames::stretch;
use crate::sessions::{DriverEvent, DriverRequest, SessionId, Sessions};
#[cfg(doc)]
use {crate::sessions::SessionEvent, iscsi::pdu::tmf_response::TmfResult};

/// How many bytes wait to be received at an interface, as the kernel counts. A session keeps some MiB under way at most, and a
/// ring of that size stays in a processor's cache.
const RECEIVE_BYTES: usize = 8 << 20;

/// How long one address may take to answer a call, before the next one of its host is tried. The session's own limit
/// (`Limits::login_within`) is usually shorter.
const CALL_PATIENCE: Duration = Duration::from_secs(30);

/// How often [`Driver::run_ready`] looks for more before it lets its owner see to other things.
const ROUNDS_MAX: usize = 16;

/// Sessions on a reactor.
///
/// Nothing happens but within [`Self::run_once`] and [`Self::run_ready`]. Made, used and dropped on one thread;
/// [`crate::client::Client`] is one with a thread of its own.
pub struct Driver {
    reactor: Reactor<Sessions>,
    sessions: Sessions,
    errands: Vec<DriverRequest>,
}

impl Driver {
    /// Sets a driver up.
    ///
    /// # Errors
    /// [`ReactorError`]
    pub fn new(config: &Config) -> Result<Self, ReactorError> {
        let reactor = Reactor::new(config)?;
        let sessions = Sessions::new(reactor.pool().clone());
        Ok(Self { reactor, sessions, errands: Vec::new() })
    }

    /// Returns which engine runs.
    pub fn engine(&self) -> EngineKind {
        self.reactor.engine()
    }

    /// Returns the store of buffers. Data that came is given back to it with [`Self::recycle`].
    pub fn pool(&self) -> &Pool {
        self.reactor.pool()
    }

    /// Gives back data that came with a reply, so that its memory is used again.
    pub fn recycle(&self, data: Bytes) {
        self.reactor.pool().recycle(data);
    }

    /// Returns the present moment of the clock that sessions go by.
    pub fn now(&self) -> Instant {
        self.reactor.now()
    }

    /// Begins a session; [`crate::sessions::SessionEvent`] tell what becomes of it.
    pub fn open(&mut self, plan: impl Into<ProtocolPlan>) -> SessionId {
        self.sessions.open(self.reactor.now(), plan.into())
    }

    /// Has a command carried out; [`DriverEvent::Finished`] with this `token` tells what came of it, whatever happens. Tokens are
    /// the caller's to choose; [`Self::abort`] finds a command by its. A command waits until the session is up and has room;
    /// [`crate::sessions::WAITING_MAX`] may wait, more are refused.
    pub fn submit(&mut self, session: SessionId, token: u64, command: Command) {
        let now = self.reactor.now();
        self.sessions.submit(now, session, token, command);
    }

    /// Sends a task management request for a unit, and for one of its commands if `command` names one;
    /// [`DriverEvent::TmfDone`] with this `token` tells what came of it.
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

    /// Ends the command that was submitted as `command`, and only that: what waits here is taken back, for what the
    /// target knows of there is an ABORT TASK. [`DriverEvent::TmfDone`] with this `token` tells what came of it:
    /// [`TmfResult::COMPLETE`], or [`TmfResult::NO_TASK`] if the command had ended by itself; `None` if no connection is
    /// up, or the session was lost before the answer came. [`DriverEvent::Finished`] tells of the command in any case. From now
    /// on it is not tried again, whatever becomes of it.
    pub fn abort(&mut self, session: SessionId, token: u64, command: u64) {
        let now = self.reactor.now();
        self.sessions.abort(now, session, token, command);
    }

    /// Sets how long a command of a session may go without an answer and without data being moved, a minute at first;
    /// `None` for any time. Then it is ended by ABORT TASK, and if that is not answered by LOGICAL UNIT RESET, and if that is
    /// not either by a new session ([`SessionEvent::Unanswered`] tells of each step); and it is tried again, if it is repeatable and
    /// was not ended three times, or fails with [`crate::command::CommandError::Silence`]. Time without a connection does not
    /// count. [`Command::answer_within`] sets it for one command.
    pub fn limit_commands(&mut self, session: SessionId, limit: Option<Duration>) {
        let now = self.reactor.now();
        self.sessions.limit_commands(now, session, limit);
    }

    /// Guards a unit: nothing is sent to it in a session that was built anew before it has said again that it is the
    /// device that `identity` tells of. If it is another one, [`SessionEvent::OtherDevice`] says so, and commands for it fail.
    pub fn guard(&mut self, session: SessionId, lun: Lun, identity: Identity) {
        let now = self.reactor.now();
        self.sessions.guard(now, session, lun, identity);
    }

    /// Negotiates keys while the session is up, on the connection at `on` or on any; one conversation at a time.
    /// [`SessionEvent::TextNegotiated`] or [`SessionEvent::TextFailed`] follows. What may be negotiated then is not much (RFC 7143 §13):
    /// MaxRecvDataSegmentLength, for that connection and as long as it lives, our alias, and keys that no standard knows.
    ///
    /// # Errors
    /// [`SubmitError`]: a conversation is under way, the session is down or not up, a key has no place there, or it is no
    /// session of iSCSI.
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

    /// Asks for all targets (in a discovery session), or for what the target says of this one.
    ///
    /// # Errors
    /// [`SubmitError`], as [`Self::negotiate`].
    pub fn send_targets(&mut self, session: SessionId, only: Option<&IscsiName>) -> Result<(), SubmitError> {
        let now = self.reactor.now();
        self.sessions.iscsi(session)?.send_targets(now, only)
    }

    /// Changes how many connections a session is to have, at most as many as the target allows. New ones are opened one
    /// after the other; those that go are emptied and logged out, while commands go on. [`SessionEvent::PathUp`] and
    /// [`SessionEvent::PathLost`] tell of both.
    ///
    /// # Errors
    /// [`SubmitError::Down`] if there is no such session, [`SubmitError::NotPossible`] if it is not one of iSCSI.
    pub fn set_connections(&mut self, session: SessionId, count: u16) -> Result<(), SubmitError> {
        let now = self.reactor.now();
        self.sessions.iscsi(session)?.set_connections(now, count);
        Ok(())
    }

    /// Ends a session in order.
    pub fn log_out(&mut self, session: SessionId) {
        let now = self.reactor.now();
        if let Some(session) = self.sessions.session(session) {
            session.logout(now);
        }
    }

    /// Ends a session at once.
    pub fn close(&mut self, session: SessionId) {
        let now = self.reactor.now();
        if let Some(session) = self.sessions.session(session) {
            session.close(now);
        }
    }

    /// Asks the target of a session for a sign of life, on every connection (iSCSI) or a path (HyperSCSI) that is up. Returns
    /// how many messages of it came so far; `None` if the session has ended.
    pub fn ping(&mut self, session: SessionId) -> Option<u64> {
        if self.sessions.down(session).is_some() {
            return None;
        }
        let now = self.reactor.now();
        self.sessions.session(session).map(|session| session.ping(now))
    }

    /// Forgets a session that is down, with its memory and its statistics. One that is not down stays.
    pub fn forget(&mut self, session: SessionId) {
        self.sessions.forget(session);
    }

    /// Returns the connections of a session, none for one of HyperSCSI; `None` if it was forgotten.
    pub fn connections(&self, session: SessionId) -> Option<Vec<ConnectionView>> {
        self.sessions.connections(session)
    }

    /// Returns what a session did so far; `None` if it was forgotten.
    pub fn stats(&self, session: SessionId) -> Option<SessionStats> {
        self.sessions.stats(session)
    }

    /// Returns why a session was last lost, for a time or for good; `None` if that never happened, if its owner ended it, or if
    /// it was forgotten.
    pub fn loss(&self, session: SessionId) -> Option<SessionLoss> {
        self.sessions.loss(session)
    }

    /// Returns how a session ended; `None` if it did not, or was forgotten.
    pub(crate) fn down(&self, session: SessionId) -> Option<SessionError> {
        self.sessions.down(session)
    }

    /// Returns what the reactor did so far.
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

    /// Returns whether a session that ended has still something to say to its target, which takes a second at most.
    pub fn has_unacked_closings(&self) -> bool {
        self.sessions.has_unacked_closings()
    }

    /// Does what is due, sleeps until something happens but for `wait_max` at most, and handles it. Does not sleep
    /// while events wait to be polled.
    ///
    /// # Errors
    /// What the system says of the reactor's own descriptors; what concerns sessions is told by events.
    pub fn run_once(&mut self, wait_max: Option<Duration>) -> io::Result<()> {
        self.process_pending();
        // Errands that fail at once end sessions, and nothing else would wake us to tell that.
        let wait_max = if self.sessions.events.is_empty() { wait_max } else { Some(Duration::ZERO) };
        self.reactor.run_once(&mut self.sessions, wait_max)?;
        self.process_pending();
        Ok(())
    }

    /// Does everything that can be done without sleeping, and returns how long the owner may sleep before it calls
    /// again, if nothing makes [`Self::as_fd`] readable before and it submits nothing. For owners with a loop of
    /// their own.
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

    /// Wakes the driver from any thread.
    pub(crate) fn handle(&self) -> Handle<Sessions> {
        self.reactor.handle()
    }

    /// Hears what sessions want and runs their errands. Returns whether there was anything.
    fn process_pending(&mut self) -> bool {
        let now = self.reactor.now();
        let mut any = false;
        while let Some((PortalId(number), why)) = self.reactor.next_failure() {
            self.errands.extend(self.sessions.dial_failed(now, number, &why));
            any = true;
        }
        any |= self.sessions.process_pending(now, &mut self.errands);
        // What an errand comes to may be known at once, and may end a session.
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
                DriverRequest::Connect(number, address) => {
                    self.reactor.connect(address, PortalId(number), CALL_PATIENCE);
                }
                DriverRequest::Resolve(number, name, port) => {
                    resolve(self.reactor.handle(), number, name, port)
                }
            }
        }
    }
}

/// Returns how an initiator opens an interface, on which it hears what concerns nobody's session, and sessions whose names
/// begin with a byte.
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

/// Looks a host up on a thread of its own: the system's resolver blocks. It ends with the lookup, whose time the
/// resolver bounds; hosts are looked up when a connection is opened, which is rare.
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
