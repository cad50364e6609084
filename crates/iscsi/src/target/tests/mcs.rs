//! Sessions of several connections (RFC 7143 §4.2.3, §4.2.5, §6.3, §11.14).

use alloc::format;
use alloc::vec::Vec;

use base::state_machine::{Action, ConnId, DisconnectReason, PortalId};
use base::time::Duration;
use security::Level;
use transport::target::{Finish, TargetTransport, TaskRef};
use transport::task_management::{TmfFunction, TmfResult};

use super::erl1::{ack, policy, snack};
use super::world::{TLS_PORTAL, World, data_out, pattern};
use crate::login::Status;
use crate::name::Tsih;
use crate::negotiate::KeyPolicy;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::data_in::DataIn;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::SnackKind;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, Opcode, Ttt};
use crate::serial::StatSn;
use crate::target::contract::{Event, SessionEnd};
use crate::target::engine::{Limits, MAX_CONTROL_QUEUED};
use crate::target::protection::Protection;

pub(super) fn several(level: u8) -> KeyPolicy {
    KeyPolicy { max_connections: 4, ..policy(level) }
}

/// Returns a session of `count` connections with CIDs 0 and up.
pub(super) fn session(level: u8, count: u16) -> (World, Vec<ConnId>, Tsih) {
    let mut world = World::with(Limits::default(), several(level));
    let erl = format!("ErrorRecoveryLevel={level}");
    let (first, up) = world.login(&["MaxConnections=4", "InitialR2T=No", &erl]);
    assert_eq!((up.parameters.max_connections, up.parameters.error_recovery_level.number()), (4, level));
    let mut conns = [first].to_vec();
    for cid in 1..count {
        let (conn, status) = world.join(first, up.tsih, cid, &[]);
        assert_eq!(status, 0, "{cid}");
        conns.push(conn);
    }
    assert!(world.events.is_empty(), "one nexus: {:?}", world.events);
    (world, conns, up.tsih)
}

/// Sends a command with the next number of the session on a connection.
pub(super) fn issue(world: &mut World, conns: &[ConnId], on: ConnId, command: &ScsiCommand, data: &[u8]) {
    world.send(on, command, data);
    for conn in conns {
        world.peers.get_mut(conn).unwrap().cmd_sn = command.cmd_sn.next().0;
    }
}

/// Issues a command on each of these connections, and returns their tasks.
pub(super) fn issue_on_each(world: &mut World, conns: &[ConnId]) -> Vec<TaskRef> {
    let issued = conns.iter().map(|conn| {
        let command = world.command(*conn);
        issue(world, conns, *conn, &command, &[]);
        world.expect_command().task
    });
    issued.collect()
}

pub(super) fn logout(world: &mut World, on: ConnId, reason: LogoutReason, cid: u16) -> LogoutResponse {
    let (itt, cmd_sn) = world.numbers(on);
    let request = LogoutRequest { immediate: true, reason, itt, cid, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(on, &request, &[]);
    loop {
        let got = world.expect_any(on);
        if got.bhs.opcode() == Opcode::LOGOUT_RESPONSE {
            return got.read();
        }
    }
}

/// RFC 7143 §11.13.5: status 0208h, the session cannot span to this connection.
#[test]
fn no_connection_has_a_lower_protection_than_its_session() {
    for level in [0, 2] {
        let mut world = World::with(Limits::default(), several(level));
        world.portal = TLS_PORTAL;
        let erl = format!("ErrorRecoveryLevel={level}");
        let (first, up) = world.login(&["MaxConnections=4", &erl]);
        assert_eq!((up.protection, up.protection.level()), (Protection::Tls, Level::Encrypt));
        world.portal = PortalId(0);
        // A connection of its own, and one in the place of the first.
        for cid in [1, 0] {
            let (refused, status) = world.join(first, up.tsih, cid, &[]);
            assert_eq!(status, Status::CANNOT_INCLUDE_IN_SESSION.0, "{cid}");
            assert!(world.peers[&refused].ended.is_some() && world.peers[&first].ended.is_none());
            let failed = world.engine.poll_failed_login().unwrap();
            let told = "its protection (none) is below that of the session that it would join (encrypt)";
            assert_eq!(format!("{}", failed.why), told);
        }
        world.portal = TLS_PORTAL;
        assert_eq!(world.join(first, up.tsih, 1, &[]).1, 0);
        assert_eq!(world.engine.sessions().next().unwrap().protection, Protection::Tls);
    }
}

#[test]
fn a_session_has_the_protection_of_its_first_connection_whatever_joins() {
    let mut world = World::with(Limits::default(), several(0));
    let (first, up) = world.login(&["MaxConnections=4", "HeaderDigest=None", "DataDigest=None"]);
    assert_eq!((up.protection, up.protection.level()), (Protection::None, Level::None));
    world.portal = TLS_PORTAL;
    assert_eq!(world.join(first, up.tsih, 1, &[]).1, 0);
    assert_eq!(world.engine.sessions().next().unwrap().protection, Protection::None);
}

#[test]
fn connections_join_up_to_the_number_that_was_agreed_on() {
    let (mut world, conns, tsih) = session(0, 4);
    let view = world.engine.sessions().next().unwrap();
    assert_eq!(view.connections, 4);
    assert_eq!(view.members.iter().map(|member| member.cid).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let (_, status) = world.join(conns[0], tsih, 9, &[]);
    assert_eq!(status, Status::TOO_MANY_CONNECTIONS.0);
    let (_, status) = world.join(conns[0], Tsih(tsih.0 + 1), 9, &[]);
    assert_eq!(status, Status::SESSION_DOES_NOT_EXIST.0);
    assert_eq!(conns.iter().filter(|conn| world.ended(**conn).is_some()).count(), 0);
}

#[test]
fn commands_are_delivered_in_the_order_of_their_numbers_whatever_connection_they_come_on() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# the iSCSI target layer MUST deliver the commands for execution in the order specified
    //# by the CmdSN.
    //= rfc7143#section-4.2.5.1
    //= type=test
    //# For any iSCSI request issued over a TCP connection, the corresponding response and/or
    //# other related PDU(s) MUST be sent over the same connection.
    //= rfc7143#section-4.2.5.1
    //= type=test
    //# the target MUST send the requested data, if any, followed by the status, to the
    //# initiator over the same TCP connection that was used to deliver the SCSI command.
    let (mut world, conns, _) = session(0, 3);
    let commands: Vec<ScsiCommand> = (0..3)
        .map(|at| {
            let command = world.read(conns[at], 100 + u32::try_from(at).unwrap());
            ScsiCommand { cmd_sn: command.cmd_sn.plus(u32::try_from(at).unwrap()), ..command }
        })
        .collect();
    for at in [2, 1] {
        world.send(conns[at], &commands[at], &[]);
        assert!(world.events.is_empty());
    }
    world.send(conns[0], &commands[0], &[]);
    let tasks: Vec<_> = (0..3).map(|_| world.expect_command()).collect();
    assert_eq!(tasks.iter().map(|task| task.data_in_len).collect::<Vec<_>>(), [100, 101, 102]);
    // Each response is sent on the connection of its command, with that connection's StatSN.
    for at in [1, 2, 0] {
        world.data_in(tasks[at].task, 0, &pattern(0, 50));
        world.finish(tasks[at].task, Finish::good(50));
        let pdu = world.expect_any(conns[at]);
        assert_eq!(pdu.read::<DataIn>().itt, commands[at].itt);
        let response: ScsiResponse = world.expect(conns[at]);
        assert_eq!(response.sn.stat_sn, StatSn(2), "behind the login, on each");
        assert_eq!(response.sn.exp_cmd_sn, commands[2].cmd_sn.next());
    }
}

#[test]
fn data_is_taken_only_on_the_connection_of_its_command() {
    //= rfc7143#section-4.2.5.1
    //= type=test
    //# the initiator MUST send the data, if any, for that command over the same TCP
    //# connection that was used to deliver the SCSI command.
    //= rfc7143#section-4.2.5.1
    //= type=test
    //# The target MUST return Ready To Transfer (R2T), if any, and the status over the same
    //# TCP connection that was used to deliver the SCSI command.
    //= rfc7143#section-4.2.5.1
    //= type=test
    //# Retransmission requests (SNACK PDUs), and the data and status that they generate, MUST
    //# also use the same connection.
    let (mut world, conns, _) = session(1, 2);
    let write = world.write(conns[0], 512);
    issue(&mut world, &conns, conns[0], &write, &[]);
    let up = world.expect_command();
    world.fetch(up.task, 0, 512);
    let r2t: R2t = world.expect(conns[0]);
    let data = data_out(&write, r2t.ttt, 0, 0, true);
    world.send(conns[1], &data, &[0xee; 512]);
    assert_eq!(world.expect::<Reject>(conns[1]).reason, RejectReason::PROTOCOL_ERROR);
    assert!(world.events.is_empty());
    world.send(conns[1], &snack(SnackKind::DATA_OR_R2T, write.itt, (0, 0)), &[]);
    assert_eq!(world.expect::<Reject>(conns[1]).reason, RejectReason::PROTOCOL_ERROR);
    world.send(conns[0], &data, &pattern(0, 512));
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 512));
}

#[test]
fn a_lost_connection_takes_its_tasks_with_it_and_leaves_the_others_alone() {
    //= rfc7143#section-7.14
    //= type=test
    //# On connection failure, the initiator and target MUST do one of the following:
    for level in [0, 1] {
        let (mut world, conns, tsih) = session(level, 2);
        let (a, b) = (world.read(conns[0], 10), world.read(conns[1], 10));
        let b = ScsiCommand { cmd_sn: a.cmd_sn.next(), ..b };
        issue(&mut world, &conns, conns[0], &a, &[]);
        issue(&mut world, &conns, conns[1], &b, &[]);
        let (a, b) = (world.expect_command(), world.expect_command());
        world.hang_up(conns[0], DisconnectReason::Failed);
        assert!(matches!(world.next_event(), Some(Event::TaskGone { task }) if task == a.task));
        world.expect_cleared();
        assert!(world.events.is_empty());
        world.data_in(b.task, 0, &pattern(0, 10));
        world.finish(b.task, Finish::good(10));
        world.expect::<DataIn>(conns[1]);
        assert_eq!(world.expect::<ScsiResponse>(conns[1]).status, 0);
        // The session continues, and another connection may use the CID.
        let (again, status) = world.join(conns[1], tsih, 0, &[]);
        assert_eq!(status, 0);
        let command = world.command(again);
        issue(&mut world, &[again, conns[1]], again, &command, &[]);
        world.expect_command();
        for conn in [again, conns[1]] {
            world.hang_up(conn, DisconnectReason::Failed);
        }
        assert!(world.events.iter().any(|event| matches!(event, Event::SessionDown { .. })), "{level}");
    }
}

#[test]
fn a_request_that_waits_for_its_turn_is_never_answered_on_a_connection_of_somebody_else() {
    let (mut world, conns, _) = session(0, 2);
    let (itt, cmd_sn) = world.numbers(conns[1]);
    let early = NopOut {
        immediate: false,
        lun: 0,
        itt,
        ttt: Ttt::NONE,
        cmd_sn: cmd_sn.next(),
        exp_stat_sn: StatSn(0),
    };
    world.send(conns[1], &early, b"a secret of this initiator");
    world.hang_up(conns[1], DisconnectReason::Failed);
    // The connection of another initiator gets the same connection number.
    let other = world.reuse(conns[1]);
    world.login_on(other, 7, &[]);
    let command = world.command(conns[0]);
    issue(&mut world, &conns[..1], conns[0], &command, &[]);
    world.expect_command();
    world.expect_silence(other);
}

#[test]
fn what_a_lost_connection_sent_ahead_of_its_turn_may_come_again() {
    //= rfc7143#section-11.14
    //= type=test
    //# When receiving a Logout Request with the reason code "remove the connection for recovery", the target
    //# MUST discard all requests not yet acknowledged via the ExpCmdSN that were issued on the specified
    //# connection and suspend all data/status/R2T transfers on behalf of pending commands on the specified
    //# connection.
    for level in [0, 1, 2] {
        let (mut world, conns, _) = session(level, 2);
        let first = world.command(conns[0]);
        let second = world.command(conns[1]);
        let second = ScsiCommand { cmd_sn: first.cmd_sn.next(), ..second };
        world.send(conns[1], &second, &[]);
        assert!(world.events.is_empty());
        world.hang_up(conns[1], DisconnectReason::Failed);
        // The number is no longer missing, so the session is not dropped for it.
        world.pass(Duration::from_secs(10));
        while world.receive(conns[0]).is_some() {}
        assert_eq!(world.ended(conns[0]), None, "level {level}");
        assert!(world.events.is_empty(), "a task that never began ends without a word: {:?}", world.events);
        for command in [&first, &second] {
            world.send(conns[0], command, &[]);
        }
        for command in [first, second] {
            let task = world.expect_command().task;
            world.finish(task, Finish::good(0));
            assert_eq!(world.expect::<ScsiResponse>(conns[0]).itt, command.itt);
        }
    }
}

#[test]
fn a_connection_is_replaced_by_one_with_its_number() {
    //= rfc7143#section-6.3.4
    //= type=test
    //# Targets MUST support opening a second connection even when they do not support
    //# multiple connections in the Full Feature Phase if ErrorRecoveryLevel is 2 and SHOULD
    //# support opening a second connection if ErrorRecoveryLevel is less than 2.
    let (mut world, conns, tsih) = session(0, 2);
    let read = world.read(conns[1], 10);
    issue(&mut world, &conns, conns[1], &read, &[]);
    let up = world.expect_command();
    let (new, status) = world.join(conns[0], tsih, 1, &[]);
    assert_eq!(status, 0);
    assert_eq!(world.ended(conns[1]), Some(Action::Abort(conns[1])));
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task }) if task == up.task));
    world.expect_cleared();
    assert_eq!(world.engine.sessions().next().unwrap().connections, 2);
    let command = world.command(new);
    issue(&mut world, &[new], new, &command, &[]);
    world.expect_command();
}

#[test]
fn logging_in_anew_ends_every_connection_of_the_old_session() {
    //= rfc7143#section-7.14
    //= type=test
    //# Either side may choose to escalate to session recovery (via the initiator dropping all the connections
    //# or via an Async Message that announces the similar intent from a target), and the other side MUST give
    //# it precedence.
    let (mut world, conns, tsih) = session(2, 3);
    world.hang_up(conns[2], DisconnectReason::Failed);
    let (_, up) = world.login(&[]);
    assert_ne!(up.tsih, tsih);
    for conn in &conns[..2] {
        assert_eq!(world.ended(*conn), Some(Action::Abort(*conn)));
    }
    assert!(matches!(world.next_event(), Some(Event::SessionDown { why: SessionEnd::Reinstated, .. })));
    assert_eq!(world.engine.sessions().count(), 1);
}

#[test]
fn a_logout_ends_one_connection_or_all() {
    //= rfc7143#section-11.15
    //= type=test
    //# After Logout, the TCP connection referred by the CID MUST be closed at both ends (or all connections
    //# must be closed if the logout reason was session close).
    let (mut world, conns, _) = session(0, 3);
    let response = logout(&mut world, conns[0], LogoutReason::CloseConnection, 1);
    assert_eq!(response.response, LogoutResult::CLOSED);
    assert_eq!(world.ended(conns[1]), Some(Action::Close(conns[1])));
    assert_eq!(world.ended(conns[0]), None);
    let response = logout(&mut world, conns[0], LogoutReason::CloseConnection, 1);
    assert_eq!(response.response, LogoutResult::NO_CID);
    let response = logout(&mut world, conns[0], LogoutReason::RemoveForRecovery, 2);
    assert_eq!(response.response, LogoutResult::NO_RECOVERY);
    let response = logout(&mut world, conns[2], LogoutReason::CloseSession, 0);
    assert_eq!(response.response, LogoutResult::CLOSED);
    for conn in [conns[0], conns[2]] {
        assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    }
}

#[test]
fn tasks_that_a_logout_terminates_are_reported_while_the_session_continues() {
    let (mut world, conns, _) = session(1, 3);
    let mut writes = Vec::new();
    for at in 0..3 {
        let write = world.write(conns[at], 512);
        issue(&mut world, &conns, conns[at], &write, &[]);
        let command = world.expect_command();
        world.fetch(command.task, 0, 512);
        writes.push(command);
    }
    // A task that was answered does not count, although its response is retained.
    let done = world.command(conns[1]);
    issue(&mut world, &conns, conns[1], &done, &[]);
    let done = world.expect_command().task;
    world.finish(done, Finish::good(0));
    logout(&mut world, conns[0], LogoutReason::CloseConnection, 1);
    let is_gone =
        |event: Option<Event>, gone| matches!(event, Some(Event::TaskGone { task }) if task == gone);
    assert!(is_gone(world.next_event(), writes[1].task));
    world.expect_cleared();
    assert!(world.events.is_empty());
    // So it is when a connection is lost whose tasks cannot be kept.
    world.hang_up(conns[2], DisconnectReason::Failed);
    assert!(is_gone(world.next_event(), writes[2].task));
    world.expect_cleared();
    // Nothing needs to be reported to an initiator whose session ends.
    logout(&mut world, conns[0], LogoutReason::CloseSession, 0);
    assert!(is_gone(world.next_event(), writes[0].task));
    assert!(matches!(world.next_event(), Some(Event::SessionDown { .. })));
}

#[test]
fn the_others_are_told_when_a_connection_is_dropped() {
    let (mut world, conns, _) = session(0, 2);
    let header = world.command_bhs(conns[1]);
    let mut bytes = world.frame(conns[1], header, &[], &[]);
    bytes[5] = 0xff;
    world.feed(conns[1], &bytes);
    assert_eq!(world.ended(conns[1]), Some(Action::Abort(conns[1])));
    let message: AsyncMessage = world.expect(conns[0]);
    assert_eq!((message.event, message.parameter1), (AsyncEventCode::CONNECTION_DROP, 1));
    assert_eq!((message.parameter2, message.parameter3), (2, 20));
}

#[test]
fn tasks_of_all_connections_end_behind_one_fence() {
    //= rfc7143#section-4.2.2.3.2
    //= type=test
    //# Whenever the Response Fence behavior is required for a SCSI response message, the
    //# target iSCSI layer MUST ensure that the following conditions are met in delivering the
    //# response message to the initiator iSCSI layer:
    //= rfc7143#section-4.2.2.3.2
    //= type=test
    //# A response with a Response Fence MUST be delivered chronologically after all the
    //# "preceding" responses on the I_T_L nexus, if the preceding responses are delivered at
    //# all, to the initiator iSCSI layer.
    //= rfc7143#section-4.2.2.3.2
    //= type=test
    //# A response with a Response Fence MUST be delivered chronologically prior to all the
    //# "following" responses on the I_T_L nexus.
    //= rfc7143#section-4.2.2.3.3
    //= type=test
    //# the target iSCSI layer MUST perform the actions described in this section for that
    //# session.
    //= rfc7143#section-4.2.2.3.3
    //= type=test
    //# those Response PDUs MUST be held and queued at the iSCSI layer until the fence is
    //# cleared.
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# d) MUST provide the Response Fence behavior for the TMF Response on the issuing
    //# session as specified in Section 4.2.2.3.2.
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# The TMF Response MUST NOT be sent by the target iSCSI layer before the end of Step d)
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# e) MUST address the Response Fence flag on the TMF Response on the issuing session as
    //# defined in Section 4.2.2.3.3.
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# A TMF Response MUST NOT be sent by the target iSCSI layer before the end of Step e)
    for level in [0, 1] {
        let (mut world, conns, _) = session(level, 2);
        let commands = issue_on_each(&mut world, &conns);
        // One task is answered before the function; the function ends the other one.
        world.finish(commands[1], Finish::good(0));
        let before: ScsiResponse = world.expect(conns[1]);
        let reset = world.manage(conns[0], TmfFunction::LOGICAL_UNIT_RESET);
        world.send(conns[0], &reset, &[]);
        let Some(Event::Tmf(manage)) = world.next_event() else { panic!("no function") };
        world.engine.abort(commands[0]);
        world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
        world.drain();
        // The response waits until the earlier one, on the other connection, is acknowledged.
        world.expect_silence(conns[0]);
        let ping: NopIn = world.expect(conns[1]);
        assert_ne!(ping.ttt, Ttt::NONE);
        assert_eq!(ping.sn.stat_sn, before.sn.stat_sn.next());
        ack(&mut world, conns[1], before.sn.stat_sn);
        world.expect_silence(conns[0]);
        ack(&mut world, conns[1], before.sn.stat_sn.next());
        let answer: TmfResponse = world.expect(conns[0]);
        assert_eq!((answer.itt, answer.response), (reset.itt, TmfResult::COMPLETE));
        let ping: NopIn = world.expect(conns[0]);
        assert_eq!(ping.sn.stat_sn, answer.sn.stat_sn.next());
        // A later response, on the other connection, waits until the fenced one is acknowledged.
        let command = world.command(conns[1]);
        issue(&mut world, &conns, conns[1], &command, &[]);
        let up = world.expect_command();
        world.finish(up.task, Finish::good(0));
        world.expect_silence(conns[1]);
        ack(&mut world, conns[0], answer.sn.stat_sn.next());
        assert_eq!(world.expect::<ScsiResponse>(conns[1]).itt, command.itt, "{level}");
    }
}

#[test]
fn a_fence_falls_with_the_connection_that_it_waits_for_and_in_time() {
    for silent in [false, true] {
        let (mut world, conns, _) = session(0, 3);
        let command = world.command(conns[1]);
        issue(&mut world, &conns, conns[1], &command, &[]);
        let up = world.expect_command();
        world.finish(up.task, Finish::good(0));
        for conn in [conns[0], conns[2]] {
            ack(&mut world, conn, StatSn(2));
        }
        let reset = world.manage(conns[0], TmfFunction::LOGICAL_UNIT_RESET);
        world.send(conns[0], &reset, &[]);
        let Some(Event::Tmf(manage)) = world.next_event() else { panic!("no function") };
        world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
        world.drain();
        world.expect_silence(conns[0]);
        if silent {
            world.pass(Duration::from_secs(15));
        } else {
            world.hang_up(conns[1], DisconnectReason::Failed);
        }
        assert_eq!(world.expect::<TmfResponse>(conns[0]).itt, reset.itt, "{silent}");
    }
}

#[test]
fn functions_whose_responses_wait_for_acknowledgements_are_bounded() {
    for immediate in [true, false] {
        let (mut world, conns, _) = session(0, 2);
        let command = world.command(conns[1]);
        issue(&mut world, &conns, conns[1], &command, &[]);
        let up = world.expect_command();
        // The initiator does not acknowledge this response, for which the fences wait.
        world.finish(up.task, Finish::good(0));
        let mut answered = 0;
        // Requests beyond the limit are refused, and the refusals wait as well.
        for _ in 0..2 * MAX_CONTROL_QUEUED {
            if world.ended(conns[0]).is_some() {
                break;
            }
            let abort = TmfRequest { immediate, ..world.manage(conns[0], TmfFunction::ABORT_TASK_SET) };
            world.send(conns[0], &abort, &[]);
            if !immediate {
                world.peers.get_mut(&conns[0]).unwrap().cmd_sn = abort.cmd_sn.next().0;
            }
            while let Some(event) = world.next_event() {
                if let Event::Tmf(manage) = event {
                    answered += 1;
                    world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
                    world.drain();
                }
            }
        }
        assert_eq!(answered, Limits::default().immediate_max);
        // The window ends requests in the order of the CmdSNs, the bound on refusals those that are
        // immediate.
        assert_eq!(world.ended(conns[0]).is_some(), immediate);
    }
}

#[test]
fn a_command_that_a_slower_connection_carries_is_awaited() {
    let (mut world, conns, up) = session(0, 2);
    let slow = world.command(conns[0]);
    let next = ScsiCommand { cmd_sn: slow.cmd_sn.next(), ..world.command(conns[1]) };
    world.send(conns[1], &next, &[]);
    world.pass(Duration::from_secs(20));
    assert_eq!(world.engine.sessions().count(), 1, "{up:?}");
    world.send(conns[0], &slow, &[]);
    for _ in [slow, next] {
        world.expect_command();
    }
    // A command that does not come ends the session.
    let next = ScsiCommand { cmd_sn: next.cmd_sn.next().next(), ..world.command(conns[1]) };
    world.send(conns[1], &next, &[]);
    world.pass(Duration::from_secs(35));
    assert_eq!(world.engine.sessions().count(), 0);
}

/// Sense data of a unit attention condition: a bus device reset function occurred.
const RESET_OCCURRED: [u8; 18] = [0x70, 0, 0x06, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0x03, 0, 0, 0, 0];
const UNIT_ATTENTION: Finish<'_> =
    Finish { status: 0x02, sense: &RESET_OCCURRED, transferable: 0, is_unit_attention: true };

/// Issues a command on one connection. Returns its tag and its task.
fn start(world: &mut World, conns: &[ConnId], on: ConnId) -> (Itt, TaskRef) {
    let command = world.command(on);
    issue(world, conns, on, &command, &[]);
    (command.itt, world.expect_command().task)
}

/// Returns the SCSI Responses received on a connection, and skips pings.
fn answers(world: &mut World, conn: ConnId) -> Vec<ScsiResponse> {
    core::iter::from_fn(|| world.receive(conn))
        .filter(|got| got.bhs.opcode() == Opcode::SCSI_RESPONSE)
        .map(|got| got.read())
        .collect()
}

#[test]
fn a_session_learns_behind_a_fence_that_another_ended_its_tasks() {
    //= rfc7143#section-4.2.2.3.4
    //= type=test
    //# the target iSCSI layer MUST assume that the Response Fence is required for the
    //# following SCSI completion messages:
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# e) MUST provide the Response Fence behavior on the first post-TMF Response on
    //# third-party sessions as specified in Section 4.2.2.3.3.
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# f) MUST address the Response Fence flag on the first post-TMF Response on third-party
    //# sessions as defined in Section 4.2.2.3.3.
    //= rfc7143#section-4.2.3.6
    //= type=test
    //# The UA notification contained in the first SCSI Response PDU on each affected
    //# third-party I_T_L nexus after the TMF action thus MUST NOT pass the affected task
    //# responses on any of the iSCSI sessions accessing the LU.
    //= rfc7143#section-4.2.3.5
    //= type=test
    //# If the issuing session is a FastAbort session, the iSCSI target implementation is
    //# FastAbort-capable, and the third-party affected session is an RFC 3720 session, the
    //# iSCSI target layer MUST NOT send Asynchronous Message PDUs on the third-party session
    //# to prompt the FastAbort behavior.
    //= rfc7143#section-11.9.1
    //= type=test
    //# This value of AsyncEvent, however, MUST NOT be used on an iSCSI session unless the new TaskReporting
    //# text key defined in Section 13.23 was negotiated to FastAbort on the session.
    for level in [0, 1] {
        let (mut world, conns, _) = session(level, 2);
        let other = world.connect();
        world.login_on(other, 1, &[]);
        let (_, ended) = start(&mut world, &conns, conns[0]);
        let (_, answered) = start(&mut world, &conns, conns[1]);
        world.finish(answered, Finish::good(0));
        let before: ScsiResponse = world.expect(conns[1]);
        let reset = world.manage(other, TmfFunction::LOGICAL_UNIT_RESET);
        world.send(other, &reset, &[]);
        let Some(Event::Tmf(manage)) = world.next_event() else { panic!("no function") };
        world.engine.abort(ended);
        world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
        world.drain();
        // The initiator that requested the function does not wait for acknowledgements of the other sessions.
        assert_eq!(world.expect::<TmfResponse>(other).response, TmfResult::COMPLETE);
        let (itt, first) = start(&mut world, &conns, conns[0]);
        let (after, second) = start(&mut world, &conns, conns[0]);
        let (elsewhere, third) = start(&mut world, &conns, conns[1]);
        world.finish(first, UNIT_ATTENTION);
        let ping: NopIn = world.expect(conns[1]);
        assert_eq!(ping.sn.stat_sn, before.sn.stat_sn.next());
        // Neither the fenced response nor later ones are sent, on any connection.
        world.finish(second, Finish::good(0));
        world.finish(third, Finish::good(0));
        ack(&mut world, conns[1], before.sn.stat_sn);
        for conn in &conns {
            world.expect_silence(*conn);
        }
        ack(&mut world, conns[1], before.sn.stat_sn.next());
        let came = answers(&mut world, conns[0]);
        assert_eq!([came[0].itt, came[1].itt], [itt, after], "{level}");
        assert_eq!(came[0].status, 0x02);
        world.expect_silence(conns[1]);
        ack(&mut world, conns[0], came[0].sn.stat_sn.next());
        assert_eq!(world.expect::<ScsiResponse>(conns[1]).itt, elsewhere, "{level}");
    }
}

#[test]
fn a_unit_attention_waits_for_one_that_does_not_acknowledge_only_so_long() {
    for silent in [false, true] {
        let (mut world, conns, _) = session(0, 2);
        let (_, answered) = start(&mut world, &conns, conns[1]);
        world.finish(answered, Finish::good(0));
        let tasks = [conns[0], conns[0], conns[1]].map(|on| start(&mut world, &conns, on));
        world.finish(tasks[0].1, UNIT_ATTENTION);
        world.finish(tasks[1].1, Finish::good(0));
        world.expect_silence(conns[0]);
        if silent {
            world.pass(Duration::from_secs(15));
        } else {
            world.hang_up(conns[1], DisconnectReason::Failed);
        }
        let came = answers(&mut world, conns[0]);
        assert_eq!([came[0].itt, came[1].itt], [tasks[0].0, tasks[1].0], "{silent}");
    }
}

#[test]
fn a_unit_attention_of_a_session_with_one_connection_waits_for_nothing() {
    let (mut world, conns, _) = session(1, 1);
    let (itt, task) = start(&mut world, &conns, conns[0]);
    world.finish(task, UNIT_ATTENTION);
    assert_eq!(world.expect::<ScsiResponse>(conns[0]).itt, itt);
    world.expect_silence(conns[0]);
}

#[test]
fn two_fences_of_a_session_do_not_wait_for_each_other() {
    let (mut world, conns, _) = session(0, 2);
    let (first, one) = start(&mut world, &conns, conns[0]);
    let (second, two) = start(&mut world, &conns, conns[1]);
    for conn in &conns {
        // Each connection has an unacknowledged response.
        let (_, task) = start(&mut world, &conns, *conn);
        world.finish(task, Finish::good(0));
        world.expect::<ScsiResponse>(*conn);
    }
    world.finish(one, UNIT_ATTENTION);
    world.finish(two, UNIT_ATTENTION);
    world.expect::<NopIn>(conns[0]);
    let ping: NopIn = world.expect(conns[1]);
    ack(&mut world, conns[1], ping.sn.stat_sn);
    let response: ScsiResponse = world.expect(conns[0]);
    assert_eq!(response.itt, first);
    ack(&mut world, conns[0], response.sn.stat_sn.next());
    assert_eq!(world.expect::<ScsiResponse>(conns[1]).itt, second);
}

#[test]
fn an_ended_preemption_of_others_is_told_behind_a_fence() {
    //= rfc7143#section-4.2.2.3.4
    //= type=test
    //# This section lists the situations in which fenced response behavior is REQUIRED in
    //# iSCSI target implementations.
    let (mut world, conns, _) = session(0, 2);
    let (_, answered) = start(&mut world, &conns, conns[1]);
    world.finish(answered, Finish::good(0));
    let before: ScsiResponse = world.expect(conns[1]);
    for waits in [false, true] {
        let command = world.command(conns[0]);
        issue(&mut world, &conns, conns[0], &command, &[]);
        let task = world.expect_command().task;
        if waits {
            world.engine.fence_response(task);
        }
        world.finish(task, Finish::good(0));
        if waits {
            world.expect_silence(conns[0]);
            ack(&mut world, conns[1], before.sn.stat_sn.next());
        }
        assert_eq!(world.expect::<ScsiResponse>(conns[0]).itt, command.itt, "{waits}");
    }
}

#[test]
fn a_task_is_aborted_from_any_connection() {
    let (mut world, conns, _) = session(0, 2);
    let command = world.command(conns[0]);
    issue(&mut world, &conns, conns[0], &command, &[]);
    let up = world.expect_command();
    let abort = TmfRequest {
        function: TmfFunction::ABORT_TASK,
        referenced_task_tag: command.itt,
        ref_cmd_sn: command.cmd_sn,
        ..world.manage(conns[1], TmfFunction::LOGICAL_UNIT_RESET)
    };
    world.send(conns[1], &abort, &[]);
    let Some(Event::Tmf(manage)) = world.next_event() else { panic!("no function") };
    assert_eq!(manage.task, Some(up.task));
    world.engine.abort(up.task);
    world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
    world.drain();
    assert_eq!(world.expect::<TmfResponse>(conns[1]).response, TmfResult::COMPLETE);
    world.expect_silence(conns[0]);
}

#[test]
fn a_session_that_acknowledges_nothing_keeps_a_window_of_answers_over_all_its_connections() {
    for lost in [false, true] {
        let (mut world, conns, _) = session(2, 4);
        let max = world.engine.answered_max();
        for round in 0..2 * max {
            let on = conns[usize::try_from(round % 4).unwrap()];
            if world.ended(on).is_some() || lost && on == conns[3] && round > 4 * 60 {
                continue;
            }
            let read = ScsiCommand { itt: Itt(1 << 20 | round), ..world.read(on, 4) };
            issue(&mut world, &conns, on, &read, &[]);
            let Some(Event::Command(up)) = world.next_event() else { break };
            world.data_in(up.task, 0, &pattern(0, 4));
            world.finish(up.task, Finish::good(4));
            if lost && round == 4 * 60 {
                world.hang_up(conns[3], DisconnectReason::Failed);
            }
        }
        let kept = world.engine.tasks.iter().filter(|(_, task)| task.sent_status.is_some()).count();
        assert_eq!(kept, usize::try_from(max).unwrap());
        // An acknowledgement on one connection lets responses be sent on all.
        let sent: u32 = world.engine.conns[conns[0].0 as usize].as_ref().unwrap().stat_sn.0;
        while world.receive(conns[1]).is_some() {}
        ack(&mut world, conns[0], StatSn(sent));
        assert!(world.receive(conns[1]).is_some(), "an answer was held back");
    }
    assert!(size_of::<crate::target::task::Task>() <= 1024);
}

#[test]
fn a_logout_of_the_last_connection_left_is_answered_and_ends_the_session() {
    let (mut world, conns, _) = session(0, 2);
    let read = world.read(conns[1], 100);
    let task = world.start(conns[1], &read, &[]).task;
    let (itt, cmd_sn) = world.numbers(conns[1]);
    let reason = LogoutReason::CloseConnection;
    let request = LogoutRequest { immediate: true, reason, itt, cid: 1, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conns[1], &request, &[]);
    world.hang_up(conns[0], DisconnectReason::Failed);
    assert!(world.engine.received_eof(world.now, conns[1]));
    world.finish(task, Finish::good(0));
    assert_eq!(world.expect::<ScsiResponse>(conns[1]).itt, read.itt);
    assert_eq!(world.expect::<LogoutResponse>(conns[1]).response, LogoutResult::CLOSED);
    assert_eq!(world.ended(conns[1]), Some(Action::Close(conns[1])));
    assert_eq!(world.engine.sessions().count(), 0);
    assert_eq!(world.engine.stats().bugs, 0);
}
