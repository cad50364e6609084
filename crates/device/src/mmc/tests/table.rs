//! The table of commands itself: what REPORT SUPPORTED OPERATION CODES and the documentation say of it.

use super::*;
use crate::drain::Drain;
use crate::testing::Slow;
use crate::unit::table;
use scsi::cdb::Cdb;

#[test]
fn every_row_is_found_by_its_own_usage_map() {
    for row in table(&crate::mmc::COMMAND_SET).rows() {
        assert_eq!(row.usage[0], row.opcode, "{}", row.name);
        let cdb = Cdb::from_bytes(row.usage).unwrap();
        assert_eq!(cdb.len_by_opcode(), Some(row.usage.len()), "{}", row.name);
    }
}

#[test]
fn the_commands_that_are_reported_are_those_that_exist() {
    let mut rig = disc(CD);
    let data = rig.get(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    let reported: Vec<u8> = data[4..].chunks(8).map(|descriptor| descriptor[0]).collect();
    for opcode in 0..=u8::MAX {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        let exists = rig.run(A, &cdb, 0, &[]).sense
            != Some((SenseKey::ILLEGAL_REQUEST, Asc::INVALID_COMMAND_OPERATION_CODE));
        assert_eq!(exists, reported.contains(&opcode), "{opcode:02x}");
        // RESERVE and START STOP UNIT have had an effect.
        rig = disc(CD);
    }
}

/// docs/devices.md has one row for each command of each device type.
#[test]
fn the_documentation_lists_every_command_of_a_disc() {
    crate::mmc::COMMAND_SET.assert_documented("Discs:");
}

#[test]
fn no_command_uses_the_disc_of_a_drained_drive() {
    crate::drained_commands::assert_drained_medium_is_unused(&crate::mmc::COMMAND_SET, || {
        let (medium, gate) = Slow::new(320 * SECTOR);
        let mut rig = Rig::with(UnitConfig { read_only: false, ..drive(None) }, Box::new(medium));
        rig.unit.set_drained(Instant::ORIGIN, true);
        assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
        gate.close();
        (rig, move |_: &Rig| gate.held())
    });
}
