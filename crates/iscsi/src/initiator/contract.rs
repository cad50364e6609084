//! What the owner of a session tells it, and what it is told: plans, requests, outcomes, events.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList};
use base::time::Duration;

use super::protocol_error::ProtocolError;
use crate::discovery::Discovered;
use crate::login::Status;
use crate::login::directory::TargetAddress;
use crate::login::initiator::{AuthPlan, InitiatorLoginError};
use crate::name::{Cid, IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{ConnectionParameters, KeyPolicy, SessionParameters};
use crate::pdu::Residual;
use crate::pdu::ahs::Cdb;
use crate::pdu::async_message::AsyncMessage;
use crate::pdu::reject::RejectReason;
use crate::pdu::scsi_command::TaskAttribute;
use crate::pdu::scsi_response::ServiceResponse;
use crate::pdu::tmf_request::TmfFunction;
use crate::pdu::tmf_response::TmfResult;
use crate::target::arena::Key;

/// Declares a name for something that a session numbers; an old name finds nothing.
macro_rules! handle {
    ($(#[$doc:meta])* pub struct $name:ident;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) Key);

        impl $name {
            /// Returns the index: dense, and unique among those in being, so that it can serve as the index of a
            /// side table.
            pub const fn index(self) -> u32 {
                self.0.index
            }
        }
    };
}

handle! {
    /// Names a task from [`submit`](super::session::Session::submit) to its [`Event::Done`].
    pub struct TaskId;
}

handle! {
    /// Names a task management request from [`manage`](super::session::Session::submit_tmf) to its [`Event::TmfDone`].
    pub struct TmfId;
}

/// The place of a connection in its session, from 0; it is also the connection's CID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// The most connections of one session. MaxConnections could be 65535; beyond this nothing is won.
pub const MAX_CONNECTIONS: u16 = 16;

/// The most tasks that a session keeps, queued or on the way.
pub const MAX_TASKS: usize = 8192;

/// The most tasks that ask which device is behind a LUN, beyond all others.
pub const MAX_PROBES: usize = 256;

/// The most task management requests that are open at a time.
pub const MAX_TMFS: usize = 256;

/// What a session is to be.
#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// Who we are.
    pub initiator: IscsiName,
    /// What we call ourselves for people.
    pub alias: Option<String>,
    /// Our half of the session identifier. Two sessions of one initiator name with one target need different ones;
    /// the same one again takes the place of the older session.
    pub isid: Isid,
    /// What the session is for.
    pub purpose: Purpose,
    /// Where the target listens, first choice first. Not empty.
    pub portals: Vec<Portal>,
    /// How both sides prove who they are.
    pub auth: AuthPlan,
    /// What is offered: digests, bursts, ErrorRecoveryLevel and so on. MaxConnections is offered as `connections`.
    pub keys: KeyPolicy,
    /// How many connections the session is to have, 1 to [`MAX_CONNECTIONS`]; the target may allow fewer.
    pub connections: u16,
    /// How long and how often a lost path is tried again.
    pub retry: Retry,
    /// What is kept and waited for.
    pub limits: Limits,
}

impl SessionPlan {
    /// Plans a session with defaults: no authentication, one connection, every key as [`KeyPolicy::default`] has it.
    pub fn new(initiator: IscsiName, isid: Isid, purpose: Purpose, portals: Vec<Portal>) -> Self {
        Self {
            initiator,
            alias: None,
            isid,
            purpose,
            portals,
            auth: AuthPlan::None,
            keys: KeyPolicy::default(),
            connections: 1,
            retry: Retry::default(),
            limits: Limits::default(),
        }
    }
}

/// What a session is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To ask for targets.
    Discovery,
    /// To use this target.
    Target(IscsiName),
}

/// Where a target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The address, or a host name that the owner resolves.
    pub address: TargetAddress,
    /// The portal group it belongs to, if known. A session stays in one.
    pub group: Option<PortalGroupTag>,
}

/// How long and how often a lost path is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long requests wait for a path, from its loss on. Then they fail, and the session is down for good. Zero:
    /// the first loss is the end.
    pub timeout: Duration,
    /// How many attempts in a row may fail; zero for any number within `timeout`.
    pub attempts: u32,
    /// How long to wait before the second attempt; doubled each time. The first attempt waits only as long as the
    /// target demands (Time2Wait).
    pub backoff: Duration,
    /// The longest wait between attempts.
    pub backoff_max: Duration,
    /// Whether the very first login is tried again too when nobody answers; else that is the end at once.
    pub first: bool,
}

impl Retry {
    /// Never: the first loss is the end.
    pub const NONE: Self = Self {
        timeout: Duration::ZERO,
        attempts: 1,
        backoff: Duration::from_millis(200),
        backoff_max: Duration::from_secs(5),
        first: false,
    };
}

impl Default for Retry {
    /// Two minutes, as block layers are used to.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(120),
            attempts: 0,
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(5),
            first: false,
        }
    }
}

/// What a session keeps and waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tasks at a time, queued or on the way; at most [`MAX_TASKS`].
    pub tasks_max: usize,
    /// How long connecting and logging in may take, together.
    pub login_within: Duration,
    /// How long a connection may be silent before it is pinged; zero for never.
    pub ping_after: Duration,
    /// How long the answer to a ping may take before the connection is given up.
    pub pong_within: Duration,
    /// How long a logout may take before the connection is closed without it.
    pub logout_within: Duration,
    /// At ErrorRecoveryLevel 1 and up: how long something that must come may be missing before it is asked for.
    pub repair_after: Duration,
    /// How often it is asked for before the connection is given up.
    pub repairs_max: u32,
    /// At ErrorRecoveryLevel 1 and up: how long a status may go unacknowledged because nothing else is to be sent. Until
    /// then the target keeps the answer and its data. Zero: for any time.
    pub acknowledge_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tasks_max: 1024,
            login_within: crate::login::MAX_LOGIN_TIME,
            ping_after: Duration::from_secs(15),
            pong_within: Duration::from_secs(10),
            logout_within: Duration::from_secs(5),
            repair_after: Duration::from_secs(1),
            repairs_max: 8,
            acknowledge_after: Duration::from_secs(1),
        }
    }
}

/// A SCSI command to be carried out.
#[derive(Clone, Debug)]
pub struct Request {
    /// The logical unit, as SAM-5 §4.7 encodes it.
    pub lun: u64,
    /// How the task set treats it.
    pub attribute: TaskAttribute,
    /// Its priority, 1 (first) to 15, or 0 for none; sent only if the target speaks RFC 7144.
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// The data to send. Empty: the command does not write.
    pub data_out: DataList,
    /// How many bytes are expected. Zero: the command does not read.
    pub data_in_len: u32,
    /// Whether it goes ahead of the command window and takes no number (RFC 7143 §4.2.2.1).
    pub immediate: bool,
    /// Whether it may be carried out again, from the start, when its session was lost and built anew and nobody can
    /// know whether it was carried out before. Only the caller can know that this does no harm. Recovery within a
    /// session never carries a command out twice.
    pub replay: bool,
    /// Whether it asks which device is behind the LUN, and so goes even where others are held back
    /// ([`guard`](super::session::Session::require_identity_check)). There is room for a few of these beyond [`Limits::tasks_max`].
    pub is_identity_check: bool,
}

impl Request {
    /// Makes a simple command without data.
    pub fn new(lun: u64, cdb: Cdb) -> Self {
        Self {
            lun,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            cdb,
            data_out: DataList::new(),
            data_in_len: 0,
            immediate: false,
            replay: false,
            is_identity_check: false,
        }
    }
}

/// Why a session does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many are open as may be; one has to end first.
    #[error("as many requests are open as may be")]
    Full,
    /// The session ends, or has ended.
    #[error("the session is down")]
    Down,
    /// It has no full feature phase at present, and this request cannot wait.
    #[error("the session is not up")]
    NotUp,
    /// The task is not open any more.
    #[error("there is no such task")]
    NoTask,
    /// It has no place in this kind of session, or was not negotiated.
    #[error("not possible in this session")]
    NotPossible,
    /// More data than a command can carry (4 GiB), or no data where some is needed.
    #[error("too much data for one command")]
    TooLong,
}

/// How a task ended.
#[derive(Debug)]
pub struct Outcome {
    /// What the target said, or what became of it.
    pub end: TaskResult,
    /// The data that came, from the start of the command's data, without gaps. Give it back with
    /// [`base::buffer::Pool::recycle`]. Empty unless `end` is [`TaskResult::Status`].
    pub data_in: Option<Bytes>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskResult {
    /// It was carried out.
    Status(CommandResponse),
    /// The target could not carry it out, and there is no status.
    Failed(ServiceResponse),
    /// A task management function ended it; no status will come.
    Aborted,
    /// The target refused the PDU that carried it; it was not carried out.
    Rejected(RejectReason),
    /// It never left, and never will. It was not carried out.
    NotSent,
    /// Its connection or session was lost. Whether it was carried out is not known.
    Lost,
}

/// What a target says at the end of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandResponse {
    /// The SCSI status.
    pub status: u8,
    /// The status qualifier (RFC 7144; else 0).
    pub qualifier: u16,
    /// How far the data missed what was expected; in a bidirectional command, the data sent.
    pub residual: Residual,
    /// The same for the data received by a bidirectional command.
    pub read_residual: Residual,
    /// Sense data.
    pub sense: Option<Box<[u8]>>,
}

impl TaskResult {
    /// Returns whether it is a GOOD status.
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Status(CommandResponse { status: 0, .. }))
    }
}

/// A task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmfParameters {
    /// What to do. TASK REASSIGN is the session's own affair and refused; the functions of RFC 7144 need
    /// iSCSIProtocolLevel 2.
    pub function: TmfFunction,
    /// The logical unit, for functions that have one.
    pub lun: u64,
    /// The task, for ABORT TASK and QUERY TASK. A task that is to be aborted is never carried out again, whatever
    /// [`Request::replay`] says.
    pub task: Option<TaskId>,
}

/// Something that the owner must do or know.
#[derive(Debug)]
pub enum Event {
    /// Open a TCP connection to `to`, then call `connected` or `connect_failed` for this slot. The owner may give up
    /// by itself; the session stops waiting for it after [`Limits::login_within`], with a [`Event::CancelConnect`].
    Connect {
        /// For which place.
        slot: Slot,
        /// Where to.
        to: TargetAddress,
    },
    /// Stop connecting for this slot.
    CancelConnect {
        /// For which place.
        slot: Slot,
    },
    /// The session is in full feature phase: for the first time, again after it was built anew, or still after its
    /// connections came back.
    Up(Box<SessionUp>),
    /// A connection of the session is in full feature phase. The first one follows the session's [`Event::Up`].
    ConnectionUp {
        /// Its place.
        slot: Slot,
        /// What was agreed on for it.
        parameters: ConnectionParameters,
    },
    /// A connection that was up is so no more, or an attempt to have one failed.
    ConnectionDown {
        /// Its place.
        slot: Slot,
        /// Why.
        why: ConnectionDown,
    },
    /// No connection is up; requests wait. [`Event::Up`] or [`Event::Down`] follows.
    Recovering,
    /// The session ended for good; every task was reported before.
    Down(SessionEnd),
    /// A task ended. Reported exactly once for each.
    Done {
        /// Which one.
        task: TaskId,
        /// How.
        outcome: Outcome,
    },
    /// A task management request was answered. The tasks that it ended were reported before.
    TmfDone {
        /// Which one.
        id: TmfId,
        /// The target's answer; `None` when the session was lost before it came.
        result: Option<TmfResult>,
    },
    /// The targets that were asked for.
    Targets {
        /// Them, each with a legal name.
        targets: Vec<Discovered>,
        /// How many names and addresses were left out because they are none (a slash, a newline, …), or too many.
        ignored: usize,
    },
    /// The connection was lost, or the target broke the rules, before an answer to a text was whole.
    TextFailed,
    /// The keys that were sent are settled; what the target answered.
    TextDone {
        /// The text of the answer: `Key=value` pairs, each ended by a zero byte.
        answer: Vec<u8>,
    },
    /// The target says something unasked. The session did what the protocol wants of it already.
    AsyncMessage(AsyncNotice),
    /// The login was sent elsewhere; the session follows.
    Redirected {
        /// For which place.
        slot: Slot,
        /// Where to.
        to: TargetAddress,
        /// Whether the owner should remember that.
        permanently: bool,
    },
}

/// What the target said unasked (RFC 7143 §11.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncNotice {
    /// On which connection.
    pub slot: Slot,
    /// What happened.
    pub message: AsyncMessage,
    /// Sense data, for a SCSI event.
    pub sense: Option<Box<[u8]>>,
}

/// A session that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionUp {
    /// The target's half of the session identifier.
    pub tsih: Tsih,
    /// What was agreed on.
    pub parameters: SessionParameters,
    /// The portal group, if the target said.
    pub portal_group: Option<PortalGroupTag>,
    /// Whether the target proved who it is.
    pub peer_authenticated: bool,
    /// How this session came about.
    pub origin: SessionOrigin,
}

/// How a session came to be up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOrigin {
    /// It is the first.
    First,
    /// The one before was lost, with all that the target knew of it (a new I_T nexus: reservations may be gone, a
    /// unit attention is likely).
    Rebuilt,
    /// It is the same: no connection was left, one came back in time, and tasks go on (ErrorRecoveryLevel 2).
    Continued,
}

/// Why a connection is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionDown {
    /// It could not be opened.
    #[error("it could not be opened")]
    Unreachable,
    /// Connecting or logging in took too long.
    #[error("the login took too long")]
    TooSlow,
    /// The transport failed, or the target closed it.
    #[error("the connection was lost")]
    Lost,
    /// The target refused the login.
    #[error("the login was refused: {}", .0.meaning())]
    Refused(Status),
    /// The target broke the rules of the login.
    #[error("the login failed: {0}")]
    Login(InitiatorLoginError),
    /// The target broke a rule.
    #[error("{0}")]
    ProtocolError(ProtocolError),
    /// It was logged out.
    #[error("it was logged out")]
    LoggedOut,
    /// The target announced that it drops it.
    #[error("the target dropped it")]
    Dropped,
    /// We gave it up: commands got no answer.
    #[error("the target did not answer commands in time")]
    Unanswered,
    /// It ended together with its session.
    #[error("its session ended")]
    SessionEnded,
}

/// Why a session is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// It was logged out.
    #[error("logged out")]
    LoggedOut,
    /// The owner closed it.
    #[error("closed")]
    Closed,
    /// No connection could be had within what [`Retry`] allows; the last one failed for this reason.
    #[error("no path to the target: {0}")]
    RetriesExhausted(ConnectionDown),
    /// What went wrong would go wrong again.
    #[error("{0}")]
    Permanent(ConnectionDown),
}

/// A connection, for those who watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// Its place.
    pub slot: Slot,
    /// Its number in the session.
    pub cid: Cid,
    /// Whether it is in full feature phase.
    pub up: bool,
    /// What was agreed on for it.
    pub parameters: ConnectionParameters,
    /// Tasks that are allegiant to it.
    pub tasks: u32,
    /// Bytes that those tasks are to move.
    pub bytes: u64,
}

/// What a session did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Tasks taken.
    pub tasks: u64,
    /// Tasks reported.
    pub done: u64,
    /// PDUs received whole.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// Bytes of Data-In placed.
    pub data_in_bytes: u64,
    /// Bytes of Data-Out sent, immediate data included.
    pub data_out_bytes: u64,
    /// Header digests that were wrong.
    pub header_digest_errors: u64,
    /// Data digests that were wrong.
    pub data_digest_errors: u64,
    /// SNACKs for data or R2Ts.
    pub data_snacks: u64,
    /// SNACKs for statuses.
    pub status_snacks: u64,
    /// Acknowledgements of data that the target asked for.
    pub data_acks: u64,
    /// NOP-Outs sent only to acknowledge statuses.
    pub status_acks: u64,
    /// Commands sent again under their number.
    pub retries: u64,
    /// Rejects received.
    pub rejects: u64,
    /// Tasks moved to another connection.
    pub reassigns: u64,
    /// Tasks carried out again in a new session.
    pub replays: u64,
    /// Logins that succeeded.
    pub logins: u64,
    /// Logins that failed, refused or broken off.
    pub logins_failed: u64,
    /// Connections lost after they were up.
    pub connections_lost: u64,
    /// Sessions built anew.
    pub sessions_rebuilt: u64,
    /// Sessions that went on after their last connection was lost.
    pub sessions_continued: u64,
    /// States that cannot be: our own errors.
    pub bugs: u64,
}
