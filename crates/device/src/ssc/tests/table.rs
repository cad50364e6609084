//! The table of commands itself: what REPORT SUPPORTED OPERATION CODES and the documentation say of it.

use super::*;
use crate::drain::Drain;
use crate::unit::table;
use scsi::cdb::Cdb;

#[test]
fn every_row_is_found_by_its_own_usage_map() {
    for row in table(&crate::ssc::COMMAND_SET).rows() {
        assert_eq!(row.usage[0], row.opcode, "{}", row.name);
        let cdb = Cdb::from_bytes(row.usage).unwrap();
        assert_eq!(cdb.len_by_opcode(), Some(row.usage.len()), "{}", row.name);
    }
}

#[test]
fn the_commands_that_are_reported_are_those_that_exist() {
    let mut rig = tape();
    let data = rig.query(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    let reported: Vec<u8> = data[4..].chunks(8).map(|descriptor| descriptor[0]).collect();
    assert_eq!(
        reported.iter().filter(|code| **code == op::LOAD_UNLOAD).count(),
        1,
        "START STOP UNIT is gone"
    );
    for opcode in 0..=u8::MAX {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        let exists = rig.run(A, &cdb, 0, &[]).sense
            != Some((SenseKey::ILLEGAL_REQUEST, Asc::INVALID_COMMAND_OPERATION_CODE));
        assert_eq!(exists, reported.contains(&opcode), "{opcode:02x}");
        // Reservations and LOAD UNLOAD have had an effect.
        rig = tape();
    }
}

#[test]
fn no_command_uses_the_cartridge_of_a_drained_drive() {
    crate::drained_commands::assert_drained_medium_is_unused(&crate::ssc::COMMAND_SET, || {
        let (mut written, folder) = with(Kind::USUAL);
        written.write_block(&pattern(100, 1)).good();
        written.mark(1).good();
        let folder = folder.after_kill();
        let mut rig = Rig::with(drive(), Box::new(folder.clone()));
        rig.unit.seed(&[5; 32]);
        rig.unit.set_drained(Instant::ORIGIN, true);
        assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
        folder.answer(false);
        (rig, move |_: &Rig| folder.held())
    });
}

/// docs/devices.md has one row for each command of each device type.
#[test]
fn the_documentation_lists_every_command_of_a_tape_drive() {
    crate::ssc::COMMAND_SET.assert_documented("Tapes:");
}
