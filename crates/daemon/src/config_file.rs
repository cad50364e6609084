//! The configuration file on disk, for a program that changes it: locked against other such programs,
//! replaced as a whole, and never over a change that was made meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};

use crate::config::{FILE_LEN_MAX, Revision};
use crate::os_error;

/// How long a program waits for another one that changes the file.
const LOCK_MAX: Duration = Duration::from_secs(30);
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
    /// The file has other contents than those that the change was made from.
    #[error("{} was changed by another program meanwhile; nothing was changed", .0.display())]
    Changed(PathBuf),
    /// The file is longer than any configuration.
    #[error("{} is longer than a configuration can be", .0.display())]
    TooLong(PathBuf),
    /// The file is not UTF-8.
    #[error("{} is not UTF-8", .0.display())]
    NotText(PathBuf),
}

/// The configuration file, locked until this is dropped.
#[derive(Debug)]
pub struct LockedFile {
    /// The file itself, with symbolic links resolved.
    path: PathBuf,
    file: File,
    text: String,
}

impl LockedFile {
    /// Locks a file, and reads it. A program that only reads the file needs no lock.
    ///
    /// # Errors
    /// [`ConfigFileError`]
    pub fn open(path: &Path) -> Result<Self, ConfigFileError> {
        let failed = |what| {
            let path = path.to_path_buf();
            move |source| ConfigFileError::Io { what, path, source }
        };
        let path = path.canonicalize().map_err(failed("find"))?;
        let deadline = Instant::now() + LOCK_MAX;
        loop {
            let mut file = File::open(&path).map_err(failed("open"))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The program that held the lock before may have replaced the file.
                Ok(()) if is_at(&file, &path) => {
                    let text = read(&mut file, &path)?;
                    return Ok(Self { path, file, text });
                }
                Ok(()) => {}
                Err(errno) if errno == rustix::io::Errno::WOULDBLOCK => std::thread::sleep(LOCK_PAUSE),
                Err(errno) => return Err(failed("lock")(errno.into())),
            }
            if Instant::now() >= deadline {
                return Err(ConfigFileError::Locked(path));
            }
        }
    }

    /// Returns the text that the file had when it was locked.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the permission bits of the file.
    pub fn mode(&self) -> Option<u32> {
        self.file.metadata().ok().map(|meta| meta.mode() & 0o777)
    }

    /// Returns the path, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file as a whole by a durable new one with the same owner and mode. An editor ignores the
    /// lock, so the file is compared with what was read.
    ///
    /// # Errors
    /// [`ConfigFileError`]; the file is as it was then.
    pub fn replace(&mut self, text: &str) -> Result<(), ConfigFileError> {
        let fresh = self.fresh_path();
        let written = self.write(&fresh, text);
        let failed = |what, path: &Path| {
            let path = path.to_path_buf();
            move |source| ConfigFileError::Io { what, path, source }
        };
        let file = match written {
            Ok(file) => file,
            Err(source) => {
                let _ = fs::remove_file(&fresh);
                return Err(failed("write", &fresh)(source));
            }
        };
        let exchanged = match self.exchange(&fresh) {
            Ok(exchanged) => exchanged,
            Err(error) => {
                let _ = fs::remove_file(&fresh);
                return Err(error);
            }
        };
        // The directory is synced before anyone relies on the new file.
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        if let (Err(source), Exchanged::OldIsBeside) = (synced, exchanged) {
            fs::rename(&fresh, &self.path).map_err(failed("restore", &self.path))?;
            return Err(failed("sync", directory)(source));
        }
        let _ = fs::remove_file(&fresh);
        (self.file, self.text) = (file, text.to_owned());
        Ok(())
    }

    /// Writes the new file. It is locked before it has its name, so that the next program waits for it.
    fn write(&self, fresh: &Path, text: &str) -> io::Result<File> {
        let meta = self.file.metadata()?;
        match fs::remove_file(fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(fresh)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (meta.uid(), meta.gid()) {
            fchown(&file, Some(meta.uid()), Some(meta.gid()))?;
        }
        file.set_permissions(meta.permissions())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(file)
    }

    /// Puts the new file in the place of the old one, if that is still the one that was read.
    fn exchange(&self, fresh: &Path) -> Result<Exchanged, ConfigFileError> {
        let failed =
            |source: io::Error| ConfigFileError::Io { what: "replace", path: self.path.clone(), source };
        let wanted = Revision::of(self.text.as_bytes());
        let is_unchanged = |path: &Path| fs::read(path).is_ok_and(|bytes| Revision::of(&bytes) == wanted);
        if !is_unchanged(&self.path) {
            return Err(ConfigFileError::Changed(self.path.clone()));
        }
        match renameat_with(CWD, fresh, CWD, &self.path, RenameFlags::EXCHANGE) {
            Ok(()) if is_unchanged(fresh) => Ok(Exchanged::OldIsBeside),
            Ok(()) => {
                // The file was changed between the comparison and the exchange: it gets its place back.
                fs::rename(fresh, &self.path).map_err(failed)?;
                Err(ConfigFileError::Changed(self.path.clone()))
            }
            // Not every file system can exchange two names.
            Err(errno) if errno == rustix::io::Errno::INVAL || errno == rustix::io::Errno::NOSYS => {
                fs::rename(fresh, &self.path).map_err(failed)?;
                Ok(Exchanged::OldIsGone)
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Returns the path of the new file. Only the program with the lock uses it; a program that was killed
    /// may have left it.
    fn fresh_path(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.new"))
    }
}

/// What became of the old file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchanged {
    /// It has the name that the new file had.
    OldIsBeside,
    /// The new file has replaced it.
    OldIsGone,
}

/// Returns whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
    matches!((file.metadata().map(id), path.metadata().map(id)), (Ok(open), Ok(there)) if open == there)
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
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::scratch::Scratch;

    fn file(scratch: &Scratch) -> PathBuf {
        let path = scratch.path().join("targe.toml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        path
    }

    fn names(scratch: &Scratch) -> Vec<String> {
        let entries = fs::read_dir(scratch.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_through_a_link_and_leaves_nothing() {
        let scratch = Scratch::new();
        let path = file(&scratch);
        let link = scratch.path().join("link");
        symlink(&path, &link).unwrap();
        // A program that was killed left its file.
        fs::write(scratch.path().join(".targe.toml.new"), "half").unwrap();
        let mut locked = LockedFile::open(&link).unwrap();
        assert_eq!(locked.text(), "old");
        locked.replace("new").unwrap();
        locked.replace("newer").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
        assert_eq!(names(&scratch), ["link", "targe.toml"]);
    }

    #[test]
    fn a_change_by_an_editor_is_not_overwritten() {
        let scratch = Scratch::new();
        let path = file(&scratch);
        let mut locked = LockedFile::open(&path).unwrap();
        fs::write(&path, "by hand").unwrap();
        assert!(matches!(locked.replace("new"), Err(ConfigFileError::Changed(_))));
        let moved = scratch.path().join("moved");
        fs::write(&moved, "moved here").unwrap();
        fs::rename(&moved, &path).unwrap();
        assert!(matches!(locked.replace("new"), Err(ConfigFileError::Changed(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "moved here");
        assert_eq!(names(&scratch), ["targe.toml"]);
    }

    #[test]
    fn two_programs_take_turns() {
        let scratch = Scratch::new();
        let path = file(&scratch);
        fs::write(&path, "").unwrap();
        let add = |path: &Path| {
            let mut locked = LockedFile::open(path).unwrap();
            let more = format!("{}x", locked.text());
            locked.replace(&more).unwrap();
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| add(&path)));
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), "x".repeat(40));
    }

    #[test]
    fn a_file_that_is_no_text_is_refused() {
        let scratch = Scratch::new();
        let path = file(&scratch);
        fs::write(&path, b"\xff").unwrap();
        assert!(matches!(LockedFile::open(&path), Err(ConfigFileError::NotText(_))));
        File::create(&path).unwrap().set_len(FILE_LEN_MAX + 1).unwrap();
        assert!(matches!(LockedFile::open(&path), Err(ConfigFileError::TooLong(_))));
    }
}
