//! What each side requires of the other one: digests, steps, users, joins.

use alloc::format;

use super::super::super::test_site::{NAMES, OP, SEC, Said, Talk, spaced};
use super::*;
use crate::login::transcript::CONFIRMATION_KEY;
use crate::opaque::{InitiatorOpaque, METHOD};
use crate::text::TextBuilder;
use crate::text::value::to_hex;

#[test]
fn the_target_takes_the_first_aead_digest_that_both_support_or_none_at_all() {
    let chosen = |ours: KeyPolicy, theirs: KeyPolicy| {
        let site = TestSite::with(by_password(), theirs);
        let (ours, outcome, keys) = quiet(LoginPlan { keys: ours, ..alice() }, &site).both();
        let connection = ours.negotiated.connection;
        assert_eq!(connection, outcome.negotiated.connection);
        assert_eq!(ours.record_keys.is_some(), connection.header_digest.aead().is_some());
        assert_eq!(ours.record_keys.is_some(), keys.is_some());
        (connection.header_digest, connection.data_digest)
    };
    let all = || keys_with(&EACH, Level::None);
    let both = |digest| (digest, digest);
    assert_eq!(chosen(all(), all()), both(Digest::Aead(EACH[0])));
    assert_eq!(chosen(all(), keys_with(&EACH[2..], Level::None)), both(Digest::Aead(EACH[2])));
    assert_eq!(chosen(keys_with(&EACH[1..], Level::None), all()), both(Digest::Aead(EACH[1])));
    assert_eq!(chosen(all(), keys_with(&EACH, Level::Encrypt)), both(Digest::Aead(EACH[0])));
    let (first, last) = (keys_with(&EACH[..2], Level::None), keys_with(&EACH[2..], Level::None));
    assert_eq!(chosen(first, last), both(Digest::Crc32c));
    assert_eq!(chosen(all(), keys_with(&[], Level::None)), both(Digest::Crc32c));
    let forbids = KeyPolicy { data_digest: DigestPolicy::RequireNone, ..all() };
    assert_eq!(chosen(all(), forbids.clone()), (Digest::Crc32c, Digest::None));
    assert_eq!(chosen(forbids.clone(), all()), (Digest::Crc32c, Digest::None));
    let requires = KeyPolicy { min_protection: Level::Integrity, ..forbids };
    assert_eq!(chosen(requires, all()), both(Digest::Aead(EACH[0])), "a required protection goes first");
}

#[test]
fn a_side_that_requires_a_protection_accepts_nothing_below_it() {
    //= iscsi-aead#section-5
    //= type=test
    //# A side that requires a protection offers and accepts no value below it.
    let site = |keys| TestSite::with(by_password(), keys);
    let weak = || LoginPlan { keys: keys_with(&EACH[2..], Level::None), ..alice() };
    let no_agreement = BadNegotiation::NoAgreement(Key::HeaderDigest);
    let ends = quiet(weak(), &site(keys_with(&EACH, Level::Encrypt)));
    assert_eq!(ends.refused(), (Status::INITIATOR_ERROR, LoginError::Negotiation(no_agreement)));
    let strong = LoginPlan { keys: keys_with(&EACH, Level::Encrypt), ..alice() };
    let ends = quiet(strong, &site(keys_with(&EACH[2..], Level::None)));
    assert_eq!(ends.dropped(), InitiatorLoginError::Negotiation(no_agreement));
    // A target that requires a protection refuses all other logins.
    let mut site = site(keys_with(&EACH, Level::Integrity));
    site.auth = AuthPolicy { opaque: true, allows_none: true, ..guarded() };
    for (auth, stages) in [
        (AuthPlan::None, LoginStages::SecurityAndOperational),
        (AuthPlan::None, LoginStages::OperationalOnly),
        (chap(Algorithms::ALL, false), LoginStages::SecurityAndOperational),
    ] {
        let (status, _) = quiet(LoginPlan { stages, ..plan(session(), auth) }, &site).refused();
        assert_eq!(status, Status::AUTHENTICATION_FAILURE);
    }
    let (ours, ..) = quiet(weak(), &site).both();
    assert_eq!(ours.negotiated.connection.header_digest, Digest::Aead(EACH[2]));
    // An initiator that requires a protection logs in with its password or not at all.
    for stages in [LoginStages::SecurityAndOperational, LoginStages::OperationalOnly] {
        let keys = keys_with(&EACH, Level::Integrity);
        let ends = quiet(LoginPlan { keys, stages, ..plan(session(), AuthPlan::None) }, &TestSite::open());
        assert_eq!(ends.dropped(), InitiatorLoginError::ProtectionWithoutPassword);
    }
}

#[test]
fn without_the_password_login_aead_digests_and_confirmations_are_not_understood() {
    //= iscsi-aead#section-4.2
    //= type=test
    //# Without this login the key has no meaning, and is answered with NotUnderstood.
    let digest = EACH[0].name();
    let mut talk = Talk::at(TestSite::open());
    let offers = format!("HeaderDigest={digest},CRC32C DataDigest={digest} {CONFIRMATION_KEY}=0x00");
    let text = talk.go(OP, 3, &format!("{NAMES} {offers}")).text();
    assert!(text.contains("HeaderDigest=CRC32C DataDigest=Reject"), "{text}");
    assert!(text.contains(&format!("{CONFIRMATION_KEY}=NotUnderstood")), "{text}");
    // A target without records does not know the keys of the method either.
    let mut talk = Talk::at(TestSite::open());
    let text = talk.stay(SEC, &format!("{NAMES} AuthMethod={METHOD},None X-org.targe.user=alice")).text();
    assert!(text.contains("AuthMethod=None"), "{text}");
    assert!(text.contains("X-org.targe.user=NotUnderstood"), "{text}");
}

#[test]
fn a_wrong_password_and_an_unknown_user_end_alike() {
    let mut lengths = Vec::new();
    for (user, secret) in [(USER, "battery staple"), ("bobby", PASSWORD), ("bobby", "x")] {
        let mut answer = String::new();
        let ends = attacked(plan(session(), by(user, secret)), &TestSite::by_password(), |_, pdu| {
            if !pdu.is_request {
                answer = spaced(&pdu.text);
            }
        });
        assert_eq!(ends.requests, 2, "the initiator proves nothing to a target that has not proved itself");
        assert_eq!(ends.dropped(), InitiatorLoginError::Opaque(OpaqueError::WrongPassword));
        assert!(answer.starts_with("X-org.targe.stretch=8,1,1 X-org.targe.ke2=0x"), "{answer}");
        lengths.push(answer.len());
    }
    assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{lengths:?}");
    // An initiator that goes on without the password fails at the target.
    let mut talk = begun();
    talk.stay(SEC, &first_step());
    let said = talk.go(SEC, OP, &last_step());
    assert_eq!(said.status(), Status::AUTHENTICATION_FAILURE);
}

/// Returns a login after step 2.
fn begun() -> Talk {
    let mut talk = Talk::at(TestSite::by_password());
    let text = talk.stay(SEC, &format!("{NAMES} AuthMethod=KRB5,{METHOD},None")).text();
    assert!(text.ends_with(&format!("AuthMethod={METHOD}")), "{text}");
    talk
}

/// Returns the text of step 3.
fn first_step() -> String {
    let mut out = TextBuilder::new();
    InitiatorOpaque::new(USER, password(PASSWORD), [2; 32]).unwrap().start(&mut out).unwrap();
    spaced(&out.into_bytes())
}

/// Returns a text with the form of step 5.
fn last_step() -> String {
    format!("X-org.targe.ke3={}", to_hex(&[1; 64]))
}

#[test]
fn a_step_of_another_form_ends_the_login() {
    //= iscsi-aead#section-3.1
    //= type=test
    //# A key that is missing, repeated, malformed or out of order ends the login with status 0200h
    let step = first_step();
    let refusal = |mut talk: Talk, text: &str| match talk.stay(SEC, text) {
        Said::Refuses(status, LoginError::Opaque(why)) => (status, why),
        other => panic!("{text}: {other:?}"),
    };
    let early = format!("{NAMES} AuthMethod={METHOD} {step}");
    let expected = (Status::INITIATOR_ERROR, OpaqueError::KeyOutOfTurn);
    assert_eq!(refusal(Talk::at(TestSite::by_password()), &early), expected);
    for (text, why) in [
        (String::new(), OpaqueError::KeyMissing),
        (format!("{step} X-org.targe.user=bob"), OpaqueError::KeyRepeated),
        (format!("{step} {}", last_step()), OpaqueError::KeyOutOfTurn),
        (format!("{step} MaxBurstLength=512"), OpaqueError::OtherKey),
        (format!("{step} InitiatorName={INITIATOR}"), OpaqueError::OtherKey),
        (format!("{step} X-com.example=1"), OpaqueError::OtherKey),
        (step.replace("ke1=0x", "ke1=0x00"), OpaqueError::Message),
        (step.replace("user=alice", "user="), OpaqueError::User),
        (last_step(), OpaqueError::KeyMissing),
    ] {
        assert_eq!(refusal(begun(), &text), (Status::INITIATOR_ERROR, why), "{text}");
    }
    // The last step must request the operational stage.
    let mut talk = begun();
    talk.stay(SEC, &step);
    assert_eq!(talk.stay(SEC, &last_step()).why(), LoginError::Opaque(OpaqueError::Stage));
    let mut talk = begun();
    talk.stay(SEC, &step);
    assert_eq!(talk.go(SEC, 3, &last_step()).why(), LoginError::Opaque(OpaqueError::Stage));
    // No step and no method follows a failure.
    let mut talk = begun();
    talk.stay(SEC, &step);
    assert_eq!(talk.go(SEC, OP, &last_step()).why(), LoginError::Opaque(OpaqueError::WrongPassword));
    assert_eq!(talk.stay(SEC, "AuthMethod=None").why(), LoginError::AfterTheEnd);
}

#[test]
fn the_initiator_drops_a_target_whose_step_has_another_form() {
    for (from, to, why) in [
        ("X-org.targe.stretch=8,1,1\0", "", OpaqueError::KeyMissing),
        ("X-org.targe.stretch=8,1,1\0", "MaxBurstLength=512\0", OpaqueError::OtherKey),
        ("stretch=8,1,1", "stretch=4294967295,1,1", OpaqueError::Cost),
        ("ke2=0x", "ke2=0x00", OpaqueError::Message),
        ("X-org.targe.ke2", "X-org.targe.ke3", OpaqueError::KeyMissing),
        ("AuthMethod=", "X-org.targe.ke2=0\0AuthMethod=", OpaqueError::KeyOutOfTurn),
    ] {
        let ends = attacked(alice(), &TestSite::by_password(), |_, pdu| {
            if !pdu.is_request {
                pdu.replace(from, to);
            }
        });
        let why_found = ends.dropped();
        let fits = why_found == InitiatorLoginError::Opaque(why)
            || why == OpaqueError::KeyMissing
                && why_found == InitiatorLoginError::Opaque(OpaqueError::KeyOutOfTurn);
        assert!(fits, "{from} → {to}: {why_found:?}");
    }
    for answer in ["None", "CHAP", "Reject"] {
        let ends = attacked(alice(), &TestSite::by_password(), |_, pdu| {
            if !pdu.is_request {
                pdu.replace(METHOD, answer);
            }
        });
        assert_eq!(ends.dropped(), InitiatorLoginError::MethodNotOffered, "{answer}");
    }
}

#[test]
fn a_connection_joins_only_a_session_of_its_user_and_with_no_lower_protection() {
    //= iscsi-aead#section-3.1
    //= type=test
    //# A target MUST refuse, with status 0201h, a connection that joins a session as another user than the
    //# first connection did, and, with status 0200h, one with a lower protection than the first connection
    //# has.
    let parameters = SessionParameters { max_connections: 4, ..SessionParameters::default() };
    let joined = |auth: AuthPlan, digests: &'static [AeadDigest], first: Option<PasswordLogin>| {
        let purpose = Purpose::Join { target: name(TARGET), tsih: Tsih(0x77), parameters };
        let mut site = TestSite::by_password();
        site.auth = AuthPolicy { opaque: true, allows_none: true, ..AuthPolicy::default() };
        site.sessions = vec![SessionInfo {
            tsih: Tsih(0x77),
            portal_group: GROUP,
            parameters,
            connections: 1,
            has_cid: false,
            password_login: first,
        }];
        let ends = quiet(LoginPlan { keys: keys_with(digests, Level::None), ..plan(purpose, auth) }, &site);
        if let Ok((outcome, _)) = &ends.target {
            assert_eq!(outcome.effect, LoginEffect::AddsConnection(Tsih(0x77)));
            let (ours, _, theirs) = ends.both();
            if let (Some(ours), Some(theirs)) = (ours.record_keys, theirs) {
                assert!(fit(ours, theirs));
            }
            return None;
        }
        Some(ends.refused())
    };
    let first = |user: &str, protection| Some(PasswordLogin { user: user.into(), protection });
    let lower = Some((Status::INITIATOR_ERROR, LoginError::LowerProtection));
    let other = Some((Status::AUTHENTICATION_FAILURE, LoginError::OtherUser));
    let own = || by(USER, PASSWORD);
    assert_eq!(joined(own(), &EACH, first(USER, Level::Encrypt)), None);
    assert_eq!(joined(own(), &EACH, first(USER, Level::None)), None);
    assert_eq!(joined(own(), &EACH[2..], first(USER, Level::Integrity)), None);
    assert_eq!(joined(own(), &EACH[2..], first(USER, Level::Encrypt)), lower);
    assert_eq!(joined(own(), &[], first(USER, Level::Integrity)), lower);
    assert_eq!(joined(own(), &EACH, first("bob", Level::None)), other);
    assert_eq!(joined(own(), &EACH, None), other);
    assert_eq!(joined(AuthPlan::None, &EACH, first(USER, Level::None)), other);
    assert_eq!(joined(AuthPlan::None, &EACH, None), None);
}

#[test]
fn nothing_secret_is_printed() {
    let mut login = InitiatorLogin::new(alice(), entropy(2));
    login.start();
    let printed = format!("{:?} {login:?} {:?}", alice(), by(USER, PASSWORD));
    assert!(!printed.contains("correct"), "{printed}");
}
