//! Data integrity test of a disk: it checks that every block is present, whole, at its address and up to
//! date.
//!
//! [`run`] writes signed blocks ([`oracle::block_header`]) and reads each back after its write. At the end it
//! reads the whole range once more: a misdirected write destroys another block, which only this last pass can
//! detect. An [`oracle::history`] decides which contents a read may return, so that failed writes and writes
//! with an unknown result are judged fairly. A [`journal`] outlives the run: with it, [`check`] judges the
//! device after a crash of the initiator or the target.
//!
//! The unit of judgement is a signed block of [`VerifyPlan::unit`] bytes, a whole number of the device's
//! blocks, numbered from the start of the device. No two operations on the same unit are under way at a time,
//! except reads.

pub mod journal;
pub mod plan;
pub mod report;
mod runner;

use std::time::{Duration, Instant};

use base::rng::Rng;
use oracle::block_header::{DeviceId, WriterId};
use oracle::history::{History, InitialContent};
use oracle::journal::replay;
use store::shared::SharedStore;

use journal::{Journal, JournalError};
use plan::{RunError, UnitRange, VerifyPlan};
use report::{Progress, VerifyReport};
use runner::Runner;

/// Whether a run continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The run continues.
    Continue,
    /// The run ends: it waits for the operations under way, and starts no more.
    Stop,
}

/// The interval between progress reports to the caller.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Writes, reads back, and verifies the whole range at the end. Calls `watch` with the progress several times
/// a second.
///
/// # Errors
/// When the plan does not fit the device, or the journal cannot be written. In the first case nothing was
/// written to the device; in the second, nothing more is written.
pub fn run(
    disk: &dyn SharedStore,
    plan: &VerifyPlan,
    journal: Option<Journal>,
    watch: &mut dyn FnMut(&Progress) -> Control,
) -> Result<VerifyReport, RunError> {
    let span = plan.fit(&disk.capabilities())?;
    let mut rng = Rng::from_seed(plan.seed);
    let (device, writer) = (DeviceId(rng.next_u64()), WriterId(low_half(rng.next_u64())));
    let history = History::new(InitialContent::Anything, true);
    let mut pass = Runner::new(disk, plan, span, history, (device, writer), rng, watch);
    if let Some(journal) = journal {
        pass.keep(journal)?;
    }
    pass.write()?;
    pass.verify(None)?;
    Ok(pass.into_report())
}

/// Judges a device by the journal of a run, whether the run was completed or not. `lost_power` means that the
/// medium may have lost the data that was not on stable storage.
///
/// # Errors
/// When `journal` is not a journal, or does not fit the size of this device.
pub fn check(
    disk: &dyn SharedStore,
    journal: &[u8],
    lost_power: bool,
    stop_on_corruption: bool,
    watch: &mut dyn FnMut(&Progress) -> Control,
) -> Result<VerifyReport, JournalError> {
    let (head, entries) = journal::read(journal)?;
    let plan = VerifyPlan {
        unit: head.unit,
        from: head.from,
        len: Some(head.len),
        stop_on_corruption,
        ..VerifyPlan::default()
    };
    let span = plan.fit(&disk.capabilities()).map_err(JournalError::Refused)?;
    let mut history = History::new(InitialContent::Anything, true);
    let replayed = replay(entries, &mut history);
    if lost_power {
        history.crash(head.device);
    }
    let touched = runs(history.touched(head.device).map(|lba| lba.0));
    let identity = (head.device, WriterId(0));
    let mut pass = Runner::new(disk, &plan, span, history, identity, Rng::from_seed(0), watch);
    pass.verify(Some(&touched)).map_err(JournalError::Refused)?;
    let mut report = pass.into_report();
    report.journal_entries = Some(replayed.entries);
    Ok(report)
}

/// Merges ascending unit numbers into contiguous ranges.
fn runs(units: impl Iterator<Item = u64>) -> Vec<UnitRange> {
    let mut runs: Vec<UnitRange> = Vec::new();
    for unit in units {
        match runs.last_mut() {
            Some(run) if run.end() == unit => run.count += 1,
            _ => runs.push(UnitRange { first: unit, count: 1 }),
        }
    }
    runs
}

fn low_half(word: u64) -> u32 {
    let [.., a, b, c, d] = word.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The clock of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    pub(crate) fn nanos(self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
