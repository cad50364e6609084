//! The round-trip time of a path (RFC 6298, RFC 9002 §5), with constants for a LAN.
//!
//! A round trip has two components: the time that frames are on the way, and the time that they wait at both
//! ends until a process reads them. A timeout for an acknowledgement must allow for both. Only the first
//! component indicates queues in the network (Swift, SIGCOMM 2020, §3.2).

use base::time::{Duration, Instant};

/// The round-trip time assumed before the first sample: far more than a LAN needs.
pub(crate) const RTT_INITIAL: Duration = Duration::from_millis(1);

/// The least that the variance adds to a probe timeout: the wake-up time of a sleeping receiver.
const GRANULARITY: Duration = Duration::from_micros(100);

/// One round trip: a frame and its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trip {
    /// When the frame was sent.
    pub(crate) sent: Instant,
    /// When our port received the acknowledgement, and when it was read.
    pub(crate) came: Instant,
    pub(crate) read: Instant,
    /// How long the frame waited at the peer until the acknowledgement was sent, as the peer reports.
    pub(crate) held: Duration,
    /// How much of `held` may be an intended delay of the peer.
    pub(crate) held_on_purpose: Duration,
}

/// The round-trip time of one path.
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

    /// Records a sample. Returns how long frame and acknowledgement were on the way.
    pub(crate) fn sample(&mut self, trip: &Trip) -> Duration {
        // A receive time before the send time means that the clock of the receive times was set. Then the
        // read time counts.
        let came = if trip.came > trip.sent { trip.came } else { trip.read };
        let (there, whole) = (came.since(trip.sent), trip.read.since(trip.sent));
        self.least = self.least.min(there);
        // A peer that reports too long a wait cannot make a round trip shorter than the shortest.
        let without = |span: Duration, held: Duration| span.saturating_sub(held).max(self.least);
        let net = without(whole, trip.held.min(trip.held_on_purpose));
        self.latest = net;
        if self.sampled {
            let off = self.smoothed.abs_diff(net);
            self.variance = (self.variance.saturating_mul(3).saturating_add(off)) / 4;
            self.smoothed = (self.smoothed.saturating_mul(7).saturating_add(net)) / 8;
        } else {
            (self.sampled, self.smoothed, self.variance) = (true, net, net / 2);
        }
        without(there, trip.held)
    }

    pub(crate) const fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// Returns the longer of the latest and the smoothed round trip.
    pub(crate) fn recent(&self) -> Duration {
        self.smoothed.max(self.latest)
    }

    /// Returns the probe timeout: how long an acknowledgement may take before something is probably lost.
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

    /// Records a frame whose acknowledgement was received after `there` µs and read `waited` µs later, and
    /// reports that the peer held the frame for `held` µs.
    fn sample(rtt: &mut Rtt, there: u64, waited: u64, held: u64) -> Duration {
        let at = |us: u64| Instant(us * 1000);
        let (sent, came, read) = (at(500), at(500 + there), at(500 + there + waited));
        rtt.sample(&Trip { sent, came, read, held: us(held), held_on_purpose: us(100) })
    }

    #[test]
    fn the_first_sample_replaces_the_guess_and_later_ones_are_smoothed() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.probe_timeout(us(100), us(500)), us(1000 + 2000 + 100));
        assert_eq!(sample(&mut rtt, 80, 0, 0), us(80));
        assert_eq!((rtt.smoothed(), rtt.recent()), (us(80), us(80)));
        assert_eq!(rtt.probe_timeout(us(100), us(100)), us(80 + 160 + 100));
        sample(&mut rtt, 160, 0, 0);
        assert_eq!((rtt.smoothed(), rtt.recent()), (us(90), us(160)));
        assert_eq!(rtt.probe_timeout(us(100), us(500)), us(500));
    }

    #[test]
    fn the_peers_wait_counts_only_down_to_the_shortest_round_trip() {
        let mut rtt = Rtt::new();
        sample(&mut rtt, 100, 0, 0);
        assert_eq!(sample(&mut rtt, 180, 0, 50), us(130));
        assert_eq!(sample(&mut rtt, 180, 0, 5_000_000), us(100));
    }

    #[test]
    fn processes_that_read_late_make_the_wait_longer_and_not_the_way() {
        let mut rtt = Rtt::new();
        sample(&mut rtt, 100, 0, 0);
        // A late read here, a delay at the peer beyond its intended one, and both.
        assert_eq!((sample(&mut rtt, 100, 3000, 0), rtt.recent()), (us(100), us(3100)));
        assert_eq!((sample(&mut rtt, 2100, 0, 2000), rtt.recent()), (us(100), us(2000)));
        assert_eq!((sample(&mut rtt, 2100, 1000, 1900), rtt.recent()), (us(200), us(3000)));
    }

    #[test]
    fn a_clock_that_is_set_makes_no_round_trip_of_nothing() {
        let mut rtt = Rtt::new();
        let at = |us: u64| Instant(us * 1000);
        let trip =
            Trip { sent: at(500), came: at(100), read: at(600), held: us(0), held_on_purpose: us(100) };
        assert_eq!((rtt.sample(&trip), rtt.recent()), (us(100), us(100)));
        assert_eq!(sample(&mut rtt, 120, 0, 5_000_000), us(100));
    }
}
