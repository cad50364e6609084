//! Conditional writes: COMPARE AND WRITE.
//!
//! The run first reads the blocks, and judges them like every read. While no other operation of this run is
//! under way on them, a comparison with the data that was read must succeed, and one with a single flipped
//! bit must fail.

use base::buffer::Buf;
use base::units::Lba;
use oracle::block_header::Sequence;
use oracle::history::{Change, ChangeResult, OpId, Planned, ReadId};
use oracle::journal::JournalEvent;
use store::api::{Failure, Fault, OpAction, OpOutput};
use store::shared::Compared;

use super::{InFlight, OpResult, Runner, end_of};
use crate::verify::plan::{RunError, UnitRange, wide};
use crate::verify::report::Stage;

/// One condition in 3 is false.
const DIFFERS_EVERY: u64 = 3;

impl Runner<'_> {
    /// Reads the first units of a range, as many as the device compares at a time, and then sends a COMPARE
    /// AND WRITE for them. Does nothing if an operation is under way on the range.
    pub(super) fn try_compare(&mut self, span: UnitRange) {
        let most = wide(self.disk.compare_and_write_max() / self.plan.unit);
        let span = UnitRange { count: span.count.min(most), ..span };
        if !self.compares || span.count == 0 || !self.is_free(span) {
            return;
        }
        let differs = self.rng.chance(1, DIFFERS_EVERY);
        let read = self.history.read_begin(self.device, Lba(span.first), span.count);
        let action = OpAction::Read { at: self.at(span), len: self.len_of(span) };
        self.submit(InFlight::ReadForCompare { read, span, differs }, Some(span), action);
    }

    /// Sends the COMPARE AND WRITE after the read. If the read failed or found wrong blocks, it sends
    /// nothing.
    pub(super) fn looked(
        &mut self,
        read: ReadId,
        span: UnitRange,
        differs: bool,
        result: Result<OpOutput, Failure>,
    ) -> Result<(), RunError> {
        let seen = self.judge(read, span, Stage::Writing, result);
        let Some(mut seen) = seen.filter(|_| !self.stopped) else {
            self.busy.remove(&span);
            return Ok(());
        };
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        let fresh = self.signed(span, sequence);
        let mut data = Buf::with_capacity(2 * seen.len());
        let op = if differs {
            // The device must not execute this write. The history does not know it, so the oracle reports its
            // data as unsubmitted if it shows up.
            let at = self.rng.below(wide(seen.len()));
            if let Some(byte) = usize::try_from(at).ok().and_then(|at| seen.get_mut(at)) {
                *byte ^= 1 << self.rng.below(8);
            }
            None
        } else {
            let change = Change {
                device: self.device,
                lba: Lba(span.first),
                blocks: span.count,
                content: Planned::Signed(self.writer, sequence),
                stable: false,
                optional: false,
            };
            let op = self.history.submit(change);
            self.note(JournalEvent::Submit(op, change))?;
            Some(op)
        };
        data.append(&seen);
        for part in fresh.parts() {
            data.append(part);
        }
        let at = self.at(span);
        let key = self.register(InFlight::Compare { op, span }, None);
        let awaited = self.awaited(key, true);
        let done = Box::new(move |result| awaited.end(OpResult::OfComparison(result)));
        self.disk.compare_and_write(at, data.freeze().into(), done);
        Ok(())
    }

    /// Records the result of a COMPARE AND WRITE, and reads the range back.
    pub(super) fn compared(
        &mut self,
        op: Option<OpId>,
        span: UnitRange,
        result: Result<Compared, Failure>,
    ) -> Result<(), RunError> {
        self.busy.remove(&span);
        let end = match (result, op) {
            (Ok(Compared::Written), Some(_)) => {
                self.report.writes += 1;
                self.report.compared += 1;
                self.report.written_bytes += wide(self.len_of(span));
                ChangeResult::Done
            }
            (Ok(Compared::Differed), None) => {
                self.report.differed += 1;
                ChangeResult::Refused
            }
            (Ok(compared), _) => {
                let what = match compared {
                    Compared::Written => "executed although the blocks hold other data",
                    Compared::Differed => "miscompare although the blocks hold the expected data",
                };
                let (at, len) = (self.at(span), self.len_of(span));
                self.report.failed(format!("compare and write of {len} bytes at byte {at}: {what}"));
                self.stopped |= self.report.errors > self.plan.errors_max;
                ChangeResult::Refused
            }
            (Err(failure), _) if failure.fault == Fault::Unsupported => {
                self.compares = false;
                ChangeResult::Refused
            }
            (Err(failure), _) => {
                self.fail("compare and write", span, failure);
                end_of(failure)
            }
        };
        if let Some(op) = op {
            self.history.end_change(op, end);
            self.note(JournalEvent::End(op, end))?;
        }
        if !self.stopped {
            self.start_read(span, Stage::Writing);
        }
        Ok(())
    }
}
