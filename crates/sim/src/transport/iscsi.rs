//! The iSCSI transport: initiator sessions, connections that fail, and a shard as the target.

mod connection;
mod counters;
mod events;
mod handover;
mod invariants;
mod shard;
mod task_faults;
mod traced_framing;

use ::shard::shard::Shard;
use std::collections::{BTreeMap, VecDeque};
use target::units::UnitId;
use transport::command::{Cdb, TaskAttribute};
use transport::initiator::{InitiatorTransport as _, Request, TaskId, TmfId, TmfParameters};
use transport::task_management::TmfFunction;

use base::buffer::Pool;
use base::rng::Rng;
use base::state_machine::{AcceptInfo, ConnId, PortalId, StreamMachine as _};
use base::time::{Duration, Instant};
use iscsi::initiator::Session;
use iscsi::initiator::contract::{Portal as SessionPortal, Purpose, SessionPlan, Slot};
use iscsi::keys::Key;
use iscsi::login::directory::TargetAddress;
use iscsi::name::Isid;
use iscsi::text::TextBuilder;
use netem::probability::DurationRange;

use super::direct::UnitSource;
use super::disks::Disks;
use super::{Attribute, ScsiCommand, TaskManagement, Ticket, Transport, TransportEvent};
use crate::layout::Layout;
use crate::media::{Medium, scattered};
use crate::property::{Property, PropertyViolation};
use crate::scenario::{IscsiPlan, Scenario, pick};
use crate::trace::Trace;
use crate::units;
use connection::{Connection, Side};
use counters::Counters;
use handover::Upgrades;
use invariants::{AllowedOutcomes, SessionInvariants};
use shard::config;
use task_faults::TaskFaults;
use traced_framing::TracedFraming;

/// Initiator sessions, connections and a shard.
pub struct Iscsi {
    plan: IscsiPlan,
    has_reloads: bool,
    /// What any command may end with, of any host.
    allowed: AllowedOutcomes,
    disks: Disks,
    shard: Shard,
    shard_pool: Pool,
    /// The free connection numbers of the shard; `next_conn` is the next number that was never used.
    free: Vec<u32>,
    next_conn: u32,
    hosts: Vec<Host>,
    wires: BTreeMap<u64, Connection>,
    next_wire: u64,
    queue: BTreeMap<(Instant, u64), Scheduled>,
    number: u64,
    happenings: VecDeque<TransportEvent>,
    trace: Trace,
    rng: Rng,
    healed: bool,
    /// The target accepts no connections before this time.
    boots_at: Instant,
    counters: Counters,
    trouble: Instant,
    /// Promises that a session broke.
    violations: Vec<String>,
    /// Commands that the target ended with ABORTED COMMAND although no fault explains it.
    uncaused: Vec<String>,
    upgrades: Upgrades,
}

/// An initiator.
struct Host {
    session: Session,
    pool: Pool,
    /// Open tasks, with the length of the data that each expects.
    tasks: BTreeMap<TaskId, (Ticket, u32)>,
    tickets: BTreeMap<Ticket, TaskId>,
    manages: BTreeMap<TmfId, Ticket>,
    /// Attempts to connect that are under way.
    connecting: BTreeMap<Slot, u64>,
    next_conn: u32,
    leaving: bool,
    gone: bool,
    invariants: SessionInvariants,
    faults: TaskFaults,
}

enum Scheduled {
    /// An attempt to connect succeeds or fails.
    Connect(usize, Slot, u64),
    Saved(UnitId, u64),
    /// An initiator declares another MaxRecvDataSegmentLength.
    Declare(usize),
    /// An initiator starts a new session after its session gave up.
    Restart(usize),
    /// A connection has been half closed for long enough.
    Linger(u64, Side),
}

/// The bound on rounds of events, actions and bytes at one point in time.
const ROUNDS_MAX: u32 = 1_000_000;

impl Iscsi {
    /// Makes a target and its initiators, which begin to log in.
    pub fn new(
        scenario: &Scenario,
        plan: &IscsiPlan,
        media: Vec<Medium>,
        trace: Trace,
        now: Instant,
        seed: u64,
    ) -> Self {
        let allowed = AllowedOutcomes {
            aborted: scenario.aborts(),
            stalled: scenario.short_memory,
            ..AllowedOutcomes::default()
        };
        let upgrades = Upgrades::new(now, scenario.seed);
        let disks = Disks::new(scenario, media);
        let has_reloads = scenario.reloads.is_some();
        Self::with(plan, (disks, has_reloads), scenario.initiators, allowed, upgrades, trace, now, seed)
    }

    /// Makes a target with so many units of a source, and so many initiators, which abort tasks of each
    /// other if `aborts`.
    pub(crate) fn of(
        plan: &IscsiPlan,
        (source, units): (Box<dyn UnitSource>, u16),
        (initiators, aborts): (usize, bool),
        trace: Trace,
        now: Instant,
        seed: u64,
    ) -> Self {
        let allowed = AllowedOutcomes { aborted: aborts, ..AllowedOutcomes::default() };
        let disks = Disks::of(source, units);
        Self::with(plan, (disks, false), initiators, allowed, Upgrades::none(now), trace, now, seed)
    }

    #[allow(clippy::too_many_arguments, reason = "each is one part of a world")]
    fn with(
        plan: &IscsiPlan,
        (disks, has_reloads): (Disks, bool),
        initiators: usize,
        allowed: AllowedOutcomes,
        upgrades: Upgrades,
        trace: Trace,
        now: Instant,
        seed: u64,
    ) -> Self {
        let shard_pool = Pool::new(32 << 20);
        let mut transport = Self {
            shard: Shard::new(config(&disks, plan), plan.limits, shard_pool.clone()),
            plan: plan.clone(),
            has_reloads,
            allowed,
            disks,
            shard_pool,
            free: Vec::new(),
            next_conn: 0,
            hosts: Vec::new(),
            wires: BTreeMap::new(),
            next_wire: 0,
            queue: BTreeMap::new(),
            number: 0,
            happenings: VecDeque::new(),
            trace,
            rng: Rng::from_seed(seed),
            healed: false,
            boots_at: now,
            counters: Counters::default(),
            trouble: now,
            violations: Vec::new(),
            uncaused: Vec::new(),
            upgrades,
        };
        transport.boot(now);
        for host in 0..initiators {
            let fresh = transport.host(now, host);
            transport.hosts.push(fresh);
            for _ in 0..plan.declares {
                let within =
                    DurationRange::between(Duration::ZERO, plan.declares_within).pick(&mut transport.rng);
                transport.schedule(now.after(within), Scheduled::Declare(host));
            }
        }
        transport.run_until_idle(now);
        transport
    }

    fn boot(&mut self, now: Instant) {
        let limits = self.plan.limits;
        self.shard = Shard::new(config(&self.disks, &self.plan), limits, self.shard_pool.clone());
        self.disks.boot(now, &mut self.shard, &self.shard_pool);
        if self.has_reloads {
            self.shard.apply(now, config(&self.disks, &self.plan));
        }
        (self.free, self.next_conn) = (Vec::new(), 0);
    }

    fn host(&mut self, now: Instant, number: usize) -> Host {
        let pool = Pool::new(8 << 20);
        let portals = (0..self.plan.portals)
            .map(|portal| SessionPortal { address: TargetAddress::Socket(address(portal)) });
        let qualifier = u16::try_from(number).unwrap() + 1;
        let plan = SessionPlan {
            keys: self.plan.initiator_keys.clone(),
            connections: self.plan.connections,
            retry: self.plan.retry,
            limits: self.plan.session_limits,
            ..SessionPlan::new(
                units::initiator(number).parse().unwrap(),
                Isid::random([1, 2, 3], qualifier),
                Purpose::Target(units::TARGET.parse().unwrap()),
                portals.collect(),
            )
        };
        Host {
            session: Session::new(now, plan, pool.clone()),
            pool,
            tasks: BTreeMap::new(),
            tickets: BTreeMap::new(),
            manages: BTreeMap::new(),
            connecting: BTreeMap::new(),
            next_conn: 0,
            leaving: false,
            gone: false,
            invariants: SessionInvariants::default(),
            faults: TaskFaults::new(self.allowed.stalled, self.plan.aead.is_some()),
        }
    }

    fn schedule(&mut self, at: Instant, step: Scheduled) {
        self.number += 1;
        self.queue.insert((at, self.number), step);
    }

    fn run_scheduled(&mut self, now: Instant, step: Scheduled) {
        match step {
            Scheduled::Connect(host, slot, token) => self.connect(now, host, slot, token),
            Scheduled::Saved(unit, ticket) => self.shard.state_saved(now, unit, ticket, true),
            Scheduled::Declare(host) => {
                let mut text = TextBuilder::new();
                let len = pick(&mut self.rng, &["512", "1024", "3000", "8192", "65536"]);
                text.put(Key::MaxRecvDataSegmentLength.name(), len);
                // Whether the session accepts the text depends on the other text negotiations under way.
                let taken = self.hosts[host].session.send_text(now, None, text).is_ok();
                self.trace.say(|| format!("initiator {host} declares {len}: {taken}"));
            }
            Scheduled::Restart(host) => {
                self.counters.restarts += 1;
                let fresh = self.host(now, host);
                let old = std::mem::replace(&mut self.hosts[host], fresh);
                self.hosts[host].leaving = old.leaving;
                self.count(&old.session);
                if old.leaving {
                    self.hosts[host].session.logout(now);
                }
            }
            Scheduled::Linger(wire, side) => self.lingered(now, wire, side),
        }
    }

    /// Completes an attempt to connect: it succeeds or fails.
    fn connect(&mut self, now: Instant, host: usize, slot: Slot, token: u64) {
        if self.hosts[host].connecting.get(&slot) != Some(&token) {
            return;
        }
        self.hosts[host].connecting.remove(&slot);
        let refused = !self.healed && self.rng.chance(self.plan.connects_fail_per_mille, 1000);
        if refused || now < self.boots_at {
            self.trouble = now;
            return self.hosts[host].session.connect_failed(now, slot);
        }
        self.counters.connections += 1;
        let mut entropy = [0; 32];
        self.rng.fill(&mut entropy);
        let server = ConnId(self.free.pop().unwrap_or_else(|| {
            self.next_conn += 1;
            self.next_conn - 1
        }));
        let client = ConnId(self.hosts[host].next_conn);
        self.hosts[host].next_conn += 1;
        let number = self.next_wire;
        self.next_wire += 1;
        let seed = self.rng.next_u64();
        let mut wire = Connection::new(
            &self.plan,
            (host, slot),
            client,
            server,
            TracedFraming::new(self.trace.clone(), number, self.plan.aead.is_some()),
            seed,
        );
        if self.healed {
            wire.heal();
        }
        self.wires.insert(number, wire);
        let portal = u8::try_from(slot.0 % u16::from(self.plan.portals)).unwrap();
        let arrival = AcceptInfo {
            portal: PortalId(portal.into()),
            local: address(portal),
            peer: "198.51.100.7:50000".parse().unwrap(),
            entropy,
        };
        self.trace.say(|| format!("initiator {host} connects slot {} as wire {number}", slot.0));
        self.shard.connected(now, server, &arrival);
        self.hosts[host].session.connected(now, client, slot, entropy);
    }

    /// Applies the configuration that waits, if it can come into force.
    fn apply_layout(&mut self, now: Instant) {
        let Some(layout) = self.disks.ready(&mut self.shard) else { return };
        self.happenings.push_back(TransportEvent::ConfigApplied(layout.clone()));
        let (plan, serving) = (&self.plan, (&mut self.shard, &self.shard_pool));
        self.disks.change(now, serving, layout, |shard, disks| shard.apply(now, config(disks, plan)));
    }

    /// Processes events and moves bytes until nothing more is due now.
    fn run_until_idle(&mut self, now: Instant) {
        for _ in 0..ROUNDS_MAX {
            let mut busy = self.events(now);
            busy |= self.actions(now);
            busy |= self.move_bytes(now);
            if !busy {
                return;
            }
        }
        panic!("the machines keep each other busy without time passing");
    }

    fn events(&mut self, now: Instant) -> bool {
        let mut any = false;
        for host in 0..self.hosts.len() {
            while let Some(event) = self.hosts[host].session.poll_event() {
                any = true;
                self.event(now, host, event);
            }
            if self.hosts[host].session.is_up() {
                let violations = self.hosts[host].invariants.session_alive();
                self.violations.extend(violations);
            }
        }
        while let Some(request) = self.shard.poll_save() {
            any = true;
            self.disks.save(request.unit, request.state);
            let delay = Duration::from_micros(self.rng.below(2000));
            self.schedule(now.after(delay), Scheduled::Saved(request.unit, request.ticket));
        }
        any | self.disks.pass_on(now, &mut self.shard)
    }

    fn count(&mut self, session: &Session) {
        self.counters.session(&session.stats());
    }
}

impl Transport for Iscsi {
    fn submit(&mut self, now: Instant, initiator: usize, ticket: Ticket, order: ScsiCommand) -> bool {
        let mut head = [0; 16];
        head[..order.cdb.len()].copy_from_slice(&order.cdb);
        let mut request = Request::new(u64::from(order.unit) << 48, Cdb::from_16(head));
        request.attribute = match order.attribute {
            Attribute::Simple => TaskAttribute::SIMPLE,
            Attribute::Ordered => TaskAttribute::ORDERED,
            Attribute::HeadOfQueue => TaskAttribute::HEAD_OF_QUEUE,
        };
        request.data_out = scattered(&mut self.rng, &order.data_out);
        let data_in_len = order.data_in_len;
        request.data_in_len = data_in_len;
        request.immediate = order.immediate;
        request.replay = order.replay;
        let mercy = AllowedOutcomes { immediate: order.immediate, ..self.allowed };
        let host = &mut self.hosts[initiator];
        let Ok(task) = host.session.submit(now, request) else { return false };
        host.tasks.insert(task, (ticket, data_in_len));
        host.tickets.insert(ticket, task);
        host.invariants.submitted(now, ticket, mercy);
        self.run_until_idle(now);
        true
    }

    fn task_management(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        function: TaskManagement,
    ) -> bool {
        let host = &mut self.hosts[initiator];
        let on = |unit: u16| u64::from(unit) << 48;
        if let TaskManagement::AbortTask(task) = function {
            host.invariants.aborts(task);
        }
        if matches!(function, TaskManagement::WarmReset | TaskManagement::ColdReset) {
            host.invariants.resets_target();
        }
        let (function, lun, task) = match function {
            TaskManagement::AbortTask(task) => (TmfFunction::ABORT_TASK, 0, Some(task)),
            TaskManagement::QueryTask(task) => (TmfFunction::QUERY_TASK, 0, Some(task)),
            TaskManagement::AbortTaskSet(unit) => (TmfFunction::ABORT_TASK_SET, on(unit), None),
            TaskManagement::ClearTaskSet(unit) => (TmfFunction::CLEAR_TASK_SET, on(unit), None),
            TaskManagement::UnitReset(unit) => (TmfFunction::LOGICAL_UNIT_RESET, on(unit), None),
            TaskManagement::WarmReset => (TmfFunction::TARGET_WARM_RESET, 0, None),
            TaskManagement::ColdReset => (TmfFunction::TARGET_COLD_RESET, 0, None),
        };
        let task = match task.map(|ticket| host.tickets.get(&ticket).copied()) {
            Some(None) => return false,
            Some(found) => found,
            None => None,
        };
        let Ok(id) = host.session.submit_tmf(now, TmfParameters { function, lun, task }) else {
            return false;
        };
        host.manages.insert(id, ticket);
        self.run_until_idle(now);
        true
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        self.happenings.pop_front()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let sessions = self.hosts.iter().filter_map(|host| host.session.poll_timeout());
        let wires = self.wires.values().filter_map(Connection::next);
        sessions
            .chain(wires)
            .chain(queued)
            .chain(self.shard.poll_timeout())
            .chain(self.upgrades.next())
            .chain(self.disks.next())
            .min()
    }

    fn pending_deadlines(&self) -> String {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let sessions: Vec<_> = self.hosts.iter().map(|host| host.session.poll_timeout()).collect();
        let wires: Vec<_> = self.wires.values().map(Connection::next).collect();
        let shard = self.shard.poll_timeout();
        format!("shard {shard:?}, sessions {sessions:?}, wires {wires:?}, queue {queued:?}")
    }

    fn advance(&mut self, now: Instant) {
        self.disks.media_ready(now, &mut self.shard);
        self.apply_layout(now);
        if self.shard.poll_timeout().is_some_and(|at| at <= now) {
            self.shard.handle_timeout(now);
        }
        for host in &mut self.hosts {
            if host.session.poll_timeout().is_some_and(|at| at <= now) {
                host.session.handle_timeout(now);
            }
        }
        self.run_until_idle(now);
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            if let Some((_, step)) = self.queue.pop_first() {
                self.run_scheduled(now, step);
                self.run_until_idle(now);
            }
        }
        self.upgrade(now);
    }

    fn reset_nexus(&mut self, now: Instant, initiator: usize) {
        self.hosts[initiator].session.close(now);
        self.run_until_idle(now);
    }

    fn stop_faults(&mut self, _now: Instant) {
        self.healed = true;
        self.wires.values_mut().for_each(Connection::heal);
    }

    fn close(&mut self, now: Instant) {
        for host in 0..self.hosts.len() {
            self.hosts[host].leaving = true;
            self.hosts[host].session.logout(now);
        }
        self.run_until_idle(now);
    }

    fn crash(&mut self, now: Instant) {
        let wires: Vec<u64> = self.wires.keys().copied().collect();
        for wire in wires {
            self.lose_target(now, wire);
        }
        self.counters.shard(self.shard.wire_stats());
        self.queue.retain(|_, step| !matches!(step, Scheduled::Saved(..)));
        self.boot(now);
        self.upgrades.wait(now);
        self.boots_at =
            now.after(DurationRange::between(Duration::ZERO, Duration::from_secs(4)).pick(&mut self.rng));
        self.run_until_idle(now);
    }

    fn reload(&mut self, now: Instant, layout: Layout) {
        self.disks.request_reload(layout);
        self.apply_layout(now);
        self.run_until_idle(now);
    }

    fn data_held(&self) -> usize {
        self.shard.data_bytes()
    }

    fn last_fault(&self) -> Instant {
        self.trouble
    }

    fn busy_reason(&self) -> Option<String> {
        let tasks: u64 = self.shard.units().iter().map(|unit| unit.stats.tasks).sum();
        let sessions = self.shard.sessions();
        let bytes = self.shard.data_bytes();
        let busy = tasks > 0 || bytes > 0 || !sessions.is_empty() || !self.wires.is_empty();
        let held = busy.then(|| {
            let wires = self.wires.len();
            format!("{tasks} tasks in the units, {bytes} bytes of data, {wires} connections, {sessions:?}")
        });
        held.or_else(|| self.disks.left())
    }

    fn bugs(&self) -> u64 {
        let sessions: u64 = self.hosts.iter().map(|host| host.session.stats().bugs).sum();
        sessions + self.counters.bugs + self.counters.shard_bugs + self.shard.wire_stats().bugs
    }

    fn take_violations(&mut self) -> Vec<PropertyViolation> {
        let session = self.violations.drain(..).map(|how| PropertyViolation::new(Property::Session, how));
        let uncaused = self.uncaused.drain(..).map(|how| PropertyViolation::new(Property::Caused, how));
        session.chain(uncaused).collect()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.counters.clone();
        self.hosts.iter().for_each(|host| counters.session(&host.session.stats()));
        counters.shard(self.shard.wire_stats());
        counters.into_counts()
    }

    fn summary(&self) -> String {
        let stats: Vec<_> = self.hosts.iter().map(|host| host.session.stats()).collect();
        format!("{:?} {:?} {stats:?}", self.counters, self.shard.wire_stats())
    }
}

fn address(portal: u8) -> core::net::SocketAddr {
    core::net::SocketAddr::from(([192, 0, 2, portal + 1], 3260))
}
