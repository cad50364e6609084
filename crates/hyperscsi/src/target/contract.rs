//! What the engine tells the layer above, and what it is told: commands, data, management, the comings and goings
//! of sessions. None of it knows what a logical unit is.

use alloc::vec::Vec;
use core::fmt;

use base::buffer::DataList;
use base::ether::{EtherPort, Mac};

use crate::aead::Level;
use crate::connection::{DropCounts, PathMtuStatus, PathTotals, PathView};
use crate::handle::handle;
use crate::pdu::command::{Cdb, ManageFunction, TaskAttribute};
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;

handle! {
    /// Names a task from [`Event::Command`] until the caller finishes or aborts it, or [`Event::TaskGone`].
    pub struct TaskRef;
}

handle! {
    /// Names a session from [`Event::SessionUp`] to [`Event::SessionDown`].
    pub struct SessionId;
}

handle! {
    /// Names a task management request from [`Event::Tmf`] until it is answered or its session ends.
    pub struct TmfRef;
}

/// Answers what handshakes, discoveries and requests must know. The engine itself knows which SIDs its sessions have.
pub trait SessionDirectory: crate::login::directory::TargetDirectory {
    /// Returns the least protection with which this session may reach a logical unit. For one that it does not see, the least
    /// of what its group may have: what is said about it then says nothing.
    fn least_level(&self, session: SessionId, lun: u64) -> Level;
}

/// Something that the layer above must know or do. The events of one session come in the order that its initiator
/// prescribed.
#[derive(Debug)]
pub enum Event {
    /// A session began: an I_T nexus.
    SessionUp(alloc::boxed::Box<SessionUp>),
    /// A command is to be executed.
    Command(Command),
    /// The bytes asked for by `fetch`, all of them.
    DataOut {
        /// The task.
        task: TaskRef,
        /// Where they belong, from the start of the command's data.
        offset: u32,
        /// The bytes.
        data: DataList,
    },
    /// A task management function is to be carried out. Answer with `managed`, after `abort` was called for each task that
    /// it ended without a response.
    ///
    /// After TARGET COLD RESET, answer and then close every session of the target.
    Tmf(TmfRequest),
    /// The transport gave the task up. Abort it; its name means nothing any more.
    TaskGone {
        /// The task.
        task: TaskRef,
    },
    /// Something about a path of a session changed.
    Path {
        /// The session.
        session: SessionId,
        /// Our port.
        port: EtherPort,
        /// The initiator's.
        peer: Mac,
        /// What.
        news: PathChange,
    },
    /// A session ended: the I_T nexus is lost (SAM-5 §6.4). Every task of it was reported gone before.
    SessionDown {
        /// The session.
        session: SessionId,
        /// Why.
        why: SessionEnd,
    },
}

/// A new session.
#[derive(Clone, Debug)]
pub struct SessionUp {
    /// Its name.
    pub session: SessionId,
    /// The target.
    pub target: Name,
    /// The group that the initiator came with.
    pub group: GroupName,
    /// The initiator.
    pub initiator: Name,
    /// With the initiator's name it names the initiator port.
    pub isid: [u8; 6],
    /// Whether the initiator proved that it knows the group's password.
    pub authenticated: bool,
    /// Where it came in.
    pub port: EtherPort,
    /// Where it came from; nothing vouches for that.
    pub peer: Mac,
    /// What was agreed on.
    pub parameters: Parameters,
}

/// A SCSI command.
#[derive(Clone, Debug)]
pub struct Command {
    /// Its name.
    pub task: TaskRef,
    /// Where it came from.
    pub session: SessionId,
    /// The logical unit, as SAM-5 §4.7 encodes it.
    pub lun: u64,
    /// How the task set treats it.
    pub attribute: TaskAttribute,
    /// Its priority, 1 (first) to 15, or 0 for none.
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// How many bytes the initiator expects to receive. No more are sent.
    pub data_in_len: u32,
    /// How many bytes the initiator expects to send. No more can be fetched. Both lengths are set in a
    /// bidirectional command.
    pub data_out_len: u32,
}

/// A task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmfRequest {
    /// Its name.
    pub tmf: TmfRef,
    /// Where it came from.
    pub session: SessionId,
    /// What to do.
    pub function: ManageFunction,
    /// The logical unit; means nothing for the functions that concern the whole target or nexus.
    pub lun: u64,
    /// The task that ABORT TASK or QUERY TASK means. `Some` for those two, else `None`.
    pub task: Option<TaskRef>,
}

/// How a task ended, in SCSI's terms.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// The status.
    pub status: u8,
    /// Sense data, at most [`crate::pdu::reply::SENSE_MAX`] bytes; empty for none.
    pub sense: &'a [u8],
    /// How many bytes would have moved had the initiator expected enough: the residual counts come from it.
    pub transferable: u64,
}

impl Finish<'_> {
    /// A task that did all it was asked: GOOD, with `transferable` bytes moved.
    pub const fn good(transferable: u64) -> Self {
        Self { status: status::GOOD, sense: &[], transferable }
    }
}

/// The few SCSI statuses that the protocol itself gives (SAM-5 §5.3).
pub(crate) mod status {
    pub(crate) const GOOD: u8 = 0x00;
    pub(crate) const CHECK_CONDITION: u8 = 0x02;
    pub(crate) const BUSY: u8 = 0x08;
}

/// What changed about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// It carries data besides the others, or again.
    Up,
    /// Nothing was heard on it for too long.
    Silent,
    /// The initiator gave it up.
    Gone,
    /// What it carries turned out to be less than our port takes, or to be all of that again.
    Mtu(PathMtuStatus),
}

impl PathChange {
    /// Returns whether nobody need care.
    pub fn is_good(&self) -> bool {
        match self {
            Self::Up => true,
            Self::Silent | Self::Gone => false,
            Self::Mtu(width) => width.is_whole(),
        }
    }
}

impl fmt::Display for PathChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up => f.write_str("the path is up"),
            Self::Silent => f.write_str("the path is silent"),
            Self::Gone => f.write_str("the path was given up"),
            Self::Mtu(width) => width.fmt(f),
        }
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The initiator said goodbye, since its owner is done with it.
    #[error("it logged out")]
    LoggedOut,
    /// The initiator gave it up, and comes back with another.
    #[error("its initiator gave it up")]
    GivenUp,
    /// The same initiator port began another session.
    #[error("it logged in again")]
    Reinstated,
    /// No path to the initiator was live for too long.
    #[error("its last path was lost")]
    PathLost,
    /// Its initiator acknowledged what was never sent.
    #[error("it acknowledged what was never sent")]
    Misbehaved,
    /// The keys are used up and could not be changed.
    #[error("its keys are used up")]
    KeysExhausted,
    /// The layer above asked for it.
    #[error("it was closed")]
    Closed,
    /// The layer above shuts down.
    #[error("the target shuts down")]
    ShutDown,
}

/// What a session did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// SCSI commands taken.
    pub commands: u64,
    /// Bytes of Data-In handed to the transport.
    pub data_in_bytes: u64,
    /// Bytes of Data-Out received, each once.
    pub data_out_bytes: u64,
    /// Requests that had come before, and were not carried out again.
    pub duplicates: u64,
    /// Frames of exchanges that are over, or were never begun: what is late.
    pub strays: u64,
}

/// A session, for those who watch.
#[derive(Clone, Debug)]
pub struct SessionView<'a> {
    /// Its name.
    pub session: SessionId,
    /// The target.
    pub target: &'a Name,
    /// The initiator.
    pub initiator: &'a Name,
    /// With the initiator's name it names the initiator port.
    pub isid: [u8; 6],
    /// The group that the initiator came with.
    pub group: &'a GroupName,
    /// Whether frames can be protected.
    pub authenticated: bool,
    /// What was agreed on.
    pub parameters: &'a Parameters,
    /// Its paths.
    pub paths: Vec<PathView>,
    /// How many tasks are open.
    pub tasks: u32,
    /// How many bytes of answers the initiator has not acknowledged.
    pub unacknowledged_bytes: usize,
    /// What it did so far.
    pub traffic: Traffic,
    /// Frames that it did not take, by reason.
    pub drops: DropCounts,
    /// What its paths did so far, those included that are gone.
    pub totals: PathTotals,
    /// The SIDs: the initiator's and ours.
    pub sids: (u32, u32),
}
