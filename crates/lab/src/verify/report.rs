//! What a run did and found.

use std::time::Duration;

use oracle::history::{Finding, Violation};
use serde::Serialize;

/// The most findings and errors that are told one by one; all are counted.
pub const TOLD_MAX: usize = 100;

/// What a run did and found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// What every choice of the run came from; the same seed makes the same choices.
    pub seed: u64,
    /// The length of a signed block.
    pub unit: usize,
    /// Writes that ended well.
    pub writes: u64,
    /// Reads that ended well, those of the last pass included.
    pub reads: u64,
    /// Flushes that ended well.
    pub flushes: u64,
    /// Ranges that were made zeros.
    pub zeroed: u64,
    /// Ranges whose storage was freed.
    pub freed: u64,
    /// Writes that depended on what was there, and were carried out. They are among `writes`.
    pub compared: u64,
    /// Those that were not, since something else was there, as was meant.
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
    /// What the first of them said.
    pub error_texts: Vec<String>,
    /// Wrong blocks, by what is wrong.
    pub wrong: Counts,
    /// The first of them, in words.
    pub findings: Vec<String>,
    /// Whole entries of the journal that was judged by.
    pub journal_entries: Option<usize>,
    /// How long it took.
    pub seconds: f64,
    /// Whether the last pass read everything.
    pub complete: bool,
}

/// Wrong blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Read as if nothing was ever written.
    pub lost: u64,
    /// An older version.
    pub stale: u64,
    /// Put together from several writes.
    pub torn: u64,
    /// Of another address.
    pub misdirected: u64,
    /// Of another device or writer.
    pub foreign: u64,
    /// Damaged.
    pub garbled: u64,
    /// Never sent, or refused.
    pub unsubmitted: u64,
}

impl Counts {
    /// Returns how many there are in all.
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
            // A comparison is a reading here.
            Violation::Garbled | Violation::Miscompared => &mut self.garbled,
            Violation::Unsubmitted | Violation::WrittenDespite => &mut self.unsubmitted,
            // No laws beyond the order of time are judged here.
            Violation::NotAtomic | Violation::Reordered => &mut self.stale,
        };
        *count += 1;
    }
}

impl VerifyReport {
    /// Returns whether everything was read at the end, nothing was wrong and nothing failed.
    pub const fn is_sound(&self) -> bool {
        self.complete && self.wrong.total() == 0 && self.errors == 0
    }

    /// Takes note of a wrong block.
    pub(crate) fn found(&mut self, finding: &Finding) {
        self.wrong.count(finding.violation);
        if self.findings.len() < TOLD_MAX {
            let (at, unit) = (finding.lba.0, super::plan::wide(self.unit));
            let bytes = at.saturating_mul(unit);
            self.findings.push(format!("bytes {bytes}..{}: {finding}", bytes.saturating_add(unit)));
        }
    }

    /// Takes note of an operation that failed.
    pub(crate) fn failed(&mut self, what: String) {
        self.errors += 1;
        if self.error_texts.len() < TOLD_MAX {
            self.error_texts.push(what);
        }
    }
}

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Writing, and reading back.
    Writing,
    /// Reading everything once more.
    Verifying,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What it is doing.
    pub stage: Stage,
    /// How much of that is done: bytes, or milliseconds where the run goes by time.
    pub done: u64,
    /// Of how much.
    pub total: u64,
    /// How long it has been running.
    pub elapsed: Duration,
    /// Wrong blocks so far.
    pub wrong: u64,
    /// Failed operations so far.
    pub errors: u64,
}
