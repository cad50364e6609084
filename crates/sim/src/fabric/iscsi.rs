//! iSCSI: session machines, connections that fail, and a shard.

mod promises;
mod shard;
mod tally;
mod watched;
mod wire;

use std::collections::{BTreeMap, VecDeque};

use base::buffer::Pool;
use base::rng::Rng;
use base::state_machine::{AcceptInfo, ConnId, PortalId, StreamMachine as _};
use base::time::{Duration, Instant};
use iscsi::initiator::Session;
use iscsi::initiator::contract::{
    Event, Portal as SessionPortal, Purpose, Request, SessionEnd, SessionOrigin, SessionPlan, Slot, TaskId,
    TaskResult, TmfId, TmfParameters,
};
use iscsi::keys::Key;
use iscsi::login::directory::TargetAddress;
use iscsi::name::Isid;
use iscsi::pdu::ahs::Cdb;
use iscsi::pdu::scsi_command::TaskAttribute;
use iscsi::pdu::tmf_request::TmfFunction;
use iscsi::pdu::tmf_response::TmfResult;
use iscsi::text::TextBuilder;
use netem::probability::DurationRange;
use target::config::UnitId;
use target::shard::Shard;

use super::disks::Disks;
use super::{Attribute, Ended, Fabric, Happening, Manage, Order, Ticket};
use crate::house;
use crate::layout::Layout;
use crate::media::{Medium, scattered};
use crate::property::{Broken, Property};
use crate::scenario::{IscsiPlan, Scenario, pick};
use crate::trace::Trace;
use promises::{Mercy, Promises};
use shard::config;
use tally::Tally;
use watched::Watched;
use wire::{Side, Wire};

/// Sessions, connections and a shard.
pub struct Iscsi {
    scenario: Scenario,
    plan: IscsiPlan,
    disks: Disks,
    shard: Shard,
    shard_pool: Pool,
    /// Numbers of the shard's connections that may be used again, and the next new one.
    free: Vec<u32>,
    next_conn: u32,
    hosts: Vec<Host>,
    wires: BTreeMap<u64, Wire>,
    next_wire: u64,
    queue: BTreeMap<(Instant, u64), Step>,
    number: u64,
    happenings: VecDeque<Happening>,
    trace: Trace,
    rng: Rng,
    healed: bool,
    /// The target does not listen before this.
    boots_at: Instant,
    tally: Tally,
    trouble: Instant,
    /// Promises that were not kept.
    wrongs: Vec<String>,
}

/// An initiator.
struct Host {
    session: Session,
    pool: Pool,
    tasks: BTreeMap<TaskId, Ticket>,
    tickets: BTreeMap<Ticket, TaskId>,
    manages: BTreeMap<TmfId, Ticket>,
    /// Attempts to connect that are under way.
    connecting: BTreeMap<Slot, u64>,
    next_conn: u32,
    leaving: bool,
    gone: bool,
    promises: Promises,
}

enum Step {
    /// An attempt to connect comes to its end.
    Connect(usize, Slot, u64),
    Saved(UnitId, u64),
    /// An initiator declares what it receives from now on.
    Declare(usize),
    /// A session that gave up is begun anew.
    Restart(usize),
    /// A connection has been half closed for long enough.
    Linger(u64, Side),
}

/// How many rounds of events, actions and bytes one moment may have.
const SETTLES_WITHIN: u32 = 1_000_000;

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
        let shard_pool = Pool::new(32 << 20);
        let disks = Disks::new(scenario, media);
        let mut fabric = Self {
            shard: Shard::new(config(&disks, plan), plan.limits, shard_pool.clone()),
            scenario: scenario.clone(),
            plan: plan.clone(),
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
            tally: Tally::default(),
            trouble: now,
            wrongs: Vec::new(),
        };
        fabric.boot(now);
        for host in 0..scenario.initiators {
            let fresh = fabric.host(now, host);
            fabric.hosts.push(fresh);
            for _ in 0..plan.declares {
                let within =
                    DurationRange::between(Duration::ZERO, plan.declares_within).pick(&mut fabric.rng);
                fabric.plan(now.after(within), Step::Declare(host));
            }
        }
        fabric.settle(now);
        fabric
    }

    fn boot(&mut self, now: Instant) {
        let limits = self.plan.limits;
        self.shard = Shard::new(config(&self.disks, &self.plan), limits, self.shard_pool.clone());
        self.disks.boot(now, &mut self.shard, &self.shard_pool);
        if self.scenario.reloads.is_some() {
            self.shard.apply(now, config(&self.disks, &self.plan));
        }
        (self.free, self.next_conn) = (Vec::new(), 0);
    }

    fn host(&mut self, now: Instant, number: usize) -> Host {
        let pool = Pool::new(8 << 20);
        let portals = (0..self.plan.portals)
            .map(|portal| SessionPortal { address: TargetAddress::Socket(address(portal)), group: None });
        let qualifier = u16::try_from(number).unwrap() + 1;
        let plan = SessionPlan {
            keys: self.plan.initiator_keys.clone(),
            connections: self.plan.connections,
            retry: self.plan.retry,
            limits: self.plan.session_limits,
            ..SessionPlan::new(
                house::initiator(number).parse().unwrap(),
                Isid::random([1, 2, 3], qualifier),
                Purpose::Target(house::TARGET.parse().unwrap()),
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
            promises: Promises::default(),
        }
    }

    fn plan(&mut self, at: Instant, step: Step) {
        self.number += 1;
        self.queue.insert((at, self.number), step);
    }

    fn step(&mut self, now: Instant, step: Step) {
        match step {
            Step::Connect(host, slot, token) => self.connect(now, host, slot, token),
            Step::Saved(unit, ticket) => self.shard.state_saved(now, unit, ticket, true),
            Step::Declare(host) => {
                let mut text = TextBuilder::new();
                let len = pick(&mut self.rng, &["512", "1024", "3000", "8192", "65536"]);
                text.put(Key::MaxRecvDataSegmentLength.name(), len);
                // Whether it is taken depends on what else is being said.
                let taken = self.hosts[host].session.send_text(now, None, text).is_ok();
                self.trace.say(|| format!("initiator {host} declares {len}: {taken}"));
            }
            Step::Restart(host) => {
                self.tally.restarts += 1;
                let fresh = self.host(now, host);
                let old = std::mem::replace(&mut self.hosts[host], fresh);
                self.hosts[host].leaving = old.leaving;
                self.count(&old.session);
                if old.leaving {
                    self.hosts[host].session.logout(now);
                }
            }
            Step::Linger(wire, side) => self.lingered(now, wire, side),
        }
    }

    /// An attempt to connect succeeds or fails.
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
        self.tally.connections += 1;
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
        let mut wire =
            Wire::new(&self.plan, host, client, server, Watched::new(self.trace.clone(), number), seed);
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

    /// Brings a configuration into force that waits, if it can come.
    fn lay(&mut self, now: Instant) {
        let Some(layout) = self.disks.ready(&mut self.shard) else { return };
        self.happenings.push_back(Happening::Laid(layout.clone()));
        let (plan, serving) = (&self.plan, (&mut self.shard, &self.shard_pool));
        self.disks.change(now, serving, layout, |shard, disks| shard.apply(now, config(disks, plan)));
    }

    /// Moves events and bytes until nothing is left to be done now.
    fn settle(&mut self, now: Instant) {
        for _ in 0..SETTLES_WITHIN {
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
                let wrongs = self.hosts[host].promises.live();
                self.wrongs.extend(wrongs);
            }
        }
        while let Some(request) = self.shard.poll_save() {
            any = true;
            self.disks.save(request.unit, request.state);
            let delay = Duration::from_micros(self.rng.below(2000));
            self.plan(now.after(delay), Step::Saved(request.unit, request.ticket));
        }
        any
    }

    fn event(&mut self, now: Instant, host: usize, event: Event) {
        match event {
            Event::Connect { slot, .. } => {
                let token = self.number;
                self.hosts[host].connecting.insert(slot, token);
                let delay = self.plan.connect_within.pick(&mut self.rng);
                self.plan(now.after(delay), Step::Connect(host, slot, token));
            }
            Event::CancelConnect { slot } => {
                self.hosts[host].connecting.remove(&slot);
            }
            Event::Up(up) => {
                self.trace.say(|| format!("initiator {host} is up: {:?}, {:?}", up.origin, up.parameters));
                let fresh = up.origin != SessionOrigin::Continued;
                self.hosts[host].promises.up(&up.parameters, up.origin);
                self.happenings.push_back(Happening::Up { initiator: host, fresh });
            }
            Event::Recovering => self.happenings.push_back(Happening::Down { initiator: host, last: false }),
            Event::Down(why) => self.down(now, host, why),
            Event::Done { task, outcome } => {
                let Some(ticket) = self.hosts[host].tasks.remove(&task) else {
                    panic!("a task ended that is not open, or ended before: {outcome:?}");
                };
                self.hosts[host].tickets.remove(&ticket);
                let wrong = self.hosts[host].promises.ended(now, ticket, &outcome.end);
                self.wrongs.extend(wrong);
                let data = outcome.data_in.as_ref().map(|data| data.to_vec()).unwrap_or_default();
                if let Some(data) = outcome.data_in {
                    self.hosts[host].pool.recycle(data);
                }
                let ended = ended(outcome.end, data);
                self.happenings.push_back(Happening::Ended { initiator: host, ticket, ended });
            }
            Event::TmfDone { id, result } => {
                let Some(ticket) = self.hosts[host].manages.remove(&id) else {
                    panic!("a management request was answered that is not open, or was answered before");
                };
                let answer =
                    result.map(|result| matches!(result, TmfResult::COMPLETE | TmfResult::SUCCEEDED));
                self.happenings.push_back(Happening::Managed { initiator: host, ticket, answer });
            }
            Event::ConnectionUp { slot, .. } => {
                self.trace.say(|| format!("initiator {host} slot {} is up", slot.0));
            }
            Event::ConnectionDown { slot, why } => {
                self.trouble = now;
                self.wrongs.extend(self.hosts[host].promises.lost(now, why));
                self.trace.say(|| format!("initiator {host} slot {} is down: {why}", slot.0));
            }
            other => self.trace.say(|| format!("initiator {host}: {other:?}")),
        }
    }

    /// A session is over: its owner begins a new one, unless it wanted the end.
    fn down(&mut self, now: Instant, host: usize, why: SessionEnd) {
        self.trace.say(|| format!("initiator {host} is down: {why}"));
        self.trouble = now;
        let entry = &mut self.hosts[host];
        assert!(entry.tasks.is_empty(), "a session went down with tasks that were not reported");
        assert!(
            entry.manages.is_empty(),
            "a session went down with management requests that were not reported"
        );
        entry.promises.down();
        entry.gone = entry.leaving;
        let last = entry.leaving;
        self.happenings.push_back(Happening::Down { initiator: host, last });
        if !last {
            let delay = Duration::from_millis(self.rng.below(3000));
            self.plan(now.after(delay), Step::Restart(host));
        }
    }

    fn count(&mut self, session: &Session) {
        self.tally.session(&session.stats());
    }
}

impl Fabric for Iscsi {
    fn submit(&mut self, now: Instant, initiator: usize, ticket: Ticket, order: Order) -> bool {
        let mut head = [0; 16];
        head[..order.cdb.len()].copy_from_slice(&order.cdb);
        let mut request = Request::new(u64::from(order.unit) << 48, Cdb::new(head, None));
        request.attribute = match order.attribute {
            Attribute::Simple => TaskAttribute::SIMPLE,
            Attribute::Ordered => TaskAttribute::ORDERED,
            Attribute::HeadOfQueue => TaskAttribute::HEAD_OF_QUEUE,
        };
        request.data_out = scattered(&mut self.rng, &order.data_out);
        request.data_in_len = order.data_in_len;
        request.immediate = order.immediate;
        request.replay = order.replay;
        let mercy = Mercy {
            immediate: order.immediate,
            aborted: self.scenario.aborts(),
            taken_for_received: false,
            stalled: self.scenario.short_memory,
        };
        let host = &mut self.hosts[initiator];
        let Ok(task) = host.session.submit(now, request) else { return false };
        host.tasks.insert(task, ticket);
        host.tickets.insert(ticket, task);
        host.promises.submitted(now, ticket, mercy);
        self.settle(now);
        true
    }

    fn manage(&mut self, now: Instant, initiator: usize, ticket: Ticket, function: Manage) -> bool {
        let host = &mut self.hosts[initiator];
        let on = |unit: u16| u64::from(unit) << 48;
        if let Manage::AbortTask(task) = function {
            host.promises.aborts(task);
        }
        if matches!(function, Manage::WarmReset | Manage::ColdReset) {
            host.promises.resets_target();
        }
        let (function, lun, task) = match function {
            Manage::AbortTask(task) => (TmfFunction::ABORT_TASK, 0, Some(task)),
            Manage::QueryTask(task) => (TmfFunction::QUERY_TASK, 0, Some(task)),
            Manage::AbortTaskSet(unit) => (TmfFunction::ABORT_TASK_SET, on(unit), None),
            Manage::ClearTaskSet(unit) => (TmfFunction::CLEAR_TASK_SET, on(unit), None),
            Manage::UnitReset(unit) => (TmfFunction::LOGICAL_UNIT_RESET, on(unit), None),
            Manage::WarmReset => (TmfFunction::TARGET_WARM_RESET, 0, None),
            Manage::ColdReset => (TmfFunction::TARGET_COLD_RESET, 0, None),
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
        self.settle(now);
        true
    }

    fn poll(&mut self) -> Option<Happening> {
        self.happenings.pop_front()
    }

    fn next(&self) -> Option<Instant> {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let sessions = self.hosts.iter().filter_map(|host| host.session.poll_timeout());
        let wires = self.wires.values().filter_map(Wire::next);
        sessions.chain(wires).chain(queued).chain(self.shard.poll_timeout()).min()
    }

    fn waits(&self) -> String {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let sessions: Vec<_> = self.hosts.iter().map(|host| host.session.poll_timeout()).collect();
        let wires: Vec<_> = self.wires.values().map(Wire::next).collect();
        let shard = self.shard.poll_timeout();
        format!("shard {shard:?}, sessions {sessions:?}, wires {wires:?}, queue {queued:?}")
    }

    fn advance(&mut self, now: Instant) {
        self.disks.media_ready(now, &mut self.shard);
        self.lay(now);
        if self.shard.poll_timeout().is_some_and(|at| at <= now) {
            self.shard.handle_timeout(now);
        }
        for host in &mut self.hosts {
            if host.session.poll_timeout().is_some_and(|at| at <= now) {
                host.session.handle_timeout(now);
            }
        }
        self.settle(now);
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            if let Some((_, step)) = self.queue.pop_first() {
                self.step(now, step);
                self.settle(now);
            }
        }
    }

    fn give_up(&mut self, now: Instant, initiator: usize) {
        self.hosts[initiator].session.close(now);
        self.settle(now);
    }

    fn heal(&mut self, _now: Instant) {
        self.healed = true;
        self.wires.values_mut().for_each(Wire::heal);
    }

    fn close(&mut self, now: Instant) {
        for host in 0..self.hosts.len() {
            self.hosts[host].leaving = true;
            self.hosts[host].session.logout(now);
        }
        self.settle(now);
    }

    fn crash(&mut self, now: Instant) {
        let wires: Vec<u64> = self.wires.keys().copied().collect();
        for wire in wires {
            self.lose_target(now, wire);
        }
        self.tally.shard(self.shard.wire_stats());
        self.queue.retain(|_, step| !matches!(step, Step::Saved(..)));
        self.boot(now);
        self.boots_at =
            now.after(DurationRange::between(Duration::ZERO, Duration::from_secs(4)).pick(&mut self.rng));
        self.settle(now);
    }

    fn reload(&mut self, now: Instant, layout: Layout) {
        self.disks.want(layout);
        self.lay(now);
        self.settle(now);
    }

    fn data_held(&self) -> usize {
        self.shard.data_bytes()
    }

    fn trouble(&self) -> Instant {
        self.trouble
    }

    fn holds(&self) -> Option<String> {
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
        sessions + self.tally.bugs + self.tally.shard_bugs + self.shard.wire_stats().bugs
    }

    fn wrongs(&mut self) -> Vec<Broken> {
        self.wrongs.drain(..).map(|how| Broken::new(Property::Session, how)).collect()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut tally = self.tally.clone();
        self.hosts.iter().for_each(|host| tally.session(&host.session.stats()));
        tally.shard(self.shard.wire_stats());
        tally.into_counts()
    }

    fn tally(&self) -> String {
        let stats: Vec<_> = self.hosts.iter().map(|host| host.session.stats()).collect();
        format!("{:?} {:?} {stats:?}", self.tally, self.shard.wire_stats())
    }
}

fn ended(end: TaskResult, data: Vec<u8>) -> Ended {
    match end {
        TaskResult::Status(ending) => {
            let sense = ending.sense.map(|sense| sense.to_vec()).unwrap_or_default();
            Ended::Status { status: ending.status, sense, data }
        }
        TaskResult::Failed(_) => Ended::Failed,
        TaskResult::Aborted => Ended::Aborted,
        TaskResult::Rejected(_) | TaskResult::NotSent => Ended::Refused,
        TaskResult::Lost => Ended::Lost,
    }
}

fn address(portal: u8) -> core::net::SocketAddr {
    core::net::SocketAddr::from(([192, 0, 2, portal + 1], 3260))
}
