//! The end of a session with several connections.

use base::state_machine::{Action, ConnId};
use base::time::Duration;

use super::pair::read;
use super::recovery::level_2;
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};

fn leave(raw: &mut ScriptedTarget) {
    let now = raw.now;
    raw.session.logout(now);
    raw.drain();
}

fn expect_logout(raw: &mut ScriptedTarget, conn: ConnId, reason: LogoutReason) -> LogoutRequest {
    let logout: LogoutRequest = raw.expect(conn);
    assert_eq!((logout.reason, u32::from(logout.cid)), (reason, conn.0));
    logout
}

fn answer(raw: &mut ScriptedTarget, conn: ConnId, logout: &LogoutRequest) {
    let (itt, sn) = (logout.itt, raw.next_sn(conn));
    let response = LogoutResponse { response: LogoutResult::CLOSED, itt, sn, time2wait: 0, time2retain: 0 };
    raw.send(conn, &response, &[]);
}

fn is_logged_out(raw: &ScriptedTarget) -> bool {
    raw.events.iter().any(|event| matches!(event, Event::Down(SessionEnd::LoggedOut)))
}

/// The last connection is logged out when no more PDUs can arrive on the others: damage there is still
/// detected.
#[test]
fn connections_leave_one_by_one_and_the_last_takes_the_session_along() {
    //= rfc7143#section-11.14
    //= type=test
    //# After receiving the Logout Response and attempting to receive the FIN (if still possible), the
    //# initiator MUST completely close the logging-out connection.
    //= rfc7143#section-11.15
    //= type=test
    //# After Logout, the TCP connection referred by the CID MUST be closed at both ends (or all connections
    //# must be closed if the logout reason was session close).
    let (mut raw, conns) = level_2(3);
    let (task, command) = raw.start(conns[0], read(0, 512));
    leave(&mut raw);
    assert!(conns.iter().all(|conn| raw.receive(*conn).is_none()), "a task is open");
    let pdu = raw.data_in(conns[0], command.itt, 0, 0);
    let pdu = raw.with_status(conns[0], pdu);
    raw.send(conns[0], &pdu, &[0; 512]);
    assert!(raw.outcome(task).end.is_good());
    let others =
        [conns[1], conns[2]].map(|conn| (conn, expect_logout(&mut raw, conn, LogoutReason::CloseConnection)));
    for (conn, logout) in others {
        while raw
            .receive(conns[0])
            .is_some_and(|sent| sent.bhs.opcode() != crate::pdu::Opcode::LOGOUT_REQUEST)
        {}
        assert!(!is_logged_out(&raw));
        // The target sent this before it read the logout: the session handles it.
        let seen = raw.session.stats().pdus_in;
        let pdu = raw.data_in(conn, command.itt, 0, 0);
        raw.send(conn, &pdu, &[0; 512]);
        assert_eq!(raw.session.stats().pdus_in, seen + 1);
        answer(&mut raw, conn, &logout);
        assert_eq!(raw.ended(conn), Some(Action::Close(conn)));
    }
    let last = expect_logout(&mut raw, conns[0], LogoutReason::CloseSession);
    answer(&mut raw, conns[0], &last);
    assert!(is_logged_out(&raw));
    assert!(raw.wanted.is_empty(), "no connection is asked for again");
    assert_eq!(raw.session.stats().connections_lost, 0);
}

#[test]
fn a_target_that_answers_no_logout_holds_nobody_up_for_long() {
    let (mut raw, conns) = level_2(2);
    leave(&mut raw);
    expect_logout(&mut raw, conns[1], LogoutReason::CloseConnection);
    raw.pass(Duration::from_secs(5));
    assert_eq!(raw.ended(conns[1]), Some(Action::Close(conns[1])));
    expect_logout(&mut raw, conns[0], LogoutReason::CloseSession);
    raw.pass(Duration::from_secs(5));
    assert!(is_logged_out(&raw));
}

/// No request is open, so no new connection is needed.
#[test]
fn a_connection_that_is_lost_on_the_way_out_is_not_missed() {
    for lost in [0, 1] {
        let (mut raw, conns) = level_2(2);
        leave(&mut raw);
        let first = expect_logout(&mut raw, conns[1], LogoutReason::CloseConnection);
        raw.cut(conns[lost]);
        if lost == 0 {
            answer(&mut raw, conns[1], &first);
        } else {
            let last = expect_logout(&mut raw, conns[0], LogoutReason::CloseSession);
            answer(&mut raw, conns[0], &last);
        }
        raw.pass(Duration::from_secs(30));
        assert!(is_logged_out(&raw), "{lost}");
        assert!(raw.wanted.is_empty() && raw.ends.len() == 2, "{lost}");
    }
}
