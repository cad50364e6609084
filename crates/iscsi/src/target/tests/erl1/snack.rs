//! What a SNACK retransmits, and what it cannot ask for (RFC 7143 §11.16).

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::Duration;
use transport::target::{Finish, TargetTransport};

use super::super::world::{LUN, World, pattern};
use super::recovery_r2t::{answer_r2t, as_asked};
use super::{LEVEL, ack, as_kept, data_ins, login, read_all, rejected, snack, world};
use crate::pdu::data_in::DataIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, Opcode, Ttt};
use crate::serial::{DataSn, R2tSn, StatSn};
use crate::target::contract::Event;

#[test]
fn statuses_are_sent_again_exactly_as_they_were_until_they_are_acknowledged() {
    //= rfc7143#section-11.4.9
    //= type=test
    //# In the case of responses sent due to a retransmission request, the StatSN MUST be the same as the
    //# first time the PDU was sent, unless the connection has since been restarted.
    //= rfc7143#section-11.16
    //= type=test
    //# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all SNACK types.
    //= rfc7143#section-11.16
    //= type=test
    //# The numbered response(s) or R2T(s) requested by a SNACK MUST be delivered as exact replicas of the
    //# ones that the target transmitted originally, except for the fields ExpCmdSN, MaxCmdSN, and ExpDataSN,
    //# which MUST carry the current values.
    //= rfc7143#section-11.16
    //= type=test
    //# Any SNACK that requests a numbered response, data, or R2T that was not sent by the target or was
    //# already acknowledged by the initiator MUST be rejected with a reason code of "Protocol Error".
    let mut world = world();
    let conn = login(&mut world, &[]);
    let mut sent = Vec::new();
    for sense in [&[0x70, 0, 5][..], &[]] {
        let command = world.command(conn);
        let up = world.start(conn, &command, &[]);
        world.finish(
            up.task,
            Finish {
                status: if sense.is_empty() { 0 } else { 2 },
                sense,
                transferable: 0,
                is_unit_attention: false,
            },
        );
        sent.push(world.expect_any(conn));
    }
    let (itt, cmd_sn) = world.numbers(conn);
    let nop = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conn, &nop, b"echo this");
    sent.push(world.expect_any(conn));
    let text = TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: 0,
        itt: Itt(77),
        ttt: Ttt::NONE,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &text, b"X-what=ever\0");
    sent.push(world.expect_any(conn));
    let first = sent[0].read::<ScsiResponse>().sn.stat_sn;
    assert_eq!(sent[3].read::<TextResponse>().sn.stat_sn, first.plus(3));

    for (beg, len, range) in
        [(first.0, 1, 0..1), (first.0 + 1, 2, 1..3), (first.0 + 2, 0, 2..4), (first.0, 4, 0..4)]
    {
        world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (beg, len)), &[]);
        for want in &sent[range] {
            assert_eq!(as_kept(&world.expect_any(conn)), as_kept(want));
        }
        world.expect_silence(conn);
    }
    // Asks for everything unacknowledged, after two statuses were acknowledged.
    let mut all = snack(SnackKind::STATUS, Itt::NONE, (0, 0));
    all.exp_stat_sn = first.plus(2);
    world.send(conn, &all, &[]);
    assert_eq!(as_kept(&world.expect_any(conn)), as_kept(&sent[2]));
    assert_eq!(as_kept(&world.expect_any(conn)), as_kept(&sent[3]));
    world.expect_silence(conn);
    // A status that is acknowledged or was not sent cannot be asked for.
    let far = first.0 + 100;
    for (beg, len) in [(first.0, 1), (first.0 + 1, 2), (far, 1), (far, 0), (first.0 + 2, u32::MAX)] {
        world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (beg, len)), &[]);
        assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR, "{beg} {len}");
    }
}

#[test]
fn data_is_sent_again_exactly_as_it_was_with_the_status_that_rode_on_it() {
    //= rfc7143#section-4.2.2.4
    //= type=test
    //# Data and R2T PDUs transferred as part of some command execution MUST be sequenced.
    //= rfc7143#section-7.8
    //= type=test
    //# In response to the SNACK, the target MUST either resend the data PDU or reject the SNACK with a Reject
    //# PDU with a reason code of "SNACK reject", in which case:
    //= rfc7143#section-11.16
    //= type=test
    //# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all SNACK types.
    //= rfc7143#section-11.16
    //= type=test
    //# The numbered Data-In PDUs requested by a Data SNACK MUST be delivered as exact replicas of the ones
    //# that the target transmitted originally, except for the fields ExpCmdSN and MaxCmdSN, which MUST carry
    //# the current values; and except for resegmentation (see Section 11.16.3).
    //= rfc7143#section-11.16
    //= type=test
    //# Any SNACK that requests a numbered response, data, or R2T that was not sent by the target or was
    //# already acknowledged by the initiator MUST be rejected with a reason code of "Protocol Error".
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 5000);
    assert_eq!(sent.len(), 5);
    assert_eq!(sent.iter().map(|pdu| pdu.is_final).collect::<Vec<_>>(), [false, false, false, true, true]);
    for (beg, len, range) in [(0, 0, 0..5), (0, 1, 0..1), (2, 2, 2..4), (3, 0, 3..5), (4, 1, 4..5)] {
        // The tag has no meaning here, and not every initiator sets it to the reserved value.
        world.send(conn, &Snack { tag: 0, ..snack(SnackKind::DATA_OR_R2T, itt, (beg, len)) }, &[]);
        assert_eq!(data_ins(&mut world, conn), sent[range], "{beg} {len}");
    }
    // A phase-collapsed status is sent again with its data.
    let status = sent[4].sn.stat_sn;
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    assert_eq!(data_ins(&mut world, conn), sent[4..]);
    for (beg, len) in [(5, 1), (4, 2), (0, 6), (u32::MAX, 1), (1 << 31, 0)] {
        world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (beg, len)), &[]);
        assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR, "{beg} {len}");
    }
    // The acknowledgement of the status acknowledges the data.
    ack(&mut world, conn, status.next());
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (0, 0)), &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR);
}

#[test]
fn data_cut_anew_comes_from_the_acknowledged_point_and_ends_with_a_tagged_response() {
    //= rfc7143#section-7.8
    //= type=test
    //# In response to the SNACK, the target MUST either resend the data PDU or reject the SNACK with a Reject
    //# PDU with a reason code of "SNACK reject", in which case:
    //= rfc7143#section-11.16
    //= type=test
    //# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all SNACK types.
    //= rfc7143#section-11.16.3
    //= type=test
    //# A target that has received a R-Data SNACK MUST return a SCSI Response that contains a copy of the
    //# SNACK Tag field from the R-Data SNACK in the SCSI Response SNACK Tag field as its last or only
    //# Response.
    //= rfc7143#section-11.16.5
    //= type=test
    //# This value MUST be copied by the iSCSI target in the last or only SCSI Response PDU it issues for the
    //# command.
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 5000);
    let status = sent[4].sn.stat_sn;
    let acked = Snack { lun: LUN, tag: sent[3].ttt.0, ..snack(SnackKind::DATA_ACK, Itt::NONE, (2, 0)) };
    world.send(conn, &acked, &[]);
    for size in [512, 2048] {
        set_segment_length(&mut world, conn, size);
        if size == 512 {
            world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (2, 1)), &[]);
            assert_eq!(rejected(&mut world, conn), RejectReason::SNACK_REJECT, "it would be too long");
            // The Data-In with the phase-collapsed status would be too long too, so the status is sent
            // without data.
            world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
            let response: ScsiResponse = world.expect(conn);
            assert_eq!((response.sn.stat_sn, response.snack_tag, response.exp_data_sn.0), (status, 0, 5));
            world.expect_silence(conn);
        }
    }
    let anew = Snack { tag: 9, ..snack(SnackKind::R_DATA, itt, (0, 0)) };
    for bad in [
        Snack { tag: 0, ..anew },
        Snack { tag: u32::MAX, ..anew },
        Snack { beg_run: 1, ..anew },
        Snack { run_length: 1, ..anew },
    ] {
        world.send(conn, &bad, &[]);
        assert_eq!(rejected(&mut world, conn), RejectReason::INVALID_PDU_FIELD, "{bad:?}");
    }
    world.send(conn, &anew, &[]);
    let mut got = Vec::new();
    for _ in 0..2 {
        let pdu = world.expect_any(conn);
        let header = pdu.read::<DataIn>();
        assert_eq!(pdu.data, pattern(header.buffer_offset, pdu.data.len()));
        assert_eq!(header.status, None);
        got.push((header.data_sn.0, header.buffer_offset, pdu.data.len()));
    }
    assert_eq!(got, [(2, 2048, 2048), (3, 4096, 904)]);
    let response: ScsiResponse = world.expect(conn);
    assert_eq!((response.snack_tag, response.sn.stat_sn), (9, status), "the same number as before");
    world.expect_silence(conn);
    // A SNACK for that response gets it in its present form.
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    assert_eq!(world.expect::<ScsiResponse>(conn).snack_tag, 9);
    world.expect_silence(conn);
}

#[test]
fn a_task_whose_lost_data_cannot_be_sent_again_fails() {
    //= rfc7143#section-7.8
    //= type=test
    //# a.1) If the status has not already been sent for the command, the target MUST terminate the command
    //# with a CHECK CONDITION Status and an iSCSI Condition of "SNACK rejected" (Section 11.4.7.2).
    for has_ended in [false, true] {
        let mut world = world();
        let conn = login(&mut world, &[]);
        let read = world.read(conn, 5000);
        let task = world.start(conn, &read, &[]).task;
        world.data_in(task, 0, &pattern(0, 2048));
        assert_eq!(data_ins(&mut world, conn).len(), 2);
        set_segment_length(&mut world, conn, 512);
        if has_ended {
            world.stalled.insert(conn);
            world.data_in(task, 2048, &pattern(2048, 2952));
            world.finish(task, Finish::good(5000));
        }
        world.send(conn, &snack(SnackKind::DATA_OR_R2T, read.itt, (1, 1)), &[]);
        world.stalled.clear();
        world.transmit(conn);
        let mut pdus = Vec::new();
        while let Some(pdu) = world.receive(conn) {
            pdus.push(pdu);
        }
        // The Reject, and then the response, without the data that was still queued.
        let [reject, response] = &pdus[..] else { panic!("{pdus:?}") };
        let (reject, sense) = if has_ended { (response, reject) } else { (reject, response) };
        assert_eq!(reject.read::<Reject>().reason, RejectReason::SNACK_REJECT);
        assert_eq!(sense.read::<ScsiResponse>().status, 2);
        assert_eq!((sense.data[4] & 0x0f, sense.data[14], sense.data[15]), (0x0b, 0x11, 0x13));
        let is_gone = world.events.drain(..).any(|event| matches!(event, Event::TaskGone { .. }));
        assert_eq!(is_gone, !has_ended);
        world.expect_silence(conn);
    }
}

#[test]
fn snacks_for_nothing_are_refused_and_cost_nothing() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (low, _) = world.login_again_with(&["ErrorRecoveryLevel=0"]);
    assert!(world.ended(conn).is_some(), "the same initiator port logged in again");
    world.send(low, &snack(SnackKind::STATUS, Itt::NONE, (0, 0)), &[]);
    assert_eq!(rejected(&mut world, low), RejectReason::PROTOCOL_ERROR, "level 0");

    let conn = {
        let conn = world.connect();
        world.events.clear();
        world.login_on(conn, 9, &[LEVEL, "HeaderDigest=CRC32C"]);
        conn
    };
    let open = world.read(conn, 100);
    let up = world.start(conn, &open, &[]);
    for kind in [SnackKind::DATA_OR_R2T, SnackKind::R_DATA] {
        let tag = if kind == SnackKind::R_DATA { 1 } else { u32::MAX };
        world.send(conn, &Snack { tag, ..snack(kind, Itt(4711), (0, 0)) }, &[]);
        assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR, "{kind:?}: no such task");
    }
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, open.itt, (0, 1)), &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR, "nothing was sent");
    world.send(conn, &snack(SnackKind(9), open.itt, (0, 0)), &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::INVALID_PDU_FIELD);
    // A SNACK for everything is not rejected when there is nothing to send.
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, open.itt, (0, 0)), &[]);
    world.expect_silence(conn);
    // A flood of SNACKs from an initiator that does not read: only numbers are queued.
    world.data_in(up.task, 0, &pattern(0, 100));
    while world.receive(conn).is_some() {}
    world.stalled.insert(conn);
    for _ in 0..10_000 {
        world.send(conn, &snack(SnackKind::DATA_OR_R2T, open.itt, (0, 0)), &[]);
    }
    world.stalled.remove(&conn);
    world.transmit(conn);
    let came = data_ins(&mut world, conn).len();
    assert!(came <= 8, "{came}");
    assert_eq!(world.ended(conn), None);
}

#[test]
fn numbers_wrap() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    // Statuses.
    let connection = world.engine.conns[conn.0 as usize].as_mut().unwrap();
    connection.stat_sn = StatSn(u32::MAX);
    connection.exp_stat_sn = StatSn(u32::MAX);
    connection.status_log = crate::target::status_log::StatusLog::new(StatSn(u32::MAX));
    for _ in 0..3 {
        let read = ScsiCommand { exp_stat_sn: StatSn(u32::MAX), ..world.read(conn, 10) };
        let up = world.start(conn, &read, &[]);
        world.engine.data_in(up.task, 0, base::buffer::Bytes::copied_from(&pattern(0, 10)).into());
        world.finish(up.task, Finish::good(10));
    }
    let sent = data_ins(&mut world, conn);
    assert_eq!(sent.iter().map(|pdu| pdu.sn.stat_sn.0).collect::<Vec<_>>(), [u32::MAX, 0, 1]);
    let exp_stat_sn = StatSn(u32::MAX);
    let all = Snack { exp_stat_sn, ..snack(SnackKind::STATUS, Itt::NONE, (u32::MAX, 3)) };
    world.send(conn, &all, &[]);
    let again = data_ins(&mut world, conn);
    assert_eq!(
        again.iter().map(|pdu| pdu.sn.stat_sn).collect::<Vec<_>>(),
        [StatSn(u32::MAX), StatSn(0), StatSn(1)]
    );
    ack(&mut world, conn, StatSn(1));
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (0, 0)), &[]);
    assert_eq!(data_ins(&mut world, conn).len(), 1);
    // Numbers that were not sent acknowledge nothing.
    for bad in [StatSn(3), StatSn(0), StatSn(1 << 31)] {
        ack(&mut world, conn, bad);
        world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (1, 1)), &[]);
        assert_eq!(data_ins(&mut world, conn).len(), 1, "{bad:?}");
    }
    // Data.
    let read = world.read(conn, 4000);
    let up = world.start(conn, &read, &[]);
    let task = world.engine.tasks.get_mut(up.task.0).unwrap();
    task.data_in.set_next_sn(DataSn(u32::MAX - 1));
    world.data_in(up.task, 0, &pattern(0, 4000));
    let sent = data_ins(&mut world, conn);
    assert_eq!(sent.iter().map(|pdu| pdu.data_sn.0).collect::<Vec<_>>(), [u32::MAX - 1, u32::MAX, 0, 1]);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, read.itt, (u32::MAX, 2)), &[]);
    assert_eq!(data_ins(&mut world, conn), sent[1..3]);
    // R2Ts.
    let write = world.write(conn, 4000);
    let up = world.start(conn, &write, &[]);
    world.engine.tasks.get_mut(up.task.0).unwrap().data_out.set_next_r2t_sn(R2tSn(u32::MAX));
    world.fetch(up.task, 0, 4000);
    let r2t: R2t = world.expect(conn);
    answer_r2t(&mut world, conn, &write, as_asked(&r2t), 1000, (&[], &[3]));
    world.pass(Duration::from_secs(8));
    let recovery = core::iter::from_fn(|| world.receive(conn)).find(|got| got.bhs.opcode() == Opcode::R2T);
    let recovery: R2t = recovery.unwrap().read();
    assert_eq!((r2t.r2t_sn, recovery.r2t_sn), (R2tSn(u32::MAX), R2tSn(0)));
    answer_r2t(&mut world, conn, &write, as_asked(&recovery), 1000, (&[], &[]));
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 4000));
}

/// Changes the MaxRecvDataSegmentLength of the initiator.
fn set_segment_length(world: &mut World, conn: ConnId, size: u32) {
    let text = TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: 0,
        itt: Itt(77),
        ttt: Ttt::NONE,
        cmd_sn: world.numbers(conn).1,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &text, alloc::format!("MaxRecvDataSegmentLength={size}\0").as_bytes());
    world.expect::<TextResponse>(conn);
}

#[test]
fn a_response_waits_for_the_data_that_is_cut_again() {
    //= rfc7143#section-11.16.3
    //= type=test
    //# A target that has received a R-Data SNACK MUST return a SCSI Response that contains a copy of the SNACK
    //# Tag field from the R-Data SNACK in the SCSI Response SNACK Tag field as its last or only Response.
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 12_000);
    world.stalled.insert(conn);
    world.send(conn, &Snack { tag: 9, ..snack(SnackKind::R_DATA, itt, (0, 0)) }, &[]);
    let status = sent.last().unwrap().sn.stat_sn;
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    world.stalled.remove(&conn);
    world.transmit(conn);
    for data in &sent {
        assert_eq!(world.expect::<DataIn>(conn).buffer_offset, data.buffer_offset);
    }
    let response: ScsiResponse = world.expect(conn);
    assert_eq!((response.snack_tag, response.exp_data_sn.0), (9, u32::try_from(sent.len()).unwrap()));
    world.expect_silence(conn);
}

#[test]
fn however_much_is_asked_for_again_it_leaves_in_bounded_batches() {
    let mut world = world();
    let (conn, _) = world.login(&[LEVEL, "MaxRecvDataSegmentLength=8192", "MaxBurstLength=16776192"]);
    // The world checks the size of each batch.
    let (itt, sent) = read_all(&mut world, conn, 3 << 20);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (0, 0)), &[]);
    assert_eq!(data_ins(&mut world, conn), sent);
    ack(&mut world, conn, sent.last().unwrap().sn.stat_sn.next());
    let echoed: Vec<_> = (0..330)
        .map(|_| {
            let (itt, cmd_sn) = world.numbers(conn);
            let exp_stat_sn = sent.last().unwrap().sn.stat_sn.next();
            let ping = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn };
            world.send(conn, &ping, &pattern(itt.0, 4000));
            let got: Vec<_> = core::iter::from_fn(|| world.receive(conn)).collect();
            // The target asks for an acknowledgement, too.
            as_kept(got.iter().find(|got| got.bhs.itt() == itt).expect("an answer"))
        })
        .collect();
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (0, 0)), &[]);
    let again: Vec<_> = core::iter::from_fn(|| world.receive(conn)).map(|got| as_kept(&got)).collect();
    assert!(again == echoed, "{} of {}", again.len(), echoed.len());
    assert_eq!(world.engine.stats().snacks, 2);
}

#[test]
fn resegmented_data_is_sent_again_before_the_task_ends_and_the_response_has_the_tag() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let read = world.read(conn, 4096);
    let task = world.start(conn, &read, &[]).task;
    world.data_in(task, 0, &pattern(0, 2048));
    let sent = data_ins(&mut world, conn);
    assert_eq!(sent.len(), 2);
    let again = Snack { tag: 77, ..snack(SnackKind::R_DATA, read.itt, (0, 0)) };
    world.send(conn, &again, &[]);
    assert_eq!(data_ins(&mut world, conn), sent);
    world.data_in(task, 2048, &pattern(2048, 2048));
    world.finish(task, Finish::good(4096));
    let mut offsets = Vec::new();
    let response = loop {
        let got = world.expect_any(conn);
        if got.bhs.opcode() != Opcode::DATA_IN {
            break got.read::<ScsiResponse>();
        }
        offsets.push(got.read::<DataIn>().buffer_offset);
    };
    assert_eq!(offsets, [2048, 3072]);
    assert_eq!((response.itt, response.snack_tag, response.exp_data_sn), (read.itt, 77, DataSn(4)));
    world.expect_silence(conn);
}
