//! What the owner of a session tells it, and what it is told: plans, requests, outcomes, events.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use core::num::NonZeroU8;

use base::buffer::{Bytes, DataList};
use base::ether::{EtherPort, Mac};
use base::time::Duration;

use crate::aead::{KeyLimits, Level};
use crate::connection::{DropCounts, PathMtuStatus};
use crate::handle::handle;
use crate::login::Password;
use crate::pdu::command::{Cdb, ManageFunction, TaskAttribute};
use crate::pdu::disconnect::DisconnectReason;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;
use crate::pdu::reply::ManageResult;

handle! {
    /// Names a task from [`submit`](super::session::Session::submit) to its [`Event::Done`].
    pub struct TaskId;
}

handle! {
    /// Names a task management request from [`manage`](super::session::Session::submit_tmf) to its [`Event::Managed`].
    pub struct TmfId;
}

/// The most tasks that a session keeps, queued or on the way.
pub const MAX_TASKS: usize = 8192;

/// The most task management requests that are open at a time.
pub const MAX_MANAGES: usize = 256;

/// What a session is to be.
#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// Who we are.
    pub initiator: Name,
    /// With the initiator's name it names the initiator port. Two sessions of one name with one target need different
    /// ones; the same one again takes the place of the older session.
    pub isid: [u8; 6],
    /// The group that we belong to.
    pub group: GroupName,
    /// What proves that; without it, only groups without a password let us in.
    pub password: Option<Password>,
    /// Which target of the group.
    pub target: Name,
    /// Where it is, if that is known. Otherwise it is looked for, on every port.
    pub target_address: Option<(EtherPort, Mac)>,
    /// How the names begin under which it hears from the target, if something is to tell its frames from others' by that
    /// byte; it is not zero. Otherwise they are random throughout.
    pub sid_first: Option<NonZeroU8>,
    /// The least protection of everything that concerns a logical unit. More is used where the target wants more.
    pub level: Level,
    /// What is offered.
    pub parameters: Parameters,
    /// How long and how often a lost session is tried again.
    pub retry: Retry,
    /// What is kept and waited for.
    pub limits: SessionLimits,
}

impl SessionPlan {
    /// Plans a session with defaults: with a password nothing goes unprotected.
    pub fn new(
        initiator: Name,
        isid: [u8; 6],
        group: GroupName,
        password: Option<Password>,
        target: Name,
    ) -> Self {
        let level = if password.is_some() { Level::Integrity } else { Level::None };
        Self {
            initiator,
            isid,
            group,
            password,
            target,
            target_address: None,
            sid_first: None,
            level,
            parameters: Parameters::DEFAULT,
            retry: Retry::default(),
            limits: SessionLimits::default(),
        }
    }
}

/// How long and how often a lost session is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long requests wait for a session, from its loss on. Then they fail, and the session is down for good. Zero:
    /// the first loss is the end.
    pub timeout: Duration,
    /// How many attempts in a row may fail; zero for any number within `timeout`.
    pub attempts: u32,
    /// How long to wait before the second attempt; doubled each time.
    pub backoff: Duration,
    /// The longest wait between attempts.
    pub backoff_max: Duration,
    /// Whether the very first attempt is repeated too when nobody answers; else that is the end at once.
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
pub struct SessionLimits {
    /// Tasks at a time, queued or on the way; at most [`MAX_TASKS`].
    pub tasks_max: usize,
    /// How many bytes of data the tasks on the way may bring, together: what is asked for is what arrives, so this is what
    /// keeps many targets from answering into one port at once.
    pub data_in_bytes_max: usize,
    /// How long finding the target and shaking hands may take, together.
    pub login_within: Duration,
    /// How long a logout may take before the session is closed without an answer.
    pub logout_within: Duration,
    /// When the keys of what is sent are changed.
    pub key_limits: KeyLimits,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            tasks_max: 1024,
            data_in_bytes_max: 16 << 20,
            login_within: Duration::from_secs(10),
            logout_within: Duration::from_secs(5),
            key_limits: KeyLimits::default(),
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
    /// Its priority, 1 (first) to 15, or 0 for none.
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// The data to send. Empty: the command does not write.
    pub data_out: DataList,
    /// How many bytes are expected. Zero: the command does not read.
    pub data_in_len: u32,
    /// Whether it may be carried out again, from the start, when its session was lost and built anew and nobody can
    /// know whether it was carried out before. Only the caller can know that this does no harm.
    pub replay: bool,
    /// Whether it asks a guarded unit who it is: it goes ahead of what waits for that.
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
    /// It is not up at present, and this request cannot wait.
    #[error("the session is not up")]
    NotUp,
    /// The task is not open any more.
    #[error("there is no such task")]
    NoTask,
    /// More data than a command can carry.
    #[error("too much data for one command")]
    TooLong,
}

/// How a task ended, and what it brought.
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
    Failed,
    /// A task management function ended it; no status will come.
    Aborted,
    /// It never left, or the target never began it. It was not carried out.
    NotSent,
    /// Its session was lost. Whether it was carried out is not known.
    Lost,
}

/// What a target says at the end of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandResponse {
    /// The SCSI status.
    pub status: u8,
    /// How many bytes would have moved had enough been expected.
    pub transferable: u64,
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
pub struct TmfRequest {
    /// What to do.
    pub function: ManageFunction,
    /// The logical unit, for functions that have one.
    pub lun: u64,
    /// The task, for ABORT TASK and QUERY TASK.
    pub task: Option<TaskId>,
}

/// Something that the owner must do or know.
#[derive(Debug)]
pub enum Event {
    /// The session is up: for the first time, or again after it was built anew.
    Up(Box<SessionUp>),
    /// A path carries frames.
    PathUp {
        /// Our end.
        port: EtherPort,
        /// The target's.
        peer: Mac,
    },
    /// A path that did carries none.
    PathDown {
        /// Our end.
        port: EtherPort,
        /// The target's.
        peer: Mac,
    },
    /// What a path carries turned out to be less than our port takes, or to be all of that again.
    PathMtuStatus {
        /// Our end.
        port: EtherPort,
        /// The target's.
        peer: Mac,
        /// What it carries.
        status: PathMtuStatus,
    },
    /// Another server than the session's says that it serves a target of the same name to the group: two servers with one
    /// identity. Nothing vouches for that, and nothing was done about it. Told once in a session.
    OtherServer {
        /// Our end.
        port: EtherPort,
        /// Where the other server is.
        peer: Mac,
    },
    /// There is no session; requests wait. [`Event::Up`] or [`Event::Down`] follows.
    Recovering(LossReason),
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
    Managed {
        /// Which one.
        id: TmfId,
        /// The target's answer; `None` when the session was lost before it came.
        result: Option<ManageResult>,
    },
}

/// A session that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionUp {
    /// What was agreed on.
    pub parameters: Parameters,
    /// Whether both ends proved that they know the group's password.
    pub authenticated: bool,
    /// Whether there was another one before, which was lost with all that the target knew of it (reservations may be gone,
    /// a unit attention is likely).
    pub rebuilt: bool,
    /// Our end of the first path.
    pub port: EtherPort,
    /// The target's.
    pub peer: Mac,
    /// The SIDs: the target's and ours.
    pub sids: (u32, u32),
    /// Whether it is with another server than the session before it was, by what the target says of itself.
    pub moved: bool,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// No path was live for too long.
    #[error("its last path was lost")]
    PathLost,
    /// The target ended it.
    #[error("{}", ended(*.0))]
    Ended(DisconnectReason),
    /// A new one took its place, since the target knew it no more.
    #[error("the target knew it no more")]
    UnknownToTarget,
    /// What we sent used its keys up before they could be changed: nothing that was sealed with them was acknowledged.
    #[error("its keys are used up")]
    KeysExhausted,
    /// We gave it up: commands got no answer.
    #[error("the target did not answer commands in time")]
    Unanswered,
    /// The target broke a rule.
    #[error("the target broke a rule: {0}")]
    Misbehaved(ProtocolError),
    /// Nobody answered in time.
    #[error("nobody answered who serves this target to this group")]
    NotFound,
    /// None of our interfaces was up.
    #[error("no interface is up")]
    NoPort,
    /// The handshake failed.
    #[error("the handshake failed: {0}")]
    Handshake(crate::login::initiator::HandshakeError),
}

/// Says how a target ended a session.
fn ended(reason: DisconnectReason) -> Cow<'static, str> {
    Cow::Borrowed(match reason {
        DisconnectReason::CLOSED => "the target ended it",
        DisconnectReason::REPLACED => {
            "another initiator with the same name and ISID took the place of this session"
        }
        DisconnectReason::SHUTDOWN => "the target shuts down",
        DisconnectReason::BROKEN => "the target says that we broke a rule",
        DisconnectReason::NOT_AUTHORIZED => "the target does not let us in any more",
        DisconnectReason::KEYS_EXHAUSTED => "the target has used its keys up",
        DisconnectReason(other) => return Cow::Owned(alloc::format!("the target ended it (reason {other})")),
    })
}

/// A rule that the target broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Data beyond what was asked for.
    #[error("data beyond what was asked for")]
    DataInOutside,
    /// Data in more pieces than any order of arrival explains.
    #[error("data in too many pieces")]
    DataInScattered,
    /// A request for data that the command does not have, or too many of them.
    #[error("a request for data that the command does not have")]
    TransferReadyOutside,
    /// Another end of a task, or less data than was announced.
    #[error("two ends of one task")]
    TwoEnds,
    /// An answer that does not belong to the question.
    #[error("an answer that does not belong to the question")]
    WrongAnswer,
    /// It acknowledged what was never sent.
    #[error("an acknowledgement of what was never sent")]
    FalseAck,
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
    /// No session could be had within what [`Retry`] allows; the last attempt failed for this reason.
    #[error("no session with the target: {0}")]
    RetriesExhausted(LossReason),
    /// What went wrong would go wrong again.
    #[error("{0}")]
    Permanent(LossReason),
}

/// What a session did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Tasks taken.
    pub tasks: u64,
    /// Tasks reported.
    pub done: u64,
    /// Bytes of Data-In placed, each once.
    pub data_in_bytes: u64,
    /// Bytes of Data-Out handed to the transport.
    pub data_out_bytes: u64,
    /// Frames that were none, of another version, or with a reserved bit.
    pub bad_frames: u64,
    /// Frames that the session did not take: damaged, forged, replayed, from elsewhere.
    pub refused_frames: u64,
    /// The same, by reason.
    pub drops: DropCounts,
    /// How often the keys of what is sent were changed.
    pub key_updates: u64,
    /// Frames of exchanges that are over.
    pub strays: u64,
    /// Frames with less protection than their exchange has.
    pub unprotected: u64,
    /// Frames that say what they must not.
    pub malformed: u64,
    /// Commands sent again with more protection, because their unit demands it.
    pub raised: u64,
    /// Hints that the target does not know our session.
    pub hints: u64,
    /// Tasks carried out again in a new session.
    pub replays: u64,
    /// Handshakes that succeeded.
    pub logins: u64,
    /// Handshakes that failed.
    pub logins_failed: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
    /// States that cannot be: our own errors.
    pub bugs: u64,
}
