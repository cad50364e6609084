//! Units that get nothing in a new session before their owner has seen that they are the ones they were.

use alloc::vec::Vec;

use base::time::Instant;

use super::contract::TaskResult;
use super::session::Session;
use super::task::Task;

impl Session {
    /// Guards a unit, from now on and in every session that is built anew: what is asked of it waits, but for probes, until
    /// [`Self::confirm_identity`] or [`Self::fail_identity`]. A session that goes on after its connections were lost is the same session,
    /// and its units are the same.
    pub fn require_identity_check(&mut self, lun: u64) {
        self.identity_checked.insert(lun);
        self.identity_unconfirmed.insert(lun);
    }

    /// Lets everything go that waits for a guarded unit: it is the one that it was.
    pub fn confirm_identity(&mut self, now: Instant, lun: u64) {
        self.identity_unconfirmed.remove(&lun);
        self.process_pending(now);
    }

    /// Ends everything that waits for a guarded unit: it is another one. What is asked of it later waits again.
    pub fn fail_identity(&mut self, lun: u64) {
        self.identity_unconfirmed.insert(lun);
        let waiting =
            self.tasks.iter().filter(|(_, task)| self.awaits_identity_check(task) && !task.was_sent());
        for key in waiting.map(|(key, _)| key).collect::<Vec<_>>() {
            self.finish(key, TaskResult::NotSent);
        }
    }

    /// Returns whether a task waits for its unit to be known.
    pub(super) fn awaits_identity_check(&self, task: &Task) -> bool {
        !self.identity_unconfirmed.is_empty()
            && !task.request.is_identity_check
            && self.identity_unconfirmed.contains(&task.request.lun)
    }
}
