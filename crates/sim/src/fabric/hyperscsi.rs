//! HyperSCSI: session machines, Ethernets that fail, and a shard.

mod events;
mod fate;
mod host;
mod net;
mod rings;
mod shard;
mod tally;
mod watch;

use std::collections::{BTreeMap, VecDeque};

use base::buffer::Pool;
use base::ether::{FrameBatch, FrameMachine as _, ReceivedFrame};
use base::rng::Rng;
use base::state_machine::StreamMachine as _;
use base::time::{Duration, Instant};
use hyperscsi::initiator::contract::{Request, SessionPlan, TmfRequest};
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::command::{Cdb, ManageFunction, TaskAttribute};
use iscsi::target::engine::Limits as StreamLimits;
use netem::probability::DurationRange;
use target::config::UnitId;
use target::shard::Shard;

use super::disks::Disks;
use super::{Attribute, Fabric, Happening, Manage, Order, Ticket};
use crate::layout::Layout;
use crate::media::{Medium, scattered};
use crate::property::{Broken, Property};
use crate::scenario::{HyperPlan, Scenario};
use crate::trace::Trace;
use host::Host;
use net::{Come, Nets, Who};
use rings::Rings;
use tally::Tally;
use watch::Watch;

/// Sessions, Ethernets and a shard.
pub struct HyperScsi {
    scenario: Scenario,
    plan: HyperPlan,
    access: GroupAccess,
    disks: Disks,
    shard: Shard,
    shard_pool: Pool,
    /// Whether the target is there at all.
    powered: bool,
    /// The initiators, and strangers behind them.
    hosts: Vec<Host>,
    nets: Nets,
    rings: Rings,
    watch: Watch,
    queue: BTreeMap<(Instant, u64), Step>,
    number: u64,
    happenings: VecDeque<Happening>,
    trace: Trace,
    rng: Rng,
    /// What is over: of machines that are there, see their own counters.
    tally: Tally,
    bugs: u64,
    /// Whether nothing fails any more.
    healed: bool,
    trouble: Instant,
    /// Promises that were not kept.
    wrongs: Vec<String>,
}

enum Step {
    Saved(UnitId, u64),
    /// A session that gave up is begun anew.
    Restart(usize),
    /// The target is there again.
    Boot,
    /// Something begins that lasts until then.
    Trouble(Instant),
    /// The ports of a net, or only what lies between them, take frames of another length.
    Mtu {
        net: usize,
        mtu: usize,
        told: bool,
    },
    /// An initiator changes its keys.
    Rekey(usize),
    /// A host stands still until then.
    Sleep(Who, Instant),
    Wake(Who),
    /// An initiator is gone from one moment to the next, and begins anew.
    Die(usize),
}

/// How many rounds of events and frames one moment may have.
const SETTLES_WITHIN: u32 = 1_000_000;

impl HyperScsi {
    /// Makes a target and its initiators, which begin to look for it.
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
        let mut fabric = Self {
            shard: new_shard(&disks, plan, &access, &shard_pool),
            disks,
            nets: Nets::new(plan, scenario.initiators + plan.strangers, now, &mut rng),
            rings: Rings::new((plan.receive_slots / plan.ring_part).max(1)),
            watch: Watch::new(plan.keyed, plan.key_frames),
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
            tally: Tally::new(),
            bugs: 0,
            healed: false,
            trouble: now,
            wrongs: Vec::new(),
        };
        fabric.boot(now);
        for number in 0..scenario.initiators + plan.strangers {
            fabric.hosts.push(Host::new(now, fabric.plan_of(number)));
            fabric.plug(now, Who::Initiator(number));
        }
        fabric.foresee(now);
        fabric.settle(now);
        fabric
    }

    /// Returns what an initiator, or a stranger, wants.
    fn plan_of(&self, number: usize) -> SessionPlan {
        match number.checked_sub(self.scenario.initiators) {
            None => shard::session(&self.plan, number),
            Some(stranger) => shard::stranger(&self.plan, stranger),
        }
    }

    const fn is_stranger(&self, number: usize) -> bool {
        number >= self.scenario.initiators
    }

    /// Plans what will happen by itself.
    fn foresee(&mut self, now: Instant) {
        for (from, until) in self.nets.cuts() {
            self.plan(from, Step::Trouble(until));
        }
        for change in self.plan.mtu_changes.clone() {
            let step = Step::Mtu { net: change.net, mtu: change.mtu, told: change.told };
            self.plan(now.after(change.after), step);
        }
        for host in 0..self.scenario.initiators {
            for _ in 0..self.plan.rekeys {
                let after =
                    DurationRange::between(Duration::ZERO, Duration::from_millis(400)).pick(&mut self.rng);
                self.plan(now.after(after), Step::Rekey(host));
            }
        }
        for sleep in self.plan.sleeps.clone() {
            let who = match sleep.who % (self.scenario.initiators + 1) {
                0 => Who::Target,
                initiator => Who::Initiator(initiator - 1),
            };
            let from = now.after(sleep.after);
            self.plan(from, Step::Sleep(who, from.after(sleep.span)));
        }
        for death in self.plan.deaths.clone() {
            self.plan(now.after(death.after), Step::Die(death.who % self.scenario.initiators));
        }
    }

    fn boot(&mut self, now: Instant) {
        self.powered = true;
        self.shard = new_shard(&self.disks, &self.plan, &self.access, &self.shard_pool);
        self.disks.boot(now, &mut self.shard, &self.shard_pool);
        if self.scenario.reloads.is_some() {
            self.shard.apply(now, shard::config(&self.disks, &self.plan, self.access.clone()));
        }
        self.plug(now, Who::Target);
    }

    fn entropy(&mut self) -> [u8; 32] {
        let mut out = [0; 32];
        self.rng.fill(&mut out);
        out
    }

    /// Tells somebody of all ports it has.
    fn plug(&mut self, now: Instant, who: Who) {
        for net in 0..self.nets.len() {
            let (port, state) = self.nets.port(net, who);
            let entropy = self.entropy();
            match who {
                Who::Target => self.shard.port_up(now, port, &state, entropy),
                Who::Initiator(at) => self.hosts[at].session.port_up(now, port, &state, entropy),
            }
        }
    }

    fn plan(&mut self, at: Instant, step: Step) {
        self.number += 1;
        self.queue.insert((at, self.number), step);
    }

    fn step(&mut self, now: Instant, step: Step) {
        match step {
            Step::Saved(unit, ticket) => self.shard.state_saved(now, unit, ticket, true),
            Step::Restart(at) => {
                self.tally.one("sessions begun anew by their owners");
                self.replace(now, at);
            }
            Step::Boot => {
                self.trace.say(|| "the target is there again".into());
                self.trouble = self.trouble.max(now);
                self.boot(now);
            }
            Step::Trouble(until) => {
                self.trace.say(|| format!("something is cut until {:?}", Duration::from_nanos(until.0)));
                self.trouble = self.trouble.max(until);
            }
            Step::Mtu { net, mtu, told } => {
                self.trace.say(|| format!("net {net} takes frames of {mtu} bytes, ports told: {told}"));
                self.tally.one(if told {
                    "changes of the MTU, told"
                } else {
                    "changes of the MTU, not told"
                });
                self.trouble = self.trouble.max(now);
                self.nets.set_mtu(net, mtu, told, now);
                if told {
                    if self.powered {
                        self.plug(now, Who::Target);
                    }
                    (0..self.hosts.len()).for_each(|at| self.plug(now, Who::Initiator(at)));
                }
            }
            Step::Rekey(at) => {
                let changed = self.hosts[at].session.update_keys(now);
                self.trace.say(|| format!("initiator {at} changes its keys: {changed}"));
            }
            Step::Sleep(who, until) => {
                self.trace.say(|| format!("{who:?} stands still until {:?}", Duration::from_nanos(until.0)));
                self.tally.one("hosts that stood still");
                self.trouble = self.trouble.max(until);
                self.rings.sleep(who, until);
                self.plan(until, Step::Wake(who));
            }
            Step::Wake(who) => self.wake(now, who),
            Step::Die(at) => self.die(now, at),
        }
    }

    /// Moves events and frames until nothing is left to be done now.
    fn settle(&mut self, now: Instant) {
        for _ in 0..SETTLES_WITHIN {
            let mut busy = self.events(now);
            busy |= self.send(now);
            busy |= self.arrive(now);
            if !busy {
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
            let wrongs = self.hosts[at].live();
            self.wrongs.extend(wrongs);
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
            self.plan(now.after(delay), Step::Saved(request.unit, request.ticket));
        }
        while let Some(notice) = self.shard.poll_event() {
            self.trace.say(|| format!("target: {notice:?}"));
        }
        any
    }

    /// Puts onto the wires what the machines have to send.
    fn send(&mut self, now: Instant) -> bool {
        let (mut batch, mut any) = (FrameBatch::new(), false);
        while self.powered
            && !self.rings.is_asleep(Who::Target)
            && let Some(port) = self.shard.poll_port()
        {
            any = true;
            loop {
                self.shard.transmit_frames(now, port, &mut batch);
                if batch.is_empty() {
                    break;
                }
                let too_long = self.nets.send(now, Who::Target, port, &batch, &mut self.watch, &self.trace);
                batch.clear(&self.shard_pool);
                if too_long > 0 {
                    self.shard.frames_too_long(now, port, too_long);
                }
            }
        }
        for (at, host) in self.hosts.iter_mut().enumerate() {
            if self.rings.is_asleep(Who::Initiator(at)) {
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
                        self.nets.send(now, Who::Initiator(at), port, &batch, &mut self.watch, &self.trace);
                    batch.clear(&host.pool);
                    if too_long > 0 {
                        host.session.frames_too_long(now, port, too_long);
                    }
                }
            }
        }
        any
    }

    /// Hands over what has arrived.
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

    fn deliver(&mut self, now: Instant, mut come: Come) {
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
            Who::Target if self.powered => self.shard.frame_received(now, frame),
            Who::Target => return,
            Who::Initiator(at) => self.hosts[at].session.frame_received(now, frame),
        }
        if let Some(header) = header.filter(|_| self.refused(come.to) == before) {
            self.watch.took(come.to, &header);
        }
    }

    /// Returns how many frames somebody did not take so far.
    fn refused(&self, who: Who) -> u64 {
        match who {
            Who::Target => {
                let stats = self.shard.frame_stats();
                stats.refused_frames + stats.unknown_sids + stats.bad_frames
            }
            Who::Initiator(at) => {
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

impl Fabric for HyperScsi {
    fn submit(&mut self, now: Instant, initiator: usize, ticket: Ticket, order: Order) -> bool {
        let mut request = Request::new(u64::from(order.unit) << 48, Cdb::new(&order.cdb).unwrap());
        // Nothing is immediate here; the head of the queue comes close.
        request.attribute = match order.attribute {
            Attribute::Simple => TaskAttribute::SIMPLE,
            Attribute::Ordered => TaskAttribute::ORDERED,
            Attribute::HeadOfQueue => TaskAttribute::HEAD_OF_QUEUE,
        };
        request.data_out = scattered(&mut self.rng, &order.data_out);
        request.data_in_len = order.data_in_len;
        request.replay = order.replay;
        if matches!(order.cdb.first(), Some(0x16 | 0x17 | 0x5f)) {
            self.tally.one("reservation commands");
        }
        let host = &mut self.hosts[initiator];
        let Ok(task) = host.session.submit(now, request) else { return false };
        host.tasks.insert(task, ticket);
        host.tickets.insert(ticket, task);
        self.settle(now);
        true
    }

    fn manage(&mut self, now: Instant, initiator: usize, ticket: Ticket, function: Manage) -> bool {
        let host = &mut self.hosts[initiator];
        let on = |unit: u16| u64::from(unit) << 48;
        if let Manage::AbortTask(task) = function {
            host.aborting.insert(task);
        }
        let (function, lun, task) = match function {
            Manage::AbortTask(task) => (ManageFunction::ABORT_TASK, 0, Some(task)),
            Manage::QueryTask(task) => (ManageFunction::QUERY_TASK, 0, Some(task)),
            Manage::AbortTaskSet(unit) => (ManageFunction::ABORT_TASK_SET, on(unit), None),
            Manage::ClearTaskSet(unit) => (ManageFunction::CLEAR_TASK_SET, on(unit), None),
            Manage::UnitReset(unit) => (ManageFunction::LOGICAL_UNIT_RESET, on(unit), None),
            Manage::WarmReset => (ManageFunction::TARGET_WARM_RESET, 0, None),
            Manage::ColdReset => (ManageFunction::TARGET_COLD_RESET, 0, None),
        };
        let task = match task.map(|ticket| host.tickets.get(&ticket).copied()) {
            Some(None) => return false,
            Some(found) => found,
            None => None,
        };
        let Ok(id) = host.session.submit_tmf(now, TmfRequest { function, lun, task }) else { return false };
        host.manages.insert(id, ticket);
        self.settle(now);
        true
    }

    fn poll(&mut self) -> Option<Happening> {
        self.happenings.pop_front()
    }

    fn next(&self) -> Option<Instant> {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let awake = |(at, _): &(usize, &Host)| !self.rings.is_asleep(Who::Initiator(*at));
        let sessions = self.hosts.iter().enumerate().filter(awake);
        let sessions = sessions.filter_map(|(_, host)| host.session.poll_timeout());
        let shard = self.shard.poll_timeout().filter(|_| !self.rings.is_asleep(Who::Target));
        sessions.chain(self.nets.next()).chain(queued).chain(shard).min()
    }

    fn waits(&self) -> String {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let sessions: Vec<_> = self.hosts.iter().map(|host| host.session.poll_timeout()).collect();
        let (shard, nets) = (self.shard.poll_timeout(), self.nets.next());
        format!("shard {shard:?}, sessions {sessions:?}, nets {nets:?}, queue {queued:?}")
    }

    fn advance(&mut self, now: Instant) {
        self.disks.media_ready(now, &mut self.shard);
        self.lay(now);
        let awake = |who| !self.rings.is_asleep(who);
        if awake(Who::Target) && self.shard.poll_timeout().is_some_and(|at| at <= now) {
            self.shard.handle_timeout(now);
        }
        for (at, host) in self.hosts.iter_mut().enumerate() {
            if awake(Who::Initiator(at)) && host.session.poll_timeout().is_some_and(|at| at <= now) {
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
        let session = &mut self.hosts[initiator].session;
        // As the client library does. Its host has the LUNs open yet.
        if session.is_up() {
            session.relogin(now)
        } else {
            session.close(now)
        }
        self.settle(now);
    }

    fn heal(&mut self, now: Instant) {
        self.nets.heal();
        self.healed = true;
        for stranger in self.scenario.initiators..self.hosts.len() {
            self.hosts[stranger].session.close(now);
        }
        self.settle(now);
    }

    fn close(&mut self, now: Instant) {
        for host in self.hosts.iter_mut().take(self.scenario.initiators) {
            host.leaving = true;
            host.session.logout(now);
        }
        self.settle(now);
    }

    fn crash(&mut self, now: Instant) {
        let stats = *self.shard.frame_stats();
        self.bugs += stats.bugs;
        self.tally.engine(&stats);
        self.tally.one("losses of the target's power");
        self.rings.forget(Who::Target);
        self.queue.retain(|_, step| !matches!(step, Step::Saved(..) | Step::Boot));
        // What takes its place has no port before it boots.
        self.shard = new_shard(&self.disks, &self.plan, &self.access, &self.shard_pool);
        self.powered = false;
        let off =
            DurationRange::between(Duration::from_micros(1), Duration::from_secs(4)).pick(&mut self.rng);
        self.trouble = self.trouble.max(now.after(off));
        self.plan(now.after(off), Step::Boot);
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
        let (sessions, bytes) = (self.shard.frame_sessions(), self.shard.data_bytes());
        let held = (tasks > 0 || bytes > 0 || !sessions.is_empty())
            .then(|| format!("{tasks} tasks in the units, {bytes} bytes of data, {sessions:?}"));
        held.or_else(|| self.disks.left())
    }

    fn bugs(&self) -> u64 {
        let sessions: u64 = self.hosts.iter().map(|host| host.session.stats().bugs).sum();
        sessions + self.bugs + self.shard.frame_stats().bugs
    }

    fn wrongs(&mut self) -> Vec<Broken> {
        let wire = self.watch.wrongs.drain(..).map(|how| Broken::new(Property::Wire, how));
        let session = self.wrongs.drain(..).map(|how| Broken::new(Property::Session, how));
        wire.chain(session).collect()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut tally = self.tally.clone();
        self.nets.stats().iter().for_each(|stats| tally.wire(stats));
        self.hosts.iter().for_each(|host| tally.session(&host.session.stats()));
        tally.engine(self.shard.frame_stats());
        let [shared, parts, unread] = self.watch.shared;
        tally.add("frames of several parts", shared);
        tally.add("parts in them", parts);
        tally.add("frames whose parts cannot be read along", unread);
        tally.into_counts()
    }

    fn tally(&self) -> String {
        let stats: Vec<_> = self.hosts.iter().map(|host| host.session.stats()).collect();
        format!("{:?} {:?} {:?} {stats:?}", self.tally, self.nets.stats(), self.shard.frame_stats())
    }
}
