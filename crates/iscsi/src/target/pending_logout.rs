//! A logout that is accepted and not answered yet.

use base::state_machine::ConnId;

use super::task::Task;
use crate::pdu::Itt;
use crate::pdu::logout_response::LogoutResponse;

/// An accepted logout that waits for the tasks that it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingLogout {
    /// The connection on which the request was received.
    requested_on: ConnId,
    ends: LogoutScope,
    /// The Logout Response; `None` if the initiator only closed its half of the connection.
    answer: Option<LogoutResponse>,
    /// Whether its time limit has passed.
    late: bool,
}

/// The scope of a logout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LogoutScope {
    Connection(ConnId),
    Session,
}

impl PendingLogout {
    /// Returns a logout that was requested on a connection; without an `answer`, by closing half of it.
    pub(crate) const fn new(requested_on: ConnId, ends: LogoutScope, answer: Option<LogoutResponse>) -> Self {
        Self { requested_on, ends, answer, late: false }
    }

    /// Returns the connection on which the request was received.
    pub(crate) const fn requested_on(&self) -> ConnId {
        self.requested_on
    }

    pub(crate) const fn scope(&self) -> LogoutScope {
        self.ends
    }

    /// Returns the Logout Response, if there is one.
    pub(crate) const fn answer(&self) -> Option<LogoutResponse> {
        self.answer
    }

    /// Returns whether its time limit has passed.
    pub(crate) const fn is_late(&self) -> bool {
        self.late
    }

    /// Records that its time limit has passed.
    pub(crate) const fn expire(&mut self) {
        self.late = true;
    }

    pub(crate) const fn ends_session(&self) -> bool {
        matches!(self.ends, LogoutScope::Session)
    }

    /// Returns the tag of the Logout Request.
    pub(crate) fn itt(&self) -> Option<Itt> {
        self.answer.map(|answer| answer.itt)
    }

    /// Returns the one connection whose tasks end, or `None` if all tasks of the session end.
    pub(crate) const fn named(&self) -> Option<ConnId> {
        match self.ends {
            LogoutScope::Connection(named) => Some(named),
            LogoutScope::Session => None,
        }
    }

    /// Returns the connection whose timer limits the logout.
    pub(crate) const fn timed(&self) -> ConnId {
        match self.ends {
            LogoutScope::Connection(named) => named,
            LogoutScope::Session => self.requested_on,
        }
    }

    /// Returns whether it ends a task. A detached task ends only with its session.
    pub(crate) fn covers_task(&self, task: &Task) -> bool {
        self.named().is_none_or(|named| task.is_on(named))
    }

    /// Returns whether it ends a connection.
    pub(crate) fn covers(&self, conn: ConnId) -> bool {
        self.named().is_none_or(|named| named == conn)
    }
}
