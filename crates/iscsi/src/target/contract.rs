//! The events that the engine reports to the layer above, and the values that the layer above passes to it:
//! commands, data, task management, the begin and end of sessions. No type here depends on what a logical
//! unit is.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::buffer::DataList;
use base::state_machine::PortalId;
use base::time::Duration;

use crate::login::directory::TargetId;
use crate::login::target::ClaimedIdentity;
use crate::name::{IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{ConnectionParameters, SessionParameters};
use crate::pdu::ahs::Cdb;
use crate::pdu::scsi_command::TaskAttribute;
use crate::pdu::tmf_request::TmfFunction;

/// Declares a handle for something that the engine numbers: a small index, which is used again, and a
/// generation, so that a stale handle finds nothing.
macro_rules! handle {
    ($(#[$doc:meta])* pub struct $name:ident;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) $crate::target::arena::Key);

        impl $name {
            /// Returns the index. It is dense, and unique among the handles that are valid now, so it can
            /// index a side table.
            pub const fn index(self) -> u32 {
                self.0.index
            }

            /// Returns the whole handle as a number that is never used again.
            pub const fn to_bits(self) -> u64 {
                ((self.0.generation as u64) << 32) | self.0.index as u64
            }

            /// Returns the handle from which `to_bits` made this number.
            pub const fn from_bits(bits: u64) -> Self {
                let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
                Self($crate::target::arena::Key {
                    generation: u32::from_be_bytes([a, b, c, d]),
                    index: u32::from_be_bytes([e, f, g, h]),
                })
            }
        }
    };
}

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

/// An event that the layer above must handle. The events of one session are delivered in the order that RFC
/// 7143 §4.2.2.1 prescribes: by CmdSN, and immediate requests at once.
#[derive(Debug)]
pub enum Event {
    /// A normal session began: an I_T nexus. The engine handles discovery sessions itself and reports none.
    SessionUp(alloc::boxed::Box<SessionUp>),
    /// The layer above must execute a command.
    Command(Command),
    /// All the bytes that one call of `fetch` asked for.
    DataOut {
        /// The task.
        task: TaskRef,
        /// The offset of the bytes from the start of the command's data.
        offset: u32,
        /// The bytes.
        data: DataList,
    },
    /// The layer above must carry out a task management function that concerns logical units. It calls
    /// `abort` for each task that the function ended without a response, and then answers with `finish_tmf`.
    ///
    /// After TARGET COLD RESET, the layer above answers and then closes every session of the target.
    Tmf(TmfIndication),
    /// The transport gave the task up. The layer above must abort it; its handle is no longer valid.
    TaskGone {
        /// The task.
        task: TaskRef,
    },
    /// Tasks of a session for this logical unit ended without a response, because a connection ended, and the
    /// session continues. The initiator must learn of it with its next command (RFC 7143 §11.14.5).
    TasksCleared {
        /// The session.
        session: SessionId,
        /// The logical unit, as SAM-5 §4.7 encodes it.
        lun: u64,
    },
    /// A session ended: the I_T nexus is lost (SAM-5 §6.4). [`Event::TaskGone`] was reported before for every
    /// task of it.
    SessionDown {
        /// The session.
        session: SessionId,
        /// The reason.
        why: SessionEnd,
    },
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
}

/// A SCSI command.
#[derive(Clone, Debug)]
pub struct Command {
    /// The task's handle.
    pub task: TaskRef,
    /// The session that sent the command.
    pub session: SessionId,
    /// The logical unit, as SAM-5 §4.7 encodes it.
    pub lun: u64,
    /// The task attribute (SIMPLE, ORDERED, HEAD OF QUEUE or ACA).
    pub attribute: TaskAttribute,
    /// Its priority, 1 (first) to 15, or 0 for none.
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// How many bytes the initiator expects to receive. The engine sends no more than these.
    pub data_in_len: u32,
    /// How many bytes the initiator expects to send. `fetch` can ask for no more than these. A bidirectional
    /// command sets both lengths.
    pub data_out_len: u32,
}

/// A task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmfIndication {
    /// The request's handle.
    pub tmf: TmfRef,
    /// The session that sent the request.
    pub session: SessionId,
    /// The function. It is never TASK REASSIGN, which the engine carries out itself, and a function of RFC
    /// 7144 only if these were negotiated.
    pub function: TmfFunction,
    /// The logical unit. It has no meaning for functions that concern the whole target or I_T nexus.
    pub lun: u64,
    /// The task that ABORT TASK or QUERY TASK refers to: `Some` for those two functions, else `None`.
    pub task: Option<TaskRef>,
}

/// The outcome of a task: status, sense data and transferable length.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// The SCSI status.
    pub status: u8,
    /// Sense data, at most [`MAX_SENSE`] bytes; empty for none.
    pub sense: &'a [u8],
    /// How many bytes the command would have transferred had the initiator expected enough. The residual
    /// counts are computed from it.
    pub transferable: u64,
}

impl Finish<'_> {
    /// Returns the outcome of a task that ended with status GOOD, with `transferable` bytes transferred.
    pub const fn good(transferable: u64) -> Self {
        Self { status: status::GOOD, sense: &[], transferable }
    }
}

/// The longest sense data that a response carries (SPC-5 §4.5: 252 bytes).
pub const MAX_SENSE: usize = 252;

/// The SCSI statuses that the protocol itself returns or treats specially (SAM-5 §5.3).
pub(crate) mod status {
    pub(crate) const GOOD: u8 = 0x00;
    pub(crate) const CHECK_CONDITION: u8 = 0x02;
    pub(crate) const BUSY: u8 = 0x08;
}

/// An event to report to an initiator in an asynchronous message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent<'a> {
    /// An asynchronous event of a logical unit.
    Scsi {
        /// The logical unit.
        lun: u64,
        /// Sense data that describes the event, at most [`MAX_SENSE`] bytes.
        sense: &'a [u8],
    },
    /// The target requests a logout within this time; then it closes the session.
    LogoutRequest {
        /// The time, at least one second, in whole seconds.
        within: Duration,
    },
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
    Login(#[from] crate::login::LoginError),
    /// The login negotiation succeeded, but no session was created for it. The initiator gets this login
    /// status.
    #[error("there is no session for it (status {:04x}h)", .0.0)]
    Status(crate::login::Status),
}

/// The reason why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The initiator logged out.
    #[error("it logged out")]
    LoggedOut,
    /// The initiator logged in again under the same name (session reinstatement, RFC 7143 §6.3.5).
    #[error("it logged in again")]
    Reinstated,
    /// The initiator closed its half of the last connection, and the target sent the responses to all
    /// requests received before.
    #[error("it closed its half of the connection")]
    HalfClosed,
    /// Its last connection was lost.
    #[error("its connection was lost")]
    ConnectionLost,
    /// The initiator broke the protocol beyond what the session's error recovery level repairs.
    #[error("it broke a rule: {0}")]
    Misbehaved(super::protocol_error::ProtocolError),
    /// The initiator did not answer in time.
    #[error("it did not answer in time")]
    TimedOut,
    /// The layer above asked for it.
    #[error("it was closed")]
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
