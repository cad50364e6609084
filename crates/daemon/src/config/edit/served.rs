//! The check that an edit changes what hosts find only where the operator named it.
//!
//! It compares the resolved configurations before and after the edit: target by target, LUN by LUN, and what
//! each initiator may access. What the operator sees refused here would have given a host another disk.

use std::collections::{BTreeMap, BTreeSet};

use security::Level;
use shard::config::InitiatorQuota;

use super::{AuthPlace, Edit, access, luns, target_index};
use crate::config::names::NamePattern;
use crate::config::resolved::{AclEntry, Auth, Config, GroupSet, LunNumbers, MappedLun, Target, Unit};

/// Checks that the new configuration serves what the old one does, except for what the edits name: one edit,
/// or several of the access of initiators to one target.
///
/// # Errors
/// A sentence that says what else would change.
pub(super) fn check(before: &Config, after: &Config, edits: &[Edit]) -> Result<(), String> {
    let named = Named::of_all(edits, before, after);
    let both = Both { before, after, named: &named };
    for was in &before.targets {
        let is = after.targets.iter().find(|is| is.name == was.name);
        match (is, named.is_target(was)) {
            (None, true) if named.whole => {}
            (None, _) => return Err(refusal(&format!("target {}", was.name))),
            (Some(is), true) => both.named_target(was, is)?,
            (Some(is), false) => both.other_target(was, is)?,
        }
    }
    let is_new = |target: &&Target| before.targets.iter().all(|known| known.name != target.name);
    if let Some(target) = after
        .targets
        .iter()
        .filter(is_new)
        .find(|target| !named.is_target(target) && named.renamed.as_deref() != Some(target.name.as_str()))
    {
        return Err(refusal(&format!("target {}", target.name)));
    }
    if rest(before, named.discovery) != rest(after, named.discovery) {
        return Err(refusal("a setting that is not part of a target"));
    }
    Ok(())
}

fn refusal(what: &str) -> String {
    format!("the edit would also change {what}; nothing was changed, edit the file by hand")
}

/// Returns a configuration without its targets, and without what an edit of the discovery may change.
fn rest(config: &Config, discovery: bool) -> Config {
    let auth = if discovery { Auth::None } else { config.discovery_auth.clone() };
    let (targets, units, unexported) = (Vec::new(), Vec::new(), Vec::new());
    Config { targets, units, unexported, discovery_auth: auth, ..config.clone() }
}

/// What an edit names.
#[derive(Default)]
struct Named {
    /// The target.
    target: Option<String>,
    /// The new name of the target.
    renamed: Option<String>,
    /// Whether the target as a whole comes or goes.
    whole: bool,
    /// Whether the settings of the target change.
    settings: bool,
    /// The numbers of the LUN before and after the edit.
    luns: [BTreeSet<u16>; 2],
    /// Whether the access of the initiators changes.
    access: bool,
    /// The initiators whose access changes; `None` for every initiator.
    initiators: Option<Vec<NamePattern>>,
    /// Whether the authentication of discovery sessions changes.
    discovery: bool,
}

impl Named {
    fn of_all(edits: &[Edit], before: &Config, after: &Config) -> Self {
        let mut all = edits.iter().map(|edit| Self::of(edit, before, after));
        let first = all.next().unwrap_or_default();
        all.fold(first, |known, next| Self {
            initiators: known.initiators.zip(next.initiators).map(|(known, next)| [known, next].concat()),
            ..known
        })
    }

    fn of(edit: &Edit, before: &Config, after: &Config) -> Self {
        let target = |name: &str| Self {
            target: Some(
                target_index(before, name)
                    .ok()
                    .and_then(|at| before.targets.get(at))
                    .map_or_else(|| name.to_lowercase(), |target| target.name.to_string()),
            ),
            ..Self::default()
        };
        let patterns = |words: &mut dyn Iterator<Item = &str>| {
            words.flat_map(|word| access::patterns(word, &before.groups)).collect::<Vec<_>>()
        };
        match edit {
            Edit::AddTarget { name, .. } | Edit::ReplaceTarget { name, .. } | Edit::RemoveTarget { name } => {
                Self { whole: true, ..target(name) }
            }
            Edit::SetTarget { name, settings } => {
                let renamed = settings.iter().rfind(|(key, _)| key == "name");
                let renamed = renamed.map(|(_, name)| name.to_lowercase());
                Self { whole: renamed.is_some(), renamed, settings: true, ..target(name) }
            }
            Edit::AddLun { target: name, .. } | Edit::CloneLun { to: name, .. } => {
                let new = numbers(after, name).and_then(<[LunNumbers]>::last);
                Self { luns: [BTreeSet::new(), all(new)], ..target(name) }
            }
            Edit::SetLun { target: name, lun, .. } => {
                let at = numbers(before, name).and_then(|tables| luns::index(tables, *lun).ok());
                let of = |config| all(numbers(config, name).zip(at).and_then(|(tables, at)| tables.get(at)));
                Self { luns: [of(before), of(after)], ..target(name) }
            }
            Edit::RemoveLun { target: name, lun } => {
                let tables = numbers(before, name).unwrap_or_default();
                let at = luns::index(tables, *lun).ok();
                Self { luns: [all(at.and_then(|at| tables.get(at))), BTreeSet::new()], ..target(name) }
            }
            Edit::AddAcl { target: name, initiators, .. } => {
                let mut words = initiators.iter().map(String::as_str);
                Self { access: true, initiators: Some(patterns(&mut words)), ..target(name) }
            }
            Edit::SetAcl { target: name, initiator, settings } => {
                let new = settings.iter().filter(|(key, _)| key == "initiators");
                let new = new.flat_map(|(_, words)| words.split([',', ' ']));
                let initiators = Some(patterns(&mut new.chain([initiator.as_str()])));
                Self { access: true, initiators, ..target(name) }
            }
            Edit::RemoveAcl { target: name, initiator, .. } => {
                let initiators = Some(patterns(&mut [initiator.as_str()].into_iter()));
                Self { access: true, initiators, ..target(name) }
            }
            Edit::AddUser { place, .. }
            | Edit::AddPasswordFile { place, .. }
            | Edit::SetUser { place, .. }
            | Edit::RemoveUser { place, .. } => match place {
                AuthPlace::Discovery => Self { discovery: true, ..Self::default() },
                AuthPlace::Target(name) => Self { access: true, ..target(name) },
                AuthPlace::Initiator(name, initiator) => {
                    let initiators = Some(patterns(&mut [initiator.as_str()].into_iter()));
                    Self { access: true, initiators, ..target(name) }
                }
            },
        }
    }

    fn is_target(&self, target: &Target) -> bool {
        self.target.as_deref() == Some(target.name.as_str())
    }
}

/// Returns the numbers of the LUN tables of a target.
fn numbers<'c>(config: &'c Config, name: &str) -> Option<&'c [LunNumbers]> {
    let at = target_index(config, name).ok()?;
    config.targets.get(at).map(|target| target.numbers.as_slice())
}

fn all(table: Option<&LunNumbers>) -> BTreeSet<u16> {
    table.into_iter().flat_map(LunNumbers::all).collect()
}

/// A LUN as hosts find it.
#[derive(PartialEq)]
struct Shown<'c> {
    unit: &'c Unit,
    read_only: bool,
    protection: Level,
    groups: GroupSet,
}

fn shown<'c>(config: &'c Config, lun: &MappedLun) -> Option<Shown<'c>> {
    let unit = config.units.get(lun.unit.0)?;
    let MappedLun { read_only, protection, groups, .. } = *lun;
    Some(Shown { unit, read_only, protection, groups })
}

/// What an initiator may access: its LUNs by number, its authentication, and what it may use.
type Access<'c> = (BTreeMap<u16, Option<Shown<'c>>>, &'c Auth, InitiatorQuota);

/// The configurations before and after an edit.
struct Both<'c> {
    before: &'c Config,
    after: &'c Config,
    named: &'c Named,
}

impl Both<'_> {
    /// Compares a target that the edit does not name.
    fn other_target(&self, was: &Target, is: &Target) -> Result<(), String> {
        let nothing = [BTreeSet::new(), BTreeSet::new()];
        self.luns(was, is, &nothing)?;
        self.all_access(was, is, &nothing, &[])?;
        if settings(was) != settings(is) || was.auth != is.auth {
            return Err(refusal(&format!("target {}", was.name)));
        }
        Ok(())
    }

    /// Compares the target that the edit names.
    fn named_target(&self, was: &Target, is: &Target) -> Result<(), String> {
        let named = self.named;
        if named.whole {
            return Ok(());
        }
        self.luns(was, is, &named.luns)?;
        match (named.access, &named.initiators) {
            (false, _) if named.settings => {}
            (false, _) => self.all_access(was, is, &named.luns, &[])?,
            // The first entry of an access list excludes everybody else, and the last one admits everybody.
            (true, Some(initiators)) if was.acl.is_some() == is.acl.is_some() => {
                self.all_access(was, is, &named.luns, initiators)?;
            }
            (true, _) => {}
        }
        let same_auth = was.auth == is.auth || named.access && named.initiators.is_none();
        if !named.settings && (settings(was) != settings(is) || !same_auth) {
            return Err(refusal(&format!("other keys of target {}", was.name)));
        }
        Ok(())
    }

    /// Compares the LUNs of a target, except those that the edit names.
    fn luns(&self, was: &Target, is: &Target, named: &[BTreeSet<u16>; 2]) -> Result<(), String> {
        let before = served(self.before, &was.luns, |lun| !named[0].contains(&lun.lun));
        let after = served(self.after, &is.luns, |lun| !named[1].contains(&lun.lun));
        for number in before.keys().chain(after.keys()) {
            if before.get(number) != after.get(number) {
                let shown = before.get(number).or(after.get(number)).and_then(Option::as_ref);
                let medium = shown.map_or_else(String::new, |shown| format!(" ({})", shown.unit.medium));
                return Err(format!(
                    "the edit would also change LUN {number}{medium} of {}; nothing was changed. Give every LUN of the \
                     target a \"lun\", and every library a \"drive_lun\", and try again",
                    was.name
                ));
            }
        }
        Ok(())
    }

    /// Compares the access of every initiator except those that the edit names.
    fn all_access(
        &self,
        was: &Target,
        is: &Target,
        luns: &[BTreeSet<u16>; 2],
        named: &[NamePattern],
    ) -> Result<(), String> {
        let patterns = |target: &Target| -> BTreeSet<NamePattern> {
            target.acl.iter().flatten().flat_map(|entry| entry.initiators.clone()).collect()
        };
        for pattern in patterns(was).union(&patterns(is)) {
            // Two names that fit the pattern.
            for star in ["", "0"] {
                let name = pattern.as_str().replace('*', star);
                if named.iter().any(|named| named.overlaps(&name)) {
                    continue;
                }
                let before = access(self.before, was, &name, &luns[0]);
                let after = access(self.after, is, &name, &luns[1]);
                if before != after {
                    return Err(refusal(&format!("the access of \"{name}\" to {}", was.name)));
                }
            }
        }
        Ok(())
    }
}

/// Returns some of the LUNs by their numbers.
fn served<'c>(
    config: &'c Config,
    luns: &[MappedLun],
    is_meant: impl Fn(&MappedLun) -> bool,
) -> BTreeMap<u16, Option<Shown<'c>>> {
    luns.iter().filter(|lun| is_meant(lun)).map(|lun| (lun.lun, shown(config, lun))).collect()
}

/// Returns what an initiator may access, except the LUNs that the target has under some numbers.
fn access<'c>(
    config: &'c Config,
    target: &'c Target,
    name: &str,
    left_out: &BTreeSet<u16>,
) -> Option<Access<'c>> {
    let fits = |entry: &&AclEntry| entry.initiators.iter().any(|pattern| pattern.overlaps(name));
    let entry = target.acl.iter().flatten().find(fits)?;
    let left_out: BTreeSet<usize> = {
        let luns = target.luns.iter().filter(|lun| left_out.contains(&lun.lun));
        luns.map(|lun| lun.unit.0).collect()
    };
    let luns = served(config, &entry.luns, |lun| !left_out.contains(&lun.unit.0));
    Some((luns, &entry.auth, entry.quota))
}

/// Returns a target without its LUNs and the access to them.
fn settings(target: &Target) -> Target {
    let (luns, numbers) = (Vec::new(), Vec::new());
    Target { luns, numbers, acl: None, auth: Auth::None, ..target.clone() }
}
