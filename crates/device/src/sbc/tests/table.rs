//! The table of commands itself.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::device_server::table::{ReadOnlyNexus, service_action};
use crate::drain::Drain;
use crate::testing::{BLOCKS, Rig, Slow, config};
use crate::unit::table;
use base::time::Instant;
use scsi::cdb::Cdb;

/// Renders one line for every command, for review of every change of the table.
fn render() -> String {
    let mut lines = String::new();
    for row in table(&crate::sbc::COMMAND_SET).rows() {
        let usage: Vec<String> = row.usage.iter().map(|byte| format!("{byte:02x}")).collect();
        lines += &format!(
            "{:<44} {} {:?} {:?} {:?} {}s {}\n",
            row.name,
            match row.read_only {
                ReadOnlyNexus::Admitted => "ro",
                ReadOnlyNexus::Refused => "--",
                ReadOnlyNexus::ByCdb(_) => "??",
            },
            row.conflict,
            row.attention,
            row.medium,
            row.timeout_s,
            usage.concat()
        );
    }
    // Removes the addresses of functions, which are not part of the reviewed table.
    lines
        .lines()
        .map(|line| match (line.find("ByCdb("), line.find(") ")) {
            (Some(start), Some(end)) if start < end => {
                format!("{}ByCdb{}\n", &line[..start], &line[end + 1..])
            }
            _ => format!("{line}\n"),
        })
        .collect()
}

#[test]
fn the_table_is_the_one_in_the_snapshot() {
    let rendered = render();
    let expected = include_str!("table.snap");
    assert!(
        rendered == expected,
        "the table changed; if that is meant, sbc/tests/table.snap becomes:\n{rendered}"
    );
}

#[test]
fn every_row_is_found_by_its_own_usage_map() {
    for row in table(&crate::sbc::COMMAND_SET).rows() {
        assert_eq!(row.usage[0], row.opcode, "{}", row.name);
        let cdb = Cdb::from_bytes(row.usage).unwrap();
        assert_eq!(cdb.len_by_opcode(), Some(row.usage.len()), "{}", row.name);
        if let Some(action) = row.service_action {
            assert_eq!(service_action(&cdb), action, "{}", row.name);
        }
    }
}

#[test]
fn no_command_stands_in_it_twice() {
    let table = table(&crate::sbc::COMMAND_SET);
    let mut keys: Vec<_> = table.rows().map(|row| (row.opcode, row.service_action)).collect();
    let count = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), count);
    for opcode in 0..=u8::MAX {
        let rows: Vec<_> = table.rows_of(opcode).collect();
        assert!(rows.len() <= 1 || rows.iter().all(|row| row.service_action.is_some()), "{opcode:02x}");
    }
}

#[test]
fn no_command_uses_the_medium_of_a_drained_disk() {
    crate::drained_commands::assert_drained_medium_is_unused(&crate::sbc::COMMAND_SET, || {
        let (medium, gate) = Slow::new(BLOCKS * 512);
        let mut rig = Rig::with(config(), Box::new(medium));
        rig.unit.seed(&[5; 32]);
        rig.unit.set_drained(Instant::ORIGIN, true);
        assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
        gate.close();
        (rig, move |_: &Rig| gate.held())
    });
}
