//! Two transports whose sessions, tasks and functions have the same numbers at the same time.

use transport::task_management::{TmfFunction, TmfResult};

use crate::transport::{SessionEnd, TaskEnd};
use crate::world::{BLOCK, FIRST, GOOD, Initiator, SECOND, World, map, pattern, read_10, request, write_10};

/// Logs Alice in over the first transport and Bob over the second, each with an own unit under LUN 0 and a
/// shared one under LUN 1.
fn two(world: &mut World) -> [Initiator; 2] {
    let alice = world.login_over(FIRST, "alice", 0, map(&[(0, 0), (1, 2)]));
    let bob = world.login_over(SECOND, "bob", 0, map(&[(0, 1), (1, 2)]));
    assert_eq!(alice.session, bob.session);
    for who in [alice, bob] {
        world.take_attentions(who, 0);
        world.take_attentions(who, 1);
    }
    [alice, bob]
}

#[test]
fn commands_and_data_of_equal_numbers_stay_apart() {
    for lun in [0, 1] {
        let mut world = World::new(3);
        let both = two(&mut world);
        let data = [1, 2].map(|seed| pattern(4096 * BLOCK, seed));
        let mut tickets = vec![];
        for ((who, data), lba) in both.iter().zip(&data).zip([0, 4096]) {
            world.transport_of(*who).hold_data_out(who.session, true);
            tickets.push(world.start(*who, lun, &write_10(lba, data.len()), data, 0));
        }
        let tasks = [0, 1].map(|at| world.transport_of(both[at]).task_of(tickets[at]));
        assert!(tasks[0].is_some() && tasks[0] == tasks[1], "{tasks:?}");
        // The later command receives its data first.
        for at in [1, 0] {
            assert_eq!(world.end_of(both[at], tickets[at]), None);
            world.transport_of(both[at]).hold_data_out(both[at].session, false);
            world.process_pending();
            assert_eq!(world.response(both[at], tickets[at]).status, GOOD);
        }
        for ((who, data), lba) in both.iter().zip(&data).zip([0, 4096]) {
            assert!(world.read(*who, lun, lba, 4096).data == *data);
        }
        world.is_settled();
    }
}

#[test]
fn functions_and_losses_of_equal_numbers_stay_apart() {
    let mut world = World::new(3);
    let [alice, bob] = two(&mut world);
    world.media[2].hold();
    let reads = [alice, bob].map(|who| world.start(who, 1, &read_10(0, BLOCK), &[], BLOCK));
    assert_eq!(reads[0], reads[1]);
    let abort = world.start_tmf(alice, TmfFunction::ABORT_TASK, 1, Some(reads[0]));
    let query = world.start_tmf(bob, TmfFunction::QUERY_TASK, 1, Some(reads[1]));
    assert_eq!(abort, query);
    assert_eq!(world.transport_of(alice).tmf_results.remove(&abort), None);
    assert_eq!(world.transport_of(bob).tmf_results.remove(&query), Some(TmfResult::SUCCEEDED));
    world.release(2);
    assert_eq!(world.transport_of(alice).tmf_results.remove(&abort), Some(TmfResult::COMPLETE));
    assert_eq!(world.end_of(alice, reads[0]), Some(TaskEnd::Aborted));
    assert_eq!(world.response(bob, reads[1]).status, GOOD);
    world.media[2].hold();
    let reads = [alice, bob].map(|who| world.start(who, 1, &read_10(0, BLOCK), &[], BLOCK));
    world.end(bob, SessionEnd::Lost);
    world.release(2);
    assert_eq!(world.response(alice, reads[0]).status, GOOD);
    assert_eq!(world.end_of(bob, reads[1]), Some(TaskEnd::Gone));
    assert_eq!(world.take_attentions(alice, 1), [0_u16; 0]);
    world.is_settled();
}

#[test]
fn a_task_that_has_the_number_of_a_dropped_one_receives_its_data() {
    let mut world = World::new(3);
    let [alice, _] = two(&mut world);
    let data = pattern(8 * BLOCK, 1);
    // One batch of events: a command that its unit ends at once, the loss of its task, and a command for
    // another unit whose task has the same index.
    let transport = world.transports.of(FIRST);
    let old = transport.send_command(alice.session, request(0, &read_10(0, BLOCK), &[], BLOCK));
    let old_task = transport.task_of(old).unwrap();
    transport.clear_tasks(alice.session, 0);
    let write = write_10(0, data.len());
    let new = transport.send_command(alice.session, request(1, &write, &data, 0));
    let new_task = transport.task_of(new).unwrap();
    assert_eq!((new_task.index(), new_task == old_task), (old_task.index(), false));
    world.process_pending();
    assert_eq!(world.end_of(alice, old), Some(TaskEnd::Gone));
    assert_eq!(world.response(alice, new).status, GOOD);
    assert_eq!(world.media[2].peek(0, data.len()), data);
    // The data and the response of the dropped task.
    assert_eq!(world.transports.of(FIRST).ignored, 2);
}
