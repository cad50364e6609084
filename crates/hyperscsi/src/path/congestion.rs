//! How many bytes may be under way on a path.
//!
//! The window follows delay, as Swift (SIGCOMM 2020) does it, because Ethernet marks nothing: while the fastest frame
//! of a round trip is not later than a target, the window grows; when even that one is late, a queue stands somewhere,
//! and the window shrinks in proportion. It never holds more than twice what the path was seen to carry in the time
//! that the target allows (the cap of IRN, SIGCOMM 2018), and what may wait at both ends: delay is that of the way, so a
//! process that gets its processor late closes nothing.
//!
//! A loss by itself says little: links that damage one frame in ten lose as many as a congested one. So losses up to 2 %
//! change nothing; up to 13 % the window grows by no more than a frame per round trip; above that it shrinks once per round
//! trip, until what is sent is at most 15 % more than what arrives. That holds the rate on links that lose one frame in
//! eight, and where a queue is too short to be seen as delay it ends at what the path carries, with so many frames lost.
//!
//! The target is the shortest round trip seen, plus an allowance for wake-ups and small queues, or eight frames or 128 KiB at the rate
//! of the path if that is longer (for 128 KiB up to 1 ms): at 100 Mbit/s one frame of 9000 bytes alone takes 0.7 ms. Who stands at a small window
//! for 20 round trips and still sees delay tries what eight times the allowance does. If the rate rises by a quarter, the
//! delay comes from a busy host or from queues of others, and it stays so for 200 round trips; if not, the queue was its own.

use base::time::{Duration, Instant};

/// The least window, in full frames: enough that acknowledgements keep coming.
const FRAMES_MIN: u64 = 4;
/// The window at the beginning, in full frames.
const FRAMES_INITIAL: u64 = 32;
/// The largest window: the largest credit in frames of the usual jumbo size.
const BYTES_MAX: u64 = 64 << 20;
/// How many frames may stand in a queue, whatever the allowance.
const QUEUE_FRAMES: u64 = 8;
/// So many bytes as well, if the path carries them in so short a time: two bursts of a TCP that leaves segmentation to its port. At
/// a gigabit a busy host may be late by that time, and the link does not run dry.
const QUEUE_BYTES: u64 = 128 << 10;
const LATENESS: Duration = Duration::from_millis(1);
/// How many bytes may wait at both ends for a process to read them: 4 ms at a gigabit, and less than a core's cache holds.
pub(crate) const WAITING_BYTES: u64 = 512 << 10;
/// Up to so many frames lost of a thousand, nothing is done.
pub(crate) const IGNORED_PERMILLE: u64 = 20;
/// Above so many the window shrinks: 15 % more than what arrives is sent then.
pub(crate) const TOLERATED_PERMILLE: u64 = 130;
/// How many frames make a loss rate.
const RATE_FRAMES: u64 = 64;
/// How many round trips a seen rate counts.
const RATE_ROUNDS: usize = 8;
/// How long the shortest round trip is believed, twice.
const BASE_EPOCH: Duration = Duration::from_secs(10);
/// How many round trips at a small window and late until more is tried, and how long that is judged.
const STANDING_ROUNDS: u32 = 20;
/// By how much the allowance grows then.
const INSISTENCE: u32 = 8;
/// How many round trips insistence lasts until it is asked anew whether it is needed.
const HELPFUL_ROUNDS: u32 = 200;
/// How many round trips until it is tried again after it was in vain.
const VAIN_ROUNDS: u32 = 2000;
/// After a pause this long the window is what it was at the beginning, if it was larger.
const PAUSE: Duration = Duration::from_secs(1);

/// The window of one path.
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

/// Whether more delay is put up with than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DelayTolerance {
    /// No; so many round trips in a row were late although the window is small.
    None { late_rounds: u32 },
    /// It is tried; the rate was this before.
    Trial { rounds: u32, rate: u64 },
    /// It helped; for so many round trips so far.
    On { rounds: u32 },
    /// It did not.
    Vain { rounds: u32 },
}

/// What one round trip showed.
#[derive(Clone, Copy, Debug)]
struct Round {
    since: Instant,
    acked: u64,
    frames: u64,
    lost: u64,
    least: Duration,
    /// Whether the window was what held frames back.
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

    /// Returns how many bytes may still be sent.
    pub(crate) const fn room(&self) -> u64 {
        self.window.saturating_sub(self.in_flight)
    }

    /// Takes note of the longest frame that the path carries. The window stays at so many bytes, but is never less than
    /// the least number of frames.
    pub(crate) fn set_frame_len(&mut self, frame_len: u64) {
        self.frame_len = frame_len;
        self.window = self.window.max(self.least());
        if self.starting {
            self.window = self.window.max(frame_len.saturating_mul(FRAMES_INITIAL));
        }
    }

    /// Takes note that `bytes` were sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.in_flight == 0 && now.since(self.last_sent) > PAUSE {
            self.window = self.window.min(self.frame_len.saturating_mul(FRAMES_INITIAL));
            self.starting = true;
            self.rates = [0; RATE_ROUNDS];
        }
        if self.in_flight == 0 {
            // The time in which nothing was under way is no part of a round trip.
            self.round = Round { lost: self.round.lost, ..Round::new(now) };
        }
        self.last_sent = now;
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    /// Takes note that more could have been sent.
    pub(crate) const fn limited(&mut self) {
        self.round.limited = true;
    }

    /// Takes note that `bytes` are no longer under way, and nothing is to be learned from it.
    pub(crate) const fn forgotten(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Takes note that a frame of `bytes` was lost.
    pub(crate) const fn lost(&mut self, bytes: u64) {
        self.forgotten(bytes);
        self.round.lost += 1;
    }

    /// Takes note that the peer's port lost frames for want of room.
    pub(crate) fn overrun(&mut self) {
        self.starting = false;
        self.window = (self.window / 10).saturating_mul(7).max(self.least());
    }

    /// Takes note that `frames` frames of `bytes` together arrived, the last of them sent at `sent_at`. Returns whether
    /// that ended a round trip.
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

    /// Returns the delay up to which no queue is seen.
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

    /// Returns the best rate of the last round trips, in bytes per second; 0 if none is known.
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
            // One frame per round trip, or a sixteenth of a window that is large: after a burst of other traffic the
            // full rate is back within some ten round trips.
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

    /// Shrinks the window in proportion to what is above the target, at most to half.
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
        // A round trip in which there was little to send says nothing, unless it was a fast one.
        if round.limited || rate > self.rate() {
            if let Some(slot) = self.rates.get_mut(self.rate_at) {
                *slot = rate;
            }
            self.rate_at = (self.rate_at + 1) % RATE_ROUNDS;
        }
    }

    /// Returns how many frames of a thousand were lost lately.
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
        // What a queue that is always allowed leads to, and half as much again.
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
