//! Logout (RFC 7143 §11.14, §11.15): of the session, of a connection, or for recovery, which level 0 has not.

use base::machine::{Action, ConnId};

use super::arena::Key;
use super::connection::{Body, Control};
use super::contract::Down;
use super::engine::Engine;
use super::states::ConnectionEvent;
use super::why::Why;
use crate::pdu::TargetSn;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};

impl Engine {
    /// Takes a Logout Request.
    pub(super) fn logout(&mut self, conn: ConnId, session: Key, request: &LogoutRequest) -> Result<(), Why> {
        let Some(state) = self.sessions.get(session) else { return Err(Why::Bug) };
        let time2wait = state.parameters.default_time2wait;
        let conns = state.conns.clone();
        let named = conns.iter().copied().find(|conn| self.conn(*conn).is_some_and(|c| c.cid == request.cid));
        let (response, ends) = match (request.reason, named) {
            (LogoutReason::CloseSession, _) => (LogoutResult::CLOSED, Ends::Session),
            (LogoutReason::CloseConnection, Some(_)) if conns.len() == 1 => {
                (LogoutResult::CLOSED, Ends::Session)
            }
            (LogoutReason::CloseConnection, Some(named)) => (LogoutResult::CLOSED, Ends::Connection(named)),
            (LogoutReason::CloseConnection, None) => (LogoutResult::NO_CID, Ends::Nothing),
            (LogoutReason::RemoveForRecovery, _) => (LogoutResult::NO_RECOVERY, Ends::Nothing),
        };
        let answer = LogoutResponse {
            response,
            itt: request.itt,
            sn: TargetSn::default(),
            // §11.15.3: below level 2 it means something only where the logout failed.
            time2wait: if response == LogoutResult::CLOSED { 0 } else { time2wait },
            time2retain: 0,
        };
        match ends {
            Ends::Nothing => {}
            Ends::Session => {
                let own = self.conn_mut(conn).ok_or(Why::Bug)?;
                own.on(ConnectionEvent::LogoutRequest)?;
                // Its tasks end first: nothing of theirs may follow the response.
                self.end_tasks(session, None);
            }
            Ends::Connection(named) => {
                let named_conn = self.conn_mut(named).ok_or(Why::Bug)?;
                named_conn.on(ConnectionEvent::LogoutRequest)?;
                self.end_tasks(session, Some(named));
            }
        }
        self.control(conn, Control::Logout(answer), Body::Empty)?;
        match ends {
            Ends::Nothing => {}
            Ends::Session => self.end_session(session, Down::LoggedOut),
            Ends::Connection(named) => self.close_member(session, named),
        }
        Ok(())
    }

    /// Closes one connection of a session that goes on with others.
    fn close_member(&mut self, session: Key, conn: ConnId) {
        if let Some(state) = self.sessions.get_mut(session) {
            state.conns.retain(|other| *other != conn);
        }
        if let Some(connection) = self.conn_mut(conn) {
            connection.session = None;
            connection.closing = true;
            connection.state = connection.state.on(ConnectionEvent::LoggedOut).unwrap_or(connection.state);
            self.actions.push_back(Action::Close(conn));
        }
    }
}

/// What a logout ends.
#[derive(Clone, Copy)]
enum Ends {
    Nothing,
    Connection(ConnId),
    Session,
}
