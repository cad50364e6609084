//! The reasons for which a login fails, and the status that the initiator receives.

use super::Status;
use super::confirmation::BadConfirmation;
use crate::chap::exchange::BadChap;
use crate::keys::Key;
use crate::name::BadName;
use crate::negotiate::key_rules::BadNegotiation;
use crate::opaque::OpaqueError;
use crate::text::BadText;

/// The reason for which a login failed. [`LoginError::status`] is the status that the initiator receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// A request was received after the login had ended.
    #[error("the initiator sent a Login Request after the login had ended")]
    AfterTheEnd,
    /// The first PDU of the connection is not a Login Request.
    #[error("the initiator sent a first PDU that is not a Login Request")]
    FirstIsNoLogin,
    /// Another PDU was received before the login was complete.
    #[error("the initiator sent a PDU other than a Login Request before the login was complete")]
    OtherPduDuringLogin,
    /// The login took longer than [`super::MAX_LOGIN_TIME`].
    #[error("the login took too long")]
    TooSlow,
    /// The login took more than [`super::MAX_LOGIN_PDUS`] requests.
    #[error("the initiator sent too many Login Requests")]
    TooManyPdus,
    /// The login took more than [`super::MAX_LOGIN_TEXTS`] texts without a result.
    #[error("the initiator sent too many texts without a result")]
    TooManyTexts,
    /// The initiator supports no version that the target supports.
    #[error("initiator and target have no common protocol version")]
    NoCommonVersion,
    /// T and C are both set.
    #[error("the initiator set both the T bit and the C bit in a Login Request")]
    TransitWithContinue,
    /// CSG is not the current stage of the login.
    #[error("the initiator sent a CSG that is not the current stage")]
    StageNotCurrent,
    /// NSG is not a stage that follows CSG.
    #[error("the initiator sent an NSG that does not follow the current stage")]
    StageDoesNotFollow,
    /// ISID, TSIH, CID or the task tag changed during the login.
    #[error("the initiator changed ISID, TSIH, CID or the task tag during the login")]
    IdentityChanged,
    /// The initiator sent text while it should wait for the rest of the target's text.
    #[error("the initiator sent text before the target's text was complete")]
    TextAmidAnswer,
    /// The text is not legal.
    #[error(transparent)]
    Text(#[from] BadText),
    /// The initiator broke a rule of negotiation, or a negotiation had no result.
    #[error(transparent)]
    Negotiation(#[from] BadNegotiation),
    /// The authentication failed.
    #[error(transparent)]
    Chap(#[from] BadChap),
    /// The password login failed.
    #[error("the initiator's password login failed: {0}")]
    Opaque(#[from] OpaqueError),
    /// The confirmation of the password login failed.
    #[error("the initiator's confirmation of the password login failed: {0}")]
    Confirmation(#[from] BadConfirmation),
    /// The connection ended after the initiator could try a password, and before it proved that it knows it.
    #[error(
        "the initiator broke the password login off, probably because of an unknown user or a wrong password"
    )]
    PasswordNotProven,
    /// A request was received before the response to the one before was sent.
    #[error("the initiator sent a Login Request before it received the response to the one before")]
    RequestBeforeResponse,
    /// The user of the password login is not the one of the session to join, or one of both logged in in
    /// another way.
    #[error("the session to join belongs to another user")]
    OtherUser,
    /// The connection has a lower protection than the session to join.
    #[error("the connection has a lower protection than the session to join")]
    LowerProtection,
    /// The first text names no initiator.
    #[error("the initiator sent no InitiatorName")]
    NoInitiatorName,
    /// The initiator's name is not an iSCSI name.
    #[error("InitiatorName: {0}")]
    BadInitiatorName(BadName),
    /// The first text of a normal session names no target.
    #[error("the initiator sent no TargetName")]
    NoTargetName,
    /// The target's name is not an iSCSI name, so no target has it.
    #[error("TargetName: {0}")]
    BadTargetName(BadName),
    /// The session type is neither `Normal` nor `Discovery`.
    #[error("the initiator sent an unknown SessionType")]
    SessionTypeUnknown,
    /// A key that belongs in the first text occurred in a later one with another value.
    #[error("the initiator changed the value of {} during the login", .0.name())]
    IdentityTooLate(Key),
    /// This node has no such target.
    #[error("the target does not exist")]
    TargetNotFound,
    /// The initiator must not reach the target.
    #[error("the initiator has no access to the target")]
    TargetForbidden,
    /// The certificate of the initiator does not contain its name, and the portal requires that.
    #[error("the certificate of the connection does not contain the initiator's name")]
    NameNotCertified,
    /// The target was removed.
    #[error("the target was removed")]
    TargetRemoved,
    /// The target moved temporarily.
    #[error("the target moved temporarily")]
    TargetMovedTemporarily,
    /// The target moved permanently.
    #[error("the target moved permanently")]
    TargetMovedPermanently,
    /// The target is not operational.
    #[error("the target is not operational")]
    TargetUnavailable,
    /// The target has no resources for another session.
    #[error("the target has too many sessions or connections")]
    OutOfResources,
    /// Discovery is not served on this portal.
    #[error("the portal serves no discovery sessions")]
    DiscoveryNotServed,
    /// Discovery is not served at present.
    #[error("the target shuts down and serves no discovery sessions any more")]
    DiscoveryUnavailable,
    /// The initiator must not discover targets.
    #[error("the initiator has no access to discovery")]
    DiscoveryForbidden,
    /// The session that the connection wants to join does not exist.
    #[error("the session to join does not exist")]
    NoSuchSession,
    /// The session that the connection wants to join belongs to another portal group.
    #[error("the session to join belongs to another portal group")]
    OtherPortalGroup,
    /// The session that the connection wants to join has its maximum number of connections.
    #[error("the session to join has too many connections")]
    TooManyConnections,
    /// The initiator tried to log in without the authentication that it needs.
    #[error("the initiator did not authenticate itself")]
    AuthenticationSkipped,
    /// The two sides support no common authentication method.
    #[error("initiator and target have no common authentication method")]
    NoCommonAuthMethod,
}

impl LoginError {
    /// Returns the status that the target sends to the initiator, or `None` when the connection is closed
    /// without a response.
    pub const fn status(self) -> Option<Status> {
        Some(match self {
            //= rfc7143#section-6.3
            // A connection whose first PDU is not a Login Request is closed immediately.
            //= rfc7143#section-4.2.4
            //# A target receiving any PDU except a Login Request before the Login Phase is started
            //# MUST immediately terminate the connection on which the PDU was received.
            Self::FirstIsNoLogin | Self::AfterTheEnd | Self::TooSlow | Self::PasswordNotProven => {
                return None;
            }
            //= rfc7143#section-4.2.4
            //# Once the Login Phase has started, if the target receives any PDU except a Login
            //# Request, it MUST send a Login reject (with Status "invalid during login") and then
            //# disconnect.
            Self::OtherPduDuringLogin => Status::INVALID_DURING_LOGIN,
            Self::NoCommonVersion => Status::UNSUPPORTED_VERSION,
            //= rfc7143#section-6.3
            //# the target MUST respond with a Login reject (initiator error); if detected by the
            //# initiator, the initiator MUST drop the connection.
            //= iscsi-aead#section-3.1
            //# A key that is missing, repeated, malformed or out of order ends the login with status 0200h
            Self::Opaque(
                OpaqueError::KeyOutOfTurn
                | OpaqueError::OtherKey
                | OpaqueError::KeyMissing
                | OpaqueError::KeyRepeated
                | OpaqueError::Stage
                | OpaqueError::User
                | OpaqueError::Message
                | OpaqueError::Cost,
            )
            | Self::Confirmation(BadConfirmation::Misplaced)
            | Self::LowerProtection
            | Self::RequestBeforeResponse
            | Self::TooManyPdus
            | Self::TooManyTexts
            | Self::TransitWithContinue
            | Self::StageNotCurrent
            | Self::StageDoesNotFollow
            | Self::IdentityChanged
            | Self::TextAmidAnswer
            | Self::Text(_)
            | Self::Negotiation(_)
            | Self::BadInitiatorName(_)
            | Self::IdentityTooLate(_) => Status::INITIATOR_ERROR,
            //= rfc7143#section-6.3.2
            //# If the security negotiation fails at the target, then the target MUST send the
            //# appropriate Login Response PDU.
            Self::Chap(_) | Self::AuthenticationSkipped | Self::NoCommonAuthMethod => {
                Status::AUTHENTICATION_FAILURE
            }
            //= iscsi-aead#section-3.1
            //# A step 5 that OPAQUE refuses, a wrong password included, ends it with status 0201h
            //# (authentication failure).
            //= iscsi-aead#section-4.2
            //# The target refuses with status 0201h
            Self::Opaque(OpaqueError::WrongPassword)
            | Self::Confirmation(BadConfirmation::Missing | BadConfirmation::Mismatch)
            | Self::OtherUser => Status::AUTHENTICATION_FAILURE,
            Self::NoInitiatorName | Self::NoTargetName => Status::MISSING_PARAMETER,
            Self::BadTargetName(_) | Self::TargetNotFound => Status::NOT_FOUND,
            Self::SessionTypeUnknown | Self::DiscoveryNotServed => Status::SESSION_TYPE_NOT_SUPPORTED,
            Self::TargetForbidden | Self::DiscoveryForbidden | Self::NameNotCertified => {
                Status::AUTHORIZATION_FAILURE
            }
            Self::TargetRemoved => Status::TARGET_REMOVED,
            Self::TargetMovedTemporarily => Status::MOVED_TEMPORARILY,
            Self::TargetMovedPermanently => Status::MOVED_PERMANENTLY,
            Self::TargetUnavailable | Self::DiscoveryUnavailable => Status::SERVICE_UNAVAILABLE,
            Self::OutOfResources => Status::OUT_OF_RESOURCES,
            Self::NoSuchSession => Status::SESSION_DOES_NOT_EXIST,
            Self::OtherPortalGroup => Status::CANNOT_INCLUDE_IN_SESSION,
            Self::TooManyConnections => Status::TOO_MANY_CONNECTIONS,
        })
    }
}
