//! RELATIVE TARGET PORT IDENTIFIERs (SAM-5 §4.6.5.2), which stay with their ports for good.
//!
//! Persistent reservations refer to a port by its identifier, also across a loss of power. So an identifier
//! that was assigned once is not assigned to another port while unused ones are left, whatever is added to
//! the configuration or removed. The state directory keeps the identifiers in the file `ports`: text, one
//! port a line, and then a checksum of the lines before it.
//!
//! ```text
//! targe ports 1
//! 1 portal 1 iqn.2001-04.com.example:a
//! 33012 group iqn.2001-04.com.example:a backup
//! 7 lost - -
//! sum 5d41402abc4b2a76b9719d911017c592
//! ```
//!
//! A file that cannot be read is set aside, and every port gets an identifier that no record refers to:
//! reservations and bindings of the former ports hold for ports that are gone. The former identifiers are
//! *lost*: no port gets them again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use device::contract::RelativePort;
use sha2::{Digest, Sha256};

use super::placement;
use crate::config::{Config, HyperScsiService, Target};

const HEAD: &str = "targe ports 1";

/// The highest portal group tag that is used as an identifier. The identifiers of ports for HyperSCSI groups
/// are higher.
const PORTALS_MAX: u16 = *HyperScsiService::PORT_TAGS.start() - 1;

/// A target port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Port {
    /// The port of a target for a portal group: the target's name and the portal group tag.
    Portal(String, u16),
    /// The port of a target for a HyperSCSI group: the target's name and the group's name.
    Group(String, String),
    /// A port that is not known any more, by its identifier.
    Lost(u16),
}

/// Every identifier that was assigned, also to ports that were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetPorts {
    ids: BTreeMap<Port, u16>,
}

/// A file of the state directory is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl TargetPorts {
    /// Returns no ports. No port gets one of these identifiers, which belong to ports that are not known any
    /// more.
    pub(crate) fn without(lost: BTreeSet<u16>) -> Self {
        Self { ids: lost.into_iter().map(|number| (Port::Lost(number), number)).collect() }
    }

    /// Returns every number in the text of a damaged file that can be an identifier.
    pub(crate) fn numbers_in(damaged: &str) -> BTreeSet<u16> {
        damaged.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    }

    /// Assigns identifiers by position, like earlier releases that kept no identifiers, so that reservations
    /// made with those releases stay valid.
    pub(crate) fn positional(config: &Config) -> Self {
        let mut by_name: Vec<&Target> =
            config.targets.iter().filter(|target| shares_a_unit(config, target)).collect();
        by_name.sort_by(|a, b| a.name.cmp(&b.name));
        let of_target = |target: &Target| portals(config, target);
        let shared = by_name.into_iter().flat_map(of_target).zip(1..);
        let alone = config.targets.iter().filter(|target| !shares_a_unit(config, target));
        let alone =
            alone.flat_map(of_target).map(|port| (tag_of(&port), port)).map(|(tag, port)| (port, tag));
        let mut ports = Self { ids: shared.chain(alone).collect() };
        // The identifiers of group ports were derived from the names alone; of two that collided, the later
        // one got the next free identifier.
        let mut by_name: Vec<&Target> = config.targets.iter().collect();
        by_name.sort_by(|a, b| a.name.cmp(&b.name));
        let mut among_sharers = BTreeSet::new();
        for target in by_name {
            let mut of_one = BTreeSet::new();
            let taken = if shares_a_unit(config, target) { &mut among_sharers } else { &mut of_one };
            for port in groups(config, target) {
                let number = free_for_group(&port, |number| taken.contains(&number)).unwrap_or_default();
                taken.insert(number);
                ports.ids.insert(port, number);
            }
        }
        ports
    }

    /// Assigns identifiers to the ports that have none.
    ///
    /// # Errors
    /// A sentence: no identifier is left.
    pub(crate) fn assign(&mut self, config: &Config) -> Result<(), String> {
        let mut by_name: Vec<&Target> = config.targets.iter().collect();
        by_name.sort_by(|a, b| a.name.cmp(&b.name));
        let mut given: BTreeSet<u16> = self.ids.values().copied().collect();
        let mut next = 1;
        for target in &by_name {
            for port in portals(config, target).into_iter().chain(groups(config, target)) {
                if !self.ids.contains_key(&port) {
                    let number = self.free(config, &port, &mut given, &mut next)?;
                    self.ids.insert(port, number);
                }
            }
        }
        self.part(config, &mut given, &mut next)
    }

    /// Assigns other identifiers to ports that have the same identifier and now belong to one unit. In
    /// releases that kept no identifiers, targets that shared no unit could have the same ones. The target
    /// whose name sorts first keeps its own.
    fn part(&mut self, config: &Config, given: &mut BTreeSet<u16>, next: &mut u16) -> Result<(), String> {
        for component in placement::components(config) {
            let mut members: Vec<&Target> =
                component.iter().filter_map(|at| config.targets.get(*at)).collect();
            members.sort_by(|a, b| a.name.cmp(&b.name));
            let mut seen = BTreeSet::new();
            for target in members {
                for port in portals(config, target).into_iter().chain(groups(config, target)) {
                    let known = self.ids.get(&port).copied().unwrap_or_default();
                    if seen.insert(known) {
                        continue;
                    }
                    let number = self.free(config, &port, given, next)?;
                    crate::warning!(
                        "{}: a port has relative port identifier {number} now instead of {known}, which another port \
                         of the same disks uses: reservations registered through it must be registered again",
                        target.name
                    );
                    seen.insert(number);
                    self.ids.insert(port, number);
                }
            }
        }
        Ok(())
    }

    /// Returns an identifier that was never assigned; when there is none, one of a removed port.
    fn free(
        &mut self,
        config: &Config,
        port: &Port,
        given: &mut BTreeSet<u16>,
        next: &mut u16,
    ) -> Result<u16, String> {
        let wanted = match port {
            // A portal's port gets its portal group tag as identifier if that is free, because operators know
            // the tags.
            Port::Portal(_, tag) => Some(*tag).filter(|tag| *tag <= PORTALS_MAX && !given.contains(tag)),
            Port::Group(..) | Port::Lost(_) => free_for_group(port, |number| given.contains(&number)),
        };
        let lowest = || {
            let found = (*next..=u16::MAX).find(|number| !given.contains(number))?;
            *next = found;
            Some(found)
        };
        if let Some(number) = wanted.or_else(lowest) {
            given.insert(number);
            return Ok(number);
        }
        let known: BTreeSet<Port> = config
            .targets
            .iter()
            .flat_map(|target| portals(config, target).into_iter().chain(groups(config, target)))
            .collect();
        let gone = self.ids.keys().find(|port| !known.contains(*port)).cloned();
        gone.and_then(|gone| self.ids.remove(&gone))
            .ok_or_else(|| format!("more than {} target ports", u16::MAX))
    }

    /// Returns the identifiers of a target's ports for portals, by portal group tag.
    pub(crate) fn of_portals(&self, config: &Config, target: &Target) -> BTreeMap<u16, RelativePort> {
        let ports = portals(config, target).into_iter();
        ports.filter_map(|port| Some((tag_of(&port), RelativePort(*self.ids.get(&port)?)))).collect()
    }

    /// Returns the identifiers of a target's ports for HyperSCSI groups, by index of the group.
    pub(crate) fn of_groups(&self, config: &Config, target: &Target) -> BTreeMap<usize, RelativePort> {
        let groups = config.hyperscsi.iter().flat_map(|frames| frames.groups.iter().enumerate());
        groups
            .filter(|(place, _)| target.groups.has(*place))
            .filter_map(|(place, group)| {
                let port = Port::Group(target.name.to_string(), group.name.to_string());
                Some((place, RelativePort(*self.ids.get(&port)?)))
            })
            .collect()
    }

    /// Formats the identifiers as the file stores them.
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for (port, number) in &self.ids {
            // Writing to a string cannot fail.
            let _ = match port {
                Port::Portal(target, tag) => writeln!(text, "{number} portal {tag} {target}"),
                Port::Group(target, group) => writeln!(text, "{number} group {target} {group}"),
                Port::Lost(number) => writeln!(text, "{number} lost - -"),
            };
        }
        let sum = checksum(&text);
        text + &sum
    }

    /// Parses the output of [`Self::encode`].
    ///
    /// # Errors
    /// [`Damaged`]
    pub(crate) fn decode(text: &str) -> Result<Self, Damaged> {
        let (body, last) = text.split_at(text.rfind("sum ").ok_or(Damaged)?);
        let mut lines = body.lines();
        if lines.next() != Some(HEAD) || checksum(body) != last {
            return Err(Damaged);
        }
        let entry = |line: &str| {
            let mut words = line.splitn(4, ' ');
            let number: u16 = words.next()?.parse().ok()?;
            let port = match (words.next()?, words.next()?, words.next()?) {
                ("portal", tag, target) => Port::Portal(target.to_owned(), tag.parse().ok()?),
                ("group", target, group) => Port::Group(target.to_owned(), group.to_owned()),
                ("lost", "-", "-") => Port::Lost(number),
                _ => return None,
            };
            Some((port, number))
        };
        let ids = lines.map(entry).collect::<Option<_>>().ok_or(Damaged)?;
        Ok(Self { ids })
    }
}

/// Returns the last line of a text file of the state directory: the checksum of the lines before it.
pub(super) fn checksum(body: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(body.as_bytes()).into();
    let half = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sum {half}\n")
}

/// Returns a target's ports for portals, in ascending order of their tags.
fn portals(config: &Config, target: &Target) -> Vec<Port> {
    let tags: BTreeSet<u16> =
        target.portals.iter().filter_map(|index| Some(config.portals.get(*index)?.tag)).collect();
    tags.into_iter().map(|tag| Port::Portal(target.name.to_string(), tag)).collect()
}

/// Returns a target's ports for HyperSCSI groups, in order of their names.
fn groups(config: &Config, target: &Target) -> Vec<Port> {
    let groups = config.hyperscsi.iter().flat_map(|frames| frames.groups.iter().enumerate());
    let shown = groups.filter(|(place, _)| target.groups.has(*place));
    let names: BTreeSet<String> = shown.map(|(_, group)| group.name.to_string()).collect();
    names.into_iter().map(|group| Port::Group(target.name.to_string(), group)).collect()
}

fn tag_of(port: &Port) -> u16 {
    match port {
        Port::Portal(_, tag) => *tag,
        Port::Group(..) | Port::Lost(_) => 0,
    }
}

fn shares_a_unit(config: &Config, target: &Target) -> bool {
    let others = || config.targets.iter().filter(|other| other.name != target.name);
    target.luns.iter().any(|lun| others().any(|other| other.luns.iter().any(|o| o.unit == lun.unit)))
}

/// Returns the preferred identifier of a group's port: the FNV-1a hash of both names, or the next identifier
/// that is not taken. Returns `None` for the port of a portal.
fn free_for_group(port: &Port, taken: impl Fn(u16) -> bool) -> Option<u16> {
    let Port::Group(target, group) = port else { return None };
    let bytes = target.bytes().chain([0]).chain(group.bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let folded = u16::try_from((hash >> 16 ^ hash) & 0xffff).unwrap_or_default();
    let first = HyperScsiService::PORT_TAGS.start() | folded;
    let environment =
        (first..=*HyperScsiService::PORT_TAGS.end()).chain(*HyperScsiService::PORT_TAGS.start()..first);
    environment.into_iter().find(|number| !taken(*number))
}

#[cfg(test)]
mod tests;
