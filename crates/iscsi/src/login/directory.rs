//! What a login asks of the owner of the configuration: targets, credentials, sessions.
//!
//! The owner answers with values; it parses no iSCSI text. Every question carries the portal, because what is served
//! can differ from portal to portal, and the initiator, because it can differ from initiator to initiator.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use base::state_machine::{AcceptInfo, PortalId};

use crate::chap::{Algorithms, Credentials, Secret};
use crate::name::{Cid, IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{KeyPolicy, SessionParameters};

/// A target, as the directory numbers it. The number stays with the target as long as a session refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u32);

/// The way in that a connection took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPath {
    /// The portal.
    pub portal: PortalId,
    /// Our address on the connection.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

impl From<&AcceptInfo> for ConnectionPath {
    fn from(arrival: &AcceptInfo) -> Self {
        Self { portal: arrival.portal, local: arrival.local, peer: arrival.peer }
    }
}

/// Answers what a login must know.
pub trait Directory {
    /// Returns what `initiator` finds under `name` through this portal.
    fn find_target(&self, via: &ConnectionPath, initiator: &IscsiName, name: &IscsiName) -> TargetLookup;

    /// Returns what `initiator` may do in a discovery session through this portal.
    fn discovery(&self, via: &ConnectionPath, initiator: &IscsiName) -> DiscoveryAccess;

    /// Returns the secret with which `user` proves itself to `realm` when it logs in as `initiator`; `None` when
    /// there is no such user.
    fn chap_secret(&self, realm: Realm, initiator: &IscsiName, user: &str) -> Option<Secret>;

    /// Returns what is known of a session. The query's `tsih` is [`Tsih::NEW`] when any session between these two
    /// ports is meant (reinstatement); otherwise it must be that one.
    fn find_session(&self, query: &SessionQuery<'_>) -> Option<SessionInfo>;

    /// Returns the first target, in the order of names, that comes behind `after` (or the first of all) and that
    /// `initiator` may know of through this portal; what it returns goes into the answer to `SendTargets=All`.
    fn next_target(
        &self,
        via: &ConnectionPath,
        initiator: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry>;

    /// Returns the target of this name, if [`Self::next_target`] would come upon it. Walks there unless the owner
    /// knows a shorter way.
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

/// What an initiator finds under a target name.
#[derive(Clone, Debug)]
pub enum TargetLookup {
    /// A target that it may log in to.
    Found(TargetAccess),
    /// Nothing.
    NotFound,
    /// A target that this initiator, or this portal, must not reach.
    Forbidden,
    /// A target that is gone for good.
    Removed,
    /// A target that is to be reached elsewhere.
    Moved {
        /// Where.
        to: TargetAddress,
        /// Whether the initiator should remember that.
        permanently: bool,
    },
    /// A target that is not operational now.
    Unavailable,
    /// A target with no room for more.
    OutOfResources,
    /// It is here and has as many sessions as it may: a newcomer takes the place of one that is silent, or gets none.
    AtSessionLimit(TargetAccess),
}

/// How an initiator may log in to a target.
#[derive(Clone, Debug)]
pub struct TargetAccess {
    /// The target.
    pub target: TargetId,
    /// The portal group that the portal belongs to on this target.
    pub portal_group: PortalGroupTag,
    /// What people call the target, if anything; at most 255 bytes.
    pub alias: Option<String>,
    /// How the initiator must prove who it is.
    pub auth: AuthPolicy,
    /// What we agree to.
    pub keys: KeyPolicy,
}

/// What an initiator may do in a discovery session.
#[derive(Clone, Debug)]
pub enum DiscoveryAccess {
    /// Log in.
    Granted {
        /// How it must prove who it is.
        auth: AuthPolicy,
        /// What we agree to.
        keys: KeyPolicy,
    },
    /// Nothing: discovery is not served here.
    NotServed,
    /// Nothing: this initiator must not.
    Forbidden,
}

/// How an initiator must prove who it is, and how we prove who we are.
#[derive(Clone, Debug, Default)]
pub struct AuthPolicy {
    /// Whether it may log in without a proof.
    pub allows_none: bool,
    /// The CHAP algorithms that we take; empty for no CHAP.
    pub chap: Algorithms,
    /// The name and secret by which we prove ourselves if the initiator asks.
    pub own: Option<Credentials>,
}

/// The set of users that a secret is looked up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realm {
    /// Those who may discover.
    Discovery,
    /// Those who may log in to the target.
    Target(TargetId),
}

/// Which session is meant.
#[derive(Clone, Copy, Debug)]
pub struct SessionQuery<'a> {
    /// The initiator.
    pub initiator: &'a IscsiName,
    /// Its half of the identifier.
    pub isid: Isid,
    /// Our half, or [`Tsih::NEW`].
    pub tsih: Tsih,
    /// The target; `None` for a discovery session.
    pub target: Option<TargetId>,
    /// The portal group that the connection came in through. It tells sessions apart when `tsih` is
    /// [`Tsih::NEW`]; otherwise the login compares it with that of the session. Means nothing for discovery.
    pub portal_group: PortalGroupTag,
    /// The connection that wants in.
    pub cid: Cid,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionInfo {
    /// Our half of its identifier.
    pub tsih: Tsih,
    /// The portal group that its connections come in through.
    pub portal_group: PortalGroupTag,
    /// What it agreed on when it began.
    pub parameters: SessionParameters,
    /// How many connections it has.
    pub connections: u16,
    /// Whether one of them has the CID of the query.
    pub has_cid: bool,
}

/// Where a target listens (RFC 7143 §13.8).
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
    /// Its name.
    pub name: IscsiName,
    /// Where it listens, each with its portal group. Empty means: where the question came in, group 1.
    pub addresses: Vec<(TargetAddress, PortalGroupTag)>,
}

impl core::fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Socket(address) => write!(f, "{address}"),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

/// The port that iSCSI targets listen on if none is given (RFC 7143 §13.8).
pub const DEFAULT_PORT: u16 = 3260;

impl TargetAddress {
    /// Reads an address as a target spells it, with its portal group if one is given:
    /// `host[:port][,portal-group]`. `None` when it is not so spelled.
    pub fn parse(text: &[u8]) -> Option<(Self, Option<PortalGroupTag>)> {
        let text = core::str::from_utf8(text).ok()?;
        let (place, group) = match text.split_once(',') {
            Some((place, group)) => (place, Some(PortalGroupTag(digits(group)?))),
            None => (text, None),
        };
        let address = if let Ok(socket) = place.parse::<SocketAddr>() {
            Self::Socket(socket)
        } else if let Some(v6) = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Self::Socket(SocketAddr::new(IpAddr::V6(v6.parse().ok()?), DEFAULT_PORT))
        } else if let Ok(v4) = place.parse::<Ipv4Addr>() {
            Self::Socket(SocketAddr::new(IpAddr::V4(v4), DEFAULT_PORT))
        } else {
            let (name, port) = match place.split_once(':') {
                Some((name, port)) => (name, digits(port)?),
                None => (place, DEFAULT_PORT),
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

/// Reads a decimal number: `parse` alone would take a sign.
fn digits(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The longest host name, in bytes (RFC 1035 §2.3.4).
const MAX_HOST: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and addresses from a target can end in files and commands of the initiator: open-iscsi's CVEs of 2026.
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
