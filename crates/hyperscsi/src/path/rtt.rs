//! How long a round trip takes on a path (RFC 6298, RFC 9002 §5), with times of a LAN.

use base::time::Duration;

/// What is taken for the round trip before the first sample: far more than a LAN needs.
pub(crate) const RTT_INITIAL: Duration = Duration::from_millis(1);

/// The least that the variance adds to a probe's time-out: a wake-up of a sleeping receiver.
const GRANULARITY: Duration = Duration::from_micros(100);

/// Round trips of one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smoothed: Duration,
    variance: Duration,
    latest: Duration,
    least: Duration,
    sampled: bool,
}

impl Rtt {
    pub(crate) const fn new() -> Self {
        Self {
            smoothed: RTT_INITIAL,
            variance: Duration::from_micros(500),
            latest: RTT_INITIAL,
            least: Duration::MAX,
            sampled: false,
        }
    }

    /// Takes a sample: how long the acknowledgement took, and how long of that the peer says it waited on purpose.
    /// Returns the round trip without that wait.
    pub(crate) fn sample(&mut self, elapsed: Duration, ack_delay: Duration) -> Duration {
        self.least = self.least.min(elapsed);
        // A peer that exaggerates cannot make a round trip shorter than the shortest.
        let net = elapsed.saturating_sub(ack_delay).max(self.least);
        self.latest = net;
        if self.sampled {
            let off = self.smoothed.abs_diff(net);
            self.variance = (self.variance.saturating_mul(3).saturating_add(off)) / 4;
            self.smoothed = (self.smoothed.saturating_mul(7).saturating_add(net)) / 8;
        } else {
            (self.sampled, self.smoothed, self.variance) = (true, net, net / 2);
        }
        net
    }

    pub(crate) const fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// Returns the longer of the latest and the smoothed round trip.
    pub(crate) fn recent(&self) -> Duration {
        self.smoothed.max(self.latest)
    }

    /// Returns how long an acknowledgement may take before something is probably lost.
    pub(crate) fn probe_timeout(&self, ack_delay_max: Duration, floor: Duration) -> Duration {
        let spread = self.variance.saturating_mul(4).max(GRANULARITY);
        self.smoothed.saturating_add(spread).saturating_add(ack_delay_max).max(floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn the_first_sample_replaces_the_guess_and_later_ones_are_smoothed() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.probe_timeout(us(100), us(500)), us(1000 + 2000 + 100));
        assert_eq!(rtt.sample(us(80), us(0)), us(80));
        assert_eq!((rtt.smoothed(), rtt.recent()), (us(80), us(80)));
        assert_eq!(rtt.probe_timeout(us(100), us(100)), us(80 + 160 + 100));
        rtt.sample(us(160), us(0));
        assert_eq!((rtt.smoothed(), rtt.recent()), (us(90), us(160)));
        assert_eq!(rtt.probe_timeout(us(100), us(500)), us(500));
    }

    #[test]
    fn the_peers_wait_counts_only_down_to_the_shortest_round_trip() {
        let mut rtt = Rtt::new();
        rtt.sample(us(100), us(0));
        assert_eq!(rtt.sample(us(180), us(50)), us(130));
        assert_eq!(rtt.sample(us(180), us(5_000_000)), us(100));
    }
}
