//! The end of a session, which is an I_T nexus loss (SAM-5 §6.3.4), and the removal of orphan data.

use alloc::vec::Vec;

use base::arena::Key;
use base::ether::EtherPort;
use base::time::Instant;
use transport::target::{SessionId, TaskRef};

use super::contract::{Event, SessionEnd};
use super::engine::Engine;
use super::exchange::{Holder, RequestState};
use super::session::Phase;
use crate::connection::Message;
use crate::frame::Header;
use crate::pdu::disconnect::{Disconnect, DisconnectReason};

impl Engine {
    /// Ends a session because the layer above shuts down, and sends the initiator a Disconnect with that
    /// reason.
    pub fn shut_session(&mut self, now: Instant, session: SessionId) {
        self.now = now;
        self.end_session(session.0, SessionEnd::ShutDown);
    }

    /// Ends a session and all its tasks. A closing message, if the reason has one, is still sent.
    pub(super) fn end_session(&mut self, key: Key, why: SessionEnd) {
        let Some(session) = self.sessions.get_mut(key).filter(|session| session.is_up()) else { return };
        let said = match why {
            SessionEnd::LoggedOut | SessionEnd::GivenUp => Some(Disconnect::Done),
            SessionEnd::Reinstated => Some(Disconnect::Goodbye(DisconnectReason::REPLACED)),
            SessionEnd::Closed => Some(Disconnect::Goodbye(DisconnectReason::CLOSED)),
            SessionEnd::ShutDown => Some(Disconnect::Goodbye(DisconnectReason::SHUTDOWN)),
            SessionEnd::Misbehaved => Some(Disconnect::Goodbye(DisconnectReason::BROKEN)),
            // No path to the initiator is left, or no key to send a message with.
            SessionEnd::PathLost | SessionEnd::KeysExhausted => None,
        };
        let until = self.now.after(self.limits.closing_timeout);
        session.phase = match said {
            Some(Disconnect::Done) => Phase::Lingering(until),
            Some(_) => Phase::Closing(until),
            None => Phase::Closed,
        };
        let sid = session.sids.1;
        session.memory_waiters.clear();
        session.to_flush.clear();
        session.refusals.clear();
        session.withdrawn.append(&mut session.refused);
        for exchange in session.exchanges() {
            let Some(state) = self.exchanges.get_mut(exchange) else { continue };
            if state.holder == Holder::DeviceServer && matches!(state.request, RequestState::Started) {
                self.events.push_back(Event::TaskGone { task: TaskRef(exchange) });
            }
            self.remove_exchange(exchange);
        }
        self.flush(key);
        if let Some(said) = said
            && let Some(session) = self.sessions.get_mut(key)
        {
            session.closing_message = Some(Message::disconnect(said, session.keyed));
        }
        self.gateway.session_ended(sid);
        self.events.push_back(Event::SessionDown { session: SessionId(key), why });
        self.mark_dirty(key);
    }

    /// Processes a repeated Disconnect of an initiator that logged out: it may not have received the
    /// acknowledgement.
    pub(super) fn goodbye_again(&mut self, key: Key, header: &Header, payload: &[u8]) {
        let Some(session) = self.sessions.get_mut(key).filter(|session| session.lingers()) else { return };
        let is_goodbye = matches!(Disconnect::parse(payload), Ok(Disconnect::Goodbye(_)));
        if is_goodbye && header.protected == session.keyed {
            session.closing_message = Some(Message::disconnect(Disconnect::Done, session.keyed));
        }
    }

    /// Makes room for one more session by removing sessions that are kept only to acknowledge a repeated
    /// logout.
    pub(super) fn make_room(&mut self, port: EtherPort) {
        while self.is_full(port, true) {
            let left = self.sessions.iter().filter(|(_, session)| session.lingers());
            let Some((_, key)) = left.map(|(key, session)| (session.deadline, key)).min() else { return };
            self.remove_session(key);
        }
    }

    /// Removes a session that ended.
    pub(super) fn remove_session(&mut self, key: Key) {
        let Some(session) = self.sessions.remove(key) else { return };
        if let Some(transport) = &session.transport {
            self.stats.past.join(&transport.stats().paths);
        }
        self.sids.remove(&session.sids.1);
        self.divide_rings();
        if let Some(deadline) = session.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        for port in session.ports {
            if let Some(entry) = self.ports.get_mut(&port) {
                entry.senders.retain(|other| *other != key);
            }
        }
    }

    /// Drops orphan data whose request was not received in time. Timers expire often, so the exchanges are
    /// searched only once in an eighth of `orphan_data_timeout`.
    pub(super) fn drop_orphan_data(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if self.now.since(session.swept) < self.limits.orphan_data_timeout / 8 {
            return;
        }
        session.swept = self.now;
        let late = |since: Instant, now: Instant| now.since(since) >= self.limits.orphan_data_timeout;
        let (mut old, now) = (Vec::new(), self.now);
        for exchange in session.exchanges() {
            let state = self.exchanges.get(exchange);
            if state.is_some_and(|state| state.holder == Holder::OrphanData && late(state.since, now)) {
                old.push(exchange);
            }
        }
        for exchange in old {
            self.stats.orphan_data += 1;
            self.remove_exchange(exchange);
        }
    }
}
