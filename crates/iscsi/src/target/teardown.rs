//! How connections and sessions end: the transport was lost, the peer broke a rule, the layer above closes
//! the session, or the engine itself is wrong.

use alloc::collections::VecDeque;

use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::Instant;
use transport::target::SessionId;

use super::arena::Key;
use super::connection::index;
use super::contract::{ConnectionLoss, Event, SessionEnd};
use super::engine::Engine;
use super::protocol_error::ProtocolError;
use super::states::{self, ConnectionEvent, SessionEvent};
use super::timer::Timer;
use crate::negotiate::full_feature::TargetText;

impl Engine {
    /// Handles the end of a connection.
    pub fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason) {
        self.now = now;
        let down = match why {
            DisconnectReason::Closed => SessionEnd::ConnectionLost(ConnectionLoss::Closed),
            DisconnectReason::Reset => SessionEnd::ConnectionLost(ConnectionLoss::Reset),
            DisconnectReason::TimedOut => SessionEnd::ConnectionLost(ConnectionLoss::TimedOut),
            DisconnectReason::Unreachable => SessionEnd::ConnectionLost(ConnectionLoss::Unreachable),
            DisconnectReason::Failed => SessionEnd::ConnectionLost(ConnectionLoss::Failed),
            DisconnectReason::Stalled => SessionEnd::TimedOut,
            DisconnectReason::Shutdown => SessionEnd::Closed,
        };
        self.leave_session(conn, down);
        self.release_login_slot(conn);
        self.report_unproven_guess(conn);
        self.end_guess(now, conn, false);
        if let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::take) {
            self.open_conns = self.open_conns.saturating_sub(1);
            let freed = connection.control_bytes + connection.text_bytes;
            self.control_bytes = self.control_bytes.saturating_sub(freed);
        }
    }

    /// Drops a connection whose peer broke a rule, and removes it from its session.
    pub(super) fn drop_connection(&mut self, conn: ConnId, why: ProtocolError) {
        let Some(connection) = self.conn_mut(conn) else { return };
        if connection.closing && connection.session.is_none() {
            return;
        }
        connection.closing = true;
        // The engine sends nothing more on it.
        connection.send_queue = VecDeque::new();
        let freed =
            core::mem::take(&mut connection.control_bytes) + core::mem::take(&mut connection.text_bytes);
        (connection.login, connection.text) = (None, TargetText::new());
        self.control_bytes = self.control_bytes.saturating_sub(freed);
        match why {
            ProtocolError::HeaderDigestMismatch => self.stats.header_digest_errors += 1,
            ProtocolError::Bug => self.stats.bugs += 1,
            _ => {}
        }
        self.stats.dropped += 1;
        self.end_guess(self.now, conn, false);
        let down = match why {
            ProtocolError::PingUnanswered | ProtocolError::LogoutTooSlow | ProtocolError::DataTooSlow => {
                SessionEnd::TimedOut
            }
            why => SessionEnd::Misbehaved(why),
        };
        let member = self.conn(conn).and_then(|connection| Some((connection.session?, connection.cid)));
        self.leave_session(conn, down);
        self.actions.push_back(Action::Abort(conn));
        if let Some((session, cid)) = member {
            self.announce_loss(session, cid);
        }
    }

    /// Removes a connection from its session. Below level 2 its tasks end with it, and the loss of the last
    /// connection ends the session (§7.1.5).
    pub(super) fn leave_session(&mut self, conn: ConnId, down: SessionEnd) {
        let Some(connection) = self.conn_mut(conn) else { return };
        connection.deadlines.clear(Timer::Silence);
        connection.deadlines.clear(Timer::Data);
        connection.deadlines.clear(Timer::Logout);
        connection.deadlines.clear(Timer::Login);
        connection.deadlines.clear(Timer::Guess);
        connection.deadlines.clear(Timer::Ack);
        let is_logged_out = connection.logging_out;
        let moved = connection.handle_loss();
        self.expect_legal(moved);
        let Some(key) = self.take_session(conn) else { return };
        let Some(session) = self.sessions.get_mut(key) else { return self.impossible(None) };
        if !is_logged_out {
            session.logout_cause.connection_lost();
        }
        session.last_loss = match down {
            SessionEnd::ConnectionLost(loss) => loss,
            _ => ConnectionLoss::Dropped,
        };
        let is_last = self.remove_member(key, conn);
        let kept = down != SessionEnd::Closed && self.detach_tasks(self.now, key, conn, false);
        if is_last && !kept {
            self.end_session(key, down);
        } else if !kept {
            self.end_tasks(key, Some(conn));
        } else if is_last && let Some(session) = self.sessions.get_mut(key) {
            let moved = session.on(SessionEvent::ConnectionsLost);
            self.expect_legal(moved);
        }
        self.remove_from_fences(key, conn);
        self.mark_logouts_dirty(key);
        if let Some(connection) = self.conn_mut(conn) {
            let moved = connection.on(ConnectionEvent::CleanedUp);
            self.expect_legal(moved);
        }
    }

    /// Removes a connection from its session. Returns whether the session has no other.
    pub(super) fn remove_member(&mut self, session: Key, conn: ConnId) -> bool {
        let now = self.now;
        let Some(state) = self.sessions.get_mut(session) else { return false };
        state.conns.retain(|other| *other != conn);
        let is_last = state.conns.is_empty();
        if is_last {
            state.lost_since = Some(now);
        }
        is_last
    }

    /// Removes the session from a connection, and gives back the memory of the data that it was receiving.
    pub(super) fn take_session(&mut self, conn: ConnId) -> Option<Key> {
        let connection = self.conn_mut(conn)?;
        let (session, reserved) = (connection.session.take(), core::mem::take(&mut connection.reserved));
        self.release_unsolicited(session, reserved);
        session
    }

    /// Ends a session with everything in it.
    pub(super) fn end_session(&mut self, session: Key, down: SessionEnd) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        // Waiting requests must not be delivered while the tasks are ended one by one.
        state.ready.clear();
        state.memory_waiters.clear();
        // Below level 2 nothing is kept for a session that lost its connections, so no initiator can continue
        // it.
        let events: &[SessionEvent] = match (down, state.state) {
            (SessionEnd::ConnectionLost(_) | SessionEnd::HalfClosed, states::Session::Failed) => {
                &[SessionEvent::TimedOut]
            }
            (SessionEnd::ConnectionLost(_) | SessionEnd::HalfClosed, _) => {
                &[SessionEvent::ConnectionsLost, SessionEvent::TimedOut]
            }
            _ => &[SessionEvent::Closed],
        };
        let moved = events.iter().try_for_each(|event| state.on(*event));
        let next = state.window.exp_cmd_sn();
        let conns = core::mem::take(&mut state.conns);
        self.expect_legal(moved);
        self.end_tasks(session, None);
        for conn in conns {
            self.take_session(conn);
            let Some(connection) = self.conn_mut(conn) else { continue };
            connection.login_cmd_sn = next;
            connection.text = TargetText::new();
            let event = if down == SessionEnd::LoggedOut {
                ConnectionEvent::LoggedOut
            } else {
                ConnectionEvent::Lost
            };
            let moved = connection.on(event);
            if !core::mem::replace(&mut connection.closing, true) {
                self.actions.push_back(
                    if matches!(down, SessionEnd::LoggedOut | SessionEnd::Closed | SessionEnd::HalfClosed) {
                        Action::Close(conn)
                    } else {
                        Action::Abort(conn)
                    },
                );
            }
            self.expect_legal(moved);
        }
        if let Some(state) = self.sessions.remove(session)
            && state.is_announced
        {
            let why = state.logout_cause.judge(down);
            self.events.push_back(Event::SessionDown { session: SessionId(session), why });
        }
    }

    /// Handles a state that must not occur, on a session if there is one left to end.
    #[cold]
    #[track_caller]
    pub(super) fn impossible(&mut self, session: Option<Key>) {
        let why = ProtocolError::impossible();
        self.stats.bugs += 1;
        if let Some(session) = session {
            self.end_session(session, SessionEnd::Misbehaved(why));
        }
    }

    /// Counts a transition that [`super::states`] does not have. The state stays as it is.
    pub(super) fn expect_legal(&mut self, moved: Result<(), ProtocolError>) {
        if moved.is_err() {
            self.impossible(None);
        }
    }

    /// Ends a session because the layer above misused the engine.
    pub(super) fn bug(&mut self, session: Key) {
        self.stats.bugs += 1;
        self.end_session(session, SessionEnd::Misbehaved(ProtocolError::Bug));
    }
}
