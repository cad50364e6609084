//! What the engine tells the layer above, and what it is told: commands, data, management, the comings and goings
//! of sessions. None of it knows what a logical unit is.

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

/// Declares a name for something that the engine numbers: a small index, used again, and a generation, so that an
/// old name finds nothing.
macro_rules! handle {
    ($(#[$doc:meta])* pub struct $name:ident;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) $crate::target::arena::Key);

        impl $name {
            /// Returns the index: dense, and unique among those in being, so that it can serve as the index of a
            /// side table.
            pub const fn index(self) -> u32 {
                self.0.index
            }

            /// Returns the whole name as a number, never used again.
            pub const fn to_bits(self) -> u64 {
                ((self.0.generation as u64) << 32) | self.0.index as u64
            }

            /// Returns the name that `to_bits` gave.
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

/// Something that the layer above must know or do. The events of one session come in the order that RFC 7143
/// §4.2.2.1 prescribes: by CmdSN, immediate requests at once.
#[derive(Debug)]
pub enum Event {
    /// A normal session began: an I_T nexus. Discovery sessions are the engine's own affair.
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
    /// A task management function that concerns logical units is to be carried out. Answer with `managed`, after
    /// `abort` was called for each task that it ended without a response.
    ///
    /// After TARGET COLD RESET, answer and then close every session of the target.
    Tmf(TmfIndication),
    /// The transport gave the task up. Abort it; its name means nothing any more.
    TaskGone {
        /// The task.
        task: TaskRef,
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
    /// The target, as the directory numbers it.
    pub target: TargetId,
    /// The target's name.
    pub target_name: IscsiName,
    /// The portal group it came in through.
    pub portal_group: PortalGroupTag,
    /// The portal it came in through.
    pub portal: PortalId,
    /// The initiator.
    pub initiator: IscsiName,
    /// What the initiator calls itself for people.
    pub initiator_alias: Option<String>,
    /// The initiator's half of the session identifier; with the initiator's name it names the initiator port.
    pub isid: Isid,
    /// The target's half.
    pub tsih: Tsih,
    /// The name under which the initiator proved itself, if it had to.
    pub user: Option<String>,
    /// What was agreed on.
    pub parameters: SessionParameters,
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
pub struct TmfIndication {
    /// Its name.
    pub tmf: TmfRef,
    /// Where it came from.
    pub session: SessionId,
    /// What to do. Never TASK REASSIGN, which is the engine's own affair; the functions of RFC 7144 only if they
    /// were negotiated.
    pub function: TmfFunction,
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
    /// Sense data, at most [`MAX_SENSE`] bytes; empty for none.
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

/// The longest sense data that a response carries (SPC-5 §4.5: 252 bytes).
pub const MAX_SENSE: usize = 252;

/// The few SCSI statuses that the protocol itself treats specially or gives (SAM-5 §5.3).
pub(crate) mod status {
    pub(crate) const GOOD: u8 = 0x00;
    pub(crate) const CHECK_CONDITION: u8 = 0x02;
    pub(crate) const BUSY: u8 = 0x08;
}

/// What to tell an initiator unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent<'a> {
    /// Something happened at a logical unit.
    Scsi {
        /// Which one.
        lun: u64,
        /// Sense data that says what; at most [`MAX_SENSE`] bytes.
        sense: &'a [u8],
    },
    /// The initiator is to log out within this time; then its session is closed.
    LogoutRequest {
        /// The time; at least a second, in whole seconds.
        within: Duration,
    },
}

/// A login that failed, for the log.
#[derive(Clone, Debug)]
pub struct FailedLogin {
    /// Where it came from.
    pub peer: SocketAddr,
    /// What the initiator said of itself, as far as it came.
    pub claims: ClaimedIdentity,
    /// Why.
    pub why: LoginRejected,
}

/// Why a login failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginRejected {
    /// The login itself failed.
    #[error(transparent)]
    Login(#[from] crate::login::LoginError),
    /// It succeeded, and there is no session for it: what the initiator is told.
    #[error("there is no session for it (status {:04x}h)", .0.0)]
    Status(crate::login::Status),
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// The initiator logged out.
    #[error("it logged out")]
    LoggedOut,
    /// The initiator logged in again under the same name (session reinstatement, RFC 7143 §6.3.5).
    #[error("it logged in again")]
    Reinstated,
    /// Its initiator closed its half of the last connection, and has the answers to what it had asked.
    #[error("it closed its half of the connection")]
    HalfClosed,
    /// Its last connection was lost.
    #[error("its connection was lost")]
    ConnectionLost,
    /// The initiator broke the protocol beyond what the session's error recovery level repairs.
    #[error("it broke a rule: {0}")]
    Misbehaved(super::protocol_error::ProtocolError),
    /// The initiator did not answer.
    #[error("it did not answer in time")]
    TimedOut,
    /// The layer above asked for it.
    #[error("it was closed")]
    Closed,
}

/// A connection of a session, for those who watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// Its number in the session.
    pub cid: u16,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// What was agreed on for it.
    pub parameters: ConnectionParameters,
    /// How many answers the initiator has not acknowledged.
    pub unacknowledged: usize,
}

/// A session, for those who watch.
#[derive(Clone, Debug)]
pub struct SessionView<'a> {
    /// Its name.
    pub session: SessionId,
    /// The target; `None` for a discovery session.
    pub target: Option<TargetId>,
    /// The initiator.
    pub initiator: &'a IscsiName,
    /// The initiator's half of the session identifier.
    pub isid: Isid,
    /// The target's half.
    pub tsih: Tsih,
    /// What was agreed on.
    pub parameters: &'a SessionParameters,
    /// Where its first connection comes from.
    pub peer: Option<SocketAddr>,
    /// How many connections it has now.
    pub connections: usize,
    /// What each of them is, the leading one first.
    pub members: Vec<ConnectionView>,
    /// How many connections are gone whose tasks wait for another.
    pub lost: usize,
    /// How many tasks are open.
    pub tasks: u32,
    /// How many bytes of answers wait for the initiator to read them.
    pub unsent_bytes: usize,
    /// What it did so far.
    pub traffic: Traffic,
    /// What was repaired in it so far.
    pub repairs: Repairs,
}

/// What was lost or damaged in a session and repaired (RFC 7143 §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// PDUs whose header had a wrong digest and that were passed over.
    pub header_digest_errors: u64,
    /// PDUs whose data segment had a wrong digest.
    pub data_digest_errors: u64,
    /// SNACKs that asked for something again.
    pub snacks: u64,
    /// R2Ts that asked for something again.
    pub recovery_r2ts: u64,
    /// Tasks that another connection took over.
    pub reassigns: u64,
}

/// What a session did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// SCSI commands taken.
    pub commands: u64,
    /// Bytes of Data-In sent.
    pub data_in_bytes: u64,
    /// Bytes of Data-Out received, immediate data included.
    pub data_out_bytes: u64,
}
