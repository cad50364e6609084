//! Text requests in full feature phase (RFC 7143 §6.4, §11.10, §11.11). [`crate::negotiate::full_feature`]
//! negotiates; this module handles the PDUs and applies the results.

use base::buffer::Bytes;
use base::state_machine::ConnId;

use super::arena::Key;
use super::dispatch::PduContext;
use super::engine::Engine;
use super::output::{Body, Control};
use super::protocol_error::ProtocolError;
use crate::negotiate::full_feature::{self, TextContext};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, TargetSn, Ttt};

impl Engine {
    /// Handles a Text Request.
    pub(super) fn handle_text_request(
        &mut self,
        context: PduContext<'_>,
        conn: ConnId,
        session: Key,
        (request, data): (&TextRequest, Option<Bytes>),
    ) -> Result<(), ProtocolError> {
        if let Some(state) = self.sessions.get_mut(session) {
            state.last_text_request = context.now;
        }
        let reply =
            self.negotiate_text(context, conn, session, (request, data.as_deref().unwrap_or_default()));
        self.recycle(data);
        let reply = reply?;
        let response = TextResponse {
            is_final: reply.is_final,
            continues: reply.cont,
            //= rfc7143#section-11.10.4
            //# If the Target Transfer Tag is not 0xffffffff, the LUN field MUST be sent by the target in the
            //# Text Response.
            lun: request.lun,
            itt: request.itt,
            ttt: Ttt(reply.ttt),
            sn: TargetSn::default(),
        };
        if let (Some(max), Some(connection)) = (reply.agreed.initiator_max_recv, self.conn_mut(conn)) {
            connection.parameters.initiator_max_recv = max;
        }
        self.queue_control(conn, Control::Text(response), Body::Text(reply.data))
    }

    fn negotiate_text(
        &mut self,
        context: PduContext<'_>,
        conn: ConnId,
        session: Key,
        (request, data): (&TextRequest, &[u8]),
    ) -> Result<full_feature::TextReply, ProtocolError> {
        if request.itt == Itt::NONE {
            return Err(ProtocolError::ReservedTaskTag);
        }
        let fresh_ttt = self.new_ttt().0;
        let Some(connection) = self.conn_mut(conn) else { return Err(ProtocolError::impossible()) };
        let mut talk = core::mem::take(&mut connection.text);
        let (via, initiator_max_recv) = (connection.via, connection.parameters.initiator_max_recv);
        let Some(state) = self.sessions.get(session) else { return Err(ProtocolError::impossible()) };
        let talker = TextContext {
            directory: context.directory,
            via: &via,
            initiator: &state.initiator,
            kind: &state.kind,
            initiator_max_recv,
            fresh_ttt,
        };
        let said = full_feature::TextRequest {
            is_final: request.is_final,
            cont: request.continues,
            itt: request.itt.0,
            ttt: request.ttt.0,
            data,
        };
        let reply = talk.handle(&said, &talker);
        let held = if reply.is_ok() { talk.held() } else { 0 };
        self.hold_text(conn, held)?;
        let reply = reply.map_err(ProtocolError::Text)?;
        if let Some(connection) = self.conn_mut(conn) {
            connection.text = talk;
        }
        Ok(reply)
    }
}
