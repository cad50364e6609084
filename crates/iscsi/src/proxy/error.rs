//! Why a proxy ends a connection.

use super::Side;
use crate::framing::StreamError;
use crate::login::Status;
use crate::login::initiator::InitiatorLoginError;
use crate::negotiate::key_rules::BadNegotiation;
use crate::opaque::OpaqueError;
use crate::pdu::Malformed;
use crate::text::BadText;

/// The reason for which a proxy ends a connection of an initiator, and the one to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// No connection to the target could be opened.
    #[error("the target cannot be reached")]
    Unreachable,
    /// The target closed the connection during the login.
    #[error("the target closed the connection during the login")]
    Disconnected,
    /// The target refused the login.
    #[error("the target refused the login: {}", .0.meaning())]
    Refused(Status),
    /// The target broke a rule of the login, or does not know the password.
    #[error("the login to the target failed: {0}")]
    RemoteLogin(InitiatorLoginError),
    /// A redirection led to a redirection, and so on.
    #[error("each address of the target leads to another one")]
    MovedTooOften,
    /// A redirection came after the proxy had answered the initiator.
    #[error("the target moved in the middle of the login")]
    MovedInLogin,
    /// A Login Response came after the login. It could be a redirection.
    #[error("the target sent a Login Response after the login")]
    LoginResponseAfterLogin,
    /// The initiator broke a rule of the login.
    #[error("the login of the initiator failed: {0}")]
    LocalLogin(#[from] LocalLoginError),
    /// The bytes of a connection are no PDUs.
    #[error("{}", stream_error(*.0, *.1))]
    Stream(Side, StreamError),
    /// A data digest was wrong.
    #[error("{}", data_error(*.0))]
    DataDigest(Side),
    /// A header has a value that is not legal.
    #[error("{} sent a malformed PDU: {}", name(*.0), .1)]
    Malformed(Side, Malformed),
    /// A pair in a Text Response is longer than a pair can be.
    #[error("the target sent a key=value pair without an end")]
    PairTooLong,
    /// A text of the target does not fit into a PDU that the initiator accepts.
    #[error("the target's text does not fit into a PDU that the initiator accepts")]
    AnswerTooLong,
    /// The proxy has an error.
    #[error("the proxy is in a state that must not occur")]
    Bug,
}

/// The rule that an initiator broke in its login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalLoginError {
    /// A PDU is no Login Request.
    #[error("it sent another PDU than a Login Request")]
    NoLogin,
    /// A request was received before the response to the one before.
    #[error("it sent a Login Request before the response to the one before")]
    RequestBeforeResponse,
    /// ISID, TSIH, CID or the task tag are not those of the first request.
    #[error("it changed its ISID, TSIH, CID or task tag")]
    IdentityChanged,
    /// The initiator supports no version that the proxy supports.
    #[error("it supports no version of iSCSI that the proxy supports")]
    Version,
    /// The stages are not legal.
    #[error("its login stages are not legal")]
    Stage,
    /// The initiator sent no name, or no target.
    #[error("it did not send its name, or no name of a target")]
    NameMissing,
    /// A name is not legal, or the type of the session is not.
    #[error("a name or the session type is not legal")]
    Name,
    /// The initiator offers no login without authentication.
    #[error(
        "it insists on authentication, which the proxy does not offer: the proxy itself logs in to the target"
    )]
    Authentication,
    /// The text is not legal.
    #[error(transparent)]
    Text(#[from] BadText),
    /// A rule of negotiation was broken.
    #[error(transparent)]
    Negotiation(#[from] BadNegotiation),
}

impl ProxyError {
    /// Returns the status of the response that ends the login of the initiator; `None` for no response.
    pub const fn login_status(&self) -> Option<Status> {
        Some(match self {
            Self::Refused(status) => *status,
            Self::RemoteLogin(InitiatorLoginError::Opaque(OpaqueError::WrongPassword)) => {
                Status::AUTHENTICATION_FAILURE
            }
            Self::LocalLogin(why) => match why {
                LocalLoginError::NoLogin => Status::INVALID_DURING_LOGIN,
                LocalLoginError::Version => Status::UNSUPPORTED_VERSION,
                LocalLoginError::NameMissing => Status::MISSING_PARAMETER,
                LocalLoginError::Authentication => Status::AUTHENTICATION_FAILURE,
                _ => Status::INITIATOR_ERROR,
            },
            Self::Stream(Side::Local, _) => return None,
            Self::Unreachable
            | Self::Disconnected
            | Self::MovedTooOften
            | Self::MovedInLogin
            | Self::Stream(Side::Remote, _) => Status::SERVICE_UNAVAILABLE,
            _ => Status::TARGET_ERROR,
        })
    }
}

const fn name(side: Side) -> &'static str {
    match side {
        Side::Local => "the initiator",
        Side::Remote => "the target",
    }
}

const fn data_error(side: Side) -> &'static str {
    match side {
        Side::Local => "a data digest of the initiator was wrong",
        Side::Remote => "a data segment of the target was damaged or modified on its way",
    }
}

const fn stream_error(side: Side, why: StreamError) -> &'static str {
    match (side, why) {
        (Side::Local, StreamError::HeaderDigest) => "a header digest of the initiator was wrong",
        (Side::Remote, StreamError::HeaderDigest | StreamError::Modified) => {
            "a header of the target was damaged or modified on its way"
        }
        (Side::Local, _) => "the initiator sent a PDU that is longer than allowed",
        (Side::Remote, _) => "the target sent a PDU that is longer than allowed",
    }
}
