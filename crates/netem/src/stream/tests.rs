use super::*;
use crate::iscsi::Iscsi;
use alloc::vec;

const END: Instant = Instant(u64::MAX);

/// Returns a PDU with digests: header, 4 bytes, data, 4 bytes.
fn pdu(number: u8, data_len: u8) -> Vec<u8> {
    let mut bytes = vec![number; 52];
    bytes[0] = 0x01;
    bytes[4] = 0;
    bytes[5..8].copy_from_slice(&[0, 0, data_len]);
    bytes.extend(vec![number; usize::from(data_len).next_multiple_of(4)]);
    if data_len > 0 {
        bytes.extend([number; 4]);
    }
    bytes
}

fn link(plan: StreamPlan, seed: u64) -> StreamLink<Iscsi> {
    StreamLink::new(Iscsi::logged_in(true, true), plan.clone(), plan, seed)
}

fn received(link: &mut StreamLink<Iscsi>, way: StreamDirection) -> (Vec<u8>, Option<Arrived>) {
    let mut bytes = vec![];
    loop {
        match link.poll(END, way) {
            Some(Arrived::Bytes(piece)) => bytes.extend(piece),
            other => return (bytes, other),
        }
    }
}

fn differing(a: &[u8], b: &[u8]) -> Vec<usize> {
    assert_eq!(a.len(), b.len());
    (0..a.len()).filter(|at| a[*at] != b[*at]).collect()
}

#[test]
fn a_clean_connection_passes_every_byte_in_order_whatever_its_pieces() {
    let plan = StreamPlan {
        piece_len_max: 7,
        delay: DurationRange::between(Duration::ZERO, Duration::from_millis(5)),
        ..StreamPlan::CLEAN
    };
    let mut link = link(plan, 1);
    let sent: Vec<u8> = (0..50).flat_map(|number| pdu(number, number)).collect();
    for (at, piece) in (0..).zip(sent.chunks(31)) {
        link.push(Instant(at), StreamDirection::Forward, piece);
        link.push(Instant(at), StreamDirection::Backward, piece);
    }
    link.push_end(Instant(9999), StreamDirection::Forward);
    assert_eq!(received(&mut link, StreamDirection::Forward), (sent.clone(), Some(Arrived::Closed)));
    assert_eq!(received(&mut link, StreamDirection::Backward), (sent, None));
    assert_eq!(link.in_flight(StreamDirection::Forward), 0);
}

#[test]
fn damage_hits_the_part_it_is_meant_for() {
    for (plan, kind, range) in [
        (StreamPlan { corrupt_header: Probability::ALWAYS, ..StreamPlan::CLEAN }, FaultKind::Header, 0..48),
        (
            StreamPlan { corrupt_header_digest: Probability::ALWAYS, ..StreamPlan::CLEAN },
            FaultKind::HeaderDigest,
            48..52,
        ),
        (StreamPlan { corrupt_data: Probability::ALWAYS, ..StreamPlan::CLEAN }, FaultKind::Data, 52..152),
        (
            StreamPlan { corrupt_data_digest: Probability::ALWAYS, ..StreamPlan::CLEAN },
            FaultKind::DataDigest,
            152..156,
        ),
    ] {
        for seed in 0..50 {
            let mut link = link(plan.clone(), seed);
            let sent = pdu(9, 100);
            link.push(Instant(0), StreamDirection::Forward, &sent);
            let (bytes, _) = received(&mut link, StreamDirection::Forward);
            let hits = differing(&sent, &bytes);
            assert!(!hits.is_empty() && hits.iter().all(|at| range.contains(at)), "{kind:?}: {hits:?}");
            assert_eq!(link.count(kind), 1);
            assert_eq!(link.take_log().len(), 1);
        }
    }
}

#[test]
fn what_no_digest_protects_is_left_alone_unless_told() {
    let plan = StreamPlan {
        corrupt_header: Probability::ALWAYS,
        corrupt_data: Probability::ALWAYS,
        ..StreamPlan::CLEAN
    };
    let sent = &pdu(9, 100)[..148];
    for (protected_only, damaged) in [(true, false), (false, true)] {
        let plan = StreamPlan { protected_only, ..plan.clone() };
        let mut link = StreamLink::new(Iscsi::logged_in(false, false), plan.clone(), plan, 3);
        link.push(Instant(0), StreamDirection::Forward, sent);
        assert_eq!(received(&mut link, StreamDirection::Forward).0 != sent, damaged);
    }
}

#[test]
fn a_cut_reaches_both_ends_and_nothing_comes_after_it() {
    for seed in 0..30 {
        let mut link = link(StreamPlan { cut: Probability::ALWAYS, ..StreamPlan::CLEAN }, seed);
        link.push(Instant(0), StreamDirection::Forward, &pdu(1, 100));
        link.push(Instant(1), StreamDirection::Forward, &pdu(2, 100));
        link.push(Instant(1), StreamDirection::Backward, &pdu(3, 100));
        let (bytes, end) = received(&mut link, StreamDirection::Forward);
        assert!(pdu(1, 100).starts_with(&bytes));
        assert_eq!(end, Some(Arrived::Cut));
        assert_eq!(received(&mut link, StreamDirection::Backward), (vec![], Some(Arrived::Cut)));
    }
}

#[test]
fn silence_tells_nobody() {
    let mut link = link(StreamPlan { silence: Probability::ALWAYS, ..StreamPlan::CLEAN }, 1);
    link.push(Instant(0), StreamDirection::Forward, &pdu(1, 0));
    link.push_end(Instant(0), StreamDirection::Forward);
    link.heal();
    assert_eq!(received(&mut link, StreamDirection::Forward), (vec![], None));
}

#[test]
fn a_reset_reaches_the_far_end_alone_and_not_through_silence() {
    for silent in [false, true] {
        let probability = if silent { Probability::ALWAYS } else { Probability::NEVER };
        let mut link = link(StreamPlan { silence: probability, ..StreamPlan::CLEAN }, 1);
        link.push(Instant(0), StreamDirection::Backward, &pdu(3, 0));
        link.push(Instant(0), StreamDirection::Forward, &pdu(1, 0));
        link.push_reset(Instant(1), StreamDirection::Forward);
        link.push(Instant(2), StreamDirection::Backward, &pdu(4, 0));
        let expected = if silent { (vec![], None) } else { (pdu(1, 0), Some(Arrived::Cut)) };
        assert_eq!(received(&mut link, StreamDirection::Forward), expected);
        assert_eq!(received(&mut link, StreamDirection::Backward), (vec![], None));
    }
}

#[test]
fn units_are_lost_and_repeated_whole() {
    let plan =
        StreamPlan { drop: Probability::one_in(4), duplicate: Probability::one_in(4), ..StreamPlan::CLEAN };
    let mut link = link(plan, 11);
    for number in 0..200 {
        link.push(Instant(0), StreamDirection::Forward, &pdu(number, 8));
    }
    let (bytes, _) = received(&mut link, StreamDirection::Forward);
    let mut seen = vec![0_u64; 200];
    for unit in bytes.chunks(pdu(0, 8).len()) {
        assert_eq!(unit, pdu(unit[1], 8));
        seen[usize::from(unit[1])] += 1;
    }
    let times = |count| u64::try_from(seen.iter().filter(|times| **times == count).count()).unwrap();
    assert_eq!((times(0), times(2)), (link.count(FaultKind::Drop), link.count(FaultKind::Duplicate)));
    assert!(times(0) > 20 && times(2) > 20);
}

#[test]
fn the_fate_of_a_unit_depends_on_the_seed_alone() {
    let plan = StreamPlan {
        drop: Probability::one_in(9),
        corrupt_data: Probability::one_in(5),
        piece_len_max: 40,
        stall: Probability::one_in(6),
        stall_for: DurationRange::exactly(Duration::from_secs(1)),
        ..StreamPlan::CLEAN
    };
    let sent: Vec<u8> = (0..100).flat_map(|number| pdu(number, number)).collect();
    let run = |seed, piece: usize| {
        let mut link = link(plan.clone(), seed);
        for bytes in sent.chunks(piece) {
            link.push(Instant(0), StreamDirection::Forward, bytes);
        }
        (received(&mut link, StreamDirection::Forward).0, link.take_log())
    };
    assert_eq!(run(5, 1), run(5, 10_000));
    assert_ne!(run(5, 64).0, run(6, 64).0);
}

#[test]
fn the_opening_is_spared_and_faults_run_out() {
    let mut plan = StreamPlan { drop: Probability::ALWAYS, faults_max: 2, ..StreamPlan::CLEAN };
    let mut unopened = StreamLink::new(Iscsi::new(), plan.clone(), plan.clone(), 1);
    unopened.push(Instant(0), StreamDirection::Forward, &pdu(1, 0)[..48]);
    assert_eq!(received(&mut unopened, StreamDirection::Forward).0.len(), 48);
    plan.spare_login = false;
    let mut link = link(plan, 1);
    for number in 0..5 {
        link.push(Instant(0), StreamDirection::Forward, &pdu(number, 0));
    }
    assert_eq!(received(&mut link, StreamDirection::Forward).0.len(), 3 * 52);
}

#[test]
fn a_rate_and_a_stall_delay_everything_behind_them() {
    let plan = StreamPlan { bytes_per_s: 52_000, ..StreamPlan::CLEAN };
    let mut slow = link(plan, 1);
    slow.push(Instant(0), StreamDirection::Forward, &pdu(1, 0));
    slow.push(Instant(0), StreamDirection::Forward, &pdu(2, 0));
    assert_eq!(slow.poll_timeout(StreamDirection::Forward), Some(Instant(1_000_000)));
    assert!(matches!(slow.poll(Instant(1_999_999), StreamDirection::Forward), Some(Arrived::Bytes(_))));
    assert_eq!(slow.poll(Instant(1_999_999), StreamDirection::Forward), None);
    let stalls = StreamPlan {
        stall: Probability::ALWAYS,
        stall_for: DurationRange::exactly(Duration::from_secs(1)),
        faults_max: 1,
        ..StreamPlan::CLEAN
    };
    let mut begins_within = false;
    for seed in 0..40 {
        let mut stalled = link(stalls.clone(), seed);
        stalled.push(Instant(0), StreamDirection::Forward, &pdu(1, 0));
        stalled.push(Instant(5), StreamDirection::Forward, &pdu(2, 0));
        let mut early = 0;
        while let Some(Arrived::Bytes(bytes)) = stalled.poll(Instant(999_999_999), StreamDirection::Forward) {
            early += bytes.len();
        }
        // The stall begins at any byte of the first unit; nothing behind that byte arrives before the stall
        // is over.
        assert!(early <= 52, "seed {seed}: {early}");
        begins_within |= (1..52).contains(&early);
        assert_eq!(early + received(&mut stalled, StreamDirection::Forward).0.len(), 104, "seed {seed}");
    }
    assert!(begins_within);
}
