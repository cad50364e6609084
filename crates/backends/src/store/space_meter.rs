//! How much storage a file takes, and how much its file system has left: numbers for which the file system
//! may make the caller wait, so that a thread measures them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use drivers::files::{Call, CallOutput, FileError, FileOp, FileOpKind, FileOutcome, FileQueue, IoFile};

use crate::geometry;

/// The token of a measurement. Those of jobs are small.
pub(super) const TOKEN: u64 = u64::MAX;

/// How old the numbers may be while the file changes.
const AGE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct SpaceMeter {
    last: Cell<Option<(u64, u64)>>,
    /// When the last measurement began.
    began: Cell<Instant>,
    is_measuring: Cell<bool>,
}

impl SpaceMeter {
    /// Creates a meter that has measured this.
    pub(super) fn new(last: Option<(u64, u64)>) -> Self {
        Self { last: Cell::new(last), began: Cell::new(Instant::now()), is_measuring: Cell::new(false) }
    }

    /// Returns the bytes that the file took, and those that were left, when they were last measured.
    pub(super) const fn last(&self) -> Option<(u64, u64)> {
        self.last.get()
    }

    /// Begins to measure, unless that is in progress.
    pub(super) fn measure(&self, queue: &FileQueue, file: &IoFile) {
        if self.is_measuring.replace(true) {
            return;
        }
        self.began.set(Instant::now());
        let call =
            Call::new(|file| geometry::space(file).map(|(used, free)| CallOutput::Space { used, free }));
        queue.submit(FileOp { token: TOKEN, file: file.clone(), kind: FileOpKind::Call(call) });
    }

    /// Handles a change of the file. Its numbers are measured again, soon if it has failed.
    pub(super) fn changed(&self, queue: &FileQueue, file: &IoFile, has_failed: bool) {
        if has_failed || (!self.is_measuring.get() && self.began.get().elapsed() >= AGE_MAX) {
            self.measure(queue, file);
        }
    }

    /// Takes the result of a measurement.
    pub(super) fn measured(&self, result: Result<FileOutcome, FileError>) {
        self.is_measuring.set(false);
        if let Ok(FileOutcome::Called(CallOutput::Space { used, free })) = result {
            self.last.set(Some((used, free)));
        }
    }
}
