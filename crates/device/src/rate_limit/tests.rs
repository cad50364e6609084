use alloc::vec::Vec;

use base::rng::Rng;

use super::*;

/// A queue that always has a next command: its cost and reservation.
struct Head {
    cost: Cost,
    reservation: Reservation,
}

fn cost(rng: &mut Rng) -> Cost {
    Cost { operations: 1 + rng.below(3), bytes: rng.below(1 << 20) }
}

/// What started when.
type Started = Vec<(Instant, Cost)>;

/// Runs queues that never become empty against a limiter, which may be checked late, and whose first commands
/// may be aborted.
fn run(rng: &mut Rng, limit: RateLimit, queues: u64, late_max_ns: u64) -> Started {
    let mut now = Instant::ORIGIN;
    let mut limiter = Limiter::new(now, limit);
    let reserve = |limiter: &mut Limiter, now, rng: &mut Rng| {
        let cost = cost(rng);
        Head { cost, reservation: limiter.reserve(now, cost) }
    };
    let mut heads: Vec<Head> = (0..queues).map(|_| reserve(&mut limiter, now, rng)).collect();
    let mut started = Started::new();
    while started.len() < 300 {
        let next = heads.iter().map(|head| limiter.starts_at(now, head.reservation)).min().unwrap();
        now = next.after(Duration::from_nanos(rng.below(late_max_ns + 1)));
        for head in &mut heads {
            if rng.chance(1, 20) {
                limiter.refund(head.reservation);
                *head = reserve(&mut limiter, now, rng);
            } else if limiter.starts_at(now, head.reservation) <= now {
                limiter.start(head.reservation);
                started.push((now, head.cost));
                *head = reserve(&mut limiter, now, rng);
            }
        }
    }
    started
}

#[test]
fn no_window_holds_more_than_the_rate_and_the_burst_and_no_backlog_is_idle() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let burst = Duration::from_millis(10 + rng.below(500));
        let iops = u32::try_from(100 + rng.below(10_000)).unwrap();
        let limit = RateLimit { iops, bandwidth: (1 + rng.below(100)) << 20, burst };
        let queues = 1 + rng.below(4);
        // The burst is the least lateness that costs no rate.
        let started = run(&mut rng, limit, queues, rng_late(burst));
        let within = |rate: u64, amount: fn(&Cost) -> u64, most: u64| {
            let sums: Vec<u64> = started.iter().map(|(_, cost)| amount(cost)).collect();
            for first in 0..started.len() {
                let mut sum = 0;
                for last in first..started.len() {
                    sum += sums[last];
                    let seconds = started[last].0.since(started[first].0).saturating_add(burst).as_secs_f64();
                    #[expect(clippy::cast_precision_loss, reason = "the sums are far below 2^53")]
                    let (sum, rate, heads) = (sum as f64, rate as f64, (most * (queues + 1)) as f64);
                    assert!(sum <= rate * seconds + heads + 1.0, "seed {seed}: {first}..={last}");
                }
            }
            sums.iter().sum::<u64>()
        };
        let operations = within(iops.into(), |cost| cost.operations, 3);
        let bytes = within(limit.bandwidth, |cost| cost.bytes, 1 << 20);
        // One of the two limits is used up: what is missing is at most what waits, and what is late.
        let end = started.last().unwrap().0.since(Instant::ORIGIN).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "the sums are far below 2^53")]
        let shares =
            [operations as f64 / (f64::from(iops) * end), bytes as f64 / (limit.bandwidth as f64 * end)];
        assert!(shares.iter().any(|share| *share > 0.6), "seed {seed}: {shares:?} of the rates in {end} s");
    }
}

fn rng_late(burst: Duration) -> u64 {
    u64::try_from(burst.as_nanos()).unwrap() / 20
}

#[test]
fn one_queue_that_is_served_in_time_gets_exactly_the_rate() {
    let limit = RateLimit { iops: 1000, bandwidth: 0, burst: Duration::from_millis(10) };
    let mut now = Instant::ORIGIN;
    let mut limiter = Limiter::new(now, limit);
    let one = Cost { operations: 1, bytes: 0 };
    for _ in 0..1010 {
        let reservation = limiter.reserve(now, one);
        now = limiter.starts_at(now, reservation);
        limiter.start(reservation);
    }
    assert_eq!(now, Instant::ORIGIN.after(Duration::from_secs(1)));
}

#[test]
fn a_debt_stays_over_a_change_and_a_saved_rate_never_exceeds_the_new_burst() {
    let second = Duration::from_secs(1);
    let mut limiter = Limiter::new(Instant::ORIGIN, RateLimit { iops: 10, bandwidth: 0, burst: second });
    let debt = limiter.reserve(Instant::ORIGIN, Cost { operations: 110, bytes: 0 });
    assert_eq!(limiter.starts_at(Instant::ORIGIN, debt), Instant::ORIGIN.after(second * 10));
    let later = Instant::ORIGIN.after(second * 5);
    limiter.change(later, RateLimit { iops: 50, bandwidth: 0, burst: second / 10 });
    assert_eq!(limiter.starts_at(later, debt), later.after(second));
    let idle = later.after(second * 100);
    let more = limiter.reserve(idle, Cost { operations: 55, bytes: 0 });
    assert_eq!(limiter.starts_at(idle, more), idle.after(second));
}

#[test]
fn a_refund_moves_those_behind_it_forward_and_none_before_it() {
    let limit = RateLimit { iops: 1, bandwidth: 0, burst: Duration::from_millis(10) };
    let now = Instant::ORIGIN;
    let mut limiter = Limiter::new(now, limit);
    let cost = Cost { operations: 5, bytes: 0 };
    let [first, second, third] = [(); 3].map(|()| limiter.reserve(now, cost));
    let mut starts = |refunded: Option<Reservation>| {
        if let Some(refunded) = refunded {
            limiter.refund(refunded);
        }
        [first, second, third].map(|at| limiter.starts_at(now, at).since(now).as_millis())
    };
    assert_eq!(starts(None), [4990, 9990, 14990]);
    assert_eq!(starts(Some(second)), [4990, 0, 9990]);
    assert_eq!(starts(Some(third)), [4990, 0, 0]);
    // A reservation is given up once.
    assert_eq!(starts(Some(third)), [4990, 0, 0]);
}
