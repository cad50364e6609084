//! Why a handshake ends without a session.

use crate::aead::Level;
use crate::pdu::negotiate::RefuseReason;
use crate::pdu::parameters::Illegal;

/// Why a login ended without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A level above `none` was asked for without a password.
    #[error("protection '{0}' needs a password: without one there are no keys")]
    ProtectionNeedsPassword(Level),
    /// The parameters to be offered are illegal.
    #[error("what is offered cannot be: {0}")]
    BadOffer(Illegal),
    /// No interface was up before the deadline.
    #[error("no interface came up in time")]
    NoPort,
    /// An interface takes less than the 1500 bytes that every Ethernet takes.
    #[error("the interface takes frames of {0} bytes only, and 1500 are needed")]
    PortTooNarrow(usize),
    /// No server answered.
    #[error("no answer in time: nobody exports this target to this group here")]
    NoAnswer,
    /// A server answered in another protocol version.
    #[error("who answers speaks another version of HyperSCSI")]
    OtherVersion,
    /// An answer did not decrypt. It is impossible to tell which part was wrong.
    #[error("wrong password")]
    WrongPassword,
    /// The group has a password.
    #[error("the group has a password, and none was given")]
    PasswordNeeded,
    /// The group has no password.
    #[error("a password was given, but the group has none, so that nothing would be protected")]
    OpenGroup,
    /// The target does not take this protection level, or only lower ones.
    #[error("the target takes no session with protection '{0}' or above")]
    ProtectionRefused(Level),
    /// The target chose what was not offered, or demands more memory or work than the initiator allows.
    #[error("the target answered with what was not offered")]
    BadChoice,
    /// The target refused as busy until the deadline.
    #[error("the target has no room now, or too many wrong passwords were tried lately")]
    Busy,
    /// The target shuts down.
    #[error("the target shuts down")]
    ShuttingDown,
    /// The target gave an unknown reason.
    #[error("the target refused (reason {})", .0.0)]
    Refused(RefuseReason),
}

impl HandshakeError {
    /// Returns whether another login may succeed although nobody changes anything.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::NoPort | Self::NoAnswer | Self::Busy | Self::ShuttingDown)
    }
}
