//! Carries out the responses of [`crate::recovery`] to rules that an initiator broke without a PDU, or with
//! one that waited for its turn.
//! [`Engine::handle_violation`] does the same for a PDU, and [`Engine::handle_task_violation`] for a PDU of a
//! task.

use base::state_machine::ConnId;

use super::arena::Key;
use super::contract::SessionEnd;
use super::dispatch::PduContext;
use super::engine::Engine;
use super::protocol_error::ProtocolError;
use super::session::Request;
use crate::pdu::PduHeader;
use crate::recovery::{self, RecoveryLevel, TargetAction, TargetResponse};

impl Engine {
    /// Executes a request that waited for a lower number. A rule that it breaks concerns its own PDU and its
    /// own connection, not those of the request that it waited for.
    ///
    /// # Errors
    /// Returns the broken rule if the present connection must end.
    pub(super) fn execute_early(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        request: Request,
    ) -> Result<(), ProtocolError> {
        let pdu = match &request {
            Request::Ping(conn, ping, data) => Some((*conn, ping.encode(), data.bytes.as_ref())),
            Request::Text(conn, text, data) => Some((*conn, text.encode(), data.bytes.as_ref())),
            Request::Logout(conn, logout) => Some((*conn, logout.encode(), None)),
            Request::Command(_) | Request::Tmf(_) | Request::AbortedSlot => None,
        };
        let pdu = pdu.map(|(conn, bhs, data)| (conn, bhs.with_data_len(data.map_or(0, |data| data.len()))));
        let Err(why) = self.execute_request(context, session, request) else { return Ok(()) };
        let Some((conn, bhs)) = pdu else { return Err(why) };
        match self.handle_violation(conn, &bhs, why) {
            Err(why) if conn != context.conn => {
                self.drop_connection(conn, why);
                Ok(())
            }
            done => done,
        }
    }

    /// Returns the response to a rule that was broken on a connection, without counting the error.
    pub(super) fn response_to(&self, conn: ConnId, why: ProtocolError) -> TargetResponse {
        let level = self.conn(conn).map_or(RecoveryLevel::SessionRecovery, |connection| connection.level);
        recovery::target_response(level, why)
    }

    /// Responds to a rule that an initiator broke by sending or reading nothing: there is no PDU to reject,
    /// and no task that is to blame.
    pub(super) fn handle_omission(&mut self, conn: ConnId, why: ProtocolError) {
        match self.error_response(conn, why).action {
            TargetAction::Nothing => {}
            TargetAction::EndSession => self.end_session_of(conn, why),
            TargetAction::DropConnection => self.drop_connection(conn, why),
            // A test of `recovery` knows that no error without a task has such a row.
            TargetAction::FailTask(_) | TargetAction::RequestAgain(_) => {
                self.drop_connection(conn, ProtocolError::impossible());
            }
        }
    }

    /// Responds to a command number that stays missing. The number belongs to a session, not to one of its
    /// connections.
    pub(super) fn handle_gap(&mut self, session: Key, why: ProtocolError) {
        let Some(state) = self.sessions.get(session) else { return };
        let response = recovery::target_response(state.parameters.error_recovery_level, why);
        if response.action == TargetAction::EndSession {
            self.end_session(session, SessionEnd::Misbehaved(why));
            self.stats.dropped += 1;
        } else {
            self.impossible(Some(session));
        }
    }

    /// Ends the session of a connection on which a rule was broken, or the connection if it has none.
    pub(super) fn end_session_of(&mut self, conn: ConnId, why: ProtocolError) {
        match self.conn(conn).and_then(|connection| connection.session) {
            Some(session) => self.end_session(session, SessionEnd::Misbehaved(why)),
            None => self.drop_connection(conn, why),
        }
    }
}
