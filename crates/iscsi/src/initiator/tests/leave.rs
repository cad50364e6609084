//! The end of a session with several connections.

use base::state_machine::{Action, ConnId};
use base::time::Duration;
use transport::initiator::{InitiatorTransport as _, Request, SubmitError, TaskResult, TmfParameters};
use transport::task_management::TmfFunction;

use super::pair::{LUN, Setup, read, write};
use super::scripted_target::{ScriptedTarget, level_2};
use crate::initiator::contract::*;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::{Itt, Ttt};
use crate::serial::StatSn;

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

/// The target requests a logout within this many seconds.
fn ask_for_logout(raw: &mut ScriptedTarget, conn: ConnId, seconds: u16) {
    let message = AsyncMessage {
        lun: 0,
        sn: raw.next_sn(conn),
        event: AsyncEventCode::LOGOUT_REQUEST,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 0,
        parameter3: seconds,
    };
    raw.send(conn, &message, &[]);
}

#[test]
fn a_target_that_asks_for_a_logout_gets_it_once_the_connection_is_empty() {
    let (mut raw, conns) = level_2(2);
    let (task, command) = raw.start(conns[0], read(0, 512));
    let message = AsyncMessage {
        lun: 0,
        sn: raw.next_sn(conns[0]),
        event: AsyncEventCode::LOGOUT_REQUEST,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 0,
        parameter3: 10,
    };
    raw.send(conns[0], &message, &[]);
    assert!(raw.receive(conns[0]).is_none());
    let (_, other) = raw.start(conns[1], read(0, 512));
    assert!(other.cmd_sn != command.cmd_sn);
    let pdu = raw.data_in(conns[0], command.itt, 0, 0);
    let pdu = raw.with_status(conns[0], pdu);
    raw.send(conns[0], &pdu, &[0; 512]);
    assert!(raw.outcome(task).end.is_good());
    let logout: LogoutRequest = raw.expect(conns[0]);
    assert_eq!(logout.reason, LogoutReason::CloseConnection);
}

/// A task that is still open when the time is up ends with the connection. It moves nowhere: the target has
/// terminated it.
#[test]
fn a_busy_connection_is_closed_within_the_time_that_the_target_named() {
    //= rfc7143#section-11.9.1
    //= type=test
    //# The initiator MUST honor this request by issuing a Logout as early as possible but no later than
    //# Parameter3 seconds.
    //= rfc7143#section-11.9.1
    //= type=test
    //# The initiator MUST send a Logout with a reason code of "close the connection" OR "close the session"
    //# to close all the connections.
    for drains in [false, true] {
        let (mut raw, conns) = level_2(2);
        let [kept, closed] = [conns[0], conns[1]];
        raw.start(kept, read(0, 100_000));
        let (lost, _) = raw.start(closed, read(0, 512));
        let (replayed, _) = raw.start(closed, Request { replay: true, ..read(8, 512) });
        if drains {
            // The owner wants fewer connections: this one already gets no new tasks.
            raw.session.set_connections(raw.now, 1);
            raw.drain();
        }
        ask_for_logout(&mut raw, closed, 4);
        raw.pass(Duration::from_millis(2900));
        while let Some(sent) = raw.receive(closed) {
            assert_ne!(sent.bhs.opcode(), crate::pdu::Opcode::LOGOUT_REQUEST, "the tasks have time");
        }
        raw.pass(Duration::from_millis(200));
        let logout = expect_logout(&mut raw, closed, LogoutReason::CloseConnection);
        answer(&mut raw, closed, &logout);
        assert_eq!(raw.ended(closed), Some(Action::Close(closed)));
        assert_eq!(raw.outcome(lost).end, TaskResult::Lost);
        raw.pass(Duration::from_secs(3));
        let sent: alloc::vec::Vec<_> = core::iter::from_fn(|| raw.receive(kept)).collect();
        assert!(!sent.iter().any(|sent| sent.bhs.opcode() == crate::pdu::Opcode::TMF_REQUEST));
        let again = sent.iter().find(|sent| sent.bhs.opcode() == crate::pdu::Opcode::SCSI_COMMAND);
        let command: ScsiCommand = again.map(super::scripted_target::Sent::read).unwrap();
        raw.exp_cmd_sn = command.cmd_sn.next().0;
        let pdu = raw.data_in(kept, command.itt, 0, 0);
        let pdu = raw.with_status(kept, pdu);
        raw.send(kept, &pdu, &[0; 512]);
        assert!(raw.outcome(replayed).end.is_good());
        assert!(raw.session.is_up());
    }
}

/// A connection that is lost on the way out may have tasks that the target still knows.
#[test]
fn tasks_of_a_connection_that_is_lost_before_its_logout_is_answered_move() {
    let (mut raw, conns) = level_2(2);
    raw.start(conns[0], read(0, 100_000));
    let (_, command) = raw.start(conns[1], read(0, 512));
    ask_for_logout(&mut raw, conns[1], 0);
    raw.pass(Duration::from_millis(1));
    expect_logout(&mut raw, conns[1], LogoutReason::CloseConnection);
    raw.cut(conns[1]);
    let logout: LogoutRequest = raw.expect(conns[0]);
    assert_eq!((logout.reason, logout.cid), (LogoutReason::RemoveForRecovery, 1));
    answer(&mut raw, conns[0], &logout);
    raw.pass(Duration::from_millis(100));
    assert_eq!(raw.expect::<TmfRequest>(conns[0]).referenced_task_tag, command.itt);
}

/// Without an answer, the target may execute the tasks of the connection later: they must not be executed
/// again before a new session has ended them.
#[test]
fn tasks_of_a_connection_whose_logout_is_not_answered_wait_for_a_new_session() {
    for answer in [None, Some(LogoutResult::CLEANUP_FAILED)] {
        for is_cut in [false, true] {
            let mut setup = Setup::default();
            setup.plan.connections = 2;
            setup.plan.keys.max_connections = 2;
            let (mut raw, kept) = ScriptedTarget::up(setup, &["MaxConnections=2", "ErrorRecoveryLevel=0"]);
            let closed = ConnId(1);
            raw.log_in(closed, 7, &[]);
            raw.start(kept, read(0, 100_000));
            raw.start(closed, Request { replay: true, ..write(0, 1, &[7; 512]) });
            ask_for_logout(&mut raw, closed, 0);
            raw.pass(Duration::from_millis(1));
            let logout = expect_logout(&mut raw, closed, LogoutReason::CloseConnection);
            match answer {
                Some(response) => {
                    let (itt, sn) = (logout.itt, raw.next_sn(closed));
                    let pdu = LogoutResponse { response, itt, sn, time2wait: 0, time2retain: 0 };
                    raw.send(closed, &pdu, &[]);
                }
                None if is_cut => raw.cut(closed),
                None => raw.pass(Duration::from_secs(5)),
            }
            let sent = core::iter::from_fn(|| raw.receive(kept));
            let commands = sent.filter(|sent| sent.bhs.opcode() == crate::pdu::Opcode::SCSI_COMMAND);
            assert_eq!(commands.count(), 0, "{answer:?} {is_cut}");
            assert_eq!(raw.ended(kept), Some(Action::Abort(kept)), "{answer:?} {is_cut}");
            raw.pass(Duration::from_secs(3));
            assert_eq!(raw.log_in(ConnId(2), 8, &[]).tsih, 0);
            let first: ScsiCommand = raw.expect(ConnId(2));
            assert!(first.write, "the read is not to be executed again");
        }
    }
}

/// What would make the session send a request: a status that seems to be lost, one to acknowledge, silence,
/// and its owner.
#[test]
fn no_request_follows_a_logout() {
    //= rfc7143#section-11.14
    //= type=test
    //# After sending the Logout Request PDU, an initiator MUST NOT send any new iSCSI requests on the closing
    //# connection.
    //= rfc7143#section-11.14
    //= type=test
    //# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be sent on any of
    //# the connections participating in the session.
    for (level, whole) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
        let (mut raw, conn) = ScriptedTarget::level(level, &[]);
        let mut open = None;
        if whole {
            leave(&mut raw);
            expect_logout(&mut raw, conn, LogoutReason::CloseSession);
        } else {
            open = Some(raw.start(conn, read(0, 512)));
            let (task, _) = raw.start(conn, read(8, 512));
            ask_for_logout(&mut raw, conn, 0);
            raw.pass(Duration::from_millis(1));
            expect_logout(&mut raw, conn, LogoutReason::CloseConnection);
            let abort = TmfParameters { function: TmfFunction::ABORT_TASK, lun: LUN, task: Some(task) };
            assert_eq!(raw.session.submit_tmf(raw.now, abort), Err(SubmitError::NotUp));
        }
        let reset = TmfParameters { function: TmfFunction::LOGICAL_UNIT_RESET, lun: LUN, task: None };
        assert!(raw.session.submit_tmf(raw.now, reset).is_err());
        raw.session.ping(raw.now);
        if let Some((task, command)) = open {
            let pdu = raw.data_in(conn, command.itt, 0, 0);
            let pdu = raw.with_status(conn, pdu);
            raw.send(conn, &pdu, &[0; 512]);
            assert!(raw.outcome(task).end.is_good());
        }
        let mut sn = raw.sn(conn);
        sn.stat_sn = StatSn(sn.stat_sn.0 + 1);
        raw.send(conn, &NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, sn }, &[]);
        raw.pass(Duration::from_millis(4900));
        assert!(raw.receive(conn).is_none(), "level {level}, whole session {whole}");
        assert_eq!((raw.ended(conn), raw.session.stats().bugs), (None, 0));
        // A target's ping is answered: that is no request.
        raw.send(conn, &NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt(7), sn }, &[]);
        assert_eq!(raw.expect::<crate::pdu::nop_out::NopOut>(conn).ttt, Ttt(7));
        raw.pass(Duration::from_millis(200));
        // Without an answer, the open task makes it a lost connection, which only level 2 recovers.
        let is_lost = level < 2 && !whole;
        let end = if is_lost { Action::Abort(conn) } else { Action::Close(conn) };
        assert_eq!(raw.ended(conn), Some(end), "level {level}, whole session {whole}");
    }
}
