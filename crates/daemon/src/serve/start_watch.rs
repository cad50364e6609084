//! Watches the steps of a start that wait for the configuration file or for the state directory. If the file
//! system hangs, the log and the service manager learn which file does not answer, and a signal ends the
//! process although the main thread waits for the system.

use std::io;
use std::path::Path;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::service_manager;

/// How often the thread looks.
const LOOK: Duration = Duration::from_millis(200);

/// How long a step may take before the log names its file: longer than a slow disk takes.
const SILENT_MAX: Duration = Duration::from_secs(10);

/// How long a start waits in all that may not wait for storage.
const STRICT_MAX: Duration = Duration::from_secs(20);

/// How often a start that waits reports to the service manager.
const REPORT: Duration = Duration::from_secs(10);

/// The exit codes of a start that was stopped, and of one that may not wait any longer.
const EXIT_STOPPED: i32 = 0;
const EXIT_FAILED: i32 = 1;

/// The watch over a start. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct StartWatch(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    step: Mutex<Option<Step>>,
    /// Whether a signal has asked for the end.
    is_stopping: AtomicBool,
    /// Whether the start may wait for storage.
    may_wait: bool,
}

/// A step that waits for a file.
#[derive(Debug)]
struct Step {
    file: String,
    since: Instant,
    /// Whether the start may wait for it.
    may_wait: bool,
    /// When the service manager is to be told again that the start waits, once the log has said so.
    report_at: Option<Instant>,
}

/// What the thread does.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    Nothing,
    /// Names a file that does not answer.
    Name(String),
    /// Tells the service manager that the start still waits for a file.
    Report(String),
    /// Ends the process because of a signal.
    Stop,
    /// Ends the process, because it may not wait for this file any longer.
    Fail(String),
}

/// A step that is under way. It ends when this is dropped.
#[must_use]
pub(super) struct StepGuard<'w>(&'w Watched);

impl StartWatch {
    /// Starts the thread of the watch, which ends when the last clone is dropped.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn start(may_wait: bool) -> io::Result<Self> {
        let watch = Self::without_thread(may_wait);
        let watched = Arc::downgrade(&watch.0);
        std::thread::Builder::new().name("start".to_owned()).spawn(move || look_after(&watched))?;
        Ok(watch)
    }

    fn without_thread(may_wait: bool) -> Self {
        Self(Arc::new(Watched { step: Mutex::default(), is_stopping: AtomicBool::new(false), may_wait }))
    }

    /// Begins a step that waits for the state directory.
    pub(super) fn step(&self, directory: &Path) -> StepGuard<'_> {
        self.begin(directory, self.0.may_wait)
    }

    /// Begins to read the configuration file. It can be a pipe from a program that asks for a password.
    pub(super) fn reading(&self, file: &Path) -> StepGuard<'_> {
        self.begin(file, true)
    }

    fn begin(&self, file: &Path, may_wait: bool) -> StepGuard<'_> {
        let file = file.display().to_string();
        *self.0.step() = Some(Step { file, since: Instant::now(), may_wait, report_at: None });
        StepGuard(&self.0)
    }

    /// Records that a signal has asked for the end. The main thread handles it, unless its step waits for a
    /// file that does not answer.
    pub(super) fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Release);
    }
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        if let Some(Step { file, report_at: Some(_), .. }) = self.0.step().take() {
            crate::info!("{file} answers");
        }
    }
}

impl Watched {
    fn step(&self) -> MutexGuard<'_, Option<Step>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, now: Instant) -> Act {
        let mut step = self.step();
        let Some(step) = step.as_mut() else { return Act::Nothing };
        let waited = now.saturating_duration_since(step.since);
        if waited < SILENT_MAX {
            return Act::Nothing;
        }
        let is_named = step.report_at.is_some();
        if is_named && self.is_stopping.load(Ordering::Acquire) {
            return Act::Stop;
        }
        if !step.may_wait {
            return if waited < STRICT_MAX { Act::Nothing } else { Act::Fail(step.file.clone()) };
        }
        if step.report_at.is_some_and(|at| now < at) {
            return Act::Nothing;
        }
        step.report_at = Some(now + REPORT);
        if is_named { Act::Report(step.file.clone()) } else { Act::Name(step.file.clone()) }
    }
}

fn look_after(watched: &Weak<Watched>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(watched) = watched.upgrade() else { return };
        let report = |file: &str| service_manager::waiting(&format!("Waiting for {file}"), 3 * REPORT);
        match watched.look(Instant::now()) {
            Act::Nothing => {}
            Act::Name(file) => {
                crate::error!("{file} does not answer; the start waits until it does");
                report(&file);
            }
            Act::Report(file) => report(&file),
            Act::Stop => {
                crate::info!("stopped");
                end(EXIT_STOPPED);
            }
            Act::Fail(file) => {
                crate::error!("{file} does not answer");
                end(EXIT_FAILED);
            }
        }
    }
}

/// Ends the process although its main thread waits. It serves nothing yet.
fn end(code: i32) -> ! {
    crate::log::writer::write_last_lines();
    exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the thread does so many seconds after the beginning of the step.
    fn look(watch: &StartWatch, since: Instant, seconds: u64) -> Act {
        watch.0.look(since + Duration::from_secs(seconds))
    }

    #[test]
    fn a_file_that_does_not_answer_is_named_once_and_a_signal_ends_the_wait() {
        let watch = StartWatch::without_thread(true);
        let since = Instant::now();
        assert_eq!(look(&watch, since, 100), Act::Nothing, "no step is under way");
        let step = watch.step(Path::new("/state"));
        let since = Instant::now();
        assert_eq!(look(&watch, since, 9), Act::Nothing);
        assert_eq!(look(&watch, since, 11), Act::Name("/state".to_owned()));
        assert_eq!(look(&watch, since, 12), Act::Nothing);
        assert_eq!(look(&watch, since, 22), Act::Report("/state".to_owned()));
        watch.stop();
        assert_eq!(look(&watch, since, 23), Act::Stop);
        drop(step);
        assert_eq!(look(&watch, since, 24), Act::Nothing, "the main thread handles the signal");
        // A signal that comes first ends the wait as soon as the file has been named.
        let _step = watch.step(Path::new("/other"));
        let since = Instant::now();
        assert_eq!(look(&watch, since, 5), Act::Nothing);
        assert_eq!(look(&watch, since, 11), Act::Name("/other".to_owned()));
        assert_eq!(look(&watch, since, 12), Act::Stop);
    }

    #[test]
    fn a_start_that_may_not_wait_fails() {
        let watch = StartWatch::without_thread(false);
        let _step = watch.step(Path::new("/state"));
        let since = Instant::now();
        assert_eq!(look(&watch, since, 19), Act::Nothing);
        assert_eq!(look(&watch, since, 21), Act::Fail("/state".to_owned()));
        let _step = watch.reading(Path::new("/dev/fd/63"));
        let since = Instant::now();
        assert_eq!(look(&watch, since, 21), Act::Name("/dev/fd/63".to_owned()));
        assert_eq!(look(&watch, since, 100), Act::Report("/dev/fd/63".to_owned()));
    }
}
