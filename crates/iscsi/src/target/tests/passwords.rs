//! Password logins at an engine: the rate limit on guesses, and what ends a guess.

use alloc::sync::Arc;
use alloc::vec::Vec;

use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::Duration;
use security::opaque::{Password, PasswordRecord, StretchCost};

use super::world::{INITIATOR, TARGET, World, keys};
use crate::login::directory::AuthPolicy;
use crate::login::initiator::{
    AuthPlan, InitiatorLogin, InitiatorLoginError, InitiatorLoginStep, LoginPlan, OwnedLoginRequest, Purpose,
};
use crate::login::{LoginError, LoginResponse, Stage, Status};
use crate::name::{Cid, Isid};
use crate::negotiate::KeyPolicy;
use crate::opaque::OpaqueError;
use crate::pdu::{Itt, PduHeader as _, login_request, login_response};
use crate::serial::{CmdSn, StatSn};
use crate::target::contract::LoginRejected;
use crate::target::engine::Limits;

const PASSWORD: &str = "correct horse";

fn world() -> World {
    let mut world =
        World::with(Limits::default(), KeyPolicy { aead_digests: &[], max_connections: 8, ..keys() });
    world.names.auth = AuthPolicy { opaque: true, ..AuthPolicy::default() };
    world.names.record = Some(record_of("alice"));
    world
}

fn record_of(user: &str) -> Arc<PasswordRecord> {
    let cost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
    let password = Password::new(PASSWORD.as_bytes()).unwrap();
    Arc::new(PasswordRecord::make(&password, user, cost, [1; 32]).unwrap())
}

/// An initiator on a connection.
struct Attempt {
    conn: ConnId,
    login: InitiatorLogin,
}

impl Attempt {
    /// Connects and logs in up to the request for the target's answer.
    fn begin(world: &mut World, host: u8, user: &str, password: &str) -> Self {
        Self::begin_as(world, host, INITIATOR, (user, password))
    }

    /// Does the same under the name of an initiator.
    fn begin_as(world: &mut World, host: u8, initiator: &str, (user, password): (&str, &str)) -> Self {
        let conn = world.connect_from(([127, 0, 0, host], 40000).into());
        let auth =
            AuthPlan::Opaque { user: user.into(), password: Password::new(password.as_bytes()).unwrap() };
        let purpose = Purpose::NewSession(TARGET.parse().unwrap());
        let isid = Isid([0x80, 0, 0, 0, 0, u8::try_from(conn.0).unwrap()]);
        let plan = LoginPlan {
            cid: Cid(1),
            cmd_sn: 100,
            ..LoginPlan::new(initiator.parse().unwrap(), purpose, isid, auth, KeyPolicy::default())
        };
        let mut login = InitiatorLogin::new(plan, [conn.0.to_be_bytes()[3]; 32]);
        let first = login.start();
        send(world, conn, &first);
        let response = receive(world, conn).unwrap();
        let InitiatorLoginStep::Send(next) = login.handle(&response) else { panic!() };
        send(world, conn, &next);
        Self { conn, login }
    }

    /// Takes the target's answer, if it was sent, and goes on to the end.
    fn end(&mut self, world: &mut World) -> Option<InitiatorLoginStep> {
        let mut step = self.login.handle(&receive(world, self.conn)?);
        loop {
            step = match step {
                InitiatorLoginStep::Stretch => {
                    let job = self.login.poll_job().unwrap();
                    self.login.job_done(job.run())
                }
                InitiatorLoginStep::Send(call) => {
                    send(world, self.conn, &call);
                    self.login.handle(&receive(world, self.conn).unwrap())
                }
                end => return Some(end),
            };
        }
    }
}

fn send(world: &mut World, conn: ConnId, call: &OwnedLoginRequest) {
    let request = login_request::LoginRequest {
        transit: call.transit,
        continues: call.cont,
        csg: call.csg.0,
        nsg: call.nsg.0,
        version_max: 0,
        version_min: 0,
        isid: call.isid.0,
        tsih: call.tsih.0,
        itt: Itt(call.itt),
        cid: call.cid.0,
        cmd_sn: CmdSn(call.cmd_sn),
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &request, &call.data);
}

fn receive(world: &mut World, conn: ConnId) -> Option<LoginResponse> {
    let got = world.receive(conn)?;
    let pdu = login_response::LoginResponse::decode(&got.bhs).unwrap();
    let [status_class, status_detail] = pdu.status.to_be_bytes();
    Some(LoginResponse {
        transit: pdu.transit,
        cont: pdu.continues,
        csg: Stage(pdu.csg),
        nsg: Stage(pdu.nsg),
        version_max: pdu.version_max,
        version_active: pdu.version_active,
        isid: pdu.isid,
        tsih: pdu.tsih,
        itt: pdu.itt.0,
        status_class,
        status_detail,
        data: got.data,
    })
}

/// Tries a wrong password and hangs up. Returns how long the target's answer took.
fn fail(world: &mut World, host: u8) -> Duration {
    let since = world.now;
    let mut attempt = Attempt::begin(world, host, "alice", "battery staple");
    let step = loop {
        match attempt.end(world) {
            Some(step) => break step,
            None => world.pass(Duration::from_millis(100)),
        }
    };
    let wrong = InitiatorLoginError::Opaque(OpaqueError::WrongPassword);
    assert!(matches!(step, InitiatorLoginStep::Drop(why) if why == wrong), "{step:?}");
    world.hang_up(attempt.conn, DisconnectReason::Closed);
    let failed = world.engine.poll_failed_login().unwrap();
    assert_eq!(failed.why, LoginRejected::Login(LoginError::PasswordNotProven));
    assert_eq!(failed.claims.user.as_deref(), Some("alice"));
    world.now.since(since)
}

#[test]
fn the_right_password_opens_a_session_under_the_name_of_its_user() {
    let mut world = world();
    let mut attempt = Attempt::begin(&mut world, 1, "alice", PASSWORD);
    let Some(InitiatorLoginStep::Complete(done)) = attempt.end(&mut world) else { panic!() };
    assert!(done.peer_authenticated && done.record_keys.is_none());
    let Some(crate::target::contract::Event::SessionUp(up)) = world.next_event() else { panic!() };
    assert_eq!(up.user.as_deref(), Some("alice"));
}

#[test]
fn the_session_limit_of_an_initiator_is_that_of_its_user() {
    let mut world = world();
    world.names.sessions_max = Some(2);
    let mut log_in = |name: &str, user: &str| {
        let name = alloc::format!("iqn.2026-01.test:{name}");
        world.names.record = Some(record_of(user));
        match Attempt::begin_as(&mut world, 1, &name, (user, PASSWORD)).end(&mut world) {
            Some(InitiatorLoginStep::Complete(_)) => None,
            Some(InitiatorLoginStep::Refused(status)) => Some(status),
            step => panic!("{step:?}"),
        }
    };
    for (name, user, refused) in [
        ("first", "alice", None),
        ("second", "alice", None),
        ("third", "alice", Some(Status::OUT_OF_RESOURCES)),
        // Another user has a limit of its own, also with a name that another user's initiator has claimed.
        ("first", "bob", None),
        ("fourth", "bob", None),
        ("fifth", "bob", Some(Status::OUT_OF_RESOURCES)),
    ] {
        assert_eq!(log_in(name, user), refused, "{name} as {user}");
    }
}

#[test]
fn the_answer_is_delayed_after_four_failures_in_a_row_and_a_success_ends_that() {
    //= iscsi-aead#section-3.3
    //= type=test
    //# delay step 4 by 500 ms after the fourth failure in a row of a user from one address, and by twice as
    //# much after each further one, up to 5 s. A success ends the delay.
    let mut world = world();
    let delays: Vec<u128> = (0..6).map(|_| fail(&mut world, 1).as_millis()).collect();
    assert_eq!(delays, [0, 0, 0, 0, 500, 1000]);
    let mut right = Attempt::begin(&mut world, 1, "alice", PASSWORD);
    assert!(right.end(&mut world).is_none(), "it waits like the others");
    world.pass(Duration::from_secs(2));
    assert!(matches!(right.end(&mut world), Some(InitiatorLoginStep::Complete(_))));
    assert_eq!(fail(&mut world, 1), Duration::ZERO);
}

#[test]
fn failures_on_purpose_do_not_delay_a_host_that_has_proven_the_password() {
    let mut world = world();
    let mut right = Attempt::begin(&mut world, 1, "alice", PASSWORD);
    assert!(matches!(right.end(&mut world), Some(InitiatorLoginStep::Complete(_))));
    for host in 2..12 {
        assert_eq!(fail(&mut world, host), Duration::ZERO, "each address fails for itself");
    }
    for _ in 0..4 {
        assert_eq!(fail(&mut world, 12), Duration::ZERO);
    }
    assert_ne!(fail(&mut world, 12), Duration::ZERO);
    let mut newcomer = Attempt::begin(&mut world, 13, "alice", PASSWORD);
    assert!(matches!(newcomer.end(&mut world), Some(InitiatorLoginStep::Complete(_))));
    let mut again = Attempt::begin(&mut world, 1, "alice", PASSWORD);
    assert!(matches!(again.end(&mut world), Some(InitiatorLoginStep::Complete(_))));
}

#[test]
fn a_fifth_unfinished_login_of_a_user_from_one_address_waits_for_one_of_the_others() {
    let mut world = world();
    let mut open: Vec<Attempt> = (0..4).map(|_| Attempt::begin(&mut world, 9, "alice", PASSWORD)).collect();
    let mut fifth = Attempt::begin(&mut world, 9, "alice", PASSWORD);
    world.pass(Duration::from_secs(1));
    assert!(fifth.end(&mut world).is_none());
    assert!(Attempt::begin(&mut world, 9, "bob", PASSWORD).end(&mut world).is_some(), "another user");
    assert!(Attempt::begin(&mut world, 8, "alice", PASSWORD).end(&mut world).is_some(), "another address");
    assert!(matches!(open[0].end(&mut world), Some(InitiatorLoginStep::Complete(_))));
    world.pass(Duration::from_millis(100));
    assert!(matches!(fifth.end(&mut world), Some(InitiatorLoginStep::Complete(_))));
    // A login that is never finished ends at its time limit, and no timer is left.
    world.pass(Duration::from_secs(31));
    for unfinished in &open[1..] {
        assert!(matches!(world.ended(unfinished.conn), Some(Action::Abort(_))));
    }
}

#[test]
fn a_request_before_the_delayed_answer_ends_the_login() {
    let mut world = world();
    for _ in 0..4 {
        fail(&mut world, 1);
    }
    let attempt = Attempt::begin(&mut world, 1, "alice", PASSWORD);
    assert_eq!(world.receive(attempt.conn), None);
    let mut early = InitiatorLogin::new(
        LoginPlan {
            cid: Cid(1),
            cmd_sn: 100,
            ..LoginPlan::new(
                INITIATOR.parse().unwrap(),
                Purpose::Discovery,
                Isid([0x80, 0, 0, 0, 0, 4]),
                AuthPlan::None,
                KeyPolicy::default(),
            )
        },
        [0; 32],
    );
    send(&mut world, attempt.conn, &early.start());
    assert_eq!(receive(&mut world, attempt.conn).unwrap().status(), Status::INITIATOR_ERROR);
    let why = core::iter::from_fn(|| world.engine.poll_failed_login()).last().unwrap().why;
    assert_eq!(why, LoginRejected::Login(LoginError::RequestBeforeResponse));
    world.pass(Duration::from_secs(60));
    assert_eq!(world.receive(attempt.conn), None, "the delayed answer is gone");
}

#[test]
fn no_connection_joins_the_session_of_a_user_without_the_password() {
    let mut world = world();
    let mut first = Attempt::begin(&mut world, 1, "alice", PASSWORD);
    assert!(matches!(first.end(&mut world), Some(InitiatorLoginStep::Complete(_))));
    let Some(crate::target::contract::Event::SessionUp(up)) = world.next_event() else { panic!() };
    // The target requires no authentication from now on.
    world.names.auth = AuthPolicy { allows_none: true, ..AuthPolicy::default() };
    let (joining, status) = world.join(first.conn, up.tsih, 1, &[]);
    assert_eq!(status, Status::AUTHENTICATION_FAILURE.0);
    assert!(world.ended(joining).is_some());
    assert_eq!(world.ended(first.conn), None);
}
