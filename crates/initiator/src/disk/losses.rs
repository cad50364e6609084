//! Deferred errors: the unit has lost something that it had acknowledged.
//!
//! The unit reports each once, with whatever command comes next. The next flush of every handle of the disk
//! fails for it once, as that of every open file does in Linux (errseq_t): the unit does not say whose writes
//! it has lost. Every other operation fails that made something durable meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use scsi::sense::Sense;
use store::api::{Durability, OpAction, OpOutput};

use super::Inner;
use super::flush::Done;
use crate::command::CommandError;
use crate::error::Error;

/// The deferred errors of a unit.
#[derive(Debug, Default)]
pub(super) struct Losses {
    last: Option<Sense>,
    /// How many there were.
    count: u64,
}

/// Notes a deferred error.
pub(super) fn note(inner: &Inner, sense: Sense) {
    let mut losses = inner.losses.lock().unwrap_or_else(PoisonError::into_inner);
    losses.last = Some(sense);
    losses.count += 1;
}

/// Returns how many deferred errors there were, and the last one.
pub(super) fn known(inner: &Inner) -> (u64, Option<Sense>) {
    let losses = inner.losses.lock().unwrap_or_else(PoisonError::into_inner);
    (losses.count, losses.last)
}

/// Makes an operation that promises durability fail if a deferred error shows that it cannot be relied on.
/// `reported` is how many of them the flushes of the handle have reported.
pub(super) fn watch(inner: &Arc<Inner>, reported: &Arc<AtomicU64>, action: &OpAction, done: Done) -> Done {
    let is_stable = matches!(
        action,
        OpAction::Write { durability: Durability::Stable, .. }
            | OpAction::WriteZeroes { durability: Durability::Stable, .. }
    );
    let is_flush = matches!(action, OpAction::Flush);
    if !is_flush && !is_stable {
        return done;
    }
    let (before, _) = known(inner);
    let (owner, reported) = (Arc::clone(inner), Arc::clone(reported));
    Box::new(move |result: Result<OpOutput, Error>| {
        let (count, last) = known(&owner);
        let before = match is_flush && result.is_ok() {
            true => reported.fetch_max(count, Ordering::AcqRel),
            false => before,
        };
        let lost = last.filter(|_| result.is_ok() && count > before);
        done(lost.map_or(result, |sense| Err(Error::Command(CommandError::Sense(sense)))));
    })
}
