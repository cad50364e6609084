use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use super::table::Table;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn limit() -> GuessLimit {
    GuessLimit::new([7; 32])
}

/// The account of a user of one password file.
fn user(name: &str) -> Account {
    Account::digest(b"user", &[&[1; 32], name.as_bytes()])
}

fn alice() -> Account {
    user("alice")
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an address of a network of 24 bits.
fn near(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

/// Proves the password once.
fn prove(limit: &mut GuessLimit, now: Duration, account: &Account, source: IpAddr) {
    let permit = limit.begin(now, Duration::ZERO, account, source).unwrap();
    limit.right(now, permit);
}

/// Fails `count` times in a row, as fast as the limit permits. Returns when the last one failed.
fn fail(
    limit: &mut GuessLimit,
    mut now: Duration,
    account: &Account,
    source: IpAddr,
    count: usize,
) -> Duration {
    for _ in 0..count {
        let since = now;
        let permit = loop {
            match limit.begin(now, now - since, account, source) {
                Ok(permit) => break permit,
                Err(wait) => now += wait,
            }
        };
        limit.wrong(now, &permit);
    }
    now
}

fn wait(limit: &mut GuessLimit, now: Duration, source: IpAddr) -> Duration {
    limit.wait(now, Duration::ZERO, &alice(), source)
}

/// A generator of numbers that seem random.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn the_delay_begins_after_four_failures_and_doubles_up_to_five_seconds() {
    let (mut limit, mut now) = (limit(), Duration::ZERO);
    let mut delays = Vec::new();
    for _ in 0..12 {
        let end = fail(&mut limit, now, &alice(), near(1), 1);
        delays.push((end - now).as_millis());
        now = end;
    }
    assert_eq!(delays, [0, 0, 0, 0, 500, 1000, 2000, 4000, 5000, 5000, 5000, 5000]);
}

#[test]
fn a_login_that_comes_late_is_delayed_too_and_a_long_silence_ends_the_delay() {
    let mut limit = limit();
    let now = fail(&mut limit, Duration::ZERO, &alice(), near(1), 5);
    let late = now + Duration::from_secs(30);
    assert_eq!(wait(&mut limit, late, near(1)), Duration::from_secs(1));
    assert_eq!(wait(&mut limit, now + Duration::from_secs(61), near(1)), Duration::ZERO);
}

#[test]
fn a_success_ends_the_delay_of_its_address() {
    let mut limit = limit();
    let now = fail(&mut limit, Duration::ZERO, &alice(), near(1), 8);
    let later = now + Duration::from_secs(5);
    let permit = limit.begin(later, Duration::from_secs(5), &alice(), near(1)).unwrap();
    limit.right(later, permit);
    assert_eq!(wait(&mut limit, later, near(1)), Duration::ZERO);
}

#[test]
fn at_most_four_logins_of_a_user_from_one_address_are_unfinished() {
    let mut limit = limit();
    let mut begin = |account: &Account, source| limit.begin(Duration::ZERO, Duration::ZERO, account, source);
    let open: Vec<Permit> = (0..4).map(|_| begin(&alice(), near(1)).unwrap()).collect();
    assert_eq!(begin(&alice(), near(1)).unwrap_err(), POLL);
    assert!(begin(&user("bob"), near(1)).is_ok(), "another user");
    assert!(begin(&alice(), near(2)).is_ok(), "another address");
    open.into_iter().for_each(|permit| limit.right(Duration::ZERO, permit));
    assert!(limit.begin(Duration::ZERO, Duration::ZERO, &alice(), near(1)).is_ok());
}

#[test]
fn unfinished_logins_of_one_address_keep_nobody_else_out() {
    let (mut limit, mut now) = (limit(), Duration::ZERO);
    // One address keeps 96 connections that begin logins and let them time out, for ten minutes.
    let mut open: Vec<(Duration, Permit)> = Vec::new();
    while now < Duration::from_secs(600) {
        for (_, permit) in open.extract_if(.., |(since, _)| now - *since >= Duration::from_secs(30)) {
            limit.wrong(now, &permit);
        }
        for _ in open.len()..96 {
            open.extend(limit.begin(now, Duration::ZERO, &alice(), near(1)).ok().map(|permit| (now, permit)));
        }
        assert_eq!(wait(&mut limit, now, near(2)), Duration::ZERO, "{now:?}");
        now += Duration::from_millis(150);
    }
    prove(&mut limit, now, &alice(), near(2));
}

#[test]
fn a_hundred_addresses_of_one_network_keep_nobody_else_out_of_it() {
    let (mut limit, mut now) = (limit(), Duration::ZERO);
    while now < 2 * HOUR {
        for last in 1..=100 {
            if let Ok(permit) = limit.begin(now, Duration::ZERO, &alice(), near(last)) {
                limit.wrong(now, &permit);
            }
        }
        assert_eq!(wait(&mut limit, now, near(200)), Duration::ZERO, "{now:?}");
        now += Duration::from_secs(1);
    }
    // A network of IPv6, with as many addresses as it likes, leaves something to other networks.
    for number in 0..1000 {
        if let Ok(permit) =
            limit.begin(now, Duration::ZERO, &alice(), ip(&format!("2001:db8:0:{number:x}::1")))
        {
            limit.wrong(now, &permit);
        }
    }
    assert_eq!(wait(&mut limit, now, ip("2001:db8:1::1")), Duration::ZERO);
    assert_ne!(wait(&mut limit, now, ip("2001:db8:0:ffff::1")), Duration::ZERO);
}

#[test]
fn an_ipv6_network_of_64_bits_is_one_host_and_a_mapped_address_is_that_of_ipv4() {
    let mut limit = limit();
    let now = fail(&mut limit, Duration::ZERO, &alice(), ip("2001:db8::1"), 5);
    assert_ne!(wait(&mut limit, now, ip("2001:db8::2")), Duration::ZERO);
    assert_eq!(wait(&mut limit, now, ip("2001:db8:0:1::1")), Duration::ZERO);
    let now = fail(&mut limit, now, &alice(), ip("::ffff:192.0.2.1"), 5);
    assert_ne!(wait(&mut limit, now, ip("192.0.2.1")), Duration::ZERO);
    // The address that is known is the whole one.
    prove(&mut limit, now, &alice(), ip("2001:db8:0:2::1"));
    let now = fail(&mut limit, now, &alice(), ip("2001:db8:0:2::2"), 5);
    assert_eq!(wait(&mut limit, now, ip("2001:db8:0:2::1")), Duration::ZERO);
}

#[test]
fn failures_from_elsewhere_do_not_delay_a_user_at_a_known_address() {
    let mut limit = limit();
    prove(&mut limit, Duration::ZERO, &alice(), near(1));
    let now = fail(&mut limit, Duration::ZERO, &alice(), near(2), 20);
    assert_ne!(wait(&mut limit, now, near(2)), Duration::ZERO);
    assert_eq!(wait(&mut limit, now, near(1)), Duration::ZERO);
    let now = fail(&mut limit, now, &alice(), near(1), 8);
    assert_ne!(wait(&mut limit, now, near(1)), Duration::ZERO, "it is limited by its own failures");
}

//= iscsi-aead#section-3.3
//= type=test
//# It MUST also limit the failures of a user from all addresses together, and SHOULD do
//# so without delaying an address that has not failed because others have.
/// Attackers do whatever they like: guess the password of alice, and of names that they invent, hold logins
/// open, and give them up.
#[test]
fn attackers_with_any_names_and_addresses_delay_no_known_address_and_guess_slowly() {
    for seed in 0..9 {
        let mut random = Lcg(seed);
        let (mut limit, mut now) = (limit(), Duration::ZERO);
        let home = if seed % 4 < 2 { ip("192.0.2.1") } else { ip("2001:db8::1") };
        prove(&mut limit, now, &alice(), home);
        let hosts = 1 + random.below(800);
        let mut open: Vec<(bool, Permit)> = Vec::new();
        let (mut guesses, hours) = (0, 2);
        while now < hours * HOUR {
            for _ in 0..1 + random.below(16) {
                let host = random.below(hosts);
                let source = match seed % 2 {
                    0 => IpAddr::from((0x0a00_0000 + u32::try_from(host).unwrap() * 7).to_be_bytes()),
                    _ => ip(&format!("2001:db8:{:x}:{:x}::{}", host % 5, host + 8, random.below(99))),
                };
                let at_alice = random.below(4) > 0;
                let name = if at_alice { String::from("alice") } else { format!("u{}", random.below(9999)) };
                let waited = Duration::from_secs(random.below(30));
                if let Ok(permit) = limit.begin(now, waited, &user(&name), source) {
                    guesses += u32::from(at_alice);
                    open.push((at_alice, permit));
                }
            }
            while !open.is_empty() && (open.len() > 200 || random.below(2) == 0) {
                let at = usize::try_from(random.below(u64::try_from(open.len()).unwrap())).unwrap();
                limit.wrong(now, &open.swap_remove(at).1);
            }
            assert_eq!(wait(&mut limit, now, home), Duration::ZERO, "seed {seed}, {now:?}");
            if random.below(8) == 0 {
                prove(&mut limit, now, &alice(), home);
            }
            if random.below(5000) == 0 {
                limit = GuessLimit::restore(&limit.store(now), now).unwrap();
                open.clear();
            }
            now += Duration::from_millis(random.below(4000));
        }
        // In a restart an unfinished try counts as a failure, so that nothing is given back.
        let at_first = FRESH.burst + FEW.burst + MANY.burst;
        assert!(guesses <= at_first + 14_000 / 24 * hours + 3, "seed {seed}: {guesses} guesses");
    }
}

#[test]
fn a_host_tries_the_passwords_of_many_users_no_faster() {
    let mut limit = limit();
    prove(&mut limit, Duration::ZERO, &alice(), near(1));
    let begin = |limit: &mut GuessLimit, number: u32| {
        limit.begin(Duration::ZERO, Duration::ZERO, &user(&format!("user {number}")), near(1)).is_ok()
    };
    assert_eq!((0..400).filter(|number| begin(&mut limit, *number)).count(), 64);
    assert_eq!(wait(&mut limit, Duration::ZERO, near(1)), Duration::ZERO, "a known address of alice");
    assert!(limit.begin(Duration::ZERO, Duration::ZERO, &user("user 0"), near(2)).is_ok());
}

#[test]
fn right_passwords_of_any_number_of_users_are_never_delayed() {
    let mut limit = limit();
    for number in 0..10_000 {
        prove(&mut limit, Duration::ZERO, &user(&format!("user {number}")), near(1));
    }
    assert!(limit.is_known(&user("user 0"), near(1)) && limit.is_known(&user("user 9999"), near(1)));
}

#[test]
fn invented_names_fill_a_bounded_memory_and_make_nobody_forgotten() {
    let (mut limit, mut now) = (limit(), Duration::ZERO);
    prove(&mut limit, now, &alice(), near(1));
    now = fail(&mut limit, now, &alice(), near(2), 5);
    let failed = now;
    for number in 0..8192 + u32::try_from(Table::<Tries>::MAX).unwrap() {
        // 64 names for each host.
        let host = IpAddr::from((0x0a00_0000 + number / 64).to_be_bytes());
        // Beyond the bound, hosts share counters, and some of these are delayed.
        if let Ok(permit) = limit.begin(now, Duration::ZERO, &user(&format!("user {number}")), host) {
            limit.wrong(now, &permit);
        }
        now += Duration::from_micros(1);
    }
    let most = Table::<Tries>::MAX + usize::try_from(Table::<Tries>::SHARED).unwrap();
    assert!(limit.tries.len() <= most && limit.used.len() <= most);
    assert!(now - failed < Duration::from_secs(1));
    assert_ne!(wait(&mut limit, now, near(2)), Duration::ZERO, "its delay is not over");
    assert_eq!(wait(&mut limit, now, near(1)), Duration::ZERO);
    // When the counters are void they make room.
    let later = now + 24 * HOUR;
    prove(&mut limit, later, &user("new"), near(9));
    assert!(limit.tries.len() < most);
    // Known addresses of an account are bounded.
    (0..=u8::MAX).for_each(|last| prove(&mut limit, later, &alice(), ip(&format!("192.0.2.{last}"))));
    assert_eq!(limit.known.values().map(Vec::len).max(), Some(KNOWN_MAX));
}

#[test]
fn a_restart_forgets_neither_failures_nor_known_addresses() {
    let mut limit = limit();
    prove(&mut limit, Duration::ZERO, &alice(), near(1));
    let now = fail(&mut limit, Duration::ZERO, &alice(), near(2), 6);
    let _unfinished = limit.begin(now, Duration::ZERO, &alice(), near(3)).unwrap();
    assert!(limit.is_changed());
    let text = limit.store(now);
    assert!(!limit.is_changed() && !text.contains("alice") && text.len() < GuessLimit::STORED_LEN_MAX);
    let start = Duration::from_secs(86_400);
    let mut again = GuessLimit::restore(&text, start).unwrap();
    for last in 1..5 {
        let source = near(last);
        assert_eq!(wait(&mut again, start, source), wait(&mut limit, now, source), "{last}");
    }
    let counted = |limit: &mut GuessLimit, now| {
        let host = limit.host(&alice(), near(3));
        let (_, tries) = limit.tries.entry(now, host);
        tries.lately + tries.open
    };
    assert_eq!((counted(&mut again, start), counted(&mut limit, now)), (1, 1), "it counts as a failure");
    assert_eq!(again.store(start).lines().count(), text.lines().count());
}

#[test]
fn what_hosts_with_any_names_did_is_read_as_it_was_written() {
    const NAMES: [&str; 8] =
        ["", " ", "end", "known 1 2", "a\nend\n", "\u{2028}%20;", "tries", "\u{e9}\u{1f4be}"];
    let mut limit = limit();
    let mut now = HOUR;
    for (number, name) in (1..).zip(NAMES) {
        prove(&mut limit, now, &user(name), near(number));
        now = fail(&mut limit, now, &user(name), near(number + 100), usize::from(number));
    }
    let text = limit.store(now);
    let again = GuessLimit::restore(&text, now).unwrap().store(now);
    let lines = |text: &str| text.lines().map(String::from).collect::<alloc::collections::BTreeSet<_>>();
    assert_eq!(lines(&again), lines(&text));
    // A damaged text is refused, or read as another one: no byte ends the process.
    for at in 0..text.len() {
        let mut damaged = text.clone().into_bytes();
        damaged[at] ^= 1;
        let _ = GuessLimit::restore(&String::from_utf8(damaged).unwrap(), now);
    }
}

#[test]
fn a_text_that_is_damaged_is_refused_with_its_line() {
    let mut limit = limit();
    prove(&mut limit, Duration::ZERO, &alice(), near(1));
    let now = fail(&mut limit, Duration::ZERO, &alice(), near(2), 6);
    let text = limit.store(now);
    let restored = |text: &str| GuessLimit::restore(text, now).map(|_| ());
    assert_eq!(restored(&text), Ok(()));
    assert_eq!(restored(""), Err(BadStore::Head));
    assert_eq!(restored("targe guesses 2\n"), Err(BadStore::Head));
    assert_eq!(restored(text.strip_suffix("end\n").unwrap()), Err(BadStore::Cut));
    assert_eq!(restored(&text.replace("tries ", "tries -")), Err(BadStore::Line(3)));
    assert_eq!(restored(&text.replace("salt 07", "salt 0g")), Err(BadStore::Line(2)));
    for at in 0..text.len() {
        // No damage panics or delays for ever.
        let mut bytes = text.clone().into_bytes();
        bytes[at] = b'9';
        if let Ok(mut limit) = GuessLimit::restore(&String::from_utf8(bytes).unwrap(), now) {
            assert_eq!(wait(&mut limit, now + 48 * HOUR, near(1)), Duration::ZERO);
        }
    }
}

#[test]
fn tries_that_are_permitted_late_delay_other_accounts_of_their_host_for_a_bounded_time() {
    let (mut limit, now, tokens) = (limit(), Duration::ZERO, Account::of_http_tokens());
    let permits: Vec<_> = (0..2000).map(|_| limit.begin_late(now, &tokens, near(1))).collect();
    permits.iter().for_each(|permit| limit.wrong(now, permit));
    assert_ne!(wait(&mut limit, now, near(1)), Duration::ZERO, "the allowance of the host is used up");
    let span = HOST.interval * HOST.burst;
    assert_eq!(wait(&mut limit, now + span + HOST.interval, near(1)), Duration::ZERO);
    // Tries that were not wrong give back what they took, and no more.
    let later = now + span * 3;
    let permits: Vec<_> = (0..2000).map(|_| limit.begin_late(later, &tokens, near(1))).collect();
    permits.into_iter().for_each(|permit| limit.put_back(permit));
    let permits: Vec<_> = (0..HOST.burst).map(|_| limit.begin_late(later, &tokens, near(1))).collect();
    assert_ne!(wait(&mut limit, later, near(1)), Duration::ZERO, "no allowance is larger than at first");
    drop(permits);
}
