//! Sessions on a thread of their own, for callers on any thread.
//!
//! [`Client`] starts the thread; [`Session`] is what a login gives: commands with callbacks, or with answers to be
//! awaited. The thread ends when the last handle is dropped: it logs out first.

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
use iscsi::initiator::contract::{ConnectionView, SessionStats, Slot, SubmitError};
use iscsi::name::IscsiName;
use iscsi::pdu::tmf_request::TmfFunction;
use iscsi::pdu::tmf_response::TmfResult;
use scsi::lun::Lun;

use crate::command::{Command, CommandError, Reply};
use crate::command_handle::{CommandHandle, CommandId};
use crate::driver::Driver;
use crate::future::{Completer, ResponseFuture, response_channel};
use crate::identity::Identity;
use crate::login::ProtocolPlan;
use crate::session_error::{SessionError, SessionLoss};
use crate::sessions::{DriverEvent, ProtocolUp, SessionEvent, SessionId, Sessions};

/// What to do with the result of a command. Called on the client's thread: it must not block.
pub type Done = Box<dyn FnOnce(Result<Reply, CommandError>) + Send>;

/// Hears what happens to a session. Called on the client's thread: it must not block. Returns whether it wants to hear
/// more.
pub type Watcher = Box<dyn FnMut(&SessionEvent) -> bool + Send>;

/// A thread with sessions on it. Clones reach the same one.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// A session that was up. Clones are the same one; it is logged out when the last is dropped.
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

/// What all handles share.
struct Shared {
    orders: Mutex<Vec<Request>>,
    reactor: Handle<Sessions>,
    /// The number of the next command that can be ended.
    tickets: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// What was ordered when the last handle went.
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
    /// Without anybody who waits for it, nobody has the session in hand any more.
    LogOut(SessionId, Option<Completer<(), CommandError>>),
    Stop,
}

/// Steps that the driver takes alone.
type Does = Box<dyn FnOnce(&mut Driver, SessionId) + Send>;
/// Names and values of keys.
type Keys = Vec<(String, String)>;

impl Request {
    /// Tells who gave the order that nobody follows it. Tellers tell so by being dropped.
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
    /// [`ReactorError`]: what the system says of a thread, an event loop or its memory.
    pub fn start(config: &Config) -> Result<Self, ReactorError> {
        let config = config.clone();
        let (report, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("targe-initiator".to_owned()).spawn(move || {
            let driver = match Driver::new(&config) {
                Ok(driver) => driver,
                Err(why) => {
                    // Whoever started us waits for this word.
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
        let died = || ReactorError::Io(std::io::Error::other("the thread died as it started"));
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

    /// Logs in. The session is up once the answer is there. How long connecting and logging in may take together is the
    /// plan's business: 30 seconds if it does not say otherwise.
    pub fn log_in(&self, plan: impl Into<ProtocolPlan>) -> ResponseFuture<Session, SessionError> {
        self.log_in_watched(plan, Vec::new())
    }

    /// Logs in, and has `watchers` hear everything from the first attempt on.
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
    /// Has a command carried out, and `done` called with what came of it, exactly once, on the client's thread. Commands may
    /// be given while the session is being built anew: they wait. [`crate::sessions::WAITING_MAX`] may wait.
    pub fn submit(&self, command: Command, done: Done) {
        self.handle.shared.order(Request::Submit(self.handle.id, None, command, done));
    }

    /// Has a command carried out. Dropping the answer does not end it.
    pub fn run(&self, command: Command) -> ResponseFuture<Reply, CommandError> {
        let (completer, answer) = response_channel();
        self.submit(command, Box::new(move |result| completer.complete(result)));
        answer
    }

    /// Has a command carried out that can be ended before it ends by itself.
    pub fn start_command(&self, command: Command) -> CommandHandle {
        let (completer, answer) = response_channel();
        let command_id = CommandId(self.handle.shared.tickets.fetch_add(1, Ordering::Relaxed));
        let done = Box::new(move |result| completer.complete(result));
        self.handle.shared.order(Request::Submit(self.handle.id, Some(command_id), command, done));
        CommandHandle::new(self.clone(), command_id, answer)
    }

    /// Ends a command.
    pub(crate) fn abort(&self, command_id: CommandId) -> ResponseFuture<Option<TmfResult>, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Abort(self.handle.id, command_id, completer));
        answer
    }

    /// Sends a task management request for a unit: LOGICAL UNIT RESET, ABORT TASK SET and the like. The answer is
    /// `None` when the session was lost before it came.
    pub fn submit_tmf(
        &self,
        function: TmfFunction,
        lun: Lun,
    ) -> ResponseFuture<Option<TmfResult>, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Manage(self.handle.id, function, lun, completer));
        answer
    }

    /// Asks for all targets (in a discovery session), or for what the target says of this one. The number is that of
    /// entries that were left out since they are no legal names or addresses.
    pub fn send_targets(
        &self,
        only: Option<IscsiName>,
    ) -> ResponseFuture<(Vec<Discovered>, usize), CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::SendTargets(self.handle.id, only, completer));
        answer
    }

    /// Negotiates keys while the session is up, on the connection at `on` or on any, and returns what the target
    /// answered; one conversation at a time. What may be negotiated then is not much (RFC 7143 §13):
    /// MaxRecvDataSegmentLength, for that connection and as long as it lives, our alias, and keys that no standard
    /// knows. Commands go on meanwhile.
    pub fn negotiate(&self, on: Option<Slot>, keys: &[(&str, &str)]) -> ResponseFuture<Keys, CommandError> {
        let (completer, answer) = response_channel();
        let keys = keys.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.handle.shared.order(Request::Negotiate(self.handle.id, on, keys, completer));
        answer
    }

    /// Guards a unit: nothing is sent to it in a session that was built anew before it has said again that it is the
    /// device that `identity` tells of ([`crate::unit::LogicalUnit::identity`]). If it is another one, watchers hear
    /// [`SessionEvent::OtherDevice`], and commands for it fail with [`CommandError::OtherDevice`].
    pub fn guard(&self, lun: Lun, identity: Identity) {
        self.with(move |driver, id| driver.guard(id, lun, identity));
    }

    /// Sets how long a command may go without an answer and without data being moved: see [`Driver::limit_commands`].
    pub fn limit_commands(&self, limit: Option<std::time::Duration>) {
        self.with(move |driver, id| driver.limit_commands(id, limit));
    }

    /// Has `watcher` hear what happens to the session from now on.
    pub fn watch(&self, watcher: Watcher) {
        self.handle.shared.order(Request::Watch(self.handle.id, watcher));
    }

    /// Returns what was agreed on when the session came up.
    pub fn up(&self) -> &ProtocolUp {
        &self.handle.up
    }

    /// Returns the connections that there are; none for a session of HyperSCSI.
    pub fn connections(&self) -> ResponseFuture<Vec<ConnectionView>, CommandError> {
        self.ask(move |driver, id| driver.connections(id).ok_or(SubmitError::Down))
    }

    /// Changes how many connections the session is to have, at most as many as its URL asked for and the target allowed. The
    /// answer comes at once; connections come and go while commands go on, and [`Self::connections`] tells how far it is.
    pub fn set_connections(&self, count: u16) -> ResponseFuture<(), CommandError> {
        self.ask(move |driver, id| driver.set_connections(id, count))
    }

    /// Returns what the session did so far; once it has ended, all that it did.
    pub fn stats(&self) -> ResponseFuture<SessionStats, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Stats(self.handle.id, completer));
        answer
    }

    /// Returns why the session was last lost, for a time or for good: what [`CommandError::Lost`] and commands that failed with
    /// it ended of. `None` if that never happened, or if it was logged out.
    pub fn loss(&self) -> ResponseFuture<Option<SessionLoss>, CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::Loss(self.handle.id, completer));
        answer
    }

    /// Logs out. Commands that are under way may end without an answer; wait for them first.
    pub fn log_out(&self) -> ResponseFuture<(), CommandError> {
        let (completer, answer) = response_channel();
        self.handle.shared.order(Request::LogOut(self.handle.id, Some(completer)));
        answer
    }

    /// Ends the session at once, whatever is under way: what a logout that takes too long may be followed by.
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
    /// Leaves an order for the thread. One that has ended drops it, which tells those who wait.
    fn order(&self, order: Request) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let first = orders.is_empty();
        orders.push(order);
        drop(orders);
        if first && self.reactor.post(|_, _| ()).is_err() {
            self.refuse_all();
        }
    }

    /// Tells those who wait that the thread has ended.
    fn refuse_all(&self) {
        let orders = std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        orders.into_iter().for_each(Request::refuse);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let orders = std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        // The thread cannot take them from us any more: they go as a letter.
        let left = orders.into_iter().chain([Request::Stop]).collect();
        let _ = self.last_orders.send(left);
        let _ = self.reactor.post(|_, _| ());
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // What it panicked about it has said.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// The thread's side.
struct Worker {
    driver: Driver,
    shared: Weak<Shared>,
    last_orders: Receiver<Vec<Request>>,
    opening: BTreeMap<SessionId, Completer<Session, SessionError>>,
    /// What to do with results, by their token; free places are listed.
    done: Vec<Option<(Option<CommandId>, Done)>>,
    done_free: Vec<usize>,
    /// The tokens of commands that can be ended.
    tickets: BTreeMap<CommandId, usize>,
    managed: BTreeMap<u64, Completer<Option<TmfResult>, CommandError>>,
    next_managed: u64,
    talks: BTreeMap<SessionId, Talk>,
    logging_out: BTreeMap<SessionId, Vec<Completer<(), CommandError>>>,
    /// Sessions that somebody has in hand, and what is to be known of those that have ended meanwhile.
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

/// Who waits for the answer to a text.
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

    /// Works until it is told to stop and every session has ended, or the reactor breaks. Then tells those who still
    /// wait that nothing more will come.
    fn run(mut self) {
        while self.step() {}
        let Self { driver, shared, done, .. } = self;
        // From now on, orders are refused where they are given.
        drop(driver);
        if let Some(shared) = shared.upgrade() {
            shared.refuse_all();
        }
        done.into_iter().flatten().for_each(|(_, done)| done(Err(CommandError::Stopped)));
    }

    /// Does what is there to do, and sleeps. Returns whether there will be more.
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

    /// Keeps who waits for the answer to a task management request, and returns its token.
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

    /// Tells those who wait for the end of a session that has ended already.
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
