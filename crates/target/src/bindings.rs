//! Nexus bindings: which disk each I_T nexus has used under each LUN.
//!
//! An initiator can keep a LUN open over lost connections and new sessions. Its host does not check again
//! whether the LUN still leads to the disk that it mounted. Therefore a LUN that an I_T nexus has used leads
//! this nexus to the same disk or to none. Only after the initiator has logged out deliberately may the LUN
//! lead it to another disk. The owner of the target can store the bindings and restore them after a restart.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

use scsi::lun::Lun;

use crate::nexus::{NexusEntry, NexusName, TargetNumber};
use crate::units::DiskId;

/// How many I_T nexuses without a session are remembered. The one that lost its session first is forgotten
/// first: if its initiator reconnects, its LUNs lead to the disks of the configuration at that time.
const LOST_MAX: usize = 4096;

/// How many LUNs of I_T nexuses without a session are remembered: 16 for each nexus on average, 64 bytes
/// each.
const LOST_LUNS_MAX: usize = 65_536;

/// The bindings of one I_T nexus, as the owner of a target stores them over a restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NexusBindings {
    /// The target.
    pub target: TargetNumber,
    /// The initiator port as a TransportID (SPC-5 §7.6.4).
    pub initiator_port: Box<[u8]>,
    /// The realm of the initiator's name, if it has one.
    pub realm: Option<Box<str>>,
    /// The disk that the I_T nexus has used under each LUN.
    pub luns: Vec<(u16, DiskId)>,
}

/// The bindings of all I_T nexuses.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// How often a binding was made or forgotten.
    changes: u64,
    nexuses: BTreeMap<NexusName, Bound>,
    /// The I_T nexuses without a session, in the order in which they lost it.
    lost: BTreeMap<u64, NexusName>,
    /// How many LUNs the nexuses in `lost` have used.
    lost_luns: usize,
    losses: u64,
}

#[derive(Debug, Default)]
struct Bound {
    luns: BTreeMap<u16, DiskId>,
    /// How many sessions the nexus has: at most one for each portal group.
    sessions: usize,
    /// The key of the nexus in `lost`, if it has no session.
    lost_at: Option<u64>,
}

impl Bindings {
    /// Records that a session of an I_T nexus begins.
    pub(crate) fn session_begins(&mut self, name: &NexusName) {
        let bound = self.nexuses.entry(name.clone()).or_default();
        bound.sessions += 1;
        if let Some(at) = bound.lost_at.take() {
            self.lost.remove(&at);
            self.lost_luns = self.lost_luns.saturating_sub(bound.luns.len());
        }
    }

    /// Records that a session of an I_T nexus has ended. `deliberately` is whether its initiator has logged
    /// out and so no longer uses the LUNs.
    pub(crate) fn session_ended(&mut self, name: &NexusName, deliberately: bool) {
        let Some(bound) = self.nexuses.get_mut(name) else { return };
        bound.sessions = bound.sessions.saturating_sub(1);
        if bound.sessions > 0 {
            return;
        }
        if deliberately || bound.luns.is_empty() {
            self.changes += u64::from(!bound.luns.is_empty());
            self.nexuses.remove(name);
            return;
        }
        self.lose(name);
    }

    /// Remembers an I_T nexus that has no session, and forgets the oldest ones beyond the limits.
    fn lose(&mut self, name: &NexusName) {
        let Some(bound) = self.nexuses.get_mut(name) else { return };
        self.losses += 1;
        bound.lost_at = Some(self.losses);
        self.lost_luns = self.lost_luns.saturating_add(bound.luns.len());
        self.lost.insert(self.losses, name.clone());
        while self.lost.len() > LOST_MAX || self.lost_luns > LOST_LUNS_MAX {
            let Some((_, oldest)) = self.lost.pop_first() else { break };
            let luns = self.nexuses.remove(&oldest).map_or(0, |bound| bound.luns.len());
            self.lost_luns = self.lost_luns.saturating_sub(luns);
            self.changes += 1;
        }
    }

    /// Returns how often a binding was made or forgotten.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns all bindings: first those of I_T nexuses without a session, in the order in which they lost
    /// it, then the others.
    pub(crate) fn all(&self) -> impl Iterator<Item = NexusBindings> {
        let lost = self.lost.values().filter_map(|name| self.nexuses.get_key_value(name));
        let live = self.nexuses.iter().filter(|(_, bound)| bound.lost_at.is_none() && !bound.luns.is_empty());
        lost.chain(live).map(|(name, bound)| NexusBindings {
            target: name.target,
            initiator_port: (*name.initiator_port).into(),
            realm: name.realm.as_deref().map(Into::into),
            luns: bound.luns.iter().map(|(number, disk)| (*number, *disk)).collect(),
        })
    }

    /// Restores the bindings of an I_T nexus that has no session. Bindings that it has already stay.
    pub(crate) fn restore(&mut self, saved: NexusBindings) {
        let NexusBindings { target, initiator_port, realm, luns } = saved;
        let name = NexusName { target, initiator_port: initiator_port.into(), realm: realm.map(Into::into) };
        if self.nexuses.contains_key(&name) || luns.is_empty() {
            return;
        }
        let luns = luns.into_iter().collect();
        self.nexuses.insert(name.clone(), Bound { luns, sessions: 0, lost_at: None });
        self.lose(&name);
    }

    /// Records that an I_T nexus uses a disk under a LUN. An existing binding stays.
    pub(crate) fn bind(&mut self, name: &NexusName, number: u16, disk: DiskId) {
        if let Some(bound) = self.nexuses.get_mut(name)
            && let Entry::Vacant(free) = bound.luns.entry(number)
        {
            free.insert(disk);
            self.changes += 1;
        }
    }

    /// Binds a LUN that an I_T nexus uses for the first time.
    pub(crate) fn record(&mut self, nexus: &mut NexusEntry, lun: Lun) {
        if let Some((number, disk)) = nexus.bind_lun(lun) {
            self.bind(&nexus.name, number, disk);
        }
    }

    /// Returns the disk that an I_T nexus has used under a LUN.
    pub(crate) fn disk_of(&self, name: &NexusName, number: u16) -> Option<DiskId> {
        self.nexuses.get(name)?.luns.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;

    use super::*;
    use crate::nexus::TargetNumber;

    fn name(port: u32) -> NexusName {
        NexusName { target: TargetNumber(0), initiator_port: Rc::from(port.to_be_bytes()), realm: None }
    }

    #[test]
    fn a_binding_outlives_a_lost_session_and_falls_with_a_deliberate_end() {
        let mut bindings = Bindings::default();
        bindings.session_begins(&name(1));
        bindings.bind(&name(1), 0, DiskId(7));
        bindings.bind(&name(1), 0, DiskId(8));
        assert_eq!(bindings.disk_of(&name(1), 0), Some(DiskId(7)));
        bindings.session_ended(&name(1), false);
        assert_eq!(bindings.disk_of(&name(1), 0), Some(DiskId(7)));
        bindings.session_begins(&name(1));
        assert_eq!(bindings.disk_of(&name(1), 0), Some(DiskId(7)));
        bindings.session_ended(&name(1), true);
        assert_eq!(bindings.disk_of(&name(1), 0), None);
        assert!(bindings.nexuses.is_empty() && bindings.lost.is_empty());
    }

    #[test]
    fn a_second_session_of_the_same_port_keeps_the_bindings() {
        let mut bindings = Bindings::default();
        bindings.session_begins(&name(1));
        bindings.session_begins(&name(1));
        bindings.bind(&name(1), 0, DiskId(7));
        bindings.session_ended(&name(1), true);
        assert_eq!(bindings.disk_of(&name(1), 0), Some(DiskId(7)));
        bindings.session_ended(&name(1), true);
        assert_eq!(bindings.disk_of(&name(1), 0), None);
    }

    #[test]
    fn bindings_are_restored_for_nexuses_without_a_session_until_a_deliberate_end() {
        let mut bindings = Bindings::default();
        for port in 1..=3 {
            bindings.session_begins(&name(port));
            bindings.bind(&name(port), 5, DiskId(port.into()));
        }
        bindings.session_ended(&name(2), false);
        assert_eq!(bindings.changes(), 3, "a lost session changes no binding");
        let saved: Vec<_> = bindings.all().collect();
        assert_eq!(saved.iter().map(|one| one.luns[0].1.0).collect::<Vec<_>>(), [2, 1, 3]);

        let mut restored = Bindings::default();
        restored.session_begins(&name(3));
        restored.bind(&name(3), 5, DiskId(9));
        saved.iter().cloned().for_each(|one| restored.restore(one));
        assert_eq!(restored.disk_of(&name(1), 5), Some(DiskId(1)));
        assert_eq!(restored.disk_of(&name(3), 5), Some(DiskId(9)), "what is known already stays");
        restored.session_begins(&name(1));
        restored.bind(&name(1), 5, DiskId(8));
        assert_eq!(restored.disk_of(&name(1), 5), Some(DiskId(1)));
        let before = restored.changes();
        restored.session_ended(&name(1), true);
        assert_eq!(restored.disk_of(&name(1), 5), None);
        assert_eq!(restored.changes(), before + 1);
        assert_eq!(restored.all().count(), 2);
    }

    #[test]
    fn who_lost_its_session_longest_ago_is_forgotten_first_and_who_has_one_never() {
        let mut bindings = Bindings::default();
        bindings.session_begins(&name(0));
        bindings.bind(&name(0), 0, DiskId(1));
        for port in 1..=u32::try_from(LOST_MAX).unwrap() + 1 {
            bindings.session_begins(&name(port));
            bindings.bind(&name(port), 0, DiskId(1));
            bindings.session_ended(&name(port), false);
        }
        assert_eq!(bindings.disk_of(&name(0), 0), Some(DiskId(1)));
        assert_eq!(bindings.disk_of(&name(1), 0), None);
        assert_eq!(bindings.disk_of(&name(2), 0), Some(DiskId(1)));
        assert_eq!((bindings.lost.len(), bindings.lost_luns), (LOST_MAX, LOST_MAX));
    }

    #[test]
    fn nexuses_with_many_luns_count_for_as_many() {
        let mut bindings = Bindings::default();
        for port in 0..5 {
            bindings.session_begins(&name(port));
            for number in 0..16_384 {
                bindings.bind(&name(port), number, DiskId(1));
            }
            bindings.session_ended(&name(port), false);
        }
        assert_eq!(bindings.disk_of(&name(0), 0), None);
        assert_eq!(bindings.lost_luns, LOST_LUNS_MAX);
        for port in 1..5 {
            bindings.session_begins(&name(port));
        }
        assert_eq!((bindings.lost.len(), bindings.lost_luns), (0, 0));
    }
}
