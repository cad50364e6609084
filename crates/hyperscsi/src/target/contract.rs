//! The interface between the engine and the layer above: commands, data, task management, and the begin and
//! end of sessions. This interface does not know what a logical unit is.

use alloc::vec::Vec;
use core::fmt;

use base::ether::{EtherPort, Mac};
use transport::target::SessionId;

use crate::connection::{DropCounts, PathMtuStatus, PathTotals, PathView};
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;
use security::Level;

/// Answers the questions that handshakes, discoveries and requests raise. The engine itself knows which SIDs
/// its sessions have.
pub trait SessionDirectory: crate::login::directory::TargetDirectory {
    /// Returns the least protection with which this session may reach a logical unit. For a logical unit that
    /// the session does not see, returns the least level that the session's group allows, so the answer
    /// reveals nothing about that logical unit.
    fn least_level(&self, session: SessionId, lun: u64) -> Level;
}

/// The events of HyperSCSI.
pub type Event = transport::target::Event<HyperScsi>;

/// HyperSCSI as the protocol of a transport.
#[derive(Clone, Copy, Debug)]
pub struct HyperScsi;

impl transport::target::Protocol for HyperScsi {
    type SessionUp = SessionUp;
    type SessionEnd = SessionEnd;
    type Notice = PathNotice;
}

/// The state of a path of a session changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathNotice {
    /// The session.
    pub session: SessionId,
    /// The port of this host.
    pub port: EtherPort,
    /// The initiator's address.
    pub peer: Mac,
    /// What changed.
    pub change: PathChange,
}

/// A new session.
#[derive(Clone, Debug)]
pub struct SessionUp {
    /// Its name.
    pub session: SessionId,
    /// The target.
    pub target: Name,
    /// The group that the initiator named in its handshake.
    pub group: GroupName,
    /// The initiator.
    pub initiator: Name,
    /// The ISID; together with the initiator's name it names the initiator port.
    pub isid: [u8; 6],
    /// Whether the initiator proved that it knows the group's password.
    pub authenticated: bool,
    /// The port on which the handshake was received.
    pub port: EtherPort,
    /// The address from which the handshake was sent; it is not authenticated.
    pub peer: Mac,
    /// The parameters that both ends agreed on.
    pub parameters: Parameters,
    /// Whether it replaced an older session of the initiator port.
    pub replaces_session: bool,
}

/// What changed about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// The path carries data in addition to the other paths, or carries data again.
    Up,
    /// No frame was received on the path for too long.
    Silent,
    /// The initiator closed the path.
    Gone,
    /// The path MTU turned out to be smaller than the port's, or is as large as the port's again.
    Mtu(PathMtuStatus),
}

impl PathChange {
    /// Returns whether the change needs no attention of an operator.
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
    /// The initiator logged out because its owner closed the session.
    #[error("the initiator logged out")]
    LoggedOut,
    /// The initiator gave up the session, and will log in again.
    #[error("the initiator gave up the session")]
    GivenUp,
    /// Session reinstatement: the same initiator port began another session.
    #[error("the initiator logged in again")]
    Reinstated,
    /// No path to the initiator was alive for too long.
    #[error("the last path to the initiator was lost")]
    PathLost,
    /// The initiator acknowledged a packet number that was never sent.
    #[error("the initiator acknowledged a packet that was never sent")]
    Misbehaved,
    /// The keys are used up and could not be updated.
    #[error("the session used up its keys")]
    KeysExhausted,
    /// The layer above closed the session.
    #[error("the target closed the session")]
    Closed,
    /// The layer above shuts down.
    #[error("the target is shutting down")]
    ShutDown,
}

/// What a session did since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// SCSI commands accepted.
    pub commands: u64,
    /// Bytes of Data-In passed to the transport.
    pub data_in_bytes: u64,
    /// Bytes of Data-Out received, each counted once.
    pub data_out_bytes: u64,
    /// Duplicates of requests that had been received before; they were not executed again.
    pub duplicates: u64,
    /// Late frames, whose exchange has ended or was never begun.
    pub strays: u64,
}

/// A session, for display.
#[derive(Clone, Debug)]
pub struct SessionView<'a> {
    /// Its name.
    pub session: SessionId,
    /// The target.
    pub target: &'a Name,
    /// The initiator.
    pub initiator: &'a Name,
    /// The ISID; together with the initiator's name it names the initiator port.
    pub isid: [u8; 6],
    /// The group that the initiator named in its handshake.
    pub group: &'a GroupName,
    /// Whether the session has keys, so that frames can be protected.
    pub authenticated: bool,
    /// The parameters that both ends agreed on.
    pub parameters: &'a Parameters,
    /// Its paths.
    pub paths: Vec<PathView>,
    /// How many tasks are open.
    pub tasks: u32,
    /// How many bytes of Data-In the initiator has not acknowledged.
    pub unacknowledged_bytes: usize,
    /// What the session did since it began.
    pub traffic: Traffic,
    /// Received frames that the session dropped, by reason.
    pub drops: DropCounts,
    /// The totals of its paths, including those that were closed.
    pub totals: PathTotals,
    /// The SIDs: the initiator's and this target's.
    pub sids: (u32, u32),
}
