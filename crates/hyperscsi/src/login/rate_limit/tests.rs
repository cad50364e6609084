use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn group(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

fn source(number: u16) -> Source {
    let [a, b] = number.to_be_bytes();
    (EtherPort(0), Mac([2, 0, 0, 0, a, b]))
}

fn at(span: Duration) -> Instant {
    Instant::ORIGIN.after(span)
}

/// Makes wrong guesses from `sources` addresses as fast as the rate limit admits them. Returns how many there
/// were, and when the last one was.
fn attack(
    rate_limit: &mut PasswordRateLimit,
    from: Instant,
    span: Duration,
    whose: &GroupName,
    sources: u16,
) -> (u32, Instant) {
    let (mut now, mut last, mut count) = (from, from, 0);
    while now.since(from) < span {
        let mut soonest = span;
        for number in 0..sources {
            match rate_limit.begin(now, whose, source(number)) {
                Ok(permit) => {
                    (count, last) = (count + 1, now);
                    rate_limit.wrong(now, whose, permit);
                    soonest = Duration::ZERO;
                }
                Err(wait) => soonest = soonest.min(wait),
            }
        }
        now = now.after(soonest.max(Duration::from_millis(1)));
    }
    (count, last)
}

//= hyperscsi#section-6.5
//= type=test
//# So all guesses together are fewer than 20000 a day
#[test]
fn from_however_many_addresses_guesses_are_few() {
    for sources in [1, 4, 5, 6, 7, 8, 10, 30, 64, 200] {
        let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
        let (count, end) = attack(&mut rate_limit, Instant::ORIGIN, DAY / 24, &group("a"), sources);
        let (later, _) = attack(&mut rate_limit, end, DAY / 24, &group("a"), sources);
        assert!(count + later <= 20_000 / 12, "{sources} addresses: {count}, then {later}");
    }
}

#[test]
fn who_guesses_from_few_addresses_keeps_nobody_else_out() {
    let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
    let (_, now) = attack(&mut rate_limit, Instant::ORIGIN, Duration::from_secs(600), &group("a"), 4);
    for newcomer in 100..116 {
        let permit = rate_limit.begin(now, &group("a"), source(newcomer)).unwrap();
        rate_limit.right(now, &group("a"), permit);
    }
    assert!(rate_limit.begin(now, &group("a"), source(0)).is_err(), "himself he does");
}

#[test]
fn members_come_in_at_once_whoever_else_fails() {
    let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
    let member = source(1000);
    let permit = rate_limit.begin(Instant::ORIGIN, &group("a"), member).unwrap();
    rate_limit.right(Instant::ORIGIN, &group("a"), permit);
    assert!(rate_limit.is_member(&group("a"), member) && !rate_limit.is_member(&group("b"), member));
    let (_, now) = attack(&mut rate_limit, Instant::ORIGIN, Duration::from_secs(3600), &group("a"), 500);
    assert!(rate_limit.begin(now, &group("a"), source(1001)).is_err(), "a newcomer has to wait");
    for _ in 0..1000 {
        let permit = rate_limit.begin(now, &group("a"), member).unwrap();
        rate_limit.right(now, &group("a"), permit);
    }
}

#[test]
fn who_fails_in_the_name_of_a_member_guesses_twice_as_often_and_no_more() {
    let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
    let permit = rate_limit.begin(Instant::ORIGIN, &group("a"), source(0)).unwrap();
    rate_limit.right(Instant::ORIGIN, &group("a"), permit);
    let (count, now) = attack(&mut rate_limit, Instant::ORIGIN, Duration::from_secs(3600), &group("a"), 1);
    // As a member, and as a newcomer in addition.
    assert!(count < 3 * 3600 / 32, "{count}");
    assert!(rate_limit.begin(now, &group("a"), source(1)).is_ok(), "a newcomer does not notice");
}

#[test]
fn those_who_know_the_password_of_another_group_notice_nothing() {
    let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
    let (_, now) = attack(&mut rate_limit, Instant::ORIGIN, Duration::from_secs(60), &group("a"), 64);
    for _ in 0..1000 {
        let permit = rate_limit.begin(now, &group("b"), source(1)).unwrap();
        rate_limit.right(now, &group("b"), permit);
    }
    assert!(rate_limit.begin(now, &group("a"), source(1)).is_err());
}

#[test]
fn failures_are_forgotten() {
    let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
    attack(&mut rate_limit, Instant::ORIGIN, Duration::from_secs(60), &group("a"), 64);
    let later = at(Duration::from_secs(60 + 11 * 60));
    for newcomer in 0..10 {
        assert!(rate_limit.begin(later, &group("a"), source(newcomer)).is_ok());
    }
}

#[test]
fn what_is_remembered_is_bounded_and_members_are_not_crowded_out_by_others() {
    let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
    let permit = rate_limit.begin(Instant::ORIGIN, &group("a"), source(0)).unwrap();
    rate_limit.right(Instant::ORIGIN, &group("a"), permit);
    for number in 1..2000 {
        // The tries are slow enough to be admitted each time.
        let now = at(Duration::from_secs(40 * u64::from(number)));
        let permit = rate_limit.begin(now, &group("a"), source(number)).unwrap();
        rate_limit.wrong(now, &group("a"), permit);
    }
    let known = &rate_limit.groups[&group("a")];
    assert!(known.others.len() <= PasswordRateLimit::OTHERS_MAX && known.members.len() == 1);
    for number in 3000..3100 {
        let now = at(Duration::from_secs(40 * u64::from(number)));
        let permit = rate_limit.begin(now, &group("a"), source(number)).unwrap();
        rate_limit.right(now, &group("a"), permit);
    }
    assert_eq!(rate_limit.groups[&group("a")].members.len(), PasswordRateLimit::MEMBERS_MAX);
    assert!(!rate_limit.is_member(&group("a"), source(0)), "the oldest went");
}

#[test]
fn all_groups_together_are_bounded() {
    let mut rate_limit = PasswordRateLimit::new(Instant::ORIGIN);
    let names = (0..1000).map(|at| group(&alloc::format!("{at}")));
    let count = names.filter(|name| rate_limit.begin(Instant::ORIGIN, name, source(1)).is_ok()).count();
    assert_eq!(count, 64);
}
