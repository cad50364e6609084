//! Wraps a session of either protocol in one interface, which hides the differences from the rest of the
//! crate.

use base::time::Instant;
use drivers::ether::PortError;
use hyperscsi::initiator::contract as ether;
use hyperscsi::initiator::session::Session as EtherSession;
use iscsi::initiator::Session;
use iscsi::initiator::contract::{
    CommandResponse, Event, Outcome, SessionStats, SubmitError, TaskId, TaskResult, TmfId, TmfParameters,
};
use iscsi::pdu::Residual;
use iscsi::pdu::scsi_response::ServiceResponse;
use transport::command::{Cdb, TaskAttribute};
use transport::task_management::TmfFunction;

use crate::retry::PendingCommand;

/// A session.
pub(crate) enum ProtocolSession {
    Iscsi(Box<Session>),
    HyperScsi(Box<HyperScsiSession>),
}

/// A session of HyperSCSI.
pub(crate) struct HyperScsiSession {
    pub(crate) session: EtherSession,
    /// The interfaces that it uses.
    pub(crate) interfaces: Vec<String>,
}

/// The id of the task that executes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Iscsi(TaskId),
    HyperScsi(ether::TaskId),
}

impl Task {
    pub(crate) const fn index(self) -> u32 {
        match self {
            Self::Iscsi(task) => task.index(),
            Self::HyperScsi(task) => task.index(),
        }
    }
}

/// The id of a task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TmfHandle {
    Iscsi(TmfId),
    HyperScsi(ether::TmfId),
}

/// An event of a session.
pub(crate) enum ProtocolEvent {
    Iscsi(Event),
    HyperScsi(ether::Event),
}

impl ProtocolSession {
    /// Returns whether the session still has to send, or to acknowledge, its closing message.
    pub(crate) fn has_unacked_closing(&self) -> bool {
        match self {
            Self::Iscsi(_) => false,
            Self::HyperScsi(ether) => ether.session.has_unacked_closing(),
        }
    }

    pub(crate) const fn is_closing(&self) -> bool {
        match self {
            Self::Iscsi(_) => false,
            Self::HyperScsi(ether) => ether.session.is_closing(),
        }
    }

    pub(crate) const fn is_hyperscsi(&self) -> bool {
        matches!(self, Self::HyperScsi(_))
    }

    pub(crate) fn poll_event(&mut self) -> Option<ProtocolEvent> {
        match self {
            Self::Iscsi(session) => session.poll_event().map(ProtocolEvent::Iscsi),
            Self::HyperScsi(ether) => ether.session.poll_event().map(ProtocolEvent::HyperScsi),
        }
    }

    pub(crate) fn submit(&mut self, now: Instant, pending: &PendingCommand) -> Result<Task, SubmitError> {
        match self {
            Self::Iscsi(session) => {
                let mut request = pending.command.request().ok_or(SubmitError::TooLong)?;
                request.is_identity_check = !pending.is_callers();
                // Unanswered commands may have used up the command window.
                request.immediate = pending.is_attention_check;
                session.submit(now, request).map(Task::Iscsi)
            }
            Self::HyperScsi(ether) => {
                let request = request(pending).ok_or(SubmitError::TooLong)?;
                ether.session.submit(now, request).map(Task::HyperScsi).map_err(refusal)
            }
        }
    }

    pub(crate) fn submit_tmf(
        &mut self,
        now: Instant,
        function: TmfFunction,
        lun: u64,
        task: Option<Task>,
    ) -> Result<TmfHandle, SubmitError> {
        match (self, task) {
            (Self::Iscsi(session), None) => {
                session.submit_tmf(now, TmfParameters { function, lun, task: None }).map(TmfHandle::Iscsi)
            }
            (Self::Iscsi(session), Some(Task::Iscsi(task))) => session
                .submit_tmf(now, TmfParameters { function, lun, task: Some(task) })
                .map(TmfHandle::Iscsi),
            (Self::HyperScsi(ether), Some(Task::HyperScsi(task))) if function == TmfFunction::ABORT_TASK => {
                ether.session.abort(now, task).map(TmfHandle::HyperScsi).map_err(refusal)
            }
            (Self::HyperScsi(ether), task) => {
                let task = match task {
                    None => None,
                    Some(Task::HyperScsi(task)) => Some(task),
                    Some(Task::Iscsi(_)) => return Err(SubmitError::NoTask),
                };
                // The functions have the same number in both protocols, except for one that HyperSCSI does
                // not have.
                let function = TmfFunction(function.0);
                let wanted = ether::TmfRequest { function, lun, task };
                ether.session.submit_tmf(now, wanted).map(TmfHandle::HyperScsi).map_err(refusal)
            }
            (Self::Iscsi(_), Some(Task::HyperScsi(_))) => Err(SubmitError::NoTask),
        }
    }

    pub(crate) fn require_identity_check(&mut self, lun: u64) {
        match self {
            Self::Iscsi(session) => session.require_identity_check(lun),
            Self::HyperScsi(ether) => ether.session.require_identity_check(lun),
        }
    }

    pub(crate) fn confirm_identity(&mut self, now: Instant, lun: u64) {
        match self {
            Self::Iscsi(session) => session.confirm_identity(now, lun),
            Self::HyperScsi(ether) => ether.session.confirm_identity(now, lun),
        }
    }

    pub(crate) fn fail_identity(&mut self, lun: u64) {
        match self {
            Self::Iscsi(session) => session.fail_identity(lun),
            Self::HyperScsi(ether) => ether.session.fail_identity(lun),
        }
    }

    pub(crate) fn logout(&mut self, now: Instant) {
        match self {
            Self::Iscsi(session) => session.logout(now),
            Self::HyperScsi(ether) => ether.session.logout(now),
        }
    }

    /// Returns whether requests can be sent now.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::Iscsi(session) => session.is_up(),
            Self::HyperScsi(ether) => ether.session.is_up(),
        }
    }

    /// Returns a number that changes whenever a task makes progress; `None` once the task has ended.
    pub(crate) fn progress(&self, task: Task) -> Option<u64> {
        match (self, task) {
            (Self::Iscsi(session), Task::Iscsi(task)) => session.progress(task),
            (Self::HyperScsi(ether), Task::HyperScsi(task)) => ether.session.progress(task),
            _ => None,
        }
    }

    /// Drops the session at the target and logs in again.
    pub(crate) fn rebuild_session(&mut self, now: Instant) {
        match self {
            Self::Iscsi(session) => session.rebuild_session(now),
            Self::HyperScsi(ether) => ether.session.relogin(now),
        }
    }

    /// Pings the target. Returns how many PDUs (iSCSI) or frames (HyperSCSI) have been received so far.
    pub(crate) fn ping(&mut self, now: Instant) -> u64 {
        match self {
            Self::Iscsi(session) => {
                session.ping_all(now);
                session.stats().pdus_in
            }
            Self::HyperScsi(ether) => ether.session.ping(),
        }
    }

    pub(crate) fn close(&mut self, now: Instant) {
        match self {
            Self::Iscsi(session) => session.close(now),
            Self::HyperScsi(ether) => ether.session.close(now),
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Iscsi(session) => session.poll_timeout(),
            Self::HyperScsi(ether) => ether.session.poll_timeout(),
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Iscsi(session) => session.handle_timeout(now),
            Self::HyperScsi(ether) => ether.session.handle_timeout(now),
        }
    }

    /// Returns the session if it is an iSCSI session.
    pub(crate) fn iscsi(&mut self) -> Option<&mut Session> {
        match self {
            Self::Iscsi(session) => Some(session),
            Self::HyperScsi(_) => None,
        }
    }

    /// Returns the session if it is a HyperSCSI session.
    pub(crate) fn ether(&mut self) -> Option<&mut HyperScsiSession> {
        match self {
            Self::Iscsi(_) => None,
            Self::HyperScsi(ether) => Some(ether),
        }
    }

    pub(crate) fn stats(&self) -> SessionStats {
        match self {
            Self::Iscsi(session) => session.stats(),
            Self::HyperScsi(ether) => {
                let stats = ether.session.stats();
                SessionStats {
                    tasks: stats.tasks,
                    done: stats.done,
                    data_in_bytes: stats.data_in_bytes,
                    data_out_bytes: stats.data_out_bytes,
                    replays: stats.replays,
                    logins: stats.logins,
                    logins_failed: stats.logins_failed,
                    sessions_rebuilt: stats.logins.saturating_sub(1),
                    ..SessionStats::default()
                }
            }
        }
    }
}

/// Returns the request for a HyperSCSI session.
fn request(pending: &PendingCommand) -> Option<ether::Request> {
    let command = &pending.command;
    let mut request = ether::Request::new(command.lun.0, Cdb::new(command.cdb.bytes())?);
    request.attribute = TaskAttribute(command.attribute.0);
    request.priority = command.priority;
    request.data_out = command.data_out.clone();
    request.data_in_len = command.data_in_len;
    request.replay = command.repeatable;
    request.is_identity_check = !pending.is_callers();
    Some(request)
}

const fn refusal(why: ether::SubmitError) -> SubmitError {
    match why {
        ether::SubmitError::Full => SubmitError::Full,
        ether::SubmitError::Down => SubmitError::Down,
        ether::SubmitError::NotUp => SubmitError::NotUp,
        ether::SubmitError::NoTask => SubmitError::NoTask,
        ether::SubmitError::TooLong => SubmitError::TooLong,
    }
}

/// Returns the outcome of a HyperSCSI task whose command expected to move `expected` bytes.
pub(crate) fn outcome(outcome: ether::Outcome, expected: u32) -> Outcome {
    let end = match outcome.end {
        ether::TaskResult::Status(ether::CommandResponse { status, transferable, sense }) => {
            let residual = Residual::of(transferable, expected);
            TaskResult::Status(CommandResponse { status, residual, sense, ..CommandResponse::default() })
        }
        ether::TaskResult::Failed => TaskResult::Failed(ServiceResponse::TARGET_FAILURE),
        ether::TaskResult::Aborted => TaskResult::Aborted,
        ether::TaskResult::NotSent => TaskResult::NotSent,
        ether::TaskResult::Lost => TaskResult::Lost,
    };
    Outcome { end, data_in: outcome.data_in }
}

/// Returns the text for an interface that cannot be used.
pub(crate) fn unusable(why: &PortError) -> String {
    let mut text = why.to_string();
    if let Some(source) = std::error::Error::source(why) {
        text = format!("{text}: {source}");
    }
    text
}
