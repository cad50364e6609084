//! The connections of a reactor: those of initiators, and those to NBD servers.

use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, MediumId, RxBuffer, StreamMachine};
use base::time::{Instant, soonest};
use base::transmit::Transmit;

use super::ReactorShard;
use super::handover::Arrival;
use crate::serve::media::nbd::Due;

impl StreamMachine for ReactorShard {
    fn connected(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        if self.export_connected(now, conn, arrival.portal) {
            return;
        }
        crate::debug!("connection {} from {} to {} is open", conn.0, arrival.peer, arrival.local);
        self.arrivals.insert(conn, Arrival::of(arrival));
        self.shard.connected(now, conn, arrival);
    }

    fn taken_over(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        if self.export_connected(now, conn, arrival.portal) {
            return;
        }
        self.arrivals.insert(conn, Arrival::of(arrival));
        self.shard.taken_over(now, conn, arrival);
    }

    fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.nbd.set_time(now);
        match self.nbd.of_connection(conn) {
            None => self.shard.received(now, conn, bytes),
            Some(export) => {
                export.received(now, bytes);
                self.export_changed(now, &export);
            }
        }
    }

    fn received_eof(&mut self, now: Instant, conn: ConnId) -> bool {
        self.nbd.of_connection(conn).is_none() && self.shard.received_eof(now, conn)
    }

    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        match self.nbd.of_connection(conn) {
            None => self.shard.take_rx_buffer(conn),
            Some(export) => export.take_rx_buffer(),
        }
    }

    fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, rx_buffer: RxBuffer) {
        self.nbd.set_time(now);
        match self.nbd.of_connection(conn) {
            None => self.shard.return_rx_buffer(now, conn, rx_buffer),
            Some(export) => {
                export.return_rx_buffer(now, rx_buffer);
                self.export_changed(now, &export);
            }
        }
    }

    fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
        self.nbd.set_time(now);
        match self.nbd.of_connection(conn) {
            None => self.shard.transmit(now, conn, out),
            Some(export) => export.transmit(now, out),
        }
    }

    fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason) {
        crate::debug!("connection {} is closed: {why:?}", conn.0);
        self.nbd.set_time(now);
        self.arrivals.remove(&conn);
        match self.nbd.disconnected(now, conn) {
            None => self.shard.disconnected(now, conn, why),
            Some(export) => self.export_changed(now, &export),
        }
    }

    fn medium_ready(&mut self, now: Instant, medium: MediumId) {
        self.nbd.set_time(now);
        // The numbers of exports are not those of units.
        match self.nbd.signalled(now, medium.0) {
            None => {
                self.shard.medium_ready(now, medium);
                self.replace_saved_discs(now);
            }
            Some(export) => self.export_changed(now, &export),
        }
    }

    /// Returns the shard's next action. A driver calls this after every input to the state machine, so the
    /// shard's state writes and log entries are passed on here.
    fn poll_action(&mut self) -> Option<Action> {
        self.submit_state_writes();
        self.pass_library_events();
        self.report_binding_changes();
        self.log_notices();
        self.close_removed();
        loop {
            if let Some(action) = self.shard.poll_action() {
                return Some(action);
            }
            match self.nbd.poll_due()? {
                Due::Action(action) => return Some(action),
                Due::Ended(now, export) => self.export_changed(now, &export),
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        soonest([self.shard.poll_timeout(), self.nbd.poll_timeout()])
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.nbd.set_time(now);
        for export in self.nbd.handle_timeout(now) {
            self.export_changed(now, &export);
        }
        if self.shard.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.shard.handle_timeout(now);
            // One that is to be saved can time out.
            self.replace_saved_discs(now);
        }
    }
}
