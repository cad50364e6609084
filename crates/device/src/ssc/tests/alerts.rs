//! TapeAlert flags.

use super::library::drive_with;
use super::*;
use crate::library::LibraryInput;

const UNLOAD: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];

fn log_cdb(page: u8) -> [u8; 10] {
    [0x4d, 0, 0x40 | page, 0, 0, 0, 0, 0x10, 0, 0]
}

/// Returns the TapeAlert flags that a host reads.
fn alerts_of(rig: &mut Rig, nexus: NexusId) -> Vec<u8> {
    let page = rig.run(nexus, &log_cdb(0x2e), 1 << 20, &[]).good();
    assert_eq!(page.len(), 4 + 64 * 5);
    page[4..].chunks(5).filter(|flag| flag[4] == 1).map(|flag| flag[1]).collect()
}

#[test]
fn tape_alerts_are_told_once_to_each_host() {
    let (mut rig, _) = with(Kind { is_worm: true, ..Kind::USUAL });
    let alerts = |rig: &mut Rig| alerts_of(rig, A);
    assert_eq!(alerts(&mut rig), [0; 0]);
    rig.write_block(&[0; 10]).good();
    rig.rewind();
    assert!(rig.write_block(&[0; 10]).sense.is_some());
    // A request that is refused reads nothing.
    rig.run(A, &[0x4d, 0, 0x6e, 1, 0, 0, 0, 0x10, 0, 0], 1 << 20, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    // Programs read the header first, and some receive less than they request.
    rig.run(A, &[0x4d, 0, 0x6e, 0, 0, 0, 0, 0, 4, 0], 4, &[]).good();
    rig.run(A, &log_cdb(0x2e), 100, &[]).good();
    assert_eq!(alerts(&mut rig), [0x3c]);
    assert_eq!(alerts(&mut rig), [0; 0]);
    // tapeinfo and the programs that call it leave PC zero.
    let page = rig.run(B, &[0x4d, 0, 0x2e, 0, 0, 0, 0, 0x10, 0, 0], 1 << 20, &[]).good();
    let flags = page[4..].chunks(5).filter(|flag| flag[4] == 1).map(|flag| flag[1]);
    assert_eq!(flags.collect::<Vec<_>>(), [0x3c]);
    assert_eq!(alerts_of(&mut rig, B), [0; 0]);
}

#[test]
fn tape_alerts_are_raised_by_what_the_drive_refuses() {
    let (mut rig, folder) = with(Kind { is_worm: true, ..Kind::USUAL });
    rig.run(A, &[0x04, 0, 0, 0, 0, 0], 0, &[]).check(SenseKey::DATA_PROTECT, Asc::WORM_OVERWRITE_ATTEMPTED);
    assert_eq!(alerts_of(&mut rig, A), [0x3c]);
    rig.run(B, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.run(A, &UNLOAD, 0, &[]).illegal(Asc::MEDIUM_REMOVAL_PREVENTED);
    assert_eq!(alerts_of(&mut rig, A), [0x0a]);
    assert_eq!(alerts_of(&mut rig, B), [0x0a, 0x3c]);
    let mut rig = Rig::with(UnitConfig { read_only: true, ..drive() }, Box::new(folder.after_kill()));
    rig.write_block(&[0; 10]).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    assert_eq!(alerts_of(&mut rig, A), [0x09]);
}

#[test]
fn the_write_protect_switch_of_a_cartridge_raises_an_alert() {
    for refused in [&cdb_6(op::WRITE_6, 0, 10)[..], &[0x10, 0, 0, 0, 1, 0], &[0x19, 0, 0, 0, 0, 0]] {
        let (mut rig, _) = with(Kind { is_protected: true, ..Kind::USUAL });
        assert_eq!(alerts_of(&mut rig, A), [0; 0]);
        let data: &[u8] = if refused[0] == op::WRITE_6 { &[0; 10] } else { &[] };
        rig.run(A, refused, 0, data).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
        assert_eq!(alerts_of(&mut rig, A), [0x09]);
    }
}

#[test]
fn a_host_that_may_only_read_raises_no_alert_by_a_write() {
    let mut rig = tape();
    let access = crate::contract::Access::ReadOnly;
    rig.unit.nexus_changed(Instant::ORIGIN, crate::contract::Nexus { access, ..crate::testing::nexus(B) });
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    rig.run(B, &cdb_6(op::WRITE_6, 0, 10), 0, &[0; 10]).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    assert_eq!(alerts_of(&mut rig, A), [0; 0]);
}

#[test]
fn tape_alerts_end_with_the_next_load() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(5000, 1)).good();
    rig.mark(1).good();
    rig.run(A, &UNLOAD, 0, &[]).good();
    folder.damage(64 + 64 + 100);
    rig.run(A, &LOAD, 0, &[]).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.read_block(5000).check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    // A host that looks after its unload sees them.
    rig.run(A, &UNLOAD, 0, &[]).good();
    assert_eq!(alerts_of(&mut rig, A), [3, 4, 5]);
    rig.run(A, &LOAD, 0, &[]).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(alerts_of(&mut rig, B), [0; 0]);
}

#[test]
fn tape_alerts_of_a_cartridge_are_not_told_of_the_next_one() {
    let damaged = Folder::new(Kind::USUAL);
    let (mut rig, bay) = drive_with(Some(damaged.clone()));
    rig.write_block(&pattern(5000, 1)).good();
    rig.mark(1).good();
    damaged.damage(64 + 64 + 100);
    rig.run(A, &UNLOAD, 0, &[]).good();
    rig.run(A, &LOAD, 0, &[]).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.read_block(5000).check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    assert_eq!(rig.eject(), Some(Ok(())));
    // The drive is empty: no host is told of what is elsewhere now, nor is one that comes later.
    let third = NexusId(7);
    rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(third));
    rig.test_ready(third);
    for nexus in [A, B, third] {
        assert_eq!(alerts_of(&mut rig, nexus), [0; 0]);
    }
    bay.put(Some(Folder::new(Kind::USUAL)));
    rig.tell_library(LibraryInput::Inserted);
    for nexus in [A, B, third] {
        rig.test_ready(nexus).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        assert_eq!(alerts_of(&mut rig, nexus), [0; 0]);
    }
}

#[test]
fn a_cartridge_that_the_library_may_not_take_raises_an_alert() {
    let (mut rig, _) = drive_with(Some(Folder::new(Kind::USUAL)));
    rig.run(B, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
    assert_eq!(rig.eject(), Some(Err((SenseKey::ILLEGAL_REQUEST, Asc::MEDIUM_REMOVAL_PREVENTED))));
    assert_eq!(alerts_of(&mut rig, A), [0x0a]);
}
