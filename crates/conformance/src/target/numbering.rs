//! The numbers of commands, statuses, data and R2Ts (RFC 7143 §4.2.2), and connection allegiance of
//! responses: the cases `ffp-t-1.*` to `ffp-t-6.*` of the UNH-IOL plan.

use std::time::Duration;

use iscsi::pdu::Opcode;
use iscsi::pdu::reject::{Reject, RejectReason};
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::serial::CmdSn;

use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::{Damage, Pdu};

use super::Test;
use super::conn::{Conn, consumes_stat_sn};
use super::fixture::Fixture;

pub(super) const CASES: &[Test] = &[
    writing("ffp-t-1.1", "RFC 7143 §4.2.2.1", "MaxCmdSN is never before ExpCmdSN - 1", window_is_legal),
    writing("ffp-t-1.2", "RFC 7143 §4.2.2.1", "a command beyond the window is ignored", beyond_the_window),
    writing("ffp-t-1.3", "RFC 7143 §4.2.2.1", "a command whose number was used is ignored", used_number),
    writing("ffp-t-2.1", "RFC 7143 §4.2.2.2", "StatSN counts every response by one", stat_sn_counts),
    case("ffp-t-3.1", "RFC 7143 §4.2.2.4, §11.7.5", "DataSN of Data-In counts from 0", data_sn_counts),
    writing("ffp-t-4.1", "RFC 7143 §4.2.2.4, §11.8.2", "R2TSN counts from 0", r2t_sn_counts),
    writing(
        "ffp-t-5.1",
        "RFC 7143 §7.2.1, §7.8",
        "a command is accepted at its second try",
        retry_is_accepted,
    ),
    writing("ffp-t-6.1", "RFC 7143 §4.2.5.1", "answers come on the connection of the request", allegiance),
];

/// R2T for all data, with short data segments, as the test plan demands for most cases.
pub(super) const R2T_MODE: [(&str, &str); 3] =
    [("ImmediateData", "No"), ("InitialR2T", "Yes"), ("MaxRecvDataSegmentLength", "1024")];

/// How long a case waits for a target that should ignore something.
pub(super) const SILENCE: Duration = Duration::from_millis(300);

/// Writes two blocks ten times; calls `odd` before the seventh write.
fn ten_writes(fixture: &mut Fixture, odd: fn(&mut Conn) -> Outcome) -> Outcome<Conn> {
    let mut conn = fixture.start(&R2T_MODE)?;
    let data = pattern(1, 2 * conn.block());
    for index in 0..10 {
        if index == 6 {
            odd(&mut conn)?;
        }
        conn.write_blocks(&data)?;
    }
    Ok(conn)
}

fn window_is_legal(fixture: &mut Fixture) -> Outcome {
    let conn = ten_writes(fixture, |_| Ok(()))?;
    let mut latest = None;
    for pdu in &conn.seen {
        let (exp, max) = (CmdSn(pdu.word(28)), CmdSn(pdu.word(32)));
        let least = *latest.get_or_insert(exp);
        require!(!max.before(exp.minus(1)), "MaxCmdSN is before ExpCmdSN - 1 in {}", pdu.shown());
        require!(
            !max.before(least.minus(1)),
            "MaxCmdSN is before an ExpCmdSN told earlier in {}",
            pdu.shown()
        );
        if exp.after(least) {
            latest = Some(exp);
        }
    }
    Ok(())
}

fn beyond_the_window(fixture: &mut Fixture) -> Outcome {
    ten_writes(fixture, |conn| {
        let max = CmdSn(conn.nexus.borrow().max_cmd_sn);
        let itt = conn.itt();
        let stray = ScsiCommand { cmd_sn: max.plus(100), itt, ..stray_write(conn) };
        conn.send(&stray, &[]);
        conn.expect_nothing(SILENCE, "a command beyond MaxCmdSN must be ignored silently")
    })?;
    Ok(())
}

fn used_number(fixture: &mut Fixture) -> Outcome {
    ten_writes(fixture, |conn| {
        let used = conn.this_cmd_sn().minus(1);
        let itt = conn.itt();
        let stray = ScsiCommand { cmd_sn: used, itt, ..stray_write(conn) };
        conn.send(&stray, &[]);
        conn.expect_nothing(SILENCE, "a command whose number was used before must be ignored silently")
    })?;
    Ok(())
}

/// Makes a write without using up its number.
fn stray_write(conn: &mut Conn) -> ScsiCommand {
    let before = conn.this_cmd_sn();
    let stray = conn.write(2);
    conn.nexus.borrow_mut().cmd_sn = before.0;
    stray
}

fn stat_sn_counts(fixture: &mut Fixture) -> Outcome {
    let conn = ten_writes(fixture, |_| Ok(()))?;
    let mut next = None;
    for response in &conn.responses {
        let sn = response.sn.stat_sn.0;
        let expected = next.unwrap_or(sn);
        require!(sn == expected, "a Login Response has StatSN {sn:x}, expected {expected:x}");
        next = Some(sn.wrapping_add(1));
    }
    let mut next = next.unwrap_or_default();
    for pdu in &conn.seen {
        if consumes_stat_sn(pdu) {
            require!(pdu.word(24) == next, "expected StatSN {next:x} in {}", pdu.shown());
            next = next.wrapping_add(1);
        } else if pdu.opcode() != Opcode::DATA_IN {
            require!(pdu.word(24) == next, "expected the next StatSN, {next:x}, in {}", pdu.shown());
        }
    }
    Ok(())
}

/// Fails unless the numbers at offset `at` of these PDUs are 0, 1, 2, ….
pub(super) fn counts_from_zero<'a>(
    pdus: impl Iterator<Item = &'a Pdu>,
    at: usize,
    name: &str,
) -> Outcome<u32> {
    let mut next = 0;
    for pdu in pdus {
        require!(pdu.word(at) == next, "expected {name} {next} in {}", pdu.shown());
        next += 1;
    }
    Ok(next)
}

fn data_sn_counts(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&R2T_MODE)?;
    let tasks = [conn.read(16), conn.read(16), conn.read(16)];
    for task in &tasks {
        conn.send(task, &[]);
    }
    for task in &tasks {
        conn.finish_read(task, "READ")?;
        let data = conn.seen.iter().filter(|pdu| pdu.itt() == task.itt && pdu.opcode() == Opcode::DATA_IN);
        let count = counts_from_zero(data, 36, "DataSN")?;
        require!(count > 1, "the target sends 16 blocks in one PDU, longer than the 1024 bytes we take");
    }
    Ok(())
}

fn r2t_sn_counts(fixture: &mut Fixture) -> Outcome {
    let keys = [R2T_MODE.as_slice(), &[("MaxBurstLength", "512"), ("FirstBurstLength", "512")]].concat();
    let mut conn = fixture.start(&keys)?;
    let tasks = [conn.write(4), conn.write(4), conn.write(4)];
    let data = pattern(4, 4 * conn.block());
    for task in &tasks {
        conn.send(task, &[]);
    }
    for task in &tasks {
        conn.finish(task, &data)?.good("WRITE")?;
        let r2ts = conn.seen.iter().filter(|pdu| pdu.itt() == task.itt && pdu.opcode() == Opcode::R2T);
        let count = counts_from_zero(r2ts, 36, "R2TSN")?;
        require!(count > 1, "4 blocks were asked for by {count} R2T, with MaxBurstLength=512");
    }
    Ok(())
}

fn retry_is_accepted(fixture: &mut Fixture) -> Outcome {
    let keys = [("ImmediateData", "Yes"), ("ErrorRecoveryLevel", "2"), ("DataDigest", "CRC32C,None")];
    let mut conn = fixture.start(&keys)?;
    need!(conn.params.erl > 0, "the target agrees to ErrorRecoveryLevel=0 only");
    need!(conn.params.data_digest, "the target agrees to DataDigest=None only");
    need!(conn.params.immediate_data, "the target does not take immediate data");
    let data = pattern(5, conn.block());
    let task = conn.write(1);
    conn.send_damaged(&task, &data, Damage::DataDigest);
    let pdu = conn.next("a Reject for the wrong data digest")?;
    require!(pdu.opcode() == Opcode::REJECT, "expected Reject, came {}", pdu.shown());
    let reject: Reject = pdu.read()?;
    require!(reject.reason == RejectReason::DATA_DIGEST_ERROR, "expected reason 02, came {}", pdu.shown());
    conn.send(&task, &data);
    conn.finish(&task, &data)?.good("the retried WRITE")?;
    Ok(())
}

/// Opens two connections in one session, or in two sessions if the target allows only one connection per
/// session.
pub(super) fn two_connections(fixture: &mut Fixture, keys: &[(&str, &str)]) -> Outcome<(Conn, Conn)> {
    let keys = [keys, &[("MaxConnections", "2")]].concat();
    let first = fixture.start(&keys)?;
    let mut second = if first.params.max_connections > 1 {
        fixture.join(&first, 2)?
    } else {
        fixture.record.remark("with two sessions: the target allows one connection per session");
        fixture.start(&keys)?
    };
    second.warm_up()?;
    Ok((first, second))
}

fn allegiance(fixture: &mut Fixture) -> Outcome {
    let (mut one, mut two) = two_connections(fixture, &R2T_MODE)?;
    let data = pattern(6, 2 * one.block());
    let (first, second) = (one.write(2), two.write(2));
    one.send(&first, &[]);
    two.send(&second, &[]);
    one.finish(&first, &data)?.good("WRITE on the first connection")?;
    two.finish(&second, &data)?.good("WRITE on the second connection")?;
    let (first, second) = (one.read(2), two.read(2));
    one.send(&first, &[]);
    two.send(&second, &[]);
    two.finish_read(&second, "READ on the second connection")?;
    one.finish_read(&first, "READ on the first connection")?;
    one.expect_nothing(SILENCE, "more came on the first connection than was asked for")?;
    two.expect_nothing(SILENCE, "more came on the second connection than was asked for")
}
