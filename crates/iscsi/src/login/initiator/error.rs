//! The reasons for which an initiator gives up a login.

#[cfg(doc)]
use super::super::{MAX_LOGIN_PDUS, MAX_LOGIN_TEXTS};
use crate::chap::exchange::BadChap;
use crate::login::confirmation::BadConfirmation;
use crate::negotiate::key_rules::BadNegotiation;
use crate::opaque::OpaqueError;
use crate::text::BadText;

/// The reason for which an initiator gives up a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitiatorLoginError {
    /// A response was received after the login had ended, or before it began.
    #[error("the target sent a Login Response that was not expected")]
    OutOfTurn,
    /// The login took more than [`MAX_LOGIN_PDUS`] responses.
    #[error("the target sent too many Login Responses")]
    TooManyPdus,
    /// The login took more than [`MAX_LOGIN_TEXTS`] texts without a result.
    #[error("the login makes no progress")]
    TooManyTexts,
    /// The target chose a version that the initiator does not support.
    #[error("the target uses another protocol version")]
    OtherVersion,
    /// ISID, TSIH or the task tag differ from those of the request.
    #[error("the ISID, TSIH or task tag differs from that of the request")]
    IdentityChanged,
    /// The target gave the new session no TSIH.
    #[error("the target assigned no TSIH to the new session")]
    NoTsih,
    /// CSG is not the current stage of the login.
    #[error("the current stage (CSG) is wrong")]
    StageNotCurrent,
    /// The target moves to a stage that the initiator did not request.
    #[error("the target moved to a stage that the initiator did not request")]
    StageNotAsked,
    /// T and C are both set.
    #[error("a Login Response has both the T bit and the C bit")]
    TransitWithContinue,
    /// The target sent text while it should wait for the rest of the initiator's text.
    #[error("the target sent text before the initiator's text was complete")]
    TextAmidRequest,
    /// The portal belongs to another portal group than the session, or the target does not say to which.
    #[error("the portal is not known to belong to the session's portal group")]
    OtherPortalGroup,
    /// The target redirects the initiator without an address.
    #[error("the target moved, but did not send its new address")]
    MovedNowhere,
    /// The text is not legal.
    #[error(transparent)]
    Text(#[from] BadText),
    /// The target broke a rule of negotiation, or a negotiation had no result.
    #[error(transparent)]
    Negotiation(#[from] BadNegotiation),
    /// The authentication failed.
    #[error(transparent)]
    Chap(#[from] BadChap),
    /// The password login failed.
    #[error("the password login failed: {0}")]
    Opaque(#[from] OpaqueError),
    /// The target's confirmation of the password login failed.
    #[error("the target's confirmation of the password login failed: {0}")]
    Confirmation(#[from] BadConfirmation),
    /// The initiator requires a protection, and has no password from which keys could follow.
    #[error("the initiator requires a protection, but has no user and password for the password login")]
    ProtectionWithoutPassword,
    /// The target chose an authentication method that the initiator did not offer, or none.
    #[error("the target chose an authentication method that the initiator did not offer")]
    MethodNotOffered,
    /// The target offered a key when the initiator could not answer any more.
    #[error("the target offered a key when the initiator could not answer any more")]
    OfferAtTheEnd,
}
