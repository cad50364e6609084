//! A few thousand damaged PDUs; `make risk-simulation` runs a million.

use super::*;

/// Runs one cell with a seed of its own, and checks what digests promise.
fn check(digests: Digests, erl: u8, pdus: u64) -> Tally {
    let seed = u64::from(std::process::id());
    let cell = Cell { digests, erl, pdus, seed };
    let tally = run(cell);
    println!("{cell}, seed {seed}: {tally}");
    assert_eq!(violation(&cell, &tally), None, "{cell}, seed {seed}: {tally}");
    tally
}

#[test]
fn both_digests_detect_every_damaged_pdu_at_every_level() {
    for erl in 0..3 {
        let tally = check(Digests::Both, erl, 440);
        assert!(tally.recovered > 0, "{tally}");
    }
}

#[test]
fn without_digests_damage_stays_silent() {
    for erl in 0..3 {
        let tally = check(Digests::None, erl, 220);
        assert!(tally.wrong > tally.injected / 4, "{tally}");
    }
}

#[test]
fn one_digest_misses_what_the_other_one_covers() {
    for digests in [Digests::Header, Digests::Data] {
        let tally = check(digests, 1, 440);
        assert!(tally.wrong > 0 && tally.by_digest > 0, "{tally}");
    }
}

#[test]
fn a_seed_gives_the_same_counts_again() {
    let cell = Cell { digests: Digests::None, erl: 1, pdus: 100, seed: 5 };
    assert_eq!(run(cell), run(cell));
}

#[test]
fn a_missed_fault_is_a_violation() {
    let cell = Cell { digests: Digests::Both, erl: 0, pdus: 10, seed: 1 };
    let good = Tally { injected: 10, detected: 10, by_digest: 10, ..Tally::default() };
    assert_eq!(violation(&cell, &good), None);
    for bad in [
        Tally { detected: 9, ..good },
        Tally { detected: 9, silent: 1, ..good },
        Tally { by_digest: 9, ..good },
        Tally { wrong: 1, ..good },
        Tally { unexplained: 1, ..good },
        Tally { bugs: 1, ..good },
        Tally { injected: 9, detected: 9, by_digest: 9, ..good },
    ] {
        assert!(violation(&cell, &bad).is_some(), "{bad:?}");
    }
    let none = Cell { digests: Digests::None, ..cell };
    assert!(violation(&none, &Tally { by_digest: 0, ..good }).is_some(), "nothing silent without digests");
}
