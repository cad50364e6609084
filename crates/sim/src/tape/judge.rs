//! The judge: every state that the library can be in. Commands run at the same time, are aborted and are
//! lost, so there can be several. Each answer excludes the states in which it would have been another one;
//! when none is left, the answer was wrong.

use std::collections::{BTreeMap, BTreeSet};

use base::time::Instant;

use super::command::{Answer, DriveCommand, TapeCommand};
use super::model::{Expected, LibraryState, Places};
use super::plan::CHANGER;
use crate::property::{Property, PropertyViolation};
use crate::transport::Ticket;

/// The most states that are followed. More than these are a bug of the judge or of the plan.
const BRANCHES_MAX: usize = 200_000;

/// Follows the states.
pub(super) struct Judge {
    branches: BTreeSet<Branch>,
    pending: BTreeMap<Ticket, Pending>,
    /// Whether initiators have one command open at a time.
    is_one_open: bool,
    /// The last command that was sent.
    last: Ticket,
    /// The most states that there were.
    pub(super) branches_max: usize,
}

/// A state, and the commands that have been executed in it and are not answered, with their answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Branch {
    state: LibraryState,
    applied: BTreeMap<Ticket, Expected>,
    /// The motion under way: its command, where it moves the cartridges, and whether they are there.
    motion: Option<(Ticket, Places, bool)>,
}

/// A command that may still be executed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    command: TapeCommand,
    /// Since when nobody hears its answer.
    doubtful: Option<Doubtful>,
}

/// Since when nobody hears the answer of a command.
#[derive(Clone, Copy, Debug)]
struct Doubtful {
    at: Instant,
    /// The last command that was sent before.
    last: Ticket,
}

impl Judge {
    /// Makes a judge. If initiators have one command open at a time, none runs on a cartridge that was put in
    /// after it was sent: no other command can have told its initiator of the change. Crashes are
    /// losses of power or ends of the process.
    pub(super) fn new(is_one_open: bool, is_power: bool) -> Self {
        let first = Branch { state: LibraryState::new(is_power), applied: BTreeMap::new(), motion: None };
        let pending = BTreeMap::new();
        Self { branches: BTreeSet::from([first]), pending, is_one_open, last: Ticket(0), branches_max: 1 }
    }

    /// Returns one of the states that are possible.
    pub(super) fn any_state(&self) -> Option<&LibraryState> {
        self.branches.first().map(|branch| &branch.state)
    }

    pub(super) fn submitted(&mut self, ticket: Ticket, command: TapeCommand) {
        self.last = self.last.max(ticket);
        self.pending.insert(ticket, Pending { command, doubtful: None });
    }

    /// Handles the end of a command at `now`.
    ///
    /// # Errors
    /// The property that the answer breaks.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        ticket: Ticket,
        answer: &Answer,
    ) -> Result<(), PropertyViolation> {
        // What a crash has ended was judged there.
        let Some(pending) = self.pending.get(&ticket).copied() else { return Ok(()) };
        match answer {
            // It has changed the mode parameters, or never will.
            Answer::Doubtful if pending.command.changes_mode() => {
                self.pending.remove(&ticket);
                for mut branch in self.branches.clone() {
                    if branch.applied.remove(&ticket).is_none() {
                        branch.state.apply(pending.command, self.last);
                    }
                    self.branches.insert(branch);
                }
                self.branches.retain(|branch| !branch.applied.contains_key(&ticket));
                return Ok(());
            }
            Answer::Doubtful => {
                // Where it was executed it must not be executed again.
                let over = |mut branch: Branch| {
                    branch.applied.entry(ticket).and_modify(|expected| *expected = OVER);
                    branch
                };
                self.branches = std::mem::take(&mut self.branches).into_iter().map(over).collect();
                let doubtful = Pending { doubtful: Some(Doubtful { at: now, last: self.last }), ..pending };
                self.pending.insert(ticket, doubtful);
                return Ok(());
            }
            Answer::NotRun(_) => {
                self.branches.retain(|branch| !branch.has_begun(ticket));
                self.pending.remove(&ticket);
            }
            Answer::Impossible(_) => self.branches.clear(),
            Answer::Good(_) | Answer::Sense(..) => self.answered(ticket, pending, answer),
        }
        self.check(ticket, pending.command, answer)
    }

    fn check(
        &mut self,
        ticket: Ticket,
        command: TapeCommand,
        answer: &Answer,
    ) -> Result<(), PropertyViolation> {
        self.branches_max = self.branches_max.max(self.branches.len());
        let property = match command {
            TapeCommand::Drive(_, DriveCommand::Mode) => Property::Modes,
            _ if command.unit() == CHANGER => Property::Elements,
            _ => Property::Records,
        };
        if self.branches.len() > BRANCHES_MAX {
            let how = format!("the judge follows {} states", self.branches.len());
            return Err(PropertyViolation::new(Property::Sane, how));
        }
        if !self.branches.is_empty() {
            return Ok(());
        }
        let answer = match answer {
            Answer::Good(data) => {
                format!("GOOD with {} bytes, {:02x?}", data.len(), &data[..data.len().min(32)])
            }
            other => format!("{other:02x?}"),
        };
        let how = format!("{command:?} ({}) ends with {answer}", ticket.0);
        Err(PropertyViolation::new(property, how))
    }

    /// Keeps the branches in which the command gets this answer.
    fn answered(&mut self, ticket: Ticket, pending: Pending, answer: &Answer) {
        let mut kept = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut open: Vec<Branch> = std::mem::take(&mut self.branches).into_iter().collect();
        while let Some(mut branch) = open.pop() {
            if let Some(expected) = branch.applied.get(&ticket).copied() {
                if expected.is(answer) {
                    branch.applied.remove(&ticket);
                    if matches!(answer, Answer::Good(_)) {
                        branch.state.promised(pending.command, ticket);
                    }
                    kept.insert(branch);
                }
                continue;
            }
            for next in self.successors(&branch, Some(ticket)) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        self.pending.remove(&ticket);
        self.branches = kept;
        // What is refused at once did not have its turn.
        let is_refused = matches!(answer, Answer::Sense(0x05, ..));
        if pending.command.waits_its_turn() && !(is_refused && pending.command.unit() != CHANGER) {
            self.end_doubts(ticket, pending.command.unit());
        }
    }

    /// Returns the branches that follow from one when a command is executed, or a motion is made further.
    /// Then a command was answered, or the target crashed.
    fn successors(&self, branch: &Branch, answered: Option<Ticket>) -> Vec<Branch> {
        let mut all = Vec::new();
        if let Some((ticket, places, is_there)) = branch.motion {
            let emptied = branch.state.drives_to_empty(places);
            for drive in &emptied {
                let mut next = branch.clone();
                next.state.give_up(*drive);
                all.push(next);
            }
            let mut next = branch.clone();
            if is_there {
                next.state.tell();
                next.motion = None;
                next.applied.insert(ticket, Expected::Good);
            } else {
                next.state.arrive(places, ticket);
                next.motion = Some((ticket, places, true));
            }
            all.extend(emptied.is_empty().then_some(next));
        }
        for ticket in self.pending.keys().filter(|ticket| self.may_apply(branch, **ticket, answered)) {
            let Pending { command, doubtful } = self.pending[ticket];
            let (is_refused, is_run) = branch.state.refuses_immediate(command, *ticket);
            let begins = |expected| if doubtful.is_some() { OVER } else { expected };
            if is_refused {
                let mut next = branch.clone();
                let expected = next.state.refused_immediate(command);
                next.applied.insert(*ticket, begins(expected));
                all.push(next);
            }
            // Between two blocks an abort, or a crash, can end a command.
            let parts = if answered == Some(*ticket) { Vec::new() } else { command.parts() };
            for part in parts {
                let mut next = branch.clone();
                next.state.apply(part, self.last);
                next.applied.insert(*ticket, OVER);
                all.push(next);
            }
            if !is_run {
                continue;
            }
            let mut next = branch.clone();
            let after = next.state.after_motion(command);
            match (next.state.apply(command, self.last), after) {
                (Some(expected), _) => {
                    next.applied.insert(*ticket, begins(expected));
                }
                (None, places) => next.motion = places.map(|places| (*ticket, places, false)),
            }
            all.push(next);
        }
        all
    }

    /// Returns whether a command can have been executed next, before another one was answered. Commands that
    /// wait for their turn at a drive are answered when their turn ends. So whenever commands were aborted,
    /// or the target crashed, at most one without an answer was executed: the one whose turn it was.
    fn may_apply(&self, branch: &Branch, ticket: Ticket, answered: Option<Ticket>) -> bool {
        let this = self.pending[&ticket];
        if branch.has_begun(ticket) {
            return false;
        }
        let is_outdated = match this.command {
            TapeCommand::Drive(
                _,
                DriveCommand::Load | DriveCommand::Unload | DriveCommand::SetMode { .. } | DriveCommand::Mode,
            ) => false,
            TapeCommand::Drive(drive, _) => self.is_one_open && branch.state.is_outdated(drive, ticket),
            _ => false,
        };
        match this.command {
            _ if is_outdated => false,
            TapeCommand::Move(..) | TapeCommand::Exchange(..) => branch.motion.is_none(),
            _ if answered == Some(ticket) => true,
            TapeCommand::Test(_) | TapeCommand::Elements | TapeCommand::Drive(_, DriveCommand::Mode) => false,
            TapeCommand::Drive(_, DriveCommand::SetMode { .. }) => this.doubtful.is_some(),
            // It is answered when the tasks that it aborts have ended.
            TapeCommand::Reset(_) => true,
            TapeCommand::Drive(..) => {
                let has_turn = |other: &Ticket| {
                    let Pending { command, doubtful } = self.pending[other];
                    let is_before = doubtful.is_some_and(|since| {
                        since.last < ticket || this.doubtful.is_none_or(|this| since.at < this.at)
                    });
                    command.waits_its_turn() && command.unit() == this.command.unit() && !is_before
                };
                let is_over = answered.is_none() || this.doubtful.is_some();
                is_over && !branch.applied.keys().any(has_turn)
            }
        }
    }

    /// Ends doubts: a command that nobody waits for has been executed, or never will be, when one that was
    /// sent later has had its turn.
    fn end_doubts(&mut self, ticket: Ticket, unit: usize) {
        let is_over = |pending: &Pending| {
            pending.command.unit() == unit && pending.doubtful.is_some_and(|since| since.last < ticket)
        };
        let over: Vec<Ticket> =
            self.pending.iter().filter(|(_, pending)| is_over(pending)).map(|(ticket, _)| *ticket).collect();
        for ticket in over {
            self.pending.remove(&ticket);
            // A motion that has begun goes on to its end.
            self.branches.retain(|branch| branch.motion.is_none_or(|(under_way, ..)| under_way != ticket));
            let without = |mut branch: Branch| {
                branch.applied.remove(&ticket);
                branch
            };
            self.branches = std::mem::take(&mut self.branches).into_iter().map(without).collect();
        }
    }

    /// Handles a crash, after which the cartridges are in these elements. Of everything that may have been
    /// executed, what was not durable may be there or not.
    ///
    /// # Errors
    /// The cartridges cannot be there.
    pub(super) fn crashed(&mut self, places: Places) -> Result<(), PropertyViolation> {
        let mut seen = BTreeSet::new();
        let mut open: Vec<Branch> = std::mem::take(&mut self.branches).into_iter().collect();
        let mut left = BTreeSet::new();
        while let Some(branch) = open.pop() {
            if branch.state.is_at(places) {
                let states = branch.state.after_crash().into_iter();
                left.extend(states.map(|state| Branch { state, applied: BTreeMap::new(), motion: None }));
            }
            for next in self.successors(&branch, None) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        self.pending.clear();
        self.branches = left;
        self.branches_max = self.branches_max.max(self.branches.len());
        if self.branches.is_empty() {
            let how = format!("after a crash the elements hold {places:?}");
            return Err(PropertyViolation::new(Property::Elements, how));
        }
        Ok(())
    }

    /// Returns whether a crash now would have to choose between contents of a cartridge.
    pub(super) fn has_unsynchronized(&self) -> bool {
        self.branches.iter().any(|branch| branch.state.has_unsynchronized())
    }
}

impl Branch {
    /// Returns whether a command has been executed, or is under way as a motion.
    fn has_begun(&self, ticket: Ticket) -> bool {
        self.applied.contains_key(&ticket) || self.motion.is_some_and(|(under_way, ..)| under_way == ticket)
    }
}

/// The answer of a command that nobody waits for.
const OVER: Expected = Expected::Good;
