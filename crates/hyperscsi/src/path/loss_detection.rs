//! Loss detection: when a frame that was not acknowledged counts as lost (RFC 8985 and RFC 9002 §6.1, with
//! constants for a LAN).
//!
//! A LAN path nearly always keeps frames in order. So three later frames that were acknowledged prove a loss,
//! and a frame that is one or two behind waits an eighth of a round trip. When a frame that was given up
//! arrives after all (a spurious loss), the path reorders. From then on only time counts, and the time
//! allowed doubles with every spurious loss, up to one round trip. After sixteen round trips without one,
//! later frames prove losses again.

use base::time::{Duration, Instant};

/// How many later frames must have arrived (the packet threshold).
pub(crate) const PACKET_THRESHOLD: u64 = 3;

/// After this many round trips without a spurious loss the path counts as in order again.
const TRUST_AFTER: u32 = 16;

/// How much a path reorders frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reordering {
    /// The number of spurious losses. The time allowed is a round trip divided by 8, 4, 2, 1; at 0 later
    /// frames prove a loss.
    mistakes: u32,
    quiet_rounds: u32,
    last_mistake: Option<Instant>,
}

impl Reordering {
    /// Returns whether later frames prove a loss.
    pub(crate) const fn counts_frames(&self) -> bool {
        self.mistakes == 0
    }

    /// Returns how long after its sending a frame is given up, if a later one was acknowledged.
    pub(crate) fn loss_delay(&self, round_trip: Duration) -> Duration {
        let parts = 8_u32.checked_shr(self.mistakes.saturating_sub(1)).unwrap_or(0).max(1);
        round_trip.saturating_add(round_trip / parts)
    }

    /// Records a spurious loss: a frame that was given up arrived after all. At most one counts per round
    /// trip.
    pub(crate) fn record_spurious_loss(&mut self, now: Instant, round_trip: Duration) {
        self.quiet_rounds = 0;
        if self.last_mistake.is_none_or(|last| now.since(last) >= round_trip) {
            self.mistakes = (self.mistakes + 1).min(4);
            self.last_mistake = Some(now);
        }
    }

    /// Records that a round trip went by.
    pub(crate) const fn round(&mut self) {
        self.quiet_rounds = self.quiet_rounds.saturating_add(1);
        if self.quiet_rounds >= TRUST_AFTER {
            self.mistakes = 0;
            self.quiet_rounds = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_doubles_with_every_mistake_and_ends_at_two_round_trips() {
        let (mut order, rtt) = (Reordering::default(), Duration::from_micros(80));
        let mut seen = alloc::vec::Vec::new();
        for step in 0..6_u64 {
            seen.push((order.counts_frames(), order.loss_delay(rtt).as_micros()));
            order.record_spurious_loss(Instant(step * 80_000), rtt);
        }
        assert_eq!(seen, [(true, 90), (false, 90), (false, 100), (false, 120), (false, 160), (false, 160)]);
    }

    #[test]
    fn mistakes_of_one_round_trip_count_once_and_are_forgiven() {
        let (mut order, rtt) = (Reordering::default(), Duration::from_micros(80));
        for _ in 0..5 {
            order.record_spurious_loss(Instant(1000), rtt);
        }
        assert_eq!(order.loss_delay(rtt), Duration::from_micros(90));
        for _ in 0..TRUST_AFTER {
            assert!(!order.counts_frames());
            order.round();
        }
        assert!(order.counts_frames());
    }
}
