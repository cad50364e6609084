use super::super::key_rules::KeyRules;
use super::super::{DigestPolicy, KeyPolicy};
use super::*;
use crate::aead::AeadDigest;
use crate::login::Stage;
use crate::text::parse;
use alloc::format;
use alloc::vec;
use base::rng::Rng;
use security::Level;

/// Passes `text` (pairs divided by spaces) to `negotiator` and returns its answers in the same form.
fn say(negotiator: &mut Negotiator, text: &str) -> Result<String, BadNegotiation> {
    let mut out = TextBuilder::new();
    let text: String = text.split_whitespace().flat_map(|pair| [pair, "\0"]).collect();
    let pairs = parse(text.as_bytes()).unwrap();
    let pairs: Vec<_> =
        pairs.into_iter().map(|pair| (Key::by_name(pair.name.as_bytes()).unwrap(), pair)).collect();
    negotiator.receive(&pairs, &mut out)?;
    Ok(shown(out))
}

fn shown(out: TextBuilder) -> String {
    let text = String::from_utf8(out.into_bytes()).unwrap();
    text.trim_end_matches('\0').replace('\0', " ")
}

fn offers_of(negotiator: &mut Negotiator, all: bool) -> String {
    let mut out = TextBuilder::new();
    if all {
        negotiator.offer_all(&mut out);
    } else {
        negotiator.declare(&mut out);
        negotiator.offer_unacceptable(&mut out);
    }
    shown(out)
}

fn target(policy: KeyPolicy) -> Negotiator {
    Negotiator::new(Role::Target, policy, LoginContext::Leading)
}

fn modest() -> KeyPolicy {
    KeyPolicy {
        max_connections: 1,
        max_recv_data_segment_length: 65_536,
        max_burst_length: 262_144,
        first_burst_length: 65_536,
        max_outstanding_r2t: 4,
        error_recovery_level: 1,
        ..KeyPolicy::default()
    }
}

#[test]
fn the_target_answers_each_offer_with_the_result() {
    //= rfc7143#section-6.2
    //= type=test
    //# All negotiations are explicit (i.e., the result MUST only be based on newly exchanged
    //# or declared values).
    //= rfc7143#section-6.2.1
    //= type=test
    //# The responding party MUST respond with the same key and the first value that it
    //# supports (and is allowed to use for the specific originator) selected from the
    //# originator list.
    //= rfc7143#section-6.2.1
    //= type=test
    //# If an acceptor does not understand any particular value in a list, it MUST ignore it.
    //= rfc7143#section-6.2.2
    //= type=test
    //# For simple-value negotiations, the accepting party MUST answer with the same key.
    //= rfc7143#section-6.2.2
    //= type=test
    //# Proposing a value not admissible (e.g., not within the specified bounds) MAY be
    //# answered with the constant "Reject"; otherwise, the acceptor MUST select an admissible
    //# value.
    //= rfc7143#section-6.2.2
    //= type=test
    //# For Boolean negotiations (i.e., keys taking the values "Yes" or "No"), the accepting
    //# party MUST answer with the same key and the result of the negotiation when the
    //# received value does not determine that result by itself.
    //= rfc7143#section-11.12.10
    //= type=test
    //# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI
    //# initiators and targets.
    //= rfc7143#section-11.13.8
    //= type=test
    //# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI
    //# initiators and targets.
    for (offer, answer) in [
        ("HeaderDigest=CRC32C,None", "HeaderDigest=CRC32C"),
        ("HeaderDigest=None,CRC32C", "HeaderDigest=None"),
        ("DataDigest=Y-aead,CRC32C", "DataDigest=CRC32C"),
        ("DataDigest=Y-aead", "DataDigest=Reject"),
        ("DataDigest=", "DataDigest=Reject"),
        ("DataDigest=crc32c", "DataDigest=Reject"),
        ("MaxConnections=8", "MaxConnections=1"),
        ("MaxConnections=0", "MaxConnections=Reject"),
        ("MaxConnections=65536", "MaxConnections=Reject"),
        ("InitialR2T=No", "InitialR2T=No"),
        ("InitialR2T=Yes", "InitialR2T=Yes"),
        ("InitialR2T=yes", "InitialR2T=Reject"),
        ("ImmediateData=Yes", "ImmediateData=Yes"),
        ("ImmediateData=No", "ImmediateData=No"),
        ("MaxBurstLength=16776192", "MaxBurstLength=262144"),
        ("MaxBurstLength=0x1000", "MaxBurstLength=4096"),
        ("MaxBurstLength=511", "MaxBurstLength=Reject"),
        ("MaxBurstLength=16777216", "MaxBurstLength=Reject"),
        ("MaxBurstLength=01000", "MaxBurstLength=Reject"),
        ("FirstBurstLength=262144", "FirstBurstLength=65536"),
        ("FirstBurstLength=65536 MaxBurstLength=4096", "FirstBurstLength=4096 MaxBurstLength=4096"),
        (
            "FirstBurstLength=4096 InitialR2T=Yes ImmediateData=No",
            "FirstBurstLength=4096 InitialR2T=Yes ImmediateData=No",
        ),
        ("DefaultTime2Wait=0", "DefaultTime2Wait=2"),
        ("DefaultTime2Wait=60", "DefaultTime2Wait=60"),
        ("DefaultTime2Retain=0", "DefaultTime2Retain=0"),
        ("DefaultTime2Retain=3601", "DefaultTime2Retain=Reject"),
        ("MaxOutstandingR2T=16", "MaxOutstandingR2T=4"),
        ("DataPDUInOrder=No", "DataPDUInOrder=Yes"),
        ("ErrorRecoveryLevel=2", "ErrorRecoveryLevel=1"),
        ("ErrorRecoveryLevel=3", "ErrorRecoveryLevel=Reject"),
        ("TaskReporting=FastAbort,RFC3720", "TaskReporting=RFC3720"),
        ("iSCSIProtocolLevel=31", "iSCSIProtocolLevel=2"),
        ("IFMarker=No OFMarker=Yes", "IFMarker=No OFMarker=Reject"),
        ("IFMarkInt=2048~8192 OFMarkInt=1", "IFMarkInt=Reject OFMarkInt=Reject"),
        ("MaxRecvDataSegmentLength=4096", ""),
    ] {
        assert_eq!(say(&mut target(modest()), offer), Ok(answer.into()), "{offer}");
    }
}

#[test]
fn what_was_rejected_keeps_its_default() {
    let mut negotiator = target(modest());
    say(&mut negotiator, "MaxBurstLength=1 MaxConnections=0 InitialR2T=Perhaps").unwrap();
    assert_eq!(negotiator.finish().unwrap(), Negotiated::default());
}

#[test]
fn keys_without_meaning_in_a_discovery_session_are_irrelevant() {
    let mut negotiator = Negotiator::new(Role::Target, KeyPolicy::default(), LoginContext::Discovery);
    assert_eq!(
        say(&mut negotiator, "MaxBurstLength=512 ErrorRecoveryLevel=2 HeaderDigest=None MaxConnections=8"),
        Ok("MaxBurstLength=Irrelevant ErrorRecoveryLevel=0 HeaderDigest=None MaxConnections=1".into())
    );
    assert_eq!(negotiator.finish().map(|done| done.session), Ok(SessionParameters::default()));
}

#[test]
fn the_target_offers_only_what_it_cannot_leave_at_its_default() {
    let strict = KeyPolicy {
        header_digest: DigestPolicy::RequireCrc32c,
        immediate_data: false,
        max_burst_length: 131_072,
        default_time2wait: 5,
        ..modest()
    };
    for (policy, said, offers) in [
        (modest(), "", "MaxRecvDataSegmentLength=65536"),
        (
            strict.clone(),
            "",
            "MaxRecvDataSegmentLength=65536 HeaderDigest=CRC32C ImmediateData=No MaxBurstLength=131072 \
             DefaultTime2Wait=5",
        ),
        (
            strict,
            "HeaderDigest=CRC32C MaxBurstLength=512",
            "MaxRecvDataSegmentLength=65536 \
             ImmediateData=No FirstBurstLength=512 DefaultTime2Wait=5",
        ),
    ] {
        let mut negotiator = target(policy);
        say(&mut negotiator, said).unwrap();
        assert_eq!(offers_of(&mut negotiator, false), offers, "{said}");
        assert_eq!(offers_of(&mut negotiator, false), "", "offers are made once");
    }
}

#[test]
fn an_answer_must_be_one_that_the_offer_allows() {
    //= rfc7143#section-6.2.1
    //= type=test
    //# The selection of a value not proposed MUST be handled by the originator as a protocol
    //# error.
    for (answer, allowed) in [
        ("HeaderDigest=None", true),
        ("HeaderDigest=CRC32C,None", false),
        ("HeaderDigest=Y-x", false),
        ("MaxBurstLength=512", true),
        ("MaxBurstLength=262145", false),
        ("MaxBurstLength=0", false),
        ("MaxBurstLength=NotUnderstood", true),
        ("DefaultTime2Wait=2", true),
        ("DefaultTime2Wait=1", false),
        ("InitialR2T=Yes", true),
        ("ImmediateData=No", true),
        ("DataPDUInOrder=No", false),
        ("iSCSIProtocolLevel=NotUnderstood", true),
        ("TaskReporting=Irrelevant", true),
    ] {
        let mut negotiator = Negotiator::new(Role::Initiator, modest(), LoginContext::Leading);
        offers_of(&mut negotiator, true);
        assert_eq!(say(&mut negotiator, answer).is_ok(), allowed, "{answer}");
    }
}

#[test]
fn an_unanswered_offer_fails_unless_it_decides_by_itself() {
    //= rfc7143#section-6.2
    //= type=test
    //# An iSCSI target MUST perform integrity checking before the new parameters take effect.
    //= rfc7143#section-6.2.2
    //= type=test
    //# Responses are REQUIRED in all other cases, and the value chosen and sent by the
    //# acceptor becomes the outcome of the negotiation.
    let policy = KeyPolicy { initial_r2t: true, immediate_data: false, ..modest() };
    let mut negotiator = Negotiator::new(Role::Initiator, policy, LoginContext::Leading);
    let answers = "HeaderDigest=CRC32C DataDigest=None MaxConnections=1 MaxBurstLength=262144 \
                   FirstBurstLength=Irrelevant DefaultTime2Wait=2 DefaultTime2Retain=20 MaxOutstandingR2T=1 \
                   TaskReporting=RFC3720 iSCSIProtocolLevel=1 MaxRecvDataSegmentLength=1024";
    offers_of(&mut negotiator, true);
    say(&mut negotiator, answers).unwrap();
    assert!(negotiator.has_unanswered_offer());
    assert_eq!(negotiator.finish().unwrap_err(), BadNegotiation::Unanswered(Key::ErrorRecoveryLevel));
    say(&mut negotiator, "ErrorRecoveryLevel=0").unwrap();
    let done = negotiator.finish().unwrap();
    assert!(done.session.initial_r2t && !done.session.immediate_data);
    assert_eq!((done.connection.initiator_max_recv, done.connection.target_max_recv), (65_536, 1024));
    assert_eq!(done.connection.header_digest, Digest::Crc32c);
}

#[test]
fn a_side_does_not_live_with_what_its_policy_excludes() {
    let policy = KeyPolicy { data_digest: DigestPolicy::RequireCrc32c, ..modest() };
    let mut negotiator = target(policy);
    assert_eq!(say(&mut negotiator, "DataDigest=None"), Ok("DataDigest=Reject".into()));
    assert_eq!(negotiator.finish().unwrap_err(), BadNegotiation::NoAgreement(Key::DataDigest));
}

#[test]
fn refuses_declarations_that_are_not_legal() {
    for value in ["0", "511", "16777216", "", "many", "Reject"] {
        assert_eq!(
            say(&mut target(modest()), &format!("MaxRecvDataSegmentLength={value}")),
            Err(BadNegotiation::DeclaredIllegal(Key::MaxRecvDataSegmentLength)),
            "{value}"
        );
    }
}

/// Answers to answers would never end, so an unsolicited answer is an error.
#[test]
fn refuses_an_answer_to_what_was_not_offered() {
    //= rfc7143#section-6.2
    //= type=test
    //# The constants "None", "Reject", "Irrelevant", and "NotUnderstood" are reserved and
    //# MUST ONLY be used as described here.
    for text in ["MaxBurstLength=Reject", "HeaderDigest=NotUnderstood", "InitialR2T=Irrelevant"] {
        assert_eq!(say(&mut target(modest()), text), Err(BadNegotiation::AnswerWithoutOffer), "{text}");
    }
    let unknown = Pair { name: "X-com.example.k", value: b"NotUnderstood" };
    let mut out = TextBuilder::new();
    assert_eq!(answer_unknown(&unknown, &mut out), Err(BadNegotiation::AnswerWithoutOffer));
    answer_unknown(&Pair { value: b"1", ..unknown }, &mut out).unwrap();
    assert_eq!(shown(out), "X-com.example.k=NotUnderstood");
}

#[test]
fn a_joining_connection_negotiates_its_own_keys_only() {
    let parameters = SessionParameters { max_burst_length: 4096, ..SessionParameters::default() };
    let mut negotiator = Negotiator::new(Role::Initiator, modest(), LoginContext::Joining(parameters));
    assert_eq!(
        offers_of(&mut negotiator, true),
        "HeaderDigest=CRC32C,None DataDigest=CRC32C,None MaxRecvDataSegmentLength=65536"
    );
    say(&mut negotiator, "HeaderDigest=None DataDigest=CRC32C").unwrap();
    let done = negotiator.finish().unwrap();
    assert_eq!((done.session, done.connection.data_digest), (parameters, Digest::Crc32c));
}

#[test]
fn the_gate_lets_each_key_in_once_in_its_stage_from_its_side() {
    //= rfc7143#section-6.3
    //= type=test
    //# Authentication-related security keys (Section 12) MUST be completely negotiated within
    //# the Login Phase.
    //= rfc7143#section-6.3
    //= type=test
    //# An attempt to renegotiate/redeclare parameters not specifically allowed MUST be
    //# detected by the initiator and target.
    use BadNegotiation::{KeyFromWrongSide, KeyInWrongStage, KeyOfLeadingConnection, KeyTwice};
    let (security, operational) = (Stage::SECURITY, Stage::OPERATIONAL);
    for (from, leading, key, stage, want) in [
        (Role::Initiator, true, Key::HeaderDigest, operational, Ok(())),
        (Role::Initiator, true, Key::HeaderDigest, security, Err(KeyInWrongStage(Key::HeaderDigest))),
        (Role::Initiator, true, Key::AuthMethod, security, Ok(())),
        (Role::Initiator, true, Key::AuthMethod, operational, Err(KeyInWrongStage(Key::AuthMethod))),
        (Role::Initiator, true, Key::SendTargets, operational, Err(KeyInWrongStage(Key::SendTargets))),
        (Role::Initiator, true, Key::TargetAlias, operational, Err(KeyFromWrongSide(Key::TargetAlias))),
        (Role::Target, true, Key::InitiatorName, security, Err(KeyFromWrongSide(Key::InitiatorName))),
        (
            Role::Initiator,
            false,
            Key::MaxBurstLength,
            operational,
            Err(KeyOfLeadingConnection(Key::MaxBurstLength)),
        ),
        (Role::Initiator, false, Key::SessionType, security, Ok(())),
    ] {
        let mut key_rules = KeyRules::new(from, leading);
        assert_eq!(key_rules.admit(key, stage), want, "{from:?} {key:?}");
        if want.is_ok() {
            assert_eq!(key_rules.admit(key, stage), Err(KeyTwice(key)));
        }
    }
    let mut key_rules = KeyRules::new(Role::Target, true);
    for _ in 0..3 {
        assert_eq!(key_rules.admit(Key::TargetAddress, security), Ok(()));
    }
}

/// Two sides with any policies reach the same result, or both learn that there is none.
#[test]
fn both_sides_end_with_the_same_parameters_whatever_their_policies() {
    let mut agreed = 0;
    for seed in 0..2000 {
        let mut rng = Rng::from_seed(seed);
        let (ours, theirs) = (any_policy(&mut rng), any_policy(&mut rng));
        let setting = if rng.chance(1, 4) { LoginContext::Discovery } else { LoginContext::Leading };
        let mut initiator = Negotiator::new(Role::Initiator, ours, setting);
        let mut target = Negotiator::new(Role::Target, theirs, setting);
        let offers = offers_of(&mut initiator, true);
        let answers = say(&mut target, &offers).unwrap();
        let counter = offers_of(&mut target, false);
        let replies = say(&mut initiator, &format!("{answers} {counter}")).unwrap();
        say(&mut target, &replies).unwrap();
        match (initiator.finish(), target.finish()) {
            (Ok(a), Ok(b)) => {
                assert_eq!(a, b, "seed {seed}");
                agreed += 1;
            }
            (a, b) => {
                let digest = |result: Result<Negotiated, BadNegotiation>| {
                    matches!(
                        result,
                        Ok(_) | Err(BadNegotiation::NoAgreement(Key::HeaderDigest | Key::DataDigest))
                    )
                };
                assert!(digest(a) && digest(b), "seed {seed}: {a:?} {b:?}");
            }
        }
    }
    assert!(agreed > 1000, "{agreed}");
}

fn any_policy(rng: &mut Rng) -> KeyPolicy {
    let digests = [
        DigestPolicy::PreferCrc32c,
        DigestPolicy::PreferNone,
        DigestPolicy::RequireCrc32c,
        DigestPolicy::RequireNone,
    ];
    let digest = |rng: &mut Rng| digests[usize::try_from(rng.below(4)).unwrap()];
    let number = |rng: &mut Rng, max: u64| u32::try_from(rng.below(max)).unwrap();
    let short = |rng: &mut Rng, max: u64| u16::try_from(rng.below(max)).unwrap();
    KeyPolicy {
        header_digest: digest(rng),
        data_digest: digest(rng),
        aead_digests: &AeadDigest::ALL[usize::try_from(rng.below(5)).unwrap()..],
        min_protection: [Level::None, Level::Integrity, Level::Encrypt]
            [usize::try_from(rng.below(12)).unwrap().saturating_sub(9)],
        max_connections: short(rng, 65_536),
        initial_r2t: rng.chance(1, 2),
        immediate_data: rng.chance(1, 2),
        max_recv_data_segment_length: number(rng, 1 << 25),
        max_burst_length: number(rng, 1 << 25),
        first_burst_length: number(rng, 1 << 25),
        default_time2wait: short(rng, 5000),
        default_time2retain: short(rng, 5000),
        max_outstanding_r2t: short(rng, 65_536),
        data_pdu_in_order: rng.chance(1, 2),
        data_sequence_in_order: rng.chance(1, 2),
        error_recovery_level: u8::try_from(rng.below(4)).unwrap(),
        task_reporting: [&["RFC3720"][..], &["FastAbort", "RFC3720"], &["ResponseFence", "RFC3720"]]
            [usize::try_from(rng.below(3)).unwrap()],
        protocol_level: u8::try_from(rng.below(40)).unwrap(),
    }
}

#[test]
fn no_values_make_the_exchange_panic() {
    let (one, other) = (AeadDigest::ALL[0].name(), AeadDigest::ALL[1].name());
    let aead = format!("{one},CRC32C,{other}");
    let values = [
        "",
        "Yes",
        "No",
        "0",
        "512",
        "16777215",
        "0xffffffffffffffff",
        "CRC32C,None",
        "Reject",
        "~",
        &aead,
        one,
        other,
    ];
    for seed in 0..2000 {
        let mut rng = Rng::from_seed(seed);
        let role = if rng.chance(1, 2) { Role::Target } else { Role::Initiator };
        let mut negotiator = Negotiator::new(role, any_policy(&mut rng), LoginContext::Leading);
        if rng.chance(1, 2) {
            negotiator.permit_aead();
        }
        if rng.chance(1, 2) {
            offers_of(&mut negotiator, rng.chance(1, 2));
        }
        for _ in 0..4 {
            let mut text = vec![];
            for spec in &TABLE {
                if rng.chance(1, 3) {
                    let value = values[usize::try_from(rng.below(13)).unwrap()];
                    text.push(format!("{}={value}", spec.name));
                }
            }
            let _ = say(&mut negotiator, &text.join(" "));
        }
        if let Ok(done) = negotiator.finish() {
            assert!(done.session.first_burst_length <= done.session.max_burst_length, "seed {seed}");
            let (header, data) = (done.connection.header_digest.aead(), done.connection.data_digest.aead());
            assert_eq!(header, data, "seed {seed}");
        }
    }
}

/// Returns a negotiator whose connection has keys.
fn with_keys(role: Role, min_protection: Level) -> Negotiator {
    let policy = KeyPolicy { min_protection, ..modest() };
    let mut negotiator = Negotiator::new(role, policy, LoginContext::Leading);
    negotiator.permit_aead();
    negotiator
}

#[test]
fn an_aead_digest_answers_both_keys_of_one_text_or_none() {
    //= iscsi-aead#section-5
    //= type=test
    //# A target takes the first AEAD digest of HeaderDigest that it supports and that DataDigest offers too,
    //# for both keys; if there is none, it MUST choose for each key as if the AEAD digests were not offered.
    let [a, b, c, _] = AeadDigest::ALL.map(AeadDigest::name);
    for (offers, answers) in [
        (format!("HeaderDigest={a},{b} DataDigest={a},{b}"), format!("HeaderDigest={a} DataDigest={a}")),
        (format!("DataDigest={b},{a} HeaderDigest={a},{b}"), format!("DataDigest={a} HeaderDigest={a}")),
        (format!("HeaderDigest={a},{b} DataDigest={c},{b}"), format!("HeaderDigest={b} DataDigest={b}")),
        (format!("HeaderDigest=Y-x,{b} DataDigest=Y-x,{b}"), format!("HeaderDigest={b} DataDigest={b}")),
        (
            format!("HeaderDigest={a},None DataDigest={b},CRC32C"),
            "HeaderDigest=None DataDigest=CRC32C".into(),
        ),
        (format!("HeaderDigest={a} DataDigest=CRC32C"), "HeaderDigest=Reject DataDigest=CRC32C".into()),
        (format!("HeaderDigest={a},CRC32C"), "HeaderDigest=CRC32C".into()),
    ] {
        let mut target = with_keys(Role::Target, Level::None);
        assert_eq!(say(&mut target, &offers), Ok(answers), "{offers}");
        let done = target.finish().unwrap().connection;
        assert_eq!(done.header_digest.aead(), done.data_digest.aead());
    }
    // The keys in two texts.
    let mut target = with_keys(Role::Target, Level::None);
    assert_eq!(say(&mut target, &format!("HeaderDigest={a},CRC32C")), Ok("HeaderDigest=CRC32C".into()));
    assert_eq!(say(&mut target, &format!("DataDigest={a},CRC32C")), Ok("DataDigest=CRC32C".into()));
}

#[test]
fn two_digests_of_which_one_is_an_aead_end_the_login() {
    //= iscsi-aead#section-5
    //= type=test
    //# HeaderDigest and DataDigest MUST end as the same AEAD digest, or neither as one.
    let [a, b, ..] = AeadDigest::ALL.map(AeadDigest::name);
    for role in [Role::Initiator, Role::Target] {
        for (header, data, mixed) in [
            (a, a, false),
            ("CRC32C", "None", false),
            (a, "CRC32C", true),
            ("None", a, true),
            (a, b, true),
            (a, "Reject", true),
        ] {
            let mut negotiator = with_keys(role, Level::None);
            negotiator.offer(Key::HeaderDigest, &mut TextBuilder::new());
            negotiator.offer(Key::DataDigest, &mut TextBuilder::new());
            say(&mut negotiator, &format!("HeaderDigest={header} DataDigest={data}")).unwrap();
            let end = negotiator.finish().map(|_| ());
            let expected = if mixed { Err(BadNegotiation::AeadDigestsDiffer) } else { Ok(()) };
            assert_eq!(end, expected, "{role:?} {header} {data}");
        }
    }
}

#[test]
fn offers_begin_with_the_aead_digests_that_give_the_required_protection() {
    let offer = |min_protection| {
        let mut out = TextBuilder::new();
        with_keys(Role::Initiator, min_protection).offer(Key::DataDigest, &mut out);
        String::from_utf8(out.into_bytes()).unwrap()
    };
    let names = AeadDigest::ALL.map(AeadDigest::name);
    assert_eq!(offer(Level::None), format!("DataDigest={},CRC32C,None\0", names.join(",")));
    assert_eq!(offer(Level::Integrity), format!("DataDigest={}\0", names.join(",")));
    assert_eq!(offer(Level::Encrypt), format!("DataDigest={}\0", names[..2].join(",")));
    let keyless = KeyPolicy { min_protection: Level::Encrypt, ..modest() };
    let mut keyless = Negotiator::new(Role::Initiator, keyless, LoginContext::Leading);
    let mut out = TextBuilder::new();
    keyless.offer(Key::DataDigest, &mut out);
    assert!(out.is_empty(), "it offers nothing below the protection");
    assert_eq!(keyless.finish().map(|_| ()), Err(BadNegotiation::NoAgreement(Key::HeaderDigest)));
}
