//! Task management (SAM-5 §7, RFC 7143 §11.5, RFC 7144 §6.3) and resets (SAM-5 §6).

use alloc::vec::Vec;

use scsi::sense::Asc;

use crate::contract::{Access, NexusId, TaskKey, Tmf, TmfOutcome};
use crate::device_server::DeviceServer;
use crate::fault_injection::{self, Bug};
use crate::orw_generation::OrwGenerations;
use crate::settings::NexusSettings;
use crate::task::TaskId;
use crate::task_set::AbortReport;
use crate::unit::{LogicalUnit, Reset};

impl LogicalUnit {
    /// Performs a task management function. Returns its outcome, and the tasks that must be removed before it
    /// is answered.
    pub(crate) fn run_tmf(&mut self, nexus: NexusId, function: Tmf) -> (TmfOutcome, Vec<TaskId>) {
        if !self.may_manage(nexus, function) {
            return (TmfOutcome::NotAuthorized, Vec::new());
        }
        let aborted = match function {
            Tmf::AbortTask(key) => match self.abort_task(nexus, key) {
                Some(id) => Vec::from([id]),
                None => return (TmfOutcome::NoSuchTask, Vec::new()),
            },
            Tmf::AbortTaskSet => self.abort_tasks_of(nexus),
            Tmf::ClearTaskSet if self.tasks.is_per_nexus() => self.abort_tasks_of(nexus),
            Tmf::ClearTaskSet => self.clear_task_set(nexus),
            // No ACA is ever established: NACA is refused (SAM-5 §7.4).
            Tmf::ClearAca => return (TmfOutcome::NotSupported, Vec::new()),
            Tmf::LogicalUnitReset => self.reset_for(Some(nexus), Reset::LogicalUnit),
            Tmf::TargetReset => self.reset_for(Some(nexus), Reset::Target),
            Tmf::NexusReset => {
                let aborted = self.abort_tasks_of(nexus);
                self.server.nexus_was_lost(nexus);
                self.server.nexuses.establish_ua(nexus, Asc::I_T_NEXUS_LOSS_OCCURRED);
                aborted
            }
            Tmf::QueryTask(key) => return (self.query_task(nexus, key), Vec::new()),
            Tmf::QueryTaskSet if self.tasks.has_tasks_of(nexus) => {
                return (TmfOutcome::Succeeded, Vec::new());
            }
            Tmf::QueryTaskSet => Vec::new(),
            Tmf::QueryAsynchronousEvent => return (self.query_event(nexus), Vec::new()),
        };
        (TmfOutcome::Complete, aborted)
    }

    /// Returns whether `nexus` may perform `function`. A nexus with read-only access may abort only its own
    /// tasks. When a reset is refused, its host ends the session, which has the effect of the reset for that
    /// host.
    fn may_manage(&self, nexus: NexusId, function: Tmf) -> bool {
        let is_for_all = match function {
            Tmf::ClearTaskSet => !self.tasks.is_per_nexus(),
            Tmf::LogicalUnitReset | Tmf::TargetReset => true,
            Tmf::AbortTask(_)
            | Tmf::AbortTaskSet
            | Tmf::ClearAca
            | Tmf::NexusReset
            | Tmf::QueryTask(_)
            | Tmf::QueryTaskSet
            | Tmf::QueryAsynchronousEvent => false,
        };
        let access = self.server.nexuses.find(nexus).map(|state| state.nexus.access);
        !is_for_all || access != Some(Access::ReadOnly)
    }

    /// Aborts all tasks and establishes a unit attention for every nexus. `requester` is the nexus that sent
    /// the function, if the reset is due to one. Returns the tasks that must be removed before the reset is
    /// answered, including those that were aborted earlier.
    pub(crate) fn reset_for(&mut self, requester: Option<NexusId>, why: Reset) -> Vec<TaskId> {
        let mut untold = None;
        for id in self.tasks.select_live(|_| true) {
            let own = self.tasks.find_mut(id).is_some_and(|task| Some(task.info.nexus) == requester);
            if own && fault_injection::is_injected(Bug::ResetsUntoldToAborted) {
                untold = requester;
            }
            let answer = self.server.abort_report(own);
            self.abort(id, answer);
        }
        self.server.was_reset();
        self.server.reset_device();
        if why == Reset::Target {
            // A hard reset clears the ORWRITE generations and starts a stopped unit; a LOGICAL UNIT RESET
            // leaves both (SBC-4 §4.27.3).
            self.server.orw_generations = OrwGenerations::default();
            self.server.spc.removal.stop(false);
            self.server.forget_keys();
        }
        self.server.nexuses.establish_ua_all(
            match why {
                Reset::LogicalUnit | Reset::Target => Asc::BUS_DEVICE_RESET_OCCURRED,
            },
            untold,
        );
        self.tasks.select_all(|_| true)
    }

    fn abort_task(&mut self, nexus: NexusId, key: TaskKey) -> Option<TaskId> {
        let id = self.tasks.find_key(key)?;
        self.tasks.find_mut(id).filter(|task| task.info.nexus == nexus)?;
        self.abort(id, AbortReport::Aborted);
        Some(id)
    }

    fn abort_tasks_of(&mut self, nexus: NexusId) -> Vec<TaskId> {
        for id in self.tasks.select_live(|task| task.nexus == nexus) {
            self.abort(id, AbortReport::Aborted);
        }
        self.tasks.select_all(|task| task.nexus == nexus)
    }

    /// Performs CLEAR TASK SET (SAM-5 §7.5): the tasks of other nexuses end with TASK ABORTED, or without a
    /// response but with a unit attention.
    fn clear_task_set(&mut self, nexus: NexusId) -> Vec<TaskId> {
        for id in self.tasks.select_live(|_| true) {
            let Some(owner) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { continue };
            let answer = self.server.abort_report(owner == nexus);
            self.abort(id, answer);
            if owner != nexus && answer == AbortReport::Aborted {
                self.server.nexuses.establish_ua(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
        self.tasks.select_all(|_| true)
    }

    /// Applies QERR of the control mode page (SPC-5 §7.5.11): a command that ended with CHECK CONDITION
    /// aborts other commands. The tasks of copy managers are not aborted: the unit that runs the copy handles
    /// them.
    pub(crate) fn abort_after_error(&mut self, nexus: NexusId) {
        let only_own = self.server.settings.queue_error.only_own || self.tasks.is_per_nexus();
        for id in self.tasks.select_live(|task| task.key().is_some() && (!only_own || task.nexus == nexus)) {
            let Some(owner) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { continue };
            let answer = self.server.abort_report(owner == nexus);
            self.abort(id, answer);
            if owner != nexus && answer == AbortReport::Aborted {
                self.server.nexuses.establish_ua(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
    }

    fn query_task(&mut self, nexus: NexusId, key: TaskKey) -> TmfOutcome {
        let found = self.tasks.find_key(key).and_then(|id| self.tasks.find_mut(id));
        match found.filter(|task| task.info.nexus == nexus && task.aborted.is_none()) {
            Some(_) => TmfOutcome::Succeeded,
            None => TmfOutcome::Complete,
        }
    }

    /// Returns the outcome of QUERY ASYNCHRONOUS EVENT. The additional response information (SAM-5 §7.10) is
    /// the number, sense key and codes of the pending unit attentions.
    fn query_event(&self, nexus: NexusId) -> TmfOutcome {
        let Some(attentions) = self.server.nexuses.find(nexus).map(|state| &state.attentions) else {
            return TmfOutcome::Complete;
        };
        let Some(sense) = attentions.next() else { return TmfOutcome::Complete };
        let depth = if attentions.len() > 1 { 2 << 4 } else { 1 << 4 };
        let [asc, ascq] = sense.asc.0.to_be_bytes();
        TmfOutcome::SucceededWith([depth | (sense.key.0 & 0xf), asc, ascq])
    }
}

impl DeviceServer {
    /// Returns how an aborted task is reported: without a response if its own nexus aborted it, by TAS if
    /// another did.
    pub(crate) const fn abort_report(&self, own: bool) -> AbortReport {
        if self.settings.task_aborted_status && !own {
            AbortReport::TaskAborted
        } else {
            AbortReport::Aborted
        }
    }

    /// Applies the effects of a nexus loss other than those on tasks and unit attentions (SAM-5 §6.3.4).
    pub(crate) fn nexus_was_lost(&mut self, nexus: NexusId) {
        self.spc.nexus_lost(nexus);
        self.copy_manager.operations.nexus_lost(nexus);
        if let Some(drive) = &mut self.tape {
            drive.deferred.nexus_lost(nexus);
            drive.encryption.nexus_lost(nexus);
            drive.loss_heard.remove(&nexus);
        }
        self.tape_nexus_lost(nexus);
        self.nexuses.set_settings(nexus, NexusSettings::DEFAULT);
        self.forget_keys_of_reservations(Some(nexus), None);
    }

    /// Applies the effects of a reset other than those on tasks and unit attentions (SAM-5 §6.3.3).
    pub(crate) fn was_reset(&mut self) {
        let stream = self.settings.stream;
        self.reset_write_cache();
        self.settings = self.power_on_settings();
        if fault_injection::is_injected(Bug::ResetKeepsMode) {
            self.settings.stream = stream;
        } else {
            self.nexuses.reset_settings();
        }
        self.spc.reset();
        self.forget_keys_of_reservations(None, None);
        self.copy_manager.operations.reset();
    }
}
