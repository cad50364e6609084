//! Commands that wait for memory for their Data-In: what passes them, and what ends them.

use alloc::vec::Vec;

use base::state_machine::{ConnId, DisconnectReason};
use transport::status;
use transport::target::{Command, Finish, TargetTransport, TmfIndication};
use transport::task_management::{TmfFunction, TmfResult};

use super::world::{LUN, World, keys};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::target::contract::Event;
use crate::target::engine::Limits;

/// All memory that one session may use for Data-In.
const ALL: u32 = 1 << 20;

const OTHER: u64 = 2 << 48;

/// Returns a session in which a command of [`LUN`] holds all memory and does not end, and a read of the same
/// logical unit waits.
fn hung(login: &[&str]) -> (World, ConnId, Command, ScsiCommand) {
    let mut world =
        World::with(Limits { unsent_bytes_max: 1 << 20, ..Limits::default() }, super::mcs::several(2));
    let (conn, _) = world.login(login);
    let holder = world.read(conn, ALL);
    let holder = world.start(conn, &holder, &[]);
    let waiting = world.read(conn, 512);
    world.issue(conn, &waiting, &[]);
    assert!(world.next_event().is_none(), "it waits");
    (world, conn, holder, waiting)
}

fn read_other(world: &mut World, conn: ConnId, len: u32) -> ScsiCommand {
    ScsiCommand { lun: OTHER, ..world.read(conn, len) }
}

/// Sends a function, with a command number of its own or as an immediate request.
fn manage(world: &mut World, conn: ConnId, immediate: bool, request: TmfRequest) {
    let request = TmfRequest { immediate, ..request };
    if !immediate {
        world.count(conn);
    }
    world.send(conn, &request, &[]);
}

fn expect_tmf(world: &mut World) -> TmfIndication {
    match world.next_event() {
        Some(Event::Tmf(tmf)) => tmf,
        other => panic!("expected a request, got {other:?}"),
    }
}

fn complete(world: &mut World, conn: ConnId, tmf: TmfIndication) {
    world.engine.finish_tmf(tmf.tmf, TmfResult::COMPLETE);
    world.drain();
    assert_eq!(world.expect::<TmfResponse>(conn).response, TmfResult::COMPLETE);
}

#[test]
fn a_logical_unit_that_answers_nothing_holds_up_no_other() {
    let (mut world, conn, holder, waiting) = hung(&[]);
    let behind = world.command(conn);
    world.issue(conn, &behind, &[]);
    let passes = read_other(&mut world, conn, 256 << 10);
    let mut running = world.start(conn, &passes, &[]).task;
    // The other logical unit goes on with one read at a time, in order.
    for _ in 0..3 {
        let next = read_other(&mut world, conn, 64 << 10);
        world.issue(conn, &next, &[]);
        assert!(world.next_event().is_none(), "its logical unit holds memory beyond the limit");
        world.finish(running, Finish::good(0));
        let up = world.expect_command();
        assert_eq!((up.lun, up.data_in_len), (OTHER, 64 << 10));
        let _: ScsiResponse = world.expect(conn);
        running = up.task;
    }
    // A command that reads nothing needs no memory.
    let silent = ScsiCommand { lun: OTHER, ..world.command(conn) };
    let silent = world.start(conn, &silent, &[]).task;
    world.finish(silent, Finish::good(0));
    // The first logical unit goes on in its order.
    world.finish(holder.task, Finish::good(0));
    let ups = [world.expect_command(), world.expect_command()].map(|up| (up.lun, up.data_in_len));
    assert_eq!(ups, [(LUN, waiting.expected_data_transfer_length), (LUN, 0)]);
    assert!(world.next_event().is_none());
}

#[test]
fn the_logical_units_of_a_session_share_its_memory_in_turns() {
    let (mut world, conn, holder, _) = hung(&[]);
    for _ in 0..3 {
        let read = world.read(conn, 512);
        world.issue(conn, &read, &[]);
        let read = read_other(&mut world, conn, 512);
        world.issue(conn, &read, &[]);
    }
    let first = world.expect_command();
    assert_eq!(first.lun, OTHER);
    world.finish(holder.task, Finish::good(0));
    let order: Vec<u64> = (0..6).map(|_| world.expect_command().lun).collect();
    assert_eq!(order, [LUN, OTHER, LUN, OTHER, LUN, LUN]);
}

#[test]
fn the_memory_beyond_the_limit_of_a_session_is_bounded_whatever_the_number_of_logical_units() {
    let limits = Limits { data_in_bytes_max: 1 << 20, unsent_bytes_max: 512 << 10, ..Limits::default() };
    let mut world = World::with(limits, keys());
    let (conn, _) = world.login(&[]);
    let holder = world.read(conn, 512 << 10);
    world.start(conn, &holder, &[]);
    for lun in 10..40 {
        let len = if lun % 2 == 0 { 64 << 10 } else { 100 << 10 };
        let read = ScsiCommand { lun: lun << 48, ..world.read(conn, len) };
        world.issue(conn, &read, &[]);
        assert!(world.engine.data_bytes() <= 1 << 20);
    }
    assert!(world.engine.data_bytes() > 900 << 10, "all of it is used");
    let mut ups = 0;
    while let Some(Event::Command(up)) = world.next_event() {
        world.finish(up.task, Finish::good(0));
        ups += 1;
    }
    assert_eq!((ups, world.engine.data_bytes()), (30, 512 << 10), "each gets its turn");
}

#[test]
fn a_task_is_aborted_beside_commands_that_wait_for_memory() {
    for immediate in [true, false] {
        let (mut world, conn, holder, waiting) = hung(&["iSCSIProtocolLevel=2"]);
        let last = world.read(conn, 512);
        world.issue(conn, &last, &[]);
        let refer = |world: &mut World, function, task: &ScsiCommand| TmfRequest {
            referenced_task_tag: task.itt,
            ref_cmd_sn: task.cmd_sn,
            ..world.manage(conn, function)
        };
        // The layer above does not know the waiting commands.
        let query = refer(&mut world, TmfFunction::QUERY_TASK, &waiting);
        manage(&mut world, conn, immediate, query);
        assert_eq!(world.expect::<TmfResponse>(conn).response, TmfResult::SUCCEEDED);
        let query = world.manage(conn, TmfFunction::QUERY_TASK_SET);
        manage(&mut world, conn, immediate, query);
        assert_eq!(world.expect::<TmfResponse>(conn).response, TmfResult::SUCCEEDED);
        let abort = refer(&mut world, TmfFunction::ABORT_TASK, &waiting);
        manage(&mut world, conn, immediate, abort);
        assert_eq!(world.expect::<TmfResponse>(conn).response, TmfResult::COMPLETE);
        assert!(world.next_event().is_none());
        // The function on the task that holds the memory passes the command that waits for it.
        let abort = TmfRequest {
            referenced_task_tag: crate::pdu::Itt(waiting.itt.0 - 1),
            ..world.manage(conn, TmfFunction::ABORT_TASK)
        };
        manage(&mut world, conn, immediate, abort);
        let tmf = expect_tmf(&mut world);
        assert_eq!(tmf.task, Some(holder.task));
        world.engine.abort(holder.task);
        complete(&mut world, conn, tmf);
        assert_eq!(world.expect_command().data_in_len, 512, "the last one");
        assert!(world.next_event().is_none(), "the aborted one is never delivered");
        world.expect_silence(conn);
    }
}

#[test]
fn a_function_that_ends_many_tasks_ends_the_commands_that_wait_for_memory() {
    for immediate in [true, false] {
        for function in [
            TmfFunction::ABORT_TASK_SET,
            TmfFunction::CLEAR_TASK_SET,
            TmfFunction::LOGICAL_UNIT_RESET,
            TmfFunction::TARGET_WARM_RESET,
        ] {
            let (mut world, conn, holder, waiting) = hung(&["InitialR2T=No"]);
            // Data is still expected for this command, so its response would have to wait.
            let write = ScsiCommand { is_final: false, ..world.write(conn, 512) };
            world.issue(conn, &write, &[]);
            let read = read_other(&mut world, conn, 512);
            let other = world.start(conn, &read, &[]).task;
            let elsewhere = read_other(&mut world, conn, 1024);
            world.issue(conn, &elsewhere, &[]);
            let reset = world.manage(conn, function);
            manage(&mut world, conn, immediate, reset);
            let tmf = expect_tmf(&mut world);
            let ended: ScsiResponse = world.expect(conn);
            assert_eq!((ended.itt, ended.status), (waiting.itt, status::BUSY));
            if function == TmfFunction::TARGET_WARM_RESET {
                let ended: ScsiResponse = world.expect(conn);
                assert_eq!((ended.itt, ended.status), (elsewhere.itt, status::BUSY));
            }
            world.engine.abort(holder.task);
            complete(&mut world, conn, tmf);
            world.finish(other, Finish::good(0));
            let _: ScsiResponse = world.expect(conn);
            if function != TmfFunction::TARGET_WARM_RESET {
                assert_eq!(world.expect_command().data_in_len, 1024, "others are not affected");
            }
            // The tags are free again.
            for old in [&waiting, &write] {
                let again = ScsiCommand { itt: old.itt, ..world.read(conn, 512) };
                assert_eq!(world.start(conn, &again, &[]).lun, LUN);
            }
            world.expect_silence(conn);
        }
    }
}

#[test]
fn a_command_that_waits_for_memory_outlives_its_connection_at_level_2() {
    let (mut world, conn, holder, waiting) = hung(&["MaxConnections=2", "ErrorRecoveryLevel=2"]);
    let tsih = world.engine.sessions().next().unwrap().tsih;
    let (second, _) = world.join(conn, tsih, 1, &[]);
    world.share_numbers(conn, second);
    world.hang_up(conn, DisconnectReason::Failed);
    assert!(world.next_event().is_none());
    // It keeps its place, and a function finds it.
    let reset = world.manage(second, TmfFunction::ABORT_TASK_SET);
    let behind = world.read(second, 1024);
    world.issue(second, &behind, &[]);
    world.finish(holder.task, Finish::good(0));
    let ups = [world.expect_command(), world.expect_command()].map(|up| up.data_in_len);
    assert_eq!(ups, [waiting.expected_data_transfer_length, 1024]);
    world.send(second, &reset, &[]);
    expect_tmf(&mut world);
}
