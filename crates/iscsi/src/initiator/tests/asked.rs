//! Requests of an owner other than commands: abort of one task, negotiation of keys; and the acknowledgements
//! of an idle session. The test scripts the target.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::Duration;
use transport::task_management::{TmfFunction, TmfResult};

use super::pair::{LUN, Setup, cdb, pattern, read, write};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, PduHeader, Ttt};
use crate::serial::DataSn;
use crate::text::TextBuilder;

fn abort(task: TaskId) -> TmfParameters {
    TmfParameters { function: TmfFunction::ABORT_TASK, lun: LUN, task: Some(task) }
}

fn managed(raw: &ScriptedTarget, id: TmfId) -> Option<Option<TmfResult>> {
    raw.events.iter().find_map(|event| match event {
        Event::TmfDone { id: of, result } if *of == id => Some(*result),
        _ => None,
    })
}

#[test]
fn a_task_is_aborted_by_its_name_and_number() {
    //= rfc7143#section-11.5.5
    //= type=test
    //# For an ABORT TASK of a task created by a non-immediate command, the RefCmdSN MUST be set to the CmdSN
    //# of the task identified by the Referenced Task Tag field.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, read(0, 512));
    let (other, second) = raw.start(conn, read(8, 512));
    let id = raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.drain();
    let request: TmfRequest = raw.expect(conn);
    assert_eq!((request.function, request.lun), (TmfFunction::ABORT_TASK, LUN));
    assert_eq!((request.referenced_task_tag, request.ref_cmd_sn), (command.itt, command.cmd_sn));
    let sn = raw.next_sn(conn);
    raw.send(conn, &TmfResponse { response: TmfResult::COMPLETE, itt: request.itt, sn }, &[]);
    assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
    assert_eq!(managed(&raw, id), Some(Some(TmfResult::COMPLETE)));
    // No other task is affected, and the aborted task's tag is free.
    let pdu = raw.data_in(conn, second.itt, 0, 0);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &pattern(1, 512));
    assert!(raw.outcome(other).end.is_good());
    assert_eq!(raw.session.submit_tmf(raw.now, abort(task)), Err(SubmitError::NoTask));
}

#[test]
fn an_immediate_task_is_aborted_under_the_number_of_the_request() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# If an ABORT TASK is issued for a task created by an immediate command, then the RefCmdSN MUST be that
    //# of the task management request itself (i.e., the CmdSN and RefCmdSN are equal); otherwise, the RefCmdSN
    //# MUST be set to the CmdSN of the task to be aborted (lower than the CmdSN).
    //= rfc7143#section-11.5.5
    //= type=test
    //# If an ABORT TASK is issued for a task created by an immediate command, then the RefCmdSN MUST be that
    //# of the task management request itself (i.e., the CmdSN and RefCmdSN are equal).
    for level in [0, 1] {
        let (mut raw, conn) = ScriptedTarget::level(level, &[]);
        let task = raw.session.submit(raw.now, Request { immediate: true, ..read(0, 512) }).unwrap();
        raw.drain();
        let command: crate::pdu::scsi_command::ScsiCommand = raw.expect(conn);
        let (later, numbered) = raw.start(conn, read(8, 512));
        for (task, itt, own) in [(task, command.itt, None), (later, numbered.itt, Some(numbered.cmd_sn))] {
            raw.session.submit_tmf(raw.now, abort(task)).unwrap();
            raw.drain();
            let request: TmfRequest = raw.expect(conn);
            assert_eq!(request.referenced_task_tag, itt);
            assert_eq!(request.ref_cmd_sn, own.unwrap_or(request.cmd_sn), "level {level}");
            assert!(request.cmd_sn.after(command.cmd_sn), "the two numbers differ");
        }
    }
}

#[test]
fn a_task_that_never_left_is_aborted_without_a_word_even_while_nobody_is_there() {
    let mut raw = ScriptedTarget::new(Setup::default());
    let task = raw.session.submit(raw.now, read(0, 512)).unwrap();
    let id = raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.drain();
    assert_eq!(raw.outcome(task).end, TaskResult::NotSent);
    assert_eq!(managed(&raw, id), Some(Some(TmfResult::COMPLETE)));
    raw.log_in(ConnId(0), 7, &[]);
    assert!(raw.session.is_up() && raw.receive(ConnId(0)).is_none(), "nothing is left to send");
}

#[test]
fn a_task_that_was_to_be_aborted_is_never_carried_out_again() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, _) = raw.start(conn, Request { replay: true, ..read(0, 512) });
    let (other, _) = raw.start(conn, Request { replay: true, ..read(8, 512) });
    let id = raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.cut(conn);
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
    assert_eq!(managed(&raw, id), Some(None));
    // The other task waits, and it is unknown whether it was executed before.
    let id = raw.session.submit_tmf(raw.now, abort(other)).unwrap();
    raw.drain();
    assert_eq!(raw.outcome(other).end, TaskResult::Lost);
    assert_eq!(managed(&raw, id), Some(Some(TmfResult::COMPLETE)));
    assert_eq!(raw.session.open_tasks(), 0);
}

fn text(pairs: &[(&str, &str)]) -> TextBuilder {
    let mut text = TextBuilder::new();
    for (name, value) in pairs {
        text.put(name, value);
    }
    text
}

fn say(raw: &mut ScriptedTarget, conn: ConnId, request: &TextRequest, data: &[u8]) {
    let sn = raw.next_sn(conn);
    let response =
        TextResponse { is_final: true, continues: false, lun: 0, itt: request.itt, ttt: Ttt::NONE, sn };
    raw.send(conn, &response, data);
}

fn max_recv(raw: &ScriptedTarget) -> (u32, u32) {
    let view = raw.session.connections().next().unwrap();
    (view.parameters.initiator_max_recv, view.parameters.target_max_recv)
}

#[test]
fn longest_segments_are_declared_anew_while_the_session_lives() {
    //= rfc7143#section-6.4
    //= type=test
    //# The initiator MUST indicate its intent to finish the negotiation by setting the F bit
    //# to 1; the target sets the F bit to 1 on the last response.
    //= rfc7143#section-11.10
    //= type=test
    //# An initiator MUST NOT have more than one outstanding Text Request on a connection at any given time.
    let keys = ["MaxRecvDataSegmentLength=8192"];
    let (mut raw, conn) = ScriptedTarget::level(1, &keys);
    let (ours, theirs) = max_recv(&raw);
    raw.session.send_text(raw.now, Some(Slot(0)), text(&[("MaxRecvDataSegmentLength", "1024")])).unwrap();
    assert_eq!(raw.session.send_text(raw.now, None, text(&[("X-org.me", "1")])), Err(SubmitError::Full));
    raw.drain();
    let sent = raw.expect_any(conn);
    let request: TextRequest = sent.read();
    assert_eq!(&*sent.data, b"MaxRecvDataSegmentLength=1024\0");
    assert_eq!((request.is_final, request.ttt, request.itt == Itt::NONE), (true, Ttt::NONE, false));
    assert_eq!(max_recv(&raw), (ours, theirs), "nothing holds before it is answered");
    say(&mut raw, conn, &request, b"MaxRecvDataSegmentLength=4096\0");
    assert_eq!(max_recv(&raw), (1024, 4096));
    let answer = raw.events.iter().find_map(|event| match event {
        Event::TextDone { answer } => Some(&**answer),
        _ => None,
    });
    assert_eq!(answer, Some(&b"MaxRecvDataSegmentLength=4096\0"[..]));
    // From now on a longer segment breaks the rules.
    let (_, command) = raw.start(conn, read(0, 2048));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &pattern(1, 1028));
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::DataSegmentTooLong)));
}

#[test]
fn a_longer_segment_may_come_before_the_answer_to_its_declaration() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    for len in ["1024", "8192"] {
        raw.session.send_text(raw.now, None, text(&[("MaxRecvDataSegmentLength", len)])).unwrap();
        raw.drain();
        let request: TextRequest = raw.expect(conn);
        if len == "8192" {
            // The target read the declaration, and sent this PDU before its answer.
            let (task, command) = raw.start(conn, read(0, 2560));
            let pdu = raw.data_in(conn, command.itt, 0, 0);
            let pdu = raw.with_status(conn, pdu);
            raw.send(conn, &pdu, &pattern(1, 2560));
            assert!(raw.outcome(task).end.is_good());
        }
        say(&mut raw, conn, &request, b"");
    }
    assert_eq!(max_recv(&raw).0, 8192);
}

#[test]
fn what_a_target_refuses_is_not_taken_for_agreed() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let before = max_recv(&raw);
    let ask = |raw: &mut ScriptedTarget| {
        let text = text(&[("MaxRecvDataSegmentLength", "1024")]);
        raw.session.send_text(raw.now, None, text).unwrap();
        raw.drain();
        raw.expect_any(conn)
    };
    let refused = ask(&mut raw);
    let reject = Reject { reason: RejectReason::PROTOCOL_ERROR, sn: raw.next_sn(conn), data_sn: DataSn(0) };
    raw.send(conn, &reject, refused.bhs.bytes());
    assert!(raw.events.iter().any(|event| matches!(event, Event::TextFailed)), "{:?}", raw.events);
    assert_eq!(max_recv(&raw), before);
    for answer in [&b"MaxRecvDataSegmentLength=Reject\0"[..], b"MaxRecvDataSegmentLength=NotUnderstood\0"] {
        let request = ask(&mut raw).read();
        say(&mut raw, conn, &request, answer);
        assert_eq!(max_recv(&raw), before);
    }
    // The old length still holds: a segment of that length is legal.
    let (task, command) = raw.start(conn, read(0, 4096));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &pattern(1, 4096));
    assert!(raw.outcome(task).end.is_good());
}

#[test]
fn only_what_may_be_said_in_full_feature_phase_is_said() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    for wrong in [
        &[][..],
        &[("HeaderDigest", "None")],
        &[("ErrorRecoveryLevel", "0")],
        &[("TargetAlias", "me")],
        &[("SendTargets", "All")],
        &[("MaxRecvDataSegmentLength", "511")],
        &[("MaxRecvDataSegmentLength", "16777216")],
        &[("X-org.me", "1"), ("X-org.me", "2")],
        &[("bad name", "1")],
        &[("X-org.me", "1\0HeaderDigest=None")],
    ] {
        let answer = raw.session.send_text(raw.now, None, text(wrong));
        assert_eq!(answer, Err(SubmitError::NotPossible), "{wrong:?}");
    }
    let elsewhere = raw.session.send_text(raw.now, Some(Slot(1)), text(&[("X-org.me", "1")]));
    assert_eq!(elsewhere, Err(SubmitError::NotUp));
    raw.drain();
    assert!(raw.receive(conn).is_none());
}

#[test]
fn a_target_that_asks_to_be_asked_is_heard() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (ours, _) = max_recv(&raw);
    let message = AsyncMessage {
        lun: 0,
        event: AsyncEventCode::NEGOTIATION_REQUEST,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 0,
        parameter3: 3,
        sn: raw.next_sn(conn),
    };
    raw.send(conn, &message, &[]);
    let request: TextRequest = raw.expect(conn);
    say(&mut raw, conn, &request, b"MaxRecvDataSegmentLength=2048\0");
    assert_eq!(max_recv(&raw), (ours, 2048));
    assert!(!raw.events.iter().any(|event| matches!(event, Event::TextDone { .. } | Event::TextFailed)));
}

fn respond(raw: &mut ScriptedTarget, conn: ConnId, itt: Itt, ttt: u32, data: &[u8]) {
    let (ttt, sn) = (Ttt(ttt), raw.next_sn(conn));
    let is_final = ttt == Ttt::NONE;
    raw.send(conn, &TextResponse { is_final, continues: false, lun: 0, itt, ttt, sn }, data);
}

fn failures(raw: &ScriptedTarget) -> usize {
    raw.events.iter().filter(|event| matches!(event, Event::TextFailed)).count()
}

#[test]
fn a_negotiation_in_which_the_target_says_a_key_twice_is_reset() {
    //= rfc7143#section-6.4
    //= type=test
    //# The initiator MUST reset the negotiation as outlined above.
    let twice: [&[&[u8]]; 3] = [
        &[b"MaxRecvDataSegmentLength=1024\0X-org.me=1\0MaxRecvDataSegmentLength=2048\0"],
        &[b"X-org.me=1\0X-org.me=1\0"],
        &[b"MaxRecvDataSegmentLength=1024\0", b"", b"MaxRecvDataSegmentLength=2048\0"],
    ];
    for answers in twice {
        let (mut raw, conn) = ScriptedTarget::level(1, &[]);
        let before = max_recv(&raw);
        let keys = text(&[("MaxRecvDataSegmentLength", "512"), ("X-org.me", "1")]);
        raw.session.send_text(raw.now, None, keys).unwrap();
        raw.drain();
        let first: TextRequest = raw.expect(conn);
        for (at, answer) in answers.iter().enumerate() {
            respond(&mut raw, conn, first.itt, 5, answer);
            let next = raw.expect_any(conn);
            let request: TextRequest = next.read();
            let resets = at + 1 == answers.len();
            assert_eq!((request.itt, request.ttt), (first.itt, if resets { Ttt::NONE } else { Ttt(5) }));
            assert!(request.is_final && next.data.is_empty());
            assert_eq!(failures(&raw), usize::from(resets));
        }
        respond(&mut raw, conn, first.itt, u32::MAX, b"");
        assert_eq!((max_recv(&raw), failures(&raw)), (before, 1), "nothing of it takes effect");
        // The next one is as good as any.
        raw.session.send_text(raw.now, None, text(&[("X-org.me", "1")])).unwrap();
        raw.drain();
        let second: TextRequest = raw.expect(conn);
        assert_ne!(second.itt, first.itt);
        respond(&mut raw, conn, second.itt, u32::MAX, b"X-org.me=1\0");
        assert!(raw.events.iter().any(|event| matches!(event, Event::TextDone { .. })));
        assert!(raw.session.is_up());
    }
}

/// There is nothing to reset, or the target says keys twice again in the negotiation that resets.
#[test]
fn a_target_that_says_a_key_twice_at_the_end_or_after_a_reset_is_given_up() {
    let twice = b"X-org.me=1\0X-org.me=1\0";
    for resets in [false, true] {
        let (mut raw, conn) = ScriptedTarget::level(0, &[]);
        raw.session.send_text(raw.now, None, text(&[("X-org.me", "1")])).unwrap();
        raw.drain();
        let first: TextRequest = raw.expect(conn);
        if resets {
            respond(&mut raw, conn, first.itt, 5, twice);
            raw.expect::<TextRequest>(conn);
        }
        respond(&mut raw, conn, first.itt, if resets { 5 } else { u32::MAX }, twice);
        assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::TextKeyTwice)));
        assert_eq!(failures(&raw), 1);
    }
}

#[test]
fn a_requested_negotiation_runs_on_the_connection_that_requests_it() {
    //= rfc7143#section-11.9.1
    //= type=test
    //# The initiator MUST honor this request by issuing a Text Request (that can be empty) on the same
    //# connection as early as possible, but no later than Parameter3 seconds, unless a Text Request is
    //# already pending on the connection, or by issuing a Logout Request.
    let request = |raw: &mut ScriptedTarget, conn| {
        let message = AsyncMessage {
            lun: 0,
            event: AsyncEventCode::NEGOTIATION_REQUEST,
            vendor_code: 0,
            parameter1: 0,
            parameter2: 0,
            parameter3: 0,
            sn: raw.next_sn(conn),
        };
        raw.send(conn, &message, &[]);
    };
    let (mut raw, conns) = super::recovery::level_2(2);
    raw.session.send_text(raw.now, Some(Slot(0)), text(&[("X-org.me", "1")])).unwrap();
    raw.drain();
    let owners: TextRequest = raw.expect(conns[0]);
    request(&mut raw, conns[0]);
    assert!(raw.receive(conns[0]).is_none(), "one is pending there");
    request(&mut raw, conns[1]);
    let empty = raw.expect_any(conns[1]);
    assert_eq!((empty.read::<TextRequest>().ttt, empty.data.len()), (Ttt::NONE, 0));
    request(&mut raw, conns[1]);
    assert!(raw.receive(conns[1]).is_none(), "one is pending there too");
    respond(&mut raw, conns[0], owners.itt, u32::MAX, b"X-org.me=1\0");
    assert!(raw.events.iter().any(|event| matches!(event, Event::TextDone { .. })));
    // The owner's next one waits for its connection.
    raw.session.send_text(raw.now, Some(Slot(1)), text(&[("X-org.me", "2")])).unwrap();
    raw.drain();
    assert!(raw.receive(conns[1]).is_none());
    // A declaration of the target holds for its connection.
    respond(&mut raw, conns[1], empty.bhs.itt(), u32::MAX, b"MaxRecvDataSegmentLength=1024\0");
    let declared: Vec<u32> = raw.session.connections().map(|view| view.parameters.target_max_recv).collect();
    assert_eq!(declared.iter().map(|len| *len == 1024).collect::<Vec<_>>(), [false, true]);
    let last = raw.expect_any(conns[1]);
    assert_eq!(last.data, b"X-org.me=2\0");
    respond(&mut raw, conns[1], last.bhs.itt(), u32::MAX, b"");
    // A logout waits for a requested one as for any other.
    request(&mut raw, conns[0]);
    let empty: TextRequest = raw.expect(conns[0]);
    raw.session.logout(raw.now);
    raw.drain();
    assert!(conns.iter().all(|conn| raw.receive(*conn).is_none()));
    respond(&mut raw, conns[0], empty.itt, u32::MAX, b"");
    assert_eq!(raw.expect_any(conns[1]).bhs.opcode(), crate::pdu::Opcode::LOGOUT_REQUEST);
}

#[test]
fn data_cut_for_another_length_is_not_asked_for_by_its_numbers() {
    //= rfc7143#section-11.16.3
    //= type=test
    //# If the initiator MaxRecvDataSegmentLength changed between the original transmission and the time the
    //# initiator requests retransmission, the initiator MUST issue a R-Data SNACK (see Section 11.16.1).
    let (mut raw, conn) = ScriptedTarget::level(2, &[]);
    let (_, command) = raw.start(conn, read(0, 4096));
    raw.session.send_text(raw.now, None, text(&[("MaxRecvDataSegmentLength", "1024")])).unwrap();
    raw.drain();
    let request: TextRequest = raw.expect(conn);
    say(&mut raw, conn, &request, b"");
    // The first Data-In is missing.
    let pdu = raw.data_in(conn, command.itt, 1, 1024);
    raw.send(conn, &pdu, &pattern(1, 1024));
    raw.pass(Duration::from_secs(3));
    let kinds: Vec<SnackKind> = core::iter::from_fn(|| raw.receive(conn))
        .filter_map(|sent| Snack::decode(&sent.bhs).ok())
        .map(|snack| snack.kind)
        .collect();
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == SnackKind::R_DATA), "{kinds:?}");
    assert_eq!(raw.why(), None);
}

/// Returns the NOP-Outs that request no answer and answer no ping.
fn acknowledgements(raw: &mut ScriptedTarget, conn: ConnId) -> Vec<NopOut> {
    core::iter::from_fn(|| raw.receive(conn))
        .filter_map(|sent| NopOut::decode(&sent.bhs).ok())
        .filter(|nop| (nop.itt, nop.ttt) == (Itt::NONE, Ttt::NONE))
        .collect()
}

#[test]
fn a_status_that_no_other_pdu_acknowledges_is_acknowledged_by_a_nop() {
    //= rfc7143#section-11.18.1
    //= type=test
    //# The NOP-Out MUST have the Initiator Task Tag set to a valid value only if a response in the form of a
    //# NOP-In is requested (i.e., the NOP-Out is used as a ping request).
    //= rfc7143#section-11.18.1
    //= type=test
    //# Otherwise, the Initiator Task Tag MUST be set to 0xffffffff.
    //= rfc7143#section-11.18.1
    //= type=test
    //# If the Initiator Task Tag contains 0xffffffff, the I bit MUST be set to 1, and the CmdSN is not
    //# advanced after this PDU is sent.
    //= rfc7143#section-11.18.2
    //= type=test
    //# The NOP-Out MUST only have the Target Transfer Tag set if it is issued in response to a NOP-In with a
    //# valid Target Transfer Tag.
    //= rfc7143#section-11.18.2
    //= type=test
    //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let response = raw.response(conn, command.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(task).end.is_good());
    raw.pass(Duration::from_millis(900));
    assert!(acknowledgements(&mut raw, conn).is_empty(), "too early");
    raw.pass(Duration::from_millis(200));
    let [nop] = acknowledgements(&mut raw, conn)[..] else { panic!("one is enough, and one is needed") };
    assert!(nop.immediate && nop.lun == 0);
    assert_eq!((nop.exp_stat_sn, nop.cmd_sn), (response.sn.stat_sn.next(), command.cmd_sn.next()));
    raw.pass(Duration::from_secs(5));
    assert!(acknowledgements(&mut raw, conn).is_empty(), "nothing is new");
    assert_eq!(raw.session.stats().status_acks, 1);
}

#[test]
fn requests_acknowledge_by_themselves() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    for _ in 0..40 {
        let (_, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
        raw.pass(Duration::from_millis(300));
        let response = raw.response(conn, command.itt, 0);
        raw.send(conn, &response, &[]);
        assert!(acknowledgements(&mut raw, conn).is_empty());
    }
    assert_eq!(raw.session.stats().status_acks, 0);
}

#[test]
fn a_status_is_not_acknowledged_before_its_data_is_here_nor_at_level_0() {
    //= rfc7143#section-7.9
    //= type=test
    //# If the initiator wants to recover the missing data for a command, it MUST NOT acknowledge the received
    //# responses that start from the StatSN of the relevant command until it has completed receiving all the
    //# data PDUs of the command.
    //= rfc7143#section-11.7.2
    //= type=test
    //# An initiator also MUST NOT acknowledge the status for the task before those holes are filled.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (task, command) = raw.start(conn, read(0, 1024));
    // The second Data-In was received, with the status; the first is missing.
    let pdu = raw.data_in(conn, command.itt, 1, 512);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &pattern(1, 512));
    raw.pass(Duration::from_millis(2500));
    for nop in acknowledgements(&mut raw, conn) {
        assert_eq!(nop.exp_stat_sn, pdu.sn.stat_sn, "it acknowledges data that is not here");
    }
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &pattern(1, 512));
    assert!(raw.outcome(task).end.is_good());
    raw.pass(Duration::from_millis(2500));
    let acknowledged = acknowledgements(&mut raw, conn);
    assert_eq!(acknowledged.last().map(|nop| nop.exp_stat_sn.0), Some(raw.ends[&conn].stat_sn));

    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (_, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let response = raw.response(conn, command.itt, 0);
    raw.send(conn, &response, &[]);
    raw.pass(Duration::from_secs(5));
    assert!(acknowledgements(&mut raw, conn).is_empty(), "the target keeps nothing");
}

/// A task management function of another initiator ends tasks of this session, and no more of their data is
/// sent.
#[test]
fn tasks_that_a_target_terminated_end_and_are_acknowledged_with_their_unit() {
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# c) MUST respond to each Async Message PDU with a Task Termination AsyncEvent (5) as
    //# defined in Section 11.9.
    //= rfc7143#section-4.2.3.5
    //= type=test
    //# If the third-party affected session is a FastAbort session and the issuing session is
    //# a FastAbort session, the initiator in the third-party role MUST respond to each Async
    //# Message PDU with AsyncEvent=5 as defined in Section 11.9.
    //= rfc7143#section-11.9.1
    //= type=test
    //# The receiving initiator iSCSI layer MUST respond to this message by taking the following steps, in
    //# order:
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, write(0, 1, &pattern(0, 100_000)));
    let (other, _) = raw.start(conn, Request { lun: 2 << 48, ..read(8, 512) });
    while raw.receive(conn).is_some() {}
    let asked = raw.r2t(conn, command.itt, 0, 65_536, 8192);
    let message = AsyncMessage {
        lun: LUN,
        sn: raw.next_sn(conn),
        event: AsyncEventCode::TASKS_TERMINATED,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 0,
        parameter3: 0,
    };
    raw.send(conn, &message, &[]);
    assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
    let pdu: NopOut = raw.expect(conn);
    assert_eq!((pdu.itt, pdu.ttt, pdu.lun, pdu.immediate), (Itt::NONE, Ttt::NONE, LUN, true));
    assert!(!pdu.exp_stat_sn.before(message.sn.stat_sn.next()), "it acknowledges the message");
    raw.send(conn, &asked, &[]);
    assert!(raw.receive(conn).is_none(), "its data goes nowhere");
    assert!(
        raw.session.is_up()
            && !raw.events.iter().any(|event| matches!(event, Event::Done { task, .. } if *task == other))
    );
}

#[test]
fn immediate_requests_carry_the_current_number_and_take_none() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# they MUST also carry the current CmdSN.
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# The CmdSN MUST NOT advance after a command marked for immediate delivery is sent.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, first) = raw.start(conn, read(0, 512));
    let next = first.cmd_sn.next();
    raw.session.submit(raw.now, Request { immediate: true, ..read(8, 512) }).unwrap();
    raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.drain();
    let second: crate::pdu::scsi_command::ScsiCommand = raw.expect(conn);
    assert_eq!((second.immediate, second.cmd_sn), (true, next));
    let third: TmfRequest = raw.expect(conn);
    assert_eq!((third.immediate, third.cmd_sn), (true, next));
    let (_, fourth) = raw.start(conn, read(16, 512));
    assert_eq!((fourth.immediate, fourth.cmd_sn), (false, next));
}

#[test]
fn an_r2t_is_answered_although_its_task_is_to_end() {
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# a) MUST continue to respond to each TTT received for the affected tasks.
    let (mut raw, conn) = ScriptedTarget::level(0, &["InitialR2T=Yes", "ImmediateData=No"]);
    let (task, command) = raw.start(conn, write(0, 1, &[9; 512]));
    let reset = TmfParameters { function: TmfFunction::LOGICAL_UNIT_RESET, lun: LUN, task: None };
    raw.session.submit_tmf(raw.now, reset).unwrap();
    raw.drain();
    let request: TmfRequest = raw.expect(conn);
    let r2t = raw.r2t(conn, command.itt, 0, 0, 512);
    raw.send(conn, &r2t, &[]);
    assert_eq!(raw.expect_any(conn).data, [9; 512]);
    let sn = raw.next_sn(conn);
    raw.send(conn, &TmfResponse { response: TmfResult::COMPLETE, itt: request.itt, sn }, &[]);
    assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
}

/// With FastAbort, no data of tasks that are to end follows the request. If the target refuses the request,
/// the data follows the refusal.
#[test]
fn fast_abort_stops_the_data_of_tasks_that_are_to_end() {
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# a) MUST NOT send any more Data-Out PDUs for affected tasks on the issuing connection of
    //# the issuing iSCSI session once the TMF is sent to the target.
    for (result, stops) in [(TmfResult::COMPLETE, true), (TmfResult::NOT_SUPPORTED, false)] {
        let mut setup = Setup::default();
        setup.plan.keys.task_reporting = &["FastAbort"];
        let keys = ["InitialR2T=Yes", "ImmediateData=No", "MaxOutstandingR2T=2", "TaskReporting=FastAbort"];
        let (mut raw, conn) = ScriptedTarget::up(setup, &keys);
        let (task, command) = raw.start(conn, write(0, 1, &pattern(1, 1024)));
        let (_, other) = raw.start(conn, Request { lun: 2 << 48, ..write(8, 2, &[8; 512]) });
        let reset = TmfParameters { function: TmfFunction::LOGICAL_UNIT_RESET, lun: LUN, task: None };
        raw.session.submit_tmf(raw.now, reset).unwrap();
        raw.drain();
        let request: TmfRequest = raw.expect(conn);
        for sn in [0, 1] {
            let r2t = raw.r2t(conn, command.itt, sn, sn * 512, 512);
            raw.send(conn, &r2t, &[]);
            assert!(raw.receive(conn).is_none(), "the task is to end");
        }
        // A task of another unit, and one that was sent after the request, get on.
        let (_, later) = raw.start(conn, write(16, 3, &[7; 512]));
        for (itt, lun, byte) in [(other.itt, 2 << 48, 8), (later.itt, LUN, 7)] {
            let r2t = crate::pdu::r2t::R2t { lun, ..raw.r2t(conn, itt, 0, 0, 512) };
            raw.send(conn, &r2t, &[]);
            assert_eq!(raw.expect_any(conn).data, [byte; 512]);
        }
        let sn = raw.next_sn(conn);
        raw.send(conn, &TmfResponse { response: result, itt: request.itt, sn }, &[]);
        if stops {
            assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
        } else {
            let data: Vec<u8> = [0, 1].into_iter().flat_map(|_| raw.expect_any(conn).data).collect();
            assert_eq!(data, pattern(1, 1024));
        }
        assert!(raw.receive(conn).is_none() && raw.session.is_up());
    }
}

#[test]
fn unsolicited_data_comes_in_the_order_of_the_commands() {
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# the order of the unsolicited data on each connection MUST match the order in which the
    //# commands on that connection are sent.
    let keys =
        ["InitialR2T=No", "ImmediateData=No", "FirstBurstLength=65536", "MaxRecvDataSegmentLength=512"];
    let (mut raw, conn) = ScriptedTarget::level(0, &keys);
    // More than leaves in one batch.
    for id in 1..=16 {
        raw.session.submit(raw.now, write(id * 128, id, &pattern(id.into(), 65536))).unwrap();
    }
    raw.drain();
    let (mut commands, mut data, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(sent) = raw.receive(conn) {
        if sent.bhs.opcode() == crate::pdu::Opcode::DATA_OUT {
            //= rfc7143#section-4.2.5.2
            //= type=test
            //# In addition, iSCSI initiators and targets MUST enforce some ordering rules.
            assert!(commands.contains(&sent.bhs.itt()), "data behind its command");
            data.push(sent.bhs.itt());
        } else {
            commands.push(sent.bhs.itt());
            numbers.push(sent.read::<crate::pdu::scsi_command::ScsiCommand>().cmd_sn.0);
        }
    }
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# On any connection, the iSCSI initiator MUST send the commands in increasing order of CmdSN
    assert_eq!(numbers, (1..=16).collect::<Vec<u32>>());
    data.dedup();
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# but the unsolicited Data-Out PDUs for command N MUST precede the unsolicited Data-Out PDUs
    //# of command N + 1).
    assert_eq!((commands.len(), data), (16, commands));
}

#[test]
fn a_second_conversation_waits_for_the_end_of_the_first() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    raw.session.send_text(raw.now, None, text(&[("X-org.me", "1")])).unwrap();
    raw.drain();
    raw.expect::<TextRequest>(conn);
    //= rfc7143#section-6.2
    //= type=test
    //# There MUST NOT be more than one outstanding Text Request, or Text Response PDU on an iSCSI
    //# connection.
    assert_eq!(raw.session.send_text(raw.now, None, text(&[("X-org.me", "2")])), Err(SubmitError::Full));
    raw.drain();
    assert!(raw.receive(conn).is_none());
}
