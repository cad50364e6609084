//! What keeps a unit from being handed over.

use super::fixture::*;
use crate::contract::{Tmf, UnitEvent};
use crate::testing::{BLOCKS, Slow};

#[track_caller]
fn refuses(rig: &Rig, why: UnitBusy) {
    assert_eq!(rig.unit.busy(), Some(why));
    assert_eq!(rig.unit.export(Instant::ORIGIN, index_of), Err(why));
}

#[test]
fn a_unit_with_work_is_not_handed_over() {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let mut rig = Rig::with(config(), Box::new(medium));
    assert_eq!(rig.unit.busy(), None);
    // A command waits for its data, then for the medium.
    let write = rig.start(A, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    refuses(&rig, UnitBusy::Commands);
    gate.close();
    rig.send(write, &[1; 512], 0, 512);
    refuses(&rig, UnitBusy::Commands);
    // Its operation goes on after it was aborted, and a function waits for that.
    assert_eq!(rig.manage(A, Tmf::AbortTaskSet), None);
    refuses(&rig, UnitBusy::Commands);
    // The operations of a nexus that no longer sees the unit are abandoned.
    let read = rig.start(B, &cdb_16(op::READ_16, 0, 8, 1), 512, 0);
    rig.unit.nexus_withdrawn(Instant::ORIGIN, B);
    rig.unit.nexus_withdrawn(Instant::ORIGIN, A);
    rig.drain();
    assert!(rig.event_of(read).is_some());
    refuses(&rig, UnitBusy::Medium);
    gate.open();
    rig.ready();
    assert_eq!(rig.unit.busy(), None);
}

#[test]
fn a_unit_that_stores_state_is_not_handed_over() {
    let mut rig = Rig::new();
    let key = rig.start(A, &[op::MAINTENANCE_OUT, 0x06, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0], 0, 3);
    rig.send(key, &[1, 2, 3], 0, 3);
    assert!(rig.events.iter().any(|event| matches!(event, UnitEvent::SaveState { .. })));
    refuses(&rig, UnitBusy::Commands);
    // The task is gone, and its state is still being stored.
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    assert!(rig.unit.busy().is_some());
    rig.keep(true);
    assert_eq!(rig.unit.busy(), None);
}

#[test]
fn a_unit_with_undelivered_events_is_not_handed_over() {
    let mut rig = Rig::new();
    let command = crate::contract::Command {
        nexus: A,
        key: crate::contract::TaskKey(900),
        level: security::Level::None,
        attribute: scsi::status::TaskAttribute::Simple,
        priority: 0,
        cdb: scsi::cdb::Cdb::from_bytes(&[0; 6]).unwrap(),
        data_in_len: 0,
        data_out_len: 0,
    };
    rig.unit.execute(Instant::ORIGIN, command);
    refuses(&rig, UnitBusy::Events);
    rig.drain();
    assert_eq!(rig.unit.busy(), None);
}

#[test]
fn a_format_or_a_drain_or_a_removal_under_way_keeps_the_unit() {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let mut rig = Rig::with(config(), Box::new(medium));
    gate.close();
    rig.unit.set_drained(Instant::ORIGIN, true);
    refuses(&rig, UnitBusy::Draining);
    gate.open();
    rig.ready();
    assert_eq!(rig.unit.busy(), None);
    rig.unit.set_drained(Instant::ORIGIN, false);
    rig.unit.withhold_medium(Instant::ORIGIN, true);
    refuses(&rig, UnitBusy::Withheld);
    rig.unit.withhold_medium(Instant::ORIGIN, false);
    gate.close();
    rig.run(A, &[0; 6], 0, &[]);
    let format = rig.start(A, &[op::FORMAT_UNIT, 0x10, 0, 0, 0, 0], 0, 4);
    rig.send(format, &[0, 0x02, 0, 0], 0, 4);
    rig.keep(true);
    assert!(matches!(rig.unit.busy(), Some(UnitBusy::Sanitizing | UnitBusy::Commands)));
    gate.open();
    rig.unit.retire(Instant::ORIGIN);
    refuses(&rig, UnitBusy::Retiring);
}
