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
use iscsi::initiator::contract::{ConnectionView, Refusal, Slot, Stats};
use iscsi::name::IscsiName;
use iscsi::pdu::tmf_request::TmfFunction;
use iscsi::pdu::tmf_response::TmfResult;
use scsi::lun::Lun;

use crate::answer::{Answer, Teller, answer};
use crate::command::{Command, CommandError, Reply};
use crate::down::{Loss, SessionDown};
use crate::driver::Driver;
use crate::identity::Identity;
use crate::login::Plan;
use crate::running::{Running, Ticket};
use crate::sessions::{Event, News, SessionId, Sessions, Up};

/// What to do with the result of a command. Called on the client's thread: it must not block.
pub type Done = Box<dyn FnOnce(Result<Reply, CommandError>) + Send>;

/// Hears what happens to a session. Called on the client's thread: it must not block. Returns whether it wants to hear
/// more.
pub type Watcher = Box<dyn FnMut(&News) -> bool + Send>;

/// A thread with sessions on it. Clones reach the same one.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// A session that was up. Clones are the same one; it is logged out when the last is dropped.
#[derive(Clone, Debug)]
pub struct Session {
    seat: Arc<Seat>,
}

#[derive(Debug)]
struct Seat {
    shared: Arc<Shared>,
    id: SessionId,
    up: Up,
}

/// What all handles share.
struct Shared {
    orders: Mutex<Vec<Order>>,
    reactor: Handle<Sessions>,
    /// The number of the next command that can be ended.
    tickets: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// What was ordered when the last handle went.
    last_orders: Sender<Vec<Order>>,
}

enum Order {
    Open(Plan, Vec<Watcher>, Teller<Session, SessionDown>),
    Submit(SessionId, Option<Ticket>, Command, Done),
    Abort(SessionId, Ticket, Teller<Option<TmfResult>, CommandError>),
    Manage(SessionId, TmfFunction, Lun, Teller<Option<TmfResult>, CommandError>),
    SendTargets(SessionId, Option<IscsiName>, Teller<(Vec<Discovered>, usize), CommandError>),
    Negotiate(SessionId, Option<Slot>, Vec<(String, String)>, Teller<Keys, CommandError>),
    Watch(SessionId, Watcher),
    Stats(SessionId, Teller<Stats, CommandError>),
    Loss(SessionId, Teller<Option<Loss>, CommandError>),
    With(SessionId, Does),
    /// Without anybody who waits for it, nobody has the session in hand any more.
    LogOut(SessionId, Option<Teller<(), CommandError>>),
    Stop,
}

/// Steps that the driver takes alone.
type Does = Box<dyn FnOnce(&mut Driver, SessionId) + Send>;
/// Names and values of keys.
type Keys = Vec<(String, String)>;

impl Order {
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
                Desk::new(driver, shared, last_orders).run();
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
    pub fn log_in(&self, plan: impl Into<Plan>) -> Answer<Session, SessionDown> {
        self.log_in_watched(plan, Vec::new())
    }

    /// Logs in, and has `watchers` hear everything from the first attempt on.
    pub fn log_in_watched(
        &self,
        plan: impl Into<Plan>,
        watchers: Vec<Watcher>,
    ) -> Answer<Session, SessionDown> {
        let (teller, answer) = answer();
        self.shared.order(Order::Open(plan.into(), watchers, teller));
        answer
    }
}

impl Session {
    /// Has a command carried out, and `done` called with what came of it, exactly once, on the client's thread. Commands may
    /// be given while the session is being built anew: they wait. [`crate::sessions::WAITING_MAX`] may wait.
    pub fn submit(&self, command: Command, done: Done) {
        self.seat.shared.order(Order::Submit(self.seat.id, None, command, done));
    }

    /// Has a command carried out. Dropping the answer does not end it.
    pub fn run(&self, command: Command) -> Answer<Reply, CommandError> {
        let (teller, answer) = answer();
        self.submit(command, Box::new(move |result| teller.tell(result)));
        answer
    }

    /// Has a command carried out that can be ended before it ends by itself.
    pub fn begin(&self, command: Command) -> Running {
        let (teller, answer) = answer();
        let ticket = Ticket(self.seat.shared.tickets.fetch_add(1, Ordering::Relaxed));
        let done = Box::new(move |result| teller.tell(result));
        self.seat.shared.order(Order::Submit(self.seat.id, Some(ticket), command, done));
        Running::new(self.clone(), ticket, answer)
    }

    /// Ends a command.
    pub(crate) fn abort(&self, ticket: Ticket) -> Answer<Option<TmfResult>, CommandError> {
        let (teller, answer) = answer();
        self.seat.shared.order(Order::Abort(self.seat.id, ticket, teller));
        answer
    }

    /// Sends a task management request for a unit: LOGICAL UNIT RESET, ABORT TASK SET and the like. The answer is
    /// `None` when the session was lost before it came.
    pub fn manage(&self, function: TmfFunction, lun: Lun) -> Answer<Option<TmfResult>, CommandError> {
        let (teller, answer) = answer();
        self.seat.shared.order(Order::Manage(self.seat.id, function, lun, teller));
        answer
    }

    /// Asks for all targets (in a discovery session), or for what the target says of this one. The number is that of
    /// entries that were left out since they are no legal names or addresses.
    pub fn send_targets(&self, only: Option<IscsiName>) -> Answer<(Vec<Discovered>, usize), CommandError> {
        let (teller, answer) = answer();
        self.seat.shared.order(Order::SendTargets(self.seat.id, only, teller));
        answer
    }

    /// Negotiates keys while the session is up, on the connection at `on` or on any, and returns what the target
    /// answered; one conversation at a time. What may be negotiated then is not much (RFC 7143 §13):
    /// MaxRecvDataSegmentLength, for that connection and as long as it lives, our alias, and keys that no standard
    /// knows. Commands go on meanwhile.
    pub fn negotiate(&self, on: Option<Slot>, keys: &[(&str, &str)]) -> Answer<Keys, CommandError> {
        let (teller, answer) = answer();
        let keys = keys.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.seat.shared.order(Order::Negotiate(self.seat.id, on, keys, teller));
        answer
    }

    /// Guards a unit: nothing is sent to it in a session that was built anew before it has said again that it is the
    /// device that `identity` tells of ([`crate::unit::LogicalUnit::identity`]). If it is another one, watchers hear
    /// [`News::OtherDevice`], and commands for it fail with [`CommandError::OtherDevice`].
    pub fn guard(&self, lun: Lun, identity: Identity) {
        self.with(move |driver, id| driver.guard(id, lun, identity));
    }

    /// Sets how long a command may go without an answer and without data being moved: see [`Driver::limit_commands`].
    pub fn limit_commands(&self, limit: Option<std::time::Duration>) {
        self.with(move |driver, id| driver.limit_commands(id, limit));
    }

    /// Has `watcher` hear what happens to the session from now on.
    pub fn watch(&self, watcher: Watcher) {
        self.seat.shared.order(Order::Watch(self.seat.id, watcher));
    }

    /// Returns what was agreed on when the session came up.
    pub fn up(&self) -> &Up {
        &self.seat.up
    }

    /// Returns the connections that there are; none for a session of HyperSCSI.
    pub fn connections(&self) -> Answer<Vec<ConnectionView>, CommandError> {
        self.ask(move |driver, id| driver.connections(id).ok_or(Refusal::Down))
    }

    /// Changes how many connections the session is to have, at most as many as its URL asked for and the target allowed. The
    /// answer comes at once; connections come and go while commands go on, and [`Self::connections`] tells how far it is.
    pub fn set_connections(&self, count: u16) -> Answer<(), CommandError> {
        self.ask(move |driver, id| driver.set_connections(id, count))
    }

    /// Returns what the session did so far; once it has ended, all that it did.
    pub fn stats(&self) -> Answer<Stats, CommandError> {
        let (teller, answer) = answer();
        self.seat.shared.order(Order::Stats(self.seat.id, teller));
        answer
    }

    /// Returns why the session was last lost, for a time or for good: what [`CommandError::Lost`] and commands that failed with
    /// it ended of. `None` if that never happened, or if it was logged out.
    pub fn loss(&self) -> Answer<Option<Loss>, CommandError> {
        let (teller, answer) = answer();
        self.seat.shared.order(Order::Loss(self.seat.id, teller));
        answer
    }

    /// Logs out. Commands that are under way may end without an answer; wait for them first.
    pub fn log_out(&self) -> Answer<(), CommandError> {
        let (teller, answer) = answer();
        self.seat.shared.order(Order::LogOut(self.seat.id, Some(teller)));
        answer
    }

    /// Ends the session at once, whatever is under way: what a logout that takes too long may be followed by.
    pub fn close(&self) {
        self.with(move |driver, id| driver.close(id));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.order(Order::LogOut(self.id, None));
    }
}

impl Shared {
    /// Leaves an order for the thread. One that has ended drops it, which tells those who wait.
    fn order(&self, order: Order) {
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
        orders.into_iter().for_each(Order::refuse);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let orders = std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        // The thread cannot take them from us any more: they go as a letter.
        let left = orders.into_iter().chain([Order::Stop]).collect();
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
struct Desk {
    driver: Driver,
    shared: Weak<Shared>,
    last_orders: Receiver<Vec<Order>>,
    opening: BTreeMap<SessionId, Teller<Session, SessionDown>>,
    /// What to do with results, by their token; free places are listed.
    done: Vec<Option<(Option<Ticket>, Done)>>,
    done_free: Vec<usize>,
    /// The tokens of commands that can be ended.
    tickets: BTreeMap<Ticket, usize>,
    managed: BTreeMap<u64, Teller<Option<TmfResult>, CommandError>>,
    next_managed: u64,
    talks: BTreeMap<SessionId, Talk>,
    logging_out: BTreeMap<SessionId, Vec<Teller<(), CommandError>>>,
    /// Sessions that somebody has in hand, and what is to be known of those that have ended meanwhile.
    held: BTreeMap<SessionId, Option<Ended>>,
    watchers: BTreeMap<SessionId, Vec<Watcher>>,
    stopping: bool,
}

/// A session that has ended.
struct Ended {
    stats: Stats,
    loss: Option<Loss>,
    down: SessionDown,
}

/// Who waits for the answer to a text.
enum Talk {
    Targets(Teller<(Vec<Discovered>, usize), CommandError>),
    Keys(Teller<Keys, CommandError>),
}

impl Talk {
    fn fail(self, why: CommandError) {
        match self {
            Self::Targets(teller) => teller.tell(Err(why)),
            Self::Keys(teller) => teller.tell(Err(why)),
        }
    }
}

impl Desk {
    fn new(driver: Driver, shared: Weak<Shared>, last_orders: Receiver<Vec<Order>>) -> Self {
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
            self.tell(event);
        }
        if self.stopping && self.driver.all_down() && !self.driver.have_last_words() {
            return false;
        }
        self.driver.turn(None).is_ok()
    }

    fn take_orders(&mut self) {
        let orders = match self.shared.upgrade() {
            Some(shared) => {
                std::mem::take(&mut *shared.orders.lock().unwrap_or_else(PoisonError::into_inner))
            }
            None => self.last_orders.try_iter().flatten().collect(),
        };
        for order in orders {
            self.heed(order);
        }
    }

    fn heed(&mut self, order: Order) {
        match order {
            Order::Open(plan, watchers, teller) => {
                let id = self.driver.open(plan);
                self.opening.insert(id, teller);
                self.watchers.insert(id, watchers);
            }
            Order::Submit(id, ticket, command, done) => {
                if let Some(Some(ended)) = self.held.get(&id) {
                    return done(Err(CommandError::Down(ended.down.clone())));
                }
                let at = self.done_free.pop().unwrap_or(self.done.len());
                if at == self.done.len() {
                    self.done.push(None);
                }
                if let Some(place) = self.done.get_mut(at) {
                    *place = Some((ticket, done));
                }
                self.tickets.extend(ticket.map(|ticket| (ticket, at)));
                self.driver.submit(id, u64::try_from(at).unwrap_or(u64::MAX), command);
            }
            Order::Abort(id, ticket, teller) => match self.tickets.get(&ticket) {
                Some(at) => {
                    let command = u64::try_from(*at).unwrap_or(u64::MAX);
                    let token = self.manages(teller);
                    self.driver.abort(id, token, command);
                }
                None => teller.tell(Ok(Some(TmfResult::NO_TASK))),
            },
            Order::Manage(id, function, lun, teller) => {
                let token = self.manages(teller);
                self.driver.manage(id, token, function, lun, None);
            }
            Order::SendTargets(id, only, teller) => match self.driver.send_targets(id, only.as_ref()) {
                Ok(()) => {
                    self.talks.insert(id, Talk::Targets(teller));
                }
                Err(why) => teller.tell(Err(why.into())),
            },
            Order::Negotiate(id, on, keys, teller) => {
                let keys: Vec<_> = keys.iter().map(|(name, value)| (&**name, &**value)).collect();
                match self.driver.negotiate(id, on, &keys) {
                    Ok(()) => {
                        self.talks.insert(id, Talk::Keys(teller));
                    }
                    Err(why) => teller.tell(Err(why.into())),
                }
            }
            Order::With(id, does) => does(&mut self.driver, id),
            Order::Watch(id, watcher) => self.watchers.entry(id).or_default().push(watcher),
            Order::Stats(id, teller) => {
                let ended = || self.held.get(&id)?.as_ref().map(|ended| ended.stats);
                teller.tell(self.driver.stats(id).or_else(ended).ok_or(CommandError::Refused(Refusal::Down)));
            }
            Order::Loss(id, teller) => {
                let ended = || self.held.get(&id)?.as_ref()?.loss.clone();
                teller.tell(Ok(self.driver.loss(id).or_else(ended)));
            }
            Order::LogOut(id, teller) => {
                match teller {
                    Some(teller) => self.logging_out.entry(id).or_default().push(teller),
                    None => drop(self.held.remove(&id)),
                }
                self.driver.log_out(id);
                self.conclude(id);
            }
            Order::Stop => {
                self.stopping = true;
                for id in self.driver.sessions() {
                    self.driver.log_out(id);
                }
            }
        }
    }

    /// Keeps who waits for the answer to a task management request, and returns its token.
    fn manages(&mut self, teller: Teller<Option<TmfResult>, CommandError>) -> u64 {
        let token = self.next_managed;
        self.next_managed += 1;
        self.managed.insert(token, teller);
        token
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Finished { token, result, .. } => {
                let Ok(at) = usize::try_from(token) else { return };
                if let Some((ticket, done)) = self.done.get_mut(at).and_then(Option::take) {
                    self.done_free.push(at);
                    if let Some(ticket) = ticket {
                        self.tickets.remove(&ticket);
                    }
                    done(result);
                }
            }
            Event::Managed { token, result, .. } => {
                if let Some(teller) = self.managed.remove(&token) {
                    teller.tell(Ok(result));
                }
            }
            Event::Session { session, news } => self.spread(session, news),
        }
    }

    fn spread(&mut self, id: SessionId, news: News) {
        if let Some(watchers) = self.watchers.get_mut(&id) {
            watchers.retain_mut(|watcher| watcher(&news));
        }
        match news {
            News::Up(up) => {
                if let (Some(teller), Some(shared)) = (self.opening.remove(&id), self.shared.upgrade()) {
                    self.held.insert(id, None);
                    teller.tell(Ok(Session { seat: Arc::new(Seat { shared, id, up: *up }) }));
                }
            }
            News::Down(why) => {
                if let Some(teller) = self.opening.remove(&id) {
                    teller.tell(Err(why));
                }
                self.conclude_down(id);
            }
            News::Targets(found, ignored) => {
                if let Some(Talk::Targets(teller)) = self.talks.remove(&id) {
                    teller.tell(Ok((found, ignored)));
                }
            }
            News::Agreed(keys) => {
                if let Some(Talk::Keys(teller)) = self.talks.remove(&id) {
                    teller.tell(Ok(keys));
                }
            }
            News::TextFailed => {
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
        for teller in self.logging_out.remove(&id).unwrap_or_default() {
            teller.tell(Ok(()));
        }
        if let Some(talk) = self.talks.remove(&id) {
            talk.fail(CommandError::Refused(Refusal::Down));
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
