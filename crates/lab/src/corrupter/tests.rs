use std::io::{Read, Write};

use netem::iscsi::Iscsi;
use netem::stream::Framing;

use super::fault::{Confinement, Damage, PduClass, Place, addressed};
use super::*;
use base::rng::Rng;

const SEED: u64 = 0x7269_736b;

/// A PDU with `data`, and with both digests if `digests`.
fn pdu(opcode: u8, data: &[u8], digests: bool) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    Rng::from_seed(SEED).fill(&mut bytes);
    bytes[0] = opcode;
    bytes[1] = 0x80;
    bytes[4] = 0;
    bytes[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
    if opcode == 0x01 {
        bytes[32..48].copy_from_slice(&[0x8a, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x38, 0, 0, 0, 8, 0, 0]);
    }
    if digests {
        let digest = iscsi::digest::Crc32c::of(&bytes);
        bytes.extend_from_slice(&digest);
    }
    bytes.extend_from_slice(data);
    if digests && !data.is_empty() {
        bytes.extend_from_slice(&iscsi::digest::Crc32c::of(data));
    }
    bytes
}

fn fault(class: PduClass, place: Place, damage: Damage, seed: u64) -> Fault {
    let confinement = Confinement { blocks: 0x1000..0x2000, capacity: 0x8000 };
    Fault { class, place, damage, skip: 0, seed, confinement, reseal: false }
}

fn layout(pdu: &[u8], digests: bool) -> PduLayout {
    Iscsi::logged_in(digests, digests).pdu_layout(StreamDirection::Forward, pdu).unwrap()
}

/// The sum of RFC 1071, by the definition: words are added, and carries are added again.
fn internet_sum(bytes: &[u8]) -> u32 {
    let mut sum = 0_u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(word[1]);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

fn noise(len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::from_seed(SEED + 1).fill(&mut data);
    data
}

#[test]
fn swapped_and_paired_words_leave_the_tcp_checksum_as_it_was() {
    let whole = pdu(0x25, &noise(4096), false);
    for damage in [Damage::SwapWords, Damage::PairedWords] {
        for place in [Place::Data, Place::Header] {
            for seed in 0..500 {
                let fault = fault(PduClass::DataIn, place, damage, seed);
                let (damaged, injection) = fault.inject(&whole, &layout(&whole, false)).unwrap();
                assert_ne!(damaged, whole);
                assert!(injection.bits() > 0);
                assert_eq!(internet_sum(&damaged), internet_sum(&whole), "{damage:?} with seed {seed}");
            }
        }
    }
    // A flipped bit changes the sum, so the test above can fail.
    let flipped = fault(PduClass::DataIn, Place::Data, Damage::FlipBit, 1);
    let (damaged, _) = flipped.inject(&whole, &layout(&whole, false)).unwrap();
    assert_ne!(internet_sum(&damaged), internet_sum(&whole));
}

#[test]
fn each_damage_does_what_it_says_and_the_injection_tells_it() {
    let whole = pdu(0x05, &noise(4096), true);
    let layout = layout(&whole, true);
    for seed in 0..500 {
        let of =
            |damage| fault(PduClass::DataOut, Place::Data, damage, seed).inject(&whole, &layout).unwrap();
        let (flipped, injection) = of(Damage::FlipBit);
        assert_eq!((injection.bits(), injection.before.len()), (1, 1));
        assert_eq!(flipped[injection.offset], injection.after[0]);
        assert_eq!(whole[injection.offset], injection.before[0]);
        assert!((2..=5).contains(&of(Damage::FlipBits).1.bits()));
        let (cut, injection) = of(Damage::Truncate);
        assert_eq!(cut.len(), whole.len());
        let end = layout.data.end;
        assert!(cut[injection.offset..end].iter().all(|byte| *byte == 0));
        for (damaged, at) in [(flipped, injection.offset), (cut, injection.offset)] {
            assert!(layout.data.contains(&at));
            assert_eq!(damaged[..52], whole[..52], "the header was touched");
            assert_eq!(damaged[end..], whole[end..], "the digest was touched");
        }
        let (twice, injection) = of(Damage::Duplicate);
        assert_eq!(twice, [whole.clone(), whole.clone()].concat());
        assert_eq!(injection.bits(), 0);
    }
}

#[test]
fn a_damaged_command_names_allowed_blocks_or_none() {
    let whole = pdu(0x01, &[], false);
    let layout = layout(&whole, false);
    assert_eq!(addressed(&whole), Some(0x1238..0x1240));
    let (mut misdirected, mut beyond) = (0, 0);
    for place in [Place::Lba, Place::Header] {
        for damage in [Damage::FlipBit, Damage::FlipBits, Damage::SwapWords, Damage::PairedWords] {
            for seed in 0..1000 {
                let fault = fault(PduClass::Command, place, damage, seed);
                let Some((damaged, injection)) = fault.inject(&whole, &layout) else { continue };
                assert_eq!((&damaged[8..16], damaged[32]), (&whole[8..16], whole[32]));
                let blocks = addressed(&damaged).unwrap();
                beyond += u64::from(blocks.end > 0x8000);
                assert!(blocks.end > 0x8000 || (blocks.start >= 0x1000 && blocks.end <= 0x2000));
                if let Some(named) = injection.misdirected {
                    assert_eq!(named, blocks);
                    misdirected += 1;
                }
            }
        }
    }
    assert!(misdirected > 100 && beyond > 100, "{misdirected}, {beyond}");
}

#[test]
fn a_resealed_pdu_has_right_digests_and_another_one_has_not() {
    let whole = pdu(0x25, &noise(512), true);
    let layout = layout(&whole, true);
    let is_right = |bytes: &[u8]| {
        iscsi::digest::Crc32c::of(&bytes[..48]) == bytes[48..52]
            && iscsi::digest::Crc32c::of(&bytes[52..564]) == bytes[564..]
    };
    assert!(is_right(&whole));
    for place in [Place::Header, Place::Data] {
        let plain = fault(PduClass::DataIn, place, Damage::FlipBit, SEED);
        let resealed = Fault { reseal: true, ..plain.clone() };
        assert!(!is_right(&plain.inject(&whole, &layout).unwrap().0));
        assert!(is_right(&resealed.inject(&whole, &layout).unwrap().0));
    }
}

#[test]
fn damage_that_changes_nothing_is_not_counted_as_an_injection() {
    let zeros = pdu(0x25, &[0; 512], false);
    let layout = layout(&zeros, false);
    for damage in [Damage::SwapWords, Damage::PairedWords, Damage::Truncate] {
        assert_eq!(fault(PduClass::DataIn, Place::Data, damage, 1).inject(&zeros, &layout), None);
    }
}

/// A Login Response that ends the login without digests.
fn login_response() -> Vec<u8> {
    let mut bytes = vec![0; 48];
    (bytes[0], bytes[1]) = (0x23, 0x87);
    bytes
}

#[test]
fn a_relay_hits_the_armed_pdu_once_and_sees_the_reaction() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let corrupter = Corrupter::start(listener.local_addr().unwrap()).unwrap();
    let mut initiator = TcpStream::connect(corrupter.address()).unwrap();
    let (mut target, _) = listener.accept().unwrap();
    let mut receive = |bytes: &[u8]| {
        target.write_all(bytes).unwrap();
        let mut came = vec![0; bytes.len()];
        initiator.read_exact(&mut came).unwrap();
        came
    };
    assert_eq!(receive(&login_response()), login_response());
    let mut data = pdu(0x25, &noise(2048), false);
    let mut armed = fault(PduClass::DataIn, Place::Data, Damage::FlipBit, SEED);
    armed.skip = 1;
    corrupter.arm(Some(armed));
    assert_eq!(receive(&data), data);
    data[39] += 1;
    let damaged = receive(&data);
    data[39] += 1;
    assert_eq!(receive(&data), data, "the fault is injected once");
    assert_eq!(receive(&data), data);
    let mut reject = pdu(0x3f, &[], false);
    reject[2] = 0x02;
    assert_eq!(receive(&reject), reject);
    drop(target);
    assert_eq!(initiator.read(&mut [0; 16]).unwrap(), 0);
    let Passage { injection, seen } = corrupter.disarm();
    let injection = injection.unwrap();
    assert_eq!(damaged[injection.offset], injection.after[0]);
    let expected = Seen { rejects: vec![2], resent: 1, closed_by_target: 1, ..Seen::default() };
    assert_eq!(seen, expected);
    assert_eq!(corrupter.disarm(), Passage::default());
}

/// A busy machine may run the thread of a connection long after the connection ended.
#[test]
fn what_an_earlier_connection_does_late_is_not_of_this_passage() {
    let (reject, mut state) = (pdu(0x3f, &[], false), State::default());
    let (before, now) = (state.note_open(), state.note_open());
    state.arm(Some(fault(PduClass::Command, Place::Header, Damage::FlipBit, 1)));
    state.note_close(before, StreamDirection::Backward);
    assert_eq!(state.pass(before, StreamDirection::Backward, &reject, &layout(&reject, false)), None);
    assert_eq!(
        state.pass(before, StreamDirection::Forward, &pdu(0x01, &[], false), &layout(&reject, false)),
        None
    );
    assert_eq!(state.passage, Passage::default());
    state.note_close(now, StreamDirection::Backward);
    let next = state.note_open();
    state.note_close(next, StreamDirection::Forward);
    let wanted = Seen { closed_by_target: 1, closed_by_initiator: 1, opened: 1, ..Seen::default() };
    assert_eq!(state.passage.seen, wanted);
}
