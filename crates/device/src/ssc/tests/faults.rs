//! Files that fail: what was acknowledged and is lost is told, and damage costs the block that has it.

use super::*;

const UNLOAD: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
const MEDIUM: Option<Fault> = Some(Fault::Medium);
const UNREADABLE: (SenseKey, Asc) = (SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);

/// A drive on whose tape a block and a filemark are durable and another block is not, and its folder.
fn half_durable() -> (Rig, Folder) {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    rig.write_block(&pattern(100, 2)).good();
    (rig, folder)
}

#[track_caller]
fn check_lost(reply: &Reply) {
    reply.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert!(reply.is_deferred(), "{reply:?}");
}

#[test]
fn a_flush_that_fails_is_a_deferred_error() {
    let (mut rig, folder) = half_durable();
    folder.fail(Faults { flush: MEDIUM, ..Faults::default() });
    check_lost(&rig.mark(1));
    check_lost(&rig.write_block(&pattern(100, 3)));
    check_lost(&rig.run(A, &UNLOAD, 0, &[]));
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    rig.read_block(100).stopped(FILEMARK, MARK, Some(100));
    rig.read_block(100).stopped(END_OF_DATA, 0, Some(100));
}

#[test]
fn a_flush_that_fails_during_the_unload_is_told() {
    let (mut rig, folder) = half_durable();
    folder.fail(Faults { flush: MEDIUM, ..Faults::default() });
    check_lost(&rig.run(A, &UNLOAD, 0, &[]));
}

/// Starts an unload whose flush fails when the folder answers again.
fn failing_unload(rig: &mut Rig, folder: &Folder) {
    folder.fail(Faults { flush: MEDIUM, ..Faults::default() });
    folder.answer(false);
    rig.start(A, &UNLOAD, 0, 0);
}

#[test]
fn a_flush_that_fails_during_an_unload_whose_host_is_gone_is_told_to_the_next() {
    let (mut rig, folder) = half_durable();
    failing_unload(&mut rig, &folder);
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    folder.answer(true);
    rig.ready();
    assert!(rig.unit.has_lost_writes(), "no host was told yet");
    check_lost(&rig.run(B, &LOAD, 0, &[]));
    assert!(!rig.unit.has_lost_writes());
    folder.fail(Faults::default());
    rig.run(B, &LOAD, 0, &[]).good();
    rig.run(B, &UNLOAD, 0, &[]).good();
}

#[test]
fn a_flush_that_fails_during_an_unload_that_a_removal_aborts_is_a_loss() {
    let (mut rig, folder) = half_durable();
    failing_unload(&mut rig, &folder);
    rig.unit.retire(Instant::ORIGIN);
    folder.answer(true);
    rig.ready();
    assert!(rig.unit.is_retired() && rig.unit.has_lost_writes());
}

#[test]
fn without_buffer_the_failure_is_that_of_the_command() {
    let (mut rig, folder) = with(Kind::USUAL);
    let list = [0, 0, 0x00, 8, 0, 0, 0, 0, 0, 0, 0, 100];
    rig.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &list).good();
    let write = cdb_6(op::WRITE_6, 1, 3);
    rig.run(A, &write, 0, &pattern(300, 1)).good();
    folder.fail(Faults { flush: MEDIUM, ..Faults::default() });
    let failed = rig.run(A, &write, 0, &pattern(300, 2));
    failed.stopped((SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR), 0, Some(3));
    assert!(!failed.is_deferred());
    check_lost(&rig.run(A, &write, 0, &pattern(300, 3)));
}

#[test]
fn a_flush_that_fails_at_the_end_of_the_partition_is_told() {
    let (mut rig, folder) = with(Kind { capacity: 32 << 20, ..Kind::USUAL });
    let block = pattern(1 << 20, 1);
    while rig.write_block(&block).sense != Some(FULL) {}
    folder.fail(Faults { flush: MEDIUM, ..Faults::default() });
    check_lost(&rig.mark((1 << 24) - 1));
}

#[test]
fn a_label_that_cannot_be_written_is_told() {
    let (mut rig, folder) = half_durable();
    rig.mark(0).good();
    folder.fail(Faults { label: MEDIUM, ..Faults::default() });
    rig.run(A, &UNLOAD, 0, &[]).check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn a_read_that_fails_for_another_reason_than_the_medium_leaves_the_position() {
    let (mut rig, folder) = half_durable();
    rig.run(A, &UNLOAD, 0, &[]).good();
    rig.run(A, &LOAD, 0, &[]).good();
    folder.fail(Faults { read: Some(Fault::Hardware), ..Faults::default() });
    rig.read_block(100).stopped(UNREADABLE, 0, Some(100));
    folder.fail(Faults::default());
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn a_block_with_an_unreadable_sector_is_passed_over() {
    let (mut rig, folder) = with(Kind::USUAL);
    for salt in 0..3 {
        rig.write_block(&pattern(100_000, salt)).good();
    }
    rig.run(A, &UNLOAD, 0, &[]).good();
    rig.run(A, &LOAD, 0, &[]).good();
    folder.fail(Faults { bad_byte: Some(150_000), ..Faults::default() });
    assert_eq!(rig.read_block(100_000).good(), pattern(100_000, 0));
    rig.read_block(100_000).stopped(UNREADABLE, 0, Some(100_000));
    assert_eq!(rig.position().1, 2, "behind the block that cannot be read");
    assert_eq!(rig.read_block(100_000).good(), pattern(100_000, 2));
    rig.read_block(100_000).stopped(END_OF_DATA, 0, Some(100_000));
}

#[test]
fn an_unreadable_end_is_not_passed_over() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100_000, 1)).good();
    rig.mark(1).good();
    let faults = Faults { bad_byte: Some(103_000), ..Faults::default() };
    // Without an unload, loading looks for more behind the last object.
    let folder = folder.after_power_loss();
    folder.fail(faults);
    let mut rig = Rig::with(drive(), Box::new(folder));
    assert_eq!(rig.read_block(100_000).good(), pattern(100_000, 1));
    rig.read_block(100_000).stopped(FILEMARK, MARK, Some(100_000));
    for _ in 0..2 {
        rig.read_block(100_000).stopped(UNREADABLE, 0, Some(100_000));
        assert_eq!(rig.position().1, 2);
    }
}

#[test]
fn a_cartridge_whose_label_cannot_be_read_is_not_loaded() {
    let (mut rig, folder) = half_durable();
    rig.run(A, &UNLOAD, 0, &[]).good();
    folder.fail(Faults { label_read: MEDIUM, ..Faults::default() });
    for cdb in [&LOAD, &[0; 6], &cdb_6(op::READ_6, 0, 100)] {
        rig.run(A, cdb, 100, &[]).check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    }
}

#[test]
fn a_lost_block_is_a_deferred_error_and_nothing_follows_it() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    rig.write_block(&pattern(100, 2)).good();
    folder.fail_writes(Some(Fault::Medium));
    let lost = rig.mark(1);
    lost.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert!(lost.is_deferred());
    folder.fail_writes(None);
    let refused = rig.write_block(&pattern(100, 3));
    refused.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert!(refused.is_deferred() && refused.information().is_none());
    assert_eq!(rig.unit.stats().medium_failures, 2);
    let unloaded = rig.run(A, &UNLOAD, 0, &[]);
    unloaded.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert!(unloaded.is_deferred());
    rig.test_ready(A).check(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);
    rig.run(A, &LOAD, 0, &[]).good();
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    rig.read_block(100).stopped(FILEMARK, MARK, Some(100));
    // It was acknowledged, and so in the file. The filemark behind it was not.
    assert_eq!(rig.read_block(100).good(), pattern(100, 2));
    rig.read_block(100).stopped(END_OF_DATA, 0, Some(100));
    rig.write_block(&pattern(100, 4)).good();
    rig.mark(1).good();
}

#[test]
fn a_full_file_system_is_the_end_of_the_medium() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    folder.fail_writes(Some(Fault::NoSpace));
    let full = rig.mark(2);
    full.stopped(FULL, EOM, Some(2));
    assert!(!full.is_deferred());
    check_goes_on(&mut rig, &folder, 1);
}

/// Checks that everything but writing goes on while the file system is full, with `blocks` blocks on the
/// tape and the drive behind them, and writing too when there is space again.
#[track_caller]
fn check_goes_on(rig: &mut Rig, folder: &Folder, blocks: u8) {
    let count = u64::from(blocks);
    assert_eq!(rig.position(), (0, count, 0));
    rig.read_block(100).stopped(END_OF_DATA, 0, Some(100));
    rig.rewind();
    for salt in 1..=blocks {
        assert_eq!(rig.read_block(100).good(), pattern(100, salt));
    }
    rig.space(0, -1).good();
    rig.space(3, 0).good();
    rig.test_ready(B).good();
    // The other host is not told of what it has not written.
    rig.run(B, &[1, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.unit.prepare_handover(Instant::ORIGIN);
    assert_eq!(rig.unit.busy(), None, "an upgrade goes on");
    rig.run(A, &UNLOAD, 0, &[]).good();
    rig.run(A, &LOAD, 0, &[]).good();
    rig.space(3, 0).good();
    assert_eq!(rig.position(), (0, count, 0));
    rig.write_block(&pattern(5000, 9)).stopped(FULL, EOM, Some(5000));
    assert_eq!(rig.position(), (0, count, 0));
    folder.fail_writes(None);
    rig.write_block(&pattern(100, 9)).good();
    rig.mark(1).good();
    assert_eq!(rig.position(), (0, count + 2, 1));
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    rig.space(0, i32::from(blocks)).good();
    assert_eq!(rig.read_block(100).good(), pattern(100, 9));
    rig.read_block(100).stopped(FILEMARK, MARK, Some(100));
}

#[test]
fn blocks_that_did_not_fit_are_not_there_and_are_told_once() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.write_block(&pattern(100, 2)).good();
    let written = rig.unit.stats().write_bytes;
    folder.fail_writes(Some(Fault::NoSpace));
    rig.set_block_len(1000);
    let failed = rig.run(A, &cdb_6(op::WRITE_6, 1, 3), 0, &pattern(3000, 3));
    failed.stopped(FULL, EOM, Some(3));
    assert!(!failed.is_deferred());
    assert_eq!(rig.unit.stats().write_bytes, written);
    check_goes_on(&mut rig, &folder, 2);
}

#[test]
fn a_full_file_system_is_no_fault_of_the_cartridge() {
    let (mut rig, folder) = with(Kind::USUAL);
    folder.fail_writes(Some(Fault::NoSpace));
    rig.write_block(&pattern(100, 1)).stopped(FULL, EOM, Some(100));
    let page = rig.query(&[0x4d, 0, 0x6e, 0, 0, 0, 0, 0x10, 0, 0]);
    assert!(page[4..].chunks(5).all(|flag| flag[4] == 0), "no TapeAlert flag");
}

#[test]
fn a_host_is_not_told_of_an_aborted_write_that_did_not_fit() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    folder.fail_writes(Some(Fault::NoSpace));
    // Two blocks are in memory, and no chunk is full yet.
    rig.set_block_len(500_000);
    let key = rig.start(A, &cdb_6(op::WRITE_6, 1, 4), 0, 2_000_000);
    let fetches = |rig: &mut Rig| {
        let event = rig.event_of(key);
        assert!(matches!(event, Some(crate::contract::UnitEvent::FetchDataOut { .. })), "{event:?}");
    };
    fetches(&mut rig);
    rig.send(key, &pattern(1_000_000, 3), 0, 1_000_000);
    fetches(&mut rig);
    rig.manage(A, crate::contract::Tmf::AbortTaskSet);
    rig.ready();
    assert_eq!(rig.position(), (0, 1, 0));
    check_goes_on(&mut rig, &folder, 1);
}

#[test]
fn a_loss_that_was_told_keeps_no_host_from_reading() {
    let (mut rig, folder) = half_durable();
    folder.fail(Faults { flush: MEDIUM, ..Faults::default() });
    check_lost(&rig.mark(1));
    rig.rewind();
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    // What is lost may have been another host's: each is told once.
    check_lost(&rig.run(B, &[1, 0, 0, 0, 0, 0], 0, &[]));
    rig.run(B, &[1, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.space(3, 0).good();
    check_lost(&rig.write_block(&pattern(100, 3)));
}

#[test]
fn a_loss_that_no_host_was_told_is_told_before_anything_else() {
    let (mut rig, folder) = half_durable();
    folder.fail(Faults { flush: MEDIUM, ..Faults::default() });
    // The drive flushes when a host is gone.
    rig.unit.nexus_lost(Instant::ORIGIN, B);
    check_lost(&rig.run(A, &[1, 0, 0, 0, 0, 0], 0, &[]));
    rig.rewind();
}

#[test]
fn a_write_that_finds_the_file_system_full_is_told_of_its_own_blocks() {
    let (mut rig, folder) = half_durable();
    rig.set_block_len(100);
    folder.fail_writes(Some(Fault::NoSpace));
    let write = cdb_6(op::WRITE_6, 1, 3);
    let failed = rig.run(A, &write, 0, &pattern(300, 3));
    failed.stopped(FULL, EOM, Some(3));
    assert!(!failed.is_deferred());
    let again = rig.run(A, &write, 0, &pattern(300, 3));
    again.stopped(FULL, EOM, Some(3));
    assert!(!again.is_deferred());
    let mut rig = Rig::with(drive(), Box::new(folder.after_kill()));
    rig.space(3, 0).good();
    assert_eq!(rig.position().1, 3, "what was acknowledged is there");
}

#[test]
fn a_damaged_block_is_passed_over() {
    let (mut rig, folder) = with(Kind::USUAL);
    for salt in 0..3 {
        rig.write_block(&pattern(100_000, salt)).good();
    }
    // The label says where the data ends, so damage is no torn write.
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    folder.damage(150_000);
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(100_000).good(), pattern(100_000, 0));
    rig.read_block(100_000).stopped(UNREADABLE, 0, Some(100_000));
    assert_eq!(rig.position().1, 2, "behind the block that cannot be read");
    assert_eq!(rig.read_block(100_000).good(), pattern(100_000, 2));
    let page = rig.query(&[0x4d, 0, 0x6e, 0, 0, 0, 0, 0x10, 0, 0]);
    let alerts: Vec<u8> = page[4..].chunks(5).filter(|flag| flag[4] == 1).map(|flag| flag[1]).collect();
    assert_eq!(alerts, [3, 4, 5]);
}
