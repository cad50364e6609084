//! Text negotiations: those of the owner, and those that the target requests. The test scripts the target.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::Duration;
use transport::initiator::{InitiatorTransport as _, SubmitError};

use super::pair::{pattern, read};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, PduHeader, Ttt};
use crate::serial::DataSn;
use crate::text::TextBuilder;

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
    let (mut raw, conns) = super::scripted_target::level_2(2);
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
