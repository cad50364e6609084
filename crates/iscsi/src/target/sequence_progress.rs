//! The progress of a sequence of Data-Out: whether it is late, and whether it stands still. `stall` describes
//! the limits.

use base::time::{Duration, Instant};

/// How many bytes a sequence must receive for it to count as progress, unless it is shorter.
pub(crate) const PROGRESS_BYTES_MIN: u32 = 64 << 10;

/// For each so many bytes that its connection receives, a sequence may take a second longer. A lower rate is
/// slower than any link that carries iSCSI.
pub(crate) const BYTES_PER_EXTRA_SECOND: u64 = 1 << 20;

/// How many times [`Limits::data_within`](super::engine::Limits::data_within) a sequence may take in all. The
/// extra time on a busy connection is bounded by the same product.
pub(crate) const TOTAL_TIME_FACTOR: u32 = 4;

/// After this long without progress, a sequence loses its reserved memory if another session waits for
/// memory. The limit is how long a writer may have to wait for initiators that do not send.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(5);

/// Since when a sequence is expected, and the progress it made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceProgress {
    /// When it was asked for, and how many bytes of Data-Out its connection had received then.
    since: (Instant, u64),
    /// The same for its last progress, and how many of its bytes were received then.
    last_progress: (Instant, u64),
    received: u32,
}

impl SequenceProgress {
    pub(crate) const fn new(now: Instant, brought: u64) -> Self {
        Self { since: (now, brought), last_progress: (now, brought), received: 0 }
    }

    /// Records how many bytes of the sequence are received.
    pub(crate) fn note(&mut self, now: Instant, brought: u64, received: u32) {
        if received.saturating_sub(self.received) >= PROGRESS_BYTES_MIN {
            (self.last_progress, self.received) = ((now, brought), received);
        }
    }

    /// Returns whether the sequence takes too long.
    pub(crate) fn is_late(&self, now: Instant, brought: u64, (within, repairs): (Duration, bool)) -> bool {
        let total = within.saturating_mul(TOTAL_TIME_FACTOR);
        let over = |(from, had): (Instant, u64), limit: Duration| {
            now.since(from) >= limit.saturating_add(credit(brought, had).min(total))
        };
        !repairs && over(self.last_progress, within) || over(self.since, total)
    }

    /// Returns whether it makes no progress although its connection is not busy with other sequences.
    pub(crate) fn stands_still(&self, now: Instant, brought: u64) -> bool {
        let (from, had) = self.last_progress;
        now.since(from) >= STALLED_AFTER.saturating_add(credit(brought, had))
    }
}

/// Returns how much longer a sequence may take, given the data that its connection received meanwhile.
const fn credit(brought: u64, had: u64) -> Duration {
    Duration::from_secs(brought.saturating_sub(had) / BYTES_PER_EXTRA_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: (Duration, bool) = (Duration::from_secs(30), false);

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN.after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_trickle_elsewhere_earns_no_time_and_a_busy_link_does() {
        for (brought, late_at) in [(0, 30), (1000, 30), (10 << 20, 40), (1 << 40, 30 + 120)] {
            let pace = SequenceProgress::new(at(0), 0);
            assert!(!pace.is_late(at(late_at - 1), brought, WITHIN), "{brought}");
            assert!(pace.is_late(at(late_at), brought, WITHIN), "{brought}");
        }
    }

    #[test]
    fn a_sequence_that_gets_on_has_more_time_but_not_for_ever() {
        let mut pace = SequenceProgress::new(at(0), 0);
        let mut received = 0;
        for second in (0..120).step_by(20) {
            assert!(!pace.is_late(at(second), 0, WITHIN), "{second}");
            received += PROGRESS_BYTES_MIN;
            pace.note(at(second), 0, received);
        }
        assert!(pace.is_late(at(120), 0, WITHIN));
        assert!(pace.is_late(at(120), 0, (WITHIN.0, true)), "asked for again or not");
        // Less than the minimum does not count as progress.
        let mut pace = SequenceProgress::new(at(0), 0);
        pace.note(at(29), 0, PROGRESS_BYTES_MIN - 1);
        assert!(pace.is_late(at(30), 0, WITHIN));
        assert!(!pace.is_late(at(30), 0, (WITHIN.0, true)));
    }

    #[test]
    fn a_sequence_whose_connection_is_busy_with_others_does_not_stand_still() {
        for (brought, still_at) in [(0, 5), (1000, 5), (5 << 20, 10), (32 << 20, 37)] {
            let pace = SequenceProgress::new(at(0), 0);
            assert!(!pace.stands_still(at(still_at - 1), brought), "{brought}");
            assert!(pace.stands_still(at(still_at), brought), "{brought}");
        }
    }
}
