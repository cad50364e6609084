//! Third-party copies reach exactly the units that the initiator sees (CVE-2020-28374).

use base::units::Lba;
use device::contract::{Access, TaskRules};
use scsi::copy::ListId;
use scsi::copy::cscd::{Cscd, CscdId};
use scsi::copy::list::{CopyList, Format};
use scsi::copy::segment::SegmentAction;

use crate::transport::Response;
use crate::world::{BLOCK, CHECK, GOOD, Initiator, World, map, map_with, pattern, unit_config};

/// COPY TARGET DEVICE NOT REACHABLE, as a sense key and a code.
pub(crate) const NOT_REACHABLE: (u8, u16) = (0xa, 0x0d02);

/// Copies the first block of a unit to the second block of another, by their designators.
pub(crate) fn copy(world: &mut World, who: Initiator, lun: u16, from: u32, to: u32) -> Response {
    let mut list = CopyList::new(Format::Lid1, ListId(1));
    list.cscds = [from, to].map(cscd).to_vec();
    list.push(SegmentAction::Blocks {
        counts_destination: false,
        keep_residual: false,
        source: CscdId(0),
        destination: CscdId(1),
        count: 1,
        source_lba: Lba(0),
        destination_lba: Lba(1),
    });
    let list = list.to_bytes();
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&u32::try_from(list.len()).unwrap().to_be_bytes());
    world.run(who, lun, &cdb, &list, 0)
}

/// Returns the descriptor of a unit by its NAA designator.
fn cscd(unit: u32) -> Cscd {
    Cscd {
        device_type: 0,
        code_set: 1,
        kind: 3,
        association: 0,
        designator: unit_config(unit, TaskRules::default()).identity.naa,
        pad: false,
        block_len: 512,
        null: false,
    }
}

#[test]
fn a_copy_reaches_the_units_of_its_initiator_and_no_other() {
    let mut world = World::new(3);
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    let bob = world.login("bob", map(&[(0, 0), (2, 2)]));
    for (who, lun) in [(alice, 0), (alice, 1), (bob, 0), (bob, 2)] {
        world.take_attentions(who, lun);
    }
    for (who, lun, seed) in [(alice, 0, 0), (alice, 1, 1), (bob, 2, 2)] {
        world.write(who, lun, 0, &pattern(BLOCK, seed));
    }
    let second = |world: &World, medium: usize| world.media[medium].peek(512, BLOCK);
    assert_eq!(copy(&mut world, alice, 0, 0, 1).status, GOOD);
    assert_eq!(second(&world, 1), pattern(BLOCK, 0));
    // The unit that executes the copy need not take part in it.
    assert_eq!(copy(&mut world, alice, 0, 1, 1).status, GOOD);
    assert_eq!(second(&world, 1), pattern(BLOCK, 1));
    for (from, to) in [(0, 1), (1, 0), (1, 2)] {
        let refused = copy(&mut world, bob, 0, from, to);
        assert_eq!((refused.status, refused.code()), (CHECK, NOT_REACHABLE), "from {from} to {to}");
    }
    assert_eq!(second(&world, 0), [0; BLOCK]);
    assert_eq!(second(&world, 1), pattern(BLOCK, 1));
    assert_eq!(second(&world, 2), [0; BLOCK]);
    assert_eq!(copy(&mut world, bob, 2, 2, 0).status, GOOD);
    assert_eq!(second(&world, 0), pattern(BLOCK, 2));
    world.is_settled();
}

#[test]
fn a_copy_has_the_access_of_its_initiator() {
    let mut world = World::new(2);
    let alice = world.login("alice", map_with(&[(0, 0, Access::ReadWrite), (1, 1, Access::ReadOnly)]));
    for lun in [0, 1] {
        world.take_attentions(alice, lun);
    }
    world.write(alice, 0, 0, &pattern(BLOCK, 1));
    assert_eq!(copy(&mut world, alice, 0, 0, 1).status, CHECK);
    assert_eq!(world.media[1].peek(512, BLOCK), [0; BLOCK]);
    assert_eq!(copy(&mut world, alice, 0, 1, 0).status, GOOD);
    world.is_settled();
}

#[test]
fn a_copy_does_not_reach_a_unit_that_is_withheld_or_left_the_map_or_was_removed() {
    let mut world = World::new(3);
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    for lun in [0, 1] {
        world.take_attentions(alice, lun);
    }
    world.write(alice, 0, 0, &pattern(BLOCK, 1));
    world.remap(alice, map(&[(0, 0), (1, 2)]));
    world.take_attentions(alice, 0);
    for to in [1, 2] {
        assert_eq!(copy(&mut world, alice, 0, 0, to).code(), NOT_REACHABLE, "to {to}");
    }
    world.remap(alice, map(&[(0, 0), (1, 1)]));
    for lun in [0, 1] {
        world.take_attentions(alice, lun);
    }
    assert_eq!(copy(&mut world, alice, 0, 0, 1).status, GOOD);
    world.remove_unit(1);
    assert_eq!(copy(&mut world, alice, 0, 0, 1).code(), NOT_REACHABLE);
    assert_eq!(world.media[2].peek(512, BLOCK), [0; BLOCK]);
    world.is_settled();
}
