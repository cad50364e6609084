//! The metrics of logical units.

use std::collections::BTreeSet;

use device::stats::{OperationClass, SENSE_KEYS, UnitStats};

use super::{Family, Value};
use crate::config::Medium;
use crate::serve::file_systems::FileSystemUse;
use crate::serve::reactor_shard::counts::Snapshot;

/// The most LUNs with metrics of their own. The counters of all others are summed under the labels `other`.
const LUNS_MAX: usize = 1000;

/// The labels of the LUNs that have no metrics of their own.
const OTHER: &str = "other";

/// The labels of a unit, and its counters. A unit that several LUNs lead to is counted under the first.
struct Row {
    target: String,
    lun: String,
    stats: UnitStats,
    /// The capacity, if it is known.
    bytes: Option<u64>,
    errors: u64,
    is_ready: bool,
    has_lost_writes: bool,
    has_failed: bool,
    /// What its file has allocated, and what it can still take, if that is known.
    space: Option<(u64, u64)>,
}

fn rows(snapshot: &Snapshot) -> Vec<Row> {
    let views: std::collections::BTreeMap<_, _> =
        snapshot.units().map(|view| (view.report.unit, view)).collect();
    let (mut rows, mut seen): (Vec<Row>, _) = (Vec::new(), BTreeSet::new());
    for target in &snapshot.runtime.config.targets {
        for mapped in &target.luns {
            let id = snapshot.runtime.number(mapped.unit);
            let Some(view) = id.filter(|id| seen.insert(*id)).and_then(|id| views.get(&id)) else { continue };
            let (name, lun) = (target.name.to_string(), mapped.lun.to_string());
            let unit = snapshot.runtime.config.units.get(mapped.unit.0);
            let is_passed = unit
                .is_some_and(|unit| matches!(unit.medium, Medium::Sg { .. } | Medium::VhostUserScsi { .. }));
            let row = Row {
                target: name,
                lun,
                stats: view.report.stats,
                bytes: Some(view.bytes).filter(|_| !is_passed),
                errors: view.health.errors,
                is_ready: view.health.withheld.is_none(),
                has_lost_writes: view.health.lost_writes.is_some(),
                has_failed: view.health.failure.is_some(),
                space: view.health.space.as_ref().map(|(_, space)| (space.allocated, space.promised)),
            };
            if let Some(other) = rows.get_mut(LUNS_MAX) {
                other.stats.add(&row.stats);
                let sum = other.bytes.unwrap_or(0).saturating_add(row.bytes.unwrap_or(0));
                other.bytes = Some(sum);
                other.errors = other.errors.saturating_add(row.errors);
                other.is_ready &= row.is_ready;
                other.has_lost_writes |= row.has_lost_writes;
                other.has_failed |= row.has_failed;
                let (allocated, promised) = row.space.unwrap_or_default();
                let sums = other.space.get_or_insert_default();
                *sums = (sums.0.saturating_add(allocated), sums.1.saturating_add(promised));
            } else if rows.len() == LUNS_MAX {
                rows.push(Row { target: OTHER.to_owned(), lun: OTHER.to_owned(), ..row });
            } else {
                rows.push(row);
            }
        }
    }
    rows
}

pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let rows = rows(snapshot);
    let lun = &["target", "lun"][..];
    let simple = |mut family: Family, value: fn(&Row) -> u64| {
        for row in &rows {
            family.push(vec![row.target.clone(), row.lun.clone()], Value::Count(value(row)));
        }
        family
    };
    vec![
        info(snapshot),
        commands(&rows),
        durations(&rows),
        data_bytes(&rows),
        check_conditions(&rows),
        simple(
            Family::counter(
                "targe_lun_reservation_conflicts",
                lun,
                "Commands that ended with RESERVATION CONFLICT.",
            ),
            |row| row.stats.reservation_conflicts,
        ),
        simple(
            Family::counter("targe_lun_task_set_full", lun, "Commands that ended with TASK SET FULL."),
            |row| row.stats.task_set_full,
        ),
        simple(Family::counter("targe_lun_aborted_tasks", lun, "Tasks that were aborted."), |row| {
            row.stats.aborts
        }),
        simple(
            Family::counter("targe_lun_medium_errors", lun, "Operations of the file or device that failed."),
            |row| row.errors,
        ),
        simple(
            Family::counter(
                "targe_lun_io_timeouts",
                lun,
                "Operations of the medium that took longer than `io_timeout`.",
            ),
            |row| row.stats.io_timeouts,
        ),
        simple(
            Family::counter("targe_lun_delayed_commands", lun, "Commands that a limit has delayed."),
            |row| row.stats.delays.delayed,
        ),
        delays(&rows),
        simple(
            Family::gauge("targe_lun_waiting_commands", lun, "Commands that a limit delays now."),
            |row| row.stats.waiting,
        ),
        simple(Family::gauge("targe_lun_tasks", lun, "Tasks in the task set."), |row| row.stats.tasks),
        sizes(&rows),
        simple(
            Family::gauge(
                "targe_lun_ready",
                lun,
                "1 if the file or device is the one that is served, 0 if the LUN is not ready because it has changed \
                 or was removed.",
            ),
            |row| u64::from(row.is_ready),
        ),
        simple(
            Family::gauge(
                "targe_lun_lost_writes",
                lun,
                "1 if writes that the LUN acknowledged are lost, so that every flush fails until `targe lun accept-loss`.",
            ),
            |row| u64::from(row.has_lost_writes),
        ),
        simple(
            Family::gauge(
                "targe_lun_medium_failed",
                lun,
                "1 if an operation of the file or device has failed, until one of the same kind succeeds at the same \
                 place, or until `targe lun accept-loss`.",
            ),
            |row| u64::from(row.has_failed),
        ),
        spaces(&rows, "targe_lun_allocated", "What is allocated to the file of the LUN.", |space| space.0),
        spaces(
            &rows,
            "targe_lun_promised",
            "What the file of the LUN can still take from its file system.",
            |space| space.1,
        ),
    ]
}

fn delays(rows: &[Row]) -> Family {
    let doc = "How long limits have delayed commands, all together.";
    let mut family = Family::counter("targe_lun_delay", &["target", "lun"], doc).in_seconds();
    for row in rows {
        let waited = std::time::Duration::from_nanos(row.stats.delays.delayed_ns);
        family.push(vec![row.target.clone(), row.lun.clone()], Value::Seconds(waited.as_secs_f64()));
    }
    family
}

fn spaces(rows: &[Row], name: &'static str, doc: &'static str, of: fn((u64, u64)) -> u64) -> Family {
    let mut family = Family::gauge(name, &["target", "lun"], doc).in_bytes();
    for row in rows {
        if let Some(space) = row.space {
            family.push(vec![row.target.clone(), row.lun.clone()], Value::Count(of(space)));
        }
    }
    family
}

/// Returns the metrics of the file systems that hold files of LUNs. Each has its device as a label:
/// Prometheus refuses all metrics if two samples have the same labels.
pub(super) fn file_systems(snapshot: &Snapshot) -> Vec<Family> {
    let systems = FileSystemUse::of(snapshot.units().filter_map(|view| view.health.space.as_ref()));
    let each = |name, doc, of: fn(&FileSystemUse) -> u64| {
        let mut family = Family::gauge(name, &["directory", "device"], doc).in_bytes();
        for system in &systems {
            let labels = vec![system.directory.display().to_string(), system.device_text()];
            family.push(labels, Value::Count(of(system)));
        }
        family
    };
    vec![
        each("targe_file_system_size", "What a file system with files of LUNs holds.", |system| system.whole),
        each("targe_file_system_free", "What it has free.", |system| system.free),
        each(
            "targe_file_system_promised",
            "What the files of LUNs on it can still take, all together. Writes can fail if this is more than what is \
             free.",
            |system| system.promised,
        ),
    ]
}

fn sizes(rows: &[Row]) -> Family {
    let doc = "The capacity. A LUN of type `sg` has no sample.";
    let mut family = Family::gauge("targe_lun_size", &["target", "lun"], doc).in_bytes();
    for row in rows {
        if let Some(bytes) = row.bytes {
            family.push(vec![row.target.clone(), row.lun.clone()], Value::Count(bytes));
        }
    }
    family
}

/// Describes every LUN, also those that lead to a unit that is counted under another LUN.
fn info(snapshot: &Snapshot) -> Family {
    let mut family = Family::info(
        "targe_lun",
        &["target", "lun", "medium", "serial", "naa"],
        "The medium and the identity of each LUN. LUNs with the same `naa` lead to one disk, whose counters stand under \
         the first of them.",
    );
    let config = &snapshot.runtime.config;
    let mapped = config.targets.iter().flat_map(|target| target.luns.iter().map(move |lun| (target, lun)));
    for (target, lun) in mapped.take(LUNS_MAX) {
        let Some(unit) = config.units.get(lun.unit.0) else { continue };
        let medium = match unit.medium {
            Medium::File { .. } => "file",
            Medium::Block { .. } => "block",
            Medium::Ram { .. } => "ram",
            Medium::Null { .. } => "null",
            Medium::Disc { .. } => "disc",
            Medium::Tape { .. } | Medium::LibraryDrive { .. } => "tape",
            Medium::Changer { .. } => "changer",
            Medium::Nbd { .. } => "nbd",
            Medium::VhostUserBlk { .. } => "vhost-user-blk",
            Medium::VhostUserScsi { .. } => "vhost-user-scsi",
            Medium::Sg { .. } => "sg",
        };
        let labels = [
            target.name.to_string(),
            lun.lun.to_string(),
            medium.to_owned(),
            unit.identity.serial.clone(),
            unit.identity.naa.to_string(),
        ];
        family.push(labels.into(), Value::Count(1));
    }
    family
}

const BY_OPERATION: &[&str] = &["target", "lun", "op"];

fn commands(rows: &[Row]) -> Family {
    let mut family = Family::counter(
        "targe_lun_commands",
        BY_OPERATION,
        "Commands that ended with a status, by class: `read`, `write`, `flush`, `unmap` and `other`.",
    );
    for row in rows {
        for class in OperationClass::ALL {
            let labels = vec![row.target.clone(), row.lun.clone(), class.name().to_owned()];
            family.push(labels, Value::Count(row.stats.latencies_of(class).commands()));
        }
    }
    family
}

fn durations(rows: &[Row]) -> Family {
    let mut family = Family::histogram(
        "targe_lun_command_duration",
        BY_OPERATION,
        "How long commands took, from their arrival at the LUN to their status. A class without a command has no \
         samples. The clock is read once for each wake-up of a reactor, so a command that is answered in the \
         wake-up that brought it took 0.",
    );
    for row in rows {
        for class in OperationClass::ALL {
            let latencies = row.stats.latencies_of(class);
            if latencies.commands() > 0 {
                let labels = vec![row.target.clone(), row.lun.clone(), class.name().to_owned()];
                family.push(labels, Value::Latencies(latencies));
            }
        }
    }
    family
}

fn data_bytes(rows: &[Row]) -> Family {
    let mut family = Family::counter(
        "targe_lun_data",
        BY_OPERATION,
        "Bytes of the medium that commands read and wrote: `read` and `write`.",
    )
    .in_bytes();
    for row in rows {
        for (op, bytes) in [("read", row.stats.read_bytes), ("write", row.stats.write_bytes)] {
            family.push(vec![row.target.clone(), row.lun.clone(), op.to_owned()], Value::Count(bytes));
        }
    }
    family
}

fn check_conditions(rows: &[Row]) -> Family {
    let mut family = Family::counter(
        "targe_lun_check_conditions",
        &["target", "lun", "sense_key"],
        "Commands that ended with CHECK CONDITION, by sense key. A sense key that was never returned has no sample, except `medium_error` and `hardware_error`.",
    );
    for row in rows {
        for (key, count) in
            row.stats.sense_keys.iter().enumerate().filter(|(key, count)| **count > 0 || ALWAYS.contains(key))
        {
            let name = SENSE_KEY_NAMES.get(key).copied().unwrap_or("other");
            let labels = vec![row.target.clone(), row.lun.clone(), name.to_owned()];
            family.push(labels, Value::Count(*count));
        }
    }
    family
}

/// The sense keys that always have a sample, MEDIUM ERROR and HARDWARE ERROR: an alert sees a counter
/// increase only if it was there before.
const ALWAYS: [usize; 2] = [3, 4];

/// The names of the sense keys (SPC-5 §4.4.8).
const SENSE_KEY_NAMES: [&str; SENSE_KEYS] = [
    "no_sense",
    "recovered_error",
    "not_ready",
    "medium_error",
    "hardware_error",
    "illegal_request",
    "unit_attention",
    "data_protect",
    "blank_check",
    "vendor_specific",
    "copy_aborted",
    "aborted_command",
    "reserved",
    "volume_overflow",
    "miscompare",
    "completed",
];
