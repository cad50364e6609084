//! The cancellation of the operations of a connection.

use super::ring::{Completion, Tag};
use super::{Conn, UringEngine};
use crate::engine::ReceiveEnd;
use crate::files::Errno;
use crate::slab::index;

impl UringEngine {
    /// Cancels every operation of a connection that is to end.
    pub(super) fn cancel_all(&mut self, number: u32) {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else { return };
        if std::mem::replace(&mut conn.cancelled, true) {
            return;
        }
        if let Some(at) = self.starved.iter().position(|starved| *starved == number) {
            // The kernel has no operation of this connection; a receive that is started now reports the
            // cancellation at once.
            self.starved.swap_remove(at);
            self.start_receive(number);
        }
        if self.conns.get(index(number)).and_then(Option::as_ref).is_some_and(Conn::receives) {
            self.ring.cancel(Tag::Receive(number));
        }
        if self.conns.get(index(number)).and_then(Option::as_ref).is_some_and(|conn| conn.sending.is_some()) {
            self.ring.cancel(Tag::Send(number));
        }
    }

    /// Cancels the receive of a connection that stays. A receive that has data by then ends with the data.
    pub(super) fn cancel_one_receive(&mut self, number: u32) {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else { return };
        if !conn.receives() {
            return;
        }
        conn.receive_cancelled = true;
        if let Some(at) = self.starved.iter().position(|starved| *starved == number) {
            // The kernel has no operation of this connection that could report the cancellation.
            self.starved.swap_remove(at);
            self.completions.push_back(Completion::of_cancelled(Tag::Receive(number)));
            self.hurried = true;
        } else {
            self.ring.cancel(Tag::Receive(number));
        }
    }
}

/// Returns how a receive ended. A cancelled receive that the kernel did not carry out has taken nothing from
/// the socket.
pub(super) fn receive_end(result: Result<usize, Errno>, is_cancelled: bool) -> ReceiveEnd {
    match result {
        Ok(0) => ReceiveEnd::End,
        Ok(_) => ReceiveEnd::More,
        Err(Errno::CANCELED | Errno::NOBUFS | Errno::INTR | Errno::AGAIN) if is_cancelled => {
            ReceiveEnd::Cancelled
        }
        Err(errno) => ReceiveEnd::Failed(errno),
    }
}
