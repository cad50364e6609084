//! The response fence in a session of several connections (RFC 7143 §4.2.2.3.2, §4.2.3.3 d): before an initiator hears
//! that many tasks were ended, it has every answer that was given before, on every connection; and it hears
//! nothing that is given after until it knows.
//!
//! On one connection the order of its queue is the fence. With several, a mark goes into each other connection's
//! queue; where it comes to the front, all before it is sent, and what was sent must be acknowledged. When that is so
//! everywhere, the response leaves, and other connections rest until it is acknowledged too. The initiator is pinged for
//! both. One that has been sent everything and does not acknowledge it holds a fence up for twice
//! [`super::engine::Limits::fence_within`]; one that does not even take what it is sent, for longer.

use base::machine::ConnId;
use smallvec::SmallVec;

use super::arena::Key;
use super::connection::{Body, Control, Output, index};
use super::engine::Engine;
use super::session::{Session, Tmf};
use super::timer::{Owner, Timer};
use super::why::Why;
use crate::pdu::TargetSn;
use crate::pdu::tmf_response::{TmfResponse, TmfResult};
use crate::serial::StatSn;

/// A response that waits until others are acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    conn: ConnId,
    response: TmfResponse,
    mark: u32,
    looks: Looks,
    /// The connections that it waits for; up to which status, once that is known.
    waits: SmallVec<[(ConnId, Option<StatSn>); 4]>,
}

/// A response that is on its way and that others wait for: on which connection, and the number behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raised {
    conn: ConnId,
    mark: u32,
    behind: Option<StatSn>,
    looks: Looks,
}

/// How often the clock looked at something that waits: in all, and since all is sent that is to be acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    all: u32,
    sent: u32,
}

/// How many looks a fence has.
const MAX_LOOKS: Looks = Looks { all: 16, sent: 2 };

impl Looks {
    /// Counts one; returns whether it was the last.
    const fn is_last(&mut self, is_sent: bool) -> bool {
        self.all += 1;
        self.sent += is_sent as u32;
        self.all >= MAX_LOOKS.all || self.sent >= MAX_LOOKS.sent
    }
}

impl Engine {
    /// Sends the answer to a task management request, behind a fence where one is due.
    pub(super) fn send_tmf(&mut self, tmf: &Tmf, response: TmfResult) -> Result<(), Why> {
        let pdu = TmfResponse { response, itt: tmf.itt, sn: TargetSn::default() };
        let Some(state) = self.sessions.get_mut(tmf.session) else { return Ok(()) };
        let is_due = tmf.is_multi_task() && state.conns.len() > 1;
        if !is_due && state.fences.is_empty() {
            return self.control(tmf.conn, Control::Tmf(pdu), Body::Empty);
        }
        let others: SmallVec<[ConnId; 4]> =
            state.conns.iter().copied().filter(|conn| *conn != tmf.conn).collect();
        let waits = others.iter().map(|conn| (*conn, None)).collect();
        let mark = state.take_mark();
        state.fences.push(Fence { conn: tmf.conn, response: pdu, mark, looks: Looks::default(), waits });
        for conn in others {
            self.queue(conn, Output::Mark(mark));
        }
        self.watch_fences(tmf.session);
        Ok(())
    }

    fn watch_fences(&mut self, session: Key) {
        let at = self.now.after(self.limits.fence_within);
        if let Some(state) = self.sessions.get_mut(session)
            && !state.deadlines.is_set(Timer::Acked)
        {
            self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Acked, at);
        }
    }

    /// Takes note that everything before a mark was sent on a connection.
    pub(super) fn pass_mark(&mut self, conn: ConnId, mark: u32) {
        let Some(connection) = self.conn(conn) else { return };
        let (Some(session), stat_sn) = (connection.session, connection.stat_sn) else { return };
        let Some(state) = self.sessions.get_mut(session) else { return };
        if let Some(raised) = &mut state.raised
            && raised.mark == mark
        {
            raised.behind = Some(stat_sn);
        }
        for fence in state.fences.iter_mut().filter(|fence| fence.mark == mark) {
            for (_, upto) in fence.waits.iter_mut().filter(|(of, _)| *of == conn) {
                *upto = Some(stat_sn);
            }
        }
        self.ask_for_ack(conn);
        self.lower_fences(session);
    }

    /// Returns whether a connection must send nothing for now that takes a status number: a fence is up, or its session
    /// keeps as many answers as it may.
    pub(super) fn is_held_up(&self, conn: ConnId) -> bool {
        let session = self.conn(conn).and_then(|connection| connection.session);
        session.and_then(|key| self.sessions.get(key)).is_some_and(|state| {
            state.answered >= self.answered_max() || state.raised.is_some_and(|raised| raised.conn != conn)
        })
    }

    /// Sends the responses that wait for nothing any more, one at a time.
    pub(super) fn lower_fences(&mut self, session: Key) {
        loop {
            let Some(state) = self.sessions.get_mut(session) else { return };
            let conns = &self.conns;
            let acked = |conn: ConnId| {
                conns.get(index(conn)).and_then(Option::as_deref).map(|connection| connection.acked)
            };
            let has_passed = |conn: ConnId, upto: StatSn| acked(conn).is_none_or(|acked| !acked.before(upto));
            if let Some(raised) = state.raised {
                if !raised.behind.is_some_and(|behind| has_passed(raised.conn, behind)) {
                    return;
                }
                state.raised = None;
                let conns = state.conns.clone();
                for conn in conns {
                    self.ask_transmit(conn);
                }
                continue;
            }
            let Some(fence) = state.fences.first_mut() else {
                state.deadlines.clear(Timer::Acked);
                return;
            };
            fence.waits.retain(|(conn, upto)| !upto.is_some_and(|upto| has_passed(*conn, upto)));
            if !fence.waits.is_empty() {
                return;
            }
            let fence = state.fences.remove(0);
            self.raise(session, &fence);
        }
    }

    fn raise(&mut self, session: Key, fence: &Fence) {
        if let Err(why) = self.control(fence.conn, Control::Tmf(fence.response), Body::Empty) {
            return self.drop_connection(fence.conn, why);
        }
        let Some(state) = self.sessions.get_mut(session) else { return };
        if state.conns.len() > 1 && state.conns.contains(&fence.conn) {
            let mark = state.take_mark();
            state.raised = Some(Raised { conn: fence.conn, mark, behind: None, looks: Looks::default() });
            self.queue(fence.conn, Output::Mark(mark));
        }
    }

    /// Takes note that a connection is no more one of its session: nothing is to be waited for on it.
    pub(super) fn leave_fences(&mut self, session: Key, conn: ConnId) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        if state.fences.is_empty() && state.raised.is_none() {
            return;
        }
        if state.raised.is_some_and(|raised| raised.conn == conn) {
            state.raised = None;
            let conns = state.conns.clone();
            for conn in conns {
                self.ask_transmit(conn);
            }
        }
        let Some(state) = self.sessions.get_mut(session) else { return };
        state.fences.retain(|fence| fence.conn != conn);
        for fence in &mut state.fences {
            fence.waits.retain(|(of, _)| *of != conn);
        }
        self.lower_fences(session);
    }

    /// Waits no more for acknowledgements that have had their time.
    pub(super) fn fences_are_late(&mut self, session: Key) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        if let Some(raised) = &mut state.raised
            && raised.looks.is_last(raised.behind.is_some())
        {
            state.raised = None;
        }
        for fence in &mut state.fences {
            if fence.looks.is_last(fence.waits.iter().all(|(_, upto)| upto.is_some())) {
                fence.waits.clear();
            }
        }
        let conns = state.conns.clone();
        for conn in conns {
            self.ask_transmit(conn);
        }
        self.lower_fences(session);
        if self.sessions.get(session).is_some_and(|state| !state.fences.is_empty() || state.raised.is_some())
        {
            self.watch_fences(session);
        }
    }
}

impl Session {
    const fn take_mark(&mut self) -> u32 {
        self.marks = self.marks.wrapping_add(1);
        self.marks
    }
}
