//! Task management (SAM-5 §7, RFC 7143 §11.5, RFC 7144 §6.3) and resets (SAM-5 §6).

use scsi::sense::Asc;

use crate::contract::{ManageFunction, ManageOutcome, NexusId, TaskKey};
use crate::sbc::orw_generation::OrwGenerations;
use crate::server::Core;
use crate::task::TaskInfo;
use crate::task_set::Answer;
use crate::unit::{LogicalUnit, Reset};

impl LogicalUnit {
    /// Does a task management function and returns what to answer when all it aborted is gone.
    pub(crate) fn manage_function(&mut self, nexus: NexusId, function: ManageFunction) -> ManageOutcome {
        match function {
            ManageFunction::AbortTask(key) => return self.abort_task(nexus, key),
            ManageFunction::AbortTaskSet => self.abort_tasks_of(nexus),
            ManageFunction::ClearTaskSet => self.clear_task_set(nexus),
            // No ACA is ever established: NACA is refused (SAM-5 §7.4).
            ManageFunction::ClearAca => {}
            ManageFunction::LogicalUnitReset => self.reset_for(Some(nexus), Reset::LogicalUnit),
            ManageFunction::NexusReset => {
                self.abort_tasks_of(nexus);
                self.core.nexus_was_lost(nexus);
                self.core.nexuses.attend(nexus, Asc::I_T_NEXUS_LOSS_OCCURRED);
            }
            ManageFunction::QueryTask(key) => return self.query_task(nexus, key),
            ManageFunction::QueryTaskSet if self.tasks.has_tasks_of(nexus) => {
                return ManageOutcome::Succeeded;
            }
            ManageFunction::QueryTaskSet => {}
            ManageFunction::QueryAsynchronousEvent => return self.query_event(nexus),
        }
        ManageOutcome::Complete
    }

    /// Aborts everything and tells everyone. `requester` is the nexus whose function it was, if a function it was.
    pub(crate) fn reset_for(&mut self, requester: Option<NexusId>, why: Reset) {
        for id in self.tasks.select(|_| true) {
            let own = self.tasks.find_mut(id).is_some_and(|task| Some(task.info.nexus) == requester);
            let answer = self.core.answer_to_abort(own);
            self.abort(id, answer);
        }
        self.core.was_reset();
        if why == Reset::Target {
            // A hard reset; one of the unit leaves them (SBC-4 §4.27.3).
            self.core.orw_generations = OrwGenerations::default();
        }
        self.core.nexuses.attend_all(
            match why {
                Reset::LogicalUnit | Reset::Target => Asc::BUS_DEVICE_RESET_OCCURRED,
            },
            None,
        );
    }

    fn abort_task(&mut self, nexus: NexusId, key: TaskKey) -> ManageOutcome {
        let Some(id) = self.tasks.find_key(key) else { return ManageOutcome::NoSuchTask };
        if self.tasks.find_mut(id).is_none_or(|task| task.info.nexus != nexus) {
            return ManageOutcome::NoSuchTask;
        }
        self.abort(id, Answer::Aborted);
        ManageOutcome::Complete
    }

    fn abort_tasks_of(&mut self, nexus: NexusId) {
        for id in self.tasks.select(|task| task.nexus == nexus) {
            self.abort(id, Answer::Aborted);
        }
    }

    /// SAM-5 §7.5: the tasks of others end with TASK ABORTED, or silently and with a unit attention.
    fn clear_task_set(&mut self, nexus: NexusId) {
        for id in self.tasks.select(|_| true) {
            let Some(owner) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { continue };
            let answer = self.core.answer_to_abort(owner == nexus);
            self.abort(id, answer);
            if owner != nexus && answer == Answer::Aborted {
                self.core.nexuses.attend(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
    }

    /// QERR of the control page (SPC-5 §7.5.8): a command that ended with CHECK CONDITION takes others with it. Those of
    /// copy managers stay: their copy is judged where it runs.
    pub(crate) fn abort_after_error(&mut self, failed: &TaskInfo) {
        let only_own = self.core.settings.queue_error.only_own;
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
