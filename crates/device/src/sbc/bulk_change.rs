//! One change applied to many blocks: WRITE SAME and UNMAP.

use alloc::collections::VecDeque;

use base::buffer::Bytes;
use store::api::{Durability, Failure, Fault, OpAction};

use super::{PARTS_UNDER_WAY, part_len};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::medium_error::IoKind;
use crate::range_lock::ByteRange;
use crate::task::TaskInfo;

/// The change to the blocks.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Deallocate them.
    Free,
    /// Fill them with zeros.
    Zero {
        /// Whether they may be deallocated.
        may_deallocate: bool,
    },
    /// Fill them with these bytes, repeatedly: a whole number of blocks, at least one part long.
    Fill(Bytes),
}

/// A change in progress over its ranges.
pub(super) struct BulkChange {
    change: Change,
    ranges: VecDeque<ByteRange>,
    /// How many operations are in progress.
    under_way: usize,
    /// Where what is not known to be complete begins: the start of the operation in progress, or of the
    /// first of several.
    unfinished: u64,
    flushing: bool,
}

impl BulkChange {
    pub(super) const fn new(change: Change, ranges: VecDeque<ByteRange>) -> Self {
        Self { change, ranges, under_way: 0, unfinished: 0, flushing: false }
    }

    /// Returns a buffer that repeats `block` over one part.
    pub(super) fn fill_of(server: &DeviceServer, block: &[u8], len: u64) -> Change {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(part_len(server));
        let mut buf = server.pool.take(len);
        while buf.len() < len && buf.append(block) > 0 {}
        Change::Fill(buf.freeze())
    }

    fn submit_next(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        while self.under_way < self.most_under_way() {
            let Some(range) = self.ranges.pop_front() else { break };
            if range.start < range.end {
                self.begin(server, task, range);
            }
        }
        if self.under_way > 0 {
            return JobStep::Wait;
        }
        // Deallocations cannot be made durable one by one.
        let flush = matches!(self.change, Change::Free) && server.durability(false) == Durability::Stable;
        if flush && !self.flushing {
            self.flushing = true;
            server.submit(task, 0, OpAction::Flush);
            return JobStep::Wait;
        }
        JobStep::Done(Outcome::Good)
    }

    /// Returns how many operations may be in progress. Deallocating and zeroing are one operation for a range
    /// of any length. They run one after the other, so that a medium that cannot zero in place can be
    /// distinguished from one that fails.
    const fn most_under_way(&self) -> usize {
        if matches!(self.change, Change::Fill(_)) { PARTS_UNDER_WAY } else { 1 }
    }

    fn begin(&mut self, server: &mut DeviceServer, task: &TaskInfo, range: ByteRange) {
        let ByteRange { start: at, end } = range;
        let (len, durability) = (end - at, server.durability(false));
        if self.under_way == 0 {
            self.unfinished = at;
        }
        self.under_way += 1;
        let action = match &self.change {
            Change::Free => OpAction::Deallocate { at, len },
            Change::Zero { may_deallocate } => {
                OpAction::WriteZeroes { at, len, may_deallocate: *may_deallocate, durability }
            }
            Change::Fill(bytes) => {
                let part = u64::try_from(bytes.len()).unwrap_or(u64::MAX).min(len);
                if part < len {
                    self.ranges.push_front(ByteRange { start: at + part, end });
                }
                let data = bytes.slice(0, usize::try_from(part).unwrap_or(usize::MAX)).into();
                OpAction::Write { at, data, durability }
            }
        };
        server.submit(task, 0, action);
        if let Change::Zero { .. } = self.change {
            // Kept until it is known to be complete: see `failed`.
            self.ranges.push_front(range);
        }
    }

    fn failed(&mut self, server: &mut DeviceServer, task: &TaskInfo, failure: Failure) -> JobStep {
        if self.flushing {
            return JobStep::Done(Outcome::CheckCondition(server.flush_failed(failure)));
        }
        if failure.fault == Fault::Unsupported && matches!(self.change, Change::Zero { .. }) {
            let zeros = alloc::vec![0; server.info.block_len()];
            self.change = Self::fill_of(server, &zeros, u64::MAX);
            return self.submit_next(server, task);
        }
        JobStep::Done(Outcome::CheckCondition(server.medium_failure(
            failure,
            IoKind::Writing,
            Some(self.unfinished),
        )))
    }
}

impl Job for BulkChange {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => self.submit_next(server, task),
            JobInput::OpCompleted { result: Ok(_), .. } if self.flushing => JobStep::Done(Outcome::Good),
            JobInput::OpCompleted { result: Ok(_), .. } => {
                self.under_way -= 1;
                if matches!(self.change, Change::Free) {
                    server.space_returned();
                }
                if let Change::Zero { .. } = self.change {
                    self.ranges.pop_front();
                }
                self.submit_next(server, task)
            }
            JobInput::OpCompleted { result: Err(failure), .. } => {
                self.under_way = self.under_way.saturating_sub(1);
                self.failed(server, task, failure)
            }
            _ => JobStep::unexpected_input(),
        }
    }
}
