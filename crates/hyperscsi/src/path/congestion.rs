//! Congestion control: how many bytes may be under way on a path.
//!
//! The congestion window follows delay, as in Swift (SIGCOMM 2020), because Ethernet has no congestion marks.
//! While the fastest frame of a round trip meets the target delay, the window grows. When even that frame is
//! late, a queue stands somewhere, and the window shrinks in proportion. The window never holds more than the
//! sum of two amounts: twice what the path was seen to carry in the target delay (the cap of IRN, SIGCOMM
//! 2018), and what may wait at both ends. Only delay on the way counts, so the window does not shrink when a
//! process gets its processor late.
//!
//! A loss by itself says little: links that damage one frame in ten lose as many as a congested one. So
//! losses up to 2 % change nothing. With losses up to 13 % the window grows by at most one frame per round
//! trip. Above 13 % it shrinks once per round trip, until at most 15 % more is sent than arrives. This keeps
//! up the rate on links that lose one frame in eight. Where a queue is too short to show as delay, the window
//! settles at what the path carries, with that share of frames lost.
//!
//! The target delay is the shortest round trip seen, plus an allowance for wake-ups and small queues. If
//! eight frames or 128 KiB take longer at the rate of the path (for eight frames up to 50 ms, for 128 KiB up
//! to 1 ms), that time replaces the allowance: at 100 Mbit/s one frame of 9000 bytes alone takes 0.7 ms. A
//! path whose window was small for 20 round trips and which still sees delay tries eight times the allowance.
//! If its rate then rises by a quarter, the delay comes from a busy host or from other senders' queues, and
//! the larger allowance stays for 200 round trips. If not, the queue was the path's own.

use base::time::{Duration, Instant};

/// The least window, in full frames: enough that acknowledgements keep arriving.
const FRAMES_MIN: u64 = 4;
/// The initial window, in full frames.
const FRAMES_INITIAL: u64 = 32;
/// The largest window: the largest credit in frames of the usual jumbo size.
const BYTES_MAX: u64 = 64 << 20;
/// How many frames may stand in a queue, whatever the allowance is.
const QUEUE_FRAMES: u64 = 8;
/// How many bytes may stand in a queue as well, if the path carries them within [`LATENESS`]: two bursts of a
/// TCP sender with segmentation offload. At 1 Gbit/s a host may be late by that time without the link running
/// idle.
const QUEUE_BYTES: u64 = 128 << 10;
const LATENESS: Duration = Duration::from_millis(1);
/// How many bytes may wait at both ends for a process to read them: 4 ms at 1 Gbit/s, and less than a core's
/// cache holds.
pub(crate) const WAITING_BYTES: u64 = 512 << 10;
/// Up to so many lost frames of a thousand change nothing.
pub(crate) const IGNORED_PERMILLE: u64 = 20;
/// Above so many lost frames of a thousand the window shrinks. The sender then sends 15 % more than arrives.
pub(crate) const TOLERATED_PERMILLE: u64 = 130;
/// How many frames are needed to compute a loss rate.
const RATE_FRAMES: u64 = 64;
/// For how many round trips a measured rate counts.
const RATE_ROUNDS: usize = 8;
/// The shortest round trip counts for two epochs of this length.
const BASE_EPOCH: Duration = Duration::from_secs(10);
/// After how many round trips with a small window and delay more delay is tried, and for how many round trips
/// the trial lasts.
const STANDING_ROUNDS: u32 = 20;
/// The factor by which the allowance grows in a trial.
const INSISTENCE: u32 = 8;
/// How many round trips a successful trial keeps the larger allowance, before its need is tested again.
const HELPFUL_ROUNDS: u32 = 200;
/// How many round trips after an unsuccessful trial the next one may begin.
const VAIN_ROUNDS: u32 = 2000;
/// After a pause this long the window returns to its initial size, if it was larger.
const PAUSE: Duration = Duration::from_secs(1);

/// The congestion window of one path.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    window: u64,
    frame_len: u64,
    allowance: Duration,
    starting: bool,
    in_flight: u64,
    /// The shortest round trip of the last epoch and of this one.
    base: (Duration, Duration),
    base_since: Instant,
    round: Round,
    rates: [u64; RATE_ROUNDS],
    rate_at: usize,
    frames: (u64, u64),
    insistence: DelayTolerance,
    last_sent: Instant,
}

/// Whether more delay than usual is tolerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DelayTolerance {
    /// No. So many round trips in a row were late although the window is small.
    None { late_rounds: u32 },
    /// A trial runs; `rate` is the rate before it.
    Trial { rounds: u32, rate: u64 },
    /// Yes, the trial raised the rate; for so many round trips so far.
    On { rounds: u32 },
    /// No, the trial did not raise the rate; for so many round trips so far.
    Vain { rounds: u32 },
}

/// The measurements of one round trip.
#[derive(Clone, Copy, Debug)]
struct Round {
    since: Instant,
    acked: u64,
    frames: u64,
    lost: u64,
    least: Duration,
    /// Whether the window held frames back.
    limited: bool,
}

impl Round {
    const fn new(since: Instant) -> Self {
        Self { since, acked: 0, frames: 0, lost: 0, least: Duration::MAX, limited: false }
    }
}

impl Congestion {
    pub(crate) const fn new(now: Instant, frame_len: u64, allowance: Duration) -> Self {
        Self {
            window: frame_len.saturating_mul(FRAMES_INITIAL),
            frame_len,
            allowance,
            starting: true,
            in_flight: 0,
            base: (Duration::MAX, Duration::MAX),
            base_since: now,
            round: Round::new(now),
            rates: [0; RATE_ROUNDS],
            rate_at: 0,
            frames: (0, 0),
            insistence: DelayTolerance::None { late_rounds: 0 },
            last_sent: now,
        }
    }

    pub(crate) const fn window(&self) -> u64 {
        self.window
    }

    pub(crate) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns how many more bytes may be sent.
    pub(crate) const fn room(&self) -> u64 {
        self.window.saturating_sub(self.in_flight)
    }

    /// Sets the longest frame that the path carries, in bytes. The window keeps its size in bytes, but never
    /// falls below the least number of frames.
    pub(crate) fn set_frame_len(&mut self, frame_len: u64) {
        self.frame_len = frame_len;
        self.window = self.window.max(self.least());
        if self.starting {
            self.window = self.window.max(frame_len.saturating_mul(FRAMES_INITIAL));
        }
    }

    /// Records that `bytes` were sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.in_flight == 0 && now.since(self.last_sent) > PAUSE {
            self.window = self.window.min(self.frame_len.saturating_mul(FRAMES_INITIAL));
            self.starting = true;
            self.rates = [0; RATE_ROUNDS];
        }
        if self.in_flight == 0 {
            // The time in which nothing was under way is not part of a round trip.
            self.round = Round { lost: self.round.lost, ..Round::new(now) };
        }
        self.last_sent = now;
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    /// Records that the window held frames back.
    pub(crate) const fn limited(&mut self) {
        self.round.limited = true;
    }

    /// Records that `bytes` are no longer under way, without drawing a conclusion from it.
    pub(crate) const fn forgotten(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Records that a frame of `bytes` was lost.
    pub(crate) const fn lost(&mut self, bytes: u64) {
        self.forgotten(bytes);
        self.round.lost += 1;
    }

    /// Records that the peer's port lost frames because its receive ring was full.
    pub(crate) fn overrun(&mut self) {
        self.starting = false;
        self.window = (self.window / 10).saturating_mul(7).max(self.least());
    }

    /// Records that `frames` frames of `bytes` together were acknowledged, the last of them sent at
    /// `sent_at`. Returns whether that ended a round trip.
    pub(crate) fn acked(
        &mut self,
        now: Instant,
        bytes: u64,
        frames: u64,
        sent_at: Instant,
        round_trip: Option<Duration>,
    ) -> bool {
        self.forgotten(bytes);
        self.round.acked += bytes;
        self.round.frames += frames;
        if let Some(sample) = round_trip {
            self.round.least = self.round.least.min(sample);
            self.learn_base(now, sample);
        }
        if self.starting && self.round.limited {
            self.window = self.window.saturating_add(bytes).min(BYTES_MAX);
        }
        let ended = sent_at >= self.round.since && now > self.round.since;
        if ended {
            self.end_round(now);
        }
        ended
    }

    /// Returns the target delay: up to it no queue is assumed.
    pub(crate) fn target(&self) -> Duration {
        let base = self.base();
        let rate = self.rate();
        let span_of = |bytes: u64| {
            Duration::from_nanos(bytes.saturating_mul(1_000_000_000).checked_div(rate).unwrap_or(0))
        };
        let frames = span_of(QUEUE_FRAMES.saturating_mul(self.frame_len)).min(Duration::from_millis(50));
        let queue = frames.max(span_of(QUEUE_BYTES).min(LATENESS));
        let insists = matches!(self.insistence, DelayTolerance::Trial { .. } | DelayTolerance::On { .. });
        let allowance = self.allowance.saturating_mul(if insists { INSISTENCE } else { 1 });
        base.saturating_add(allowance.max(queue))
    }

    /// Returns the best rate of the last round trips, in bytes per second; 0 if none was measured.
    pub(crate) fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    fn base(&self) -> Duration {
        let base = self.base.0.min(self.base.1);
        if base == Duration::MAX { Duration::ZERO } else { base }
    }

    fn learn_base(&mut self, now: Instant, sample: Duration) {
        if now.since(self.base_since) > BASE_EPOCH {
            self.base = (self.base.1, Duration::MAX);
            self.base_since = now;
        }
        self.base.1 = self.base.1.min(sample);
    }

    const fn least(&self) -> u64 {
        self.frame_len.saturating_mul(FRAMES_MIN)
    }

    fn end_round(&mut self, now: Instant) {
        let round = core::mem::replace(&mut self.round, Round::new(now));
        self.learn_rate(now, &round);
        let loss = self.loss_permille(&round);
        let target = self.target();
        self.starting &= round.lost <= round.frames / 4;
        if round.least != Duration::MAX && round.least > target {
            self.too_late(round.least, target);
        } else if loss > TOLERATED_PERMILLE {
            self.starting = false;
            let kept = (1150 * (1000 - loss.min(1000)) / 1000).max(850);
            self.window = (self.window / 1000).saturating_mul(kept);
        } else if round.limited && !self.starting {
            // The window grows by one frame per round trip, or by a sixteenth if the window is large: after a
            // burst of other traffic the full rate is back within some ten round trips.
            let fast = if loss > IGNORED_PERMILLE { 0 } else { self.window / 16 };
            self.window = self.window.saturating_add(self.frame_len.max(fast));
        }
        self.insist(round.least);
        let carried =
            u128::from(self.rate()).saturating_mul(target.as_nanos()).saturating_mul(2) / 1_000_000_000;
        let cap = u64::try_from(carried).unwrap_or(u64::MAX);
        if cap > 0 && !self.starting {
            self.window = self
                .window
                .min(cap.saturating_add(WAITING_BYTES).max(self.frame_len.saturating_mul(FRAMES_INITIAL)));
        }
        self.window = self.window.clamp(self.least(), BYTES_MAX);
    }

    /// Shrinks the window in proportion to the delay above the target, at most to half.
    fn too_late(&mut self, delay: Duration, target: Duration) {
        self.starting = false;
        let (delay, target) = (delay.as_nanos(), target.as_nanos());
        let excess =
            delay.saturating_sub(target).saturating_mul(800).checked_div(delay).unwrap_or(0).min(500);
        let kept = 1000 - u64::try_from(excess).unwrap_or(500);
        self.window = (self.window / 1000).saturating_mul(kept);
    }

    fn learn_rate(&mut self, now: Instant, round: &Round) {
        let took = u64::try_from(now.since(round.since).as_nanos()).unwrap_or(u64::MAX);
        let rate = round.acked.saturating_mul(1_000_000_000).checked_div(took).unwrap_or(0);
        // A round trip in which there was little to send measures no rate, unless its rate was higher than
        // the best.
        if round.limited || rate > self.rate() {
            if let Some(slot) = self.rates.get_mut(self.rate_at) {
                *slot = rate;
            }
            self.rate_at = (self.rate_at + 1) % RATE_ROUNDS;
        }
    }

    /// Returns how many of the last frames were lost, per thousand.
    fn loss_permille(&mut self, round: &Round) -> u64 {
        let (arrived, lost) = (self.frames.0 + round.frames, self.frames.1 + round.lost);
        let sent = arrived + lost;
        self.frames = if sent >= RATE_FRAMES * 2 { (arrived / 2, lost / 2) } else { (arrived, lost) };
        if sent < RATE_FRAMES { 0 } else { lost * 1000 / sent }
    }

    fn insist(&mut self, least: Duration) {
        if least == Duration::MAX {
            return;
        }
        let late = least > self.base().saturating_add(self.allowance);
        // The queue that is always allowed, and half as much again.
        let queue = self.frame_len.saturating_mul(QUEUE_FRAMES).max(QUEUE_BYTES);
        let small = self.window <= queue.saturating_add(queue / 2);
        self.insistence = match self.insistence {
            DelayTolerance::None { late_rounds } if late && small && late_rounds >= STANDING_ROUNDS => {
                DelayTolerance::Trial { rounds: 0, rate: self.rate() }
            }
            DelayTolerance::None { late_rounds } if late && small => {
                DelayTolerance::None { late_rounds: late_rounds + 1 }
            }
            DelayTolerance::Trial { rounds, rate } if rounds < STANDING_ROUNDS => {
                DelayTolerance::Trial { rounds: rounds + 1, rate }
            }
            DelayTolerance::Trial { rate, .. } if self.rate() >= rate.saturating_add(rate / 4) => {
                DelayTolerance::On { rounds: 0 }
            }
            DelayTolerance::Trial { .. } => DelayTolerance::Vain { rounds: 0 },
            DelayTolerance::On { rounds } if rounds < HELPFUL_ROUNDS => {
                DelayTolerance::On { rounds: rounds + 1 }
            }
            DelayTolerance::Vain { rounds } if rounds < VAIN_ROUNDS => {
                DelayTolerance::Vain { rounds: rounds + 1 }
            }
            DelayTolerance::None { .. } | DelayTolerance::On { .. } | DelayTolerance::Vain { .. } => {
                DelayTolerance::None { late_rounds: 0 }
            }
        };
    }
}

#[cfg(test)]
mod tests;
