//! What a configuration takes away of what another allows. A reload that cannot be applied as a whole still takes away.
//!
//! Access is taken away where the new configuration gives less: a target that is gone, an initiator that is let in no more, a
//! password where there was none or another one, a disk that is shown no more or to be read only, a higher level of
//! protection, a HyperSCSI group that sees a target no more. Nothing is given, and nothing else changes.

use std::collections::BTreeSet;

use iscsi::name::MAX_NAME;

use super::names::NamePattern;
use super::resolved::{AclEntry, Auth, Config, GroupSet, HyperScsiService, MappedLun, Target, Unit};

impl Config {
    /// Returns `self` without what `new` takes away.
    pub(crate) fn tightened(&self, new: &Self) -> Self {
        let mut config = self.clone();
        config.discovery_auth = auth(&self.discovery_auth, &new.discovery_auth);
        for unit in &mut config.units {
            unit.read_only |= new.units.iter().any(|other| is_same_disk(unit, other) && other.read_only);
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

/// Makes the groups ask for what they are to ask for. Groups that are gone stay in the list, and no target is exported to them.
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
        Auth::Chap(_) => new.clone(),
    }
}

/// Returns whether two units are the same disk to the operator, whatever else changes about it.
fn is_same_disk(a: &Unit, b: &Unit) -> bool {
    match (a.medium.path(), b.medium.path()) {
        (Some(a), Some(b)) => a == b,
        _ => a.label == b.label,
    }
}

/// Two configurations.
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
                let whole =
                    AclEntry { initiators: Vec::new(), luns: old.luns.clone(), auth: old.auth.clone() };
                let narrowed = |entry: &AclEntry| AclEntry {
                    initiators: entry.initiators.clone(),
                    luns: self.luns(&whole.luns, &entry.luns),
                    auth: auth(&whole.auth, &entry.auth),
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
            ..old.clone()
        }
    }

    /// Narrows an entry of an access list to what everyone is shown now.
    fn entry(&self, entry: &AclEntry, old: &Target, new: &Target) -> AclEntry {
        // An entry that says nothing of its own has the target's; a new password of the target is meant for it as well.
        let of_target = if entry.auth == old.auth { &new.auth } else { &entry.auth };
        AclEntry {
            initiators: entry.initiators.clone(),
            luns: self.luns(&entry.luns, &new.luns),
            auth: auth(&entry.auth, of_target),
        }
    }

    /// Combines two access lists, in each of which the first entry that fits a name counts.
    fn acl(&self, was: &[AclEntry], is: &[AclEntry]) -> Vec<AclEntry> {
        let narrowed = |initiators: Vec<NamePattern>, old: &AclEntry, new: &AclEntry| AclEntry {
            initiators,
            luns: self.luns(&old.luns, &new.luns),
            auth: auth(&old.auth, &new.auth),
        };
        if was.iter().map(|entry| &entry.initiators).eq(is.iter().map(|entry| &entry.initiators)) {
            let pairs = was.iter().zip(is);
            return pairs.map(|(old, new)| narrowed(old.initiators.clone(), old, new)).collect();
        }
        let mut rows = Vec::new();
        let mut decided = BTreeSet::new();
        // In the pairs of patterns, by the order of both, the first that fits a name is the pair of those that count.
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
                // A pattern that stands in an earlier row decides already about every name that fits it.
                let fresh: Vec<_> = common.into_iter().filter(|one| decided.insert(one.clone())).collect();
                if fresh.is_empty() {
                    continue;
                }
                let mut row = narrowed(fresh, old, new);
                if !exact {
                    // Which names fit both takes too many patterns to say: none of them sees anything.
                    row.luns.clear();
                }
                rows.push(row);
            }
        }
        rows
    }

    /// Returns the LUNs of `old` whose disks `new` shows as well, as `new` protects them. A disk stays where `new` has another in
    /// its place that was served nowhere: it is to be replaced, and that a wrong path cannot be replaced by takes it from nobody.
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
            Some(MappedLun {
                read_only: lun.read_only || other.read_only,
                protection: lun.protection.max(other.protection),
                groups: self.group_set(lun.groups, other.groups),
                ..*lun
            })
        };
        old.iter().filter_map(narrowed).collect()
    }

    /// Returns the groups of a set whose names are in another set of the new configuration.
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

/// Which names fit two patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Common {
    /// None.
    Nothing,
    /// Those that fit the old one.
    Old,
    /// Those that fit the new one.
    New,
    /// Some that no pattern describes.
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

/// The most patterns that [`intersection`] gives.
const COMMON_MAX: usize = 64;

/// The most steps that [`intersection`] takes.
const STEPS_MAX: usize = 1 << 16;

/// Returns the patterns that together fit exactly the names that fit both; `None` if they are too many or too long.
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
            // No initiator has such a name.
            Err(_) => {}
        }
    }
    Some(patterns)
}

/// A search for the patterns that describe what fits two others.
struct Intersection {
    /// What every pattern begins with that is found from here on.
    prefix: Vec<u8>,
    patterns: BTreeSet<Vec<u8>>,
    steps: usize,
}

impl Intersection {
    /// Adds the patterns of what fits both rests; `None` if that is too much.
    fn extend(&mut self, a: &[u8], b: &[u8]) -> Option<()> {
        self.steps += 1;
        if self.steps > STEPS_MAX || self.patterns.len() > COMMON_MAX {
            return None;
        }
        match (a, b) {
            ([], []) => {
                self.patterns.insert(self.prefix.clone());
            }
            // The run of one star ends within that of the other.
            ([b'*', rest_a @ ..], [b'*', rest_b @ ..]) => {
                let from = self.prefix.len();
                if self.prefix.last() != Some(&b'*') {
                    self.prefix.push(b'*');
                }
                self.extend(rest_a, b)?;
                self.extend(a, rest_b)?;
                self.prefix.truncate(from);
            }
            // The run of the star ends here, or goes on with a character of the other.
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

/// Returns whether every name that fits `inner` fits `outer`: where `inner` has any run of characters, `outer` must too.
fn covers(outer: &[u8], inner: &[u8]) -> bool {
    if !outer.contains(&b'*') {
        return outer == inner;
    }
    // By the place in `outer`: whether it fits what was seen of `inner`.
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

/// Passes over the stars of a pattern, which may stand for nothing.
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

/// Returns whether any name fits both.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    if !a.contains(&b'*') && !b.contains(&b'*') {
        return a == b;
    }
    // From the ends: whether the rests of both from these places have a name in common.
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
