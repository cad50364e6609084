//! The target itself: its sessions and its logical units.

mod limits;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::buffer::Bytes;
use base::time::{Duration, Instant};
use device::contract::{NexusId, RelativePort, TaskKey, UnitConfig};
use device::drain::Drain;
use device::library::{LibraryEvent, LibraryInput};
use device::rate_limit::Limiter;
use device::removal_obstacle::RemovalObstacle;
use device::slow_command::SlowCommand;
use device::space_threshold::SpaceThreshold;
use device::stats::UnitStats;
use device::unit::LogicalUnit;
use device::unit::reservations::{
    RemovalError, RemovalProgress, RemovedReservations, ReservationDetails, ReservationRemoval,
    ReservationReport,
};
use scsi::sense::Sense;
use transport::target::SessionId;

use crate::bindings::{Bindings, Forgotten, NexusBindings};
use crate::idle_limiters::IdleLimiters;
use crate::nexus::{MapEntry, NexusEntry, NexusInfo, Nexuses, TargetNumber};
use crate::owners::Owners;
use crate::pending_tmfs::PendingTmfs;
use crate::transport_id::{SessionRef, TransportId, nexus_of};
use crate::transports::Transports;
use crate::units::{DiskId, UnitId, Units};

/// Logical units, and the I_T nexuses through which initiators reach them over any transport.
///
/// After any call, the owner handles the events of its transports with [`Self::handle_event`], and calls
/// [`Self::drain_unit`], until neither has anything more.
#[derive(Default)]
pub struct Target {
    pub(crate) units: Units,
    pub(crate) nexuses: Nexuses,
    pub(crate) bindings: Bindings,
    pub(crate) idle_limiters: IdleLimiters,
    pub(crate) owners: Owners,
    pub(crate) pending_tmfs: PendingTmfs,
    pub(crate) saves: VecDeque<SaveRequest>,
    pub(crate) slow_limit: Option<Duration>,
    /// Slow commands to report, and the units that executed them.
    pub(crate) slow: VecDeque<(UnitId, SlowCommand)>,
    pub(crate) library_events: VecDeque<(UnitId, LibraryEvent)>,
    /// Data-Out that came with commands of the unit that is being drained. The unit has requested it, and
    /// gets it when it has no further events.
    pub(crate) data_of_commands: Vec<(TaskKey, u32, Bytes)>,
}

/// Reservation state that must be on stable storage before the command that changed it returns status.
#[derive(Debug)]
pub struct SaveRequest {
    /// The unit whose state it is.
    pub unit: UnitId,
    /// The owner passes this ticket to [`Target::state_saved`].
    pub ticket: u64,
    /// The whole state. It replaces the state that was stored for this unit before.
    pub state: Vec<u8>,
}

/// The state of a logical unit, for display.
#[derive(Clone, Debug)]
pub struct UnitReport {
    /// The number of the unit.
    pub unit: UnitId,
    /// The unit's statistics and state.
    pub stats: UnitStats,
    /// The capacity in bytes that initiators see: of an encrypted disk without its header, of a writable disc
    /// what can be read of it.
    pub capacity: u64,
    /// Whether its medium is loaded.
    pub medium_present: bool,
    /// Why initiators find it not ready, if they do.
    pub not_ready: Option<Sense>,
    /// Whether an initiator prevents the removal of its medium.
    pub removal_prevented: bool,
    /// How far its operator's drain is.
    pub drain: Drain,
    /// Whether a flush has failed, so that acknowledged writes may be lost.
    pub has_failed_flush: bool,
}

/// The I_T nexus of a session that ended.
#[derive(Clone, Debug)]
pub struct EndedNexus {
    /// The name of the initiator device.
    pub initiator: Rc<str>,
    /// The target that it had logged in to.
    pub target: TargetNumber,
}

/// I_T nexuses.
impl Target {
    /// Adds the I_T nexus of a new session, with its LUN map, and notifies every unit in it.
    pub fn session_up(
        &mut self,
        now: Instant,
        transport: TransportId,
        session: SessionId,
        info: NexusInfo,
        map: impl IntoIterator<Item = MapEntry>,
    ) -> NexusId {
        let mut entry = NexusEntry::new(SessionRef { transport, session }, info);
        self.bindings.session_begins(&entry.name, entry.target_port());
        entry.remap(
            map,
            |name, port, lun| self.bindings.disk_of(name, port, lun),
            |unit| self.units.disk_of(unit),
        );
        let id = self.nexuses.insert(entry);
        let Some(entry) = self.nexuses.get(id) else { return id };
        for unit in entry.units() {
            if let (Some(nexus), Some(unit)) = (entry.seen_by(id, unit), self.units.mark_dirty(unit)) {
                unit.nexus_established(now, nexus);
            }
        }
        id
    }

    /// Removes the I_T nexus of a session that ended. `deliberately` is whether its initiator has logged out
    /// and no longer uses the LUNs. A logout that this target caused says nothing of that: the initiator may
    /// log in again with the LUNs still open.
    pub fn session_down(
        &mut self,
        now: Instant,
        transport: TransportId,
        session: SessionId,
        deliberately: bool,
    ) -> Option<EndedNexus> {
        let id = nexus_of(transport, session);
        let entry = self.nexuses.remove(id)?;
        self.bindings.session_ended(now, &entry.name, entry.target_port(), deliberately);
        self.pending_tmfs.forget(id);
        for unit in entry.units() {
            if let Some(unit) = self.units.mark_dirty(unit) {
                unit.nexus_lost(now, id);
            }
        }
        let limiter = entry.limiter.as_ref();
        let is_shared = |limiter: &Rc<RefCell<Limiter>>| {
            let others = self.nexuses.iter().filter_map(|(_, other)| other.limiter.as_ref());
            others.into_iter().any(|other| Rc::ptr_eq(other, limiter))
        };
        if let Some(limiter) = limiter.filter(|limiter| !is_shared(limiter)) {
            self.idle_limiters.keep(now, entry.info().clone(), Rc::clone(limiter));
        }
        Some(EndedNexus { initiator: entry.initiator().into(), target: entry.target() })
    }

    /// Returns how often the result of [`Self::bindings`] has changed, to compare with an earlier count.
    pub const fn binding_changes(&self) -> u64 {
        self.bindings.changes().saturating_add(self.bindings.session_changes())
    }

    /// Returns how many records of I_T nexuses without a session were forgotten because there were too many.
    pub const fn binding_evictions(&self) -> u64 {
        self.bindings.evictions()
    }

    /// Returns the disks that every I_T nexus has used, also those of nexuses without a session.
    pub fn bindings(&self, now: Instant) -> impl Iterator<Item = NexusBindings> {
        self.bindings.all(now)
    }

    /// Replaces the ports of all targets. An initiator has to log out only through those before its LUNs can
    /// lead it to other disks.
    pub fn set_target_ports(&mut self, ports: BTreeMap<TargetNumber, BTreeSet<RelativePort>>) {
        self.bindings.set_target_ports(ports);
    }

    /// Records that a portal of a target belongs to another target port than before.
    pub fn portal_moved(&mut self, target: TargetNumber, from: RelativePort, to: RelativePort) {
        self.bindings.portal_moved(target, from, to);
    }

    /// Sets whether the sessions that begin are those that another process hands over.
    pub const fn set_resuming(&mut self, is_resuming: bool) {
        self.bindings.set_resuming(is_resuming);
    }

    /// Returns the target ports through which the initiator of an I_T nexus has to log out before a withheld
    /// LUN leads it to a disk again.
    pub fn claims_on(&self, id: NexusId, lun: u16) -> Vec<RelativePort> {
        let entry = self.nexuses.get(id);
        entry.map_or_else(Vec::new, |entry| self.bindings.claims_on(&entry.name, entry.target_port(), lun))
    }

    /// Forgets which disks wanted I_T nexuses have used, if they have no session.
    pub fn forget_bindings(&mut self, is_wanted: impl Fn(&NexusBindings) -> bool) -> Forgotten {
        self.bindings.forget(is_wanted)
    }

    /// Removes the bindings of all I_T nexuses of a target, and returns them for another thread that serves
    /// the target from now on. Sessions with the target that have not ended yet make no bindings any more.
    pub fn take_bindings(&mut self, now: Instant, target: TargetNumber) -> Vec<NexusBindings> {
        self.bindings.take(now, target)
    }

    /// Restores the bindings of an I_T nexus from before a restart, when it has no session yet: its LUNs lead
    /// it to the disks that it has used, or to none, until its initiator logs out.
    pub fn restore_bindings(&mut self, now: Instant, saved: NexusBindings) {
        self.bindings.restore(now, saved);
    }

    /// Withholds every LUN from an I_T nexus whose next session begins without a record, because records of
    /// bindings were lost: nobody knows which LUNs it has used.
    pub const fn seal_unknown_nexuses(&mut self) {
        self.bindings.seal_unknown();
    }

    /// Returns whether the LUNs are withheld from an I_T nexus of which its record does not name the disk.
    pub fn is_sealed(&self, id: NexusId) -> bool {
        self.nexuses.get(id).is_some_and(|entry| self.bindings.is_sealed(&entry.name))
    }

    /// Returns the I_T nexuses that have used LUNs and have no session now, in the order in which they lost
    /// it.
    pub fn lost_nexuses(&self, now: Instant) -> impl Iterator<Item = NexusBindings> {
        self.bindings.lost(now)
    }

    /// Returns the disk of a unit; `None` if there is no such unit.
    pub fn disk_of(&self, unit: UnitId) -> Option<DiskId> {
        self.units.disk_of(unit)
    }

    /// Returns every I_T nexus, in the order of transports and of the numbers there.
    pub fn nexuses(&self) -> impl Iterator<Item = (NexusId, &NexusEntry)> {
        self.nexuses.iter()
    }

    /// Returns an I_T nexus.
    pub fn nexus(&self, id: NexusId) -> Option<&NexusEntry> {
        self.nexuses.get(id)
    }

    /// Ends the session of an I_T nexus.
    pub fn close(&self, now: Instant, id: NexusId, transports: &mut dyn Transports) {
        let Some(entry) = self.nexuses.get(id) else { return };
        let (transport, session) = entry.session();
        if let Some(transport) = transports.get(transport) {
            transport.close_session(now, session);
        }
    }

    /// Replaces the LUN map of an I_T nexus, and notifies the units that it lost, the units that it gained,
    /// and the units that stay. Returns whether the map changed.
    pub fn remap(&mut self, now: Instant, id: NexusId, map: impl IntoIterator<Item = MapEntry>) -> bool {
        let Some(entry) = self.nexuses.get_mut(id) else { return false };
        let (before, disks) = (entry.units(), entry.disks());
        if !entry.remap(
            map,
            |name, port, lun| self.bindings.disk_of(name, port, lun),
            |unit| self.units.disk_of(unit),
        ) {
            return false;
        }
        let (after, moved) = (entry.units(), disks != entry.disks());
        let Some(entry) = self.nexuses.get(id) else { return false };
        for unit in before.iter().filter(|unit| !after.contains(unit)) {
            if let Some(unit) = self.units.mark_dirty(*unit) {
                unit.nexus_withdrawn(now, id);
            }
        }
        for unit in after {
            let (Some(nexus), known) = (entry.seen_by(id, unit), before.contains(&unit)) else { continue };
            match self.units.mark_dirty(unit) {
                Some(unit) if known => {
                    unit.nexus_changed(now, nexus);
                    if moved {
                        unit.luns_changed(id);
                    }
                }
                Some(unit) => unit.nexus_established(now, nexus),
                None => {}
            }
        }
        true
    }
}

/// The sessions of a target beside a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionsBeside {
    /// All of them.
    pub all: u32,
    /// Those of the same initiator.
    pub own: u32,
    /// Whether one is of the same initiator port, so that the new session replaces it.
    pub replaceable: bool,
}

/// Sessions of initiators.
impl Target {
    /// Returns the sessions of a target, as far as they count for another one of this initiator port.
    pub fn sessions_beside(&self, info: &NexusInfo) -> SessionsBeside {
        let mut beside = SessionsBeside::default();
        for (_, entry) in self.nexuses.iter().filter(|(_, entry)| entry.target() == info.target) {
            let is_own = entry.is_of(info);
            beside.all += 1;
            beside.own += u32::from(is_own);
            beside.replaceable |= is_own && entry.info().initiator_port == info.initiator_port;
        }
        beside
    }
}

/// Logical units.
impl Target {
    /// Adds a unit under a number below [`crate::units::MAX_UNITS`]. I_T nexuses whose LUN map contains the
    /// number see the unit immediately. `disk` decides whether an initiator that reconnects finds under a LUN
    /// the disk that it has used there. Returns false if the number was not free or too high.
    pub fn add_unit(&mut self, now: Instant, id: UnitId, mut unit: LogicalUnit, disk: DiskId) -> bool {
        unit.set_slow_limit(self.slow_limit);
        if !self.units.put(id, Box::new(unit), disk) {
            return false;
        }
        let nexuses: Vec<_> = self.nexuses.iter().map(|(id, _)| id).collect();
        for nexus in nexuses {
            if let Some(entry) = self.nexuses.get_mut(nexus) {
                entry.remap(
                    entry.entries(),
                    |name, port, lun| self.bindings.disk_of(name, port, lun),
                    |unit| self.units.disk_of(unit),
                );
            }
        }
        let seers: Vec<_> =
            self.nexuses.iter().filter_map(|(nexus, entry)| entry.seen_by(nexus, id)).collect();
        for nexus in seers {
            if let Some(unit) = self.units.mark_dirty(id) {
                unit.nexus_established(now, nexus);
            }
        }
        true
    }

    /// Removes a unit: no command reaches it any more, and every command and task management function that it
    /// has is answered. [`Self::poll_removed`] returns the unit when its medium has completed all its
    /// operations. The number is free immediately.
    ///
    /// Returns whether the unit existed.
    pub fn remove_unit(&mut self, now: Instant, id: UnitId) -> bool {
        let Some(retiring) = self.units.retire(id) else { return false };
        self.owners.rename(id, retiring);
        if let Some(unit) = self.units.mark_dirty(retiring) {
            unit.retire(now);
        }
        true
    }

    /// Returns a removed unit that has nothing under way any more, so that its medium can be closed, and the
    /// number that it had.
    pub fn poll_removed(&mut self) -> Option<(UnitId, Box<LogicalUnit>)> {
        if self.units.has_retiring() { self.units.take_retired() } else { None }
    }

    /// Changes the configuration that a unit presents to initiators.
    pub fn reconfigure_unit(&mut self, now: Instant, id: UnitId, config: UnitConfig) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.reconfigure(now, config);
        }
    }

    /// Notifies a unit that the size of its medium has changed.
    pub fn capacity_changed(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.capacity_changed(now);
        }
    }

    /// Withholds the medium of a unit because it is not the same as before, or makes it available again.
    pub fn withhold_medium(&mut self, now: Instant, id: UnitId, withheld: bool) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.withhold_medium(now, withheld);
        }
    }

    /// Records when the storage of a unit counts as short, and whether it is short.
    pub fn set_space_threshold(&mut self, now: Instant, id: UnitId, threshold: SpaceThreshold) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.set_space_threshold(now, threshold);
        }
    }

    /// Records that writes to the medium of a unit are lost.
    pub fn record_lost_writes(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.record_lost_writes(now);
        }
    }

    /// Lets the flushes of a unit succeed again: its operator accepts what is lost.
    pub fn accept_lost_writes(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.accept_lost_writes(now);
        }
    }

    /// Drains a unit for its operator, or ends that.
    pub fn set_unit_drained(&mut self, now: Instant, id: UnitId, drained: bool) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.set_drained(now, drained);
        }
    }

    /// Notifies a unit that its store holds another disc, or none.
    pub fn medium_replaced(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.medium_replaced(now);
        }
    }

    /// Notifies a unit that the operator wants to remove its medium, and an initiator prevents it.
    pub fn removal_requested(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.removal_requested(now);
        }
    }

    /// Returns why the operator must not take the medium of a unit out now.
    pub fn removal_obstacle(&self, id: UnitId) -> Option<RemovalObstacle> {
        self.units.get(id).and_then(LogicalUnit::removal_obstacle)
    }

    /// Makes durable what initiators have appended to the disc in a drive.
    pub fn save_medium(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.save_medium(now);
        }
    }

    /// Passes on what the owner of a library tells its changer, or a drive in it.
    pub fn library_input(&mut self, now: Instant, id: UnitId, input: LibraryInput) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.library_input(now, input);
        }
    }

    /// Makes durable what a tape drive holds, if only that keeps it from being handed over.
    pub fn prepare_handover(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.prepare_handover(now);
        }
    }

    /// Returns whether a nexus prevents the removal of the medium of a unit.
    pub fn is_removal_prevented(&self, id: UnitId) -> bool {
        self.units.get(id).is_some_and(LogicalUnit::is_removal_prevented)
    }

    /// Returns the next event for the owner of a library. Call this after every other call.
    pub fn poll_library_event(&mut self) -> Option<(UnitId, LibraryEvent)> {
        self.library_events.pop_front()
    }

    /// Notifies the unit with this number, and the retiring units that had it, that their medium has
    /// completions.
    pub fn medium_ready(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.store_ready(now);
        }
        if self.units.has_retiring() {
            let retiring: Vec<UnitId> = self.units.retiring_from(id).collect();
            for id in retiring {
                if let Some(unit) = self.units.mark_dirty(id) {
                    unit.store_ready(now);
                }
            }
        }
    }

    /// Sets from which time on a command is slow; `None` for no limit.
    pub fn set_slow_limit(&mut self, limit: Option<Duration>) {
        self.slow_limit = limit;
        self.units.iter_mut().for_each(|unit| unit.set_slow_limit(limit));
    }

    /// Returns the next slow command to report, and the unit that executed it.
    pub fn poll_slow_command(&mut self) -> Option<(UnitId, SlowCommand)> {
        self.slow.pop_front()
    }

    /// Returns the next state to store. Call this after every other call.
    pub fn poll_save(&mut self) -> Option<SaveRequest> {
        self.saves.pop_front()
    }

    /// Records whether the state of a [`SaveRequest`] is on stable storage.
    pub fn state_saved(&mut self, now: Instant, unit: UnitId, ticket: u64, ok: bool) {
        let incarnation = u32::try_from(ticket >> 32).unwrap_or(u32::MAX);
        let id = self.units.find(incarnation).filter(|id| self.units.given(*id) == unit);
        let ticket = ticket & u64::from(u32::MAX);
        if let Some(unit) = id.and_then(|id| self.units.mark_dirty(id)) {
            unit.state_saved(now, ticket, ok);
        }
    }

    /// Returns the state of every unit.
    pub fn units(&self) -> Vec<UnitReport> {
        let report = |(unit, lu): (UnitId, &LogicalUnit)| UnitReport {
            unit,
            stats: lu.stats(),
            capacity: lu.capacity().0 << lu.block_size().shift(),
            medium_present: lu.is_medium_present(),
            not_ready: lu.not_ready(),
            removal_prevented: lu.is_removal_prevented(),
            drain: lu.drain(),
            has_failed_flush: lu.has_failed_flush(),
        };
        self.units.iter().map(report).collect()
    }

    /// Returns every reservation and registration of a unit.
    pub fn reservation_details(&self, id: UnitId) -> Option<ReservationDetails> {
        self.units.get(id).map(LogicalUnit::reservation_details)
    }

    /// Removes reservations and registrations of a unit for its operator
    /// ([`LogicalUnit::remove_reservations`]); `None` if there is no such unit.
    pub fn remove_reservations(
        &mut self,
        now: Instant,
        id: UnitId,
        selection: ReservationRemoval,
        is_forced: bool,
    ) -> Option<Result<RemovedReservations, RemovalError>> {
        let unit = self.units.mark_dirty(id)?;
        Some(unit.remove_reservations(now, selection, is_forced))
    }

    /// Returns how far the last removal of reservations of a unit is.
    pub fn removal_progress(&self, id: UnitId) -> Option<RemovalProgress> {
        self.units.get(id).map(LogicalUnit::removal_progress)
    }

    /// Returns the reservations of the units that have any.
    pub fn reservations(&self) -> Vec<(UnitId, ReservationReport)> {
        self.units.iter().filter_map(|(unit, lu)| Some((unit, lu.reservations()?))).collect()
    }

    /// Returns when [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.units.next_deadline()
    }

    /// Handles the deadlines of units that passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for id in self.units.due(now) {
            if let Some(unit) = self.units.mark_dirty(id) {
                unit.handle_timeout(now);
            }
        }
    }
}
