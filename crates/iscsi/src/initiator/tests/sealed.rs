//! Session and engine with an AEAD digest: what both sides move arrives whole, and nobody on the way changes
//! it.

use alloc::vec::Vec;

use base::rng::Rng;
use base::time::Duration;
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport as _, Request, TaskResult};

use super::pair::*;
use super::together::{random_keys, work};
use crate::aead::{AeadDigest, AeadMode, SEGMENT_LEN_MAX};
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::target::contract as target;
use crate::target::protocol_error::ProtocolError as TargetError;

/// Returns a pair whose connections have this digest, at this ErrorRecoveryLevel.
fn sealed(seed: u64, digest: AeadDigest, level: u8, connections: u16) -> Pair {
    let mut rng = Rng::from_seed(seed);
    let mut setup = Setup { seed, digest: Some(digest), ..Setup::default() };
    for keys in [&mut setup.plan.keys, &mut setup.target_keys] {
        *keys = random_keys(&mut rng);
        keys.error_recovery_level = level;
    }
    setup.plan.connections = connections;
    Pair::up(setup)
}

#[test]
fn every_combination_of_keys_moves_data_whole() {
    for (number, digest) in (0..).zip(AeadDigest::ALL) {
        for round in 0..6 {
            let seed = 100 * number + round;
            let mut rng = Rng::from_seed(seed);
            let mut setup =
                Setup { seed, digest: Some(digest), target_keys: random_keys(&mut rng), ..Setup::default() };
            setup.plan.keys = random_keys(&mut rng);
            setup.plan.connections = 1 + u16::try_from(rng.below(4)).unwrap();
            let mut pair = Pair::new(setup);
            pair.seen = Some(Vec::new());
            pair.run();
            assert!(pair.session.is_up(), "seed {seed}: {:?}", pair.events);
            work(seed, &mut pair, &mut rng, 24, Duration::from_secs(10));
            let seen = pair.seen.as_ref().unwrap();
            let longest = seen.iter().map(|pdu| data_range(pdu).len()).max().unwrap();
            assert!(seen.len() > 48 && longest <= SEGMENT_LEN_MAX, "seed {seed}: {longest}");
            assert_eq!((pair.engine.stats().bugs, pair.session.stats().bugs), (0, 0), "seed {seed}");
            assert_eq!(pair.session.stats().connections_lost, 0, "seed {seed}");
        }
    }
}

#[test]
fn long_segments_are_cut_and_nobody_reads_what_is_encrypted() {
    for digest in AeadDigest::ALL {
        let mut setup = Setup { digest: Some(digest), ..Setup::default() };
        for keys in [&mut setup.plan.keys, &mut setup.target_keys] {
            keys.max_recv_data_segment_length = 1 << 20;
            (keys.max_burst_length, keys.first_burst_length) = (1 << 20, 1 << 20);
        }
        let mut pair = Pair::up(setup);
        pair.seen = Some(Vec::new());
        let data = pattern(7, 700_001);
        let task = pair.submit(write(3, 1, &data));
        pair.run();
        assert!(pair.outcome(task).end.is_good());
        let task = pair.submit(read(3, 700_001));
        pair.run();
        assert!(pair.outcome(task).data_in.as_deref() == Some(&data[..]));
        let seen = pair.seen.unwrap();
        let long = seen.iter().filter(|pdu| data_range(pdu).len() == SEGMENT_LEN_MAX);
        assert_eq!(long.count(), 20, "ten in each direction");
        assert!(seen.iter().all(|pdu| data_range(pdu).len() <= SEGMENT_LEN_MAX));
        let mark = &data[70_000..70_016];
        let shows = seen.iter().any(|pdu| pdu.windows(mark.len()).any(|bytes| bytes == mark));
        assert_eq!(shows, digest.mode == AeadMode::Integrity);
    }
}

#[test]
fn long_cdbs_and_bidirectional_commands_are_sealed_too() {
    for digest in AeadDigest::ALL {
        let mut pair = Pair::up(Setup { digest: Some(digest), ..Setup::default() });
        for (id, cdb_len) in [(1, 17), (2, 32), (3, 260)] {
            let data = pattern(id.into(), 5003);
            let mut cdb_bytes = alloc::vec![0; cdb_len];
            cdb_bytes[..16].copy_from_slice(&cdb(0x28, 8, id)[..16]);
            let long = Cdb::new(&cdb_bytes).unwrap();
            let task = pair.submit(Request { cdb: long, data_in_len: 5003, ..write(8, id, &data) });
            pair.run();
            let outcome = pair.outcome(task);
            assert!(outcome.end.is_good(), "{outcome:?}");
            assert!(outcome.data_in.as_deref() == Some(&data[..]), "{digest:?}");
            assert_eq!(pair.executed[&id], 1);
        }
    }
}

#[test]
fn level_1_repairs_damaged_data_and_the_caller_notices_nothing() {
    for (number, digest) in (0..).zip(AeadDigest::ALL) {
        let (mut injected, mut repaired) = (0, 0);
        for round in 0..8 {
            let seed = 100 * number + round;
            let mut pair = sealed(seed, digest, 1, 1 + u16::try_from(round % 3).unwrap());
            pair.faults = Faults { data_up: 30, data_down: 30, budget: 12, ..Faults::default() };
            let mut rng = Rng::from_seed(seed);
            work(seed, &mut pair, &mut rng, 24, Duration::from_secs(120));
            assert_eq!(pair.session.stats().connections_lost, 0, "seed {seed}");
            injected += u64::from(pair.injected);
            repaired += pair.session.stats().data_digest_errors + pair.engine.stats().data_digest_errors;
        }
        // A segment that is discarded anyway is not checked.
        assert!(injected > 20 && repaired > injected / 2, "{digest:?}: {injected} injected, {repaired} seen");
    }
}

#[test]
fn level_2_recovers_from_every_attack_on_a_connection() {
    for (number, digest) in (0..).zip(AeadDigest::ALL) {
        let (mut injected, mut lost) = (0, 0);
        for round in 0..8 {
            let seed = 100 * number + round;
            let mut pair = sealed(seed, digest, 2, 1 + u16::try_from(round % 3).unwrap());
            pair.faults = Faults { data_up: 10, data_down: 10, pdus: 8, budget: 10, ..Faults::default() };
            let mut rng = Rng::from_seed(seed);
            work(seed, &mut pair, &mut rng, 24, Duration::from_secs(240));
            injected += pair.injected;
            lost += pair.session.stats().connections_lost;
            assert_eq!(pair.engine.stats().bugs, 0, "seed {seed}");
        }
        assert!(injected > 20 && lost > 5, "{digest:?}: {injected} injected, {lost} lost");
    }
}

#[test]
fn at_level_0_damaged_data_costs_the_session_or_the_command_and_is_never_used() {
    for digest in AeadDigest::ALL {
        let mut setup = Setup { digest: Some(digest), ..Setup::default() };
        setup.plan.keys.error_recovery_level = 0;
        let mut pair = Pair::up(setup);
        pair.faults = Faults { data_down: 1000, budget: 1, ..Faults::default() };
        let task = pair.submit(Request { replay: true, ..read(0, 4096) });
        pair.settle(1, Duration::from_secs(30));
        let outcome = pair.outcome(task);
        assert!(outcome.end.is_good() && outcome.data_in.as_deref() == Some(&pair.medium[..4096]));
        assert_eq!(pair.session.stats().sessions_rebuilt, 1);

        let before = pair.medium.clone();
        pair.faults = Faults { data_up: 1000, budget: pair.injected + 1, ..Faults::default() };
        let task = pair.submit(write(0, 1, &pattern(5, 4096)));
        pair.settle(1, Duration::from_secs(60));
        let outcome = pair.outcome(task);
        assert!(!outcome.end.is_good() && pair.medium == before, "{outcome:?}");
        assert_eq!(pair.engine.stats().data_digest_errors, 1);
    }
}

#[test]
fn a_session_whose_every_data_segment_is_damaged_ends_and_the_reason_is_reported() {
    for digest in AeadDigest::ALL {
        let mut pair = Pair::up(Setup { digest: Some(digest), ..Setup::default() });
        pair.faults = Faults { data_down: 1000, budget: 1000, ..Faults::default() };
        pair.submit(read(0, 100_000));
        pair.pass(Duration::from_secs(20));
        let why = ConnectionDown::ProtocolError(ProtocolError::PdusModified);
        let is_reported =
            |event: &Event| matches!(event, Event::ConnectionDown { why: it, .. } if *it == why);
        assert!(pair.events.iter().any(is_reported), "{:?}", pair.events);
        assert!(alloc::format!("{why}").contains("somebody modifies PDUs on the way to the initiator"));

        let mut setup = Setup { digest: Some(digest), ..Setup::default() };
        setup.target_keys.immediate_data = false;
        let mut pair = Pair::up(setup);
        pair.faults = Faults { data_up: 1000, budget: 1000, ..Faults::default() };
        let task = pair.submit(write(0, 1, &pattern(5, 100_000)));
        pair.pass(Duration::from_secs(60));
        let why = target::SessionEnd::Misbehaved(TargetError::PdusModified);
        assert!(pair.target_ends.contains(&why), "{:?} {:?}", pair.target_ends, pair.events);
        assert!(alloc::format!("{why}").contains("somebody modifies PDUs on the way to the target"));
        assert_eq!(pair.executed.get(&1), None);
        assert!(!pair.events.iter().any(|event| {
            matches!(event, Event::Done { task: of, outcome } if *of == task && matches!(&outcome.end, TaskResult::Status(end) if end.status == 0))
        }));
    }
}
