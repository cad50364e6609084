//! Statuses: how they get their numbers, and how the initiator acknowledges them (RFC 7143 §4.2.2.2).

use alloc::boxed::Box;

use base::state_machine::ConnId;
use base::time::Instant;

use super::arena::Key;
use super::connection::index;
use super::engine::{CONTROL_COST, Engine};
use super::output::{Body, Control, Output};
use super::status_log::{AckPing, LoggedStatus};
use super::task::SentStatus;
use super::timer::{Owner, Timer};
use crate::pdu::nop_in::NopIn;
use crate::pdu::{Bhs, Itt, TargetSn, Ttt};
use crate::serial::StatSn;

impl Engine {
    /// Takes the next status number, and retains its status if the session's level requires it.
    pub(super) fn log_status(&mut self, now: Instant, conn: ConnId, kept: LoggedStatus) -> StatSn {
        let (unacked_max, ack_within) = (self.unacked_max(), self.ack_within());
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            self.impossible(None);
            return StatSn(0);
        };
        let sn = connection.use_stat_sn();
        if !connection.level.retains_statuses() {
            return sn;
        }
        connection.status_log.push(kept);
        // An acknowledgement is requested well before the bound is reached, and at once where others wait for
        // the memory of data that is retained until then.
        let many = connection.status_log.is_half_full(unacked_max) || self.quotas.data_in.has_waiters();
        if !connection.deadlines.is_set(Timer::Ack) {
            let at = now.after(ack_within);
            self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Ack, at);
        }
        if many {
            self.ask_for_ack(conn);
        }
        self.ask_for_last_acks(conn);
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
            self.ask_for_last_acks(conn);
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
        connection.ack_ping = Some(AckPing { ttt, stat_sn: connection.stat_sn });
        let ping = NopIn { lun: 0, itt: Itt::NONE, ttt, sn: TargetSn::default() };
        // The ping overtakes responses that cannot be sent before others are acknowledged.
        let ping = Output::Control(Box::new((Control::NopIn(ping), Body::Empty)));
        connection.control_queued += 1;
        connection.control_bytes += CONTROL_COST;
        connection.send_queue.push_front(ping);
        self.control_bytes += CONTROL_COST;
        self.ask_transmit(conn);
    }

    /// Handles the answer to a ping, whose ExpStatSN was handled before.
    pub(super) fn handle_ack_pong(&mut self, conn: ConnId, ttt: Ttt) {
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        let Some(ping) = connection.ack_ping.take_if(|ping| ping.ttt == ttt) else { return };
        // Nothing else would ask for the statuses that were sent after the ping. If none was, the initiator
        // cannot acknowledge more yet.
        if ping.stat_sn != connection.stat_sn {
            self.ask_for_last_acks(conn);
        }
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
        let at = now.after(self.ack_within());
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
        if let Some(freed) = freed {
            self.release_data_out(session, freed);
        }
        self.leave_window(key);
        self.mark_logouts_dirty(session);
        let half = self.answered_max() / 2;
        if self.sessions.get(session).is_some_and(|state| state.unacked_tasks >= half) {
            self.ask_session_for_ack(session);
        }
        if let Some(state) = self.sessions.get_mut(session) {
            state.unacked_tasks += 1;
            if state.has_undelivered() {
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
