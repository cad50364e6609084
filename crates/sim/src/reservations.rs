//! Judges which commands reservations stop. A command that a reservation stops must end with RESERVATION
//! CONFLICT and change nothing; any other command must not end so. PERSISTENT RESERVE IN must report a state
//! that was possible. A command that PREEMPT AND ABORT has aborted must write nothing after that function was
//! answered.
//!
//! [`oracle::reservations`] computes the possible states of reservations from the commands that were sent and
//! their answers. This module records for each open command whether it could pass, and whether it could be
//! stopped, at any moment since it was submitted.

pub mod commands;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use base::time::{Duration, Instant};
use oracle::reservations::{
    Access, Attentions, Nexus, ReservationType, Reservations as Possible, ReserveCommand, ReserveOutcome,
    ServiceId, State,
};

use crate::oracle_adapter::{self, GOOD, RESERVATION_CONFLICT};
use crate::property::{Property, PropertyViolation};
use crate::transport::{CommandOutcome, ScsiCommand, Ticket};

/// A signed write: its writer and its sequence.
pub type Signature = (u32, u64);

/// How long a change of reservations that is being saved may still come into force after its session ended:
/// no save takes longer.
const SAVED_WITHIN: Duration = Duration::from_millis(20);

/// The judge of reservations.
#[derive(Debug)]
pub struct ReservationJudge {
    units: Vec<Possible>,
    commands: BTreeMap<Ticket, Command>,
    services: BTreeMap<Ticket, Change>,
    /// The open writes, by their signature.
    writes: BTreeMap<Signature, Ticket>,
    /// Writes that ended with RESERVATION CONFLICT.
    refused: BTreeSet<Signature>,
    /// Commands that were lost with their session, by initiator.
    lost: BTreeMap<usize, Vec<Ticket>>,
    /// Changes whose session has ended, and until when they may be saved.
    expiring: Vec<(Instant, Ticket)>,
    now: Instant,
    broken: Vec<PropertyViolation>,
    /// The unit attentions that commands have certainly established, with the command and the unit.
    attentions: Vec<(Ticket, u16, Attentions)>,
    counts: Counts,
}

/// A command that reservations may stop.
#[derive(Debug)]
struct Command {
    initiator: usize,
    unit: usize,
    access: Access,
    signature: Option<Signature>,
    /// What the command asks about reservations, if it asks.
    question: Option<Question>,
    /// The answers that are correct.
    answers: Vec<Answer>,
    may_pass: bool,
    may_stop: bool,
    /// Like `may_pass`, but counted from the answer of the PREEMPT AND ABORT that has aborted the command.
    may_land: bool,
    fenced: bool,
    /// Whether the status shows whether a reservation stopped the command. The status of a copy does not: it
    /// may result from another unit.
    is_plain: bool,
    /// The version of the possible states when the command was submitted, if no change was under way then.
    settled: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Keys,
    Reservation,
}

/// The answer to PERSISTENT RESERVE IN: PRGENERATION, and keys or the reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Keys(u32, Vec<u64>),
    Reservation(u32, Option<(u64, u8)>),
}

/// A command that changes reservations.
#[derive(Clone, Copy, Debug)]
struct Change {
    initiator: usize,
    unit: usize,
    aborts: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    changes: u64,
    powerless: u64,
    stopped: u64,
    passed: u64,
    told: u64,
    fencings: u64,
    fenced_writes: u64,
}

impl ReservationJudge {
    /// Makes a judge for units without reservations.
    pub fn new(units: usize) -> Self {
        Self {
            units: vec![Possible::default(); units],
            commands: BTreeMap::new(),
            services: BTreeMap::new(),
            writes: BTreeMap::new(),
            refused: BTreeSet::new(),
            lost: BTreeMap::new(),
            expiring: Vec::new(),
            now: Instant::ORIGIN,
            broken: Vec::new(),
            attentions: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Returns whether another change of the reservations of a unit may be submitted.
    pub fn may_begin(&self, unit: u16) -> bool {
        self.units[usize::from(unit)].may_begin()
    }

    /// Returns one of the states that a unit can be in.
    pub fn likely(&self, unit: u16) -> State {
        self.units[usize::from(unit)].states().next().cloned().unwrap_or_default()
    }

    /// Sets the time.
    pub fn at(&mut self, now: Instant) {
        self.now = now;
        while let Some(at) = self.expiring.iter().position(|(until, _)| *until <= now) {
            let (_, ticket) = self.expiring.swap_remove(at);
            self.forget(ticket);
        }
    }

    /// Records that a command is about to be submitted, and the signature of its write.
    pub fn submitted(
        &mut self,
        initiator: usize,
        ticket: Ticket,
        order: &ScsiCommand,
        signature: Option<Signature>,
    ) {
        let unit = usize::from(order.unit);
        if let Some((service, aborts)) = service_of(order) {
            self.counts.changes += 1;
            self.services.insert(ticket, Change { initiator, unit, aborts });
            self.units[unit].submit_command(ServiceId(ticket.0), nexus(initiator), service);
            return self.states_widened(unit);
        }
        let Some((access, question)) = access_of(&order.cdb) else { return };
        if let Some(signature) = signature {
            self.writes.insert(signature, ticket);
        }
        let mut command = Command {
            initiator,
            unit,
            access,
            signature,
            question,
            answers: Vec::new(),
            may_pass: false,
            may_stop: false,
            may_land: false,
            fenced: false,
            is_plain: order.cdb[0] != 0x83,
            settled: self.units[unit].is_settled().then(|| self.units[unit].version()),
        };
        command.observe_states(self.units[unit].states());
        self.commands.insert(ticket, command);
    }

    /// Judges how a command ended. Returns whether the command has certainly changed nothing, although its
    /// status does not say so.
    pub fn ended(&mut self, ticket: Ticket, ended: &CommandOutcome) -> bool {
        if let Some(change) = self.services.get(&ticket).copied() {
            self.changed(ticket, change, ended);
            return false;
        }
        let Some(command) = self.commands.get(&ticket) else { return false };
        if *ended == CommandOutcome::Lost {
            let initiator = command.initiator;
            self.lost.entry(initiator).or_default().push(ticket);
            return false;
        }
        let Some(command) = self.commands.remove(&ticket) else { return false };
        if let Some(signature) = command.signature {
            self.writes.remove(&signature);
        }
        self.judge(ticket, &command, ended);
        !command.may_pass
    }

    /// Records that no lost command of an initiator can be executed any more.
    pub fn lost_cannot_run(&mut self, initiator: usize) {
        for ticket in self.lost.remove(&initiator).unwrap_or_default() {
            if self.services.contains_key(&ticket) {
                // Its task is gone, but a change that is being saved for it still comes into force.
                self.expiring.push((self.now.after(SAVED_WITHIN), ticket));
            } else if let Some(command) = self.commands.remove(&ticket)
                && let Some(signature) = command.signature
            {
                self.writes.remove(&signature);
            }
        }
    }

    /// Records that the target lost its power.
    pub fn crashed(&mut self) {
        for unit in 0..self.units.len() {
            self.counts.powerless +=
                u64::from(self.units[unit].states().any(|state| !state.keys().is_empty()));
            self.units[unit].power_lost();
            self.states_widened(unit);
        }
    }

    /// Judges a write that takes effect on a medium now.
    pub fn took_effect(&mut self, signature: Signature) {
        if self.refused.contains(&signature) {
            let how = format!("{signature:?} (writer, sequence) was written after its RESERVATION CONFLICT");
            return self.broken.push(PropertyViolation::new(Property::ReservationStops, how));
        }
        let Some(ticket) = self.writes.get(&signature).copied() else { return };
        let Some(command) = self.commands.get(&ticket).filter(|command| !command.may_land) else { return };
        let property = if command.fenced { Property::Fenced } else { Property::ReservationStops };
        let how = format!("order {} of initiator {} has written", ticket.0, command.initiator);
        self.broken.push(PropertyViolation::new(property, how));
    }

    /// Takes the violations since the last call.
    pub fn take_violations(&mut self) -> Vec<PropertyViolation> {
        std::mem::take(&mut self.broken)
    }

    /// Takes the unit attentions that commands have established since the last call.
    pub fn take_attentions(&mut self) -> Vec<(Ticket, u16, Attentions)> {
        std::mem::take(&mut self.attentions)
    }

    /// Returns how often each event happened.
    pub fn counts(&self) -> [(&'static str, u64); 7] {
        let counts = &self.counts;
        [
            ("commands that change reservations", counts.changes),
            ("units with registrations that lost their power", counts.powerless),
            ("commands that a reservation stopped", counts.stopped),
            ("commands that passed a reservation", counts.passed),
            ("answers of PERSISTENT RESERVE IN judged", counts.told),
            ("PREEMPT AND ABORTs that fenced somebody", counts.fencings),
            ("writes that were open when their initiator was fenced", counts.fenced_writes),
        ]
    }

    /// Records that a command that changes reservations ended.
    fn changed(&mut self, ticket: Ticket, change: Change, ended: &CommandOutcome) {
        let id = ServiceId(ticket.0);
        let unit = &mut self.units[change.unit];
        let explained = match end_of(ended) {
            ReservationResult::To(outcome) => {
                let told = unit.attentions_of(id, outcome);
                self.attentions.push((ticket, u16::try_from(change.unit).unwrap(), told));
                unit.end_command(id, outcome).map(Some)
            }
            ReservationResult::Nothing => unit.refused(id).map(|()| None),
            ReservationResult::Unknown => {
                unit.conclude_unknown(id);
                Ok(None)
            }
            ReservationResult::Lost => return self.lost.entry(change.initiator).or_default().push(ticket),
        };
        self.services.remove(&ticket);
        match explained {
            Ok(Some(fenced))
                if change.aborts && end_of(ended) == ReservationResult::To(ReserveOutcome::Good) =>
            {
                let open = self.commands.values_mut();
                for command in
                    open.filter(|command| command.unit == change.unit && command.signature.is_some())
                {
                    if command.initiator != change.initiator && fenced.has(nexus(command.initiator)) {
                        (command.may_land, command.fenced) = (false, true);
                        self.counts.fenced_writes += 1;
                    }
                }
                self.counts.fencings += u64::from(!fenced.is_empty());
            }
            Ok(_) => {}
            Err(_) => {
                let how = format!(
                    "no order of the commands under way explains the end of order {} of initiator {}",
                    ticket.0, change.initiator
                );
                self.broken.push(PropertyViolation::new(Property::ReservationTold, how));
                self.states_widened(change.unit);
            }
        }
    }

    fn judge(&mut self, ticket: Ticket, command: &Command, ended: &CommandOutcome) {
        let conflict = matches!(ended, CommandOutcome::Status { status: RESERVATION_CONFLICT, .. });
        let good = matches!(ended, CommandOutcome::Status { status: GOOD, .. });
        let done = good || command.is_plain && oracle_adapter::was_carried_out(ended);
        let name = |what: &str| format!("order {} of initiator {} {what}", ticket.0, command.initiator);
        let unit = &mut self.units[command.unit];
        // Otherwise the command may have been executed before or after a change that was under way meanwhile.
        let is_still = unit.is_settled() && command.settled == Some(unit.version());
        let nexus = nexus(command.initiator);
        if done && !command.may_pass {
            self.broken.push(PropertyViolation::new(Property::ReservationStops, name("was carried out")));
        } else if conflict && !command.may_stop {
            let how = name("ended with RESERVATION CONFLICT");
            self.broken.push(PropertyViolation::new(Property::ReservationAdmits, how));
        } else if (done || conflict) && is_still {
            unit.observe(|state| state.conflicts_with(nexus, command.access) == conflict);
        }
        self.counts.stopped += u64::from(conflict);
        let reserved = || unit.states().all(|state| state.reservation().is_some());
        self.counts.passed += u64::from(done && reserved());
        if conflict && let Some(signature) = command.signature {
            self.refused.insert(signature);
        }
        if let (true, Some(question), CommandOutcome::Status { data, .. }) = (good, command.question, ended) {
            self.counts.told += 1;
            match question.parse(data) {
                Some(answer) if command.answers.contains(&answer) => {
                    if is_still {
                        self.units[command.unit].observe(|state| question.ask(state) == answer);
                    }
                }
                answer => {
                    let how = name(&format!("hears {answer:?} and not one of {:?}", command.answers));
                    self.broken.push(PropertyViolation::new(Property::ReservationTold, how));
                }
            }
        }
    }

    /// Records that an open change of reservations will not be executed any more.
    fn forget(&mut self, ticket: Ticket) {
        if let Some(change) = self.services.remove(&ticket) {
            self.units[change.unit].conclude_unknown(ServiceId(ticket.0));
        }
    }

    /// Updates the open commands of a unit for which more states have become possible.
    fn states_widened(&mut self, unit: usize) {
        for command in self.commands.values_mut().filter(|command| command.unit == unit) {
            command.observe_states(self.units[unit].states());
        }
    }
}

impl Command {
    /// Records what the states that are possible now mean for this command.
    fn observe_states<'a>(&mut self, states: impl Iterator<Item = &'a State>) {
        if self.may_pass && self.may_stop && self.may_land && self.question.is_none() {
            return;
        }
        for state in states {
            let stops = state.conflicts_with(nexus(self.initiator), self.access);
            self.may_stop |= stops;
            self.may_pass |= !stops;
            self.may_land |= !stops;
            if let Some(answer) = self.question.map(|question| question.ask(state))
                && !self.answers.contains(&answer)
            {
                self.answers.push(answer);
            }
        }
    }
}

impl Question {
    /// Returns the answer of a unit in this state.
    fn ask(self, state: &State) -> Answer {
        match self {
            Self::Keys => Answer::Keys(state.generation(), state.keys()),
            Self::Reservation => {
                let code = |kind| {
                    ReservationType::ALL.iter().find(|(_, own)| *own == kind).map_or(0, |(code, _)| *code)
                };
                let reservation = state.reservation().map(|(key, kind)| (key, code(kind)));
                Answer::Reservation(state.generation(), reservation)
            }
        }
    }

    /// Reads parameter data (SPC-5 §6.16.2, §6.16.3).
    fn parse(self, data: &[u8]) -> Option<Answer> {
        let generation = u32::from_be_bytes(*data.first_chunk()?);
        let len = u32::from_be_bytes(*data.get(4..)?.first_chunk()?);
        let rest = data.get(8..8 + usize::try_from(len).ok()?)?;
        match self {
            Self::Keys => {
                let (keys, left) = rest.as_chunks::<8>();
                let mut keys: Vec<u64> = keys.iter().map(|key| u64::from_be_bytes(*key)).collect();
                keys.sort_unstable();
                left.is_empty().then_some(Answer::Keys(generation, keys))
            }
            Self::Reservation if rest.is_empty() => Some(Answer::Reservation(generation, None)),
            Self::Reservation => {
                let key = u64::from_be_bytes(*rest.first_chunk()?);
                (rest.len() == 16).then(|| Answer::Reservation(generation, Some((key, rest[13]))))
            }
        }
    }
}

/// The outcome of a command that changes reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationResult {
    To(ReserveOutcome),
    /// The command was refused before any part of it was executed.
    Nothing,
    /// The command may have been executed, and will not be executed any more.
    Unknown,
    /// The command may still be executed.
    Lost,
}

fn end_of(ended: &CommandOutcome) -> ReservationResult {
    match ended {
        CommandOutcome::Status { status: GOOD, .. } => ReservationResult::To(ReserveOutcome::Good),
        CommandOutcome::Status { status: RESERVATION_CONFLICT, .. } => {
            ReservationResult::To(ReserveOutcome::Conflict)
        }
        CommandOutcome::Lost => ReservationResult::Lost,
        ended if oracle_adapter::is_illegal(ended) => ReservationResult::To(ReserveOutcome::Illegal),
        ended if oracle_adapter::is_refusal(ended) => ReservationResult::Nothing,
        _ => ReservationResult::Unknown,
    }
}

fn nexus(initiator: usize) -> Nexus {
    Nexus(u8::try_from(initiator).unwrap())
}

/// Returns the change that a command makes to reservations, and whether it aborts tasks.
fn service_of(order: &ScsiCommand) -> Option<(ReserveCommand, bool)> {
    let word = |at: usize| u64::from_be_bytes(*order.data_out[at..].first_chunk().unwrap());
    match order.cdb[0] {
        0x16 => return Some((ReserveCommand::ReserveUnit, false)),
        0x17 => return Some((ReserveCommand::ReleaseUnit, false)),
        0x5f => {}
        _ => return None,
    }
    let (key, second, persist) = (word(0), word(8), order.data_out[20] & 1 == 1);
    let kind = ReservationType::from_code(order.cdb[2]);
    let action = order.cdb[1] & 0x1f;
    let service = match action {
        0 | 6 => {
            ReserveCommand::Register { key, sa_key: second, aptpl: persist, ignore_existing_key: action == 6 }
        }
        1 => ReserveCommand::Reserve(key, kind?),
        2 => ReserveCommand::Release(key, kind?),
        3 => ReserveCommand::Clear(key),
        _ => ReserveCommand::Preempt { key, sa_key: second, kind: kind? },
    };
    Some((service, action == 5))
}

/// Returns how a command accesses a unit, if a reservation may stop it (SPC-4 §5.13, SBC-4 §4.17), and
/// what it asks about reservations. Returns `None` for commands that the standards leave to the device.
fn access_of(cdb: &[u8]) -> Option<(Access, Option<Question>)> {
    match cdb[0] {
        0x08 | 0x28 | 0xa8 | 0x88 | 0x8f => Some((Access::Reads, None)),
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x41 | 0x93 | 0x42 | 0x89 | 0x35 | 0x91 | 0x83 => {
            Some((Access::Writes, None))
        }
        0x5e => Some((
            Access::Asks,
            match cdb[1] & 0x1f {
                0 => Some(Question::Keys),
                1 => Some(Question::Reservation),
                _ => None,
            },
        )),
        _ => None,
    }
}
