//! Whose decision a logout is.

use alloc::vec::Vec;

use base::state_machine::{ConnId, DisconnectReason};
use base::time::Duration;

use super::handover::move_session;
use super::mcs::{logout, session};
use super::world::World;
use crate::pdu::logout_request::LogoutReason;
use crate::target::contract::{AsyncEvent, Event, SessionEnd};

/// Returns why the sessions ended.
fn ends(world: &mut World) -> Vec<SessionEnd> {
    let ends = world.events.drain(..).filter_map(|event| match event {
        Event::SessionDown { why, .. } => Some(why),
        _ => None,
    });
    ends.collect()
}

/// Requests a logout of the only session.
fn request_logout(world: &mut World) {
    let session = world.engine.sessions().next().unwrap().session;
    world.engine.async_message(
        world.now,
        session,
        AsyncEvent::LogoutRequest { within: Duration::from_secs(3) },
    );
    world.drain();
}

/// Makes the target drop a connection, by a PDU that does not fit.
fn let_drop(world: &mut World, conn: ConnId) {
    let header = world.command_bhs(conn);
    let mut bytes = world.frame(conn, header, &[], &[]);
    bytes[5] = 0xff;
    world.feed(conn, &bytes);
}

#[test]
fn a_logout_is_the_decision_of_the_initiator_alone_unless_the_target_requested_it() {
    for reason in [LogoutReason::CloseSession, LogoutReason::CloseConnection] {
        for (is_requested, expected) in [(false, SessionEnd::LoggedOut), (true, SessionEnd::LogoutCaused)] {
            let (mut world, conns, _) = session(0, 1);
            if is_requested {
                request_logout(&mut world);
            }
            logout(&mut world, conns[0], reason, 0);
            assert_eq!(ends(&mut world), [expected]);
        }
    }
}

#[test]
fn the_logout_of_each_connection_ends_the_session_by_decision_of_the_initiator() {
    let (mut world, conns, _) = session(0, 3);
    for (cid, conn) in (0..).zip(conns) {
        assert_eq!(ends(&mut world), []);
        logout(&mut world, conn, LogoutReason::CloseConnection, cid);
    }
    assert_eq!(ends(&mut world), [SessionEnd::LoggedOut]);
}

#[test]
fn the_logout_of_the_last_connection_is_none_of_the_session_if_others_were_lost() {
    for (reason, expected) in [
        (LogoutReason::CloseConnection, SessionEnd::LastConnectionClosed),
        (LogoutReason::CloseSession, SessionEnd::LoggedOut),
    ] {
        let (mut world, conns, _) = session(0, 2);
        world.hang_up(conns[1], DisconnectReason::Failed);
        logout(&mut world, conns[0], reason, 0);
        assert_eq!(ends(&mut world), [expected]);
    }
}

#[test]
fn a_logout_after_the_target_dropped_a_connection_is_caused_by_that_until_one_joins() {
    for joins in [false, true] {
        let (mut world, conns, tsih) = session(0, 2);
        let_drop(&mut world, conns[1]);
        assert!(world.ended(conns[1]).is_some());
        let mut on = conns[0];
        if joins {
            let (joined, status) = world.join(conns[0], tsih, 1, &[]);
            assert_eq!(status, 0);
            on = joined;
        }
        logout(&mut world, on, LogoutReason::CloseSession, 0);
        assert_eq!(ends(&mut world), [if joins { SessionEnd::LoggedOut } else { SessionEnd::LogoutCaused }]);
    }
}

#[test]
fn what_the_target_caused_is_not_forgotten_in_another_process() {
    let (mut world, conns, _) = session(0, 2);
    world.hang_up(conns[1], DisconnectReason::Failed);
    let (conns, _) = move_session(&mut world, 50);
    logout(&mut world, conns[0], LogoutReason::CloseConnection, 0);
    assert_eq!(ends(&mut world), [SessionEnd::LastConnectionClosed]);
}

#[test]
fn a_session_that_does_not_log_out_as_requested_ends_at_every_recovery_level() {
    for level in 0..=2 {
        let (mut world, _, _) = session(level, 2);
        request_logout(&mut world);
        world.pass(Duration::from_secs(4));
        assert_eq!(ends(&mut world), [SessionEnd::TimedOut], "{level}");
        assert_eq!(world.engine.stats().dropped, 1);
        assert_eq!(world.engine.sessions().count(), 0);
    }
}
