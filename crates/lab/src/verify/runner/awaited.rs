//! The results that a run waits for.

use std::sync::mpsc::Sender;

use store::api::{Failure, Fault, OpOutput};
use store::shared::Compared;

/// The result of an operation.
pub(super) enum OpResult {
    Of(Result<OpOutput, Failure>),
    OfComparison(Result<Compared, Failure>),
}

/// An operation by its key, and its result.
pub(super) type Completion = (u64, OpResult);

/// An operation whose result the run waits for. If the disk drops it without a result, since a thread of the
/// disk has panicked, the disk is gone.
pub(super) struct Awaited {
    key: u64,
    end: Option<Sender<Completion>>,
    is_comparison: bool,
}

impl Awaited {
    pub(super) fn new(key: u64, end: Sender<Completion>, is_comparison: bool) -> Self {
        Self { key, end: Some(end), is_comparison }
    }

    pub(super) fn end(mut self, result: OpResult) {
        self.send(result);
    }

    fn send(&mut self, result: OpResult) {
        if let Some(end) = self.end.take() {
            // The receiver lives as long as any operation is under way.
            let _ = end.send((self.key, result));
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let gone = Failure::from(Fault::Gone);
        self.send(if self.is_comparison {
            OpResult::OfComparison(Err(gone))
        } else {
            OpResult::Of(Err(gone))
        });
    }
}
