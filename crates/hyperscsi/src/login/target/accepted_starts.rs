//! The STARTs that began sessions without keys, so that no late copy of one begins another session.

use alloc::collections::{BTreeSet, VecDeque};

use base::time::Instant;

use super::{HandshakeServer, StartId};

/// The STARTs that made a session.
#[derive(Debug, Default)]
pub(super) struct AcceptedStarts {
    known: BTreeSet<StartId>,
    /// The same STARTs, the oldest first.
    order: VecDeque<(Instant, StartId)>,
}

impl AcceptedStarts {
    /// The bound on remembered STARTs. The allowance of groups without a password admits fewer in the time
    /// for which one is remembered, so none is forgotten too early.
    const MAX: usize = 1600;

    pub(super) fn has(&self, begun: &StartId) -> bool {
        self.known.contains(begun)
    }

    pub(super) fn add(&mut self, now: Instant, begun: StartId) {
        if self.order.len() >= Self::MAX {
            self.pop();
        }
        if self.known.insert(begun) {
            self.order.push_back((now, begun));
        }
    }

    /// Forgets the STARTs that initiators no longer repeat.
    pub(super) fn forget(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(since, _)| now >= since.after(HandshakeServer::OVER_LIFETIME))
        {
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
    let (at_once, interval) = HandshakeServer::OPEN;
    let later = HandshakeServer::OVER_LIFETIME.as_millis() / interval.as_millis();
    assert!(at_once as u128 + later < AcceptedStarts::MAX as u128, "all that are let in are remembered");
};
