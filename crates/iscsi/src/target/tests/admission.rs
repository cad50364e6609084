//! Admission when slots are short, and harmless departures from the login rules that are accepted.

use alloc::format;
use alloc::vec::Vec;

use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::Duration;

use super::world::{INITIATOR, TARGET, World, keys, pairs};
use crate::login::Status;
use crate::name::{IscsiName, PortalGroupTag};
use crate::negotiate::KeyPolicy;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::text_request::TextRequest;
use crate::pdu::{Itt, Opcode, Ttt};
use crate::serial::StatSn;
use crate::target::contract::{Event, SessionEnd};
use crate::target::engine::Limits;

fn level_2() -> KeyPolicy {
    KeyPolicy { error_recovery_level: 2, max_connections: 4, ..keys() }
}

const LEVEL_2: [&str; 3] = ["ErrorRecoveryLevel=2", "DefaultTime2Retain=3600", "MaxConnections=4"];

fn log_in(world: &mut World, conn: ConnId, isid: u8, more: &[&str]) -> LoginResponse {
    let target = format!("TargetName={TARGET}");
    world.login_pdu(conn, isid, &[&["SessionType=Normal", &target], more].concat())
}

fn discover(world: &mut World, isid: u8) -> ConnId {
    let conn = world.connect();
    assert_eq!(world.login_pdu(conn, isid, &["SessionType=Discovery"]).status, 0);
    conn
}

/// Asks for the targets in a discovery session.
fn ask(world: &mut World, conn: ConnId) {
    let (itt, cmd_sn) = world.numbers(conn);
    let (ttt, exp_stat_sn) = (Ttt::NONE, StatSn(0));
    let request = TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: 0,
        itt,
        ttt,
        cmd_sn,
        exp_stat_sn,
    };
    world.send(conn, &request, b"SendTargets=All\0");
    while world.receive(conn).is_some() {}
}

#[test]
fn discovery_sessions_take_no_place_from_others_and_the_oldest_goes_first() {
    let mut world = World::with(Limits { sessions_max: 1, ..Limits::default() }, keys());
    let conns: Vec<ConnId> = (0..130).map(|isid| discover(&mut world, isid)).collect();
    let ended = conns.iter().filter(|conn| world.ended(**conn).is_some()).count();
    assert_eq!((ended, world.ended(conns[0]).is_some(), world.ended(conns[2]).is_some()), (2, true, false));
    let (conn, _) = world.login(&[]);
    let other = world.connect();
    assert_eq!(log_in(&mut world, other, 5, &[]).status, Status::OUT_OF_RESOURCES.0);
    assert_eq!(world.ended(conn), None);
}

#[test]
fn an_address_with_very_many_discovery_sessions_ends_only_its_own() {
    let mut world = World::new();
    let mut discover_from = |address: [u8; 4], isid| {
        let conn = world.connect_from((address, 40_000).into());
        assert_eq!(world.login_pdu(conn, isid, &["SessionType=Discovery"]).status, 0);
        conn
    };
    let other = discover_from([192, 0, 2, 9], 200);
    let many: Vec<ConnId> = (0..150).map(|isid| discover_from([192, 0, 2, 10], isid)).collect();
    assert_eq!(world.ended(other), None);
    assert_eq!(many.iter().filter(|conn| world.ended(**conn).is_some()).count(), 23);
}

#[test]
fn a_discovery_session_ends_when_it_asks_nothing_and_when_it_asks_for_ever() {
    let mut world = World::with(Limits { ping_after: Duration::MAX, ..Limits::default() }, keys());
    let (silent, busy) = (discover(&mut world, 1), discover(&mut world, 2));
    let (normal, _) = world.login(&[]);
    let mut lasted = [0, 0];
    for second in 0..400 {
        world.pass(Duration::from_secs(1));
        for (lasted, conn) in lasted.iter_mut().zip([silent, busy]) {
            if world.ended(conn).is_none() {
                *lasted = second;
            }
        }
        if second % 20 == 0 && world.ended(busy).is_none() {
            ask(&mut world, busy);
        }
    }
    assert_eq!(lasted, [58, 298]);
    assert_eq!(world.ended(normal), None);
}

#[test]
fn logins_from_one_address_leave_room_for_those_from_others() {
    let mut world = World::with(Limits { connections_max: 64, ..Limits::default() }, keys());
    let mallory = |port| ([203, 0, 113, 5], port).into();
    let taken = (0..60).filter(|port| {
        let conn = world.connect_from(mallory(*port));
        let taken = world.ended(conn).is_none();
        if !taken {
            // The connection was refused, so its number is free again.
            world.next_conn -= 1;
        }
        taken
    });
    assert_eq!(taken.count(), 32, "half of all");
    for isid in 0..20 {
        let conn = world.connect_from(([198, 51, 100, isid], 1000).into());
        assert_eq!(log_in(&mut world, conn, isid, &[]).status, 0, "{isid}");
    }
    // Connections that have logged in or ended do not count.
    world.hang_up(ConnId(0), DisconnectReason::Closed);
    assert_eq!(world.engine.pending_logins.values().sum::<usize>(), 31);
    // Nor is their address remembered.
    assert_eq!(world.engine.pending_logins.len(), 1);
}

#[test]
fn a_session_without_connections_gives_way_to_a_newcomer_the_oldest_first() {
    for full in [false, true] {
        let sessions_max = if full { 100 } else { 3 };
        let mut world = World::with(Limits { sessions_max, ..Limits::default() }, level_2());
        let mut sessions = Vec::new();
        for isid in 0..3 {
            let conn = world.connect();
            sessions.push((conn, world.login_on(conn, isid, &LEVEL_2).session));
        }
        // The second and the first session lose their connections, in this order; their tasks are retained.
        for at in [1, 0] {
            world.pass(Duration::from_secs(1));
            world.hang_up(sessions[at].0, DisconnectReason::Failed);
        }
        assert_eq!(world.engine.sessions().count(), 3);
        world.names.full = full;
        // They have DefaultTime2Wait (2 s) and 5 s more to come back: the first to lose its connection has 1
        // s left.
        world.pass(Duration::from_secs(5));
        let conn = world.connect();
        assert_eq!(log_in(&mut world, conn, 9, &LEVEL_2).status, Status::OUT_OF_RESOURCES.0, "full {full}");
        world.pass(Duration::from_secs(2));
        for (isid, oldest) in [(10, 1), (11, 0)] {
            let conn = world.connect();
            assert_eq!(log_in(&mut world, conn, isid, &LEVEL_2).status, 0, "full {full}");
            assert!(
                world.events.iter().any(|event| matches!(event,
                Event::SessionDown { session, why: SessionEnd::ConnectionLost(_) } if *session == sessions[oldest].1))
            );
        }
        // A session with a responsive connection is not evicted.
        let conn = world.connect();
        assert_eq!(log_in(&mut world, conn, 12, &LEVEL_2).status, Status::OUT_OF_RESOURCES.0, "full {full}");
        assert_eq!(world.ended(sessions[2].0), None);
    }
}

#[test]
fn an_idle_initiator_that_answers_no_ping_rests_and_gives_way() {
    let limits = Limits { sessions_max: 1, ..Limits::default() };
    let mut world = World::with(limits, keys());
    let (conn, _) = world.login(&[]);
    world.pass(Duration::from_secs(200));
    assert_eq!(world.ended(conn), None, "nothing waits for it");
    // With a command under way, the connection has only the time limit of the ping.
    let command = world.command(conn);
    world.start(conn, &command, &[]);
    world.pass(Duration::from_secs(44));
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    world.events.clear();
    // A peer that stops in the middle of a PDU is not idle.
    let (conn, _) = world.login(&[]);
    world.feed(conn, &[0x40, 0x80, 0]);
    world.pass(Duration::from_secs(45));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    world.events.clear();
    // A silent idle connection is kept no longer than `idle_within`, and only while no new session needs its
    // slot.
    let (conn, _) = world.login(&[]);
    world.pass(Duration::from_secs(299));
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    world.events.clear();
    let (conn, _) = world.login(&[]);
    world.pass(Duration::from_secs(50));
    let other = world.connect();
    assert_eq!(log_in(&mut world, other, 9, &[]).status, 0);
    assert!(world.ended(conn).is_some());
}

#[test]
fn a_joining_connection_hears_the_counters_of_its_session_from_the_first_response_on() {
    let mut world = World::with(Limits { queue_depth: 8, ..Limits::default() }, level_2());
    let (conn, up) = world.login(&LEVEL_2);
    for _ in 0..3 {
        let command = world.command(conn);
        world.start(conn, &command, &[]);
    }
    let joining = world.connect();
    world.share_numbers(conn, joining);
    let target = format!("TargetName={TARGET}");
    // Marker keys are answered on any connection (RFC 7143 §13.25), and do not fail the login.
    let offer = ["SessionType=Normal", &target, "IFMarker=No", "OFMarker=Yes", "IFMarkInt=2048~8192"];
    let (itt, cmd_sn) = world.numbers(joining);
    let response = world.login_as(joining, (0, up.tsih.0, 1), &offer);
    assert_eq!(response.status, 0);
    let sn = response.sn;
    assert_eq!((sn.exp_cmd_sn, sn.max_cmd_sn), (cmd_sn, cmd_sn.plus(4)));
    assert_ne!(itt, Itt::NONE);
    let markers: Vec<_> = pairs(&world.login_text).into_iter().filter(|pair| pair.contains("Mark")).collect();
    assert_eq!(markers, ["IFMarker=No", "OFMarker=Reject", "IFMarkInt=Reject"]);
}

#[test]
fn the_first_of_several_login_responses_carries_the_counters_too() {
    let mut world = World::with(Limits { queue_depth: 8, ..Limits::default() }, level_2());
    let (conn, up) = world.login(&LEVEL_2);
    let joining = world.connect();
    world.share_numbers(conn, joining);
    let (_, cmd_sn) = world.numbers(joining);
    let target = format!("TargetName={TARGET}");
    let text = format!("InitiatorName={}\0SessionType=Normal\0{target}\0", INITIATOR);
    let mut request = world.login_request(joining, (0, up.tsih.0, 1));
    (request.csg, request.transit, request.nsg) = (0, false, 0);
    world.send(joining, &request, text.as_bytes());
    let got = world.expect_any(joining);
    assert_eq!(got.bhs.opcode(), Opcode::LOGIN_RESPONSE);
    let first: LoginResponse = got.read();
    assert_eq!((first.status, first.sn.exp_cmd_sn), (0, cmd_sn));
    assert_eq!(first.sn.max_cmd_sn, cmd_sn.plus(7));
}

#[test]
fn an_initiator_at_its_own_limit_can_replace_a_session_and_add_none() {
    let mut world = World::with(Limits::default(), keys());
    world.names.sessions_max = Some(2);
    let status = |world: &mut World, isid| {
        let conn = world.connect();
        log_in(world, conn, isid, &[]).status
    };
    let refused = Status::OUT_OF_RESOURCES.0;
    let statuses = [1, 2, 3, 2, 1, 4].map(|isid| status(&mut world, isid));
    assert_eq!(statuses, [0, 0, refused, 0, 0, refused]);
    // A limit that becomes lower takes no session from an initiator that logs in again.
    world.names.sessions_max = Some(1);
    assert_eq!([1, 2, 3].map(|isid| status(&mut world, isid)), [0, 0, refused]);
    assert_eq!(world.engine.sessions().count(), 2);
}

#[test]
fn an_initiator_at_its_own_limit_evicts_its_own_silent_session_and_no_other() {
    let mut world = World::with(Limits { sessions_max: 2, ..Limits::default() }, level_2());
    world.names.sessions_max = Some(1);
    let login = |world: &mut World, initiator, isid| {
        world.initiator = initiator;
        let conn = world.connect();
        (conn, log_in(world, conn, isid, &LEVEL_2).status)
    };
    let (silent, status) = login(&mut world, "iqn.2001-04.com.example:other", 1);
    assert_eq!(status, 0);
    let (own, status) = login(&mut world, INITIATOR, 1);
    assert_eq!(status, 0);
    world.hang_up(silent, DisconnectReason::Failed);
    world.pass(Duration::from_secs(8));
    assert_eq!(login(&mut world, INITIATOR, 2).1, Status::OUT_OF_RESOURCES.0);
    assert_eq!(world.engine.sessions().count(), 2);
    world.hang_up(own, DisconnectReason::Failed);
    world.pass(Duration::from_secs(8));
    assert_eq!(login(&mut world, INITIATOR, 3).1, 0);
    let mut sessions: Vec<_> = world.engine.sessions().map(|session| session.initiator.as_str()).collect();
    sessions.sort_unstable();
    let mut expected = [INITIATOR, "iqn.2001-04.com.example:other"];
    expected.sort_unstable();
    assert_eq!(sessions, expected);
}

#[test]
fn a_connection_joins_only_a_session_of_its_own_initiator_port() {
    let other = "iqn.2001-04.com.example:other";
    for (initiator, isid, joins) in [(INITIATOR, 0, true), (INITIATOR, 1, false), (other, 0, false)] {
        for is_last in [false, true] {
            let mut world = World::with(Limits::default(), level_2());
            let (conn, up) = world.login(&LEVEL_2);
            for _ in 0..3 {
                let command = world.command(conn);
                world.start(conn, &command, &[]);
            }
            let joining = world.connect();
            let own = world.peers[&joining].cmd_sn;
            let mut request = world.login_request(joining, (isid, up.tsih.0, 1));
            // The login is refused by its first request, before its initiator could prove who it is.
            (request.csg, request.transit, request.nsg) = if is_last { (1, true, 3) } else { (0, false, 0) };
            let text = format!("InitiatorName={initiator}\0SessionType=Normal\0TargetName={TARGET}\0");
            world.send(joining, &request, text.as_bytes());
            let response: LoginResponse = world.expect(joining);
            let (status, heard) = if joins { (0, own + 3) } else { (Status::SESSION_DOES_NOT_EXIST.0, own) };
            assert_eq!((response.status, response.sn.exp_cmd_sn.0), (status, heard), "{initiator} {isid}");
            assert_eq!(world.ended(joining), (!joins).then_some(Action::Close(joining)));
            let connections: Vec<_> = world.engine.sessions().map(|view| view.connections).collect();
            assert_eq!(connections, [if joins && is_last { 2 } else { 1 }]);
            assert_eq!(world.ended(conn), None);
            assert!(world.events.is_empty(), "{:?}", world.events);
        }
    }
}

#[test]
fn a_login_replaces_only_a_session_of_its_own_initiator_port() {
    for (initiator, isid, replaces) in
        [(INITIATOR, 0, true), (INITIATOR, 1, false), ("iqn.2001-04.com.example:other", 0, false)]
    {
        let mut world = World::new();
        let (conn, up) = world.login(&[]);
        world.initiator = initiator;
        let new = world.connect();
        let _ = world.login_on(new, isid, &[]);
        assert_eq!(world.ended(conn).is_some(), replaces, "{initiator} {isid}");
        let is_down = world.events.iter().any(|event| {
            matches!(event, Event::SessionDown { session, why: SessionEnd::Reinstated } if *session == up.session)
        });
        assert_eq!(is_down, replaces, "{initiator} {isid}");
    }
}

const OTHER_TARGET: &str = "iqn.2026-01.test:target2";

/// Logs in to a target as the initiator port with this ISID. Returns the connection and the login status.
fn log_in_to(world: &mut World, target: &str, isid: u8) -> (ConnId, u16) {
    let conn = world.connect();
    let target = format!("TargetName={target}");
    let status =
        world.login_pdu(conn, isid, &[&["SessionType=Normal", &target], &LEVEL_2[..]].concat()).status;
    (conn, status)
}

#[test]
fn the_limit_of_an_initiator_counts_its_sessions_with_one_target() {
    let mut world = World::with(Limits::default(), level_2());
    world.names.targets.push(IscsiName::parse(OTHER_TARGET.as_bytes()).unwrap());
    world.names.sessions_max = Some(1);
    for (target, isid, status) in [
        (TARGET, 1, 0),
        (OTHER_TARGET, 2, 0),
        (TARGET, 3, Status::OUT_OF_RESOURCES.0),
        (OTHER_TARGET, 4, Status::OUT_OF_RESOURCES.0),
    ] {
        assert_eq!(log_in_to(&mut world, target, isid).1, status, "{target} {isid}");
    }
}

#[test]
fn a_full_target_evicts_a_silent_session_of_its_own_for_any_initiator() {
    let mut world = World::with(Limits::default(), level_2());
    world.names.targets.push(IscsiName::parse(OTHER_TARGET.as_bytes()).unwrap());
    let (of_other, status) = log_in_to(&mut world, OTHER_TARGET, 1);
    assert_eq!(status, 0);
    world.hang_up(of_other, DisconnectReason::Failed);
    world.pass(Duration::from_secs(1));
    let (own, status) = log_in_to(&mut world, TARGET, 2);
    assert_eq!(status, 0);
    world.pass(Duration::from_secs(9));
    world.names.full = true;
    world.initiator = "iqn.2001-04.com.example:other";
    // The silent session of the other target is no help.
    assert_eq!(log_in_to(&mut world, TARGET, 3).1, Status::OUT_OF_RESOURCES.0);
    assert_eq!((world.engine.sessions().count(), world.engine.stats().evicted), (2, 0));
    world.hang_up(own, DisconnectReason::Failed);
    world.pass(Duration::from_secs(8));
    assert_eq!(log_in_to(&mut world, TARGET, 4).1, 0);
    assert_eq!((world.engine.sessions().count(), world.engine.stats().evicted), (2, 1));
    let targets: Vec<_> = world.engine.sessions().map(|view| view.target).collect();
    assert_ne!(targets[0], targets[1], "the silent session of the other target is kept");
}

#[test]
fn a_session_is_evicted_only_while_its_ping_is_overdue() {
    let mut world = World::with(Limits { sessions_max: 1, ..Limits::default() }, level_2());
    let refused = Status::OUT_OF_RESOURCES.0;
    let (conn, _) = log_in_to(&mut world, TARGET, 1);
    // It was pinged after 30 s and has 15 s to answer.
    world.pass(Duration::from_secs(44));
    assert_eq!(log_in_to(&mut world, TARGET, 2).1, refused);
    world.pass(Duration::from_secs(3));
    // Anything that it sends shows that it is alive.
    let ping = NopOut {
        immediate: true,
        lun: 0,
        itt: Itt::NONE,
        ttt: Ttt::NONE,
        cmd_sn: world.numbers(conn).1,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &ping, &[]);
    assert_eq!(log_in_to(&mut world, TARGET, 2).1, refused);
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(59));
    assert_eq!(log_in_to(&mut world, TARGET, 2).1, 0);
    assert!(world.ended(conn).is_some());
}

#[test]
fn an_initiator_replaces_its_own_session_with_a_full_target() {
    let mut world = World::with(Limits::default(), level_2());
    let (old, status) = log_in_to(&mut world, TARGET, 1);
    assert_eq!(status, 0);
    world.names.full = true;
    assert_eq!(log_in_to(&mut world, TARGET, 2).1, Status::OUT_OF_RESOURCES.0);
    assert_eq!(world.ended(old), None);
    assert_eq!(log_in_to(&mut world, TARGET, 1).1, 0);
    assert!(world.ended(old).is_some());
    assert_eq!((world.engine.stats().logins, world.engine.stats().sessions_reinstated), (2, 1));
}

#[test]
fn a_session_in_another_portal_group_is_another_one() {
    for (group, tsih, status, sessions) in [
        (1, false, 0, 1),
        (2, false, 0, 2),
        (1, true, 0, 1),
        (2, true, Status::CANNOT_INCLUDE_IN_SESSION.0, 1),
    ] {
        let mut world = World::with(Limits::default(), level_2());
        let (first, up) = world.login(&LEVEL_2);
        world.names.portal_group = PortalGroupTag(group);
        let conn = world.connect();
        let target = format!("TargetName={TARGET}");
        // A connection that joins has the keys of its session.
        let own: &[&str] = if tsih { &[] } else { &LEVEL_2 };
        let keys = [&["SessionType=Normal", &*target], own].concat();
        let response = world.login_as(conn, (0, if tsih { up.tsih.0 } else { 0 }, 1), &keys);
        assert_eq!((response.status, world.engine.sessions().count()), (status, sessions), "{group} {tsih}");
        let is_replaced = group == 1 && !tsih;
        assert_eq!(world.ended(first).is_some(), is_replaced, "{group} {tsih}");
    }
}

#[test]
fn changed_limits_of_logins_count_from_the_next_login_on() {
    let mut world = World::with(Limits { connections_max: 2, ..Limits::default() }, keys());
    let (conn, _) = world.login(&[]);
    world.engine.set_logins(1, Duration::from_secs(5));
    let other = world.connect();
    assert_eq!(log_in(&mut world, other, 1, &[]).status, Status::OUT_OF_RESOURCES.0);
    world.engine.set_logins(2, Duration::from_secs(5));
    let accepted = world.connect();
    assert_eq!(log_in(&mut world, accepted, 1, &[]).status, 0);
    // A third connection needs a higher limit, and a lower one changes nothing.
    let refused = world.connect();
    assert_eq!(world.ended(refused), Some(Action::Abort(refused)));
    world.engine.allow_connections(3);
    world.engine.allow_connections(1);
    let slow = world.connect();
    world.pass(Duration::from_secs(4));
    assert_eq!(world.ended(slow), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(slow), Some(Action::Abort(slow)));
    assert_eq!(world.ended(conn), None);
}

#[test]
fn a_connection_that_does_not_begin_with_a_login_is_counted_as_a_failed_one() {
    let mut world = World::new();
    let conn = world.connect();
    let (itt, cmd_sn) = world.numbers(conn);
    let ttt = Ttt::NONE;
    let ping = NopOut { immediate: true, lun: 0, itt, ttt, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conn, &ping, &[]);
    assert!(world.ended(conn).is_some());
    assert_eq!(world.engine.stats().logins_failed, 1);
    assert!(world.engine.poll_failed_login().is_some());
}

#[test]
fn the_window_of_a_discovery_session_stays_open_while_the_others_are_frozen() {
    let mut world = World::with(Limits { queue_depth: 2, ..Limits::default() }, keys());
    let (normal, _) = world.login(&[]);
    let discovery = discover(&mut world, 1);
    let now = world.now;
    world.engine.freeze(now);
    world.drain();
    for (conn, is_open) in [(normal, false), (discovery, true)] {
        for _ in 0..2 {
            let (itt, cmd_sn) = world.numbers(conn);
            let ttt = Ttt::NONE;
            let ping = NopOut { immediate: false, lun: 0, itt, ttt, cmd_sn, exp_stat_sn: StatSn(0) };
            world.count(conn);
            world.send(conn, &ping, &[]);
        }
        let mut last = None;
        while let Some(got) = world.receive(conn) {
            last = Some(got.read::<NopIn>().sn);
        }
        let sn = last.unwrap();
        assert_eq!(sn.exp_cmd_sn.0, world.peers[&conn].cmd_sn);
        assert_eq!(!sn.max_cmd_sn.before(sn.exp_cmd_sn), is_open);
    }
}
