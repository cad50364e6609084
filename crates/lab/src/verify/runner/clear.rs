//! Zeroing (WRITE SAME) and deallocation (UNMAP) between the writes.

use base::units::Lba;
use oracle::history::{Change, ChangeResult, OpId, Planned};
use oracle::journal::JournalEvent;
use store::api::{Durability, Failure, Fault, OpAction, OpOutput};

use super::{InFlight, Runner, STABLE_EVERY, end_of};
use crate::verify::plan::{RunError, UnitRange, wide};
use crate::verify::report::Stage;

/// The command that clears blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClearMethod {
    /// WRITE SAME: the blocks become zeros.
    WriteSame,
    /// UNMAP: a hint, which a device may follow in part.
    Unmap,
}

impl Runner<'_> {
    /// Zeroes or deallocates a range, if no operation is under way on it and the device supports it.
    pub(super) fn try_clear(&mut self, span: UnitRange) -> Result<(), RunError> {
        let (how, other) = if self.rng.chance(1, 2) {
            (ClearMethod::WriteSame, ClearMethod::Unmap)
        } else {
            (ClearMethod::Unmap, ClearMethod::WriteSame)
        };
        let able = |how: ClearMethod| self.clears.get(how as usize).copied().unwrap_or_default();
        match [how, other].into_iter().find(|how| able(*how)) {
            Some(how) if self.is_free(span) => self.start_clear(span, how),
            _ => Ok(()),
        }
    }

    fn start_clear(&mut self, span: UnitRange, how: ClearMethod) -> Result<(), RunError> {
        let (at, len) = (self.at(span), wide(self.len_of(span)));
        let stable = how == ClearMethod::WriteSame && self.rng.chance(1, STABLE_EVERY);
        let reads_zero = how == ClearMethod::WriteSame || self.disk.capabilities().deallocated_reads_zero;
        let change = Change {
            device: self.device,
            lba: Lba(span.first),
            blocks: span.count,
            content: if reads_zero { Planned::Zero } else { Planned::Anything },
            stable,
            optional: how == ClearMethod::Unmap,
        };
        let op = self.history.submit(change);
        self.note(JournalEvent::Submit(op, change))?;
        let durability = if stable { Durability::Stable } else { Durability::Cached };
        let action = match how {
            ClearMethod::WriteSame => {
                OpAction::WriteZeroes { at, len, may_deallocate: self.rng.chance(1, 2), durability }
            }
            ClearMethod::Unmap => OpAction::Deallocate { at, len },
        };
        self.submit(InFlight::Clear { op, span, how }, Some(span), action);
        Ok(())
    }

    /// Records the result of a WRITE SAME or UNMAP, and reads the range back.
    pub(super) fn cleared(
        &mut self,
        op: OpId,
        span: UnitRange,
        how: ClearMethod,
        result: Result<OpOutput, Failure>,
    ) -> Result<(), RunError> {
        self.busy.remove(&span);
        let end = match (result, how) {
            (Ok(_), ClearMethod::WriteSame) => {
                self.report.zeroed += 1;
                ChangeResult::Done
            }
            (Ok(_), ClearMethod::Unmap) => {
                self.report.freed += 1;
                ChangeResult::Done
            }
            (Err(failure), _) if failure.fault == Fault::Unsupported => {
                if let Some(able) = self.clears.get_mut(how as usize) {
                    *able = false;
                }
                ChangeResult::Refused
            }
            (Err(failure), how) => {
                self.fail(if how == ClearMethod::WriteSame { "zeroing" } else { "freeing" }, span, failure);
                end_of(failure)
            }
        };
        self.history.end_change(op, end);
        self.note(JournalEvent::End(op, end))?;
        if !self.stopped {
            self.start_read(span, Stage::Writing);
        }
        Ok(())
    }
}
