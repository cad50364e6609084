//! Whose decision a logout is.
//!
//! An initiator that logs out by its own decision no longer uses the LUNs of the session. One that logs out
//! because the target caused it may log in again and go on with the same LUNs: open-iscsi does so, and its
//! host still has the disks open.

use serde::{Deserialize, Serialize};

use super::contract::SessionEnd;

/// What the engine remembers of a session, to judge a logout that ends it. Nothing of it is forgotten while
/// the session exists, except that a connection joined after one was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogoutCause {
    /// The target requested a logout, or announced that it drops the session (Async Message 1 or 3).
    requested: bool,
    /// The target announced that it dropped a connection (Async Message 2), and none has joined since.
    dropped_connection: bool,
    /// A connection ended without a logout. The initiator may believe that it still has the connection.
    lost_connection: bool,
    /// The initiator requested to close the session, and not only a connection.
    closes_session: bool,
}

impl LogoutCause {
    /// Records that the target requested a logout or announced the end of the session.
    pub(crate) const fn request_sent(&mut self) {
        self.requested = true;
    }

    /// Records that the target announced the loss of a connection that it dropped.
    pub(crate) const fn drop_announced(&mut self) {
        self.dropped_connection = true;
    }

    /// Records that a connection ended without a logout.
    pub(crate) const fn connection_lost(&mut self) {
        self.lost_connection = true;
    }

    /// Records that a connection joined the session: the initiator goes on with it.
    pub(crate) const fn connection_joined(&mut self) {
        self.dropped_connection = false;
    }

    /// Records that the initiator requested to close the session.
    pub(crate) const fn close_requested(&mut self) {
        self.closes_session = true;
    }

    /// Returns how a session ended: a logout is only [`SessionEnd::LoggedOut`] if the initiator alone decided
    /// to end the whole session.
    pub(crate) fn judge(&self, down: SessionEnd) -> SessionEnd {
        match down {
            SessionEnd::LoggedOut if self.requested || self.dropped_connection => SessionEnd::LogoutCaused,
            SessionEnd::LoggedOut if self.lost_connection && !self.closes_session => {
                SessionEnd::LastConnectionClosed
            }
            down => down,
        }
    }
}
