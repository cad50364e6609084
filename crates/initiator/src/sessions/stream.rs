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
        let dial = self.dials.remove(&number);
        match dial.and_then(|dial| Some((dial.session, dial.slot, self.entry(dial.session)?))) {
            Some((session, slot, seat)) => {
                if let Some(session) = seat.session.iscsi() {
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

    fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, loan: RxBuffer) {
        if let Some(session) = self.owner(conn) {
            session.return_rx_buffer(now, conn, loan);
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
        self.entries.values_mut().find_map(|seat| seat.session.iscsi()?.poll_action())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let seats = self.entries.values();
        seats
            .filter_map(|seat| {
                let delayed = seat.delayed.first_key_value().map(|((at, _), _)| *at);
                seat.session
                    .poll_timeout()
                    .into_iter()
                    .chain(delayed)
                    .chain(seat.overdue.poll_timeout())
                    .min()
            })
            .min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        for (id, seat) in &mut self.entries {
            if seat.session.poll_timeout().is_some_and(|at| at <= now) {
                seat.session.handle_timeout(now);
            }
            seat.check_timeouts(now, *id, &mut self.events);
            seat.submit_waiting(now, *id, &mut self.events);
        }
    }
}
