//! Commands that were answered before they ran (IMMED) and then failed: their host is told once, by its next
//! command that uses the medium, which is not run.

use super::*;
use crate::contract::Tmf;

/// LOCATE(10) with IMMED to an object that does not exist.
const ASTRAY: [u8; 10] = [op::LOCATE_10, 1, 0, 0, 0, 0, 99, 0, 0, 0];
/// ERASE(6) with IMMED.
const ERASE: [u8; 6] = [op::ERASE_6, 2, 0, 0, 0, 0];

/// A tape with three blocks, rewound.
fn recorded() -> (Rig, Folder) {
    let (mut rig, folder) = with(Kind::USUAL);
    for salt in 0..3 {
        rig.write_block(&pattern(100, salt)).good();
    }
    rig.mark(0).good();
    rig.rewind();
    (rig, folder)
}

#[track_caller]
fn check_deferred(reply: &Reply, (key, asc): (SenseKey, Asc)) {
    reply.check(key, asc);
    assert!(reply.is_deferred(), "{reply:?}");
}

#[test]
fn a_write_after_a_movement_that_failed_is_not_run() {
    let (mut rig, _) = recorded();
    rig.run(A, &ASTRAY, 0, &[]).good();
    check_deferred(&rig.write_block(&[0; 50]), END_OF_DATA);
    assert_eq!(rig.position(), (0, 3, 0), "told once");
    rig.rewind();
    for salt in 0..3 {
        assert_eq!(rig.read_block(100).good(), pattern(100, salt));
    }
}

#[test]
fn an_immediate_command_after_one_that_failed_is_not_run() {
    let (mut rig, folder) = recorded();
    folder.answer(false);
    rig.start(B, &cdb_6(op::READ_6, 0, 100), 100, 0);
    rig.run(A, &ASTRAY, 0, &[]).good();
    rig.run(A, &ERASE, 0, &[]).good();
    folder.answer(true);
    rig.ready();
    check_deferred(&rig.run(A, &[op::REWIND, 1, 0, 0, 0, 0], 0, &[]), END_OF_DATA);
    rig.rewind();
    for salt in 0..3 {
        assert_eq!(rig.read_block(100).good(), pattern(100, salt));
    }
}

#[test]
fn another_host_is_not_told() {
    let (mut rig, _) = recorded();
    rig.run(A, &ASTRAY, 0, &[]).good();
    rig.run(B, &[op::REWIND, 0, 0, 0, 0, 0], 0, &[]).good();
    check_deferred(&rig.read_block(100), END_OF_DATA);
    assert_eq!(rig.read_block(100).good(), pattern(100, 0));
}

#[test]
fn the_error_of_a_lost_host_is_told_to_the_next() {
    let (mut rig, _) = recorded();
    rig.run(A, &ASTRAY, 0, &[]).good();
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    let write = cdb_6(op::WRITE_6, 0, 50);
    check_deferred(&rig.run(B, &write, 0, &[0; 50]), END_OF_DATA);
    rig.run(B, &write, 0, &[0; 50]).good();
}

#[test]
fn an_immediate_erasure_of_worm_is_told() {
    let (mut rig, _) = with(Kind { is_worm: true, ..Kind::USUAL });
    rig.write_block(&pattern(100, 1)).good();
    rig.rewind();
    rig.run(A, &ERASE, 0, &[]).good();
    check_deferred(&rig.read_block(100), (SenseKey::DATA_PROTECT, Asc::WORM_OVERWRITE_ATTEMPTED));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn an_immediate_command_that_is_aborted_is_told() {
    let (mut rig, folder) = recorded();
    folder.answer(false);
    rig.start(B, &cdb_6(op::READ_6, 0, 100), 100, 0);
    rig.run(A, &[op::LOCATE_10, 1, 0, 0, 0, 0, 2, 0, 0, 0], 0, &[]).good();
    rig.manage(A, Tmf::AbortTaskSet);
    folder.answer(true);
    rig.ready();
    check_deferred(&rig.write_block(&[0; 50]), (SenseKey::ABORTED_COMMAND, Asc::NONE));
    assert_eq!(rig.position().1, 1, "where the other host read");
}
