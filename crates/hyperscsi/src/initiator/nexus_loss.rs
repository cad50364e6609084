//! I_T nexus loss: decides which requests are repeated, and ends the session.

use alloc::vec::Vec;

use base::arena::Key;
use base::time::{Duration, Instant};
use transport::initiator::TaskResult;

use super::contract::{Event, LossReason, SessionEnd};
use super::session::{Phase, Session};
use super::task::{MAX_REPLAYS, TaskKind};
use crate::pdu::disconnect::DisconnectReason;

/// Sessions that ended in succession soon after they began, because the target violated the protocol or ended
/// them.
#[derive(Debug, Default)]
pub(super) struct ShortSessions {
    /// When the first of them ended because of a violation.
    since: Option<Instant>,
    /// How long to wait before the next session.
    pause: Duration,
}

/// How long to wait before another session with such a target: not at all after the first such end, then
/// this, doubled each time up to the maximum.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A session that lasted this long resets the record.
const TRUSTED_AFTER: Duration = Duration::from_secs(10);

/// Returns whether the target may end the next session for the same reason as soon as it has begun.
const fn may_recur(why: LossReason) -> bool {
    match why {
        LossReason::Misbehaved(_) => true,
        // The keys of the next session are new, and so is its place among the sessions of this initiator
        // port.
        LossReason::Ended(reason) => {
            !matches!(reason, DisconnectReason::REPLACED | DisconnectReason::KEYS_EXHAUSTED)
        }
        _ => false,
    }
}

impl ShortSessions {
    /// Records the end of a session that lasted `lasted`.
    fn session_ended(&mut self, lasted: Duration) {
        if lasted >= TRUSTED_AFTER {
            *self = Self::default();
        }
    }

    /// Records one more end. Returns how long to wait before the next session.
    fn record(&mut self) -> Duration {
        let next = (self.pause * 2).clamp(PAUSE, PAUSE_MAX);
        core::mem::replace(&mut self.pause, next)
    }
}

impl Session {
    /// Handles the loss of the session, and starts session recovery.
    pub(super) fn handle_nexus_loss(&mut self, now: Instant, why: LossReason) {
        if matches!(why, LossReason::Misbehaved(_)) {
            self.send_goodbye(DisconnectReason::BROKEN);
        }
        let Some(nexus) = self.nexus.take() else { return };
        self.stats.sessions_lost += 1;
        self.short_sessions.session_ended(now.since(nexus.begun));
        self.part(*nexus);
        self.lose_tasks();
        (self.phase, self.last, self.loss) = (Phase::Connecting, why, Some(why));
        if self.leaving {
            return self.end_session(SessionEnd::LoggedOut);
        }
        match why {
            // The initiator's own handshake replaced the session.
            LossReason::Ended(DisconnectReason::REPLACED) if self.connector.explains_replaced(now) => {
                (self.last, self.loss) = (LossReason::UnknownToTarget, Some(LossReason::UnknownToTarget));
            }
            // If this initiator replaced the other session in turn, the other initiator would replace this
            // one again, without end.
            LossReason::Ended(DisconnectReason::REPLACED | DisconnectReason::NOT_AUTHORIZED) => {
                return self.end_session(SessionEnd::Permanent(why));
            }
            _ => {}
        }
        let pause = may_recur(why).then(|| self.short_sessions.record());
        // For waiting requests, sessions that a target breaks as soon as they begin count as one long loss. A
        // target that says that it ends them may be restarted again and again.
        let is_broken = matches!(why, LossReason::Misbehaved(_));
        let since = if is_broken { *self.short_sessions.since.get_or_insert(now) } else { now };
        let timeout = self.plan.retry.timeout;
        if now.since(since) >= timeout {
            return self.end_session(SessionEnd::RetriesExhausted(self.last));
        }
        self.retry_deadline = Some(since.after(timeout));
        self.events.push_back(Event::Recovering(why));
        match pause {
            Some(pause) if !pause.is_zero() => self.seek_at(now.after(pause)),
            _ if why == LossReason::UnknownToTarget => {}
            _ => self.start_login(now),
        }
    }

    /// Ends or requeues everything that was sent. Requests that may be repeated are queued ahead of those
    /// that wait, in the order in which they were sent.
    fn lose_tasks(&mut self) {
        let mut out: Vec<(u64, Key)> = Vec::new();
        let mut manages = Vec::new();
        for (key, task) in self.tasks.iter() {
            if !task.is_command() {
                manages.push(key);
            } else if task.wire.is_some() {
                out.push((task.order, key));
            }
        }
        out.sort_unstable();
        for (_, key) in out.into_iter().rev() {
            self.release(key);
            let Some(task) = self.tasks.get_mut(key) else { continue };
            let replay = matches!(&task.kind, TaskKind::Command(request) if request.replay);
            if replay && task.replays < MAX_REPLAYS {
                task.replays += 1;
                task.reset_for_replay(&self.pool);
                self.stats.replays += 1;
                self.requeue(key);
            } else {
                self.finish(key, TaskResult::Lost);
            }
        }
        for key in manages {
            self.report(key, None);
        }
        self.expected = 0;
    }

    /// Ends the session for good.
    pub(super) fn end_session(&mut self, down: SessionEnd) {
        if self.phase == Phase::Down {
            return;
        }
        self.phase = Phase::Down;
        if matches!(down, SessionEnd::LoggedOut | SessionEnd::Closed) {
            self.loss = None;
        }
        if let Some(nexus) = self.nexus.take() {
            self.part(*nexus);
        }
        let mut open: Vec<(bool, u64, Key)> =
            self.tasks.iter().map(|(key, task)| (task.wire.is_none(), task.order, key)).collect();
        open.sort_unstable();
        for (unsent, _, key) in open {
            if self.tasks.get(key).is_some_and(super::task::Task::is_command) {
                self.finish(key, if unsent { TaskResult::NotSent } else { TaskResult::Lost });
            }
        }
        for key in self.tasks.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.report(key, None);
        }
        self.waiting.clear();
        self.urgent.clear();
        self.connector.stop();
        self.end_deadlines();
        self.events.push_back(Event::Down(down));
    }
}

#[cfg(test)]
mod tests;
