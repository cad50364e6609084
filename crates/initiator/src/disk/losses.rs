//! Deferred errors: the unit has lost something that it had acknowledged.
//!
//! The unit reports each once, with whatever command comes next. A flush fails if there was one since the
//! last flush that failed for it, and so does every other operation that made something durable meanwhile.

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
    /// How many of them flushes have reported.
    reported: u64,
}

/// Notes a deferred error.
pub(super) fn note(inner: &Inner, sense: Sense) {
    let mut losses = inner.losses.lock().unwrap_or_else(PoisonError::into_inner);
    losses.last = Some(sense);
    losses.count += 1;
}

/// Makes an operation that promises durability fail if a deferred error shows that it cannot be relied on.
pub(super) fn watch(inner: &Arc<Inner>, action: &OpAction, done: Done) -> Done {
    let is_flush = matches!(action, OpAction::Flush);
    let is_stable = matches!(
        action,
        OpAction::Write { durability: Durability::Stable, .. }
            | OpAction::WriteZeroes { durability: Durability::Stable, .. }
    );
    if !is_flush && !is_stable {
        return done;
    }
    let known = {
        let losses = inner.losses.lock().unwrap_or_else(PoisonError::into_inner);
        if is_flush { losses.reported } else { losses.count }
    };
    let owner = Arc::clone(inner);
    Box::new(move |result: Result<OpOutput, Error>| {
        let lost = result.is_ok().then(|| lost_since(&owner, known, is_flush)).flatten();
        done(lost.map_or(result, |sense| Err(Error::Command(CommandError::Sense(sense)))));
    })
}

/// Returns the last deferred error, if there were more than `known`.
fn lost_since(inner: &Inner, known: u64, is_flush: bool) -> Option<Sense> {
    let mut losses = inner.losses.lock().unwrap_or_else(PoisonError::into_inner);
    if losses.count == known {
        return None;
    }
    if is_flush {
        losses.reported = losses.count;
    }
    losses.last
}
