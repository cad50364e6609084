//! Logout (RFC 7143 §11.14, §11.15): of the session, of a connection, or for recovery, which needs level 2.
//!
//! A logout is executed in two steps. First the target stops reading: requests that follow on the connections
//! that end are not read, and no request that still waits for its number is executed. Then the target
//! finishes the tasks under way: tasks that need nothing more from the initiator end, and their responses are
//! sent, each in the order of its connection, before the Logout Response. Tasks that need more data are
//! terminated, and so are tasks that take longer than [`super::engine::Limits::logout_within`]. So an
//! initiator that sends its last commands and its logout in one segment gets the responses to all of them,
//! whatever the speed of the medium; and so does an initiator that closes its half of the connection after
//! them.

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId};
use base::time::Instant;
use smallvec::SmallVec;
use transport::target::{SessionId, TaskRef};

use super::arena::Key;
use super::contract::{ConnectionLoss, Event, SessionEnd};
use super::engine::Engine;
use super::output::{Body, Control};
use super::pending_logout::{LogoutScope, PendingLogout};
use super::protocol_error::ProtocolError;
use super::states::ConnectionEvent;
use super::task::{Holder, Task};
use super::timer::{Owner, Timer};
use crate::pdu::TargetSn;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};

impl Engine {
    /// Handles a Logout Request.
    pub(super) fn handle_logout(
        &mut self,
        now: Instant,
        conn: ConnId,
        session: Key,
        request: &LogoutRequest,
    ) -> Result<(), ProtocolError> {
        let Some(state) = self.sessions.get(session) else { return Err(ProtocolError::impossible()) };
        let time2wait = state.parameters.default_time2wait;
        let staying = self.staying_members(session);
        let named =
            staying.iter().copied().find(|conn| self.conn(*conn).is_some_and(|c| c.cid == request.cid));
        if request.reason == LogoutReason::RemoveForRecovery && state.is_discovery() {
            return Err(ProtocolError::NotInDiscovery);
        }
        if request.reason == LogoutReason::RemoveForRecovery {
            return self.logout_for_recovery(now, conn, session, request);
        }
        let (response, ends) = match (request.reason, named) {
            (LogoutReason::CloseSession, _) => (LogoutResult::CLOSED, Some(LogoutScope::Session)),
            (LogoutReason::CloseConnection, Some(_)) if staying.len() == 1 => {
                (LogoutResult::CLOSED, Some(LogoutScope::Session))
            }
            (LogoutReason::CloseConnection, Some(named)) => {
                (LogoutResult::CLOSED, Some(LogoutScope::Connection(named)))
            }
            (LogoutReason::CloseConnection, None) => (LogoutResult::NO_CID, None),
            (LogoutReason::RemoveForRecovery, _) => return Err(ProtocolError::impossible()),
        };
        if request.reason == LogoutReason::CloseSession
            && let Some(state) = self.sessions.get_mut(session)
        {
            state.logout_cause.close_requested();
        }
        let answer = LogoutResponse {
            response,
            itt: request.itt,
            sn: TargetSn::default(),
            // §11.15.3: below level 2 the field has a meaning only if the logout failed.
            time2wait: if response == LogoutResult::CLOSED { 0 } else { time2wait },
            time2retain: 0,
        };
        let Some(ends) = ends else { return self.queue_control(conn, Control::Logout(answer), Body::Empty) };
        let pending = PendingLogout::new(conn, ends, Some(answer));
        self.start_logout(now, session, pending)
    }

    /// Records that the initiator sends no more on a connection. Returns whether responses are still to be
    /// sent on it: the target proceeds as for a logout without a Logout Response.
    ///
    /// At level 2, or if the session has other connections, it returns false: the connection is lost, and
    /// error recovery handles the loss.
    pub fn received_eof(&mut self, now: Instant, conn: ConnId) -> bool {
        let Some(connection) = self.conn(conn).filter(|connection| !connection.closing) else { return false };
        let Some((key, state)) = connection.session.and_then(|key| Some((key, self.sessions.get(key)?)))
        else {
            return false;
        };
        if connection.logging_out {
            return true;
        }
        let reassigns_tasks = state.parameters.error_recovery_level.reassigns_tasks();
        if self.staying_members(key).len() > 1 || reassigns_tasks {
            return false;
        }
        let pending = PendingLogout::new(conn, LogoutScope::Session, None);
        self.start_logout(now, key, pending).is_ok()
    }

    /// Returns the connections of a session that no accepted logout ends.
    fn staying_members(&self, session: Key) -> SmallVec<[ConnId; 4]> {
        let conns = self.sessions.get(session).map(|state| state.conns.as_slice()).unwrap_or_default();
        let stays = |conn: &ConnId| self.conn(*conn).is_some_and(|connection| !connection.logging_out);
        conns.iter().copied().filter(stays).collect()
    }

    /// Stops reading from the connections that end, and starts to wait for the tasks under way.
    fn start_logout(
        &mut self,
        now: Instant,
        session: Key,
        pending: PendingLogout,
    ) -> Result<(), ProtocolError> {
        let conns = self.sessions.get(session).map(|state| state.conns.clone()).unwrap_or_default();
        self.conn_mut(pending.timed())
            .ok_or_else(ProtocolError::impossible)?
            .on(ConnectionEvent::LogoutRequest)?;
        for conn in conns.into_iter().filter(|conn| pending.covers(*conn)) {
            if let Some(connection) = self.conn_mut(conn) {
                connection.logging_out = true;
            }
        }
        let at = now.after(self.limits.logout_within);
        let timed = pending.timed();
        if let Some(connection) = self.conns.get_mut(super::connection::index(timed)).and_then(Option::as_mut)
        {
            self.timers.set(Owner::Connection(timed), &mut connection.deadlines, Timer::Logout, at);
        }
        if let Some(state) = self.sessions.get_mut(session) {
            state.logouts.push(pending);
        }
        self.mark_logouts_dirty(session);
        Ok(())
    }

    /// Handles a Logout Request for recovery: the connection ends at once, and its tasks wait for
    /// reassignment (§11.14.1).
    fn logout_for_recovery(
        &mut self,
        now: Instant,
        conn: ConnId,
        session: Key,
        request: &LogoutRequest,
    ) -> Result<(), ProtocolError> {
        let Some(state) = self.sessions.get(session) else { return Err(ProtocolError::impossible()) };
        let parameters = state.parameters;
        let named = self.member(session, request.cid);
        let response = if !parameters.error_recovery_level.reassigns_tasks() {
            LogoutResult::NO_RECOVERY
        } else if named.is_some() || state.lost.has_cid(request.cid) {
            LogoutResult::CLOSED
        } else {
            LogoutResult::NO_CID
        };
        let is_done = response == LogoutResult::CLOSED;
        let answer = LogoutResponse {
            response,
            itt: request.itt,
            sn: TargetSn::default(),
            time2wait: parameters.default_time2wait,
            time2retain: if is_done { parameters.default_time2retain } else { 0 },
        };
        self.queue_control(conn, Control::Logout(answer), Body::Empty)?;
        if !is_done {
            return Ok(());
        }
        self.mark_recovery_logout(now, session, request.cid);
        match named {
            Some(named) if named == conn => {
                self.remove_for_recovery(now, session, named);
                self.actions.push_back(Action::Close(named));
            }
            Some(named) => self.replace_connection(now, session, named),
            None => {}
        }
        // With a retention time of zero, no task is kept, and a session without connections has nothing left.
        if self.sessions.get(session).is_some_and(|state| state.conns.is_empty() && state.lost.is_empty()) {
            // The initiator gave up a connection in order to continue on another one: it still uses the
            // session's LUNs.
            self.end_session(session, SessionEnd::ConnectionLost(ConnectionLoss::GivenUp));
        }
        Ok(())
    }

    /// Marks a session that has logouts to be processed again: a task of it ended, or will not end by itself.
    pub(super) fn mark_logouts_dirty(&mut self, session: Key) {
        if self.sessions.get(session).is_some_and(|state| !state.logouts.is_empty()) {
            self.mark_dirty(session);
        }
    }

    /// Marks a session to be processed again.
    pub(super) fn mark_dirty(&mut self, session: Key) {
        if let Some(state) = self.sessions.get_mut(session)
            && !core::mem::replace(&mut state.is_dirty, true)
        {
            self.dirty_sessions.push_back(session);
        }
    }

    /// Processes the sessions that were marked.
    pub(super) fn process_dirty_sessions(&mut self) {
        while let Some(session) = self.dirty_sessions.pop_front() {
            let Some(state) = self.sessions.get_mut(session) else { continue };
            state.is_dirty = false;
            self.process_logouts(session);
            self.show_window(session);
        }
    }

    fn process_logouts(&mut self, session: Key) {
        let mut at = 0;
        while let Some(pending) = self.sessions.get(session).and_then(|s| s.logouts.get(at).copied()) {
            if pending.is_late() {
                self.end_tasks(session, pending.named());
            }
            if self.is_waiting(session, &pending) {
                at += 1;
                continue;
            }
            if let Some(state) = self.sessions.get_mut(session) {
                state.logouts.remove(at);
            }
            self.finish_logout(session, &pending);
        }
    }

    /// Ends the tasks that cannot end by themselves after a logout. Returns whether other tasks are still
    /// open, or responses not sent.
    fn is_waiting(&mut self, session: Key, pending: &PendingLogout) -> bool {
        let Some(state) = self.sessions.get(session) else {
            self.impossible(Some(session));
            return false;
        };
        let stuck: SmallVec<[Key; 8]> = state
            .tasks(&self.tasks)
            .filter(|(_, task)| pending.covers_task(task) && task.sent_status.is_none() && is_stuck(task))
            .map(|(key, _)| key)
            .collect();
        match pending.scope() {
            LogoutScope::Connection(_) => self.clear_tasks(session, &stuck),
            LogoutScope::Session => stuck.into_iter().for_each(|key| self.end_task(key)),
        }
        let Some(state) = self.sessions.get(session) else {
            self.impossible(Some(session));
            return false;
        };
        let stuck: SmallVec<[Key; 4]> = state
            .tmfs
            .iter()
            .copied()
            .filter(|key| {
                self.tmfs.get(*key).is_some_and(|tmf| pending.covers(tmf.conn) && tmf.waits_for_commands)
            })
            .collect();
        for tmf in stuck {
            self.drop_tmf(tmf);
        }
        self.sessions.get(session).is_some_and(|state| {
            // An answered task is retained only for an initiator that asks for its response again, and the
            // target reads no more from this one.
            let mut open = state.tasks(&self.tasks).filter(|(_, task)| task.sent_status.is_none());
            open.any(|(_, task)| pending.covers_task(task))
                || state
                    .tmfs
                    .iter()
                    .any(|key| self.tmfs.get(*key).is_some_and(|tmf| pending.covers(tmf.conn)))
        })
    }

    /// Answers a logout and executes it. Everything that it ends is finished now.
    fn finish_logout(&mut self, session: Key, pending: &PendingLogout) {
        let is_there = |conn: ConnId| self.conn(conn).is_some_and(|c| c.session == Some(session));
        let (asked, named) = (is_there(pending.requested_on()), is_there(pending.timed()));
        let answered = match pending.answer() {
            Some(answer) if asked => {
                self.queue_control(pending.requested_on(), Control::Logout(answer), Body::Empty)
            }
            _ => Ok(()),
        };
        let down = if pending.answer().is_some() { SessionEnd::LoggedOut } else { SessionEnd::HalfClosed };
        match pending.scope() {
            LogoutScope::Session => self.end_session(session, down),
            LogoutScope::Connection(conn) if named => self.close_member(session, conn, down),
            LogoutScope::Connection(_) => {}
        }
        if let Err(why) = answered {
            self.drop_connection(pending.requested_on(), why);
        }
    }

    /// Ends the tasks of a session, or of one of its connections, and reports it to the layer above.
    pub(super) fn end_tasks(&mut self, session: Key, of: Option<ConnId>) {
        self.discard_early_requests(session, of);
        let Some(state) = self.sessions.get(session) else { return };
        let keys: Vec<Key> = state
            .tasks(&self.tasks)
            .filter(|(_, task)| of.is_none_or(|conn| task.is_on(conn)))
            .map(|(key, _)| key)
            .collect();
        match of {
            Some(_) => self.clear_tasks(session, &keys),
            None => keys.into_iter().for_each(|key| self.end_task(key)),
        }
        self.drop_tmfs(session, of);
    }

    /// Ends tasks whose responses cannot be delivered although their session continues (§11.14.5: implicit
    /// termination). The layer above learns once of each logical unit whose tasks were not answered, after
    /// the end of all of them: a command that waited for one of them could otherwise report the unit
    /// attention before the next one ends, and another command would report it again.
    pub(super) fn clear_tasks(&mut self, session: Key, keys: &[Key]) {
        let mut luns: SmallVec<[u64; 4]> = SmallVec::new();
        for key in keys {
            let unanswered = self.tasks.get(*key).filter(|task| task.sent_status.is_none());
            if let Some(lun) = unanswered.map(|task| task.lun).filter(|lun| !luns.contains(lun)) {
                luns.push(lun);
            }
            self.end_task(*key);
        }
        for lun in luns {
            //= rfc7143#section-11.14.5
            //# After the tasks are terminated, the target MUST report a Unit Attention condition on the next
            //# command processed on any connection for each affected I_T_L nexus with the status of CHECK
            //# CONDITION, the ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"),
            //# etc.; see [SPC3].
            self.events.push_back(Event::TasksCleared {
                session: SessionId(session),
                lun,
                code: [0x47, 0x7f],
            });
        }
    }

    /// Ends a task whose response cannot be delivered any more.
    pub(super) fn end_task(&mut self, key: Key) {
        let held = self.tasks.get(key).is_some_and(|task| task.holder == Holder::DeviceServer);
        self.remove_task(key);
        if held {
            self.events.push_back(Event::TaskGone { task: TaskRef(key) });
        }
    }

    /// Handles the logout timer: the time limit of a pending logout has passed, or the initiator did not log
    /// out as requested.
    pub(super) fn on_logout_timer(&mut self, conn: ConnId) {
        let session = self.conn(conn).and_then(|connection| connection.session);
        let pending = session
            .and_then(|key| self.sessions.get_mut(key))
            .and_then(|state| state.logouts.iter_mut().find(|pending| pending.timed() == conn));
        match (session, pending) {
            (Some(session), Some(pending)) => {
                pending.expire();
                self.mark_logouts_dirty(session);
            }
            // At every recovery level: the layer above requested the logout to end the session.
            (Some(session), None) => {
                self.stats.dropped += 1;
                self.end_session(session, SessionEnd::TimedOut);
            }
            (None, _) => self.handle_omission(conn, ProtocolError::LogoutTooSlow),
        }
    }

    /// Closes one connection of a session. If the session has lost or closed all others, it ends (§8.3.2,
    /// N3).
    fn close_member(&mut self, session: Key, conn: ConnId, down: SessionEnd) {
        if self.sessions.get(session).is_some_and(|state| *state.conns == [conn]) {
            return self.end_session(session, down);
        }
        self.end_tasks(session, Some(conn));
        self.remove_from_fences(session, conn);
        self.remove_member(session, conn);
        self.take_session(conn);
        if let Some(connection) = self.conn_mut(conn) {
            connection.closing = true;
            connection.deadlines.clear(Timer::Logout);
            let moved = connection.on(ConnectionEvent::LoggedOut);
            //= rfc7143#section-11.15
            //# After Logout, the TCP connection referred by the CID MUST be closed at both ends (or all
            //# connections must be closed if the logout reason was session close).
            self.actions.push_back(Action::Close(conn));
            self.expect_legal(moved);
        }
    }
}

/// Returns whether a task cannot end because its connection is no longer read: it needs data, or its turn
/// will not come.
fn is_stuck(task: &Task) -> bool {
    let is_early = task.holder == Holder::Session && !task.immediate && !task.in_window;
    task.is_detached()
        || task.data_out.is_expecting()
        || task.result.is_none() && (is_early || task.data_out.has_fetches())
}
