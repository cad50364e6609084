//! What the owner of sessions is told.

use base::ether::Mac;
use hyperscsi::connection::PathMtuStatus;
use iscsi::discovery::Discovered;
use iscsi::initiator::contract::{AsyncNotice, ConnectionDown, SessionUp as IscsiUp, Slot};
use iscsi::login::directory::TargetAddress;
use iscsi::negotiate::ConnectionParameters;
use iscsi::pdu::tmf_response::TmfResult;
use scsi::lun::Lun;
use scsi::sense::Asc;

use super::SessionId;
use crate::command::{CommandError, Reply};
use crate::identity::OtherDevice;
use crate::session_error::SessionError;

/// Something that the owner of a driver wants to know.
#[derive(Debug)]
pub enum DriverEvent {
    /// A command ended. Told exactly once for each.
    Finished {
        /// In which session.
        session: SessionId,
        /// The name that the caller gave it.
        token: u64,
        /// What came of it.
        result: Result<Reply, CommandError>,
    },
    /// A task management request was answered.
    TmfDone {
        /// In which session.
        session: SessionId,
        /// The name that the caller gave it.
        token: u64,
        /// The answer; `None` when the session was lost before.
        result: Option<TmfResult>,
    },
    /// Something happened to a session.
    Session {
        /// To which one.
        session: SessionId,
        /// What.
        event: SessionEvent,
    },
}

/// What happened to a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// It is up: for the first time, built anew, or continued.
    Up(Box<ProtocolUp>),
    /// A path of HyperSCSI carries frames.
    PathUp {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
    },
    /// A path of HyperSCSI that did carries none.
    PathLost {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
    },
    /// What a path of HyperSCSI carries turned out to be less than our interface takes, or to be all of that again.
    PathMtuStatus {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
        /// The longest frames.
        width: PathMtuStatus,
    },
    /// Another server says that it serves a HyperSCSI target of this name: two servers with one identity, or somebody who
    /// pretends.
    OtherServer {
        /// Our interface.
        interface: String,
        /// The other server's address.
        peer: Mac,
    },
    /// One of its connections is up.
    ConnectionUp {
        /// Which one.
        slot: Slot,
        /// What was agreed on for it.
        parameters: ConnectionParameters,
    },
    /// One of its connections was lost, or an attempt to have it failed.
    ConnectionLost {
        /// Which one.
        slot: Slot,
        /// Why.
        why: ConnectionDown,
    },
    /// No connection is up; commands wait. `ProtocolUp` or `Down` follows.
    Recovering,
    /// It ended for good, and every command of it was told.
    Down(SessionError),
    /// A logical unit had something to tell (a unit attention): its capacity changed (2Ah/09h), it was reset, …
    UnitAttention {
        /// Which unit.
        lun: Lun,
        /// What.
        asc: Asc,
    },
    /// Commands for a LUN got no answer in time, and this is done about it.
    Unanswered {
        /// Which LUN.
        lun: Lun,
        /// What is done.
        step: EscalationStep,
    },
    /// Behind a LUN that is guarded there is another device than before. Commands for it fail from now on.
    OtherDevice {
        /// Which LUN.
        lun: Lun,
        /// What was there, and what is.
        what: OtherDevice,
    },
    /// The target said something unasked.
    AsyncMessage(AsyncNotice),
    /// The targets that were asked for, and how many entries of the list were no target.
    Targets(Vec<Discovered>, usize),
    /// What the target answered to keys that were negotiated: pairs of names and values.
    TextNegotiated(Vec<(String, String)>),
    /// A list of targets, or the answer to keys, did not come whole, or was refused.
    TextFailed,
    /// The target sent us elsewhere, and the session follows.
    Redirected(TargetAddress),
}

/// What is done about commands that get no answer; each step follows if the one before got none either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscalationStep {
    /// ABORT TASK for each.
    AbortTask,
    /// LOGICAL UNIT RESET, which ends the commands of all initiators there.
    LogicalUnitReset,
    /// The session is given up and logged in anew.
    LogIn,
}

/// A session that is up.
#[derive(Clone, Debug)]
pub enum ProtocolUp {
    /// One of iSCSI.
    Iscsi(IscsiUp),
    /// One of HyperSCSI.
    HyperScsi(hyperscsi::initiator::contract::SessionUp),
}

impl ProtocolUp {
    /// Returns what was agreed on, if it is a session of iSCSI.
    pub const fn iscsi(&self) -> Option<&IscsiUp> {
        match self {
            Self::Iscsi(up) => Some(up),
            Self::HyperScsi(_) => None,
        }
    }
}
