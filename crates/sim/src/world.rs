//! A run: the loop, the deadlines, the verdict.

use std::collections::BTreeMap;
use std::fmt;

use base::rng::Rng;
use base::time::{Duration, Instant};
use base::units::Lba;
use oracle::block_header::DeviceId;
use oracle::order::{Attribute as TaskAttribute, TaskPosition};

use crate::desk::Desk;
use crate::fabric::direct::Direct;
use crate::fabric::hyperscsi::HyperScsi;
use crate::fabric::iscsi::Iscsi;
use crate::fabric::{Attribute, Ended, Fabric, Happening, Manage, Order, Ticket};
use crate::media::{Clock, Medium};
use crate::property::{Broken, Property};
use crate::scenario::{Scenario, Transport, pick};
use crate::trace::Trace;
use crate::views::Views;
use crate::workload::Workload;

mod lines;
mod special;

use lines::{describe, summary};
use special::Harmed;

/// After this long an initiator loses patience with an order and aborts it, as block layers do.
const PATIENCE: Duration = Duration::from_secs(30);

/// After this long an initiator loses patience with task management and ends its nexus.
const MANAGES_WITHIN: Duration = Duration::from_secs(60);

/// After this long without an end, an order hangs.
const HANGS_AFTER: Duration = Duration::from_secs(600);

/// How long the end of a run may take once nothing fails any more.
const SETTLES_WITHIN: Duration = Duration::from_secs(1200);

/// How many moments a run may have: a hundred times what an eventful one takes.
const STEPS_MAX: u64 = 3_000_000;

/// How long things may fail, in the world.
const FAILS_FOR: Duration = Duration::from_secs(120);

/// What went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that shows it.
    pub seed: u64,
    /// What it is.
    pub what: Vec<Broken>,
    /// When.
    pub at: Instant,
    /// What happened before, the last lines of it.
    pub trace: Vec<String>,
}

/// What a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The hash of everything that happened.
    pub hash: u64,
    /// How orders ended: done, failed, refused, unknown.
    pub ends: [u64; 4],
    /// How many blocks were judged.
    pub judged: u64,
    /// How long it took, in the world.
    pub took: Duration,
    /// How often each thing happened, where the fabric counts that.
    pub counts: Vec<(&'static str, u64)>,
    /// What the fabric did.
    pub tally: String,
}

/// A world.
pub struct World {
    scenario: Scenario,
    clock: Clock,
    media: Vec<Medium>,
    fabric: Box<dyn Fabric>,
    desk: Desk,
    actors: Vec<Actor>,
    open: BTreeMap<Ticket, Open>,
    managing: BTreeMap<Ticket, Managing>,
    next_ticket: u64,
    rng: Rng,
    trace: Trace,
    crashes: Vec<Instant>,
    steps: u64,
    failures: Vec<Broken>,
    /// What initiators know where reloads change LUNs.
    views: Option<Views>,
    harmed: Harmed,
    /// How often each thing happened, of what no transport counts.
    counts: BTreeMap<&'static str, u64>,
}

/// An initiator, as the world sees it.
struct Actor {
    workload: Workload,
    orders_left: u64,
    open: usize,
    /// Counts the nexuses it has had.
    epoch: u64,
    up: bool,
    gone: bool,
    /// When it sends next.
    next: Instant,
}

struct Managing {
    initiator: usize,
    since: Instant,
    /// When its initiator gives up.
    patience: Instant,
}

struct Open {
    initiator: usize,
    unit: u16,
    since: Instant,
    /// When its initiator asks for its end, again.
    patience: Instant,
    immediate: bool,
}

/// Runs the world of a scenario.
///
/// # Errors
/// What went wrong, if anything did.
pub fn run(scenario: &Scenario, trace: &Trace) -> Result<Report, Failure> {
    World::new(scenario, trace).run()
}

impl World {
    fn new(scenario: &Scenario, trace: &Trace) -> Self {
        let mut rng = Rng::from_seed(scenario.seed);
        let clock = Clock::default();
        let start = Instant(1_000_000_000);
        clock.set(start);
        let media: Vec<Medium> = (0..scenario.units)
            .map(|_| Medium::new(scenario.medium, clock.clone(), rng.next_u64()))
            .collect();
        let devices = (0..scenario.units).map(|_| DeviceId(rng.next_u64())).collect();
        let fabric: Box<dyn Fabric> = match &scenario.transport {
            Transport::Direct => {
                Box::new(Direct::new(scenario, media.clone(), trace.clone(), start, rng.next_u64()))
            }
            Transport::Iscsi(plan) => {
                Box::new(Iscsi::new(scenario, plan, media.clone(), trace.clone(), start, rng.next_u64()))
            }
            Transport::HyperScsi(plan) => {
                Box::new(HyperScsi::new(scenario, plan, media.clone(), trace.clone(), start, rng.next_u64()))
            }
        };
        let actor = |initiator| Actor {
            workload: Workload::new(scenario, initiator, scenario.seed.wrapping_add(17 + initiator as u64)),
            orders_left: scenario.orders,
            open: 0,
            epoch: 0,
            up: false,
            gone: false,
            next: start,
        };
        let span = Duration::from_millis(300);
        let mut crashes: Vec<Instant> = (0..scenario.crashes)
            .map(|_| {
                start.after(netem::probability::DurationRange::between(Duration::ZERO, span).pick(&mut rng))
            })
            .collect();
        crashes.sort_unstable_by(|a, b| b.cmp(a));
        let tears = scenario.medium.volatile && scenario.medium.block_len > oracle::block_header::SECTOR;
        let mut desk = Desk::new(devices, scenario.medium.block_len, tears);
        if scenario.reserves_one_in > 0 {
            desk.watch_reservations();
            media.iter().for_each(Medium::watch);
        }
        if scenario.medium.harm.is_some() {
            desk.expect_harm();
        }
        Self {
            desk,
            actors: (0..scenario.initiators).map(actor).collect(),
            scenario: scenario.clone(),
            clock,
            media,
            fabric,
            open: BTreeMap::new(),
            managing: BTreeMap::new(),
            next_ticket: 0,
            rng,
            trace: trace.clone(),
            crashes,
            steps: 0,
            failures: Vec::new(),
            views: special::views_of(scenario, start),
            harmed: Harmed::default(),
            counts: special::nothing_counted(),
        }
    }

    fn run(mut self) -> Result<Report, Failure> {
        let start = self.clock.now();
        self.settle();
        while self.failures.is_empty() && self.is_busy() && self.clock.now().since(start) < FAILS_FOR {
            self.step();
        }
        self.trace.say(|| "nothing fails from now on".into());
        self.fabric.heal(self.clock.now());
        self.media.iter().for_each(Medium::heal);
        self.end_reloads(self.clock.now());
        let limit = self.clock.now().after(SETTLES_WITHIN);
        while self.failures.is_empty() && (self.is_busy() || !self.open.is_empty()) {
            self.step();
            self.bound(limit);
        }
        self.return_memory();
        self.leave();
        if self.failures.is_empty() {
            self.inspect();
        }
        if self.failures.is_empty() {
            self.judge_names();
        }
        self.verdict(start)
    }

    fn is_busy(&self) -> bool {
        self.actors.iter().any(|actor| !actor.gone && actor.orders_left > 0)
    }

    /// Moves time to the next thing that happens.
    fn step(&mut self) {
        let now = self.clock.now();
        let sends = self.actors.iter().filter(|actor| self.may_send(actor)).map(|actor| actor.next);
        let oldest = self.open.values().map(|open| open.patience).min();
        let managing = self.managing.values();
        let unanswered = managing.clone().map(|open| open.patience).min();
        let hangs = self.open.values().map(|open| open.since).chain(managing.map(|open| open.since)).min();
        let next = (self.media.iter().filter_map(Medium::next))
            .chain(self.fabric.next())
            .chain(sends)
            .chain(self.crashes.last().copied())
            .chain(self.views.as_ref().and_then(Views::next))
            .chain(oldest)
            .chain(unanswered)
            .chain(hangs.map(|since| since.after(HANGS_AFTER)))
            .min();
        let Some(next) = next else {
            return self.fail(Property::Ends, "nothing will ever happen again".into());
        };
        let now = next.max(now);
        self.steps += 1;
        if self.steps > STEPS_MAX {
            let media: Vec<_> = self.media.iter().map(Medium::next).collect();
            let line =
                format!("something keeps itself busy at {now:?}: {}, media {media:?}", self.fabric.waits());
            return self.fail(Property::Sane, line);
        }
        self.clock.set(now);
        self.trace.at(now);
        self.desk.at(now);
        if self.crashes.last().is_some_and(|at| *at <= now) {
            self.crashes.pop();
            self.crash(now);
        }
        for medium in &self.media {
            medium.advance(now);
        }
        self.fabric.advance(now);
        self.settle();
        for initiator in 0..self.actors.len() {
            if self.may_send(&self.actors[initiator]) && self.actors[initiator].next <= now {
                self.send(now, initiator);
            }
        }
        self.reload(now);
        self.watch(now);
        self.settle();
    }

    fn may_send(&self, actor: &Actor) -> bool {
        actor.up && actor.orders_left > 0 && actor.open < self.scenario.depth
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn send(&mut self, now: Instant, initiator: usize) {
        let think = self.scenario.think.pick(&mut self.rng);
        let actor = &mut self.actors[initiator];
        actor.next = now.after(think);
        actor.orders_left -= 1;
        let manages = self.scenario.manages_one_in;
        if manages > 0 && self.rng.chance(1, manages) {
            let function = self.some_management(initiator);
            return self.manage(now, initiator, function);
        }
        let (order, meaning) = self.draw(initiator);
        let ticket = self.ticket();
        self.note_sent(initiator, ticket, &order);
        self.trace.say(|| describe(initiator, ticket, &order.cdb, &meaning));
        self.trace.mix_bytes(&order.cdb);
        let (unit, immediate) = (order.unit, order.immediate);
        let place = self.place(initiator, ticket, &order);
        self.desk.submitted(initiator, ticket, &order, meaning, place);
        if self.fabric.submit(now, initiator, ticket, order) {
            self.actors[initiator].open += 1;
            self.open.insert(
                ticket,
                Open { initiator, unit, since: now, patience: now.after(PATIENCE), immediate },
            );
        } else {
            self.desk.ended(initiator, ticket, &Ended::Refused);
            self.note_ended(ticket, &Ended::Refused);
        }
    }

    /// Returns where the task set puts an order, unless something may change its place: immediate commands overtake, and what is
    /// carried out again comes again.
    fn place(&self, initiator: usize, ticket: Ticket, order: &Order) -> Option<TaskPosition> {
        if order.immediate || order.replay || !self.scenario.keeps_order(order.unit) {
            return None;
        }
        let epoch = self.actors[initiator].epoch;
        let set = u64::try_from(initiator).unwrap() << 48 | u64::from(order.unit) << 32 | epoch;
        let attribute = match order.attribute {
            Attribute::Simple => TaskAttribute::Simple,
            Attribute::Ordered => TaskAttribute::Ordered,
            Attribute::HeadOfQueue => TaskAttribute::HeadOfQueue,
        };
        Some(TaskPosition { set, number: ticket.0, attribute })
    }

    fn some_management(&mut self, initiator: usize) -> Manage {
        let own: Vec<Ticket> = self
            .open
            .iter()
            .filter(|(_, open)| open.initiator == initiator)
            .map(|(ticket, _)| *ticket)
            .collect();
        let unit = u16::try_from(self.rng.below(self.scenario.units.into())).unwrap();
        match self.rng.below(12) {
            0..5 if !own.is_empty() => Manage::AbortTask(*pick(&mut self.rng, &own)),
            5 if !own.is_empty() => Manage::QueryTask(*pick(&mut self.rng, &own)),
            6 | 7 => Manage::ClearTaskSet(unit),
            8 | 9 => Manage::UnitReset(unit),
            10 => Manage::WarmReset,
            11 => Manage::ColdReset,
            _ => Manage::AbortTaskSet(unit),
        }
    }

    fn manage(&mut self, now: Instant, initiator: usize, function: Manage) {
        let ticket = self.ticket();
        let function = match &mut self.views {
            Some(views) => views.address_function(initiator, function),
            None => function,
        };
        self.trace.say(|| format!("initiator {initiator} asks {function:?} as {}", ticket.0));
        if let Some(views) = &mut self.views {
            views.asked(now, initiator, ticket, function);
        }
        if self.fabric.manage(now, initiator, ticket, function) {
            let patience = now.after(MANAGES_WITHIN);
            self.managing.insert(ticket, Managing { initiator, since: now, patience });
        }
    }

    /// Aborts what takes too long, and notices what hangs.
    fn watch(&mut self, now: Instant) {
        let late: Vec<Ticket> =
            (self.open.iter()).filter(|(_, open)| now >= open.patience).map(|(ticket, _)| *ticket).collect();
        for ticket in late {
            let Some(open) = self.open.get_mut(&ticket) else { continue };
            let (initiator, unit) = (open.initiator, open.unit);
            // What was lost on the way may take a while to be missed; an immediate command never is. And who is aborted by
            // another initiator hears nothing of it (TAS is 0, SAM-5 §5.6).
            if !open.immediate && !self.scenario.aborts() {
                let due = self.fabric.trouble().max(open.since);
                let mended = due.after(PATIENCE).after(self.scenario.backlog());
                if mended > now {
                    // An abort now would hide what recovery forgot: it has as long, counted from the last trouble, and the
                    // time that a slow path takes.
                    open.patience = mended;
                    continue;
                }
                let line =
                    format!("order {} of initiator {initiator} waits although nothing is wrong", ticket.0);
                self.fail(self.named(ticket), line);
                continue;
            }
            open.patience = now.after(PATIENCE);
            self.trace
                .say(|| format!("initiator {initiator} waits too long for {} on unit {unit}", ticket.0));
            self.manage(now, initiator, Manage::AbortTask(ticket));
        }
        if let Some((ticket, open)) = self.open.iter().find(|(_, open)| now >= open.since.after(HANGS_AFTER))
        {
            let line = format!("order {} of initiator {} never ended", ticket.0, open.initiator);
            self.fail(self.named(*ticket), line);
        }
        let given_up = self.managing.iter_mut().find(|(_, open)| now >= open.patience);
        if let Some((ticket, open)) = given_up {
            // RFC 7143 gives an initiator no way to learn whether an immediate request arrived.
            open.patience = now.after(MANAGES_WITHIN);
            let (ticket, initiator) = (*ticket, open.initiator);
            self.trace.say(|| format!("initiator {initiator} gives up its nexus"));
            self.note_unanswered(ticket, initiator);
            self.fabric.give_up(now, initiator);
        }
        if let Some((ticket, _)) = self.managing.iter().find(|(_, open)| now >= open.since.after(HANGS_AFTER))
        {
            let line = format!("management request {} was never answered", ticket.0);
            self.fail(Property::Ends, line);
        }
    }

    /// Takes note of everything that the fabric reports.
    fn settle(&mut self) {
        // What is written now was written before what is heard now was said.
        for signature in self.media.iter().flat_map(Medium::take_landed) {
            self.desk.landed(signature);
        }
        while let Some(happening) = self.fabric.poll() {
            self.trace.say(|| summary(&happening));
            match happening {
                Happening::Ended { initiator, ticket, ended } => {
                    self.trace.mix(ticket.0);
                    match &ended {
                        Ended::Status { status, data, .. } => {
                            self.trace.mix((*status).into());
                            self.trace.mix_bytes(data);
                        }
                        _ => self.trace.mix(0x100),
                    }
                    if self.open.remove(&ticket).is_none() {
                        self.fail(Property::Ends, format!("order {} ended twice", ticket.0));
                    }
                    self.actors[initiator].open -= 1;
                    self.desk.ended(initiator, ticket, &ended);
                    self.note_ended(ticket, &ended);
                }
                Happening::Managed { ticket, answer, .. } => {
                    if let Some(views) = &mut self.views {
                        views.managed(ticket, answer);
                    }
                    if self.managing.remove(&ticket).is_none() {
                        self.fail(Property::Ends, format!("management request {} ended twice", ticket.0));
                    }
                }
                Happening::Up { initiator, fresh } => {
                    self.actors[initiator].up = true;
                    if let Some(views) = &mut self.views {
                        views.up(self.clock.now(), initiator);
                    }
                    if fresh {
                        self.actors[initiator].epoch += 1;
                        self.desk.lost_is_gone(initiator);
                    }
                }
                Happening::Laid(layout) => {
                    if let Some(views) = &mut self.views {
                        views.laid(self.clock.now(), layout);
                    }
                }
                Happening::Down { initiator, last } => {
                    if !last {
                        self.note_down(initiator);
                    }
                    self.actors[initiator].up = false;
                    self.actors[initiator].gone |= last;
                }
            }
        }
        for Broken { property, how } in self.desk.take_broken() {
            self.fail(property, how);
        }
        for finding in self.desk.take_findings() {
            self.judge(&finding);
        }
        let twice: Vec<String> = self.media.iter().flat_map(Medium::executed_twice).collect();
        for line in twice {
            self.fail(Property::Once, line);
        }
        for Broken { property, how } in self.fabric.wrongs() {
            self.fail(property, how);
        }
        let bugs = self.fabric.bugs();
        if bugs > 0 {
            self.fail(Property::Sane, format!("{bugs} times a machine was in a state that cannot be"));
        }
    }

    /// Returns the property that an order breaks that never ends: a reload may be the cause.
    fn named(&self, ticket: Ticket) -> Property {
        let hidden = self.views.as_ref().is_some_and(|views| views.was_hidden(ticket));
        if hidden { Property::Answered } else { Property::Ends }
    }

    fn crash(&mut self, now: Instant) {
        self.trace.say(|| "the target loses its power".into());
        for medium in &self.media {
            medium.cut(self.rng.next_u64());
        }
        self.desk.crashed();
        self.fabric.crash(now);
        // What is reported as lost now was lost with the power.
        self.settle();
        for initiator in 0..self.actors.len() {
            self.desk.lost_is_gone(initiator);
        }
    }

    /// Everybody leaves, and nothing may be left behind.
    fn leave(&mut self) {
        let now = self.clock.now();
        self.fabric.close(now);
        self.settle();
        let limit = now.after(SETTLES_WITHIN);
        let idle = |world: &Self| {
            world.fabric.holds().is_none()
                && world.media.iter().all(Medium::is_idle)
                && world.managing.is_empty()
                && world.actors.iter().all(|actor| !actor.up)
        };
        while self.failures.is_empty() && !idle(self) {
            self.step();
            if self.clock.now() > limit {
                let held = self.fabric.holds().unwrap_or_else(|| "a medium or an initiator is busy".into());
                self.fail(Property::NothingLeft, format!("after everybody left: {held}"));
            }
        }
        for initiator in 0..self.actors.len() {
            self.desk.lost_is_gone(initiator);
        }
    }

    /// Judges every block of every medium.
    fn inspect(&mut self) {
        for (unit, medium) in (0..).zip(self.media.clone()) {
            let len = usize::try_from(self.scenario.medium.len).unwrap();
            let bytes = medium.contents(0, len);
            self.desk.inspect(unit, Lba(0), &bytes);
        }
        self.settle();
    }

    fn bound(&mut self, limit: Instant) {
        if self.clock.now() > limit && self.failures.is_empty() {
            self.fail(Property::Ends, "orders are left long after everything was healed".into());
        }
    }

    fn fail(&mut self, property: Property, how: String) {
        let broken = Broken::new(property, how);
        self.trace.say(|| format!("WRONG: {broken}"));
        // One is enough; a handful helps.
        if self.failures.len() < 8 && !self.failures.contains(&broken) {
            self.failures.push(broken);
        }
    }

    fn verdict(self, start: Instant) -> Result<Report, Failure> {
        let at = self.clock.now();
        if !self.failures.is_empty() {
            let trace = self.trace.lines();
            return Err(Failure { seed: self.scenario.seed, what: self.failures, at, trace });
        }
        let (ends, judged) = self.desk.tally();
        let (hash, tally) = (self.trace.hash(), self.fabric.tally());
        let mut counts = self.fabric.counts();
        counts.extend(self.desk.counts());
        if self.scenario.special {
            let views = self.views.iter().flat_map(|views| &views.counts);
            let mut own = self.counts;
            views.for_each(|(what, count)| *own.entry(what).or_default() += count);
            counts.extend(own);
        }
        Ok(Report { hash, ends, judged, took: at.since(start), counts, tally })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {} at {:?} of its world:", self.seed, Duration::from_nanos(self.at.0))?;
        self.what.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}
