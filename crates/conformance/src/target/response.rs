//! SCSI Response (RFC 7143 §11.4), digests of commands and data (§7.8), and residual counts: the cases
//! `ffp-t-16.*`, `ffp-t-18.*` and `ffp-t-19.*` of the UNH-IOL plan.

use iscsi::pdu::data_out::DataOut;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::reject::RejectReason;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::{Itt, Opcode};
use transport::initiator::Residual;

use crate::cdb;
use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::{Damage, Pdu, Received};

use super::Test;
use super::conn::{Conn, Flow};
use super::fixture::Fixture;
use super::numbering::{R2T_MODE, SILENCE};
use super::task::{CHECK_CONDITION, piece};
use super::transfer::refusal;

const RETRY: &str = "RFC 7143 §4.2.2.1, §7.2.1";
const UNSOLICITED: &str = "RFC 7143 §4.2.5.2, §11.3.4, §11.4.7.2";

pub(super) const CASES: &[Test] = &[
    case("ffp-t-16.1", "RFC 7143 §11.4.5", "an underflow is told with U and the count", underflow),
    case("ffp-t-16.2", "RFC 7143 §11.4.5", "an overflow is told with O and the count", overflow),
    writing(
        "ffp-t-16.3.1",
        UNSOLICITED,
        "immediate data up to FirstBurstLength, the rest by R2T",
        immediate_then_r2t,
    ),
    writing(
        "ffp-t-16.3.2",
        UNSOLICITED,
        "immediate data beyond FirstBurstLength is refused",
        immediate_beyond,
    ),
    writing("ffp-t-16.3.3", UNSOLICITED, "all data by R2T", all_by_r2t),
    writing(
        "ffp-t-16.3.4",
        UNSOLICITED,
        "immediate data that was not agreed on is refused",
        immediate_unagreed,
    ),
    writing("ffp-t-16.3.5", UNSOLICITED, "all data unsolicited", all_unsolicited),
    writing("ffp-t-16.3.6", UNSOLICITED, "too little unsolicited data is refused", too_little),
    case(
        "ffp-t-16.3.7",
        "RFC 7143 §11.4, SPC-5 §4.2",
        "an unknown operation code is a CHECK CONDITION",
        unknown_opcode,
    ),
    writing("ffp-t-16.4.1", RETRY, "a retry amid its data is discarded", |s| retry_in_progress(s, true)),
    writing("ffp-t-16.4.2", RETRY, "a retry before its data is discarded", |s| retry_in_progress(s, false)),
    writing("ffp-t-16.5", "RFC 7143 §11.4.2", "no response before the last data that is due", response_waits),
    writing(
        "ffp-t-16.6",
        "RFC 7143 §11.4.8",
        "ExpDataSN counts the Data-In PDUs, and is 0 for a command that only writes",
        exp_data_sn,
    ),
    writing(
        "ffp-t-18.1.1",
        "RFC 7143 §7.8",
        "a command with a wrong header digest is discarded",
        header_digest,
    ),
    writing(
        "ffp-t-18.2.1",
        "RFC 7143 §7.8",
        "a command with a wrong data digest is rejected",
        command_data_digest,
    ),
    writing(
        "ffp-t-18.2.2",
        "RFC 7143 §7.8",
        "a Data-Out with a wrong digest is rejected, and the task mended or failed",
        data_out_digest,
    ),
    case("ffp-t-19.1", "RFC 7143 §11.3.4", "no data comes where none is expected", no_data_expected),
];

fn underflow(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[])?;
    let done = conn.run(cdb::inquiry(4096), Flow::Read, 4096, &[])?.good("INQUIRY")?;
    let came = u32::try_from(done.data.len()).unwrap_or_default();
    need!(came < 4096, "the unit returns 4096 bytes and more of INQUIRY data");
    require!(came >= 36, "{came} bytes of INQUIRY data came; the standard data is 36 bytes and more");
    let missing = 4096 - came;
    if done.residual == Residual::None {
        fixture.record.remark("the target does not tell of the underflow, as it may");
        return Ok(());
    }
    require!(
        done.residual == Residual::Underflow(missing),
        "{came} of 4096 bytes came: expected U and {missing}, came {:?}",
        done.residual
    );
    Ok(())
}

fn overflow(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[])?;
    let done = conn.run(cdb::inquiry(36), Flow::Read, 4, &[])?.good("INQUIRY")?;
    require!(done.data.len() == 4, "{} bytes came, 4 were expected", done.data.len());
    if done.residual == Residual::None {
        fixture.record.remark("the target does not tell of the overflow, as it may");
        return Ok(());
    }
    require!(
        done.residual == Residual::Overflow(32),
        "36 bytes are there, 4 were expected: expected O and 32, came {:?}",
        done.residual
    );
    Ok(())
}

/// Starts a session with immediate data and a FirstBurstLength of one block.
fn immediate_session(fixture: &mut Fixture, more: &[(&str, &str)]) -> Outcome<Conn> {
    let block = fixture.unit.block.to_string();
    let keys =
        [&[("ImmediateData", "Yes"), ("InitialR2T", "Yes"), ("FirstBurstLength", &block)], more].concat();
    let conn = fixture.start(&keys)?;
    need!(conn.params.immediate_data, "the target insists on ImmediateData=No");
    need!(conn.params.send_max >= conn.block(), "the target takes {} bytes in a PDU", conn.params.send_max);
    Ok(conn)
}

fn immediate_then_r2t(fixture: &mut Fixture) -> Outcome {
    let mut conn = immediate_session(fixture, &[])?;
    let data = pattern(70, 2 * conn.block());
    let first = data.get(..conn.block()).unwrap_or_default();
    let task = conn.write(2);
    conn.send(&task, first);
    let (r2t, pdu) = conn.expect::<R2t>(task.itt)?;
    require!(r2t.buffer_offset == conn.unit.block, "the R2T does not go on behind the data: {}", pdu.shown());
    conn.answer(&r2t, piece(&data, &r2t)?);
    conn.finish(&task, &data)?.good("the WRITE")?;
    let back = conn.read_blocks(2)?;
    require!(back.data == data, "other data is read back than was written");
    Ok(())
}

fn immediate_beyond(fixture: &mut Fixture) -> Outcome {
    let mut conn = immediate_session(fixture, &[])?;
    need!(
        conn.params.send_max >= 2 * conn.block(),
        "the target takes {} bytes in a PDU",
        conn.params.send_max
    );
    let data = pattern(71, 2 * conn.block());
    let task = conn.write(2);
    conn.send(&task, &data);
    refusal(&mut conn, &task, None, "immediate data beyond FirstBurstLength")
}

fn all_by_r2t(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let data = pattern(72, 2 * conn.block());
    conn.write_blocks(&data)?;
    let back = conn.read_blocks(2)?;
    require!(back.data == data, "other data is read back than was written");
    Ok(())
}

/// Checks ExpDataSN in the response of a write with R2Ts, and in that of a read of the same blocks, unless
/// the last Data-In carries the status.
fn exp_data_sn(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let data = pattern(74, 2 * conn.block());
    let said = conn.write_blocks(&data)?.exp_data_sn();
    require!(said == Some(0), "no Data-In was sent for the write, ExpDataSN is {said:?}");
    let done = conn.read_blocks(2)?;
    match done.exp_data_sn() {
        None => fixture.record.remark("the status of the read rides on its data"),
        Some(said) => {
            require!(said == done.data_ins, "{} Data-In were sent, ExpDataSN is {said}", done.data_ins);
        }
    }
    Ok(())
}

fn immediate_unagreed(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let data = pattern(73, 2 * conn.block());
    need!(conn.params.send_max >= data.len(), "the target takes {} bytes in a PDU", conn.params.send_max);
    let task = conn.write(2);
    conn.send(&task, &data);
    refusal(&mut conn, &task, Some(0x0c0c), "immediate data with ImmediateData=No")
}

/// Starts a session with unsolicited Data-Out.
fn unsolicited_session(fixture: &mut Fixture) -> Outcome<Conn> {
    let two = (2 * fixture.unit.block).to_string();
    let keys = [("ImmediateData", "No"), ("InitialR2T", "No"), ("FirstBurstLength", &*two)];
    let conn = fixture.start(&keys)?;
    need!(!conn.params.initial_r2t, "the target insists on InitialR2T=Yes");
    Ok(conn)
}

fn all_unsolicited(fixture: &mut Fixture) -> Outcome {
    let mut conn = unsolicited_session(fixture)?;
    let data = pattern(74, 2 * conn.block());
    let task = ScsiCommand { is_final: false, ..conn.write(2) };
    conn.send(&task, &[]);
    let head = conn.unsolicited(&task, 0, 0, true);
    conn.send(&head, &data);
    let done = conn.finish(&task, &data)?.good("the WRITE")?;
    let r2t = conn.seen.iter().find(|pdu| pdu.opcode() == Opcode::R2T && pdu.itt() == task.itt);
    require!(r2t.is_none(), "an R2T asks for data that came unsolicited, before {}", done.last.shown());
    let back = conn.read_blocks(2)?;
    require!(back.data == data, "other data is read back than was written");
    Ok(())
}

fn too_little(fixture: &mut Fixture) -> Outcome {
    let mut conn = unsolicited_session(fixture)?;
    let data = pattern(75, conn.block());
    // Unsolicited data shorter than FirstBurstLength is an error only if the command has more data than that.
    let task = ScsiCommand { is_final: false, ..conn.write(4) };
    conn.send(&task, &[]);
    let head = conn.unsolicited(&task, 0, 0, true);
    conn.send(&head, &data);
    refusal(&mut conn, &task, Some(0x0c0d), "less unsolicited data than FirstBurstLength")
}

fn unknown_opcode(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("InitialR2T", "No")])?;
    let task = conn.command(cdb::unknown(), Flow::None, 0);
    conn.send(&task, &[]);
    let done = conn.finish(&task, &[])?;
    require!(done.status == CHECK_CONDITION, "expected CHECK CONDITION, came {}", done.shown());
    require!(done.sense_code() == Some((5, 0x2000)), "expected sense 5/2000, came {}", done.shown());
    Ok(())
}

fn retry_in_progress(fixture: &mut Fixture, amid: bool) -> Outcome {
    let mut conn = fixture.start(&R2T_MODE)?;
    let data = pattern(76, 2 * conn.block());
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let asked = piece(&data, &r2t)?;
    let (first, rest) = asked.split_at(asked.len().min(512));
    if amid {
        let head = conn.data_out(&r2t, 0, r2t.buffer_offset, false);
        conn.send(&head, first);
    }
    conn.send(&task, &[]);
    conn.expect_nothing(SILENCE, "a retry of a command in progress must be discarded silently")?;
    if amid {
        let head = conn.data_out(&r2t, 1, r2t.buffer_offset + 512, true);
        conn.send(&head, rest);
    } else {
        conn.answer(&r2t, asked);
    }
    conn.finish(&task, &data)?.good("the WRITE that was retried in vain")?;
    conn.expect_nothing(SILENCE, "one command has one response")
}

fn response_waits(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let blocks = u16::try_from(2048_u32.div_ceil(conn.unit.block)).unwrap_or(1);
    let task = conn.write(blocks);
    let data = pattern(77, usize::from(blocks) * conn.block());
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let asked = piece(&data, &r2t)?;
    let head = conn.data_out(&r2t, 0, r2t.buffer_offset, false);
    let foreign = DataOut { itt: Itt(task.itt.0 + 1), ..head };
    conn.send(&foreign, asked.get(..512).unwrap_or_default());
    // A Reject may arrive, but no response yet.
    match conn.receive_within(SILENCE)? {
        Received::Pdu(pdu) => {
            require!(pdu.opcode() == Opcode::REJECT, "expected Reject or nothing, came {}", pdu.shown());
        }
        Received::Closed => {
            fixture.record.remark("the target ends the connection, as it may at level 0");
            return Ok(());
        }
        Received::Nothing => {}
    }
    let pieces: Vec<&[u8]> = asked.chunks(512).collect();
    let mut offset = r2t.buffer_offset;
    for (sn, piece) in (0u32..).zip(&pieces) {
        let last = usize::try_from(sn + 1).is_ok_and(|sent| sent == pieces.len());
        if last {
            conn.expect_nothing(SILENCE, "the last data is not there yet")?;
        }
        let head = conn.data_out(&r2t, sn, offset, last);
        conn.send(&head, piece);
        offset += 512;
    }
    conn.finish_despite_rejects(&task, &data)?;
    Ok(())
}

fn header_digest(fixture: &mut Fixture) -> Outcome {
    let keys = [("HeaderDigest", "CRC32C,None")];
    let mut conn = immediate_session(fixture, &keys)?;
    need!(conn.params.header_digest, "the target agrees to HeaderDigest=None only");
    let data = pattern(78, conn.block());
    let task = conn.write(2);
    conn.send_damaged(&task, &data, Damage::HeaderDigest);
    match conn.receive_within(SILENCE)? {
        Received::Nothing => Ok(()),
        Received::Closed => {
            fixture.record.remark("the target ends the connection, as it may");
            Ok(())
        }
        Received::Pdu(pdu) if pdu.opcode() == Opcode::ASYNC_MESSAGE => Ok(()),
        Received::Pdu(pdu) => {
            fail!("a PDU with a wrong header digest must be discarded, came {}", pdu.shown())
        }
    }
}

/// Waits for the Reject of a data digest error. Returns `None` if the target closes the connection, as level
/// 0 allows.
pub(super) fn digest_reject(conn: &mut Conn) -> Outcome<Option<Pdu>> {
    let pdu = match conn.receive_within(conn.patience)? {
        Received::Pdu(pdu) if pdu.opcode() == Opcode::R2T => {
            // A recovery R2T may overtake the Reject.
            let reject = digest_reject(conn);
            conn.put_back(pdu);
            return reject;
        }
        Received::Pdu(pdu) => pdu,
        Received::Closed if conn.params.erl == 0 => {
            conn.line.record().remark("the target ends the connection, as it may at level 0");
            return Ok(None);
        }
        Received::Closed => {
            fail!("the connection ends because of a data digest error, at level {}", conn.params.erl)
        }
        Received::Nothing => fail!("expected a Reject for the wrong data digest; nothing came"),
    };
    require!(pdu.opcode() == Opcode::REJECT, "expected Reject, came {}", pdu.shown());
    let reason = RejectReason(pdu.byte(2));
    require!(reason == RejectReason::DATA_DIGEST_ERROR, "expected reason 02, came {}", pdu.shown());
    Ok(Some(pdu))
}

fn command_data_digest(fixture: &mut Fixture) -> Outcome {
    let keys = [("DataDigest", "CRC32C,None")];
    let mut conn = immediate_session(fixture, &keys)?;
    need!(conn.params.data_digest, "the target agrees to DataDigest=None only");
    let data = pattern(79, conn.block());
    let task = conn.write(2);
    conn.send_damaged(&task, &data, Damage::DataDigest);
    if digest_reject(&mut conn)?.is_none() {
        return Ok(());
    }
    conn.expect_nothing(SILENCE, "the command was rejected: no R2T and no status may follow")
}

fn data_out_digest(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("DataDigest", "CRC32C,None"), ("ErrorRecoveryLevel", "1")])?;
    need!(conn.params.data_digest, "the target agrees to DataDigest=None only");
    let data = pattern(80, 2 * conn.block());
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let asked = piece(&data, &r2t)?;
    let (first, rest) = asked.split_at(asked.len().min(512));
    let head = conn.data_out(&r2t, 0, r2t.buffer_offset, false);
    conn.send_damaged(&head, first, Damage::DataDigest);
    if digest_reject(&mut conn)?.is_none() {
        return Ok(());
    }
    let early = conn.receive_within(SILENCE)?;
    if let Received::Pdu(pdu) = &early {
        require!(pdu.opcode() == Opcode::R2T, "F is still to come, but came {}", pdu.shown());
        conn.put_back(pdu.clone());
    }
    let head = conn.data_out(&r2t, 1, r2t.buffer_offset + 512, true);
    conn.send(&head, rest);
    let done = conn.finish_despite_rejects(&task, &data)?;
    if done.is_good() {
        let back = conn.read_blocks(2)?;
        require!(back.data == data, "the damaged data was written");
        return Ok(());
    }
    require!(
        done.sense_code() == Some((0xb, 0x4705)),
        "expected a recovery R2T or sense b/4705, came {}",
        done.shown()
    );
    Ok(())
}

fn no_data_expected(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&R2T_MODE)?;
    let task = ScsiCommand { read: true, ..conn.command(cdb::read_capacity(), Flow::Read, 0) };
    conn.send(&task, &[]);
    let done = conn.finish(&task, &[])?;
    require!(done.data.is_empty(), "{} bytes came, none were expected", done.data.len());
    let data = conn
        .seen
        .iter()
        .find(|pdu| pdu.itt() == task.itt && !pdu.data.is_empty() && pdu.opcode() == Opcode::DATA_IN);
    require!(data.is_none(), "Data-In with data came");
    Ok(())
}
