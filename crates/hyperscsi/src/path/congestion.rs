//! How many bytes may be under way on a path.
//!
//! The window follows delay, as Swift (SIGCOMM 2020) does it, because Ethernet marks nothing: while the fastest frame
//! of a round trip is not later than a target, the window grows; when even that one is late, a queue stands somewhere,
//! and the window shrinks in proportion. It never holds more than twice what the path was seen to carry in the time
//! that the target allows (the cap of IRN, SIGCOMM 2018).
//!
//! A loss by itself says little: links that damage one frame in ten lose as many as a congested one. So losses up to 2 %
//! change nothing, and above that the window shrinks once per round trip, yet never below a quarter more than what
//! arrived in that round trip. With random loss that holds the rate up to one frame in five, while in a queue that is too
//! short to be seen as delay it ends at the path's share.
//!
//! The target is the shortest round trip seen, plus an allowance for wake-ups and small queues, or eight frames at the rate
//! of the path if that is longer: at 100 Mbit/s one frame of 9000 bytes alone takes 0.7 ms. Who stands at the least window
//! for 20 round trips and still sees no better has a slow peer or a busy host before it rather than a queue of its own:
//! its target is doubled, up to eightfold, until delay falls again.

use base::time::{Duration, Instant};

/// The least window, in full frames: enough that acknowledgements keep coming.
const FRAMES_MIN: u64 = 8;
/// The window at the beginning, in full frames.
const FRAMES_INITIAL: u64 = 32;
/// The largest window: the largest credit in frames of the usual jumbo size.
const BYTES_MAX: u64 = 64 << 20;
/// How many frames may stand in a queue, whatever the allowance.
const QUEUE_FRAMES: u64 = 8;
/// A loss of more than one frame in this many is answered.
const TOLERATED_ONE_IN: u64 = 50;
/// How many frames make a loss rate.
const RATE_FRAMES: u64 = 64;
/// How many round trips a seen rate counts.
const RATE_ROUNDS: usize = 8;
/// How long the shortest round trip is believed, twice.
const BASE_EPOCH: Duration = Duration::from_secs(10);
/// How many round trips at the least window until the target is doubled, and below the target until it is halved.
const COMPETE_ROUNDS: u32 = 20;
/// The target is at most doubled so often.
const COMPETE_MAX: u32 = 3;
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
    compete: u32,
    /// Round trips in a row at the least window and above the target; or below the target, when negative.
    standing: i32,
    last_sent: Instant,
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
            compete: 0,
            standing: 0,
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
        let queue = QUEUE_FRAMES.saturating_mul(self.frame_len).saturating_mul(1_000_000_000);
        let queue = Duration::from_nanos(queue.checked_div(self.rate()).unwrap_or(0));
        let allowance = self.allowance.saturating_mul(1 << self.compete.min(COMPETE_MAX));
        base.saturating_add(allowance.max(queue.min(Duration::from_millis(50))))
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
        let losing = self.is_losing(&round);
        let target = self.target();
        if round.least != Duration::MAX && round.least > target {
            self.too_late(round.least, target);
        } else if losing {
            self.starting = self.starting && round.lost <= round.frames / 4;
            if !self.starting {
                let arrived = round.acked.saturating_add(round.acked / 4);
                self.window =
                    (self.window.saturating_mul(17) / 20).max(arrived).min(self.window.max(arrived));
            }
        } else if round.limited && !self.starting {
            // One frame per round trip, or a sixteenth of a window that is large: after a burst of other traffic the
            // full rate is back within some ten round trips.
            self.window = self.window.saturating_add(self.frame_len.max(self.window / 16));
        }
        self.compete(round.least, target);
        let carried =
            u128::from(self.rate()).saturating_mul(target.as_nanos()).saturating_mul(2) / 1_000_000_000;
        let cap = u64::try_from(carried).unwrap_or(u64::MAX);
        if cap > 0 && !self.starting {
            self.window = self.window.min(cap.max(self.frame_len.saturating_mul(FRAMES_INITIAL)));
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

    fn is_losing(&mut self, round: &Round) -> bool {
        let (arrived, lost) = (self.frames.0 + round.frames, self.frames.1 + round.lost);
        self.frames =
            if arrived + lost >= RATE_FRAMES * 2 { (arrived / 2, lost / 2) } else { (arrived, lost) };
        arrived + lost >= RATE_FRAMES && lost.saturating_mul(TOLERATED_ONE_IN) > arrived + lost
    }

    fn compete(&mut self, least: Duration, target: Duration) {
        if least == Duration::MAX {
            return;
        }
        if least > target && self.window <= self.least() {
            self.standing = self.standing.max(0) + 1;
        } else if least <= target {
            self.standing = self.standing.min(0) - 1;
        }
        if self.standing.unsigned_abs() >= COMPETE_ROUNDS {
            let up = self.standing > 0;
            self.compete =
                if up { (self.compete + 1).min(COMPETE_MAX) } else { self.compete.saturating_sub(1) };
            self.standing = 0;
        }
    }
}
