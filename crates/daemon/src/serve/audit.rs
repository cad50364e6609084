//! The audit log: one line of JSON for each thing that an operator made the daemon do, with who did it, when,
//! and the result. It holds no secrets: the changes in it are those of the plan.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::num::NonZero;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use crate::admin::change::Peer;
use crate::answers::{self, ANSWER_MAX};
use crate::os_error;

/// The longest file in bytes. A longer one is renamed to `audit.log.1`, in place of the one before.
const FILE_LEN_MAX: u64 = 16 << 20;
/// The most changes that one entry lists; it counts the others.
const CHANGES_MAX: usize = 100;
/// The longest text of an entry, in characters.
const TEXT_LEN_MAX: usize = 4096;

/// The most threads that write entries: those that a file system keeps.
const WAITING_MAX: usize = 16;

/// The audit log in the state directory.
#[derive(Debug)]
pub(super) struct AuditLog(Arc<AuditFile>);

#[derive(Debug)]
struct AuditFile {
    path: PathBuf,
    /// Held while an entry is written, so that no thread renames a file that another one has just begun.
    writing: Mutex<()>,
    /// How many threads write entries.
    waiting: AtomicUsize,
}

/// One thing that an operator did.
#[derive(Debug, Default)]
pub(super) struct AuditEntry<'a> {
    /// Who did it; `None` if it came as a signal.
    pub(super) peer: Option<&'a Peer>,
    /// What the operator did, such as `apply` or `lun add`.
    pub(super) action: &'a str,
    /// The revision of the configuration file that it is about.
    pub(super) revision: Option<String>,
    /// What changed, one difference per line. Of a refused reload, the access that it withdrew.
    pub(super) changes: &'a [String],
    /// `applied`, `refused`, `abandoned`, `done`, or `lost` if the sessions were given to a process that does
    /// not say that it serves them.
    pub(super) result: &'a str,
    /// The message to the operator.
    pub(super) message: &'a str,
}

/// An entry as it is written. Other programs read it, so fields are only added.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    /// `socket`, `http`, or `signal`, whose sender is unknown.
    via: &'static str,
    /// The name of the token, for `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    /// The address of the client, for `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
    uid: Option<u32>,
    login_uid: Option<u32>,
    pid: Option<i32>,
    program: Option<&'a str>,
    action: String,
    result: &'a str,
    message: String,
    revision: Option<String>,
    changes: Vec<String>,
    more_changes: usize,
}

/// An entry that a thread writes. It is no longer counted when this is dropped, also if the thread could not
/// be started.
struct WaitingEntry(Arc<AuditFile>);

impl WaitingEntry {
    fn new(file: &Arc<AuditFile>) -> Self {
        file.waiting.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(file))
    }
}

impl Drop for WaitingEntry {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl AuditLog {
    /// Returns the log that is kept in this file.
    pub(super) fn new(path: PathBuf) -> Self {
        Self(Arc::new(AuditFile { path, writing: Mutex::new(()), waiting: AtomicUsize::new(0) }))
    }

    /// Appends an entry, and makes it durable. If that fails or takes long, the log of the daemon says so:
    /// the operator's work goes on.
    pub(super) fn record(&self, entry: &AuditEntry<'_>) {
        let line = line_of(entry);
        self.write(move |file| {
            file.begin_another_file()?;
            file.append(line?)
        });
    }

    /// Appends the last entry of this process, while another one uses the log already: only that one begins
    /// another file.
    pub(super) fn record_last(&self, entry: &AuditEntry<'_>) {
        let line = line_of(entry);
        self.write(move |file| file.append(line?));
    }

    /// Writes on a thread that a file system which hangs can keep.
    fn write(&self, write: impl FnOnce(&AuditFile) -> io::Result<()> + Send + 'static) {
        let file = WaitingEntry::new(&self.0);
        if file.0.waiting.load(Ordering::Acquire) > WAITING_MAX {
            let file = &file.0;
            return crate::error!("the audit log {} does not answer: an entry is lost", file.path.display());
        }
        let write = move || {
            if let Err(error) = write(&file.0) {
                let path = file.0.path.display();
                crate::error!("cannot write to the audit log {path}: {}", os_error(&error));
            }
        };
        if answers::of_one(write, ANSWER_MAX).is_none() {
            let path = self.0.path.display();
            crate::error!("the audit log {path} does not answer: the entry is written when it does");
        }
    }
}

impl AuditFile {
    /// Renames a file that is too long.
    fn begin_another_file(&self) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.path.metadata().is_ok_and(|meta| meta.len() > FILE_LEN_MAX) {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        Ok(())
    }

    fn append(&self, mut line: Vec<u8>) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // The file is opened for each entry, so that another program can move it away.
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        if ends_within_line(&file)? {
            line.insert(0, b'\n');
        }
        file.write_all(&line)?;
        file.sync_data()
    }
}

/// Returns the line of an entry.
fn line_of(entry: &AuditEntry<'_>) -> io::Result<Vec<u8>> {
    let text = |text: &str| text.trim_end().chars().take(TEXT_LEN_MAX).collect::<String>();
    let (via, process, token) = match entry.peer {
        None => ("signal", None, None),
        Some(Peer::Process(process)) => ("socket", Some(process), None),
        Some(Peer::Token { name, address }) => ("http", None, Some((name.as_str(), *address))),
    };
    let line = Line {
        time: crate::log::timestamp(SystemTime::now()),
        via,
        token: token.map(|(name, _)| name),
        address: token.map(|(_, address)| address),
        uid: process.map(|process| process.uid),
        login_uid: process.and_then(|process| process.login_uid),
        pid: process.and_then(|process| process.pid).map(NonZero::get),
        program: process.and_then(|process| process.program.as_deref()),
        action: text(entry.action),
        result: entry.result,
        message: text(entry.message),
        revision: entry.revision.clone(),
        changes: entry.changes.iter().take(CHANGES_MAX).map(|change| text(change)).collect(),
        more_changes: entry.changes.len().saturating_sub(CHANGES_MAX),
    };
    let mut line = serde_json::to_vec(&line)?;
    line.push(b'\n');
    Ok(line)
}

/// Returns whether the last entry of a file was not written whole: the file system was full, or the power
/// failed.
fn ends_within_line(file: &File) -> io::Result<bool> {
    let len = file.metadata()?.len();
    let mut last = [b'\n'];
    if let Some(at) = len.checked_sub(1) {
        file.read_at(&mut last, at)?;
    }
    Ok(last != [b'\n'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use serde_json::Value;

    use super::*;
    use crate::admin::change::PeerProcess;
    use crate::scratch::Scratch;

    #[test]
    fn every_entry_is_one_line_with_its_author() {
        let scratch = Scratch::new();
        let log = AuditLog::new(scratch.path().join("audit.log"));
        let process = PeerProcess {
            uid: 7,
            pid: NonZero::new(8),
            login_uid: Some(9),
            program: Some("targe".to_owned()),
        };
        let peer = Peer::Process(process);
        let changes: Vec<String> = (0..CHANGES_MAX + 2).map(|n| format!("+ LUN\n{n}")).collect();
        log.record(&AuditEntry {
            peer: Some(&peer),
            action: "lun add",
            changes: &changes,
            result: "applied",
            message: "two\nlines\n",
            ..AuditEntry::default()
        });
        log.record(&AuditEntry { action: "reload", result: "refused", ..AuditEntry::default() });
        let anna = Peer::Token { name: "anna".to_owned(), address: [192, 0, 2, 1].into() };
        log.record(&AuditEntry { peer: Some(&anna), action: "session drop", ..AuditEntry::default() });
        let text = std::fs::read_to_string(scratch.path().join("audit.log")).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        let of_token = (&lines[2]["via"], &lines[2]["token"], &lines[2]["address"], &lines[2]["uid"]);
        assert_eq!(of_token, (&"http".into(), &"anna".into(), &"192.0.2.1".into(), &Value::Null));
        assert_eq!(
            (&lines[0]["uid"], &lines[0]["login_uid"], &lines[0]["pid"]),
            (&7.into(), &9.into(), &8.into())
        );
        assert_eq!(lines[0]["message"], "two\nlines");
        assert_eq!(lines[0]["changes"].as_array().unwrap().len(), CHANGES_MAX);
        assert_eq!(lines[0]["more_changes"], 2);
        assert_eq!((&lines[1]["uid"], &lines[1]["result"]), (&Value::Null, &"refused".into()));
        assert_eq!(scratch.path().join("audit.log").metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_entry_after_a_torn_one_has_a_line_of_its_own() {
        let scratch = Scratch::new();
        let path = scratch.path().join("audit.log");
        let log = AuditLog::new(path.clone());
        let entry = |action| AuditEntry { action, ..AuditEntry::default() };
        log.record(&entry("apply"));
        // The file system was full, or the power failed.
        let whole = path.metadata().unwrap().len();
        log.record(&entry("reload"));
        File::options().write(true).open(&path).unwrap().set_len(whole + 20).unwrap();
        log.record(&entry("lun add"));
        log.record(&entry("lun remove"));
        let text = std::fs::read_to_string(&path).unwrap();
        let actions: Vec<Option<String>> = text
            .lines()
            .map(|line| Some(serde_json::from_str::<Value>(line).ok()?["action"].as_str()?.to_owned()))
            .collect();
        let whole = |action: &str| Some(action.to_owned());
        assert_eq!(actions, [whole("apply"), None, whole("lun add"), whole("lun remove")]);
    }

    #[test]
    fn a_long_log_makes_way_for_a_new_one() {
        let scratch = Scratch::new();
        let path = scratch.path().join("audit.log");
        File::create(&path).unwrap().set_len(FILE_LEN_MAX + 1).unwrap();
        AuditLog::new(path.clone()).record(&AuditEntry::default());
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(scratch.path().join("audit.log.1").metadata().unwrap().len(), FILE_LEN_MAX + 1);
    }

    #[test]
    fn threads_do_not_rename_each_others_new_log() {
        const THREADS: usize = 4;
        let scratch = Scratch::new();
        let path = scratch.path().join("audit.log");
        for _ in 0..300 {
            File::create(&path).unwrap().set_len(FILE_LEN_MAX + 1).unwrap();
            let (log, all_there) = (AuditLog::new(path.clone()), std::sync::Barrier::new(THREADS));
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        all_there.wait();
                        log.record(&AuditEntry::default());
                    });
                }
            });
            assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), THREADS);
        }
    }
}
