//! What keeps a session from moving to another engine.

use core::fmt;

use transport::target::SessionId;

/// A session that cannot move to another engine now, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The session.
    pub session: SessionId,
    /// The reason.
    pub reason: BusyReason,
}

/// The reason why a session cannot move to another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum BusyReason {
    /// The layer above is executing a command, or its response is not sent yet.
    #[error("a command is under way")]
    Command,
    /// The initiator has not sent all Data-Out of a command.
    #[error("the target waits for Data-Out of a command")]
    DataOut,
    /// Commands were received, but one with a lower CmdSN is missing.
    #[error("a command with a lower CmdSN is missing")]
    MissingCommand,
    /// A task management request is not answered.
    #[error("a task management function is under way")]
    TaskManagement,
    /// A response waits until the initiator acknowledges earlier ones.
    #[error("a response waits behind a response fence")]
    ResponseFence,
    /// The initiator has not acknowledged every status (ErrorRecoveryLevel 1 and 2).
    #[error("the initiator has not acknowledged every status")]
    Unacknowledged,
    /// A part of a PDU was received, and the rest is missing.
    #[error("a PDU is received in part")]
    PartialPdu,
    /// PDUs wait to be sent.
    #[error("PDUs wait to be sent")]
    SendQueue,
    /// A text negotiation is under way.
    #[error("a text negotiation is under way")]
    TextNegotiation,
    /// A logout is under way, or the target asked for one.
    #[error("a logout is under way")]
    Logout,
    /// A connection is lost, and its tasks wait for reassignment; or the session has no connection left.
    #[error("tasks of a lost connection wait for reassignment, or the session has no connection")]
    LostConnection,
    /// The layer above has not polled every event of the engine.
    #[error("the layer above has not handled every event")]
    EventPending,
    /// It is a discovery session, which does not move.
    #[error("it is a discovery session, which does not move to another process")]
    Discovery,
    /// The session does not exist.
    #[error("the session does not exist")]
    NoSession,
}

impl BusyReason {
    /// Returns whether the reason can end while the session goes on. Waiting helps against no other.
    pub const fn can_end(self) -> bool {
        !matches!(self, Self::Discovery | Self::NoSession)
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.session.0;
        write!(f, "session {}.{} cannot move: {}", key.index, key.generation, self.reason)
    }
}
