//! The differences of targets, their LUNs and the access to them.

use std::collections::BTreeSet;

use device::rate_limit::RateLimit;
use iscsi::negotiate::DigestPolicy;

use super::fields::{auth, auth_details, field};
use super::{PlannedChange, Subject, What, WhenEffective};
use crate::config::diff::{LunChange, TargetDelta};
use crate::config::resolved::{AclEntry, Config, GroupSet, MappedLun, Target, Unit};

/// Describes a target that is added or removed as a whole.
pub(super) fn whole(config: &Config, at: usize, what: What) -> Option<PlannedChange> {
    let target = config.targets.get(at)?;
    let mut details: Vec<String> = target.luns.iter().map(|lun| in_words(config, lun)).collect();
    if what == What::Added {
        details.push(format!("auth: {}", auth(&target.auth)));
        details.push(match &target.acl {
            None => "access: every initiator".to_owned(),
            Some(entries) => {
                format!("access: {}", entries.iter().map(initiators).collect::<Vec<_>>().join(", "))
            }
        });
    } else {
        details.push("its sessions end".to_owned());
    }
    let (subject, name) = (Subject::Target, target.name.to_string());
    let disruptive = what == What::Removed;
    Some(PlannedChange { subject, name, what, details, effective: WhenEffective::Now, disruptive })
}

/// Describes the differences of a target that stays.
pub(super) fn changed(
    delta: &TargetDelta,
    (old, was): (&Config, usize),
    (new, is): (&Config, usize),
    planned: &mut Vec<PlannedChange>,
) {
    let (Some(was), Some(is)) = (old.targets.get(was), new.targets.get(is)) else { return };
    let mut push = |subject, name: String, what, details, effective, disruptive| {
        planned.push(PlannedChange { subject, name, what, details, effective, disruptive });
    };
    let name = is.name.to_string();
    if delta.offer {
        let (mut later, mut portals) = (Vec::new(), Vec::new());
        field(&mut portals, "portals", &listens(old, was), &listens(new, is));
        let ends = portal_lost((old, was), (new, is));
        if ends {
            portals.push("sessions through other portals end".to_owned());
            let portals = std::mem::take(&mut portals);
            push(Subject::Target, name.clone(), What::Changed, portals, WhenEffective::Now, true);
        }
        offer(was, is, &mut later);
        later.append(&mut portals);
        if later.is_empty() && !ends {
            later.push("what it negotiates in a login".to_owned());
        }
        if !later.is_empty() {
            push(Subject::Target, name.clone(), What::Changed, later, WhenEffective::NewSessions, false);
        }
    }
    if delta.limits {
        push(Subject::Target, name.clone(), What::Changed, limits(was, is), WhenEffective::Now, false);
    }
    if delta.access {
        let disruptive = group_lost((old, &[was.groups]), (new, &[is.groups]));
        let mut details = access(old, was, new, is);
        if disruptive {
            details.push("HyperSCSI sessions of other groups end".to_owned());
        }
        push(Subject::Access, name.clone(), What::Changed, details, WhenEffective::Now, disruptive);
    }
    for (number, change) in &delta.luns {
        let find = |target: &Target| target.luns.iter().find(|lun| lun.lun == *number).copied();
        let (before, after) = (find(was), find(is));
        let mut details = Vec::new();
        let what = match change {
            LunChange::Added => {
                details.extend(after.map(|lun| medium(new, &lun)));
                What::Added
            }
            LunChange::Removed => {
                details.extend(before.map(|lun| medium(old, &lun)));
                What::Removed
            }
            LunChange::Replaced | LunChange::Changed => {
                if let (Some(before), Some(after)) = (before, after) {
                    lun_details((old, &before), (new, &after), &mut details);
                }
                if matches!(change, LunChange::Replaced) { What::Replaced } else { What::Changed }
            }
        };
        let disruptive = match what {
            What::Added => false,
            What::Removed | What::Replaced => true,
            What::Changed => before.zip(after).is_some_and(|(before, after)| {
                let (had, has) = ([before.groups, was.groups], [after.groups, is.groups]);
                after.protection > before.protection || group_lost((old, &had), (new, &has))
            }),
        };
        push(Subject::Lun, format!("{name}/{number}"), what, details, WhenEffective::Now, disruptive);
    }
}

fn listens(config: &Config, target: &Target) -> String {
    let listed = target.portals.iter().filter_map(|at| config.portals.get(*at));
    listed.map(|portal| portal.listen.to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns whether sessions end because a portal no longer serves the target. If the portal itself is
/// removed, they continue where another portal of the target has its tag.
fn portal_lost((old, was): (&Config, &Target), (new, is): (&Config, &Target)) -> bool {
    let served: Vec<_> = is.portals.iter().filter_map(|at| new.portals.get(*at)).collect();
    was.portals.iter().filter_map(|at| old.portals.get(*at)).any(|portal| {
        let exists = new.portals.iter().any(|other| other.listen == portal.listen);
        !served.iter().any(|other| other.listen == portal.listen || !exists && other.tag == portal.tag)
    })
}

/// Returns the names of the groups that all of these sets have.
fn group_names(config: &Config, sets: &[GroupSet]) -> BTreeSet<String> {
    let known = config.hyperscsi.iter().flat_map(|frames| &frames.groups).enumerate();
    let shared = known.filter(|(at, _)| sets.iter().all(|groups| groups.has(*at)));
    shared.map(|(_, group)| group.name.to_string()).collect()
}

/// Returns whether HyperSCSI groups that all of the former sets have are missing in one of the new sets.
fn group_lost((old, was): (&Config, &[GroupSet]), (new, is): (&Config, &[GroupSet])) -> bool {
    !group_names(old, was).is_subset(&group_names(new, is))
}

fn medium(config: &Config, lun: &MappedLun) -> String {
    config.unit(lun).map_or_else(|| "a disk".to_owned(), |unit| unit.medium.to_string())
}

fn in_words(config: &Config, lun: &MappedLun) -> String {
    let ro = lun.read_only || config.unit(lun).is_some_and(|unit| unit.read_only);
    format!("LUN {}: {}{}", lun.lun, medium(config, lun), if ro { ", read-only" } else { "" })
}

fn initiators(entry: &AclEntry) -> String {
    let names: Vec<&str> = entry.initiators.iter().map(|pattern| pattern.as_str()).collect();
    names.join(" ")
}

fn offer(was: &Target, is: &Target, details: &mut Vec<String>) {
    let alias = |target: &Target| target.alias.clone().unwrap_or_else(|| "none".to_owned());
    field(details, "alias", &alias(was), &alias(is));
    field(details, "max_sessions", &was.max_sessions, &is.max_sessions);
    let (a, b) = (&was.keys, &is.keys);
    field(details, "header_digest", &digest_word(a.header_digest), &digest_word(b.header_digest));
    field(details, "data_digest", &digest_word(a.data_digest), &digest_word(b.data_digest));
    field(details, "protection", &a.min_protection.to_string(), &b.min_protection.to_string());
    field(details, "max_connections", &a.max_connections, &b.max_connections);
    field(details, "max_burst_length", &a.max_burst_length, &b.max_burst_length);
    field(details, "first_burst_length", &a.first_burst_length, &b.first_burst_length);
}

/// Returns the word of the configuration file for a policy.
const fn digest_word(policy: DigestPolicy) -> &'static str {
    match policy {
        DigestPolicy::PreferCrc32c | DigestPolicy::PreferNone => "offer",
        DigestPolicy::RequireCrc32c => "require",
        DigestPolicy::RequireNone => "forbid",
    }
}

fn limits(was: &Target, is: &Target) -> Vec<String> {
    let mut details = Vec::new();
    let (a, b) = (&was.limits, &is.limits);
    let span = |span: std::time::Duration| format!("{span:?}");
    field(&mut details, "queue_depth", &a.queue_depth, &b.queue_depth);
    field(&mut details, "nop_interval", &span(a.ping_after), &span(b.ping_after));
    field(&mut details, "nop_timeout", &span(a.pong_within), &span(b.pong_within));
    field(&mut details, "nop_idle_timeout", &span(a.idle_within), &span(b.idle_within));
    details
}

fn access(old: &Config, was: &Target, new: &Config, is: &Target) -> Vec<String> {
    let mut details = Vec::new();
    auth_details(&was.auth, &is.auth, &mut details);
    let groups = |config: &Config, target: &Target| {
        let names: Vec<String> = group_names(config, &[target.groups]).into_iter().collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    field(&mut details, "groups", &groups(old, was), &groups(new, is));
    match (&was.acl, &is.acl) {
        (None, Some(_)) => details.push("only listed initiators are admitted from now on".to_owned()),
        (Some(_), None) => details.push("EVERY initiator is admitted from now on".to_owned()),
        _ => {}
    }
    let (before, after) = (was.acl.as_deref().unwrap_or_default(), is.acl.as_deref().unwrap_or_default());
    let names: BTreeSet<String> = before.iter().chain(after).map(initiators).collect();
    let first =
        |entries: &[AclEntry], who: &str| entries.iter().find(|entry| initiators(entry) == who).cloned();
    for who in &names {
        match (first(before, who), first(after, who)) {
            (None, Some(entry)) => details.push(format!("{who}: admitted to LUN {}", numbers(&entry))),
            (Some(_), None) => details.push(format!("{who}: no longer admitted by an entry of its own")),
            (Some(was_entry), Some(is_entry)) => {
                let mut parts = Vec::new();
                let view = |config: &Config, entry: &AclEntry| {
                    let rows = entry.luns.iter().map(|lun| in_words(config, lun));
                    rows.collect::<Vec<_>>().join("; ")
                };
                field(&mut parts, "LUNs", &view(old, &was_entry), &view(new, &is_entry));
                if was_entry.auth != was.auth || is_entry.auth != is.auth {
                    auth_details(&was_entry.auth, &is_entry.auth, &mut parts);
                }
                let sessions = |entry: &AclEntry| {
                    entry.quota.sessions_max.map_or("none".to_owned(), |most| most.to_string())
                };
                field(&mut parts, "max_sessions", &sessions(&was_entry), &sessions(&is_entry));
                limit_details(was_entry.quota.limit, is_entry.quota.limit, &mut parts);
                details.extend((!parts.is_empty()).then(|| format!("{who}: {}", parts.join(", "))));
            }
            (None, None) => {}
        }
    }
    if details.is_empty() {
        details.push("the order or the protection of its access list".to_owned());
    }
    details
}

fn limit_details(was: RateLimit, is: RateLimit, details: &mut Vec<String>) {
    let number = |number: u32| if number == 0 { "none".to_owned() } else { number.to_string() };
    let size = |size: u64| if size == 0 { "none".to_owned() } else { crate::config::show_size(size) };
    let burst =
        |limit: RateLimit| if limit.is_none() { "none".to_owned() } else { format!("{:?}", limit.burst) };
    field(details, "limit_iops", &number(was.iops), &number(is.iops));
    field(details, "limit_bandwidth", &size(was.bandwidth), &size(is.bandwidth));
    field(details, "limit_burst", &burst(was), &burst(is));
}

fn numbers(entry: &AclEntry) -> String {
    entry.luns.iter().map(|lun| lun.lun.to_string()).collect::<Vec<_>>().join(", ")
}

fn lun_details(
    (old, before): (&Config, &MappedLun),
    (new, after): (&Config, &MappedLun),
    details: &mut Vec<String>,
) {
    let (Some(was), Some(is)) = (old.unit(before), new.unit(after)) else { return };
    let size = |unit: &Unit| match &unit.medium {
        crate::config::Medium::File { size, .. } => {
            size.map_or("that of the file".to_owned(), |size| crate::config::show_size(size.0))
        }
        _ => "fixed".to_owned(),
    };
    let span = |span: Option<std::time::Duration>| span.map_or("none".to_owned(), |span| format!("{span:?}"));
    field(details, "medium", &was.medium.to_string(), &is.medium.to_string());
    field(details, "size", &size(was), &size(is));
    field(details, "block length", &was.block_size.bytes(), &is.block_size.bytes());
    field(
        details,
        "physical block length",
        &was.physical_block_size.bytes(),
        &is.physical_block_size.bytes(),
    );
    field(details, "ro", &(was.read_only || before.read_only), &(is.read_only || after.read_only));
    field(details, "thin", &was.thin, &is.thin);
    field(details, "write_cache", &was.write_cache, &is.write_cache);
    field(details, "io_timeout", &span(was.io_timeout), &span(is.io_timeout));
    let patience = |unit: &Unit| match unit.medium {
        crate::config::Medium::Nbd { patience, .. }
        | crate::config::Medium::VhostUserBlk { patience, .. }
        | crate::config::Medium::VhostUserScsi { patience, .. } => span(patience),
        _ => span(None),
    };
    field(details, "reconnect_timeout", &patience(was), &patience(is));
    limit_details(was.limit, is.limit, details);
    field(details, "encrypted", &was.encrypt.is_some(), &is.encrypt.is_some());
    field(details, "removable", &was.removable, &is.removable);
    field(details, "protection", &before.protection.to_string(), &after.protection.to_string());
    let groups = |config, lun: &MappedLun| {
        let names: Vec<String> = group_names(config, &[lun.groups]).into_iter().collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    field(details, "groups", &groups(old, before), &groups(new, after));
    field(details, "naa", &was.identity.naa.to_string(), &is.identity.naa.to_string());
    field(details, "serial", &was.identity.serial, &is.identity.serial);
    field(details, "vendor", &was.identity.vendor, &is.identity.vendor);
    field(details, "product", &was.identity.product, &is.identity.product);
    field(details, "revision", &was.identity.revision, &is.identity.revision);
    if details.is_empty() {
        details.push("how it presents itself".to_owned());
    }
}
