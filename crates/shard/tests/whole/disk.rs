//! What iSCSI initiators receive from a disk, and what they must never receive.

use base::time::Duration;
use device::contract::Access;
use iscsi::pdu::logout_request::{LogoutReason, LogoutRequest};
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::scsi_response::ScsiResponse;
use iscsi::pdu::{Itt, Opcode, PduHeader as _};
use iscsi::serial::{CmdSn, StatSn};
use shard::config::{InitiatorEntry, LunEntry};
use store::ram::Ram;
use target::units::UnitId;
use transport::command::TaskAttribute;

use crate::pair::{Answer, BLOCK, Initiator, World, config, pattern, pdu, ram};
use crate::{ALICE, BOB, CHECK, GOOD};

#[test]
fn what_was_written_is_read_back_whatever_its_length() {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    for (blocks, lba) in
        [(1_u16, 0), (8, 8), (16, 17), (17, 100), (128, 1000), (129, 2000), (1024, 4000), (2048, 6000)]
    {
        let data = pattern(usize::from(blocks) * BLOCK, lba.into());
        assert_eq!(alice.write(&mut world, 0, lba, &data, false).status, GOOD, "{blocks} blocks");
        let answer = alice.read(&mut world, 0, lba, blocks);
        assert_eq!((answer.status, answer.data == data), (GOOD, true), "{blocks} blocks");
    }
    assert!(alice.read(&mut world, 0, 15000, 8).data.iter().all(|byte| *byte == 0));
}

#[test]
fn an_absent_lun_tells_what_is_there_and_does_nothing_else() {
    let mut world = World::new(config(&[(1, 0), (7, 0)], vec![]), vec![ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    let inquiry = alice.run(&mut world, 0, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!((inquiry.status, inquiry.data[0]), (GOOD, 0x7f));
    let luns = alice.run(&mut world, 0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    assert_eq!(luns.status, GOOD);
    assert_eq!(luns.data, [&[0, 0, 0, 16, 0, 0, 0, 0, 0, 1][..], &[0; 6], &[0, 7], &[0; 6]].concat());
    let read = alice.read(&mut world, 0, 0, 1);
    assert_eq!((read.status, read.code()), (CHECK, (5, 0x2500)));
}

#[test]
fn an_initiator_sees_its_own_map_and_nothing_else() {
    let own = |number, unit, access| LunEntry::new(number, UnitId(unit), access);
    let acl = vec![
        InitiatorEntry {
            pattern: ALICE.into(),
            luns: Some(vec![own(0, 0, Access::ReadWrite)]),
            auth: None,
            quota: Default::default(),
        },
        InitiatorEntry {
            pattern: BOB.into(),
            luns: Some(vec![own(0, 1, Access::ReadOnly)]),
            auth: None,
            quota: Default::default(),
        },
    ];
    let mut world = World::new(config(&[], acl), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    let mut bob = Initiator::login(&mut world, BOB, 1);
    alice.clear_attentions(&mut world, 0);
    bob.clear_attentions(&mut world, 0);
    assert_eq!(alice.write(&mut world, 0, 0, &pattern(512, 1), false).status, GOOD);
    let refused = bob.write(&mut world, 0, 0, &pattern(512, 2), false);
    assert_eq!((refused.status, refused.code().0), (CHECK, 7));
    assert!(bob.read(&mut world, 0, 0, 1).data.iter().all(|byte| *byte == 0), "alice's block shown to bob");
    assert_eq!(alice.read(&mut world, 0, 0, 1).data, pattern(512, 1));
    assert_eq!(bob.read(&mut world, 1, 0, 1).code(), (5, 0x2500));
    assert_eq!(Initiator::try_login(&mut world, "iqn.2026-11.org.example:eve", 1).err(), Some(0x0202));
}

#[test]
fn a_second_login_of_the_same_port_ends_the_first_session() {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram()]);
    let first = Initiator::login(&mut world, ALICE, 1);
    let other = Initiator::login(&mut world, ALICE, 2);
    let mut again = Initiator::login(&mut world, ALICE, 1);
    assert!(!world.is_open(first.conn));
    assert!(world.is_open(other.conn));
    again.clear_attentions(&mut world, 0);
    assert_eq!(again.read(&mut world, 0, 0, 1).status, GOOD);
}

#[test]
fn a_changed_map_is_announced_and_a_removed_initiator_is_closed() {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let now = world.now;
    world.shard.apply(now, config(&[(0, 0), (1, 1)], vec![]));
    let told = alice.run(&mut world, 0, &[0; 6], &[], 0);
    assert_eq!((told.status, told.code()), (CHECK, (6, 0x3f0e)));
    alice.clear_attentions(&mut world, 1);
    assert_eq!(alice.read(&mut world, 1, 0, 1).status, GOOD);
    let only_bob =
        vec![InitiatorEntry { pattern: BOB.into(), luns: None, auth: None, quota: Default::default() }];
    world.shard.apply(now, config(&[(0, 0)], only_bob));
    world.drain();
    assert!(!world.is_open(alice.conn));
}

/// CVE-2014-4027: blocks that were never written read as zeros, even if the buffers of the pool held data of
/// other initiators.
#[test]
fn never_written_blocks_read_as_zeros_after_heavy_use_by_others() {
    let mut world = World::new(config(&[(0, 0), (1, 1)], vec![]), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    alice.clear_attentions(&mut world, 1);
    for lba in (0..4096).step_by(256) {
        assert_eq!(alice.write(&mut world, 0, lba, &[0x5a; 256 * 512], false).status, GOOD);
    }
    for lba in (0..4096).step_by(256) {
        let Answer { status, data, .. } = alice.read(&mut world, 1, lba, 256);
        assert_eq!((status, data.iter().all(|byte| *byte == 0)), (GOOD, true), "LBA {lba}");
    }
}

#[test]
fn a_reservation_keeps_the_other_initiator_out_and_falls_with_its_session() {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    let mut bob = Initiator::login(&mut world, BOB, 1);
    alice.clear_attentions(&mut world, 0);
    bob.clear_attentions(&mut world, 0);
    assert_eq!(alice.run(&mut world, 0, &[0x16, 0, 0, 0, 0, 0], &[], 0).status, GOOD);
    assert_eq!(bob.read(&mut world, 0, 0, 1).status, 0x18);
    let conn = alice.conn;
    world.cut(conn);
    world.pass(Duration::from_secs(60));
    bob.clear_attentions(&mut world, 0);
    assert_eq!(bob.read(&mut world, 0, 0, 1).status, GOOD);
}

#[test]
fn a_full_target_refuses_others_and_lets_its_own_come_back() {
    let mut full = config(&[(0, 0)], vec![]);
    full.targets[0].sessions_max = 2;
    let mut world = World::new(full, vec![ram()]);
    Initiator::login(&mut world, ALICE, 1);
    Initiator::login(&mut world, BOB, 1);
    assert_eq!(Initiator::try_login(&mut world, "iqn.2026-11.org.example:carol", 1).err(), Some(0x0302));
    // A session of another initiator port would be one in addition.
    assert_eq!(Initiator::try_login(&mut world, ALICE, 2).err(), Some(0x0302));
    let mut again = Initiator::login(&mut world, ALICE, 1);
    again.clear_attentions(&mut world, 0);
    assert_eq!(again.read(&mut world, 0, 0, 1).status, GOOD);
}

#[test]
fn a_draining_target_asks_for_logout_and_takes_nobody_new() {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram()]);
    let alice = Initiator::login(&mut world, ALICE, 1);
    let now = world.now;
    world.shard.drain(now, Duration::from_secs(2));
    world.drain();
    let (bhs, _) = world.receive(alice.conn).expect("an async message");
    assert_eq!(bhs.opcode(), Opcode::ASYNC_MESSAGE);
    assert_eq!(Initiator::try_login(&mut world, BOB, 1).err(), Some(0x0301));
    world.pass(Duration::from_secs(3));
    assert!(world.shard.is_idle(), "a session that does not log out is closed");
}

#[test]
fn commands_in_the_same_segment_as_a_logout_are_executed_and_answered_before_it() {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram()]);
    let mut initiator = Initiator::login(&mut world, "iqn.2026-11.test:hasty", 1);
    initiator.clear_attentions(&mut world, 0);
    let (cmd_sn, conn) = (initiator.cmd_sn, initiator.conn);
    let command = |number: u32, cdb: &[u8], write: bool| {
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        ScsiCommand {
            immediate: false,
            is_final: true,
            read: !write,
            write,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: 0,
            itt: Itt(1000 + number),
            expected_data_transfer_length: 512,
            cmd_sn: CmdSn(cmd_sn + number),
            exp_stat_sn: StatSn(initiator.exp_stat_sn),
            cdb: whole,
        }
    };
    let mut bytes = pdu(command(0, &[0x2a, 0, 0, 0, 0, 5, 0, 0, 1, 0], true).encode(), &pattern(512, 9));
    bytes.extend(pdu(command(1, &[0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0], false).encode(), &[]));
    let logout = LogoutRequest {
        immediate: false,
        reason: LogoutReason::CloseSession,
        itt: Itt(2000),
        cid: 0,
        cmd_sn: CmdSn(cmd_sn + 2),
        exp_stat_sn: StatSn(initiator.exp_stat_sn),
    };
    bytes.extend(pdu(logout.encode(), &[]));
    world.send(conn, &bytes);
    // Tasks with the attribute SIMPLE may end in any order.
    let mut answers = [(); 2].map(|()| world.receive(conn).expect("an answer"));
    answers.sort_by_key(|(bhs, _)| bhs.opcode().0);
    let [(written, _), (read, got)] = answers;
    assert_eq!(ScsiResponse::decode(&written).unwrap().status, 0);
    assert_eq!((read.opcode(), got), (Opcode::DATA_IN, vec![0; 512]));
    assert_eq!(world.receive(conn).expect("the logout's answer").0.opcode(), Opcode::LOGOUT_RESPONSE);
    assert!(!world.is_open(conn));
    assert!(world.shard.sessions().is_empty());
}

/// A bad block is reported as MEDIUM ERROR with its address, over the wire. The blocks around it are served,
/// and so are other initiators.
#[test]
fn a_bad_block_is_told_with_its_address_and_nothing_beside_it_is_lost() {
    use store::api::Fault;
    use store::fault_inject::{FaultInjector, OpKind, Rule};
    let (medium, faults) = FaultInjector::new(Ram::new(8 << 20), 1);
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![Box::new(medium)]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    let mut bob = Initiator::login(&mut world, BOB, 2);
    alice.clear_attentions(&mut world, 0);
    bob.clear_attentions(&mut world, 0);
    let data = pattern(64 * BLOCK, 7);
    assert_eq!(alice.write(&mut world, 0, 1000, &data, true).status, GOOD);
    faults.add(Rule::always(OpKind::Read, 1040 * 512, 512, Fault::Medium));
    faults.add(Rule::always(OpKind::Write, 1050 * 512, 512, Fault::Medium));
    let answer = alice.read(&mut world, 0, 1000, 64);
    // Fixed format, with a valid INFORMATION field (SPC-5 §4.4.3): MEDIUM ERROR, UNRECOVERED READ ERROR.
    assert_eq!((answer.status, answer.code()), (CHECK, (3, 0x1100)));
    assert_eq!((answer.sense[0], &answer.sense[3..7]), (0xf0, &1040_u32.to_be_bytes()[..]));
    assert!(data.starts_with(&answer.data), "what came before the failure is what is there");
    let answer = alice.write(&mut world, 0, 1048, &data[..8 * 512], true);
    assert_eq!((answer.status, answer.code()), (CHECK, (3, 0x0c00)));
    // A write that failed may have changed any part of its range, and initiators take the blocks before the
    // one that is named as written.
    assert_eq!((answer.sense[0], &answer.sense[3..7]), (0xf0, &1048_u32.to_be_bytes()[..]));
    for (offset, blocks) in [(0_u16, 40_u16), (41, 7)] {
        let answer = bob.read(&mut world, 0, 1000 + u32::from(offset), blocks);
        let [from, len] = [offset, blocks].map(|count| usize::from(count) * BLOCK);
        assert_eq!((answer.status, &answer.data[..]), (GOOD, &data[from..from + len]));
    }
    assert_eq!(bob.write(&mut world, 0, 1051, &data[..512], true).status, GOOD);
}
