//! The contract between machines and drivers.
//!
//! A machine is a protocol role as a plain value: it is handed the time and what happened, and is asked what to do
//! next. It owns no socket, clock, thread or randomness, so the same object runs in the daemon, in a test and in the
//! simulator.
//!
//! # Order of calls
//!
//! A driver handles everything that one wake-up brought (bytes of every ready connection, completions of media,
//! timers), then drains: [`StreamMachine::poll_action`] until it gives `None`, transmitting for each
//! [`Action::Transmit`]. It then sleeps until a socket, a medium or [`StreamMachine::poll_timeout`] wakes it.
//!
//! Before each receive it asks for a loan. After the receive it calls [`StreamMachine::return_rx_buffer`] first, for what went
//! into the loan, and then [`StreamMachine::received`] for the bytes that followed. A loan that is out always comes
//! back before [`StreamMachine::disconnected`]. After a [`Action::Close`], an [`Action::Abort`] or the peer's end of
//! stream no more bytes are handed over; the machine is asked to transmit until it has nothing left, but after
//! `Abort`.

use core::net::SocketAddr;

use crate::buffer::Buf;
use crate::time::Instant;
use crate::transmit::Transmit;

/// A connection, as the driver numbers it. A number is used again only after `disconnected` was called for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// A medium, as the machine's owner numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediumId(pub u32);

/// A listening address, as the configuration numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortalId(pub u32);

/// What is known of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct AcceptInfo {
    /// The portal that accepted it.
    pub portal: PortalId,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Fresh bytes from the operating system's generator, for challenges.
    pub entropy: [u8; 32],
}

/// Why a connection ended, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The peer closed its side in order, or the machine asked for the end.
    Closed,
    /// The transport failed or was reset.
    Failed,
    /// The peer took nothing of what was sent to it for too long.
    Stalled,
    /// The driver shuts down.
    Shutdown,
}

/// A buffer that the machine lends so that the next bytes of the stream land where they belong.
#[derive(Debug)]
pub struct RxBuffer {
    /// The buffer; the driver receives into its spare room and calls `advance`.
    pub buf: Buf,
    /// How many bytes, at most, belong into it.
    pub len_max: usize,
}

/// What a machine asks its driver to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call `transmit` for this connection: it has something to send. Given once until `transmit` was called.
    Transmit(ConnId),
    /// Send what is pending, then close. `transmit` is still called until it gives nothing.
    Close(ConnId),
    /// Close at once; what is pending is dropped.
    Abort(ConnId),
}

/// A machine that talks over byte streams.
pub trait StreamMachine {
    /// Takes note of a new connection.
    fn connected(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo);

    /// Takes received bytes. The machine consumes them all; it bounds what it keeps by itself.
    fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]);

    /// Takes note that the peer sends no more; it may still receive. Returns whether the connection should stay until
    /// the machine asks for its end, since answers are still to come; otherwise it is closed once what is pending has
    /// been sent. Called at most once.
    fn received_eof(&mut self, _now: Instant, _conn: ConnId) -> bool {
        false
    }

    /// Lends the buffer that the next bytes belong into, if that is known and worth it: a large payload whose place
    /// is settled. The driver gives it back with [`Self::return_rx_buffer`] after each receive, filled or not. While a loan
    /// is out the driver does not call `received` for that connection: first the loan is repaid, then the bytes
    /// that follow its `len_max` are handed over.
    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer>;

    /// Takes a loan back, with what was received appended to its buffer and its `len_max` as it was.
    fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, loan: RxBuffer);

    /// Appends what the connection has to send until `out` is full or nothing is left.
    fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit);

    /// Takes note that a connection is gone. Called exactly once for each connected one, also after `Close`.
    fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason);

    /// Takes note that a medium has completions to collect.
    fn medium_ready(&mut self, now: Instant, medium: MediumId);

    /// Returns the next thing to do, or `None` when only a deadline is left.
    fn poll_action(&mut self) -> Option<Action>;

    /// Returns when `handle_timeout` wants to be called, if nothing happens before.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Takes note that the deadline passed.
    fn handle_timeout(&mut self, now: Instant);
}

/// A machine without connections, on a driver that knows machines with: it has frames, media or a clock only.
pub trait NoStreams {
    /// As [`StreamMachine::medium_ready`].
    fn medium_ready(&mut self, _now: Instant, _medium: MediumId) {}

    /// As [`StreamMachine::poll_timeout`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// As [`StreamMachine::handle_timeout`].
    fn handle_timeout(&mut self, _now: Instant) {}
}

impl<M: NoStreams> StreamMachine for M {
    fn connected(&mut self, _: Instant, _: ConnId, _: &AcceptInfo) {}

    fn received(&mut self, _: Instant, _: ConnId, _: &[u8]) {}

    fn take_rx_buffer(&mut self, _: ConnId) -> Option<RxBuffer> {
        None
    }

    fn return_rx_buffer(&mut self, _: Instant, _: ConnId, _: RxBuffer) {}

    fn transmit(&mut self, _: Instant, _: ConnId, _: &mut Transmit) {}

    fn disconnected(&mut self, _: Instant, _: ConnId, _: DisconnectReason) {}

    fn medium_ready(&mut self, now: Instant, medium: MediumId) {
        NoStreams::medium_ready(self, now, medium);
    }

    fn poll_action(&mut self) -> Option<Action> {
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        NoStreams::poll_timeout(self)
    }

    fn handle_timeout(&mut self, now: Instant) {
        NoStreams::handle_timeout(self, now);
    }
}
