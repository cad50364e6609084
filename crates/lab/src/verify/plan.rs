//! What a run does, and whether a device lets it.

use std::time::Duration;

use oracle::pattern::Pattern;
use store::api::Capabilities;

/// What a run does.
#[derive(Clone, Debug)]
pub struct VerifyPlan {
    /// Where it begins, in bytes from the start of the device.
    pub from: u64,
    /// How many bytes it concerns; up to the end of the device if not said.
    pub len: Option<u64>,
    /// The length of a signed block: 512 to 65536 bytes, a power of two.
    pub unit: usize,
    /// The longest operation, in bytes.
    pub io_max: usize,
    /// How many operations are under way at a time.
    pub depth: usize,
    /// How much is written.
    pub work: Work,
    /// What fills blocks; by turns if not said.
    pub pattern: Option<Pattern>,
    /// Whether the run ends at the first wrong block.
    pub stop_on_corruption: bool,
    /// Whether zeros are written and storage is freed too (WRITE SAME, UNMAP), where the device can do that.
    pub zeroes: bool,
    /// Whether some writes depend on what is there (COMPARE AND WRITE), where the device can do that.
    pub compare: bool,
    /// How many operations may fail before the run ends.
    pub errors_max: u64,
    /// Where offsets, lengths, contents and the identity of the run come from.
    pub seed: u64,
}

/// How much is written.
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
    /// After a time.
    Passed(Duration),
    /// After so many operations were drawn. One on blocks that are busy is not carried out.
    Drawn(u64),
}

impl Until {
    /// Returns how much is done, and of how much.
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

/// Why a run cannot be, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A signed block cannot be so long.
    #[error("a signed block is 512 to 65536 bytes long, a power of two, not {0}")]
    Unit(usize),
    /// The device's blocks do not fit into a signed block.
    #[error(
        "the device is addressed in blocks of {granule} bytes, so signed blocks of {unit} bytes cannot be"
    )]
    Granule {
        /// What was asked for.
        unit: usize,
        /// What the device has.
        granule: u32,
    },
    /// The range does not begin and end with a signed block.
    #[error("the range must begin and end at a multiple of {0} bytes")]
    Unaligned(usize),
    /// The range leaves the device.
    #[error("the range ends at byte {end}, the device at byte {len}")]
    BeyondEnd {
        /// The end of the range.
        end: u64,
        /// The end of the device.
        len: u64,
    },
    /// There is nothing in the range.
    #[error("the range is empty")]
    Empty,
    /// What must be remembered of each block would take too much memory.
    #[error(
        "{units} signed blocks of {unit} bytes are more than the {} that can be remembered; choose longer blocks or a smaller range",
        super::plan::UNITS_MAX
    )]
    TooMany {
        /// How many there would be.
        units: u64,
        /// How long they are.
        unit: usize,
    },
    /// The device cannot be written.
    #[error("the device is write-protected")]
    ReadOnly,
    /// The journal cannot be written.
    #[error("the journal cannot be written")]
    Journal(#[source] std::io::Error),
}

/// The most units of a run. The history keeps about 250 bytes for each, so this is about 4 GiB.
pub const UNITS_MAX: u64 = 16 << 20;

/// A run of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitRange {
    /// The first.
    pub(crate) first: u64,
    /// How many.
    pub(crate) count: u64,
}

impl UnitRange {
    /// Returns the unit behind the last.
    pub(crate) const fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }
}

impl VerifyPlan {
    /// Returns the shortest unit with which `len` bytes of a device with blocks of `logical_block_len` bytes can be remembered, 4 KiB
    /// at least, if there is one.
    pub fn unit_for(len: u64, granule: u32) -> usize {
        let mut unit = 4096_usize.max(usize::try_from(granule).unwrap_or(4096));
        while unit < 65_536 && len / wide(unit) > UNITS_MAX {
            unit *= 2;
        }
        unit
    }

    /// Returns the units of the range, if the device lets the plan be.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn fit(&self, profile: &Capabilities) -> Result<UnitRange, RunError> {
        let unit = self.unit;
        if !(512..=65_536).contains(&unit) || !unit.is_power_of_two() {
            return Err(RunError::Unit(unit));
        }
        if !wide(unit).is_multiple_of(profile.logical_block_len.into()) {
            return Err(RunError::Granule { unit, granule: profile.logical_block_len });
        }
        let rest = profile.len.saturating_sub(self.from);
        // Without a length, what is left behind the last whole unit is left alone.
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
