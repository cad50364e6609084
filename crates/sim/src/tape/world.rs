//! One run of a world of tapes.

use std::collections::BTreeMap;

use base::rng::Rng;
use base::time::{Duration, Instant};
use cartridge::library::Element;
use netem::probability::DurationRange;

use super::block_len::BlockLens;
use super::command::{Answer, DriveCommand, FIRST_DRIVE, TapeCommand};
use super::judge::Judge;
use super::library::{LibraryFile, LibraryOwner};
use super::model::{LibraryState, Places};
use super::plan::{CARTRIDGES, DRIVES, INITIATORS, MAIL_SLOTS, TapePlan, name_of};
use super::position::Positions;
use super::shelf::Shelf;
use crate::media::Clock;
use crate::property::{Property, PropertyViolation};
use crate::scenario::pick;
use crate::trace::Trace;
use crate::transport::direct::Direct;
use crate::transport::iscsi::Iscsi;
use crate::transport::{CommandOutcome, TaskManagement, Ticket, Transport, TransportEvent};
use crate::world::{Failure, Report};

mod events;
mod inspection;

use events::EVENTS;

/// Within this time after the start, crashes happen and I_T nexuses are lost.
const FAILS_FOR: Duration = Duration::from_millis(400);

/// A command or function that has not ended after this time never will.
const HANG_TIMEOUT: Duration = Duration::from_secs(600);

/// After this time without an answer an initiator aborts a command, where some abort those of others.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// After this time without an answer to a function an initiator ends its I_T nexus.
const FUNCTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Longer than any wait.
const FOREVER: Duration = Duration::from_secs(1_000_000);

/// How long it may take until nothing is left after everybody has logged out.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1200);

/// Between how many contents of a cartridge a crash chooses at most, as far as initiators can avoid more:
/// then they make durable what they wrote, as backup software does.
const UNSYNCHRONIZED_MAX: usize = 12;

/// From this many possible states on, initiators that hear answers late find out which is true.
const STATES_MANY: usize = 200;

/// The bound on the steps of a run.
const STEPS_MAX: u64 = 1_000_000;

struct World {
    plan: TapePlan,
    clock: Clock,
    shelf: Shelf,
    file: LibraryFile,
    transport: Box<dyn Transport>,
    judge: Judge,
    positions: Positions,
    block_lens: BlockLens,
    actors: [Actor; INITIATORS],
    open: BTreeMap<Ticket, Open>,
    /// Functions that were not answered, with what the judge must know of them.
    managing: BTreeMap<Ticket, Managing>,
    /// The answer to the last command, while the world sends one after the other.
    heard: Option<Answer>,
    /// Whether it does: no initiator sends anything else then.
    is_inspecting: bool,
    last: Ticket,
    records: u32,
    rng: Rng,
    trace: Trace,
    crashes: Vec<Instant>,
    steps: u64,
    ends: [u64; 4],
    judged: u64,
    counts: BTreeMap<&'static str, u64>,
    failures: Vec<PropertyViolation>,
}

#[derive(Default)]
struct Actor {
    commands_left: u64,
    open: usize,
    is_up: bool,
    next: Instant,
}

#[derive(Clone, Copy)]
struct Open {
    initiator: usize,
    command: TapeCommand,
    /// Whether the drive must not execute it, because the initiator does not know the position.
    is_forbidden: bool,
    since: Instant,
    /// When its initiator aborts it; set again after each abort.
    patience: Instant,
}

/// A task management function that was not answered.
struct Managing {
    initiator: usize,
    since: Instant,
    /// When its initiator ends the I_T nexus because it was not answered.
    patience: Instant,
    /// The drives that it resets, as commands of their own.
    resets: Vec<(Ticket, TapeCommand)>,
}

/// Runs the world of a seed.
///
/// # Errors
/// Returns the broken properties and the trace, if the run failed.
pub fn run(plan: &TapePlan, trace: &Trace) -> Result<Report, Failure> {
    World::new(plan, trace).run()
}

impl World {
    fn new(plan: &TapePlan, trace: &Trace) -> Self {
        let mut rng = Rng::from_seed(plan.seed);
        let clock = Clock::default();
        let start = Instant(1_000_000_000);
        clock.set(start);
        let shelf = Shelf::new(plan, clock.clone(), rng.next_u64());
        let file = LibraryFile::new();
        let owner = LibraryOwner::new(shelf.clone(), file.clone(), rng.next_u64());
        let seed = rng.next_u64();
        let transport: Box<dyn Transport> = match &plan.iscsi {
            None => Box::new(Direct::of(
                (Box::new(owner), 1 + DRIVES),
                (INITIATORS, plan.nexus_losses, FAILS_FOR),
                plan.data_within,
                trace.clone(),
                start,
                seed,
            )),
            Some(iscsi) => Box::new(Iscsi::of(
                iscsi,
                (Box::new(owner), u16::try_from(1 + DRIVES).unwrap()),
                (INITIATORS, plan.manages_one_in > 0),
                trace.clone(),
                start,
                seed,
            )),
        };
        let span = DurationRange::between(Duration::ZERO, FAILS_FOR);
        let mut crashes: Vec<Instant> = (0..plan.crashes).map(|_| start.after(span.pick(&mut rng))).collect();
        crashes.sort_unstable_by(|a, b| b.cmp(a));
        let actor = || Actor { commands_left: plan.commands, next: start, ..Actor::default() };
        Self {
            plan: plan.clone(),
            clock,
            shelf,
            file,
            transport,
            judge: Judge::new(plan.depth == 1, plan.is_power, plan.iscsi.is_some()),
            positions: Positions::default(),
            block_lens: BlockLens::default(),
            actors: [actor(), actor()],
            open: BTreeMap::new(),
            managing: BTreeMap::new(),
            heard: None,
            is_inspecting: false,
            last: Ticket(0),
            records: 0,
            rng,
            trace: trace.clone(),
            crashes,
            steps: 0,
            ends: [0; 4],
            judged: 0,
            counts: EVENTS.into_iter().map(|event| (event, 0)).collect(),
            failures: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Report, Failure> {
        let start = self.clock.now();
        self.handle_events();
        let is_busy = |world: &Self| {
            world.actors.iter().any(|actor| actor.commands_left > 0)
                || !world.open.is_empty()
                || !world.managing.is_empty()
                || !world.crashes.is_empty()
        };
        while self.failures.is_empty() && is_busy(&self) {
            self.step();
        }
        self.trace.say(|| "nothing fails from now on".into());
        self.transport.stop_faults(self.clock.now());
        if self.failures.is_empty() {
            self.inspect();
        }
        if self.failures.is_empty() {
            self.shut_down();
        }
        self.verdict(start)
    }

    /// Advances the time to the next event.
    fn step(&mut self) {
        let now = self.clock.now();
        let sends = self.actors.iter().filter(|actor| self.may_send(actor)).map(|actor| actor.next);
        let hangs = self
            .open
            .values()
            .map(|open| open.since)
            .chain(self.managing.values().map(|open| open.since))
            .min();
        let patience = self.open.values().map(|open| open.patience);
        let patience = patience.chain(self.managing.values().map(|open| open.patience));
        let next = sends
            .chain(patience.filter(|at| *at > now))
            .chain(self.shelf.next())
            .chain(self.transport.next_deadline())
            .chain(self.crashes.last().copied())
            .chain(hangs.map(|since| since.after(HANG_TIMEOUT)))
            .min();
        let Some(next) = next else {
            return self.fail(Property::Ends, "nothing will ever happen again".into());
        };
        let now = next.max(now);
        self.steps += 1;
        if self.steps > STEPS_MAX {
            let waiting = self.transport.pending_deadlines();
            return self.fail(Property::Sane, format!("something keeps itself busy at {now:?}: {waiting}"));
        }
        self.clock.set(now);
        self.trace.at(now);
        if self.crashes.last().is_some_and(|at| *at <= now) {
            self.crashes.pop();
            self.crash(now);
        }
        self.shelf.advance(now);
        self.transport.advance(now);
        self.handle_events();
        for initiator in 0..INITIATORS {
            if self.may_send(&self.actors[initiator]) && self.actors[initiator].next <= now {
                self.act(now, initiator);
            }
        }
        self.lose_patience(now);
        self.handle_events();
        let late = self.open.iter().find(|(_, open)| now >= open.since.after(HANG_TIMEOUT));
        if let Some((ticket, open)) = late {
            let line = format!("{:?} ({}) never ended", open.command, ticket.0);
            self.fail(Property::Ends, line);
        }
        if self.managing.values().any(|open| now >= open.since.after(HANG_TIMEOUT)) {
            self.fail(Property::Ends, "a task management function was never answered".into());
        }
    }

    fn may_send(&self, actor: &Actor) -> bool {
        let waits = self.has_many_states() && !self.open.is_empty();
        actor.is_up && actor.commands_left > 0 && actor.open < self.plan.depth && !waits
    }

    /// Returns whether so much is unclear that initiators send one command after the other, and read.
    fn has_many_states(&self) -> bool {
        self.plan.iscsi.is_some() && self.judge.branches() > STATES_MANY
    }

    fn ticket(&mut self) -> Ticket {
        self.last = Ticket(self.last.0 + 1);
        self.last
    }

    /// Lets an initiator send its next command or function.
    fn act(&mut self, now: Instant, initiator: usize) {
        let think = self.plan.think.pick(&mut self.rng);
        self.actors[initiator].next = now.after(think);
        self.actors[initiator].commands_left -= 1;
        let manages = self.plan.manages_one_in;
        if manages > 0 && self.rng.chance(1, manages) {
            return self.manage(now, initiator);
        }
        self.records += 1;
        let seen = self.judge.any_state().map(LibraryState::seen);
        let block_lens = self.block_lens.of(initiator);
        let mut command = TapeCommand::draw(&self.plan, &mut self.rng, self.records, seen, block_lens);
        if let TapeCommand::Drive(_, DriveCommand::WriteFixed { count, .. }) = command {
            self.records += count;
        }
        if self.has_many_states() {
            let of_drive = if self.rng.chance(1, 12) { DriveCommand::Rewind } else { DriveCommand::Read };
            command = TapeCommand::Drive(usize::from(self.rng.chance(1, 2)), of_drive);
        }
        // The judge follows every state that a crash can leave.
        if let TapeCommand::Drive(drive, DriveCommand::Write(..) | DriveCommand::WriteFixed { .. }) = command
            && self.judge.any_state().is_some_and(|state| state.contents_of(drive) > UNSYNCHRONIZED_MAX)
        {
            command = TapeCommand::Drive(drive, DriveCommand::Marks(0, false));
        }
        if let TapeCommand::Drive(drive, of_drive) = command
            && of_drive.depends_on_position()
            && self.positions.may_be_lost(initiator, drive)
            && self.rng.chance(1, 2)
        {
            let moves = [DriveCommand::SpaceToEnd, DriveCommand::Rewind, DriveCommand::Locate(2)];
            command = TapeCommand::Drive(drive, *pick(&mut self.rng, &moves));
        }
        self.send(now, initiator, command);
    }

    fn send(&mut self, now: Instant, initiator: usize, command: TapeCommand) -> bool {
        let ticket = self.ticket();
        let order = command.order();
        self.trace.say(|| format!("initiator {initiator} sends {command:?} as {}", ticket.0));
        self.trace.mix_bytes(&order.cdb);
        let is_sent = self.transport.submit(now, initiator, ticket, order);
        if is_sent {
            self.judge.submitted(initiator, ticket, command);
            self.actors[initiator].open += 1;
            let own = self.open.values().filter(|open| open.initiator == initiator);
            let is_forbidden = self.positions.forbids(initiator, command, own.map(|open| open.command));
            // An initiator receives no answer to a command that another one has ended (TAS is 0, SAM-5 §5.6).
            let aborts = self.plan.iscsi.is_some() && self.plan.manages_one_in > 0;
            let patience = now.after(if aborts { COMMAND_TIMEOUT } else { FOREVER });
            self.open.insert(ticket, Open { initiator, command, is_forbidden, since: now, patience });
        }
        is_sent
    }

    fn manage(&mut self, now: Instant, initiator: usize) {
        let own: Vec<Ticket> = self
            .open
            .iter()
            .filter(|(_, open)| open.initiator == initiator)
            .map(|(ticket, _)| *ticket)
            .collect();
        let unit = u16::try_from(self.rng.below(1 + DRIVES as u64)).unwrap();
        let function = match self.rng.below(10) {
            0..5 if !own.is_empty() => TaskManagement::AbortTask(*pick(&mut self.rng, &own)),
            5 | 6 => TaskManagement::ClearTaskSet(unit),
            7 => TaskManagement::UnitReset(unit),
            8 => TaskManagement::WarmReset,
            _ => TaskManagement::AbortTaskSet(unit),
        };
        self.ask(now, initiator, function);
    }

    fn ask(&mut self, now: Instant, initiator: usize, function: TaskManagement) {
        let ticket = self.ticket();
        self.trace.say(|| format!("initiator {initiator} asks {function:?} as {}", ticket.0));
        if self.transport.task_management(now, initiator, ticket, function) {
            let is_reset = |drive: &usize| match function {
                TaskManagement::UnitReset(unit) => usize::from(unit) == drive + 1,
                TaskManagement::WarmReset => true,
                _ => false,
            };
            let resets = (0..DRIVES).filter(is_reset).map(TapeCommand::Reset);
            let resets: Vec<_> = resets.map(|reset| (self.ticket(), reset)).collect();
            resets.iter().for_each(|(ticket, reset)| self.judge.submitted(initiator, *ticket, *reset));
            let patience = now.after(if self.plan.iscsi.is_some() { FUNCTION_TIMEOUT } else { FOREVER });
            self.managing.insert(ticket, Managing { initiator, since: now, patience, resets });
        }
    }

    /// Aborts commands, and ends I_T nexuses, that were not answered in time.
    fn lose_patience(&mut self, now: Instant) {
        let late = self.open.iter_mut().filter(|(_, open)| now >= open.patience);
        let mut aborts = Vec::new();
        for (ticket, open) in late {
            open.patience = now.after(COMMAND_TIMEOUT);
            aborts.push((open.initiator, *ticket));
        }
        for (initiator, ticket) in aborts {
            self.trace.say(|| format!("initiator {initiator} waits too long for {}", ticket.0));
            self.ask(now, initiator, TaskManagement::AbortTask(ticket));
        }
        let given_up = self.managing.values_mut().find(|open| now >= open.patience);
        if let Some(open) = given_up {
            open.patience = now.after(FUNCTION_TIMEOUT);
            let initiator = open.initiator;
            self.trace.say(|| format!("initiator {initiator} gives up its nexus"));
            self.transport.reset_nexus(now, initiator);
        }
    }

    fn crash(&mut self, now: Instant) {
        let is_power = self.plan.is_power;
        self.trace
            .say(|| format!("the target ends, and the power {}", if is_power { "too" } else { "stays" }));
        self.count(if is_power { "losses of power" } else { "kills of the process" });
        if is_power && self.judge.has_unsynchronized() {
            self.count("losses of power with data that were not synchronised");
        }
        let is_moving =
            |open: &Open| matches!(open.command, TapeCommand::Move(..) | TapeCommand::Exchange(..));
        if self.open.values().any(is_moving) {
            self.count("changes of the library that a crash met");
        }
        self.shelf.crash(is_power);
        let places = self.places();
        self.trace.say(|| format!("the elements hold {places:?}"));
        if let Err(broken) = self.judge.crashed(places) {
            self.note(broken);
        }
        self.transport.crash(now);
        self.handle_events();
    }

    /// Returns the cartridge in each element, as the file of the library says.
    fn places(&mut self) -> Places {
        let library = self.file.read();
        let element = |number: usize| {
            let number_from = |first: usize| u16::try_from(number - first + 1).unwrap();
            match number {
                0..MAIL_SLOTS => Element::Mail(number_from(0)),
                number if number < FIRST_DRIVE + DRIVES => Element::Drive(number_from(FIRST_DRIVE)),
                _ => Element::Slot(number_from(FIRST_DRIVE + DRIVES)),
            }
        };
        let held = |number: usize| {
            let name = library.at(element(number)).map(|held| held.name.clone())?;
            (0..CARTRIDGES).find(|cartridge| name_of(*cartridge) == name)
        };
        let places: Places = std::array::from_fn(held);
        for cartridge in 0..CARTRIDGES {
            let count = places.iter().filter(|held| **held == Some(cartridge)).count();
            if count != 1 {
                self.fail(Property::Elements, format!("cartridge {cartridge} is in {count} elements"));
            }
        }
        places
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.transport.poll() {
            match event {
                TransportEvent::Ended { ticket, ended, .. } => self.ended(ticket, &ended),
                TransportEvent::TmfDone { ticket, answer, .. } => self.managed(ticket, answer),
                TransportEvent::Up { initiator, is_new_nexus } => {
                    self.actors[initiator].is_up = true;
                    if is_new_nexus {
                        self.positions.nexus_lost(initiator);
                        self.block_lens.nexus_lost(initiator);
                        self.judge.nexus_is_new(initiator);
                    }
                }
                TransportEvent::Down { initiator, .. } => self.actors[initiator].is_up = false,
                TransportEvent::ConnectionLost { .. } | TransportEvent::ConfigApplied(_) => {}
            }
        }
        for broken in self.transport.take_violations() {
            self.note(broken);
        }
        if self.transport.bugs() > 0 {
            self.fail(Property::Sane, format!("{} states that cannot be", self.transport.bugs()));
        }
    }

    fn managed(&mut self, ticket: Ticket, answer: Option<bool>) {
        let Some(Managing { resets, .. }) = self.managing.remove(&ticket) else {
            return self.fail(Property::Ends, format!("function {} ended twice", ticket.0));
        };
        let answer = if answer == Some(true) { Answer::Good(Vec::new()) } else { Answer::Doubtful };
        for (ticket, reset) in resets {
            self.count_end(reset, &answer);
            let is_over = self.plan.iscsi.is_none();
            if let Err(broken) = self.judge.ended(self.clock.now(), ticket, &answer, is_over) {
                self.note(broken);
            }
        }
    }

    fn ended(&mut self, ticket: Ticket, ended: &CommandOutcome) {
        let Some(open) = self.open.remove(&ticket) else {
            return self.fail(Property::Ends, format!("command {} ended twice", ticket.0));
        };
        self.actors[open.initiator].open -= 1;
        let answer = Answer::of(ended);
        self.trace.say(|| match &answer {
            Answer::Good(data) => format!("{} ends with GOOD and {} bytes", ticket.0, data.len()),
            other => format!("{} ends with {other:02x?}", ticket.0),
        });
        self.trace.mix(ticket.0);
        if let CommandOutcome::Status { status, sense, data } = ended {
            self.trace.mix((*status).into());
            self.trace.mix_bytes(sense);
            self.trace.mix_bytes(data);
        }
        if answer == Answer::NotRun("loading") && !self.is_inspecting {
            // The initiator waits for the drive.
            let actor = &mut self.actors[open.initiator];
            actor.commands_left += 1;
            actor.next = self.clock.now().after(Duration::from_millis(1));
        }
        self.count_end(open.command, &answer);
        // A command that is lost with its session may begin as long as the target has the session.
        let is_over = self.plan.iscsi.is_none() || *ended != CommandOutcome::Lost;
        if let Err(broken) = self.judge.ended(self.clock.now(), ticket, &answer, is_over) {
            self.note(broken);
        }
        if answer == Answer::Doubtful && self.plan.iscsi.is_some() {
            self.positions.answer_lost(open.initiator, open.command);
        }
        self.block_lens.ended(open.initiator, open.command, &answer);
        let told = self.positions.ended(open.initiator, open.command, open.is_forbidden, &answer);
        // Where several commands are open, answers may be heard in another order.
        let is_in_order = self.plan.iscsi.is_none() || self.plan.depth == 1;
        if let Err(broken) = told
            && is_in_order
        {
            self.note(broken);
        }
        self.heard = Some(answer);
    }

    fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    /// Logs out the initiators, and checks that nothing is left.
    fn shut_down(&mut self) {
        self.transport.close(self.clock.now());
        self.handle_events();
        let limit = self.clock.now().after(SHUTDOWN_TIMEOUT);
        let is_left = |world: &Self| {
            let is_left = world.transport.busy_reason().is_some() && world.clock.now() < limit;
            !world.shelf.is_idle() || (is_left && world.plan.iscsi.is_some())
        };
        while self.failures.is_empty() && is_left(self) {
            self.step();
        }
        if let Some(held) = self.transport.busy_reason() {
            self.fail(Property::NothingLeft, format!("after everybody left: {held}"));
        }
    }

    fn fail(&mut self, property: Property, how: String) {
        self.note(PropertyViolation::new(property, how));
    }

    fn note(&mut self, broken: PropertyViolation) {
        self.trace.say(|| format!("WRONG: {broken}"));
        if self.failures.len() < 8 && !self.failures.contains(&broken) {
            self.failures.push(broken);
        }
    }

    fn verdict(self, start: Instant) -> Result<Report, Failure> {
        let at = self.clock.now();
        if !self.failures.is_empty() {
            let trace = self.trace.lines();
            return Err(Failure { seed: self.plan.seed, what: self.failures, at, trace });
        }
        // Some of these happen in worlds of disks alone.
        let of_transport = self.transport.counts().into_iter().filter(|(_, count)| *count > 0);
        Ok(Report {
            hash: self.trace.hash(),
            ends: self.ends,
            judged: self.judged,
            took: at.since(start),
            counts: self.counts.into_iter().chain(of_transport).collect(),
            counters: format!("{}, up to {} states", self.transport.summary(), self.judge.branches_max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_of_tapes_pass_and_repeat() {
        pass_and_repeat(TapePlan::of);
    }

    #[test]
    fn worlds_of_tapes_over_iscsi_pass_and_repeat() {
        pass_and_repeat(TapePlan::iscsi);
    }

    fn pass_and_repeat(plan: impl Fn(u64) -> TapePlan) {
        for seed in 0..40 {
            let plan = plan(seed);
            let first = run(&plan, &Trace::new(60, false)).unwrap_or_else(|failure| panic!("{failure}"));
            assert!(first.judged > 0, "seed {seed}");
            if seed % 8 == 0 {
                assert_eq!(run(&plan, &Trace::new(0, false)).unwrap(), first, "seed {seed}");
            }
        }
    }
}
