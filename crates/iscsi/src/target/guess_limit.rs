//! The rate limit on guesses of passwords (docs/iscsi-aead.md §3.3).
//!
//! The response to the first message of a key exchange lets its initiator try one password. So each of them
//! counts as a failure until the last message proves that the password was right.
//!
//! # Failures on purpose
//!
//! An attacker who fails on purpose must not lock a user out. So an address from which a user has proven the
//! password once is counted by itself for that user. All other addresses are counted together, because an
//! attacker may have many. Names of users that do not exist are counted like the others, and the list of
//! names is bounded.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

use base::time::{Duration, Instant};

use crate::login::{Guess, LoginResponse};

/// A guess that is under way, and how it is counted.
#[derive(Debug)]
pub(crate) struct Permit {
    guess: Guess,
    source: IpAddr,
    /// Whether it is counted for its address alone.
    is_known: bool,
}

/// The try of a password in the login of a connection.
#[derive(Debug)]
pub(crate) enum PasswordGuess {
    /// The response that permits it waits for the rate limit.
    Waiting {
        /// The user whose password the initiator tries.
        guess: Guess,
        /// When the initiator asked for it.
        since: Instant,
        /// The response.
        response: LoginResponse,
    },
    /// The response was sent.
    Permitted(Permit),
}

impl PasswordGuess {
    /// Returns whether its response was not sent yet.
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }
}

/// Decides who may try a password now.
#[derive(Debug, Default)]
pub(crate) struct GuessLimit {
    users: BTreeMap<Guess, User>,
}

/// The guesses of one user's password.
#[derive(Debug, Default)]
struct User {
    /// The addresses from which the password was proven.
    known: Vec<(IpAddr, Tries)>,
    others: Tries,
}

/// The guesses that are counted together.
#[derive(Debug, Default)]
struct Tries {
    /// How many are under way.
    open: u32,
    /// How many failed in a row.
    failures: u32,
    /// When the last one was permitted or failed.
    last: Instant,
}

impl GuessLimit {
    /// How many logins of one user may be unfinished.
    const OPEN_MAX: u32 = 4;
    /// So many failures in a row change nothing, since people mistype.
    const FREE: u32 = 4;
    /// The delay after that many failures. Each further one doubles it.
    const DELAY: Duration = Duration::from_millis(500);
    const DELAY_MAX: Duration = Duration::from_secs(5);
    /// How long to wait when too many logins are unfinished.
    const POLL: Duration = Duration::from_millis(100);
    /// Failures are forgotten after so long without another try: much longer than the longest delay, so that
    /// waiting permits fewer guesses than going on.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
    /// How many addresses are known for one user. The one that was not used for longest is forgotten first.
    const KNOWN_MAX: usize = 64;
    /// How many users are remembered. Beyond that, one without known addresses and unfinished logins is
    /// forgotten.
    const USERS_MAX: usize = 4096;

    /// Permits one guess, which was requested at `since`, or returns how long to wait.
    ///
    /// The caller passes the permit to [`Self::right`] or [`Self::wrong`].
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        since: Instant,
        guess: &Guess,
        source: IpAddr,
    ) -> Result<Permit, Duration> {
        if !self.users.contains_key(guess) && !self.has_room(now) {
            return Err(Self::POLL);
        }
        let user = self.users.entry(guess.clone()).or_default();
        let is_known = user.known.iter().any(|(known, _)| *known == source);
        let permit = Permit { guess: guess.clone(), source, is_known };
        let tries = user.tries(&permit);
        if now.since(tries.last) >= Self::FORGOTTEN_AFTER {
            tries.failures = 0;
        }
        let delay = tries.delay();
        //= iscsi-aead#section-3.3
        //# A target MUST limit how many it answers: it SHOULD have at most 4 unfinished logins for one
        //# user, and delay step 4 by 500 ms after the fourth failure in a row of a user, and by twice as much
        //# after each further one, up to 5 s.
        if !delay.is_zero() {
            let due = since.max(tries.last).after(delay);
            if due > now {
                return Err(due.since(now));
            }
        }
        if tries.open >= Self::OPEN_MAX {
            return Err(Self::POLL);
        }
        tries.open += 1;
        tries.last = now;
        Ok(permit)
    }

    /// Records that the password of a guess was right.
    pub(crate) fn right(&mut self, now: Instant, permit: &Permit) {
        let Some(user) = self.users.get_mut(&permit.guess) else { return };
        let tries = user.tries(permit);
        tries.open = tries.open.saturating_sub(1);
        //= iscsi-aead#section-3.3
        //# A success ends the delay.
        tries.failures = 0;
        if user.known.iter().any(|(known, _)| *known == permit.source) {
            return;
        }
        if user.known.len() >= Self::KNOWN_MAX {
            let idle = user.known.iter().enumerate().filter(|(_, (_, tries))| tries.open == 0);
            let Some((oldest, _)) = idle.min_by_key(|(_, (_, tries))| tries.last) else { return };
            user.known.swap_remove(oldest);
        }
        user.known.push((permit.source, Tries { last: now, ..Tries::default() }));
    }

    /// Records that a guess did not succeed, for whatever reason.
    pub(crate) fn wrong(&mut self, now: Instant, permit: &Permit) {
        let Some(user) = self.users.get_mut(&permit.guess) else { return };
        let tries = user.tries(permit);
        tries.open = tries.open.saturating_sub(1);
        tries.failures = tries.failures.saturating_add(1);
        tries.last = now;
    }

    /// Makes room for one more user. Returns whether there is some.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.users.len() < Self::USERS_MAX {
            return true;
        }
        self.users.retain(|_, user| !user.is_idle() || now.since(user.others.last) < Self::FORGOTTEN_AFTER);
        if self.users.len() >= Self::USERS_MAX {
            let idle = self.users.iter().filter(|(_, user)| user.is_idle());
            let oldest = idle.min_by_key(|(_, user)| user.others.last).map(|(guess, _)| guess.clone());
            oldest.map(|guess| self.users.remove(&guess));
        }
        self.users.len() < Self::USERS_MAX
    }
}

impl User {
    /// Returns the guesses that a permit is counted with. A known address that was forgotten meanwhile is
    /// counted with the others.
    fn tries(&mut self, permit: &Permit) -> &mut Tries {
        let known = self.known.iter_mut().find(|(source, _)| permit.is_known && *source == permit.source);
        known.map_or(&mut self.others, |(_, tries)| tries)
    }

    fn is_idle(&self) -> bool {
        self.known.is_empty() && self.others.open == 0
    }
}

impl Tries {
    fn delay(&self) -> Duration {
        let Some(doublings) = self.failures.checked_sub(GuessLimit::FREE) else { return Duration::ZERO };
        (GuessLimit::DELAY * (1 << doublings.min(8))).min(GuessLimit::DELAY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;
    use crate::login::directory::Realm;

    fn guess(user: &str) -> Guess {
        Guess { realm: Realm::Discovery, user: user.into() }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    /// Fails `count` times in a row, as fast as the limit permits. Returns when the last one failed.
    fn fail(limit: &mut GuessLimit, mut now: Instant, user: &str, source: IpAddr, count: usize) -> Instant {
        for _ in 0..count {
            let since = now;
            let permit = loop {
                match limit.begin(now, since, &guess(user), source) {
                    Ok(permit) => break permit,
                    Err(wait) => now = now.after(wait),
                }
            };
            limit.wrong(now, &permit);
        }
        now
    }

    fn wait(limit: &mut GuessLimit, now: Instant, source: IpAddr) -> Duration {
        match limit.begin(now, now, &guess("alice"), source) {
            Ok(permit) => {
                limit.wrong(now, &permit);
                Duration::ZERO
            }
            Err(wait) => wait,
        }
    }

    #[test]
    fn the_delay_begins_after_four_failures_and_doubles_up_to_five_seconds() {
        let (mut limit, mut now) = (GuessLimit::default(), Instant::ORIGIN);
        let mut delays = Vec::new();
        for _ in 0..12 {
            let end = fail(&mut limit, now, "alice", address(1), 1);
            delays.push(end.since(now).as_millis());
            now = end;
        }
        assert_eq!(delays, [0, 0, 0, 0, 500, 1000, 2000, 4000, 5000, 5000, 5000, 5000]);
    }

    #[test]
    fn a_login_that_comes_late_is_delayed_too_and_a_long_silence_ends_the_delay() {
        let mut limit = GuessLimit::default();
        let now = fail(&mut limit, Instant::ORIGIN, "alice", address(1), 5);
        let late = now.after(Duration::from_secs(30));
        assert_eq!(wait(&mut limit, late, address(1)), Duration::from_secs(1));
        assert_eq!(wait(&mut limit, now.after(Duration::from_secs(61)), address(1)), Duration::ZERO);
    }

    #[test]
    fn a_success_ends_the_delay() {
        let mut limit = GuessLimit::default();
        let now = fail(&mut limit, Instant::ORIGIN, "alice", address(1), 8);
        let later = now.after(Duration::from_secs(5));
        let permit = limit.begin(later, now, &guess("alice"), address(1)).unwrap();
        limit.right(later, &permit);
        assert_eq!(wait(&mut limit, later, address(2)), Duration::ZERO);
    }

    #[test]
    fn at_most_four_logins_of_a_user_are_unfinished() {
        let (mut limit, now) = (GuessLimit::default(), Instant::ORIGIN);
        let begin = |limit: &mut GuessLimit, user: &str| limit.begin(now, now, &guess(user), address(1));
        let mut open: Vec<Permit> = (0..4).map(|_| begin(&mut limit, "alice").unwrap()).collect();
        assert_eq!(begin(&mut limit, "alice").unwrap_err(), GuessLimit::POLL);
        assert!(begin(&mut limit, "bob").is_ok(), "another user");
        limit.right(now, &open.pop().unwrap());
        assert!(begin(&mut limit, "alice").is_ok());
    }

    #[test]
    fn failures_from_elsewhere_do_not_delay_a_user_at_a_known_address() {
        let mut limit = GuessLimit::default();
        let permit = limit.begin(Instant::ORIGIN, Instant::ORIGIN, &guess("alice"), address(1)).unwrap();
        limit.right(Instant::ORIGIN, &permit);
        let now = fail(&mut limit, Instant::ORIGIN, "alice", address(2), 20);
        let held: Vec<Permit> = (3..7)
            .map(|last| limit.begin(now.after(GuessLimit::DELAY_MAX), now, &guess("alice"), address(last)))
            .map_while(Result::ok)
            .collect();
        assert!(!held.is_empty());
        assert_ne!(wait(&mut limit, now, address(2)), Duration::ZERO);
        assert_eq!(wait(&mut limit, now, address(1)), Duration::ZERO);
        let now = fail(&mut limit, now, "alice", address(1), 8);
        assert_ne!(wait(&mut limit, now, address(1)), Duration::ZERO, "it is limited by its own failures");
    }

    #[test]
    fn invented_names_and_addresses_do_not_fill_the_memory() {
        let (mut limit, mut now) = (GuessLimit::default(), Instant::ORIGIN);
        let permit = limit.begin(now, now, &guess("alice"), address(1)).unwrap();
        limit.right(now, &permit);
        for number in 0..2 * GuessLimit::USERS_MAX {
            now = now.after(Duration::from_millis(1));
            fail(&mut limit, now, &format!("user {number}"), address(2), 1);
        }
        assert_eq!(limit.users.len(), GuessLimit::USERS_MAX);
        for last in 0..=u8::MAX {
            let permit = limit.begin(now, now, &guess("alice"), address(last)).unwrap();
            limit.right(now, &permit);
        }
        assert_eq!(limit.users[&guess("alice")].known.len(), GuessLimit::KNOWN_MAX);
    }
}
