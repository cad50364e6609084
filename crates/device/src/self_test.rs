//! Self-tests (SPC-5): their codes, and the results of the last twenty.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use scsi::log::{Parameter, control};

use crate::document::RestoreError;
use crate::document::hex::HexBytes;

/// How many results the self-test results page has (SPC-5 §7.3).
const MAX_RESULTS: usize = 20;

/// SELF-TEST CODE of SEND DIAGNOSTIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelfTestCode {
    /// The short test, answered before it ends.
    BackgroundShort,
    /// The extended test, answered before it ends.
    BackgroundExtended,
    /// The short test, answered when it ends.
    ForegroundShort,
    /// The extended test, answered when it ends.
    ForegroundExtended,
}

impl SelfTestCode {
    /// Decodes the three bits of the CDB; `None` for the codes that start no test.
    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            0b001 => Some(Self::BackgroundShort),
            0b010 => Some(Self::BackgroundExtended),
            0b101 => Some(Self::ForegroundShort),
            0b110 => Some(Self::ForegroundExtended),
            _ => None,
        }
    }

    /// Returns whether the command is answered before the test ends.
    pub(crate) const fn is_background(self) -> bool {
        matches!(self, Self::BackgroundShort | Self::BackgroundExtended)
    }

    const fn code(self) -> u8 {
        match self {
            Self::BackgroundShort => 0b001,
            Self::BackgroundExtended => 0b010,
            Self::ForegroundShort => 0b101,
            Self::ForegroundExtended => 0b110,
        }
    }
}

/// How a self-test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelfTestResult {
    /// Without an error.
    Passed,
    /// The medium failed to read at this block.
    Failed {
        /// Which block, or [`NO_ADDRESS`].
        lba: u64,
    },
}

/// The results of the last self-tests, the most recent first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SelfTestResults {
    results: VecDeque<[u8; RESULT_LEN]>,
}

const RESULT_LEN: usize = 16;

/// ADDRESS OF FIRST FAILURE of a test that found none, or none that has an address.
pub(crate) const NO_ADDRESS: u64 = u64::MAX;

/// SELF-TEST RESULTS: completed without error; completed with a failure of its first segment, which is the
/// only one.
const COMPLETED: u8 = 0;
const FIRST_SEGMENT_FAILED: u8 = 5;

impl SelfTestResults {
    /// Records a test that ended `hours` after the unit was started.
    pub(crate) fn record(&mut self, code: SelfTestCode, outcome: SelfTestResult, hours: u64) {
        let [hours_high, hours_low] = u16::try_from(hours).unwrap_or(u16::MAX).to_be_bytes();
        let (result, lba, sense) = match outcome {
            SelfTestResult::Passed => (COMPLETED, NO_ADDRESS, [0, 0, 0]),
            // MEDIUM ERROR, UNRECOVERED READ ERROR.
            SelfTestResult::Failed { lba } => (FIRST_SEGMENT_FAILED, lba, [0x03, 0x11, 0x00]),
        };
        let head = [code.code() << 5 | result, 0, hours_high, hours_low];
        let mut bytes = [0; RESULT_LEN];
        for (to, from) in bytes.iter_mut().zip(head.into_iter().chain(lba.to_be_bytes()).chain(sense)) {
            *to = from;
        }
        self.results.truncate(MAX_RESULTS - 1);
        self.results.push_front(bytes);
    }

    /// Returns the results in a document that one process hands over to the next.
    pub(crate) fn export(&self) -> Vec<HexBytes> {
        let Self { results } = self;
        results.iter().map(|result| HexBytes::of(result)).collect()
    }

    /// Returns the results of a document.
    ///
    /// # Errors
    /// [`RestoreError::SelfTests`] for too many results and for one of another length.
    pub(crate) fn restore(state: &[HexBytes]) -> Result<Self, RestoreError> {
        let result = |bytes: &HexBytes| <[u8; RESULT_LEN]>::try_from(bytes.0.as_slice()).ok();
        let results = state.iter().map(result).collect::<Option<_>>().filter(|_| state.len() <= MAX_RESULTS);
        Ok(Self { results: results.ok_or(RestoreError::SelfTests)? })
    }

    /// Returns the parameters of the self-test results page: always twenty, with zeros for tests that were
    /// not run.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        (0..MAX_RESULTS)
            .zip(1..)
            .map(|(index, code)| Parameter {
                code,
                control: control::BINARY_LIST,
                value: self.results.get(index).map_or_else(|| vec![0; RESULT_LEN], |result| result.to_vec()),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_result_comes_first_and_twenty_are_kept() {
        let mut results = SelfTestResults::default();
        for hours in 0..25 {
            results.record(SelfTestCode::ForegroundExtended, SelfTestResult::Passed, hours);
        }
        results.record(SelfTestCode::BackgroundShort, SelfTestResult::Failed { lba: 0x1234 }, u64::MAX);
        let parameters = results.parameters();
        assert_eq!(parameters.len(), 20);
        assert_eq!(parameters.iter().map(|one| one.code).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
        let failed = [0x25, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 3, 0x11, 0, 0];
        assert_eq!(parameters[0].value, failed);
        assert_eq!(parameters[1].value, [&[0xc0, 0, 0, 24][..], &[0xff; 8], &[0; 4]].concat());
        assert_eq!(parameters[19].value[..4], [0xc0, 0, 0, 6]);
    }

    #[test]
    fn only_four_codes_start_a_test() {
        for code in 0..8 {
            assert_eq!(
                SelfTestCode::from_code(code).map(SelfTestCode::code),
                [1, 2, 5, 6].contains(&code).then_some(code)
            );
        }
    }
}
