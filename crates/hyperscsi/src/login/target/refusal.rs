//! Handshakes that came to nothing: what the initiator is told, and what stands in the log.

use base::ether::{EtherPort, Mac};

use crate::pdu::name::{GroupName, Name};
use crate::pdu::negotiate::RefuseReason;

/// A handshake that came to nothing, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeRefusal {
    /// Where it came in.
    pub port: EtherPort,
    /// Where it came from; nothing vouches for that, nor for the names.
    pub peer: Mac,
    /// Who the initiator says it is.
    pub initiator: Name,
    /// The group that it named.
    pub group: GroupName,
    /// Why.
    pub why: RefusalCause,
}

/// Why a handshake came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalCause {
    /// It came with a password.
    #[error("the group has no password, and it came with one")]
    OpenGroup,
    /// It came without a password.
    #[error("the group has a password, and it came without")]
    PasswordNeeded,
    /// Nothing that it offered is taken.
    #[error("it offered no protection, or no parameters, that are taken here")]
    Parameters,
    /// It got its answer, and said no more.
    #[error("it did not finish: its password is wrong, or it went away")]
    Unfinished,
}

impl RefusalCause {
    pub(super) const fn reason(self) -> RefuseReason {
        match self {
            Self::OpenGroup => RefuseReason::OPEN_GROUP,
            Self::PasswordNeeded => RefuseReason::PASSWORD_NEEDED,
            Self::Parameters => RefuseReason::PARAMETERS,
            Self::Unfinished => RefuseReason::NOT_AUTHORIZED,
        }
    }
}
