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
    /// Those of them whose owner has not begun a check since the session is new: it has not heard of that,
    /// and what it confirms is the device of the former session.
    unasked: BTreeSet<u64>,
}

impl IdentityChecks {
    /// Guards a logical unit from now on, in every new session, because its owner begins a check. A session
    /// that continues after its connections were lost is the same session with the same logical units, and
    /// needs no check.
    pub fn require(&mut self, lun: u64) {
        self.guarded.insert(lun);
        self.unconfirmed.insert(lun);
        self.unasked.remove(&lun);
    }

    /// Records that a guarded logical unit is the same device, unless the session is new since its owner has
    /// begun the check.
    pub fn confirm(&mut self, lun: u64) {
        if !self.unasked.contains(&lun) {
            self.unconfirmed.remove(&lun);
        }
    }

    /// Records that a guarded logical unit is another device.
    pub fn fail(&mut self, lun: u64) {
        self.unconfirmed.insert(lun);
    }

    /// Starts a check of every guarded logical unit, because the session is new.
    pub fn restart(&mut self) {
        self.unconfirmed.clone_from(&self.guarded);
        self.unasked.clone_from(&self.guarded);
    }

    /// Returns whether a request waits for the check of its logical unit.
    pub fn holds_back(&self, request: &Request) -> bool {
        !self.unconfirmed.is_empty() && !request.is_identity_check && self.unconfirmed.contains(&request.lun)
    }
}
