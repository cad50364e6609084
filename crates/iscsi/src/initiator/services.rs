//! The session as the transport of an initiator: what the layer above asks of it.

use alloc::vec::Vec;

use base::time::{Duration, Instant};
use transport::initiator::{
    InitiatorTransport, Request, SubmitError, TaskId, TaskResult, TmfId, TmfParameters,
};
use transport::task_management::TmfFunction;

use super::connection_slot::{QueuedPdu, TIMERS};
use super::contract::{
    ConnectionDown, ConnectionLoss, MAX_CONNECTIONS, MAX_PROBES, MAX_TMFS, Purpose, SessionEnd, Slot,
};
use super::open_tmf::{Tmf, TmfOrigin};
use super::session::{Phase, Session, TAG_TASK, tag};
use super::task::{Task, TaskState};

/// Distinguishes the numbers of tasks that were sent from those of tasks that wait.
const SENT: u64 = 1 << 63;

impl InitiatorTransport for Session {
    fn submit(&mut self, now: Instant, request: Request) -> Result<TaskId, SubmitError> {
        // While tasks are open, a logout waits for them, and they may wait for the identity check.
        let is_leaving = self.logout_requested && (!request.is_identity_check || self.tasks.is_empty());
        if self.phase == Phase::Down || is_leaving {
            return Err(SubmitError::Down);
        }
        if self.plan.purpose == Purpose::Discovery {
            return Err(SubmitError::NotPossible);
        }
        let probes_max = if request.is_identity_check { MAX_PROBES } else { 0 };
        if self.tasks.len() >= self.plan.limits.tasks_max + probes_max {
            return Err(SubmitError::Full);
        }
        let data_out_len = u32::try_from(request.data_out.len()).map_err(|_| SubmitError::TooLong)?;
        let immediate = request.immediate;
        let key = self.tasks.insert_with(|_| Task::new(request, data_out_len));
        if immediate {
            self.waiting.push_front(key);
        } else {
            self.waiting.push_back(key);
        }
        self.stats.tasks += 1;
        self.process_pending(now);
        Ok(TaskId(key))
    }

    fn submit_tmf(&mut self, now: Instant, wanted: TmfParameters) -> Result<TmfId, SubmitError> {
        let TmfParameters { function, lun, task } = wanted;
        if self.phase == Phase::Down || self.session_logout.is_some() {
            return Err(SubmitError::Down);
        }
        if self.tmfs.len() >= MAX_TMFS {
            return Err(SubmitError::Full);
        }
        let newer = function.0 > TmfFunction::TASK_REASSIGN.0;
        if function == TmfFunction::TASK_REASSIGN || (newer && self.parameters.protocol_level < 2) {
            return Err(SubmitError::NotPossible);
        }
        let names_task = matches!(function, TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK);
        //= rfc7143#section-11.5.4
        //# For all the other functions, this field MUST be set to the reserved value 0xffffffff.
        let key = task.map(|TaskId(key)| key).filter(|_| names_task);
        let named = key.and_then(|key| self.tasks.get(key)).map(|task| {
            let cmd_sn = (!task.request.immediate).then_some(task.cmd_sn);
            (task.state, cmd_sn, task.was_sent())
        });
        if names_task && named.is_none() {
            return Err(SubmitError::NoTask);
        }
        if let (TmfFunction::ABORT_TASK, Some(key), Some((_, _, is_out))) = (function, key, named) {
            if let Some(task) = self.tasks.get_mut(key) {
                task.request.replay = false;
            }
            if !is_out {
                return Ok(self.abort_unsent(key));
            }
        }
        //= rfc7143#section-11.5.1
        //# If the connection is still active (i.e., it is not undergoing an implicit or explicit logout), an
        //# ABORT TASK MUST be issued on the same connection to which the task to be aborted is allegiant at
        //# the time the task management request is issued.
        let own = match named {
            Some((TaskState::Sent(slot), _, _)) => Some(slot).filter(|slot| !self.is_closing(*slot)),
            _ => None,
        };
        let slot = own
            .or_else(|| self.any_up(None))
            .filter(|_| self.phase == Phase::Up)
            .ok_or(SubmitError::NotUp)?;
        let mut tmf = Tmf { lun, task: key, ..Tmf::new(TmfOrigin::Owner, function, slot) };
        if let (Some(key), Some((_, cmd_sn, _))) = (key, named) {
            //= rfc7143#section-11.5.5
            //# For an ABORT TASK of a task created by a non-immediate command, the RefCmdSN MUST be set to
            //# the CmdSN of the task identified by the Referenced Task Tag field.
            tmf.referenced = (tag(TAG_TASK, key), cmd_sn);
            tmf.lun = self.tasks.get(key).map_or(lun, |task| task.request.lun);
        }
        //= rfc7143#section-11.5.1
        //# For ABORT TASK SET and CLEAR TASK SET, the issuing initiator MUST continue to respond to all valid
        //# Target Transfer Tags (received via R2T, Text Response, NOP-In, or SCSI Data-In PDUs) related to
        //# the affected task set, even after issuing the task management request.
        let unsent = self.tasks.iter().filter(|(_, task)| !task.was_sent() && tmf.affects(task));
        for key in unsent.map(|(key, _)| key).collect::<Vec<_>>() {
            self.finish(key, TaskResult::NotSent);
        }
        let key = self.tmfs.insert_with(|_| tmf);
        self.queue(slot, QueuedPdu::Tmf(key));
        self.process_pending(now);
        Ok(TmfId(key))
    }

    /// A task makes progress when it is sent, or when its data is received, requested or sent. A task that
    /// was not sent makes progress whenever the session ends a task or moves data.
    fn progress(&self, TaskId(key): TaskId) -> Option<u64> {
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
        let waits = |task: &Task| self.identity_checks.holds_back(&task.request) && !task.was_sent();
        let waiting: Vec<_> = self.tasks.iter().filter(|(_, task)| waits(task)).map(|(key, _)| key).collect();
        for key in waiting {
            self.finish(key, TaskResult::NotSent);
        }
        self.process_pending(now);
    }

    fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// The target ends every task of the old session before it accepts the new one (RFC 7143 §6.3.5), which
    /// is in the same portal group.
    fn rebuild_session(&mut self, now: Instant) {
        if self.phase == Phase::Up {
            self.lose_session(now, ConnectionDown::Unanswered, self.time2wait());
            self.process_pending(now);
        }
    }

    /// Pings on every connection that is up, unless a ping is on its way there.
    fn ping(&mut self, now: Instant) -> u64 {
        let up: Vec<_> = self.connections().filter(|view| view.up).map(|view| view.slot).collect();
        up.into_iter().for_each(|slot| self.send_ping(now, slot));
        self.stats.pdus_in
    }

    /// Each connection is logged out by a logout of its own, and the last logout closes the session. After
    /// the response to a logout no more PDUs arrive on that connection, so every PDU that the target sent
    /// before was received and checked, on all connections.
    fn logout(&mut self, now: Instant) {
        self.logout_requested = true;
        self.process_pending(now);
    }

    fn close(&mut self, _now: Instant) {
        self.end_session(SessionEnd::Closed);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let farewell = self.session_logout.map(|(_, at)| at);
        let places = self.slots.iter().filter_map(|connection_slot| connection_slot.deadlines.next());
        places.chain([self.retry_deadline, self.retain_deadline, farewell].into_iter().flatten()).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            for timer in TIMERS {
                let connection_slot = self.slots.get_mut(usize::from(slot.0));
                if connection_slot
                    .is_some_and(|connection_slot| connection_slot.deadlines.expired(timer, now))
                {
                    self.timer(now, slot, timer);
                }
            }
        }
        if self.session_logout.is_some_and(|(_, at)| at <= now) {
            self.end_session(SessionEnd::LoggedOut);
        }
        if self.retain_deadline.take_if(|at| *at <= now).is_some() {
            // Time2Wait and Time2Retain have passed since the loss.
            let why = match self.last {
                lost @ ConnectionDown::Lost(_) => lost,
                _ => ConnectionDown::Lost(ConnectionLoss::Failed),
            };
            self.lose_session(now, why, Duration::ZERO);
        }
        if self.retry_deadline.take_if(|at| *at <= now).is_some() && self.phase == Phase::NoConnection {
            self.end_session(SessionEnd::RetriesExhausted(self.last));
        }
        self.process_pending(now);
    }
}
