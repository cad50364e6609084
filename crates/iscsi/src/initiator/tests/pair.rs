//! Both roles in memory: a session, an engine, the connections between them, a medium, and the faults that
//! can occur.

mod hand_over;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use transport::target::TargetTransport;

use base::buffer::{Bytes, DataList, Pool};
use base::rng::Rng;
use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, PortalId};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use security::opaque::PasswordRecord;
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport as _, Outcome, Request, TaskId};
use transport::target as services;
use transport::task_management::{TmfFunction, TmfResult};

use crate::aead::login_keys::LoginKeys;
use crate::aead::{AeadDigest, GenerationLimits, RecordKeys};
use crate::chap::{Algorithms, Credentials, Secret};
use crate::initiator::Session;
use crate::initiator::contract::*;
use crate::keys::Role;
use crate::login::directory::{
    AuthPolicy, ConnectionPath, Directory, DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo,
    SessionQuery, TargetAccess, TargetAddress, TargetId, TargetLookup,
};
use crate::name::{IscsiName, Isid, PortalGroupTag};
use crate::negotiate::KeyPolicy;
use crate::target::contract as target;
use crate::target::engine::{Engine, Limits as TargetLimits};

pub(super) const LUN: u64 = 1 << 48;
pub(super) const MEDIUM: usize = 4 << 20;

pub(super) fn name(text: &str) -> IscsiName {
    IscsiName::parse(text.as_bytes()).unwrap()
}

/// A directory with any number of targets.
pub(super) struct Names {
    pub(super) keys: KeyPolicy,
    pub(super) count: u32,
    pub(super) auth: AuthPolicy,
    /// The result of `find_target` in place of the target.
    pub(super) moved: Option<(SocketAddr, TargetAddress)>,
    pub(super) user: Option<(&'static str, &'static [u8])>,
    /// The users with the records of their passwords.
    pub(super) records: Vec<(&'static str, Arc<PasswordRecord>)>,
}

pub(super) fn target_name(at: u32) -> IscsiName {
    name(&alloc::format!("iqn.2026-01.test:target-{at:05}"))
}

impl Directory for Names {
    fn certifies(&self, _: &ConnectionPath, _: &IscsiName) -> bool {
        true
    }

    fn find_target(&self, via: &ConnectionPath, _: &IscsiName, wanted: &IscsiName) -> TargetLookup {
        if let Some((here, to)) = &self.moved
            && via.local == *here
        {
            return TargetLookup::Moved { to: to.clone(), permanently: false };
        }
        match (0..self.count).find(|at| target_name(*at) == *wanted) {
            Some(at) => TargetLookup::Found(TargetAccess {
                sessions_max: None,
                target: TargetId(at),
                portal_group: PortalGroupTag(1),
                alias: None,
                auth: self.auth.clone(),
                keys: self.keys.clone(),
            }),
            None => TargetLookup::NotFound,
        }
    }

    fn discovery(&self, _: &ConnectionPath, _: &IscsiName) -> DiscoveryAccess {
        DiscoveryAccess::Granted { auth: self.auth.clone(), keys: self.keys.clone() }
    }

    fn chap_secret(&self, _: Realm, _: &IscsiName, user: &str) -> Option<Secret> {
        self.user.filter(|(name, _)| *name == user).map(|(_, secret)| Secret::new(secret).unwrap())
    }

    fn password_record(&self, _: Realm, _: &IscsiName, user: &str) -> Option<Arc<PasswordRecord>> {
        self.records.iter().find(|(name, _)| *name == user).map(|(_, record)| record.clone())
    }

    fn find_session(&self, _: &SessionQuery<'_>) -> Option<SessionInfo> {
        None
    }

    fn next_target(
        &self,
        via: &ConnectionPath,
        _: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        let at = match after {
            None => 0,
            Some(after) => after.as_str().rsplit('-').next()?.parse::<u32>().ok()? + 1,
        };
        (at < self.count).then(|| SendTargetsEntry {
            name: target_name(at),
            addresses: [(TargetAddress::Socket(via.local), PortalGroupTag(1))].into(),
        })
    }
}

/// The bytes in transit between the two roles.
#[derive(Default)]
struct Wire {
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    /// Whether the connection is in full feature phase, so that digests protect it.
    guarded: bool,
    slot: u16,
    /// Whether the target's end has the keys of the AEAD digest.
    sealed: bool,
    /// How the target's end came about.
    arrival: Option<AcceptInfo>,
}

/// The faults in transit, per million bytes that pass.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) flips_up: u64,
    pub(super) flips_down: u64,
    /// Per million rounds.
    pub(super) cuts: u64,
    /// Per thousand PDUs of an AEAD digest: damage to the data segment, and to the PDU as a whole.
    pub(super) data_up: u64,
    pub(super) data_down: u64,
    pub(super) pdus: u64,
    /// The most faults in total.
    pub(super) budget: u32,
}

/// A command in the layer above the target.
struct Held {
    command: services::Command,
    data: Option<Vec<u8>>,
    ready: bool,
}

pub(super) struct Pair {
    pub(super) session: Session,
    pub(super) engine: Engine,
    pub(super) names: Names,
    limits: TargetLimits,
    pub(super) now: Instant,
    pub(super) rng: Rng,
    pub(super) pools: [Pool; 2],
    wires: BTreeMap<ConnId, Wire>,
    next_conn: u32,
    pub(super) events: Vec<Event>,
    held: Vec<Held>,
    pub(super) medium: Vec<u8>,
    /// How often each write was executed, by the number in its CDB.
    pub(super) executed: BTreeMap<u32, u32>,
    pub(super) faults: Faults,
    pub(super) injected: u32,
    pub(super) cut: u32,
    /// Whether connections can be opened.
    pub(super) reachable: bool,
    /// Whether the layer above the target answers.
    pub(super) answering: bool,
    pub(super) asked_for: Vec<(Slot, SocketAddr)>,
    pub(super) target_sessions: Vec<target::SessionUp>,
    pub(super) tmfs: Vec<services::TmfIndication>,
    /// The AEAD digest of all connections.
    digest: Option<AeadDigest>,
    /// Every PDU that was sent after a login under an AEAD digest, if they are kept.
    pub(super) seen: Option<Vec<Vec<u8>>>,
    pub(super) target_ends: Vec<target::SessionEnd>,
}

/// The configuration of both roles.
pub(super) struct Setup {
    pub(super) plan: SessionPlan,
    pub(super) target_keys: KeyPolicy,
    pub(super) seed: u64,
    /// The AEAD digest of all connections. The login negotiates another one.
    pub(super) digest: Option<AeadDigest>,
    pub(super) target_limits: TargetLimits,
}

impl Default for Setup {
    fn default() -> Self {
        let portal = Portal { address: TargetAddress::Socket(portal_address(0)) };
        let mut plan = SessionPlan::new(
            name("iqn.2026-01.test:initiator"),
            Isid::random([1, 2, 3], 0),
            Purpose::Target(target_name(0)),
            [portal].into(),
        );
        plan.keys.default_time2wait = 0;
        let target_keys = KeyPolicy { default_time2wait: 0, ..KeyPolicy::default() };
        let target_limits = TargetLimits { ping_after: Duration::from_secs(5), ..TargetLimits::default() };
        Self { plan, target_keys, seed: 1, digest: None, target_limits }
    }
}

pub(super) fn portal_address(at: u16) -> SocketAddr {
    ([127, 0, 0, 1], 3260 + at).into()
}

impl Pair {
    pub(super) fn new(setup: Setup) -> Self {
        let pools = [Pool::new(64 << 20), Pool::new(64 << 20)];
        let now = Instant(1_000_000_000);
        let limits = setup.target_limits;
        let mut medium = alloc::vec![0; MEDIUM];
        Rng::from_seed(99).fill(&mut medium);
        let mut pair = Self {
            session: Session::new(now, setup.plan, pools[0].clone()),
            engine: Engine::new(limits, pools[1].clone()),
            limits,
            names: Names {
                keys: setup.target_keys,
                count: 1,
                auth: AuthPolicy { allows_none: true, ..AuthPolicy::default() },
                moved: None,
                user: None,
                records: Vec::new(),
            },
            now,
            rng: Rng::from_seed(setup.seed),
            pools,
            wires: BTreeMap::new(),
            next_conn: 0,
            events: Vec::new(),
            held: Vec::new(),
            medium,
            executed: BTreeMap::new(),
            faults: Faults::default(),
            injected: 0,
            cut: 0,
            reachable: true,
            answering: true,
            asked_for: Vec::new(),
            target_sessions: Vec::new(),
            tmfs: Vec::new(),
            digest: setup.digest,
            seen: None,
            target_ends: Vec::new(),
        };
        pair.drain();
        pair
    }

    /// Returns a pair whose session is up.
    pub(super) fn up(setup: Setup) -> Self {
        let mut pair = Self::new(setup);
        pair.run();
        assert!(pair.session.is_up(), "{:?}", pair.events);
        pair.events.clear();
        pair
    }

    /// Drains the state machines and moves bytes until nothing moves any more.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            self.drain();
            if !self.step() {
                return;
            }
        }
        panic!("the two never come to rest");
    }

    /// Advances the time, stopping at every deadline.
    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now.after(span);
        self.run();
        let mut stops = 0;
        loop {
            let next = [self.session.poll_timeout(), self.engine.poll_timeout()].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            self.session.handle_timeout(self.now);
            self.engine.handle_timeout(self.now);
            self.run();
            stops += 1;
            assert!(stops < 100_000, "timers run hot");
        }
        self.now = end;
    }

    /// Advances the time until every task ended; panics when that takes longer than `span`.
    pub(super) fn settle(&mut self, seed: u64, span: Duration) {
        let end = self.now.after(span);
        self.run();
        while self.session.open_tasks() > 0 {
            assert!(
                self.now < end,
                "seed {seed}: {} tasks hang; {:?} {:?}",
                self.session.open_tasks(),
                self.session.stats(),
                self.events
            );
            self.pass(Duration::from_millis(100));
        }
    }

    fn drain(&mut self) {
        loop {
            let mut idle = true;
            while let Some(event) = self.session.poll_event() {
                idle = false;
                self.event(event);
            }
            while let Some(job) = self.session.poll_job() {
                idle = false;
                self.session.job_done(self.now, job.run());
            }
            while let Some(action) = self.session.poll_action() {
                idle = false;
                self.act(action, true);
            }
            while let Some(event) = self.engine.poll_event() {
                idle = false;
                self.above(event);
            }
            while let Some(action) = self.engine.poll_action() {
                idle = false;
                self.act(action, false);
            }
            if idle {
                return;
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Connect { slot, to: local, .. } => {
                self.asked_for.push((slot, local));
                if !self.reachable {
                    return self.session.connect_failed(self.now, slot);
                }
                let conn = ConnId(self.next_conn);
                self.next_conn += 1;
                let peer = ([127, 0, 0, 1], 40_000).into();
                let mut entropy = [0; 32];
                self.rng.fill(&mut entropy);
                let arrival = AcceptInfo { portal: PortalId(0), local, peer, entropy };
                self.wires.insert(conn, Wire { slot: slot.0, arrival: Some(arrival), ..Wire::default() });
                self.engine.connected(self.now, conn, &arrival);
                self.rng.fill(&mut entropy);
                self.session.connected(self.now, conn, slot, entropy);
            }
            Event::ConnectionUp { slot, .. } => {
                if let Some(wire) = self.wires.values_mut().rev().find(|wire| wire.slot == slot.0) {
                    wire.guarded = true;
                }
                let conn =
                    self.wires.iter().rev().find(|(_, wire)| wire.slot == slot.0).map(|(conn, _)| *conn);
                if let (Some(conn), Some(digest)) = (conn, self.digest) {
                    self.session.inject_record_keys(slot, record_keys(conn, digest, Role::Initiator));
                }
                self.events.push(event);
            }
            event => self.events.push(event),
        }
    }

    fn act(&mut self, action: Action, ours: bool) {
        match action {
            Action::Transmit(conn) => self.transmit(conn, ours),
            Action::Close(conn) => {
                self.transmit(conn, ours);
                self.flush(conn, ours);
                self.hang_up(conn, DisconnectReason::Closed);
            }
            Action::Abort(conn) => self.hang_up(conn, DisconnectReason::Failed),
        }
    }

    /// Delivers the bytes that one role sent before it closed to the other role.
    fn flush(&mut self, conn: ConnId, ours: bool) {
        let Some(wire) = self.wires.get_mut(&conn) else { return };
        if ours {
            let bytes: Vec<u8> = wire.up.drain(..).collect();
            self.engine.received(self.now, conn, &bytes, &self.names);
        } else {
            let bytes: Vec<u8> = wire.down.drain(..).collect();
            self.session.received(self.now, conn, &bytes);
        }
    }

    pub(super) fn hang_up(&mut self, conn: ConnId, why: DisconnectReason) {
        if self.wires.remove(&conn).is_some() {
            self.session.disconnected(self.now, conn, why);
            self.engine.disconnected(self.now, conn, why);
        }
    }

    /// Breaks the connection in a slot.
    pub(super) fn cut_slot(&mut self, slot: u16) {
        let conn = self.wires.iter().rev().find(|(_, wire)| wire.slot == slot).map(|(conn, _)| *conn);
        self.hang_up(conn.unwrap(), DisconnectReason::Failed);
        self.run();
    }

    fn transmit(&mut self, conn: ConnId, ours: bool) {
        loop {
            let mut out = Transmit::new();
            if ours {
                self.session.transmit(self.now, conn, &mut out);
            } else {
                self.engine.transmit(self.now, conn, &mut out);
            }
            let full = out.is_full();
            let mut bytes: Vec<u8> = out.pieces().flatten().copied().collect();
            if self.digest.is_some() {
                bytes = self.pass_on(bytes, ours);
            }
            if let Some(wire) = self.wires.get_mut(&conn) {
                let queue = if ours { &mut wire.up } else { &mut wire.down };
                queue.extend(bytes);
            }
            out.clear(&self.pools[usize::from(!ours)]);
            if !full {
                return;
            }
        }
    }

    /// Moves some bytes on some connection; returns whether there were any, or something else happened.
    fn step(&mut self) -> bool {
        let busy: Vec<(ConnId, bool)> = self
            .wires
            .iter()
            .flat_map(|(conn, wire)| {
                [
                    (!wire.up.is_empty()).then_some((*conn, true)),
                    (!wire.down.is_empty()).then_some((*conn, false)),
                ]
            })
            .flatten()
            .collect();
        let ready: Vec<usize> =
            self.held.iter().enumerate().filter(|(_, held)| held.ready).map(|(at, _)| at).collect();
        let answers = if self.answering { ready.len() } else { 0 };
        let choices = busy.len() + usize::from(answers > 0);
        if choices == 0 {
            return false;
        }
        let pick = usize::try_from(self.rng.below(u64::try_from(choices).unwrap())).unwrap();
        let Some((conn, ours)) = busy.get(pick).copied() else {
            let at = ready[usize::try_from(self.rng.below(u64::try_from(answers).unwrap())).unwrap()];
            self.answer(at);
            return true;
        };
        if self.wires[&conn].guarded
            && self.injected < self.faults.budget
            && self.rng.chance(self.faults.cuts, 1_000_000)
        {
            self.injected += 1;
            self.cut += 1;
            self.hang_up(conn, DisconnectReason::Failed);
            return true;
        }
        self.carry(conn, ours);
        true
    }

    fn carry(&mut self, conn: ConnId, ours: bool) {
        let wire = self.wires.get_mut(&conn).unwrap();
        let queue = if ours { &mut wire.up } else { &mut wire.down };
        let most = match self.rng.below(4) {
            0 => 1 + self.rng.below(60),
            1 => 1 + self.rng.below(5_000),
            _ => 1 + self.rng.below(200_000),
        };
        let len = usize::try_from(most).unwrap().min(queue.len());
        let mut bytes: Vec<u8> = queue.drain(..len).collect();
        let flips = if ours { self.faults.flips_up } else { self.faults.flips_down };
        if wire.guarded && flips > 0 {
            let expected = flips * u64::try_from(len).unwrap();
            if self.injected < self.faults.budget && self.rng.chance(expected, 1_000_000) {
                let at = usize::try_from(self.rng.below(u64::try_from(len).unwrap())).unwrap();
                bytes[at] ^= 1 << self.rng.below(8);
                self.injected += 1;
            }
        }
        self.deliver(conn, ours, &bytes);
    }

    /// Delivers bytes as a driver does: into a receive buffer if there is one, the rest by reference.
    fn deliver(&mut self, conn: ConnId, ours: bool, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let rx_buffer =
                if ours { self.engine.take_rx_buffer(conn) } else { self.session.take_rx_buffer(conn) };
            let Some(mut rx_buffer) = rx_buffer else { break };
            let len = rx_buffer.len_max.min(bytes.len());
            rx_buffer.buf.append(&bytes[..len]);
            bytes = &bytes[len..];
            if ours {
                self.engine.return_rx_buffer(self.now, conn, rx_buffer, &self.names);
            } else {
                self.session.return_rx_buffer(self.now, conn, rx_buffer);
            }
        }
        if ours {
            self.engine.received(self.now, conn, bytes, &self.names);
            if let (Some(digest), Some(wire)) = (self.digest, self.wires.get_mut(&conn))
                && !wire.sealed
            {
                let keys = || record_keys(conn, digest, Role::Target);
                wire.sealed = self.engine.inject_record_keys(conn, keys);
            }
        } else {
            self.session.received(self.now, conn, bytes);
        }
    }

    /// Keeps the PDUs that were sealed, and does to them what somebody on the way could do.
    fn pass_on(&mut self, bytes: Vec<u8>, ours: bool) -> Vec<u8> {
        let mut pdus = pdus_of(bytes);
        if let Some(seen) = &mut self.seen {
            seen.extend(pdus.iter().filter(|pdu| !is_login(pdu)).cloned());
        }
        let data_odds = if ours { self.faults.data_up } else { self.faults.data_down };
        let mut at = 0;
        while at < pdus.len() {
            let may = self.injected < self.faults.budget && !is_login(&pdus[at]);
            let data_at = data_range(&pdus[at]).start;
            let has_data = data_at < pdus[at].len();
            if may && has_data && self.rng.chance(data_odds, 1000) {
                self.injected += 1;
                let len = pdus[at].len() - data_at;
                let byte = data_at + usize::try_from(self.rng.below(u64::try_from(len).unwrap())).unwrap();
                pdus[at][byte] ^= 1 << self.rng.below(8);
            } else if may && self.rng.chance(self.faults.pdus, 1000) {
                self.injected += 1;
                match self.rng.below(4) {
                    0 => drop(pdus.remove(at)),
                    1 => pdus.insert(at, pdus[at].clone()),
                    2 => pdus[at].truncate(40),
                    _ if at + 1 < pdus.len() => pdus.swap(at, at + 1),
                    _ => pdus[at][20] ^= 1,
                }
            }
            at += 1;
        }
        pdus.concat()
    }

    /// Plays the layer above the target.
    fn above(&mut self, event: target::Event) {
        match event {
            target::Event::Command(command) => {
                let writes = command.data_out_len > 0;
                if writes {
                    self.engine.fetch(command.task, 0, command.data_out_len);
                }
                self.held.push(Held { ready: !writes, data: None, command });
            }
            target::Event::DataOut { task, offset, data } => {
                assert_eq!(offset, 0);
                let held = self.held.iter_mut().find(|held| held.command.task == task).unwrap();
                let mut bytes = alloc::vec![0; data.len()];
                data.copy_to(0, &mut bytes);
                held.data = Some(bytes);
                held.ready = true;
            }
            target::Event::TaskGone { task } => self.held.retain(|held| held.command.task != task),
            target::Event::TasksCleared { .. } => {}
            target::Event::Tmf(tmf) => {
                self.tmfs.push(tmf);
                let session = tmf.session;
                let ends = |command: &services::Command| match tmf.function {
                    TmfFunction::ABORT_TASK => Some(command.task) == tmf.task,
                    TmfFunction::ABORT_TASK_SET => command.session == session && command.lun == tmf.lun,
                    TmfFunction::LOGICAL_UNIT_RESET | TmfFunction::CLEAR_TASK_SET => command.lun == tmf.lun,
                    TmfFunction::TARGET_WARM_RESET | TmfFunction::I_T_NEXUS_RESET => true,
                    _ => false,
                };
                let (gone, kept): (Vec<Held>, Vec<Held>) =
                    core::mem::take(&mut self.held).into_iter().partition(|held| ends(&held.command));
                self.held = kept;
                for held in gone {
                    self.engine.abort(held.command.task);
                }
                let result = match tmf.function {
                    TmfFunction::QUERY_TASK => TmfResult::SUCCEEDED,
                    _ => TmfResult::COMPLETE,
                };
                self.engine.finish_tmf(tmf.tmf, result);
            }
            target::Event::SessionUp(up) => self.target_sessions.push(*up),
            target::Event::SessionDown { session, why } => {
                self.target_ends.push(why);
                assert!(
                    self.held.iter().all(|held| held.command.session != session),
                    "tasks outlive their session"
                );
            }
        }
    }

    fn answer(&mut self, at: usize) {
        let Held { command, data, .. } = self.held.swap_remove(at);
        let lba = u32::from_be_bytes([command.cdb[2], command.cdb[3], command.cdb[4], command.cdb[5]]);
        let start = usize::try_from(lba).unwrap() * 512;
        let mut moved = 0;
        if let Some(data) = data {
            moved = data.len();
            let id = u32::from_be_bytes([command.cdb[12], command.cdb[13], command.cdb[14], command.cdb[15]]);
            *self.executed.entry(id).or_default() += 1;
            self.medium[start..start + data.len()].copy_from_slice(&data);
        }
        let wanted = usize::try_from(command.data_in_len).unwrap();
        if wanted > 0 {
            // A CDB can state that there is less data than expected, or more.
            let there = match command.cdb[0] {
                0x28 => wanted,
                SHORT_READ => wanted / 2 + 1,
                _ => wanted * 2,
            };
            let len = wanted.min(there);
            let cut = usize::try_from(self.rng.below(u64::try_from(len).unwrap())).unwrap();
            let data = Bytes::copied_from(&self.medium[start..start + len]);
            for (from, to) in [(0, cut), (cut, len)] {
                if from < to {
                    let offset = u32::try_from(from).unwrap();
                    self.engine.data_in(command.task, offset, DataList::from(data.slice(from, to)));
                }
            }
            moved = there;
        }
        let sense: &[u8] = if command.cdb[0] == BROKEN { &SENSE } else { &[] };
        let status = if command.cdb[0] == BROKEN { 2 } else { 0 };
        let transferable = u64::try_from(moved).unwrap();
        self.engine
            .finish(command.task, services::Finish { status, sense, transferable, is_unit_attention: false });
    }

    pub(super) fn submit(&mut self, request: Request) -> TaskId {
        self.session.submit(self.now, request).unwrap()
    }

    /// Removes and returns the outcome of a task that has ended.
    pub(super) fn outcome(&mut self, task: TaskId) -> Outcome {
        let at =
            self.events.iter().position(|event| matches!(event, Event::Done { task: of, .. } if *of == task));
        match at.map(|at| self.events.remove(at)) {
            Some(Event::Done { outcome, .. }) => outcome,
            _ => panic!("{task:?} has not ended: {:?}", self.events),
        }
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn secret(text: &[u8]) -> Credentials {
        Credentials { name: "user".into(), secret: Secret::new(text).unwrap() }
    }

    pub(super) fn chap(own: &[u8], peer: Option<&[u8]>) -> crate::login::initiator::AuthPlan {
        crate::login::initiator::AuthPlan::Chap {
            algorithms: Algorithms::ALL,
            own: Self::secret(own),
            peer: peer.map(|peer| Credentials { name: "target".into(), secret: Secret::new(peer).unwrap() }),
            or_none: false,
        }
    }
}

/// Returns the keys of a connection as one side has them. They change every 30 PDUs.
fn record_keys(conn: ConnId, digest: AeadDigest, role: Role) -> RecordKeys {
    let limits = GenerationLimits { pdus: 30, bytes: 1 << 20 };
    let session_key = zeroize::Zeroizing::new([1; 64]);
    let transcript = [u8::try_from(conn.0 & 0xff).unwrap(); 64];
    let keys = LoginKeys::new(&session_key, &[2; 64]).connection_keys(&transcript);
    let (encryptor, decryptor) = (keys.encryptor(role, digest, limits), keys.decryptor(role, digest, limits));
    RecordKeys { digest, encryptor, decryptor }
}

fn is_login(pdu: &[u8]) -> bool {
    matches!(pdu[0] & 0x3f, 0x03 | 0x23)
}

/// Returns where the data segment of a PDU under an AEAD digest is, by the lengths that everybody can read.
pub(super) fn data_range(pdu: &[u8]) -> core::ops::Range<usize> {
    let tag = if is_login(pdu) { 0 } else { security::aead::TAG_LEN };
    let at = 48 + 4 * usize::from(pdu[4]) + tag;
    at..at + usize::try_from(u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]])).unwrap()
}

/// Cuts what one side sends under an AEAD digest into its PDUs. Login PDUs have no tags.
fn pdus_of(mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let mut pdus = Vec::new();
    while !bytes.is_empty() {
        let data = data_range(&bytes);
        let tag = if is_login(&bytes) || data.is_empty() { 0 } else { security::aead::TAG_LEN };
        let rest = bytes.split_off(data.start + data.len().next_multiple_of(4) + tag);
        pdus.push(core::mem::replace(&mut bytes, rest));
    }
    pdus
}

/// CDBs other than READ (10) and WRITE (10) that the layer above supports: less data than requested, more,
/// and an error.
pub(super) const SHORT_READ: u8 = 0xc0;
pub(super) const LONG_READ: u8 = 0xc1;
pub(super) const BROKEN: u8 = 0xc2;
pub(super) const SENSE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];

pub(super) fn cdb(code: u8, lba: u32, id: u32) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[12..].copy_from_slice(&id.to_be_bytes());
    Cdb::from_16(cdb)
}

pub(super) fn read(lba: u32, len: u32) -> Request {
    Request { data_in_len: len, ..Request::new(LUN, cdb(0x28, lba, 0)) }
}

pub(super) fn write(lba: u32, id: u32, data: &[u8]) -> Request {
    Request { data_out: DataList::from(Bytes::copied_from(data)), ..Request::new(LUN, cdb(0x2a, lba, id)) }
}

/// Returns bytes that show their position.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = alloc::vec![0; len];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}
