//! DVD+RW and BD-RE: formatted, and then written at any address.

use super::*;

const CAPACITY: u32 = 3200;
const SYNCHRONIZE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const NOT_FORMATTED: (SenseKey, Asc) = (SenseKey::ILLEGAL_REQUEST, Asc::MEDIUM_NOT_FORMATTED);

fn blank(kind: WritableKind) -> Blank {
    Blank::new(kind, CAPACITY)
}

fn write(lba: u32, sectors: u16) -> [u8; 10] {
    crate::testing::cdb_10(op::WRITE_10, 0, lba, sectors)
}

fn read(lba: u32, sectors: u16) -> [u8; 10] {
    crate::testing::cdb_10(op::READ_10, 0, lba, sectors)
}

/// Returns a parameter list of FORMAT UNIT.
fn list(sectors: u32, format: u8, last: u8) -> [u8; 12] {
    let [a, b, c, d] = sectors.to_be_bytes();
    [0, 0x02, 0, 8, a, b, c, d, format << 2, 0, 0, last]
}

#[track_caller]
fn format(rig: &mut Rig, sectors: u32, format: u8) {
    rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list(sectors, format, 0)).good();
}

/// Returns a drive with a formatted disc, and the disc.
fn formatted(kind: WritableKind) -> (Rig, Blank) {
    let disc = blank(kind);
    let mut rig = disc.drive();
    let how = if kind == WritableKind::BdRe { 0x31 } else { 0x26 };
    format(&mut rig, CAPACITY, how);
    (rig, disc)
}

fn capacity(rig: &mut Rig) -> u32 {
    let data = rig.get(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    u32::from_be_bytes(data[..4].try_into().unwrap())
}

#[test]
fn a_blank_disc_is_present_and_must_be_formatted() {
    for (kind, profile) in [(WritableKind::DvdPlusRw, 0x1a), (WritableKind::BdRe, 0x43)] {
        let mut rig = blank(kind).drive();
        rig.test(A).good();
        assert_eq!(rig.get(&[0x46, 2, 0, 0, 0, 0, 0, 0, 8, 0])[6..8], [0, profile]);
        assert_eq!(rig.run(A, &write(0, 1), 0, &[1; 2048]).sense, Some(NOT_FORMATTED));
        rig.run(A, &read(0, 1), 2048, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
        rig.run(A, &[0x43, 0, 0, 0, 0, 0, 0, 0, 100, 0], 100, &[])
            .illegal(Asc::CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT);
        let disc = rig.get(&[0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0]);
        assert_eq!((disc[2], disc[7]), (0x10, 0x20), "erasable and blank, no format");
        let formats = rig.get(&[0x23, 0, 0, 0, 0, 0, 0, 0, 252, 0]);
        assert_eq!(formats[4..12], [0, 0, 0x0c, 0x80, 1, 0, 0x08, 0], "unformatted");
    }
}

#[test]
fn the_formats_of_each_kind_are_offered() {
    let types = |kind| {
        let formats = blank(kind).drive().get(&[0x23, 0, 0, 0, 0, 0, 0, 0, 252, 0]);
        assert_eq!(usize::from(formats[3]), formats.len() - 4);
        formats[12..]
            .chunks(8)
            .map(|entry| (u32::from_be_bytes(entry[..4].try_into().unwrap()), entry[4] >> 2))
            .collect::<Vec<_>>()
    };
    assert_eq!(types(WritableKind::DvdPlusRw), [(3200, 0x00), (3200, 0x26)]);
    assert_eq!(types(WritableKind::BdRe), [(3072, 0x00), (3072, 0x30), (3200, 0x31)]);
    assert_eq!(types(WritableKind::BdR), [(3072, 0x00), (3072, 0x32)]);
    assert_eq!(types(WritableKind::DvdR), []);
    let mut empty = disc(0);
    assert_eq!(empty.get(&[0x23, 0, 0, 0, 0, 0, 0, 0, 252, 0])[4..12], [0, 0xba, 0x74, 0, 3, 0, 0x08, 0]);
    let mut rom = disc(CD);
    assert_eq!(rom.get(&[0x23, 0, 0, 0, 0, 0, 0, 0, 252, 0])[4..12], [0, 0x04, 0x93, 0xe0, 2, 0, 0x08, 0]);
}

#[test]
fn a_formatted_disc_is_complete_and_written_at_any_address() {
    for kind in [WritableKind::DvdPlusRw, WritableKind::BdRe] {
        let (mut rig, _) = formatted(kind);
        rig.test(B).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
        assert_eq!(capacity(&mut rig), CAPACITY - 1);
        let disc = rig.get(&[0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0]);
        assert_eq!((disc[2], disc[7]), (0x1e, 0x23), "erasable and complete, format complete");
        for (lba, byte) in [(3199, 3), (0, 1), (1600, 2), (0, 4)] {
            rig.run(A, &write(lba, 1), 0, &[byte; 2048]).good();
            assert_eq!(rig.run(A, &read(lba, 1), 2048, &[]).good(), [byte; 2048]);
        }
        assert_eq!(rig.run(A, &read(1, 1), 2048, &[]).good(), [0; 2048]);
        let twelve = crate::testing::cdb_12(op::WRITE_12, 0, 8, 2);
        rig.run(A, &twelve, 0, &[7; 4096]).good();
        assert_eq!(rig.run(A, &read(9, 1), 2048, &[]).good(), [7; 2048]);
        rig.run(A, &write(3200, 1), 0, &[1; 2048]).illegal(Asc::LBA_OUT_OF_RANGE);
        rig.run(A, &[0x5b, 1, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).good();
        rig.run(A, &[0x5b, 1, 2, 0, 0, 0, 0, 0, 0, 0], 0, &[]).good();
        rig.run(A, &[0x5b, 1, 1, 0, 0, 1, 0, 0, 0, 0], 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn formatting_again_erases_and_restarting_does_not() {
    let (mut rig, disc) = formatted(WritableKind::DvdPlusRw);
    rig.run(A, &write(5, 1), 0, &[5; 2048]).good();
    rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list(CAPACITY, 0x26, 1)).good();
    assert_eq!(rig.run(A, &read(5, 1), 2048, &[]).good(), [5; 2048]);
    format(&mut rig, u32::MAX, 0x26);
    assert_eq!(rig.run(A, &read(5, 1), 2048, &[]).good(), [0; 2048]);
    assert_eq!(disc.record().formatted, CAPACITY);
}

#[test]
fn every_host_hears_of_the_capacity_of_a_formatted_disc() {
    const NEW_MEDIA: u8 = 2;
    let (mut rig, _) = formatted(WritableKind::BdRe);
    rig.test(B).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
    for nexus in [A, B] {
        assert_eq!(rig.media_event(nexus).0, NEW_MEDIA);
        assert_eq!(rig.media_event(nexus).0, 0);
    }
    // With spare areas there is less room.
    format(&mut rig, u32::MAX, 0x30);
    assert_eq!(capacity(&mut rig), 3071);
    rig.test(B).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
    assert_eq!([rig.media_event(A).0, rig.media_event(B).0], [NEW_MEDIA; 2]);
    // The same capacity, but nothing is left of what a host may have cached.
    format(&mut rig, u32::MAX, 0x30);
    rig.test(B).good();
    assert_eq!([rig.media_event(A).0, rig.media_event(B).0], [NEW_MEDIA; 2]);
    // A FORMAT UNIT that fails changes nothing.
    rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list(3000, 0x30, 0))
        .illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(rig.media_event(A).0, 0);
}

#[test]
fn a_disc_is_neither_formatted_nor_ejected_between_the_parts_of_a_write() {
    const IN_PROGRESS: (SenseKey, Asc) =
        (SenseKey::NOT_READY, Asc::LOGICAL_UNIT_NOT_READY_LONG_WRITE_IN_PROGRESS);
    const PART: usize = 1 << 20;
    for kind in [WritableKind::DvdPlusRw, WritableKind::BdRe] {
        let (mut rig, _) = formatted(kind);
        // B hears that the capacity has changed.
        rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
        let long = rig.start(A, &write(0, 1024), 0, 2 * PART);
        let _ = rig.event_of(long);
        rig.send(long, &[1; 2 * PART], 0, PART.try_into().unwrap());
        let how = if kind == WritableKind::BdRe { 0x31 } else { 0x26 };
        let format = rig.run(B, &[0x04, 0x11, 0, 0, 0, 0], 0, &list(CAPACITY, how, 0));
        format.check(IN_PROGRESS.0, IN_PROGRESS.1);
        rig.run(B, &[0x1b, 0, 0, 0, 2, 0], 0, &[]).check(IN_PROGRESS.0, IN_PROGRESS.1);
        rig.finish(long, &[1; 2 * PART]).good();
        assert_eq!(rig.run(A, &read(0, 1), 2048, &[]).good(), [1; 2048]);
        rig.run(B, &[0x1b, 0, 0, 0, 2, 0], 0, &[]).good();
    }
}

#[test]
fn wrong_formats_are_refused_and_change_nothing() {
    let disc = blank(WritableKind::BdRe);
    let mut rig = disc.drive();
    let mut run = |cdb: [u8; 6], list: &[u8]| rig.run(A, &cdb, 0, list);
    run([0x04, 0x01, 0, 0, 0, 0], &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    run([0x04, 0x10, 0, 0, 0, 0], &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    let format = [0x04, 0x11, 0, 0, 0, 0];
    run(format, &list(3200, 0x26, 0)).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    run(format, &list(3100, 0x31, 0)).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    run(format, &list(3200, 0x31, 0)[..11]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let mut bad = list(3200, 0x31, 0);
    bad[3] = 16;
    run(format, &bad).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    bad = list(3200, 0x31, 0);
    bad[1] = 0x04;
    run(format, &bad).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(disc.record().formatted, 0);
    assert_eq!(rig.run(A, &write(0, 1), 0, &[1; 2048]).sense, Some(NOT_FORMATTED));
}

#[test]
fn nothing_writes_a_read_only_disc() {
    const PROTECTED: (SenseKey, Asc) = (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    let (_, written) = formatted(WritableKind::BdRe);
    for mut rig in [disc(CD), written.drive_as(true)] {
        assert_eq!(rig.run(A, &write(0, 1), 0, &[1; 2048]).sense, Some(PROTECTED));
        assert_eq!(rig.run(A, &[0x5b, 0, 2, 0, 0, 0, 0, 0, 0, 0], 0, &[]).sense, Some(PROTECTED));
        let format = rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list(3200, 0x31, 0));
        assert_eq!(format.sense, Some(PROTECTED));
        rig.run(A, &SYNCHRONIZE, 0, &[]).good();
    }
}

#[test]
fn features_are_current_as_the_disc_is() {
    let current = |kind| {
        let mut rig = blank(kind).drive();
        let data = rig.get(&[0x46, 1, 0, 0, 0, 0, 0, 0xff, 0xff, 0]);
        let (mut codes, mut at) = (Vec::new(), 8);
        while at < data.len() {
            codes.push(u16::from_be_bytes([data[at], data[at + 1]]));
            at += 4 + usize::from(data[at + 3]);
        }
        codes
    };
    let common = |own: &[u16]| {
        let mut codes = [&[0, 1, 2, 3, 0x10, 0x100, 0x105, 0x107, 0x108], own].concat();
        codes.sort_unstable();
        codes
    };
    assert_eq!(current(WritableKind::DvdPlusRw), common(&[0x1f, 0x20, 0x23, 0x2a]));
    assert_eq!(current(WritableKind::BdRe), common(&[0x20, 0x23, 0x40, 0x41]));
}

#[test]
fn speeds_and_buffer_are_those_of_a_writer() {
    let (mut rig, _) = formatted(WritableKind::DvdPlusRw);
    let words = |data: &[u8]| -> Vec<u32> {
        data[8..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
    };
    let speeds = rig.get(&[0xac, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0]);
    assert_eq!(words(&speeds), [0, 3199, 22_160, 22_160]);
    let nominal = rig.get(&[0xac, 0x04, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!((nominal[4], words(&nominal)), (2, [0, 22_160, 3199, 22_160].to_vec()));
    assert_eq!(rig.get(&[0x5c, 0, 0, 0, 0, 0, 0, 0, 12, 0]), [0, 10, 0, 0, 0, 0x80, 0, 0, 0, 0x80, 0, 0]);
    let structure = rig.get(&[0xad, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0]);
    assert_eq!((structure[4], structure[6]), (0x91, 0x04), "DVD+RW, rewritable");
    let (mut bd, _) = formatted(WritableKind::BdRe);
    assert_eq!(bd.get(&[0xad, 1, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0])[12..15], *b"BDW");
}

/// What SYNCHRONIZE CACHE and FORMAT UNIT acknowledged is there after a loss of power.
#[test]
fn a_loss_of_power_takes_nothing_that_was_synchronized() {
    for seed in 0..64 {
        let (mut rig, disc) = formatted(WritableKind::BdRe);
        rig.run(A, &write(10, 2), 0, &[1; 4096]).good();
        rig.run(A, &SYNCHRONIZE, 0, &[]).good();
        rig.run(A, &write(11, 1), 0, &[2; 2048]).good();
        drop(rig);
        disc.power.cut(seed);
        let mut rig = disc.drive();
        assert_eq!(capacity(&mut rig), CAPACITY - 1, "seed {seed}");
        assert_eq!(rig.run(A, &read(10, 1), 2048, &[]).good(), [1; 2048], "seed {seed}");
        let last = rig.run(A, &read(11, 1), 2048, &[]).good();
        assert!(last.iter().all(|byte| matches!(byte, 1 | 2)), "seed {seed}");
    }
}

#[test]
fn no_write_begins_while_a_disc_is_erased() {
    const IN_PROGRESS: (SenseKey, Asc) =
        (SenseKey::NOT_READY, Asc::LOGICAL_UNIT_NOT_READY_LONG_WRITE_IN_PROGRESS);
    let disc = blank(WritableKind::DvdPlusRw);
    let (mut rig, drawer) = Drawer::with(&disc);
    format(&mut rig, CAPACITY, 0x26);
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
    drawer.tell(false);
    drawer.fail(|action| matches!(action, OpAction::WriteZeroes { .. }));
    let list = list(CAPACITY, 0x26, 0);
    let erase = rig.start(A, &[0x04, 0x11, 0, 0, 0, 0], 0, list.len());
    let _ = rig.event_of(erase);
    rig.send(erase, &list, 0, list.len().try_into().unwrap());
    rig.run(B, &write(0, 1), 0, &[1; 2048]).check(IN_PROGRESS.0, IN_PROGRESS.1);
    drawer.tell(true);
    drawer.fail(|_| false);
    rig.ready();
    assert!(rig.finish(erase, &[]).sense.is_some());
    rig.run(B, &write(0, 1), 0, &[1; 2048]).good();
}
