//! Why a handshake ends without a session.

use crate::pdu::negotiate::RefuseReason;
use crate::pdu::parameters::Illegal;
use security::Level;

/// Why a login ended without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A level above `none` was asked for without a password.
    #[error("protection '{0}' needs the group's password: give it, or lower the protection")]
    ProtectionNeedsPassword(Level),
    /// The parameters to be offered are illegal.
    #[error("the initiator cannot offer these parameters: {0}")]
    BadOffer(Illegal),
    /// No interface was up before the deadline.
    #[error("no interface came up in time")]
    NoPort,
    /// An interface takes less than the 1500 bytes that every Ethernet takes.
    #[error("the interface carries frames of only {0} bytes; HyperSCSI needs at least 1500")]
    PortTooNarrow(usize),
    /// No server answered.
    #[error("no server on this network exports this target to this group (no answer in time)")]
    NoAnswer,
    /// A server answered in another protocol version.
    #[error("the server that answered uses another version of HyperSCSI")]
    OtherVersion,
    /// An answer did not decrypt. It is impossible to tell which part was wrong.
    #[error("wrong password")]
    WrongPassword,
    /// The group has a password.
    #[error("the group has a password, and the initiator has none: give it")]
    PasswordNeeded,
    /// The group has no password.
    #[error("the group has no password, so nothing would be protected: give none, or set one on the server")]
    OpenGroup,
    /// The target does not take this protection level, or only lower ones.
    #[error("the target accepts no session with protection '{0}' or higher")]
    ProtectionRefused(Level),
    /// The target chose what was not offered, or demands more memory or work than the initiator allows.
    #[error("the target chose parameters that the initiator did not offer")]
    BadChoice,
    /// The target refused as busy until the deadline.
    #[error("the target is full, or received too many wrong passwords; try again later")]
    Busy,
    /// The target shuts down.
    #[error("the target is shutting down")]
    ShuttingDown,
    /// The target gave an unknown reason.
    #[error("the target refused the session (reason {})", .0.0)]
    Refused(RefuseReason),
}

impl HandshakeError {
    /// Returns whether another login may succeed although nobody changes anything.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::NoPort | Self::NoAnswer | Self::Busy | Self::ShuttingDown)
    }
}
