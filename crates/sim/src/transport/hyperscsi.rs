//! The HyperSCSI transport: initiator sessions, Ethernets that fail, and a shard as the target.

mod counters;
mod events;
mod host;
mod host_events;
mod net;
mod rings;
mod shard;
mod upgrade;
mod wire_monitor;

use ::shard::admin::ShardEvent;
use ::shard::shard::Shard;
use std::collections::{BTreeMap, VecDeque};
use target::units::UnitId;
use transport::command::{Cdb, TaskAttribute};
use transport::initiator::{InitiatorTransport as _, Request, TmfParameters};
use transport::task_management::TmfFunction;

use base::buffer::Pool;
use base::ether::{FrameBatch, FrameMachine as _, ReceivedFrame};
use base::rng::Rng;
use base::state_machine::StreamMachine as _;
use base::time::{Duration, Instant};
use hyperscsi::initiator::contract::SessionPlan;
use hyperscsi::login::directory::GroupAccess;
use iscsi::target::engine::Limits as StreamLimits;

use super::disks::Disks;
use super::{Attribute, ScsiCommand, TaskManagement, Ticket, Transport, TransportEvent};
use crate::layout::Layout;
use crate::media::{Medium, scattered};
use crate::property::{Property, PropertyViolation};
use crate::scenario::{HyperPlan, Scenario, Upgrade};
use crate::trace::Trace;
use counters::Counters;
use host::Host;
use net::{ArrivedFrame, Nets, Node};
use rings::Rings;
use wire_monitor::WireMonitor;

/// Initiator sessions, Ethernets and a shard.
pub struct HyperScsi {
    scenario: Scenario,
    plan: HyperPlan,
    access: GroupAccess,
    disks: Disks,
    shard: Shard,
    shard_pool: Pool,
    /// Whether the target runs.
    powered: bool,
    /// The initiators, followed by the strangers.
    hosts: Vec<Host>,
    nets: Nets,
    rings: Rings,
    watch: WireMonitor,
    queue: BTreeMap<(Instant, u64), Scheduled>,
    number: u64,
    happenings: VecDeque<TransportEvent>,
    trace: Trace,
    rng: Rng,
    /// The counters of sessions and shards that have ended. Those that still run have counters of their own.
    counters: Counters,
    bugs: u64,
    /// Whether fault injection has stopped.
    healed: bool,
    trouble: Instant,
    /// Promises that a session broke.
    violations: Vec<String>,
    /// The upgrade that is under way.
    upgrade: Option<upgrade::Upgrading>,
}

enum Scheduled {
    Saved(UnitId, u64),
    /// An initiator starts a new session after its session gave up.
    Restart(usize),
    /// The target starts again.
    Boot,
    /// A fault begins that lasts until this time.
    Trouble(Instant),
    /// The MTU changes: of the ports of a net, or only of a switch between them.
    Mtu {
        net: usize,
        mtu: usize,
        told: bool,
    },
    /// An initiator updates its keys.
    Rekey(usize),
    /// A host stands still until this time.
    Sleep(Node, Instant),
    Wake(Node),
    /// An initiator crashes and starts again.
    Crash(usize),
    /// An upgrade of the target begins; its end, if the target did not become idle; the end of the pause.
    Upgrade(Upgrade),
    GiveUp(u64),
    Thaw,
}

/// The bound on rounds of events and frames at one point in time.
const ROUNDS_MAX: u32 = 1_000_000;

impl HyperScsi {
    /// Makes a target and its initiators, which begin discovery.
    pub fn new(
        scenario: &Scenario,
        plan: &HyperPlan,
        media: Vec<Medium>,
        trace: Trace,
        now: Instant,
        seed: u64,
    ) -> Self {
        let (shard_pool, access) = (Pool::new(32 << 20), shard::access(plan));
        let mut rng = Rng::from_seed(seed);
        let disks = Disks::new(scenario, media);
        let mut transport = Self {
            shard: new_shard(&disks, plan, &access, &shard_pool),
            disks,
            nets: Nets::new(plan, scenario.initiators + plan.strangers, now, &mut rng),
            rings: Rings::new((plan.receive_slots / plan.ring_part).max(1)),
            watch: WireMonitor::new(plan.has_password, plan.key_frames),
            scenario: scenario.clone(),
            plan: plan.clone(),
            access,
            shard_pool,
            powered: true,
            hosts: Vec::new(),
            queue: BTreeMap::new(),
            number: 0,
            happenings: VecDeque::new(),
            trace,
            rng,
            counters: Counters::new(),
            bugs: 0,
            healed: false,
            trouble: now,
            violations: Vec::new(),
            upgrade: None,
        };
        transport.boot(now);
        for number in 0..scenario.initiators + plan.strangers {
            transport.hosts.push(Host::new(now, transport.plan_of(number)));
            transport.plug(now, Node::Initiator(number));
        }
        transport.schedule_faults(now);
        transport.run_until_idle(now);
        transport
    }

    /// Returns the session plan of an initiator or a stranger.
    fn plan_of(&self, number: usize) -> SessionPlan {
        match number.checked_sub(self.scenario.initiators) {
            None => shard::session(&self.plan, number),
            Some(stranger) => shard::stranger(&self.plan, stranger),
        }
    }

    const fn is_stranger(&self, number: usize) -> bool {
        number >= self.scenario.initiators
    }

    fn boot(&mut self, now: Instant) {
        self.powered = true;
        self.shard = new_shard(&self.disks, &self.plan, &self.access, &self.shard_pool);
        self.disks.boot(now, &mut self.shard, &self.shard_pool);
        if self.scenario.reloads.is_some() {
            self.shard.apply(now, shard::config(&self.disks, &self.plan, self.access.clone()));
        }
        self.plug(now, Node::Target);
    }

    fn entropy(&mut self) -> [u8; 32] {
        let mut out = [0; 32];
        self.rng.fill(&mut out);
        out
    }

    /// Reports all of its ports to a host.
    fn plug(&mut self, now: Instant, who: Node) {
        for net in 0..self.nets.len() {
            let (port, state) = self.nets.port(net, who);
            let entropy = self.entropy();
            match who {
                Node::Target => self.shard.port_up(now, port, &state, entropy),
                Node::Initiator(at) => self.hosts[at].session.port_up(now, port, &state, entropy),
            }
        }
    }

    fn schedule(&mut self, at: Instant, step: Scheduled) {
        self.number += 1;
        self.queue.insert((at, self.number), step);
    }

    fn run_scheduled(&mut self, now: Instant, step: Scheduled) {
        match step {
            Scheduled::Saved(unit, ticket) => self.shard.state_saved(now, unit, ticket, true),
            Scheduled::Restart(at) => {
                self.counters.one("sessions begun anew by their owners");
                self.replace(now, at);
            }
            Scheduled::Boot => {
                self.trace.say(|| "the target is there again".into());
                self.trouble = self.trouble.max(now);
                self.boot(now);
            }
            Scheduled::Trouble(until) => {
                self.trace.say(|| format!("something is cut until {:?}", Duration::from_nanos(until.0)));
                self.trouble = self.trouble.max(until);
            }
            Scheduled::Mtu { net, mtu, told } => {
                self.trace.say(|| format!("net {net} takes frames of {mtu} bytes, ports told: {told}"));
                self.counters.one(if told {
                    "changes of the MTU, told"
                } else {
                    "changes of the MTU, not told"
                });
                self.trouble = self.trouble.max(now);
                self.nets.set_mtu(net, mtu, told, now);
                if told {
                    if self.powered {
                        self.plug(now, Node::Target);
                    }
                    (0..self.hosts.len()).for_each(|at| self.plug(now, Node::Initiator(at)));
                }
            }
            Scheduled::Rekey(at) => {
                let changed = self.hosts[at].session.update_keys(now);
                self.trace.say(|| format!("initiator {at} changes its keys: {changed}"));
            }
            Scheduled::Sleep(who, until) => {
                self.trace.say(|| format!("{who:?} stands still until {:?}", Duration::from_nanos(until.0)));
                self.counters.one("hosts that stood still");
                self.trouble = self.trouble.max(until);
                self.rings.sleep(who, until);
                self.schedule(until, Scheduled::Wake(who));
            }
            Scheduled::Wake(who) => self.wake(now, who),
            Scheduled::Crash(at) => self.crash_host(now, at),
            Scheduled::Upgrade(plan) => self.begin_upgrade(now, plan),
            Scheduled::GiveUp(number) => self.give_up_upgrade(now, number),
            Scheduled::Thaw => self.thaw(now),
        }
    }

    /// Processes events and moves frames until nothing more is due now.
    fn run_until_idle(&mut self, now: Instant) {
        for _ in 0..ROUNDS_MAX {
            let mut busy = self.events(now);
            busy |= self.send(now);
            busy |= self.arrive(now);
            if !busy && !self.move_if_idle(now) {
                return;
            }
        }
        panic!("the machines keep each other busy without time passing");
    }

    fn events(&mut self, now: Instant) -> bool {
        let mut any = false;
        for at in 0..self.hosts.len() {
            while let Some(job) = self.hosts[at].session.poll_job() {
                any = true;
                self.hosts[at].session.job_done(now, job.run());
            }
            while let Some(event) = self.hosts[at].session.poll_event() {
                any = true;
                self.event(now, at, event);
            }
            let violations = self.hosts[at].end_round();
            self.violations.extend(violations);
            while self.hosts[at].session.entropy_wanted() > 0 {
                let entropy = self.entropy();
                self.hosts[at].session.add_entropy(entropy);
            }
        }
        while self.shard.entropy_wanted() > 0 {
            let entropy = self.entropy();
            self.shard.add_entropy(entropy);
        }
        while let Some(request) = self.shard.poll_save() {
            any = true;
            self.disks.save(request.unit, request.state);
            let delay = Duration::from_micros(self.rng.below(2000));
            self.schedule(now.after(delay), Scheduled::Saved(request.unit, request.ticket));
        }
        self.handle_notices();
        any
    }

    /// Handles what the shard tells its operator.
    fn handle_notices(&mut self) {
        while let Some(notice) = self.shard.poll_event() {
            self.trace.say(|| format!("target: {notice:?}"));
            let (initiator, ended) = match &notice {
                ShardEvent::HyperScsiSessionUp { initiator, .. } => (initiator, false),
                ShardEvent::HyperScsiSessionDown { initiator, .. } => (initiator, true),
                _ => continue,
            };
            let hosts = self.hosts.iter_mut().enumerate();
            for (_, host) in hosts.filter(|(at, _)| crate::units::initiator(*at) == *initiator) {
                host.ended_by_target = ended;
            }
        }
    }

    /// Sends all frames that the state machines have ready.
    fn send(&mut self, now: Instant) -> bool {
        let (mut batch, mut any) = (FrameBatch::new(), false);
        while self.powered
            && !self.rings.is_asleep(Node::Target)
            && let Some(port) = self.shard.poll_port()
        {
            any = true;
            loop {
                self.shard.transmit_frames(now, port, &mut batch);
                if batch.is_empty() {
                    break;
                }
                let too_long = self.nets.send(now, Node::Target, port, &batch, &mut self.watch, &self.trace);
                batch.clear(&self.shard_pool);
                if too_long > 0 {
                    self.shard.frames_too_long(now, port, too_long);
                }
            }
        }
        for (at, host) in self.hosts.iter_mut().enumerate() {
            if self.rings.is_asleep(Node::Initiator(at)) {
                continue;
            }
            while let Some(port) = host.session.poll_port() {
                any = true;
                loop {
                    host.session.transmit_frames(now, port, &mut batch);
                    if batch.is_empty() {
                        break;
                    }
                    let too_long =
                        self.nets.send(now, Node::Initiator(at), port, &batch, &mut self.watch, &self.trace);
                    batch.clear(&host.pool);
                    if too_long > 0 {
                        host.session.frames_too_long(now, port, too_long);
                    }
                }
            }
        }
        any
    }

    /// Delivers all frames that have arrived.
    fn arrive(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(come) = self.nets.poll(now) {
            any = true;
            if self.rings.is_asleep(come.to) {
                self.rings.keep(come);
            } else {
                self.deliver(now, come);
            }
        }
        any
    }

    fn deliver(&mut self, now: Instant, mut come: ArrivedFrame) {
        let header = hyperscsi::frame::Header::parse(&come.payload).ok().map(|(header, _)| header);
        let header = header.filter(|header| header.sid != 0 && !come.group);
        let before = self.refused(come.to);
        let frame = ReceivedFrame {
            port: come.port,
            source: come.source,
            group: come.group,
            age: Duration::ZERO,
            payload: &mut come.payload,
        };
        match come.to {
            Node::Target if self.powered => self.shard.frame_received(now, frame),
            Node::Target => return,
            Node::Initiator(at) => self.hosts[at].session.frame_received(now, frame),
        }
        if let Some(header) = header.filter(|_| self.refused(come.to) == before) {
            self.watch.took(come.to, &header);
        }
    }

    /// Returns how many frames a host has refused so far.
    fn refused(&self, who: Node) -> u64 {
        match who {
            Node::Target => {
                let stats = self.shard.frame_stats();
                stats.refused_frames + stats.unknown_sids + stats.bad_frames
            }
            Node::Initiator(at) => {
                let stats = self.hosts[at].session.stats();
                stats.refused_frames + stats.strays + stats.bad_frames
            }
        }
    }
}

fn new_shard(disks: &Disks, plan: &HyperPlan, access: &GroupAccess, pool: &Pool) -> Shard {
    let config = shard::config(disks, plan, access.clone());
    let mut shard = Shard::new(config, StreamLimits::default(), pool.clone());
    shard.limit_frames(shard::limits(plan), pool.clone());
    shard
}

impl Transport for HyperScsi {
    fn submit(&mut self, now: Instant, initiator: usize, ticket: Ticket, order: ScsiCommand) -> bool {
        let mut request = Request::new(u64::from(order.unit) << 48, Cdb::new(&order.cdb).unwrap());
        // Commands are never immediate in HyperSCSI; HEAD OF QUEUE is the closest substitute.
        request.attribute = match order.attribute {
            Attribute::Simple => TaskAttribute::SIMPLE,
            Attribute::Ordered => TaskAttribute::ORDERED,
            Attribute::HeadOfQueue => TaskAttribute::HEAD_OF_QUEUE,
        };
        request.data_out = scattered(&mut self.rng, &order.data_out);
        request.data_in_len = order.data_in_len;
        request.replay = order.replay;
        if matches!(order.cdb.first(), Some(0x16 | 0x17 | 0x5f)) {
            self.counters.one("reservation commands");
        }
        let host = &mut self.hosts[initiator];
        let Ok(task) = host.session.submit(now, request) else { return false };
        host.tasks.insert(task, (ticket, order.data_in_len));
        host.tickets.insert(ticket, task);
        self.run_until_idle(now);
        true
    }

    fn task_management(&mut self, now: Instant, index: usize, ticket: Ticket, tmf: TaskManagement) -> bool {
        let host = &mut self.hosts[index];
        let on = |unit: u16| u64::from(unit) << 48;
        if let TaskManagement::AbortTask(task) = tmf {
            host.aborting.insert(task);
        }
        let (function, lun, task) = match tmf {
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
        let awake = |(at, _): &(usize, &Host)| !self.rings.is_asleep(Node::Initiator(*at));
        let sessions = self.hosts.iter().enumerate().filter(awake);
        let sessions = sessions.filter_map(|(_, host)| host.session.poll_timeout());
        let shard = self.shard.poll_timeout().filter(|_| !self.rings.is_asleep(Node::Target));
        sessions.chain(self.nets.next()).chain(queued).chain(shard).min()
    }

    fn pending_deadlines(&self) -> String {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let sessions: Vec<_> = self.hosts.iter().map(|host| host.session.poll_timeout()).collect();
        let (shard, nets) = (self.shard.poll_timeout(), self.nets.next());
        format!("shard {shard:?}, sessions {sessions:?}, nets {nets:?}, queue {queued:?}")
    }

    fn advance(&mut self, now: Instant) {
        self.disks.media_ready(now, &mut self.shard);
        self.apply_layout(now);
        let awake = |who| !self.rings.is_asleep(who);
        if awake(Node::Target) && self.shard.poll_timeout().is_some_and(|at| at <= now) {
            self.shard.handle_timeout(now);
        }
        for (at, host) in self.hosts.iter_mut().enumerate() {
            if awake(Node::Initiator(at)) && host.session.poll_timeout().is_some_and(|at| at <= now) {
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
    }

    fn reset_nexus(&mut self, now: Instant, initiator: usize) {
        let session = &mut self.hosts[initiator].session;
        // The client library does the same. The host still has its LUNs open.
        if session.is_up() {
            session.rebuild_session(now)
        } else {
            session.close(now)
        }
        self.run_until_idle(now);
    }

    fn stop_faults(&mut self, now: Instant) {
        self.nets.heal();
        self.healed = true;
        for stranger in self.scenario.initiators..self.hosts.len() {
            self.hosts[stranger].session.close(now);
        }
        self.run_until_idle(now);
    }

    fn close(&mut self, now: Instant) {
        for host in self.hosts.iter_mut().take(self.scenario.initiators) {
            host.leaving = true;
            host.session.logout(now);
        }
        self.run_until_idle(now);
    }

    fn crash(&mut self, now: Instant) {
        self.power_off(now);
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
        let (sessions, bytes) = (self.shard.frame_sessions(), self.shard.data_bytes());
        let held = (tasks > 0 || bytes > 0 || !sessions.is_empty())
            .then(|| format!("{tasks} tasks in the units, {bytes} bytes of data, {sessions:?}"));
        held.or_else(|| self.disks.left())
    }

    fn bugs(&self) -> u64 {
        let sessions: u64 = self.hosts.iter().map(|host| host.session.stats().bugs).sum();
        sessions + self.bugs + self.shard.frame_stats().bugs
    }

    fn take_violations(&mut self) -> Vec<PropertyViolation> {
        let wire = self.watch.violations.drain(..).map(|how| PropertyViolation::new(Property::Wire, how));
        let session = self.violations.drain(..).map(|how| PropertyViolation::new(Property::Session, how));
        wire.chain(session).collect()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.counters.clone();
        self.nets.stats().iter().for_each(|stats| counters.wire(stats));
        self.hosts.iter().for_each(|host| counters.session(&host.session.stats()));
        counters.engine(self.shard.frame_stats());
        let [shared, parts, unread] = self.watch.shared;
        counters.add("frames of several parts", shared);
        counters.add("parts in them", parts);
        counters.add("frames whose parts cannot be read along", unread);
        counters.into_counts()
    }

    fn summary(&self) -> String {
        let stats: Vec<_> = self.hosts.iter().map(|host| host.session.stats()).collect();
        format!("{:?} {:?} {:?} {stats:?}", self.counters, self.nets.stats(), self.shard.frame_stats())
    }
}
