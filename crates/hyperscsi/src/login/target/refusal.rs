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
    #[error("the initiator sent a password, but the group has none")]
    OpenGroup,
    /// The initiator has no password, and the group has one.
    #[error("the initiator sent no password, but the group has one")]
    PasswordNeeded,
    /// Nothing that the initiator offered is acceptable.
    #[error("the initiator offered no protection level, or no parameters, that the target accepts")]
    Parameters,
    /// The initiator received its ANSWER, and did not finish.
    #[error("the initiator did not finish the handshake: its password is wrong, or it disappeared")]
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
