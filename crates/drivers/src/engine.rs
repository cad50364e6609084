//! The interface between a reactor and the kernel, the same for io_uring and epoll.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use base::ether::FrameBatch;
use base::state_machine::RxBuffer;
use base::time::Instant;
use base::transmit::Transmit;

use crate::config::EngineKind;
use crate::ether::RxFrame;
use crate::files::Errno;
use crate::stats::Stats;

/// How many connections one listener delivers at most in one turn, so that a flood of connections does not
/// starve other work.
pub(crate) const ACCEPTS_PER_TURN: usize = 16;

/// How many bytes that follow a receive buffer's share of the stream are received together with it. They are
/// copied once more, so this is enough for the next headers and the small requests behind them, and little
/// compared with a payload large enough for a receive buffer.
pub(crate) const RX_TAIL_BYTES: usize = 16 << 10;

/// Waits for events, and reports them.
pub(crate) trait Poller {
    /// Returns which engine this is.
    fn kind(&self) -> EngineKind;

    /// Starts to report, in each wait, whether a descriptor that is not a connection is readable.
    fn watch(&mut self, watch: u32, what: Rc<dyn AsFd>) -> io::Result<()>;

    /// Stops reporting it. The number is never reused.
    fn unwatch(&mut self, watch: u32);

    /// Returns the descriptor that becomes readable when the engine has something to do, from
    /// [`Self::use_descriptor`] on.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Prepares for an owner that waits for the descriptor.
    fn use_descriptor(&mut self) -> io::Result<()>;

    /// Submits what was started, then waits until an event happens or `timeout` has passed since `now`. It
    /// may return early without a reason.
    fn wait(&mut self, now: Instant, timeout: Option<Duration>) -> io::Result<()>;

    /// Returns whether [`Self::has_unsubmitted`] and [`Self::has_completions`] are supported.
    fn shows_more(&self) -> bool {
        false
    }

    /// Returns whether the next wait has operations to submit.
    fn has_unsubmitted(&self) -> bool {
        false
    }

    /// Returns whether the next wait has events to report. Makes no system call.
    fn has_completions(&self) -> bool {
        false
    }

    /// Returns the next event of the last wait.
    fn next_event(&mut self) -> Option<Event<'_>>;

    /// Returns the counters of the reactor.
    fn stats(&mut self) -> &mut Stats;
}

/// Does the system calls of listeners and connections. The reactor assigns their numbers.
///
/// A connection has at most one receive and one send under way. Each ends with exactly one event, cancelled
/// ones too. [`Self::forget`] may be called only after they have ended.
pub(crate) trait StreamEngine: Poller {
    /// Starts to accept connections.
    fn listen(&mut self, listener: u32, socket: Rc<OwnedFd>) -> io::Result<()>;

    /// Stops accepting connections until [`Self::resume_accepts`]; some may still be reported after this
    /// call.
    fn pause_accepts(&mut self, listener: u32);

    /// Accepts connections again.
    fn resume_accepts(&mut self, listener: u32);

    /// Stops accepting. The number of the listener is never reused.
    fn unlisten(&mut self, listener: u32);

    /// Requests one event when the connect of a socket has finished. The number is never reused.
    fn watch_connect(&mut self, attempt: u32, socket: Rc<OwnedFd>) -> io::Result<()>;

    /// Forgets a socket that is connecting.
    fn unwatch_connect(&mut self, attempt: u32);

    /// Registers a new connection.
    fn open(&mut self, conn: u32, socket: Rc<OwnedFd>) -> io::Result<()>;

    /// Starts a receive. Data goes into the receive buffer first.
    fn receive(&mut self, conn: u32, rx_buffer: Option<RxBuffer>);

    /// Starts to send all of `batch`. A `last` batch has no other one waiting behind it; its event may be as
    /// late as the next other event.
    fn send(&mut self, conn: u32, batch: Transmit, last: bool) -> Sending;

    /// Requests the event of a send that is under way, `last` or not, as soon as possible.
    fn expedite_send_event(&mut self, conn: u32);

    /// Cancels the operations of a connection that are under way; their events follow.
    fn cancel(&mut self, conn: u32);

    /// Cancels the receive of a connection that is under way, if there is one. The connection stays usable:
    /// the event of the receive follows, with the data that was received, or with [`ReceiveEnd::Cancelled`].
    fn cancel_receive(&mut self, conn: u32);

    /// Forgets a connection that has nothing under way.
    fn forget(&mut self, conn: u32);
}

/// Receives and sends the frames of Ethernet ports. The reactor assigns the numbers.
pub(crate) trait FrameEngine: Poller {
    /// Starts to report that a packet socket has frames: with the first of them, or by being readable. With
    /// `told` the report is always that it is readable.
    fn watch_frames(&mut self, watch: u32, socket: Rc<dyn AsFd>, _told: bool) -> io::Result<()> {
        self.watch(watch, socket)
    }

    /// Expects frames of up to `len` bytes on a socket whose frames are delivered with the event.
    fn fit_frames(&mut self, _watch: u32, _len: usize) {}

    /// Stops reporting frames. The number is never reused.
    fn unwatch_frames(&mut self, watch: u32) {
        self.unwatch(watch);
    }

    /// Returns whether [`Self::send_frame`] is supported.
    fn sends_frames(&self) -> bool {
        false
    }

    /// Sends the only frame of a batch with the next wait; `from` is the interface index and the EtherType.
    /// An event reports the result; it may be as late as the next other event. Returns the batch as an error
    /// if the frame cannot be sent this way now.
    fn send_frame(&mut self, _watch: u32, _from: (i32, u16), batch: FrameBatch) -> Result<(), FrameBatch> {
        Err(batch)
    }
}

/// Does all system calls of a reactor.
pub(crate) trait Engine: StreamEngine + FrameEngine {}

impl<T: StreamEngine + FrameEngine> Engine for T {}

/// An event of the engine.
pub(crate) enum Event<'a> {
    /// Nothing that concerns the reactor.
    Nothing,
    /// A connection was accepted.
    Accepted { listener: u32, socket: OwnedFd, peer: SocketAddr },
    /// A connection could not be accepted.
    AcceptFailed { listener: u32 },
    /// The connect of a socket has finished, with success or not; the engine has forgotten the socket.
    ConnectDone { attempt: u32 },
    /// A watched descriptor is readable.
    Readable { watch: u32 },
    /// A frame was received. There may be more.
    Frame { watch: u32, taken: RxFrame<'a> },
    /// Frames cannot be received: the interface went down or vanished. Reported once.
    FramesFailed,
    /// The send of a frame ended, with success or not.
    FrameSent { watch: u32, batch: FrameBatch, result: Result<(), Errno> },
    /// A receive ended. The receive buffer holds the data that was received into it; `bytes` followed in the
    /// stream.
    Received { conn: u32, rx_buffer: Option<RxBuffer>, bytes: &'a [u8], receipt: ReceiveEnd },
    /// A send ended. The batch is empty if the send succeeded.
    Sent { conn: u32, batch: Transmit, result: Result<(), Errno> },
}

/// How a receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveEnd {
    /// There may be more.
    More,
    /// The peer sends no more.
    End,
    /// Nothing was received, because the receive was cancelled with [`StreamEngine::cancel_receive`].
    Cancelled,
    /// The connection is broken, or its operations were cancelled.
    Failed(Errno),
}

/// The immediate result of a send.
pub(crate) enum Sending {
    /// The send is complete.
    Done(Transmit),
    /// The send is under way; an event will report its end.
    Pending,
    /// The connection is broken.
    Failed(Transmit, Errno),
}
