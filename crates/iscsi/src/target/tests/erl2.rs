//! ErrorRecoveryLevel 2 (RFC 7143 §7.1.5, §7.2.2): tasks survive the loss of their connection, and none is
//! executed twice.

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::Duration;
use transport::initiator::Residual;
use transport::status;
use transport::target::{Finish, TargetTransport, TaskRef};
use transport::task_management::{TmfFunction, TmfResult};

use super::data_out::idle;
use super::erl1::ack;
use super::mcs::{issue, session, several};
use super::world::{World, data_out, pattern};
use crate::negotiate::KeyPolicy;
use crate::pdu::data_in::DataIn;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, Opcode, PduHeader};
use crate::serial::{DataSn, R2tSn, StatSn};
use crate::target::contract::{ConnectionLoss, Event, SessionEnd};
use crate::target::engine::Limits;

/// Logs a connection out for recovery.
pub(super) fn release(world: &mut World, on: ConnId, cid: u16) -> LogoutResponse {
    let (itt, cmd_sn) = world.numbers(on);
    let reason = LogoutReason::RemoveForRecovery;
    let request = LogoutRequest { immediate: true, reason, itt, cid, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(on, &request, &[]);
    world.expect(on)
}

/// Requests the reassignment of a task to a connection.
pub(super) fn reassign(world: &mut World, on: ConnId, task: Itt, exp_data_sn: u32) -> TmfResult {
    let request = TmfRequest {
        referenced_task_tag: task,
        exp_data_sn: DataSn(exp_data_sn),
        ..world.manage(on, TmfFunction::TASK_REASSIGN)
    };
    world.send(on, &request, &[]);
    let response: TmfResponse = world.expect(on);
    assert_eq!(response.itt, request.itt, "the answer comes before anything of the task");
    response.response
}

fn data_ins(world: &mut World, conn: ConnId) -> Vec<(u32, u32, usize, bool)> {
    let mut got = Vec::new();
    while let Some(pdu) = world.receive(conn) {
        let header = pdu.read::<DataIn>();
        assert_eq!(pdu.data, pattern(header.buffer_offset, pdu.data.len()));
        got.push((header.data_sn.0, header.buffer_offset, pdu.data.len(), header.status.is_some()));
    }
    got
}

/// Starts a command on a connection of a session.
fn start(world: &mut World, conns: &[ConnId], on: ConnId, command: &ScsiCommand) -> TaskRef {
    issue(world, conns, on, command, &[]);
    world.expect_command().task
}

fn downs(world: &World) -> Vec<SessionEnd> {
    world
        .events
        .iter()
        .filter_map(|event| match event {
            Event::SessionDown { why, .. } => Some(*why),
            _ => None,
        })
        .collect()
}

#[test]
fn a_read_goes_on_on_another_connection_from_where_it_was_acknowledged() {
    //= rfc7143#section-7.2.2
    //= type=test
    //# This might possibly involve retransmission of data/R2T/status PDUs as necessary but MUST involve the
    //# (re)transmission of the status PDU.
    //= rfc7143#section-7.2.2
    //= type=test
    //# If allegiance reassignment is supported by the target but the task is still allegiant to a different
    //# connection, or a successful recovery Logout of the previously allegiant connection was not performed,
    //# the target MUST respond with a task management response code of "Task still allegiant".
    //= rfc7143#section-7.2.2
    //= type=test
    //# If allegiance reassignment is supported by the target, the task management response to the
    //# reassignment request MUST be issued before the reassignment becomes effective.
    //= rfc7143#section-11.5.1
    //= type=test
    //# The task management response MUST be issued before the reassignment becomes effective.
    //= rfc7143#section-11.5.6
    //= type=test
    //# the target MUST transmit all Data-In PDUs (if any) starting with the data acknowledgment reference
    //# number.
    //= rfc7143#section-11.5.6
    //= type=test
    //# Any other value MUST be ignored by the target.
    //= rfc7143#section-11.6
    //= type=test
    //# For TASK REASSIGN, the new connection allegiance MUST ONLY become effective at the target after the
    //# target issues the task management response.
    for (exp_data_sn, expected) in [
        (0, [(0, 0, 8192, false), (1, 8192, 8192, false), (2, 16384, 3616, true)].to_vec()),
        (1, [(1, 8192, 8192, false), (2, 16384, 3616, true)].to_vec()),
        // An ExpDataSN for PDUs that were not sent is ignored.
        (3, [(0, 0, 8192, false), (1, 8192, 8192, false), (2, 16384, 3616, true)].to_vec()),
    ] {
        let (mut world, conns, _) = session(2, 2);
        let read = world.read(conns[0], 20_000);
        let task = start(&mut world, &conns, conns[0], &read);
        world.data_in(task, 0, &pattern(0, 16_384));
        assert_eq!(data_ins(&mut world, conns[0]).len(), 2);
        world.hang_up(conns[0], DisconnectReason::Failed);
        assert!(world.events.is_empty(), "the task goes on");
        // The task ends while it has no connection.
        world.data_in(task, 16_384, &pattern(16_384, 3616));
        world.finish(task, Finish::good(20_000));
        assert_eq!(reassign(&mut world, conns[1], read.itt, 0), TmfResult::STILL_ALLEGIANT);
        let response = release(&mut world, conns[1], 0);
        assert_eq!(response.response, LogoutResult::CLOSED);
        assert_eq!((response.time2wait, response.time2retain), (2, 20));
        assert_eq!(reassign(&mut world, conns[1], read.itt, exp_data_sn), TmfResult::COMPLETE);
        assert_eq!(data_ins(&mut world, conns[1]), expected);
        assert_eq!(reassign(&mut world, conns[1], read.itt, 0), TmfResult::STILL_ALLEGIANT);
        assert_eq!(world.engine.stats().reassigns, 1);
        assert_eq!(world.engine.sessions().next().unwrap().tasks, 0);
    }
}

#[test]
fn data_in_of_a_lost_connection_does_not_hold_up_its_session_until_the_retention_ends() {
    // The initiator has received no Data-In, the first, or both: the residual count tells what it has not.
    for (received, residual) in
        [(0, Residual::Underflow(12_000)), (1, Residual::Underflow(3808)), (2, Residual::None)]
    {
        let limits = Limits { unsent_bytes_max: 16_384, ack_within: Duration::MAX, ..Limits::default() };
        let mut world = World::with(limits, several(2));
        let (lost, up) = world.login(&["MaxConnections=4", "ErrorRecoveryLevel=2"]);
        let (other, _) = world.join(lost, up.tsih, 1, &[]);
        let conns = [lost, other];
        let (answered, next) = (world.read(lost, 12_000), world.read(lost, 12_000));
        let task = start(&mut world, &conns, lost, &answered);
        world.data_in(task, 0, &pattern(0, 12_000));
        world.finish(task, Finish::good(12_000));
        let sent = [world.expect::<DataIn>(lost).buffer_offset, world.expect::<DataIn>(lost).buffer_offset];
        assert_eq!(sent, [0, 8192]);
        world.expect::<ScsiResponse>(lost);
        // The target does not know whether the initiator received the status.
        world.hang_up(lost, DisconnectReason::Failed);
        issue(&mut world, &conns, other, &ScsiCommand { cmd_sn: answered.cmd_sn.next(), ..next }, &[]);
        idle(&mut world, &[other], 4);
        assert!(world.events.is_empty(), "it waits for memory");
        idle(&mut world, &[other], 5);
        let task = world.expect_command().task;
        world.data_in(task, 0, &pattern(0, 12_000));
        world.finish(task, Finish::good(12_000));
        while world.receive(other).is_some_and(|got| got.bhs.opcode() != Opcode::SCSI_RESPONSE) {}
        release(&mut world, other, 0);
        assert_eq!(reassign(&mut world, other, answered.itt, received), TmfResult::COMPLETE);
        let response: ScsiResponse = world.expect(other);
        assert_eq!((response.itt, response.status), (answered.itt, status::CHECK_CONDITION));
        assert_eq!((response.exp_data_sn, response.residual), (DataSn(received), residual));
    }
}

/// The slots of the ended immediate tasks are free again.
#[test]
fn immediate_tasks_end_with_their_connection_and_others_do_not() {
    //= rfc7143#section-7.14
    //= type=test
    //# On a connection failure, a target MUST terminate and/or discard all of the active immediate commands,
    //# regardless of which of the above options is used (i.e., immediate commands are not recoverable across
    //# connection failures).
    let (mut world, conns, _) = session(2, 2);
    let stays = world.read(conns[0], 512);
    start(&mut world, &conns, conns[0], &stays);
    let mut tasks = Vec::new();
    loop {
        let command = ScsiCommand { immediate: true, ..world.command(conns[0]) };
        world.send(conns[0], &command, &[]);
        if world.receive(conns[0]).is_some() {
            break;
        }
        tasks.push((command.itt, world.expect_command().task));
        assert!(tasks.len() < 1000, "there is a limit");
    }
    world.hang_up(conns[0], DisconnectReason::Failed);
    let mut gone = Vec::new();
    while gone.len() < tasks.len() {
        match world.next_event() {
            Some(Event::TaskGone { task }) => gone.push(task),
            other => panic!("{other:?}"),
        }
    }
    world.expect_cleared();
    assert!(world.events.is_empty());
    assert!(gone.len() == tasks.len() && tasks.iter().all(|(_, task)| gone.contains(task)));
    release(&mut world, conns[1], 0);
    assert_eq!(reassign(&mut world, conns[1], tasks[0].0, 0), TmfResult::NO_TASK);
    assert_eq!(reassign(&mut world, conns[1], stays.itt, 0), TmfResult::COMPLETE);
    let command = ScsiCommand { immediate: true, ..world.command(conns[1]) };
    world.send(conns[1], &command, &[]);
    world.expect_command();
}

#[test]
fn data_is_cut_to_the_measure_of_the_new_connection() {
    let (mut world, conns, tsih) = session(2, 1);
    let read = world.read(conns[0], 16_384);
    let task = start(&mut world, &conns, conns[0], &read);
    world.data_in(task, 0, &pattern(0, 16_384));
    assert_eq!(data_ins(&mut world, conns[0]).len(), 2);
    world.hang_up(conns[0], DisconnectReason::Failed);
    world.finish(task, Finish::good(16_384));
    let (new, status) = world.join(conns[0], tsih, 0, &["MaxRecvDataSegmentLength=5000"]);
    assert_eq!(status, 0);
    assert_eq!(reassign(&mut world, new, read.itt, 0), TmfResult::COMPLETE);
    let got = data_ins(&mut world, new);
    assert_eq!(
        got.iter().map(|(sn, offset, ..)| (*sn, *offset)).collect::<Vec<_>>(),
        [(0, 0), (1, 5000), (2, 10_000), (3, 15_000)]
    );
    assert!(got[3].3, "with its status");
}

#[test]
fn a_status_that_was_not_acknowledged_is_given_again_with_a_number_of_the_new_connection() {
    //= rfc7143#section-7.2.2
    //= type=test
    //# This might possibly involve retransmission of data/R2T/status PDUs as necessary but MUST involve the
    //# (re)transmission of the status PDU.
    let (mut world, conns, _) = session(2, 2);
    let commands: Vec<_> = (0..2)
        .map(|_| {
            let command = world.command(conns[0]);
            (start(&mut world, &conns, conns[0], &command), command)
        })
        .collect();
    let sense = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];
    for (task, _) in &commands {
        world.finish(*task, Finish { status: 2, sense: &sense, transferable: 0, is_unit_attention: false });
    }
    let first: ScsiResponse = world.expect(conns[0]);
    world.expect::<ScsiResponse>(conns[0]);
    ack(&mut world, conns[0], first.sn.stat_sn.next());
    world.hang_up(conns[0], DisconnectReason::Failed);
    release(&mut world, conns[1], 0);
    assert_eq!(reassign(&mut world, conns[1], commands[0].1.itt, 0), TmfResult::NO_TASK, "acknowledged");
    assert_eq!(reassign(&mut world, conns[1], commands[1].1.itt, 0), TmfResult::COMPLETE);
    let got = world.expect_any(conns[1]);
    assert_eq!((got.read::<ScsiResponse>().status, &got.data[2..]), (2, &sense[..]));
    assert_eq!(got.read::<ScsiResponse>().itt, commands[1].1.itt);
    world.expect_silence(conns[1]);
    assert!(world.events.is_empty(), "nothing runs twice");
}

#[test]
fn a_write_asks_on_the_new_connection_for_what_is_missing() {
    let (mut world, conns, _) = session(2, 2);
    let write = world.write(conns[0], 4000);
    let task = start(&mut world, &conns, conns[0], &write);
    world.fetch(task, 0, 4000);
    let r2t: R2t = world.expect(conns[0]);
    let data = |ttt, sn, offset, is_final| data_out(&write, ttt, sn, offset, is_final);
    world.send(conns[0], &data(r2t.ttt, 0, 0, false), &pattern(0, 1000));
    world.hang_up(conns[0], DisconnectReason::Failed);
    release(&mut world, conns[1], 0);
    assert_eq!(reassign(&mut world, conns[1], write.itt, 0), TmfResult::COMPLETE);
    let again: R2t = world.expect(conns[1]);
    assert_eq!(
        (again.r2t_sn, again.buffer_offset, again.desired_data_transfer_length),
        (R2tSn(1), 1000, 3000)
    );
    world.send(conns[1], &data(again.ttt, 0, 1000, true), &pattern(1000, 3000));
    assert_eq!(world.expect_data(task, 0), pattern(0, 4000));
    world.finish(task, Finish::good(4000));
    assert_eq!(world.expect::<ScsiResponse>(conns[1]).itt, write.itt);
}

#[test]
fn a_write_whose_data_was_cut_off_amid_a_pdu_loses_no_byte() {
    for cut in [10, 60, 500, 1047] {
        let (mut world, conns, _) = session(2, 2);
        let write = world.write(conns[0], 3000);
        let task = start(&mut world, &conns, conns[0], &write);
        world.fetch(task, 0, 3000);
        let r2t: R2t = world.expect(conns[0]);
        let data = |ttt, sn, offset, is_final| data_out(&write, ttt, sn, offset, is_final);
        world.send(conns[0], &data(r2t.ttt, 0, 0, false), &pattern(0, 1000));
        let bytes = world.frame(conns[0], data(r2t.ttt, 1, 1000, false).encode(), &[], &pattern(1000, 1000));
        world.feed(conns[0], &bytes[..cut]);
        world.hang_up(conns[0], DisconnectReason::Failed);
        release(&mut world, conns[1], 0);
        assert_eq!(reassign(&mut world, conns[1], write.itt, 0), TmfResult::COMPLETE);
        let again: R2t = world.expect(conns[1]);
        let (start, len) = (again.buffer_offset, again.desired_data_transfer_length);
        assert_eq!(start + len, 3000);
        world.send(conns[1], &data(again.ttt, 0, start, true), &pattern(start, len as usize));
        assert_eq!(world.expect_data(task, 0), pattern(0, 3000), "{cut}");
    }
}

#[test]
fn unsolicited_data_and_r2ts_that_never_left_are_asked_for_on_the_new_connection() {
    let (mut world, conns, tsih) = session(2, 1);
    let write = ScsiCommand { is_final: false, ..world.write(conns[0], 100_000) };
    issue(&mut world, &conns, conns[0], &write, &pattern(0, 500));
    let task = world.expect_command().task;
    world.fetch(task, 0, 100_000);
    world.hang_up(conns[0], DisconnectReason::Failed);
    let (new, status) = world.join(conns[0], tsih, 5, &[]);
    assert_eq!(status, 0);
    release(&mut world, new, 0);
    assert_eq!(reassign(&mut world, new, write.itt, 0), TmfResult::COMPLETE);
    let mut asked = Vec::new();
    while let Some(got) = world.receive(new) {
        let r2t: R2t = got.read();
        asked.push((r2t.r2t_sn.0, r2t.buffer_offset, r2t.desired_data_transfer_length));
        let data = data_out(&write, r2t.ttt, 0, r2t.buffer_offset, true);
        let bytes = pattern(r2t.buffer_offset, r2t.desired_data_transfer_length as usize);
        world.send(new, &data, &bytes);
    }
    assert_eq!(asked, [(0, 500, 65_036), (1, 65_536, 34_464)]);
    assert_eq!(world.expect_data(task, 0), pattern(0, 100_000));
}

#[test]
fn a_command_that_the_target_has_is_not_run_again_and_one_that_it_has_not_is_run_once() {
    let (mut world, conns, tsih) = session(2, 1);
    let has = world.command(conns[0]);
    let task = start(&mut world, &conns, conns[0], &has);
    // The connection is lost in the middle of the header.
    let lost = world.command(conns[0]);
    let bytes = world.frame(conns[0], lost.encode(), &[], &[]);
    world.feed(conns[0], &bytes[..40]);
    world.hang_up(conns[0], DisconnectReason::Failed);
    let (new, _) = world.join(conns[0], tsih, 0, &[]);
    assert_eq!(reassign(&mut world, new, lost.itt, 0), TmfResult::NO_TASK);
    world.send(new, &has, &[]);
    assert!(world.events.is_empty(), "a duplicate");
    world.send(new, &lost, &[]);
    let again = world.expect_command();
    assert_ne!(again.task, task);
    assert_eq!(reassign(&mut world, new, has.itt, 0), TmfResult::COMPLETE);
    for task in [task, again.task] {
        world.finish(task, Finish::good(0));
    }
    let answers: Vec<Itt> = (0..2).map(|_| world.expect::<ScsiResponse>(new).itt).collect();
    assert_eq!(answers, [has.itt, lost.itt]);
}

#[test]
fn a_session_without_connections_waits_its_time_and_no_longer() {
    //= rfc7143#section-7.5
    //= type=test
    //# Recovery attempts for the connection and/or task(s) SHOULD NOT be made before Time2Wait seconds but
    //# MUST be completed within Time2Retain seconds after that initial Time2Wait waiting period.
    for back_after in [21, 23] {
        let (mut world, conns, tsih) = session(2, 1);
        let command = world.command(conns[0]);
        let task = start(&mut world, &conns, conns[0], &command);
        world.hang_up(conns[0], DisconnectReason::Reset);
        assert_eq!(world.engine.sessions().next().unwrap().lost, 1);
        world.pass(Duration::from_secs(back_after));
        let (new, status) = world.join(conns[0], tsih, 1, &[]);
        if back_after < 22 {
            assert_eq!(status, 0);
            release(&mut world, new, 0);
            // The retention time starts again.
            world.pass(Duration::from_secs(20));
            while world.receive(new).is_some() {}
            assert_eq!(reassign(&mut world, new, command.itt, 0), TmfResult::COMPLETE);
            world.finish(task, Finish::good(0));
            assert_eq!(world.expect::<ScsiResponse>(new).itt, command.itt);
        } else {
            assert_ne!(status, 0);
            assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
            assert_eq!(downs(&world), [SessionEnd::ConnectionLost(ConnectionLoss::Reset)]);
            assert_eq!((world.engine.sessions().count(), world.engine.tasks.len()), (0, 0));
        }
    }
}

#[test]
fn tasks_that_nobody_claims_are_aborted_and_the_rest_goes_on() {
    let (mut world, conns, _) = session(2, 2);
    let command = world.command(conns[0]);
    let task = start(&mut world, &conns, conns[0], &command);
    world.hang_up(conns[0], DisconnectReason::Failed);
    release(&mut world, conns[1], 0);
    world.pass(Duration::from_secs(22));
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    world.expect_cleared();
    assert!(world.events.is_empty());
    while world.receive(conns[1]).is_some() {}
    assert_eq!(reassign(&mut world, conns[1], command.itt, 0), TmfResult::NO_TASK);
    assert_eq!(release(&mut world, conns[1], 0).response, LogoutResult::NO_CID);
    assert_eq!(world.ended(conns[1]), None);
}

#[test]
fn a_connection_that_works_can_be_logged_out_for_recovery_by_itself_or_another() {
    //= rfc7143#section-11.14
    //= type=test
    //# When receiving a Logout Request with the reason code "remove the connection for recovery", the target
    //# MUST discard all requests not yet acknowledged via the ExpCmdSN that were issued on the specified
    //# connection and suspend all data/status/R2T transfers on behalf of pending commands on the specified
    //# connection.
    for own in [false, true] {
        let (mut world, conns, tsih) = session(2, 2);
        let command = world.command(conns[0]);
        let task = start(&mut world, &conns, conns[0], &command);
        let on = if own { conns[0] } else { conns[1] };
        assert_eq!(release(&mut world, on, 0).response, LogoutResult::CLOSED);
        let expected = if own { Action::Close(conns[0]) } else { Action::Abort(conns[0]) };
        assert_eq!(world.ended(conns[0]), Some(expected));
        assert!(world.events.is_empty());
        assert_eq!(reassign(&mut world, conns[1], command.itt, 0), TmfResult::COMPLETE);
        world.finish(task, Finish::good(0));
        assert_eq!(world.expect::<ScsiResponse>(conns[1]).itt, command.itt);
        // The last connection can be released too, and the session is continued.
        assert_eq!(release(&mut world, conns[1], 1).response, LogoutResult::CLOSED);
        assert!(downs(&world).is_empty());
        let (_, status) = world.join(conns[1], tsih, 1, &[]);
        assert_eq!(status, 0, "{own}");
    }
}

#[test]
fn below_level_2_and_with_nothing_retained_nothing_is_reassigned() {
    //= rfc7143#section-7.2.2
    //= type=test
    //# When a target does not support allegiance reassignment, it MUST respond with a task management
    //# response code of "Task allegiance reassignment not supported".
    let (mut world, conns, _) = session(1, 2);
    let command = world.command(conns[0]);
    start(&mut world, &conns, conns[0], &command);
    assert_eq!(reassign(&mut world, conns[1], command.itt, 0), TmfResult::NO_REASSIGNMENT);

    let (mut world, _, _) = session(2, 1);
    world.events.clear();
    let (conn, up) = world.login(&["ErrorRecoveryLevel=2", "DefaultTime2Retain=0"]);
    assert_eq!(up.parameters.default_time2retain, 0);
    world.events.clear();
    let command = world.command(conn);
    let task = start(&mut world, &[conn], conn, &command);
    world.hang_up(conn, DisconnectReason::Failed);
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    assert_eq!(downs(&world), [SessionEnd::ConnectionLost(ConnectionLoss::Failed)]);
}

#[test]
fn a_tag_that_is_used_again_is_a_new_task() {
    let (mut world, conns, _) = session(2, 2);
    let read = world.read(conns[0], 100);
    let task = start(&mut world, &conns, conns[0], &read);
    world.data_in(task, 0, &pattern(0, 100));
    world.finish(task, Finish::good(100));
    world.hang_up(conns[0], DisconnectReason::Failed);
    release(&mut world, conns[1], 0);
    let again = ScsiCommand { itt: read.itt, ..world.read(conns[1], 200) };
    start(&mut world, &conns, conns[1], &again);
    assert_eq!(reassign(&mut world, conns[1], read.itt, 0), TmfResult::STILL_ALLEGIANT);
    assert_eq!(world.engine.sessions().next().unwrap().tasks, 1);
}

#[test]
fn tasks_without_a_connection_can_be_aborted_and_reset() {
    let (mut world, conns, _) = session(2, 2);
    let write = world.write(conns[0], 100);
    let task = start(&mut world, &conns, conns[0], &write);
    world.fetch(task, 0, 100);
    world.hang_up(conns[0], DisconnectReason::Failed);
    let reset = world.manage(conns[1], TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conns[1], &reset, &[]);
    let Some(Event::Tmf(manage)) = world.next_event() else { panic!("it waits for nobody") };
    world.engine.abort(task);
    world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
    world.drain();
    assert_eq!(world.expect::<TmfResponse>(conns[1]).response, TmfResult::COMPLETE);
    release(&mut world, conns[1], 0);
    assert_eq!(reassign(&mut world, conns[1], write.itt, 0), TmfResult::NO_TASK);
}

#[test]
fn connections_that_come_and_go_leave_a_bounded_trail() {
    let (mut world, conns, tsih) = session(2, 1);
    let mut last = conns[0];
    for round in 0..40_u16 {
        let read = world.read(last, 4096);
        let task = start(&mut world, &[last], last, &read);
        world.data_in(task, 0, &pattern(0, 4096));
        world.finish(task, Finish::good(4096));
        let (new, status) = world.join(last, tsih, round % 3 + 1, &[]);
        assert_eq!(status, 0, "{round}");
        world.hang_up(last, DisconnectReason::Failed);
        last = new;
    }
    let view = world.engine.sessions().next().unwrap();
    assert!(view.lost <= 16 && view.unsent_bytes <= 17 * 4096, "{} {}", view.lost, view.unsent_bytes);
    world.pass(Duration::from_secs(60));
    while let Some(got) = world.receive(last) {
        assert_eq!(got.bhs.opcode(), Opcode::NOP_IN);
    }
}

#[test]
fn logging_out_of_the_session_ends_what_has_no_connection() {
    let (mut world, conns, _) = session(2, 2);
    let command = world.command(conns[0]);
    let task = start(&mut world, &conns, conns[0], &command);
    world.hang_up(conns[0], DisconnectReason::Failed);
    let (itt, cmd_sn) = world.numbers(conns[1]);
    let reason = LogoutReason::CloseSession;
    let request = LogoutRequest { immediate: true, reason, itt, cid: 0, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conns[1], &request, &[]);
    assert_eq!(world.expect::<LogoutResponse>(conns[1]).response, LogoutResult::CLOSED);
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    assert_eq!(downs(&world), [SessionEnd::LoggedOut]);
    assert_eq!((world.engine.sessions().count(), world.engine.tasks.len()), (0, 0));
}

#[test]
fn a_write_that_is_taken_up_again_after_a_long_time_has_all_its_time_for_its_data() {
    let policy = KeyPolicy { default_time2retain: 3600, ..several(2) };
    let mut world = World::with(Limits::default(), policy);
    let keys = ["MaxConnections=4", "ErrorRecoveryLevel=2", "DefaultTime2Retain=3600"];
    let (conn, up) = world.login(&keys);
    let write = world.write(conn, 4000);
    let task = start(&mut world, &[conn], conn, &write);
    world.fetch(task, 0, 4000);
    world.expect::<R2t>(conn);
    world.hang_up(conn, DisconnectReason::Failed);
    world.pass(Duration::from_secs(600));
    let (new, status) = world.join(conn, up.tsih, 0, &[]);
    assert_eq!(status, 0);
    assert_eq!(reassign(&mut world, new, write.itt, 0), TmfResult::COMPLETE);
    let again: R2t = world.expect(new);
    world.pass(Duration::from_secs(3));
    assert!(world.events.is_empty(), "{:?}", world.events);
    world.send(new, &data_out(&write, again.ttt, 0, 0, true), &pattern(0, 4000));
    assert_eq!(world.expect_data(task, 0), pattern(0, 4000));
}

#[test]
fn a_reset_may_meet_a_logout_that_ends_the_session() {
    let (mut world, _, _) = session(2, 1);
    let (conn, _) = world.login(&["ErrorRecoveryLevel=2", "DefaultTime2Retain=0"]);
    world.events.clear();
    // A logout and a command wait for a number that does not come.
    world.count(conn);
    let (itt, cmd_sn) = world.numbers(conn);
    let reason = LogoutReason::RemoveForRecovery;
    let logout = LogoutRequest { immediate: false, reason, itt, cid: 0, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conn, &logout, &[]);
    world.count(conn);
    let command = world.command(conn);
    world.issue(conn, &command, &[]);
    // The reset takes all of them as received. The logout ends the session, so the command and the reset have
    // none any more.
    let reset = world.manage(conn, TmfFunction::TARGET_WARM_RESET);
    world.send(conn, &reset, &[]);
    assert_eq!(downs(&world), [SessionEnd::ConnectionLost(ConnectionLoss::GivenUp)]);
    assert_eq!(world.engine.stats().bugs, 0);
}
