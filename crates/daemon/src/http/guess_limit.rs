//! Bounds how fast the clients of one address can guess tokens.
//!
//! Each wrong token of an address is counted, and one is forgiven each second. The tokens of an address with
//! too many are looked at only after a delay, right ones included. If a right one were answered at once, the
//! silence would tell a client that another one is wrong, however long its answer waits. Each guess then
//! holds one of the few connections during the delay, and the owner of a right token is served after it.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How many wrong tokens an address may have sent before its tokens wait. A program with an old token, and a
/// person who mistypes, send fewer.
const WRONG_FREE: u32 = 20;

/// The most wrong tokens that are counted, so that an address is forgiven within a minute.
const WRONG_MAX: u32 = 60;

/// How long a token of such an address waits before it is looked at.
const DELAY: Duration = Duration::from_secs(4);

/// After what time one wrong token is forgiven.
const FORGIVEN_AFTER: Duration = Duration::from_secs(1);

/// How many addresses are remembered. For another one, the address with the fewest wrong tokens is forgotten.
const ADDRESSES_MAX: usize = 1024;

/// The wrong tokens of each address.
#[derive(Debug, Default)]
pub(super) struct GuessLimit {
    guessers: Vec<Guesser>,
}

#[derive(Debug)]
struct Guesser {
    network: IpAddr,
    wrong: u32,
    /// The time up to which wrong tokens were forgiven.
    since: Instant,
}

impl Guesser {
    fn forgive(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_secs() / FORGIVEN_AFTER.as_secs();
        self.since += FORGIVEN_AFTER * u32::try_from(passed).unwrap_or(u32::MAX);
        self.wrong = self.wrong.saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX));
    }
}

impl GuessLimit {
    /// Returns how long a token of a client of this address waits before it is looked at; `None` if it does
    /// not.
    pub(super) fn delay(&mut self, from: IpAddr, now: Instant) -> Option<Duration> {
        let network = network(from);
        let guesser = self.guessers.iter_mut().find(|one| one.network == network)?;
        guesser.forgive(now);
        (guesser.wrong > WRONG_FREE).then_some(DELAY)
    }

    /// Counts a wrong token.
    pub(super) fn count(&mut self, from: IpAddr, now: Instant) {
        let network = network(from);
        if let Some(guesser) = self.guessers.iter_mut().find(|one| one.network == network) {
            guesser.forgive(now);
            guesser.wrong = WRONG_MAX.min(guesser.wrong + 1);
            return;
        }
        if self.guessers.len() >= ADDRESSES_MAX {
            self.guessers.iter_mut().for_each(|one| one.forgive(now));
            let fewest = self.guessers.iter().enumerate().min_by_key(|(_, one)| one.wrong);
            if let Some((at, _)) = fewest {
                self.guessers.swap_remove(at);
            }
        }
        self.guessers.push(Guesser { network, wrong: 1, since: now });
    }
}

/// Returns the address that counts for a client. An IPv6 client has all addresses of its /64.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_waits_and_others_do_not() {
        let (mut limit, start) = (GuessLimit::default(), Instant::now());
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let guesser = ip("2001:db8::1");
        for _ in 0..=WRONG_FREE {
            assert_eq!(limit.delay(guesser, start), None);
            limit.count(guesser, start);
        }
        assert_eq!(limit.delay(guesser, start), Some(DELAY));
        assert_eq!(limit.delay(ip("2001:db8::2"), start), Some(DELAY), "the same /64");
        assert_eq!(
            (limit.delay(ip("2001:db8:0:1::1"), start), limit.delay(ip("192.0.2.1"), start)),
            (None, None)
        );
        let later = start + FORGIVEN_AFTER;
        assert_eq!(limit.delay(guesser, later), None, "one is forgiven each second");
        limit.count(guesser, later);
        assert_eq!(limit.delay(guesser, later), Some(DELAY));
        (0..1000).for_each(|_| limit.count(guesser, later));
        assert_eq!(limit.delay(guesser, later + FORGIVEN_AFTER * (WRONG_MAX - WRONG_FREE)), None);
        assert_eq!(limit.delay(guesser, later + Duration::from_secs(86400 * 365 * 200)), None);
    }

    #[test]
    fn a_client_of_ipv4_is_the_same_whether_its_address_is_mapped_or_not() {
        assert_eq!(network("::ffff:192.0.2.1".parse().unwrap()), "192.0.2.1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn the_memory_is_bounded_and_the_worst_address_is_remembered() {
        let (mut limit, start) = (GuessLimit::default(), Instant::now());
        let worst = IpAddr::from([192, 0, 2, 1]);
        (0..=WRONG_FREE).for_each(|_| limit.count(worst, start));
        for other in 0..4 * u32::try_from(ADDRESSES_MAX).unwrap() {
            limit.count(IpAddr::V4((0x0a00_0000 + other).into()), start);
        }
        assert_eq!(limit.guessers.len(), ADDRESSES_MAX);
        assert_eq!(limit.delay(worst, start), Some(DELAY));
    }
}
