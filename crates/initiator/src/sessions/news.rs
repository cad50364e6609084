//! What the owner of sessions is told.

use base::ether::Mac;
use hyperscsi::association::PathWidth;
use iscsi::discovery::Discovered;
use iscsi::initiator::contract::{ConnectionDown, Notice, Slot, Up as IscsiUp};
use iscsi::login::directory::TargetAddress;
use iscsi::negotiate::ConnectionParameters;
use iscsi::pdu::tmf_response::TmfResult;
use scsi::lun::Lun;
use scsi::sense::Asc;

use super::SessionId;
use crate::command::{CommandError, Reply};
use crate::down::SessionDown;
use crate::identity::OtherDevice;

/// Something that the owner of a driver wants to know.
#[derive(Debug)]
pub enum Event {
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
    Managed {
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
        news: News,
    },
}

/// What happened to a session.
#[derive(Debug)]
pub enum News {
    /// It is up: for the first time, built anew, or continued.
    Up(Box<Up>),
    /// A path of HyperSCSI carries frames.
    WayUp {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
    },
    /// A path of HyperSCSI that did carries none.
    WayLost {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
    },
    /// What a path of HyperSCSI carries turned out to be less than our interface takes, or to be all of that again.
    WayWidth {
        /// Our interface.
        interface: String,
        /// The target's address.
        peer: Mac,
        /// The longest frames.
        width: PathWidth,
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
    PathUp {
        /// Which one.
        slot: Slot,
        /// What was agreed on for it.
        parameters: ConnectionParameters,
    },
    /// One of its connections was lost, or an attempt to have it failed.
    PathLost {
        /// Which one.
        slot: Slot,
        /// Why.
        why: ConnectionDown,
    },
    /// No connection is up; commands wait. `Up` or `Down` follows.
    Recovering,
    /// It ended for good, and every command of it was told.
    Down(SessionDown),
    /// A logical unit had something to tell (a unit attention): its capacity changed (2Ah/09h), it was reset, …
    Attention {
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
        step: Step,
    },
    /// Behind a LUN that is guarded there is another device than before. Commands for it fail from now on.
    OtherDevice {
        /// Which LUN.
        lun: Lun,
        /// What was there, and what is.
        what: OtherDevice,
    },
    /// The target said something unasked.
    Notice(Notice),
    /// The targets that were asked for, and how many entries of the list were no target.
    Targets(Vec<Discovered>, usize),
    /// What the target answered to keys that were negotiated: pairs of names and values.
    Agreed(Vec<(String, String)>),
    /// A list of targets, or the answer to keys, did not come whole, or was refused.
    TextFailed,
    /// The target sent us elsewhere, and the session follows.
    Redirected(TargetAddress),
}

/// What is done about commands that get no answer; each step follows if the one before got none either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// ABORT TASK for each.
    AbortTask,
    /// LOGICAL UNIT RESET, which ends the commands of all initiators there.
    LogicalUnitReset,
    /// The session is given up and logged in anew.
    LogIn,
}

/// A session that is up.
#[derive(Clone, Debug)]
pub enum Up {
    /// One of iSCSI.
    Iscsi(IscsiUp),
    /// One of HyperSCSI.
    HyperScsi(hyperscsi::initiator::contract::Up),
}

impl Up {
    /// Returns what was agreed on, if it is a session of iSCSI.
    pub const fn iscsi(&self) -> Option<&IscsiUp> {
        match self {
            Self::Iscsi(up) => Some(up),
            Self::HyperScsi(_) => None,
        }
    }
}
