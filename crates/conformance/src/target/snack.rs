//! SNACK (RFC 7143 §11.16): the cases `ffp-t-12.*` of the UNH-IOL plan.

use iscsi::pdu::Opcode;
use iscsi::pdu::data_in::DataIn;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::reject::{Reject, RejectReason};
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::snack::SnackKind;

use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::Pdu;

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::numbering::R2T_MODE;
use super::task::piece;

pub(super) const CASES: &[Test] = &[
    writing("ffp-t-12.1", "RFC 7143 §11.16", "an R2T is sent again on request", r2t_again),
    case("ffp-t-12.2", "RFC 7143 §11.16", "one Data-In is sent again on request", data_again),
    case("ffp-t-12.3", "RFC 7143 §11.16.1", "all Data-In is sent again on request", all_data_again),
    writing(
        "ffp-t-12.4",
        "RFC 7143 §11.16, §11.17.2",
        "a SNACK for an R2T that never was is rejected",
        snack_for_nothing,
    ),
];

/// Starts a session at ErrorRecoveryLevel 1, in which lost PDUs can be requested again.
pub(super) fn recovering(fixture: &mut Fixture) -> Outcome<Conn> {
    let keys = [R2T_MODE.as_slice(), &[("ErrorRecoveryLevel", "1")]].concat();
    let conn = fixture.start(&keys)?;
    need!(conn.params.erl >= 1, "the target agrees to ErrorRecoveryLevel=0 only, where SNACK does not exist");
    Ok(conn)
}

/// Fails unless `again` equals `first`, except for the counters, which must be current (§11.16).
pub(super) fn is_replica(first: &Pdu, again: &Pdu) -> Outcome {
    let same = |at: usize| first.byte(at) == again.byte(at);
    // Bytes 24 to 35 are StatSN, ExpCmdSN and MaxCmdSN.
    let differs = (0..24).chain(36..48).find(|at| !same(*at));
    if let Some(at) = differs {
        fail!("byte {at} differs: first {}, again {}", first.shown(), again.shown());
    }
    require!(first.data == again.data, "the data differs: first {}, again {}", first.shown(), again.shown());
    Ok(())
}

fn r2t_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let data = pattern(30, 2 * conn.block());
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (_, first) = conn.expect::<R2t>(task.itt)?;
    let snack = conn.snack(SnackKind::DATA_OR_R2T, task.itt, 0, 1);
    conn.send(&snack, &[]);
    let (r2t, again) = conn.expect::<R2t>(task.itt)?;
    is_replica(&first, &again)?;
    conn.answer(&r2t, piece(&data, &r2t)?);
    conn.finish(&task, &data)?.good("the WRITE")?;
    Ok(())
}

/// Sends a read of 8 blocks and returns its first three Data-In PDUs; the status stays unacknowledged.
pub(super) fn three_of_a_read(conn: &mut Conn) -> Outcome<(ScsiCommand, Vec<Pdu>)> {
    let task = conn.read(8);
    conn.send(&task, &[]);
    let mut first = Vec::new();
    for _ in 0..3 {
        let (_, pdu) = conn.expect::<DataIn>(task.itt)?;
        first.push(pdu);
    }
    Ok((task, first))
}

/// Collects Data-In PDUs until every DataSN in `wanted` has been received twice. Returns pairs of first and
/// second.
pub(super) fn twice(
    conn: &mut Conn,
    task: &ScsiCommand,
    wanted: std::ops::Range<u32>,
) -> Outcome<Vec<(Pdu, Pdu)>> {
    loop {
        let of = |sn: u32| {
            let mut came = conn.seen.iter().filter(move |pdu| {
                pdu.itt() == task.itt && pdu.opcode() == Opcode::DATA_IN && pdu.word(36) == sn
            });
            Some((came.next()?.clone(), came.next()?.clone()))
        };
        let pairs: Option<Vec<(Pdu, Pdu)>> = wanted.clone().map(of).collect();
        if let Some(pairs) = pairs {
            return Ok(pairs);
        }
        let pdu = conn.next("a Data-In that was asked for again")?;
        require!(pdu.opcode() != Opcode::REJECT, "expected Data-In again, came {}", pdu.shown());
    }
}

fn data_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let (task, _) = three_of_a_read(&mut conn)?;
    let snack = conn.snack(SnackKind::DATA_OR_R2T, task.itt, 1, 1);
    conn.send(&snack, &[]);
    for (first, again) in twice(&mut conn, &task, 1..2)? {
        is_replica(&first, &again)?;
    }
    Ok(())
}

fn all_data_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let (task, _) = three_of_a_read(&mut conn)?;
    // The whole read: each Data-In carries 1024 bytes.
    let count = task.expected_data_transfer_length / 1024;
    let snack = conn.snack(SnackKind::DATA_OR_R2T, task.itt, 0, 0);
    conn.send(&snack, &[]);
    for (first, again) in twice(&mut conn, &task, 0..3.min(count))? {
        is_replica(&first, &again)?;
    }
    Ok(())
}

fn snack_for_nothing(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let data = pattern(31, 2 * conn.block());
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let snack = conn.snack(SnackKind::DATA_OR_R2T, task.itt, 255, 1);
    conn.send(&snack, &[]);
    let pdu = conn.next("a Reject of the SNACK")?;
    require!(pdu.opcode() == Opcode::REJECT, "expected Reject, came {}", pdu.shown());
    let reject: Reject = pdu.read()?;
    require!(reject.reason == RejectReason::PROTOCOL_ERROR, "expected reason 04, came {}", pdu.shown());
    require!(reject.data_sn.0 == 1, "expected the next R2TSN, 1, in {}", pdu.shown());
    conn.answer(&r2t, piece(&data, &r2t)?);
    conn.finish(&task, &data)?.good("the WRITE")?;
    Ok(())
}
