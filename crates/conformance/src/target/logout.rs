//! Logout (RFC 7143 §11.14, §11.15): the cases `ffp-t-13.*` of the UNH-IOL plan.

use iscsi::pdu::logout_request::LogoutReason;
use iscsi::pdu::logout_response::{LogoutResponse, LogoutResult};
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;

use crate::entropy::pattern;
use crate::suite::writing;
use crate::verdict::Outcome;

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::numbering::{R2T_MODE, two_connections};

pub(super) const CASES: &[Test] = &[
    writing(
        "ffp-t-13.1",
        "RFC 7143 §11.14, §11.15",
        "a logout of one connection leaves the other",
        close_connection,
    ),
    writing(
        "ffp-t-13.2",
        "RFC 7143 §11.14, §11.15",
        "a logout of the session closes all its connections",
        close_session,
    ),
    writing(
        "ffp-t-13.3",
        "RFC 7143 §11.15.1",
        "a logout of no connection finds none and closes none",
        no_such_cid,
    ),
];

/// Sends a write command. The target may send the R2T at once, or after other writes have ended.
fn begin_write(conn: &mut Conn) -> ScsiCommand {
    let task = conn.write(2);
    conn.send(&task, &[]);
    task
}

fn end_write(conn: &mut Conn, task: &ScsiCommand) -> Outcome {
    let data = pattern(40, 2 * conn.block());
    conn.finish(task, &data)?.good("the WRITE on the connection that stays")?;
    Ok(())
}

fn log_out(conn: &mut Conn, reason: LogoutReason, cid: u16) -> Outcome<LogoutResult> {
    let request = conn.logout(reason, cid);
    conn.send(&request, &[]);
    Ok(conn.expect::<LogoutResponse>(request.itt)?.0.response)
}

fn close_connection(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = two_connections(fixture, &R2T_MODE)?;
    let ends = begin_write(&mut one);
    one.expect::<R2t>(ends.itt)?;
    let stays = begin_write(&mut two);
    let cid = one.cid;
    let result = log_out(&mut one, LogoutReason::CloseConnection, cid)?;
    require!(result == LogoutResult::CLOSED, "expected response 0, came {:02x}", result.0);
    require!(one.closes(one.patience)?, "the connection is not closed after the logout");
    end_write(&mut two, &stays)
}

fn close_session(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = two_connections(fixture, &R2T_MODE)?;
    let ends = begin_write(&mut one);
    one.expect::<R2t>(ends.itt)?;
    let stays = begin_write(&mut two);
    let result = log_out(&mut one, LogoutReason::CloseSession, 0)?;
    require!(result == LogoutResult::CLOSED, "expected response 0, came {:02x}", result.0);
    require!(one.closes(one.patience)?, "the connection is not closed after the logout");
    if one.nexus.borrow().params.max_connections > 1 {
        require!(two.closes(two.patience)?, "the other connection of the session is not closed");
        return Ok(());
    }
    end_write(&mut two, &stays)
}

fn no_such_cid(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = two_connections(fixture, &R2T_MODE)?;
    let stays = [begin_write(&mut one), begin_write(&mut two)];
    let result = log_out(&mut one, LogoutReason::CloseConnection, 0x7777)?;
    require!(result == LogoutResult::NO_CID, "expected CID not found (01), came {:02x}", result.0);
    for (conn, task) in [&mut one, &mut two].into_iter().zip(&stays) {
        end_write(conn, task)?;
        let ping = conn.ping(true);
        conn.send(&ping, &[]);
        conn.expect::<NopIn>(ping.itt)?;
    }
    Ok(())
}
