//! Which changes were acknowledged before they were durable, and are not known to be durable since.

use super::MediumAccess;

/// Counts the changes that a medium with a volatile cache acknowledged. The medium may lose its cache, and
/// what it acknowledged before that still has to be flushed.
#[derive(Debug)]
pub(super) struct CachedChanges {
    acknowledged: u64,
    /// Of those, the first that a flush has made durable. There is `None` before the first flush: an earlier
    /// process may have left changes.
    durable: Option<u64>,
}

impl CachedChanges {
    pub(super) const fn new() -> Self {
        Self { acknowledged: 0, durable: None }
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

    /// Returns whether changes that this process acknowledged have to be flushed.
    pub(super) fn remain(&self) -> bool {
        self.acknowledged > self.durable.unwrap_or(0)
    }
}

impl MediumAccess {
    /// Returns whether changes that were acknowledged may have to be flushed, also by an earlier process.
    pub(crate) fn may_have_unflushed_changes(&self) -> bool {
        self.cached.may_remain()
    }

    /// Returns whether changes that this unit acknowledged have to be flushed.
    pub(crate) fn has_unflushed_changes(&self) -> bool {
        self.cached.remain()
    }

    /// Records that an earlier process, whose initiators are here, may have acknowledged changes that have to
    /// be flushed.
    pub(crate) const fn assume_unflushed_changes(&mut self) {
        self.cached.acknowledge();
    }
}
