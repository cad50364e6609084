//! Path MTU discovery: finds the longest frame that a path carries, and notices when the path carries less
//! (RFC 8899, without ICMP, which Ethernet does not have).
//!
//! A path begins at 1500 bytes and at once probes the most that both ports can take. When a size fails three
//! times, the next smaller one of a table of common sizes is probed. When full frames are lost while shorter
//! ones arrive, the path falls back to 1500 bytes. It probes again after half a second, then at growing
//! intervals of up to half a minute, and never stops.

use base::time::{Duration, Instant};

/// The frame size that every path carries, in bytes.
pub(crate) const MTU_BASE: usize = 1500;

/// How often a size is tried.
const TRIES: u8 = 3;
/// How many long frames must be lost in a row. Random losses, even of one frame in ten, hardly ever do that.
const VANISHED_MIN: u32 = 4;
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// Common sizes: the largest of veth and tunnels, jumbo frames of switches and cards, FDDI, baby giants.
pub(crate) const SIZES: [usize; 10] =
    [65_535, 16_110, 9_216, 9_000, 8_192, 4_470, 4_074, 3_498, 2_304, 1_998];

/// The path MTU search of one path.
#[derive(Clone, Debug)]
pub(crate) struct Pmtu {
    /// The longest frame that may be sent now.
    current: usize,
    /// The longest frame that both ports can take.
    most: usize,
    phase: Phase,
    retry_after: Duration,
    vanished: u32,
    /// When the first of the long frames was sent that were lost since the last one arrived.
    vanishing_since: Option<Instant>,
    /// When the newest long frame that arrived was sent.
    arrived_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A size is to be probed, up to `tries` more times.
    Wanted { size: usize, tries: u8 },
    /// A probe of that size is under way.
    Asked { size: usize, tries: u8 },
    /// The search ended at the largest size.
    Done,
    /// Larger sizes failed. The search begins again at `until`.
    Waiting { until: Instant },
}

impl Pmtu {
    pub(crate) fn new(most: usize) -> Self {
        let current = most.min(MTU_BASE);
        let mut pmtu = Self {
            current,
            most,
            phase: Phase::Done,
            retry_after: RETRY_FIRST,
            vanished: 0,
            vanishing_since: None,
            arrived_at: Instant::ORIGIN,
        };
        pmtu.search();
        pmtu
    }

    /// Takes over what an earlier search found, in bytes, as far as both ports take it now.
    pub(crate) fn resume(&mut self, current: usize) {
        self.current = self.current.max(current.min(self.most));
        self.search();
    }

    /// Returns the longest frame that may be sent, in bytes.
    pub(crate) const fn current(&self) -> usize {
        self.current
    }

    /// Returns the longest frame that is certain to arrive, in bytes.
    pub(crate) fn base(&self) -> usize {
        self.current.min(MTU_BASE)
    }

    /// Sets the longest frame that both ports can take, in bytes. Returns whether the longest frame changed.
    pub(crate) fn set_most(&mut self, most: usize) -> bool {
        if most == self.most {
            return false;
        }
        let before = self.current;
        // If a port takes more now, the search begins at the present size. If it takes less, no longer frames
        // may be probed.
        self.current = self.current.max(MTU_BASE).min(most);
        self.most = most;
        self.retry_after = RETRY_FIRST;
        self.search();
        before != self.current
    }

    /// Returns the size of a probe that should be sent now.
    pub(crate) const fn wants_probe(&self) -> Option<usize> {
        match self.phase {
            Phase::Wanted { size, .. } => Some(size),
            _ => None,
        }
    }

    /// Returns whether the present longest frame is the result of a search, not its starting point.
    pub(crate) const fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::Waiting { .. })
    }

    /// Returns when a path that is in use should be probed again.
    pub(crate) const fn retry_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { until } => Some(until),
            _ => None,
        }
    }

    /// Handles a timeout on a path that is in use.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Waiting { until } if until <= now) {
            self.search();
        }
    }

    /// Records that the probe was sent.
    pub(crate) const fn probe_sent(&mut self) {
        if let Phase::Wanted { size, tries } = self.phase {
            self.phase = Phase::Asked { size, tries };
        }
    }

    /// Records that a probe of `len` bytes arrived. Returns whether the longest frame changed.
    pub(crate) fn probe_acked(&mut self, now: Instant, len: usize) -> bool {
        if !matches!(self.phase, Phase::Asked { size, .. } if size == len) || len > self.most {
            return false;
        }
        if len == self.most {
            self.phase = Phase::Done;
            self.retry_after = RETRY_FIRST;
        } else {
            self.phase = self.wait(now);
        }
        (self.vanished, self.vanishing_since) = (0, None);
        core::mem::replace(&mut self.current, len) != len
    }

    /// Records that a probe of `len` bytes was lost.
    pub(crate) fn probe_lost(&mut self, now: Instant, len: usize) {
        let Phase::Asked { size, tries } = self.phase else { return };
        if size != len {
            return;
        }
        let current = self.current;
        let smaller = SIZES.into_iter().find(|next| *next < size && *next > current);
        self.phase = match (tries.saturating_sub(1), smaller) {
            (0, Some(size)) => Phase::Wanted { size, tries: TRIES },
            (0, None) => self.wait(now),
            (tries, _) => Phase::Wanted { size, tries },
        };
    }

    /// Records that a frame of `len` bytes, sent at `sent_at`, arrived.
    pub(crate) fn acked(&mut self, len: usize, sent_at: Instant) {
        if len > MTU_BASE {
            (self.vanished, self.vanishing_since) = (0, None);
            self.arrived_at = self.arrived_at.max(sent_at);
        }
    }

    /// Records that a frame of `len` bytes, sent at `sent_at`, was lost while later ones arrived. Returns
    /// whether the longest frame changed: that happens when several long frames are lost in a row for at
    /// least `span`.
    pub(crate) fn lost(&mut self, now: Instant, len: usize, sent_at: Instant, span: Duration) -> bool {
        // A frame that was sent before a long frame that arrived was lost for another reason.
        if len <= MTU_BASE || len > self.current || sent_at <= self.arrived_at {
            return false;
        }
        self.vanished += 1;
        let since = *self.vanishing_since.get_or_insert(sent_at);
        if self.vanished < VANISHED_MIN || now.since(since) < span {
            return false;
        }
        self.fall_back(now)
    }

    /// Falls back to the size that every path carries. Returns whether the longest frame changed.
    pub(crate) fn fall_back(&mut self, now: Instant) -> bool {
        (self.vanished, self.vanishing_since) = (0, None);
        self.phase = self.wait(now);
        let base = self.base();
        core::mem::replace(&mut self.current, base) != base
    }

    fn search(&mut self) {
        self.phase = if self.most > self.current {
            Phase::Wanted { size: self.most, tries: TRIES }
        } else {
            Phase::Done
        };
    }

    fn wait(&mut self, now: Instant) -> Phase {
        let until = now.after(self.retry_after);
        self.retry_after = (self.retry_after * 2).min(RETRY_LAST);
        Phase::Waiting { until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SPAN: Duration = Duration::from_millis(1);

    /// Probes until no more probes are wanted. Frames of up to `carries` bytes arrive. Returns the sizes that
    /// were probed.
    fn search(pmtu: &mut Pmtu, carries: usize) -> alloc::vec::Vec<usize> {
        let mut asked = alloc::vec::Vec::new();
        while let Some(size) = pmtu.wants_probe() {
            asked.push(size);
            pmtu.probe_sent();
            assert_eq!(pmtu.wants_probe(), None, "one at a time");
            if size <= carries {
                pmtu.probe_acked(Instant(0), size);
            } else {
                pmtu.probe_lost(Instant(0), size);
            }
        }
        asked
    }

    #[test]
    fn what_both_ports_take_is_asked_for_first() {
        let mut pmtu = Pmtu::new(9000);
        assert_eq!(pmtu.current(), 1500);
        assert_eq!((search(&mut pmtu, 9000), pmtu.current()), (alloc::vec![9000], 9000));
        let mut small = Pmtu::new(1400);
        assert_eq!((search(&mut small, 1400), small.current()), (alloc::vec![], 1400));
    }

    #[test]
    fn a_switch_that_carries_less_is_found_by_the_sizes_in_use() {
        let mut pmtu = Pmtu::new(9000);
        assert_eq!(search(&mut pmtu, 4200), [9000, 9000, 9000, 8192, 8192, 8192, 4470, 4470, 4470, 4074]);
        assert_eq!(pmtu.current(), 4074);
    }

    #[test]
    fn long_frames_that_vanish_while_others_arrive_lead_back_to_1500_and_it_is_asked_again_later() {
        let mut pmtu = Pmtu::new(9000);
        search(&mut pmtu, 9000);
        let at = |ms: u64| Instant(ms * MS);
        for _ in 0..3 {
            assert!(!pmtu.lost(at(4), 9000, at(1), SPAN));
        }
        pmtu.acked(9000, at(2));
        for _ in 0..9 {
            assert!(!pmtu.lost(at(5), 9000, at(2), SPAN), "sent no later than one that arrived");
        }
        for _ in 0..3 {
            assert!(!pmtu.lost(at(5), 9000, at(3), SPAN));
        }
        assert!(!pmtu.lost(at(5), 1500, at(3), SPAN), "a short one says nothing");
        pmtu.acked(1500, at(4));
        assert!(pmtu.lost(at(5), 9000, at(4), SPAN));
        assert_eq!((pmtu.current(), pmtu.wants_probe(), pmtu.retry_at()), (1500, None, Some(at(505))));
        pmtu.handle_timeout(at(504));
        assert_eq!(pmtu.wants_probe(), None);
        pmtu.handle_timeout(at(505));
        assert_eq!((search(&mut pmtu, 9000), pmtu.current()), (alloc::vec![9000], 9000));
    }

    #[test]
    fn the_time_between_searches_doubles_up_to_half_a_minute() {
        let mut pmtu = Pmtu::new(9000);
        let mut waits = alloc::vec::Vec::new();
        for _ in 0..9 {
            search(&mut pmtu, 1500);
            let until = pmtu.retry_at().unwrap();
            waits.push(until.0 / MS);
            pmtu.handle_timeout(until);
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
    }

    #[test]
    fn a_port_whose_mtu_changes_takes_the_path_along() {
        let mut pmtu = Pmtu::new(9000);
        search(&mut pmtu, 9000);
        assert!(pmtu.set_most(1400) && pmtu.current() == 1400 && pmtu.wants_probe().is_none());
        assert!(pmtu.set_most(9000) && pmtu.current() == 1500);
        assert_eq!((search(&mut pmtu, 9000), pmtu.current()), (alloc::vec![9000], 9000));
        assert!(!pmtu.set_most(9000));
    }

    #[test]
    fn an_answer_to_a_question_that_was_not_asked_changes_nothing() {
        let mut pmtu = Pmtu::new(9000);
        pmtu.probe_sent();
        let now = Instant(0);
        assert!(!pmtu.probe_acked(now, 65_535) && !pmtu.probe_acked(now, 4000) && pmtu.current() == 1500);
        pmtu.probe_lost(now, 4000);
        assert!(pmtu.probe_acked(now, 9000) && !pmtu.probe_acked(now, 9000));
    }
}
