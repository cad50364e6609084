//! Tightening: restricts a configuration by another, without granting anything. A reload that cannot be
//! applied as a whole still withdraws access.
//!
//! Access is withdrawn where the new configuration gives less: a target is removed, an initiator is no longer
//! admitted, a password is added or changed, a disk is no longer shown or becomes read-only, a protection
//! level is raised, a target is no longer exported to a HyperSCSI group. Nothing is granted, and nothing else
//! changes. The HTTP server keeps its rules as a whole: a new token would be a grant.

use std::collections::BTreeSet;

use iscsi::name::MAX_NAME;
use iscsi::negotiate::KeyPolicy;
use shard::config::InitiatorQuota;

use super::names::NamePattern;
use super::resolved::{AclEntry, Auth, Config, GroupSet, HyperScsiService, MappedLun, Medium, Target, Unit};

impl Config {
    /// Returns `self` without the access that `new` withdraws.
    pub(crate) fn tightened(&self, new: &Self) -> Self {
        let mut config = self.clone();
        config.discovery_auth = auth(&self.discovery_auth, &new.discovery_auth);
        for unit in &mut config.units {
            let is_read_only = new.units.iter().any(|other| is_same_disk(unit, other) && other.read_only);
            unit.read_only |= is_read_only && stays_same(unit);
        }
        if let Some(frames) = &mut config.hyperscsi {
            groups(frames, new.hyperscsi.as_ref());
        }
        config.targets.retain(|target| new.targets.iter().any(|other| other.name == target.name));
        let both = Both { old: self, new };
        for target in &mut config.targets {
            if let Some(other) = new.targets.iter().find(|other| other.name == target.name) {
                *target = both.target(target, other);
            }
        }
        config
    }
}

/// Makes the groups require what the new configuration requires of them: the higher protection level and the
/// new password. Groups that were removed stay in the list, but no target is exported to them.
fn groups(frames: &mut HyperScsiService, new: Option<&HyperScsiService>) {
    for group in &mut frames.groups {
        let Some(other) = new.iter().flat_map(|new| &new.groups).find(|other| other.name == group.name)
        else {
            continue;
        };
        group.min_protection = group.min_protection.max(other.min_protection);
        if other.password.is_some() {
            group.password.clone_from(&other.password);
        }
    }
}

fn auth(old: &Auth, new: &Auth) -> Auth {
    match new {
        Auth::None => old.clone(),
        Auth::Required(_) => new.clone(),
    }
}

/// Returns whether two units are the same disk to the operator, whatever their other properties are.
fn is_same_disk(a: &Unit, b: &Unit) -> bool {
    match (a.medium.path(), b.medium.path()) {
        // The identity of a drive does not come from the image in it.
        _ if matches!((&a.medium, &b.medium), (Medium::Disc { .. }, Medium::Disc { .. })) => {
            a.key() == b.key()
        }
        (Some(a), Some(b)) => a == b,
        _ => a.label == b.label,
    }
}

/// Returns whether a unit is still the same one once it is write-protected. A cartridge that is only read has
/// another lock, so that its unit would have to be opened anew: the LUNs are write-protected in its place.
fn stays_same(unit: &Unit) -> bool {
    Unit { read_only: true, ..unit.clone() }.key() == Unit { read_only: false, ..unit.clone() }.key()
}

/// The configuration that is served and the one that could not be applied.
struct Both<'c> {
    old: &'c Config,
    new: &'c Config,
}

impl Both<'_> {
    fn target(&self, old: &Target, new: &Target) -> Target {
        let luns = self.luns(&old.luns, &new.luns);
        let acl = match (&old.acl, &new.acl) {
            (None, None) => None,
            (Some(entries), None) => Some(entries.iter().map(|entry| self.entry(entry, old, new)).collect()),
            (None, Some(entries)) => {
                let (initiators, quota) = (Vec::new(), InitiatorQuota::default());
                let whole = AclEntry { initiators, luns: old.luns.clone(), auth: old.auth.clone(), quota };
                let narrowed = |entry: &AclEntry| AclEntry {
                    initiators: entry.initiators.clone(),
                    luns: self.luns(&whole.luns, &entry.luns),
                    auth: auth(&whole.auth, &entry.auth),
                    quota: entry.quota,
                };
                Some(entries.iter().map(narrowed).collect())
            }
            (Some(was), Some(is)) => Some(self.acl(was, is)),
        };
        Target {
            groups: self.group_set(old.groups, new.groups),
            auth: auth(&old.auth, &new.auth),
            luns,
            acl,
            keys: KeyPolicy {
                min_protection: old.keys.min_protection.max(new.keys.min_protection),
                ..old.keys.clone()
            },
            ..old.clone()
        }
    }

    /// Narrows an entry of an access list to the LUNs that the target shows to every initiator in the new
    /// configuration.
    fn entry(&self, entry: &AclEntry, old: &Target, new: &Target) -> AclEntry {
        // An entry without authentication of its own has the target's; a new password of the target applies
        // to such an entry as well.
        let of_target = if entry.auth == old.auth { &new.auth } else { &entry.auth };
        AclEntry {
            initiators: entry.initiators.clone(),
            luns: self.luns(&entry.luns, &new.luns),
            auth: auth(&entry.auth, of_target),
            quota: entry.quota,
        }
    }

    /// Combines two access lists. In each of them the first entry that fits a name applies.
    fn acl(&self, was: &[AclEntry], is: &[AclEntry]) -> Vec<AclEntry> {
        let narrowed = |initiators: Vec<NamePattern>, old: &AclEntry, new: &AclEntry| AclEntry {
            initiators,
            luns: self.luns(&old.luns, &new.luns),
            auth: auth(&old.auth, &new.auth),
            quota: old.quota,
        };
        if was.iter().map(|entry| &entry.initiators).eq(is.iter().map(|entry| &entry.initiators)) {
            let pairs = was.iter().zip(is);
            return pairs.map(|(old, new)| narrowed(old.initiators.clone(), old, new)).collect();
        }
        let mut rows = Vec::new();
        let mut decided = BTreeSet::new();
        // The pairs of patterns are ordered by both lists. So the first pair that fits a name consists of the
        // two entries that apply to this name.
        for (new_pattern, new) in patterns(is) {
            for (old_pattern, old) in patterns(was) {
                let (common, exact) = match common(old_pattern.as_str(), new_pattern.as_str()) {
                    Common::Nothing => continue,
                    Common::Old => (vec![old_pattern.clone()], true),
                    Common::New => (vec![new_pattern.clone()], true),
                    Common::Part => match intersection(old_pattern.as_str(), new_pattern.as_str()) {
                        Some(common) => (common, true),
                        None => (vec![new_pattern.clone()], false),
                    },
                };
                // A pattern in an earlier row already decides about every name that fits it.
                let fresh: Vec<_> = common.into_iter().filter(|one| decided.insert(one.clone())).collect();
                if fresh.is_empty() {
                    continue;
                }
                let mut row = narrowed(fresh, old, new);
                if !exact {
                    // Too many patterns would be needed to describe the names that fit both: initiators with
                    // a name that fits the new pattern see no LUN.
                    row.luns.clear();
                }
                rows.push(row);
            }
        }
        rows
    }

    /// Returns the LUNs of `old` whose disks `new` shows as well, with the protection of `new`. A disk also
    /// stays if `new` has another disk under its LUN that was not served before: the operator wants to
    /// replace the disk, and a wrong path in the replacement must not withdraw the disk.
    fn luns(&self, old: &[MappedLun], new: &[MappedLun]) -> Vec<MappedLun> {
        let narrowed = |lun: &MappedLun| {
            let unit = self.old.units.get(lun.unit.0)?;
            let shown = |other: &&MappedLun| {
                self.new.units.get(other.unit.0).is_some_and(|other| is_same_disk(unit, other))
            };
            let replaces = |other: &&MappedLun| {
                let is_known = |unit: &Unit| self.old.units.iter().any(|known| is_same_disk(known, unit));
                other.lun == lun.lun && self.new.units.get(other.unit.0).is_some_and(|unit| !is_known(unit))
            };
            let other = new.iter().filter(shown).min_by_key(|other| other.lun != lun.lun);
            let other = other.or_else(|| new.iter().find(replaces))?;
            let is_protected = |other: &Unit| other.read_only && is_same_disk(unit, other);
            let is_protected = !stays_same(unit) && self.new.units.iter().any(is_protected);
            Some(MappedLun {
                read_only: lun.read_only || other.read_only || is_protected,
                protection: lun.protection.max(other.protection),
                groups: self.group_set(lun.groups, other.groups),
                ..*lun
            })
        };
        old.iter().filter_map(narrowed).collect()
    }

    /// Returns the groups of a set whose names are in `new`, a set of the new configuration.
    fn group_set(&self, old: GroupSet, new: GroupSet) -> GroupSet {
        let of = |config: &'_ Config| -> Vec<_> {
            config
                .hyperscsi
                .iter()
                .flat_map(|frames| &frames.groups)
                .map(|group| group.name.clone())
                .collect()
        };
        let (before, after) = (of(self.old), of(self.new));
        let kept = |name| after.iter().position(|other| other == name).is_some_and(|at| new.has(at));
        if old == GroupSet::ALL && before.iter().all(kept) {
            return old;
        }
        let places = before.iter().enumerate().filter(|(at, name)| old.has(*at) && kept(name));
        places.fold(GroupSet::NONE, |set, (at, _)| set.with(at))
    }
}

/// Returns the patterns of an access list in order, each with its entry.
fn patterns(entries: &[AclEntry]) -> impl Iterator<Item = (&NamePattern, &AclEntry)> {
    entries.iter().flat_map(|entry| entry.initiators.iter().map(move |pattern| (pattern, entry)))
}

/// The names that fit both an old and a new pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Common {
    /// No name.
    Nothing,
    /// The names that fit the old pattern.
    Old,
    /// The names that fit the new pattern.
    New,
    /// Some names, which neither of the two patterns describes.
    Part,
}

fn common(old: &str, new: &str) -> Common {
    if covers(old.as_bytes(), new.as_bytes()) {
        Common::New
    } else if covers(new.as_bytes(), old.as_bytes()) {
        Common::Old
    } else if overlap(old.as_bytes(), new.as_bytes()) {
        Common::Part
    } else {
        Common::Nothing
    }
}

/// The most patterns that [`intersection`] returns.
const COMMON_MAX: usize = 64;

/// The most steps that [`intersection`] takes.
const STEPS_MAX: usize = 1 << 16;

/// Returns the patterns that together fit exactly the names that fit both `a` and `b`; `None` if the patterns
/// are too many or too long.
fn intersection(a: &str, b: &str) -> Option<Vec<NamePattern>> {
    let mut found = Intersection { prefix: Vec::new(), patterns: BTreeSet::new(), steps: 0 };
    found.extend(a.as_bytes(), b.as_bytes())?;
    let all: Vec<String> =
        found.patterns.into_iter().map(String::from_utf8).collect::<Result<_, _>>().ok()?;
    let mut patterns = Vec::new();
    for one in &all {
        if all.iter().any(|other| other != one && covers(other.as_bytes(), one.as_bytes())) {
            continue;
        }
        let fixed = one.bytes().filter(|byte| *byte != b'*').count();
        match NamePattern::parse(one) {
            Ok(pattern) => patterns.push(pattern),
            Err(_) if one.len() > MAX_NAME && fixed <= MAX_NAME => return None,
            // No initiator name fits this pattern.
            Err(_) => {}
        }
    }
    Some(patterns)
}

/// A search for the patterns that describe the names that fit two others.
struct Intersection {
    /// The characters that all patterns found from here on begin with.
    prefix: Vec<u8>,
    patterns: BTreeSet<Vec<u8>>,
    steps: usize,
}

impl Intersection {
    /// Adds the patterns for the names that fit both remainders `a` and `b`; `None` if the limits are
    /// exceeded.
    fn extend(&mut self, a: &[u8], b: &[u8]) -> Option<()> {
        self.steps += 1;
        if self.steps > STEPS_MAX || self.patterns.len() > COMMON_MAX {
            return None;
        }
        match (a, b) {
            ([], []) => {
                self.patterns.insert(self.prefix.clone());
            }
            // The characters that one star stands for end within those of the other star.
            ([b'*', rest_a @ ..], [b'*', rest_b @ ..]) => {
                let from = self.prefix.len();
                if self.prefix.last() != Some(&b'*') {
                    self.prefix.push(b'*');
                }
                self.extend(rest_a, b)?;
                self.extend(a, rest_b)?;
                self.prefix.truncate(from);
            }
            // The star stands for no further character, or for the next character of the other pattern.
            ([b'*', rest @ ..], other) | (other, [b'*', rest @ ..]) => {
                self.extend(rest, other)?;
                if let Some((next, others)) = other.split_first() {
                    let star = if matches!(a, [b'*', ..]) { a } else { b };
                    self.prefix.push(*next);
                    self.extend(star, others)?;
                    self.prefix.pop();
                }
            }
            ([x, rest_a @ ..], [y, rest_b @ ..]) if x == y => {
                self.prefix.push(*x);
                self.extend(rest_a, rest_b)?;
                self.prefix.pop();
            }
            _ => {}
        }
        Some(())
    }
}

/// Returns whether every name that fits `inner` fits `outer`. A star in `inner` must be matched by a star in
/// `outer`.
fn covers(outer: &[u8], inner: &[u8]) -> bool {
    if !outer.contains(&b'*') {
        return outer == inner;
    }
    // For each position in `outer`: whether the part of `outer` before it fits the part of `inner` that was
    // read.
    let mut fits = vec![false; outer.len() + 1];
    close(outer, &mut fits, true);
    for byte in inner {
        let mut next = vec![false; outer.len() + 1];
        for (at, have) in outer.iter().enumerate() {
            if fits.get(at) != Some(&true) {
                continue;
            }
            let to = if *have == b'*' {
                at
            } else if have == byte {
                at + 1
            } else {
                continue;
            };
            if let Some(span) = next.get_mut(to) {
                *span = true;
            }
        }
        fits = next;
        close(outer, &mut fits, false);
    }
    fits.last() == Some(&true)
}

/// Skips the stars of a pattern, because a star may stand for no character.
fn close(pattern: &[u8], fits: &mut [bool], from_start: bool) {
    if let (true, Some(first)) = (from_start, fits.first_mut()) {
        *first = true;
    }
    for (at, byte) in pattern.iter().enumerate() {
        if *byte == b'*'
            && fits.get(at) == Some(&true)
            && let Some(next) = fits.get_mut(at + 1)
        {
            *next = true;
        }
    }
}

impl NamePattern {
    /// Returns whether the pattern matches every name that another one matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        covers(self.as_str().as_bytes(), other.as_str().as_bytes())
    }

    /// Returns whether the pattern matches an initiator's name, or has a name in common with another pattern.
    pub fn overlaps(&self, other: &str) -> bool {
        overlap(self.as_str().as_bytes(), other.to_lowercase().as_bytes())
    }
}

/// Returns whether any name fits both patterns.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    if !a.contains(&b'*') && !b.contains(&b'*') {
        return a == b;
    }
    // Computed from the ends of both patterns: for each pair of positions, whether the remainders have a name
    // in common.
    let mut below = vec![false; b.len() + 1];
    for at in (0..=a.len()).rev() {
        let mut row = vec![false; b.len() + 1];
        for to in (0..=b.len()).rev() {
            let (of_a, of_b) = (a.get(at), b.get(to));
            let down = below.get(to) == Some(&true);
            let right = row.get(to + 1) == Some(&true);
            let both = below.get(to + 1) == Some(&true);
            let fits = match (of_a, of_b) {
                (None, None) => true,
                (Some(b'*'), Some(b'*')) => down || right,
                (Some(b'*'), other) => down || (other.is_some() && right),
                (other, Some(b'*')) => right || (other.is_some() && down),
                (Some(x), Some(y)) => x == y && both,
                _ => false,
            };
            if let Some(span) = row.get_mut(to) {
                *span = fits;
            }
        }
        below = row;
    }
    below.first() == Some(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_names_in_common_or_not() {
        for (old, new, expected) in [
            ("iqn.a:x", "iqn.a:x", Common::New),
            ("iqn.a:*", "iqn.a:x", Common::New),
            ("iqn.a:x", "iqn.a:*", Common::Old),
            ("iqn.a:*", "iqn.*", Common::Old),
            ("*", "iqn.a*:b*", Common::New),
            ("iqn.a:x", "iqn.a:y", Common::Nothing),
            ("iqn.a:*x", "iqn.a:*y", Common::Nothing),
            ("iqn.a:*x", "iqn.a:y*", Common::Part),
            ("iqn.a*", "iqn.b*", Common::Nothing),
            ("*a*b", "*b*a*b", Common::New),
            ("a**", "a*", Common::New),
        ] {
            assert_eq!(common(old, new), expected, "{old} {new}");
        }
    }

    #[test]
    fn what_fits_two_patterns_is_said_in_patterns() {
        let told = |a, b| {
            let found = intersection(a, b)?;
            Some(found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        for (a, b, expected) in [
            ("iqn.a:*x", "iqn.a:y*", "iqn.a:y*x"),
            ("iqn.a:*x", "iqn.a:x*", "iqn.a:x iqn.a:x*x"),
            ("iqn.*:db*", "iqn.a:*", "iqn.a:*:db* iqn.a:db*"),
            ("iqn.*ab*", "iqn.*bc*", "iqn.*ab*bc* iqn.*abc* iqn.*bc*ab*"),
        ] {
            assert_eq!(told(a, b).as_deref(), Some(expected), "{a} {b}");
            assert_eq!(told(b, a).as_deref(), Some(expected), "{b} {a}");
        }
        let stars = |text: &str| format!("iqn.*{}", text.repeat(8));
        assert_eq!(told(&stars("a*"), &stars("b*")), None);
    }
}
