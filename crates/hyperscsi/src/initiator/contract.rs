//! The interface between a session and its owner: plans, requests, outcomes, events.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use core::num::NonZeroU8;

use base::ether::{EtherPort, Mac};
use base::time::Duration;
use transport::initiator::{Outcome, Retry, TaskId, TmfId};
use transport::task_management::TmfResult;

use crate::aead::KeyLimits;
use crate::connection::{DropCounts, PathMtuStatus};
use crate::pdu::disconnect::DisconnectReason;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;
use security::Level;
use security::opaque::Password;

/// The most tasks that a session holds, queued or sent.
pub const MAX_TASKS: usize = 8192;

/// The most task management requests that are open at a time.
pub const MAX_MANAGES: usize = 256;

/// The configuration of a session.
#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// The name of this initiator.
    pub initiator: Name,
    /// The ISID; together with the initiator's name it names the initiator port. Two sessions of one
    /// initiator name with one target need different ISIDs; a login with the same ISID replaces the older
    /// session (session reinstatement).
    pub isid: [u8; 6],
    /// The group that the initiator belongs to.
    pub group: GroupName,
    /// The group's password; without it, only groups without a password accept the initiator.
    pub password: Option<Password>,
    /// The target of the group.
    pub target: Name,
    /// The target's address, if it is known. Otherwise the initiator discovers the target on every port.
    pub target_address: Option<(EtherPort, Mac)>,
    /// The first byte of the SIDs that the target sends to this session; it is not zero. A caller sets it so
    /// that it can tell the frames of this session from those of others by that byte. Without it the SIDs are
    /// random throughout.
    pub sid_first: Option<NonZeroU8>,
    /// The least protection of everything that concerns a logical unit. The session uses more where the
    /// target demands more.
    pub level: Level,
    /// The parameters that the initiator offers.
    pub parameters: Parameters,
    /// How long and how often to recover a lost session.
    pub retry: Retry,
    /// Limits on memory and waiting times.
    pub limits: SessionLimits,
}

impl SessionPlan {
    /// Returns a plan with defaults: with a password, requests are protected at least at `integrity`.
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

/// What a session holds and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// The most tasks at a time, queued or sent; at most [`MAX_TASKS`].
    pub tasks_max: usize,
    /// How many bytes of Data-In all sent tasks may return, together. Targets send only what was requested,
    /// so this limit keeps many targets from sending into one port at once (incast).
    pub data_in_bytes_max: usize,
    /// How long discovery and handshake may take, together.
    pub login_within: Duration,
    /// How long a logout may take before the session is closed without an answer.
    pub logout_within: Duration,
    /// When the keys of sent frames are updated.
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

/// Something that the owner must handle or record.
#[derive(Debug)]
pub enum Event {
    /// The session is up: for the first time, or again after session recovery.
    Up(Box<SessionUp>),
    /// A path carries frames.
    PathUp {
        /// This host's port.
        port: EtherPort,
        /// The target's address.
        peer: Mac,
    },
    /// A path that carried frames is down.
    PathDown {
        /// This host's port.
        port: EtherPort,
        /// The target's address.
        peer: Mac,
    },
    /// The path MTU turned out to be smaller than the port's, or is as large as the port's again.
    PathMtuStatus {
        /// This host's port.
        port: EtherPort,
        /// The target's address.
        peer: Mac,
        /// The state of the path MTU.
        status: PathMtuStatus,
    },
    /// Another server than the session's claims to serve a target of the same name to the group: two servers
    /// with one identity. The claim is not authenticated, and the session does nothing about it. Reported
    /// once in a session.
    OtherServer {
        /// This host's port.
        port: EtherPort,
        /// The address of the other server.
        peer: Mac,
    },
    /// The session is lost; requests wait. [`Event::Up`] or [`Event::Down`] follows.
    Recovering(LossReason),
    /// The session ended for good; every task was reported before.
    Down(SessionEnd),
    /// A task ended. Reported exactly once for each.
    Done {
        /// The task.
        task: TaskId,
        /// How it ended.
        outcome: Outcome,
    },
    /// A task management request was answered. The tasks that it ended were reported before.
    TmfDone {
        /// The request.
        id: TmfId,
        /// The target's answer; `None` when the session was lost before it was received.
        result: Option<TmfResult>,
    },
}

/// A session that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionUp {
    /// The parameters that both ends agreed on.
    pub parameters: Parameters,
    /// Whether both ends proved that they know the group's password.
    pub authenticated: bool,
    /// Whether this session replaces one that was lost. The target lost its state then: reservations may be
    /// gone, a unit attention is likely.
    pub rebuilt: bool,
    /// This host's port of the first path.
    pub port: EtherPort,
    /// The target's address of the first path.
    pub peer: Mac,
    /// The SIDs: the target's and the initiator's.
    pub sids: (u32, u32),
    /// Whether the server of this session is another one than that of the session before, by the instance
    /// that it reports.
    pub moved: bool,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// No path was alive for too long.
    #[error("the last path to the target was lost")]
    PathLost,
    /// The target ended the session.
    #[error("{}", ended(*.0))]
    Ended(DisconnectReason),
    /// The target did not know the session any more, and a new one replaced it.
    #[error("the target does not know the session any more")]
    UnknownToTarget,
    /// The initiator's keys were used up before they could be updated, because the target acknowledged
    /// nothing that was protected with them.
    #[error("the session used up its keys")]
    KeysExhausted,
    /// The owner gave up the session: commands got no answer.
    #[error("the target did not answer commands in time")]
    Unanswered,
    /// The target violated the protocol.
    #[error("the target violated the protocol: {0}")]
    Misbehaved(ProtocolError),
    /// No target answered in time.
    #[error("no server answered that exports this target to this group")]
    NotFound,
    /// No interface of this host was up.
    #[error("no network interface of this host is up")]
    NoPort,
    /// The handshake failed.
    #[error("the handshake failed: {0}")]
    Handshake(crate::login::initiator::HandshakeError),
}

/// Returns the text for a reason with which a target ended a session.
fn ended(reason: DisconnectReason) -> Cow<'static, str> {
    Cow::Borrowed(match reason {
        DisconnectReason::CLOSED => "the target ended the session",
        DisconnectReason::REPLACED => {
            "another initiator with the same name and ISID took the place of this session"
        }
        DisconnectReason::SHUTDOWN => "the target is shutting down",
        DisconnectReason::BROKEN => "the target reports that the initiator violated the protocol",
        DisconnectReason::NOT_AUTHORIZED => "the target no longer authorizes the initiator",
        DisconnectReason::KEYS_EXHAUSTED => "the target used up its keys",
        DisconnectReason(other) => {
            return Cow::Owned(alloc::format!("the target ended the session (reason {other})"));
        }
    })
}

/// A protocol rule that the target violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Data beyond the expected length.
    #[error("data beyond the expected length")]
    DataInOutside,
    /// Data in more pieces than any order of arrival explains.
    #[error("data in too many pieces")]
    DataInScattered,
    /// A request for data (Transfer Ready) that the command does not have, or too many of them.
    #[error("the target requested data that the command does not have")]
    TransferReadyOutside,
    /// A second, different end of a task, or less data than was announced.
    #[error("two different results for one task")]
    TwoEnds,
    /// An answer that does not belong to its request.
    #[error("a reply of the wrong kind")]
    WrongAnswer,
    /// An acknowledgement of a packet number that was never sent.
    #[error("an acknowledgement of a packet that was never sent")]
    FalseAck,
}

/// Why a session is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The session was logged out.
    #[error("logged out")]
    LoggedOut,
    /// The owner closed it.
    #[error("closed")]
    Closed,
    /// No session could be established within the limits of [`Retry`]; the last attempt failed for this
    /// reason.
    #[error("cannot establish a session with the target: {0}")]
    RetriesExhausted(LossReason),
    /// The failure is permanent: another attempt would fail likewise.
    #[error("{0}")]
    Permanent(LossReason),
}

/// The counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Tasks accepted.
    pub tasks: u64,
    /// Tasks whose end was reported.
    pub done: u64,
    /// Bytes of Data-In received, each counted once.
    pub data_in_bytes: u64,
    /// Bytes of Data-Out passed to the transport.
    pub data_out_bytes: u64,
    /// Frames that could not be parsed, of another version, or with a reserved bit.
    pub bad_frames: u64,
    /// Frames that the session refused: damaged, forged, replayed, from another address.
    pub refused_frames: u64,
    /// The refused frames by reason.
    pub drops: DropCounts,
    /// How often the keys of sent frames were updated.
    pub key_updates: u64,
    /// Late frames, whose exchange has ended.
    pub strays: u64,
    /// Frames with less protection than their exchange has.
    pub unprotected: u64,
    /// Frames whose content is malformed.
    pub malformed: u64,
    /// Commands sent again with more protection, because their logical unit demands it.
    pub raised: u64,
    /// Hints that the target does not know the session.
    pub hints: u64,
    /// Tasks repeated in a new session.
    pub replays: u64,
    /// Handshakes that succeeded.
    pub logins: u64,
    /// Handshakes that failed.
    pub logins_failed: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
    /// Impossible states: errors of this program.
    pub bugs: u64,
}
