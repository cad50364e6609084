//! The output of `targe luns`.

use daemon::admin::lun_api::{FileSystem, Lun, Luns};
use daemon::config::show_size;

use super::limit_line;
use crate::reservation;
use crate::tables::Table;

/// Returns whether a LUN is a disk or a drive for discs: it has a capacity in blocks. Tape drives and
/// changers have none, and of a device that commands are passed to it is not known.
fn has_blocks(lun: &Lun) -> bool {
    let kind = lun.medium.split(':').next().unwrap_or_default();
    !matches!(kind, "tape" | "changer" | "sg" | "vhost-user-scsi")
}

pub(super) fn show(answer: &Luns) -> String {
    let mut text = table(&answer.luns).to_string();
    if let Some(systems) = answer.file_systems.as_deref().filter(|systems| !systems.is_empty()) {
        text += &format!("\n{}\n", file_systems(systems));
    }
    for lun in &answer.luns {
        for note in notes(lun) {
            text += &format!("{}, LUN {}: {note}\n", lun.target, lun.lun);
        }
    }
    text
}

/// The columns of what has blocks are left out if no LUN has any.
fn table(luns: &[Lun]) -> Table {
    let are_blocks_shown = luns.is_empty() || luns.iter().any(has_blocks);
    let row = |table: &mut Table, cells: [&str; 8]| {
        let [target, lun, size, block, flags, medium, naa, allocated] = cells;
        if are_blocks_shown {
            table.row(&[target, lun, size, block, flags, medium, naa, allocated]);
        } else {
            table.row(&[target, lun, flags, medium, naa]);
        }
    };
    let mut table = Table::bare();
    row(&mut table, ["TARGET", "LUN", "SIZE", "BLOCK", "FLAGS", "MEDIUM", "NAA", "ALLOCATED"]);
    for lun in luns {
        let none = || "-".to_owned();
        let (size, block) = match has_blocks(lun) {
            true => (show_size(lun.bytes), lun.block_bytes.to_string()),
            false => (none(), none()),
        };
        let allocated = lun.space.as_ref().map_or_else(none, |space| show_size(space.allocated_bytes));
        let (number, flags) = (lun.lun.to_string(), flags(lun));
        let cells = [&lun.target, &number, &size, &block, &flags, &lun.medium, &lun.naa, &allocated];
        row(&mut table, cells.map(String::as_str));
    }
    table
}

fn flags(lun: &Lun) -> String {
    let flags: Vec<&str> = [
        (lun.read_only, "ro"),
        (lun.thin, "thin"),
        (lun.write_cache && has_blocks(lun), "cached"),
        (lun.encrypted, "encrypted"),
        (lun.not_ready.is_some(), "not-ready"),
        (lun.lost_writes.is_some(), "lost-writes"),
        (lun.reservation.as_ref().is_some_and(|held| held.kind.is_some() || held.lost), "reserved"),
        (lun.medium_failure.is_some(), "failed"),
    ]
    .into_iter()
    .filter_map(|(set, word)| set.then_some(word))
    .collect();
    flags.join(",")
}

fn file_systems(systems: &[FileSystem]) -> Table {
    let mut table = Table::new(&["FILE SYSTEM OF", "SIZE", "FREE", "ALLOCATED", "PROMISED", "DISKS"]);
    for system in systems {
        let sizes = [system.bytes, system.free_bytes, system.allocated_bytes, system.promised_bytes];
        let [bytes, free, allocated, promised] = sizes.map(show_size);
        let disks = system.disks.to_string();
        table.row(&[&system.directory, &bytes, &free, &allocated, &promised, &disks]);
    }
    table
}

/// Returns what else there is to tell of a LUN.
fn notes(lun: &Lun) -> Vec<String> {
    let accept_loss = format!("targe lun accept-loss {} {}", lun.target, lun.lun);
    let mut notes = Vec::new();
    notes.extend(lun.not_ready.as_ref().map(|why| format!("not ready: {why}")));
    notes.extend(lun.lost_writes.as_ref().map(|why| match has_blocks(lun) {
        true => {
            format!("acknowledged writes are lost, and every flush fails until {accept_loss}: {why}")
        }
        // The drive tells its hosts, and writes again when a cartridge is loaded.
        false => format!("acknowledged writes are lost: {why}"),
    }));
    notes.extend(lun.reservation.as_ref().map(reservation::summary));
    notes.extend(
        lun.medium_failure
            .as_ref()
            .map(|why| format!("its medium has failed, until that succeeds or {accept_loss}: {why}")),
    );
    if let Some(line) = limit_line(lun.limit.as_ref(), lun.delayed_commands, lun.delayed_ms) {
        let waiting = match lun.waiting_commands {
            0 => String::new(),
            waiting => format!(", {waiting} wait now"),
        };
        notes.push(format!("{line}{waiting}"));
    }
    if lun.medium_errors > 0 {
        notes.push(format!("failures of its medium: {}", lun.medium_errors));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lun(number: u16, medium: &str) -> Lun {
        Lun {
            target: "iqn.2026-01.org.example:t".to_owned(),
            lun: number,
            medium: medium.to_owned(),
            bytes: 1 << 20,
            block_bytes: 512,
            read_only: false,
            thin: false,
            write_cache: true,
            encrypted: false,
            serial: "S".to_owned(),
            naa: "3f".to_owned(),
            commands: 0,
            read_bytes: 0,
            write_bytes: 0,
            medium_errors: 0,
            io_timeouts: 0,
            limit: None,
            delayed_commands: 0,
            delayed_ms: 0,
            waiting_commands: 0,
            not_ready: None,
            operations: Vec::new(),
            check_conditions: Vec::new(),
            reservation_conflicts: 0,
            task_set_full: 0,
            aborted_tasks: 0,
            tasks: 0,
            reservation: None,
            lost_writes: None,
            medium_failure: None,
            space: None,
        }
    }

    #[test]
    fn tapes_and_changers_have_no_columns_of_disks() {
        let empty = Lun {
            not_ready: Some("there is no cartridge in the drive".to_owned()),
            ..lun(1, "changer:/l drive 1")
        };
        let lost = Lun { lost_writes: Some("why".to_owned()), ..lun(2, "tape:/c") };
        let luns = vec![lun(0, "changer:/l"), empty, lost];
        let alone = show(&Luns { luns: luns.clone(), file_systems: None });
        assert_eq!(
            alone,
            "TARGET                     LUN  FLAGS        MEDIUM              NAA\n\
             iqn.2026-01.org.example:t  0                 changer:/l          3f\n\
             iqn.2026-01.org.example:t  1    not-ready    changer:/l drive 1  3f\n\
             iqn.2026-01.org.example:t  2    lost-writes  tape:/c             3f\n\
             iqn.2026-01.org.example:t, LUN 1: not ready: there is no cartridge in the drive\n\
             iqn.2026-01.org.example:t, LUN 2: acknowledged writes are lost: why\n"
        );
        let disk = Lun { lost_writes: Some("why".to_owned()), ..lun(4, "ram:1M") };
        let both = show(&Luns { luns: [luns, vec![disk]].concat(), file_systems: Some(Vec::new()) });
        let mut lines = both.lines();
        assert_eq!(
            lines.next().unwrap(),
            "TARGET                     LUN  SIZE  BLOCK  FLAGS               MEDIUM              NAA  ALLOCATED"
        );
        assert_eq!(
            lines.next().unwrap(),
            "iqn.2026-01.org.example:t  0    -     -                          changer:/l          3f   -"
        );
        assert!(
            both.contains("4    1M    512    cached,lost-writes  ram:1M              3f   -\n"),
            "{both}"
        );
        assert!(
            both.ends_with(
                "every flush fails until targe lun accept-loss iqn.2026-01.org.example:t 4: why\n"
            )
        );
    }
}
