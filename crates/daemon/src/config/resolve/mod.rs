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
mod examination;
mod http;
mod hyperscsi_groups;
mod isns;
mod limits;
mod luns;
mod medium_key;
mod nbd;
mod numbers;
mod over_commit;
mod portals;
mod process;
mod readers;
mod session;
mod sg;
mod tapes;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::units::ByteLen;
use iscsi::name::IscsiName;
use security::secret_access::FileAccess;
use tls::CertifiedNames;

use super::identity::StateIdentity;
use super::library_record::ServedLibrary;
use super::raw;
use super::resolved::{Auth, Config, ReactorChoice, Target};
use super::secret::SecretError;
use super::source_span::{ConfigReport, Located, SourceSpan};
use crate::answers::{self, ANSWER_MAX};
use crate::log::{Format, Level};
use crate::os_error;
pub(crate) use changers::served_libraries;
pub(crate) use disk_files::expect_block_len;
pub(crate) use process::host;

/// Where a configuration gets what the state directory of its daemon adds to it: the salt of the derived
/// world-wide names, and the tape libraries that were served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StateSource {
    /// The state directory that is configured, or else the default one of the environment.
    #[default]
    Directory,
    /// The state directory that is configured. Without one the salt is unknown.
    ConfiguredDirectory,
    /// The running daemon, which has returned this salt.
    Daemon {
        /// The salt, if the state directory has one.
        salt: Option<String>,
    },
}

/// The environment that a configuration is resolved in.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The directory that relative paths start at; absolute.
    pub directory: PathBuf,
    /// The default state directory; absolute.
    pub state_dir: PathBuf,
    /// Where the salt of the derived names and the record of libraries come from.
    pub state_source: StateSource,
    /// The admin socket if neither an admin socket nor a state directory is configured.
    pub admin_socket: Option<PathBuf>,
    /// A string that distinguishes this host. If the target's name is the default, the identities of its
    /// disks are derived from this string as well.
    pub host: String,
    /// Who has access to the configuration file; `None` for a configuration from flags.
    pub file_access: Option<FileAccess>,
    /// Whether the first target has the default name, which the operator did not choose.
    pub name_is_ours: bool,
    /// The tape libraries that are served, by the path of the folder: one that cannot be read at the moment
    /// has the drives with which it is served.
    pub served_libraries: BTreeMap<PathBuf, ServedLibrary>,
    /// Whether media are examined. A command that asks the daemon to make a change leaves that to the daemon:
    /// a file system that does not answer must not keep it from asking.
    pub examines_media: bool,
    /// Whether what the service can do is checked, and not what this process can do.
    pub is_of_service: bool,
    /// The user that the service runs as, if this process can open files that the service cannot.
    pub service_user: Option<u32>,
    /// The files and devices that do not answer: nothing looks at them, and they count as absent.
    pub silent: BTreeSet<PathBuf>,
    /// The names in the certificates of initiators, for every configuration that is read in this environment:
    /// connections outlive configurations.
    pub certified_names: Arc<CertifiedNames>,
}

impl Environment {
    /// Returns an environment with all files in one directory.
    #[cfg(test)]
    pub(crate) fn for_tests(directory: &Path) -> Self {
        Self {
            directory: directory.to_path_buf(),
            state_dir: directory.to_path_buf(),
            state_source: StateSource::Directory,
            admin_socket: None,
            host: String::new(),
            file_access: None,
            name_is_ours: false,
            served_libraries: BTreeMap::new(),
            examines_media: true,
            is_of_service: false,
            service_user: None,
            silent: BTreeSet::new(),
            certified_names: Arc::default(),
        }
    }

    /// Checks that the service can open a file that this process can open. What the group of a file or an
    /// access list allows is not judged here.
    ///
    /// # Errors
    /// A sentence that says what to change.
    fn expect_open_to_service(&self, path: &Path) -> Result<(), String> {
        let Some(user) = self.service_user else { return Ok(()) };
        let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
        if meta.uid() == user || meta.mode() & 0o077 != 0 {
            return Ok(());
        }
        let (path, owner) = (path.display(), meta.uid());
        Err(format!(
            "only user {owner} can open {path}, and the service runs as user {user}, which its state directory belongs \
             to; run: chown {user} {path}"
        ))
    }

    /// Returns the state directory to read, if there is one; `configured` is the one that is configured.
    fn state_to_read<'d>(&'d self, configured: Option<&'d Path>) -> Option<&'d Path> {
        match self.state_source {
            StateSource::Directory => Some(configured.unwrap_or(&self.state_dir)),
            StateSource::ConfiguredDirectory => configured,
            StateSource::Daemon { .. } => None,
        }
    }

    /// Makes a path absolute, without accessing the file system.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }
}

/// Reads a file that the configuration names. The report says why it cannot be used; nobody waits again for a
/// directory that did not answer.
fn read_file<T>(
    at: &Located<PathBuf>,
    environment: &Environment,
    report: &mut ConfigReport,
    read: impl FnOnce(&Path) -> Result<T, SecretError>,
) -> Option<T> {
    let path = environment.absolute(&at.value);
    let read = match report.awaits_directory_of(&path) {
        true => Err(SecretError::Silent(path.clone())),
        false => read(&path),
    };
    let read = read.and_then(|read| Ok(environment.expect_open_to_service(&path).map(|()| read)?));
    match read {
        Ok(read) => Some(read),
        Err(SecretError::Silent(_)) => {
            report.silent_file(&path, &at.span);
            None
        }
        Err(SecretError::Wrong(why)) => {
            report.error(&at.span, why);
            None
        }
    }
}

/// Resolves a configuration. The result is complete if and only if the report stays without mistakes.
pub(crate) fn resolve(root: raw::Root, environment: &Environment, report: &mut ConfigReport) -> Config {
    let state_dir = root.state_dir.as_ref().map(|path| environment.absolute(&path.value));
    let environment = &environment.for_service(state_dir.as_deref(), report.file.as_deref());
    let portals = portals::resolve(&root.portals, root.hyperscsi.is_some(), environment, report);
    let frames = hyperscsi_groups::resolve(root.hyperscsi, &portals.list, environment, report);
    let groups = access::groups(&root.groups, report);
    let salt = salt(environment.state_to_read(state_dir.as_deref()), environment, report);
    let around = (environment, state_dir.as_deref());
    let mut pool = luns::UnitResolver::new(around, (&root.luns, &root.targets), report);
    let discovery_auth =
        root.discovery_auth.map_or(Auth::None, |auth| access::auth(auth, environment, report));
    let mut names = BTreeMap::new();
    let (mut targets, mut exports) = (Vec::new(), Vec::new());
    let mut usual = session::limits(root.queue_depth, root.nop_interval, root.nop_timeout, None);
    usual.idle_within = root.nop_idle_timeout.map_or(usual.idle_within, |at| at.value);
    for target in root.targets {
        let name = target_name(target.name.as_ref(), &mut names, report);
        let scope = name.as_ref().map(|name| identity_scope(name, environment, salt.as_deref()));
        let label = name.as_ref().map_or("", IscsiName::as_str);
        let (exported, span) = (frames.set(&target.groups, report), target.span);
        let luns = pool.target_luns(label, scope.as_deref(), target.luns, &frames, report);
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
            numbers: luns.tables,
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
    let (units, unexported) = pool.finish(&mut targets, report);
    let http = root.http.and_then(|http| http::resolve(http, environment, report));
    let admin_socket = match (root.admin_socket, &state_dir, &environment.admin_socket) {
        (Some(path), _, _) => environment.absolute(&path.value),
        (None, None, Some(socket)) => socket.clone(),
        (None, dir, _) => Environment::socket_in(dir.as_ref().unwrap_or(&environment.state_dir)),
    };
    let max_sessions = root.max_sessions.as_ref().map_or(1, |at| at.value);
    check_connections(root.max_connections.as_ref(), max_sessions, report);
    Config {
        state_dir: state_dir.unwrap_or_else(|| environment.state_dir.clone()),
        admin_socket,
        admin_readers: readers::resolve(root.admin_readers.as_ref(), report),
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
        groups,
        units,
        unexported,
        targets,
    }
}

/// Warns if there are fewer connections than sessions.
fn check_connections(connections: Option<&Located<u16>>, max_sessions: u16, report: &mut ConfigReport) {
    if let Some(connections) = connections.filter(|at| at.value < max_sessions) {
        let message = format!("\"max_connections\" is less than \"max_sessions\" ({max_sessions})");
        report.warn(&connections.span, message);
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
fn identity_scope(name: &IscsiName, environment: &Environment, salt: Option<&str>) -> String {
    let mut scope = name.to_string();
    for part in environment.name_is_ours.then_some(environment.host.as_str()).into_iter().chain(salt) {
        scope.push('\0');
        scope.push_str(part);
    }
    scope
}

/// Returns the salt of the identities of a state directory. Where it is unknown, the names are derived
/// without it, which are as different from each other, and the report says why: such names must not be
/// written down.
fn salt(state_dir: Option<&Path>, environment: &Environment, report: &mut ConfigReport) -> Option<String> {
    let Some(state_dir) = state_dir else {
        if let StateSource::Daemon { salt } = &environment.state_source {
            return salt.clone();
        }
        report.names_are_unknown(
            "the state directory of its daemon is not known: give --state-dir DIR".to_owned(),
        );
        return None;
    };
    let file = StateIdentity::file(state_dir);
    let cannot = |error: &std::io::Error| format!("cannot read {}: {}", file.display(), os_error(error));
    let directory = state_dir.to_owned();
    let read = move || {
        let found = StateIdentity::read(&directory);
        let is_unused = matches!(found, Ok(None)) && StateIdentity::is_unused(&directory);
        (found, is_unused)
    };
    let Some((found, is_unused)) = answers::of_one(read, ANSWER_MAX) else {
        report.silent_file(&file, &SourceSpan::Default);
        return None;
    };
    match found {
        Ok(Some(identity)) => identity.salt,
        Ok(None) => {
            if is_unused {
                let why = format!("no daemon has used the state directory {} yet", state_dir.display());
                report.names_are_unknown(why);
            }
            None
        }
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotADirectory) => {
            report.names_are_unknown(cannot(&error));
            None
        }
        Err(error) => {
            let message = cannot(&error);
            report.error(&SourceSpan::Default, message);
            None
        }
    }
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
    opened.map(drop).map_err(|error| {
        let why = os_error(&error);
        let remedy = if error.kind() == ErrorKind::PermissionDenied { owner_hint(path) } else { None };
        format!("cannot open {}{hint}: {why}{}", path.display(), remedy.unwrap_or_default())
    })
}

/// Returns what gives a file of another user to the user of this process; `None` if the owner is not the
/// reason, or unknown.
fn owner_hint(path: &Path) -> Option<String> {
    let (owner, user) = (std::fs::metadata(path).ok()?.uid(), rustix::process::geteuid().as_raw());
    (owner != user).then(|| {
        let path = path.display();
        format!("; the file belongs to user {owner}, and targe runs as user {user}: chown {user} {path}")
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_of_another_user_comes_with_the_command_that_gives_it_away() {
        let scratch = Scratch::new();
        let own = scratch.path().join("own.img");
        std::fs::write(&own, "").unwrap();
        assert_eq!(owner_hint(&own), None);
        assert_eq!(owner_hint(&scratch.path().join("none.img")), None);
        let user = rustix::process::geteuid().as_raw();
        let (other, owner) =
            if user == 0 { (own.clone(), 12_345) } else { (PathBuf::from("/etc/passwd"), 0) };
        if user == 0 {
            std::os::unix::fs::chown(&own, Some(owner), None).unwrap();
        }
        let text = format!(
            "; the file belongs to user {owner}, and targe runs as user {user}: chown {user} {}",
            other.display()
        );
        assert_eq!(owner_hint(&other), Some(text));
    }
}
