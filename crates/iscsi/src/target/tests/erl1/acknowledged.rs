//! What is retained until it is acknowledged, and the bounds of time and size for it (RFC 7143 §4.2.2.2,
//! §11.7.2).

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId};
use base::time::Duration;
use transport::target::{Finish, TargetTransport as _};
use transport::task_management::{TmfFunction, TmfResult};

use super::super::world::{LUN, World, pattern};
use super::{ack, data_ins, login, policy, read_all, rejected, snack, world};
use crate::pdu::data_in::DataIn;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::RejectReason;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, Opcode, Ttt};
use crate::serial::{DataSn, StatSn};
use crate::target::engine::{CONTROL_COST, Limits};

#[test]
fn data_that_is_asked_to_be_acknowledged_is_kept_until_it_is() {
    //= rfc7143#section-11.7.2
    //= type=test
    //# it MUST NOT do so more frequently
    //= rfc7143#section-11.7.4
    //= type=test
    //# On incoming data, the Target Transfer Tag and LUN MUST be provided by the target if the A bit is set
    //# to 1; otherwise, they are reserved.
    //= rfc7143#section-11.7.4
    //= type=test
    //# If the Target Transfer Tag is provided, then the LUN field MUST hold a valid value and be consistent
    //# with whatever was specified with the command; otherwise, the LUN field is reserved.
    //= rfc7143#section-11.16
    //= type=test
    //# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all SNACK types.
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 12_000);
    let asked: Vec<_> = sent.iter().filter(|pdu| pdu.acknowledge).collect();
    // An acknowledgement is requested once every MaxBurstLength bytes, and not with the status.
    assert_eq!(asked.iter().map(|pdu| pdu.data_sn.0).collect::<Vec<_>>(), [3, 7]);
    assert!(asked.iter().all(|pdu| pdu.ttt != Ttt::NONE && pdu.lun == LUN && pdu.is_final));
    let before = world.engine.sessions().next().unwrap().unsent_bytes;
    assert_eq!(before, 12_000);
    let good = Snack { lun: LUN, tag: asked[0].ttt.0, ..snack(SnackKind::DATA_ACK, Itt::NONE, (4, 0)) };
    for (bad, why) in [
        (Snack { tag: good.tag + 1, ..good }, RejectReason::INVALID_DATA_ACK),
        (Snack { lun: 0, ..good }, RejectReason::INVALID_DATA_ACK),
        (Snack { beg_run: 13, ..good }, RejectReason::INVALID_DATA_ACK),
        (Snack { run_length: 1, ..good }, RejectReason::INVALID_PDU_FIELD),
        (Snack { itt: Itt(itt.0 + 1), ..good }, RejectReason::INVALID_DATA_ACK),
    ] {
        world.send(conn, &bad, &[]);
        assert_eq!(rejected(&mut world, conn), why, "{bad:?}");
    }
    // The acknowledgement may also carry the tag of its task, as some initiators send it.
    world.send(conn, &Snack { itt, ..good }, &[]);
    world.expect_silence(conn);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (0, 0)), &[]);
    assert_eq!(data_ins(&mut world, conn), sent[4..]);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (3, 1)), &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR);
    // A late acknowledgement changes nothing.
    world.send(conn, &Snack { beg_run: 12, ..good }, &[]);
    world.send(conn, &good, &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::INVALID_DATA_ACK);
    assert_eq!(world.engine.sessions().next().unwrap().unsent_bytes, 0);
    // Nor does one that the acknowledgement of the status has overtaken.
    let late = Snack { exp_stat_sn: sent.last().unwrap().sn.stat_sn.next(), ..good };
    // The status is sent as a PDU of its own, now that its data is dropped.
    let status = sent.last().unwrap().sn.stat_sn;
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    let response: ScsiResponse = world.expect(conn);
    assert_eq!((response.itt, response.sn.stat_sn, response.exp_data_sn), (itt, status, DataSn(12)));
    world.send(conn, &late, &[]);
    world.expect_silence(conn);
}

#[test]
fn a_tag_that_is_used_again_says_that_its_answer_arrived() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 2000);
    let status = sent[1].sn.stat_sn;
    let again = ScsiCommand { itt, ..world.command(conn) };
    let up = world.start(conn, &again, &[]);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (0, 1)), &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR, "the new task sent nothing");
    world.finish(up.task, Finish::good(0));
    assert_eq!(world.expect::<ScsiResponse>(conn).sn.stat_sn, status.plus(2));
    // Its number is still unacknowledged, but there is nothing left to send for it.
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    world.expect_silence(conn);
}

#[test]
fn answered_tasks_are_out_of_the_window_and_out_of_reach() {
    //= rfc7143#section-7.11
    //= type=test
    //# If the abort request is received and the target can determine (based on the Referenced Task Tag) that
    //# the command was received and executed, and also that the response was sent prior to the abort, then
    //# the target MUST respond with the response code "Task Does Not Exist".
    let limits = Limits { queue_depth: 2, ..Limits::default() };
    let mut world = World::with(limits, policy(1));
    let conn = login(&mut world, &[]);
    for _ in 0..10 {
        let (_, sent) = read_all(&mut world, conn, 100);
        assert_eq!(sent.len(), 1, "the window is open");
    }
    let (itt, cmd_sn) = world.numbers(conn);
    let abort = TmfRequest {
        immediate: true,
        function: TmfFunction::ABORT_TASK,
        lun: LUN,
        itt,
        referenced_task_tag: Itt(itt.0 - 1),
        cmd_sn,
        exp_stat_sn: StatSn(0),
        ref_cmd_sn: cmd_sn.minus(1),
        exp_data_sn: DataSn(0),
    };
    world.send(conn, &abort, &[]);
    assert_eq!(world.expect::<TmfResponse>(conn).response, TmfResult::NO_TASK);
    assert_eq!(world.engine.sessions().next().unwrap().tasks, 0);
}

#[test]
fn an_initiator_is_asked_to_acknowledge_and_held_up_if_it_never_does() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    world.pass(Duration::from_millis(500));
    let (_, sent) = read_all(&mut world, conn, 100);
    world.pass(Duration::from_millis(700));
    let early: Vec<_> = core::iter::from_fn(|| world.receive(conn)).collect();
    assert!(early.len() <= 1, "the login may be asked for: {early:?}");
    world.pass(Duration::from_secs(2));
    let ping: NopIn = world.expect(conn);
    assert_eq!((ping.itt, ping.sn.stat_sn), (Itt::NONE, sent[0].sn.stat_sn.next()));
    assert_ne!(ping.ttt, Ttt::NONE);
    world.expect_silence(conn);
    ack(&mut world, conn, sent[0].sn.stat_sn.next());
    world.pass(Duration::from_secs(5));
    world.expect_silence(conn);

    // An initiator that acknowledges nothing: responses stop before the retained ones exceed their bound.
    let mut answers = 0;
    for _ in 0..1500 {
        let (itt, cmd_sn) = world.numbers(conn);
        let nop = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
        if world.ended(conn).is_some() {
            break;
        }
        world.send(conn, &nop, b"keep me");
        while let Some(got) = world.receive(conn) {
            answers += usize::from(got.read::<NopIn>().itt != Itt::NONE);
        }
    }
    assert_eq!(answers, world.engine.unacked_max());
    let last = sent[0].sn.stat_sn.next().plus(u32::try_from(answers).unwrap());
    ack(&mut world, conn, last);
    let mut more = 0;
    while let Some(got) = world.receive(conn) {
        more += usize::from(got.read::<NopIn>().itt != Itt::NONE);
    }
    assert!(more > 0, "and go on once it does");
}

#[test]
fn reads_wait_for_acknowledgements_when_what_is_kept_fills_the_room() {
    let limits = Limits { unsent_bytes_max: 10_000, ..Limits::default() };
    let mut world = World::with(limits, policy(1));
    let conn = login(&mut world, &[]);
    let (_, sent) = read_all(&mut world, conn, 8000);
    let read = world.read(conn, 8000);
    world.issue(conn, &read, &[]);
    assert!(world.events.is_empty(), "no room while the first is kept");
    let ping: NopIn = world.expect(conn);
    let status = sent.last().unwrap().sn.stat_sn;
    assert_eq!(ping.sn.stat_sn, status.next());
    let (_, cmd_sn) = world.numbers(conn);
    let exp_stat_sn = status.next();
    let pong = NopOut { immediate: true, lun: 0, itt: Itt::NONE, ttt: ping.ttt, cmd_sn, exp_stat_sn };
    world.send(conn, &pong, &[]);
    assert_eq!(world.expect_command().data_in_len, 8000);
}

#[test]
fn an_acknowledgement_is_asked_for_at_once_where_others_wait_for_the_memory() {
    let limits = Limits { data_in_bytes_max: 10_000, ..Limits::default() };
    let mut world = World::with(limits, policy(1));
    let conn = login(&mut world, &[]);
    let first = world.read(conn, 8000);
    let up = world.start(conn, &first, &[]);
    let second = world.read(conn, 8000);
    world.issue(conn, &second, &[]);
    assert!(world.events.is_empty(), "no memory for the second");
    // An acknowledgement that is asked for before the first has ended frees nothing.
    let early: NopIn = world.expect(conn);
    answer(&mut world, conn, &early);
    world.engine.data_in(up.task, 0, base::buffer::Bytes::copied_from(&pattern(0, 8000)).into());
    world.finish(up.task, Finish::good(8000));
    let mut last = None;
    let ping = loop {
        let pdu = world.receive(conn).expect("a ping");
        if pdu.bhs.opcode() == Opcode::NOP_IN {
            break pdu.read::<NopIn>();
        }
        last = Some(pdu.read::<DataIn>());
    };
    assert_eq!(ping.sn.stat_sn, last.unwrap().sn.stat_sn.next());
    answer(&mut world, conn, &ping);
    assert_eq!(world.expect_command().data_in_len, 8000);
}

/// Answers a ping of the target, and so acknowledges every status before it.
fn answer(world: &mut World, conn: ConnId, ping: &NopIn) {
    let (_, cmd_sn) = world.numbers(conn);
    let exp_stat_sn = ping.sn.stat_sn;
    let pong = NopOut { immediate: true, lun: 0, itt: Itt::NONE, ttt: ping.ttt, cmd_sn, exp_stat_sn };
    world.send(conn, &pong, &[]);
}

#[test]
fn answers_that_are_kept_are_bounded_by_their_bytes_too() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let mut answers = 0;
    for _ in 0..100 {
        let (itt, cmd_sn) = world.numbers(conn);
        let nop = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
        let text = TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: 0,
            itt: Itt(1 << 20),
            ttt: Ttt::NONE,
            cmd_sn,
            exp_stat_sn: StatSn(0),
        };
        if answers == 0 {
            world.send(conn, &text, b"MaxRecvDataSegmentLength=262144\0");
        }
        world.send(conn, &nop, &[7; 200_000]);
        while let Some(got) = world.receive(conn) {
            answers += usize::from(!got.data.is_empty() && got.bhs.opcode() == Opcode::NOP_IN);
        }
        if world.ended(conn).is_some() {
            break;
        }
    }
    assert!((10..=22).contains(&answers), "{answers}");
}

#[test]
fn a_logout_waits_for_no_acknowledgement() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    read_all(&mut world, conn, 3000);
    let (itt, cmd_sn) = world.numbers(conn);
    let logout = LogoutRequest {
        immediate: false,
        reason: LogoutReason::CloseSession,
        itt,
        cid: 0,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &logout, &[]);
    assert_eq!(world.expect::<LogoutResponse>(conn).response, LogoutResult::CLOSED);
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    assert_eq!(world.engine.tasks.len(), 0);
}

/// Without the retransmission, the initiator cannot acknowledge anything.
#[test]
fn what_is_asked_for_again_is_sent_while_other_statuses_are_held() {
    for kind in [SnackKind::STATUS, SnackKind::DATA_OR_R2T] {
        let mut world = World::with(Limits { queue_depth: 4, ..Limits::default() }, policy(1));
        let conn = login(&mut world, &[]);
        let (itt, lost) = read_all(&mut world, conn, 100);
        // The target asks for acknowledgements, too.
        let answers = |world: &mut World| {
            let got = core::iter::from_fn(|| world.receive(conn));
            got.filter(|got| got.bhs.opcode() == Opcode::DATA_IN).map(|got| got.read::<DataIn>()).collect()
        };
        let held = (0..1000).take_while(|_| {
            let read = world.read(conn, 100);
            let task = world.start(conn, &read, &[]).task;
            world.data_in(task, 0, &pattern(0, 100));
            world.finish(task, Finish::good(100));
            let answers: Vec<DataIn> = answers(&mut world);
            !answers.is_empty()
        });
        let held = held.count();
        assert!((4..1000).contains(&held), "{held}");
        let asked = match kind {
            SnackKind::STATUS => snack(kind, Itt::NONE, (lost[0].sn.stat_sn.0, 1)),
            _ => snack(kind, itt, (lost[0].data_sn.0, 1)),
        };
        world.send(conn, &asked, &[]);
        let again: Vec<DataIn> = answers(&mut world);
        let numbers = |data: &[DataIn]| data.iter().map(|data| data.sn.stat_sn).collect::<Vec<_>>();
        assert_eq!(numbers(&again), numbers(&lost));
        ack(&mut world, conn, lost[0].sn.stat_sn.next());
        let next: Vec<DataIn> = answers(&mut world);
        assert_eq!(next.len(), 1, "the held one follows");
    }
}

/// Executes a command and reads its response, without an acknowledgement. Returns its StatSN.
fn run(world: &mut World, conn: ConnId) -> StatSn {
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    world.finish(task, Finish::good(0));
    world.expect::<ScsiResponse>(conn).sn.stat_sn
}

#[test]
fn an_acknowledgement_is_asked_for_although_statuses_keep_coming() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let mut pinged = 0;
    for _ in 0..8 {
        // More often than once in `ack_within`.
        world.pass(Duration::from_millis(600));
        while let Some(got) = world.receive(conn) {
            assert_eq!(got.bhs.opcode(), Opcode::NOP_IN);
            pinged += 1;
        }
        run(&mut world, conn);
    }
    assert_eq!(pinged, 1, "one ping is open at a time");
}

#[test]
fn an_acknowledgement_of_some_statuses_leaves_the_others_to_be_asked_for() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let first = run(&mut world, conn);
    let second = run(&mut world, conn);
    ack(&mut world, conn, first.next());
    world.pass(Duration::from_secs(3));
    let ping: NopIn = world.expect(conn);
    assert_eq!(ping.sn.stat_sn, second.next());
    world.expect_silence(conn);
    // Only the answer to this ping, or an acknowledgement, is followed by another.
    let (_, cmd_sn) = world.numbers(conn);
    let pong = NopOut {
        immediate: true,
        lun: 0,
        itt: Itt::NONE,
        ttt: Ttt(ping.ttt.0.wrapping_add(1)),
        cmd_sn,
        exp_stat_sn: first.next(),
    };
    world.send(conn, &pong, &[]);
    world.pass(Duration::from_secs(3));
    world.expect_silence(conn);
    world.send(conn, &NopOut { ttt: ping.ttt, ..pong }, &[]);
    world.pass(Duration::from_secs(3));
    let again: NopIn = world.expect(conn);
    assert_ne!(again.ttt, ping.ttt);
    answer(&mut world, conn, &again);
    world.pass(Duration::from_secs(5));
    world.expect_silence(conn);
}

#[test]
fn pings_for_acknowledgements_take_memory_until_they_are_sent_and_none_afterwards() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let taken = |world: &World| {
        let connection = world.engine.conn(conn).unwrap();
        (world.engine.control_bytes, connection.control_bytes, connection.control_queued)
    };
    for _ in 0..3 {
        let last = run(&mut world, conn);
        world.stalled.insert(conn);
        world.pass(Duration::from_secs(3));
        assert_eq!(taken(&world), (CONTROL_COST, CONTROL_COST, 1));
        world.stalled.remove(&conn);
        world.transmit(conn);
        let ping: NopIn = world.expect(conn);
        assert_eq!(ping.sn.stat_sn, last.next());
        answer(&mut world, conn, &ping);
        assert_eq!(taken(&world), (0, 0, 0));
    }
    // An answer to the initiator's ping is retained until it is acknowledged.
    let (itt, cmd_sn) = world.numbers(conn);
    let ping = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conn, &ping, &[7; 100]);
    let pong: NopIn = world.expect(conn);
    assert_eq!(taken(&world), (CONTROL_COST + 100, CONTROL_COST + 100, 0));
    ack(&mut world, conn, pong.sn.stat_sn.next());
    assert_eq!(taken(&world), (0, 0, 0));
}

#[test]
fn an_acknowledgement_is_asked_for_before_the_bound_of_what_is_retained_is_reached() {
    let limits = Limits { ack_within: Duration::from_secs(3600), ..Limits::default() };
    for with_tasks in [false, true] {
        let mut world = World::with(limits, policy(1));
        let conn = login(&mut world, &[]);
        let bound =
            if with_tasks { world.engine.answered_max() as usize } else { world.engine.unacked_max() };
        let mut sent = 0;
        let ping = loop {
            assert!(sent < bound, "nothing asked for an acknowledgement");
            if with_tasks {
                let command = world.command(conn);
                let task = world.start(conn, &command, &[]).task;
                world.finish(task, Finish::good(0));
            } else {
                let (itt, cmd_sn) = world.numbers(conn);
                let (ttt, exp_stat_sn) = (Ttt::NONE, StatSn(0));
                world.send(conn, &NopOut { immediate: true, lun: 0, itt, ttt, cmd_sn, exp_stat_sn }, &[]);
            }
            sent += 1;
            let got: Vec<_> = core::iter::from_fn(|| world.receive(conn)).collect();
            let is_ping = |got: &&super::super::world::Got| {
                got.bhs.opcode() == Opcode::NOP_IN && got.bhs.itt() == Itt::NONE
            };
            if let Some(ping) = got.iter().find(is_ping) {
                break ping.read::<NopIn>();
            }
        };
        assert!((bound / 2 - 1..bound / 2 + 3).contains(&sent), "{sent} of {bound}");
        answer(&mut world, conn, &ping);
        world.expect_silence(conn);
    }
}
