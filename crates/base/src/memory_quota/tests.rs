use alloc::vec::Vec;

use super::*;

const MIB: usize = 1 << 20;
const NOW: Instant = Instant::ORIGIN;

/// Takes a mebibyte at a time until that fails. Returns how many the session holds.
fn fill(budget: &mut MemoryQuota, share: &mut QuotaShare) -> usize {
    while budget.try_reserve(NOW, share, MIB) {}
    share.held / MIB
}

#[test]
fn greedy_sessions_leave_as_much_as_each_of_them_holds() {
    for count in [1, 2, 3, 7, 15] {
        let mut budget = MemoryQuota::new(64 * MIB);
        let mut shares: Vec<QuotaShare> = (0..count).map(|_| QuotaShare::default()).collect();
        let first = fill(&mut budget, &mut shares[0]);
        assert_eq!(first, 32);
        // An earlier session gets more; no session gets nothing.
        let held: Vec<_> = shares.iter_mut().map(|share| fill(&mut budget, share)).collect();
        assert!(held.windows(2).all(|two| two[0] >= two[1]), "{held:?}");
        let mut modest = QuotaShare::default();
        let free = budget.max - budget.used;
        assert!(
            budget.try_reserve(NOW, &mut modest, (free / 2).max(FLOOR)),
            "{count} greedy sessions, {free} free"
        );
    }
}

#[test]
fn a_session_that_holds_nothing_takes_a_small_step_from_an_empty_budget() {
    let mut budget = MemoryQuota::new(MIB);
    let (mut greedy, mut modest) = (QuotaShare::default(), QuotaShare::default());
    assert!(budget.try_reserve(NOW, &mut greedy, 5 * MIB), "larger than all there is, and alone");
    assert!(!budget.try_reserve(NOW, &mut modest, FLOOR + 1));
    assert!(budget.try_reserve(NOW, &mut modest, FLOOR));
    assert!(!budget.try_reserve(NOW, &mut modest, 1));
    assert!(budget.should_throttle(&greedy) && !budget.should_throttle(&modest));
    budget.release(Some(&mut greedy), 5 * MIB);
    assert!(budget.try_reserve(NOW, &mut modest, 1) && !budget.should_throttle(&greedy));
    budget.release(None, FLOOR + 1);
    assert_eq!((budget.used, greedy.held), (0, 0));
}

#[test]
fn everyone_in_line_is_looked_at_once_for_each_time_that_room_was_made() {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let keys: Vec<Key> = (0..3).map(|_| arena.insert_with(|_| ())).collect();
    let mut shares: Vec<QuotaShare> = keys.iter().map(|_| QuotaShare::default()).collect();
    let mut budget = MemoryQuota::new(MIB);
    budget.try_reserve(NOW, &mut shares[0], 10);
    for _ in 0..2 {
        for (key, share) in keys.iter().zip(&mut shares) {
            budget.enqueue_waiter(NOW, *key, share);
        }
    }
    assert_eq!(budget.next_waiter(NOW), None, "no room was made");
    budget.release(Some(&mut shares[0]), 5);
    for key in &keys {
        assert_eq!(budget.next_waiter(NOW), Some(*key));
    }
    assert_eq!(budget.next_waiter(NOW), None);
    shares[1].mark_dequeued();
    budget.enqueue_waiter(NOW, keys[1], &mut shares[1]);
    budget.release(None, 5);
    assert_eq!(budget.next_waiter(NOW), Some(keys[1]));
}

/// Simulates sessions that want one amount each, again and again, each as soon as it may, and release it in
/// turns. Returns how often each was served.
fn served(max: usize, wants: &[usize], rounds: u64) -> Vec<usize> {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let keys: Vec<Key> = wants.iter().map(|_| arena.insert_with(|_| ())).collect();
    let mut shares: Vec<QuotaShare> = keys.iter().map(|_| QuotaShare::default()).collect();
    let (mut budget, mut counts) = (MemoryQuota::new(max), alloc::vec![0; wants.len()]);
    let want = |now, budget: &mut MemoryQuota, shares: &mut [QuotaShare], counts: &mut [usize], at: usize| {
        while budget.try_reserve(now, &mut shares[at], wants[at]) {
            counts[at] += 1;
        }
        budget.enqueue_waiter(now, keys[at], &mut shares[at]);
    };
    for round in 0..rounds {
        let now = Instant(round * 1_000_000);
        for at in 0..wants.len() {
            if shares[at].held >= wants[at] {
                budget.release(Some(&mut shares[at]), wants[at]);
            }
            // The session that releases memory first tries to get some again.
            want(now, &mut budget, &mut shares, &mut counts, at);
            for _ in 0..WAITERS_PER_TURN {
                let Some(key) = budget.next_waiter(now) else { break };
                let at = keys.iter().position(|other| *other == key).unwrap();
                shares[at].mark_dequeued();
                want(now, &mut budget, &mut shares, &mut counts, at);
            }
            assert!(budget.used <= budget.max, "{wants:?}: {} of {}", budget.used, budget.max);
        }
    }
    counts
}

/// The same, but each session keeps what it got for `hold` ms, as long as a slow medium takes, and never
/// holds more at a time.
fn held_for(max: usize, wants: &[usize], hold: u64, rounds: u64) -> Vec<usize> {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let keys: Vec<Key> = wants.iter().map(|_| arena.insert_with(|_| ())).collect();
    let mut shares: Vec<QuotaShare> = keys.iter().map(|_| QuotaShare::default()).collect();
    let (mut budget, mut counts) = (MemoryQuota::new(max), alloc::vec![0; wants.len()]);
    let mut until: Vec<Option<u64>> = alloc::vec![None; wants.len()];
    for round in 0..rounds {
        let now = Instant(round * 1_000_000);
        let mut looked: Vec<usize> = Vec::new();
        for at in 0..wants.len() {
            if until[at].take_if(|until| *until <= round).is_some() {
                budget.release(Some(&mut shares[at]), wants[at]);
                looked.push(at);
            }
            if round == 0 {
                looked.push(at);
            }
        }
        for _ in 0..WAITERS_PER_TURN {
            let Some(key) = budget.next_waiter(now) else { break };
            let at = keys.iter().position(|other| *other == key).unwrap();
            shares[at].mark_dequeued();
            looked.push(at);
        }
        for at in looked.into_iter().filter(|at| until[*at].is_none()).collect::<Vec<_>>() {
            if until[at].is_none() && budget.try_reserve(now, &mut shares[at], wants[at]) {
                counts[at] += 1;
                until[at] = Some(round + hold);
            } else if until[at].is_none() {
                budget.enqueue_waiter(now, keys[at], &mut shares[at]);
            }
        }
    }
    counts
}

#[test]
fn a_large_step_is_not_passed_by_small_ones_for_ever() {
    // In 10 s: one session that wants much, beside others that leave too little of what is free.
    for others in [1, 3, 15] {
        let mut wants = alloc::vec![MIB; others];
        wants.push(15 * MIB);
        let counts = served(64 * MIB, &wants, 10_000);
        assert!(counts.iter().all(|count| *count >= 50), "{counts:?}");
    }
    // Two sessions, each of which wants more than fits beside the other.
    let counts = served(64 * MIB, &[40 * MIB, 41 * MIB], 1000);
    assert!(counts.iter().all(|count| *count >= 400), "{counts:?}");
}

#[test]
fn a_large_step_is_not_passed_for_ever_by_however_many_small_ones_that_are_late_as_well() {
    for (others, large) in [(70, 15), (200, 15), (200, 30), (200, 60), (200, 100)] {
        let mut wants = alloc::vec![MIB; others];
        wants.push(large * MIB);
        let counts = held_for(64 * MIB, &wants, 500, 60_000);
        let least = counts[..others].iter().min();
        assert!(counts[others] >= 10 && least >= Some(&5), "{large} beside {others}: {counts:?}");
    }
}

#[test]
fn who_was_late_and_went_away_holds_nobody_up() {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let key = arena.insert_with(|_| ());
    let mut budget = MemoryQuota::new(64 * MIB);
    let (mut greedy, mut gone, mut modest) =
        (QuotaShare::default(), QuotaShare::default(), QuotaShare::default());
    assert!(budget.try_reserve(NOW, &mut greedy, 20 * MIB));
    budget.enqueue_waiter(NOW, key, &mut gone);
    let mut now = NOW.after(LATE);
    assert!(!budget.try_reserve(now, &mut gone, 60 * MIB));
    budget.next_waiter(now);
    assert!(!budget.try_reserve(now, &mut modest, 10 * MIB), "it would be in the way");
    now = now.after(GONE);
    assert!(budget.try_reserve(now, &mut modest, 10 * MIB));
}

#[test]
fn who_is_late_is_looked_at_although_nothing_is_given_back() {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let [one, other] = [0; 2].map(|_| arena.insert_with(|_| ()));
    let mut budget = MemoryQuota::new(64 * MIB);
    let (mut greedy, mut modest) = (QuotaShare::default(), QuotaShare::default());
    assert_eq!(fill(&mut budget, &mut greedy), 32);
    budget.enqueue_waiter(NOW, one, &mut greedy);
    assert!(!budget.try_reserve(NOW, &mut modest, 20 * MIB));
    budget.enqueue_waiter(NOW, other, &mut modest);
    assert_eq!(budget.next_waiter(NOW), None);
    let later = NOW.after(LATE);
    assert_eq!(budget.next_waiter(later), Some(one));
    greedy.mark_dequeued();
    assert!(!budget.try_reserve(later, &mut greedy, MIB), "it holds something");
    budget.enqueue_waiter(later, one, &mut greedy);
    assert_eq!(budget.next_waiter(later), Some(other));
    modest.mark_dequeued();
    assert!(budget.try_reserve(later, &mut modest, 20 * MIB));
    assert_eq!(budget.next_waiter(later), None);
}

#[test]
fn whoever_says_anything_gets_no_more_than_half_beforehand() {
    for (max, most) in [(64 * MIB, 16 * MIB), (64 * MIB, 64 * MIB), (MIB, 16 * MIB), (FLOOR, FLOOR)] {
        let mut budget = MemoryQuota::new(max);
        let (mut greedy, mut modest) = (QuotaShare::default(), QuotaShare::default());
        let claim = budget.reservation_len(usize::MAX, most);
        assert!(claim <= max / 2 || claim == FLOOR + 1, "{claim} of {max}");
        assert!(claim <= most.max(FLOOR + 1) && claim > FLOOR, "{claim} of {max}");
        assert_eq!(budget.reservation_len(FLOOR, most), FLOOR);
        assert!(budget.try_reserve(NOW, &mut greedy, claim));
        assert!(budget.try_reserve(NOW, &mut modest, (max / 4).max(FLOOR)));
        // Data received anyway is charged, and released like all other memory.
        budget.charge(&mut greedy, 2 * max);
        assert!(!budget.try_reserve(NOW, &mut modest, 1));
        budget.release(Some(&mut greedy), claim + 2 * max);
        assert_eq!((greedy.held, budget.used), (0, modest.held));
    }
}

#[test]
fn nobody_waits_where_nothing_is_taken() {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let [gone, other] = [0; 2].map(|_| arena.insert_with(|_| ()));
    let mut budget = MemoryQuota::new(MIB);
    let (mut first, mut second) = (QuotaShare::default(), QuotaShare::default());
    budget.enqueue_waiter(NOW, gone, &mut first);
    assert!(!budget.try_reserve(NOW, &mut second, 2 * MIB), "another one waits");
    budget.enqueue_waiter(NOW, other, &mut second);
    // The first session does not want anything any more.
    assert_eq!(budget.next_waiter(NOW), Some(gone));
    first.mark_dequeued();
    assert_eq!(budget.next_waiter(NOW), Some(other));
    second.mark_dequeued();
    assert!(budget.try_reserve(NOW, &mut second, 2 * MIB));
}
