//! What a reactor asks of the kernel, whichever way the kernel is asked.

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

/// How many connections one listener gives at most in one turn, so that a flood of them starves nobody.
pub(crate) const ACCEPTS_PER_TURN: usize = 16;

/// How many bytes that follow a loan are received with it. They are copied once more, so this is enough for the
/// headers to come and the small requests behind them, and little beside a payload worth a loan.
pub(crate) const RX_TAIL_BYTES: usize = 16 << 10;

/// Does the system calls. Connections and listeners have the numbers that the reactor gave them.
///
/// A connection has at most one receive and one send under way. Each ends with exactly one event, cancelled ones
/// too; [`Self::forget`] may be called only once they have ended.
pub(crate) trait Engine {
    /// Returns which engine this is.
    fn kind(&self) -> EngineKind;

    /// Starts to accept connections.
    fn listen(&mut self, listener: u32, socket: Rc<OwnedFd>) -> io::Result<()>;

    /// Accepts no connection until [`Self::resume_accepts`]; some more may come until then.
    fn pause_accepts(&mut self, listener: u32);

    /// Accepts connections again.
    fn resume_accepts(&mut self, listener: u32);

    /// Stops accepting. The listener's number is not used again.
    fn unlisten(&mut self, listener: u32);

    /// Asks to hear, once, that the connecting of a socket is over. The number is not used again.
    fn watch_connect(&mut self, attempt: u32, socket: Rc<OwnedFd>) -> io::Result<()>;

    /// Forgets a socket that connects.
    fn unwatch_connect(&mut self, attempt: u32);

    /// Reports from now on, in each wait, whether something other than a connection is readable.
    fn watch(&mut self, watch: u32, what: Rc<dyn AsFd>) -> io::Result<()>;

    /// Reports it no more. The number is not used again.
    fn unwatch(&mut self, watch: u32);

    /// Reports from now on that a packet socket has frames: with the first of them, or, always if it is to be `told`, by being
    /// readable.
    fn watch_frames(&mut self, watch: u32, socket: Rc<dyn AsFd>, _told: bool) -> io::Result<()> {
        self.watch(watch, socket)
    }

    /// Expects frames of up to `len` bytes, for a socket that is not just told of.
    fn fit_frames(&mut self, _watch: u32, _len: usize) {}

    /// Reports frames no more. The number is not used again.
    fn unwatch_frames(&mut self, watch: u32) {
        self.unwatch(watch);
    }

    /// Returns whether [`Self::send_frame`] does anything.
    fn sends_frames(&self) -> bool {
        false
    }

    /// Sends the only frame of a batch with the next wait, from an interface's number and with an EtherType. An event tells
    /// what became of it, as late as with the next other event. The batch comes back if that cannot be done now.
    fn send_frame(&mut self, _watch: u32, _from: (i32, u16), batch: FrameBatch) -> Result<(), FrameBatch> {
        Err(batch)
    }

    /// Takes note of a new connection.
    fn open(&mut self, conn: u32, socket: Rc<OwnedFd>) -> io::Result<()>;

    /// Starts a receive, into the loan first.
    fn receive(&mut self, conn: u32, loan: Option<RxBuffer>);

    /// Starts to send all of `batch`. The event of a `last` one, behind which nothing waits yet, may come as late as
    /// with the next other event.
    fn send(&mut self, conn: u32, batch: Transmit, last: bool) -> Sending;

    /// Wants the event of a send that is under way, `last` or not, as soon as there is one.
    fn expedite_send_event(&mut self, conn: u32);

    /// Ends what is under way for a connection; the events follow.
    fn cancel(&mut self, conn: u32);

    /// Forgets a connection that has nothing under way.
    fn forget(&mut self, conn: u32);

    /// Returns what becomes readable when the engine has something to do, from [`Self::use_descriptor`] on.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Takes note that somebody waits for the descriptor.
    fn use_descriptor(&mut self) -> io::Result<()>;

    /// Submits what was started and waits until something happened, or from `now` on for `timeout`. It may end earlier for no reason.
    fn wait(&mut self, now: Instant, timeout: Option<Duration>) -> io::Result<()>;

    /// Returns whether [`Self::has_unsubmitted`] and [`Self::has_completions`] can tell.
    fn shows_more(&self) -> bool {
        false
    }

    /// Returns whether the next wait has something to submit.
    fn has_unsubmitted(&self) -> bool {
        false
    }

    /// Returns whether the next wait has something to tell of. This is no system call.
    fn has_completions(&self) -> bool {
        false
    }

    /// Returns the next of the events that the last wait brought.
    fn next_event(&mut self) -> Option<Event<'_>>;

    /// The counters of the reactor.
    fn stats(&mut self) -> &mut Stats;
}

/// What happened.
pub(crate) enum Event<'a> {
    /// Nothing that concerns the reactor.
    Nothing,
    /// A connection came.
    Accepted { listener: u32, socket: OwnedFd, peer: SocketAddr },
    /// A connection could not be accepted.
    AcceptFailed { listener: u32 },
    /// The connecting of a socket is over, well or not; the engine has forgotten it.
    ConnectDone { attempt: u32 },
    /// What is watched is readable.
    Readable { watch: u32 },
    /// A frame came. There may be more.
    Frame { watch: u32, taken: RxFrame<'a> },
    /// Frames cannot be received: the interface went down or vanished. Told once.
    FramesFailed,
    /// A frame was sent, or was not.
    FrameSent { watch: u32, batch: FrameBatch, result: Result<(), Errno> },
    /// A receive ended. The loan holds what was received into it; `bytes` followed.
    Received { conn: u32, loan: Option<RxBuffer>, bytes: &'a [u8], receipt: ReceiveEnd },
    /// A send ended, with the batch empty if it ended well.
    Sent { conn: u32, batch: Transmit, result: Result<(), Errno> },
}

/// How a receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveEnd {
    /// There may be more.
    More,
    /// The peer sends no more.
    End,
    /// The connection is broken, or the receive was cancelled.
    Failed,
}

/// What became of a send at once.
pub(crate) enum Sending {
    /// It is done.
    Done(Transmit),
    /// It is under way, and an event will tell.
    Pending,
    /// The connection is broken.
    Failed(Transmit),
}
