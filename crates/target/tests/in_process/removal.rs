//! Units that are removed while initiators use them.

use target::units::{DiskId, UnitId};
use transport::task_management::{TmfFunction, TmfResult};

use crate::medium::Held;
use crate::world::{BLOCK, GOOD, NO_LUN, World, map, pattern, read_10, write_10};

#[test]
fn every_command_of_a_removed_unit_is_answered() {
    let mut world = World::new(2);
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    let bob = world.login("bob", map(&[(0, 0)]));
    for (who, lun) in [(alice, 0), (alice, 1), (bob, 0)] {
        world.take_attentions(who, lun);
    }
    world.media[0].hold();
    let written = world.start(alice, 0, &write_10(0, BLOCK), &[1; BLOCK], 0);
    let read = world.start(bob, 0, &read_10(0, BLOCK), &[], BLOCK);
    world.transport_of(alice).hold_data_out(alice.session, true);
    let fetching = world.start(alice, 0, &write_10(8, 64 * BLOCK), &[2; 64 * BLOCK], 0);
    assert!(world.transport_of(alice).open_fetches(fetching).is_some_and(|open| !open.is_empty()));
    world.remove_unit(0);
    for (who, ticket) in [(alice, written), (bob, read), (alice, fetching)] {
        assert_eq!(world.response(who, ticket).code(), NO_LUN);
    }
    assert_eq!(world.read(bob, 0, 0, 1).code(), NO_LUN);
    assert_eq!(world.read(alice, 1, 0, 1).status, GOOD, "the other unit works");
    assert!(world.target.poll_removed().is_none(), "the medium has two operations");
    world.release(0);
    assert_eq!(world.target.poll_removed().map(|(id, _)| id), Some(UnitId(0)));
    assert!(world.target.poll_removed().is_none());
    assert_eq!(world.media[0].peek(8 * 512, BLOCK), [0; BLOCK], "data that was never fetched");
    world.is_settled();
}

#[test]
fn functions_that_wait_for_a_unit_are_answered_when_it_is_removed() {
    let mut world = World::new(2);
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    world.take_attentions(alice, 0);
    world.media[0].hold();
    let [first, second] = [1, 2].map(|lba| world.start(alice, 0, &read_10(lba, BLOCK), &[], BLOCK));
    let abort = world.start_tmf(alice, TmfFunction::ABORT_TASK, 0, Some(first));
    let reset = world.start_tmf(alice, TmfFunction::TARGET_WARM_RESET, 0, None);
    for waiting in [abort, reset] {
        assert_eq!(world.transport_of(alice).tmf_results.remove(&waiting), None);
    }
    world.remove_unit(0);
    for answered in [abort, reset] {
        assert_eq!(world.transport_of(alice).tmf_results.remove(&answered), Some(TmfResult::COMPLETE));
    }
    let late = world.start_tmf(alice, TmfFunction::ABORT_TASK, 0, Some(second));
    assert_eq!(world.transport_of(alice).tmf_results.remove(&late), Some(TmfResult::NO_TASK));
    for lun in [0, 9] {
        assert_eq!(world.manage(alice, TmfFunction::LOGICAL_UNIT_RESET, lun), Some(TmfResult::NO_LUN));
    }
    assert!(world.target.poll_removed().is_none());
    world.release(0);
    assert!(world.target.poll_removed().is_some());
    world.is_settled();
}

#[test]
fn a_unit_that_takes_the_number_of_one_that_is_still_busy_is_another_one() {
    let mut world = World::new(1);
    let alice = world.login("alice", map(&[(0, 0)]));
    world.take_attentions(alice, 0);
    world.media[0].hold();
    let written = world.start(alice, 0, &write_10(0, BLOCK), &[0x55; BLOCK], 0);
    world.remove_unit(0);
    assert_eq!(world.response(alice, written).code(), NO_LUN);
    let new = Held::new(8 << 20);
    world.add_unit(0, Box::new(new.clone()), DiskId(5));
    assert_eq!(world.read(alice, 0, 0, 1).code(), NO_LUN, "it is another disk");
    let bob = world.login("bob", map(&[(0, 0)]));
    world.take_attentions(bob, 0);
    assert_eq!(world.write(bob, 0, 0, &pattern(BLOCK, 7)).status, GOOD);
    world.release(0);
    assert_eq!(world.target.poll_removed().map(|(id, _)| id), Some(UnitId(0)));
    assert_eq!(world.read(bob, 0, 0, 1).data, pattern(BLOCK, 7));
    assert_eq!(world.media[0].peek(0, BLOCK), [0x55; BLOCK]);
    assert_eq!(new.peek(0, BLOCK), pattern(BLOCK, 7));
    world.is_settled();
}
