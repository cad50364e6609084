//! How fast passwords can be tried: per group, where it gets slower with every failure, and altogether.
//!
//! An answer to the first message of a key exchange lets its initiator try one password, so each answer counts as a
//! failure until the last message shows that the password was right.

use alloc::collections::BTreeMap;

use base::time::{Duration, Instant};

use crate::pdu::name::GroupName;

/// An allowance that grows with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    left: u32,
    max: u32,
    /// Since when the next one grows.
    since: Instant,
}

impl Allowance {
    /// Begins full.
    pub(crate) const fn full(max: u32, now: Instant) -> Self {
        Self { left: max, max, since: now }
    }

    /// Takes one; if there is none, says how long until there is. One more grows in each `interval`.
    pub(crate) fn take(&mut self, now: Instant, interval: Duration) -> Result<(), Duration> {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let grown = now.0.saturating_sub(self.since.0) / interval_ns;
        self.left = self.max.min(self.left.saturating_add(u32::try_from(grown).unwrap_or(u32::MAX)));
        self.since = if self.left == self.max { now } else { Instant(self.since.0 + grown * interval_ns) };
        self.left = self.left.checked_sub(1).ok_or_else(|| interval.saturating_sub(now.since(self.since)))?;
        Ok(())
    }

    /// Gives one back.
    pub(crate) fn give_back(&mut self) {
        self.left = self.max.min(self.left + 1);
    }
}

/// Who may try a password now.
#[derive(Debug)]
pub(crate) struct Guesses {
    all: Allowance,
    groups: BTreeMap<GroupName, Group>,
}

#[derive(Debug)]
struct Group {
    allowance: Allowance,
    /// How many failures are not forgotten yet.
    failures: u32,
    /// When the last failure came, or the last one was forgotten.
    since: Instant,
}

impl Guesses {
    /// How many key exchanges of a group can be under way at once: a rack of hosts that come back together.
    const GROUP_MAX: u32 = 16;
    /// How fast that many become possible again, while nothing fails.
    const GROUP_INTERVAL: Duration = Duration::from_millis(500);
    /// So many failures change nothing: people mistype.
    const FAILURES_FREE: u32 = 4;
    /// Each further one doubles the interval, up to 32 seconds: 2700 guesses a day.
    const DOUBLINGS_MAX: u32 = 6;
    /// A failure is forgotten after so long without another: longer than the longest interval.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
    /// Of all groups together; a key exchange costs some tenths of a millisecond.
    const ALL_MAX: u32 = 64;
    const ALL_INTERVAL: Duration = Duration::from_millis(20);
    /// More groups than a server has; beyond, the ones at rest are forgotten.
    const GROUPS_MAX: usize = 4096;

    pub(crate) const fn new(now: Instant) -> Self {
        Self { all: Allowance::full(Self::ALL_MAX, now), groups: BTreeMap::new() }
    }

    /// Lets one more try go on; if there were too many, says when to come back.
    pub(crate) fn begin(&mut self, now: Instant, group: &GroupName) -> Result<(), Duration> {
        if self.groups.len() >= Self::GROUPS_MAX {
            self.groups.retain(|_, group| group.failures_at(now) > 0);
        }
        let entry = self.groups.entry(group.clone()).or_insert_with(|| Group {
            allowance: Allowance::full(Self::GROUP_MAX, now),
            failures: 0,
            since: now,
        });
        let doublings = entry.failures_at(now).saturating_sub(Self::FAILURES_FREE).min(Self::DOUBLINGS_MAX);
        entry.allowance.take(now, Self::GROUP_INTERVAL * (1 << doublings))?;
        self.all.take(now, Self::ALL_INTERVAL).inspect_err(|_| entry.allowance.give_back())
    }

    /// Takes note that a try came to nothing before a password could be tried.
    pub(crate) fn put_back(&mut self, group: &GroupName) {
        self.all.give_back();
        if let Some(entry) = self.groups.get_mut(group) {
            entry.allowance.give_back();
        }
    }

    /// Takes note that a try ended well.
    pub(crate) fn right(&mut self, group: &GroupName) {
        self.put_back(group);
        if let Some(entry) = self.groups.get_mut(group) {
            entry.failures /= 2;
        }
    }

    /// Takes note that a try did not end well, whyever.
    pub(crate) fn wrong(&mut self, now: Instant, group: &GroupName) {
        if let Some(entry) = self.groups.get_mut(group) {
            // What is beyond the last doubling is forgotten no slower than that.
            let max = Self::FAILURES_FREE + Self::DOUBLINGS_MAX;
            entry.failures = max.min(entry.failures_at(now) + 1);
            entry.since = now;
        }
    }
}

impl Group {
    fn failures_at(&mut self, now: Instant) -> u32 {
        let forgotten = now.since(self.since).as_secs() / Guesses::FORGOTTEN_AFTER.as_secs();
        if forgotten > 0 {
            self.failures = self.failures.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
            self.since = now;
        }
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> GroupName {
        GroupName::new(text).unwrap()
    }

    /// Guesses as fast as it is let for `span`, always wrong; returns how often.
    fn attack(guesses: &mut Guesses, from: Instant, span: Duration, whose: &GroupName) -> u32 {
        let (mut now, mut count) = (from, 0);
        while now.since(from) < span {
            match guesses.begin(now, whose) {
                Ok(()) => {
                    count += 1;
                    guesses.wrong(now, whose);
                }
                Err(wait) => now = now.after(wait.max(Duration::from_millis(1))),
            }
        }
        count
    }

    #[test]
    fn guessing_gets_slow_and_stays_slow() {
        let mut guesses = Guesses::new(Instant::ORIGIN);
        let hour = Duration::from_secs(3600);
        let first = attack(&mut guesses, Instant::ORIGIN, hour, &group("a"));
        let second = attack(&mut guesses, Instant::ORIGIN.after(hour), hour, &group("a"));
        assert!(first <= 160 && (100..=120).contains(&second), "{first} {second}");
    }

    #[test]
    fn those_who_know_the_password_of_another_group_notice_nothing() {
        let mut guesses = Guesses::new(Instant::ORIGIN);
        attack(&mut guesses, Instant::ORIGIN, Duration::from_secs(60), &group("a"));
        let now = Instant::ORIGIN.after(Duration::from_secs(60));
        for _ in 0..1000 {
            assert_eq!(guesses.begin(now, &group("b")), Ok(()));
            guesses.right(&group("b"));
        }
        assert!(guesses.begin(now, &group("a")).is_err());
    }

    #[test]
    fn failures_are_forgotten() {
        let mut guesses = Guesses::new(Instant::ORIGIN);
        attack(&mut guesses, Instant::ORIGIN, Duration::from_secs(60), &group("a"));
        let later = Instant::ORIGIN.after(Duration::from_secs(60 + 11 * 60));
        for _ in 0..10 {
            assert_eq!(guesses.begin(later, &group("a")), Ok(()));
        }
    }

    #[test]
    fn all_groups_together_are_bounded() {
        let mut guesses = Guesses::new(Instant::ORIGIN);
        let names = (0..1000).map(|at| group(&alloc::format!("{at}")));
        let count = names.filter(|name| guesses.begin(Instant::ORIGIN, name).is_ok()).count();
        assert_eq!(count, 64);
    }
}
