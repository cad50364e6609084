//! The state of a medium whose acknowledged writes may be lost.

use std::fs::File;

use drivers::files::{FileOp, FileOpKind};
use store::api::Fault;

use super::FileStore;

/// The token of a sync whose result nobody needs. Those of jobs are small.
pub(super) const DRAIN_TOKEN: u64 = u64::MAX - 1;

impl FileStore {
    /// Returns another descriptor of the second open file description, to which the kernel reports
    /// writes that failed as well; `None` if the medium has none.
    pub fn try_clone_verifier(&self) -> Option<std::io::Result<File>> {
        Some(self.verifier.as_ref()?.file().try_clone())
    }

    /// Returns whether a flush has failed, so that acknowledged writes may be lost.
    pub const fn has_lost_writes(&self) -> bool {
        self.lost.is_some()
    }

    /// Lets flushes succeed again after one has failed. What was lost stays lost: the caller has made sure
    /// that the operator accepts that. The next flush covers everything in the page cache.
    pub fn accept_lost_writes(&mut self) {
        self.lost = None;
        self.unsynced = true;
        if let Some(file) = self.verifier.clone() {
            // It has its own report of what is accepted.
            let kind = FileOpKind::Sync { data_only: true };
            self.queue.submit(FileOp { token: DRAIN_TOKEN, file, kind });
        }
    }

    /// Records that writes are lost.
    pub const fn set_lost_writes(&mut self) {
        if self.lost.is_none() {
            self.lost = Some(Fault::Medium);
        }
    }
}
