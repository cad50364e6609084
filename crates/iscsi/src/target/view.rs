//! The state of an engine as monitoring sees it.

use core::net::SocketAddr;

use base::state_machine::ConnId;
use transport::target::SessionId;

use super::connection::{Connection, index};
use super::contract::SessionView;
use super::engine::Engine;
use crate::login::SessionKind;

impl Engine {
    /// Returns the sessions, in the order of their indices.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView<'_>> {
        self.sessions.iter().map(|(key, session)| SessionView {
            session: SessionId(key),
            target: match session.kind {
                SessionKind::Normal { target, .. } => Some(target),
                SessionKind::Discovery { .. } => None,
            },
            initiator: &session.initiator,
            isid: session.isid,
            tsih: session.tsih,
            parameters: &session.parameters,
            protection: session.protection,
            peer: session.conns.first().and_then(|conn| self.peer_of(*conn)),
            connections: session.conns.len(),
            members: session.conns.iter().filter_map(|conn| self.conn(*conn)).map(Connection::view).collect(),
            lost: session.lost.len(),
            tasks: session.tasks.saturating_sub(session.unacked_tasks),
            unsent_bytes: session.shares.data_in.held(),
            traffic: session.traffic,
            repairs: session.repairs,
        })
    }

    fn peer_of(&self, conn: ConnId) -> Option<SocketAddr> {
        Some(self.conns.get(index(conn))?.as_ref()?.via.peer)
    }

    /// Returns the address that the first connection of a session comes from.
    pub fn peer(&self, session: SessionId) -> Option<SocketAddr> {
        self.sessions.get(session.0).and_then(|session| self.peer_of(*session.conns.first()?))
    }
}
