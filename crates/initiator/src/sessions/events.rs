//! The events that the owner of sessions receives.

use hyperscsi::connection::PathMtuStatus;
use iscsi::discovery::Discovered;
use iscsi::initiator::contract::{AsyncNotice, SessionOrigin, SessionUp as IscsiUp};
use scsi::lun::Lun;
use scsi::sense::{Asc, Sense};
use transport::task_management::TmfResult;

use super::SessionId;
use super::paths::{Path, PathError};
use crate::command::{CommandError, Reply};
use crate::identity::{OtherDevice, UnconfirmedDevice};
use crate::session_error::SessionError;

/// An event for the owner of a driver.
#[derive(Debug)]
#[non_exhaustive]
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
    /// A text negotiation of an iSCSI session ended.
    TextDone {
        /// The session.
        session: SessionId,
        /// The answer of the target; `None` if the target refused, or its answer was not complete.
        result: Option<TextAnswer>,
    },
    /// An event of a session.
    Session {
        /// The session.
        session: SessionId,
        /// The event.
        event: Event,
    },
}

/// The answer to a text negotiation.
#[derive(Debug)]
#[non_exhaustive]
pub enum TextAnswer {
    /// The result of SendTargets: the targets, and how many entries of the list were not valid.
    Targets(Vec<Discovered>, usize),
    /// The answer to negotiated keys: pairs of names and values.
    Keys(Vec<(String, String)>),
}

/// An event of a session. It has the same meaning in every protocol.
///
/// The events of a path alternate: [`Self::Up`] comes first, then a [`Self::PathUp`] for each path, and one
/// [`Self::PathDown`] for each of those before [`Self::Recovering`] or [`Self::Down`]. A program that counts
/// paths counts right.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The session is up: for the first time, rebuilt, or continued.
    Up(Box<SessionUp>),
    /// No path is up; commands wait. [`Self::Up`] or [`Self::Down`] follows.
    Recovering,
    /// The session ended, and the end of each of its commands was reported.
    Down(SessionError),
    /// A path carries commands from now on: a TCP connection is in full feature phase (iSCSI), or frames get
    /// through between a pair of Ethernet ports (HyperSCSI).
    #[non_exhaustive]
    PathUp {
        /// The path.
        path: Path,
    },
    /// A path that was up no longer carries commands.
    #[non_exhaustive]
    PathDown {
        /// The path.
        path: Path,
        /// The reason.
        why: PathError,
    },
    /// An attempt to bring up a path failed. The session goes on trying.
    #[non_exhaustive]
    PathFailed {
        /// The path.
        path: Path,
        /// The reason.
        why: PathError,
    },
    /// The longest frames that an Ethernet path carries turned out to be shorter than those of our interface,
    /// or to be as long again.
    #[non_exhaustive]
    PathMtu {
        /// The path.
        path: Path,
        /// The length of the longest frames.
        status: PathMtuStatus,
    },
    /// A logical unit reported a unit attention: its capacity changed (2Ah/09h), it was reset, …
    #[non_exhaustive]
    UnitAttention {
        /// The unit.
        lun: Lun,
        /// The additional sense code.
        asc: Asc,
    },
    /// A logical unit reported a deferred error: a command failed that had ended with GOOD before, such as a
    /// write in a volatile cache.
    #[non_exhaustive]
    DeferredError {
        /// The unit.
        lun: Lun,
        /// The sense data.
        sense: Sense,
    },
    /// Commands for a LUN did not respond within their timeout, and this step was taken.
    #[non_exhaustive]
    Unanswered {
        /// The LUN.
        lun: Lun,
        /// The step.
        step: EscalationStep,
    },
    /// Another device is behind a LUN with an identity check. Commands for it fail from now on.
    #[non_exhaustive]
    OtherDevice {
        /// The LUN.
        lun: Lun,
        /// The previous and the present device.
        what: OtherDevice,
    },
    /// A unit with an identity check has not confirmed its device while its commands waited: it is not there,
    /// or not ready. Commands for it fail until [`Self::DeviceConfirmed`].
    #[non_exhaustive]
    DeviceUnconfirmed {
        /// The LUN.
        lun: Lun,
        /// The previous device, and why the present one is unknown.
        what: UnconfirmedDevice,
    },
    /// The unit of [`Self::DeviceUnconfirmed`] has confirmed that it is the same device. Commands for it are
    /// sent again.
    #[non_exhaustive]
    DeviceConfirmed {
        /// The LUN.
        lun: Lun,
    },
    /// Another server claims that it serves a target of this name: two servers have one identity, or one of
    /// them is an impostor. Only HyperSCSI can detect this.
    #[non_exhaustive]
    OtherServer {
        /// The path to the other server.
        path: Path,
    },
    /// The target redirected the login, and the session follows. Only iSCSI has this.
    #[non_exhaustive]
    Redirected {
        /// The address to which the target redirected.
        to: String,
    },
    /// The target sent an iSCSI Asynchronous Message.
    AsyncMessage(AsyncMessage),
}

/// An iSCSI Asynchronous Message.
#[derive(Debug)]
#[non_exhaustive]
pub struct AsyncMessage {
    /// The AsyncEvent field (RFC 7143 §11.9.1).
    pub event: u8,
    /// The message; its type is part of [`crate::unstable`].
    pub detail: AsyncNotice,
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

/// A session that is up. The types of the parameters are part of [`crate::unstable`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SessionUp {
    /// An iSCSI session.
    Iscsi(IscsiUp),
    /// A HyperSCSI session.
    HyperScsi(hyperscsi::initiator::contract::SessionUp),
}

impl SessionUp {
    /// Returns whether this session replaces one that was lost. The target lost the state of that session:
    /// reservations may be gone, and a unit attention is likely.
    pub fn is_rebuilt(&self) -> bool {
        match self {
            Self::Iscsi(up) => up.origin == SessionOrigin::Rebuilt,
            Self::HyperScsi(up) => up.rebuilt,
        }
    }

    /// Returns whether the target proved who it is.
    pub const fn is_peer_authenticated(&self) -> bool {
        match self {
            Self::Iscsi(up) => up.peer_authenticated,
            Self::HyperScsi(up) => up.authenticated,
        }
    }
}
