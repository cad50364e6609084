//! The interface by which the daemon controls and queries a running shard.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::ether::{EtherPort, Mac, PortState};
use base::time::{Duration, Instant};
use device::contract::{NexusId, UnitConfig};
use device::unit::{LogicalUnit, UnitStats};
use hyperscsi::connection::{DropCounts, PathTotals, PathView};
use iscsi::target::contract::{
    AsyncEvent, ConnectionView, FailedLogin, Repairs, SessionEnd, SessionId, Traffic,
};
use iscsi::target::engine::Limits;
use iscsi::target::initiator_notes::InitiatorNote;

use crate::config::{Admission, DiskId, ShardConfig, UnitId};
use crate::nexus::Ingress;
use crate::shard::Shard;
use crate::transport::SessionRef;

/// Reservation state that must be on stable storage before the command that changed it returns status.
#[derive(Debug)]
pub struct SaveRequest {
    /// The unit whose state it is.
    pub unit: UnitId,
    /// The daemon passes this ticket to [`Shard::state_saved`].
    pub ticket: u64,
    /// The whole state. It replaces the state that was stored for this unit before.
    pub state: Vec<u8>,
}

/// An event to report to the operator.
#[derive(Clone, Debug)]
pub enum ShardEvent {
    /// A session was established.
    SessionUp {
        /// The initiator.
        initiator: String,
        /// The target.
        target: String,
        /// The address from which the initiator connected.
        peer: Option<SocketAddr>,
        /// The name with which the initiator authenticated, if it had to.
        user: Option<String>,
    },
    /// A session ended.
    SessionDown {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it was removed from the configuration.
        target: Option<String>,
        /// The address from which its first connection came.
        peer: Option<SocketAddr>,
        /// The reason.
        why: SessionEnd,
    },
    /// A LUN is withheld: it means another disk than the one that the initiator has used under it. It leads
    /// the initiator to no disk until the initiator has logged out.
    LunWithheld {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it was removed from the configuration.
        target: Option<String>,
        /// The LUN.
        lun: u16,
    },
    /// A login failed.
    LoginRefused(FailedLogin),
    /// An initiator did something that the operator should know. It is served nevertheless.
    Initiator(InitiatorNote),
    /// A HyperSCSI handshake failed.
    HandshakeRefused(hyperscsi::login::target::HandshakeRefusal),
    /// A HyperSCSI session was established.
    HyperScsiSessionUp {
        /// The initiator.
        initiator: String,
        /// The target.
        target: String,
        /// The group with which the initiator logged in.
        group: String,
        /// The MAC address of the initiator, which is not authenticated.
        peer: Mac,
        /// The Ethernet port through which the initiator logged in.
        port: EtherPort,
        /// Whether the initiator knew the group's password.
        authenticated: bool,
    },
    /// A HyperSCSI session ended.
    HyperScsiSessionDown {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it was removed from the configuration.
        target: Option<String>,
        /// The reason.
        why: hyperscsi::target::contract::SessionEnd,
    },
    /// A path of a HyperSCSI session changed.
    Path {
        /// The initiator.
        initiator: String,
        /// The target's Ethernet port.
        port: EtherPort,
        /// The initiator's MAC address.
        peer: Mac,
        /// The change.
        news: hyperscsi::target::contract::PathChange,
    },
    /// An Ethernet port came up, or its state changed.
    PortUp {
        /// The port.
        port: EtherPort,
        /// The state of the port.
        state: PortState,
    },
    /// An Ethernet port went down: it carries no frames at present.
    PortDown {
        /// The port.
        port: EtherPort,
    },
}

/// How many events wait to be polled; further events are dropped.
pub(crate) const MAX_NOTICES: usize = 256;

/// The state of an iSCSI session, for display.
#[derive(Clone, Debug)]
pub struct SessionReport {
    /// The target's name; `None` for a discovery session.
    pub target: Option<String>,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's part of the session identifier (ISID).
    pub isid: [u8; 6],
    /// The target's part of the session identifier (TSIH).
    pub tsih: u16,
    /// The address from which its first connection came.
    pub peer: Option<SocketAddr>,
    /// The number of connections.
    pub connections: usize,
    /// The connections, the leading one first.
    pub members: Vec<ConnectionView>,
    /// The number of lost connections whose tasks wait for allegiance reassignment.
    pub lost: usize,
    /// The number of open tasks.
    pub tasks: u32,
    /// The bytes of data-in that wait to be sent, or that commands under way may still produce.
    pub unsent_bytes: usize,
    /// The error recovery level.
    pub error_recovery_level: u8,
    /// What the session transferred so far.
    pub traffic: Traffic,
    /// What error recovery repaired in the session so far.
    pub repairs: Repairs,
    /// The withheld LUNs. They lead the initiator to no disk, because they mean another disk than the one
    /// that it has used under them.
    pub withheld_luns: Vec<u16>,
}

/// The state of a HyperSCSI session, for display.
#[derive(Clone, Debug)]
pub struct HyperScsiSessionReport {
    /// The target's name.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// The ISID, which distinguishes the initiator's ports.
    pub isid: [u8; 6],
    /// The group with which the initiator logged in.
    pub group: String,
    /// Whether its frames can be protected.
    pub authenticated: bool,
    /// The number of open tasks.
    pub tasks: u32,
    /// The bytes of responses that the initiator has not acknowledged.
    pub unacknowledged_bytes: usize,
    /// What the session transferred so far.
    pub traffic: hyperscsi::target::contract::Traffic,
    /// The number of frames that it dropped, by reason.
    pub drops: DropCounts,
    /// The statistics of all its paths so far, including those that are gone.
    pub totals: PathTotals,
    /// Its paths.
    pub paths: Vec<PathView>,
    /// The withheld LUNs. They lead the initiator to no disk, because they mean another disk than the one
    /// that it has used under them.
    pub withheld_luns: Vec<u16>,
}

/// The state of a logical unit, for display.
#[derive(Clone, Debug)]
pub struct UnitReport {
    /// The number of the unit.
    pub unit: UnitId,
    /// The unit's statistics and state.
    pub stats: UnitStats,
}

impl Shard {
    /// Adds a unit under a number below [`crate::shard::MAX_UNITS`]. I_T nexuses whose LUN map contains the
    /// number see the unit immediately. Returns false if the number was not free or too high.
    pub fn add_unit(&mut self, now: Instant, id: UnitId, unit: LogicalUnit) -> bool {
        self.add_disk(now, id, unit, DiskId::of_unit(id))
    }

    /// Adds a unit like [`Self::add_unit`], with the identifier of its disk. The identifier decides whether
    /// an initiator that reconnects finds under a LUN the disk that it has used there.
    pub fn add_disk(&mut self, now: Instant, id: UnitId, unit: LogicalUnit, disk: DiskId) -> bool {
        if !self.units.put(id, Box::new(unit), disk) {
            return false;
        }
        self.remap_all();
        let seers: Vec<_> =
            self.nexuses.iter().filter_map(|(nexus, entry)| entry.seen_by(nexus, id)).collect();
        for nexus in seers {
            if let Some(unit) = self.units.mark_dirty(id) {
                unit.nexus_established(now, nexus);
            }
        }
        self.process_pending(now);
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
        self.process_pending(now);
        true
    }

    /// Returns a removed unit that has nothing under way any more, so that its medium can be closed, and the
    /// number that it had.
    pub fn poll_removed(&mut self) -> Option<(UnitId, Box<LogicalUnit>)> {
        if self.units.has_retiring() { self.units.take_retired() } else { None }
    }

    /// Notifies the retiring units with this number that their medium has completions.
    pub(crate) fn retiring_ready(&mut self, now: Instant, given: UnitId) {
        let ids: Vec<UnitId> = self.units.retiring_from(given).collect();
        for id in ids {
            if let Some(unit) = self.units.mark_dirty(id) {
                unit.store_ready(now);
            }
        }
    }

    /// Changes the configuration that a unit presents to initiators.
    pub fn reconfigure_unit(&mut self, now: Instant, id: UnitId, config: UnitConfig) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.reconfigure(now, config);
        }
        self.process_pending(now);
    }

    /// Notifies a unit that the size of its medium has changed.
    pub fn capacity_changed(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.capacity_changed(now);
        }
        self.process_pending(now);
    }

    /// Withholds the medium of a unit because it is not the same as before, or makes it available again.
    pub fn withhold_medium(&mut self, now: Instant, id: UnitId, withheld: bool) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.withhold_medium(now, withheld);
        }
        self.process_pending(now);
    }

    /// Replaces the limits of sessions and logins, also for existing sessions. Of `limits`, it uses those
    /// that may change while connections exist. Call this before [`Self::apply`].
    pub fn set_limits(&mut self, limits: &Limits) {
        self.limits = limits.of_session();
        self.engine.set_logins(limits.sessions_max, limits.login_within);
        self.engine.set_lenient_names(limits.lenient_names);
        self.engine.allow_connections(limits.connections_max);
    }

    /// Replaces the configuration (reload). Sessions continue, except those whose target was removed or is no
    /// longer served through their portal, and those whose initiator is no longer admitted. The initiators of
    /// these sessions are notified, and the sessions are closed.
    pub fn apply(&mut self, now: Instant, mut config: ShardConfig) {
        config.sort();
        self.engine.set_session_limits(now, self.limits, config.session_limits());
        self.config = config;
        let ids: Vec<_> = self.nexuses.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Some(entry) = self.nexuses.get_mut(id) else { continue };
            let target = self.config.targets.iter().find(|target| target.id == entry.target);
            let admitted = target.filter(|target| {
                let way_is_open = match &entry.ingress {
                    // If the portal was removed, the target port may still be served by other portals of its
                    // group. If the portal exists but no longer serves the target, the session must end.
                    Ingress::Portal(portal) => match self.config.has_portal(*portal) {
                        true => target.port_at(*portal).is_some(),
                        false => target.ports.iter().any(|(_, port)| *port == entry.target_port()),
                    },
                    Ingress::Group(group, authenticated) => {
                        target.port_of(group).is_some() && self.config.admits(group, *authenticated)
                    }
                };
                way_is_open && !matches!(target.admit(entry.initiator.as_str()), Admission::Refused)
            });
            let Some(target) = admitted else {
                let session = entry.session;
                self.close(now, session);
                continue;
            };
            let (before, disks) = (entry.units(), entry.disks());
            let barred: Vec<u16> = entry.withheld().collect();
            if entry.remap(target, &self.bindings, |unit| self.units.disk_of(unit)) {
                let moved = disks != entry.disks();
                self.announce_map(now, id, &before, moved);
                self.report_withheld(id, &barred);
            }
        }
        self.process_pending(now);
    }

    /// Updates the LUN map of every I_T nexus.
    fn remap_all(&mut self) {
        let ids: Vec<_> = self.nexuses.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(entry) = self.nexuses.get_mut(id)
                && let Some(target) = self.config.targets.iter().find(|target| target.id == entry.target)
            {
                entry.remap(target, &self.bindings, |unit| self.units.disk_of(unit));
            }
        }
    }

    /// Reports the LUNs that are withheld from an I_T nexus to the operator, except those in `known`, which
    /// were reported before.
    pub(crate) fn report_withheld(&mut self, id: NexusId, known: &[u16]) {
        let Some(entry) = self.nexuses.get(id) else { return };
        let target = self.config.target(entry.target).map(|target| target.name.as_str().into());
        let initiator: String = entry.initiator.as_str().into();
        let new: Vec<u16> = entry.withheld().filter(|lun| !known.contains(lun)).collect();
        for lun in new {
            self.push_event(ShardEvent::LunWithheld {
                initiator: initiator.clone(),
                target: target.clone(),
                lun,
            });
        }
    }

    /// Notifies the units of an I_T nexus whose LUN map changed: units that it lost, units that it gained,
    /// and units that stay. `moved` is whether a LUN leads to another disk than before.
    fn announce_map(&mut self, now: Instant, id: NexusId, before: &[UnitId], moved: bool) {
        let Some(entry) = self.nexuses.get(id) else { return };
        let after = entry.units();
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
    }

    /// Returns the next state to store. Call this after every call into the shard.
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
        self.process_pending(now);
    }

    /// Requests that every iSCSI session log out within `within` (at least one second), and accepts no new
    /// sessions. HyperSCSI sessions are closed: their initiators reconnect by themselves and repeat the
    /// commands that were not answered.
    pub fn drain(&mut self, now: Instant, within: Duration) {
        self.draining = true;
        let sessions: Vec<SessionId> = self.engine.sessions().map(|view| view.session).collect();
        for session in sessions {
            self.engine.async_message(now, session, AsyncEvent::LogoutRequest { within });
        }
        let sessions: Vec<_> = self.frames.sessions().map(|view| view.session).collect();
        for session in sessions {
            self.frames.shut_session(now, session);
        }
        self.process_pending(now);
    }

    /// Returns whether there are no sessions.
    pub fn is_idle(&self) -> bool {
        self.engine.sessions().next().is_none() && self.frames.sessions().next().is_none()
    }

    /// Returns the next event to report to the operator.
    pub fn poll_event(&mut self) -> Option<ShardEvent> {
        let logins = &mut self.engine;
        let notice =
            self.notices.pop_front().or_else(|| logins.poll_failed_login().map(ShardEvent::LoginRefused));
        let notice = notice.or_else(|| logins.poll_note().map(ShardEvent::Initiator));
        notice.or_else(|| self.frames.poll_refusal().map(ShardEvent::HandshakeRefused))
    }

    pub(crate) fn push_event(&mut self, notice: ShardEvent) {
        if self.notices.len() < MAX_NOTICES {
            self.notices.push_back(notice);
        }
    }

    /// Returns the state of every iSCSI session.
    pub fn sessions(&self) -> Vec<SessionReport> {
        let report = |view: iscsi::target::contract::SessionView<'_>| SessionReport {
            target: view.target.and_then(|id| Some(self.config.target(id)?.name.as_str().into())),
            initiator: view.initiator.as_str().into(),
            isid: view.isid.0,
            tsih: view.tsih.0,
            peer: view.peer,
            connections: view.connections,
            members: view.members,
            lost: view.lost,
            tasks: view.tasks,
            unsent_bytes: view.unsent_bytes,
            error_recovery_level: view.parameters.error_recovery_level,
            traffic: view.traffic,
            repairs: view.repairs,
            withheld_luns: self.withheld_luns(SessionRef::Iscsi(view.session)),
        };
        self.engine.sessions().map(report).collect()
    }

    fn withheld_luns(&self, session: SessionRef) -> Vec<u16> {
        self.nexuses.get(session.nexus()).map(|entry| entry.withheld().collect()).unwrap_or_default()
    }

    /// Returns the state of every HyperSCSI session.
    pub fn frame_sessions(&self) -> Vec<HyperScsiSessionReport> {
        let report = |view: hyperscsi::target::contract::SessionView<'_>| HyperScsiSessionReport {
            target: (**view.target).into(),
            initiator: (**view.initiator).into(),
            isid: view.isid,
            group: (**view.group).into(),
            authenticated: view.authenticated,
            tasks: view.tasks,
            unacknowledged_bytes: view.unacknowledged_bytes,
            traffic: view.traffic,
            drops: view.drops,
            totals: view.totals,
            paths: view.paths,
            withheld_luns: self.withheld_luns(SessionRef::HyperScsi(view.session)),
        };
        self.frames.sessions().map(report).collect()
    }

    /// Returns the statistics of the HyperSCSI engine.
    pub const fn frame_stats(&self) -> &hyperscsi::target::engine::EngineStats {
        self.frames.stats()
    }

    /// Returns the statistics of HyperSCSI handshakes.
    pub const fn frame_handshakes(&self) -> hyperscsi::login::target::HandshakeStats {
        self.frames.handshakes()
    }

    /// Returns the statistics of the paths of all HyperSCSI sessions, including those that are gone.
    pub fn frame_totals(&self) -> PathTotals {
        self.frames.path_totals()
    }

    /// Returns the counts of lost or damaged PDUs and of their recovery, for all iSCSI sessions, including
    /// those that have ended.
    pub const fn repairs(&self) -> Repairs {
        let stats = self.engine.stats();
        Repairs {
            header_digest_errors: stats.header_digest_errors,
            data_digest_errors: stats.data_digest_errors,
            snacks: stats.snacks,
            recovery_r2ts: stats.recovery_r2ts,
            reassigns: stats.reassigns,
        }
    }

    /// Returns how many logins succeeded and how many failed so far, of both transports.
    pub const fn logins(&self) -> (u64, u64) {
        let (stats, handshakes) = (self.engine.stats(), self.frames.handshakes());
        let failed = handshakes.refused + handshakes.unfinished;
        (stats.logins + self.frames.stats().sessions, stats.logins_failed + failed)
    }

    /// Returns the statistics of the iSCSI engine.
    pub const fn wire_stats(&self) -> &iscsi::target::engine::EngineStats {
        self.engine.stats()
    }

    /// Returns how many bytes of data open commands hold; zero if no command is open.
    pub const fn data_bytes(&self) -> usize {
        self.engine.data_bytes() + self.frames.data_bytes()
    }

    /// Returns the state of every unit.
    pub fn units(&self) -> Vec<UnitReport> {
        self.units.iter().map(|(unit, lu)| UnitReport { unit, stats: lu.stats() }).collect()
    }
}
