//! A drive that is handed over to another process while its cartridge is loaded.

use base::buffer::Pool;

use super::encryption::{ALL, ENCRYPT, KEY, encrypting, page};
use super::*;
use crate::handover::{UnitBusy, UnitState};
use crate::testing::nexus;
use crate::unit::LogicalUnit;

fn index_of(id: NexusId) -> Option<u32> {
    [A, B].iter().position(|known| *known == id).and_then(|at| u32::try_from(at).ok())
}

fn nexus_of(index: u32) -> Option<NexusId> {
    [A, B].get(usize::try_from(index).unwrap()).copied()
}

/// Returns the state of a unit, as it is after it was encoded and decoded, and its text.
#[track_caller]
fn exported(rig: &mut Rig) -> (UnitState, String) {
    if rig.unit.busy() == Some(UnitBusy::Unsynchronized) {
        rig.unit.prepare_handover(Instant::ORIGIN);
    }
    let state = rig.unit.export(Instant::ORIGIN, index_of).unwrap();
    let text = serde_json::to_string(&state).unwrap();
    let back = serde_json::from_str(&text).unwrap();
    assert_eq!(state, back);
    (back, text)
}

/// Returns the drive of the next process. The folder answers nothing until it has taken over.
#[track_caller]
fn next(folder: &Folder, state: &UnitState) -> Rig {
    folder.answer(false);
    let mut unit =
        LogicalUnit::new_to_restore(drive(), Box::new(folder.clone()), Pool::new(1 << 20)).unwrap();
    unit.seed(&[9; 32]);
    for id in [A, B] {
        unit.nexus_established(Instant::ORIGIN, nexus(id));
    }
    unit.restore(Instant::ORIGIN, state, nexus_of).unwrap();
    assert_eq!(folder.held(), 0, "it does nothing on the cartridge");
    folder.answer(true);
    Rig { unit, next_key: 1, events: alloc::collections::VecDeque::new() }
}

#[track_caller]
fn handed_over(mut rig: Rig, folder: &Folder) -> Rig {
    let (state, _) = exported(&mut rig);
    next(folder, &state)
}

#[test]
fn the_position_and_the_records_are_those_of_before() {
    let (mut rig, folder) = with(Kind::USUAL);
    for number in 0..4_u8 {
        rig.write_block(&[number; 600]).good();
    }
    assert_eq!(rig.unit.busy(), Some(UnitBusy::Unsynchronized));
    let mut rig = handed_over(rig, &folder);
    assert_eq!(rig.position(), (0, 4, 0));
    rig.write_block(&[4; 600]).good();
    rig.mark(1).good();
    rig.write_block(&[5; 600]).good();
    let mut rig = handed_over(rig, &folder);
    assert_eq!(rig.position(), (0, 7, 1));
    rig.test_ready(A).good();
    rig.test_ready(B).good();
    rig.space(0, -6).stopped(FILEMARK, MARK, Some(5));
    rig.space(0, -4).good();
    let mut rig = handed_over(rig, &folder);
    for number in 1..5_u8 {
        assert_eq!(rig.read_block(600).good(), [number; 600]);
    }
    // What was synchronized survives the loss of power, and one load is counted.
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(600).good(), [0; 600]);
    rig.space(3, 0).good();
    assert_eq!(rig.position(), (0, 7, 1));
}

#[test]
fn keys_move_and_are_only_in_the_state() {
    let (mut rig, folder) = encrypting(Kind::USUAL);
    rig.security_out(A, &page(ALL, 0, ENCRYPT, &KEY, &[])).good();
    rig.write_block(&[1; 600]).good();
    let status = rig.security_in(A, 0x20);
    let (state, text) = exported(&mut rig);
    assert!(text.contains(&"11".repeat(32)), "the document has the key");
    assert!(!alloc::format!("{state:?}").contains("1111"), "what is printed has it not");
    let mut rig = next(&folder, &state);
    assert_eq!(rig.security_in(A, 0x20), status);
    rig.write_block(&[2; 600]).good();
    rig.rewind();
    assert_eq!(rig.read_block(600).good(), [1; 600]);
    assert_eq!(rig.read_block(600).good(), [2; 600]);
    assert_eq!(folder.count_of(&[2; 600]), 0, "it is encrypted");
}

#[test]
fn the_settings_of_each_nexus_move() {
    let (mut rig, folder) = with(Kind::USUAL);
    let header = |rig: &mut Rig, id| rig.run(id, &[0x5a, 0, 0x0a, 0xf0, 0, 0, 0, 0, 255, 0], 255, &[]).good();
    let mut protection = vec![0, 0, 0, 0x10, 0, 0, 0, 0, 0x4a, 0xf0, 0, 28, 1, 4, 0x40];
    protection.resize(40, 0);
    rig.set_block_len(512);
    rig.run(B, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 40, 0], 0, &protection).good();
    let before = [A, B].map(|id| header(&mut rig, id));
    assert_ne!(before[0], before[1]);
    let mut rig = handed_over(rig, &folder);
    assert_eq!([A, B].map(|id| header(&mut rig, id)), before);
    rig.test_ready(A).good();
    rig.test_ready(B).good();
}

#[test]
fn a_document_with_impossible_settings_is_refused() {
    let (mut rig, folder) = with(Kind::USUAL);
    let (_, text) = exported(&mut rig);
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    *document.pointer_mut("/server/settings/stream/block_len").unwrap() = u32::MAX.into();
    let mut unit =
        LogicalUnit::new_to_restore(drive(), Box::new(folder.clone()), Pool::new(1 << 20)).unwrap();
    let state = serde_json::from_value(document).unwrap();
    let refused = unit.restore(Instant::ORIGIN, &state, nexus_of);
    assert_eq!(refused, Err(crate::handover::RestoreError::Settings));
}

#[test]
fn an_unloaded_cartridge_stays_unloaded_and_another_one_is_not_taken_for_it() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    let (state, _) = exported(&mut rig);
    let mut rig = next(&folder, &state);
    rig.test_ready(A).check(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);
    rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.test_ready(A).good();
    let empty = Box::new(store::null::Null::new(0));
    let mut unit = LogicalUnit::new_to_restore(drive(), empty, Pool::new(1 << 20)).unwrap();
    let refused = unit.restore(Instant::ORIGIN, &state, nexus_of);
    assert_eq!(refused, Err(crate::handover::RestoreError::Cartridge));
}

#[test]
fn a_cartridge_that_is_not_synchronized_or_has_lost_writes_keeps_the_drive() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&[1; 600]).good();
    folder.answer(false);
    rig.unit.prepare_handover(Instant::ORIGIN);
    assert_eq!(rig.unit.export(Instant::ORIGIN, index_of), Err(UnitBusy::Medium));
    folder.answer(true);
    rig.ready();
    assert_eq!(rig.unit.busy(), None);
    rig.write_block(&[2; 600]).good();
    folder.fail_writes(Some(Fault::Medium));
    rig.unit.prepare_handover(Instant::ORIGIN);
    assert_eq!(rig.unit.busy(), Some(UnitBusy::LostWrites));
    assert!(!UnitBusy::LostWrites.can_end());
}
