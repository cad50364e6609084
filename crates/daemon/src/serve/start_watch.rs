//! Watches the steps of a start that wait for the configuration file or for the state directory. If the file
//! system hangs, the log and the service manager learn which file does not answer, and a signal ends the
//! process although the main thread waits for the system.

use std::io;
use std::path::Path;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::service_manager;

/// How often the thread looks.
const LOOK: Duration = Duration::from_millis(200);

/// How long a step may take before the log names its file: longer than a slow disk takes.
const SILENT_MAX: Duration = Duration::from_secs(10);

/// How long a start that may not wait for storage waits in each step.
const STRICT_MAX: Duration = Duration::from_secs(20);

/// How often a start that waits reports to the service manager.
const REPORT: Duration = Duration::from_secs(10);

/// The exit codes of a start that was stopped, and of one that may not wait any longer.
const EXIT_STOPPED: i32 = 0;
const EXIT_FAILED: i32 = 1;

/// The watch over a start, which lasts until this is dropped.
#[derive(Debug)]
pub(super) struct StartWatch(Arc<Watched>);

/// Reports a signal to the watch over a start, if that still lasts.
#[derive(Debug)]
pub(super) struct StartStopper(Weak<Watched>);

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
    /// When the thread reports to the service manager again, once the log has named the file.
    report_at: Option<Instant>,
}

/// What the thread of the watch does after a look at the step.
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

/// A step of the start, which ends when this is dropped.
#[must_use]
pub(super) struct StepGuard<'w>(&'w Watched);

impl StartWatch {
    /// Starts the thread of the watch.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn start(may_wait: bool) -> io::Result<Self> {
        let watch = Self::without_thread(may_wait);
        watch.spawn_thread()?;
        Ok(watch)
    }

    fn spawn_thread(&self) -> io::Result<JoinHandle<()>> {
        let watched = Arc::downgrade(&self.0);
        std::thread::Builder::new().name("start".to_owned()).spawn(move || look_after(&watched))
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

    /// Returns what reports signals to the watch. It does not keep the watch alive.
    pub(super) fn stopper(&self) -> StartStopper {
        StartStopper(Arc::downgrade(&self.0))
    }
}

impl StartStopper {
    /// Records that a signal has asked for the end. The main thread handles it, unless its step waits for a
    /// file that does not answer.
    pub(super) fn stop(&self) {
        if let Some(watched) = self.0.upgrade() {
            watched.is_stopping.store(true, Ordering::Release);
        }
    }
}

impl Drop for StepGuard<'_> {
    /// Waits while the thread decides, and does what it decided: the process must not end in a later step.
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

    /// Looks at the step that is in progress, and lets `act` do what is to be done. The main thread cannot
    /// leave the step meanwhile.
    fn look(&self, now: Instant, act: impl FnOnce(Act)) {
        if let Some(step) = self.step().as_mut() {
            act(step.decide(now, self.is_stopping.load(Ordering::Acquire)));
        }
    }
}

impl Step {
    fn decide(&mut self, now: Instant, is_stopping: bool) -> Act {
        let waited = now.saturating_duration_since(self.since);
        if waited < SILENT_MAX {
            return Act::Nothing;
        }
        let is_named = self.report_at.is_some();
        // The log names no file for which the start may not wait, until that ends the start.
        if is_stopping && (is_named || !self.may_wait) {
            return Act::Stop;
        }
        if !self.may_wait {
            return if waited < STRICT_MAX { Act::Nothing } else { Act::Fail(self.file.clone()) };
        }
        if self.report_at.is_some_and(|at| now < at) {
            return Act::Nothing;
        }
        self.report_at = Some(now + REPORT);
        if is_named { Act::Report(self.file.clone()) } else { Act::Name(self.file.clone()) }
    }
}

fn look_after(watched: &Weak<Watched>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(watched) = watched.upgrade() else { return };
        watched.look(Instant::now(), carry_out);
    }
}

fn carry_out(act: Act) {
    let report = |file: &str| service_manager::waiting(&format!("Waiting for {file}"), 3 * REPORT);
    match act {
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
        let mut done = Act::Nothing;
        watch.0.look(since + Duration::from_secs(seconds), |act| done = act);
        done
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
        watch.stopper().stop();
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

    #[test]
    fn a_start_that_may_not_wait_stops() {
        let watch = StartWatch::without_thread(false);
        watch.stopper().stop();
        let _step = watch.step(Path::new("/state"));
        let since = Instant::now();
        assert_eq!(look(&watch, since, 5), Act::Nothing, "the main thread may handle the signal");
        assert_eq!(look(&watch, since, 11), Act::Stop);
    }

    #[test]
    fn the_main_thread_does_not_go_on_while_the_process_ends() {
        let watch = StartWatch::without_thread(false);
        let step = watch.step(Path::new("/state"));
        let late = Instant::now() + STRICT_MAX;
        let (goes_on, has_gone_on) = crate::mailbox::channel();
        std::thread::scope(|threads| {
            watch.0.look(late, |act| {
                assert_eq!(act, Act::Fail("/state".to_owned()));
                threads.spawn(move || {
                    drop(step);
                    goes_on.send(()).unwrap();
                });
                has_gone_on.recv_timeout(Duration::from_millis(300)).unwrap_err();
            });
            has_gone_on.recv_timeout(Duration::from_secs(60)).unwrap();
        });
    }

    #[test]
    fn the_thread_ends_with_the_start_although_signals_are_still_handled() {
        let watch = StartWatch::without_thread(true);
        let thread = watch.spawn_thread().unwrap();
        let stopper = watch.stopper();
        drop(watch);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "the thread goes on");
            std::thread::sleep(LOOK);
        }
        stopper.stop();
    }
}
