//! What is registered with one name server, and what has to be said to it next.
//!
//! The client talks in *bursts*: its owner connects, sends each request of the burst when the response to the
//! one before has come, and closes the connection. A burst either registers everything, or checks that
//! everything still is registered, or removes it. [`Client::next_burst_at`] says when the next one is due,
//! and the owner says at its beginning what is to be registered then.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use base::time::Instant;

use crate::message::{self, Message, MessageError, Status, function, tag};
use crate::registration::{Portal, Registration, Request};

/// The Registration Period that a registration asks for. The server decides.
const PERIOD: Duration = Duration::from_secs(300);

/// The longest and the shortest time between two checks, whatever period a server demands.
const CHECK_MAX: Duration = Duration::from_secs(60);
const CHECK_MIN: Duration = Duration::from_secs(5);

/// The interval of inquiries that a registration asks for. The server decides.
const INQUIRY_INTERVAL_S: u32 = 60;

/// The time before the second attempt after a failure. It doubles with each further failure.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Why a burst failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
    /// The server sent something that is no message.
    #[error("the server sent nonsense: {0}")]
    Message(#[from] MessageError),
    /// The server answered something else than what it was asked.
    #[error("the server answered function {answered:#06x} to request {asked:#06x}")]
    Unexpected {
        /// The function of the request.
        asked: u16,
        /// The function of the answer.
        answered: u16,
    },
    /// The server refused to register the targets.
    #[error("the server refused the registration: {0}")]
    Registration(Status),
    /// The server registered another entity than the one that it was told.
    #[error("the server registered the entity {0:?} instead")]
    OtherEntity(String),
    /// The server refused to remove the registration.
    #[error("the server refused to remove the registration: {0}")]
    Deregistration(Status),
}

/// What a server knows of the targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No burst has ended yet.
    Starting,
    /// The targets are registered.
    Registered,
    /// The last burst failed.
    Failed(ClientError),
}

/// A registration, and where the server can reach us.
type Wanted = (Registration, Option<Portal>);

/// The client of one server.
#[derive(Debug)]
pub struct Client {
    /// What this burst or the last one is about; `None` if nothing is to be registered.
    wanted: Option<Wanted>,
    /// What a burst registered last.
    registered: Option<Registration>,
    /// How many bursts registered something.
    registrations: u64,
    /// Whether the server is known to have what was wanted last.
    is_current: bool,
    state: State,
    failures: u32,
    due: Option<Instant>,
    check_interval: Duration,
    /// When the last check ended; notifications do not cause the next one sooner than [`CHECK_MIN`].
    checked_at: Instant,
    /// When the targets were registered last. The client registers a missing target again no sooner than
    /// [`CHECK_MIN`] after it.
    registered_at: Instant,
    transaction: u16,
    burst: VecDeque<Request>,
    /// The request that has no response yet.
    sent: Option<Request>,
    /// Whether a target was found missing in this burst.
    is_missing: bool,
    /// How many targets the server refused to notify, in this burst.
    refused: usize,
    /// The same in the first check after the registration; `None` before it. Servers can refuse notifications
    /// altogether. One that refuses more later has lost a target or its portals.
    refused_at_first: Option<usize>,
}

impl Client {
    /// Creates a client whose first burst is due at once.
    pub fn new(now: Instant) -> Self {
        Self {
            wanted: None,
            registered: None,
            registrations: 0,
            is_current: false,
            state: State::Starting,
            failures: 0,
            due: Some(now),
            check_interval: CHECK_MAX,
            checked_at: now,
            registered_at: now,
            transaction: 0,
            burst: VecDeque::new(),
            sent: None,
            is_missing: false,
            refused: 0,
            refused_at_first: None,
        }
    }

    /// Returns what the server knows of the targets.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Returns what is registered, as far as is known.
    pub const fn registered(&self) -> Option<&Registration> {
        self.registered.as_ref()
    }

    /// Returns how often the targets were registered. A second time means that the registration changed, or
    /// that the server had lost it.
    pub const fn registrations(&self) -> u64 {
        self.registrations
    }

    /// Makes a burst due at once: what is to be registered may have changed.
    pub const fn hurry(&mut self, now: Instant) {
        self.failures = 0;
        self.due = Some(now);
    }

    /// Returns when the next burst is due; `None` if there is nothing left to say.
    pub const fn next_burst_at(&self) -> Option<Instant> {
        self.due
    }

    /// Starts a burst on a new connection. `wanted` is what is to be registered from now on, and where the
    /// server can reach us.
    pub fn begin(&mut self, wanted: Option<Wanted>) {
        self.sent = None;
        self.is_missing = false;
        self.refused = 0;
        self.burst.clear();
        self.is_current &= wanted == self.wanted;
        self.wanted = wanted;
        let replaced = |wanted: &Registration, old: &Registration| {
            old.entity == wanted.entity && wanted.targets.iter().any(|target| target.name == old.source())
        };
        match (&self.wanted, &self.registered) {
            (Some((wanted, _)), Some(_)) if self.is_current => self.burst.extend(wanted.checks()),
            (Some((wanted, events)), old) => {
                // A server lets the nodes of an entity replace it, and no others.
                if let Some(old) = old.as_ref().filter(|old| !replaced(wanted, old)) {
                    self.burst.push_back(old.deregister());
                }
                let period_s = u32::try_from(PERIOD.as_secs()).unwrap_or(u32::MAX);
                self.burst.extend(wanted.register(period_s, INQUIRY_INTERVAL_S, *events));
            }
            (None, Some(old)) => self.burst.push_back(old.deregister()),
            (None, None) => {}
        }
    }

    /// Returns the next request of the burst, once the response to the one before was handled.
    pub fn next_request(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.sent.is_some() {
            return None;
        }
        let Some(request) = self.burst.pop_front() else {
            self.end(now);
            return None;
        };
        self.transaction = self.transaction.wrapping_add(1);
        let bytes = message::request(request.function, self.transaction, request.replace, &request.payload);
        self.sent = Some(request);
        Some(bytes)
    }

    /// Handles a message of the server.
    ///
    /// # Errors
    /// [`ClientError`]; call [`Self::fail`] with it, and close the connection.
    pub fn handle_response(&mut self, response: &Message) -> Result<(), ClientError> {
        let unexpected = |asked| ClientError::Unexpected { asked, answered: response.function };
        let Some(sent) = self.sent.take() else { return Err(unexpected(0)) };
        if response.function != sent.function | function::RESPONSE || response.transaction != self.transaction
        {
            return Err(unexpected(sent.function));
        }
        let (status, attributes) = response.status()?;
        match sent.function {
            function::REGISTER if status != Status::SUCCESS => return Err(ClientError::Registration(status)),
            function::REGISTER => {
                for attribute in attributes {
                    let attribute = attribute?;
                    match attribute.tag {
                        tag::ENTITY => self.check_entity(attribute.text().unwrap_or_default())?,
                        tag::REGISTRATION_PERIOD => {
                            self.check_interval = check_interval(attribute.number().unwrap_or(0));
                        }
                        _ => {}
                    }
                }
                self.registered = self.wanted.as_ref().map(|(wanted, _)| wanted.clone());
            }
            function::REGISTER_FOR_CHANGES => {
                self.refused += usize::from(status != Status::SUCCESS);
                self.is_missing |= [Status::SOURCE_UNKNOWN, Status::NO_SUCH_ENTRY].contains(&status);
            }
            _ => {
                self.registered = None;
                // The server may have forgotten the entity on its own.
                let gone = [Status::SUCCESS, Status::SOURCE_UNKNOWN, Status::NO_SUCH_ENTRY];
                if self.wanted.is_none() && !gone.contains(&status) {
                    return Err(ClientError::Deregistration(status));
                }
            }
        }
        Ok(())
    }

    fn check_entity(&self, entity: &str) -> Result<(), ClientError> {
        // Servers may store names in small letters.
        let ours = self.wanted.as_ref().is_some_and(|(wanted, _)| wanted.entity.eq_ignore_ascii_case(entity));
        if ours { Ok(()) } else { Err(ClientError::OtherEntity(entity.chars().take(255).collect())) }
    }

    /// The burst is complete.
    fn end(&mut self, now: Instant) {
        let was_check = self.is_current;
        self.failures = 0;
        if was_check {
            self.is_missing |= self.refused > *self.refused_at_first.get_or_insert(self.refused);
        } else {
            self.refused_at_first = None;
        }
        self.is_current = self.wanted.is_some() && !self.is_missing;
        self.due = match (&self.wanted, was_check) {
            (None, _) => None,
            // The first check follows at once, since it registers for notifications.
            (Some(_), false) => {
                self.registered_at = now;
                Some(now)
            }
            (Some(_), true) if self.is_missing => Some(self.registered_at.after(CHECK_MIN).max(now)),
            (Some(_), true) => {
                self.checked_at = now;
                Some(now.after(self.check_interval))
            }
        };
        if self.is_current {
            self.state = State::Registered;
            self.registrations += u64::from(!was_check);
        }
    }

    /// The burst failed, or no connection could be made. Another attempt follows later.
    pub fn fail(&mut self, now: Instant, error: ClientError) {
        self.burst.clear();
        self.sent = None;
        // The server may have any part of the registration.
        self.is_current = false;
        let wait = RETRY_MIN.saturating_mul(1 << self.failures.min(10)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.due = Some(now.after(wait));
        self.state = State::Failed(error);
    }

    /// The server told of a change: the next check comes at once, but not sooner than 5 s after the
    /// last one.
    pub fn handle_change(&mut self) {
        if self.is_current {
            let soon = self.checked_at.after(CHECK_MIN);
            self.due = self.due.map(|due| due.min(soon));
        }
    }
}

/// Returns how often to check for a period that a server demands. Zero stands for no period.
fn check_interval(period_s: u32) -> Duration {
    match period_s {
        0 => CHECK_MAX,
        _ => (Duration::from_secs(u64::from(period_s)) / 2).clamp(CHECK_MIN, CHECK_MAX),
    }
}

#[cfg(test)]
mod tests;
