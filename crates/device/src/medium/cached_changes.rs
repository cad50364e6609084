//! Which changes were acknowledged before they were durable, and are not known to be durable since.

use super::{MediumAccess, State};

/// Counts the changes that a medium with a volatile cache acknowledged. The medium may lose its cache, and
/// what it acknowledged before that still has to be flushed.
#[derive(Debug)]
pub(super) struct CachedChanges {
    acknowledged: u64,
    /// Of those, the first that a flush has made durable. There is `None` before the first flush: an earlier
    /// process may have left changes.
    durable: Option<u64>,
    /// How many had been acknowledged when the write cache was last disabled without a flush. Hosts count on
    /// a flush of these. Later changes belong to commands that flush before they end.
    owed: u64,
}

impl CachedChanges {
    pub(super) const fn new() -> Self {
        Self { acknowledged: 0, durable: None, owed: 0 }
    }

    /// Records that a change was acknowledged.
    pub(super) const fn acknowledge(&mut self) {
        self.acknowledged += 1;
    }

    /// Returns what a flush that begins now covers.
    pub(super) const fn mark(&self) -> u64 {
        self.acknowledged
    }

    /// Records that a flush succeeded that began at `mark`.
    pub(super) fn flushed(&mut self, mark: u64) {
        self.durable = self.durable.max(Some(mark));
    }

    /// Returns whether changes may have to be flushed.
    pub(super) fn may_remain(&self) -> bool {
        self.durable != Some(self.acknowledged)
    }

    /// Records that hosts count on a flush of every change acknowledged so far.
    pub(super) const fn owe(&mut self) {
        self.owed = self.acknowledged;
    }

    /// Returns whether changes remain whose flush hosts count on although the write cache is disabled.
    pub(super) fn remain_owed(&self) -> bool {
        self.owed > self.durable.unwrap_or(0)
    }
}

impl MediumAccess {
    /// Returns whether a flush that fails loses nothing, since the medium keeps the changes.
    pub(crate) fn keeps_changes(&self) -> bool {
        self.store.keeps_changes()
    }

    /// Returns whether changes that were acknowledged may have to be flushed, also by an earlier process.
    pub(crate) fn may_have_unflushed_changes(&self) -> bool {
        self.cached.may_remain()
    }

    /// Returns whether the write cache is disabled, but hosts count on a flush of changes that were
    /// acknowledged while it was enabled.
    pub(crate) fn owes_flush(&self) -> bool {
        self.cached.remain_owed()
    }

    /// Records that the write cache is disabled without a flush. Changes in flight may be acknowledged
    /// without one, too.
    pub(crate) fn owe_flush(&mut self) {
        self.cached.owe();
        for slot in &mut self.slots {
            if let State::Queued(op) | State::InFlight(op) = &mut slot.state {
                op.is_owed = op.is_cached;
            }
        }
    }

    /// Records that an earlier process, whose initiators are here, may have acknowledged changes whose flush
    /// they count on.
    pub(crate) const fn assume_owed_flush(&mut self) {
        self.cached.acknowledge();
        self.cached.owe();
    }
}
