//! Logs sessions out when a signal ends a command. Over HyperSCSI no connection breaks, so without the logout
//! the target would keep the session, with its reservations, until it detects that the initiator is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use initiator::Session;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::Failure;

/// How long commands under way may take to end, so that the session can be logged out; and then how long a
/// logout that does not wait for them may take to be sent.
const LOGOUT_MAX: Duration = Duration::from_millis(800);
const CLOSE_MAX: Duration = Duration::from_millis(200);

/// How long the sessions of a command may make no progress once a signal has requested its end, and how often
/// they are checked.
const STILL_MAX: Duration = Duration::from_millis(3500);
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long they may make no progress if the target answers pings: as long as a flush may take
/// ([`initiator::Session::limit_commands`]).
const ANSWERED_MAX: Duration = Duration::from_secs(240);
/// How long a command may take to end once its sessions were closed.
const END_MAX: Duration = Duration::from_secs(1);

/// Whether a signal has arrived, so that the command no longer reports its result.
static ENDING: AtomicBool = AtomicBool::new(false);

/// A session that is logged out when a signal ends the process. The signal then has its default effect.
#[derive(Debug)]
pub(crate) struct LogoutGuard {
    session: Arc<Mutex<Option<Session>>>,
}

impl LogoutGuard {
    /// Guards a session until the guard is dropped.
    pub(crate) fn new(session: &Session) -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let failed =
            |error: std::io::Error| Failure::Failed(format!("cannot install signal handlers: {error}"));
        let mut signals = Signals::new(wanted).map_err(failed)?;
        let held = Arc::new(Mutex::new(Some(session.clone())));
        let session = Arc::clone(&held);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let Some(signal) = signals.forever().next() else { return };
                ENDING.store(true, Ordering::SeqCst);
                if let Some(session) = take(&held) {
                    log_out_briefly(&session);
                }
                // If the default action does not end the process, it exits with the code that a shell reports
                // for that signal.
                let _ = emulate_default_handler(signal);
                std::process::exit(128 + signal);
            })
            .map_err(failed)?;
        Ok(Self { session })
    }
}

impl Drop for LogoutGuard {
    fn drop(&mut self) {
        take(&self.session);
    }
}

fn take(held: &Mutex<Option<Session>>) -> Option<Session> {
    held.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Logs out, and waits only for a short time.
pub(crate) fn log_out_briefly(session: &Session) {
    let gone = session.log_out();
    let (tell, told) = channel();
    // A thread of its own waits for the logout, because that can take longer than this function may wait.
    let waiter = std::thread::Builder::new().spawn(move || {
        let _ = gone.wait();
        let _ = tell.send(());
    });
    if waiter.is_ok() && told.recv_timeout(LOGOUT_MAX).is_err() {
        // A command that is never answered would delay the logout for ever, so the session is closed.
        session.close();
        let _ = told.recv_timeout(CLOSE_MAX);
    }
}

/// Returns the signals that the parent process set to be ignored (`nohup`, a shell's background), as a mask.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Waits for the end that a signal requested, if one did: a command that lost its session to the signal
/// prints no error.
pub(crate) fn wait_for_signal_exit() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Watches the sessions of a command after a signal requested its end, so that the command does not wait for
/// a target that does not answer. Sessions that make no progress are closed, which fails the commands under
/// way in them.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    held: Arc<Mutex<Vec<Session>>>,
}

impl StallWatch {
    /// Watches sessions until the value is dropped.
    pub(crate) fn of(sessions: Vec<Session>) -> Self {
        Self { held: Arc::new(Mutex::new(sessions)) }
    }

    /// Watches a session from the next SIGINT or SIGTERM on.
    pub(crate) fn after_signal(session: &Session) -> Result<Self, Failure> {
        let still = Self::of(vec![session.clone()]);
        let failed =
            |error: std::io::Error| Failure::Failed(format!("cannot install signal handlers: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let held = Arc::clone(&still.held);
        std::thread::Builder::new()
            .name("stillness".to_owned())
            .spawn(move || {
                if signals.forever().next().is_some() && close_when_stalled(&held, None) {
                    end_soon();
                }
            })
            .map_err(failed)?;
        Ok(still)
    }

    /// Starts watching the sessions. With `span`, the watch lasts that long, and closes them if commands
    /// under way make no progress. Without it, the watch lasts until the end of the process, and closes them
    /// if nothing happens. `closed` is called if they were closed.
    pub(crate) fn watch(&self, span: Option<Duration>, closed: impl FnOnce() + Send + 'static) {
        let held = Arc::clone(&self.held);
        // If the thread cannot start, a second signal still ends the process.
        let _ = std::thread::Builder::new().name("stillness".to_owned()).spawn(move || {
            if close_when_stalled(&held, span) {
                closed();
                end_soon();
            }
        });
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Returns true once the sessions were closed because they stalled, and false once they need no watching any
/// more.
fn close_when_stalled(held: &Mutex<Vec<Session>>, span: Option<Duration>) -> bool {
    let began = Instant::now();
    let mut watch = StallDetector::new(began);
    loop {
        let sessions = held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if sessions.is_empty() || span.is_some_and(|span| began.elapsed() > span) {
            return false;
        }
        let seen: Vec<_> = sessions.iter().map(seen_of).collect();
        match watch.judge(Instant::now(), &seen, span.is_none()) {
            StallVerdict::Progressing => {}
            StallVerdict::Answering => eprintln!(
                "targe: the target answers pings, but outstanding commands take long: waiting for them; another signal \
                 ends targe at once"
            ),
            StallVerdict::Stalled => {
                eprintln!("targe: the target does not answer: outstanding commands are aborted");
                sessions.iter().for_each(Session::close);
                return true;
            }
        }
        drop(sessions);
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Returns the activity of a session: the progress of its commands, and the signs of life of its target,
/// which is pinged for that.
fn seen_of(session: &Session) -> SessionActivity {
    let signs = session.ping().wait().ok();
    session.stats().wait().map_or_else(
        |_| SessionActivity::default(),
        |stats| SessionActivity {
            moved: stats.done + stats.data_in_bytes + stats.data_out_bytes,
            is_busy: stats.tasks > stats.done,
            signs,
        },
    )
}

#[derive(Clone, Copy, Debug, Default)]
struct SessionActivity {
    /// A number that grows with the progress of its commands.
    moved: u64,
    /// Whether commands are under way.
    is_busy: bool,
    /// A number that grows with what the target sends; `None` if the session has ended.
    signs: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StallVerdict {
    Progressing,
    /// Commands make no progress, but their targets answer. Returned once.
    Answering,
    Stalled,
}

/// Distinguishes sessions whose targets do not answer from sessions whose commands take long, such as a
/// flush.
#[derive(Debug)]
struct StallDetector {
    moved: Option<u64>,
    /// The time of the last progress.
    since: Instant,
    /// For each session, the last number of signs of life, and the time when it last changed.
    signs: Vec<(Option<u64>, Instant)>,
    told: bool,
}

impl StallDetector {
    const fn new(now: Instant) -> Self {
        Self { moved: None, since: now, signs: Vec::new(), told: false }
    }

    /// Judges the present activity of the sessions. If `ending`, a session without a command under way counts
    /// as stalled too.
    fn judge(&mut self, now: Instant, seen: &[SessionActivity], ending: bool) -> StallVerdict {
        let moved = seen.iter().map(|seen| seen.moved).sum();
        let is_busy = seen.iter().any(|seen| seen.is_busy);
        if self.moved.replace(moved) != Some(moved) || !(ending || is_busy) {
            self.since = now;
        }
        self.signs.resize(seen.len(), (None, now));
        let mut silent = false;
        for (seen, (signs, at)) in seen.iter().zip(&mut self.signs) {
            if *signs != seen.signs || !seen.is_busy {
                (*signs, *at) = (seen.signs, now);
            }
            silent |= now.duration_since(*at) >= STILL_MAX;
        }
        let still = now.duration_since(self.since);
        if still < STILL_MAX {
            StallVerdict::Progressing
        } else if silent || !is_busy || still >= ANSWERED_MAX {
            StallVerdict::Stalled
        } else if std::mem::replace(&mut self.told, true) {
            StallVerdict::Progressing
        } else {
            StallVerdict::Answering
        }
    }
}

/// Ends the process if it does not end by itself.
fn end_soon() {
    std::thread::sleep(END_MAX);
    std::process::exit(1);
}

/// Returns a flag that SIGINT and SIGTERM set. A second signal ends the process at once.
pub(crate) fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&ends))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&ends)));
        registered.map_err(|error| Failure::Failed(format!("cannot install signal handlers: {error}")))?;
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: SessionActivity = SessionActivity { moved: 7, is_busy: true, signs: Some(0) };

    /// Judges sessions every quarter of a second for `seconds`, with the activity that `seen` returns for the
    /// number of each quarter. Returns the verdict, the second in which it was reached, and whether
    /// [`StallVerdict::Answering`] was returned before.
    fn looked(seconds: u64, seen: impl Fn(u64) -> Vec<SessionActivity>) -> (StallVerdict, u64, bool) {
        let began = Instant::now();
        let mut watch = StallDetector::new(began);
        for quarter in 0..seconds * 4 {
            let now = began + Duration::from_millis(quarter * 250);
            if watch.judge(now, &seen(quarter), true) == StallVerdict::Stalled {
                return (StallVerdict::Stalled, quarter / 4, watch.told);
            }
        }
        (StallVerdict::Progressing, seconds, watch.told)
    }

    #[test]
    fn a_target_that_answers_pings_may_take_its_time_for_a_flush() {
        let answers = |quarter: u64| vec![SessionActivity { signs: Some(quarter / 2), ..BUSY }];
        assert_eq!(looked(200, answers), (StallVerdict::Progressing, 200, true));
        assert_eq!(looked(300, answers), (StallVerdict::Stalled, 240, true), "a medium hangs for good");
        assert_eq!(looked(20, |_| vec![BUSY]), (StallVerdict::Stalled, 3, false), "nothing comes");
        let dies = |quarter: u64| vec![SessionActivity { signs: Some(quarter.min(40)), ..BUSY }];
        assert_eq!(looked(60, dies), (StallVerdict::Stalled, 13, true), "it dies meanwhile");
    }

    #[test]
    fn a_session_that_has_nothing_under_way_answers_for_no_other() {
        let pair =
            |quarter: u64| vec![BUSY, SessionActivity { is_busy: false, signs: Some(quarter), ..BUSY }];
        assert_eq!(looked(20, pair), (StallVerdict::Stalled, 3, false));
        let idle = |quarter: u64| vec![SessionActivity { is_busy: false, signs: Some(quarter), ..BUSY }];
        assert_eq!(looked(20, idle), (StallVerdict::Stalled, 3, false), "a logout takes no time");
        let ended = |_| vec![SessionActivity { signs: None, ..BUSY }];
        assert_eq!(looked(20, ended), (StallVerdict::Stalled, 3, false));
    }
}
