//! The interface by which the daemon controls and queries a running shard.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::ether::{EtherPort, Mac, PortState};
use base::state_machine::PortalId;
use base::time::{Duration, Instant};
use device::contract::{NexusId, UnitConfig};
use device::library::{LibraryEvent, LibraryInput};
use device::rate_limit::{LimitStats, RateLimit};
use device::slow_command::SlowCommand;
use device::unit::LogicalUnit;
use hyperscsi::connection::{DropCounts, PathTotals, PathView};
use hyperscsi::pdu::parameters::Levels;
use iscsi::target::contract::{AsyncEvent, ConnectionView, FailedLogin, Repairs, SessionEnd, Traffic};
use iscsi::target::engine::Limits;
use iscsi::target::initiator_notes::InitiatorNote;
use iscsi::target::protection::Protection;
use security::Level;
use transport::target::SessionId;

use target::nexus::{MapEntry, NexusEntry};
use target::target::{SaveRequest, UnitReport};
use target::transport_id::{TransportId, nexus_of};
use target::units::{DiskId, UnitId};

use crate::config::{Admission, LunEntry, ShardConfig, TargetPortName};
use crate::ingress::{Group, levels, rows_of_group};
use crate::shard::{HYPERSCSI, ISCSI, Shard};

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
        /// The portal of its first connection.
        portal: PortalId,
        /// What protects it.
        protection: Protection,
        /// How many LUNs of the target it does not see because they require more protection.
        hidden_luns: usize,
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
    /// The configuration changed how many LUNs a session does not see because they require more protection.
    LunsHidden {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it was removed from the configuration.
        target: Option<String>,
        /// The level of the session.
        level: Level,
        /// How many LUNs it does not see now.
        hidden_luns: usize,
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
        /// The target ports through which the initiator has to log out before the LUN leads it to a disk.
        claims: Vec<TargetPortName>,
    },
    /// Every LUN is withheld from an initiator, because the record of the LUNs that it has used cannot be
    /// read.
    AllLunsWithheld {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it was removed from the configuration.
        target: Option<String>,
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
        /// How many LUNs of the target it does not see because they require more protection.
        hidden_luns: usize,
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
        change: hyperscsi::target::contract::PathChange,
    },
    /// A command took longer than the limit.
    Slow {
        /// The initiator; `None` if its session has ended.
        initiator: Option<String>,
        /// The target; `None` if its session has ended.
        target: Option<String>,
        /// The LUN under which the initiator sees the unit.
        lun: Option<u16>,
        /// The command, and where its time went.
        command: SlowCommand,
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
    /// The portal of its first connection; `None` for a discovery session.
    pub portal: Option<PortalId>,
    /// What protects it.
    pub protection: Protection,
    /// The limit of the initiator and what it has done so far, if the initiator has or had one.
    pub limit: Option<(RateLimit, LimitStats)>,
    /// How many LUNs of the target it does not see because they require more protection.
    pub hidden_luns: usize,
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
    /// The levels that its commands can have.
    pub levels: Levels,
    /// The limit of the initiator and what it has done so far, if the initiator has or had one.
    pub limit: Option<(RateLimit, LimitStats)>,
    /// How many LUNs of the target it does not see because they require more protection.
    pub hidden_luns: usize,
}

impl Shard {
    /// Adds a unit under a number below [`target::units::MAX_UNITS`]. I_T nexuses whose LUN map contains the
    /// number see the unit immediately. Returns false if the number was not free or too high.
    pub fn add_unit(&mut self, now: Instant, id: UnitId, unit: LogicalUnit) -> bool {
        self.add_disk(now, id, unit, DiskId::of_unit(id))
    }

    /// Adds a unit like [`Self::add_unit`], with the identifier of its disk. The identifier decides whether
    /// an initiator that reconnects finds under a LUN the disk that it has used there.
    pub fn add_disk(&mut self, now: Instant, id: UnitId, unit: LogicalUnit, disk: DiskId) -> bool {
        let withheld = |(id, entry): (NexusId, &NexusEntry)| (id, entry.withheld().collect::<Vec<u16>>());
        let before: Vec<_> = self.target.nexuses().map(withheld).collect();
        let added = self.target.add_unit(now, id, unit, disk);
        // Sessions that waited for the unit may have used another disk there.
        for (nexus, known) in before {
            let entry = self.target.nexus(nexus);
            if entry.is_some_and(|entry| entry.withheld().any(|lun| !known.contains(&lun))) {
                self.report_withheld(nexus, &known);
            }
        }
        self.process_pending(now);
        added
    }

    /// Removes a unit: no command reaches it any more, and every command and task management function that it
    /// has is answered. [`Self::poll_removed`] returns the unit when its medium has completed all its
    /// operations. The number is free immediately.
    ///
    /// Returns whether the unit existed.
    pub fn remove_unit(&mut self, now: Instant, id: UnitId) -> bool {
        let removed = self.target.remove_unit(now, id);
        self.process_pending(now);
        removed
    }

    /// Returns a removed unit that has nothing under way any more, so that its medium can be closed, and the
    /// number that it had.
    pub fn poll_removed(&mut self) -> Option<(UnitId, Box<LogicalUnit>)> {
        self.target.poll_removed()
    }

    /// Changes the configuration that a unit presents to initiators.
    pub fn reconfigure_unit(&mut self, now: Instant, id: UnitId, config: UnitConfig) {
        self.target.reconfigure_unit(now, id, config);
        self.process_pending(now);
    }

    /// Notifies a unit that the size of its medium has changed.
    pub fn capacity_changed(&mut self, now: Instant, id: UnitId) {
        self.target.capacity_changed(now, id);
        self.process_pending(now);
    }

    /// Withholds the medium of a unit because it is not the same as before, or makes it available again.
    pub fn withhold_medium(&mut self, now: Instant, id: UnitId, withheld: bool) {
        self.target.withhold_medium(now, id, withheld);
        self.process_pending(now);
    }

    /// Drains a unit for its operator, or ends that.
    pub fn set_unit_drained(&mut self, now: Instant, id: UnitId, drained: bool) {
        self.target.set_unit_drained(now, id, drained);
        self.process_pending(now);
    }

    /// Passes on what the owner of a library tells its changer, or a drive in it.
    pub fn library_input(&mut self, now: Instant, id: UnitId, input: LibraryInput) {
        self.target.library_input(now, id, input);
        self.process_pending(now);
    }

    /// Returns the next event for the owner of a library. Call this after every call into the shard.
    pub fn poll_library_event(&mut self) -> Option<(UnitId, LibraryEvent)> {
        self.target.poll_library_event()
    }

    /// Replaces the limits of sessions and logins, also for existing sessions. Of `limits`, it uses those
    /// that may change while connections exist. Call this before [`Self::apply`].
    pub fn set_limits(&mut self, limits: &Limits) {
        self.limits = limits.of_session();
        self.transports.iscsi.set_logins(limits.sessions_max, limits.login_within);
        self.transports.iscsi.set_lenient_names(limits.lenient_names);
        self.transports.iscsi.allow_connections(limits.connections_max);
    }

    /// Replaces the configuration (reload). Sessions continue, except those whose target was removed or is no
    /// longer served through their portal, and those whose initiator is no longer admitted. The initiators of
    /// these sessions are notified, and the sessions are closed.
    pub fn apply(&mut self, now: Instant, mut config: ShardConfig) {
        config.sort();
        self.transports.iscsi.set_session_limits(now, self.limits, config.session_limits());
        let moved = self.moved_portals(&config);
        self.config = config;
        self.update_target_ports();
        for (target, from, to) in moved {
            self.target.portal_moved(target, from, to);
        }
        let ids: Vec<_> = self.target.nexuses().map(|(id, _)| id).collect();
        for id in ids {
            let Some(entry) = self.target.nexus(id) else { continue };
            let Some(map) = self.map_of(&self.config, entry) else {
                self.target.close(now, id, &mut self.transports);
                continue;
            };
            let target = self.config.target_of(entry.target());
            let limit = target.map_or(RateLimit::NONE, |target| target.quota_of(entry.initiator()).limit);
            let (withheld, hidden): (Vec<u16>, _) = (entry.withheld().collect(), entry.hidden());
            if self.target.remap(now, id, map) {
                self.report_withheld(id, &withheld);
                self.report_hidden(id, hidden);
            }
            self.target.limit_initiator(now, id, limit);
        }
        for (session, entry) in self.target.nexuses().map(|(_, entry)| (entry.session(), entry)) {
            if let Some(target) = self.config.target_of(entry.target())
                && let (HYPERSCSI, session) = session
                && let Some(ingress) = self.hyperscsi_ingresses.get_mut(session)
            {
                ingress.levels = levels(rows_of_group(target, entry.initiator(), &ingress.group));
            }
        }
        self.process_pending(now);
    }

    /// Reports to the operator that another number of LUNs than `before` is hidden from an I_T nexus.
    fn report_hidden(&mut self, id: NexusId, before: usize) {
        let Some(entry) = self.target.nexus(id).filter(|entry| entry.hidden() != before) else { return };
        let target = self.config.target_of(entry.target());
        let event = ShardEvent::LunsHidden {
            initiator: entry.initiator().into(),
            target: target.map(|target| target.name.as_str().into()),
            level: entry.level(),
            hidden_luns: entry.hidden(),
        };
        self.push_event(event);
    }

    /// Returns the LUN map that a configuration gives an I_T nexus; `None` if its session must end.
    pub(crate) fn map_of(&self, config: &ShardConfig, entry: &NexusEntry) -> Option<Vec<MapEntry>> {
        let (target, initiator) = (config.target_of(entry.target())?, entry.initiator());
        if matches!(target.admit(initiator), Admission::Refused) {
            return None;
        }
        self.map_of_served(config, entry)
    }

    /// Returns the LUN map with which the session of an I_T nexus could begin under a configuration; `None`
    /// if it could not. A HyperSCSI handshake demands the membership in the group alone: an initiator that
    /// the target does not admit has a session without LUNs.
    pub(crate) fn map_at_login(&self, config: &ShardConfig, entry: &NexusEntry) -> Option<Vec<MapEntry>> {
        match entry.session() {
            (HYPERSCSI, _) => self.map_of_served(config, entry),
            _ => self.map_of(config, entry),
        }
    }

    /// Returns the LUN map that a configuration gives an I_T nexus, which is empty if the target does not
    /// admit the initiator; `None` if the configuration does not serve the target where the session is.
    fn map_of_served(&self, config: &ShardConfig, entry: &NexusEntry) -> Option<Vec<MapEntry>> {
        let (target, initiator) = (config.target_of(entry.target())?, entry.initiator());
        match entry.session() {
            (ISCSI, session) => {
                let portal = self.iscsi_ingresses.get(session)?.portal;
                // If the portal was removed, the target port may still be served by other portals of its
                // group. If the portal exists but no longer serves the target, the session must end.
                let is_served = match config.has_portal(portal) {
                    true => target.port_at(portal).is_some(),
                    false => target.ports.iter().any(|(_, port)| *port == entry.target_port()),
                };
                is_served.then(|| target.luns_of(initiator).iter().map(LunEntry::map_entry).collect())
            }
            (_, session) => {
                let Group { group, authenticated, .. } = self.hyperscsi_ingresses.get(session)?;
                let is_served = target.port_of(group).is_some() && config.admits(group, *authenticated);
                is_served.then(|| rows_of_group(target, initiator, group).map(LunEntry::map_entry).collect())
            }
        }
    }

    /// Returns the next state to store. Call this after every call into the shard.
    pub fn poll_save(&mut self) -> Option<SaveRequest> {
        self.target.poll_save()
    }

    /// Records whether the state of a [`SaveRequest`] is on stable storage.
    pub fn state_saved(&mut self, now: Instant, unit: UnitId, ticket: u64, ok: bool) {
        self.target.state_saved(now, unit, ticket, ok);
        self.process_pending(now);
    }

    /// Requests that every iSCSI session log out within `within` (at least one second), and accepts no new
    /// sessions. HyperSCSI sessions are closed: their initiators reconnect by themselves and repeat the
    /// commands that were not answered.
    pub fn drain(&mut self, now: Instant, within: Duration) {
        self.draining = true;
        let sessions: Vec<SessionId> = self.transports.iscsi.sessions().map(|view| view.session).collect();
        for session in sessions {
            self.transports.iscsi.async_message(now, session, AsyncEvent::LogoutRequest { within });
        }
        let sessions: Vec<_> = self.transports.hyperscsi.sessions().map(|view| view.session).collect();
        for session in sessions {
            self.transports.hyperscsi.shut_session(now, session);
        }
        self.process_pending(now);
    }

    /// Ends the sessions that `is_wanted` selects by the names of target and initiator and by ISID; returns
    /// their number. iSCSI sessions are asked to log out within `within` (at least one second) and lose their
    /// connections then. HyperSCSI sessions are closed at once. Their initiators may log in again.
    pub fn drop_sessions(
        &mut self,
        now: Instant,
        within: Duration,
        is_wanted: impl Fn(&str, &str, [u8; 6]) -> bool,
    ) -> usize {
        let iscsi = self.transports.iscsi.sessions().filter(|view| {
            let target = view.target.and_then(|id| self.config.target(id));
            target.is_some_and(|target| is_wanted(target.name.as_str(), view.initiator.as_str(), view.isid.0))
        });
        let iscsi: Vec<SessionId> = iscsi.map(|view| view.session).collect();
        let frames = self.transports.hyperscsi.sessions();
        let frames = frames.filter(|view| is_wanted(view.target, view.initiator, view.isid));
        let frames: Vec<_> = frames.map(|view| view.session).collect();
        let count = iscsi.len() + frames.len();
        for session in iscsi {
            self.transports.iscsi.async_message(now, session, AsyncEvent::LogoutRequest { within });
        }
        for session in frames {
            self.transports.hyperscsi.shut_session(now, session);
        }
        self.process_pending(now);
        count
    }

    /// Returns whether there are no sessions.
    pub fn is_idle(&self) -> bool {
        self.transports.iscsi.sessions().next().is_none()
            && self.transports.hyperscsi.sessions().next().is_none()
    }

    /// Returns the next event to report to the operator.
    pub fn poll_event(&mut self) -> Option<ShardEvent> {
        let logins = &mut self.transports.iscsi;
        let notice =
            self.notices.pop_front().or_else(|| logins.poll_failed_login().map(ShardEvent::LoginRefused));
        let notice = notice.or_else(|| logins.poll_note().map(ShardEvent::Initiator));
        let notice = notice.or_else(|| self.poll_slow_command());
        notice.or_else(|| self.transports.hyperscsi.poll_refusal().map(ShardEvent::HandshakeRefused))
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
            error_recovery_level: view.parameters.error_recovery_level.number(),
            traffic: view.traffic,
            repairs: view.repairs,
            withheld_luns: self.withheld_luns(ISCSI, view.session),
            portal: self.iscsi_ingresses.get(view.session).map(|ingress| ingress.portal),
            protection: view.protection,
            limit: self.limit_of(nexus_of(ISCSI, view.session)),
            hidden_luns: self.hidden_luns(nexus_of(ISCSI, view.session)),
        };
        self.transports.iscsi.sessions().map(report).collect()
    }

    fn withheld_luns(&self, transport: TransportId, session: SessionId) -> Vec<u16> {
        let entry = self.target.nexus(nexus_of(transport, session));
        entry.map(|entry| entry.withheld().collect()).unwrap_or_default()
    }

    fn limit_of(&self, id: NexusId) -> Option<(RateLimit, LimitStats)> {
        self.target.nexus(id)?.limit()
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
            withheld_luns: self.withheld_luns(HYPERSCSI, view.session),
            levels: self.hyperscsi_ingresses.get(view.session).map_or(Levels::OPEN, |ingress| ingress.agreed),
            limit: self.limit_of(nexus_of(HYPERSCSI, view.session)),
            hidden_luns: self.hidden_luns(nexus_of(HYPERSCSI, view.session)),
        };
        self.transports.hyperscsi.sessions().map(report).collect()
    }

    /// Returns the statistics of the HyperSCSI engine.
    pub const fn frame_stats(&self) -> &hyperscsi::target::engine::EngineStats {
        self.transports.hyperscsi.stats()
    }

    /// Returns the statistics of HyperSCSI handshakes.
    pub const fn frame_handshakes(&self) -> hyperscsi::login::target::HandshakeStats {
        self.transports.hyperscsi.handshakes()
    }

    /// Returns the statistics of the paths of all HyperSCSI sessions, including those that are gone.
    pub fn frame_totals(&self) -> PathTotals {
        self.transports.hyperscsi.path_totals()
    }

    /// Returns the statistics of the iSCSI engine.
    pub const fn wire_stats(&self) -> &iscsi::target::engine::EngineStats {
        self.transports.iscsi.stats()
    }

    /// Gives a connection the keys of an AEAD digest, as if its login had ended with them. Returns whether
    /// its login has ended.
    #[cfg(feature = "injected-keys")]
    pub fn inject_record_keys(
        &mut self,
        conn: base::state_machine::ConnId,
        keys: impl FnOnce() -> iscsi::aead::RecordKeys,
    ) -> bool {
        self.transports.iscsi.inject_record_keys(conn, keys)
    }

    /// Returns how many bytes of data open commands hold; zero if no command is open.
    pub const fn data_bytes(&self) -> usize {
        self.transports.iscsi.data_bytes() + self.transports.hyperscsi.data_bytes()
    }

    /// Returns the state of every unit.
    pub fn units(&self) -> Vec<UnitReport> {
        self.target.units()
    }
}
