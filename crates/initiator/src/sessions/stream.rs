//! Implements the interface between a reactor and the sessions: received bytes, bytes to send, and timeouts.

use base::state_machine::{
    AcceptInfo, Action, ConnId, DisconnectReason, MediumId, PortalId, RxBuffer, StreamMachine,
};
use base::time::Instant;
use base::transmit::Transmit;

use super::{Sessions, index, put_at};

impl StreamMachine for Sessions {
    fn connected(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        let PortalId(number) = arrival.portal;
        let attempt = self.attempts.remove(&number);
        match attempt.and_then(|attempt| Some((attempt.session, attempt.slot, self.entry(attempt.session)?)))
        {
            Some((session, slot, entry)) => {
                // It was about an address that was tried before.
                entry.system = None;
                if let Some(session) = entry.session.iscsi() {
                    session.connected(now, conn, slot, arrival.entropy);
                }
                put_at(&mut self.routes, conn.0, session);
            }
            None => self.orphans.push_back(conn),
        }
    }

    fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        if let Some(session) = self.owner(conn) {
            session.received(now, conn, bytes);
        }
    }

    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        self.owner(conn)?.take_rx_buffer(conn)
    }

    fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, rx_buffer: RxBuffer) {
        if let Some(session) = self.owner(conn) {
            session.return_rx_buffer(now, conn, rx_buffer);
        }
    }

    fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
        if let Some(session) = self.owner(conn) {
            session.transmit(now, conn, out);
        }
    }

    fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason) {
        if let Some(session) = self.owner(conn) {
            session.disconnected(now, conn, why);
        }
        if let Some(route) = self.routes.get_mut(index(conn.0)) {
            *route = None;
        }
    }

    fn medium_ready(&mut self, _: Instant, _: MediumId) {}

    fn poll_action(&mut self) -> Option<Action> {
        if let Some(conn) = self.orphans.pop_front() {
            return Some(Action::Abort(conn));
        }
        self.entries.values_mut().find_map(|entry| entry.session.iscsi()?.poll_action())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let seats = self.entries.values();
        seats
            .filter_map(|entry| {
                let delayed = entry.delayed.first_key_value().map(|((at, _), _)| *at);
                entry
                    .session
                    .services()
                    .poll_timeout()
                    .into_iter()
                    .chain(delayed)
                    .chain(entry.overdue.poll_timeout())
                    .min()
            })
            .min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        for (id, entry) in &mut self.entries {
            if entry.session.services().poll_timeout().is_some_and(|at| at <= now) {
                entry.session.services_mut().handle_timeout(now);
            }
            entry.check_timeouts(now, *id, &mut self.events);
            entry.submit_waiting(now, *id, &mut self.events);
        }
    }
}
