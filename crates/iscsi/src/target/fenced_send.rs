//! Sends responses behind a response fence: puts marks into the send queues, and carries out what
//! [`ResponseFence`](super::response_fence::ResponseFence) decides.

use base::state_machine::ConnId;
use smallvec::SmallVec;
use transport::task_management::TmfResult;

use super::arena::Key;
use super::connection::index;
use super::engine::{Engine, MAX_CONTROL_QUEUED};
use super::output::{Body, Control, Output};
use super::protocol_error::ProtocolError;
use super::response_fence::{FenceStep, FencedResponse};
use super::session::Tmf;
use super::timer::{Owner, Timer};
use crate::pdu::TargetSn;
use crate::pdu::tmf_response::TmfResponse;

impl Engine {
    /// Sends the response to a task management request, behind a fence if it needs one.
    pub(super) fn send_tmf(&mut self, tmf: &Tmf, response: TmfResult) -> Result<(), ProtocolError> {
        let pdu = TmfResponse { response, itt: tmf.itt, sn: TargetSn::default() };
        let Some(state) = self.sessions.get_mut(tmf.session) else { return Err(ProtocolError::impossible()) };
        //= rfc7143#section-4.2.2.3.2
        //# Whenever the Response Fence behavior is required for a SCSI response message, the
        //# target iSCSI layer MUST ensure that the following conditions are met in delivering the
        //# response message to the initiator iSCSI layer:
        //= rfc7143#section-4.2.2.3.3
        //# the target iSCSI layer MUST perform the actions described in this section for that
        //# session.
        let is_due = tmf.is_multi_task() && state.conns.len() > 1;
        if !is_due && !state.response_fence.has_waiting() {
            return self.queue_control(tmf.conn, Control::Tmf(pdu), Body::Empty);
        }
        //= rfc7143#section-4.2.3.3
        //# d) MUST provide the Response Fence behavior for the TMF Response on the issuing
        //# session as specified in Section 4.2.2.3.2.
        //= rfc7143#section-4.2.3.3
        //# The TMF Response MUST NOT be sent by the target iSCSI layer before the end of Step d)
        //= rfc7143#section-4.2.3.4
        //# e) MUST address the Response Fence flag on the TMF Response on the issuing session as
        //# defined in Section 4.2.2.3.3.
        //= rfc7143#section-4.2.3.4
        //# A TMF Response MUST NOT be sent by the target iSCSI layer before the end of Step e)
        //
        // Requests that are not immediate are answered even if too many are open.
        if state.response_fence.waiting_tmfs().filter(|conn| *conn == tmf.conn).count() >= MAX_CONTROL_QUEUED
        {
            return Err(ProtocolError::AnswersUnread);
        }
        self.add_fence(tmf.session, tmf.conn, FencedResponse::Tmf(pdu));
        Ok(())
    }

    /// Puts the response of a task, which is allegiant to `conn`, behind a fence, if it needs one and the
    /// session has other connections. Returns whether it did.
    pub(super) fn try_fence_response(&mut self, key: Key, conn: ConnId) -> bool {
        let Some(task) = self.tasks.get(key).filter(|task| task.sent_status.is_none()) else { return false };
        //= rfc7143#section-4.2.2.3.4
        //# This section lists the situations in which fenced response behavior is REQUIRED in
        //# iSCSI target implementations.
        //= rfc7143#section-4.2.2.3.4
        //# the target iSCSI layer MUST assume that the Response Fence is required for the
        //# following SCSI completion messages:
        //= rfc7143#section-4.2.3.6
        //# The UA notification contained in the first SCSI Response PDU on each affected
        //# third-party I_T_L nexus after the TMF action thus MUST NOT pass the affected task
        //# responses on any of the iSCSI sessions accessing the LU.
        let is_due = task.needs_fence || task.result.as_ref().is_some_and(|result| result.is_unit_attention);
        let session = task.session;
        let Some(state) = self.sessions.get(session).filter(|_| is_due) else { return false };
        if state.conns.len() < 2 || !state.conns.contains(&conn) {
            return false;
        }
        //= rfc7143#section-4.2.3.3
        //# e) MUST provide the Response Fence behavior on the first post-TMF Response on
        //# third-party sessions as specified in Section 4.2.2.3.3.
        //= rfc7143#section-4.2.3.4
        //# f) MUST address the Response Fence flag on the first post-TMF Response on third-party
        //# sessions as defined in Section 4.2.2.3.3.
        self.add_fence(session, conn, FencedResponse::Task(key));
        true
    }

    fn add_fence(&mut self, session: Key, conn: ConnId, response: FencedResponse) {
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        let (members, fresh) = (state.conns.clone(), state.response_fence.take_mark());
        let mut marks: SmallVec<[(ConnId, u32); 4]> = SmallVec::new();
        for member in members {
            // Adjacent marks are merged, so that a stalled queue does not grow.
            let last = self.conn(member).and_then(|connection| match connection.send_queue.back() {
                Some(Output::FenceMark(mark)) => Some(*mark),
                _ => None,
            });
            marks.push((member, last.unwrap_or(fresh)));
            if last.is_none() {
                self.queue(member, Output::FenceMark(fresh));
            }
        }
        if let Some(state) = self.sessions.get_mut(session) {
            state.response_fence.add(conn, response, marks.into_iter());
        }
        self.watch_fences(session);
    }

    fn watch_fences(&mut self, session: Key) {
        let at = self.now.after(self.limits.fence_within);
        if let Some(state) = self.sessions.get_mut(session)
            && !state.deadlines.is_set(Timer::ResponseFence)
        {
            self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::ResponseFence, at);
        }
    }

    /// Records that all output before a mark was sent on a connection.
    pub(super) fn handle_fence_mark(&mut self, conn: ConnId, mark: u32) {
        let Some(connection) = self.conn(conn) else { return };
        let (Some(session), stat_sn) = (connection.session, connection.stat_sn) else { return };
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        let is_awaited = state.response_fence.handle_mark(conn, mark, stat_sn);
        if is_awaited {
            self.ask_for_ack(conn);
        }
        self.advance_fences(session);
    }

    /// Returns whether a connection must send nothing for now that takes a status number: a fence holds it,
    /// or its session retains as many answered tasks as it may.
    pub(super) fn is_held_up(&self, conn: ConnId) -> bool {
        let session = self.conn(conn).and_then(|connection| connection.session);
        session.and_then(|key| self.sessions.get(key)).is_some_and(|state| {
            state.response_fence.holds(conn) || state.unacked_tasks >= self.answered_max()
        })
    }

    /// Sends the fenced responses that no longer have to wait, one at a time.
    pub(super) fn advance_fences(&mut self, session: Key) {
        loop {
            let Some(state) = self.sessions.get_mut(session) else { return };
            let conns = &self.conns;
            let exp_stat_sn = |conn: ConnId| Some(conns.get(index(conn))?.as_deref()?.exp_stat_sn);
            match state.response_fence.advance(exp_stat_sn) {
                FenceStep::Idle => return state.deadlines.clear(Timer::ResponseFence),
                FenceStep::Wait => return,
                FenceStep::Release => self.ask_all_to_transmit(session),
                FenceStep::Send { conn, response, goes_first } => {
                    self.send_fenced_response(session, conn, response, goes_first);
                }
            }
        }
    }

    fn send_fenced_response(
        &mut self,
        session: Key,
        conn: ConnId,
        response: FencedResponse,
        goes_first: bool,
    ) {
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        let (is_member, others) = (state.conns.contains(&conn), state.conns.len() > 1);
        let mark = state.response_fence.take_mark();
        let is_there = match response {
            FencedResponse::Tmf(response) => {
                if let Err(why) = self.queue_control(conn, Control::Tmf(response), Body::Empty) {
                    return self.drop_connection(conn, why);
                }
                true
            }
            FencedResponse::Task(key) => {
                let is_there = self.tasks.get(key).is_some_and(|task| task.is_on(conn) && task.in_send_queue);
                if is_there {
                    self.queue(conn, Output::Task(key));
                }
                is_there
            }
        };
        if is_there && is_member && others {
            self.queue(conn, Output::FenceMark(mark));
            if let Some(state) = self.sessions.get_mut(session) {
                state.response_fence.await_acknowledgement(conn, mark);
            }
        }
        if goes_first
            && is_there
            && let Some(connection) = self.conn_mut(conn)
        {
            connection.send_queue.rotate_right(if is_member && others { 2 } else { 1 });
        }
        self.ask_all_to_transmit(session);
    }

    fn ask_all_to_transmit(&mut self, session: Key) {
        let Some(state) = self.sessions.get(session) else { return };
        for conn in state.conns.clone() {
            self.ask_transmit(conn);
        }
    }

    /// Removes a connection that left its session from the fences: they no longer wait for it.
    pub(super) fn remove_from_fences(&mut self, session: Key, conn: ConnId) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        if state.response_fence.is_idle() {
            return;
        }
        state.response_fence.remove(conn);
        self.ask_all_to_transmit(session);
        self.advance_fences(session);
    }

    /// Ends the wait for acknowledgements that took too long.
    pub(super) fn on_fence_timer(&mut self, session: Key) {
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        state.response_fence.poll();
        self.ask_all_to_transmit(session);
        self.advance_fences(session);
        if self.sessions.get(session).is_some_and(|state| !state.response_fence.is_idle()) {
            self.watch_fences(session);
        }
    }
}
