//! Several connections in one session (RFC 7143 §4.2.2, §4.2.5.1, §6.3).

use iscsi::pdu::logout_request::LogoutReason;
use iscsi::pdu::logout_response::LogoutResponse;
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::serial::CmdSn;

use crate::cdb;
use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;

use super::Test;
use super::conn::{Conn, Flow, consumes_stat_sn};
use super::fixture::Fixture;
use super::login::LoginOutcome;
use super::numbering::SILENCE;

pub(super) const CASES: &[Test] = &[
    case("mcs-join", "RFC 7143 §6.3.1", "a second connection joins the session", joins),
    case(
        "mcs-order",
        "RFC 7143 §4.2.2.1",
        "commands are delivered by CmdSN, whichever connection they come on",
        order,
    ),
    writing(
        "mcs-order-writes",
        "RFC 7143 §4.2.2.1",
        "the later write wins, whichever connection is faster",
        later_write_wins,
    ),
    case("mcs-window", "RFC 7143 §4.2.2.1", "all connections tell of one window", one_window),
    case("mcs-stat-sn", "RFC 7143 §4.2.2.2", "StatSN counts for each connection alone", stat_sn),
    case(
        "mcs-too-many",
        "RFC 7143 §11.13.5, §13.2",
        "more connections than were agreed on are refused",
        too_many,
    ),
    case("mcs-sixteen", "RFC 7143 §6.3.1", "sixteen connections may come and go", come_and_go),
    case("mcs-logout-other", "RFC 7143 §11.14", "one connection can log another out", logout_other),
    case(
        "mcs-lost",
        "RFC 7143 §4.2.5.1, §7.1.5",
        "a session outlives one of its connections at level 2",
        outlives,
    ),
    case(
        "mcs-immediate",
        "RFC 7143 §4.2.2.1",
        "immediate requests do not wait for other connections",
        immediate,
    ),
];

/// Logs in with two connections in one session, and warms both up.
fn pair(fixture: &mut Fixture, keys: &[(&str, &str)]) -> Outcome<(Conn, Conn)> {
    let keys = [keys, &[("MaxConnections", "4")]].concat();
    let mut one = fixture.start(&keys)?;
    need!(one.params.max_connections > 1, "the target allows one connection per session");
    let mut two = fixture.join(&one, 2)?;
    two.warm_up()?;
    one.warm_up()?;
    Ok((one, two))
}

fn joins(fixture: &mut Fixture) -> Outcome {
    let (one, two) = pair(fixture, &[])?;
    let Some(last) = two.responses.last() else { fail!("no Login Response came") };
    let tsih = one.nexus.borrow().tsih;
    require!(last.tsih == tsih, "the second connection gets TSIH {:x}, the session has {tsih:x}", last.tsih);
    Ok(())
}

/// Makes two reads in order, one for each connection, and sends the second first. Returns both.
fn crossed(one: &mut Conn, two: &mut Conn) -> Outcome<(ScsiCommand, ScsiCommand)> {
    let (early, late) = (one.read(1), two.read(1));
    two.send(&late, &[]);
    two.expect_nothing(SILENCE, "a command must wait for those with lower CmdSN")?;
    one.send(&early, &[]);
    Ok((early, late))
}

fn order(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = pair(fixture, &[])?;
    for _ in 0..3 {
        let (early, late) = crossed(&mut one, &mut two)?;
        one.finish_read(&early, "the READ with the lower CmdSN")?;
        two.finish_read(&late, "the READ with the higher CmdSN")?;
    }
    Ok(())
}

fn later_write_wins(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = pair(fixture, &[("ImmediateData", "Yes")])?;
    need!(one.params.immediate_data, "the target insists on ImmediateData=No");
    let (first, second) = (pattern(110, one.block()), pattern(111, one.block()));
    let early = one.write(1);
    let ordered = transport::command::TaskAttribute::ORDERED;
    let late = ScsiCommand { attribute: ordered, ..two.write(1) };
    two.send(&late, &second);
    one.send(&early, &first);
    one.finish(&early, &first)?.good("the WRITE with the lower CmdSN")?;
    two.finish(&late, &second)?.good("the WRITE with the higher CmdSN")?;
    let back = one.read_blocks(1)?;
    require!(back.data == second, "the write with the lower CmdSN was done last");
    Ok(())
}

fn one_window(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = pair(fixture, &[])?;
    let mut exp = None;
    for index in 0..8 {
        let conn = if index % 2 == 0 { &mut one } else { &mut two };
        let done = conn.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
        let told = done.last.word(28);
        let expected = conn.this_cmd_sn();
        require!(told == expected.0, "ExpCmdSN is {told:x} after {:x} was due; before {exp:x?}", expected.0);
        // ExpCmdSN counts the commands of all connections, so that a MaxCmdSN of one connection alone falls
        // behind it.
        let max = CmdSn(done.last.word(32));
        require!(
            !max.before(expected.minus(1)),
            "MaxCmdSN is {:x}, before ExpCmdSN - 1 of the session, which is {:x}",
            max.0,
            expected.minus(1).0
        );
        exp = Some(told);
    }
    Ok(())
}

fn stat_sn(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = pair(fixture, &[])?;
    for index in 0..6 {
        let conn = if index % 3 == 0 { &mut one } else { &mut two };
        conn.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    }
    for conn in [&one, &two] {
        let numbers: Vec<u32> =
            conn.seen.iter().filter(|pdu| consumes_stat_sn(pdu)).map(|pdu| pdu.word(24)).collect();
        let consecutive = numbers.windows(2).all(|pair| match pair {
            [before, after] => *after == before.wrapping_add(1),
            _ => true,
        });
        require!(consecutive, "StatSN of one connection jumps: {numbers:x?}");
    }
    Ok(())
}

fn too_many(fixture: &mut Fixture) -> Outcome {
    let keys = [("MaxConnections", "2")];
    let one = fixture.start(&keys)?;
    let limit = u16::try_from(one.params.max_connections).unwrap_or(u16::MAX);
    let mut others = Vec::new();
    for cid in 2..=limit {
        others.push(fixture.join(&one, cid)?);
    }
    let plan = fixture.join_plan(&one, limit + 1);
    match fixture.try_join(&plan, std::rc::Rc::clone(&one.nexus))? {
        // "Too many connections", or "cannot include in session".
        LoginOutcome::Refused(0x0206 | 0x0208) => Ok(()),
        LoginOutcome::Refused(status) => fail!("expected status 0206, came {status:04x}"),
        LoginOutcome::Closed => fail!("expected status 0206; the connection was closed"),
        LoginOutcome::In(_) => fail!("connection {} is taken, {limit} were agreed on", limit + 1),
    }
}

fn come_and_go(fixture: &mut Fixture) -> Outcome {
    let mut one = fixture.start(&[("MaxConnections", "16")])?;
    let limit = u16::try_from(one.params.max_connections).unwrap_or(u16::MAX).min(16);
    need!(limit > 1, "the target allows one connection per session");
    for _ in 0..2 {
        let mut others = Vec::new();
        for cid in 2..=limit {
            others.push(fixture.join(&one, cid)?);
        }
        for other in &mut others {
            let cid = other.cid;
            let request = other.logout(LogoutReason::CloseConnection, cid);
            other.send(&request, &[]);
            other.expect::<LogoutResponse>(request.itt)?;
        }
    }
    one.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    Ok(())
}

fn logout_other(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = pair(fixture, &[])?;
    let request = one.logout(LogoutReason::CloseConnection, two.cid);
    one.send(&request, &[]);
    let (answer, _) = one.expect::<LogoutResponse>(request.itt)?;
    require!(answer.response.0 == 0, "expected response 0, came {:02x}", answer.response.0);
    require!(two.closes(two.patience)?, "the connection that was logged out stays open");
    one.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    Ok(())
}

fn outlives(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = pair(fixture, &[("ErrorRecoveryLevel", "2")])?;
    need!(one.params.erl == 2, "the target agrees to ErrorRecoveryLevel={} only", one.params.erl);
    two.line.drop_connection();
    std::thread::sleep(SILENCE);
    one.run(cdb::test_unit_ready(), Flow::None, 0, &[])?.good("TEST UNIT READY on the other connection")?;
    Ok(())
}

fn immediate(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = pair(fixture, &[])?;
    // The ping must be answered although a CmdSN before it is missing.
    let early = one.read(1);
    let ping = two.ping(true);
    two.send(&ping, &[]);
    two.expect::<NopIn>(ping.itt)?;
    one.send(&early, &[]);
    one.finish_read(&early, "READ")?;
    Ok(())
}
