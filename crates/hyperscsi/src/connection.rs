//! The transport of one session: keys, paths and messages on their way, for either role.
//!
//! What is given to [`Connection::send`] arrives, in parts, in any order, each part at least once and at the place that its
//! frame names: what a range of bytes means, and that nothing is done twice, is the business of the exchanges above. Frames
//! that come are checked, opened, told apart from replays, acknowledged, and handed up.
//!
//! The owner calls [`Connection::frame_received`], [`Connection::handle_timeout`] and [`Connection::send`] as things happen, then drains
//! [`Connection::poll_event`], then [`Connection::poll_port`] with [`Connection::transmit`] for each port, and asks
//! [`Connection::poll_timeout`].
//!
//! Everything handed up counts as received: it is acknowledged whatever the owner does with it. So the owner must have
//! room for what its credit allows; the frames of a session never hold more than its share of the port's receive ring.

mod drops;
mod event;
mod paths;
mod receive;
mod ring_quota;
mod stats;
mod transmit;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::buffer::Bytes;
use base::ether::{EtherPort, PortState};
use base::rng::Rng;
use base::time::{Duration, Instant, soonest};

pub use self::drops::{DropCounts, DropReason};
pub use self::event::{ConnectionEvent, Delivery};
pub use self::stats::{ConnectionStats, PathMtuStatus};
use crate::aead::{Decryptor, Encryptor, KeyLimits, Level, SessionKeys, UPDATE_EVERY};
use crate::path::pn_space::PATH_SHIFT;
use crate::path::{Path, PathUpdate, PnHorizon};
pub use crate::path::{PathAddress, PathStats, PathTotals};
use crate::pdu::ask::TOKEN_LEN;
use crate::pdu::parameters::{Levels, Parameters, Repair};
use crate::send_queue::{Chunk, SendQueue};
pub use crate::send_queue::{HEAD_LEN_MAX, Message, MessageId};
use crate::{Role, frame::TAGS};

/// How many paths a session may have at a time.
pub const PATHS_MAX: usize = 8;

/// How many events wait for their owner: every exchange ends twice, plus what happens to paths. Bodies likewise.
const SPENT_MAX: usize = 64;

/// How many heads are kept to be used again: one for each exchange that a target usually allows. Longer ones are not.
const HEADS_MAX: usize = 128;

/// The room of the usual heads: a command with a CDB of up to 32 bytes, or a response with sense data of as much.
const HEAD_LEN_USUAL: usize = 64;

/// What an association is to do, as the two ends agreed and as its owner wishes.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// How what is lost is sent again.
    pub repair: Repair,
    /// After how long without a sign of life a path, and with the last one the session, is given up.
    pub lost_after: Duration,
    /// Which levels exchanges may have.
    pub levels: Levels,
    /// How many exchanges can be under way.
    pub exchanges: u16,
    /// How many paths the session may have.
    pub paths: u8,
    /// What a session without keys demands of whoever adds a path.
    pub token: [u8; TOKEN_LEN],
    /// The longest Ethernet payload that the peer's port takes.
    pub peer_frame_max: u16,
    /// How many frames the peer takes in each space before it said more.
    pub peer_frames_initial: u32,
    /// How many we take.
    pub frames_initial: u32,
    /// The longest that the peer waits before it acknowledges.
    pub peer_ack_delay_max: Duration,
    /// The longest that we wait.
    pub ack_delay_max: Duration,
    /// How many frames of each port's receive ring are this session's, at most, until told otherwise.
    pub ring_quota: u64,
    /// How much later than the fastest a frame may be before a queue is suspected.
    pub delay_allowance: Duration,
    /// The shortest time-out after which a probe is sent.
    pub probe_floor: Duration,
    /// When the keys of what we send are changed.
    pub key_limits: KeyLimits,
    /// For challenges, and packet numbers that are left out. From the operating system's generator.
    pub entropy: [u8; 8],
}

impl ConnectionConfig {
    /// How much later than the fastest a frame may be, unless told otherwise: a receiver that wakes up, and 250 KB of queue
    /// at 10 Gbit/s.
    pub const DELAY_ALLOWANCE: Duration = Duration::from_micros(200);
    /// The shortest time-out, unless told otherwise: a few wake-ups.
    pub const PROBE_FLOOR: Duration = Duration::from_micros(500);

    /// Makes the plan from what one end told of itself and the peer chose.
    pub fn new(
        ours: &Parameters,
        peers: &Parameters,
        frames_share: u64,
        token: [u8; TOKEN_LEN],
        entropy: [u8; 8],
    ) -> Self {
        let micros = |span: u32| Duration::from_micros(u64::from(span));
        Self {
            repair: peers.repair,
            lost_after: Duration::from_millis(u64::from(peers.lost_after_ms)),
            levels: peers.levels,
            exchanges: peers.exchanges.clamp(1, TAGS),
            paths: peers.paths,
            token,
            peer_frame_max: peers.frame_max,
            peer_frames_initial: peers.frames_initial,
            frames_initial: ours.frames_initial,
            peer_ack_delay_max: micros(peers.ack_delay_max_us),
            ack_delay_max: micros(ours.ack_delay_max_us),
            ring_quota: frames_share,
            delay_allowance: Self::DELAY_ALLOWANCE,
            probe_floor: Self::PROBE_FLOOR,
            key_limits: KeyLimits::default(),
            entropy,
        }
    }
}

/// A path as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// The top byte of its packet numbers.
    pub id: u8,
    /// Its ends.
    pub address: PathAddress,
    /// Whether it carries data.
    pub is_up: bool,
    /// What it did so far.
    pub stats: PathStats,
}

/// The transport of one session.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    plan: ConnectionConfig,
    /// After how long without a sign of life a path is asked for one. One end asks well before the other would, so that only one does.
    sign_after: Duration,
    sid_out: u32,
    sid_in: u32,
    encryptor: Encryptor,
    decryptor: Decryptor,
    keyed: bool,
    paths: Vec<Path>,
    /// The ports that are known, with paths or without.
    ports: Vec<(EtherPort, PortState)>,
    /// How much of each port's receive ring is this session's, where that was told.
    shares: Vec<(EtherPort, u64)>,
    /// Whether a path came or went since the owner last asked.
    rewindowed: bool,
    /// The numbers of paths that are gone: since when, and how far they went.
    pn_horizons: BTreeMap<u8, (Instant, PnHorizon)>,
    send_queue: SendQueue,
    events: VecDeque<ConnectionEvent>,
    delivered_bodies: Vec<Bytes>,
    /// Room for heads, of messages that are done.
    heads: Vec<Vec<u8>>,
    /// The limits for exchanges in each space: ours, what the peer was told for sure, and the peer's.
    xid_limits: [u32; 2],
    xid_told: [u32; 2],
    peer_xid_limits: [u32; 2],
    /// When keys were last changed, until a frame sent later was acknowledged.
    key_unconfirmed: Option<Instant>,
    /// When the peer was first known to have the present keys, unless they are the first.
    key_confirmed: Option<Instant>,
    lost: bool,
    exhausted: bool,
    dice: Rng,
    scratch: Vec<u8>,
    /// The parts behind the first of the frame that is made, kept so that no frame allocates.
    further: Vec<Chunk>,
    drops: DropCounts,
    /// What paths did that are gone.
    past: PathTotals,
    key_updates: u64,
}

impl Connection {
    /// Begins the transport of a session that the handshake agreed on, on the path where that took place. `sid_out` is
    /// the peer's name for the session, `sid_in` ours.
    #[expect(clippy::too_many_arguments, reason = "a session is what the handshake agreed on")]
    pub fn new(
        role: Role,
        plan: &ConnectionConfig,
        now: Instant,
        keys: Option<&SessionKeys>,
        sid_out: u32,
        sid_in: u32,
        address: PathAddress,
        port: &PortState,
    ) -> Self {
        let mut dice = Rng::from_seed(u64::from_be_bytes(plan.entropy));
        let path = Path::new(now, (0, &PnHorizon::default()), address, port, plan, dice.next_u64());
        let mut own = Self {
            role,
            plan: plan.clone(),
            sign_after: plan.lost_after / if role == Role::Initiator { 3 } else { 2 },
            sid_out,
            sid_in,
            encryptor: keys.map_or_else(Encryptor::without_keys, |keys| {
                Encryptor::for_role(keys, role).limited(plan.key_limits)
            }),
            decryptor: keys.map_or_else(Decryptor::without_keys, |keys| Decryptor::for_role(keys, role)),
            keyed: keys.is_some(),
            paths: alloc::vec![path],
            ports: alloc::vec![(address.port, *port)],
            shares: Vec::new(),
            rewindowed: false,
            pn_horizons: BTreeMap::new(),
            send_queue: SendQueue::default(),
            events: VecDeque::new(),
            delivered_bodies: Vec::new(),
            heads: Vec::new(),
            xid_limits: [0; 2],
            xid_told: [0; 2],
            peer_xid_limits: [0; 2],
            // Nothing that was sealed with the first keys was acknowledged yet.
            key_unconfirmed: keys.map(|_| Instant::ORIGIN),
            key_confirmed: None,
            lost: false,
            exhausted: false,
            dice,
            scratch: Vec::new(),
            further: Vec::new(),
            drops: DropCounts::default(),
            past: PathTotals::default(),
            key_updates: 0,
        };
        own.share_out(address.port);
        own
    }

    /// Takes a message that is to arrive. In a session without keys its level must be `none`.
    ///
    /// # Panics
    /// When it is longer than a frame's OFF can count, or its head than [`HEAD_LEN_MAX`], or there are no keys for it.
    pub fn send(&mut self, message: Message) -> MessageId {
        assert!(self.keyed || message.level == Level::None, "a session without keys protects nothing");
        MessageId(self.send_queue.push(message))
    }

    /// Takes a message back: what of it was not sent is not, and what was is not repeated. There will be no event.
    pub fn withdraw(&mut self, id: MessageId) {
        if let Some(message) = self.send_queue.withdraw(id.0) {
            self.spend(message);
        }
    }

    /// Takes back every message that has an owner.
    pub fn withdraw_owned(&mut self) {
        for key in self.send_queue.owned().collect::<Vec<_>>() {
            self.withdraw(MessageId(key));
        }
    }

    /// Takes note that frames were longer than their port allows at present.
    pub fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        for path in self.paths.iter_mut().filter(|path| path.address.port == port && count > 0) {
            if path.too_long(now) {
                self.events.push_back(ConnectionEvent::PathMtu { path: path.id, mtu: path.pmtu.current() });
            }
        }
    }

    /// Takes note that a port lost `count` frames more for want of room, whosever they were.
    pub fn frames_overrun(&mut self, port: EtherPort, count: u32) {
        for path in self.paths.iter_mut().filter(|path| path.address.port == port && count > 0) {
            path.overruns = path.overruns.wrapping_add(count);
            path.stats.frames_overrun += u64::from(count);
            path.spaces.iter_mut().for_each(|space| space.incoming.grant.overflowed());
        }
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        if let Some(path) = self.paths.iter_mut().find(|path| path.is_usable()) {
            path.ping_wanted = true;
            path.announced = false;
        }
    }

    /// Changes the keys of what we send, if the peer has seen the present ones for long enough. Returns whether it did. They change by
    /// themselves before they are used up; this is for owners that want it more often.
    pub fn update_keys(&mut self, now: Instant) -> bool {
        //= hyperscsi#section-7.4
        //# A sender MUST NOT change keys before a frame that it sealed with the present
        //# ones was acknowledged, nor, but for the first keys, within 1 second of the first such acknowledgement.
        let fresh = self.key_confirmed.is_some_and(|at| now.since(at) < UPDATE_EVERY);
        if !self.keyed || fresh || self.key_unconfirmed.is_some() {
            return false;
        }
        self.encryptor.update(now);
        self.key_unconfirmed = Some(now);
        self.key_updates += 1;
        self.events.push_back(ConnectionEvent::KeysChanged);
        true
    }

    /// Returns what happened next.
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    /// Returns bodies of messages that are done, for a pool of buffers. Not all of them, if nobody asks.
    pub fn take_delivered_bodies(&mut self) -> impl Iterator<Item = Bytes> + '_ {
        self.delivered_bodies.drain(..)
    }

    /// Returns room for the head of a message, without a new allocation where one before was done with its own.
    pub fn take_head_buffer(&mut self) -> Vec<u8> {
        self.heads.pop().unwrap_or_else(|| Vec::with_capacity(HEAD_LEN_USUAL))
    }

    /// Returns whether there are such.
    pub const fn has_delivered_bodies(&self) -> bool {
        !self.delivered_bodies.is_empty()
    }

    /// Returns when [`Self::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.lost {
            return None;
        }
        let of = |path: &Path| soonest([path.poll_timeout(), self.next_sign(path)]);
        self.paths.iter().filter_map(of).min()
    }

    /// Takes note that the time came.
    pub fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.paths.len() {
            let Some(path) = self.paths.get_mut(index) else { continue };
            let outcome = path.handle_timeout(now, &mut self.send_queue);
            if path.backoff == crate::path::SUSPECT_AFTER && path.probes > 0 {
                self.requeue_from_silent_paths();
            }
            self.apply_path_update(now, index, outcome);
            self.watch(now, index);
        }
        let silent = |path: &Path| now.since(path.heard) >= self.plan.lost_after;
        if !self.lost && self.paths.iter().all(silent) {
            self.lost = true;
            self.events.push_back(ConnectionEvent::Lost);
        }
        let untried = |path: &&Path| path.challenge != 0 && silent(path);
        if self.role == Role::Target {
            // The copy of a frame begins a path too, from wherever it comes, and would hold its place for ever.
            let untried: Vec<u8> = self.paths.iter().filter(untried).map(|path| path.id).collect();
            for id in untried.into_iter().take(self.paths.len().saturating_sub(1)) {
                self.drop_path(now, id);
            }
        }
    }

    /// Returns the paths.
    pub fn paths(&self) -> impl Iterator<Item = PathView> + '_ {
        self.paths.iter().map(|path| PathView {
            id: path.id,
            address: path.address,
            is_up: path.is_usable(),
            stats: path.stats(),
        })
    }

    /// Returns what was done so far.
    pub fn stats(&self) -> ConnectionStats {
        let mut paths = self.past;
        self.paths.iter().for_each(|path| paths.add(&path.stats));
        ConnectionStats {
            drops: self.drops,
            key_updates: self.key_updates,
            messages: self.send_queue.len(),
            paths,
        }
    }

    /// Returns when silence on a path wants something to be done: a question, and in the end the conclusion.
    fn next_sign(&self, path: &Path) -> Option<Instant> {
        let end = path.heard.after(self.plan.lost_after);
        if path.down || !path.port_up || path.is_waiting() || path.ping_wanted {
            return (!path.down || self.paths.len() == 1).then_some(end);
        }
        Some(path.heard.after(self.sign_after))
    }

    /// Asks a silent path for a sign of life, and gives it up in the end.
    fn watch(&mut self, now: Instant, index: usize) {
        let Some(path) = self.paths.get(index) else { return };
        let due = self.next_sign(path).is_some_and(|at| at <= now);
        let silent = now.since(path.heard) >= self.plan.lost_after;
        let Some(path) = self.paths.get_mut(index) else { return };
        if !due {
            return;
        }
        if silent && !path.down {
            path.down = true;
            self.events.push_back(ConnectionEvent::PathDown(path.id));
        } else if !silent && path.port_up && !path.is_waiting() {
            path.ping_wanted = true;
            path.announced = false;
        }
    }

    /// Lets paths that answer carry what is under way on those that do not. To be called whenever a path begins to be of the
    /// former or of the latter: where all were silent, the first that is back carries what the others had.
    fn requeue_from_silent_paths(&mut self) {
        if !self.paths.iter().any(Path::is_good) {
            return;
        }
        for path in self.paths.iter_mut().filter(|path| !path.is_good() && path.is_waiting()) {
            path.requeue_in_flight(&mut self.send_queue);
            // Perhaps that was what told the peer of new exchanges.
            self.xid_told = [0; 2];
        }
        let silent = self.paths.iter_mut().filter(|path| !path.is_good());
        let mut leaves: Vec<u8> = silent.flat_map(|path| path.leaves.drain(..)).collect();
        if let Some(messenger) = self.control_path() {
            messenger.leaves.append(&mut leaves);
        }
        self.paths.iter_mut().for_each(|path| path.announced = false);
    }

    /// Tells what came of an acknowledgement or of time.
    fn apply_path_update(&mut self, now: Instant, index: usize, outcome: PathUpdate) {
        let Some(path) = self.paths.get_mut(index) else { return };
        if outcome.mtu_changed {
            path.mtu_changed();
            self.events.push_back(ConnectionEvent::PathMtu { path: path.id, mtu: path.pmtu.current() });
        }
        self.measured(index);
        let Some(path) = self.paths.get_mut(index) else { return };
        if outcome.lost {
            // Perhaps it was what told the peer of new exchanges.
            self.xid_told = [0; 2];
        }
        if self.keyed {
            self.decryptor.keep_for(path.probe_timeout().saturating_mul(3));
        }
        if let (Some(since), Some(sent)) = (self.key_unconfirmed, outcome.sealed_at)
            && sent > since
        {
            self.key_unconfirmed = None;
            self.key_confirmed = (self.key_updates > 0).then_some(now);
        }
    }

    /// Tells of a path that was measured and carries less than our port takes, or all of it again.
    fn measured(&mut self, index: usize) {
        let Some(path) = self.paths.get_mut(index) else { return };
        if let Some(width) = path.measured() {
            self.events.push_back(ConnectionEvent::PathMtuStatus { path: path.id, status: width });
        }
    }

    fn spend(&mut self, message: Message) {
        spend(&mut self.delivered_bodies, &mut self.heads, message);
    }
}

/// Splits a packet number into its path and its count.
fn split(pn: u64) -> (u8, u64) {
    let [path, ..] = pn.to_be_bytes();
    (path, pn & !(0xff << PATH_SHIFT))
}

/// Keeps what of a message can be used again.
fn spend(spent: &mut Vec<Bytes>, heads: &mut Vec<Vec<u8>>, message: Message) {
    let Message { mut head, body, .. } = message;
    if (1..=HEAD_LEN_USUAL).contains(&head.capacity()) && heads.len() < HEADS_MAX {
        head.clear();
        heads.push(head);
    }
    for part in body.into_parts() {
        if spent.len() < SPENT_MAX {
            spent.push(part);
        }
    }
}

#[cfg(test)]
mod tests;
