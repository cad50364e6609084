//! Task management: which requests are passed to the layer above, when, and which are answered by the engine.

use alloc::vec::Vec;

use base::state_machine::{Action, ConnId};
use base::time::Duration;
use transport::target::{Finish, TargetTransport, TmfIndication};
use transport::task_management::{TmfFunction, TmfResult};

use super::world::{LUN, World, data_out, keys, pattern};
use crate::negotiate::KeyPolicy;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::data_out::DataOut;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::nop_in::NopIn;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, Ttt};
use crate::serial::{CmdSn, StatSn};
use crate::target::contract::Event;
use crate::target::engine::Limits;

fn abort_task(world: &mut World, conn: ConnId, task: &ScsiCommand) -> TmfRequest {
    TmfRequest {
        referenced_task_tag: task.itt,
        ref_cmd_sn: task.cmd_sn,
        ..world.manage(conn, TmfFunction::ABORT_TASK)
    }
}

fn expect_manage(world: &mut World) -> TmfIndication {
    match world.next_event() {
        Some(Event::Tmf(manage)) => manage,
        other => panic!("expected a request, got {other:?}"),
    }
}

fn answer(world: &mut World, manage: TmfIndication, result: TmfResult) {
    world.engine.finish_tmf(manage.tmf, result);
    world.drain();
}

fn expect_result(world: &mut World, conn: ConnId, result: TmfResult) {
    assert_eq!(world.expect::<TmfResponse>(conn).response, result);
}

fn level2() -> KeyPolicy {
    KeyPolicy { task_reporting: &["FastAbort", "RFC3720"], ..keys() }
}

#[test]
fn abort_task_reaches_the_task_wherever_it_is() {
    //= rfc7143#section-7.11
    //= type=test
    //# If the abort request is received and the target can determine (based on the Referenced Task Tag) that
    //# the command was received and executed, and also that the response was sent prior to the abort, then
    //# the target MUST respond with the response code "Task Does Not Exist".
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    // The layer above owns the task.
    let command = world.read(conn, 512);
    let task = world.start(conn, &command, &[]).task;
    let abort = abort_task(&mut world, conn, &command);
    world.send(conn, &abort, &[]);
    let manage = expect_manage(&mut world);
    assert_eq!(manage.task, Some(task));
    assert_eq!((manage.function, manage.session), (TmfFunction::ABORT_TASK, up.session));
    world.data_in(task, 0, &pattern(0, 512));
    world.receive(conn).unwrap();
    world.engine.abort(task);
    answer(&mut world, manage, TmfResult::COMPLETE);
    let response: TmfResponse = world.expect(conn);
    assert_eq!((response.response, response.itt), (TmfResult::COMPLETE, abort.itt));
    world.expect_silence(conn);
    // The tag of the task is free again.
    let again = ScsiCommand { cmd_sn: CmdSn(101), ..command };
    let task = world.start(conn, &again, &[]).task;
    // The task ended before the abort: its status stands.
    world.engine.finish(task, Finish::good(512));
    let abort = abort_task(&mut world, conn, &again);
    world.engine.received(
        world.now,
        conn,
        &world.frame(conn, crate::pdu::PduHeader::encode(&abort), &[], &[]),
        &world.names,
    );
    world.drain();
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
    expect_result(&mut world, conn, TmfResult::NO_TASK);
    // The turn of the command has not come.
    let early = ScsiCommand { cmd_sn: CmdSn(103), ..command };
    world.send(conn, &early, &[]);
    let abort = abort_task(&mut world, conn, &early);
    world.send(conn, &abort, &[]);
    expect_result(&mut world, conn, TmfResult::COMPLETE);
    world.send(conn, &ScsiCommand { cmd_sn: CmdSn(102), ..command }, &[]);
    world.expect_command();
    world.expect_silence(conn);
    // The number of the aborted command counts as received.
    let next = ScsiCommand { cmd_sn: CmdSn(104), itt: Itt(900), ..command };
    world.start(conn, &next, &[]);
}

#[test]
fn only_scsi_tasks_can_be_aborted_or_reassigned() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# At the target, an ABORT TASK function MUST NOT be executed on a task management request; such a request
    //# MUST result in a task management response of "Function rejected".
    //= rfc7143#section-11.5.1
    //= type=test
    //# At the target, a TASK REASSIGN function request MUST NOT be executed to reassign the connection
    //# allegiance of a Task Management Function Request, an active text negotiation task, or a Logout task;
    //# such a request MUST result in a task management response of "Function rejected".
    let mut world = World::with(Limits::default(), super::mcs::several(2));
    let (conn, up) = world.login(&["MaxConnections=4", "ErrorRecoveryLevel=2"]);
    let (second, _) = world.join(conn, up.tsih, 1, &[]);
    let (third, _) = world.join(conn, up.tsih, 2, &[]);
    let task = world.command(second);
    world.start(second, &task, &[]);
    let lost = ScsiCommand { cmd_sn: task.cmd_sn.next(), ..world.command(conn) };
    let reset = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conn, &reset, &[]);
    expect_manage(&mut world);
    // A text negotiation that is under way, and one whose turn has not come.
    let text = |itt, immediate, cmd_sn| TextRequest {
        immediate,
        is_final: false,
        continues: false,
        lun: 0,
        itt,
        ttt: Ttt::NONE,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &text(Itt(801), true, lost.cmd_sn), b"InitiatorAlias=me\0");
    world.expect::<TextResponse>(conn);
    world.send(conn, &text(Itt(802), false, lost.cmd_sn.plus(2)), &[]);
    // A logout that waits for a task, and one whose turn has not come.
    let logout = |itt, immediate, cmd_sn| LogoutRequest {
        immediate,
        reason: LogoutReason::CloseConnection,
        itt,
        cid: 1,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(second, &logout(Itt(803), true, lost.cmd_sn), &[]);
    world.send(third, &logout(Itt(804), false, lost.cmd_sn.plus(3)), &[]);
    for itt in [reset.itt, Itt(801), Itt(802), Itt(803), Itt(804)] {
        for function in [TmfFunction::ABORT_TASK, TmfFunction::TASK_REASSIGN] {
            let named = TmfRequest {
                referenced_task_tag: itt,
                ref_cmd_sn: lost.cmd_sn,
                cmd_sn: lost.cmd_sn.plus(1),
                ..world.manage(conn, function)
            };
            world.send(conn, &named, &[]);
            expect_result(&mut world, conn, TmfResult::REJECTED);
        }
    }
    world.expect_silence(conn);
    // The number that the requests named is still missing.
    world.start(conn, &lost, &[]);
}

#[test]
fn abort_task_of_a_command_that_never_came_fills_its_number() {
    //= rfc7143#section-7.11
    //= type=test
    //# If the abort request is received and the original command is missing, targets MUST consider the
    //# original command with that RefCmdSN as received and issue a task management response with the response
    //# code "Function complete".
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let lost = world.command(conn);
    let late = ScsiCommand { cmd_sn: CmdSn(101), itt: Itt(70), ..lost };
    world.send(conn, &late, &[]);
    let abort = TmfRequest { cmd_sn: CmdSn(102), ..abort_task(&mut world, conn, &lost) };
    world.send(conn, &abort, &[]);
    expect_result(&mut world, conn, TmfResult::COMPLETE);
    world.expect_command();
    // A number that is outside the window, or not before the request's own, names no task.
    for ref_cmd_sn in [50, 102, 103, 5000] {
        let abort = TmfRequest { ref_cmd_sn: CmdSn(ref_cmd_sn), ..abort };
        world.send(conn, &abort, &[]);
        expect_result(&mut world, conn, TmfResult::NO_TASK);
    }
    world.expect_silence(conn);
}

#[test]
fn a_failed_task_that_waits_for_data_can_be_aborted() {
    let mut world = World::new();
    let (conn, _) = world.login(&["InitialR2T=Yes"]);
    let command = ScsiCommand { is_final: false, ..world.write(conn, 8192) };
    world.issue(conn, &command, &[]);
    world.expect_silence(conn);
    let abort = abort_task(&mut world, conn, &command);
    world.send(conn, &abort, &[]);
    expect_result(&mut world, conn, TmfResult::COMPLETE);
    world.expect_silence(conn);
}

#[test]
fn requests_that_concern_many_tasks_go_up_when_all_their_commands_are_there() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# The initiator and target MUST ensure that the SCSI task management functions specified
    //# in [SAM2] act in accordance with the [SAM2] specification.
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# b) MUST wait (concurrent with the wait in Step a) for all commands of the affected
    //# tasks to be received based on the CmdSN ordering.
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# c) MUST propagate the TMF Request to, and receive the response from, the target SCSI
    //# layer.
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# a) MUST wait for all commands of the affected tasks to be received based on the CmdSN
    //# ordering on the issuing session.
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# b) MUST propagate the TMF Request to, and receive the response from, the target SCSI
    //# layer.
    for (function, plugs) in [
        (TmfFunction::ABORT_TASK_SET, false),
        (TmfFunction::CLEAR_TASK_SET, false),
        (TmfFunction::LOGICAL_UNIT_RESET, false),
        (TmfFunction::TARGET_WARM_RESET, true),
        (TmfFunction::TARGET_COLD_RESET, true),
    ] {
        let mut world = World::new();
        let (conn, _) = world.login(&[]);
        let first = world.command(conn);
        let second = ScsiCommand { cmd_sn: CmdSn(101), itt: Itt(71), ..first };
        world.send(conn, &second, &[]);
        let reset = TmfRequest { cmd_sn: CmdSn(102), ..world.manage(conn, function) };
        world.send(conn, &reset, &[]);
        if plugs {
            assert_eq!(world.expect_command().lun, LUN, "what came early is there");
            expect_manage(&mut world);
            // The missing command counts as received; it is ignored when it arrives now.
            world.send(conn, &first, &[]);
            world.expect_silence(conn);
        } else {
            world.expect_silence(conn);
            world.send(conn, &first, &[]);
            world.expect_command();
            world.expect_command();
            let manage = expect_manage(&mut world);
            answer(&mut world, manage, TmfResult::COMPLETE);
            expect_result(&mut world, conn, TmfResult::COMPLETE);
        }
    }
}

#[test]
fn a_reset_waits_for_the_data_of_the_tasks_that_it_ends() {
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# All iSCSI implementations MUST support the protocol behavior defined in this section
    //# as the default behavior.
    let mut world = World::with(Limits { fence_within: Duration::from_secs(1), ..Limits::default() }, keys());
    let keys = ["MaxOutstandingR2T=1", "MaxBurstLength=4096", "FirstBurstLength=512"];
    let (conn, _) = world.login(&keys);
    let command = world.write(conn, 8192);
    let task = world.start(conn, &command, &[]).task;
    world.fetch(task, 0, 4096);
    world.fetch(task, 4096, 4096);
    let r2t: R2t = world.expect(conn);
    let reset = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conn, &reset, &[]);
    // Later commands wait behind the function, whatever their logical unit.
    let other = ScsiCommand { lun: 0, ..world.command(conn) };
    world.issue(conn, &other, &[]);
    world.expect_silence(conn);
    let data = data_out(&command, r2t.ttt, 0, 0, true);
    world.send(conn, &data, &pattern(0, 4096));
    assert_eq!(world.expect_data(task, 0), pattern(0, 4096));
    let manage = expect_manage(&mut world);
    assert_eq!(world.expect_command().lun, 0);
    world.engine.abort(task);
    answer(&mut world, manage, TmfResult::COMPLETE);
    expect_result(&mut world, conn, TmfResult::COMPLETE);
    // The R2T that was held back is never sent, and late data is ignored.
    world.send(conn, &DataOut { buffer_offset: 4096, ..data }, &pattern(4096, 4096));
    world.expect_silence(conn);
}

#[test]
fn a_reset_waits_no_longer_than_it_must_for_a_peer_that_stopped_sending() {
    for fast in [false, true] {
        let mut world =
            World::with(Limits { fence_within: Duration::from_secs(1), ..Limits::default() }, level2());
        let keys: &[&str] = if fast { &["TaskReporting=FastAbort"] } else { &[] };
        let (conn, _) = world.login(keys);
        let command = world.write(conn, 8192);
        let task = world.start(conn, &command, &[]).task;
        world.fetch(task, 0, 8192);
        world.expect::<R2t>(conn);
        let reset = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
        world.send(conn, &reset, &[]);
        if !fast {
            world.expect_silence(conn);
            world.pass(Duration::from_millis(999));
            world.expect_silence(conn);
            world.pass(Duration::from_millis(1));
        }
        expect_manage(&mut world);
        world.expect_silence(conn);
    }
}

#[test]
fn a_response_that_waits_for_data_is_sent_before_the_response_of_the_function_that_ends_its_task() {
    for function in [
        TmfFunction::ABORT_TASK_SET,
        TmfFunction::CLEAR_TASK_SET,
        TmfFunction::LOGICAL_UNIT_RESET,
        TmfFunction::TARGET_WARM_RESET,
    ] {
        for result in [TmfResult::COMPLETE, TmfResult::REJECTED] {
            let mut world = World::new();
            let (conn, _) = world.login(&["MaxOutstandingR2T=1"]);
            let command = world.write(conn, 8192);
            let task = world.start(conn, &command, &[]).task;
            world.fetch(task, 0, 4096);
            let r2t: R2t = world.expect(conn);
            world
                .finish(task, Finish { status: 2, sense: &[0x70], transferable: 0, is_unit_attention: true });
            world.expect_silence(conn);
            let manage = world.manage(conn, function);
            world.send(conn, &manage, &[]);
            let manage = expect_manage(&mut world);
            world.expect_silence(conn);
            // A command that comes after the function waits for its data as usual.
            let later = ScsiCommand { itt: Itt(900), ..world.write(conn, 8192) };
            let other = world.start(conn, &later, &[]).task;
            world.fetch(other, 0, 4096);
            let later_r2t: R2t = world.expect(conn);
            world.finish(
                other,
                Finish { status: 2, sense: &[0x70], transferable: 0, is_unit_attention: false },
            );
            answer(&mut world, manage, result);
            let data = data_out(&command, r2t.ttt, 0, 0, true);
            if result == TmfResult::COMPLETE {
                assert_eq!(world.expect::<ScsiResponse>(conn).itt, command.itt);
                expect_result(&mut world, conn, result);
                // Its data is ignored.
                world.send(conn, &data, &pattern(0, 4096));
            } else {
                expect_result(&mut world, conn, result);
                world.expect_silence(conn);
                world.send(conn, &data, &pattern(0, 4096));
                assert_eq!(world.expect::<ScsiResponse>(conn).itt, command.itt);
            }
            world.expect_silence(conn);
            // Its tag is free.
            let again = ScsiCommand { itt: command.itt, ..world.command(conn) };
            world.start(conn, &again, &[]);
            world.send(conn, &data_out(&later, later_r2t.ttt, 0, 0, true), &pattern(0, 4096));
            assert_eq!(world.expect::<ScsiResponse>(conn).itt, later.itt);
        }
    }
}

#[test]
fn abort_task_does_not_lose_a_condition_that_waits_for_data() {
    for (is_unit_attention, code) in [(true, 0x70), (false, 0x71), (false, 0xf3), (false, 0xf0)] {
        let mut world = World::new();
        let (conn, _) = world.login(&[]);
        let command = world.write(conn, 8192);
        let task = world.start(conn, &command, &[]).task;
        world.fetch(task, 0, 4096);
        world.expect::<R2t>(conn);
        world.finish(task, Finish { status: 2, sense: &[code], transferable: 0, is_unit_attention });
        let abort = abort_task(&mut world, conn, &command);
        world.send(conn, &abort, &[]);
        if code != 0xf0 {
            assert_eq!(world.expect::<ScsiResponse>(conn).itt, command.itt);
            expect_result(&mut world, conn, TmfResult::NO_TASK);
        } else {
            expect_result(&mut world, conn, TmfResult::COMPLETE);
        }
        world.expect_silence(conn);
    }
}

#[test]
fn other_units_go_on_once_a_reset_has_passed() {
    let mut world = World::new();
    let (conn, _) = world.login(&["MaxOutstandingR2T=1"]);
    let mut tasks = Vec::new();
    for lun in [LUN, 0] {
        let command = ScsiCommand { lun, ..world.write(conn, 8192) };
        tasks.push((command, world.start(conn, &command, &[]).task));
    }
    world.fetch(tasks[0].1, 0, 8192);
    world.expect::<R2t>(conn);
    let reset = world.manage(conn, TmfFunction::ABORT_TASK_SET);
    world.send(conn, &reset, &[]);
    world.fetch(tasks[1].1, 0, 8192);
    world.expect_silence(conn);
    world.pass(Duration::from_secs(1));
    expect_manage(&mut world);
    assert_eq!(world.expect::<R2t>(conn).itt, tasks[1].0.itt);
}

#[test]
fn tasks_go_on_that_a_refused_reset_leaves_alone() {
    let mut world = World::new();
    let (conn, _) = world.login(&["MaxOutstandingR2T=2", "MaxBurstLength=4096", "FirstBurstLength=512"]);
    let command = world.write(conn, 8192);
    let task = world.start(conn, &command, &[]).task;
    world.fetch(task, 0, 4096);
    world.expect::<R2t>(conn);
    let reset = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conn, &reset, &[]);
    world.fetch(task, 4096, 4096);
    world.pass(Duration::from_secs(1));
    let manage = expect_manage(&mut world);
    world.expect_silence(conn);
    answer(&mut world, manage, TmfResult::NOT_SUPPORTED);
    assert_eq!(world.expect::<R2t>(conn).buffer_offset, 4096);
    expect_result(&mut world, conn, TmfResult::NOT_SUPPORTED);
    world.expect_silence(conn);
}

#[test]
fn what_is_queued_of_an_aborted_task_is_not_sent() {
    use base::buffer::Bytes;
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let command = world.read(conn, 512);
    let task = world.start(conn, &command, &[]).task;
    world.engine.data_in(task, 0, Bytes::copied_from(&pattern(0, 512)).into());
    world.engine.abort(task);
    world.drain();
    world.expect_silence(conn);
    assert_eq!(world.engine.sessions().next().unwrap().unsent_bytes, 0);
}

#[test]
fn functions_are_refused_that_were_not_agreed_on_or_do_not_exist() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# For all these functions, the Task Management Function Response MUST be returned as detailed in Section
    //# 11.6.
    for (function, level, result) in [
        (TmfFunction::TASK_REASSIGN, 2, TmfResult::NO_REASSIGNMENT),
        (TmfFunction(0), 2, TmfResult::NOT_SUPPORTED),
        (TmfFunction(13), 2, TmfResult::NOT_SUPPORTED),
        (TmfFunction::QUERY_TASK, 1, TmfResult::NOT_SUPPORTED),
        (TmfFunction::QUERY_TASK_SET, 1, TmfResult::NOT_SUPPORTED),
        (TmfFunction::I_T_NEXUS_RESET, 1, TmfResult::NOT_SUPPORTED),
        (TmfFunction::QUERY_ASYNCHRONOUS_EVENT, 1, TmfResult::NOT_SUPPORTED),
        // There is no such task.
        (TmfFunction::QUERY_TASK, 2, TmfResult::COMPLETE),
    ] {
        let mut world = World::new();
        let keys: &[&str] = if level == 2 { &["iSCSIProtocolLevel=2"] } else { &[] };
        let (conn, _) = world.login(keys);
        let tmf = world.manage(conn, function);
        world.send(conn, &tmf, &[]);
        expect_result(&mut world, conn, result);
        world.expect_silence(conn);
    }
}

#[test]
fn the_functions_of_rfc_7144_go_up_if_agreed_on() {
    let mut world = World::new();
    let (conn, _) = world.login(&["iSCSIProtocolLevel=2"]);
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    for function in [
        TmfFunction::QUERY_TASK,
        TmfFunction::QUERY_TASK_SET,
        TmfFunction::I_T_NEXUS_RESET,
        TmfFunction::QUERY_ASYNCHRONOUS_EVENT,
        TmfFunction::CLEAR_ACA,
    ] {
        let tmf = TmfRequest { referenced_task_tag: command.itt, ..world.manage(conn, function) };
        world.send(conn, &tmf, &[]);
        let manage = expect_manage(&mut world);
        assert_eq!(manage.function, function);
        assert_eq!(manage.task, (function == TmfFunction::QUERY_TASK).then_some(task));
        answer(&mut world, manage, TmfResult::SUCCEEDED);
        expect_result(&mut world, conn, TmfResult::SUCCEEDED);
    }
}

#[test]
fn requests_keep_to_tags_numbers_and_limits() {
    let mut world = World::with(Limits { immediate_max: 2, ..Limits::default() }, keys());
    let (conn, _) = world.login(&[]);
    let command = world.command(conn);
    world.start(conn, &command, &[]);
    let tmf = world.manage(conn, TmfFunction::CLEAR_ACA);
    for (bad, reason) in [
        (TmfRequest { itt: Itt::NONE, ..tmf }, RejectReason::INVALID_PDU_FIELD),
        (TmfRequest { itt: command.itt, ..tmf }, RejectReason::TASK_IN_PROGRESS),
    ] {
        world.send(conn, &bad, &[]);
        assert_eq!(world.expect::<Reject>(conn).reason, reason);
    }
    world.send(conn, &TmfRequest { immediate: false, cmd_sn: CmdSn(99), ..tmf }, &[]);
    world.expect_silence(conn);
    // A numbered request waits for its turn.
    world.send(conn, &TmfRequest { immediate: false, cmd_sn: CmdSn(102), ..tmf }, &[]);
    world.expect_silence(conn);
    world.send(conn, &ScsiCommand { cmd_sn: CmdSn(101), itt: Itt(70), ..command }, &[]);
    world.expect_command();
    let first = expect_manage(&mut world);
    world.send(conn, &TmfRequest { itt: Itt(71), ..tmf }, &[]);
    expect_manage(&mut world);
    world.send(conn, &TmfRequest { itt: Itt(72), ..tmf }, &[]);
    assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::TOO_MANY_IMMEDIATE);
    // A numbered request beyond the limit is answered in its turn, and the requests after it are executed.
    world.send(conn, &TmfRequest { immediate: false, cmd_sn: CmdSn(103), itt: Itt(74), ..tmf }, &[]);
    expect_result(&mut world, conn, TmfResult::REJECTED);
    world.send(conn, &ScsiCommand { cmd_sn: CmdSn(104), itt: Itt(75), ..command }, &[]);
    world.expect_command();
    answer(&mut world, first, TmfResult::COMPLETE);
    expect_result(&mut world, conn, TmfResult::COMPLETE);
    world.send(conn, &TmfRequest { itt: Itt(73), ..tmf }, &[]);
    expect_manage(&mut world);
    // A result for a session that has ended is ignored.
    world.hang_up(conn, base::state_machine::DisconnectReason::Closed);
    world.engine.finish_tmf(first.tmf, TmfResult::COMPLETE);
    world.drain();
}

#[test]
fn fast_abort_reports_aborted_tasks_on_the_other_connections_of_the_session() {
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# d) MUST send an Asynchronous Message PDU with AsyncEvent=5 (Section 11.9) on:
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# If there are multiple affected LUs (say, due to a target reset), then one Async Message PDU MUST be
    //# sent for each such LU on each connection that has at least one allegiant affected task.
    let mut world = World::with(Limits::default(), KeyPolicy { max_connections: 3, ..level2() });
    let (first, up) = world.login(&["TaskReporting=FastAbort", "MaxConnections=3"]);
    let (second, _) = world.join(first, up.tsih, 1, &[]);
    let (third, _) = world.join(first, up.tsih, 2, &[]);
    // Two units have tasks on the second connection, one has a task on the first, and the third is idle.
    let mut tasks = Vec::new();
    for (at, (conn, lun)) in (0..).zip([(first, LUN), (second, LUN), (second, 0), (second, LUN)]) {
        let command = world.command(conn);
        let command = ScsiCommand { lun, cmd_sn: CmdSn(100).plus(at), ..command };
        tasks.push(world.start(conn, &command, &[]).task);
    }
    let reset = world.manage(first, TmfFunction::TARGET_WARM_RESET);
    world.send(first, &TmfRequest { cmd_sn: CmdSn(104), ..reset }, &[]);
    let manage = expect_manage(&mut world);
    for task in tasks {
        world.engine.abort(task);
    }
    answer(&mut world, manage, TmfResult::COMPLETE);
    for lun in [LUN, 0] {
        let message: AsyncMessage = world.expect(second);
        assert_eq!((message.event, message.lun), (AsyncEventCode::TASKS_TERMINATED, lun));
    }
    // The fence of the response asks both other connections for an acknowledgement.
    for conn in [second, third] {
        world.expect::<NopIn>(conn);
    }
    for conn in [first, second, third] {
        world.expect_silence(conn);
    }
}

#[test]
fn an_abort_that_names_another_unit_than_its_task_is_rejected() {
    //= rfc7143#section-4.2.5.3
    //= type=test
    //# As the Initiator Task Tag is used to identify a task during its execution, the iSCSI initiator and
    //# target MUST verify that all other fields used in task-related PDUs have values that are consistent with
    //# the values used at the task instantiation, based on the Initiator Task Tag (e.g., the LUN used in an
    //# R2T PDU MUST be the same as the one used in the SCSI Command PDU used to instantiate the task).
    let mut world = World::new();
    let (conn, _) = world.login(&["iSCSIProtocolLevel=2"]);
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    let abort = abort_task(&mut world, conn, &command);
    for function in [TmfFunction::ABORT_TASK, TmfFunction::QUERY_TASK] {
        world.send(conn, &TmfRequest { lun: 2 << 48, function, ..abort }, &[]);
        expect_result(&mut world, conn, TmfResult::REJECTED);
        world.expect_silence(conn);
    }
    world.send(conn, &abort, &[]);
    assert_eq!(expect_manage(&mut world).task, Some(task));
}

#[test]
fn each_connection_may_always_have_one_request_and_one_immediate_command() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# An iSCSI target MUST be able to handle at least one immediate task management command and one
    //# immediate non-task-management iSCSI command per connection at any time.
    let limits = Limits { immediate_max: 2, ..Limits::default() };
    let mut world = World::with(limits, KeyPolicy { max_connections: 2, ..keys() });
    let (first, up) = world.login(&["MaxConnections=2"]);
    let (second, _) = world.join(first, up.tsih, 1, &[]);
    let mut open = Vec::new();
    for conn in [first, first] {
        let command = ScsiCommand { immediate: true, ..world.command(conn) };
        open.push(world.start(conn, &command, &[]).task);
    }
    // The commands of one connection refuse neither its own request nor a command of the other one.
    for conn in [first, second] {
        let tmf = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
        world.send(conn, &tmf, &[]);
        expect_manage(&mut world);
    }
    let command = ScsiCommand { immediate: true, ..world.command(second) };
    open.push(world.start(second, &command, &[]).task);
    // A second one of each kind is refused.
    for conn in [first, second] {
        let tmf = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
        world.send(conn, &tmf, &[]);
        assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::TOO_MANY_IMMEDIATE);
        let command = ScsiCommand { immediate: true, ..world.command(conn) };
        world.send(conn, &command, &[]);
        assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::TOO_MANY_IMMEDIATE);
    }
    // When a command of a connection has ended, the connection may have another one.
    world.finish(open.pop().unwrap(), Finish::good(0));
    world.expect::<ScsiResponse>(second);
    let command = ScsiCommand { immediate: true, ..world.command(second) };
    world.start(second, &command, &[]);
}

#[test]
fn sessions_with_fast_abort_are_told_of_tasks_that_others_ended() {
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# The LUN field in the Asynchronous Message PDU MUST be set to match the LUN for each
    //# such LU.
    //= rfc7143#section-4.2.3.5
    //= type=test
    //# When sent, the LUN field in the Asynchronous Message PDU MUST be set to match the LUN
    //# for each such LU.
    //= rfc7143#section-11.9.1
    //= type=test
    //# This value of AsyncEvent, however, MUST NOT be used on an iSCSI session unless the new TaskReporting
    //# text key defined in Section 13.23 was negotiated to FastAbort on the session.
    let mut world = World::with(Limits::default(), level2());
    let (victim, _) = world.login(&["TaskReporting=FastAbort"]);
    let other = world.connect();
    world.login_on(other, 1, &[]);
    let mut tasks = Vec::new();
    for lun in [LUN, LUN, 0] {
        let command = ScsiCommand { lun, ..world.command(victim) };
        tasks.push(world.start(victim, &command, &[]).task);
    }
    let reset = world.manage(other, TmfFunction::LOGICAL_UNIT_RESET);
    world.send(other, &reset, &[]);
    let manage = expect_manage(&mut world);
    for task in &tasks[..2] {
        world.engine.abort(*task);
    }
    answer(&mut world, manage, TmfResult::COMPLETE);
    let message: AsyncMessage = world.expect(victim);
    assert_eq!((message.event, message.lun), (AsyncEventCode::TASKS_TERMINATED, LUN));
    world.expect_silence(victim);
    expect_result(&mut world, other, TmfResult::COMPLETE);
    // No message reports the tasks that the session ends itself.
    let own = TmfRequest { lun: 0, ..world.manage(victim, TmfFunction::ABORT_TASK_SET) };
    world.send(victim, &own, &[]);
    let manage = expect_manage(&mut world);
    world.engine.abort(tasks[2]);
    answer(&mut world, manage, TmfResult::COMPLETE);
    expect_result(&mut world, victim, TmfResult::COMPLETE);
    world.expect_silence(victim);
    assert_eq!(world.ended(victim), None::<Action>);
}

#[test]
fn a_function_is_answered_behind_all_data_of_the_commands_that_ended_before() {
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# d) MUST provide the Response Fence behavior for the TMF Response on the issuing session as specified in
    //# Section 4.2.2.3.2.
    for function in [TmfFunction::LOGICAL_UNIT_RESET, TmfFunction::ABORT_TASK] {
        let mut world = World::new();
        let (conn, _) = world.login(&["MaxBurstLength=8192", "FirstBurstLength=8192"]);
        let command = world.read(conn, 65_536);
        let task = world.start(conn, &command, &[]).task;
        world.stalled.insert(conn);
        world.data_in(task, 0, &pattern(0, 65_536));
        world.finish(task, Finish::good(65_536));
        let request = match function {
            TmfFunction::ABORT_TASK => abort_task(&mut world, conn, &command),
            _ => world.manage(conn, function),
        };
        world.send(conn, &request, &[]);
        if function == TmfFunction::LOGICAL_UNIT_RESET {
            let manage = expect_manage(&mut world);
            answer(&mut world, manage, TmfResult::COMPLETE);
        }
        world.stalled.remove(&conn);
        world.transmit(conn);
        let mut got = 0;
        while got < 65_536 {
            got += world.expect_any(conn).data.len();
        }
        let result = match function {
            TmfFunction::ABORT_TASK => TmfResult::NO_TASK,
            _ => TmfResult::COMPLETE,
        };
        expect_result(&mut world, conn, result);
        world.expect_silence(conn);
    }
}
