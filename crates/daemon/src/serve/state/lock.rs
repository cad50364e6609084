//! The lock of the state directory. Two daemons that use one directory would overwrite each other's files.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::StateError;
use crate::serve::ServeError;

/// How long a daemon that starts waits for the lock. A process that was killed can need a moment to end, for
/// example one that was late in an upgrade and has a descriptor of the lock.
const LOCK_MAX: Duration = Duration::from_secs(2);

/// How often it tries.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The lock of a state directory. The kernel releases it when every process that has a descriptor of it has
/// closed it, however the process ends.
#[derive(Debug)]
pub(in crate::serve) struct StateLock(File);

impl StateLock {
    /// Locks a state directory. The lock is a file of its own: `targe passwd` locks the directory of a
    /// password file, which can be the state directory.
    ///
    /// # Errors
    /// [`ServeError::StateInUse`] if another daemon uses the directory, and [`ServeError::State`].
    pub(in crate::serve) fn acquire(state: &Path) -> Result<Self, ServeError> {
        Self::acquire_within(state, LOCK_MAX)
    }

    fn acquire_within(state: &Path, within: Duration) -> Result<Self, ServeError> {
        let path = state.join("lock");
        let failed = |what, source| StateError { what, path: path.clone(), source };
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|source| failed("open", source))?;
        let deadline = Instant::now() + within;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_POLL_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(ServeError::StateInUse { path: state.to_path_buf() });
                }
                Err(TryLockError::Error(source)) => return Err(failed("lock", source).into()),
            }
        }
    }

    /// Takes over the lock from another process, which keeps a descriptor of it until it ends.
    pub(in crate::serve) fn take_over(lock: OwnedFd) -> Self {
        Self(lock.into())
    }

    /// Returns another descriptor of the lock, for a process that takes over.
    ///
    /// # Errors
    /// The error of the system.
    pub(in crate::serve) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn is_locked(state: &Path) -> bool {
        match StateLock::acquire_within(state, Duration::ZERO) {
            Err(ServeError::StateInUse { path }) => path == state,
            other => other.map(|_| false).unwrap(),
        }
    }

    #[test]
    fn a_directory_that_another_daemon_uses_is_refused_and_named() {
        let scratch = Scratch::new();
        let lock = StateLock::acquire(scratch.path()).unwrap();
        let refused = StateLock::acquire_within(scratch.path(), Duration::ZERO).unwrap_err();
        let told =
            format!("another targe is running: it uses the state directory {}", scratch.path().display());
        assert_eq!(refused.to_string(), told);
        drop(lock);
        assert!(!is_locked(scratch.path()));
    }

    #[test]
    fn a_daemon_that_starts_waits_for_a_process_that_ends() {
        let scratch = Scratch::new();
        let lock = StateLock::acquire(scratch.path()).unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(4 * LOCK_POLL_INTERVAL);
            drop(lock);
        });
        StateLock::acquire_within(scratch.path(), Duration::from_secs(60)).unwrap();
        release.join().unwrap();
    }

    #[test]
    fn a_lock_that_was_handed_over_outlives_the_process_that_had_it() {
        let scratch = Scratch::new();
        let former = StateLock::acquire(scratch.path()).unwrap();
        let lock = StateLock::take_over(former.descriptor().unwrap());
        drop(former);
        assert!(is_locked(scratch.path()));
        drop(lock);
        assert!(!is_locked(scratch.path()));
    }
}
