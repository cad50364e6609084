//! The write cache: its setting, and the flush that hosts count on.

use store::powercut::Power;

use super::fixture::*;
use crate::contract::Tmf;

/// Returns whether MODE SENSE reports that the write cache is enabled.
#[track_caller]
fn is_enabled(rig: &mut Rig, nexus: NexusId) -> bool {
    let page = run(rig, nexus, &[op::MODE_SENSE_6, 8, 0x08, 0, 255, 0], &[]).good();
    page[4 + 2] & 0x04 != 0
}

/// Switches the setting by MODE SELECT.
#[track_caller]
fn switch(rig: &mut Rig, save: bool) {
    change_mode(rig, A, 0x08, save, (2, 0x04)).good();
    run(rig, B, &[0; 6], &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
}

#[test]
fn a_write_cache_that_a_host_disabled_stays_disabled_after_an_aborted_write() {
    let power = Power::new(BLOCKS * 512);
    let mut old = served(config(), Box::new(power.store()));
    switch(&mut old, true);
    // Two parts, of which the host sends one.
    let out = alloc::vec![7; 2 << 20];
    let key = old.start(A, &cdb_16(op::WRITE_16, 0, 0, 4096), 0, out.len());
    old.send(key, &out, 0, 1 << 20);
    let unacknowledged = power.sectors_at_risk();
    assert_eq!(unacknowledged, 2048);
    old.manage(A, Tmf::AbortTask(key));
    assert!(!is_enabled(&mut old, A));
    let mut new = resumed(config(), Box::new(power.store()), &export(&old));
    assert!(!is_enabled(&mut new, A2));
    run(&mut new, A2, &cdb_16(op::WRITE_16, 0, BLOCKS - 1, 1), &[1; 512]).good();
    assert_eq!(power.sectors_at_risk(), unacknowledged, "the write is durable when it is acknowledged");
}

#[test]
fn a_flush_that_is_owed_is_handed_over_apart_from_the_setting() {
    let power = Power::new(BLOCKS * 512);
    let mut old = served(config(), Box::new(power.store()));
    // The saved setting is off, the one in force is on until the reset.
    switch(&mut old, true);
    switch(&mut old, false);
    run(&mut old, A, &cdb_16(op::WRITE_16, 0, 3, 1), &[1; 512]).good();
    old.unit.reset(Instant::ORIGIN, Reset::LogicalUnit);
    old.drain();
    for nexus in [A, B] {
        while run(&mut old, nexus, &[0; 6], &[]).status != scsi::status::Status::GOOD {}
    }
    assert!(is_enabled(&mut old, A), "a host that reads 0 flushes no more");
    let mut new = resumed(config(), Box::new(power.store()), &export(&old));
    assert!(is_enabled(&mut new, A2));
    run(&mut new, A2, &[op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).good();
    assert_eq!(power.sectors_at_risk(), 0);
    assert!(!is_enabled(&mut new, A2), "the setting is off");
}
