//! A connection and the two drivers at its ends, which obey the rules of `base::state_machine` as the real
//! drivers do.

use base::state_machine::{Action, ConnId, DisconnectReason, RxBuffer, StreamMachine};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use iscsi::aead::login_keys::LoginKeys;
use iscsi::aead::{AeadDigest, GenerationLimits, RecordKeys};
use iscsi::initiator::Session;
use iscsi::initiator::contract::Slot;
use iscsi::keys::Role;
use iscsi::pdu::Opcode;
use netem::stream::{Arrived, StreamDirection, StreamLink};
use shard::shard::Shard;

use super::traced_framing::TracedFraming;
use super::{Iscsi, Scheduled};
use crate::scenario::IscsiPlan;
use crate::transport::TransportEvent;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The initiator's end.
    Client,
    /// The target's end.
    Server,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Client, Self::Server];

    /// Returns the direction in which this end sends.
    const fn sends(self) -> StreamDirection {
        match self {
            Self::Client => StreamDirection::Forward,
            Self::Server => StreamDirection::Backward,
        }
    }
}

/// A connection.
pub(super) struct Connection {
    host: usize,
    slot: Slot,
    link: StreamLink<TracedFraming>,
    client: Endpoint,
    server: Endpoint,
    /// How many bytes the buffers of a socket hold.
    window: usize,
    /// Whether the target's end has the keys of the AEAD digest.
    is_sealed: bool,
}

struct Endpoint {
    conn: ConnId,
    state: State,
    /// Whether the state machine has more to send than the batch contains.
    wants: bool,
    batch: Transmit,
    /// Whether the far end will send nothing more.
    peer_ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The state machine closed the connection; the pending bytes are still sent.
    Flushing,
    /// Everything is sent; the driver waits for the far end to close.
    Lingering,
    /// The driver has reported the disconnect to the state machine, or the target was lost.
    Gone,
}

/// How long a closed connection waits for its far end to close.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The interface of a state machine that its driver uses.
trait Machine {
    fn take(&mut self, now: Instant, conn: ConnId, bytes: &[u8]);
    fn borrow(&mut self, conn: ConnId) -> Option<RxBuffer>;
    fn repay(&mut self, now: Instant, conn: ConnId, rx_buffer: RxBuffer);
    fn give(&mut self, now: Instant, conn: ConnId, out: &mut Transmit);
}

macro_rules! machine {
    ($name:ty) => {
        impl Machine for $name {
            fn take(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
                self.received(now, conn, bytes);
            }
            fn borrow(&mut self, conn: ConnId) -> Option<RxBuffer> {
                self.take_rx_buffer(conn)
            }
            fn repay(&mut self, now: Instant, conn: ConnId, rx_buffer: RxBuffer) {
                self.return_rx_buffer(now, conn, rx_buffer);
            }
            fn give(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
                self.transmit(now, conn, out);
            }
        }
    };
}

machine!(Shard);
machine!(Session);

impl Connection {
    pub(super) fn new(
        plan: &IscsiPlan,
        (host, slot): (usize, Slot),
        client: ConnId,
        server: ConnId,
        watched: TracedFraming,
        seed: u64,
    ) -> Self {
        let end = |conn| Endpoint {
            conn,
            state: State::Open,
            wants: false,
            batch: Transmit::new(),
            peer_ended: false,
        };
        let link = StreamLink::new(watched, plan.forward.clone(), plan.backward.clone(), seed);
        let (client, server) = (end(client), end(server));
        Self { host, slot, link, client, server, window: plan.socket_bytes, is_sealed: false }
    }

    pub(super) fn heal(&mut self) {
        self.link.heal();
    }

    pub(super) fn next(&self) -> Option<Instant> {
        StreamDirection::BOTH.iter().filter_map(|way| self.link.poll_timeout(*way)).min()
    }

    const fn end(&mut self, side: Side) -> &mut Endpoint {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}

/// The target's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetEnd {
    /// The target has no such connection any more.
    Gone,
    /// Its driver has nothing to send.
    Idle(ConnId),
    /// Its driver has something to send, or closes the connection.
    Busy,
}

impl Connection {
    /// Returns the target's end.
    pub(super) fn target_end(&self) -> TargetEnd {
        let Endpoint { conn, state, wants, batch, peer_ended } = &self.server;
        match state {
            State::Gone => TargetEnd::Gone,
            State::Open if !wants && batch.is_empty() && !peer_ended => TargetEnd::Idle(*conn),
            State::Open | State::Flushing | State::Lingering => TargetEnd::Busy,
        }
    }

    /// Returns the slot of the connection in its session.
    pub(super) const fn slot(&self) -> Slot {
        self.slot
    }
}

impl Iscsi {
    /// Carries out the actions that the state machines request from their drivers.
    pub(super) fn actions(&mut self, now: Instant) -> bool {
        let mut any = false;
        for host in 0..self.hosts.len() {
            while let Some(action) = self.hosts[host].session.poll_action() {
                any = true;
                let find = |wire: &Connection, conn| wire.host == host && wire.client.conn == conn;
                self.handle_action(now, Side::Client, action, find);
            }
        }
        while let Some(action) = self.shard.poll_action() {
            any = true;
            self.handle_action(now, Side::Server, action, |wire, conn| wire.server.conn == conn);
        }
        any
    }

    fn handle_action(
        &mut self,
        now: Instant,
        side: Side,
        action: Action,
        find: impl Fn(&Connection, ConnId) -> bool,
    ) {
        let (Action::Transmit(conn) | Action::Close(conn) | Action::Abort(conn)) = action;
        let Some((number, wire)) = self.wires.iter_mut().find(|(_, wire)| find(wire, conn)) else { return };
        let number = *number;
        let end = wire.end(side);
        match action {
            _ if end.state == State::Gone => {}
            Action::Transmit(_) => end.wants = true,
            Action::Close(_) if end.state == State::Open => {
                end.state = State::Flushing;
                end.wants = true;
            }
            Action::Close(_) => {}
            Action::Abort(_) => {
                wire.link.push_reset(now, side.sends());
                self.report_disconnected(now, number, side, DisconnectReason::Closed);
            }
        }
    }

    /// Sends and receives all bytes that can be sent and received now.
    pub(super) fn move_bytes(&mut self, now: Instant) -> bool {
        let mut any = false;
        let numbers: Vec<u64> = self.wires.keys().copied().collect();
        for number in numbers {
            for side in Side::BOTH {
                any |= self.send(now, number, side);
                any |= self.receive(now, number, side);
            }
        }
        any
    }

    fn send(&mut self, now: Instant, number: u64, side: Side) -> bool {
        let Some(wire) = self.wires.get_mut(&number) else { return false };
        let (host, window) = (wire.host, wire.window);
        let way = side.sends();
        let end = match side {
            Side::Client => &mut wire.client,
            Side::Server => &mut wire.server,
        };
        if !matches!(end.state, State::Open | State::Flushing) {
            return false;
        }
        let pool = match side {
            Side::Client => self.hosts[host].pool.clone(),
            Side::Server => self.shard_pool.clone(),
        };
        let machine: &mut dyn Machine = match side {
            Side::Client => &mut self.hosts[host].session,
            Side::Server => &mut self.shard,
        };
        let mut any = false;
        if end.wants && !end.batch.is_full() && wire.link.in_flight(way) < window {
            machine.give(now, end.conn, &mut end.batch);
            end.wants = end.batch.is_full();
            any = true;
        }
        while !end.batch.is_empty() && wire.link.in_flight(way) < window {
            let piece = end.batch.pieces().next().unwrap_or_default().to_vec();
            wire.link.push(now, way, &piece);
            end.batch.sent(piece.len(), &pool);
            any = true;
        }
        if end.state == State::Flushing && !end.wants && end.batch.is_empty() {
            wire.link.push_end(now, way);
            end.state = State::Lingering;
            if end.peer_ended {
                self.report_disconnected(now, number, side, DisconnectReason::Closed);
            } else {
                self.schedule(now.after(LINGER_TIMEOUT), Scheduled::Linger(number, side));
            }
            any = true;
        }
        let logged = self.wires.get_mut(&number).map(|wire| wire.link.take_log()).unwrap_or_default();
        for fault in logged {
            self.counters.faults += 1;
            self.trouble = now;
            if matches!(Opcode(fault.first_byte & 0x3f), Opcode::LOGIN_REQUEST | Opcode::LOGIN_RESPONSE) {
                self.hosts[host].invariants.login_damaged(now);
            }
            self.trace.say(|| format!("wire {number}: {fault}"));
            self.hosts[host].faults.record(fault);
        }
        any
    }

    fn receive(&mut self, now: Instant, number: u64, side: Side) -> bool {
        let mut any = false;
        loop {
            let Some(wire) = self.wires.get_mut(&number) else { return any };
            let state = wire.end(side).state;
            let Some(arrived) = wire.link.poll(now, side.sends().opposite()) else { return any };
            any = true;
            match arrived {
                Arrived::Bytes(bytes) if state == State::Open => self.hand_over(now, number, side, &bytes),
                Arrived::Bytes(_) => {}
                Arrived::Closed => {
                    let end = wire.end(side);
                    end.peer_ended = true;
                    match end.state {
                        State::Open => (end.state, end.wants) = (State::Flushing, true),
                        State::Lingering => {
                            self.report_disconnected(now, number, side, DisconnectReason::Closed)
                        }
                        State::Flushing | State::Gone => {}
                    }
                }
                Arrived::Cut => self.report_disconnected(now, number, side, DisconnectReason::Failed),
            }
            // The state machine may have to answer these bytes before it accepts more.
            self.events(now);
            self.actions(now);
        }
    }

    /// Delivers one receive: first into the receive buffer of the state machine, then the rest.
    fn hand_over(&mut self, now: Instant, number: u64, side: Side, bytes: &[u8]) {
        let Some(wire) = self.wires.get_mut(&number) else { return };
        let (host, conn) = (wire.host, wire.end(side).conn);
        let machine: &mut dyn Machine = match side {
            Side::Client => &mut self.hosts[host].session,
            Side::Server => &mut self.shard,
        };
        let mut rest = bytes;
        if let Some(mut rx_buffer) = machine.borrow(conn) {
            let (own, after) = rest.split_at(rx_buffer.len_max.min(rest.len()));
            assert_eq!(rx_buffer.buf.append(own), own.len(), "a loan with less room than it wants");
            rest = after;
            machine.repay(now, conn, rx_buffer);
        }
        // The state machine may have closed the connection meanwhile; a driver checks that only after the
        // receive.
        if !rest.is_empty() {
            machine.take(now, conn, rest);
        }
        if side == Side::Server {
            self.seal_server(number);
        }
    }

    /// Gives the initiator's end of a connection that has logged in the keys of the AEAD digest.
    pub(super) fn seal_client(&mut self, host: usize, slot: Slot) {
        let Some(aead) = self.plan.aead else { return };
        let find = |wire: &Connection| (wire.host, wire.slot) == (host, slot);
        // A lost connection can still carry bytes while the slot has a new one.
        let Some((number, _)) = self.wires.iter().rev().find(|(_, wire)| find(wire)) else { return };
        self.counters.sealed += 1;
        self.hosts[host].session.inject_record_keys(slot, record_keys(*number, aead, Role::Initiator));
    }

    /// Gives the target's end of a connection the keys of the AEAD digest once it has logged in.
    fn seal_server(&mut self, number: u64) {
        let Some(aead) = self.plan.aead else { return };
        let Some(wire) = self.wires.get_mut(&number).filter(|wire| !wire.is_sealed) else { return };
        let keys = || record_keys(number, aead, Role::Target);
        wire.is_sealed = self.shard.inject_record_keys(wire.server.conn, keys);
    }

    pub(super) fn lingered(&mut self, now: Instant, number: u64, side: Side) {
        let Some(wire) = self.wires.get_mut(&number) else { return };
        if wire.end(side).state == State::Lingering {
            wire.link.push_reset(now, side.sends());
            self.report_disconnected(now, number, side, DisconnectReason::Closed);
        }
    }

    /// Reports a disconnect to the state machine at one end. Nothing is reported for this connection after
    /// that.
    fn report_disconnected(&mut self, now: Instant, number: u64, side: Side, why: DisconnectReason) {
        let Some(wire) = self.wires.get_mut(&number) else { return };
        let host = wire.host;
        let end = wire.end(side);
        if end.state == State::Gone {
            return;
        }
        end.state = State::Gone;
        let conn = end.conn;
        match side {
            Side::Client => {
                end.batch.clear(&self.hosts[host].pool);
                self.hosts[host].session.disconnected(now, conn, why);
            }
            Side::Server => {
                end.batch.clear(&self.shard_pool);
                self.shard.disconnected(now, conn, why);
                self.free.push(conn.0);
                self.happenings.push_back(TransportEvent::ConnectionLost { initiator: host });
            }
        }
        self.forget(number);
    }

    /// Ends the target's end of a connection when the target is lost.
    pub(super) fn lose_target(&mut self, now: Instant, number: u64) {
        let Some(wire) = self.wires.get_mut(&number) else { return };
        if wire.server.state != State::Gone {
            wire.server.state = State::Gone;
            wire.link.push_reset(now, StreamDirection::Backward);
        }
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        let over = |wire: &Connection| wire.client.state == State::Gone && wire.server.state == State::Gone;
        if self.wires.get(&number).is_some_and(over) {
            self.wires.remove(&number);
        }
    }
}

/// Returns the keys of a connection as one end has them, which change after so many PDUs.
fn record_keys(number: u64, (digest, pdus): (AeadDigest, u64), role: Role) -> RecordKeys {
    let limits = GenerationLimits { pdus, ..GenerationLimits::default() };
    let mut transcript = [0; 64];
    transcript[..8].copy_from_slice(&number.to_be_bytes());
    let keys = LoginKeys::new(&[1; 64].into(), &[2; 64]).connection_keys(&transcript);
    let (encryptor, decryptor) = (keys.encryptor(role, digest, limits), keys.decryptor(role, digest, limits));
    RecordKeys { digest, encryptor, decryptor }
}
