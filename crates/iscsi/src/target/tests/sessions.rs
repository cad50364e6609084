//! Begin and end of sessions: logins, reinstatement, logouts, limits, messages from the target.

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::Duration;
use transport::target::{Finish, SessionId, TargetTransport};
use transport::task_management::TmfFunction;

use super::world::{INITIATOR, TARGET, World, keys};
use crate::name::Tsih;
use crate::negotiate::KeyPolicy;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::data_in::DataIn;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::{Itt, PduHeader, Ttt};
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::target::contract::{AsyncEvent, ConnectionLoss, Event, LoginRefusals, SessionEnd};
use crate::target::engine::{Limits, MAX_CONTROL_QUEUED};
use crate::target::protocol_error::ProtocolError;
use crate::target::{MAX_CONNECTIONS, MAX_ERROR_RECOVERY_LEVEL};

fn logout(world: &mut World, conn: ConnId, reason: LogoutReason, cid: u16) -> LogoutRequest {
    let (itt, cmd_sn) = world.numbers(conn);
    LogoutRequest { immediate: true, reason, itt, cid, cmd_sn, exp_stat_sn: StatSn(0) }
}

fn downs(world: &mut World) -> Vec<(SessionId, SessionEnd)> {
    let events: Vec<Event> = world.events.drain(..).collect();
    events
        .into_iter()
        .filter_map(|event| match event {
            Event::SessionDown { session, why } => Some((session, why)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_session_is_announced_with_who_and_what_it_is() {
    //= rfc7143#section-11.13.3
    //= type=test
    //# For a new session, the target MUST generate a non-zero TSIH and ONLY return it in the Login
    //# Final-Response (see Section 6.3).
    let mut world = World::new();
    let (conn, up) = world.login(&["InitiatorAlias=here"]);
    assert_eq!((up.initiator.as_str(), up.target_name.as_str()), (INITIATOR, TARGET));
    assert_eq!(up.initiator_alias.as_deref(), Some("here"));
    assert_ne!(up.tsih, Tsih::NEW);
    let view = world.engine.sessions().next().unwrap();
    assert_eq!((view.session, view.tsih, view.connections, view.tasks), (up.session, up.tsih, 1, 0));
    assert_eq!(view.target, Some(up.target));
    world.expect_silence(conn);
}

#[test]
fn no_more_is_agreed_to_than_is_served() {
    //= rfc7143#section-7.1.5
    //= type=test
    //# When a defined value of ErrorRecoveryLevel is returned by a responder in a text negotiation, the
    //# responder MUST support the functionality corresponding to the ErrorRecoveryLevel it is accepting.
    let mut world = World::with(Limits::default(), KeyPolicy::default());
    assert_eq!((world.names.keys.error_recovery_level, world.names.keys.max_connections), (2, 8));
    let (_, up) = world.login(&["ErrorRecoveryLevel=2", "MaxConnections=4"]);
    assert_eq!(up.parameters.error_recovery_level.number(), MAX_ERROR_RECOVERY_LEVEL.min(2));
    assert_eq!(up.parameters.max_connections, MAX_CONNECTIONS.min(4));
}

#[test]
fn logging_in_again_under_the_same_name_takes_the_old_session_down_first() {
    //= rfc7143#section-7.15
    //= type=test
    //# A target MUST also be prepared to handle a session reinstatement request from the initiator that may
    //# be addressing session errors.
    let mut world = World::new();
    let (old, first) = world.login(&[]);
    let command = world.command(old);
    let task = world.start(old, &command, &[]).task;
    let new = world.connect();
    let second = world.login_on(new, 0, &[]);
    let order: Vec<Event> = world.events.drain(..).collect();
    match order.as_slice() {
        [Event::TaskGone { task: gone }, Event::SessionDown { session, why }] => {
            assert_eq!((*gone, *session, *why), (task, first.session, SessionEnd::Reinstated));
        }
        other => panic!("{other:?}"),
    }
    assert_ne!(first.tsih, second.tsih);
    assert_eq!(world.ended(old), Some(Action::Abort(old)));
    // Another ISID is another initiator port.
    let other = world.connect();
    world.login_on(other, 1, &[]);
    assert!(world.events.is_empty());
    assert_eq!(world.engine.sessions().count(), 2);
}

#[test]
fn what_one_session_does_leaves_the_others_alone() {
    let mut world = World::new();
    let (good, up) = world.login(&[]);
    let bad = world.connect();
    world.login_on(bad, 1, &[]);
    let command = world.command(good);
    let task = world.start(good, &command, &[]).task;
    world.feed(bad, &[0xff; 4096]);
    assert!(world.ended(bad).is_some());
    assert_eq!(downs(&mut world).len(), 1);
    world.finish(task, Finish::good(0));
    assert_eq!(world.expect::<ScsiResponse>(good).status, 0);
    assert_eq!(world.engine.sessions().next().unwrap().session, up.session);
}

#[test]
fn logouts_end_what_they_name_and_nothing_else() {
    for (discovery, reason, cid, result, ends) in [
        (false, LogoutReason::CloseSession, 0, LogoutResult::CLOSED, true),
        (false, LogoutReason::CloseSession, 9, LogoutResult::CLOSED, true),
        (false, LogoutReason::CloseConnection, 0, LogoutResult::CLOSED, true),
        (false, LogoutReason::CloseConnection, 9, LogoutResult::NO_CID, false),
        (false, LogoutReason::RemoveForRecovery, 0, LogoutResult::NO_RECOVERY, false),
        (true, LogoutReason::CloseSession, 0, LogoutResult::CLOSED, true),
    ] {
        let mut world = World::new();
        let conn = if discovery { world.discover() } else { world.login(&[]).0 };
        let asked = logout(&mut world, conn, reason, cid);
        let mut bytes = world.frame(conn, asked.encode(), &[], &[]);
        // The target does not read what follows a logout in the stream.
        bytes.extend(world.frame(conn, asked.encode(), &[], &[]));
        if ends {
            world.feed(conn, &bytes);
        } else {
            world.feed(conn, &bytes[..48]);
        }
        let response: LogoutResponse = world.expect(conn);
        assert_eq!((response.response, response.itt), (result, asked.itt));
        let waits = if result == LogoutResult::NO_RECOVERY || result == LogoutResult::NO_CID { 2 } else { 0 };
        assert_eq!((response.time2wait, response.time2retain), (waits, 0));
        assert_eq!(world.ended(conn), ends.then_some(Action::Close(conn)));
        let expected = usize::from(ends && !discovery);
        assert_eq!(
            downs(&mut world).iter().filter(|(_, why)| *why == SessionEnd::LoggedOut).count(),
            expected
        );
        world.expect_silence(conn);
    }
}

/// Sends these requests and a logout that ends the session, numbered or immediate, in one piece.
fn send_and_log_out(
    world: &mut World,
    conn: ConnId,
    commands: &[ScsiCommand],
    immediate: bool,
) -> LogoutRequest {
    let mut bytes = Vec::new();
    for command in commands {
        bytes.extend(world.frame(conn, command.encode(), &[], &[]));
    }
    let asked = LogoutRequest { immediate, ..logout(world, conn, LogoutReason::CloseSession, 0) };
    bytes.extend(world.frame(conn, asked.encode(), &[], &[]));
    world.feed(conn, &bytes);
    asked
}

/// Returns three commands in a row: one without data, a read of 512 bytes, one without data.
fn three(world: &mut World, conn: ConnId) -> [ScsiCommand; 3] {
    let first = world.command(conn);
    world.count(conn);
    let second = world.read(conn, 512);
    world.count(conn);
    let third = world.command(conn);
    world.count(conn);
    [first, second, third]
}

#[test]
fn commands_that_stand_before_a_logout_are_answered_before_it() {
    for (immediate, backwards) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new();
        let (conn, up) = world.login(&[]);
        let commands = three(&mut world, conn);
        let asked = send_and_log_out(&mut world, conn, &commands, immediate);
        let mut tasks = [(); 3].map(|()| world.expect_command().task);
        world.expect_silence(conn);
        // A request after the logout is not executed while the logout waits.
        let late = world.command(conn);
        world.send(conn, &late, &[]);
        world.expect_silence(conn);
        if backwards {
            tasks.reverse();
        }
        for task in tasks {
            assert_eq!(world.ended(conn), None);
            if task == tasks[1] {
                world.data_in(task, 0, &[7; 512]);
                assert_eq!(world.expect::<DataIn>(conn).itt, commands[1].itt);
                world.finish(task, Finish::good(512));
                assert_eq!(world.expect::<ScsiResponse>(conn).itt, commands[1].itt);
            } else {
                world.finish(task, Finish::good(0));
                assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
            }
        }
        let response: LogoutResponse = world.expect(conn);
        assert_eq!((response.response, response.itt), (LogoutResult::CLOSED, asked.itt));
        assert_eq!(world.ended(conn), Some(Action::Close(conn)));
        assert_eq!(downs(&mut world), [(up.session, SessionEnd::LoggedOut)]);
        world.expect_silence(conn);
    }
}

#[test]
fn an_initiator_that_closes_its_half_gets_the_answers_to_what_it_had_asked() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let commands = three(&mut world, conn);
    for command in &commands {
        world.send(conn, command, &[]);
    }
    let tasks = [(); 3].map(|()| world.expect_command().task);
    assert!(world.engine.received_eof(world.now, conn));
    world.drain();
    for (task, command) in tasks.into_iter().zip(&commands) {
        assert_eq!(world.ended(conn), None);
        if task == tasks[1] {
            world.data_in(task, 0, &[7; 512]);
            assert_eq!(world.expect::<DataIn>(conn).itt, command.itt);
        }
        world.finish(task, Finish::good(if task == tasks[1] { 512 } else { 0 }));
        assert_eq!(world.expect::<ScsiResponse>(conn).itt, command.itt);
    }
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::HalfClosed)]);
}

#[test]
fn an_initiator_that_closes_its_half_is_waited_for_no_longer_than_a_logout() {
    // An idle session: there is nothing to wait for.
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    assert!(world.engine.received_eof(world.now, conn));
    world.drain();
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::HalfClosed)]);
    // A task that needs data from the initiator ends at once, a slow task when its time is over.
    let (conn, up) = world.login_again();
    let write = world.write(conn, 512);
    let first = world.start(conn, &write, &[]).task;
    world.fetch(first, 0, 512);
    world.expect_any(conn);
    let read = world.read(conn, 512);
    let second = world.start(conn, &read, &[]).task;
    assert!(world.engine.received_eof(world.now, conn));
    world.drain();
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task }) if task == first));
    world.pass(Duration::from_millis(2000));
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task }) if task == second));
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::HalfClosed)]);
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    // Before and after a session, there is nothing to wait for.
    let conn = world.connect();
    assert!(!world.engine.received_eof(world.now, conn));
}

#[test]
fn answers_that_have_not_left_leave_before_the_logout_is_answered() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let command = world.read(conn, 512);
    let task = world.start(conn, &command, &[]).task;
    world.stalled.insert(conn);
    world.engine.data_in(task, 0, base::buffer::Bytes::copied_from(&[1; 512]).into());
    world.finish(task, Finish::good(512));
    let asked = logout(&mut world, conn, LogoutReason::CloseSession, 0);
    world.send(conn, &asked, &[]);
    world.expect_silence(conn);
    world.stalled.clear();
    world.transmit(conn);
    world.drain();
    assert!(world.expect::<DataIn>(conn).status.is_some());
    world.expect::<LogoutResponse>(conn);
    assert_eq!(downs(&mut world).len(), 1);
}

#[test]
fn tasks_that_a_logout_cuts_off_from_their_data_are_gone_before_it_is_answered() {
    let mut world = World::new();
    let (conn, _) = world.login(&["InitialR2T=No", "FirstBurstLength=4096"]);
    // One task waits for solicited data, one for unsolicited data, and one fetches its data only when it is
    // too late.
    let solicited = world.write(conn, 512);
    let first = world.start(conn, &solicited, &[]).task;
    world.fetch(first, 0, 512);
    world.expect_any(conn);
    let unsolicited = ScsiCommand { is_final: false, ..world.write(conn, 512) };
    let second = world.start(conn, &unsolicited, &[]).task;
    let undecided = world.write(conn, 512);
    let third = world.start(conn, &undecided, &[]).task;
    let asked = logout(&mut world, conn, LogoutReason::CloseSession, 0);
    world.send(conn, &asked, &[]);
    let gone = |event: Option<Event>| match event {
        Some(Event::TaskGone { task }) => task,
        other => panic!("{other:?}"),
    };
    let mut ended = [gone(world.next_event()), gone(world.next_event())];
    ended.sort_unstable();
    assert_eq!(ended, [first, second]);
    world.expect_silence(conn);
    world.fetch(third, 0, 512);
    assert_eq!(gone(world.next_event()), third);
    world.expect::<LogoutResponse>(conn);
    assert_eq!(downs(&mut world).len(), 1);
}

#[test]
fn a_logout_waits_for_slow_tasks_and_slow_readers_no_longer_than_it_may() {
    for reads in [true, false] {
        let mut world = World::new();
        let (conn, _) = world.login(&[]);
        let command = world.read(conn, 512);
        let task = world.start(conn, &command, &[]).task;
        if !reads {
            world.stalled.insert(conn);
            world.data_in(task, 0, &[1; 512]);
            world.finish(task, Finish::good(512));
        }
        let asked = logout(&mut world, conn, LogoutReason::CloseSession, 0);
        world.send(conn, &asked, &[]);
        world.pass(Duration::from_millis(1999));
        assert!(world.events.is_empty());
        world.pass(Duration::from_millis(1));
        if reads {
            assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
            world.expect::<LogoutResponse>(conn);
        }
        assert_eq!(downs(&mut world).len(), 1);
        assert_eq!(world.ended(conn), Some(Action::Close(conn)));
        world.expect_silence(conn);
    }
}

#[test]
fn a_connection_lost_while_its_logout_waits_ends_its_session_once() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    let asked = logout(&mut world, conn, LogoutReason::CloseSession, 0);
    world.send(conn, &asked, &[]);
    world.hang_up(conn, DisconnectReason::Failed);
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::ConnectionLost(ConnectionLoss::Failed))]);
    world.pass(Duration::from_secs(60));
    assert!(world.events.is_empty());
}

#[test]
fn a_discovery_session_takes_only_text_pings_and_logout() {
    let mut world = World::new();
    let conn = world.discover();
    assert!(world.events.is_empty(), "the layer above does not hear of it");
    let command = world.command(conn);
    let tmf = TmfRequest {
        immediate: true,
        function: TmfFunction::TARGET_COLD_RESET,
        lun: 0,
        itt: Itt(5),
        referenced_task_tag: Itt::NONE,
        cmd_sn: CmdSn(100),
        exp_stat_sn: StatSn(0),
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: DataSn(0),
    };
    for bhs in [command.encode(), tmf.encode()] {
        world.send_raw(conn, bhs, &[], &[]);
        assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::PROTOCOL_ERROR);
    }
    world.expect_silence(conn);
}

#[test]
fn pdus_that_have_no_place_are_rejected_each_with_its_reason() {
    //= rfc7143#section-4.2.4
    //= type=test
    //# Login Requests and Responses MUST be used exclusively during login.
    //= rfc7143#section-4.2.4
    //= type=test
    //# a subsequent Login Phase MUST NOT occur before tearing down the connection.
    //= rfc7143#section-11.2.1.2
    //= type=test
    //# Initiators MUST NOT use target Opcodes, and targets MUST NOT use initiator Opcodes.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let snack = Snack {
        kind: SnackKind::STATUS,
        lun: 0,
        itt: Itt::NONE,
        tag: u32::MAX,
        exp_stat_sn: StatSn(0),
        beg_run: 0,
        run_length: 0,
    };
    let ping = NopOut {
        immediate: true,
        lun: 0,
        itt: Itt(1),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(100),
        exp_stat_sn: StatSn(0),
    };
    let out = logout(&mut world, conn, LogoutReason::CloseSession, 0);
    let mut reserved_reason = out.encode().to_bytes();
    reserved_reason[1] = 0x85;
    let with_opcode = |opcode: u8| {
        let mut bytes = [0; 48];
        bytes[0] = opcode;
        crate::pdu::Bhs::from_bytes(bytes)
    };
    for (bhs, ahs, data, reason) in [
        (snack.encode(), &[][..], &[][..], RejectReason::PROTOCOL_ERROR),
        (with_opcode(0x43), &[], &[], RejectReason::PROTOCOL_ERROR),
        (with_opcode(0x21), &[], &[], RejectReason::PROTOCOL_ERROR),
        (with_opcode(0x3f), &[], &[], RejectReason::PROTOCOL_ERROR),
        (with_opcode(0x1c), &[], &[], RejectReason::COMMAND_NOT_SUPPORTED),
        (with_opcode(0x07), &[], &[], RejectReason::COMMAND_NOT_SUPPORTED),
        (ping.encode(), &[0, 1, 9, 0], &[], RejectReason::INVALID_PDU_FIELD),
        (out.encode(), &[], b"data", RejectReason::INVALID_PDU_FIELD),
        (crate::pdu::Bhs::from_bytes(reserved_reason), &[], &[], RejectReason::INVALID_PDU_FIELD),
    ] {
        world.send_raw(conn, bhs, ahs, data);
        let got = world.expect_any(conn);
        assert_eq!(got.read::<Reject>().reason, reason, "{bhs:?}");
        assert_eq!(got.data[0], bhs.to_bytes()[0]);
        world.expect_silence(conn);
    }
    assert_eq!(world.engine.stats().rejects, 9);
}

#[test]
fn anything_but_a_login_ends_a_connection_that_has_not_logged_in() {
    //= rfc7143#section-4.2.4
    //= type=test
    //# A target receiving any PDU except a Login Request before the Login Phase is started
    //# MUST immediately terminate the connection on which the PDU was received.
    //= rfc7143#section-7.1.4
    //= type=test
    //# The use of within-connection and within-command recovery classes MUST NOT be attempted before the
    //# connection is in the Full Feature Phase.
    for opcode in [0x00, 0x01, 0x05, 0x06, 0x10, 0x25, 0x3f] {
        let mut world = World::new();
        let conn = world.connect();
        let mut bytes = [0; 48];
        bytes[0] = opcode;
        world.feed(conn, &bytes);
        assert!(world.ended(conn).is_some(), "{opcode:#04x}");
        assert!(world.events.is_empty());
        assert_eq!(world.engine.sessions().count(), 0);
    }
}

#[test]
fn connections_and_sessions_beyond_the_limit_are_refused() {
    let limits = Limits { connections_max: 3, sessions_max: 1, ..Limits::default() };
    let mut world = World::with(limits, keys());
    let (first, _) = world.login(&[]);
    let second = world.connect();
    let target = ["TargetName=", TARGET].concat();
    let refused = world.login_pdu(second, 1, &["SessionType=Normal", &target]);
    assert_eq!(refused.status, 0x0302);
    assert_eq!(world.ended(second), Some(Action::Close(second)));
    // The same initiator port may log in again all the same.
    let third = world.connect();
    world.login_on(third, 0, &[]);
    assert_eq!(world.ended(first), Some(Action::Abort(first)));
    while world.engine.open_conns < 3 {
        let next = world.connect();
        assert_eq!(world.ended(next), None);
    }
    let fourth = world.connect();
    assert_eq!(world.ended(fourth), Some(Action::Abort(fourth)));
}

#[test]
fn session_handles_differ_and_are_used_again_only_when_free() {
    let limits = Limits { tsih_first: 65_533, tsih_step: 2, ..Limits::default() };
    let mut world = World::with(limits, keys());
    for (isid, tsih) in [(0, 65_533), (1, 65_535)] {
        let conn = world.connect();
        assert_eq!(world.login_on(conn, isid, &[]).tsih.0, tsih);
    }
    // No third TSIH of this step is available; the first is free again once its session has ended.
    let conn = world.connect();
    let target = ["TargetName=", TARGET].concat();
    assert_eq!(world.login_pdu(conn, 2, &["SessionType=Normal", &target]).status, 0x0302);
    world.hang_up(ConnId(0), DisconnectReason::Closed);
    world.events.clear();
    let conn = world.connect();
    assert_eq!(world.login_on(conn, 2, &[]).tsih.0, 65_533);
}

#[test]
fn a_refused_login_says_why_and_closes() {
    //= rfc7143#section-11.13.5
    //= type=test
    //# If the Status-Class is not 0, the initiator and target MUST close the TCP connection.
    let mut world = World::new();
    let conn = world.connect();
    let response: LoginResponse =
        world.login_pdu(conn, 0, &["SessionType=Normal", "TargetName=iqn.2026-01.test:none"]);
    assert_eq!(response.status, 0x0203);
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    assert_eq!(world.engine.stats().logins_failed, 1);
    let not_found = LoginRefusals { not_found: 1, ..LoginRefusals::default() };
    assert_eq!(world.engine.stats().refusals, not_found);
}

#[test]
fn closing_a_session_tells_the_initiator_and_sends_what_is_queued() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    let open = world.command(conn);
    let open = world.start(conn, &open, &[]).task;
    world.engine.finish(task, Finish::good(0));
    world.engine.close_session(world.now, up.session);
    world.drain();
    assert_eq!(world.expect::<AsyncMessage>(conn).event, AsyncEventCode::SESSION_DROP);
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == open));
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::Closed)]);
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    // A stale handle is ignored.
    world.engine.close_session(world.now, up.session);
    world.drain();
    assert!(world.events.is_empty());
}

#[test]
fn scsi_events_carry_sense_and_a_logout_request_has_its_time() {
    //= rfc7143#section-11.9.1
    //= type=test
    //# This Async Message MUST be sent on the same connection as the one requesting to be logged out.
    //= rfc7143#section-11.9.3
    //= type=test
    //# The LUN field MUST be valid if AsyncEvent is 0.
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    world.engine.async_message(world.now, up.session, AsyncEvent::Scsi { lun: 3, sense: &[0x70, 0, 6] });
    world.drain();
    let got = world.expect_any(conn);
    let message: AsyncMessage = got.read();
    assert_eq!((message.event, message.lun), (AsyncEventCode::SCSI, 3));
    assert_eq!(got.data, [0, 3, 0x70, 0, 6]);
    let within = Duration::from_secs(10);
    world.engine.async_message(world.now, up.session, AsyncEvent::LogoutRequest { within });
    world.drain();
    let message: AsyncMessage = world.expect(conn);
    assert_eq!((message.event, message.parameter3), (AsyncEventCode::LOGOUT_REQUEST, 10));
    // Commands are still executed meanwhile.
    let command = world.command(conn);
    world.start(conn, &command, &[]);
    world.pass(Duration::from_secs(9));
    assert_eq!(world.ended(conn), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::TimedOut)]);
}

#[test]
fn a_logout_in_time_satisfies_the_request_for_it() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let within = Duration::from_secs(10);
    world.engine.async_message(world.now, up.session, AsyncEvent::LogoutRequest { within });
    world.drain();
    world.expect::<AsyncMessage>(conn);
    let asked = logout(&mut world, conn, LogoutReason::CloseConnection, 0);
    world.send(conn, &asked, &[]);
    assert_eq!(world.expect::<LogoutResponse>(conn).response, LogoutResult::CLOSED);
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::LogoutCaused)]);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
}

#[test]
fn a_peer_that_asks_and_never_reads_is_dropped() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let (itt, cmd_sn) = world.numbers(conn);
    let ping = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
    let one = world.frame(conn, ping.encode(), &[], &[]);
    // The driver has no free space, so no output is drained.
    for count in 0.. {
        world.engine.received(world.now, conn, &one, &world.names);
        if world.engine.sessions().count() == 0 {
            assert_eq!(count, MAX_CONTROL_QUEUED);
            break;
        }
    }
    world.drain();
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::Misbehaved(ProtocolError::AnswersUnread))]);
    // The same happens with a few pings that carry much data.
    let (conn, up) = world.login_again_with(&["MaxRecvDataSegmentLength=262144"]);
    let data = alloc::vec![0; 200 << 10];
    let long = world.frame(conn, ping.encode(), &[], &data);
    for _ in 0..100 {
        world.engine.received(world.now, conn, &long, &world.names);
    }
    world.drain();
    assert_eq!(downs(&mut world), [(up.session, SessionEnd::Misbehaved(ProtocolError::AnswersUnread))]);
}

#[test]
fn ten_thousand_connections_that_say_nothing_cost_little_and_go_in_time() {
    let mut world = World::new();
    let conns: Vec<ConnId> = (0..10_000).map(|_| world.connect()).collect();
    world.pass(Duration::from_secs(600));
    assert!(conns.iter().all(|conn| world.ended(*conn).is_some()));
    assert_eq!(world.engine.poll_timeout(), None);
    let (conn, _) = world.login(&[]);
    world.hang_up(conn, DisconnectReason::Shutdown);
    assert!(matches!(world.next_event(), Some(Event::SessionDown { why: SessionEnd::Closed, .. })));
}

#[test]
fn an_idle_session_is_small() {
    use crate::framing::Receiver;
    use crate::target::connection::Connection;
    use crate::target::session::Session;
    let size = size_of::<Connection>() + size_of::<Receiver>() + size_of::<Session>();
    assert!(size < 4096, "{size}");
}
