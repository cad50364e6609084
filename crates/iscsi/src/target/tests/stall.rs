//! Writers that are slow or send nothing while other sessions wait for memory.

use alloc::vec::Vec;

use base::state_machine::{ConnId, DisconnectReason};
use base::time::Duration;
use transport::status;
use transport::target::{Finish, TaskRef};
use transport::task_management::TmfResult;

use super::data_out::{answer, idle, obey};
use super::erl2::{reassign, release};
use super::world::{World, pattern};
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::{Opcode, PduHeader};
use crate::target::contract::Event;
use crate::target::engine::Limits;

/// Returns an engine with this many bytes for solicited data, and two sessions: one that writes, and one that
/// waits.
fn two_writers(asked: usize, level: u8, more: &[&str]) -> (World, ConnId, ConnId) {
    // The timer for unacknowledged statuses is disabled.
    let limits = Limits { data_out_bytes_max: 2 * asked, ack_within: Duration::MAX, ..Limits::default() };
    let mut world = World::with(limits, super::erl1::policy(level));
    let conns = [1, 2].map(|isid| {
        let conn = world.connect();
        world.login_on(conn, isid, &[&["FirstBurstLength=512"], more].concat());
        conn
    });
    (world, conns[0], conns[1])
}

/// Starts a write. The layer above fetches all its data at once.
fn write(world: &mut World, conn: ConnId, len: u32) -> TaskRef {
    let write = world.write(conn, len);
    let task = world.start(conn, &write, &[]).task;
    world.fetch(task, 0, len);
    task
}

fn r2ts(world: &mut World, conn: ConnId) -> Vec<R2t> {
    let got = core::iter::from_fn(|| world.receive(conn));
    got.filter(|got| got.bhs.opcode() == Opcode::R2T).map(|got| got.read()).collect()
}

/// Returns the tasks whose data was delivered.
fn arrived(world: &mut World) -> Vec<TaskRef> {
    let events = core::mem::take(&mut world.events).into_iter();
    let arrived = events.map(|event| match event {
        Event::DataOut { task, .. } => task,
        other => panic!("{other:?}"),
    });
    arrived.collect()
}

fn expect_nothing_left(world: &mut World, conns: &[ConnId]) {
    for conn in conns {
        world.hang_up(*conn, DisconnectReason::Closed);
    }
    assert_eq!(world.engine.data_bytes(), 0);
}

#[test]
fn who_answers_one_r2t_after_another_keeps_the_memory_of_the_last() {
    // 6 MiB at 10 Mbit/s: the last sequences begin more than 5 s after their R2Ts.
    let (mut world, slow, waiting) = two_writers(12 << 20, 0, &["MaxBurstLength=1048576"]);
    let tasks: Vec<TaskRef> = (0..6).map(|_| write(&mut world, slow, 1 << 20)).collect();
    let asked = r2ts(&mut world, slow);
    assert_eq!(asked.len(), 6);
    write(&mut world, waiting, 12 << 20);
    for r2t in &asked {
        idle(&mut world, &[slow, waiting], 1);
        assert!(r2ts(&mut world, waiting).is_empty(), "the other gets nothing before");
        for part in 0..4 {
            world.send(slow, &answer(r2t, part, part << 18, part == 3), &[0xa5; 1 << 18]);
        }
    }
    assert_eq!(arrived(&mut world), tasks);
    assert!(!r2ts(&mut world, waiting).is_empty());
    assert_eq!(world.engine.stats().data_late, 0);
    expect_nothing_left(&mut world, &[slow, waiting]);
}

#[test]
fn who_lost_its_memory_and_sends_after_all_exceeds_the_budget_by_a_little() {
    // One is small enough to be served in any case, and 16 are as much as a session may exceed the quota by.
    for (count, fails) in [(8, 0), (20, 3)] {
        let (mut world, slow, waiting) = two_writers(4 << 20, 0, &["MaxBurstLength=65536"]);
        let tasks: Vec<TaskRef> = (0..count).map(|_| write(&mut world, slow, 65_536)).collect();
        let asked = r2ts(&mut world, slow);
        assert_eq!(asked.len(), count);
        write(&mut world, waiting, 4 << 20);
        idle(&mut world, &[slow, waiting], 6);
        assert!(!r2ts(&mut world, waiting).is_empty(), "it has all the memory now");
        // All sequences begin before the first one ends.
        for r2t in &asked {
            world.send(slow, &answer(r2t, 0, 0, false), &pattern(r2t.buffer_offset, 32_768));
        }
        let gone = core::mem::take(&mut world.events);
        assert!(gone.iter().all(|event| matches!(event, Event::TaskGone { .. })), "{gone:?}");
        assert_eq!(gone.len(), fails, "more than 1 MiB is too much");
        for r2t in &asked {
            world.send(slow, &answer(r2t, 1, 32_768, true), &pattern(r2t.buffer_offset + 32_768, 32_768));
        }
        assert_eq!(arrived(&mut world), tasks[..count - fails]);
        expect_nothing_left(&mut world, &[slow, waiting]);
    }
}

#[test]
fn who_lost_its_memory_and_sends_after_all_does_so_again_and_again() {
    let (mut world, slow, waiting) = two_writers(4 << 20, 0, &["MaxBurstLength=262144"]);
    let tasks: Vec<TaskRef> = (0..8).map(|_| write(&mut world, slow, 1 << 18)).collect();
    let asked = r2ts(&mut world, slow);
    write(&mut world, waiting, 4 << 20);
    idle(&mut world, &[slow, waiting], 6);
    for r2t in &asked {
        obey(&mut world, slow, r2t);
    }
    assert_eq!(arrived(&mut world), tasks, "2 MiB, one after the other");
    expect_nothing_left(&mut world, &[slow, waiting]);
}

#[test]
fn what_was_not_asked_for_yet_when_its_memory_was_lost_is_asked_for_when_there_is_some() {
    for queued in [false, true] {
        let r2ts_open = if queued { "MaxOutstandingR2T=2" } else { "MaxOutstandingR2T=1" };
        let (mut world, slow, waiting) = two_writers(4 << 20, 0, &["MaxBurstLength=262144", r2ts_open]);
        let command = world.write(slow, 1 << 19);
        let task = world.start(slow, &command, &[]).task;
        world.fetch(task, 0, 1 << 18);
        let first = r2ts(&mut world, slow);
        assert_eq!(first.len(), 1);
        // The second R2T waits for the first, or for the initiator to read.
        world.stalled.insert(slow);
        world.fetch(task, 1 << 18, 1 << 18);
        write(&mut world, waiting, 4 << 20);
        idle(&mut world, &[slow, waiting], 6);
        world.stalled.remove(&slow);
        world.transmit(slow);
        let mut others = r2ts(&mut world, waiting);
        assert!(!others.is_empty(), "it has all the memory now");
        obey(&mut world, slow, &first[0]);
        assert_eq!(arrived(&mut world), [task]);
        assert!(r2ts(&mut world, slow).is_empty(), "queued {queued}: there is no memory for its answer");
        while let Some(r2t) = others.pop() {
            obey(&mut world, waiting, &r2t);
            others.extend(r2ts(&mut world, waiting));
        }
        let second = r2ts(&mut world, slow);
        assert_eq!(second.len(), 1, "queued {queued}");
        assert_eq!((second[0].buffer_offset, second[0].desired_data_transfer_length), (1 << 18, 1 << 18));
        world.events.clear();
        obey(&mut world, slow, &second[0]);
        assert_eq!(arrived(&mut world), [task]);
        expect_nothing_left(&mut world, &[slow, waiting]);
    }
}

#[test]
fn memory_of_a_command_without_a_connection_is_given_to_others_and_its_reassignment_asks_again() {
    const LEN: u32 = 4 << 20;
    let keys = ["MaxConnections=4", "ErrorRecoveryLevel=2", "FirstBurstLength=512", "MaxBurstLength=262144"];
    for has_some in [false, true] {
        let asked = 4 << 20;
        let limits = Limits { data_out_bytes_max: 2 * asked, ack_within: Duration::MAX, ..Limits::default() };
        let mut world = World::with(limits, super::mcs::several(2));
        let (lost, waiting) = (world.connect(), world.connect());
        let up = world.login_on(lost, 0, &keys);
        world.login_on(waiting, 1, &keys);
        let (other, status) = world.join(lost, up.tsih, 1, &[]);
        assert_eq!(status, 0);
        let command = world.write(lost, LEN);
        let task = world.start(lost, &command, &[]).task;
        world.share_numbers(lost, other);
        world.fetch(task, 0, LEN);
        let first = r2ts(&mut world, lost);
        if has_some {
            world.send(lost, &answer(&first[0], 0, 0, false), &pattern(0, 8192));
        }
        world.hang_up(lost, DisconnectReason::Failed);
        write(&mut world, waiting, LEN);
        idle(&mut world, &[other, waiting], 4);
        assert!(r2ts(&mut world, waiting).is_empty());
        idle(&mut world, &[other, waiting], 4);
        let mut open = r2ts(&mut world, waiting);
        assert!(!open.is_empty(), "it has all the memory now");
        while let Some(r2t) = open.pop() {
            obey(&mut world, waiting, &r2t);
            open.extend(r2ts(&mut world, waiting));
        }
        let events = core::mem::take(&mut world.events);
        let gone = events.iter().any(|event| matches!(event, Event::TaskGone { .. }));
        assert_eq!(gone, has_some, "{events:?}");
        while world.receive(other).is_some() {}
        release(&mut world, other, 0);
        assert_eq!(reassign(&mut world, other, command.itt, 0), TmfResult::COMPLETE);
        if has_some {
            let response: ScsiResponse = world.expect(other);
            assert_eq!((response.itt, response.status), (command.itt, status::CHECK_CONDITION));
        } else {
            let mut open = r2ts(&mut world, other);
            assert!(!open.is_empty(), "{:?} {}", world.engine.stats(), world.engine.data_bytes());
            assert_eq!(open[0].buffer_offset, 0);
            while let Some(r2t) = open.pop() {
                obey(&mut world, other, &r2t);
                open.extend(r2ts(&mut world, other));
            }
            assert_eq!(arrived(&mut world), [task]);
        }
        expect_nothing_left(&mut world, &[waiting]);
    }
}

#[test]
fn memory_that_a_pdu_is_being_read_into_is_not_given_to_others_while_its_task_goes_on() {
    let (mut world, slow, waiting) = two_writers(4 << 20, 0, &["MaxBurstLength=262144"]);
    let task = write(&mut world, slow, 1 << 18);
    let asked = r2ts(&mut world, slow);
    write(&mut world, waiting, 4 << 20);
    // The first PDU stalls halfway.
    let bytes = world.frame(slow, answer(&asked[0], 0, 0, true).encode(), &[], &pattern(0, 1 << 18));
    let (first, rest) = bytes.split_at(1 << 17);
    world.feed(slow, first);
    idle(&mut world, &[waiting], 6);
    assert!(!r2ts(&mut world, waiting).is_empty(), "it has all the memory now");
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    assert_eq!(world.engine.stats().data_late, 1);
    world.feed(slow, rest);
    assert!(world.ended(slow).is_none() && world.events.is_empty());
    expect_nothing_left(&mut world, &[slow, waiting]);
}

#[test]
fn who_only_reads_after_a_write_failed_owes_nothing() {
    for reads in [false, true] {
        let (mut world, slow, waiting) = two_writers(4 << 20, 0, &[]);
        write(&mut world, slow, 65_536);
        let asked = r2ts(&mut world, slow);
        world.send(slow, &answer(&asked[0], 0, 0, false), &pattern(0, 512));
        write(&mut world, waiting, 4 << 20);
        idle(&mut world, &[slow, waiting], 8);
        assert_eq!(world.engine.stats().data_late, 1);
        while let Some(r2t) = r2ts(&mut world, waiting).first() {
            obey(&mut world, waiting, r2t);
        }
        world.events.clear();
        for _ in 0..60 {
            idle(&mut world, &[slow, waiting], 1);
            if reads {
                let read = world.read(slow, 512);
                let task = world.start(slow, &read, &[]).task;
                world.data_in(task, 0, &pattern(0, 512));
                world.finish(task, Finish::good(512));
            }
        }
        assert_eq!(world.ended(slow).is_none(), reads, "reads {reads}");
    }
}

#[test]
fn who_was_passed_over_is_served_although_nothing_else_happens() {
    for level in [0, 1] {
        let erl = alloc::format!("ErrorRecoveryLevel={level}");
        let (mut world, slow, waiting) = two_writers(4 << 20, level, &[&erl]);
        write(&mut world, slow, 65_536);
        let asked = r2ts(&mut world, slow);
        world.send(slow, &answer(&asked[0], 0, 0, false), &pattern(0, 512));
        write(&mut world, waiting, 4 << 20);
        while world.engine.stats().data_late == 0 {
            idle(&mut world, &[slow, waiting], 1);
        }
        while let Some(r2t) = r2ts(&mut world, waiting).first() {
            obey(&mut world, waiting, r2t);
        }
        world.events.clear();
        r2ts(&mut world, slow);
        write(&mut world, slow, 1 << 20);
        assert!(r2ts(&mut world, slow).is_empty(), "level {level}: it is passed over");
        // The driver calls only at deadlines.
        let end = world.now.after(Duration::from_secs(10));
        while let Some(at) = world.engine.poll_timeout().filter(|at| *at <= end) {
            world.now = world.now.max(at);
            world.engine.handle_timeout(at);
            world.drain();
        }
        assert!(!r2ts(&mut world, slow).is_empty(), "level {level}");
    }
}
