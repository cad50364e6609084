//! The way in: handshakes become sessions, questions of outsiders get answers, frames to sessions that are gone get a hint.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::arena::Key;
use base::budget::Share;
use base::ether::{EtherPort, FrameBatch, Mac, PortState};
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
use crate::pdu::disconnect::Disconnect;
use crate::pdu::name::{GroupName, Name};
use crate::random::Random;

/// What stands between outsiders and sessions.
pub(super) struct Door {
    reception: Reception,
    answerer: Answerer,
    random: Random,
    post: Post,
    /// How many hints may be given, and since when that was counted.
    hints: (u32, Instant),
}

/// How many hints are given in a second: as many as initiators may share a group of servers.
const HINTS_PER_SECOND: u32 = 256;

/// How much of a port's receive ring sessions share, in percent. The rest is for handshakes, and for those who break the
/// rules.
const SHARED_PERCENT: usize = 80;

/// What a session needs of it to get anywhere.
const SHARE_LEAST: usize = 8;

impl Door {
    pub(super) fn new() -> Self {
        Self {
            reception: Reception::new(Instant::ORIGIN),
            answerer: Answerer::new(Instant::ORIGIN),
            random: Random::empty(),
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

    pub(super) fn stir(&mut self, now: Instant, entropy: [u8; 32]) {
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

    pub(super) fn session_ended(&mut self, sid: u32) {
        self.reception.session_ended(sid);
    }
}

/// The owner's directory, with the names of our own sessions.
struct Desk<'a> {
    asked: &'a dyn Directory,
    sids: &'a BTreeMap<u32, Key>,
    full: bool,
}

impl Asked for Desk<'_> {
    fn instance(&self) -> [u8; 16] {
        self.asked.instance()
    }

    fn entrance(&self, port: EtherPort, group: &GroupName, target: &Name) -> Option<Entrance> {
        if self.full { None } else { self.asked.entrance(port, group, target) }
    }

    fn export_behind(&self, port: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export> {
        self.asked.export_behind(port, group, after)
    }

    fn sid_taken(&self, sid: u32) -> bool {
        self.sids.contains_key(&sid) || self.asked.sid_taken(sid)
    }
}

impl Engine {
    /// Takes a frame of no session.
    pub(super) fn outsider(
        &mut self,
        now: Instant,
        (port, source, _group): (EtherPort, Mac, bool),
        header: &Header,
        bytes: &mut [u8],
        directory: &dyn Directory,
    ) {
        // One more than there is room for: an initiator that comes back ends its older session first.
        let full = self.sessions.len() > usize::from(self.limits.sessions_max);
        let desk = Desk { asked: directory, sids: &self.sids, full };
        let agreed = match header.cmd {
            Cmd::Negotiate => self.door.reception.frame(now, &desk, (port, source), header, bytes),
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
        // Whoever proved to be the same initiator port takes the place of its older session.
        let same = |session: &Session| {
            session.is_up()
                && session.isid == agreed.isid
                && session.initiator == agreed.initiator
                && session.target_name == agreed.target
        };
        //= hyperscsi#section-6.6
        //# A session of a group without a password never takes the place of a keyed one.
        let outranks = |session: &Session| same(session) && session.keyed && agreed.keys.is_none();
        if self.sessions.iter().any(|(_, session)| outranks(session)) {
            self.stats.outranked += 1;
            self.door.session_ended(agreed.sid_in);
            return;
        }
        let older: Vec<Key> =
            self.sessions.iter().filter(|(_, session)| same(session)).map(|(key, _)| key).collect();
        for key in older {
            self.stats.reinstated += 1;
            self.end_session(key, Down::Reinstated);
        }
        let ours = directory.entrance(agreed.port, &agreed.group, &agreed.target);
        let ours = ours.map_or(self.limits.parameters, |entrance| entrance.parameters);
        let plan = Plan::new(&ours, &agreed.parameters, 0, agreed.token, self.door.random.bytes());
        let address = PathAddress { port: agreed.port, mac: agreed.peer };
        let transport = Association::new(
            Role::Target,
            &plan,
            now,
            agreed.keys.as_ref(),
            agreed.sid_out,
            agreed.sid_in,
            address,
            &port,
        );
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
            unasked: Share::default(),
            asked: Share::default(),
            answers: Share::default(),
            listed: VecDeque::new(),
            withdrawn: Vec::new(),
            farewell: None,
            last_words: None,
            sent: BTreeMap::new(),
            stirred: false,
            ports: Vec::new(),
            deadline: None,
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

    /// Divides the receive rings among the sessions.
    pub(super) fn share_rings(&mut self) {
        let slots = self.ports.values().filter(|port| port.is_up).map(|port| port.state.receive_slots).min();
        let shared = slots.unwrap_or(0).saturating_mul(SHARED_PERCENT) / 100;
        let share = (shared / self.sessions.len().max(1)).max(SHARE_LEAST);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(transport) = self.transport(key) {
                transport.set_frames_share(share);
            }
        }
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
