//! Another writable disc is put into the drive while commands for the former one are under way.

use super::*;
use crate::contract::UnitEvent;
use crate::testing::{cdb_10, pattern};

const CAPACITY: u32 = 640;
const SYNCHRONIZE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const FORMAT: [u8; 6] = [0x04, 0x11, 0, 0, 0, 0];
/// A parameter list of FORMAT UNIT for all sectors, without spare areas.
const LIST: [u8; 12] = [0, 0x02, 0, 8, 0, 0, 0x02, 0x80, 0x31 << 2, 0, 0, 0];
const SECTORS: u16 = 4;

fn write() -> [u8; 10] {
    cdb_10(op::WRITE_10, 0, 0, SECTORS)
}

fn read() -> [u8; 10] {
    cdb_10(op::READ_10, 0, 0, SECTORS)
}

/// Makes a formatted BD-RE with data at its begin.
fn written(salt: u8) -> (Blank, Vec<u8>) {
    let disc = Blank::new(WritableKind::BdRe, CAPACITY);
    let data = pattern(usize::from(SECTORS) * 2048, salt);
    let mut rig = disc.drive();
    rig.run(A, &FORMAT, 0, &LIST).good();
    rig.run(A, &write(), 0, &data).good();
    rig.run(A, &SYNCHRONIZE, 0, &[]).good();
    (disc, data)
}

/// Two discs in turn: one command is begun for the first, `meanwhile` continues it with the second in the
/// drive, and the second must be as it was.
#[track_caller]
fn check(
    begin: impl Fn(&mut Rig, &Blank) -> crate::contract::TaskKey,
    meanwhile: impl Fn(&mut Rig, &Blank, crate::contract::TaskKey),
) {
    let ((first, _), (second, data)) = (written(1), written(2));
    let (mut rig, drawer) = Drawer::with(&first);
    let key = begin(&mut rig, &first);
    drawer.put(&mut rig, &second);
    meanwhile(&mut rig, &first, key);
    rig.finish(key, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.test(A).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    assert!(rig.run(A, &read(), data.len(), &[]).good() == data, "the second disc was written");
    assert_eq!(second.record().formatted, CAPACITY);
}

fn begin_all(rig: &mut Rig, disc: &Blank) {
    let mut rng = Rng::from_seed(0);
    while disc.power.begin_one(&mut rng) {
        rig.ready();
    }
}

#[test]
fn data_of_a_write_for_the_former_disc_is_discarded() {
    let data = pattern(usize::from(SECTORS) * 2048, 9);
    let begin = |rig: &mut Rig, _: &Blank| {
        let key = rig.start(A, &write(), 0, data.len());
        assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
        assert!(rig.unit.is_removal_prevented(), "the write is under way");
        key
    };
    check(begin, |rig, _, key| rig.send(key, &data, 0, u32::try_from(data.len()).unwrap()));
}

#[test]
fn a_parameter_list_for_the_former_disc_formats_no_other() {
    let begin = |rig: &mut Rig, _: &Blank| {
        let key = rig.start(A, &FORMAT, 0, LIST.len());
        assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
        assert!(rig.unit.is_removal_prevented(), "the format is under way");
        key
    };
    check(begin, |rig, _, key| rig.send(key, &LIST, 0, 12));
}

/// Begins a command while a read of the same sectors is under way, so that it must wait.
fn behind_a_read(rig: &mut Rig, disc: &Blank, cdb: &[u8], out: &[u8]) -> crate::contract::TaskKey {
    disc.power.hold();
    rig.start(B, &read(), 8192, 0);
    let key = rig.start(A, cdb, 0, out.len());
    assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
    rig.send(key, out, 0, u32::try_from(out.len()).unwrap());
    key
}

#[test]
fn a_format_that_waits_for_its_turn_erases_no_other_disc() {
    let begin = |rig: &mut Rig, disc: &Blank| behind_a_read(rig, disc, &FORMAT, &LIST);
    check(begin, |rig, first, _| begin_all(rig, first));
}

#[test]
fn a_write_that_waits_for_a_read_goes_to_no_other_disc() {
    let data = pattern(usize::from(SECTORS) * 2048, 9);
    let begin = |rig: &mut Rig, disc: &Blank| behind_a_read(rig, disc, &write(), &data);
    check(begin, |rig, first, _| begin_all(rig, first));
}
