//! The state directory: what must survive a crash and a loss of power. One file per logical unit holds its persistent
//! reservations and the like; what stands in it is the device's affair.
//!
//! A file is replaced whole: written beside, made durable, renamed, and the directory made durable. A reader finds
//! either the old state or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::config::Naa;
use crate::os_error;

/// The longest state that is read: one byte more than any that is written, so that the device finds it too long.
const STATE_LEN_MAX: usize = device::saved::MAX_LEN + 1;

/// The state directory of a running daemon.
#[derive(Clone, Debug)]
pub struct StateDir {
    units: PathBuf,
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
    /// Opens a state directory; makes it, with mode 0700, if it is missing.
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
        Ok(Self { units })
    }

    /// Returns the file of a unit's state.
    pub fn file(&self, unit: Naa) -> PathBuf {
        self.units.join(format!("{unit}.state"))
    }

    /// Returns the file of the key that a unit without a file of its own is encrypted with.
    pub(super) fn media_key(&self, unit: Naa) -> PathBuf {
        self.units.join(format!("{unit}.media-key"))
    }

    /// Reads the state of a unit; `None` when there is none.
    ///
    /// # Errors
    /// [`StateError`]. Going on without it would let a fenced initiator write.
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
            // We never write an empty file, so the file system lost what stood there. To the device no bytes mean no
            // state; this one byte is a damaged one.
            Ok(bytes) if bytes.is_empty() => Ok(Some(vec![0])),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { what: "read", path: path.clone(), source }),
        }
    }

    /// Keeps the state of a unit; returns when they are durable. No bytes at all means that nothing is to
    /// survive.
    ///
    /// # Errors
    /// [`StateError`]; what was kept before is still there.
    pub fn save(&self, unit: Naa, state: &[u8]) -> Result<(), StateError> {
        let path = self.file(unit);
        let failed = |what, path: &Path| {
            let path = path.to_path_buf();
            move |source| StateError { what, path, source }
        };
        if state.is_empty() {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("remove", &path)(error));
                }
                _ => {}
            }
        } else {
            let fresh = path.with_extension("new");
            write_durably(&fresh, state).map_err(failed("write", &fresh))?;
            fs::rename(&fresh, &path).map_err(failed("replace", &path))?;
        }
        let directory = File::open(&self.units).and_then(|directory| directory.sync_all());
        directory.map_err(failed("sync", &self.units))
    }
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::scratch::Scratch;

    const UNIT: Naa = Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 1]);

    #[test]
    fn what_was_saved_is_found_and_what_was_dropped_is_not() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("a/b")).unwrap();
        assert_eq!(state.load(UNIT).unwrap(), None);
        state.save(UNIT, b"first").unwrap();
        state.save(UNIT, b"second").unwrap();
        let again = StateDir::open(&scratch.path().join("a/b")).unwrap();
        assert_eq!(again.load(UNIT).unwrap().as_deref(), Some(&b"second"[..]));
        assert_eq!(again.load(Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 2])).unwrap(), None);
        again.save(UNIT, b"").unwrap();
        assert_eq!(again.load(UNIT).unwrap(), None);
        again.save(UNIT, b"").unwrap();
    }

    /// CVE-2020-14019: what the daemon writes about its sessions was readable by everybody.
    #[test]
    fn only_the_owner_can_read_it() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        state.save(UNIT, b"x").unwrap();
        assert_eq!(scratch.path().join("state").metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(state.file(UNIT).metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_write_that_broke_off_leaves_the_old_state() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        state.save(UNIT, b"old").unwrap();
        // What a crash between write and rename leaves behind.
        fs::write(state.file(UNIT).with_extension("new"), b"ha").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"old"[..]));
        state.save(UNIT, b"new").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn an_emptied_file_is_not_taken_for_no_state() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        fs::write(state.file(UNIT), b"").unwrap();
        assert_eq!(state.load(UNIT).unwrap().as_deref(), Some(&[0][..]));
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
        assert!(state.save(UNIT, b"x").is_err());
    }
}
