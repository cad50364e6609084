//! Which disk each I_T nexus has opened under each LUN.
//!
//! An initiator keeps a LUN open for as long as it wants, over lost connections and new sessions, and its host never looks again
//! whether the disk behind it is still the one that it mounted. So a LUN that an I_T nexus has used means this disk to it,
//! or none: not until the initiator has logged out deliberately may the number lead it to another disk.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;

use hyperscsi::pdu::name::GroupName;
use iscsi::login::directory::TargetId;

use crate::config::DiskId;

/// How many I_T nexuses without a session are remembered. The one that lost its session longest ago is forgotten first: if its
/// initiator comes back, its LUNs lead to whatever the configuration says then.
const LOST_MAX: usize = 4096;

/// How many LUNs of nexuses without a session are remembered: 16 for each on average, 64 bytes each.
const LOST_LUNS_MAX: usize = 65_536;

/// An initiator port and a target. Portal groups make no difference: a host that comes back by another portal is still the host
/// that has the LUN open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NexusName {
    pub(crate) target: TargetId,
    /// The TransportID: the initiator's name and its ISID.
    pub(crate) initiator_port: Rc<[u8]>,
    /// The HyperSCSI group that it came with. Initiators claim their names among those who know a group's password.
    pub(crate) group: Option<GroupName>,
}

/// What all I_T nexuses have opened.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    nexuses: BTreeMap<NexusName, Bound>,
    /// The nexuses without a session, by when they lost it.
    lost: BTreeMap<u64, NexusName>,
    /// How many LUNs these have opened.
    lost_luns: usize,
    losses: u64,
}

#[derive(Debug, Default)]
struct Bound {
    luns: BTreeMap<u16, DiskId>,
    /// How many sessions it has: one for each portal group at most.
    sessions: usize,
    /// Its place among those without a session.
    lost_at: Option<u64>,
}

impl Bindings {
    /// Takes note that a session of a nexus begins.
    pub(crate) fn session_begins(&mut self, name: &NexusName) {
        let bound = self.nexuses.entry(name.clone()).or_default();
        bound.sessions += 1;
        if let Some(at) = bound.lost_at.take() {
            self.lost.remove(&at);
            self.lost_luns = self.lost_luns.saturating_sub(bound.luns.len());
        }
    }

    /// Takes note that a session of a nexus has ended: `deliberately`, so that its initiator has let go of the LUNs, or not.
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

    /// Records that a nexus uses a disk under a LUN. The first stays.
    pub(crate) fn bind(&mut self, name: &NexusName, number: u16, disk: DiskId) {
        if let Some(bound) = self.nexuses.get_mut(name) {
            bound.luns.entry(number).or_insert(disk);
        }
    }

    /// Returns the disk that a nexus has opened under a LUN.
    pub(crate) fn disk_of(&self, name: &NexusName, number: u16) -> Option<DiskId> {
        self.nexuses.get(name)?.luns.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(port: u32) -> NexusName {
        NexusName { target: TargetId(0), initiator_port: Rc::from(port.to_be_bytes()), group: None }
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
