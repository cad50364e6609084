//! Units that are sent nothing in a new session until their owner knows that they are still the ones they were.

use alloc::vec::Vec;

use base::time::Instant;

use super::contract::End;
use super::session::Session;
use super::task::{Task, What};

/// How many probes there is room for when every other place is taken.
pub(super) const MAX_PROBES: usize = 64;

impl Session {
    /// Guards a unit, from now on and in every session that is built anew: what is asked of it waits, but for probes, until
    /// [`Self::vouch`] or [`Self::forsake`].
    pub fn guard(&mut self, lun: u64) {
        self.guarded.insert(lun);
        self.unvouched.insert(lun);
    }

    /// Sends what waits for a guarded unit: it is the one that it was.
    pub fn vouch(&mut self, now: Instant, lun: u64) {
        self.unvouched.remove(&lun);
        self.drive(now);
    }

    /// Ends what waits for a guarded unit: it is another one. What is asked of it later waits again.
    pub fn forsake(&mut self, lun: u64) {
        self.unvouched.insert(lun);
        let waits = |task: &Task| self.is_held(task) && task.wire.is_none();
        let waiting: Vec<_> = self.tasks.iter().filter(|(_, task)| waits(task)).map(|(key, _)| key).collect();
        for key in waiting {
            self.finish(key, End::NotSent);
        }
    }

    /// Holds every guarded unit: the session is a new one.
    pub(super) fn hold_guarded(&mut self) {
        self.unvouched.clone_from(&self.guarded);
    }

    /// Returns whether a task waits for its unit to be known.
    pub(super) fn is_held(&self, task: &Task) -> bool {
        match &task.what {
            What::Command(request) => !request.probe && self.unvouched.contains(&request.lun),
            What::Manage { .. } => false,
        }
    }
}
