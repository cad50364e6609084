//! The identity check: guarded logical units receive no request in a new session until their owner has
//! verified that they are still the same ones.

use alloc::vec::Vec;

use base::time::Instant;
use transport::initiator::TaskResult;

use super::session::Session;
use super::task::{Task, TaskKind};

/// How many requests of identity checks fit when every other slot is taken.
pub(super) const MAX_PROBES: usize = 64;

impl Session {
    /// Guards a logical unit, from now on and in every recovered session: its requests wait, except those of
    /// the identity check, until [`Self::confirm_identity`] or [`Self::fail_identity`].
    pub fn require_identity_check(&mut self, lun: u64) {
        self.guarded.insert(lun);
        self.unvouched.insert(lun);
    }

    /// Confirms that a guarded logical unit is the same one, and sends the requests that wait for it.
    pub fn confirm_identity(&mut self, now: Instant, lun: u64) {
        self.unvouched.remove(&lun);
        self.process_pending(now);
    }

    /// Ends the requests that wait for a guarded logical unit, because it is another one. Later requests to
    /// it wait again.
    pub fn fail_identity(&mut self, lun: u64) {
        self.unvouched.insert(lun);
        let waits = |task: &Task| self.awaits_identity_check(task) && task.wire.is_none();
        let waiting: Vec<_> = self.tasks.iter().filter(|(_, task)| waits(task)).map(|(key, _)| key).collect();
        for key in waiting {
            self.finish(key, TaskResult::NotSent);
        }
    }

    /// Starts an identity check of every guarded logical unit, because the session is new.
    pub(super) fn restart_identity_checks(&mut self) {
        self.unvouched.clone_from(&self.guarded);
    }

    /// Returns whether a task waits for the identity check of its logical unit.
    pub(super) fn awaits_identity_check(&self, task: &Task) -> bool {
        match &task.kind {
            TaskKind::Command(request) => !request.is_identity_check && self.unvouched.contains(&request.lun),
            TaskKind::Manage { .. } => false,
        }
    }
}
