//! The configuration file on disk, for a program that changes it: locked against other such programs,
//! replaced as a whole, and never over a change that was made meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, open, renameat_with};
use rustix::io::Errno;
use security::secret_access::FileAccess;

use crate::config::secret::access_of;
use crate::config::{FILE_LEN_MAX, Revision};
use crate::{file_attributes, os_error};

/// How long a program waits for another one that changes the file.
const LOCK_MAX: Duration = Duration::from_secs(30);
/// How often a text is put back that another program replaces again and again meanwhile.
const PUT_BACK_MAX: usize = 16;
/// The pause between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Why the file cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// The system refused it.
    #[error("cannot {what} {}: {}", path.display(), os_error(source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another program has locked the file for too long.
    #[error("another program is changing {}", .0.display())]
    Locked(PathBuf),
    /// The file was read without the lock.
    #[error("{} cannot be replaced, because its directory cannot be written", .0.display())]
    NotLocked(PathBuf),
    /// Another program has put something in the place of the lock.
    #[error("{} is not the lock of a program of the file's owner or of root; remove it", .0.display())]
    ForeignLock(PathBuf),
    /// The file has other contents than those that the change was made from.
    #[error("{} was changed by another program meanwhile; nothing was changed", .0.display())]
    Changed(PathBuf),
    /// The file was not replaced by the moment until which that was allowed.
    #[error("the new {} was not written in time; nothing was changed", .0.display())]
    Late(PathBuf),
    /// Another program changed the file while it was replaced, and its text cannot be put back.
    #[error(
        "another program changed {} meanwhile, and its text cannot be put back ({}); that text is in {}",
        path.display(), os_error(source), aside.display()
    )]
    Aside {
        /// The file.
        path: PathBuf,
        /// The file with the text of the other program.
        aside: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is longer than any configuration.
    #[error("{} is longer than a configuration can be", .0.display())]
    TooLong(PathBuf),
    /// The file is not UTF-8.
    #[error("{} is not UTF-8", .0.display())]
    NotText(PathBuf),
}

/// The configuration file, locked until this is dropped if it is to be replaced.
#[derive(Debug)]
pub struct LockedFile {
    /// The file itself, with symbolic links resolved.
    path: PathBuf,
    /// The path that the caller gave; relative paths in the file start at its directory.
    given: PathBuf,
    file: File,
    text: String,
    /// `None` if the file is only read.
    lock: Option<Lock>,
}

impl LockedFile {
    /// Locks a file, and reads it.
    ///
    /// # Errors
    /// [`ConfigFileError`]
    pub fn open(path: &Path) -> Result<Self, ConfigFileError> {
        Self::open_as(path, |path| Lock::take(path).map(Some))
    }

    /// Locks a file if this user can create the lock, and reads it. Without the lock, the file cannot be
    /// replaced.
    ///
    /// # Errors
    /// [`ConfigFileError`]
    pub fn open_or_read(path: &Path) -> Result<Self, ConfigFileError> {
        Self::open_as(path, |path| match Lock::take(path) {
            Err(ConfigFileError::Io { source, .. })
                if matches!(source.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) =>
            {
                Ok(None)
            }
            lock => lock.map(Some),
        })
    }

    /// Reads a file without a lock. It cannot be replaced.
    ///
    /// # Errors
    /// [`ConfigFileError`]
    pub fn read(path: &Path) -> Result<Self, ConfigFileError> {
        Self::open_as(path, |_| Ok(None))
    }

    fn open_as(
        path: &Path,
        lock: impl FnOnce(&Path) -> Result<Option<Lock>, ConfigFileError>,
    ) -> Result<Self, ConfigFileError> {
        let given = path.to_path_buf();
        let failed = |what| {
            let path = path.to_path_buf();
            move |source| ConfigFileError::Io { what, path, source }
        };
        let path = path.canonicalize().map_err(failed("find"))?;
        let lock = lock(&path)?;
        let mut file = File::open(&path).map_err(failed("open"))?;
        let text = read(&mut file, &path)?;
        Ok(Self { path, given, file, text, lock })
    }

    /// Returns the text that the file had when it was locked.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns who has access to the file.
    pub fn access(&self) -> Option<FileAccess> {
        self.file.metadata().ok().map(|meta| access_of(&meta))
    }

    /// Returns the path, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path as it was given. Relative paths in the file start at its directory.
    pub fn given_path(&self) -> &Path {
        &self.given
    }

    /// Replaces the file as a whole by a durable new one with the same owner, mode, access list and other
    /// extended attributes, unless `latest` has passed by then. An editor ignores the lock, so the file is
    /// compared with what was read.
    ///
    /// Once the new file is in place it stays there, because the daemon may have read it. If its directory
    /// cannot be synced, the error is returned as `Some`: the old file may come back after a power failure.
    ///
    /// # Errors
    /// [`ConfigFileError`]; the file is as it was then, except for [`ConfigFileError::Aside`].
    pub fn replace(
        &mut self,
        text: &str,
        latest: Option<Instant>,
    ) -> Result<Option<ConfigFileError>, ConfigFileError> {
        if self.lock.is_none() {
            return Err(ConfigFileError::NotLocked(self.path.clone()));
        }
        let fresh = self.beside("new");
        let failed = |what, path: &Path| {
            let path = path.to_path_buf();
            move |source| ConfigFileError::Io { what, path, source }
        };
        let written = self.write(&fresh, text).map_err(failed("write", &fresh));
        let in_time = written.and_then(|file| match latest {
            Some(latest) if Instant::now() >= latest => Err(ConfigFileError::Late(self.path.clone())),
            _ => Ok(file),
        });
        let file = in_time.and_then(|file| self.exchange(&fresh, text).map(|()| file));
        let file = file.inspect_err(|error| {
            if !matches!(error, ConfigFileError::Aside { .. }) {
                let _ = fs::remove_file(&fresh);
            }
        })?;
        (self.file, self.text) = (file, text.to_owned());
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        let _ = fs::remove_file(&fresh);
        Ok(synced.err().map(failed("sync", directory)))
    }

    /// Writes the new file.
    fn write(&self, fresh: &Path, text: &str) -> io::Result<File> {
        let meta = self.file.metadata()?;
        match fs::remove_file(fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(fresh)?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (meta.uid(), meta.gid()) {
            fchown(&file, Some(meta.uid()), Some(meta.gid()))?;
        }
        file.set_permissions(meta.permissions())?;
        file_attributes::copy(&self.file, &file)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(file)
    }

    /// Puts the new file in the place of the old one, if that is still the one that was read.
    fn exchange(&self, fresh: &Path, text: &str) -> Result<(), ConfigFileError> {
        let failed =
            |source: io::Error| ConfigFileError::Io { what: "replace", path: self.path.clone(), source };
        let wanted = Revision::of(self.text.as_bytes());
        if revision_of(&self.path) != Some(wanted) {
            return Err(ConfigFileError::Changed(self.path.clone()));
        }
        match renameat_with(CWD, fresh, CWD, &self.path, RenameFlags::EXCHANGE) {
            Ok(()) if revision_of(fresh) == Some(wanted) => Ok(()),
            // The file was changed between the comparison and the exchange.
            Ok(()) => Err(self.put_back(fresh, text)),
            // Not every file system can exchange two names.
            Err(errno) if errno == Errno::INVAL || errno == Errno::NOSYS => {
                fs::rename(fresh, &self.path).map_err(failed)
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Puts the text of another program, which is in `fresh`, back in the place of `text`. If that program
    /// saves another text meanwhile, the latest one gets the place.
    fn put_back(&self, fresh: &Path, text: &str) -> ConfigFileError {
        let mut placed = Some(Revision::of(text.as_bytes()));
        let mut source = io::Error::from(ErrorKind::ResourceBusy);
        for _ in 0..PUT_BACK_MAX {
            let held = revision_of(fresh);
            if let Err(errno) = renameat_with(CWD, fresh, CWD, &self.path, RenameFlags::EXCHANGE) {
                source = errno.into();
                break;
            }
            if revision_of(fresh) == placed {
                return ConfigFileError::Changed(self.path.clone());
            }
            placed = held;
        }
        // The next program overwrites `fresh`.
        let aside = self.beside("edited");
        let moved = renameat_with(CWD, fresh, CWD, &aside, RenameFlags::NOREPLACE);
        let aside = if moved.is_ok() { aside } else { fresh.to_path_buf() };
        ConfigFileError::Aside { path: self.path.clone(), aside, source }
    }

    /// Returns the path of a hidden file beside the file. Only the program with the lock uses it; a program
    /// that was killed may have left it.
    fn beside(&self, end: &str) -> PathBuf {
        beside(&self.path, end)
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{end}"))
}

/// Returns the revision of a file that can be read.
fn revision_of(path: &Path) -> Option<Revision> {
    fs::read(path).ok().map(|bytes| Revision::of(&bytes))
}

/// A lock on a file of its own, which is removed when this is dropped. Only the owner of the configuration
/// file and root can open it: a user who can merely read the configuration cannot hold up changes of it.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    fn take(config: &Path) -> Result<Self, ConfigFileError> {
        let path = beside(config, "lock");
        let failed = |source: io::Error| ConfigFileError::Io { what: "lock", path: path.clone(), source };
        let owner = config.metadata().map_err(failed)?;
        let deadline = Instant::now() + LOCK_MAX;
        loop {
            match Self::create_or_open(&path, &owner) {
                Ok(None) => return Err(ConfigFileError::ForeignLock(path)),
                Ok(Some(file)) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) if is_at(&file, &path) => return Ok(Self { path, file }),
                    // The program that held the lock before has removed its file.
                    Ok(()) => {}
                    Err(errno) if errno == Errno::WOULDBLOCK => std::thread::sleep(LOCK_PAUSE),
                    Err(errno) => return Err(failed(errno.into())),
                },
                // The file was removed between the two attempts to open it.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            if Instant::now() >= deadline {
                return Err(ConfigFileError::Locked(config.to_path_buf()));
            }
        }
    }

    /// Creates the file for the owner of the configuration, or opens one that is there. Returns `None` for a
    /// link, for anything but a file, and for the file of another user: root must not change such a file.
    fn create_or_open(path: &Path, owner: &fs::Metadata) -> Result<Option<File>, Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        match open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                let file = File::from(file);
                if rustix::process::geteuid().is_root() {
                    fchown(&file, Some(owner.uid()), Some(owner.gid())).map_err(failed)?;
                }
                return Ok(Some(file));
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let file = match open(path, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::ISDIR) => return Ok(None),
            opened => File::from(opened?),
        };
        let own = file.metadata().map_err(failed)?;
        // A file that its holder has removed meanwhile has no name any more.
        let is_ours = own.is_file() && own.nlink() <= 1 && [0, owner.uid()].contains(&own.uid());
        Ok(is_ours.then_some(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
    matches!((file.metadata().map(id), path.symlink_metadata().map(id)), (Ok(open), Ok(there)) if open == there)
}

fn read(file: &mut File, path: &Path) -> Result<String, ConfigFileError> {
    let mut bytes = Vec::new();
    let read = file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|source| ConfigFileError::Io { what: "read", path: path.to_path_buf(), source })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_LEN_MAX {
        return Err(ConfigFileError::TooLong(path.to_path_buf()));
    }
    String::from_utf8(bytes).map_err(|_| ConfigFileError::NotText(path.to_path_buf()))
}

/// Reads a file that becomes a configuration.
///
/// # Errors
/// [`ConfigFileError`]
pub fn read_text(path: &Path) -> Result<String, ConfigFileError> {
    let opened = File::open(path);
    let failed = |source| ConfigFileError::Io { what: "open", path: path.to_path_buf(), source };
    read(&mut opened.map_err(failed)?, path)
}

#[cfg(test)]
mod tests;
