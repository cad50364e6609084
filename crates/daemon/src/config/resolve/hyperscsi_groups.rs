//! Resolves the interfaces and groups of HyperSCSI.

use std::collections::BTreeMap;

use hyperscsi::pdu::name::GroupName;
use security::Level;

use super::super::raw;
use super::super::resolved::{GROUPS_MAX, Group, GroupSet, HyperScsiService, MappedLun, Portal, Target};
use super::super::secret;
use super::super::source_span::{ConfigReport, Located, SourceSpan, did_you_mean};
use super::{Environment, at_line, read_file};

/// The longest name of an interface (`IFNAMSIZ`, without the terminating zero).
const INTERFACE_LEN_MAX: usize = 15;

/// The resolved HyperSCSI groups, by name, with their source spans.
pub(super) struct HyperScsiGroups {
    pub(super) frames: Option<HyperScsiService>,
    places: BTreeMap<String, usize>,
    /// The source span of each group.
    written: Vec<SourceSpan>,
}

pub(super) fn resolve(
    written: Option<raw::HyperScsi>,
    portals: &[Portal],
    environment: &Environment,
    report: &mut ConfigReport,
) -> HyperScsiGroups {
    let mut groups = HyperScsiGroups { frames: None, places: BTreeMap::new(), written: Vec::new() };
    let Some(written) = written else { return groups };
    let mut frames = HyperScsiService { interfaces: Vec::new(), groups: Vec::new() };
    for name in &written.interfaces {
        if frames.interfaces.contains(&name.value) {
            report.error(&name.span, format!("interface \"{}\" is given twice", name.value));
        } else if !is_interface(&name.value) {
            report.error(&name.span, format!("\"{}\" is not an interface name", name.value));
        }
        frames.interfaces.push(name.value.clone());
    }
    if written.groups.is_empty() {
        report.missing(&written.span, "hyperscsi has no \"group\"");
    }
    if written.groups.len() > GROUPS_MAX {
        report.error(&written.span, format!("hyperscsi has more than {GROUPS_MAX} groups"));
    }
    if let Some(portal) = portals.iter().find(|portal| HyperScsiService::PORT_TAGS.contains(&portal.tag)) {
        let message = format!(
            "portal {} has the tag {}; tags from 32768 on are reserved for the target ports of HyperSCSI groups",
            portal.listen, portal.tag
        );
        report.error(&written.span, message);
    }
    let mut seen: BTreeMap<String, SourceSpan> = BTreeMap::new();
    for group in written.groups {
        let Some(name) = &group.name else { continue };
        if let Some(first) = seen.insert(name.value.clone(), name.span.clone()) {
            report.error(&name.span, format!("group \"{}\" is given twice{}", name.value, at_line(&first)));
        }
        let Some(known) = GroupName::new(&name.value) else {
            report.error(&name.span, format!("\"{}\" is not a group name", name.value));
            continue;
        };
        groups.places.insert(name.value.clone(), frames.groups.len());
        groups.written.push(name.span.clone());
        frames.groups.push(resolve_group(known, &group, &frames.interfaces, environment, report));
    }
    groups.frames = Some(frames);
    groups
}

fn resolve_group(
    name: GroupName,
    group: &raw::HyperScsiGroup,
    interfaces: &[String],
    environment: &Environment,
    report: &mut ConfigReport,
) -> Group {
    let password = group
        .password_file
        .as_ref()
        .and_then(|at| read_file(at, environment, report, |path| secret::group_secret(path, &name)));
    let usual = if group.password_file.is_some() { Level::Integrity } else { Level::None };
    let least = group.protection.as_ref().map_or(usual, |at| level(at.value));
    if let (Some(at), None) = (&group.protection, &group.password_file)
        && least > Level::None
    {
        report.error(&at.span, format!("protection \"{}\" needs a \"password_file\"", at.value));
    }
    let listed = group.interfaces.as_ref().map(|names| {
        let span = |name: &Located<String>| {
            let found = interfaces.iter().position(|interface| *interface == name.value);
            if found.is_none() {
                let hint = did_you_mean(&name.value, interfaces.iter().map(String::as_str));
                report.error(&name.span, format!("hyperscsi has no interface \"{}\"{hint}", name.value));
            }
            found
        };
        names.iter().filter_map(span).collect()
    });
    Group { name, password, min_protection: least, interfaces: listed }
}

impl HyperScsiGroups {
    /// Returns the set of the groups with these names, and reports names that no group has.
    pub(super) fn set(&self, names: &[Located<String>], report: &mut ConfigReport) -> GroupSet {
        let mut set = GroupSet::NONE;
        for name in names {
            match self.places.get(&name.value) {
                Some(span) => set = set.with(*span),
                None => {
                    let hint = did_you_mean(&name.value, self.places.keys().map(String::as_str));
                    report.error(&name.span, format!("hyperscsi has no group \"{}\"{hint}", name.value));
                }
            }
        }
        set
    }

    /// Warns of groups that no target is exported to, and of targets that no initiator can reach.
    pub(super) fn finish(
        &self,
        targets: &[(GroupSet, SourceSpan)],
        portals: &[Portal],
        report: &mut ConfigReport,
    ) {
        // Mistakes can cause these warnings: a misspelt group name exports the target to no group. So there
        // are no warnings before the mistakes are corrected.
        let Some(frames) = self.frames.as_ref().filter(|_| report.is_clean()) else { return };
        for (at, (group, span)) in frames.groups.iter().zip(&self.written).enumerate() {
            if !targets.iter().any(|(exported, _)| exported.has(at)) {
                report.warn(
                    span,
                    format!("no target is exported to group \"{}\" (by its \"groups\")", group.name),
                );
            }
        }
        for (_, span) in
            targets.iter().filter(|(exported, _)| *exported == GroupSet::NONE && portals.is_empty())
        {
            report.warn(
                span,
                "no initiator can reach this target: there is no \"portal\", and it has no \"groups\"",
            );
        }
    }

    /// Warns of a LUN of `target` that no initiator can reach, because no session with it can have the
    /// protection that the LUN requires.
    pub(super) fn check(
        &self,
        target: &Target,
        portals: &[Portal],
        span: &SourceSpan,
        report: &mut ConfigReport,
    ) {
        // Mistakes can cause these warnings: a password file that cannot be read leaves no password login.
        if !report.is_clean() {
            return;
        }
        let has_tls = |at: &usize| portals.get(*at).is_some_and(|portal| portal.tls.is_some());
        let has_tls = target.portals.iter().any(has_tls);
        let whole = (None, &target.luns, &target.auth);
        let entries = target.acl.iter().flatten();
        let entries = entries.map(|entry| (entry.initiators.first(), &entry.luns, &entry.auth));
        let maps: Vec<_> =
            if target.acl.is_some() { entries.collect() } else { std::iter::once(whole).collect() };
        for (who, luns, auth) in maps {
            // The digests of the password login protect a connection through any portal.
            if has_tls || auth.passwords().is_some() && !target.portals.is_empty() {
                continue;
            }
            let needs = luns.iter().filter(|lun| lun.protection > Level::None);
            for lun in needs.filter(|lun| !self.is_reached_by_group(lun, target.groups)) {
                let who = who.map_or_else(String::new, |first| format!(" of \"{first}\""));
                let message = format!(
                    "LUN {} requires \"{}\", which no session{who} can have: the target has no portal with TLS and \
                     no \"password_file\", and no HyperSCSI group with a password can access the LUN",
                    lun.lun, lun.protection
                );
                report.warn(span, message);
            }
        }
    }

    /// Returns whether a group with a password, of those that the target is exported to, can access a LUN.
    fn is_reached_by_group(&self, lun: &MappedLun, exported: GroupSet) -> bool {
        let known = self.frames.iter().flat_map(|frames| &frames.groups).enumerate();
        let reaches =
            |(at, group): (usize, &Group)| exported.has(at) && lun.groups.has(at) && group.password.is_some();
        known.into_iter().any(reaches)
    }
}

pub(super) fn level(word: &str) -> Level {
    match word {
        "encrypt" => Level::Encrypt,
        "integrity" => Level::Integrity,
        _ => Level::None,
    }
}

fn is_interface(name: &str) -> bool {
    let odd = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    !name.is_empty() && name.len() <= INTERFACE_LEN_MAX && !name.contains(odd)
}
