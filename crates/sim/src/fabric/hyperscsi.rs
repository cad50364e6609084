//! HyperSCSI: session machines, Ethernets that fail, and a shard.

mod host;
mod net;
mod shard;

use std::collections::{BTreeMap, VecDeque};

use base::buffer::Pool;
use base::ether::{FrameBatch, FrameMachine as _, Received};
use base::machine::StreamMachine as _;
use base::rng::Rng;
use base::time::{Duration, Instant};
use hyperscsi::initiator::contract::{Down, End, Event, Lost, Management, Request};
use hyperscsi::login::directory::Access;
use hyperscsi::pdu::command::{Cdb, ManageFunction, TaskAttribute};
use hyperscsi::pdu::reply::ManageResult;
use iscsi::target::engine::Limits as StreamLimits;
use netem::odds::Span;
use target::config::UnitId;
use target::shard::Shard;

use super::{Attribute, Ended, Fabric, Happening, Manage, Order, Ticket};
use crate::house;
use crate::media::{Medium, scattered};
use crate::scenario::{HyperPlan, Scenario};
use crate::trace::Trace;
use host::Host;
use net::{Nets, Who};

/// Sessions, Ethernets and a shard.
pub struct HyperScsi {
    scenario: Scenario,
    plan: HyperPlan,
    access: Access,
    media: Vec<Medium>,
    saved: Vec<Option<Vec<u8>>>,
    shard: Shard,
    shard_pool: Pool,
    /// Whether the target is there at all.
    powered: bool,
    hosts: Vec<Host>,
    nets: Nets,
    queue: BTreeMap<(Instant, u64), Step>,
    number: u64,
    happenings: VecDeque<Happening>,
    trace: Trace,
    rng: Rng,
    tally: Tally,
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
}

/// How many rounds of events and frames one moment may have.
const SETTLES_WITHIN: u32 = 1_000_000;

/// What happened, for people.
#[derive(Debug, Default)]
struct Tally {
    restarts: u64,
    losses: u64,
    rekeys: u64,
    paths_up: u64,
    paths_down: u64,
    bugs: u64,
}

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
        let mut fabric = Self {
            shard: new_shard(scenario, plan, &access, &shard_pool),
            nets: Nets::new(plan, scenario.initiators, now, &mut rng),
            scenario: scenario.clone(),
            plan: plan.clone(),
            access,
            saved: vec![None; media.len()],
            media,
            shard_pool,
            powered: true,
            hosts: Vec::new(),
            queue: BTreeMap::new(),
            number: 0,
            happenings: VecDeque::new(),
            trace,
            rng,
            tally: Tally::default(),
            trouble: now,
            wrongs: Vec::new(),
        };
        fabric.boot(now);
        for number in 0..scenario.initiators {
            fabric.hosts.push(Host::new(now, shard::session(plan, number)));
            fabric.plug(now, Who::Initiator(number));
        }
        fabric.foresee(now);
        fabric.settle(now);
        fabric
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
                let after = Span::between(Duration::ZERO, Duration::from_millis(400)).pick(&mut self.rng);
                self.plan(now.after(after), Step::Rekey(host));
            }
        }
    }

    fn boot(&mut self, now: Instant) {
        self.powered = true;
        self.shard = new_shard(&self.scenario, &self.plan, &self.access, &self.shard_pool);
        for (number, (medium, saved)) in (0..).zip(self.media.iter().zip(&self.saved)) {
            let unit =
                house::unit(number, self.scenario.block_size, medium, saved.as_deref(), &self.shard_pool);
            assert!(self.shard.add_unit(now, UnitId(number.into()), unit));
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
            Step::Saved(unit, ticket) => self.shard.saved(now, unit, ticket, true),
            Step::Restart(at) => {
                self.tally.restarts += 1;
                let fresh = Host::new(now, shard::session(&self.plan, at));
                let old = std::mem::replace(&mut self.hosts[at], fresh);
                self.tally.bugs += old.session.stats().bugs;
                self.plug(now, Who::Initiator(at));
                if old.leaving {
                    self.hosts[at].leaving = true;
                    self.hosts[at].session.logout(now);
                }
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
                self.tally.rekeys += u64::from(changed);
                self.trace.say(|| format!("initiator {at} changes its keys: {changed}"));
            }
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
                self.hosts[at].session.stir(entropy);
            }
        }
        while self.shard.entropy_wanted() > 0 {
            let entropy = self.entropy();
            self.shard.stir(entropy);
        }
        while let Some(request) = self.shard.poll_save() {
            any = true;
            self.saved[usize::try_from(request.unit.0).unwrap()] = Some(request.state);
            let delay = Duration::from_micros(self.rng.below(2000));
            self.plan(now.after(delay), Step::Saved(request.unit, request.ticket));
        }
        while let Some(notice) = self.shard.poll_notice() {
            self.trace.say(|| format!("target: {notice:?}"));
        }
        any
    }

    /// Puts onto the wires what the machines have to send.
    fn send(&mut self, now: Instant) -> bool {
        let (mut batch, mut any) = (FrameBatch::new(), false);
        while self.powered
            && let Some(port) = self.shard.poll_port()
        {
            any = true;
            loop {
                self.shard.transmit_frames(now, port, &mut batch);
                if batch.is_empty() {
                    break;
                }
                let too_long = self.nets.send(now, Who::Target, port, &batch, &self.trace);
                batch.clear(&self.shard_pool);
                if too_long > 0 {
                    self.shard.frames_too_long(now, port, too_long);
                }
            }
        }
        for (at, host) in self.hosts.iter_mut().enumerate() {
            while let Some(port) = host.session.poll_port() {
                any = true;
                loop {
                    host.session.transmit_frames(now, port, &mut batch);
                    if batch.is_empty() {
                        break;
                    }
                    let too_long = self.nets.send(now, Who::Initiator(at), port, &batch, &self.trace);
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
        while let Some(mut come) = self.nets.poll(now) {
            any = true;
            let frame = Received {
                port: come.port,
                source: come.source,
                group: come.group,
                payload: &mut come.payload,
            };
            match come.to {
                Who::Target if self.powered => self.shard.frame(now, frame),
                Who::Target => {}
                Who::Initiator(at) => self.hosts[at].session.frame(now, frame),
            }
        }
        any
    }

    fn event(&mut self, now: Instant, at: usize, event: Event) {
        match event {
            Event::Up(up) => {
                self.trace.say(|| format!("initiator {at} is up: {up:?}"));
                self.trouble = self.trouble.max(now);
                self.hosts[at].excused = true;
                if up.authenticated != self.plan.keyed {
                    self.wrongs.push(format!("initiator {at} is up, authenticated: {}", up.authenticated));
                }
                self.happenings.push_back(Happening::Up { initiator: at, fresh: true });
            }
            Event::PathUp { port, peer } => {
                self.tally.paths_up += 1;
                self.trace.say(|| format!("initiator {at} has a path from {port:?} to {peer}"));
            }
            Event::PathDown { port, peer } => {
                self.tally.paths_down += 1;
                self.trouble = self.trouble.max(now);
                self.trace.say(|| format!("initiator {at} has lost its path from {port:?} to {peer}"));
            }
            Event::Recovering(why) => {
                self.trace.say(|| format!("initiator {at} recovers: {why}"));
                self.lost(now, at, why);
                self.happenings.push_back(Happening::Down { initiator: at, last: false });
            }
            Event::Down(why) => self.down(now, at, why),
            Event::Done { task, outcome } => {
                let Some(ticket) = self.hosts[at].tasks.remove(&task) else {
                    panic!("a task ended that is not open, or ended before: {outcome:?}");
                };
                self.hosts[at].tickets.remove(&ticket);
                let wrong = self.hosts[at].ended(ticket, &outcome.end, self.scenario.aborts());
                self.wrongs.extend(wrong);
                let data = outcome.data_in.as_ref().map(|data| data.to_vec()).unwrap_or_default();
                if let Some(data) = outcome.data_in {
                    self.hosts[at].pool.recycle(data);
                }
                let ended = ended(outcome.end, data);
                self.happenings.push_back(Happening::Ended { initiator: at, ticket, ended });
            }
            Event::Managed { id, result } => {
                let Some(ticket) = self.hosts[at].manages.remove(&id) else {
                    panic!("a management request was answered that is not open, or was answered before");
                };
                let answer =
                    result.map(|result| matches!(result, ManageResult::COMPLETE | ManageResult::SUCCEEDED));
                self.happenings.push_back(Happening::Managed { initiator: at, ticket, answer });
            }
        }
    }

    /// A session is lost: whether it may be depends on what was done to it.
    fn lost(&mut self, now: Instant, at: usize, why: Lost) {
        self.trouble = self.trouble.max(now);
        self.tally.losses += 1;
        self.hosts[at].excused = true;
        let wrong = match why {
            Lost::Misbehaved(_) => true,
            Lost::PathLost | Lost::Forgotten => !self.plan.has_cuts() && self.scenario.crashes == 0,
            _ => false,
        };
        if wrong {
            self.wrongs.push(format!("initiator {at} lost its session, and nothing explains it: {why}"));
        }
    }

    /// A session is over: its owner begins a new one, unless it wanted the end.
    fn down(&mut self, now: Instant, at: usize, why: Down) {
        self.trace.say(|| format!("initiator {at} is down: {why}"));
        if let Down::NoPath(why) | Down::Hopeless(why) = why {
            self.lost(now, at, why);
        }
        self.trouble = self.trouble.max(now);
        let host = &mut self.hosts[at];
        assert!(host.tasks.is_empty(), "a session went down with tasks that were not reported");
        assert!(host.manages.is_empty(), "a session went down with requests that were not reported");
        host.excused = true;
        let last = host.leaving;
        self.happenings.push_back(Happening::Down { initiator: at, last });
        if !last {
            let delay = Duration::from_millis(1 + self.rng.below(3000));
            self.plan(now.after(delay), Step::Restart(at));
        }
    }
}

fn new_shard(scenario: &Scenario, plan: &HyperPlan, access: &Access, pool: &Pool) -> Shard {
    let config = shard::config(scenario, plan, access.clone());
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
        let Ok(id) = host.session.manage(now, Management { function, lun, task }) else { return false };
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
        sessions.chain(self.nets.next()).chain(queued).chain(self.shard.poll_timeout()).min()
    }

    fn waits(&self) -> String {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let sessions: Vec<_> = self.hosts.iter().map(|host| host.session.poll_timeout()).collect();
        let (shard, nets) = (self.shard.poll_timeout(), self.nets.next());
        format!("shard {shard:?}, sessions {sessions:?}, nets {nets:?}, queue {queued:?}")
    }

    fn advance(&mut self, now: Instant) {
        for (number, medium) in (0..).zip(self.media.clone()) {
            if medium.next().is_some_and(|at| at <= now) {
                self.shard.medium_ready(now, base::machine::MediumId(number));
            }
        }
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
        self.nets.heal();
    }

    fn close(&mut self, now: Instant) {
        for host in &mut self.hosts {
            host.leaving = true;
            host.session.logout(now);
        }
        self.settle(now);
    }

    fn crash(&mut self, now: Instant) {
        self.tally.bugs += self.shard.frame_stats().bugs;
        self.queue.retain(|_, step| !matches!(step, Step::Saved(..) | Step::Boot));
        // What takes its place has no port before it boots.
        self.shard = new_shard(&self.scenario, &self.plan, &self.access, &self.shard_pool);
        self.powered = false;
        let off = Span::between(Duration::from_micros(1), Duration::from_secs(4)).pick(&mut self.rng);
        self.trouble = self.trouble.max(now.after(off));
        self.plan(now.after(off), Step::Boot);
        self.settle(now);
    }

    fn trouble(&self) -> Instant {
        self.trouble
    }

    fn holds(&self) -> Option<String> {
        let tasks: u64 = self.shard.units().iter().map(|unit| unit.stats.tasks).sum();
        let (sessions, bytes) = (self.shard.frame_sessions(), self.shard.data_bytes());
        (tasks > 0 || bytes > 0 || !sessions.is_empty())
            .then(|| format!("{tasks} tasks in the units, {bytes} bytes of data, {sessions:?}"))
    }

    fn bugs(&self) -> u64 {
        let sessions: u64 = self.hosts.iter().map(|host| host.session.stats().bugs).sum();
        sessions + self.tally.bugs + self.shard.frame_stats().bugs
    }

    fn wrongs(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wrongs)
    }

    fn tally(&self) -> String {
        let stats: Vec<_> = self.hosts.iter().map(|host| host.session.stats()).collect();
        format!("{:?} {:?} {:?} {stats:?}", self.tally, self.nets.stats(), self.shard.frame_stats())
    }
}

fn ended(end: End, data: Vec<u8>) -> Ended {
    match end {
        End::Status(ending) => {
            let sense = ending.sense.map(|sense| sense.to_vec()).unwrap_or_default();
            Ended::Status { status: ending.status, sense, data }
        }
        End::Failed => Ended::Failed,
        End::Aborted => Ended::Aborted,
        End::NotSent => Ended::Refused,
        End::Lost => Ended::Lost,
    }
}
