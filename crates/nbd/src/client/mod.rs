//! A client that is a medium: operations in, requests out, and the repair of everything that a lost
//! connection leaves undone.
//!
//! # Order of calls
//!
//! The owner carries out [`Client::poll_action`] until it returns `None`, after each other call. It tells the
//! client of its connection with [`Client::connected`], [`Client::connect_failed`] and
//! [`Client::disconnected`], and collects [`Client::poll`] and [`Client::poll_notice`].
//!
//! # Durability
//!
//! A server that dies may lose what it acknowledged and has not flushed. The client keeps those changes
//! (`unflushed`) and repeats them before anything else uses the next connection. So a server that is killed
//! and started again loses nothing, and no reader sees old data. To bound what is kept, the client flushes by
//! itself. If a change cannot be repeated, the next flush fails.
//!
//! If a flush or a write with FUA fails, the system of the server may have dropped what it could not write,
//! and would report success the next time. So `failures` counts them. A flush that was sent before such a
//! failure covers nothing, and a good reply counts only when every flush and write with FUA that was under
//! way with it has ended without failure. An operation that must be durable and was under way begins again.
//! Before the next flush, whatever it is for, the changes are repeated.
//!
//! A server that offers no flush is taken for one without a volatile cache.
//!
//! # Changes under way
//!
//! A server that hangs may carry out a change at any later time. So a change that was sent does not end while
//! its connection lives. The client leaves a connection only when nothing but reads is under way on it: the
//! failure of a flush must be seen, too. A server that breaks the protocol is left at once, and so is any
//! server that is silent when the client closes.
//!
//! # Another process
//!
//! The client of another process can go on with a connection, see [`Client::prepare_handover`]: it calls
//! [`Client::connected`] with what was negotiated. If the connection cannot move, it asks for one of its own
//! with [`Client::connect`]. The changes do not move, so they are flushed before.

mod answers;
mod checks;
mod coverage;
mod error;
mod handover;
mod job;
mod losses;
mod replies;
mod requests;
mod send_queue;
mod silence;
mod sink;
mod unflushed;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;

use base::buffer::Pool;
use base::state_machine::RxBuffer;
use base::time::{Duration, Instant, soonest};
use store::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, OpId, OpOutput};

use crate::handshake::ExportInfo;
use crate::wire::transmission;
use answers::HeldReply;
pub use error::ProtocolError;
pub use handover::Unmovable;
use job::Job;
use replies::Replies;
use send_queue::SendQueue;
pub use sink::RequestSink;
use unflushed::{Change, Unflushed};

/// The longest single read or write in bytes: the largest transfer that initiators in use request.
const IO_LEN_MAX: usize = 16 << 20;

/// How long the client waits before it connects again: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How often an operation is repeated at least, before the time limit counts.
const RESTARTS_MAX: u32 = 5;

/// The settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// How long operations wait for a server that does not answer, or is gone; `None` for no limit.
    pub patience: Option<Duration>,
    /// Whether a write may be acknowledged before it is durable.
    pub write_cache: bool,
    /// Whether the owner never changes the export.
    pub read_only: bool,
    /// The length of the owner's blocks: an export with larger ones cannot be served.
    pub block_len: u32,
}

/// What the owner of a client must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// Connect to the server, negotiate, and call [`Client::connected`] or [`Client::connect_failed`].
    Connect,
    /// Call [`Client::transmit`].
    Transmit,
    /// Send what is pending, then close the connection.
    Close,
    /// Close the connection at once.
    Abort,
}

/// What an operator or a host should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The connection was lost, or the server shuts down.
    Lost,
    /// The server broke the protocol; its connection is ended.
    Broken(ProtocolError),
    /// The server did not answer within the limit: operations fail until it does.
    Unanswered,
    /// The server answers again. The number counts the changes that were repeated.
    Back(usize),
    /// The export has another size.
    Resized,
    /// The export is not what was served: no operation is carried out until [`Client::accept_export`].
    Differs(String),
    /// Acknowledged changes are lost, because of this fault; the next flush fails.
    LostChanges(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down {
        retry_at: Instant,
    },
    /// The owner connects, or shall.
    Connecting,
    Up,
    /// The client has asked for the end of the connection.
    Ending,
    /// The export is not what was served.
    Withheld,
    Closed,
}

/// What a request is for.
#[derive(Debug)]
enum Work {
    /// A piece of a read of a job.
    Read(u64, usize),
    /// A change for a job, and whether it has FUA.
    Change(u64, Change, bool),
    Status(u64),
    /// A flush for a job, or of the client's own.
    Flush {
        key: Option<u64>,
        /// The flush covers the changes before the mark,
        mark: u64,
        /// if this is still the number of failures.
        failures: u64,
    },
    /// A change that is repeated.
    Repeat,
}

impl Work {
    /// Returns whether the request only reads.
    const fn reads(&self) -> bool {
        matches!(self, Self::Read(..) | Self::Status(_))
    }

    /// Returns whether the request is a flush or a write with FUA.
    const fn makes_durable(&self) -> bool {
        matches!(self, Self::Flush { .. } | Self::Change(_, _, true))
    }
}

/// A medium over a connection to a server.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    info: ExportInfo,
    pool: Pool,
    link: Link,
    /// The operations, in the order of their submission.
    jobs: BTreeMap<u64, Job>,
    next_job: u64,
    queue: SendQueue,
    replies: Replies<Work>,
    unflushed: Unflushed,
    /// Good replies that do not count yet, in the order in which they came.
    held: VecDeque<HeldReply>,
    /// The offset from which unflushed changes are still to be repeated, while they are repeated.
    repeating: Option<u64>,
    /// How many flushes and writes with FUA have failed.
    failures: u64,
    /// One has failed since the changes were repeated: they are repeated before the next flush.
    repeat_before_flush: bool,
    /// The client's own flush is due, or under way.
    flush_due: bool,
    flushing: bool,
    /// Nobody needs that flush but the client of another process: if it fails, the changes are kept.
    keeps_unflushed: bool,
    /// Acknowledged changes are lost, which the next flush reports.
    lost_changes: Option<Fault>,
    /// Acknowledged changes are lost, whether a flush has reported it or not.
    has_lost: bool,
    /// What other clients of the export changed before this one is durable: this client could not repeat it.
    knows_all: bool,
    ready: VecDeque<Completion>,
    notices: VecDeque<Notice>,
    /// The client sends nothing more on this connection, and ends it when only reads are under way.
    leaving: bool,
    /// Since when the server has answered nothing although something waits for it.
    silent_since: Option<Instant>,
    /// The limit has passed: operations fail at once until the server is back.
    given_up: bool,
    /// The connection was lost, and nothing was answered since.
    outage: bool,
    /// Attempts to connect since the last answer.
    attempts: u32,
    connect_due: bool,
    abort_due: bool,
    transmit_due: bool,
    closing: bool,
    disconnect_sent: bool,
    close_due: bool,
    accepts_other: bool,
}

impl Client {
    /// Makes a client of an export. It is not connected yet, and does not ask for a connection: its owner has
    /// one.
    pub fn new(config: ClientConfig, info: ExportInfo, pool: Pool) -> Self {
        Self {
            config,
            info,
            pool,
            link: Link::Connecting,
            jobs: BTreeMap::new(),
            next_job: 0,
            queue: SendQueue::default(),
            replies: Replies::new(),
            unflushed: Unflushed::default(),
            held: VecDeque::new(),
            repeating: None,
            failures: 0,
            repeat_before_flush: false,
            flush_due: false,
            flushing: false,
            keeps_unflushed: false,
            lost_changes: None,
            has_lost: false,
            knows_all: false,
            ready: VecDeque::new(),
            notices: VecDeque::new(),
            leaving: false,
            silent_since: None,
            given_up: false,
            outage: false,
            attempts: 0,
            connect_due: false,
            abort_due: false,
            transmit_due: false,
            closing: false,
            disconnect_sent: false,
            close_due: false,
            accepts_other: false,
        }
    }

    /// Returns what the export is and can do.
    pub const fn capabilities(&self) -> Capabilities {
        let info = &self.info;
        let read_only = info.has(transmission::READ_ONLY);
        let trims = info.has(transmission::SEND_TRIM);
        let thin = !read_only && (trims || info.has(transmission::SEND_WRITE_ZEROES));
        Capabilities {
            len: info.len,
            logical_block_len: info.block_len,
            preferred_block_len: info.preferred_block_len,
            io_len_max: IO_LEN_MAX,
            atomic_len_max: 0,
            read_only,
            volatile_cache: self.config.write_cache && !read_only && self.flushes(),
            thin,
            // TRIM promises nothing. Where there is none, zeros are written, which may deallocate.
            deallocated_reads_zero: thin && !trims,
            zeroes_by_deallocating: false,
            deallocated_is_gone: false,
            rotational: info.has(transmission::ROTATIONAL),
            crypto_erase: false,
        }
    }

    /// Returns whether the server answers, as far as is known.
    pub fn is_up(&self) -> bool {
        self.link == Link::Up && !self.outage
    }

    /// Returns whether the server does not answer, as far as is known: its connection was lost, or it answers
    /// none. A client that is making its first connection knows nothing yet.
    pub fn is_away(&self) -> bool {
        let is_new = self.link == Link::Connecting && !self.outage;
        !self.is_up() && !is_new
    }

    /// Changes how long operations wait for the server.
    pub const fn set_patience(&mut self, patience: Option<Duration>) {
        self.config.patience = patience;
    }

    /// Sets whether writes may be acknowledged before they are durable, from now on. What was acknowledged
    /// before is flushed.
    pub fn set_write_cache(&mut self, write_cache: bool) {
        let disabled = self.config.write_cache && !write_cache;
        self.config.write_cache = write_cache;
        if disabled && !self.unflushed.is_empty() {
            (self.flush_due, self.transmit_due, self.keeps_unflushed) = (true, true, false);
        }
    }

    /// Makes the client ask for a connection: its owner has none.
    pub const fn connect(&mut self) {
        self.link = Link::Connecting;
        self.connect_due = true;
    }

    /// Accepts whatever the export is at the next connection, although it differs from what was served.
    /// Connects if the client waits for this. Changes that were not flushed are lost: they belong to what was
    /// served.
    pub const fn accept_export(&mut self) {
        if matches!(self.link, Link::Withheld) {
            self.accepts_other = true;
            self.connect();
        }
    }

    /// Flushes, takes leave of the server and asks for the end of the connection, once no operation is under
    /// way.
    pub fn close(&mut self) {
        (self.closing, self.transmit_due) = (true, true);
        self.leave_if_drained();
        self.end_if_closing();
    }

    /// Returns whether the client is closed: it has no connection and gets none.
    pub fn is_closed(&self) -> bool {
        self.link == Link::Closed
    }

    /// Returns whether acknowledged changes may be missing on the server, of a client that is closed.
    pub fn has_lost_changes(&self) -> bool {
        self.lost_changes.is_some() || (!self.unflushed.is_empty() && self.flushes())
    }

    /// Starts an operation.
    pub fn submit(&mut self, now: Instant, op: Op) {
        let Op { id, action } = op;
        match self.checked(&action) {
            Err(failure) => self.complete(id, Err(failure)),
            Ok(Some(output)) => self.complete(id, Ok(output)),
            Ok(None) => {
                if !self.is_waiting() {
                    self.silent_since = Some(now);
                }
                let stable = self.is_stable(&action);
                self.next_job += 1;
                self.jobs.insert(self.next_job, Job::new(id, action, stable, now));
                self.queue.push_back(self.next_job);
                self.transmit_due = true;
            }
        }
    }

    /// Returns the next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    /// Returns whether [`Self::poll`] has something to return.
    pub fn has_completions(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the next notice.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<ClientAction> {
        let take = |due: &mut bool| core::mem::take(due);
        if take(&mut self.abort_due) {
            return Some(ClientAction::Abort);
        }
        if take(&mut self.connect_due) {
            return Some(ClientAction::Connect);
        }
        if take(&mut self.close_due) {
            return Some(ClientAction::Close);
        }
        if self.transmit_due && self.link == Link::Up {
            return Some(ClientAction::Transmit).filter(|_| take(&mut self.transmit_due));
        }
        None
    }

    /// Returns the time of the next deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let retry = match self.link {
            Link::Down { retry_at } => Some(retry_at),
            _ => None,
        };
        soonest([retry, self.given_up_at(), self.left_at()])
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Link::Down { retry_at } = self.link
            && retry_at <= now
        {
            self.connect();
        }
        if self.given_up_at().is_some_and(|at| at <= now) {
            self.give_up();
        }
        if self.left_at().is_some_and(|at| at <= now) {
            self.lost();
            self.leave();
        }
    }

    /// Handles a new connection whose negotiation is complete. The owner closes it if the client asks for
    /// that at once.
    pub fn connected(&mut self, now: Instant, info: ExportInfo) {
        if self.link == Link::Closed {
            self.abort_due = true;
            return;
        }
        if let Err(why) = self.compare(&info)
            && !self.accepts_other
        {
            (self.link, self.abort_due) = (Link::Withheld, true);
            self.fail_all();
            self.notices.push_back(Notice::Differs(why));
            return;
        }
        if core::mem::take(&mut self.accepts_other) && !self.unflushed.is_empty() {
            self.unflushed = Unflushed::default();
            self.lose_changes(Fault::Medium);
        }
        if info.len != self.info.len {
            self.notices.push_back(Notice::Resized);
        }
        self.info = info;
        self.link = Link::Up;
        self.replies.reset(info.structured, info.allocation_id, &self.pool);
        self.restart_jobs(now);
        (self.flushing, self.keeps_unflushed) = (false, false);
        (self.repeat_before_flush, self.leaving) = (false, false);
        if !self.is_waiting() {
            self.silent_since = Some(now);
        }
        self.repeating = (!self.unflushed.is_empty()).then_some(0_u64);
        self.transmit_due = true;
        if self.repeating.is_none() {
            self.back(0);
        }
    }

    /// Handles a failed attempt to connect.
    pub fn connect_failed(&mut self, now: Instant) {
        if self.link == Link::Connecting {
            // Of the first connection, nobody knows yet.
            self.lost();
            self.retry_later(now);
        }
    }

    /// Handles the end of the connection.
    pub fn disconnected(&mut self, now: Instant) {
        match self.link {
            Link::Withheld | Link::Closed | Link::Connecting | Link::Down { .. } => return,
            Link::Up if !self.disconnect_sent => self.lost(),
            Link::Up | Link::Ending => {}
        }
        self.replies.reset(false, None, &self.pool);
        // What is under way may have failed.
        self.held.clear();
        (self.repeating, self.link) = (None, Link::Ending);
        if self.given_up {
            self.fail_all();
        }
        self.retry_later(now);
    }

    /// Handles received bytes.
    pub fn received(&mut self, now: Instant, bytes: &[u8]) {
        if self.link == Link::Up {
            let result = self.replies.received(bytes);
            self.handle_replies(now, result);
        }
    }

    /// Returns the buffer that the next bytes belong into.
    pub fn take_rx_buffer(&mut self) -> Option<RxBuffer> {
        if self.link == Link::Up { self.replies.take_rx_buffer() } else { None }
    }

    /// Takes back a buffer, with what was received appended.
    pub fn return_rx_buffer(&mut self, now: Instant, rx_buffer: RxBuffer) {
        let result = self.replies.return_rx_buffer(rx_buffer, &self.pool);
        if self.link == Link::Up {
            self.handle_replies(now, result);
        }
    }

    /// Appends requests, until the batch is full or nothing is left to send.
    pub fn transmit(&mut self, now: Instant, out: &mut dyn RequestSink) {
        while self.link == Link::Up && !out.is_full() && self.send_next(now, out) {}
    }

    const fn flushes(&self) -> bool {
        self.info.has(transmission::SEND_FLUSH)
    }

    fn retry_later(&mut self, now: Instant) {
        let delay = RETRY_FIRST.saturating_mul(1 << self.attempts.min(6)).min(RETRY_MAX);
        self.attempts = self.attempts.saturating_add(1);
        self.link = Link::Down { retry_at: now.after(delay) };
        self.end_if_closing();
    }

    /// Ends a closing client that is not connected and has nothing to do.
    fn end_if_closing(&mut self) {
        let is_apart = matches!(self.link, Link::Down { .. } | Link::Withheld);
        if self.closing && is_apart && self.jobs.is_empty() {
            self.link = Link::Closed;
        }
    }

    /// Returns whether something waits for the server.
    fn is_waiting(&self) -> bool {
        !self.jobs.is_empty() || !self.replies.is_idle() || self.repeating.is_some()
    }

    /// Repeats, on a new connection, every operation that has not ended. An operation that was under way
    /// whenever the server went away may be what ends the server, so it is repeated only so often.
    fn restart_jobs(&mut self, now: Instant) {
        let patience = self.config.patience;
        let is_hopeless = |job: &Job| {
            job.restarts >= RESTARTS_MAX && patience.is_some_and(|patience| now.since(job.since) >= patience)
        };
        for (key, mut job) in core::mem::take(&mut self.jobs) {
            job.restart();
            if is_hopeless(&job) {
                self.complete(job.id, Err(unreachable(&job.action)));
            } else {
                self.jobs.insert(key, job);
            }
        }
        self.queue.restart(self.jobs.keys().copied());
    }

    fn lost(&mut self) {
        if !core::mem::replace(&mut self.outage, true) {
            self.notices.push_back(Notice::Lost);
        }
    }

    /// Handles that a reply may have been the last one to the changes that are repeated.
    fn end_repeating(&mut self) {
        let is_over = |next| self.replies.is_idle() && !self.leaving && self.unflushed.after(next).is_none();
        if self.repeating.is_some_and(is_over) {
            self.back(self.unflushed.len());
        }
    }

    /// Handles that the server answers on this connection, and everything is repeated.
    fn back(&mut self, repeated: usize) {
        self.repeating = None;
        self.given_up = false;
        if core::mem::take(&mut self.outage) {
            self.notices.push_back(Notice::Back(repeated));
        }
    }

    fn complete(&mut self, id: OpId, result: Result<OpOutput, Failure>) {
        self.ready.push_back(Completion { id, result });
    }
}

/// Returns the failure of an operation whose server cannot be reached. A flush that was not carried out has
/// lost nothing: the changes are kept.
fn unreachable(action: &OpAction) -> Failure {
    match action {
        OpAction::Flush => Fault::NotSubmitted.into(),
        _ => Fault::Gone.into(),
    }
}

#[cfg(test)]
mod tests;
