//! Tasks without a connection, and their reassignment to another (RFC 7143 §7.2.2), at ErrorRecoveryLevel 2.
//!
//! When a connection is lost, its session records the loss
//! ([`LostConnections`](super::allegiance::LostConnections)), and the connection's tasks are detached: output
//! for them is sent nowhere. The device server continues to execute the tasks, and they keep the data they
//! have to send. That data's share of the memory quotas was reserved before the loss, and is released when
//! the tasks end or `stall` reclaims it.

use base::state_machine::{Action, ConnId};
use base::time::Instant;
use transport::task_management::TmfResult;

use super::allegiance::{LossId, RecordedLoss, retention};
use super::arena::Key;
use super::connection::index;
use super::contract::SessionEnd;
use super::engine::Engine;
use super::output::{Body, Control, Output};
use super::protocol_error::ProtocolError;
use super::session::{Request, Tmf};
use super::states::{ConnectionEvent, SessionEvent};
use super::task::Task;
use super::timer::{Owner, Timer};
use crate::fault_injection::{self, Bug};
use crate::pdu::TargetSn;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::recovery::erl2::{self, ReferencedTask};
use crate::serial::DataSn;

impl Engine {
    /// Detaches the tasks of a lost connection. Returns whether the session keeps them, which it does if its
    /// level permits it, its retention time is not zero, and it is not ending.
    pub(super) fn detach_tasks(&mut self, now: Instant, session: Key, conn: ConnId, released: bool) -> bool {
        let Some(cid) = self.conn(conn).map(|connection| connection.cid) else {
            self.impossible(None);
            return false;
        };
        let Some(state) = self.sessions.get_mut(session) else {
            self.impossible(Some(session));
            return false;
        };
        //= rfc7143#section-7.14
        //# On connection failure, the initiator and target MUST do one of the following:
        let keeps = state.parameters.error_recovery_level.reassigns_tasks()
            && state.parameters.default_time2retain > 0
            && !state.is_logging_out();
        if !keeps {
            return false;
        }
        self.discard_early_requests(session, Some(conn));
        let Some(state) = self.sessions.get_mut(session) else {
            self.impossible(Some(session));
            return false;
        };
        let retention = retention(state.parameters.default_time2wait, state.parameters.default_time2retain);
        let awaited: alloc::vec::Vec<LossId> = if state.lost.is_full() {
            state.tasks(&self.tasks).filter_map(|(_, task)| task.allegiance.loss()).collect()
        } else {
            alloc::vec::Vec::new()
        };
        let RecordedLoss { loss, until, forgotten } =
            state.lost.insert((cid, released), now, retention, &awaited);
        self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Retain, until);
        let keys: alloc::vec::Vec<Key> =
            state.tasks(&self.tasks).filter(|(_, task)| task.is_on(conn)).map(|(key, _)| key).collect();
        for key in keys {
            if let Some(task) = self.tasks.get_mut(key) {
                task.detach(loss);
            }
        }
        //= rfc7143#section-7.14
        //# On a connection failure, a target MUST terminate
        //# and/or discard all of the active immediate commands
        self.clear_detached(session, loss, |task| task.immediate);
        self.watch_detached(now, session);
        // A task management request cannot be reassigned. An initiator that misses the response requests the
        // function again.
        self.drop_tmfs(session, Some(conn));
        if let Some(forgotten) = forgotten {
            self.clear_detached(session, forgotten, |_| true);
        }
        true
    }

    /// Ends the tasks that a loss detached and that satisfy `is_over`.
    fn clear_detached(&mut self, session: Key, loss: LossId, is_over: impl Fn(&Task) -> bool) {
        let Some(state) = self.sessions.get(session) else { return };
        let keys: alloc::vec::Vec<Key> = state
            .tasks(&self.tasks)
            .filter(|(_, task)| task.allegiance.loss() == Some(loss) && is_over(task))
            .map(|(key, _)| key)
            .collect();
        self.clear_tasks(session, &keys);
    }

    /// Discards the requests of a session, or of one of its connections, that were received ahead of their
    /// turn. They are not acknowledged, and the initiator sends them again.
    pub(super) fn discard_early_requests(&mut self, session: Key, of: Option<ConnId>) {
        let (tasks, tmfs) = (&self.tasks, &self.tmfs);
        let Some(state) = self.sessions.get_mut(session) else { return };
        //= rfc7143#section-11.14
        //# When receiving a Logout Request with the reason code "remove
        //# the connection for recovery", the target MUST discard all requests not
        //# yet acknowledged via the ExpCmdSN that were issued on the specified
        //# connection
        let void = state.window.discard(|request| {
            of.is_none_or(|conn| match request {
                Request::Command(command) => tasks.get(command.task).is_some_and(|task| task.is_on(conn)),
                Request::Tmf(key) => tmfs.get(*key).is_some_and(|tmf| tmf.conn == conn),
                Request::Ping(of, ..) | Request::Text(of, ..) | Request::Logout(of, _) => *of == conn,
                Request::AbortedSlot => false,
            })
        });
        for request in void {
            self.drop_request(session, request);
        }
    }

    /// Drops the task management requests of a session, or of one of its connections: their responses cannot
    /// be sent.
    pub(super) fn drop_tmfs(&mut self, session: Key, of: Option<ConnId>) {
        let Some(state) = self.sessions.get(session) else { return };
        let tmfs: smallvec::SmallVec<[Key; 4]> = state
            .tmfs
            .iter()
            .copied()
            .filter(|tmf| self.tmfs.get(*tmf).is_some_and(|tmf| of.is_none_or(|conn| tmf.conn == conn)))
            .collect();
        for tmf in tmfs {
            self.drop_tmf(tmf);
        }
    }

    /// Marks every lost connection with this CID as logged out for recovery (§11.14.1, §6.3.4). Returns
    /// whether there was one. The retention time of its tasks starts again.
    pub(super) fn mark_recovery_logout(&mut self, now: Instant, session: Key, cid: u16) -> bool {
        let Some(state) = self.sessions.get_mut(session) else {
            self.impossible(Some(session));
            return false;
        };
        let retention = retention(state.parameters.default_time2wait, state.parameters.default_time2retain);
        state.lost.log_out(cid, now.after(retention))
    }

    /// Ends the tasks whose retention time is over, and the session if it has neither connections nor lost
    /// connections left.
    pub(super) fn on_retain_timer(&mut self, now: Instant, session: Key) {
        loop {
            let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
            let Some(expired) = state.lost.take_expired(now) else { break };
            self.clear_detached(session, expired, |_| true);
        }
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        if let Some(next) = state.lost.next_expiry() {
            self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Retain, next);
        } else if state.conns.is_empty() {
            let why = state.last_loss;
            self.end_session(session, SessionEnd::ConnectionLost(why));
        }
    }

    /// Handles TASK REASSIGN (§11.5.1).
    pub(super) fn handle_task_reassign(
        &mut self,
        now: Instant,
        key: Key,
        tmf: &Tmf,
    ) -> Result<(), ProtocolError> {
        let Some(state) = self.sessions.get(tmf.session) else { return Err(ProtocolError::impossible()) };
        let task = state.find(&self.tasks, tmf.referenced.0);
        if task.is_none() && self.is_control_tag(tmf.session, tmf.referenced.0) {
            //= rfc7143#section-11.5.1
            //# At the target, a TASK REASSIGN function request MUST NOT be executed to reassign the
            //# connection allegiance of a Task Management Function Request, an active text negotiation task,
            //# or a Logout task; such a request MUST result in a task management response of "Function
            //# rejected".
            return self.answer_tmf(key, TmfResult::REJECTED);
        }
        let allegiance = task.and_then(|task| self.tasks.get(task)).map(|task| task.allegiance);
        let referenced = match allegiance {
            None => ReferencedTask::Unknown,
            Some(allegiance) => state.lost.state_of(allegiance).ok_or_else(ProtocolError::impossible)?,
        };
        let result = erl2::reassign(state.parameters.error_recovery_level, referenced);
        //= rfc7143#section-7.2.2
        //# If allegiance reassignment is supported by the target, the task
        //# management response to the reassignment request MUST be issued before
        //# the reassignment becomes effective.
        //= rfc7143#section-11.5.1
        //# The task management response MUST be issued before the reassignment becomes effective.
        //= rfc7143#section-11.6
        //# For TASK REASSIGN, the new connection allegiance MUST ONLY become effective at the target after
        //# the target issues the task management response.
        self.answer_tmf(key, result)?;
        if let (TmfResult::COMPLETE, Some(task)) = (result, task)
            && !fault_injection::is_injected(Bug::ForgetReassign)
        {
            self.reassign_task(now, task, tmf.conn, tmf.exp_data_sn);
        }
        Ok(())
    }

    /// Makes a task allegiant to a connection and continues it there.
    fn reassign_task(&mut self, now: Instant, key: Key, conn: ConnId, exp_data_sn: DataSn) {
        // The response may have cost another connection, and its loss the tasks of the oldest lost one.
        let Some(task) = self.tasks.get_mut(key) else { return };
        let session = task.session;
        if !task.allegiance.reassign(conn) {
            return self.impossible(Some(session));
        }
        //= rfc7143#section-7.2.2
        //# If a SCSI command that involves data input is reassigned, any SNACK Tag it holds for a final
        //# response from the original connection is deleted, and the default value of 0 MUST be used instead.
        // §7.2.2: the SNACK tag that was recorded for its response is forgotten.
        task.snack_tag = 0;
        let was_answered = task.sent_status.take().is_some();
        let upto = erl2::acknowledges(task.data_in.acked_sn(), task.data_in.next_sn(), exp_data_sn);
        let freed = task.data_in.acknowledge(upto, &self.pool);
        //= rfc7143#section-11.5.6
        //# the target MUST transmit all Data-In PDUs (if any) starting with the data acknowledgment reference
        //# number.
        task.data_in.rewind();
        if was_answered {
            self.uncount_unacked_task(session);
        }
        self.stats.reassigns += 1;
        self.count_repair(conn, |repairs| repairs.reassigns += 1);
        self.release_data_in(session, freed);
        self.request_missing_data(now, key, conn);
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        //= rfc7143#section-7.2.2
        //# This might possibly involve retransmission of data/R2T/status PDUs as necessary but MUST involve
        //# the (re)transmission of the status PDU.
        let ends = task.result.is_some() && !task.data_out.is_expecting();
        if ends {
            self.queue_response(key);
        } else if task.data_in.has_queued()
            && let Some(conn) = task.enter_send_queue()
        {
            self.queue(conn, Output::Task(key));
        }
        self.drain_ready(session);
    }

    /// Asks for the data that the initiator still owes to a reassigned task.
    fn request_missing_data(&mut self, now: Instant, key: Key, conn: ConnId) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let mut sequences: smallvec::SmallVec<[(crate::pdu::Ttt, bool); 2]> = smallvec::SmallVec::new();
        for sequence in task.data_out.sequences_mut() {
            sequence.reassigned();
            sequences.push((sequence.ttt(), sequence.is_announced()));
        }
        let has_ended = task.result.is_some();
        for (ttt, is_announced) in sequences {
            if has_ended {
                // The task does not need that data any more, and the sequence ended with its connection.
                if let Some(task) = self.tasks.get_mut(key) {
                    task.data_out.drop_sequence(ttt, &self.pool);
                }
            } else if is_announced {
                self.request_recovery_r2t(key, ttt);
            } else {
                self.queue(conn, Output::R2t(key, ttt));
            }
        }
        self.advance_fetches(key);
        self.watch_data(now, conn);
    }

    /// Removes a connection from its session, because a logout for recovery names it or a login reinstates
    /// it.
    pub(super) fn remove_for_recovery(&mut self, now: Instant, session: Key, conn: ConnId) {
        let kept = self.detach_tasks(now, session, conn, true);
        let is_last = self.remove_member(session, conn);
        if is_last
            && kept
            && let Some(state) = self.sessions.get_mut(session)
        {
            let moved = state.on(SessionEvent::ConnectionsLost);
            self.expect_legal(moved);
        }
        if !kept {
            self.end_tasks(session, Some(conn));
        }
        self.take_session(conn);
        if let Some(connection) = self.conn_mut(conn) {
            connection.closing = true;
            connection.deadlines.clear(Timer::Logout);
            let moved = connection.on(ConnectionEvent::LoggedOut);
            self.expect_legal(moved);
        }
        self.remove_from_fences(session, conn);
        self.mark_logouts_dirty(session);
    }

    /// As [`Self::remove_for_recovery`], and aborts the connection at once, without a Logout Response on it.
    pub(super) fn replace_connection(&mut self, now: Instant, session: Key, conn: ConnId) {
        self.remove_for_recovery(now, session, conn);
        self.actions.push_back(Action::Abort(conn));
    }

    /// Reports to another connection of a session that one was dropped (§11.9.1).
    pub(super) fn announce_loss(&mut self, session: Key, cid: u16) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        state.logout_cause.drop_announced();
        let Some(conn) = state.conns.first().copied() else { return };
        let (parameter2, parameter3) =
            (state.parameters.default_time2wait, state.parameters.default_time2retain);
        let message = AsyncMessage {
            lun: 0,
            sn: TargetSn::default(),
            event: AsyncEventCode::CONNECTION_DROP,
            vendor_code: 0,
            parameter1: cid,
            parameter2,
            parameter3,
        };
        if let Err(why) = self.queue_control(conn, Control::Async(message), Body::Empty) {
            self.drop_connection(conn, why);
        }
    }

    /// Returns the connection of a session with this CID.
    pub(super) fn member(&self, session: Key, cid: u16) -> Option<ConnId> {
        let state = self.sessions.get(session)?;
        let is_it = |conn: &ConnId| {
            self.conns.get(index(*conn)).and_then(Option::as_deref).is_some_and(|found| found.cid == cid)
        };
        state.conns.iter().copied().find(is_it)
    }
}
