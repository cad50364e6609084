//! The state directory: files that must survive a crash and a loss of power. One file per logical unit holds
//! its persistent state, such as persistent reservations; the crate `device` defines its contents.
//!
//! A file is replaced as a whole: the new contents are written to a second file and made durable, both files
//! exchange their names, and the directory is made durable. A reader finds either the old state or the new
//! one. The second file stays, so that a replacement needs no new storage: hosts' data may have filled the
//! file system. If the directory cannot be made durable, the former file is put back: what was refused must
//! not be there after a restart.

mod in_time;
mod lock;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backends::exchanged_file;
use base::int_cast::to_u64;
use device::persistent_state::unfinished_sanitize;
use security::guess_limit::GuessLimit;

pub(super) use lock::StateLock;

use in_time::Replacements;

use super::sanitize_record::SanitizeRecord;
use super::target_ports::{Damaged, TargetPorts};
use crate::config::{Config, Naa};
use crate::os_error;

/// The most bytes that are read of a state: one byte more than the longest state that is written, so that the
/// device server detects a state that is too long.
const STATE_LEN_MAX: usize = device::persistent_state::MAX_LEN + 1;

/// The storage for the record of a loss: a few lines with a path.
const LOSS_RESERVED: u64 = 8 << 10;

/// The state directory of a running daemon.
#[derive(Clone, Debug)]
pub struct StateDir {
    root: Directory,
    units: Directory,
    /// The records of losses that could not be written, by their names: they count until this process ends.
    unwritten_losses: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
    replacements: Replacements,
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

/// What the names of the records end with that say what was served.
const SERVED: [&str; 4] = [".size", ".place", ".luks", ".device"];

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
        let (unwritten_losses, replacements) = Default::default();
        Ok(Self { root, units, unwritten_losses, replacements, lock: None })
    }

    /// Keeps the lock of the directory until this and every clone of it are dropped. Reserves the storage
    /// that replacements need, on a thread of its own: a disk that hangs delays nothing else.
    pub(super) fn keep(&mut self, lock: StateLock) {
        self.lock = Some(Arc::new(lock));
        let state = self.clone();
        // Without the thread, replacements may need new storage.
        let _ = std::thread::Builder::new().name("reserve".to_owned()).spawn(move || state.reserve_storage());
    }

    /// Reserves the storage for replacements of the files that hosts depend on: reservations, target ports,
    /// bindings and the limit on guesses. An earlier release reserved none for its files.
    fn reserve_storage(&self) {
        let states = self.unit_files(".state").unwrap_or_default().into_iter();
        for path in states.chain([self.ports(), self.bindings(), self.guesses()]) {
            if let Ok(found) = path.symlink_metadata()
                && found.is_file()
            {
                exchanged_file::reserve(&path, reserved_len(found.len()));
            }
        }
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

    /// Returns the path of the file that records where a unit's file was served last.
    pub(super) fn place_file(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.place"))
    }

    /// Returns the path of the file that records the LUKS2 header of a unit's medium.
    pub(super) fn header_file(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.luks"))
    }

    /// Removes the record of the LUKS2 header of a unit's medium.
    pub(super) fn forget_header(&self, unit: Naa) {
        forget(&self.header_file(unit));
    }

    /// Returns the path of the file that records a unit's block device.
    pub(super) fn device_file(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.device"))
    }

    /// Removes the record of a unit's block device.
    pub(super) fn forget_device(&self, unit: Naa) {
        forget(&self.device_file(unit));
    }

    /// Returns the path of the file that records on which medium a unit's SANITIZE or FORMAT UNIT is under
    /// way.
    pub(super) fn sanitize_file(&self, unit: Naa) -> PathBuf {
        self.units.path.join(format!("{unit}.sanitize"))
    }

    /// Removes the oldest records of what was served of units whose world-wide names are not
    /// `known`, if there are more than `most`.
    pub(super) fn trim_sizes(&self, known: impl Fn(&str) -> bool, most: usize) {
        let mut absent = Vec::new();
        for entry in fs::read_dir(&self.units.path).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let unit = || SERVED.iter().find_map(|suffix| name.strip_suffix(suffix));
            if name
                .strip_suffix(".new")
                .is_some_and(|name| SERVED.iter().any(|suffix| name.ends_with(suffix)))
            {
                // The second file of a record is of no use without it. Only this thread writes these files.
                if !path.with_extension("").exists() {
                    let _ = fs::remove_file(&path);
                }
            } else if unit().is_some_and(|unit| !known(unit)) {
                let written = entry.metadata().and_then(|facts| facts.modified());
                absent.push((written.unwrap_or(std::time::UNIX_EPOCH), path));
            }
        }
        absent.sort_unstable();
        for (_, path) in absent.iter().take(absent.len().saturating_sub(most)) {
            // A record that cannot be removed is read again only if the same disk is configured again.
            let _ = fs::remove_file(path);
            exchanged_file::forget(path);
        }
    }

    /// Returns the files of units whose names end with `suffix`.
    ///
    /// # Errors
    /// [`StateError`]
    pub(super) fn unit_files(&self, suffix: &str) -> Result<Vec<PathBuf>, StateError> {
        let list = || -> io::Result<Vec<PathBuf>> {
            let paths = fs::read_dir(&self.units.path)?.map(|entry| Ok(entry?.path()));
            let mut paths: Vec<PathBuf> = paths.collect::<io::Result<_>>()?;
            paths.retain(|path| path.as_os_str().to_string_lossy().ends_with(suffix));
            paths.sort_unstable();
            Ok(paths)
        };
        list().map_err(|source| StateError { what: "list", path: self.units.path.clone(), source })
    }

    /// Writes the record of a loss; returns when it is durable. A record that cannot be written counts until
    /// this process ends.
    ///
    /// # Errors
    /// [`StateError`]
    pub(super) fn save_loss(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        let path = self.units.path.join(name);
        let saved = self.units.replace(&path, bytes);
        let mut unwritten = self.unwritten();
        unwritten.remove(&path);
        unwritten.extend(saved.is_err().then(|| (path, bytes.to_vec())));
        saved
    }

    /// Returns the records of losses that could not be written, and their paths.
    pub(super) fn unwritten_losses(&self) -> Vec<(PathBuf, Vec<u8>)> {
        self.unwritten().clone().into_iter().collect()
    }

    fn unwritten(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Vec<u8>>> {
        self.unwritten_losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves storage for a record of a loss, so that it can be written when the file system is full.
    pub(super) fn reserve_loss(&self, name: &str) {
        exchanged_file::reserve(&self.units.path.join(name), LOSS_RESERVED);
    }

    /// Removes the record of a loss; returns when that is durable.
    ///
    /// # Errors
    /// [`StateError`]; the record is still there then.
    pub(super) fn remove_loss(&self, path: &Path) -> Result<(), StateError> {
        self.units.remove(path)?;
        self.unwritten().remove(path);
        Ok(())
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
            exchanged_file::forget(&record);
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
    /// The inner error has the contents of a damaged file.
    ///
    /// # Errors
    /// [`StateError`]
    pub(crate) fn load_ports(&self, config: &Config) -> Result<Result<TargetPorts, Vec<u8>>, StateError> {
        let path = self.ports();
        match fs::read(&path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                Ok(TargetPorts::decode(&text).map_err(|Damaged| bytes))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let saved = fs::read_dir(&self.units.path).map_err(|source| StateError {
                    what: "list",
                    path: self.units.path.clone(),
                    source,
                })?;
                let is_state = |path: &Path| path.extension().is_some_and(|extension| extension == "state");
                let any = saved.flatten().any(|entry| is_state(&entry.path()));
                Ok(Ok(if any { TargetPorts::positional(config) } else { TargetPorts::default() }))
            }
            Err(source) => Err(StateError { what: "read", path, source }),
        }
    }

    /// Copies a damaged file of target port identifiers aside. Returns its path, and that of the copy.
    ///
    /// # Errors
    /// [`StateError`]
    pub(super) fn keep_damaged_ports(&self, damaged: &[u8]) -> Result<[PathBuf; 2], StateError> {
        let aside = self.root.path.join("ports.damaged");
        let failed = |source| StateError { what: "write", path: aside.clone(), source };
        write_durably(&aside, damaged).map_err(failed)?;
        Ok([self.ports(), aside])
    }

    /// Writes the identifiers of target ports; returns when they are durable.
    ///
    /// # Errors
    /// [`StateError`]; the former identifiers are still there then.
    pub(crate) fn save_ports(&self, ports: &TargetPorts) -> Result<(), StateError> {
        self.root.replace(&self.ports(), ports.encode().as_bytes())
    }

    /// Makes the identifiers of the target ports durable, if that ends in time.
    ///
    /// # Errors
    /// [`StateError`]
    pub(crate) fn save_ports_within(&self, ports: &TargetPorts, within: Duration) -> Result<(), StateError> {
        self.replace_in_time(&self.ports(), ports.encode().as_bytes(), within)
    }

    /// Reads the text of the nexus bindings; `None` when there are none.
    ///
    /// # Errors
    /// [`StateError`]
    pub(super) fn load_bindings(&self) -> Result<Option<String>, StateError> {
        match fs::read(self.bindings()) {
            // Text that is not UTF-8 is damaged, and the checksums show it.
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { what: "read", path: self.bindings(), source }),
        }
    }

    /// Writes the text of the nexus bindings; returns when it is durable.
    ///
    /// # Errors
    /// [`StateError`]; the former bindings are still there then.
    pub(super) fn save_bindings(&self, text: &str, within: Duration) -> Result<(), StateError> {
        self.replace_in_time(&self.bindings(), text.as_bytes(), within)
    }

    /// Reads the text of the limit on guesses; `None` when there is none.
    ///
    /// # Errors
    /// [`StateError`]
    pub(super) fn load_guesses(&self) -> Result<Option<String>, StateError> {
        let read = || -> io::Result<Vec<u8>> {
            let most = u64::try_from(GuessLimit::STORED_LEN_MAX).unwrap_or(u64::MAX);
            let mut bytes = Vec::new();
            File::open(self.guesses())?.take(most).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            // Text that is not UTF-8 is damaged, and its reader says so.
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { what: "read", path: self.guesses(), source }),
        }
    }

    /// Writes the text of the limit on guesses; returns when it is durable.
    ///
    /// # Errors
    /// [`StateError`]; the former text is still there then.
    pub(super) fn save_guesses(&self, text: &str, within: Duration) -> Result<(), StateError> {
        self.replace_in_time(&self.guesses(), text.as_bytes(), within)
    }

    /// Returns the path of the limit on guesses.
    pub(super) fn guesses(&self) -> PathBuf {
        self.root.path.join("guesses")
    }

    /// Returns the path of the audit log.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.root.path.join("audit.log")
    }

    /// Returns the path of the nexus bindings.
    pub(super) fn bindings(&self) -> PathBuf {
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
            _ => {
                self.sync_or_put_back(path, former)?;
                exchanged_file::forget(path);
                Ok(())
            }
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

/// Removes a record of what was served. One that stays forbids too much, and its message names it.
fn forget(record: &Path) {
    let _ = fs::remove_file(record);
    exchanged_file::forget(record);
}

/// Replaces a file as a whole. Different threads replace files of one unit at the same time: each file has a
/// second file of its own.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let failed = |what, path: &Path| {
        let path = path.to_path_buf();
        move |source| StateError { what, path, source }
    };
    let reserve = reserved_len(to_u64(bytes.len()));
    let second = exchanged_file::second_path(path);
    exchanged_file::write_next(path, bytes, reserve).map_err(failed("write", &second))?;
    exchanged_file::exchange(path, reserve).map_err(failed("replace", path))
}

/// Returns how much storage a file has whose contents are so long: twice as much, and some more, because they
/// become longer with each host that registers or logs in.
fn reserved_len(len: u64) -> u64 {
    const RESERVED_MIN: u64 = 16 << 10;
    len.saturating_mul(2).max(RESERVED_MIN)
}

pub(super) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
        fs::write(exchanged_file::second_path(&state.file(UNIT)), b"ha").unwrap();
        fs::write(exchanged_file::second_path(&state.size_file(UNIT)), b"5 5 5").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"old"[..]));
        state.save_state(UNIT, b"new").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn a_state_is_replaced_without_new_storage() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        state.save_state(UNIT, b"first").unwrap();
        let storage = || -> u64 {
            fs::read_dir(scratch.path().join("units"))
                .unwrap()
                .map(|file| file.unwrap().metadata().unwrap().blocks())
                .sum()
        };
        let before = storage();
        for len in [8000, 3, 4097, 1] {
            state.save_state(UNIT, &vec![b'x'; len]).unwrap();
            assert_eq!(state.load(UNIT).unwrap().unwrap().len(), len);
            assert_eq!(storage(), before, "{len} bytes");
        }
        state.save_state(UNIT, b"").unwrap();
        assert_eq!(fs::read_dir(scratch.path().join("units")).unwrap().count(), 0);
    }

    #[test]
    fn files_of_an_earlier_release_are_replaced_without_new_storage() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        for path in [state.file(UNIT), state.ports(), state.bindings(), state.guesses()] {
            fs::write(path, b"former").unwrap();
        }
        state.reserve_storage();
        let storage = || -> Vec<u64> {
            let folders = [scratch.path().to_owned(), scratch.path().join("units")];
            let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
            let files = files.map(|file| file.unwrap().metadata().unwrap()).filter(fs::Metadata::is_file);
            files.map(|found| found.blocks()).collect()
        };
        let before = storage();
        assert_eq!(before.len(), 8, "each file has a second one");
        assert!(before.iter().all(|blocks| blocks * 512 >= 16 << 10), "{before:?}");
        state.save_state(UNIT, &[b'x'; 9000]).unwrap();
        state.save_bindings(&"x".repeat(9000), Duration::from_secs(60)).unwrap();
        state.save_guesses("x", Duration::from_secs(60)).unwrap();
        let sum = |of: &[u64]| -> u64 { of.iter().sum() };
        // The file that was replaced by a longer one keeps more for the next.
        assert!(sum(&storage()) <= sum(&before) + 4 * (4096 / 512), "{:?}", storage());
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
        let half = exchanged_file::second_path(&state.size_file(UNIT));
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
