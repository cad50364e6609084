//! Parked connections: the engine does nothing with their sockets, so that another process can go on with
//! them.

use std::io;
use std::os::fd::OwnedFd;

use base::state_machine::ConnId;

use super::Connections;
use crate::engine::StreamEngine;

impl Connections {
    /// Starts no receive any more, and cancels those that are under way.
    pub(crate) fn park(&mut self, engine: &mut dyn StreamEngine) {
        self.parked = true;
        for number in self.table.numbers() {
            if self.table.get_mut(number).is_some_and(|conn| conn.receiving) {
                engine.cancel_receive(number);
            }
        }
    }

    /// Starts receives again.
    pub(crate) fn unpark(&mut self) {
        self.parked = false;
    }

    /// Returns whether no receive and no send is under way, and nothing waits to be sent. Asks the engine for
    /// the ends of sends.
    pub(crate) fn is_at_rest(&mut self, engine: &mut dyn StreamEngine) -> bool {
        let mut is_at_rest = self.send_due.is_empty() && self.send_next_turn.is_empty();
        for number in self.table.numbers() {
            let Some(conn) = self.table.get_mut(number) else { continue };
            if conn.sending {
                engine.expedite_send_event(number);
            }
            is_at_rest &= !conn.receiving && !conn.sending && conn.filling.is_none() && !conn.wants_transmit;
        }
        is_at_rest
    }

    /// Returns another descriptor of the socket of each connection.
    pub(crate) fn sockets(&mut self, conns: &[ConnId]) -> io::Result<Vec<OwnedFd>> {
        let socket = |ConnId(number): &ConnId| match self.table.get_mut(*number) {
            Some(conn) => conn.socket.try_clone(),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        conns.iter().map(socket).collect()
    }
}
