//! The thread that runs the sessions of a client.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError, Weak};

use iscsi::discovery::Discovered;
use iscsi::initiator::contract::SessionStats;
use transport::initiator::SubmitError;
use transport::task_management::TmfResult;

use super::{Done, Keys, Request, Session, SessionHandle, Shared, Watcher};
use crate::command::CommandError;
use crate::command_handle::CommandId;
use crate::driver::Driver;
use crate::future::Completer;
use crate::session_error::{SessionError, SessionLoss};
use crate::sessions::{DriverEvent, Event, SessionId, TextAnswer};

/// The state of the thread.
pub(super) struct Worker {
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
    fn complete(self, result: Option<TextAnswer>) {
        match (self, result) {
            (Self::Targets(completer), Some(TextAnswer::Targets(found, ignored))) => {
                completer.complete(Ok((found, ignored)));
            }
            (Self::Keys(completer), Some(TextAnswer::Keys(keys))) => completer.complete(Ok(keys)),
            (talk, _) => talk.fail(CommandError::NoText),
        }
    }

    fn fail(self, why: CommandError) {
        match self {
            Self::Targets(completer) => completer.complete(Err(why)),
            Self::Keys(completer) => completer.complete(Err(why)),
        }
    }
}

impl Worker {
    pub(super) fn new(driver: Driver, shared: Weak<Shared>, last_orders: Receiver<Vec<Request>>) -> Self {
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
    pub(super) fn run(mut self) {
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
            DriverEvent::TextDone { session, result } => {
                if let Some(talk) = self.talks.remove(&session) {
                    talk.complete(result);
                }
            }
            DriverEvent::Session { session, event: news } => self.handle_session_event(session, news),
        }
    }

    fn handle_session_event(&mut self, id: SessionId, news: Event) {
        if let Some(watchers) = self.watchers.get_mut(&id) {
            watchers.retain_mut(|watcher| watcher(&news));
        }
        match news {
            Event::Up(up) => {
                if let (Some(completer), Some(shared)) = (self.opening.remove(&id), self.shared.upgrade()) {
                    self.held.insert(id, None);
                    completer
                        .complete(Ok(Session { handle: Arc::new(SessionHandle { shared, id, up: *up }) }));
                }
            }
            Event::Down(why) => {
                if let Some(completer) = self.opening.remove(&id) {
                    completer.complete(Err(why));
                }
                self.conclude_down(id);
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
