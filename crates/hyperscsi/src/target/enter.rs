//! The way in: handshakes become sessions, questions of outsiders get answers, frames to sessions that are gone get a hint.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::arena::{Arena, Key};
use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::memory_quota::QuotaShare;
use base::time::{Duration, Instant};

use super::contract::{Directory, Down, Event, SessionId, SessionUp, Traffic};
use super::engine::Engine;
use super::session::{Numbers, Phase, Session};
use crate::Role;
use crate::association::{Association, PathAddress, Plan};
use crate::discovery::Answerer;
use crate::exchange::numbers::Class;
use crate::frame::{Cmd, Header};
use crate::login::Agreed;
use crate::login::directory::{Directory as Asked, Entrance, Export};
use crate::login::post::Post;
use crate::login::target::{Reception, Refusal, Stats as Handshakes};
use crate::path::credit::SHARED_PERCENT;
use crate::pdu::disconnect::Disconnect;
use crate::pdu::name::{GroupName, Name};
use crate::random::Random;

/// What stands between outsiders and sessions.
pub(super) struct Door {
    reception: Reception,
    answerer: Answerer,
    random: Random,
    /// Whether a handshake took random bytes since the last block of entropy came.
    thirsty: bool,
    post: Post,
    /// How many hints may be given, and since when that was counted.
    hints: (u32, Instant),
}

/// How many hints are given in a second: as many as initiators may share a group of servers.
const HINTS_PER_SECOND: u32 = 256;

/// What a session needs of it to get anywhere.
const SHARE_LEAST: usize = 8;

impl Door {
    pub(super) fn new() -> Self {
        Self {
            reception: Reception::new(Instant::ORIGIN),
            answerer: Answerer::new(Instant::ORIGIN),
            random: Random::empty(),
            thirsty: false,
            post: Post::default(),
            hints: (0, Instant::ORIGIN),
        }
    }

    pub(super) fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.random.stir(entropy);
        let entropy = self.random.bytes();
        self.reception.port_up(now, port, state, entropy);
        self.answerer.port_up(port, state);
    }

    pub(super) fn port_down(&mut self, port: EtherPort) {
        self.reception.port_down(port);
        self.answerer.port_down(port);
        self.post.port_down(port);
    }

    /// Returns how many blocks of entropy are wanted: one behind each handshake that took secrets from the last. However
    /// many there are, one block in each turn of the driver serves them all.
    pub(super) fn entropy_wanted(&self) -> usize {
        usize::from(self.thirsty)
    }

    pub(super) fn stir(&mut self, now: Instant, entropy: [u8; 32]) {
        self.thirsty = false;
        self.random.stir(entropy);
        let entropy = self.random.bytes();
        self.reception.stir(now, entropy);
    }

    pub(super) fn poll_port(&mut self) -> Option<EtherPort> {
        let port = self.reception.poll_port().or_else(|| self.answerer.poll_port());
        port.or_else(|| self.post.poll_port())
    }

    pub(super) fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        self.reception.transmit(port, out);
        self.answerer.transmit(port, out);
        self.post.transmit(port, out);
    }

    pub(super) fn poll_refusal(&mut self) -> Option<Refusal> {
        self.reception.poll_refusal()
    }

    pub(super) const fn handshakes(&self) -> Handshakes {
        self.reception.stats()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.reception.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.reception.handle_timeout(now);
    }

    pub(super) fn other_version(&mut self, now: Instant, port: EtherPort, source: Mac) {
        self.reception.other_version(now, port, source);
    }

    pub(super) fn session_ended(&mut self, sid: u32) {
        self.reception.session_ended(sid);
    }
}

/// The owner's directory, with the names of our own sessions.
struct Desk<'a> {
    asked: &'a dyn Directory,
    sids: &'a BTreeMap<u32, Key>,
    sessions: &'a Arena<Session>,
    full: bool,
    /// How many frames of a new session there is room for, in each space, before it hears of credit.
    frames_initial: u32,
}

impl Asked for Desk<'_> {
    fn instance(&self) -> [u8; 16] {
        self.asked.instance()
    }

    fn entrance(&self, port: EtherPort, group: &GroupName, target: &Name) -> Option<Entrance> {
        let mut entrance = self.asked.entrance(port, group, target).filter(|_| !self.full)?;
        let told = &mut entrance.parameters.frames_initial;
        *told = self.frames_initial.min(*told);
        Some(entrance)
    }

    fn export_behind(&self, port: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export> {
        self.asked.export_behind(port, group, after)
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
    /// Takes a frame of no session.
    pub(super) fn outsider(
        &mut self,
        now: Instant,
        (port, source): (EtherPort, Mac),
        header: &Header,
        bytes: &mut [u8],
        directory: &dyn Directory,
    ) {
        let full = self.is_full(port, false);
        let frames_initial = self.frames_initial(port);
        let desk =
            Desk { asked: directory, sids: &self.sids, sessions: &self.sessions, full, frames_initial };
        let agreed = match header.cmd {
            Cmd::Negotiate => {
                let half_open = self.door.reception.half_open();
                let agreed = self.door.reception.frame(now, &desk, (port, source), header, bytes);
                self.door.thirsty |= agreed.is_some() || self.door.reception.half_open() > half_open;
                agreed
            }
            Cmd::Discovery => {
                self.door.answerer.frame(now, &desk, (port, source), header, bytes);
                None
            }
            _ => {
                self.stats.unknown_sids += 1;
                None
            }
        };
        if let Some(agreed) = agreed {
            self.enter(now, *agreed, directory);
        }
    }

    /// Makes a session of what a handshake agreed on.
    fn enter(&mut self, now: Instant, agreed: Agreed, directory: &dyn Directory) {
        let Some(port) = self.ports.get(&agreed.port).map(|port| port.state) else { return };
        // Names are claimed, and what was proven is that the group's password is known: a claim counts among those who
        // proved the same. Another group is another target port, so the same name there is another nexus.
        //= hyperscsi#section-6.6
        //# A session never takes the place of one that came with another group.
        let same =
            |session: &Session| session.is_of(&agreed.group, &agreed.target, &agreed.initiator, &agreed.isid);
        let older: Vec<Key> =
            self.sessions.iter().filter(|(_, session)| same(session)).map(|(key, _)| key).collect();
        for key in older {
            self.stats.reinstated += 1;
            self.end_session(key, Down::Reinstated);
        }
        self.make_room(agreed.port);
        let ours = directory.entrance(agreed.port, &agreed.group, &agreed.target);
        let mut ours = ours.map_or(self.limits.parameters, |entrance| entrance.parameters);
        ours.frames_initial = ours.frames_initial.min(self.frames_initial(agreed.port));
        let share = self.share_at(agreed.port, self.sessions_at(agreed.port) + 1);
        let entropy = self.door.random.bytes();
        let plan = Plan {
            key_limits: self.limits.key_limits,
            ..Plan::new(&ours, &agreed.parameters, share, agreed.token, entropy)
        };
        let address = PathAddress { port: agreed.port, mac: agreed.peer };
        let mut transport = Association::new(
            Role::Target,
            &plan,
            now,
            agreed.keys.as_ref(),
            agreed.sid_out,
            agreed.sid_in,
            address,
            &port,
        );
        // The initiator may ask for paths over any of them.
        for (port, entry) in self.ports.iter().filter(|(_, entry)| entry.is_up) {
            transport.port_up(now, *port, &entry.state);
        }
        let key = self.sessions.insert_with(|_| Session {
            transport: Some(Box::new(transport)),
            phase: Phase::Up,
            sids: (agreed.sid_out, agreed.sid_in),
            target_name: agreed.target.clone(),
            group: agreed.group.clone(),
            initiator: agreed.initiator.clone(),
            isid: agreed.isid,
            keyed: agreed.keys.is_some(),
            parameters: agreed.parameters,
            numbers: Class::ALL.map(Numbers::new),
            wishes: Vec::new(),
            ready: VecDeque::new(),
            unasked: QuotaShare::default(),
            asked: QuotaShare::default(),
            answers: QuotaShare::default(),
            listed: VecDeque::new(),
            withdrawn: Vec::new(),
            refusals: Vec::new(),
            refused: Vec::new(),
            farewell: None,
            last_words: None,
            stirred: false,
            ports: Vec::new(),
            deadline: None,
            swept: now,
            tasks: 0,
            traffic: Traffic::default(),
        });
        self.sids.insert(agreed.sid_in, key);
        self.stats.sessions += 1;
        self.share_rings();
        self.stir_session(key);
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
        })));
    }

    //= hyperscsi#section-9.2
    //# all windows of all
    //# sessions together MUST NOT exceed 80 % of what the port can hold until it is read (its receive ring)
    /// Divides each port's receive ring among the sessions that have a path there.
    pub(super) fn share_rings(&mut self) {
        let ports = self.ports.iter().filter(|(_, entry)| entry.is_up).map(|(port, _)| *port);
        let shares: Vec<(EtherPort, u64)> =
            ports.map(|port| (port, self.share_at(port, self.sessions_at(port)))).collect();
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(transport) = self.transport(key) else { continue };
            for (port, share) in &shares {
                transport.set_frames_share(*port, *share);
            }
        }
    }

    /// Returns how much of a port's receive ring each of so many sessions may fill.
    fn share_at(&self, port: EtherPort, sessions: usize) -> u64 {
        u64::try_from(self.shared_slots(port) / sessions.max(1)).unwrap_or(u64::MAX)
    }

    /// Returns how many frames one more session may send through a port, in each of two spaces, before it hears of credit.
    fn frames_initial(&self, port: EtherPort) -> u32 {
        let share = self.share_at(port, self.sessions_at(port) + 1);
        u32::try_from(share / 2).unwrap_or(u32::MAX).max(1)
    }

    /// Returns how much of a port's receive ring sessions share.
    fn shared_slots(&self, port: EtherPort) -> usize {
        let slots = self.ports.get(&port).map_or(0, |entry| entry.state.receive_slots);
        slots.saturating_mul(SHARED_PERCENT) / 100
    }

    /// Returns how many sessions have a path over a port.
    fn sessions_at(&self, port: EtherPort) -> usize {
        self.sessions.iter().filter(|(_, session)| session.is_at(port)).count()
    }

    /// Returns whether there is no room for a session at a port, those counted in or not that are kept only in case their initiators
    /// say goodbye once more.
    pub(super) fn is_full(&self, port: EtherPort, with_left: bool) -> bool {
        let kept = self.sessions.iter().map(|(_, session)| session).filter(|s| with_left || !s.lingers());
        let (all, there) =
            kept.fold((0, 0), |(all, there), session| (all + 1, there + usize::from(session.is_at(port))));
        // One more than there is room for: an initiator that comes back ends its older session first.
        all > usize::from(self.limits.sessions_max) || there > self.shared_slots(port) / SHARE_LEAST
    }

    /// Tells an initiator that sent a frame to a session that there is none. Nothing vouches for that. What comes from
    /// targets is for an initiator of this host, which shares the interface with us.
    pub(super) fn hint(&mut self, now: Instant, port: EtherPort, source: Mac, header: &Header) {
        let (count, since) = &mut self.door.hints;
        if now.since(*since) >= Duration::from_secs(1) {
            (*count, *since) = (0, now);
        }
        let from_initiator = matches!(header.cmd, Cmd::Request | Cmd::Abort | Cmd::Ask);
        if *count >= HINTS_PER_SECOND || source.is_group() || !from_initiator {
            return;
        }
        *count += 1;
        self.stats.hints += 1;
        let mut payload = Vec::new();
        Disconnect::Unknown { sid: header.sid }.encode(&mut payload);
        self.door.post.send(port, source, Cmd::Disconnect, payload);
    }
}
