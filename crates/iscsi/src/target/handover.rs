//! Moves idle sessions to another engine, usually in another process: live upgrade.
//!
//! A session moves only when nothing is under way in it, so its state has no tasks, no data and no parts of
//! PDUs ([`SessionState`]). The owner proceeds in these steps:
//!
//! 1. The owner stops accepting connections, and waits for a while until no connection is left that cannot
//!    move ([`Engine::unmovable_connections`]).
//! 2. [`Engine::freeze`]: MaxCmdSN of normal sessions advances no further. It never moves back (RFC 7143
//!    §4.2.2.1), so the commands that the initiators may still send are served as usual, and when an
//!    initiator has used its window up, its session becomes idle. From ErrorRecoveryLevel 1 on, pings ask for
//!    the acknowledgement of statuses.
//! 3. The owner waits until [`Engine::busy`] returns `None`, and goes on serving meanwhile.
//! 4. The owner closes the connections that cannot move ([`Engine::end_unmovable_connections`]). The driver
//!    stops receiving, and sends whatever it holds. If [`Engine::busy`] still returns `None`, the
//!    owner calls [`Engine::export`] for each session.
//! 5. The other engine learns of each connection with [`Engine::taken_over`], and then resumes each session
//!    with [`Engine::resume`]. Nothing may be transmitted or received before the first engine is out of use.
//! 6. If anything fails before that, [`Engine::thaw`] lets the first engine go on.
//!
//! What does not move:
//!
//! * Connections that have not logged in ([`Engine::unmovable_connections`]). Their logins go on while the
//!   engine is frozen. A normal session that begins then has a closed window, so it is idle at once and can
//!   move; its window opens when it is resumed or the engine thaws.
//! * Discovery sessions. They are not frozen, and do not make the engine busy.
//! * Timers, which start anew. Pings that are open need no answer any more: the answer is accepted like any
//!   other PDU. No new target transfer tag equals an old one for the next 2^31 tags.
//! * Traces. Those of the other engine show the session from the resumption on.

mod busy;
mod error;
mod export;
mod resume;
mod state;

pub use busy::{Busy, BusyReason};
pub use error::ResumeError;
pub use state::SessionState;

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId};
use base::time::{Duration, Instant};
use transport::target::SessionId;

use super::arena::Key;
use super::connection::{Connection, index};
use super::engine::Engine;
use super::session::Session;
use super::states;
use super::timer::{Owner, Timer};
use crate::login::directory::{Directory, TargetId};

/// How long a status may stay unacknowledged in a frozen engine before the initiator is pinged again: long
/// against a round trip, and short against what a live upgrade may take.
const FROZEN_ACK_WITHIN: Duration = Duration::from_millis(50);

impl Engine {
    /// Stops to advance MaxCmdSN of every normal session, and asks the initiators to acknowledge the statuses
    /// that were sent. No connection ends, and everything else is served as usual.
    pub fn freeze(&mut self, now: Instant) {
        self.now = now;
        self.is_frozen = true;
        let sessions: Vec<Key> = self.sessions.iter().map(|(key, _)| key).collect();
        for session in sessions {
            let Some(state) = self.sessions.get(session) else { continue };
            for conn in state.conns.clone() {
                self.hurry_acks(now, conn);
            }
            self.ask_session_for_ack(session);
        }
    }

    /// Undoes [`Self::freeze`]: the command windows open again. Initiators whose window is closed or nearly
    /// closed are told at once.
    pub fn thaw(&mut self, now: Instant) {
        self.now = now;
        if !core::mem::take(&mut self.is_frozen) {
            return;
        }
        let sessions: Vec<Key> = self.sessions.iter().map(|(key, _)| key).collect();
        for session in sessions {
            self.mark_dirty(session);
        }
    }

    /// Returns how many connections would be lost with the engine: those that have not logged in, and those
    /// of discovery sessions.
    pub fn unmovable_connections(&self) -> usize {
        self.unmovable().count()
    }

    /// Closes these connections. While the driver parks, it ends a connection that is closing soon, so a peer
    /// that does not read what it asked for in a discovery cannot keep the driver from parking.
    pub fn end_unmovable_connections(&mut self, now: Instant) {
        self.now = now;
        let unmovable: Vec<ConnId> = self.unmovable().collect();
        for conn in unmovable {
            if let Some(connection) = self.conn_mut(conn) {
                connection.closing = true;
            }
            self.actions.push_back(Action::Close(conn));
        }
    }

    fn unmovable(&self) -> impl Iterator<Item = ConnId> {
        let is_unmovable = |conn: &Connection| match conn.session {
            Some(session) => self.sessions.get(session).is_some_and(Session::is_discovery),
            None => matches!(conn.state, states::Connection::TransportUp | states::Connection::InLogin),
        };
        let conns = (0..).map(ConnId).zip(&self.conns);
        conns.filter(move |(_, conn)| conn.as_deref().is_some_and(is_unmovable)).map(|(conn, _)| conn)
    }

    /// Returns what keeps the engine from being exported: a session that is not idle, with the reason. A
    /// reason that can end is returned before one that cannot ([`BusyReason::can_end`]). Discovery sessions,
    /// and connections that have not logged in, do not count.
    pub fn busy(&self) -> Option<Busy> {
        let mut found = None;
        for (key, session) in self.sessions.iter().filter(|(_, session)| !session.is_discovery()) {
            match self.busy_reason(session) {
                Some(reason) if reason.can_end() => {
                    return Some(Busy { session: SessionId(key), reason });
                }
                Some(reason) if found.is_none() => {
                    found = Some(Busy { session: SessionId(key), reason });
                }
                _ => {}
            }
        }
        found
    }

    /// Returns the state of an idle normal session, and its connections in the order in which
    /// [`Self::resume`] expects them. The engine stays as it is; times count up to the last call of the
    /// engine.
    ///
    /// # Errors
    /// Returns the reason why the session cannot move now.
    pub fn export(&self, session: SessionId) -> Result<(SessionState, Vec<ConnId>), Busy> {
        let busy = |reason| Busy { session, reason };
        let key = session.0;
        let state = self.sessions.get(key).ok_or(busy(BusyReason::NoSession))?;
        match self.busy_reason(state) {
            Some(reason) => Err(busy(reason)),
            None => Ok((self.state_of(state), state.conns.to_vec())),
        }
    }

    /// Resumes a session that another engine exported, with the target of this number, over connections for
    /// which [`Self::taken_over`] was called and on which nothing was received. The directory tells which of
    /// them are inside TLS, whose state the owner moves. Reports
    /// [`Event::SessionUp`](super::contract::Event::SessionUp) as a login does. The first PDU that is sent
    /// shows the initiator its command window.
    ///
    /// # Errors
    /// Returns the reason why the state is not resumed. Nothing has changed then.
    pub fn resume(
        &mut self,
        now: Instant,
        state: SessionState,
        target: TargetId,
        conns: &[ConnId],
        directory: &dyn Directory,
    ) -> Result<SessionId, ResumeError> {
        self.now = now;
        let resumed = self.check_state(state, target, conns, directory)?;
        Ok(self.insert_resumed(now, resumed))
    }

    /// Returns how long a status may stay unacknowledged before the initiator is pinged.
    pub(super) fn ack_within(&self) -> Duration {
        let usual = self.limits.ack_within;
        if self.is_frozen { usual.min(FROZEN_ACK_WITHIN) } else { usual }
    }

    /// Moves the acknowledgement timer of a connection up to what [`Self::ack_within`] is now.
    fn hurry_acks(&mut self, now: Instant, conn: ConnId) {
        let at = now.after(self.ack_within());
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else { return };
        if connection.deadlines.is_set(Timer::Ack) {
            self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Ack, at);
        }
    }

    /// Asks for an acknowledgement on each connection of the session of `conn`, if the engine is frozen and
    /// the session has nothing else under way: no further PDU of the initiator would bring it. Each
    /// connection has status numbers of its own.
    pub(super) fn ask_for_last_acks(&mut self, conn: ConnId) {
        if !self.is_frozen {
            return;
        }
        let Some(key) = self.conn(conn).and_then(|connection| connection.session) else { return };
        if self.sessions.get(key).is_some_and(|session| session.tasks == session.unacked_tasks) {
            self.ask_session_for_ack(key);
        }
    }
}
