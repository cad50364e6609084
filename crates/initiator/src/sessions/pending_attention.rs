//! Unit attentions that a question of ours took (see `overdue`) and that callers must not lose.
//!
//! A unit tells an attention once, to the first command of the I_T nexus that comes. When that was our TEST UNIT READY, the
//! next command of a caller fails with the attention here, as it would have at the unit: always if the device was exchanged
//! for another one, else if its caller wants attentions for himself. A guarded unit is asked instead which device it is.

use std::collections::{BTreeMap, VecDeque};

use iscsi::initiator::contract::{Outcome, TaskResult};
use scsi::lun::Lun;
use scsi::opcode;
use scsi::sense::{Asc, Sense, SenseKey};

use super::SessionEntry;
use crate::command::{Command, CommandError};
use crate::retry::PendingCommand;

/// How many attentions of a unit are kept: more than a unit has to tell at a time.
const OWED_MAX: usize = 8;

/// Attentions that callers have not had, by units.
#[derive(Debug, Default)]
pub(super) struct PendingAttentions(BTreeMap<Lun, VecDeque<Sense>>);

impl PendingAttentions {
    fn keep(&mut self, lun: Lun, sense: Sense) {
        let kept = self.0.entry(lun).or_default();
        if kept.len() < OWED_MAX && !kept.iter().any(|other| other.asc == sense.asc) {
            kept.push_back(sense);
        }
    }

    /// Takes the attention that a command fails with, if there is one.
    fn take(&mut self, command: &Command) -> Option<Sense> {
        if self.0.is_empty() || passes_attentions(command) {
            return None;
        }
        let kept = self.0.get_mut(&command.lun)?;
        if command.absorbs_attentions {
            // Its caller hears of the others by events.
            kept.retain(|sense| sense.asc == Asc::DEVICE_IDENTIFIER_CHANGED);
        }
        let sense = kept.pop_front();
        if kept.is_empty() {
            self.0.remove(&command.lun);
        }
        sense
    }
}

/// Returns whether a unit carries a command out without telling an attention (SPC-5, Unit attention conditions).
fn passes_attentions(command: &Command) -> bool {
    let code = command.cdb.bytes().first().copied().unwrap_or(0);
    matches!(code, opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE)
}

/// Returns the attention that came with the end of a task.
pub(super) fn attention_of(outcome: &Outcome) -> Option<Sense> {
    match &outcome.end {
        TaskResult::Status(ending) => CommandError::of_ending(ending).sense().copied(),
        _ => None,
    }
    .filter(|sense| sense.key == SenseKey::UNIT_ATTENTION)
}

impl SessionEntry {
    /// Takes note of an attention that a question of ours took.
    pub(super) fn keep_attention(&mut self, lun: Lun, sense: Sense) {
        let is_other = sense.asc == Asc::DEVICE_IDENTIFIER_CHANGED;
        if !is_other || !self.guarded_luns.contains_key(&lun) {
            self.overdue.owed.keep(lun, sense);
        }
    }

    /// Returns why a command is not sent, if it is not.
    pub(super) fn refuses(&mut self, pending: &PendingCommand) -> Option<CommandError> {
        if let Some(why) = self.guard_error(pending) {
            return Some(why);
        }
        let sense = pending.is_callers().then(|| self.overdue.owed.take(&pending.command))?;
        sense.map(CommandError::Sense)
    }
}
