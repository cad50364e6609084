//! One path of a session: one of our Ethernet ports and a MAC address of the peer that it reaches.
//!
//! A path has its own packet numbers, round-trip times, congestion window, credit and MTU. It knows which
//! frames are under way, and reports to the send queue what arrived and what was lost. It neither builds nor
//! decrypts frames.
//!
//! Silence alone never ends a path before `lost_after`. A silent path is probed at most 64 ms apart, with the
//! oldest data that was not acknowledged. So traffic resumes within 64 ms after the link is back.

pub(crate) mod congestion;
pub(crate) mod credit;
mod handover;
pub(crate) mod loss_detection;
pub(crate) mod pmtu;
mod pn_horizon;
pub(crate) mod pn_space;
pub(crate) mod ranges;
pub(crate) mod replay;
mod retransmission;
pub(crate) mod rtt;
mod stats;

use alloc::vec::Vec;

use base::ether::{EtherPort, Mac, PortState};
use base::int_cast::to_usize;
use base::time::{Duration, Instant, soonest};

use self::congestion::Congestion;
pub use self::handover::{LeftPathState, PathState};
use self::loss_detection::Reordering;
use self::pmtu::Pmtu;
pub(crate) use self::pn_horizon::{FAR_MAX, PnHorizon};
pub use self::pn_space::handover::SpaceState;
use self::pn_space::{BadAck, FrameContent, Incoming, Outgoing, Sent, SentState};
use self::retransmission::{LossHandler, again};
use self::rtt::{Rtt, Trip};
pub use self::stats::{PathStats, PathTotals};
use crate::connection::{ConnectionConfig, PathMtuStatus};
use crate::pdu::ack::{Ack, PN_COUNT_MASK};
use crate::pdu::parameters::Repair;
use crate::send_queue::{Chunk, DeliveredMessage, HEAD_LEN_MAX, SendQueue};

/// The two ends of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAddress {
    /// Our port.
    pub port: EtherPort,
    /// The peer's address.
    pub mac: Mac,
}

/// The longest time between two probes of a silent path.
pub(crate) const PROBE_INTERVAL_MAX: Duration = Duration::from_millis(64);
/// The longest time between two probes of a path that was given up while the session goes on over others.
const PROBE_INTERVAL_DOWN: Duration = Duration::from_secs(1);
/// How many frames one probe timeout sends.
pub(crate) const PROBES: u8 = 2;
/// From this many probe timeouts in a row on, probes are short, and other paths take over.
pub(crate) const SUSPECT_AFTER: u32 = 2;
/// The least MTU of a usable path, in bytes: a shorter frame cannot carry a block and an acknowledgement.
pub(crate) const MTU_MIN: usize = HEAD_LEN_MAX + 64;
/// How long after the last data was sent a path counts as in use.
const IN_USE: Duration = Duration::from_secs(1);

/// The state of a packet number space in both directions.
#[derive(Debug)]
pub(crate) struct PnSpaceState {
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
}

/// A path.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) id: u8,
    pub(crate) address: PathAddress,
    /// Whether our port is up.
    pub(crate) port_up: bool,
    /// Our challenge, until the peer echoes it; 0 once the path may be used.
    pub(crate) challenge: u64,
    /// The peer's challenge, which we must echo.
    pub(crate) echo: u64,
    pub(crate) step_wanted: bool,
    pub(crate) receives_wanted: bool,
    pub(crate) ping_wanted: bool,
    /// Paths that we left and whose leaving is to be announced to the peer.
    pub(crate) leaves: Vec<u8>,
    /// How many frames may be sent as probes, whatever congestion window and credit allow.
    pub(crate) probes: u8,
    pub(crate) spaces: [PnSpaceState; 2],
    pub(crate) rtt: Rtt,
    order: Reordering,
    pub(crate) congestion: Congestion,
    pub(crate) pmtu: Pmtu,
    pub(crate) local_mtu: usize,
    peer_mtu: usize,
    peer_ack_delay: Duration,
    pto_floor: Duration,
    /// The probe timeout: how long an acknowledgement may take, computed from the round trips so far.
    pto: Duration,
    repair: Repair,
    /// When the last frame was received that certainly came from the peer.
    pub(crate) heard: Instant,
    pub(crate) down: bool,
    /// Whether the path was added and no frame was received on it yet.
    pub(crate) unheard: bool,
    pto_at: Option<Instant>,
    pub(crate) backoff: u32,
    loss_at: Option<Instant>,
    data_at: Instant,
    /// When the newest frame that is known to have arrived was sent, in either space.
    arrived_at: Instant,
    /// Frames that our port lost because its receive ring was full, and the count that the peer last reported
    /// of its own port.
    pub(crate) overruns: u32,
    peer_overruns: Option<u32>,
    /// What [`Self::measured`] last reported: what the path carries, and what our port takes, in bytes.
    told_width: Option<(usize, usize)>,
    /// Whether the owner was informed that there is something to send.
    pub(crate) announced: bool,
    pub(crate) stats: PathStats,
}

/// The result of an acknowledgement or a timeout, which the owner must handle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathUpdate {
    /// Whether the longest frame changed.
    pub(crate) mtu_changed: bool,
    /// When the newest protected frame that was acknowledged was sent.
    pub(crate) sealed_at: Option<Instant>,
    /// Whether frames were lost.
    pub(crate) lost: bool,
}

impl Path {
    pub(crate) fn new(
        now: Instant,
        (id, pn_horizon): (u8, &PnHorizon),
        address: PathAddress,
        local: &PortState,
        plan: &ConnectionConfig,
        seed: u64,
    ) -> Self {
        let ([open_out, sealed_out], [open_come, sealed_come]) = (pn_horizon.out, pn_horizon.come);
        let space = |sent: u64, came: u64, sealed: bool| PnSpaceState {
            outgoing: Outgoing::new(sent, u64::from(plan.peer_frames_initial), seed ^ u64::from(sealed)),
            incoming: Incoming::new(now, came, u64::from(plan.frames_initial), plan.ring_quota),
        };
        let mut spaces = [space(open_out, open_come, false), space(sealed_out, sealed_come, true)];
        for (space, limit) in spaces.iter_mut().zip(pn_horizon.granted) {
            space.incoming.grant.resume(limit);
        }
        let peer_mtu = usize::from(plan.peer_frame_max);
        let pmtu = Pmtu::new(local.mtu.min(peer_mtu));
        let frame_len = pmtu.current() as u64;
        let rtt = Rtt::new();
        Self {
            id,
            address,
            port_up: true,
            challenge: 0,
            echo: 0,
            step_wanted: false,
            receives_wanted: false,
            ping_wanted: false,
            leaves: Vec::new(),
            probes: 0,
            spaces,
            rtt,
            order: Reordering::default(),
            congestion: Congestion::new(now, frame_len, plan.delay_allowance),
            pmtu,
            local_mtu: local.mtu,
            peer_mtu,
            peer_ack_delay: plan.peer_ack_delay_max,
            pto_floor: plan.probe_floor,
            pto: rtt.probe_timeout(plan.peer_ack_delay_max, plan.probe_floor),
            repair: plan.repair,
            heard: now,
            down: false,
            unheard: false,
            pto_at: None,
            backoff: 0,
            loss_at: None,
            data_at: now,
            arrived_at: now,
            overruns: 0,
            peer_overruns: None,
            told_width: None,
            announced: false,
            stats: PathStats::default(),
        }
    }

    /// Returns whether data may be sent on the path.
    pub(crate) fn is_usable(&self) -> bool {
        self.port_up && self.challenge == 0 && !self.down && self.pmtu.current() >= MTU_MIN
    }

    /// Returns whether the path is usable and the peer answers on it.
    pub(crate) fn is_good(&self) -> bool {
        self.is_usable() && self.backoff < SUSPECT_AFTER
    }

    /// Returns whether congestion window and credit allow another frame of data in a packet number space.
    pub(crate) fn has_room(&self, space_index: usize) -> bool {
        let credit = self
            .spaces
            .get(space_index)
            .is_some_and(|space| space.outgoing.credit() > 0 && space.outgoing.has_room());
        credit && self.congestion.room() > 0
    }

    /// Returns an estimate of how long a frame sent now would take, for comparison with other paths.
    pub(crate) fn score(&self) -> u64 {
        let queue =
            self.congestion.in_flight().saturating_mul(64).checked_div(self.congestion.window()).unwrap_or(0);
        let micros = u64::try_from(self.rtt.smoothed().as_micros()).unwrap_or(u64::MAX);
        micros.max(1).saturating_mul(64 + queue)
    }

    /// Records a frame that was sent, with the parts behind its first one.
    pub(crate) fn record_sent(
        &mut self,
        now: Instant,
        space_index: usize,
        len: usize,
        elicits: bool,
        carried: FrameContent,
        further: &[Chunk],
    ) {
        let state = if elicits { SentState::UnderWay } else { SentState::Settled };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.stats.frames_sent += 1;
        self.stats.bytes_sent += u64::from(len);
        if let Some(space) = self.spaces.get_mut(space_index) {
            space.outgoing.push(Sent::new(now, len, state, carried), further);
        }
        if elicits {
            self.congestion.sent(now, u64::from(len));
            self.arm(now);
            if matches!(carried, FrameContent::Chunk(_)) {
                self.data_at = now;
            }
        }
    }

    /// Records an authentic frame that our port received at `came` and that is processed at `now`.
    pub(crate) fn record_received(
        &mut self,
        (now, came): (Instant, Instant),
        space_index: usize,
        pn: u64,
        elicits: bool,
        ack_delay: Duration,
    ) {
        self.stats.frames_received += 1;
        if self.backoff > SUSPECT_AFTER {
            // The peer answers again: do not wait for the end of a long probe interval.
            let soon = now.after(self.probe_timeout());
            self.pto_at = self.pto_at.map(|at| at.min(soon));
        }
        let round_trip = self.rtt.smoothed();
        if let Some(space) = self.spaces.get_mut(space_index) {
            space.incoming.record_received((now, came), pn, elicits, ack_delay, round_trip);
        }
    }

    /// Processes an acknowledgement that our port received at `came` and that is processed at `now`. Calls
    /// `done` with each message that the acknowledgement completes.
    pub(crate) fn acknowledge(
        &mut self,
        (now, came): (Instant, Instant),
        ack: &Ack<'_>,
        send_queue: &mut SendQueue,
        done: &mut dyn FnMut(DeliveredMessage),
    ) -> Result<PathUpdate, BadAck> {
        let mut outcome = PathUpdate::default();
        let (mut bytes, mut frames, mut late) = (0, 0, 0_u64);
        let mut newest = (0, Instant::ORIGIN);
        let mut probe = None;
        let Some(space) = self.spaces.get_mut(usize::from(ack.sealed)) else { return Ok(outcome) };
        let pmtu = &mut self.pmtu;
        let rose = space.outgoing.acknowledge(ack, |pn, sent, further| {
            if sent.state == SentState::UnderWay {
                bytes += u64::from(sent.len);
                frames += 1;
            } else {
                late += 1;
            }
            if pn > newest.0 {
                newest = (pn, sent.at);
            }
            match sent.carried {
                FrameContent::Chunk(chunk) => {
                    pmtu.acked(to_usize(sent.len), sent.at);
                    send_queue.arrived(&chunk).into_iter().for_each(&mut *done);
                    further.filter_map(|chunk| send_queue.arrived(chunk)).for_each(&mut *done);
                }
                FrameContent::Mtu(len) => probe = Some(len),
                FrameContent::Nothing
                | FrameContent::PathStep
                | FrameContent::Receives
                | FrameContent::Leave(_) => {}
            }
        })?;
        if space.outgoing.set_limit(ack.pn_limit & PN_COUNT_MASK) {
            self.announced = false;
        }
        if ack.sealed && newest.0 > 0 {
            outcome.sealed_at = Some(newest.1);
        }
        self.arrived_at = self.arrived_at.max(newest.1);
        if frames > 0 {
            let is_sample = rose && newest.0 == ack.largest & PN_COUNT_MASK;
            let held = Duration::from_micros(u64::from(ack.delay_us));
            let trip = Trip { sent: newest.1, came, read: now, held, held_on_purpose: self.peer_ack_delay };
            let on_the_way = is_sample.then(|| self.rtt.sample(&trip));
            if is_sample {
                self.pto = self.rtt.probe_timeout(self.peer_ack_delay, self.pto_floor);
            }
            if self.congestion.acked(now, bytes, frames, newest.1, on_the_way) {
                self.order.round();
            }
            self.backoff = 0;
        }
        if late > 0 && self.repair == Repair::Selective {
            self.stats.frames_late += late;
            self.order.record_spurious_loss(now, self.rtt.smoothed());
        }
        if let Some(len) = probe {
            outcome.mtu_changed |= self.pmtu.probe_acked(now, usize::from(len));
        }
        // The count wraps. A count behind the last one is from a late acknowledgement, which a newer one
        // overtook.
        let more = self.peer_overruns.map_or(0, |before| ack.overruns.wrapping_sub(before));
        if more <= u32::MAX / 2 {
            self.peer_overruns = Some(ack.overruns);
            if more > 0 {
                self.congestion.overrun();
            }
        }
        self.detect(now, send_queue, &mut outcome);
        if frames > 0 {
            self.arm(now);
        }
        Ok(outcome)
    }

    /// Detects and gives up lost frames.
    fn detect(&mut self, now: Instant, send_queue: &mut SendQueue, outcome: &mut PathUpdate) {
        let lost_before = self.stats.frames_lost;
        let (round_trip, span) = (self.rtt.recent(), self.probe_timeout());
        let forgotten = Instant(now.0.saturating_sub(nanos(round_trip).saturating_mul(3)));
        self.loss_at = None;
        if !self.is_waiting() {
            self.spaces.iter_mut().for_each(|space| space.outgoing.forget(forgotten));
            return;
        }
        let mut lost = LossHandler {
            now,
            span,
            changed: false,
            pmtu: &mut self.pmtu,
            congestion: &mut self.congestion,
            stats: &mut self.stats,
            step_wanted: &mut self.step_wanted,
            receives_wanted: &mut self.receives_wanted,
            leaves: &mut self.leaves,
            send_queue,
        };
        let overtaken = Instant(self.arrived_at.0.saturating_sub(nanos(span)));
        for space in self.spaces.iter_mut().filter(|space| !space.outgoing.is_empty()) {
            let mut first = None;
            let due = space.outgoing.detect(now, &self.order, round_trip, overtaken, |pn, sent, further| {
                first.get_or_insert(pn);
                lost.lost(sent, further);
            });
            if let (Repair::Window, Some(first)) = (self.repair, first) {
                space.outgoing.give_up(first, |sent, further| lost.again(sent, further));
            }
            self.loss_at = soonest([self.loss_at, due]);
            space.outgoing.forget(forgotten);
        }
        outcome.mtu_changed |= lost.changed;
        outcome.lost |= self.stats.frames_lost > lost_before;
    }

    /// Handles the timeouts that are due. Returns what changed.
    pub(crate) fn handle_timeout(&mut self, now: Instant, send_queue: &mut SendQueue) -> PathUpdate {
        let mut outcome = PathUpdate::default();
        for space in &mut self.spaces {
            space.incoming.handle_timeout(now);
        }
        if self.loss_at.is_some_and(|at| at <= now) {
            self.detect(now, send_queue, &mut outcome);
        }
        if self.pto_at.is_some_and(|at| at <= now) {
            self.probe(now, send_queue);
        }
        // Whether the path is in use is judged at the deadline, not at `now`: otherwise a late call would do
        // nothing, and `poll_timeout` would return the same deadline again.
        if self.mtu_retry_at().is_some() {
            self.pmtu.handle_timeout(now);
        }
        outcome
    }

    /// Returns when [`Self::handle_timeout`] must be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if !self.port_up {
            return None;
        }
        let [open, sealed] = &self.spaces;
        let retry = self.mtu_retry_at();
        soonest([open.incoming.due(), sealed.incoming.due(), self.loss_at, self.pto_at, retry])
    }

    /// Returns when longer frames are to be probed again, if the path is in use at that time.
    fn mtu_retry_at(&self) -> Option<Instant> {
        self.pmtu.retry_at().filter(|at| self.is_in_use(*at))
    }

    /// Handles a probe timeout: after too long a silence, sends the oldest data again before it counts as
    /// lost.
    fn probe(&mut self, now: Instant, send_queue: &mut SendQueue) {
        self.backoff = self.backoff.saturating_add(1);
        self.probes = PROBES;
        self.announced = false;
        self.stats.timeouts += 1;
        let crowded = self.spaces.iter().any(|space| space.outgoing.is_crowded());
        if self.down || self.backoff > SUSPECT_AFTER && (self.challenge != 0 || crowded) {
            // Frames sent into a dead path are not acknowledged, perhaps for days: they must not accumulate.
            self.abandon(now, send_queue);
        }
        let mut left = usize::from(PROBES);
        for space in self.spaces.iter_mut().rev() {
            left -= space.outgoing.repeat(left, |carried, further| match carried {
                FrameContent::Chunk(chunk) => again(send_queue, &chunk, further),
                FrameContent::PathStep => self.step_wanted = true,
                FrameContent::Receives => self.receives_wanted = true,
                FrameContent::Leave(id) => self.leaves.push(id),
                FrameContent::Mtu(_) | FrameContent::Nothing => {}
            });
        }
        self.arm(now);
    }

    /// Returns whether a space has no credit left and no frame is under way whose acknowledgement would bring
    /// more, or whose probe timeout would ask for it. Our own acknowledgements may have used the credit up.
    pub(crate) fn must_wait(&self, space_index: usize) -> bool {
        let room = self.congestion.room() > 0;
        self.lacks_credit(space_index)
            && room
            && self.pto_at.is_none()
            && self.is_usable()
            && !self.is_waiting()
    }

    /// Returns whether a space has no credit left.
    pub(crate) fn lacks_credit(&self, space_index: usize) -> bool {
        self.spaces.get(space_index).is_some_and(|space| space.outgoing.credit() == 0)
    }

    /// Sets a timeout after which the path asks for credit, unless it was granted within a probe interval.
    pub(crate) fn wait_for_credit(&mut self, now: Instant) {
        self.pto_at = Some(now.after(self.probe_interval()));
    }

    /// Records that our port is up, or what changed about it. Returns whether the longest frame changed.
    pub(crate) fn port_up(&mut self, now: Instant, local: &PortState) -> bool {
        let changed = self.set_local_mtu(local.mtu);
        if !self.port_up {
            self.port_up = true;
            self.announced = false;
            // Frames may have been received after the port went down: their acknowledgements are due.
            self.spaces.iter_mut().for_each(|space| space.incoming.handle_timeout(now));
            self.retry_at_once(now);
        }
        changed
    }

    /// Records that our port is down.
    pub(crate) fn port_down(&mut self) {
        self.port_up = false;
        self.pto_at = None;
        self.loss_at = None;
    }

    /// Sets the longest frame that the peer's port takes, in bytes. Returns whether the longest frame of the
    /// path changed.
    pub(crate) fn set_peer_mtu(&mut self, mtu: usize) -> bool {
        self.peer_mtu = mtu;
        self.limit_mtu()
    }

    fn set_local_mtu(&mut self, mtu: usize) -> bool {
        if mtu != self.local_mtu {
            self.local_mtu = mtu;
            self.receives_wanted = true;
            self.announced = false;
        }
        self.limit_mtu()
    }

    fn limit_mtu(&mut self) -> bool {
        let changed = self.pmtu.set_most(self.local_mtu.min(self.peer_mtu));
        self.mtu_changed();
        changed
    }

    /// Records that frames were too long for our own port. Returns whether the longest frame changed.
    pub(crate) fn too_long(&mut self, now: Instant) -> bool {
        let changed = self.pmtu.fall_back(now);
        self.mtu_changed();
        changed
    }

    pub(crate) fn mtu_changed(&mut self) {
        self.congestion.set_frame_len(self.pmtu.current() as u64);
    }

    /// Returns what the path carries, if that was measured, was not reported yet, and is less than our port
    /// takes, or was less in the last report.
    pub(crate) fn measured(&mut self) -> Option<PathMtuStatus> {
        let width = (self.pmtu.current(), self.local_mtu);
        if self.told_width == Some(width) || !self.pmtu.is_settled() || !self.is_usable() {
            return None;
        }
        let before = self.told_width.replace(width);
        let was_less = before.is_some_and(|(carries, ours)| carries < ours);
        let (carries, ours) = width;
        (carries < ours || was_less).then_some(PathMtuStatus { carries, ours, theirs: self.peer_mtu })
    }

    /// Sends a ping and probes at once, to learn whether the peer answers.
    pub(crate) fn retry_at_once(&mut self, now: Instant) {
        self.backoff = 0;
        self.probes = PROBES;
        self.ping_wanted = true;
        self.arm(now);
    }

    /// Returns whether data was sent within the last [`IN_USE`].
    fn is_in_use(&self, now: Instant) -> bool {
        self.is_usable() && now.since(self.data_at) < IN_USE
    }

    pub(crate) const fn probe_timeout(&self) -> Duration {
        self.pto
    }

    fn probe_interval(&self) -> Duration {
        let first = self.probe_timeout();
        if self.backoff == 0 && !self.down {
            return first;
        }
        let most = if self.down { PROBE_INTERVAL_DOWN } else { PROBE_INTERVAL_MAX.max(first) };
        first.saturating_mul(1 << self.backoff.min(12)).min(most)
    }

    /// Sets the next probe timeout, if frames are under way or probes are pending.
    fn arm(&mut self, now: Instant) {
        let waiting = self.spaces.iter().any(|space| space.outgoing.is_waiting());
        self.pto_at = (waiting || self.probes > 0).then(|| now.after(self.probe_interval()));
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.spaces.iter().any(|space| space.outgoing.is_waiting())
    }

    pub(crate) fn stats(&self) -> PathStats {
        let [open, sealed] = &self.spaces;
        PathStats {
            round_trip: self.rtt.smoothed(),
            window: self.congestion.window(),
            under_way: self.congestion.in_flight(),
            granted: open.incoming.grant.window().max(sealed.incoming.grant.window()),
            mtu: self.pmtu.current(),
            port_mtu: self.local_mtu,
            peer_mtu: self.peer_mtu,
            ..self.stats
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
