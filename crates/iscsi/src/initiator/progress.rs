//! What the owner of a session needs to notice that a command gets no answer, and to act when nothing else helps.

use alloc::vec::Vec;

use base::time::Instant;

use super::contract::{ConnectionDown, TaskId};
use super::session::{Phase, Session};
use super::task::TaskState;

impl Session {
    /// Returns a number that is another one whenever an open task has got on: it was sent, or data of it was received,
    /// asked for or sent. A task that was not sent gets on whenever the session ends a task or moves data.
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
        // Each of these only grows while a task is on the way, so a sum that stays says that none of them moved.
        let moved = task.data_in.landed().saturating_add(asked).saturating_add(asked.saturating_sub(unsent));
        Some(SENT | moved)
    }

    /// Pings on every connection that is up, unless a ping is on its way there: what comes counts in
    /// [`super::contract::SessionStats::pdus_in`].
    pub fn ping_all(&mut self, now: Instant) {
        let up: Vec<_> = self.connections().filter(|view| view.up).map(|view| view.slot).collect();
        up.into_iter().for_each(|slot| self.ping(now, slot));
    }

    /// Gives up the session that the target knows and logs in anew, as after a loss: the target ends every task of the old
    /// one before it lets the new one in (RFC 7143 §6.3.5).
    pub fn rebuild_session(&mut self, now: Instant) {
        if self.phase == Phase::Up {
            self.lose_session(now, ConnectionDown::Unanswered);
            self.process_pending(now);
        }
    }
}

/// Tells the numbers of tasks that were sent from those of tasks that wait.
const SENT: u64 = 1 << 63;
