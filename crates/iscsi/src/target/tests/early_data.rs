//! Data of requests that wait for a missing CmdSN: the memory stays reserved for as long as it is kept.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use base::state_machine::{ConnId, DisconnectReason};
use base::time::Duration;
use transport::target::TargetTransport;
use transport::task_management::{TmfFunction, TmfResult};

use super::mcs::several;
use super::world::{World, keys};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::text_request::TextRequest;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::{Itt, Opcode, Ttt};
use crate::serial::{CmdSn, StatSn};
use crate::target::contract::Event;
use crate::target::engine::Limits;

/// The length of each data segment.
const LEN: usize = 8192;

fn limits() -> Limits {
    Limits { data_out_bytes_max: 16 * LEN, ..Limits::default() }
}

fn ping(world: &mut World, conn: ConnId, ahead: u32) -> NopOut {
    let (itt, cmd_sn) = world.numbers(conn);
    NopOut {
        immediate: false,
        lun: 0,
        itt,
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(cmd_sn.0 + ahead),
        exp_stat_sn: StatSn(0),
    }
}

fn text(world: &mut World, conn: ConnId, ahead: u32) -> TextRequest {
    let NopOut { itt, cmd_sn, .. } = ping(world, conn, ahead);
    TextRequest {
        immediate: false,
        is_final: true,
        continues: false,
        lun: 0,
        itt,
        ttt: Ttt::NONE,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    }
}

/// Returns a text of [`LEN`] bytes.
fn long_text() -> Vec<u8> {
    let keys = (0..LEN / 256).map(|at| format!("X-{at:04}={}\0", "a".repeat(248)));
    keys.collect::<String>().into_bytes()
}

fn used(world: &World) -> usize {
    world.engine.quotas.unsolicited.used()
}

/// Sends pings and texts, alternately, after a missing CmdSN. Returns how many were accepted.
fn send_ahead(world: &mut World, conn: ConnId) -> usize {
    let mut accepted = 0;
    for ahead in 1..=24 {
        if ahead % 2 == 0 {
            let text = text(world, conn, ahead);
            world.send(conn, &text, &long_text());
        } else {
            let ping = ping(world, conn, ahead);
            world.send(conn, &ping, &[7; LEN]);
        }
        match world.receive(conn) {
            None => accepted += 1,
            Some(got) => assert_eq!(got.read::<Reject>().reason, RejectReason::LONG_OPERATION_REJECT),
        }
        assert_eq!(used(world), accepted * LEN, "what is kept is counted");
        assert!(used(world) <= limits().data_out_bytes_max);
    }
    assert!(0 < accepted && accepted < 24, "{accepted}");
    accepted
}

#[test]
fn data_that_waits_for_a_missing_number_is_counted_until_it_is_executed() {
    let mut world = World::with(limits(), keys());
    let (conn, _) = world.login(&["MaxRecvDataSegmentLength=65536"]);
    let accepted = send_ahead(&mut world, conn);
    let missing = ping(&mut world, conn, 0);
    world.send(conn, &missing, &[]);
    assert_eq!(used(&world), 0);
    let mut answers = 0;
    while let Some(got) = world.receive(conn) {
        answers += 1;
        if got.bhs.opcode() == Opcode::NOP_IN && got.read::<NopIn>().itt != missing.itt {
            assert_eq!(got.data, [7; LEN]);
        }
    }
    assert_eq!(answers, accepted + 1);
}

#[test]
fn data_that_waits_for_a_missing_number_is_released_with_its_connection_and_session() {
    for level in [0, 2] {
        let mut world = World::with(limits(), several(level));
        let erl = format!("ErrorRecoveryLevel={level}");
        let (first, up) = world.login(&["MaxConnections=4", &erl]);
        let (second, _) = world.join(first, up.tsih, 1, &[]);
        send_ahead(&mut world, second);
        world.hang_up(second, DisconnectReason::Failed);
        assert_eq!(used(&world), 0, "the connection is lost");
        send_ahead(&mut world, first);
        match level {
            // The number never comes.
            0 => world.pass(Duration::from_secs(600)),
            _ => world.engine.close_session(world.now, up.session),
        }
        world.drain();
        assert_eq!((used(&world), world.engine.sessions().count()), (0, 0));
        assert_eq!(world.engine.stats().bugs, 0);
    }
}

#[test]
fn data_that_waits_for_a_missing_number_is_released_by_a_reset_that_takes_the_number_as_received() {
    let mut world = World::with(limits(), keys());
    let (conn, _) = world.login(&["MaxRecvDataSegmentLength=65536"]);
    // The first request that the reset takes as received breaks a rule.
    let wrong = TextRequest { itt: Itt::NONE, ..text(&mut world, conn, 1) };
    world.send(conn, &wrong, &long_text());
    for ahead in 2..=4 {
        let ping = ping(&mut world, conn, ahead);
        world.send(conn, &ping, &[7; LEN]);
    }
    assert_eq!(used(&world), 4 * LEN);
    // The command after the reset has come as well.
    let next = ScsiCommand { cmd_sn: CmdSn(wrong.cmd_sn.0 + 4), ..world.command(conn) };
    world.send(conn, &next, &[]);
    let reset = world.manage(conn, TmfFunction::TARGET_WARM_RESET);
    world.send(conn, &TmfRequest { cmd_sn: CmdSn(wrong.cmd_sn.0 + 4), ..reset }, &[]);
    assert_eq!(used(&world), 0);
    let answers: Vec<Opcode> =
        core::iter::from_fn(|| world.receive(conn)).map(|got| got.bhs.opcode()).collect();
    assert_eq!(answers, [Opcode::REJECT, Opcode::NOP_IN, Opcode::NOP_IN, Opcode::NOP_IN]);
    let Some(Event::Tmf(manage)) = world.next_event() else { panic!("the reset is executed") };
    world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
    world.drain();
    world.expect_command();
}
