use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write as _;

use base::buffer::Bytes;
use base::ether::Mac;
use base::rng::Rng;

use super::*;
use crate::frame::Cmd;

const NOW: Instant = Instant::ORIGIN;

fn keys() -> SessionKeys {
    let secret: [u8; 64] = core::array::from_fn(|i| u8::try_from(i).unwrap());
    let transcript: [u8; 64] = core::array::from_fn(|i| u8::try_from(0x80 + i).unwrap());
    SessionKeys::from_secret(&secret, &transcript)
}

fn header(level: Level, pn: u64, len: u16) -> Header {
    let flags = Flags::ELICITS.with(Flags::DATA);
    Header {
        tag: 5,
        last: true,
        fragment: 0,
        protected: level != Level::None,
        cmd: Cmd::Reply,
        flags: if level == Level::Encrypt { flags.with(Flags::ENCRYPTED) } else { flags },
        len,
        sid: 0x0102_0304,
        pn,
        xid: if level == Level::None { 9 } else { 0x8000_0009 },
        off: 0,
    }
}

fn sealed(
    encryptor: &mut Encryptor,
    level: Level,
    pn: u64,
    payload: &[&[u8]],
) -> Result<(Header, Vec<u8>), EncryptError> {
    let len = payload.iter().map(|part| part.len()).sum::<usize>();
    let mut header = header(level, pn, u16::try_from(len).unwrap());
    if header.protected && encryptor.phase() {
        header.flags = header.flags.with(Flags::PHASE);
    }
    let mut batch = FrameBatch::new();
    batch.begin_frame(Mac::BROADCAST);
    batch.put(&header.to_bytes());
    // Every second part is shared, as data of a medium is.
    for (index, part) in payload.iter().enumerate() {
        if index % 2 == 0 { batch.put_shared(Bytes::copied_from(part)) } else { batch.put(part) }
    }
    encryptor.seal(&header, &mut batch)?;
    batch.end_frame();
    let frame = batch.frames().flat_map(|(_, _, pieces)| pieces.flatten().copied()).collect();
    Ok((header, frame))
}

fn opened(decryptor: &mut Decryptor, now: Instant, frame: &[u8]) -> Result<Vec<u8>, DecryptError> {
    let mut frame = frame.to_vec();
    frame.resize(frame.len().max(60), 0);
    let (header, _) = Header::parse(&frame).unwrap();
    decryptor.open(now, &header, &mut frame).map(|payload| payload.to_vec())
}

fn pair() -> (Encryptor, Decryptor) {
    (Encryptor::for_role(&keys(), Role::Target), Decryptor::for_role(&keys(), Role::Initiator))
}

const LEVELS: [Level; 3] = [Level::None, Level::Integrity, Level::Encrypt];

#[test]
fn what_one_end_seals_the_other_opens_at_every_level_and_in_any_pieces() {
    let (mut encryptor, mut decryptor) = pair();
    let mut pn = 0;
    for level in LEVELS {
        let parts: [&[u8]; 3] = [b"one", b"two", b"three"];
        for payload in (0..=parts.len()).map(|count| &parts[..count]) {
            pn += 1;
            let (header, frame) = sealed(&mut encryptor, level, pn, payload).unwrap();
            assert_eq!(header.level(), level);
            assert_eq!(frame.len(), HEADER_LEN + usize::from(header.len) + trailer_len(level));
            assert_eq!(opened(&mut decryptor, NOW, &frame), Ok(payload.concat()), "{level}");
            let readable = frame.windows(3).any(|window| window == b"one");
            assert_eq!(readable, level != Level::Encrypt && !payload.is_empty(), "{level}");
        }
    }
}

#[test]
fn no_bit_of_a_frame_can_be_changed() {
    let (mut encryptor, mut decryptor) = pair();
    for (pn, level) in (1..).zip(LEVELS) {
        let (_, frame) = sealed(&mut encryptor, level, pn, &[b"payload"]).unwrap();
        for bit in 0..frame.len() * 8 {
            let mut frame = frame.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let Ok((header, _)) = Header::parse(&frame) else { continue };
            let result = decryptor.open(NOW, &header, &mut frame).map(|_| ());
            assert!(result.is_err(), "{level}, bit {bit}");
        }
        assert_eq!(opened(&mut decryptor, NOW, &frame), Ok(b"payload".to_vec()), "still good after all that");
    }
}

#[test]
fn what_one_end_sent_is_not_taken_when_it_comes_back_and_levels_do_not_mix() {
    let (mut encryptor, _) = pair();
    let mut own = Decryptor::for_role(&keys(), Role::Target);
    let (_, frame) = sealed(&mut encryptor, Level::Integrity, 1, &[b"payload"]).unwrap();
    assert_eq!(opened(&mut own, NOW, &frame), Err(DecryptError::Tag), "reflected");
    let mut decryptor = Decryptor::for_role(&keys(), Role::Initiator);
    for (level, bit) in [(Level::Integrity, Flags::ENCRYPTED.0), (Level::Encrypt, Flags::ENCRYPTED.0)] {
        let (_, mut frame) =
            sealed(&mut Encryptor::for_role(&keys(), Role::Target), level, 1, &[b"x"]).unwrap();
        frame[5] ^= bit;
        assert_eq!(opened(&mut decryptor, NOW, &frame), Err(DecryptError::Tag), "{level}");
    }
    assert_eq!(decryptor.forged(), 2);
}

#[test]
fn a_session_without_keys_has_crcs_alone() {
    let mut encryptor = Encryptor::without_keys();
    assert_eq!(sealed(&mut encryptor, Level::Integrity, 1, &[b"x"]).map(|_| ()), Err(EncryptError::NoKeys));
    let (_, frame) = sealed(&mut encryptor, Level::None, 1, &[b"x"]).unwrap();
    assert_eq!(opened(&mut Decryptor::without_keys(), NOW, &frame), Ok(b"x".to_vec()));
    let (_, frame) = sealed(&mut pair().0, Level::Integrity, 1, &[b"x"]).unwrap();
    assert_eq!(opened(&mut Decryptor::without_keys(), NOW, &frame), Err(DecryptError::NoKeys));
}

#[test]
fn a_packet_number_is_used_once_on_each_path_whatever_the_level_and_the_phase() {
    let (mut encryptor, _) = pair();
    let mut seal = |level, pn| sealed(&mut encryptor, level, pn, &[b"x"]).map(|_| ());
    assert_eq!(seal(Level::Integrity, 7), Ok(()));
    assert_eq!(seal(Level::Encrypt, 7), Err(EncryptError::PacketNumber));
    assert_eq!(seal(Level::Integrity, 6), Err(EncryptError::PacketNumber));
    assert_eq!(seal(Level::Integrity, (1 << 56) | 7), Ok(()), "another path");
    assert_eq!(seal(Level::None, 7), Ok(()), "another space");
    encryptor.update(NOW);
    assert_eq!(
        sealed(&mut encryptor, Level::Integrity, 7, &[b"x"]).map(|_| ()),
        Err(EncryptError::PacketNumber)
    );
    let (header, mut batch) = (header(Level::Integrity, 8, 9), FrameBatch::new());
    batch.begin_frame(Mac::BROADCAST);
    batch.put(&header.to_bytes());
    assert_eq!(encryptor.seal(&header, &mut batch), Err(EncryptError::Length));
}

#[test]
fn keys_change_in_band_and_late_frames_of_the_old_ones_are_taken_for_a_while() {
    let (mut encryptor, mut decryptor) = pair();
    let (keep, mut now, mut pn) = (Duration::from_millis(3), NOW, 0);
    decryptor.keep_for(keep);
    for round in 0..5 {
        pn += 3;
        let (_, late) = sealed(&mut encryptor, Level::Encrypt, pn - 2, &[b"late"]).unwrap();
        let (_, too_late) = sealed(&mut encryptor, Level::Encrypt, pn - 1, &[b"too late"]).unwrap();
        encryptor.update(now);
        assert_eq!(encryptor.phase(), round % 2 == 0);
        let (_, new) = sealed(&mut encryptor, Level::Encrypt, pn, &[b"new"]).unwrap();
        assert_eq!(opened(&mut decryptor, now, &new), Ok(b"new".to_vec()), "round {round}");
        assert_eq!(opened(&mut decryptor, now, &late), Ok(b"late".to_vec()), "round {round}");
        now = now.after(keep);
        assert_eq!(opened(&mut decryptor, now, &too_late), Err(DecryptError::Tag), "round {round}");
        now = now.after(UPDATE_EVERY);
    }
    let (_, mut forged) = sealed(&mut encryptor, Level::Encrypt, pn + 1, &[b"forged"]).unwrap();
    forged[5] ^= Flags::PHASE.0;
    assert_eq!(opened(&mut decryptor, now, &forged), Err(DecryptError::Tag));
    let (_, good) = sealed(&mut encryptor, Level::Encrypt, pn + 2, &[b"good"]).unwrap();
    assert_eq!(opened(&mut decryptor, now, &good), Ok(b"good".to_vec()), "a forged change changed nothing");
}

#[test]
fn keys_are_changed_in_time_and_are_never_used_beyond_their_end() {
    let (mut encryptor, _) = pair();
    assert!(!encryptor.wants_update(NOW));
    encryptor.keys.as_mut().unwrap().frames = UPDATE_AFTER_FRAMES;
    assert!(encryptor.wants_update(NOW));
    encryptor.update(NOW);
    assert!(!encryptor.wants_update(NOW));
    encryptor.keys.as_mut().unwrap().bytes = UPDATE_AFTER_BYTES;
    assert!(!encryptor.wants_update(NOW), "too soon after the last one");
    assert!(encryptor.wants_update(NOW.after(UPDATE_EVERY)));
    assert!(sealed(&mut encryptor, Level::Encrypt, 1, &[b"x"]).is_ok());
    encryptor.keys.as_mut().unwrap().bytes = 2 * UPDATE_AFTER_BYTES;
    assert_eq!(sealed(&mut encryptor, Level::Encrypt, 2, &[b"x"]).map(|_| ()), Err(EncryptError::Exhausted));
    encryptor.update(NOW);
    encryptor.keys.as_mut().unwrap().frames = 2 * UPDATE_AFTER_FRAMES;
    assert_eq!(sealed(&mut encryptor, Level::Encrypt, 2, &[b"x"]).map(|_| ()), Err(EncryptError::Exhausted));
}

#[test]
fn frames_that_are_cut_or_made_up_are_refused_without_harm() {
    let seed = 20_260_402;
    let mut rng = Rng::from_seed(seed);
    let (mut encryptor, mut decryptor) = pair();
    for (pn, level) in (1..).zip(LEVELS) {
        let (header, frame) = sealed(&mut encryptor, level, pn, &[b"payload"]).unwrap();
        for len in 0..frame.len() {
            assert!(
                decryptor.open(NOW, &header, &mut frame[..len].to_vec()).is_err(),
                "{level}, {len} bytes"
            );
        }
        for _ in 0..1000 {
            let mut noise = vec![0; usize::try_from(rng.below(100)).unwrap()];
            rng.fill(&mut noise);
            assert!(decryptor.open(NOW, &header, &mut noise).is_err(), "{level}, seed {seed}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a line `name = hex`, broken after 32 bytes.
fn line(out: &mut String, name: &str, bytes: &[u8]) {
    let broken: Vec<String> = bytes.chunks(32).map(hex).collect();
    writeln!(out, "{name} =\n  {}", broken.join("\n  ")).unwrap();
}

/// Returns the specification's test vectors, computed by this code.
fn vectors() -> String {
    let mut out = String::new();
    let secret: Vec<u8> = (0..64).collect();
    let transcript: Vec<u8> = (0x80..0xc0).collect();
    line(&mut out, "session key", &secret);
    line(&mut out, "transcript", &transcript);
    for (name, role) in [("initiator to target", Role::Initiator), ("target to initiator", Role::Target)] {
        let mut secret = keys().secret_of(role);
        for generation in 0..2 {
            line(&mut out, &format!("{name}, secret {generation}"), secret.secret_bytes());
            for level in ["integrity", "encrypt"] {
                let key = secret.derive::<32>(&format!("{level} key"));
                let iv = secret.derive::<12>(&format!("{level} iv"));
                line(&mut out, &format!("{name}, {level} key {generation}"), &*key);
                line(&mut out, &format!("{name}, {level} iv {generation}"), &*iv);
            }
            secret = secret.expand(UPDATE);
        }
    }
    let mut encryptor = Encryptor::for_role(&keys(), Role::Target);
    line(&mut out, "payload of each frame", b"HyperSCSI v2");
    for (generation, pn) in [(0, 0x0100_0000_0000_0001), (1, 0x0100_0000_0000_0011)] {
        for (level, pn) in LEVELS.into_iter().zip(pn..) {
            let (_, frame) = sealed(&mut encryptor, level, pn, &[b"HyperSCSI v2"]).unwrap();
            line(&mut out, &format!("frame of the target, level {level}, generation {generation}"), &frame);
        }
        encryptor.update(NOW);
    }
    out
}

#[test]
fn keys_and_frames_are_those_of_the_specification() {
    let made = vectors();
    assert_eq!(made, include_str!("vectors.txt"), "made now:\n{made}");
    let document = include_str!("../../../../docs/hyperscsi.md");
    assert!(document.contains(&made), "docs/hyperscsi.md prints other vectors");
}
