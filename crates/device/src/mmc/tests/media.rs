//! Ejecting, loading and replacing the disc, and what initiators learn of it.

use super::*;
use crate::testing::{Gate, Slow};

const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];

const NO_CHANGE: u8 = 0;
const EJECT_REQUEST: u8 = 1;
const NEW_MEDIA: u8 = 2;
const MEDIA_REMOVAL: u8 = 3;

const PRESENT: u8 = 2;
const OPEN: u8 = 1;

const TRAY_CLOSED: (SenseKey, Asc) = (SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT_TRAY_CLOSED);
const TRAY_OPEN: (SenseKey, Asc) = (SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT_TRAY_OPEN);

#[test]
fn an_ejected_disc_is_gone_until_it_is_loaded() {
    let mut rig = disc(CD);
    assert_eq!(rig.media_event(A), (NO_CHANGE, PRESENT));
    rig.run(A, &EJECT, 0, &[]).good();
    for nexus in [A, B] {
        assert_eq!(rig.test(nexus).sense, Some(TRAY_OPEN));
        assert_eq!(rig.media_event(nexus), (MEDIA_REMOVAL, OPEN));
        assert_eq!(rig.media_event(nexus), (NO_CHANGE, OPEN));
    }
    for cdb in [
        &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0][..],
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x43, 0, 0, 0, 0, 0, 0, 0, 20, 0],
        &[0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0],
        &[0xad, 0, 0, 0, 0, 0, 0, 0, 8, 4, 0, 0],
    ] {
        assert_eq!(rig.run(A, cdb, 4096, &[]).sense, Some(TRAY_OPEN));
    }
    assert_eq!(rig.get(&[0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]), [0, 0x10, 0, 0, 0, 1, 0, 0]);
    rig.run(A, &LOAD, 0, &[]).good();
    rig.test(A).good();
    rig.test(B).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.test(B).good();
    for nexus in [A, B] {
        assert_eq!(rig.media_event(nexus), (NEW_MEDIA, PRESENT));
    }
    assert_eq!(rig.get(&[0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]), [0, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn a_disc_that_a_nexus_holds_cannot_be_ejected() {
    let mut rig = disc(CD);
    rig.run(B, &PREVENT, 0, &[]).good();
    assert!(rig.unit.is_removal_prevented());
    rig.run(A, &EJECT, 0, &[]).illegal(Asc::MEDIUM_REMOVAL_PREVENTED);
    assert_eq!(rig.media_event(A), (NO_CHANGE, PRESENT));
    rig.unit.removal_requested(Instant::ORIGIN);
    for nexus in [A, B] {
        assert_eq!(rig.media_event(nexus), (EJECT_REQUEST, PRESENT));
    }
    rig.run(B, &ALLOW, 0, &[]).good();
    assert!(!rig.unit.is_removal_prevented());
    rig.run(A, &EJECT, 0, &[]).good();
    assert_eq!(rig.test(B).sense, Some(TRAY_OPEN));
}

#[test]
fn the_operator_replaces_the_disc() {
    let (mut rig, tray) = with_tray(CD);
    tray.put(DVD);
    rig.unit.medium_replaced(Instant::ORIGIN);
    for nexus in [A, B] {
        // Neither of these reports a unit attention, nor clears it.
        assert_eq!(rig.media_event(nexus), (NEW_MEDIA, PRESENT));
        assert_eq!(rig.run(nexus, &[0x46, 2, 0, 0, 0, 0, 0, 0, 8, 0], 8, &[]).good()[6..], [0, 0x10]);
        rig.test(nexus).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.test(nexus).good();
    }
    // 2 000 000 = 1E8480h.
    assert_eq!(rig.get(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]), [0, 0x1e, 0x84, 0x7f, 0, 0, 8, 0]);
}

#[test]
fn a_drive_is_emptied_and_filled_by_its_operator() {
    let (mut rig, tray) = with_tray(CD);
    tray.put(0);
    rig.unit.medium_replaced(Instant::ORIGIN);
    for nexus in [A, B] {
        assert_eq!(rig.test(nexus).sense, Some(TRAY_CLOSED));
        assert_eq!(rig.media_event(nexus), (MEDIA_REMOVAL, 0));
    }
    rig.run(A, &LOAD, 0, &[]).good();
    assert_eq!(rig.test(A).sense, Some(TRAY_CLOSED));
    rig.run(A, &EJECT, 0, &[]).good();
    assert_eq!(rig.test(A).sense, Some(TRAY_OPEN));
    assert_eq!(rig.media_event(A), (NO_CHANGE, OPEN), "an empty tray opened");
    tray.put(CD);
    rig.unit.medium_replaced(Instant::ORIGIN);
    assert_eq!(rig.media_event(A), (NEW_MEDIA, PRESENT), "the disc was put in, and the tray closed");
    rig.test(A).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
}

#[test]
fn a_drive_can_start_empty() {
    let tray = Tray::new(0);
    let mut rig = Rig::fresh(drive(None), Box::new(tray));
    rig.test(A).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    assert_eq!(rig.test(A).sense, Some(TRAY_CLOSED));
    assert_eq!(rig.media_event(A), (NO_CHANGE, 0));
}

/// A read that has begun returns data of one disc or of none.
#[test]
fn a_read_under_way_ends_when_the_disc_is_replaced() {
    let (store, gate): (Slow, Gate) = Slow::new(4096 * SECTOR);
    let mut rig = Rig::with(drive(None), Box::new(store));
    gate.close();
    let key = rig.start(A, &[0xa8, 0, 0, 0, 0, 0, 0, 0, 0x08, 0, 0, 0], 4 << 20, 0);
    rig.unit.medium_replaced(Instant::ORIGIN);
    gate.open();
    rig.ready();
    let reply = rig.finish(key, &[]);
    reply.check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    assert!(reply.data.is_empty());
}

#[test]
fn events_are_reported_by_class_and_kept_until_they_fit() {
    let mut rig = disc(CD);
    let poll = |rig: &mut Rig, polled: u8, classes: u8, len: u8| {
        rig.run(A, &[0x4a, polled, 0, 0, classes, 0, 0, 0, len, 0], usize::from(len), &[])
    };
    poll(&mut rig, 0, 0x10, 8).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(poll(&mut rig, 1, 0x08, 8).good(), [0, 2, 0x80, 0x56], "no such class");
    assert_eq!(poll(&mut rig, 1, 0x7e, 8).good(), [0, 6, 1, 0x56, 0, 0, 0, 0], "the first class");
    assert_eq!(poll(&mut rig, 1, 0x04, 8).good(), [0, 6, 2, 0x56, 0, 1, 0, 0], "active");
    assert_eq!(poll(&mut rig, 1, 0x40, 8).good(), [0, 6, 6, 0x56, 0, 0, 0, 0], "not busy");
    rig.run(B, &EJECT, 0, &[]).good();
    assert_eq!(poll(&mut rig, 1, 0x02, 8).good(), [0, 6, 1, 0x56, 0, 0, 0, 0], "not asked for");
    assert_eq!(poll(&mut rig, 1, 0x7e, 4).good(), [0, 6, 4, 0x56], "only the header fits");
    assert_eq!(poll(&mut rig, 1, 0x7e, 8).good(), [0, 6, 4, 0x56, MEDIA_REMOVAL, OPEN, 0, 0]);
    assert_eq!(poll(&mut rig, 1, 0x7e, 8).good(), [0, 6, 1, 0x56, 0, 0, 0, 0]);
}

#[test]
fn a_drive_passes_its_self_tests_with_a_disc_and_without() {
    for sectors in [CD, 0] {
        let mut rig = disc(sectors);
        for flags in [0x04, 1 << 5, 2 << 5, 5 << 5, 6 << 5] {
            rig.run(A, &[op::SEND_DIAGNOSTIC, flags, 0, 0, 0, 0], 0, &[]).good();
        }
    }
}
