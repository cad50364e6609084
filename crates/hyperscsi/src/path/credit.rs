//! Credit: how many frames a receiver is ready to buffer, announced as the largest packet number that it
//! takes (PN LIMIT).
//!
//! The limit is absolute and only rises, so lost, repeated and late announcements do no harm. A shrinking
//! window leaves the limit unchanged until the packet numbers have caught up. The window adapts its size: a
//! sender that uses half of it within two round trips gets twice as much, up to this session's share of the
//! port's receive ring. When the ring overflows, the window is halved.

use base::time::{Duration, Instant};

/// The initial window, if the share allows it.
pub(crate) const WINDOW_INITIAL: u64 = 64;

/// The least window, where the share allows it. With less, the sender would wait for acknowledgements one by
/// one.
pub(crate) const WINDOW_MIN: u64 = 8;

/// The least share that is enforced: what is left for each session when all sessions of a full port use both
/// spaces on several paths.
const SHARE_MIN: u64 = 1;

/// The largest window: half of what the replay guard distinguishes.
pub(crate) const WINDOW_MAX: u64 = 8192;

/// How much of a port's receive ring sessions share, in percent. The rest is for handshakes, and for peers
/// that exceed their credit.
pub(crate) const SHARED_PERCENT: usize = 80;

/// How far beyond the limit a packet number is still accepted: probes and bare acknowledgements may exceed
/// it. A path is probed about a thousand times before it is given up.
pub(crate) const BEYOND_MAX: u64 = 2048;

/// A window whose half takes longer than this to use is halved.
const UNUSED: Duration = Duration::from_secs(5);

/// The receiver's side: the credit window of one packet number space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    window: u64,
    share: u64,
    limit: u64,
    announced: u64,
    /// When the present measurement began, and at which packet number.
    since: Instant,
    from: u64,
}

impl Grant {
    /// Begins behind the number `last`. The peer assumes a credit of `credit` frames before the first
    /// announcement.
    pub(crate) fn new(now: Instant, last: u64, credit: u64, share: u64) -> Self {
        let limit = last.saturating_add(credit);
        let share = share.clamp(SHARE_MIN, WINDOW_MAX);
        Self { window: WINDOW_INITIAL.min(share), share, limit, announced: limit, since: now, from: last }
    }

    /// Accepts packet numbers as far as an older path with the same path number allowed.
    pub(crate) fn resume(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
        self.announced = self.limit;
    }

    /// Returns the largest packet number that the peer may use.
    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn window(&self) -> u64 {
        self.window
    }

    #[cfg(test)]
    pub(crate) const fn share(&self) -> u64 {
        self.share
    }

    /// Returns whether a packet number may be accepted at all.
    pub(crate) const fn admits(&self, pn: u64) -> bool {
        pn <= self.limit.saturating_add(BEYOND_MAX)
    }

    /// Records that `largest` is the largest packet number received so far.
    pub(crate) fn received(&mut self, now: Instant, largest: u64, round_trip: Duration) {
        let used = largest.saturating_sub(self.from);
        if used >= self.window / 2 {
            let took = now.since(self.since);
            if took <= round_trip.saturating_mul(2) {
                self.window = (self.window * 2).min(self.share);
            } else if took > UNUSED {
                self.window = (self.window / 2).max(WINDOW_INITIAL.min(self.share));
            }
            (self.since, self.from) = (now, largest);
        }
        self.limit = self.limit.max(largest.saturating_add(self.window));
    }

    /// Sets the largest size of the window.
    pub(crate) fn set_share(&mut self, share: u64) {
        self.share = share.clamp(SHARE_MIN, WINDOW_MAX);
        self.window = self.window.min(self.share);
    }

    /// Records that the port lost frames because they were not read in time.
    pub(crate) fn overflowed(&mut self) {
        self.window = (self.window / 2).max(WINDOW_MIN.min(self.share));
    }

    /// Returns whether the limit should be announced even if there is nothing else to send: the peer has used
    /// half of the credit that it knows of.
    pub(crate) const fn should_announce(&self, largest: u64) -> bool {
        self.limit > self.announced && self.announced.saturating_sub(largest) <= self.window / 2
    }

    /// Returns the limit, which is announced now.
    pub(crate) const fn tell(&mut self) -> u64 {
        self.announced = self.limit;
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_micros(100);

    #[test]
    fn the_window_grows_while_it_is_used_up_fast_and_not_beyond_its_share() {
        let mut grant = Grant::new(Instant(0), 0, 64, 300);
        let mut sizes = alloc::vec::Vec::new();
        for step in 1..=8_u64 {
            let largest = grant.tell() - 1;
            grant.received(Instant(step * 100_000), largest, RTT);
            sizes.push(grant.window());
        }
        assert_eq!(sizes, [128, 256, 300, 300, 300, 300, 300, 300]);
        let mut slow = Grant::new(Instant(0), 0, 64, 300);
        for step in 1..=8_u64 {
            slow.received(Instant(step * 100_000_000), step * 60, RTT);
        }
        assert_eq!(slow.window(), 64);
    }

    #[test]
    fn a_limit_never_goes_back() {
        let mut grant = Grant::new(Instant(0), 0, 64, 512);
        grant.received(Instant(1), 60, RTT);
        let announced = grant.tell();
        assert_eq!(announced, 60 + 128);
        grant.set_share(16);
        grant.overflowed();
        grant.received(Instant(2), 61, RTT);
        assert_eq!((grant.window(), grant.tell()), (8, announced));
        grant.received(Instant(3), announced, RTT);
        assert!(grant.tell() >= announced + 8);
    }

    #[test]
    fn a_receiver_speaks_up_when_half_of_what_the_sender_knows_is_used() {
        let mut grant = Grant::new(Instant(0), 0, 64, 64);
        grant.received(Instant(1), 20, RTT);
        assert!(!grant.should_announce(20));
        grant.received(Instant(2), 40, RTT);
        assert!(grant.should_announce(40));
        grant.tell();
        assert!(!grant.should_announce(40));
    }

    #[test]
    fn numbers_far_beyond_the_limit_are_not_taken() {
        let grant = Grant::new(Instant(0), 0, 64, 64);
        assert!(grant.admits(64 + BEYOND_MAX) && !grant.admits(64 + BEYOND_MAX + 1));
    }
}
