//! Statuses that are kept until they are acknowledged (RFC 7143 §4.2.2.2), from ErrorRecoveryLevel 1 on.
//!
//! Every response takes a number of its connection, StatSN, and every request of the initiator says in ExpStatSN
//! which of them it has. Until then the response is kept here: small ones as they are, the answer to a SCSI command as
//! the name of its task, which keeps its end and its data. A task that is answered has left the command window;
//! its tag may be used again, which says that the answer arrived.
//!
//! At level 0 nothing is kept. ExpStatSN is noted all the same, for the fence of task management.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use base::state_machine::ConnId;
use base::time::Instant;

use super::arena::Key;
use super::connection::{Body, Control, Output, index};
use super::engine::{CONTROL_COST, Engine, MAX_CONTROL_BYTES};
use super::task::Answered;
use super::timer::{Owner, Timer};
use crate::pdu::nop_in::NopIn;
use crate::pdu::{Bhs, Itt, TargetSn};
use crate::serial::StatSn;

/// The statuses of a connection that were sent and are not acknowledged.
#[derive(Debug)]
pub(crate) struct Unacked {
    first: StatSn,
    list: VecDeque<Kept>,
    /// What small PDUs in it carry.
    bytes: usize,
    /// Runs that are to be sent again.
    pub(crate) wanted: VecDeque<(StatSn, u32)>,
}

/// A status that can be sent again.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The answer to a SCSI command. The task is gone if its tag was used again.
    Task(Key),
    /// A small PDU.
    Control(Box<(Control, Body)>),
    /// Nothing: the end of a login, which nobody can miss and go on.
    Nothing,
}

/// How many small PDUs a connection keeps beside the answers to two full windows of commands.
pub(super) const SPARE: usize = 64;

/// How many runs of statuses wait to be sent again; more become one.
const MAX_WANTED: usize = 8;

impl Unacked {
    pub(crate) const fn new(first: StatSn) -> Self {
        Self { first, list: VecDeque::new(), bytes: 0, wanted: VecDeque::new() }
    }

    /// Returns the first number that is kept.
    pub(crate) const fn first(&self) -> StatSn {
        self.first
    }

    pub(crate) fn get(&self, sn: StatSn) -> Option<&Kept> {
        self.list.get(usize::try_from(self.first.distance_to(sn)).ok()?)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether no more than this can be kept.
    pub(crate) fn is_full(&self, max: usize) -> bool {
        self.list.len() >= max || self.bytes >= MAX_CONTROL_BYTES
    }

    /// Keeps the status of the next number.
    fn push(&mut self, kept: Kept) {
        self.bytes += kept.bytes();
        self.list.push_back(kept);
    }

    /// Returns a status before `exp` that is still kept.
    fn pop_before(&mut self, exp: StatSn) -> Option<Kept> {
        if self.first == exp {
            return None;
        }
        let kept = self.list.pop_front()?;
        self.bytes -= kept.bytes();
        self.first = self.first.next();
        if self.list.is_empty() && self.list.capacity() > SPARE {
            self.list = VecDeque::new();
        }
        Some(kept)
    }

    /// Takes note that a run is to be sent again.
    pub(crate) fn want(&mut self, from: StatSn, count: u32) {
        if self.wanted.len() >= MAX_WANTED {
            let all = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
            self.wanted.clear();
            return self.wanted.push_back((self.first, all));
        }
        self.wanted.push_back((from, count));
    }
}

impl Kept {
    fn bytes(&self) -> usize {
        match self {
            Self::Control(control) => control.1.bytes().len(),
            Self::Task(_) | Self::Nothing => 0,
        }
    }
}

impl Engine {
    /// Uses up a status number, and keeps what has it if the session's level asks for that.
    pub(super) fn use_status(&mut self, now: Instant, conn: ConnId, kept: Kept) -> StatSn {
        let unacked_max = self.unacked_max();
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return StatSn(0);
        };
        let sn = connection.use_stat_sn();
        if connection.level == 0 {
            return sn;
        }
        connection.unacked.push(kept);
        // In time before the bound.
        let many =
            connection.unacked.is_full(unacked_max / 2) || connection.unacked.bytes > MAX_CONTROL_BYTES / 2;
        if !connection.deadlines.is_set(Timer::Ack) {
            let at = now.after(self.limits.ack_within);
            self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Ack, at);
        }
        if many {
            self.ask_for_ack(conn);
        }
        sn
    }

    /// Takes note of what a PDU of the initiator acknowledges.
    pub(super) fn take_ack(&mut self, conn: ConnId, bhs: &Bhs) {
        let Some(connection) = self.conn_mut(conn) else { return };
        let exp = bhs.exp_stat_sn();
        if exp == connection.acked {
            return;
        }
        // A number that was not sent, or was acknowledged before, acknowledges nothing.
        if connection.acked.distance_to(exp) > connection.acked.distance_to(connection.stat_sn) {
            return;
        }
        connection.acked = exp;
        connection.ack_asked = None;
        let (keeps, session) = (connection.level > 0, connection.session);
        if keeps {
            self.forget_before(conn, exp);
        }
        if let Some(session) = session
            && self.sessions.get(session).is_some_and(|s| !s.fences.is_empty() || s.raised.is_some())
        {
            self.lower_fences(session);
        }
    }

    fn forget_before(&mut self, conn: ConnId, exp: StatSn) {
        while let Some(kept) = self.conn_mut(conn).and_then(|connection| connection.unacked.pop_before(exp)) {
            match kept {
                Kept::Task(key) => self.retire(key),
                Kept::Control(control) => {
                    self.uncount(conn, &control.1);
                    if let Body::Echo(bytes) = control.1 {
                        self.pool.recycle(bytes);
                    }
                }
                Kept::Nothing => {}
            }
        }
        let Some(connection) = self.conn_mut(conn) else { return };
        if connection.unacked.len() == 0 {
            connection.deadlines.clear(Timer::Ack);
        }
        if !connection.out.is_empty() {
            self.ask_transmit(conn);
        }
    }

    /// Asks an initiator to acknowledge: a ping whose answer says what arrived, and which shows the initiator the
    /// number of the next status, so that it finds out what did not.
    pub(super) fn ask_for_ack(&mut self, conn: ConnId) {
        let ttt = self.new_ttt();
        let Some(connection) = self.conn_mut(conn) else { return };
        let all_acked = connection.acked == connection.stat_sn;
        if connection.ack_asked.is_some() || all_acked || connection.closing {
            return;
        }
        connection.ack_asked = Some(ttt);
        let ping = NopIn { lun: 0, itt: Itt::NONE, ttt, sn: TargetSn::default() };
        // It overtakes answers that cannot leave before they are acknowledged.
        let ping = Output::Control(Box::new((Control::NopIn(ping), Body::Empty)));
        connection.control_queued += 1;
        connection.control_bytes += CONTROL_COST;
        connection.out.push_front(ping);
        self.control_bytes += CONTROL_COST;
        self.ask_transmit(conn);
    }

    /// Asks on every connection of a session.
    pub(super) fn ask_session_for_ack(&mut self, session: Key) {
        let Some(state) = self.sessions.get(session) else { return };
        if state.parameters.error_recovery_level == 0 {
            return;
        }
        let conns = state.conns.clone();
        for conn in conns {
            self.ask_for_ack(conn);
        }
    }

    /// Looks after a connection some of whose statuses are not acknowledged for some time.
    pub(super) fn ack_is_late(&mut self, now: Instant, conn: ConnId) {
        let at = now.after(self.limits.ack_within);
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else { return };
        if connection.unacked.len() == 0 {
            return;
        }
        let first = connection.unacked.first();
        // What left since the last look may be acknowledged by the next command.
        let old = connection.ack_mark.replace(first) == Some(first);
        self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Ack, at);
        if old {
            // One that was asked and did not answer is `silence`'s affair.
            self.ask_for_ack(conn);
        }
    }

    /// Ends a task whose answer has left: it keeps what the initiator may ask for again, and nothing else.
    pub(super) fn answered(&mut self, key: Key, answered: Answered) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.answer = Some(answered);
        task.listed = false;
        let session = task.session;
        let freed = task.out.stop(&self.pool);
        self.give_data_out(session, freed);
        self.leave_window(key);
        self.stir_logouts(session);
        let half = self.answered_max() / 2;
        if self.sessions.get(session).is_some_and(|state| state.answered >= half) {
            self.ask_session_for_ack(session);
        }
        if let Some(state) = self.sessions.get_mut(session) {
            state.answered += 1;
            if !state.ready.is_empty() {
                self.drain_ready(session);
            }
        }
    }

    /// Takes an answered task out of the count of those that are kept. Who waited for that goes on.
    pub(super) fn forget_answer(&mut self, session: Key) {
        let max = self.answered_max();
        let Some(state) = self.sessions.get_mut(session) else { return };
        let was_full = state.answered >= max;
        state.answered = state.answered.saturating_sub(1);
        if was_full {
            let conns = state.conns.clone();
            for conn in conns {
                self.ask_transmit(conn);
            }
        }
    }

    /// Sees to it that the driver comes for what a connection has to send.
    pub(super) fn ask_transmit(&mut self, conn: ConnId) {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else { return };
        if !connection.asked {
            connection.asked = true;
            self.actions.push_back(base::state_machine::Action::Transmit(conn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_is_forgotten_across_the_wrap() {
        let mut unacked = Unacked::new(StatSn(u32::MAX));
        for _ in 0..3 {
            unacked.push(Kept::Nothing);
        }
        assert!(unacked.get(StatSn(u32::MAX)).is_some() && unacked.get(StatSn(1)).is_some());
        assert!(unacked.get(StatSn(2)).is_none() && unacked.get(StatSn(u32::MAX - 1)).is_none());
        let mut gone = 0;
        while unacked.pop_before(StatSn(1)).is_some() {
            gone += 1;
        }
        assert_eq!((gone, unacked.first(), unacked.len()), (2, StatSn(1), 1));
    }

    #[test]
    fn many_runs_become_one() {
        let mut unacked = Unacked::new(StatSn(0));
        (0..20).for_each(|_| unacked.push(Kept::Nothing));
        (0..100).for_each(|at| unacked.want(StatSn(at % 20), 1));
        assert!(unacked.wanted.len() <= MAX_WANTED);
    }
}
