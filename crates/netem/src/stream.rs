//! Emulates a connection: two byte streams, one in each direction, with their faults.
//!
//! Bytes arrive in the order in which they were sent, as TCP guarantees. A [`Framing`] finds the units in the
//! streams. The faults of each unit are drawn once, in a fixed order, from the seed of its direction. So the
//! faults of the n-th unit do not depend on the sizes of the pieces in which the bytes were sent.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use base::rng::Rng;
use base::time::{Duration, Instant};

use crate::probability::{DurationRange, Probability, flip_bits, index, time_of};

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamDirection {
    /// From the side that connected to the side that listened.
    Forward,
    /// From the side that listened to the side that connected.
    Backward,
}

impl StreamDirection {
    /// Both directions, in order.
    pub const BOTH: [Self; 2] = [Self::Forward, Self::Backward];

    /// Returns the other direction.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Forward => Self::Backward,
            Self::Backward => Self::Forward,
        }
    }
}

/// Finds units in a stream. It sees every unit of both directions, in the order in which they were sent, and
/// may learn from them the layout of later ones (whether digests are on).
pub trait Framing {
    /// Parses `bytes`, which begin where a unit of `way` begins. Returns the layout of the unit, or `None`
    /// until more of it has arrived. If the unit is not complete yet, the link calls this again for the same
    /// unit.
    fn pdu_layout(&mut self, way: StreamDirection, bytes: &[u8]) -> Option<PduLayout>;

    /// Records a whole unit that was sent, undamaged.
    fn passed(&mut self, way: StreamDirection, unit: &[u8]);
}

/// The positions of the parts of a unit. A range is empty if the unit does not have that part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PduLayout {
    /// Length of the unit; at least 1.
    pub len: usize,
    /// Its header, with additional header segments.
    pub header: Range<usize>,
    /// The digest of the header.
    pub header_digest: Range<usize>,
    /// Its data, padding included.
    pub data: Range<usize>,
    /// The digest of the data.
    pub data_digest: Range<usize>,
    /// Whether the unit belongs to the login, which a plan may spare.
    pub is_login: bool,
    /// Whether it never arrives twice, because its receiver could not notice: an immediate command has no
    /// number.
    pub once: bool,
}

/// A framing that takes every piece that is sent for a unit of data without digests, for protocols without a
/// framing in this crate.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFraming;

impl Framing for NoFraming {
    fn pdu_layout(&mut self, _way: StreamDirection, bytes: &[u8]) -> Option<PduLayout> {
        let len = bytes.len();
        (len > 0).then(|| PduLayout { len, data: 0..len, ..PduLayout::default() })
    }

    fn passed(&mut self, _way: StreamDirection, _unit: &[u8]) {}
}

/// The faults of one direction of a connection, and how often each happens. Each probability applies to one
/// unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// The time that a unit needs to arrive.
    pub delay: DurationRange,
    /// The rate in bytes per second; zero for no limit.
    pub bytes_per_s: u64,
    /// The maximum length of the pieces in which bytes arrive; zero for whole units.
    pub piece_len_max: usize,
    /// The direction stalls: from some byte of the unit on nothing arrives for a while.
    pub stall: Probability,
    /// How long a stall lasts.
    pub stall_for: DurationRange,
    /// Bits of the header flip.
    pub corrupt_header: Probability,
    /// Bits of the header's digest flip.
    pub corrupt_header_digest: Probability,
    /// Bits of the data flip.
    pub corrupt_data: Probability,
    /// Bits of the data's digest flip.
    pub corrupt_data_digest: Probability,
    /// The most bits that flip at a time.
    pub bits_max: u32,
    /// Whether only parts that a digest protects are corrupted. An undetected corruption without a digest is
    /// no bug of either end.
    pub protected_only: bool,
    /// The unit is lost; those after it arrive.
    pub drop: Probability,
    /// The unit arrives twice.
    pub duplicate: Probability,
    /// The connection breaks, perhaps within the unit; both ends are notified.
    pub cut: Probability,
    /// From this unit on nothing arrives, and neither end is notified: a cable pulled behind a switch, or a
    /// firewall that dropped its state.
    pub silence: Probability,
    /// Whether the login has no faults except delay.
    pub spare_login: bool,
    /// After this many faults the direction has no more of them, so that a run can end.
    pub faults_max: u32,
}

impl StreamPlan {
    /// A direction in which everything arrives at once and undamaged.
    pub const CLEAN: Self = Self {
        delay: DurationRange::ZERO,
        bytes_per_s: 0,
        piece_len_max: 0,
        stall: Probability::NEVER,
        stall_for: DurationRange::ZERO,
        corrupt_header: Probability::NEVER,
        corrupt_header_digest: Probability::NEVER,
        corrupt_data: Probability::NEVER,
        corrupt_data_digest: Probability::NEVER,
        bits_max: 3,
        protected_only: true,
        drop: Probability::NEVER,
        duplicate: Probability::NEVER,
        cut: Probability::NEVER,
        silence: Probability::NEVER,
        spare_login: true,
        faults_max: u32::MAX,
    };
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Bits of a header flipped.
    Header,
    /// Bits of a header digest flipped.
    HeaderDigest,
    /// Bits of data flipped.
    Data,
    /// Bits of a data digest flipped.
    DataDigest,
    /// A unit did not arrive.
    Drop,
    /// A unit arrived twice.
    Duplicate,
    /// Nothing arrived for a while.
    Stall,
    /// The connection broke.
    Cut,
    /// Nothing arrived any more.
    Silence,
}

impl FaultKind {
    /// Every kind, in the order in which random numbers are drawn for them.
    pub const ALL: [Self; 9] = [
        Self::Silence,
        Self::Cut,
        Self::Stall,
        Self::Drop,
        Self::Duplicate,
        Self::Header,
        Self::HeaderDigest,
        Self::Data,
        Self::DataDigest,
    ];

    fn probability(self, plan: &StreamPlan) -> Probability {
        match self {
            Self::Header => plan.corrupt_header,
            Self::HeaderDigest => plan.corrupt_header_digest,
            Self::Data => plan.corrupt_data,
            Self::DataDigest => plan.corrupt_data_digest,
            Self::Drop => plan.drop,
            Self::Duplicate => plan.duplicate,
            Self::Stall => plan.stall,
            Self::Cut => plan.cut,
            Self::Silence => plan.silence,
        }
    }
}

/// A fault that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    /// The time when its unit was sent.
    pub at: Instant,
    /// The direction.
    pub way: StreamDirection,
    /// The unit, counted from zero in its direction.
    pub unit: u64,
    /// The first byte of the unit, which in most protocols is the type of the unit.
    pub first_byte: u8,
    /// Bytes 16 to 19 of the unit, zero if it is shorter: in iSCSI the Initiator Task Tag.
    pub task_tag: u32,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// An event at the receiving end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Bytes.
    Bytes(Vec<u8>),
    /// The sender closed its direction after everything that it sent before.
    Closed,
    /// The connection broke. Returned once in each direction, as the last event.
    Cut,
}

/// A connection that executes a plan in each direction.
#[derive(Debug)]
pub struct StreamLink<F> {
    framing: F,
    forward: Lane,
    backward: Lane,
    log: Vec<InjectedFault>,
}

/// The most faults whose details a link records; it counts all of them.
pub const LOG_LEN_MAX: usize = 4096;

/// One direction.
#[derive(Debug)]
struct Lane {
    plan: StreamPlan,
    rng: Rng,
    /// Bytes that were sent and are not a whole unit yet.
    partial: Vec<u8>,
    queue: VecDeque<(Instant, Arrived)>,
    queued_bytes: usize,
    /// The arrival of the last byte sent so far, followed by the time from which the wire is free.
    last_arrival: Instant,
    wire_free: Instant,
    units: u64,
    faults: u32,
    counts: [u64; FaultKind::ALL.len()],
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Bytes that are sent are lost.
    Silent,
    /// No more bytes are accepted.
    Over,
}

impl<F: Framing> StreamLink<F> {
    /// Creates a connection with a plan for each direction. The same seed causes the same faults for the same
    /// units.
    pub fn new(framing: F, forward: StreamPlan, backward: StreamPlan, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let (there, back) = (rng.next_u64(), rng.next_u64());
        Self {
            framing,
            forward: Lane::new(forward, there),
            backward: Lane::new(backward, back),
            log: Vec::new(),
        }
    }

    /// Sends bytes in one direction.
    pub fn push(&mut self, now: Instant, way: StreamDirection, bytes: &[u8]) {
        let lane = lane_of(&mut self.forward, &mut self.backward, way);
        if lane.state == State::Over {
            return;
        }
        let mut partial = core::mem::take(&mut lane.partial);
        partial.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(rest) = partial.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(shape) = self.framing.pdu_layout(way, rest) else { break };
            let Some(unit) = rest.get(..shape.len.max(1)) else { break };
            self.framing.passed(way, unit);
            at += unit.len();
            let lane = lane_of(&mut self.forward, &mut self.backward, way);
            let cut = lane.pass(now, way, unit, &shape, &mut self.log);
            if cut {
                self.end(now, Some(way));
                return;
            }
        }
        partial.drain(..at);
        lane_of(&mut self.forward, &mut self.backward, way).partial = partial;
    }

    /// Closes one direction behind the bytes that were sent. An incomplete unit is delivered as it is.
    pub fn push_end(&mut self, now: Instant, way: StreamDirection) {
        let lane = lane_of(&mut self.forward, &mut self.backward, way);
        if lane.state == State::Open {
            let rest = core::mem::take(&mut lane.partial);
            let mut rng = Rng::from_seed(lane.rng.next_u64());
            lane.deliver(&mut rng, now, Duration::ZERO, &rest);
            let at = lane.last_arrival;
            lane.queue.push_back((at, Arrived::Closed));
        }
        lane.state = State::Over;
    }

    /// Resets the connection at the end that sends in direction `way`. That end receives nothing any more.
    /// The far end receives [`Arrived::Cut`] last, unless the direction has fallen silent.
    pub fn push_reset(&mut self, now: Instant, way: StreamDirection) {
        let lane = lane_of(&mut self.forward, &mut self.backward, way);
        if lane.state == State::Open {
            let at = lane.last_arrival.max(now);
            lane.queue.push_back((at, Arrived::Cut));
        }
        lane.state = State::Over;
        lane.partial.clear();
        let back = lane_of(&mut self.forward, &mut self.backward, way.opposite());
        back.queue.clear();
        back.queued_bytes = 0;
        back.partial.clear();
        back.state = State::Over;
    }

    /// Breaks the connection. Both ends are notified at once, and bytes under way are lost.
    pub fn cut(&mut self, now: Instant) {
        self.end(now, None);
    }

    /// Breaks the connection. Bytes under way in the direction `kept` still arrive: the end that receives
    /// them is notified of the break last, and perhaps in the middle of a unit.
    fn end(&mut self, now: Instant, kept: Option<StreamDirection>) {
        for way in StreamDirection::BOTH {
            let lane = lane_of(&mut self.forward, &mut self.backward, way);
            let until = if kept == Some(way) { lane.last_arrival.max(now) } else { now };
            while lane.queue.back().is_some_and(|(at, _)| *at > until) {
                if let Some((_, Arrived::Bytes(bytes))) = lane.queue.pop_back() {
                    lane.queued_bytes -= bytes.len();
                }
            }
            lane.queue.push_back((until, Arrived::Cut));
            lane.partial.clear();
            lane.state = State::Over;
        }
    }

    /// Returns the next event that has arrived in one direction by `now`.
    pub fn poll(&mut self, now: Instant, way: StreamDirection) -> Option<Arrived> {
        let lane = lane_of(&mut self.forward, &mut self.backward, way);
        if lane.queue.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        let (_, arrived) = lane.queue.pop_front()?;
        if let Arrived::Bytes(bytes) = &arrived {
            lane.queued_bytes -= bytes.len();
        }
        Some(arrived)
    }

    /// Returns when the next event arrives in one direction.
    pub fn poll_timeout(&self, way: StreamDirection) -> Option<Instant> {
        self.lane(way).queue.front().map(|(at, _)| *at)
    }

    /// Returns how many bytes of one direction are under way. A caller that emulates a socket stops sending
    /// at the size of the socket's buffers. An incomplete unit does not count, since it has to be complete
    /// before it can be sent.
    pub const fn in_flight(&self, way: StreamDirection) -> usize {
        self.lane(way).queued_bytes
    }

    /// Stops random faults from now on. A direction that has fallen silent stays silent: only its ends can
    /// detect that.
    pub fn heal(&mut self) {
        self.forward.plan.faults_max = 0;
        self.backward.plan.faults_max = 0;
    }

    /// Replaces the plan of one direction.
    pub fn replan(&mut self, way: StreamDirection, plan: StreamPlan) {
        lane_of(&mut self.forward, &mut self.backward, way).plan = plan;
    }

    /// Returns how often a kind of fault happened in both directions.
    pub fn count(&self, kind: FaultKind) -> u64 {
        let place = FaultKind::ALL.iter().position(|other| *other == kind).unwrap_or(0);
        [&self.forward, &self.backward].iter().filter_map(|lane| lane.counts.get(place)).sum()
    }

    /// Returns the faults that happened since the last call, in order: the first [`LOG_LEN_MAX`] of them.
    pub fn take_log(&mut self) -> Vec<InjectedFault> {
        core::mem::take(&mut self.log)
    }

    /// Returns the framing, with the state that it has learned.
    pub const fn framing(&self) -> &F {
        &self.framing
    }

    const fn lane(&self, way: StreamDirection) -> &Lane {
        match way {
            StreamDirection::Forward => &self.forward,
            StreamDirection::Backward => &self.backward,
        }
    }
}

const fn lane_of<'a>(forward: &'a mut Lane, backward: &'a mut Lane, way: StreamDirection) -> &'a mut Lane {
    match way {
        StreamDirection::Forward => forward,
        StreamDirection::Backward => backward,
    }
}

impl Lane {
    fn new(plan: StreamPlan, seed: u64) -> Self {
        Self {
            plan,
            rng: Rng::from_seed(seed),
            partial: Vec::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            last_arrival: Instant::ORIGIN,
            wire_free: Instant::ORIGIN,
            units: 0,
            faults: 0,
            counts: [0; FaultKind::ALL.len()],
            state: State::Open,
        }
    }

    /// Draws the faults of one unit and sends the rest of it. Returns whether the connection broke.
    fn pass(
        &mut self,
        now: Instant,
        way: StreamDirection,
        unit: &[u8],
        shape: &PduLayout,
        log: &mut Vec<InjectedFault>,
    ) -> bool {
        let number = self.units;
        self.units += 1;
        // Every unit has its own generator, so that the count of random numbers that one fault uses changes
        // no later fault.
        let mut rng = Rng::from_seed(self.rng.next_u64());
        if self.state == State::Silent {
            return false;
        }
        let mut bytes = unit.to_vec();
        let (mut copies, mut pause, mut cut) = (1, None, false);
        for (place, kind) in FaultKind::ALL.into_iter().enumerate() {
            let spared = self.faults >= self.plan.faults_max || (self.plan.spare_login && shape.is_login);
            // The random number is drawn in any case, so that all units draw the same sequence.
            if !kind.probability(&self.plan).occurs(&mut rng) || spared || !self.concerns(kind, shape) {
                continue;
            }
            match kind {
                FaultKind::Silence => self.state = State::Silent,
                FaultKind::Cut => cut = true,
                FaultKind::Stall => {
                    let span = self.plan.stall_for.pick(&mut rng);
                    pause = Some((span, index(&mut rng, unit.len().saturating_add(1))));
                }
                FaultKind::Drop => copies = 0,
                FaultKind::Duplicate => copies = 2,
                FaultKind::Header => self.corrupt(&mut rng, &mut bytes, &shape.header),
                FaultKind::HeaderDigest => self.corrupt(&mut rng, &mut bytes, &shape.header_digest),
                FaultKind::Data => self.corrupt(&mut rng, &mut bytes, &shape.data),
                FaultKind::DataDigest => self.corrupt(&mut rng, &mut bytes, &shape.data_digest),
            }
            self.faults += 1;
            if let Some(count) = self.counts.get_mut(place) {
                *count += 1;
            }
            if log.len() < LOG_LEN_MAX {
                let first_byte = unit.first().copied().unwrap_or(0);
                let task_tag = unit.get(16..).and_then(<[u8]>::first_chunk).copied();
                let task_tag = u32::from_be_bytes(task_tag.unwrap_or_default());
                log.push(InjectedFault { at: now, way, unit: number, first_byte, task_tag, kind });
            }
            // Silence, a cut and a lost unit hide all other faults.
            if self.state == State::Silent {
                return false;
            }
            if cut || copies == 0 {
                break;
            }
        }
        if cut {
            bytes.truncate(index(&mut rng, bytes.len().saturating_add(1)));
            copies = 1;
        }
        let mut delay = self.plan.delay.pick(&mut rng);
        for _ in 0..copies {
            let mut rest = bytes.as_slice();
            if let Some((span, at)) = pause.take()
                && let Some((before, behind)) = bytes.split_at_checked(at)
            {
                self.deliver(&mut rng, now, delay, before);
                delay = delay.saturating_add(span);
                rest = behind;
            }
            self.deliver(&mut rng, now, delay, rest);
        }
        cut
    }

    /// Returns whether a unit of this layout has the part that a kind of fault damages, and the plan allows
    /// the fault.
    fn concerns(&self, kind: FaultKind, shape: &PduLayout) -> bool {
        let protected = |digest: &Range<usize>| !self.plan.protected_only || !digest.is_empty();
        match kind {
            FaultKind::Header => !shape.header.is_empty() && protected(&shape.header_digest),
            FaultKind::HeaderDigest => !shape.header_digest.is_empty(),
            FaultKind::Data => !shape.data.is_empty() && protected(&shape.data_digest),
            FaultKind::DataDigest => !shape.data_digest.is_empty(),
            FaultKind::Drop => shape.len > 0,
            FaultKind::Duplicate => shape.len > 0 && !shape.once,
            FaultKind::Stall | FaultKind::Cut | FaultKind::Silence => true,
        }
    }

    fn corrupt(&self, rng: &mut Rng, bytes: &mut [u8], range: &Range<usize>) {
        if let Some(part) = bytes.get_mut(range.clone()) {
            flip_bits(rng, part, self.plan.bits_max);
        }
    }

    /// Sends bytes: they arrive behind all earlier ones.
    fn deliver(&mut self, rng: &mut Rng, now: Instant, delay: Duration, bytes: &[u8]) {
        let piece_len = if self.plan.piece_len_max == 0 { bytes.len() } else { self.plan.piece_len_max };
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = if self.plan.piece_len_max == 0 { piece_len } else { 1 + index(rng, piece_len) };
            let (piece, after) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            rest = after;
            self.wire_free = self.wire_free.max(now).after(time_of(piece.len(), self.plan.bytes_per_s));
            let arrival = self.wire_free.after(delay).max(self.last_arrival);
            self.last_arrival = arrival;
            self.queued_bytes += piece.len();
            self.queue.push_back((arrival, Arrived::Bytes(piece.to_vec())));
        }
        self.last_arrival = self.last_arrival.max(now);
    }
}

impl core::fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let way = match self.way {
            StreamDirection::Forward => "forward",
            StreamDirection::Backward => "backward",
        };
        let Self { unit, first_byte, kind, .. } = self;
        write!(f, "{kind:?} on {way} unit {unit} ({first_byte:#04x})")
    }
}

#[cfg(test)]
mod tests;
