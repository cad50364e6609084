//! Both halves of the login against each other, and the initiator's half against targets that break rules.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use base::rng::Rng;
use base::time::Instant;

use super::directory::{AuthPolicy, SessionInfo, TargetAddress, TargetLookup};
use super::initiator::{
    AuthPlan, InitiatorLogin, InitiatorLoginError, InitiatorLoginStep, LoggedIn, LoginPlan, LoginStages,
    Purpose,
};
use super::target::TargetLogin;
use super::test_site::{
    GROUP, INITIATOR, ISID, TARGET, TestSite, arrival, entropy, guarded, itself, name, open, user, zeroed,
};
use super::*;
use crate::chap::exchange::BadChap;
use crate::chap::{Algorithm, Algorithms, Credentials};
use crate::keys::Key;
use crate::negotiate::key_rules::BadNegotiation;
use crate::negotiate::{Digest, DigestPolicy, KeyPolicy, SessionParameters};
use crate::text::BadText;

mod password;

/// How a login between the two halves ended.
#[derive(Debug)]
enum End {
    Both(Box<LoggedIn>, Box<LoginOutcome>),
    Refused(Status, LoginError),
    Redirected(TargetAddress, bool),
    Dropped(InitiatorLoginError),
}

fn plan(purpose: Purpose, auth: AuthPlan) -> LoginPlan {
    LoginPlan {
        cid: Cid(4),
        itt: 9,
        ..LoginPlan::new(name(INITIATOR), purpose, ISID, auth, KeyPolicy::default())
    }
}

fn session() -> Purpose {
    Purpose::NewSession(name(TARGET))
}

fn chap(algorithms: Algorithms, peer: bool) -> AuthPlan {
    AuthPlan::Chap { algorithms, own: user(), peer: peer.then(itself), or_none: false }
}

/// Runs a login to its end and counts the requests.
fn run(plan: LoginPlan, site: &TestSite) -> (End, usize) {
    let mut initiator = InitiatorLogin::new(plan, entropy(2));
    let mut target = TargetLogin::new(Instant::ORIGIN, &arrival(1));
    let mut call = initiator.start();
    let mut entered = None;
    for requests in 1..=MAX_LOGIN_PDUS {
        let (mut response, refused) = match target.handle(Instant::ORIGIN, &call.as_request(0), site) {
            LoginStep::Continue(response) | LoginStep::PermitGuess { response, .. } => (response, None),
            LoginStep::Complete { response, outcome } => {
                entered = Some(outcome);
                (response, None)
            }
            LoginStep::Fail { response, why } => (response, Some(why)),
            LoginStep::Drop(why) => panic!("{why:?}"),
        };
        if entered.is_some() && response.tsih == 0 {
            response.tsih = 0x55;
        }
        let end = match initiator.handle(&response) {
            InitiatorLoginStep::Send(next) => {
                call = next;
                continue;
            }
            InitiatorLoginStep::Complete(logged_in) => End::Both(logged_in, entered.unwrap()),
            InitiatorLoginStep::Refused(status) => End::Refused(status, refused.unwrap()),
            InitiatorLoginStep::Redirected { to, permanently } => End::Redirected(to, permanently),
            InitiatorLoginStep::Drop(why) => End::Dropped(why),
            InitiatorLoginStep::Stretch | InitiatorLoginStep::Relay => panic!("no password login here"),
        };
        return (end, requests);
    }
    panic!("no end");
}

#[test]
fn both_halves_agree_on_every_path_method_digest_and_piece_size() {
    //= rfc7143#section-4.2.7.1
    //= type=test
    //# The initiator MUST present both its iSCSI Initiator Name and the iSCSI Target Name to
    //# which it wishes to connect in the first Login Request of a new session or connection.
    //= rfc7143#section-6.2
    //= type=test
    //# An initiator receiving a Text or Login Response with the C bit set to 1 MUST answer
    //# with a Text or Login Request with no data segment (DataSegmentLength 0).
    //= rfc7143#section-6.2.1
    //= type=test
    //# The constant "None" MUST always be used to indicate a missing function.
    //= rfc7143#section-6.3
    //= type=test
    //# The initial Login Request of any connection MUST include the InitiatorName key=value
    //# pair.
    //= rfc7143#section-6.3
    //= type=test
    //# the first Login Request MUST also include the TargetName key=value pair.
    //= rfc7143#section-11.12.2
    //= type=test
    //# A Login Request with the C bit set to 1 MUST have the T bit set to 0.
    let digests = [DigestPolicy::PreferCrc32c, DigestPolicy::RequireNone];
    let paths =
        [LoginStages::SecurityAndOperational, LoginStages::SecurityOnly, LoginStages::OperationalOnly];
    let mut auths = vec![(AuthPlan::None, open())];
    for algorithm in Algorithm::ALL {
        for peer in [false, true] {
            auths.push((chap(Algorithms::NONE.with(algorithm), peer), guarded()));
        }
    }
    auths.push((chap(Algorithms::ALL, true), AuthPolicy { allows_none: true, ..guarded() }));
    let mut logins = 0;
    for (auth, policy) in &auths {
        for path in paths {
            for (header, data) in digests.iter().flat_map(|header| digests.map(|data| (*header, data))) {
                for purpose in [session(), Purpose::Discovery] {
                    for piece_max in [5, 64, 8192] {
                        let keys =
                            KeyPolicy { header_digest: header, data_digest: data, ..KeyPolicy::default() };
                        let plan = LoginPlan {
                            stages: path,
                            piece_max,
                            keys: keys.clone(),
                            ..plan(purpose.clone(), auth.clone())
                        };
                        let site = TestSite::with(policy.clone(), KeyPolicy::default());
                        check(run(plan, &site).0, path, auth, &keys);
                        logins += 1;
                    }
                }
            }
        }
    }
    assert_eq!(logins, 10 * 3 * 4 * 2 * 3);
}

fn check(end: End, path: LoginStages, auth: &AuthPlan, keys: &KeyPolicy) {
    let proves = matches!(auth, AuthPlan::Chap { .. });
    let wants_none = |policy: DigestPolicy| policy == DigestPolicy::RequireNone;
    match end {
        End::Both(ours, theirs) => {
            assert!(!(proves && path == LoginStages::OperationalOnly && theirs.user.is_some()));
            assert_eq!(ours.negotiated, theirs.negotiated);
            assert_eq!(ours.tsih, Tsih(0x55));
            let negotiated = path != LoginStages::SecurityOnly;
            let digest =
                |policy| if negotiated && !wants_none(policy) { Digest::Crc32c } else { Digest::None };
            let connection = ours.negotiated.connection;
            assert_eq!(connection.header_digest, digest(keys.header_digest));
            assert_eq!(connection.data_digest, digest(keys.data_digest));
            assert_eq!(connection.initiator_max_recv, if negotiated { 256 << 10 } else { 8192 });
            let is_discovery = theirs.kind == SessionKind::Discovery { named: None };
            assert_eq!(ours.portal_group, Some(if is_discovery { PortalGroupTag(1) } else { GROUP }));
            assert_eq!((theirs.cid, theirs.cmd_sn), (Cid(4), 1));
            if path != LoginStages::OperationalOnly {
                assert_eq!(theirs.user.is_some(), proves);
                assert_eq!(ours.peer_authenticated, matches!(auth, AuthPlan::Chap { peer: Some(_), .. }));
            }
        }
        End::Refused(Status::AUTHENTICATION_FAILURE, LoginError::AuthenticationSkipped) => {
            assert!(proves && path == LoginStages::OperationalOnly);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_usual_logins_take_few_requests() {
    //= rfc7143#section-6.3.3
    //= type=test
    //# The initiator MUST indicate its intent to terminate the negotiation by setting the T
    //# bit to 1; the target sets the T bit to 1 on the last response.
    let requests = |path, auth, site: TestSite| {
        let (end, requests) = run(LoginPlan { stages: path, ..plan(session(), auth) }, &site);
        assert!(matches!(end, End::Both(..)), "{end:?}");
        requests
    };
    assert_eq!(requests(LoginStages::OperationalOnly, AuthPlan::None, TestSite::open()), 1);
    assert_eq!(requests(LoginStages::SecurityOnly, AuthPlan::None, TestSite::open()), 1);
    assert_eq!(requests(LoginStages::SecurityAndOperational, AuthPlan::None, TestSite::open()), 2);
    assert_eq!(
        requests(LoginStages::SecurityAndOperational, chap(Algorithms::ALL, true), TestSite::guarded()),
        4
    );
}

#[test]
fn an_initiator_that_wants_proof_accepts_no_less() {
    // The target authenticates itself only if it has credentials.
    let nameless = TestSite::with(AuthPolicy { own: None, ..guarded() }, KeyPolicy::default());
    let (end, _) = run(plan(session(), chap(Algorithms::ALL, true)), &nameless);
    assert!(matches!(end, End::Refused(_, LoginError::Chap(BadChap::NoOwnCredentials))), "{end:?}");
    let other = AuthPlan::Chap {
        algorithms: Algorithms::ALL,
        own: user(),
        peer: Some(Credentials { name: "another".into(), ..itself() }),
        or_none: false,
    };
    let (end, _) = run(plan(session(), other), &TestSite::guarded());
    assert!(matches!(end, End::Dropped(InitiatorLoginError::Chap(BadChap::WrongResponse))), "{end:?}");
}

#[test]
fn an_initiator_goes_on_without_proof_only_if_it_said_so() {
    for (or_none, peer, want) in [(true, None, true), (false, None, false), (true, Some(itself()), false)] {
        let auth = AuthPlan::Chap { algorithms: Algorithms::ALL, own: user(), peer, or_none };
        let (end, _) = run(plan(session(), auth), &TestSite::open());
        assert_eq!(matches!(end, End::Both(..)), want, "{end:?}");
    }
}

#[test]
fn a_redirected_initiator_learns_where_to() {
    let to = TargetAddress::Socket("[::1]:3261".parse().unwrap());
    for permanently in [false, true] {
        let site = TestSite {
            instead: Some(TargetLookup::Moved { to: to.clone(), permanently }),
            ..TestSite::open()
        };
        match run(plan(session(), AuthPlan::None), &site).0 {
            End::Redirected(there, forever) => assert_eq!((&there, forever), (&to, permanently)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_further_connection_joins_the_session() {
    //= rfc7143#section-4.4.3
    //= type=test
    //# the same TSIH value MUST be used whenever the initiator or target refers to the
    //# session and a TSIH is required.
    let parameters = SessionParameters { max_connections: 4, ..SessionParameters::default() };
    let facts = SessionInfo {
        tsih: Tsih(0x77),
        portal_group: GROUP,
        parameters,
        connections: 1,
        has_cid: false,
        password_login: None,
    };
    let purpose = |tsih| Purpose::Join { target: name(TARGET), tsih, parameters };
    let site = || TestSite { sessions: vec![facts.clone()], ..TestSite::open() };
    match run(plan(purpose(Tsih(0x77)), AuthPlan::None), &site()).0 {
        End::Both(ours, theirs) => {
            assert_eq!((ours.tsih, theirs.effect), (Tsih(0x77), LoginEffect::AddsConnection(Tsih(0x77))));
            assert_eq!((ours.negotiated, ours.negotiated.session), (theirs.negotiated, parameters));
        }
        other => panic!("{other:?}"),
    }
    let (end, _) = run(plan(purpose(Tsih(0x78)), AuthPlan::None), &site());
    assert!(matches!(end, End::Refused(Status::SESSION_DOES_NOT_EXIST, _)), "{end:?}");
}

#[test]
fn a_target_s_demands_are_met_or_the_login_fails() {
    let strict = KeyPolicy {
        data_digest: DigestPolicy::RequireCrc32c,
        max_burst_length: 4096,
        immediate_data: false,
        ..KeyPolicy::default()
    };
    let site = || TestSite::with(open(), strict.clone());
    let (end, _) = run(plan(session(), AuthPlan::None), &site());
    let End::Both(ours, _) = end else { panic!("{end:?}") };
    assert_eq!(ours.negotiated.session.max_burst_length, 4096);
    assert!(!ours.negotiated.session.immediate_data);
    let keys = KeyPolicy { data_digest: DigestPolicy::RequireNone, ..KeyPolicy::default() };
    let (end, _) = run(LoginPlan { keys, ..plan(session(), AuthPlan::None) }, &site());
    let why = LoginError::Negotiation(BadNegotiation::NoAgreement(Key::DataDigest));
    assert!(matches!(end, End::Refused(Status::INITIATOR_ERROR, found) if found == why), "{end:?}");
}

/// Returns a response to `call` that contains `text` and moves to the requested stage, as an accommodating
/// target would send it.
fn response(call: &initiator::OwnedLoginRequest, text: &str) -> LoginResponse {
    LoginResponse {
        transit: call.transit,
        cont: false,
        csg: call.csg,
        nsg: call.nsg,
        version_max: 0,
        version_active: 0,
        isid: call.isid.0,
        tsih: if call.nsg == Stage::FULL_FEATURE { 1 } else { call.tsih.0 },
        itt: call.itt,
        status_class: 0,
        status_detail: 0,
        data: zeroed(text),
    }
}

fn started(auth: AuthPlan, path: LoginStages) -> (InitiatorLogin, initiator::OwnedLoginRequest) {
    let mut login = InitiatorLogin::new(LoginPlan { stages: path, ..plan(session(), auth) }, entropy(2));
    let call = login.start();
    (login, call)
}

/// Some targets (tgt) compare the bytes of names, and list names with capitals.
#[test]
fn a_name_is_sent_as_it_was_discovered() {
    const LISTED: &str = "iqn.2026-11.com.example:Disk-ONE";
    let mut list = crate::discovery::TargetList::new();
    list.add(alloc::format!("TargetName={LISTED}\0TargetAddress=192.0.2.1:3260,1\0").as_bytes()).unwrap();
    let found = list.finish().unwrap().remove(0).name;
    assert_eq!(found, name(&LISTED.to_lowercase()), "it denotes the same node");
    let call = InitiatorLogin::new(plan(Purpose::NewSession(found), AuthPlan::None), entropy(2)).start();
    let keys: Vec<&[u8]> = call.data.split(|byte| *byte == 0).collect();
    assert!(keys.contains(&alloc::format!("TargetName={LISTED}").as_bytes()));
}

/// An answer to every key that the initiator offers, as a target with few features would give it.
const MODEST: &str = "HeaderDigest=None DataDigest=None MaxConnections=1 InitialR2T=Yes ImmediateData=No \
    MaxBurstLength=512 FirstBurstLength=512 DefaultTime2Wait=2 DefaultTime2Retain=0 MaxOutstandingR2T=1 \
    DataPDUInOrder=Yes DataSequenceInOrder=Yes ErrorRecoveryLevel=0 TaskReporting=NotUnderstood \
    iSCSIProtocolLevel=NotUnderstood";

#[test]
fn the_initiator_accepts_a_modest_target_of_rfc_3720() {
    //= rfc7143#section-6.2
    //= type=test
    //# A proposer of an iSCSI key, negotiated or declarative, in a text key exchange MUST
    //# thus be able to properly handle a NotUnderstood response.
    let (mut login, call) = started(AuthPlan::None, LoginStages::OperationalOnly);
    let InitiatorLoginStep::Complete(done) = login.handle(&response(&call, MODEST)) else { panic!() };
    assert_eq!(done.negotiated.session.max_burst_length, 512);
    assert_eq!(done.negotiated.session.protocol_level, 1);
    assert_eq!((done.tsih, done.portal_group), (Tsih(1), None));
}

/// Rule by rule, the behaviour that a target must not show; the initiator drops the connection.
#[test]
fn the_initiator_drops_a_target_that_strays() {
    //= rfc7143#section-6.3
    //= type=test
    //# The selected NSG MUST NOT exceed the value stated by the initiator.
    //= rfc7143#section-6.3
    //= type=test
    //# the target MUST respond with a Login reject (initiator error); if detected by the
    //# initiator, the initiator MUST drop the connection.
    //= rfc7143#section-11.13.2
    //= type=test
    //# The initiator MUST use the value presented as a response to the first Login Request.
    type Spoil = fn(&mut LoginResponse);
    let cases: [(Spoil, InitiatorLoginError); 18] = [
        (|r| r.isid = [0; 6], InitiatorLoginError::IdentityChanged),
        (|r| r.itt = 1, InitiatorLoginError::IdentityChanged),
        (|r| r.version_active = 1, InitiatorLoginError::OtherVersion),
        (|r| r.csg = Stage::SECURITY, InitiatorLoginError::StageNotCurrent),
        (|r| r.nsg = Stage::OPERATIONAL, InitiatorLoginError::StageNotAsked),
        (|r| r.cont = true, InitiatorLoginError::TransitWithContinue),
        (|r| r.tsih = 0, InitiatorLoginError::NoTsih),
        (|r| r.data = b"MaxBurstLength=5".to_vec(), InitiatorLoginError::Text(BadText::Unterminated)),
        (|r| r.data = zeroed("InitiatorName=iqn.x"), wrong_side(Key::InitiatorName)),
        (|r| r.data = zeroed("AuthMethod=None"), wrong_stage(Key::AuthMethod)),
        (|r| r.data.extend(zeroed("MaxConnections=1")), twice(Key::MaxConnections)),
        (|r| r.data = Vec::new(), unanswered(Key::HeaderDigest)),
        (|r| replace(r, "MaxBurstLength=512", "MaxBurstLength=16777215"), not_offered(Key::MaxBurstLength)),
        (|r| replace(r, "ImmediateData=No", "ImmediateData=Never"), not_offered(Key::ImmediateData)),
        (|r| replace(r, "HeaderDigest=None", "HeaderDigest=CRC32C,None"), not_offered(Key::HeaderDigest)),
        (|r| r.data.extend(zeroed("MaxRecvDataSegmentLength=0")), illegal(Key::MaxRecvDataSegmentLength)),
        (|r| r.data.extend(zeroed("TargetPortalGroupTag=65536")), illegal(Key::TargetPortalGroupTag)),
        (|r| r.data.extend(zeroed("IFMarker=Yes")), InitiatorLoginError::OfferAtTheEnd),
    ];
    for (at, (spoil, why)) in cases.into_iter().enumerate() {
        let (mut login, call) = started(AuthPlan::None, LoginStages::OperationalOnly);
        let mut spoilt = response(&call, MODEST);
        spoil(&mut spoilt);
        match login.handle(&spoilt) {
            InitiatorLoginStep::Drop(found) => assert_eq!(found, why, "case {at}"),
            other => panic!("case {at}: {other:?}"),
        }
        let again = login.handle(&response(&call, MODEST));
        assert!(matches!(again, InitiatorLoginStep::Drop(InitiatorLoginError::OutOfTurn)));
    }
}

fn replace(response: &mut LoginResponse, old: &str, new: &str) {
    let text = String::from_utf8(response.data.clone()).unwrap();
    assert!(text.contains(old));
    response.data = text.replace(old, new).into_bytes();
}

fn wrong_side(key: Key) -> InitiatorLoginError {
    InitiatorLoginError::Negotiation(BadNegotiation::KeyFromWrongSide(key))
}

fn wrong_stage(key: Key) -> InitiatorLoginError {
    InitiatorLoginError::Negotiation(BadNegotiation::KeyInWrongStage(key))
}

fn twice(key: Key) -> InitiatorLoginError {
    InitiatorLoginError::Negotiation(BadNegotiation::KeyTwice(key))
}

fn unanswered(key: Key) -> InitiatorLoginError {
    InitiatorLoginError::Negotiation(BadNegotiation::Unanswered(key))
}

fn not_offered(key: Key) -> InitiatorLoginError {
    InitiatorLoginError::Negotiation(BadNegotiation::AnswerNotOffered(key))
}

fn illegal(key: Key) -> InitiatorLoginError {
    InitiatorLoginError::Negotiation(BadNegotiation::DeclaredIllegal(key))
}

#[test]
fn the_initiator_lets_no_target_choose_a_weaker_method_or_skip_its_proof() {
    for (auth, answer, transit, why) in [
        (chap(Algorithms::ALL, false), "AuthMethod=None", true, InitiatorLoginError::StageNotAsked),
        (chap(Algorithms::ALL, false), "AuthMethod=None", false, InitiatorLoginError::MethodNotOffered),
        (chap(Algorithms::ALL, false), "", false, InitiatorLoginError::MethodNotOffered),
        (AuthPlan::None, "AuthMethod=CHAP", false, InitiatorLoginError::MethodNotOffered),
        (AuthPlan::None, "AuthMethod=KRB5", false, InitiatorLoginError::MethodNotOffered),
        (AuthPlan::None, "CHAP_A=5", false, InitiatorLoginError::Chap(BadChap::KeyOutOfTurn)),
    ] {
        let (mut login, call) = started(auth, LoginStages::SecurityAndOperational);
        let step = login.handle(&LoginResponse { transit, ..response(&call, answer) });
        assert!(matches!(step, InitiatorLoginStep::Drop(found) if found == why), "{answer}: {step:?}");
    }
    // The target completes CHAP, but does not authenticate itself in the end.
    let (mut login, call) = started(chap(Algorithms::ALL, true), LoginStages::SecurityAndOperational);
    let InitiatorLoginStep::Send(call) = login.handle(&response(&call, "AuthMethod=CHAP")) else { panic!() };
    let posed = "CHAP_A=7 CHAP_I=1 CHAP_C=0x0102030405060708";
    let InitiatorLoginStep::Send(call) = login.handle(&response(&call, posed)) else { panic!() };
    assert!(call.transit);
    let step = login.handle(&response(&call, ""));
    assert!(
        matches!(step, InitiatorLoginStep::Drop(InitiatorLoginError::Chap(BadChap::PeerNotAuthenticated))),
        "{step:?}"
    );
}

#[test]
fn the_initiator_does_not_follow_a_target_round_in_circles() {
    let (mut login, mut call) = started(AuthPlan::None, LoginStages::SecurityAndOperational);
    let mut requests = 1;
    loop {
        let stay = LoginResponse { transit: false, ..response(&call, "") };
        match login.handle(&stay) {
            InitiatorLoginStep::Send(next) => call = next,
            InitiatorLoginStep::Drop(why) => break assert_eq!(why, InitiatorLoginError::TooManyTexts),
            other => panic!("{other:?}"),
        }
        requests += 1;
    }
    assert_eq!(requests, MAX_LOGIN_TEXTS + 1);
}

#[test]
fn the_initiator_refuses_a_redirection_to_nowhere() {
    for text in ["", "TargetAddress=", "TargetAddress=../x", "TargetAddress=a:b:c"] {
        let (mut login, call) = started(AuthPlan::None, LoginStages::OperationalOnly);
        let moved = LoginResponse { status_class: 1, status_detail: 1, ..response(&call, text) };
        assert!(
            matches!(login.handle(&moved), InitiatorLoginStep::Drop(InitiatorLoginError::MovedNowhere)),
            "{text}"
        );
    }
}

#[test]
fn no_responses_make_the_initiator_panic() {
    let parts = [
        "AuthMethod=None",
        "AuthMethod=CHAP",
        "CHAP_A=5",
        "CHAP_I=1 CHAP_C=0x00",
        "CHAP_N=0btarget CHAP_R=0b",
        MODEST,
        "MaxBurstLength=512",
        "TargetAddress=[::1]:1",
        "TargetPortalGroupTag=1",
        "X-a=b",
        "=",
        "a",
    ];
    let mut ended = 0;
    for seed in 0..3000 {
        let mut rng = Rng::from_seed(seed);
        let pick = |rng: &mut Rng, len: usize| usize::try_from(rng.below(len as u64)).unwrap();
        let auth = [AuthPlan::None, chap(Algorithms::ALL, true)][pick(&mut rng, 2)].clone();
        let paths =
            [LoginStages::SecurityAndOperational, LoginStages::SecurityOnly, LoginStages::OperationalOnly];
        let (mut login, mut call) = started(auth, paths[pick(&mut rng, 3)]);
        for _ in 0..8 {
            let mut said = response(&call, "");
            for _ in 0..pick(&mut rng, 4) {
                said.data.extend(zeroed(parts[pick(&mut rng, parts.len())]));
            }
            if rng.chance(1, 10) {
                said.data = vec![u8::try_from(rng.below(256)).unwrap(); pick(&mut rng, 40)];
            }
            said.cont = rng.chance(1, 10);
            said.transit = said.transit && rng.chance(2, 3);
            said.status_class = u8::from(rng.chance(1, 20));
            let step = login.handle(&said);
            if let InitiatorLoginStep::Send(next) = step {
                call = next;
                continue;
            }
            if let InitiatorLoginStep::Complete(done) = step {
                assert!(!done.peer_authenticated, "seed {seed}");
            }
            ended += 1;
            break;
        }
    }
    assert!(ended > 2500, "{ended}");
}

#[test]
fn a_refused_completion_keeps_nothing_of_it() {
    let mut target = TargetLogin::new(Instant::ORIGIN, &arrival(1));
    let (_, call) = started(AuthPlan::None, LoginStages::OperationalOnly);
    let LoginStep::Complete { response, .. } =
        target.handle(Instant::ORIGIN, &call.as_request(0), &TestSite::open())
    else {
        panic!()
    };
    let refused = response.refused(Status::OUT_OF_RESOURCES);
    assert_eq!((refused.transit, refused.status(), refused.data.len()), (false, Status::OUT_OF_RESOURCES, 0));
    assert_eq!((refused.csg, refused.nsg), (Stage::OPERATIONAL, Stage(0)));
}
