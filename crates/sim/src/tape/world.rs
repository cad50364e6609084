//! One run of a world of tapes.

use std::collections::BTreeMap;

use base::rng::Rng;
use base::time::{Duration, Instant};
use cartridge::library::Element;
use netem::probability::DurationRange;

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
use crate::transport::{CommandOutcome, TaskManagement, Ticket, Transport, TransportEvent};
use crate::world::{Failure, Report};

/// Within this time after the start, crashes happen and I_T nexuses are lost.
const FAILS_FOR: Duration = Duration::from_millis(400);

/// A command or function that has not ended after this time never will.
const HANG_TIMEOUT: Duration = Duration::from_secs(600);

/// How often the last inspection looks for a cartridge that a drive should hold, a millisecond apart.
const MOTION_LOOKS: usize = 200;

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
    actors: [Actor; INITIATORS],
    open: BTreeMap<Ticket, Open>,
    managing: BTreeMap<Ticket, Instant>,
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
}

const EVENTS: [&str; 15] = [
    "records that were read",
    "filemarks that were met",
    "ends of data that were met",
    "positions that were told",
    "motions that were made",
    "motions that could not be made",
    "elements that were told",
    "commands without a cartridge",
    "commands that another cartridge stopped",
    "commands whose end nobody knows",
    "losses of power",
    "losses of power with data that were not synchronised",
    "kills of the process",
    "changes of the library that a crash met",
    "commands that a lost position stopped",
];

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
        let transport = Direct::of(
            (Box::new(owner), 1 + DRIVES),
            (INITIATORS, plan.nexus_losses, FAILS_FOR),
            plan.data_within,
            trace.clone(),
            start,
            rng.next_u64(),
        );
        let span = DurationRange::between(Duration::ZERO, FAILS_FOR);
        let mut crashes: Vec<Instant> = (0..plan.crashes).map(|_| start.after(span.pick(&mut rng))).collect();
        crashes.sort_unstable_by(|a, b| b.cmp(a));
        let actor = || Actor { commands_left: plan.commands, next: start, ..Actor::default() };
        Self {
            plan: plan.clone(),
            clock,
            shelf,
            file,
            transport: Box::new(transport),
            judge: Judge::new(plan.depth == 1, plan.is_power),
            positions: Positions::default(),
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
        let hangs = self.open.values().map(|open| open.since).chain(self.managing.values().copied()).min();
        let next = sends
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
        self.handle_events();
        let late = self.open.iter().find(|(_, open)| now >= open.since.after(HANG_TIMEOUT));
        if let Some((ticket, open)) = late {
            let line = format!("{:?} ({}) never ended", open.command, ticket.0);
            self.fail(Property::Ends, line);
        }
        if self.managing.values().any(|since| now >= since.after(HANG_TIMEOUT)) {
            self.fail(Property::Ends, "a task management function was never answered".into());
        }
    }

    fn may_send(&self, actor: &Actor) -> bool {
        actor.is_up && actor.commands_left > 0 && actor.open < self.plan.depth
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
        let mut command = TapeCommand::draw(&self.plan, &mut self.rng, self.records, seen);
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
            self.judge.submitted(ticket, command);
            self.actors[initiator].open += 1;
            let own = self.open.values().filter(|open| open.initiator == initiator);
            let is_forbidden = self.positions.forbids(initiator, command, own.map(|open| open.command));
            self.open.insert(ticket, Open { initiator, command, is_forbidden, since: now });
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
        let ticket = self.ticket();
        self.trace.say(|| format!("initiator {initiator} asks {function:?} as {}", ticket.0));
        if self.transport.task_management(now, initiator, ticket, function) {
            self.managing.insert(ticket, now);
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
                TransportEvent::TmfDone { ticket, .. } => {
                    if self.managing.remove(&ticket).is_none() {
                        self.fail(Property::Ends, format!("function {} ended twice", ticket.0));
                    }
                }
                TransportEvent::Up { initiator, .. } => self.actors[initiator].is_up = true,
                TransportEvent::Down { initiator, .. } => {
                    self.actors[initiator].is_up = false;
                    self.positions.nexus_lost(initiator);
                }
                TransportEvent::ConfigApplied(_) => {}
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
        if let Err(broken) = self.judge.ended(self.clock.now(), ticket, &answer, self.last) {
            self.note(broken);
        }
        let told = self.positions.ended(open.initiator, open.command, open.is_forbidden, &answer);
        if let Err(broken) = told {
            self.note(broken);
        }
        self.heard = Some(answer);
    }

    fn count_end(&mut self, command: TapeCommand, answer: &Answer) {
        let (end, event) = match (command, answer) {
            (TapeCommand::Drive(_, DriveCommand::Read), Answer::Good(_)) => (0, Some(EVENTS[0])),
            (TapeCommand::Drive(_, DriveCommand::Position), Answer::Good(_)) => (0, Some(EVENTS[3])),
            (TapeCommand::Move(..) | TapeCommand::Exchange(..), Answer::Good(_)) => (0, Some(EVENTS[4])),
            (TapeCommand::Elements, Answer::Good(_)) => (0, Some(EVENTS[6])),
            (_, Answer::Good(_)) => (0, None),
            (_, Answer::Sense(0x00, 0x0001, _)) => (0, Some(EVENTS[1])),
            (_, Answer::Sense(0x08, 0x0005, _)) => (0, Some(EVENTS[2])),
            (_, Answer::Sense(0x02, 0x3a00, _)) => (1, Some(EVENTS[7])),
            (_, Answer::Sense(0x05, 0x3b0d | 0x3b0e, _)) => (1, Some(EVENTS[5])),
            (_, Answer::Sense(..) | Answer::Impossible(_)) => (1, None),
            (_, Answer::NotRun("changed")) => (3, Some(EVENTS[8])),
            (_, Answer::NotRun("position lost")) => (3, Some(EVENTS[14])),
            (_, Answer::NotRun(_)) => (3, None),
            (_, Answer::Doubtful) => (2, Some(EVENTS[9])),
        };
        self.ends[end] += 1;
        self.judged += u64::from(end < 2);
        if let Some(event) = event {
            self.count(event);
        }
    }

    fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    /// Sends commands of initiator 0, one after the other, until one is executed; returns its answer.
    fn execute(&mut self, command: TapeCommand) -> Option<Answer> {
        while self.failures.is_empty() {
            let now = self.clock.now();
            self.heard = None;
            if !self.actors[0].is_up || !self.send(now, 0, command) {
                self.step();
                continue;
            }
            while self.failures.is_empty() && self.heard.is_none() {
                self.step();
            }
            if !matches!(self.heard, Some(Answer::NotRun(_) | Answer::Doubtful)) {
                return self.heard.take();
            }
            if self.heard == Some(Answer::NotRun("position lost")) {
                self.fail(Property::Records, format!("the position is lost for {command:?}"));
            }
            // A drive that is loading a cartridge is asked again.
            self.clock.set(self.clock.now().after(Duration::from_millis(1)));
        }
        None
    }

    /// Reads every cartridge to its end. The judge compares.
    fn inspect(&mut self) {
        self.is_inspecting = true;
        self.execute(TapeCommand::Elements);
        for cartridge in 0..CARTRIDGES {
            let (place, free) = match self.judge.any_state() {
                Some(state) => (state.place_of(cartridge), state.empty_slot()),
                None => return,
            };
            let Some(place) = place else { continue };
            let drive = match place.checked_sub(FIRST_DRIVE).filter(|drive| *drive < DRIVES) {
                Some(drive) => drive,
                None => {
                    if let Some(free) = free {
                        self.execute(TapeCommand::Move(FIRST_DRIVE, free));
                    }
                    self.execute(TapeCommand::Move(place, FIRST_DRIVE));
                    0
                }
            };
            // A motion whose end nobody knows may still take the cartridge away, or bring one.
            for _ in 0..MOTION_LOOKS {
                if self.read_to_end(drive) {
                    break;
                }
                self.clock.set(self.clock.now().after(Duration::from_millis(1)));
            }
            self.execute(TapeCommand::Drive(drive, DriveCommand::Position));
        }
        self.execute(TapeCommand::Elements);
    }

    /// Reads the cartridge in a drive to its end. Returns false if the drive has none.
    fn read_to_end(&mut self, drive: usize) -> bool {
        let is_empty = |answer: &Option<Answer>| matches!(answer, Some(Answer::Sense(0x02, 0x3a00, _)));
        // The unit attention of a READ would make the position unknown.
        let commands = [TapeCommand::Test(drive + 1), TapeCommand::Drive(drive, DriveCommand::Load)];
        if commands.into_iter().any(|command| is_empty(&self.execute(command))) {
            return false;
        }
        while let Some(answer) = self.execute(TapeCommand::Drive(drive, DriveCommand::Read)) {
            if matches!(answer, Answer::Sense(0x08, ..)) {
                break;
            }
            if is_empty(&Some(answer)) {
                return false;
            }
        }
        true
    }

    /// Logs out the initiators, and checks that nothing is left.
    fn shut_down(&mut self) {
        self.transport.close(self.clock.now());
        self.handle_events();
        while self.failures.is_empty() && !self.shelf.is_idle() {
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
        Ok(Report {
            hash: self.trace.hash(),
            ends: self.ends,
            judged: self.judged,
            took: at.since(start),
            counts: self.counts.into_iter().collect(),
            counters: format!("{}, up to {} states", self.transport.summary(), self.judge.branches_max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_of_tapes_pass_and_repeat() {
        for seed in 0..40 {
            let plan = TapePlan::of(seed);
            let first = run(&plan, &Trace::new(60, false)).unwrap_or_else(|failure| panic!("{failure}"));
            assert!(first.judged > 0, "seed {seed}");
            if seed % 8 == 0 {
                assert_eq!(run(&plan, &Trace::new(0, false)).unwrap(), first, "seed {seed}");
            }
        }
    }
}
