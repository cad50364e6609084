//! Names of sessions, tasks and requests, whichever transport they came by.
//!
//! To `device` a nexus and a task are numbers. Each transport numbers its own from zero, densely; those of HyperSCSI have the
//! top bit of the index set here, so that both can be told apart and none is used twice.

use device::contract::{NexusId, TaskKey, TmfKey};
use hyperscsi::target::contract as hyperscsi_target;
use iscsi::target::contract as iscsi_target;

/// Set in the index of what came by HyperSCSI. A shard would need terabytes of sessions to reach it by counting.
const HYPERSCSI: u32 = 1 << 31;

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionRef {
    Iscsi(iscsi_target::SessionId),
    HyperScsi(hyperscsi_target::SessionId),
}

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskRef {
    Iscsi(iscsi_target::TaskRef),
    HyperScsi(hyperscsi_target::TaskRef),
}

/// A task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TmfRef {
    Iscsi(iscsi_target::TmfRef),
    HyperScsi(hyperscsi_target::TmfRef),
}

impl SessionRef {
    /// Returns the number of the nexus that the session is.
    pub(crate) const fn nexus(self) -> NexusId {
        NexusId(match self {
            Self::Iscsi(session) => session.index(),
            Self::HyperScsi(session) => session.index() | HYPERSCSI,
        })
    }
}

/// Returns whether a nexus came by HyperSCSI, and its place among those of its transport.
pub(crate) fn nexus_slot(nexus: NexusId) -> (bool, usize) {
    (nexus.0 & HYPERSCSI != 0, usize::try_from(nexus.0 & !HYPERSCSI).unwrap_or(usize::MAX))
}

impl TaskRef {
    pub(crate) const fn key(self) -> TaskKey {
        TaskKey(match self {
            Self::Iscsi(task) => task.to_bits(),
            Self::HyperScsi(task) => task.to_bits() | HYPERSCSI as u64,
        })
    }

    pub(crate) const fn of(key: TaskKey) -> Self {
        match key.0 & HYPERSCSI as u64 {
            0 => Self::Iscsi(iscsi_target::TaskRef::from_bits(key.0)),
            _ => Self::HyperScsi(hyperscsi_target::TaskRef::from_bits(key.0 & !(HYPERSCSI as u64))),
        }
    }

    /// Returns whether it came by HyperSCSI, and its place among the tasks of its transport.
    pub(crate) fn slot(self) -> (bool, usize) {
        let (frames, index) = match self {
            Self::Iscsi(task) => (false, task.index()),
            Self::HyperScsi(task) => (true, task.index()),
        };
        (frames, usize::try_from(index).unwrap_or(usize::MAX))
    }
}

impl TmfRef {
    pub(crate) const fn key(self) -> TmfKey {
        TmfKey(match self {
            Self::Iscsi(tmf) => tmf.to_bits(),
            Self::HyperScsi(tmf) => tmf.to_bits() | HYPERSCSI as u64,
        })
    }

    pub(crate) const fn of(key: TmfKey) -> Self {
        match key.0 & HYPERSCSI as u64 {
            0 => Self::Iscsi(iscsi_target::TmfRef::from_bits(key.0)),
            _ => Self::HyperScsi(hyperscsi_target::TmfRef::from_bits(key.0 & !(HYPERSCSI as u64))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_transports_survive_the_way_through_a_unit_and_never_meet() {
        for bits in [0, 1, 7 | 3 << 32, u64::from(u32::MAX >> 1) | 0x8000_0001 << 32] {
            let both = [
                TaskRef::Iscsi(iscsi_target::TaskRef::from_bits(bits)),
                TaskRef::HyperScsi(hyperscsi_target::TaskRef::from_bits(bits)),
            ];
            for task in both {
                assert_eq!(TaskRef::of(task.key()), task);
            }
            let [one, other] = both;
            assert_ne!(one.key(), other.key());
            assert_eq!(one.slot().1, other.slot().1);
            for tmf in [
                TmfRef::Iscsi(iscsi_target::TmfRef::from_bits(bits)),
                TmfRef::HyperScsi(hyperscsi_target::TmfRef::from_bits(bits)),
            ] {
                assert_eq!(TmfRef::of(tmf.key()), tmf);
            }
        }
    }
}
