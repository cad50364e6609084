//! The events that the engine reports to the layer above, and the values that the layer above passes to it:
//! commands, data, task management, the begin and end of sessions. No type here depends on what a logical
//! unit is.

use alloc::string::String;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::net::SocketAddr;

use base::state_machine::PortalId;
use base::time::Duration;
use security::Level;
use transport::target::SessionId;

use super::protection::Protection;
use crate::login::directory::TargetId;
use crate::login::target::ClaimedIdentity;
use crate::login::{LoginError, Status};
use crate::name::{IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{ConnectionParameters, SessionParameters};

/// The events of iSCSI. Those of one session are delivered in the order that RFC 7143 §4.2.2.1 prescribes: by
/// CmdSN, and immediate requests at once. The engine handles discovery sessions itself and reports none.
pub type Event = transport::target::Event<Iscsi>;

/// iSCSI as the protocol of a transport.
#[derive(Clone, Copy, Debug)]
pub struct Iscsi;

impl transport::target::Protocol for Iscsi {
    type SessionUp = SessionUp;
    type SessionEnd = SessionEnd;
    type Notice = Infallible;
}

/// A new session.
#[derive(Clone, Debug)]
pub struct SessionUp {
    /// The session's handle.
    pub session: SessionId,
    /// The target's number in the directory.
    pub target: TargetId,
    /// The target's name.
    pub target_name: IscsiName,
    /// The portal group that the initiator connected to.
    pub portal_group: PortalGroupTag,
    /// The portal that the initiator connected to.
    pub portal: PortalId,
    /// The initiator's name.
    pub initiator: IscsiName,
    /// The initiator's InitiatorAlias, for display.
    pub initiator_alias: Option<String>,
    /// The ISID: the initiator's part of the session identifier. Together with the initiator's name it names
    /// the initiator port.
    pub isid: Isid,
    /// The TSIH: the target's part of the session identifier.
    pub tsih: Tsih,
    /// The name with which the initiator authenticated, if the target required authentication.
    pub user: Option<String>,
    /// The negotiated parameters.
    pub parameters: SessionParameters,
    /// What protects the session.
    pub protection: Protection,
}

/// An event to report to an initiator in an asynchronous message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent<'a> {
    /// An asynchronous event of a logical unit.
    Scsi {
        /// The logical unit.
        lun: u64,
        /// Sense data that describes the event, at most [`SENSE_MAX`](transport::status::SENSE_MAX) bytes.
        sense: &'a [u8],
    },
    /// The target requests a logout within this time; then it closes the session.
    LogoutRequest {
        /// The time, at least one second, in whole seconds.
        within: Duration,
    },
}

/// Limits that can differ from target to target, and can change while sessions are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Numbered commands of a session that may be open at a time (1 to 1024).
    pub queue_depth: u32,
    /// How long a connection may be silent before the engine pings it.
    pub ping_after: Duration,
    /// How long the answer to a ping may take before the engine drops the connection.
    pub pong_within: Duration,
    /// How long a connection may be silent, its ping unanswered, while its session has no command under way.
    /// Some initiators, firmware above all, answer no pings while they are idle.
    pub idle_within: Duration,
}

/// A login that failed, for the log.
#[derive(Clone, Debug)]
pub struct FailedLogin {
    /// The address that the initiator connected from.
    pub peer: SocketAddr,
    /// The identity that the initiator claimed, as far as it was received.
    pub claims: ClaimedIdentity,
    /// The reason.
    pub why: LoginRejected,
}

/// The reason why a login failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginRejected {
    /// The login negotiation itself failed.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The login negotiation succeeded, but no session was created for it. The initiator gets this login
    /// status.
    #[error("the target created no session (login status {:04x}h)", .0.0)]
    Status(Status),
    /// The connection has a lower protection than the session that it would join.
    #[error("its protection ({connection}) is below that of the session that it would join ({session})")]
    LowerProtection {
        /// The level of the connection.
        connection: Level,
        /// The level of the session.
        session: Level,
    },
}

impl LoginRejected {
    /// Returns the login status that the initiator gets if no session was created for its login.
    pub(crate) const fn status(self) -> Option<Status> {
        match self {
            Self::Login(_) => None,
            Self::Status(status) => Some(status),
            // RFC 7143 §11.13.5: the target does not support session spanning to this connection.
            Self::LowerProtection { .. } => Some(Status::CANNOT_INCLUDE_IN_SESSION),
        }
    }
}

/// Counts of logins that failed, by the class of the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoginRefusals {
    /// The initiator did not prove who it is.
    pub authentication: u64,
    /// The initiator may not use the target, or not with the protection of the connection.
    pub authorization: u64,
    /// There is no such target, or it is not served there.
    pub not_found: u64,
    /// A limit is reached, or the target stops.
    pub resources: u64,
    /// The login took too long.
    pub timeout: u64,
    /// The initiator broke a rule, or a negotiation had no result.
    pub protocol: u64,
}

impl LoginRefusals {
    /// Counts a login that failed.
    pub(crate) const fn count(&mut self, why: LoginRejected) {
        let counter = match why {
            LoginRejected::Login(LoginError::TooSlow) => &mut self.timeout,
            LoginRejected::Login(LoginError::PasswordNotProven) => &mut self.authentication,
            LoginRejected::Login(LoginError::LowerProtection) | LoginRejected::LowerProtection { .. } => {
                &mut self.authorization
            }
            LoginRejected::Login(why) => match why.status() {
                Some(status) => self.of_status(status),
                None => &mut self.protocol,
            },
            LoginRejected::Status(status) => self.of_status(status),
        };
        *counter += 1;
    }

    const fn of_status(&mut self, status: Status) -> &mut u64 {
        match status {
            Status::AUTHENTICATION_FAILURE => &mut self.authentication,
            Status::AUTHORIZATION_FAILURE => &mut self.authorization,
            Status::NOT_FOUND | Status::TARGET_REMOVED => &mut self.not_found,
            Status::TOO_MANY_CONNECTIONS => &mut self.resources,
            status if status.class() == 3 => &mut self.resources,
            _ => &mut self.protocol,
        }
    }
}

/// Why a connection was lost. The texts are those of the system where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionLoss {
    /// The initiator closed it without a logout.
    #[error("closed by peer")]
    Closed,
    /// The initiator or something on the way to it reset it.
    #[error("connection reset by peer")]
    Reset,
    /// The initiator's host acknowledged nothing for too long.
    #[error("connection timed out")]
    TimedOut,
    /// There is no way to the initiator's host any more.
    #[error("host or network unreachable")]
    Unreachable,
    /// The transport failed in another way.
    #[error("the transport failed")]
    Failed,
    /// The initiator gave it up by a logout, to continue on another one.
    #[error("logged out for recovery")]
    GivenUp,
    /// The target dropped it, because the initiator broke the protocol or did not answer.
    #[error("dropped by the target")]
    Dropped,
}

/// The reason why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The initiator logged out by its own decision, and so gave up the LUNs. This is the only end that shows
    /// that decision.
    #[error("the initiator logged out")]
    LoggedOut,
    /// The initiator logged out after an asynchronous message of the target: the target had requested the
    /// logout, or had dropped a connection.
    #[error("the initiator logged out because the target caused it")]
    LogoutCaused,
    /// The initiator logged out the last connection, and not the session, after others had been lost.
    #[error("the initiator logged out the last connection after others had been lost")]
    LastConnectionClosed,
    /// The initiator logged in again under the same name (session reinstatement, RFC 7143 §6.3.5).
    #[error("the initiator logged in again")]
    Reinstated,
    /// The initiator closed its half of the last connection, and the target sent the responses to all
    /// requests received before.
    #[error("the initiator closed its half of the connection")]
    HalfClosed,
    /// Its last connection was lost.
    #[error("the target lost the last connection: {0}")]
    ConnectionLost(ConnectionLoss),
    /// The initiator broke the protocol beyond what the session's error recovery level repairs.
    #[error("protocol error: {0}")]
    Misbehaved(super::protocol_error::ProtocolError),
    /// The initiator did not answer in time.
    #[error("the initiator did not answer in time")]
    TimedOut,
    /// The layer above asked for it.
    #[error("the target closed the session")]
    Closed,
}

/// A connection of a session, as monitoring sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// Its connection ID (CID) in the session.
    pub cid: u16,
    /// The address that the initiator connected from.
    pub peer: SocketAddr,
    /// The negotiated parameters of the connection.
    pub parameters: ConnectionParameters,
    /// How many responses the initiator has not acknowledged.
    pub unacknowledged: usize,
}

/// A session, as monitoring sees it.
#[derive(Clone, Debug)]
pub struct SessionView<'a> {
    /// The session's handle.
    pub session: SessionId,
    /// The target; `None` for a discovery session.
    pub target: Option<TargetId>,
    /// The initiator's name.
    pub initiator: &'a IscsiName,
    /// The ISID: the initiator's part of the session identifier.
    pub isid: Isid,
    /// The TSIH: the target's part of the session identifier.
    pub tsih: Tsih,
    /// The negotiated parameters.
    pub parameters: &'a SessionParameters,
    /// What protects it.
    pub protection: Protection,
    /// The address that its first connection comes from.
    pub peer: Option<SocketAddr>,
    /// How many connections it has now.
    pub connections: usize,
    /// Its connections, the leading one first.
    pub members: Vec<ConnectionView>,
    /// How many connections are lost whose tasks wait for allegiance reassignment.
    pub lost: usize,
    /// How many tasks are open.
    pub tasks: u32,
    /// How many bytes of Data-In its tasks hold: data that waits to be sent or acknowledged, and reservations
    /// of commands under way.
    pub unsent_bytes: usize,
    /// Counters of its traffic.
    pub traffic: Traffic,
    /// Counters of its error recovery.
    pub repairs: Repairs,
}

/// Counters of what was lost or damaged in a session and recovered (RFC 7143 §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// PDUs with a wrong header digest, which were ignored.
    pub header_digest_errors: u64,
    /// PDUs whose data segment had a wrong digest.
    pub data_digest_errors: u64,
    /// SNACKs that asked for a retransmission.
    pub snacks: u64,
    /// Recovery R2Ts: R2Ts that asked again for lost data.
    pub recovery_r2ts: u64,
    /// Tasks reassigned to another connection.
    pub reassigns: u64,
}

/// Counters of the traffic of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// SCSI commands accepted.
    pub commands: u64,
    /// Bytes of Data-In sent.
    pub data_in_bytes: u64,
    /// Bytes of Data-Out received, immediate data included.
    pub data_out_bytes: u64,
}
