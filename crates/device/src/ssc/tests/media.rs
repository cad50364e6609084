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

#[test]
fn a_drive_tells_how_much_of_a_cartridge_it_has_checked() {
    let (mut rig, folder) = with(Kind::USUAL);
    for salt in 0..20 {
        rig.write_block(&pattern(1 << 20, salt)).good();
    }
    let folder = folder.after_kill();
    folder.answer(false);
    let mut rig = Rig::fresh(drive(), Box::new(folder.clone()));
    let mut told = Vec::new();
    while told.len() < 1000 {
        let reply = rig.test_ready(A);
        match reply.sense {
            None => break,
            Some((SenseKey::NOT_READY, Asc::NOT_READY_BECOMING_READY)) => {
                let bytes = &reply.sense_bytes;
                told.extend((bytes[15] & 0x80 != 0).then(|| u16::from_be_bytes([bytes[16], bytes[17]])));
            }
            Some((key, _)) => assert_eq!(key, SenseKey::UNIT_ATTENTION),
        }
        folder.answer(true);
        folder.answer(false);
        rig.ready();
    }
    // 20 of 1024 MiB.
    assert!(told.is_sorted() && (1200..1400).contains(told.last().unwrap()), "{told:?}");
}

/// SEND DIAGNOSTIC with SELFTEST, the background tests and the foreground tests.
const SELF_TESTS: [u8; 5] = [0x04, 1 << 5, 2 << 5, 5 << 5, 6 << 5];

/// Runs a self-test; returns the reply, and the result of the last test that left one.
fn self_test(rig: &mut Rig, flags: u8) -> (Reply, Vec<u8>) {
    let reply = rig.run(A, &[op::SEND_DIAGNOSTIC, flags, 0, 0, 0, 0], 0, &[]);
    (reply, rig.query(&[op::LOG_SENSE, 0, 0x50, 0, 0, 0, 0, 1, 0xff, 0])[8..24].to_vec())
}

#[test]
fn a_drive_passes_its_self_test_with_and_without_a_cartridge() {
    let mut rig = tape();
    rig.write_block(&pattern(100, 1)).good();
    for is_loaded in [true, false] {
        for flags in SELF_TESTS {
            let (reply, result) = self_test(&mut rig, flags);
            reply.good();
            let code = if flags == 0x04 { 0 } else { flags };
            assert_eq!(result[0] & 0x0f, 0, "{flags:#x}");
            assert!(code == 0 || result[0] == code, "{flags:#x}");
        }
        if is_loaded {
            assert_eq!(rig.position().1, 1);
            rig.write_block(&pattern(100, 2)).good();
            rig.run(A, &UNLOAD, 0, &[]).good();
        }
    }
}

#[test]
fn a_drive_whose_cartridge_does_not_answer_fails_its_self_test() {
    let (mut rig, folder) = with(Kind::USUAL);
    folder.fail(Faults { label_read: Some(Fault::Medium), ..Faults::default() });
    for flags in SELF_TESTS {
        let (reply, result) = self_test(&mut rig, flags);
        let is_in_background = [1 << 5, 2 << 5].contains(&flags);
        if is_in_background {
            reply.good();
        } else {
            reply.check(SenseKey::HARDWARE_ERROR, Asc::LOGICAL_UNIT_FAILED_SELF_TEST);
        }
        if flags != 0x04 {
            assert_eq!((result[0], &result[4..12]), (flags | 5, &[0xff; 8][..]), "{flags:#x}");
        }
    }
}
