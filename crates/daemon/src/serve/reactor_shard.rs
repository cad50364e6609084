//! The state machine that a reactor runs: the target's shard, with the daemon's disks, state writes and log
//! around it.

mod bindings;
pub(super) mod counts;
mod discs;
pub(super) mod handover;
mod kinds;
mod libraries;
mod losses;
mod maintenance;
mod nbd;
mod reload;
mod streams;
mod traces;
mod written;

use crate::mailbox::Sender;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use base::buffer::Pool;
use base::ether::{EtherPort, FrameBatch, FrameMachine, PortState, ReceivedFrame};
use base::state_machine::{ConnId, MediumId, StreamMachine as _};
use base::time::Instant;
use device::drain::Drain;
use device::persistent_state::{UnfinishedSanitize, unfinished_sanitize};
use device::space_threshold::SpaceThreshold;
use device::unit::reservations::ReservationReport;
use device::unit::{LogicalUnit, UnitError};
use drivers::files::Files;
use drivers::message_queue::Handle;
use hyperscsi::connection::PathTotals;
use shard::admin::{HyperScsiSessionReport, SessionReport};
use shard::losses::{SessionLoss, WithheldLun};
use shard::shard::Shard;
use target::target::{SaveRequest, UnitReport};
use target::units::{DiskId, UnitId};

use super::daemon_event::DaemonEvent;
use super::media::OpenMedium;
use super::media::changer::Changer;
use super::media::disc::NewDisc;
use super::media::disk::DiskInfo;
use super::media::nbd::{NbdExport, NbdExports};
use super::media::opened::Place;
use super::media::served::{MediumHealth, ServedMedium, describe_not_ready};
use super::media::tape::Tape;
use super::media_watch::MediaWatch;
use super::runtime_config::RuntimeConfig;
use super::sanitize_record::SanitizeRecord;
use super::state_writer::{StateJob, StateWrite, StateWriter};
use crate::config::{Naa, UnitIndex};
pub(super) use bindings::ReactorBindings;
use handover::Arrival;
use kinds::{disk_of, downcast, is};
use libraries::ServedLibrary;

pub(super) use self::reload::Reload;

/// A shard with the daemon's data around it, on the reactor's thread.
pub(super) struct ReactorShard {
    pub(super) shard: Shard,
    /// The index of this reactor.
    pub(super) index: usize,
    pub(super) runtime: RuntimeConfig,
    /// The medium of each unit.
    media: BTreeMap<UnitId, Box<dyn ServedMedium>>,
    /// The connections of exports.
    nbd: NbdExports,
    /// The traces of HyperSCSI sessions.
    frame_traces: Vec<traces::FrameTrace>,
    /// The tape libraries, by the unit of the changer.
    libraries: BTreeMap<UnitId, ServedLibrary>,
    /// The discs that are put into drives when the ones in there are saved.
    pending_discs: BTreeMap<UnitId, NewDisc>,
    /// Where the persistent state of each unit is saved.
    state_files: BTreeMap<UnitId, StateFile>,
    /// How each connection of an initiator arrived.
    arrivals: BTreeMap<ConnId, Arrival>,
    /// Retiring units: they are removed, and operations of their media are still under way.
    retiring: Vec<(UnitId, RetiringUnit)>,
    files: Files,
    pool: Pool,
    state_writer: StateWriter,
    media_watch: MediaWatch,
    /// The handle of the reactor that runs this; other threads send their answers through it.
    own: Handle<ReactorShard>,
    events: Sender<DaemonEvent>,
    /// The count of binding changes that the main thread knows of.
    reported_binding_changes: u64,
    /// How many dropped nexus bindings are logged already.
    reported_binding_evictions: u64,
}

/// A unit that was removed from the configuration.
#[derive(Debug)]
struct RetiringUnit {
    label: String,
    path: Option<PathBuf>,
    state_file: Option<StateFile>,
    /// Whether the log says that the daemon waits for it.
    told: bool,
}

/// Where the persistent state of a unit is saved.
#[derive(Clone, Debug)]
struct StateFile {
    naa: Naa,
    medium: Arc<SanitizeRecord>,
}

/// A unit to be served, whose medium is open.
#[derive(Debug)]
pub(super) struct NewUnit {
    pub(super) id: UnitId,
    pub(super) index: UnitIndex,
    pub(super) medium: OpenMedium,
    /// The identity of the disk across reloads.
    pub(super) disk: DiskId,
    /// The persistent state of the unit, and the path of the file that it was read from.
    pub(super) state: Option<(Vec<u8>, String)>,
    /// The record of the medium.
    pub(super) record: Arc<SanitizeRecord>,
    /// Whether another process still serves it.
    pub(super) is_handed_over: bool,
}

/// The state and counters of a unit, for the admin API.
#[derive(Clone, Debug)]
pub(super) struct UnitView {
    pub(super) report: UnitReport,
    pub(super) bytes: u64,
    pub(super) health: MediumHealth,
    /// Why hosts find it not ready otherwise, if they do.
    pub(super) not_ready: Option<String>,
}

/// The HyperSCSI counters of one reactor.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyperScsiReport {
    pub(super) stats: hyperscsi::target::engine::EngineStats,
    pub(super) handshakes: hyperscsi::login::target::HandshakeStats,
    pub(super) paths: PathTotals,
}

/// What the daemon passes to each reactor's shard.
pub(super) struct ReactorContext {
    pub(super) index: usize,
    pub(super) files: Files,
    pub(super) pool: Pool,
    pub(super) state_writer: StateWriter,
    pub(super) media_watch: MediaWatch,
    pub(super) own: Handle<ReactorShard>,
    pub(super) events: Sender<DaemonEvent>,
}

impl ReactorShard {
    /// Makes the state machine of one reactor, without units.
    pub(super) fn new(shard: Shard, runtime: RuntimeConfig, place: ReactorContext) -> Self {
        let ReactorContext { index, files, pool, state_writer, media_watch, own, events } = place;
        Self {
            shard,
            index,
            runtime,
            media: BTreeMap::new(),
            nbd: NbdExports::new(nbd::links(&own, &events)),
            frame_traces: Vec::new(),
            libraries: BTreeMap::new(),
            pending_discs: BTreeMap::new(),
            state_files: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            retiring: Vec::new(),
            files,
            pool,
            state_writer,
            media_watch,
            own,
            events,
            reported_binding_changes: 0,
            reported_binding_evictions: 0,
        }
    }

    /// Adds a unit of a configuration.
    ///
    /// # Errors
    /// A sentence that says why the unit cannot be served.
    pub(super) fn add(
        &mut self,
        now: Instant,
        runtime: &RuntimeConfig,
        fresh: NewUnit,
    ) -> Result<(), String> {
        let id = fresh.id;
        let added = self.try_add(now, runtime, fresh);
        if added.is_err() {
            self.nbd.close(id);
        }
        added
    }

    /// Adds a unit. If that fails, only an export of a server is left of the unit.
    fn try_add(&mut self, now: Instant, runtime: &RuntimeConfig, fresh: NewUnit) -> Result<(), String> {
        let NewUnit { id, index, medium, disk, state, record, is_handed_over } = fresh;
        let (Some(config), Some(unit)) = (runtime.unit_config(index), runtime.config.units.get(index.0))
        else {
            return Err("the unit is not in the configuration".to_owned());
        };
        let (label, naa, unit_medium) = (unit.label.clone(), unit.identity.naa, unit.medium.to_string());
        let loss = medium.loss().map(str::to_owned);
        let place = Place {
            files: &self.files,
            pool: &self.pool,
            exports: self.nbd.queue(),
            id: MediumId(id.0),
            label: &label,
        };
        let placed = medium.move_to_reactor(place);
        if let Some(export) = downcast::<NbdExport>(placed.medium.as_ref()) {
            self.nbd.add(export);
        }
        let saved = state.as_ref().map(|(bytes, _)| bytes.as_slice());
        let unfinished = saved.and_then(unfinished_sanitize);
        let store = || placed.store(&self.pool, self.wake(id));
        let made = if is_handed_over && is::<Tape>(placed.medium.as_ref()) {
            LogicalUnit::new_to_restore(config, store(), self.pool.clone())
        } else {
            match LogicalUnit::new(config.clone(), store(), saved, self.pool.clone()) {
                Err(why @ UnitError::SavedState(_)) => {
                    let path = state.map_or(String::new(), |(_, path)| path);
                    crate::error!(
                        "{label}: {path}: {why}; the holder of its persistent reservation is unknown, so it \
                         rejects nearly every command until an initiator replaces the lost reservation"
                    );
                    LogicalUnit::new_without_reservations(config, store(), self.pool.clone())
                }
                made => made,
            }
        };
        let mut made = made.map_err(|why| format!("{label}: {why}"))?;
        match crate::random::entropy() {
            Ok(entropy) => made.seed(&entropy),
            Err(why) => crate::warning!("{label}: no ROD tokens: cannot get random bytes: {why}"),
        }
        let medium = placed.medium;
        let library = downcast::<Changer>(medium.as_ref()).and_then(Changer::take_library);
        let library = library.map(|library| self.start_library(id, &label, library)).transpose()?;
        if !self.shard.add_disk(now, id, made, disk) {
            return Err(format!("{label}: no unit number is free"));
        }
        // Nothing fails from here on.
        crate::debug!("{label}: {} is served as naa.{naa} by reactor {}", unit_medium, self.index);
        if unfinished == Some(UnfinishedSanitize::InProgress) {
            crate::warning!("{label}: SANITIZE or FORMAT UNIT was under way, and erases {unit_medium} again");
        }
        self.state_files.insert(id, StateFile { naa, medium: record });
        if !is_handed_over {
            medium.start(Box::new(self.wake(id)));
        }
        if loss.is_some() {
            self.shard.record_lost_writes(now, id);
        }
        self.record_losses_of(id, unit, medium.as_ref(), loss.as_deref());
        self.watch(id, medium.as_ref());
        self.media.insert(id, medium);
        if let Some(library) = library {
            self.serve_library(now, id, library);
        }
        Ok(())
    }

    /// Returns what notifies this reactor, from another thread, that the medium of a unit has results.
    fn wake(&self, id: UnitId) -> impl Fn() + Clone + Send + use<> {
        let own = self.own.clone();
        move || {
            // A reactor that has stopped handles no completions, so an error is ignored.
            let _ = own.post(move |member: &mut Self, now| member.medium_ready(now, MediumId(id.0)));
        }
    }

    /// Watches the file or device of a unit, if it has one.
    fn watch(&self, id: UnitId, medium: &dyn ServedMedium) {
        let Some(disk) = disk_of(medium) else { return };
        let own = self.own.clone();
        let served = Arc::downgrade(&disk.info());
        disk.on_truncate(move || {
            let why = "the file ends before the disk does";
            let served = served.clone();
            // Posted to the message queue, because the unit is in the middle of an operation.
            let _ = own.post(move |member: &mut Self, now| member.withhold_served(now, id, &served, why));
        });
        self.media_watch.add(id, &disk.info(), self.own.clone());
    }

    /// Withholds a disk whose file or device differs from what is served, until a reload accepts it.
    pub(super) fn withhold(&mut self, now: Instant, id: UnitId, why: &str) {
        if self.disk(id).is_some_and(|disk| disk.withhold(why)) {
            self.shard.withhold_medium(now, id, true);
        }
    }

    /// Tells a unit when the storage that it shares with others counts as short.
    pub(super) fn set_space_threshold(&mut self, now: Instant, id: UnitId, threshold: SpaceThreshold) {
        self.shard.set_space_threshold(now, id, threshold);
    }

    /// Withholds a disk if the unit still has it. Another disc can be in a drive when the last operations of
    /// one end, or when its path was compared.
    pub(super) fn withhold_served(&mut self, now: Instant, id: UnitId, served: &Weak<DiskInfo>, why: &str) {
        let present = self.disk(id).map(|disk| Arc::downgrade(&disk.info()));
        if present.is_some_and(|present| present.ptr_eq(served)) {
            self.withhold(now, id, why);
        }
    }

    /// Closes the media of removed units that have no operation under way any more.
    fn close_removed(&mut self) {
        while let Some((id, unit)) = self.shard.poll_removed() {
            let (has_lost_writes, is_sanitizing) = (unit.has_lost_writes(), unit.is_sanitizing());
            drop(unit);
            self.nbd.close(id);
            if !has_lost_writes {
                let _ = self.events.send(DaemonEvent::UnitClosed(id));
            }
            let Some(at) = self.retiring.iter().position(|(known, _)| *known == id) else { continue };
            let (_, RetiringUnit { label, told, state_file, .. }) = self.retiring.remove(at);
            if let Some(StateFile { naa, medium }) = state_file.filter(|_| is_sanitizing) {
                crate::warning!(
                    "{label}: SANITIZE or FORMAT UNIT is under way; when {} is served as naa.{naa} again, it is \
                     erased: to put other data there, remove units/{naa}.state of the state directory before",
                    medium.medium
                );
            }
            if has_lost_writes {
                crate::error!("{label}: what hosts wrote last may be missing on the cartridge");
            }
            if told {
                crate::info!("{label} is closed");
            }
        }
    }

    /// Returns the files or devices, and the world-wide names, of removed units that still have operations
    /// under way or state to save.
    pub(super) fn closing_media(&self) -> Vec<(Option<PathBuf>, Option<Naa>)> {
        let of =
            |removed: &RetiringUnit| (removed.path.clone(), removed.state_file.as_ref().map(|file| file.naa));
        self.retiring.iter().map(|(_, removed)| of(removed)).collect()
    }

    /// Passes on whether a state is durable now.
    pub(super) fn state_saved(&mut self, now: Instant, unit: UnitId, ticket: u64, ok: bool) {
        self.shard.state_saved(now, unit, ticket, ok);
    }

    /// Asks every session to log out, and accepts no new sessions.
    pub(super) fn drain(&mut self, now: Instant, within: std::time::Duration) {
        self.shard.drain(now, within);
    }

    /// Unloads the cartridges: no unit of a tape drive serves from now on.
    pub(super) fn unload_cartridges(&mut self, now: Instant) {
        let tapes = self.media.iter().filter(|(_, medium)| is::<Tape>(medium.as_ref()));
        for id in tapes.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.media.remove(&id);
            self.shard.remove_unit(now, id);
        }
    }

    /// Ends the sessions that a client of the admin socket selected; returns their number.
    pub(super) fn drop_sessions(
        &mut self,
        now: Instant,
        within: std::time::Duration,
        is_wanted: impl Fn(&str, &str, [u8; 6]) -> bool,
    ) -> usize {
        self.shard.drop_sessions(now, within, is_wanted)
    }

    /// Returns what initiators would lose by another configuration, and the LUNs that it would give to other
    /// disks than they have used.
    pub(super) fn losses(
        &self,
        now: Instant,
        runtime: &RuntimeConfig,
    ) -> (Vec<SessionLoss>, Vec<WithheldLun>) {
        let losses = self.shard.losses(now, runtime.shard_config(self.index));
        (losses, self.shard.withheld_by(now, runtime.shard_config_with_all_luns(self.index)))
    }

    /// Returns whether no session is left.
    pub(super) fn is_idle(&self) -> bool {
        self.shard.is_idle()
    }

    /// Returns the HyperSCSI counters so far.
    pub(super) fn frame_totals(&self) -> HyperScsiReport {
        HyperScsiReport {
            stats: *self.shard.frame_stats(),
            handshakes: self.shard.frame_handshakes(),
            paths: self.shard.frame_totals(),
        }
    }

    /// Returns every session.
    pub(super) fn sessions(&self) -> Vec<SessionReport> {
        self.shard.sessions()
    }

    /// Returns every unit.
    pub(super) fn units(&self) -> Vec<UnitView> {
        let view = |report: UnitReport| {
            let medium = self.media.get(&report.unit);
            let health = medium.map_or_else(MediumHealth::default, |medium| medium.health());
            let not_ready: Option<Cow<'static, str>> = match medium {
                _ if report.drain != Drain::No => Some("the operator drains it".into()),
                Some(medium) => medium.why_not_ready(&report),
                None => report.not_ready.map(|sense| describe_not_ready(sense).into()),
            };
            let failed_flush = || report.has_failed_flush.then(|| "a flush of its medium failed".to_owned());
            UnitView {
                not_ready: not_ready.map(Cow::into_owned),
                // The unit knows what lies between its medium and hosts, such as a LUKS header.
                bytes: medium.and_then(|medium| medium.capacity()).unwrap_or(report.capacity),
                health: MediumHealth { lost_writes: health.lost_writes.or_else(failed_flush), ..health },
                report,
            }
        };
        self.shard.units().into_iter().map(view).collect()
    }

    /// Returns the reservations of the units that have any.
    pub(super) fn reservations(&self) -> Vec<(UnitId, ReservationReport)> {
        self.shard.reservations()
    }

    /// Returns the name of an interface.
    pub(super) fn interface(&self, port: EtherPort) -> &str {
        let known = self.runtime.interfaces.iter().find(|(known, _)| *known == port);
        known.map_or("an interface that no longer exists", |(_, name)| name)
    }

    /// Returns every HyperSCSI session, with the names of the interfaces that its paths are on.
    pub(super) fn frame_sessions(&self) -> Vec<(HyperScsiSessionReport, Vec<String>)> {
        let named = |report: HyperScsiSessionReport| {
            let names =
                report.paths.iter().map(|path| self.interface(path.address.port).to_owned()).collect();
            (report, names)
        };
        self.shard.frame_sessions().into_iter().map(named).collect()
    }

    /// Returns the world-wide name of a unit.
    fn naa(&self, id: UnitId) -> Option<Naa> {
        self.state_files.get(&id).map(|file| file.naa)
    }

    fn submit_state_writes(&mut self) {
        while let Some(SaveRequest { unit, ticket, state }) = self.shard.poll_save() {
            let removed = || self.retiring.iter().find(|(id, _)| *id == unit)?.1.state_file.clone();
            let Some(StateFile { naa, medium }) = self.state_files.get(&unit).cloned().or_else(removed)
            else {
                continue;
            };
            let reactor = self.own.clone();
            // The state writer outlives every reactor, so sending cannot fail.
            let write = StateWrite { reactor, unit, ticket, naa, medium, state };
            let _ = self.state_writer.send(StateJob::Unit(write));
        }
    }
}

impl FrameMachine for ReactorShard {
    fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.shard.port_up(now, port, state, entropy);
    }

    fn port_down(&mut self, now: Instant, port: EtherPort) {
        self.shard.port_down(now, port);
    }

    fn frame_received(&mut self, now: Instant, frame: ReceivedFrame<'_>) {
        self.nbd.set_time(now);
        if !self.frame_traces.is_empty() {
            self.trace_received(&frame);
        }
        self.shard.frame_received(now, frame);
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        self.shard.poll_port()
    }

    fn transmit_frames(&mut self, now: Instant, port: EtherPort, out: &mut FrameBatch) {
        let before = out.len();
        self.shard.transmit_frames(now, port, out);
        if !self.frame_traces.is_empty() {
            self.trace_sent(port, out, before);
        }
    }

    fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        self.shard.frames_too_long(now, port, count);
    }

    fn frames_overrun(&mut self, now: Instant, port: EtherPort, count: u32) {
        self.shard.frames_overrun(now, port, count);
    }

    fn is_frame_idle(&self) -> bool {
        self.shard.is_frame_idle()
    }

    fn entropy_wanted(&self) -> usize {
        self.shard.entropy_wanted()
    }

    fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.shard.add_entropy(entropy);
    }
}
