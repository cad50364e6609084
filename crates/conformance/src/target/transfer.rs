//! Data transfer: unsolicited data, transfer tags, Data-In, R2T. The cases `ffp-t-7.*` to `ffp-t-10.*` of the
//! UNH-IOL plan.

use iscsi::pdu::data_in::DataIn;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::{Itt, Opcode, Ttt};

use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::{Pdu, Received};

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::numbering::{R2T_MODE, counts_from_zero};
use super::task::{CHECK_CONDITION, GOOD};

pub(super) const CASES: &[Test] = &[
    writing(
        "ffp-t-7.1",
        "RFC 7143 §4.2.5.2, §11.4.7.2",
        "more data than an R2T asked for is refused",
        beyond_r2t,
    ),
    writing(
        "ffp-t-7.2",
        "RFC 7143 §4.2.5.2, §11.4.7.2",
        "more data than FirstBurstLength is refused",
        beyond_burst,
    ),
    writing("ffp-t-8.1", "RFC 7143 §4.2.5.3, §11.8.5", "an R2T carries a transfer tag and the LUN", r2t_tag),
    case("ffp-t-8.2", "RFC 7143 §11.7.4", "Data-In without A has neither transfer tag nor LUN", data_in_tag),
    case("ffp-t-9.1", "RFC 7143 §11.7.3", "status on Data-In is final and no exception", status_on_data),
    case("ffp-t-9.2", "RFC 7143 §11.7.1", "the last Data-In of a sequence has F set", last_is_final),
    case(
        "ffp-t-9.3.1",
        "RFC 7143 §11.7.7, §13.12",
        "Data-In keeps within our MaxRecvDataSegmentLength",
        short_segments,
    ),
    writing("ffp-t-9.3.2", "RFC 7143 §11.7.7", "a Data-Out of no bytes is no error", empty_data_out),
    case("ffp-t-9.3.3", "RFC 7143 §11.7", "Data-In is whole words until F", whole_words),
    case(
        "ffp-t-9.4",
        "RFC 7143 §4.2.2.4, §11.7.5",
        "DataSN of Data-In counts within its command",
        data_sn_in_command,
    ),
    case("ffp-t-9.5", "RFC 7143 §11.7.6", "Buffer Offset of Data-In is right and grows", offsets_grow),
    writing("ffp-t-10.1", "RFC 7143 §11.8", "R2Ts are well-formed and cover the data in order", r2ts_cover),
];

/// Fails unless the target refuses a task that broke a rule. A refusal is a SCSI Response other than GOOD (a
/// CHECK CONDITION must report ABORTED COMMAND with the additional sense code `sense`, if given), a Reject,
/// an Asynchronous Message such as a logout request, or the end of the connection. Success and silence are no
/// refusal.
pub(super) fn refusal(conn: &mut Conn, task: &ScsiCommand, sense: Option<u16>, what: &str) -> Outcome {
    loop {
        let pdu = match conn.receive_within(conn.patience)? {
            Received::Closed => return Ok(()),
            Received::Nothing => {
                fail!("{what}: expected CHECK CONDITION or the end of the connection; nothing came")
            }
            Received::Pdu(pdu) => pdu,
        };
        match pdu.opcode() {
            Opcode::REJECT | Opcode::ASYNC_MESSAGE => return Ok(()),
            Opcode::R2T if pdu.itt() == task.itt => {
                // The target may send the refusal only after all data that its R2Ts asked for (§11.4.2).
                let r2t: R2t = pdu.read()?;
                let len = usize::try_from(r2t.desired_data_transfer_length).unwrap_or_default();
                conn.answer(&r2t, &pattern(3, len));
            }
            Opcode::SCSI_RESPONSE if pdu.itt() == task.itt => {
                let (response, status) = (pdu.byte(2), pdu.byte(3));
                require!(response != 0 || status != GOOD, "{what}: the target answers GOOD");
                let code = crate::cdb::sense(pdu.data.get(2..).unwrap_or_default());
                if let (Some(wanted), CHECK_CONDITION) = (sense, status) {
                    let (key, asc) = code.unwrap_or_default();
                    require!(
                        (key, asc) == (0xb, wanted),
                        "{what}: expected sense b/{wanted:04x}, came {key:x}/{asc:04x}"
                    );
                }
                return Ok(());
            }
            _ => fail!("{what}: expected CHECK CONDITION, came {}", pdu.shown()),
        }
    }
}

fn beyond_r2t(fixture: &mut Fixture) -> Outcome {
    let keys = [R2T_MODE.as_slice(), &[("MaxBurstLength", "512"), ("FirstBurstLength", "512")]].concat();
    let mut conn = fixture.start(&keys)?;
    need!(
        conn.params.send_max >= 1024,
        "the target takes no more than {} bytes in a PDU",
        conn.params.send_max
    );
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let asked = usize::try_from(r2t.desired_data_transfer_length).unwrap_or_default();
    let data = pattern(7, asked + 512);
    let head = conn.data_out(&r2t, 0, r2t.buffer_offset, true);
    conn.send(&head, &data);
    refusal(&mut conn, &task, None, "more data than the R2T asked for")
}

fn beyond_burst(fixture: &mut Fixture) -> Outcome {
    let keys = [("ImmediateData", "No"), ("InitialR2T", "No"), ("FirstBurstLength", "512")];
    let mut conn = fixture.start(&keys)?;
    need!(!conn.params.initial_r2t, "the target insists on InitialR2T=Yes");
    let data = pattern(8, 1024);
    let task = ScsiCommand { is_final: false, ..conn.write(4) };
    conn.send(&task, &[]);
    let pieces: Vec<&[u8]> = data.chunks(conn.params.send_max.min(1024)).collect();
    let mut offset = 0;
    for (sn, piece) in (0u32..).zip(&pieces) {
        let is_final = usize::try_from(sn + 1).is_ok_and(|sent| sent == pieces.len());
        let head = conn.unsolicited(&task, sn, offset, is_final);
        conn.send(&head, piece);
        offset += u32::try_from(piece.len()).unwrap_or_default();
    }
    refusal(&mut conn, &task, None, "more unsolicited data than FirstBurstLength")
}

fn r2t_tag(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[("InitialR2T", "No"), ("ImmediateData", "No")])?;
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, pdu) = conn.expect::<R2t>(task.itt)?;
    require!(r2t.ttt != Ttt::NONE, "the transfer tag is the reserved value in {}", pdu.shown());
    require!(r2t.lun == task.lun, "LUN {:016x} in the R2T, {:016x} in the command", r2t.lun, task.lun);
    let data = pattern(9, 2 * conn.block());
    conn.answer(&r2t, super::task::piece(&data, &r2t)?);
    conn.finish(&task, &data)?.good("WRITE")?;
    Ok(())
}

/// Reads 16 blocks in a session with these keys and returns the Data-In PDUs.
fn read_with(fixture: &mut Fixture, keys: &[(&str, &str)]) -> Outcome<Vec<Pdu>> {
    let mut conn = fixture.start(keys)?;
    conn.read_blocks(16)?;
    let itt = conn.seen.last().map_or(Itt::NONE, Pdu::itt);
    Ok(conn.seen.into_iter().filter(|pdu| pdu.itt() == itt && pdu.opcode() == Opcode::DATA_IN).collect())
}

fn data_in_tag(fixture: &mut Fixture) -> Outcome {
    for pdu in read_with(fixture, &[("InitialR2T", "No"), ("ErrorRecoveryLevel", "1")])? {
        let head: DataIn = pdu.read()?;
        if head.acknowledge {
            require!(head.ttt != Ttt::NONE, "A is set without a transfer tag in {}", pdu.shown());
            continue;
        }
        require!(head.ttt == Ttt::NONE, "A is clear, but a transfer tag is there: {}", pdu.shown());
        require!(head.lun == 0, "A is clear, but the reserved LUN field is {:016x}", head.lun);
    }
    Ok(())
}

fn status_on_data(fixture: &mut Fixture) -> Outcome {
    let mut carried = false;
    for pdu in read_with(fixture, &[])? {
        if pdu.flags() & 1 != 0 {
            require!(pdu.flags() & 0x80 != 0, "S without F in {}", pdu.shown());
            let status = pdu.byte(3);
            require!(matches!(status, 0 | 4 | 0x10 | 0x14), "an exception rides on data: {}", pdu.shown());
            carried = true;
        }
    }
    if !carried {
        fixture.record.remark("the target sends status apart from data, as it may");
    }
    Ok(())
}

fn last_is_final(fixture: &mut Fixture) -> Outcome {
    let pdus = read_with(fixture, &R2T_MODE)?;
    let Some(last) = pdus.last() else { fail!("no Data-In came") };
    require!(last.flags() & 0x80 != 0, "F is clear in the last Data-In, {}", last.shown());
    Ok(())
}

fn short_segments(fixture: &mut Fixture) -> Outcome {
    for pdu in read_with(fixture, &[("MaxRecvDataSegmentLength", "512")])? {
        require!(pdu.data.len() <= 512, "longer than the 512 bytes that we take: {}", pdu.shown());
    }
    Ok(())
}

fn empty_data_out(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&R2T_MODE)?;
    let data = pattern(10, conn.block());
    let task = conn.write(1);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let asked = super::task::piece(&data, &r2t)?;
    let head = conn.data_out(&r2t, 0, r2t.buffer_offset, false);
    conn.send(&head, &[]);
    let pieces: Vec<&[u8]> = asked.chunks(conn.params.send_max).collect();
    let mut offset = r2t.buffer_offset;
    for (sn, piece) in (1u32..).zip(&pieces) {
        let head = conn.data_out(&r2t, sn, offset, usize::try_from(sn).is_ok_and(|sn| sn == pieces.len()));
        conn.send(&head, piece);
        offset += u32::try_from(piece.len()).unwrap_or_default();
    }
    conn.finish(&task, &data)?.good("a WRITE whose first Data-Out has no bytes")?;
    Ok(())
}

fn whole_words(fixture: &mut Fixture) -> Outcome {
    let broken = |pdu: &&Pdu| !pdu.data.len().is_multiple_of(4) && pdu.flags() & 0x80 == 0;
    let pdus = read_with(fixture, &R2T_MODE)?;
    if let Some(pdu) = pdus.iter().find(broken) {
        fail!("a segment of broken words without F: {}", pdu.shown());
    }
    // 1022 is no multiple of four: a target that fills its segments completely splits 4-byte words, which it
    // SHOULD NOT.
    if read_with(fixture, &[("MaxRecvDataSegmentLength", "1022")])?.iter().any(|pdu| broken(&pdu)) {
        fixture.record.remark(
            "words are broken if MaxRecvDataSegmentLength is no multiple of four, as a SHOULD allows",
        );
    }
    Ok(())
}

fn data_sn_in_command(fixture: &mut Fixture) -> Outcome {
    let pdus = read_with(fixture, &[("MaxRecvDataSegmentLength", "512")])?;
    let count = counts_from_zero(pdus.iter(), 36, "DataSN")?;
    require!(count > 1, "the target sends 16 blocks in one PDU, longer than the 512 bytes that we take");
    Ok(())
}

fn offsets_grow(fixture: &mut Fixture) -> Outcome {
    let pdus = read_with(fixture, &[("MaxRecvDataSegmentLength", "512")])?;
    require!(pdus.len() > 1, "the target sends 16 blocks in one PDU, longer than the 512 bytes that we take");
    let mut next = 0;
    for pdu in pdus {
        require!(pdu.word(40) == next, "expected Buffer Offset {next:x} in {}", pdu.shown());
        next += u32::try_from(pdu.data.len()).unwrap_or_default();
    }
    Ok(())
}

fn r2ts_cover(fixture: &mut Fixture) -> Outcome {
    let keys = [R2T_MODE.as_slice(), &[("MaxBurstLength", "512"), ("FirstBurstLength", "512")]].concat();
    let mut conn = fixture.start(&keys)?;
    let data = pattern(11, 4 * conn.block());
    let task = ScsiCommand { itt: Itt(0xa2a2_a2a2), ..conn.write(4) };
    let status = conn.exp_stat_sn;
    conn.send(&task, &[]);
    let mut next = 0;
    let total = task.expected_data_transfer_length;
    for sn in 0.. {
        let (r2t, pdu) = conn.expect::<R2t>(task.itt)?;
        let length = r2t.desired_data_transfer_length;
        require!(r2t.r2t_sn.0 == sn, "expected R2TSN {sn} in {}", pdu.shown());
        require!(r2t.ttt != Ttt::NONE, "the transfer tag is the reserved value in {}", pdu.shown());
        require!(pdu.word(24) == status, "expected StatSN to stay {status:x} in {}", pdu.shown());
        require!(r2t.buffer_offset == next, "expected Buffer Offset {next:x} in {}", pdu.shown());
        require!(length <= 512, "more than MaxBurstLength=512 is asked for in {}", pdu.shown());
        conn.answer(&r2t, super::task::piece(&data, &r2t)?);
        next += length;
        if next >= total {
            break;
        }
    }
    conn.finish(&task, &data)?.good("WRITE")?;
    Ok(())
}
