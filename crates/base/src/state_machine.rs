//! The interface between state machines and drivers.
//!
//! A state machine is a protocol role as a plain value. The driver gives it the time and the events, and asks
//! it what to do next. It owns no socket, clock, thread or source of randomness, so the same code runs in the
//! daemon, in a test and in the simulator.
//!
//! # Order of calls
//!
//! A driver handles all events of one wake-up (bytes of every ready connection, completions of media,
//! timers). Then it drains the state machine: it calls [`StreamMachine::poll_action`] until that returns
//! `None`, and transmits for each [`Action::Transmit`]. Then it sleeps until a socket, a medium or
//! [`StreamMachine::poll_timeout`] wakes it.
//!
//! Before each receive the driver asks for a receive buffer. After the receive it calls
//! [`StreamMachine::return_rx_buffer`] first, for the data in the receive buffer, and then
//! [`StreamMachine::received`] for the bytes that followed. A receive buffer is always returned before
//! [`StreamMachine::disconnected`]. After a [`Action::Close`], an [`Action::Abort`] or the peer's end of
//! stream no more bytes are passed on. The state machine is then still asked to transmit until it has nothing
//! left, except after `Abort`.

use core::net::SocketAddr;

use crate::buffer::Buf;
use crate::time::Instant;
use crate::transmit::Transmit;

/// A connection, as the driver numbers it. A number is reused only after `disconnected` was called for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// A medium, as the owner of the state machine numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediumId(pub u32);

/// A listening address, as the configuration numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortalId(pub u32);

impl PortalId {
    /// No listening address has a number with this bit. It marks connections that the owner of a reactor has
    /// made itself: the limits that protect against peers do not apply to them.
    pub const OWN_BIT: u32 = 1 << 31;

    /// Returns whether the owner of the reactor has made the connection itself.
    pub const fn is_own(self) -> bool {
        self.0 & Self::OWN_BIT != 0
    }
}

/// The properties of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct AcceptInfo {
    /// The portal that accepted it.
    pub portal: PortalId,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Random bytes from the generator of the operating system, for challenges.
    pub entropy: [u8; 32],
}

/// Why a connection ended, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The peer closed its side in order, or the state machine asked for the end.
    Closed,
    /// The peer, or something on the way to it, reset the connection.
    Reset,
    /// The peer's host acknowledged nothing for too long.
    TimedOut,
    /// The system has no way to the peer's host any more.
    Unreachable,
    /// The transport failed in another way.
    Failed,
    /// The peer accepted nothing of the data sent to it for too long.
    Stalled,
    /// The driver shuts down.
    Shutdown,
}

/// A buffer that the state machine gives to the driver, so that the next bytes of the stream are received in
/// place.
#[derive(Debug)]
pub struct RxBuffer {
    /// The buffer. The driver receives into its spare capacity and calls `advance`.
    pub buf: Buf,
    /// How many bytes, at most, belong into the buffer.
    pub len_max: usize,
}

/// An action that a state machine asks its driver for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call `transmit` for this connection, which has something to send. Returned once until `transmit` was
    /// called.
    Transmit(ConnId),
    /// Send the pending data, then close. `transmit` is still called until it adds nothing.
    Close(ConnId),
    /// Close at once; pending data is dropped.
    Abort(ConnId),
}

/// A state machine that communicates over byte streams.
pub trait StreamMachine {
    /// Handles a new connection.
    fn connected(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo);

    /// Handles a connection that another process has served until now. The state machine is told next what it
    /// is; limits for new connections do not apply.
    fn taken_over(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        self.connected(now, conn, arrival);
    }

    /// Handles received bytes. The state machine consumes all of them and bounds by itself what it keeps.
    fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]);

    /// Handles the peer's end of stream; the peer may still receive. Returns whether the connection stays
    /// open until the state machine asks for its end, since there are responses still to send. Otherwise it
    /// is closed once the pending data was sent. Called at most once.
    fn received_eof(&mut self, _now: Instant, _conn: ConnId) -> bool {
        false
    }

    /// Returns the receive buffer that the next bytes belong into, if it is known and worth the effort: for a
    /// large payload whose destination is known. The driver gives the buffer back with
    /// [`Self::return_rx_buffer`] after each receive, filled or not. While the driver has the buffer, it does
    /// not call `received` for that connection: first it returns the buffer, then it passes on the bytes that
    /// follow its `len_max`.
    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer>;

    /// Takes back a receive buffer, with the received data appended to its `buf` and its `len_max` unchanged.
    fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, rx_buffer: RxBuffer);

    /// Appends the data that the connection has to send, until `out` is full or nothing is left.
    fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit);

    /// Handles the end of a connection. Called exactly once for each connected one, also after `Close`.
    fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason);

    /// Handles the notice that a medium has completions to collect.
    fn medium_ready(&mut self, now: Instant, medium: MediumId);

    /// Returns the next action, or `None` when only a deadline is left.
    fn poll_action(&mut self) -> Option<Action>;

    /// Returns the time at which to call `handle_timeout`, if nothing happens before.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Handles a deadline that has passed.
    fn handle_timeout(&mut self, now: Instant);
}

/// A state machine without connections, on a driver for state machines that have them: it uses only frames,
/// media or a clock.
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
