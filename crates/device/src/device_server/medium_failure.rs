//! Failures of the medium: their sense data, the counters of the error log pages, and flushes that can no
//! longer be trusted.

use scsi::sense::{Asc, Sense, SenseKey};
use store::api::{Failure, Fault};

use super::DeviceServer;
use super::medium_change::WITHHELD;
use crate::medium_error::{self, IoKind};

/// By how many bytes the storage that a medium uses must change after it ran out of space before the device
/// server assumes that space had become available: more than failing writes allocate before they fail.
const SPACE_AGAIN: u64 = 16 << 20;

/// A flush failed, so writes that were acknowledged may be lost. INTERNAL TARGET FAILURE ends the command
/// permanently on every path. Linux retries MEDIUM ERROR with WRITE ERROR and fails the path in the end;
/// dm-multipath would then try every path, although no other path leads to a better medium.
pub(crate) const LOST_WRITES: Sense = Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);

impl DeviceServer {
    /// Returns the sense data for a failure of the medium, and establishes the unit attention for it. `at` is
    /// the byte at which the operation started.
    pub(crate) fn medium_failure(&mut self, failure: Failure, doing: IoKind, at: Option<u64>) -> Sense {
        if let Some(sense) = self.sanitizer.progress(self.info.capabilities.len) {
            return sense;
        }
        self.stats.medium_failures = self.stats.medium_failures.saturating_add(1);
        self.count_error(failure.fault, doing);
        if self.withheld {
            return WITHHELD;
        }
        if failure.fault == Fault::NoSpace && self.info.is_thin() {
            self.report_out_of_space();
        }
        medium_error::sense_of(failure, doing, at, self.info.block_size())
    }

    /// Reports to every nexus that the space has run out, not only to the one whose write failed
    /// (SBC-4 §4.7.3.6). Each nexus receives one unit attention, however many writes fail, until space has
    /// been available again.
    fn report_out_of_space(&mut self) {
        let used = self.medium.space().map_or(0, |space| space.used);
        let is_known = self.full_at.is_some_and(|full_at| used.abs_diff(full_at) < SPACE_AGAIN);
        if !is_known {
            self.full_at = Some(used);
            self.nexuses.establish_ua_all(Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED, None);
        }
    }

    /// Records that storage was deallocated.
    pub(crate) const fn space_returned(&mut self) {
        self.full_at = None;
    }

    /// Counts an error for the error counter log pages: only errors of the medium itself.
    fn count_error(&mut self, fault: Fault, doing: IoKind) {
        if matches!(fault, Fault::Medium | Fault::Hardware) {
            let count = match doing {
                IoKind::Reading => &mut self.errors.reading,
                IoKind::Verifying => &mut self.errors.verifying,
                IoKind::Writing => &mut self.errors.writing,
            };
            *count = count.saturating_add(1);
        }
    }

    /// Records that a flush failed and returns the sense data for it.
    pub(crate) fn flush_failed(&mut self, failure: Failure) -> Sense {
        // A flush that took too long is still in progress; if it fails in the end, that failure is recorded
        // then. A flush that was never submitted to the medium has lost nothing.
        self.flush_failed |= !matches!(failure.fault, Fault::Busy | Fault::NotSubmitted);
        let sense = self.medium_failure(failure, IoKind::Writing, None);
        // A medium that refuses the flush has not done it either. To some initiators ILLEGAL REQUEST means
        // that there is nothing to flush.
        if matches!(sense.key, SenseKey::MEDIUM_ERROR | SenseKey::ILLEGAL_REQUEST) {
            LOST_WRITES
        } else {
            sense
        }
    }

    /// Records the failure of a flush whose command no longer waits for it.
    pub(crate) fn record_lost_flush(&mut self) {
        self.flush_failed = true;
        self.stats.medium_failures = self.stats.medium_failures.saturating_add(1);
    }

    /// Forgets that flushes failed: they were flushes of another medium.
    pub(super) const fn forget_lost_flushes(&mut self) {
        self.flush_failed = false;
    }

    /// Returns whether a flush can still guarantee every write acknowledged so far. Once a flush has failed,
    /// the medium may have dropped its cached writes, and a later success does not prove otherwise.
    pub(crate) const fn is_flush_trusted(&self) -> bool {
        !self.flush_failed
    }
}
