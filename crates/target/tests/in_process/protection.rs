//! Units that require more protection than a session or a command has. They are as if they were not there, on
//! every path to them.

use base::units::{Blocks, Lba};
use scsi::copy::results::CopyStatus4;
use scsi::copy::rod::{BlockRange, PopulateToken, RodToken, WriteUsingToken};
use scsi::copy::{copy_in, copy_out};
use security::Level;
use target::nexus::MapEntry;
use transport::task_management::{TmfFunction, TmfResult};

use crate::copies::{NOT_REACHABLE, copy};
use crate::transport::{SessionEnd, TaskEnd};
use crate::world::{BLOCK, CHECK, GOOD, Initiator, NO_LUN, TASK_ABORTED, World, map_at, pattern, read_10};

const LUNS_CHANGED: u16 = 0x3f0e;
const POWER_ON: u16 = 0x2900;
const RESET: u16 = 0x2903;

/// LUN 0 requires nothing, LUN 1 integrity and LUN 2 encryption.
fn three_levels() -> Vec<MapEntry> {
    map_at(&[(0, 0, Level::None), (1, 1, Level::Integrity), (2, 2, Level::Encrypt)])
}

/// Makes three units that require different protection, with a block in each, and a session of each level.
fn world() -> (World, Initiator, Initiator, Initiator) {
    let mut world = World::new(3);
    let [plain, signed, sealed] =
        [(Level::None, "plain"), (Level::Integrity, "signed"), (Level::Encrypt, "sealed")]
            .map(|(level, name)| world.login_at(level, name, three_levels()));
    for (who, luns) in [(plain, 1), (signed, 2), (sealed, 3)] {
        for lun in 0..luns {
            assert_eq!(world.take_attentions(who, lun), [POWER_ON]);
        }
    }
    for lun in 0..3 {
        assert_eq!(world.write(sealed, lun, 0, &pattern(BLOCK, lun.into())).status, GOOD);
    }
    (world, plain, signed, sealed)
}

/// Asserts that a LUN leads an initiator to no unit.
#[track_caller]
fn sees_no_unit(world: &mut World, who: Initiator, lun: u16) {
    for cdb in [&read_10(0, BLOCK)[..], &[0; 6], &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[0x16, 0, 0, 0, 0, 0]]
    {
        assert_eq!(world.run(who, lun, cdb, &[], BLOCK).code(), NO_LUN, "{cdb:02x?}");
    }
    assert_eq!(world.write(who, lun, 0, &pattern(BLOCK, 99)).code(), NO_LUN);
    assert_eq!(world.run(who, lun, &[0x12, 0, 0, 0, 96, 0], &[], 96).data[0], 0x7f);
    assert_eq!(world.manage(who, TmfFunction::LOGICAL_UNIT_RESET, lun), Some(TmfResult::NO_LUN));
    assert_eq!(world.manage(who, TmfFunction::CLEAR_TASK_SET, lun), Some(TmfResult::NO_LUN));
    assert_eq!(world.manage(who, TmfFunction::QUERY_TASK_SET, lun), Some(TmfResult::NO_LUN));
}

/// Returns the LUNs that REPORT LUNS lists at a LUN.
fn listed(world: &mut World, who: Initiator, lun: u16) -> Vec<u8> {
    let answer = world.run(who, lun, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    assert_eq!(answer.status, GOOD);
    answer.data[8..].chunks(8).map(|entry| entry[1]).collect()
}

#[test]
fn a_session_sees_what_its_protection_permits_and_no_more() {
    let (mut world, plain, signed, sealed) = world();
    for (who, luns) in [(plain, &[0][..]), (signed, &[0, 1]), (sealed, &[0, 1, 2])] {
        // LUN 9 does not exist, and LUN 0 does.
        for at in [0, 9] {
            assert_eq!(listed(&mut world, who, at), luns);
        }
        for lun in 0..3 {
            if luns.contains(&u8::try_from(lun).unwrap()) {
                assert_eq!(world.read(who, lun, 0, 1).data, pattern(BLOCK, lun.into()));
            } else {
                sees_no_unit(&mut world, who, lun);
            }
        }
        let entry = world.target.nexus(world.nexus(who)).unwrap();
        assert_eq!((entry.hidden(), entry.withheld().count()), (3 - luns.len(), 0));
    }
    for lun in 0..3 {
        assert_eq!(world.take_attentions(sealed, lun), [0_u16; 0], "no other session reset it");
        assert_eq!(world.read(sealed, lun, 0, 1).data, pattern(BLOCK, lun.into()));
    }
    world.is_settled();
}

#[test]
fn a_copy_reaches_no_unit_above_its_session() {
    let (mut world, plain, signed, sealed) = world();
    for (who, from, to) in [(plain, 2, 0), (plain, 0, 2), (plain, 1, 0), (signed, 2, 1), (signed, 1, 2)] {
        let refused = copy(&mut world, who, 0, from, to);
        assert_eq!((refused.status, refused.code()), (CHECK, NOT_REACHABLE), "from {from} to {to}");
    }
    for medium in 0..3 {
        assert_eq!(world.media[medium].peek(512, BLOCK), [0; BLOCK]);
    }
    assert_eq!(copy(&mut world, signed, 0, 1, 0).status, GOOD);
    assert_eq!(world.media[0].peek(512, BLOCK), pattern(BLOCK, 1));
    assert_eq!(copy(&mut world, sealed, 0, 0, 2).status, GOOD);
    assert_eq!(world.media[2].peek(512, BLOCK), pattern(BLOCK, 0));
    world.is_settled();
}

/// HyperSCSI protects each command by itself, and anyone on the network can forge one without protection.
#[test]
fn a_command_reaches_no_unit_above_itself_in_a_session_that_does() {
    let (mut world, _, _, sealed) = world();
    world.transport_of(sealed).command_level = Some(Level::None);
    for (from, to) in [(2, 0), (0, 2), (1, 0)] {
        assert_eq!(copy(&mut world, sealed, 0, from, to).code(), NOT_REACHABLE, "from {from} to {to}");
    }
    assert_eq!(world.read(sealed, 2, 0, 1).code(), NO_LUN);
    assert_eq!(world.write(sealed, 1, 0, &pattern(BLOCK, 9)).code(), NO_LUN);
    assert_eq!(world.read(sealed, 0, 0, 1).data, pattern(BLOCK, 0));
    world.transport_of(sealed).command_level = Some(Level::Integrity);
    assert_eq!(copy(&mut world, sealed, 0, 2, 0).code(), NOT_REACHABLE);
    assert_eq!(copy(&mut world, sealed, 0, 1, 0).status, GOOD);
    // The list of LUNs is that of the session: its initiator can reach all of them.
    assert_eq!(listed(&mut world, sealed, 0), [0, 1, 2]);
    world.is_settled();
}

fn cdb_of(action: u16, list_id: u32, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[1] = u8::try_from(action).unwrap();
    cdb[6..10].copy_from_slice(&list_id.to_be_bytes());
    cdb[10..14].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
    cdb
}

/// Makes a ROD token of the first block of a LUN.
fn token_of(world: &mut World, who: Initiator, lun: u16) -> RodToken {
    let ranges = vec![BlockRange { lba: Lba(0), blocks: Blocks(1) }];
    let list = PopulateToken { immediate: false, rod_type: None, inactivity_timeout_s: 0, ranges }.to_bytes();
    let made = world.run(who, lun, &cdb_of(copy_out::POPULATE_TOKEN, 1, list.len()), &list, 0);
    assert_eq!(made.status, GOOD, "{made:?}");
    let mut cdb = [0; 16];
    cdb[0] = 0x84;
    cdb[1] = u8::try_from(copy_in::RECEIVE_ROD_TOKEN_INFORMATION).unwrap();
    cdb[2..6].copy_from_slice(&1_u32.to_be_bytes());
    cdb[10..14].copy_from_slice(&4096_u32.to_be_bytes());
    let answer = world.run(who, lun, &cdb, &[], 4096);
    CopyStatus4::parse_with_tokens(&answer.data).unwrap().1[0].clone()
}

#[test]
fn a_token_is_useless_below_the_protection_of_its_unit() {
    let (mut world, plain, signed, sealed) = world();
    for (lun, users) in [(2, &[plain, signed][..]), (1, &[plain])] {
        let token = token_of(&mut world, sealed, lun);
        let using = |token: &RodToken| {
            let ranges = vec![BlockRange { lba: Lba(1), blocks: Blocks(1) }];
            let (immediate, delete_token, offset) = (false, false, Blocks(0));
            WriteUsingToken { immediate, delete_token, offset, token: token.clone(), ranges }.to_bytes()
        };
        let list = using(&token);
        let cdb = cdb_of(copy_out::WRITE_USING_TOKEN, 2, list.len());
        for who in users {
            let refused = world.run(*who, 0, &cdb, &list, 0);
            assert_eq!(refused.status, CHECK, "{refused:?}");
            assert_eq!(world.media[0].peek(512, BLOCK), [0; BLOCK]);
        }
        world.transport_of(sealed).command_level = Some(Level::None);
        assert_eq!(world.run(sealed, 0, &cdb, &list, 0).status, CHECK);
        assert_eq!(world.media[0].peek(512, BLOCK), [0; BLOCK]);
        world.transport_of(sealed).command_level = None;
        assert_eq!(world.run(sealed, 1, &cdb, &list, 0).status, GOOD);
        assert_eq!(world.media[1].peek(512, BLOCK), pattern(BLOCK, lun.into()));
    }
    world.is_settled();
}

#[test]
fn resets_of_the_target_and_of_the_nexus_stop_at_the_protection_of_the_session() {
    let (mut world, plain, signed, sealed) = world();
    for medium in 0..3 {
        world.media[medium].hold();
    }
    let tasks: Vec<_> = (0..3).map(|lun| world.start(sealed, lun, &read_10(0, BLOCK), &[], BLOCK)).collect();
    // It has no tasks, and those of another nexus are not touched.
    assert_eq!(world.manage(plain, TmfFunction::I_T_NEXUS_RESET, 0), Some(TmfResult::COMPLETE));
    let reset = world.start_tmf(plain, TmfFunction::TARGET_WARM_RESET, 0, None);
    world.release(0);
    assert_eq!(world.transport_of(plain).tmf_results.remove(&reset), Some(TmfResult::COMPLETE));
    let end = world.end_of(sealed, tasks[0]);
    assert!(matches!(&end, Some(TaskEnd::Response(aborted)) if aborted.status == TASK_ABORTED), "{end:?}");
    for (lun, medium) in [(1, 1), (2, 2)] {
        assert_eq!(world.end_of(sealed, tasks[usize::from(lun)]), None, "LUN {lun} goes on");
        world.release(medium);
        let answer = world.response(sealed, tasks[usize::from(lun)]);
        assert_eq!(answer.data, pattern(BLOCK, lun.into()));
        assert_eq!(world.take_attentions(sealed, lun), [0_u16; 0]);
    }
    assert_eq!(world.take_attentions(sealed, 0), [RESET]);
    // The sessions that use units above the level of the reset stay open: their end would abort tasks there.
    world.take_attentions(signed, 0);
    assert_eq!(world.manage(plain, TmfFunction::TARGET_COLD_RESET, 0), Some(TmfResult::COMPLETE));
    assert_eq!(world.ended, [(plain, SessionEnd::Closed)]);
    assert_eq!((world.take_attentions(sealed, 0), world.take_attentions(sealed, 1)), (vec![RESET], vec![]));
    assert_eq!(world.take_attentions(signed, 0), [RESET]);
    assert_eq!(world.manage(sealed, TmfFunction::TARGET_COLD_RESET, 0), Some(TmfResult::COMPLETE));
    assert_eq!(world.ended.len(), 3, "the lower ones share their units with it");
    world.is_settled();
}

#[test]
fn registrations_of_other_ports_stay_on_the_unit_of_their_command() {
    let (mut world, plain, _, sealed) = world();
    let register = |spec_i_pt: bool, all_tg_pt: bool| {
        let mut list = vec![0; 24];
        list[15] = 7;
        list[20] = u8::from(spec_i_pt) << 3 | u8::from(all_tg_pt) << 2;
        if spec_i_pt {
            let port = crate::world::port_of("sealed").encode();
            list.extend(u32::try_from(port.len()).unwrap().to_be_bytes());
            list.extend(&port);
        }
        list
    };
    for (spec_i_pt, all_tg_pt) in [(true, false), (false, true)] {
        let list = register(spec_i_pt, all_tg_pt);
        let cdb = [0x5f, 0x06 * u8::from(!spec_i_pt), 0, 0, 0, 0, 0, 0, u8::try_from(list.len()).unwrap(), 0];
        for lun in [1, 2] {
            assert_eq!(world.run(plain, lun, &cdb, &list, 0).code(), NO_LUN);
        }
        let done = world.run(plain, 0, &cdb, &list, 0);
        assert_eq!(done.status, GOOD, "{done:?}");
    }
    let keys = |world: &mut World, lun| {
        world.run(sealed, lun, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[], 255).data[8..].len() / 8
    };
    assert_eq!([0, 1, 2].map(|lun| keys(&mut world, lun)), [2, 0, 0]);
    // The unit that others registered at is still no way around the level: LUN 1 stays absent.
    sees_no_unit(&mut world, plain, 1);
}

#[test]
fn a_policy_that_changes_hides_and_shows_luns_of_running_sessions() {
    let (mut world, plain, signed, sealed) = world();
    world.media[0].hold();
    let task = world.start(plain, 0, &read_10(0, BLOCK), &[], BLOCK);
    let raised = map_at(&[(0, 0, Level::Integrity), (1, 1, Level::None), (2, 2, Level::Encrypt)]);
    for who in [plain, signed, sealed] {
        assert!(world.remap(who, raised.clone()));
    }
    // The commands under way of a LUN that is hidden end as if it had left the map.
    assert_eq!(world.response(plain, task).code(), NO_LUN);
    world.release(0);
    sees_no_unit(&mut world, plain, 0);
    assert_eq!(world.take_attentions(plain, 1), [POWER_ON], "a LUN that it did not see before");
    for who in [signed, sealed] {
        assert_eq!(world.take_attentions(who, 0), [0_u16; 0], "the same LUNs as before");
    }
    let raised = map_at(&[(0, 0, Level::Integrity), (1, 1, Level::None), (2, 2, Level::None)]);
    for who in [plain, signed, sealed] {
        assert!(world.remap(who, raised.clone()));
    }
    assert_eq!(world.take_attentions(plain, 1), [LUNS_CHANGED]);
    assert_eq!((world.take_attentions(plain, 2), listed(&mut world, plain, 1)), (vec![POWER_ON], vec![1, 2]));
    assert_eq!(world.take_attentions(signed, 0), [LUNS_CHANGED]);
    assert_eq!(world.take_attentions(sealed, 0), [0_u16; 0]);
    // A unit that is added under a hidden LUN stays hidden.
    world.remove_unit(0);
    let medium = crate::medium::Held::new(1 << 20);
    world.add_unit(0, Box::new(medium), target::units::DiskId::of_unit(target::units::UnitId(0)));
    sees_no_unit(&mut world, plain, 0);
    assert_eq!(world.take_attentions(sealed, 0).len(), 1);
    world.is_settled();
}

#[test]
fn a_hidden_lun_is_not_bound_to_its_disk() {
    let mut world = World::new(2);
    let plain = world.login_at(Level::None, "plain", map_at(&[(0, 0, Level::None), (1, 1, Level::Encrypt)]));
    world.take_attentions(plain, 0);
    sees_no_unit(&mut world, plain, 1);
    let bound: Vec<_> = world
        .target
        .bindings(base::time::Instant(0))
        .flat_map(|nexus| nexus.luns)
        .map(|(lun, _)| lun)
        .collect();
    assert_eq!(bound, [0]);
    // Another disk there is not withheld later, because the host has never used the first one.
    world.remap(plain, map_at(&[(0, 0, Level::None), (1, 0, Level::None)]));
    assert_eq!(world.target.nexus(world.nexus(plain)).unwrap().withheld().count(), 0);
}
