//! Detects commands without an answer, and lets the owner give up the session as a last resort.

use alloc::vec::Vec;

use base::time::Instant;
use transport::initiator::TaskId;

use super::contract::ConnectionDown;
use super::session::{Phase, Session};
use super::task::TaskState;

impl Session {
    /// Returns a number that changes whenever an open task made progress: it was sent, or data of it was
    /// received, requested or sent. A task that was not sent makes progress whenever the session ends a task
    /// or moves data.
    pub fn progress(&self, TaskId(key): TaskId) -> Option<u64> {
        let task = self.tasks.get(key)?;
        if matches!(task.state, TaskState::Waiting | TaskState::Assigned(_)) {
            let stats = &self.stats;
            let session = stats.done.wrapping_add(stats.data_in_bytes).wrapping_add(stats.data_out_bytes);
            return Some(session & !SENT);
        }
        let unsent = task.data_out.bursts.iter().chain(&task.data_out.unsolicited);
        let unsent: u64 = unsent.map(|burst| u64::from(burst.end.saturating_sub(burst.at))).sum();
        let asked = u64::from(task.data_out.requested_end);
        // Each of these only grows while a task is with the target, so an unchanged sum means that none of
        // them changed.
        let moved = task.data_in.landed().saturating_add(asked).saturating_add(asked.saturating_sub(unsent));
        Some(SENT | moved)
    }

    /// Pings on every connection that is up, unless a ping is on its way there: what comes counts in
    /// [`super::contract::SessionStats::pdus_in`].
    pub fn ping_all(&mut self, now: Instant) {
        let up: Vec<_> = self.connections().filter(|view| view.up).map(|view| view.slot).collect();
        up.into_iter().for_each(|slot| self.ping(now, slot));
    }

    /// Gives up the session that the target knows and logs in again, as after a loss: the target ends every
    /// task of the old session before it accepts the new one (RFC 7143 §6.3.5).
    pub fn rebuild_session(&mut self, now: Instant) {
        if self.phase == Phase::Up {
            self.lose_session(now, ConnectionDown::Unanswered);
            self.process_pending(now);
        }
    }
}

/// Distinguishes the numbers of tasks that were sent from those of tasks that wait.
const SENT: u64 = 1 << 63;
