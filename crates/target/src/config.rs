//! What a shard serves, to whom: plain values that the daemon makes from its configuration file.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;

use base::ether::EtherPort;
use base::state_machine::PortalId;
use device::contract::{Access, RelativePort};
use hyperscsi::aead::Level;
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::name::GroupName;
use iscsi::chap::Credentials;
use iscsi::login::directory::{AuthPolicy, TargetAddress, TargetId};
use iscsi::name::{IscsiName, PortalGroupTag};
use iscsi::negotiate::KeyPolicy;
use iscsi::target::engine::SessionLimits;

/// A logical unit, as the daemon numbers it. An unchanged unit keeps its number across a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

/// Names a disk across reloads: units with equal names hold the same data for an initiator, others do not. A disk that is taken out
/// and comes back has the name that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u64);

impl DiskId {
    /// A disk that never changes under its number.
    pub const fn of_unit(unit: UnitId) -> Self {
        Self(1 << 63 | unit.0 as u64)
    }
}

/// Where a shard listens and what it serves there.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Every portal through which this shard can be reached.
    pub portals: Vec<Portal>,
    /// Its targets, sorted by name.
    pub targets: Vec<TargetConfig>,
    /// Who may ask for targets.
    pub discovery: DiscoveryConfig,
    /// What is served by HyperSCSI.
    pub frames: HyperScsiConfig,
}

/// What a shard serves by HyperSCSI, and to whom.
#[derive(Clone, Debug, Default)]
pub struct HyperScsiConfig {
    /// What the server is recognized by, from one of its addresses to the next and from one start to the next.
    pub instance: [u8; 16],
    /// The top byte of the names of its sessions.
    pub steering: u8,
    /// The groups.
    pub groups: Vec<GroupConfig>,
}

/// Those who know a group's name, and its password if it has one.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Its name.
    pub name: GroupName,
    /// What its members must know besides.
    pub access: GroupAccess,
    /// The least protection of whatever they do.
    pub min_level: Level,
    /// The ports on which it is heard; `None` for all.
    pub ports: Option<Vec<EtherPort>>,
}

/// Discovery sessions: SendTargets lists what the asking initiator may log in to.
#[derive(Clone, Debug)]
pub struct DiscoveryConfig {
    /// Whether they are served at all.
    pub enabled: bool,
    /// How the initiator must prove who it is.
    pub auth: AuthPolicy,
    /// Who may prove what.
    pub users: Vec<Credentials>,
    /// What we agree to.
    pub keys: KeyPolicy,
}

/// A network portal (RFC 7143 §2.2, §4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Its number.
    pub id: PortalId,
    /// The portal group it belongs to: all portals of a group can carry connections of one session.
    pub group: PortalGroupTag,
    /// The address it listens on, when that names one interface; `None` for a wildcard.
    pub bound: Option<core::net::SocketAddr>,
    /// What SendTargets says about it; `None` announces the address that the asking connection arrived at, which
    /// is right unless an address translator stands between.
    pub announced: Option<TargetAddress>,
}

/// A target node: who may log in, and what they see.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Its number.
    pub id: TargetId,
    /// Its iSCSI name.
    pub name: IscsiName,
    /// `TargetAlias`, if it has one.
    pub alias: Option<String>,
    /// The portals that serve it, with the relative port identifier of the target port that each portal group makes.
    pub ports: Vec<(PortalId, RelativePort)>,
    /// The LUN map of an initiator whose row has none of its own.
    pub luns: Vec<LunEntry>,
    /// Who may log in. Empty: everyone, with the map above.
    pub initiators: Vec<InitiatorEntry>,
    /// How initiators must prove who they are.
    pub auth: AuthPolicy,
    /// Who may prove what.
    pub users: Vec<Credentials>,
    /// What we agree to.
    pub keys: KeyPolicy,
    /// The most sessions at a time.
    pub sessions_max: u32,
    /// The HyperSCSI groups that it is exported to, each with the target port that its sessions come through. These ports
    /// differ: initiators are known by names that they claim among those who know the group's password, so that the same
    /// name in two groups must be two nexuses.
    pub groups: Vec<(GroupName, RelativePort)>,
    /// How many commands a HyperSCSI session may have under way.
    pub exchanges: u16,
    /// The limits of each session; `None` for those that the shard has for every target.
    pub session_limits: Option<SessionLimits>,
}

/// One row of a LUN map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunEntry {
    /// The number under which the unit appears: 0..=16383.
    pub number: u16,
    /// The unit.
    pub unit: UnitId,
    /// What may be done with it.
    pub access: Access,
    /// The least protection with which it is reached. iSCSI has none that counts, so what needs some is not seen there.
    pub min_level: Level,
    /// The HyperSCSI groups that see it, of those that the target is exported to; `None` for all.
    pub groups: Option<Rc<[GroupName]>>,
}

/// One row of an access control list.
#[derive(Clone, Debug)]
pub struct InitiatorEntry {
    /// The initiator name, or a pattern with `*` for any run of characters.
    pub pattern: Rc<str>,
    /// What it sees; `None` for the target's own map.
    pub luns: Option<Vec<LunEntry>>,
    /// How it must prove who it is, and who may; `None` for what the target asks of everyone.
    pub auth: Option<(AuthPolicy, Vec<Credentials>)>,
}

impl LunEntry {
    /// Shows a unit to everyone who reaches the target.
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

    /// Returns the LUN map of `initiator`; empty when it may not log in.
    pub fn luns_of(&self, initiator: &str) -> &[LunEntry] {
        match self.admit(initiator) {
            Admission::Refused => &[],
            Admission::Row(InitiatorEntry { luns: Some(own), .. }) => own,
            Admission::Everyone | Admission::Row(_) => &self.luns,
        }
    }

    /// Returns how `initiator` must prove who it is, and who may.
    pub fn auth_of(&self, initiator: &str) -> (&AuthPolicy, &[Credentials]) {
        match self.admit(initiator) {
            Admission::Row(InitiatorEntry { auth: Some((policy, users)), .. }) => (policy, users),
            _ => (&self.auth, &self.users),
        }
    }

    /// Returns the port that serves this target to a group; `None` if it is not exported to it.
    pub fn port_of(&self, group: &GroupName) -> Option<RelativePort> {
        self.groups.iter().find(|(known, _)| known == group).map(|(_, port)| *port)
    }

    /// Returns the port that serves this target through `portal`.
    pub fn port_at(&self, portal: PortalId) -> Option<RelativePort> {
        self.ports.iter().find(|(id, _)| *id == portal).map(|(_, port)| *port)
    }
}

/// What an access control list says about an initiator.
#[derive(Clone, Copy, Debug)]
pub enum Admission<'a> {
    /// There is no list.
    Everyone,
    /// This row admits it.
    Row(&'a InitiatorEntry),
    /// No row names it.
    Refused,
}

/// Returns whether `text` matches `pattern`, where `*` stands for any run of characters. Linear in both: after the first
/// star only the latest one is ever retried.
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
            auth: AuthPolicy::default(),
            users: vec![],
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
            InitiatorEntry { pattern: "iqn.a:*".into(), luns: Some(own.clone()), auth: None },
            InitiatorEntry { pattern: "iqn.a:b".into(), luns: None, auth: None },
        ]);
        assert_eq!(target.luns_of("iqn.a:b"), own);
        assert!(matches!(target.admit("iqn.b:a"), Admission::Refused));
        assert!(target.luns_of("iqn.b:a").is_empty());
    }
}
