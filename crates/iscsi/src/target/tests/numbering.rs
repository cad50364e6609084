//! Missing CmdSNs, and requests outside the command window (RFC 7143 §4.2.2.1).

use base::state_machine::ConnId;
use base::time::Duration;
use transport::target::{Finish, TargetTransport};
use transport::task_management::{TmfFunction, TmfResult};

use super::erl1::ack;
use super::mcs::{issue, logout, session};
use super::world::World;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_out::NopOut;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{PduHeader, Ttt};
use crate::serial::{CmdSn, StatSn};
use crate::target::contract::Event;

/// Sends a ping, or a command, whose number is `ahead` of its turn.
fn send_ahead(world: &mut World, conn: ConnId, ahead: u32, is_command: bool) {
    let mut command = world.command(conn);
    command.cmd_sn = command.cmd_sn.plus(ahead);
    let (itt, cmd_sn) = (command.itt, command.cmd_sn);
    if is_command {
        world.send(conn, &command, &[]);
    } else {
        let (ttt, exp_stat_sn) = (Ttt::NONE, StatSn(0));
        world.send(conn, &NopOut { immediate: false, lun: 0, itt, ttt, cmd_sn, exp_stat_sn }, &[]);
    }
}

#[test]
fn a_missing_number_ends_the_session_in_time_whatever_comes_after_it() {
    for is_command in [false, true] {
        let mut world = World::new();
        let (conn, _) = world.login(&[]);
        for ahead in 1..4 {
            send_ahead(&mut world, conn, ahead, is_command);
            world.pass(Duration::from_millis(900));
            world.expect_silence(conn);
            assert_eq!(world.ended(conn), None);
        }
        // The first came 2.7 s ago.
        world.pass(Duration::from_millis(300));
        assert!(world.ended(conn).is_some(), "{is_command}");
        assert!(matches!(world.next_event(), Some(Event::SessionDown { .. })));
    }
}

#[test]
fn a_number_that_comes_in_time_ends_the_wait_for_it() {
    for is_command in [false, true] {
        let mut world = World::new();
        let (conn, _) = world.login(&[]);
        send_ahead(&mut world, conn, 1, is_command);
        world.pass(Duration::from_secs(2));
        send_ahead(&mut world, conn, 0, is_command);
        world.pass(Duration::from_secs(20));
        assert_eq!(world.ended(conn), None);
        // The next one that is missing has the whole time again.
        send_ahead(&mut world, conn, 3, is_command);
        world.pass(Duration::from_millis(2900));
        assert_eq!(world.ended(conn), None, "{is_command}");
        world.pass(Duration::from_millis(100));
        assert!(world.ended(conn).is_some(), "{is_command}");
    }
}

#[test]
fn functions_outside_the_window_leave_nothing_behind() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    for _ in 0..100 {
        let request = world.manage(conn, TmfFunction::ABORT_TASK_SET);
        let cmd_sn = request.cmd_sn.plus(5000);
        world.send(conn, &TmfRequest { immediate: false, cmd_sn, ..request }, &[]);
        world.expect_silence(conn);
    }
    assert_eq!((world.engine.tmfs.len(), world.engine.stats().management), (0, 0));
    let request = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conn, &request, &[]);
    let Some(Event::Tmf(function)) = world.next_event() else { panic!("no function") };
    assert_eq!(world.engine.stats().management, 1);
    world.engine.finish_tmf(function.tmf, TmfResult::COMPLETE);
    world.drain();
    assert_eq!(world.expect::<TmfResponse>(conn).itt, request.itt);
}

#[test]
fn nothing_is_executed_that_follows_a_logout_in_the_stream() {
    let (mut world, conns, _) = session(0, 2);
    let open = world.command(conns[1]);
    issue(&mut world, &conns, conns[1], &open, &[]);
    let task = world.expect_command().task;
    let (itt, cmd_sn) = world.numbers(conns[1]);
    let (reason, exp_stat_sn) = (LogoutReason::CloseConnection, StatSn(0));
    let request = LogoutRequest { immediate: true, reason, itt, cid: 1, cmd_sn, exp_stat_sn };
    let late = world.command(conns[1]);
    let bytes =
        [world.frame(conns[1], request.encode(), &[], &[]), world.frame(conns[1], late.encode(), &[], &[])];
    world.feed(conns[1], &bytes.concat());
    world.expect_silence(conns[1]);
    world.finish(task, Finish::good(0));
    assert_eq!(world.expect::<ScsiResponse>(conns[1]).itt, open.itt);
    assert_eq!(world.expect::<LogoutResponse>(conns[1]).response, LogoutResult::CLOSED);
    // Its number is free for the connection that stays.
    let next = world.command(conns[0]);
    assert_eq!(next.cmd_sn, late.cmd_sn);
    issue(&mut world, &conns, conns[0], &next, &[]);
    world.expect_command();
}

#[test]
fn a_function_that_waits_for_a_number_outlives_the_logout_of_another_connection() {
    let (mut world, conns, _) = session(0, 3);
    let missing = world.command(conns[2]);
    let request = world.manage(conns[0], TmfFunction::ABORT_TASK_SET);
    world.send(conns[0], &TmfRequest { cmd_sn: CmdSn(request.cmd_sn.0 + 1), ..request }, &[]);
    world.expect_silence(conns[0]);
    let response = logout(&mut world, conns[1], LogoutReason::CloseConnection, 1);
    assert_eq!(response.response, LogoutResult::CLOSED);
    issue(&mut world, &conns, conns[2], &missing, &[]);
    world.expect_command();
    let Some(Event::Tmf(function)) = world.next_event() else { panic!("no function") };
    // The response waits for the acknowledgement of the login.
    ack(&mut world, conns[2], StatSn(2));
    world.engine.finish_tmf(function.tmf, TmfResult::COMPLETE);
    world.drain();
    assert_eq!(world.expect::<TmfResponse>(conns[0]).itt, request.itt);
}

#[test]
fn a_fence_falls_with_the_logout_of_the_connection_that_it_waits_for() {
    let (mut world, conns, _) = session(0, 2);
    let command = world.command(conns[1]);
    issue(&mut world, &conns, conns[1], &command, &[]);
    let task = world.expect_command().task;
    world.finish(task, Finish::good(0));
    let reset = world.manage(conns[0], TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conns[0], &reset, &[]);
    let Some(Event::Tmf(function)) = world.next_event() else { panic!("no function") };
    world.engine.finish_tmf(function.tmf, TmfResult::COMPLETE);
    world.drain();
    world.expect_silence(conns[0]);
    logout(&mut world, conns[1], LogoutReason::CloseConnection, 1);
    assert_eq!(world.expect::<TmfResponse>(conns[0]).itt, reset.itt);
}

#[test]
fn a_connection_that_has_logged_out_is_not_read_while_it_closes() {
    let (mut world, conns, _) = session(0, 2);
    let (itt, cmd_sn) = world.numbers(conns[1]);
    let (reason, exp_stat_sn) = (LogoutReason::CloseConnection, StatSn(0));
    let request = LogoutRequest { immediate: true, reason, itt, cid: 1, cmd_sn, exp_stat_sn };
    let late = world.command(conns[1]);
    let bytes = [request.encode(), late.encode()].map(|bhs| world.frame(conns[1], bhs, &[], &[]));
    world.engine.received(world.now, conns[1], &bytes[0], &world.names);
    assert!(world.engine.poll_event().is_none());
    // The logout is finished, and the driver has not closed the connection yet.
    world.engine.received(world.now, conns[1], &bytes[1], &world.names);
    world.drain();
    assert_eq!(world.expect::<LogoutResponse>(conns[1]).itt, itt);
    world.expect_silence(conns[1]);
    assert_eq!((world.engine.stats().bugs, world.engine.sessions().count()), (0, 1));
}
