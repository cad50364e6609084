//! Why a handshake ends without a session.

use crate::aead::Level;
use crate::pdu::negotiate::RefuseReason;
use crate::pdu::parameters::Illegal;

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A level above `none` was asked for without a password.
    #[error("protection '{0}' needs a password: without one there are no keys")]
    ProtectionNeedsPassword(Level),
    /// What is to be offered cannot be.
    #[error("what is offered cannot be: {0}")]
    BadOffer(Illegal),
    /// No interface was up in time.
    #[error("no interface came up in time")]
    NoPort,
    /// An interface takes less than every Ethernet takes.
    #[error("the interface takes frames of {0} bytes only, and 1500 are needed")]
    PortTooNarrow(usize),
    /// Nobody answered.
    #[error("no answer in time: nobody exports this target to this group here")]
    NoAnswer,
    /// Somebody answered in another version.
    #[error("who answers speaks another version of HyperSCSI")]
    OtherVersion,
    /// An answer did not open. Which part of what was said is wrong cannot be told, and is not.
    #[error("wrong password")]
    WrongPassword,
    /// The group has a password.
    #[error("the group has a password, and none was given")]
    PasswordNeeded,
    /// The group has none.
    #[error("a password was given, but the group has none, so that nothing would be protected")]
    OpenGroup,
    /// The target takes no such level, or only lower ones.
    #[error("the target takes no session with protection '{0}' or above")]
    ProtectionRefused(Level),
    /// The target chose what was not offered, or wants more memory or work than is borne.
    #[error("the target answered with what was not offered")]
    BadChoice,
    /// It put us off until the end.
    #[error("the target has no room now, or too many wrong passwords were tried lately")]
    Busy,
    /// It ends.
    #[error("the target shuts down")]
    ShuttingDown,
    /// It gave a reason that we do not know.
    #[error("the target refused (reason {})", .0.0)]
    Refused(RefuseReason),
}

impl HandshakeError {
    /// Returns whether another try may end otherwise without anybody changing anything.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::NoPort | Self::NoAnswer | Self::Busy | Self::ShuttingDown)
    }
}
