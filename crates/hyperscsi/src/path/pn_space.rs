//! One packet number space of a path in both directions: frames that were sent and are not settled, and
//! packet numbers that were received and are to be acknowledged.
//!
//! Sent frames lie in a ring in the order of their packet numbers, so that an acknowledgement finds them by
//! subtraction. Every number is used once. Some numbers are skipped, so that a peer that acknowledges frames
//! it did not receive is detected.

pub(crate) mod handover;

use alloc::collections::{VecDeque, vec_deque};
use alloc::vec::Vec;

use base::rng::Rng;
use base::time::{Duration, Instant};

use super::credit::{Grant, WINDOW_MAX};
use super::loss_detection::{PACKET_THRESHOLD, Reordering};
use super::ranges::Ranges;
use super::replay::ReplayGuard;
use crate::fault_injection::{Bug, is_injected};
use crate::pdu::ack::{ACK_LEN, Ack, PN_COUNT_MASK, RANGE_LEN, RANGES_MAX, Range};
use crate::pdu::parts::PARTS_MAX;
use crate::send_queue::Chunk;

/// The bit position of the path in a packet number.
pub(crate) const PATH_SHIFT: u32 = 56;

/// How many packet numbers may be unsettled: twice the largest credit, since bare acknowledgements use
/// numbers too.
const RING_MAX: usize = 16_384;
const _: () = assert!(RING_MAX as u64 == 2 * WINDOW_MAX);

/// At least so many numbers are used between two skipped ones, and at most twice as many.
const SKIP_EVERY: u64 = 4096;

/// How many further parts of frames are remembered at a time. When they are used up, frames get one part
/// each. Only a sender with thousands of frames under way, most of them full of parts, reaches this bound.
const FURTHER_MAX: usize = RING_MAX;

/// A frame that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    /// Its length from header to tag, in bytes.
    pub(crate) len: u32,
    pub(crate) state: SentState,
    /// Whether its content was sent again, or is about to be, before the frame was acknowledged or lost.
    pub(crate) repeated: bool,
    pub(crate) carried: FrameContent,
    /// The index of its first further part among those of all frames, counted from the first frame on and
    /// wrapping, and how many it has.
    further_from: u32,
    further_count: u8,
}

impl Sent {
    /// Makes the record of a frame that is sent at `at`.
    pub(crate) fn new(at: Instant, len: u32, state: SentState, carried: FrameContent) -> Self {
        Self { at, len, state, repeated: false, carried, further_from: 0, further_count: 0 }
    }
}

/// The further parts of a frame.
pub(crate) type Further<'a> = vec_deque::Iter<'a, Chunk>;

/// The further parts of the frames in a ring, in the order of the frames. They are kept apart so that the
/// ring's entries are small and no frame needs an allocation.
#[derive(Debug, Default)]
struct Hold {
    parts: VecDeque<Chunk>,
    /// How many parts were counted before the front.
    base: u32,
}

impl Hold {
    fn push(&mut self, sent: Sent, parts: &[Chunk]) -> Sent {
        if parts.is_empty() {
            return sent;
        }
        let further_from = self.base.wrapping_add(u32::try_from(self.parts.len()).unwrap_or(u32::MAX));
        self.parts.extend(parts);
        Sent { further_from, further_count: u8::try_from(parts.len()).unwrap_or(u8::MAX), ..sent }
    }

    fn of(&self, sent: &Sent) -> Further<'_> {
        if sent.further_count == 0 {
            return Further::default();
        }
        let end = self.parts.len();
        let from =
            usize::try_from(sent.further_from.wrapping_sub(self.base)).map_or(end, |from| from.min(end));
        self.parts.range(from..(from + usize::from(sent.further_count)).min(end))
    }

    /// Forgets the further parts of the frame at the ring's front.
    fn pop(&mut self, sent: &Sent) {
        if sent.further_count > 0 {
            self.parts.drain(..usize::from(sent.further_count).min(self.parts.len()));
            self.base = self.base.wrapping_add(u32::from(sent.further_count));
        }
    }
}

/// The state of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentState {
    /// The frame needs an acknowledgement, and none was received yet.
    UnderWay,
    /// The frame was given up as lost; it may still arrive.
    Lost,
    /// The frame was acknowledged, or needs no acknowledgement.
    Settled,
}

/// The content of a frame that must arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameContent {
    /// Nothing: an acknowledgement or a ping.
    Nothing,
    /// A part of a message, and further parts, which are kept apart.
    Chunk(Chunk),
    /// A path MTU probe of this length.
    Mtu(u16),
    /// A step of path validation.
    PathStep,
    /// The longest frame that our port takes.
    Receives,
    /// The announcement that a path was given up.
    Leave(u8),
}

/// Why an acknowledgement is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadAck {
    /// It names a packet number that was never used.
    NeverSent,
}

/// The sending direction.
#[derive(Debug)]
pub(crate) struct Outgoing {
    ring: VecDeque<Sent>,
    held: Hold,
    /// The packet numbers of the ring's front and of the next frame.
    base: u64,
    next: u64,
    /// No frame with a lower packet number is under way.
    low: u64,
    under_way: u64,
    largest_acked: u64,
    limit: u64,
    left_out: u64,
    leave_out: u64,
    dice: Rng,
}

impl Outgoing {
    /// Begins behind the number `last`, with credit for `credit` frames.
    pub(crate) fn new(last: u64, credit: u64, seed: u64) -> Self {
        let next = last + 1;
        let mut dice = Rng::from_seed(seed);
        let leave_out = next + 64 + dice.below(SKIP_EVERY);
        Self {
            ring: VecDeque::new(),
            held: Hold::default(),
            base: next,
            next,
            low: next,
            under_way: 0,
            largest_acked: last,
            limit: last.saturating_add(credit),
            left_out: 0,
            leave_out,
            dice,
        }
    }

    /// Returns the packet number of the next frame.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Returns the largest packet number that the peer allows.
    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns whether any frame is under way.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.under_way > 0
    }

    /// Returns whether no sent frame is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns how many more frames the peer's credit allows.
    pub(crate) fn credit(&self) -> u64 {
        if is_injected(Bug::FramesIgnoreLimit) {
            return u64::MAX;
        }
        (self.limit + 1).saturating_sub(self.next)
    }

    /// Returns whether the ring has a free slot for another frame.
    pub(crate) fn has_room(&self) -> bool {
        self.ring.len() < RING_MAX
    }

    /// Returns whether more frames are unsettled than credit alone explains.
    pub(crate) fn is_crowded(&self) -> bool {
        self.ring.len() > RING_MAX / 2
    }

    /// Returns how many further parts a frame may have now.
    pub(crate) fn further_max(&self) -> usize {
        FURTHER_MAX.saturating_sub(self.held.parts.len()).min(PARTS_MAX - 1)
    }

    /// Records the limit of the peer's credit. Returns whether the limit rose: a lower limit is an old one.
    pub(crate) fn set_limit(&mut self, limit: u64) -> bool {
        let raised = limit > self.limit;
        self.limit = self.limit.max(limit);
        raised
    }

    /// Records a frame that was sent with the number [`Self::next`], and the parts behind its first one.
    pub(crate) fn push(&mut self, sent: Sent, further: &[Chunk]) {
        self.under_way += u64::from(sent.state == SentState::UnderWay);
        if self.ring.len() + 1 >= RING_MAX {
            // Where no acknowledgements arrive, settled frames are otherwise not removed.
            self.forget(Instant::ORIGIN);
        }
        self.ring.push_back(self.held.push(sent, further));
        self.next += 1;
        if self.next == self.leave_out {
            let gap = Sent::new(sent.at, 0, SentState::Settled, FrameContent::Nothing);
            self.left_out = self.next;
            self.leave_out = self.next + SKIP_EVERY + self.dice.below(SKIP_EVERY);
            self.ring.push_back(gap);
            self.next += 1;
        }
    }

    /// Settles the frames that an acknowledgement names. Calls `hit` with each frame that was under way or
    /// given up. Returns whether the largest acknowledged number rose.
    pub(crate) fn acknowledge(
        &mut self,
        ack: &Ack<'_>,
        mut hit: impl FnMut(u64, &Sent, Further<'_>),
    ) -> Result<bool, BadAck> {
        let largest = ack.largest & PN_COUNT_MASK;
        if largest >= self.next
            || (self.left_out > 0 && runs(ack).any(|(from, to)| from <= self.left_out && self.left_out < to))
        {
            return Err(BadAck::NeverSent);
        }
        for (from, to) in runs(ack) {
            if to <= self.base {
                break;
            }
            let (from, to) = (self.index(from.max(self.base)), self.index(to));
            for (pn, sent) in (self.base + from as u64..).zip(self.ring.range_mut(from..to)) {
                match sent.state {
                    SentState::Settled => continue,
                    SentState::UnderWay => self.under_way -= 1,
                    SentState::Lost => {}
                }
                hit(pn, sent, self.held.of(sent));
                sent.state = SentState::Settled;
            }
        }
        let rose = largest > self.largest_acked;
        self.largest_acked = self.largest_acked.max(largest);
        Ok(rose)
    }

    /// Gives up the frames that count as lost by now, and those sent before `overtaken`. Calls `lost` with
    /// each. Returns when the next frame is due.
    pub(crate) fn detect(
        &mut self,
        now: Instant,
        order: &Reordering,
        round_trip: Duration,
        overtaken: Instant,
        mut lost: impl FnMut(u64, &Sent, Further<'_>),
    ) -> Option<Instant> {
        let loss_delay = order.loss_delay(round_trip);
        let mut due: Option<Instant> = None;
        self.rise();
        let from = self.index(self.low);
        for (pn, sent) in (self.low..).zip(self.ring.range_mut(from..)) {
            if pn >= self.largest_acked && sent.at >= overtaken {
                break;
            }
            if sent.state != SentState::UnderWay {
                continue;
            }
            let until = sent.at.after(loss_delay);
            if sent.at < overtaken
                || (order.counts_frames() && self.largest_acked >= pn + PACKET_THRESHOLD)
                || until <= now
            {
                sent.state = SentState::Lost;
                self.under_way -= 1;
                lost(pn, sent, self.held.of(sent));
            } else {
                due = Some(due.map_or(until, |due| due.min(until)));
            }
        }
        due
    }

    /// Gives up every frame under way from the number `from` on.
    pub(crate) fn give_up(&mut self, from: u64, mut lost: impl FnMut(&Sent, Further<'_>)) {
        let from = from.max(self.base);
        let start = self.index(from);
        for sent in self.ring.range_mut(start..) {
            if sent.state == SentState::UnderWay {
                sent.state = SentState::Lost;
                self.under_way -= 1;
                lost(sent, self.held.of(sent));
            }
        }
    }

    /// Calls `repeat` with the content of up to `most` frames under way that were not repeated, the oldest
    /// first, and marks them as repeated. Returns how many there were.
    pub(crate) fn repeat(&mut self, most: usize, mut repeat: impl FnMut(FrameContent, Further<'_>)) -> usize {
        self.rise();
        let from = self.index(self.low);
        let is_due = |sent: &&mut Sent| {
            sent.state == SentState::UnderWay && !sent.repeated && sent.carried != FrameContent::Nothing
        };
        let mut count = 0;
        for sent in self.ring.range_mut(from..).filter(is_due).take(most) {
            sent.repeated = true;
            repeat(sent.carried, self.held.of(sent));
            count += 1;
        }
        count
    }

    /// Forgets settled frames, and those given up that were sent before `before`.
    pub(crate) fn forget(&mut self, before: Instant) {
        while let Some(front) = self.ring.front() {
            match front.state {
                SentState::Settled => {}
                SentState::Lost if front.at < before || self.ring.len() > RING_MAX / 2 => {}
                SentState::Lost | SentState::UnderWay => break,
            }
            self.held.pop(front);
            self.ring.pop_front();
            self.base += 1;
        }
        self.low = self.low.max(self.base);
    }

    /// Gives up every frame under way, and forgets all sent frames.
    pub(crate) fn abandon(&mut self, lost: impl FnMut(&Sent, Further<'_>)) {
        self.give_up(self.base, lost);
        self.ring.clear();
        self.held = Hold::default();
        (self.base, self.low) = (self.next, self.next);
    }

    fn rise(&mut self) {
        let start = self.index(self.low);
        let settled = self.ring.range(start..).take_while(|sent| sent.state != SentState::UnderWay).count();
        self.low += settled as u64;
    }

    /// Returns the index of a packet number in the ring, at most the ring's end.
    fn index(&self, pn: u64) -> usize {
        usize::try_from(pn.saturating_sub(self.base))
            .map_or(self.ring.len(), |index| index.min(self.ring.len()))
    }
}

/// Returns the ranges of packet numbers that an acknowledgement names, descending and half-open.
fn runs(ack: &Ack<'_>) -> impl Iterator<Item = (u64, u64)> {
    let to = (ack.largest & PN_COUNT_MASK) + 1;
    let from = to.saturating_sub(u64::from(ack.first));
    let further = ack.ranges.scan(from, |below, range| {
        let to = below.saturating_sub(u64::from(range.gap));
        *below = to.saturating_sub(u64::from(range.len));
        Some((*below, to))
    });
    core::iter::once((from, to)).chain(further)
}

/// How many frames that elicit an acknowledgement are received before one is sent, at least and at most.
const EVERY: (u32, u32) = (2, 16);

/// From so many gaps on, within some two windows, acknowledgements in frames of their own are sent twice. On
/// such a path the only answer to a whole batch may be lost, and the sender would wait for its probe timeout.
const GAPS_MANY: usize = 8;

/// How many ranges of packet numbers are remembered: twice as many as one acknowledgement names.
const RUNS_MAX: usize = 2 * RANGES_MAX;

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct Incoming {
    replay: ReplayGuard,
    came: Ranges,
    largest: u64,
    largest_at: Instant,
    pub(crate) grant: Grant,
    unacked: u32,
    every: u32,
    due: Option<Instant>,
    ack_now: bool,
    /// Whether the last acknowledgement is to be sent once more.
    ack_twice: bool,
}

impl Incoming {
    /// Begins behind the number `last`, with credit for `initial` frames.
    pub(crate) fn new(now: Instant, last: u64, initial: u64, share: u64) -> Self {
        Self {
            replay: ReplayGuard::behind(last),
            came: Ranges::new(),
            largest: last,
            largest_at: now,
            grant: Grant::new(now, last, initial, share),
            unacked: 0,
            every: EVERY.0,
            due: None,
            ack_now: false,
            ack_twice: false,
        }
    }

    /// Returns the largest packet number received.
    pub(crate) const fn largest(&self) -> u64 {
        self.largest
    }

    /// Returns whether a packet number was not received before. Callers ask before they verify the frame,
    /// which costs more.
    pub(crate) fn is_new(&self, pn: u64) -> bool {
        self.replay.is_new(pn)
    }

    /// Records an authentic frame that our port received at `came` and that is processed at `now`.
    pub(crate) fn record_received(
        &mut self,
        (now, came): (Instant, Instant),
        pn: u64,
        elicits: bool,
        ack_delay: Duration,
        round_trip: Duration,
    ) {
        self.replay.take(pn);
        let in_order = pn == self.largest + 1;
        self.came.insert(pn, pn + 1);
        if self.came.len() > RUNS_MAX {
            self.came.keep_highest(RUNS_MAX);
        }
        if pn > self.largest {
            (self.largest, self.largest_at) = (pn, came);
            self.grant.received(now, pn, round_trip);
        }
        if elicits {
            self.unacked += 1;
            self.due = self.due.or(Some(now.after(ack_delay)));
            if !in_order {
                self.every = EVERY.0;
                self.ack_now = true;
            }
            self.ack_now |= self.unacked >= self.every;
        }
    }

    /// Makes an acknowledgement due at once.
    pub(crate) const fn hurry(&mut self) {
        self.ack_now = true;
    }

    /// Returns when an acknowledgement is due, if it is not due now.
    pub(crate) const fn due(&self) -> Option<Instant> {
        if self.ack_now { None } else { self.due }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.ack_now |= self.due.is_some_and(|due| due <= now);
    }

    /// Returns whether an acknowledgement should be sent although no other frame is.
    pub(crate) const fn must_send_ack(&self) -> bool {
        self.ack_now || self.ack_twice || self.grant.should_announce(self.largest)
    }

    /// Returns whether an acknowledgement should be added to a frame that is sent anyway.
    pub(crate) const fn has_ack_to_send(&self) -> bool {
        self.unacked > 0 || self.must_send_ack()
    }

    /// Returns the most bytes that [`Self::write_ack`] will write.
    pub(crate) fn tell_len(&self) -> usize {
        ACK_LEN + RANGE_LEN * self.came.len().saturating_sub(1).min(RANGES_MAX)
    }

    /// Records that the acknowledgement just written is sent in a frame of its own.
    pub(crate) const fn record_bare_ack(&mut self) {
        self.ack_twice = !self.ack_twice && self.came.len() > GAPS_MANY;
    }

    /// Writes the acknowledgement, which is sent now.
    pub(crate) fn write_ack(
        &mut self,
        now: Instant,
        path: u8,
        sealed: bool,
        xid_limit: u32,
        overruns: u32,
        out: &mut Vec<u8>,
    ) {
        let id = u64::from(path) << PATH_SHIFT;
        let horizon = self.largest.saturating_sub(2 * self.grant.window() + 64);
        if self.came.len() > 1 {
            self.came.remove(0, horizon);
        }
        let (runs, last) = match self.came.runs() {
            [rest @ .., last] => (rest, *last),
            [] => (&[][..], (1, 1)),
        };
        let waited = now.since(self.largest_at).as_micros();
        let ack = Ack {
            sealed,
            largest: id | (last.1 - 1),
            delay_us: u32::try_from(waited).unwrap_or(u32::MAX),
            first: u32::try_from(last.1 - last.0).unwrap_or(u32::MAX),
            pn_limit: id | self.grant.tell(),
            xid_limit,
            overruns,
            ranges: Default::default(),
        };
        let mut above = last.0;
        let ranges = runs.iter().rev().map(|(from, to)| {
            let range = Range {
                gap: u32::try_from(above - to).unwrap_or(u32::MAX),
                len: u32::try_from(to - from).unwrap_or(u32::MAX),
            };
            above = *from;
            range
        });
        ack.encode(ranges, out);
        self.unacked = 0;
        self.due = None;
        self.ack_now = false;
        self.every = (self.every * 2).min(EVERY.1);
    }
}

#[cfg(test)]
mod tests;
