//! Unit attentions of one nexus (SAM-5 §5.14): a short queue that holds each condition at most once.

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense, SenseKey};

use crate::fault_injection::{Bug, is_injected};

/// How many conditions can be pending for one nexus: more than the different conditions that this unit can
/// establish. Should that ever be wrong, the most recent condition is dropped and the last one left reports
/// the overflow (SKSV overflow).
pub(crate) const MAX_PENDING: usize = 24;

/// The unit attentions that are pending for a nexus, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitAttentions {
    pending: Vec<Sense>,
}

impl UnitAttentions {
    /// Establishes a condition. A condition that is already pending keeps its position; a reset replaces the
    /// conditions that it outranks (SAM-5 §5.14).
    pub(crate) fn establish(&mut self, asc: Asc) {
        self.establish_with(Sense::new(SenseKey::UNIT_ATTENTION, asc));
    }

    /// Establishes a condition with sense data beyond its code.
    pub(crate) fn establish_with(&mut self, sense: Sense) {
        let is_untold = match sense.asc {
            Asc::REGISTRATIONS_PREEMPTED | Asc::RESERVATIONS_PREEMPTED => is_injected(Bug::PreemptionsUntold),
            Asc::RESERVATIONS_RELEASED => is_injected(Bug::ReleasesUntold),
            _ => false,
        };
        if is_untold {
            return;
        }
        if let Some(rank) = reset_rank(sense.asc) {
            if is_injected(Bug::ResetsUntold) {
                return;
            }
            if self.pending.iter().any(|old| reset_rank(old.asc).is_some_and(|old| old <= rank)) {
                if is_injected(Bug::MergedResetsToldTwice) {
                    self.pending.push(sense);
                }
                return;
            }
            self.pending.retain(|old| reset_rank(old.asc).is_none());
            self.pending.insert(0, sense);
        } else if !self.pending.iter().any(|old| old.asc == sense.asc) {
            self.pending.push(sense);
        }
        if self.pending.len() > MAX_PENDING {
            self.pending.truncate(MAX_PENDING);
            if let Some(last) = self.pending.last_mut() {
                last.specific = Some(scsi::sense::SenseKeySpecific::Overflow);
            }
        }
    }

    /// Restores conditions in their order.
    pub(crate) const fn of_pending(pending: Vec<Sense>) -> Self {
        Self { pending }
    }

    /// Returns the conditions that are pending, in the order in which they are reported.
    pub(crate) fn pending(&self) -> &[Sense] {
        &self.pending
    }

    /// Returns how many conditions are pending.
    pub(crate) const fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the condition to report next: resets first, then in the order they were established.
    pub(crate) fn next(&self) -> Option<Sense> {
        self.pending.first().copied()
    }

    /// Returns and clears the condition to report next.
    pub(crate) fn take(&mut self) -> Option<Sense> {
        if self.pending.is_empty() { None } else { Some(self.pending.remove(0)) }
    }

    /// Clears one condition, because the nexus has seen its cause in another way (REPORT LUNS for REPORTED
    /// LUNS DATA HAS CHANGED).
    pub(crate) fn clear(&mut self, asc: Asc) {
        self.pending.retain(|sense| sense.asc != asc);
    }
}

/// Returns whether a unit attention is reported even instead of RESERVATION CONFLICT (SAM-5 §5.3).
pub(crate) fn outranks_conflict(asc: Asc) -> bool {
    reset_rank(asc).is_some()
}

/// Returns the rank of a reset condition, zero the highest (SAM-5 §5.14).
fn reset_rank(asc: Asc) -> Option<u8> {
    match asc {
        Asc::POWER_ON_OCCURRED => Some(0),
        Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET => Some(1),
        Asc::BUS_DEVICE_RESET_OCCURRED => Some(2),
        Asc::I_T_NEXUS_LOSS_OCCURRED => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_waits_once_and_in_order() {
        let mut queue = UnitAttentions::default();
        for asc in
            [Asc::MODE_PARAMETERS_CHANGED, Asc::CAPACITY_DATA_HAS_CHANGED, Asc::MODE_PARAMETERS_CHANGED]
        {
            queue.establish(asc);
        }
        assert_eq!(queue.next().map(|sense| sense.asc), Some(Asc::MODE_PARAMETERS_CHANGED));
        assert_eq!(queue.take().map(|sense| sense.asc), Some(Asc::MODE_PARAMETERS_CHANGED));
        assert_eq!(queue.take().map(|sense| sense.asc), Some(Asc::CAPACITY_DATA_HAS_CHANGED));
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn a_reset_goes_first_and_swallows_what_it_outranks() {
        let mut queue = UnitAttentions::default();
        queue.establish(Asc::CAPACITY_DATA_HAS_CHANGED);
        queue.establish(Asc::I_T_NEXUS_LOSS_OCCURRED);
        queue.establish(Asc::BUS_DEVICE_RESET_OCCURRED);
        queue.establish(Asc::I_T_NEXUS_LOSS_OCCURRED);
        let order: Vec<_> = core::iter::from_fn(|| queue.take()).map(|sense| sense.asc).collect();
        assert_eq!(order, [Asc::BUS_DEVICE_RESET_OCCURRED, Asc::CAPACITY_DATA_HAS_CHANGED]);
    }

    #[test]
    fn a_queue_that_overflows_stays_bounded_and_says_so() {
        let mut queue = UnitAttentions::default();
        for code in 0..100 {
            queue.establish(Asc(0x3f00 + code));
        }
        let all: Vec<_> = core::iter::from_fn(|| queue.take()).collect();
        assert_eq!(all.len(), MAX_PENDING);
        assert_eq!(all.last().unwrap().specific, Some(scsi::sense::SenseKeySpecific::Overflow));
    }
}
