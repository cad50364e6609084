//! The transport of one session: keys, paths and messages under way, for either role.
//!
//! A message that is passed to [`Connection::send`] arrives in parts, in any order, each part at least once
//! and at the offset that its frame names. The exchanges above decide what a range of bytes means, and that
//! nothing is executed twice. Received frames are checked, decrypted, checked for replays, acknowledged, and
//! delivered to the owner.
//!
//! The owner calls [`Connection::frame_received`], [`Connection::handle_timeout`] and [`Connection::send`] as
//! events occur, then drains [`Connection::poll_event`], then [`Connection::poll_port`] with
//! [`Connection::transmit`] for each port, and asks [`Connection::poll_timeout`] for the next deadline.
//!
//! Every delivered frame counts as received: it is acknowledged whatever the owner does with it. So the owner
//! must have memory for what its credit allows; the frames of a session never fill more than its quota of the
//! port's receive ring.

mod drops;
mod event;
pub mod handover;
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
use crate::aead::{Decryptor, Encryptor, KeyLimits, SessionKeys, UPDATE_EVERY};
use crate::path::pn_space::PATH_SHIFT;
use crate::path::{Path, PathUpdate, PnHorizon};
pub use crate::path::{PathAddress, PathStats, PathTotals};
use crate::pdu::ask::TOKEN_LEN;
use crate::pdu::parameters::{Levels, Parameters, Repair};
use crate::send_queue::{Chunk, SendQueue};
pub use crate::send_queue::{HEAD_LEN_MAX, Message, MessageId};
use crate::{Role, frame::TAGS};
use security::Level;

/// How many paths a session may have at a time.
pub const PATHS_MAX: usize = 8;

/// How many parts of delivered bodies are kept for the owner's buffer pool.
const SPENT_MAX: usize = 64;

/// How many head buffers are kept for reuse: one for each exchange that a target usually allows. Longer ones
/// than [`HEAD_LEN_USUAL`] are not kept.
const HEADS_MAX: usize = 128;

/// The capacity of a head buffer: enough for a command with a CDB of up to 32 bytes, or a response with as
/// much sense data.
const HEAD_LEN_USUAL: usize = 64;

/// The configuration of a connection, as the two ends agreed and as its owner wishes.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// How lost data is retransmitted: selectively, or everything from the loss on.
    pub repair: Repair,
    /// How long a path may be silent before it is given up, and with the last path the session.
    pub lost_after: Duration,
    /// The protection levels that exchanges may have.
    pub levels: Levels,
    /// How many exchanges can be under way.
    pub exchanges: u16,
    /// How many paths the session may have.
    pub paths: u8,
    /// The token that a peer must present to add a path in a session without keys.
    pub token: [u8; TOKEN_LEN],
    /// The longest Ethernet payload that the peer's port takes.
    pub peer_frame_max: u16,
    /// How many frames the peer takes in each packet number space before it sends its first credit.
    pub peer_frames_initial: u32,
    /// How many frames this end takes in each packet number space before it sends its first credit.
    pub frames_initial: u32,
    /// The longest time that the peer delays an acknowledgement.
    pub peer_ack_delay_max: Duration,
    /// The longest time that this end delays an acknowledgement.
    pub ack_delay_max: Duration,
    /// How many frames of each port's receive ring this session may fill, until
    /// [`Connection::set_ring_quota`] is called.
    pub ring_quota: u64,
    /// How much longer than the fastest frame a frame may take before the congestion control suspects a
    /// queue.
    pub delay_allowance: Duration,
    /// The shortest time-out after which a probe is sent.
    pub probe_floor: Duration,
    /// When the keys of sent frames are updated.
    pub key_limits: KeyLimits,
    /// Entropy from the operating system's generator, for challenges and for packet numbers that are skipped.
    pub entropy: [u8; 8],
}

impl ConnectionConfig {
    /// The default delay allowance: the time that a receiver needs to wake up, which is also that of 250 KB
    /// of queue at 10 Gbit/s.
    pub const DELAY_ALLOWANCE: Duration = Duration::from_micros(200);
    /// The default of the shortest time-out: a few wake-ups.
    pub const PROBE_FLOOR: Duration = Duration::from_micros(500);

    /// Returns the configuration that follows from this end's parameters and those that the peer chose.
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
    /// Whether the path carries data.
    pub is_up: bool,
    /// Whether the peer has echoed our challenge on it, or the session began on it.
    pub is_validated: bool,
    /// The counters of the path.
    pub stats: PathStats,
}

/// The transport of one session.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    plan: ConnectionConfig,
    /// How long a path may be silent before it is pinged. The initiator pings well before the target would,
    /// so that only one end does.
    sign_after: Duration,
    sid_out: u32,
    sid_in: u32,
    encryptor: Encryptor,
    decryptor: Decryptor,
    keyed: bool,
    paths: Vec<Path>,
    /// The known ports, with paths or without.
    ports: Vec<(EtherPort, PortState)>,
    /// This session's quota of each port's receive ring, where it was set.
    shares: Vec<(EtherPort, u64)>,
    /// Whether a path was added or removed since the owner last asked.
    rewindowed: bool,
    /// The identifiers of removed paths: when each was removed, and the highest packet numbers that it used.
    pn_horizons: BTreeMap<u8, (Instant, PnHorizon)>,
    send_queue: SendQueue,
    events: VecDeque<ConnectionEvent>,
    delivered_bodies: Vec<Bytes>,
    /// Head buffers of delivered messages, for reuse.
    heads: Vec<Vec<u8>>,
    /// The XID limits in each packet number space: this end's, those that were sent to the peer in a frame
    /// that elicits an acknowledgement, and the peer's.
    xid_limits: [u32; 2],
    xid_announced: [u32; 2],
    peer_xid_limits: [u32; 2],
    /// When keys were last updated, until a frame that was sent later is acknowledged.
    key_unconfirmed: Option<Instant>,
    /// When the peer was first known to have the present keys, unless they are the first.
    key_confirmed: Option<Instant>,
    lost: bool,
    exhausted: bool,
    dice: Rng,
    scratch: Vec<u8>,
    /// The parts behind the first in the frame that is being built, kept so that no frame allocates.
    further: Vec<Chunk>,
    drops: DropCounts,
    /// The totals of removed paths.
    past: PathTotals,
    key_updates: u64,
}

impl Connection {
    /// Returns the transport of a session that the handshake agreed on, with the path on which the handshake
    /// took place. `sid_out` is the SID that the peer chose, `sid_in` the SID that this end chose.
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
        let encryptor = keys.map_or_else(Encryptor::without_keys, |keys| {
            Encryptor::for_role(keys, role).limited(plan.key_limits)
        });
        let decryptor = keys.map_or_else(Decryptor::without_keys, |keys| Decryptor::for_role(keys, role));
        let mut own = Self::with_keys(role, plan, (sid_out, sid_in), encryptor, decryptor, dice);
        // No frame that was protected with the first keys was acknowledged yet.
        (own.keyed, own.key_unconfirmed) = (keys.is_some(), keys.map(|_| Instant::ORIGIN));
        own.paths.push(path);
        own.ports.push((address.port, *port));
        own.share_out(address.port);
        own
    }

    /// Returns a connection without paths.
    fn with_keys(
        role: Role,
        plan: &ConnectionConfig,
        (sid_out, sid_in): (u32, u32),
        encryptor: Encryptor,
        decryptor: Decryptor,
        dice: Rng,
    ) -> Self {
        Self {
            role,
            plan: plan.clone(),
            sign_after: plan.lost_after / if role == Role::Initiator { 3 } else { 2 },
            sid_out,
            sid_in,
            encryptor,
            decryptor,
            keyed: false,
            paths: Vec::new(),
            ports: Vec::new(),
            shares: Vec::new(),
            rewindowed: false,
            pn_horizons: BTreeMap::new(),
            send_queue: SendQueue::default(),
            events: VecDeque::new(),
            delivered_bodies: Vec::new(),
            heads: Vec::new(),
            xid_limits: [0; 2],
            xid_announced: [0; 2],
            peer_xid_limits: [0; 2],
            key_unconfirmed: None,
            key_confirmed: None,
            lost: false,
            exhausted: false,
            dice,
            scratch: Vec::new(),
            further: Vec::new(),
            drops: DropCounts::default(),
            past: PathTotals::default(),
            key_updates: 0,
        }
    }

    /// Queues a message for reliable delivery. In a session without keys its level must be `none`.
    ///
    /// # Panics
    /// When the message is longer than a frame's OFF can count, or its head longer than [`HEAD_LEN_MAX`], or
    /// its level needs keys that the session does not have.
    pub fn send(&mut self, message: Message) -> MessageId {
        assert!(self.keyed || message.level == Level::None, "a session without keys protects nothing");
        MessageId(self.send_queue.push(message))
    }

    /// Withdraws a message: its unsent bytes are not sent, and its sent bytes are not retransmitted. No event
    /// follows.
    pub fn withdraw(&mut self, id: MessageId) {
        if let Some(message) = self.send_queue.withdraw(id.0) {
            self.spend(message);
        }
    }

    /// Withdraws every message that has an owner.
    pub fn withdraw_owned(&mut self) {
        for key in self.send_queue.owned().collect::<Vec<_>>() {
            self.withdraw(MessageId(key));
        }
    }

    /// Records that `count` frames were longer than their port allows at present.
    pub fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        for path in self.paths.iter_mut().filter(|path| path.address.port == port && count > 0) {
            if path.too_long(now) {
                self.events.push_back(ConnectionEvent::PathMtu { path: path.id, mtu: path.pmtu.current() });
            }
        }
    }

    /// Records that a port dropped `count` more received frames because its receive ring was full, of
    /// whatever session.
    pub fn frames_overrun(&mut self, port: EtherPort, count: u32) {
        for path in self.paths.iter_mut().filter(|path| path.address.port == port && count > 0) {
            path.overruns = path.overruns.wrapping_add(count);
            path.stats.frames_overrun += u64::from(count);
            path.spaces.iter_mut().for_each(|space| space.incoming.grant.overflowed());
        }
    }

    /// Sends the peer a ping.
    pub fn ping(&mut self) {
        if let Some(path) = self.paths.iter_mut().find(|path| path.is_usable()) {
            path.ping_wanted = true;
            path.announced = false;
        }
    }

    /// Updates the keys of sent frames, if the peer has used the present ones for long enough. Returns
    /// whether it did. The connection updates its keys by itself before they are used up; this method is for
    /// owners that want updates more often.
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

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    /// Returns bodies of delivered messages, for a pool of buffers. If the owner does not call this often
    /// enough, some of them are dropped.
    pub fn take_delivered_bodies(&mut self) -> impl Iterator<Item = Bytes> + '_ {
        self.delivered_bodies.drain(..)
    }

    /// Returns an empty buffer for the head of a message; reuses the buffer of a delivered message if there
    /// is one.
    pub fn take_head_buffer(&mut self) -> Vec<u8> {
        self.heads.pop().unwrap_or_else(|| Vec::with_capacity(HEAD_LEN_USUAL))
    }

    /// Returns whether [`Self::take_delivered_bodies`] has bodies to return.
    pub const fn has_delivered_bodies(&self) -> bool {
        !self.delivered_bodies.is_empty()
    }

    /// Returns when [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.lost {
            return None;
        }
        let of = |path: &Path| soonest([path.poll_timeout(), self.next_sign(path)]);
        self.paths.iter().filter_map(of).min()
    }

    /// Processes the deadlines that passed.
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
            // An attacker who copies a frame to another address also begins a path, which would hold its slot
            // for ever.
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
            is_validated: path.challenge == 0,
            stats: path.stats(),
        })
    }

    /// Returns the counters of the connection.
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

    /// Returns when the silence of a path needs action: first a ping, in the end its loss.
    fn next_sign(&self, path: &Path) -> Option<Instant> {
        let end = path.heard.after(self.plan.lost_after);
        let is_unproven = path.challenge != 0;
        if path.down || is_unproven || !path.port_up || path.is_waiting() || path.ping_wanted {
            return (!path.down || self.paths.len() == 1).then_some(end);
        }
        Some(path.heard.after(self.sign_after))
    }

    /// Pings a silent path, and declares it down in the end.
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
        } else if !silent && path.port_up && path.challenge == 0 && !path.is_waiting() {
            path.ping_wanted = true;
            path.announced = false;
        }
    }

    /// Moves data that is under way on silent paths to paths that answer. The caller must call this whenever
    /// a path begins to answer or falls silent: where all paths were silent, the first one that answers again
    /// carries the data of the others.
    fn requeue_from_silent_paths(&mut self) {
        if !self.paths.iter().any(Path::is_good) {
            return;
        }
        for path in self.paths.iter_mut().filter(|path| !path.is_good() && path.is_waiting()) {
            path.requeue_in_flight(&mut self.send_queue);
            // The moved data may include the frame that carried the XID limit.
            self.xid_announced = [0; 2];
        }
        let silent = self.paths.iter_mut().filter(|path| !path.is_good());
        let mut leaves: Vec<u8> = silent.flat_map(|path| path.leaves.drain(..)).collect();
        if let Some(messenger) = self.control_path() {
            messenger.leaves.append(&mut leaves);
        }
        self.paths.iter_mut().for_each(|path| path.announced = false);
    }

    /// Handles the consequences of an acknowledgement or a timeout.
    fn apply_path_update(&mut self, now: Instant, index: usize, outcome: PathUpdate) {
        let Some(path) = self.paths.get_mut(index) else { return };
        if outcome.mtu_changed {
            path.mtu_changed();
            self.events.push_back(ConnectionEvent::PathMtu { path: path.id, mtu: path.pmtu.current() });
        }
        self.measured(index);
        let Some(path) = self.paths.get_mut(index) else { return };
        if outcome.lost {
            // The lost frame may be the one that carried the XID limit.
            self.xid_announced = [0; 2];
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

    /// Reports a measured path MTU that is less than the port's, or as large as the port's again.
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

/// Keeps the buffers of a message that can be reused.
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
