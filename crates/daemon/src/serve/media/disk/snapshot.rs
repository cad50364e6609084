//! The snapshot of one disk: its steps, and what the disk tells the thread that makes it.
//!
//! That thread orders each step that other disks have to reach first, so that the copies of several disks
//! show one point in time: no file is cloned before the operations of all of them wait.

use crate::mailbox::Sender;
use std::sync::Arc;

use drivers::files::{Errno, ReleasedFile};
use store::Store as _;
use store::api::{Failure, Op, OpAction};

use super::{Inner, SNAPSHOT_OP};
use crate::os_error;

/// What distinguishes a snapshot from all others of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct SnapshotId(pub(in crate::serve) u64);

/// How far a disk is with its part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum SnapshotProgress {
    /// It has written what was in the page cache. It waits for [`SnapshotOrder::Hold`].
    WrittenOut,
    /// None of its operations is under way, new ones wait, and what it acknowledged is durable. It waits for
    /// [`SnapshotOrder::Clone`].
    Held,
    /// Its file is cloned, and its operations go on.
    Cloned,
    /// There is no snapshot of it, for this reason, and its operations go on.
    Failed(String),
    /// It was removed.
    Removed,
}

/// The next step of a snapshot, which the administrator's request orders a disk to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum SnapshotOrder {
    /// Have new operations wait, and end those under way.
    Hold,
    /// Clone the file.
    Clone,
    /// Give the snapshot up: operations go on. Ignored if it has ended.
    Release,
}

/// The number of a disk in a snapshot, and what it has done.
pub(in crate::serve) type SnapshotReport = (usize, SnapshotProgress);

/// Reports the progress of one disk. A disk that is dropped meanwhile is reported as removed.
#[derive(Debug)]
pub(in crate::serve) struct SnapshotReporter {
    number: usize,
    sender: Sender<SnapshotReport>,
    ended: bool,
}

impl SnapshotReporter {
    pub(in crate::serve) const fn new(number: usize, sender: Sender<SnapshotReport>) -> Self {
        Self { number, sender, ended: false }
    }

    fn report(&mut self, progress: SnapshotProgress) {
        self.ended = matches!(progress, SnapshotProgress::Cloned | SnapshotProgress::Failed(_));
        // The thread may have given up.
        let _ = self.sender.send((self.number, progress));
    }
}

impl Drop for SnapshotReporter {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.sender.send((self.number, SnapshotProgress::Removed));
        }
    }
}

/// A snapshot under way.
#[derive(Debug)]
pub(super) struct Snapshot {
    id: SnapshotId,
    to: Arc<ReleasedFile>,
    step: Step,
    reporter: SnapshotReporter,
    /// Whether it was given up. It ends with its operation.
    released: bool,
}

/// The steps of a snapshot, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// What is in the page cache is written while the file is used, so that the rest is fast. The file is not
    /// cloned yet: the file system locks it for that, and a write would block its reactor.
    Writing,
    /// The other disks are waited for.
    WrittenOut,
    /// The operations that are under way end.
    Draining,
    /// The store makes acknowledged writes durable.
    Flushing,
    /// The other disks are waited for.
    Held,
    /// The file is cloned.
    Cloning,
}

impl Snapshot {
    #[cfg(test)]
    pub(super) const fn step(&self) -> Step {
        self.step
    }

    /// Returns whether new operations wait. While the file is cloned, they wait in any case.
    pub(super) const fn is_holding(&self) -> bool {
        match self.step {
            Step::Writing | Step::WrittenOut => false,
            Step::Draining | Step::Flushing | Step::Held => !self.released,
            Step::Cloning => true,
        }
    }
}

impl Inner {
    /// Begins a snapshot: writes what is in the page cache.
    pub(super) fn begin_snapshot(
        &mut self,
        id: SnapshotId,
        to: Arc<ReleasedFile>,
        mut reporter: SnapshotReporter,
    ) {
        let obstacle = match (&self.withheld, &self.snapshot) {
            (Some(why), _) => Some(why.clone()),
            (None, Some(_)) => Some("another snapshot of it is under way".to_owned()),
            (None, None) => None,
        };
        match obstacle {
            Some(why) => reporter.report(SnapshotProgress::Failed(why)),
            None => {
                self.store.submit(Op { id: SNAPSHOT_OP, action: OpAction::Flush });
                self.snapshot = Some(Snapshot { id, to, step: Step::Writing, reporter, released: false });
            }
        }
    }

    /// Carries out an order, if it is about the snapshot that is under way.
    pub(super) fn order_snapshot(&mut self, id: SnapshotId, order: SnapshotOrder) {
        let Some(mut snapshot) = self.snapshot.take_if(|snapshot| snapshot.id == id) else { return };
        match (order, snapshot.step) {
            (SnapshotOrder::Hold, Step::WrittenOut) => snapshot.step = Step::Draining,
            (SnapshotOrder::Clone, Step::Held) => {
                if let Some(why) = self.withheld.clone() {
                    snapshot.reporter.report(SnapshotProgress::Failed(why));
                    return self.resume();
                }
                self.store.clone_to(SNAPSHOT_OP, Arc::clone(&snapshot.to));
                snapshot.step = Step::Cloning;
            }
            (SnapshotOrder::Release, Step::WrittenOut | Step::Draining | Step::Held) => {
                return self.resume();
            }
            (SnapshotOrder::Release, Step::Writing | Step::Flushing | Step::Cloning) => {
                snapshot.released = true;
            }
            (SnapshotOrder::Hold | SnapshotOrder::Clone, _) => {}
        }
        let is_holding = snapshot.is_holding();
        self.snapshot = Some(snapshot);
        if !is_holding {
            self.resume();
        }
        self.continue_snapshot();
    }

    /// Goes on with a snapshot when no operation of the unit is under way any more.
    pub(super) fn continue_snapshot(&mut self) {
        let Some(snapshot) = &mut self.snapshot else { return };
        if snapshot.step == Step::Draining && !self.facts.has_operations() {
            snapshot.step = Step::Flushing;
            self.store.submit(Op { id: SNAPSHOT_OP, action: OpAction::Flush });
        }
    }

    /// Handles the end of an operation of a snapshot.
    pub(super) fn snapshot_step_ended(&mut self, result: Result<(), Failure>) {
        let Some(mut snapshot) = self.snapshot.take() else { return };
        let progress = match (snapshot.step, result) {
            _ if snapshot.released => return self.resume(),
            (_, Ok(())) if self.withheld.is_some() => {
                SnapshotProgress::Failed(self.withheld.clone().unwrap_or_default())
            }
            (Step::Writing, Ok(())) => SnapshotProgress::WrittenOut,
            (Step::Flushing, Ok(())) => SnapshotProgress::Held,
            (_, Ok(())) => SnapshotProgress::Cloned,
            (step, Err(failure)) => {
                let errno = self.store.take_error();
                SnapshotProgress::Failed(why_no_snapshot(step, failure, errno))
            }
        };
        let next = match progress {
            SnapshotProgress::WrittenOut => Some(Step::WrittenOut),
            SnapshotProgress::Held => Some(Step::Held),
            _ => None,
        };
        snapshot.reporter.report(progress);
        match next {
            Some(step) => {
                snapshot.step = step;
                self.snapshot = Some(snapshot);
            }
            None => self.resume(),
        }
    }

    /// Begins the operations that waited for the snapshot.
    fn resume(&mut self) {
        while let Some(op) = self.held.pop_front() {
            self.begin(op);
        }
    }
}

/// Returns why there is no snapshot.
pub(super) fn why_no_snapshot(step: Step, failure: Failure, errno: Option<Errno>) -> String {
    match (step, errno) {
        (Step::Writing | Step::Flushing, _) => {
            "its data cannot be made durable: writes that it acknowledged are lost".to_owned()
        }
        (_, Some(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS)) => {
            "its file system cannot share storage between files (reflink), as Btrfs and XFS can; copy the file \
             while the LUN is drained"
                .to_owned()
        }
        (_, Some(Errno::INVAL)) => {
            "the two files cannot share storage; on Btrfs, the new one must be in a folder with the attribute \
             \"no copy-on-write\" (chattr +C) exactly if the file of the LUN has it"
                .to_owned()
        }
        (_, Some(Errno::XDEV)) => {
            "the new file would be on another file system, and storage is shared within one only".to_owned()
        }
        (_, Some(errno)) => os_error(&errno.into()),
        (_, None) => failure.fault.to_string(),
    }
}
