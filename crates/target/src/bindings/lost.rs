//! The records without a session, of which some are forgotten when there are too many.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use core::cmp::Reverse;

use base::fairness::largest_holder;

use super::RecordKind;
use crate::nexus::{InitiatorOfNexus, NexusName, TargetNumber};

/// How many I_T nexuses without a session are remembered. Beyond it, one is forgotten of the initiator that
/// has most of them with the target that has most, so that no initiator makes the target forget those of
/// others: the one that lost its session first. If the initiator reconnects, its LUNs lead to the disks of
/// the configuration at that time.
pub(super) const LOST_MAX: usize = 4096;

/// How many LUNs of I_T nexuses without a session are remembered: 16 for each nexus on average, 64 bytes
/// each.
pub(super) const LOST_LUNS_MAX: usize = 65_536;

/// The records without a session, in the order in which they lost it.
#[derive(Debug, Default)]
pub(super) struct LostRecords {
    /// Those that are forgotten if there are too many.
    pub(super) records: BTreeMap<u64, (NexusName, RecordKind)>,
    /// The same records, by target and initiator.
    by_initiator: BTreeMap<(TargetNumber, InitiatorOfNexus), LostOfInitiator>,
    /// How many LUNs these have.
    pub(super) luns: usize,
    /// Those whose initiator port had a session when they were stored, or may have had one. The port comes
    /// back as soon as it has noticed the restart, so they are not forgotten. There are at most as many as
    /// the earlier process had sessions; if the next one restores them, it knows for how long they had none.
    pub(super) awaited: BTreeMap<u64, (NexusName, RecordKind)>,
    losses: u64,
}

/// The records without a session of one initiator with one target.
#[derive(Debug, Default)]
struct LostOfInitiator {
    /// The keys of the records, and how many LUNs each has.
    records: BTreeMap<u64, usize>,
    luns: usize,
}

impl LostRecords {
    /// Adds a record with so many LUNs, and returns its key.
    pub(super) fn add(&mut self, record: (NexusName, RecordKind), luns: usize, is_awaited: bool) -> u64 {
        self.losses += 1;
        if is_awaited {
            self.awaited.insert(self.losses, record);
            return self.losses;
        }
        let held = self.by_initiator.entry((record.0.target, record.0.initiator())).or_default();
        held.records.insert(self.losses, luns);
        held.luns = held.luns.saturating_add(luns);
        self.luns = self.luns.saturating_add(luns);
        self.records.insert(self.losses, record);
        self.losses
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<(NexusName, RecordKind)> {
        if let Some(record) = self.awaited.remove(&key) {
            return Some(record);
        }
        let record = self.records.remove(&key)?;
        if let Entry::Occupied(mut entry) = self.by_initiator.entry((record.0.target, record.0.initiator())) {
            let held = entry.get_mut();
            let luns = held.records.remove(&key).unwrap_or(0);
            held.luns = held.luns.saturating_sub(luns);
            self.luns = self.luns.saturating_sub(luns);
            if held.records.is_empty() {
                entry.remove();
            }
        }
        Some(record)
    }

    /// Removes and returns a record if there are too many.
    pub(super) fn pop_excess(&mut self) -> Option<(NexusName, RecordKind)> {
        let by_luns = self.luns > LOST_LUNS_MAX;
        if !by_luns && self.records.len() <= LOST_MAX {
            return None;
        }
        let weight = |held: &LostOfInitiator| if by_luns { held.luns } else { held.records.len() };
        let held = || self.by_initiator.iter();
        let most = largest_holder(held().map(|((target, _), held)| (*target, weight(held))))?;
        let of_target = held().filter(|((target, _), _)| *target == most);
        // Of initiators that have as many, the one with the oldest record.
        let first = |held: &LostOfInitiator| held.records.keys().next().copied();
        let (_, largest) = of_target.max_by_key(|(_, held)| (weight(held), Reverse(first(held))))?;
        let oldest = first(largest)?;
        self.remove(oldest)
    }
}
