//! LUN maps that change, and the disk that an initiator finds under a LUN afterwards.

use device::contract::Access;
use target::units::{DiskId, UnitId};

use crate::medium::Held;
use crate::transport::SessionEnd;
use crate::world::{BLOCK, BUSY, GOOD, Initiator, NO_LUN, World, map, map_with, pattern, read_10, write_10};

const LUNS_CHANGED: u16 = 0x3f0e;
const MODE_PARAMETERS_CHANGED: u16 = 0x2a01;
const POWER_ON: u16 = 0x2900;

/// Makes two disks under LUN 0 and 1, each with a block that Alice wrote, and her session.
fn two() -> (World, Initiator) {
    let mut world = World::new(2);
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    for lun in [0, 1] {
        world.take_attentions(alice, lun);
        assert_eq!(world.write(alice, lun, 0, &pattern(BLOCK, lun.into())).status, GOOD);
    }
    (world, alice)
}

fn withheld(world: &World, who: Initiator) -> Vec<u16> {
    world.target.nexus(world.nexus(who)).unwrap().withheld().collect()
}

#[track_caller]
fn sees_no_unit(world: &mut World, who: Initiator, lun: u16) {
    assert_eq!(world.write(who, lun, 0, &pattern(BLOCK, 99)).code(), NO_LUN);
    assert_eq!(world.read(who, lun, 0, 1).code(), NO_LUN);
    assert_eq!(world.run(who, lun, &[0x12, 0, 0, 0, 96, 0], &[], 96).data[0], 0x7f);
    let luns = world.run(who, lun, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    let listed = luns.data[8..].chunks(8).any(|entry| u16::from(entry[1]) == lun);
    assert!(!listed, "REPORT LUNS lists it");
}

#[test]
fn an_initiator_learns_of_luns_that_come_and_go_at_the_luns_that_stay() {
    let mut world = World::new(3);
    let alice = world.login("alice", map(&[(0, 0)]));
    let bob = world.login("bob", map(&[(0, 0)]));
    for who in [alice, bob] {
        world.take_attentions(who, 0);
    }
    assert!(!world.remap(alice, map(&[(0, 0)])), "nothing changed");
    assert_eq!(world.take_attentions(alice, 0), [0_u16; 0]);
    assert!(world.remap(alice, map(&[(0, 0), (1, 1)])));
    assert_eq!(world.take_attentions(alice, 0), [LUNS_CHANGED]);
    assert_eq!(world.take_attentions(alice, 1), [POWER_ON]);
    assert!(world.remap(alice, map(&[(0, 0)])));
    assert_eq!(world.take_attentions(alice, 0), [LUNS_CHANGED]);
    assert_eq!(world.read(alice, 1, 0, 1).code(), NO_LUN);
    // LUN 2 of no session was used before, and leads to another unit: the others are told of that too.
    world.remap(alice, map(&[(0, 0), (2, 1)]));
    world.take_attentions(alice, 0);
    world.remap(alice, map(&[(0, 0), (2, 2)]));
    assert_eq!(world.take_attentions(alice, 0), [LUNS_CHANGED]);
    // A change of access only is no change of the LUNs.
    world.remap(alice, map_with(&[(0, 0, Access::ReadOnly), (2, 2, Access::ReadWrite)]));
    assert_eq!(world.take_attentions(alice, 0), [MODE_PARAMETERS_CHANGED]);
    assert_eq!(world.take_attentions(bob, 0), [0_u16; 0], "the map of alice");
    world.is_settled();
}

#[test]
fn the_commands_of_a_lun_that_leaves_the_map_are_answered() {
    let (mut world, alice) = two();
    let bob = world.login("bob", map(&[(0, 0)]));
    world.take_attentions(bob, 0);
    world.media[0].hold();
    let read = world.start(alice, 0, &read_10(0, BLOCK), &[], BLOCK);
    let written = world.start(alice, 0, &write_10(4, BLOCK), &[1; BLOCK], 0);
    let other = world.start(bob, 0, &read_10(0, BLOCK), &[], BLOCK);
    world.remap(alice, map(&[(1, 1)]));
    for ticket in [read, written] {
        assert_eq!(world.response(alice, ticket).code(), NO_LUN);
    }
    assert_eq!(world.end_of(bob, other), None);
    world.release(0);
    assert_eq!(world.response(bob, other).data, pattern(BLOCK, 0));
    world.is_settled();
}

#[test]
fn a_lun_that_was_used_never_leads_to_another_disk() {
    let (mut world, alice) = two();
    world.remap(alice, map(&[(0, 1), (1, 0)]));
    assert_eq!(withheld(&world, alice), [0, 1]);
    for lun in [0, 1] {
        sees_no_unit(&mut world, alice, lun);
        assert_eq!(world.media[usize::from(lun)].peek(0, BLOCK), pattern(BLOCK, lun.into()));
    }
    world.remap(alice, map(&[(0, 0), (1, 1)]));
    assert_eq!(withheld(&world, alice), [0_u16; 0]);
    for lun in [0, 1] {
        world.take_attentions(alice, lun);
        assert_eq!(world.read(alice, lun, 0, 1).data, pattern(BLOCK, lun.into()));
    }
    world.is_settled();
}

#[test]
fn a_binding_outlives_the_session_until_the_initiator_logs_out() {
    for why in [SessionEnd::Lost, SessionEnd::Closed] {
        let (mut world, alice) = two();
        world.end(alice, why);
        let again = world.login("alice", map(&[(0, 1)]));
        assert_eq!(withheld(&world, again), [0]);
        sees_no_unit(&mut world, again, 0);
        // Another initiator has used no LUN.
        let bob = world.login("bob", map(&[(0, 1)]));
        world.take_attentions(bob, 0);
        assert_eq!(world.read(bob, 0, 0, 1).data, pattern(BLOCK, 1));
        world.end(again, SessionEnd::LoggedOut);
        let anew = world.login("alice", map(&[(0, 1)]));
        world.take_attentions(anew, 0);
        assert_eq!(world.read(anew, 0, 0, 1).data, pattern(BLOCK, 1), "{why:?}");
        world.is_settled();
    }
}

#[test]
fn a_disk_that_comes_back_is_found_by_its_identifier_and_not_by_its_number() {
    let (mut world, alice) = two();
    world.remove_unit(0);
    assert!(world.target.poll_removed().is_some());
    world.add_unit(0, Box::new(Held::new(8 << 20)), DiskId(77));
    let disk = world.media[0].clone();
    world.add_unit(2, Box::new(disk), DiskId::of_unit(UnitId(0)));
    sees_no_unit(&mut world, alice, 0);
    world.remap(alice, map(&[(0, 2), (1, 1)]));
    world.take_attentions(alice, 0);
    assert_eq!(world.read(alice, 0, 0, 1).data, pattern(BLOCK, 0));
    world.is_settled();
}

#[test]
fn a_unit_whose_medium_comes_late_is_not_ready_until_it_is_added() {
    let (mut world, alice) = two();
    world.end(alice, SessionEnd::Lost);
    world.remove_unit(1);
    assert!(world.target.poll_removed().is_some());
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    assert_eq!(world.run(alice, 1, &[0; 6], &[], 0).code(), (2, 0x0500));
    // She repeats these, so that her file system outlives the time until the medium is there.
    assert_eq!(world.write(alice, 1, 0, &pattern(BLOCK, 99)).status, BUSY);
    assert_eq!(world.read(alice, 1, 0, 1).status, BUSY);
    assert_eq!(world.run(alice, 2, &[0; 6], &[], 0).code(), NO_LUN, "it is not in the map");
    // Another disk than the one that she has used does not take its place.
    world.add_unit(1, Box::new(Held::new(8 << 20)), DiskId(77));
    assert_eq!(withheld(&world, alice), [1]);
    sees_no_unit(&mut world, alice, 1);
    world.remove_unit(1);
    assert!(world.target.poll_removed().is_some());
    let disk = world.media[1].clone();
    world.add_unit(1, Box::new(disk), DiskId::of_unit(UnitId(1)));
    assert_eq!(world.take_attentions(alice, 1), [POWER_ON]);
    assert_eq!(world.read(alice, 1, 0, 1).data, pattern(BLOCK, 1));
    world.is_settled();
}
