//! Keeps unit attentions that our attention checks (see `command_timeout`) received and that callers must not
//! lose.
//!
//! A unit reports a unit attention once, with the first command of the I_T nexus that arrives. If that
//! command was our TEST UNIT READY, the next command of a caller fails with the unit attention that is kept
//! here, as it would have failed at the unit: always if the device was replaced by another one, otherwise if
//! its caller handles unit attentions itself. A guarded unit gets an identity check instead.

use std::collections::{BTreeMap, VecDeque};

use scsi::lun::Lun;
use scsi::opcode;
use scsi::sense::{Asc, Sense, SenseKey};
use transport::initiator::{Outcome, TaskResult};

use super::{DriverEvent, Event, SessionEntry, SessionId};
use crate::command::{Command, CommandError};
use crate::retry::PendingCommand;

/// How many unit attentions of a unit are kept: more than a unit has pending at a time.
const OWED_MAX: usize = 8;

/// Unit attentions that no caller has received, by unit.
#[derive(Debug, Default)]
pub(super) struct PendingAttentions(BTreeMap<Lun, VecDeque<Sense>>);

impl PendingAttentions {
    fn keep(&mut self, lun: Lun, sense: Sense) {
        let kept = self.0.entry(lun).or_default();
        if kept.len() < OWED_MAX && !kept.iter().any(|other| other.asc == sense.asc) {
            kept.push_back(sense);
        }
    }

    /// Removes and returns the unit attention with which a command fails, if there is one.
    fn take(&mut self, command: &Command) -> Option<Sense> {
        if self.0.is_empty() || passes_attentions(command) {
            return None;
        }
        let kept = self.0.get_mut(&command.lun)?;
        if command.absorbs_attentions {
            // The caller receives the others as events.
            kept.retain(|sense| sense.asc == Asc::DEVICE_IDENTIFIER_CHANGED);
        }
        let sense = kept.pop_front();
        if kept.is_empty() {
            self.0.remove(&command.lun);
        }
        sense
    }
}

/// Returns whether a unit executes a command without reporting a unit attention (SPC-5, Unit attention
/// conditions).
fn passes_attentions(command: &Command) -> bool {
    let code = command.cdb.bytes().first().copied().unwrap_or(0);
    matches!(code, opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE)
}

/// Returns the unit attention in the status of a task.
pub(super) fn attention_of(outcome: &Outcome) -> Option<Sense> {
    match &outcome.end {
        TaskResult::Status(ending) => CommandError::of_ending(ending).sense().copied(),
        _ => None,
    }
    .filter(|sense| sense.key == SenseKey::UNIT_ATTENTION)
}

/// Returns the deferred error in the status of a task: that of an earlier command.
fn deferred_of(outcome: &Outcome) -> Option<Sense> {
    match &outcome.end {
        TaskResult::Status(ending) => CommandError::of_ending(ending).sense().copied(),
        _ => None,
    }
    .filter(|sense| sense.deferred)
}

/// Reports the deferred error in the status of a task, if there is one.
pub(super) fn report_deferred(
    session: SessionId,
    lun: Lun,
    outcome: &Outcome,
    events: &mut VecDeque<DriverEvent>,
) {
    if let Some(sense) = deferred_of(outcome) {
        events.push_back(DriverEvent::Session { session, event: Event::DeferredError { lun, sense } });
    }
}

impl SessionEntry {
    /// Keeps a unit attention that an attention check received.
    pub(super) fn keep_attention(&mut self, lun: Lun, sense: Sense) {
        let is_other = sense.asc == Asc::DEVICE_IDENTIFIER_CHANGED;
        if !is_other || !self.guarded_luns.contains_key(&lun) {
            self.overdue.owed.keep(lun, sense);
        }
    }

    /// Returns why a command must not be sent, if there is a reason.
    pub(super) fn refuses(&mut self, pending: &PendingCommand) -> Option<CommandError> {
        if let Some(why) = self.guard_error(pending) {
            return Some(why);
        }
        let sense = pending.is_callers().then(|| self.overdue.owed.take(&pending.command))?;
        sense.map(CommandError::Sense)
    }
}
