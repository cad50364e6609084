//! Tests of paths that carry shorter frames, carry nothing, or are added and removed; of attacks; and of what
//! stays true meanwhile.

use alloc::vec::Vec;

use base::ether::{ETHERNET_HEADER_LEN, EtherPort, FrameBatch, PortState};
use base::time::{Duration, Instant};
use netem::frame::FramePlan;
use netem::probability::Probability;

use super::pair::{Config, Pair, TEN_GBIT, in_the_clear, mac, state, wire};
use crate::connection::{ConnectionEvent, PathAddress};
use crate::frame::{Cmd, Flags, HEADER_LEN, Header};
use crate::pdu::ack::Ack;
use crate::pdu::ask::Ask;

pub(super) const GBIT: u64 = 125_000_000;

pub(super) const fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn both(plan: FramePlan) -> Config {
    Config { plans: [plan.clone(), plan], ..Config::lan() }
}

/// Keeps one direction busy until `end`, and returns how many bytes arrived in each of the given spans.
pub(super) fn busy(pair: &mut Pair, spans: &[(u64, u64)], end: u64) -> Vec<u64> {
    pair.sides[1].depth = 4;
    let mut marks: Vec<u64> = spans.iter().flat_map(|(from, to)| [*from, *to]).collect();
    marks.push(end);
    marks.sort_unstable();
    let mut seen = Vec::new();
    for mark in marks {
        while pair.now < at(mark) {
            while pair.sides[1].waiting() < 8 {
                pair.give(1, 128 << 10);
            }
            pair.run_until(at(mark), |pair| pair.sides[1].waiting() < 4);
        }
        seen.push((mark, pair.sides[0].arrived_bytes));
    }
    let until = |ms: u64| seen.iter().find(|(mark, _)| *mark == ms).unwrap().1;
    spans.iter().map(|(from, to)| until(*to) - until(*from)).collect()
}

#[test]
fn a_path_that_carries_short_frames_for_a_while_is_followed_down_and_up() {
    let plan = FramePlan {
        // Frame lengths include what Ethernet adds.
        frame_len_max: alloc::vec![(at(0), 9038), (at(100), 1538), (at(800), 9038)],
        ..wire(GBIT)
    };
    let mut pair = Pair::new(&both(plan));
    let rates = busy(&mut pair, &[(20, 100), (120, 800), (2500, 2600)], 2600);
    // In percent of the wire: full frames, then short ones, then full ones again.
    let share = |bytes: u64, ms: u64| bytes * 100_000 / (GBIT * ms);
    let shares = [share(rates[0], 80), share(rates[1], 680), share(rates[2], 100)];
    assert!(shares[0] >= 98 && shares[1] >= 92 && shares[2] >= 98, "{shares:?}");
    let mtus = pair.sides[1].events.iter().filter_map(|(when, event)| match event {
        ConnectionEvent::PathMtu { mtu, .. } => Some((when.0 / 1_000_000, *mtu)),
        _ => None,
    });
    let mtus: Vec<_> = mtus.collect();
    let sizes: Vec<_> = mtus.iter().map(|(_, mtu)| *mtu).collect();
    assert_eq!(sizes, [9000, 1500, 9000], "{mtus:?}");
    assert!(mtus[1].0 - 100 < 20, "noticed within milliseconds: {mtus:?}");
    // The owner receives an event when the path MTU is less than that of both ports, and another when it is
    // whole again.
    let widths = pair.sides[1].events.iter().filter_map(|(_, event)| match event {
        ConnectionEvent::PathMtuStatus { status: width, .. } => {
            Some((width.carries, width.ours, width.theirs))
        }
        _ => None,
    });
    assert_eq!(widths.collect::<Vec<_>>(), [(1500, 9000, 9000), (9000, 9000, 9000)]);
    pair.run_until_done(Duration::from_secs(1));
}

#[test]
fn losses_are_not_taken_for_a_path_that_carries_less() {
    let mut pair = Pair::new(&both(FramePlan { loss: Probability(100_000), ..wire(TEN_GBIT) }));
    busy(&mut pair, &[], 300);
    let changes = |event: &&(Instant, ConnectionEvent)| matches!(event.1, ConnectionEvent::PathMtu { .. });
    assert_eq!(pair.sides[1].events.iter().filter(changes).count(), 1, "{:?}", pair.sides[1]);
}

#[test]
fn after_a_cut_of_twenty_seconds_everything_goes_on_at_once() {
    // Cuts in both directions, towards the target, and towards the initiator.
    for cut in [[true, true], [true, false], [false, true]] {
        for keyed in [false, true] {
            let cuts = |cut: bool| if cut { alloc::vec![(at(50), at(20_050))] } else { Vec::new() };
            let plans = cut.map(|cut| FramePlan { cuts: cuts(cut), ..wire(GBIT) });
            let mut pair = Pair::new(&Config { plans, keyed, ..Config::lan() });
            let got = busy(&mut pair, &[(60, 20_050), (20_050, 20_150), (20_150, 20_250)], 20_250);
            assert!(got[1] > 0, "on within 100 ms: {got:?}, {:?}", pair.sides);
            assert!(got[2] * 100 >= GBIT / 10 * 90, "at full rate: {got:?}, {:?}", pair.sides);
            let bad = |event: &(Instant, ConnectionEvent)| {
                matches!(event.1, ConnectionEvent::Lost | ConnectionEvent::PathDown(_))
            };
            assert!(!pair.sides.iter().any(|side| side.events.iter().any(bad)));
            assert!(pair.frames < 60_000, "a silent path is probed, not flooded: {}", pair.frames);
            pair.run_until_done(Duration::from_secs(1));
        }
    }
}

#[test]
fn a_session_without_any_path_is_lost_after_the_limit_and_not_before() {
    let mut pair = Pair::new(&both(FramePlan { cuts: alloc::vec![(at(50), at(1_000_000))], ..wire(GBIT) }));
    busy(&mut pair, &[], 29_000);
    assert!(
        !pair.sides.iter().any(|side| side.events.iter().any(|(_, event)| *event == ConnectionEvent::Lost))
    );
    pair.run_for(Duration::from_millis(1100));
    for side in &mut pair.sides {
        assert_eq!(side.events.last().map(|(_, event)| *event), Some(ConnectionEvent::Lost), "{side:?}");
        assert_eq!(side.connection.poll_timeout(), None);
    }
}

#[test]
fn a_port_that_goes_down_and_comes_back_is_used_again_at_once() {
    let mut pair = Pair::new(&both(wire(GBIT)));
    busy(&mut pair, &[], 50);
    for side in &mut pair.sides {
        side.connection.port_down(at(50), EtherPort(0));
    }
    pair.run_for(Duration::from_secs(15));
    for (index, side) in pair.sides.iter_mut().enumerate() {
        side.connection.port_up(pair.now, EtherPort(0), &state(index, 0, 9000));
    }
    let got = busy(&mut pair, &[(15_050, 15_060)], 15_060);
    assert!(got[0] * 100 > GBIT / 100 * 80, "{got:?}");
    pair.run_until_done(Duration::from_secs(1));
}

/// Returns a session whose second path is up.
pub(super) fn two_paths(keyed: bool, plan: &FramePlan) -> Pair {
    let plans = [plan.clone(), plan.clone()];
    two_paths_of(&Config { keyed, plans, ..Config::lan() })
}

pub(super) fn two_paths_of(config: &Config) -> Pair {
    let mut pair = Pair::new(&Config { ports: 2, ..config.clone() });
    let address = PathAddress { port: EtherPort(1), mac: mac(1, 1) };
    let id = pair.sides[0].connection.add_path(at(0), address, &state(0, 1, 9000));
    assert_eq!(id, Some(1));
    assert_eq!(pair.sides[0].connection.add_path(at(0), address, &state(0, 1, 9000)), None, "it is there");
    pair.run_for(Duration::from_millis(10));
    assert!(pair.sides.iter().all(|side| side.connection.paths().filter(|path| path.is_up).count() == 2));
    assert!(
        pair.sides
            .iter()
            .all(|side| side.events.iter().any(|(_, event)| *event == ConnectionEvent::PathUp(1)))
    );
    pair
}

#[test]
fn two_paths_carry_twice_as_much_and_one_carries_on_when_the_other_is_cut() {
    for keyed in [false, true] {
        let mut pair = two_paths(keyed, &wire(GBIT));
        let cut = FramePlan { cuts: alloc::vec![(at(200), at(3000))], ..wire(GBIT) };
        pair.links[1].iter_mut().for_each(|link| link.replan(cut.clone()));
        let got = busy(&mut pair, &[(50, 200), (220, 1000), (3200, 3400)], 3400);
        let share = |bytes: u64, ms: u64| bytes * 100_000 / (GBIT * ms);
        let shares = [share(got[0], 150), share(got[1], 780), share(got[2], 200)];
        assert!(shares[0] >= 185 && shares[1] >= 95 && shares[2] >= 185, "keyed {keyed}: {shares:?}");
        pair.run_until_done(Duration::from_secs(1));
    }
}

#[test]
fn a_path_that_is_removed_is_gone_at_both_ends_and_loses_nothing() {
    let mut pair = two_paths(true, &wire(GBIT));
    busy(&mut pair, &[], 50);
    pair.sides[0].connection.remove_path(at(50), 0);
    pair.sides[0].connection.remove_path(at(50), 1);
    busy(&mut pair, &[], 100);
    for side in &pair.sides {
        assert_eq!(
            side.connection.paths().map(|path| path.id).collect::<Vec<_>>(),
            [1],
            "the last one stays"
        );
    }
    pair.run_until_done(Duration::from_secs(1));
}

#[test]
fn a_station_that_does_not_know_the_token_adds_no_path() {
    for (token, paths) in [([6; 16], 2), ([5; 16], 3)] {
        let mut pair = two_paths(false, &wire(GBIT));
        let mut stranger = Pair::new(&Config { token, ports: 3, ..Config::lan() });
        stranger.seen = Some(Vec::new());
        for port in [1, 2] {
            let address = PathAddress { port: EtherPort(port), mac: mac(1, port) };
            stranger.sides[0].connection.add_path(at(0), address, &state(0, port, 9000));
        }
        stranger.run_for(Duration::from_millis(1));
        for (side, port, frame) in stranger.seen.take().unwrap() {
            if side == 0 && port == 2 {
                pair.arrive(1, 1, &frame);
            }
        }
        assert_eq!(pair.sides[1].connection.paths().count(), paths);
        assert_eq!(pair.sides[1].connection.stats().drops.foreign > 0, paths == 2);
    }
}

#[test]
fn keys_change_under_way_and_frames_out_of_order_are_opened_all_the_same() {
    let plan = FramePlan {
        loss: Probability::one_in(30),
        reorder: Probability::one_in(5),
        duplicate: Probability::one_in(20),
        ..wire(2_500_000)
    };
    for seed in 0..3 {
        let plans = [plan.clone(), plan.clone()];
        let mut pair = Pair::new(&Config { keyed: true, seed, plans, ..Config::lan() });
        let mut changes = [0_u64; 2];
        pair.offer(300, 100_000, 4);
        for _ in 0..80 {
            pair.run_for(Duration::from_millis(80));
            for (side, changes) in pair.sides.iter_mut().zip(&mut changes) {
                *changes += u64::from(side.connection.update_keys(pair.now));
            }
        }
        pair.run_until_done(Duration::from_secs(60));
        for (side, changes) in pair.sides.iter().zip(changes) {
            let stats = side.connection.stats();
            assert!(changes >= 3 && stats.key_updates == changes, "seed {seed}: {stats:?}");
            assert_eq!(stats.drops.damaged, 0, "seed {seed}: {stats:?}");
        }
    }
}

#[test]
fn a_recorded_session_played_back_has_no_effect() {
    for keyed in [false, true] {
        let mut pair = Pair::new(&Config { keyed, ..Config::lan() });
        pair.seen = Some(Vec::new());
        pair.offer(20, 50_000, 4);
        pair.run_until_done(Duration::from_secs(1));
        pair.run_for(Duration::from_millis(10));
        let seen = pair.seen.take().unwrap();
        let before = pair.sides.each_ref().map(|side| side.connection.paths().next().unwrap().stats);
        let (frames, repeated) = (pair.frames, pair.sides.each_ref().map(|side| side.repeated_bytes));
        for (side, port, frame) in &seen {
            pair.arrive(1 - side, *port, frame);
            // And the frame mirrored to its sender.
            let mut mirrored = frame.clone();
            mirrored[6..12].copy_from_slice(&mac(1 - side, *port).0);
            pair.arrive(*side, *port, &mirrored);
        }
        pair.run_for(Duration::from_millis(100));
        assert_eq!(pair.frames, frames, "nothing is answered");
        let after = pair.sides.each_ref().map(|side| side.connection.paths().next().unwrap().stats);
        assert_eq!((before, repeated), (after, pair.sides.each_ref().map(|side| side.repeated_bytes)));
        let drops = pair.sides.each_ref().map(|side| side.connection.stats().drops);
        assert_eq!(drops[0].replayed + drops[1].replayed, seen.len() as u64, "{drops:?}");
    }
}

#[test]
fn under_keys_no_change_to_any_bit_of_a_frame_has_an_effect() {
    let mut pair = Pair::new(&Config { keyed: true, ..Config::lan() });
    pair.seen = Some(Vec::new());
    let cut = FramePlan { cuts: alloc::vec![(at(0), at(1_000_000))], ..wire(TEN_GBIT) };
    pair.links[0].iter_mut().for_each(|link| link.replan(cut.clone()));
    for len in [0, 10, 700] {
        pair.give(0, len);
        pair.give(1, len);
    }
    pair.sides.iter_mut().for_each(|side| side.depth = 3);
    pair.run_for(Duration::from_millis(2));
    let seen = pair.seen.take().unwrap();
    let before = pair.sides.each_ref().map(|side| side.connection.paths().next().unwrap().stats);
    let protected = |frame: &[u8]| frame[14 + 4] & 0x80 != 0;
    let mut tried = 0_u64;
    for (side, port, frame) in seen.iter().filter(|(_, _, frame)| protected(frame)) {
        let (_, len) = Header::parse(&frame[14..]).unwrap();
        for bit in 14 * 8..(14 + len) * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            pair.arrive(1 - side, *port, &changed);
            tried += 1;
        }
    }
    let after = pair.sides.each_ref().map(|side| side.connection.paths().next().unwrap().stats);
    assert!(tried > 2000 && before == after, "{tried}: {before:?} {after:?}");
    let damaged = pair.sides.each_ref().map(|side| side.connection.stats().drops.damaged);
    assert!(damaged[0] + damaged[1] > tried / 2, "{damaged:?} of {tried}");
}

#[test]
fn shaped_wires_are_full_and_queues_stay_short() {
    for (bytes_per_s, mtu, queue_ms) in
        [(GBIT, 9000, 2), (GBIT, 1500, 2), (GBIT / 10, 9000, 12), (GBIT / 10, 1500, 3)]
    {
        // As deep as the queues of switches.
        let plan = FramePlan { queue_len_max: 1 << 20, ..wire(bytes_per_s) };
        let mut pair = Pair::new(&Config { mtu, plans: [plan.clone(), plan], ..Config::lan() });
        let got = busy(&mut pair, &[(100, 300)], 300);
        let bound = bytes_per_s * (mtu as u64 - 32) / (mtu as u64 + 38) / 5;
        let stats = pair.sides[1].connection.paths().next().unwrap().stats;
        assert!(got[0] * 1000 >= bound * 990, "{} permille: {stats:?}", got[0] * 1000 / bound);
        assert!(stats.round_trip <= Duration::from_millis(queue_ms), "{bytes_per_s} {mtu}: {stats:?}");
    }
}

#[test]
fn a_process_that_looks_seldom_is_no_queue_and_the_wire_is_full_all_the_same() {
    // A frame and its acknowledgement wait for 2 ms together, on average: a queue may not delay them that
    // long.
    let looks_every = Duration::from_millis(2);
    let mut pair = Pair::new(&Config { looks_every, ..both(wire(GBIT)) });
    for _ in 0..300 {
        pair.give(1, 128 << 10);
    }
    pair.sides[1].depth = 8;
    pair.run_for(Duration::from_millis(100));
    let before = pair.sides[0].arrived_bytes;
    pair.run_for(Duration::from_millis(100));
    let got = pair.sides[0].arrived_bytes - before;
    let stats = pair.sides[1].connection.paths().next().unwrap().stats;
    assert!(got * 100 >= GBIT / 10 * 97, "{got} {stats:?}");
    // The round trip of an acknowledgement includes the wait for that process.
    assert!(stats.round_trip >= looks_every && stats.frames_lost == 0, "{stats:?}");
}

#[test]
fn a_queue_too_short_to_be_seen_as_delay_is_not_overrun_for_long() {
    for queue_len_max in [32 << 10, 64 << 10] {
        let plan = FramePlan { queue_len_max, ..wire(GBIT) };
        let mut pair = Pair::new(&both(plan));
        let got = busy(&mut pair, &[(100, 300)], 300);
        let stats = pair.sides[1].connection.paths().next().unwrap().stats;
        assert!(got[0] * 100 >= GBIT / 5 * 95, "{got:?} {stats:?}");
        assert!(stats.frames_lost * 5 <= stats.frames_sent, "{stats:?}");
    }
}

#[test]
fn a_stream_is_acknowledged_every_sixteenth_frame_and_an_exchange_by_its_answer() {
    let mut pair = Pair::new(&both(wire(TEN_GBIT)));
    busy(&mut pair, &[], 20);
    let [sender, receiver] = [1, 0].map(|side| pair.sides[side].connection.paths().next().unwrap().stats);
    assert!(receiver.acks_sent * 12 < sender.frames_sent, "{receiver:?} {sender:?}");
}

#[test]
fn leave_to_begin_exchanges_reaches_the_peer_whatever_is_lost_and_costs_little() {
    for (keyed, limits) in [(false, [600, 600]), (true, [500, 700]), (true, [0, 700]), (true, [700, 0])] {
        for seed in 0..10 {
            let plan = FramePlan { loss: Probability::one_in(3), ..wire(GBIT) };
            let mut pair = Pair::new(&Config { keyed, seed, ..both(plan) });
            pair.sides[1].connection.set_xid_limits(limits);
            pair.run_for(Duration::from_secs(1));
            let want = if keyed { limits } else { [limits[0], 0] };
            assert_eq!(pair.sides[0].connection.peer_xid_limits(), want, "seed {seed}");
            pair.sides[1].connection.set_xid_limits([limits[0].saturating_sub(400), limits[1] + 600]);
            pair.run_for(Duration::from_secs(1));
            assert!(pair.frames < 100, "seed {seed}: {} frames", pair.frames);
            assert_eq!(pair.sides[0].connection.peer_xid_limits()[0], want[0], "a limit never goes back");
        }
    }
}

/// Takes down both ports of both sides, or cuts both wires, and restores one of them.
fn all_but_one_stay_away(keyed: bool, back: u32, cut: bool) -> Pair {
    let mut pair = two_paths(keyed, &wire(GBIT));
    busy(&mut pair, &[], 50);
    if cut {
        for (port, links) in (0..).zip(&mut pair.links) {
            let end = if port == back { at(1050) } else { at(1_000_000) };
            let plan = FramePlan { cuts: alloc::vec![(at(50), end)], ..wire(GBIT) };
            links.iter_mut().for_each(|link| link.replan(plan.clone()));
        }
    } else {
        for port in [0, 1] {
            pair.sides.iter_mut().for_each(|side| side.connection.port_down(at(50), EtherPort(port)));
        }
    }
    pair.run_for(Duration::from_secs(1));
    for (index, side) in pair.sides.iter_mut().enumerate().filter(|_| !cut) {
        side.connection.port_up(pair.now, EtherPort(back), &state(index, back, 9000));
    }
    pair
}

#[test]
fn what_was_under_way_when_all_paths_were_lost_goes_out_on_the_first_that_is_back() {
    for keyed in [false, true] {
        for (back, cut) in [(0, false), (1, false), (0, true), (1, true)] {
            let mut pair = all_but_one_stay_away(keyed, back, cut);
            let end = pair.now.after(Duration::from_millis(500));
            pair.run_until(end, |pair| pair.sides.iter().all(|side| side.connection.stats().messages == 0));
            let left = pair.sides.each_ref().map(|side| side.connection.stats().messages);
            assert_eq!(left, [0, 0], "keyed {keyed}, {back} is back, cut {cut}: {:?}", pair.sides);
        }
    }
}

/// Sends the target a frame without protection, as an attacker can who sees the wire and can change its
/// address.
pub(super) fn forge(pair: &mut Pair, cmd: Cmd, pn: u64, payload: &[u8]) {
    let header = Header {
        tag: 0,
        last: true,
        fragment: 0,
        protected: false,
        cmd,
        flags: Flags::ELICITS,
        len: u16::try_from(payload.len()).unwrap(),
        sid: 0x22,
        pn,
        xid: 1,
        off: 0,
    };
    let mut frame = in_the_clear(&header, payload);
    let (now, target) = (pair.now, &mut pair.sides[1].connection);
    let source = PathAddress { port: EtherPort(0), mac: mac(0, 0) };
    target.frame_received(now, now, source, header, &mut frame, &mut |_, _| {}).unwrap();
}

#[test]
fn under_keys_what_anybody_can_say_is_no_sign_of_life() {
    for (keyed, lost) in [(true, true), (false, false)] {
        let cut = FramePlan { cuts: alloc::vec![(at(0), at(1_000_000))], ..wire(GBIT) };
        let mut pair = Pair::new(&Config { keyed, ..both(cut) });
        for pn in 1..40 {
            pair.run_for(Duration::from_secs(1));
            if pn <= 29 || !lost {
                forge(&mut pair, Cmd::Request, pn, &[0; 40]);
            }
        }
        let was_lost = pair.sides[1].events.iter().any(|(_, event)| *event == ConnectionEvent::Lost);
        assert_eq!(was_lost, lost, "keyed {keyed}: {:?}", pair.sides[1]);
    }
}

#[test]
fn a_peer_that_acknowledges_nothing_runs_out_of_answers_and_keeps_nobody_busy() {
    let cut = FramePlan { cuts: alloc::vec![(at(0), at(1_000_000))], ..wire(GBIT) };
    let mut pair = Pair::new(&both(cut));
    pair.give(1, 100);
    pair.run_for(Duration::from_millis(1));
    let mut ping = Vec::new();
    Ask::Ping.encode(&mut ping);
    let (mut batch, mut answers, mut turns) = (FrameBatch::new(), 0, 0);
    for pn in 1..20_000 {
        forge(&mut pair, Cmd::Ask, pn, &ping);
        let target = &mut pair.sides[1].connection;
        while let Some(port) = target.poll_port() {
            target.transmit(pair.now, port, &mut batch);
            answers += batch.len();
            turns += 1;
            assert!(turns < 50_000, "it is kept busy with nothing, after {answers} answers");
            batch.clear(&base::buffer::Pool::new(0));
        }
    }
    assert!((16_000..17_000).contains(&answers), "{answers}");
}

#[test]
fn frames_that_were_lost_for_want_of_room_are_heard_of_once_whatever_overtakes_what() {
    let mut pair = Pair::new(&both(wire(GBIT)));
    let window = |pair: &Pair| pair.sides[1].connection.paths().next().unwrap().stats.window;
    let (mut before, mut pn) = (window(&pair), 0);
    for (overruns, shrinks) in [
        (u32::MAX - 1, false),
        (u32::MAX, true),
        (u32::MAX - 1, false),
        (u32::MAX, false),
        (3, true),
        (u32::MAX, false),
        (3, false),
        (4, true),
    ] {
        let mut payload = Vec::new();
        let ack = Ack {
            sealed: false,
            largest: 0,
            delay_us: 0,
            first: 0,
            pn_limit: 64,
            xid_limit: 0,
            overruns,
            ranges: Default::default(),
        };
        ack.encode(core::iter::empty(), &mut payload);
        pn += 1;
        forge(&mut pair, Cmd::Ack, pn, &payload);
        let after = window(&pair);
        assert_eq!(after < before, shrinks, "at {overruns}: {before}, then {after}");
        before = after;
    }
}

#[test]
fn a_timer_that_is_late_is_not_asked_for_again_at_the_same_time() {
    let plan = FramePlan { frame_len_max: alloc::vec![(at(0), 1538)], ..wire(GBIT) };
    let mut pair = Pair::new(&both(plan));
    let retry_at = |pair: &Pair| pair.sides[0].connection.paths[0].pmtu.retry_at();
    // The pauses between path MTU searches grow. The loop ends when a pause is long enough to let the session
    // fall silent.
    let mut until = at(0);
    for _ in 0..1000 {
        pair.give(0, 1000);
        pair.run_for(Duration::from_millis(10));
        if let Some(next) = retry_at(&pair).filter(|next| next.since(pair.now) > Duration::from_secs(2)) {
            until = next;
            break;
        }
    }
    let last = Instant(until.0 - 999_000_000);
    assert!(last > pair.now, "{until:?}");
    pair.run_until(last, |_| false);
    pair.give(0, 1000);
    pair.run_until_done(Duration::from_millis(10));
    let connection = &mut pair.sides[0].connection;
    let late = until.after(Duration::from_millis(10));
    connection.handle_timeout(late);
    while connection.poll_port().is_some() {}
    assert!(connection.poll_timeout().is_none_or(|next| next > late), "{:?}", connection.poll_timeout());
}

#[test]
fn a_path_that_nobody_answers_on_holds_its_place_for_as_long_as_a_session_and_no_longer() {
    let mut pair = two_paths(false, &wire(GBIT));
    let mut copied = Pair::new(&Config { ports: 3, ..Config::lan() });
    copied.seen = Some(Vec::new());
    for port in [1, 2] {
        let address = PathAddress { port: EtherPort(port), mac: mac(1, port) };
        copied.sides[0].connection.add_path(at(0), address, &state(0, port, 9000));
    }
    copied.run_for(Duration::from_millis(1));
    for (side, port, frame) in copied.seen.take().unwrap() {
        if side == 0 && port == 2 {
            pair.arrive(1, 1, &frame);
        }
    }
    assert_eq!(pair.sides[1].connection.paths().count(), 3);
    pair.run_for(Duration::from_secs(29));
    assert_eq!(pair.sides[1].connection.paths().count(), 3);
    pair.run_for(Duration::from_secs(2));
    assert_eq!(pair.sides[1].connection.paths().map(|path| path.id).collect::<Vec<_>>(), [0, 1]);
    busy(&mut pair, &[], 31_050);
    pair.run_until_done(Duration::from_secs(1));
}

#[test]
fn a_port_that_changes_its_address_again_and_again_adds_a_path_for_the_last_of_them() {
    let mut pair = Pair::new(&both(wire(GBIT)));
    pair.offer(4, 1000, 1);
    pair.run_until_done(Duration::from_secs(1));
    for last in 1..=20 {
        let moved = PortState { mac: mac(0, last), ..state(0, 0, 9000) };
        pair.sides[0].connection.port_up(pair.now, EtherPort(0), &moved);
        assert_eq!(pair.sides[0].connection.paths().count(), 2);
    }
}

#[test]
fn who_used_up_its_credit_with_acknowledgements_alone_and_heard_of_no_more_asks_for_it() {
    // At this MTU there are no longer frames to probe for, so the initiator has nothing under way.
    let mut pair = Pair::new(&Config { share: 64, mtu: 1500, ..Config::lan() });
    // The initiator receives the target's frames, which use up the target's credit, but no acknowledgement of
    // them reaches the target.
    pair.drops = |side, header| side == 0 && (header.cmd == Cmd::Ack || header.flags.has(Flags::ACKS));
    for _ in 0..100 {
        pair.give(0, 100);
        pair.run_until_done(Duration::from_secs(1));
    }
    pair.drops = |_, _| false;
    pair.give(1, 100);
    pair.run_until_done(Duration::from_millis(10));
}

//= hyperscsi#section-9.1
//= type=test
//# An acknowledgement does not go in front of an
//# Ask MTU
#[test]
fn no_acknowledgement_stands_in_front_of_what_may_be_too_long() {
    let mut pair = Pair::new(&both(FramePlan { loss: Probability::one_in(15), ..wire(GBIT) }));
    pair.seen = Some(Vec::new());
    pair.offer(100, 10_000, 4);
    pair.run_until_done(Duration::from_secs(10));
    let (mut alone, mut beside) = (0, 0);
    for (_, _, frame) in pair.seen.take().unwrap() {
        let payload = &frame[ETHERNET_HEADER_LEN..];
        let (header, _) = Header::parse(payload).unwrap();
        let block = &payload[HEADER_LEN..];
        match Ask::parse(block) {
            Ok(Ask::Mtu(_)) if header.cmd == Cmd::Ask => alone += 1,
            _ => {}
        }
        if header.flags.has(Flags::ACKS) {
            beside += 1;
            let (_, behind) = Ack::parse(block).unwrap();
            assert!(header.cmd != Cmd::Ask || !matches!(Ask::parse(behind), Ok(Ask::Mtu(_))), "{header:?}");
        }
    }
    assert!(alone > 2 && beside > 20, "{alone} {beside}");
}

#[test]
fn nothing_is_sent_into_a_path_that_does_not_answer_while_another_does() {
    let mut pair = two_paths(true, &wire(GBIT));
    let cut = FramePlan { cuts: alloc::vec![(at(0), at(1_000_000))], ..wire(GBIT) };
    pair.links[1].iter_mut().for_each(|link| link.replan(cut.clone()));
    busy(&mut pair, &[], 100);
    let before = pair.sides[1].connection.paths().nth(1).unwrap().stats;
    busy(&mut pair, &[], 1100);
    let after = pair.sides[1].connection.paths().nth(1).unwrap().stats;
    assert!(after.frames_sent - before.frames_sent < 40, "{before:?} {after:?}");
    pair.run_until_done(Duration::from_millis(100));
}

#[test]
fn once_everything_arrived_no_path_is_probed_for_ever() {
    for seed in 0..100 {
        let plan = FramePlan { loss: Probability::one_in(15), ..wire(TEN_GBIT) };
        let plans = [plan.clone(), plan];
        let mut pair = Pair::new(&Config { keyed: true, seed, ports: 2, plans, ..Config::lan() });
        let address = PathAddress { port: EtherPort(1), mac: mac(1, 1) };
        pair.sides[0].connection.add_path(at(0), address, &state(0, 1, 9000));
        pair.offer(150, 10_000, 20);
        pair.run_until_done(Duration::from_secs(10));
        let before = pair.frames;
        pair.run_for(Duration::from_secs(1));
        assert!(pair.frames - before < 60, "seed {seed}: {} frames, {:?}", pair.frames - before, pair.sides);
    }
}

/// Returns what the target sends to an initiator that fell silent, when the target has a message of `len`
/// bytes for it: for each timeout, the payload lengths of the target's frames.
fn said_into_silence(keyed: bool, len: usize) -> Vec<Vec<usize>> {
    let mut pair = Pair::new(&Config { keyed, ..both(wire(GBIT)) });
    pair.give(1, 128 << 10);
    pair.run_until_done(Duration::from_secs(1));
    assert_eq!(pair.sides[1].connection.paths().next().unwrap().stats.mtu, 9000);
    pair.run_for(Duration::from_millis(500));
    pair.drops = |_, _| true;
    pair.give(1, len);
    let (mut groups, mut last) = (Vec::new(), None);
    for _ in 0..4000 {
        pair.seen = Some(Vec::new());
        pair.run_for(Duration::from_micros(100));
        let seen = pair.seen.take().unwrap().into_iter().filter(|(side, ..)| *side == 1);
        let lens: Vec<usize> = seen.map(|(.., frame)| frame.len() - ETHERNET_HEADER_LEN - 24).collect();
        if lens.is_empty() {
            continue;
        }
        if last.is_none_or(|last| pair.now.since(last) > Duration::from_micros(300)) {
            groups.push(Vec::new());
        }
        groups.last_mut().unwrap().extend(lens);
        last = Some(pair.now);
    }
    groups
}

#[test]
fn a_path_that_stays_silent_gets_short_probes_and_nothing_else() {
    for keyed in [false, true] {
        let groups = said_into_silence(keyed, 32 << 10);
        assert!(groups.len() >= 8 && groups[0].len() == 4, "{groups:?}");
        assert!(groups[1..3].iter().all(|probes| probes.len() == 2 && probes[0] > 8900), "{groups:?}");
        let short = |probes: &Vec<usize>| probes.len() == 2 && probes.iter().all(|len| *len <= 1500);
        assert!(groups[3..].iter().all(short), "{groups:?}");
    }
}

#[test]
fn a_message_that_fills_one_probe_goes_without_a_ping_beside_it() {
    for keyed in [false, true] {
        let groups = said_into_silence(keyed, 100);
        assert!(groups.len() >= 8 && groups.iter().all(|probes| probes.len() == 1), "{groups:?}");
    }
}
