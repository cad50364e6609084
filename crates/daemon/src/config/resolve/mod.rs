//! Resolves a configuration as written to its meaning: fills in defaults, resolves references between
//! sections, and reports the mistakes that show only when sections are compared with each other or with the
//! files that they name.
//!
//! A value that was written wrongly is already in the report. Here a placeholder replaces it; the placeholder
//! is never used, because a report with mistakes never yields a configuration.

mod access;
mod changers;
mod discs;
mod disk_files;
mod http;
mod hyperscsi_groups;
mod isns;
mod limits;
mod luns;
mod medium_key;
mod nbd;
mod portals;
mod process;
mod session;
mod sg;
mod tapes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::units::ByteLen;
use iscsi::name::IscsiName;

use super::raw;
use super::resolved::{Auth, Config, ReactorChoice, Target};
use super::source_span::{ConfigReport, Located, SourceSpan};
use crate::log::{Format, Level};
use crate::os_error;
pub(crate) use process::host;

/// The environment that a configuration is resolved in.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The directory that relative paths start at; absolute.
    pub directory: PathBuf,
    /// The default state directory; absolute.
    pub state_dir: PathBuf,
    /// The admin socket if neither an admin socket nor a state directory is configured.
    pub admin_socket: Option<PathBuf>,
    /// A string that distinguishes this host. If the target's name is the default, the identities of its
    /// disks are derived from this string as well.
    pub host: String,
    /// The permission bits of the configuration file; `None` for a configuration from flags.
    pub file_mode: Option<u32>,
    /// Whether the first target has the default name, which the operator did not choose.
    pub name_is_ours: bool,
}

impl Environment {
    /// Returns an environment with all files in one directory.
    #[cfg(test)]
    pub(crate) fn for_tests(directory: &Path) -> Self {
        Self {
            directory: directory.to_path_buf(),
            state_dir: directory.to_path_buf(),
            admin_socket: None,
            host: String::new(),
            file_mode: None,
            name_is_ours: false,
        }
    }

    /// Makes a path absolute, without accessing the file system.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }
}

/// Resolves a configuration. The result is complete if and only if the report stays without mistakes.
pub(crate) fn resolve(root: raw::Root, environment: &Environment, report: &mut ConfigReport) -> Config {
    let portals = portals::resolve(&root.portals, root.hyperscsi.is_some(), environment, report);
    let frames = hyperscsi_groups::resolve(root.hyperscsi, &portals.list, environment, report);
    let groups = access::groups(&root.groups, report);
    let mut pool = luns::UnitResolver::new(environment, &root.luns, report);
    let discovery_auth = match root.discovery_auth {
        Some(auth) => access::auth(auth, environment, report),
        None => Auth::None,
    };
    let mut names = BTreeMap::new();
    let (mut targets, mut exports) = (Vec::new(), Vec::new());
    let mut usual = session::limits(root.queue_depth, root.nop_interval, root.nop_timeout, None);
    usual.idle_within = root.nop_idle_timeout.map_or(usual.idle_within, |at| at.value);
    for target in root.targets {
        let name = target_name(target.name.as_ref(), &mut names, report);
        let scope = name.as_ref().map(|name| identity_scope(name, environment));
        let label = name.as_ref().map_or("", IscsiName::as_str);
        let exported = frames.set(&target.groups, report);
        let luns = pool.target_luns(label, scope.as_deref(), target.luns, &frames, report);
        let span = target.span;
        exports.push((exported, span.clone()));
        let auth = target.auth.map_or(Auth::None, |auth| access::auth(auth, environment, report));
        let acl = target.acl.map(|acl| access::acl(acl, &luns, &auth, &groups, environment, report));
        let served = portals.of_target(target.portals, report);
        let keys = session::resolve(&target.session, report);
        let protection = target.session.protection;
        let Some(name) = name else { continue };
        let target = Target {
            name,
            alias: target.alias.map(|alias| alias.value),
            portals: served,
            groups: exported,
            max_sessions: target.max_sessions.map_or(1, |at| at.value),
            limits: session::limits(
                target.queue_depth,
                target.nop_interval,
                target.nop_timeout,
                Some(&usual),
            ),
            keys,
            auth,
            luns: luns.mapped,
            acl,
        };
        frames.check(&target, &portals.list, &span, report);
        if let Some(at) = protection {
            access::check_protection(&target, &portals.list, &at, report);
        }
        targets.push(target);
    }
    frames.finish(&exports, &portals.list, report);
    let isns = root.isns.map(|written| isns::resolve(written, &portals.list, report));
    portals.warn_of_open_access(&root.portals, &targets, report);
    let units = pool.finish(report);
    let http = root.http.and_then(|http| http::resolve(http, environment, report));
    let state_dir = root.state_dir.as_ref().map(|path| environment.absolute(&path.value));
    let admin_socket = match (root.admin_socket, &state_dir, &environment.admin_socket) {
        (Some(path), _, _) => environment.absolute(&path.value),
        (None, None, Some(socket)) => socket.clone(),
        (None, dir, _) => Environment::socket_in(dir.as_ref().unwrap_or(&environment.state_dir)),
    };
    let max_sessions = root.max_sessions.as_ref().map_or(1, |at| at.value);
    if let Some(connections) = &root.max_connections
        && connections.value < max_sessions
    {
        let message = format!("\"max_connections\" is less than \"max_sessions\" ({max_sessions})");
        report.warn(&connections.span, message);
    }
    Config {
        state_dir: state_dir.unwrap_or_else(|| environment.state_dir.clone()),
        admin_socket,
        log: root.log.and_then(|at| Level::parse(at.value)).unwrap_or(Level::Info),
        log_format: match root.log_format.map(|at| at.value) {
            Some("json") => Format::Json,
            _ => Format::Text,
        },
        slow_command: root.slow_command.map(|at| at.value).filter(|span| !span.is_zero()),
        reactor: match root.reactor.map(|at| at.value) {
            Some("uring") => ReactorChoice::Uring,
            Some("epoll") => ReactorChoice::Epoll,
            _ => ReactorChoice::Auto,
        },
        cores: root.cores.map(|at| cores(&at, report)).unwrap_or_default(),
        poll: root.poll.is_some_and(|at| at.value),
        look: root.look.is_none_or(|at| at.value),
        memory: root.memory.map(|at| ByteLen(at.value)),
        max_sessions,
        max_connections: root.max_connections.map_or(1, |at| at.value),
        login_timeout: root.login_timeout.map_or(Duration::ZERO, |at| at.value),
        limits: usual,
        lenient_names: root.names.is_some_and(|at| at.value == "lenient"),
        send_timeout: root.send_timeout.map(|at| at.value).filter(|span| !span.is_zero()),
        portals: portals.list,
        hyperscsi: frames.frames,
        isns,
        http,
        discovery_auth,
        units,
        targets,
    }
}

/// The highest core number that the kernel's affinity masks usually hold.
const CORE_MAX: u16 = 1023;

/// Parses a list of cores such as `0-3,6`.
fn cores(list: &Located<String>, report: &mut ConfigReport) -> Vec<u16> {
    let mut cores = Vec::new();
    for part in list.value.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if first <= last && last <= CORE_MAX => cores.extend(first..=last),
            _ => report.error(
                &list.span,
                format!(
                    "\"cores\" must be numbers and ranges such as \"0-3,6\" up to {CORE_MAX}, not \"{part}\""
                ),
            ),
        }
    }
    cores.sort_unstable();
    cores.dedup();
    cores
}

/// Returns the string that the identities of a target's units are derived from, together with their media.
fn identity_scope(name: &IscsiName, environment: &Environment) -> String {
    if environment.name_is_ours { format!("{name}\0{}", environment.host) } else { name.to_string() }
}

/// Returns a target's name; `None` when the name is invalid or used by another target.
fn target_name(
    name: Option<&Located<String>>,
    seen: &mut BTreeMap<IscsiName, SourceSpan>,
    report: &mut ConfigReport,
) -> Option<IscsiName> {
    let Located { value, span } = name?;
    let parsed = value.parse::<IscsiName>();
    let name = parsed.map_err(|why| report.error(span, format!("\"{value}\": {why}"))).ok()?;
    if let Some(first) = seen.get(&name) {
        report.error(span, format!("target \"{name}\" is given twice{}", at_line(first)));
        return None;
    }
    if value.contains('_') {
        report.warn(
            span,
            format!("\"{value}\": RFC 3722 does not allow '_' in iSCSI names; some initiators reject it"),
        );
    }
    seen.insert(name.clone(), span.clone());
    Some(name)
}

/// Checks that a file or device can be opened.
fn check_access(path: &Path, read_only: bool) -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().read(true).write(!read_only).open(path);
    let hint = if read_only { "" } else { " for writing" };
    opened.map(drop).map_err(|error| format!("cannot open {}{hint}: {}", path.display(), os_error(&error)))
}

/// Returns ` (first on line N)` if the source span is in a file.
fn at_line(span: &SourceSpan) -> String {
    match span {
        SourceSpan::File { line, .. } => format!(" (first on line {line})"),
        SourceSpan::Flag(_) | SourceSpan::Default => String::new(),
    }
}

/// Returns a string for an ASCII field of INQUIRY data (SPC-5 §4.3); reports other characters.
fn printable(at: Option<&Located<String>>, report: &mut ConfigReport) -> Option<String> {
    let at = at?;
    if at.value.chars().all(|c| matches!(c, ' '..='~')) {
        return Some(at.value.clone());
    }
    report.error(&at.span, format!("{:?} is not printable ASCII", at.value));
    None
}
