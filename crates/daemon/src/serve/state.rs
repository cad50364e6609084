//! The state directory: files that must survive a crash and a loss of power. One file per logical unit holds
//! its persistent state, such as persistent reservations; the crate `device` defines its contents.
//!
//! A file is replaced as a whole: the new contents are written to a temporary file, made durable and renamed,
//! and the directory is made durable. A reader finds either the old state or the new one. If the directory
//! cannot be made durable, the former file is put back: what was refused must not be there after a restart.

mod lock;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::persistent_state::unfinished_sanitize;

pub(super) use lock::StateLock;

use super::sanitize_record::SanitizeRecord;
use super::target_ports::{Damaged, TargetPorts};
use crate::config::{Config, Naa};
use crate::os_error;

/// The most bytes that are read of a state: one byte more than the longest state that is written, so that the
/// device server detects a state that is too long.
const STATE_LEN_MAX: usize = device::persistent_state::MAX_LEN + 1;

/// The state directory of a running daemon.
#[derive(Clone, Debug)]
pub struct StateDir {
    root: Directory,
    units: Directory,
    /// Kept as long as anything can write to the directory.
    lock: Option<Arc<StateLock>>,
}

/// A directory that stays open, so that a lack of descriptors cannot keep it from being made durable.
#[derive(Clone, Debug)]
struct Directory {
    path: PathBuf,
    file: Arc<File>,
}

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("state directory: cannot {what} {}: {}", path.display(), os_error(source))]
pub struct StateError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StateDir {
    /// Opens a state directory. Creates it, with mode 0700, if it is missing.
    ///
    /// # Errors
    /// [`StateError`]
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let units = path.join("units");
        DirBuilder::new().recursive(true).mode(0o700).create(&units).map_err(|source| StateError {
            what: "create",
            path: units.clone(),
            source,
        })?;
        for directory in [path, &units] {
            check_closed(directory)?;
        }
        let (root, units) = (Directory::open(path.to_path_buf())?, Directory::open(units)?);
        Ok(Self { root, units, lock: None })
    }

    /// Keeps the lock of the directory until this and every clone of it are dropped.
    pub(super) fn keep(&mut self, lock: StateLock) {
        self.lock = Some(Arc::new(lock));
    }

    /// Returns the lock of the directory, if this keeps it.
    pub(super) fn lock(&self) -> Option<&StateLock> {
        self.lock.as_deref()
    }

    /// Returns the path of a unit's state file.
    pub fn file(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.state"))
    }

    /// Returns the path of the file that records how long a unit's file was.
    pub(super) fn size_file(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.size"))
    }

    /// Returns the path of the file that records on which medium a unit's SANITIZE or FORMAT UNIT is under
    /// way.
    pub(super) fn sanitize_file(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.sanitize"))
    }

    /// Removes the length records of units whose world-wide names are not `known`.
    pub(super) fn forget_sizes(&self, known: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.units.path).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            // A temporary file that a crash left is not in use: only this thread writes these files.
            let is_left = name.ends_with(".size.new");
            if is_left || name.strip_suffix(".size").is_some_and(|unit| !known(unit)) {
                // A record that cannot be removed is read again only if the same disk is configured again.
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Returns the path of the key file of an encrypted unit that is on a block device.
    pub(super) fn media_key(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.media-key"))
    }

    /// Reads the state of a unit; `None` when there is none.
    ///
    /// # Errors
    /// [`StateError`]. Serving the unit without its state would let a fenced initiator write.
    pub fn load(&self, unit: Naa) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.file(unit);
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(&path)?
                .take(u64::try_from(STATE_LEN_MAX).unwrap_or(u64::MAX))
                .read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            // The daemon never writes an empty file, so the file system lost the contents. The device server
            // takes zero bytes for no state; this single byte makes it report a damaged state.
            Ok(bytes) if bytes.is_empty() => Ok(Some(vec![0])),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { what: "read", path: path.clone(), source }),
        }
    }

    /// Writes the state of a unit with this medium; returns when it is durable. An empty state means that
    /// nothing is to survive.
    ///
    /// # Errors
    /// [`StateError`]; the former state is still there then.
    pub(super) fn save(&self, unit: Naa, state: &[u8], medium: &SanitizeRecord) -> Result<(), StateError> {
        let record = self.sanitize_file(unit);
        let is_unfinished = unfinished_sanitize(state).is_some();
        if is_unfinished {
            // A state without its record would let another medium be erased.
            self.units.replace(&record, medium.encode().as_bytes())?;
        }
        self.save_state(unit, state)?;
        if !is_unfinished {
            // Each save of such an operation replaces the record, so one that cannot be removed does no harm.
            let _ = fs::remove_file(&record);
        }
        Ok(())
    }

    fn save_state(&self, unit: Naa, state: &[u8]) -> Result<(), StateError> {
        let path = self.file(unit);
        if state.is_empty() { self.units.remove(&path) } else { self.units.replace(&path, state) }
    }

    /// Reads the identifiers of target ports. A directory without identifiers yields the positional ones of
    /// earlier releases if anything is reserved in it, else fresh ones.
    ///
    /// # Errors
    /// [`StateError`]
    pub(crate) fn load_ports(&self, config: &Config) -> Result<TargetPorts, StateError> {
        let path = self.ports();
        match fs::read_to_string(&path) {
            Ok(text) => TargetPorts::decode(&text).map_err(|Damaged| StateError {
                what: "parse the target port identifiers in",
                path,
                source: io::Error::new(
                    ErrorKind::InvalidData,
                    "it is damaged; restore it from a backup, or remove it and register all reservations again",
                ),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let saved = fs::read_dir(&self.units.path).map_err(|source| StateError {
                    what: "list",
                    path: self.units.path.clone(),
                    source,
                })?;
                let is_state = |path: &Path| path.extension().is_some_and(|extension| extension == "state");
                let any = saved.flatten().any(|entry| is_state(&entry.path()));
                Ok(if any { TargetPorts::positional(config) } else { TargetPorts::default() })
            }
            Err(source) => Err(StateError { what: "read", path, source }),
        }
    }

    /// Writes the identifiers of target ports; returns when they are durable.
    ///
    /// # Errors
    /// [`StateError`]; the former identifiers are still there then.
    pub(crate) fn save_ports(&self, ports: &TargetPorts) -> Result<(), StateError> {
        self.root.replace(&self.ports(), ports.encode().as_bytes())
    }

    /// Reads the text of the nexus bindings; `None` when there are none.
    ///
    /// # Errors
    /// [`StateError`]
    pub(super) fn load_bindings(&self) -> Result<Option<String>, StateError> {
        match fs::read(self.bindings()) {
            // Text that is not UTF-8 is damaged, and the checksum shows it.
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { what: "read", path: self.bindings(), source }),
        }
    }

    /// Returns the error that the nexus bindings are damaged.
    pub(super) fn damaged_bindings(&self) -> StateError {
        let why = "it is damaged; restore it from a backup, or log out on every host and remove it";
        let source = io::Error::new(ErrorKind::InvalidData, why);
        StateError { what: "parse the nexus bindings in", path: self.bindings(), source }
    }

    /// Writes the text of the nexus bindings; returns when it is durable.
    ///
    /// # Errors
    /// [`StateError`]; the former bindings are still there then.
    pub(super) fn save_bindings(&self, text: &str) -> Result<(), StateError> {
        self.root.replace(&self.bindings(), text.as_bytes())
    }

    /// Returns the path of the audit log.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.root.path.join("audit.log")
    }

    fn bindings(&self) -> PathBuf {
        self.root.path.join("bindings")
    }

    fn ports(&self) -> PathBuf {
        self.root.path.join("ports")
    }
}

impl Directory {
    fn open(path: PathBuf) -> Result<Self, StateError> {
        match File::open(&path) {
            Ok(file) => Ok(Self { path, file: Arc::new(file) }),
            Err(source) => Err(StateError { what: "open", path, source }),
        }
    }

    /// Replaces a file in it as a whole; returns when that is durable.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StateError> {
        let former = Former::open(path)?;
        replace(path, bytes)?;
        self.sync_or_put_back(path, former)
    }

    /// Removes a file in it, if it is there; returns when that is durable.
    fn remove(&self, path: &Path) -> Result<(), StateError> {
        let former = Former::open(path)?;
        match fs::remove_file(path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(StateError { what: "remove", path: path.to_path_buf(), source })
            }
            _ => self.sync_or_put_back(path, former),
        }
    }

    fn sync_or_put_back(&self, path: &Path, former: Former) -> Result<(), StateError> {
        self.file.sync_all().map_err(|source| {
            if let Err(error) = former.put_back(path) {
                crate::error!("{error}; after a restart it may hold what was refused");
            }
            StateError { what: "sync", path: self.path.clone(), source }
        })
    }
}

/// A file before it is replaced or removed, if there is one.
struct Former(Option<File>);

impl Former {
    fn open(path: &Path) -> Result<Self, StateError> {
        match File::open(path) {
            Ok(file) => Ok(Self(Some(file))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self(None)),
            Err(source) => Err(StateError { what: "read", path: path.to_path_buf(), source }),
        }
    }

    fn put_back(self, path: &Path) -> Result<(), StateError> {
        let failed = |source| StateError { what: "put back", path: path.to_path_buf(), source };
        match self.0 {
            None => match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            },
            Some(mut file) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).map_err(failed)?;
                replace(path, &bytes)
            }
        }
    }
}

/// Refuses a directory that everybody may write to: any user who can create a file there could set the
/// reservations. A sticky bit does not keep a user from creating a file first.
fn check_closed(path: &Path) -> Result<(), StateError> {
    let failed = |source| StateError { what: "use", path: path.to_path_buf(), source };
    let mode = path.metadata().map_err(failed)?.mode();
    if mode & 0o002 != 0 {
        let mode = mode & 0o7777;
        let why = format!("every user can write to it (mode {mode:03o}); run chmod o-w on it");
        return Err(failed(io::Error::new(ErrorKind::PermissionDenied, why)));
    }
    if mode & 0o020 != 0 {
        crate::warning!(
            "the group of {} can write to it, and it holds the persistent reservations",
            path.display()
        );
    }
    Ok(())
}

/// Returns the path of the temporary file for the next contents of a file. Different threads replace files of
/// one unit at the same time, so each file has a temporary file of its own. A temporary file that a crash
/// left is overwritten, and never read.
fn temp_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Replaces a file as a whole.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let failed = |what, path: &Path| {
        let path = path.to_path_buf();
        move |source| StateError { what, path, source }
    };
    let fresh = temp_path(path);
    write_durably(&fresh, bytes).map_err(failed("write", &fresh))?;
    fs::rename(&fresh, path).map_err(failed("replace", path))
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::Scratch;

    const UNIT: Naa = Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 1]);

    #[test]
    fn what_was_saved_is_found_and_what_was_dropped_is_not() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("a/b")).unwrap();
        assert_eq!(state.load(UNIT).unwrap(), None);
        state.save_state(UNIT, b"first").unwrap();
        state.save_state(UNIT, b"second").unwrap();
        let again = StateDir::open(&scratch.path().join("a/b")).unwrap();
        assert_eq!(again.load(UNIT).unwrap().as_deref(), Some(&b"second"[..]));
        assert_eq!(again.load(Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 2])).unwrap(), None);
        again.save_state(UNIT, b"").unwrap();
        assert_eq!(again.load(UNIT).unwrap(), None);
        again.save_state(UNIT, b"").unwrap();
    }

    /// CVE-2020-14019: everybody could read what the daemon wrote about its sessions.
    #[test]
    fn only_the_owner_can_read_it() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        state.save_state(UNIT, b"x").unwrap();
        assert_eq!(scratch.path().join("state").metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(state.file(UNIT).metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_write_that_broke_off_leaves_the_old_state() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        state.save_state(UNIT, b"old").unwrap();
        // A crash between write and rename leaves these files.
        fs::write(temp_path(&state.file(UNIT)), b"ha").unwrap();
        fs::write(temp_path(&state.size_file(UNIT)), b"5 5 5").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"old"[..]));
        state.save_state(UNIT, b"new").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn a_change_that_cannot_be_made_durable_is_not_there_afterwards() {
        let scratch = Scratch::new();
        let mut state = StateDir::open(scratch.path()).unwrap();
        state.save_state(UNIT, b"reserved").unwrap();
        let (works, other) = (Arc::clone(&state.units.file), Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 2]));
        // The system cannot make a pipe durable.
        let (_, pipe) = io::pipe().unwrap();
        state.units.file = Arc::new(std::os::fd::OwnedFd::from(pipe).into());
        for next in [&b"erasing"[..], b""] {
            let error = state.save_state(UNIT, next).unwrap_err().to_string();
            assert!(error.starts_with("state directory: cannot sync "), "{error}");
            assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"reserved"[..]));
        }
        state.save_state(other, b"first").unwrap_err();
        assert_eq!(state.load(other).unwrap(), None);
        state.units.file = works;
        state.save_state(UNIT, b"").unwrap();
        assert_eq!(state.load(UNIT).unwrap(), None);
    }

    #[test]
    fn files_of_one_unit_are_replaced_independently() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        // The temporary file of another thread that is about to replace the length record.
        let half = temp_path(&state.size_file(UNIT));
        fs::write(&half, b"5 5").unwrap();
        state.save_state(UNIT, b"reserved").unwrap();
        assert_eq!(fs::read(&half).unwrap(), b"5 5");
        fs::rename(&half, state.size_file(UNIT)).unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"reserved"[..]));
    }

    #[test]
    fn an_emptied_file_is_not_taken_for_no_state() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        fs::write(state.file(UNIT), b"").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&[0][..]));
    }

    #[test]
    fn a_directory_that_everybody_may_write_to_is_refused() {
        let scratch = Scratch::new();
        let path = scratch.path().join("state");
        drop(StateDir::open(&path).unwrap());
        for (place, mode) in [("", 0o777), ("", 0o1777), ("units", 0o703)] {
            let place = path.join(place);
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
            let error = StateDir::open(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("every user can write to it (mode {mode:03o})")), "{error}");
            fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
        }
        drop(StateDir::open(&path).unwrap());
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let scratch = Scratch::new();
        fs::write(scratch.path().join("file"), "").unwrap();
        let error = StateDir::open(&scratch.path().join("file")).unwrap_err().to_string();
        assert!(error.starts_with("state directory: cannot create /"), "{error}");
        assert!(error.ends_with("file/units: not a directory"), "{error}");
        let state = StateDir::open(scratch.path()).unwrap();
        fs::create_dir(state.file(UNIT)).unwrap();
        assert!(state.load(UNIT).unwrap_err().to_string().ends_with("is a directory"));
        assert!(state.save_state(UNIT, b"x").is_err());
    }
}
