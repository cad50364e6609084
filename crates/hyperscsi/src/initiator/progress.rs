//! Lets the owner of a session detect that a command gets no answer, and give up the session as the last
//! resort.

use base::time::Instant;
use transport::initiator::TaskId;

use super::contract::LossReason;
use super::session::{Phase, Session};
use crate::pdu::disconnect::DisconnectReason;

impl Session {
    /// Returns a number that changes whenever an open task makes progress: the task was sent, or its data was
    /// received, requested or acknowledged. A task that was not sent makes progress whenever the session ends
    /// a task or transfers data.
    pub fn progress(&self, TaskId(key): TaskId) -> Option<u64> {
        let task = self.tasks.get(key)?;
        let stats = &self.stats;
        let session = stats.done.wrapping_add(stats.data_in_bytes).wrapping_add(stats.data_out_bytes);
        if task.wire.is_none() {
            return Some(session & !SENT);
        }
        // Only the transport knows how much of the task's data was acknowledged. While some of it is on the
        // way, the task shares the progress of the session.
        let shared = if task.messages.is_empty() { 0 } else { session };
        let moved =
            u64::from(task.data_in.received()).wrapping_add(u64::from(task.requests_for_data()) << 32);
        Some(SENT | moved.wrapping_add(shared))
    }

    /// Sends the target a ping, and returns how many of the target's frames were received in the present
    /// session.
    pub fn ping(&mut self) -> u64 {
        let Some(transport) = self.transport() else { return 0 };
        transport.ping();
        transport.stats().paths.frames_received
    }

    /// Gives up the session and recovers it, as after a loss. The target receives a Disconnect for the old
    /// session, and ends its tasks before it accepts the new session.
    pub fn relogin(&mut self, now: Instant) {
        self.now = now;
        if self.phase == Phase::Up {
            // The reason is REPLACED because the owner is not done: another session replaces this one.
            self.send_goodbye(DisconnectReason::REPLACED);
            self.handle_nexus_loss(now, LossReason::Unanswered);
            self.process_pending(now);
        }
    }
}

/// The bit that distinguishes the progress of sent tasks from that of waiting tasks.
const SENT: u64 = 1 << 63;
