//! Handshakes that were refused or not finished: the reason sent to the initiator, and the entry for the log.

use base::ether::{EtherPort, Mac};

use crate::pdu::name::{GroupName, Name};
use crate::pdu::negotiate::RefuseReason;

/// A handshake that was refused or not finished, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeRefusal {
    /// The port that the START was received on.
    pub port: EtherPort,
    /// The address that the START came from. It is not authenticated, nor are the names.
    pub peer: Mac,
    /// The name that the initiator claims.
    pub initiator: Name,
    /// The group that the initiator named.
    pub group: GroupName,
    /// The reason.
    pub why: RefusalCause,
}

/// Why a handshake led to no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalCause {
    /// The initiator has a password, and the group has none.
    #[error("the group has no password, and it came with one")]
    OpenGroup,
    /// The initiator has no password, and the group has one.
    #[error("the group has a password, and it came without")]
    PasswordNeeded,
    /// Nothing that the initiator offered is acceptable.
    #[error("it offered no protection, or no parameters, that are taken here")]
    Parameters,
    /// The initiator received its ANSWER, and did not finish.
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
