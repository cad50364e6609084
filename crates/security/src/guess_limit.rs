//! The limit on guesses of passwords and tokens, for iSCSI and for the HTTP API.
//!
//! The answer to the first message of a key exchange lets its initiator try one password. So each answer
//! counts as a failure until the last message proves that the password was right. [`GuessLimit::begin`]
//! permits one try or says how long to wait; the caller ends each [`Permit`] with [`GuessLimit::right`],
//! [`GuessLimit::wrong`] or [`GuessLimit::put_back`].
//!
//! # What is counted
//!
//! An [`Account`] is a password: the record of a user in a password file, or all tokens of the HTTP API. It
//! is the same account through every target, portal and reactor.
//!
//! | tries of one account from | are limited by |
//! |---|---|
//! | an address that has proven the password (*known*) | their own failures only |
//! | another address | its own failures; then the allowances of its network and of the account |
//!
//! A *host* is an IPv4 address or an IPv6 network of 64 bits, in which one machine can have any address, and
//! a *network* is an IPv4 network of 24 bits or an IPv6 network of 48 bits. Sources are addresses that have
//! received something, as those of TCP connections have, and cannot be invented. The allowances of an account
//! and of a network are divided by how often a host has failed lately (`Class`): hosts that fail use up the
//! allowance of hosts that fail, and a host that never failed is not delayed by them. A host that tries the
//! passwords of many accounts has an allowance of its own for all of them together.
//!
//! # Bounds
//!
//! Wrong tries of one account from all addresses that are not known, together: `FRESH`, `FEW` and
//! `MANY` at first, then fewer than 14 000 a day. From each known address: `MANY` at first, then 7200 a
//! day.
//!
//! Counters are in tables of bounded size under keyed digests. Nothing is forgotten before it is void: if a
//! table is full of counters that still delay somebody, further hosts share counters. Known addresses are in
//! a table of their own, in which only right passwords make entries.
//!
//! **Invariant:** no I/O, no clock: `now` is the time since an origin that all callers of one limit share.

mod store;
mod table;

#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::opaque::PasswordRecord;
pub use store::BadStore;
use table::{Table, Transient};

/// How many tries of one account from one host may be unfinished.
pub const OPEN_MAX: u32 = 4;
/// So many failures in a row of one host change nothing, since people mistype.
const FREE: u32 = 4;
/// The delay after that many failures. Each further one doubles it.
const DELAY: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// When to ask again if too many tries are unfinished, or an allowance is used up by tries that may turn out
/// to be right.
const POLL: Duration = Duration::from_millis(100);
const POLL_ALLOWANCE: Duration = Duration::from_secs(1);
/// The delay ends after so long without another try. This is much longer than the longest delay, so that
/// waiting permits fewer tries than going on.
const DELAY_FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// The class of a host is forgotten after so long without another try.
const CLASS_FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// The allowances of one account for hosts that have not failed lately, that have failed a few times, and
/// that have failed more often.
const FRESH: Allowance = Allowance { burst: 256, interval: Duration::from_secs(20) };
const FEW: Allowance = Allowance { burst: 128, interval: Duration::from_secs(40) };
const MANY: Allowance = Allowance { burst: 16, interval: Duration::from_secs(12) };
/// The same for one network, so that one network leaves something to the others.
const FRESH_OF_NETWORK: Allowance = Allowance { burst: 192, interval: Duration::from_secs(40) };
const FEW_OF_NETWORK: Allowance = Allowance { burst: 96, interval: Duration::from_secs(80) };
/// The allowance of one host for all accounts for which it is not known.
const HOST: Allowance = Allowance { burst: 64, interval: Duration::from_secs(2) };

/// The time of a proof is stored again after so long, so that a client that logs in all the time does not
/// cause a write each time.
const PROVEN_STORED_AFTER: Duration = Duration::from_secs(3600);

/// How many addresses are known for one account: the one that was not used for longest is forgotten first.
const KNOWN_MAX: usize = 64;
/// How many addresses are known for all accounts. Beyond that, an account with the most of them forgets the
/// one that was not used for longest. They take at most 8 MiB.
const KNOWN_TOTAL_MAX: usize = 65_536;

/// A password, independent of the initiator that tries it and of the target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account([u8; 32]);

impl Account {
    /// Returns the account of a user whose password has this record. A user that does not exist has the
    /// record of the decoy.
    pub fn of_user(record: &PasswordRecord, user: &str) -> Self {
        Self::digest(b"user", &[record.guess_id(), user.as_bytes()])
    }

    /// Returns the account of the tokens of the HTTP API.
    pub fn of_http_tokens() -> Self {
        Self::digest(b"http", &[])
    }

    fn digest(kind: &[u8], parts: &[&[u8]]) -> Self {
        let mut digest = Sha256::new_with_prefix(kind);
        // The first part has a fixed length, so that nothing is ambiguous.
        parts.iter().for_each(|part| digest.update(part));
        Self(digest.finalize().into())
    }
}

/// What part of a source a counter is about.
#[derive(Clone, Copy, Debug)]
enum Part {
    Address,
    Host,
    Network,
}

/// Returns the bytes of a part of an address.
fn part_of(source: IpAddr, part: Part) -> [u8; 17] {
    let mut bytes = [0; 17];
    let mut fill = |number: u8, from: &[u8]| {
        bytes.iter_mut().zip([number].iter().chain(from)).for_each(|(to, from)| *to = *from);
    };
    match source.to_canonical() {
        IpAddr::V4(address) => {
            let host_bits = if matches!(part, Part::Network) { 8 } else { 0 };
            fill(4, &Ipv4Addr::from_bits(address.to_bits() >> host_bits << host_bits).octets());
        }
        IpAddr::V6(address) => {
            let host_bits = match part {
                Part::Address => 0,
                Part::Host => 64,
                Part::Network => 80,
            };
            fill(6, &Ipv6Addr::from_bits(address.to_bits() >> host_bits << host_bits).octets());
        }
    }
    bytes
}

/// How often a host has failed lately. Unfinished tries count as failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Fresh,
    Few,
    Many,
}

impl Class {
    const fn of(failures: u32) -> Self {
        match failures {
            0 => Self::Fresh,
            1..=3 => Self::Few,
            _ => Self::Many,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Fresh => 0,
            Self::Few => 1,
            Self::Many => 2,
        }
    }

    const fn allowance(self) -> Allowance {
        match self {
            Self::Fresh => FRESH,
            Self::Few => FEW,
            Self::Many => MANY,
        }
    }

    /// Hosts that fail often have so little that a network of them needs no allowance of its own.
    const fn allowance_of_network(self) -> Option<Allowance> {
        match self {
            Self::Fresh => Some(FRESH_OF_NETWORK),
            Self::Few => Some(FEW_OF_NETWORK),
            Self::Many => None,
        }
    }
}

/// A bound: so many tries at a time, then one in each interval.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    burst: u32,
    interval: Duration,
}

/// How much of an allowance is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    /// When the allowance is whole again if nothing more is taken.
    until: Duration,
}

impl Used {
    /// Returns how long to wait for one more try.
    fn wait(self, now: Duration, allowance: Allowance) -> Duration {
        let after = self.until.max(now) + allowance.interval;
        after.saturating_sub(now + allowance.interval * allowance.burst)
    }

    /// Takes one try. Returns how much it has taken: nothing more if the allowance is used up twice, so that
    /// tries that are permitted late delay others for a bounded time only.
    fn take(&mut self, now: Duration, allowance: Allowance) -> Duration {
        let from = self.until.max(now);
        let bound = now + allowance.interval * allowance.burst * 2;
        self.until = (from + allowance.interval).min(bound.max(from));
        self.until - from
    }

    fn give_back(&mut self, taken: Duration) {
        self.until = self.until.saturating_sub(taken);
    }
}

impl Transient for Used {
    fn is_void(&self, now: Duration) -> bool {
        self.until <= now
    }
}

/// The tries that are counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tries {
    /// How many are unfinished.
    open: u32,
    /// How many failed in a row, for the delay.
    failures: u32,
    /// How many failed lately, for the class.
    lately: u32,
    /// When the last one was permitted or failed.
    last: Duration,
}

impl Tries {
    fn forget(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.last);
        if passed >= DELAY_FORGOTTEN_AFTER {
            self.failures = 0;
        }
        if passed >= CLASS_FORGOTTEN_AFTER {
            self.lately = 0;
        }
    }

    /// Returns how long a try waits that was requested `waited` ago.
    fn wait(&self, now: Duration, waited: Duration) -> Duration {
        let delay = self.delay();
        let since = now.saturating_sub(waited).max(self.last);
        //= iscsi-aead#section-3.3
        //# A target MUST limit how many it answers: it SHOULD have at most 4 unfinished logins for one
        //# user from one address, and delay step 4 by 500 ms after the fourth failure in a row of a user from
        //# one address, and by twice as much after each further one, up to 5 s.
        match (since + delay).saturating_sub(now) {
            due if !delay.is_zero() && !due.is_zero() => due,
            _ if self.open >= OPEN_MAX => POLL,
            _ => Duration::ZERO,
        }
    }

    fn delay(&self) -> Duration {
        let Some(doublings) = self.failures.checked_sub(FREE) else { return Duration::ZERO };
        (DELAY * (1 << doublings.min(8))).min(DELAY_MAX)
    }

    fn class(&self) -> Class {
        Class::of(self.lately.saturating_add(self.open))
    }

    fn begin(&mut self, now: Duration) {
        self.open = self.open.saturating_add(1);
        self.last = now;
    }

    fn end(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    fn fail(&mut self, now: Duration) {
        self.end();
        self.failures = self.failures.saturating_add(1);
        self.lately = self.lately.saturating_add(1);
        self.last = now;
    }
}

impl Transient for Tries {
    fn is_void(&self, now: Duration) -> bool {
        self.open == 0 && now.saturating_sub(self.last) >= CLASS_FORGOTTEN_AFTER
    }
}

/// An address that has proven a password.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    address: Key,
    tries: Tries,
    used: Used,
    /// When it proved the password last.
    proven: Duration,
}

/// The digest under which a counter is stored.
type Key = u128;

/// A try that was permitted, and how it is counted.
#[derive(Debug, PartialEq, Eq)]
pub struct Permit(Counted);

#[derive(Debug, PartialEq, Eq)]
enum Counted {
    Known { account: Key, address: Key, taken: Duration },
    Unknown { account: Key, address: Key, tries: Key, taken: Vec<(Key, Duration)> },
}

/// Decides who may try a password now.
#[derive(Clone)]
pub struct GuessLimit {
    /// The key of the digests, so that nobody can choose names and addresses that share a counter.
    salt: [u8; 32],
    known: BTreeMap<Key, Vec<Known>>,
    tries: Table<Tries>,
    used: Table<Used>,
    /// Whether anything changed that [`Self::store`] stores, since the last call of it.
    is_changed: bool,
}

impl fmt::Debug for GuessLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuessLimit").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl GuessLimit {
    /// Makes a limit that knows nothing. `salt` should be secret.
    pub const fn new(salt: [u8; 32]) -> Self {
        Self { salt, known: BTreeMap::new(), tries: Table::new(), used: Table::new(), is_changed: false }
    }

    /// Permits one try, which was requested `waited` ago, or returns how long to wait before the next call.
    ///
    /// # Errors
    /// How long to wait.
    pub fn begin(
        &mut self,
        now: Duration,
        waited: Duration,
        account: &Account,
        source: IpAddr,
    ) -> Result<Permit, Duration> {
        let wait = self.wait(now, waited, account, source);
        if wait.is_zero() { Ok(self.begin_late(now, account, source)) } else { Err(wait) }
    }

    /// Returns how long a try waits that was requested `waited` ago; zero if it is permitted now.
    pub fn wait(&mut self, now: Duration, waited: Duration, account: &Account, source: IpAddr) -> Duration {
        let (of_account, address) = (self.key(b'a', account, &[]), self.address(account, source));
        if let Some(known) = self.known_mut(of_account, address) {
            known.tries.forget(now);
            return match known.tries.wait(now, waited) {
                Duration::ZERO => known.used.wait(now, MANY).min(POLL_ALLOWANCE),
                wait => wait,
            };
        }
        let host = self.host(account, source);
        let (class, wait) = self.tries.get(host).map_or((Class::Fresh, Duration::ZERO), |tries| {
            let mut tries = *tries;
            tries.forget(now);
            (tries.class(), tries.wait(now, waited))
        });
        if !wait.is_zero() {
            return wait;
        }
        let allowances = self.allowances(account, source, class);
        let waits = allowances.into_iter().map(|(key, allowance)| {
            self.used.get(key).map_or(Duration::ZERO, |used| used.wait(now, allowance))
        });
        waits.max().unwrap_or_default().min(POLL_ALLOWANCE)
    }

    /// Permits a try that has waited once, whether it should wait longer or not: for a protocol whose waiting
    /// clients hold one of few connections, and so are bounded by their number.
    pub fn begin_late(&mut self, now: Duration, account: &Account, source: IpAddr) -> Permit {
        let (of_account, address) = (self.key(b'a', account, &[]), self.address(account, source));
        if let Some(known) = self.known_mut(of_account, address) {
            known.tries.forget(now);
            known.tries.begin(now);
            let taken = known.used.take(now, MANY);
            return Permit(Counted::Known { account: of_account, address, taken });
        }
        let key = self.host(account, source);
        let (tries_key, tries) = self.tries.entry(now, key);
        tries.forget(now);
        let class = tries.class();
        tries.begin(now);
        let mut taken = Vec::new();
        for (key, allowance) in self.allowances(account, source, class) {
            let (key, used) = self.used.entry(now, key);
            taken.push((key, used.take(now, allowance)));
        }
        Permit(Counted::Unknown { account: of_account, address, tries: tries_key, taken })
    }

    /// Records that a try ended before a password could be tried.
    pub fn put_back(&mut self, permit: Permit) {
        self.refund(&permit);
    }

    /// Records that the password of a try was right. Its address is known from now on.
    pub fn right(&mut self, now: Duration, permit: Permit) {
        self.refund(&permit);
        match permit.0 {
            Counted::Known { account, address, .. } => {
                let mut is_news = false;
                if let Some(known) = self.known_mut(account, address) {
                    is_news =
                        known.tries.failures > 0 || now.saturating_sub(known.proven) >= PROVEN_STORED_AFTER;
                    //= iscsi-aead#section-3.3
                    //# A success ends the delay.
                    known.tries.failures = 0;
                    if is_news {
                        known.proven = now;
                    }
                }
                self.is_changed |= is_news;
            }
            Counted::Unknown { account, address, tries, .. } => {
                if let Some(tries) = self.tries.get_mut(tries) {
                    (tries.failures, tries.lately) = (0, 0);
                }
                self.add_known(now, account, address);
                self.is_changed = true;
            }
        }
    }

    /// Records that a try did not succeed, for whatever reason.
    pub fn wrong(&mut self, now: Duration, permit: &Permit) {
        self.is_changed = true;
        match &permit.0 {
            Counted::Known { account, address, .. } => {
                if let Some(known) = self.known_mut(*account, *address) {
                    known.tries.fail(now);
                }
            }
            Counted::Unknown { tries, .. } => {
                if let Some(tries) = self.tries.get_mut(*tries) {
                    tries.fail(now);
                }
            }
        }
    }

    /// Returns whether the password was proven from this address.
    pub fn is_known(&self, account: &Account, source: IpAddr) -> bool {
        let (of_account, address) = (self.key(b'a', account, &[]), self.address(account, source));
        self.known.get(&of_account).is_some_and(|list| list.iter().any(|known| known.address == address))
    }

    fn refund(&mut self, permit: &Permit) {
        match &permit.0 {
            Counted::Known { account, address, taken } => {
                if let Some(known) = self.known_mut(*account, *address) {
                    known.tries.end();
                    known.used.give_back(*taken);
                }
            }
            Counted::Unknown { tries, taken, .. } => {
                if let Some(tries) = self.tries.get_mut(*tries) {
                    tries.end();
                }
                for (key, taken) in taken {
                    if let Some(used) = self.used.get_mut(*key) {
                        used.give_back(*taken);
                    }
                }
            }
        }
    }

    fn add_known(&mut self, now: Duration, account: Key, address: Key) {
        let list = self.known.get(&account);
        if list.is_some_and(|list| list.iter().any(|known| known.address == address)) {
            return;
        }
        if list.is_some_and(|list| list.len() >= KNOWN_MAX) {
            self.forget_oldest_of(account);
        } else if self.known_count() >= KNOWN_TOTAL_MAX {
            let most = self.known.iter().max_by_key(|(_, list)| list.len()).map(|(account, _)| *account);
            if let Some(account) = most {
                self.forget_oldest_of(account);
            }
        }
        let tries = Tries { last: now, ..Tries::default() };
        let known = Known { address, tries, used: Used::default(), proven: now };
        self.known.entry(account).or_default().push(known);
    }

    fn forget_oldest_of(&mut self, account: Key) {
        let Some(list) = self.known.get_mut(&account) else { return };
        let oldest = list.iter().enumerate().min_by_key(|(_, known)| known.proven).map(|(at, _)| at);
        oldest.map(|at| list.remove(at));
        if list.is_empty() {
            self.known.remove(&account);
        }
    }

    fn known_count(&self) -> usize {
        self.known.values().map(Vec::len).sum()
    }

    fn known_mut(&mut self, account: Key, address: Key) -> Option<&mut Known> {
        self.known.get_mut(&account)?.iter_mut().find(|known| known.address == address)
    }

    /// Returns the allowances that a try of a host of this class uses.
    //= iscsi-aead#section-3.3
    //# It MUST also limit the failures of a user from all addresses together, and SHOULD do
    //# so without delaying an address that has not failed because others have.
    fn allowances(&self, account: &Account, source: IpAddr, class: Class) -> Vec<(Key, Allowance)> {
        let mut allowances = Vec::with_capacity(3);
        allowances.push((self.key(b'c', account, &[class.code()]), class.allowance()));
        if let Some(allowance) = class.allowance_of_network() {
            let network = part_of(source, Part::Network);
            let key = self.key(b'n', account, &[&[class.code()][..], &network].concat());
            allowances.push((key, allowance));
        }
        let host = part_of(source, Part::Host);
        allowances.push((self.key(b'h', &Account([0; 32]), &host), HOST));
        allowances
    }

    fn address(&self, account: &Account, source: IpAddr) -> Key {
        self.key(b'k', account, &part_of(source, Part::Address))
    }

    fn host(&self, account: &Account, source: IpAddr) -> Key {
        self.key(b't', account, &part_of(source, Part::Host))
    }

    fn key(&self, kind: u8, account: &Account, part: &[u8]) -> Key {
        let mut digest = Sha256::new_with_prefix(self.salt);
        digest.update([kind]);
        digest.update(account.0);
        digest.update(part);
        let digest: [u8; 32] = digest.finalize().into();
        digest.first_chunk().map_or(0, |first: &[u8; 16]| u128::from_be_bytes(*first))
    }
}

/// A limit that several engines share, on several threads.
pub trait SharedGuessLimit: fmt::Debug + Send + Sync {
    /// Calls `work` with the limit and the present time. It waits for no disk and no peer.
    fn with(&self, work: &mut dyn FnMut(&mut GuessLimit, Duration));
}

/// The limit that an engine uses.
#[derive(Debug)]
pub enum GuessLimiter {
    /// The engine's own, whose `now` is that of the engine.
    Own(GuessLimit),
    /// One that others use too.
    Shared(Arc<dyn SharedGuessLimit>),
}

impl Default for GuessLimiter {
    fn default() -> Self {
        Self::Own(GuessLimit::new([0; 32]))
    }
}

impl GuessLimiter {
    /// Calls `work` with the limit and its time; `now` is the engine's.
    pub fn with<T>(&mut self, now: Duration, work: impl FnOnce(&mut GuessLimit, Duration) -> T) -> Option<T> {
        match self {
            Self::Own(limit) => Some(work(limit, now)),
            Self::Shared(shared) => {
                let (mut work, mut result) = (Some(work), None);
                shared.with(&mut |limit, now| result = work.take().map(|work| work(limit, now)));
                result
            }
        }
    }
}
