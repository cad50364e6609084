//! Pings both ways (RFC 7143 §11.18, §11.19), and asynchronous messages (§11.9).

use alloc::vec::Vec;

use base::buffer::{Bytes, PAGE};
use base::state_machine::ConnId;
use base::time::Instant;
use transport::status::SENSE_MAX;
use transport::target::SessionId;

use super::arena::Key;
use super::contract::{AsyncEvent, SessionLimits};
use super::engine::Engine;
use super::initiator_notes::Deviation;
use super::output::{Body, Control};
use super::protocol_error::ProtocolError;
use super::states::ConnectionEvent;
use super::timer::{Owner, Timer};
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::{Itt, TargetSn, Ttt};

impl Engine {
    /// Answers a ping, or handles the answer to one.
    pub(super) fn handle_nop_out(
        &mut self,
        conn: ConnId,
        ping: &NopOut,
        data: Option<Bytes>,
    ) -> Result<(), ProtocolError> {
        let Some(connection) = self.conn_mut(conn) else { return Ok(()) };
        if ping.ttt != Ttt::NONE && connection.ping == Some(ping.ttt) {
            connection.ping = None;
        }
        let limit = usize::try_from(connection.parameters.initiator_max_recv).unwrap_or(usize::MAX);
        self.handle_ack_pong(conn, ping.ttt);
        if ping.itt == Itt::NONE {
            self.recycle(data);
            return Ok(());
        }
        // §11.18.3: as much data is returned as the initiator can receive.
        //= rfc7143#section-11.18.1
        //# When a target receives the NOP-Out with a valid Initiator Task Tag, it MUST respond with a NOP-In
        //# Response (see Section 4.6.3.6).
        //= rfc7143#section-11.19
        //# It MUST also duplicate up to the first MaxRecvDataSegmentLength bytes of the initiator-provided
        //# Ping Data.
        let body = data.map_or(Body::Empty, |data| self.echo(data, limit));
        //= rfc7143#section-11.19
        //# When a target receives the NOP-Out with a valid Initiator Task Tag (not the reserved value
        //# 0xffffffff), it MUST respond with a NOP-In with the same Initiator Task Tag that was provided in
        //# the NOP-Out request.
        //= rfc7143#section-11.19
        //# For such a response, the Target Transfer Tag MUST be 0xffffffff.
        let pong = NopIn { lun: ping.lun, itt: ping.itt, ttt: Ttt::NONE, sn: TargetSn::default() };
        self.queue_control(conn, Control::NopIn(pong), body)
    }

    /// Returns the part of a ping's data that is echoed, without holding more memory than that.
    fn echo(&self, data: Bytes, limit: usize) -> Body {
        if data.len() >= PAGE && data.len() <= limit {
            return Body::Echo(data);
        }
        let text = data.get(..limit).unwrap_or(&data).to_vec();
        self.pool.recycle(data);
        Body::Text(text)
    }

    /// Shows an initiator its command window in a NOP-In, if the window was closed or nearly closed and has
    /// grown, and no other PDU is about to show it.
    pub(super) fn show_window(&mut self, session: Key) {
        let depth = self.depth_now(session);
        let Some(state) = self.sessions.get(session) else { return };
        let Some(conn) = state.conns.first().copied().filter(|_| state.window.must_be_shown(depth)) else {
            return;
        };
        let is_sending = |conn: &ConnId| self.conn(*conn).is_some_and(|conn| !conn.send_queue.is_empty());
        if !state.tmfs.is_empty() || !state.logouts.is_empty() || state.conns.iter().any(is_sending) {
            return;
        }
        //= rfc7143#section-11.4.11
        //# When the MaxCmdSN changes at the target while the target has no pending PDUs to convey this
        //# information to the initiator, it MUST generate a NOP-In to carry the new MaxCmdSN.
        let shown = NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, sn: TargetSn::default() };
        if let Err(why) = self.queue_control(conn, Control::NopIn(shown), Body::Empty) {
            self.drop_connection(conn, why);
        }
    }

    /// Starts the silence timer of a connection that has entered full feature phase.
    pub(super) fn watch_silence(&mut self, now: Instant, conn: ConnId) {
        let at = now.after(self.limits_of(conn).ping_after);
        if let Some(connection) = self.conns.get_mut(super::connection::index(conn)).and_then(Option::as_mut)
        {
            connection.last_heard = now;
            self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Silence, at);
        }
    }

    fn limits_of(&self, conn: ConnId) -> SessionLimits {
        let session = self.conn(conn).and_then(|connection| self.sessions.get(connection.session?));
        session.map_or(self.limits.of_session(), |session| session.limits)
    }

    /// Returns whether the session of a connection has nothing under way, and the connection is between PDUs.
    fn is_idle(&self, conn: ConnId) -> bool {
        let Some(connection) = self.conn(conn) else { return false };
        if connection.receiver.as_ref().is_none_or(|receiver| !receiver.is_between_pdus()) {
            return false;
        }
        let session = connection.session.and_then(|session| self.sessions.get(session));
        session.is_some_and(|session| {
            session.tasks == session.unacked_tasks && session.tmfs.is_empty() && session.logouts.is_empty()
        })
    }

    /// Handles a connection that may have been silent for too long: pings it, or drops it.
    pub(super) fn on_silence_timer(&mut self, now: Instant, conn: ConnId) {
        let ttt = self.new_ttt();
        let SessionLimits { ping_after, pong_within, idle_within, .. } = self.limits_of(conn);
        let is_idle = self.is_idle(conn);
        let Some(connection) = self.conns.get_mut(super::connection::index(conn)).and_then(Option::as_mut)
        else {
            return;
        };
        let due = connection.last_heard.after(ping_after);
        if due > now {
            // Anything received shows that the peer is alive, whether it answers the ping or not.
            (connection.ping, connection.ping_overdue) = (None, false);
            self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Silence, due);
            return;
        }
        if connection.ping.is_some() {
            let until = connection.last_heard.after(idle_within);
            if is_idle && until > now {
                // Nothing is under way in the session. The ping stays open, and the next command ends the
                // idle state.
                connection.ping_overdue = true;
                let at = now.after(pong_within).min(until);
                self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Silence, at);
                return self.record_deviation(conn, Deviation::Silent);
            }
            //= rfc7143#section-7.1.4.3
            //# The target MUST close the connection and, if more than one connection is available, the target
            //# SHOULD send an Asynchronous Message that indicates that it has dropped the connection.
            return self.handle_omission(conn, ProtocolError::PingUnanswered);
        }
        connection.ping = Some(ttt);
        let at = now.after(pong_within);
        self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Silence, at);
        //= rfc7143#section-11.19
        //# Otherwise, when a target sends a NOP-In that is not a response to a NOP-Out received from the
        //# initiator, the Initiator Task Tag MUST be set to 0xffffffff, and the data segment MUST NOT contain
        //# any data (DataSegmentLength MUST be 0).
        //= rfc7143#section-11.19.3
        //# A LUN MUST be set to a correct value when the Target Transfer Tag is valid (not the reserved value
        //# 0xffffffff).
        let ping = NopIn { lun: 0, itt: Itt::NONE, ttt, sn: TargetSn::default() };
        if let Err(why) = self.queue_control(conn, Control::NopIn(ping), Body::Empty) {
            self.drop_connection(conn, why);
        }
    }

    /// Reports an event to an initiator in an asynchronous message.
    pub fn async_message(&mut self, now: Instant, session: SessionId, event: AsyncEvent<'_>) {
        let Some(state) = self.sessions.get(session.0) else { return };
        let conns: Vec<ConnId> = state.conns.to_vec();
        match event {
            AsyncEvent::Scsi { lun, sense } => {
                let sense = sense.get(..SENSE_MAX).unwrap_or(sense);
                let len = u16::try_from(sense.len()).unwrap_or(0).to_be_bytes();
                let body = Body::Text([&len, sense].concat());
                if let Some(conn) = conns.first() {
                    //= rfc7143#section-11.9.3
                    //# The LUN field MUST be valid if AsyncEvent is 0.
                    self.send_async(*conn, &AsyncMessage { lun, ..message(AsyncEventCode::SCSI) }, body);
                }
            }
            AsyncEvent::LogoutRequest { within } => {
                let seconds = u16::try_from(within.as_secs()).unwrap_or(u16::MAX).max(1);
                let request = AsyncMessage { parameter3: seconds, ..message(AsyncEventCode::LOGOUT_REQUEST) };
                if let Some(state) = self.sessions.get_mut(session.0) {
                    state.logout_cause.request_sent();
                }
                if conns.is_empty() {
                    // No connection is left on which to ask for a logout.
                    self.end_session(session.0, super::contract::SessionEnd::Closed);
                }
                for conn in conns {
                    self.ask_logout(now, conn, &request);
                }
            }
        }
    }

    fn ask_logout(&mut self, now: Instant, conn: ConnId, message: &AsyncMessage) {
        let at = now.after(base::time::Duration::from_secs(message.parameter3.into()));
        let Some(connection) = self.conns.get_mut(super::connection::index(conn)).and_then(Option::as_mut)
        else {
            return;
        };
        // A connection that is already logging out needs no request.
        let Some(requested) = connection.state.on(ConnectionEvent::AskLogout) else { return };
        connection.state = requested;
        self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Logout, at);
        //= rfc7143#section-11.9.1
        //# This Async Message MUST be sent on the same connection as the one requesting to be logged out.
        self.send_async(conn, message, Body::Empty);
    }

    /// Reports to an initiator that its session is about to be dropped, and that it may log in again at once
    /// (§11.9.1).
    pub(super) fn announce_drop(&mut self, session: Key) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        state.logout_cause.request_sent();
        let conns: Vec<ConnId> = state.conns.to_vec();
        for conn in conns {
            self.send_async(conn, &message(AsyncEventCode::SESSION_DROP), Body::Empty);
        }
    }

    fn send_async(&mut self, conn: ConnId, message: &AsyncMessage, body: Body) {
        if let Err(why) = self.queue_control(conn, Control::Async(*message), body) {
            self.drop_connection(conn, why);
        }
    }
}

fn message(event: AsyncEventCode) -> AsyncMessage {
    AsyncMessage {
        lun: 0,
        sn: TargetSn::default(),
        event,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 0,
        parameter3: 0,
    }
}
