//! The shard: targets and logical units that can affect each other, with all their sessions, as one value on
//! one thread.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use base::buffer::Pool;
use base::ether::{EtherPort, FrameBatch, FrameMachine, PortState, ReceivedFrame};
use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, MediumId, RxBuffer, StreamMachine};
use base::time::Instant;
use base::transmit::Transmit;
use device::contract::UnitEvent;
use device::unit::LogicalUnit;
use hyperscsi::target::engine::{Engine as HyperScsiEngine, EngineLimits as HyperScsiLimits};
use iscsi::target::engine::{Engine, Limits, SessionLimits};

use crate::admin::{SaveRequest, ShardEvent};
use crate::bindings::Bindings;
use crate::config::{DiskId, ShardConfig, UnitId};
use crate::hyperscsi_directory::GroupDirectory;
use crate::login_directory::LoginDirectory;
use crate::nexus::Nexuses;
use crate::route::Owners;
use crate::tmf::PendingTmfs;

/// A set of targets with their logical units, sessions and connections.
///
/// Drivers use it as a [`StreamMachine`] and a [`FrameMachine`]. The daemon calls the methods in
/// [`crate::admin`].
pub struct Shard {
    pub(crate) config: ShardConfig,
    /// The limits of sessions with targets that have no limits of their own.
    pub(crate) limits: SessionLimits,
    pub(crate) engine: Engine,
    /// The HyperSCSI engine.
    pub(crate) frames: HyperScsiEngine,
    /// The Ethernet ports that are up.
    pub(crate) ports: BTreeMap<EtherPort, PortState>,
    pub(crate) units: Units,
    pub(crate) nexuses: Nexuses,
    pub(crate) bindings: Bindings,
    pub(crate) owners: Owners,
    pub(crate) pending_tmfs: PendingTmfs,
    pub(crate) saves: VecDeque<SaveRequest>,
    pub(crate) draining: bool,
    /// Events for the operator that were not polled yet.
    pub(crate) notices: VecDeque<ShardEvent>,
}

/// The logical units of a shard, by number, and the dirty ones: those that may have events.
#[derive(Default)]
pub(crate) struct Units {
    slots: Vec<Option<Slot>>,
    /// Retiring units: removed, with operations still under way. Their numbers start at [`MAX_UNITS`], so
    /// that another unit can take the former number of each.
    retiring: Vec<Option<Slot>>,
    /// The number of each unit by its incarnation. A late completion names its unit by the incarnation, which
    /// no other unit has.
    incarnations: BTreeMap<u32, UnitId>,
    incarnation_next: u32,
    stirred: VecDeque<UnitId>,
    /// The deadlines of units, earliest first. Only the deadline of a dirty unit can change.
    deadlines: BTreeSet<(Instant, UnitId)>,
}

struct Slot {
    unit: Box<LogicalUnit>,
    disk: DiskId,
    incarnation: u32,
    /// The number with which the unit was added. The unit's medium has the same number.
    given: UnitId,
    /// The unit's entry in `deadlines`.
    deadline: Option<Instant>,
}

/// The number of unit numbers: as many units as there are LUNs. Unit numbers are below it.
pub const MAX_UNITS: u32 = 16384;

impl Units {
    /// Returns a unit for a call that may change its state, and marks the unit dirty, so that its events are
    /// polled afterwards.
    pub(crate) fn mark_dirty(&mut self, id: UnitId) -> Option<&mut LogicalUnit> {
        let retired = id.0.checked_sub(MAX_UNITS);
        let slots = if retired.is_some() { &mut self.retiring } else { &mut self.slots };
        let slot = slots.get_mut(usize::try_from(retired.unwrap_or(id.0)).ok()?)?.as_mut()?;
        if self.stirred.back() != Some(&id) {
            self.stirred.push_back(id);
        }
        Some(&mut slot.unit)
    }

    fn slot(&self, id: UnitId) -> Option<&Slot> {
        let retired = id.0.checked_sub(MAX_UNITS);
        let slots = if retired.is_some() { &self.retiring } else { &self.slots };
        slots.get(usize::try_from(retired.unwrap_or(id.0)).ok()?)?.as_ref()
    }

    fn slot_mut(&mut self, id: UnitId) -> Option<&mut Slot> {
        let retired = id.0.checked_sub(MAX_UNITS);
        let slots = if retired.is_some() { &mut self.retiring } else { &mut self.slots };
        slots.get_mut(usize::try_from(retired.unwrap_or(id.0)).ok()?)?.as_mut()
    }

    /// Returns the next event of a dirty unit.
    pub(crate) fn poll(&mut self, id: UnitId) -> Option<UnitEvent> {
        self.slot_mut(id)?.unit.poll()
    }

    /// Records the deadline of a dirty unit.
    pub(crate) fn note_deadline(&mut self, id: UnitId) {
        let Some(slot) = self.slot_mut(id) else { return };
        let wanted = slot.unit.poll_timeout();
        if wanted == slot.deadline {
            return;
        }
        if let Some(old) = core::mem::replace(&mut slot.deadline, wanted) {
            self.deadlines.remove(&(old, id));
        }
        self.deadlines.extend(wanted.map(|at| (at, id)));
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the units whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Vec<UnitId> {
        self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect()
    }

    pub(crate) fn get(&self, id: UnitId) -> Option<&LogicalUnit> {
        Some(&self.slot(id)?.unit)
    }

    /// Returns the identifier of a unit's disk.
    pub(crate) fn disk_of(&self, id: UnitId) -> Option<DiskId> {
        Some(self.slot(id)?.disk)
    }

    /// Returns the incarnation of a unit: a number that no other unit has or will have.
    pub(crate) fn incarnation(&self, id: UnitId) -> Option<u32> {
        Some(self.slot(id)?.incarnation)
    }

    /// Returns the number of the unit with this incarnation.
    pub(crate) fn find(&self, incarnation: u32) -> Option<UnitId> {
        self.incarnations.get(&incarnation).copied()
    }

    /// Returns the number with which a unit was added, whether it is retiring or not.
    pub(crate) fn given(&self, id: UnitId) -> UnitId {
        self.slot(id).map_or(id, |slot| slot.given)
    }

    /// Returns the retiring units that were added with this number, which their media have.
    pub(crate) fn retiring_from(&self, given: UnitId) -> impl Iterator<Item = UnitId> {
        let slots = (MAX_UNITS..).map(UnitId).zip(&self.retiring);
        slots.filter(move |(_, slot)| slot.as_ref().is_some_and(|slot| slot.given == given)).map(|(id, _)| id)
    }

    /// Returns whether there are retiring units.
    pub(crate) const fn has_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Removes a unit from its number, which is then free. Returns the unit's number while it is retiring.
    pub(crate) fn retire(&mut self, id: UnitId) -> Option<UnitId> {
        let slot = self.slots.get_mut(usize::try_from(id.0).ok()?)?.take()?;
        if let Some(deadline) = slot.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let at = self.retiring.iter().position(Option::is_none).unwrap_or_else(|| {
            self.retiring.push(None);
            self.retiring.len() - 1
        });
        let new = UnitId(MAX_UNITS.saturating_add(u32::try_from(at).unwrap_or(u32::MAX)));
        self.incarnations.insert(slot.incarnation, new);
        *self.retiring.get_mut(at)? = Some(Slot { deadline: None, ..slot });
        self.note_deadline(new);
        Some(new)
    }

    /// Removes a retiring unit that has nothing under way any more. Returns it with the number with which it
    /// was added.
    pub(crate) fn take_retired(&mut self) -> Option<(UnitId, Box<LogicalUnit>)> {
        let is_over = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.unit.is_retired());
        let at = self.retiring.iter().position(is_over)?;
        let slot = self.retiring.get_mut(at)?.take()?;
        if let Some(deadline) = slot.deadline {
            let id = UnitId(MAX_UNITS.saturating_add(u32::try_from(at).unwrap_or(u32::MAX)));
            self.deadlines.remove(&(deadline, id));
        }
        self.incarnations.remove(&slot.incarnation);
        while self.retiring.pop_if(|slot| slot.is_none()).is_some() {}
        Some((slot.given, slot.unit))
    }

    /// Adds a unit. Returns false if the number is too high or not free.
    pub(crate) fn put(&mut self, id: UnitId, unit: Box<LogicalUnit>, disk: DiskId) -> bool {
        let Some(at) = usize::try_from(id.0).ok().filter(|_| id.0 < MAX_UNITS) else { return false };
        while self.slots.len() <= at {
            self.slots.push(None);
        }
        let incarnation = self.incarnation_next;
        match self.slots.get_mut(at) {
            Some(slot @ None) => *slot = Some(Slot { unit, disk, incarnation, given: id, deadline: None }),
            _ => return false,
        }
        self.incarnation_next = incarnation.wrapping_add(1);
        self.incarnations.insert(incarnation, id);
        self.note_deadline(id);
        true
    }

    /// Returns the next dirty unit whose events were not polled yet.
    pub(crate) fn next_stirred(&mut self) -> Option<UnitId> {
        self.stirred.pop_front()
    }

    /// Returns every unit except the retiring ones, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (UnitId, &LogicalUnit)> {
        (0..)
            .map(UnitId)
            .zip(&self.slots)
            .filter_map(|(id, slot)| slot.as_ref().map(|slot| (id, &*slot.unit)))
    }
}

impl Shard {
    /// Makes a shard without units. [`Self::add_unit`] adds them before the first connection.
    pub fn new(mut config: ShardConfig, limits: Limits, pool: Pool) -> Self {
        config.sort();
        let mut engine = Engine::new(limits, pool.clone());
        engine.set_session_limits(Instant::ORIGIN, limits.of_session(), config.session_limits());
        Self {
            limits: limits.of_session(),
            config,
            engine,
            frames: HyperScsiEngine::new(HyperScsiLimits::default(), pool),
            ports: BTreeMap::new(),
            units: Units::default(),
            nexuses: Nexuses::default(),
            bindings: Bindings::default(),
            owners: Owners::default(),
            pending_tmfs: PendingTmfs::default(),
            saves: VecDeque::new(),
            draining: false,
            notices: VecDeque::new(),
        }
    }

    /// Sets the limits of HyperSCSI sessions. Call this before the first port is up.
    pub fn limit_frames(&mut self, limits: HyperScsiLimits, pool: Pool) {
        self.frames = HyperScsiEngine::new(limits, pool);
    }

    /// Moves events between the engines and the units until none has any.
    pub(crate) fn process_pending(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.engine.poll_event() {
                self.route_iscsi(now, event);
            }
            while let Some(event) = self.frames.poll_event() {
                self.route_hyperscsi(now, event);
            }
            let Some(unit) = self.units.next_stirred() else { break };
            self.drain_unit_events(now, unit);
        }
    }
}

impl FrameMachine for Shard {
    fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.ports.insert(port, *state);
        self.frames.port_up(now, port, state, entropy);
        self.push_event(ShardEvent::PortUp { port, state: *state });
        self.process_pending(now);
    }

    fn port_down(&mut self, now: Instant, port: EtherPort) {
        self.ports.remove(&port);
        self.frames.port_down(now, port);
        self.push_event(ShardEvent::PortDown { port });
        self.process_pending(now);
    }

    fn frame_received(&mut self, now: Instant, frame: ReceivedFrame<'_>) {
        let directory = GroupDirectory {
            config: &self.config,
            nexuses: &self.nexuses,
            ports: &self.ports,
            draining: self.draining,
        };
        self.frames.frame_received(now, frame, &directory);
        self.process_pending(now);
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        self.frames.poll_port()
    }

    fn transmit_frames(&mut self, now: Instant, port: EtherPort, out: &mut FrameBatch) {
        self.frames.transmit_frames(now, port, out);
        self.process_pending(now);
    }

    fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        self.frames.frames_too_long(now, port, count);
        self.process_pending(now);
    }

    fn frames_overrun(&mut self, now: Instant, port: EtherPort, count: u32) {
        self.frames.frames_overrun(now, port, count);
        self.process_pending(now);
    }

    fn is_frame_idle(&self) -> bool {
        self.frames.is_frame_idle()
    }

    fn entropy_wanted(&self) -> usize {
        self.frames.entropy_wanted()
    }

    fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.frames.add_entropy(entropy);
    }
}

impl StreamMachine for Shard {
    fn connected(&mut self, now: Instant, conn: ConnId, arrival: &AcceptInfo) {
        self.engine.connected(now, conn, arrival);
    }

    fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let directory =
            LoginDirectory { config: &self.config, nexuses: &self.nexuses, draining: self.draining };
        self.engine.received(now, conn, bytes, &directory);
        self.process_pending(now);
    }

    fn received_eof(&mut self, now: Instant, conn: ConnId) -> bool {
        let stays = self.engine.received_eof(now, conn);
        self.process_pending(now);
        stays
    }

    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        self.engine.take_rx_buffer(conn)
    }

    fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, loan: RxBuffer) {
        let directory =
            LoginDirectory { config: &self.config, nexuses: &self.nexuses, draining: self.draining };
        self.engine.return_rx_buffer(now, conn, loan, &directory);
        self.process_pending(now);
    }

    fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
        self.engine.transmit(now, conn, out);
        // Free slots in the queue of responses can let waiting commands proceed.
        self.process_pending(now);
    }

    fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason) {
        self.engine.disconnected(now, conn, why);
        self.process_pending(now);
    }

    fn medium_ready(&mut self, now: Instant, medium: MediumId) {
        if let Some(unit) = self.units.mark_dirty(UnitId(medium.0)) {
            unit.store_ready(now);
        }
        if self.units.has_retiring() {
            self.retiring_ready(now, UnitId(medium.0));
        }
        self.process_pending(now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.engine.poll_action()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.engine.poll_timeout(), self.frames.poll_timeout(), self.units.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.engine.handle_timeout(now);
        if self.frames.poll_timeout().is_some_and(|at| at <= now) {
            self.frames.handle_timeout(now);
        }
        for id in self.units.due(now) {
            if let Some(unit) = self.units.mark_dirty(id) {
                unit.handle_timeout(now);
            }
        }
        self.process_pending(now);
    }
}
