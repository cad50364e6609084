//! Numbers the LUNs of a target. Nothing else in targe does: an edit, a plan and a check take the numbers
//! from the resolved configuration.
//!
//! A LUN has its own number, `lun`, or else the lowest that is free when those before it in the file have
//! theirs. The drives of a tape library have the numbers from `drive_lun` on, or else the lowest free numbers
//! above that of the changer. Own numbers are never free for other LUNs.

use std::collections::{BTreeMap, BTreeSet};

use super::super::raw;
use super::super::resolved::LunNumbers;
use super::super::schema::LUN_MAX;
use super::super::source_span::{ConfigReport, SourceSpan};
use super::at_line;

/// The first number that needs flat space addressing.
const FLAT_FROM: u16 = 256;
/// What Linux adds to such a number: the code of the addressing method.
const FLAT_SPACE: u32 = 0x4000;

/// The numbers of a target that are assigned so far.
pub(super) struct Numbering {
    /// Every number that is used, by valid and by invalid LUNs.
    used: BTreeSet<u16>,
    /// The numbers of each LUN table.
    tables: Vec<LunNumbers>,
    /// Whether a number was found that Linux shows as another.
    has_flat: bool,
    /// From this number on, the drives of a library that cannot be read have unknown numbers.
    unknown_from: Option<u16>,
}

impl Numbering {
    /// Reserves the numbers that LUNs have of their own.
    pub(super) fn new(luns: &[raw::Lun], report: &mut ConfigReport) -> Self {
        let mut fixed: BTreeMap<u16, &SourceSpan> = BTreeMap::new();
        for at in luns.iter().filter_map(|lun| lun.lun.as_ref()) {
            match fixed.get(&at.value) {
                Some(first) => {
                    report.error(&at.span, format!("LUN {} is given twice{}", at.value, at_line(first)));
                }
                None => {
                    fixed.insert(at.value, &at.span);
                }
            }
        }
        Self { used: fixed.into_keys().collect(), tables: Vec::new(), has_flat: false, unknown_from: None }
    }

    /// Returns the number of the next LUN of the file.
    pub(super) fn number_lun(&mut self, lun: &raw::Lun, report: &mut ConfigReport) -> Option<u16> {
        let own = lun.lun.as_ref().map(|at| at.value);
        let Some(number) = own.or_else(|| self.lowest_free()) else {
            report.error(&lun.span, "the target has no free number for another LUN");
            return None;
        };
        // Without this, an unreadable library would give its drives' numbers to other disks.
        if own.is_none() && self.unknown_from.is_some_and(|from| number >= from) {
            let why = "the number of this LUN depends on the drives of a library that cannot be read; set its \"lun\"";
            report.unknown_number(&lun.span, why);
        }
        self.warn_of_flat(number, lun.lun.as_ref().map_or(&lun.span, |at| &at.span), report);
        self.used.insert(number);
        self.tables.push(LunNumbers { lun: number, drives: Vec::new() });
        Some(number)
    }

    /// Warns of the first number of the target that Linux shows as another: it takes the code of the
    /// addressing method (flat space) for a part of the number.
    fn warn_of_flat(&mut self, number: u16, span: &SourceSpan, report: &mut ConfigReport) {
        if number < FLAT_FROM || std::mem::replace(&mut self.has_flat, true) {
            return;
        }
        let shown = u32::from(number) + FLAT_SPACE;
        report.warn(
            span,
            format!(
                "Linux shows LUN {number} as {shown}, and every LUN from {FLAT_FROM} on by its number and {FLAT_SPACE} \
                 (flat space addressing); numbers below {FLAT_FROM} are the same everywhere"
            ),
        );
    }

    /// Returns the numbers of the drives of the library that was numbered last.
    pub(super) fn number_drives(
        &mut self,
        lun: &raw::Lun,
        drives: usize,
        report: &mut ConfigReport,
    ) -> Vec<u16> {
        let mut next = self.first_drive(lun);
        let mut numbers = Vec::new();
        for drive in 1..=drives {
            while lun.drive_lun.is_none() && self.used.contains(&next) {
                next += 1;
            }
            let span = lun.drive_lun.as_ref().map_or(&lun.span, |at| &at.span);
            if u64::from(next) > LUN_MAX {
                report.error(span, format!("the target has no free number for drive {drive} of the library"));
                break;
            }
            self.warn_of_flat(next, span, report);
            if !self.used.insert(next) {
                let why = format!("drive {drive} of the library would be LUN {next}, which is another LUN");
                report.error(span, why);
            }
            numbers.push(next);
            next += 1;
        }
        // They could be those of the other library's drives.
        let is_unknown = |number: &u16| self.unknown_from.is_some_and(|from| *number >= from);
        if lun.drive_lun.is_none() && numbers.iter().any(is_unknown) {
            let why = "the numbers of the drives of this library depend on the drives of a library that cannot be read; \
                       set its \"drive_lun\"";
            report.error(&lun.span, why);
        }
        if let Some(table) = self.tables.last_mut() {
            table.drives.clone_from(&numbers);
        }
        numbers
    }

    /// Records that the library that was numbered last cannot be read, so that nobody knows how many drives
    /// it has.
    pub(super) fn skip_unreadable_library(&mut self, lun: &raw::Lun) {
        let first = self.first_drive(lun);
        self.unknown_from = Some(self.unknown_from.map_or(first, |known| known.min(first)));
    }

    /// Returns every used number, and the numbers of each LUN table.
    pub(super) fn finish(self) -> (BTreeSet<u16>, Vec<LunNumbers>) {
        (self.used, self.tables)
    }

    /// Returns the lowest number that the first drive of the library that was numbered last can have.
    fn first_drive(&self, lun: &raw::Lun) -> u16 {
        let changer = self.tables.last().map_or(0, |table| table.lun);
        lun.drive_lun.as_ref().map_or(changer.saturating_add(1), |at| at.value)
    }

    fn lowest_free(&self) -> Option<u16> {
        let max = u16::try_from(LUN_MAX).unwrap_or(0);
        (0..=max).find(|number| !self.used.contains(number))
    }
}
