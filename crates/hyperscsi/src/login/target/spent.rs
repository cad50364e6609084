//! What began sessions without keys, so that no copy of it that comes late begins another one.

use alloc::collections::{BTreeSet, VecDeque};

use base::time::Instant;

use super::{Begun, Reception};

/// The STARTs that were answered with a session.
#[derive(Debug, Default)]
pub(super) struct Spent {
    known: BTreeSet<Begun>,
    /// The same, the oldest first.
    order: VecDeque<(Instant, Begun)>,
}

impl Spent {
    /// More than the allowance of groups without a password lets in for as long as one is remembered, so that none is
    /// forgotten too early.
    const MAX: usize = 1600;

    pub(super) fn has(&self, begun: &Begun) -> bool {
        self.known.contains(begun)
    }

    pub(super) fn add(&mut self, now: Instant, begun: Begun) {
        if self.order.len() >= Self::MAX {
            self.pop();
        }
        if self.known.insert(begun) {
            self.order.push_back((now, begun));
        }
    }

    /// Forgets what nobody says any more.
    pub(super) fn forget(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(since, _)| now >= since.after(Reception::OVER_LIFETIME)) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((_, begun)) = self.order.pop_front() {
            self.known.remove(&begun);
        }
    }
}

const _: () = {
    let (at_once, interval) = Reception::OPEN;
    let later = Reception::OVER_LIFETIME.as_millis() / interval.as_millis();
    assert!(at_once as u128 + later < Spent::MAX as u128, "all that are let in are remembered");
};
