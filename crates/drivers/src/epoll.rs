//! The epoll engine, which works on every kernel: edge-triggered; reads and writes are tried before they are
//! waited for.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Pool;
use base::state_machine::RxBuffer;
use base::time::Instant;
use base::transmit::Transmit;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, sendmsg};
use smallvec::SmallVec;

use crate::config::EngineKind;
use crate::engine::{
    ACCEPTS_PER_TURN, Event, FrameEngine, Poller, RX_TAIL_BYTES, ReceiveEnd, Sending, StreamEngine,
};
use crate::files::Errno;
use crate::listener::{self, Accepted};
use crate::slab::{index, put_at};
use crate::stats::Stats;
use crate::waker::Waker;

/// One receive takes at most this much: large enough to empty a default socket buffer in one or two calls.
const SCRATCH_BYTES: usize = 256 << 10;

/// How many ready descriptors one call reports. Further ones are reported in the next turn.
const EVENTS_MAX: usize = 256;

/// The most pieces that one `sendmsg` takes (`UIO_MAXIOV`). Their array is on the stack, 16 KiB of it, so
/// that no send allocates.
const PIECES_MAX: usize = 1024;

const WAKER: u64 = u64::MAX;
const LISTENER: u64 = 1 << 32;
const DIAL: u64 = 1 << 33;
const WATCH: u64 = 1 << 34;

pub(crate) struct EpollEngine {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    listeners: Vec<Option<Listening>>,
    conns: Vec<Option<Conn>>,
    dials: BTreeMap<u32, Rc<OwnedFd>>,
    watches: BTreeMap<u32, Rc<dyn AsFd>>,
    ready: VecDeque<Ready>,
    scratch: Box<[u8]>,
    pool: Pool,
    stats: Stats,
    _waker: Arc<Waker>,
}

struct Listening {
    socket: Rc<OwnedFd>,
    /// How many more connections the listener may deliver in this turn.
    budget: usize,
}

struct Conn {
    socket: Rc<OwnedFd>,
    /// A receive was requested.
    armed: bool,
    rx_buffer: Option<RxBuffer>,
    sending: Option<Transmit>,
    /// The kernel may have data to receive, or free space to send.
    readable: bool,
    writable: bool,
    /// The peer has closed: an end of stream can be read even after a short read.
    ended: bool,
    cancelled: bool,
    /// The receive is to end without data.
    receive_cancelled: bool,
    /// The connection is listed in `ready` to receive, or to send.
    receive_listed: bool,
    send_listed: bool,
}

#[derive(Clone, Copy)]
enum Ready {
    Accept(u32),
    Dialled(u32),
    Readable(u32),
    Receive(u32),
    Send(u32),
}

impl EpollEngine {
    pub(crate) fn new(waker: Arc<Waker>, pool: Pool) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Edge-triggered, so that the eventfd never has to be read: each wake-up adds to its counter, which
        // is an edge.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, waker.as_fd(), epoll::EventData::new_u64(WAKER), flags)?;
        Ok(Self {
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            listeners: Vec::new(),
            conns: Vec::new(),
            dials: BTreeMap::new(),
            watches: BTreeMap::new(),
            ready: VecDeque::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            pool,
            stats: Stats::default(),
            _waker: waker,
        })
    }

    fn conn(&mut self, conn: u32) -> Option<&mut Conn> {
        self.conns.get_mut(index(conn))?.as_mut()
    }

    /// Records what the kernel reported for a connection.
    fn note(&mut self, number: u32, flags: epoll::EventFlags) {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else { return };
        let broken = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        conn.ended |= flags.intersects(broken | epoll::EventFlags::RDHUP);
        conn.readable |= flags.intersects(broken | epoll::EventFlags::RDHUP | epoll::EventFlags::IN);
        conn.writable |= flags.intersects(broken | epoll::EventFlags::OUT);
        conn.list(number, &mut self.ready);
    }

    fn accept(&mut self, number: u32) -> Event<'static> {
        let Some(listening) = self.listeners.get_mut(index(number)).and_then(Option::as_mut) else {
            return Event::Nothing;
        };
        let accepted = listener::accept(&listening.socket);
        if let Accepted::Connection(..) | Accepted::Void = accepted {
            listening.budget -= 1;
            if listening.budget > 0 {
                self.ready.push_back(Ready::Accept(number));
            }
        }
        match accepted {
            Accepted::Connection(socket, peer) => Event::Accepted { listener: number, socket, peer },
            Accepted::Void | Accepted::Nobody => Event::Nothing,
            Accepted::Failed => Event::AcceptFailed { listener: number },
        }
    }

    fn receive_now(&mut self, number: u32) -> Event<'_> {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else {
            return Event::Nothing;
        };
        conn.receive_listed = false;
        if !conn.armed {
            return Event::Nothing;
        }
        let mut rx_buffer = conn.rx_buffer.take();
        if std::mem::take(&mut conn.receive_cancelled) && !conn.cancelled {
            conn.armed = false;
            return Event::Received { conn: number, rx_buffer, bytes: &[], receipt: ReceiveEnd::Cancelled };
        }
        let result = if conn.cancelled {
            Err(Errno::CANCELED)
        } else {
            receive(&conn.socket, rx_buffer.as_mut(), &mut self.scratch)
        };
        if let Err(errno @ (Errno::AGAIN | Errno::INTR)) = result {
            conn.rx_buffer = rx_buffer;
            conn.readable = errno == Errno::INTR;
            conn.list(number, &mut self.ready);
            return Event::Nothing;
        }
        conn.armed = false;
        let received = match result {
            Ok(received) => received,
            Err(errno) => {
                let receipt = ReceiveEnd::Failed(errno);
                return Event::Received { conn: number, rx_buffer, bytes: &[], receipt };
            }
        };
        conn.readable = received.filled_all || conn.ended;
        let count = received.into_loan + received.behind;
        Stats::bump(&mut self.stats.receives, 1);
        Stats::bump(&mut self.stats.bytes_in, count);
        let bytes = self.scratch.get(..received.behind).unwrap_or_default();
        let receipt = if count == 0 { ReceiveEnd::End } else { ReceiveEnd::More };
        Event::Received { conn: number, rx_buffer, bytes, receipt }
    }

    fn send_now(&mut self, number: u32) -> Event<'static> {
        let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) else {
            return Event::Nothing;
        };
        conn.send_listed = false;
        let Some(batch) = conn.sending.take() else { return Event::Nothing };
        if conn.cancelled {
            return Event::Sent { conn: number, batch, result: Err(Errno::CANCELED) };
        }
        match self.send(number, batch, true) {
            Sending::Done(batch) => Event::Sent { conn: number, batch, result: Ok(()) },
            Sending::Failed(batch, errno) => Event::Sent { conn: number, batch, result: Err(errno) },
            Sending::Pending => Event::Nothing,
        }
    }

    fn listen_for(&self, number: u32, flags: epoll::EventFlags) {
        if let Some(listening) = self.listeners.get(index(number)).and_then(Option::as_ref) {
            let data = epoll::EventData::new_u64(LISTENER | u64::from(number));
            // It fails only for a descriptor that is not in the set; this one is.
            let _ = epoll::modify(&self.epoll, &listening.socket, data, flags);
        }
    }
}

impl Poller for EpollEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Epoll
    }

    fn watch(&mut self, watch: u32, what: Rc<dyn AsFd>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(WATCH | u64::from(watch));
        epoll::add(&self.epoll, &*what, data, epoll::EventFlags::IN)?;
        self.watches.insert(watch, what);
        Ok(())
    }

    fn unwatch(&mut self, watch: u32) {
        if let Some(what) = self.watches.remove(&watch) {
            // It fails only for a descriptor that is not in the set; this one is.
            let _ = epoll::delete(&self.epoll, &*what);
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn use_descriptor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Instant, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.ready.is_empty() { timeout } else { Some(Duration::ZERO) };
        let timeout = timeout.map(timespec);
        Stats::bump(&mut self.stats.enters, 1);
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == WAKER {
                continue;
            }
            let Ok(number) = u32::try_from(data & (LISTENER - 1)) else { continue };
            if data & WATCH != 0 {
                self.ready.push_back(Ready::Readable(number));
            } else if data & DIAL != 0 {
                self.ready.push_back(Ready::Dialled(number));
            } else if data & LISTENER == 0 {
                self.note(number, flags);
            } else if let Some(listening) = self.listeners.get_mut(index(number)).and_then(Option::as_mut) {
                listening.budget = ACCEPTS_PER_TURN;
                self.ready.push_back(Ready::Accept(number));
            }
        }
        self.events = events;
        Ok(())
    }

    fn next_event(&mut self) -> Option<Event<'_>> {
        Some(match self.ready.pop_front()? {
            Ready::Accept(number) => self.accept(number),
            Ready::Dialled(attempt) => {
                self.unwatch_connect(attempt);
                Event::ConnectDone { attempt }
            }
            Ready::Readable(watch) => Event::Readable { watch },
            Ready::Receive(number) => self.receive_now(number),
            Ready::Send(number) => self.send_now(number),
        })
    }

    fn stats(&mut self) -> &mut Stats {
        &mut self.stats
    }
}

impl StreamEngine for EpollEngine {
    fn listen(&mut self, listener: u32, socket: Rc<OwnedFd>) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let data = epoll::EventData::new_u64(LISTENER | u64::from(listener));
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        put_at(&mut self.listeners, listener, Listening { socket, budget: 0 });
        Ok(())
    }

    fn pause_accepts(&mut self, listener: u32) {
        self.listen_for(listener, epoll::EventFlags::empty());
    }

    fn resume_accepts(&mut self, listener: u32) {
        self.listen_for(listener, epoll::EventFlags::IN);
    }

    fn unlisten(&mut self, listener: u32) {
        if let Some(listening) = self.listeners.get_mut(index(listener)).and_then(Option::take) {
            // It fails only for a descriptor that is not in the set; this one is.
            let _ = epoll::delete(&self.epoll, &listening.socket);
        }
    }

    fn watch_connect(&mut self, attempt: u32, socket: Rc<OwnedFd>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(DIAL | u64::from(attempt));
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT)?;
        self.dials.insert(attempt, socket);
        Ok(())
    }

    fn unwatch_connect(&mut self, attempt: u32) {
        if let Some(socket) = self.dials.remove(&attempt) {
            // It fails only for a descriptor that is not in the set; this one is.
            let _ = epoll::delete(&self.epoll, &socket);
        }
    }

    fn open(&mut self, conn: u32, socket: Rc<OwnedFd>) -> io::Result<()> {
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(u64::from(conn)), flags)?;
        let conn_state = Conn {
            socket,
            armed: false,
            rx_buffer: None,
            sending: None,
            readable: true,
            writable: true,
            ended: false,
            cancelled: false,
            receive_cancelled: false,
            receive_listed: false,
            send_listed: false,
        };
        put_at(&mut self.conns, conn, conn_state);
        Ok(())
    }

    fn receive(&mut self, number: u32, rx_buffer: Option<RxBuffer>) {
        if let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) {
            conn.armed = true;
            conn.rx_buffer = rx_buffer;
            conn.list(number, &mut self.ready);
        }
    }

    fn send(&mut self, number: u32, mut batch: Transmit, _last: bool) -> Sending {
        let pool = self.pool.clone();
        let Some(conn) = self.conn(number) else { return Sending::Failed(batch, Errno::BADF) };
        if conn.writable {
            let before = batch.len();
            let result = flush(&conn.socket, &mut batch, &pool);
            conn.writable = result == Ok(true);
            let sent = before - batch.len();
            Stats::bump(&mut self.stats.bytes_out, sent);
            match result {
                Ok(true) => {
                    Stats::bump(&mut self.stats.sends, 1);
                    return Sending::Done(batch);
                }
                Ok(false) => {}
                Err(errno) => return Sending::Failed(batch, errno),
            }
        }
        if let Some(conn) = self.conn(number) {
            conn.sending = Some(batch);
        }
        Sending::Pending
    }

    fn expedite_send_event(&mut self, _conn: u32) {}

    fn cancel(&mut self, number: u32) {
        if let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut) {
            conn.cancelled = true;
            conn.list(number, &mut self.ready);
        }
    }

    fn cancel_receive(&mut self, number: u32) {
        if let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::as_mut)
            && conn.armed
        {
            conn.receive_cancelled = true;
            conn.list(number, &mut self.ready);
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(conn) = self.conns.get_mut(index(number)).and_then(Option::take) {
            // It fails only for a descriptor that is not in the set; this one is.
            let _ = epoll::delete(&self.epoll, &conn.socket);
        }
    }
}

impl FrameEngine for EpollEngine {}

impl Conn {
    /// Lists the connection for the operations that can continue.
    fn list(&mut self, number: u32, ready: &mut VecDeque<Ready>) {
        let is_cancelled = self.cancelled || self.receive_cancelled;
        if self.armed && (self.readable || is_cancelled) && !self.receive_listed {
            self.receive_listed = true;
            ready.push_back(Ready::Receive(number));
        }
        if self.sending.is_some() && (self.writable || self.cancelled) && !self.send_listed {
            self.send_listed = true;
            ready.push_back(Ready::Send(number));
        }
    }
}

struct Received {
    into_loan: usize,
    behind: usize,
    /// All of the offered memory was filled, so that there may be more data. A short receive has emptied the
    /// socket.
    filled_all: bool,
}

fn receive(
    socket: &OwnedFd,
    rx_buffer: Option<&mut RxBuffer>,
    scratch: &mut [u8],
) -> Result<Received, Errno> {
    if let Some(rx_buffer) = rx_buffer {
        return receive_into(socket, rx_buffer, scratch);
    }
    let offered = scratch.len();
    let (count, _) = recv(socket, scratch, RecvFlags::DONTWAIT)?;
    Ok(Received { into_loan: 0, behind: count, filled_all: count == offered })
}

fn receive_into(socket: &OwnedFd, rx_buffer: &mut RxBuffer, scratch: &mut [u8]) -> Result<Received, Errno> {
    let (room, offered, result) = {
        let spare = rx_buffer.buf.spare_mut();
        let room = spare.len().min(rx_buffer.len_max);
        let behind = scratch.len().min(RX_TAIL_BYTES);
        let mut slices = [
            IoSliceMut::new(spare.get_mut(..room).unwrap_or_default()),
            IoSliceMut::new(scratch.get_mut(..behind).unwrap_or_default()),
        ];
        let mut control = RecvAncillaryBuffer::default();
        (room, room + behind, recvmsg(socket, &mut slices, &mut control, RecvFlags::DONTWAIT))
    };
    let count = result?.bytes;
    let into_loan = count.min(room);
    rx_buffer.buf.advance(into_loan);
    Ok(Received { into_loan, behind: count - into_loan, filled_all: count == offered })
}

/// Sends as much of `batch` as the socket accepts. Returns whether that was all.
fn flush(socket: &OwnedFd, batch: &mut Transmit, pool: &Pool) -> Result<bool, Errno> {
    while !batch.is_empty() {
        let result = {
            let mut slices = SmallVec::<[IoSlice<'_>; PIECES_MAX]>::new();
            slices.extend(batch.pieces().take(PIECES_MAX).map(IoSlice::new));
            let mut control = SendAncillaryBuffer::default();
            sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        };
        match result {
            Ok(count) => batch.sent(count, pool),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}
