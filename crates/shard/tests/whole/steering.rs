//! Two shards behind one Ethernet interface: only the first byte of a frame's session identifier decides
//! which shard receives it.

use base::state_machine::StreamMachine as _;
use base::time::{Duration, Instant};
use device::contract::RelativePort;
use hyperscsi::frame::Header;
use hyperscsi::initiator::contract::SessionPlan;
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::name::Name;
use security::Level;
use shard::config::HyperScsiConfig;
use transport::initiator::InitiatorTransport as _;

use crate::GOOD;
use crate::ether::{Frame, Host, group, group_config};
use crate::pair::{Answer, BLOCK, World, config, ram};

const GROUP: &str = "everybody";
/// The lowest first byte of the session identifiers of each shard.
const STEERING: [u8; 2] = [0x00, 0x80];

fn target(number: usize) -> String {
    format!("iqn.2026-11.org.example:disk{number}")
}

/// Two shards and their initiators on one Ethernet.
struct Net {
    now: Instant,
    worlds: [World; 2],
    hosts: Vec<Host>,
    /// The number of frames with a session identifier that each shard received.
    steered: [u64; 2],
}

impl Net {
    fn new() -> Self {
        let world = |number: usize| {
            let mut config = config(&[(0, 0)], vec![]);
            config.targets[0].name = target(number).parse().unwrap();
            config.targets[0].groups = vec![(group(GROUP), RelativePort(2))];
            let groups = vec![group_config(GROUP, GroupAccess::Open, Level::None)];
            config.frames = HyperScsiConfig { instance: [5; 16], steering: STEERING[number], groups };
            let mut world = World::new(config, vec![ram()]);
            world.plug_in([u8::try_from(number).unwrap() + 1; 32]);
            world
        };
        let worlds = [world(0), world(1)];
        Self { now: worlds[0].now, worlds, hosts: vec![], steered: [0; 2] }
    }

    fn join(&mut self, number: usize) {
        let host = self.hosts.len();
        let name = Name::new(&format!("iqn.2026-11.org.example:host{host}")).unwrap();
        let target = Name::new(&target(number)).unwrap();
        let plan = SessionPlan::new(name, [1; 6], group(GROUP), None, target);
        self.hosts.push(Host::new(self.now, host, plan));
    }

    /// Passes a frame to the shards whose filter accepts it.
    fn steer(&mut self, frame: &Frame) {
        let sid = Header::parse(&frame.payload).unwrap().0.sid;
        let [first, ..] = sid.to_be_bytes();
        for (at, world) in self.worlds.iter_mut().enumerate() {
            let is_mine = usize::from(first >= STEERING[1]) == at;
            if sid == 0 || is_mine {
                self.steered[at] += u64::from(sid != 0);
                world.take(self.now, frame);
            }
        }
    }

    fn exchange(&mut self) -> bool {
        let asked: Vec<Frame> = self.hosts.iter_mut().flat_map(|host| host.frames(self.now)).collect();
        asked.iter().for_each(|frame| self.steer(frame));
        let told: Vec<Frame> = self.worlds.iter_mut().flat_map(|world| world.frames(self.now)).collect();
        for frame in &told {
            self.hosts.iter_mut().for_each(|host| host.take(self.now, frame));
        }
        !asked.is_empty() || !told.is_empty()
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            for host in &mut self.hosts {
                host.hear();
            }
            if done(self) {
                return;
            }
            if self.exchange() {
                continue;
            }
            let hosts = self.hosts.iter().filter_map(|host| host.session.poll_timeout());
            let shards = self.worlds.iter().filter_map(|world| world.shard.poll_timeout());
            self.now = hosts.chain(shards).min().unwrap().max(self.now).after(Duration::from_nanos(1));
            self.hosts.iter_mut().for_each(|host| host.session.handle_timeout(self.now));
            self.worlds.iter_mut().for_each(|world| world.shard.handle_timeout(self.now));
        }
        panic!("never: {:?}", self.hosts.iter().map(|host| &host.events).collect::<Vec<_>>());
    }

    fn run(&mut self, host: usize, cdb: &[u8], out: &[u8], expect_in: usize) -> Answer {
        let task = self.hosts[host].begin(self.now, 0, cdb, out, expect_in);
        self.until(|net| net.hosts[host].has_ended(task));
        self.hosts[host].answer(task)
    }
}

#[test]
fn each_shard_gets_the_frames_of_its_own_sessions_and_no_other() {
    let mut net = Net::new();
    for target in [0, 1, 1, 0] {
        net.join(target);
    }
    net.until(|net| net.hosts.iter().all(|host| host.session.is_up()));
    let block = |seed: u8| vec![seed; 20 * BLOCK];
    for host in 0..4 {
        // The first commands of a new I_T nexus end with unit attentions.
        while net.run(host, &[0; 6], &[], 0).status != GOOD {}
        let seed = u8::try_from(host).unwrap();
        let write = [0x2a, 0, 0, 0, 0, seed * 20, 0, 0, 20, 0];
        assert_eq!(net.run(host, &write, &block(seed), 0).status, GOOD);
    }
    // Hosts 0 and 3 have one disk, hosts 1 and 2 the other. Each host reads what the two hosts of its disk
    // wrote, and nothing of the others.
    for (host, expected) in [(0, [Some(0), None, None, Some(3)]), (2, [None, Some(1), Some(2), None])] {
        for (place, seed) in (0_u8..).zip(expected) {
            let read = [0x28, 0, 0, 0, 0, place * 20, 0, 0, 20, 0];
            let Answer { status, data, .. } = net.run(host, &read, &[], 20 * BLOCK);
            assert!(status == GOOD && data == block(seed.unwrap_or(0)), "host {host}, place {place}");
        }
    }
    for (at, world) in net.worlds.iter().enumerate() {
        let stats = world.shard.frame_stats();
        assert_eq!((stats.sessions, stats.unknown_sids, stats.hints, stats.bugs), (2, 0, 0, 0), "shard {at}");
        assert!(net.steered[at] > 10, "{:?}", net.steered);
    }
}
