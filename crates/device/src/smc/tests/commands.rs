//! Commands that move cartridges, and the table of commands.

use super::*;
use crate::contract::{Tmf, TmfOutcome};
use crate::drain::Drain;
use crate::unit::table;
use scsi::cdb::Cdb;
use scsi::opcode as op;
use scsi::status::Status;

/// Returns MOVE MEDIUM with another medium transport element.
fn by(transport: u16) -> Vec<u8> {
    cdb_of(0xa5, 12, &[transport, SLOT_1, SLOT_4])
}

#[test]
fn a_move_waits_until_its_change_is_durable() {
    let mut rig = changer();
    let key = rig.start(A, &move_medium(SLOT_1, DRIVE_1), 0, 0);
    let change = rig.change();
    let after = Library::decode(&change.file).unwrap();
    assert_eq!(after.at(Element::Drive(1)).unwrap().name, "A00001L8");
    assert_eq!((change.ejects.as_slice(), change.inserts), ([].as_slice(), vec![(1, "A00001L8".to_owned())]));
    assert!(rig.event_of(key).is_none());
    assert!(rig.inventory().contains(&(SLOT_1, "A00001L8".to_owned())), "the cartridge has not moved yet");
    rig.tell(LibraryInput::Changed(Ok(())));
    rig.finish(key, &[]).good();
    assert!(rig.inventory().contains(&(DRIVE_1, "A00001L8".to_owned())));
}

#[test]
fn motions_that_are_not_possible_are_refused() {
    let cases: &[(Vec<u8>, Asc)] = &[
        (move_medium(SLOT_3, SLOT_4), Asc::MEDIUM_SOURCE_ELEMENT_EMPTY),
        (move_medium(SLOT_1, SLOT_2), Asc::MEDIUM_DESTINATION_ELEMENT_FULL),
        (move_medium(SLOT_1, DRIVE_2), Asc::MEDIUM_DESTINATION_ELEMENT_FULL),
        (move_medium(SLOT_1, 0), Asc::INVALID_ELEMENT_ADDRESS),
        (move_medium(1, SLOT_4), Asc::INVALID_ELEMENT_ADDRESS),
        (move_medium(SLOT_1, SLOT_4 + 1), Asc::INVALID_ELEMENT_ADDRESS),
        (move_medium(9, SLOT_4), Asc::INVALID_ELEMENT_ADDRESS),
        (move_medium(SLOT_1, 12), Asc::INVALID_ELEMENT_ADDRESS),
        (move_medium(SLOT_1, 502), Asc::INVALID_ELEMENT_ADDRESS),
        (by(2), Asc::INVALID_ELEMENT_ADDRESS),
        (exchange(SLOT_1, DRIVE_1, SLOT_4), Asc::MEDIUM_SOURCE_ELEMENT_EMPTY),
        (exchange(SLOT_3, DRIVE_2, SLOT_4), Asc::MEDIUM_SOURCE_ELEMENT_EMPTY),
        (exchange(SLOT_1, DRIVE_2, SLOT_2), Asc::MEDIUM_DESTINATION_ELEMENT_FULL),
        (exchange(SLOT_1, DRIVE_2, 99), Asc::INVALID_ELEMENT_ADDRESS),
        // Cartridges are not turned over.
        ([&move_medium(SLOT_1, SLOT_4)[..10], &[1, 0]].concat(), Asc::INVALID_FIELD_IN_CDB),
        ([&exchange(SLOT_1, DRIVE_2, SLOT_4)[..10], &[2, 0]].concat(), Asc::INVALID_FIELD_IN_CDB),
        (cdb_of(0x2b, 10, &[0, 99]), Asc::INVALID_ELEMENT_ADDRESS),
        (cdb_of(0x2b, 10, &[7, SLOT_1]), Asc::INVALID_ELEMENT_ADDRESS),
        (cdb_of(0x2b, 10, &[0, SLOT_1, 0, 0x0100]), Asc::INVALID_FIELD_IN_CDB),
        ([&[0x1b, 0][..], &SLOT_1.to_be_bytes(), &[0, 0]].concat(), Asc::INVALID_ELEMENT_ADDRESS),
        ([&[0x1b, 0][..], &MAIL_1.to_be_bytes(), &[2, 0]].concat(), Asc::INVALID_FIELD_IN_CDB),
        (vec![0x37, 1, 0xff, 0, 0, 0, 0, 1, 0, 0], Asc::INVALID_ELEMENT_ADDRESS),
    ];
    let mut rig = changer();
    let before = rig.inventory();
    for (cdb, expected) in cases {
        rig.run(A, cdb, 0, &[]).illegal(*expected);
        assert!(rig.asked().is_none(), "{cdb:02x?}");
        assert_eq!(rig.inventory(), before);
    }
}

#[test]
fn commands_without_a_motion_end_at_once() {
    let mut rig = changer();
    for cdb in [
        vec![0x07, 0, 0, 0, 0, 0],
        vec![0x37, 1, 0, 1, 0, 0, 0, 9, 0, 0],
        vec![0x37, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        cdb_of(0x2b, 10, &[1, SLOT_1]),
        cdb_of(0x2b, 10, &[0, DRIVE_2]),
        [&[0x1b, 0][..], &MAIL_1.to_be_bytes(), &[0, 0]].concat(),
        [&[0x1b, 0][..], &MAIL_1.to_be_bytes(), &[1, 0]].concat(),
        // A cartridge is where it is to go.
        move_medium(SLOT_1, SLOT_1),
        vec![0; 6],
    ] {
        rig.run(A, &cdb, 0, &[]).good();
        assert!(rig.asked().is_none(), "{cdb:02x?}");
    }
}

/// Linux' ch driver puts the lowest bits of the LUN into byte 1 of every CDB, and `mtx eepos` sets the
/// vendor-specific bits of the control byte.
#[test]
fn bits_that_scsi_2_defined_are_ignored() {
    let with = |cdb: &[u8], lun: u8, control: u8| {
        let mut cdb = cdb.to_vec();
        cdb[1] |= lun << 5;
        *cdb.last_mut().unwrap() |= control;
        cdb
    };
    for lun in 1..8 {
        let mut rig = changer();
        for cdb in [
            vec![0x07, 0, 0, 0, 0, 0],
            vec![0x1a, 0x08, 0x1d, 0, 0xff, 0],
            vec![0x12, 0, 0, 0, 0xff, 0],
            cdb_of(0x2b, 10, &[0, SLOT_1]),
            status(0x12, SLOT_1, 1, 0, 0xff).to_vec(),
        ] {
            let plain = rig.run(A, &cdb, 255, &[]).good();
            assert_eq!(rig.run(A, &with(&cdb, lun, 0), 255, &[]).good(), plain, "{cdb:02x?}");
        }
        rig.moves(&with(&move_medium(SLOT_1, SLOT_4), lun, 0)).good();
        rig.moves(&with(&exchange(SLOT_4, DRIVE_2, SLOT_1), lun, 0)).good();
        assert!(rig.inventory().contains(&(DRIVE_2, "A00001L8".to_owned())));
    }
    let mut rig = changer();
    rig.moves(&with(&move_medium(SLOT_1, SLOT_4), 0, 0xc0)).good();
    // Everything else that no command evaluates is still refused: NACA, and bits that turn a cartridge over.
    for (at, bits) in [(11, 0x04), (11, 0x20), (10, 0x01), (1, 0x01), (8, 0x80)] {
        let mut cdb = move_medium(SLOT_4, SLOT_1);
        cdb[at] |= bits;
        rig.run(A, &cdb, 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn an_exchange_is_one_change() {
    let mut rig = changer();
    let key = rig.start(A, &exchange(SLOT_1, DRIVE_2, SLOT_1), 0, 0);
    let change = rig.change();
    assert_eq!(change.ejects, vec![(2, "A00003L8".to_owned())]);
    assert_eq!(change.inserts, vec![(2, "A00001L8".to_owned())]);
    rig.tell(LibraryInput::Changed(Ok(())));
    rig.finish(key, &[]).good();
    let inventory = rig.inventory();
    assert!(inventory.contains(&(SLOT_1, "A00003L8".to_owned())));
    assert!(inventory.contains(&(DRIVE_2, "A00001L8".to_owned())));
    rig.moves(&exchange(SLOT_2, DRIVE_2, SLOT_4)).good();
    assert!(rig.inventory().contains(&(SLOT_4, "A00001L8".to_owned())));
}

#[test]
fn a_failed_change_leaves_everything_where_it_was() {
    let mut rig = changer();
    let before = rig.inventory();
    let key = rig.start(A, &move_medium(SLOT_1, DRIVE_1), 0, 0);
    let _ = rig.change();
    let sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED);
    let failure = ChangeFailure {
        status: MotionFailure::CheckCondition(sense),
        unusable: Some("A00001L8".to_owned()),
        why: String::new(),
    };
    rig.tell(LibraryInput::Changed(Err(failure)));
    rig.finish(key, &[]).check(SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED);
    assert_eq!(rig.inventory(), before);
    let data = rig.run(A, &status(2, SLOT_1, 1, 0, 0xffff), 0xffff, &[]).good();
    assert_eq!(descriptors(&data)[0].1[2] & 4, 4, "EXCEPT");
    // It can be opened the next time.
    rig.moves(&move_medium(SLOT_1, DRIVE_1)).good();
    let data = rig.run(A, &status(4, DRIVE_1, 1, 0, 0xffff), 0xffff, &[]).good();
    assert_eq!(descriptors(&data)[0].1[2] & 4, 0);
}

#[test]
fn motions_follow_each_other_and_are_checked_in_their_turn() {
    let mut rig = changer();
    let first = rig.start(A, &move_medium(SLOT_1, SLOT_4), 0, 0);
    let second = rig.start(B, &move_medium(SLOT_2, SLOT_4), 0, 0);
    let third = rig.start(B, &move_medium(SLOT_2, SLOT_1), 0, 0);
    let _ = rig.change();
    assert!(rig.asked().is_none(), "one change at a time");
    rig.tell(LibraryInput::Changed(Ok(())));
    rig.finish(first, &[]).good();
    rig.finish(second, &[]).illegal(Asc::MEDIUM_DESTINATION_ELEMENT_FULL);
    let _ = rig.change();
    rig.tell(LibraryInput::Changed(Ok(())));
    rig.finish(third, &[]).good();
}

#[test]
fn an_aborted_command_does_not_stop_a_motion_that_has_begun() {
    let mut rig = changer();
    let first = rig.start(A, &move_medium(SLOT_1, SLOT_4), 0, 0);
    let second = rig.start(A, &move_medium(SLOT_2, SLOT_3), 0, 0);
    let _ = rig.change();
    rig.manage(A, Tmf::AbortTask(second));
    rig.manage(A, Tmf::AbortTask(first));
    rig.tell(LibraryInput::Changed(Ok(())));
    assert!(rig.asked().is_none(), "the second motion never begins");
    assert_eq!(rig.unit.motions_kept(), 0, "nobody asks how it ended");
    let inventory = rig.inventory();
    assert!(inventory.contains(&(SLOT_4, "A00001L8".to_owned())));
    assert!(inventory.contains(&(SLOT_2, "A00002L8".to_owned())));
}

#[test]
fn a_host_locks_the_mail_slots() {
    let mut rig = changer();
    rig.run(B, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
    let open = [&[0x1b, 0][..], &MAIL_1.to_be_bytes(), &[0, 0]].concat();
    for cdb in [
        move_medium(SLOT_1, MAIL_1),
        exchange(SLOT_1, MAIL_2, SLOT_4),
        exchange(SLOT_1, SLOT_2, MAIL_1),
        open,
    ] {
        rig.run(A, &cdb, 0, &[]).illegal(Asc::MEDIUM_REMOVAL_PREVENTED);
    }
    // What is in a mail slot can be taken in.
    rig.moves(&move_medium(MAIL_2, SLOT_4)).good();
    rig.run(B, &[0x1e, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.moves(&move_medium(SLOT_1, MAIL_1)).good();
}

#[test]
fn a_changer_is_not_ready_before_its_library_is_known() {
    let mut rig = Rig::with(configuration(), Box::new(store::null::Null::new(0)));
    for cdb in [
        move_medium(SLOT_1, SLOT_2),
        exchange(SLOT_1, SLOT_2, SLOT_3),
        vec![7, 0, 0, 0, 0, 0],
        status(0, 0, 10, 0, 255).to_vec(),
        cdb_of(0x2b, 10, &[0, SLOT_1]),
    ] {
        rig.run(A, &cdb, 255, &[]).check(SenseKey::NOT_READY, Asc::NOT_READY_BECOMING_READY);
    }
}

#[test]
fn it_is_a_medium_changer() {
    let mut rig = changer();
    let inquiry = rig.run(A, &[0x12, 0, 0, 0, 255, 0], 255, &[]).good();
    assert_eq!((inquiry[0], inquiry[1] & 0x80), (0x08, 0x80));
    assert!(inquiry[58..].chunks(2).any(|version| version == [0x04, 0x80]), "SMC-3");
}

#[test]
fn every_row_is_found_by_its_own_usage_map() {
    for row in table(&crate::smc::COMMAND_SET).rows() {
        assert_eq!(row.usage[0], row.opcode, "{}", row.name);
        let cdb = Cdb::from_bytes(row.usage).unwrap();
        assert_eq!(cdb.len_by_opcode(), Some(row.usage.len()), "{}", row.name);
    }
}

#[test]
fn the_commands_that_are_reported_are_those_that_exist() {
    let mut rig = changer();
    let data = rig.run(A, &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0], 0xffff, &[]).good();
    let reported: Vec<u8> = data[4..].chunks(8).map(|descriptor| descriptor[0]).collect();
    for opcode in 0..=u8::MAX {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        let exists = rig.run(A, &cdb, 0, &[]).sense
            != Some((SenseKey::ILLEGAL_REQUEST, Asc::INVALID_COMMAND_OPERATION_CODE));
        assert_eq!(exists, reported.contains(&opcode), "{opcode:02x}");
        // Reservations have had an effect.
        rig = changer();
    }
}

/// docs/devices.md has one row for each command of each device type.
#[test]
fn the_documentation_lists_every_command_of_a_changer() {
    crate::smc::COMMAND_SET.assert_documented("Libraries:");
}

#[test]
fn a_changer_passes_its_self_tests() {
    let mut rig = changer();
    for flags in [0x04, 1 << 5, 2 << 5, 5 << 5, 6 << 5] {
        rig.run(A, &[op::SEND_DIAGNOSTIC, flags, 0, 0, 0, 0], 0, &[]).good();
    }
}

#[test]
fn a_changer_reports_no_other_medium_after_a_drain() {
    let mut rig = changer();
    for is_drained in [true, false] {
        rig.unit.set_drained(Instant::ORIGIN, is_drained);
    }
    rig.run(A, &[0; 6], 0, &[]).good();
}

#[test]
fn no_command_moves_a_cartridge_of_a_drained_changer() {
    crate::drained_commands::assert_drained_medium_is_unused(&crate::smc::COMMAND_SET, || {
        let mut rig = changer();
        rig.unit.set_drained(Instant::ORIGIN, true);
        assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
        let is_change = |event: &&UnitEvent| matches!(event, UnitEvent::Library(_));
        (rig, move |rig: &Rig| rig.events.iter().filter(is_change).count())
    });
    let mut rig = changer();
    rig.unit.set_drained(Instant::ORIGIN, true);
    for cdb in [move_medium(SLOT_1, SLOT_4), exchange(SLOT_1, DRIVE_2, SLOT_4)] {
        assert_eq!(rig.run(A, &cdb, 0, &[]).status, Status::BUSY);
    }
    assert!(rig.asked().is_none());
}

#[test]
fn a_drain_ends_after_the_motion_of_a_command_that_was_aborted() {
    let mut rig = changer();
    let key = rig.start(A, &move_medium(SLOT_1, SLOT_4), 0, 0);
    let _ = rig.change();
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), Some(TmfOutcome::Complete));
    rig.unit.set_drained(Instant::ORIGIN, true);
    assert_eq!((rig.unit.stats().tasks, rig.unit.drain()), (0, Drain::Ending));
    rig.tell(LibraryInput::Changed(Ok(())));
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
}

#[test]
fn a_motion_that_a_drained_drive_takes_part_in_is_repeated_by_its_host() {
    let mut rig = changer();
    let before = rig.inventory();
    let key = rig.start(A, &move_medium(SLOT_1, DRIVE_1), 0, 0);
    let _ = rig.change();
    let failure = ChangeFailure { status: MotionFailure::Busy, unusable: None, why: String::new() };
    rig.tell(LibraryInput::Changed(Err(failure)));
    assert_eq!(rig.finish(key, &[]).status, Status::BUSY);
    assert_eq!(rig.inventory(), before);
}
