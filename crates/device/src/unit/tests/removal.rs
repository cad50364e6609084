//! A unit that a nexus no longer sees, and a unit that is removed: everything is answered, and the medium is
//! waited for.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::contract::{TaskKey, Tmf, TmfKey, TmfOutcome, UnitEvent};
use crate::testing::{A, B, BLOCKS, Gate, Rig, Slow, cdb_16, config, nexus};
use base::time::Instant;
use scsi::opcode as op;
use scsi::sense::Asc;
use scsi::status::TaskAttribute;

const NOW: Instant = Instant::ORIGIN;

fn slow() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    (Rig::with(config(), Box::new(medium)), gate)
}

/// Starts a write whose data was received and whose operation was submitted to the medium.
fn start_write(rig: &mut Rig, nexus: crate::contract::NexusId, lba: u64, byte: u8) -> TaskKey {
    let key = rig.start(nexus, &cdb_16(op::WRITE_16, 0, lba, 1), 0, 512);
    assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
    rig.send(key, &[byte; 512], 0, 512);
    key
}

/// Removes and returns the pending events of a key.
fn answers(rig: &mut Rig, key: TaskKey) -> Vec<UnitEvent> {
    core::iter::from_fn(|| rig.event_of(key)).collect()
}

#[test]
fn a_nexus_that_loses_sight_of_the_unit_has_every_command_answered() {
    let (mut rig, gate) = slow();
    gate.close();
    let at_medium = start_write(&mut rig, A, 0, 7);
    let waits_for_data = rig.start(A, &cdb_16(op::WRITE_16, 0, 8, 1), 0, 512);
    assert!(matches!(rig.event_of(waits_for_data), Some(UnitEvent::FetchDataOut { .. })));
    let of_another = start_write(&mut rig, B, 32, 9);
    let behind = rig.start_as(A, TaskAttribute::Ordered, &cdb_16(op::READ_16, 0, 16, 1), 512, 0);
    rig.unit.nexus_withdrawn(NOW, A);
    rig.drain();
    for key in [at_medium, waits_for_data, behind] {
        rig.finish(key, &[]).illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED);
    }
    rig.send(waits_for_data, &[1; 512], 0, 512);
    gate.open();
    rig.ready();
    rig.finish(of_another, &[]).good();
    assert!(rig.events.is_empty(), "nothing is answered twice: {:?}", rig.events);
    rig.unit.nexus_established(NOW, nexus(A));
    rig.run(A, &[0; 6], 0, &[]).check(scsi::sense::SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    assert_eq!(rig.read(8, 1), [0; 512], "data that came later is for nobody");
}

#[test]
fn a_write_that_was_answered_while_the_medium_has_it_is_not_overtaken() {
    let (mut rig, gate) = slow();
    gate.close();
    let old = start_write(&mut rig, A, 0, 1);
    rig.unit.nexus_withdrawn(NOW, A);
    rig.drain();
    rig.finish(old, &[]).illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED);
    let new = start_write(&mut rig, B, 0, 2);
    assert_eq!(gate.held(), 1, "the later write waits for the earlier one");
    gate.open();
    rig.ready();
    rig.finish(new, &[]).good();
    let data = rig.run(B, &cdb_16(op::READ_16, 0, 0, 1), 512, &[]).good();
    assert_eq!(data, [2; 512]);
}

#[test]
fn functions_that_wait_are_answered_when_the_unit_goes_and_the_task_once() {
    let (mut rig, gate) = slow();
    gate.close();
    let aborted = start_write(&mut rig, A, 0, 7);
    assert_eq!(rig.manage(A, Tmf::AbortTask(aborted)), None);
    let reset = TmfKey(900);
    let other = start_write(&mut rig, B, 8, 7);
    rig.unit.execute_tmf(NOW, B, reset, Tmf::LogicalUnitReset);
    rig.drain();
    assert_eq!(rig.managed(reset), None);
    rig.unit.retire(NOW);
    rig.drain();
    assert!(matches!(answers(&mut rig, aborted).as_slice(), [UnitEvent::Aborted { .. }]));
    assert!(matches!(answers(&mut rig, other).as_slice(), [UnitEvent::Aborted { .. }]));
    assert_eq!(rig.managed(reset), Some(TmfOutcome::Complete));
    let left: Vec<_> = rig.events.drain(..).collect();
    let [UnitEvent::TmfComplete { outcome: TmfOutcome::Complete, .. }] = left.as_slice() else {
        panic!("{left:?}")
    };
    assert!(!rig.unit.is_retired(), "the medium still has two writes");
    gate.open();
    rig.ready();
    assert!(rig.unit.is_retired());
    assert!(rig.events.is_empty());
}

#[test]
fn a_command_whose_state_is_being_stored_is_answered_when_it_is_stored() {
    let mut rig = Rig::new();
    // REGISTER with APTPL.
    let key = rig.start(A, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, 24);
    let mut list = [0; 24];
    (list[15], list[20]) = (9, 1);
    let Some(UnitEvent::FetchDataOut { offset, len, .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &list, offset, len);
    rig.unit.retire(NOW);
    rig.drain();
    assert!(!rig.unit.is_retired());
    assert!(rig.keep(true).is_some());
    rig.finish(key, &[]).illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED);
    rig.ready();
    assert!(rig.unit.is_retired() && rig.events.is_empty());
}

/// The state is read again when the disk is added again.
#[test]
fn a_unit_is_not_closed_before_its_last_state_is_stored() {
    let mut rig = Rig::new();
    // SANITIZE with OVERWRITE and IMMED: its journal is saved in the background.
    let key = rig.start(A, &[0x48, 0x81, 0, 0, 0, 0, 0, 0, 5, 0], 0, 5);
    rig.send(key, &[1, 0, 0, 1, 0xaa], 0, 5);
    rig.unit.retire(NOW);
    rig.drain();
    rig.ready();
    assert!(!rig.unit.is_retired());
    assert!(rig.keep(true).is_some());
    rig.ready();
    assert!(rig.unit.is_retired());
}
