//! Commands that are lost with their connection, or that arrive twice or not at all.

use alloc::vec::Vec;

use base::state_machine::{ConnId, DisconnectReason};
use base::time::Duration;
use transport::initiator::{InitiatorTransport as _, Request, TaskResult, TmfParameters};
use transport::task_management::{TmfFunction, TmfResult};

use super::pair::{LUN, cdb, read, write};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::pdu::data_out::DataOut;
use crate::pdu::logout_request::LogoutRequest;
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, Opcode, PduHeader, Ttt};
use crate::serial::DataSn;

#[test]
fn the_loss_of_a_connection_names_its_reason() {
    for (reason, text) in [
        (DisconnectReason::Closed, "closed by the target"),
        (DisconnectReason::Reset, "connection reset by peer"),
        (DisconnectReason::TimedOut, "connection timed out"),
        (DisconnectReason::Unreachable, "host or network unreachable"),
        (DisconnectReason::Stalled, "the target accepted no data in time"),
        (DisconnectReason::Failed, "the transport failed"),
    ] {
        let (mut raw, conn) = ScriptedTarget::level(0, &[]);
        raw.session.disconnected(raw.now, conn, reason);
        raw.drain();
        let why = raw.why().unwrap();
        assert_eq!(alloc::format!("{why}"), alloc::format!("the connection was lost: {text}"));
    }
}

/// A command that waits for the driver when its connection is lost is sent in the next session, whatever the
/// level.
#[test]
fn a_command_that_never_left_outlives_its_session() {
    for level in [0, 1] {
        for breaks_a_rule in [false, true] {
            let (mut raw, conn) = ScriptedTarget::level(level, &[]);
            let task = raw.session.submit(raw.now, Request::new(LUN, cdb(0, 0, 7))).unwrap();
            if breaks_a_rule {
                let lie = raw.frame(conn, raw.r2t(conn, Itt(0x5555), 0, 0, 512).encode(), &[]);
                raw.session.received(raw.now, conn, &lie);
            } else {
                raw.session.disconnected(raw.now, conn, DisconnectReason::Failed);
            }
            raw.exp_cmd_sn = 1;
            raw.drain();
            raw.pass(Duration::from_secs(5));
            let next = ConnId(1);
            let key = alloc::format!("ErrorRecoveryLevel={level}");
            raw.log_in(next, 8, &[&key]);
            let command: ScsiCommand = raw.expect(next);
            raw.exp_cmd_sn = 2;
            let response = raw.response(next, command.itt, 0);
            raw.send(next, &response, &[]);
            assert!(raw.outcome(task).end.is_good(), "level {level}, {breaks_a_rule}");
        }
    }
}

/// At level 0 the loss of a command is visible only in the answer to a ping.
#[test]
fn a_lone_command_that_did_not_arrive_costs_the_session_in_time() {
    for keeps_talking in [false, true] {
        let (mut raw, conn) = ScriptedTarget::level(0, &[]);
        raw.manual = true;
        let task = raw.session.submit(raw.now, read(0, 512)).unwrap();
        raw.drain();
        let _lost: ScsiCommand = raw.expect(conn);
        let mut ping = None;
        for _ in 0..16 {
            raw.pass(Duration::from_secs(1));
            if keeps_talking {
                // The target pings by itself: the connection is not silent.
                let sn = raw.sn(conn);
                raw.send(conn, &NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt(9), sn }, &[]);
            }
            while let Some(sent) = raw.receive(conn) {
                let nop: NopOut = sent.read();
                ping = ping.or(Some(nop.itt).filter(|itt| *itt != Itt::NONE));
            }
        }
        let itt = ping.unwrap_or_else(|| panic!("no ping: {keeps_talking}"));
        assert_eq!(raw.why(), None);
        let pong = NopIn { lun: 0, itt, ttt: Ttt::NONE, sn: raw.next_sn(conn) };
        raw.send(conn, &pong, &[]);
        assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::CommandLost)));
        assert_eq!(raw.outcome(task).end, TaskResult::Lost);
    }
}

#[test]
fn a_command_that_is_only_slow_is_not_taken_for_lost() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    for _ in 0..5 {
        raw.pass(Duration::from_secs(16));
        let ping: NopOut = raw.expect(conn);
        let pong = NopIn { lun: 0, itt: ping.itt, ttt: Ttt::NONE, sn: raw.next_sn(conn) };
        raw.send(conn, &pong, &[]);
    }
    let response = raw.response(conn, command.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(task).end.is_good());
}

/// The target rejects a duplicate command because the command runs: it must not be reported as not executed.
#[test]
fn a_refused_double_does_not_end_its_command() {
    for immediate in [true, false] {
        let (mut raw, conn) = ScriptedTarget::level(1, &[]);
        let task = raw.session.submit(raw.now, Request { immediate, ..write(0, 1, &[5; 600]) }).unwrap();
        raw.drain();
        let sent = raw.expect_any(conn);
        let reject =
            Reject { reason: RejectReason::TASK_IN_PROGRESS, sn: raw.next_sn(conn), data_sn: DataSn(0) };
        raw.send(conn, &reject, sent.bhs.bytes());
        if immediate {
            assert_eq!(raw.session.open_tasks(), 1);
            let response = raw.response(conn, sent.bhs.itt(), 0);
            raw.send(conn, &response, &[]);
            assert!(raw.outcome(task).end.is_good());
        } else {
            // A target must silently ignore the duplicate of a used CmdSN. This one rejects it, so it is
            // unknown whether it executed the command.
            assert_eq!(raw.outcome(task).end, TaskResult::Lost);
        }
    }
}

#[test]
fn a_second_answer_to_a_management_request_is_passed_over_where_pdus_can_be_repeated() {
    for (level, goes_on) in [(0, false), (1, true)] {
        let (mut raw, conn) = ScriptedTarget::level(level, &[]);
        let function = TmfFunction::LOGICAL_UNIT_RESET;
        raw.session.submit_tmf(raw.now, TmfParameters { function, lun: LUN, task: None }).unwrap();
        raw.drain();
        let request: TmfRequest = raw.expect(conn);
        if !request.immediate {
            raw.exp_cmd_sn = request.cmd_sn.next().0;
        }
        for _ in 0..2 {
            let response =
                TmfResponse { response: TmfResult::COMPLETE, itt: request.itt, sn: raw.next_sn(conn) };
            raw.send(conn, &response, &[]);
        }
        let answers = raw.events.iter().filter(|event| matches!(event, Event::TmfDone { .. })).count();
        assert_eq!((answers, raw.why().is_none()), (1, goes_on), "level {level}");
    }
}

/// A logout for recovery that is answered late is sent again, and both answers arrive in the end.
#[test]
fn a_late_answer_to_a_logout_for_recovery_does_no_harm() {
    let (mut raw, conns) = super::scripted_target::level_2(2);
    let request = Request::new(LUN, cdb(0, 0, 0));
    let (_, _) = raw.start(conns[0], request.clone());
    let (task, command) = raw.start(conns[1], request);
    raw.manual = true;
    raw.cut(conns[1]);
    let first: LogoutRequest = raw.expect(conns[0]);
    raw.pass(Duration::from_millis(5100));
    let mut second = None;
    while let Some(sent) = raw.receive(conns[0]) {
        if sent.bhs.opcode() == Opcode::LOGOUT_REQUEST {
            second = Some(sent.read::<LogoutRequest>());
        }
    }
    let second = second.unwrap_or_else(|| panic!("it is asked again"));
    for (itt, response) in [(first.itt, LogoutResult::CLOSED), (second.itt, LogoutResult::NO_CID)] {
        let sn = raw.next_sn(conns[0]);
        let answer = LogoutResponse { response, itt, sn, time2wait: 0, time2retain: 20 };
        raw.send(conns[0], &answer, &[]);
    }
    raw.pass(Duration::from_millis(10));
    assert!(raw.session.is_up());
    let moved: TmfRequest = raw.expect(conns[0]);
    assert_eq!(
        (moved.function, moved.referenced_task_tag),
        (TmfFunction::TASK_REASSIGN, command.itt),
        "{task:?}"
    );
}

/// R2Ts that accumulate on a slow path request the same data: only the last of them is answered.
#[test]
fn an_r2t_that_is_asked_again_before_it_is_answered_is_answered_once() {
    let (mut raw, conn) = ScriptedTarget::level(1, &["InitialR2T=Yes", "ImmediateData=No"]);
    let (_, command) = raw.start(conn, write(0, 1, &[7; 1024]));
    let mut bytes = Vec::new();
    for sn in 0..50 {
        bytes.extend(raw.frame(conn, raw.r2t(conn, command.itt, sn, 0, 1024).encode(), &[]));
    }
    raw.feed(conn, &bytes);
    assert_eq!(raw.why(), None);
    let sent = raw.expect_any(conn);
    assert_eq!((sent.read::<DataOut>().ttt, sent.data.len()), (Ttt(0x100 + 49), 1024));
    assert!(raw.receive(conn).is_none());
}

/// On a path that damages most PDUs, one SNACK brings back every R2T that was lost, whatever
/// MaxOutstandingR2T is: the target sends each number again.
#[test]
fn hundreds_of_lost_r2ts_may_come_back_at_once() {
    let keys = ["InitialR2T=Yes", "ImmediateData=No", "MaxOutstandingR2T=1", "MaxBurstLength=512"];
    let (mut raw, conn) = ScriptedTarget::level(1, &keys);
    let (_, command) = raw.start(conn, write(0, 1, &[7; 200 * 512]));
    let mut bytes = Vec::new();
    for sn in [199].into_iter().chain(0..199) {
        bytes.extend(raw.frame(conn, raw.r2t(conn, command.itt, sn, sn * 512, 512).encode(), &[]));
    }
    raw.feed(conn, &bytes);
    assert_eq!(raw.why(), None);
    let mut answered = 0;
    while let Some(sent) = raw.receive(conn) {
        answered += usize::from(sent.bhs.opcode() == Opcode::DATA_OUT);
    }
    assert_eq!(answered, 200);
}

/// At level 0 the loss of a status shows in the StatSN of a target's ping; the session's own ping proves it.
#[test]
fn a_lone_status_that_did_not_arrive_costs_the_session_in_time() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    raw.manual = true;
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let _lost = raw.response(conn, command.itt, 0);
    let sn = raw.sn(conn);
    raw.send(conn, &NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt(9), sn }, &[]);
    let mut ping = None;
    while let Some(sent) = raw.receive(conn) {
        ping = ping.or(Some(sent.read::<NopOut>().itt).filter(|itt| *itt != Itt::NONE));
    }
    let itt = ping.unwrap_or_else(|| panic!("no ping"));
    assert_eq!(raw.why(), None);
    let pong = NopIn { lun: 0, itt, ttt: Ttt::NONE, sn: raw.next_sn(conn) };
    raw.send(conn, &pong, &[]);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::StatSnOutOfOrder)));
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
}
