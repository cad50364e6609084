//! Resolves tape libraries: the changer, and its drives as units and LUNs of their own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backends::library_folder::LibraryFolder;

use super::super::identity;
use super::super::library_record::ServedLibrary;
use super::super::raw;
use super::super::resolved::{Identity, MappedLun, Medium, Naa, Unit, UnitIndex};
use super::super::source_span::ConfigReport;
use super::numbers::Numbering;
use super::printable;
use super::tapes::{usual_revision, with_cause};

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

impl ResolvedLibrary {
    /// Returns the units of its drives.
    pub(super) fn drives(&self) -> impl Iterator<Item = UnitIndex> {
        self.drives.iter().map(|(unit, _)| *unit)
    }
}

/// Checks that a folder holds a library.
pub(super) fn check(path: &Path, is_read_only: bool) -> Result<(), String> {
    if is_read_only {
        return Err("a library cannot be \"ro\": hosts move its cartridges".to_owned());
    }
    LibraryFolder::read(path).map(drop).map_err(|error| with_cause(&error))
}

/// Returns the serial number of the library in a folder, and those of its drives; `None` if it cannot be
/// read.
pub(super) fn read(path: &Path) -> Option<ServedLibrary> {
    let library = LibraryFolder::read(path).ok()?;
    let drives = (1..=library.counts().drives).map(|number| library.drive_serial(number)).collect();
    Some(ServedLibrary { serial: library.serial().to_owned(), drives })
}

/// Adds the drives of a changer as units after it.
pub(super) fn add_drives(
    units: &mut Vec<Unit>,
    (libraries, served, found): (&mut Libraries, &BTreeMap<PathBuf, ServedLibrary>, Option<ServedLibrary>),
    changer: UnitIndex,
    lun: &raw::Lun,
    report: &mut ConfigReport,
) {
    let vendor = printable(lun.drive_vendor.as_ref(), report);
    let product = printable(lun.drive_product.as_ref(), report).unwrap_or_else(|| "Virtual Tape".to_owned());
    let revision = printable(lun.drive_revision.as_ref(), report).unwrap_or_else(|| usual_revision(&product));
    let Some(unit) = units.get(changer.0).cloned() else { return };
    let Medium::Changer { path } = &unit.medium else { return };
    // A library that cannot be read was reported.
    let Some(library) = found.or_else(|| served.get(path).cloned()) else { return };
    let mut drives = Vec::new();
    for (number, drive_serial) in (1..).zip(library.drives) {
        drives.push((UnitIndex(units.len()), drive_serial));
        units.push(Unit {
            label: format!("{} drive {number}", unit.label),
            medium: Medium::LibraryDrive { path: path.clone(), number },
            identity: Identity {
                vendor: vendor.clone().unwrap_or_default(),
                product: product.clone(),
                revision: revision.clone(),
                ..unit.identity.clone()
            },
            ..unit.clone()
        });
    }
    // Only what is written to drives is cached.
    if let Some(unit) = units.get_mut(changer.0) {
        unit.write_cache = false;
    }
    libraries.insert(changer, ResolvedLibrary { serial: library.serial, drives });
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

/// Returns the LUNs of the drives of a changer, which was numbered last.
pub(super) fn drive_luns(
    libraries: &Libraries,
    (changer, medium): (&MappedLun, Option<&Medium>),
    lun: &raw::Lun,
    numbering: &mut Numbering,
    report: &mut ConfigReport,
) -> Vec<MappedLun> {
    let Some(library) = libraries.get(&changer.unit) else {
        if matches!(medium, Some(Medium::Changer { .. })) {
            numbering.skip_unreadable_library(lun);
        } else if let Some(at) = &lun.drive_lun {
            report.error(&at.span, "only a lun of type changer takes \"drive_lun\"");
        }
        return Vec::new();
    };
    let numbers = numbering.number_drives(lun, library.drives.len(), report);
    let drives = numbers.into_iter().zip(&library.drives);
    drives.map(|(number, (unit, _))| MappedLun { lun: number, unit: *unit, ..*changer }).collect()
}

/// Returns the tape libraries with drives among units that are served.
pub(crate) fn served_libraries(units: &[Unit]) -> BTreeMap<PathBuf, ServedLibrary> {
    let mut served: BTreeMap<PathBuf, ServedLibrary> = BTreeMap::new();
    for unit in units {
        let Medium::LibraryDrive { path, number } = &unit.medium else { continue };
        let serial = &unit.identity.serial;
        let of_library = serial.strip_suffix(&format!("{number:02}")).unwrap_or(serial);
        let known = served.entry(path.clone());
        let known =
            known.or_insert_with(|| ServedLibrary { serial: of_library.to_owned(), drives: Vec::new() });
        known.drives.push(serial.clone());
    }
    served
}
