//! Where a session logs in: at the addresses of a host one after the other, and only in its portal group.

use alloc::vec::Vec;
use core::net::SocketAddr;

use base::state_machine::ConnId;
use base::time::{Duration, Instant};
use transport::initiator::{InitiatorTransport as _, Request};

use super::pair::{LUN, Setup, portal_address, write};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::login::Status;
use crate::login::directory::TargetAddress;
use crate::login::initiator::InitiatorLoginError;
use crate::name::PortalGroupTag;
use crate::pdu::Opcode;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::scsi_command::ScsiCommand;

/// Returns a session whose only portal is a host with this many addresses. Connections are provided by hand.
fn host(addresses: u16, level: u8) -> ScriptedTarget {
    let mut setup = Setup::default();
    setup.plan.portals = [Portal { address: TargetAddress::Host { name: "san".into(), port: 3260 } }].into();
    setup.plan.keys.error_recovery_level = level;
    started(setup, addresses)
}

fn started(setup: Setup, addresses: u16) -> ScriptedTarget {
    let mut raw = ScriptedTarget::idle(setup);
    raw.hosts.insert("san", (0..addresses).map(portal_address).collect());
    raw.manual = true;
    raw.drain();
    raw
}

/// Returns the address to which a connection was requested last.
fn last(raw: &ScriptedTarget) -> SocketAddr {
    *raw.dialed.last().unwrap()
}

fn refuse(raw: &mut ScriptedTarget) {
    let slot = raw.wanted.remove(0);
    raw.session.connect_failed(raw.now, slot);
    raw.drain();
}

/// Provides the connection that was requested, and logs in.
fn log_in(raw: &mut ScriptedTarget, tsih: u16, keys: &[&str]) -> ConnId {
    let conn = raw.connect();
    raw.drain();
    raw.log_in(conn, tsih, keys);
    conn
}

/// Provides the connection that was requested, and answers its login with this status and these keys.
fn answer(raw: &mut ScriptedTarget, status: Status, keys: &[&str]) -> ConnId {
    let conn = raw.connect();
    raw.drain();
    let request: LoginRequest = raw.expect(conn);
    raw.login_response(conn, &request, status.0, request.tsih, keys);
    conn
}

fn replayable_write() -> Request {
    Request { replay: true, ..write(0, 1, &[5; 512]) }
}

/// Returns how many seconds have begun since a moment.
fn seconds(raw: &ScriptedTarget, begin: Instant) -> u128 {
    raw.now.since(begin).as_millis().div_ceil(1000)
}

/// Passes time in small steps until the next connection is requested.
fn pass_until_dialed(raw: &mut ScriptedTarget) {
    let dialed = raw.dialed.len();
    while raw.dialed.len() == dialed {
        assert!(!raw.session.is_down(), "{:?}", raw.events);
        raw.pass(Duration::from_millis(100));
    }
}

#[test]
fn a_silent_address_takes_only_its_share_of_the_login_time() {
    for opens in [false, true] {
        let mut raw = host(3, 0);
        let begin = raw.now;
        for (at, time) in [(1, 10), (2, 20)] {
            if opens {
                // The connection opens, and no Login Response arrives.
                raw.connect();
                raw.drain();
            }
            pass_until_dialed(&mut raw);
            assert_eq!((last(&raw), seconds(&raw, begin)), (portal_address(at), time), "{opens}");
        }
        raw.wanted.drain(..raw.wanted.len() - 1);
        log_in(&mut raw, 7, &[]);
        assert!(raw.session.is_up(), "{:?}", raw.events);
    }
}

#[test]
fn an_address_that_fails_early_leaves_its_time_to_the_others_and_all_end_together() {
    let mut raw = host(3, 0);
    let begin = raw.now;
    refuse(&mut raw);
    pass_until_dialed(&mut raw);
    assert_eq!((last(&raw), seconds(&raw, begin)), (portal_address(2), 15));
    raw.pass(Duration::from_millis(14_800));
    assert!(!raw.session.is_down());
    raw.pass(Duration::from_millis(200));
    assert!(raw.session.is_down(), "the limit is that of the whole login");
    assert_eq!(raw.dialed.len(), 3);
}

#[test]
fn a_login_that_is_refused_for_good_is_not_tried_at_other_addresses() {
    let mut raw = host(2, 0);
    answer(&mut raw, Status::AUTHENTICATION_FAILURE, &[]);
    assert!(raw.session.is_down());
    assert_eq!(raw.dialed.len(), 1);

    let mut raw = host(2, 0);
    answer(&mut raw, Status::SERVICE_UNAVAILABLE, &[]);
    assert_eq!(last(&raw), portal_address(1));
}

#[test]
fn a_lost_session_returns_to_its_address_first_and_then_tries_the_others() {
    let mut raw = host(2, 0);
    refuse(&mut raw);
    let conn = log_in(&mut raw, 7, &[]);
    raw.cut(conn);
    pass_until_dialed(&mut raw);
    assert_eq!(last(&raw), portal_address(1));
    let begin = raw.now;
    pass_until_dialed(&mut raw);
    assert_eq!((last(&raw), seconds(&raw, begin)), (portal_address(0), 15));
}

/// A target ends the tasks of a lost session only if the new session is in the same portal group.
#[test]
fn a_session_is_not_rebuilt_in_another_portal_group() {
    //= rfc7143#section-7.15
    //= type=test
    //# If the same I_T nexus is intended to be reestablished, the initiator MUST employ session
    //# reinstatement (see Section 6.3.5).
    for states_group in [true, false] {
        let mut raw = host(2, 0);
        let conn = log_in(&mut raw, 7, &[]);
        let (_, first) = raw.start(conn, replayable_write());
        raw.cut(conn);
        raw.exp_cmd_sn = 1;
        pass_until_dialed(&mut raw);
        refuse(&mut raw);
        assert_eq!(last(&raw), portal_address(1));
        let elsewhere = if states_group {
            answer(&mut raw, Status::SUCCESS, &["AuthMethod=None", "TargetPortalGroupTag=2"])
        } else {
            let conn = answer(&mut raw, Status::SUCCESS, &["AuthMethod=None"]);
            let request: LoginRequest = raw.expect(conn);
            raw.login_response(conn, &request, 0, 9, &[]);
            conn
        };
        let why = ConnectionDown::Login(InitiatorLoginError::OtherPortalGroup);
        let failed = |event: &Event| matches!(event, Event::ConnectionDown { why: of, .. } if *of == why);
        assert!(raw.events.iter().any(failed), "{:?}", raw.events);
        assert!(raw.ended(elsewhere).is_some() && !raw.session.is_up());
        assert!(raw.receive(elsewhere).is_none_or(|sent| sent.bhs.opcode() == Opcode::LOGIN_REQUEST));
        pass_until_dialed(&mut raw);
        assert_eq!(last(&raw), portal_address(0));
        let back = log_in(&mut raw, 8, &[]);
        assert!(raw.session.is_up());
        let again: ScsiCommand = raw.expect(back);
        assert_eq!((again.lun, again.cdb), (LUN, first.cdb));
    }
}

/// The session of a process that was killed ends only if its successor logs in in the same portal group.
#[test]
fn a_session_of_another_process_is_reinstated_in_its_portal_group_only() {
    let successor = |addresses| {
        let mut setup = Setup::default();
        let host = TargetAddress::Host { name: "san".into(), port: 3260 };
        setup.plan.portals = [Portal { address: host }].into();
        setup.plan.portal_group = Some(PortalGroupTag(1));
        started(setup, addresses)
    };
    let mut raw = successor(2);
    answer(&mut raw, Status::SUCCESS, &["AuthMethod=None", "TargetPortalGroupTag=2"]);
    assert!(!raw.session.is_up());
    assert_eq!(last(&raw), portal_address(1));
    log_in(&mut raw, 8, &[]);
    assert!(raw.session.is_up(), "{:?}", raw.events);

    let mut raw = successor(1);
    answer(&mut raw, Status::SUCCESS, &["AuthMethod=None", "TargetPortalGroupTag=2"]);
    let why = ConnectionDown::Login(InitiatorLoginError::OtherPortalGroup);
    let ended = |event: &Event| matches!(event, Event::Down(SessionEnd::Permanent(of)) if *of == why);
    assert!(raw.events.iter().any(ended), "{:?}", raw.events);
}

#[test]
fn a_redirection_to_another_portal_group_leads_to_the_next_address() {
    let mut raw = host(2, 0);
    let conn = log_in(&mut raw, 7, &[]);
    let (_, _) = raw.start(conn, replayable_write());
    raw.cut(conn);
    raw.exp_cmd_sn = 1;
    pass_until_dialed(&mut raw);
    answer(&mut raw, Status::MOVED_TEMPORARILY, &["TargetAddress=127.0.0.1:3269"]);
    assert_eq!(last(&raw), portal_address(9));
    answer(&mut raw, Status::SUCCESS, &["AuthMethod=None", "TargetPortalGroupTag=2"]);
    assert_eq!(last(&raw), portal_address(1));
    log_in(&mut raw, 8, &[]);
    assert!(raw.session.is_up());
}

/// A session of level 2 returns to its own group without waiting for the end of Time2Retain.
#[test]
fn a_join_that_another_group_refuses_is_tried_at_the_next_address() {
    let level = ["ErrorRecoveryLevel=2", "DefaultTime2Wait=0"];
    let mut raw = host(2, 2);
    let conn = log_in(&mut raw, 7, &level);
    let (_, _) = raw.start(conn, replayable_write());
    raw.cut(conn);
    let begin = raw.now;
    pass_until_dialed(&mut raw);
    refuse(&mut raw);
    answer(&mut raw, Status::CANNOT_INCLUDE_IN_SESSION, &[]);
    pass_until_dialed(&mut raw);
    assert_eq!(last(&raw), portal_address(0));
    let back = raw.connect();
    raw.drain();
    let request = raw.log_in(back, 7, &level);
    assert_eq!(request.tsih, 7, "the session continues");
    assert!(raw.session.is_up() && seconds(&raw, begin) <= 3);
    let kinds: Vec<Opcode> =
        core::iter::from_fn(|| raw.receive(back)).map(|sent| sent.bhs.opcode()).collect();
    assert_eq!(kinds, [Opcode::TMF_REQUEST]);
}
