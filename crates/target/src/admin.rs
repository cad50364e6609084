//! What the daemon tells a running shard and asks of it.

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

/// Reservation state that must be on stable storage before the command that changed it is answered.
#[derive(Debug)]
pub struct SaveRequest {
    /// The unit it belongs to.
    pub unit: UnitId,
    /// To be returned with [`Shard::state_saved`].
    pub ticket: u64,
    /// The whole state, in place of what was stored for this unit before.
    pub state: Vec<u8>,
}

/// Something that an operator may want to know.
#[derive(Clone, Debug)]
pub enum ShardEvent {
    /// A session began.
    SessionUp {
        /// The initiator.
        initiator: String,
        /// The target.
        target: String,
        /// Where it comes from.
        peer: Option<SocketAddr>,
        /// The name under which the initiator proved itself.
        user: Option<String>,
    },
    /// A session ended.
    SessionDown {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it is gone too.
        target: Option<String>,
        /// Where its first connection came from.
        peer: Option<SocketAddr>,
        /// Why.
        why: SessionEnd,
    },
    /// A LUN means another disk to an initiator than the one that it has opened under it, and leads it to none until it has logged
    /// out.
    LunWithheld {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it is gone too.
        target: Option<String>,
        /// The LUN.
        lun: u16,
    },
    /// A login failed.
    LoginRefused(FailedLogin),
    /// An initiator does something that an operator should know of, and is served all the same.
    Initiator(InitiatorNote),
    /// A handshake of HyperSCSI came to nothing.
    HandshakeRefused(hyperscsi::login::target::HandshakeRefusal),
    /// A HyperSCSI session began.
    HyperScsiSessionUp {
        /// The initiator.
        initiator: String,
        /// The target.
        target: String,
        /// The group that it came with.
        group: String,
        /// Where it comes from; nothing vouches for that.
        peer: Mac,
        /// Where it came in.
        port: EtherPort,
        /// Whether it knew the group's password.
        authenticated: bool,
    },
    /// A HyperSCSI session ended.
    HyperScsiSessionDown {
        /// The initiator.
        initiator: String,
        /// The target; `None` if it is gone too.
        target: Option<String>,
        /// Why.
        why: hyperscsi::target::contract::SessionEnd,
    },
    /// Something about a path of a HyperSCSI session changed.
    Path {
        /// The initiator.
        initiator: String,
        /// Our port.
        port: EtherPort,
        /// The initiator's.
        peer: Mac,
        /// What.
        news: hyperscsi::target::contract::PathChange,
    },
    /// A port carries frames, or something about it changed.
    PortUp {
        /// The port.
        port: EtherPort,
        /// How it is.
        state: PortState,
    },
    /// A port carries nothing at present.
    PortDown {
        /// The port.
        port: EtherPort,
    },
}

/// How many notices wait for whoever writes them down; more are forgotten.
pub(crate) const MAX_NOTICES: usize = 256;

/// A session, for people.
#[derive(Clone, Debug)]
pub struct SessionReport {
    /// The target's name; `None` for a discovery session.
    pub target: Option<String>,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's half of the session identifier.
    pub isid: [u8; 6],
    /// The target's half.
    pub tsih: u16,
    /// Where its first connection comes from.
    pub peer: Option<SocketAddr>,
    /// How many connections it has.
    pub connections: usize,
    /// What each of them is, the leading one first.
    pub members: Vec<ConnectionView>,
    /// How many connections were lost whose tasks wait for another.
    pub lost: usize,
    /// How many tasks are open.
    pub tasks: u32,
    /// How many bytes of answers wait for the initiator to read them, or are asked for.
    pub unsent_bytes: usize,
    /// The error recovery level.
    pub error_recovery_level: u8,
    /// What it did so far.
    pub traffic: Traffic,
    /// What was repaired in it so far.
    pub repairs: Repairs,
    /// The LUNs that lead it to no disk, because they mean another one now than the one that it has opened.
    pub withheld_luns: Vec<u16>,
}

/// A HyperSCSI session, for people.
#[derive(Clone, Debug)]
pub struct HyperScsiSessionReport {
    /// The target's name.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// What distinguishes the initiator's ports.
    pub isid: [u8; 6],
    /// The group that it came with.
    pub group: String,
    /// Whether its frames can be protected.
    pub authenticated: bool,
    /// How many tasks are open.
    pub tasks: u32,
    /// How many bytes of answers the initiator has not acknowledged.
    pub unacknowledged_bytes: usize,
    /// What it did so far.
    pub traffic: hyperscsi::target::contract::Traffic,
    /// Frames that it did not take, by reason.
    pub drops: DropCounts,
    /// What its paths did so far, those included that are gone.
    pub totals: PathTotals,
    /// Its paths.
    pub paths: Vec<PathView>,
    /// The LUNs that lead it to no disk, because they mean another one now than the one that it has opened.
    pub withheld_luns: Vec<u16>,
}

/// A logical unit, for people.
#[derive(Clone, Debug)]
pub struct UnitReport {
    /// Its number.
    pub unit: UnitId,
    /// What it did so far, and its state.
    pub stats: UnitStats,
}

impl Shard {
    /// Brings a unit in under a number below [`crate::shard::MAX_UNITS`]. Nexuses whose map names it see it at once.
    /// Returns whether the number was free and legal.
    pub fn add_unit(&mut self, now: Instant, id: UnitId, unit: LogicalUnit) -> bool {
        self.add_disk(now, id, unit, DiskId::of_unit(id))
    }

    /// The same with the name of its disk, which tells whether an initiator that comes back to a LUN finds what it has opened
    /// there.
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

    /// Takes a unit out: nothing reaches it any more, and every command and function that it has is answered.
    /// [`Self::poll_removed`] gives it back when its medium has ended what it was asked for. Its number is free at once.
    ///
    /// Returns whether there was one.
    pub fn remove_unit(&mut self, now: Instant, id: UnitId) -> bool {
        let Some(retiring) = self.units.retire(id) else { return false };
        self.owners.rename(id, retiring);
        if let Some(unit) = self.units.mark_dirty(retiring) {
            unit.retire(now);
        }
        self.process_pending(now);
        true
    }

    /// Returns a unit that was removed and has nothing under way any more, so that its medium can be closed, and the number
    /// that it had.
    pub fn poll_removed(&mut self) -> Option<(UnitId, Box<LogicalUnit>)> {
        if self.units.has_retiring() { self.units.take_retired() } else { None }
    }

    /// Tells units that were removed that the medium which had this number has completions.
    pub(crate) fn retiring_ready(&mut self, now: Instant, given: UnitId) {
        let ids: Vec<UnitId> = self.units.retiring_from(given).collect();
        for id in ids {
            if let Some(unit) = self.units.mark_dirty(id) {
                unit.store_ready(now);
            }
        }
    }

    /// Changes how a unit presents itself.
    pub fn reconfigure_unit(&mut self, now: Instant, id: UnitId, config: UnitConfig) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.reconfigure(now, config);
        }
        self.process_pending(now);
    }

    /// Tells a unit that its medium has another size now.
    pub fn capacity_changed(&mut self, now: Instant, id: UnitId) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.capacity_changed(now);
        }
        self.process_pending(now);
    }

    /// Withholds the medium of a unit that is not what it was, or gives it back.
    pub fn withhold_medium(&mut self, now: Instant, id: UnitId, withheld: bool) {
        if let Some(unit) = self.units.mark_dirty(id) {
            unit.withhold_medium(now, withheld);
        }
        self.process_pending(now);
    }

    /// Takes over changed limits, those of sessions at hand included: `limits` counts for what may change while connections
    /// live, and that is what concerns sessions and logins. Call it before [`Self::apply`].
    pub fn set_limits(&mut self, limits: &Limits) {
        self.limits = limits.of_session();
        self.engine.set_logins(limits.sessions_max, limits.login_within);
        self.engine.set_lenient_names(limits.lenient_names);
        self.engine.allow_connections(limits.connections_max);
    }

    /// Takes over a changed configuration. Sessions stay, except those with a target that is gone, that is no longer
    /// served through their portal, or whose initiator is no longer admitted; those are asked to log out and closed.
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
                    // A portal that is gone leaves its port to the others of its group; one that is there and does not
                    // serve the target any more is closed to it.
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

    /// Has every nexus look again at what stands under its LUNs.
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

    /// Tells the operator which LUNs a nexus cannot use because they mean other disks than those that it has opened. `known`
    /// are those that were told of before.
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

    /// Tells units about a nexus whose map changed: those that it lost, those that it gained, those that stay.
    /// `moved` says whether another disk than before stands under some LUN.
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

    /// Returns the next piece of state to store. Ask after every call into the shard.
    pub fn poll_save(&mut self) -> Option<SaveRequest> {
        self.saves.pop_front()
    }

    /// Tells whether a [`SaveRequest`] is on stable storage now.
    pub fn state_saved(&mut self, now: Instant, unit: UnitId, ticket: u64, ok: bool) {
        let incarnation = u32::try_from(ticket >> 32).unwrap_or(u32::MAX);
        let id = self.units.find(incarnation).filter(|id| self.units.given(*id) == unit);
        let ticket = ticket & u64::from(u32::MAX);
        if let Some(unit) = id.and_then(|id| self.units.mark_dirty(id)) {
            unit.state_saved(now, ticket, ok);
        }
        self.process_pending(now);
    }

    /// Asks every session to log out within `within` (at least a second) and takes no new ones. Those of HyperSCSI are closed:
    /// their initiators come back by themselves and begin again what was not answered.
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

    /// Returns whether no session is left.
    pub fn is_idle(&self) -> bool {
        self.engine.sessions().next().is_none() && self.frames.sessions().next().is_none()
    }

    /// Returns something that an operator may want to know.
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

    /// Returns every session.
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

    /// Returns every HyperSCSI session.
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

    /// Returns what the HyperSCSI engine did so far.
    pub const fn frame_stats(&self) -> &hyperscsi::target::engine::EngineStats {
        self.frames.stats()
    }

    /// Returns what became of handshakes of HyperSCSI so far.
    pub const fn frame_handshakes(&self) -> hyperscsi::login::target::HandshakeStats {
        self.frames.handshakes()
    }

    /// Returns what the paths of all HyperSCSI sessions did so far, those included that are gone.
    pub fn frame_totals(&self) -> PathTotals {
        self.frames.path_totals()
    }

    /// Returns what was lost or damaged on the way so far, in sessions at hand and gone, and what was repaired.
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

    /// Returns how many logins succeeded and how many failed so far.
    pub const fn logins(&self) -> (u64, u64) {
        let (stats, handshakes) = (self.engine.stats(), self.frames.handshakes());
        let failed = handshakes.refused + handshakes.unfinished;
        (stats.logins + self.frames.stats().sessions, stats.logins_failed + failed)
    }

    /// Returns what the protocol engine did so far.
    pub const fn wire_stats(&self) -> &iscsi::target::engine::EngineStats {
        self.engine.stats()
    }

    /// Returns how many bytes of data commands hold: none when none is open.
    pub const fn data_bytes(&self) -> usize {
        self.engine.data_bytes() + self.frames.data_bytes()
    }

    /// Returns every unit.
    pub fn units(&self) -> Vec<UnitReport> {
        self.units.iter().map(|(unit, lu)| UnitReport { unit, stats: lu.stats() }).collect()
    }
}
