//! How fast passwords can be tried: from one address, in one group, and altogether.
//!
//! An answer to the first message of a key exchange lets its initiator try one password, so each answer counts as a
//! failure until the last message shows that the password was right.
//!
//! # Who fails on purpose
//!
//! Whoever fails must not keep members out. So failures slow the address down that they come from (which receives what is sent
//! there, or its cookie were no good), and a group as a whole only when many addresses failed. Those can be invented, so a
//! group that is attacked from many of them gets slow for newcomers: else guesses would have no bound. Members do not
//! notice even then: an address from which the password was known once has an allowance of its own.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::ether::{EtherPort, Mac};
use base::time::{Duration, Instant};

use crate::pdu::name::GroupName;

/// An allowance that grows with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// What is left, in parts of [`ONE`].
    left: u64,
    max: u32,
    /// Up to when it has grown.
    since: Instant,
    /// The time in which one grew since then.
    interval: Duration,
}

/// One of an allowance: fine enough that a microsecond of half a minute is not nothing.
const ONE: u64 = 1 << 30;

impl TokenBucket {
    /// Begins full.
    pub(crate) const fn full(max: u32, now: Instant) -> Self {
        Self { left: max as u64 * ONE, max, since: now, interval: Duration::ZERO }
    }

    /// Takes one; if there is none, says how long until there is. From now on one more grows in each `interval`: what
    /// grew until now did so at the pace of before.
    pub(crate) fn take(&mut self, now: Instant, interval: Duration) -> Result<(), Duration> {
        let grown = now.since(self.since).as_nanos() * u128::from(ONE) / self.interval.as_nanos().max(1);
        let left = self.left.saturating_add(u64::try_from(grown).unwrap_or(u64::MAX));
        self.left = left.min(u64::from(self.max) * ONE);
        (self.since, self.interval) = (now, interval);
        self.left = self.left.checked_sub(ONE).ok_or_else(|| {
            let wait = u128::from(ONE - self.left) * interval.as_nanos() / u128::from(ONE);
            Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX).saturating_add(1))
        })?;
        Ok(())
    }

    /// Gives one back.
    pub(crate) fn give_back(&mut self) {
        self.left = self.left.saturating_add(ONE).min(u64::from(self.max) * ONE);
    }
}

/// Where a try comes from.
pub(crate) type Source = (EtherPort, Mac);

/// A try that goes on, and what it was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    source: Source,
    /// Whether it was taken from what a member has for itself.
    as_member: bool,
}

/// Who may try a password now.
#[derive(Debug)]
pub(crate) struct PasswordRateLimit {
    all: TokenBucket,
    groups: BTreeMap<GroupName, Group>,
}

#[derive(Debug)]
struct Group {
    allowance: TokenBucket,
    members: Vec<Known>,
    others: Vec<Known>,
}

/// An address that tried.
#[derive(Debug)]
struct Known {
    source: Source,
    allowance: TokenBucket,
    /// How many failures are not forgotten yet.
    failures: u32,
    /// When the last failure came, or the last one was forgotten.
    since: Instant,
    /// When it last tried.
    last: Instant,
}

impl PasswordRateLimit {
    /// How many key exchanges from one address can be under way at once.
    const SOURCE_MAX: u32 = 4;
    /// How many of a group: a rack of hosts that come back together.
    const GROUP_MAX: u32 = 16;
    /// How fast that many become possible again, while nothing fails.
    const INTERVAL: Duration = Duration::from_millis(500);
    /// So many failures of an address change nothing, as people mistype; nor do so many addresses that failed.
    const FREE: u32 = 4;
    /// Each further one doubles the interval, up to 32 seconds: 2700 guesses a day.
    const DOUBLINGS_MAX: u32 = 6;
    /// A failure is forgotten after so long without another: longer than the longest interval.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
    /// How many addresses of members, and of others, are remembered for a group. The oldest go first.
    const MEMBERS_MAX: usize = 64;
    const OTHERS_MAX: usize = 64;
    /// Of all groups together; a key exchange costs some tenths of a millisecond.
    const ALL_MAX: u32 = 64;
    const ALL_INTERVAL: Duration = Duration::from_millis(20);
    /// More groups than a server has; beyond, the ones that nobody is known of are forgotten.
    const GROUPS_MAX: usize = 4096;

    pub(crate) const fn new(now: Instant) -> Self {
        Self { all: TokenBucket::full(Self::ALL_MAX, now), groups: BTreeMap::new() }
    }

    /// Returns whether the group's password was known at this address.
    pub(crate) fn is_member(&self, group: &GroupName, source: Source) -> bool {
        self.groups.get(group).is_some_and(|group| group.members.iter().any(|known| known.source == source))
    }

    /// Lets one more try go on; if there were too many, says when to come back.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        group: &GroupName,
        source: Source,
    ) -> Result<Permit, Duration> {
        if self.groups.len() >= Self::GROUPS_MAX {
            self.groups.retain(|_, group| {
                group.forget(now);
                !(group.members.is_empty() && group.others.is_empty())
            });
        }
        let entry = self.groups.entry(group.clone()).or_insert_with(|| Group::new(now));
        let permit = entry.begin(now, source)?;
        self.all.take(now, Self::ALL_INTERVAL).inspect_err(|_| entry.put_back(permit))?;
        Ok(permit)
    }

    /// Takes note that a try came to nothing before a password could be tried.
    pub(crate) fn put_back(&mut self, group: &GroupName, permit: Permit) {
        self.all.give_back();
        if let Some(entry) = self.groups.get_mut(group) {
            entry.put_back(permit);
        }
    }

    /// Takes note that a try ended well.
    pub(crate) fn right(&mut self, now: Instant, group: &GroupName, permit: Permit) {
        self.put_back(group, permit);
        if let Some(entry) = self.groups.get_mut(group) {
            entry.right(now, permit.source);
        }
    }

    /// Takes note that a try did not end well, whyever.
    pub(crate) fn wrong(&mut self, now: Instant, group: &GroupName, permit: Permit) {
        if let Some(known) = self.groups.get_mut(group).and_then(|entry| entry.find(permit)) {
            // What is beyond the last doubling is forgotten no slower than that.
            let max = Self::FREE + Self::DOUBLINGS_MAX;
            known.failures = max.min(known.failures_at(now) + 1);
            known.since = now;
        }
    }
}

impl Group {
    const fn new(now: Instant) -> Self {
        Self {
            allowance: TokenBucket::full(PasswordRateLimit::GROUP_MAX, now),
            members: Vec::new(),
            others: Vec::new(),
        }
    }

    fn begin(&mut self, now: Instant, source: Source) -> Result<Permit, Duration> {
        self.forget(now);
        let as_member = Permit { source, as_member: true };
        if self.find(as_member).is_some_and(|member| member.take(now).is_ok()) {
            return Ok(as_member);
        }
        // Where somebody else fails in the name of a member, it is a newcomer like others.
        let permit = Permit { source, as_member: false };
        let known = self.find(permit).map(|known| known.take(now)).transpose()?.is_some();
        let failed = self.others.iter().filter(|known| known.failures > 0).count();
        let interval = interval(u32::try_from(failed).unwrap_or(u32::MAX));
        if let Err(wait) = self.allowance.take(now, interval) {
            if let Some(known) = self.find(permit) {
                known.allowance.give_back();
            }
            return Err(wait);
        }
        if !known {
            // Only now: who is put off must not crowd out those who failed.
            if self.others.len() >= PasswordRateLimit::OTHERS_MAX {
                remove_oldest(&mut self.others);
            }
            let mut known = Known::new(now, source);
            known.take(now)?;
            self.others.push(known);
        }
        Ok(permit)
    }

    fn put_back(&mut self, permit: Permit) {
        if !permit.as_member {
            self.allowance.give_back();
        }
        if let Some(known) = self.find(permit) {
            known.allowance.give_back();
        }
    }

    fn right(&mut self, now: Instant, source: Source) {
        let other = self.others.iter().position(|known| known.source == source);
        let other = other.map(|at| self.others.swap_remove(at));
        if let Some(member) = self.find(Permit { source, as_member: true }) {
            member.failures = member.failures_at(now) / 2;
            return;
        }
        if let Some(mut fresh) = other {
            fresh.failures = fresh.failures_at(now) / 2;
            if self.members.len() >= PasswordRateLimit::MEMBERS_MAX {
                remove_oldest(&mut self.members);
            }
            self.members.push(fresh);
        }
    }

    fn find(&mut self, permit: Permit) -> Option<&mut Known> {
        let known = if permit.as_member { &mut self.members } else { &mut self.others };
        known.iter_mut().find(|known| known.source == permit.source)
    }

    /// Forgets failures, and addresses of which nothing is left to be known.
    fn forget(&mut self, now: Instant) {
        self.others.retain_mut(|known| {
            known.failures_at(now) > 0 || now.since(known.last) < PasswordRateLimit::FORGOTTEN_AFTER
        });
    }
}

impl Known {
    const fn new(now: Instant, source: Source) -> Self {
        let allowance = TokenBucket::full(PasswordRateLimit::SOURCE_MAX, now);
        Self { source, allowance, failures: 0, since: now, last: now }
    }

    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.last = now;
        let failures = self.failures_at(now);
        self.allowance.take(now, interval(failures))
    }

    fn failures_at(&mut self, now: Instant) -> u32 {
        let forgotten = now.since(self.since).as_secs() / PasswordRateLimit::FORGOTTEN_AFTER.as_secs();
        if forgotten > 0 {
            self.failures = self.failures.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
            self.since = now;
        }
        self.failures
    }
}

/// Returns how far apart tries are after so many failures.
fn interval(failures: u32) -> Duration {
    PasswordRateLimit::INTERVAL
        * (1 << failures.saturating_sub(PasswordRateLimit::FREE).min(PasswordRateLimit::DOUBLINGS_MAX))
}

fn remove_oldest(list: &mut Vec<Known>) {
    if let Some(at) = list.iter().enumerate().min_by_key(|(_, known)| known.last).map(|(at, _)| at) {
        list.swap_remove(at);
    }
}

#[cfg(test)]
mod tests;
