//! Replaces files of the state directory for a thread that must not wait for long: its file system can hang.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{StateDir, StateError};
use crate::answers;

/// How often a thread looks whether an earlier replacement of the same file has ended.
const LOOK: Duration = Duration::from_millis(20);

/// The files that threads replace. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(super) struct Replacements(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Replacements {
    fn list(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The replacement of a file. It ends when this is dropped, also if its thread could not be started.
struct Replacement {
    list: Replacements,
    path: PathBuf,
}

impl Drop for Replacement {
    fn drop(&mut self) {
        self.list.list().remove(&self.path);
    }
}

impl StateDir {
    /// Replaces a file as a whole, and waits for the end for a limited time. A replacement that takes longer
    /// goes on; until it has ended, no other one of this file begins, so that none overwrites a newer one.
    pub(super) fn replace_in_time(
        &self,
        path: &Path,
        bytes: &[u8],
        within: Duration,
    ) -> Result<(), StateError> {
        let silent = || {
            let source = io::Error::new(ErrorKind::TimedOut, "it does not answer");
            StateError { what: "replace", path: path.to_path_buf(), source }
        };
        let deadline = Instant::now() + within;
        while !self.replacements.list().insert(path.to_path_buf()) {
            if Instant::now() >= deadline {
                return Err(silent());
            }
            std::thread::sleep(LOOK);
        }
        let (state, bytes) = (self.clone(), bytes.to_vec());
        let replacement = Replacement { list: self.replacements.clone(), path: path.to_path_buf() };
        let replace = move || state.root.replace(&replacement.path, &bytes);
        let left = deadline.saturating_duration_since(Instant::now());
        answers::of_one(replace, left).unwrap_or_else(|| Err(silent()))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_that_hangs_delays_its_writer_for_a_limited_time_and_is_replaced_in_order() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        // Opening a pipe waits for its other end, as a file system waits for its server.
        mknodat(CWD, state.bindings(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let within = Duration::from_millis(200);
        for text in ["first", "second"] {
            let began = Instant::now();
            let why = state.save_bindings(text, within).unwrap_err().to_string();
            assert!(why.ends_with("bindings: it does not answer"), "{why}");
            assert!(began.elapsed() < Duration::from_secs(30));
        }
        // The guesses are another file.
        state.save_guesses("guesses", Duration::from_secs(60)).unwrap();
        let pipe = std::fs::OpenOptions::new().write(true).open(state.bindings()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !state.replacements.list().is_empty() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(LOOK);
        }
        drop(pipe);
        assert_eq!(state.load_bindings().unwrap().as_deref(), Some("first"), "the second one never began");
    }
}
