//! Data from the initiator: sequences that keep every rule, and sequences that break one.

use alloc::vec::Vec;

use base::buffer::Bytes;
use base::state_machine::{ConnId, DisconnectReason};
use base::time::Duration;
use transport::target::{Finish, TargetTransport, TaskRef};

use super::world::{World, data_out, keys, pattern};
use crate::pdu::data_out::DataOut;
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::{Itt, Opcode, PduHeader, Ttt};
use crate::recovery::TransportSense;
use crate::serial::{DataSn, R2tSn, StatSn};
use crate::target::contract::Event;
use crate::target::engine::Limits;

const KEYS: [&str; 5] = [
    "InitialR2T=No",
    "ImmediateData=Yes",
    "FirstBurstLength=4096",
    "MaxBurstLength=8192",
    "MaxOutstandingR2T=2",
];

fn unsolicited(command: &ScsiCommand, sn: u32, offset: u32, is_final: bool) -> DataOut {
    DataOut { lun: 0, ..data_out(command, Ttt::NONE, sn, offset, is_final) }
}

pub(super) fn answer(r2t: &R2t, sn: u32, offset: u32, is_final: bool) -> DataOut {
    DataOut {
        is_final,
        lun: r2t.lun,
        itt: r2t.itt,
        ttt: r2t.ttt,
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(sn),
        buffer_offset: r2t.buffer_offset + offset,
    }
}

/// Answers an R2T in one PDU.
pub(super) fn obey(world: &mut World, conn: ConnId, r2t: &R2t) {
    let data = pattern(r2t.buffer_offset, r2t.desired_data_transfer_length as usize);
    world.send(conn, &answer(r2t, 0, 0, true), &data);
}

/// Expects that a task of the layer above is ended by the transport and fails with `condition`.
fn expect_failure(
    world: &mut World,
    conn: ConnId,
    name: &str,
    task: Option<TaskRef>,
    condition: TransportSense,
) {
    if let Some(task) = task {
        match world.next_event() {
            Some(Event::TaskGone { task: gone }) => assert_eq!(gone, task, "{name}"),
            other => panic!("{name}: expected the task to go, got {other:?}"),
        }
    }
    let got = world.expect_any(conn);
    assert_eq!(got.read::<ScsiResponse>().status, 2, "{name}");
    assert_eq!(got.data[2..], condition.sense(), "{name}");
    world.expect_silence(conn);
}

#[test]
fn the_first_burst_must_keep_to_its_rules() {
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# All subsequent data MUST be solicited.
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# the total unsolicited data MUST be either FirstBurstLength or all of the data, if the
    //# total amount is less than the FirstBurstLength.
    //= rfc7143#section-7.9
    //= type=test
    //# The target MUST address these implied digest errors as described in Section 7.8.
    enum Step {
        Send(u32, u32, usize, bool),
        Fails(TransportSense),
        Works,
    }
    use Step::{Fails, Send, Works};
    let amount = TransportSense::IncorrectAmountOfData;
    for (name, len, immediate, steps) in [
        ("all of it", 9000, 1000, &[Send(0, 1000, 2000, false), Send(1, 3000, 1096, true), Works][..]),
        ("without immediate data", 9000, 0, &[Send(0, 0, 4096, true), Works]),
        ("the whole command", 3000, 0, &[Send(0, 0, 3000, true), Works]),
        ("less than the whole, but within", 3000, 500, &[Send(0, 500, 500, true), Works]),
        ("too little", 9000, 1000, &[Send(0, 1000, 2000, true), Fails(amount)]),
        ("nothing", 9000, 1000, &[Send(0, 1000, 0, true), Fails(amount)]),
        ("too much", 9000, 1000, &[Send(0, 1000, 3097, true), Fails(amount)]),
        ("beyond the command", 3000, 1000, &[Send(0, 1000, 2001, true), Fails(amount)]),
        (
            "a number missing",
            9000,
            1000,
            &[Send(1, 1000, 2000, false), Send(2, 3000, 1096, true), Fails(TransportSense::CrcError)],
        ),
        (
            "a number twice",
            9000,
            1000,
            &[Send(0, 1000, 2000, false), Send(0, 3000, 1096, true), Fails(TransportSense::CrcError)],
        ),
        ("a gap", 9000, 1000, &[Send(0, 2000, 2096, true), Fails(TransportSense::DataOffsetError)]),
        ("an overlap", 9000, 1000, &[Send(0, 500, 3596, true), Fails(TransportSense::DataOffsetError)]),
        ("an offset near 2^32", 9000, 1000, &[Send(0, u32::MAX, 4, true), Fails(amount)]),
    ] {
        let mut world = World::new();
        let (conn, _) = world.login(&KEYS);
        let command = ScsiCommand { is_final: false, ..world.write(conn, len) };
        let task = world.start(conn, &command, &pattern(0, immediate)).task;
        let mut end = u32::try_from(immediate).unwrap();
        for step in steps {
            match step {
                Send(sn, offset, len, is_final) => {
                    world.send(
                        conn,
                        &unsolicited(&command, *sn, *offset, *is_final),
                        &pattern(*offset, *len),
                    );
                    end = offset.wrapping_add(u32::try_from(*len).unwrap());
                }
                Fails(condition) => {
                    expect_failure(&mut world, conn, name, Some(task), *condition);
                }
                Works => {
                    world.fetch(task, 0, end);
                    assert_eq!(world.expect_data(task, 0), pattern(0, end as usize), "{name}");
                    world.expect_silence(conn);
                }
            }
        }
    }
}

#[test]
fn unsolicited_data_must_have_been_agreed_on() {
    //= rfc7143#section-11.8
    //= type=test
    //# In order to allow write operations without an explicit initial R2T, the initiator and target MUST have
    //# negotiated the key InitialR2T to No during login.
    for (name, keys, write, is_final, immediate, condition) in [
        (
            "immediate data although there is none",
            &["ImmediateData=No"][..],
            true,
            true,
            512,
            TransportSense::UnexpectedUnsolicitedData,
        ),
        (
            "a first burst although R2T comes first",
            &["InitialR2T=Yes"],
            true,
            false,
            0,
            TransportSense::UnexpectedUnsolicitedData,
        ),
        ("immediate data of a read", &KEYS, false, true, 512, TransportSense::UnexpectedUnsolicitedData),
        (
            "more immediate data than the first burst",
            &KEYS,
            true,
            true,
            4100,
            TransportSense::IncorrectAmountOfData,
        ),
        (
            "more immediate data than the command",
            &KEYS,
            true,
            true,
            2000,
            TransportSense::IncorrectAmountOfData,
        ),
    ] {
        let mut world = World::new();
        let (conn, _) = world.login(keys);
        let len = if immediate == 2000 { 1000 } else { 8192 };
        let command = ScsiCommand {
            read: !write,
            write,
            is_final,
            expected_data_transfer_length: len,
            ..world.command(conn)
        };
        world.issue(conn, &command, &pattern(0, immediate));
        if !is_final {
            // The target waits for the end of the sequence although it discards the data.
            world.expect_silence(conn);
            world.send(conn, &unsolicited(&command, 0, 0, true), &pattern(0, 4096));
        }
        expect_failure(&mut world, conn, name, None, condition);
        // The command number was used, and the session continues.
        let next = world.command(conn);
        world.start(conn, &next, &[]);
    }
}

#[test]
fn data_that_nobody_waits_for_is_told_from_data_out_of_place() {
    let mut world = World::new();
    let (conn, _) = world.login(&KEYS);
    // Data for an unknown task is ignored, because the task may have been aborted.
    let stray = unsolicited(&ScsiCommand { itt: Itt(4711), ..world.command(conn) }, 0, 0, true);
    world.send(conn, &stray, &pattern(0, 100));
    world.expect_silence(conn);
    // Data for a task whose unsolicited data is complete.
    let command = world.write(conn, 8192);
    let task = world.start(conn, &command, &[]).task;
    world.send(conn, &unsolicited(&command, 0, 0, true), &pattern(0, 100));
    expect_failure(&mut world, conn, "", Some(task), TransportSense::UnexpectedUnsolicitedData);
    // Data for a task that reads.
    let command = world.read(conn, 8192);
    let task = world.start(conn, &command, &[]).task;
    world.send(conn, &unsolicited(&command, 0, 0, true), &pattern(0, 100));
    expect_failure(&mut world, conn, "", Some(task), TransportSense::UnexpectedUnsolicitedData);
}

#[test]
fn r2ts_ask_for_what_is_wanted_in_bursts_and_no_more_at_a_time_than_agreed() {
    //= rfc7143#section-11.4.8
    //= type=test
    //# This field MUST be 0 if the response code is not Command Completed at Target or the target sent no
    //# Data-In PDUs for the command.
    //= rfc7143#section-11.8
    //= type=test
    //# If DataSequenceInOrder is Yes, then consecutive R2Ts MUST refer to continuous non-overlapping ranges,
    //# except for Recovery-R2Ts.
    //= rfc7143#section-11.8.4
    //= type=test
    //# The Desired Data Transfer Length MUST NOT be 0 and MUST NOT exceed MaxBurstLength.
    let mut world = World::new();
    let (conn, _) = world.login(&KEYS);
    let command = world.write(conn, 40_000);
    let task = world.start(conn, &command, &[]).task;
    world.fetch(task, 0, 20_000);
    world.fetch(task, 20_000, 20_000);
    let mut open: Vec<R2t> = Vec::new();
    let mut asked = Vec::new();
    loop {
        while let Some(got) = world.receive(conn) {
            let r2t: R2t = got.read();
            assert_eq!(r2t.r2t_sn, R2tSn(u32::try_from(asked.len()).unwrap()));
            asked.push((r2t.buffer_offset, r2t.desired_data_transfer_length));
            open.push(r2t);
        }
        if open.is_empty() {
            break;
        }
        assert!(open.len() <= 2);
        let r2t = open.remove(0);
        obey(&mut world, conn, &r2t);
    }
    assert_eq!(
        asked,
        [(0, 8192), (8192, 8192), (16384, 3616), (20_000, 8192), (28_192, 8192), (36_384, 3616)]
    );
    assert_eq!(world.expect_data(task, 0), pattern(0, 20_000));
    assert_eq!(world.expect_data(task, 20_000), pattern(20_000, 20_000));
    world.finish(task, Finish::good(40_000));
    //= rfc7143#section-11.4.8 type=test
    //# This field MUST be 0 if the response code is not Command Completed at
    //# Target or the target sent no Data-In PDUs for the command.
    assert_eq!(world.expect::<ScsiResponse>(conn).exp_data_sn, DataSn(0));
}

#[test]
fn answers_to_r2ts_must_keep_to_them() {
    //= rfc7143#section-7.3
    //= type=test
    //# Targets MUST NOT implicitly terminate an active task by sending a Reject PDU for any PDU exchanged
    //# during the life of the task.
    //= rfc7143#section-11.17.1
    //= type=test
    //# In all the cases in which a pre-instantiated SCSI task is terminated because of the reject, the target
    //# MUST issue a proper SCSI command response with CHECK CONDITION as described in Section 11.4.3.
    //= rfc7143#section-11.8
    //= type=test
    //# If an R2T is answered with a single Data-Out PDU, the buffer offset in the data PDU MUST be the same
    //# as the one specified by the R2T, and the data length of the data PDU MUST be the same as the Desired
    //# Data Transfer Length specified in the R2T.
    //= rfc7143#section-11.8
    //= type=test
    //# If the R2T is answered with a sequence of data PDUs, the buffer offset and length MUST be within the
    //# range of those specified by the R2T, and the last PDU MUST have the F bit set to 1.
    type Change = fn(&mut DataOut);
    let tag = TransportSense::InvalidTransferTag;
    let cases: [(&str, Change, usize, Option<RejectReason>, TransportSense); 8] = [
        ("another tag", |d| d.ttt = Ttt(0xdead), 8192, Some(RejectReason::INVALID_PDU_FIELD), tag),
        ("another unit", |d| d.lun = 9, 8192, Some(RejectReason::INVALID_PDU_FIELD), tag),
        ("a number too far", |d| d.data_sn = DataSn(1), 8192, None, TransportSense::CrcError),
        ("an offset before", |d| d.buffer_offset = 0, 8192, None, TransportSense::DataOffsetError),
        ("an offset behind", |d| d.buffer_offset += 4, 8, None, TransportSense::DataOffsetError),
        ("too much", |_| {}, 8196, None, TransportSense::IncorrectAmountOfData),
        ("too little", |_| {}, 8188, None, TransportSense::IncorrectAmountOfData),
        (
            "an offset near 2^32",
            |d| d.buffer_offset = u32::MAX,
            8192,
            None,
            TransportSense::IncorrectAmountOfData,
        ),
    ];
    for (name, change, len, reject, condition) in cases {
        let mut world = World::new();
        let (conn, _) = world.login(&KEYS);
        let command = world.write(conn, 12_192);
        let task = world.start(conn, &command, &[]).task;
        world.fetch(task, 4000, 8192);
        let r2t: R2t = world.expect(conn);
        let mut data = answer(&r2t, 0, 0, true);
        change(&mut data);
        world.send(conn, &data, &pattern(data.buffer_offset, len));
        if let Some(reason) = reject {
            let found: Reject = world.expect(conn);
            assert_eq!((found.reason, found.data_sn), (reason, DataSn(0)));
        }
        if data.ttt != r2t.ttt {
            // The real sequence still has to end.
            assert!(matches!(world.next_event(), Some(Event::TaskGone { .. })));
            world.expect_silence(conn);
            obey(&mut world, conn, &r2t);
            expect_failure(&mut world, conn, name, None, condition);
        } else {
            expect_failure(&mut world, conn, name, Some(task), condition);
        }
        assert_eq!(world.ended(conn), None);
    }
}

#[test]
fn a_failed_task_is_answered_once_every_sequence_has_ended() {
    //= rfc7143#section-11.17.1
    //= type=test
    //# the target MUST wait until it receives the last expected Data-Out PDUs with the F bit set to 1 before
    //# sending the Response PDU.
    let mut world = World::new();
    let (conn, _) = world.login(&KEYS);
    let command = ScsiCommand { is_final: false, ..world.write(conn, 40_000) };
    let task = world.start(conn, &command, &[]).task;
    world.fetch(task, 0, 40_000);
    let first: R2t = world.expect(conn);
    let second: R2t = world.expect(conn);
    world.send(conn, &answer(&first, 5, 0, false), &pattern(0, 100));
    assert!(matches!(world.next_event(), Some(Event::TaskGone { .. })));
    world.expect_silence(conn);
    world.send(conn, &unsolicited(&command, 0, 0, true), &pattern(0, 4096));
    world.expect_silence(conn);
    world.send(conn, &answer(&second, 0, 0, true), &pattern(0, 1));
    world.expect_silence(conn);
    world.send(conn, &answer(&first, 0, 0, true), &[]);
    expect_failure(&mut world, conn, "", None, TransportSense::CrcError);
}

#[test]
fn an_error_from_above_waits_for_the_sequences_too() {
    //= rfc7143#section-11.4.2
    //= type=test
    //# If a SCSI device error is detected while data from the initiator is still expected (the command PDU
    //# did not contain all the data and the target has not received a data PDU with the Final bit set), the
    //# target MUST wait until it receives a data PDU with the F bit set in the last expected sequence before
    //# sending the Response PDU.
    let mut world = World::new();
    let (conn, _) = world.login(&KEYS);
    let command = ScsiCommand { is_final: false, ..world.write(conn, 40_000) };
    let task = world.start(conn, &command, &pattern(0, 512)).task;
    world.finish(task, Finish { status: 2, sense: &[0x70, 0, 5], transferable: 0, is_unit_attention: false });
    world.expect_silence(conn);
    world.send(conn, &unsolicited(&command, 0, 512, false), &pattern(512, 512));
    world.expect_silence(conn);
    world.send(conn, &unsolicited(&command, 1, 1024, true), &pattern(1024, 512));
    assert_eq!(world.expect_any(conn).data, [0, 3, 0x70, 0, 5]);
    world.expect_silence(conn);
}

#[test]
fn pdus_may_come_in_any_order_if_that_was_agreed() {
    let mut world = World::with(
        Limits::default(),
        crate::negotiate::KeyPolicy { data_pdu_in_order: false, data_sequence_in_order: false, ..keys() },
    );
    let (conn, _) = world.login(&[&KEYS[..], &["DataPDUInOrder=No", "DataSequenceInOrder=No"]].concat());
    let command = ScsiCommand { is_final: false, ..world.write(conn, 20_480) };
    let task = world.start(conn, &command, &pattern(0, 1024)).task;
    world.fetch(task, 0, 20_480);
    for (sn, offset, is_final) in [(0, 3072, false), (1, 1024, false), (2, 2048, true)] {
        world.send(conn, &unsolicited(&command, sn, offset, is_final), &pattern(offset, 1024));
    }
    let first: R2t = world.expect(conn);
    let second: R2t = world.expect(conn);
    obey(&mut world, conn, &second);
    for (sn, at, is_final) in [(0, 4096, false), (1, 0, true)] {
        let data = pattern(first.buffer_offset + at, 4096);
        world.send(conn, &answer(&first, sn, at, is_final), &data);
    }
    assert_eq!(world.expect_data(task, 0), pattern(0, 20_480));
    world.finish(task, Finish::good(20_480));
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
    // A byte that is sent twice is still an error.
    let command = world.write(conn, 8192);
    let task = world.start(conn, &command, &[]).task;
    world.fetch(task, 0, 8192);
    let r2t: R2t = world.expect(conn);
    world.send(conn, &answer(&r2t, 0, 4096, false), &pattern(0, 4096));
    world.send(conn, &answer(&r2t, 1, 1, true), &pattern(0, 4096));
    expect_failure(&mut world, conn, "", Some(task), TransportSense::DataOffsetError);
}

#[test]
fn parts_of_the_first_burst_can_be_fetched_before_and_after_it_came() {
    let mut world = World::new();
    let (conn, _) = world.login(&KEYS);
    let command = ScsiCommand { is_final: false, ..world.write(conn, 12_288) };
    let task = world.start(conn, &command, &pattern(0, 100)).task;
    world.fetch(task, 0, 2048);
    world.fetch(task, 2048, 6144);
    let r2t: R2t = world.expect(conn);
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (4096, 4096));
    obey(&mut world, conn, &r2t);
    assert!(world.events.is_empty(), "the first part is missing");
    world.send(conn, &unsolicited(&command, 0, 100, true), &pattern(100, 3996));
    assert_eq!(world.expect_data(task, 0), pattern(0, 2048));
    assert_eq!(world.expect_data(task, 2048), pattern(2048, 6144));
    world.fetch(task, 1000, 1000);
    assert_eq!(world.expect_data(task, 1000), pattern(1000, 1000));
    world.fetch(task, 8192, 4096);
    let r2t: R2t = world.expect(conn);
    obey(&mut world, conn, &r2t);
    assert_eq!(world.expect_data(task, 8192), pattern(8192, 4096));
    world.expect_silence(conn);
}

#[test]
fn unsolicited_data_that_is_complete_goes_up_with_its_command() {
    for (name, len, is_final, immediate, received) in [
        ("no immediate data", 8192, true, 0, 0),
        ("all of the data", 1000, true, 1000, 1000),
        ("the first part of the data", 8192, true, 1000, 1000),
        ("more unsolicited data follows", 8192, false, 1000, 0),
    ] {
        let mut world = World::new();
        let (conn, _) = world.login(&KEYS);
        let command = ScsiCommand { is_final, ..world.write(conn, len) };
        let up = world.start(conn, &command, &pattern(0, immediate));
        assert_eq!(bytes_of(up.data_out), pattern(0, received), "{name}");
        world.expect_silence(conn);
        if received == 1000 && len == 8192 {
            // A fetch of more than that returns it once more.
            world.fetch(up.task, 0, len);
            let r2t: R2t = world.expect(conn);
            assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (1000, 7192));
            obey(&mut world, conn, &r2t);
            assert_eq!(world.expect_data(up.task, 0), pattern(0, 8192));
            assert_eq!(world.engine.data_bytes(), 0, "the task has fetched everything");
        }
    }
}

#[test]
fn data_that_came_before_the_turn_of_its_command_goes_up_with_it() {
    let mut world = World::new();
    let (conn, _) = world.login(&KEYS);
    let first = world.command(conn);
    world.count(conn);
    let second = ScsiCommand { is_final: false, ..world.write(conn, 3000) };
    world.issue(conn, &second, &pattern(0, 1000));
    world.send(conn, &unsolicited(&second, 0, 1000, true), &pattern(1000, 2000));
    assert!(world.events.is_empty());
    world.send(conn, &first, &[]);
    assert!(world.expect_command().data_out.is_none());
    assert_eq!(bytes_of(world.expect_command().data_out), pattern(0, 3000));
}

#[test]
fn data_that_went_up_with_its_command_takes_memory_until_the_task_ends() {
    type End = fn(&mut World, ConnId, TaskRef);
    let ends: [(&str, End); 3] = [
        ("finished", |world, _, task| world.finish(task, Finish::good(1000))),
        ("aborted", |world, _, task| world.engine.abort(task)),
        ("lost", |world, conn, _| world.hang_up(conn, DisconnectReason::Failed)),
    ];
    for (name, end) in ends {
        let mut world = World::new();
        let (conn, _) = world.login(&KEYS);
        let command = world.write(conn, 1000);
        let task = world.start(conn, &command, &pattern(0, 1000)).task;
        assert_eq!(world.engine.data_bytes(), 1000, "{name}");
        end(&mut world, conn, task);
        assert_eq!(world.engine.data_bytes(), 0, "{name}");
    }
}

fn bytes_of(data: Option<Bytes>) -> Vec<u8> {
    data.map(|data| data.to_vec()).unwrap_or_default()
}

#[test]
fn a_first_burst_that_falls_short_is_completed_by_r2t() {
    let mut world = World::new();
    let (conn, _) = world.login(&KEYS);
    let command = ScsiCommand { is_final: false, ..world.write(conn, 4000) };
    let task = world.start(conn, &command, &pattern(0, 1000)).task;
    world.fetch(task, 0, 500);
    world.fetch(task, 500, 1500);
    world.fetch(task, 2000, 2000);
    world.expect_silence(conn);
    world.send(conn, &unsolicited(&command, 0, 1000, true), &pattern(1000, 500));
    assert_eq!(world.expect_data(task, 0), pattern(0, 500));
    for (offset, len) in [(1500, 500), (2000, 2000)] {
        let r2t: R2t = world.expect(conn);
        assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (offset, len));
        obey(&mut world, conn, &r2t);
    }
    assert_eq!(world.expect_data(task, 500), pattern(500, 1500));
    assert_eq!(world.expect_data(task, 2000), pattern(2000, 2000));
}

#[test]
fn r2ts_wait_for_room_and_are_served_in_turn() {
    let mut world = World::with(Limits { data_out_bytes_max: 10_000, ..Limits::default() }, keys());
    let (conn, _) = world.login(&["MaxBurstLength=8192", "FirstBurstLength=512"]);
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let command = world.write(conn, 8192);
        tasks.push(world.start(conn, &command, &[]).task);
    }
    for task in &tasks {
        world.fetch(*task, 0, 8192);
    }
    for task in &tasks {
        let r2t: R2t = world.expect(conn);
        world.expect_silence(conn);
        obey(&mut world, conn, &r2t);
        assert_eq!(world.expect_data(*task, 0), pattern(0, 8192));
    }
    // One fetch that is larger than the whole quota is served while no other memory is used.
    let command = world.write(conn, 30_000);
    let task = world.start(conn, &command, &[]).task;
    world.fetch(task, 0, 30_000);
    while let Some(got) = world.receive(conn) {
        obey(&mut world, conn, &got.read());
    }
    assert_eq!(world.expect_data(task, 0), pattern(0, 30_000));
    // Fetches that wait when their session ends are dropped.
    for task in tasks {
        world.fetch(task, 0, 8192);
    }
    world.hang_up(conn, DisconnectReason::Failed);
    let (other, _) = world.login_again();
    let command = world.write(other, 8192);
    let task = world.start(other, &command, &[]).task;
    world.fetch(task, 0, 8192);
    world.expect::<R2t>(other);
}

#[test]
fn unsolicited_data_that_finds_no_room_is_answered_busy() {
    let mut world = World::with(Limits { data_out_bytes_max: 6000, ..Limits::default() }, keys());
    let (conn, _) = world.login(&KEYS);
    let holds = world.write(conn, 4096);
    let holder = world.start(conn, &holds, &pattern(0, 4096)).task;
    // First with immediate data, then with the whole first burst in a Data-Out.
    let command = ScsiCommand { is_final: false, ..world.write(conn, 4096) };
    world.issue(conn, &command, &pattern(0, 2048));
    world.expect_silence(conn);
    world.send(conn, &unsolicited(&command, 0, 2048, true), &pattern(2048, 2048));
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 8);
    let command = ScsiCommand { is_final: false, ..world.write(conn, 4096) };
    let task = world.start(conn, &command, &[]).task;
    world.send(conn, &unsolicited(&command, 0, 0, true), &pattern(0, 4096));
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 8);
    assert_eq!(world.engine.stats().busy, 2);
    // Once the first command's data is delivered, memory is free again.
    world.fetch(holder, 0, 4096);
    world.expect_data(holder, 0);
    let command = world.write(conn, 4096);
    world.start(conn, &command, &pattern(0, 4096));
}

#[test]
fn a_fetch_beyond_the_data_is_our_own_error() {
    for (offset, len) in [(0, 8193), (8192, 1), (0, 0), (u32::MAX, 2)] {
        let mut world = World::new();
        let (conn, _) = world.login(&KEYS);
        let command = world.write(conn, 8192);
        let task = world.start(conn, &command, &[]).task;
        world.fetch(task, offset, len);
        assert_eq!(world.engine.stats().bugs, 1);
        assert!(world.ended(conn).is_some());
    }
}

#[test]
fn data_in_a_session_or_on_a_pdu_that_has_none_is_rejected() {
    let mut world = World::new();
    let conn = world.discover();
    let command = world.write(conn, 512);
    for bhs in [command.encode(), unsolicited(&command, 0, 0, true).encode()] {
        world.send_raw(conn, bhs, &[], &pattern(0, 512));
        let reject: Reject = world.expect(conn);
        assert_eq!(reject.reason, RejectReason::PROTOCOL_ERROR, "{:?}", bhs.opcode());
    }
    let (conn, _) = world.login_again();
    let data = unsolicited(&command, 0, 0, true).encode();
    let (itt, cmd_sn) = world.numbers(conn);
    let write = ScsiCommand { itt, cmd_sn, ..command };
    let task = world.start(conn, &write, &[]).task;
    world.fetch(task, 0, 512);
    let r2t: R2t = world.expect(conn);
    world.send_raw(conn, answer(&r2t, 0, 0, true).encode(), &[0, 1, 9, 0], &pattern(0, 512));
    assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::INVALID_PDU_FIELD);
    assert_eq!(data.opcode(), Opcode::DATA_OUT);
}

/// Lets time pass while the peers answer pings.
pub(super) fn idle(world: &mut World, conns: &[ConnId], seconds: u64) {
    for _ in 0..seconds {
        world.pass(Duration::from_secs(1));
        for conn in conns.iter().copied().filter(|conn| world.ended(*conn).is_none()).collect::<Vec<_>>() {
            let (_, cmd_sn) = world.numbers(conn);
            let exp_stat_sn = StatSn(0);
            let (itt, ttt) = (Itt::NONE, Ttt::NONE);
            let pong = NopOut { immediate: true, lun: 0, itt, ttt, cmd_sn, exp_stat_sn };
            world.send(conn, &pong, &[]);
        }
    }
}

#[test]
fn a_write_whose_data_does_not_come_ends_whatever_else_its_session_sends() {
    for unsolicited in [false, true] {
        let mut world = World::with(Limits::default(), keys());
        let (conn, _) = world.login(&KEYS);
        let stuck = ScsiCommand { is_final: !unsolicited, ..world.write(conn, 4096) };
        let up = world.start(conn, &stuck, &[]);
        world.fetch(up.task, 0, 4096);
        let r2t = if unsolicited { None } else { Some(world.expect::<R2t>(conn)) };
        // The session keeps executing other writes.
        let mut gone = Vec::new();
        for _ in 0..40 {
            idle(&mut world, &[conn], 1);
            let write = world.write(conn, 512);
            world.issue(conn, &write, &pattern(0, 512));
            for event in core::mem::take(&mut world.events) {
                match event {
                    Event::Command(other) => world.finish(other.task, Finish::good(512)),
                    Event::TaskGone { task } => gone.push(task),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(world.ended(conn), None, "the others are welcome");
        assert_eq!(gone, [up.task], "unsolicited {unsolicited}");
        let answers: Vec<ScsiResponse> = core::iter::from_fn(|| world.receive(conn))
            .filter(|got| got.bhs.opcode() == Opcode::SCSI_RESPONSE)
            .map(|got| {
                let response: ScsiResponse = got.read();
                if response.itt == stuck.itt {
                    assert_eq!(got.data[2..], TransportSense::InitiatorResponseTimeout.sense());
                }
                response
            })
            .collect();
        assert!(answers.iter().any(|answer| answer.itt == stuck.itt && answer.status == 2));
        assert_eq!(world.engine.stats().data_late, 1);
        // The target discards data that is received now.
        let late = r2t.map_or_else(|| unsolicited_pdu(&stuck), |r2t| answer(&r2t, 0, 0, true));
        world.send(conn, &late, &[0xee; 4096]);
        assert_eq!(world.ended(conn), None);
        assert!(!world.events.iter().any(|event| matches!(event, Event::DataOut { .. })));
    }
}

fn unsolicited_pdu(command: &ScsiCommand) -> DataOut {
    unsolicited(command, 0, 0, true)
}

#[test]
fn who_does_not_send_what_was_asked_loses_its_memory_to_those_who_wait() {
    // The quota for solicited data is 1 MiB. Stalled writers hold all of it, and another writer needs a
    // quarter.
    let limits = Limits { data_out_bytes_max: 2 << 20, ..Limits::default() };
    for starts in [false, true] {
        let mut world = World::with(limits, keys());
        let large = ["MaxBurstLength=262144", "FirstBurstLength=512", "MaxOutstandingR2T=2"];
        let mut conns = Vec::new();
        let mut stuck = Vec::new();
        for isid in 0..20 {
            let conn = world.connect();
            world.login_on(conn, isid, &large);
            conns.push(conn);
            for _ in 0..4 {
                let write = world.write(conn, 65_536);
                let up = world.start(conn, &write, &[]);
                world.fetch(up.task, 0, 65_536);
                if let Some(got) = world.receive(conn) {
                    let r2t: R2t = got.read();
                    if starts {
                        world.send(conn, &answer(&r2t, 0, 0, false), &pattern(0, 512));
                    }
                    stuck.push((conn, r2t));
                }
            }
        }
        assert!(world.engine.data_bytes() >= 1 << 20, "memory is short: {}", world.engine.data_bytes());
        let honest = world.connect();
        world.login_on(honest, 99, &large);
        let write = world.write(honest, 262_144);
        let up = world.start(honest, &write, &[]);
        world.fetch(up.task, 0, 262_144);
        let mut asked = None;
        for _ in 0..8 {
            conns.push(honest);
            idle(&mut world, &conns, 1);
            conns.pop();
            asked = asked.or_else(|| {
                core::iter::from_fn(|| world.receive(honest)).find(|got| got.bhs.opcode() == Opcode::R2T)
            });
        }
        let r2t: R2t = asked.expect("it waits for those who send nothing").read();
        obey(&mut world, honest, &r2t);
        let data = world
            .events
            .iter()
            .position(|event| matches!(event, Event::DataOut { task, .. } if *task == up.task));
        assert!(data.is_some(), "starts {starts}");
        world.events.clear();
        world.finish(up.task, Finish::good(262_144));
        // A writer that was only slow continues: memory is free now.
        if let (false, Some((conn, r2t))) = (starts, stuck.first()) {
            obey(&mut world, *conn, r2t);
            assert!(matches!(world.next_event(), Some(Event::DataOut { .. })), "{:?}", world.events);
        }
        // Nothing is counted twice, and no memory is held when all connections have ended.
        for conn in conns.into_iter().chain([honest]) {
            if world.ended(conn).is_none() {
                world.hang_up(conn, DisconnectReason::Closed);
            }
        }
        assert_eq!(world.engine.data_bytes(), 0);
    }
}
