//! Task management (SAM-5 §7, RFC 7143 §11.5, RFC 7144 §6.3) and resets (SAM-5 §6).

use alloc::vec::Vec;

use scsi::sense::Asc;

use crate::contract::{Access, ManageFunction, ManageOutcome, NexusId, TaskKey};
use crate::sbc::orw_generation::OrwGenerations;
use crate::server::Core;
use crate::task::{TaskId, TaskInfo};
use crate::task_set::Answer;
use crate::unit::{LogicalUnit, Reset};

impl LogicalUnit {
    /// Does a task management function. Returns what to answer, and the tasks that must be gone before.
    pub(crate) fn manage_function(
        &mut self,
        nexus: NexusId,
        function: ManageFunction,
    ) -> (ManageOutcome, Vec<TaskId>) {
        if !self.may_manage(nexus, function) {
            return (ManageOutcome::Rejected, Vec::new());
        }
        let aborted = match function {
            ManageFunction::AbortTask(key) => match self.abort_task(nexus, key) {
                Some(id) => Vec::from([id]),
                None => return (ManageOutcome::NoSuchTask, Vec::new()),
            },
            ManageFunction::AbortTaskSet => self.abort_tasks_of(nexus),
            ManageFunction::ClearTaskSet if self.tasks.is_per_nexus() => self.abort_tasks_of(nexus),
            ManageFunction::ClearTaskSet => self.clear_task_set(nexus),
            // No ACA is ever established: NACA is refused (SAM-5 §7.4).
            ManageFunction::ClearAca => return (ManageOutcome::NotSupported, Vec::new()),
            ManageFunction::LogicalUnitReset => self.reset_for(Some(nexus), Reset::LogicalUnit),
            ManageFunction::TargetReset => self.reset_for(Some(nexus), Reset::Target),
            ManageFunction::NexusReset => {
                let aborted = self.abort_tasks_of(nexus);
                self.core.nexus_was_lost(nexus);
                self.core.nexuses.attend(nexus, Asc::I_T_NEXUS_LOSS_OCCURRED);
                aborted
            }
            ManageFunction::QueryTask(key) => return (self.query_task(nexus, key), Vec::new()),
            ManageFunction::QueryTaskSet if self.tasks.has_tasks_of(nexus) => {
                return (ManageOutcome::Succeeded, Vec::new());
            }
            ManageFunction::QueryTaskSet => Vec::new(),
            ManageFunction::QueryAsynchronousEvent => return (self.query_event(nexus), Vec::new()),
        };
        (ManageOutcome::Complete, aborted)
    }

    /// A nexus with read-only access aborts its own tasks and nobody else's. Its host ends its session when a reset is
    /// rejected, which does for it what the reset was to do.
    fn may_manage(&self, nexus: NexusId, function: ManageFunction) -> bool {
        let is_for_all = match function {
            ManageFunction::ClearTaskSet => !self.tasks.is_per_nexus(),
            ManageFunction::LogicalUnitReset | ManageFunction::TargetReset => true,
            ManageFunction::AbortTask(_)
            | ManageFunction::AbortTaskSet
            | ManageFunction::ClearAca
            | ManageFunction::NexusReset
            | ManageFunction::QueryTask(_)
            | ManageFunction::QueryTaskSet
            | ManageFunction::QueryAsynchronousEvent => false,
        };
        let access = self.core.nexuses.find(nexus).map(|state| state.nexus.access);
        !is_for_all || access != Some(Access::ReadOnly)
    }

    /// Aborts everything and tells everyone. `requester` is the nexus whose function it was, if a function it was.
    /// Returns the tasks that must be gone before the reset is answered: those that somebody aborted before, too.
    pub(crate) fn reset_for(&mut self, requester: Option<NexusId>, why: Reset) -> Vec<TaskId> {
        for id in self.tasks.select(|_| true) {
            let own = self.tasks.find_mut(id).is_some_and(|task| Some(task.info.nexus) == requester);
            let answer = self.core.answer_to_abort(own);
            self.abort(id, answer);
        }
        self.core.was_reset();
        if why == Reset::Target {
            // A hard reset; one of the unit leaves them (SBC-4 §4.27.3, §4.20.1).
            self.core.orw_generations = OrwGenerations::default();
            self.core.spc.removal.stop(false);
        }
        self.core.nexuses.attend_all(
            match why {
                Reset::LogicalUnit | Reset::Target => Asc::BUS_DEVICE_RESET_OCCURRED,
            },
            None,
        );
        self.tasks.every(|_| true)
    }

    fn abort_task(&mut self, nexus: NexusId, key: TaskKey) -> Option<TaskId> {
        let id = self.tasks.find_key(key)?;
        self.tasks.find_mut(id).filter(|task| task.info.nexus == nexus)?;
        self.abort(id, Answer::Aborted);
        Some(id)
    }

    fn abort_tasks_of(&mut self, nexus: NexusId) -> Vec<TaskId> {
        for id in self.tasks.select(|task| task.nexus == nexus) {
            self.abort(id, Answer::Aborted);
        }
        self.tasks.every(|task| task.nexus == nexus)
    }

    /// SAM-5 §7.5: the tasks of others end with TASK ABORTED, or silently and with a unit attention.
    fn clear_task_set(&mut self, nexus: NexusId) -> Vec<TaskId> {
        for id in self.tasks.select(|_| true) {
            let Some(owner) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { continue };
            let answer = self.core.answer_to_abort(owner == nexus);
            self.abort(id, answer);
            if owner != nexus && answer == Answer::Aborted {
                self.core.nexuses.attend(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
        self.tasks.every(|_| true)
    }

    /// QERR of the control page (SPC-5 §7.5.8): a command that ended with CHECK CONDITION takes others with it. Those of
    /// copy managers stay: their copy is judged where it runs.
    pub(crate) fn abort_after_error(&mut self, failed: &TaskInfo) {
        let only_own = self.core.settings.queue_error.only_own || self.tasks.is_per_nexus();
        let nexus = failed.nexus;
        if failed.key().is_none() {
            return;
        }
        for id in self.tasks.select(|task| task.key().is_some() && (!only_own || task.nexus == nexus)) {
            let Some(owner) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { continue };
            let answer = self.core.answer_to_abort(owner == nexus);
            self.abort(id, answer);
            if owner != nexus && answer == Answer::Aborted {
                self.core.nexuses.attend(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
    }

    fn query_task(&mut self, nexus: NexusId, key: TaskKey) -> ManageOutcome {
        let found = self.tasks.find_key(key).and_then(|id| self.tasks.find_mut(id));
        match found.filter(|task| task.info.nexus == nexus && task.aborted.is_none()) {
            Some(_) => ManageOutcome::Succeeded,
            None => ManageOutcome::Complete,
        }
    }

    /// SAM-5 §7.10: the additional response information is the depth, sense key and codes of what is pending.
    fn query_event(&self, nexus: NexusId) -> ManageOutcome {
        let Some(attentions) = self.core.nexuses.find(nexus).map(|state| &state.attentions) else {
            return ManageOutcome::Complete;
        };
        let Some(sense) = attentions.next() else { return ManageOutcome::Complete };
        let depth = if attentions.len() > 1 { 2 << 4 } else { 1 << 4 };
        let [asc, ascq] = sense.asc.0.to_be_bytes();
        ManageOutcome::SucceededWith([depth | (sense.key.0 & 0xf), asc, ascq])
    }
}

impl Core {
    /// Returns how a task aborted by someone is reported: silently to its own nexus, by TAS to another.
    pub(crate) const fn answer_to_abort(&self, own: bool) -> Answer {
        if self.settings.task_aborted_status && !own { Answer::TaskAborted } else { Answer::Aborted }
    }

    /// The effects of a nexus loss beyond tasks and attentions (SAM-5 §6.3.4).
    pub(crate) fn nexus_was_lost(&mut self, nexus: NexusId) {
        self.spc.nexus_lost(nexus);
        self.copies.operations.nexus_lost(nexus);
    }

    /// The effects of a reset beyond tasks and attentions (SAM-5 §6.3.3).
    pub(crate) fn was_reset(&mut self) {
        self.settings = self.lasting_settings();
        self.spc.reset();
        self.copies.operations.reset();
    }
}
