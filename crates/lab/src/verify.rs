//! Is every block there, whole, in its place and up to date?
//!
//! [`run`] writes blocks that say of themselves what they are ([`oracle::block_header`]), reads each back after its write, and
//! at the end reads all of it once more: a block that landed elsewhere destroyed another, which shows only then. What
//! a read may return it asks of an [`oracle::history`], so writes that failed, or whose end nobody knows, are judged
//! fairly. A [`journal`] outlives the run: [`check`] judges with it what a crash of either side left behind.
//!
//! The unit of judgement is a signed block of [`VerifyPlan::unit`] bytes, a whole number of the device's blocks, numbered
//! from the start of the device. No two operations on the same unit are under way at a time, but for reads.

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

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// It does.
    Continue,
    /// It ends: what is under way is waited for, and nothing more is judged.
    Stop,
}

/// How often the caller hears how far a run is.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Writes, reads back, and verifies all of it at the end. `watch` hears how far it is, several times a second.
///
/// # Errors
/// When the plan does not fit the device, or the journal cannot be written; nothing was written to the device then, or
/// nothing more.
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

/// Judges a device by the journal of a run that did not end, or of one that did. `lost_power` says that the medium may
/// have lost what was not on stable storage.
///
/// # Errors
/// When the journal is none, or not of this device's size.
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

/// Puts ascending unit numbers together to runs.
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

/// A clock that a run reads.
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
