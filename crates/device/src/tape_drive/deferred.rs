//! Deferred errors (SPC-4): those of commands that were answered before they ran (IMMED).

use alloc::collections::BTreeMap;

use scsi::sense::{Asc, Sense, SenseKey};

use crate::contract::NexusId;

/// A command was aborted after it had been answered with GOOD.
pub(crate) const ABORTED: Sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::NONE);

/// The errors that no host has been told.
#[derive(Debug, Default)]
pub(crate) struct DeferredErrors {
    /// The first error of each nexus. Later ones follow from it.
    pub(super) of_nexuses: BTreeMap<NexusId, Sense>,
    /// The first error of a nexus that is gone. The next nexus that uses the medium receives it: a host that
    /// logs in again has a new nexus, and must not write at a position where its former command failed.
    pub(super) of_lost: Option<Sense>,
    /// The first error of an unload whose task is gone. The next nexus that uses the drive receives it.
    pub(super) of_unload: Option<Sense>,
}

impl DeferredErrors {
    /// Keeps an error of a nexus that is present, unless it has one already.
    pub(crate) fn record(&mut self, nexus: NexusId, sense: Sense) {
        self.of_nexuses.entry(nexus).or_insert(sense.as_deferred());
    }

    /// Keeps an error of an unload whose task is gone.
    pub(crate) fn record_unload(&mut self, sense: Sense) {
        self.of_unload.get_or_insert(sense.as_deferred());
    }

    /// Returns whether no nexus was told of the error of such an unload.
    pub(crate) const fn is_unload_untold(&self) -> bool {
        self.of_unload.is_some()
    }

    /// Returns whether [`Self::take`] returns an error.
    pub(crate) fn is_pending(&self, nexus: NexusId) -> bool {
        self.of_lost.is_some() || self.of_unload.is_some() || self.of_nexuses.contains_key(&nexus)
    }

    /// Removes and returns what a nexus must be told.
    pub(crate) fn take(&mut self, nexus: NexusId) -> Option<Sense> {
        self.of_nexuses.remove(&nexus).or_else(|| self.of_unload.take()).or_else(|| self.of_lost.take())
    }

    /// Records the loss of a nexus.
    pub(crate) fn nexus_lost(&mut self, nexus: NexusId) {
        if let Some(sense) = self.of_nexuses.remove(&nexus) {
            self.of_lost.get_or_insert(sense);
        }
    }
}
