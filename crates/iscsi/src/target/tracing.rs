//! Which connections the traces of an engine show ([`crate::trace`]).

use alloc::sync::Arc;
use alloc::vec::Vec;

use base::state_machine::ConnId;
use security::Level;

use super::connection::index;
use super::dispatch::PduContext;
use super::engine::Engine;
use super::protection::Protection;
use super::session::Session;
use crate::framing::{DataSink, ReceivedPdu, Receiver};
use crate::login::SessionKind;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::{Opcode, PduHeader as _};
use crate::trace::{ConnectionTrace, PduTrace, value_of};

impl Engine {
    /// Shows `trace` the PDUs of the connections that it selects, from the next PDU of each on, until it has
    /// ended and [`Self::drop_ended_traces`] is called. Returns how many sessions it selects now.
    pub fn start_trace(&mut self, trace: Arc<dyn PduTrace>) -> usize {
        let sessions = self.sessions.iter().map(|(_, session)| session);
        let selected = sessions.filter(|session| wants(&*trace, session, session.protection));
        let selected: Vec<_> = selected.map(|session| session.conns.clone()).collect();
        for conn in selected.iter().flatten() {
            if let Some(connection) = self.conn_mut(*conn) {
                let via = connection.via;
                ConnectionTrace::start(&mut connection.writer.trace, &trace, via.local, via.peer);
            }
        }
        self.traces.push(trace);
        selected.len()
    }

    /// Drops the traces that have ended.
    pub fn drop_ended_traces(&mut self) {
        self.traces.retain(|trace| !trace.has_ended());
        for connection in self.conns.iter_mut().flatten() {
            ConnectionTrace::end(&mut connection.writer.trace, |trace| trace.has_ended());
        }
    }

    /// Shows a received PDU to the traces of its connection. The first PDU of a login names the initiator.
    #[cold]
    pub(super) fn trace_received(
        &mut self,
        context: &PduContext<'_>,
        pdu: &ReceivedPdu,
        receiver: &Receiver,
    ) {
        if pdu.bhs.opcode() == Opcode::LOGIN_REQUEST {
            self.trace_login(context, pdu);
        }
        if let Some(connection) = self.conn_mut(context.conn)
            && let Some(trace) = &mut connection.writer.trace
        {
            trace.received(pdu, receiver);
        }
    }

    /// Begins to show the login of a connection to the traces that select its initiator.
    fn trace_login(&mut self, context: &PduContext<'_>, pdu: &ReceivedPdu) {
        let (DataSink::Append(text), Ok(request)) = (&pdu.sink, LoginRequest::decode(&pdu.bhs)) else {
            return;
        };
        let Some(initiator) = value_of(text.filled(), "InitiatorName") else { return };
        let target = value_of(text.filled(), "TargetName");
        let connection = self.conns.get_mut(index(context.conn)).and_then(Option::as_deref_mut);
        let Some(connection) = connection.filter(|known| known.session.is_none()) else { return };
        let via = connection.via;
        let is_tls = context.directory.is_tls(via.portal);
        for trace in &self.traces {
            if (!is_tls || trace.takes_protected()) && trace.selects(initiator, target, request.isid) {
                ConnectionTrace::start(&mut connection.writer.trace, trace, via.local, via.peer);
            }
        }
    }

    /// Shows a connection that has logged in to the traces that select its session, and to no other.
    #[cold]
    pub(super) fn trace_logged_in(&mut self, conn: ConnId, protection: Protection) {
        let connection = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut);
        let Some(connection) = connection else { return };
        let Some(session) = connection.session.and_then(|key| self.sessions.get(key)) else { return };
        let via = connection.via;
        ConnectionTrace::end(&mut connection.writer.trace, |trace| !wants(&**trace, session, protection));
        for trace in self.traces.iter().filter(|trace| wants(&***trace, session, protection)) {
            ConnectionTrace::start(&mut connection.writer.trace, trace, via.local, via.peer);
        }
    }
}

/// Returns whether a trace wants a connection of a session with this protection.
fn wants(trace: &dyn PduTrace, session: &Session, protection: Protection) -> bool {
    let target = match &session.kind {
        SessionKind::Normal { name, .. } => Some(name.as_str()),
        SessionKind::Discovery { .. } => None,
    };
    (protection.level() == Level::None || trace.takes_protected())
        && trace.selects(session.initiator.as_str(), target, session.isid.0)
}
