//! What the owner of a session needs to notice that a command gets no answer, and to act when nothing else helps.

use base::time::Instant;

use super::contract::{LossReason, TaskId};
use super::session::{Phase, Session};
use crate::pdu::disconnect::DisconnectReason;

impl Session {
    /// Returns a number that is another one whenever an open task has got on: it was sent, or data of it was received,
    /// asked for or acknowledged. A task that was not sent gets on whenever the session ends a task or moves data.
    pub fn progress(&self, TaskId(key): TaskId) -> Option<u64> {
        let task = self.tasks.get(key)?;
        let stats = &self.stats;
        let session = stats.done.wrapping_add(stats.data_in_bytes).wrapping_add(stats.data_out_bytes);
        if task.wire.is_none() {
            return Some(session & !SENT);
        }
        // How much of its data was acknowledged, only the transport knows: while some is on the way, it shares the
        // progress of the session.
        let shared = if task.messages.is_empty() { 0 } else { session };
        let moved =
            u64::from(task.data_in.received()).wrapping_add(u64::from(task.requests_for_data()) << 32);
        Some(SENT | moved.wrapping_add(shared))
    }

    /// Asks the target for a sign of life, and returns how many frames of it came in the present session.
    pub fn ping(&mut self) -> u64 {
        let Some(transport) = self.transport() else { return 0 };
        transport.ping();
        transport.stats().paths.frames_received
    }

    /// Gives up the session that the target knows and builds it anew, as after a loss. The target is told that the old one
    /// ends, and ends its tasks before it lets the new one in.
    pub fn relogin(&mut self, now: Instant) {
        self.now = now;
        if self.phase == Phase::Up {
            // Its owner is not done: another session takes its place.
            self.send_goodbye(DisconnectReason::REPLACED);
            self.handle_nexus_loss(now, LossReason::Unanswered);
            self.process_pending(now);
        }
    }
}

/// Tells the numbers of tasks that were sent from those of tasks that wait.
const SENT: u64 = 1 << 63;
