//! One record of bindings: the disks that an I_T nexus has used, and through which target ports.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};

use base::time::{Duration, Instant};
use device::contract::RelativePort;

use super::NexusBindings;
use crate::nexus::NexusName;
use crate::units::DiskId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    Present,
    Former,
}

#[derive(Debug, Default)]
pub(super) struct Bound {
    pub(super) luns: BTreeMap<u16, DiskId>,
    pub(super) is_sealed: bool,
    /// The target ports through which the initiator may still use the LUNs, and how many sessions it has
    /// with each: one, or none after a session that did not end with the initiator's own logout.
    pub(super) ports: BTreeMap<RelativePort, usize>,
    /// The target ports whose latest session ended with the initiator's own logout.
    pub(super) released: BTreeSet<RelativePort>,
    /// The target ports through which the initiator has continued a session since the record is a former one.
    pub(super) rejoined: BTreeSet<RelativePort>,
    /// The target ports through which the initiator may continue a session of this record or of the present
    /// one, since a portal has moved there.
    pub(super) moved: BTreeSet<RelativePort>,
    /// Since when it has no session.
    pub(super) lost_at: Option<Loss>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    /// The key of the record in [`LostRecords`].
    pub(super) key: u64,
    /// When the record was added to those without a session.
    pub(super) since: Instant,
    /// How long the nexus had no session then.
    pub(super) before: Duration,
}

impl Bound {
    /// Returns whether the initiator may have used a LUN.
    pub(super) fn has_bindings(&self) -> bool {
        self.is_sealed || !self.luns.is_empty()
    }

    pub(super) fn has_session(&self) -> bool {
        self.ports.values().any(|sessions| *sessions > 0)
    }

    /// Returns the disk that was used under a LUN; [`DiskId::UNKNOWN`] if it may be any.
    pub(super) fn disk_of(&self, number: u16) -> Option<DiskId> {
        self.luns.get(&number).copied().or_else(|| self.is_sealed.then_some(DiskId::UNKNOWN))
    }

    /// Returns whether a former record concerns sessions with a target port.
    pub(super) fn concerns(&self, port: RelativePort) -> bool {
        !self.released.contains(&port)
    }

    pub(super) fn describe(&self, now: Instant, name: &NexusName, kind: RecordKind) -> NexusBindings {
        let is_former = kind == RecordKind::Former;
        NexusBindings {
            target: name.target,
            initiator_port: (*name.initiator_port).into(),
            realm: name.realm.as_deref().map(Into::into),
            target_ports: self.ports.keys().copied().collect(),
            released_ports: is_former.then(|| self.released.iter().copied().collect()),
            rejoined_ports: self.rejoined.iter().copied().collect(),
            moved_ports: self.moved.iter().copied().collect(),
            is_sealed: self.is_sealed,
            luns: self.luns.iter().map(|(number, disk)| (*number, *disk)).collect(),
            lost_for: self.lost_at.map(|loss| now.since(loss.since).saturating_add(loss.before)),
        }
    }

    /// Adds another record of the same I_T nexus.
    pub(super) fn agree_with(&mut self, other: Self) {
        self.agree_on_luns(&other.luns, other.is_sealed);
        self.ports.extend(other.ports);
        self.released.retain(|port| other.released.contains(port));
        self.rejoined.extend(other.rejoined);
        self.moved.extend(other.moved);
    }

    /// Adds the LUNs of another record. A LUN under which the two have different disks leads to none, and so
    /// does one that a sealed record does not have: it may have led to any disk.
    pub(super) fn agree_on_luns(&mut self, luns: &BTreeMap<u16, DiskId>, is_sealed: bool) {
        let was_sealed = self.is_sealed;
        if is_sealed {
            self.luns.retain(|number, _| luns.contains_key(number));
        }
        self.is_sealed |= is_sealed;
        for (number, disk) in luns {
            match self.luns.entry(*number) {
                Entry::Vacant(_) if was_sealed => {}
                Entry::Vacant(free) => _ = free.insert(*disk),
                Entry::Occupied(known) if known.get() == disk => {}
                Entry::Occupied(known) => {
                    known.remove();
                    self.is_sealed = true;
                }
            }
        }
    }

    /// Adds the LUNs of an older former record. It concerns every port that one of both concerns.
    pub(super) fn join(&mut self, older: Self) {
        self.is_sealed |= older.is_sealed;
        for (number, disk) in older.luns {
            // Which of two disks a host has open through which port is not recorded.
            self.is_sealed |= *self.luns.entry(number).or_insert(disk) != disk;
        }
        if self.is_sealed {
            self.luns.clear();
        }
        self.ports.extend(older.ports);
        self.released.retain(|port| older.released.contains(port));
        self.rejoined.extend(older.rejoined);
        self.moved.extend(older.moved);
    }
}
