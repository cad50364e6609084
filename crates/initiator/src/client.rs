//! Runs sessions on a thread of their own, for callers on any thread.
//!
//! [`Client`] starts the thread. A login returns a [`Session`], which executes commands with callbacks or
//! with futures. When the last handle is dropped, the thread logs out and ends.

mod alone;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use drivers::config::Config;
use drivers::message_queue::Handle;
use drivers::reactor::ReactorError;
use iscsi::discovery::Discovered;
use iscsi::initiator::contract::{ConnectionView, SessionStats, Slot};
use iscsi::name::IscsiName;
use scsi::lun::Lun;
use transport::initiator::SubmitError;
use transport::task_management::{TmfFunction, TmfResult};

use crate::command::{Command, CommandError, Reply};
use crate::command_handle::{CommandHandle, CommandId};
use crate::driver::Driver;
use crate::future::{Completer, ResponseFuture, response_channel};
use crate::identity::Identity;
use crate::login::ProtocolPlan;
use crate::session_error::{SessionError, SessionLoss};
use crate::sessions::{DriverEvent, ProtocolUp, SessionEvent, SessionId, Sessions};

/// A callback for the result of a command. It is called on the client's thread and must not block.
pub type Done = Box<dyn FnOnce(Result<Reply, CommandError>) + Send>;

/// A callback for the events of a session. It is called on the client's thread and must not block. It returns
/// whether it is to be called again.
pub type Watcher = Box<dyn FnMut(&SessionEvent) -> bool + Send>;

/// A thread that runs sessions. Clones share the same thread.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// A session that has logged in. Clones share the same session, which logs out when the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub struct Session {
    handle: Arc<SessionHandle>,
}

#[derive(Debug)]
struct SessionHandle {
    shared: Arc<Shared>,
    id: SessionId,
    up: ProtocolUp,
}

/// The state that all handles share.
struct Shared {
    orders: Mutex<Vec<Request>>,
    reactor: Handle<Sessions>,
    /// The number of the next command that can be aborted.
    tickets: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The requests that were queued when the last handle was dropped.
    last_orders: Sender<Vec<Request>>,
}

enum Request {
    Open(ProtocolPlan, Vec<Watcher>, Completer<Session, SessionError>),
    Submit(SessionId, Option<CommandId>, Command, Done),
    Abort(SessionId, CommandId, Completer<Option<TmfResult>, CommandError>),
    Manage(SessionId, TmfFunction, Lun, Completer<Option<TmfResult>, CommandError>),
    SendTargets(SessionId, Option<IscsiName>, Completer<(Vec<Discovered>, usize), CommandError>),
    Negotiate(SessionId, Option<Slot>, Vec<(String, String)>, Completer<Keys, CommandError>),
    Watch(SessionId, Watcher),
    Stats(SessionId, Completer<SessionStats, CommandError>),
    Loss(SessionId, Completer<Option<SessionLoss>, CommandError>),
    With(SessionId, Does),
    /// Logs out. `None`: the last handle of the session was dropped.
    LogOut(SessionId, Option<Completer<(), CommandError>>),
    Stop,
}

/// A request that the driver executes without waiting for the target.
type Does = Box<dyn FnOnce(&mut Driver, SessionId) + Send>;
/// The names and values of keys.
type Keys = Vec<(String, String)>;

impl Request {
    /// Fails the request with `Stopped`. A completer does that when it is dropped.
    fn refuse(self) {
        if let Self::Submit(_, _, _, done) = self {
            done(Err(CommandError::Stopped));
        }
    }
}

impl Client {
    /// Starts a thread.
    ///
    /// # Errors
    /// Returns [`ReactorError`] if the system cannot create the thread, the event loop or its memory.
    pub fn start(config: &Config) -> Result<Self, ReactorError> {
        let config = config.clone();
        let (report, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("targe-initiator".to_owned()).spawn(move || {
            let driver = match Driver::new(&config) {
                Ok(driver) => driver,
                Err(why) => {
                    // The caller of `start` waits for this result.
                    let _ = report.send(Err(why));
                    return;
                }
            };
            let (hand_over, handed_over) = std::sync::mpsc::channel();
            if report.send(Ok((driver.handle(), hand_over))).is_ok()
                && let Ok(shared) = handed_over.recv()
            {
                let (shared, last_orders) = shared;
                Worker::new(driver, shared, last_orders).run();
            }
        })?;
        let died = || ReactorError::Io(std::io::Error::other("the thread ended while it started"));
        let (reactor, hand_over) = started.recv().map_err(|_| died())??;
        let (last_orders, ordered) = std::sync::mpsc::channel();
        let thread = Mutex::new(Some(thread));
        let shared = Arc::new(Shared {
            orders: Mutex::default(),
            reactor,
            tickets: AtomicU64::new(0),
            thread,
            last_orders,
        });
        hand_over.send((Arc::downgrade(&shared), ordered)).map_err(|_| died())?;
        Ok(Self { shared })
    }

    /// Logs in. The session is up when the future completes. The plan bounds the time of connecting and
    /// logging in together: 30 seconds unless it says otherwise.
    pub fn log_in(&self, plan: impl Into<ProtocolPlan>) -> ResponseFuture<Session, SessionError> {
        self.log_in_watched(plan, Vec::new())
    }

    /// Logs in, and calls `watchers` with every event from the first attempt on.
    pub fn log_in_watched(
        &self,
        plan: impl Into<ProtocolPlan>,
        watchers: Vec<Watcher>,
    ) -> ResponseFuture<Session, SessionError> {
        let (completer, answer) = response_channel();
        self.shared.order(Request::Open(plan.into(), watchers, completer));
        answer
    }
}

impl Session {
    /// Submits a command and calls `done` with its result, exactly once, on the client's thread. While the
    /// session is recovering, commands wait. At most [`crate::sessions::WAITING_MAX`] commands may wait.
    pub fn submit(&self, command: Command, done: Done) {
        self.handle.shared.order(Request::Submit(self.handle.id, None, command, done));
    }

    /// Executes a command. Dropping the future does not abort the command.
    pub fn run(&self, command: Command) -> ResponseFuture<Reply, CommandError> {
        let (completer, answer) = response_channel();
        self.submit(command, Box::new(move |result| completer.complete(result)));
        answer
    }

    /// Executes a command that can be aborted.
    pub fn start_command(&self, command: Command) -> CommandHandle {
        let (completer, answer) = response_channel();
        let command_id = CommandId(self.handle.shared.tickets.fetch_add(1, Ordering::Relaxed));
        let done = Box::new(move |result| completer.complete(result));
        self.handle.shared.order(Request::Submit(self.handle.id, Some(command_id), command, done));
        CommandHandle::new(self.clone(), command_id, answer)
    }

    /// Aborts a command.
    pub(crate) fn abort(&self, command_id: CommandId) -> ResponseFuture<Option<TmfResult>, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Abort(self.handle.id, command_id, completer));
        answer
    }

    /// Sends a task management request for a unit: LOGICAL UNIT RESET, ABORT TASK SET and the like. The
    /// result is `None` when the session was lost before the response arrived.
    pub fn submit_tmf(
        &self,
        function: TmfFunction,
        lun: Lun,
    ) -> ResponseFuture<Option<TmfResult>, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Manage(self.handle.id, function, lun, completer));
        answer
    }

    /// Sends SendTargets: for all targets (in a discovery session), or for one target. Also returns the
    /// number of entries that were left out because they are no valid names or addresses.
    pub fn send_targets(
        &self,
        only: Option<IscsiName>,
    ) -> ResponseFuture<(Vec<Discovered>, usize), CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::SendTargets(self.handle.id, only, completer));
        answer
    }

    /// Negotiates keys in the full feature phase, on the connection at `on` or on any, and returns the answer
    /// of the target. Only one text negotiation runs at a time. Few keys may be negotiated in this phase
    /// (RFC 7143 §13): MaxRecvDataSegmentLength, for that connection as long as it lasts, our alias, and keys
    /// that no standard defines. Commands continue meanwhile.
    pub fn negotiate(&self, on: Option<Slot>, keys: &[(&str, &str)]) -> ResponseFuture<Keys, CommandError> {
        let (completer, answer) = response_channel();
        let keys = keys.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.handle.shared.order(Request::Negotiate(self.handle.id, on, keys, completer));
        answer
    }

    /// Guards a unit with an identity check: after a session recovery, the session sends the unit nothing
    /// before the unit has reported again that it is the device of `identity`
    /// ([`crate::unit::LogicalUnit::identity`]). If it is another device, watchers receive
    /// [`SessionEvent::OtherDevice`], and commands for the unit fail with [`CommandError::OtherDevice`].
    pub fn guard(&self, lun: Lun, identity: Identity) {
        self.with(move |driver, id| driver.guard(id, lun, identity));
    }

    /// Sets the command timeout: how long a command may go without a response and without data being moved.
    /// See [`Driver::limit_commands`].
    pub fn limit_commands(&self, limit: Option<std::time::Duration>) {
        self.with(move |driver, id| driver.limit_commands(id, limit));
    }

    /// Calls `watcher` with every event of the session from now on.
    pub fn watch(&self, watcher: Watcher) {
        self.handle.shared.order(Request::Watch(self.handle.id, watcher));
    }

    /// Returns the parameters that were negotiated when the session logged in.
    pub fn up(&self) -> &ProtocolUp {
        &self.handle.up
    }

    /// Returns the connections of the session; none for a session of HyperSCSI.
    pub fn connections(&self) -> ResponseFuture<Vec<ConnectionView>, CommandError> {
        self.ask(move |driver, id| driver.connections(id).ok_or(SubmitError::Down))
    }

    /// Changes how many connections the session is to have, at most as many as its URL asked for and the
    /// target allowed. The future completes at once. Connections are opened and closed while commands
    /// continue, and [`Self::connections`] returns the present ones.
    pub fn set_connections(&self, count: u16) -> ResponseFuture<(), CommandError> {
        self.ask(move |driver, id| driver.set_connections(id, count))
    }

    /// Returns the counters of the session; once it has ended, their final values.
    pub fn stats(&self) -> ResponseFuture<SessionStats, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Stats(self.handle.id, completer));
        answer
    }

    /// Returns why the session was last lost, whether it recovered or not. Commands that failed with
    /// [`CommandError::Lost`] failed for this reason. `None` if the session was never lost, or if it was
    /// logged out.
    pub fn loss(&self) -> ResponseFuture<Option<SessionLoss>, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Loss(self.handle.id, completer));
        answer
    }

    /// Logs out. Commands that are under way may end without a response; wait for them first.
    pub fn log_out(&self) -> ResponseFuture<(), CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::LogOut(self.handle.id, Some(completer)));
        answer
    }

    /// Ends the session at once, without regard to commands under way, for example after a logout that takes
    /// too long.
    pub fn close(&self) {
        self.with(move |driver, id| driver.close(id));
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.shared.order(Request::LogOut(self.id, None));
    }
}

impl Shared {
    /// Queues a request for the thread. A thread that has ended drops the request, which fails it.
    fn order(&self, order: Request) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let first = orders.is_empty();
        orders.push(order);
        drop(orders);
        if first && self.reactor.post(|_, _| ()).is_err() {
            self.refuse_all();
        }
    }

    /// Fails all queued requests, because the thread has ended.
    fn refuse_all(&self) {
        let orders = std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        orders.into_iter().for_each(Request::refuse);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let orders = std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        // The thread can no longer upgrade its weak reference to this value, so the requests are sent over a
        // channel.
        let left = orders.into_iter().chain([Request::Stop]).collect();
        let _ = self.last_orders.send(left);
        let _ = self.reactor.post(|_, _| ());
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// The state of the thread.
struct Worker {
    driver: Driver,
    shared: Weak<Shared>,
    last_orders: Receiver<Vec<Request>>,
    opening: BTreeMap<SessionId, Completer<Session, SessionError>>,
    /// The callbacks for results, by token; unused entries are in `done_free`.
    done: Vec<Option<(Option<CommandId>, Done)>>,
    done_free: Vec<usize>,
    /// The tokens of commands that can be aborted.
    tickets: BTreeMap<CommandId, usize>,
    managed: BTreeMap<u64, Completer<Option<TmfResult>, CommandError>>,
    next_managed: u64,
    talks: BTreeMap<SessionId, Talk>,
    logging_out: BTreeMap<SessionId, Vec<Completer<(), CommandError>>>,
    /// Sessions with handles; those that have ended with the values that a handle can still query.
    held: BTreeMap<SessionId, Option<Ended>>,
    watchers: BTreeMap<SessionId, Vec<Watcher>>,
    stopping: bool,
}

/// A session that has ended.
struct Ended {
    stats: SessionStats,
    loss: Option<SessionLoss>,
    down: SessionError,
}

/// The completer of a text negotiation.
enum Talk {
    Targets(Completer<(Vec<Discovered>, usize), CommandError>),
    Keys(Completer<Keys, CommandError>),
}

impl Talk {
    fn fail(self, why: CommandError) {
        match self {
            Self::Targets(completer) => completer.complete(Err(why)),
            Self::Keys(completer) => completer.complete(Err(why)),
        }
    }
}

impl Worker {
    fn new(driver: Driver, shared: Weak<Shared>, last_orders: Receiver<Vec<Request>>) -> Self {
        Self {
            driver,
            shared,
            last_orders,
            opening: BTreeMap::new(),
            done: Vec::new(),
            done_free: Vec::new(),
            tickets: BTreeMap::new(),
            managed: BTreeMap::new(),
            next_managed: 0,
            talks: BTreeMap::new(),
            logging_out: BTreeMap::new(),
            held: BTreeMap::new(),
            watchers: BTreeMap::new(),
            stopping: false,
        }
    }

    /// Runs until a stop was requested and every session has ended, or the reactor fails. Then fails all
    /// requests that have not completed.
    fn run(mut self) {
        while self.step() {}
        let Self { driver, shared, done, .. } = self;
        // From now on, new requests are refused when they are queued.
        drop(driver);
        if let Some(shared) = shared.upgrade() {
            shared.refuse_all();
        }
        done.into_iter().flatten().for_each(|(_, done)| done(Err(CommandError::Stopped)));
    }

    /// Does all pending work, and sleeps. Returns whether to continue.
    fn step(&mut self) -> bool {
        self.take_orders();
        while let Some(event) = self.driver.poll_event() {
            self.handle_event(event);
        }
        if self.stopping && self.driver.all_down() && !self.driver.has_unacked_closings() {
            return false;
        }
        self.driver.run_once(None).is_ok()
    }

    fn take_orders(&mut self) {
        let orders = match self.shared.upgrade() {
            Some(shared) => {
                std::mem::take(&mut *shared.orders.lock().unwrap_or_else(PoisonError::into_inner))
            }
            None => self.last_orders.try_iter().flatten().collect(),
        };
        for order in orders {
            self.handle_request(order);
        }
    }

    fn handle_request(&mut self, order: Request) {
        match order {
            Request::Open(plan, watchers, completer) => {
                let id = self.driver.open(plan);
                self.opening.insert(id, completer);
                self.watchers.insert(id, watchers);
            }
            Request::Submit(id, command_id, command, done) => {
                if let Some(Some(ended)) = self.held.get(&id) {
                    return done(Err(CommandError::Down(ended.down.clone())));
                }
                let at = self.done_free.pop().unwrap_or(self.done.len());
                if at == self.done.len() {
                    self.done.push(None);
                }
                if let Some(place) = self.done.get_mut(at) {
                    *place = Some((command_id, done));
                }
                self.tickets.extend(command_id.map(|command_id| (command_id, at)));
                self.driver.submit(id, u64::try_from(at).unwrap_or(u64::MAX), command);
            }
            Request::Abort(id, command_id, completer) => match self.tickets.get(&command_id) {
                Some(at) => {
                    let command = u64::try_from(*at).unwrap_or(u64::MAX);
                    let token = self.manages(completer);
                    self.driver.abort(id, token, command);
                }
                None => completer.complete(Ok(Some(TmfResult::NO_TASK))),
            },
            Request::Manage(id, function, lun, completer) => {
                let token = self.manages(completer);
                self.driver.submit_tmf(id, token, function, lun, None);
            }
            Request::SendTargets(id, only, completer) => match self.driver.send_targets(id, only.as_ref()) {
                Ok(()) => {
                    self.talks.insert(id, Talk::Targets(completer));
                }
                Err(why) => completer.complete(Err(why.into())),
            },
            Request::Negotiate(id, on, keys, completer) => {
                let keys: Vec<_> = keys.iter().map(|(name, value)| (&**name, &**value)).collect();
                match self.driver.negotiate(id, on, &keys) {
                    Ok(()) => {
                        self.talks.insert(id, Talk::Keys(completer));
                    }
                    Err(why) => completer.complete(Err(why.into())),
                }
            }
            Request::With(id, does) => does(&mut self.driver, id),
            Request::Watch(id, watcher) => self.watchers.entry(id).or_default().push(watcher),
            Request::Stats(id, completer) => {
                let ended = || self.held.get(&id)?.as_ref().map(|ended| ended.stats);
                completer.complete(
                    self.driver.stats(id).or_else(ended).ok_or(CommandError::Refused(SubmitError::Down)),
                );
            }
            Request::Loss(id, completer) => {
                let ended = || self.held.get(&id)?.as_ref()?.loss.clone();
                completer.complete(Ok(self.driver.loss(id).or_else(ended)));
            }
            Request::LogOut(id, completer) => {
                match completer {
                    Some(completer) => self.logging_out.entry(id).or_default().push(completer),
                    None => drop(self.held.remove(&id)),
                }
                self.driver.log_out(id);
                self.conclude(id);
            }
            Request::Stop => {
                self.stopping = true;
                for id in self.driver.sessions() {
                    self.driver.log_out(id);
                }
            }
        }
    }

    /// Stores the completer of a task management request, and returns its token.
    fn manages(&mut self, completer: Completer<Option<TmfResult>, CommandError>) -> u64 {
        let token = self.next_managed;
        self.next_managed += 1;
        self.managed.insert(token, completer);
        token
    }

    fn handle_event(&mut self, event: DriverEvent) {
        match event {
            DriverEvent::Finished { token, result, .. } => {
                let Ok(at) = usize::try_from(token) else { return };
                if let Some((command_id, done)) = self.done.get_mut(at).and_then(Option::take) {
                    self.done_free.push(at);
                    if let Some(command_id) = command_id {
                        self.tickets.remove(&command_id);
                    }
                    done(result);
                }
            }
            DriverEvent::TmfDone { token, result, .. } => {
                if let Some(completer) = self.managed.remove(&token) {
                    completer.complete(Ok(result));
                }
            }
            DriverEvent::Session { session, event: news } => self.handle_session_event(session, news),
        }
    }

    fn handle_session_event(&mut self, id: SessionId, news: SessionEvent) {
        if let Some(watchers) = self.watchers.get_mut(&id) {
            watchers.retain_mut(|watcher| watcher(&news));
        }
        match news {
            SessionEvent::Up(up) => {
                if let (Some(completer), Some(shared)) = (self.opening.remove(&id), self.shared.upgrade()) {
                    self.held.insert(id, None);
                    completer
                        .complete(Ok(Session { handle: Arc::new(SessionHandle { shared, id, up: *up }) }));
                }
            }
            SessionEvent::Down(why) => {
                if let Some(completer) = self.opening.remove(&id) {
                    completer.complete(Err(why));
                }
                self.conclude_down(id);
            }
            SessionEvent::Targets(found, ignored) => {
                if let Some(Talk::Targets(completer)) = self.talks.remove(&id) {
                    completer.complete(Ok((found, ignored)));
                }
            }
            SessionEvent::TextNegotiated(keys) => {
                if let Some(Talk::Keys(completer)) = self.talks.remove(&id) {
                    completer.complete(Ok(keys));
                }
            }
            SessionEvent::TextFailed => {
                if let Some(talk) = self.talks.remove(&id) {
                    talk.fail(CommandError::NoText);
                }
            }
            _ => {}
        }
    }

    /// Completes the requests that wait for the end of a session, if the session has already ended.
    fn conclude(&mut self, id: SessionId) {
        if !self.driver.sessions().contains(&id) {
            self.conclude_down(id);
        }
    }

    fn conclude_down(&mut self, id: SessionId) {
        for completer in self.logging_out.remove(&id).unwrap_or_default() {
            completer.complete(Ok(()));
        }
        if let Some(talk) = self.talks.remove(&id) {
            talk.fail(CommandError::Refused(SubmitError::Down));
        }
        self.watchers.remove(&id);
        if let Some(held) = self.held.get_mut(&id) {
            let loss = self.driver.loss(id);
            if let (Some(stats), Some(down)) = (self.driver.stats(id), self.driver.down(id)) {
                *held = Some(Ended { stats, loss, down });
            }
        }
        self.driver.forget(id);
    }
}
