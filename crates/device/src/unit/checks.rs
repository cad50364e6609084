//! What is checked before a command is executed: unit attentions, reservations, and what the command requires
//! of the unit.

use scsi::opcode as op;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::{Status, TaskAttribute};

use crate::contract::{Access, NexusId};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::device_server::table::{AttentionRule, Handler, MediumNeed, Row};
use crate::fault_injection::{Bug, is_injected};
use crate::settings::AttentionInterlock;
use crate::task::TaskInfo;
use crate::unit_attention;

impl DeviceServer {
    /// Finds the handler of a command, or the outcome that prevents its execution.
    pub(super) fn find_handler(&mut self, task: &TaskInfo) -> Result<Handler, Outcome> {
        let Some(access) = self.nexuses.find(task.nexus).map(|state| state.nexus.access) else {
            return Err(Outcome::bug());
        };
        let found = self.table.find(&self.info, &task.cdb);
        let passed =
            matches!(found, Ok(Row { attention: AttentionRule::Exempt, .. })) || task.key().is_none();
        // SAM-5 §5.3: resets are reported before a reservation conflict, everything else after it.
        let obstacle = self
            .attention(task, passed, unit_attention::outranks_conflict)
            .or_else(|| found.as_ref().ok().and_then(|row| self.reservation_conflict(task, row)))
            .or_else(|| self.attention(task, passed, |_| true));
        if let Some(outcome) = obstacle {
            return Err(outcome);
        }
        let row = found.map_err(Outcome::CheckCondition)?;
        let is_some_write = row.opcode == op::WRITE_10 && task.cdb.u8(5).is_multiple_of(8);
        if is_injected(Bug::WritesFailUncaused) && is_some_write {
            return Err(Outcome::CheckCondition(Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR)));
        }
        if is_injected(Bug::WritesAbortedUncaused) && is_some_write {
            let sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::PROTOCOL_SERVICE_CRC_ERROR);
            return Err(Outcome::CheckCondition(sense));
        }
        let statuses = [
            (Bug::WritesBusyUncaused, Status::BUSY),
            (Bug::WritesFullUncaused, Status::TASK_SET_FULL),
            (Bug::WritesConflictUncaused, Status::RESERVATION_CONFLICT),
        ];
        if let Some((_, status)) = statuses.into_iter().find(|(bug, _)| is_some_write && is_injected(*bug)) {
            return Err(Outcome::Status(status));
        }
        self.check_request(task, row, access)?;
        let handler = row.handler;
        if let Some(sense) = self.tape_position_lost(task) {
            return Err(Outcome::CheckCondition(sense));
        }
        Ok(handler)
    }

    /// Reports the next unit attention of a task's nexus, if `counts` selects it.
    fn attention(&mut self, task: &TaskInfo, passed: bool, counts: fn(Asc) -> bool) -> Option<Outcome> {
        let kept = self.settings.attention_interlock == AttentionInterlock::Kept;
        let state = self.nexuses.find_mut(task.nexus)?;
        let next = state.attentions.next().filter(|next| !passed && counts(next.asc))?;
        if !kept {
            state.attentions.take();
            if is_injected(Bug::AttentionsToldAgain) && task.cdb.opcode() == op::READ_10 {
                state.attentions.establish_with(next);
            }
        }
        self.tape_attention_reported(task, next.asc);
        Some(Outcome::CheckCondition(next))
    }

    /// Returns the outcome of a command that began when its nexus might still write, and that the present
    /// access does not admit; `None` if the command may go on.
    pub(super) fn access_withdrawn(&self, task: &TaskInfo) -> Option<Outcome> {
        let access = self.nexuses.find(task.nexus)?.nexus.access;
        if access == Access::ReadWrite && !self.info.is_read_only() {
            return None;
        }
        let row = self.table.find(&self.info, &task.cdb).ok()?;
        let changes_medium = row.medium == MediumNeed::Writable || erases(row);
        let is_refused = (access == Access::ReadOnly && !row.read_only.admits(&task.cdb))
            || (self.info.is_read_only() && changes_medium);
        let sense = Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
        is_refused.then_some(Outcome::CheckCondition(sense))
    }

    /// Returns why a command of `nexus` that writes is refused.
    fn write_refusal(&mut self, nexus: NexusId) -> Option<Sense> {
        let refusal = self.write_protection(nexus)?;
        self.tape_write_refused();
        Some(refusal)
    }

    fn check_request(&mut self, task: &TaskInfo, row: &Row, access: Access) -> Result<(), Outcome> {
        if task.data_in_len > 0 && task.data_out_len > 0 {
            let sense = Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
            return Err(Outcome::CheckCondition(sense));
        }
        if task.attribute == TaskAttribute::Aca {
            return Err(Outcome::CheckCondition(Sense::illegal(Asc::INVALID_MESSAGE_ERROR)));
        }
        if let Some(sense) = self.sanitizer.obstacle(row.opcode) {
            return Err(Outcome::CheckCondition(
                self.sanitizer.progress(self.info.capabilities.len).unwrap_or(sense),
            ));
        }
        if access == Access::ReadOnly && !row.read_only.admits(&task.cdb) {
            return Err(Outcome::CheckCondition(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)));
        }
        if row.medium == MediumNeed::NotNeeded {
            return Ok(());
        }
        // BUSY makes hosts repeat the command later (SAM-5 §5.3.1): Linux for 180 s, QEMU for some 40 s. NOT
        // READY, LOGICAL UNIT IS IN PROCESS OF BECOMING READY is an I/O error at once for QEMU, and MANUAL
        // INTERVENTION REQUIRED for Linux too.
        if self.is_drained() || self.medium.has_too_many_abandoned() {
            return Err(Outcome::Status(Status::BUSY));
        }
        let obstacle = match row.medium {
            MediumNeed::NotNeeded | MediumNeed::Optional => None,
            MediumNeed::Ready => self.io_obstacle(),
            MediumNeed::Writable => self.io_obstacle().or_else(|| self.write_refusal(task.nexus)),
        };
        obstacle.map_or(Ok(()), |sense| Err(Outcome::CheckCondition(sense)))
    }
}

/// Returns whether a command erases the medium.
const fn erases(row: &Row) -> bool {
    matches!(row.opcode, op::SANITIZE | op::FORMAT_UNIT)
}
