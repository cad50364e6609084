//! Sessions with several connections, and reassignment of tasks at level 2, with a scripted target.

use alloc::vec::Vec;
use transport::initiator::{InitiatorTransport as _, Request, TaskResult};
use transport::task_management::{TmfFunction, TmfResult};

use base::state_machine::{Action, ConnId};
use base::time::Duration;

use super::pair::{LUN, Setup, pattern, read, write};
use super::scripted_target::{ScriptedTarget, level_2};
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::keys::Key;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::data_in::DataIn;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, PduHeader, Ttt};
use crate::serial::{CmdSn, DataSn};
use crate::text::TextBuilder;

#[test]
fn load_goes_to_the_connection_with_the_least_and_numbers_run_across_all() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# the CmdSN MUST be incremented by 1 in a Serial Number Arithmetic sense, as defined in
    //# [RFC1982], for every non-immediate command issued afterwards.
    let (mut raw, conns) = level_2(3);
    let now = raw.now;
    for len in [100_000, 512, 512, 512] {
        raw.session.submit(now, read(0, len)).unwrap();
    }
    raw.drain();
    let mut numbers = Vec::new();
    let mut counts = Vec::new();
    for conn in &conns {
        let mut count = 0;
        while let Some(sent) = raw.receive(*conn) {
            numbers.push(sent.read::<ScsiCommand>().cmd_sn.0);
            count += 1;
        }
        counts.push(count);
    }
    numbers.sort_unstable();
    assert_eq!((counts, numbers), (Vec::from([1, 2, 1]), Vec::from([1, 2, 3, 4])));
    let views: Vec<ConnectionView> = raw.session.connections().collect();
    assert_eq!((views.len(), views[0].tasks, views[0].cid.0), (3, 1, 0));
}

#[test]
fn an_answer_on_another_connection_is_refused() {
    //= rfc7143#section-4.2.5.1
    //= type=test
    //# For any iSCSI request issued over a TCP connection, the corresponding response and/or
    //# other related PDU(s) MUST be sent over the same connection.
    //= rfc7143#section-7.7
    //= type=test
    //# All initiator-detected PDU construction errors MUST be considered as format errors.
    let (mut raw, conns) = level_2(2);
    let (_, command) = raw.start(conns[0], read(0, 512));
    let pdu = raw.data_in(conns[1], command.itt, 0, 0);
    raw.send(conns[1], &pdu, &[0; 512]);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::OtherConnection)));
    assert!(raw.ended(conns[0]).is_some() && raw.ended(conns[1]).is_some());
}

#[test]
fn tasks_of_a_lost_connection_move_to_another_after_it_is_logged_out() {
    //= rfc7143#section-7.1.4.3
    //= type=test
    //# It then MUST either implicitly or explicitly log out the failed connection with the reason code
    //# "remove the connection for recovery" and reassign connection allegiance for all commands still in
    //# progress
    //= rfc7143#section-7.2.1
    //= type=test
    //# The command being retried MUST be sent on the same connection as the original command, unless the
    //# original connection was already successfully logged out.
    //= rfc7143#section-7.2.2
    //= type=test
    //# Before the allegiance reassignment is attempted for a task, an implicit or explicit Logout with the
    //# reason code "remove the connection for recovery" (see Section 11.14.1) MUST be successfully completed
    //# for the previous connection to which the task was allegiant.
    //= rfc7143#section-11.5.1
    //= type=test
    //# TASK REASSIGN MUST ONLY be received by the target after the connection on which the command was
    //# previously executing has been successfully logged out.
    //= rfc7143#section-11.5.1
    //= type=test
    //# TASK REASSIGN MUST be issued as an immediate command.
    //= rfc7143#section-11.5.6
    //= type=test
    //# The value of ExpDataSN MUST be 0 or higher than the DataSN of the last acknowledged Data-In PDU, but
    //# not larger than DataSN + 1 of the last Data-IN PDU sent by the target.
    //= rfc7143#section-11.14
    //= type=test
    //# If an initiator intends to start recovery for a failing connection, it MUST use the Logout Request to
    //# "clean up" the target end of a failing connection and enable recovery to start, or use the Login
    //# Request with a non-zero TSIH and the same CID on a new connection for the same effect.
    let (mut raw, conns) = level_2(2);
    let [lost, kept] = [conns[0], conns[1]];
    let data = pattern(5, 2000);
    let (first, command) = raw.start(lost, read(0, 2000));
    let pdu = raw.data_in(lost, command.itt, 0, 0);
    raw.send(lost, &pdu, &data[..1000]);
    // A second command is sent on that connection and never acknowledged.
    let filler = raw.start(kept, read(0, 100_000)).1;
    let second = raw.session.submit(raw.now, write(0, 1, &[8; 512])).unwrap();
    raw.drain();
    let unacknowledged: ScsiCommand = raw.expect(lost);
    raw.cut(lost);
    assert!(raw.session.is_up());
    let logout: LogoutRequest = raw.expect(kept);
    assert_eq!((logout.reason, logout.cid), (LogoutReason::RemoveForRecovery, 0));
    let response = LogoutResponse {
        response: LogoutResult::CLOSED,
        itt: logout.itt,
        sn: raw.next_sn(kept),
        time2wait: 2,
        time2retain: 20,
    };
    raw.send(kept, &response, &[]);
    raw.pass(Duration::from_millis(1900));
    // The response to the logout is acknowledged, and nothing else.
    let early: Vec<NopOut> = core::iter::from_fn(|| raw.receive(kept)).map(|sent| sent.read()).collect();
    assert!(early.iter().all(|nop| nop.itt == Itt::NONE), "Time2Wait has not passed: {early:?}");
    raw.pass(Duration::from_millis(200));
    let mut reassign = None;
    let mut again = None;
    while let Some(sent) = raw.receive(kept) {
        match sent.bhs.opcode() {
            TmfRequest::OPCODE => reassign = Some(sent.read::<TmfRequest>()),
            ScsiCommand::OPCODE => again = Some(sent.read::<ScsiCommand>()),
            // The session pings, because nothing is acknowledged.
            NopOut::OPCODE => {}
            other => panic!("{other:?}"),
        }
    }
    let again = again.unwrap();
    assert_eq!((again.cmd_sn, again.itt), (unacknowledged.cmd_sn, unacknowledged.itt));
    let reassign = reassign.unwrap();
    assert_eq!(reassign.function, TmfFunction::TASK_REASSIGN);
    assert!(reassign.immediate);
    assert_eq!(
        (reassign.referenced_task_tag, reassign.exp_data_sn, reassign.lun),
        (command.itt, DataSn(1), LUN)
    );
    raw.exp_cmd_sn = again.cmd_sn.next().0;
    let done = TmfResponse { response: TmfResult::COMPLETE, itt: reassign.itt, sn: raw.next_sn(kept) };
    raw.send(kept, &done, &[]);
    let pdu = raw.data_in(kept, command.itt, 1, 1000);
    let pdu = raw.with_status(kept, pdu);
    raw.send(kept, &pdu, &data[1000..]);
    let outcome = raw.outcome(first);
    assert!(outcome.end.is_good());
    assert_eq!(outcome.data_in.as_deref(), Some(&data[..]));
    let response = raw.response(kept, again.itt, 0);
    raw.send(kept, &response, &[]);
    assert!(raw.outcome(second).end.is_good());
    // The slot gets a new connection of the same session.
    let request = raw.log_in(ConnId(2), 7, &[]);
    assert_eq!((request.tsih, request.cid), (7, 0));
    let stats = raw.session.stats();
    assert_eq!((stats.reassigns, stats.retries), (1, 1));
    assert!(filler.cmd_sn != CmdSn(0));
}

/// The response to a TASK REASSIGN is lost, and the data that follows has a gap when the request is sent
/// again.
#[test]
fn a_move_that_is_asked_for_again_forgets_no_data_that_is_missing() {
    let (mut raw, conns) = level_2(1);
    let data = pattern(5, 4000);
    let (task, command) = raw.start(conns[0], read(0, 4000));
    let pdu = raw.data_in(conns[0], command.itt, 0, 0);
    raw.send(conns[0], &pdu, &data[..1000]);
    raw.cut(conns[0]);
    raw.pass(Duration::from_millis(1100));
    let again = ConnId(1);
    raw.log_in(again, 7, &[]);
    let first: TmfRequest = raw.expect(again);
    assert_eq!((first.referenced_task_tag, first.exp_data_sn), (command.itt, DataSn(1)));
    let _lost = raw.next_sn(again);
    let pdu = raw.data_in(again, command.itt, 3, 3000);
    let pdu = raw.with_status(again, pdu);
    raw.send(again, &pdu, &data[3000..]);
    let mut second = None;
    for _ in 0..50 {
        raw.pass(Duration::from_millis(200));
        while let Some(sent) = raw.receive(again) {
            match sent.bhs.opcode() {
                NopOut::OPCODE if sent.read::<NopOut>().itt != Itt::NONE => {
                    let itt = sent.read::<NopOut>().itt;
                    let pong = NopIn { lun: 0, itt, ttt: Ttt::NONE, sn: raw.next_sn(again) };
                    raw.send(again, &pong, &[]);
                }
                TmfRequest::OPCODE => second = Some(sent.read::<TmfRequest>()),
                _ => {}
            }
        }
        if second.is_some() {
            break;
        }
    }
    assert_eq!(second.map(|second| (second.itt, second.exp_data_sn)), Some((first.itt, DataSn(1))));
    let done = TmfResponse { response: TmfResult::STILL_ALLEGIANT, itt: first.itt, sn: raw.next_sn(again) };
    raw.send(again, &done, &[]);
    for sn in [1, 2] {
        let pdu = raw.data_in(again, command.itt, sn, 1000 * sn);
        let from = 1000 * sn as usize;
        raw.send(again, &pdu, &data[from..from + 1000]);
    }
    let outcome = raw.outcome(task);
    assert!(outcome.end.is_good());
    assert_eq!(outcome.data_in.as_deref(), Some(&data[..]));
}

#[test]
fn a_session_without_a_connection_goes_on_when_one_comes_back_in_time() {
    //= rfc7143#section-6.3.4
    //= type=test
    //# the TSIH in the Login Request PDU MUST be non-zero, and the CID does not change during
    //# a connection reinstatement.
    //= rfc7143#section-6.3.4
    //= type=test
    //# The initiator connection state MUST be CLEANUP_WAIT (Section 8.1.3) when the initiator
    //# attempts a connection reinstatement.
    //= rfc7143#section-7.1.4.3
    //= type=test
    //# It then MUST either implicitly or explicitly log out the failed connection with the reason code
    //# "remove the connection for recovery" and reassign connection allegiance for all commands still in
    //# progress
    //= rfc7143#section-11.12.6
    //= type=test
    //# Otherwise, the TSIH sent by the target at the conclusion of the successful login of the first
    //# connection for this session MUST be used.
    //= rfc7143#section-11.14
    //= type=test
    //# If an initiator intends to start recovery for a failing connection, it MUST use the Logout Request to
    //# "clean up" the target end of a failing connection and enable recovery to start, or use the Login
    //# Request with a non-zero TSIH and the same CID on a new connection for the same effect.
    let (mut raw, conns) = level_2(1);
    let (task, command) = raw.start(conns[0], write(0, 1, &[9; 512]));
    raw.cut(conns[0]);
    assert!(!raw.session.is_up());
    assert!(raw.events.iter().any(|event| matches!(event, Event::Recovering)));
    raw.pass(Duration::from_millis(900));
    assert_eq!(raw.ends.len(), 1, "Time2Wait has not passed");
    raw.pass(Duration::from_millis(200));
    let again = ConnId(1);
    let request = raw.log_in(again, 7, &[]);
    assert_eq!((request.tsih, request.cid), (7, 0));
    let up =
        raw.events.iter().find_map(|event| if let Event::Up(up) = event { Some(up.origin) } else { None });
    assert_eq!(up, Some(SessionOrigin::Continued));
    let reassign: TmfRequest = raw.expect(again);
    assert_eq!(reassign.referenced_task_tag, command.itt);
    let done = TmfResponse { response: TmfResult::COMPLETE, itt: reassign.itt, sn: raw.next_sn(again) };
    raw.send(again, &done, &[]);
    let r2t = raw.r2t(again, command.itt, 0, 0, 512);
    raw.send(again, &r2t, &[]);
    assert_eq!(raw.expect_any(again).data, [9; 512]);
    let response = raw.response(again, command.itt, 1);
    raw.send(again, &response, &[]);
    assert!(raw.outcome(task).end.is_good());
}

#[test]
fn a_session_that_the_target_forgot_is_built_anew() {
    //= rfc7143#section-6.3.5
    //= type=test
    //# the TSIH in the Login PDU MUST be zero to signal session reinstatement.
    //= rfc7143#section-6.3.5
    //= type=test
    //# The initiator session state MUST be FAILED (Section 8.3) when the initiator attempts a
    //# session reinstatement.
    //= rfc7143#section-7.15
    //= type=test
    //# If the same I_T nexus is intended to be reestablished, the initiator MUST employ session reinstatement
    //# (see Section 6.3.5).
    //= rfc7143#section-11.12.6
    //= type=test
    //# The reserved value 0 MUST be used on the first connection for a new session.
    let (mut raw, conns) = level_2(1);
    let (lost, _) = raw.start(conns[0], write(0, 1, &[9; 512]));
    let (replayed, _) = raw.start(conns[0], Request { replay: true, ..read(0, 512) });
    raw.cut(conns[0]);
    raw.pass(Duration::from_millis(1100));
    let request: crate::pdu::login_request::LoginRequest = raw.expect(ConnId(1));
    let gone = crate::login::Status::SESSION_DOES_NOT_EXIST.0;
    raw.login_response(ConnId(1), &request, gone, 7, &[]);
    assert_eq!(raw.outcome(lost).end, TaskResult::Lost);
    raw.pass(Duration::from_secs(1));
    let next = ConnId(2);
    raw.exp_cmd_sn = 1;
    let request = raw.log_in(next, 8, &["ErrorRecoveryLevel=2"]);
    assert_eq!((request.tsih, request.cmd_sn), (0, CmdSn(1)));
    let command: ScsiCommand = raw.expect(next);
    assert_eq!(command.cmd_sn, CmdSn(1));
    let pdu = raw.data_in(next, command.itt, 0, 0);
    let pdu = raw.with_status(next, pdu);
    raw.send(next, &pdu, &[1; 512]);
    assert!(raw.outcome(replayed).end.is_good());
}

#[test]
fn tasks_that_cannot_move_are_lost_and_said_so() {
    for (result, again) in [(TmfResult::NO_TASK, false), (TmfResult::STILL_ALLEGIANT, true)] {
        let (mut raw, conns) = level_2(1);
        let (task, _) = raw.start(conns[0], write(0, 1, &[9; 512]));
        raw.cut(conns[0]);
        raw.pass(Duration::from_millis(1100));
        raw.log_in(ConnId(1), 7, &[]);
        let reassign: TmfRequest = raw.expect(ConnId(1));
        let done = TmfResponse { response: result, itt: reassign.itt, sn: raw.next_sn(ConnId(1)) };
        raw.send(ConnId(1), &done, &[]);
        if again {
            raw.pass(Duration::from_millis(1500));
            let more: TmfRequest = raw.expect(ConnId(1));
            assert_eq!(more.referenced_task_tag, reassign.referenced_task_tag);
        } else {
            assert_eq!(raw.outcome(task).end, TaskResult::Lost, "{result:?}");
        }
    }
}

/// A write that the target may still execute must not follow one that is sent later.
#[test]
fn a_task_that_the_target_refuses_to_move_is_executed_again_in_a_new_session_only() {
    for (result, replay) in [
        (TmfResult::REJECTED, true),
        (TmfResult::NO_LUN, true),
        (TmfResult::NO_REASSIGNMENT, true),
        (TmfResult::REJECTED, false),
    ] {
        let (mut raw, conns) = level_2(1);
        let request = Request { replay, ..write(0, 1, &[9; 512]) };
        let (task, _) = raw.start(conns[0], request);
        raw.cut(conns[0]);
        raw.pass(Duration::from_millis(1100));
        raw.log_in(ConnId(1), 7, &[]);
        let reassign: TmfRequest = raw.expect(ConnId(1));
        let done = TmfResponse { response: result, itt: reassign.itt, sn: raw.next_sn(ConnId(1)) };
        raw.send(ConnId(1), &done, &[]);
        assert_eq!(raw.ended(ConnId(1)), Some(Action::Abort(ConnId(1))), "{result:?}");
        assert!(raw.receive(ConnId(1)).is_none(), "{result:?}");
        raw.pass(Duration::from_secs(3));
        let login = raw.log_in(ConnId(2), 8, &[]);
        assert_eq!(login.tsih, 0, "{result:?}");
        if replay {
            let _: ScsiCommand = raw.expect(ConnId(2));
        } else {
            assert_eq!(raw.outcome(task).end, TaskResult::Lost, "{result:?}");
        }
    }
}

#[test]
fn connections_come_and_go_while_the_session_is_up() {
    let (mut raw, conns) = level_2(1);
    let now = raw.now;
    raw.session.set_connections(now, 9);
    raw.drain();
    for at in 1..4 {
        raw.log_in(ConnId(at), 7, &[]);
    }
    assert_eq!(raw.ends.len(), 4, "MaxConnections=4");
    let (task, command) = raw.start(conns[0], read(0, 512));
    raw.session.set_connections(now, 1);
    raw.drain();
    for at in 1..4 {
        let conn = ConnId(at);
        let logout: LogoutRequest = raw.expect(conn);
        assert_eq!((logout.reason, u32::from(logout.cid)), (LogoutReason::CloseConnection, at));
        let sn = raw.next_sn(conn);
        let itt = logout.itt;
        let response =
            LogoutResponse { response: LogoutResult::CLOSED, itt, sn, time2wait: 0, time2retain: 0 };
        raw.send(conn, &response, &[]);
        assert_eq!(raw.ended(conn), Some(Action::Close(conn)));
    }
    let pdu = raw.data_in(conns[0], command.itt, 0, 0);
    let pdu = raw.with_status(conns[0], pdu);
    raw.send(conns[0], &pdu, &[0; 512]);
    assert!(raw.outcome(task).end.is_good());
    assert!(raw.session.is_up());
}

#[test]
fn a_dropped_connection_is_recovered_after_the_time_that_the_target_named() {
    //= rfc7143#section-7.1.4.3
    //= type=test
    //# The initiator MUST handle it as a TCP connection failure for the connection(s) referred to in the
    //# message.
    let (mut raw, conns) = level_2(1);
    let (_, command) = raw.start(conns[0], read(0, 512));
    let message = AsyncMessage {
        lun: 0,
        sn: raw.next_sn(conns[0]),
        event: AsyncEventCode::CONNECTION_DROP,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 5,
        parameter3: 20,
    };
    raw.send(conns[0], &message, &[]);
    assert_eq!(raw.why(), Some(ConnectionDown::Dropped));
    raw.pass(Duration::from_millis(4900));
    assert_eq!(raw.ends.len(), 1);
    raw.pass(Duration::from_millis(200));
    raw.log_in(ConnId(1), 7, &[]);
    assert_eq!(raw.expect::<TmfRequest>(ConnId(1)).referenced_task_tag, command.itt);
}

/// Cuts the only connection, moves its only task to a new one, and checks from which number on the data is
/// requested.
fn cut_and_move(raw: &mut ScriptedTarget, conn: ConnId, itt: Itt, exp_data_sn: u32) -> ConnId {
    raw.cut(conn);
    raw.pass(Duration::from_millis(1100));
    let again = ConnId(conn.0 + 1);
    raw.log_in(again, 7, &[]);
    let reassign: TmfRequest = raw.expect(again);
    assert_eq!((reassign.referenced_task_tag, reassign.exp_data_sn), (itt, DataSn(exp_data_sn)));
    let done = TmfResponse { response: TmfResult::COMPLETE, itt: reassign.itt, sn: raw.next_sn(again) };
    raw.send(again, &done, &[]);
    again
}

/// The target reads the medium again for the new connection, and what it reads has changed.
#[test]
fn data_behind_a_gap_is_discarded_when_its_task_moves() {
    //= rfc7143#section-11.5.6
    //= type=test
    //# The initiator MUST discard any data PDUs from the previous execution that it did not acknowledge
    // The PDUs that arrive before the move, by the thousand bytes that they bring: in order, in another
    // order, with two gaps of which one is filled.
    let in_order = [0, 1, 2, 3, 4];
    let moved = [(&[0, 2][..], 1), (&[0, 1, 3, 4], 2), (&[2, 3], 0), (&[0, 2, 4, 1], 1), (&[0, 1], 2)];
    for (places, keys) in
        [(in_order, &[][..]), ([3, 1, 4, 0, 2], &["DataPDUInOrder=No", "DataSequenceInOrder=No"])]
    {
        for (arrived, exp_data_sn) in moved {
            let mut setup = Setup::default();
            setup.plan.keys.data_pdu_in_order = keys.is_empty();
            setup.plan.keys.data_sequence_in_order = keys.is_empty();
            let keys: Vec<&str> =
                keys.iter().copied().chain(["ErrorRecoveryLevel=2", "DefaultTime2Wait=1"]).collect();
            let (mut raw, conn) = ScriptedTarget::up(setup, &keys);
            let (old, new) = (pattern(1, 5000), pattern(2, 5000));
            let (task, command) = raw.start(conn, read(0, 5000));
            let send = |raw: &mut ScriptedTarget, conn: ConnId, sn: u32, data: &[u8]| {
                let at = places[usize::try_from(sn).unwrap()] * 1000;
                let mut pdu = raw.data_in(conn, command.itt, sn, at);
                if sn == 4 && conn == ConnId(1) {
                    pdu = raw.with_status(conn, pdu);
                }
                let at = usize::try_from(at).unwrap();
                raw.send(conn, &pdu, &data[at..at + 1000]);
            };
            for sn in arrived {
                send(&mut raw, conn, *sn, &old);
            }
            let again = cut_and_move(&mut raw, conn, command.itt, exp_data_sn);
            for sn in exp_data_sn..5 {
                send(&mut raw, again, sn, &new);
            }
            let mut expected = new.clone();
            for sn in 0..exp_data_sn {
                let at = usize::try_from(places[usize::try_from(sn).unwrap()] * 1000).unwrap();
                expected[at..at + 1000].copy_from_slice(&old[at..at + 1000]);
            }
            let outcome = raw.outcome(task);
            assert!(outcome.end.is_good());
            assert!(outcome.data_in.as_deref() == Some(&*expected), "{places:?} {arrived:?}");
        }
    }
}

/// Only what a DataACK acknowledged stays of data whose numbers are meaningless.
#[test]
fn data_that_was_to_be_cut_again_is_discarded_when_its_task_moves() {
    //= rfc7143#section-11.5.6
    //= type=test
    //# The initiator MUST discard any data PDUs from the previous execution that it did not acknowledge
    for acknowledge in [false, true] {
        let (mut raw, conns) = level_2(1);
        let conn = conns[0];
        let (old, new) = (pattern(1, 3000), pattern(2, 3000));
        let (task, command) = raw.start(conn, read(0, 3000));
        let ttt = if acknowledge { Ttt(77) } else { Ttt::NONE };
        let pdu = DataIn { acknowledge, lun: LUN, ttt, ..raw.data_in(conn, command.itt, 0, 0) };
        raw.send(conn, &pdu, &old[..1000]);
        if acknowledge {
            assert_eq!(raw.expect::<Snack>(conn).kind, SnackKind::DATA_ACK);
        }
        let mut text = TextBuilder::new();
        text.put(Key::MaxRecvDataSegmentLength.name(), "512");
        raw.session.send_text(raw.now, None, text).unwrap();
        raw.drain();
        let (itt, sn) = (raw.expect::<TextRequest>(conn).itt, raw.next_sn(conn));
        let last = TextResponse { is_final: true, continues: false, lun: 0, itt, ttt: Ttt::NONE, sn };
        raw.send(conn, &last, &[]);
        let pdu = raw.data_in(conn, command.itt, 2, 2000);
        raw.send(conn, &pdu, &old[2000..2512]);
        assert_eq!(raw.expect::<Snack>(conn).kind, SnackKind::R_DATA);
        let again = cut_and_move(&mut raw, conn, command.itt, 0);
        let from = if acknowledge { 1000 } else { 0 };
        for (sn, at) in (from..3000).step_by(500).enumerate() {
            let offset = u32::try_from(at).unwrap();
            let pdu = raw.data_in(again, command.itt, u32::try_from(sn).unwrap(), offset);
            raw.send(again, &pdu, &new[at..at + 500]);
        }
        let response = raw.response(again, command.itt, 6);
        raw.send(again, &response, &[]);
        let expected = [&old[..from], &new[from..]].concat();
        let outcome = raw.outcome(task);
        assert!(outcome.end.is_good());
        assert!(outcome.data_in.as_deref() == Some(&*expected), "{acknowledge}");
    }
}
