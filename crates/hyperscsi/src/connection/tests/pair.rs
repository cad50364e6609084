//! Two connections with a faulty network between them, in simulated time. The received bytes are compared
//! with the sent bytes.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use base::buffer::Bytes;
use base::ether::{ETHERNET_HEADER_LEN, EtherPort, FrameBatch, Mac, PortState};
use base::rng::Rng;
use base::time::{Duration, Instant};
use netem::frame::{FrameLink, FramePlan};
use netem::probability::DurationRange;

use crate::Role;
use crate::aead::{SessionKeys, put_crc};
use crate::connection::{
    Connection, ConnectionConfig, ConnectionEvent, Delivery, Message, MessageId, PathAddress,
};
use crate::frame::{Cmd, Flags, Header};
use crate::path::ranges::Ranges;
use crate::pdu::parameters::{Parameters, Repair};
use security::Level;

#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) seed: u64,
    pub(super) keyed: bool,
    pub(super) mtu: usize,
    pub(super) share: u64,
    pub(super) repair: Repair,
    pub(super) ports: usize,
    pub(super) token: [u8; 16],
    pub(super) lost_after_ms: u32,
    /// How long a frame waits at a side until it is read, at most: the process polls only so often.
    pub(super) looks_every: Duration,
    /// The network from initiator to target, and back.
    pub(super) plans: [FramePlan; 2],
}

/// Bytes per second.
pub(super) const TEN_GBIT: u64 = 1_250_000_000;

impl Config {
    /// 10 Gbit/s, a round trip of 40 µs.
    pub(super) fn lan() -> Self {
        Self {
            seed: 1,
            keyed: false,
            mtu: 9000,
            share: 256,
            repair: Repair::Selective,
            ports: 1,
            token: [5; 16],
            lost_after_ms: 30_000,
            looks_every: Duration::ZERO,
            plans: [wire(TEN_GBIT), wire(TEN_GBIT)],
        }
    }
}

/// Returns one direction of a wire with this rate, without faults.
pub(super) fn wire(bytes_per_s: u64) -> FramePlan {
    FramePlan {
        delay: DurationRange::exactly(Duration::from_micros(20)),
        bytes_per_s,
        reorder_by: DurationRange::between(Duration::from_micros(10), Duration::from_micros(100)),
        ..FramePlan::CLEAN
    }
}

/// The bytes that Ethernet adds to a frame on the wire besides its header: preamble, check sequence, gap.
const WIRE_LEN: usize = 24;

/// A message as its receiver must receive it.
struct Expected {
    head: usize,
    off: u32,
    /// The offset of its bytes in the common block, and their number.
    at: usize,
    len: usize,
    good: bool,
    got: Ranges,
    done: bool,
}

pub(super) struct Side {
    pub(super) connection: Connection,
    expected: BTreeMap<u32, Expected>,
    ids: BTreeMap<MessageId, u32>,
    waiting: VecDeque<Message>,
    pub(super) depth: usize,
    pub(super) events: Vec<(Instant, ConnectionEvent)>,
    pub(super) arrived_bytes: u64,
    pub(super) repeated_bytes: u64,
}

pub(super) struct Pair {
    pub(super) now: Instant,
    /// Initiator and target.
    pub(super) sides: [Side; 2],
    /// By port, then direction.
    pub(super) links: Vec<[FrameLink; 2]>,
    looks_every: Duration,
    /// Frames that a side received and has not read: time, port, bytes.
    unread: [VecDeque<(Instant, u32, Vec<u8>)>; 2],
    pub(super) block: Bytes,
    pub(super) batch: FrameBatch,
    next_xid: u32,
    dice: Rng,
    keyed: bool,
    mtu: usize,
    pub(super) seed: u64,
    /// Every sent frame: sender, port, bytes.
    pub(super) seen: Option<Vec<(usize, u32, Vec<u8>)>>,
    pub(super) frames: u64,
    /// The new addresses of replaced ports, by side and port.
    pub(super) replaced: BTreeMap<(usize, u32), Mac>,
    /// Returns whether a side's frame is lost in addition to those that the links lose.
    pub(super) drops: fn(usize, &Header) -> bool,
}

pub(super) fn mac(side: usize, port: u32) -> Mac {
    Mac([2, 0, 0, 0, u8::try_from(side).unwrap(), u8::try_from(port).unwrap()])
}

pub(super) fn state(side: usize, port: u32, mtu: usize) -> PortState {
    PortState { mac: mac(side, port), mtu, receive_slots: 512 }
}

/// Returns a frame without protection, from its header on, as any station can make it.
pub(super) fn in_the_clear(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut batch = FrameBatch::new();
    batch.begin_frame(mac(1, 0));
    batch.put(&header.to_bytes());
    batch.put(payload);
    put_crc(&mut batch);
    batch.end_frame();
    batch.frames().flat_map(|(.., pieces)| pieces.flatten().copied()).collect()
}

impl Side {
    /// Returns how many messages were not passed to the connection yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Pair {
    pub(super) fn new(config: &Config) -> Self {
        let parameters = Parameters {
            frame_max: u16::try_from(config.mtu).unwrap(),
            repair: config.repair,
            lost_after_ms: config.lost_after_ms,
            ..Parameters::DEFAULT
        };
        let mut dice = Rng::from_seed(config.seed);
        let keys = config.keyed.then(|| SessionKeys::from_secret(&[7; 64], &[9; 64]));
        let side = |index: usize, role: Role| {
            let plan = ConnectionConfig::new(
                &parameters,
                &parameters,
                config.share,
                config.token,
                config.seed.to_be_bytes(),
            );
            let address = PathAddress { port: EtherPort(0), mac: mac(1 - index, 0) };
            let (out, own) = if index == 0 { (0x22, 0x11) } else { (0x11, 0x22) };
            let state = state(index, 0, config.mtu);
            let connection =
                Connection::new(role, &plan, Instant(0), keys.as_ref(), out, own, address, &state);
            Side {
                connection,
                expected: BTreeMap::new(),
                ids: BTreeMap::new(),
                waiting: VecDeque::new(),
                depth: 0,
                events: Vec::new(),
                arrived_bytes: 0,
                repeated_bytes: 0,
            }
        };
        let sides = [side(0, Role::Initiator), side(1, Role::Target)];
        let mut links = Vec::new();
        for _ in 0..config.ports {
            links.push(config.plans.clone().map(|plan| FrameLink::new(plan, dice.next_u64())));
        }
        let mut block = alloc::vec![0; 1 << 20];
        dice.fill(&mut block);
        let mut pair = Self {
            now: Instant(0),
            sides,
            links,
            looks_every: config.looks_every,
            unread: Default::default(),
            block: Bytes::copied_from(&block),
            batch: FrameBatch::new(),
            next_xid: 1,
            dice,
            keyed: config.keyed,
            mtu: config.mtu,
            seed: config.seed,
            seen: None,
            frames: 0,
            replaced: BTreeMap::new(),
            drops: |_, _| false,
        };
        for (index, side) in pair.sides.iter_mut().enumerate() {
            for port in 0..u32::try_from(config.ports).unwrap() {
                side.connection.port_up(Instant(0), EtherPort(port), &state(index, port, config.mtu));
            }
        }
        pair
    }

    /// Queues `count` messages of up to `len` bytes at both sides, to be sent `depth` at a time.
    pub(super) fn offer(&mut self, count: usize, len: usize, depth: usize) {
        for side in 0..2 {
            for _ in 0..count {
                let len = usize::try_from(self.dice.below(len as u64 + 1)).unwrap();
                self.give(side, len);
            }
            self.sides[side].depth = depth;
        }
    }

    /// Queues one message of exactly `len` bytes at a side.
    pub(super) fn give(&mut self, side: usize, len: usize) {
        let xid = self.next_xid;
        self.next_xid += 1;
        let at = usize::try_from(self.dice.below((self.block.len() - len - 300) as u64)).unwrap();
        let head = if side == 0 || len == 0 { 1 + usize::try_from(self.dice.below(290)).unwrap() } else { 0 };
        let level = match self.dice.below(3) {
            0 if self.keyed => Level::Integrity,
            1 if self.keyed => Level::Encrypt,
            _ => Level::None,
        };
        let mut body = base::buffer::DataList::new();
        for start in (0..len).step_by(4096) {
            body.push(self.block.slice(at + 300 + start, at + 300 + len.min(start + 4096)));
        }
        let (cmd, off, good) =
            if side == 0 { (Cmd::Request, 0, false) } else { (Cmd::Reply, 512 * (xid % 5), true) };
        let message = Message {
            cmd,
            xid,
            tag: u16::try_from(xid % 512).unwrap(),
            level,
            head: self.block[at + 300 - head..at + 300].to_vec(),
            data: side == 1,
            body,
            off,
            last: true,
            good,
            urgent: self.dice.chance(1, 50),
            owner: None,
        };
        let expected = Expected { head, off, at: at + 300, len, good, got: Ranges::new(), done: false };
        self.sides[1 - side].expected.insert(xid, expected);
        self.sides[side].waiting.push_back(message);
        self.sides[side].depth = self.sides[side].depth.max(1);
    }

    /// Runs until every message was acknowledged.
    pub(super) fn run_until_done(&mut self, limit: Duration) {
        let end = self.now.after(limit);
        self.run_until(end, |pair| {
            pair.sides.iter().all(|side| side.waiting.is_empty() && side.ids.is_empty())
        });
        for side in &self.sides {
            assert!(side.waiting.is_empty() && side.ids.is_empty(), "seed {}: {side:?}", self.seed);
            assert!(side.expected.values().all(|expected| expected.done), "seed {}", self.seed);
        }
    }

    pub(super) fn run_for(&mut self, span: Duration) {
        self.run_until(self.now.after(span), |_| false);
    }

    pub(super) fn run_until(&mut self, end: Instant, enough: impl Fn(&Self) -> bool) {
        while self.now < end && !enough(self) {
            self.drain();
            let links = self.links.iter().flatten().filter_map(FrameLink::poll_timeout);
            let timers = self.sides.iter().filter_map(|side| side.connection.poll_timeout());
            let unread = self.unread.iter().any(|unread| !unread.is_empty());
            let look = unread.then(|| self.next_look());
            let next = links.chain(timers).chain(look).min().unwrap_or(end).min(end);
            assert!(next >= self.now || self.now == Instant(0), "seed {}: the clock goes back", self.seed);
            self.now = next.max(self.now);
            for side in 0..2 {
                if self.sides[side].connection.poll_timeout().is_some_and(|at| at <= self.now) {
                    self.sides[side].connection.handle_timeout(self.now);
                }
            }
            for port in 0..self.links.len() {
                for side in 0..2 {
                    while let Some(frame) = self.links[port][1 - side].poll(self.now) {
                        self.unread[side].push_back((self.now, u32::try_from(port).unwrap(), frame));
                    }
                }
            }
            if self.next_look() == self.now {
                for side in 0..2 {
                    while let Some((came, port, frame)) = self.unread[side].pop_front() {
                        if self.mac(side, port).0 != frame[..6] {
                            continue;
                        }
                        self.read(side, came, port, &frame);
                    }
                }
            }
        }
    }

    /// Returns when frames are read next: now, or later.
    fn next_look(&self) -> Instant {
        let every = u64::try_from(self.looks_every.as_nanos()).unwrap().max(1);
        Instant(self.now.0.next_multiple_of(every))
    }

    /// Delivers a frame to a side now.
    pub(super) fn arrive(&mut self, side: usize, port: u32, frame: &[u8]) {
        self.read(side, self.now, port, frame);
    }

    /// Returns the present address of a port of a side.
    pub(super) fn mac(&self, side: usize, port: u32) -> Mac {
        self.replaced.get(&(side, port)).copied().unwrap_or_else(|| mac(side, port))
    }

    /// Gives a port of a side another address.
    pub(super) fn replace(&mut self, side: usize, port: u32, address: Mac) {
        self.replaced.insert((side, port), address);
        let state = PortState { mac: address, ..state(side, port, self.mtu) };
        self.sides[side].connection.port_up(self.now, EtherPort(port), &state);
    }

    fn read(&mut self, side: usize, came: Instant, port: u32, frame: &[u8]) {
        let source = Mac(frame[6..12].try_into().unwrap());
        let mut payload = frame[ETHERNET_HEADER_LEN..frame.len() - WIRE_LEN].to_vec();
        let Ok((header, _)) = Header::parse(&payload) else { return };
        let (block, seed) = (&self.block, self.seed);
        let Side { connection, expected, arrived_bytes, repeated_bytes, .. } = &mut self.sides[side];
        let taken = connection.frame_received(
            self.now,
            came,
            PathAddress { port: EtherPort(port), mac: source },
            header,
            &mut payload,
            &mut |header, payload| {
                let expected =
                    expected.get_mut(&header.xid).unwrap_or_else(|| panic!("seed {seed}: {header:?}"));
                let before = count(&expected.got);
                check(expected, block, header, payload, seed);
                let after = count(&expected.got);
                *arrived_bytes += after - before;
                *repeated_bytes += payload.len() as u64 - (after - before).min(payload.len() as u64);
            },
        );
        _ = taken;
    }

    /// Passes waiting messages to both sides and transmits their frames.
    pub(super) fn drain(&mut self) {
        for index in 0..2 {
            self.drain_events(index);
            let side = &mut self.sides[index];
            while side.ids.len() < side.depth {
                let Some(message) = side.waiting.pop_front() else { break };
                let xid = message.xid;
                let id = side.connection.send(message);
                assert!(side.ids.insert(id, xid).is_none());
            }
            while let Some(port) = self.sides[index].connection.poll_port() {
                self.transmit(index, port);
            }
        }
    }

    fn drain_events(&mut self, index: usize) {
        let [a, b] = &mut self.sides;
        let (side, other) = if index == 0 { (a, b) } else { (b, a) };
        while let Some(event) = side.connection.poll_event() {
            if let ConnectionEvent::Delivered(Delivery { message: id, .. }) = event {
                let xid =
                    side.ids.remove(&id).unwrap_or_else(|| panic!("seed {}: acknowledged twice", self.seed));
                let expected = other.expected.get_mut(&xid).unwrap();
                let whole = (expected.head + expected.len) as u64;
                assert!(expected.got.runs() == [(0, whole.max(1))], "seed {}: {:?}", self.seed, expected.got);
                expected.done = true;
            } else {
                side.events.push((self.now, event));
            }
        }
        assert!(side.connection.take_delivered_bodies().count() <= 64);
    }

    fn transmit(&mut self, side: usize, port: EtherPort) {
        loop {
            self.sides[side].connection.transmit(self.now, port, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            let source = self.mac(side, port.0);
            for (to, len, pieces) in self.batch.frames() {
                let mut frame = to.0.to_vec();
                frame.extend_from_slice(&source.0);
                frame.extend_from_slice(&crate::ETHERTYPE.to_be_bytes());
                pieces.for_each(|piece| frame.extend_from_slice(piece));
                assert_eq!(frame.len(), len + ETHERNET_HEADER_LEN);
                frame.resize(frame.len().max(60) + WIRE_LEN, 0);
                self.frames += 1;
                if let Some(seen) = &mut self.seen {
                    seen.push((side, port.0, frame.clone()));
                }
                let header = Header::parse(&frame[ETHERNET_HEADER_LEN..len + ETHERNET_HEADER_LEN]);
                if header.is_ok_and(|(header, _)| (self.drops)(side, &header)) {
                    continue;
                }
                let link = usize::try_from(port.0).unwrap();
                self.links[link][side].push(self.now, &frame);
            }
            self.batch.clear(&base::buffer::Pool::new(0));
        }
    }
}

/// Compares a received frame with the sent message.
fn check(expected: &mut Expected, block: &[u8], header: &Header, payload: &[u8], seed: u64) {
    assert_eq!(usize::from(header.len), payload.len());
    let whole = expected.head + expected.len;
    let from = if header.flags.has(Flags::DATA) {
        expected.head + usize::try_from(header.off - expected.off).unwrap()
    } else {
        assert!(
            expected.head > 0 && header.off == 0 && payload.len() >= expected.head,
            "seed {seed}: {header:?}"
        );
        0
    };
    let start = expected.at - expected.head + from;
    assert!(block[start..start + payload.len()] == *payload, "seed {seed}: garbled {header:?}");
    let to = from + payload.len();
    assert!(to <= whole && header.last == (to == whole), "seed {seed}: {header:?}");
    assert_eq!(header.flags.has(Flags::GOOD), expected.good && header.last, "seed {seed}: {header:?}");
    expected.got.insert(from as u64, (to as u64).max(u64::from(whole == 0)));
}

fn count(set: &Ranges) -> u64 {
    set.runs().iter().map(|(from, to)| to - from).sum()
}

impl core::fmt::Debug for Side {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        writeln!(f, "{} waiting, {} sent", self.waiting.len(), self.ids.len())?;
        writeln!(f, "{:?}", self.connection.stats())?;
        self.connection.paths().try_for_each(|path| writeln!(f, "{path:?}"))?;
        writeln!(f, "{:?}", self.events)
    }
}
