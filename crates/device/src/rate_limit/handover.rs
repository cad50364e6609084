//! A limit in a document that one process hands over to the next: what is saved up, and the counters. No
//! command waits then, so nothing is owed.

use alloc::collections::VecDeque;

use base::time::Instant;
use serde::{Deserialize, Serialize};

use super::{Bucket, LimitStats, Limiter, RateLimit, scaled};
use crate::handover::counters::bounded;

/// What a limiter has saved up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimiterState {
    /// Operations; `None` if they were not limited.
    operations: Option<u64>,
    /// Bytes; `None` if they were not limited.
    bytes: Option<u64>,
    delayed: u64,
    delayed_ns: u64,
}

impl Limiter {
    /// Returns what is saved up, in a document.
    pub fn export(&self, now: Instant) -> LimiterState {
        // The limit is that of the configuration; reservations and queues are those of commands that wait.
        let Self { limit: _, operations, bytes, reserved: _, next_reservation: _, queues: _, stats } = self;
        let LimitStats { delayed, delayed_ns } = *stats;
        LimiterState { operations: operations.saved(now), bytes: bytes.saved(now), delayed, delayed_ns }
    }

    /// Returns a limiter with this limit and with what a document says is saved up.
    pub fn restore(now: Instant, limit: RateLimit, state: &LimiterState) -> Self {
        let mut limiter = Self::new(now, limit);
        limiter.adopt(now, state);
        limiter
    }

    /// Replaces what is saved up, on which no command waits, by that of a document.
    pub fn adopt(&mut self, now: Instant, state: &LimiterState) {
        let LimiterState { operations, bytes, delayed, delayed_ns } = state;
        self.operations.save_up(now, *operations);
        self.bytes.save_up(now, *bytes);
        self.stats = LimitStats { delayed: bounded(*delayed), delayed_ns: bounded(*delayed_ns) };
        self.reserved = VecDeque::new();
    }
}

impl Bucket {
    /// Returns how many whole operations or bytes are saved up; `None` without a limit.
    fn saved(self, now: Instant) -> Option<u64> {
        let mut bucket = self;
        bucket.fill(now);
        let saved = bucket.filled.saturating_sub(bucket.reserved) / scaled(1);
        (bucket.rate > 0).then(|| u64::try_from(saved).unwrap_or(u64::MAX))
    }

    /// Sets how much is saved up, as far as the limit allows. A bucket that had no limit stays full.
    fn save_up(&mut self, now: Instant, saved: Option<u64>) {
        self.fill(now);
        if let Some(saved) = saved.filter(|_| self.rate > 0) {
            let full = self.reserved.saturating_add(self.saved_max);
            self.filled = self.reserved.saturating_add(scaled(saved)).min(full);
        }
    }
}
