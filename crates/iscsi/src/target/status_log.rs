//! Statuses that are retained until they are acknowledged (RFC 7143 §4.2.2.2), from ErrorRecoveryLevel 1 on.
//!
//! Every response takes a number of its connection, its StatSN, and the ExpStatSN in every request of the
//! initiator acknowledges the responses before it. Until then the response is retained here: control PDUs as
//! they are, the response to a SCSI command as a reference to its task, which retains its result and its
//! data. An answered task has left the command window. The initiator may use its tag again, which shows that
//! it received the response.
//!
//! At level 0 nothing is retained. ExpStatSN is recorded all the same, for the response fence of task
//! management.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use base::state_machine::ConnId;
use base::time::Instant;

use super::arena::Key;
use super::connection::{Body, Control, Output, index};
use super::engine::{CONTROL_COST, Engine, MAX_CONTROL_BYTES};
use super::task::SentStatus;
use super::timer::{Owner, Timer};
use crate::pdu::nop_in::NopIn;
use crate::pdu::{Bhs, Itt, TargetSn};
use crate::serial::StatSn;

/// The statuses of a connection that were sent and are not acknowledged.
#[derive(Debug)]
pub(crate) struct StatusLog {
    first: StatSn,
    list: VecDeque<LoggedStatus>,
    /// How many bytes of data its control PDUs carry.
    bytes: usize,
    /// Runs (first number, count) that are to be sent again.
    resend_runs: VecDeque<(StatSn, u32)>,
}

/// A status that can be sent again.
#[derive(Debug)]
pub(crate) enum LoggedStatus {
    /// The response to a SCSI command. The task no longer exists if its tag was used again.
    Task(Key),
    /// A control PDU.
    Control(Box<(Control, Body)>),
    /// Nothing: the last Login Response, without which no initiator can continue.
    Nothing,
}

/// How many control PDUs a connection retains in addition to the responses to two full windows of commands.
pub(super) const SPARE: usize = 64;

/// How many runs of statuses wait to be sent again. Beyond that, one run of all retained statuses replaces
/// them.
const MAX_RESEND_RUNS: usize = 8;

impl StatusLog {
    pub(crate) const fn new(first: StatSn) -> Self {
        Self { first, list: VecDeque::new(), bytes: 0, resend_runs: VecDeque::new() }
    }

    /// Returns the first retained number.
    pub(crate) const fn first(&self) -> StatSn {
        self.first
    }

    pub(crate) fn get(&self, sn: StatSn) -> Option<&LoggedStatus> {
        self.list.get(usize::try_from(self.first.distance_to(sn)).ok()?)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the log is full, with `max` as its bound.
    pub(crate) fn is_full(&self, max: usize) -> bool {
        self.list.len() >= max || self.bytes >= MAX_CONTROL_BYTES
    }

    /// Retains the status with the next number.
    fn push(&mut self, kept: LoggedStatus) {
        self.bytes += kept.bytes();
        self.list.push_back(kept);
    }

    /// Removes and returns a retained status before `exp`.
    fn pop_before(&mut self, exp: StatSn) -> Option<LoggedStatus> {
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

    /// Records that a run is to be sent again. Returns whether it is the only one.
    pub(crate) fn request_resend(&mut self, from: StatSn, count: u32) -> bool {
        let is_first = self.resend_runs.is_empty();
        if self.resend_runs.len() >= MAX_RESEND_RUNS {
            let all = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
            self.resend_runs.clear();
            self.resend_runs.push_back((self.first, all));
        } else {
            self.resend_runs.push_back((from, count));
        }
        is_first
    }

    /// Returns whether runs are to be sent again.
    pub(crate) fn has_resends(&self) -> bool {
        !self.resend_runs.is_empty()
    }

    /// Takes the next status that is to be sent again. Those that were acknowledged meanwhile are not.
    pub(crate) fn take_resend(&mut self) -> Option<StatSn> {
        loop {
            let (mut from, mut count) = self.resend_runs.pop_front()?;
            if from.before(self.first) {
                count = count.saturating_sub(from.distance_to(self.first));
                from = self.first;
            }
            if count > 1 {
                self.resend_runs.push_front((from.next(), count - 1));
            }
            if count > 0 {
                return Some(from);
            }
        }
    }
}

impl LoggedStatus {
    fn bytes(&self) -> usize {
        match self {
            Self::Control(control) => control.1.bytes().len(),
            Self::Task(_) | Self::Nothing => 0,
        }
    }
}

impl Engine {
    /// Takes the next status number, and retains its status if the session's level requires it.
    pub(super) fn log_status(&mut self, now: Instant, conn: ConnId, kept: LoggedStatus) -> StatSn {
        let unacked_max = self.unacked_max();
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return StatSn(0);
        };
        let sn = connection.use_stat_sn();
        if !connection.level.retains_statuses() {
            return sn;
        }
        connection.status_log.push(kept);
        // An acknowledgement is requested well before the bound is reached.
        let many = connection.status_log.is_full(unacked_max / 2)
            || connection.status_log.bytes > MAX_CONTROL_BYTES / 2;
        if !connection.deadlines.is_set(Timer::Ack) {
            let at = now.after(self.limits.ack_within);
            self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Ack, at);
        }
        if many {
            self.ask_for_ack(conn);
        }
        sn
    }

    /// Handles the ExpStatSN of a received PDU.
    pub(super) fn handle_exp_stat_sn(&mut self, conn: ConnId, bhs: &Bhs) {
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        let exp = bhs.exp_stat_sn();
        if exp == connection.exp_stat_sn {
            return;
        }
        // A number that was not sent, or was already acknowledged, acknowledges nothing.
        if connection.exp_stat_sn.distance_to(exp) > connection.exp_stat_sn.distance_to(connection.stat_sn) {
            return;
        }
        connection.exp_stat_sn = exp;
        connection.ack_ping = None;
        let (keeps, session) = (connection.level.retains_statuses(), connection.session);
        if keeps {
            self.forget_before(conn, exp);
        }
        if let Some(session) = session
            && self.sessions.get(session).is_some_and(|state| !state.response_fence.is_idle())
        {
            self.advance_fences(session);
        }
    }

    fn forget_before(&mut self, conn: ConnId, exp: StatSn) {
        while let Some(kept) =
            self.conn_mut(conn).and_then(|connection| connection.status_log.pop_before(exp))
        {
            match kept {
                LoggedStatus::Task(key) => self.remove_task(key),
                LoggedStatus::Control(control) => {
                    self.uncount(conn, &control.1);
                    if let Body::Echo(bytes) = control.1 {
                        self.pool.recycle(bytes);
                    }
                }
                LoggedStatus::Nothing => {}
            }
        }
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        if connection.status_log.len() == 0 {
            connection.deadlines.clear(Timer::Ack);
        }
        if !connection.send_queue.is_empty() {
            self.ask_transmit(conn);
        }
    }

    /// Asks an initiator to acknowledge, with a ping: its answer carries ExpStatSN, and the ping shows the
    /// initiator the next StatSN, so that it detects missing responses.
    pub(super) fn ask_for_ack(&mut self, conn: ConnId) {
        let ttt = self.new_ttt();
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        let all_acked = connection.exp_stat_sn == connection.stat_sn;
        if connection.ack_ping.is_some() || all_acked || connection.closing {
            return;
        }
        connection.ack_ping = Some(ttt);
        let ping = NopIn { lun: 0, itt: Itt::NONE, ttt, sn: TargetSn::default() };
        // The ping overtakes responses that cannot be sent before others are acknowledged.
        let ping = Output::Control(Box::new((Control::NopIn(ping), Body::Empty)));
        connection.control_queued += 1;
        connection.control_bytes += CONTROL_COST;
        connection.send_queue.push_front(ping);
        self.control_bytes += CONTROL_COST;
        self.ask_transmit(conn);
    }

    /// Asks for an acknowledgement on every connection of a session.
    pub(super) fn ask_session_for_ack(&mut self, session: Key) {
        let Some(state) = self.sessions.get(session) else { return self.impossible(Some(session)) };
        if !state.parameters.error_recovery_level.retains_statuses() {
            return;
        }
        let conns = state.conns.clone();
        for conn in conns {
            self.ask_for_ack(conn);
        }
    }

    /// Handles statuses of a connection that may have been unacknowledged for `ack_within`.
    pub(super) fn on_ack_timer(&mut self, now: Instant, conn: ConnId) {
        let at = now.after(self.limits.ack_within);
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return self.impossible(None);
        };
        if connection.status_log.len() == 0 {
            return;
        }
        let first = connection.status_log.first();
        // Statuses sent since the last poll may be acknowledged by the next command.
        let old = connection.first_unacked_at_poll.replace(first) == Some(first);
        self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Ack, at);
        if old {
            // The silence timer handles an initiator that does not answer the ping.
            self.ask_for_ack(conn);
        }
    }

    /// Records that the status of a task was sent. The task retains what the initiator may ask for again, and
    /// nothing else.
    pub(super) fn record_status_sent(&mut self, key: Key, answered: SentStatus) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        task.sent_status = Some(answered);
        task.in_send_queue = false;
        let session = task.session;
        let freed = task.data_out.stop(&self.pool);
        self.release_data_out(session, freed);
        self.leave_window(key);
        self.mark_logouts_dirty(session);
        let half = self.answered_max() / 2;
        if self.sessions.get(session).is_some_and(|state| state.unacked_tasks >= half) {
            self.ask_session_for_ack(session);
        }
        if let Some(state) = self.sessions.get_mut(session) {
            state.unacked_tasks += 1;
            if !state.ready.is_empty() {
                self.drain_ready(session);
            }
        }
    }

    /// Removes a task from the count of answered tasks that are retained. Connections that were held because
    /// of that count transmit again.
    pub(super) fn uncount_unacked_task(&mut self, session: Key) {
        let max = self.answered_max();
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        let was_full = state.unacked_tasks >= max;
        state.unacked_tasks = state.unacked_tasks.saturating_sub(1);
        if was_full {
            let conns = state.conns.clone();
            for conn in conns {
                self.ask_transmit(conn);
            }
        }
    }

    /// Requests a transmission of a connection from the driver, unless one is requested already.
    pub(super) fn ask_transmit(&mut self, conn: ConnId) {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return self.impossible(None);
        };
        if !connection.transmit_requested {
            connection.transmit_requested = true;
            self.actions.push_back(base::state_machine::Action::Transmit(conn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_is_forgotten_across_the_wrap() {
        let mut unacked = StatusLog::new(StatSn(u32::MAX));
        for _ in 0..3 {
            unacked.push(LoggedStatus::Nothing);
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
        let mut unacked = StatusLog::new(StatSn(0));
        (0..20).for_each(|_| unacked.push(LoggedStatus::Nothing));
        for at in 0..100 {
            unacked.request_resend(StatSn(at % 20), 1);
        }
        assert!(unacked.resend_runs.len() <= MAX_RESEND_RUNS);
    }
}
