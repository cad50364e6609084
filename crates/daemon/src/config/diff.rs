//! The differences between two configurations by portal, target and LUN, which a reload applies.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use iscsi::name::IscsiName;
use security::Level;

use super::resolved::{Config, Http, MappedLun, Medium, Naa, Portal, Target, Unit};

/// The differences between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Settings that take effect at once.
    pub settings: Vec<&'static str>,
    /// Settings that take effect at the next start.
    pub restart: Vec<&'static str>,
    /// Portals that differ, by address.
    pub portals: Vec<(SocketAddr, PortalChange)>,
    /// Targets that differ, by name.
    pub targets: Vec<(IscsiName, TargetChange)>,
}

/// The difference of a portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortalChange {
    /// It is new.
    Added,
    /// It was removed. Connections that it accepted stay open.
    Removed,
    /// Its announced address, name or tag changed.
    Changed,
}

/// The difference of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetChange {
    /// It is new.
    Added,
    /// It was removed: its sessions end.
    Removed,
    /// It changed.
    Changed(TargetDelta),
}

/// The parts of a target that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetDelta {
    /// The access list or the authentication: the access of its sessions is checked again.
    pub access: bool,
    /// The negotiated parameters, the number of sessions, the alias or the portals: applies to new sessions.
    /// Sessions through a portal that no longer serves the target end.
    pub offer: bool,
    /// The limits of each session: applies to existing sessions, too.
    pub limits: bool,
    /// LUNs that differ, by number.
    pub luns: Vec<(u16, LunChange)>,
}

/// The difference of a LUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LunChange {
    /// It is new.
    Added,
    /// It was removed.
    Removed,
    /// The number leads to another unit: another medium, block length or identity.
    Replaced,
    /// The number leads to the same unit with other properties: size, write protection, write cache.
    Changed,
}

impl Changes {
    /// Returns whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Http {
    /// Returns whether one server can become the other while it runs: its token, names and certificates can
    /// change, its address cannot.
    pub(crate) fn has_same_socket(old: &Option<Self>, new: &Option<Self>) -> bool {
        let socket = |http: &Self| (http.listen, http.tls.is_some());
        old.as_ref().map(socket) == new.as_ref().map(socket)
    }
}

impl MappedLun {
    /// Returns whether both show their unit with the same write protection, protection level and groups.
    fn is_shown_as(&self, other: &Self) -> bool {
        (self.read_only, self.protection, self.groups) == (other.read_only, other.protection, other.groups)
    }
}

impl Config {
    /// Returns the differences between `old` and `new`.
    pub fn diff(old: &Self, new: &Self) -> Changes {
        let mut changes = Changes::default();
        let (was, is) = (&old.limits, &new.limits);
        let live = [
            ("log", old.log != new.log),
            ("log_format", old.log_format != new.log_format),
            ("slow_command", old.slow_command != new.slow_command),
            ("discovery", old.discovery_auth != new.discovery_auth),
            ("hyperscsi", old.hyperscsi != new.hyperscsi),
            ("isns", old.isns != new.isns),
            ("max_sessions", old.max_sessions != new.max_sessions),
            ("max_connections", old.max_connections != new.max_connections),
            ("login_timeout", old.login_timeout != new.login_timeout),
            ("queue_depth", was.queue_depth != is.queue_depth),
            ("nop_interval", was.ping_after != is.ping_after),
            ("nop_timeout", was.pong_within != is.pong_within),
            ("nop_idle_timeout", was.idle_within != is.idle_within),
            ("names", old.lenient_names != new.lenient_names),
            ("send_timeout", old.send_timeout != new.send_timeout),
            ("http", Http::has_same_socket(&old.http, &new.http) && old.http != new.http),
        ];
        let fixed = [
            ("state_dir", old.state_dir != new.state_dir),
            ("admin_socket", old.admin_socket != new.admin_socket),
            ("admin_readers", old.admin_readers != new.admin_readers),
            ("reactor", old.reactor != new.reactor),
            ("cores", old.cores != new.cores),
            ("poll", old.poll != new.poll),
            ("look", old.look != new.look),
            ("memory", old.memory != new.memory),
            ("http", !Http::has_same_socket(&old.http, &new.http)),
        ];
        changes.settings.extend(live.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name));
        changes.restart.extend(fixed.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name));
        changes.portals = portals(&old.portals, &new.portals);
        changes.targets = targets(old, new);
        changes
    }

    pub(super) fn unit(&self, lun: &MappedLun) -> Option<&Unit> {
        self.units.get(lun.unit.0)
    }

    /// Returns the LUNs of an access list entry, with the labels of their units instead of indices into this
    /// configuration.
    fn view<'c>(&'c self, luns: &[MappedLun]) -> Vec<(u16, bool, Level, Option<&'c str>)> {
        let label = |lun| self.unit(lun).map(|unit| unit.label.as_str());
        luns.iter().map(|lun| (lun.lun, lun.read_only, lun.protection, label(lun))).collect()
    }
}

fn portals(old: &[Portal], new: &[Portal]) -> Vec<(SocketAddr, PortalChange)> {
    let find = |list: &[Portal], portal: &Portal| list.iter().find(|p| p.listen == portal.listen).cloned();
    let gone = old.iter().filter(|p| find(new, p).is_none()).map(|p| (p.listen, PortalChange::Removed));
    let rest = new.iter().filter_map(|portal| match find(old, portal) {
        None => Some((portal.listen, PortalChange::Added)),
        Some(before) => (before != *portal).then_some((portal.listen, PortalChange::Changed)),
    });
    gone.chain(rest).collect()
}

fn targets(old: &Config, new: &Config) -> Vec<(IscsiName, TargetChange)> {
    let before: BTreeMap<_, _> = old.targets.iter().map(|target| (&target.name, target)).collect();
    let after: BTreeMap<_, _> = new.targets.iter().map(|target| (&target.name, target)).collect();
    let gone = before
        .keys()
        .filter(|name| !after.contains_key(*name))
        .map(|name| ((*name).clone(), TargetChange::Removed));
    let rest = after.iter().filter_map(|(name, target)| match before.get(name) {
        None => Some(((*name).clone(), TargetChange::Added)),
        Some(was) => {
            let delta = target_delta(old, was, new, target);
            (delta != TargetDelta::default()).then(|| ((*name).clone(), TargetChange::Changed(delta)))
        }
    });
    gone.chain(rest).collect()
}

fn target_delta(old: &Config, was: &Target, new: &Config, is: &Target) -> TargetDelta {
    let reached = |config: &Config, target: &Target| -> Vec<Option<SocketAddr>> {
        target.portals.iter().map(|index| config.portals.get(*index).map(|portal| portal.listen)).collect()
    };
    let exported = |config: &Config, target: &Target| -> Vec<_> {
        let groups = config.hyperscsi.iter().flat_map(|frames| &frames.groups).enumerate();
        groups.filter(|(at, _)| target.groups.has(*at)).map(|(_, group)| group.name.clone()).collect()
    };
    let entries = |config: &Config, target: &Target| {
        target.acl.as_ref().map(|acl| {
            let entry = |entry: &super::resolved::AclEntry| {
                let view: Vec<_> = config
                    .view(&entry.luns)
                    .into_iter()
                    .map(|(lun, ro, level, label)| (lun, ro, level, label.map(str::to_owned)))
                    .collect();
                (entry.initiators.clone(), view, entry.auth.clone(), entry.quota)
            };
            acl.iter().map(entry).collect::<Vec<_>>()
        })
    };
    TargetDelta {
        access: was.auth != is.auth
            || exported(old, was) != exported(new, is)
            || entries(old, was) != entries(new, is),
        offer: was.alias != is.alias
            || was.max_sessions != is.max_sessions
            || was.keys != is.keys
            || reached(old, was) != reached(new, is),
        limits: was.limits != is.limits,
        luns: luns(old, was, new, is),
    }
}

fn luns(old: &Config, was: &Target, new: &Config, is: &Target) -> Vec<(u16, LunChange)> {
    let before: BTreeMap<u16, &MappedLun> = was.luns.iter().map(|lun| (lun.lun, lun)).collect();
    let after: BTreeMap<u16, &MappedLun> = is.luns.iter().map(|lun| (lun.lun, lun)).collect();
    let gone = before.keys().filter(|lun| !after.contains_key(lun)).map(|lun| (*lun, LunChange::Removed));
    let rest = after.iter().filter_map(|(number, lun)| {
        let Some(earlier) = before.get(number) else { return Some((*number, LunChange::Added)) };
        let change = match (old.unit(earlier), new.unit(lun)) {
            (Some(a), Some(b)) if a.key() != b.key() => Some(LunChange::Replaced),
            (a, b) if a != b || !earlier.is_shown_as(lun) => Some(LunChange::Changed),
            _ => None,
        };
        change.map(|change| (*number, change))
    });
    gone.chain(rest).collect()
}

/// The identity of a unit across reloads: units with equal keys are one disk to an initiator, and one can be
/// changed into the other without closing the medium.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitKey {
    /// The medium. The size is part of it for memory only, because memory cannot grow without losing its
    /// contents. The image of a disc is not part of it, because the disc of a drive can be replaced.
    medium: String,
    direct: bool,
    thin: bool,
    block_bytes: u32,
    encrypt: Option<PathBuf>,
    naa: Naa,
}

impl Unit {
    /// Returns the unit's key.
    pub(crate) fn key(&self) -> UnitKey {
        let direct = match self.medium {
            Medium::File { direct, .. } | Medium::Block { direct, .. } => direct,
            // The lock of a cartridge that is only read is another one.
            Medium::Tape { .. } => self.read_only,
            Medium::Ram { .. }
            | Medium::Null { .. }
            | Medium::Disc { .. }
            | Medium::Nbd { .. }
            | Medium::VhostUserBlk { .. }
            | Medium::VhostUserScsi { .. }
            | Medium::Sg { .. }
            | Medium::Changer { .. }
            | Medium::LibraryDrive { .. } => false,
        };
        UnitKey {
            medium: match &self.medium {
                Medium::Disc { .. } => "disc".to_owned(),
                medium => medium.to_string(),
            },
            direct,
            thin: self.thin,
            block_bytes: self.block_size.bytes(),
            encrypt: self.encrypt.clone(),
            naa: self.identity.naa,
        }
    }
}

/// Formats one line for the log: `target iqn… changed: access, LUN 2 added; portal 127.0.0.1:3260 removed`.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> =
            self.portals.iter().map(|(at, change)| format!("portal {at} {change}")).collect();
        parts.extend(self.targets.iter().map(|(name, change)| format!("target {name} {change}")));
        parts.extend(self.settings.iter().map(|name| format!("{name} changed")));
        parts.extend(self.restart.iter().map(|name| format!("{name} takes effect at the next start")));
        if parts.is_empty() {
            parts.push("nothing changed".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

impl fmt::Display for PortalChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        })
    }
}

impl fmt::Display for TargetChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delta = match self {
            Self::Added => return f.write_str("added"),
            Self::Removed => return f.write_str("removed"),
            Self::Changed(delta) => delta,
        };
        let mut parts = Vec::new();
        if delta.access {
            parts.push("access".to_owned());
        }
        if delta.offer {
            parts.push("offer".to_owned());
        }
        if delta.limits {
            parts.push("limits".to_owned());
        }
        for (lun, change) in &delta.luns {
            let word = match change {
                LunChange::Added => "added",
                LunChange::Removed => "removed",
                LunChange::Replaced => "replaced",
                LunChange::Changed => "changed",
            };
            parts.push(format!("LUN {lun} {word}"));
        }
        write!(f, "changed: {}", parts.join(", "))
    }
}
