//! Sequences of login and text requests to a target, and of responses to an initiator.
#![no_main]

use base::time::Instant;
use ground::{Operations, Site, TARGET, arrival, itself, user};
use iscsi::chap::Algorithms;
use iscsi::login::directory::ConnectionPath;
use iscsi::login::initiator::{
    AuthPlan, InitiatorLogin, InitiatorLoginStep, LoginPlan, LoginStages, Purpose,
};
use iscsi::login::target::TargetLogin;
use iscsi::login::{LoginOutcome, LoginRequest, LoginResponse, LoginStep, Stage};
use iscsi::name::Isid;
use iscsi::negotiate::KeyPolicy;
use iscsi::negotiate::full_feature::{NO_TAG, TargetText, TextContext, TextRequest};
use libfuzzer_sys::fuzz_target;
use security::opaque::Password;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    if first & 0x80 == 0 {
        to_target(*first, rest);
    } else {
        to_initiator(*first, rest);
    }
});

/// Each operation is a request: T, C, NSG and CSG as on the wire, and its text.
fn to_target(first: u8, rest: &[u8]) {
    let site = Site::from_byte(first);
    let mut login = TargetLogin::new(Instant::ORIGIN, &arrival());
    let mut operations = Operations::of(rest);
    while let Some((flags, data)) = operations.next() {
        let request = LoginRequest {
            transit: flags & 0x80 != 0,
            cont: flags & 0x40 != 0,
            csg: Stage(flags >> 2 & 3),
            nsg: Stage(flags & 3),
            version_max: first >> 5 & 1,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, 1],
            tsih: u16::from(first >> 2 & 1),
            itt: 1,
            cid: u16::from(first >> 3 & 1),
            cmd_sn: 1,
            exp_stat_sn: 1,
            data,
        };
        match login.handle(Instant::ORIGIN, &request, &site) {
            LoginStep::Continue(response) | LoginStep::PermitGuess { response, .. } => {
                assert!(response.data.len() <= 8192 && !(response.transit && response.cont));
            }
            LoginStep::Complete { response, outcome } => {
                assert!(response.transit && response.nsg == Stage::FULL_FEATURE);
                assert!(!site.guarded, "somebody got in without the secret");
                converse(&site, &outcome, operations);
                break;
            }
            LoginStep::Fail { response, why } => {
                assert_eq!(Some(response.status()), why.status());
                break;
            }
            LoginStep::Drop(_) => break,
        }
    }
}

/// Each further operation is a Text Request: F, C, and whether it goes on with the last tag.
fn converse(site: &Site, outcome: &LoginOutcome, operations: Operations<'_>) {
    let (mut text, mut ttt) = (TargetText::new(), NO_TAG);
    for (at, (flags, data)) in operations.enumerate() {
        let tag = if flags & 1 == 0 { ttt } else { NO_TAG };
        let request =
            TextRequest { is_final: flags & 0x80 != 0, cont: flags & 0x40 != 0, itt: 1, ttt: tag, data };
        let talker = TextContext {
            directory: site,
            via: &ConnectionPath::from(&arrival()),
            initiator: &outcome.initiator,
            kind: &outcome.kind,
            initiator_max_recv: outcome.negotiated.connection.initiator_max_recv,
            fresh_ttt: u32::try_from(at).unwrap(),
        };
        ttt = text.handle(&request, &talker).map_or(NO_TAG, |reply| reply.ttt);
    }
}

/// Each operation is a response: T, C, NSG and CSG as on the wire, and its text.
fn to_initiator(first: u8, rest: &[u8]) {
    let auth = match first & 3 {
        _ if first & 0x10 != 0 => {
            AuthPlan::Opaque { user: "user".into(), password: Password::new(b"in no input").unwrap() }
        }
        0 => AuthPlan::None,
        which => AuthPlan::Chap {
            algorithms: Algorithms::ALL,
            own: user(),
            peer: (which & 1 != 0).then(itself),
            or_none: which & 2 != 0,
        },
    };
    let proves = matches!(auth, AuthPlan::Chap { peer: Some(_), .. } | AuthPlan::Opaque { .. });
    let stages = match first >> 2 & 3 {
        0 => LoginStages::SecurityOnly,
        1 => LoginStages::OperationalOnly,
        _ => LoginStages::SecurityAndOperational,
    };
    let initiator = "iqn.2026-11.com.example:host".parse().unwrap();
    let purpose = Purpose::NewSession(TARGET.parse().unwrap());
    let isid = Isid([0x80, 0, 0, 0, 0, 1]);
    let plan = LoginPlan { stages, ..LoginPlan::new(initiator, purpose, isid, auth, KeyPolicy::default()) };
    let mut login = InitiatorLogin::new(plan, [9; 32]);
    let call = login.start();
    for (flags, data) in Operations::of(rest) {
        let response = LoginResponse {
            transit: flags & 0x80 != 0,
            cont: flags & 0x40 != 0,
            csg: Stage(flags >> 2 & 3),
            nsg: Stage(flags & 3),
            version_max: 0,
            version_active: 0,
            isid: isid.0,
            tsih: 1,
            itt: call.itt,
            status_class: flags >> 4 & 3,
            status_detail: u8::from(flags >> 4 & 3 != 0),
            data: data.to_vec(),
        };
        match login.handle(&response) {
            InitiatorLoginStep::Send(next) => assert!(!(next.transit && next.cont)),
            // No target without the record sends an answer that the slow step accepts.
            InitiatorLoginStep::Stretch => break,
            InitiatorLoginStep::Relay => panic!("this login relays no keys"),
            InitiatorLoginStep::Complete(done) => {
                assert!(!done.peer_authenticated, "a target proved itself without the secret");
                assert!(
                    !proves || stages == LoginStages::OperationalOnly,
                    "a target got away without a proof"
                );
                break;
            }
            InitiatorLoginStep::Redirected { .. }
            | InitiatorLoginStep::Refused(_)
            | InitiatorLoginStep::Drop(_) => break,
        }
    }
}
