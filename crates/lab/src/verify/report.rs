//! The report of a run: its operations, errors and findings, and its progress.

use std::collections::BTreeSet;
use std::time::Duration;

use base::units::Lba;
use oracle::history::{Finding, Violation};
use serde::Serialize;

/// The most findings, and the most errors, that a report describes one by one. The counters include all of
/// them.
pub const TOLD_MAX: usize = 100;

/// The most wrong blocks that a report remembers (32 MiB). It counts further ones in each read.
const WRONG_MAX: usize = 1 << 20;

/// The report of a run: its operations, errors and findings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// The seed of all random choices of the run; the same seed makes the same choices.
    pub seed: u64,
    /// The length of a signed block, in bytes.
    pub unit: usize,
    /// Writes that succeeded.
    pub writes: u64,
    /// Reads that succeeded, those of the last pass included.
    pub reads: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Ranges that were set to zeros (WRITE SAME).
    pub zeroed: u64,
    /// Ranges that were deallocated (UNMAP).
    pub freed: u64,
    /// COMPARE AND WRITE operations that compared equal and wrote. `writes` includes them.
    pub compared: u64,
    /// COMPARE AND WRITE operations that reported a miscompare, as the run intended.
    pub differed: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read back while writing.
    pub read_bytes: u64,
    /// Bytes read in the last pass.
    pub verified_bytes: u64,
    /// Bytes that the last pass was to read.
    pub range_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The texts of the first [`TOLD_MAX`] errors.
    pub error_texts: Vec<String>,
    /// Wrong blocks, counted by kind: each block once for each kind, however many reads found it.
    pub wrong: Counts,
    /// The texts of the first [`TOLD_MAX`] findings.
    pub findings: Vec<String>,
    /// The number of whole entries in the journal, if the device was judged by one.
    pub journal_entries: Option<usize>,
    /// The duration of the run.
    pub seconds: f64,
    /// Whether the last pass read everything.
    pub complete: bool,
    /// The wrong blocks that are counted, up to [`WRONG_MAX`].
    #[serde(skip)]
    pub(crate) found: BTreeSet<(Lba, Violation)>,
}

/// The number of wrong blocks of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The block reads as if it had never been written.
    pub lost: u64,
    /// The block holds an older version.
    pub stale: u64,
    /// The block is a mixture of several writes.
    pub torn: u64,
    /// The block belongs to another address.
    pub misdirected: u64,
    /// The block belongs to another device or writer.
    pub foreign: u64,
    /// The block is damaged.
    pub garbled: u64,
    /// The block holds a write that was never sent, or that the device refused.
    pub unsubmitted: u64,
}

impl Counts {
    /// Returns the number of wrong blocks of all kinds.
    pub const fn total(&self) -> u64 {
        self.lost + self.stale + self.torn + self.misdirected + self.foreign + self.garbled + self.unsubmitted
    }

    const fn count(&mut self, wrong: Violation) {
        let count = match wrong {
            Violation::Lost => &mut self.lost,
            Violation::Stale => &mut self.stale,
            Violation::Torn => &mut self.torn,
            Violation::Misdirected => &mut self.misdirected,
            Violation::Foreign => &mut self.foreign,
            // This run reads before it compares, and counts a miscompare as a damaged read.
            Violation::Garbled | Violation::Miscompared => &mut self.garbled,
            Violation::Unsubmitted | Violation::WrittenDespite => &mut self.unsubmitted,
            // A run checks only that reads are up to date; it tests no atomicity and no other ordering.
            Violation::NotAtomic | Violation::Reordered => &mut self.stale,
        };
        *count += 1;
    }
}

impl VerifyReport {
    /// Returns whether the last pass read everything, no block was wrong and no operation failed.
    pub const fn is_sound(&self) -> bool {
        self.complete && self.wrong.total() == 0 && self.errors == 0
    }

    /// Records a wrong block, unless it was found wrong in this way before: a block that is damaged once is
    /// wrong in every read.
    pub(crate) fn found(&mut self, finding: &Finding) {
        let wrong = (finding.lba, finding.violation);
        if self.found.contains(&wrong) || self.found.len() < WRONG_MAX && !self.found.insert(wrong) {
            return;
        }
        self.wrong.count(finding.violation);
        if self.findings.len() < TOLD_MAX {
            let (at, unit) = (finding.lba.0, super::plan::wide(self.unit));
            let bytes = at.saturating_mul(unit);
            self.findings.push(format!("bytes {bytes}..{}: {finding}", bytes.saturating_add(unit)));
        }
    }

    /// Records a failed operation.
    pub(crate) fn failed(&mut self, what: String) {
        self.errors += 1;
        if self.error_texts.len() < TOLD_MAX {
            self.error_texts.push(what);
        }
    }
}

/// The stage that a run is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The run writes blocks and reads them back.
    Writing,
    /// The run reads the whole range once more.
    Verifying,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The stage that the run is in.
    pub stage: Stage,
    /// The part of the stage that is done: bytes, milliseconds if the run ends after a time, or operations
    /// drawn.
    pub done: u64,
    /// The value of `done` at the end of the stage.
    pub total: u64,
    /// The time since the run started.
    pub elapsed: Duration,
    /// Wrong blocks so far.
    pub wrong: u64,
    /// Failed operations so far.
    pub errors: u64,
}
