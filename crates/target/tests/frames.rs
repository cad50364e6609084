//! A whole target in memory that speaks both protocols: one disk, two ways to it.

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

use std::sync::Arc;

use base::buffer::{Bytes, Pool};
use base::ether::{EtherPort, FrameBatch, FrameMachine as _, Mac, PortState, Received};
use base::machine::StreamMachine as _;
use base::time::Duration;
use device::contract::RelativePort;
use hyperscsi::initiator::contract::{Down, End, Event, Lost, Request, Retry, SessionPlan};
use hyperscsi::initiator::session::Session;
use hyperscsi::login::directory::Access;
use hyperscsi::login::{Password, Record};
use hyperscsi::pdu::command::Cdb;
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::negotiate::StretchCost;
use hyperscsi::seal::Level;
use pair::{Answer, BLOCK, Initiator, TARGET, World, config};
use store::Store;
use store::ram::Ram;
use target::config::{FramesConfig, GroupConfig, ShardConfig};

const ALICE: &str = "iqn.2026-11.org.example:alice";
const BOB: &str = "iqn.2026-11.org.example:bob";
const GOOD: u8 = 0;
const CHECK: u8 = 2;
const CONFLICT: u8 = 0x18;
const PORT: EtherPort = EtherPort(0);
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// As little as Argon2 takes: these tests are not about guessing.
const CHEAP: StretchCost = StretchCost { memory_kib: 64, passes: 1, lanes: 1 };

fn ram() -> Box<dyn Store> {
    Box::new(Ram::new(8 << 20))
}

fn group(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

/// LUN 0 for everybody, LUN 1 only encrypted; a group with a password and one without.
fn both(least: Level) -> ShardConfig {
    let mut config = config(&[(0, 0), (1, 1)], vec![]);
    config.targets[0].luns[1].least = Level::Encrypt;
    config.targets[0].groups = vec![(group("backup"), RelativePort(2)), (group("open"), RelativePort(3))];
    let password = Password::new(b"correct horse battery").unwrap();
    let record = Record::make(&password, "backup", CHEAP, [9; 32]).unwrap();
    let member = |name: &str, access, least| GroupConfig { name: group(name), access, least, ports: None };
    config.frames = FramesConfig {
        instance: [5; 16],
        steering: 0x40,
        groups: vec![
            member("backup", Access::Password(Arc::new(record)), least),
            member("open", Access::Open, Level::None),
        ],
    };
    config
}

/// A member of a group, on the same Ethernet as the target.
struct Member {
    session: Session,
    pool: Pool,
    events: Vec<Event>,
}

impl Member {
    fn new(world: &mut World, name: &str, of: &str, password: Option<&str>) -> Self {
        let password = password.map(|text| Password::new(text.as_bytes()).unwrap());
        let mut plan = SessionPlan::new(
            Name::new(name).unwrap(),
            [0x80, 0, 0, 0, 0, 1],
            group(of),
            password,
            Name::new(TARGET).unwrap(),
        );
        plan.retry = Retry::NONE;
        plan.limits.login_within = Duration::from_secs(5);
        let pool = Pool::new(16 << 20);
        let mut session = Session::new(world.now, plan, pool.clone());
        let port = PortState { mac: THEIRS, mtu: 9000, receive_slots: 1000 };
        session.port_up(world.now, PORT, &port, [3; 32]);
        let port = PortState { mac: OURS, ..port };
        world.shard.port_up(world.now, PORT, &port, [4; 32]);
        Self { session, pool, events: vec![] }
    }

    fn up(world: &mut World, name: &str, of: &str, password: Option<&str>) -> Self {
        let mut member = Self::new(world, name, of, password);
        member.until(world, |member| member.session.is_up());
        member
    }

    /// Lets frames travel and time pass until something is so.
    fn until(&mut self, world: &mut World, done: impl Fn(&Self) -> bool) {
        for _ in 0..200_000 {
            let mut moved = false;
            while let Some(event) = self.session.poll_event() {
                self.events.push(event);
                moved = true;
            }
            if done(self) {
                return;
            }
            moved |= self.exchange(world);
            world.drain();
            if let Some(job) = self.session.poll_job() {
                self.session.job_done(world.now, job.run());
            } else if !moved {
                let next =
                    [self.session.poll_timeout(), world.shard.poll_timeout()].into_iter().flatten().min();
                let next = next.unwrap_or_else(|| panic!("nothing will ever happen: {:?}", self.events));
                world.now = world.now.after(next.since(world.now)).after(Duration::from_nanos(1));
                self.session.handle_timeout(world.now);
                world.shard.handle_timeout(world.now);
            }
        }
        panic!("never: {:?}", self.events);
    }

    /// Carries what both have to send. Returns whether there was anything.
    fn exchange(&mut self, world: &mut World) -> bool {
        let (now, mut batch, mut moved) = (world.now, FrameBatch::new(), false);
        let whole = |batch: &FrameBatch| -> Vec<(Mac, Vec<u8>)> {
            batch.frames().map(|(to, _, pieces)| (to, pieces.flatten().copied().collect())).collect()
        };
        while let Some(port) = self.session.poll_port() {
            self.session.transmit_frames(now, port, &mut batch);
            for (to, mut payload) in whole(&batch) {
                moved = true;
                if to == OURS || to.is_group() {
                    let frame =
                        Received { port, source: THEIRS, group: to.is_group(), payload: &mut payload };
                    world.shard.frame(now, frame);
                }
            }
            batch.clear(&self.pool);
        }
        while let Some(port) = world.shard.poll_port() {
            world.shard.transmit_frames(now, port, &mut batch);
            for (to, mut payload) in whole(&batch) {
                moved = true;
                if to == THEIRS || to.is_group() {
                    let frame = Received { port, source: OURS, group: to.is_group(), payload: &mut payload };
                    self.session.frame(now, frame);
                }
            }
            batch.clear(&world.pool);
        }
        moved
    }

    fn run(&mut self, world: &mut World, lun: u64, cdb: &[u8], out: &[u8], expect_in: usize) -> Answer {
        let mut request = Request::new(lun, Cdb::new(cdb).unwrap());
        request.data_in_len = u32::try_from(expect_in).unwrap();
        if !out.is_empty() {
            request.data_out = Bytes::copied_from(out).into();
        }
        let task = self.session.submit(world.now, request).unwrap();
        let is_it = move |event: &Event| matches!(event, Event::Done { task: done, .. } if *done == task);
        self.until(world, |member| member.events.iter().any(is_it));
        let at = self.events.iter().position(is_it).unwrap();
        let Event::Done { outcome, .. } = self.events.remove(at) else { panic!("it was one") };
        let End::Status(ending) = outcome.end else { panic!("no status: {:?}", outcome.end) };
        Answer {
            status: ending.status,
            sense: ending.sense.map(Vec::from).unwrap_or_default(),
            data: outcome.data_in.map(|bytes| bytes.to_vec()).unwrap_or_default(),
        }
    }

    fn clear_attentions(&mut self, world: &mut World, lun: u64) {
        while self.run(world, lun, &[0; 6], &[], 0).status != GOOD {}
    }

    fn write(&mut self, world: &mut World, lun: u64, lba: u8, data: &[u8]) -> Answer {
        let blocks = u8::try_from(data.len() / BLOCK).unwrap();
        self.run(world, lun, &[0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0], data, 0)
    }

    fn read(&mut self, world: &mut World, lun: u64, lba: u8, blocks: u8) -> Answer {
        self.run(world, lun, &[0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0], &[], usize::from(blocks) * BLOCK)
    }
}

/// A LUN as it stands in a command (SAM-5 §4.7, peripheral device addressing).
const fn lun(number: u64) -> u64 {
    number << 48
}

fn pattern(blocks: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; blocks * BLOCK];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn what_one_protocol_wrote_the_other_reads() {
    let mut world = World::new(both(Level::Integrity), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    let (first, second) = (pattern(200, 1), pattern(130, 2));
    assert_eq!(bob.write(&mut world, lun(0), 3, &first).status, GOOD);
    assert!(alice.read(&mut world, 0, 3, 200).data == first);
    assert_eq!(alice.write(&mut world, 0, 50, &second, false).status, GOOD);
    assert!(bob.read(&mut world, lun(0), 50, 130).data == second);
    assert_eq!(world.shard.frame_stats().bugs, 0);
}

#[test]
fn reservations_and_attentions_hold_across_protocols() {
    let mut world = World::new(both(Level::Integrity), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    // PERSISTENT RESERVE OUT: register a key, reserve for exclusive access.
    let key = |service: u8, kind: u8| [0x5f, service, kind, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[15] = 7;
    assert_eq!(bob.run(&mut world, lun(0), &key(0, 0), &list, 0).status, GOOD);
    list[7] = 7;
    assert_eq!(bob.run(&mut world, lun(0), &key(1, 3), &list, 0).status, GOOD);
    assert_eq!(alice.write(&mut world, 0, 0, &pattern(1, 1), false).status, CONFLICT);
    assert_eq!(bob.write(&mut world, lun(0), 0, &pattern(1, 2)).status, GOOD);
    // A reset by one is an attention to the other.
    let reset = hyperscsi::pdu::command::ManageFunction::LOGICAL_UNIT_RESET;
    let wanted = hyperscsi::initiator::contract::Management { function: reset, lun: lun(0), task: None };
    bob.session.manage(world.now, wanted).unwrap();
    bob.until(&mut world, |bob| bob.events.iter().any(|event| matches!(event, Event::Managed { .. })));
    let told = alice.run(&mut world, 0, &[0; 6], &[], 0);
    assert_eq!((told.status, told.code()), (CHECK, (6, 0x2903)));
    // The reservation of a port outlives its session.
    bob.session.logout(world.now);
    bob.until(&mut world, |bob| bob.session.is_down());
    assert_eq!(alice.write(&mut world, 0, 0, &pattern(1, 1), false).status, CONFLICT);
}

#[test]
fn a_reservation_is_not_that_of_a_name_claimed_in_another_group() {
    let mut world = World::new(both(Level::None), vec![ram(), ram()]);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    let key = |service: u8, kind: u8| [0x5f, service, kind, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[15] = 7;
    assert_eq!(bob.run(&mut world, lun(0), &key(0, 0), &list, 0).status, GOOD);
    list[7] = 7;
    assert_eq!(bob.run(&mut world, lun(0), &key(1, 3), &list, 0).status, GOOD);
    bob.session.logout(world.now);
    bob.until(&mut world, |bob| bob.session.is_down());
    // The same name and ISID, from a group that everybody is in.
    let mut eve = Member::up(&mut world, BOB, "open", None);
    eve.clear_attentions(&mut world, lun(0));
    assert_eq!(eve.write(&mut world, lun(0), 0, &pattern(1, 1)).status, CONFLICT);
    assert_eq!(eve.run(&mut world, lun(0), &key(2, 3), &list, 0).status, CONFLICT);
    // Who proves what he proved before is what he was.
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    assert_eq!(bob.write(&mut world, lun(0), 0, &pattern(1, 2)).status, GOOD);
    assert_eq!(bob.run(&mut world, lun(0), &key(2, 3), &list, 0).status, GOOD);
}

#[test]
fn what_must_be_encrypted_is_so_and_is_not_shown_over_iscsi() {
    let mut world = World::new(both(Level::None), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    let inquiry = alice.run(&mut world, 1, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!(inquiry.data[0], 0x7f, "nothing stands there");
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(1));
    let data = pattern(100, 3);
    assert_eq!(bob.write(&mut world, lun(1), 0, &data).status, GOOD);
    assert_eq!(bob.session.level(lun(1)), Level::Encrypt, "the target asked for it, and got it");
    assert!(bob.read(&mut world, lun(1), 0, 100).data == data);
    // Whoever has no keys gets an answer, and nothing of the unit.
    let mut eve = Member::up(&mut world, BOB, "open", None);
    eve.clear_attentions(&mut world, lun(0));
    let refused = eve.read(&mut world, lun(1), 0, 1);
    assert_eq!((refused.status, refused.data.len()), (CHECK, 0));
    assert_eq!(refused.code(), (5, 0x7471));
}

#[test]
fn who_knows_no_group_or_password_comes_to_nothing() {
    let mut world = World::new(both(Level::Integrity), vec![ram(), ram()]);
    let mut nobody = Member::new(&mut world, BOB, "others", None);
    nobody.until(&mut world, |member| member.session.is_down());
    assert!(
        nobody.events.iter().any(|event| matches!(event, Event::Down(Down::NoPath(Lost::NotFound)))),
        "{:?}",
        nobody.events
    );
    let mut wrong = Member::new(&mut world, BOB, "backup", Some("correct horse batterie"));
    wrong.until(&mut world, |member| member.session.is_down());
    assert!(matches!(wrong.events.last(), Some(Event::Down(_))), "{:?}", wrong.events);
    assert!(world.shard.frame_sessions().is_empty());
}

#[test]
fn a_group_that_is_gone_or_has_a_password_now_loses_its_sessions() {
    for change in [
        (|config: &mut ShardConfig| config.targets[0].groups.retain(|(name, _)| **name != *"open"))
            as fn(&mut ShardConfig),
        |config| config.frames.groups.retain(|known| *known.name != *"open"),
        |config| config.frames.groups[1].access = config.frames.groups[0].access.clone(),
    ] {
        let mut config = both(Level::Integrity);
        let mut world = World::new(config.clone(), vec![ram(), ram()]);
        let mut eve = Member::up(&mut world, BOB, "open", None);
        let reports = world.shard.frame_sessions();
        assert_eq!((reports[0].group.as_str(), reports[0].authenticated), ("open", false));
        world.shard.apply(world.now, config.clone());
        eve.clear_attentions(&mut world, lun(0));
        change(&mut config);
        world.shard.apply(world.now, config);
        eve.until(&mut world, |eve| eve.session.is_down());
        assert!(world.shard.frame_sessions().is_empty() && world.shard.is_idle());
    }
}

#[test]
fn a_target_that_drains_says_goodbye_and_takes_nobody_new() {
    let mut world = World::new(both(Level::Integrity), vec![ram(), ram()]);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    world.shard.drain(world.now, Duration::from_secs(3));
    bob.until(&mut world, |bob| bob.session.is_down());
    assert!(world.shard.is_idle());
    let mut late = Member::new(&mut world, BOB, "backup", Some("correct horse battery"));
    late.until(&mut world, |late| late.session.is_down());
    assert!(!late.events.iter().any(|event| matches!(event, Event::Up(_))));
}
