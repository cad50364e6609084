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
//!
//! [`ResponseFence`] is the state; `fenced_send` carries out its steps.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use smallvec::SmallVec;

use super::arena::Key;
use crate::pdu::tmf_response::TmfResponse;
use crate::serial::StatSn;

/// The response fences of a session.
#[derive(Debug, Default)]
pub(crate) struct ResponseFence {
    /// Responses that wait until earlier ones are acknowledged, in order.
    waiting: Vec<Fence>,
    /// The fenced response whose acknowledgement later responses wait for.
    unacked: Option<UnackedFence>,
    /// How many marks were taken.
    marks: u32,
}

/// The next step of a session's response fences.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FenceStep {
    /// Nothing waits any more.
    Idle,
    /// Something is still to be sent or acknowledged.
    Wait,
    /// The last fenced response is acknowledged: the connections that it held may transmit.
    Release,
    /// This response may be sent on this connection. With `goes_first`, it overtakes the connection's queue,
    /// in which later output waits.
    Send { conn: ConnId, response: FencedResponse, goes_first: bool },
}

/// A response that waits until earlier ones are acknowledged.
#[derive(Debug)]
struct Fence {
    conn: ConnId,
    response: FencedResponse,
    polls: Polls,
    /// The connections of the session, including the response's own.
    connections: SmallVec<[DrainingConnection; 4]>,
}

/// A response that waits behind a fence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FencedResponse {
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
struct UnackedFence {
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

impl ResponseFence {
    /// Returns whether no response waits and none is to be acknowledged.
    pub(crate) const fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.unacked.is_none()
    }

    /// Returns whether responses wait for earlier ones.
    pub(crate) const fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the connections of the responses to task management requests that wait for earlier responses.
    pub(crate) fn waiting_tmfs(&self) -> impl Iterator<Item = ConnId> {
        self.waiting
            .iter()
            .filter(|fence| matches!(fence.response, FencedResponse::Tmf(_)))
            .map(|fence| fence.conn)
    }

    /// Returns a new mark.
    pub(crate) const fn take_mark(&mut self) -> u32 {
        self.marks = self.marks.wrapping_add(1);
        self.marks
    }

    /// Puts a response behind a fence, which stands at these marks of the session's connections.
    pub(crate) fn add(
        &mut self,
        conn: ConnId,
        response: FencedResponse,
        marks: impl Iterator<Item = (ConnId, u32)>,
    ) {
        let connections =
            marks.map(|(conn, mark)| DrainingConnection { conn, mark, state: DrainState::Queued }).collect();
        self.waiting.push(Fence { conn, response, polls: Polls::default(), connections });
    }

    /// Records that all output before a mark was sent on a connection, whose next status has this number.
    /// Returns whether the acknowledgement of that output is awaited.
    pub(crate) fn handle_mark(&mut self, conn: ConnId, mark: u32, stat_sn: StatSn) -> bool {
        let mut is_awaited = false;
        if let Some(unacked) = &mut self.unacked
            && unacked.mark == mark
        {
            unacked.next_stat_sn = Some(stat_sn);
            is_awaited = true;
        }
        for fence in &mut self.waiting {
            for wait in fence.connections.iter_mut().filter(|wait| (wait.conn, wait.mark) == (conn, mark)) {
                // On the response's own connection, the order of the queue is enough.
                let is_own = conn == fence.conn;
                wait.state = if is_own { DrainState::Done } else { DrainState::Sent(stat_sn) };
                is_awaited |= !is_own;
            }
        }
        is_awaited
    }

    /// Returns whether a connection must send nothing for now that takes a status number.
    pub(crate) fn holds(&self, conn: ConnId) -> bool {
        //= rfc7143#section-4.2.2.3.2
        //# A response with a Response Fence MUST be delivered chronologically prior to all the
        //# "following" responses on the I_T_L nexus.
        match (&self.unacked, self.waiting.first()) {
            (Some(unacked), _) => unacked.conn != conn,
            (None, Some(fence)) => fence.has_passed(conn),
            (None, None) => false,
        }
    }

    /// Takes the next step that acknowledgements permit. `exp_stat_sn` is the first status that a connection
    /// has not acknowledged, if the connection exists.
    pub(crate) fn advance(&mut self, exp_stat_sn: impl Fn(ConnId) -> Option<StatSn>) -> FenceStep {
        let has_passed =
            |conn: ConnId, upto: StatSn| exp_stat_sn(conn).is_none_or(|acked| !acked.before(upto));
        if let Some(unacked) = self.unacked {
            if !unacked.next_stat_sn.is_some_and(|behind| has_passed(unacked.conn, behind)) {
                return FenceStep::Wait;
            }
            self.unacked = None;
            return FenceStep::Release;
        }
        let Some(fence) = self.waiting.first_mut() else { return FenceStep::Idle };
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
            return FenceStep::Wait;
        }
        let fence = self.waiting.remove(0);
        // Later output of the fence's own connection waits in its queue.
        let goes_first = fence.has_passed(fence.conn);
        FenceStep::Send { conn: fence.conn, response: fence.response, goes_first }
    }

    /// Records that a fenced response is queued before this mark. Later responses wait for its
    /// acknowledgement.
    pub(crate) fn await_acknowledgement(&mut self, conn: ConnId, mark: u32) {
        self.unacked = Some(UnackedFence { conn, mark, next_stat_sn: None, polls: Polls::default() });
    }

    /// Removes a connection that left the session: nothing waits for it any more.
    pub(crate) fn remove(&mut self, conn: ConnId) {
        if self.unacked.is_some_and(|unacked| unacked.conn == conn) {
            self.unacked = None;
        }
        self.waiting.retain(|fence| fence.conn != conn);
        for fence in &mut self.waiting {
            fence.connections.retain(|wait| wait.conn != conn);
        }
    }

    /// Counts an expiry of the fence timer, and ends the waits that took too long.
    pub(crate) fn poll(&mut self) {
        if let Some(unacked) = &mut self.unacked
            && unacked.polls.is_last(unacked.next_stat_sn.is_some())
        {
            self.unacked = None;
        }
        for fence in &mut self.waiting {
            if fence.polls.is_last(fence.connections.iter().all(|wait| wait.state != DrainState::Queued)) {
                // The fence's own connection keeps its order.
                let own = fence.conn;
                fence.connections.retain(|wait| wait.conn == own && wait.state == DrainState::Done);
            }
        }
    }
}

impl Fence {
    /// Returns whether a connection has sent all output that was queued before the fence.
    fn has_passed(&self, conn: ConnId) -> bool {
        self.connections.iter().any(|wait| wait.conn == conn && wait.state != DrainState::Queued)
    }
}
