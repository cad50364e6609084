//! Commands and their data, and which LUNs an initiator sees.

use device::contract::Access;
use scsi::lun::Lun;
use transport::command::CDB_MAX;

use crate::transport::{SessionEnd, TaskEnd};
use crate::world::{BLOCK, CHECK, GOOD, NO_LUN, World, map, map_with, pattern, read_10, write_10};

const POWER_ON: u16 = 0x2900;

#[test]
fn a_new_nexus_receives_a_unit_attention_and_reads_back_what_it_writes() {
    let mut world = World::new(1);
    let alice = world.login("alice", map(&[(0, 0)]));
    assert_eq!(world.take_attentions(alice, 0), [POWER_ON]);
    for (blocks, lba) in [(1, 0), (8, 8), (17, 100), (128, 1000), (1024, 4000), (2048, 6000)] {
        let data = pattern(blocks * BLOCK, lba.into());
        let written = world.write(alice, 0, lba, &data);
        assert_eq!((written.status, written.residual), (GOOD, 0), "{blocks} blocks");
        let read = world.read(alice, 0, lba, blocks);
        assert_eq!((read.status, read.data == data, read.residual), (GOOD, true, 0), "{blocks} blocks");
    }
    assert_eq!(world.read(alice, 0, 15000, 8).data, [0; 8 * BLOCK]);
    world.is_settled();
}

#[test]
fn a_long_write_fetches_its_data_in_several_parts() {
    let mut world = World::new(1);
    let alice = world.login("alice", map(&[(0, 0)]));
    world.take_attentions(alice, 0);
    let data = pattern(8192 * BLOCK, 1);
    world.transport_of(alice).hold_data_out(alice.session, true);
    let ticket = world.start(alice, 0, &write_10(3, data.len()), &data, 0);
    let open = world.transport_of(alice).open_fetches(ticket).unwrap();
    assert!(open.len() > 1, "{open:?}");
    assert_eq!(world.end_of(alice, ticket), None);
    world.transport_of(alice).hold_data_out(alice.session, false);
    world.process_pending();
    assert_eq!(world.response(alice, ticket).status, GOOD);
    assert!(world.media[0].peek(3 * 512, data.len()) == data);
    world.is_settled();
}

#[test]
fn the_residual_counts_what_a_buffer_is_too_short_or_too_long_for() {
    let mut world = World::new(1);
    let alice = world.login("alice", map(&[(0, 0)]));
    world.take_attentions(alice, 0);
    let data = pattern(4 * BLOCK, 1);
    world.write(alice, 0, 0, &data);
    for (room, residual) in [(BLOCK, 3 * 512), (0, 4 * 512), (4 * BLOCK, 0), (6 * BLOCK, -2 * 512)] {
        let read = world.run(alice, 0, &read_10(0, 4 * BLOCK), &[], room);
        assert_eq!((read.status, read.residual), (GOOD, residual), "{room} bytes");
        assert_eq!(read.data, data[..room.min(data.len())], "{room} bytes");
    }
    // The allocation length limits INQUIRY, and a shorter buffer limits it further.
    let inquiry = world.run(alice, 0, &[0x12, 0, 0, 0, 36, 0], &[], 10);
    assert_eq!((inquiry.status, inquiry.data.len(), inquiry.residual), (GOOD, 10, 26));
    let inquiry = world.run(alice, 0, &[0x12, 0, 0, 0, 36, 0], &[], 96);
    assert_eq!((inquiry.status, inquiry.data.len(), inquiry.residual), (GOOD, 36, -60));
    // A write of two blocks from a buffer of three leaves the third alone.
    let written = world.run(alice, 0, &write_10(8, 2 * BLOCK), &data[..3 * BLOCK], 0);
    assert_eq!((written.status, written.residual), (GOOD, -512));
    assert_eq!(world.media[0].peek(8 * 512, 2 * BLOCK), data[..2 * BLOCK]);
    assert_eq!(world.media[0].peek(10 * 512, BLOCK), [0; BLOCK]);
    world.is_settled();
}

#[test]
fn two_initiators_see_their_own_units_under_the_same_lun() {
    let mut world = World::new(3);
    let alice = world.login("alice", map(&[(0, 0), (7, 2)]));
    let bob = world.login("bob", map(&[(0, 1), (300, 2)]));
    for (who, seed) in [(alice, 1), (bob, 2)] {
        world.take_attentions(who, 0);
        assert_eq!(world.write(who, 0, 0, &pattern(BLOCK, seed)).status, GOOD);
    }
    for (who, seed, medium) in [(alice, 1, 0), (bob, 2, 1)] {
        assert_eq!(world.read(who, 0, 0, 1).data, pattern(BLOCK, seed));
        assert_eq!(world.media[medium].peek(0, BLOCK), pattern(BLOCK, seed));
    }
    for (who, numbers) in [(alice, [0, 7]), (bob, [0, 300])] {
        let listed = world.run(who, 0, &REPORT_LUNS, &[], 256);
        assert_eq!(listed.data, luns(&numbers));
    }
    assert_eq!(world.read(alice, 1, 0, 1).code(), NO_LUN, "bob's unit under its number");
    assert_eq!(world.read(bob, 7, 0, 1).code(), NO_LUN, "alice's LUN of the shared unit");
    world.is_settled();
}

#[test]
fn a_lun_outside_the_map_is_described_and_refuses_everything_else() {
    let mut world = World::new(2);
    let alice = world.login("alice", map(&[(1, 0), (7, 0)]));
    // SPC-5 §6.7.2: PERIPHERAL QUALIFIER 011b, PERIPHERAL DEVICE TYPE 1Fh.
    let inquiry = world.run(alice, 0, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!((inquiry.status, inquiry.data[0], inquiry.residual), (GOOD, 0x7f, 0));
    let short = world.run(alice, 0, &[0x12, 0, 0, 0, 96, 0], &[], 5);
    assert_eq!((short.data.len(), short.residual), (5, 91));
    // SPC-5 §6.32: REPORT LUNS lists the same at every LUN.
    assert_eq!(world.run(alice, 0, &REPORT_LUNS, &[], 256).data, luns(&[1, 7]));
    // SPC-5: REQUEST SENSE ends with GOOD and returns the reason as data.
    let sense = world.run(alice, 0, &[0x03, 0, 0, 0, 252, 0], &[], 252);
    assert_eq!((sense.status, sense.data[2], &sense.data[12..14]), (GOOD, 5, &[0x25, 0][..]));
    let test_unit_ready = world.run(alice, 0, &[0; 6], &[], 0);
    let read = world.read(alice, 0, 0, 1);
    let written = world.write(alice, 0, 0, &pattern(BLOCK, 1));
    for response in [test_unit_ready, read, written] {
        assert_eq!((response.status, response.code(), response.data), (CHECK, NO_LUN, vec![]));
    }
    // A unit that another initiator sees, a LUN with two levels, and an unknown operation code.
    assert_eq!(world.read(alice, 2, 0, 1).code(), NO_LUN);
    assert_eq!(world.run(alice, 0, &[0xff; 16], &[], 0).code(), NO_LUN);
    assert_eq!(world.media[0].peek(0, BLOCK), [0; BLOCK]);
    world.is_settled();
}

#[test]
fn a_cdb_of_the_greatest_length_reaches_its_unit() {
    let mut world = World::new(1);
    let alice = world.login("alice", map(&[(0, 0)]));
    world.take_attentions(alice, 0);
    let mut cdb = [0; CDB_MAX];
    (cdb[0], cdb[7]) = (0x7f, 252);
    for (lun, code) in [(0, (5, 0x2000)), (1, NO_LUN)] {
        let refused = world.run(alice, lun, &cdb, &[], 96);
        assert_eq!((refused.status, refused.code()), (CHECK, code), "LUN {lun}");
    }
    world.is_settled();
}

#[test]
fn read_only_access_refuses_writes_and_leaves_reads() {
    let mut world = World::new(1);
    let alice = world.login("alice", map(&[(0, 0)]));
    let bob = world.login("bob", map_with(&[(0, 0, Access::ReadOnly)]));
    for who in [alice, bob] {
        world.take_attentions(who, 0);
    }
    world.write(alice, 0, 0, &pattern(BLOCK, 1));
    let refused = world.write(bob, 0, 0, &pattern(BLOCK, 2));
    assert_eq!((refused.status, refused.code().0), (CHECK, 7), "DATA PROTECT");
    assert_eq!(world.read(bob, 0, 0, 1).data, pattern(BLOCK, 1));
    // A second LUN of the same unit with read-write access: the widest access counts.
    world.remap(bob, map_with(&[(0, 0, Access::ReadOnly), (1, 0, Access::ReadWrite)]));
    world.take_attentions(bob, 0);
    assert_eq!(world.write(bob, 0, 0, &pattern(BLOCK, 2)).status, GOOD);
    world.remap(bob, map_with(&[(0, 0, Access::ReadOnly)]));
    world.take_attentions(bob, 0);
    assert_eq!(world.write(bob, 0, 0, &pattern(BLOCK, 3)).code().0, 7);
    assert_eq!(world.read(alice, 0, 0, 1).data, pattern(BLOCK, 2));
    world.is_settled();
}

#[test]
fn the_commands_of_a_session_that_ends_leave_nothing_behind() {
    for why in [SessionEnd::LoggedOut, SessionEnd::Lost] {
        let mut world = World::new(1);
        let alice = world.login("alice", map(&[(0, 0)]));
        let bob = world.login("bob", map(&[(0, 0)]));
        for who in [alice, bob] {
            world.take_attentions(who, 0);
        }
        world.media[0].hold();
        let read = world.start(alice, 0, &read_10(0, BLOCK), &[], BLOCK);
        world.transport_of(alice).hold_data_out(alice.session, true);
        let write = world.start(alice, 0, &write_10(8, BLOCK), &[1; BLOCK], 0);
        world.end(alice, why);
        assert_eq!(world.ended, [(alice, why)]);
        for ticket in [read, write] {
            assert_eq!(world.end_of(alice, ticket), Some(TaskEnd::Gone));
        }
        assert!(world.target.nexus(world.nexus(alice)).is_none());
        // Another session of the same index receives nothing of the old commands.
        let again = world.login("alice", map(&[(0, 0)]));
        assert_eq!(again.session.index(), alice.session.index());
        world.release(0);
        assert_eq!(world.take_attentions(again, 0), [0x2907], "I_T NEXUS LOSS OCCURRED");
        assert_eq!(world.read(again, 0, 8, 1).data, [0; BLOCK]);
        assert_eq!(world.read(bob, 0, 8, 1).data, [0; BLOCK]);
        world.is_settled();
    }
}

#[test]
fn tasks_that_the_transport_drops_are_reported_to_their_initiator_at_this_lun_only() {
    let mut world = World::new(2);
    let alice = world.login("alice", map(&[(0, 0), (1, 1)]));
    let bob = world.login("bob", map(&[(0, 0)]));
    for (who, lun) in [(alice, 0), (alice, 1), (bob, 0)] {
        world.take_attentions(who, lun);
    }
    world.media[0].hold();
    let dropped = world.start(alice, 0, &read_10(0, BLOCK), &[], BLOCK);
    let other = world.start(bob, 0, &read_10(0, BLOCK), &[], BLOCK);
    world.transport_of(alice).clear_tasks(alice.session, 0);
    world.process_pending();
    assert_eq!(world.end_of(alice, dropped), Some(TaskEnd::Gone));
    world.release(0);
    assert_eq!(world.response(bob, other).status, GOOD);
    assert_eq!(world.take_attentions(alice, 0), [0x477f]);
    assert_eq!(world.take_attentions(alice, 1), [0_u16; 0]);
    assert_eq!(world.take_attentions(bob, 0), [0_u16; 0]);
    world.is_settled();
}

/// REPORT LUNS with an allocation length of 256 bytes.
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

/// Returns the parameter data of REPORT LUNS.
fn luns(numbers: &[u16]) -> Vec<u8> {
    let len = u64::try_from(numbers.len() * 8).unwrap() << 32;
    let luns = numbers.iter().map(|number| Lun::from_number(*number).unwrap().0);
    std::iter::once(len).chain(luns).flat_map(u64::to_be_bytes).collect()
}
