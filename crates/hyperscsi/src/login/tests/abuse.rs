//! An attacker on the link: it flips bits, replays, reorders, drops, downgrades, forges and floods.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use base::ether::Mac;
use base::rng::Rng;
use base::time::Duration;

use super::fixture::{GROUP, OPEN_GROUP, PASSWORD, Rig, plan};
use super::speak_to_each_other;
use crate::frame::{CRC_LEN, HEADER_LEN, Header};
use crate::login::initiator::{HandshakeError, LoginPlan};
use crate::login::target::HandshakeServer;
use crate::pdu::negotiate::{Negotiate, Negotiated};
use security::Level;

/// Corrects the CRC of a frame, as an attacker who changes a frame does.
pub(crate) fn recrc(frame: &mut Vec<u8>) {
    let len = HEADER_LEN + usize::from(u16::from_be_bytes([frame[6], frame[7]]));
    frame.resize(len, 0);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, frame);
    frame.extend_from_slice(&u32::try_from(crc).unwrap().to_be_bytes());
}

/// Replaces the payload of a frame.
fn with_payload(frame: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = frame[..HEADER_LEN].to_vec();
    out[6..8].copy_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload);
    recrc(&mut out);
    out
}

fn payload(frame: &[u8]) -> &[u8] {
    let (header, _) = Header::parse(frame).unwrap();
    &frame[HEADER_LEN..HEADER_LEN + usize::from(header.len)]
}

pub(crate) fn kind(frame: &[u8]) -> u8 {
    frame[HEADER_LEN]
}

fn rig(seed: u64) -> Rig {
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), seed);
    rig.bring_up();
    rig
}

/// Runs a rig with an attacker on the link. If the initiator agrees, it must agree with the target on the
/// same keys and parameters. Returns whether it did.
fn only_the_truth(mut rig: Rig, what: &str) -> bool {
    let Ok(ours) = rig.run() else { return false };
    let theirs = rig.agreed.pop().unwrap_or_else(|| panic!("nobody agreed with the initiator: {what}"));
    assert!(speak_to_each_other(&ours, &theirs), "{what}");
    assert_eq!((ours.sid_in, ours.sid_out), (theirs.sid_out, theirs.sid_in), "{what}");
    assert_eq!(ours.parameters.levels, theirs.parameters.levels, "{what}");
    assert_eq!(ours.parameters.first_burst, theirs.parameters.first_burst, "{what}");
    assert_eq!(ours.frame_max_common(), 9000, "{what}");
    assert_eq!(theirs.frame_max_common(), 9000, "{what}");
    true
}

#[test]
fn flipped_bits_delay_and_nothing_else() {
    let mut frames = rig(20);
    frames.run().unwrap();
    let mut rng = Rng::from_seed(20);
    for (which, (_, frame)) in frames.log.iter().enumerate() {
        for at in HEADER_LEN..frame.len() - CRC_LEN {
            let bit = 1_u8 << rng.below(8);
            // A bit that is flipped in every frame exhausts the initiator's deadline.
            for always in [false, true].into_iter().take(if at % 4 == 0 { 2 } else { 1 }) {
                let mut rig = rig(20);
                let (mut seen, expected) = (0, kind(frame));
                rig.meddle = Box::new(move |_, mut frame| {
                    let hit = kind(&frame) == expected && (always || seen == 0) && at < frame.len() - CRC_LEN;
                    if hit {
                        seen += 1;
                        frame[at] ^= bit;
                        recrc(&mut frame);
                    }
                    vec![frame]
                });
                let agreed = only_the_truth(rig, &alloc::format!("frame {which}, byte {at}, bit {bit}"));
                assert!(agreed || always, "one flip of frame {which}, byte {at}, bit {bit} is no end");
            }
        }
    }
}

#[test]
fn loss_duplication_and_reordering_delay_and_nothing_else() {
    // Nearly half of all frames are lost or late: the handshake needs a longer deadline.
    let time_limit = Duration::from_secs(60);
    for seed in 0..150 {
        let mut rig = Rig::new(LoginPlan { time_limit, ..plan(GROUP, Some(PASSWORD)) }, seed);
        rig.bring_up();
        let mut rng = Rng::from_seed(seed);
        let mut held: [Vec<Vec<u8>>; 2] = [vec![], vec![]];
        rig.meddle = Box::new(move |to_target, frame| {
            let held = &mut held[usize::from(to_target)];
            if rng.chance(1, 5) {
                return vec![];
            }
            if rng.chance(1, 4) {
                held.push(frame);
                return vec![];
            }
            let mut out = vec![frame.clone()];
            if rng.chance(1, 4) {
                out.push(frame);
            }
            if rng.chance(1, 2) {
                out.append(held);
            }
            out
        });
        assert!(only_the_truth(rig, &alloc::format!("seed {seed}")), "seed {seed}");
    }
}

#[test]
fn on_bad_wires_and_with_targets_that_forget_each_name_is_that_of_one_session() {
    let time_limit = Duration::from_secs(60);
    let mut several = 0;
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let group = if rng.chance(1, 2) { (OPEN_GROUP, None) } else { (GROUP, Some(PASSWORD)) };
        let mut rig = Rig::new(LoginPlan { time_limit, ..plan(group.0, group.1) }, seed);
        rig.bring_up();
        let moment = |rng: &mut Rng| rng.chance(2, 3).then(|| usize::try_from(rng.below(20)).unwrap());
        rig.end_sessions_after = moment(&mut rng);
        rig.restart_target_after = moment(&mut rng);
        let (mut held, mut lost): (Vec<Vec<u8>>, u32) = (vec![], 0);
        rig.meddle = Box::new(move |to_target, frame| {
            // The last step is lost more often than others, so that the target has sessions that no initiator
            // knows.
            if kind(&frame) == 6 && lost < 8 && rng.chance(4, 5) {
                lost += 1;
                return vec![];
            }
            let mut out = vec![];
            if to_target {
                if rng.chance(1, 4) {
                    held.push(frame.clone());
                }
                if rng.chance(1, 4) {
                    out.append(&mut held);
                }
            }
            if !rng.chance(1, 5) {
                out.push(frame);
            }
            out
        });
        let ours = rig.run().unwrap();
        let mut names: Vec<_> = rig.agreed.iter().map(|agreed| agreed.sid_out).collect();
        assert!(names.contains(&ours.sid_in), "seed {seed}");
        several += usize::from(names.len() > 1);
        let made = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), made, "seed {seed}: one name for two sessions");
    }
    assert!(several > 50, "{several}");
}

#[test]
fn what_was_recorded_is_worth_nothing_later() {
    let mut first = rig(30);
    first.run().unwrap();
    let (to_target, to_initiator): (Vec<_>, Vec<_>) = first.log.iter().cloned().partition(|(to, _)| *to);
    // Replayed at the same target, at once and later; and at one that restarted.
    for (restart, wait) in [(false, 0), (false, 31), (false, 120), (true, 0)] {
        let mut again = rig(30);
        again.run().unwrap();
        again.now = again.now.after(Duration::from_secs(wait));
        again.handshakes.handle_timeout(again.now);
        if restart {
            again.handshakes = HandshakeServer::new(again.now);
            let mac = Mac([2; 6]);
            let state = base::ether::PortState { mac, mtu: 9000, receive_slots: 1 };
            again.handshakes.port_up(again.now, super::fixture::PORT, &state, [0x99; 32]);
        }
        for (_, frame) in &to_target {
            again.target_hears(frame);
        }
        assert_eq!(again.agreed.len(), 1, "restart {restart}, after {wait} s");
    }
    // Replayed at an initiator that begins again: another handshake, other keys.
    let mut fresh = rig(31);
    fresh.meddle = Box::new(|_, _| vec![]);
    for (_, frame) in &to_initiator {
        fresh.initiator_hears(frame);
    }
    assert_eq!(fresh.run().unwrap_err(), HandshakeError::NoAnswer);
    // Replayed at the target from another address.
    let mut other = rig(30);
    other.run().unwrap();
    for (_, frame) in &to_target {
        other.target_hears_from(Mac([6; 6]), frame);
    }
    assert_eq!(other.agreed.len(), 1);
}

#[test]
fn frames_that_come_back_to_who_sent_them_are_nothing_to_him() {
    let mut rig = rig(32);
    let mut echo = vec![];
    rig.meddle = Box::new(move |to_target, frame| {
        let mut out = core::mem::take(&mut echo);
        out.push(frame.clone());
        if !to_target {
            echo.push(frame);
        }
        out
    });
    assert!(only_the_truth(rig, "reflected"));
}

#[test]
fn a_downgrade_is_noticed() {
    let meddler = |change: fn(&mut Negotiate), answer: fn(&mut Negotiated)| -> super::fixture::Meddle {
        Box::new(move |to_target, frame| {
            let mut out = vec![];
            if to_target {
                let mut step = Negotiate::parse(payload(&frame)).unwrap();
                change(&mut step);
                step.encode(&mut out);
            } else {
                let mut step = Negotiated::parse(payload(&frame)).unwrap();
                answer(&mut step);
                step.encode(&mut out);
            }
            vec![with_payload(&frame, &out)]
        })
    };
    use crate::pdu::parameters::Levels;
    type Case = (&'static str, fn(&mut Negotiate), fn(&mut Negotiated));
    let cases: [Case; 6] = [
        (
            "fewer levels offered",
            |step| {
                if let Negotiate::Start(start) = step {
                    start.offer.levels = Levels::OPEN;
                }
            },
            |_| {},
        ),
        (
            "fewer levels offered and chosen, and the choice made what was asked for",
            |step| {
                if let Negotiate::Start(start) = step {
                    start.offer.levels = Levels::from_bits(0b011).unwrap();
                }
            },
            |step| {
                if let Negotiated::Answer(answer) = step {
                    answer.choice.levels = Levels::ALL;
                }
            },
        ),
        (
            "another choice",
            |_| {},
            |step| {
                if let Negotiated::Answer(answer) = step {
                    answer.choice.first_burst = 0;
                }
            },
        ),
        (
            "no key exchange",
            |step| {
                if let Negotiate::Start(start) = step {
                    start.ke1 = None;
                }
            },
            |_| {},
        ),
        (
            "another session",
            |_| {},
            |step| {
                if let Negotiated::Answer(answer) = step {
                    answer.sid ^= 1;
                }
            },
        ),
        (
            "another name",
            |step| {
                if let Negotiate::Start(start) = step {
                    start.isid[0] ^= 1;
                }
            },
            |_| {},
        ),
    ];
    for (what, change, answer) in cases {
        let mut rig = rig(33);
        rig.meddle = meddler(change, answer);
        let why = rig.run().unwrap_err();
        assert!(rig.agreed.is_empty(), "{what}");
        let expected = if what == "no key exchange" {
            HandshakeError::PasswordNeeded
        } else {
            HandshakeError::WrongPassword
        };
        assert_eq!(why, expected, "{what}");
    }
}

#[test]
fn who_has_a_password_is_not_talked_into_a_session_without_keys() {
    // The attacker answers every START as a group without a password would.
    let mut rig = rig(34);
    rig.meddle = Box::new(|to_target, frame| {
        if to_target || kind(&frame) == 2 {
            return vec![frame];
        }
        let Negotiated::Answer(answer) = Negotiated::parse(payload(&frame)).unwrap() else { return vec![] };
        let mut out = vec![];
        let accept = crate::pdu::negotiate::Accept {
            handshake: answer.handshake,
            sid: answer.sid,
            choice: answer.choice,
            token: [0; 16],
            instance: [0; 16],
            proof: None,
        };
        Negotiated::Accept(accept).encode(&mut out);
        vec![with_payload(&frame, &out)]
    });
    assert_eq!(rig.run().unwrap_err(), HandshakeError::OpenGroup);
    assert!(rig.agreed.is_empty());
}

#[test]
fn forged_refusals_and_answers_beside_the_real_ones_do_not_end_a_handshake() {
    for reason in 0..=8 {
        let mut rig = rig(35);
        rig.meddle = Box::new(move |to_target, frame| {
            if to_target {
                return vec![frame];
            }
            let mut out = vec![];
            if let Ok(Negotiated::Cookie { handshake, .. }) = Negotiated::parse(payload(&frame)) {
                let reason = crate::pdu::negotiate::RefuseReason(reason);
                Negotiated::Refuse { handshake, reason, retry_after_ms: u32::MAX }.encode(&mut out);
                return vec![frame.clone(), with_payload(&frame, &out)];
            }
            let mut forged = frame.clone();
            let at = forged.len() - CRC_LEN - 1;
            forged[at] ^= 0x80;
            recrc(&mut forged);
            vec![forged, frame]
        });
        assert!(only_the_truth(rig, &alloc::format!("reason {reason}")), "reason {reason}");
    }
}

#[test]
fn forged_answers_end_no_handshake_before_better_ones_had_time_to_come() {
    let mut rig = rig(42);
    let begun = rig.now;
    let mut forged: u8 = 0;
    rig.meddle = Box::new(move |to_target, frame| {
        if to_target || kind(&frame) != 4 {
            return vec![frame];
        }
        // As many different ones as the initiator opens, one for each START.
        forged += 1;
        let mut answer = frame;
        let at = answer.len() - CRC_LEN - 1;
        answer[at] ^= forged;
        recrc(&mut answer);
        vec![answer]
    });
    assert_eq!(rig.run().unwrap_err(), HandshakeError::WrongPassword);
    assert!(rig.now.since(begun) >= crate::login::initiator::Login::GRACE, "{:?}", rig.now.since(begun));
}

#[test]
fn a_target_that_asks_for_too_much_work_is_not_obeyed() {
    let mut rig = rig(36);
    rig.meddle = Box::new(|to_target, frame| {
        if to_target {
            return vec![frame];
        }
        let mut step = Negotiated::parse(payload(&frame)).unwrap();
        if let Negotiated::Answer(answer) = &mut step {
            answer.stretch.memory_kib = u32::MAX;
        }
        let mut out = vec![];
        step.encode(&mut out);
        vec![with_payload(&frame, &out)]
    });
    assert_eq!(rig.run().unwrap_err(), HandshakeError::BadChoice);
}

#[test]
fn protection_that_is_asked_for_is_kept_or_refused() {
    let mut rig = Rig::new(LoginPlan { protection: Level::Encrypt, ..plan(GROUP, Some(PASSWORD)) }, 37);
    rig.bring_up();
    let ours = rig.run().unwrap();
    assert!(ours.parameters.levels.has(Level::Encrypt) && !ours.parameters.levels.has(Level::None));
}

/// An initiator at `mac` that sends START and then nothing more.
fn half_open(rig: &mut Rig, mac: Mac, seed: u64, password: &str) -> u8 {
    let mut guest = Rig::new(plan(GROUP, Some(password)), seed);
    guest.bring_up_initiator();
    guest.now = rig.now;
    let mut last = 0;
    for _ in 0..2 {
        let mut batch = base::ether::FrameBatch::new();
        while let Some(port) = guest.login.poll_port() {
            guest.login.transmit(port, &mut batch);
        }
        for (_, frame) in super::fixture::frames(&batch) {
            rig.target_hears_from(mac, &frame);
        }
        let mut back = base::ether::FrameBatch::new();
        while let Some(port) = rig.handshakes.poll_port() {
            rig.handshakes.transmit(port, &mut back);
        }
        for (_, frame) in super::fixture::frames(&back) {
            last = kind(&frame);
            guest.initiator_hears(&frame);
        }
    }
    last
}

#[test]
fn floods_fill_nothing_but_what_is_set_aside_for_them() {
    let mut rig = rig(40);
    rig.login = Rig::new(plan(GROUP, Some(PASSWORD)), 40).login;
    // HELLOs, and STARTs with invalid cookies.
    let mut all = super::abuse::rig(40);
    all.run().unwrap();
    for n in 0_u32..20_000 {
        let [a, b, c, d] = n.to_be_bytes();
        let frame = &all.log[if n % 2 == 0 { 0 } else { 2 }].1;
        rig.target_hears_from(Mac([2, 9, a, b, c, d]), frame);
    }
    assert_eq!(rig.handshakes.half_open(), 0, "a cookie costs nothing");
    let mut batch = base::ether::FrameBatch::new();
    let mut letters = 0;
    while let Some(port) = rig.handshakes.poll_port() {
        rig.handshakes.transmit(port, &mut batch);
        letters += batch.len();
        batch = base::ether::FrameBatch::new();
    }
    assert!(letters <= 512, "{letters}");
    // From one address, then from many.
    for seed in 0..10 {
        half_open(&mut rig, Mac([2, 0, 0, 0, 1, 1]), 1000 + seed, PASSWORD);
    }
    assert_eq!(rig.handshakes.half_open(), HandshakeServer::HALVES_OF_ONE_MAX);
    for host in 0..200_u8 {
        half_open(&mut rig, Mac([2, 0, 0, 0, 2, host]), 2000 + u64::from(host), PASSWORD);
        rig.now = rig.now.after(Duration::from_millis(40));
        assert!(rig.handshakes.half_open() <= HandshakeServer::HALVES_MAX);
    }
    // After the attack, an initiator that knows the password gets a session.
    rig.now = rig.now.after(Duration::from_secs(60));
    rig.handshakes.handle_timeout(rig.now);
    assert_eq!(rig.handshakes.half_open(), 0);
    let mut patient =
        Rig::new(LoginPlan { time_limit: Duration::from_secs(300), ..plan(GROUP, Some(PASSWORD)) }, 41);
    patient.login.handle_timeout(patient.now);
    rig.login = patient.login;
    rig.bring_up_initiator();
    rig.run().unwrap();
}

#[test]
fn guessing_is_slow_for_one_group_and_no_other_suffers() {
    let mut rig = rig(42);
    let mut answered = 0;
    for n in 0_u32..1200 {
        let [_, b, c, d] = n.to_be_bytes();
        let kind = half_open(&mut rig, Mac([2, 7, 7, b, c, d]), 5000 + u64::from(n), "a guess");
        answered += u32::from(kind == 4);
        rig.now = rig.now.after(Duration::from_secs(3));
        rig.handshakes.handle_timeout(rig.now);
    }
    // In an hour, each from an address that was never seen before. The bound is 20000 a day.
    assert!((20..=20_000 / 24).contains(&answered), "{answered}");
    assert!(rig.handshakes.stats().put_off > 300);
    let now = rig.now;
    let mut open = Rig::new(plan(OPEN_GROUP, None), 43);
    core::mem::swap(&mut open.handshakes, &mut rig.handshakes);
    open.now = now;
    open.login = crate::login::initiator::Login::new(now, plan(OPEN_GROUP, None), [5; 32]).unwrap();
    open.bring_up_initiator();
    open.run().unwrap();
}

/// Returns the target's answers to a START of this group in which the item of the parameters that begins with
/// `head` is replaced.
fn said_to_start_with(group: &str, password: Option<&str>, head: [u8; 3], item: &[u8]) -> Vec<Vec<u8>> {
    let mut rig = Rig::new(LoginPlan { time_limit: Duration::from_secs(4), ..plan(group, password) }, 46);
    rig.bring_up();
    let item = item.to_vec();
    rig.meddle = Box::new(move |to_target, frame| {
        if !to_target || kind(&frame) != 3 {
            return vec![frame];
        }
        let mut block = payload(&frame).to_vec();
        let from = block.windows(3).position(|part| part == [1, 0, 2]).unwrap();
        let at = from + block[from..].windows(3).position(|part| part == head).unwrap();
        block[at..at + item.len()].copy_from_slice(&item);
        vec![with_payload(&frame, &block)]
    });
    let failed = rig.run().unwrap_err();
    assert!(rig.agreed.is_empty() && rig.handshakes.half_open() == 0);
    let said: Vec<Vec<u8>> = rig
        .log
        .iter()
        .filter(|(to, frame)| !to && kind(frame) != 2)
        .map(|(_, frame)| frame.clone())
        .collect();
    assert_eq!(failed == HandshakeError::ProtectionRefused(Level::None), !said.is_empty(), "{failed:?}");
    assert_eq!(rig.handshakes.stats().refused, u64::from(!said.is_empty()));
    assert_eq!(core::iter::from_fn(|| rig.handshakes.poll_refusal()).count(), usize::from(!said.is_empty()));
    said
}

#[test]
fn who_offers_what_cannot_be_is_told_so_and_who_offers_nothing_that_reads_is_not() {
    for (group, password) in [(GROUP, Some(PASSWORD)), (OPEN_GROUP, None)] {
        let illegal: [&[u8]; 13] = [
            &[1, 0, 2, 0x05, 0xdb],
            &[2, 0, 4, 0, 0, 0, 0],
            &[4, 0, 1, 0],
            &[4, 0, 1, 8],
            &[4, 0, 1, 0xf8],
            &[5, 0, 2, 0, 0],
            &[5, 0, 2, 2, 1],
            &[7, 0, 4, 0, 0, 0, 0],
            &[8, 0, 1, 0],
            &[9, 0, 1, 2],
            &[9, 0, 1, 0xff],
            &[10, 0, 4, 0, 0, 0, 0],
            // Levels that a group without a password cannot have, and bits that stand for no level.
            if password.is_none() { &[4, 0, 1, 6] } else { &[4, 0, 1, 16] },
        ];
        for item in illegal {
            let said = said_to_start_with(group, password, [item[0], 0, item[2]], item);
            let is_refusal = |frame: &Vec<u8>| frame[HEADER_LEN..HEADER_LEN + 2] == [7, 2];
            assert!(!said.is_empty() && said.iter().all(is_refusal), "{item:?}: {said:?}");
        }
        // An item that must be known, and an item that ends outside the parameters.
        for item in [[0x8a, 0, 4, 0, 0, 0, 9], [10, 0, 5, 0, 0, 0, 9]] {
            assert!(said_to_start_with(group, password, [10, 0, 4], &item).is_empty(), "{item:?}");
        }
    }
}

#[test]
fn a_forged_finish_ends_nothing() {
    let mut rig = rig(44);
    rig.meddle = Box::new(|to_target, frame| {
        if !to_target || kind(&frame) != 5 {
            return vec![frame];
        }
        let mut forged = frame.clone();
        let at = forged.len() - CRC_LEN - 1;
        forged[at] ^= 1;
        recrc(&mut forged);
        vec![forged; 100].into_iter().chain([frame]).collect()
    });
    assert!(only_the_truth(rig, "forged FINISH"));
}

#[test]
fn anything_at_all_does_no_harm() {
    let mut good = rig(45);
    good.run().unwrap();
    let frames: Vec<Vec<u8>> = good.log.iter().map(|(_, frame)| frame.clone()).collect();
    for seed in 0..3000 {
        let mut rng = Rng::from_seed(seed);
        let mut pick = |bound: usize| usize::try_from(rng.below(u64::try_from(bound).unwrap())).unwrap();
        let mut frame = frames[pick(frames.len())].clone();
        for _ in 0..=pick(4) {
            let at = pick(frame.len());
            frame[at] = u8::try_from(pick(256)).unwrap();
        }
        if pick(3) == 0 {
            frame.truncate(pick(frame.len()));
        }
        if frame.len() > HEADER_LEN + CRC_LEN && pick(2) == 0 {
            let len = u16::try_from(frame.len() - HEADER_LEN - CRC_LEN).unwrap();
            frame[6..8].copy_from_slice(&len.to_be_bytes());
            recrc(&mut frame);
        }
        if seed % 500 == 0 {
            good = rig(45);
        }
        good.target_hears(&frame);
        good.initiator_hears(&frame);
        assert!(good.agreed.len() <= 1, "seed {seed}");
    }
}
