//! Emulates one direction of a packet network.
//!
//! A frame arrives intact, damaged, late, twice or never, and perhaps before one that was sent earlier. Two
//! directions make a path. Their plans may differ, so that a cut can be asymmetric.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::rng::Rng;
use base::time::{Duration, Instant};

use crate::probability::{DurationRange, Probability, flip_bits, time_of};

/// The faults of one direction, and how often each happens. Each probability applies to one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramePlan {
    /// The time that a frame needs to arrive.
    pub delay: DurationRange,
    /// The rate in bytes per second; zero for no limit.
    pub bytes_per_s: u64,
    /// The most bytes that wait for a rate-limited wire; a frame that does not fit is lost. Zero for no
    /// limit.
    pub queue_len_max: usize,
    /// The frame is lost.
    pub loss: Probability,
    /// After a loss, the next frame is lost as well (the burst continues).
    pub burst: Probability,
    /// The frame arrives twice.
    pub duplicate: Probability,
    /// The frame is delayed, so that later ones overtake it.
    pub reorder: Probability,
    /// The additional delay of a reordered frame.
    pub reorder_by: DurationRange,
    /// Bits of the frame flip without being detected by the hardware's frame check sequence.
    pub corrupt: Probability,
    /// The most bits that flip at a time.
    pub bits_max: u32,
    /// The longest frame that arrives, each entry valid from its time on, sorted by time. Longer frames are
    /// lost, as in switches.
    pub frame_len_max: Vec<(Instant, usize)>,
    /// The cuts, during which all frames are lost: from the first time up to, but not including, the second.
    pub cuts: Vec<(Instant, Instant)>,
    /// After this many faults the direction has no more of them (except for cuts and lengths), so that a run
    /// can end.
    pub faults_max: u32,
}

impl FramePlan {
    /// A direction in which every frame arrives at once and undamaged.
    pub const CLEAN: Self = Self {
        delay: DurationRange::ZERO,
        bytes_per_s: 0,
        queue_len_max: 0,
        loss: Probability::NEVER,
        burst: Probability::NEVER,
        duplicate: Probability::NEVER,
        reorder: Probability::NEVER,
        reorder_by: DurationRange::ZERO,
        corrupt: Probability::NEVER,
        bits_max: 3,
        frame_len_max: Vec::new(),
        cuts: Vec::new(),
        faults_max: u32::MAX,
    };
}

/// Counts of frames and of the faults that happened to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameStats {
    /// Frames sent.
    pub sent: u64,
    /// Frames, and copies of them, that have arrived or will arrive.
    pub arrived: u64,
    /// Frames lost by chance.
    pub lost: u64,
    /// Frames lost because the queue was full.
    pub queue_full: u64,
    /// Frames lost because they were too long.
    pub too_long: u64,
    /// Frames lost in a cut.
    pub cut: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames delayed so that later ones overtake them.
    pub reordered: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
}

/// A direction that executes a plan.
#[derive(Debug)]
pub struct FrameLink {
    plan: FramePlan,
    rng: Rng,
    /// Sorted by arrival, and among frames with the same arrival by the order of sending.
    queue: BTreeMap<(Instant, u64), Vec<u8>>,
    number: u64,
    wire_free: Instant,
    in_burst: bool,
    faults: u32,
    stats: FrameStats,
}

impl FrameLink {
    /// Creates a direction. The same seed causes the same faults for the same frames.
    pub const fn new(plan: FramePlan, seed: u64) -> Self {
        Self {
            plan,
            rng: Rng::from_seed(seed),
            queue: BTreeMap::new(),
            number: 0,
            wire_free: Instant::ORIGIN,
            in_burst: false,
            faults: 0,
            stats: FrameStats {
                sent: 0,
                arrived: 0,
                lost: 0,
                queue_full: 0,
                too_long: 0,
                cut: 0,
                duplicated: 0,
                reordered: 0,
                corrupted: 0,
            },
        }
    }

    /// Sends a frame.
    pub fn push(&mut self, now: Instant, frame: &[u8]) {
        self.stats.sent += 1;
        // Every frame has its own generator, so that the count of random numbers that one fault uses changes
        // no later fault.
        let mut rng = Rng::from_seed(self.rng.next_u64());
        let Some(departure) = self.departure(now, frame.len()) else { return };
        if self.is_lost(&mut rng) {
            return;
        }
        let copies = if self.strike(&mut rng, self.plan.duplicate) {
            self.stats.duplicated += 1;
            2
        } else {
            1
        };
        for _ in 0..copies {
            let mut bytes = frame.to_vec();
            if self.strike(&mut rng, self.plan.corrupt) {
                self.stats.corrupted += u64::from(flip_bits(&mut rng, &mut bytes, self.plan.bits_max) > 0);
            }
            let mut arrival = departure.after(self.plan.delay.pick(&mut rng));
            if self.strike(&mut rng, self.plan.reorder) {
                self.stats.reordered += 1;
                arrival = arrival.after(self.plan.reorder_by.pick(&mut rng));
            }
            self.number += 1;
            self.stats.arrived += 1;
            self.queue.insert((arrival, self.number), bytes);
        }
    }

    /// Returns the next frame that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Vec<u8>> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Returns when the next frame arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Stops random faults from now on; cuts and lengths stay as planned.
    pub const fn heal(&mut self) {
        self.plan.faults_max = 0;
    }

    /// Replaces the plan.
    pub fn replan(&mut self, plan: FramePlan) {
        self.plan = plan;
    }

    /// Returns the counts so far.
    pub const fn stats(&self) -> FrameStats {
        self.stats
    }

    /// Returns when a frame of `len` bytes has left the sender, or `None` when it is lost.
    fn departure(&mut self, now: Instant, len: usize) -> Option<Instant> {
        if self.plan.cuts.iter().any(|(from, to)| *from <= now && now < *to) {
            self.stats.cut += 1;
            return None;
        }
        let longest = self.plan.frame_len_max.iter().rev().find(|(from, _)| *from <= now);
        if longest.is_some_and(|(_, most)| len > *most) {
            self.stats.too_long += 1;
            return None;
        }
        let waiting = self.wire_free.since(now);
        let room = time_of(self.plan.queue_len_max, self.plan.bytes_per_s);
        if self.plan.queue_len_max > 0 && waiting > room {
            self.stats.queue_full += 1;
            return None;
        }
        self.wire_free = self.wire_free.max(now).after(time_of(len, self.plan.bytes_per_s));
        Some(self.wire_free)
    }

    fn is_lost(&mut self, rng: &mut Rng) -> bool {
        let probability = if self.in_burst { self.plan.burst } else { self.plan.loss };
        self.in_burst = self.strike(rng, probability);
        self.stats.lost += u64::from(self.in_burst);
        self.in_burst
    }

    fn strike(&mut self, rng: &mut Rng, probability: Probability) -> bool {
        // The random number is drawn in any case, so that a healed link draws the same sequence.
        let struck = probability.occurs(rng) && self.faults < self.plan.faults_max;
        self.faults = self.faults.saturating_add(u32::from(struck));
        struck
    }
}

/// Returns the plan of a direction that loses, repeats, reorders and damages one frame in `times` each, with
/// a delay of up to `delay`: a starting point for experiments.
pub fn lossy(times: u32, delay: Duration) -> FramePlan {
    let probability = Probability::one_in(times);
    FramePlan {
        delay: DurationRange::between(Duration::ZERO, delay),
        loss: probability,
        duplicate: probability,
        reorder: probability,
        reorder_by: DurationRange::between(delay, delay.saturating_mul(4)),
        corrupt: probability,
        ..FramePlan::CLEAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(link: &mut FrameLink, until: Instant) -> Vec<Vec<u8>> {
        core::iter::from_fn(|| link.poll(until)).collect()
    }

    fn numbered(count: u32) -> impl Iterator<Item = Vec<u8>> {
        (0..count).map(|number| number.to_be_bytes().repeat(16))
    }

    const END: Instant = Instant(u64::MAX);
    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn a_clean_direction_keeps_everything_in_order() {
        let mut link = FrameLink::new(FramePlan::CLEAN, 1);
        for frame in numbered(1000) {
            link.push(Instant(5), &frame);
        }
        assert_eq!(link.poll_timeout(), Some(Instant(5)));
        assert!(link.poll(Instant(4)).is_none());
        assert!(frames(&mut link, Instant(5)).into_iter().eq(numbered(1000)));
    }

    #[test]
    fn one_seed_does_the_same_twice_and_another_something_else() {
        let run = |seed| {
            let mut link = FrameLink::new(lossy(5, MILLI), seed);
            for (at, frame) in (0..).zip(numbered(500)) {
                link.push(Instant(at * 1000), &frame);
            }
            (frames(&mut link, END), link.stats())
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7).0, run(8).0);
        let stats = run(7).1;
        assert!(
            stats.lost > 50 && stats.duplicated > 50 && stats.reordered > 50 && stats.corrupted > 50,
            "{stats:?}"
        );
        assert_eq!(stats.arrived, stats.sent - stats.lost + stats.duplicated);
    }

    #[test]
    fn losses_come_in_bursts_when_told() {
        let plan =
            FramePlan { loss: Probability::one_in(100), burst: Probability::one_in(2), ..FramePlan::CLEAN };
        let mut link = FrameLink::new(plan, 3);
        for frame in numbered(20_000) {
            link.push(Instant(0), &frame);
        }
        let lost = link.stats().lost;
        assert!((300..500).contains(&lost), "1 % begins a burst of 2 on average: {lost}");
    }

    #[test]
    fn cuts_lengths_and_a_full_queue_lose_what_they_should() {
        let plan = FramePlan {
            bytes_per_s: 1_000_000,
            queue_len_max: 3000,
            frame_len_max: alloc::vec![(Instant(0), 1500), (Instant(1_000_000_000), 9000)],
            cuts: alloc::vec![(Instant(10), Instant(20))],
            ..FramePlan::CLEAN
        };
        let mut link = FrameLink::new(plan, 4);
        link.push(Instant(9), &[0; 100]);
        link.push(Instant(15), &[0; 100]);
        link.push(Instant(20), &[0; 1501]);
        for _ in 0..10 {
            link.push(Instant(500_000_000), &[0; 1000]);
        }
        link.push(Instant(1_000_000_000), &[0; 9000]);
        let stats = link.stats();
        assert_eq!((stats.cut, stats.too_long, stats.queue_full, stats.arrived), (1, 1, 6, 6));
        assert_eq!(frames(&mut link, Instant(501_000_000)).len(), 2, "1000 bytes take a millisecond");
    }

    #[test]
    fn a_healed_direction_throws_no_more_dice() {
        let mut link = FrameLink::new(lossy(2, Duration::ZERO), 5);
        link.heal();
        for frame in numbered(200) {
            link.push(Instant(0), &frame);
        }
        assert!(frames(&mut link, END).into_iter().eq(numbered(200)));
    }
}
