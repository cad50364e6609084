use super::*;

const RTT: Duration = Duration::from_micros(100);

fn frame(at: u64, elicits: bool) -> Sent {
    let state = if elicits { SentState::UnderWay } else { SentState::Settled };
    Sent::new(Instant(at), 100, state, FrameContent::Nothing)
}

/// Returns a part of a message, identified by its number.
fn chunk(number: u64) -> Chunk {
    let from = u32::try_from(number).unwrap();
    Chunk { key: base::arena::Key { index: from, generation: 0 }, from, to: from + 1 }
}

/// Sends `count` frames, one every microsecond.
fn sent(count: u64) -> Outgoing {
    let mut out = Outgoing::new(0, 1000, 1);
    (0..count).for_each(|number| out.push(frame(number * 1000, true), &[]));
    out
}

/// Calls `check` with an acknowledgement of the half-open ranges, which are in descending order.
fn with_ack<T>(runs: &[(u64, u64)], check: impl FnOnce(&Ack<'_>) -> T) -> T {
    let mut bytes = Vec::new();
    let (from, to) = runs[0];
    let short = |count: u64| u32::try_from(count).unwrap();
    let ack = Ack {
        sealed: false,
        largest: to - 1,
        delay_us: 0,
        first: short(to - from),
        pn_limit: 0,
        xid_limit: 0,
        overruns: 0,
        ranges: Default::default(),
    };
    let pairs = runs
        .windows(2)
        .map(|pair| Range { gap: short(pair[0].0 - pair[1].1), len: short(pair[1].1 - pair[1].0) });
    ack.encode(pairs, &mut bytes);
    check(&Ack::parse(&bytes).unwrap().0)
}

fn acknowledge(out: &mut Outgoing, runs: &[(u64, u64)]) -> Result<Vec<u64>, BadAck> {
    let mut hit = Vec::new();
    with_ack(runs, |ack| out.acknowledge(ack, |pn, _, _| hit.push(pn)))?;
    hit.sort_unstable();
    Ok(hit)
}

fn lost(out: &mut Outgoing, now: u64, order: &Reordering) -> (Vec<u64>, Option<u64>) {
    let mut lost = Vec::new();
    let due = out.detect(Instant(now), order, RTT, Instant(0), |pn, _, _| lost.push(pn));
    (lost, due.map(|due| due.0))
}

#[test]
fn each_frame_is_acknowledged_once_whatever_is_repeated() {
    let mut out = sent(10);
    assert_eq!(acknowledge(&mut out, &[(5, 7), (1, 3)]), Ok(alloc::vec![1, 2, 5, 6]));
    assert_eq!(acknowledge(&mut out, &[(4, 7), (1, 3)]), Ok(alloc::vec![4]));
    assert_eq!(acknowledge(&mut out, &[(1, 11)]), Ok(alloc::vec![3, 7, 8, 9, 10]));
    out.forget(Instant(0));
    assert_eq!(acknowledge(&mut out, &[(1, 11)]), Ok(alloc::vec![]));
    assert!(!out.is_waiting() && out.ring.is_empty());
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_changes_nothing() {
    let mut out = sent(10);
    assert_eq!(acknowledge(&mut out, &[(1, 12)]), Err(BadAck::NeverSent));
    assert_eq!(acknowledge(&mut out, &[(1 << 50, (1 << 50) + 1)]), Err(BadAck::NeverSent));
    assert!(out.is_waiting() && acknowledge(&mut out, &[(1, 11)]).unwrap().len() == 10);
}

#[test]
fn a_number_that_was_left_out_catches_who_acknowledges_everything() {
    for seed in 0..20 {
        let mut out = Outgoing::new(0, 10_000, seed);
        (0..5000).for_each(|number| out.push(frame(number, true), &[]));
        let (gap, end) = (out.left_out, out.next());
        assert!((64..5000).contains(&gap), "{gap}");
        assert_eq!(acknowledge(&mut out, &[(1, end)]), Err(BadAck::NeverSent));
        assert_eq!(acknowledge(&mut out, &[(gap, gap + 1)]), Err(BadAck::NeverSent));
        assert_eq!(acknowledge(&mut out, &[(gap + 1, end), (1, gap)]).unwrap().len(), 5000);
    }
}

#[test]
fn three_later_frames_prove_a_loss_and_the_rest_waits_an_eighth_longer() {
    let mut out = sent(10);
    acknowledge(&mut out, &[(6, 7)]).unwrap();
    // Sent at 0 to 4 µs; the time allowed is 112.5 µs.
    assert_eq!(lost(&mut out, 50_000, &Reordering::default()), (alloc::vec![1, 2, 3], Some(3_000 + 112_500)));
    assert_eq!(lost(&mut out, 115_500, &Reordering::default()), (alloc::vec![4], Some(4_000 + 112_500)));
    assert_eq!(lost(&mut out, 200_000, &Reordering::default()), (alloc::vec![5], None));
    assert_eq!(acknowledge(&mut out, &[(1, 7)]), Ok(alloc::vec![1, 2, 3, 4, 5]), "they may arrive yet");
}

#[test]
fn on_a_path_that_reorders_only_time_proves_a_loss() {
    let (mut out, mut order) = (sent(10), Reordering::default());
    order.record_spurious_loss(Instant(0), RTT);
    acknowledge(&mut out, &[(10, 11)]).unwrap();
    assert_eq!(lost(&mut out, 50_000, &order), (alloc::vec![], Some(112_500)));
}

#[test]
fn what_the_other_space_overtook_is_lost_though_nothing_later_of_its_own_came() {
    let mut out = sent(10);
    acknowledge(&mut out, &[(3, 4)]).unwrap();
    let mut lost = Vec::new();
    let overtaken = Instant(6_500);
    out.detect(Instant(10_000), &Reordering::default(), RTT, overtaken, |pn, _, _| lost.push(pn));
    assert_eq!(lost, [1, 2, 4, 5, 6, 7]);
    assert!(out.is_waiting());
}

#[test]
fn bare_acknowledgements_use_numbers_and_leave_nothing_behind() {
    let mut out = Outgoing::new(0, 10, 1);
    for number in 0..50 {
        out.push(frame(number, false), &[]);
        out.forget(Instant(number));
    }
    assert_eq!((out.ring.len(), out.credit(), out.is_waiting()), (0, 0, false));
    assert!(out.set_limit(60) && !out.set_limit(55) && out.credit() == 10);
}

#[test]
fn whatever_becomes_of_a_frame_becomes_of_all_its_parts_and_nothing_is_kept_of_them() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let mut out = Outgoing::new(0, 100_000, seed);
        // Near the value at which the count of parts wraps.
        out.held.base = u32::MAX - 20;
        let mut number = 0;
        let mut carried: alloc::collections::BTreeMap<u64, Vec<Chunk>> = Default::default();
        let mut settled: Vec<Chunk> = Vec::new();
        let all = |carried: FrameContent, further: Further<'_>| -> Vec<Chunk> {
            let FrameContent::Chunk(first) = carried else { panic!("seed {seed}: {carried:?}") };
            core::iter::once(first).chain(further.copied()).collect()
        };
        for now in 0..300 {
            let count = if rng.chance(1, 2) { 1 } else { 1 + rng.below(PARTS_MAX as u64) };
            let parts: Vec<Chunk> = (number..number + count).map(chunk).collect();
            number += count;
            carried.insert(out.next(), parts.clone());
            let sent = Sent::new(Instant(now), 100, SentState::UnderWay, FrameContent::Chunk(parts[0]));
            out.push(sent, &parts[1..]);
            let mut seen = |pn: u64, sent: &Sent, further: Further<'_>| {
                assert_eq!(all(sent.carried, further), carried[&pn], "seed {seed}");
                settled.extend(&carried[&pn]);
            };
            match rng.below(8) {
                0 => {
                    let to = 1 + rng.below(out.next() - 1);
                    let from = to - rng.below(to.min(20));
                    if out.left_out == 0 || !(from..=to).contains(&out.left_out) {
                        with_ack(&[(from, to + 1)], |ack| out.acknowledge(ack, &mut seen)).unwrap();
                    }
                }
                1 => _ = out.detect(Instant(now), &Reordering::default(), RTT, Instant(0), &mut seen),
                2 => {
                    let low = out.low;
                    let mut pns = (low..out.next()).filter(|pn| carried.contains_key(pn));
                    out.repeat(2, |sent, further| {
                        let parts = all(sent, further);
                        assert!(pns.any(|pn| carried[&pn] == parts), "seed {seed}");
                    });
                }
                3 => out.forget(Instant(now.saturating_sub(50))),
                _ => {}
            }
        }
        let left = out.ring.iter().map(|sent| usize::from(sent.further_count)).sum::<usize>();
        assert_eq!(out.held.parts.len(), left, "seed {seed}: what is forgotten is gone");
        assert!(settled.len() > 300, "seed {seed}");
        out.give_up(0, |_, _| {});
        out.forget(Instant(u64::MAX));
        assert!(out.ring.is_empty() && out.held.parts.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_frame_takes_little_room_whatever_it_carried() {
    assert!(size_of::<Sent>() <= 40, "{} bytes, 16384 times", size_of::<Sent>());
    let mut out = Outgoing::new(0, 100_000, 1);
    let parts = [chunk(1); PARTS_MAX];
    while out.further_max() > 0 {
        let further = &parts[..out.further_max()];
        out.push(Sent::new(Instant(0), 100, SentState::UnderWay, FrameContent::Chunk(parts[0])), further);
    }
    assert_eq!(out.held.parts.len(), FURTHER_MAX);
}

fn written_ack(come: &mut Incoming, now: u64) -> (u64, Vec<(u64, u64)>) {
    let mut bytes = Vec::new();
    come.write_ack(Instant(now), 3, true, 9, 1, &mut bytes);
    let (ack, rest) = Ack::parse(&bytes).unwrap();
    assert!(rest.is_empty() && ack.sealed && ack.xid_limit == 9 && ack.overruns == 1);
    (u64::from(ack.delay_us), runs(&ack).filter(|(from, to)| from < to).collect())
}

fn take(come: &mut Incoming, now: u64, pn: u64) {
    assert!(come.is_new(pn));
    come.record_received((Instant(now), Instant(now)), pn, true, RTT, RTT);
}

#[test]
fn acknowledgements_come_every_second_frame_at_first_then_every_sixteenth_and_at_once_for_a_gap() {
    let mut come = Incoming::new(Instant(0), 0, 512, 512);
    let (mut pn, mut counts) = (0, Vec::new());
    for _ in 0..5 {
        let before = pn;
        while !come.must_send_ack() {
            pn += 1;
            take(&mut come, 0, pn);
        }
        counts.push(pn - before);
        written_ack(&mut come, 0);
    }
    assert_eq!(counts, [2, 4, 8, 16, 16]);
    take(&mut come, 0, pn + 2);
    assert!(come.must_send_ack());
    assert_eq!(written_ack(&mut come, 7_000), (7, alloc::vec![(pn + 2, pn + 3), (1, pn + 1)]));
    take(&mut come, 0, pn + 3);
    assert!(!come.must_send_ack() && come.has_ack_to_send() && come.due() == Some(Instant(100_000)));
    come.handle_timeout(Instant(99_999));
    assert!(!come.must_send_ack());
    come.handle_timeout(Instant(100_000));
    assert!(come.must_send_ack() && come.due().is_none());
}

#[test]
fn however_many_gaps_there_are_an_acknowledgement_names_the_newest_that_fit() {
    let mut come = Incoming::new(Instant(0), 0, 64, 4096);
    (1..1000).for_each(|number| take(&mut come, 0, number * 2));
    assert!(come.came.len() <= RUNS_MAX);
    let (_, runs) = written_ack(&mut come, 0);
    assert_eq!((runs.len(), runs[0], runs[32]), (33, (1998, 1999), (1934, 1935)));
    assert!(come.tell_len() >= ACK_LEN + RANGES_MAX * RANGE_LEN);
}

#[test]
fn nothing_received_can_be_told_too() {
    let mut come = Incoming::new(Instant(0), 0, 64, 512);
    assert_eq!(written_ack(&mut come, 0), (0, alloc::vec![]));
}

#[test]
fn on_a_path_with_many_gaps_an_acknowledgement_by_itself_goes_out_twice() {
    let mut come = Incoming::new(Instant(0), 0, 64, 4096);
    let mut alone = Vec::new();
    for number in 1..12 {
        take(&mut come, 0, number * 2);
        written_ack(&mut come, 0);
        come.record_bare_ack();
        let again = come.must_send_ack();
        if again {
            written_ack(&mut come, 0);
            come.record_bare_ack();
        }
        assert!(!come.must_send_ack());
        alone.push(again);
    }
    assert_eq!(alone, [false, false, false, false, false, false, false, false, true, true, true]);
}
