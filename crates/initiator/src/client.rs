//! Runs sessions on a thread of their own, for callers on any thread.
//!
//! [`Client`] starts the thread. A login returns a [`Session`], which executes commands with callbacks or
//! with futures. When the last handle is dropped, the thread logs out and ends.

mod alone;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use drivers::config::Config;
use drivers::message_queue::Handle;
use iscsi::discovery::Discovered;
use iscsi::initiator::contract::{ConnectionView, SessionStats, Slot};
use iscsi::name::IscsiName;
use scsi::lun::Lun;
use transport::initiator::SubmitError;
use transport::task_management::{TmfFunction, TmfResult};

use crate::command::{Command, CommandError, Reply};
use crate::command_handle::{CommandHandle, CommandId};
use crate::disk::Disk;
use crate::driver::Driver;
use crate::error::Error;
use crate::future::{Completer, ResponseFuture, response_channel};
use crate::identity::Identity;
use crate::login::ProtocolPlan;
use crate::open::OpenOptions;
use crate::session_error::{SessionError, SessionLoss};
use crate::sessions::{DiskCapacity, Event, Path, SessionId, SessionUp, Sessions};
use crate::url::Url;
use worker::Worker;

/// A callback for the result of a command. It is called on the client's thread and must not block.
pub(crate) type Done = Box<dyn FnOnce(Result<Reply, CommandError>) + Send>;

/// A callback for the events of a session. It is called on the client's thread and must not block. It returns
/// whether it is to be called again.
pub(crate) type Watcher = Box<dyn FnMut(&Event) -> bool + Send>;

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
    up: SessionUp,
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
    /// Returns [`Error::Start`] if the system cannot create the thread, the event loop or its memory.
    pub fn new() -> Result<Self, Error> {
        Self::with_config(&Config::default())
    }

    /// Starts a thread whose reactor has this configuration. The type of the configuration is part of
    /// [`crate::unstable`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_config(config: &Config) -> Result<Self, Error> {
        let config = config.clone();
        let (report, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("targe-initiator".to_owned()).spawn(move || {
            let driver = match Driver::with_config(&config) {
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
        });
        let thread = thread.map_err(Error::start)?;
        let died = || Error::start(std::io::Error::other("the thread ended while it started"));
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

    /// Logs in to the target of a URL and opens its unit as a disk. Passwords that the URL does not contain
    /// come from the files that it names, or from the environment; [`OpenOptions`] has other sources.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn open<U>(&self, url: U) -> Result<Disk, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        OpenOptions::new().open(self, url).await
    }

    /// Logs in to the target of a URL, for commands of any kind.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn log_in<U>(&self, url: U) -> Result<Session, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        OpenOptions::new().log_in(self, url).await
    }

    /// Logs in by a plan ([`crate::driver::plan`]). The session is up when the future completes. The plan
    /// bounds the time of connecting and logging in together: 30 seconds unless it says otherwise.
    pub fn log_in_planned(&self, plan: impl Into<ProtocolPlan>) -> ResponseFuture<Session, SessionError> {
        self.log_in_planned_watched(plan, Vec::new())
    }

    pub(crate) fn log_in_planned_watched(
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
    /// session is recovering, commands wait. At most [`crate::driver::WAITING_MAX`] commands may wait.
    pub fn submit(&self, command: Command, done: impl FnOnce(Result<Reply, CommandError>) + Send + 'static) {
        self.handle.shared.order(Request::Submit(self.handle.id, None, command, Box::new(done)));
    }

    /// Executes a command. Dropping the future does not abort the command.
    pub fn run(&self, command: Command) -> ResponseFuture<Reply, CommandError> {
        let (completer, answer) = response_channel();
        self.submit(command, move |result| completer.complete(result));
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
    /// [`crate::discover::targets`] does this in a session of its own.
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
    /// ([`crate::LogicalUnit::identity`]). If it is another device, watchers receive
    /// [`Event::OtherDevice`], and commands for the unit fail with [`CommandError::OtherDevice`]. While the
    /// unit is not there or not ready, its commands wait as long as they would wait for the target, and fail
    /// after that with [`CommandError::UnconfirmedDevice`] until the unit reports its device.
    pub fn guard(&self, lun: Lun, identity: Identity) {
        self.with(move |driver, id| driver.guard(id, lun, identity));
    }

    /// Guards a unit with its capacity, as [`Self::guard`] does with its identity.
    pub(crate) fn guard_capacity(&self, lun: Lun, capacity: DiskCapacity) {
        self.with(move |driver, id| driver.guard_capacity(id, lun, capacity));
    }

    /// Sets the command timeout: how long a command may go without a response and without data being moved.
    /// See [`Driver::limit_commands`].
    pub fn limit_commands(&self, limit: Option<std::time::Duration>) {
        self.with(move |driver, id| driver.limit_commands(id, limit));
    }

    /// Calls `watcher` with every event of the session from now on, for as long as it returns true. It is
    /// called on the client's thread and must not block.
    pub fn watch(&self, watcher: impl FnMut(&Event) -> bool + Send + 'static) {
        self.handle.shared.order(Request::Watch(self.handle.id, Box::new(watcher)));
    }

    /// Returns the parameters that were negotiated when the session logged in.
    pub fn up(&self) -> &SessionUp {
        &self.handle.up
    }

    /// Returns the paths that are up: none while the session is recovering.
    pub fn paths(&self) -> ResponseFuture<Vec<Path>, CommandError> {
        self.ask(move |driver, id| driver.paths(id).ok_or(SubmitError::Down))
    }

    /// Returns the connections of an iSCSI session with their parameters, whose types are part of
    /// [`crate::unstable`]; none for a session of HyperSCSI. [`Self::paths`] is for both.
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
