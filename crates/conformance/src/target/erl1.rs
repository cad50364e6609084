//! Recovery within a connection (RFC 7143 §7.1, §7.2, §7.8, §11.16): cases written from the RFC's MUSTs.

use iscsi::pdu::Opcode;
use iscsi::pdu::data_in::DataIn;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::reject::RejectReason;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::scsi_response::ScsiResponse;
use iscsi::pdu::snack::{Snack, SnackKind};
use iscsi::serial::StatSn;

use crate::cdb;
use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::{Damage, Pdu, Received};

use super::Test;
use super::conn::{Conn, Flow};
use super::fixture::Fixture;
use super::numbering::{SILENCE, counts_from_zero};
use super::snack::{is_replica, recovering};
use super::task::{missing, piece, store};
use super::text::declare_segment;

const SNACK: &str = "RFC 7143 §11.16";

pub(super) const CASES: &[Test] = &[
    case("erl1-status", SNACK, "a status is sent again on request", status_again),
    case(
        "erl1-status-run",
        SNACK,
        "all statuses not yet acknowledged are sent again on request",
        statuses_again,
    ),
    case("erl1-status-data-in", SNACK, "a status on Data-In is sent again on request", status_on_data_again),
    case("erl1-acknowledged", SNACK, "a SNACK for what was acknowledged is rejected", acknowledged),
    case(
        "erl1-data-ack",
        "RFC 7143 §11.16, §11.7.2",
        "a DataACK is taken, and what it acknowledges is gone",
        data_ack,
    ),
    case(
        "erl1-r-data",
        "RFC 7143 §11.16.3",
        "R-Data brings all data again after a shorter segment was declared",
        r_data,
    ),
    case(
        "erl1-header-command",
        "RFC 7143 §7.8",
        "a command lost to a header digest is taken at the second try",
        header_of_command,
    ),
    writing(
        "erl1-header-data",
        "RFC 7143 §7.8, §7.9",
        "Data-Out lost to a header digest is asked for again",
        header_of_data,
    ),
    writing(
        "erl1-digest-data",
        "RFC 7143 §7.8",
        "Data-Out with a wrong data digest is asked for again",
        digest_of_data,
    ),
    writing(
        "erl1-last-data",
        "RFC 7143 §7.8",
        "the last Data-Out with a wrong data digest is asked for again",
        digest_of_last,
    ),
    writing(
        "erl1-unsolicited",
        "RFC 7143 §7.8",
        "unsolicited data with a wrong digest is asked for again or its task failed",
        unsolicited,
    ),
    writing(
        "erl1-r2t-sn",
        "RFC 7143 §7.9, §11.8",
        "a recovery R2T asks for what is missing only",
        recovery_r2t,
    ),
    writing(
        "erl1-immediate",
        "RFC 7143 §7.2.1, §7.8",
        "a command with damaged immediate data is taken at the second try",
        immediate_again,
    ),
    case("erl1-gap", "RFC 7143 §4.2.2.1", "commands behind a gap wait, and the gap can be plugged", gap),
];

/// Starts a session at ErrorRecoveryLevel 1 with both digests.
fn digested(fixture: &mut Fixture, more: &[(&str, &str)]) -> Outcome<Conn> {
    let own = [("ErrorRecoveryLevel", "1"), ("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
    let conn = fixture.start(&[&own, more].concat())?;
    need!(conn.params.erl >= 1, "the target agrees to ErrorRecoveryLevel=0 only");
    need!(conn.params.header_digest && conn.params.data_digest, "the target does not agree to digests");
    Ok(conn)
}

/// Runs TEST UNIT READY without acknowledging its status.
fn unacknowledged(conn: &mut Conn) -> Outcome<Pdu> {
    let before = conn.exp_stat_sn;
    let task = conn.command(cdb::test_unit_ready(), Flow::None, 0);
    conn.send(&task, &[]);
    let (_, pdu) = conn.expect::<ScsiResponse>(task.itt)?;
    conn.exp_stat_sn = before;
    Ok(pdu)
}

fn status_snack(conn: &Conn, from: u32, count: u32) -> Snack {
    let snack = conn.snack(SnackKind::STATUS, iscsi::pdu::Itt::NONE, from, count);
    Snack { lun: 0, ..snack }
}

fn status_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let first = unacknowledged(&mut conn)?;
    let snack = status_snack(&conn, first.word(24), 1);
    conn.send(&snack, &[]);
    let again = conn.next("the status again")?;
    is_replica(&first, &again)?;
    require!(first.word(24) == again.word(24), "StatSN differs: {:x}, {:x}", first.word(24), again.word(24));
    Ok(())
}

fn statuses_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let from = conn.exp_stat_sn;
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(unacknowledged(&mut conn)?);
    }
    conn.exp_stat_sn = from;
    let snack = status_snack(&conn, from, 0);
    conn.send(&snack, &[]);
    for pdu in &first {
        let again = conn.next("a status again")?;
        is_replica(pdu, &again)?;
        require!(pdu.word(24) == again.word(24), "StatSN differs: {:x}, {:x}", pdu.word(24), again.word(24));
    }
    Ok(())
}

fn status_on_data_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let before = conn.exp_stat_sn;
    let task = conn.read(1);
    conn.send(&task, &[]);
    let done = conn.finish_read(&task, "READ")?;
    conn.exp_stat_sn = before;
    let snack = status_snack(&conn, done.stat_sn, 1);
    conn.send(&snack, &[]);
    let again = conn.next("the status again")?;
    require!(again.itt() == task.itt, "expected the status of the READ again, came {}", again.shown());
    require!(again.word(24) == done.stat_sn, "StatSN differs: {:x}, {:x}", done.stat_sn, again.word(24));
    require!(again.byte(3) == 0, "the status differs: {}", again.shown());
    Ok(())
}

/// Waits for a Reject with this reason.
fn rejected(conn: &mut Conn, reason: RejectReason) -> Outcome {
    let pdu = conn.next("a Reject of the SNACK")?;
    require!(pdu.opcode() == Opcode::REJECT, "expected Reject, came {}", pdu.shown());
    require!(pdu.byte(2) == reason.0, "expected reason {:02x}, came {}", reason.0, pdu.shown());
    Ok(())
}

fn acknowledged(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let done = conn.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    conn.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    // The second command's ExpStatSN has acknowledged the first one's status.
    let snack = status_snack(&conn, done.stat_sn, 1);
    conn.send(&snack, &[]);
    rejected(&mut conn, RejectReason::PROTOCOL_ERROR)
}

fn data_ack(fixture: &mut Fixture) -> Outcome {
    let keys = [
        ("ErrorRecoveryLevel", "1"),
        ("MaxRecvDataSegmentLength", "512"),
        ("MaxBurstLength", "1024"),
        ("FirstBurstLength", "512"),
    ];
    let mut conn = fixture.start(&keys)?;
    need!(conn.params.erl >= 1, "the target agrees to ErrorRecoveryLevel=0 only");
    let known = conn.known_blocks(fixture.options.write, 16)?;
    let before = StatSn(conn.exp_stat_sn);
    let task = conn.read(16);
    conn.send(&task, &[]);
    let (mut data, mut parts) = (Vec::new(), Vec::new());
    // The first DataSN that is not acknowledged, once the target has asked for an acknowledgement.
    let mut acknowledged = None;
    let (mut refused, mut ended) = (false, false);
    while !ended || acknowledged.is_some() && !refused {
        let pdu =
            conn.next_of(task.itt, "Data-In, status, or a Reject of the SNACK for acknowledged data")?;
        match pdu.opcode() {
            Opcode::REJECT => {
                refused = is_of_data_snack(&pdu)?;
                continue;
            }
            Opcode::DATA_IN => {}
            _ => {
                require!(pdu.byte(3) == 0, "expected GOOD, came {}", pdu.shown());
                ended = true;
                continue;
            }
        }
        let head: DataIn = pdu.read()?;
        let is_gone = acknowledged.is_some_and(|next| head.data_sn.before(next));
        require!(!is_gone, "data comes again after it was acknowledged: {}", pdu.shown());
        parts.push(store(&mut data, head.buffer_offset, &pdu.data, task.expected_data_transfer_length)?);
        if head.acknowledge {
            acknowledge(&mut conn, &head);
            if acknowledged.is_none() {
                // The data from DataSN 0 on was acknowledged just now: it cannot be asked for again.
                let again = conn.snack(SnackKind::DATA_OR_R2T, task.itt, 0, 1);
                conn.send(&Snack { exp_stat_sn: before, ..again }, &[]);
            }
            acknowledged = Some(head.data_sn.next());
        }
        ended |= head.status.is_some();
    }
    let gap = missing(&parts, 0..known.len());
    require!(gap.is_none(), "GOOD, but no data came for the bytes from {} on", gap.unwrap_or_default());
    require!(data == known, "the READ returns other data than the blocks contain");
    if acknowledged.is_none() {
        fixture.record.remark("the target asks for no acknowledgement, as it may");
    }
    Ok(())
}

/// Answers a Data-In that asks for an acknowledgement.
fn acknowledge(conn: &mut Conn, head: &DataIn) {
    let snack = Snack {
        kind: SnackKind::DATA_ACK,
        lun: head.lun,
        itt: iscsi::pdu::Itt::NONE,
        tag: head.ttt.0,
        exp_stat_sn: StatSn(conn.exp_stat_sn),
        beg_run: head.data_sn.next().0,
        run_length: 0,
    };
    conn.send(&snack, &[]);
}

/// Judges a Reject after a DataACK and a SNACK for data that it acknowledged: the SNACK alone must be
/// rejected.
fn is_of_data_snack(reject: &Pdu) -> Outcome<bool> {
    let kind = reject.data.get(1).map_or(0, |flags| flags & 0xf);
    require!(kind != SnackKind::DATA_ACK.0, "a right DataACK is rejected: {}", reject.shown());
    let reason = RejectReason(reject.byte(2));
    require!(reason == RejectReason::PROTOCOL_ERROR, "expected reason 04, came {}", reject.shown());
    Ok(true)
}

/// The SNACK tag of an R-Data.
const TAG: u32 = 0x5a5a;

fn r_data(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let known = conn.known_blocks(fixture.options.write, 16)?;
    // The status of the READ may come before the SNACK is sent. The target may forget the task and its data
    // once any PDU acknowledges that status: the answer to a ping does, and so does a text request.
    conn.holds_acknowledgements = true;
    let task = conn.read(16);
    conn.send(&task, &[]);
    conn.expect::<DataIn>(task.itt)?;
    declare_segment(&mut conn, "512")?;
    let snack = conn.snack(SnackKind::R_DATA, task.itt, 0, 0);
    conn.send(&Snack { tag: TAG, ..snack }, &[]);
    // Data and a status that were sent before the SNACK arrived may come first. The last response carries the
    // tag of the SNACK.
    let mut came = Vec::new();
    loop {
        let pdu = conn.next_of(task.itt, "the response that closes the R-Data")?;
        require!(pdu.opcode() != Opcode::REJECT, "R-Data is rejected: {}", pdu.shown());
        if pdu.opcode() == Opcode::DATA_IN {
            came.push(pdu);
        } else if pdu.opcode() == Opcode::SCSI_RESPONSE && pdu.word(20) == TAG {
            require!(pdu.byte(3) == 0, "expected GOOD, came {}", pdu.shown());
            break;
        }
    }
    // Data that comes again is numbered from 0, as nothing was acknowledged (§11.16.3). The first DataSN 0
    // came before the SNACK was sent.
    let Some(begin) = came.iter().rposition(|pdu| pdu.word(36) == 0) else {
        fail!("the data does not come again from DataSN 0")
    };
    let again = came.get(begin..).unwrap_or_default();
    counts_from_zero(again.iter(), 36, "DataSN")?;
    let (mut data, mut parts) = (Vec::new(), Vec::new());
    for pdu in again {
        require!(pdu.data.len() <= 512, "longer than the 512 bytes that we declared: {}", pdu.shown());
        parts.push(store(&mut data, pdu.word(40), &pdu.data, task.expected_data_transfer_length)?);
    }
    let gap = missing(&parts, 0..known.len());
    require!(gap.is_none(), "the bytes from {} on do not come again", gap.unwrap_or_default());
    require!(data == known, "other data comes again than the blocks contain");
    Ok(())
}

/// Accepts the end of the connection. §7.8 allows the target to discard bytes up to a later PDU, or to close
/// the connection.
fn closes(conn: &Conn) -> Outcome {
    conn.line.record().remark("the target ends the connection, as it may");
    Ok(())
}

fn header_of_command(fixture: &mut Fixture) -> Outcome {
    let mut conn = digested(fixture, &[])?;
    let task = conn.read(1);
    conn.send_damaged(&task, &[], Damage::HeaderDigest);
    match conn.receive_within(SILENCE)? {
        Received::Nothing => {}
        Received::Closed => return closes(&conn),
        Received::Pdu(pdu) => {
            fail!("a PDU with a wrong header digest must be discarded, came {}", pdu.shown())
        }
    }
    conn.send(&task, &[]);
    conn.finish_read(&task, "the READ at its second try")?;
    Ok(())
}

/// Writes four blocks in four PDUs and damages the one with number `damaged`; the target must ask for its
/// data again.
fn one_spoilt(fixture: &mut Fixture, damaged: usize, damage: Damage) -> Outcome {
    let mut conn = digested(fixture, &[])?;
    let data = pattern(120, 4 * conn.block());
    let task = conn.write(4);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let asked = piece(&data, &r2t)?;
    let block = conn.block();
    let pieces: Vec<&[u8]> = asked.chunks(block).collect();
    let mut offset = r2t.buffer_offset;
    for (sn, bytes) in pieces.iter().enumerate() {
        let last = sn + 1 == pieces.len();
        let head = conn.data_out(&r2t, u32::try_from(sn).unwrap_or_default(), offset, last);
        conn.send_damaged(&head, bytes, if sn == damaged { damage } else { Damage::None });
        offset += u32::try_from(bytes.len()).unwrap_or_default();
    }
    match conn.receive_within(SILENCE)? {
        Received::Closed if damage == Damage::HeaderDigest => return closes(&conn),
        Received::Pdu(pdu) => conn.put_back(pdu),
        _ => {}
    }
    conn.finish_despite_rejects(&task, &data)?.good("the WRITE whose data was damaged on the way")?;
    let back = conn.read_blocks(4)?;
    require!(back.data == data, "other data is read back than was written");
    Ok(())
}

fn header_of_data(fixture: &mut Fixture) -> Outcome {
    one_spoilt(fixture, 1, Damage::HeaderDigest)
}

fn digest_of_data(fixture: &mut Fixture) -> Outcome {
    one_spoilt(fixture, 1, Damage::DataDigest)
}

fn digest_of_last(fixture: &mut Fixture) -> Outcome {
    one_spoilt(fixture, 3, Damage::DataDigest)
}

fn unsolicited(fixture: &mut Fixture) -> Outcome {
    let two = (2 * fixture.unit.block).to_string();
    let mut conn = digested(fixture, &[("InitialR2T", "No"), ("FirstBurstLength", &two)])?;
    need!(!conn.params.initial_r2t, "the target insists on InitialR2T=Yes");
    let data = pattern(121, 2 * conn.block());
    let task = ScsiCommand { is_final: false, ..conn.write(2) };
    conn.send(&task, &[]);
    let (first, second) = data.split_at(conn.block());
    let head = conn.unsolicited(&task, 0, 0, false);
    conn.send_damaged(&head, first, Damage::DataDigest);
    let head = conn.unsolicited(&task, 1, conn.unit.block, true);
    conn.send(&head, second);
    let done = conn.finish_despite_rejects(&task, &data)?;
    if !done.is_good() {
        let code = done.sense_code();
        require!(code == Some((0xb, 0x4705)), "expected recovery or sense b/4705, came {}", done.shown());
        return Ok(());
    }
    let back = conn.read_blocks(2)?;
    require!(back.data == data, "other data is read back than was written");
    Ok(())
}

fn recovery_r2t(fixture: &mut Fixture) -> Outcome {
    let mut conn = digested(fixture, &[])?;
    let data = pattern(122, 3 * conn.block());
    let task = conn.write(3);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let block = conn.unit.block;
    need!(r2t.desired_data_transfer_length == 3 * block, "the target asks for the data in pieces of its own");
    for sn in 0..3 {
        let begin = usize::try_from(sn * block).unwrap_or_default();
        let bytes = data.get(begin..begin + conn.block()).unwrap_or_default();
        let head = conn.data_out(&r2t, sn, sn * block, sn == 2);
        conn.send_damaged(&head, bytes, if sn == 1 { Damage::DataDigest } else { Damage::None });
    }
    conn.passes_rejects = true;
    let (again, pdu) = conn.expect::<R2t>(task.itt)?;
    conn.passes_rejects = false;
    let covers = again.buffer_offset <= block
        && again.buffer_offset.saturating_add(again.desired_data_transfer_length) >= 2 * block;
    require!(covers, "the recovery R2T does not cover what is missing: {}", pdu.shown());
    require!(again.r2t_sn == r2t.r2t_sn.next(), "a recovery R2T has the next R2TSN: {}", pdu.shown());
    require!(again.ttt != r2t.ttt, "a recovery R2T has a transfer tag of its own: {}", pdu.shown());
    conn.answer(&again, piece(&data, &again)?);
    conn.finish_despite_rejects(&task, &data)?.good("the WRITE")?;
    Ok(())
}

fn immediate_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = digested(fixture, &[("ImmediateData", "Yes")])?;
    need!(conn.params.immediate_data, "the target insists on ImmediateData=No");
    let data = pattern(123, conn.block());
    let task = conn.write(1);
    conn.send_damaged(&task, &data, Damage::DataDigest);
    rejected(&mut conn, RejectReason::DATA_DIGEST_ERROR)?;
    conn.send(&task, &data);
    conn.finish(&task, &data)?.good("the WRITE at its second try")?;
    let back = conn.read_blocks(1)?;
    require!(back.data == data, "other data is read back than was written");
    Ok(())
}

fn gap(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let (first, second) = (conn.read(1), conn.read(1));
    conn.send(&second, &[]);
    conn.expect_nothing(SILENCE, "a command behind a gap must wait")?;
    conn.send(&first, &[]);
    conn.finish_read(&first, "the command that plugs the gap")?;
    conn.finish_read(&second, "the command behind the gap")?;
    Ok(())
}
