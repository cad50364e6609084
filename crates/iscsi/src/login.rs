//! The login phase (RFC 7143 §6.3, §11.12, §11.13) as values, so that this module needs neither PDUs nor
//! sockets.
//!
//! The connection turns a Login Request PDU into a [`LoginRequest`] and a [`LoginResponse`] into a PDU; it
//! fills in StatSN, ExpCmdSN and MaxCmdSN. The owner of the configuration decides through
//! [`directory::Directory`] which initiators may log in, and how they authenticate themselves.

pub mod confirmation;
pub mod deviation;
pub mod directory;
mod error;
pub mod initiator;
pub mod target;
pub mod transcript;

#[cfg(test)]
pub(crate) mod test_site;

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use security::Level;
use security::guess_limit::Account;

use crate::name::{Cid, IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::Negotiated;
use crate::text::MAX_TEXT_PDUS;
use directory::TargetId;
pub use error::LoginError;
use transcript::RecordKeySeed;

/// The only defined version of the protocol (RFC 7143 §11.12.4).
pub const VERSION: u8 = 0;

/// The most Login Requests in one login: a text of the largest size in the smallest pieces, in each
/// direction.
pub const MAX_LOGIN_PDUS: usize = 2 * MAX_TEXT_PDUS;

/// The most complete texts in one login. One stage of CHAP takes 3, one of operational keys 2; the rest is
/// for peers that offer their keys one by one.
pub const MAX_LOGIN_TEXTS: usize = 64;

/// The time limit of a login, counted from the first byte of the connection.
pub const MAX_LOGIN_TIME: Duration = Duration::from_secs(30);

/// A stage of the login phase, as the CSG and NSG fields spell it; 2 is reserved (RFC 7143 §11.12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage(pub u8);

impl Stage {
    /// SecurityNegotiation.
    pub const SECURITY: Self = Self(0);
    /// LoginOperationalNegotiation.
    pub const OPERATIONAL: Self = Self(1);
    /// FullFeaturePhase.
    pub const FULL_FEATURE: Self = Self(3);
}

/// The contents of a Login Request (RFC 7143 §11.12), without the LUN-sized zero fields and the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest<'a> {
    /// T: the initiator is ready to move to `nsg`.
    pub transit: bool,
    /// C: the text continues in the next request.
    pub cont: bool,
    /// The current stage.
    pub csg: Stage,
    /// The next stage; means nothing without `transit`.
    pub nsg: Stage,
    /// The highest version that the initiator supports.
    pub version_max: u8,
    /// The lowest version that the initiator supports.
    pub version_min: u8,
    /// The initiator's half of the session identifier.
    pub isid: [u8; 6],
    /// The target's half of the session identifier; zero for a new session.
    pub tsih: u16,
    /// The initiator task tag, the same throughout a login.
    pub itt: u32,
    /// The connection's number in its session.
    pub cid: u16,
    /// The session's first CmdSN on a leading login.
    pub cmd_sn: u32,
    /// The StatSN that the initiator expects, once it knows it.
    pub exp_stat_sn: u32,
    /// The text, without padding.
    pub data: &'a [u8],
}

/// The contents of a Login Response (RFC 7143 §11.13). The connection adds the sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// T: the target moves to `nsg`.
    pub transit: bool,
    /// C: the text continues in the next response.
    pub cont: bool,
    /// The current stage.
    pub csg: Stage,
    /// The next stage; means nothing without `transit`.
    pub nsg: Stage,
    /// The highest version that the target supports.
    pub version_max: u8,
    /// The version of this session.
    pub version_active: u8,
    /// The initiator's half of the session identifier.
    pub isid: [u8; 6],
    /// The target's half of the session identifier: copied from the request, except in the last response of a
    /// leading login, in which the owner of the sessions sets the TSIH of the new session.
    pub tsih: u16,
    /// The initiator task tag of the request.
    pub itt: u32,
    /// The class of the outcome.
    pub status_class: u8,
    /// The outcome within its class.
    pub status_detail: u8,
    /// The text.
    pub data: Vec<u8>,
}

impl LoginResponse {
    /// Returns the status.
    pub const fn status(&self) -> Status {
        Status(((self.status_class as u16) << 8) | self.status_detail as u16)
    }

    /// Turns a response into a refusal of the same request. The owner of the sessions uses it when it cannot
    /// establish the session of a `Complete` (out of resources, shutting down).
    #[must_use]
    pub fn refused(mut self, status: Status) -> Self {
        let [class, detail] = status.0.to_be_bytes();
        (self.status_class, self.status_detail) = (class, detail);
        (self.transit, self.cont, self.nsg) = (false, false, Stage(0));
        self.data = Vec::new();
        self
    }
}

/// The outcome of a login: class and detail (RFC 7143 §11.13.5).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// The login continues, or is complete.
    pub const SUCCESS: Self = Self(0x0000);
    /// The target moved temporarily; the text holds the new address. The initiator should ask at this address
    /// again next time.
    pub const MOVED_TEMPORARILY: Self = Self(0x0101);
    /// The target moved permanently; the text holds the new address.
    pub const MOVED_PERMANENTLY: Self = Self(0x0102);
    /// The initiator broke a rule that has no detail of its own.
    pub const INITIATOR_ERROR: Self = Self(0x0200);
    /// The initiator did not authenticate itself, or target authentication is not possible.
    pub const AUTHENTICATION_FAILURE: Self = Self(0x0201);
    /// The initiator is not allowed access to the target.
    pub const AUTHORIZATION_FAILURE: Self = Self(0x0202);
    /// This node has no such target.
    pub const NOT_FOUND: Self = Self(0x0203);
    /// The target was removed and no new address is known.
    pub const TARGET_REMOVED: Self = Self(0x0204);
    /// This node does not support the requested versions.
    pub const UNSUPPORTED_VERSION: Self = Self(0x0205);
    /// The session has its maximum number of connections.
    pub const TOO_MANY_CONNECTIONS: Self = Self(0x0206);
    /// A mandatory key is missing.
    pub const MISSING_PARAMETER: Self = Self(0x0207);
    /// The session cannot span to this portal.
    pub const CANNOT_INCLUDE_IN_SESSION: Self = Self(0x0208);
    /// This node does not support sessions of this type.
    pub const SESSION_TYPE_NOT_SUPPORTED: Self = Self(0x0209);
    /// The session that the connection wants to join does not exist.
    pub const SESSION_DOES_NOT_EXIST: Self = Self(0x020a);
    /// A PDU that is illegal during a login was received.
    pub const INVALID_DURING_LOGIN: Self = Self(0x020b);
    /// The target failed.
    pub const TARGET_ERROR: Self = Self(0x0300);
    /// The target is not operational now.
    pub const SERVICE_UNAVAILABLE: Self = Self(0x0301);
    /// The target has no resources for another session or connection.
    pub const OUT_OF_RESOURCES: Self = Self(0x0302);

    /// Returns the class: 0 success, 1 redirection, 2 initiator error, 3 target error.
    pub const fn class(self) -> u8 {
        self.0.to_be_bytes()[0]
    }

    /// Returns the detail within the class.
    pub const fn detail(self) -> u8 {
        self.0.to_be_bytes()[1]
    }

    /// Returns the meaning of the status in words, for display.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::MOVED_TEMPORARILY => "the target moved temporarily",
            Self::MOVED_PERMANENTLY => "the target moved permanently",
            Self::INITIATOR_ERROR => "the target found an error in the login",
            Self::AUTHENTICATION_FAILURE => "authentication failed",
            Self::AUTHORIZATION_FAILURE => "the initiator has no access to the target",
            Self::NOT_FOUND => "the target does not exist",
            Self::TARGET_REMOVED => "the target was removed",
            Self::UNSUPPORTED_VERSION => "the target does not support this protocol version",
            Self::TOO_MANY_CONNECTIONS => "the session has the maximum number of connections",
            Self::MISSING_PARAMETER => "the target reports that a parameter is missing",
            Self::CANNOT_INCLUDE_IN_SESSION => "the session cannot span to this portal",
            Self::SESSION_TYPE_NOT_SUPPORTED => "the target does not serve sessions of this type",
            Self::SESSION_DOES_NOT_EXIST => "the session does not exist any more",
            Self::INVALID_DURING_LOGIN => "the target received a PDU that is not allowed during login",
            Self::TARGET_ERROR => "the target failed",
            Self::SERVICE_UNAVAILABLE => "the target is not operational now",
            Self::OUT_OF_RESOURCES => "the target has too many sessions or connections",
            Self(status) => match status.to_be_bytes()[0] {
                2 => "the target refused for a reason that no standard defines",
                3 => "the target failed for a reason that no standard defines",
                _ => "the target returned a status that no standard defines",
            },
        }
    }
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Status({:#06x}: {})", self.0, self.meaning())
    }
}

/// The next step of the target's half of a login.
#[derive(Debug)]
pub enum LoginStep {
    /// Send the response; the login continues.
    Continue(LoginResponse),
    /// Send the response when the rate limit on guesses permits it; the login continues. The response lets
    /// the initiator try one password. Until [`target::TargetLogin::has_proven`] says that it was the right
    /// one, it counts as a failure.
    PermitGuess {
        /// The response.
        response: LoginResponse,
        /// Whose password the initiator tries.
        guess: Account,
    },
    /// The login succeeded. Establish the session, put its TSIH into the response if the session is new, and
    /// send the response; or send [`LoginResponse::refused`] of it. Digests start with the PDU after the
    /// response.
    Complete {
        /// The last response of the login.
        response: LoginResponse,
        /// The result of the login.
        outcome: alloc::boxed::Box<LoginOutcome>,
    },
    /// Send the response, then close the connection.
    Fail {
        /// The refusal.
        response: LoginResponse,
        /// The reason, for the log.
        why: LoginError,
    },
    /// Close the connection without a response.
    Drop(LoginError),
}

/// A password login, as far as further connections of its session must equal it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordLogin {
    /// The user who proved the password.
    pub user: String,
    /// The protection of the connection.
    pub protection: Level,
}

/// The result of a successful login.
#[derive(Debug)]
pub struct LoginOutcome {
    /// The kind of the session, with its target if it has one.
    pub kind: SessionKind,
    /// The initiator.
    pub initiator: IscsiName,
    /// The alias of the initiator, for display, control characters removed.
    pub initiator_alias: Option<String>,
    /// The initiator's half of the session identifier.
    pub isid: Isid,
    /// The target's half, as the initiator sent it: [`Tsih::NEW`] for a leading login.
    pub tsih: Tsih,
    /// The connection's number in its session.
    pub cid: Cid,
    /// The CmdSN of the login: the first of a new session.
    pub cmd_sn: u32,
    /// The effect of the login on the set of sessions.
    pub effect: LoginEffect,
    /// The negotiated parameters.
    pub negotiated: Negotiated,
    /// The user name of the initiator's authentication, if authentication was required.
    pub user: Option<String>,
    /// The password login, if it was one.
    pub password_login: Option<PasswordLogin>,
    /// What the keys of the connection follow from: present exactly if an AEAD digest was negotiated.
    pub record_keys: Option<RecordKeySeed>,
}

/// The kind of a session (RFC 7143 §4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// A discovery session: the initiator can only ask for targets.
    Discovery {
        /// The target that the initiator named, if there is one, and its portal group.
        named: Option<(TargetId, PortalGroupTag)>,
    },
    /// A normal session with a target.
    Normal {
        /// The target, by its number in the directory.
        target: TargetId,
        /// The name of the target.
        name: IscsiName,
        /// The portal group of the connection.
        portal_group: PortalGroupTag,
    },
}

/// The effect of a login on the set of sessions (RFC 7143 §6.3.1 table, §6.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginEffect {
    /// The connection starts a new session.
    NewSession,
    /// The connection starts a session that replaces this one, which ends now (session reinstatement).
    ReinstatesSession(Tsih),
    /// The connection joins this session.
    AddsConnection(Tsih),
    /// The connection joins this session and replaces the connection with the same CID (connection
    /// reinstatement).
    ReinstatesConnection(Tsih),
}

/// Makes a text printable: removes control characters and bounds the length.
pub(crate) fn printable(text: &[u8]) -> String {
    let mut kept = String::new();
    for c in String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()) {
        if kept.len() + c.len_utf8() > MAX_ALIAS {
            break;
        }
        kept.push(c);
    }
    kept
}

/// The longest alias that is kept, in bytes: the limit of any text value (RFC 7143 §6.1).
const MAX_ALIAS: usize = 255;

#[cfg(test)]
mod tests;
