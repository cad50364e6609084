//! Recovery of connections (RFC 7143 §7.1.4, §7.2.2, §11.5, §11.14): cases written from the RFC's MUSTs.

use std::rc::Rc;
use std::time::Duration;

use iscsi::pdu::Itt;
use iscsi::pdu::logout_request::LogoutReason;
use iscsi::pdu::logout_response::LogoutResponse;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::tmf_request::TmfRequest;
use transport::task_management::{TmfFunction, TmfResult};

use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::login::LoginOutcome;
use super::management::{BLOCKS, read_goes_on, recovering_pair, response};

const REASSIGN: &str = "RFC 7143 §7.2.2, §11.5.1";

pub(super) const CASES: &[Test] = &[
    writing("erl2-write", REASSIGN, "a write goes on elsewhere after a logout for recovery", |s| {
        write_goes_on(s, Lost::LoggedOut)
    }),
    writing("erl2-write-dropped", REASSIGN, "a write goes on elsewhere after its connection broke", |s| {
        write_goes_on(s, Lost::Dropped)
    }),
    writing(
        "erl2-write-same-cid",
        REASSIGN,
        "a write goes on over a connection that replaces its own",
        |s| write_goes_on(s, Lost::Replaced),
    ),
    case(
        "erl2-read-rest",
        "RFC 7143 §11.5.5, §7.2.2",
        "a read goes on from the ExpDataSN that we name",
        read_rest,
    ),
    case("erl2-unknown", "RFC 7143 §11.6.1", "a task that never was is not reassigned", unknown),
    case(
        "erl2-continue",
        "RFC 7143 §7.1.4, §13.16",
        "a session without connections goes on within Time2Retain",
        session_continues,
    ),
    writing("erl2-once", "RFC 7143 §7.2.2", "a write whose status was lost is not done twice", done_once),
    case(
        "erl2-logout-times",
        "RFC 7143 §11.15.3",
        "the answer to a logout for recovery tells both times",
        logout_times,
    ),
];

/// How the connection is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// Logout with the reason "remove the connection for recovery".
    LoggedOut,
    /// Dropped, then removed for recovery by a Logout on another connection.
    Dropped,
    /// Dropped, then replaced by a login with the same CID, which is an implicit logout.
    Replaced,
}

/// Logs `cid` out for recovery, and waits for the response.
fn log_out(conn: &mut Conn, cid: u16) -> Outcome<LogoutResponse> {
    let request = conn.logout(LogoutReason::RemoveForRecovery, cid);
    conn.send(&request, &[]);
    let (answer, _) = conn.expect::<LogoutResponse>(request.itt)?;
    require!(answer.response.0 == 0, "the logout for recovery is answered {:02x}", answer.response.0);
    Ok(answer)
}

/// Sends TASK REASSIGN for a task on `conn`, and returns the result.
fn reassign(conn: &mut Conn, task: &ScsiCommand, exp_data_sn: u32) -> Outcome<TmfResult> {
    let request = conn.manage_task(TmfFunction::TASK_REASSIGN, task);
    let request = TmfRequest { exp_data_sn: iscsi::serial::DataSn(exp_data_sn), ..request };
    conn.send(&request, &[]);
    response(conn, &request)
}

fn moved(conn: &mut Conn, task: &ScsiCommand, exp_data_sn: u32) -> Outcome {
    let result = reassign(conn, task, exp_data_sn)?;
    require!(result == TmfResult::COMPLETE, "TASK REASSIGN: expected 00, came {:02x}", result.0);
    Ok(())
}

fn write_goes_on(fixture: &mut Fixture, lost: Lost) -> Outcome {
    let (mut one, mut two) = recovering_pair(fixture)?;
    let data = pattern(130, 4 * one.block());
    let task = one.write(4);
    one.send(&task, &[]);
    let (r2t, _) = one.expect::<R2t>(task.itt)?;
    // The connection is lost after one of four blocks was sent.
    let half = data.get(..one.block()).unwrap_or_default();
    let head = one.data_out(&r2t, 0, r2t.buffer_offset, false);
    one.send(&head, half);
    std::thread::sleep(Duration::from_millis(50));
    let mut heir = match lost {
        Lost::LoggedOut => {
            log_out(&mut two, one.cid)?;
            two
        }
        Lost::Dropped => {
            one.line.drop_connection();
            std::thread::sleep(Duration::from_millis(50));
            log_out(&mut two, one.cid)?;
            two
        }
        Lost::Replaced => {
            one.line.drop_connection();
            let plan = fixture.join_plan(&two, one.cid);
            match fixture.try_join(&plan, Rc::clone(&two.nexus))? {
                LoginOutcome::In(conn) => *conn,
                _ => fail!("the login that replaces the connection is refused"),
            }
        }
    };
    moved(&mut heir, &task, 0)?;
    heir.finish(&task, &data)?.good("the reassigned WRITE")?;
    let back = heir.read_blocks(4)?;
    require!(back.data == data, "other data is read back than was written");
    Ok(())
}

fn read_rest(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = recovering_pair(fixture)?;
    let known = one.known_blocks(fixture.options.write, BLOCKS)?;
    let task = one.read(BLOCKS);
    one.send(&task, &[]);
    let mut have = 0;
    for _ in 0..3 {
        have += one.expect::<iscsi::pdu::data_in::DataIn>(task.itt)?.1.data.len();
    }
    one.line.drop_connection();
    std::thread::sleep(Duration::from_millis(50));
    log_out(&mut two, one.cid)?;
    moved(&mut two, &task, 3)?;
    let done = two.finish(&task, &[])?.good_from("the reassigned READ", have, &task)?;
    let first = two.seen.iter().find(|pdu| pdu.itt() == task.itt && !pdu.data.is_empty());
    let number = first.map(|pdu| pdu.word(36));
    require!(number == Some(3), "expected data from DataSN 3, came {number:x?}");
    require!(
        done.data.get(have..) == known.get(have..),
        "the reassigned READ returns other data than the blocks contain"
    );
    Ok(())
}

fn unknown(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = recovering_pair(fixture)?;
    let task = ScsiCommand { itt: Itt(0x0bad_0bad), ..one.read(1) };
    // A command that the target answers uses up the number, so that no gap remains.
    let used = ScsiCommand { itt: one.itt(), ..task };
    one.send(&used, &[]);
    one.finish(&used, &[])?;
    let result = reassign(&mut two, &task, 0)?;
    require!(result == TmfResult::NO_TASK, "expected task does not exist (01), came {:02x}", result.0);
    Ok(())
}

fn session_continues(fixture: &mut Fixture) -> Outcome {
    let mut one = fixture.start(&[("ErrorRecoveryLevel", "2"), ("MaxRecvDataSegmentLength", "512")])?;
    need!(one.params.erl == 2, "the target agrees to ErrorRecoveryLevel={} only", one.params.erl);
    need!(one.params.time2retain > 0, "the target agrees to DefaultTime2Retain=0 only");
    let known = one.known_blocks(fixture.options.write, BLOCKS)?;
    let task = one.read(BLOCKS);
    one.send(&task, &[]);
    one.expect::<iscsi::pdu::data_in::DataIn>(task.itt)?;
    one.line.drop_connection();
    std::thread::sleep(Duration::from_secs(u64::from(one.params.time2wait)) + Duration::from_millis(100));
    let plan = fixture.join_plan(&one, one.cid);
    let mut heir = match fixture.try_join(&plan, Rc::clone(&one.nexus))? {
        LoginOutcome::In(conn) => *conn,
        LoginOutcome::Refused(status) => fail!("the session is not continued: status {status:04x}"),
        LoginOutcome::Closed => fail!("the session is not continued: the connection was closed"),
    };
    moved(&mut heir, &task, 0)?;
    read_goes_on(&mut heir, &task, &known)
}

fn done_once(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = recovering_pair(fixture)?;
    let data = pattern(131, one.block());
    let task = one.write(1);
    one.send(&task, &[]);
    let (r2t, _) = one.expect::<R2t>(task.itt)?;
    one.answer(&r2t, super::task::piece(&data, &r2t)?);
    // The target has sent the status by now, but we act as if we had not received it.
    std::thread::sleep(Duration::from_millis(100));
    one.line.drop_connection();
    std::thread::sleep(Duration::from_millis(50));
    log_out(&mut two, one.cid)?;
    let later = pattern(132, one.block());
    two.write_blocks(&later)?;
    moved(&mut two, &task, 0)?;
    two.finish(&task, &data)?.good("the reassigned WRITE")?;
    let back = two.read_blocks(1)?;
    require!(back.data == later, "the write that had been done was done once more, over later data");
    Ok(())
}

fn logout_times(fixture: &mut Fixture) -> Outcome {
    let (one, mut two) = recovering_pair(fixture)?;
    let answer = log_out(&mut two, one.cid)?;
    let retain = u32::from(answer.time2retain);
    require!(retain <= one.params.time2retain, "Time2Retain {retain} exceeds what was agreed on");
    Ok(())
}
