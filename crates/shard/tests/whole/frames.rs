//! A target that serves both protocols: one disk over iSCSI and HyperSCSI.

use std::sync::Arc;

use base::state_machine::StreamMachine as _;
use base::time::Duration;
use device::contract::RelativePort;
use hyperscsi::initiator::contract::{Event, LossReason, SessionEnd, SessionPlan};
use hyperscsi::initiator::session::Session;
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::disconnect::DisconnectReason;
use hyperscsi::pdu::name::Name;
use security::Level;
use security::opaque::StretchCost;
use security::opaque::{Password, PasswordRecord};
use shard::config::{HyperScsiConfig, InitiatorEntry, InitiatorQuota, ShardConfig};
use target::units::UnitId;
use transport::initiator::{InitiatorTransport as _, Retry};

use crate::ether::{Host, group, group_config};
use crate::medium::held;
use crate::pair::{Answer, BLOCK, Initiator, TARGET, World, config, pattern, ram};
use crate::{ALICE, BOB, CHECK, GOOD};

const CONFLICT: u8 = 0x18;
/// The lowest cost that Argon2 accepts: these tests are not about password guessing.
const CHEAP: StretchCost = StretchCost { memory_kib: 64, passes: 1, lanes: 1 };

/// LUN 0 is for every session, LUN 1 only for encrypted ones. One group has a password and one has none.
pub(crate) fn both(least: Level) -> ShardConfig {
    let mut config = config(&[(0, 0), (1, 1)], vec![]);
    config.targets[0].luns[1].min_level = Level::Encrypt;
    config.targets[0].groups = vec![(group("backup"), RelativePort(2)), (group("open"), RelativePort(3))];
    let password = Password::new(b"correct horse battery").unwrap();
    let record = PasswordRecord::make(&password, "backup", CHEAP, [9; 32]).unwrap();
    config.frames = HyperScsiConfig {
        instance: [5; 16],
        steering: 0x40,
        groups: vec![
            group_config("backup", GroupAccess::Password(Arc::new(record)), least),
            group_config("open", GroupAccess::Open, Level::None),
        ],
    };
    config
}

/// A member of a group, alone with the target on an Ethernet.
pub(crate) struct Member {
    pub(crate) host: Host,
}

impl Member {
    fn new(world: &mut World, name: &str, of: &str, password: Option<&str>) -> Self {
        Self::with_retry(world, name, of, password, Retry::NONE)
    }

    pub(crate) fn with_retry(
        world: &mut World,
        name: &str,
        of: &str,
        password: Option<&str>,
        retry: Retry,
    ) -> Self {
        let password = password.map(|text| Password::new(text.as_bytes()).unwrap());
        let (name, target) = (Name::new(name).unwrap(), Name::new(TARGET).unwrap());
        let mut plan = SessionPlan::new(name, [0x80, 0, 0, 0, 0, 1], group(of), password, target);
        plan.retry = retry;
        plan.limits.login_within = Duration::from_secs(5);
        world.plug_in([4; 32]);
        Self { host: Host::new(world.now, 0, plan) }
    }

    pub(crate) fn up(world: &mut World, name: &str, of: &str, password: Option<&str>) -> Self {
        let mut member = Self::new(world, name, of, password);
        member.until(world, |host| host.session.is_up());
        member
    }

    fn session(&mut self) -> &mut Session {
        &mut self.host.session
    }

    /// Exchanges frames and advances the time until `done` returns true.
    pub(crate) fn until(&mut self, world: &mut World, done: impl Fn(&Host) -> bool) {
        let Self { host } = self;
        for _ in 0..200_000 {
            let mut moved = host.hear();
            if done(host) {
                return;
            }
            let now = world.now;
            for frame in host.frames(now) {
                world.take(now, &frame);
                moved = true;
            }
            for frame in world.frames(now) {
                host.take(now, &frame);
                moved = true;
            }
            world.drain();
            if let Some(job) = host.session.poll_job() {
                host.session.job_done(now, job.run());
            } else if !moved {
                let next =
                    [host.session.poll_timeout(), world.shard.poll_timeout()].into_iter().flatten().min();
                let next = next.unwrap_or_else(|| panic!("nothing will ever happen: {:?}", host.events));
                world.now = now.after(next.since(now)).after(Duration::from_nanos(1));
                host.session.handle_timeout(world.now);
                world.shard.handle_timeout(world.now);
            }
        }
        panic!("never: {:?}", host.events);
    }

    pub(crate) fn run(
        &mut self,
        world: &mut World,
        lun: u64,
        cdb: &[u8],
        out: &[u8],
        expect_in: usize,
    ) -> Answer {
        let task = self.host.begin(world.now, lun, cdb, out, expect_in);
        self.until(world, |host| host.has_ended(task));
        self.host.answer(task)
    }

    pub(crate) fn clear_attentions(&mut self, world: &mut World, lun: u64) {
        while self.run(world, lun, &[0; 6], &[], 0).status != GOOD {}
    }

    pub(crate) fn write(&mut self, world: &mut World, lun: u64, lba: u8, data: &[u8]) -> Answer {
        let blocks = u8::try_from(data.len() / BLOCK).unwrap();
        self.run(world, lun, &[0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0], data, 0)
    }

    pub(crate) fn read(&mut self, world: &mut World, lun: u64, lba: u8, blocks: u8) -> Answer {
        self.run(world, lun, &[0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0], &[], usize::from(blocks) * BLOCK)
    }

    /// Registers a key for LUN 0 and reserves it for exclusive access.
    pub(crate) fn reserve(&mut self, world: &mut World) {
        assert_eq!(self.reservation(world, 0, 0, 7), GOOD);
        assert_eq!(self.reservation(world, 1, 7, 7), GOOD);
    }

    /// Sends PERSISTENT RESERVE OUT for LUN 0, exclusive access, with a service action and two keys. Returns
    /// the status.
    fn reservation(&mut self, world: &mut World, action: u8, key: u8, new_key: u8) -> u8 {
        let mut list = [0; 24];
        (list[7], list[15]) = (key, new_key);
        self.run(world, lun(0), &[0x5f, action, 3, 0, 0, 0, 0, 0, 24, 0], &list, 0).status
    }
}

/// Returns a LUN as it is in a command (SAM-5 §4.7, peripheral device addressing).
pub(crate) const fn lun(number: u64) -> u64 {
    number << 48
}

#[test]
fn what_one_protocol_wrote_the_other_reads() {
    let mut world = World::new(both(Level::Integrity), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    let (first, second) = (pattern(200 * BLOCK, 1), pattern(130 * BLOCK, 2));
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
    bob.reserve(&mut world);
    assert_eq!(alice.write(&mut world, 0, 0, &pattern(BLOCK, 1), false).status, CONFLICT);
    assert_eq!(bob.write(&mut world, lun(0), 0, &pattern(BLOCK, 2)).status, GOOD);
    // A reset by one initiator is a unit attention for the other.
    let reset = transport::task_management::TmfFunction::LOGICAL_UNIT_RESET;
    let wanted = transport::initiator::TmfParameters { function: reset, lun: lun(0), task: None };
    bob.session().submit_tmf(world.now, wanted).unwrap();
    bob.until(&mut world, |bob| bob.events.iter().any(|event| matches!(event, Event::TmfDone { .. })));
    let told = alice.run(&mut world, 0, &[0; 6], &[], 0);
    assert_eq!((told.status, told.code()), (CHECK, (6, 0x2903)));
    // The reservation of an initiator port outlives its session.
    bob.session().logout(world.now);
    bob.until(&mut world, |bob| bob.session.is_down());
    assert_eq!(alice.write(&mut world, 0, 0, &pattern(BLOCK, 1), false).status, CONFLICT);
}

#[test]
fn a_reservation_is_not_that_of_a_name_claimed_in_another_group() {
    let mut world = World::new(both(Level::None), vec![ram(), ram()]);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    bob.reserve(&mut world);
    bob.session().logout(world.now);
    bob.until(&mut world, |bob| bob.session.is_down());
    // The same name and ISID, from the group without a password, are another I_T nexus.
    let mut eve = Member::up(&mut world, BOB, "open", None);
    eve.clear_attentions(&mut world, lun(0));
    assert_eq!(eve.write(&mut world, lun(0), 0, &pattern(BLOCK, 1)).status, CONFLICT);
    assert_eq!(eve.reservation(&mut world, 2, 7, 0), CONFLICT);
    // The same name and ISID, with the group's password again, are the same I_T nexus.
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    assert_eq!(bob.write(&mut world, lun(0), 0, &pattern(BLOCK, 2)).status, GOOD);
    assert_eq!(bob.reservation(&mut world, 2, 7, 0), GOOD);
}

#[test]
fn what_must_be_encrypted_is_so_and_is_not_shown_over_iscsi() {
    let mut world = World::new(both(Level::None), vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    let inquiry = alice.run(&mut world, 1, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!(inquiry.data[0], 0x7f, "nothing stands there");
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(1));
    let data = pattern(100 * BLOCK, 3);
    assert_eq!(bob.write(&mut world, lun(1), 0, &data).status, GOOD);
    assert_eq!(bob.session().level(lun(1)), Level::Encrypt, "the target asked for it, and got it");
    assert!(bob.read(&mut world, lun(1), 0, 100).data == data);
    // A session without keys receives a response, but nothing of the unit.
    let mut eve = Member::up(&mut world, BOB, "open", None);
    eve.clear_attentions(&mut world, lun(0));
    let refused = eve.read(&mut world, lun(1), 0, 1);
    assert_eq!((refused.status, refused.data.len()), (CHECK, 0));
    assert_eq!(refused.code(), (5, 0x2500), "it is as if it were not there");
    let luns = eve.run(&mut world, lun(0), &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    assert_eq!(luns.data, [&[0, 0, 0, 8][..], &[0; 12]].concat());
    let reports = world.shard.frame_sessions();
    let hidden = |group: &str| reports.iter().find(|report| report.group == group).unwrap().hidden_luns;
    assert_eq!((hidden("open"), hidden("backup")), (1, 0));
    assert_eq!(world.shard.sessions()[0].hidden_luns, 1);
}

/// Anybody on the network can read, or without protection even forge, commands of lower levels in the session
/// of a member, such as a copy from a LUN that must be encrypted to one that need not.
#[test]
fn a_command_below_encryption_copies_nothing_that_must_be_encrypted() {
    let mut world = World::new(both(Level::None), vec![ram(), ram()]);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    for number in [0, 1] {
        bob.clear_attentions(&mut world, lun(number));
    }
    let data = pattern(BLOCK, 3);
    assert_eq!(bob.write(&mut world, lun(1), 0, &data).status, GOOD);
    assert_eq!(
        (bob.session().level(lun(0)), bob.session().level(lun(1))),
        (Level::Integrity, Level::Encrypt)
    );
    let copy = |from, to| crate::protection::copy_list(from, to);
    for (from, to) in [(1, 0), (0, 1)] {
        let (cdb, list) = copy(from, to);
        let refused = bob.run(&mut world, lun(0), &cdb, &list, 0);
        assert_eq!((refused.status, refused.code()), (CHECK, (0xa, 0x0d02)), "from {from} to {to}");
    }
    assert!(bob.read(&mut world, lun(0), 1, 1).data.iter().all(|byte| *byte == 0));
    // The same command with the protection of both LUNs.
    let (cdb, list) = copy(1, 0);
    assert_eq!(bob.run(&mut world, lun(1), &cdb, &list, 0).status, GOOD);
    assert_eq!(bob.read(&mut world, lun(0), 1, 1).data, data);
}

#[test]
fn who_knows_no_group_or_password_comes_to_nothing() {
    let mut world = World::new(both(Level::Integrity), vec![ram(), ram()]);
    let mut nobody = Member::new(&mut world, BOB, "others", None);
    nobody.until(&mut world, |member| member.session.is_down());
    assert!(
        nobody
            .host
            .events
            .iter()
            .any(|event| matches!(event, Event::Down(SessionEnd::RetriesExhausted(LossReason::NotFound)))),
        "{:?}",
        nobody.host.events
    );
    let mut wrong = Member::new(&mut world, BOB, "backup", Some("correct horse batterie"));
    wrong.until(&mut world, |member| member.session.is_down());
    assert!(matches!(wrong.host.events.last(), Some(Event::Down(_))), "{:?}", wrong.host.events);
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
    let why = LossReason::Ended(DisconnectReason::SHUTDOWN);
    assert!(
        bob.host
            .events
            .iter()
            .any(|event| matches!(event, Event::Down(SessionEnd::RetriesExhausted(said)) if *said == why))
    );
    assert!(world.shard.is_idle());
    let mut late = Member::new(&mut world, BOB, "backup", Some("correct horse battery"));
    late.until(&mut world, |late| late.session.is_down());
    assert!(!late.host.events.iter().any(|event| matches!(event, Event::Up(_))));
}

#[test]
fn a_lun_that_goes_answers_its_commands_and_never_leads_to_another_disk() {
    let (medium, keeper) = held(8 << 20);
    let mut world = World::new(both(Level::None), vec![medium, ram()]);
    let mut alice = Member::up(&mut world, ALICE, "open", None);
    alice.clear_attentions(&mut world, 0);
    keeper.hold(true);
    let data = pattern(64 * BLOCK, 3);
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 64, 0];
    let read = [0x28, 0, 0, 0, 1, 0, 0, 0, 8, 0];
    let now = world.now;
    let writing = alice.host.begin(now, 0, &write, &data, 0);
    let reading = alice.host.begin(now, 0, &read, &[], 8 * BLOCK);
    for _ in 0..10 {
        for frame in alice.host.frames(now) {
            world.take(now, &frame);
        }
        for frame in world.frames(now) {
            alice.host.take(now, &frame);
        }
    }
    assert!(keeper.waiting() > 0, "the medium has something of it");
    // LUN 0 now leads to the other disk.
    let mut swapped = both(Level::None);
    swapped.targets[0].luns.remove(1);
    swapped.targets[0].luns[0].unit = UnitId(1);
    world.shard.apply(world.now, swapped);
    for task in [writing, reading] {
        alice.until(&mut world, |host| host.has_ended(task));
        assert_eq!(alice.host.answer(task).code(), (5, 0x2500));
    }
    assert_eq!(alice.run(&mut world, 0, &write, &data, 0).code(), (5, 0x2500));
    assert_eq!(world.shard.frame_sessions().remove(0).withheld_luns, [0]);
    let mut bob = Initiator::login(&mut world, BOB, 1);
    bob.clear_attentions(&mut world, 0);
    assert_eq!(bob.read(&mut world, 0, 0, 64).data, vec![0; 64 * BLOCK], "the other disk is as it was");
}

#[test]
fn a_host_that_gives_its_session_up_finds_its_disks_again_or_none() {
    let mut config = both(Level::Integrity);
    config.targets[0].luns[1].min_level = Level::None;
    let mut world = World::new(config.clone(), vec![ram(), ram()]);
    let retry = Retry { timeout: Duration::from_secs(60), ..Retry::default() };
    let mut bob = Member::with_retry(&mut world, BOB, "open", None, retry);
    bob.until(&mut world, |bob| bob.session.is_up());
    bob.clear_attentions(&mut world, lun(0));
    config.targets[0].luns.iter_mut().for_each(|row| row.unit = UnitId(1 - row.unit.0));
    world.shard.apply(world.now, config);
    let now = world.now;
    bob.session().rebuild_session(now);
    bob.until(&mut world, |bob| bob.session.is_up());
    let answer = bob.run(&mut world, lun(0), &[0; 6], &[], 0);
    assert_eq!((answer.status, answer.code()), (CHECK, (5, 0x2500)), "another disk is at its LUN");
}

#[test]
fn a_limit_below_the_present_sessions_lets_them_be_replaced_and_admits_no_more() {
    let mut config = both(Level::None);
    let mut world = World::new(config.clone(), vec![ram(), ram()]);
    Member::up(&mut world, BOB, "open", None);
    let quota = InitiatorQuota { sessions_max: Some(0), ..InitiatorQuota::default() };
    config.targets[0].initiators =
        vec![InitiatorEntry { pattern: "*".into(), luns: None, auth: None, quota }];
    world.shard.apply(world.now, config);
    assert_eq!(world.shard.frame_sessions().len(), 1);
    let mut bob = Member::up(&mut world, BOB, "open", None);
    bob.clear_attentions(&mut world, lun(0));
    assert_eq!(bob.write(&mut world, lun(0), 0, &pattern(BLOCK, 1)).status, GOOD);
    let mut alice = Member::new(&mut world, ALICE, "open", None);
    alice.until(&mut world, |alice| alice.session.is_down());
    assert_eq!(world.shard.frame_sessions().len(), 1);
}

#[test]
fn a_target_has_no_more_sessions_than_it_may() {
    let mut config = both(Level::None);
    config.targets[0].sessions_max = 1;
    let mut world = World::new(config, vec![ram(), ram()]);
    let retry = Retry { timeout: Duration::from_secs(20), ..Retry::default() };
    let first = Member::up(&mut world, BOB, "open", None);
    let mut alice = Member::with_retry(&mut world, ALICE, "open", None, retry);
    alice.until(&mut world, |alice| alice.session.is_down());
    assert_eq!(alice.session().stats().logins, 0, "no session that ends at once");
    assert_eq!(world.shard.frame_sessions().len(), 1);
    drop(first);
    Member::up(&mut world, BOB, "open", None);
    assert_eq!(world.shard.frame_sessions().len(), 1, "a session can be replaced");
}
