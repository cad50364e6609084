//! Tests of frames with several parts: how many messages share a frame, and that sharing harms none of them.

use alloc::vec::Vec;

use base::ether::{ETHERNET_HEADER_LEN, EtherPort};
use base::rng::Rng;
use base::time::{Duration, Instant};
use netem::frame::FramePlan;
use netem::probability::Probability;

use super::pair::{Config, Pair, TEN_GBIT, in_the_clear, mac, state, wire};
use crate::connection::PathAddress;
use crate::frame::{Cmd, Flags, HEADER_LEN, Header};
use crate::pdu::ack::Ack;
use crate::pdu::parameters::Repair;
use crate::pdu::parts::{PARTS_MAX, Parts};
use security::Level;

/// Returns the number of parts of each frame of a side that carries parts and is not encrypted.
fn parts(pair: &mut Pair, side: usize) -> Vec<usize> {
    let frames = pair.seen.take().unwrap_or_default();
    let counts = frames.iter().filter(|(from, ..)| *from == side).filter_map(|(_, _, frame)| {
        let payload = &frame[ETHERNET_HEADER_LEN..];
        let (header, _) = Header::parse(payload).unwrap();
        let mut payload = &payload[HEADER_LEN..HEADER_LEN + usize::from(header.len)];
        if !header.cmd.has_parts() || header.flags.has(Flags::ENCRYPTED) {
            return None;
        }
        if header.flags.has(Flags::ACKS) {
            payload = Ack::parse(payload).unwrap().1;
        }
        Some(if header.flags.has(Flags::PARTS) { Parts::parse(payload).unwrap().count() } else { 1 })
    });
    let counts = counts.collect();
    pair.seen = Some(Vec::new());
    counts
}

fn begun(config: &Config) -> Pair {
    let mut pair = Pair::new(config);
    pair.give(0, 1);
    pair.give(1, 1);
    pair.run_until_done(Duration::from_secs(1));
    pair.run_for(Duration::from_millis(10));
    pair.seen = Some(Vec::new());
    pair
}

//= hyperscsi#section-4.11
//= type=test
//# A sender MUST NOT hold a part back because others may come
#[test]
fn what_waits_together_travels_together_and_what_comes_alone_goes_alone() {
    let mut pair = begun(&Config::lan());
    // Commands of up to 291 bytes; answers of 4 KiB.
    (0..32).for_each(|_| pair.give(0, 0));
    (0..32).for_each(|_| pair.give(1, 4096));
    pair.sides.iter_mut().for_each(|side| side.depth = 32);
    pair.run_until_done(Duration::from_secs(1));
    let frames = parts(&mut pair, 0);
    assert!(frames.len() <= 3 && frames.iter().sum::<usize>() == 32, "{frames:?}");
    pair.seen = Some(Vec::new());
    (0..32).for_each(|_| pair.give(1, 4096));
    pair.run_until_done(Duration::from_secs(1));
    assert_eq!(parts(&mut pair, 1), [2; 16]);
    for side in [0, 1] {
        pair.sides[side].depth = 1;
        (0..10).for_each(|_| pair.give(side, 500));
        pair.run_until_done(Duration::from_secs(1));
        assert_eq!(parts(&mut pair, side), [1; 10]);
    }
}

#[test]
fn a_frame_has_no_more_parts_than_it_may_and_a_long_message_has_frames_of_its_own() {
    let mut pair = begun(&Config { mtu: 65_535, ..Config::lan() });
    (0..150).for_each(|_| pair.give(0, 0));
    pair.sides[0].depth = 150;
    pair.run_until_done(Duration::from_secs(1));
    let frames = parts(&mut pair, 0);
    assert_eq!(frames.iter().sum::<usize>(), 150, "{frames:?}");
    assert!(frames.iter().all(|count| *count <= PARTS_MAX) && frames.contains(&PARTS_MAX), "{frames:?}");
    let mut pair = begun(&Config::lan());
    pair.sides[1].depth = 4;
    (0..4).for_each(|_| pair.give(1, 1 << 17));
    pair.run_until_done(Duration::from_secs(1));
    // 131072 bytes in frames of 8968.
    assert_eq!(parts(&mut pair, 1), [1; 4 * 15]);
}

/// Queues messages of the lengths that commands, answers and small transfers have.
fn give_short(pair: &mut Pair, dice: &mut Rng, count: usize) {
    for _ in 0..count {
        for side in 0..2 {
            let len = [0, 0, 20, 512, 4096, 10_000, 70_000][usize::try_from(dice.below(7)).unwrap()];
            pair.give(side, len);
        }
    }
}

#[test]
fn every_byte_of_every_part_arrives_at_its_place_under_every_fault() {
    for seed in 0..80 {
        let faulty = FramePlan {
            loss: Probability::one_in(15),
            duplicate: Probability::one_in(20),
            reorder: Probability::one_in(20),
            corrupt: Probability::one_in(50),
            ..wire(TEN_GBIT)
        };
        let repair = if seed % 3 == 0 { Repair::Window } else { Repair::Selective };
        let mtu = [1500, 4000, 9000, 65_535][usize::try_from(seed % 4).unwrap()];
        let ports = 1 + usize::try_from(seed / 4 % 2).unwrap();
        let plans = [faulty.clone(), faulty];
        let mut pair =
            Pair::new(&Config { keyed: seed % 2 == 1, seed, mtu, repair, ports, plans, ..Config::lan() });
        if ports > 1 {
            let address = PathAddress { port: EtherPort(1), mac: mac(1, 1) };
            pair.sides[0].connection.add_path(Instant(0), address, &state(0, 1, mtu));
        }
        let mut dice = Rng::from_seed(seed);
        give_short(&mut pair, &mut dice, 150);
        pair.sides.iter_mut().for_each(|side| side.depth = 1 + usize::try_from(dice.below(40)).unwrap());
        pair.run_until_done(Duration::from_secs(10));
        // Nothing is left to be retransmitted.
        let before = pair.frames;
        pair.run_for(Duration::from_secs(1));
        assert!(pair.frames - before < 40, "seed {seed}: {} frames", pair.frames - before);
    }
}

#[test]
fn under_loss_short_messages_cost_a_fraction_of_a_frame_each() {
    for repair in [Repair::Selective, Repair::Window] {
        let plan = FramePlan { loss: Probability::one_in(20), ..wire(TEN_GBIT) };
        let mut pair = begun(&Config { repair, plans: [plan.clone(), plan], ..Config::lan() });
        (0..3000).for_each(|_| pair.give(0, 0));
        pair.sides[0].depth = 32;
        let before = pair.frames;
        pair.run_until_done(Duration::from_secs(10));
        assert!(pair.frames - before < 1500, "{repair:?}: {} frames for 3000 messages", pair.frames - before);
    }
}

/// Delivers an unprotected frame of the initiator with this payload to the target; returns whether the frame
/// was accepted, and what was delivered.
fn deliver(pair: &mut Pair, pn: u64, flags: Flags, payload: &[u8]) -> (bool, Vec<(Header, Vec<u8>)>) {
    let header = Header {
        tag: 0,
        last: true,
        fragment: 0,
        protected: false,
        cmd: Cmd::Request,
        flags: flags.with(Flags::ELICITS),
        len: u16::try_from(payload.len()).unwrap(),
        sid: 0x22,
        pn,
        xid: 900,
        off: 0,
    };
    let mut frame = in_the_clear(&header, payload);
    let mut got = Vec::new();
    let connection = &mut pair.sides[1].connection;
    let source = PathAddress { port: EtherPort(0), mac: mac(0, 0) };
    let taken =
        connection.frame_received(pair.now, pair.now, source, header, &mut frame, &mut |header, payload| {
            got.push((*header, payload.to_vec()));
        });
    (taken.is_ok(), got)
}

#[test]
fn a_frame_is_taken_with_all_its_parts_or_with_none_and_counts_as_received_either_way() {
    let part = |len: u16| Header {
        tag: 1,
        last: true,
        fragment: 0,
        protected: false,
        cmd: Cmd::Request,
        flags: Flags::DATA,
        len,
        sid: 0,
        pn: 0,
        xid: 901,
        off: 512,
    };
    let mut block = Vec::new();
    crate::pdu::parts::encode([part(3), part(4)].into_iter(), &mut block);
    let right = [&block[..], b"first", b"abc", b"defg"].concat();
    let ack = |largest: u64| {
        let mut out = Vec::new();
        let (pn_limit, first) = (400, 1);
        let ack = Ack {
            sealed: false,
            largest,
            delay_us: 0,
            first,
            pn_limit,
            xid_limit: 0,
            overruns: 0,
            ranges: Default::default(),
        };
        ack.encode(core::iter::empty(), &mut out);
        out
    };
    for seed in 0..500 {
        let mut dice = Rng::from_seed(seed);
        let mut pair = Pair::new(&Config::lan());
        let (_, whole) = deliver(&mut pair, 1, Flags::PARTS, &right);
        assert_eq!(whole.len(), 3);
        assert!(whole.iter().all(|(header, _)| header.level() == Level::None && header.pn == 1));
        // The same frame with bytes of the block changed, behind an acknowledgement of a packet number that
        // was never sent.
        let mut wrong = right.clone();
        for _ in 0..=dice.below(2) {
            wrong[usize::try_from(dice.below(block.len() as u64)).unwrap()] ^=
                u8::try_from(1 + dice.below(255)).unwrap();
        }
        let before = pair.sides[1].connection.stats();
        let (taken, got) =
            deliver(&mut pair, 2, Flags::PARTS.with(Flags::ACKS), &[&ack(77), &wrong[..]].concat());
        assert!(!taken && got.is_empty(), "seed {seed}");
        let after = pair.sides[1].connection.stats();
        let drops = after.drops.malformed - before.drops.malformed + after.drops.false_acks;
        assert_eq!(
            (drops, after.paths.frames_received),
            (1, before.paths.frames_received + 1),
            "seed {seed}"
        );
        let (taken, got) = deliver(&mut pair, 3, Flags::PARTS, &wrong);
        assert_eq!(taken, got.len() > 1, "seed {seed}: {got:?}");
        let (again, got) = deliver(&mut pair, 3, Flags::PARTS, &right);
        assert!(!again && got.is_empty(), "seed {seed}: it came before");
    }
}
