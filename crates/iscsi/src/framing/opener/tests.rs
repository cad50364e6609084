//! What a [`PduWriter`] seals, a [`Receiver`] opens: with every AEAD digest, in pieces of any size, into any
//! sink; and what somebody on the way makes of it, it does not accept.

use alloc::vec::Vec;

use base::buffer::{Bytes, Pool};
use base::rng::Rng;
use base::transmit::Transmit;
use zeroize::Zeroizing;

use super::*;
use crate::aead::login_keys::{ConnectionKeys, LoginKeys};
use crate::aead::{AeadDigest, AeadMode, GenerationLimits, READABLE_LEN};
use crate::framing::Framing;
use crate::keys::Role;
use crate::negotiate::ConnectionParameters;
use crate::pdu_writer::PduWriter;

/// Keys change every few PDUs.
const LIMITS: GenerationLimits = GenerationLimits { pdus: 5, bytes: 200_000 };
const DATA_LEN_MAX: u32 = 1 << 20;

fn keys(connection: u8) -> ConnectionKeys {
    LoginKeys::new(&Zeroizing::new([1; 64]), &[2; 64]).connection_keys(&[connection; 64])
}

fn writer(digest: AeadDigest, pool: &Pool) -> PduWriter {
    let encryptor = keys(3).encryptor(Role::Initiator, digest, LIMITS);
    PduWriter::new(&ConnectionParameters::default(), Some(encryptor), pool)
}

fn receiver(digest: AeadDigest) -> Receiver {
    let framing =
        Framing { header_digest: false, data_digest: false, data_len_max: DATA_LEN_MAX, resync: false };
    let mut receiver = Receiver::new(framing);
    receiver.set_decryptor(keys(3).decryptor(Role::Target, digest, LIMITS));
    receiver
}

/// A PDU before it is sealed, and how it is sent and received.
#[derive(Clone, Debug)]
struct Plain {
    bhs: Bhs,
    ahs: Vec<u8>,
    data: Vec<u8>,
}

impl Plain {
    fn random(rng: &mut Rng) -> Self {
        let below = |rng: &mut Rng, bound: u64| usize::try_from(rng.below(bound)).unwrap();
        let ahs_len = if rng.chance(1, 4) { 4 * below(rng, 256) } else { 0 };
        let data_len = match rng.below(6) {
            0 | 1 => 0,
            2 => below(rng, 9),
            3 => below(rng, 5000),
            4 => 4096,
            _ => below(rng, 140_000),
        };
        let (mut ahs, mut data) = (alloc::vec![0; ahs_len], alloc::vec![0; data_len]);
        rng.fill(&mut ahs);
        rng.fill(&mut data);
        let mut bytes = [0; BHS_LEN];
        rng.fill(&mut bytes);
        Self { bhs: Bhs::from_bytes(bytes).with_ahs_len(ahs_len).with_data_len(data_len), ahs, data }
    }

    fn header(&self) -> Vec<u8> {
        [&self.bhs.bytes()[..], &self.ahs].concat()
    }

    /// Appends the PDU, its data by reference in up to four parts, or by copying.
    fn send(&self, rng: &mut Rng, writer: &mut PduWriter, out: &mut Transmit) {
        if self.ahs.is_empty() {
            writer.header(&self.bhs, out);
        } else {
            writer.long_header(&self.bhs, &self.ahs, out);
        }
        if rng.chance(1, 4) {
            return writer.copied(&self.data, out);
        }
        let len = self.data.len();
        let mut cuts: Vec<usize> = (0..rng.below(4))
            .map(|_| usize::try_from(rng.below(u64::try_from(len + 1).unwrap())).unwrap())
            .chain([0, len])
            .collect();
        cuts.sort_unstable();
        let whole = Bytes::copied_from(&self.data);
        let parts: Vec<Bytes> =
            cuts.windows(2).filter(|cut| cut[0] < cut[1]).map(|cut| whole.slice(cut[0], cut[1])).collect();
        writer.shared(len, parts, out);
        assert!(*whole == *self.data, "others hold the same bytes");
    }
}

/// Seals PDUs and returns the bytes of each.
fn seal(seed: u64, digest: AeadDigest, pdus: &[Plain]) -> Vec<Vec<u8>> {
    let (pool, mut rng) = (Pool::new(1 << 20), Rng::from_seed(seed));
    let mut writer = writer(digest, &pool);
    let bytes = |pdu: &Plain| {
        let mut out = Transmit::new();
        pdu.send(&mut rng, &mut writer, &mut out);
        let bytes: Vec<u8> = out.pieces().flatten().copied().collect();
        out.clear(&pool);
        bytes
    };
    pdus.iter().map(bytes).collect()
}

/// A buffer that holds other bytes around the sink of a data segment.
struct Place {
    /// The bytes of the buffer around the segment.
    before: Vec<u8>,
    after: Vec<u8>,
    overwrites: bool,
    discards: bool,
}

impl Place {
    fn random(rng: &mut Rng) -> Self {
        let mut some = || {
            let len = usize::try_from(if rng.chance(1, 2) { rng.below(9) } else { rng.below(9000) }).unwrap();
            let mut bytes = alloc::vec![0; len];
            rng.fill(&mut bytes);
            bytes
        };
        let (before, after) = (some(), some());
        Self { before, after, overwrites: rng.chance(1, 2), discards: rng.chance(1, 12) }
    }

    /// Returns the sink for `len` bytes. Its buffer has no spare byte more than it must have.
    fn sink(&self, len: usize) -> DataSink {
        if self.discards {
            return DataSink::Discard;
        }
        let whole = self.before.len() + len;
        if !self.overwrites {
            let mut buf = Buf::with_capacity(whole);
            buf.append(&self.before);
            return DataSink::Append(buf);
        }
        let mut buf = Buf::with_capacity(whole + self.after.len());
        buf.append(&self.before);
        buf.append_zeros(len);
        buf.append(&self.after);
        DataSink::Overwrite { buf, at: self.before.len() }
    }

    /// Checks what is in the sink, and returns whether the data was kept.
    fn check(&self, sink: DataSink, data: &[u8], digest_ok: bool) -> bool {
        let (buf, after) = match sink {
            DataSink::Discard => {
                assert!(self.discards && digest_ok);
                return false;
            }
            DataSink::Append(buf) => (buf, &[][..]),
            DataSink::Overwrite { buf, at } => {
                assert_eq!(at, self.before.len() + data.len());
                (buf, &self.after[..])
            }
            DataSink::TakenByDriver { .. } => panic!("the driver returned the buffer"),
        };
        let (before, rest) = buf.filled().split_at(self.before.len());
        assert!(before == self.before, "the bytes before the segment stay");
        if digest_ok {
            assert!(rest.split_at(data.len()) == (data, after), "the segment, and what stood behind it");
        } else {
            assert!(rest.ends_with(after), "the bytes behind the segment stay");
            assert!(self.overwrites || rest.is_empty(), "nothing is appended");
        }
        digest_ok
    }
}

/// What a receiver made of a stream.
#[derive(Debug, Default)]
struct Outcome {
    /// Each PDU: its header, and its data if that is right.
    pdus: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    error: Option<StreamError>,
}

/// Feeds a stream to a receiver as a driver does, in pieces of random size. `expected` returns the data of
/// each PDU, by which the sinks are checked.
fn receive(rng: &mut Rng, receiver: &mut Receiver, stream: &[u8], expected: &[&Plain]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut place = None;
    let mut rest = stream;
    while !rest.is_empty() {
        let most = if rng.chance(1, 2) { 200_000 } else { 1 + rng.below(3000) };
        let len = usize::try_from(1 + rng.below(most)).unwrap().min(rest.len());
        let (mut piece, left) = rest.split_at(len);
        rest = left;
        if let Some(mut rx_buffer) = receiver.take_rx_buffer() {
            let (own, others) = piece.split_at(rx_buffer.len_max.min(piece.len()));
            rx_buffer.buf.append(own);
            receiver.return_rx_buffer(rx_buffer);
            piece = others;
        }
        loop {
            match receiver.advance(&mut piece) {
                Ok(FramingEvent::NeedMoreBytes) => break,
                Ok(FramingEvent::Header(bhs)) => {
                    let new = Place::random(rng);
                    receiver.set_sink(new.sink(usize::try_from(bhs.data_len()).unwrap()));
                    place = Some(new);
                }
                Ok(FramingEvent::Pdu(pdu)) => {
                    let header = [&pdu.bhs.bytes()[..], receiver.ahs()].concat();
                    let plain = expected.get(outcome.pdus.len()).expect("no PDU that nobody sent");
                    let kept = place.take().unwrap().check(pdu.sink, &plain.data, pdu.digest_ok);
                    let data = (kept || pdu.digest_ok).then(|| plain.data.clone());
                    outcome.pdus.push((header, data));
                }
                Ok(FramingEvent::Damaged) => panic!("a wrong tag does not tell which bit is wrong"),
                Err(error) => {
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
    }
    outcome
}

fn as_received(pdu: &Plain) -> (Vec<u8>, Option<Vec<u8>>) {
    (pdu.header(), Some(pdu.data.clone()))
}

#[test]
fn every_pdu_arrives_whole_in_its_sink() {
    for digest in AeadDigest::ALL {
        for seed in 0..40 {
            let mut rng = Rng::from_seed(seed);
            let pdus: Vec<Plain> = (0..12).map(|_| Plain::random(&mut rng)).collect();
            let stream = seal(seed, digest, &pdus).concat();
            let mut receiver = receiver(digest);
            let outcome = receive(&mut rng, &mut receiver, &stream, &pdus.iter().collect::<Vec<_>>());
            let expected: Vec<_> = pdus.iter().map(as_received).collect();
            assert!(outcome.error.is_none() && outcome.pdus == expected, "seed {seed}: {digest:?}");
            assert!(receiver.is_between_pdus());
        }
    }
}

#[test]
fn the_bytes_on_the_wire_are_those_of_the_specification() {
    for digest in AeadDigest::ALL {
        for seed in 0..20 {
            let mut rng = Rng::from_seed(seed);
            let pdus: Vec<Plain> = (0..12).map(|_| Plain::random(&mut rng)).collect();
            let mut encryptor = keys(3).encryptor(Role::Initiator, digest, LIMITS);
            for (pdu, sent) in pdus.iter().zip(seal(seed, digest, &pdus)) {
                let (mut header, mut data) = (pdu.header(), pdu.data.clone());
                data.resize(data.len().next_multiple_of(4), 0);
                let tag = encryptor.seal_header(&mut header).unwrap();
                header.extend(tag);
                if !data.is_empty() {
                    let tag = encryptor.seal_data(&mut data).unwrap();
                    data.extend(tag);
                }
                assert!(sent == [header, data].concat(), "seed {seed}: {digest:?}");
            }
        }
    }
}

#[test]
fn data_that_is_authenticated_only_is_sent_by_reference_and_ciphertext_from_the_pool() {
    for digest in AeadDigest::ALL {
        let pool = Pool::new(1 << 20);
        let mut writer = writer(digest, &pool);
        let mut out = Transmit::new();
        let whole = Bytes::copied_from(&[7; 60_000]);
        let mut kept = Vec::new();
        for _ in 0..20 {
            writer.header(&Bhs::from_bytes([0; BHS_LEN]).with_data_len(4096), &mut out);
            let part = whole.slice(4096, 8192);
            let at = part.as_ptr();
            writer.shared(4096, [part], &mut out);
            let is_shared = out.pieces().any(|piece| piece.as_ptr() == at);
            assert_eq!(is_shared, digest.mode == AeadMode::Integrity);
            out.clear(&pool);
            kept.push(pool.kept_bytes());
        }
        // The first PDU takes a buffer that every later one takes again.
        let expected = if digest.mode == AeadMode::Integrity { 0 } else { 4096 };
        assert!(kept.iter().all(|kept| *kept == expected), "{digest:?}: {kept:?}");
    }
}

#[test]
fn plaintext_that_nobody_else_holds_returns_to_the_pool() {
    for digest in AeadDigest::ALL {
        let pool = Pool::new(1 << 20);
        let mut writer = writer(digest, &pool);
        let mut out = Transmit::new();
        for parts in [1, 2, 3] {
            for _ in 0..3 {
                let data: Vec<Bytes> = (0..parts)
                    .map(|_| {
                        let mut buf = pool.take(4096);
                        buf.append(&[7; 4096]);
                        buf.freeze()
                    })
                    .collect();
                writer.header(&Bhs::from_bytes([0; BHS_LEN]).with_data_len(parts * 4096), &mut out);
                writer.shared(parts * 4096, data, &mut out);
                out.clear(&pool);
            }
            assert!(pool.kept_bytes() >= parts * 4096, "{digest:?}: {parts} parts");
        }
    }
}

/// Ten PDUs with data, and their bytes as sealed.
fn ten(seed: u64, digest: AeadDigest) -> (Rng, Vec<Plain>, Vec<Vec<u8>>) {
    let mut rng = Rng::from_seed(seed);
    let pdus: Vec<Plain> = core::iter::repeat_with(|| Plain::random(&mut rng))
        .filter(|pdu| !pdu.data.is_empty() && pdu.data.len() < 9000)
        .take(10)
        .collect();
    let sealed = seal(seed, digest, &pdus);
    (rng, pdus, sealed)
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(u64::try_from(bound).unwrap())).unwrap()
}

#[test]
fn a_damaged_data_segment_is_not_accepted_and_later_pdus_are() {
    for digest in AeadDigest::ALL {
        for seed in 0..40 {
            let (mut rng, pdus, mut sealed) = ten(seed, digest);
            let victim = below(&mut rng, pdus.len());
            let data_at = pdus[victim].header().len() + TAG_LEN;
            let at = data_at + below(&mut rng, sealed[victim].len() - data_at);
            sealed[victim][at] ^= 1 << rng.below(8);
            let expected: Vec<&Plain> = pdus.iter().collect();
            let outcome = receive(&mut rng, &mut receiver(digest), &sealed.concat(), &expected);
            assert_eq!(outcome.error, None, "seed {seed}: {digest:?}");
            assert_eq!(outcome.pdus.len(), pdus.len(), "seed {seed}: {digest:?}");
            for (number, (pdu, got)) in pdus.iter().zip(&outcome.pdus).enumerate() {
                assert!(got.0 == pdu.header(), "seed {seed}: {digest:?}");
                // The sink of the victim's data may have been none.
                assert!(got.1.is_some() || number == victim, "seed {seed}: {digest:?}");
            }
        }
    }
}

/// What somebody on the way can do with whole streams of PDUs.
#[derive(Clone, Copy, Debug)]
enum Attack {
    FlipHeader,
    Truncate,
    Replay,
    Reorder,
    Drop,
    Reflect,
    Splice,
    Insert,
    OtherDigest,
}

const ATTACKS: [Attack; 9] = [
    Attack::FlipHeader,
    Attack::Truncate,
    Attack::Replay,
    Attack::Reorder,
    Attack::Drop,
    Attack::Reflect,
    Attack::Splice,
    Attack::Insert,
    Attack::OtherDigest,
];

/// Changes a stream from PDU `at` on.
fn attack(
    rng: &mut Rng,
    attack: Attack,
    digest: AeadDigest,
    pdus: &[Plain],
    sealed: &mut Vec<Vec<u8>>,
) -> usize {
    let at = 1 + below(rng, sealed.len() - 2);
    match attack {
        Attack::FlipHeader => {
            let header = pdus[at].header().len() + TAG_LEN;
            // Half of them in the lengths.
            let byte = if rng.chance(1, 2) { below(rng, READABLE_LEN) } else { below(rng, header) };
            sealed[at][byte] ^= 1 << rng.below(8);
        }
        Attack::Truncate => {
            let len = sealed[at].len();
            sealed[at].truncate(len - 1 - below(rng, len - 1));
        }
        Attack::Replay => {
            let old = sealed[below(rng, at)].clone();
            sealed.insert(at, old);
        }
        Attack::Reorder => sealed.swap(at, at + 1),
        Attack::Drop => {
            sealed.remove(at);
        }
        Attack::Reflect | Attack::Splice => {
            let (role, connection) =
                if matches!(attack, Attack::Reflect) { (Role::Target, 3) } else { (Role::Initiator, 4) };
            let encryptor = keys(connection).encryptor(role, digest, LIMITS);
            let pool = Pool::new(0);
            let mut writer = PduWriter::new(&ConnectionParameters::default(), Some(encryptor), &pool);
            let mut out = Transmit::new();
            for pdu in &pdus[..=at] {
                out.clear(&pool);
                pdu.send(rng, &mut writer, &mut out);
            }
            sealed[at] = out.pieces().flatten().copied().collect();
        }
        Attack::Insert => {
            let mut forged = pdus[at].header();
            forged.extend_from_slice(&[0; TAG_LEN]);
            rng.fill(&mut forged[READABLE_LEN..]);
            sealed.insert(at, forged);
        }
        Attack::OtherDigest => {
            let other = AeadDigest::ALL.into_iter().find(|other| *other != digest).unwrap();
            sealed[at] = seal(1, other, pdus).swap_remove(at);
        }
    }
    at
}

#[test]
fn nothing_that_somebody_else_made_is_accepted() {
    for digest in AeadDigest::ALL {
        for kind in ATTACKS {
            for seed in 0..12 {
                let (mut rng, pdus, mut sealed) = ten(seed, digest);
                let at = attack(&mut rng, kind, digest, &pdus, &mut sealed);
                let expected: Vec<&Plain> = pdus.iter().collect();
                let outcome = receive(&mut rng, &mut receiver(digest), &sealed.concat(), &expected);
                let what = alloc::format!("seed {seed}: {kind:?} at {at}: {digest:?}");
                // A truncated PDU takes the bytes of the next one for its own, so its data is wrong first.
                let most = at + usize::from(matches!(kind, Attack::Truncate));
                assert!(outcome.pdus.len() <= most, "{what}");
                for (pdu, got) in pdus.iter().zip(&outcome.pdus).take(at) {
                    assert!(*got == as_received(pdu), "{what}");
                }
                if let Some(got) = outcome.pdus.get(at) {
                    assert!(got.0 == pdus[at].header(), "{what}");
                }
                // A length that was made longer waits for bytes that nobody sends.
                let waits = matches!(kind, Attack::FlipHeader | Attack::Truncate) && outcome.error.is_none();
                assert!(waits || outcome.error == Some(StreamError::HeaderDigest), "{what}");
            }
        }
    }
}

/// Sends `count` PDUs, of which those that `is_bad` names have a damaged data segment. Returns after how many
/// PDUs the receiver gave up.
fn tamper(digest: AeadDigest, count: usize, is_bad: impl Fn(usize) -> bool) -> Option<usize> {
    let pdu = Plain {
        bhs: Bhs::from_bytes([0; BHS_LEN]).with_data_len(16),
        ahs: Vec::new(),
        data: alloc::vec![7; 16],
    };
    let mut sealed = seal(1, digest, &alloc::vec![pdu; count]);
    let mut receiver = receiver(digest);
    for (number, bytes) in sealed.iter_mut().enumerate() {
        *bytes.last_mut().unwrap() ^= u8::from(is_bad(number));
        let mut rest = &bytes[..];
        loop {
            match receiver.advance(&mut rest) {
                Ok(FramingEvent::NeedMoreBytes) => break,
                Ok(FramingEvent::Header(_)) => receiver.set_sink(DataSink::Append(Buf::with_capacity(16))),
                Ok(FramingEvent::Pdu(pdu)) => assert_eq!(pdu.digest_ok, !is_bad(number)),
                Ok(FramingEvent::Damaged) => panic!("a header is damaged"),
                Err(StreamError::Modified) => return Some(number + 1),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    None
}

#[test]
fn the_stream_ends_when_more_than_one_data_segment_in_64_is_damaged_for_long() {
    for digest in AeadDigest::ALL {
        assert_eq!(tamper(digest, 20, |_| true), Some(16));
        assert_eq!(tamper(digest, 60, |number| number % 2 == 0), Some(33));
        assert_eq!(tamper(digest, 4000, |number| number % 65 == 0), None);
        assert_eq!(tamper(digest, 4000, |number| number < 15), None);
    }
}
