//! Handles frames that belong to no session: turns handshakes into sessions, answers discovery queries, and
//! sends a Disconnect as a hint to an initiator whose session no longer exists.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::arena::{Arena, Key};
use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::time::{Duration, Instant};
use transport::target::SessionId;

use super::contract::{Event, SessionDirectory, SessionEnd, SessionUp};
use super::engine::{Engine, Service};
use super::session::{Identity, Session};
use crate::Role;
use crate::connection::{Connection, ConnectionConfig, PathAddress};
use crate::discovery::DiscoveryServer;
use crate::frame::{Cmd, Header};
use crate::login::HandshakeResult;
use crate::login::control_queue::ControlQueue;
use crate::login::directory::{Export, TargetAccess, TargetDirectory as Asked};
use crate::login::target::{HandshakeRefusal, HandshakeServer, HandshakeStats as Handshakes};
use crate::path::credit::SHARED_PERCENT;
use crate::pdu::disconnect::Disconnect;
use crate::pdu::name::{GroupName, Name};
use security::random::HmacDrbg;

/// Handles handshakes and discovery, whose senders have no session yet.
pub(super) struct Gateway {
    handshakes: HandshakeServer,
    discovery_server: DiscoveryServer,
    random: HmacDrbg,
    /// Whether a handshake used random bytes since the last block of entropy was added.
    thirsty: bool,
    control_queue: ControlQueue,
    /// How many hints were sent in the current second, and when that second began.
    hints: (u32, Instant),
}

/// How many hints are sent in a second: as many as initiators may share a group of servers.
const HINTS_PER_SECOND: u32 = 256;

/// How many slots of a port's receive ring a session needs to make progress.
const SHARE_LEAST: usize = 8;

impl Gateway {
    pub(super) fn new() -> Self {
        Self {
            handshakes: HandshakeServer::new(Instant::ORIGIN),
            discovery_server: DiscoveryServer::new(Instant::ORIGIN),
            random: HmacDrbg::empty(),
            thirsty: false,
            control_queue: ControlQueue::default(),
            hints: (0, Instant::ORIGIN),
        }
    }

    pub(super) fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.random.reseed(entropy);
        let entropy = self.random.bytes();
        self.handshakes.port_up(now, port, state, entropy);
        self.discovery_server.port_up(port, state);
    }

    pub(super) fn port_down(&mut self, port: EtherPort) {
        self.handshakes.port_down(port);
        self.discovery_server.port_down(port);
        self.control_queue.port_down(port);
    }

    /// Returns how many blocks of entropy are wanted: one after handshakes drew secrets since the last block.
    /// One block in each iteration of the driver suffices for any number of handshakes.
    pub(super) fn entropy_wanted(&self) -> usize {
        usize::from(self.thirsty)
    }

    pub(super) fn add_entropy(&mut self, now: Instant, entropy: [u8; 32]) {
        self.thirsty = false;
        self.random.reseed(entropy);
        let entropy = self.random.bytes();
        self.handshakes.add_entropy(now, entropy);
    }

    pub(super) fn poll_port(&mut self) -> Option<EtherPort> {
        let port = self.handshakes.poll_port().or_else(|| self.discovery_server.poll_port());
        port.or_else(|| self.control_queue.poll_port())
    }

    pub(super) fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        self.handshakes.transmit(port, out);
        self.discovery_server.transmit(port, out);
        self.control_queue.transmit(port, out);
    }

    pub(super) fn poll_refusal(&mut self) -> Option<HandshakeRefusal> {
        self.handshakes.poll_refusal()
    }

    pub(super) const fn handshakes(&self) -> Handshakes {
        self.handshakes.stats()
    }

    pub(super) const fn pause_handshakes(&mut self, is_paused: bool) {
        self.handshakes.pause(is_paused);
    }

    pub(super) const fn half_open_handshakes(&self) -> usize {
        self.handshakes.half_open()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.handshakes.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.handshakes.handle_timeout(now);
    }

    pub(super) fn other_version(&mut self, now: Instant, port: EtherPort, source: Mac) {
        self.handshakes.other_version(now, port, source);
    }

    /// Returns entropy for a transport.
    pub(super) fn draw(&mut self) -> [u8; 8] {
        self.random.bytes()
    }

    /// Returns whether any entropy was added.
    pub(super) const fn is_ready(&self) -> bool {
        self.random.is_ready()
    }

    pub(super) fn session_ended(&mut self, sid: u32) {
        self.handshakes.session_ended(sid);
    }
}

/// The owner's directory, together with the SIDs of the engine's own sessions.
struct LocalDirectory<'a> {
    asked: &'a dyn SessionDirectory,
    sids: &'a BTreeMap<u32, Key>,
    sessions: &'a Arena<Session>,
    full: bool,
    /// How many frames of a new session, in each packet number space, the receive ring can take before the
    /// session receives credit.
    frames_initial: u32,
}

impl Asked for LocalDirectory<'_> {
    fn instance(&self) -> [u8; 16] {
        self.asked.instance()
    }

    fn target_access(&self, port: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess> {
        let mut entrance = self.asked.target_access(port, group, target).filter(|_| !self.full)?;
        let frames_initial = &mut entrance.parameters.frames_initial;
        *frames_initial = self.frames_initial.min(*frames_initial);
        Some(entrance)
    }

    fn export_behind(&self, port: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export> {
        self.asked.export_behind(port, group, after)
    }

    fn has_room(&self, group: &GroupName, target: &Name, initiator: &Name, isid: &[u8; 6]) -> bool {
        self.asked.has_room(group, target, initiator, isid)
    }

    fn sid_taken(&self, sid: u32) -> bool {
        self.sids.contains_key(&sid) || self.asked.sid_taken(sid)
    }

    //= hyperscsi#section-6.6
    //# A session of a group without a password never takes the place of a keyed one
    fn is_held(&self, group: &GroupName, target: &Name, initiator: &Name, isid: &[u8; 6]) -> bool {
        let held = |session: &Session| session.keyed && session.is_of(group, target, initiator, isid);
        self.sessions.iter().any(|(_, session)| held(session))
    }
}

impl Engine {
    /// Processes a frame that belongs to no session.
    pub(super) fn handle_sessionless_frame(
        &mut self,
        now: Instant,
        (port, source): (EtherPort, Mac),
        header: &Header,
        bytes: &mut [u8],
        directory: &dyn SessionDirectory,
    ) {
        let full = self.is_full(port, false);
        let frames_initial = self.frames_initial(port);
        let desk = LocalDirectory {
            asked: directory,
            sids: &self.sids,
            sessions: &self.sessions,
            full,
            frames_initial,
        };
        let agreed = match header.cmd {
            // As where there is no room for another session, the initiator hears nothing, and asks again.
            Cmd::Negotiate if self.service != Service::Open => None,
            Cmd::Negotiate => {
                let half_open = self.gateway.handshakes.half_open();
                let agreed =
                    self.gateway.handshakes.frame_received(now, &desk, (port, source), header, bytes);
                self.gateway.thirsty |= agreed.is_some() || self.gateway.handshakes.half_open() > half_open;
                agreed
            }
            Cmd::Discovery => {
                self.gateway.discovery_server.frame_received(now, &desk, (port, source), header, bytes);
                None
            }
            _ => {
                self.stats.unknown_sids += 1;
                None
            }
        };
        if let Some(agreed) = agreed {
            self.open_session(now, *agreed, directory);
        }
    }

    /// Creates a session from the result of a handshake.
    fn open_session(&mut self, now: Instant, agreed: HandshakeResult, directory: &dyn SessionDirectory) {
        let Some(port) = self.ports.get(&agreed.port).map(|port| port.state) else { return };
        // An initiator only claims its name; the handshake proves only that it knows the group's password. So
        // a claim counts only among sessions that proved the same. Another group is another target port, so
        // the same name there is another nexus.
        //= hyperscsi#section-6.6
        //# A session never takes the place of one that came with another group.
        let same =
            |session: &Session| session.is_of(&agreed.group, &agreed.target, &agreed.initiator, &agreed.isid);
        let older: Vec<Key> =
            self.sessions.iter().filter(|(_, session)| same(session)).map(|(key, _)| key).collect();
        let replaces_session = !older.is_empty();
        for key in older {
            self.stats.reinstated += 1;
            self.end_session(key, SessionEnd::Reinstated);
        }
        self.make_room(agreed.port);
        let ours = directory.target_access(agreed.port, &agreed.group, &agreed.target);
        let mut ours = ours.map_or(self.limits.parameters, |entrance| entrance.parameters);
        ours.frames_initial = ours.frames_initial.min(self.frames_initial(agreed.port));
        let share = self.share_at(agreed.port, self.sessions_at(agreed.port) + 1);
        let entropy = self.gateway.draw();
        let plan = ConnectionConfig {
            key_limits: self.limits.key_limits,
            ..ConnectionConfig::new(&ours, &agreed.parameters, share, agreed.token, entropy)
        };
        let address = PathAddress { port: agreed.port, mac: agreed.peer };
        let mut transport = Connection::new(
            Role::Target,
            &plan,
            now,
            agreed.keys.as_ref(),
            agreed.sid_out,
            agreed.sid_in,
            address,
            &port,
        );
        // The initiator may open paths over any of these ports.
        for (port, entry) in self.ports.iter().filter(|(_, entry)| entry.is_up) {
            transport.port_up(now, *port, &entry.state);
        }
        let identity = Identity {
            sids: (agreed.sid_out, agreed.sid_in),
            target_name: agreed.target.clone(),
            group: agreed.group.clone(),
            initiator: agreed.initiator.clone(),
            isid: agreed.isid,
            keyed: agreed.keys.is_some(),
            parameters: agreed.parameters,
        };
        let key = self.sessions.insert_with(|_| Session::new(now, identity, transport));
        self.sids.insert(agreed.sid_in, key);
        self.stats.sessions += 1;
        self.divide_rings();
        self.mark_dirty(key);
        self.events.push_back(Event::SessionUp(Box::new(SessionUp {
            session: SessionId(key),
            target: agreed.target,
            group: agreed.group,
            initiator: agreed.initiator,
            isid: agreed.isid,
            authenticated: agreed.keys.is_some(),
            port: agreed.port,
            peer: agreed.peer,
            parameters: agreed.parameters,
            replaces_session,
        })));
    }

    //= hyperscsi#section-9.2
    //# all windows of all
    //# sessions together MUST NOT exceed 80 % of what the port can hold until it is read (its receive ring)
    /// Divides each port's receive ring among the sessions that have a path there.
    pub(super) fn divide_rings(&mut self) {
        let ports = self.ports.iter().filter(|(_, entry)| entry.is_up).map(|(port, _)| *port);
        let shares: Vec<(EtherPort, u64)> =
            ports.map(|port| (port, self.share_at(port, self.sessions_at(port)))).collect();
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(transport) = self.transport(key) else { continue };
            for (port, share) in &shares {
                transport.set_ring_quota(*port, *share);
            }
        }
    }

    /// Returns how many slots of a port's receive ring each of `sessions` sessions may fill.
    pub(super) fn share_at(&self, port: EtherPort, sessions: usize) -> u64 {
        u64::try_from(self.shared_slots(port) / sessions.max(1)).unwrap_or(u64::MAX)
    }

    /// Returns how many frames one more session may send through a port, in each of the two packet number
    /// spaces, before it receives credit.
    fn frames_initial(&self, port: EtherPort) -> u32 {
        let share = self.share_at(port, self.sessions_at(port) + 1);
        u32::try_from(share / 2).unwrap_or(u32::MAX).max(1)
    }

    /// Returns how many slots of a port's receive ring the sessions share.
    fn shared_slots(&self, port: EtherPort) -> usize {
        let slots = self.ports.get(&port).map_or(0, |entry| entry.state.receive_slots);
        slots.saturating_mul(SHARED_PERCENT) / 100
    }

    /// Returns how many sessions have a path over a port.
    pub(super) fn sessions_at(&self, port: EtherPort) -> usize {
        self.sessions.iter().filter(|(_, session)| session.is_at(port)).count()
    }

    /// Returns whether a port cannot take another session. `with_left` also counts sessions that linger only
    /// to acknowledge a repeated logout.
    pub(super) fn is_full(&self, port: EtherPort, with_left: bool) -> bool {
        let kept = self.sessions.iter().map(|(_, session)| session).filter(|s| with_left || !s.lingers());
        let (all, there) =
            kept.fold((0, 0), |(all, there), session| (all + 1, there + usize::from(session.is_at(port))));
        // The bound admits one session more than fits: an initiator that logs in again ends its older session
        // first.
        all > usize::from(self.limits.sessions_max) || there > self.shared_slots(port) / SHARE_LEAST
    }

    /// Sends a hint to an initiator that sent a frame to an unknown session. The hint is not authenticated.
    /// Frames from targets are not answered: they are for an initiator of this host, which shares the
    /// interface with this target.
    pub(super) fn send_unknown_sid(&mut self, now: Instant, port: EtherPort, source: Mac, header: &Header) {
        let (count, since) = &mut self.gateway.hints;
        if now.since(*since) >= Duration::from_secs(1) {
            (*count, *since) = (0, now);
        }
        let from_initiator = matches!(header.cmd, Cmd::Request | Cmd::Abort | Cmd::Ask);
        // While sessions move, this engine may not know them yet.
        let moves = self.service != Service::Open;
        if moves || *count >= HINTS_PER_SECOND || source.is_group() || !from_initiator {
            return;
        }
        *count += 1;
        self.stats.hints += 1;
        let mut payload = Vec::new();
        Disconnect::Unknown { sid: header.sid }.encode(&mut payload);
        self.gateway.control_queue.send(port, source, Cmd::Disconnect, payload);
    }
}
