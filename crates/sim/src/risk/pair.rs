//! One initiator session and one target in memory, connected without sockets. What either end sends arrives
//! at once, PDU by PDU, and one PDU at a time can be damaged on the way.

use std::cell::RefCell;
use std::rc::Rc;

use base::buffer::{Bytes, DataList, Pool};
use base::state_machine::{
    AcceptInfo, Action, ConnId, DisconnectReason, PortalId, RxBuffer, StreamMachine as _,
};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use device::contract::{Access, RelativePort};
use device::unit::LogicalUnit;
use iscsi::initiator::Session;
use iscsi::initiator::contract::{Event, Portal as SessionPortal, Purpose, SessionPlan, SessionStats, Slot};
use iscsi::login::directory::{AuthPolicy, TargetAddress, TargetId};
use iscsi::name::{Isid, PortalGroupTag};
use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use iscsi::target::engine::Limits;
use lab::corrupter::fault::{Fault, Injection};
use lab::plan::Digests;
use netem::iscsi::Iscsi as IscsiFraming;
use netem::stream::{Framing as _, StreamDirection};
use shard::config::{DiscoveryConfig, HyperScsiConfig, LunEntry, Portal, ShardConfig, TargetConfig};
use shard::shard::Shard;
use store::Store;
use store::api::{Capabilities, Completion, Durability, Op, OpAction, OpId, OpOutput};
use store::ram::Ram;
use target::units::{DiskId, UnitId};
use transport::initiator::{InitiatorTransport as _, Outcome, Request, Retry, TaskId};

use crate::scenario::Scenario;
use crate::units;

/// The properties of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairPlan {
    pub(super) digests: Digests,
    pub(super) erl: u8,
    /// Whether the data of a WRITE travels in the command PDU.
    pub(super) immediate: bool,
}

/// A RAM disk. Clones share it.
#[derive(Clone)]
pub(super) struct Medium(Rc<RefCell<Ram>>);

/// Both ends and the connection between them.
pub(super) struct Pair {
    now: Instant,
    shard: Shard,
    shard_pool: Pool,
    session: Session,
    session_pool: Pool,
    connection: Option<Connection>,
    next_conn: u32,
    pub(super) wire: Wire,
}

/// The open connection.
struct Connection {
    client: ConnId,
    server: ConnId,
    framing: IscsiFraming,
    /// The part of an incomplete PDU that each end has sent.
    partial: [Vec<u8>; 2],
}

/// What happens to PDUs between the two ends.
#[derive(Default)]
pub(super) struct Wire {
    /// The fault that waits for a PDU, and how many fitting PDUs still pass before it.
    armed: Option<Fault>,
    skip: u32,
    injection: Option<Injection>,
    /// All damaged PDUs.
    pub(super) damaged: u64,
}

/// One end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// How a command ended.
#[derive(Debug)]
pub(super) enum Ended {
    Outcome(Outcome),
    /// The application waited in vain.
    Timeout,
}

/// The longest Data-In PDU, so that longer reads consist of several.
pub(super) const DATA_IN_MAX: u32 = 1024;

/// How long an application waits for a command: longer than any repair takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The bound on rounds of events, actions and bytes at one point in time.
const ROUNDS_MAX: u32 = 100_000;

impl Medium {
    pub(super) fn new(len: u64) -> Self {
        Self(Rc::new(RefCell::new(Ram::new(len))))
    }

    /// Reads the present contents.
    pub(super) fn contents(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        match self.perform(OpAction::Read { at, len }) {
            OpOutput::Data(data) => data.copy_to(0, &mut bytes),
            other => panic!("a read gives no data: {other:?}"),
        };
        bytes
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        let mut data = DataList::new();
        data.push(Bytes::copied_from(bytes));
        self.perform(OpAction::Write { at, data, durability: Durability::Cached });
    }

    fn perform(&self, action: OpAction) -> OpOutput {
        let mut store = self.0.borrow_mut();
        store.submit(Op { id: OpId(u64::MAX), action });
        match store.poll() {
            Some(Completion { id: OpId(u64::MAX), result: Ok(output) }) => output,
            other => panic!("the medium is busy or fails: {other:?}"),
        }
    }
}

impl Store for Medium {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().capabilities()
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().poll()
    }
}

impl Wire {
    /// Arms one fault for the next PDU that fits.
    pub(super) fn arm(&mut self, fault: Fault) {
        (self.skip, self.injection) = (fault.skip, None);
        self.armed = Some(fault);
    }

    /// Ends the wait for a PDU. Returns what was done.
    pub(super) fn disarm(&mut self) -> Option<Injection> {
        self.armed = None;
        self.injection.take()
    }
}

impl Connection {
    /// Takes bytes from one end. Returns the whole PDUs for the other end, damaged if a fault is armed.
    fn pass(&mut self, way: StreamDirection, bytes: &[u8], wire: &mut Wire) -> Vec<u8> {
        let (at, mut out) = (usize::from(way == StreamDirection::Backward), Vec::new());
        self.partial[at].extend_from_slice(bytes);
        let mut used = 0;
        loop {
            let rest = &self.partial[at][used..];
            let Some(layout) = self.framing.pdu_layout(way, rest) else { break };
            let Some(pdu) = rest.get(..layout.len) else { break };
            self.framing.passed(way, pdu);
            used += pdu.len();
            let fits = wire.armed.as_ref().is_some_and(|fault| fault.concerns(way, pdu, &layout));
            if fits && wire.skip > 0 {
                wire.skip -= 1;
            } else if fits
                && let Some((damaged, injection)) =
                    wire.armed.as_ref().and_then(|fault| fault.inject(pdu, &layout))
            {
                wire.armed = None;
                wire.damaged += 1;
                wire.injection = Some(injection);
                out.extend_from_slice(&damaged);
                continue;
            }
            out.extend_from_slice(pdu);
        }
        self.partial[at].drain(..used);
        out
    }
}

impl Pair {
    /// Makes a target that serves the medium, and a session with it.
    pub(super) fn new(plan: PairPlan, medium: &Medium, scenario: &Scenario, from: Instant) -> Self {
        let (shard_pool, session_pool) = (Pool::new(4 << 20), Pool::new(4 << 20));
        let mut shard = Shard::new(config(), Limits::default(), shard_pool.clone());
        let unit_config = units::unit_config(0, scenario.block_size, scenario.task_set_max);
        let unit = LogicalUnit::new(unit_config, Box::new(medium.clone()), None, shard_pool.clone());
        let mut unit = unit.expect("a RAM disk makes a unit");
        unit.seed(&[7; 32]);
        assert!(shard.add_disk(from, UnitId(0), unit, DiskId(0)), "the number of the unit is free");
        let session = Session::new(from, session_plan(plan), session_pool.clone());
        let mut pair = Self {
            now: from,
            shard,
            shard_pool,
            session,
            session_pool,
            connection: None,
            next_conn: 0,
            wire: Wire::default(),
        };
        pair.run_until_idle(&mut None);
        pair
    }

    pub(super) const fn now(&self) -> Instant {
        self.now
    }

    pub(super) const fn session_stats(&self) -> SessionStats {
        self.session.stats()
    }

    pub(super) const fn target_stats(&self) -> iscsi::target::engine::EngineStats {
        *self.shard.wire_stats()
    }

    /// Executes a command. Time passes only while both ends wait.
    pub(super) fn run(&mut self, request: Request) -> Ended {
        let deadline = self.now.after(PATIENCE);
        let Ok(task) = self.session.submit(self.now, request) else { return Ended::Timeout };
        let mut waits = Some((task, None));
        loop {
            self.run_until_idle(&mut waits);
            if let Some((_, Some(outcome))) = waits {
                return Ended::Outcome(outcome);
            }
            let timers = [self.session.poll_timeout(), self.shard.poll_timeout()];
            match timers.into_iter().flatten().min() {
                Some(next) if next <= deadline => self.now = self.now.max(next),
                _ => return Ended::Timeout,
            }
            if self.shard.poll_timeout().is_some_and(|at| at <= self.now) {
                self.shard.handle_timeout(self.now);
            }
            if self.session.poll_timeout().is_some_and(|at| at <= self.now) {
                self.session.handle_timeout(self.now);
            }
        }
    }

    /// Gives a buffer of a response back.
    pub(super) fn recycle(&self, data: Bytes) {
        self.session_pool.recycle(data);
    }

    /// Processes events and moves bytes until nothing more is due now.
    fn run_until_idle(&mut self, waits: &mut Option<(TaskId, Option<Outcome>)>) {
        for _ in 0..ROUNDS_MAX {
            let mut busy = false;
            while let Some(event) = self.session.poll_event() {
                busy = true;
                self.handle_event(event, waits);
            }
            while let Some(request) = self.shard.poll_save() {
                busy = true;
                self.shard.state_saved(self.now, request.unit, request.ticket, true);
            }
            while let Some(action) = self.session.poll_action() {
                busy = true;
                self.handle_action(Side::Client, action);
            }
            while let Some(action) = self.shard.poll_action() {
                busy = true;
                self.handle_action(Side::Server, action);
            }
            if !busy {
                return;
            }
        }
        panic!("both ends keep each other busy without time passing");
    }

    fn handle_event(&mut self, event: Event, waits: &mut Option<(TaskId, Option<Outcome>)>) {
        match event {
            Event::Connect { slot, .. } => self.connect(slot),
            Event::Done { task, outcome } => match waits {
                Some((wanted, end)) if *wanted == task => *end = Some(outcome),
                _ => {}
            },
            _ => {}
        }
    }

    fn connect(&mut self, slot: Slot) {
        // A new connection of the only slot means that the session has given the one before up.
        self.disconnect(DisconnectReason::Failed);
        let conn = ConnId(self.next_conn % CONNS_MAX);
        self.next_conn += 1;
        self.connection = Some(Connection {
            client: conn,
            server: conn,
            framing: IscsiFraming::new(),
            partial: [Vec::new(), Vec::new()],
        });
        let arrival = AcceptInfo {
            portal: PortalId(0),
            local: "192.0.2.1:3260".parse().unwrap(),
            peer: "198.51.100.7:50000".parse().unwrap(),
            entropy: [9; 32],
        };
        self.shard.connected(self.now, conn, &arrival);
        self.session.connected(self.now, conn, slot, [11; 32]);
    }

    fn handle_action(&mut self, side: Side, action: Action) {
        let (Action::Transmit(conn) | Action::Close(conn) | Action::Abort(conn)) = action;
        let own =
            self.connection.as_ref().map(|open| if side == Side::Client { open.client } else { open.server });
        if own != Some(conn) {
            return;
        }
        match action {
            Action::Transmit(_) => self.send(side, conn),
            Action::Close(_) => {
                self.send(side, conn);
                self.disconnect(DisconnectReason::Closed);
            }
            Action::Abort(_) => self.disconnect(DisconnectReason::Failed),
        }
    }

    /// Sends all that an end has to send, and delivers it to the other one.
    fn send(&mut self, side: Side, conn: ConnId) {
        let mut batch = Transmit::new();
        loop {
            match side {
                Side::Client => self.session.transmit(self.now, conn, &mut batch),
                Side::Server => self.shard.transmit(self.now, conn, &mut batch),
            }
            let is_full = batch.is_full();
            let bytes: Vec<u8> = batch.pieces().flatten().copied().collect();
            if bytes.is_empty() {
                return;
            }
            batch.sent(bytes.len(), if side == Side::Client { &self.session_pool } else { &self.shard_pool });
            let Some(open) = &mut self.connection else { return };
            let way = match side {
                Side::Client => StreamDirection::Forward,
                Side::Server => StreamDirection::Backward,
            };
            let passed = open.pass(way, &bytes, &mut self.wire);
            match side {
                Side::Client => self.deliver_to_target(conn, &passed),
                Side::Server => self.deliver_to_initiator(conn, &passed),
            }
            if !is_full {
                return;
            }
        }
    }

    fn deliver_to_target(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut rest = bytes;
        if let Some(buffer) = self.shard.take_rx_buffer(conn) {
            let (buffer, after) = filled(buffer, rest);
            rest = after;
            self.shard.return_rx_buffer(self.now, conn, buffer);
        }
        if !rest.is_empty() {
            self.shard.received(self.now, conn, rest);
        }
    }

    fn deliver_to_initiator(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut rest = bytes;
        if let Some(buffer) = self.session.take_rx_buffer(conn) {
            let (buffer, after) = filled(buffer, rest);
            rest = after;
            self.session.return_rx_buffer(self.now, conn, buffer);
        }
        if !rest.is_empty() {
            self.session.received(self.now, conn, rest);
        }
    }

    /// Ends the connection at both ends.
    fn disconnect(&mut self, why: DisconnectReason) {
        let Some(open) = self.connection.take() else { return };
        self.shard.disconnected(self.now, open.server, why);
        self.session.disconnected(self.now, open.client, why);
    }
}

/// The numbers of connections are used in turn, so that a late action for one does not hit the next.
const CONNS_MAX: u32 = 64;

/// Fills the receive buffer of a state machine. Returns the bytes behind those that belong into it.
fn filled(mut buffer: RxBuffer, bytes: &[u8]) -> (RxBuffer, &[u8]) {
    let (own, rest) = bytes.split_at(buffer.len_max.min(bytes.len()));
    assert_eq!(buffer.buf.append(own), own.len(), "a receive buffer is shorter than it says");
    (buffer, rest)
}

fn session_plan(plan: PairPlan) -> SessionPlan {
    let required = |on| if on { DigestPolicy::RequireCrc32c } else { DigestPolicy::RequireNone };
    let address = TargetAddress::Socket("192.0.2.1:3260".parse().unwrap());
    SessionPlan {
        keys: KeyPolicy {
            header_digest: required(plan.digests.header()),
            data_digest: required(plan.digests.data()),
            error_recovery_level: plan.erl,
            default_time2wait: 0,
            immediate_data: plan.immediate,
            max_recv_data_segment_length: DATA_IN_MAX,
            ..KeyPolicy::default()
        },
        retry: Retry {
            timeout: Duration::from_secs(60),
            attempts: 0,
            backoff: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
            first: false,
        },
        ..SessionPlan::new(
            units::initiator(0).parse().unwrap(),
            Isid::random([1, 2, 3], 1),
            Purpose::Target(units::TARGET.parse().unwrap()),
            vec![SessionPortal { address }],
        )
    }
}

/// Returns the configuration of a shard with one target and one LUN.
fn config() -> ShardConfig {
    let open = AuthPolicy { allows_none: true, ..AuthPolicy::default() };
    let portal = Portal {
        id: PortalId(0),
        group: PortalGroupTag(1),
        bound: Some("192.0.2.1:3260".parse().unwrap()),
        announced: None,
        tls: false,
        certificates: None,
    };
    ShardConfig {
        targets: vec![TargetConfig {
            id: TargetId(0),
            name: units::TARGET.parse().unwrap(),
            alias: None,
            ports: vec![(portal.id, RelativePort(1))],
            luns: vec![LunEntry::new(0, UnitId(0), Access::ReadWrite)],
            initiators: vec![],
            auth: open.clone().into(),
            keys: KeyPolicy::default(),
            sessions_max: 64,
            groups: vec![],
            exchanges: 128,
            session_limits: None,
        }],
        portals: vec![portal],
        discovery: DiscoveryConfig { enabled: true, auth: open.into(), keys: KeyPolicy::default() },
        frames: HyperScsiConfig::default(),
    }
}
