//! The response fence in a session of several connections (RFC 7143 §4.2.2.3.2). Before an initiator receives
//! a response that concerns many tasks, it has received every response given earlier, on every connection. It
//! receives no response given later until it has acknowledged the fenced one.
//!
//! These responses need a fence (§4.2.2.3.4): the response to a function that ends many tasks (§4.2.3.3 d,
//! §4.2.3.4 e); a response that carries a unit attention condition, by which other sessions learn of that
//! function (§4.2.3.3 e, §4.2.3.4 f); and the response to PREEMPT AND ABORT. The initiator that requested the
//! function does not wait for the fences of other sessions: the RFC completes the function before the steps
//! that need those fences. ACA, whose responses would need a fence too, is not implemented.
//!
//! The fence follows §4.2.2.3.3. A mark is put into the send queue of each connection. When the mark reaches
//! the front, all earlier output is sent, and what was sent on other connections must be acknowledged. A
//! connection whose mark has passed is held. When everything is acknowledged on all connections, the fenced
//! response is sent, and the other connections are held until it is acknowledged too. The initiator is pinged
//! for both acknowledgements. An initiator that was sent everything and does not acknowledge it delays a
//! fence by twice [`super::engine::Limits::fence_within`]; one that does not even receive what it is sent
//! delays it longer. Connections are held for one fence at a time: of several waiting fences, the later ones
//! only record what must be acknowledged before them.

use base::state_machine::ConnId;
use smallvec::SmallVec;
use transport::task_management::TmfResult;

use super::arena::Key;
use super::connection::{Body, Control, Output, index};
use super::engine::Engine;
use super::protocol_error::ProtocolError;
use super::session::{Session, Tmf};
use super::timer::{Owner, Timer};
use crate::pdu::TargetSn;
use crate::pdu::tmf_response::TmfResponse;
use crate::serial::StatSn;

/// A response that waits until earlier ones are acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    conn: ConnId,
    answer: FencedResponse,
    polls: Polls,
    /// The connections of the session, including the response's own.
    connections: SmallVec<[DrainingConnection; 4]>,
}

/// A response that waits behind a fence.
#[derive(Clone, Copy, Debug)]
enum FencedResponse {
    Tmf(TmfResponse),
    Task(Key),
}

/// How far a connection has sent the output that was queued before a fence.
#[derive(Clone, Copy, Debug)]
struct DrainingConnection {
    conn: ConnId,
    /// The mark of the fence in its send queue.
    mark: u32,
    state: DrainState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainState {
    /// Not all of the earlier output is sent.
    Queued,
    /// All is sent; it is acknowledged when every status before this number is.
    Sent(StatSn),
    /// The fence need not wait for this connection.
    Done,
}

/// A fenced response that was sent and that later ones wait for: its connection, its mark, and the StatSN
/// after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnackedFence {
    conn: ConnId,
    mark: u32,
    next_stat_sn: Option<StatSn>,
    polls: Polls,
}

/// How many times the fence timer expired: in all, and since everything was sent that is to be acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Polls {
    all: u32,
    sent: u32,
}

/// How many expiries end the wait of a fence.
const MAX_POLLS: Polls = Polls { all: 16, sent: 2 };

impl Polls {
    /// Counts an expiry. Returns whether it was the last.
    const fn is_last(&mut self, is_sent: bool) -> bool {
        self.all += 1;
        self.sent += is_sent as u32;
        self.all >= MAX_POLLS.all || self.sent >= MAX_POLLS.sent
    }
}

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
        if !is_due && state.fences.is_empty() {
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
        self.add_fence(tmf.session, tmf.conn, FencedResponse::Tmf(pdu));
        Ok(())
    }

    /// Puts the response of a task behind a fence, if it needs one and the session has other connections.
    /// Returns whether it did.
    pub(super) fn try_fence_response(&mut self, key: Key) -> bool {
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
        let (session, conn) = (task.session, task.conn);
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

    fn add_fence(&mut self, session: Key, conn: ConnId, answer: FencedResponse) {
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        let (members, fresh) = (state.conns.clone(), state.take_mark());
        let mut waits = SmallVec::new();
        for member in members {
            // Adjacent marks are merged, so that a stalled queue does not grow.
            let last = self.conn(member).and_then(|connection| match connection.send_queue.back() {
                Some(Output::FenceMark(mark)) => Some(*mark),
                _ => None,
            });
            waits.push(DrainingConnection {
                conn: member,
                mark: last.unwrap_or(fresh),
                state: DrainState::Queued,
            });
            if last.is_none() {
                self.queue(member, Output::FenceMark(fresh));
            }
        }
        if let Some(state) = self.sessions.get_mut(session) {
            state.fences.push(Fence { conn, answer, polls: Polls::default(), connections: waits });
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
        let mut is_awaited = false;
        if let Some(unacked) = &mut state.unacked_fence
            && unacked.mark == mark
        {
            unacked.next_stat_sn = Some(stat_sn);
            is_awaited = true;
        }
        for fence in &mut state.fences {
            for wait in fence.connections.iter_mut().filter(|wait| (wait.conn, wait.mark) == (conn, mark)) {
                // On the response's own connection, the order of the queue is enough.
                let is_own = conn == fence.conn;
                wait.state = if is_own { DrainState::Done } else { DrainState::Sent(stat_sn) };
                is_awaited |= !is_own;
            }
        }
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
            //= rfc7143#section-4.2.2.3.2
            //# A response with a Response Fence MUST be delivered chronologically prior to all the
            //# "following" responses on the I_T_L nexus.
            let rests = match (&state.unacked_fence, state.fences.first()) {
                (Some(unacked), _) => unacked.conn != conn,
                (None, Some(fence)) => fence.has_passed(conn),
                (None, None) => false,
            };
            rests || state.unacked_tasks >= self.answered_max()
        })
    }

    /// Sends the fenced responses that no longer have to wait, one at a time.
    pub(super) fn advance_fences(&mut self, session: Key) {
        loop {
            let Some(state) = self.sessions.get_mut(session) else { return };
            let conns = &self.conns;
            let acked = |conn: ConnId| {
                conns.get(index(conn)).and_then(Option::as_deref).map(|connection| connection.exp_stat_sn)
            };
            let has_passed = |conn: ConnId, upto: StatSn| acked(conn).is_none_or(|acked| !acked.before(upto));
            if let Some(unacked) = state.unacked_fence {
                if !unacked.next_stat_sn.is_some_and(|behind| has_passed(unacked.conn, behind)) {
                    return;
                }
                state.unacked_fence = None;
                self.ask_all_to_transmit(session);
                continue;
            }
            let Some(fence) = state.fences.first_mut() else {
                state.deadlines.clear(Timer::ResponseFence);
                return;
            };
            for wait in &mut fence.connections {
                if matches!(wait.state, DrainState::Sent(upto) if has_passed(wait.conn, upto)) {
                    wait.state = DrainState::Done;
                }
            }
            //= rfc7143#section-4.2.2.3.2
            //# A response with a Response Fence MUST be delivered chronologically after all the
            //# "preceding" responses on the I_T_L nexus, if the preceding responses are delivered at
            //# all, to the initiator iSCSI layer.
            if fence.connections.iter().any(|wait| wait.state != DrainState::Done) {
                return;
            }
            let fence = state.fences.remove(0);
            self.send_fenced_response(session, &fence);
        }
    }

    fn send_fenced_response(&mut self, session: Key, fence: &Fence) {
        // Later output of the fence's own connection waits in its queue.
        let goes_first = fence.has_passed(fence.conn);
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        let (is_member, others) = (state.conns.contains(&fence.conn), state.conns.len() > 1);
        let mark = state.take_mark();
        let is_there = match fence.answer {
            FencedResponse::Tmf(response) => {
                if let Err(why) = self.queue_control(fence.conn, Control::Tmf(response), Body::Empty) {
                    return self.drop_connection(fence.conn, why);
                }
                true
            }
            FencedResponse::Task(key) => {
                let is_there =
                    self.tasks.get(key).is_some_and(|task| task.conn == fence.conn && task.in_send_queue);
                if is_there {
                    self.queue(fence.conn, Output::Task(key));
                }
                is_there
            }
        };
        if is_there && is_member && others {
            self.queue(fence.conn, Output::FenceMark(mark));
            if let Some(state) = self.sessions.get_mut(session) {
                state.unacked_fence = Some(UnackedFence {
                    conn: fence.conn,
                    mark,
                    next_stat_sn: None,
                    polls: Polls::default(),
                });
            }
        }
        if goes_first
            && is_there
            && let Some(connection) = self.conn_mut(fence.conn)
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
        if state.fences.is_empty() && state.unacked_fence.is_none() {
            return;
        }
        if state.unacked_fence.is_some_and(|unacked| unacked.conn == conn) {
            state.unacked_fence = None;
        }
        state.fences.retain(|fence| fence.conn != conn);
        for fence in &mut state.fences {
            fence.connections.retain(|wait| wait.conn != conn);
        }
        self.ask_all_to_transmit(session);
        self.advance_fences(session);
    }

    /// Ends the wait for acknowledgements that took too long.
    pub(super) fn on_fence_timer(&mut self, session: Key) {
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        if let Some(unacked) = &mut state.unacked_fence
            && unacked.polls.is_last(unacked.next_stat_sn.is_some())
        {
            state.unacked_fence = None;
        }
        for fence in &mut state.fences {
            if fence.polls.is_last(fence.connections.iter().all(|wait| wait.state != DrainState::Queued)) {
                // The fence's own connection keeps its order.
                let own = fence.conn;
                fence.connections.retain(|wait| wait.conn == own && wait.state == DrainState::Done);
            }
        }
        self.ask_all_to_transmit(session);
        self.advance_fences(session);
        if self
            .sessions
            .get(session)
            .is_some_and(|state| !state.fences.is_empty() || state.unacked_fence.is_some())
        {
            self.watch_fences(session);
        }
    }
}

impl Fence {
    /// Returns whether a connection has sent all output that was queued before the fence.
    fn has_passed(&self, conn: ConnId) -> bool {
        self.connections.iter().any(|wait| wait.conn == conn && wait.state != DrainState::Queued)
    }
}

impl Session {
    const fn take_mark(&mut self) -> u32 {
        self.marks = self.marks.wrapping_add(1);
        self.marks
    }
}
