//! Units that get nothing in a new session before their owner has seen that they are the ones they were.

use alloc::vec::Vec;

use base::time::Instant;

use super::contract::End;
use super::session::Session;
use super::task::Task;

impl Session {
    /// Guards a unit, from now on and in every session that is built anew: what is asked of it waits, but for probes, until
    /// [`Self::vouch`] or [`Self::forsake`]. A session that goes on after its connections were lost is the same session,
    /// and its units are the same.
    pub fn guard(&mut self, lun: u64) {
        self.guarded.insert(lun);
        self.held.insert(lun);
    }

    /// Lets everything go that waits for a guarded unit: it is the one that it was.
    pub fn vouch(&mut self, now: Instant, lun: u64) {
        self.held.remove(&lun);
        self.dispatch(now);
    }

    /// Ends everything that waits for a guarded unit: it is another one. What is asked of it later waits again.
    pub fn forsake(&mut self, lun: u64) {
        self.held.insert(lun);
        let waiting = self.tasks.iter().filter(|(_, task)| self.is_held(task) && !task.is_out());
        for key in waiting.map(|(key, _)| key).collect::<Vec<_>>() {
            self.finish(key, End::NotSent);
        }
    }

    /// Returns whether a task waits for its unit to be known.
    pub(super) fn is_held(&self, task: &Task) -> bool {
        !self.held.is_empty() && !task.request.probe && self.held.contains(&task.request.lun)
    }
}
