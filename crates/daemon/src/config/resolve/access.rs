//! Access: which initiators may log in, how they must authenticate, and which LUNs they see.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use iscsi::chap::{Algorithm, Algorithms, Credentials, Secret};
use security::Level;
use shard::config::InitiatorQuota;

use super::super::names::{NamePattern, check_label};
use super::super::raw;
use super::super::resolved::{AclEntry, Auth, AuthMethods, Chap, MappedLun, Portal, Target};
use super::super::secret;
use super::super::source_span::{ConfigReport, Located, SourceSpan, did_you_mean};
use super::hyperscsi_groups::level;
use super::limits;
use super::luns::TargetLuns;
use super::{Environment, read_file};

/// The groups of initiators by name.
pub(super) type Groups = BTreeMap<String, Vec<NamePattern>>;

pub(super) fn groups(written: &[raw::Group], report: &mut ConfigReport) -> Groups {
    let mut groups = Groups::new();
    for group in written {
        let patterns = group.initiators.iter().filter_map(|at| pattern(at, report)).collect();
        let Some(name) = &group.name else { continue };
        if let Err(why) = check_label(&name.value) {
            report.error(&name.span, why);
        }
        if groups.insert(name.value.clone(), patterns).is_some() {
            report.error(&name.span, format!("group \"{}\" is given twice", name.value));
        }
    }
    groups
}

pub(super) fn acl(
    entries: Vec<raw::Acl>,
    luns: &TargetLuns,
    target_auth: &Auth,
    groups: &Groups,
    environment: &Environment,
    report: &mut ConfigReport,
) -> Vec<AclEntry> {
    let mut resolved: Vec<AclEntry> = Vec::new();
    let mut earlier = EarlierPatterns::default();
    for entry in entries {
        let words = initiators(&entry.initiators, groups, report);
        for (word, patterns) in &words {
            earlier.warn_of_shadowed(word, patterns, report);
        }
        for (word, patterns) in &words {
            earlier.add(word, patterns);
        }
        let initiators = words.into_iter().flat_map(|(_, patterns)| patterns).collect();
        let own = entry.protection.as_ref();
        let mapped: Vec<MappedLun> = match entry.luns {
            None => luns
                .mapped
                .iter()
                .map(|lun| MappedLun {
                    read_only: lun.read_only || entry.ro,
                    protection: own.map_or(lun.protection, |at| level(at.value)),
                    ..*lun
                })
                .collect(),
            Some(mappings) => mappings_of(mappings, (entry.ro, own), luns, report),
        };
        if let Some(at) = own {
            let lower = |lun: &&MappedLun| lun.protection > level(at.value);
            let mut lowered = luns.mapped.iter().filter(lower).filter(|lun| {
                mapped.iter().any(|own| own.unit == lun.unit && own.protection == level(at.value))
            });
            if let Some(first) = lowered.next() {
                warn_of_lower(first, at, lowered.count(), report);
            }
        }
        let auth =
            entry.auth.map_or_else(|| target_auth.clone(), |written| auth(written, environment, report));
        let sessions_max = entry.max_sessions.map(|at| u32::from(at.value));
        let quota = InitiatorQuota { limit: limits::rate_limit(&entry.limit, report), sessions_max };
        resolved.push(AclEntry { initiators, luns: mapped, auth, quota });
    }
    resolved
}

/// Returns the patterns that each word of an entry stands for: those of a group are its members. The reader
/// reports an empty list as a mistake, because it might be taken to fit every initiator.
fn initiators<'w>(
    written: &'w [Located<String>],
    groups: &Groups,
    report: &mut ConfigReport,
) -> Vec<(&'w Located<String>, Vec<NamePattern>)> {
    let mut words = Vec::new();
    for at in written {
        let patterns = match at.value.strip_prefix('@') {
            Some(name) => groups.get(name).cloned().unwrap_or_else(|| {
                let hint = did_you_mean(name, groups.keys().map(String::as_str));
                report.error(&at.span, format!("no group is named \"{name}\"{hint}"));
                Vec::new()
            }),
            None => pattern(at, report).into_iter().collect(),
        };
        words.push((at, patterns));
    }
    words
}

/// The patterns of the entries of an access list so far, each with the word that it comes from.
#[derive(Default)]
struct EarlierPatterns {
    names: BTreeMap<NamePattern, Located<String>>,
    /// Those with a `*`.
    wild: Vec<(NamePattern, Located<String>)>,
}

impl EarlierPatterns {
    fn add(&mut self, word: &Located<String>, patterns: &[NamePattern]) {
        for pattern in patterns {
            if pattern.as_str().contains('*') {
                self.wild.push((pattern.clone(), word.clone()));
            }
            self.names.entry(pattern.clone()).or_insert_with(|| word.clone());
        }
    }

    /// Warns of a word that selects no initiator, because the first entry that matches an initiator applies,
    /// and earlier entries match all that this one would.
    fn warn_of_shadowed(&self, word: &Located<String>, patterns: &[NamePattern], report: &mut ConfigReport) {
        let by: Option<Vec<_>> = patterns.iter().map(|pattern| self.find(pattern)).collect();
        if let Some(by) = by.as_ref().and_then(|by| by.first()) {
            let line = match &by.span {
                SourceSpan::File { line, .. } => format!(" (on line {line})"),
                SourceSpan::Flag(_) | SourceSpan::Default => String::new(),
            };
            let message = format!(
                "\"{}\" has no effect here: \"{}\" in an earlier entry of this access list{line} already matches it",
                word.value, by.value
            );
            report.warn(&word.span, message);
        }
    }

    /// Returns the word of an earlier entry that matches every name that a pattern matches.
    fn find(&self, pattern: &NamePattern) -> Option<&Located<String>> {
        let wild = || self.wild.iter().find(|(known, _)| known.covers(pattern)).map(|(_, word)| word);
        self.names.get(pattern).or_else(wild)
    }
}

fn pattern(at: &Located<String>, report: &mut ConfigReport) -> Option<NamePattern> {
    NamePattern::parse(&at.value).map_err(|why| report.error(&at.span, why)).ok()
}

fn mappings_of(
    mappings: Vec<raw::Mapping>,
    (all_read_only, protection): (bool, Option<&Located<&'static str>>),
    luns: &TargetLuns,
    report: &mut ConfigReport,
) -> Vec<MappedLun> {
    let mut seen = BTreeSet::new();
    let mut mapped: Vec<MappedLun> = Vec::new();
    for mapping in mappings {
        let Some(lun) = mapping.lun else { continue };
        if !luns.numbers.contains(&lun.value) {
            report.error(&lun.span, format!("the target has no LUN {}", lun.value));
        }
        let shown = mapping.shown_as.unwrap_or_else(|| lun.clone());
        if !seen.insert(shown.value) {
            report.error(&shown.span, format!("two LUNs are exported as {}", shown.value));
        }
        if let Some(own) = luns.mapped.iter().find(|own| own.lun == lun.value) {
            let read_only = own.read_only || mapping.ro || all_read_only;
            let stated = mapping.protection.as_ref().or(protection);
            let protection = stated.map_or(own.protection, |at| level(at.value));
            if let Some(at) = mapping.protection.as_ref().filter(|at| level(at.value) < own.protection) {
                warn_of_lower(own, at, 0, report);
            }
            // The commands of both LUNs would have the wider access of the two, at the lower level.
            let other = |known: &MappedLun| known.unit == own.unit && known.protection != protection;
            if mapped.iter().any(other) {
                let message = format!("LUN {} is exported twice with different protection", own.lun);
                report.error(&lun.span, message);
            }
            // The initiator could write by the other number.
            if mapped.iter().any(|known| known.unit == own.unit && known.read_only != read_only) {
                let message = format!(
                    "LUN {} is exported twice, once read-only and once not: the initiator could write to it",
                    own.lun
                );
                report.error(&lun.span, message);
            }
            mapped.push(MappedLun { lun: shown.value, read_only, protection, ..*own });
        }
    }
    mapped.sort_unstable_by_key(|lun| lun.lun);
    mapped
}

/// Warns of initiators that may access a LUN, and `more` others, with less protection than the LUN requires.
fn warn_of_lower(lun: &MappedLun, at: &Located<&'static str>, more: usize, report: &mut ConfigReport) {
    let others = match more {
        0 => String::new(),
        1 => "; another LUN likewise".to_owned(),
        more => format!("; {more} other LUNs likewise"),
    };
    let message = format!(
        "LUN {} requires \"{}\", but these initiators can access it with \"{}\"{others}",
        lun.lun, lun.protection, at.value
    );
    report.warn(&at.span, message);
}

pub(super) fn auth(written: raw::Auth, environment: &Environment, report: &mut ConfigReport) -> Auth {
    let raw::Auth {
        span,
        method,
        user,
        secret_file,
        secret,
        mutual_user,
        mutual_secret_file,
        mutual_secret,
        password_file,
        algorithms,
    } = written;
    if method.is_some_and(|at| at.value == "none") {
        let given = [&user, &secret, &mutual_user, &mutual_secret].into_iter().flatten().map(|at| &at.span);
        let files = [&secret_file, &mutual_secret_file, &password_file];
        let files = files.into_iter().flatten().map(|at| &at.span);
        if let Some(span) = given.chain(files).next() {
            report.error(span, "auth with method \"none\" takes no names or secrets");
        }
        return Auth::None;
    }
    let records = password_file.as_ref().map(|at| {
        let file = read_file(at, environment, report, secret::password_records);
        file.map(Arc::new)
    });
    let no_chap = [&user, &secret, &mutual_user, &mutual_secret].iter().all(|at| at.is_none())
        && secret_file.is_none()
        && mutual_secret_file.is_none();
    if let (Some(passwords), true) = (&records, no_chap) {
        return Auth::Required(AuthMethods { chap: None, passwords: passwords.clone() });
    }
    let passwords = records.flatten();
    if user.is_none() {
        report.missing(&span, "auth has no \"user\"");
    }
    let secret_place =
        secret_file.as_ref().map(|at| at.span.clone()).or(secret.as_ref().map(|at| at.span.clone()));
    let secret = read_secret("secret", secret_file, secret, environment, report);
    if secret_place.is_none() {
        report.missing(&span, "auth has no \"secret_file\"");
    }
    let mutual_place = mutual_secret_file
        .as_ref()
        .map(|at| at.span.clone())
        .or(mutual_secret.as_ref().map(|at| at.span.clone()));
    let mutual = read_secret("mutual_secret", mutual_secret_file, mutual_secret, environment, report);
    match (&mutual_user, &mutual_place) {
        (Some(name), None) => {
            report.missing(&name.span, "auth has a \"mutual_user\" and no \"mutual_secret_file\"")
        }
        (None, Some(span)) => report.missing(span, "auth has a mutual secret and no \"mutual_user\""),
        _ => {}
    }
    // RFC 7143 §9.2.1: the two directions must not share a secret.
    if let (Some(secret), Some(mutual), Some(span)) = (&secret, &mutual, &mutual_place)
        && secret == mutual
    {
        report.error(span, "the mutual secret must differ from the initiator's");
    }
    if algorithms.is_empty() {
        report.missing(&span, "auth accepts no algorithm");
    }
    let credentials =
        |name: Option<Located<String>>, secret| Some(Credentials { name: name?.value, secret: secret? });
    let own = credentials(mutual_user, mutual);
    let algorithms = algorithms.into_iter().fold(Algorithms::NONE, |set, name| set.with(algorithm(name)));
    let chap = credentials(user, secret).map(|user| Chap { user, own, algorithms });
    chap.map_or(Auth::None, |chap| Auth::Required(AuthMethods { chap: Some(chap), passwords }))
}

/// Warns of initiators that cannot have the least protection of a target's sessions.
pub(super) fn check_protection(
    target: &Target,
    portals: &[Portal],
    at: &Located<&'static str>,
    report: &mut ConfigReport,
) {
    let has_tls = |at: &usize| portals.get(*at).is_some_and(|portal| portal.tls.is_some());
    // A password file that cannot be read leaves no password login.
    let is_served = target.portals.iter().any(has_tls) || target.portals.is_empty();
    if level(at.value) == Level::None || is_served || !report.is_clean() {
        return;
    }
    let entries = target.acl.iter().flatten().map(|entry| (entry.initiators.first(), &entry.auth));
    let all: Vec<_> = if target.acl.is_some() { entries.collect() } else { vec![(None, &target.auth)] };
    for (who, _) in all.into_iter().filter(|(_, auth)| auth.passwords().is_none()) {
        let who = who.map_or_else(String::new, |first| format!(" of \"{first}\""));
        let message = format!(
            "no session{who} can have protection \"{}\": the target has no portal with TLS and no \"password_file\"",
            at.value
        );
        report.warn(&at.span, message);
    }
}

fn algorithm(name: &'static str) -> Algorithm {
    match name {
        "SHA3-256" => Algorithm::Sha3,
        "SHA-256" => Algorithm::Sha256,
        "SHA1" => Algorithm::Sha1,
        _ => Algorithm::Md5,
    }
}

/// Reads a secret from its file or from the configuration, depending on which of the two is given.
fn read_secret(
    key: &str,
    file: Option<Located<PathBuf>>,
    inline: Option<Located<String>>,
    environment: &Environment,
    report: &mut ConfigReport,
) -> Option<Secret> {
    let (result, span) = match (file, inline) {
        (Some(_), Some(inline)) => {
            report.error(&inline.span, format!("give \"{key}_file\" or \"{key}\", not both"));
            return None;
        }
        (Some(file), None) => return read_file(&file, environment, report, secret::from_file),
        (None, Some(inline)) => {
            check_inline(key, &inline.span, environment, report);
            (secret::check(inline.value.as_bytes()), inline.span)
        }
        (None, None) => return None,
    };
    result.map_err(|why| report.error(&span, why)).ok()
}

/// Checks that others cannot read the configuration file: a secret in it is protected only by the mode of the
/// file.
fn check_inline(key: &str, span: &SourceSpan, environment: &Environment, report: &mut ConfigReport) {
    let user = environment.service_user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    match environment.file_access {
        Some(access) if !access.is_confidential(user) => report.error(
            span,
            format!(
                "\"{key}\" in a file that others can read (mode {:03o}); use \"{key}_file\" or chmod {:03o}",
                access.mode,
                access.remedy(user)
            ),
        ),
        _ => {
            report.warn(span, format!("\"{key}\" is stored in the configuration file; prefer \"{key}_file\""))
        }
    }
}
