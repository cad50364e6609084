//! The plan of an initiator for its logins: names, authentication, keys and protection.

use alloc::string::String;

use security::opaque::Password;

use crate::chap::{Algorithms, Credentials};
use crate::keys::DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH;
use crate::name::{Cid, IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{KeyPolicy, SessionParameters};

/// The purpose and the parameters of a login.
#[derive(Clone, Debug)]
pub struct LoginPlan {
    /// The name of the initiator.
    pub initiator: IscsiName,
    /// The alias of the initiator, for display.
    pub initiator_alias: Option<String>,
    /// The purpose of the login.
    pub purpose: Purpose,
    /// The initiator's half of the session identifier.
    pub isid: Isid,
    /// The portal group of the session, or of the lost session that a new one takes the place of. A login at
    /// a portal of another group fails: a session has its connections in one group, and reinstatement ends no
    /// session of another group (RFC 7143 §6.3.5). `None`: any group.
    pub portal_group: Option<PortalGroupTag>,
    /// The number of the connection in its session.
    pub cid: Cid,
    /// The task tag of all requests.
    pub itt: u32,
    /// The CmdSN of all requests: the first of a new session.
    pub cmd_sn: u32,
    /// The authentication of the initiator, and that of the target (mutual CHAP).
    pub auth: AuthPlan,
    /// The values that the initiator offers.
    pub keys: KeyPolicy,
    /// The stages that the login goes through. A password login always goes through both.
    pub stages: LoginStages,
    /// The most text in one request, in bytes: at most the length that a target accepts during login. The
    /// last request of a password login has at least one byte of text and a confirmation, whatever this is.
    pub piece_max: usize,
    /// Whether the owner relays the operational keys of another login, except the digests. Only a password
    /// login can relay.
    pub relays_keys: bool,
}

impl LoginPlan {
    /// Returns a plan with the usual stages and text in the largest pieces.
    pub fn new(initiator: IscsiName, purpose: Purpose, isid: Isid, auth: AuthPlan, keys: KeyPolicy) -> Self {
        Self {
            initiator,
            initiator_alias: None,
            purpose,
            isid,
            portal_group: None,
            cid: Cid(0),
            itt: 0,
            cmd_sn: 1,
            auth,
            keys,
            stages: LoginStages::SecurityAndOperational,
            piece_max: usize::try_from(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH).unwrap_or(512),
            relays_keys: false,
        }
    }
}

/// The purpose of a login.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// A discovery session.
    Discovery,
    /// A new session with this target.
    NewSession(IscsiName),
    /// A further connection of a session.
    Join {
        /// The target.
        target: IscsiName,
        /// The target's half of the session identifier.
        tsih: Tsih,
        /// The negotiated parameters of the session.
        parameters: SessionParameters,
    },
}

/// The authentication of an initiator.
#[derive(Clone, Debug)]
pub enum AuthPlan {
    /// No authentication.
    None,
    /// CHAP.
    Chap {
        /// The algorithms that the initiator offers.
        algorithms: Algorithms,
        /// The name and secret of the initiator.
        own: Credentials,
        /// The name and secret of the target, if it must authenticate itself too (mutual CHAP).
        peer: Option<Credentials>,
        /// Whether the login continues without authentication if the target chooses so. Has no effect
        /// together with `peer`.
        or_none: bool,
    },
    /// The password login (docs/iscsi-aead.md §3), in which both sides prove that they know the password, and
    /// which gives the connection keys.
    Opaque {
        /// The name of the user.
        user: String,
        /// The password of the user.
        password: Password,
    },
}

/// The stages of a login before full feature phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginStages {
    /// SecurityNegotiation, then LoginOperationalNegotiation.
    SecurityAndOperational,
    /// SecurityNegotiation only; every key keeps its default.
    SecurityOnly,
    /// LoginOperationalNegotiation only; neither side authenticates itself.
    OperationalOnly,
}
