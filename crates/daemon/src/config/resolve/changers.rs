//! Resolves tape libraries: the changer, and its drives as units and LUNs of their own.

use std::collections::BTreeSet;
use std::path::Path;

use backends::library_folder::LibraryFolder;

use super::super::identity;
use super::super::raw;
use super::super::resolved::{Identity, MappedLun, Medium, Naa, Unit, UnitIndex};
use super::super::schema::LUN_MAX;
use super::super::source_span::{ConfigReport, SourceSpan};
use super::luns::{UnitResolver, printable};
use super::tapes::with_cause;

/// The keys of a LUN that apply to a library, beside those of every LUN of a target.
pub(super) const KEYS: &[&str] =
    &["name", "type", "path", "tst", "tas", "spc", "serial", "naa", "vendor", "product", "revision"];

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

impl UnitResolver<'_> {
    /// Adds the drives of a changer as units after it.
    pub(super) fn add_drives(&mut self, changer: UnitIndex, lun: &raw::Lun, report: &mut ConfigReport) {
        let vendor = printable(lun.drive_vendor.as_ref(), report);
        let product = printable(lun.drive_product.as_ref(), report);
        let Some(unit) = self.units.get(changer.0).cloned() else { return };
        let Medium::Changer { path } = &unit.medium else { return };
        // A library that cannot be read was reported.
        let Ok(library) = LibraryFolder::read(path) else { return };
        let mut drives = Vec::new();
        for number in 1..=library.counts().drives {
            drives.push((UnitIndex(self.units.len()), library.drive_serial(number)));
            self.units.push(Unit {
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
        self.libraries.insert(changer, ResolvedLibrary { serial: library.serial().to_owned(), drives });
    }

    /// Completes the identities of the drives of a changer with this name.
    pub(super) fn identify_drives(
        &mut self,
        changer: UnitIndex,
        naa: Naa,
        span: &SourceSpan,
        report: &mut ConfigReport,
    ) {
        let Some(library) = self.libraries.get(&changer) else { return };
        for (number, (drive, serial)) in (1..).zip(&library.drives) {
            let Some(unit) = self.units.get_mut(drive.0) else { continue };
            let naa = identity::derived_naa(&naa.to_string(), &format!("drive:{number}"));
            unit.identity.naa = naa;
            unit.identity.serial.clone_from(serial);
            if let Some(other) = self.names.insert(naa, unit.label.clone()) {
                report.error(span, format!("the name naa.{naa} is already used by {other}"));
            }
        }
    }

    /// Returns the LUNs of the drives of a changer: consecutive numbers from `drive_lun` on, or else the lowest
    /// free numbers above that of the changer.
    pub(super) fn drive_luns(
        &self,
        changer: &MappedLun,
        lun: &raw::Lun,
        numbers: &mut BTreeSet<u16>,
        report: &mut ConfigReport,
    ) -> Vec<MappedLun> {
        let is_changer = |unit: &Unit| matches!(unit.medium, Medium::Changer { .. });
        if let Some(at) = &lun.drive_lun
            && !self.units.get(changer.unit.0).is_some_and(is_changer)
        {
            report.error(&at.span, "only a lun of type changer takes \"drive_lun\"");
        }
        let Some(library) = self.libraries.get(&changer.unit) else { return Vec::new() };
        let mut mapped = Vec::new();
        let mut next = lun.drive_lun.as_ref().map_or(changer.lun.saturating_add(1), |at| at.value);
        for (number, (unit, _)) in (1..).zip(&library.drives) {
            while lun.drive_lun.is_none() && numbers.contains(&next) {
                next += 1;
            }
            let span = lun.drive_lun.as_ref().map_or(&lun.span, |at| &at.span);
            if u64::from(next) > LUN_MAX {
                report
                    .error(span, format!("the target has no free number for drive {number} of the library"));
                return mapped;
            }
            if !numbers.insert(next) {
                report.error(
                    span,
                    format!("drive {number} of the library would be LUN {next}, which is another LUN"),
                );
            }
            mapped.push(MappedLun { lun: next, unit: *unit, ..changer.clone() });
            next += 1;
        }
        mapped
    }
}
