//! The configuration of a shard: which targets it serves, and to which initiators. The daemon makes these
//! plain values from its configuration file.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::ether::EtherPort;
use base::state_machine::PortalId;
use device::contract::{Access, RelativePort};
use device::rate_limit::RateLimit;
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::name::GroupName;
use iscsi::chap::Credentials;
use iscsi::login::directory::{AuthPolicy, TargetAddress, TargetId};
use iscsi::name::{IscsiName, PortalGroupTag};
use iscsi::negotiate::KeyPolicy;
use iscsi::target::contract::SessionLimits;
use security::Level;
use security::password_file::PasswordFile;
use target::units::UnitId;

/// The portals of a shard, and its targets.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Every portal through which this shard can be reached.
    pub portals: Vec<Portal>,
    /// Its targets, sorted by name.
    pub targets: Vec<TargetConfig>,
    /// Which initiators may discover targets.
    pub discovery: DiscoveryConfig,
    /// What is served over HyperSCSI.
    pub frames: HyperScsiConfig,
}

/// What a shard serves over HyperSCSI, and to which groups.
#[derive(Clone, Debug, Default)]
pub struct HyperScsiConfig {
    /// The identity of the server, which stays the same whatever port it answers from and after a restart.
    pub instance: [u8; 16],
    /// The top byte of the session identifiers of this shard.
    pub steering: u8,
    /// The groups.
    pub groups: Vec<GroupConfig>,
}

/// A HyperSCSI group: its members know its name, and its password if it has one.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The name of the group.
    pub name: GroupName,
    /// Whether a member must know a password, and which.
    pub access: GroupAccess,
    /// The minimum protection level of everything that members do.
    pub min_level: Level,
    /// The Ethernet ports on which the group is served; `None` for all.
    pub ports: Option<Vec<EtherPort>>,
}

/// Discovery sessions: SendTargets lists the targets to which the requesting initiator may log in.
#[derive(Clone, Debug)]
pub struct DiscoveryConfig {
    /// Whether discovery sessions are accepted at all.
    pub enabled: bool,
    /// How the initiator must authenticate.
    pub auth: AuthConfig,
    /// Which negotiated key values the target accepts.
    pub keys: KeyPolicy,
}

/// How initiators must authenticate, and what they can prove to know.
#[derive(Clone, Debug, Default)]
pub struct AuthConfig {
    /// The methods that are accepted.
    pub policy: AuthPolicy,
    /// The CHAP names and secrets of initiators.
    pub users: Vec<Credentials>,
    /// The password records of users.
    pub passwords: Option<Arc<PasswordFile>>,
}

impl From<AuthPolicy> for AuthConfig {
    /// Returns the configuration without users.
    fn from(policy: AuthPolicy) -> Self {
        Self { policy, users: Vec::new(), passwords: None }
    }
}

/// A network portal (RFC 7143 §2.2, §4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The number of the portal.
    pub id: PortalId,
    /// The portal group: all portals of a group can carry connections of one session.
    pub group: PortalGroupTag,
    /// The address on which the portal listens, if it is one address; `None` for a wildcard.
    pub bound: Option<SocketAddr>,
    /// The address that SendTargets reports. `None` reports the local address of the requesting connection,
    /// which is right unless there is network address translation (NAT) between.
    pub announced: Option<TargetAddress>,
    /// Whether its connections are inside TLS. The number of a portal never means one with TLS and one
    /// without.
    pub tls: bool,
    /// The certificates of its connections, if one must contain the name of its initiator.
    pub certificates: Option<Certificates>,
}

/// The certificates of the connections of a portal.
#[derive(Clone, Debug)]
pub struct Certificates(pub Arc<dyn CertifyInitiators>);

impl PartialEq for Certificates {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Certificates {}

/// Knows the certificates of connections.
pub trait CertifyInitiators: core::fmt::Debug + Send + Sync {
    /// Returns whether the certificate of the connection between these addresses contains the name of an
    /// initiator.
    fn certifies(&self, local: SocketAddr, peer: SocketAddr, initiator: &str) -> bool;
}

/// A target port, as its operator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPortName {
    /// The port of a portal group.
    PortalGroup(PortalGroupTag),
    /// The port of a HyperSCSI group.
    Group(GroupName),
}

/// A target node: which initiators may log in, and which LUNs they see.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The number of the target.
    pub id: TargetId,
    /// The iSCSI name.
    pub name: IscsiName,
    /// `TargetAlias`, if the target has one.
    pub alias: Option<String>,
    /// The portals that serve the target, each with the relative target port identifier of its portal group.
    pub ports: Vec<(PortalId, RelativePort)>,
    /// The LUN map of initiators without a map of their own in `initiators`.
    pub luns: Vec<LunEntry>,
    /// The access control list: which initiators may log in. If it is empty, all may, with the map in `luns`.
    pub initiators: Vec<InitiatorEntry>,
    /// How initiators must authenticate.
    pub auth: AuthConfig,
    /// Which negotiated key values the target accepts.
    pub keys: KeyPolicy,
    /// The most sessions at a time.
    pub sessions_max: u32,
    /// The HyperSCSI groups that the target is exported to, each with the target port of its sessions. These
    /// ports differ: any initiator that knows a group's password can claim any name within the group, so the
    /// same name in two groups must be two I_T nexuses.
    pub groups: Vec<(GroupName, RelativePort)>,
    /// The most commands that a HyperSCSI session may have outstanding.
    pub exchanges: u16,
    /// The limits of each session; `None` for the limits that the shard has for every target.
    pub session_limits: Option<SessionLimits>,
}

/// One row of a LUN map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunEntry {
    /// The LUN, 0 to 16383.
    pub number: u16,
    /// The unit.
    pub unit: UnitId,
    /// The access to the unit.
    pub access: Access,
    /// The minimum protection level with which the unit may be accessed. A session of a lower level does not
    /// see it.
    pub min_level: Level,
    /// The HyperSCSI groups that see the unit, out of those that the target is exported to; `None` for all.
    pub groups: Option<Rc<[GroupName]>>,
}

/// One row of an access control list.
#[derive(Clone, Debug)]
pub struct InitiatorEntry {
    /// The initiator name, or a pattern with `*` for any run of characters.
    pub pattern: Rc<str>,
    /// The LUN map of the initiator; `None` for the target's map.
    pub luns: Option<Vec<LunEntry>>,
    /// How the initiator must authenticate; `None` for as the target says.
    pub auth: Option<AuthConfig>,
    /// What each of these initiators may use of the target.
    pub quota: InitiatorQuota,
}

/// What an initiator may use of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitiatorQuota {
    /// The limit of the rate of its commands, over all its sessions and LUNs.
    pub limit: RateLimit,
    /// The most sessions at a time; `None` for as many as the target accepts.
    pub sessions_max: Option<u32>,
}

impl LunEntry {
    /// Makes a row that all initiators of the target see.
    pub const fn new(number: u16, unit: UnitId, access: Access) -> Self {
        Self { number, unit, access, min_level: Level::None, groups: None }
    }
}

impl TargetConfig {
    /// Returns whether `initiator` may log in, and the row that admits it: the first whose pattern matches.
    pub fn admit(&self, initiator: &str) -> Admission<'_> {
        if self.initiators.is_empty() {
            return Admission::Everyone;
        }
        match self.initiators.iter().find(|entry| matches_pattern(&entry.pattern, initiator)) {
            Some(entry) => Admission::Row(entry),
            None => Admission::Refused,
        }
    }

    /// Returns the LUN map of `initiator`; empty if it may not log in.
    pub fn luns_of(&self, initiator: &str) -> &[LunEntry] {
        match self.admit(initiator) {
            Admission::Refused => &[],
            Admission::Row(InitiatorEntry { luns: Some(own), .. }) => own,
            Admission::Everyone | Admission::Row(_) => &self.luns,
        }
    }

    /// Returns what `initiator` may use of the target.
    pub fn quota_of(&self, initiator: &str) -> InitiatorQuota {
        match self.admit(initiator) {
            Admission::Row(row) => row.quota,
            Admission::Everyone | Admission::Refused => InitiatorQuota::default(),
        }
    }

    /// Returns how `initiator` must authenticate.
    pub fn auth_of(&self, initiator: &str) -> &AuthConfig {
        match self.admit(initiator) {
            Admission::Row(InitiatorEntry { auth: Some(own), .. }) => own,
            _ => &self.auth,
        }
    }

    /// Returns the port that serves this target to a group; `None` if the target is not exported to the
    /// group.
    pub fn port_of(&self, group: &GroupName) -> Option<RelativePort> {
        self.groups.iter().find(|(known, _)| known == group).map(|(_, port)| *port)
    }

    /// Returns the port that serves this target through `portal`; `None` if the portal does not serve it.
    pub fn port_at(&self, portal: PortalId) -> Option<RelativePort> {
        self.ports.iter().find(|(id, _)| *id == portal).map(|(_, port)| *port)
    }
}

/// The result of the access control list for an initiator.
#[derive(Clone, Copy, Debug)]
pub enum Admission<'a> {
    /// The target has no access control list.
    Everyone,
    /// This row admits the initiator.
    Row(&'a InitiatorEntry),
    /// No row matches the initiator.
    Refused,
}

/// Returns whether `text` matches `pattern`, where `*` stands for any run of characters. The time is linear
/// in the length of each: after the first star, only the latest one is ever retried.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.as_bytes(), text.as_bytes());
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern.split_first(), text.split_first()) {
            (Some((b'*', rest)), _) => {
                retry = Some((rest, text));
                pattern = rest;
            }
            (Some((want, rest)), Some((have, tail))) if want == have => (pattern, text) = (rest, tail),
            (None, None) => return true,
            _ => match retry.take() {
                Some((rest, at)) if !at.is_empty() => {
                    let tail = at.get(1..).unwrap_or_default();
                    retry = Some((rest, tail));
                    (pattern, text) = (rest, tail);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use iscsi::chap::Secret;

    #[test]
    fn patterns_match_with_stars_anywhere() {
        for (pattern, text, expected) in [
            ("iqn.2026-11.org.x:a", "iqn.2026-11.org.x:a", true),
            ("iqn.2026-11.org.x:a", "iqn.2026-11.org.x:ab", false),
            ("iqn.*", "iqn.2026-11.org.x:a", true),
            ("*", "", true),
            ("*:guest*", "iqn.2026-11.org.x:guest7", true),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbxc", false),
            ("", "a", false),
            ("a*", "b", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }

    fn target(initiators: Vec<InitiatorEntry>) -> TargetConfig {
        TargetConfig {
            id: TargetId(0),
            name: "iqn.2026-11.org.targe:t".parse().unwrap(),
            alias: None,
            ports: vec![(PortalId(0), RelativePort(1))],
            luns: vec![LunEntry::new(0, UnitId(0), Access::ReadWrite)],
            groups: vec![],
            exchanges: 128,
            initiators,
            auth: AuthConfig::default(),
            keys: KeyPolicy::default(),
            sessions_max: 8,
            session_limits: None,
        }
    }

    #[test]
    fn an_empty_list_admits_everyone_with_the_target_s_map() {
        let target = target(vec![]);
        assert!(matches!(target.admit("iqn.any"), Admission::Everyone));
        assert_eq!(target.luns_of("iqn.any").len(), 1);
    }

    #[test]
    fn a_list_admits_only_who_it_names_and_the_first_match_counts() {
        let own = vec![LunEntry::new(5, UnitId(9), Access::ReadOnly)];
        let target = target(vec![
            InitiatorEntry {
                pattern: "iqn.a:*".into(),
                luns: Some(own.clone()),
                auth: None,
                quota: InitiatorQuota::default(),
            },
            InitiatorEntry {
                pattern: "iqn.a:b".into(),
                luns: None,
                auth: None,
                quota: InitiatorQuota::default(),
            },
        ]);
        assert_eq!(target.luns_of("iqn.a:b"), own);
        assert!(matches!(target.admit("iqn.b:a"), Admission::Refused));
        assert!(target.luns_of("iqn.b:a").is_empty());
    }

    #[test]
    fn a_row_has_its_own_authentication_and_quota() {
        let own = AuthConfig {
            users: vec![Credentials {
                name: "me".into(),
                secret: Secret::new(b"correct-horse-battery").unwrap(),
            }],
            ..AuthConfig::default()
        };
        let quota = InitiatorQuota { sessions_max: Some(2), ..InitiatorQuota::default() };
        let row = |pattern: &str, auth| InitiatorEntry { pattern: pattern.into(), luns: None, auth, quota };
        let target = target(vec![row("iqn.a", Some(own)), row("iqn.b", None)]);
        let users = |initiator| target.auth_of(initiator).users.len();
        assert_eq!((users("iqn.a"), users("iqn.b"), users("iqn.c")), (1, 0, 0));
        assert_eq!((target.quota_of("iqn.b"), target.quota_of("iqn.c")), (quota, InitiatorQuota::default()));
    }

    #[test]
    fn each_group_has_its_own_port_and_others_have_none() {
        let group = |name: &str| GroupName::new(name).unwrap();
        let mut target = target(vec![]);
        target.groups = vec![(group("red"), RelativePort(7)), (group("blue"), RelativePort(8))];
        let ports = ["red", "blue", "green"].map(|name| target.port_of(&group(name)));
        assert_eq!(ports, [Some(RelativePort(7)), Some(RelativePort(8)), None]);
    }
}
