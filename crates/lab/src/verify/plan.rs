//! The plan of a run, and the check that it fits the device.

use std::time::Duration;

use oracle::pattern::Pattern;
use store::api::Capabilities;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct VerifyPlan {
    /// The start of the range, in bytes from the start of the device.
    pub from: u64,
    /// The length of the range in bytes; without it, the range extends to the end of the device.
    pub len: Option<u64>,
    /// The length of a signed block: 512 to 65536 bytes, a power of two.
    pub unit: usize,
    /// The longest operation, in bytes.
    pub io_max: usize,
    /// How many operations are under way at a time.
    pub depth: usize,
    /// How much the run writes.
    pub work: Work,
    /// The pattern that fills blocks; without it, the patterns alternate.
    pub pattern: Option<Pattern>,
    /// Whether the run ends at the first wrong block.
    pub stop_on_corruption: bool,
    /// Whether the run also writes zeros (WRITE SAME) and deallocates (UNMAP), where the device supports it.
    pub zeroes: bool,
    /// Whether some writes are COMPARE AND WRITE, where the device supports it.
    pub compare: bool,
    /// How many operations may fail; one more ends the run.
    pub errors_max: u64,
    /// The seed of offsets, lengths, contents and the identity of the run.
    pub seed: u64,
}

/// How much a run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Every block of the range at least once, in random order, and some of them again.
    Whole,
    /// Random operations on random blocks.
    Random(Until),
}

/// When random work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this time.
    Passed(Duration),
    /// After this many operations were drawn. An operation on blocks that have another one under way is
    /// skipped, and counts.
    Drawn(u64),
}

impl Until {
    /// Returns how much of the work is done, and how much there is: milliseconds or operations.
    pub(crate) fn progress(self, elapsed: Duration, drawn: u64) -> (u64, u64) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::Passed(time) => (millis(elapsed).min(millis(time)), millis(time)),
            Self::Drawn(count) => (drawn, count),
        }
    }
}

impl Default for VerifyPlan {
    fn default() -> Self {
        Self {
            from: 0,
            len: None,
            unit: 4096,
            io_max: 256 << 10,
            depth: 16,
            work: Work::Random(Until::Passed(Duration::from_secs(10))),
            pattern: None,
            stop_on_corruption: false,
            zeroes: true,
            compare: true,
            errors_max: 1000,
            seed: 0,
        }
    }
}

/// Why a run cannot start, or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The length of a signed block is out of bounds.
    #[error("the length of a signed block must be a power of two from 512 to 65536, not {0}")]
    Unit(usize),
    /// The length of a signed block is no multiple of the device's logical block length.
    #[error("the logical block length is {block_len} bytes, so a signed block cannot have {unit} bytes")]
    Granule {
        /// The length of a signed block that was asked for.
        unit: usize,
        /// The device's logical block length.
        block_len: u32,
    },
    /// The range does not begin and end at a multiple of the signed block length.
    #[error("the range must begin and end at a multiple of {0} bytes")]
    Unaligned(usize),
    /// The range extends beyond the end of the device.
    #[error("the range ends at byte {end}, the device at byte {len}")]
    BeyondEnd {
        /// The end of the range, in bytes.
        end: u64,
        /// The length of the device, in bytes.
        len: u64,
    },
    /// The range is empty.
    #[error("the range is empty")]
    Empty,
    /// The history of so many blocks would take too much memory.
    #[error(
        "{units} signed blocks of {unit} bytes are more than the maximum of {}; choose longer blocks or a smaller \
         range",
        super::plan::UNITS_MAX
    )]
    TooMany {
        /// The number of signed blocks in the range.
        units: u64,
        /// The length of a signed block, in bytes.
        unit: usize,
    },
    /// The device is write-protected.
    #[error("the device is write-protected")]
    ReadOnly,
    /// The journal cannot be written.
    #[error("the journal cannot be written")]
    Journal(#[source] std::io::Error),
}

/// The most units of a run. The history keeps about 250 bytes for each, so this is about 4 GiB.
pub const UNITS_MAX: u64 = 16 << 20;

/// A contiguous range of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitRange {
    /// The number of the first unit.
    pub(crate) first: u64,
    /// The number of units.
    pub(crate) count: u64,
}

impl UnitRange {
    /// Returns the number of the unit after the last.
    pub(crate) const fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }
}

impl VerifyPlan {
    /// Returns the shortest unit, at least 4 KiB, with which the history of `len` bytes fits into
    /// [`UNITS_MAX`], on a device whose logical blocks have `block_len` bytes. Returns 64 KiB if even that
    /// does not fit.
    pub fn unit_for(len: u64, block_len: u32) -> usize {
        let mut unit = 4096_usize.max(usize::try_from(block_len).unwrap_or(4096));
        while unit < 65_536 && len / wide(unit) > UNITS_MAX {
            unit *= 2;
        }
        unit
    }

    /// Returns the units of the range, if the plan fits the device.
    ///
    /// # Errors
    /// Why the plan does not fit.
    pub(crate) fn fit(&self, profile: &Capabilities) -> Result<UnitRange, RunError> {
        let unit = self.unit;
        if !(512..=65_536).contains(&unit) || !unit.is_power_of_two() {
            return Err(RunError::Unit(unit));
        }
        if !wide(unit).is_multiple_of(profile.logical_block_len.into()) {
            return Err(RunError::Granule { unit, block_len: profile.logical_block_len });
        }
        let rest = profile.len.saturating_sub(self.from);
        // Without a length, the run leaves out the bytes behind the last whole unit.
        let len = self.len.unwrap_or(rest - rest % wide(unit));
        if !self.from.is_multiple_of(wide(unit)) || !len.is_multiple_of(wide(unit)) {
            return Err(RunError::Unaligned(unit));
        }
        let end = self.from.saturating_add(len);
        if end > profile.len {
            return Err(RunError::BeyondEnd { end, len: profile.len });
        }
        let count = len / wide(unit);
        if count == 0 {
            return Err(RunError::Empty);
        }
        if count > UNITS_MAX {
            return Err(RunError::TooMany { units: count, unit });
        }
        Ok(UnitRange { first: self.from / wide(unit), count })
    }
}

/// Widens a length.
pub(crate) fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
