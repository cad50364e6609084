//! The lifecycle of connections: from admission until the state machine is told that the connection has
//! ended.
//!
//! A connection is in one of these states, in this order; it may skip any of them.
//!
//! - *open*.
//! - *flushing*: the state machine closes it, or the peer sends no more. Pending data is still sent.
//! - *lingering*: our end is closed. Data that the peer still sends is discarded until the peer closes too,
//!   so that a reset does not destroy our last bytes on their way.
//! - *ending*: operations under way are cancelled.
//!
//! The states after *open* last at most [`crate::config::Config::linger`] together. An open connection whose
//! peer accepts no data ends after at most [`crate::config::Config::stall`].

mod parking;
mod progress;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use base::buffer::Pool;
use base::state_machine::{Action, ConnId, DisconnectReason, RxBuffer, StreamMachine};
use base::time::{Instant, soonest};
use base::transmit::Transmit;
use rustix::net::{Shutdown, shutdown, sockopt};

use crate::candidate::Candidate;
use crate::config::{Config, Limits};
use crate::engine::{ReceiveEnd, Sending, StreamEngine};
use crate::files::Errno;
use crate::memory;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::tcp_acked::{self, HostSilence};
use progress::Seen;

/// How many batches one connection may send in one turn before other connections get theirs.
const BATCHES_PER_TURN: usize = 4;

/// How many unused batches are kept. More connections than this are seldom busy at the same time.
const BATCHES_KEPT: usize = 64;

/// After so many connections ended, and a second in which none ended, freed memory is returned to the system.
/// Fewer connections free too little to be worth the call.
const TRIM_AFTER: usize = 64;
const TRIM_REST: Duration = Duration::from_secs(1);

pub(crate) struct Connections {
    table: Slab<Conn>,
    per_peer: BTreeMap<IpAddr, usize>,
    connections_max: usize,
    per_peer_max: usize,
    linger: Duration,
    stall: Option<Duration>,
    /// When to check the progress of connections that are sending.
    look_at: Option<Instant>,
    /// When to check whether the hosts of the owner's own connections are gone, and how long they may owe an
    /// acknowledgement.
    hosts_at: Option<Instant>,
    host_silence_max: Duration,
    unsent_bytes: usize,
    unsent_bytes_max: usize,
    /// How many connections ended since memory was returned to the system, and when to return it next.
    ended: usize,
    trim_at: Option<Instant>,
    /// When closing connections are ended.
    deadlines: BTreeSet<(Instant, u32)>,
    receive_due: Vec<u32>,
    send_due: Vec<u32>,
    /// Connections that used their share of this turn and have more to send.
    send_next_turn: Vec<u32>,
    batches: Vec<Transmit>,
    /// No receive is started.
    parked: bool,
    pool: Pool,
}

struct Conn {
    socket: Rc<OwnedFd>,
    peer: IpAddr,
    /// The limits that protect against peers do not apply.
    is_own: bool,
    state: State,
    /// Why the connection ends, once it does.
    why: DisconnectReason,
    /// What TCP says of the peer's host.
    host_silence: HostSilence,
    /// The engine has a receive under way, or a send.
    receiving: bool,
    sending: bool,
    /// The length of the send under way when it began, in bytes.
    sending_bytes: usize,
    /// How many sends have ended.
    batches: u64,
    /// The progress of the peer when it was last seen to accept data.
    seen: Option<Seen>,
    /// The kernel does not count what the peer has accepted: only the end of a send shows progress.
    shows_no_progress: bool,
    /// The batch that is being filled.
    filling: Option<Transmit>,
    /// The state machine has more to send than was taken.
    wants_transmit: bool,
    /// The peer sends no more.
    peer_ended: bool,
    deadline: Option<Instant>,
    receive_listed: bool,
    send_listed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Flushing,
    Lingering,
    Ending,
}

impl Connections {
    pub(crate) fn new(config: &Config, pool: Pool) -> Self {
        Self {
            table: Slab::new(),
            per_peer: BTreeMap::new(),
            connections_max: config.connections_max,
            per_peer_max: config.connections_per_peer_max,
            linger: config.linger,
            stall: config.stall,
            look_at: None,
            hosts_at: None,
            host_silence_max: config.host_silence_max,
            unsent_bytes: 0,
            unsent_bytes_max: config.unsent_bytes_max,
            ended: 0,
            trim_at: None,
            deadlines: BTreeSet::new(),
            receive_due: Vec::new(),
            send_due: Vec::new(),
            send_next_turn: Vec::new(),
            batches: Vec::new(),
            parked: false,
            pool,
        }
    }

    /// Applies other limits from now on.
    pub(crate) fn limit(&mut self, now: Instant, limits: Limits) {
        self.connections_max = limits.connections_max;
        self.per_peer_max = limits.connections_per_peer_max;
        if self.stall != limits.stall {
            self.stall = limits.stall;
            // The check runs within the new stall time; it finds out whether any send is under way.
            self.look_at = None;
            self.watch(now);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the time at which [`Self::pass_deadlines`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        soonest([self.deadlines.first().map(|(at, _)| *at), self.look_at, self.hosts_at, self.trim_at])
    }

    /// Returns whether a connection waits for the next turn to send.
    pub(crate) fn is_hungry(&self) -> bool {
        !self.send_next_turn.is_empty()
    }

    /// Admits a connection, unless a limit or a broken socket forbids it. Returns its number.
    pub(crate) fn admit(
        &mut self,
        engine: &mut dyn StreamEngine,
        machine: &mut dyn StreamMachine,
        now: Instant,
        candidate: Candidate,
    ) -> Option<ConnId> {
        let peer_ip = candidate.peer.ip().to_canonical();
        let from_peer = self.per_peer.get(&peer_ip).copied().unwrap_or(0);
        let is_own = candidate.portal.is_own();
        let is_exempt = is_own || candidate.is_taken_over;
        let is_too_much = self.table.len() >= self.connections_max || from_peer >= self.per_peer_max;
        if is_too_much && !is_exempt {
            Stats::bump(&mut engine.stats().refused, 1);
            reset(&candidate.socket);
            return None;
        }
        let arrival = candidate.accept_info().ok()?;
        let socket = Rc::new(candidate.socket);
        let number = self.table.insert(Conn::new(Rc::clone(&socket), peer_ip, is_own));
        if engine.open(number, socket).is_err() {
            self.table.remove(number);
            return None;
        }
        self.per_peer.insert(peer_ip, from_peer + 1);
        Stats::bump(&mut engine.stats().accepts, 1);
        if candidate.is_taken_over {
            machine.taken_over(now, ConnId(number), &arrival);
        } else {
            machine.connected(now, ConnId(number), &arrival);
        }
        self.list_receive(number);
        if is_own {
            self.watch_hosts(now);
        }
        Some(ConnId(number))
    }

    /// Handles the end of a receive.
    pub(crate) fn received(
        &mut self,
        machine: &mut dyn StreamMachine,
        now: Instant,
        number: u32,
        got: (Option<RxBuffer>, &[u8], ReceiveEnd),
    ) {
        let Some(conn) = self.table.get_mut(number) else { return };
        let (rx_buffer, bytes, receipt) = got;
        conn.receiving = false;
        if let Some(rx_buffer) = rx_buffer {
            machine.return_rx_buffer(now, ConnId(number), rx_buffer);
        }
        if conn.state == State::Open && !bytes.is_empty() {
            machine.received(now, ConnId(number), bytes);
        }
        if conn.state == State::Ending {
            return self.list_send(number);
        }
        match receipt {
            ReceiveEnd::More | ReceiveEnd::Cancelled => self.list_receive(number),
            ReceiveEnd::End => {
                conn.peer_ended = true;
                if conn.state != State::Open || !machine.received_eof(now, ConnId(number)) {
                    self.close(number, now, DisconnectReason::Closed);
                }
            }
            ReceiveEnd::Failed(errno) => self.end(number, reason_of(errno)),
        }
    }

    /// Handles the end of a send.
    pub(crate) fn sent(&mut self, number: u32, batch: Transmit, result: Result<(), Errno>) {
        self.put_back(batch);
        let Some(conn) = self.table.get_mut(number) else { return };
        conn.sending = false;
        conn.batches += 1;
        self.unsent_bytes -= std::mem::take(&mut conn.sending_bytes);
        match result {
            Ok(()) => self.list_send(number),
            Err(errno) => self.end(number, reason_of(errno)),
        }
    }

    /// Carries out an action that the state machine asks for.
    pub(crate) fn act(&mut self, now: Instant, action: Action) {
        match action {
            Action::Transmit(ConnId(number)) => {
                if let Some(conn) = self.table.get_mut(number) {
                    conn.wants_transmit = true;
                    self.list_send(number);
                }
            }
            Action::Close(ConnId(number)) => self.close(number, now, DisconnectReason::Closed),
            Action::Abort(ConnId(number)) => self.end(number, DisconnectReason::Closed),
        }
    }

    /// Does what is due: ends the connections that took too long to close or to accept the data sent to them,
    /// and returns freed memory to the system.
    pub(crate) fn pass_deadlines(&mut self, now: Instant) {
        if self.look_at.is_some_and(|at| at <= now) {
            self.end_stalled(now);
        }
        if self.hosts_at.is_some_and(|at| at <= now) {
            self.end_without_host(now);
        }
        if self.trim_at.is_some_and(|at| at <= now) {
            (self.trim_at, self.ended) = (None, 0);
            memory::give_back();
        }
        while let Some((at, number)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(conn) = self.table.get_mut(number) {
                conn.deadline = None;
                let why = conn.why;
                self.end(number, why);
            }
        }
    }

    /// Ends every connection.
    pub(crate) fn end_all(&mut self, why: DisconnectReason) {
        for number in self.table.numbers() {
            self.end(number, why);
        }
    }

    /// Makes connections that used their share of the last turn due again.
    pub(crate) fn next_turn(&mut self) {
        self.send_due.append(&mut self.send_next_turn);
    }

    /// Sends what is due. Returns whether any connection was due.
    pub(crate) fn send_all(
        &mut self,
        engine: &mut dyn StreamEngine,
        machine: &mut dyn StreamMachine,
        now: Instant,
    ) -> bool {
        let mut due = std::mem::take(&mut self.send_due);
        let any = !due.is_empty();
        for number in due.drain(..) {
            self.pump(engine, machine, now, number);
        }
        if self.send_due.is_empty() {
            self.send_due = due;
        }
        any
    }

    /// Starts the receives that are due. Returns whether there were any.
    pub(crate) fn receive_all(
        &mut self,
        engine: &mut dyn StreamEngine,
        machine: &mut dyn StreamMachine,
    ) -> bool {
        if self.parked {
            return false;
        }
        let mut due = std::mem::take(&mut self.receive_due);
        let any = !due.is_empty();
        for number in due.drain(..) {
            let Some(conn) = self.table.get_mut(number) else { continue };
            conn.receive_listed = false;
            if conn.receiving || conn.peer_ended || conn.state == State::Ending {
                continue;
            }
            conn.receiving = true;
            let buffer =
                if conn.state == State::Open { machine.take_rx_buffer(ConnId(number)) } else { None };
            engine.receive(number, buffer);
        }
        self.receive_due = due;
        any
    }

    /// Fills and sends the batches of one connection, and advances its state when nothing is left to send.
    fn pump(
        &mut self,
        engine: &mut dyn StreamEngine,
        machine: &mut dyn StreamMachine,
        now: Instant,
        number: u32,
    ) {
        if let Some(conn) = self.table.get_mut(number) {
            conn.send_listed = false;
        }
        for _ in 0..BATCHES_PER_TURN {
            self.fill(machine, now, number);
            let Some(conn) = self.table.get_mut(number) else { return };
            if conn.sending || conn.state == State::Ending {
                break;
            }
            let Some(batch) = conn.filling.take() else { break };
            let last = conn.state == State::Open && !conn.wants_transmit;
            let len = batch.len();
            match engine.send(number, batch, last) {
                Sending::Done(batch) => {
                    self.unsent_bytes -= len;
                    self.put_back(batch);
                }
                Sending::Pending => {
                    (conn.sending, conn.sending_bytes) = (true, len);
                    self.watch(now);
                }
                Sending::Failed(batch, errno) => {
                    self.unsent_bytes -= len;
                    self.put_back(batch);
                    self.end(number, reason_of(errno));
                }
            }
        }
        self.advance_state(engine, machine, now, number);
    }

    /// Lets the state machine fill the batch that is not in flight.
    fn fill(&mut self, machine: &mut dyn StreamMachine, now: Instant, number: u32) {
        let Some(conn) = self.table.get_mut(number) else { return };
        if !conn.wants_transmit || !matches!(conn.state, State::Open | State::Flushing) {
            return;
        }
        let is_under_way = conn.sending || conn.filling.is_some();
        if is_under_way && self.unsent_bytes >= self.unsent_bytes_max {
            // The connection is listed again when the send under way has ended.
            return;
        }
        let mut batch = conn.filling.take().unwrap_or_else(|| self.batches.pop().unwrap_or_default());
        let is_short_of_memory = self.unsent_bytes >= self.unsent_bytes_max / 2;
        if is_short_of_memory || (conn.shows_no_progress && self.stall.is_some()) {
            batch.narrow();
        }
        if !batch.is_full() {
            let len = batch.len();
            machine.transmit(now, ConnId(number), &mut batch);
            self.unsent_bytes += batch.len() - len;
            conn.wants_transmit = batch.is_full();
        }
        if batch.is_empty() {
            self.put_back(batch);
        } else {
            conn.filling = Some(batch);
        }
    }

    /// Advances the state of a connection that has nothing left to send, or no operation under way.
    fn advance_state(
        &mut self,
        engine: &mut dyn StreamEngine,
        machine: &mut dyn StreamMachine,
        now: Instant,
        number: u32,
    ) {
        let Some(conn) = self.table.get_mut(number) else { return };
        let drained = !conn.sending && conn.filling.is_none() && !conn.wants_transmit;
        if conn.state == State::Flushing && drained {
            if conn.peer_ended || shutdown(&conn.socket, Shutdown::Write).is_err() {
                conn.state = State::Ending;
            } else {
                conn.state = State::Lingering;
            }
        }
        if conn.sending && (conn.state == State::Flushing || conn.filling.is_some() || conn.wants_transmit) {
            engine.expedite_send_event(number);
        }
        match conn.state {
            State::Open | State::Flushing if !drained && !conn.sending => {
                conn.send_listed = true;
                self.send_next_turn.push(number);
            }
            State::Ending if conn.receiving || conn.sending => engine.cancel(number),
            State::Ending => self.remove(engine, machine, now, number),
            _ => {}
        }
    }

    /// Removes a connection and reports its end to the state machine.
    fn remove(
        &mut self,
        engine: &mut dyn StreamEngine,
        machine: &mut dyn StreamMachine,
        now: Instant,
        number: u32,
    ) {
        let Some(conn) = self.table.remove(number) else { return };
        if let Some(deadline) = conn.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        if let Some(batch) = conn.filling {
            self.unsent_bytes -= batch.len();
            self.put_back(batch);
        }
        self.ended += 1;
        if self.ended >= TRIM_AFTER {
            self.trim_at = Some(now.after(TRIM_REST));
        }
        if let Some(count) = self.per_peer.get_mut(&conn.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&conn.peer);
            }
        }
        engine.forget(number);
        if !conn.peer_ended {
            reset(&conn.socket);
        }
        machine.disconnected(now, ConnId(number), conn.why);
    }

    /// Sends what is pending, then closes the connection.
    fn close(&mut self, number: u32, now: Instant, why: DisconnectReason) {
        let deadline = now.after(self.flush_max());
        let Some(conn) = self.table.get_mut(number) else { return };
        match conn.state {
            State::Open => {
                conn.state = State::Flushing;
                conn.why = why;
                conn.wants_transmit = true;
                conn.deadline = Some(deadline);
                self.deadlines.insert((deadline, number));
            }
            State::Lingering => conn.state = State::Ending,
            State::Flushing | State::Ending => {}
        }
        self.list_send(number);
        self.list_receive(number);
    }

    /// Ends the connection at once.
    fn end(&mut self, number: u32, why: DisconnectReason) {
        let Some(conn) = self.table.get_mut(number) else { return };
        if conn.state == State::Open {
            conn.why = why;
        }
        conn.state = State::Ending;
        conn.wants_transmit = false;
        self.list_send(number);
    }

    fn list_send(&mut self, number: u32) {
        if let Some(conn) = self.table.get_mut(number)
            && !conn.send_listed
        {
            conn.send_listed = true;
            self.send_due.push(number);
        }
    }

    fn list_receive(&mut self, number: u32) {
        if let Some(conn) = self.table.get_mut(number)
            && !conn.receive_listed
        {
            conn.receive_listed = true;
            self.receive_due.push(number);
        }
    }

    /// Keeps an empty batch for reuse.
    fn put_back(&mut self, mut batch: Transmit) {
        batch.clear(&self.pool);
        if self.batches.len() < BATCHES_KEPT {
            self.batches.push(batch);
        }
    }
}

/// Returns the reason for the end of a connection whose operation failed.
const fn reason_of(errno: Errno) -> DisconnectReason {
    match errno {
        // A send reports EPIPE after the reset was reported, or when the peer has closed both directions.
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => DisconnectReason::Reset,
        Errno::TIMEDOUT => DisconnectReason::TimedOut,
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::NETDOWN => {
            DisconnectReason::Unreachable
        }
        _ => DisconnectReason::Failed,
    }
}

impl Conn {
    fn new(socket: Rc<OwnedFd>, peer: IpAddr, is_own: bool) -> Self {
        let shows_no_progress = !is_own && tcp_acked::bytes_acked(&socket).is_none();
        Self {
            socket,
            peer,
            is_own,
            host_silence: HostSilence::default(),
            shows_no_progress,
            state: State::Open,
            why: DisconnectReason::Closed,
            receiving: false,
            sending: false,
            sending_bytes: 0,
            batches: 0,
            seen: None,
            filling: None,
            wants_transmit: false,
            peer_ended: false,
            deadline: None,
            receive_listed: false,
            send_listed: false,
        }
    }
}

/// Makes the following close send a reset, so that the kernel keeps no state of the connection.
fn reset(socket: &OwnedFd) {
    // The call fails for a socket that is already broken; then the kernel keeps no state either.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
