//! The target role of iSCSI for one shard: all its connections and sessions, as one value that does no I/O.
//!
//! Toward the network it has the shape of a [`base::state_machine::StreamMachine`]; the owner forwards to it
//! and adds the directory that logins consult. Toward the layer above, it returns [`Event`]s and accepts
//! `fetch`, `data_in`, `finish`, `abort`, `finish_tmf`. After any call the owner polls [`Engine::poll_event`]
//! until it is empty, then [`Engine::poll_action`].
//!
//! # Memory
//!
//! All memory that a peer can make the engine hold is bounded: commands by the command window
//! ([`Limits::queue_depth`]), Data-Out by [`Limits::data_out_bytes_max`], Data-In that the peer does not read
//! by [`Limits::data_in_bytes_max`], and control PDUs by [`MAX_CONTROL_QUEUED`] per connection.
//! [`transport::quota`] divides the memory among sessions when it is short.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use base::buffer::Pool;
use base::state_machine::{AcceptInfo, Action, ConnId, RxBuffer};
use base::time::{Duration, Instant};
use security::guess_limit::{GuessLimiter, SharedGuessLimit};
use transport::quota::DataQuotas;

use super::arena::{Arena, Key};
use super::connection::{Connection, index};
use super::contract::{Event, FailedLogin, LoginRefusals, LoginRejected, Repairs, SessionLimits};
use super::initiator_notes::{Deviation, InitiatorNote, Notes};
use super::output::Output;
use super::protocol_error::ProtocolError;
use super::session::{Session, Tmf};
use super::task::Task;
use super::timer::{Owner, Timer, Timers};
use crate::login::directory::{Directory, TargetId};
use crate::login::target::ClaimedIdentity;
use crate::pdu::{TargetSn, Ttt};
use crate::recovery::{TargetAction, TargetResponse};
use crate::trace::PduTrace;

/// Every iSCSI connection and session of a shard.
pub struct Engine {
    pub(super) limits: Limits,
    /// Limits of the targets that have limits of their own.
    pub(super) target_limits: BTreeMap<TargetId, SessionLimits>,
    /// The deepest command window that any session was ever given. The retained statuses of all sessions are
    /// bounded by it.
    pub(super) depth_max: u32,
    pub(super) pool: Pool,
    /// The connections, indexed by ConnId.
    pub(super) conns: Vec<Option<Box<Connection>>>,
    /// How many connections are open, and how many connections of each address have not logged in.
    pub(super) open_conns: usize,
    pub(super) pending_logins: BTreeMap<IpAddr, usize>,
    pub(super) sessions: Arena<Session>,
    pub(super) tasks: Arena<Task>,
    pub(super) tmfs: Arena<Tmf>,
    pub(super) events: VecDeque<Event>,
    pub(super) actions: VecDeque<Action>,
    pub(super) timers: Timers,
    /// Memory for data in flight.
    pub(super) quotas: DataQuotas,
    /// Sessions whose pending logouts must be processed again.
    pub(super) dirty_sessions: VecDeque<Key>,
    /// Bytes of control PDUs that wait to be sent or acknowledged, and of text that is held, on all
    /// connections.
    pub(super) control_bytes: usize,
    /// Failed logins that were not polled yet.
    pub(super) failed_logins: VecDeque<FailedLogin>,
    pub(super) notes: Notes,
    /// The rate limit on guesses of passwords.
    pub(super) guesses: GuessLimiter,
    /// The traces that are on.
    pub(super) traces: Vec<Arc<dyn PduTrace>>,
    pub(super) next_ttt: u32,
    /// Whether no command window advances, so that the sessions become idle.
    pub(super) is_frozen: bool,
    /// The time at the last call.
    pub(super) now: Instant,
    pub(super) next_tsih: u16,
    pub(super) stats: EngineStats,
}

/// The limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time, those that log in included.
    pub connections_max: u32,
    /// Normal sessions at a time. Discovery sessions are counted separately.
    pub sessions_max: u16,
    /// [`SessionLimits::queue_depth`] of targets without a limit of their own.
    pub queue_depth: u32,
    /// Immediate commands and TMFs that a session may have open; each connection may always have one of each.
    pub immediate_max: u32,
    /// Bytes of Data-Out, of all sessions, that may be received or under way, and are not yet delivered to
    /// the layer above.
    pub data_out_bytes_max: usize,
    /// Bytes of Data-In, of all sessions: data that waits to be sent or acknowledged, and reservations of
    /// commands under way.
    pub data_in_bytes_max: usize,
    /// Bytes, on all connections, of control PDUs (answers to pings, Rejects, …) that wait to be sent or
    /// acknowledged, and of text that continues in other PDUs. Beyond it the engine drops the connection that
    /// holds most of these bytes.
    pub control_bytes_max: usize,
    /// As `data_in_bytes_max`, of one session. Beyond it, the engine holds back the session's next commands.
    /// It is also the most that is reserved for one command before its data arrives, so the bounds hold if no
    /// command returns more than this.
    pub unsent_bytes_max: usize,
    /// How long a login may take; never more than [`crate::login::MAX_LOGIN_TIME`].
    pub login_within: Duration,
    /// [`SessionLimits::ping_after`] of targets without a limit of their own.
    pub ping_after: Duration,
    /// [`SessionLimits::pong_within`] of targets without a limit of their own.
    pub pong_within: Duration,
    /// [`SessionLimits::idle_within`] of targets without a limit of their own.
    pub idle_within: Duration,
    /// Whether logins may use initiator names that are not of the form of RFC 7143 §4.2.7.
    pub lenient_names: bool,
    /// How long an initiator may owe data without sending any before its connection is dropped. At level 0
    /// also: how long one data sequence may make no progress before its task fails (see the module `stall`).
    pub data_within: Duration,
    /// From ErrorRecoveryLevel 1 on: how long data that an initiator owes may be missing before a recovery
    /// R2T asks for it again.
    pub repair_after: Duration,
    /// From level 1 on: how long a status may stay unacknowledged before the engine pings the initiator.
    pub ack_within: Duration,
    /// How long a command number may be missing before the session is dropped. From level 1 on, and if the
    /// session has several connections, it is dropped after [`Self::data_within`] instead, and each time this
    /// time passes a NOP-In shows the initiator the ExpCmdSN.
    pub gap_within: Duration,
    /// How long a task management function waits for the data of the tasks that it ends. RFC 7143 §4.2.3.3
    /// sets no limit, but initiators that stop sending are common. Its response waits up to twice as long for
    /// acknowledgements.
    pub fence_within: Duration,
    /// How long a logout waits for tasks under way to end and for their responses to be sent, before it
    /// terminates the tasks.
    pub logout_within: Duration,
    /// The first TSIH that this engine assigns, 1 or more, and the step to the next. Engines side by side
    /// must not assign the same TSIH.
    pub tsih_first: u16,
    /// See `tsih_first`; 1 or more.
    pub tsih_step: u16,
}

impl Limits {
    /// The default of `unsent_bytes_max`: how many bytes of Data-In one session may have unsent.
    pub const UNSENT_BYTES_MAX: usize = 16 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            sessions_max: 8192,
            queue_depth: 128,
            immediate_max: 32,
            data_out_bytes_max: 256 << 20,
            data_in_bytes_max: 256 << 20,
            control_bytes_max: 16 << 20,
            unsent_bytes_max: Self::UNSENT_BYTES_MAX,
            login_within: crate::login::MAX_LOGIN_TIME,
            ping_after: Duration::from_secs(30),
            pong_within: Duration::from_secs(15),
            idle_within: Duration::from_secs(300),
            lenient_names: false,
            data_within: Duration::from_secs(30),
            repair_after: Duration::from_secs(2),
            ack_within: Duration::from_secs(1),
            gap_within: Duration::from_secs(3),
            fence_within: Duration::from_secs(1),
            logout_within: Duration::from_secs(2),
            tsih_first: 1,
            tsih_step: 1,
        }
    }
}

/// How many control PDUs (answers to pings, Rejects, …) may wait to be sent on one connection. Every request
/// in a full window could cause one, and a peer that reads at all empties the queue with every batch.
pub const MAX_CONTROL_QUEUED: usize = 2048;

/// How many failed logins wait to be polled. The engine only counts the ones beyond it.
const MAX_FAILED_LOGINS: usize = 64;

/// Bytes that a control PDU is charged in addition to its data.
pub(super) const CONTROL_COST: usize = 256;

/// A peer that sends this many bytes without completing a PDU is slow but alive.
const LIVENESS_BYTES: usize = 64 << 10;

/// Counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Connections received, refused ones included.
    pub connections: u64,
    /// Logins that succeeded.
    pub logins: u64,
    /// Logins that failed.
    pub logins_failed: u64,
    /// The same, by the class of the reason.
    pub refusals: LoginRefusals,
    /// Logins that reinstated a session: session recovery, which every error recovery level has.
    pub sessions_reinstated: u64,
    /// Logins that reinstated a connection of a session: connection recovery.
    pub connections_reinstated: u64,
    /// Logins by which one host took over the session of another host that uses the same initiator name.
    pub rival_logins: u64,
    /// PDUs received completely.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// SCSI commands accepted.
    pub commands: u64,
    /// Bytes of Data-Out received, immediate data included.
    pub data_out_bytes: u64,
    /// Bytes of Data-In sent.
    pub data_in_bytes: u64,
    /// Headers with a wrong digest.
    pub header_digest_errors: u64,
    /// Data segments with a wrong digest.
    pub data_digest_errors: u64,
    /// Rejects sent.
    pub rejects: u64,
    /// Requests ignored, such as numbers outside the command window, or data that no task expects.
    pub ignored: u64,
    /// Silent sessions that were ended so that new sessions could begin.
    pub evicted: u64,
    /// Commands that failed because their data was not received in time.
    pub data_late: u64,
    /// Commands answered BUSY because memory was short.
    pub busy: u64,
    /// How often an R2T was delayed because memory was short.
    pub withheld: u64,
    /// How often commands waited for memory for their Data-In.
    pub held_back: u64,
    /// Commands that lost the memory of a stalled data sequence because other sessions waited for memory.
    pub revoked: u64,
    /// Task management requests accepted.
    pub management: u64,
    /// SNACKs that asked for a retransmission.
    pub snacks: u64,
    /// Recovery R2Ts: R2Ts that asked again for lost data.
    pub recovery_r2ts: u64,
    /// Tasks reassigned to another connection.
    pub reassigns: u64,
    /// Connections dropped because the peer broke a rule.
    pub dropped: u64,
    /// Internal errors of the engine.
    pub bugs: u64,
}

impl Engine {
    /// Creates an engine without connections. Data buffers are taken from `pool` and returned to it.
    pub fn new(limits: Limits, pool: Pool) -> Self {
        Self {
            next_tsih: limits.tsih_first.max(1),
            depth_max: limits.queue_depth,
            target_limits: BTreeMap::new(),
            limits,
            pool,
            conns: Vec::new(),
            open_conns: 0,
            pending_logins: BTreeMap::new(),
            sessions: Arena::new(),
            tasks: Arena::new(),
            tmfs: Arena::new(),
            events: VecDeque::new(),
            actions: VecDeque::new(),
            timers: Timers::default(),
            quotas: DataQuotas::new(
                limits.data_out_bytes_max,
                limits.data_in_bytes_max,
                limits.unsent_bytes_max,
            ),
            dirty_sessions: VecDeque::new(),
            control_bytes: 0,
            failed_logins: VecDeque::new(),
            notes: Notes::default(),
            guesses: GuessLimiter::default(),
            traces: Vec::new(),
            next_ttt: 0,
            is_frozen: false,
            now: Instant::ORIGIN,
            stats: EngineStats::default(),
        }
    }

    /// Uses a limit on guesses that others use too, from now on.
    pub fn share_guess_limit(&mut self, shared: Arc<dyn SharedGuessLimit>) {
        self.guesses = GuessLimiter::Shared(shared);
    }

    /// Handles a new connection.
    pub fn connected(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        self.now = now;
        self.stats.connections += 1;
        // The number of a connection says nothing: connections that were taken over may have all those below
        // the limit. The driver keeps numbers small.
        let connections_max = usize::try_from(self.limits.connections_max).unwrap_or(usize::MAX);
        if self.open_conns >= connections_max || !self.reserve_login_slot(arrival.peer) {
            self.actions.push_back(Action::Abort(conn));
            return;
        }
        self.add_connection(now, conn, Connection::new(now, arrival));
    }

    /// Handles a connection of a session that [`Self::resume`] resumes next. The limits of connections were
    /// those of the engine that the session comes from.
    pub fn taken_over(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        self.now = now;
        self.stats.connections += 1;
        self.add_connection(now, conn, Connection { logs_in_from: None, ..Connection::new(now, arrival) });
    }

    fn add_connection(&mut self, now: Instant, conn: ConnId, new: Connection) {
        while self.conns.len() <= index(conn) {
            self.conns.push(None);
        }
        let mut new = Box::new(new);
        if let (true, Some(login)) = (self.limits.lenient_names, &mut new.login) {
            login.take_lenient_names();
        }
        self.open_conns += 1;
        let deadline = new.login.as_ref().map_or(now, |login| login.deadline());
        let deadline = deadline.min(now.after(self.limits.login_within));
        self.timers.set(Owner::Connection(conn), &mut new.deadlines, Timer::Login, deadline);
        if let Some(slot) = self.conns.get_mut(index(conn)) {
            *slot = Some(new);
        }
    }

    /// Handles received bytes and consumes all of them.
    pub fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8], directory: &dyn Directory) {
        self.now = now;
        let Some(connection) = self.conn_mut(conn).filter(|connection| connection.is_reading()) else {
            return;
        };
        connection.bytes_since_heard += bytes.len();
        if connection.bytes_since_heard >= LIVENESS_BYTES {
            connection.last_heard = now;
            connection.bytes_since_heard = 0;
        }
        let Some(mut receiver) = connection.receiver.take() else { return self.impossible(None) };
        let end = self.read(now, conn, &mut receiver, bytes, directory);
        if let Some(connection) = self.conn_mut(conn) {
            connection.receiver = Some(receiver);
        }
        if let Err(why) = end {
            self.drop_connection(conn, why);
        }
    }

    /// Returns the receive buffer that the next bytes belong into, if a large Data-Out payload follows.
    pub fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        let connection = self.conn_mut(conn)?;
        if connection.is_reading() { connection.receiver.as_mut()?.take_rx_buffer() } else { None }
    }

    /// Takes back a receive buffer that [`Self::take_rx_buffer`] returned.
    pub fn return_rx_buffer(
        &mut self,
        now: Instant,
        conn: ConnId,
        rx_buffer: RxBuffer,
        directory: &dyn Directory,
    ) {
        let pool = self.pool.clone();
        let Some(receiver) = self.conn_mut(conn).and_then(|connection| connection.receiver.as_mut()) else {
            return pool.recycle_buf(rx_buffer.buf);
        };
        let len = receiver.return_rx_buffer(rx_buffer);
        if let Some(connection) = self.conn_mut(conn) {
            connection.bytes_since_heard += len;
        }
        self.received(now, conn, &[], directory);
    }

    /// Returns the next event that the layer above must handle.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.serve_quota_waiters();
        self.process_dirty_sessions();
        self.events.pop_front()
    }

    /// Returns a login that failed. At most 64 failed logins wait to be polled; further ones are only
    /// counted.
    pub fn poll_failed_login(&mut self) -> Option<FailedLogin> {
        self.failed_logins.pop_front()
    }

    /// Returns the next note about an initiator.
    pub fn poll_note(&mut self) -> Option<InitiatorNote> {
        self.notes.pop()
    }

    /// Returns the next action that the driver must carry out.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.serve_quota_waiters();
        self.process_dirty_sessions();
        self.actions.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles every timer that has expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        while let Some(entry) = self.timers.pop(now) {
            let deadlines = match entry.1 {
                Owner::Connection(conn) => self
                    .conns
                    .get_mut(index(conn))
                    .and_then(Option::as_deref_mut)
                    .map(|connection| &mut connection.deadlines),
                Owner::Session(key) => self.sessions.get_mut(key).map(|session| &mut session.deadlines),
            };
            let Some(deadlines) = deadlines else { continue };
            if self.timers.passed(now, deadlines, entry) {
                self.handle_timer(now, entry.1, entry.2);
            }
        }
    }

    /// Returns the engine's counters.
    pub const fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Returns how many bytes of data are reserved from the quotas: none when no task is open.
    pub const fn data_bytes(&self) -> usize {
        self.quotas.used()
    }

    fn handle_timer(&mut self, now: Instant, owner: Owner, timer: Timer) {
        match (owner, timer) {
            (Owner::Connection(conn), Timer::Login) => {
                self.handle_omission(conn, ProtocolError::LoginTooSlow)
            }
            (Owner::Connection(conn), Timer::Guess) => self.on_guess_timer(now, conn),
            (Owner::Connection(conn), Timer::Logout) => self.on_logout_timer(conn),
            (Owner::Connection(conn), Timer::Silence) => self.on_silence_timer(now, conn),
            (Owner::Connection(conn), Timer::Data) => self.on_data_timer(now, conn),
            (Owner::Connection(conn), Timer::Ack) => self.on_ack_timer(now, conn),
            (Owner::Session(session), Timer::Gap) => self.on_gap_timer(now, session),
            (Owner::Session(session), Timer::TmfData) => self.on_tmf_data_timer(session),
            (Owner::Session(session), Timer::ResponseFence) => self.on_fence_timer(session),
            (Owner::Session(session), Timer::Retain) => self.on_retain_timer(now, session),
            (Owner::Session(session), Timer::Detached) => self.take_back_detached(now, session),
            (Owner::Session(session), Timer::Discovery) => self.on_discovery_timer(now, session),
            (
                Owner::Session(_),
                Timer::Login | Timer::Guess | Timer::Silence | Timer::Logout | Timer::Data | Timer::Ack,
            )
            | (
                Owner::Connection(_),
                Timer::Gap
                | Timer::TmfData
                | Timer::ResponseFence
                | Timer::Retain
                | Timer::Detached
                | Timer::Discovery,
            ) => self.impossible(None),
        }
    }

    pub(super) fn conn(&self, conn: ConnId) -> Option<&Connection> {
        self.conns.get(index(conn))?.as_deref()
    }

    pub(super) fn conn_mut(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.conns.get_mut(index(conn))?.as_deref_mut()
    }

    /// Puts an output into a connection's send queue and requests a transmission from the driver.
    pub(super) fn queue(&mut self, conn: ConnId, output: Output) {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else { return };
        connection.send_queue.push_back(output);
        if !connection.transmit_requested {
            connection.transmit_requested = true;
            self.actions.push_back(Action::Transmit(conn));
        }
    }

    /// Returns the counters of a connection's session, with MaxCmdSN advanced as far as is possible now.
    pub(super) fn counters(&mut self, conn: ConnId) -> TargetSn {
        let Some(connection) = self.conns.get(index(conn)).and_then(Option::as_deref) else {
            self.impossible(None);
            return TargetSn::default();
        };
        let (stat_sn, session) = (connection.stat_sn, connection.session);
        let depth = session.map_or(0, |key| self.depth_now(key));
        match session.and_then(|key| self.sessions.get_mut(key)) {
            Some(session) => TargetSn {
                stat_sn,
                exp_cmd_sn: session.window.exp_cmd_sn(),
                max_cmd_sn: session.window.max_cmd_sn(depth),
            },
            None => {
                let (next, joins) = (connection.login_cmd_sn, connection.joins);
                let counters = joins.and_then(|session| self.counters_to_join(session));
                let (exp_cmd_sn, max_cmd_sn) = counters.unwrap_or((next, next));
                TargetSn { stat_sn, exp_cmd_sn, max_cmd_sn }
            }
        }
    }

    /// Returns a new target transfer tag. A tag comes up again only after about 2^32 others.
    pub(super) const fn new_ttt(&mut self) -> Ttt {
        take_ttt(&mut self.next_ttt)
    }

    /// Records a login that failed.
    pub(super) fn record_failed_login(&mut self, conn: ConnId, claims: ClaimedIdentity, why: LoginRejected) {
        self.stats.logins_failed += 1;
        self.stats.refusals.count(why);
        if let Some(connection) = self.conn(conn)
            && self.failed_logins.len() < MAX_FAILED_LOGINS
        {
            let peer = connection.via.peer;
            self.failed_logins.push_back(FailedLogin { peer, claims, why });
        }
    }

    /// Records a deviation of a connection's initiator. The first of its kind is reported.
    pub(super) fn record_deviation(&mut self, conn: ConnId, departure: Deviation) {
        let Some(connection) = self.conn(conn) else { return };
        let peer = connection.via.peer;
        let Some(session) = connection.session.and_then(|key| self.sessions.get(key)) else { return };
        self.notes.record_deviation((&session.initiator, &session.kind), peer, departure);
    }

    /// Looks up the response to a broken rule.
    pub(super) fn error_response(&mut self, conn: ConnId, why: ProtocolError) -> TargetResponse {
        if why.is_data_digest() {
            self.stats.data_digest_errors += 1;
            self.count_repair(conn, |repairs| repairs.data_digest_errors += 1);
        }
        let answer = self.response_to(conn, why);
        if answer == (TargetResponse { reject: None, action: TargetAction::Nothing }) {
            self.stats.ignored += 1;
            self.record_deviation(conn, Deviation::PassedOver(why));
        }
        answer
    }

    /// Counts a loss or its recovery in the session of a connection.
    pub(super) fn count_repair(&mut self, conn: ConnId, what: impl FnOnce(&mut Repairs)) {
        let session = self.conn(conn).and_then(|connection| connection.session);
        if let Some(state) = session.and_then(|key| self.sessions.get_mut(key)) {
            what(&mut state.repairs);
        }
    }
}

/// As [`Engine::new_ttt`], for code that has other parts of the engine borrowed.
pub(super) const fn take_ttt(next: &mut u32) -> Ttt {
    if *next == Ttt::NONE.0 {
        *next = 0;
    }
    let ttt = Ttt(*next);
    *next = next.wrapping_add(1);
    ttt
}
