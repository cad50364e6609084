//! Reject (RFC 7143 §11.17): the cases `ffp-t-14.*` of the UNH-IOL plan.

use iscsi::pdu::data_in::DataIn;
use iscsi::pdu::data_out::DataOut;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::reject::Reject;
use iscsi::pdu::snack::{Snack, SnackKind};
use iscsi::pdu::{Bhs, Itt, Opcode, PduHeader};

use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::{Pdu, Received};

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::numbering::R2T_MODE;
use super::snack::recovering;
use super::task::piece;

pub(super) const CASES: &[Test] = &[
    writing(
        "ffp-t-14.1",
        "RFC 7143 §7.3, §11.17",
        "a Reject of a Data-Out with a foreign tag is well-formed",
        foreign_tag,
    ),
    case("ffp-t-14.2", "RFC 7143 §11.16, §11.17", "a DataACK that is none is rejected", bad_data_ack),
    writing(
        "ffp-t-14.3",
        "RFC 7143 §11.16, §11.17",
        "a Reject of a SNACK at level 0 is well-formed",
        snack_at_level_0,
    ),
];

/// Fails unless a Reject is well-formed: it contains the rejected header, and no task tag.
pub(super) fn well_formed(pdu: &Pdu, rejected: &Bhs) -> Outcome<Reject> {
    let reject: Reject = pdu.read()?;
    let copy = pdu.data.get(..48).unwrap_or_default();
    // Leave out the length fields: the stream sets them when it sends, so `rejected` does not hold them.
    let same = copy.len() == 48
        && (0..48).filter(|at| !(4..8).contains(at)).all(|at| copy.get(at) == rejected.bytes().get(at));
    require!(same, "the Reject does not carry the header of the PDU that it rejects: {}", pdu.shown());
    require!(pdu.itt() == Itt::NONE, "bytes 16 to 19 of a Reject are ffffffff, not {:08x}", pdu.itt().0);
    require!(reject.reason.0 != 0, "the reason 00 is not defined: {}", pdu.shown());
    Ok(reject)
}

fn foreign_tag(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&R2T_MODE)?;
    let data = pattern(50, 2 * conn.block());
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let asked = piece(&data, &r2t)?;
    let head = conn.data_out(&r2t, 0, r2t.buffer_offset, true);
    let foreign = DataOut { itt: Itt(0x0bad_0bad), ..head };
    conn.send(&foreign, asked.get(..512).unwrap_or_default());
    let reject = match conn.receive_within(super::numbering::SILENCE)? {
        Received::Nothing => None,
        Received::Closed => {
            fixture.record.remark("the target ends the connection, as it may at level 0");
            return Ok(());
        }
        Received::Pdu(pdu) => {
            require!(pdu.opcode() == Opcode::REJECT, "expected Reject or nothing, came {}", pdu.shown());
            well_formed(&pdu, &foreign.encode())?;
            Some(pdu)
        }
    };
    conn.answer(&r2t, asked);
    let done = conn.finish(&task, &data)?;
    match reject {
        Some(pdu) => {
            let next = pdu.word(24).wrapping_add(1);
            require!(
                done.stat_sn == next,
                "StatSN {:x} follows that of the Reject, expected {next:x}",
                done.stat_sn
            );
            require!(
                pdu.word(28) == task.cmd_sn.next().0,
                "ExpCmdSN is not the current one in {}",
                pdu.shown()
            );
        }
        None => fixture.record.remark("the target passes over the foreign Data-Out, as it may"),
    }
    // The transfer tag was valid, so the target may also treat the task as damaged.
    require!(done.is_good() || done.sense_code().is_some_and(|(key, _)| key == 0xb), "came {}", done.shown());
    Ok(())
}

fn bad_data_ack(fixture: &mut Fixture) -> Outcome {
    let mut conn = recovering(fixture)?;
    let task = conn.read(8);
    conn.send(&task, &[]);
    let (_, first) = conn.expect::<DataIn>(task.itt)?;
    let exp_cmd_sn = first.word(28);
    let snack = Snack { tag: 0x0bad_0bad, ..conn.snack(SnackKind::DATA_ACK, task.itt, 1, 0) };
    conn.send(&snack, &[]);
    let done = conn.finish_despite_rejects(&task, &[])?.good("the READ")?;
    let reject = match conn.seen.iter().rev().find(|pdu| pdu.opcode() == Opcode::REJECT) {
        Some(pdu) => pdu.clone(),
        None => conn.next("a Reject of the DataACK")?,
    };
    require!(reject.opcode() == Opcode::REJECT, "expected Reject, came {}", reject.shown());
    well_formed(&reject, &snack.encode())?;
    require!(reject.word(28) == exp_cmd_sn, "ExpCmdSN is not the current one in {}", reject.shown());
    let apart = reject.word(24).abs_diff(done.stat_sn);
    require!(apart == 1, "Reject and status have StatSN {:x} and {:x}", reject.word(24), done.stat_sn);
    Ok(())
}

fn snack_at_level_0(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&R2T_MODE)?;
    let data = pattern(51, 2 * conn.block());
    let task = conn.write(2);
    conn.send(&task, &[]);
    let (r2t, first) = conn.expect::<R2t>(task.itt)?;
    let snack = conn.snack(SnackKind::DATA_OR_R2T, task.itt, 0, 1);
    conn.send(&snack, &[]);
    match conn.receive_within(super::numbering::SILENCE)? {
        Received::Closed => {
            fixture.record.remark("the target ends the connection, as it may at level 0");
            return Ok(());
        }
        Received::Nothing => fixture.record.remark("the target passes over the SNACK"),
        Received::Pdu(pdu) if pdu.opcode() == Opcode::R2T => {
            super::snack::is_replica(&first, &pdu)?;
            fixture.record.remark("the target sends the R2T again even at level 0");
        }
        Received::Pdu(pdu) => {
            require!(pdu.opcode() == Opcode::REJECT, "expected Reject, came {}", pdu.shown());
            well_formed(&pdu, &snack.encode())?;
            require!(pdu.word(24) == first.word(24), "StatSN is not the next one in {}", pdu.shown());
            require!(pdu.word(28) == first.word(28), "ExpCmdSN is not the current one in {}", pdu.shown());
        }
    }
    conn.answer(&r2t, piece(&data, &r2t)?);
    conn.finish_despite_rejects(&task, &data)?.good("the WRITE")?;
    for pdu in conn.seen.iter().filter(|pdu| pdu.opcode() == Opcode::REJECT) {
        well_formed(pdu, &snack.encode())?;
    }
    Ok(())
}

impl Conn {
    /// Waits for the status of a command as [`Conn::finish`] does, and ignores a Reject in between.
    pub(super) fn finish_despite_rejects(
        &mut self,
        task: &iscsi::pdu::scsi_command::ScsiCommand,
        out: &[u8],
    ) -> Outcome<super::task::Done> {
        self.passes_rejects = true;
        let done = self.finish(task, out);
        self.passes_rejects = false;
        done
    }
}
