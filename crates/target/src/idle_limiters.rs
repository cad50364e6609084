//! The limiters of initiators without a session. An initiator that logs in again finds the bucket as it left
//! it, so logins gain nothing.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::cell::RefCell;

use base::time::Instant;
use device::rate_limit::Limiter;

use crate::nexus::{NexusEntry, NexusInfo};

/// How many limiters are kept. The oldest one is dropped first. A host that may log in under so many names
/// has a full bucket for each of them in any case.
const IDLE_MAX: usize = 1024;

/// Limiters whose bucket is not full.
#[derive(Debug, Default)]
pub(crate) struct IdleLimiters {
    kept: VecDeque<(NexusInfo, Rc<RefCell<Limiter>>)>,
}

impl IdleLimiters {
    /// Keeps the limiter of an initiator whose last nexus has ended, until its bucket is full.
    pub(crate) fn keep(&mut self, now: Instant, info: NexusInfo, limiter: Rc<RefCell<Limiter>>) {
        self.kept.retain(|(_, other)| !other.borrow_mut().is_full(now));
        if self.kept.len() >= IDLE_MAX {
            self.kept.pop_front();
        }
        if !limiter.borrow_mut().is_full(now) {
            self.kept.push_back((info, limiter));
        }
    }

    /// Returns the limiter of the initiator of a nexus, which is kept no longer.
    pub(crate) fn take(&mut self, of: &NexusEntry) -> Option<Rc<RefCell<Limiter>>> {
        let at = self.kept.iter().position(|(info, _)| of.shares_limit_with(info))?;
        self.kept.remove(at).map(|(_, limiter)| limiter)
    }
}
