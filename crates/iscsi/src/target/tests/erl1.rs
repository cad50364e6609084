//! ErrorRecoveryLevel 1 (RFC 7143 §7.1.1): what is lost is had again, and what is asked for wrongly is refused.

use alloc::vec::Vec;

use base::machine::{Action, ConnId};
use base::time::Duration;

use super::world::{Got, LUN, World, keys, pattern};
use crate::negotiate::KeyPolicy;
use crate::pdu::data_in::DataIn;
use crate::pdu::data_out::DataOut;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_request::{TmfFunction, TmfRequest};
use crate::pdu::tmf_response::{TmfResponse, TmfResult};
use crate::pdu::{Itt, Message, Opcode, TargetSn, Ttt};
use crate::serial::{DataSn, R2tSn, StatSn};
use crate::target::contract::{Event, Finish};
use crate::target::engine::Limits;

const DIGESTS: [&str; 2] = ["HeaderDigest=CRC32C", "DataDigest=CRC32C"];
const LEVEL: &str = "ErrorRecoveryLevel=1";

pub(super) fn policy(level: u8) -> KeyPolicy {
    KeyPolicy { error_recovery_level: level, ..keys() }
}

fn world() -> World {
    World::with(Limits::default(), policy(1))
}

/// Logs in at level 1 with digests and small bursts.
fn login(world: &mut World, more: &[&str]) -> ConnId {
    let keys = ["MaxBurstLength=4096", "FirstBurstLength=1024", "MaxRecvDataSegmentLength=1024", LEVEL];
    world.login(&[&keys, &DIGESTS[..], more].concat()).0
}

pub(super) fn snack(kind: SnackKind, itt: Itt, (beg_run, run_length): (u32, u32)) -> Snack {
    Snack { kind, lun: 0, itt, tag: u32::MAX, exp_stat_sn: StatSn(0), beg_run, run_length }
}

/// Starts a read and answers it whole; returns its tag and every PDU that came.
fn read_all(world: &mut World, conn: ConnId, len: u32) -> (Itt, Vec<DataIn>) {
    let read = world.read(conn, len);
    let command = world.start(conn, &read, &[]);
    let data = pattern(0, len as usize);
    world.engine.data_in(command.task, 0, base::buffer::Bytes::copied_from(&data).into());
    world.finish(command.task, Finish::good(len.into()));
    let mut got = Vec::new();
    while let Some(pdu) = world.receive(conn) {
        let header = pdu.read::<DataIn>();
        assert_eq!(pdu.data, data[header.buffer_offset as usize..][..pdu.data.len()]);
        got.push(without_counters(header));
    }
    (read.itt, got)
}

/// Takes Data-In PDUs and checks what they carry against the pattern; returns them.
fn data_ins(world: &mut World, conn: ConnId) -> Vec<DataIn> {
    let mut got = Vec::new();
    while let Some(pdu) = world.receive(conn) {
        let header = pdu.read::<DataIn>();
        assert_eq!(pdu.data, pattern(header.buffer_offset, pdu.data.len()));
        got.push(without_counters(header));
    }
    got
}

/// Everything of a PDU but ExpCmdSN and MaxCmdSN.
fn as_kept(got: &Got) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = got.bhs.to_bytes().to_vec();
    bytes[28..36].fill(0);
    (bytes, got.data.clone())
}

/// ExpCmdSN and MaxCmdSN are as they are now, also in what is sent again.
fn without_counters(pdu: DataIn) -> DataIn {
    let sn = TargetSn { stat_sn: pdu.sn.stat_sn, ..TargetSn::default() };
    DataIn { sn, ..pdu }
}

fn rejected(world: &mut World, conn: ConnId) -> RejectReason {
    world.expect::<Reject>(conn).reason
}

/// Acknowledges every status before `exp` with a ping that wants no answer.
pub(super) fn ack(world: &mut World, conn: ConnId, exp: StatSn) {
    let (_, cmd_sn) = world.numbers(conn);
    let ping = NopOut { immediate: true, lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: exp };
    world.send(conn, &ping, &[]);
}

fn data_out(write: &ScsiCommand, ttt: Ttt, sn: u32, offset: u32, is_final: bool) -> DataOut {
    DataOut {
        is_final,
        lun: LUN,
        itt: write.itt,
        ttt,
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(sn),
        buffer_offset: offset,
    }
}

/// Sends a PDU one bit of which is wrong.
fn send_hurt(world: &mut World, conn: ConnId, message: &impl Message, data: &[u8], bit: usize) {
    let mut bytes = world.frame(conn, message.encode(), &[], data);
    bytes[bit / 8] ^= 1 << (bit % 8);
    world.feed(conn, &bytes);
}

#[test]
fn statuses_are_sent_again_exactly_as_they_were_until_they_are_acknowledged() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let mut sent = Vec::new();
    for sense in [&[0x70, 0, 5][..], &[]] {
        let command = world.command(conn);
        let up = world.start(conn, &command, &[]);
        world
            .finish(up.task, Finish { status: if sense.is_empty() { 0 } else { 2 }, sense, transferable: 0 });
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
    // Everything that is not acknowledged, after two were.
    let mut all = snack(SnackKind::STATUS, Itt::NONE, (0, 0));
    all.exp_stat_sn = first.plus(2);
    world.send(conn, &all, &[]);
    assert_eq!(as_kept(&world.expect_any(conn)), as_kept(&sent[2]));
    assert_eq!(as_kept(&world.expect_any(conn)), as_kept(&sent[3]));
    world.expect_silence(conn);
    // What is acknowledged, or was not sent, cannot be had.
    let far = first.0 + 100;
    for (beg, len) in [(first.0, 1), (first.0 + 1, 2), (far, 1), (far, 0), (first.0 + 2, u32::MAX)] {
        world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (beg, len)), &[]);
        assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR, "{beg} {len}");
    }
}

#[test]
fn data_is_sent_again_exactly_as_it_was_with_the_status_that_rode_on_it() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 5000);
    assert_eq!(sent.len(), 5);
    assert_eq!(sent.iter().map(|pdu| pdu.is_final).collect::<Vec<_>>(), [false, false, false, true, true]);
    for (beg, len, range) in [(0, 0, 0..5), (0, 1, 0..1), (2, 2, 2..4), (3, 0, 3..5), (4, 1, 4..5)] {
        // The tag means nothing here, and not every initiator sets it to the reserved value.
        world.send(conn, &Snack { tag: 0, ..snack(SnackKind::DATA_OR_R2T, itt, (beg, len)) }, &[]);
        assert_eq!(data_ins(&mut world, conn), sent[range], "{beg} {len}");
    }
    // A status that rode on data comes with it.
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
fn data_that_is_asked_to_be_acknowledged_is_kept_until_it_is() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 12_000);
    let asked: Vec<_> = sent.iter().filter(|pdu| pdu.acknowledge).collect();
    // Once every MaxBurstLength bytes, and not with the status.
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
    // With the tag of its task too, as some initiators have it.
    world.send(conn, &Snack { itt, ..good }, &[]);
    world.expect_silence(conn);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (0, 0)), &[]);
    assert_eq!(data_ins(&mut world, conn), sent[4..]);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (3, 1)), &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::PROTOCOL_ERROR);
    // An acknowledgement that comes late says nothing new.
    world.send(conn, &Snack { beg_run: 12, ..good }, &[]);
    world.send(conn, &good, &[]);
    assert_eq!(rejected(&mut world, conn), RejectReason::INVALID_DATA_ACK);
    assert_eq!(world.engine.sessions().next().unwrap().unsent_bytes, 0);
    // So does one that the acknowledgement of the status has overtaken.
    let late = Snack { exp_stat_sn: sent.last().unwrap().sn.stat_sn.next(), ..good };
    // The status is a PDU of its own now that its data is gone.
    let status = sent.last().unwrap().sn.stat_sn;
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    let response: ScsiResponse = world.expect(conn);
    assert_eq!((response.itt, response.sn.stat_sn, response.exp_data_sn), (itt, status, DataSn(12)));
    world.send(conn, &late, &[]);
    world.expect_silence(conn);
}

#[test]
fn data_cut_anew_comes_from_the_acknowledged_point_and_ends_with_a_tagged_response() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (itt, sent) = read_all(&mut world, conn, 5000);
    let status = sent[4].sn.stat_sn;
    let acked = Snack { lun: LUN, tag: sent[3].ttt.0, ..snack(SnackKind::DATA_ACK, Itt::NONE, (2, 0)) };
    world.send(conn, &acked, &[]);
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
    for size in [512, 2048] {
        let size = alloc::format!("MaxRecvDataSegmentLength={size}\0");
        world.send(conn, &text, size.as_bytes());
        world.expect::<TextResponse>(conn);
        if size.contains("512") {
            world.send(conn, &snack(SnackKind::DATA_OR_R2T, itt, (2, 1)), &[]);
            assert_eq!(rejected(&mut world, conn), RejectReason::SNACK_REJECT, "it would be too long");
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
    // Who misses that response gets it as it is now.
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    assert_eq!(world.expect::<ScsiResponse>(conn).snack_tag, 9);
    world.expect_silence(conn);
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
    // Nothing to send is nothing to refuse.
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, open.itt, (0, 0)), &[]);
    world.expect_silence(conn);
    // A flood against an initiator that does not read: what waits is numbers.
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
    // Its number is still open; there is nothing to send for it any more.
    world.send(conn, &snack(SnackKind::STATUS, Itt::NONE, (status.0, 1)), &[]);
    world.expect_silence(conn);
}

#[test]
fn answered_tasks_are_out_of_the_window_and_out_of_reach() {
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

    // One that acknowledges nothing: answers stop before what is kept goes beyond its bound.
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
fn a_header_with_one_wrong_bit_costs_its_pdu_and_nothing_else() {
    for bit in 0..52 * 8 {
        let mut world = world();
        let conn = login(&mut world, &["ImmediateData=Yes"]);
        let write = ScsiCommand { is_final: true, ..world.write(conn, 600) };
        send_hurt(&mut world, conn, &write, &pattern(0, 600), bit);
        assert_eq!(world.ended(conn), None, "bit {bit}");
        world.expect_silence(conn);
        // The command is sent again, as it was.
        let up = world.start(conn, &write, &pattern(0, 600));
        world.fetch(up.task, 0, 600);
        assert_eq!(world.expect_data(up.task, 0), pattern(0, 600), "bit {bit}");
        assert_eq!(world.engine.stats().header_digest_errors, 1);
    }
}

#[test]
fn a_header_that_is_worse_hurt_ends_the_connection() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let command = world.command(conn);
    let mut bytes = world.frame(conn, command.encode(), &[], &[]);
    bytes[7] ^= 3;
    world.feed(conn, &bytes);
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn a_missing_command_is_shown_and_waited_for() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (lost, second) = (world.command(conn), world.command(conn));
    let second = ScsiCommand { cmd_sn: lost.cmd_sn.next(), ..second };
    send_hurt(&mut world, conn, &lost, &[], 100);
    world.issue(conn, &second, &[]);
    world.count(conn);
    assert!(world.events.is_empty());
    world.pass(Duration::from_secs(4));
    let shown: Vec<NopIn> = core::iter::from_fn(|| world.receive(conn)).map(|got| got.read()).collect();
    assert!(shown.iter().any(|pdu| pdu.ttt == Ttt::NONE && pdu.sn.exp_cmd_sn == lost.cmd_sn));
    world.send(conn, &lost, &[]);
    let order = [world.expect_command().task, world.expect_command().task];
    assert_ne!(order[0], order[1]);
    // Once more is a duplicate, answered or not.
    world.send(conn, &lost, &[]);
    assert!(world.events.is_empty());
    world.finish(order[0], Finish::good(0));
    world.send(conn, &lost, &[]);
    assert!(world.events.is_empty());
    assert_eq!(world.expect::<ScsiResponse>(conn).itt, lost.itt);
    assert_eq!(world.ended(conn), None);
}

#[test]
fn immediate_data_that_is_damaged_takes_its_command_with_it() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let write = world.write(conn, 600);
    send_hurt(&mut world, conn, &write, &pattern(0, 600), (52 + 100) * 8);
    assert_eq!(rejected(&mut world, conn), RejectReason::DATA_DIGEST_ERROR);
    assert!(world.events.is_empty());
    let up = world.start(conn, &write, &pattern(0, 600));
    world.fetch(up.task, 0, 600);
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 600));
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

/// Sends a sequence in PDUs of `step` bytes; those in `hurt` have a wrong data digest, those in `lost` a wrong header.
fn answer_r2t(
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

fn as_asked(r2t: &R2t) -> (Ttt, u32, u32) {
    (r2t.ttt, r2t.buffer_offset, r2t.desired_data_transfer_length)
}

#[test]
fn data_out_that_is_lost_or_damaged_is_asked_for_again_with_the_next_number() {
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
                // What still comes for the first one means nothing.
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
    answer_r2t(&mut world, conn, &write, as_asked(&first), 500, (&[], &[]));
    let second: R2t = world.expect(conn);
    assert_eq!((second.r2t_sn, as_asked(&second).1, as_asked(&second).2), (R2tSn(1), 1024, 1976));
    answer_r2t(&mut world, conn, &write, as_asked(&second), 1000, (&[], &[]));
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 3000));
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
        // Late data for what was asked first changes nothing.
        world.send(conn, &data_out(&write, ttt, 1, 600, true), &[0xee; 400]);
        assert!(world.events.is_empty());
        answer_r2t(&mut world, conn, &write, as_asked(last), 400, (&[], &[]));
        assert_eq!(world.expect_data(up.task, 0), pattern(0, 1000));
        assert_eq!(world.ended(conn), None);
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
        // It answers pings.
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

#[test]
fn numbers_wrap() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    // Statuses.
    let connection = world.engine.conns[conn.0 as usize].as_mut().unwrap();
    connection.stat_sn = StatSn(u32::MAX);
    connection.acked = StatSn(u32::MAX);
    connection.unacked = crate::target::retain::Unacked::new(StatSn(u32::MAX));
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
    (task.inn.data_sn, task.inn.acked_sn) = (DataSn(u32::MAX - 1), DataSn(u32::MAX - 1));
    world.data_in(up.task, 0, &pattern(0, 4000));
    let sent = data_ins(&mut world, conn);
    assert_eq!(sent.iter().map(|pdu| pdu.data_sn.0).collect::<Vec<_>>(), [u32::MAX - 1, u32::MAX, 0, 1]);
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, read.itt, (u32::MAX, 2)), &[]);
    assert_eq!(data_ins(&mut world, conn), sent[1..3]);
    // R2Ts.
    let write = world.write(conn, 4000);
    let up = world.start(conn, &write, &[]);
    world.engine.tasks.get_mut(up.task.0).unwrap().out.r2t_sn = R2tSn(u32::MAX);
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
