//! Pings, silence, and connections that end.

use alloc::string::ToString;
use alloc::vec::Vec;

use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::Duration;
use transport::status::SENSE_MAX;
use transport::target::{Finish, TargetTransport, TaskRef};
use transport::task_management::{TmfFunction, TmfResult};

use super::world::{LUN, World, keys};
use crate::pdu::async_message::AsyncMessage;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::LogoutResponse;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, Ttt};
use crate::serial::{CmdSn, StatSn};
use crate::target::contract::{AsyncEvent, ConnectionLoss, Event, SessionEnd, SessionLimits};
use crate::target::engine::Limits;

fn ping(world: &mut World, conn: ConnId) -> NopOut {
    let (itt, cmd_sn) = world.numbers(conn);
    NopOut { immediate: true, lun: LUN, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) }
}

#[test]
fn a_ping_comes_back_with_its_data_as_far_as_the_initiator_can_receive() {
    //= rfc7143#section-11.18.1
    //= type=test
    //# When a target receives the NOP-Out with a valid Initiator Task Tag, it MUST respond with a NOP-In
    //# Response (see Section 4.6.3.6).
    //= rfc7143#section-11.19
    //= type=test
    //# When a target receives the NOP-Out with a valid Initiator Task Tag (not the reserved value
    //# 0xffffffff), it MUST respond with a NOP-In with the same Initiator Task Tag that was provided in the
    //# NOP-Out request.
    //= rfc7143#section-11.19
    //= type=test
    //# It MUST also duplicate up to the first MaxRecvDataSegmentLength bytes of the initiator-provided Ping
    //# Data.
    //= rfc7143#section-11.19
    //= type=test
    //# For such a response, the Target Transfer Tag MUST be 0xffffffff.
    let mut world = World::new();
    let (conn, _) = world.login(&["MaxRecvDataSegmentLength=512", "DataDigest=CRC32C"]);
    for len in [0, 1, 511, 512, 5000] {
        let sent = ping(&mut world, conn);
        let data = super::world::pattern(0, len);
        world.send(conn, &sent, &data);
        let got = world.expect_any(conn);
        let pong: NopIn = got.read();
        assert_eq!((pong.itt, pong.ttt, pong.lun), (sent.itt, Ttt::NONE, LUN));
        assert_eq!(got.data, data[..len.min(512)]);
    }
}

#[test]
fn a_numbered_ping_takes_its_number_and_an_unanswered_one_takes_no_status() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let mut sent = ping(&mut world, conn);
    sent.immediate = false;
    world.send(conn, &sent, &[]);
    let first: NopIn = world.expect(conn);
    assert_eq!(first.sn.exp_cmd_sn, CmdSn(101));
    sent.cmd_sn = CmdSn(101);
    sent.itt = Itt::NONE;
    world.send(conn, &sent, &[]);
    world.expect_silence(conn);
    sent = NopOut { immediate: true, itt: Itt(9), ..sent };
    world.send(conn, &sent, &[]);
    let second: NopIn = world.expect(conn);
    assert_eq!(second.sn.exp_cmd_sn, CmdSn(102));
    assert_eq!(second.sn.stat_sn, first.sn.stat_sn.next());
}

#[test]
fn a_silent_peer_is_pinged_and_then_given_up() {
    //= rfc7143#section-7.1.4.3
    //= type=test
    //# The target MUST close the connection and, if more than one connection is available, the target SHOULD
    //# send an Asynchronous Message that indicates that it has dropped the connection.
    let limits = Limits {
        ping_after: Duration::from_secs(30),
        pong_within: Duration::from_secs(15),
        idle_within: Duration::ZERO,
        ..Limits::default()
    };
    let mut world = World::with(limits, keys());
    let (conn, up) = world.login(&[]);
    world.pass(Duration::from_secs(29));
    world.expect_silence(conn);
    world.pass(Duration::from_secs(1));
    let asked: NopIn = world.expect(conn);
    assert_eq!(asked.itt, Itt::NONE);
    assert_ne!(asked.ttt, Ttt::NONE);
    // The initiator answers, so the silence timer starts again.
    world.pass(Duration::from_secs(10));
    let answer = NopOut { itt: Itt::NONE, ttt: asked.ttt, lun: asked.lun, ..ping(&mut world, conn) };
    world.send(conn, &answer, &[]);
    world.pass(Duration::from_secs(29));
    world.expect_silence(conn);
    world.pass(Duration::from_secs(1));
    let again: NopIn = world.expect(conn);
    assert_eq!(again.sn.stat_sn, asked.sn.stat_sn, "a ping of ours takes no status number");
    world.pass(Duration::from_secs(15));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    match world.next_event() {
        Some(Event::SessionDown { session, why }) => {
            assert_eq!((session, why), (up.session, SessionEnd::TimedOut))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.engine.sessions().count(), 0);
}

#[test]
fn a_login_that_is_not_complete_in_time_is_dropped() {
    let mut world = World::new();
    let conn = world.connect();
    world.feed(conn, &[0x43, 0x87, 0]);
    world.pass(Duration::from_secs(600));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn a_connection_that_goes_takes_its_session_and_tasks_along() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let read = world.read(conn, 512);
    let task = world.start(conn, &read, &[]).task;
    world.hang_up(conn, DisconnectReason::Failed);
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    match world.next_event() {
        Some(Event::SessionDown { session, why }) => {
            assert_eq!((session, why), (up.session, SessionEnd::ConnectionLost(ConnectionLoss::Failed)));
        }
        other => panic!("{other:?}"),
    }
    // The layer above still refers to the task; its calls are ignored.
    world.data_in(task, 0, &[0; 512]);
    world.fetch(task, 0, 1);
    world.finish(task, Finish::good(0));
    assert!(world.events.is_empty());
    assert_eq!(world.engine.sessions().count(), 0);
}

#[test]
fn the_end_of_a_session_names_the_error_of_its_connection() {
    for (why, told) in [
        (DisconnectReason::Closed, "the target lost the last connection: closed by peer"),
        (DisconnectReason::Reset, "the target lost the last connection: connection reset by peer"),
        (DisconnectReason::TimedOut, "the target lost the last connection: connection timed out"),
        (DisconnectReason::Unreachable, "the target lost the last connection: host or network unreachable"),
        (DisconnectReason::Failed, "the target lost the last connection: the transport failed"),
        (DisconnectReason::Stalled, "the initiator did not answer in time"),
        (DisconnectReason::Shutdown, "the target closed the session"),
    ] {
        let mut world = World::new();
        let (conn, up) = world.login(&[]);
        world.hang_up(conn, why);
        match world.next_event() {
            Some(Event::SessionDown { session, why }) => {
                assert_eq!((session, why.to_string().as_str()), (up.session, told));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_changed_patience_counts_for_the_connections_at_hand() {
    let never = Limits { ping_after: Duration::MAX, ..Limits::default() };
    let mut world = World::with(never, keys());
    let (conn, _) = world.login(&[]);
    world.pass(Duration::from_secs(600));
    world.expect_silence(conn);
    let limits = |ping_after| SessionLimits {
        ping_after: Duration::from_secs(ping_after),
        pong_within: Duration::from_secs(5),
        idle_within: Duration::ZERO,
        queue_depth: 128,
    };
    let now = world.now;
    world.engine.set_session_limits(now, limits(700), [].into());
    world.drain();
    world.pass(Duration::from_secs(99));
    world.expect_silence(conn);
    world.pass(Duration::from_secs(1));
    let asked: NopIn = world.expect(conn);
    // The ping was already sent, and its answer has the time limit of that moment.
    let now = world.now;
    world.engine.set_session_limits(now, limits(1), [].into());
    world.pass(Duration::from_secs(4));
    let answer = NopOut { itt: Itt::NONE, ttt: asked.ttt, lun: asked.lun, ..ping(&mut world, conn) };
    world.send(conn, &answer, &[]);
    world.expect_silence(conn);
    world.pass(Duration::from_secs(2));
    let _again: NopIn = world.expect(conn);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

/// Returns a session whose initiator is pinged after `ping_after` seconds and is given 15 s to answer.
fn pinged_after(ping_after: u64, idle_within: u64) -> (World, ConnId) {
    let limits = Limits {
        ping_after: Duration::from_secs(ping_after),
        pong_within: Duration::from_secs(15),
        idle_within: Duration::from_secs(idle_within),
        ..Limits::default()
    };
    let mut world = World::with(limits, keys());
    let (conn, _) = world.login(&[]);
    (world, conn)
}

/// Answers a ping, with a transfer tag that is off by `off`.
fn answer(world: &mut World, conn: ConnId, asked: &NopIn, off: u32) {
    let ttt = Ttt(asked.ttt.0.wrapping_add(off));
    let answer = NopOut { itt: Itt::NONE, ttt, lun: asked.lun, ..ping(world, conn) };
    world.send(conn, &answer, &[]);
}

#[test]
fn an_answered_ping_is_over_even_if_the_next_is_due_before_its_time_limit() {
    for (off, is_answer) in [(0, true), (1, false)] {
        let (mut world, conn) = pinged_after(5, 0);
        world.pass(Duration::from_secs(5));
        let asked: NopIn = world.expect(conn);
        world.pass(Duration::from_secs(1));
        answer(&mut world, conn, &asked, off);
        world.expect_silence(conn);
        // The time limit of the ping is at 20 s, and the next ping is due since 11 s.
        world.pass(Duration::from_secs(13));
        world.expect_silence(conn);
        assert_eq!(world.ended(conn), None);
        world.pass(Duration::from_secs(1));
        if is_answer {
            let again: NopIn = world.expect(conn);
            assert_ne!(again.ttt, asked.ttt);
            assert_eq!(world.ended(conn), None);
        } else {
            // A NOP-Out with another transfer tag answers nothing.
            assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
        }
    }
}

#[test]
fn an_initiator_that_sends_other_pdus_is_not_pinged_and_answers_with_any_of_them() {
    let (mut world, conn) = pinged_after(30, 0);
    for _ in 0..5 {
        world.pass(Duration::from_secs(29));
        let sent = ping(&mut world, conn);
        world.send(conn, &sent, &[]);
        assert_eq!(world.expect::<NopIn>(conn).itt, sent.itt);
        world.expect_silence(conn);
    }
    world.pass(Duration::from_secs(30));
    let asked: NopIn = world.expect(conn);
    // A command shows that the initiator is alive, and the open ping is forgotten.
    world.pass(Duration::from_secs(14));
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    world.pass(Duration::from_secs(29));
    world.expect_silence(conn);
    world.pass(Duration::from_secs(1));
    let again: NopIn = world.expect(conn);
    assert_ne!(again.ttt, asked.ttt);
    world.pass(Duration::from_secs(14));
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
}

#[test]
fn one_ping_is_open_at_a_time_however_long_an_idle_initiator_is_silent() {
    let (mut world, conn) = pinged_after(30, 300);
    world.pass(Duration::from_secs(299));
    let asked: NopIn = world.expect(conn);
    world.expect_silence(conn);
    assert!(world.engine.conn(conn).unwrap().ping_overdue);
    // The late answer makes it responsive again.
    answer(&mut world, conn, &asked, 0);
    world.pass(Duration::from_secs(30));
    assert!(!world.engine.conn(conn).unwrap().ping_overdue);
    let again: NopIn = world.expect(conn);
    assert_ne!(again.ttt, asked.ttt);
    world.pass(Duration::from_secs(269));
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn a_silent_idle_connection_ends_at_its_time_limit_and_not_at_the_next_poll() {
    let (mut world, conn) = pinged_after(30, 100);
    // The polls are at 45 s, 60 s, 75 s, 90 s.
    world.pass(Duration::from_secs(99));
    let _: NopIn = world.expect(conn);
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn a_session_with_a_function_under_way_is_not_idle() {
    let (mut world, conn) = pinged_after(30, 300);
    let reset = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conn, &reset, &[]);
    assert!(matches!(world.next_event(), Some(Event::Tmf(_))));
    world.pass(Duration::from_secs(44));
    let _: NopIn = world.expect(conn);
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn a_response_that_is_pending_shows_the_window_instead_of_a_ping() {
    let fill = |world: &mut World, conn| -> Vec<TaskRef> {
        let start = |_| {
            let command = world.command(conn);
            world.start(conn, &command, &[]).task
        };
        (0..4).map(start).collect()
    };
    let limits = Limits { queue_depth: 4, ..Limits::default() };
    // The response to a function is pending.
    let mut world = World::with(limits, keys());
    let (conn, _) = world.login(&[]);
    let tasks = fill(&mut world, conn);
    let request = world.manage(conn, TmfFunction::ABORT_TASK_SET);
    world.send(conn, &request, &[]);
    let Some(Event::Tmf(function)) = world.next_event() else { panic!("no function") };
    for task in tasks {
        world.engine.abort(task);
    }
    world.drain();
    world.expect_silence(conn);
    world.engine.finish_tmf(function.tmf, TmfResult::COMPLETE);
    world.drain();
    let response: TmfResponse = world.expect(conn);
    assert_eq!(response.sn.exp_cmd_sn.distance_to(response.sn.max_cmd_sn), 3);
    world.expect_silence(conn);
    // Another response is queued.
    let mut world = World::with(limits, keys());
    let (conn, _) = world.login(&[]);
    let tasks = fill(&mut world, conn);
    world.stalled.insert(conn);
    world.finish(tasks[0], Finish::good(0));
    for task in &tasks[1..] {
        world.engine.abort(*task);
    }
    world.drain();
    world.stalled.remove(&conn);
    world.transmit(conn);
    let response: ScsiResponse = world.expect(conn);
    assert_eq!(response.sn.exp_cmd_sn.distance_to(response.sn.max_cmd_sn), 3);
    world.expect_silence(conn);
}

#[test]
fn a_logout_is_requested_of_no_connection_that_already_logs_out() {
    let limits = Limits { logout_within: Duration::from_secs(20), ..Limits::default() };
    let mut world = World::with(limits, keys());
    let (conn, up) = world.login(&[]);
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    let (itt, cmd_sn) = world.numbers(conn);
    let (reason, exp_stat_sn) = (LogoutReason::CloseSession, StatSn(0));
    let request = LogoutRequest { immediate: true, reason, itt, cid: 0, cmd_sn, exp_stat_sn };
    world.send(conn, &request, &[]);
    let within = Duration::from_secs(5);
    world.engine.async_message(world.now, up.session, AsyncEvent::LogoutRequest { within });
    world.drain();
    world.expect_silence(conn);
    // The logout keeps its own time limit.
    world.pass(Duration::from_secs(19));
    world.expect_silence(conn);
    world.finish(task, Finish::good(0));
    assert_eq!(world.expect::<ScsiResponse>(conn).itt, command.itt);
    assert_eq!(world.expect::<LogoutResponse>(conn).itt, itt);
}

#[test]
fn an_asynchronous_message_carries_no_more_sense_than_fits_and_no_time_of_zero() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let sense = [0x72; SENSE_MAX + 9];
    world.engine.async_message(world.now, up.session, AsyncEvent::Scsi { lun: LUN, sense: &sense });
    world.drain();
    let got = world.expect_any(conn);
    assert_eq!(got.read::<AsyncMessage>().lun, LUN);
    assert_eq!(got.data.len(), 2 + SENSE_MAX);
    assert_eq!(got.data[..3], [0, 252, 0x72]);
    for (asked, told) in [(Duration::ZERO, 1), (Duration::from_secs(100_000), 65_535)] {
        world.engine.async_message(world.now, up.session, AsyncEvent::LogoutRequest { within: asked });
        world.drain();
        assert_eq!(world.expect::<AsyncMessage>(conn).parameter3, told);
    }
}

#[test]
fn a_session_without_connections_ends_when_a_logout_is_requested_of_it() {
    let (mut world, conns, _) = super::mcs::session(2, 1);
    let up = world.engine.sessions().next().unwrap().session;
    let command = world.command(conns[0]);
    world.start(conns[0], &command, &[]);
    world.hang_up(conns[0], DisconnectReason::Failed);
    assert_eq!(world.engine.sessions().count(), 1);
    world.events.clear();
    let within = Duration::from_secs(5);
    world.engine.async_message(world.now, up, AsyncEvent::LogoutRequest { within });
    world.drain();
    assert_eq!(world.engine.sessions().count(), 0);
    let is_down = |event: &Event| matches!(event, Event::SessionDown { session, .. } if *session == up);
    assert!(world.events.iter().any(is_down));
}
