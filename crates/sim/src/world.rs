//! One run: the loop, the timeouts, the verdict.

use std::collections::BTreeMap;
use std::fmt;

use base::rng::Rng;
use base::time::{Duration, Instant};
use base::units::Lba;
use oracle::block_header::DeviceId;
use oracle::order::{Attribute as TaskAttribute, TaskPosition};

use crate::causes::CauseJudge;
use crate::media::{Clock, Medium};
use crate::oracle_adapter::OracleAdapter;
use crate::property::{Property, PropertyViolation};
use crate::scenario::{Scenario, TransportPlan, pick};
use crate::trace::Trace;
use crate::transport::direct::Direct;
use crate::transport::hyperscsi::HyperScsi;
use crate::transport::iscsi::Iscsi;
use crate::transport::{
    Attribute, CommandOutcome, ScsiCommand, TaskManagement, Ticket, Transport, TransportEvent,
};
use crate::views::InitiatorViews;
use crate::workload::Workload;

mod lines;
mod special;

use lines::{describe, summary};
use special::CorruptionCheck;

/// After this time without an answer an initiator aborts a command, as block layers do.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// After this time without an answer to a task management function an initiator ends its I_T nexus.
const TMF_TIMEOUT: Duration = Duration::from_secs(60);

/// A command that has not ended after this time counts as hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the shutdown of a run may take once nothing fails any more.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1200);

/// The bound on the steps of a run: a hundred times what an eventful run takes.
const STEPS_MAX: u64 = 3_000_000;

/// How long faults are injected, in simulated time.
const FAILS_FOR: Duration = Duration::from_secs(120);

/// A failed run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that shows the failure.
    pub seed: u64,
    /// The broken properties.
    pub what: Vec<PropertyViolation>,
    /// When the failure was found, in simulated time.
    pub at: Instant,
    /// The last lines of the trace before the failure.
    pub trace: Vec<String>,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The hash of the whole trace.
    pub hash: u64,
    /// How commands ended: done, failed, refused, unknown.
    pub ends: [u64; 4],
    /// How many blocks were judged.
    pub judged: u64,
    /// How long the run took, in simulated time.
    pub took: Duration,
    /// How often each event happened, for events that the transport counts.
    pub counts: Vec<(&'static str, u64)>,
    /// The transport's summary of the run.
    pub counters: String,
}

/// A world.
pub struct World {
    scenario: Scenario,
    clock: Clock,
    /// When the run began.
    start: Instant,
    media: Vec<Medium>,
    transport: Box<dyn Transport>,
    oracle: OracleAdapter,
    actors: Vec<Actor>,
    open: BTreeMap<Ticket, Open>,
    managing: BTreeMap<Ticket, Managing>,
    next_ticket: u64,
    rng: Rng,
    trace: Trace,
    crashes: Vec<Instant>,
    steps: u64,
    failures: Vec<PropertyViolation>,
    /// What initiators know of LUNs, in worlds where reloads change them.
    views: Option<InitiatorViews>,
    harmed: CorruptionCheck,
    /// The judge of errors and unit attentions.
    causes: CauseJudge,
    /// How often each event happened, for events that no transport counts.
    counts: BTreeMap<&'static str, u64>,
}

/// The world's record of an initiator.
struct Actor {
    workload: Workload,
    orders_left: u64,
    open: usize,
    /// How many I_T nexuses it has had.
    epoch: u64,
    up: bool,
    gone: bool,
    /// When it sends its next command.
    next: Instant,
}

struct Managing {
    initiator: usize,
    since: Instant,
    /// When its initiator ends the I_T nexus because the function was not answered.
    patience: Instant,
}

struct Open {
    initiator: usize,
    unit: u16,
    since: Instant,
    /// When its initiator aborts the command; set again after each abort.
    patience: Instant,
    immediate: bool,
}

/// Runs the world of a scenario.
///
/// # Errors
/// Returns the broken properties and the trace, if the run failed.
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
        let transport: Box<dyn Transport> = match &scenario.transport {
            TransportPlan::Direct => {
                Box::new(Direct::new(scenario, media.clone(), trace.clone(), start, rng.next_u64()))
            }
            TransportPlan::Iscsi(plan) => {
                Box::new(Iscsi::new(scenario, plan, media.clone(), trace.clone(), start, rng.next_u64()))
            }
            TransportPlan::HyperScsi(plan) => {
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
        let mut oracle = OracleAdapter::new(devices, scenario.medium.block_len, tears);
        if scenario.reserves_one_in > 0 {
            oracle.watch_reservations();
            media.iter().for_each(Medium::watch);
        }
        if scenario.medium.corruption.is_some() {
            oracle.expect_corruption();
        }
        Self {
            oracle,
            actors: (0..scenario.initiators).map(actor).collect(),
            scenario: scenario.clone(),
            clock,
            start,
            media,
            transport,
            open: BTreeMap::new(),
            managing: BTreeMap::new(),
            next_ticket: 0,
            rng,
            trace: trace.clone(),
            crashes,
            steps: 0,
            failures: Vec::new(),
            views: special::views_of(scenario, start),
            harmed: CorruptionCheck::default(),
            causes: special::causes_of(scenario),
            counts: special::nothing_counted(),
        }
    }

    fn run(mut self) -> Result<Report, Failure> {
        let start = self.clock.now();
        self.handle_events();
        while self.failures.is_empty() && self.is_busy() && self.clock.now().since(start) < FAILS_FOR {
            self.step();
        }
        self.trace.say(|| "nothing fails from now on".into());
        self.transport.stop_faults(self.clock.now());
        self.media.iter().for_each(Medium::stop_faults);
        self.end_reloads(self.clock.now());
        let limit = self.clock.now().after(SHUTDOWN_TIMEOUT);
        while self.failures.is_empty() && (self.is_busy() || !self.open.is_empty()) {
            self.step();
            self.check_shutdown_deadline(limit);
        }
        self.return_memory();
        self.shut_down();
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

    /// Advances the time to the next event.
    fn step(&mut self) {
        let now = self.clock.now();
        let sends = self.actors.iter().filter(|actor| self.may_send(actor)).map(|actor| actor.next);
        let oldest = self.open.values().map(|open| open.patience).min();
        let managing = self.managing.values();
        let unanswered = managing.clone().map(|open| open.patience).min();
        let hangs = self.open.values().map(|open| open.since).chain(managing.map(|open| open.since)).min();
        let next = (self.media.iter().filter_map(Medium::next))
            .chain(self.transport.next_deadline())
            .chain(sends)
            .chain(self.crashes.last().copied())
            .chain(self.views.as_ref().and_then(InitiatorViews::next))
            .chain(oldest)
            .chain(unanswered)
            .chain(hangs.map(|since| since.after(HANG_TIMEOUT)))
            .min();
        let Some(next) = next else {
            return self.fail(Property::Ends, "nothing will ever happen again".into());
        };
        let now = next.max(now);
        self.steps += 1;
        if self.steps > STEPS_MAX {
            let media: Vec<_> = self.media.iter().map(Medium::next).collect();
            let line = format!(
                "something keeps itself busy at {now:?}: {}, media {media:?}",
                self.transport.pending_deadlines()
            );
            return self.fail(Property::Sane, line);
        }
        self.clock.set(now);
        self.trace.at(now);
        self.oracle.at(now);
        if self.crashes.last().is_some_and(|at| *at <= now) {
            self.crashes.pop();
            self.crash(now);
        }
        for medium in &self.media {
            medium.advance(now);
        }
        self.transport.advance(now);
        self.handle_events();
        for initiator in 0..self.actors.len() {
            if self.may_send(&self.actors[initiator]) && self.actors[initiator].next <= now {
                self.send(now, initiator);
            }
        }
        self.reload(now);
        self.check_timeouts(now);
        self.handle_events();
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
            return self.send_tmf(now, initiator, function);
        }
        let (order, meaning) = self.draw(initiator);
        let ticket = self.ticket();
        self.note_sent(initiator, ticket, &order, &meaning);
        self.trace.say(|| describe(initiator, ticket, &order.cdb, &meaning));
        self.trace.mix_bytes(&order.cdb);
        let (unit, immediate) = (order.unit, order.immediate);
        let place = self.place(initiator, ticket, &order);
        self.oracle.submitted(initiator, ticket, &order, meaning, place);
        if self.transport.submit(now, initiator, ticket, order) {
            self.actors[initiator].open += 1;
            self.open.insert(
                ticket,
                Open { initiator, unit, since: now, patience: now.after(COMMAND_TIMEOUT), immediate },
            );
        } else {
            self.oracle.ended(initiator, ticket, &CommandOutcome::Refused);
            self.note_ended(ticket, &CommandOutcome::Refused);
        }
    }

    /// Returns the position of a command in its task set. Returns `None` for immediate commands, which
    /// overtake others, for commands that may be executed again in another nexus, and where the transport
    /// does not keep the order.
    fn place(&self, initiator: usize, ticket: Ticket, order: &ScsiCommand) -> Option<TaskPosition> {
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

    fn some_management(&mut self, initiator: usize) -> TaskManagement {
        let own: Vec<Ticket> = self
            .open
            .iter()
            .filter(|(_, open)| open.initiator == initiator)
            .map(|(ticket, _)| *ticket)
            .collect();
        let unit = u16::try_from(self.rng.below(self.scenario.units.into())).unwrap();
        match self.rng.below(12) {
            0..5 if !own.is_empty() => TaskManagement::AbortTask(*pick(&mut self.rng, &own)),
            5 if !own.is_empty() => TaskManagement::QueryTask(*pick(&mut self.rng, &own)),
            6 | 7 => TaskManagement::ClearTaskSet(unit),
            8 | 9 => TaskManagement::UnitReset(unit),
            10 => TaskManagement::WarmReset,
            11 => TaskManagement::ColdReset,
            _ => TaskManagement::AbortTaskSet(unit),
        }
    }

    fn send_tmf(&mut self, now: Instant, initiator: usize, function: TaskManagement) {
        let ticket = self.ticket();
        let function = match &mut self.views {
            Some(views) => views.address_function(initiator, function),
            None => function,
        };
        self.trace.say(|| format!("initiator {initiator} asks {function:?} as {}", ticket.0));
        if let Some(views) = &mut self.views {
            views.asked(now, initiator, ticket, function);
        }
        if self.transport.task_management(now, initiator, ticket, function) {
            self.causes.function_sent(now, initiator, ticket, function);
            let patience = now.after(TMF_TIMEOUT);
            self.managing.insert(ticket, Managing { initiator, since: now, patience });
        }
    }

    /// Aborts commands that take too long, and reports those that hang.
    fn check_timeouts(&mut self, now: Instant) {
        let late: Vec<Ticket> =
            (self.open.iter()).filter(|(_, open)| now >= open.patience).map(|(ticket, _)| *ticket).collect();
        for ticket in late {
            let Some(open) = self.open.get_mut(&ticket) else { continue };
            let (initiator, unit) = (open.initiator, open.unit);
            // A PDU or frame that was lost may be missed only after a while, and a lost immediate command is
            // never missed. An initiator receives no answer to a command that another initiator aborts (TAS
            // is 0, SAM-5 §5.6).
            if !open.immediate && !self.scenario.aborts() {
                let due = self.transport.last_fault().max(open.since);
                let mended = due.after(COMMAND_TIMEOUT).after(self.scenario.backlog());
                if mended > now {
                    // An abort now would hide a task that recovery forgot. Recovery has `COMMAND_TIMEOUT`,
                    // counted from the submission or the last fault, plus the time that a slow path takes.
                    open.patience = mended;
                    continue;
                }
                let line =
                    format!("order {} of initiator {initiator} waits although nothing is wrong", ticket.0);
                self.fail(self.named(ticket), line);
                continue;
            }
            open.patience = now.after(COMMAND_TIMEOUT);
            self.trace
                .say(|| format!("initiator {initiator} waits too long for {} on unit {unit}", ticket.0));
            self.send_tmf(now, initiator, TaskManagement::AbortTask(ticket));
        }
        if let Some((ticket, open)) = self.open.iter().find(|(_, open)| now >= open.since.after(HANG_TIMEOUT))
        {
            let line = format!("order {} of initiator {} never ended", ticket.0, open.initiator);
            self.fail(self.named(*ticket), line);
        }
        let given_up = self.managing.iter_mut().find(|(_, open)| now >= open.patience);
        if let Some((ticket, open)) = given_up {
            // RFC 7143 gives an initiator no way to learn whether an immediate request was received.
            open.patience = now.after(TMF_TIMEOUT);
            let (ticket, initiator) = (*ticket, open.initiator);
            self.trace.say(|| format!("initiator {initiator} gives up its nexus"));
            self.note_unanswered(ticket, initiator);
            self.transport.reset_nexus(now, initiator);
        }
        if let Some((ticket, _)) =
            self.managing.iter().find(|(_, open)| now >= open.since.after(HANG_TIMEOUT))
        {
            let line = format!("management request {} was never answered", ticket.0);
            self.fail(Property::Ends, line);
        }
    }

    /// Handles all events that the transport reports.
    fn handle_events(&mut self) {
        // A write that takes effect now did so before the answers that are received now were sent.
        for signature in self.media.iter().flat_map(Medium::take_landed) {
            self.oracle.took_effect(signature);
        }
        while let Some(event) = self.transport.poll() {
            self.trace.say(|| summary(&event));
            match event {
                TransportEvent::Ended { initiator, ticket, ended } => {
                    self.trace.mix(ticket.0);
                    match &ended {
                        CommandOutcome::Status { status, data, .. } => {
                            self.trace.mix((*status).into());
                            self.trace.mix_bytes(data);
                        }
                        _ => self.trace.mix(0x100),
                    }
                    if self.open.remove(&ticket).is_none() {
                        self.fail(Property::Ends, format!("order {} ended twice", ticket.0));
                    }
                    self.actors[initiator].open -= 1;
                    self.oracle.ended(initiator, ticket, &ended);
                    self.note_ended(ticket, &ended);
                }
                TransportEvent::TmfDone { ticket, answer, .. } => self.note_managed(ticket, answer),
                TransportEvent::ConnectionLost { initiator } => self.note_connection_lost(initiator),
                TransportEvent::Up { initiator, is_new_nexus: fresh } => {
                    self.actors[initiator].up = true;
                    self.note_up(initiator, fresh);
                    if fresh {
                        self.actors[initiator].epoch += 1;
                        self.oracle.lost_cannot_run(initiator);
                    }
                }
                TransportEvent::ConfigApplied(layout) => {
                    if let Some(views) = &mut self.views {
                        views.layout_applied(self.clock.now(), layout);
                    }
                }
                TransportEvent::Down { initiator, is_final: last } => {
                    self.note_down(initiator, last);
                    self.actors[initiator].up = false;
                    self.actors[initiator].gone |= last;
                }
            }
        }
        for PropertyViolation { property, how } in self.oracle.take_violations() {
            self.fail(property, how);
        }
        for finding in self.oracle.take_findings() {
            self.judge(&finding);
        }
        let twice: Vec<String> = self.media.iter().flat_map(Medium::executed_twice).collect();
        for line in twice {
            self.fail(Property::Once, line);
        }
        for PropertyViolation { property, how } in self.transport.take_violations() {
            self.fail(property, how);
        }
        let bugs = self.transport.bugs();
        if bugs > 0 {
            self.fail(Property::Sane, format!("{bugs} times a machine was in a state that cannot be"));
        }
    }

    /// Returns the property that a command breaks if it never ends: [`Property::Answered`] if a reload may be
    /// the cause.
    fn named(&self, ticket: Ticket) -> Property {
        let hidden = self.views.as_ref().is_some_and(|views| views.was_hidden(ticket));
        if hidden { Property::Answered } else { Property::Ends }
    }

    fn crash(&mut self, now: Instant) {
        self.trace.say(|| "the target loses its power".into());
        for medium in &self.media {
            medium.cut(self.rng.next_u64());
        }
        self.oracle.crashed();
        self.transport.crash(now);
        // Everything that is reported as lost now was lost with the power.
        self.handle_events();
        for initiator in 0..self.actors.len() {
            self.oracle.lost_cannot_run(initiator);
        }
    }

    /// Logs out all initiators, and checks that nothing is left behind.
    fn shut_down(&mut self) {
        let now = self.clock.now();
        self.transport.close(now);
        self.handle_events();
        let limit = now.after(SHUTDOWN_TIMEOUT);
        let idle = |world: &Self| {
            world.transport.busy_reason().is_none()
                && world.media.iter().all(Medium::is_idle)
                && world.managing.is_empty()
                && world.actors.iter().all(|actor| !actor.up)
        };
        while self.failures.is_empty() && !idle(self) {
            self.step();
            if self.clock.now() > limit {
                let held =
                    self.transport.busy_reason().unwrap_or_else(|| "a medium or an initiator is busy".into());
                self.fail(Property::NothingLeft, format!("after everybody left: {held}"));
            }
        }
        for initiator in 0..self.actors.len() {
            self.oracle.lost_cannot_run(initiator);
        }
    }

    /// Checks every block of every medium.
    fn inspect(&mut self) {
        for (unit, medium) in (0..).zip(self.media.clone()) {
            let len = usize::try_from(self.scenario.medium.len).unwrap();
            let bytes = medium.contents(0, len);
            self.oracle.inspect(unit, Lba(0), &bytes);
        }
        self.handle_events();
    }

    fn check_shutdown_deadline(&mut self, limit: Instant) {
        if self.clock.now() > limit && self.failures.is_empty() {
            self.fail(Property::Ends, "orders are left long after everything was healed".into());
        }
    }

    fn fail(&mut self, property: Property, how: String) {
        let broken = PropertyViolation::new(property, how);
        self.trace.say(|| format!("WRONG: {broken}"));
        // One failure is enough; up to eight help to find the cause.
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
        let (ends, judged) = self.oracle.totals();
        let (hash, counters) = (self.trace.hash(), self.transport.summary());
        let mut counts = self.transport.counts();
        counts.extend(self.oracle.counts());
        counts.extend(self.counted());
        Ok(Report { hash, ends, judged, took: at.since(start), counts, counters })
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
