//! MaxRecvDataSegmentLength changes under a command whose data has gaps: R-Data SNACK (RFC 7143 §11.16.3).

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::Duration;
use transport::initiator::{TaskId, TaskResult};

use super::pair::{pattern, read};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::keys::Key;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Bhs, Itt, Opcode, PduHeader, TargetSn, Ttt};
use crate::serial::{DataSn, StatSn};
use crate::text::TextBuilder;

const DIGESTS: [&str; 2] = ["HeaderDigest=CRC32C", "DataDigest=CRC32C"];

/// Declares another length, and has the target accept it.
fn declare(raw: &mut ScriptedTarget, conn: ConnId, len: &str) {
    let mut text = TextBuilder::new();
    text.put(Key::MaxRecvDataSegmentLength.name(), len);
    raw.session.send_text(raw.now, None, text).unwrap();
    raw.drain();
    let request: TextRequest = raw.expect(conn);
    let response = TextResponse {
        is_final: true,
        continues: false,
        lun: 0,
        itt: request.itt,
        ttt: Ttt::NONE,
        sn: raw.next_sn(conn),
    };
    raw.send(conn, &response, &[]);
}

/// A read of 2000 bytes of which the first half arrived and the second was lost; then the length changed, and
/// the status shows the gap. Also returns the StatSN.
fn damaged() -> (ScriptedTarget, ConnId, TaskId, Itt, Vec<u8>, Snack, StatSn) {
    let (mut raw, conn) = ScriptedTarget::level(1, &DIGESTS);
    let data = pattern(3, 2000);
    let (task, command) = raw.start(conn, read(0, 2000));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &data[..1000]);
    declare(&mut raw, conn, "512");
    let response = raw.response(conn, command.itt, 2);
    raw.send(conn, &response, &[]);
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.kind, snack.itt), (SnackKind::R_DATA, command.itt));
    assert_eq!((snack.beg_run, snack.run_length), (0, 0));
    assert!(snack.tag != 0 && snack.tag != Ttt::NONE.0);
    assert_eq!(raw.session.open_tasks(), 1);
    (raw, conn, task, command.itt, data, snack, response.sn.stat_sn)
}

/// Sends all of the data in PDUs of 500 bytes, except those in `left_out`.
fn cut_anew(raw: &mut ScriptedTarget, conn: ConnId, itt: Itt, data: &[u8], left_out: &[u32]) {
    for (sn, piece) in (0..).zip(data.chunks(500)) {
        if !left_out.contains(&sn) {
            let pdu = raw.data_in(conn, itt, sn, sn * 500);
            raw.send(conn, &pdu, piece);
        }
    }
}

/// Returns the response with this SNACK tag, under the StatSN of the response before it.
fn tagged(raw: &mut ScriptedTarget, conn: ConnId, itt: Itt, snack_tag: u32, stat_sn: StatSn) -> ScsiResponse {
    let sn = TargetSn { stat_sn, ..raw.sn(conn) };
    let response = raw.response(conn, itt, 4);
    raw.ends.get_mut(&conn).unwrap().stat_sn -= 1;
    ScsiResponse { sn, snack_tag, ..response }
}

fn acknowledged(raw: &mut ScriptedTarget, conn: ConnId) -> StatSn {
    while raw.receive(conn).is_some() {}
    let (_, next) = raw.start(conn, read(0, 512));
    next.exp_stat_sn
}

#[test]
fn data_is_asked_for_cut_anew_and_only_a_response_with_the_tag_counts() {
    //= rfc7143#section-11.4.4
    //= type=test
    //# After issuing a R-Data SNACK, the initiator must discard any SCSI status unless contained in a SCSI
    //# Response PDU carrying the same SNACK Tag as the last issued R-Data SNACK for the SCSI command on the
    //# current connection.
    //= rfc7143#section-11.16.3
    //= type=test
    //# If the initiator MaxRecvDataSegmentLength changed between the original transmission and the time the
    //# initiator requests retransmission, the initiator MUST issue a R-Data SNACK (see Section 11.16.1).
    let (mut raw, conn, task, itt, data, snack, stat_sn) = damaged();
    assert_eq!(acknowledged(&mut raw, conn), stat_sn, "the target must not forget the data");
    cut_anew(&mut raw, conn, itt, &data, &[]);
    let response = tagged(&mut raw, conn, itt, snack.tag, stat_sn);
    raw.send(conn, &response, &[]);
    let outcome = raw.outcome(task);
    assert!(outcome.end.is_good());
    assert_eq!(outcome.data_in.as_deref(), Some(&data[..]));
    assert_eq!(acknowledged(&mut raw, conn), stat_sn.next());
}

#[test]
fn what_is_lost_of_the_new_cut_is_asked_for_under_a_new_tag() {
    //= rfc7143#section-11.16.5
    //= type=test
    //# For a R-Data SNACK, this field MUST contain a value that is different from 0 or 0xffffffff and is
    //# unique for the task (identified by the Initiator Task Tag).
    //= rfc7143#section-11.16.6
    //= type=test
    //# BegRun MUST be 0 for a R-Data SNACK.
    //= rfc7143#section-11.16.7
    //= type=test
    //# The RunLength MUST also be 0 for a DataACK SNACK in addition to a R-Data SNACK.
    let (mut raw, conn, task, itt, data, first, stat_sn) = damaged();
    cut_anew(&mut raw, conn, itt, &data, &[2, 3]);
    let response = tagged(&mut raw, conn, itt, first.tag, stat_sn);
    raw.send(conn, &response, &[]);
    let second: Snack = raw.expect(conn);
    assert_eq!(second.kind, SnackKind::R_DATA);
    assert_ne!(second.tag, first.tag);
    // The same response again, with the old tag, is outdated.
    raw.send(conn, &response, &[]);
    assert_eq!(raw.session.open_tasks(), 1);
    cut_anew(&mut raw, conn, itt, &data, &[]);
    let response = tagged(&mut raw, conn, itt, second.tag, stat_sn);
    raw.send(conn, &response, &[]);
    assert_eq!(raw.outcome(task).data_in.as_deref(), Some(&data[..]));
}

#[test]
fn a_damaged_piece_of_the_new_cut_never_stands_where_good_bytes_stood() {
    // The first 1000 bytes have arrived. Two segments of the new cut lie among them, one across their end.
    for hurt in 0..3 {
        let (mut raw, conn, task, itt, data, snack, stat_sn) = damaged();
        for (sn, piece) in (0..).zip(data.chunks(400)) {
            let pdu = raw.data_in(conn, itt, sn, sn * 400);
            let mut bytes = raw.frame(conn, pdu.encode(), piece);
            if sn == hurt {
                bytes[100] ^= 0x40;
            }
            raw.feed(conn, &bytes);
        }
        let response = tagged(&mut raw, conn, itt, snack.tag, stat_sn);
        raw.send(conn, &response, &[]);
        if hurt == 2 {
            assert_eq!(raw.session.open_tasks(), 1, "what the damaged piece was to bring is missing");
            let again: Snack = raw.expect(conn);
            assert_eq!(again.kind, SnackKind::R_DATA);
            cut_anew(&mut raw, conn, itt, &data, &[]);
            let response = tagged(&mut raw, conn, itt, again.tag, stat_sn);
            raw.send(conn, &response, &[]);
        }
        let outcome = raw.outcome(task);
        assert!(outcome.end.is_good(), "{hurt}");
        assert_eq!(outcome.data_in.as_deref(), Some(&data[..]), "{hurt}");
        assert_eq!(raw.session.stats().data_digest_errors, 1);
    }
}

#[test]
fn a_target_that_does_not_cut_anew_is_given_up() {
    let (mut raw, conn, task, _, _, snack, _) = damaged();
    let reject = Reject { reason: RejectReason::PROTOCOL_ERROR, sn: raw.next_sn(conn), data_sn: DataSn(0) };
    let header: Bhs = snack.encode();
    raw.send(conn, &reject, header.bytes());
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::NotRepaired)));
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
}

#[test]
fn a_silent_target_is_asked_again_and_given_up_in_the_end() {
    let (mut raw, conn, task, ..) = damaged();
    raw.pass(Duration::from_secs(60));
    let mut asked = 0;
    while let Some(sent) = raw.receive(conn) {
        asked += u32::from(sent.bhs.opcode() == Opcode::SNACK);
    }
    assert!((2..=10).contains(&asked), "{asked}");
    assert_eq!(raw.why().map(|why| matches!(why, ConnectionDown::ProtocolError(_))), Some(true));
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
}

#[test]
fn a_length_that_changes_between_commands_costs_nothing() {
    let (mut raw, conn) = ScriptedTarget::level(1, &DIGESTS);
    declare(&mut raw, conn, "512");
    let data = pattern(3, 1000);
    let (task, command) = raw.start(conn, read(0, 1000));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    let mut bytes = raw.frame(conn, pdu.encode(), &data[..500]);
    bytes[100] ^= 1;
    raw.feed(conn, &bytes);
    assert_eq!(raw.expect::<Snack>(conn).kind, SnackKind::DATA_OR_R2T);
    raw.send(conn, &pdu, &data[..500]);
    let pdu = raw.data_in(conn, command.itt, 1, 500);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &data[500..]);
    assert_eq!(raw.outcome(task).data_in.as_deref(), Some(&data[..]));
}
