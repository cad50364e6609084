use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use base::rng::Rng;
use security::opaque::{
    KE2_LEN, Password, PasswordRecord, PendingClientLogin, SessionKey, StretchCost, StretchJob,
};
use security::random::HmacDrbg;
use zeroize::Zeroizing;

use super::login_keys::{CONFIRMATION_LEN, ConnectionKeys, LoginKeys};
use super::*;
use crate::keys::Role;
use crate::login::transcript::{CONFIRMATION_KEY, CONFIRMATION_PAIR_LEN, LoginTranscript};
use crate::login::{LoginRequest, LoginResponse, Stage, VERSION};
use crate::name::Tsih;
use crate::text::value::to_hex;

const LIMITS: GenerationLimits = GenerationLimits { pdus: 3, bytes: 1 << 20 };

fn keys() -> ConnectionKeys {
    LoginKeys::new(&Zeroizing::new([1; 64]), &[2; 64]).connection_keys(&[3; 64])
}

fn pair(digest: AeadDigest) -> (Encryptor, Decryptor) {
    let keys = keys();
    (keys.encryptor(Role::Initiator, digest, LIMITS), keys.decryptor(Role::Target, digest, LIMITS))
}

/// Returns a header segment with `ahs_len` bytes of additional segments, for `data_len` bytes of data.
fn header(ahs_len: usize, data_len: usize) -> Vec<u8> {
    let mut out: Vec<u8> = (0..BHS_LEN + ahs_len).map(|at| u8::try_from(at).unwrap()).collect();
    out[4] = u8::try_from(ahs_len / 4).unwrap();
    out[5..8].copy_from_slice(&u32::try_from(data_len).unwrap().to_be_bytes()[1..]);
    out
}

/// A PDU after sealing: its segments with their tags.
#[derive(Clone, Debug, PartialEq)]
struct Sealed {
    header: Vec<u8>,
    header_tag: [u8; TAG_LEN],
    data: Vec<u8>,
    data_tag: [u8; TAG_LEN],
}

fn sealed(encryptor: &mut Encryptor, header: &[u8], data: &[u8]) -> Sealed {
    let (mut header, mut data) = (header.to_vec(), data.to_vec());
    let header_tag = encryptor.seal_header(&mut header).unwrap();
    let data_tag = if data.is_empty() { [0; TAG_LEN] } else { encryptor.seal_data(&mut data).unwrap() };
    Sealed { header, header_tag, data, data_tag }
}

fn opened(decryptor: &mut Decryptor, mut pdu: Sealed) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    decryptor.open_header(&mut pdu.header, &pdu.header_tag)?;
    let intact = pdu.data.is_empty() || decryptor.open_data(&mut pdu.data, &pdu.data_tag).is_some();
    Some((pdu.header, intact.then_some(pdu.data)))
}

#[test]
fn names_are_found_and_follow_the_form_of_the_standard() {
    for digest in AeadDigest::ALL {
        assert!(digest.name().starts_with("Y-org.targe."), "{digest:?}");
        assert_eq!(AeadDigest::by_name(digest.name()), Some(digest));
    }
    assert_eq!(AeadDigest::by_name("CRC32C"), None);
    assert_eq!(AeadDigest::by_name(""), None);
}

#[test]
fn the_receiver_opens_what_was_sealed_in_every_mode_over_many_generations() {
    for digest in AeadDigest::ALL {
        let (mut encryptor, mut decryptor) = pair(digest);
        for number in 0..20 {
            let (ahs_len, data_len) = (4 * (number % 3), 4 * (number % 4));
            let (header, data) = (header(ahs_len, data_len), (0..data_len).map(|_| 7).collect::<Vec<u8>>());
            let pdu = sealed(&mut encryptor, &header, &data);
            assert_eq!(pdu.header[..READABLE_LEN], header[..READABLE_LEN]);
            let readable = pdu.header == header && pdu.data == data;
            assert_eq!(readable, digest.mode == AeadMode::Integrity, "{digest:?} {number}");
            assert_eq!(opened(&mut decryptor, pdu), Some((header, Some(data))), "{digest:?} {number}");
        }
    }
}

#[test]
fn no_bit_of_a_segment_or_tag_can_be_changed() {
    for digest in AeadDigest::ALL {
        let pdu = sealed(&mut pair(digest).0, &header(4, 5), b"datum\0\0\0");
        let whole = (header(4, 5), Some(b"datum\0\0\0".to_vec()));
        assert_eq!(opened(&mut pair(digest).1, pdu.clone()).as_ref(), Some(&whole));
        for bit in 0..pdu.header.len() * 8 {
            let mut hurt = pdu.clone();
            hurt.header[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&mut pair(digest).1, hurt), None, "{digest:?}, header bit {bit}");
        }
        for bit in 0..pdu.data.len() * 8 {
            let mut hurt = pdu.clone();
            hurt.data[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&mut pair(digest).1, hurt), Some((header(4, 5), None)), "{digest:?}, {bit}");
        }
        for bit in 0..TAG_LEN * 8 {
            let (mut first, mut second) = (pdu.clone(), pdu.clone());
            first.header_tag[bit / 8] ^= 1 << (bit % 8);
            second.data_tag[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&mut pair(digest).1, first), None, "{digest:?}, tag bit {bit}");
            assert_eq!(opened(&mut pair(digest).1, second), Some((header(4, 5), None)), "{digest:?}, {bit}");
        }
    }
}

#[test]
fn pdus_are_opened_in_their_order_by_the_other_side_of_the_same_connection_alone() {
    for digest in AeadDigest::ALL {
        let (mut encryptor, mut decryptor) = pair(digest);
        let pdus: Vec<Sealed> = (0..3).map(|_| sealed(&mut encryptor, &header(0, 4), b"data")).collect();
        let [first, second, third] = pdus.as_slice() else { panic!() };
        let whole = Some((header(0, 4), Some(b"data".to_vec())));
        let fresh = || pair(digest).1;
        assert_eq!(opened(&mut fresh(), second.clone()), None, "a PDU was left out");
        assert_eq!(opened(&mut decryptor, first.clone()), whole);
        assert_eq!(opened(&mut fresh(), Sealed { data: second.data.clone(), ..first.clone() }), {
            // In the mode that only authenticates, equal data has different tags.
            let same = second.data == first.data;
            Some((header(0, 4), same.then(|| b"data".to_vec())))
        });
        let spliced = Sealed { data_tag: third.data_tag, data: third.data.clone(), ..second.clone() };
        assert_eq!(opened(&mut decryptor, spliced), Some((header(0, 4), None)), "the data of another PDU");
        assert_eq!(opened(&mut decryptor, third.clone()), whole, "a damaged data segment harms no later PDU");
        let mut replayed = fresh();
        assert_eq!(opened(&mut replayed, first.clone()), whole);
        assert_eq!(opened(&mut replayed, first.clone()), None, "replayed");
        let mut own = keys().decryptor(Role::Initiator, digest, LIMITS);
        assert_eq!(opened(&mut own, first.clone()), None, "reflected");
        let keys = LoginKeys::new(&Zeroizing::new([1; 64]), &[2; 64]).connection_keys(&[4; 64]);
        let mut other = keys.decryptor(Role::Target, digest, LIMITS);
        assert_eq!(opened(&mut other, first.clone()), None, "another connection");
    }
}

#[test]
fn a_connection_of_one_mode_or_algorithm_does_not_open_the_pdus_of_another() {
    for ours in AeadDigest::ALL {
        for theirs in AeadDigest::ALL.into_iter().filter(|theirs| *theirs != ours) {
            let pdu = sealed(&mut pair(ours).0, &header(0, 0), &[]);
            assert_eq!(opened(&mut pair(theirs).1, pdu), None, "{ours:?} {theirs:?}");
        }
    }
}

#[test]
fn a_segment_is_sealed_once_and_only_if_the_header_announces_it() {
    let (mut encryptor, mut decryptor) = pair(AeadDigest::ALL[0]);
    assert_eq!(encryptor.seal_data(&mut [0; 4]), None, "before any header");
    assert!(encryptor.seal_header(&mut header(0, 4)).is_some());
    assert!(encryptor.seal_data(&mut [0; 4]).is_some());
    assert_eq!(encryptor.seal_data(&mut [0; 4]), None, "twice");
    assert!(encryptor.seal_header(&mut header(0, 0)).is_some());
    assert_eq!(encryptor.seal_data(&mut [0; 4]), None, "not announced");
    for len in [0, BHS_LEN - 1, BHS_LEN + 4] {
        let mut wrong = header(4, 4);
        wrong[4] = 0;
        wrong.resize(len, 0);
        assert_eq!(encryptor.seal_header(&mut wrong), None, "{len}");
        assert_eq!(decryptor.open_header(&mut wrong, &[0; TAG_LEN]), None, "{len}");
    }
    assert_eq!(decryptor.open_data(&mut [0; 4], &[0; TAG_LEN]), None);
}

#[test]
fn both_sides_change_keys_after_the_same_pdu_and_count_bytes_and_pdus() {
    for limits in [GenerationLimits { pdus: 4, bytes: u64::MAX }, GenerationLimits { pdus: 99, bytes: 160 }] {
        let digest = AeadDigest::ALL[0];
        let mut encryptor = keys().encryptor(Role::Initiator, digest, limits);
        let first = encryptor.0.secret.clone();
        // Each PDU has 48 + 4 bytes, since padding counts, so the fourth one crosses 160 bytes.
        for _ in 0..4 {
            assert_eq!(encryptor.0.secret.secret_bytes(), first.secret_bytes());
            sealed(&mut encryptor, &header(0, 1), &[0; 4]);
        }
        sealed(&mut encryptor, &header(0, 1), &[0; 4]);
        assert_eq!(encryptor.0.secret.secret_bytes(), first.expand(UPDATE).secret_bytes());
        assert_eq!(encryptor.0.pdu, 4, "PDU numbers go on");
    }
}

#[test]
fn noise_and_cut_segments_are_refused_without_harm() {
    let seed = 20_261_124;
    let mut rng = Rng::from_seed(seed);
    for digest in AeadDigest::ALL {
        for _ in 0..1000 {
            let mut noise = alloc::vec![0; usize::try_from(rng.below(200)).unwrap()];
            rng.fill(&mut noise);
            let tag_len = noise.len().min(usize::try_from(rng.below(20)).unwrap());
            let (tag, segment) = noise.split_at_mut(tag_len);
            assert_eq!(pair(digest).1.open_header(segment, tag), None, "seed {seed}");
        }
    }
}

/// A login of the vectors: what the initiator and the target say, PDU by PDU.
struct Login {
    transcript: LoginTranscript,
    out: String,
}

const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];

impl Login {
    fn request(&mut self, stage: Stage, next: Option<Stage>, text: &[u8]) {
        let request = request(stage, next, text);
        line(&mut self.out, "Login Request, text", text);
        self.transcript.add_request(&request);
    }

    fn response(&mut self, stage: Stage, next: Option<Stage>, text: &[u8]) {
        let response = response(stage, next, text);
        line(&mut self.out, "Login Response, text", text);
        self.transcript.add_response(&response);
    }
}

fn request(csg: Stage, next: Option<Stage>, data: &[u8]) -> LoginRequest<'_> {
    LoginRequest {
        transit: next.is_some(),
        cont: false,
        csg,
        nsg: next.unwrap_or(Stage(0)),
        version_max: VERSION,
        version_min: VERSION,
        isid: ISID,
        tsih: 0,
        itt: 0x0102_0304,
        cid: 5,
        cmd_sn: 1,
        exp_stat_sn: 0,
        data,
    }
}

fn response(csg: Stage, next: Option<Stage>, data: &[u8]) -> LoginResponse {
    LoginResponse {
        transit: next.is_some(),
        cont: false,
        csg,
        nsg: next.unwrap_or(Stage(0)),
        version_max: VERSION,
        version_active: VERSION,
        isid: ISID,
        tsih: 0,
        itt: 0x0102_0304,
        status_class: 0,
        status_detail: 0,
        data: data.to_vec(),
    }
}

fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a line `name = hex`, broken after 32 bytes.
fn line(out: &mut String, name: &str, bytes: &[u8]) {
    writeln!(out, "{name} =").unwrap();
    bytes.chunks(32).for_each(|part| writeln!(out, "  {}", hex(part)).unwrap());
}

const USER: &str = "alice";
const PASSWORD: &str = "correct horse";

/// Runs a login with fixed random bytes. Returns its keys, and the record of what was said.
fn login() -> (LoginKeys, SessionKey, Login) {
    let password = Password::new(PASSWORD.as_bytes()).unwrap();
    let cost = StretchCost { memory_kib: 64, passes: 3, lanes: 1 };
    let record = PasswordRecord::make(&password, USER, cost, [1; 32]).unwrap();
    let mut random = HmacDrbg::new([2; 32]);
    let (attempt, ke1) = PendingClientLogin::start(&password, &mut random).unwrap();
    let mut login = Login { transcript: LoginTranscript::new(), out: String::new() };
    line(&mut login.out, "password", PASSWORD.as_bytes());
    let (blind, private) = attempt.secret_values();
    line(&mut login.out, "the initiator's blind, as a scalar", &blind);
    line(&mut login.out, "the initiator's ephemeral private key", &private);
    let (security, operational) = (Stage::SECURITY, Stage::OPERATIONAL);
    let names = [
        ("InitiatorName", "iqn.2026-11.org.example:host"),
        ("SessionType", "Normal"),
        ("TargetName", "iqn.2026-11.org.example:disk"),
        ("AuthMethod", "Z-org.targe.opaque"),
    ];
    login.request(security, None, &text(&names));
    login.response(
        security,
        None,
        &text(&[("TargetPortalGroupTag", "1"), ("AuthMethod", "Z-org.targe.opaque")]),
    );
    login.request(security, None, &text(&[("X-org.targe.user", USER), ("X-org.targe.ke1", &to_hex(&ke1))]));
    let context = login.transcript.digest();
    let (pending, ke2) = record.answer(USER, &ke1, &context, &mut random).unwrap();
    login.response(
        security,
        None,
        &text(&[("X-org.targe.stretch", "64,3,1"), ("X-org.targe.ke2", &to_hex(&ke2))]),
    );
    assert_eq!(ke2.len(), KE2_LEN);
    let (entropy, user, digest) = (Zeroizing::new([3; 32]), USER.as_bytes().to_vec(), [0; 64]);
    let job = StretchJob { attempt, password, user, cost, ke2, context, entropy, digest };
    let proof = job.run().result.unwrap();
    assert_eq!(pending.finish(&proof.ke3).unwrap(), proof.secret);
    login.request(security, Some(operational), &text(&[("X-org.targe.ke3", &to_hex(&proof.ke3))]));
    login.response(security, Some(operational), &[]);
    line(&mut login.out, "context", &context);
    line(&mut login.out, "OPAQUE's session key", &*proof.secret);
    (LoginKeys::new(&proof.secret, &context), proof.secret, login)
}

/// Returns the vectors of the specification, computed by this code.
fn vectors() -> String {
    let (keys, _, mut login) = login();
    let (operational, last) = (Stage::OPERATIONAL, Stage::FULL_FEATURE);
    let digest = AeadDigest::ALL[0];
    let lists = format!("{},{},CRC32C", digest.name(), AeadDigest::ALL[1].name());
    let confirmed = |pairs: &[(&str, &str)], confirmation: &[u8]| {
        let mut pairs = pairs.to_vec();
        let value = to_hex(confirmation);
        pairs.push((CONFIRMATION_KEY, &value));
        text(&pairs)
    };
    for (side, list) in [(Role::Initiator, lists.as_str()), (Role::Target, digest.name())] {
        let pairs = [("HeaderDigest", list), ("DataDigest", list)];
        let draft = confirmed(&pairs, &[0; CONFIRMATION_LEN]);
        let transcript = match side {
            Role::Initiator => {
                login.transcript.confirmed_by_request(&request(operational, Some(last), &draft))
            }
            Role::Target => {
                login.transcript.confirmed_by_response(&response(operational, Some(last), &draft))
            }
        };
        let confirmation = keys.confirmation(side, &transcript.unwrap());
        let whole = confirmed(&pairs, &confirmation);
        match side {
            Role::Initiator => login.request(operational, Some(last), &whole),
            Role::Target => login.response(operational, Some(last), &whole),
        }
    }
    let Login { transcript, mut out } = login;
    let tsih = Tsih(7);
    line(&mut out, "TSIH of the last Login Response", &tsih.0.to_be_bytes());
    let transcript = transcript.finish(tsih);
    line(&mut out, "transcript of the whole login", &transcript);
    let keys = keys.connection_keys(&transcript);
    for (name, role) in [("initiator to target", Role::Initiator), ("target to initiator", Role::Target)] {
        let mut secret = keys.secret_of(role);
        for generation in 0..2 {
            line(&mut out, &format!("{name}, secret {generation}"), secret.secret_bytes());
            line(&mut out, &format!("{name}, key {generation}"), &*secret.derive::<32>("key"));
            line(&mut out, &format!("{name}, iv {generation}"), &*secret.derive::<12>("iv"));
            secret = secret.expand(UPDATE);
        }
    }
    let (header, data) = (header(4, 5), *b"iSCSI\0\0\0");
    line(&mut out, "header segment of each PDU", &header);
    line(&mut out, "data segment of each PDU, with its padding", &data);
    let limits = GenerationLimits { pdus: 2, bytes: u64::MAX };
    for digest in AeadDigest::ALL {
        let mut encryptor = keys.encryptor(Role::Target, digest, limits);
        for number in 0..3 {
            let pdu = sealed(&mut encryptor, &header, &data);
            let whole = [&pdu.header[..], &pdu.header_tag, &pdu.data, &pdu.data_tag].concat();
            line(&mut out, &format!("{}, PDU {number} of the target", digest.name()), &whole);
        }
    }
    out
}

#[test]
fn login_keys_and_records_are_those_of_the_specification() {
    let made = vectors();
    assert_eq!(made, include_str!("vectors.txt"), "made now:\n{made}");
    let document = include_str!("../../../../docs/iscsi-aead.md");
    assert!(document.contains(&made), "docs/iscsi-aead.md prints other vectors");
}

#[test]
fn a_change_to_any_part_of_a_login_changes_the_transcript() {
    let original = request(Stage::SECURITY, None, b"a=b\0");
    let of = |request: &LoginRequest<'_>| {
        let mut transcript = LoginTranscript::new();
        transcript.add_request(request);
        transcript.digest()
    };
    let changed = [
        LoginRequest { transit: true, ..original },
        LoginRequest { cont: true, ..original },
        LoginRequest { csg: Stage::OPERATIONAL, ..original },
        LoginRequest { nsg: Stage::FULL_FEATURE, ..original },
        LoginRequest { version_max: 1, ..original },
        LoginRequest { version_min: 1, ..original },
        LoginRequest { isid: [0; 6], ..original },
        LoginRequest { tsih: 1, ..original },
        LoginRequest { itt: 1, ..original },
        LoginRequest { cid: 1, ..original },
        LoginRequest { cmd_sn: 2, ..original },
        LoginRequest { data: b"a=c\0", ..original },
        LoginRequest { data: b"a=b\0\0", ..original },
    ];
    for request in &changed {
        assert_ne!(of(request), of(&original), "{request:?}");
    }
    let mut answered = LoginTranscript::new();
    answered.add_response(&response(Stage::SECURITY, None, b"a=b\0"));
    assert_ne!(answered.digest(), of(&original), "a request is no response");
    let finish = |tsih| LoginTranscript::new().finish(Tsih(tsih));
    assert_ne!(finish(1), finish(2));
}

#[test]
fn a_confirmation_differs_for_each_side_and_needs_room_in_the_text() {
    let keys = LoginKeys::new(&Zeroizing::new([1; 64]), &[2; 64]);
    let of = |side, transcript: u8| keys.confirmation(side, &[transcript; 64]);
    assert_ne!(of(Role::Initiator, 1), of(Role::Target, 1));
    assert_ne!(of(Role::Initiator, 1), of(Role::Initiator, 2));
    let pair = text(&[(CONFIRMATION_KEY, &to_hex(&[0; CONFIRMATION_LEN]))]);
    assert_eq!(pair.len(), CONFIRMATION_PAIR_LEN);
    let transcript = LoginTranscript::new();
    let short = request(Stage::OPERATIONAL, None, &pair[1..]);
    assert_eq!(transcript.confirmed_by_request(&short), None);
    assert!(transcript.confirmed_by_request(&request(Stage::OPERATIONAL, None, &pair)).is_some());
}
