//! Nexus bindings: which disk each I_T nexus has used under each LUN.
//!
//! An initiator can keep a LUN open over lost connections and new sessions. Its host does not check again
//! whether the LUN still leads to the disk that it mounted. Therefore a LUN that an I_T nexus has used leads
//! this nexus to the same disk or to none. Only after the initiator has logged out deliberately may the LUN
//! lead it to another disk.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;

use crate::nexus::TargetNumber;
use crate::units::DiskId;

/// How many I_T nexuses without a session are remembered. The one that lost its session first is forgotten
/// first: if its initiator reconnects, its LUNs lead to the disks of the configuration at that time.
const LOST_MAX: usize = 4096;

/// How many LUNs of I_T nexuses without a session are remembered: 16 for each nexus on average, 64 bytes
/// each.
const LOST_LUNS_MAX: usize = 65_536;

/// An I_T nexus: an initiator port and a target. Portal groups make no difference: a host that reconnects
/// through another portal is the same host and still has the LUN open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NexusName {
    pub(crate) target: TargetNumber,
    /// The TransportID: the initiator's name and its ISID.
    pub(crate) initiator_port: Rc<[u8]>,
    /// The realm of the session: any initiator of a realm can claim any name within it.
    pub(crate) realm: Option<Rc<str>>,
}

/// The bindings of all I_T nexuses.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
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
            self.nexuses.remove(name);
            return;
        }
        self.losses += 1;
        bound.lost_at = Some(self.losses);
        self.lost_luns = self.lost_luns.saturating_add(bound.luns.len());
        self.lost.insert(self.losses, name.clone());
        while self.lost.len() > LOST_MAX || self.lost_luns > LOST_LUNS_MAX {
            let Some((_, oldest)) = self.lost.pop_first() else { break };
            let luns = self.nexuses.remove(&oldest).map_or(0, |bound| bound.luns.len());
            self.lost_luns = self.lost_luns.saturating_sub(luns);
        }
    }

    /// Records that an I_T nexus uses a disk under a LUN. An existing binding stays.
    pub(crate) fn bind(&mut self, name: &NexusName, number: u16, disk: DiskId) {
        if let Some(bound) = self.nexuses.get_mut(name) {
            bound.luns.entry(number).or_insert(disk);
        }
    }

    /// Returns the disk that an I_T nexus has used under a LUN.
    pub(crate) fn disk_of(&self, name: &NexusName, number: u16) -> Option<DiskId> {
        self.nexuses.get(name)?.luns.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
