use super::super::directory::{DiscoveryAccess, SessionInfo, TargetAddress, TargetId, TargetLookup};
use super::super::test_site::{
    FFP, GROUP, INITIATOR, ISID, NAMES, OP, SEC, Said, TARGET, Talk, TestSite, guarded, itself, name, open,
    spaced, user, zeroed,
};
use super::*;
use crate::chap::{Algorithm, Algorithms, Response};
use crate::name::PortalGroupTag;
use crate::negotiate::{Digest, DigestPolicy, KeyPolicy, SessionParameters};
use crate::text::value::{binary, to_base64, to_hex};
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use base::rng::Rng;

mod text;

const TAGS: &str = "TargetAlias=Thedisk TargetPortalGroupTag=7";

fn facts(tsih: u16) -> SessionInfo {
    let parameters =
        SessionParameters { max_connections: 2, max_burst_length: 4096, ..SessionParameters::default() };
    SessionInfo {
        tsih: Tsih(tsih),
        portal_group: GROUP,
        parameters,
        connections: 1,
        has_cid: false,
        password_login: None,
    }
}

/// Answers the challenge in `text` (CHAP_A, CHAP_I, CHAP_C) as the user of the test site.
fn proof(text: &str) -> String {
    let value = |key: &str| text.split(' ').find_map(|pair| pair.strip_prefix(key)).unwrap();
    let algorithm = Algorithm::by_number(value("CHAP_A=").parse().unwrap()).unwrap();
    let challenge = binary(value("CHAP_C=").as_bytes(), 1..=64).unwrap();
    let id = value("CHAP_I=").parse().unwrap();
    let response = Response::compute(algorithm, id, &user().secret, &challenge);
    format!("CHAP_N={} CHAP_R={}", user().name, to_hex(response.as_bytes()))
}

/// RFC 7143 appendix B: an initiator that negotiates no security.
#[test]
fn logs_in_with_one_request_as_in_the_example_without_security() {
    //= rfc7143#section-11.13.8
    //= type=test
    //# The target MUST provide some basic parameters in order to enable the initiator to determine if it is
    //# connected to the correct port and the initial text parameters for the security exchange.
    let mut talk = Talk::at(TestSite::open());
    let said = talk.go(OP, FFP, &format!("{NAMES} HeaderDigest=None,CRC32C"));
    let Said::Enters(outcome, text) = said else { panic!("{said:?}") };
    assert_eq!(text, format!("{TAGS} HeaderDigest=None MaxRecvDataSegmentLength=262144"));
    assert_eq!(outcome.initiator, name(INITIATOR));
    assert_eq!(
        outcome.kind,
        SessionKind::Normal { target: TargetId(3), name: name(TARGET), portal_group: GROUP }
    );
    assert_eq!((outcome.isid, outcome.tsih, outcome.cid), (ISID, Tsih::NEW, Cid(1)));
    assert_eq!((outcome.cmd_sn, outcome.effect, outcome.user), (77, LoginEffect::NewSession, None));
    assert_eq!(outcome.negotiated.connection.target_max_recv, 262_144);
    assert_eq!(outcome.negotiated.session, SessionParameters::default());
    assert_eq!(talk.go(OP, FFP, "").why(), LoginError::AfterTheEnd);
}

/// RFC 7143 appendix B: CHAP, and a target that chooses the second of three methods; then parameters in two
/// steps.
#[test]
fn logs_in_as_in_the_example_with_chap() {
    //= rfc7143#section-11.13.1
    //= type=test
    //# All Login Responses within the Login Phase MUST carry the same Version-max.
    //= rfc7143#section-11.13.2
    //= type=test
    //# All Login Responses within the Login Phase MUST carry the same Version-active.
    //= rfc7143#section-11.13.3
    //= type=test
    //# For a new session, the target MUST generate a non-zero TSIH and ONLY return it in the Login
    //# Final-Response (see Section 6.3).
    let mut talk = Talk::at(TestSite::guarded());
    let first = talk.stay(SEC, &format!("{NAMES} AuthMethod=KRB5,CHAP,None")).text();
    assert_eq!(first, format!("{TAGS} AuthMethod=CHAP"));
    let posed = talk.stay(SEC, "CHAP_A=7,5").text();
    assert!(posed.starts_with("CHAP_A=7 CHAP_I="), "{posed}");
    let said = talk.go(SEC, OP, &proof(&posed));
    assert!(matches!(said, Said::Moves(Stage::OPERATIONAL, ref text) if text.is_empty()), "{said:?}");
    let said = talk.stay(OP, "HeaderDigest=CRC32C DataDigest=CRC32C,None InitialR2T=No");
    assert_eq!(
        said.text(),
        "HeaderDigest=CRC32C DataDigest=CRC32C InitialR2T=No MaxRecvDataSegmentLength=262144"
    );
    let outcome = talk.go(OP, FFP, "MaxBurstLength=65536 FirstBurstLength=65536").outcome();
    assert_eq!(outcome.user.as_deref(), Some("0xuser"));
    let (session, connection) = (outcome.negotiated.session, outcome.negotiated.connection);
    assert_eq!((session.max_burst_length, session.initial_r2t), (65_536, false));
    assert_eq!((connection.header_digest, connection.data_digest), (Digest::Crc32c, Digest::Crc32c));
}

#[test]
fn logs_in_straight_from_security_with_every_key_at_its_default() {
    let mut talk = Talk::at(TestSite::open());
    let outcome = talk.go(SEC, FFP, &format!("{NAMES} AuthMethod=None")).outcome();
    assert_eq!(outcome.negotiated, crate::negotiate::Negotiated::default());
}

#[test]
fn chooses_the_first_method_that_the_policy_takes() {
    //= rfc7143#section-6.3.2
    //= type=test
    //# The target MUST reply with the first option in the list it supports and is allowed to
    //# use for the specific initiator
    let both = || AuthPolicy { allows_none: true, ..guarded() };
    use super::super::directory::AuthPolicy;
    for (auth, offer, want) in [
        (open(), "AuthMethod=None", Ok("None")),
        (open(), "AuthMethod=CHAP,None", Ok("None")),
        (both(), "AuthMethod=CHAP,None", Ok("CHAP")),
        (both(), "AuthMethod=None,CHAP", Ok("None")),
        (guarded(), "AuthMethod=None,CHAP", Ok("CHAP")),
        (guarded(), "AuthMethod=None", Err(LoginError::NoCommonAuthMethod)),
        (open(), "AuthMethod=CHAP", Err(LoginError::NoCommonAuthMethod)),
        (open(), "AuthMethod=KRB5,SRP,Z-com.example.pake", Err(LoginError::NoCommonAuthMethod)),
        (open(), "AuthMethod=", Err(LoginError::NoCommonAuthMethod)),
        (open(), "", Ok("None")),
        (guarded(), "", Err(LoginError::AuthenticationSkipped)),
        (guarded(), "CHAP_A=5", Err(LoginError::Chap(BadChap::KeyOutOfTurn))),
        (guarded(), "AuthMethod=CHAP CHAP_A=5", Err(LoginError::Chap(BadChap::KeyOutOfTurn))),
        (
            AuthPolicy { chap: Algorithms::NONE, ..guarded() },
            "AuthMethod=CHAP",
            Err(LoginError::NoCommonAuthMethod),
        ),
    ] {
        let mut talk = Talk::at(TestSite::with(auth, KeyPolicy::default()));
        let said = talk.go(SEC, OP, &format!("{NAMES} {offer}"));
        match (want, said) {
            (Ok("None"), Said::Moves(Stage::OPERATIONAL, _)) | (Ok("CHAP"), Said::Stays(_)) => {}
            (Err(want), Said::Refuses(Status::AUTHENTICATION_FAILURE, why)) => assert_eq!(why, want),
            (_, said) => panic!("{offer}: {said:?}"),
        }
    }
}

#[test]
fn rejects_methods_of_which_the_policy_takes_none() {
    //= rfc7143#section-6.3.2
    //= type=test
    //# unless it does not support any, in which case it MUST answer with "Reject" (see Section 6.2).
    for offer in ["AuthMethod=CHAP", "AuthMethod=KRB5,SRP"] {
        let mut talk = Talk::at(TestSite::open());
        let data = zeroed(&format!("{NAMES} {offer}"));
        let request = LoginRequest { transit: true, nsg: Stage(OP), ..talk.request(SEC, &data) };
        let step = talk.send(&request);
        let LoginStep::Fail { response, why: LoginError::NoCommonAuthMethod } = step else {
            panic!("{step:?}");
        };
        assert_eq!(response.status(), Status::AUTHENTICATION_FAILURE);
        assert_eq!(spaced(&response.data), "AuthMethod=Reject");
    }
}

#[test]
fn lets_nobody_past_authentication() {
    // The login begins in the operational stage.
    let why = Talk::at(TestSite::guarded()).go(OP, FFP, NAMES).why();
    assert_eq!(why, LoginError::AuthenticationSkipped);
    // The initiator leaves the security stage in the middle of CHAP.
    for steps in [&["AuthMethod=CHAP"][..], &["AuthMethod=CHAP", "CHAP_A=5"]] {
        let mut talk = Talk::at(TestSite::guarded());
        talk.stay(SEC, NAMES).text();
        for step in steps {
            talk.stay(SEC, step).text();
        }
        assert_eq!(talk.go(OP, FFP, "").why(), LoginError::StageNotCurrent);
    }
    // The response is wrong, and the right one follows on the same connection.
    let mut talk = Talk::at(TestSite::guarded());
    talk.stay(SEC, &format!("{NAMES} AuthMethod=CHAP")).text();
    let posed = talk.stay(SEC, "CHAP_A=5").text();
    let wrong = format!("CHAP_N=0xuser CHAP_R={}", to_base64(&[0; 16]));
    assert_eq!(talk.go(SEC, FFP, &wrong).status(), Status::AUTHENTICATION_FAILURE);
    assert_eq!(talk.go(SEC, FFP, &proof(&posed)).why(), LoginError::AfterTheEnd);
}

/// Each cause of failure has its status (RFC 7143 §11.13.5).
#[test]
fn every_refusal_has_its_status() {
    //= rfc7143#section-4.2.7.1
    //= type=test
    //# Each iSCSI node, whether it is an initiator, a target, or both, MUST have an iSCSI
    //# name.
    //= rfc7143#section-4.4.2
    //= type=test
    //# The SCSI device name is defined to be the iSCSI name of the node and MUST be used in
    //# the iSCSI protocol.
    //= rfc7143#section-6.3
    //= type=test
    //# The initial Login Request of any connection MUST include the InitiatorName key=value
    //# pair.
    //= rfc7143#section-6.3
    //= type=test
    //# the first Login Request MUST also include the TargetName key=value pair.
    //= rfc7143#section-6.3.2
    //= type=test
    //# If the security negotiation fails at the target, then the target MUST send the
    //# appropriate Login Response PDU.
    let to = TargetAddress::Host { name: "san.example.com".into(), port: 3261 };
    let elsewhere = |permanently| TestSite {
        instead: Some(TargetLookup::Moved { to: to.clone(), permanently }),
        ..TestSite::open()
    };
    let instead = |found| TestSite { instead: Some(found), ..TestSite::open() };
    let discovery = |access| TestSite { discovery: Some(access), ..TestSite::open() };
    let certified = |name| TestSite { certified: Some(name), ..TestSite::open() };
    let host = "InitiatorName=iqn.2026-11.com.example:host";
    let finder = &format!("{host} SessionType=Discovery");
    let stranger = "InitiatorName=iqn.2026-11.com.example:else TargetName=iqn.2026-11.com.example:disk";
    for (site, text, status) in [
        (elsewhere(false), NAMES, Status::MOVED_TEMPORARILY),
        (elsewhere(true), NAMES, Status::MOVED_PERMANENTLY),
        (TestSite::open(), &format!("{NAMES} MaxRecvDataSegmentLength=1"), Status::INITIATOR_ERROR),
        (TestSite::guarded(), NAMES, Status::AUTHENTICATION_FAILURE),
        (TestSite::open(), stranger, Status::AUTHORIZATION_FAILURE),
        (certified("iqn.2026-11.com.example:else"), NAMES, Status::AUTHORIZATION_FAILURE),
        (certified("iqn.2026-11.com.example:else"), finder, Status::AUTHORIZATION_FAILURE),
        (discovery(DiscoveryAccess::Forbidden), finder, Status::AUTHORIZATION_FAILURE),
        (TestSite::open(), &format!("{host} TargetName=iqn.2026-11.com.example:no"), Status::NOT_FOUND),
        (TestSite::open(), &format!("{host} TargetName=disk"), Status::NOT_FOUND),
        (instead(TargetLookup::Removed), NAMES, Status::TARGET_REMOVED),
        (TestSite::open(), host, Status::MISSING_PARAMETER),
        (TestSite::open(), "TargetName=iqn.2026-11.com.example:disk", Status::MISSING_PARAMETER),
        (TestSite::open(), "", Status::MISSING_PARAMETER),
        (TestSite::open(), &format!("{host} SessionType=Boot"), Status::SESSION_TYPE_NOT_SUPPORTED),
        (discovery(DiscoveryAccess::NotServed), finder, Status::SESSION_TYPE_NOT_SUPPORTED),
        (discovery(DiscoveryAccess::Unavailable), finder, Status::SERVICE_UNAVAILABLE),
        (instead(TargetLookup::Unavailable), NAMES, Status::SERVICE_UNAVAILABLE),
        (instead(TargetLookup::OutOfResources), NAMES, Status::OUT_OF_RESOURCES),
    ] {
        assert_eq!(Talk::at(site).go(OP, FFP, text).status(), status, "{text}");
    }
}

#[test]
fn a_redirection_says_where_to() {
    //= rfc7143#section-11.13.5
    //= type=test
    //# All of the redirection Status-Class responses MUST return one or more text key parameters of the type
    //# "TargetAddress", which indicates the target's new address.
    let to = TargetAddress::Socket("[2001:db8::1]:3261".parse().unwrap());
    let site = TestSite { instead: Some(TargetLookup::Moved { to, permanently: true }), ..TestSite::open() };
    let mut talk = Talk::at(site);
    let data = zeroed(NAMES);
    let request = talk.request(SEC, &data);
    let LoginStep::Fail { response, .. } = talk.send(&request) else { panic!() };
    assert_eq!(response.data, b"TargetAddress=[2001:db8::1]:3261\0");
}

#[test]
fn refuses_versions_above_its_own() {
    let mut talk = Talk::at(TestSite::open());
    let data = zeroed(NAMES);
    let request = LoginRequest { version_max: 3, version_min: 1, ..talk.request(SEC, &data) };
    assert_eq!(talk.hear(&request).status(), Status::UNSUPPORTED_VERSION);
    let mut talk = Talk::at(TestSite::open());
    let request = LoginRequest { version_max: 3, ..talk.request(SEC, &data) };
    assert!(matches!(talk.hear(&request), Said::Stays(_)));
}

#[test]
fn the_versions_of_the_first_request_count() {
    //= rfc7143#section-11.12.4.1
    //= type=test
    //# The target MUST use the value presented with the first Login Request.
    //= rfc7143#section-11.12.4.2
    //= type=test
    //# The target MUST use the value presented with the first Login Request.
    let mut talk = Talk::at(TestSite::open());
    talk.go(SEC, OP, NAMES).text();
    let request = LoginRequest { version_max: 1, version_min: 1, ..talk.request(OP, &[]) };
    assert!(!matches!(talk.send(&request), LoginStep::Fail { .. }));
}

#[test]
fn follows_the_table_of_stages_and_no_other_way() {
    //= rfc7143#section-6.3
    //= type=test
    //# and MUST include at least one of them, but the included stage MAY be empty except for
    //# the mandatory names.
    //= rfc7143#section-6.3
    //= type=test
    //# If both stages are used, the SecurityNegotiation MUST precede the
    //# LoginOperationalNegotiation.
    //= rfc7143#section-6.3
    //= type=test
    //# both the request and response MUST indicate FullFeaturePhase as the next phase via the
    //# NSG field.
    // (CSG, T, NSG) of the first request, and the result.
    let mut table = String::new();
    for csg in 0..4 {
        for (transit, nsg) in [(false, 0), (true, 0), (true, 1), (true, 2), (true, 3)] {
            let mut talk = Talk::at(TestSite::open());
            let data = zeroed(NAMES);
            let request = LoginRequest { transit, nsg: Stage(nsg), ..talk.request(csg, &data) };
            let came = match talk.hear(&request) {
                Said::Stays(_) => "stays".to_string(),
                Said::Moves(stage, _) => format!("to {}", stage.0),
                Said::Enters(..) => "enters".to_string(),
                Said::Refuses(_, why) => format!("{why:?}"),
                Said::Drops(why) => format!("drops: {why:?}"),
            };
            let wish = if transit { format!("T to {nsg}") } else { "no T".into() };
            table.push_str(&format!("CSG {csg}, {wish}: {came}\n"));
        }
    }
    assert_eq!(table, include_str!("stages.snap"), "\n{table}");
}

#[test]
fn a_stage_is_not_entered_twice_and_not_left_while_text_goes_on() {
    //= rfc7143#section-6.2
    //= type=test
    //# As negotiation text may span PDU boundaries, a Text or Login Request or a Text or
    //# Login Response PDU that has the C bit set to 1 MUST NOT have the F bit or T bit set to
    //# 1.
    //= rfc7143#section-11.12.2
    //= type=test
    //# A Login Request with the C bit set to 1 MUST have the T bit set to 0.
    //= rfc7143#section-11.13.7
    //= type=test
    //# A Login Response with the C bit set to 1 MUST have the T bit set to 0.
    let mut talk = Talk::at(TestSite::open());
    talk.go(SEC, OP, NAMES).text();
    assert_eq!(talk.stay(SEC, "").why(), LoginError::StageNotCurrent);
    let mut talk = Talk::at(TestSite::open());
    let data = zeroed(NAMES);
    let request =
        LoginRequest { transit: true, cont: true, nsg: Stage::OPERATIONAL, ..talk.request(SEC, &data) };
    assert_eq!(talk.hear(&request).why(), LoginError::TransitWithContinue);
}

#[test]
fn refuses_an_identity_that_changes_during_the_login() {
    //= rfc7143#section-11.12.7
    //= type=test
    //# The target MUST use the value presented with the first Login Request.
    let changes: [fn(&mut LoginRequest<'_>); 4] = [
        |request| request.isid = [1; 6],
        |request| request.tsih = 1,
        |request| request.cid = 2,
        |request| request.itt = 6,
    ];
    for change in changes {
        let mut talk = Talk::at(TestSite::open());
        talk.go(SEC, OP, NAMES).text();
        let mut request = talk.request(OP, &[]);
        change(&mut request);
        let LoginStep::Fail { why, .. } = talk.send(&request) else { panic!() };
        assert_eq!(why, LoginError::IdentityChanged);
    }
}

/// libiscsi names itself and the target again in its first text after CHAP.
#[test]
fn lets_an_initiator_repeat_who_it_is_but_not_become_another() {
    let host = "InitiatorName=IQN.2026-11.com.example:host";
    for (text, want) in [
        (format!("{NAMES} SessionType=Normal"), Ok(())),
        (format!("{host} InitiatorAlias=me"), Ok(())),
        ("InitiatorName=iqn.2026-11.com.example:else".into(), Err(Key::InitiatorName)),
        ("TargetName=iqn.2026-11.com.example:else".into(), Err(Key::TargetName)),
        ("SessionType=Discovery".into(), Err(Key::SessionType)),
    ] {
        let mut talk = Talk::at(TestSite::open());
        talk.go(SEC, OP, NAMES).text();
        match (talk.go(OP, FFP, &text), want) {
            (Said::Enters(..), Ok(())) => {
                let deviations = talk.login.take_deviations();
                assert_eq!(deviations.first(), Some(&Deviation::NameRepeated(Key::InitiatorName)), "{text}");
                assert!(talk.login.take_deviations().is_empty());
            }
            (Said::Refuses(_, why), Err(key)) => assert_eq!(why, LoginError::IdentityTooLate(key)),
            (said, _) => panic!("{text}: {said:?}"),
        }
    }
}

/// Some initiators state in the operational stage that they will not authenticate themselves: harmless where
/// no authentication is required.
#[test]
fn takes_auth_method_none_in_the_operational_stage_where_no_proof_is_demanded() {
    let text = format!("{NAMES} AuthMethod=None HeaderDigest=None");
    let said = Talk::at(TestSite::open()).go(OP, FFP, &text);
    let Said::Enters(outcome, text) = said else { panic!("{said:?}") };
    assert_eq!(outcome.user, None);
    assert!(text.contains("AuthMethod=None") && text.contains("HeaderDigest=None"), "{text}");
    for method in ["None", "CHAP", "CHAP,None"] {
        let text = format!("{NAMES} AuthMethod={method}");
        let why = Talk::at(TestSite::guarded()).go(OP, FFP, &text).why();
        let wrong = BadNegotiation::KeyInWrongStage(Key::AuthMethod);
        assert_eq!(why, LoginError::Negotiation(wrong), "{method}");
    }
}

#[test]
fn a_new_login_of_the_same_initiator_port_replaces_its_session() {
    let other_group = SessionInfo { portal_group: PortalGroupTag(8), ..facts(9) };
    for (sessions, entry) in [
        (vec![], LoginEffect::NewSession),
        (vec![other_group], LoginEffect::NewSession),
        (vec![facts(9)], LoginEffect::ReinstatesSession(Tsih(9))),
    ] {
        let mut talk = Talk::at(TestSite { sessions, ..TestSite::open() });
        assert_eq!(talk.go(OP, FFP, NAMES).outcome().effect, entry);
    }
}

#[test]
fn a_connection_joins_its_session_or_learns_why_not() {
    //= rfc7143#section-6.3.4
    //= type=test
    //# Targets MUST support opening a second connection even when they do not support
    //# multiple connections in the Full Feature Phase if ErrorRecoveryLevel is 2 and SHOULD
    //# support opening a second connection if ErrorRecoveryLevel is less than 2.
    //= rfc7143#section-11.12.6
    //= type=test
    //# The target MUST check the value presented with the first Login Request and act as specified in Section
    //# 6.3.1.
    let other_group = SessionInfo { portal_group: PortalGroupTag(8), ..facts(9) };
    let full = SessionInfo { connections: 2, ..facts(9) };
    for (session, cid, want) in [
        (facts(9), 2, Ok(LoginEffect::AddsConnection(Tsih(9)))),
        (facts(9), 1, Ok(LoginEffect::ReinstatesConnection(Tsih(9)))),
        (full.clone(), 1, Ok(LoginEffect::ReinstatesConnection(Tsih(9)))),
        (full, 2, Err(Status::TOO_MANY_CONNECTIONS)),
        (other_group, 2, Err(Status::CANNOT_INCLUDE_IN_SESSION)),
        (facts(8), 2, Err(Status::SESSION_DOES_NOT_EXIST)),
    ] {
        let mut talk = Talk::at(TestSite { sessions: vec![session.clone()], ..TestSite::open() });
        (talk.tsih, talk.cid) = (9, cid);
        match (talk.go(OP, FFP, &format!("{NAMES} DataDigest=CRC32C")), want) {
            (Said::Enters(outcome, _), Ok(entry)) => {
                assert_eq!((outcome.effect, outcome.tsih), (entry, Tsih(9)));
                assert_eq!(outcome.negotiated.session, session.parameters);
                assert_eq!(outcome.negotiated.connection.data_digest, Digest::Crc32c);
            }
            (said, Err(status)) => assert_eq!(said.status(), status),
            (said, want) => panic!("{said:?} {want:?}"),
        }
    }
}

#[test]
fn a_joining_connection_leaves_the_session_s_keys_alone() {
    let mut talk = Talk::at(TestSite { sessions: vec![facts(9)], ..TestSite::open() });
    (talk.tsih, talk.cid) = (9, 2);
    assert_eq!(
        talk.go(OP, FFP, &format!("{NAMES} MaxBurstLength=512")).why(),
        LoginError::Negotiation(BadNegotiation::KeyOfLeadingConnection(Key::MaxBurstLength))
    );
}

/// The session can end, or reach its maximum number of connections, between the first request and the last.
#[test]
fn looks_for_its_session_again_when_the_login_is_complete() {
    let mut talk = Talk::at(TestSite { sessions: vec![facts(9)], ..TestSite::open() });
    (talk.tsih, talk.cid) = (9, 2);
    talk.go(SEC, OP, NAMES).text();
    talk.site.sessions.clear();
    assert_eq!(talk.go(OP, FFP, "").status(), Status::SESSION_DOES_NOT_EXIST);
}

#[test]
fn a_discovery_session_needs_no_target_and_has_one_connection() {
    //= rfc7143#section-7.4.1
    //= type=test
    //# When such a negotiation attempt is made by the remote side, a compliant iSCSI implementation MUST
    //# propose a value of 0 (zero) in response.
    //= rfc7143#section-7.4.1
    //= type=test
    //# The operational ErrorRecoveryLevel for Discovery sessions thus MUST be 0.
    //= rfc7143#section-6.3.1
    //= type=test
    //# During the Login Phase, the iSCSI target MUST return the TargetPortalGroupTag key with
    //# the first Login Response PDU with which it is allowed to do so (i.e., the first Login
    //# Response issued after the first Login Request with the C bit set to 0) for all session
    //# types.
    let finder = format!("InitiatorName={INITIATOR} SessionType=Discovery");
    let mut talk = Talk::at(TestSite::open());
    let said = talk.go(OP, FFP, &format!("{finder} MaxBurstLength=512 ErrorRecoveryLevel=2"));
    let Said::Enters(outcome, text) = said else { panic!("{said:?}") };
    assert_eq!(outcome.kind, SessionKind::Discovery { named: None });
    assert_eq!(
        text,
        "TargetPortalGroupTag=1 MaxBurstLength=Irrelevant ErrorRecoveryLevel=0 MaxRecvDataSegmentLength=262144"
    );
    // With the name of a target, the session is named, and has the portal group of that target.
    for (target, named) in [(TARGET, Some((TargetId(3), GROUP))), ("iqn.2026-11.com.example:none", None)] {
        let mut talk = Talk::at(TestSite::open());
        let said = talk.go(OP, FFP, &format!("{finder} TargetName={target}"));
        let Said::Enters(outcome, text) = said else { panic!("{said:?}") };
        assert_eq!(outcome.kind, SessionKind::Discovery { named });
        let group = named.map_or(1, |(_, group)| group.0);
        assert_eq!(text, format!("TargetPortalGroupTag={group} MaxRecvDataSegmentLength=262144"));
    }
    let mut talk = Talk::at(TestSite { sessions: vec![facts(9)], ..TestSite::open() });
    talk.tsih = 9;
    assert_eq!(talk.go(OP, FFP, &finder).status(), Status::SESSION_DOES_NOT_EXIST);
    let mut talk = Talk::at(TestSite::guarded());
    assert_eq!(talk.go(OP, FFP, &finder).status(), Status::AUTHENTICATION_FAILURE);
}

#[test]
fn asks_for_what_it_needs_before_it_lets_the_initiator_in() {
    //= rfc7143#section-6.3
    //= type=test
    //# Targets MUST NOT submit parameters that require an additional initiator Login Request
    //# in a Login Response with the T bit set to 1.
    //= rfc7143#section-11.13.6
    //= type=test
    //# A Login Response with the T bit set to 1 MUST NOT contain key=value pairs that may require additional
    //# answers from the initiator within the same stage.
    let keys = KeyPolicy {
        data_digest: DigestPolicy::RequireCrc32c,
        max_burst_length: 8192,
        ..KeyPolicy::default()
    };
    let mut talk = Talk::at(TestSite::with(open(), keys.clone()));
    let said = talk.go(OP, FFP, NAMES);
    assert!(matches!(said, Said::Stays(_)));
    assert_eq!(
        said.text(),
        format!(
            "{TAGS} MaxRecvDataSegmentLength=262144 DataDigest=CRC32C MaxBurstLength=8192 \
             FirstBurstLength=8192"
        )
    );
    let outcome = talk.go(OP, FFP, "DataDigest=CRC32C MaxBurstLength=4096 FirstBurstLength=4096").outcome();
    assert_eq!(outcome.negotiated.session.first_burst_length, 4096);

    let mut talk = Talk::at(TestSite::with(open(), keys.clone()));
    talk.go(OP, FFP, NAMES).text();
    assert_eq!(
        talk.go(OP, FFP, "MaxBurstLength=4096").why(),
        LoginError::Negotiation(BadNegotiation::Unanswered(Key::DataDigest))
    );
    let mut talk = Talk::at(TestSite::with(open(), keys));
    assert_eq!(
        talk.go(SEC, FFP, NAMES).why(),
        LoginError::Negotiation(BadNegotiation::NoAgreement(Key::DataDigest))
    );
}

#[test]
fn another_pdu_ends_the_login_with_a_word_only_if_it_had_begun() {
    //= rfc7143#section-4.2.4
    //= type=test
    //# Once the Login Phase has started, if the target receives any PDU except a Login
    //# Request, it MUST send a Login reject (with Status "invalid during login") and then
    //# disconnect.
    let mut talk = Talk::at(TestSite::open());
    assert!(matches!(talk.login.handle_other(9), LoginStep::Drop(LoginError::FirstIsNoLogin)));
    let mut talk = Talk::at(TestSite::open());
    talk.stay(SEC, NAMES).text();
    let LoginStep::Fail { response, .. } = talk.login.handle_other(9) else { panic!() };
    assert_eq!((response.status(), response.itt), (Status::INVALID_DURING_LOGIN, 5));
    assert_eq!(talk.stay(SEC, "").why(), LoginError::AfterTheEnd);
}

#[test]
fn mutual_chap_proves_the_target_only_to_a_proven_initiator() {
    let begin = || {
        let mut talk = Talk::at(TestSite::guarded());
        talk.stay(SEC, &format!("{NAMES} AuthMethod=CHAP")).text();
        let posed = talk.stay(SEC, "CHAP_A=5").text();
        (talk, posed)
    };
    let counter = format!("CHAP_I=200 CHAP_C={}", to_base64(&[9; 16]));
    let (mut talk, posed) = begin();
    let answer = talk.go(SEC, OP, &format!("{} {counter}", proof(&posed))).text();
    let expected = Response::compute(Algorithm::Md5, 200, &itself().secret, &[9; 16]);
    assert_eq!(answer, format!("CHAP_N=0btarget CHAP_R={}", to_hex(expected.as_bytes())));
    let (mut talk, _) = begin();
    let wrong = format!("CHAP_N=0xuser CHAP_R={} {counter}", to_hex(&[0; 16]));
    assert_eq!(talk.go(SEC, OP, &wrong).status(), Status::AUTHENTICATION_FAILURE);
}

/// Sequences of requests combined from good and bad parts: no input causes a panic, every login ends, and no
/// initiator logs in without the secret.
#[test]
fn no_sequence_of_requests_panics_or_gets_past_the_guard() {
    let parts = [
        NAMES,
        "SessionType=Discovery",
        "SessionType=Normal",
        "AuthMethod=CHAP,None",
        "AuthMethod=None",
        "CHAP_A=5,7",
        "CHAP_A=9",
        "CHAP_N=0xuser",
        "CHAP_R=0x00",
        "CHAP_I=1 CHAP_C=0x00",
        "HeaderDigest=CRC32C",
        "DataDigest=None,CRC32C",
        "MaxBurstLength=512",
        "FirstBurstLength=9999999",
        "MaxRecvDataSegmentLength=512",
        "ErrorRecoveryLevel=2",
        "X-a=b",
        "InitiatorAlias=x",
        "IFMarker=No",
        "MaxConnections=Reject",
        "=",
        "a",
        "TargetPortalGroupTag=1",
        "SendTargets=All",
    ];
    let (mut inside, mut ended) = (0, 0);
    for seed in 0..4000 {
        let mut rng = Rng::from_seed(seed);
        let pick = |rng: &mut Rng, len: usize| usize::try_from(rng.below(len as u64)).unwrap();
        let is_open = rng.chance(1, 2);
        let mut talk = Talk::at(if is_open { TestSite::open() } else { TestSite::guarded() });
        for round in 0..12 {
            let named = round == 0 && rng.chance(3, 4);
            let mut text: Vec<u8> = if named { zeroed(NAMES) } else { Vec::new() };
            for _ in 0..pick(&mut rng, 5) {
                text.extend(zeroed(parts[pick(&mut rng, parts.len())]));
            }
            if rng.chance(1, 20) && !text.is_empty() {
                let at = pick(&mut rng, text.len());
                text[at] = u8::try_from(rng.below(256)).unwrap();
            }
            let mut request = talk.request(u8::try_from(rng.below(2)).unwrap(), &text);
            request.transit = rng.chance(1, 2);
            request.nsg = Stage([1, 3, 3, 2][pick(&mut rng, 4)]);
            request.cont = rng.chance(1, 10);
            match talk.send(&request) {
                LoginStep::Continue(_) | LoginStep::PermitGuess { .. } => continue,
                LoginStep::Complete { outcome, .. } => {
                    assert!(is_open && outcome.user.is_none(), "seed {seed}");
                    inside += 1;
                }
                LoginStep::Fail { .. } | LoginStep::Drop(_) => {}
            }
            ended += 1;
            let step = talk.send(&request);
            assert!(matches!(step, LoginStep::Drop(LoginError::AfterTheEnd)), "seed {seed}");
            break;
        }
    }
    assert!(inside > 50 && ended > 3000, "{inside} {ended}");
}
