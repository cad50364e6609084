//! What a failed flush loses: nothing that the client keeps, and everything that it does not know of.

use store::api::Fault;

use super::{Client, Notice};

impl Client {
    /// Makes durable what an earlier client of the export may have left. If that fails, it is lost.
    pub const fn flush_earlier_changes(&mut self) {
        if self.flushes() && !self.config.read_only {
            (self.flush_due, self.transmit_due) = (true, true);
        }
    }

    /// Records that the earlier client of the export has left nothing to be made durable.
    pub const fn trust_earlier_client(&mut self) {
        self.knows_all = true;
    }

    /// Returns whether a flush that fails loses nothing, because the client keeps every change that is not
    /// durable: it has lost none, and knows of all.
    pub const fn keeps_changes(&self) -> bool {
        self.knows_all && !self.has_lost
    }

    /// Returns whether acknowledged changes are lost, and that is not accepted.
    pub const fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Lets flushes succeed again: the operator accepts what is lost.
    pub const fn accept_lost_changes(&mut self) {
        (self.lost_changes, self.has_lost) = (None, false);
    }

    pub(super) fn lose_changes(&mut self, fault: Fault) {
        (self.lost_changes, self.has_lost) = (Some(fault), true);
        self.notices.push_back(Notice::LostChanges(fault));
    }
}
