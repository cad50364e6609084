//! Two shards behind one interface: whose a frame is, the first byte of its session's name says, and nothing else.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is test code, where a panic is the verdict"
)]

#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a vocabulary of tests, of which each test file uses a part"
)]
mod pair;

use base::buffer::Bytes;
use base::ether::{EtherPort, FrameBatch, FrameMachine as _, Mac, PortState, Received};
use base::machine::StreamMachine as _;
use base::time::{Duration, Instant};
use device::contract::RelativePort;
use hyperscsi::frame::Header;
use hyperscsi::initiator::contract::{Event, Request, SessionPlan, TaskId};
use hyperscsi::initiator::session::Session;
use hyperscsi::login::directory::Access;
use hyperscsi::pdu::command::Cdb;
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::seal::Level;
use pair::{BLOCK, World, config};
use store::ram::Ram;
use target::config::{FramesConfig, GroupConfig};

const PORT: EtherPort = EtherPort(0);
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const GROUP: &str = "everybody";
/// The first of the names of each shard's sessions.
const STEERING: [u8; 2] = [0x00, 0x80];

fn target(number: usize) -> String {
    format!("iqn.2026-11.org.example:disk{number}")
}

fn state(mac: Mac) -> PortState {
    PortState { mac, mtu: 9000, receive_slots: 1000 }
}

fn mac(host: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, u8::try_from(host).unwrap()])
}

/// Two shards and their initiators on one Ethernet.
struct Net {
    now: Instant,
    worlds: [World; 2],
    hosts: Vec<Session>,
    done: Vec<(usize, TaskId, bool, Vec<u8>)>,
    /// How many frames of sessions each shard was given.
    steered: [u64; 2],
}

impl Net {
    fn new() -> Self {
        let group = GroupName::new(GROUP).unwrap();
        let world = |number: usize| {
            let mut config = config(&[(0, 0)], vec![]);
            config.targets[0].name = target(number).parse().unwrap();
            config.targets[0].groups = vec![(group.clone(), RelativePort(2))];
            let entry =
                GroupConfig { name: group.clone(), access: Access::Open, least: Level::None, ports: None };
            config.frames =
                FramesConfig { instance: [5; 16], steering: STEERING[number], groups: vec![entry] };
            let mut world = World::new(config, vec![Box::new(Ram::new(8 << 20))]);
            world.shard.port_up(world.now, PORT, &state(OURS), [u8::try_from(number).unwrap() + 1; 32]);
            world
        };
        let worlds = [world(0), world(1)];
        Self { now: worlds[0].now, worlds, hosts: vec![], done: vec![], steered: [0; 2] }
    }

    fn join(&mut self, number: usize) {
        let host = self.hosts.len();
        let name = Name::new(&format!("iqn.2026-11.org.example:host{host}")).unwrap();
        let group = GroupName::new(GROUP).unwrap();
        let plan = SessionPlan::new(name, [1; 6], group, None, Name::new(&target(number)).unwrap());
        let mut session = Session::new(self.now, plan, self.worlds[0].pool.clone());
        session.port_up(self.now, PORT, &state(mac(host)), [u8::try_from(host).unwrap() + 10; 32]);
        self.hosts.push(session);
    }

    /// Gives a frame to those reactors whose filter lets it pass.
    fn steer(&mut self, source: Mac, group: bool, payload: &[u8]) {
        let sid = Header::parse(payload).unwrap().0.sid;
        let [first, ..] = sid.to_be_bytes();
        for (at, world) in self.worlds.iter_mut().enumerate() {
            let is_mine = usize::from(first >= STEERING[1]) == at;
            if sid == 0 || is_mine {
                self.steered[at] += u64::from(sid != 0);
                let payload = &mut payload.to_vec();
                world.shard.frame(self.now, Received { port: PORT, source, group, payload });
            }
        }
    }

    fn exchange(&mut self) -> bool {
        let (mut batch, mut moved) = (FrameBatch::new(), false);
        let whole = |batch: &FrameBatch| -> Vec<(Mac, Vec<u8>)> {
            batch.frames().map(|(to, _, pieces)| (to, pieces.flatten().copied().collect())).collect()
        };
        for at in 0..self.hosts.len() {
            while let Some(port) = self.hosts[at].poll_port() {
                self.hosts[at].transmit_frames(self.now, port, &mut batch);
                for (to, payload) in whole(&batch) {
                    moved = true;
                    self.steer(mac(at), to.is_group(), &payload);
                }
                batch.clear(&self.worlds[0].pool);
            }
        }
        for world in 0..2 {
            while let Some(port) = self.worlds[world].shard.poll_port() {
                self.worlds[world].shard.transmit_frames(self.now, port, &mut batch);
                for (to, payload) in whole(&batch) {
                    moved = true;
                    for at in (0..self.hosts.len()).filter(|at| to.is_group() || to == mac(*at)) {
                        let payload = &mut payload.clone();
                        let frame = Received { port, source: OURS, group: to.is_group(), payload };
                        self.hosts[at].frame(self.now, frame);
                    }
                }
                batch.clear(&self.worlds[0].pool);
            }
        }
        moved
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            for (at, host) in self.hosts.iter_mut().enumerate() {
                while let Some(event) = host.poll_event() {
                    if let Event::Done { task, outcome } = event {
                        let data = outcome.data_in.map(|data| data.to_vec()).unwrap_or_default();
                        self.done.push((at, task, outcome.end.is_good(), data));
                    }
                }
            }
            if done(self) {
                return;
            }
            if self.exchange() {
                continue;
            }
            let hosts = self.hosts.iter().filter_map(Session::poll_timeout);
            let shards = self.worlds.iter().filter_map(|world| world.shard.poll_timeout());
            self.now = hosts.chain(shards).min().unwrap().max(self.now).after(Duration::from_nanos(1));
            self.hosts.iter_mut().for_each(|host| host.handle_timeout(self.now));
            self.worlds.iter_mut().for_each(|world| world.shard.handle_timeout(self.now));
        }
        panic!("never: {:?}", self.done);
    }

    fn run(&mut self, host: usize, cdb: &[u8], out: &[u8], data_in_len: u32) -> (bool, Vec<u8>) {
        let mut request = Request::new(0, Cdb::new(cdb).unwrap());
        request.data_in_len = data_in_len;
        if !out.is_empty() {
            request.data_out = Bytes::copied_from(out).into();
        }
        let task = self.hosts[host].submit(self.now, request).unwrap();
        self.until(|net| net.done.iter().any(|done| (done.0, done.1) == (host, task)));
        let at = self.done.iter().position(|done| (done.0, done.1) == (host, task)).unwrap();
        let (_, _, good, data) = self.done.remove(at);
        (good, data)
    }
}

#[test]
fn each_shard_gets_the_frames_of_its_own_sessions_and_no_other() {
    let mut net = Net::new();
    for target in [0, 1, 1, 0] {
        net.join(target);
    }
    net.until(|net| net.hosts.iter().all(Session::is_up));
    let block = |seed: u8| vec![seed; 20 * BLOCK];
    for host in 0..4 {
        // The first command of a new nexus is told so.
        while !net.run(host, &[0; 6], &[], 0).0 {}
        let seed = u8::try_from(host).unwrap();
        let write = [0x2a, 0, 0, 0, 0, seed * 20, 0, 0, 20, 0];
        assert!(net.run(host, &write, &block(seed), 0).0);
    }
    // Hosts 0 and 3 have one disk, 1 and 2 the other: each finds what the two wrote, and nothing of the others.
    for (host, expected) in [(0, [Some(0), None, None, Some(3)]), (2, [None, Some(1), Some(2), None])] {
        for (place, seed) in (0_u8..).zip(expected) {
            let read = [0x28, 0, 0, 0, 0, place * 20, 0, 0, 20, 0];
            let (good, data) = net.run(host, &read, &[], 20 * 512);
            assert!(good && data == block(seed.unwrap_or(0)), "host {host}, place {place}");
        }
    }
    for (at, world) in net.worlds.iter().enumerate() {
        let stats = world.shard.frame_stats();
        assert_eq!((stats.sessions, stats.unknown_sids, stats.hints, stats.bugs), (2, 0, 0, 0), "shard {at}");
        assert!(net.steered[at] > 10, "{:?}", net.steered);
    }
}
