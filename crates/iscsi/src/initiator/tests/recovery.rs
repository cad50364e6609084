//! Recovery within a connection, with a scripted target: retransmission at level 1, and detection of a silent
//! target.

use base::state_machine::ConnId;
use base::time::Duration;
use transport::initiator::{InitiatorTransport as _, Request, TaskResult, TmfParameters};
use transport::task_management::{TmfFunction, TmfResult};

use super::pair::{LUN, Setup, cdb, pattern, read, write};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::data_in::DataIn;
use crate::pdu::data_out::DataOut;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Bhs, Itt, PduHeader, Ttt};
use crate::recovery::TransportSense;
use crate::serial::DataSn;

const DIGESTS: [&str; 2] = ["HeaderDigest=CRC32C", "DataDigest=CRC32C"];

#[test]
fn data_with_a_wrong_digest_is_asked_for_again_and_its_status_not_acknowledged_before() {
    //= rfc7143#section-7.8
    //= type=test
    //# When an initiator receives any iSCSI PDU with a payload digest error, it MUST discard the PDU.
    //= rfc7143#section-7.8
    //= type=test
    //# If the discarded PDU is an iSCSI data PDU, the initiator MUST do one of the following:
    //= rfc7143#section-7.9
    //= type=test
    //# If the initiator wants to recover the missing data for a command, it MUST NOT acknowledge the received
    //# responses that start from the StatSN of the relevant command until it has completed receiving all the
    //# data PDUs of the command.
    //= rfc7143#section-11.16.1
    //= type=test
    //# Data/R2T SNACK, Status SNACK, or R-Data SNACK for a command MUST precede status acknowledgment for the
    //# given command.
    //= rfc7143#section-11.16.4
    //= type=test
    //# In all other cases, the Initiator Task Tag field MUST be set to the Initiator Task Tag of the
    //# referenced command.
    let (mut raw, conn) = ScriptedTarget::level(1, &DIGESTS);
    let data = pattern(3, 3000);
    let (task, command) = raw.start(conn, read(0, 3000));
    let stat_sn = raw.sn(conn).stat_sn;
    for (sn, at) in [(0u32, 0usize), (1, 1000), (2, 2000)] {
        let mut pdu = raw.data_in(conn, command.itt, sn, u32::try_from(at).unwrap());
        if sn == 2 {
            pdu = raw.with_status(conn, pdu);
        }
        let mut bytes = raw.frame(conn, pdu.encode(), &data[at..at + 1000]);
        if sn == 1 {
            bytes[300] ^= 0x10;
        }
        raw.feed(conn, &bytes);
    }
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.kind, snack.itt), (SnackKind::DATA_OR_R2T, command.itt));
    assert_eq!((snack.beg_run, snack.run_length, snack.exp_stat_sn), (1, 1, stat_sn));
    assert!(raw.receive(conn).is_none(), "once is enough");
    assert_eq!(raw.session.open_tasks(), 1);
    // Damaged again, so requested again.
    let pdu = raw.data_in(conn, command.itt, 1, 1000);
    let mut bytes = raw.frame(conn, pdu.encode(), &data[1000..2000]);
    bytes[100] ^= 1;
    raw.feed(conn, &bytes);
    assert_eq!(raw.expect::<Snack>(conn).beg_run, 1);
    let pdu = raw.data_in(conn, command.itt, 1, 1000);
    raw.send(conn, &pdu, &data[1000..2000]);
    let outcome = raw.outcome(task);
    assert!(outcome.end.is_good());
    assert_eq!(outcome.data_in.as_deref(), Some(&data[..]));
    let (_, next) = raw.start(conn, read(0, 512));
    assert_eq!(next.exp_stat_sn, stat_sn.next());
    assert_eq!(raw.session.stats().data_digest_errors, 2);
}

#[test]
fn a_lost_header_shows_as_gaps_that_are_filled() {
    //= rfc7143#section-7.9
    //= type=test
    //# The initiator MUST address these implied digest errors as described in Section 7.8.
    let (mut raw, conn) = ScriptedTarget::level(1, &DIGESTS);
    let data = pattern(3, 2000);
    let (first, one) = raw.start(conn, read(0, 2000));
    let (second, two) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let piece = |raw: &ScriptedTarget, sn: u32, at: usize| {
        let pdu = raw.data_in(conn, one.itt, sn, u32::try_from(at).unwrap());
        raw.frame(conn, pdu.encode(), &data[at..at + 1000])
    };
    // The header of the first Data-In is damaged, and so is that of the second command's status.
    let mut lost = piece(&raw, 0, 0);
    lost[20] ^= 4;
    raw.feed(conn, &lost);
    let ping: NopOut = raw.expect(conn);
    let bytes = piece(&raw, 1, 1000);
    raw.feed(conn, &bytes);
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.kind, snack.beg_run, snack.run_length), (SnackKind::DATA_OR_R2T, 0, 1));
    let missing = raw.response(conn, two.itt, 0);
    let mut bytes = raw.frame(conn, missing.encode(), &[]);
    bytes[30] ^= 1;
    raw.feed(conn, &bytes);
    let pong = NopIn { lun: 0, itt: ping.itt, ttt: Ttt::NONE, sn: raw.next_sn(conn) };
    raw.send(conn, &pong, &[]);
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.kind, snack.beg_run, snack.run_length), (SnackKind::STATUS, missing.sn.stat_sn.0, 1));
    raw.send(conn, &missing, &[]);
    assert!(raw.outcome(second).end.is_good());
    let bytes = piece(&raw, 0, 0);
    raw.feed(conn, &bytes);
    let response = raw.response(conn, one.itt, 2);
    raw.send(conn, &response, &[]);
    let outcome = raw.outcome(first);
    assert_eq!(outcome.data_in.as_deref(), Some(&data[..]));
    assert_eq!(raw.session.stats().header_digest_errors, 2);
    // Duplicates are ignored.
    raw.send(conn, &missing, &[]);
    assert!(raw.session.is_up());
}

#[test]
fn a_status_that_is_missing_is_asked_for_until_patience_ends() {
    //= rfc7143#section-4.2.2.2
    //= type=test
    //# Initiators and targets MUST support the response-numbering scheme.
    //= rfc7143#section-7.9
    //= type=test
    //# When an initiator receives an iSCSI status PDU with an out-of-order StatSN that implies missing
    //# responses, it MUST address the one or more missing status PDUs as described in Section 7.8.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (_, one) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let (second, two) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let _lost = raw.response(conn, one.itt, 0);
    let response = raw.response(conn, two.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(second).end.is_good());
    raw.pass(Duration::from_secs(60));
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::NotRepaired)));
    let mut snacks = 0;
    while let Some(sent) = raw.receive(conn) {
        snacks += usize::from(sent.bhs.opcode() == Snack::OPCODE);
    }
    assert_eq!(snacks, 1 + 8);
}

/// The target cannot send lost data again: it rejects the SNACK and fails the task (§7.8). A task that it
/// ends with GOOD all the same has no end that could be believed.
#[test]
fn a_snack_for_data_that_is_rejected_ends_its_task_with_an_error_or_its_connection() {
    let sense = TransportSense::SnackRejected.sense();
    let sense = [&[0, 18][..], &sense].concat();
    for (status, segment) in [(2, &sense[..]), (0, &[])] {
        for status_first in [false, true] {
            let (mut raw, conn) = ScriptedTarget::level(1, &[]);
            let data = pattern(5, 3000);
            let (task, command) = raw.start(conn, read(0, 3000));
            for (sn, at) in [(0, 0), (2, 2000)] {
                let part = raw.data_in(conn, command.itt, sn, at);
                let at = usize::try_from(at).unwrap();
                raw.send(conn, &part, &data[at..at + 1000]);
            }
            let snack: Snack = raw.expect(conn);
            assert_eq!((snack.kind, snack.beg_run, snack.run_length), (SnackKind::DATA_OR_R2T, 1, 1));
            let header: Bhs = snack.encode();
            let mut ends = [false, true];
            if status_first {
                ends.reverse();
            }
            for is_status in ends {
                if raw.why().is_some() {
                    break;
                }
                if is_status {
                    let response = ScsiResponse { status, ..raw.response(conn, command.itt, 3) };
                    raw.send(conn, &response, segment);
                } else {
                    let reason = RejectReason::SNACK_REJECT;
                    let reject = Reject { reason, sn: raw.next_sn(conn), data_sn: DataSn(0) };
                    raw.send(conn, &reject, header.bytes());
                }
            }
            if status == 2 {
                let TaskResult::Status(ending) = raw.outcome(task).end else { panic!("it has a status") };
                assert_eq!(ending.status, 2, "status first: {status_first}");
                assert!(raw.session.is_up());
            } else {
                raw.pass(Duration::from_secs(60));
                assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::NotRepaired)));
                assert_eq!(raw.outcome(task).end, TaskResult::Lost, "status first: {status_first}");
            }
        }
    }
}

#[test]
fn a_snack_for_a_status_that_is_rejected_ends_its_connection() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (first, one) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let (second, two) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let _lost = raw.response(conn, one.itt, 0);
    let response = raw.response(conn, two.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(second).end.is_good());
    let snack: Snack = raw.expect(conn);
    let header: Bhs = snack.encode();
    let reject = Reject { reason: RejectReason::SNACK_REJECT, sn: raw.next_sn(conn), data_sn: DataSn(0) };
    raw.send(conn, &reject, header.bytes());
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::NotRepaired)));
    assert_eq!(raw.outcome(first).end, TaskResult::Lost);
}

#[test]
fn data_that_arrives_slowly_is_not_given_up_and_seldom_requested_again() {
    let (mut raw, conn) = ScriptedTarget::level(1, &DIGESTS);
    let count = 30;
    let data = pattern(3, count * 100);
    let (task, command) = raw.start(conn, read(0, u32::try_from(data.len()).unwrap()));
    let piece = |raw: &mut ScriptedTarget, sn: usize| {
        let number = u32::try_from(sn).unwrap();
        let mut pdu = raw.data_in(conn, command.itt, number, number * 100);
        if sn == count - 1 {
            pdu = raw.with_status(conn, pdu);
        }
        raw.send(conn, &pdu, &data[sn * 100..][..100]);
    };
    // All but the last piece is lost, and the target needs more checks than are patient to send it again.
    piece(&mut raw, count - 1);
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.beg_run, snack.run_length), (0, 29));
    for sn in 0..count - 3 {
        raw.pass(Duration::from_millis(990));
        piece(&mut raw, sn);
    }
    let repeated = |raw: &mut ScriptedTarget| {
        let mut repeated = 0;
        while let Some(sent) = raw.receive(conn) {
            repeated += usize::from(sent.bhs.opcode() == Snack::OPCODE);
        }
        repeated
    };
    // The SNACK may have been lost, so it is repeated at each ninth check.
    assert!(repeated(&mut raw) <= 3, "data that arrives is requested again at each check");
    assert_eq!(raw.why(), None);
    // Data that no longer arrives is requested again.
    raw.pass(Duration::from_secs(3));
    assert!(repeated(&mut raw) >= 2);
    for sn in count - 3..count - 1 {
        piece(&mut raw, sn);
    }
    assert_eq!(raw.outcome(task).data_in.as_deref(), Some(&data[..]));
}

#[test]
fn data_is_acknowledged_when_the_target_asks() {
    //= rfc7143#section-11.7.2
    //= type=test
    //# the initiator MUST issue a SNACK of type DataACK
    //= rfc7143#section-11.16.2
    //= type=test
    //# If an initiator operates at ErrorRecoveryLevel 1 or higher, it MUST issue a SNACK of type DataACK
    //# after receiving a Data-In PDU with the A bit set to 1.
    //= rfc7143#section-11.16.4
    //= type=test
    //# For a Status SNACK and DataACK, the Initiator Task Tag MUST be set to the reserved value 0xffffffff.
    //= rfc7143#section-11.16.5
    //= type=test
    //# For DataACK, the Target Transfer Tag MUST contain a copy of the Target Transfer Tag and LUN provided
    //# with the SCSI Data-In PDU with the A bit set to 1.
    //= rfc7143#section-11.16.7
    //= type=test
    //# The RunLength MUST also be 0 for a DataACK SNACK in addition to a R-Data SNACK.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (_, command) = raw.start(conn, read(0, 3000));
    let pdu = DataIn { acknowledge: true, lun: LUN, ttt: Ttt(77), ..raw.data_in(conn, command.itt, 0, 0) };
    raw.send(conn, &pdu, &[0; 1000]);
    let ack: Snack = raw.expect(conn);
    assert_eq!((ack.kind, ack.lun, ack.itt, ack.tag), (SnackKind::DATA_ACK, LUN, Itt::NONE, 77));
    assert_eq!((ack.beg_run, ack.run_length), (1, 0));
}

/// Two copies of a command are on their way. The first is rejected, and the Reject arrives when its ExpCmdSN
/// counts the second.
#[test]
fn a_reject_of_one_copy_of_a_command_does_not_end_the_other() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let task = raw.session.submit(raw.now, write(0, 1, &[5; 600])).unwrap();
    raw.drain();
    let sent = raw.expect_any(conn);
    let reason = RejectReason::DATA_DIGEST_ERROR;
    let reject = Reject { reason, sn: raw.next_sn(conn), data_sn: DataSn(0) };
    raw.send(conn, &reject, sent.bhs.bytes());
    let second: ScsiCommand = raw.expect(conn);
    raw.exp_cmd_sn = second.cmd_sn.next().0;
    let reject = Reject { reason, sn: raw.next_sn(conn), data_sn: DataSn(0) };
    raw.send(conn, &reject, sent.bhs.bytes());
    let response = raw.response(conn, second.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(task).end.is_good());
}

#[test]
fn a_rejected_or_unacknowledged_command_is_sent_again_under_its_number() {
    //= rfc7143#section-7.2.1
    //= type=test
    //# Retry MUST NOT be used for reasons other than plugging command sequence gaps and, in particular,
    //# cannot be used for requesting PDU retransmissions from a target.
    //= rfc7143#section-7.2.1
    //= type=test
    //# When an iSCSI command is retried, the command PDU MUST carry the original Initiator Task Tag and the
    //# original operational attributes (e.g., flags, function names, LUN, CDB, etc.) as well as the original
    //# CmdSN.
    //= rfc7143#section-7.2.1
    //= type=test
    //# The command being retried MUST be sent on the same connection as the original command, unless the
    //# original connection was already successfully logged out.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let task = raw.session.submit(raw.now, write(0, 1, &[5; 600])).unwrap();
    raw.drain();
    let sent = raw.expect_any(conn);
    let first: ScsiCommand = sent.read();
    let reject =
        Reject { reason: RejectReason::DATA_DIGEST_ERROR, sn: raw.next_sn(conn), data_sn: DataSn(0) };
    raw.send(conn, &reject, sent.bhs.bytes());
    let again = raw.expect_any(conn);
    let second: ScsiCommand = again.read();
    assert_eq!((second.cmd_sn, second.itt), (first.cmd_sn, first.itt));
    assert_eq!(again.data, sent.data);
    // The request is lost in transit: a ping detects the loss, and only then the request is sent again.
    raw.pass(Duration::from_millis(1100));
    let ping: NopOut = raw.expect(conn);
    assert!(raw.receive(conn).is_none());
    raw.pass(Duration::from_millis(10));
    let pong = NopIn { lun: 0, itt: ping.itt, ttt: Ttt::NONE, sn: raw.next_sn(conn) };
    raw.send(conn, &pong, &[]);
    raw.pass(Duration::from_millis(1100));
    let third: ScsiCommand = raw.expect(conn);
    assert_eq!(third.cmd_sn, first.cmd_sn);
    raw.exp_cmd_sn = 2;
    let response = raw.response(conn, first.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(task).end.is_good());
    assert_eq!(raw.session.stats().retries, 2);
}

#[test]
fn a_command_rejected_for_good_leaves_no_gap() {
    //= rfc7143#section-7.3
    //= type=test
    //# Upon receiving the Reject, the initiator MUST plug the CmdSN gap in order to continue to use the
    //# session.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let task = raw.session.submit(raw.now, read(0, 512)).unwrap();
    raw.drain();
    let sent = raw.expect_any(conn);
    let reason = RejectReason::INVALID_PDU_FIELD;
    let reject = Reject { reason, sn: raw.next_sn(conn), data_sn: DataSn(0) };
    raw.send(conn, &reject, sent.bhs.bytes());
    assert_eq!(raw.outcome(task).end, TaskResult::Rejected(reason.0));
    let plug: TmfRequest = raw.expect(conn);
    assert_eq!((plug.function, plug.referenced_task_tag), (TmfFunction::ABORT_TASK, sent.bhs.itt()));
    assert_eq!(plug.ref_cmd_sn, sent.read::<ScsiCommand>().cmd_sn);
}

#[test]
fn recovery_r2ts_are_answered_at_level_1() {
    //= rfc7143#section-11.8
    //= type=test
    //# If an R2T is answered with a single Data-Out PDU, the buffer offset in the data PDU MUST be the same
    //# as the one specified by the R2T, and the data length of the data PDU MUST be the same as the Desired
    //# Data Transfer Length specified in the R2T.
    //= rfc7143#section-11.8
    //= type=test
    //# If the R2T is answered with a sequence of data PDUs, the buffer offset and length MUST be within the
    //# range of those specified by the R2T, and the last PDU MUST have the F bit set to 1.
    //= rfc7143#section-11.8
    //= type=test
    //# If DataPDUInOrder is set to Yes, the buffer offsets and lengths for consecutive PDUs MUST form a
    //# continuous non-overlapping range, and the PDUs MUST be sent in increasing offset order.
    let keys = ["InitialR2T=Yes", "ImmediateData=No", "MaxBurstLength=1024", "FirstBurstLength=1024"];
    let (mut raw, conn) = ScriptedTarget::level(1, &keys);
    let data = pattern(4, 2048);
    let (_, command) = raw.start(conn, write(0, 1, &data));
    for (sn, offset, len) in [(0, 0, 1024), (1, 1024, 1024), (2, 512, 100)] {
        let r2t = raw.r2t(conn, command.itt, sn, offset, len);
        raw.send(conn, &r2t, &[]);
        let sent = raw.expect_any(conn);
        let pdu: DataOut = sent.read();
        assert_eq!((pdu.ttt, pdu.buffer_offset, pdu.data_sn.0, pdu.is_final), (r2t.ttt, offset, 0, true));
        let at = usize::try_from(offset).unwrap();
        assert_eq!(sent.data, data[at..at + sent.data.len()]);
    }
    // A missing R2T is requested.
    let r2t = raw.r2t(conn, command.itt, 4, 0, 10);
    raw.send(conn, &r2t, &[]);
    raw.expect::<DataOut>(conn);
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.kind, snack.beg_run, snack.run_length), (SnackKind::DATA_OR_R2T, 3, 1));
}

#[test]
fn a_silent_target_is_pinged_and_then_given_up() {
    //= rfc7143#section-11.18
    //= type=test
    //# Upon receipt of a NOP-In with the Target Transfer Tag set to a valid value (not the reserved value
    //# 0xffffffff), the initiator MUST respond with a NOP-Out.
    //= rfc7143#section-11.18
    //= type=test
    //# In this case, the NOP-Out Target Transfer Tag MUST contain a copy of the NOP-In Target Transfer Tag.
    //= rfc7143#section-11.18.1
    //= type=test
    //# The NOP-Out MUST have the Initiator Task Tag set to a valid value only if a response in the form of a
    //# NOP-In is requested (i.e., the NOP-Out is used as a ping request).
    //= rfc7143#section-11.18.2
    //= type=test
    //# The NOP-Out MUST only have the Target Transfer Tag set if it is issued in response to a NOP-In with a
    //# valid Target Transfer Tag.
    //= rfc7143#section-11.18.2
    //= type=test
    //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
    //= rfc7143#section-11.18.2
    //= type=test
    //# When the Target Transfer Tag is set to a value other than 0xffffffff, the LUN field MUST also be
    //# copied from the NOP-In.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    raw.manual = true;
    raw.pass(Duration::from_millis(15_100));
    let ping: NopOut = raw.expect(conn);
    assert!(ping.immediate && ping.itt != Itt::NONE);
    raw.pass(Duration::from_secs(11));
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::PingUnanswered)));
    // A target's ping is answered too.
    let conn = raw.connect();
    raw.drain();
    raw.exp_cmd_sn = 1;
    raw.log_in(conn, 9, &["ErrorRecoveryLevel=0"]);
    let sn = raw.sn(conn);
    raw.send(conn, &NopIn { lun: 5, itt: Itt::NONE, ttt: Ttt(33), sn }, b"hello");
    let pong: NopOut = raw.expect(conn);
    assert_eq!((pong.itt, pong.ttt, pong.lun, pong.immediate), (Itt::NONE, Ttt(33), 5, true));
}

#[test]
fn a_target_that_leaves_a_ping_unanswered_and_falls_silent_later_is_given_up() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    raw.manual = true;
    raw.pass(Duration::from_millis(15_100));
    let _: NopOut = raw.expect(conn);
    let sn = raw.sn(conn);
    raw.send(conn, &NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt(33), sn }, &[]);
    raw.now = raw.now.after(Duration::from_secs(11));
    raw.session.handle_timeout(raw.now);
    raw.drain();
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::PingUnanswered)));
}

#[test]
fn a_target_that_wants_a_negotiation_gets_one() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let message = AsyncMessage {
        lun: 0,
        sn: raw.next_sn(conn),
        event: AsyncEventCode::NEGOTIATION_REQUEST,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 0,
        parameter3: 3,
    };
    raw.send(conn, &message, &[]);
    let request: crate::pdu::text_request::TextRequest = raw.expect(conn);
    assert_eq!((request.ttt, request.is_final), (Ttt::NONE, true));
}

#[test]
fn what_is_sent_after_a_long_silence_is_looked_after_too() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    raw.pass(Duration::from_secs(5));
    let task = raw.session.submit(raw.now, read(0, 512)).unwrap();
    raw.drain();
    let lost: ScsiCommand = raw.expect(conn);
    raw.pass(Duration::from_millis(1100));
    let ping: NopOut = raw.expect(conn);
    // The answer to the first ping is late: a second one was sent.
    raw.pass(Duration::from_millis(1100));
    let second: NopOut = raw.expect(conn);
    for itt in [ping.itt, second.itt] {
        let pong = NopIn { lun: 0, itt, ttt: Ttt::NONE, sn: raw.next_sn(conn) };
        raw.send(conn, &pong, &[]);
    }
    raw.pass(Duration::from_millis(2200));
    let again: ScsiCommand = raw.expect(conn);
    assert_eq!((again.cmd_sn, again.itt), (lost.cmd_sn, lost.itt));
    assert!(raw.session.is_up());
    raw.exp_cmd_sn = 2;
    let pdu = raw.data_in(conn, again.itt, 0, 0);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &[1; 512]);
    assert!(raw.outcome(task).end.is_good());
}

#[test]
fn a_lost_management_request_is_repeated_or_its_connection_given_up() {
    // With an open command window the request has a CmdSN; with a full one it is immediate.
    for window in [64, 1] {
        let mut raw = ScriptedTarget::new(Setup::default());
        let conn = ConnId(0);
        raw.window = window;
        raw.log_in(conn, 7, &["ErrorRecoveryLevel=1"]);
        let (task, command) = raw.start(conn, read(0, 512));
        raw.session
            .submit_tmf(
                raw.now,
                TmfParameters { function: TmfFunction::LOGICAL_UNIT_RESET, lun: LUN, task: None },
            )
            .unwrap();
        raw.drain();
        let first: TmfRequest = raw.expect(conn);
        assert_eq!(first.immediate, window == 1);
        // A command behind a numbered request is none of those that it ends, though it is sent before the
        // request is repeated.
        let later = (!first.immediate).then(|| {
            let task = raw.session.submit(raw.now, read(0, 512)).unwrap();
            raw.drain();
            (task, raw.expect::<ScsiCommand>(conn))
        });
        let mut repeated = 0;
        let mut rounds = 0;
        // The target answers only pings.
        while repeated < 2 {
            rounds += 1;
            assert!(rounds < 200);
            raw.pass(Duration::from_millis(500));
            while let Some(sent) = raw.receive(conn) {
                match sent.bhs.opcode() {
                    NopOut::OPCODE if sent.bhs.itt() == Itt::NONE => {}
                    NopOut::OPCODE => {
                        let pong =
                            NopIn { lun: 0, itt: sent.bhs.itt(), ttt: Ttt::NONE, sn: raw.next_sn(conn) };
                        raw.send(conn, &pong, &[]);
                    }
                    ScsiCommand::OPCODE => {}
                    TmfRequest::OPCODE => {
                        let again: TmfRequest = sent.read();
                        assert_eq!(
                            (again.itt, again.cmd_sn, again.immediate),
                            (first.itt, first.cmd_sn, first.immediate)
                        );
                        repeated += 1;
                        if again.immediate {
                            // The first copy holds the target's only place for immediate requests.
                            let reason = RejectReason::TOO_MANY_IMMEDIATE;
                            let reject = Reject { reason, sn: raw.next_sn(conn), data_sn: DataSn(0) };
                            raw.send(conn, &reject, sent.bhs.bytes());
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        raw.exp_cmd_sn = command.cmd_sn.next().0 + 2 * u32::from(!first.immediate);
        for _ in 0..2 {
            let done = TmfResponse { response: TmfResult::COMPLETE, itt: first.itt, sn: raw.next_sn(conn) };
            raw.send(conn, &done, &[]);
        }
        assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
        assert!(raw.session.is_up());
        if let Some((task, command)) = later {
            let pdu = raw.data_in(conn, command.itt, 0, 0);
            let pdu = raw.with_status(conn, pdu);
            raw.send(conn, &pdu, &[1; 512]);
            assert!(raw.outcome(task).end.is_good());
        }
    }
}
