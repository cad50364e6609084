//! The task management requests that wait for units.

use alloc::vec::Vec;

use device::contract::{NexusId, TmfKey, TmfOutcome};

/// The task management requests that wait for units.
#[derive(Debug, Default)]
pub(crate) struct PendingTmfs {
    open: Vec<PendingTmf>,
}

/// A request that waits for units.
#[derive(Debug)]
pub(crate) struct PendingTmf {
    pub(crate) key: TmfKey,
    pub(crate) nexus: NexusId,
    /// The number of units that have not responded.
    pub(crate) left: usize,
    /// The outcome so far.
    pub(crate) outcome: TmfOutcome,
    /// Whether the sessions of the target end with the response (TARGET COLD RESET).
    pub(crate) cold: bool,
}

impl PendingTmfs {
    /// Adds a request.
    pub(crate) fn add(&mut self, request: PendingTmf) {
        self.open.push(request);
    }

    /// Returns whether there is no request.
    pub(crate) const fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Records the outcome of one unit.
    pub(crate) fn unit_done(&mut self, key: TmfKey, outcome: TmfOutcome) {
        if let Some(open) = self.open.iter_mut().find(|open| open.key == key) {
            open.left = open.left.saturating_sub(1);
            if outcome != TmfOutcome::Complete {
                open.outcome = outcome;
            }
        }
    }

    /// Removes and returns a request to which every unit has responded.
    pub(crate) fn take_finished(&mut self) -> Option<PendingTmf> {
        let at = self.open.iter().position(|open| open.left == 0)?;
        Some(self.open.swap_remove(at))
    }

    /// Removes the requests of an I_T nexus that has ended. No initiator waits for their responses.
    pub(crate) fn forget(&mut self, nexus: NexusId) {
        self.open.retain(|open| open.nexus != nexus);
    }
}
