//! Clauses of RFC 7143 that no other test here would miss, with a target played by hand.

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId};
use base::time::Duration;
use transport::command::Cdb;
use transport::initiator::{
    InitiatorTransport as _, Request, ServiceResponse, TaskId, TaskResult, TmfParameters,
};
use transport::task_management::{TmfFunction, TmfResult};

use super::pair::{LUN, SENSE, Setup, cdb, pattern, read, write};
use super::scripted_target::{ScriptedTarget, level_2};
use crate::initiator::contract::*;
use crate::pdu::data_in::DataIn;
use crate::pdu::data_out::DataOut;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Bhs, Itt, PduHeader, Ttt};
use crate::serial::DataSn;
use crate::text::TextBuilder;

const DIGESTS: [&str; 2] = ["HeaderDigest=CRC32C", "DataDigest=CRC32C"];

fn manage(function: TmfFunction, task: Option<TaskId>) -> TmfParameters {
    TmfParameters { function, lun: LUN, task }
}

#[test]
fn a_connection_that_nobody_answers_on_is_closed() {
    //= rfc7143#section-7.1.4.3
    //= type=test
    //# The initiator MUST close the connection.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    raw.pass(Duration::from_secs(120));
    assert_eq!(raw.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn what_was_acknowledged_before_a_task_moved_is_not_asked_for_again() {
    //= rfc7143#section-7.2.2
    //= type=test
    //# Initiators MUST NOT subsequently request data retransmission through Data SNACK for PDUs numbered less
    //# than the ExpDataSN (i.e., prior to the acknowledged sequence number).
    //= rfc7143#section-11.16.2
    //= type=test
    //# An initiator MUST NOT request retransmission for any data it had already acknowledged.
    //= rfc7143#section-11.16.4
    //= type=test
    //# In all other cases, the Initiator Task Tag field MUST be set to the Initiator Task Tag of the
    //# referenced command.
    //= rfc7143#section-11.16.5
    //= type=test
    //# In all other cases, the Target Transfer Tag field MUST be set to the reserved value 0xffffffff.
    let (mut raw, conns) = level_2(1);
    let data = pattern(3, 3000);
    let (_, command) = raw.start(conns[0], read(0, 3000));
    let pdu = raw.data_in(conns[0], command.itt, 0, 0);
    raw.send(conns[0], &pdu, &data[..1000]);
    raw.cut(conns[0]);
    raw.pass(Duration::from_millis(1100));
    let again = ConnId(1);
    raw.log_in(again, 7, &[]);
    let reassign: TmfRequest = raw.expect(again);
    assert_eq!((reassign.referenced_task_tag, reassign.exp_data_sn), (command.itt, DataSn(1)));
    let done = TmfResponse { response: TmfResult::COMPLETE, itt: reassign.itt, sn: raw.next_sn(again) };
    raw.send(again, &done, &[]);
    let pdu = raw.data_in(again, command.itt, 2, 2000);
    raw.send(again, &pdu, &data[2000..]);
    let snack: Snack = raw.expect(again);
    assert_eq!((snack.kind, snack.beg_run, snack.run_length), (SnackKind::DATA_OR_R2T, 1, 1));
    assert_eq!((snack.itt, snack.tag), (command.itt, u32::MAX));
}

#[test]
fn a_session_that_cannot_be_recovered_in_time_is_given_up() {
    //= rfc7143#section-7.5
    //= type=test
    //# Recovery attempts for the connection and/or task(s) SHOULD NOT be made before Time2Wait seconds but
    //# MUST be completed within Time2Retain seconds after that initial Time2Wait waiting period.
    let (mut raw, conns) = level_2(1);
    let (task, _) = raw.start(conns[0], read(0, 512));
    raw.manual = true;
    raw.cut(conns[0]);
    raw.pass(Duration::from_secs(20));
    assert_eq!(raw.session.open_tasks(), 1, "Time2Retain has not passed");
    raw.pass(Duration::from_secs(2));
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
}

#[test]
fn a_response_with_a_wrong_digest_is_as_good_as_lost() {
    //= rfc7143#section-7.8
    //= type=test
    //# If the discarded PDU is a response PDU or an unsolicited PDU (e.g., Async, Reject), the initiator MUST
    //# do one of the following:
    //= rfc7143#section-7.8
    //= type=test
    //# When an initiator discards one of these PDUs due to a payload digest error, the entire PDU, including
    //# the header, MUST be discarded.
    //= rfc7143#section-7.8
    //= type=test
    //# Consequently, the initiator MUST treat the exception like a loss of any other solicited response PDU.
    //= rfc7143#section-11.16.4
    //= type=test
    //# For a Status SNACK and DataACK, the Initiator Task Tag MUST be set to the reserved value 0xffffffff.
    let (mut raw, conn) = ScriptedTarget::level(1, &DIGESTS);
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let mut response = raw.response(conn, command.itt, 0);
    response.status = 2;
    let mut sense = Vec::from([0, 18]);
    sense.extend_from_slice(&SENSE);
    let mut bytes = raw.frame(conn, response.encode(), &sense);
    bytes[60] ^= 1;
    raw.feed(conn, &bytes);
    assert_eq!(raw.session.open_tasks(), 1, "nothing of it counts");
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.kind, snack.itt, snack.tag), (SnackKind::STATUS, Itt::NONE, u32::MAX));
    assert_eq!((snack.beg_run, snack.run_length), (response.sn.stat_sn.0, 1));
    raw.send(conn, &response, &sense);
    let TaskResult::Status(ending) = raw.outcome(task).end else { panic!("it has a status") };
    assert_eq!((ending.status, ending.sense.as_deref()), (2, Some(&SENSE[..])));
}

#[test]
fn what_comes_twice_is_passed_over() {
    //= rfc7143#section-7.9
    //= type=test
    //# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts by the target) or
    //# duplicate DataSNs (due to proactive SNACKs by the initiator), it MUST discard the duplicates.
    let (mut raw, conn) = ScriptedTarget::level(1, &["InitialR2T=Yes", "ImmediateData=No"]);
    let data = pattern(3, 2000);
    let (task, command) = raw.start(conn, read(0, 2000));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &data[..1000]);
    raw.send(conn, &pdu, &pattern(9, 1000));
    let pdu = raw.data_in(conn, command.itt, 1, 1000);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &data[1000..]);
    assert_eq!(raw.outcome(task).data_in.as_deref(), Some(&data[..]));

    let (_, command) = raw.start(conn, write(0, 1, &[9; 512]));
    let r2t = raw.r2t(conn, command.itt, 0, 0, 512);
    raw.send(conn, &r2t, &[]);
    raw.send(conn, &r2t, &[]);
    assert_eq!(raw.expect::<DataOut>(conn).ttt, r2t.ttt);
    assert!(raw.receive(conn).is_none(), "it answers an R2T once");
    assert!(raw.session.is_up());
}

#[test]
fn tags_name_one_task_each() {
    //= rfc7143#section-11.2.1.8
    //= type=test
    //# While a task exists, this tag MUST uniquely identify the task session-wide.
    //= rfc7143#section-11.2.1.8
    //= type=test
    //# An ITT value of 0xffffffff is reserved and MUST NOT be assigned for a task by the initiator.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let mut tags: Vec<u32> = (0..8).map(|_| raw.start(conn, read(0, 512)).1.itt.0).collect();
    raw.session.submit_tmf(raw.now, manage(TmfFunction::LOGICAL_UNIT_RESET, None)).unwrap();
    raw.drain();
    tags.push(raw.expect::<TmfRequest>(conn).itt.0);
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), 9);
    assert!(!tags.contains(&u32::MAX));
}

#[test]
fn only_long_cdbs_have_a_part_behind_the_header() {
    //= rfc7143#section-11.2.2.3
    //= type=test
    //# This type of AHS MUST NOT be used if the CDBLength is less than 17.
    //= rfc7143#section-11.3.5
    //= type=test
    //# Whenever the CDB is larger than 16 bytes, an Extended CDB AHS MUST be used to contain the CDB
    //# spillover.
    for len in [6usize, 16, 17, 32] {
        let (mut raw, conn) = ScriptedTarget::level(0, &[]);
        let request = Request::new(LUN, Cdb::new(&alloc::vec![7; len]).unwrap());
        raw.session.submit(raw.now, request).unwrap();
        raw.drain();
        let sent = raw.expect_any(conn);
        assert_eq!(sent.bhs.opcode(), ScsiCommand::OPCODE);
        assert_eq!(sent.bhs.ahs_len() > 0, len > 16, "{len}");
    }
}

#[test]
fn a_write_that_is_whole_with_its_command_is_final() {
    //= rfc7143#section-11.3.4
    //= type=test
    //# In this case, the F bit MUST be set to 1.
    let (mut raw, conn) = ScriptedTarget::level(0, &["InitialR2T=No", "ImmediateData=Yes"]);
    raw.session.submit(raw.now, write(0, 1, &[9; 512])).unwrap();
    raw.drain();
    let sent = raw.expect_any(conn);
    assert_eq!(sent.data, [9; 512]);
    assert!(sent.read::<ScsiCommand>().is_final);
    assert!(raw.receive(conn).is_none());
}

#[test]
fn a_task_that_a_reset_ended_ends_once() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# According to [SAM2], for all the tasks covered by the task management response (i.e., with a CmdSN
    //# lower than the task management command CmdSN), except for the task management response to a TASK
    //# REASSIGN, additional responses MUST NOT be delivered to the SCSI layer after the task management
    //# response.
    //= rfc7143#section-11.5.4
    //= type=test
    //# For all the other functions, this field MUST be set to the reserved value 0xffffffff.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    raw.session.submit_tmf(raw.now, manage(TmfFunction::LOGICAL_UNIT_RESET, None)).unwrap();
    raw.drain();
    let request: TmfRequest = raw.expect(conn);
    assert_eq!(request.referenced_task_tag, Itt::NONE);
    let sn = raw.next_sn(conn);
    raw.send(conn, &TmfResponse { response: TmfResult::COMPLETE, itt: request.itt, sn }, &[]);
    assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
    raw.events.clear();
    let late = raw.response(conn, command.itt, 0);
    raw.send(conn, &late, &[]);
    assert!(!raw.events.iter().any(|event| matches!(event, Event::Done { .. })));
}

#[test]
fn r2ts_are_answered_while_a_task_set_is_being_aborted() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# For ABORT TASK SET and CLEAR TASK SET, the issuing initiator MUST continue to respond to all valid
    //# Target Transfer Tags (received via R2T, Text Response, NOP-In, or SCSI Data-In PDUs) related to the
    //# affected task set, even after issuing the task management request.
    let (mut raw, conn) = ScriptedTarget::level(0, &["InitialR2T=Yes", "ImmediateData=No"]);
    let (_, command) = raw.start(conn, write(0, 1, &[9; 512]));
    raw.session.submit_tmf(raw.now, manage(TmfFunction::ABORT_TASK_SET, None)).unwrap();
    raw.drain();
    raw.expect::<TmfRequest>(conn);
    let r2t = raw.r2t(conn, command.itt, 0, 0, 512);
    raw.send(conn, &r2t, &[]);
    assert_eq!(raw.expect::<DataOut>(conn).ttt, r2t.ttt);
}

#[test]
fn a_task_is_aborted_on_its_own_connection() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# If the connection is still active (i.e., it is not undergoing an implicit or explicit logout), an
    //# ABORT TASK MUST be issued on the same connection to which the task to be aborted is allegiant at the
    //# time the task management request is issued.
    let (mut raw, conns) = level_2(2);
    let (long, command) = raw.start(conns[0], read(0, 100_000));
    raw.start(conns[1], read(0, 512));
    raw.session.submit_tmf(raw.now, manage(TmfFunction::ABORT_TASK, Some(long))).unwrap();
    raw.drain();
    assert!(raw.receive(conns[1]).is_none());
    assert_eq!(raw.expect::<TmfRequest>(conns[0]).referenced_task_tag, command.itt);
}

#[test]
fn data_with_a_hole_is_not_acknowledged() {
    //= rfc7143#section-11.7.2
    //= type=test
    //# If the initiator has detected holes in the read data prior to that Data-In PDU, it MUST postpone
    //# issuing the SNACK of type DataACK until the holes are filled.
    //= rfc7143#section-11.16.2
    //= type=test
    //# However, if the initiator has detected holes in the input sequence, it MUST postpone issuing the SNACK
    //# of type DataACK until the holes are filled.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (_, command) = raw.start(conn, read(0, 3000));
    let pdu = DataIn { acknowledge: true, lun: LUN, ttt: Ttt(77), ..raw.data_in(conn, command.itt, 1, 1000) };
    raw.send(conn, &pdu, &[0; 1000]);
    let snack: Snack = raw.expect(conn);
    assert_eq!((snack.kind, snack.beg_run), (SnackKind::DATA_OR_R2T, 0));
    assert!(raw.receive(conn).is_none(), "there is a hole");
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &[0; 1000]);
    let ack: Snack = raw.expect(conn);
    assert_eq!((ack.kind, ack.beg_run, ack.tag), (SnackKind::DATA_ACK, 2, 77));
}

#[test]
fn status_and_flags_of_a_failure_mean_nothing() {
    //= rfc7143#section-11.4.3
    //= type=test
    //# A non-zero response field indicates a failure to execute the command, in which case the Status and Flag
    //# fields are undefined and MUST be ignored on reception.
    for (response, flags) in [(1, 0x80), (1, 0x9e), (0x80, 0x86), (0xff, 0x98)] {
        let (mut raw, conn) = ScriptedTarget::level(0, &[]);
        let (task, command) = raw.start(conn, read(0, 512));
        let mut bytes = raw.response(conn, command.itt, 0).encode().to_bytes();
        (bytes[1], bytes[2], bytes[3]) = (flags, response, 0x18);
        // Both residual counts.
        bytes[40..48].fill(0xff);
        raw.feed(conn, &bytes);
        let failed = TaskResult::Failed(ServiceResponse(response));
        assert_eq!(raw.outcome(task).end, failed, "flags {flags:#x}: {:?}", raw.why());
        assert!(raw.session.is_up());
    }
}

#[test]
fn data_of_no_length_is_received() {
    //= rfc7143#section-11.7.7
    //= type=test
    //# The sending of 0-length data segments should be avoided, but initiators and targets MUST be able to
    //# properly receive 0-length data segments.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let data = pattern(3, 512);
    let (task, command) = raw.start(conn, read(0, 512));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &[]);
    let pdu = raw.data_in(conn, command.itt, 1, 0);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &data);
    assert_eq!(raw.outcome(task).data_in.as_deref(), Some(&data[..]));
}

#[test]
fn r2ts_are_answered_in_their_order() {
    //= rfc7143#section-11.8
    //= type=test
    //# Within a task, outstanding R2Ts MUST be fulfilled by the initiator in the order in which they were
    //# received.
    let (mut raw, conn) =
        ScriptedTarget::level(0, &["InitialR2T=Yes", "ImmediateData=No", "MaxOutstandingR2T=2"]);
    let (_, command) = raw.start(conn, write(0, 1, &pattern(4, 2048)));
    let r2ts = [0, 1].map(|sn| raw.r2t(conn, command.itt, sn, sn * 1024, 1024));
    let mut bytes = Vec::new();
    for r2t in &r2ts {
        bytes.extend(raw.frame(conn, r2t.encode(), &[]));
    }
    raw.feed(conn, &bytes);
    for r2t in r2ts {
        let pdu: DataOut = raw.expect(conn);
        assert_eq!((pdu.ttt, pdu.buffer_offset), (r2t.ttt, r2t.buffer_offset));
    }
}

#[test]
fn a_text_leaves_in_pieces_that_the_target_can_receive() {
    //= rfc7143#section-11.10.2
    //= type=test
    //# A Text Request with the C bit set to 1 MUST have the F bit set to 0.
    //= rfc7143#section-11.10.3
    //= type=test
    //# If the command is sent as part of a sequence of Text Requests and responses, the Initiator Task Tag
    //# MUST be the same for all the requests within the sequence (similar to linked SCSI commands).
    //= rfc7143#section-11.10.3
    //= type=test
    //# The I bit for all requests in a sequence also MUST be the same.
    //= rfc7143#section-11.10.5
    //= type=test
    //# The data lengths of a Text Request MUST NOT exceed the iSCSI target MaxRecvDataSegmentLength (a
    //# parameter that is negotiated per connection and per direction).
    //= rfc7143#section-11.11.4
    //= type=test
    //# The initiator MUST copy the Target Transfer Tag and LUN in its next request to indicate that it wants
    //# the rest of the data.
    let (mut raw, conn) = ScriptedTarget::level(0, &["MaxRecvDataSegmentLength=512"]);
    let mut text = TextBuilder::new();
    text.put("X-org.me", "a".repeat(200));
    text.put("X-org.you", "b".repeat(200));
    text.put("X-org.them", "c".repeat(200));
    raw.session.send_text(raw.now, None, text).unwrap();
    raw.drain();
    let sent = raw.expect_any(conn);
    let first: TextRequest = sent.read();
    assert!(sent.data.len() <= 512 && first.continues && !first.is_final);
    let sn = raw.next_sn(conn);
    let response =
        TextResponse { is_final: false, continues: false, lun: LUN, itt: first.itt, ttt: Ttt(5), sn };
    raw.send(conn, &response, &[]);
    let sent = raw.expect_any(conn);
    let second: TextRequest = sent.read();
    assert!(sent.data.len() <= 512 && !second.continues && second.is_final);
    assert_eq!((second.itt, second.immediate), (first.itt, first.immediate));
    assert_eq!((second.ttt, second.lun), (Ttt(5), LUN));
}

#[test]
fn a_login_keeps_its_names_and_numbers() {
    //= rfc7143#section-11.12
    //= type=test
    //# After establishing a TCP connection between an initiator and a target, the initiator MUST start a
    //# Login Phase to gain further access to the target's resources.
    //= rfc7143#section-11.12.4
    //= type=test
    //# Therefore, both Version-min and Version-max MUST be set to 0x00.
    //= rfc7143#section-11.12.4.1
    //= type=test
    //# All Login Requests within the Login Phase MUST carry the same Version-max.
    //= rfc7143#section-11.12.4.2
    //= type=test
    //# All Login Requests within the Login Phase MUST carry the same Version-min.
    //= rfc7143#section-11.12.6
    //= type=test
    //# All Login Requests within a Login Phase MUST carry the same TSIH.
    //= rfc7143#section-11.12.7
    //= type=test
    //# All Login Requests within the Login Phase MUST carry the same CID.
    //= rfc7143#section-11.12.10
    //= type=test
    //# The initiator MUST provide some basic parameters in order to enable the target to determine if the
    //# initiator may use the target's resources and the initial text parameters for the security exchange.
    let mut raw = ScriptedTarget::new(Setup::default());
    let conn = ConnId(0);
    let sent = raw.expect_any(conn);
    let first: LoginRequest = sent.read();
    assert_eq!((first.csg, first.version_max, first.version_min, first.tsih), (0, 0, 0, 0));
    let text = alloc::string::String::from_utf8(sent.data).unwrap();
    for key in ["InitiatorName=iqn.2026-01.test:initiator\0", "SessionType=Normal\0", "AuthMethod="] {
        assert!(text.contains(key), "{key} in {text}");
    }
    raw.login_response(conn, &first, 0, 0, &["AuthMethod=None", "TargetPortalGroupTag=1"]);
    let second: LoginRequest = raw.expect(conn);
    assert_eq!((second.version_max, second.version_min, second.tsih), (0, 0, 0));
    assert_eq!((second.isid, second.cid, second.itt), (first.isid, first.cid, first.itt));
}

#[test]
fn a_reject_during_the_login_ends_it() {
    //= rfc7143#section-11.17.1
    //= type=test
    //# An implementation receiving reason code 0x0b MUST treat it as a negotiation failure that terminates
    //# the Login Phase and the TCP connection, as specified in Section 7.12.
    let mut raw = ScriptedTarget::new(Setup::default());
    let conn = ConnId(0);
    let sent = raw.expect_any(conn);
    let reject = Reject { reason: RejectReason(0x0b), sn: raw.next_sn(conn), data_sn: DataSn(0) };
    let bhs: &Bhs = &sent.bhs;
    raw.send(conn, &reject, bhs.bytes());
    assert!(raw.ended(conn).is_some() && !raw.session.is_up());
}
