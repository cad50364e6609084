//! How a connection moves to the client of another process: only when nothing is under way on it, and when
//! nothing is left that this client would have to repeat or to report.

use super::{Client, Link};
use crate::handshake::ExportInfo;

/// What keeps a connection from moving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmovable {
    /// The server does not answer, or there is no connection.
    Away,
    /// Requests are under way, changes are not flushed, or there is no first connection yet.
    Working,
    /// A flush has failed. The client keeps the changes, and repeats them before the next flush.
    FlushFailed,
    /// Acknowledged changes are lost, which the next flush has to report.
    LostChanges,
}

impl Client {
    /// Returns what was negotiated for the connection.
    pub const fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// Flushes, if there are changes that only this client could repeat; after a flush that has failed only
    /// if `again`. Call this as often as [`Self::unmovable`].
    pub fn prepare_handover(&mut self, again: bool) {
        let may_flush = self.is_up() && !self.is_flushing() && (again || !self.repeat_before_flush);
        if may_flush && self.flushes() && !self.unflushed.is_empty() {
            (self.flush_due, self.transmit_due, self.keeps_unflushed) = (true, true, true);
        }
    }

    /// Returns whether a flush of [`Self::prepare_handover`] has not ended.
    pub const fn is_flushing(&self) -> bool {
        self.flush_due || self.flushing
    }

    /// Returns what keeps the connection from moving; `None` if another client of the same export can go on
    /// with it, and nothing is lost with this one.
    pub fn unmovable(&self) -> Option<Unmovable> {
        if self.link == Link::Connecting && !self.outage && !self.closing {
            return Some(Unmovable::Working);
        }
        if !self.is_up() || self.leaving || self.closing {
            return Some(Unmovable::Away);
        }
        let is_working = !self.jobs.is_empty()
            || !self.ready.is_empty()
            || !self.replies.is_at_rest()
            || !self.held.is_empty()
            || self.repeating.is_some()
            || self.is_flushing();
        if is_working {
            return Some(Unmovable::Working);
        }
        if self.flushes() && !self.unflushed.is_empty() {
            let has_failed = self.repeat_before_flush;
            return Some(if has_failed { Unmovable::FlushFailed } else { Unmovable::Working });
        }
        self.lost_changes.map(|_| Unmovable::LostChanges)
    }
}
