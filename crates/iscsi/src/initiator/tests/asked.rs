//! Requests of an owner other than commands, and the acknowledgements of an idle session. The test scripts
//! the target.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::Duration;
use transport::initiator::{
    InitiatorTransport as _, Request, SubmitError, TaskId, TaskResult, TmfId, TmfParameters,
};
use transport::task_management::{TmfFunction, TmfResult};

use super::pair::{LUN, Setup, cdb, pattern, read, write};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::nop_out::NopOut;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, PduHeader, Ttt};

fn abort(task: TaskId) -> TmfParameters {
    TmfParameters { function: TmfFunction::ABORT_TASK, lun: LUN, task: Some(task) }
}

fn managed(raw: &ScriptedTarget, id: TmfId) -> Option<Option<TmfResult>> {
    raw.events.iter().find_map(|event| match event {
        Event::TmfDone { id: of, result } if *of == id => Some(*result),
        _ => None,
    })
}

#[test]
fn a_task_is_aborted_by_its_name_and_number() {
    //= rfc7143#section-11.5.5
    //= type=test
    //# For an ABORT TASK of a task created by a non-immediate command, the RefCmdSN MUST be set to the CmdSN
    //# of the task identified by the Referenced Task Tag field.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, read(0, 512));
    let (other, second) = raw.start(conn, read(8, 512));
    let id = raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.drain();
    let request: TmfRequest = raw.expect(conn);
    assert_eq!((request.function, request.lun), (TmfFunction::ABORT_TASK, LUN));
    assert_eq!((request.referenced_task_tag, request.ref_cmd_sn), (command.itt, command.cmd_sn));
    let sn = raw.next_sn(conn);
    raw.send(conn, &TmfResponse { response: TmfResult::COMPLETE, itt: request.itt, sn }, &[]);
    assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
    assert_eq!(managed(&raw, id), Some(Some(TmfResult::COMPLETE)));
    // No other task is affected, and the aborted task's tag is free.
    let pdu = raw.data_in(conn, second.itt, 0, 0);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &pattern(1, 512));
    assert!(raw.outcome(other).end.is_good());
    assert_eq!(raw.session.submit_tmf(raw.now, abort(task)), Err(SubmitError::NoTask));
}

#[test]
fn an_immediate_task_is_aborted_under_the_number_of_the_request() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# If an ABORT TASK is issued for a task created by an immediate command, then the RefCmdSN MUST be that
    //# of the task management request itself (i.e., the CmdSN and RefCmdSN are equal); otherwise, the RefCmdSN
    //# MUST be set to the CmdSN of the task to be aborted (lower than the CmdSN).
    //= rfc7143#section-11.5.5
    //= type=test
    //# If an ABORT TASK is issued for a task created by an immediate command, then the RefCmdSN MUST be that
    //# of the task management request itself (i.e., the CmdSN and RefCmdSN are equal).
    for level in [0, 1] {
        let (mut raw, conn) = ScriptedTarget::level(level, &[]);
        let task = raw.session.submit(raw.now, Request { immediate: true, ..read(0, 512) }).unwrap();
        raw.drain();
        let command: crate::pdu::scsi_command::ScsiCommand = raw.expect(conn);
        let (later, numbered) = raw.start(conn, read(8, 512));
        for (task, itt, own) in [(task, command.itt, None), (later, numbered.itt, Some(numbered.cmd_sn))] {
            raw.session.submit_tmf(raw.now, abort(task)).unwrap();
            raw.drain();
            let request: TmfRequest = raw.expect(conn);
            assert_eq!(request.referenced_task_tag, itt);
            assert_eq!(request.ref_cmd_sn, own.unwrap_or(request.cmd_sn), "level {level}");
            assert!(request.cmd_sn.after(command.cmd_sn), "the two numbers differ");
        }
    }
}

#[test]
fn a_task_that_never_left_is_aborted_without_a_word_even_while_nobody_is_there() {
    let mut raw = ScriptedTarget::new(Setup::default());
    let task = raw.session.submit(raw.now, read(0, 512)).unwrap();
    let id = raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.drain();
    assert_eq!(raw.outcome(task).end, TaskResult::NotSent);
    assert_eq!(managed(&raw, id), Some(Some(TmfResult::COMPLETE)));
    raw.log_in(ConnId(0), 7, &[]);
    assert!(raw.session.is_up() && raw.receive(ConnId(0)).is_none(), "nothing is left to send");
}

#[test]
fn a_task_that_was_to_be_aborted_is_never_carried_out_again() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, _) = raw.start(conn, Request { replay: true, ..read(0, 512) });
    let (other, _) = raw.start(conn, Request { replay: true, ..read(8, 512) });
    let id = raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.cut(conn);
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
    assert_eq!(managed(&raw, id), Some(None));
    // The other task waits, and it is unknown whether it was executed before.
    let id = raw.session.submit_tmf(raw.now, abort(other)).unwrap();
    raw.drain();
    assert_eq!(raw.outcome(other).end, TaskResult::Lost);
    assert_eq!(managed(&raw, id), Some(Some(TmfResult::COMPLETE)));
    assert_eq!(raw.session.open_tasks(), 0);
}

/// Returns the NOP-Outs that request no answer and answer no ping.
fn acknowledgements(raw: &mut ScriptedTarget, conn: ConnId) -> Vec<NopOut> {
    core::iter::from_fn(|| raw.receive(conn))
        .filter_map(|sent| NopOut::decode(&sent.bhs).ok())
        .filter(|nop| (nop.itt, nop.ttt) == (Itt::NONE, Ttt::NONE))
        .collect()
}

#[test]
fn a_status_that_no_other_pdu_acknowledges_is_acknowledged_by_a_nop() {
    //= rfc7143#section-11.18.1
    //= type=test
    //# The NOP-Out MUST have the Initiator Task Tag set to a valid value only if a response in the form of a
    //# NOP-In is requested (i.e., the NOP-Out is used as a ping request).
    //= rfc7143#section-11.18.1
    //= type=test
    //# Otherwise, the Initiator Task Tag MUST be set to 0xffffffff.
    //= rfc7143#section-11.18.1
    //= type=test
    //# If the Initiator Task Tag contains 0xffffffff, the I bit MUST be set to 1, and the CmdSN is not
    //# advanced after this PDU is sent.
    //= rfc7143#section-11.18.2
    //= type=test
    //# The NOP-Out MUST only have the Target Transfer Tag set if it is issued in response to a NOP-In with a
    //# valid Target Transfer Tag.
    //= rfc7143#section-11.18.2
    //= type=test
    //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let response = raw.response(conn, command.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(task).end.is_good());
    raw.pass(Duration::from_millis(900));
    assert!(acknowledgements(&mut raw, conn).is_empty(), "too early");
    raw.pass(Duration::from_millis(200));
    let [nop] = acknowledgements(&mut raw, conn)[..] else { panic!("one is enough, and one is needed") };
    assert!(nop.immediate && nop.lun == 0);
    assert_eq!((nop.exp_stat_sn, nop.cmd_sn), (response.sn.stat_sn.next(), command.cmd_sn.next()));
    raw.pass(Duration::from_secs(5));
    assert!(acknowledgements(&mut raw, conn).is_empty(), "nothing is new");
    assert_eq!(raw.session.stats().status_acks, 1);
}

#[test]
fn requests_acknowledge_by_themselves() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    for _ in 0..40 {
        let (_, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
        raw.pass(Duration::from_millis(300));
        let response = raw.response(conn, command.itt, 0);
        raw.send(conn, &response, &[]);
        assert!(acknowledgements(&mut raw, conn).is_empty());
    }
    assert_eq!(raw.session.stats().status_acks, 0);
}

#[test]
fn a_status_is_not_acknowledged_before_its_data_is_here_nor_at_level_0() {
    //= rfc7143#section-7.9
    //= type=test
    //# If the initiator wants to recover the missing data for a command, it MUST NOT acknowledge the received
    //# responses that start from the StatSN of the relevant command until it has completed receiving all the
    //# data PDUs of the command.
    //= rfc7143#section-11.7.2
    //= type=test
    //# An initiator also MUST NOT acknowledge the status for the task before those holes are filled.
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let (task, command) = raw.start(conn, read(0, 1024));
    // The second Data-In was received, with the status; the first is missing.
    let pdu = raw.data_in(conn, command.itt, 1, 512);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &pattern(1, 512));
    raw.pass(Duration::from_millis(2500));
    for nop in acknowledgements(&mut raw, conn) {
        assert_eq!(nop.exp_stat_sn, pdu.sn.stat_sn, "it acknowledges data that is not here");
    }
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &pattern(1, 512));
    assert!(raw.outcome(task).end.is_good());
    raw.pass(Duration::from_millis(2500));
    let acknowledged = acknowledgements(&mut raw, conn);
    assert_eq!(acknowledged.last().map(|nop| nop.exp_stat_sn.0), Some(raw.ends[&conn].stat_sn));

    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (_, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let response = raw.response(conn, command.itt, 0);
    raw.send(conn, &response, &[]);
    raw.pass(Duration::from_secs(5));
    assert!(acknowledgements(&mut raw, conn).is_empty(), "the target keeps nothing");
}

/// A task management function of another initiator ends tasks of this session, and no more of their data is
/// sent.
#[test]
fn tasks_that_a_target_terminated_end_and_are_acknowledged_with_their_unit() {
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# c) MUST respond to each Async Message PDU with a Task Termination AsyncEvent (5) as
    //# defined in Section 11.9.
    //= rfc7143#section-4.2.3.5
    //= type=test
    //# If the third-party affected session is a FastAbort session and the issuing session is
    //# a FastAbort session, the initiator in the third-party role MUST respond to each Async
    //# Message PDU with AsyncEvent=5 as defined in Section 11.9.
    //= rfc7143#section-11.9.1
    //= type=test
    //# The receiving initiator iSCSI layer MUST respond to this message by taking the following steps, in
    //# order:
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, write(0, 1, &pattern(0, 100_000)));
    let (other, _) = raw.start(conn, Request { lun: 2 << 48, ..read(8, 512) });
    while raw.receive(conn).is_some() {}
    let asked = raw.r2t(conn, command.itt, 0, 65_536, 8192);
    let message = AsyncMessage {
        lun: LUN,
        sn: raw.next_sn(conn),
        event: AsyncEventCode::TASKS_TERMINATED,
        vendor_code: 0,
        parameter1: 0,
        parameter2: 0,
        parameter3: 0,
    };
    raw.send(conn, &message, &[]);
    assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
    let pdu: NopOut = raw.expect(conn);
    assert_eq!((pdu.itt, pdu.ttt, pdu.lun, pdu.immediate), (Itt::NONE, Ttt::NONE, LUN, true));
    assert!(!pdu.exp_stat_sn.before(message.sn.stat_sn.next()), "it acknowledges the message");
    raw.send(conn, &asked, &[]);
    assert!(raw.receive(conn).is_none(), "its data goes nowhere");
    assert!(
        raw.session.is_up()
            && !raw.events.iter().any(|event| matches!(event, Event::Done { task, .. } if *task == other))
    );
}

#[test]
fn immediate_requests_carry_the_current_number_and_take_none() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# they MUST also carry the current CmdSN.
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# The CmdSN MUST NOT advance after a command marked for immediate delivery is sent.
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, first) = raw.start(conn, read(0, 512));
    let next = first.cmd_sn.next();
    raw.session.submit(raw.now, Request { immediate: true, ..read(8, 512) }).unwrap();
    raw.session.submit_tmf(raw.now, abort(task)).unwrap();
    raw.drain();
    let second: crate::pdu::scsi_command::ScsiCommand = raw.expect(conn);
    assert_eq!((second.immediate, second.cmd_sn), (true, next));
    let third: TmfRequest = raw.expect(conn);
    assert_eq!((third.immediate, third.cmd_sn), (true, next));
    let (_, fourth) = raw.start(conn, read(16, 512));
    assert_eq!((fourth.immediate, fourth.cmd_sn), (false, next));
}

#[test]
fn an_r2t_is_answered_although_its_task_is_to_end() {
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# a) MUST continue to respond to each TTT received for the affected tasks.
    let (mut raw, conn) = ScriptedTarget::level(0, &["InitialR2T=Yes", "ImmediateData=No"]);
    let (task, command) = raw.start(conn, write(0, 1, &[9; 512]));
    let reset = TmfParameters { function: TmfFunction::LOGICAL_UNIT_RESET, lun: LUN, task: None };
    raw.session.submit_tmf(raw.now, reset).unwrap();
    raw.drain();
    let request: TmfRequest = raw.expect(conn);
    let r2t = raw.r2t(conn, command.itt, 0, 0, 512);
    raw.send(conn, &r2t, &[]);
    assert_eq!(raw.expect_any(conn).data, [9; 512]);
    let sn = raw.next_sn(conn);
    raw.send(conn, &TmfResponse { response: TmfResult::COMPLETE, itt: request.itt, sn }, &[]);
    assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
}

/// With FastAbort, no data of tasks that are to end follows the request. If the target refuses the request,
/// the data follows the refusal.
#[test]
fn fast_abort_stops_the_data_of_tasks_that_are_to_end() {
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# a) MUST NOT send any more Data-Out PDUs for affected tasks on the issuing connection of
    //# the issuing iSCSI session once the TMF is sent to the target.
    for (result, stops) in [(TmfResult::COMPLETE, true), (TmfResult::NOT_SUPPORTED, false)] {
        let mut setup = Setup::default();
        setup.plan.keys.task_reporting = &["FastAbort"];
        let keys = ["InitialR2T=Yes", "ImmediateData=No", "MaxOutstandingR2T=2", "TaskReporting=FastAbort"];
        let (mut raw, conn) = ScriptedTarget::up(setup, &keys);
        let (task, command) = raw.start(conn, write(0, 1, &pattern(1, 1024)));
        let (_, other) = raw.start(conn, Request { lun: 2 << 48, ..write(8, 2, &[8; 512]) });
        let reset = TmfParameters { function: TmfFunction::LOGICAL_UNIT_RESET, lun: LUN, task: None };
        raw.session.submit_tmf(raw.now, reset).unwrap();
        raw.drain();
        let request: TmfRequest = raw.expect(conn);
        for sn in [0, 1] {
            let r2t = raw.r2t(conn, command.itt, sn, sn * 512, 512);
            raw.send(conn, &r2t, &[]);
            assert!(raw.receive(conn).is_none(), "the task is to end");
        }
        // A task of another unit, and one that was sent after the request, get on.
        let (_, later) = raw.start(conn, write(16, 3, &[7; 512]));
        for (itt, lun, byte) in [(other.itt, 2 << 48, 8), (later.itt, LUN, 7)] {
            let r2t = crate::pdu::r2t::R2t { lun, ..raw.r2t(conn, itt, 0, 0, 512) };
            raw.send(conn, &r2t, &[]);
            assert_eq!(raw.expect_any(conn).data, [byte; 512]);
        }
        let sn = raw.next_sn(conn);
        raw.send(conn, &TmfResponse { response: result, itt: request.itt, sn }, &[]);
        if stops {
            assert_eq!(raw.outcome(task).end, TaskResult::Aborted);
        } else {
            let data: Vec<u8> = [0, 1].into_iter().flat_map(|_| raw.expect_any(conn).data).collect();
            assert_eq!(data, pattern(1, 1024));
        }
        assert!(raw.receive(conn).is_none() && raw.session.is_up());
    }
}

#[test]
fn unsolicited_data_comes_in_the_order_of_the_commands() {
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# the order of the unsolicited data on each connection MUST match the order in which the
    //# commands on that connection are sent.
    let keys =
        ["InitialR2T=No", "ImmediateData=No", "FirstBurstLength=65536", "MaxRecvDataSegmentLength=512"];
    let (mut raw, conn) = ScriptedTarget::level(0, &keys);
    // More than leaves in one batch.
    for id in 1..=16 {
        raw.session.submit(raw.now, write(id * 128, id, &pattern(id.into(), 65536))).unwrap();
    }
    raw.drain();
    let (mut commands, mut data, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(sent) = raw.receive(conn) {
        if sent.bhs.opcode() == crate::pdu::Opcode::DATA_OUT {
            //= rfc7143#section-4.2.5.2
            //= type=test
            //# In addition, iSCSI initiators and targets MUST enforce some ordering rules.
            assert!(commands.contains(&sent.bhs.itt()), "data behind its command");
            data.push(sent.bhs.itt());
        } else {
            commands.push(sent.bhs.itt());
            numbers.push(sent.read::<crate::pdu::scsi_command::ScsiCommand>().cmd_sn.0);
        }
    }
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# On any connection, the iSCSI initiator MUST send the commands in increasing order of CmdSN
    assert_eq!(numbers, (1..=16).collect::<Vec<u32>>());
    data.dedup();
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# but the unsolicited Data-Out PDUs for command N MUST precede the unsolicited Data-Out PDUs
    //# of command N + 1).
    assert_eq!((commands.len(), data), (16, commands));
}
