//! Commands of several hosts at the same time: each has its turn, in the order of arrival.

use base::time::Duration;

use super::*;
use crate::contract::{TaskKey, Tmf, TmfOutcome, UnitEvent};
use crate::rate_limit::RateLimit;

#[test]
fn commands_run_in_the_order_of_arrival() {
    let (mut rig, folder) = with(Kind::USUAL);
    for salt in 0..4 {
        rig.write_block(&pattern(100, salt)).good();
    }
    rig.mark(1).good();
    rig.rewind();
    folder.answer(false);
    let reads: Vec<_> = (0..4).map(|_| rig.start(A, &cdb_6(op::READ_6, 0, 100), 100, 0)).collect();
    let position = rig.start(B, &[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0], 32, 0);
    assert!(rig.event_of(reads[0]).is_none());
    folder.answer(true);
    rig.ready();
    for (salt, key) in (0..).zip(reads) {
        assert_eq!(rig.finish(key, &[]).good(), pattern(100, salt));
    }
    assert_eq!(rig.finish(position, &[]).good()[8..16], 4_u64.to_be_bytes());
}

#[test]
fn an_aborted_command_leaves_its_turn_to_the_next() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    rig.rewind();
    folder.answer(false);
    let first = rig.start(A, &cdb_6(op::READ_6, 0, 100), 100, 0);
    let waits = rig.start(A, &cdb_6(op::READ_6, 0, 100), 100, 0);
    let last = rig.start(B, &[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0], 32, 0);
    for key in [waits, first] {
        assert_eq!(rig.manage(A, Tmf::AbortTask(key)), Some(TmfOutcome::Complete));
        assert!(matches!(rig.event_of(key), Some(UnitEvent::Aborted { .. })));
    }
    assert!(rig.event_of(last).is_none(), "the cartridge still reads");
    folder.answer(true);
    rig.ready();
    rig.finish(last, &[]).good();
    rig.rewind();
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn a_write_without_its_data_can_be_aborted() {
    let mut rig = tape();
    let key = rig.start(A, &cdb_6(op::WRITE_6, 0, 100), 0, 100);
    let waits = rig.start(B, &[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0], 32, 0);
    assert_eq!(rig.manage(A, Tmf::AbortTaskSet), Some(TmfOutcome::Complete));
    rig.unit.task_gone(Instant::ORIGIN, key);
    assert_eq!(rig.finish(waits, &[]).good()[8..16], [0; 8]);
    rig.write_block(&[1; 10]).good();
}

/// Returns how often a command was asked for data that it has not sent.
fn asked(rig: &Rig, key: TaskKey) -> usize {
    let asks = |event: &&UnitEvent| matches!(event, UnitEvent::FetchDataOut { key: of, .. } if *of == key);
    rig.events.iter().filter(asks).count()
}

#[test]
fn waiting_writes_hold_the_data_of_two_of_the_longest_blocks() {
    let (mut rig, folder) = with(Kind::USUAL);
    let hosts = [3, 4, 5, 6].map(NexusId);
    for host in hosts {
        rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(host));
        rig.test_ready(host).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    }
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    rig.rewind();
    folder.answer(false);
    let read = rig.start(A, &cdb_6(op::READ_6, 0, 100), 100, 0);
    let long = 8 << 20;
    let writes = hosts.map(|host| rig.start(host, &cdb_6(op::WRITE_6, 0, long), 0, 8 << 20));
    assert_eq!(writes.map(|key| asked(&rig, key)), [1, 1, 0, 0]);
    assert_eq!(rig.manage(hosts[0], Tmf::AbortTask(writes[0])), Some(TmfOutcome::Complete));
    assert_eq!(writes.map(|key| asked(&rig, key))[1..], [1, 1, 0], "one has left");
    let data = pattern(8 << 20, 2);
    rig.events.retain(|event| !matches!(event, UnitEvent::FetchDataOut { key, .. } if *key == writes[1]));
    rig.send(writes[1], &data, 0, long);
    assert_eq!(asked(&rig, writes[3]), 0, "what has arrived is held");
    folder.answer(true);
    rig.ready();
    assert_eq!(asked(&rig, writes[3]), 1, "one has had its turn");
    rig.finish(read, &[]).good();
    for key in &writes[1..] {
        rig.finish(*key, &data).good();
    }
    assert_eq!(rig.position().1, 4);
}

#[test]
fn hosts_that_send_no_data_do_not_stop_the_others() {
    let mut rig = tape();
    let hosts = [3, 4, 5].map(NexusId);
    for host in hosts {
        rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(host));
        rig.test_ready(host).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    }
    let write = cdb_6(op::WRITE_6, 0, 8 << 20);
    let silent = [hosts[0], hosts[1]].map(|host| rig.start(host, &write, 0, 8 << 20));
    assert_eq!(silent.map(|key| asked(&rig, key)), [1, 1]);
    for _ in 0..2 {
        rig.run(hosts[2], &write, 0, &pattern(8 << 20, 3)).good();
    }
    assert_eq!(rig.position().1, 2);
}

#[test]
fn a_write_without_its_data_delays_only_its_own_host() {
    let mut rig = tape();
    let write = cdb_6(op::WRITE_6, 0, 100);
    let first = rig.start(A, &write, 0, 100);
    let second = rig.start(A, &write, 0, 100);
    let third = rig.start(A, &[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0], 32, 0);
    rig.run(B, &write, 0, &pattern(100, 9)).good();
    assert_eq!(
        (asked(&rig, first), asked(&rig, second)),
        (1, 0),
        "one write of a host is asked for its data"
    );
    assert_eq!(rig.manage(A, Tmf::AbortTask(first)), Some(TmfOutcome::Complete));
    assert_eq!(asked(&rig, second), 1);
    rig.finish(second, &pattern(100, 2)).good();
    assert_eq!(rig.finish(third, &[]).good()[8..16], 2_u64.to_be_bytes());
    rig.rewind();
    for salt in [9, 2] {
        assert_eq!(rig.read_block(100).good(), pattern(100, salt));
    }
}

#[test]
fn a_waiting_command_finds_the_cartridge_unloaded() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    folder.answer(false);
    let unload = rig.start(A, &[0x1b, 0, 0, 0, 0, 0], 0, 0);
    let read = rig.start(A, &cdb_6(op::READ_6, 0, 100), 100, 0);
    folder.answer(true);
    rig.ready();
    rig.finish(unload, &[]).good();
    rig.finish(read, &[]).check(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);
}

#[test]
fn a_waiting_command_does_not_use_what_another_host_has_loaded() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    let write = rig.start(B, &cdb_6(op::WRITE_6, 0, 100), 0, 100);
    for flags in [0, 1] {
        rig.run(A, &[0x1b, 0, 0, 0, flags, 0], 0, &[]).good();
    }
    rig.finish(write, &pattern(100, 9)).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.read_block(100).good();
    // A host that loads it knows where the tape is.
    rig.rewind();
    folder.answer(false);
    let unload = rig.start(A, &[0x1b, 0, 0, 0, 0, 0], 0, 0);
    let load = rig.start(A, &[0x1b, 0, 0, 0, 1, 0], 0, 0);
    let read = rig.start(A, &cdb_6(op::READ_6, 0, 100), 100, 0);
    folder.answer(true);
    rig.ready();
    rig.finish(unload, &[]).good();
    rig.finish(load, &[]).good();
    assert_eq!(rig.finish(read, &[]).good(), pattern(100, 1));
}

#[test]
fn a_persistent_reservation_for_writing_stops_movements_too() {
    let mut rig = tape();
    rig.write_block(&pattern(100, 1)).good();
    let out = |rig: &mut Rig, action: u8, kind: u8| {
        let mut list = [0; 24];
        list[if action == 0 { 15 } else { 7 }] = 1;
        rig.run(B, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    };
    out(&mut rig, 0, 0);
    // Write Exclusive.
    out(&mut rig, 1, 1);
    let mut long = [0; 16];
    long[14] = 100;
    for opcode in [op::READ_16, op::VERIFY_16] {
        long[0] = opcode;
        let reply = rig.run(A, &long, 100, &[]);
        assert_eq!(reply.status, scsi::status::Status::RESERVATION_CONFLICT, "{opcode:02x}");
    }
    for cdb in [cdb_6(op::READ_6, 0, 100), cdb_6(op::VERIFY_6, 0, 100), cdb_6(op::SPACE_6, 0, 1)] {
        let reply = rig.run(A, &cdb, 100, &[]);
        assert_eq!(reply.status, scsi::status::Status::RESERVATION_CONFLICT, "{cdb:02x?}");
    }
    assert_eq!(rig.position(), (0, 1, 0), "READ POSITION moves nothing");
}

#[test]
fn a_reservation_of_another_host_stops_every_use() {
    let mut rig = tape();
    rig.run(B, &[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
    for cdb in [cdb_6(op::READ_6, 0, 10), cdb_6(op::SPACE_6, 0, 1), [1, 0, 0, 0, 0, 0], [0x1b, 0, 0, 0, 0, 0]]
    {
        let reply = rig.run(A, &cdb, 10, &[]);
        assert_eq!(reply.status, scsi::status::Status::RESERVATION_CONFLICT, "{cdb:02x?}");
    }
    rig.run(A, &[0x05, 0, 0, 0, 0, 0], 6, &[]).good();
}

#[test]
fn a_host_that_was_writing_when_the_drive_was_powered_on_does_not_overwrite_the_start() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    rig.write_block(&pattern(700, 2)).good();
    let mut rig = Rig::fresh(drive(), Box::new(folder.after_kill()));
    rig.write_block(&pattern(700, 3))
        .check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    // It repeats the command, and closes the device with a filemark.
    for _ in 0..2 {
        rig.write_block(&pattern(700, 3)).check(SenseKey::MEDIUM_ERROR, Asc::SEQUENTIAL_POSITIONING_ERROR);
    }
    rig.mark(1).check(SenseKey::MEDIUM_ERROR, Asc::SEQUENTIAL_POSITIONING_ERROR);
    rig.space(1, -1).check(SenseKey::MEDIUM_ERROR, Asc::SEQUENTIAL_POSITIONING_ERROR);
    assert_eq!(rig.position(), (0, 0, 0));
    rig.space(3, 0).good();
    rig.write_block(&pattern(700, 3)).good();
    rig.rewind();
    for number in 1..=3 {
        assert_eq!(rig.read_block(700).good(), pattern(700, number));
    }
}

#[test]
fn a_host_that_opens_the_drive_finds_it_at_the_start() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    let mut rig = Rig::fresh(drive(), Box::new(folder.after_kill()));
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
}

/// A drive with two blocks, powered on anew, whose host has been told so by a WRITE.
fn with_lost_position() -> (Rig, Folder) {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    rig.write_block(&pattern(700, 2)).good();
    let folder = folder.after_kill();
    let mut rig = Rig::fresh(drive(), Box::new(folder.clone()));
    rig.write_block(&pattern(700, 3))
        .check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    (rig, folder)
}

/// Starts a command of another host that ends when the folder answers again.
fn keep_busy(rig: &mut Rig, folder: &Folder) {
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    rig.run(B, &cdb_6(op::SPACE_6, 3, 0), 0, &[]).good();
    folder.answer(false);
    rig.start(B, &cdb_6(op::WRITE_FILEMARKS_6, 0, 1), 0, 0);
}

#[track_caller]
fn check_position_lost(rig: &mut Rig) {
    rig.write_block(&pattern(700, 3)).check(SenseKey::MEDIUM_ERROR, Asc::SEQUENTIAL_POSITIONING_ERROR);
}

#[test]
fn a_host_that_loses_its_nexus_is_told_again_that_it_does_not_know_the_position() {
    let (mut rig, _) = with_lost_position();
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(A));
    for asc in [Asc::I_T_NEXUS_LOSS_OCCURRED, Asc::MEDIUM_MAY_HAVE_CHANGED] {
        rig.write_block(&pattern(700, 3)).check(SenseKey::UNIT_ATTENTION, asc);
    }
    check_position_lost(&mut rig);
}

#[test]
fn a_nexus_that_is_lost_while_it_moves_is_told_again() {
    let (mut rig, folder) = with_lost_position();
    keep_busy(&mut rig, &folder);
    rig.start(A, &[op::LOCATE_10, 0, 0, 0, 0, 0, 1, 0, 0, 0], 0, 0);
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    folder.answer(true);
    rig.ready();
    rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(A));
    for asc in [Asc::I_T_NEXUS_LOSS_OCCURRED, Asc::MEDIUM_MAY_HAVE_CHANGED] {
        rig.write_block(&pattern(700, 3)).check(SenseKey::UNIT_ATTENTION, asc);
    }
    check_position_lost(&mut rig);
}

#[test]
fn a_movement_that_fails_or_is_aborted_leaves_the_position_lost() {
    let (mut rig, folder) = with_lost_position();
    rig.run(A, &[op::LOCATE_10, 0, 0, 0, 0, 0, 99, 0, 0, 0], 0, &[])
        .check(SenseKey::BLANK_CHECK, Asc::END_OF_DATA);
    check_position_lost(&mut rig);
    keep_busy(&mut rig, &folder);
    rig.start(A, &[op::REWIND, 0, 0, 0, 0, 0], 0, 0);
    rig.manage(A, Tmf::AbortTaskSet);
    folder.answer(true);
    rig.ready();
    check_position_lost(&mut rig);
    rig.rewind();
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
}

/// A host that was told of another cartridge by a WRITE, and moves to a place that does not exist while its
/// former WRITE waits for data. Returns that WRITE, the LOAD behind it, and the movement.
fn with_pending_movement(rig: &mut Rig) -> [TaskKey; 3] {
    let write = rig.start(A, &cdb_6(op::WRITE_6, 0, 100), 0, 100);
    let load = rig.start(A, &[op::LOAD_UNLOAD, 0, 0, 0, 1, 0], 0, 0);
    for flags in [0, 1] {
        rig.run(B, &[op::LOAD_UNLOAD, 0, 0, 0, flags, 0], 0, &[]).good();
    }
    rig.write_block(&[1; 10]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    let locate = rig.start(A, &[op::LOCATE_10, 0, 0, 0, 0, 0, 99, 0, 0, 0], 0, 0);
    [write, load, locate]
}

#[test]
fn a_movement_that_fails_after_another_one_leaves_the_position_known() {
    let mut rig = tape();
    let [write, load, locate] = with_pending_movement(&mut rig);
    rig.finish(write, &pattern(100, 9)).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.finish(load, &[]).good();
    rig.finish(locate, &[]).check(SenseKey::BLANK_CHECK, Asc::END_OF_DATA);
    rig.write_block(&pattern(100, 1)).good();
}

#[test]
fn a_movement_that_is_aborted_after_test_unit_ready_was_told_leaves_the_position_known() {
    let mut rig = tape();
    let [write, load, locate] = with_pending_movement(&mut rig);
    for flags in [0, 1] {
        rig.run(B, &[op::LOAD_UNLOAD, 0, 0, 0, flags, 0], 0, &[]).good();
    }
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    for task in [load, locate, write] {
        assert_eq!(rig.manage(A, Tmf::AbortTask(task)), Some(TmfOutcome::Complete));
    }
    rig.write_block(&pattern(100, 1)).good();
}

#[test]
fn a_command_that_takes_another_unit_attention_leaves_the_position_lost() {
    let (mut rig, _) = with_lost_position();
    let load = [op::LOAD_UNLOAD, 0, 0, 0, 0, 0];
    rig.run(B, &load, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    rig.run(B, &load, 0, &[]).good();
    rig.run(B, &[op::LOAD_UNLOAD, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.run(A, &[0x4d, 0, 0x40, 0, 0, 0, 0, 0x10, 0, 0], 0x1000, &[])
        .check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    check_position_lost(&mut rig);
}

/// A WRITE that a REWIND overtook would overwrite the tape from its start.
#[test]
fn no_command_of_a_host_overtakes_its_delayed_ones() {
    let limit = RateLimit { iops: 10, bandwidth: 0, burst: Duration::from_millis(100) };
    let mut rig = Rig::with(UnitConfig { limit, ..drive() }, Box::new(Folder::new(Kind::USUAL)));
    for host in [A, B] {
        let _ = rig.test_ready(host);
    }
    let writes: Vec<_> = (0..3).map(|_| rig.start(A, &cdb_6(op::WRITE_6, 0, 10), 0, 10)).collect();
    let rewind = rig.start(A, &[1, 0, 0, 0, 0, 0], 0, 0);
    let inquiry = rig.start(A, &[0x12, 0, 0, 0, 36, 0], 36, 0);
    let position = rig.start(B, &[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0], 32, 0);
    assert_eq!(rig.finish(inquiry, &[]).good().len(), 36);
    assert!(rig.event_of(rewind).is_none(), "it waits behind the writes");
    for (salt, key) in (0..).zip(writes) {
        while asked(&rig, key) == 0 {
            let at = rig.unit.poll_timeout().expect("the write waits");
            rig.unit.handle_timeout(at);
            rig.drain();
        }
        rig.finish(key, &pattern(10, salt)).good();
    }
    rig.finish(position, &[]).good();
    let at = rig.unit.poll_timeout();
    at.into_iter().for_each(|at| rig.unit.handle_timeout(at));
    rig.drain();
    rig.finish(rewind, &[]).good();
}
