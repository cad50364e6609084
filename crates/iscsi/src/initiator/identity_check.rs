//! The identity check: in a new session a guarded logical unit gets no commands until its owner has confirmed
//! that it is the same device as before.

use alloc::vec::Vec;

use base::time::Instant;
use transport::initiator::TaskResult;

use super::session::Session;
use super::task::Task;

impl Session {
    /// Guards a logical unit from now on, in every session that is established again: its tasks wait, except
    /// those of the identity check, until [`Self::confirm_identity`] or [`Self::fail_identity`]. A session
    /// that continues after its connections were lost is the same session with the same logical units, and
    /// needs no check.
    pub fn require_identity_check(&mut self, lun: u64) {
        self.identity_checked.insert(lun);
        self.identity_unconfirmed.insert(lun);
    }

    /// Confirms that a guarded logical unit is the same device, and releases the tasks that wait for it.
    pub fn confirm_identity(&mut self, now: Instant, lun: u64) {
        self.identity_unconfirmed.remove(&lun);
        self.process_pending(now);
    }

    /// Ends the tasks that wait for a guarded logical unit, because it is another device. Later requests for
    /// it wait again.
    pub fn fail_identity(&mut self, lun: u64) {
        self.identity_unconfirmed.insert(lun);
        let waiting =
            self.tasks.iter().filter(|(_, task)| self.awaits_identity_check(task) && !task.was_sent());
        for key in waiting.map(|(key, _)| key).collect::<Vec<_>>() {
            self.finish(key, TaskResult::NotSent);
        }
    }

    /// Returns whether a task waits for the identity check of its logical unit.
    pub(super) fn awaits_identity_check(&self, task: &Task) -> bool {
        !self.identity_unconfirmed.is_empty()
            && !task.request.is_identity_check
            && self.identity_unconfirmed.contains(&task.request.lun)
    }
}
