//! The target role of HyperSCSI for one shard: all its sessions, as one value without I/O.
//!
//! Below, the engine has the shape of a [`base::ether::FrameMachine`]; the owner forwards calls to it and
//! adds the directory that answers handshakes and requests. Above, the engine returns [`Event`]s and accepts
//! `fetch`, `data_in`, `finish`, `abort`, `finish_tmf`. After any call the owner polls [`Engine::poll_event`]
//! until it returns `None`.
//!
//! # Memory
//!
//! All memory that a peer can make the engine hold is bounded: sessions by [`EngineLimits::sessions_max`],
//! exchanges of a session by the number of slots, received data by [`EngineLimits::data_out_bytes_max`], data
//! that is not acknowledged by [`EngineLimits::data_in_bytes_max`]. [`transport::quota`] divides the memory
//! among sessions when it is short.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use base::arena::{Arena, Key};
use base::buffer::Pool;
use base::ether::{EtherPort, FrameBatch, PortState, ReceivedFrame};
use base::time::{Duration, Instant, soonest};
use transport::quota::DataQuotas;
use transport::target::SessionId;

use super::contract::{Event, SessionDirectory, SessionView};
use super::exchange::Exchange;
use super::session::{Phase, Session};
use crate::aead::KeyLimits;
use crate::connection::{Connection, DropCounts, PathAddress, PathTotals};
use crate::frame::{BadFrame, Cmd, Header};
use crate::login::target::{HandshakeRefusal, HandshakeStats as Handshakes};
use crate::pdu::parameters::Parameters;

/// Every HyperSCSI session of a shard.
pub struct Engine {
    pub(super) limits: EngineLimits,
    pub(super) pool: Pool,
    pub(super) ports: BTreeMap<EtherPort, Port>,
    pub(super) sessions: Arena<Session>,
    /// The sessions by the SID that this target chose.
    pub(super) sids: BTreeMap<u32, Key>,
    pub(super) exchanges: Arena<Exchange>,
    pub(super) events: VecDeque<Event>,
    /// Sessions to process.
    pub(super) dirty: VecDeque<Key>,
    pub(super) deadlines: BTreeSet<(Instant, Key)>,
    /// Scratch list for the sessions whose deadline passed.
    due: Vec<Key>,
    /// Memory for data in flight.
    pub(super) quotas: DataQuotas,
    pub(super) gateway: super::gateway::Gateway,
    pub(super) service: Service,
    /// The time at the last call.
    pub(super) now: Instant,
    pub(super) stats: EngineStats,
}

/// What the engine does for its initiators; see [`super::handover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// Everything.
    Open,
    /// It ends what was begun, and begins no session. Sessions get no further exchanges.
    Frozen,
    /// Nothing: its sessions were exported, or were resumed and may not speak yet. It handles no frame, no
    /// deadline, and sends nothing for a session.
    Mute,
}

/// A port, and the sessions that have something to send on it.
pub(super) struct Port {
    pub(super) state: PortState,
    pub(super) is_up: bool,
    /// Whether `poll_port` returned this port since the last `transmit_frames` for it.
    pub(super) announced: bool,
    pub(super) senders: VecDeque<Key>,
}

/// The limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// The most sessions at a time.
    pub sessions_max: u16,
    /// The most bytes of Data-Out, of all sessions, that may be received, or be on the way, and are not yet
    /// passed to the layer above.
    pub data_out_bytes_max: usize,
    /// The most bytes of Data-In, of all sessions, that commands under way may return or that are not
    /// acknowledged.
    pub data_in_bytes_max: usize,
    /// The same limit for one session: beyond it, its next commands are held back. The engine reserves no
    /// more than this for one command before the command's data exists. So the bounds hold if no command
    /// returns more than this at a time.
    pub unsent_bytes_max: usize,
    /// The parameters that the target offers in handshakes.
    pub parameters: Parameters,
    /// How long the closing message of a session may take.
    pub closing_timeout: Duration,
    /// How long orphan data waits for its request, at least. It is dropped an eighth of this time later at
    /// the latest, if the session processes a timeout then.
    pub orphan_data_timeout: Duration,
    /// When the keys of sent frames are updated.
    pub key_limits: KeyLimits,
}

impl EngineLimits {
    /// How many bytes of Data-In one session may have unacknowledged, unless configured otherwise.
    pub const UNSENT_BYTES_MAX: usize = 16 << 20;
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            sessions_max: 1024,
            data_out_bytes_max: 256 << 20,
            data_in_bytes_max: 256 << 20,
            unsent_bytes_max: Self::UNSENT_BYTES_MAX,
            parameters: Parameters { exchanges: 128, ..Parameters::DEFAULT },
            closing_timeout: Duration::from_secs(1),
            orphan_data_timeout: Duration::from_secs(60),
            key_limits: KeyLimits::default(),
        }
    }
}

/// The counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sessions that began.
    pub sessions: u64,
    /// Sessions that ended because the same initiator port began another.
    pub reinstated: u64,
    /// Frames that could not be parsed, of another version, or with a reserved bit.
    pub bad_frames: u64,
    /// Frames that named an unknown session.
    pub unknown_sids: u64,
    /// Hints that were sent for those.
    pub hints: u64,
    /// Frames that their session refused: damaged, forged, replayed, from another address.
    pub refused_frames: u64,
    /// The refused frames by reason.
    pub drops: DropCounts,
    /// How often sessions updated the keys of the frames that they send.
    pub key_updates: u64,
    /// The path totals of sessions that ended.
    pub past: PathTotals,
    /// SCSI commands accepted.
    pub commands: u64,
    /// Task management requests accepted.
    pub management: u64,
    /// Bytes of Data-Out received, each counted once.
    pub data_out_bytes: u64,
    /// Bytes of Data-In passed to the transport.
    pub data_in_bytes: u64,
    /// Duplicates of requests that had been received before; they were not executed again.
    pub duplicates: u64,
    /// Late frames, whose exchange has ended or was never begun.
    pub strays: u64,
    /// Frames with less protection than their exchange has.
    pub unprotected: u64,
    /// Commands refused because they had less protection than their logical unit demands.
    pub refused_level: u64,
    /// Frames whose content is malformed.
    pub malformed: u64,
    /// Requests with an XID beyond the window, or a tag in use.
    pub misnumbered: u64,
    /// Data outside the requested ranges, or in more pieces than any order of arrival explains.
    pub misplaced: u64,
    /// Commands answered BUSY because memory was short.
    pub busy: u64,
    /// How often data was not requested at once because memory was short.
    pub withheld: u64,
    /// How often commands waited for memory for their Data-In.
    pub held_back: u64,
    /// Exchanges that initiators gave up.
    pub given_up: u64,
    /// Orphan data dropped because its request was not received in time.
    pub orphan_data: u64,
    /// How often the engine found itself in a state that should be impossible.
    pub bugs: u64,
}

impl Engine {
    /// Returns an engine without sessions. Buffers for data are taken from `pool` and returned to it.
    pub fn new(limits: EngineLimits, pool: Pool) -> Self {
        Self {
            pool,
            ports: BTreeMap::new(),
            sessions: Arena::new(),
            sids: BTreeMap::new(),
            exchanges: Arena::new(),
            events: VecDeque::new(),
            dirty: VecDeque::new(),
            deadlines: BTreeSet::new(),
            due: Vec::new(),
            quotas: DataQuotas::new(
                limits.data_out_bytes_max,
                limits.data_in_bytes_max,
                limits.unsent_bytes_max,
            ),
            gateway: super::gateway::Gateway::new(),
            service: Service::Open,
            now: Instant::ORIGIN,
            stats: EngineStats::default(),
            limits,
        }
    }

    /// Records that a port is up, or that its state changed.
    pub fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.now = now;
        let entry = self.ports.entry(port).or_insert_with(|| Port {
            state: *state,
            is_up: true,
            announced: false,
            senders: VecDeque::new(),
        });
        (entry.state, entry.is_up) = (*state, true);
        self.gateway.port_up(now, port, state, entropy);
        self.divide_rings();
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(transport) = self.transport(key) {
                transport.port_up(now, port, state);
            }
            self.mark_dirty(key);
        }
    }

    /// Records that a port is down.
    pub fn port_down(&mut self, now: Instant, port: EtherPort) {
        self.now = now;
        if let Some(entry) = self.ports.get_mut(&port) {
            entry.is_up = false;
        }
        self.gateway.port_down(port);
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(transport) = self.transport(key) {
                transport.port_down(now, port);
            }
            self.mark_dirty(key);
        }
    }

    /// Processes a received frame. Invalid frames are counted.
    pub fn frame_received(
        &mut self,
        now: Instant,
        frame: ReceivedFrame<'_>,
        directory: &dyn SessionDirectory,
    ) {
        self.now = now;
        if self.service == Service::Mute {
            return;
        }
        let (header, len) = match Header::parse(frame.payload) {
            Ok(parsed) => parsed,
            Err(why) => {
                self.stats.bad_frames += 1;
                // Only a Negotiate frame of another version is answered, so that two ends of different
                // versions do not answer each other for ever.
                let begins = frame.payload.get(4).is_some_and(|cmd| cmd & 0x7f == Cmd::Negotiate as u8);
                if why == BadFrame::Version && begins {
                    self.gateway.other_version(now, frame.port, frame.source);
                }
                return;
            }
        };
        let (port, source, came) = (frame.port, frame.source, now.before(frame.age));
        let address = PathAddress { port, mac: source };
        //= hyperscsi#section-3.1
        //# Frames to a group of stations (the I/G bit of the destination) are taken only if
        //# they are Discovery questions, or Negotiate frames
        if frame.group && !matches!(header.cmd, Cmd::Discovery | Cmd::Negotiate) {
            self.stats.bad_frames += 1;
            return;
        }
        let Some(bytes) = frame.payload.get_mut(..len) else { return };
        if header.sid == 0 {
            return self.handle_sessionless_frame(now, (port, source), &header, bytes, directory);
        }
        let Some(key) = self.sids.get(&header.sid).copied() else {
            self.stats.unknown_sids += 1;
            return self.send_unknown_sid(now, port, source, &header);
        };
        let Some(mut transport) = self.sessions.get_mut(key).and_then(|session| session.transport.take())
        else {
            return self.bug();
        };
        let taken = transport.frame_received(now, came, address, header, bytes, &mut |header, payload| {
            self.deliver(now, key, header, payload, directory);
        });
        if let Err(why) = taken {
            self.stats.refused_frames += 1;
            self.stats.drops.count(why);
        }
        let rewindowed = transport.take_rewindowed();
        if let Some(session) = self.sessions.get_mut(key) {
            session.transport = Some(transport);
        }
        if rewindowed {
            self.divide_rings();
        }
        self.mark_dirty(key);
    }

    /// Returns a port that has something to send. Returns it only once until `transmit_frames` is called for
    /// it.
    pub fn poll_port(&mut self) -> Option<EtherPort> {
        self.process_pending();
        if let Some(port) = self.gateway.poll_port() {
            return Some(port);
        }
        if self.service == Service::Mute {
            return None;
        }
        let waiting = |(_, entry): &(&EtherPort, &mut Port)| {
            entry.is_up && !entry.announced && !entry.senders.is_empty()
        };
        let (port, entry) = self.ports.iter_mut().find(waiting)?;
        entry.announced = true;
        Some(*port)
    }

    /// Appends the frames that the port has to send, until `out` is full or nothing is left.
    pub fn transmit_frames(&mut self, now: Instant, port: EtherPort, out: &mut FrameBatch) {
        self.now = now;
        self.process_pending();
        if let Some(entry) = self.ports.get_mut(&port) {
            entry.announced = false;
        }
        self.gateway.transmit(port, out);
        if self.service == Service::Mute {
            return;
        }
        while !out.is_full()
            && let Some(key) = self.ports.get_mut(&port).and_then(|entry| entry.senders.pop_front())
        {
            if let Some(session) = self.sessions.get_mut(key) {
                session.ports.retain(|other| *other != port);
                if let Some(transport) = &mut session.transport {
                    transport.transmit(now, port, out);
                }
            }
            self.mark_dirty(key);
        }
    }

    /// Records that `count` frames of the last batch were longer than the port allows.
    pub fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        self.now = now;
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(transport) = self.transport(key) {
                transport.frames_too_long(now, port, count);
            }
            self.mark_dirty(key);
        }
    }

    /// Records that a port dropped `count` more received frames because its receive ring was full.
    pub fn frames_overrun(&mut self, now: Instant, port: EtherPort, count: u32) {
        self.now = now;
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(transport) = self.transport(key) {
                transport.frames_overrun(port, count);
            }
            self.mark_dirty(key);
        }
    }

    /// Returns whether no session is up and no closing message is under way.
    pub fn is_frame_idle(&self) -> bool {
        self.sessions.iter().all(|(_, session)| session.lingers())
    }

    /// Returns how many more blocks of entropy the engine wants in reserve.
    pub fn entropy_wanted(&self) -> usize {
        self.gateway.entropy_wanted()
    }

    /// Adds a block of entropy, fresh from the operating system's generator.
    pub fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.gateway.add_entropy(self.now, entropy);
    }

    /// Returns a handshake that was refused. Of many refusals in a short time, some are only counted.
    pub fn poll_refusal(&mut self) -> Option<HandshakeRefusal> {
        self.gateway.poll_refusal()
    }

    /// Returns the counters of handshakes.
    pub const fn handshakes(&self) -> Handshakes {
        self.gateway.handshakes()
    }

    /// Begins no handshake from now on, or does again. Handshakes under way go on.
    pub const fn pause_handshakes(&mut self, is_paused: bool) {
        self.gateway.pause_handshakes(is_paused);
    }

    /// Returns how many handshakes would begin anew with another process.
    pub const fn half_open_handshakes(&self) -> usize {
        self.gateway.half_open_handshakes()
    }

    /// Returns the next event that the layer above must handle.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            // The consequences of many events are processed together.
            self.process_pending();
        }
        self.events.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.service == Service::Mute {
            return None;
        }
        let sessions = self.deadlines.first().map(|(at, _)| *at);
        soonest([sessions, self.gateway.poll_timeout()])
    }

    /// Processes the deadlines that passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.service == Service::Mute {
            return;
        }
        self.gateway.handle_timeout(now);
        let mut due = core::mem::take(&mut self.due);
        due.extend(self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| *key));
        for key in due.drain(..) {
            if let Some(transport) = self.transport(key) {
                transport.handle_timeout(now);
            }
            self.drop_orphan_data(key);
            self.mark_dirty(key);
        }
        self.due = due;
    }

    /// Returns the sessions, in the order of their indices.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView<'_>> {
        self.sessions.iter().filter(|(_, session)| session.is_up()).map(|(key, session)| SessionView {
            session: SessionId(key),
            target: &session.target_name,
            initiator: &session.initiator,
            isid: session.isid,
            group: &session.group,
            authenticated: session.keyed,
            parameters: &session.parameters,
            paths: session
                .transport
                .as_ref()
                .map(|transport| transport.paths().collect())
                .unwrap_or_default(),
            tasks: session.tasks,
            unacknowledged_bytes: session.shares.data_in.held(),
            traffic: session.traffic,
            drops: session.transport.as_ref().map(|transport| transport.stats().drops).unwrap_or_default(),
            totals: session.transport.as_ref().map(|transport| transport.stats().paths).unwrap_or_default(),
            sids: session.sids,
        })
    }

    /// Returns the counters of the engine.
    pub const fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Returns the path totals of all sessions, open and ended.
    pub fn path_totals(&self) -> PathTotals {
        let mut totals = self.stats.past;
        for transport in self.sessions.iter().filter_map(|(_, session)| session.transport.as_ref()) {
            totals.join(&transport.stats().paths);
        }
        totals
    }

    /// Returns how many bytes are reserved in the memory quotas: none when no task is open.
    pub const fn data_bytes(&self) -> usize {
        self.quotas.used()
    }

    pub(super) fn transport(&mut self, key: Key) -> Option<&mut Connection> {
        self.sessions.get_mut(key)?.transport.as_deref_mut()
    }

    /// Puts a session into the list of sessions that are processed before the next event or port is returned.
    pub(super) fn mark_dirty(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key)
            && !core::mem::replace(&mut session.is_dirty, true)
        {
            self.dirty.push_back(key);
        }
    }

    /// Processes every session in the list of dirty sessions.
    fn process_pending(&mut self) {
        self.serve_quota_waiters();
        while let Some(key) = self.dirty.pop_front() {
            if let Some(session) = self.sessions.get_mut(key) {
                session.is_dirty = false;
                self.process_session(key);
            }
            self.serve_quota_waiters();
        }
    }

    fn process_session(&mut self, key: Key) {
        loop {
            self.flush(key);
            let Some(event) = self.transport(key).and_then(Connection::poll_event) else { break };
            self.handle_connection_event(key, event);
            // The responses to all events go out together.
            while let Some(event) = self.transport(key).and_then(Connection::poll_event) {
                self.handle_connection_event(key, event);
            }
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let leaving = match session.phase {
            Phase::Up => None,
            Phase::Closing(until) | Phase::Lingering(until) if self.now < until => Some(until),
            Phase::Closing(_) | Phase::Lingering(_) | Phase::Closed => return self.remove_session(key),
        };
        let Some(transport) = session.transport.as_deref_mut() else { return };
        while let Some(port) = transport.poll_port() {
            if let Some(entry) = self.ports.get_mut(&port)
                && !session.ports.contains(&port)
            {
                session.ports.push(port);
                entry.senders.push_back(key);
            }
        }
        let wanted = soonest([transport.poll_timeout(), leaving]);
        if wanted != session.deadline {
            if let Some(old) = core::mem::replace(&mut session.deadline, wanted) {
                self.deadlines.remove(&(old, key));
            }
            self.deadlines.extend(wanted.map(|at| (at, key)));
        }
    }

    /// Counts a state that must not occur. Tests and the simulator panic.
    #[cold]
    #[track_caller]
    pub(super) fn bug(&mut self) {
        self.stats.bugs += 1;
        debug_assert!(false, "the target engine reached an impossible state");
    }
}
