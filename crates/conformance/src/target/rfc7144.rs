//! The protocol level of RFC 7144, and the key TaskReporting of RFC 7143 §13.23.

use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::tmf_response::TmfResponse;
use iscsi::pdu::{Itt, Opcode};
use iscsi::serial::CmdSn;
use transport::task_management::{TmfFunction, TmfResult};

use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::Received;

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::login::LoginPlan;
use super::management::response;
use super::numbering::SILENCE;
use super::task::piece;

pub(super) const CASES: &[Test] = &[
    case("rfc7144-level", "RFC 7144 §7.1.1", "the protocol level is negotiated downwards", level),
    case("rfc7144-range", "RFC 7144 §7.1.1", "a protocol level out of range is refused", out_of_range),
    case("rfc7144-not-agreed", "RFC 7144 §6.3", "the new functions need level 2", not_agreed),
    writing("rfc7144-query-task", "RFC 7144 §6.3", "QUERY TASK finds a task, and misses none", query_task),
    writing(
        "rfc7144-query-task-set",
        "RFC 7144 §6.3",
        "QUERY TASK SET tells whether there are tasks",
        query_task_set,
    ),
    case("rfc7144-query-async", "RFC 7144 §6.3", "QUERY ASYNCHRONOUS EVENT is answered", query_async),
    writing(
        "rfc7144-nexus-reset",
        "RFC 7144 §6.3",
        "I_T NEXUS RESET ends the tasks of this nexus",
        nexus_reset,
    ),
    case("rfc7144-priority", "RFC 7144 §5.1.1", "a command with a priority is executed", priority),
    case(
        "task-reporting",
        "RFC 7143 §13.23",
        "TaskReporting is answered with a value of the list",
        task_reporting,
    ),
    writing("task-fast-abort", "RFC 7143 §4.2.3.4", "FastAbort ends tasks without their data", fast_abort),
    writing(
        "task-response-fence",
        "RFC 7143 §4.2.3.3",
        "nothing of an aborted task follows the answer",
        response_fence,
    ),
];

fn level_2(fixture: &mut Fixture) -> Outcome<Conn> {
    let conn = fixture.start(&[("iSCSIProtocolLevel", "2")])?;
    need!(
        conn.params.protocol_level == 2,
        "the target stays at protocol level {}",
        conn.params.protocol_level
    );
    Ok(conn)
}

fn level(fixture: &mut Fixture) -> Outcome {
    for offered in ["0", "1", "2", "31"] {
        let conn = fixture.login(&LoginPlan::normal(fixture).with(&[("iSCSIProtocolLevel", offered)]))?;
        let said = conn.said.value("iSCSIProtocolLevel");
        if matches!(said, Some("NotUnderstood" | "Reject")) {
            need!(false, "the target does not know the key, as a target of RFC 7143 alone may not");
        }
        let highest: u32 = offered.parse().unwrap_or_default();
        let answer = conn.said.number("iSCSIProtocolLevel");
        require!(answer.is_some_and(|level| level <= highest), "level {offered} is answered {said:?}");
    }
    Ok(())
}

fn out_of_range(fixture: &mut Fixture) -> Outcome {
    let plan = LoginPlan::normal(fixture).with(&[("iSCSIProtocolLevel", "32")]);
    match fixture.try_login(&plan)? {
        super::login::LoginOutcome::In(conn) => {
            let said = conn.said.value("iSCSIProtocolLevel");
            let right = matches!(said, Some("Reject" | "NotUnderstood"));
            require!(right, "level 32 is answered {said:?}; 31 is the highest there is");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn not_agreed(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[])?;
    for function in [TmfFunction::QUERY_TASK, TmfFunction::QUERY_TASK_SET, TmfFunction::I_T_NEXUS_RESET] {
        let request = conn.manage(function);
        conn.send(&request, &[]);
        let result = match conn.receive_within(conn.patience)? {
            Received::Pdu(pdu) if pdu.opcode() == Opcode::REJECT => continue,
            Received::Pdu(pdu) => pdu.read::<TmfResponse>()?.response,
            Received::Closed => fail!("the connection ends because of function {}", function.0),
            Received::Nothing => fail!("function {} is not answered", function.0),
        };
        let refused = matches!(result, TmfResult::NOT_SUPPORTED | TmfResult::REJECTED);
        require!(
            refused,
            "function {} is answered {:02x} although level 2 was not agreed on",
            function.0,
            result.0
        );
    }
    Ok(())
}

/// Sends a write and waits for its R2T, without sending data.
fn held_write(conn: &mut Conn) -> Outcome<(ScsiCommand, R2t)> {
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    Ok((task, r2t))
}

fn ask(conn: &mut Conn, request: &TmfRequest, expected: TmfResult) -> Outcome {
    conn.send(request, &[]);
    let result = response(conn, request)?;
    require!(
        result == expected,
        "function {}: expected {:02x}, came {:02x}",
        request.function.0,
        expected.0,
        result.0
    );
    Ok(())
}

fn query_task(fixture: &mut Fixture) -> Outcome {
    let mut conn = level_2(fixture)?;
    let (task, r2t) = held_write(&mut conn)?;
    let query = conn.manage_task(TmfFunction::QUERY_TASK, &task);
    ask(&mut conn, &query, TmfResult::SUCCEEDED)?;
    let data = pattern(90, 2 * conn.block());
    conn.answer(&r2t, piece(&data, &r2t)?);
    conn.finish(&task, &data)?.good("the task that was asked for")?;
    let gone = conn.manage_task(TmfFunction::QUERY_TASK, &task);
    conn.send(&gone, &[]);
    let result = response(&mut conn, &gone)?;
    let absent = matches!(result, TmfResult::COMPLETE | TmfResult::NO_TASK);
    require!(absent, "a task that has ended: expected 00 or 01, came {:02x}", result.0);
    Ok(())
}

fn query_task_set(fixture: &mut Fixture) -> Outcome {
    let mut conn = level_2(fixture)?;
    let query = conn.manage(TmfFunction::QUERY_TASK_SET);
    ask(&mut conn, &query, TmfResult::COMPLETE)?;
    let (task, r2t) = held_write(&mut conn)?;
    let query = conn.manage(TmfFunction::QUERY_TASK_SET);
    ask(&mut conn, &query, TmfResult::SUCCEEDED)?;
    let data = pattern(91, 2 * conn.block());
    conn.answer(&r2t, piece(&data, &r2t)?);
    conn.finish(&task, &data)?.good("the task that was asked for")?;
    Ok(())
}

fn query_async(fixture: &mut Fixture) -> Outcome {
    let mut conn = level_2(fixture)?;
    let query = conn.manage(TmfFunction::QUERY_ASYNCHRONOUS_EVENT);
    conn.send(&query, &[]);
    let result = response(&mut conn, &query)?;
    let known = matches!(result, TmfResult::COMPLETE | TmfResult::SUCCEEDED | TmfResult::NOT_SUPPORTED);
    require!(known, "expected 00, 05 or 07, came {:02x}", result.0);
    Ok(())
}

fn nexus_reset(fixture: &mut Fixture) -> Outcome {
    let mut conn = level_2(fixture)?;
    let (task, r2t) = held_write(&mut conn)?;
    let reset = TmfRequest { lun: 0, ..conn.manage(TmfFunction::I_T_NEXUS_RESET) };
    conn.send(&reset, &[]);
    let data = pattern(92, 2 * conn.block());
    conn.answer(&r2t, piece(&data, &r2t)?);
    let result = response(&mut conn, &reset)?;
    if matches!(result, TmfResult::NOT_SUPPORTED | TmfResult::NOT_AUTHORIZED) {
        fixture.record.remark("the target does not support the function, as it may");
        return Ok(());
    }
    require!(result == TmfResult::COMPLETE, "expected 00, came {:02x}", result.0);
    gone(&mut conn, task.itt)?;
    conn.warm_up()
}

/// Fails if a PDU arrives for a task that was aborted.
fn gone(conn: &mut Conn, itt: Itt) -> Outcome {
    match conn.arrive(SILENCE)? {
        Received::Pdu(pdu) if pdu.itt() == itt => fail!("a task goes on that was ended: {}", pdu.shown()),
        Received::Closed => fail!("the connection ends"),
        Received::Pdu(_) | Received::Nothing => Ok(()),
    }
}

fn priority(fixture: &mut Fixture) -> Outcome {
    let mut conn = level_2(fixture)?;
    let task = ScsiCommand { priority: 9, ..conn.read(1) };
    conn.send(&task, &[]);
    conn.finish_read(&task, "READ with a priority")?;
    Ok(())
}

fn task_reporting(fixture: &mut Fixture) -> Outcome {
    for list in ["FastAbort,ResponseFence,RFC3720", "RFC3720", "ResponseFence,RFC3720"] {
        let conn = fixture.login(&LoginPlan::normal(fixture).with(&[("TaskReporting", list)]))?;
        let said = conn.said.value("TaskReporting");
        if said == Some("NotUnderstood") {
            need!(false, "the target does not know the key, as a target of RFC 3720 may not");
        }
        require!(
            said.is_some_and(|said| list.split(',').any(|one| one == said)),
            "of {list}, {said:?} is chosen"
        );
    }
    Ok(())
}

fn fast_abort(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("TaskReporting", "FastAbort,RFC3720")])?;
    need!(
        conn.params.task_reporting == "FastAbort",
        "the target agrees to {} only",
        conn.params.task_reporting
    );
    let (task, _) = held_write(&mut conn)?;
    // The R2T stays unanswered: FastAbort does not wait for the data.
    let request = conn.manage(TmfFunction::ABORT_TASK_SET);
    ask(&mut conn, &request, TmfResult::COMPLETE)?;
    gone(&mut conn, task.itt)
}

fn response_fence(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("MaxRecvDataSegmentLength", "512")])?;
    let task = conn.read(64);
    conn.send(&task, &[]);
    let abort =
        TmfRequest { ref_cmd_sn: CmdSn(task.cmd_sn.0), ..conn.manage_task(TmfFunction::ABORT_TASK, &task) };
    conn.send(&abort, &[]);
    let result = response(&mut conn, &abort)?;
    let known = matches!(result, TmfResult::COMPLETE | TmfResult::NO_TASK);
    require!(known, "expected 00 or 01, came {:02x}", result.0);
    gone(&mut conn, task.itt)
}
