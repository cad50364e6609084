//! Command numbers, tags, immediate commands, residuals, and the order of output.

use alloc::vec::Vec;

use base::state_machine::Action;
use base::time::Duration;
use transport::command::TaskAttribute;
use transport::initiator::Residual;
use transport::target::{Command, Finish, TargetTransport};

use super::world::{Got, LUN, World, keys, pattern};
use crate::negotiate::KeyPolicy;
use crate::pdu::ahs::Ahs;
use crate::pdu::data_in::DataIn;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::{Itt, Opcode, PduHeader, Ttt};
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::target::contract::{Event, SessionEnd, SessionLimits};
use crate::target::engine::Limits;
use crate::target::protocol_error::ProtocolError;

#[test]
fn commands_are_handed_up_in_the_order_of_their_numbers() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# the iSCSI target layer MUST deliver the commands for execution in the order specified
    //# by the CmdSN.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let first = world.command(conn);
    for offset in [2, 1, 3] {
        let late = ScsiCommand {
            itt: Itt(first.itt.0 + offset),
            cmd_sn: first.cmd_sn.plus(offset),
            lun: u64::from(offset),
            ..first
        };
        world.send(conn, &late, &[]);
        world.expect_silence(conn);
    }
    world.send(conn, &ScsiCommand { lun: 0, ..first }, &[]);
    let luns: Vec<u64> = core::iter::from_fn(|| world.next_event())
        .map(|event| match event {
            Event::Command(command) => command.lun,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(luns, [0, 1, 2, 3]);
}

#[test]
fn an_immediate_command_is_handed_up_at_once_and_takes_no_number() {
    //= rfc7143#section-11.12.8
    //= type=test
    //# If the Login Request is a leading Login Request, the target MUST use the value presented in the CmdSN
    //# as the target value for the ExpCmdSN.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let early = ScsiCommand { cmd_sn: CmdSn(101), ..world.command(conn) };
    world.send(conn, &early, &[]);
    let now = ScsiCommand { immediate: true, lun: 7, ..world.command(conn) };
    let up = world.start(conn, &now, &[]);
    assert_eq!(up.lun, 7);
    world.finish(up.task, Finish::good(0));
    assert_eq!(world.expect::<ScsiResponse>(conn).sn.exp_cmd_sn, CmdSn(100));
}

#[test]
fn numbers_outside_the_window_and_duplicates_are_ignored() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# The target MUST silently ignore any non-immediate command outside of this range or
    //# non-immediate duplicates within the range.
    let mut world = World::with(Limits { queue_depth: 4, ..Limits::default() }, keys());
    let (conn, _) = world.login(&[]);
    let command = world.command(conn);
    for sn in [99, 104, 100 + (1 << 31), 0] {
        world.send(conn, &ScsiCommand { cmd_sn: CmdSn(sn), ..command }, &[]);
        world.expect_silence(conn);
    }
    let early = ScsiCommand { cmd_sn: CmdSn(103), ..command };
    world.send(conn, &early, &[]);
    world.send(conn, &ScsiCommand { itt: Itt(77), ..early }, &[]);
    world.expect_silence(conn);
    assert_eq!(world.engine.stats().ignored, 5);
    assert_eq!(world.ended(conn), None);
    // The same holds for requests that are not commands.
    let ping = NopOut {
        immediate: false,
        lun: 0,
        itt: Itt(5),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(103),
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &ping, b"data");
    world.send(conn, &NopOut { cmd_sn: CmdSn(99), ..ping }, b"data");
    world.expect_silence(conn);
    assert_eq!(world.engine.stats().ignored, 7);
}

#[test]
fn the_window_closes_while_commands_are_open_and_opens_as_they_end() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# A target command response or Data-In PDU with status MUST NOT precede the command
    //# acknowledgment.
    let mut world = World::with(Limits { queue_depth: 2, ..Limits::default() }, keys());
    let (conn, _) = world.login(&[]);
    let tasks: Vec<Command> = (0..2)
        .map(|_| {
            let command = world.command(conn);
            world.start(conn, &command, &[])
        })
        .collect();
    let beyond = world.command(conn);
    world.send(conn, &beyond, &[]);
    world.expect_silence(conn);
    let ping = NopOut {
        immediate: true,
        lun: 0,
        itt: Itt(9),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(102),
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &ping, &[]);
    let closed: NopIn = world.expect(conn);
    assert_eq!((closed.sn.exp_cmd_sn, closed.sn.max_cmd_sn), (CmdSn(102), CmdSn(101)));
    for (task, max) in tasks.iter().zip([102, 103]) {
        world.finish(task.task, Finish::good(0));
        let response: ScsiResponse = world.expect(conn);
        assert_eq!((response.sn.exp_cmd_sn, response.sn.max_cmd_sn), (CmdSn(102), CmdSn(max)));
    }
    world.start(conn, &beyond, &[]);
}

#[test]
fn a_number_that_stays_missing_ends_the_session() {
    let limits = Limits { gap_within: Duration::from_secs(3), ..Limits::default() };
    let mut world = World::with(limits, keys());
    let (conn, up) = world.login(&[]);
    let command = world.command(conn);
    let early = ScsiCommand { cmd_sn: CmdSn(101), ..command };
    world.send(conn, &early, &[]);
    world.pass(Duration::from_millis(2999));
    // The gap was filled in time, so the session continues, however long the command takes.
    world.send(conn, &ScsiCommand { itt: Itt(99), ..command }, &[]);
    assert_eq!(world.events.drain(..).count(), 2);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.ended(conn), None);
    world.send(conn, &ScsiCommand { cmd_sn: CmdSn(105), itt: Itt(98), ..command }, &[]);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    let events: Vec<Event> = world.events.drain(..).collect();
    match events.as_slice() {
        [Event::TaskGone { .. }, Event::TaskGone { .. }, Event::SessionDown { session, why }] => {
            assert_eq!((*session, *why), (up.session, SessionEnd::Misbehaved(ProtocolError::CmdSnHole)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tag_in_use_and_the_reserved_tag_are_rejected_and_leave_a_gap() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# Testing for the execution state (represented by identifying the Initiator Task Tag)
    //# MUST precede any other action at the target.
    //= rfc7143#section-7.3
    //= type=test
    //# The CmdSN of the rejected command PDU (if it is a non-immediate command) MUST NOT be considered
    //# received by the target (i.e., a command sequence gap must be assumed for the CmdSN), even though the
    //# CmdSN of the rejected command PDU may be reliably ascertained.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let command = world.command(conn);
    let up = world.start(conn, &command, &[]);
    for (itt, reason) in
        [(command.itt, RejectReason::TASK_IN_PROGRESS), (Itt::NONE, RejectReason::INVALID_PDU_FIELD)]
    {
        let bad = ScsiCommand { itt, cmd_sn: CmdSn(101), ..command };
        world.send(conn, &bad, &[]);
        let got = world.expect_any(conn);
        let reject: Reject = got.read();
        assert_eq!(reject.reason, reason);
        assert_eq!(reject.sn.exp_cmd_sn, CmdSn(101), "its number is still to come");
        assert_eq!(got.data, bad.encode().to_bytes(), "the Reject shows the header");
    }
    world.finish(up.task, Finish::good(0));
    world.expect::<ScsiResponse>(conn);
    // The tag is free again, and the gap in the CmdSNs is filled.
    world.start(conn, &ScsiCommand { cmd_sn: CmdSn(101), ..command }, &[]);
}

#[test]
fn immediate_commands_beyond_the_limit_are_rejected() {
    let mut world = World::with(Limits { immediate_max: 2, ..Limits::default() }, keys());
    let (conn, _) = world.login(&[]);
    let mut first = None;
    for at in 0..3 {
        let command = ScsiCommand { immediate: true, ..world.command(conn) };
        world.send(conn, &command, &[]);
        if at < 2 {
            first.get_or_insert(world.expect_command().task);
        }
    }
    assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::TOO_MANY_IMMEDIATE);
    world.finish(first.unwrap(), Finish::good(0));
    world.expect::<ScsiResponse>(conn);
    let command = ScsiCommand { immediate: true, ..world.command(conn) };
    world.start(conn, &command, &[]);
}

#[test]
fn residuals_compare_what_was_expected_with_what_could_move() {
    //= rfc7143#section-11.4.5.1
    //= type=test
    //# The Residual Count field MUST be valid in the case where either the U bit or the O bit is set.
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# If SPDTL > EDTL for a task, iSCSI Overflow MUST be signaled in the SCSI Response PDU as specified in
    //# Section 11.4.5.1.
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# The Residual Count MUST be set to the numerical value of (SPDTL - EDTL).
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# If SPDTL < EDTL for a task, iSCSI Underflow MUST be signaled in the SCSI Response PDU as specified in
    //# Section 11.4.5.1.
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# The Residual Count MUST be set to the numerical value of (EDTL - SPDTL).
    //= rfc7143#section-11.4.5.3
    //= type=test
    //# If all of the LU inventory data presented to the iSCSI layer -- i.e., the data remaining after any
    //# SCSI truncation -- is transferred to the initiator by the iSCSI layer, an iSCSI Residual Overflow has
    //# not occurred and the iSCSI (O) bit MUST NOT be set in the SCSI Response or final SCSI Data-Out PDU.
    //= rfc7143#section-11.4.5.3
    //= type=test
    //# However, if the iSCSI EDTL is larger than the ALLOCATION LENGTH in this scenario, note that the iSCSI
    //# Underflow MUST be signaled in the SCSI Response PDU.
    //= rfc7143#section-11.4.5.3
    //= type=test
    //# An iSCSI Underflow MUST also be signaled when the iSCSI EDTL is equal to the ALLOCATION LENGTH but the
    //# LU inventory data presented to the iSCSI layer is smaller than the ALLOCATION LENGTH.
    for (read, expected, sent, transferable, residual) in [
        (true, 512, 512, 512, Residual::None),
        (true, 512, 100, 100, Residual::Underflow(412)),
        (true, 512, 512, 4096, Residual::Overflow(3584)),
        (true, 0, 0, 36, Residual::Overflow(36)),
        (false, 512, 0, 512, Residual::None),
        (false, 512, 0, 0, Residual::Underflow(512)),
        (false, 512, 0, 1024, Residual::Overflow(512)),
    ] {
        let mut world = World::new();
        let (conn, _) = world.login(&[]);
        let command = ScsiCommand {
            read,
            write: !read,
            expected_data_transfer_length: expected,
            ..world.command(conn)
        };
        let up = world.start(conn, &command, &[]);
        if sent > 0 {
            world.engine.data_in(up.task, 0, base::buffer::Bytes::copied_from(&pattern(0, sent)).into());
        }
        world.finish(up.task, Finish::good(transferable));
        let got = world.expect_any(conn);
        let found = if got.bhs.opcode() == Opcode::DATA_IN {
            got.read::<DataIn>().status.unwrap().residual
        } else {
            got.read::<ScsiResponse>().residual
        };
        assert_eq!(found, residual, "{read} {expected} {sent} {transferable}");
        world.expect_silence(conn);
    }
}

#[test]
fn sense_data_comes_in_a_response_of_its_own_behind_the_data() {
    //= rfc7143#section-4.6.1.2
    //= type=test
    //# The use of Autosense ([SAM2]) is REQUIRED by iSCSI.
    //= rfc7143#section-11.4.7
    //= type=test
    //# iSCSI targets MUST support and enable Autosense.
    //= rfc7143#section-11.4.7
    //= type=test
    //# If Status is CHECK CONDITION (0x02), then the data segment MUST contain sense data for the failed
    //# command.
    //= rfc7143#section-11.7.3
    //= type=test
    //# If the command is completed with an error, then the response and sense data MUST be sent in a SCSI
    //# Response PDU (i.e., MUST NOT be sent in a SCSI data packet).
    let mut world = World::new();
    let (conn, _) = world.login(&["DataDigest=CRC32C"]);
    let command = world.read(conn, 1000);
    let up = world.start(conn, &command, &[]);
    world.engine.data_in(up.task, 0, base::buffer::Bytes::copied_from(&[9; 301]).into());
    let sense = [0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0];
    world.finish(up.task, Finish { status: 2, sense: &sense, transferable: 301, is_unit_attention: false });
    let data: DataIn = world.expect(conn);
    assert!(data.is_final && data.status.is_none());
    let got = world.expect_any(conn);
    let response: ScsiResponse = got.read();
    assert_eq!((response.status, response.exp_data_sn), (2, DataSn(1)));
    assert_eq!(response.residual, Residual::Underflow(699));
    assert_eq!(got.data, [&[0, 18][..], &sense].concat());
    world.expect_silence(conn);
}

#[test]
fn data_is_cut_at_the_burst_and_a_sequence_ends_where_nothing_more_is_there() {
    //= rfc7143#section-11.7.1
    //= type=test
    //# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent, and the total
    //# of all the DataSegmentLength of all PDUs in a sequence MUST NOT exceed MaxBurstLength (or
    //# FirstBurstLength for unsolicited data).
    let mut world = World::new();
    let (conn, _) =
        world.login(&["MaxRecvDataSegmentLength=1024", "MaxBurstLength=2560", "FirstBurstLength=2560"]);
    let command = world.read(conn, 6000);
    let up = world.start(conn, &command, &[]);
    let data = pattern(0, 6000);
    world.data_in(up.task, 0, &data[..4000]);
    world.data_in(up.task, 4000, &data[4000..]);
    world.finish(up.task, Finish::good(6000));
    let pdus: Vec<Got> = core::iter::from_fn(|| world.receive(conn)).collect();
    let shape: Vec<(usize, bool)> =
        pdus.iter().map(|got| (got.data.len(), got.read::<DataIn>().is_final)).take(pdus.len() - 1).collect();
    assert_eq!(
        shape,
        [(1024, false), (1024, false), (512, true), (1024, false), (416, true), (1024, false), (976, true),]
    );
    assert_eq!(pdus.last().unwrap().read::<ScsiResponse>().exp_data_sn, DataSn(7));
    let all: Vec<u8> = pdus.iter().flat_map(|got| got.data.clone()).collect();
    assert_eq!(all, data);
}

#[test]
fn long_cdbs_and_bidirectional_lengths_come_in_additional_headers() {
    //= rfc7143#section-11.3.4
    //= type=test
    //# For bidirectional operations, an additional header segment MUST be present in the header sequence that
    //# indicates the Bidirectional Read Expected Data Transfer Length.
    //= rfc7143#section-11.4.6
    //= type=test
    //# The Bidirectional Read Residual Count field MUST be valid in the case where either the u bit or the o
    //# bit is set.
    let mut world = World::new();
    let (conn, _) = world.login(&["HeaderDigest=CRC32C"]);
    let rest = [3u8; 16];
    let ahs = Ahs { extended_cdb: Some(&rest), bidirectional_read_length: Some(600) };
    let command =
        ScsiCommand { read: true, write: true, expected_data_transfer_length: 512, ..world.command(conn) };
    world.count(conn);
    world.send_raw(conn, command.encode(), &ahs.to_bytes(), &[]);
    let up = world.expect_command();
    assert_eq!((up.cdb.len(), &up.cdb[16..]), (32, &rest[..]));
    assert_eq!((up.data_in_len, up.data_out_len), (600, 512));
    world.finish(up.task, Finish { status: 2, sense: &[0x70], transferable: 0, is_unit_attention: false });
    let response: ScsiResponse = world.expect(conn);
    assert_eq!(response.residual, Residual::Underflow(512));
    assert_eq!(response.bidirectional_read_residual, Residual::Underflow(600));

    for (ahs, opcode) in [(&[0u8, 9, 1, 0][..], Opcode::SCSI_COMMAND), (&[], Opcode::SCSI_COMMAND)] {
        let again = ScsiCommand {
            read: true,
            write: true,
            expected_data_transfer_length: 512,
            ..world.command(conn)
        };
        world.send_raw(conn, again.encode(), ahs, &[]);
        assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::INVALID_PDU_FIELD, "{opcode:?}");
    }
}

#[test]
fn a_window_that_grows_without_a_response_is_shown_in_a_ping() {
    //= rfc7143#section-11.4.11
    //= type=test
    //# When the MaxCmdSN changes at the target while the target has no pending PDUs to convey this information
    //# to the initiator, it MUST generate a NOP-In to carry the new MaxCmdSN.
    let mut world = World::with(Limits { queue_depth: 4, ..Limits::default() }, keys());
    let (conn, _) = world.login(&[]);
    // The tasks that another session ends, of those that fill the window or part of it.
    for (open, ended, is_shown) in [(4, 4, true), (4, 1, true), (3, 3, true), (2, 2, false)] {
        let tasks: Vec<_> = (0..open)
            .map(|_| {
                let command = world.command(conn);
                world.start(conn, &command, &[]).task
            })
            .collect();
        for task in &tasks[..ended] {
            world.engine.abort(*task);
        }
        world.drain();
        let next = CmdSn(world.peers[&conn].cmd_sn);
        if is_shown {
            let shown: NopIn = world.expect(conn);
            assert_eq!((shown.itt, shown.ttt), (Itt::NONE, Ttt::NONE));
            let room = 4 - u32::try_from(open - ended).unwrap();
            assert_eq!((shown.sn.exp_cmd_sn, shown.sn.max_cmd_sn), (next, next.plus(room).minus(1)));
        }
        world.expect_silence(conn);
        // A response shows the window itself.
        for task in &tasks[ended..] {
            world.finish(*task, Finish::good(0));
            world.expect::<ScsiResponse>(conn);
        }
        let last = world.command(conn);
        let last = world.start(conn, &last, &[]).task;
        world.finish(last, Finish::good(0));
        assert_eq!(world.expect::<ScsiResponse>(conn).sn.max_cmd_sn, next.plus(4));
        world.expect_silence(conn);
    }
}

#[test]
fn the_status_of_a_bidirectional_command_is_sent_in_a_response() {
    //= rfc7143#section-11.7.3
    //= type=test
    //# For bidirectional commands, the status MUST be sent in a SCSI Response PDU.
    for level in [0, 1] {
        let mut world = World::with(Limits::default(), KeyPolicy { error_recovery_level: level, ..keys() });
        let (conn, _) = world.login(&["ErrorRecoveryLevel=1"]);
        let ahs = Ahs { extended_cdb: None, bidirectional_read_length: Some(600) };
        let command = ScsiCommand {
            read: true,
            write: true,
            expected_data_transfer_length: 512,
            ..world.command(conn)
        };
        world.count(conn);
        world.send_raw(conn, command.encode(), &ahs.to_bytes(), &pattern(0, 512));
        let task = world.expect_command().task;
        // The data is still queued when the task ends.
        world.stalled.insert(conn);
        world.data_in(task, 0, &pattern(0, 500));
        world.finish(task, Finish::good(512));
        world.stalled.clear();
        world.transmit(conn);
        let data: DataIn = world.expect(conn);
        assert!(data.is_final);
        assert_eq!(data.status, None);
        let response: ScsiResponse = world.expect(conn);
        assert_eq!((response.status, response.residual), (0, Residual::None));
        assert_eq!(response.bidirectional_read_residual, Residual::Underflow(100));
        assert_eq!(response.exp_data_sn, DataSn(1));
        world.expect_silence(conn);
    }
}

#[test]
fn attributes_and_priority_pass_and_reserved_ones_are_rejected() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    for attribute in 0..5 {
        let command = ScsiCommand { attribute: TaskAttribute(attribute), priority: 5, ..world.command(conn) };
        let up = world.start(conn, &command, &[]);
        assert_eq!((up.attribute.0, up.priority, up.lun), (attribute, 5, LUN));
    }
    let command = ScsiCommand { attribute: TaskAttribute(5), ..world.command(conn) };
    world.send(conn, &command, &[]);
    assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::INVALID_PDU_FIELD);
}

#[test]
fn answers_that_are_not_read_hold_the_next_commands_back() {
    use base::buffer::Bytes;
    use base::transmit::Transmit;
    let mut world = World::with(Limits { unsent_bytes_max: 1 << 20, ..Limits::default() }, keys());
    let (conn, _) = world.login(&["MaxRecvDataSegmentLength=262144"]);
    let first = world.read(conn, 4 << 20);
    let first = world.start(conn, &first, &[]).task;
    // The driver has no free space, so no output is drained.
    let block = Bytes::copied_from(&pattern(0, 1 << 20));
    for at in 0..4 {
        world.engine.data_in(first, at << 20, block.clone().into());
    }
    let second = world.read(conn, 512);
    world.count(conn);
    let bytes = world.frame(conn, second.encode(), &[], &[]);
    world.engine.received(world.now, conn, &bytes, &world.names);
    assert!(world.engine.poll_event().is_none(), "four times the limit waits");
    // Another logical unit is not held back.
    let third = ScsiCommand { lun: 2, ..world.read(conn, 512) };
    world.count(conn);
    let bytes = world.frame(conn, third.encode(), &[], &[]);
    world.engine.received(world.now, conn, &bytes, &world.names);
    assert!(matches!(world.engine.poll_event(), Some(Event::Command(command)) if command.lun == 2));
    assert_eq!(world.engine.sessions().next().unwrap().unsent_bytes, (4 << 20) + 512);
    let mut sent = 0;
    let up = loop {
        let mut out = Transmit::new();
        world.engine.transmit(world.now, conn, &mut out);
        assert!(out.len() <= Transmit::BATCH_BYTES + (256 << 10) + 48);
        assert!(!out.is_empty(), "all was sent, and the command still waits");
        sent += out.len();
        if let Some(event) = world.engine.poll_event() {
            break event;
        }
    };
    assert!(sent < (4 << 20), "it passes before all is gone");
    assert!(matches!(up, Event::Command(command) if command.lun == LUN));
}

/// A command may wait for data of another command that its initiator withholds, so it is not answered.
#[test]
fn a_command_that_claims_all_memory_and_does_not_end_leaves_room_for_others() {
    use base::buffer::Bytes;
    let mut world = World::with(Limits { data_in_bytes_max: 1 << 20, ..Limits::default() }, keys());
    let (greedy, _) = world.login(&[]);
    let claim = world.read(greedy, u32::MAX);
    let claim = world.start(greedy, &claim, &[]);
    assert_eq!(claim.data_in_len, u32::MAX);
    let modest = world.connect();
    world.login_on(modest, 1, &[]);
    for len in [200 << 10, 256 << 10] {
        let read = world.read(modest, len);
        let task = world.start(modest, &read, &[]).task;
        world.engine.data_in(task, 0, Bytes::copied_from(&[1; 100]).into());
        world.finish(task, Finish::good(100));
    }
    // Data beyond the reservation of the command is charged once, when it is supplied.
    world.engine.data_in(claim.task, 0, Bytes::copied_from(&pattern(0, 3 << 20)).into());
    assert_eq!(world.engine.data_bytes(), 3 << 20);
    world.finish(claim.task, Finish::good(3 << 20));
    assert_eq!(world.engine.data_bytes(), 0);
}

#[test]
fn a_long_answer_lets_others_pass_after_each_burst() {
    let mut world = World::new();
    let (conn, _) = world.login(&["MaxBurstLength=8192", "FirstBurstLength=8192"]);
    let long = world.read(conn, 64 << 10);
    let long = world.start(conn, &long, &[]).task;
    let short = world.read(conn, 512);
    let short = world.start(conn, &short, &[]).task;
    world.engine.data_in(long, 0, base::buffer::Bytes::copied_from(&[1; 64 << 10]).into());
    world.engine.finish(long, Finish::good(64 << 10));
    world.engine.data_in(short, 0, base::buffer::Bytes::copied_from(&[2; 512]).into());
    world.finish(short, Finish::good(512));
    let order: Vec<u8> = core::iter::from_fn(|| world.receive(conn)).map(|got| got.data[0]).collect();
    assert_eq!(order, [1, 2, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn the_layer_above_cannot_send_beyond_what_the_initiator_expects() {
    for (offset, len) in [(0, 513), (1, 1)] {
        let mut world = World::new();
        let (conn, _) = world.login(&[]);
        let command = world.read(conn, 512);
        let up = world.start(conn, &command, &[]);
        world.data_in(up.task, offset, &pattern(0, len));
        assert_eq!(world.engine.stats().bugs, 1);
        assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    }
}

#[test]
fn a_changed_depth_counts_for_the_sessions_at_hand_and_takes_nothing_back() {
    let mut world = World::with(Limits { queue_depth: 4, ..Limits::default() }, keys());
    let (conn, up) = world.login(&[]);
    let other = world.connect();
    let other_up = world.login_on(other, 2, &[]);
    let depth = |queue_depth| SessionLimits { queue_depth, ..Limits::default().of_session() };
    let reach = |world: &mut World, conn| {
        let (itt, cmd_sn) = world.numbers(conn);
        let ping = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
        world.send(conn, &ping, &[]);
        let sn = world.expect::<NopIn>(conn).sn;
        sn.exp_cmd_sn.distance_to(sn.max_cmd_sn).wrapping_add(1)
    };
    assert_eq!(reach(&mut world, conn), 4);
    // A deeper window is granted at once, with and without a depth of the target's own.
    let now = world.now;
    world.engine.set_session_limits(now, depth(16), [].into());
    assert_eq!((reach(&mut world, conn), reach(&mut world, other)), (16, 16));
    // A connection retains the statuses of two of the deepest windows, and some more.
    let retained = world.engine.unacked_max();
    world.engine.set_session_limits(now, depth(1), [(up.target, depth(32))].into());
    assert_eq!(world.engine.unacked_max(), retained + 2 * (32 - 16));
    assert_eq!(other_up.target, up.target);
    assert_eq!((reach(&mut world, conn), reach(&mut world, other)), (32, 32));
    // With a shallower window, the MaxCmdSN already granted holds until it is used up.
    world.engine.set_session_limits(now, depth(2), [].into());
    assert_eq!(reach(&mut world, conn), 32);
    let mut tasks = Vec::new();
    for left in (0..32).rev() {
        let read = world.read(conn, 0);
        tasks.push(world.start(conn, &read, &[]).task);
        assert_eq!(reach(&mut world, conn), left);
    }
    for (ended, task) in tasks.into_iter().enumerate() {
        world.finish(task, Finish::good(0));
        let _: ScsiResponse = world.expect(conn);
        let open = 31 - ended;
        assert_eq!(reach(&mut world, conn), u32::try_from(2_usize.saturating_sub(open)).unwrap());
    }
}
