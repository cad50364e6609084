//! Failures of the medium: their sense data, the counters of the error log pages, and flushes that can no
//! longer be trusted.

use scsi::sense::{Asc, Sense, SenseKey};
use store::api::{Failure, Fault};

use super::DeviceServer;
use super::medium_change::WITHHELD;
use crate::drain::Drain;
use crate::medium_error::{self, IoKind};
use crate::space_threshold::{KnownThreshold, SpaceThreshold};

/// By how many bytes the storage that a medium uses must change after it ran out of space before the device
/// server assumes that space had become available: more than failing writes allocate before they fail.
const SPACE_AGAIN: u64 = 16 << 20;

/// The value of [`DeviceServer::full_at`] while the medium has no numbers of the time after it ran out of
/// space. A medium reports numbers that may be older: until it has new ones, they show space that is free.
const NOT_MEASURED: u64 = u64::MAX;

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
        if failure.fault == Fault::NoSpace && self.reports_provisioning() {
            self.report_out_of_space();
        }
        medium_error::sense_of(failure, doing, at, self.info.block_size())
    }

    /// Reports to every nexus that the space has run out, not only to the one whose write failed
    /// (SBC-4 §4.7.3.6). Each nexus receives one unit attention, however many writes fail, until space has
    /// been available again.
    fn report_out_of_space(&mut self) {
        let (used, available) = self.medium.space().map_or((0, 0), |space| (space.used, space.available));
        let measured = if available < SPACE_AGAIN { used } else { NOT_MEASURED };
        match self.full_at {
            Some(NOT_MEASURED) => self.full_at = Some(measured),
            Some(full_at) if used.abs_diff(full_at) < SPACE_AGAIN => {}
            _ => {
                self.full_at = Some(measured);
                self.nexuses.establish_ua_all(Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED, None);
            }
        }
    }

    /// Records when storage counts as short, and reports to every nexus that it has become so.
    pub(crate) fn set_space_threshold(&mut self, threshold: SpaceThreshold) {
        let before = self.space_threshold;
        let now = KnownThreshold::after(before, threshold);
        self.space_threshold = Some(now);
        let is_new = now.is_reached && !before.is_some_and(|before| before.is_reached);
        if is_new && self.reports_provisioning() {
            self.nexuses.establish_ua_all(Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED, None);
        }
    }

    /// Returns whether initiators receive unit attentions for storage that runs short: LBPERE is set.
    const fn reports_provisioning(&self) -> bool {
        self.info.is_thin() && self.settings.provisioning_reports.on
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
        // then. A flush that was never submitted to the medium has lost nothing, and neither has the flush of
        // a medium that keeps the changes and repeats them before the next one.
        let has_failed = !matches!(failure.fault, Fault::Busy | Fault::NotSubmitted);
        let is_loss = has_failed && !self.medium.keeps_changes();
        let was_lost = self.flush_failed;
        self.flush_failed |= is_loss;
        let sense = self.medium_failure(failure, IoKind::Writing, None);
        // A medium that refuses the flush has not done it either. To some initiators ILLEGAL REQUEST means
        // that there is nothing to flush. Space that is missing is not what a later flush lacks, and a host
        // that reads DATA PROTECT takes only the present command for lost.
        let is_ambiguous =
            matches!(sense.key, SenseKey::MEDIUM_ERROR | SenseKey::ILLEGAL_REQUEST | SenseKey::DATA_PROTECT);
        if (has_failed && was_lost) || (is_loss && is_ambiguous) { LOST_WRITES } else { sense }
    }

    /// Records the failure of a flush whose command no longer waits for it.
    pub(crate) fn record_lost_flush(&mut self) {
        self.flush_failed = true;
        self.stats.medium_failures = self.stats.medium_failures.saturating_add(1);
    }

    /// Lets flushes succeed again: the operator accepts what is lost.
    pub(crate) fn accept_lost_writes(&mut self) {
        self.flush_failed = false;
        self.medium.take_late_flush_failure();
        if let Drain::Ended { flush_failed } = &mut self.drain {
            *flush_failed = false;
        }
    }

    /// Returns whether a flush has failed, so that acknowledged writes may be lost.
    pub(crate) const fn has_failed_flush(&self) -> bool {
        self.flush_failed || self.medium.has_late_flush_failure()
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

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use base::time::Instant;
    use scsi::opcode as op;
    use store::Store;
    use store::api::{Capabilities, Completion, Op};
    use store::fault_inject::{FaultInjector, OpKind, Rule};
    use store::ram::Ram;

    use super::*;
    use crate::contract::UnitConfig;
    use crate::testing::{A, BLOCKS, Reply, Rig, config};

    fn synchronize(rig: &mut Rig) -> Reply {
        rig.run(A, &[op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[])
    }

    #[test]
    fn a_flush_that_lacked_space_fails_like_any_other_until_the_operator_accepts_the_loss() {
        for fault in [Fault::NoSpace, Fault::Medium, Fault::Gone] {
            let (medium, faults) = FaultInjector::new(Ram::new(BLOCKS * 512), 1);
            let mut rig = Rig::with(config(), Box::new(medium));
            faults.add(Rule::always(OpKind::Flush, 0, 0, fault));
            let first = synchronize(&mut rig);
            if fault != Fault::Gone {
                first.check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
            }
            if fault == Fault::NoSpace {
                let attention = Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;
                rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, attention);
            }
            assert!(rig.unit.has_failed_flush());
            synchronize(&mut rig).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
            faults.clear();
            synchronize(&mut rig).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
            rig.unit.accept_lost_writes(Instant::ORIGIN);
            assert!(!rig.unit.has_failed_flush());
            synchronize(&mut rig).good();
        }
    }

    /// A medium that keeps the changes which a failed flush did not make durable.
    struct Keeper(Ram);

    impl Store for Keeper {
        fn capabilities(&self) -> Capabilities {
            Capabilities { volatile_cache: true, ..self.0.capabilities() }
        }

        fn keeps_changes(&self) -> bool {
            true
        }

        fn submit(&mut self, op: Op) {
            self.0.submit(op);
        }

        fn poll(&mut self) -> Option<Completion> {
            self.0.poll()
        }
    }

    #[test]
    fn a_flush_of_a_medium_that_keeps_the_changes_fails_with_its_error_and_loses_nothing() {
        let (medium, faults) = FaultInjector::new(Keeper(Ram::new(BLOCKS * 512)), 1);
        let mut rig = Rig::with(config(), Box::new(medium));
        faults.add(Rule::always(OpKind::Flush, 0, 0, Fault::Medium));
        synchronize(&mut rig).check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
        assert!(!rig.unit.has_failed_flush());
        faults.clear();
        synchronize(&mut rig).good();
        // What is lost otherwise stays lost.
        rig.unit.record_lost_writes(Instant::ORIGIN);
        for _ in 0..2 {
            synchronize(&mut rig).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
            faults.add(Rule::always(OpKind::Flush, 0, 0, Fault::Medium));
        }
    }

    #[test]
    fn a_loss_that_the_owner_of_the_medium_found_fails_flushes() {
        let mut rig =
            Rig::with(UnitConfig { write_cache: false, ..config() }, Box::new(Ram::new(BLOCKS * 512)));
        let is_cached = |rig: &mut Rig| {
            rig.run(A, &[op::MODE_SENSE_6, 8, 0x08, 0, 255, 0], 255, &[]).good()[4 + 2] & 0x04 != 0
        };
        synchronize(&mut rig).good();
        assert!(!is_cached(&mut rig));
        rig.unit.record_lost_writes(Instant::ORIGIN);
        assert!(is_cached(&mut rig), "a host that reads 0 does not flush, and learns nothing");
        synchronize(&mut rig).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
        rig.unit.accept_lost_writes(Instant::ORIGIN);
        synchronize(&mut rig).good();
        assert!(!is_cached(&mut rig));
    }
}
