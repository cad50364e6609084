//! Task management (RFC 7143 §11.5, §11.6): the cases `ffp-t-11.*` of the UNH-IOL plan.

use std::time::{Duration, Instant};

use iscsi::pdu::data_in::DataIn;
use iscsi::pdu::logout_request::LogoutReason;
use iscsi::pdu::logout_response::LogoutResponse;
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::tmf_response::TmfResponse;
use iscsi::pdu::{Itt, Opcode};
use iscsi::serial::{CmdSn, DataSn};
use transport::task_management::{TmfFunction, TmfResult};

use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::{Pdu, Received};

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::numbering::SILENCE;
use super::task::piece;

pub(super) const CASES: &[Test] = &[
    writing(
        "ffp-t-11.1",
        "RFC 7143 §4.2.2.1",
        "an immediate request and an immediate TMF are taken at once",
        immediate,
    ),
    case(
        "ffp-t-11.2.1",
        "RFC 7143 §7.2.2, §11.6.1",
        "a task is reassigned after a logout for recovery",
        reassign_logged_out,
    ),
    writing(
        "ffp-t-11.2.2",
        "RFC 7143 §11.6.1",
        "a task that is still allegiant is not reassigned",
        still_allegiant,
    ),
    case(
        "ffp-t-11.2.3",
        "RFC 7143 §7.2.2, §11.6.1",
        "a task is reassigned after its connection was dropped",
        reassign_dropped,
    ),
    case(
        "ffp-t-11.3.1",
        "RFC 7143 §4.2.3.3, §11.6",
        "nothing of an aborted set follows the answer",
        abort_set,
    ),
    case(
        "ffp-t-11.3.2",
        "RFC 7143 §4.2.3.3, §11.5",
        "ABORT TASK SET covers commands that come late",
        abort_set_late,
    ),
    case(
        "ffp-t-11.3.3",
        "RFC 7143 §11.6.1",
        "ABORT TASK of a task that never was: task does not exist",
        abort_unknown,
    ),
    case("ffp-t-11.4", "RFC 7143 §11.5.1", "TARGET WARM RESET ends all tasks, or is refused", warm_reset),
    case(
        "ffp-t-11.5",
        "RFC 7143 §11.5.1",
        "TARGET COLD RESET ends all connections, or is refused",
        cold_reset,
    ),
];

/// Waits for the response to a request, and puts PDUs of other tasks aside.
pub(super) fn response(conn: &mut Conn, request: &TmfRequest) -> Outcome<TmfResult> {
    Ok(conn.expect::<TmfResponse>(request.itt)?.0.response)
}

/// Like [`response`], but also serves the other connection: before the target responds, it may wait for the
/// acknowledgement of what it sent there (§4.2.3.3).
fn response_amid(conn: &mut Conn, other: &mut Conn, request: &TmfRequest) -> Outcome<TmfResult> {
    let until = Instant::now() + conn.patience;
    loop {
        if let Received::Pdu(pdu) = other.arrive(Duration::from_millis(10))? {
            other.put_back(pdu);
        }
        match conn.arrive(Duration::from_millis(10))? {
            Received::Pdu(pdu) if pdu.itt() == request.itt => return Ok(pdu.read::<TmfResponse>()?.response),
            Received::Pdu(pdu) => conn.put_back(pdu),
            Received::Closed => fail!("expected an answer to the function; the connection was closed"),
            Received::Nothing => {
                require!(Instant::now() < until, "the function is not answered within {:?}", conn.patience)
            }
        }
    }
}

/// Returns the first PDU of a task that arrived after the response to `request`.
fn after(conn: &Conn, request: &TmfRequest, task: Itt) -> Option<Pdu> {
    let after = conn.seen.iter().skip_while(|pdu| pdu.itt() != request.itt);
    let kinds = [Opcode::DATA_IN, Opcode::R2T, Opcode::SCSI_RESPONSE];
    after.into_iter().find(|pdu| pdu.itt() == task && kinds.contains(&pdu.opcode())).cloned()
}

fn immediate(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[])?;
    let data = pattern(20, 2 * conn.block());
    let held = conn.write(2);
    conn.send(&held, &[]);
    let (r2t, _) = conn.expect::<R2t>(held.itt)?;
    let before = conn.this_cmd_sn();
    let second = ScsiCommand { immediate: true, cmd_sn: before, ..conn.write(2) };
    conn.nexus.borrow_mut().cmd_sn = before.0;
    conn.send(&second, &[]);
    let abort = conn.manage_task(TmfFunction::ABORT_TASK, &held);
    conn.send(&abort, &[]);
    conn.answer(&r2t, piece(&data, &r2t)?);
    let result = response(&mut conn, &abort)?;
    require!(result == TmfResult::COMPLETE, "expected function complete, came {:02x}", result.0);
    conn.finish(&second, &data)?.good("the immediate WRITE")?;
    conn.expect_nothing_new(SILENCE, "nothing more was asked for")?;
    if let Some(pdu) = after(&conn, &abort, held.itt) {
        fail!("the aborted task goes on: {}", pdu.shown());
    }
    Ok(())
}

/// Starts a session of two connections at ErrorRecoveryLevel 2.
pub(super) fn recovering_pair(fixture: &mut Fixture) -> Outcome<(Conn, Conn)> {
    let keys = [("ErrorRecoveryLevel", "2"), ("MaxConnections", "2"), ("MaxRecvDataSegmentLength", "512")];
    let mut one = fixture.start(&keys)?;
    need!(one.params.erl == 2, "the target agrees to ErrorRecoveryLevel={} only", one.params.erl);
    need!(one.params.max_connections > 1, "the target allows one connection per session");
    let mut two = fixture.join(&one, 2)?;
    one.warm_up()?;
    two.warm_up()?;
    Ok((one, two))
}

/// Receives a reassigned read, of which no data was acknowledged, on its new connection; fails unless all of
/// its data and GOOD arrive.
pub(super) fn read_goes_on(conn: &mut Conn, task: &ScsiCommand, known: &[u8]) -> Outcome {
    let done = conn.finish_read(task, "the reassigned READ")?;
    require!(done.data == known, "the reassigned READ returns other data than the blocks contain");
    Ok(())
}

/// The length in blocks of the reads that are reassigned.
pub(super) const BLOCKS: u16 = 16;

/// Sends a read and waits for its first data; its status stays unacknowledged.
fn begin_read(conn: &mut Conn) -> Outcome<ScsiCommand> {
    let task = conn.read(BLOCKS);
    conn.send(&task, &[]);
    let (_, _) = conn.expect::<DataIn>(task.itt)?;
    Ok(task)
}

fn reassign_logged_out(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = recovering_pair(fixture)?;
    let known = one.known_blocks(fixture.options.write, BLOCKS)?;
    let task = begin_read(&mut one)?;
    let logout = two.logout(LogoutReason::RemoveForRecovery, one.cid);
    two.send(&logout, &[]);
    let (answer, _) = two.expect::<LogoutResponse>(logout.itt)?;
    require!(answer.response.0 == 0, "the logout for recovery is answered {:02x}", answer.response.0);
    let request = TmfRequest { exp_data_sn: DataSn(0), ..two.manage_task(TmfFunction::TASK_REASSIGN, &task) };
    two.send(&request, &[]);
    let result = response(&mut two, &request)?;
    require!(result == TmfResult::COMPLETE, "expected function complete, came {:02x}", result.0);
    read_goes_on(&mut two, &task, &known)
}

fn still_allegiant(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = recovering_pair(fixture)?;
    let data = pattern(21, 2 * one.block());
    let task = one.write(2);
    one.send(&task, &[]);
    let (r2t, _) = one.expect::<R2t>(task.itt)?;
    let request = two.manage_task(TmfFunction::TASK_REASSIGN, &task);
    two.send(&request, &[]);
    let result = response(&mut two, &request)?;
    require!(result == TmfResult::STILL_ALLEGIANT, "expected task still allegiant, came {:02x}", result.0);
    one.answer(&r2t, piece(&data, &r2t)?);
    one.finish(&task, &data)?.good("the WRITE that was not reassigned")?;
    Ok(())
}

fn reassign_dropped(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = recovering_pair(fixture)?;
    let known = one.known_blocks(fixture.options.write, BLOCKS)?;
    let task = begin_read(&mut one)?;
    one.line.drop_connection();
    std::thread::sleep(Duration::from_millis(200));
    let request = two.manage_task(TmfFunction::TASK_REASSIGN, &task);
    two.send(&request, &[]);
    let result = response(&mut two, &request)?;
    if result == TmfResult::COMPLETE {
        return read_goes_on(&mut two, &task, &known);
    }
    require!(result.0 <= 6 || result.0 == 255, "the answer {:02x} is not defined", result.0);
    two.line
        .record()
        .remark(format!("the target answers {:02x}: it wants a logout first, as it may", result.0));
    Ok(())
}

/// Sends a NOP-Out with the CmdSN of the immediate request before it, and waits for the answer.
fn ping_after(conn: &mut Conn) -> Outcome<NopOut> {
    let ping = conn.ping(false);
    conn.send(&ping, &[]);
    conn.expect::<NopIn>(ping.itt)?;
    Ok(ping)
}

fn abort_set(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ErrorRecoveryLevel", "1"), ("MaxRecvDataSegmentLength", "512")])?;
    let task = conn.read(64);
    conn.send(&task, &[]);
    let request = conn.manage(TmfFunction::ABORT_TASK_SET);
    conn.send(&request, &[]);
    let result = response(&mut conn, &request)?;
    need!(result != TmfResult::NOT_SUPPORTED, "the target does not support ABORT TASK SET");
    require!(result == TmfResult::COMPLETE, "expected function complete, came {:02x}", result.0);
    ping_after(&mut conn)?;
    conn.expect_nothing_new(SILENCE, "nothing more was asked for")?;
    match after(&conn, &request, task.itt) {
        Some(pdu) => fail!("the aborted task goes on after the answer: {}", pdu.shown()),
        None => Ok(()),
    }
}

fn abort_set_late(fixture: &mut Fixture) -> Outcome {
    let mut one = fixture.start(&[("MaxConnections", "2"), ("ErrorRecoveryLevel", "1")])?;
    need!(one.params.max_connections > 1, "the target allows one connection per session");
    let mut two = fixture.join(&one, 2)?;
    let first = one.read(16);
    one.send(&first, &[]);
    let late = two.read(16);
    let request = one.manage(TmfFunction::ABORT_TASK_SET);
    one.send(&request, &[]);
    // The command that fills the gap is sent after the request that covers it.
    std::thread::sleep(Duration::from_millis(100));
    two.send(&late, &[]);
    let result = response_amid(&mut one, &mut two, &request)?;
    require!(result == TmfResult::COMPLETE, "expected function complete, came {:02x}", result.0);
    ping_after(&mut one)?;
    // The target may execute the command before the function; after the function's response it must send
    // nothing for it.
    match two.arrive(SILENCE)? {
        Received::Nothing => Ok(()),
        Received::Closed => {
            fixture.record.remark("the target ends the other connection, as it may at level 0");
            Ok(())
        }
        Received::Pdu(pdu) => {
            fail!("a command numbered before the function is covered by it, but came {}", pdu.shown())
        }
    }
}

fn abort_unknown(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let task = conn.read(16);
    conn.send(&task, &[]);
    let beyond = CmdSn(conn.nexus.borrow().max_cmd_sn).plus(1000);
    let request = TmfRequest {
        referenced_task_tag: Itt(0x0bad_0bad),
        ref_cmd_sn: beyond,
        ..conn.manage(TmfFunction::ABORT_TASK)
    };
    conn.send(&request, &[]);
    let result = response(&mut conn, &request)?;
    require!(result == TmfResult::NO_TASK, "expected task does not exist (01), came {:02x}", result.0);
    conn.finish_read(&task, "the READ that was not meant")?;
    ping_after(&mut conn)?;
    Ok(())
}

fn reset(conn: &mut Conn, function: TmfFunction) -> Outcome<(ScsiCommand, TmfRequest)> {
    let task = conn.read(64);
    conn.send(&task, &[]);
    let request = conn.manage(function);
    let request = TmfRequest { immediate: false, lun: 0, cmd_sn: conn.next_cmd_sn(), ..request };
    conn.send(&request, &[]);
    Ok((task, request))
}

fn warm_reset(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ErrorRecoveryLevel", "1"), ("MaxRecvDataSegmentLength", "512")])?;
    let (task, request) = reset(&mut conn, TmfFunction::TARGET_WARM_RESET)?;
    match response(&mut conn, &request)? {
        TmfResult::COMPLETE => {}
        TmfResult::NOT_SUPPORTED | TmfResult::NOT_AUTHORIZED | TmfResult::REJECTED => {
            fixture.record.remark("the target does not support the function, as it may");
            return Ok(());
        }
        other => fail!("expected function complete, not supported or not authorized, came {:02x}", other.0),
    }
    ping_after(&mut conn)?;
    conn.expect_nothing_new(SILENCE, "a warm reset ends all tasks")?;
    match after(&conn, &request, task.itt) {
        Some(pdu) => fail!("a task goes on after the reset: {}", pdu.shown()),
        None => conn.warm_up(),
    }
}

fn cold_reset(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ErrorRecoveryLevel", "1"), ("MaxRecvDataSegmentLength", "512")])?;
    let (_, request) = reset(&mut conn, TmfFunction::TARGET_COLD_RESET)?;
    loop {
        let pdu = match conn.receive_within(conn.patience)? {
            Received::Closed => return Ok(()),
            Received::Nothing => fail!("expected an answer or the end of the connection; nothing came"),
            Received::Pdu(pdu) => pdu,
        };
        if pdu.itt() != request.itt {
            continue;
        }
        return match pdu.read::<TmfResponse>()?.response {
            TmfResult::NOT_SUPPORTED | TmfResult::NOT_AUTHORIZED | TmfResult::REJECTED => {
                fixture.record.remark("the target does not support the function, as it may");
                Ok(())
            }
            TmfResult::COMPLETE => {
                require!(conn.closes(conn.patience)?, "a cold reset ends all connections; this one stays");
                Ok(())
            }
            other => {
                fail!("expected function complete, not supported or not authorized, came {:02x}", other.0)
            }
        };
    }
}
