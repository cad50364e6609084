//! LUNs that a reload removes or gives to another disk while initiators use them.

use std::collections::BTreeMap;

use base::state_machine::{MediumId, StreamMachine as _};
use base::time::Duration;
use device::contract::Access;
use device::unit::LogicalUnit;
use iscsi::pdu::logout_request::{LogoutReason, LogoutRequest};
use iscsi::pdu::scsi_response::ScsiResponse;
use iscsi::pdu::tmf_request::TmfRequest;
use iscsi::pdu::tmf_response::TmfResponse;
use iscsi::pdu::{Itt, Opcode, PduHeader as _};
use iscsi::serial::{CmdSn, StatSn};
use shard::admin::ShardEvent;
use shard::config::{InitiatorEntry, LunEntry, ShardConfig};
use store::ram::Ram;
use target::units::{DiskId, UnitId};
use transport::task_management::{TmfFunction, TmfResult};

use crate::medium::held;
use crate::pair::{BLOCK, Initiator, World, config, pattern, ram, unit_config};
use crate::{ALICE, BOB, CHECK, GOOD};

const NO_LUN: (u8, u16) = (5, 0x2500);

pub(crate) fn apply(world: &mut World, config: ShardConfig) {
    world.shard.apply(world.now, config);
    world.drain();
}

fn barred(world: &mut World) -> Vec<(String, u16)> {
    let mut found = Vec::new();
    while let Some(notice) = world.shard.poll_event() {
        if let ShardEvent::LunWithheld { initiator, lun, .. } = notice {
            found.push((initiator, lun));
        }
    }
    found
}

/// Makes two disks under LUN 0 and 1, each with a block that Alice wrote, and her session.
pub(crate) fn two() -> (World, Initiator) {
    let mut world = World::new(config(&[(0, 0), (1, 1)], vec![]), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    for lun in [0, 1] {
        alice.clear_attentions(&mut world, lun);
        assert_eq!(alice.write(&mut world, lun, 0, &pattern(BLOCK, lun), false).status, GOOD);
    }
    (world, alice)
}

/// Reads the first block of a disk as an initiator that has not used it before.
fn look(world: &mut World, lun: u64) -> Vec<u8> {
    let mut bob = Initiator::login(world, BOB, 9);
    bob.clear_attentions(world, lun);
    let data = bob.read(world, lun, 0, 1).data;
    logout(world, &mut bob);
    data
}

pub(crate) fn logout(world: &mut World, who: &mut Initiator) {
    logout_by(world, who, LogoutReason::CloseSession);
}

/// Logs out and expects that the target closes the connection.
pub(crate) fn logout_by(world: &mut World, who: &mut Initiator, reason: LogoutReason) {
    let request = LogoutRequest {
        immediate: true,
        reason,
        itt: Itt(0x7000),
        cid: 0,
        cmd_sn: CmdSn(who.cmd_sn),
        exp_stat_sn: StatSn(who.exp_stat_sn),
    };
    world.send(who.conn, &crate::pair::pdu(request.encode(), &[]));
    assert!(!world.is_open(who.conn));
}

/// Asserts that no command of `who` to `lun` reaches a disk, and that `who` receives the responses for a LUN
/// without a logical unit.
#[track_caller]
pub(crate) fn sees_no_unit(world: &mut World, who: &mut Initiator, lun: u64) {
    assert_eq!(who.write(world, lun, 0, &pattern(BLOCK, 99), false).code(), NO_LUN);
    assert_eq!(who.read(world, lun, 0, 1).code(), NO_LUN);
    let inquiry = who.run(world, lun, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!((inquiry.status, inquiry.data[0]), (GOOD, 0x7f));
    let luns = who.run(world, lun, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    let listed = luns.data[8..].chunks(8).any(|entry| u64::from(entry[1]) == lun);
    assert!(!listed, "REPORT LUNS lists it");
}

fn a_lun_that_was_opened_never_leads_to_another_disk() {
    let (mut world, mut alice) = two();
    apply(&mut world, config(&[(0, 1), (1, 0)], vec![]));
    for lun in [0, 1] {
        sees_no_unit(&mut world, &mut alice, lun);
        assert_eq!(look(&mut world, lun), pattern(BLOCK, 1 - lun), "the other disk is as it was");
    }
    assert_eq!(barred(&mut world), [(ALICE.to_owned(), 0), (ALICE.to_owned(), 1)]);
    apply(&mut world, config(&[(0, 0), (1, 1)], vec![]));
    for lun in [0, 1] {
        alice.clear_attentions(&mut world, lun);
        assert_eq!(alice.read(&mut world, lun, 0, 1).data, pattern(BLOCK, lun), "its own disk works again");
    }
    assert_eq!(barred(&mut world), []);
}

#[test]
fn luns_that_change_places_lead_to_none() {
    a_lun_that_was_opened_never_leads_to_another_disk();
}

#[test]
fn an_access_list_that_gives_a_lun_to_another_disk_is_no_way_around() {
    let own = |unit| {
        let luns = Some(vec![LunEntry::new(0, UnitId(unit), Access::ReadWrite)]);
        vec![InitiatorEntry { pattern: ALICE.into(), luns, auth: None, quota: Default::default() }]
    };
    let mut world = World::new(config(&[], own(0)), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    apply(&mut world, config(&[], own(1)));
    sees_no_unit(&mut world, &mut alice, 0);
}

#[test]
fn a_lun_that_nobody_used_may_mean_another_disk_and_the_others_are_told() {
    let mut world = World::new(config(&[(0, 0), (1, 1)], vec![]), vec![ram(), ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    apply(&mut world, config(&[(0, 0), (1, 2)], vec![]));
    let told = alice.run(&mut world, 0, &[0; 6], &[], 0);
    assert_eq!(told.code(), (6, 0x3f0e));
    alice.clear_attentions(&mut world, 1);
    assert_eq!(alice.write(&mut world, 1, 0, &pattern(BLOCK, 5), false).status, GOOD);
}

#[test]
fn the_luns_that_stay_are_told_of_the_one_that_is_gone() {
    let (mut world, mut alice) = two();
    apply(&mut world, config(&[(0, 0)], vec![]));
    assert_eq!(alice.run(&mut world, 0, &[0; 6], &[], 0).code(), (6, 0x3f0e));
    assert_eq!(alice.read(&mut world, 0, 0, 1).data, pattern(BLOCK, 0));
    assert_eq!(alice.read(&mut world, 1, 0, 1).code(), NO_LUN);
}

/// How a session ends although its initiator has not logged out.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Connection,
    Reinstatement,
    Reload,
}

#[test]
fn a_session_that_comes_back_finds_its_disks_or_none() {
    for loss in [Loss::Connection, Loss::Reinstatement, Loss::Reload] {
        let (mut world, alice) = two();
        match loss {
            Loss::Connection => world.cut(alice.conn),
            Loss::Reinstatement => {}
            Loss::Reload => {
                let only_bob = vec![InitiatorEntry {
                    pattern: BOB.into(),
                    luns: None,
                    auth: None,
                    quota: Default::default(),
                }];
                apply(&mut world, config(&[(0, 0), (1, 1)], only_bob));
                assert!(!world.is_open(alice.conn));
            }
        }
        // One reload removes LUN 0, and another gives LUN 0 to another disk.
        apply(&mut world, config(&[(1, 1)], vec![]));
        world.shard.remove_unit(world.now, UnitId(0));
        assert!(world.shard.poll_removed().is_some());
        apply(&mut world, config(&[(0, 1)], vec![]));
        let mut again = Initiator::login(&mut world, ALICE, 1);
        sees_no_unit(&mut world, &mut again, 0);
        assert_eq!(barred(&mut world).last(), Some(&(ALICE.to_owned(), 0)), "{loss:?}");
        assert_eq!(look(&mut world, 0), pattern(BLOCK, 1), "{loss:?}");
        // Another port of the same initiator has used no LUN.
        let mut other = Initiator::login(&mut world, ALICE, 2);
        other.clear_attentions(&mut world, 0);
        logout(&mut world, &mut again);
        let mut anew = Initiator::login(&mut world, ALICE, 1);
        anew.clear_attentions(&mut world, 0);
        assert_eq!(anew.read(&mut world, 0, 0, 1).data, pattern(BLOCK, 1), "{loss:?}");
    }
}

#[test]
fn a_disk_that_comes_back_is_found_by_its_name_and_not_by_its_number() {
    let (mut world, mut alice) = two();
    apply(&mut world, config(&[(1, 1)], vec![]));
    world.shard.remove_unit(world.now, UnitId(0));
    let (_, old) = world.shard.poll_removed().expect("it has nothing under way");
    drop(old);
    // Another disk gets the unit number, and the disk is added again under another number.
    for (unit, disk) in [(0, DiskId(77)), (2, DiskId::of_unit(UnitId(0)))] {
        let made = LogicalUnit::new(unit_config(unit), Box::new(Ram::new(8 << 20)), None, world.pool.clone());
        assert!(world.shard.add_disk(world.now, UnitId(unit), made.unwrap(), disk));
    }
    apply(&mut world, config(&[(0, 0), (1, 1)], vec![]));
    sees_no_unit(&mut world, &mut alice, 0);
    apply(&mut world, config(&[(0, 2), (1, 1)], vec![]));
    alice.clear_attentions(&mut world, 0);
    assert_eq!(alice.write(&mut world, 0, 0, &pattern(BLOCK, 3), false).status, GOOD);
}

/// Receives PDUs until there are none, and sends the data that R2Ts ask for. Returns the status and
/// additional sense code of each command.
fn answers(
    world: &mut World,
    alice: &mut Initiator,
    outs: &BTreeMap<u32, Vec<u8>>,
) -> BTreeMap<u32, (u8, u16)> {
    let mut ended = BTreeMap::new();
    while let Some((bhs, payload)) = world.receive(alice.conn) {
        match bhs.opcode() {
            Opcode::SCSI_RESPONSE => {
                let response = ScsiResponse::decode(&bhs).unwrap();
                let sense = payload.get(2..).unwrap_or_default();
                let code = sense.get(12..14).map_or(0, |code| u16::from_be_bytes([code[0], code[1]]));
                assert!(ended.insert(response.itt.0, (response.status, code)).is_none(), "answered twice");
                alice.exp_stat_sn = response.sn.stat_sn.0.wrapping_add(1);
            }
            Opcode::R2T => {
                let r2t = iscsi::pdu::r2t::R2t::decode(&bhs).unwrap();
                let from = usize::try_from(r2t.buffer_offset).unwrap();
                let len = usize::try_from(r2t.desired_data_transfer_length).unwrap();
                let data = outs[&r2t.itt.0][from..from + len].to_vec();
                alice.send_data(world, r2t.lun >> 48, r2t.itt, r2t.ttt, from, &data);
            }
            Opcode::NOP_IN => {}
            other => panic!("{other:?}"),
        }
    }
    ended
}

/// Returns how many commands the initiator may send now (the command window).
fn window(world: &mut World, alice: &mut Initiator, lun: u64) -> u32 {
    let itt = alice.start(world, lun, &[0; 6], &[], 0);
    loop {
        let (bhs, _) = world.receive(alice.conn).expect("an answer");
        if bhs.opcode() == Opcode::SCSI_RESPONSE {
            let response = ScsiResponse::decode(&bhs).unwrap();
            assert_eq!(response.itt, itt);
            return response.sn.max_cmd_sn.0.wrapping_sub(alice.cmd_sn).wrapping_add(1);
        }
    }
}

/// Removes LUN 0 several times while writes and reads are under way. Every command ends, and LUN 1 still
/// works.
fn commands_of_a_removed_lun_all_end() {
    let (medium, keeper) = held(8 << 20);
    let mut world = World::new(config(&[(0, 0), (1, 1)], vec![]), vec![medium, ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 1);
    let before = window(&mut world, &mut alice, 1);
    for round in 0..3 {
        alice.clear_attentions(&mut world, 0);
        alice.clear_attentions(&mut world, 1);
        keeper.hold(true);
        let mut outs = BTreeMap::new();
        for block in 0..10_u32 {
            // Writes with R2Ts, writes with immediate data, and reads.
            for (blocks, write) in [(256_u16, true), (8, true), (8, false)] {
                let mut cdb = [if write { 0x2a } else { 0x28 }, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                cdb[2..6].copy_from_slice(&(block * 256).to_be_bytes());
                cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
                let len = usize::from(blocks) * BLOCK;
                let out = if write { pattern(len, round) } else { vec![] };
                let itt = alice.start(&mut world, 0, &cdb, &out, if write { 0 } else { len });
                outs.insert(itt.0, out);
            }
        }
        apply(&mut world, config(&[(1, 1)], vec![]));
        let ended = answers(&mut world, &mut alice, &outs);
        assert_eq!(ended.len(), outs.len(), "round {round}: some command is not answered");
        assert!(ended.values().all(|end| *end == (CHECK, NO_LUN.1)), "{ended:?}");
        alice.clear_attentions(&mut world, 1);
        assert_eq!(window(&mut world, &mut alice, 1), before, "the window is as open as it was");
        assert_eq!(alice.read(&mut world, 1, 0, 1).status, GOOD);
        keeper.hold(false);
        keeper.release_all(&mut world, 0);
        apply(&mut world, config(&[(0, 0), (1, 1)], vec![]));
    }
}

#[test]
fn every_command_of_a_lun_that_goes_is_answered() {
    commands_of_a_removed_lun_all_end();
}

fn manage(world: &mut World, alice: &mut Initiator, function: TmfFunction, lun: u64, task: Itt) -> Itt {
    let itt = Itt(alice.next_itt);
    alice.next_itt += 1;
    let request = TmfRequest {
        immediate: true,
        function,
        lun: lun << 48,
        itt,
        referenced_task_tag: task,
        cmd_sn: CmdSn(alice.cmd_sn),
        exp_stat_sn: StatSn(alice.exp_stat_sn),
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: iscsi::serial::DataSn(0),
    };
    world.send(alice.conn, &crate::pair::pdu(request.encode(), &[]));
    itt
}

fn managed(world: &mut World, alice: &Initiator) -> Vec<(Itt, TmfResult)> {
    let mut found = vec![];
    while let Some((bhs, _)) = world.receive(alice.conn) {
        if bhs.opcode() == Opcode::TMF_RESPONSE {
            let response = TmfResponse::decode(&bhs).unwrap();
            found.push((response.itt, response.response));
        }
    }
    found
}

#[test]
fn functions_that_wait_for_a_unit_are_answered_when_it_goes_and_later_ones_too() {
    let (medium, keeper) = held(8 << 20);
    let mut world = World::new(config(&[(0, 0), (1, 1)], vec![]), vec![medium, ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    keeper.hold(true);
    let read = |lba: u8| [0x28, 0, 0, 0, 0, lba, 0, 0, 1, 0];
    let [first, second] = [1, 2].map(|lba| alice.start(&mut world, 0, &read(lba), &[], BLOCK));
    let abort = manage(&mut world, &mut alice, TmfFunction::ABORT_TASK, 0, first);
    let reset = manage(&mut world, &mut alice, TmfFunction::TARGET_WARM_RESET, 0, Itt::NONE);
    assert_eq!(managed(&mut world, &alice), []);
    apply(&mut world, config(&[(1, 1)], vec![]));
    world.shard.remove_unit(world.now, UnitId(0));
    world.drain();
    let answered = managed(&mut world, &alice);
    assert_eq!(answered, [(abort, TmfResult::COMPLETE), (reset, TmfResult::COMPLETE)]);
    let late = manage(&mut world, &mut alice, TmfFunction::ABORT_TASK, 0, second);
    assert_eq!(managed(&mut world, &alice), [(late, TmfResult::NO_TASK)]);
    assert!(world.shard.poll_removed().is_none(), "the medium has two reads");
    keeper.release_all(&mut world, 0);
    assert!(world.shard.poll_removed().is_some());
}

#[test]
fn a_unit_that_takes_the_number_of_one_that_is_still_busy_is_another_one() {
    let (medium, keeper) = held(8 << 20);
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![medium]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    keeper.hold(true);
    let itt = alice.start(&mut world, 0, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x55; BLOCK], 0);
    apply(&mut world, config(&[], vec![]));
    assert!(world.shard.remove_unit(world.now, UnitId(0)));
    world.drain();
    assert_eq!(alice.finish(&mut world, itt, &[]).code(), NO_LUN);
    let made = LogicalUnit::new(unit_config(0), ram(), None, world.pool.clone()).unwrap();
    assert!(world.shard.add_disk(world.now, UnitId(0), made, DiskId(5)));
    apply(&mut world, config(&[(0, 0)], vec![]));
    let mut bob = Initiator::login(&mut world, BOB, 1);
    bob.clear_attentions(&mut world, 0);
    assert_eq!(bob.write(&mut world, 0, 0, &[0x77; BLOCK], false).status, GOOD);
    // The old medium completes its write; the new unit has the same number and must not take the completion
    // as its own.
    keeper.release_all(&mut world, 0);
    world.shard.medium_ready(world.now, MediumId(0));
    let (id, _) = world.shard.poll_removed().expect("the old unit has come to its end");
    assert_eq!(id, UnitId(0));
    assert_eq!(bob.read(&mut world, 0, 0, 1).data, [0x77; BLOCK]);
    assert_eq!(keeper.peek(0, BLOCK), [0x55; BLOCK]);
    world.pass(Duration::from_secs(1));
}

/// Injects each planted bug, and checks that the test for it fails.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use base::fault_injection::inject;
    use std::panic::catch_unwind;

    let removal = device::fault_injection::Bug::RemovalForgetsCommands.name();
    let remap = target::fault_injection::Bug::RemapReachesOther.name();
    let tests: [(&str, fn()); 2] = [
        (removal, commands_of_a_removed_lun_all_end),
        (remap, a_lun_that_was_opened_never_leads_to_another_disk),
    ];
    for (bug, finds) in tests {
        finds();
        inject(Some(bug));
        let found = catch_unwind(finds).is_err();
        inject(None);
        assert!(found, "{bug:?} is not found");
    }
}
