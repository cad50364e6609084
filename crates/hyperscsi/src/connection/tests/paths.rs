//! Tests of paths that are down for long, of paths that are added and removed throughout a session, and of
//! what the peer learns of them.

use alloc::vec::Vec;

use base::ether::{ETHERNET_HEADER_LEN, EtherPort, Mac};
use base::time::Duration;
use netem::frame::FramePlan;

use super::faults::{GBIT, at, busy, two_paths, two_paths_of};
use super::pair::{Config, Pair, Side, state, wire};
use crate::connection::{PATHS_MAX, PathAddress};
use crate::frame::{Cmd, Flags, HEADER_LEN, Header};
use crate::path::pn_space::{FrameContent, Sent, SentState};
use crate::pdu::ack::Ack;
use crate::pdu::ask::Ask;

fn up(side: &Side) -> usize {
    side.connection.paths().filter(|path| path.is_up).count()
}

/// Returns an address that no port had before.
fn new_mac(number: u32) -> Mac {
    let [_, a, b, c] = number.to_be_bytes();
    Mac([2, 7, 0, a, b, c])
}

#[test]
fn a_path_that_was_away_for_hours_is_used_again_when_it_is_back() {
    // Cuts in both directions, towards the target, and back: until packet numbers are far beyond the credit,
    // and until no more frames can be recorded as sent.
    let all = [
        ([true, true], false, 1),
        ([true, true], true, 3),
        ([true, false], true, 3),
        ([false, true], false, 1),
    ];
    for (cut, keyed, hours) in all {
        let back = hours * 3_600_000;
        let mut pair = two_paths(keyed, &wire(GBIT));
        let away = FramePlan { cuts: alloc::vec![(at(50), at(back))], ..wire(GBIT) };
        for (link, cut) in pair.links[1].iter_mut().zip(cut) {
            link.replan(if cut { away.clone() } else { wire(GBIT) });
        }
        busy(&mut pair, &[], 60);
        pair.run_until_done(Duration::from_secs(1));
        pair.run_until(at(back + 3000), |_| false);
        assert!(pair.sides.iter().all(|side| up(side) == 2), "keyed {keyed}, cut {cut:?}: {:?}", pair.sides);
        busy(&mut pair, &[], back + 3050);
        pair.run_until_done(Duration::from_secs(1));
    }
}

#[test]
fn a_path_that_is_tried_for_hours_is_used_when_it_answers_at_last() {
    const HOURS: u64 = 2 * 3_600_000;
    for keyed in [false, true] {
        for cut in [[true, true], [true, false], [false, true]] {
            let mut pair = Pair::new(&Config { keyed, ports: 2, ..Config::lan() });
            let away = FramePlan { cuts: alloc::vec![(at(0), at(HOURS))], ..wire(GBIT) };
            for (link, cut) in pair.links[1].iter_mut().zip(cut) {
                link.replan(if cut { away.clone() } else { wire(GBIT) });
            }
            let address = PathAddress { port: EtherPort(1), mac: pair.mac(1, 1) };
            pair.sides[0].connection.add_path(at(0), address, &state(0, 1, 9000));
            // The target drops the path from time to time, and learns of it again later.
            pair.run_until(at(HOURS + 65_000), |_| false);
            assert!(
                pair.sides.iter().all(|side| up(side) == 2),
                "keyed {keyed}, cut {cut:?}: {:?}",
                pair.sides
            );
        }
    }
}

/// The initiator's acknowledgements have used up the credit of the space without keys on both paths, and the
/// target's announcement of more was lost. No frame of that space is under way.
#[test]
fn commands_without_protection_go_on_when_the_last_announcement_of_credit_was_lost() {
    let mut pair = two_paths(true, &wire(GBIT));
    for path in &mut pair.sides[0].connection.paths {
        let outgoing = &mut path.spaces[0].outgoing;
        while outgoing.credit() > 0 {
            let acknowledgement = Sent::new(pair.now, 0, SentState::Settled, FrameContent::Nothing);
            outgoing.push(acknowledgement, &[]);
        }
    }
    // A third of them without protection. The others keep the paths good.
    for _ in 0..30 {
        pair.give(0, 1000);
    }
    pair.run_until_done(Duration::from_secs(5));
}

#[test]
fn ports_may_be_replaced_for_as_long_as_a_session_lives() {
    // The initiator's ports, and the target's.
    for side in [0, 1] {
        for keyed in [false, true] {
            let mut pair = two_paths_of(&Config { keyed, lost_after_ms: 1000, ..Config::lan() });
            for number in 0..300 {
                let port = number % 2;
                pair.replace(side, port, new_mac(number));
                if side == 1 {
                    // The initiator has discovered the new address of the port.
                    let address = PathAddress { port: EtherPort(port), mac: pair.mac(1, port) };
                    let own = &mut pair.sides[0].connection;
                    assert!(
                        own.add_path(pair.now, address, &state(0, port, 9000)).is_some(),
                        "number {number}"
                    );
                }
                pair.offer(1, 20_000, 1);
                pair.run_until_done(Duration::from_secs(10));
                pair.run_for(Duration::from_millis(1100));
                let usable = pair.sides.each_ref().map(up);
                assert_eq!(usable, [2, 2], "keyed {keyed}, side {side}, number {number}: {:?}", pair.sides);
            }
        }
    }
}

#[test]
fn paths_that_were_given_up_hold_no_place_against_one_that_is_there() {
    let mut pair = two_paths(false, &wire(GBIT));
    for number in 0..3 * u32::try_from(PATHS_MAX).unwrap() {
        let address = PathAddress { port: EtherPort(1), mac: new_mac(number) };
        let added = pair.sides[0].connection.add_path(pair.now, address, &state(0, 1, 9000));
        // No station has this address, which is known only after a while.
        assert!(added.is_some(), "{number}");
        pair.run_for(Duration::from_secs(31));
    }
    assert_eq!(pair.sides[0].connection.paths().count(), PATHS_MAX);
    assert_eq!(pair.sides.each_ref().map(up), [2, 2], "those that are used stay");
}

#[test]
fn the_other_end_hears_of_every_path_that_was_left_whatever_is_lost() {
    for keyed in [false, true] {
        let mut pair = two_paths(keyed, &wire(GBIT));
        for number in 2..6 {
            // More paths between the same ports, as two switches provide them.
            let address = PathAddress { port: EtherPort(1), mac: new_mac(number) };
            pair.replaced.insert((1, 1), address.mac);
            pair.sides[0].connection.add_path(pair.now, address, &state(0, 1, 9000));
            pair.run_for(Duration::from_millis(10));
            // To the target these are successive paths of the same pair of ports.
        }
        let ids: Vec<u8> =
            pair.sides[0].connection.paths().map(|path| path.id).filter(|id| *id > 0).collect();
        assert!(ids.len() > 3, "{ids:?}");
        // The first messages about the removed paths are all lost.
        pair.drops = |side, header| side == 0 && header.cmd == Cmd::Ask;
        let now = pair.now;
        for id in &ids {
            pair.sides[0].connection.remove_path(now, *id);
        }
        pair.drain();
        pair.drops = |_, _| false;
        pair.run_for(Duration::from_secs(1));
        for side in &pair.sides {
            let left: Vec<u8> = side.connection.paths().map(|path| path.id).collect();
            assert_eq!(left, [0], "keyed {keyed}");
        }
    }
}

#[test]
fn who_cannot_say_more_for_now_keeps_nobody_busy_and_says_it_later() {
    let mut pair = Pair::new(&Config::lan());
    // The target receives no acknowledgement of its many frames: its record of sent frames fills up, in the
    // end with acknowledgements.
    pair.drops = |side, header| side == 0 && (header.cmd == Cmd::Ack || header.flags.has(Flags::ACKS));
    pair.give(1, 100);
    pair.run_for(Duration::from_millis(1));
    let mut ping = Vec::new();
    Ask::Ping.encode(&mut ping);
    for pn in 1..30_000 {
        // With gaps in the packet numbers, so that acknowledgements are sent twice.
        super::faults::forge(&mut pair, Cmd::Ask, 3 * pn, &ping);
        let target = &mut pair.sides[1].connection;
        let mut turns = 0;
        while let Some(port) = target.poll_port() {
            target.transmit(pair.now, port, &mut pair.batch);
            pair.batch.clear(&base::buffer::Pool::new(0));
            turns += 1;
            assert!(turns < 10, "it is kept busy with nothing at {pn}");
        }
    }
    let path = &pair.sides[1].connection.paths[0];
    assert!(!path.spaces[0].outgoing.has_room(), "else this shows nothing");
    // The MTU of the target's port changes to 2000, so the target must announce it and probe for longer
    // frames.
    let narrow = state(1, 0, 2000);
    pair.sides[1].connection.port_up(pair.now, EtherPort(0), &narrow);
    assert_eq!(pair.sides[1].connection.poll_port(), None);
    let mut payload = Vec::new();
    let last = pair.sides[1].connection.paths[0].spaces[0].outgoing.next() - 1;
    let ack = Ack {
        sealed: false,
        largest: last,
        delay_us: 0,
        first: 1,
        pn_limit: last + 64,
        xid_limit: 0,
        overruns: 0,
        ranges: Default::default(),
    };
    ack.encode(core::iter::empty(), &mut payload);
    super::faults::forge(&mut pair, Cmd::Ack, 90_001, &payload);
    pair.seen = Some(Vec::new());
    pair.drain();
    let asks = pair.seen.take().unwrap().into_iter().filter_map(|(_, _, frame)| {
        let payload = &frame[ETHERNET_HEADER_LEN..];
        let (header, _) = Header::parse(payload).ok()?;
        let block = &payload[HEADER_LEN..];
        let block = if header.flags.has(Flags::ACKS) { Ack::parse(block).ok()?.1 } else { block };
        Ask::parse(block).ok().filter(|_| header.cmd == Cmd::Ask)
    });
    let asks: Vec<Ask> = asks.collect();
    assert!(asks.contains(&Ask::Receives(2000)) && asks.contains(&Ask::Mtu(2000)), "{asks:?}");
}

#[test]
fn nothing_but_steps_goes_out_on_a_path_whose_challenge_was_not_echoed() {
    for keyed in [false, true] {
        let mut pair = two_paths(keyed, &wire(GBIT));
        let begun = pair.now;
        // The initiator acknowledged the target's challenge, and is silent on this path from now on.
        let silence = FramePlan { cuts: alloc::vec![(begun, at(3_600_000))], ..wire(GBIT) };
        pair.links[1][0].replan(silence);
        pair.sides[1].connection.paths[1].challenge = 5;
        pair.sides[1].connection.port_up(begun, EtherPort(1), &state(1, 1, 4000));
        pair.seen = Some(Vec::new());
        pair.run_until(begun.after(Duration::from_secs(29)), |_| false);
        let asks = pair.seen.take().unwrap().into_iter().filter(|(side, port, _)| (*side, *port) == (1, 1));
        let asks: Vec<Cmd> = asks
            .map(|(_, _, frame)| Header::parse(&frame[ETHERNET_HEADER_LEN..]).unwrap().0.cmd)
            .filter(|cmd| *cmd != Cmd::Ack)
            .collect();
        assert_eq!(asks, [], "keyed {keyed}");
        // The challenge is echoed at last.
        let path = &mut pair.sides[1].connection.paths[1];
        path.challenge = 0;
        path.retry_at_once(pair.now);
        pair.links[1][0].replan(wire(GBIT));
        pair.run_for(Duration::from_secs(2));
        assert_eq!(pair.sides[0].connection.paths[1].stats().peer_mtu, 4000, "keyed {keyed}");
        assert_eq!(pair.sides.each_ref().map(up), [2, 2], "keyed {keyed}");
    }
}

#[test]
fn leave_to_begin_exchanges_does_not_go_with_the_path_that_carried_it() {
    for keyed in [false, true] {
        for side in [0, 1] {
            let mut pair = two_paths(keyed, &wire(GBIT));
            // No size of frames is left to be tried, so nothing else is said.
            pair.run_for(Duration::from_secs(1));
            let limits = [700, if keyed { 900 } else { 0 }];
            pair.drops = |side, _| side == 1;
            pair.sides[1].connection.set_xid_limits(limits);
            pair.drain();
            pair.drops = |_, _| false;
            let now = pair.now;
            let carried = pair.sides[1].connection.paths.iter().find(|path| path.is_waiting()).unwrap().id;
            pair.sides[side].connection.remove_path(now, carried);
            // Before the next ping.
            pair.run_for(Duration::from_millis(100));
            assert_eq!(pair.sides[0].connection.paths().count(), 1);
            assert_eq!(pair.sides[0].connection.peer_xid_limits(), limits, "keyed {keyed}, side {side}");
        }
    }
}
