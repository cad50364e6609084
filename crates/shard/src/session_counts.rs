//! How many sessions there are, for counters that are read often: the cost is one step for each session.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use target::nexus::TargetNumber;

use crate::shard::{HYPERSCSI, ISCSI, Shard};

/// The sessions with one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSessions {
    /// The target's name.
    pub target: String,
    /// The iSCSI sessions.
    pub iscsi: u64,
    /// The HyperSCSI sessions.
    pub hyperscsi: u64,
    /// The sessions of both that do not see some LUNs, because these require more protection.
    pub restricted: u64,
}

/// One session, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionName {
    /// The target's name.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// Whether it is a session of HyperSCSI.
    pub hyperscsi: bool,
}

impl Shard {
    /// Returns the number of sessions with each target that has one.
    pub fn session_counts(&self) -> Vec<TargetSessions> {
        let mut counts: BTreeMap<TargetNumber, TargetSessions> = BTreeMap::new();
        for (_, entry) in self.target.nexuses() {
            let count = counts.entry(entry.target()).or_default();
            match entry.session() {
                (ISCSI, _) => count.iscsi += 1,
                _ => count.hyperscsi += 1,
            }
            count.restricted += u64::from(entry.hidden() > 0);
        }
        let named = |(number, mut count): (TargetNumber, TargetSessions)| {
            count.target = self.config.target_of(number)?.name.as_str().into();
            Some(count)
        };
        counts.into_iter().filter_map(named).collect()
    }

    /// Returns the names of up to `max` sessions with targets.
    pub fn session_names(&self, max: usize) -> Vec<SessionName> {
        let named = |entry: &target::nexus::NexusEntry| {
            Some(SessionName {
                target: self.config.target_of(entry.target())?.name.as_str().into(),
                initiator: entry.initiator().into(),
                hyperscsi: entry.session().0 == HYPERSCSI,
            })
        };
        self.target.nexuses().filter_map(|(_, entry)| named(entry)).take(max).collect()
    }

    /// Returns the Ethernet ports that are up.
    pub fn ports_up(&self) -> impl Iterator<Item = base::ether::EtherPort> {
        self.ports.keys().copied()
    }
}
