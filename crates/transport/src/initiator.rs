//! The initiator role: what a session accepts from the layer above it, and how the requests end.

use alloc::boxed::Box;

use base::buffer::{Bytes, DataList};
use base::time::{Duration, Instant};

use crate::command::{Cdb, TaskAttribute};
use crate::handle::handle;
use crate::task_management::TmfFunction;

handle! {
    /// Names a task from [`submit`](InitiatorTransport::submit) to the event that reports its end.
    pub struct TaskId;
}

handle! {
    /// Names a task management request from [`submit_tmf`](InitiatorTransport::submit_tmf) to the event that
    /// reports its result.
    pub struct TmfId;
}

/// How long and how often a session tries to log in again after it lost its last path to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long requests wait for a path, counted from the loss of the last one. After that they fail, and
    /// the session is down permanently. Zero: the first loss ends the session.
    pub timeout: Duration,
    /// How many attempts in a row may fail; zero for any number within `timeout`.
    pub attempts: u32,
    /// The wait before the second attempt; doubled each time. The first attempt waits only as long as the
    /// target demands (Time2Wait of iSCSI).
    pub backoff: Duration,
    /// The longest wait between attempts.
    pub backoff_max: Duration,
    /// Whether the very first login is retried too when the target does not answer; otherwise the session
    /// ends immediately.
    pub first: bool,
}

impl Retry {
    /// No retry: the first loss ends the session.
    pub const NONE: Self = Self {
        timeout: Duration::ZERO,
        attempts: 1,
        backoff: Duration::from_millis(200),
        backoff_max: Duration::from_secs(5),
        first: false,
    };
}

impl Default for Retry {
    /// Returns the default: two minutes, which block layers expect.
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

/// A SCSI command to be executed.
#[derive(Clone, Debug)]
pub struct Request {
    /// The logical unit, as SAM-5 §4.7 encodes it.
    pub lun: u64,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// The command priority, 1 (highest) to 15, or 0 for none. iSCSI sends it only if the target supports RFC
    /// 7144.
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// The data to send. Empty: the command does not write.
    pub data_out: DataList,
    /// The expected data-in length, in bytes. Zero: the command does not read.
    pub data_in_len: u32,
    /// Whether the command is delivered immediately, outside the command window, and uses no CmdSN (RFC 7143
    /// §4.2.2.1). HyperSCSI has no such delivery and ignores this.
    pub immediate: bool,
    /// Whether the command may be executed again, from the start, after its session was lost and established
    /// again, when the initiator cannot know whether the target executed it before. Only the caller can know
    /// that repeating it does no harm. Recovery within a session never executes a command twice.
    pub replay: bool,
    /// Whether it is part of an identity check of a guarded logical unit
    /// ([`require_identity_check`](InitiatorTransport::require_identity_check)): it is sent ahead of requests
    /// that wait for the check.
    pub is_identity_check: bool,
}

impl Request {
    /// Returns a request for a command with task attribute SIMPLE and without data.
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

/// A task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmfParameters {
    /// The function. TASK REASSIGN is refused, because iSCSI sends it itself; the functions of RFC 7144 need
    /// iSCSIProtocolLevel 2.
    pub function: TmfFunction,
    /// The logical unit, for functions that have one.
    pub lun: u64,
    /// The task, for ABORT TASK and QUERY TASK. A task that is to be aborted is never executed again,
    /// whatever [`Request::replay`] permits.
    pub task: Option<TaskId>,
}

/// The reason for which a session refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The maximum number of requests is open; one has to end first.
    #[error("as many requests are open as may be")]
    Full,
    /// The session ends, or has ended.
    #[error("the session is down")]
    Down,
    /// The session is not up at present, and this request cannot wait.
    #[error("the session is not up")]
    NotUp,
    /// The task is no longer open.
    #[error("there is no such task")]
    NoTask,
    /// The request is not legal in this kind of session, or its feature was not negotiated.
    #[error("not possible in this session")]
    NotPossible,
    /// More data than a command can carry, or no data where some is needed.
    #[error("too much data for one command")]
    TooLong,
}

/// The outcome of a task.
#[derive(Debug)]
pub struct Outcome {
    /// The target's response, or the reason why there is none.
    pub end: TaskResult,
    /// The received data, from the start of the command's data, without gaps. The owner returns it with
    /// [`base::buffer::Pool::recycle`]. Empty unless `end` is [`TaskResult::Status`].
    pub data_in: Option<Bytes>,
    /// Its place in the order in which the session sent its tasks
    /// ([`send_order`](InitiatorTransport::send_order)).
    pub send_order: Option<u64>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskResult {
    /// The target executed the command and returned a status.
    Status(CommandResponse),
    /// The target could not execute the command; there is no status. The code is the transport's.
    Failed(ServiceResponse),
    /// A task management function aborted the task; no status will be received.
    Aborted,
    /// The target rejected the PDU of the command, with this reason of the transport, and did not execute it.
    Rejected(u8),
    /// The command was not sent, and never will be, or the target never began it. It was not executed.
    NotSent,
    /// The connection or session of the task was lost. It is unknown whether the target executed the command.
    Lost,
}

impl TaskResult {
    /// Returns whether the status is GOOD.
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Status(CommandResponse { status: crate::status::GOOD, .. }))
    }
}

base::code8! {
    /// The service response of a command (SAM-5 §5.1), with the numbers of iSCSI (RFC 7143 §11.4.3).
    pub struct ServiceResponse {
        /// The target has executed the command; its status counts.
        COMPLETED = 0;
        /// The target could not execute the command.
        TARGET_FAILURE = 1;
    }
}

/// The target's response at the end of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandResponse {
    /// The SCSI status.
    pub status: u8,
    /// The status qualifier (RFC 7144; else 0).
    pub qualifier: u16,
    /// The residual count of the data; in a bidirectional command, that of the data sent.
    pub residual: Residual,
    /// The residual count of the data received by a bidirectional command.
    pub read_residual: Residual,
    /// Sense data.
    pub sense: Option<Box<[u8]>>,
}

/// The residual count of a command: the difference between the length that the initiator expected and the
/// length of the data (SAM-5 §5.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// No residual: exactly the expected length.
    #[default]
    None,
    /// Overflow: this many bytes were not transferred, because the initiator expected fewer.
    Overflow(u32),
    /// Underflow: this many of the expected bytes were not transferred, because the command had fewer.
    Underflow(u32),
}

impl Residual {
    /// Compares the length that the device would have transferred with the length that the initiator
    /// expected.
    pub fn of(transferable: u64, expected: u32) -> Self {
        let expected = u64::from(expected);
        match u32::try_from(transferable.abs_diff(expected)).unwrap_or(u32::MAX) {
            0 => Self::None,
            //= rfc7143#section-11.4.5.2
            //# If SPDTL > EDTL for a task, iSCSI Overflow MUST be signaled in the SCSI Response PDU as
            //# specified in Section 11.4.5.1.
            //= rfc7143#section-11.4.5.2
            //# The Residual Count MUST be set to the numerical value of (SPDTL - EDTL).
            by if transferable > expected => Self::Overflow(by),
            //= rfc7143#section-11.4.5.2
            //# If SPDTL < EDTL for a task, iSCSI Underflow MUST be signaled in the SCSI Response PDU as
            //# specified in Section 11.4.5.1.
            //= rfc7143#section-11.4.5.2
            //# The Residual Count MUST be set to the numerical value of (EDTL - SPDTL).
            by => Self::Underflow(by),
        }
    }
}

/// A session of a transport, as the layer above it sees it. The events of a session differ from transport to
/// transport; all of them report the end of each task once, with its [`Outcome`].
pub trait InitiatorTransport {
    /// Accepts a command.
    ///
    /// # Errors
    /// [`SubmitError`]
    fn submit(&mut self, now: Instant, request: Request) -> Result<TaskId, SubmitError>;

    /// Accepts a task management request.
    ///
    /// # Errors
    /// [`SubmitError`]
    fn submit_tmf(&mut self, now: Instant, parameters: TmfParameters) -> Result<TmfId, SubmitError>;

    /// Returns a number that changes whenever a task makes progress; `None` once the task has ended.
    fn progress(&self, task: TaskId) -> Option<u64>;

    /// Returns the place of a task in the order in which the session sent its tasks: a number that is higher
    /// for tasks that were sent later. `None` if the task has ended, or was not sent in this session.
    fn send_order(&self, task: TaskId) -> Option<u64>;

    /// Marks a logical unit as guarded: from now on, and after each loss of the I_T nexus, its commands wait
    /// until [`confirm_identity`](Self::confirm_identity) says that the same device is behind the LUN. Call
    /// this again when a check begins.
    fn require_identity_check(&mut self, lun: u64);

    /// Records that the same device as before is behind a LUN. If the I_T nexus was lost since
    /// [`require_identity_check`](Self::require_identity_check), this says nothing of the new one.
    fn confirm_identity(&mut self, now: Instant, lun: u64);

    /// Records that another device, or none, is behind a LUN: its commands fail.
    fn fail_identity(&mut self, now: Instant, lun: u64);

    /// Returns whether requests can be sent now.
    fn is_up(&self) -> bool;

    /// Drops the session at the target and logs in again.
    fn rebuild_session(&mut self, now: Instant);

    /// Asks the target for a sign of life. Returns how many PDUs or frames were received so far.
    fn ping(&mut self, now: Instant) -> u64;

    /// Ends the session in order: it accepts no new requests, and logs out once the open ones have ended.
    /// Requests of an identity check are accepted as long as others are open, which may wait for the check.
    fn logout(&mut self, now: Instant);

    /// Ends the session at once. Open requests fail.
    fn close(&mut self, now: Instant);

    /// Returns when [`handle_timeout`](Self::handle_timeout) is to be called.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Handles the deadlines that passed.
    fn handle_timeout(&mut self, now: Instant);
}
