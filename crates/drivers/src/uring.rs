//! The io_uring engine, for kernels that allow io_uring: one system call submits everything that a drain
//! started, and waits.
//!
//! Every operation that the kernel works on owns the memory that the kernel reads or writes: the operation
//! stays in a table of the engine until its completion was received. When the engine is dropped it cancels
//! all operations and waits for their ends. Memory of operations that do not end in time is leaked, since the
//! kernel may still use it.

#![allow(unsafe_code, reason = "promises about memory that the kernel is pointed to")]

mod cancel;
mod file_ops;
mod frames;
mod listening;
mod no_cqe_send;
mod polls;
mod provided;
mod ring;
mod sqe;
mod timer;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::{Buf, Pool};
use base::ether::FrameBatch;
use base::state_machine::RxBuffer;
use base::time::Instant;
use base::transmit::Transmit;
use rustix::event::{EventfdFlags, eventfd};

use crate::config::EngineKind;
use crate::engine::{Event, FrameEngine, Poller, RX_TAIL_BYTES, Sending, StreamEngine};
use crate::files::{Errno, Files};
use crate::slab::{Slab, index, put_at};
use crate::stats::Stats;
use crate::waker::Waker;
use file_ops::FileWork;
use listening::Listening;
use ring::{Completion, Ring, Tag};
use sqe::MsgHdr;

/// How many messages are kept for the next sends and for receives into receive buffers.
const MESSAGES_KEPT: usize = 64;

/// How long a dropped engine waits until the kernel no longer uses its memory.
const LETTING_GO: Duration = Duration::from_secs(10);

pub(crate) struct UringEngine {
    ring: Ring,
    listeners: Vec<Option<Listening>>,
    conns: Vec<Option<Conn>>,
    dials: BTreeMap<u32, Rc<OwnedFd>>,
    watches: polls::Polls,
    frames: frames::Frames,
    timer: timer::Timer,
    works: Slab<FileWork>,
    files: Files,
    completions: VecDeque<Completion>,
    /// Listeners that may have connections waiting.
    accepting: VecDeque<u32>,
    /// Connections whose receive found no buffer.
    starved: Vec<u32>,
    /// The provided buffer that the last event exposes.
    shown: Option<u16>,
    /// The buffer for the bytes after a receive buffer, which the last event exposes.
    shown_behind: Option<Buf>,
    #[allow(clippy::vec_box, reason = "a message must stay where the kernel was told that it is")]
    messages: Vec<Box<MsgHdr>>,
    /// Listeners, watched descriptors and connecting sockets, which are closed once the kernel has taken the
    /// cancellations submitted for them.
    retired: Vec<Rc<dyn AsFd>>,
    /// The number of waits so far.
    round: u64,
    /// The connections with a send in this round that skips the completion on success.
    silent: Vec<u32>,
    /// The reactor needs the event of a send without a completion as soon as possible.
    hurried: bool,
    waker: Arc<Waker>,
    waker_armed: bool,
    /// An eventfd that becomes readable when an operation completes, once [`Engine::use_descriptor`] was
    /// called.
    bell: OwnedFd,
    bell_rings: bool,
    pool: Pool,
    stats: Stats,
}

struct Conn {
    socket: Rc<OwnedFd>,
    receiving: Receiving,
    sending: Option<Outgoing>,
    /// The round in which the last send was started.
    sent_in: u64,
    /// The socket accepted the last send at once, and is expected to accept the next one likewise.
    sends_promptly: bool,
    /// The send under way skips its completion if it succeeds.
    silent: bool,
    /// The last receive emptied the socket: the next one waits before it tries.
    emptied: bool,
    cancelled: bool,
    /// The receive under way was cancelled, and the connection stays.
    receive_cancelled: bool,
}

enum Receiving {
    Nothing,
    /// Into a buffer that the kernel picks.
    Provided,
    /// Into a receive buffer, and the small buffer for the bytes after it.
    Lent {
        rx_buffer: RxBuffer,
        behind: Buf,
        message: Box<MsgHdr>,
    },
}

struct Outgoing {
    batch: Transmit,
    message: Box<MsgHdr>,
}

impl UringEngine {
    /// # Errors
    /// Why this kernel, or its policy, does not allow io_uring.
    pub(crate) fn new(waker: Arc<Waker>, pool: Pool, files: Files) -> Result<Self, String> {
        let ring = Ring::new()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| format!("eventfd: {errno}"))?;
        files.use_ring();
        Ok(Self {
            ring,
            listeners: Vec::new(),
            conns: Vec::new(),
            dials: BTreeMap::new(),
            watches: polls::Polls::default(),
            frames: frames::Frames::default(),
            timer: timer::Timer::default(),
            works: Slab::new(),
            files,
            completions: VecDeque::new(),
            accepting: VecDeque::new(),
            starved: Vec::new(),
            shown: None,
            shown_behind: None,
            messages: Vec::new(),
            retired: Vec::new(),
            round: 0,
            silent: Vec::new(),
            hurried: false,
            waker,
            waker_armed: false,
            bell,
            bell_rings: false,
            pool,
            stats: Stats::default(),
        })
    }

    fn start_receive(&mut self, number: u32) {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else { return };
        let socket = conn.socket.as_raw_fd();
        let entry = match &mut conn.receiving {
            Receiving::Nothing => return,
            Receiving::Provided => sqe::receive_entry(socket, conn.emptied),
            Receiving::Lent { rx_buffer, behind, message } => {
                message.receive_into_entry(socket, rx_buffer, behind, conn.emptied)
            }
        };
        // SAFETY: receive buffer, small buffer and message are in `receiving` until `received` takes the
        // completion; provided buffers belong to the ring; the socket is open until `forget`, which is called
        // after the completion.
        unsafe { self.ring.push(entry, Tag::Receive(number)) };
    }

    fn received(&mut self, number: u32, completion: Completion) -> Event<'_> {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else {
            return Event::Nothing;
        };
        let is_cancelled = conn.cancelled || conn.receive_cancelled;
        if completion.result == Err(Errno::NOBUFS) && !is_cancelled {
            self.starved.push(number);
            return Event::Nothing;
        }
        if let Err(Errno::INTR | Errno::AGAIN) = completion.result
            && !is_cancelled
        {
            self.start_receive(number);
            return Event::Nothing;
        }
        conn.emptied = !completion.more_in_socket;
        let receipt = cancel::receive_end(completion.result, conn.receive_cancelled && !conn.cancelled);
        let count = completion.result.unwrap_or(0);
        if completion.result.is_ok() {
            Stats::bump(&mut self.stats.receives, 1);
            Stats::bump(&mut self.stats.bytes_in, count);
        }
        match std::mem::replace(&mut conn.receiving, Receiving::Nothing) {
            Receiving::Nothing => Event::Nothing,
            Receiving::Provided => {
                self.shown = completion.buffer;
                let bytes = match (completion.buffer, self.ring.buffers()) {
                    (Some(buffer), Some(buffers)) => buffers.filled(buffer, count),
                    _ => &[],
                };
                Event::Received { conn: number, rx_buffer: None, bytes, receipt }
            }
            Receiving::Lent { mut rx_buffer, mut behind, message } => {
                let room = (rx_buffer.buf.capacity() - rx_buffer.buf.len()).min(rx_buffer.len_max);
                let into_loan = count.min(room);
                rx_buffer.buf.advance(into_loan);
                behind.advance(count - into_loan);
                self.keep(message);
                let bytes = self.shown_behind.insert(behind).filled();
                Event::Received { conn: number, rx_buffer: Some(rx_buffer), bytes, receipt }
            }
        }
    }

    fn start_send(&mut self, number: u32, last: bool) {
        let can_be_silent = self.ring.can_skip_cqes();
        if let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut)
            && let Some(Outgoing { batch, message }) = &mut conn.sending
        {
            let silently = can_be_silent && last && conn.sends_promptly;
            conn.sent_in = self.round;
            conn.silent = silently;
            if silently {
                self.silent.push(number);
            }
            let entry = message.send_entry(conn.socket.as_raw_fd(), batch, silently);
            // SAFETY: batch and message are in `sending` until `sent` takes the completion, or the substitute
            // for one; the socket is open until `forget`, which is called after that.
            unsafe { self.ring.push(entry, Tag::Send(number)) };
        }
    }

    /// Concludes the submitted sends that skip the completion on success: those without a completion have
    /// succeeded.
    fn conclude_silent_sends(&mut self) {
        for completion in &self.completions {
            if let Tag::Send(number) = completion.tag
                && let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut)
            {
                conn.silent = false;
            }
        }
        for number in self.silent.drain(..) {
            if let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut)
                && std::mem::take(&mut conn.silent)
                && let Some(Outgoing { message, .. }) = &conn.sending
            {
                self.ring.completed_without_cqe(1);
                self.completions.push_back(Completion::of_silent(Tag::Send(number), message.len()));
            }
        }
    }

    fn sent(&mut self, number: u32, completion: Completion) -> Event<'static> {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else {
            return Event::Nothing;
        };
        conn.silent = false;
        let Some(outgoing) = &mut conn.sending else { return Event::Nothing };
        let whole = completion.result == Ok(outgoing.message.len());
        conn.sends_promptly = whole && conn.sent_in + 1 == self.round;
        let result = match completion.result {
            Ok(count) => {
                outgoing.batch.sent(count, &self.pool);
                Stats::bump(&mut self.stats.bytes_out, count);
                if !outgoing.batch.is_empty() && !conn.cancelled {
                    self.start_send(number, false);
                    return Event::Nothing;
                }
                Ok(())
            }
            Err(Errno::INTR | Errno::AGAIN) if !conn.cancelled => {
                self.start_send(number, false);
                return Event::Nothing;
            }
            Err(errno) => Err(errno),
        };
        let Some(Outgoing { batch, message }) = conn.sending.take() else { return Event::Nothing };
        self.keep(message);
        if result.is_ok() {
            Stats::bump(&mut self.stats.sends, 1);
        }
        Event::Sent { conn: number, batch, result }
    }

    /// Returns the buffers that the last event exposed.
    fn hide(&mut self) {
        if let Some(buffer) = self.shown.take()
            && let Some(buffers) = self.ring.buffers()
        {
            buffers.give_back(buffer);
        }
        if let Some(behind) = self.shown_behind.take() {
            self.pool.recycle_buf(behind);
        }
    }

    fn keep(&mut self, message: Box<MsgHdr>) {
        if self.messages.len() < MESSAGES_KEPT {
            self.messages.push(message);
        }
    }

    fn take_completion(&mut self, completion: Completion) -> Event<'_> {
        match completion.tag {
            Tag::Receive(number) => self.received(number, completion),
            Tag::Send(number) => self.sent(number, completion),
            Tag::File(number) => {
                self.finish_work(number, completion.result);
                Event::Nothing
            }
            Tag::Listener(number) => {
                self.listener_ready(number);
                Event::Nothing
            }
            Tag::Dial(attempt) => match self.dials.remove(&attempt) {
                Some(_) => Event::ConnectDone { attempt },
                None => Event::Nothing,
            },
            Tag::Watch(watch) => self.watches.reported(watch),
            Tag::Frame(watch) => self.frames.came(watch, completion.result),
            Tag::FrameSent(watch) => self.frames.gone(watch, completion.result),
            Tag::Waker => {
                self.waker_armed = false;
                self.waker.reset();
                Event::Nothing
            }
            Tag::Timer => {
                self.timer.went_off(completion.result);
                Event::Nothing
            }
            Tag::TimerChange | Tag::Cancel => Event::Nothing,
        }
    }
}

impl Poller for UringEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Uring
    }

    fn watch(&mut self, watch: u32, what: Rc<dyn AsFd>) -> io::Result<()> {
        self.watches.add(watch, what);
        Ok(())
    }

    fn unwatch(&mut self, watch: u32) {
        self.retired.extend(self.watches.remove(&mut self.ring, watch));
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn use_descriptor(&mut self) -> io::Result<()> {
        if !self.bell_rings {
            self.ring.ring_bell(&self.bell)?;
            self.bell_rings = true;
        }
        Ok(())
    }

    fn wait(&mut self, now: Instant, timeout: Option<Duration>) -> io::Result<()> {
        self.hide();
        if self.bell_rings {
            // It fails when there is nothing to read, which is the desired state.
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8][..]);
        }
        for number in std::mem::take(&mut self.starved) {
            self.start_receive(number);
        }
        self.watches.arm(&mut self.ring);
        self.frames.arm(&mut self.ring);
        if !self.waker_armed {
            self.waker_armed = true;
            // SAFETY: a poll refers to no memory; the waker is open as long as the engine exists.
            unsafe { self.ring.push(sqe::poll_entry(self.waker.as_raw_fd()), Tag::Waker) };
        }
        self.start_file_work();
        let hurried = std::mem::take(&mut self.hurried) || !self.accepting.is_empty();
        let timeout = if hurried { Some(Duration::ZERO) } else { timeout };
        let timeout = self.timer.set(&mut self.ring, now, timeout);
        let all_taken = self.ring.submit_and_wait(timeout)?;
        self.ring.completed(&mut self.completions)?;
        if all_taken {
            self.round += 1;
            self.retired.clear();
            self.conclude_silent_sends();
            self.timer.conclude(&mut self.ring, &self.completions);
            self.frames.conclude(&mut self.ring, &mut self.completions);
        }
        Stats::bump(&mut self.stats.enters, self.ring.take_enters());
        Ok(())
    }

    fn shows_more(&self) -> bool {
        true
    }

    fn has_unsubmitted(&self) -> bool {
        let watched = self.waker_armed && self.watches.are_armed() && self.frames.are_armed();
        let waits = self.hurried || !self.accepting.is_empty() || !self.starved.is_empty();
        let concludes = !self.silent.is_empty() || self.frames.silent().next().is_some();
        !watched || waits || concludes || self.files.has_work() || self.ring.has_unsubmitted()
    }

    fn has_completions(&self) -> bool {
        self.ring.has_completions()
    }

    fn next_event(&mut self) -> Option<Event<'_>> {
        self.hide();
        if let Some(completion) = self.completions.pop_front() {
            return Some(self.take_completion(completion));
        }
        let number = self.accepting.pop_front()?;
        Some(self.accept(number))
    }

    fn stats(&mut self) -> &mut Stats {
        &mut self.stats
    }
}

impl StreamEngine for UringEngine {
    fn listen(&mut self, listener: u32, socket: Rc<OwnedFd>) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        put_at(&mut self.listeners, listener, Listening::new(socket));
        self.arm_listener(listener);
        Ok(())
    }

    fn pause_accepts(&mut self, listener: u32) {
        if let Some(listening) = self.listeners.get_mut(index(listener)).and_then(Option::as_mut) {
            listening.paused = true;
        }
    }

    fn resume_accepts(&mut self, listener: u32) {
        if let Some(listening) = self.listeners.get_mut(index(listener)).and_then(Option::as_mut) {
            listening.paused = false;
            self.arm_listener(listener);
        }
    }

    fn unlisten(&mut self, listener: u32) {
        if let Some(listening) = self.listeners.get_mut(index(listener)).and_then(Option::take)
            && listening.armed
        {
            self.ring.cancel(Tag::Listener(listener));
            self.retired.push(listening.socket);
        }
    }

    fn watch_connect(&mut self, attempt: u32, socket: Rc<OwnedFd>) -> io::Result<()> {
        let entry = sqe::poll_out_entry(socket.as_raw_fd());
        self.dials.insert(attempt, socket);
        // SAFETY: a poll refers to no memory; the socket is open until its completion, or until `retired` is
        // cleared after the next wait.
        unsafe { self.ring.push(entry, Tag::Dial(attempt)) };
        Ok(())
    }

    fn unwatch_connect(&mut self, attempt: u32) {
        if let Some(socket) = self.dials.remove(&attempt) {
            self.ring.cancel(Tag::Dial(attempt));
            self.retired.push(socket);
        }
    }

    fn open(&mut self, conn: u32, socket: Rc<OwnedFd>) -> io::Result<()> {
        let fresh = Conn {
            socket,
            receiving: Receiving::Nothing,
            sending: None,
            sent_in: 0,
            sends_promptly: true,
            silent: false,
            emptied: false,
            cancelled: false,
            receive_cancelled: false,
        };
        put_at(&mut self.conns, conn, fresh);
        Ok(())
    }

    fn receive(&mut self, number: u32, rx_buffer: Option<RxBuffer>) {
        let receiving = match rx_buffer {
            None => Receiving::Provided,
            Some(rx_buffer) => {
                let behind = self.pool.take(RX_TAIL_BYTES);
                Receiving::Lent { rx_buffer, behind, message: self.messages.pop().unwrap_or_default() }
            }
        };
        if let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) {
            conn.receiving = receiving;
            conn.receive_cancelled = false;
            self.start_receive(number);
        }
    }

    fn send(&mut self, number: u32, batch: Transmit, last: bool) -> Sending {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else {
            return Sending::Failed(batch, Errno::BADF);
        };
        conn.sending = Some(Outgoing { batch, message: self.messages.pop().unwrap_or_default() });
        self.start_send(number, last);
        Sending::Pending
    }

    fn expedite_send_event(&mut self, number: u32) {
        if self.conns.get(index(number)).and_then(Option::as_ref).is_some_and(|conn| conn.silent) {
            self.hurried = true;
        }
    }

    fn cancel(&mut self, number: u32) {
        self.cancel_all(number);
    }

    fn cancel_receive(&mut self, number: u32) {
        self.cancel_one_receive(number);
    }

    fn forget(&mut self, number: u32) {
        if let Some(place) = self.conns.get_mut(index(number)) {
            *place = None;
        }
    }
}

impl FrameEngine for UringEngine {
    fn watch_frames(&mut self, watch: u32, socket: Rc<dyn AsFd>, told: bool) -> io::Result<()> {
        if told {
            self.watches.add(watch, socket.clone());
        }
        self.frames.add(watch, socket);
        Ok(())
    }

    fn fit_frames(&mut self, watch: u32, len: usize) {
        self.frames.fit(&mut self.ring, watch, len);
    }

    fn unwatch_frames(&mut self, watch: u32) {
        self.unwatch(watch);
        self.frames.remove(&mut self.ring, watch);
    }

    fn sends_frames(&self) -> bool {
        self.ring.can_skip_cqes()
    }

    fn send_frame(&mut self, watch: u32, from: (i32, u16), batch: FrameBatch) -> Result<(), FrameBatch> {
        self.frames.send(&mut self.ring, watch, from, batch)
    }
}

impl Conn {
    fn receives(&self) -> bool {
        !matches!(self.receiving, Receiving::Nothing)
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        let is_silent = |(number, conn): (u32, &Option<Conn>)| {
            conn.as_ref().is_some_and(|conn| conn.silent).then_some(Tag::Send(number))
        };
        let conns = (0..).zip(&self.conns).filter_map(is_silent);
        let silent: Vec<_> = conns.chain(self.frames.silent()).chain(self.timer.silent()).collect();
        if !self.ring.let_go(&silent, LETTING_GO) {
            // The kernel still works on some operations: leak the memory that it may write to.
            std::mem::forget(std::mem::take(&mut self.conns));
            std::mem::forget(std::mem::replace(&mut self.works, Slab::new()));
            self.frames.leak();
        }
    }
}
