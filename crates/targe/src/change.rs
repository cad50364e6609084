//! Changes of a running daemon and of its configuration file in one step, and the display of what a change
//! does.
//!
//! The file is locked while it is read, changed and replaced. The daemon prepares the change first, so that
//! nothing can fail after the file was replaced; it applies the change when the file is in place.

mod busy;
mod candidate;
mod output;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use daemon::admin::api::{ErrorKind, Method, Request, Status};
use daemon::admin::change_api::{Applied, BoundLuns, Change, Effective, Plan, StateFacts};
use daemon::admin::client::{ClientError, Connection};
use daemon::admin::lun_api::{Lun, Luns};
use daemon::config::{Config, Revision, plan};
use daemon::config_file::{ConfigFileError, LockedFile, read_text};
use serde::de::DeserializeOwned;

pub(crate) use self::candidate::{Source, candidate, candidate_of_all, has_target, setting};
use self::output::End;
use crate::{Failure, daemon_socket};

/// How long the daemon may take to prepare or apply a change.
const CHANGE_MAX: Duration = Duration::from_secs(300);

/// How long after the daemon has prepared a change the file may be replaced. The daemon waits 10 s.
const REPLACE_MAX: Duration = Duration::from_secs(8);

/// How a change is made and shown.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Show what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `targe apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The new configuration; it replaces the daemon's own file [default: that file, as it is now]
    pub(crate) file: Option<PathBuf>,
    /// Replace the daemon's own file even if it was edited since it was applied
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Apply it although it ends sessions or takes LUNs from them
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) how: ChangeArgs,
}

/// A new text of the configuration file.
pub(crate) struct Candidate {
    pub(crate) text: String,
    /// How messages about mistakes call the text.
    pub(crate) name: String,
    /// The operator's action, for the audit log.
    pub(crate) action: String,
    /// Whether changes that were made to the file and not applied yet prevent this one.
    pub(crate) needs_applied_file: bool,
    /// Whether the operator wants it even if it ends sessions or takes LUNs from them.
    pub(crate) force: bool,
}

/// A running daemon and its configuration file, which is locked.
pub(crate) struct Target {
    connection: Connection,
    /// The revision of the configuration file that runs.
    revision: Option<String>,
    file: LockedFile,
}

pub(crate) fn apply(args: &ApplyArgs) -> Result<(), Failure> {
    // Without FILE, the file is not replaced.
    let open = if args.file.is_none() { LockedFile::open_or_read } else { LockedFile::open };
    let mut target = Target::open(&args.how, open)?;
    let text = match &args.file {
        Some(file) if !is_same(file, target.file.path()) => {
            if !args.overwrite {
                target.refuse_edited()?;
            }
            read_text(file).map_err(failed)?
        }
        _ => target.file.text().to_owned(),
    };
    let name = args.file.clone().unwrap_or_else(|| target.file.path().to_path_buf());
    let candidate = Candidate {
        text,
        name: name.display().to_string(),
        action: "apply".to_owned(),
        needs_applied_file: false,
        force: args.force,
    };
    target.change(&candidate, &args.how)
}

impl Target {
    /// Finds the daemon, and locks its configuration file with `lock`, unless nothing is to be changed.
    pub(crate) fn open(
        how: &ChangeArgs,
        lock: fn(&Path) -> Result<LockedFile, ConfigFileError>,
    ) -> Result<Self, Failure> {
        let mut connection = connect(how)?;
        let status: Status = call(&mut connection, &Request::new(Method::Status))?;
        let Some(path) = &status.config else {
            return Err(Failure::Failed(
                "the daemon was started with flags and without --config, so there is no file to change; write what it \
                 serves to a file, and start it with --config FILE"
                    .to_owned(),
            ));
        };
        let open = if how.dry_run { LockedFile::read } else { lock };
        let file = open(Path::new(path)).map_err(failed)?;
        // Another program may have changed both while this one waited for the lock.
        drop(connection);
        let mut connection = connect(how)?;
        let Status { revision, .. } = call(&mut connection, &Request::new(Method::Status))?;
        Ok(Self { connection, revision, file })
    }

    /// Refuses to replace a file that was edited since it was applied: the edit would be lost.
    fn refuse_edited(&mut self) -> Result<(), Failure> {
        let found = Revision::of(self.file.text().as_bytes()).to_string();
        if self.revision.as_ref() == Some(&found) {
            return Ok(());
        }
        let path = self.file.path().display().to_string();
        let own = Candidate {
            text: self.file.text().to_owned(),
            name: path.clone(),
            action: "apply".to_owned(),
            needs_applied_file: false,
            force: false,
        };
        // A file with mistakes has no plan; `targe apply` tells the mistakes.
        let edits = self.send(Method::Plan, &own, None).map(|plan| plan.unapplied).unwrap_or_default();
        let edits: String = edits.iter().map(|edit| format!("\n  {edit}")).collect();
        Err(Failure::Failed(format!(
            "{path} was edited since it was applied; run \"targe apply\" without FILE to apply it, or say --overwrite \
             to lose the edit{edits}"
        )))
    }

    /// Returns the configuration file, with what the daemon says about the state that its meaning depends on.
    pub(crate) fn source(&mut self) -> Result<Source<'_>, Failure> {
        let facts: Option<StateFacts> = match self.connection.call(&Request::new(Method::StateFacts)) {
            Ok(facts) => Some(parse(facts)?),
            // The daemon is of a release that does not know the method.
            Err(ClientError::Refused(failure)) if failure.kind == ErrorKind::Malformed => None,
            Err(error) => return Err(refused(error)),
        };
        Source::of_daemon(&self.file, facts)
    }

    /// Shows what a text would change, and applies it unless that is only a trial.
    pub(crate) fn change(&mut self, candidate: &Candidate, how: &ChangeArgs) -> Result<(), Failure> {
        self.connection = connect(how)?;
        let mut plan: Plan = self.send(Method::Plan, candidate, None)?;
        if candidate.needs_applied_file && !plan.unapplied.is_empty() {
            return Err(Failure::Failed(output::unapplied(&plan)));
        }
        // The text can mean something else although it is the same: files with secrets change, too.
        let is_running = candidate.text == self.file.text()
            && self.revision.as_deref() == Some(plan.revision.as_str())
            && plan.changes.iter().all(|change| change.effective == Effective::Restart);
        if !candidate.force && plan.refusal.is_none() {
            plan.refusal = busy::refusal(&plan.sessions);
        }
        if !how.json {
            output::show(&plan);
        }
        if let Some(why) = &plan.refusal {
            output::end(how, &plan, End::Refused);
            return Err(Failure::Failed(why.clone()));
        }
        if how.dry_run {
            output::end(how, &plan, End::Trial);
            return Ok(());
        }
        if is_running {
            output::end(how, &plan, End::Unchanged);
            return Ok(());
        }
        let message = self.carry_out(candidate, &plan, how)?;
        output::end(how, &plan, End::Applied(&message));
        Ok(())
    }

    /// Applies a text and shows nothing, whatever sessions lose by it. Nothing happens if it means what runs
    /// already.
    pub(crate) fn change_quietly(&mut self, candidate: &Candidate, how: &ChangeArgs) -> Result<(), Failure> {
        self.connection = connect(how)?;
        let plan: Plan = self.send(Method::Plan, candidate, None)?;
        if candidate.needs_applied_file && !plan.unapplied.is_empty() {
            return Err(Failure::Failed(output::unapplied(&plan)));
        }
        match &plan.refusal {
            Some(why) => Err(Failure::Failed(why.clone())),
            None if plan.changes.is_empty() => Ok(()),
            None => self.carry_out(candidate, &plan, how).map(drop),
        }
    }

    /// Prepares, replaces the file, and commits. Returns what changed.
    fn carry_out(&mut self, candidate: &Candidate, plan: &Plan, how: &ChangeArgs) -> Result<String, Failure> {
        let prepared: Plan = self.send(Method::Prepare, candidate, Some(plan.generation))?;
        // An initiator can have logged in since the plan was made.
        if let Some(why) = busy::refusal(&prepared.sessions).filter(|_| !candidate.force) {
            let _ = self.connection.call(&Request::new(Method::Abandon));
            return Err(Failure::Failed(why));
        }
        let latest = Instant::now() + REPLACE_MAX;
        let former = self.file.text().to_owned();
        let is_other = candidate.text != former;
        if is_other {
            match self.file.replace(&candidate.text, Some(latest)) {
                Ok(unsynced) => warn_unsynced(unsynced),
                Err(error) => {
                    // Without an answer the daemon looks at the file, and drops the change as well.
                    let _ = self.connection.call(&Request::new(Method::Abandon));
                    return Err(failed(error));
                }
            }
        }
        let former = is_other.then_some(former.as_str());
        match self.connection.call(&Request::new(Method::Commit)) {
            Ok(applied) => {
                let applied: Applied = parse(applied)?;
                Ok(applied.message)
            }
            Err(ClientError::Refused(failure)) if is_decision(failure.kind) => {
                Err(self.restore(former, failure.message))
            }
            Err(error) => self.find_out(candidate, plan, former, &error, how),
        }
    }

    /// Finds out what became of a change when no answer to `commit` tells it.
    fn find_out(
        &mut self,
        candidate: &Candidate,
        plan: &Plan,
        former: Option<&str>,
        error: &ClientError,
        how: &ChangeArgs,
    ) -> Result<String, Failure> {
        let unknown = || {
            Failure::Failed(format!(
                "{error}; whether the change was applied is unknown; {} has the new configuration, which the next start \
                 uses",
                self.file.path().display()
            ))
        };
        let mut connection = daemon_socket::connect(how.socket.as_deref()).map_err(|_| unknown())?;
        connection.wait_for(CHANGE_MAX).map_err(|_| unknown())?;
        // The daemon answers when it has decided about the change before; whether it likes the text is
        // unimportant.
        let change = Change {
            text: candidate.text.clone(),
            name: candidate.name.clone(),
            base: None,
            generation: None,
            action: candidate.action.clone(),
        };
        let request = Request { change: Some(change), ..Request::new(Method::Plan) };
        match connection.call(&request) {
            Ok(_) => {}
            Err(ClientError::Refused(failure)) if is_decision(failure.kind) => {}
            Err(_) => return Err(unknown()),
        }
        let status: Status = call(&mut connection, &Request::new(Method::Status)).map_err(|_| unknown())?;
        if status.revision.as_deref() == Some(plan.revision.as_str()) {
            return Ok(format!(
                "the new configuration runs, although the daemon did not confirm it: {error}"
            ));
        }
        Err(self.restore(former, format!("{error}; the daemon did not apply the change")))
    }

    /// Puts the former text back after the daemon has not applied the new one.
    fn restore(&mut self, former: Option<&str>, mut message: String) -> Failure {
        match former.map(|former| self.file.replace(former, None)) {
            Some(Ok(unsynced)) => warn_unsynced(unsynced),
            Some(Err(error)) => {
                let path = self.file.path().display();
                message = format!("{message}; and {path} keeps the new text, as {error}");
            }
            None => {}
        }
        Failure::Failed(message)
    }

    fn send(
        &mut self,
        method: Method,
        candidate: &Candidate,
        generation: Option<u64>,
    ) -> Result<Plan, Failure> {
        let change = Change {
            text: candidate.text.clone(),
            name: candidate.name.clone(),
            base: Some(Revision::of(self.file.text().as_bytes()).to_string()),
            generation,
            action: candidate.action.clone(),
        };
        call(&mut self.connection, &Request { change: Some(change), ..Request::new(method) })
    }
}

/// Connects to the daemon for a change. The lock of the file and an edit of a large configuration can take
/// longer than the daemon keeps an idle connection open, so that each of the steps around them has a
/// connection of its own. The daemon refuses the edited text if the file or the configuration that runs has
/// changed meanwhile.
fn connect(how: &ChangeArgs) -> Result<Connection, Failure> {
    let connection = daemon_socket::connect(how.socket.as_deref())?;
    connection.wait_for(CHANGE_MAX).map_err(refused)?;
    Ok(connection)
}

/// Returns the LUNs that the daemon serves.
pub(crate) fn luns(how: &ChangeArgs) -> Result<Vec<Lun>, Failure> {
    let mut connection = daemon_socket::connect(how.socket.as_deref())?;
    let Luns { luns, .. } = call(&mut connection, &Request::new(Method::Luns))?;
    Ok(luns)
}

/// Returns the LUNs of a target that hosts may still have open.
pub(crate) fn bound_luns(how: &ChangeArgs, target: &str) -> Result<BTreeSet<u16>, Failure> {
    let mut connection = daemon_socket::connect(how.socket.as_deref())?;
    let BoundLuns { targets } = call(&mut connection, &Request::new(Method::BoundLuns))?;
    let of_target = targets.into_iter().filter(|known| known.target.eq_ignore_ascii_case(target));
    Ok(of_target.flat_map(|known| known.luns).collect())
}

/// Changes a configuration file without a daemon, whose state directory is given if it is not known
/// otherwise.
pub(crate) fn change_file(
    file: &mut LockedFile,
    candidate: &Candidate,
    state_dir: Option<&Path>,
    how: &ChangeArgs,
) -> Result<(), Failure> {
    let Source { environment: around, flags, .. } = Source::of_file(file, state_dir)?;
    let access = file.access();
    let before = Config::load_text_without_media(&flags, &around, file.given_path(), file.text(), access);
    let before = before.map(|before| before.config).ok();
    // What is wrong with the media of other LUNs is no part of the change.
    let kept = before.as_ref().map_or(&[][..], |before| before.units.as_slice());
    let text = (Path::new(&candidate.name), candidate.text.as_str());
    let loaded = Config::load_changed_text(&flags, &around, text, access, kept)
        .map_err(|report| Failure::Misconfigured(report.to_string()))?;
    let changes = before.map(|before| plan(&before, &loaded.config)).unwrap_or_default();
    let planned = output::plan_of_file(file.path(), &candidate.text, changes, &loaded.report);
    if !how.json {
        output::show(&planned);
    }
    if how.dry_run {
        output::end(how, &planned, End::Trial);
        return Ok(());
    }
    if candidate.text != file.text() {
        warn_unsynced(file.replace(&candidate.text, None).map_err(failed)?);
    }
    output::end(how, &planned, End::Written);
    Ok(())
}

/// Returns whether a failure of this kind means that the daemon has decided about a change. Without the
/// decision, the daemon may still be applying it.
const fn is_decision(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::Unavailable)
}

/// Returns whether two paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Warns that a new file is in place and may be lost in a power failure.
fn warn_unsynced(unsynced: Option<ConfigFileError>) {
    if let Some(error) = unsynced {
        eprintln!("targe: warning: {error}; the former file may come back after a power failure");
    }
}

pub(crate) fn failed(error: ConfigFileError) -> Failure {
    Failure::Failed(error.to_string())
}

/// Sends a request; returns its result.
pub(crate) fn call<T: DeserializeOwned>(
    connection: &mut Connection,
    request: &Request,
) -> Result<T, Failure> {
    parse(connection.call(request).map_err(refused)?)
}

fn parse<T: DeserializeOwned>(answer: serde_json::Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|error| {
        Failure::Failed(format!("the daemon uses another version of the admin protocol: {error}"))
    })
}

fn refused(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(failure) if failure.kind == ErrorKind::Invalid => {
            Failure::Misconfigured(failure.message)
        }
        error => Failure::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use daemon::admin::api::Response;

    use super::*;

    #[test]
    fn an_edit_that_takes_longer_than_an_idle_connection_lasts_is_sent() {
        let folder = std::env::temp_dir().join(format!("targe-change-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let (path, socket) = (folder.join("targe.toml"), folder.join("socket"));
        std::fs::write(&path, "log = 'info'\n").unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let how = ChangeArgs { dry_run: false, socket: Some(socket), json: true };
        let file = LockedFile::open(&path).unwrap();
        let mut target = Target { connection: connect(&how).unwrap(), revision: None, file };
        let daemon = std::thread::spawn(move || {
            // The daemon closes the idle connection.
            drop(listener.accept().unwrap());
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            stream.read_line(&mut String::new()).unwrap();
            let plan = Plan {
                file: String::new(),
                revision: String::new(),
                base: None,
                generation: 1,
                changes: Vec::new(),
                warnings: Vec::new(),
                sessions: Vec::new(),
                refusal: Some("the daemon got the text".to_owned()),
                unapplied: Vec::new(),
            };
            let answer = serde_json::to_string(&Response::Result(plan)).unwrap() + "\n";
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        });
        let candidate = Candidate {
            text: String::new(),
            name: "targe.toml".to_owned(),
            action: "test".to_owned(),
            needs_applied_file: true,
            force: false,
        };
        // The connection is closed by now.
        target.source().map(drop).unwrap_err();
        let refusal = target.change_quietly(&candidate, &how);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(refusal, Err(Failure::Failed(why)) if why == "the daemon got the text"));
        daemon.join().unwrap();
    }

    #[test]
    fn an_unavailable_daemon_has_not_decided() {
        assert!(!is_decision(ErrorKind::Unavailable));
        for kind in [ErrorKind::Refused, ErrorKind::Conflict, ErrorKind::Invalid] {
            assert!(is_decision(kind));
        }
    }
}
