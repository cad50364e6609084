//! Resolves tape libraries: the changer, and its drives as units and LUNs of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use backends::library_folder::LibraryFolder;

use super::super::identity;
use super::super::raw;
use super::super::resolved::{Identity, MappedLun, Medium, Naa, Unit, UnitIndex};
use super::super::schema::LUN_MAX;
use super::super::source_span::ConfigReport;
use super::printable;
use super::tapes::with_cause;

/// The keys of a LUN that apply to a library, beside those of every LUN of a target.
pub(super) const KEYS: &[&str] =
    &["name", "type", "path", "tst", "tas", "spc", "serial", "naa", "vendor", "product", "revision"];

/// The libraries, by the unit of the changer.
pub(super) type Libraries = BTreeMap<UnitIndex, ResolvedLibrary>;

/// A library of the configuration.
pub(super) struct ResolvedLibrary {
    pub(super) serial: String,
    /// Its drives, and the serial number of each.
    drives: Vec<(UnitIndex, String)>,
}

/// Checks that a folder holds a library.
pub(super) fn check(path: &Path, is_read_only: bool) -> Result<(), String> {
    if is_read_only {
        return Err("a library cannot be \"ro\": hosts move its cartridges".to_owned());
    }
    LibraryFolder::read(path).map(drop).map_err(|error| with_cause(&error))
}

/// Adds the drives of a changer as units after it.
pub(super) fn add_drives(
    units: &mut Vec<Unit>,
    libraries: &mut Libraries,
    changer: UnitIndex,
    lun: &raw::Lun,
    report: &mut ConfigReport,
) {
    let vendor = printable(lun.drive_vendor.as_ref(), report);
    let product = printable(lun.drive_product.as_ref(), report);
    let Some(unit) = units.get(changer.0).cloned() else { return };
    let Medium::Changer { path } = &unit.medium else { return };
    // A library that cannot be read was reported.
    let Ok(library) = LibraryFolder::read(path) else { return };
    let mut drives = Vec::new();
    for number in 1..=library.counts().drives {
        drives.push((UnitIndex(units.len()), library.drive_serial(number)));
        units.push(Unit {
            label: format!("{} drive {number}", unit.label),
            medium: Medium::LibraryDrive { path: path.clone(), number },
            identity: Identity {
                vendor: vendor.clone().unwrap_or_default(),
                product: product.clone().unwrap_or_else(|| "Virtual Tape".to_owned()),
                ..unit.identity.clone()
            },
            ..unit.clone()
        });
    }
    // Only what is written to drives is cached.
    if let Some(unit) = units.get_mut(changer.0) {
        unit.write_cache = false;
    }
    libraries.insert(changer, ResolvedLibrary { serial: library.serial().to_owned(), drives });
}

impl ResolvedLibrary {
    /// Completes the identities of the drives of the changer with this name. Returns their names and labels.
    pub(super) fn identify(&self, units: &mut [Unit], changer: Naa) -> Vec<(Naa, String)> {
        let mut names = Vec::new();
        for (number, (drive, serial)) in (1..).zip(&self.drives) {
            let Some(unit) = units.get_mut(drive.0) else { continue };
            unit.identity.naa = identity::derived_naa(&changer.to_string(), &format!("drive:{number}"));
            unit.identity.serial.clone_from(serial);
            names.push((unit.identity.naa, unit.label.clone()));
        }
        names
    }
}

/// Returns the LUNs of the drives of a changer: the numbers from `drive_lun` on, or else the lowest free
/// numbers above that of the changer.
pub(super) fn drive_luns(
    libraries: &Libraries,
    changer: &MappedLun,
    lun: &raw::Lun,
    numbers: &mut BTreeSet<u16>,
    report: &mut ConfigReport,
) -> Vec<MappedLun> {
    let Some(library) = libraries.get(&changer.unit) else {
        let is_changer = lun.kind.as_ref().is_some_and(|kind| kind.value == "changer");
        if let Some(at) = lun.drive_lun.as_ref().filter(|_| !is_changer) {
            report.error(&at.span, "only a lun of type changer takes \"drive_lun\"");
        }
        return Vec::new();
    };
    let mut mapped = Vec::new();
    let mut next = lun.drive_lun.as_ref().map_or(changer.lun.saturating_add(1), |at| at.value);
    for (number, (unit, _)) in (1..).zip(&library.drives) {
        while lun.drive_lun.is_none() && numbers.contains(&next) {
            next += 1;
        }
        let span = lun.drive_lun.as_ref().map_or(&lun.span, |at| &at.span);
        if u64::from(next) > LUN_MAX {
            report.error(span, format!("the target has no free number for drive {number} of the library"));
            return mapped;
        }
        if !numbers.insert(next) {
            let why = format!("drive {number} of the library would be LUN {next}, which is another LUN");
            report.error(span, why);
        }
        mapped.push(MappedLun { lun: next, unit: *unit, ..*changer });
        next += 1;
    }
    mapped
}
