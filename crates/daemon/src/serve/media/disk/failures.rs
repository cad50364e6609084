//! Failures of a medium that nothing has made good: an operator has to know of them, also when no host tries
//! again.
//!
//! The latest failure of each kind of operation is kept. It ends when an operation of the same kind succeeds
//! at the place that failed, that of a read also when the place is written, or when the operator accepts it.
//! A failed flush is a loss, which [`super::loss`] keeps.

use std::collections::VecDeque;

use store::api::{OpAction, OpId};

/// A kind of operation whose failures are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OpKind {
    Read,
    Write,
    Unmap,
}

impl OpKind {
    const fn noun(self) -> &'static str {
        match self {
            Self::Read => "a read",
            Self::Write => "a write",
            Self::Unmap => "an unmap",
        }
    }
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    id: OpId,
    kind: OpKind,
    at: u64,
    len: u64,
}

/// A failure that nothing has made good.
#[derive(Debug)]
struct Failed {
    op: Tracked,
    why: String,
}

/// The failures of a medium.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The operations in flight. There are at most as many as the unit has. They end about in the order in
    /// which they began.
    in_flight: VecDeque<Tracked>,
    latest: Vec<Failed>,
}

impl Failures {
    /// Notes an operation that begins.
    pub(super) fn begin(&mut self, id: OpId, action: &OpAction) {
        let (kind, at, len) = match action {
            OpAction::Read { at, len } => (OpKind::Read, *at, wide(*len)),
            OpAction::Write { at, data, .. } => (OpKind::Write, *at, wide(data.len())),
            OpAction::WriteZeroes { at, len, .. } => (OpKind::Write, *at, *len),
            OpAction::Deallocate { at, len } => (OpKind::Unmap, *at, *len),
            OpAction::Flush
            | OpAction::MapStatus { .. }
            | OpAction::CryptoErase
            | OpAction::Command(_)
            | OpAction::Reset => return,
        };
        self.in_flight.push_back(Tracked { id, kind, at, len });
    }

    /// Notes the end of an operation, and why it failed if that was the medium's fault. `None` says that it
    /// failed for another reason.
    pub(super) fn end(&mut self, id: OpId, result: Option<Result<(), String>>) {
        let Some(index) = self.in_flight.iter().position(|op| op.id == id) else { return };
        let Some(op) = self.in_flight.remove(index) else { return };
        match result {
            Some(Ok(())) => self.latest.retain(|failed| !op.makes_good(&failed.op)),
            Some(Err(why)) => {
                self.latest.retain(|failed| failed.op.kind != op.kind);
                self.latest.push(Failed { op, why });
            }
            None => {}
        }
    }

    /// Describes the failures, if there are any.
    pub(super) fn describe(&self) -> Option<String> {
        let describe = |Failed { op: Tracked { kind, at, len, .. }, why }: &Failed| {
            format!("{} of {len} bytes at byte {at} failed: {why}", kind.noun())
        };
        (!self.latest.is_empty()).then(|| self.latest.iter().map(describe).collect::<Vec<_>>().join("; "))
    }

    /// Forgets the failures.
    pub(super) fn clear(&mut self) {
        self.latest.clear();
    }
}

impl Tracked {
    /// Returns whether the success of this operation shows that the other one would succeed now.
    fn makes_good(&self, failed: &Self) -> bool {
        let end = self.at.saturating_add(self.len);
        // Devices replace a bad block when it is written.
        let is_of_kind =
            self.kind == failed.kind || (self.kind, failed.kind) == (OpKind::Write, OpKind::Read);
        is_of_kind && self.at <= failed.at && failed.at < end
    }
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(failures: &mut Failures, id: u64, at: u64, result: Option<Result<(), String>>) {
        failures.begin(OpId(id), &OpAction::Read { at, len: 4096 });
        failures.end(OpId(id), result);
    }

    fn unmap(failures: &mut Failures, id: u64, at: u64, result: Option<Result<(), String>>) {
        failures.begin(OpId(id), &OpAction::Deallocate { at, len: 4096 });
        failures.end(OpId(id), result);
    }

    #[test]
    fn a_failure_stays_until_the_same_kind_of_operation_succeeds_at_its_place() {
        let mut failures = Failures::default();
        let failed = || Some(Err("no space left".to_owned()));
        read(&mut failures, 1, 0, Some(Ok(())));
        assert_eq!(failures.describe(), None);
        unmap(&mut failures, 2, 8192, failed());
        let expected = "an unmap of 4096 bytes at byte 8192 failed: no space left";
        assert_eq!(failures.describe().as_deref(), Some(expected));
        read(&mut failures, 3, 8192, Some(Ok(())));
        unmap(&mut failures, 4, 4096, Some(Ok(())));
        unmap(&mut failures, 5, 8192, None);
        assert_eq!(failures.describe().as_deref(), Some(expected));
        read(&mut failures, 6, 0, failed());
        assert_eq!(
            failures.describe(),
            Some(format!("{expected}; a read of 4096 bytes at byte 0 failed: no space left"))
        );
        unmap(&mut failures, 7, 8192, Some(Ok(())));
        let durability = store::api::Durability::Cached;
        let zeros = OpAction::WriteZeroes { at: 0, len: 4096, may_deallocate: false, durability };
        failures.begin(OpId(8), &zeros);
        failures.end(OpId(8), Some(Ok(())));
        assert_eq!(failures.describe(), None, "the place was written");
        read(&mut failures, 9, 0, failed());
        failures.clear();
        assert_eq!(failures.describe(), None);
        assert!(failures.in_flight.is_empty());
    }
}
