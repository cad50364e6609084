//! Units that are sent nothing in a new session until their owner knows that they are still the ones they were.

use alloc::vec::Vec;

use base::time::Instant;

use super::contract::TaskResult;
use super::session::Session;
use super::task::{Task, TaskKind};

/// How many probes there is room for when every other place is taken.
pub(super) const MAX_PROBES: usize = 64;

impl Session {
    /// Guards a unit, from now on and in every session that is built anew: what is asked of it waits, but for probes, until
    /// [`Self::confirm_identity`] or [`Self::fail_identity`].
    pub fn require_identity_check(&mut self, lun: u64) {
        self.guarded.insert(lun);
        self.unvouched.insert(lun);
    }

    /// Sends what waits for a guarded unit: it is the one that it was.
    pub fn confirm_identity(&mut self, now: Instant, lun: u64) {
        self.unvouched.remove(&lun);
        self.process_pending(now);
    }

    /// Ends what waits for a guarded unit: it is another one. What is asked of it later waits again.
    pub fn fail_identity(&mut self, lun: u64) {
        self.unvouched.insert(lun);
        let waits = |task: &Task| self.awaits_identity_check(task) && task.wire.is_none();
        let waiting: Vec<_> = self.tasks.iter().filter(|(_, task)| waits(task)).map(|(key, _)| key).collect();
        for key in waiting {
            self.finish(key, TaskResult::NotSent);
        }
    }

    /// Holds every guarded unit: the session is a new one.
    pub(super) fn restart_identity_checks(&mut self) {
        self.unvouched.clone_from(&self.guarded);
    }

    /// Returns whether a task waits for its unit to be known.
    pub(super) fn awaits_identity_check(&self, task: &Task) -> bool {
        match &task.kind {
            TaskKind::Command(request) => !request.is_identity_check && self.unvouched.contains(&request.lun),
            TaskKind::Manage { .. } => false,
        }
    }
}
