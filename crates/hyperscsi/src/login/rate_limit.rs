//! The rate limit on password guesses: from one address, in one group, and altogether.
//!
//! The answer to the first message of a key exchange lets its initiator try one password. So each answer
//! counts as a failure until the last message proves that the password was right.
//!
//! # Failures on purpose
//!
//! An attacker who fails on purpose must not lock members out. So failures slow down the address that they
//! come from (the cookie proves that it receives what is sent there). They slow down a group as a whole only
//! when many addresses failed. Addresses can be invented, so a group that is attacked from many of them
//! becomes slow for newcomers: otherwise guesses would have no bound. Members are not affected even then: an
//! address that has proven the password once has an allowance of its own.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::ether::{EtherPort, Mac};
use base::time::{Duration, Instant};

use crate::pdu::name::GroupName;

/// A token bucket: an allowance that grows with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// The tokens left, in parts of [`ONE`].
    left: u64,
    max: u32,
    /// Until when the growth was computed.
    since: Instant,
    /// The time in which one token grows from then on.
    interval: Duration,
}

/// One token. The parts are fine enough that a microsecond counts at one token per half minute.
const ONE: u64 = 1 << 30;

impl TokenBucket {
    /// Makes a full token bucket.
    pub(crate) const fn full(max: u32, now: Instant) -> Self {
        Self { left: max as u64 * ONE, max, since: now, interval: Duration::ZERO }
    }

    /// Takes one token. If there is none, returns how long until there is one. From now on one token grows
    /// per `interval`; the growth until now is computed at the previous interval.
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

    /// Returns one token to the bucket.
    pub(crate) fn give_back(&mut self) {
        self.left = self.left.saturating_add(ONE).min(u64::from(self.max) * ONE);
    }
}

/// The port and address that a try comes from.
pub(crate) type Source = (EtherPort, Mac);

/// A try that is under way, and the allowance that it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    source: Source,
    /// Whether it used a member's own allowance.
    as_member: bool,
}

/// The rate limit: decides who may try a password now.
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

/// An address that tried a password.
#[derive(Debug)]
struct Known {
    source: Source,
    allowance: TokenBucket,
    /// How many failures are not forgotten yet.
    failures: u32,
    /// When the last failure occurred, or the last one was forgotten.
    since: Instant,
    /// When the address last tried.
    last: Instant,
}

impl PasswordRateLimit {
    /// How many key exchanges from one address can be under way at once.
    const SOURCE_MAX: u32 = 4;
    /// How many key exchanges of a group can begin at once: enough for a rack of hosts that return together.
    const GROUP_MAX: u32 = 16;
    /// The interval at which these allowances grow by one while nothing fails.
    const INTERVAL: Duration = Duration::from_millis(500);
    /// So many failures of an address change nothing, since people mistype; nor do so many addresses that
    /// failed.
    const FREE: u32 = 4;
    /// Each further failure doubles the interval, up to 32 seconds: 2700 guesses a day.
    const DOUBLINGS_MAX: u32 = 6;
    /// A failure is forgotten after so long without another. This is longer than the longest interval.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
    /// How many addresses of members, and of others, are remembered for a group. The oldest are forgotten
    /// first.
    const MEMBERS_MAX: usize = 64;
    const OTHERS_MAX: usize = 64;
    /// How many key exchanges of all groups together can begin at once; each costs some tenths of a
    /// millisecond.
    const ALL_MAX: u32 = 64;
    const ALL_INTERVAL: Duration = Duration::from_millis(20);
    /// How many groups are remembered: more than a server has. Beyond that, groups without remembered
    /// addresses are forgotten.
    const GROUPS_MAX: usize = 4096;

    pub(crate) const fn new(now: Instant) -> Self {
        Self { all: TokenBucket::full(Self::ALL_MAX, now), groups: BTreeMap::new() }
    }

    /// Returns whether the group's password was proven from this address.
    pub(crate) fn is_member(&self, group: &GroupName, source: Source) -> bool {
        self.groups.get(group).is_some_and(|group| group.members.iter().any(|known| known.source == source))
    }

    /// Admits one more try. If there were too many, returns how long to wait.
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

    /// Records that a try ended before a password could be tried.
    pub(crate) fn put_back(&mut self, group: &GroupName, permit: Permit) {
        self.all.give_back();
        if let Some(entry) = self.groups.get_mut(group) {
            entry.put_back(permit);
        }
    }

    /// Records that the password of a try was right.
    pub(crate) fn right(&mut self, now: Instant, group: &GroupName, permit: Permit) {
        self.put_back(group, permit);
        if let Some(entry) = self.groups.get_mut(group) {
            entry.right(now, permit.source);
        }
    }

    /// Records that a try did not succeed, for whatever reason.
    pub(crate) fn wrong(&mut self, now: Instant, group: &GroupName, permit: Permit) {
        if let Some(known) = self.groups.get_mut(group).and_then(|entry| entry.find(permit)) {
            // Failures beyond the last doubling do not count, so that forgetting them takes no longer.
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
        // A member whose own allowance is used up is treated as a newcomer: another host may have failed
        // under its address.
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
            // The address is remembered only now: refused tries must not displace addresses that failed.
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

    /// Forgets failures, and addresses about which nothing is left to remember.
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

/// Returns the interval between tries after `failures` failures.
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
