//! Malicious third-party copy commands: abuse rows CVE-2020-28374 and CVE-2021-3139 (see also `extended`),
//! and row (d), rarely used CDBs.

use alloc::vec;
use alloc::vec::Vec;

use base::rng::Rng;
use base::units::BlockSize;
use scsi::copy::list::Format;
use scsi::copy::rod::{PopulateToken, RodToken, WriteUsingToken};
use scsi::status::Status;

use super::world::{LID4, LID4_IMMEDIATE, MIB_512, World, blocks, cscd, list, range};
use crate::testing::{A, B};

const B512: BlockSize = BlockSize::B512;

/// Valid parameter lists, which the tests damage.
fn lists() -> Vec<(u8, Vec<u8>)> {
    let units = [cscd(0, B512), cscd(1, B512)];
    let steps = [blocks(0, 1, 8, 0, 100), blocks(1, 0, 8, 50, 7)];
    let populate = PopulateToken {
        immediate: false,
        rod_type: None,
        inactivity_timeout_s: 0,
        ranges: vec![range(0, 8), range(100, 8)],
    };
    let write = WriteUsingToken {
        immediate: false,
        delete_token: false,
        offset: base::units::Blocks(0),
        token: RodToken::zeros(),
        ranges: vec![range(0, 8), range(100, 8)],
    };
    vec![
        (0x00, list(Format::Lid1, &units, &steps).to_bytes()),
        (0x01, list(LID4, &units, &steps).to_bytes()),
        (0x01, list(LID4_IMMEDIATE, &units, &steps).to_bytes()),
        (0x10, populate.to_bytes()),
        (0x11, write.to_bytes()),
    ]
}

#[test]
fn damaged_parameter_lists_are_answered_and_reach_nothing_unseen() {
    let mut rng = Rng::from_seed(11);
    let mut world = World::new(&[MIB_512, MIB_512, MIB_512]);
    let hidden = world.fill(&mut rng, 2);
    world.show(B, &[0, 1]);
    let lists = lists();
    for round in 0..6000 {
        let (action, whole) = &lists[usize::try_from(rng.below(5)).unwrap()];
        let mut bytes = whole.clone();
        for _ in 0..rng.below(4) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            let edges = [0, 1, 2, 0x10, 0x7f, 0x80, 0xe4, 0xfe, 0xff];
            bytes[at] = match rng.below(3) {
                0 => edges[usize::try_from(rng.below(9)).unwrap()],
                1 => bytes[at] ^ 1 << rng.below(8),
                _ => u8::try_from(rng.below(256)).unwrap(),
            };
        }
        let sent = usize::try_from(rng.below(bytes.len() as u64 + 1)).unwrap();
        let sent = if rng.chance(3, 4) { bytes.len() } else { sent };
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[9]) = (0x83, *action, 3);
        let announced = if rng.chance(7, 8) { bytes.len() as u64 } else { rng.below(1 << 32) };
        cdb[10..14].copy_from_slice(&u32::try_from(announced).unwrap().to_be_bytes());
        if *action < 2 {
            cdb[9] = 0;
        }
        let key = world.start_with(0, B, &cdb, &bytes[..sent]);
        let reply = world.ended(0, key).unwrap_or_else(|| panic!("round {round}: never answered"));
        assert!([Status::GOOD, Status::CHECK_CONDITION].contains(&reply.status), "round {round}: {reply:?}");
    }
    assert!(world.dump(2) == hidden);
    for unit in 0..3 {
        assert_eq!(world.tasks(unit), 0);
    }
}

#[test]
fn every_service_action_with_any_bits_is_answered() {
    let mut rng = Rng::from_seed(12);
    let mut world = World::new(&[MIB_512]);
    for round in 0..6000 {
        let mut cdb = [0; 16];
        for byte in &mut cdb {
            if rng.chance(1, 3) {
                *byte = u8::try_from(rng.below(256)).unwrap();
            }
        }
        cdb[0] = if rng.chance(1, 2) { 0x83 } else { 0x84 };
        cdb[1] = u8::try_from(rng.below(32)).unwrap();
        cdb[15] = 0;
        let (room, out) = if rng.chance(1, 2) { (rng.below(600), 0) } else { (0, rng.below(600)) };
        let (room, out) = (usize::try_from(room).unwrap(), vec![0xff; usize::try_from(out).unwrap()]);
        let key = world.start(0, A, &cdb, room, out.len());
        world.feed(0, key, &out);
        let reply =
            world.ended(0, key).unwrap_or_else(|| panic!("round {round}: {cdb:02x?} is never answered"));
        assert!(reply.data.len() <= room, "round {round}");
    }
    assert_eq!(world.tasks(0), 0);
    assert_eq!(world.gates[0].writes(), 0);
}

/// A nexus that leaves thousands of operations behind uses no more memory than the full table, and other
/// nexuses can still copy.
#[test]
fn thousands_of_list_identifiers_and_tokens_cost_bounded_memory() {
    let mut world = World::new(&[MIB_512]);
    let populate = PopulateToken {
        immediate: false,
        rod_type: None,
        inactivity_timeout_s: 3600,
        ranges: (0..64).map(|at| range(at * 2, 1)).collect(),
    }
    .to_bytes();
    for list_id in 0..3000_u32 {
        let mut cdb = super::world::out_cdb(0x10, populate.len());
        cdb[6..10].copy_from_slice(&list_id.to_be_bytes());
        world.run(0, A, &cdb, 0, &populate).good();
    }
    let told = world.run(0, B, &super::world::in_cdb(8, 1 << 20), 1 << 20, &[]).good();
    assert_eq!(told.len(), 8 + 96 * 32, "one initiator has a quarter of the table");
    world.ask_lid4(0, A, 7, 2999).good();
    assert_ne!(world.ask_lid4(0, A, 7, 0).status, Status::GOOD);
    world.copy(0, B, &list(LID4, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 1000)])).good();
}
