//! The limit on guesses of passwords and tokens that all reactors and the HTTP server share, and the file
//! `guesses` of the state directory, which keeps it over a restart and an upgrade.
//!
//! The main thread alone writes the file, so that no reactor waits for a disk. A process that takes over
//! reads it when the other one has written it for the last time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use security::guess_limit::{GuessLimit, SharedGuessLimit};

use super::ServeError;
use super::daemon_event::DaemonEvent;
use super::state::{StateDir, StateError};
use crate::mailbox::Sender;

/// How long changes are collected before they are stored. A crash forgets no more than that.
const STORE_DELAY: Duration = Duration::from_secs(5);

/// The time of the limit at the start, so that times before it can be stored.
const START: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The limit of this process, and when the main thread stores it.
#[derive(Debug)]
pub(super) struct GuessStore {
    guard: Arc<GuessGuard>,
    due: Option<Instant>,
}

impl GuessStore {
    /// Reads the file of the state directory.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub(super) fn load(state: &StateDir, events: Sender<DaemonEvent>) -> Result<Self, ServeError> {
        Ok(Self { guard: GuessGuard::load(state, events)?, due: None })
    }

    /// Returns the limit.
    pub(super) const fn guard(&self) -> &Arc<GuessGuard> {
        &self.guard
    }

    /// Returns when [`Self::store`] is to be called.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records that the limit has changed.
    pub(super) fn changed(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + STORE_DELAY);
    }

    /// Stores the limit if it has changed. A failure is logged, and the next change stores it.
    pub(super) fn store(&mut self, state: &StateDir, within: Duration) {
        self.due = None;
        if let Err(error) = self.guard.store(state, within) {
            crate::warning!("{error}; a restart forgets failed logins and known addresses");
        }
    }
}

/// The limit of this process.
#[derive(Debug)]
pub(super) struct GuessGuard {
    limit: Mutex<Reported>,
    began: Instant,
    events: Sender<DaemonEvent>,
}

#[derive(Debug)]
struct Reported {
    limit: GuessLimit,
    /// Whether the main thread knows that something changed.
    is_reported: bool,
}

impl GuessGuard {
    /// Reads the file of the state directory. If it is missing or damaged, nothing is known.
    fn load(state: &StateDir, events: Sender<DaemonEvent>) -> Result<Arc<Self>, ServeError> {
        let restored = match state.load_guesses() {
            Ok(None) => None,
            Ok(Some(text)) => match GuessLimit::restore(&text, START) {
                Ok(limit) => Some(limit),
                Err(why) => {
                    let path = state.guesses();
                    let what = "failed logins are counted anew, and no address is known";
                    crate::warning!("{}: {why}; {what}", path.display());
                    None
                }
            },
            Err(error) => {
                crate::warning!("{error}; failed logins are counted anew, and no address is known");
                None
            }
        };
        let limit = match restored {
            Some(limit) => limit,
            None => GuessLimit::new(crate::random::entropy().map_err(ServeError::Thread)?),
        };
        let limit = Mutex::new(Reported { limit, is_reported: false });
        Ok(Arc::new(Self { limit, began: Instant::now(), events }))
    }

    /// Writes the file if anything changed; returns when it is durable.
    ///
    /// # Errors
    /// [`StateError`]; the former file is still there then.
    fn store(&self, state: &StateDir, within: Duration) -> Result<(), StateError> {
        let (mut copy, now) = {
            let mut reported = self.lock();
            reported.is_reported = false;
            if !reported.limit.is_changed() {
                return Ok(());
            }
            let copy = reported.limit.clone();
            // What changes from now on is reported again.
            reported.limit.mark_stored();
            (copy, self.now())
        };
        state.save_guesses(&copy.store(now), within).inspect_err(|_| self.lock().limit.mark_changed())
    }

    fn lock(&self) -> MutexGuard<'_, Reported> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        START + self.began.elapsed()
    }
}

impl SharedGuessLimit for GuessGuard {
    fn with(&self, work: &mut dyn FnMut(&mut GuessLimit, Duration)) {
        let mut reported = self.lock();
        work(&mut reported.limit, self.now());
        if reported.limit.is_changed() && !reported.is_reported {
            reported.is_reported = true;
            // A main thread that has ended stores nothing more.
            let _ = self.events.send(DaemonEvent::GuessesChanged);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use security::guess_limit::Account;

    use super::*;
    use crate::mailbox::channel;
    use crate::scratch::Scratch;

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn tokens() -> Account {
        Account::of_http_tokens()
    }

    /// Tries once; returns how long the next try waits.
    fn attempt(guard: &GuessGuard, source: IpAddr, is_right: bool) -> Duration {
        let mut wait = Duration::ZERO;
        guard.with(&mut |limit, now| {
            let permit = limit.begin_late(now, &tokens(), source);
            match is_right {
                true => limit.right(now, permit),
                false => limit.wrong(now, &permit),
            }
            wait = limit.wait(now, Duration::ZERO, &tokens(), source);
        });
        wait
    }

    fn is_known(guard: &GuessGuard, source: IpAddr) -> bool {
        let mut is_known = false;
        guard.with(&mut |limit, _| is_known = limit.is_known(&tokens(), source));
        is_known
    }

    #[test]
    fn a_restart_keeps_the_delays_and_the_known_addresses() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let (events, occasions) = channel();
        let guard = GuessGuard::load(&state, events.clone()).unwrap();
        attempt(&guard, HOME, true);
        let waits: Vec<Duration> = (0..4).map(|_| attempt(&guard, ELSEWHERE, false)).collect();
        assert_eq!(waits.last(), Some(&Duration::from_millis(500)));
        assert_eq!(occasions.try_iter().count(), 1, "the main thread hears of it once");
        guard.store(&state, Duration::from_secs(60)).unwrap();
        attempt(&guard, ELSEWHERE, false);
        assert_eq!(occasions.try_iter().count(), 1, "and again after it has stored the file");
        guard.store(&state, Duration::from_secs(60)).unwrap();
        let again = GuessGuard::load(&state, events).unwrap();
        assert!(is_known(&again, HOME) && !is_known(&again, ELSEWHERE));
        assert_eq!(attempt(&again, HOME, false), Duration::ZERO);
        assert_eq!(attempt(&again, ELSEWHERE, false), Duration::from_secs(2), "six failures in a row");
    }

    #[test]
    fn a_file_that_is_damaged_is_replaced() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        std::fs::write(state.guesses(), b"targe guesses 1\nsalt 00\xff\n").unwrap();
        let (events, _occasions) = channel();
        let guard = GuessGuard::load(&state, events.clone()).unwrap();
        attempt(&guard, HOME, true);
        guard.store(&state, Duration::from_secs(60)).unwrap();
        assert!(is_known(&GuessGuard::load(&state, events).unwrap(), HOME));
    }
}
