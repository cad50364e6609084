//! Lost Data-Out, and the R2Ts that ask for it again (RFC 7143 §7.9, §11.8).

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId};
use base::time::Duration;
use transport::target::Finish;

use super::super::world::{World, data_out, pattern};
use super::{LEVEL, ack, login, policy, rejected, send_hurt, snack, world};
use crate::negotiate::KeyPolicy;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::SnackKind;
use crate::pdu::{Itt, Opcode, PduHeader, Ttt};
use crate::serial::{DataSn, R2tSn};
use crate::target::contract::Event;
use crate::target::engine::Limits;

/// Sends a sequence in PDUs of `step` bytes. Those in `hurt` have a wrong data digest, those in `lost` a
/// wrong header digest.
pub(super) fn answer_r2t(
    world: &mut World,
    conn: ConnId,
    write: &ScsiCommand,
    r2t: (Ttt, u32, u32),
    step: u32,
    (hurt, lost): (&[u32], &[u32]),
) {
    let (ttt, start, len) = r2t;
    for (sn, at) in (0..).zip((0..len).step_by(step as usize)) {
        let size = step.min(len - at);
        let pdu = data_out(write, ttt, sn, start + at, at + size == len);
        let data = pattern(start + at, size as usize);
        if hurt.contains(&sn) {
            send_hurt(world, conn, &pdu, &data, 53 * 8);
        } else if lost.contains(&sn) {
            send_hurt(world, conn, &pdu, &data, 9);
        } else {
            world.send(conn, &pdu, &data);
        }
    }
}

pub(super) fn as_asked(r2t: &R2t) -> (Ttt, u32, u32) {
    (r2t.ttt, r2t.buffer_offset, r2t.desired_data_transfer_length)
}

#[test]
fn data_out_that_is_lost_or_damaged_is_asked_for_again_with_the_next_number() {
    //= rfc7143#section-4.2.2.4
    //= type=test
    //# Data and R2T PDUs transferred as part of some command execution MUST be sequenced.
    //= rfc7143#section-7.8
    //= type=test
    //# If the discarded PDU is a solicited or unsolicited iSCSI data PDU (for immediate data in a command
    //# PDU, the non-data PDU rule below applies), the target MUST do one of the following:
    //= rfc7143#section-7.9
    //= type=test
    //# The target MUST address these implied digest errors as described in Section 7.8.
    for in_order in [true, false] {
        let policy = KeyPolicy { data_pdu_in_order: false, ..policy(1) };
        let order = if in_order { "DataPDUInOrder=Yes" } else { "DataPDUInOrder=No" };
        for (hurt, lost, again) in [
            (&[0][..], &[][..], if in_order { [(0, 4000)].to_vec() } else { [(0, 1000)].to_vec() }),
            (&[][..], &[1][..], if in_order { [(1000, 3000)].to_vec() } else { [(1000, 1000)].to_vec() }),
            (&[3][..], &[][..], [(3000, 1000)].to_vec()),
            (
                &[0][..],
                &[2][..],
                if in_order { [(0, 4000)].to_vec() } else { [(0, 1000), (2000, 1000)].to_vec() },
            ),
        ] {
            let mut world = World::with(Limits::default(), policy.clone());
            let conn = login(&mut world, &[order, "ImmediateData=No"]);
            let write = world.write(conn, 4000);
            let up = world.start(conn, &write, &[]);
            world.fetch(up.task, 0, 4000);
            let r2t: R2t = world.expect(conn);
            answer_r2t(&mut world, conn, &write, as_asked(&r2t), 1000, (hurt, lost));
            for _ in hurt {
                let reject: Reject = world.expect(conn);
                assert_eq!(reject.reason, RejectReason::DATA_DIGEST_ERROR);
            }
            let mut number = r2t.r2t_sn;
            for (start, len) in again {
                assert!(world.events.is_empty(), "nothing is handed up before all is here");
                let recovery: R2t = world.expect(conn);
                number = number.next();
                assert_eq!(recovery.r2t_sn, number);
                assert_eq!((recovery.buffer_offset, recovery.desired_data_transfer_length), (start, len));
                assert_ne!(recovery.ttt, r2t.ttt);
                // Further data for the first R2T is ignored.
                world.send(conn, &data_out(&write, r2t.ttt, 0, 0, true), &[0xee; 1000]);
                answer_r2t(&mut world, conn, &write, as_asked(&recovery), 700, (&[], &[]));
            }
            assert_eq!(world.expect_data(up.task, 0), pattern(0, 4000), "{in_order} {hurt:?} {lost:?}");
            world.finish(up.task, Finish::good(4000));
            assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
        }
    }
}

#[test]
fn data_that_comes_twice_is_passed_over() {
    let mut world = World::with(Limits::default(), policy(1));
    let conn = login(&mut world, &["ImmediateData=No", "InitialR2T=No"]);
    let write = ScsiCommand { is_final: false, ..world.write(conn, 3000) };
    let up = world.start(conn, &write, &[]);
    let unsolicited = data_out(&write, Ttt::NONE, 0, 0, true);
    for _ in 0..2 {
        world.send(conn, &unsolicited, &pattern(0, 1024));
    }
    world.fetch(up.task, 0, 3000);
    let r2t: R2t = world.expect(conn);
    for _ in 0..2 {
        answer_r2t(&mut world, conn, &write, as_asked(&r2t), 988, (&[], &[]));
    }
    world.send(conn, &unsolicited, &pattern(0, 1024));
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 3000));
    world.finish(up.task, Finish::good(3000));
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
}

#[test]
fn unsolicited_data_that_is_lost_is_asked_for_before_anything_behind_it() {
    let mut world = world();
    let conn = login(&mut world, &["InitialR2T=No"]);
    let write = ScsiCommand { is_final: false, ..world.write(conn, 3000) };
    let up = world.start(conn, &write, &pattern(0, 200));
    world.fetch(up.task, 0, 3000);
    world.expect_silence(conn);
    send_hurt(&mut world, conn, &data_out(&write, Ttt::NONE, 0, 200, false), &pattern(200, 400), 53 * 8);
    assert_eq!(rejected(&mut world, conn), RejectReason::DATA_DIGEST_ERROR);
    world.send(conn, &data_out(&write, Ttt::NONE, 1, 600, true), &pattern(600, 424));
    let first: R2t = world.expect(conn);
    assert_eq!((first.r2t_sn, as_asked(&first).1, as_asked(&first).2), (R2tSn(0), 200, 824));
    world.expect_silence(conn);
    for _ in 0..2 {
        // The second answer is ignored.
        answer_r2t(&mut world, conn, &write, as_asked(&first), 500, (&[], &[]));
    }
    let second: R2t = world.expect(conn);
    assert_eq!((second.r2t_sn, as_asked(&second).1, as_asked(&second).2), (R2tSn(1), 1024, 1976));
    answer_r2t(&mut world, conn, &write, as_asked(&second), 1000, (&[], &[]));
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 3000));
    world.finish(up.task, Finish::good(3000));
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
}

#[test]
fn the_last_pdu_of_a_sequence_is_asked_for_again_after_a_silence() {
    for unsolicited in [false, true] {
        let mut world = world();
        let conn = login(&mut world, &["InitialR2T=No"]);
        let write = ScsiCommand { is_final: !unsolicited, ..world.write(conn, 1000) };
        let up = world.start(conn, &write, &[]);
        world.fetch(up.task, 0, 1000);
        let ttt = if unsolicited { Ttt::NONE } else { world.expect::<R2t>(conn).ttt };
        world.send(conn, &data_out(&write, ttt, 0, 0, false), &pattern(0, 600));
        send_hurt(&mut world, conn, &data_out(&write, ttt, 1, 600, true), &pattern(600, 400), 20);
        world.pass(Duration::from_secs(8));
        let asked: Vec<R2t> = core::iter::from_fn(|| world.receive(conn))
            .filter(|got| got.bhs.opcode() == Opcode::R2T)
            .map(|got| got.read())
            .collect();
        let last = asked.last().expect("asked again");
        assert!(asked.len() <= 3, "with patience: {asked:?}");
        assert_eq!((last.buffer_offset, last.desired_data_transfer_length), (600, 400));
        // Late data for the first R2T changes nothing.
        world.send(conn, &data_out(&write, ttt, 1, 600, true), &[0xee; 400]);
        assert!(world.events.is_empty());
        answer_r2t(&mut world, conn, &write, as_asked(last), 400, (&[], &[]));
        assert_eq!(world.expect_data(up.task, 0), pattern(0, 1000));
        assert_eq!(world.ended(conn), None);
    }
}

#[test]
fn what_came_before_a_pdu_that_stands_still_is_asked_for_again_with_it() {
    let policy = KeyPolicy { data_pdu_in_order: false, ..policy(1) };
    for (order, unsolicited) in [("Yes", false), ("No", false), ("Yes", true), ("No", true)] {
        let mut world = World::with(Limits::default(), policy.clone());
        let order = alloc::format!("DataPDUInOrder={order}");
        let conn = login(&mut world, &[&order, "InitialR2T=No"]);
        let write = ScsiCommand { is_final: !unsolicited, ..world.write(conn, 1000) };
        let up = world.start(conn, &write, &[]);
        world.fetch(up.task, 0, 1000);
        let ttt = if unsolicited { Ttt::NONE } else { world.expect::<R2t>(conn).ttt };
        world.send(conn, &data_out(&write, ttt, 0, 0, false), &pattern(0, 400));
        // The buffer is taken out to read the second PDU when that PDU is considered lost.
        let second = data_out(&write, ttt, 1, 400, false).encode();
        let bytes = world.frame(conn, second, &[], &pattern(400, 400));
        let (begin, end) = bytes.split_at(200);
        world.feed(conn, begin);
        world.pass(Duration::from_secs(8));
        let asked: Vec<R2t> = core::iter::from_fn(|| world.receive(conn))
            .filter(|got| got.bhs.opcode() == Opcode::R2T)
            .map(|got| got.read())
            .collect();
        let last = asked.last().expect("asked again");
        world.feed(conn, end);
        world.send(conn, &data_out(&write, ttt, 2, 800, true), &pattern(800, 200));
        answer_r2t(&mut world, conn, &write, as_asked(last), 300, (&[], &[]));
        while world.events.is_empty() {
            let r2t: R2t = world.expect(conn);
            answer_r2t(&mut world, conn, &write, as_asked(&r2t), 300, (&[], &[]));
        }
        assert_eq!(world.expect_data(up.task, 0), pattern(0, 1000), "{order} {unsolicited}");
        world.finish(up.task, Finish::good(1000));
        assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
    }
}

#[test]
fn an_initiator_that_never_sends_what_it_owes_is_given_up() {
    let mut world = world();
    let conn = login(&mut world, &["ImmediateData=No"]);
    let write = world.write(conn, 1000);
    let up = world.start(conn, &write, &[]);
    world.fetch(up.task, 0, 1000);
    for _ in 0..60 {
        world.pass(Duration::from_secs(1));
        if world.ended(conn).is_some() {
            break;
        }
        // The initiator still answers pings.
        while let Some(got) = world.receive(conn) {
            if got.bhs.opcode() == Opcode::NOP_IN {
                let ping: NopIn = got.read();
                let (_, cmd_sn) = world.numbers(conn);
                let exp_stat_sn = ping.sn.stat_sn;
                let pong =
                    NopOut { immediate: true, lun: 0, itt: Itt::NONE, ttt: ping.ttt, cmd_sn, exp_stat_sn };
                world.send(conn, &pong, &[]);
            }
        }
    }
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task }) if task == up.task));
}

#[test]
fn a_peer_whose_digests_are_always_wrong_loses_its_task_in_the_end() {
    let mut world = world();
    let conn = login(&mut world, &["ImmediateData=No"]);
    let write = world.write(conn, 100);
    let up = world.start(conn, &write, &[]);
    world.fetch(up.task, 0, 100);
    let mut asked = 0;
    while let Some(got) = world.receive(conn) {
        match got.bhs.opcode() {
            Opcode::R2T => {
                asked += 1;
                let r2t: R2t = got.read();
                answer_r2t(&mut world, conn, &write, as_asked(&r2t), 100, (&[0], &[]));
            }
            Opcode::REJECT => {}
            _ => {
                assert_eq!(got.read::<ScsiResponse>().status, 2);
                break;
            }
        }
    }
    assert_eq!(asked, 17);
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task }) if task == up.task));
}

#[test]
fn an_r2t_that_was_lost_is_sent_again_until_its_data_came() {
    //= rfc7143#section-11.16
    //= type=test
    //# The numbered response(s) or R2T(s) requested by a SNACK MUST be delivered as exact replicas of the
    //# ones that the target transmitted originally, except for the fields ExpCmdSN, MaxCmdSN, and ExpDataSN,
    //# which MUST carry the current values.
    let mut world = world();
    let conn = login(&mut world, &["ImmediateData=No"]);
    let write = world.write(conn, 6000);
    let up = world.start(conn, &write, &[]);
    world.fetch(up.task, 0, 6000);
    let first = world.expect_any(conn);
    for run in [(0, 0), (0, 1)] {
        world.send(conn, &snack(SnackKind::DATA_OR_R2T, write.itt, run), &[]);
        assert_eq!(world.expect_any(conn), first, "{run:?}");
        world.expect_silence(conn);
    }
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, write.itt, (1, 1)), &[]);
    let reject: Reject = world.expect(conn);
    assert_eq!((reject.reason, reject.data_sn), (RejectReason::PROTOCOL_ERROR, DataSn(1)), "the next");
    answer_r2t(&mut world, conn, &write, as_asked(&first.read()), 1000, (&[], &[]));
    let second: R2t = world.expect(conn);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, write.itt, (0, 1)), &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR, "its data acknowledged it");
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, write.itt, (0, 0)), &[]);
    assert_eq!(as_asked(&world.expect::<R2t>(conn)), as_asked(&second));
    answer_r2t(&mut world, conn, &write, as_asked(&second), 1000, (&[], &[]));
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 6000));
}

#[test]
fn one_r2t_of_a_task_is_open_at_a_time_where_sequences_come_in_order() {
    let more = KeyPolicy { data_sequence_in_order: false, ..policy(1) };
    for (order, open) in [("DataSequenceInOrder=Yes", 1), ("DataSequenceInOrder=No", 3)] {
        let mut world = World::with(Limits::default(), more.clone());
        let conn = world.connect();
        let up = world.login_on(
            conn,
            0,
            &["MaxOutstandingR2T=3", "MaxBurstLength=512", "FirstBurstLength=512", order, LEVEL],
        );
        assert_eq!(up.parameters.max_outstanding_r2t, open, "{order}");
        let write = world.write(conn, 2048);
        let up = world.start(conn, &write, &[]);
        world.fetch(up.task, 0, 2048);
        let asked = core::iter::from_fn(|| world.receive(conn)).count();
        assert_eq!(asked, usize::from(open), "{order}");
    }
}

/// On a path that damages many PDUs, a long command has hundreds of R2Ts that recovery R2Ts replaced. When a
/// SNACK brings back one that was lost, the initiator answers it, and that answer can be damaged too.
#[test]
fn answers_to_replaced_r2ts_are_passed_over_however_many_there_are() {
    let mut world = world();
    let conn = login(&mut world, &["ImmediateData=No", "InitialR2T=Yes"]);
    let len = 4096 * 100;
    let write = world.write(conn, len);
    let up = world.start(conn, &write, &[]);
    world.fetch(up.task, 0, len);
    let mut first = None;
    for _ in 0..100 {
        let r2t: R2t = world.expect(conn);
        answer_r2t(&mut world, conn, &write, as_asked(&r2t), 1024, (&[0], &[]));
        assert_eq!(rejected(&mut world, conn), RejectReason::DATA_DIGEST_ERROR);
        let first = first.get_or_insert(r2t);
        let recovery: R2t = world.expect(conn);
        world.send(conn, &snack(SnackKind::DATA_OR_R2T, write.itt, (0, 1)), &[]);
        assert_eq!(as_asked(&world.expect::<R2t>(conn)), as_asked(first));
        answer_r2t(&mut world, conn, &write, as_asked(first), 1024, (&[], &[]));
        answer_r2t(&mut world, conn, &write, as_asked(first), 1024, (&[0], &[]));
        let reject: Reject = world.expect(conn);
        assert_eq!(reject.reason, RejectReason::DATA_DIGEST_ERROR);
        ack(&mut world, conn, reject.sn.stat_sn.next());
        assert!(world.receive(conn).is_none(), "nothing but the missing data is asked for");
        answer_r2t(&mut world, conn, &write, as_asked(&recovery), 1024, (&[], &[]));
    }
    assert_eq!(world.expect_data(up.task, 0), pattern(0, len as usize));
    world.finish(up.task, Finish::good(len.into()));
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
}
