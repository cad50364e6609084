//! The identity check: in a new session a guarded logical unit gets no commands until the owner of the
//! session has confirmed that it is the same device as before.

use alloc::collections::BTreeSet;

use crate::initiator::Request;

/// The guarded logical units of a session of the initiator role.
#[derive(Debug, Default)]
pub struct IdentityChecks {
    guarded: BTreeSet<u64>,
    /// The guarded logical units that are not confirmed.
    unconfirmed: BTreeSet<u64>,
}

impl IdentityChecks {
    /// Guards a logical unit from now on, in every new session. A session that continues after its
    /// connections were lost is the same session with the same logical units, and needs no check.
    pub fn require(&mut self, lun: u64) {
        self.guarded.insert(lun);
        self.unconfirmed.insert(lun);
    }

    /// Records that a guarded logical unit is the same device.
    pub fn confirm(&mut self, lun: u64) {
        self.unconfirmed.remove(&lun);
    }

    /// Records that a guarded logical unit is another device.
    pub fn fail(&mut self, lun: u64) {
        self.unconfirmed.insert(lun);
    }

    /// Starts a check of every guarded logical unit, because the session is new.
    pub fn restart(&mut self) {
        self.unconfirmed.clone_from(&self.guarded);
    }

    /// Returns whether a request waits for the check of its logical unit.
    pub fn holds_back(&self, request: &Request) -> bool {
        !self.unconfirmed.is_empty() && !request.is_identity_check && self.unconfirmed.contains(&request.lun)
    }
}
