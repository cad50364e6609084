//! A session of either protocol. What both have in common goes through
//! [`transport::initiator::InitiatorTransport`]; bytes and frames go to the session of the protocol.

use base::time::Instant;
use drivers::ether::PortError;
use hyperscsi::initiator::contract as ether;
use hyperscsi::initiator::session::Session as EtherSession;
use iscsi::initiator::Session;
use iscsi::initiator::contract::{Event, SessionStats};
use security::opaque::{StretchJob, StretchResult};
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport, SubmitError, TaskId, TmfId, TmfParameters};
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

/// An event of a session.
pub(crate) enum ProtocolEvent {
    Iscsi(Event),
    HyperScsi(ether::Event),
}

impl ProtocolSession {
    /// Returns the services that sessions of every protocol have.
    pub(crate) const fn services(&self) -> &dyn InitiatorTransport {
        match self {
            Self::Iscsi(session) => &**session,
            Self::HyperScsi(ether) => &ether.session,
        }
    }

    /// As [`Self::services`].
    pub(crate) fn services_mut(&mut self) -> &mut dyn InitiatorTransport {
        match self {
            Self::Iscsi(session) => &mut **session,
            Self::HyperScsi(ether) => &mut ether.session,
        }
    }

    /// Submits a command.
    pub(crate) fn submit(&mut self, now: Instant, pending: &PendingCommand) -> Result<TaskId, SubmitError> {
        // The CDB alone is checked: a whole request in an `Option` would be copied once more.
        let cdb = Cdb::new(pending.command.cdb.bytes()).ok_or(SubmitError::TooLong)?;
        let mut request = pending.command.request(cdb);
        request.is_identity_check = !pending.is_callers();
        // Unanswered commands may have used up the command window.
        request.immediate = pending.is_attention_check;
        self.services_mut().submit(now, request)
    }

    pub(crate) fn submit_tmf(
        &mut self,
        now: Instant,
        function: TmfFunction,
        lun: u64,
        task: Option<TaskId>,
    ) -> Result<TmfId, SubmitError> {
        self.services_mut().submit_tmf(now, TmfParameters { function, lun, task })
    }

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

    /// Returns the slow step of a password login when one is due.
    pub(crate) fn poll_job(&mut self) -> Option<StretchJob> {
        match self {
            Self::Iscsi(session) => session.poll_job(),
            Self::HyperScsi(ether) => ether.session.poll_job(),
        }
    }

    /// Handles the result of the slow step.
    pub(crate) fn job_done(&mut self, now: Instant, done: StretchResult) {
        match self {
            Self::Iscsi(session) => session.job_done(now, done),
            Self::HyperScsi(ether) => ether.session.job_done(now, done),
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

/// Returns the text for an interface that cannot be used.
pub(crate) fn unusable(why: &PortError) -> String {
    let mut text = why.to_string();
    if let Some(source) = std::error::Error::source(why) {
        text = format!("{text}: {source}");
    }
    text
}
