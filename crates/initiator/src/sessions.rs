//! Runs several sessions as one state machine on a reactor: it records which connection belongs to which
//! session, what each session requests from the driver, and which commands wait.

mod abort;
mod command_timeout;
mod connecting;
mod events;
pub(crate) mod frames;
mod identity_check;
mod loss;
mod paths;
mod pending_attention;
mod reports;
mod stream;
#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::ops::Bound;
use std::time::Duration;

use base::buffer::Pool;
use base::ether::EtherPort;
use base::state_machine::ConnId;
use base::time::Instant;
use iscsi::initiator::Session;
use iscsi::initiator::contract::{Event as Asked, SessionOrigin, SessionStats};
use scsi::lun::Lun;
use security::opaque::{StretchJob, StretchResult};
use transport::initiator::{Outcome, SubmitError, TaskId, TaskResult, TmfId};
use transport::task_management::TmfFunction;

use crate::command::{Command, CommandError};
use crate::fault_injection::{self, Bug};
use crate::login::{IscsiPlan, ProtocolPlan, TlsPlan};
use crate::protocol::{HyperScsiSession, ProtocolEvent, ProtocolSession};
use crate::retry::{PendingCommand, RetryDecision};
use crate::session_error::SessionError;
use connecting::ConnectAttempt;
pub(crate) use connecting::TlsServer;

pub(crate) use identity_check::DiskCapacity;

pub use events::{AsyncMessage, DriverEvent, EscalationStep, Event, SessionUp, TextAnswer};
pub use paths::{Path, PathError};
use reports::pairs;

/// The id of a session of a driver. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u32);

/// The most commands of a session that wait because the session has no free task or because their unit is
/// busy. A program that submits more has lost count of them.
pub const WAITING_MAX: usize = 1 << 16;

/// The sessions, by id.
pub(crate) struct Sessions {
    pool: Pool,
    entries: BTreeMap<SessionId, SessionEntry>,
    /// The id of the next session.
    next_id: u32,
    /// The session of each connection.
    routes: Vec<Option<SessionId>>,
    attempts: BTreeMap<u32, ConnectAttempt>,
    next_dial: u32,
    /// Connections that no session uses any more.
    orphans: VecDeque<ConnId>,
    /// Host names that other threads have resolved.
    resolved: VecDeque<(u32, io::Result<Vec<SocketAddr>>)>,
    /// Connections that other threads could not make.
    failed_connects: VecDeque<(u32, io::Error)>,
    ports: frames::Ports,
    /// Results of slow steps of password logins that other threads have executed.
    stretched: VecDeque<(SessionId, StretchResult)>,
    pub(crate) events: VecDeque<DriverEvent>,
    /// The first byte of HyperSCSI session identifiers, by which the kernel selects their frames.
    pub(crate) sid_first: NonZeroU8,
}

struct SessionEntry {
    session: ProtocolSession,
    /// TLS around its connections.
    tls: Option<TlsPlan>,
    refusal: connecting::Refusal,
    /// The commands that the session executes, by the index of their task.
    tasks: Vec<Option<PendingCommand>>,
    /// Commands that the session has ended without having reported it, and whose task index it has given to
    /// another command meanwhile.
    ended: Vec<PendingCommand>,
    /// Task management requests of callers. The session may already use the index of a request that has ended
    /// for another one.
    manages: BTreeMap<TmfId, command_timeout::CallerTmf>,
    /// The command timeouts.
    overdue: command_timeout::CommandTimeouts,
    /// How long commands wait for the target, or for a unit that is not there.
    patience: Duration,
    /// Units with an identity check in every new session.
    guarded_luns: BTreeMap<Lun, identity_check::GuardedLun>,
    /// Commands for which the session had no free task.
    waiting: VecDeque<PendingCommand>,
    /// Commands that are retried later, by time.
    delayed: BTreeMap<(Instant, u64), PendingCommand>,
    delays: u64,
    /// The system error of the last failed connection attempt.
    system: Option<String>,
    parted: loss::Parted,
    paths_up: paths::PathsUp,
    down: Option<SessionError>,
    /// Whether its owner has forgotten it.
    forgotten: bool,
}

/// A request to the reactor, or to a resolver, for a session.
#[derive(Debug)]
pub(crate) enum DriverRequest {
    /// Connects, with TLS to this server if one is given, and reports the result with this number.
    Connect(u32, SocketAddr, Option<Box<TlsServer>>),
    /// Resolves a host name, and calls [`Sessions::host_resolved`] with this number.
    Resolve(u32, String, u16),
    /// Opens an interface under this number, or calls [`Sessions::port_failed`] with it.
    OpenPort(EtherPort, String),
    /// Executes the slow step of a password login, and calls [`Sessions::job_done`].
    Stretch(SessionId, Box<StretchJob>),
}

impl Sessions {
    pub(crate) fn new(pool: Pool) -> Self {
        Self {
            pool,
            entries: BTreeMap::new(),
            next_id: 0,
            routes: Vec::new(),
            attempts: BTreeMap::new(),
            next_dial: 0,
            orphans: VecDeque::new(),
            resolved: VecDeque::new(),
            failed_connects: VecDeque::new(),
            ports: frames::Ports::default(),
            stretched: VecDeque::new(),
            events: VecDeque::new(),
            sid_first: frames::random_byte(),
        }
    }

    /// Opens a session.
    pub(crate) fn open(&mut self, now: Instant, plan: ProtocolPlan) -> SessionId {
        let id = SessionId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let pool = self.pool.clone();
        let mut tls = None;
        let patience = plan.retry().timeout;
        let session = match plan {
            ProtocolPlan::Iscsi(plan) => {
                let IscsiPlan { session, tls: wanted } = *plan;
                tls = wanted;
                ProtocolSession::Iscsi(Box::new(Session::new(now, session, pool)))
            }
            ProtocolPlan::HyperScsi(mut plan) => {
                plan.session.sid_first = Some(self.sid_first);
                ProtocolSession::HyperScsi(Box::new(HyperScsiSession {
                    session: hyperscsi::initiator::session::Session::new(now, plan.session, pool),
                    interfaces: plan.interfaces,
                }))
            }
        };
        let entry = SessionEntry {
            session,
            tls,
            refusal: connecting::Refusal::default(),
            tasks: Vec::new(),
            ended: Vec::new(),
            manages: BTreeMap::new(),
            overdue: command_timeout::CommandTimeouts::new(),
            patience,
            guarded_luns: BTreeMap::new(),
            waiting: VecDeque::new(),
            delayed: BTreeMap::new(),
            delays: 0,
            system: None,
            parted: loss::Parted::default(),
            paths_up: paths::PathsUp::default(),
            down: None,
            forgotten: false,
        };
        self.entries.insert(id, entry);
        self.plug_in(now, id);
        id
    }

    /// Returns whether a session that ended still has to send its closing message.
    pub(crate) fn has_unacked_closings(&self) -> bool {
        self.entries.values().any(|entry| entry.session.has_unacked_closing())
    }

    /// Forgets a session that is down, once its closing message is sent.
    pub(crate) fn forget(&mut self, id: SessionId) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.down.is_some()) {
            entry.forgotten = true;
        }
        self.entries.retain(|_, entry| !entry.forgotten || entry.session.is_closing());
    }

    pub(crate) fn session(&mut self, id: SessionId) -> Option<&mut ProtocolSession> {
        self.entry(id).map(|entry| &mut entry.session)
    }

    /// Returns a session if it is an iSCSI session.
    pub(crate) fn iscsi(&mut self, id: SessionId) -> Result<&mut Session, SubmitError> {
        self.session(id).ok_or(SubmitError::Down)?.iscsi().ok_or(SubmitError::NotPossible)
    }

    pub(crate) fn stats(&self, id: SessionId) -> Option<SessionStats> {
        let entry = self.entries.get(&id)?;
        Some(entry.session.stats())
    }

    /// Returns whether every session has ended.
    pub(crate) fn all_down(&self) -> bool {
        self.entries.values().all(|entry| entry.down.is_some())
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.entries.iter().filter(|(_, entry)| !entry.forgotten).map(|(id, _)| *id).collect()
    }

    /// Submits a command. An event always reports its result.
    pub(crate) fn submit(&mut self, now: Instant, id: SessionId, token: u64, command: Command) {
        match self.entries.get_mut(&id) {
            Some(entry) => {
                entry.submit_or_queue(now, id, PendingCommand::new(token, command), &mut self.events)
            }
            None => {
                let result = Err(CommandError::Refused(SubmitError::Down));
                self.events.push_back(DriverEvent::Finished { session: id, token, result });
            }
        }
    }

    /// Submits a task management request for a unit. An event always reports its result.
    pub(crate) fn submit_tmf(
        &mut self,
        now: Instant,
        id: SessionId,
        token: u64,
        what: (TmfFunction, Lun, Option<TaskId>),
    ) {
        let (function, lun, task) = what;
        let taken = self.entry(id).and_then(|entry| {
            let manage = entry.session.submit_tmf(now, function, lun.0, task).ok()?;
            entry.asked(now, manage, command_timeout::CallerTmf::new(now, token, function, lun));
            Some(())
        });
        if taken.is_none() {
            self.events.push_back(DriverEvent::TmfDone { session: id, token, result: None });
        }
    }

    /// Returns the task that executes a command.
    pub(crate) fn task_of(&self, id: SessionId, token: u64) -> Option<TaskId> {
        let entry = self.entries.get(&id)?;
        entry.tasks.iter().flatten().find(|pending| pending.token == token).and_then(|pending| pending.task)
    }

    /// Processes the requests and events of the sessions. Returns whether there were any; requests to the
    /// driver are added to `errands`.
    pub(crate) fn process_pending(&mut self, now: Instant, errands: &mut Vec<DriverRequest>) -> bool {
        self.entries.retain(|_, entry| !entry.forgotten || entry.session.is_closing());
        let mut any = false;
        while let Some((number, why)) = self.failed_connects.pop_front() {
            self.dial_failed(now, number, &why);
            any = true;
        }
        while let Some((number, found)) = self.resolved.pop_front() {
            self.host_found(now, number, found);
            any = true;
        }
        let mut last = Bound::Unbounded;
        while let Some((&id, _)) = self.entries.range((last, Bound::Unbounded)).next() {
            last = Bound::Excluded(id);
            loop {
                while let Some(told) = self.session(id).and_then(ProtocolSession::poll_event) {
                    match told {
                        ProtocolEvent::Iscsi(asked) => self.handle_iscsi_event(now, id, asked, errands),
                        ProtocolEvent::HyperScsi(asked) => self.handle_hyperscsi_event(now, id, asked),
                    }
                    any = true;
                }
                let Some(entry) = self.entries.get_mut(&id) else { break };
                entry.submit_waiting(now, id, &mut self.events);
                // A command to abort may end at once, which the session reports as an event.
                if !entry.send_aborts(now) {
                    break;
                }
            }
            any |= self.follow_paths(id);
        }
        any | self.ether_errands(now, errands)
    }

    fn handle_iscsi_event(
        &mut self,
        now: Instant,
        id: SessionId,
        asked: Asked,
        errands: &mut Vec<DriverRequest>,
    ) {
        let news = match asked {
            Asked::Resolve { slot, name, port } => return errands.push(self.resolve(id, slot, name, port)),
            Asked::Connect { slot, to, host } => return errands.push(self.connect(id, slot, to, host)),
            Asked::CancelConnect { slot } => {
                self.note_slow(id, slot);
                return self.attempts.retain(|_, attempt| (attempt.session, attempt.slot) != (id, slot));
            }
            Asked::Done { task, outcome } => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                return entry.done(now, id, task, outcome, &mut self.events);
            }
            Asked::TmfDone { id: manage, result } => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                return entry.tmf_done(now, id, manage, result, &mut self.events);
            }
            Asked::Up(up) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.system = None;
                    entry.refusal.forget();
                    if up.origin == SessionOrigin::Rebuilt {
                        entry.check_identities(now, id, &mut self.events);
                    }
                }
                Event::Up(Box::new(SessionUp::Iscsi(*up)))
            }
            Asked::ConnectionUp { slot, .. } => return self.path_up(id, Path::of_connection(slot)),
            Asked::ConnectionDown { slot, why } => {
                self.note_parted(id, why);
                let system = self.entries.get(&id).and_then(|entry| entry.system.as_ref());
                let why = PathError::of_connection(why, system);
                return self.path_down(id, Path::of_connection(slot), why);
            }
            Asked::Recovering => {
                self.note_away(id);
                Event::Recovering
            }
            Asked::Down(why) => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                let down = entry.iscsi_down(why);
                entry.down = Some(down.clone());
                // The ends of waiting commands are reported before the end of the session.
                entry.submit_waiting(now, id, &mut self.events);
                Event::Down(down)
            }
            Asked::Targets { targets, ignored } => {
                return self.text_done(id, Some(TextAnswer::Targets(targets, ignored)));
            }
            Asked::TextFailed => return self.text_done(id, None),
            Asked::TextDone { answer } => return self.text_done(id, Some(TextAnswer::Keys(pairs(&answer)))),
            Asked::AsyncMessage(detail) => {
                self.note_async_attention(id, &detail);
                Event::AsyncMessage(AsyncMessage { event: detail.message.event.0, detail })
            }
            Asked::Redirected { to, .. } => Event::Redirected { to: to.to_string() },
        };
        self.report(id, news);
    }

    fn entry(&mut self, id: SessionId) -> Option<&mut SessionEntry> {
        self.entries.get_mut(&id)
    }

    fn owner(&mut self, conn: ConnId) -> Option<&mut Session> {
        let id = (*self.routes.get(index(conn.0))?)?;
        self.session(id)?.iscsi()
    }
}

impl SessionEntry {
    /// Submits a command to the session, or queues it until a task is free.
    fn submit_or_queue(
        &mut self,
        now: Instant,
        id: SessionId,
        pending: PendingCommand,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let is_check = pending.identity_check.is_some();
        if is_check && (self.down.is_some() || self.is_of_replaced_check(&pending)) {
            return;
        }
        if let Some(down) = &self.down {
            let result = Err(CommandError::Down(down.clone()));
            return events.push_back(DriverEvent::Finished { session: id, token: pending.token, result });
        }
        if let Some(why) = self.refuses(&pending) {
            let result = Err(why);
            return events.push_back(DriverEvent::Finished { session: id, token: pending.token, result });
        }
        // The limit does not apply to commands that were accepted before.
        let is_new = !pending.is_again() && !is_check;
        if is_new && self.waiting.len() + self.delayed.len() >= WAITING_MAX {
            let result = Err(CommandError::Refused(SubmitError::Full));
            return events.push_back(DriverEvent::Finished { session: id, token: pending.token, result });
        }
        if self.waiting.is_empty() || !is_new {
            match self.session.submit(now, &pending) {
                Ok(task) => return self.carried_by(now, task, pending),
                Err(SubmitError::Full) if !is_check => {}
                Err(why) if is_check => {
                    return self.identity_checked(now, id, pending, Err(CommandError::Refused(why)), events);
                }
                Err(why) => {
                    let (token, result) = (pending.token, Err(CommandError::Refused(why)));
                    return events.push_back(DriverEvent::Finished { session: id, token, result });
                }
            }
        }
        self.waiting.push_back(pending);
    }

    /// Records which task executes a command. An empty place is not taken: that would copy as much.
    fn carried_by(&mut self, now: Instant, task: TaskId, mut pending: PendingCommand) {
        pending.task = Some(task);
        pending.attempt = self.overdue.attempt(now);
        let at = index(task.index());
        if self.tasks.get(at).is_some_and(Option::is_some) {
            self.ended.extend(self.tasks.get_mut(at).and_then(Option::take));
        }
        put_at(&mut self.tasks, task.index(), pending);
    }

    /// Removes and returns the command that a task executed.
    fn take(&mut self, task: TaskId) -> Option<PendingCommand> {
        let place = self.tasks.get_mut(index(task.index()))?;
        if let Some(pending) = place
            && pending.task == Some(task)
        {
            pending.task = None;
            return place.take();
        }
        let at = self.ended.iter().position(|pending| pending.task == Some(task))?;
        let mut pending = self.ended.swap_remove(at);
        pending.task = None;
        Some(pending)
    }

    fn done(
        &mut self,
        now: Instant,
        id: SessionId,
        task: TaskId,
        outcome: Outcome,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let Some(mut pending) = self.take(task) else { return };
        let (lun, order) = (pending.command.lun, outcome.send_order);
        self.overdue.note_end(&pending, &outcome);
        pending_attention::report_deferred(id, lun, &outcome, events);
        if pending.is_attention_check {
            return self.attention_checked(now, id, pending, outcome, events);
        }
        // A function of ours ended an unsent command while the session is up. A session that ends is not up.
        let was_ended_unsent = outcome.end == TaskResult::NotSent && self.session.services().is_up();
        let (care, attention) = pending.decide(now, outcome);
        let care = match (care, self.guard_error(&pending)) {
            (RetryDecision::Finish(Ok(reply)), _) => RetryDecision::Finish(Ok(reply)),
            (_, Some(why)) => RetryDecision::Finish(Err(why)),
            (RetryDecision::Finish(Err(CommandError::Lost(_))), None) if was_ended_unsent => {
                RetryDecision::Finish(Err(CommandError::Aborted))
            }
            (RetryDecision::Finish(Err(CommandError::Lost(_))), None) => {
                RetryDecision::Finish(Err(CommandError::Lost(self.loss())))
            }
            (care, None) => care,
        };
        if let Some(asc) = attention {
            self.note_attention(now, id, (lun, order), asc, events);
        }
        match care {
            RetryDecision::Finish(result) if pending.identity_check.is_some() => {
                self.identity_checked(now, id, pending, result, events)
            }
            RetryDecision::Finish(Err(CommandError::Silence | CommandError::Cleared(_)))
                if fault_injection::is_injected(Bug::ForgetEnd) => {}
            RetryDecision::Finish(result) => {
                if fault_injection::is_injected(Bug::EndTwice) && pending.is_again() {
                    let result = result.clone();
                    events.push_back(DriverEvent::Finished { session: id, token: pending.token, result });
                }
                events.push_back(DriverEvent::Finished { session: id, token: pending.token, result })
            }
            RetryDecision::RetryNow => self.submit_or_queue(now, id, pending, events),
            RetryDecision::RetryAt(at) => {
                self.delays += 1;
                self.delayed.insert((at, self.delays), pending);
            }
        }
    }

    /// Submits waiting commands while tasks are free, and delayed commands whose time has come. Once the
    /// session is down, all of them fail.
    fn submit_waiting(&mut self, now: Instant, id: SessionId, events: &mut VecDeque<DriverEvent>) {
        while let Some(entry) = self.delayed.first_entry()
            && (entry.key().0 <= now || self.down.is_some())
        {
            let pending = entry.remove();
            self.submit_or_queue(now, id, pending, events);
        }
        while let Some(pending) = self.waiting.pop_front() {
            if self.down.is_some() {
                self.submit_or_queue(now, id, pending, events);
                continue;
            }
            let refused = self.refuses(&pending).map_or(Ok(()), Err);
            match refused.and_then(|()| Ok(self.session.submit(now, &pending)?)) {
                Ok(task) => self.carried_by(now, task, pending),
                Err(CommandError::Refused(SubmitError::Full)) => return self.waiting.push_front(pending),
                Err(why) => {
                    let result = Err(why);
                    events.push_back(DriverEvent::Finished { session: id, token: pending.token, result });
                }
            }
        }
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn put_at<T>(table: &mut Vec<Option<T>>, number: u32, value: T) {
    let at = index(number);
    table.resize_with(table.len().max(at + 1), || None);
    if let Some(place) = table.get_mut(at) {
        *place = Some(value);
    }
}
