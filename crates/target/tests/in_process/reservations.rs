//! Persistent reservations between two I_T nexuses, and the state that survives the target.

use device::contract::TaskRules;
use scsi::pr::{BasicList, ReservationKey, ReservationType};
use target::units::DiskId;
use transport::task_management::{TmfFunction, TmfResult};

use crate::transport::{Response, SessionEnd, Ticket};
use crate::world::{BLOCK, CHECK, CONFLICT, GOOD, Initiator, NO_LUN, World, map, pattern};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const ALICE: u64 = 0xa11ce;
const BOB: u64 = 0xb0b;

/// Starts PERSISTENT RESERVE OUT of type Write Exclusive.
fn start(world: &mut World, who: Initiator, action: u8, [key, new]: [u64; 2], persist: bool) -> Ticket {
    let (key, service_action_key) = (ReservationKey(key), ReservationKey(new));
    let list = BasicList { key, service_action_key, persist, ..BasicList::default() }.encode();
    let kind = ReservationType::WriteExclusive.code();
    let len = u8::try_from(list.len()).unwrap();
    world.start(who, 0, &[0x5f, action, kind, 0, 0, 0, 0, 0, len, 0], &list, 0)
}

#[track_caller]
fn reserve(world: &mut World, who: Initiator, action: u8, keys: [u64; 2]) -> Response {
    let ticket = start(world, who, action, keys, false);
    world.response(who, ticket)
}

/// Returns the registered keys, in any order.
fn keys(world: &mut World, who: Initiator) -> Vec<u64> {
    let answer = world.run(who, 0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[], 255);
    assert_eq!(answer.status, GOOD);
    let mut keys: Vec<_> =
        answer.data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect();
    keys.sort_unstable();
    keys
}

fn two(world: &mut World) -> [Initiator; 2] {
    ["alice", "bob"].map(|name| {
        let who = world.login(name, map(&[(0, 0)]));
        world.take_attentions(who, 0);
        who
    })
}

#[test]
fn a_reservation_keeps_the_other_initiator_from_writing_until_it_preempts() {
    let mut world = World::new(1);
    let [alice, bob] = two(&mut world);
    assert_eq!(reserve(&mut world, alice, REGISTER, [0, ALICE]).status, GOOD);
    assert_eq!(reserve(&mut world, alice, RESERVE, [ALICE, 0]).status, GOOD);
    assert_eq!(world.write(bob, 0, 0, &pattern(BLOCK, 2)).status, CONFLICT);
    assert_eq!(world.read(bob, 0, 0, 1).status, GOOD);
    assert_eq!(world.write(alice, 0, 0, &pattern(BLOCK, 1)).status, GOOD);
    // The reservation belongs to the initiator port, not to the session.
    world.end(alice, SessionEnd::Lost);
    assert_eq!(world.write(bob, 0, 0, &pattern(BLOCK, 2)).status, CONFLICT);
    let alice = world.login("alice", map(&[(0, 0)]));
    world.take_attentions(alice, 0);
    assert_eq!(world.write(alice, 0, 0, &pattern(BLOCK, 3)).status, GOOD);
    assert_eq!(reserve(&mut world, bob, PREEMPT, [0, ALICE]).status, CONFLICT, "not registered");
    assert_eq!(reserve(&mut world, bob, REGISTER, [0, BOB]).status, GOOD);
    assert_eq!(keys(&mut world, bob), [BOB, ALICE]);
    assert_eq!(reserve(&mut world, bob, PREEMPT, [BOB, ALICE]).status, GOOD);
    assert_eq!(world.take_attentions(alice, 0), [0x2a05], "REGISTRATIONS PREEMPTED");
    assert_eq!(world.write(alice, 0, 0, &pattern(BLOCK, 4)).status, CONFLICT);
    assert_eq!(world.transport_of(alice).fenced, 0);
    assert_eq!(reserve(&mut world, alice, PREEMPT_AND_ABORT, [ALICE, BOB]).status, CONFLICT);
    assert_eq!(world.transport_of(alice).fenced, 1, "whatever the result");
    assert_eq!(world.write(bob, 0, 0, &pattern(BLOCK, 5)).status, GOOD);
    assert_eq!(world.media[0].peek(0, BLOCK), pattern(BLOCK, 5));
    world.is_settled();
}

#[test]
fn a_persistent_registration_is_stored_before_it_is_answered_and_survives_the_target() {
    let mut world = World::new(1);
    let [alice, bob] = two(&mut world);
    world.holds_saves = true;
    let register = start(&mut world, alice, REGISTER, [0, ALICE], true);
    assert_eq!(world.end_of(alice, register), None);
    let save = world.saves.pop().unwrap();
    assert!(world.saves.is_empty());
    world.store(save);
    assert_eq!(world.response(alice, register).status, GOOD);
    world.holds_saves = false;
    assert_eq!(reserve(&mut world, alice, RESERVE, [ALICE, 0]).status, GOOD);
    assert_eq!(world.write(bob, 0, 0, &pattern(BLOCK, 2)).status, CONFLICT);
    world.is_settled();
    let mut next = World::with(1, TaskRules::default(), world.stored);
    let [alice, bob] = two(&mut next);
    assert_eq!(keys(&mut next, bob), [ALICE]);
    assert_eq!(next.write(bob, 0, 0, &pattern(BLOCK, 2)).status, CONFLICT);
    assert_eq!(next.write(alice, 0, 0, &pattern(BLOCK, 1)).status, GOOD);
    next.is_settled();
}

#[test]
fn a_registration_that_cannot_be_stored_fails() {
    let mut world = World::new(1);
    let [alice, _] = two(&mut world);
    world.holds_saves = true;
    let register = start(&mut world, alice, REGISTER, [0, ALICE], true);
    let save = world.saves.pop().unwrap();
    // An answer to a request of another unit changes nothing.
    world.saved(save.unit, save.ticket ^ 1 << 32, true);
    assert_eq!(world.end_of(alice, register), None);
    world.saved(save.unit, save.ticket, false);
    assert_eq!(world.response(alice, register).status, CHECK);
    while let Some(save) = world.saves.pop() {
        world.store(save);
    }
    world.holds_saves = false;
    assert_eq!(keys(&mut world, alice), [0_u64; 0]);
    world.is_settled();
}

#[test]
fn the_state_of_a_removed_unit_never_reaches_the_unit_that_has_its_number() {
    let mut world = World::new(1);
    let [alice, _] = two(&mut world);
    world.holds_saves = true;
    let register = start(&mut world, alice, REGISTER, [0, ALICE], true);
    let save = world.saves.pop().unwrap();
    world.remove_unit(0);
    let medium = world.media[0].clone();
    world.add_unit(0, Box::new(medium), DiskId::of_unit(save.unit));
    world.take_attentions(alice, 0);
    world.holds_saves = true;
    let again = start(&mut world, alice, REGISTER, [0, BOB], true);
    assert_eq!(world.end_of(alice, again), None);
    world.saved(save.unit, save.ticket, true);
    assert_eq!(world.response(alice, register).code(), NO_LUN);
    assert_eq!(world.end_of(alice, again), None, "its own state is not stored");
    assert!(world.target.poll_removed().is_some());
    let save = world.saves.pop().unwrap();
    world.store(save);
    assert_eq!(world.response(alice, again).status, GOOD);
    assert_eq!(keys(&mut world, alice), [BOB]);
    world.is_settled();
}

/// A task that waits for its state to be stored outlasts the removal of its unit.
#[test]
fn the_task_of_a_removed_unit_can_still_be_aborted_or_lost() {
    for (replaced, is_lost) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new(1);
        let [alice, _] = two(&mut world);
        world.holds_saves = true;
        let register = start(&mut world, alice, REGISTER, [0, ALICE], true);
        let save = world.saves.pop().unwrap();
        world.remove_unit(0);
        if replaced {
            let medium = world.media[0].clone();
            world.add_unit(0, Box::new(medium), DiskId::of_unit(save.unit));
        }
        let query = world.start_tmf(alice, TmfFunction::QUERY_TASK, 0, Some(register));
        assert_eq!(world.transport_of(alice).tmf_results.remove(&query), Some(TmfResult::COMPLETE));
        let abort = world.start_tmf(alice, TmfFunction::ABORT_TASK, 0, Some(register));
        assert_eq!(world.transport_of(alice).tmf_results.remove(&abort), None, "replaced: {replaced}");
        if is_lost {
            world.end(alice, SessionEnd::Lost);
        }
        world.saved(save.unit, save.ticket, true);
        if !is_lost {
            // The task ends before the function is answered, so no response follows that answer.
            assert_eq!(world.response(alice, register).code(), NO_LUN);
            let result = world.transport_of(alice).tmf_results.remove(&abort);
            assert_eq!(result, Some(TmfResult::COMPLETE));
        }
        assert!(world.target.poll_removed().is_some());
        world.is_settled();
    }
}
