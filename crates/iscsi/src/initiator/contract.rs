//! The messages between a session and its owner: plans, requests, outcomes, events.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::state_machine::DisconnectReason;
use base::time::Duration;
use transport::initiator::{Outcome, Retry, TaskId, TmfId};
use transport::task_management::TmfResult;

use super::protocol_error::ProtocolError;
use crate::discovery::Discovered;
use crate::login::Status;
use crate::login::directory::TargetAddress;
use crate::login::initiator::{AuthPlan, InitiatorLoginError};
use crate::name::{Cid, IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{ConnectionParameters, KeyPolicy, SessionParameters};
use crate::pdu::async_message::AsyncMessage;

/// The slot of a connection in its session, from 0; it is also the CID of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// The most connections of one session. MaxConnections could be 65535; more than this brings no benefit.
pub const MAX_CONNECTIONS: u16 = 16;

/// The most tasks that a session keeps, queued or sent.
pub const MAX_TASKS: usize = 8192;

/// The most identity check tasks (asking which device is behind a LUN), in addition to all others.
pub const MAX_PROBES: usize = 256;

/// The most task management requests that are open at a time.
pub const MAX_TMFS: usize = 256;

/// The configuration of a session.
#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// The name of the initiator.
    pub initiator: IscsiName,
    /// The alias of the initiator, for display.
    pub alias: Option<String>,
    /// The initiator's half of the session identifier. Two sessions of one initiator name with one target
    /// need different ISIDs; a login with the same ISID replaces the older session (session reinstatement).
    pub isid: Isid,
    /// The portal group of the session that this one replaces, if it is known: a login in another portal
    /// group would leave that session with all its tasks.
    pub portal_group: Option<PortalGroupTag>,
    /// The purpose of the session.
    pub purpose: Purpose,
    /// The portals of the target, in order of preference. Not empty.
    pub portals: Vec<Portal>,
    /// The authentication of both sides.
    pub auth: AuthPlan,
    /// The keys to offer: digests, bursts, ErrorRecoveryLevel and so on. MaxConnections is offered as
    /// `connections`.
    pub keys: KeyPolicy,
    /// The number of connections of the session, 1 to [`MAX_CONNECTIONS`]; the target may allow fewer.
    pub connections: u16,
    /// How long and how often the session tries to log in again after it lost its connections.
    pub retry: Retry,
    /// The bounds on memory and time.
    pub limits: Limits,
}

impl SessionPlan {
    /// Returns a plan with defaults: no authentication, one connection, every key as in
    /// [`KeyPolicy::default`].
    pub fn new(initiator: IscsiName, isid: Isid, purpose: Purpose, portals: Vec<Portal>) -> Self {
        Self {
            initiator,
            alias: None,
            isid,
            portal_group: None,
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

/// The purpose of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A discovery session, which asks for targets.
    Discovery,
    /// A normal session with this target.
    Target(IscsiName),
}

/// The address on which a target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The address, or a host name that the owner resolves.
    pub address: TargetAddress,
}

/// The bounds of a session on memory and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most tasks at a time, queued or sent; at most [`MAX_TASKS`].
    pub tasks_max: usize,
    /// The time limit of resolving, connecting and logging in together, over all addresses of a portal.
    pub login_within: Duration,
    /// How long a connection may be silent before it is pinged; zero for never.
    pub ping_after: Duration,
    /// The time limit of the answer to a ping; after that the connection is given up.
    pub pong_within: Duration,
    /// The time limit of a logout; after that the connection is closed without it.
    pub logout_within: Duration,
    /// At ErrorRecoveryLevel 1 and up: how long a due PDU may be missing before it is requested again.
    pub repair_after: Duration,
    /// How often a PDU is requested again before the connection is given up.
    pub repairs_max: u32,
    /// At ErrorRecoveryLevel 1 and up: how long a status may stay unacknowledged because no other PDU is to
    /// be sent. Until it is acknowledged the target keeps the response and its data. Zero: without limit.
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

/// A request to the owner or a report for it.
#[derive(Debug)]
pub enum Event {
    /// Resolve a host name, then call `host_resolved` or `connect_failed` for this slot once.
    Resolve {
        /// The slot of the connection.
        slot: Slot,
        /// The name of the host.
        name: String,
        /// The port for the addresses.
        port: u16,
    },
    /// Open a TCP connection to `to`, then call `connected` or `connect_failed` for this slot once. The owner
    /// may give up by itself; the session stops waiting for it when the address has used up its share of
    /// [`Limits::login_within`], with a [`Event::CancelConnect`].
    Connect {
        /// The slot of the connection.
        slot: Slot,
        /// The address to connect to.
        to: SocketAddr,
        /// The host name that was resolved to the address, if one was.
        host: Option<String>,
    },
    /// Stop resolving or connecting for this slot.
    CancelConnect {
        /// The slot of the connection.
        slot: Slot,
    },
    /// The session is in full feature phase: for the first time, again after it was established again, or
    /// still after its connections were established again.
    Up(Box<SessionUp>),
    /// A connection of the session is in full feature phase. The first one follows the session's
    /// [`Event::Up`].
    ConnectionUp {
        /// The slot of the connection.
        slot: Slot,
        /// The parameters that were negotiated for the connection.
        parameters: ConnectionParameters,
    },
    /// A connection that was up is down, or an attempt to establish one failed.
    ConnectionDown {
        /// The slot of the connection.
        slot: Slot,
        /// The reason.
        why: ConnectionDown,
    },
    /// No connection is up; requests wait. [`Event::Up`] or [`Event::Down`] follows.
    Recovering,
    /// The session ended permanently; every task was reported before.
    Down(SessionEnd),
    /// A task ended. Reported exactly once for each task.
    Done {
        /// The task.
        task: TaskId,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The target answered a task management request. The tasks that it ended were reported before.
    TmfDone {
        /// The request.
        id: TmfId,
        /// The target's response; `None` when the session was lost before a response was received.
        result: Option<TmfResult>,
    },
    /// The targets that a discovery session asked for.
    Targets {
        /// The targets, each with a legal name.
        targets: Vec<Discovered>,
        /// How many names and addresses were left out because they are illegal (a slash, a newline, …), or
        /// too many.
        ignored: usize,
    },
    /// The connection was lost, or the target broke the rules, before the answer to a text was complete.
    TextFailed,
    /// The negotiation of the sent keys is complete.
    TextDone {
        /// The text of the answer: `Key=value` pairs, each ended by a zero byte.
        answer: Vec<u8>,
    },
    /// The target sent an Asynchronous Message. The session has already done what the protocol requires.
    AsyncMessage(AsyncNotice),
    /// The target redirected the login to another address; the session follows.
    Redirected {
        /// The slot of the connection.
        slot: Slot,
        /// The new address.
        to: TargetAddress,
        /// Whether the owner should remember the new address.
        permanently: bool,
    },
}

/// An Asynchronous Message of the target (RFC 7143 §11.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncNotice {
    /// The connection on which the message was received.
    pub slot: Slot,
    /// The message.
    pub message: AsyncMessage,
    /// Sense data, for a SCSI event.
    pub sense: Option<Box<[u8]>>,
}

/// The facts about a session that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionUp {
    /// The target's half of the session identifier.
    pub tsih: Tsih,
    /// The negotiated parameters.
    pub parameters: SessionParameters,
    /// The portal group, if the target stated it.
    pub portal_group: Option<PortalGroupTag>,
    /// Whether the target authenticated itself.
    pub peer_authenticated: bool,
    /// The origin of this session.
    pub origin: SessionOrigin,
}

/// The origin of a session that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOrigin {
    /// The first session of its owner.
    First,
    /// The session before was lost, with all state that the target held for it (a new I_T nexus: reservations
    /// may be gone, a unit attention is likely).
    Rebuilt,
    /// The same session: no connection was left, one was established again in time, and tasks continue
    /// (ErrorRecoveryLevel 2).
    Continued,
}

/// The reason for which a connection is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionDown {
    /// The connection could not be opened.
    #[error("the TCP connection could not be opened")]
    Unreachable,
    /// Connecting or logging in took too long.
    #[error("the login took too long")]
    TooSlow,
    /// The transport failed, or the target closed the connection.
    #[error("the connection was lost: {0}")]
    Lost(ConnectionLoss),
    /// The target refused the login.
    #[error("the login was refused: {}", .0.meaning())]
    Refused(Status),
    /// The target broke the rules of the login.
    #[error("the login failed: {0}")]
    Login(InitiatorLoginError),
    /// The target broke a rule.
    #[error("{0}")]
    ProtocolError(ProtocolError),
    /// The connection was logged out.
    #[error("the initiator logged out")]
    LoggedOut,
    /// The target announced that it drops the connection.
    #[error("the target dropped the connection")]
    Dropped,
    /// The initiator gave the connection up: the target did not answer commands.
    #[error("the target did not answer commands in time")]
    Unanswered,
    /// The connection ended together with its session.
    #[error("the session ended")]
    SessionEnded,
}

/// How a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionLoss {
    /// The target closed it without a logout.
    #[error("closed by the target")]
    Closed,
    /// The target or something on the way to it reset it.
    #[error("connection reset by peer")]
    Reset,
    /// The target's host acknowledged nothing for too long.
    #[error("connection timed out")]
    TimedOut,
    /// There is no way to the target's host any more.
    #[error("host or network unreachable")]
    Unreachable,
    /// The target accepted no data for too long.
    #[error("the target accepted no data in time")]
    Stalled,
    /// The transport failed in another way.
    #[error("the transport failed")]
    Failed,
}

impl From<DisconnectReason> for ConnectionLoss {
    fn from(why: DisconnectReason) -> Self {
        match why {
            DisconnectReason::Closed => Self::Closed,
            DisconnectReason::Reset => Self::Reset,
            DisconnectReason::TimedOut => Self::TimedOut,
            DisconnectReason::Unreachable => Self::Unreachable,
            DisconnectReason::Stalled => Self::Stalled,
            DisconnectReason::Failed | DisconnectReason::Shutdown => Self::Failed,
        }
    }
}

/// The reason for which a session is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The session was logged out.
    #[error("logged out")]
    LoggedOut,
    /// The owner closed the session.
    #[error("closed")]
    Closed,
    /// No connection could be established within the limits of [`Retry`]; the last attempt failed for this
    /// reason.
    #[error("no path to the target: {0}")]
    RetriesExhausted(ConnectionDown),
    /// The failure would occur again at every attempt.
    #[error("{0}")]
    Permanent(ConnectionDown),
}

/// A connection, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// The slot of the connection.
    pub slot: Slot,
    /// The CID of the connection.
    pub cid: Cid,
    /// Whether the connection is in full feature phase.
    pub up: bool,
    /// The parameters that were negotiated for the connection.
    pub parameters: ConnectionParameters,
    /// The tasks with allegiance to the connection.
    pub tasks: u32,
    /// The load of those tasks: the bytes that they are to transfer, and 4096 per task.
    pub bytes: u64,
}

/// The statistics of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Tasks accepted.
    pub tasks: u64,
    /// Tasks reported.
    pub done: u64,
    /// Complete PDUs received.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// Bytes of Data-In stored.
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
    /// Acknowledgements of data that the target requested.
    pub data_acks: u64,
    /// NOP-Outs sent only to acknowledge statuses.
    pub status_acks: u64,
    /// Commands sent again under their CmdSN.
    pub retries: u64,
    /// Rejects received.
    pub rejects: u64,
    /// Tasks moved to another connection.
    pub reassigns: u64,
    /// Tasks executed again in a new session.
    pub replays: u64,
    /// Logins that succeeded.
    pub logins: u64,
    /// Logins that failed, were refused or were broken off.
    pub logins_failed: u64,
    /// Connections lost after they were up.
    pub connections_lost: u64,
    /// Sessions established again.
    pub sessions_rebuilt: u64,
    /// Sessions that continued after their last connection was lost.
    pub sessions_continued: u64,
    /// Impossible states: errors in this implementation.
    pub bugs: u64,
}
