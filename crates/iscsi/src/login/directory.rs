//! The questions of a login to the owner of the configuration: targets, credentials, sessions.
//!
//! The owner answers with values; it parses no iSCSI text. Every question carries the portal and the
//! initiator, because the answer can differ between portals and between initiators.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use base::state_machine::{AcceptInfo, PortalId};
use security::opaque::PasswordRecord;

use super::PasswordLogin;
use crate::chap::{Algorithms, Credentials, Secret};
use crate::name::{Cid, IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{KeyPolicy, SessionParameters};

/// A target, by its number in the directory. The number stays with the target as long as a session refers to
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u32);

/// The portal and the addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPath {
    /// The portal.
    pub portal: PortalId,
    /// The target's address on the connection.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

impl From<&AcceptInfo> for ConnectionPath {
    fn from(arrival: &AcceptInfo) -> Self {
        Self { portal: arrival.portal, local: arrival.local, peer: arrival.peer }
    }
}

/// Answers the questions of a login.
pub trait Directory {
    /// Returns the result of looking up target `name` for `initiator` through this portal.
    fn find_target(&self, via: &ConnectionPath, initiator: &IscsiName, name: &IscsiName) -> TargetLookup;

    /// Returns the access of `initiator` to discovery sessions through this portal.
    fn discovery(&self, via: &ConnectionPath, initiator: &IscsiName) -> DiscoveryAccess;

    /// Returns the portal group of a portal, for a discovery session that names no target.
    fn portal_group(&self, via: &ConnectionPath) -> PortalGroupTag {
        let _ = via;
        PortalGroupTag(1)
    }

    /// Returns whether an initiator may use its name on a connection. A portal can ask for a certificate that
    /// contains the name.
    fn certifies(&self, via: &ConnectionPath, initiator: &IscsiName) -> bool;

    /// Returns whether the connections through a portal are inside TLS.
    fn is_tls(&self, portal: PortalId) -> bool {
        let _ = portal;
        false
    }

    /// Returns the secret of `user` in `realm` for a login as `initiator`; `None` when this user does not
    /// exist.
    fn chap_secret(&self, realm: Realm, initiator: &IscsiName, user: &str) -> Option<Secret>;

    /// Returns the record of the password of `user` in `realm` for a login as `initiator`. For a user who
    /// does not exist it is the record of a random password, always the same one, so that the answer does not
    /// show which users exist; `None` when the realm has no records.
    fn password_record(
        &self,
        realm: Realm,
        initiator: &IscsiName,
        user: &str,
    ) -> Option<Arc<PasswordRecord>> {
        let _ = (realm, initiator, user);
        None
    }

    /// Returns the facts about a session. If the `tsih` of the query is [`Tsih::NEW`], any session between
    /// these two ports matches (reinstatement); otherwise the session must have that TSIH.
    fn find_session(&self, query: &SessionQuery<'_>) -> Option<SessionInfo>;

    /// Returns the first target, in the order of names, after `after` (or the first of all) that `initiator`
    /// may discover through this portal. The result goes into the answer to `SendTargets=All`.
    fn next_target(
        &self,
        via: &ConnectionPath,
        initiator: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry>;

    /// Returns the target with this name, if [`Self::next_target`] would return it. The default
    /// implementation iterates over the targets; an owner with an index can override it.
    fn target_named(
        &self,
        via: &ConnectionPath,
        initiator: &IscsiName,
        name: &IscsiName,
    ) -> Option<SendTargetsEntry> {
        let mut next = self.next_target(via, initiator, None);
        while let Some(listed) = next {
            if listed.name >= *name {
                return (listed.name == *name).then_some(listed);
            }
            next = self.next_target(via, initiator, Some(&listed.name));
        }
        None
    }
}

/// The result of looking up a target name for an initiator.
#[derive(Clone, Debug)]
pub enum TargetLookup {
    /// The initiator may log in to the target.
    Found(TargetAccess),
    /// The target does not exist.
    NotFound,
    /// The initiator, or this portal, must not reach the target.
    Forbidden,
    /// The target was removed permanently.
    Removed,
    /// The target moved to another address.
    Moved {
        /// The new address.
        to: TargetAddress,
        /// Whether the initiator should remember the new address.
        permanently: bool,
    },
    /// The target is not operational now.
    Unavailable,
    /// The target has no resources for another session.
    OutOfResources,
    /// The target has its maximum number of sessions: a new session replaces one whose initiator is silent,
    /// or is refused.
    AtSessionLimit(TargetAccess),
}

/// The terms of a login to a target.
#[derive(Clone, Debug)]
pub struct TargetAccess {
    /// The target.
    pub target: TargetId,
    /// The portal group that the portal belongs to on this target.
    pub portal_group: PortalGroupTag,
    /// The alias of the target, if any; at most 255 bytes.
    pub alias: Option<String>,
    /// The authentication that the initiator must pass.
    pub auth: AuthPolicy,
    /// The values that the target agrees to.
    pub keys: KeyPolicy,
    /// The most sessions of this initiator with the target; `None` for as many as the target accepts.
    pub sessions_max: Option<u32>,
}

/// The access of an initiator to discovery sessions.
#[derive(Clone, Debug)]
pub enum DiscoveryAccess {
    /// The initiator may log in.
    Granted {
        /// The authentication that the initiator must pass.
        auth: AuthPolicy,
        /// The values that the target agrees to.
        keys: KeyPolicy,
    },
    /// Discovery is not served on this portal.
    NotServed,
    /// Discovery is not served at present.
    Unavailable,
    /// This initiator must not discover targets.
    Forbidden,
}

/// The authentication of the initiator, and that of the target (mutual CHAP).
#[derive(Clone, Debug, Default)]
pub struct AuthPolicy {
    /// Whether the initiator may log in without authentication.
    pub allows_none: bool,
    /// The CHAP algorithms that the target accepts; empty for no CHAP.
    pub chap: Algorithms,
    /// The name and secret of the target, for initiators that request mutual CHAP.
    pub own: Option<Credentials>,
    /// Whether the target accepts the password login (docs/iscsi-aead.md §3). The directory has a
    /// [`password_record`](Directory::password_record) then.
    pub opaque: bool,
}

/// The set of users in which a secret is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Realm {
    /// The users who may discover targets.
    Discovery,
    /// The users who may log in to the target.
    Target(TargetId),
}

/// The identity of the session to look up.
#[derive(Clone, Copy, Debug)]
pub struct SessionQuery<'a> {
    /// The initiator.
    pub initiator: &'a IscsiName,
    /// The initiator's half of the session identifier.
    pub isid: Isid,
    /// The target's half, or [`Tsih::NEW`].
    pub tsih: Tsih,
    /// Whether a discovery session logs in.
    pub is_discovery: bool,
    /// The target; `None` for a discovery session that names no target.
    pub target: Option<TargetId>,
    /// The portal group of the connection. It distinguishes sessions when `tsih` is [`Tsih::NEW`]; otherwise
    /// the login compares it with that of the session. Means nothing without a target.
    pub portal_group: PortalGroupTag,
    /// The CID of the connection that logs in.
    pub cid: Cid,
}

/// The facts about a session that a login needs.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The target's half of the session identifier.
    pub tsih: Tsih,
    /// The portal group of the connections of the session.
    pub portal_group: PortalGroupTag,
    /// The parameters that the session negotiated when it began.
    pub parameters: SessionParameters,
    /// The number of connections of the session.
    pub connections: u16,
    /// Whether one of the connections has the CID of the query.
    pub has_cid: bool,
    /// The password login of the first connection, if it was one.
    pub password_login: Option<PasswordLogin>,
}

/// The address on which a target listens (RFC 7143 §13.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetAddress {
    /// An IP address and a port.
    Socket(SocketAddr),
    /// A host name and a port.
    Host {
        /// The name.
        name: String,
        /// The TCP port.
        port: u16,
    },
}

/// A target in the answer to `SendTargets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendTargetsEntry {
    /// The name of the target.
    pub name: IscsiName,
    /// The addresses on which the target listens, each with its portal group. Empty: the address of the
    /// portal that received the request, in group 1.
    pub addresses: Vec<(TargetAddress, PortalGroupTag)>,
}

impl core::fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Socket(address) => write!(f, "{address}"),
            // An IPv6 address with the name of its zone.
            Self::Host { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

/// The default port of iSCSI targets (RFC 7143 §13.8).
pub const DEFAULT_PORT: u16 = 3260;

impl TargetAddress {
    /// Parses an address in the spelling of targets, with its portal group if one is given:
    /// `host[:port][,portal-group]`. Returns `None` when the text has another form.
    pub fn parse(text: &[u8]) -> Option<(Self, Option<PortalGroupTag>)> {
        let text = core::str::from_utf8(text).ok()?;
        let (host_port, group) = match text.split_once(',') {
            Some((host_port, group)) => (host_port, Some(PortalGroupTag(digits(group)?))),
            None => (text, None),
        };
        let address = if let Ok(socket) = host_port.parse::<SocketAddr>() {
            Self::Socket(socket)
        } else if let Some(v6) = host_port.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Self::Socket(SocketAddr::new(IpAddr::V6(v6.parse().ok()?), DEFAULT_PORT))
        } else if let Ok(v4) = host_port.parse::<Ipv4Addr>() {
            Self::Socket(SocketAddr::new(IpAddr::V4(v4), DEFAULT_PORT))
        } else {
            let (name, port) = match host_port.split_once(':') {
                Some((name, port)) => (name, digits(port)?),
                None => (host_port, DEFAULT_PORT),
            };
            if let Ok(v4) = name.parse::<Ipv4Addr>() {
                return Some((Self::Socket(SocketAddr::new(IpAddr::V4(v4), port)), group));
            }
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
            if name.is_empty() || name.len() > MAX_HOST || !name.bytes().all(legal) {
                return None;
            }
            Self::Host { name: name.to_string(), port }
        };
        Some((address, group))
    }
}

/// Parses a decimal number without a sign: `parse` alone would accept one.
fn digits(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The longest host name, in bytes (RFC 1035 §2.3.4).
const MAX_HOST: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and addresses from a target can end up in files and commands of the initiator: open-iscsi's CVEs
    /// of 2026.
    #[test]
    fn reads_addresses_as_targets_spell_them_and_nothing_else() {
        for (text, want) in [
            ("10.0.0.1:3261,1", Some(("10.0.0.1:3261", Some(1)))),
            ("10.0.0.1", Some(("10.0.0.1:3260", None))),
            ("10.0.0.1:+260", None),
            ("10.0.0.1:00260", Some(("10.0.0.1:260", None))),
            ("san-1.example.com:5,+1", None),
            ("[::1]:3260,65535", Some(("[::1]:3260", Some(65535)))),
            ("[fe80::1],7", Some(("[fe80::1]:3260", Some(7)))),
            ("san-1.example.com:5", Some(("san-1.example.com:5", None))),
            ("san", Some(("san:3260", None))),
            ("", None),
            (":3260", None),
            ("san:", None),
            ("san:65536", None),
            ("san:1,65536", None),
            ("san:1,", None),
            ("../etc:1", None),
            ("a b", None),
            ("$(reboot)", None),
            ("[::1", None),
            ("a\n", None),
        ] {
            let read = TargetAddress::parse(text.as_bytes());
            let read = read.map(|(address, group)| (address.to_string(), group.map(|group| group.0)));
            assert_eq!(read, want.map(|(address, group)| (address.into(), group)), "{text}");
        }
        assert_eq!(TargetAddress::parse(b"\xff"), None);
    }
}
