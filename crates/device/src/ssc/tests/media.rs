//! LOAD UNLOAD, PREVENT ALLOW MEDIUM REMOVAL, and a drive without a usable cartridge.

use super::*;

const UNLOAD: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];

const NOT_PRESENT: (SenseKey, Asc) = (SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);

#[test]
fn an_unloaded_cartridge_is_gone_until_it_is_loaded() {
    let mut rig = tape();
    rig.write_block(&pattern(100, 1)).good();
    rig.run(A, &UNLOAD, 0, &[]).good();
    assert!(!rig.unit.is_medium_present());
    for nexus in [A, B] {
        assert_eq!(rig.test_ready(nexus).sense, Some(NOT_PRESENT));
    }
    let mut long = [0; 16];
    long[0] = op::READ_ATTRIBUTE;
    for cdb in [
        &cdb_6(op::READ_6, 0, 100)[..],
        &cdb_6(op::SPACE_6, 0, 1),
        &[1, 0, 0, 0, 0, 0],
        &[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x44, 1, 0, 0, 0, 0, 0, 0, 255, 0],
        &long,
    ] {
        assert_eq!(rig.run(A, cdb, 4096, &[]).sense, Some(NOT_PRESENT), "{cdb:02x?}");
    }
    rig.query(&[0x05, 0, 0, 0, 0, 0]);
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0])[1], 0, "there is no medium type");
    rig.run(A, &UNLOAD, 0, &[]).good();
    rig.run(A, &LOAD, 0, &[]).good();
    assert!(rig.unit.is_medium_present());
    rig.test_ready(A).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.test_ready(B).good();
    assert_eq!(rig.position(), (0, 0, 0));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn loading_a_loaded_cartridge_rewinds_it() {
    let mut rig = tape();
    rig.write_block(&pattern(100, 1)).good();
    for byte in [1, 3] {
        rig.space(3, 0).good();
        rig.run(A, &[0x1b, 0, 0, 0, byte, 0], 0, &[]).good();
        assert_eq!(rig.position(), (0, 0, 0));
    }
    rig.test_ready(B).good();
    rig.run(A, &[0x1b, 0, 0, 0, 4, 0], 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &[0x1b, 0, 0, 0, 9, 0], 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_cartridge_that_a_host_holds_is_not_unloaded() {
    let mut rig = tape();
    rig.run(B, &PREVENT, 0, &[]).good();
    rig.run(A, &UNLOAD, 0, &[]).illegal(Asc::MEDIUM_REMOVAL_PREVENTED);
    rig.test_ready(A).good();
    rig.unit.nexus_lost(Instant::ORIGIN, B);
    rig.run(A, &UNLOAD, 0, &[]).good();
}

#[test]
fn unloading_makes_everything_durable() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.run(A, &[0x1b, 1, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.test_ready(A).sense, Some(NOT_PRESENT));
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn an_immediate_unload_tells_what_is_lost() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    folder.fail_writes(Some(Fault::Medium));
    let lost = rig.run(A, &[0x1b, 1, 0, 0, 0, 0], 0, &[]);
    lost.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert!(lost.is_deferred());
    assert_eq!(rig.test_ready(A).sense, Some(NOT_PRESENT));
}

#[test]
fn a_drive_is_not_ready_while_it_loads() {
    let folder = Folder::new(Kind::USUAL);
    folder.answer(false);
    let mut rig = Rig::with(drive(), Box::new(folder.clone()));
    rig.test_ready(A).check(SenseKey::NOT_READY, Asc::NOT_READY_BECOMING_READY);
    rig.run(A, &[0x12, 0, 0, 0, 96, 0], 96, &[]).good();
    folder.answer(true);
    rig.ready();
    rig.test_ready(A).good();
}

#[test]
fn a_cartridge_without_label_is_an_error_and_not_an_empty_tape() {
    let folder = Folder::new(Kind::USUAL);
    folder.lose_label();
    let mut rig = Rig::with(drive(), Box::new(folder));
    let unknown = (SenseKey::MEDIUM_ERROR, Asc::CANNOT_READ_MEDIUM_UNKNOWN_FORMAT);
    for cdb in [&[0; 6][..], &cdb_6(op::READ_6, 0, 100), &LOAD] {
        assert_eq!(rig.run(A, cdb, 100, &[]).sense, Some(unknown), "{cdb:02x?}");
    }
    assert_eq!(rig.write_block(&[0; 10]).sense, Some(unknown));
}

#[test]
fn a_removed_unit_writes_what_it_holds() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.unit.retire(Instant::ORIGIN);
    assert!(rig.unit.is_retired() && !rig.unit.has_lost_writes());
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn a_removed_unit_says_that_it_lost_what_it_held() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    folder.fail(Faults { flush: Some(Fault::Medium), ..Faults::default() });
    rig.unit.retire(Instant::ORIGIN);
    assert!(rig.unit.is_retired() && rig.unit.has_lost_writes());
}
