//! Judges whether every error status has a cause that the world knows: a failure of a medium, a unit
//! attention that was established, a command that cannot be executed, a full task set. And whether every
//! cause is told.
//!
//! A unit attention is told to one command of each I_T nexus that it concerns (SAM-5 §5.14). The judge knows,
//! for each initiator and unit, which conditions can be pending ([`attentions`]); another one was invented.
//! Resets (I_T nexus losses among them) and what another initiator does to reservations also have to be told:
//! a command that an initiator sends after such a cause, and that ends otherwise, shows that the unit forgot
//! the condition, unless a command that was open at that time brings it.
//!
//! Where reloads change LUNs, a LUN stands for different disks over time, and unit attentions are those of
//! disks. The judge then leaves unit attentions, and errors that only a reload causes, to
//! [`crate::views::InitiatorViews`], and asks of all other errors whether any disk is their cause.

mod attentions;
mod rules;
mod task_set;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use base::time::{Duration, Instant};
use oracle::history::Planned;
use oracle::reservations::{Attentions as ReservationAttentions, Nexus};
use scsi::sense::{Asc, SenseKey};

use crate::media::MediumFailure;
use crate::oracle_adapter::{
    BUSY, Effect, GOOD, RESERVATION_CONFLICT, TASK_ABORTED, TASK_SET_FULL, is_check_condition, sense_code,
};
use crate::property::{Property, PropertyViolation};
use crate::transport::{CommandOutcome, ScsiCommand, TaskManagement, Ticket};
use attentions::{Attentions, Cause, Kind, Settled};
pub(crate) use rules::CauseRules;
use task_set::Occupancy;

/// The judge of a world.
#[derive(Debug)]
pub(crate) struct CauseJudge {
    rules: CauseRules,
    units: u16,
    block_len: u64,
    occupancy: Occupancy,
    failures: Vec<(u16, MediumFailure)>,
    open: BTreeMap<Ticket, OpenCommand>,
    told: BTreeMap<(usize, u16), Attentions>,
    /// The task management functions that have not ended, and when they were sent.
    functions: BTreeMap<Ticket, (TaskManagement, Instant)>,
    /// The requests whose end is unknown, and that the target may still execute until their initiator has a
    /// new I_T nexus.
    lost: Vec<(usize, Ticket, Duration)>,
    next_ticket: Ticket,
    counts: Counts,
}

/// How often events happened that are judged here.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    full: u64,
    failures: u64,
    attentions: u64,
    resets_due: u64,
    reservations_due: u64,
}

#[derive(Debug)]
struct OpenCommand {
    initiator: usize,
    unit: u16,
    opcode: u8,
    /// Whether the command flushes: it is a flush, or has FUA, or verifies what it has written.
    flushes: bool,
    /// Whether its initiator may execute it again in another session or on another connection.
    repeats: bool,
    immediate: bool,
    /// How many bytes of data the command transfers.
    data_bytes: usize,
    since: Instant,
    /// The byte ranges that the command accesses, of its unit or, if it copies, of any unit.
    ranges: Vec<(u64, u64)>,
}

/// How long a change of reservations that is being saved may still come into force after its command was
/// aborted or lost.
const SAVED_WITHIN: Duration = Duration::from_millis(20);

/// From this time on, an initiator may have sent an immediate function again, and the target executes each
/// copy: five times the shortest time after which initiators of these worlds look for lost PDUs.
const REPEATED_AFTER: Duration = Duration::from_millis(250);

/// How long a copy of a function may be on its way after the function has ended.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

/// The additional sense codes with which iSCSI ends a task (RFC 7143 §11.4.7.2).
const BY_TRANSPORT: [u16; 7] = [0x0c0c, 0x0c0d, 0x1113, 0x4705, 0x4b01, 0x4b05, 0x4b06];

/// COMPARE AND WRITE, VERIFY(16), WRITE AND VERIFY.
const COMPARING: [u8; 5] = [0x89, 0x8f, 0x2e, 0xae, 0x8e];

const INQUIRY: u8 = 0x12;
const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
/// The service action of PERSISTENT RESERVE OUT.
const PREEMPT_AND_ABORT: u8 = 5;
const PERSISTENT_RESERVE_IN: u8 = 0x5e;
const EXTENDED_COPY: u8 = 0x83;
const REPORT_LUNS: u8 = 0xa0;
/// The opcode that workloads send and no unit knows.
const UNKNOWN: u8 = 0xff;

impl CauseJudge {
    /// Makes the judge of a world.
    pub(crate) fn new(rules: CauseRules) -> Self {
        Self {
            units: u16::try_from(rules.refuses_protection.len()).unwrap(),
            block_len: u64::try_from(rules.block_len).unwrap(),
            rules,
            occupancy: Occupancy::default(),
            failures: Vec::new(),
            open: BTreeMap::new(),
            told: BTreeMap::new(),
            functions: BTreeMap::new(),
            lost: Vec::new(),
            next_ticket: Ticket(0),
            counts: Counts::default(),
        }
    }

    /// Records an operation of a medium that failed.
    pub(crate) fn medium_failed(&mut self, unit: u16, failure: MediumFailure) {
        self.failures.push((unit, failure));
    }

    /// Records that an initiator has a new I_T nexus: each of its units has a unit attention for it.
    pub(crate) fn nexus_began(&mut self, now: Instant, initiator: usize) {
        let lost = std::mem::take(&mut self.lost);
        let (over, left) = lost.into_iter().partition(|(of, ..)| *of == initiator);
        let gone = now.after(SAVED_WITHIN).after(self.rules.medium_within);
        self.occupancy.nexus_began(gone, initiator);
        self.lost = left;
        for (_, ticket, within) in over {
            self.settle(Cause::Request(ticket), Settled::At(now.after(within)));
        }
        for unit in 0..self.units {
            let next = self.next_ticket;
            let attentions = self.attentions(initiator, unit);
            attentions.settle(Cause::Connection, Settled::Before(next));
            // What was due before was due in the nexus that is gone.
            attentions.may_have_told();
            attentions.expect(Kind::Reset, Cause::Nexus, Settled::Before(next));
            attentions.establish(Kind::Reset, Cause::Nexus);
            self.counts.resets_due += 1;
        }
    }

    /// Records that a connection of an initiator was lost. Its tasks may end with it, all of them together:
    /// one unit attention reports them. Only at ErrorRecoveryLevel 2, where immediate commands cannot be
    /// reassigned, these end first and the others later.
    pub(crate) fn connection_lost(&mut self, initiator: usize) {
        for unit in 0..self.units {
            let is_immediate =
                |open: &OpenCommand| (open.initiator, open.unit) == (initiator, unit) && open.immediate;
            let times = if self.open.values().any(is_immediate) { 2 } else { 1 };
            let attentions = self.attentions(initiator, unit);
            for _ in 0..times {
                attentions.expect(Kind::ClearedByTransport, Cause::Connection, Settled::No);
            }
        }
    }

    /// Records that a task management function was sent.
    pub(crate) fn function_sent(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        function: TaskManagement,
    ) {
        self.next_ticket = Ticket(ticket.0 + 1);
        self.functions.insert(ticket, (function, now));
        let aborts = match function {
            TaskManagement::ClearTaskSet(unit) => unit..unit + 1,
            _ => units_reset_by(function, self.units),
        };
        self.occupancy.aborts(ticket, initiator, aborts);
        for unit in 0..self.units {
            let Some(kind) = attention_by(function, unit, self.units) else { continue };
            for of in (0..self.rules.initiators).filter(|of| kind == Kind::Reset || *of != initiator) {
                self.attentions(of, unit).expect(kind, Cause::Request(ticket), Settled::No);
            }
        }
    }

    /// Records how a task management function of an initiator ended.
    pub(crate) fn function_ended(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        answer: Option<bool>,
    ) {
        let Some((function, since)) = self.functions.remove(&ticket) else { return };
        // Initiators over other transports send a function once.
        let copies = now.since(since).as_nanos() / REPEATED_AFTER.as_nanos();
        let copies = if self.rules.transport_aborts { u64::try_from(copies).unwrap() } else { 0 };
        let is_repeated = copies > 0;
        if is_repeated {
            let attentions = self.told.values_mut();
            attentions.for_each(|attentions| attentions.may_recur(Cause::Request(ticket), copies));
        }
        let within = if is_repeated { REPEATED_WITHIN } else { Duration::ZERO };
        self.occupancy.abort_ended(ticket, answer.map(|_| now.after(within)));
        if answer.is_none() {
            return self.lost.push((initiator, ticket, within));
        }
        let at = if is_repeated { Settled::At(now.after(within)) } else { Settled::Before(self.next_ticket) };
        self.settle(Cause::Request(ticket), at);
        for unit in units_reset_by(function, self.units) {
            for of in (0..self.rules.initiators).filter(|_| answer == Some(true)) {
                let is_due = self.attentions(of, unit).establish(Kind::Reset, Cause::Request(ticket));
                self.counts.resets_due += u64::from(is_due);
            }
        }
    }

    /// Records that a command has certainly changed reservations, and the unit attentions that this
    /// establishes.
    pub(crate) fn reservations_changed(&mut self, ticket: Ticket, unit: u16, told: ReservationAttentions) {
        for (code, nexuses) in [
            (Asc::REGISTRATIONS_PREEMPTED, told.registrations_preempted),
            (Asc::RESERVATIONS_PREEMPTED, told.reservations_preempted),
            (Asc::RESERVATIONS_RELEASED, told.reservations_released),
        ] {
            let all = (0..self.rules.initiators).zip((0..).map(Nexus));
            for (of, _) in all.filter(|(_, nexus)| nexuses.has(*nexus)) {
                let kind = Kind::Reservations(code.0);
                let is_due = self.attentions(of, unit).establish(kind, Cause::Request(ticket));
                self.counts.reservations_due += u64::from(is_due);
            }
        }
    }

    /// Records that a command is sent.
    pub(crate) fn sent(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        order: &ScsiCommand,
        meaning: &Effect,
    ) {
        self.next_ticket = Ticket(ticket.0 + 1);
        let opcode = order.cdb[0];
        self.attentions(initiator, order.unit).command_sent(now, ticket);
        if opcode == PERSISTENT_RESERVE_OUT {
            for of in (0..self.rules.initiators).filter(|of| *of != initiator) {
                for kind in attentions_by(order.cdb[1] & 0x1f) {
                    self.attentions(of, order.unit).expect(*kind, Cause::Request(ticket), Settled::No);
                }
            }
        }
        if opcode == PERSISTENT_RESERVE_OUT && order.cdb[1] & 0x1f == PREEMPT_AND_ABORT {
            self.occupancy.aborts(ticket, initiator, order.unit..order.unit + 1);
        }
        let ranges = self.ranges_of(meaning);
        let flushes =
            matches!(opcode, 0x35 | 0x91 | 0x2e | 0xae | 0x8e) || (opcode >= 0x20 && order.cdb[1] & 8 != 0);
        let unit = order.unit;
        let (repeats, immediate) = (order.replay, order.immediate);
        let early = if order.data_out.is_empty() { 0 } else { self.rules.early_data_bytes };
        let data_bytes = usize::try_from(order.data_in_len).unwrap() + order.data_out.len().max(early);
        let command = OpenCommand {
            initiator,
            unit,
            opcode,
            flushes,
            repeats,
            immediate,
            data_bytes,
            since: now,
            ranges,
        };
        self.open.insert(ticket, command);
    }

    /// Judges how a command ended. `last_fault`: when the transport last lost connections or data, if it has.
    /// `was_hidden`: whether a reload took away what its LUN led to.
    pub(crate) fn ended(
        &mut self,
        ticket: Ticket,
        ended: &CommandOutcome,
        now: Instant,
        last_fault: Option<Instant>,
        was_hidden: bool,
    ) -> Option<PropertyViolation> {
        let command = self.open.remove(&ticket)?;
        let of = (command.initiator, command.unit);
        self.occupancy.ended(now, &command, ended, self.open.values());
        let had_fault = last_fault.is_some_and(|at| at >= command.since);
        if command.repeats && had_fault {
            // Its first execution may have brought the condition in an answer that was lost.
            self.attentions(of.0, of.1).may_have_told();
        }
        if command.opcode == PERSISTENT_RESERVE_OUT {
            self.reservation_command_ended(now, of.0, ticket, ended);
        }
        let wrong = match ended {
            CommandOutcome::Status { status, .. } => match sense_code(ended) {
                Some((key, code)) if SenseKey(key) == SenseKey::UNIT_ATTENTION => {
                    self.attention_told(of, ticket, command.opcode, code)
                }
                Some((key, code)) => self.judge_error(&command, SenseKey(key), code, was_hidden),
                None if is_check_condition(ended) => Some("it has no sense data".into()),
                None => self.judge_status(&command, *status),
            }
            .map(|how| (Property::Caused, how)),
            // A command that was aborted had no status. Over iSCSI the status may have been lost with a
            // connection before the abort. An immediate command may also have been executed after a reset on
            // another connection whose end concluded the command (RFC 7143 §4.2.3.3). HyperSCSI aborts no
            // command that has ended.
            CommandOutcome::Aborted if !(self.rules.transport_aborts && (had_fault || command.immediate)) => {
                None
            }
            CommandOutcome::Refused => None,
            // The unit may have told the condition to a command whose answer did not arrive.
            CommandOutcome::Aborted | CommandOutcome::Failed | CommandOutcome::Lost => {
                self.attentions(of.0, of.1).may_have_told();
                None
            }
        };
        let wrong = wrong.or_else(|| {
            let kind = self.forgotten(&command, ticket, ended)?;
            Some((Property::Told, format!("no command was told of {kind}")))
        });
        let (initiator, unit) = of;
        wrong.map(|(property, how): (_, String)| {
            let how = format!("order {} of initiator {initiator} to unit {unit}: {how}", ticket.0);
            PropertyViolation::new(property, how)
        })
    }

    /// Returns how often each event happened that is judged here; zeros included.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 5] {
        [
            ("TASK SET FULL of a task set that was full", self.counts.full),
            ("errors with a failure of the medium as their cause", self.counts.failures),
            ("unit attentions with a cause", self.counts.attentions),
            ("resets and new nexuses that had to be told", self.counts.resets_due),
            ("unit attentions of reservations that had to be told", self.counts.reservations_due),
        ]
    }

    /// Returns why a status other than CHECK CONDITION has no cause, if it has none.
    fn judge_status(&mut self, command: &OpenCommand, status: u8) -> Option<String> {
        let unit = (!self.rules.has_reloads).then_some(command.unit);
        match status {
            GOOD => None,
            TASK_ABORTED if self.occupancy.can_be_aborted(command, unit) => None,
            TASK_SET_FULL => {
                let others = self.occupancy.others(command, unit, self.open.values());
                self.counts.full += 1;
                let max = self.rules.task_set_max;
                (others < max).then(|| {
                    format!("it ended TASK SET FULL, and at most {others} of {max} commands were there")
                })
            }
            // A copy manager runs a bounded number of operations at a time.
            BUSY if command.opcode == EXTENDED_COPY => None,
            // The transport has no memory for the data, or a function ended a command that waited for it.
            BUSY if self.can_be_short_of_memory(command) => None,
            RESERVATION_CONFLICT if self.rules.has_reservations => None,
            _ => Some(format!("it ended with status {status:02x}h, which nothing has caused")),
        }
    }

    /// Returns whether the data of the commands that can be in the target can take so much of its memory that
    /// a session gets no more. A quota has half of the memory, and a session at least a quarter of a quota.
    fn can_be_short_of_memory(&self, command: &OpenCommand) -> bool {
        let held = self.occupancy.data_bytes(command, self.open.values());
        self.rules.data_bytes_max.is_some_and(|max| held >= max / 8)
    }

    /// Returns why an error has no cause, if it has none.
    fn judge_error(
        &mut self,
        command: &OpenCommand,
        key: SenseKey,
        code: u16,
        was_hidden: bool,
    ) -> Option<String> {
        let is_caused = match key {
            SenseKey::MEDIUM_ERROR | SenseKey::HARDWARE_ERROR => {
                let is_known = self.medium_has_failed(command)
                    || (key == SenseKey::HARDWARE_ERROR
                        && command.flushes
                        && self.flush_has_failed(command.unit));
                self.counts.failures += u64::from(is_known);
                is_known
            }
            SenseKey::COPY_ABORTED => command.opcode == EXTENDED_COPY,
            SenseKey::ILLEGAL_REQUEST | SenseKey::DATA_PROTECT if self.refuses(command) => true,
            // Without a unit, INQUIRY has no page 83h.
            SenseKey::ILLEGAL_REQUEST
                if was_hidden
                    && (Asc(code) == Asc::LOGICAL_UNIT_NOT_SUPPORTED || command.opcode == INQUIRY) =>
            {
                true
            }
            SenseKey::DATA_PROTECT => self.rules.has_reloads && Asc(code) == Asc::WRITE_PROTECTED,
            SenseKey::ILLEGAL_REQUEST => matches!(
                command.opcode,
                UNKNOWN | PERSISTENT_RESERVE_IN | PERSISTENT_RESERVE_OUT | EXTENDED_COPY
            ),
            SenseKey::MISCOMPARE => COMPARING.contains(&command.opcode),
            SenseKey::ABORTED_COMMAND => self.rules.transport_aborts && BY_TRANSPORT.contains(&code),
            _ => false,
        };
        (!is_caused).then(|| format!("it ended with {key:?} {code:04x}h, which nothing has caused"))
    }

    /// Returns whether the unit of a command demands more protection than its initiator uses.
    fn refuses(&self, command: &OpenCommand) -> bool {
        let refuses = &self.rules.refuses_protection;
        // The LUN can lead to any disk.
        if self.rules.has_reloads { refuses.contains(&true) } else { refuses[usize::from(command.unit)] }
    }

    fn medium_has_failed(&self, command: &OpenCommand) -> bool {
        self.failures.iter().any(|(unit, failure)| {
            let is_own = *unit == command.unit || command.opcode == EXTENDED_COPY || self.rules.has_reloads;
            let overlaps = |(from, to): &(u64, u64)| failure.from < *to && *from < failure.to;
            is_own && failure.at >= command.since && command.ranges.iter().any(overlaps)
        })
    }

    /// Returns whether a flush of a unit has failed: what it lost stays lost, and later flushes say so.
    fn flush_has_failed(&self, unit: u16) -> bool {
        let any = self.rules.has_reloads;
        self.failures.iter().any(|(of, failure)| (*of == unit || any) && failure.to == u64::MAX)
    }

    /// Records how a PERSISTENT RESERVE OUT ended.
    fn reservation_command_ended(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        ended: &CommandOutcome,
    ) {
        self.occupancy.abort_ended(
            ticket,
            match ended {
                CommandOutcome::Status { .. } | CommandOutcome::Refused => Some(now),
                CommandOutcome::Failed | CommandOutcome::Aborted => Some(now.after(SAVED_WITHIN)),
                CommandOutcome::Lost => None,
            },
        );
        let settled = match ended {
            CommandOutcome::Status { .. } | CommandOutcome::Refused => Settled::Before(self.next_ticket),
            CommandOutcome::Failed | CommandOutcome::Aborted => Settled::At(now.after(SAVED_WITHIN)),
            CommandOutcome::Lost => return self.lost.push((initiator, ticket, SAVED_WITHIN)),
        };
        self.settle(Cause::Request(ticket), settled);
    }

    /// Returns why a unit attention has no cause, if it has none.
    fn attention_told(&mut self, of: (usize, u16), teller: Ticket, opcode: u8, code: u16) -> Option<String> {
        if !reports_attentions(opcode) {
            return Some(format!("command {opcode:02x}h ended with the unit attention {code:04x}h"));
        }
        if self.rules.has_reloads {
            return None;
        }
        let Some(kind) = Kind::of(code) else {
            return Some(format!("it ended with the unit attention {code:04x}h, which nothing has caused"));
        };
        // An initiator sends an immediate request again that is not answered: it cannot know whether the
        // first one arrived, and the target executes each.
        let mut open = self.functions.values();
        let may_repeat = open.any(|(function, _)| attention_by(*function, of.1, self.units) == Some(kind));
        if !self.attentions(of.0, of.1).told(kind, teller, may_repeat) {
            return Some(format!("the unit attention {code:04x}h was told more often than it was caused"));
        }
        self.counts.attentions += 1;
        None
    }

    /// Returns a condition that was never told, if the end of a command shows one.
    fn forgotten(&mut self, command: &OpenCommand, ticket: Ticket, ended: &CommandOutcome) -> Option<Kind> {
        if self.rules.has_reloads || self.refuses(command) {
            return None;
        }
        let of = (command.initiator, command.unit);
        let is_open = |(_, open): &(&Ticket, &OpenCommand)| (open.initiator, open.unit) == of;
        let open: BTreeSet<Ticket> = self.open.iter().filter(is_open).map(|(ticket, _)| *ticket).collect();
        let sense = sense_code(ended).map(|(key, code)| (SenseKey(key), code));
        let told = sense.filter(|(key, _)| *key == SenseKey::UNIT_ATTENTION).map(|(_, code)| Kind::of(code));
        // The transport can end a command with ABORTED COMMAND before it reaches its unit.
        let was_executed = matches!(ended, CommandOutcome::Status { status: GOOD, .. })
            || sense.is_some_and(|(key, _)| key != SenseKey::ABORTED_COMMAND);
        let is_absent = |kind| {
            reports_attentions(command.opcode)
                && was_executed
                // A unit tells of resets first, and of other conditions in the order of their causes.
                && told.is_none_or(|told| kind == Kind::Reset || told == Some(kind))
        };
        self.attentions(of.0, of.1).command_ended(ticket, is_absent, &open).pop()
    }

    /// Records that a cause can establish no unit attention any more, or only until some time.
    fn settle(&mut self, cause: Cause, settled: Settled) {
        self.told.values_mut().for_each(|attentions| attentions.settle(cause, settled));
    }

    fn attentions(&mut self, initiator: usize, unit: u16) -> &mut Attentions {
        self.told.entry((initiator, unit)).or_default()
    }

    fn ranges_of(&self, meaning: &Effect) -> Vec<(u64, u64)> {
        let range = |lba: u64, blocks: u64| (lba * self.block_len, (lba + blocks) * self.block_len);
        match meaning {
            Effect::Read { lba, blocks, .. } => vec![range(lba.0, *blocks)],
            Effect::Verify { lba, expected, .. } => {
                vec![range(lba.0, u64::try_from(expected.len()).unwrap())]
            }
            Effect::CompareAndWrite(change, _) => vec![range(change.lba.0, change.blocks)],
            Effect::Change(changes) => changes
                .iter()
                .map(|change| match change.content {
                    // It reads elsewhere.
                    Planned::CopyOf(..) => (0, u64::MAX),
                    _ => range(change.lba.0, change.blocks),
                })
                .collect(),
            Effect::Flush(_) => vec![(0, u64::MAX)],
            Effect::Nothing => Vec::new(),
        }
    }
}

/// Returns the kind of the unit attention that a function can establish at a unit.
fn attention_by(function: TaskManagement, unit: u16, units: u16) -> Option<Kind> {
    match function {
        TaskManagement::ClearTaskSet(of) if of == unit => Some(Kind::Cleared),
        _ if units_reset_by(function, units).contains(&unit) => Some(Kind::Reset),
        _ => None,
    }
}

/// Returns the unit attentions that a PERSISTENT RESERVE OUT with this service action can establish for the
/// nexuses that lose reservations or registrations by it (SPC-4 §5.13).
const fn attentions_by(service_action: u8) -> &'static [Kind] {
    const REGISTRATIONS_PREEMPTED: Kind = Kind::Reservations(Asc::REGISTRATIONS_PREEMPTED.0);
    const RESERVATIONS_PREEMPTED: Kind = Kind::Reservations(Asc::RESERVATIONS_PREEMPTED.0);
    const RESERVATIONS_RELEASED: Kind = Kind::Reservations(Asc::RESERVATIONS_RELEASED.0);
    match service_action {
        // REGISTER and REGISTER AND IGNORE EXISTING KEY, which can end the registration of a holder; RELEASE.
        0 | 6 | 2 => &[RESERVATIONS_RELEASED],
        // CLEAR.
        3 => &[RESERVATIONS_PREEMPTED],
        // PREEMPT.
        4 => &[REGISTRATIONS_PREEMPTED, RESERVATIONS_RELEASED],
        // PREEMPT AND ABORT.
        5 => &[REGISTRATIONS_PREEMPTED, RESERVATIONS_RELEASED, Kind::Cleared],
        _ => &[],
    }
}

/// Returns the units that a function resets, if it succeeds.
fn units_reset_by(function: TaskManagement, units: u16) -> std::ops::Range<u16> {
    match function {
        TaskManagement::UnitReset(unit) => unit..unit + 1,
        TaskManagement::WarmReset | TaskManagement::ColdReset => 0..units,
        _ => 0..0,
    }
}

/// Returns whether a command is told of unit attentions (SAM-5 §5.14: INQUIRY and REPORT LUNS pass them).
const fn reports_attentions(opcode: u8) -> bool {
    !matches!(opcode, INQUIRY | REPORT_LUNS)
}
