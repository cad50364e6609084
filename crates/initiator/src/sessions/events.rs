//! The events that the owner of sessions receives.

use base::ether::Mac;
use hyperscsi::connection::PathMtuStatus;
use iscsi::discovery::Discovered;
use iscsi::initiator::contract::{AsyncNotice, ConnectionDown, SessionUp as IscsiUp, Slot};
use iscsi::login::directory::TargetAddress;
use iscsi::negotiate::ConnectionParameters;
use scsi::lun::Lun;
use scsi::sense::Asc;
use transport::task_management::TmfResult;

use super::SessionId;
use crate::command::{CommandError, Reply};
use crate::identity::OtherDevice;
use crate::session_error::SessionError;

/// An event for the owner of a driver.
#[derive(Debug)]
pub enum DriverEvent {
    /// A command ended. Reported exactly once for each command.
    Finished {
        /// The session.
        session: SessionId,
        /// The token of the command.
        token: u64,
        /// The result.
        result: Result<Reply, CommandError>,
    },
    /// A task management request ended.
    TmfDone {
        /// The session.
        session: SessionId,
        /// The token of the request.
        token: u64,
        /// The response; `None` when the session was lost before it arrived.
        result: Option<TmfResult>,
    },
    /// An event of a session.
    Session {
        /// The session.
        session: SessionId,
        /// The event.
        event: SessionEvent,
    },
}

/// An event of a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// The session is up: for the first time, rebuilt, or continued.
    Up(Box<ProtocolUp>),
    /// A HyperSCSI path carries frames.
    PathUp {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
    },
    /// A HyperSCSI path no longer carries frames.
    PathLost {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
    },
    /// The longest frames that a HyperSCSI path carries turned out to be shorter than those of our interface,
    /// or to be as long again.
    PathMtuStatus {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
        /// The length of the longest frames.
        width: PathMtuStatus,
    },
    /// Another server claims that it serves a HyperSCSI target of this name: two servers have one identity,
    /// or one of them is an impostor.
    OtherServer {
        /// Our interface.
        interface: String,
        /// The other server's address.
        peer: Mac,
    },
    /// A connection of the session is up.
    ConnectionUp {
        /// The connection.
        slot: Slot,
        /// The negotiated parameters of the connection.
        parameters: ConnectionParameters,
    },
    /// A connection of the session was lost, or an attempt to open one failed.
    ConnectionLost {
        /// The connection.
        slot: Slot,
        /// The reason.
        why: ConnectionDown,
    },
    /// No connection is up; commands wait. [`Self::Up`] or [`Self::Down`] follows.
    Recovering,
    /// The session ended, and the end of each of its commands was reported.
    Down(SessionError),
    /// A logical unit reported a unit attention: its capacity changed (2Ah/09h), it was reset, …
    UnitAttention {
        /// The unit.
        lun: Lun,
        /// The additional sense code.
        asc: Asc,
    },
    /// Commands for a LUN did not respond within their timeout, and this step was taken.
    Unanswered {
        /// The LUN.
        lun: Lun,
        /// The step.
        step: EscalationStep,
    },
    /// Another device is behind a LUN with an identity check. Commands for it fail from now on.
    OtherDevice {
        /// The LUN.
        lun: Lun,
        /// The previous and the present device.
        what: OtherDevice,
    },
    /// The target sent an Asynchronous Message.
    AsyncMessage(AsyncNotice),
    /// The result of SendTargets: the targets, and how many entries of the list were not valid.
    Targets(Vec<Discovered>, usize),
    /// The answer of the target to negotiated keys: pairs of names and values.
    TextNegotiated(Vec<(String, String)>),
    /// A text negotiation (SendTargets or keys) was refused, or its answer was not complete.
    TextFailed,
    /// The target redirected the login to another address, and the session follows.
    Redirected(TargetAddress),
}

/// A step against commands that get no response. Each step follows if the one before got no response either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscalationStep {
    /// ABORT TASK for each command.
    AbortTask,
    /// LOGICAL UNIT RESET, which ends the commands of all initiators of the unit.
    LogicalUnitReset,
    /// Session recovery: the session is dropped, and a new login follows.
    LogIn,
}

/// A session that is up.
#[derive(Clone, Debug)]
pub enum ProtocolUp {
    /// An iSCSI session.
    Iscsi(IscsiUp),
    /// A HyperSCSI session.
    HyperScsi(hyperscsi::initiator::contract::SessionUp),
}

impl ProtocolUp {
    /// Returns the negotiated parameters, if it is an iSCSI session.
    pub const fn iscsi(&self) -> Option<&IscsiUp> {
        match self {
            Self::Iscsi(up) => Some(up),
            Self::HyperScsi(_) => None,
        }
    }
}
