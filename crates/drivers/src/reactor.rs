//! Runs one state machine on one thread.

mod parking;
mod sleep;
mod stop;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Pool;
use base::ether::{EtherPort, FrameMachine};
use base::state_machine::{DisconnectReason, PortalId, StreamMachine};
use base::time::Instant;

use crate::candidate::Candidate;
use crate::clock::{Clock, Sleep};
use crate::config::{Config, EngineChoice, EngineKind};
use crate::connecting::{Call, Connecting};
use crate::connections::Connections;
use crate::engine::{Engine, Event};
use crate::epoll::EpollEngine;
use crate::ether::{PortSocket, Ports};
use crate::files::{self, Files};
use crate::listener;
use crate::message_queue::{Adoption, Handle, Message, MessageQueue};
use crate::signals::Signals;
use crate::spin_policy::{self, SpinPolicy};
use crate::stats::Stats;
use crate::uring::UringEngine;
use crate::waker::Waker;
use parking::Parking;
use stop::{FILES_PATIENCE, Stop};

/// How long a reactor stops accepting when the system has no descriptor or memory left: long enough not to
/// spin, short enough that the login of a client does not time out.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How often [`Reactor::run_ready`] checks for more events before it returns to its owner.
const ROUNDS_MAX: usize = 16;

/// A reactor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// The configuration demands io_uring, and it is not available.
    #[error("io_uring is not available: {0}")]
    NoUring(String),
    /// A resource that every reactor needs is not available.
    #[error("cannot set up the reactor")]
    Io(#[from] io::Error),
}

/// Sockets, timers, files and wake-ups for one state machine on one thread.
///
/// It is created, used and dropped on that thread. A [`Handle`] reaches it from other threads.
pub struct Reactor<M> {
    engine: Box<dyn Engine>,
    fallback: Option<String>,
    connections: Connections,
    dials: Connecting,
    ports: Ports,
    signals: Signals,
    listeners: Vec<Option<Listening>>,
    accepts_rest_until: Option<Instant>,
    message_queue: Arc<MessageQueue<M>>,
    files: Files,
    pool: Pool,
    clock: Clock,
    /// Until when the reactor was to be awake again at the latest, when it last slept.
    sleep: Option<Sleep>,
    poll: bool,
    spin_policy: Box<dyn SpinPolicy>,
    stop: Option<Stop>,
    parking: Parking<M>,
    /// False while the owner wants no connections accepted.
    accepts: bool,
    /// Connections that other threads gave while the reactor was parked.
    waiting: Vec<Adoption>,
    /// The state machine served no session over frames when it was last drained.
    quiet: bool,
    /// An event happened, or an operation was started, since this was cleared.
    eventful: bool,
}

struct Listening {
    portal: PortalId,
}

impl<M: StreamMachine + FrameMachine> Reactor<M> {
    /// Creates a reactor.
    ///
    /// # Errors
    /// [`ReactorError`]
    pub fn new(config: &Config) -> Result<Self, ReactorError> {
        let waker = Arc::new(Waker::new()?);
        let pool = Pool::new(config.pool_bytes_max);
        let clock = Clock::start();
        let began = clock.now();
        let files = Files::new(Arc::clone(&waker), clock.clone(), pool.clone());
        let (engine, fallback) = start_engine(config.engine, &waker, &pool, &files)?;
        files::close_elsewhere();
        Ok(Self {
            engine,
            fallback,
            connections: Connections::new(config, pool.clone()),
            dials: Connecting::default(),
            ports: Ports::new(clock.clone(), pool.clone()),
            signals: Signals::default(),
            listeners: Vec::new(),
            accepts_rest_until: None,
            message_queue: Arc::new(MessageQueue::new(waker)),
            files,
            pool,
            clock,
            sleep: None,
            poll: config.busy_poll,
            spin_policy: spin_policy::policy(config.spin_mode, began),
            stop: None,
            parking: Parking::Off,
            accepts: true,
            waiting: Vec::new(),
            quiet: true,
            eventful: false,
        })
    }

    /// Returns which engine runs.
    pub fn engine(&self) -> EngineKind {
        self.engine.kind()
    }

    /// Returns why io_uring does not run although the configuration prefers it.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Returns the buffer pool that everything on this reactor shares.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the file operations of this reactor, from which media get their queues.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns a handle that reaches this reactor from any thread.
    pub fn handle(&self) -> Handle<M> {
        Handle::new(Arc::clone(&self.message_queue))
    }

    /// Returns the present time of the clock that the state machine is given.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the counters.
    pub fn stats(&mut self) -> Stats {
        self.publish();
        self.message_queue.published.load()
    }

    /// Accepts connections from `listener` as those of `portal`.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen(&mut self, listener: TcpListener, portal: PortalId) -> io::Result<()> {
        let socket = Rc::new(OwnedFd::from(listener));
        listener::prepare(&socket)?;
        let number = u32::try_from(self.listeners.len()).unwrap_or(u32::MAX);
        self.engine.listen(number, socket)?;
        self.listeners.push(Some(Listening { portal }));
        if !self.may_accept() {
            self.engine.pause_accepts(number);
        }
        Ok(())
    }

    /// Closes every listener of `portal`. Its connections stay.
    pub fn unlisten(&mut self, portal: PortalId) {
        for (number, place) in (0..).zip(&mut self.listeners) {
            if place.as_ref().is_some_and(|listening| listening.portal == portal) {
                *place = None;
                self.engine.unlisten(number);
            }
        }
    }

    /// Sends and receives the frames of a port. The state machine is informed when the port is up.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open_port(&mut self, port: EtherPort, socket: PortSocket) -> io::Result<()> {
        self.ports.add(&mut *self.engine, port, socket)
    }

    /// Closes a port.
    pub fn close_port(&mut self, machine: &mut M, port: EtherPort) {
        let now = self.clock.now();
        self.ports.close(&mut *self.engine, machine, now, port);
    }

    /// Connects to `peer`, and gives up after `patience`. The state machine is informed of the connection
    /// like of an accepted one; its [`base::state_machine::AcceptInfo`] names `portal`, a number that the
    /// caller chooses. [`Self::next_failure`] reports attempts that failed.
    pub fn connect(&mut self, peer: SocketAddr, portal: PortalId, patience: Duration) {
        if self.stop.is_none() {
            let deadline = self.clock.now().after(patience);
            self.dials.start(&mut *self.engine, Call { peer, portal, deadline });
        }
    }

    /// Returns the next connection attempt that failed, and why.
    pub fn next_failure(&mut self) -> Option<(PortalId, io::Error)> {
        self.dials.next_failure()
    }

    /// Runs until [`Handle::stop`] has taken effect.
    ///
    /// # Errors
    /// The error of a system call on the descriptors of the engine itself. Errors of connections are never
    /// returned here.
    pub fn run(&mut self, machine: &mut M) -> io::Result<()> {
        let mut now = self.clock.now();
        self.drain(machine, now);
        while !self.is_stopped() {
            now = self.step(machine, now, None)?;
        }
        Ok(())
    }

    /// Returns whether [`Handle::stop`] was called and has taken effect.
    pub fn is_stopped(&self) -> bool {
        let is_over =
            |stop: &Stop| (self.quiet || stop.forced) && (stop.abandons_files || self.files.is_idle());
        self.stop.as_ref().is_some_and(is_over) && self.connections.is_empty() && self.dials.is_empty()
    }

    /// Does what is due, sleeps until an event happens but at most for `wait_max`, handles the event, and
    /// drains the state machine. For owners that have other work on this thread; [`Self::run`] is for those
    /// that have none.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_once(&mut self, machine: &mut M, wait_max: Option<Duration>) -> io::Result<()> {
        let now = self.clock.wake_up(self.sleep);
        self.drain(machine, now);
        let now = self.step(machine, now, wait_max)?;
        // The time until the owner calls again counts as sleep.
        self.timeout(machine, now, None);
        Ok(())
    }

    /// Does everything that can be done without sleeping. Returns how long the owner may sleep before it
    /// calls again, unless [`Self::as_fd`] becomes readable earlier. For owners with an event loop of their
    /// own.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_ready(&mut self, machine: &mut M) -> io::Result<Option<Duration>> {
        self.engine.use_descriptor()?;
        let mut now = self.clock.wake_up(self.sleep);
        self.drain(machine, now);
        for _ in 0..ROUNDS_MAX {
            self.eventful = false;
            now = self.step(machine, now, Some(Duration::ZERO))?;
            if !self.eventful {
                return Ok(self.timeout(machine, now, None));
            }
        }
        Ok(Some(Duration::ZERO))
    }

    /// Sleeps, handles the events that ended the sleep, and drains the state machine. Returns the time after
    /// that.
    fn step(&mut self, machine: &mut M, slept: Instant, wait_max: Option<Duration>) -> io::Result<Instant> {
        if !self.parking.is_parked() {
            self.ports.flush(&mut *self.engine, machine);
        }
        let timeout = self.timeout(machine, slept, wait_max);
        let now = self.wait(machine, slept, timeout)?;
        Stats::bump(&mut self.engine.stats().wakeups, 1);
        if !self.parking.is_parked() {
            self.eventful |= self.ports.receive_all(self.engine.stats(), machine);
        }
        let now = self.ports.now_or(now);
        if self.message_queue.waker.take() {
            self.eventful = true;
            self.files.collect();
            self.handle_messages(machine, now);
            // What was signalled while the reactor was parked, if it is not parked any more.
            self.pass_signals(machine, now);
        }
        self.pass_deadlines(machine, now);
        self.drain(machine, now);
        self.conclude_parking(machine, now);
        self.publish();
        Ok(self.ports.now_or(now))
    }

    /// Waits until an event happens, but at most for `timeout`, and handles the events of the engine. May
    /// busy-poll before it sleeps. Returns the time of the wake-up.
    fn wait(&mut self, machine: &mut M, slept: Instant, timeout: Option<Duration>) -> io::Result<Instant> {
        let timeout = if self.files.start_threads() { Some(Duration::ZERO) } else { timeout };
        let Stats { bytes_in, bytes_out, .. } = *self.engine.stats();
        let could_look =
            timeout != Some(Duration::ZERO) && self.engine.shows_more() && !self.parking.is_parked();
        if !could_look || !self.spin_policy.should_spin(slept, bytes_in.wrapping_add(bytes_out)) {
            self.engine.wait(slept, timeout)?;
            return Ok(self.woken(machine).0);
        }
        if self.engine.has_unsubmitted() {
            // Submit first, without waiting.
            self.engine.wait(slept, Some(Duration::ZERO))?;
            let (now, found) = self.woken(machine);
            if found || self.ports.is_hungry() {
                return Ok(now);
            }
        }
        let until = timeout.map(|timeout| slept.after(timeout));
        let (engine, ports) = (&self.engine, &self.ports);
        let found = spin_policy::spin_until(&mut *self.spin_policy, &self.clock, until, || {
            engine.has_completions() || ports.has_frames()
        });
        if !found {
            let now = self.clock.now();
            self.engine.wait(now, until.map(|until| until.since(now)))?;
        } else if self.engine.has_completions() {
            self.engine.wait(slept, Some(Duration::ZERO))?;
        }
        Ok(self.woken(machine).0)
    }

    /// Handles the events of the engine. Returns the time, and whether there were events other than completed
    /// sends of frames.
    fn woken(&mut self, machine: &mut M) -> (Instant, bool) {
        let now = self.clock.wake_up(self.sleep);
        self.connections.next_turn();
        self.ports.next_turn(now);
        (now, self.handle_events(machine, now))
    }

    /// Handles the events of the engine. Returns whether there were events other than completed sends of
    /// frames.
    fn handle_events(&mut self, machine: &mut M, now: Instant) -> bool {
        let mut found = false;
        let mut accepted = Vec::new();
        let mut dialled = Vec::new();
        while let Some(event) = self.engine.next_event() {
            self.eventful = true;
            found |= !matches!(event, Event::FrameSent { .. });
            match event {
                Event::ConnectDone { attempt } => dialled.push(attempt),
                Event::Nothing => {}
                Event::Readable { watch } if self.signals.note(watch) => {}
                // The peer sends it again to the process that goes on.
                Event::Readable { watch } if self.parking.is_parked() => self.ports.discard_received(watch),
                Event::Readable { watch } => self.ports.note(watch),
                Event::Frame { .. } if self.parking.is_parked() => {}
                Event::Frame { watch, taken } => self.ports.frame(machine, now, watch, taken),
                Event::FramesFailed => self.ports.failed(),
                Event::FrameSent { watch, batch, result } => {
                    self.ports.frame_sent(self.engine.stats(), watch, batch, result);
                }
                Event::Accepted { listener, socket, peer } => accepted.push((listener, socket, peer)),
                Event::AcceptFailed { listener } => {
                    Stats::bump(&mut self.engine.stats().accept_failures, 1);
                    self.engine.pause_accepts(listener);
                    self.accepts_rest_until = Some(now.after(ACCEPT_REST));
                }
                Event::Received { conn, rx_buffer, bytes, receipt } => {
                    self.connections.received(machine, now, conn, (rx_buffer, bytes, receipt));
                }
                Event::Sent { conn, batch, result } => self.connections.sent(conn, batch, result),
            }
        }
        self.pass_signals(machine, now);
        for attempt in dialled {
            self.conclude_dial(machine, now, attempt);
        }
        for (listener, socket, peer) in accepted {
            let at = crate::slab::index(listener);
            let Some(portal) = self.listeners.get(at).and_then(Option::as_ref).map(|it| it.portal) else {
                continue;
            };
            let candidate = Candidate { socket, local: None, peer, portal, is_taken_over: false };
            self.connections.admit(&mut *self.engine, machine, now, candidate);
        }
        found
    }

    /// Informs the state machine of the media that were signalled. They stay noted while the reactor is
    /// parked.
    fn pass_signals(&mut self, machine: &mut M, now: Instant) {
        while !self.parking.is_parked()
            && let Some(medium) = self.signals.next_raised()
        {
            machine.medium_ready(now, medium);
        }
    }

    /// Admits a connection that this reactor initiated, or records that it failed.
    fn conclude_dial(&mut self, machine: &mut M, now: Instant, attempt: u32) {
        let Some(candidate) = self.dials.over(attempt) else { return };
        let portal = candidate.portal;
        if self.connections.admit(&mut *self.engine, machine, now, candidate).is_none() {
            self.dials.failed(portal, io::Error::other("the connection was closed at once"));
        }
    }

    fn handle_messages(&mut self, machine: &mut M, now: Instant) {
        for message in self.message_queue.take() {
            match message {
                Message::Run(job) => job(machine, now),
                Message::Adopt(adoption) if self.parking.is_parked() => self.adopt_later(adoption),
                Message::Adopt(adoption) => self.adopt(machine, now, adoption),
                Message::TakeOver(list, job) => self.take_over(machine, now, list, job),
                Message::Accept(accepts) => self.set_accepts(accepts),
                Message::Park(job) => self.park(machine, now, job),
                Message::Unpark => self.unpark_and_adopt(machine, now),
                Message::Sockets(conns, reply) => reply(self.connections.sockets(&conns)),
                Message::Listen(listener, portal) => {
                    if self.stop.is_none() && self.listen(listener, portal).is_err() {
                        Stats::bump(&mut self.engine.stats().accept_failures, 1);
                    }
                }
                Message::Unlisten(portal) => self.unlisten(portal),
                Message::OpenPort(port, socket) => {
                    if self.stop.is_none() && self.open_port(port, socket).is_err() {
                        Stats::bump(&mut self.engine.stats().accept_failures, 1);
                    }
                }
                Message::ClosePort(port) => self.close_port(machine, port),
                Message::Watch(medium, event) => {
                    if self.signals.watch(&mut *self.engine, medium, event).is_err() {
                        Stats::bump(&mut self.engine.stats().accept_failures, 1);
                    }
                    // What was signalled before the engine watched it is not lost.
                    machine.medium_ready(now, medium);
                }
                Message::Unwatch(medium) => self.signals.unwatch(&mut *self.engine, medium),
                Message::Limit(limits) => self.connections.limit(now, limits),
                Message::Stop(drain) => self.begin_stop(now.after(drain)),
            }
        }
    }

    fn adopt(&mut self, machine: &mut M, now: Instant, adoption: Adoption) {
        let Adoption { socket, portal, local, peer, bytes } = adoption;
        let candidate = Candidate { socket, local: Some(local), peer, portal, is_taken_over: false };
        let Some(conn) = self.connections.admit(&mut *self.engine, machine, now, candidate) else { return };
        if !bytes.is_empty() {
            machine.received(now, conn, &bytes);
        }
    }

    fn begin_stop(&mut self, deadline: Instant) {
        self.unpark();
        for (number, place) in (0..).zip(&mut self.listeners) {
            if place.take().is_some() {
                self.engine.unlisten(number);
            }
        }
        self.accepts_rest_until = None;
        self.dials.end_all(&mut *self.engine);
        let deadline = self.stop.map_or(deadline, |stop| stop.deadline.min(deadline));
        self.stop = Some(Stop { deadline, forced: false, abandons_files: false });
    }

    fn pass_deadlines(&mut self, machine: &mut M, now: Instant) {
        if self.parking.is_parked() {
            return;
        }
        if machine.poll_timeout().is_some_and(|at| at <= now) {
            machine.handle_timeout(now);
        }
        self.connections.pass_deadlines(now);
        self.dials.end_overdue(&mut *self.engine, now);
        if self.accepts_rest_until.is_some_and(|at| at <= now) {
            self.accepts_rest_until = None;
            self.resume_accepts();
        }
        if let Some(stop) = &mut self.stop
            && stop.deadline <= now
            && !stop.forced
        {
            stop.forced = true;
            self.connections.end_all(DisconnectReason::Shutdown);
        }
        if let Some(stop) = &mut self.stop
            && stop.forced
            && stop.deadline.after(FILES_PATIENCE) <= now
        {
            stop.abandons_files = true;
        }
    }

    /// Carries out the actions of the state machine until only deadlines are left, then starts the receives
    /// that are due.
    fn drain(&mut self, machine: &mut M, now: Instant) {
        if self.parking.is_parked() {
            return;
        }
        self.eventful |= self.ports.refresh_interfaces(&mut *self.engine, machine, now);
        loop {
            while let Some(action) = machine.poll_action() {
                self.connections.act(now, action);
            }
            let mut more = self.connections.send_all(&mut *self.engine, machine, now);
            more |= self.ports.send_all(&mut *self.engine, machine);
            while let Some(medium) = self.files.next_ready() {
                machine.medium_ready(now, medium);
                more = true;
            }
            if !more {
                break;
            }
            self.eventful = true;
        }
        self.eventful |= self.connections.receive_all(&mut *self.engine, machine);
        self.quiet = machine.is_frame_idle();
    }

    fn publish(&mut self) {
        let stats = self.engine.stats();
        self.files.count(stats);
        stats.connections = 0;
        Stats::bump(&mut stats.connections, self.connections.len());
        self.message_queue.published.store(stats);
    }
}

/// The descriptor becomes readable when [`Reactor::run_ready`], which must have been called before, has
/// something to do again. Deadlines do not make it readable.
impl<M> AsFd for Reactor<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.engine.descriptor()
    }
}

impl<M> Drop for Reactor<M> {
    fn drop(&mut self) {
        self.ports.part(&mut *self.engine);
        self.message_queue.close();
    }
}

/// Checks whether this process can use io_uring.
///
/// # Errors
/// [`ReactorError::NoUring`] with the reason, or what else prevents a reactor.
pub fn probe_uring() -> Result<(), ReactorError> {
    let waker = Arc::new(Waker::new()?);
    let pool = Pool::new(0);
    let files = Files::new(Arc::clone(&waker), Clock::start(), pool.clone());
    start_engine(EngineChoice::Uring, &waker, &pool, &files).map(drop)
}

/// Starts the engine of the configuration. Also returns why it is not io_uring, if that was tried.
fn start_engine(
    choice: EngineChoice,
    waker: &Arc<Waker>,
    pool: &Pool,
    files: &Files,
) -> Result<(Box<dyn Engine>, Option<String>), ReactorError> {
    let mut fallback = None;
    if choice != EngineChoice::Epoll {
        match UringEngine::new(Arc::clone(waker), pool.clone(), files.clone()) {
            Ok(engine) => return Ok((Box::new(engine), None)),
            Err(why) if choice == EngineChoice::Uring => return Err(ReactorError::NoUring(why)),
            Err(why) => fallback = Some(why),
        }
    }
    Ok((Box::new(EpollEngine::new(Arc::clone(waker), pool.clone())?), fallback))
}
