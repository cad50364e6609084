//! Parked connections: the engine does nothing with their sockets, so that another process can go on with
//! them.

use std::io;
use std::os::fd::OwnedFd;

use base::state_machine::ConnId;
use base::time::{Duration, Instant};

use super::{Connections, State};
use crate::engine::StreamEngine;

/// How long the peer of a connection that is closing may take to accept the last data while the reactor
/// parks. The kernel accepts it at once, unless the peer has not read much that was sent before.
const FLUSH_MAX: Duration = Duration::from_millis(20);

impl Connections {
    /// Starts no receive any more, and cancels those that are under way. Connections that are closing soon
    /// end, whether their peers read the last data or not.
    pub(crate) fn park(&mut self, engine: &mut dyn StreamEngine, now: Instant) {
        self.parked = true;
        let last = now.after(FLUSH_MAX);
        for number in self.table.numbers() {
            let Some(conn) = self.table.get_mut(number) else { continue };
            if conn.receiving {
                engine.cancel_receive(number);
            }
            if let Some(later) = conn.deadline.filter(|at| conn.state == State::Flushing && *at > last) {
                conn.deadline = Some(last);
                self.deadlines.remove(&(later, number));
                self.deadlines.insert((last, number));
            }
        }
    }

    /// Starts receives again.
    pub(crate) fn unpark(&mut self) {
        self.parked = false;
    }

    /// Returns how long a connection that is closing may take to send what is pending.
    pub(super) fn flush_max(&self) -> Duration {
        if self.parked { self.linger.min(FLUSH_MAX) } else { self.linger }
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
