//! Task management functions, and what other initiators notice of them.

use device::contract::{Access, TaskRules};
use std::collections::BTreeMap;
use transport::task_management::{TmfFunction, TmfResult};

use crate::transport::{SessionEnd, TaskEnd, Ticket};
use crate::world::{
    BLOCK, FIRST, GOOD, Initiator, SECOND, TASK_ABORTED, World, map, map_with, read_10, write_10,
};

const RESET: u16 = 0x2903;
const NEXUS_LOSS: u16 = 0x2907;
const CLEARED: u16 = 0x2f00;

/// Makes two units, of which Alice and Bob both see the first and only Alice the second.
fn two(rules: TaskRules) -> (World, Initiator, Initiator) {
    let mut world = World::with(2, rules, BTreeMap::new());
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    let bob = world.login("bob", map(&[(0, 0)]));
    for (who, lun) in [(alice, 0), (alice, 1), (bob, 0)] {
        world.take_attentions(who, lun);
    }
    (world, alice, bob)
}

/// Starts a read of a medium that holds its operations back.
fn hang(world: &mut World, who: Initiator, lun: u16, medium: usize) -> Ticket {
    world.media[medium].hold();
    world.start(who, lun, &read_10(0, BLOCK), &[], BLOCK)
}

fn result(world: &mut World, who: Initiator, ticket: Ticket) -> Option<TmfResult> {
    world.transport_of(who).tmf_results.remove(&ticket)
}

#[test]
fn abort_task_ends_one_task_of_its_own_initiator() {
    let (mut world, alice, bob) = two(TaskRules::default());
    let [aborted, kept, other] = [alice, alice, bob].map(|who| hang(&mut world, who, 0, 0));
    let abort = world.start_tmf(alice, TmfFunction::ABORT_TASK, 0, Some(aborted));
    // The task has an operation of the medium, and ends with it.
    assert_eq!((result(&mut world, alice, abort), world.end_of(alice, aborted)), (None, None));
    world.release(0);
    assert_eq!(result(&mut world, alice, abort), Some(TmfResult::COMPLETE));
    assert_eq!(world.end_of(alice, aborted), Some(TaskEnd::Aborted));
    assert_eq!(world.response(alice, kept).status, GOOD);
    assert_eq!(world.response(bob, other).status, GOOD);
    let late = world.start_tmf(alice, TmfFunction::ABORT_TASK, 0, Some(aborted));
    assert_eq!(result(&mut world, alice, late), Some(TmfResult::NO_TASK));
    world.is_settled();
}

#[test]
fn an_aborted_write_that_waits_for_its_data_ends_at_once_and_ignores_the_data() {
    let (mut world, alice, _) = two(TaskRules::default());
    world.transport_of(alice).hold_data_out(alice.session, true);
    let write = world.start(alice, 0, &write_10(0, 8 * BLOCK), &[1; 8 * BLOCK], 0);
    let abort = world.start_tmf(alice, TmfFunction::ABORT_TASK, 0, Some(write));
    assert_eq!(result(&mut world, alice, abort), Some(TmfResult::COMPLETE));
    assert_eq!(world.end_of(alice, write), Some(TaskEnd::Aborted));
    world.transport_of(alice).hold_data_out(alice.session, false);
    world.process_pending();
    assert_eq!(world.media[0].peek(0, BLOCK), [0; BLOCK]);
    world.is_settled();
}

#[test]
fn queries_report_what_is_there() {
    let (mut world, alice, bob) = two(TaskRules::default());
    let task = hang(&mut world, alice, 0, 0);
    let query = world.start_tmf(alice, TmfFunction::QUERY_TASK, 0, Some(task));
    assert_eq!(result(&mut world, alice, query), Some(TmfResult::SUCCEEDED));
    assert_eq!(world.manage(alice, TmfFunction::QUERY_TASK_SET, 0), Some(TmfResult::SUCCEEDED));
    assert_eq!(world.manage(alice, TmfFunction::QUERY_TASK_SET, 1), Some(TmfResult::COMPLETE));
    assert_eq!(world.manage(bob, TmfFunction::QUERY_TASK_SET, 0), Some(TmfResult::COMPLETE));
    assert_eq!(world.manage(bob, TmfFunction::QUERY_ASYNCHRONOUS_EVENT, 0), Some(TmfResult::COMPLETE));
    world.release(0);
    assert_eq!(world.response(alice, task).status, GOOD);
    world.remap(bob, map(&[(0, 0), (1, 1)]));
    assert_eq!(world.manage(bob, TmfFunction::QUERY_ASYNCHRONOUS_EVENT, 0), Some(TmfResult::SUCCEEDED));
    assert_eq!(world.manage(alice, TmfFunction::CLEAR_ACA, 0), Some(TmfResult::NOT_SUPPORTED));
    assert_eq!(world.manage(bob, TmfFunction::CLEAR_TASK_SET, 7), Some(TmfResult::NO_LUN));
    world.is_settled();
}

#[test]
fn logical_unit_reset_ends_the_tasks_of_everybody_at_this_unit_only() {
    for (rules, other_end) in [(TaskRules::default(), Some(TASK_ABORTED)), (TaskRules::SHARED, None)] {
        let (mut world, alice, bob) = two(rules);
        let [own, other] = [alice, bob].map(|who| hang(&mut world, who, 0, 0));
        let second = hang(&mut world, alice, 1, 1);
        let reset = world.start_tmf(alice, TmfFunction::LOGICAL_UNIT_RESET, 0, None);
        world.release(0);
        assert_eq!(result(&mut world, alice, reset), Some(TmfResult::COMPLETE));
        assert_eq!(world.end_of(alice, own), Some(TaskEnd::Aborted));
        match other_end {
            Some(status) => assert_eq!(world.response(bob, other).status, status),
            None => assert_eq!(world.end_of(bob, other), Some(TaskEnd::Aborted)),
        }
        assert_eq!(world.end_of(alice, second), None);
        world.release(1);
        assert_eq!(world.response(alice, second).status, GOOD);
        for (who, lun, codes) in [(alice, 0, &[RESET][..]), (bob, 0, &[RESET]), (alice, 1, &[])] {
            assert_eq!(world.take_attentions(who, lun), codes);
        }
        world.is_settled();
    }
}

#[test]
fn clear_task_set_ends_the_tasks_of_the_set() {
    // A task set for each nexus: the tasks of the other initiator stay.
    let (mut world, alice, bob) = two(TaskRules::default());
    let [own, other] = [alice, bob].map(|who| hang(&mut world, who, 0, 0));
    let clear = world.start_tmf(alice, TmfFunction::CLEAR_TASK_SET, 0, None);
    world.release(0);
    assert_eq!(result(&mut world, alice, clear), Some(TmfResult::COMPLETE));
    assert_eq!(world.end_of(alice, own), Some(TaskEnd::Aborted));
    assert_eq!(world.response(bob, other).status, GOOD);
    assert_eq!(world.take_attentions(bob, 0), [0_u16; 0]);
    world.is_settled();
    // One task set for all.
    let (mut world, alice, bob) = two(TaskRules::SHARED);
    let [own, other] = [alice, bob].map(|who| hang(&mut world, who, 0, 0));
    let clear = world.start_tmf(alice, TmfFunction::CLEAR_TASK_SET, 0, None);
    world.release(0);
    assert_eq!(result(&mut world, alice, clear), Some(TmfResult::COMPLETE));
    for (who, ticket) in [(alice, own), (bob, other)] {
        assert_eq!(world.end_of(who, ticket), Some(TaskEnd::Aborted));
    }
    assert_eq!(world.take_attentions(bob, 0), [CLEARED]);
    assert_eq!(world.take_attentions(alice, 0), [0_u16; 0]);
    world.is_settled();
}

#[test]
fn nexus_reset_ends_the_tasks_of_its_initiator_at_all_units_and_no_session() {
    let (mut world, alice, bob) = two(TaskRules::default());
    let own = [(0, 0), (1, 1)].map(|(lun, medium)| hang(&mut world, alice, lun, medium));
    let other = hang(&mut world, bob, 0, 0);
    let reset = world.start_tmf(alice, TmfFunction::I_T_NEXUS_RESET, 0, None);
    world.release(0);
    assert_eq!(result(&mut world, alice, reset), None, "the second unit has not answered");
    world.release(1);
    assert_eq!(result(&mut world, alice, reset), Some(TmfResult::COMPLETE));
    assert_eq!(own.map(|ticket| world.end_of(alice, ticket)), [const { Some(TaskEnd::Aborted) }; 2]);
    assert_eq!(world.response(bob, other).status, GOOD);
    for lun in [0, 1] {
        assert_eq!(world.take_attentions(alice, lun), [NEXUS_LOSS]);
    }
    assert_eq!((world.take_attentions(bob, 0), &world.ended[..]), (vec![], &[][..]));
    world.is_settled();
}

#[test]
fn target_cold_reset_closes_the_sessions_of_the_target_that_share_units() {
    let mut world = World::new(3);
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    let bob = world.login("bob", map(&[(5, 1)]));
    let carol = world.login("carol", map(&[(0, 2)]));
    let dave = world.login_over(SECOND, "dave", 0, map(&[(0, 0), (1, 2)]));
    let eve = world.login_over(SECOND, "eve", 1, map(&[(0, 0)]));
    for (who, lun) in [(alice, 0), (alice, 1), (bob, 5), (carol, 0), (dave, 0), (dave, 1), (eve, 0)] {
        world.take_attentions(who, lun);
    }
    let [own, others, sharing] = [(alice, 0, 0), (eve, 0, 0), (dave, 1, 2)]
        .map(|(who, lun, medium)| hang(&mut world, who, lun, medium));
    let unshared = hang(&mut world, carol, 0, 2);
    let reset = world.start_tmf(alice, TmfFunction::TARGET_COLD_RESET, 0, None);
    assert_eq!(world.ended, []);
    world.release(0);
    // The function is answered before its sessions end.
    assert_eq!(result(&mut world, alice, reset), Some(TmfResult::COMPLETE));
    assert_eq!(world.end_of(alice, own), Some(TaskEnd::Aborted));
    let ended = [alice, bob, dave].map(|who| (who, SessionEnd::Closed));
    assert_eq!(world.ended, ended);
    assert_eq!(world.end_of(dave, sharing), Some(TaskEnd::Gone));
    // Another target keeps its sessions, and its initiators learn of the reset of their unit.
    assert_eq!(world.response(eve, others).status, TASK_ABORTED);
    assert_eq!(world.take_attentions(eve, 0), [RESET]);
    world.release(2);
    assert_eq!(world.response(carol, unshared).status, GOOD);
    assert_eq!(world.take_attentions(carol, 0), [0_u16; 0]);
    world.is_settled();
}

#[test]
fn a_reset_of_the_target_needs_write_access_to_all_its_units() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# When authorization fails at the target, the appropriate response as described in
    //# Section 11.6.1 MUST be returned by the target.
    let mut world = World::new(2);
    let alice = world.login("alice", map_with(&[(0, 0, Access::ReadWrite), (1, 1, Access::ReadOnly)]));
    world.take_attentions(alice, 0);
    for function in [TmfFunction::TARGET_WARM_RESET, TmfFunction::TARGET_COLD_RESET] {
        assert_eq!(world.manage(alice, function, 0), Some(TmfResult::NOT_AUTHORIZED));
    }
    assert_eq!(world.manage(alice, TmfFunction::LOGICAL_UNIT_RESET, 1), Some(TmfResult::NOT_AUTHORIZED));
    assert_eq!((world.take_attentions(alice, 0), &world.ended[..]), (vec![], &[][..]));
    // A session that sees no unit resets none, and ends itself.
    let nobody = world.login_over(FIRST, "nobody", 0, vec![]);
    assert_eq!(world.manage(nobody, TmfFunction::TARGET_WARM_RESET, 0), Some(TmfResult::COMPLETE));
    assert_eq!(world.manage(nobody, TmfFunction::TARGET_COLD_RESET, 0), Some(TmfResult::COMPLETE));
    assert_eq!(world.ended, [(nobody, SessionEnd::Closed)]);
    world.is_settled();
}

#[test]
fn functions_of_a_session_that_ends_are_forgotten() {
    let (mut world, alice, bob) = two(TaskRules::default());
    let task = hang(&mut world, alice, 0, 0);
    let other = hang(&mut world, bob, 0, 0);
    let abort = world.start_tmf(alice, TmfFunction::ABORT_TASK, 0, Some(task));
    world.start_tmf(alice, TmfFunction::TARGET_COLD_RESET, 0, None);
    world.end(alice, SessionEnd::Lost);
    let again = world.login("alice", map(&[(0, 0)]));
    world.release(0);
    assert_eq!(result(&mut world, alice, abort), None);
    assert_eq!(world.response(bob, other).status, TASK_ABORTED);
    assert_eq!(world.ended, [(alice, SessionEnd::Lost)], "no session ends with a forgotten function");
    world.take_attentions(again, 0);
    world.is_settled();
}
