use alloc::vec::Vec;

use super::*;

const MIB: usize = 1 << 20;
const NOW: Instant = Instant::ORIGIN;

/// Takes a mebibyte at a time until that fails.
fn fill(budget: &mut Budget, share: &mut Share) -> usize {
    while budget.take(NOW, share, MIB) {}
    share.held / MIB
}

#[test]
fn greedy_sessions_leave_as_much_as_each_of_them_holds() {
    for count in [1, 2, 3, 7, 15] {
        let mut budget = Budget::new(64 * MIB);
        let mut shares: Vec<Share> = (0..count).map(|_| Share::default()).collect();
        let first = fill(&mut budget, &mut shares[0]);
        assert_eq!(first, 32);
        // Whoever comes first has more; nobody gets nothing.
        let held: Vec<_> = shares.iter_mut().map(|share| fill(&mut budget, share)).collect();
        assert!(held.windows(2).all(|two| two[0] >= two[1]), "{held:?}");
        let mut modest = Share::default();
        let free = budget.max - budget.used;
        assert!(budget.take(NOW, &mut modest, (free / 2).max(FLOOR)), "{count} greedy sessions, {free} free");
    }
}

#[test]
fn a_session_that_holds_nothing_takes_a_small_step_from_an_empty_budget() {
    let mut budget = Budget::new(MIB);
    let (mut greedy, mut modest) = (Share::default(), Share::default());
    assert!(budget.take(NOW, &mut greedy, 5 * MIB), "larger than all there is, and alone");
    assert!(!budget.take(NOW, &mut modest, FLOOR + 1));
    assert!(budget.take(NOW, &mut modest, FLOOR));
    assert!(!budget.take(NOW, &mut modest, 1));
    assert!(budget.is_pressed(&greedy) && !budget.is_pressed(&modest));
    budget.give(Some(&mut greedy), 5 * MIB);
    assert!(budget.take(NOW, &mut modest, 1) && !budget.is_pressed(&greedy));
    budget.give(None, FLOOR + 1);
    assert_eq!((budget.used, greedy.held), (0, 0));
}

#[test]
fn everyone_in_line_is_looked_at_once_for_each_time_that_room_was_made() {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let keys: Vec<Key> = (0..3).map(|_| arena.insert_with(|_| ())).collect();
    let mut shares: Vec<Share> = keys.iter().map(|_| Share::default()).collect();
    let mut budget = Budget::new(MIB);
    budget.take(NOW, &mut shares[0], 10);
    for _ in 0..2 {
        for (key, share) in keys.iter().zip(&mut shares) {
            budget.wait(NOW, *key, share);
        }
    }
    assert_eq!(budget.next_in_line(NOW), None, "no room was made");
    budget.give(Some(&mut shares[0]), 5);
    for key in &keys {
        assert_eq!(budget.next_in_line(NOW), Some(*key));
    }
    assert_eq!(budget.next_in_line(NOW), None);
    shares[1].called();
    budget.wait(NOW, keys[1], &mut shares[1]);
    budget.give(None, 5);
    assert_eq!(budget.next_in_line(NOW), Some(keys[1]));
}

/// Sessions that want one thing again and again, each time as soon as it may, and give it back in turns.
fn served(max: usize, wants: &[usize], rounds: u64) -> Vec<usize> {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let keys: Vec<Key> = wants.iter().map(|_| arena.insert_with(|_| ())).collect();
    let mut shares: Vec<Share> = keys.iter().map(|_| Share::default()).collect();
    let (mut budget, mut counts) = (Budget::new(max), alloc::vec![0; wants.len()]);
    let want = |now, budget: &mut Budget, shares: &mut [Share], counts: &mut [usize], at: usize| {
        while budget.take(now, &mut shares[at], wants[at]) {
            counts[at] += 1;
        }
        budget.wait(now, keys[at], &mut shares[at]);
    };
    for round in 0..rounds {
        let now = Instant(round * 1_000_000);
        for at in 0..wants.len() {
            if shares[at].held >= wants[at] {
                budget.give(Some(&mut shares[at]), wants[at]);
            }
            // Whoever gives something back looks first whether there is room now.
            want(now, &mut budget, &mut shares, &mut counts, at);
            for _ in 0..LOOKS {
                let Some(key) = budget.next_in_line(now) else { break };
                let at = keys.iter().position(|other| *other == key).unwrap();
                shares[at].called();
                want(now, &mut budget, &mut shares, &mut counts, at);
            }
            assert!(budget.used <= budget.max, "{wants:?}: {} of {}", budget.used, budget.max);
        }
    }
    counts
}

/// The same, where everybody keeps what it got for so many ms, as long as a slow medium takes, and never has more at a time.
fn held_for(max: usize, wants: &[usize], hold: u64, rounds: u64) -> Vec<usize> {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let keys: Vec<Key> = wants.iter().map(|_| arena.insert_with(|_| ())).collect();
    let mut shares: Vec<Share> = keys.iter().map(|_| Share::default()).collect();
    let (mut budget, mut counts) = (Budget::new(max), alloc::vec![0; wants.len()]);
    let mut until: Vec<Option<u64>> = alloc::vec![None; wants.len()];
    for round in 0..rounds {
        let now = Instant(round * 1_000_000);
        let mut looked: Vec<usize> = Vec::new();
        for at in 0..wants.len() {
            if until[at].take_if(|until| *until <= round).is_some() {
                budget.give(Some(&mut shares[at]), wants[at]);
                looked.push(at);
            }
            if round == 0 {
                looked.push(at);
            }
        }
        for _ in 0..LOOKS {
            let Some(key) = budget.next_in_line(now) else { break };
            let at = keys.iter().position(|other| *other == key).unwrap();
            shares[at].called();
            looked.push(at);
        }
        for at in looked.into_iter().filter(|at| until[*at].is_none()).collect::<Vec<_>>() {
            if until[at].is_none() && budget.take(now, &mut shares[at], wants[at]) {
                counts[at] += 1;
                until[at] = Some(round + hold);
            } else if until[at].is_none() {
                budget.wait(now, keys[at], &mut shares[at]);
            }
        }
    }
    counts
}

#[test]
fn a_large_step_is_not_passed_by_small_ones_for_ever() {
    // In 10 s, one that wants much beside others that leave too little of what is free.
    for others in [1, 3, 15] {
        let mut wants = alloc::vec![MIB; others];
        wants.push(15 * MIB);
        let counts = served(64 * MIB, &wants, 10_000);
        assert!(counts.iter().all(|count| *count >= 50), "{counts:?}");
    }
    // Two that both want more than goes beside each other.
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
    let mut budget = Budget::new(64 * MIB);
    let (mut greedy, mut gone, mut modest) = (Share::default(), Share::default(), Share::default());
    assert!(budget.take(NOW, &mut greedy, 20 * MIB));
    budget.wait(NOW, key, &mut gone);
    let mut now = NOW.after(LATE);
    assert!(!budget.take(now, &mut gone, 60 * MIB));
    budget.next_in_line(now);
    assert!(!budget.take(now, &mut modest, 10 * MIB), "it would be in the way");
    now = now.after(GONE);
    assert!(budget.take(now, &mut modest, 10 * MIB));
}

#[test]
fn who_is_late_is_looked_at_although_nothing_is_given_back() {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let [one, other] = [0; 2].map(|_| arena.insert_with(|_| ()));
    let mut budget = Budget::new(64 * MIB);
    let (mut greedy, mut modest) = (Share::default(), Share::default());
    assert_eq!(fill(&mut budget, &mut greedy), 32);
    budget.wait(NOW, one, &mut greedy);
    assert!(!budget.take(NOW, &mut modest, 20 * MIB));
    budget.wait(NOW, other, &mut modest);
    assert_eq!(budget.next_in_line(NOW), None);
    let later = NOW.after(LATE);
    assert_eq!(budget.next_in_line(later), Some(one));
    greedy.called();
    assert!(!budget.take(later, &mut greedy, MIB), "it holds something");
    budget.wait(later, one, &mut greedy);
    assert_eq!(budget.next_in_line(later), Some(other));
    modest.called();
    assert!(budget.take(later, &mut modest, 20 * MIB));
    assert_eq!(budget.next_in_line(later), None);
}

#[test]
fn whoever_says_anything_gets_no_more_than_half_beforehand() {
    for (max, most) in [(64 * MIB, 16 * MIB), (64 * MIB, 64 * MIB), (MIB, 16 * MIB), (FLOOR, FLOOR)] {
        let mut budget = Budget::new(max);
        let (mut greedy, mut modest) = (Share::default(), Share::default());
        let claim = budget.claim(usize::MAX, most);
        assert!(claim <= max / 2 || claim == FLOOR + 1, "{claim} of {max}");
        assert!(claim <= most.max(FLOOR + 1) && claim > FLOOR, "{claim} of {max}");
        assert_eq!(budget.claim(FLOOR, most), FLOOR);
        assert!(budget.take(NOW, &mut greedy, claim));
        assert!(budget.take(NOW, &mut modest, (max / 4).max(FLOOR)));
        // What came anyway counts, and is given back like all else.
        budget.charge(&mut greedy, 2 * max);
        assert!(!budget.take(NOW, &mut modest, 1));
        budget.give(Some(&mut greedy), claim + 2 * max);
        assert_eq!((greedy.held, budget.used), (0, modest.held));
    }
}

#[test]
fn nobody_waits_where_nothing_is_taken() {
    use crate::arena::Arena;
    let mut arena = Arena::new();
    let [gone, other] = [0; 2].map(|_| arena.insert_with(|_| ()));
    let mut budget = Budget::new(MIB);
    let (mut first, mut second) = (Share::default(), Share::default());
    budget.wait(NOW, gone, &mut first);
    assert!(!budget.take(NOW, &mut second, 2 * MIB), "another one waits");
    budget.wait(NOW, other, &mut second);
    // The first one does not want anything any more.
    assert_eq!(budget.next_in_line(NOW), Some(gone));
    first.called();
    assert_eq!(budget.next_in_line(NOW), Some(other));
    second.called();
    assert!(budget.take(NOW, &mut second, 2 * MIB));
}
