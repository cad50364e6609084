//! The judge: every state that the library can be in. Commands run at the same time, are aborted and are
//! lost, so there can be several. Each answer excludes the states in which it would have been another one;
//! when none is left, the answer was wrong.

use std::collections::{BTreeMap, BTreeSet};

use base::time::Instant;

use super::command::{Answer, DriveCommand, TapeCommand};
use super::model::{Expected, LibraryState, Places, Sender};
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
    /// Whether answers are heard later than they were given. Then answers do not come in the order in which
    /// commands were carried out, and each command that is open may have been carried out at any time.
    is_delayed: bool,
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
    sender: Sender,
    command: TapeCommand,
    /// Whether a later command of its initiator has had its turn, so that it has had its own, or never will.
    is_passed: bool,
    /// Since when nobody hears its answer.
    doubtful: Option<Doubtful>,
}

/// Since when nobody hears the answer of a command.
#[derive(Clone, Copy, Debug)]
struct Doubtful {
    at: Instant,
    /// The last command that was sent before it could not be carried out any more; `None` if it still can.
    last: Option<Ticket>,
}

impl Judge {
    /// Makes a judge. If initiators have one command open at a time, none runs on a cartridge that was put in
    /// after it was sent: no other command can have told its initiator of the change. Crashes are
    /// losses of power or ends of the process.
    pub(super) fn new(is_one_open: bool, is_power: bool, is_delayed: bool) -> Self {
        let first = Branch { state: LibraryState::new(is_power), applied: BTreeMap::new(), motion: None };
        let pending = BTreeMap::new();
        Self {
            branches: BTreeSet::from([first]),
            pending,
            is_one_open,
            is_delayed,
            last: Ticket(0),
            branches_max: 1,
        }
    }

    /// Returns how many states are possible.
    pub(super) fn branches(&self) -> usize {
        self.branches.len()
    }

    /// Returns one of the states that are possible.
    pub(super) fn any_state(&self) -> Option<&LibraryState> {
        self.branches.first().map(|branch| &branch.state)
    }

    pub(super) fn submitted(&mut self, initiator: usize, ticket: Ticket, command: TapeCommand) {
        self.last = self.last.max(ticket);
        let sender = Sender { initiator, is_former_nexus: false };
        self.pending.insert(ticket, Pending { sender, command, is_passed: false, doubtful: None });
    }

    /// Handles a new I_T nexus of an initiator: what was lost with the former one cannot begin any more.
    pub(super) fn nexus_is_new(&mut self, initiator: usize) {
        let last = self.last;
        for pending in self.pending.values_mut().filter(|pending| pending.sender.initiator == initiator) {
            if let Some(doubtful) = &mut pending.doubtful {
                doubtful.last.get_or_insert(last);
                pending.sender.is_former_nexus = true;
            }
        }
        for mut branch in std::mem::take(&mut self.branches) {
            branch.state.nexus_is_new(initiator);
            self.branches.insert(branch);
        }
    }

    /// Handles the end of a command at `now`. `is_over` tells of a doubtful one whether it cannot begin any
    /// more: the target has said so, or it is known otherwise.
    ///
    /// # Errors
    /// The property that the answer breaks.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        ticket: Ticket,
        answer: &Answer,
        is_over: bool,
    ) -> Result<(), PropertyViolation> {
        // What a crash has ended was judged there.
        let Some(pending) = self.pending.get(&ticket).copied() else { return Ok(()) };
        match answer {
            Answer::Doubtful if self.is_delayed && pending.command.changes_nothing() => {
                self.pending.remove(&ticket);
                self.forget(ticket);
                return Ok(());
            }
            // It has changed the mode parameters, or never will.
            Answer::Doubtful if !self.is_delayed && pending.command.changes_mode() => {
                self.pending.remove(&ticket);
                for mut branch in self.branches.clone() {
                    if branch.applied.remove(&ticket).is_none() {
                        branch.state.apply(pending.sender, pending.command, self.last);
                    }
                    self.branches.insert(branch);
                }
                self.branches.retain(|branch| !branch.applied.contains_key(&ticket));
                return Ok(());
            }
            Answer::Doubtful => {
                // Where it was executed it must not be executed again.
                let over = |mut branch: Branch| {
                    branch.applied.entry(ticket).and_modify(|expected| *expected = Expected::Never);
                    branch
                };
                self.branches = std::mem::take(&mut self.branches).into_iter().map(over).collect();
                let last = is_over.then_some(self.last);
                let doubtful = Pending { doubtful: Some(Doubtful { at: now, last }), ..pending };
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
                    if matches!(answer, Answer::Good(_)) && !self.is_delayed {
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
        let is_refused = match answer {
            Answer::Sense(0x05, ..) => true,
            Answer::Sense(0x02, ..) => self.is_delayed,
            _ => false,
        };
        if pending.command.waits_its_turn() && !(is_refused && pending.command.unit() != CHANGER) {
            let is_before = |other: &&mut Pending| {
                other.sender.initiator == pending.sender.initiator
                    && other.command.unit() == pending.command.unit()
            };
            let earlier = self.pending.range_mut(..ticket).map(|(_, other)| other);
            earlier.filter(is_before).for_each(|other| other.is_passed = true);
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
            let Pending { sender, command, doubtful, .. } = self.pending[ticket];
            let (is_refused, is_run) = branch.state.refuses_immediate(command, *ticket);
            let begins = |expected| if doubtful.is_some() { Expected::Never } else { expected };
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
                next.state.apply(sender, part, self.last);
                next.applied.insert(*ticket, Expected::Never);
                all.push(next);
            }
            if !is_run {
                continue;
            }
            let mut next = branch.clone();
            let after = next.state.after_motion(command);
            match (next.state.apply(sender, command, self.last), after) {
                (Some(expected), _) => {
                    if self.is_delayed && expected == Expected::Good {
                        // The promise of the command holds once the command has ended.
                        let mut begun = next.clone();
                        next.state.promised(command, *ticket);
                        if next.state != begun.state && answered != Some(*ticket) {
                            begun.applied.insert(*ticket, Expected::Never);
                            all.push(begun);
                        }
                    }
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
            _ if self.is_delayed => self.may_apply_unheard(branch, ticket, answered),
            TapeCommand::Test(_) | TapeCommand::Elements | TapeCommand::Drive(_, DriveCommand::Mode) => false,
            TapeCommand::Drive(_, DriveCommand::SetMode { .. }) => this.doubtful.is_some(),
            // It is answered when the tasks that it aborts have ended.
            TapeCommand::Reset(_) => true,
            TapeCommand::Drive(..) => {
                let has_turn = |other: &Ticket| {
                    let Pending { command, doubtful, .. } = self.pending[other];
                    let is_before = doubtful.is_some_and(|since| {
                        since.last.is_some_and(|last| last < ticket)
                            || this.doubtful.is_none_or(|this| since.at < this.at)
                    });
                    command.waits_its_turn() && command.unit() == this.command.unit() && !is_before
                };
                let is_over = answered.is_none() || this.doubtful.is_some();
                is_over && !branch.applied.keys().any(has_turn)
            }
        }
    }

    /// Returns whether a command can have been executed next although its answer was not heard, while
    /// another one is answered, or before a crash. Those of an initiator have their turns in the order in
    /// which it has sent them.
    fn may_apply_unheard(&self, branch: &Branch, ticket: Ticket, answered: Option<Ticket>) -> bool {
        let this = self.pending[&ticket];
        if this.is_passed && this.command.waits_its_turn() {
            return false;
        }
        // What other units do is of no interest as long as no cartridge moves.
        let is_motion = |command| matches!(command, TapeCommand::Move(..) | TapeCommand::Exchange(..));
        let moves = branch.motion.is_some() || self.pending.values().any(|other| is_motion(other.command));
        let concerns =
            |of: Ticket| self.pending.get(&of).is_none_or(|of| of.command.unit() == this.command.unit());
        if !moves && !answered.is_none_or(concerns) {
            return false;
        }
        let is_later = |(other, expected): (&Ticket, &Expected)| {
            let is_refused = matches!(expected, Expected::Sense(0x02 | 0x05, ..));
            *other > ticket
                && !is_refused
                && self.pending.get(other).is_some_and(|other| {
                    other.sender.initiator == this.sender.initiator
                        && other.command.unit() == this.command.unit()
                        && other.command.waits_its_turn()
                })
        };
        !this.command.waits_its_turn() || !branch.applied.iter().any(is_later)
    }

    /// Forgets what a command would have been answered.
    fn forget(&mut self, ticket: Ticket) {
        let without = |mut branch: Branch| {
            branch.applied.remove(&ticket);
            branch
        };
        self.branches = std::mem::take(&mut self.branches).into_iter().map(without).collect();
    }

    /// Ends doubts: a command that nobody waits for has been executed, or never will be, when one that was
    /// sent later has had its turn.
    fn end_doubts(&mut self, ticket: Ticket, unit: usize) {
        let is_over = |pending: &Pending| {
            pending.command.unit() == unit
                && pending.doubtful.and_then(|since| since.last).is_some_and(|last| last < ticket)
        };
        let over: Vec<Ticket> =
            self.pending.iter().filter(|(_, pending)| is_over(pending)).map(|(ticket, _)| *ticket).collect();
        for ticket in over {
            self.pending.remove(&ticket);
            // A motion that has begun goes on to its end.
            self.branches.retain(|branch| branch.motion.is_none_or(|(under_way, ..)| under_way != ticket));
            self.forget(ticket);
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
                // An answer may be on its way.
                let mut applied = BTreeMap::new();
                if self.is_delayed {
                    applied.clone_from(&branch.applied);
                    applied.extend(branch.motion.map(|(ticket, ..)| (ticket, Expected::Never)));
                }
                let applied = |state| Branch { state, applied: applied.clone(), motion: None };
                left.extend(branch.state.after_crash().into_iter().map(applied));
            }
            for next in self.successors(&branch, None) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        if !self.is_delayed {
            self.pending.clear();
        }
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
