//! DVD-R and BD-R: written where a track is written to, in tracks and sessions.

use super::*;
use crate::contract::{Tmf, TmfOutcome, UnitEvent};
use crate::disc_record::TRACKS_MAX;
use crate::removal_obstacle::RemovalObstacle;
use crate::testing::{cdb_10, cdb_12};

const CAPACITY: u32 = 3200;
/// The capacity of a disc that is filled and read many times.
const SMALL: u32 = 640;
const SYNCHRONIZE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const WRONG_ADDRESS: (SenseKey, Asc) = (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_ADDRESS_FOR_WRITE);
const OUT_OF_RANGE: (SenseKey, Asc) = (SenseKey::ILLEGAL_REQUEST, Asc::LBA_OUT_OF_RANGE);

/// Both kinds, and what their error correction blocks are.
const KINDS: [(WritableKind, u32); 2] = [(WritableKind::DvdR, 16), (WritableKind::BdR, 32)];

fn blank(kind: WritableKind) -> (Rig, Blank) {
    let disc = Blank::new(kind, CAPACITY);
    (disc.drive(), disc)
}

fn write_to(rig: &mut Rig, lba: u32, sectors: u16, byte: u8) -> Reply {
    let data = alloc::vec![byte; usize::from(sectors) * 2048];
    rig.run(A, &cdb_10(op::WRITE_10, 0, lba, sectors), 0, &data)
}

fn read(rig: &mut Rig, lba: u32) -> Reply {
    rig.run(A, &cdb_10(op::READ_10, 0, lba, 1), 2048, &[])
}

fn close(rig: &mut Rig, function: u8, track: u8) -> Reply {
    rig.run(A, &[0x5b, 1, function, 0, 0, track, 0, 0, 0, 0], 0, &[])
}

fn reserve(rig: &mut Rig, sectors: u32) -> Reply {
    let [a, b, c, d] = sectors.to_be_bytes();
    rig.run(A, &[0x53, 0, 0, 0, 0, a, b, c, d, 0], 0, &[])
}

/// The state of the disc and of the last session, the number of sessions, and the first and last track of the
/// last session.
fn disc_of(rig: &mut Rig) -> (u8, u8, u8, u8, u8) {
    let data = rig.get(&[0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0]);
    (data[2] & 3, data[2] >> 2 & 3, data[4], data[5], data[6])
}

/// The session, the flags of bytes 6 and 7, and start, next writable address, free blocks, size and last
/// recorded address of a track.
fn track(rig: &mut Rig, number: u8) -> (u8, u8, u8, [u32; 5]) {
    let data = rig.get(&[0x52, 1, 0, 0, 0, number, 0, 0, 36, 0]);
    let word = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    (data[3], data[6] & 0xe0, data[7], [word(8), word(12), word(16), word(24), word(28)])
}

fn tracks_in_toc(rig: &mut Rig) -> Vec<(u8, u32)> {
    let data = rig.get(&[0x43, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    let entries = data[4..].chunks(8);
    entries.map(|entry| (entry[2], u32::from_be_bytes(entry[4..8].try_into().unwrap()))).collect()
}

/// The last complete session, and where it begins: what Linux mounts.
fn last_session(rig: &mut Rig) -> (u8, u32) {
    let data = rig.get(&[0x43, 0, 1, 0, 0, 0, 0, 0, 12, 0]);
    (data[3], u32::from_be_bytes(data[8..12].try_into().unwrap()))
}

/// Sets WRITE TYPE and the multi-session bits of the write parameters page.
fn set_write_parameters(rig: &mut Rig, write_type: u8, multi_session: u8) -> Reply {
    let mut list = rig.get(&[0x5a, 0x08, 0x05, 0, 0, 0, 0, 0, 255, 0]);
    list[..8].fill(0);
    list[8] &= 0x3f;
    list[10] = list[10] & 0xf0 | write_type;
    list[11] = list[11] & 0x3f | multi_session << 6;
    let len = u8::try_from(list.len()).unwrap();
    rig.run(A, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, len, 0], 0, &list)
}

#[test]
fn a_blank_disc_has_one_empty_track() {
    for (kind, profile) in [(WritableKind::DvdR, 0x11), (WritableKind::BdR, 0x41)] {
        let (mut rig, _) = blank(kind);
        assert_eq!(rig.get(&[0x46, 2, 0, 0, 0, 0, 0, 0, 8, 0])[6..8], [0, profile]);
        assert_eq!(disc_of(&mut rig), (0, 0, 1, 1, 1));
        assert_eq!(track(&mut rig, 1), (1, 0x60, 0x01, [0, 0, CAPACITY, CAPACITY, 0]));
        assert_eq!(track(&mut rig, 0xff), track(&mut rig, 1), "the next one");
        rig.run(A, &[0x43, 0, 0, 0, 0, 0, 0, 0, 100, 0], 100, &[])
            .illegal(Asc::CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT);
        assert_eq!(read(&mut rig, 0).sense, Some(OUT_OF_RANGE));
        let formats = rig.get(&[0x23, 0, 0, 0, 0, 0, 0, 0, 252, 0]);
        assert_eq!(formats[4..12], [0, 0, 0x0c, 0x80, 1, 0, 0x08, 0]);
    }
}

#[test]
fn features_of_sequential_discs_are_current() {
    for (kind, own, other) in [(WritableKind::DvdR, 0x2f, 0x41), (WritableKind::BdR, 0x41, 0x2f)] {
        let (mut rig, _) = blank(kind);
        let mut is_current = |code: u8| rig.get(&[0x46, 2, 0, code, 0, 0, 0, 0, 100, 0])[10] & 1 == 1;
        assert!(is_current(0x21) && is_current(own));
        assert!(!is_current(0x20) && !is_current(other) && !is_current(0x2a));
    }
}

#[test]
fn writes_append_and_nothing_is_overwritten() {
    for (kind, _) in KINDS {
        let (mut rig, _) = blank(kind);
        assert_eq!(write_to(&mut rig, 1, 1, 9).sense, Some(WRONG_ADDRESS));
        write_to(&mut rig, 0, 16, 1).good();
        let twelve = cdb_12(op::WRITE_12, 0, 16, 16);
        rig.run(A, &twelve, 0, &[2; 16 * 2048]).good();
        for (lba, byte) in [(0, 1), (15, 1), (16, 2), (31, 2)] {
            assert_eq!(read(&mut rig, lba).good(), [byte; 2048]);
        }
        for wrong in [0, 16, 31, 33, 3199] {
            assert_eq!(write_to(&mut rig, wrong, 1, 9).sense, Some(WRONG_ADDRESS), "{wrong}");
        }
        assert_eq!(write_to(&mut rig, 3200, 1, 9).sense, Some(OUT_OF_RANGE));
        assert_eq!(read(&mut rig, 32).sense, Some(OUT_OF_RANGE), "nothing is written there");
        let force_unit_access = cdb_10(op::WRITE_10, 0x08, 32, 1);
        rig.run(A, &force_unit_access, 0, &[0; 2048]).illegal(Asc::INVALID_FIELD_IN_CDB);
        assert_eq!(disc_of(&mut rig), (1, 1, 1, 1, 1), "appendable, the session is incomplete");
        assert_eq!(track(&mut rig, 1), (1, 0x20, 0x03, [0, 32, CAPACITY - 32, CAPACITY, 31]));
    }
}

#[test]
fn sessions_follow_each_other_until_the_disc_is_complete() {
    for (kind, block) in KINDS {
        let (mut rig, _) = blank(kind);
        let finalize = if kind == WritableKind::DvdR { 3 } else { 6 };
        assert_eq!(close(&mut rig, 2, 0).sense, Some((SenseKey::ILLEGAL_REQUEST, Asc(0x7204))), "empty");
        write_to(&mut rig, 0, 20, 1).good();
        close(&mut rig, 1, 1).good();
        close(&mut rig, 1, 1).good();
        close(&mut rig, 2, 0).good();
        // Track 1 is padded to whole error correction blocks.
        let end = 20_u32.next_multiple_of(block);
        assert_eq!(disc_of(&mut rig), (1, 0, 2, 2, 2), "the second session is empty");
        assert_eq!(track(&mut rig, 1), (1, 0x20, 0x02, [0, 0, 0, end, end - 1]));
        assert_eq!(track(&mut rig, 2), (2, 0x60, 0x01, [end, end, CAPACITY - end, CAPACITY - end, 0]));
        assert_eq!(
            (tracks_in_toc(&mut rig), last_session(&mut rig)),
            ([(1, 0), (0xaa, end)].to_vec(), (1, 0))
        );
        assert_eq!(write_to(&mut rig, end - 1, 1, 9).sense, Some(WRONG_ADDRESS), "the track is closed");
        write_to(&mut rig, end, 32, 2).good();
        assert_eq!(disc_of(&mut rig), (1, 1, 2, 2, 2));
        assert_eq!(last_session(&mut rig), (1, 0), "the second session is not complete");
        close(&mut rig, 2, 0).good();
        assert_eq!(last_session(&mut rig), (2, end));
        let behind = end + 32;
        assert_eq!(tracks_in_toc(&mut rig), [(1, 0), (2, end), (0xaa, behind)]);
        write_to(&mut rig, behind, 32, 3).good();
        close(&mut rig, finalize, 0).good();
        assert_eq!(disc_of(&mut rig), (2, 3, 3, 3, 3));
        assert_eq!(last_session(&mut rig), (3, behind));
        assert_eq!(write_to(&mut rig, behind + 32, 1, 9).sense, Some(WRONG_ADDRESS), "nothing is added");
        close(&mut rig, 2, 0).good();
        assert_eq!(
            reserve(&mut rig, 32).sense,
            Some((SenseKey::ILLEGAL_REQUEST, Asc::COMMAND_SEQUENCE_ERROR))
        );
        for (lba, byte) in [(0, 1), (19, 1), (end, 2), (behind, 3)] {
            assert_eq!(read(&mut rig, lba).good(), [byte; 2048]);
        }
        rig.run(A, &[0x52, 1, 0, 0, 0, 0xff, 0, 0, 36, 0], 36, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
        close(&mut rig, 1, 9).illegal(Asc::INVALID_FIELD_IN_CDB);
        close(&mut rig, 7, 0).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn an_appendable_disc_is_completed_without_another_session() {
    let (mut rig, _) = blank(WritableKind::BdR);
    write_to(&mut rig, 0, 32, 1).good();
    close(&mut rig, 2, 0).good();
    close(&mut rig, 6, 0).good();
    assert_eq!(disc_of(&mut rig), (2, 3, 1, 1, 1), "the empty session is given up");
}

#[test]
fn the_write_parameters_page_says_whether_a_session_follows() {
    let (mut rig, _) = blank(WritableKind::DvdR);
    set_write_parameters(&mut rig, 0, 0).good();
    write_to(&mut rig, 0, 16, 1).good();
    close(&mut rig, 2, 0).good();
    assert_eq!(disc_of(&mut rig).0, 2, "complete");
    for (write_type, asc) in
        [(1, Asc::INVALID_FIELD_IN_PARAMETER_LIST), (3, Asc::INVALID_FIELD_IN_PARAMETER_LIST)]
    {
        set_write_parameters(&mut rig, write_type, 3).illegal(asc);
    }
}

#[test]
fn an_audio_track_is_an_illegal_mode() {
    let (mut rig, _) = blank(WritableKind::DvdR);
    let mut list = rig.get(&[0x5a, 0x08, 0x05, 0, 0, 0, 0, 0, 255, 0]);
    list[..8].fill(0);
    list[8] &= 0x3f;
    // TRACK MODE 0: two channels of audio.
    list[11] &= 0xf0;
    let len = u8::try_from(list.len()).unwrap();
    rig.run(A, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, len, 0], 0, &list).good();
    write_to(&mut rig, 0, 1, 1).illegal(Asc::ILLEGAL_MODE_FOR_THIS_TRACK);
    let catalog_number = 16 + 8;
    list[catalog_number] = 1;
    rig.run(A, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, len, 0], 0, &list)
        .illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
}

#[test]
fn a_disc_at_once_is_reserved_written_and_closed_by_itself() {
    for (multi_session, state) in [(0, (2, 3, 1, 1, 1)), (3, (1, 0, 2, 2, 2))] {
        let (mut rig, disc) = blank(WritableKind::DvdR);
        set_write_parameters(&mut rig, 2, multi_session).good();
        write_to(&mut rig, 0, 16, 1).illegal(Asc::COMMAND_SEQUENCE_ERROR);
        reserve(&mut rig, 40).good();
        write_to(&mut rig, 0, 16, 1).good();
        rig.run(A, &SYNCHRONIZE, 0, &[]).good();
        assert_eq!(disc_of(&mut rig).0, 1, "not written yet");
        // 40 sectors are two and a half error correction blocks.
        write_to(&mut rig, 16, 24, 2).good();
        rig.run(A, &SYNCHRONIZE, 0, &[]).good();
        assert_eq!(disc_of(&mut rig), state);
        assert_eq!(disc_of(&mut disc.drive()), state, "durable");
    }
}

#[test]
fn reserved_tracks_are_written_beside_each_other_and_must_be_full() {
    for (kind, block) in KINDS {
        let (mut rig, _) = blank(kind);
        reserve(&mut rig, 0).illegal(Asc::LBA_OUT_OF_RANGE);
        reserve(&mut rig, CAPACITY + 1).illegal(Asc::LBA_OUT_OF_RANGE);
        reserve(&mut rig, block + 1).good();
        reserve(&mut rig, block).good();
        let (first, second) = (2 * block, 3 * block);
        assert_eq!(track(&mut rig, 1), (1, 0xe0, 0x01, [0, 0, first, first, 0]));
        assert_eq!(disc_of(&mut rig), (1, 1, 1, 1, 3));
        write_to(&mut rig, second, 1, 3).good();
        write_to(&mut rig, first, 1, 2).good();
        write_to(&mut rig, 0, 1, 1).good();
        let too_long = u16::try_from(first).unwrap();
        assert_eq!(write_to(&mut rig, 1, too_long, 1).sense, Some(OUT_OF_RANGE), "the track ends");
        assert_eq!(close(&mut rig, 2, 0).sense, Some((SenseKey::ILLEGAL_REQUEST, Asc(0x7203))), "incomplete");
        close(&mut rig, 1, 1).good();
        close(&mut rig, 1, 2).good();
        close(&mut rig, 2, 0).good();
        assert_eq!(disc_of(&mut rig), (1, 0, 2, 4, 4));
        assert_eq!(tracks_in_toc(&mut rig)[..3], [(1, 0), (2, first), (3, second)]);
    }
}

#[test]
fn a_full_disc_takes_no_more_and_can_be_completed() {
    let (mut rig, _) = blank(WritableKind::BdR);
    write_to(&mut rig, 0, 3200, 1).good();
    assert_eq!(write_to(&mut rig, 3200, 1, 1).sense, Some(OUT_OF_RANGE));
    assert_eq!(track(&mut rig, 1), (1, 0x20, 0x02, [0, 0, 0, CAPACITY, CAPACITY - 1]), "no next address");
    close(&mut rig, 1, 1).good();
    assert_eq!(track(&mut rig, 2).2, 0, "no room");
    close(&mut rig, 6, 0).good();
    assert_eq!(disc_of(&mut rig), (2, 3, 1, 1, 1));
}

/// The disc has room for more tracks than its record has.
#[test]
fn tracks_are_bounded() {
    let disc = Blank::new(WritableKind::DvdR, 1100 * 16);
    let mut rig = disc.drive();
    for _ in 1..TRACKS_MAX {
        reserve(&mut rig, 1).good();
    }
    reserve(&mut rig, 1).illegal(Asc::NO_MORE_TRACK_RESERVATIONS_ALLOWED);
    assert_eq!(disc.record().tracks().len(), TRACKS_MAX);
}

#[test]
fn a_disc_is_reserved_to_its_end_and_no_further() {
    let (mut rig, disc) = blank(WritableKind::DvdR);
    for _ in 0..CAPACITY / 16 {
        reserve(&mut rig, 1).good();
    }
    reserve(&mut rig, 1).illegal(Asc::LBA_OUT_OF_RANGE);
    assert_eq!(disc.record().tracks().len(), 201);
}

#[test]
fn a_blank_bd_r_is_formatted_once_with_spare_areas() {
    let (mut rig, disc) = blank(WritableKind::BdR);
    let list = [0, 0x02, 0, 8, 0, 0, 0x0c, 0x00, 0, 0, 0, 0];
    rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list).good();
    assert_eq!(track(&mut rig, 1).3, [0, 0, 3072, 3072, 0]);
    rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list).illegal(Asc::CANNOT_FORMAT_MEDIUM_INCOMPATIBLE_MEDIUM);
    write_to(&mut rig, 0, 3072, 1).good();
    assert_eq!(write_to(&mut rig, 3072, 1, 1).sense, Some(OUT_OF_RANGE));
    rig.run(A, &SYNCHRONIZE, 0, &[]).good();
    assert_eq!((disc.record().formatted, disc.record().readable()), (3072, 3072));
    let (mut dvd, _) = blank(WritableKind::DvdR);
    dvd.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list).illegal(Asc::CANNOT_FORMAT_MEDIUM_INCOMPATIBLE_MEDIUM);
}

/// A host can send the parameter list of FORMAT UNIT long after the command.
#[test]
fn a_disc_that_is_written_while_its_format_waits_is_not_erased() {
    let list = [0, 0x02, 0, 8, 0, 0, 0x0c, 0x00, 0, 0, 0, 0];
    let (mut rig, disc) = blank(WritableKind::BdR);
    let mut formats = Vec::new();
    for _ in 0..2 {
        let key = rig.start(B, &[0x04, 0x11, 0, 0, 0, 0], 0, list.len());
        assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
        formats.push(key);
    }
    let append = rig.start(A, &cdb_10(op::WRITE_10, 0, 0, 1), 0, 2048);
    rig.send(formats[0], &list, 0, 12);
    rig.finish(formats[0], &[])
        .check(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_NOT_READY_LONG_WRITE_IN_PROGRESS);
    rig.finish(append, &[1; 2048]).good();
    close(&mut rig, 6, 0).good();
    rig.send(formats[1], &list, 0, 12);
    rig.finish(formats[1], &[]).illegal(Asc::CANNOT_FORMAT_MEDIUM_INCOMPATIBLE_MEDIUM);
    assert_eq!(read(&mut rig, 0).good(), [1; 2048]);
    assert!(disc.record().is_complete);
}

/// Both decide to close it: the first one closes it when its last block is padded.
#[test]
fn of_two_that_synchronize_a_disc_at_once_one_closes_its_session() {
    for multi_session in [0, 3] {
        let (mut rig, disc) = blank(WritableKind::DvdR);
        set_write_parameters(&mut rig, 2, multi_session).good();
        rig.test(B).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
        reserve(&mut rig, 40).good();
        write_to(&mut rig, 0, 40, 1).good();
        disc.power.hold();
        let both = [A, B].map(|nexus| rig.start(nexus, &SYNCHRONIZE, 0, 0));
        rig.drain();
        assert_eq!(rig.unit.removal_obstacle(), Some(RemovalObstacle::InUse));
        let mut rng = Rng::from_seed(0);
        while disc.power.begin_one(&mut rng) {
            rig.ready();
        }
        for key in both {
            rig.finish(key, &[]).good();
        }
        assert_eq!(rig.unit.removal_obstacle(), None);
        let record = disc.record();
        assert_eq!(
            (record.is_complete, record.last_session()),
            if multi_session == 0 { (true, 1) } else { (false, 2) }
        );
    }
}

/// What is under way would be in no record that ejecting saves.
#[test]
fn a_disc_is_not_ejected_while_it_is_written() {
    let (mut rig, disc) = blank(WritableKind::BdR);
    let key = rig.start(A, &cdb_10(op::WRITE_10, 0, 0, 1), 0, 2048);
    let eject = rig.run(B, &[0x1b, 0, 0, 0, 2, 0], 0, &[]);
    eject.check(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_NOT_READY_LONG_WRITE_IN_PROGRESS);
    rig.finish(key, &[1; 2048]).good();
    rig.run(B, &[0x1b, 0, 0, 0, 2, 0], 0, &[]).good();
    assert_eq!(disc.record().readable(), 1);
}

#[test]
fn power_calibration_is_accepted() {
    let (mut rig, _) = blank(WritableKind::DvdR);
    rig.run(A, &[0x54, 1, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(A, &[0x54, 0, 0, 0, 0, 0, 0, 0, 8, 0], 0, &[0; 8]).good();
    rig.run(A, &[0x54, 0, 0, 0, 0, 0, 0, 0, 7, 0], 0, &[0; 7]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
}

/// Data of a later write can arrive before that of an earlier one.
#[test]
fn writes_that_are_under_way_together_end_in_order() {
    let (mut rig, _) = blank(WritableKind::BdR);
    let first = rig.start(A, &cdb_10(op::WRITE_10, 0, 0, 1), 0, 2048);
    let second = rig.start(A, &cdb_10(op::WRITE_10, 0, 1, 1), 0, 2048);
    let wanted = |event| matches!(event, Some(UnitEvent::FetchDataOut { offset: 0, len: 2048, .. }));
    assert!(wanted(rig.event_of(first)) && wanted(rig.event_of(second)));
    rig.send(second, &[2; 2048], 0, 2048);
    assert!(rig.event_of(second).is_none(), "it waits for the first");
    assert_eq!(
        close(&mut rig, 1, 1).sense,
        Some((SenseKey::NOT_READY, Asc(0x0408))),
        "long write in progress"
    );
    assert_eq!(track(&mut rig, 1).3[1], 0);
    rig.send(first, &[1; 2048], 0, 2048);
    rig.finish(first, &[]).good();
    rig.finish(second, &[]).good();
    assert_eq!((read(&mut rig, 0).good()[0], read(&mut rig, 1).good()[0]), (1, 2));
}

#[test]
fn a_write_behind_an_aborted_one_fails_and_the_track_goes_on_before_it() {
    let (mut rig, _) = blank(WritableKind::BdR);
    let first = rig.start(A, &cdb_10(op::WRITE_10, 0, 0, 1), 0, 2048);
    let second = rig.start(A, &cdb_10(op::WRITE_10, 0, 1, 1), 0, 2048);
    let _ = (rig.event_of(first), rig.event_of(second));
    rig.send(second, &[2; 2048], 0, 2048);
    assert_eq!(rig.manage(A, Tmf::AbortTask(first)), Some(TmfOutcome::Complete));
    assert_eq!(rig.finish(second, &[]).sense, Some(WRONG_ADDRESS));
    assert_eq!(read(&mut rig, 1).sense, Some(OUT_OF_RANGE));
    write_to(&mut rig, 0, 2, 3).good();
    assert_eq!(read(&mut rig, 1).good(), [3; 2048]);
}

#[test]
fn what_is_not_synchronized_keeps_the_operator_from_the_disc_and_ejecting_saves_it() {
    let (mut rig, disc) = blank(WritableKind::DvdR);
    write_to(&mut rig, 0, 16, 1).good();
    assert!(rig.unit.is_removal_prevented());
    assert_eq!(disc.record().readable(), 0);
    rig.run(A, &[0x1b, 0, 0, 0, 2, 0], 0, &[]).good();
    assert_eq!(disc.record().readable(), 16);
    assert!(!rig.unit.is_removal_prevented());
    rig.run(A, &[0x1b, 0, 0, 0, 3, 0], 0, &[]).good();
    assert_eq!(read(&mut rig, 15).good(), [1; 2048]);
}

/// What the test knows of a disc: what each sector holds, and the record that was acknowledged last.
struct Oracle {
    sectors: Vec<u8>,
    acknowledged: DiscRecord,
}

/// Random writes, closings and reservations, with losses of power in between and in the middle: what was
/// acknowledged is there, and a command that was cut off has its whole effect or none.
#[test]
fn a_loss_of_power_at_any_time_loses_nothing_that_was_acknowledged() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let kind = if rng.chance(1, 2) { WritableKind::DvdR } else { WritableKind::BdR };
        let disc = Blank::new(kind, SMALL);
        let mut rig = disc.drive();
        let sectors = alloc::vec![0; usize::try_from(SMALL).unwrap()];
        let mut oracle = Oracle { sectors, acknowledged: disc.record() };
        for step in 0..60 {
            let context = alloc::format!("seed {seed}, step {step}");
            if rng.chance(1, 12) {
                rig = cut_in_the_middle(rig, &disc, &mut oracle, &mut rng, &context);
            } else if let Some(cdb) = random_change(&mut rng) {
                let reply = rig.run(A, &cdb, 0, &[]);
                if reply.sense.is_none() {
                    oracle.acknowledged = disc.record();
                } else {
                    assert!(disc.record().has_contents_of(&oracle.acknowledged), "{context}: {reply:?}");
                }
            } else {
                write_somewhere(&mut rig, &mut oracle, &mut rng);
            }
        }
    }
}

/// A command that makes the record durable.
fn random_change(rng: &mut Rng) -> Option<[u8; 10]> {
    Some(match rng.below(16) {
        0 | 1 => SYNCHRONIZE,
        2 => [0x5b, 0, 1, 0, 0, u8::try_from(rng.below(6)).unwrap(), 0, 0, 0, 0],
        3 => [0x5b, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        4 => [0x53, 0, 0, 0, 0, 0, 0, 0, u8::try_from(rng.below(100)).unwrap(), 0],
        5 if rng.chance(1, 6) => [0x5b, 0, 6, 0, 0, 0, 0, 0, 0, 0],
        _ => return None,
    })
}

/// Writes at the next address of some track, or at a wrong one.
fn write_somewhere(rig: &mut Rig, oracle: &mut Oracle, rng: &mut Rng) {
    let tracks = rig.get(&[0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0])[6];
    let number = 1 + u8::try_from(rng.below(u64::from(tracks))).unwrap();
    let (_, _, valid, [start, next, ..]) = track(rig, number);
    let lba = if valid & 1 == 1 { next } else { start };
    let (sectors, byte) =
        (u16::try_from(1 + rng.below(40)).unwrap(), u8::try_from(1 + rng.below(255)).unwrap());
    if write_to(rig, lba, sectors, byte).sense.is_none() {
        let at = usize::try_from(lba).unwrap();
        oracle.sectors[at..at + usize::from(sectors)].fill(byte);
    }
}

fn cut_in_the_middle(mut rig: Rig, disc: &Blank, oracle: &mut Oracle, rng: &mut Rng, context: &str) -> Rig {
    let seed = rng.next_u64();
    disc.power.hold();
    let cdb = random_change(rng).unwrap_or(SYNCHRONIZE);
    let key = rig.start(A, &cdb, 0, 0);
    let mut is_acknowledged = false;
    for _ in 0..rng.below(8) {
        if !disc.power.begin_one(rng) {
            break;
        }
        rig.ready();
        if let Some(UnitEvent::CommandComplete { sense, .. }) = rig.event_of(key) {
            is_acknowledged = sense.is_none();
        }
    }
    if is_acknowledged {
        oracle.acknowledged = disc.record();
    }
    drop(rig);
    disc.power.cut(seed);
    let (found, acknowledged) = (disc.record(), &oracle.acknowledged);
    // Nothing is less than what was acknowledged. The empty track at the end is given up when the disc is
    // completed.
    let is_kept = |was: &crate::disc_record::Track| {
        was.is_empty() && was.end.is_none() && found.is_complete
            || found
                .tracks()
                .iter()
                .any(|is| was.start == is.start && is.next >= was.next && (is.is_closed || !was.is_closed))
    };
    let is_more =
        acknowledged.tracks().iter().all(is_kept) && (found.is_complete || !acknowledged.is_complete);
    let is_right = found.has_contents_of(acknowledged) || (!is_acknowledged && is_more);
    assert!(is_right, "{context}: {acknowledged:?} became {found:?}, {is_acknowledged}");
    let mut rig = disc.drive();
    for track in found.tracks() {
        for lba in track.start..track.next {
            let expected = oracle.sectors[usize::try_from(lba).unwrap()];
            let sector = read(&mut rig, lba).good();
            assert!(sector.iter().all(|byte| *byte == expected), "{context}: sector {lba} is not {expected}");
        }
    }
    // What was written and not synchronized is gone, and padding is zeros.
    let is_written = |lba: u32| found.tracks().iter().any(|track| (track.start..track.next).contains(&lba));
    for lba in (0..SMALL).filter(|lba| !is_written(*lba)) {
        oracle.sectors[usize::try_from(lba).unwrap()] = 0;
    }
    oracle.acknowledged = found;
    rig
}
