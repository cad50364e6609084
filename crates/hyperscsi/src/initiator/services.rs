//! The session as the transport of an initiator: what the layer above asks of it.

use alloc::vec::Vec;

use base::time::{Instant, soonest};
use transport::initiator::{
    InitiatorTransport, Request, SubmitError, TaskId, TaskResult, TmfId, TmfParameters,
};
use transport::task_management::{TmfFunction, TmfResult};

use super::contract::{LossReason, MAX_MANAGES, SessionEnd};
use super::session::{Phase, Session};
use super::task::{Task, TaskKind};
use super::task_management::affects;
use crate::pdu::disconnect::DisconnectReason;

/// How many requests of identity checks fit when every other slot is taken.
const MAX_PROBES: usize = 64;

/// The bit that distinguishes the progress of sent tasks from that of waiting tasks.
const SENT: u64 = 1 << 63;

impl InitiatorTransport for Session {
    fn submit(&mut self, now: Instant, request: Request) -> Result<TaskId, SubmitError> {
        // While tasks are open, a logout waits for them, and they may wait for the identity check.
        let is_leaving = self.leaving && (!request.is_identity_check || self.tasks.is_empty());
        if self.phase == Phase::Down || is_leaving {
            return Err(SubmitError::Down);
        }
        let probes_max = if request.is_identity_check { MAX_PROBES } else { 0 };
        if self.open_tasks() >= self.plan.limits.tasks_max + probes_max {
            return Err(SubmitError::Full);
        }
        // OFF counts in 32 bits.
        if u32::try_from(request.data_out.len()).is_err() {
            return Err(SubmitError::TooLong);
        }
        self.stats.tasks += 1;
        let task = Task::new(TaskKind::Command(request));
        let is_urgent = task.is_urgent();
        let key = self.tasks.insert_with(|_| task);
        if is_urgent {
            self.urgent.push_back(key)
        } else {
            self.waiting.push_back(key)
        }
        self.process_pending(now);
        Ok(TaskId(key))
    }

    fn submit_tmf(&mut self, now: Instant, wanted: TmfParameters) -> Result<TmfId, SubmitError> {
        if self.phase == Phase::Down {
            return Err(SubmitError::Down);
        }
        if self.manages >= MAX_MANAGES {
            return Err(SubmitError::Full);
        }
        let names_task = matches!(wanted.function, TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK);
        let named = wanted.task.filter(|_| names_task).and_then(|task| Some((task, self.tasks.get(task.0)?)));
        let (mut wanted, mut referenced) = (TmfParameters { task: None, ..wanted }, 0);
        let mut is_out = true;
        if let Some((task, state)) = named {
            (wanted.task, wanted.lun) = (Some(task), state.lun());
            is_out = state.wire.is_some();
            referenced = state.wire.map_or(0, |wire| wire.xid);
        } else if names_task {
            return Err(SubmitError::NoTask);
        }
        if self.phase != Phase::Up && is_out {
            return Err(SubmitError::NotUp);
        }
        let unsent =
            self.tasks.iter().filter(|(key, task)| task.wire.is_none() && affects(&wanted, *key, task));
        for key in unsent.map(|(key, _)| key).collect::<Vec<_>>() {
            self.finish(key, TaskResult::NotSent);
        }
        let what = TaskKind::Manage { wanted, referenced, result: None, fence: Vec::new() };
        let key = self.tasks.insert_with(|_| Task::new(what));
        self.manages += 1;
        if !is_out {
            // The target never received the task.
            let abort = wanted.function == TmfFunction::ABORT_TASK;
            self.report(key, Some(if abort { TmfResult::COMPLETE } else { TmfResult::NO_TASK }));
            return Ok(TmfId(key));
        }
        self.urgent.push_back(key);
        self.process_pending(now);
        Ok(TmfId(key))
    }

    /// A task makes progress when it is sent, or when its data is received, requested or acknowledged. A task
    /// that was not sent makes progress whenever the session ends a task or transfers data.
    fn progress(&self, TaskId(key): TaskId) -> Option<u64> {
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

    fn send_order(&self, TaskId(key): TaskId) -> Option<u64> {
        self.tasks.get(key)?.send_order()
    }

    fn require_identity_check(&mut self, lun: u64) {
        self.identity_checks.require(lun);
    }

    fn confirm_identity(&mut self, now: Instant, lun: u64) {
        self.identity_checks.confirm(lun);
        self.process_pending(now);
    }

    fn fail_identity(&mut self, now: Instant, lun: u64) {
        self.identity_checks.fail(lun);
        let waits = |task: &Task| task.awaits_identity_check(&self.identity_checks) && task.wire.is_none();
        let waiting: Vec<_> = self.tasks.iter().filter(|(_, task)| waits(task)).map(|(key, _)| key).collect();
        for key in waiting {
            self.finish(key, TaskResult::NotSent);
        }
        self.process_pending(now);
    }

    fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// The target receives a Disconnect for the old session, and ends its tasks before it accepts the new
    /// session.
    fn rebuild_session(&mut self, now: Instant) {
        self.now = now;
        if self.phase == Phase::Up {
            // The reason is REPLACED because the owner is not done: another session replaces this one.
            self.send_goodbye(DisconnectReason::REPLACED);
            self.handle_nexus_loss(now, LossReason::Unanswered);
            self.process_pending(now);
        }
    }

    /// Returns how many of the target's frames were received in the present session.
    fn ping(&mut self, _now: Instant) -> u64 {
        let Some(transport) = self.transport() else { return 0 };
        transport.ping();
        transport.stats().paths.frames_received
    }

    fn logout(&mut self, now: Instant) {
        self.now = now;
        self.leaving = true;
        if self.phase == Phase::Connecting {
            return self.end_session(SessionEnd::LoggedOut);
        }
        self.process_pending(now);
    }

    /// Tasks that were sent end as [`TaskResult::Lost`]. The frames that are polled afterwards carry the
    /// GOODBYE to the target.
    fn close(&mut self, now: Instant) {
        self.now = now;
        self.send_goodbye(DisconnectReason::CLOSED);
        self.end_session(SessionEnd::Closed);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let transport = self.nexus.as_ref().and_then(|nexus| nexus.transport.as_ref()?.poll_timeout());
        let closing =
            self.closing.as_ref().map(|old| old.transport.poll_timeout().unwrap_or(old.until).min(old.until));
        let retry_deadline = self.retry_deadline.filter(|_| self.phase == Phase::Connecting);
        soonest([transport, closing, retry_deadline, self.logout_deadline, self.connector.poll_timeout()])
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if let Some(transport) = self.transport() {
            transport.handle_timeout(now);
        }
        if let Some(old) = &mut self.closing {
            old.transport.handle_timeout(now);
            old.disregard();
        }
        self.closing.take_if(|old| old.until <= now);
        if self.logout_deadline.is_some_and(|at| at <= now) {
            self.end_session(SessionEnd::LoggedOut);
        }
        self.finder_timeout(now);
        if self.retry_deadline.take_if(|at| *at <= now).is_some() && self.phase == Phase::Connecting {
            self.end_session(SessionEnd::RetriesExhausted(self.last));
        }
        self.process_pending(now);
    }
}
