//! Task management of an initiator (RFC 7143 §11.5): the cases `ffp-i-19.*` of the UNH-IOL plan.

use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::{Itt, Opcode};
use transport::task_management::{TmfFunction, TmfResult};

use crate::suite::case;
use crate::verdict::{Outcome, Stop};
use crate::wire::Pdu;

use super::Test;
use super::conn::End;
use super::disk::Answer;
use super::fixture::{Event, EventKind, Fixture, ReceivedCommand};

const SET: &str = "RFC 7143 §4.2.3.3, §11.5.1";

pub(super) const CASES: &[Test] = &[
    case("ffp-i-19.1", "RFC 7143 §4.2.2.1", "CmdSN of a task management request is right", number),
    case("ffp-i-19.2", "RFC 7143 §11.5.3", "a task management request carries the LUN of its task", lun),
    case("ffp-i-19.3", "RFC 7143 §11.5.5", "RefCmdSN is the number of the task", ref_cmd_sn),
    case("ffp-i-19.4.1", SET, "pings are answered while a set is aborted", pings_go_on),
    case("ffp-i-19.4.2", SET, "acknowledgements go on while a set is aborted", acknowledgements_go_on),
    case("ffp-i-19.4.3", SET, "answers of tasks are taken while a set is aborted", answers_are_taken),
    case("ffp-i-19.5", "RFC 7143 §7.2.2", "tasks move to another connection of the session", reassign),
];

/// Starts the initiator, leaves its first read or write unanswered, and waits for the task management request
/// that follows.
fn provoked(
    fixture: &mut Fixture,
    wanted: fn(TmfFunction) -> bool,
) -> Outcome<(ReceivedCommand, usize, TmfRequest, Pdu)> {
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    let wait = fixture.options.limit / 2;
    let event = fixture.serve_until(wait, |event| {
        event.is(Opcode::TMF_REQUEST).is_some_and(|pdu| wanted(TmfFunction(pdu.flags() & 0x7f)))
    })?;
    match event {
        Some(Event { conn, what: EventKind::Received(pdu), .. }) => {
            fixture.number(conn, &pdu);
            let request = pdu.read()?;
            Ok((got, conn, request, pdu))
        }
        _ => Err(Stop::Skip(format!("the initiator sent no such task management request within {wait:?}"))),
    }
}

fn any(_: TmfFunction) -> bool {
    true
}

fn aborts_a_task(function: TmfFunction) -> bool {
    function == TmfFunction::ABORT_TASK
}

fn aborts_a_set(function: TmfFunction) -> bool {
    matches!(
        function,
        TmfFunction::ABORT_TASK_SET | TmfFunction::CLEAR_TASK_SET | TmfFunction::LOGICAL_UNIT_RESET
    )
}

fn number(fixture: &mut Fixture) -> Outcome {
    let (_, conn, request, pdu) = provoked(fixture, any)?;
    fixture.answer_management(conn, &request, TmfResult::COMPLETE);
    let next = fixture.serve_until(fixture.options.patience, |event| {
        event.conn == conn && event.command().is_some_and(|command| !command.immediate)
    })?;
    if let Some(Event { what: EventKind::Received(next), .. }) = next {
        let expected = if request.immediate { pdu.word(24) } else { pdu.word(24).wrapping_add(1) };
        require!(next.word(24) == expected, "expected CmdSN {expected:x} in {}", next.shown());
    }
    Ok(())
}

fn lun(fixture: &mut Fixture) -> Outcome {
    let (got, _, request, pdu) = provoked(fixture, any)?;
    let lun = got.command.lun;
    require!(request.lun == lun, "expected LUN {lun:x} in {}", pdu.shown());
    if request.function == TmfFunction::ABORT_TASK {
        let itt = request.referenced_task_tag;
        require!(itt == got.command.itt, "expected task {:x} in {}", got.command.itt.0, pdu.shown());
    }
    Ok(())
}

fn ref_cmd_sn(fixture: &mut Fixture) -> Outcome {
    let (got, conn, request, pdu) = provoked(fixture, aborts_a_task)?;
    let (expected, came) = (got.command.cmd_sn, request.ref_cmd_sn);
    require!(came == expected, "expected RefCmdSN {:x} in {}", expected.0, pdu.shown());
    let (itt, referenced) = (got.command.itt, request.referenced_task_tag);
    require!(itt == referenced, "expected task {:x} in {}", itt.0, pdu.shown());
    fixture.answer_management(conn, &request, TmfResult::COMPLETE);
    fixture.serve_out(fixture.options.patience)?;
    require!(fixture.exit() != Some(false), "the initiator fails although its task was aborted");
    Ok(())
}

/// Sends a ping and waits for the answer.
fn ping(fixture: &mut Fixture, conn: usize) -> Outcome {
    let ping: NopIn = fixture.ping(conn, true);
    let event = fixture.serve_until(fixture.options.patience, |event| {
        event.is(Opcode::NOP_OUT).is_some_and(|pdu| pdu.word(20) == ping.ttt.0)
    })?;
    require!(event.is_some(), "a ping is not answered while a set is aborted");
    Ok(())
}

fn pings_go_on(fixture: &mut Fixture) -> Outcome {
    let (_, conn, request, _) = provoked(fixture, aborts_a_set)?;
    ping(fixture, conn)?;
    fixture.answer_management(conn, &request, TmfResult::COMPLETE);
    Ok(())
}

fn acknowledgements_go_on(fixture: &mut Fixture) -> Outcome {
    let (got, conn, request, _) = provoked(fixture, aborts_a_set)?;
    ping(fixture, conn)?;
    if let Answer::Data(data) = fixture.disk.answer(got.command.lun, &got.command.cdb) {
        let limit = fixture.send_max(conn).min(data.len());
        let bytes = data.get(..limit).unwrap_or_default().to_vec();
        fixture.data_in(conn, &got.command, (0, 0), &bytes, End::Acknowledge);
        let event =
            fixture.serve_until(fixture.options.patience, |event| event.is(Opcode::SNACK).is_some())?;
        let level = fixture.sessions.first().map_or(0, |session| session.agreed.number("ErrorRecoveryLevel"));
        require!(event.is_some() || level == 0, "Data-In with A is not acknowledged while a set is aborted");
    }
    fixture.answer_management(conn, &request, TmfResult::COMPLETE);
    Ok(())
}

fn answers_are_taken(fixture: &mut Fixture) -> Outcome {
    let (got, conn, request, _) = provoked(fixture, aborts_a_set)?;
    if let Some(conn) = fixture.conns.get_mut(conn) {
        conn.pending.clear();
    }
    fixture.respond(conn, got.command.itt, 8, None);
    fixture.answer_management(conn, &request, TmfResult::COMPLETE);
    let wait = fixture.options.patience;
    let event = fixture.serve_until(wait, |event| {
        event.conn == conn
            && (event.is(Opcode::LOGOUT_REQUEST).is_some() || matches!(event.what, EventKind::Closed))
    })?;
    let dropped = matches!(event, Some(Event { what: EventKind::Closed, .. }));
    require!(!dropped, "the initiator drops the connection because of an answer that was under way");
    Ok(())
}

fn reassign(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "2")])?;
    let got = fixture.command("READ", Event::reads)?;
    let level = fixture.sessions.first().map_or(0, |session| session.agreed.number("ErrorRecoveryLevel"));
    need!(level == 2, "the initiator agrees to ErrorRecoveryLevel={level} only");
    let others = fixture.conns.iter().filter(|conn| conn.session == Some(0) && !conn.gone).count();
    if others < 2 {
        fixture.record.remark("the initiator makes a second connection only when it needs one");
    }
    if let Some(conn) = fixture.conns.get_mut(got.conn) {
        conn.line.drop_connection();
        conn.gone = true;
    }
    let event = fixture.serve_until(fixture.options.patience * 2, |event| {
        event.is(Opcode::TMF_REQUEST).is_some_and(|pdu| pdu.flags() & 0x7f == TmfFunction::TASK_REASSIGN.0)
    })?;
    let Some(Event { conn, what: EventKind::Received(pdu), .. }) = event else {
        fail!("no TASK REASSIGN came")
    };
    require!(
        Itt(pdu.word(20)) == got.command.itt,
        "expected task {:x} in {}",
        got.command.itt.0,
        pdu.shown()
    );
    fixture.number(conn, &pdu);
    fixture.answer_management(conn, &pdu.read()?, TmfResult::COMPLETE);
    fixture.execute(conn, &got.command, &[])?;
    fixture.serve_out(fixture.options.patience)?;
    require!(fixture.exit() != Some(false), "the initiator fails although its task was finished elsewhere");
    Ok(())
}
