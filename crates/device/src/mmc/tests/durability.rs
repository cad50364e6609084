//! What a drain, the removal of the unit and another disc make durable, and failures to do so.

use super::*;
use crate::drain::Drain;
use crate::removal_obstacle::RemovalObstacle;
use crate::testing::cdb_10;

const CAPACITY: u32 = 640;
const SYNCHRONIZE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const LOST: (SenseKey, Asc) = (SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);

/// Returns a drive with a BD-R, or with a formatted BD-RE, that has 32 sectors which no host has
/// synchronized.
fn written(kind: WritableKind) -> (Rig, Drawer, Blank) {
    let disc = Blank::new(kind, CAPACITY);
    let (mut rig, drawer) = Drawer::with(&disc);
    if kind == WritableKind::BdRe {
        let list = [0, 0x02, 0, 8, 0, 0, 0x02, 0x80, 0x31 << 2, 0, 0, 0];
        rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list).good();
    }
    write(&mut rig, 0).good();
    assert!(disc.power.sectors_at_risk() > 0);
    (rig, drawer, disc)
}

fn write(rig: &mut Rig, lba: u32) -> Reply {
    rig.run(A, &cdb_10(op::WRITE_10, 0, lba, 32), 0, &[7; 32 * 2048])
}

fn is_flush(action: &OpAction) -> bool {
    matches!(action, OpAction::Flush)
}

/// Writes of hosts are cached, that of the record is not.
fn is_record(action: &OpAction) -> bool {
    matches!(action, OpAction::Write { durability: Durability::Stable, .. })
}

#[test]
fn a_drain_makes_durable_what_no_host_has_synchronized() {
    for kind in [WritableKind::BdR, WritableKind::BdRe] {
        let (mut rig, _, disc) = written(kind);
        rig.unit.set_drained(Instant::ORIGIN, true);
        assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
        assert_eq!(disc.power.sectors_at_risk(), 0, "{kind:?}");
        assert!(disc.record().readable() >= 32, "{kind:?}");
        // A DVD writer would fail by a unit attention.
        rig.unit.set_drained(Instant::ORIGIN, false);
        write(&mut rig, 32).good();
    }
}

#[test]
fn a_drain_that_cannot_make_it_durable_says_so() {
    for fails in [is_flush, is_record] {
        let (mut rig, drawer, _) = written(WritableKind::BdR);
        drawer.fail(fails);
        rig.unit.set_drained(Instant::ORIGIN, true);
        assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: true });
    }
}

#[test]
fn what_keeps_the_operator_from_a_disc_is_saved_on_request() {
    for fails in [None, Some(is_flush as fn(&OpAction) -> bool), Some(is_record)] {
        let (mut rig, drawer, disc) = written(WritableKind::BdR);
        assert_eq!(rig.unit.removal_obstacle(), Some(RemovalObstacle::Unsaved));
        drawer.fail(fails.unwrap_or(|_| false));
        drawer.tell(false);
        disc.power.hold();
        rig.unit.save_medium(Instant::ORIGIN);
        rig.drain();
        assert_eq!(rig.unit.removal_obstacle(), Some(RemovalObstacle::Saving));
        rig.run(A, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
        assert_eq!(rig.unit.removal_obstacle(), Some(RemovalObstacle::InUse), "a host prevents it meanwhile");
        rig.run(A, &[0x1e, 0, 0, 0, 0, 0], 0, &[]).good();
        drawer.tell(true);
        let mut rng = Rng::from_seed(0);
        while disc.power.begin_one(&mut rng) {
            rig.ready();
        }
        rig.ready();
        rig.test(A).good();
        let obstacle = fails.map(|_| RemovalObstacle::Unsaved);
        assert_eq!(rig.unit.removal_obstacle(), obstacle);
        assert_eq!(disc.record().readable() == 32, fails.is_none());
    }
}

#[test]
fn a_removed_unit_makes_durable_what_no_host_has_synchronized() {
    for kind in [WritableKind::BdR, WritableKind::BdRe] {
        let (mut rig, _, disc) = written(kind);
        rig.unit.retire(Instant::ORIGIN);
        rig.ready();
        assert!(rig.unit.is_retired());
        assert_eq!(disc.power.sectors_at_risk(), 0, "{kind:?}");
        assert!(disc.record().readable() >= 32, "{kind:?}");
    }
}

#[test]
fn a_failed_flush_of_one_disc_says_nothing_of_the_next() {
    for is_late in [false, true] {
        let (mut rig, drawer, _) = written(WritableKind::BdR);
        drawer.fail(is_flush);
        drawer.tell(!is_late);
        let key = rig.start(A, &SYNCHRONIZE, 0, 0);
        if !is_late {
            assert_eq!(rig.finish(key, &[]).sense, Some(LOST));
        }
        drawer.fail(|_| false);
        drawer.put(&mut rig, &Blank::new(WritableKind::BdR, CAPACITY));
        drawer.tell(true);
        rig.ready();
        if is_late {
            rig.finish(key, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        }
        rig.test(A).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        write(&mut rig, 0).good();
        rig.run(A, &SYNCHRONIZE, 0, &[]).good();
    }
}

/// Nothing is closed on a disc whose padding failed, and what comes after it is written as before.
#[test]
fn an_append_that_failed_names_its_first_sector_because_none_of_it_counts() {
    const PART: u64 = 1 << 20;
    let disc = Blank::new(WritableKind::BdR, 3200);
    let (mut rig, drawer) = Drawer::with(&disc);
    drawer.fail(|action| matches!(action, OpAction::Write { at: PART, .. }));
    let data = alloc::vec![1; 2 << 20];
    let reply = rig.run(A, &cdb_10(op::WRITE_10, 0, 0, 1024), 0, &data);
    reply.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert_eq!(reply.information(), Some(0));
    drawer.fail(|_| false);
    rig.run(A, &cdb_10(op::WRITE_10, 0, 0, 1024), 0, &data).good();
}

#[test]
fn a_close_whose_padding_fails_changes_nothing() {
    const CLOSE: [u8; 10] = [0x5b, 1, 1, 0, 0, 1, 0, 0, 0, 0];
    let disc = Blank::new(WritableKind::BdR, CAPACITY);
    let (mut rig, drawer) = Drawer::with(&disc);
    rig.run(A, &cdb_10(op::WRITE_10, 0, 0, 16), 0, &[1; 16 * 2048]).good();
    drawer.fail(|action| matches!(action, OpAction::WriteZeroes { .. }));
    rig.run(A, &CLOSE, 0, &[]).check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    drawer.fail(|_| false);
    rig.run(A, &SYNCHRONIZE, 0, &[]).good();
    assert_eq!((disc.record().tracks().len(), disc.record().readable()), (1, 16));
    rig.run(A, &cdb_10(op::WRITE_10, 0, 16, 8), 0, &[2; 8 * 2048]).good();
    disc.power.hold();
    let key = rig.start(A, &CLOSE, 0, 0);
    let meanwhile = rig.run(B, &cdb_10(op::WRITE_10, 0, 24, 1), 0, &[3; 2048]);
    meanwhile.check(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_NOT_READY_LONG_WRITE_IN_PROGRESS);
    let mut rng = Rng::from_seed(0);
    while disc.power.begin_one(&mut rng) {
        rig.ready();
    }
    rig.finish(key, &[]).good();
    assert_eq!((disc.record().tracks().len(), disc.record().readable()), (2, 32));
}
