//! The additional checks in special worlds: reloads, memory shortage, media that corrupt data; and the checks
//! of the causes of errors, in all worlds.

use std::collections::{BTreeMap, BTreeSet};

use base::time::Instant;
use base::units::Lba;
use oracle::block_check::BlockCheck;
use oracle::block_header::{Sequence, WriterId};
use oracle::history::{Content, Finding, Violation};

use super::{Managing, SHUTDOWN_TIMEOUT, World};
use crate::causes::{CauseJudge, CauseRules};
use crate::corruption::{self, Corruptions};
use crate::layout::Layout;
use crate::media::Medium;
use crate::oracle_adapter::Effect;
use crate::property::{Property, PropertyViolation};
use crate::scenario::{Scenario, TransportPlan};
use crate::transport::{CommandOutcome, ScsiCommand, Ticket};
use crate::views::{self, InitiatorViews};

/// The state of the check of media that corrupt data.
#[derive(Default)]
pub(super) struct CorruptionCheck {
    /// Open commands that compare what they wrote.
    verifying: BTreeMap<Ticket, (u16, WriterId, Sequence)>,
    /// What the oracle found in the inspection at the end.
    named: BTreeSet<(u16, Lba, Violation)>,
}

const BUSY: &str = "commands that ended BUSY";
const FULL: &str = "commands that ended TASK SET FULL";
const ALARMS: &str = "harmed blocks that were found";
const NOTICED: &str = "WRITE AND VERIFY that noticed harm";

/// Returns a counter of zero for every event that is counted, however rare the event is.
pub(super) fn nothing_counted() -> BTreeMap<&'static str, u64> {
    let kinds = corruption::KINDS.into_iter().chain([ALARMS, NOTICED]);
    views::counted().chain([BUSY, FULL]).chain(kinds).map(|what| (what, 0)).collect()
}

/// Returns what initiators know of LUNs, if reloads change LUNs in this scenario.
pub(super) fn views_of(scenario: &Scenario, now: Instant) -> Option<InitiatorViews> {
    let plan = scenario.reloads?;
    Some(InitiatorViews::new(scenario, plan, now, scenario.seed ^ 0x7669_6577))
}

/// Returns the judge of errors and unit attentions.
pub(super) fn causes_of(scenario: &Scenario) -> CauseJudge {
    let refuses = |unit: u16| match &scenario.transport {
        TransportPlan::HyperScsi(plan) => plan.refuses(unit),
        TransportPlan::Direct | TransportPlan::Iscsi(_) => false,
    };
    CauseJudge::new(CauseRules {
        initiators: scenario.initiators,
        transport_aborts: matches!(scenario.transport, TransportPlan::Iscsi(_)),
        refuses_protection: (0..scenario.units).map(refuses).collect(),
        block_len: scenario.medium.block_len,
        medium_within: scenario.medium.effect.to + scenario.medium.answer.to,
        task_set_max: scenario.task_set_max.into(),
        has_reservations: scenario.reserves_one_in > 0,
        data_bytes_max: match &scenario.transport {
            TransportPlan::Direct => None,
            TransportPlan::Iscsi(plan) => {
                Some(plan.limits.data_out_bytes_max.min(plan.limits.data_in_bytes_max))
            }
            TransportPlan::HyperScsi(plan) => Some(plan.room_bytes),
        },
        early_data_bytes: match &scenario.transport {
            TransportPlan::Direct | TransportPlan::Iscsi(_) => 0,
            TransportPlan::HyperScsi(plan) => usize::try_from(plan.first_burst).unwrap(),
        },
        has_reloads: scenario.reloads.is_some(),
    })
}

impl World {
    /// Returns how often each event happened that is judged here; zeros included.
    pub(super) fn counted(self) -> Vec<(&'static str, u64)> {
        let mut counts = self.causes.counts().to_vec();
        if !self.scenario.special {
            return counts;
        }
        if !matches!(self.scenario.transport, TransportPlan::Direct) {
            let repeated = self.media.iter().map(Medium::repeated).sum();
            counts.push(("blocks written again by commands that were repeated", repeated));
        }
        let views = self.views.iter().flat_map(|views| &views.counts);
        let mut own = self.counts;
        views.for_each(|(what, count)| *own.entry(what).or_default() += count);
        counts.extend(own);
        counts
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Draws the next command of an initiator, with its effect on blocks.
    pub(super) fn draw(&mut self, initiator: usize) -> (ScsiCommand, Effect) {
        let corruptions = self.scenario.medium.corruption.is_some();
        let (order, meaning) = loop {
            let drawn = self.actors[initiator].workload.next(&self.oracle);
            // A copy of a corrupted block is corrupt as well, although no medium corrupted it.
            if !corruptions || drawn.0.cdb[0] != EXTENDED_COPY {
                break drawn;
            }
        };
        match &mut self.views {
            Some(views) => views.address(initiator, order, meaning),
            None => (order, meaning),
        }
    }

    /// Records that a command is about to be sent.
    pub(super) fn note_sent(
        &mut self,
        initiator: usize,
        ticket: Ticket,
        order: &ScsiCommand,
        meaning: &Effect,
    ) {
        let now = self.clock.now();
        self.causes.sent(now, initiator, ticket, order, meaning);
        if let Some(signature) = crate::oracle_adapter::signature_of(meaning).filter(|_| order.replay) {
            self.media.iter().for_each(|medium| medium.admit_repeats(signature));
        }
        if let Some(views) = &mut self.views {
            views.sent(initiator, ticket, order);
        }
        let compares = order.cdb[1] >> 1 & 3 == 1;
        if self.scenario.medium.corruption.is_some()
            && matches!(order.cdb[0], 0x2e | 0xae | 0x8e)
            && compares
            && let Some(block) = order.data_out.get(..self.scenario.medium.block_len)
            && let BlockCheck::Signed(block_header) = BlockCheck::of(block)
        {
            self.harmed.verifying.insert(ticket, (order.unit, block_header.writer, block_header.sequence));
        }
    }

    /// Checks how a command ended, by the rules that the oracle does not know.
    pub(super) fn note_ended(&mut self, ticket: Ticket, ended: &CommandOutcome) {
        match ended {
            CommandOutcome::Status { status: 0x08, .. } => self.count(BUSY),
            CommandOutcome::Status { status: 0x28, .. } => self.count(FULL),
            _ => {}
        }
        self.judge_cause(ticket, ended);
        let wrong = self.views.as_mut().and_then(|views| views.ended(ticket, ended));
        wrong.into_iter().for_each(|PropertyViolation { property, how }| self.fail(property, how));
        let Some((unit, writer, sequence)) = self.harmed.verifying.remove(&ticket) else { return };
        let harmed = self
            .corruptions(unit)
            .is_some_and(|corruptions| corruptions.has_corrupted_write(writer, sequence));
        if harmed && matches!(ended, CommandOutcome::Status { status: 0, .. }) {
            let how = format!("order {} ended GOOD, and its medium did it harm", ticket.0);
            self.fail(Property::Verified, how);
        }
        if harmed && crate::oracle_adapter::sense_code(ended).is_some_and(|(key, _)| key == MISCOMPARE) {
            self.count(NOTICED);
        }
    }

    /// Checks that the end of a command has a cause, and that the causes before it were told.
    fn judge_cause(&mut self, ticket: Ticket, ended: &CommandOutcome) {
        let judge = &mut self.causes;
        for (unit, medium) in (0..).zip(&self.media) {
            medium.take_failed().into_iter().for_each(|failure| judge.medium_failed(unit, failure));
        }
        for (ticket, unit, told) in self.oracle.take_attentions() {
            judge.reservations_changed(ticket, unit, told);
        }
        let last_fault = Some(self.transport.last_fault()).filter(|at| *at > self.start);
        let was_hidden = self.views.as_ref().is_some_and(|views| views.may_find_no_unit(ticket));
        let wrong = judge.ended(ticket, ended, self.clock.now(), last_fault, was_hidden);
        wrong.into_iter().for_each(|PropertyViolation { property, how }| self.fail(property, how));
    }

    /// Records how a task management function ended.
    pub(super) fn note_managed(&mut self, ticket: Ticket, answer: Option<bool>) {
        if let Some(views) = &mut self.views {
            views.managed(ticket, answer);
        }
        let Some(Managing { initiator, .. }) = self.managing.remove(&ticket) else {
            return self.fail(Property::Ends, format!("management request {} ended twice", ticket.0));
        };
        let now = self.clock.now();
        self.causes.function_ended(now, initiator, ticket, answer);
    }

    /// Records that an initiator or the target lost a connection between them.
    pub(super) fn note_connection_lost(&mut self, initiator: usize) {
        self.causes.connection_lost(initiator);
    }

    /// Records that an initiator reaches its units, in a new I_T nexus or in the one that it had.
    pub(super) fn note_up(&mut self, initiator: usize, is_new_nexus: bool) {
        if let Some(views) = &mut self.views {
            views.up(self.clock.now(), initiator);
        }
        if is_new_nexus {
            let now = self.clock.now();
            self.causes.nexus_began(now, initiator);
        }
    }

    /// Applies another configuration if a reload is due.
    pub(super) fn reload(&mut self, now: Instant) {
        let Some((change, layout)) = self.views.as_mut().and_then(|views| views.reload(now)) else { return };
        self.trace.say(|| format!("reload: {change:?}"));
        self.apply_layout(now, layout);
    }

    /// Applies the first configuration again. No reload follows.
    pub(super) fn end_reloads(&mut self, now: Instant) {
        if let Some(layout) = self.views.as_mut().map(InitiatorViews::end) {
            self.apply_layout(now, layout);
        }
    }

    fn apply_layout(&mut self, now: Instant, layout: Layout) {
        self.trace.say(|| format!("wanted: {layout:?}"));
        self.transport.reload(now, layout);
        self.handle_events();
    }

    /// Checks whether an initiator may have lost its session; `is_final`: because it is to go.
    pub(super) fn note_down(&mut self, initiator: usize, is_final: bool) {
        if is_final || !self.actors[initiator].up {
            return;
        }
        let wrong = self.views.as_mut().and_then(|views| views.down(initiator));
        wrong.into_iter().for_each(|PropertyViolation { property, how }| self.fail(property, how));
    }

    /// Checks whether a task management function may remain without an answer for so long.
    pub(super) fn note_unanswered(&mut self, ticket: Ticket, initiator: usize) {
        let Some(views) = &mut self.views else { return };
        views.gives_up(initiator);
        if views.is_calm() {
            self.fail(Property::Managed, format!("request {} of initiator {initiator}", ticket.0));
        }
    }

    /// Checks that the target frees every byte that it held for a command, once every command has ended and
    /// the initiators have acknowledged the answers.
    pub(super) fn return_memory(&mut self) {
        let limit = self.clock.now().after(SHUTDOWN_TIMEOUT);
        while self.failures.is_empty() && self.transport.data_held() > 0 {
            self.step();
            if self.clock.now() > limit {
                self.fail(Property::MemoryFreed, format!("{} bytes are held", self.transport.data_held()));
            }
        }
    }

    fn corruptions(&self, unit: u16) -> Option<Corruptions> {
        self.media[usize::from(unit)].corruptions()
    }

    /// Judges a finding of the oracle: in a block that its medium corrupted, the medium is the cause.
    pub(super) fn judge(&mut self, finding: &Finding) {
        let unit = self.oracle.unit_of(finding.device);
        let Some(corruptions) = self.corruptions(unit) else {
            return self.fail(finding.violation.into(), finding.to_string());
        };
        if !corruptions.has_corrupted(finding.lba.0) {
            return self.fail(Property::NoFalseAlarm, finding.to_string());
        }
        self.trace.say(|| format!("explained by the medium: {finding}"));
        self.count(ALARMS);
        self.harmed.named.insert((unit, finding.lba, finding.violation));
    }

    /// Checks that the oracle's findings at the end include the corruption that media caused.
    ///
    /// The oracle must find a corrupted block if only one content was legal there, and the medium would hold
    /// it without the corruption.
    pub(super) fn judge_names(&mut self) {
        let block_len = self.scenario.medium.block_len;
        let len = usize::try_from(self.scenario.medium.len).unwrap();
        for (unit, medium) in (0..).zip(self.media.clone()) {
            let Some(corruptions) = medium.corruptions() else { continue };
            for (what, count) in corruption::KINDS.into_iter().zip(corruptions.counts()) {
                *self.counts.entry(what).or_default() += count;
            }
            let (held, truth) = (medium.contents(0, len), corruptions.truth());
            let blocks = held.chunks(block_len).zip(truth.chunks(block_len));
            for (lba, (held, truth)) in (0..).map(Lba).zip(blocks) {
                if held == truth {
                    continue;
                }
                let expected = self.oracle.history().expected_content(self.oracle.device(unit), lba);
                let whole = content_of(&BlockCheck::of(truth));
                if whole.is_none_or(|whole| expected != [whole]) {
                    continue;
                }
                let names = names_of(&BlockCheck::of(held), lba);
                if !names.iter().any(|name| self.harmed.named.contains(&(unit, lba, *name))) {
                    let held = BlockCheck::of(held);
                    let how = format!("{lba} of unit {unit} holds {held}, which is not told as {names:?}");
                    self.fail(Property::HarmNamed, how);
                }
            }
        }
    }
}

const EXTENDED_COPY: u8 = 0x83;
const MISCOMPARE: u8 = 0xe;

fn content_of(reading: &BlockCheck) -> Option<Content> {
    match reading {
        BlockCheck::Zero => Some(Content::Zero),
        BlockCheck::Signed(block_header) => Some(Content::of(*block_header)),
        _ => None,
    }
}

/// Returns the violations that the oracle may report for a block with this content that should have another
/// one. A block from an earlier WRITE SAME can belong to another address without any corruption. An old
/// version may be illegal only because a later task, or a COMPARE AND WRITE, replaced it: the oracle cannot
/// know that the medium lost that later write, and reports that the order was broken.
fn names_of(held: &BlockCheck, lba: Lba) -> Vec<Violation> {
    match held {
        BlockCheck::Zero => vec![Violation::Lost, Violation::Reordered, Violation::NotAtomic],
        BlockCheck::Signed(block_header) if block_header.lba != lba => {
            vec![Violation::Misdirected, Violation::Stale, Violation::Reordered, Violation::NotAtomic]
        }
        BlockCheck::Signed(_) => {
            vec![Violation::Stale, Violation::Unsubmitted, Violation::Reordered, Violation::NotAtomic]
        }
        BlockCheck::Torn(_) => vec![Violation::Torn],
        BlockCheck::Garbled(_) => vec![Violation::Garbled],
    }
}
