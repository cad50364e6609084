//! Live upgrade: sessions and units move to another shard, and initiators notice nothing.

use base::state_machine::{AcceptInfo, ConnId, StreamMachine as _};
use device::unit::LogicalUnit;
use hyperscsi::initiator::contract::Event;
use iscsi::login::directory::TargetId;
use iscsi::name::PortalGroupTag;
use iscsi::target::engine::Limits;
use security::Level;
use shard::config::{InitiatorEntry, ShardConfig};
use shard::handover::{Exported, ResumeError, ShardState};
use shard::shard::Shard;
use store::Store;
use target::handover::RestoreError;
use target::units::UnitId;

use crate::frames::{Member, both, lun};
use crate::medium::held;
use crate::pair::{BLOCK, Initiator, World, config, pattern, unit_config};
use crate::{ALICE, BOB, CHECK, GOOD};

const CONFLICT: u8 = 0x18;

/// The distance between the numbers of a unit and of a target in both processes.
const RENUMBERED: u32 = 40;

/// Returns a configuration as another process numbers it.
fn renumbered(mut config: ShardConfig) -> ShardConfig {
    for target in &mut config.targets {
        target.id = TargetId(target.id.0 + RENUMBERED);
        for row in &mut target.luns {
            row.unit = UnitId(row.unit.0 + RENUMBERED);
        }
    }
    config
}

/// Makes the shard of another process over these media.
fn next_shard(world: &World, config: ShardConfig, media: Vec<Box<dyn Store>>) -> Shard {
    let mut shard = Shard::new(renumbered(config), Limits::default(), world.pool.clone());
    for (number, medium) in (0..).zip(media) {
        let unit = LogicalUnit::new(unit_config(number), medium, None, world.pool.clone()).unwrap();
        assert!(shard.add_unit(world.now, UnitId(number + RENUMBERED), unit));
    }
    shard
}

/// Tells a shard of the connections of another one.
fn adopt(world: &World, shard: &mut Shard, connections: &[Vec<ConnId>]) {
    for conn in connections.iter().flatten() {
        let arrival = AcceptInfo {
            portal: world.portal,
            local: "127.0.0.1:3260".parse().unwrap(),
            peer: "127.0.0.1:50000".parse().unwrap(),
            entropy: [8; 32],
        };
        shard.taken_over(world.now, *conn, &arrival);
    }
}

/// Returns a state as it is after it was encoded and decoded.
fn by_text(exported: Exported) -> (ShardState, Vec<Vec<ConnId>>) {
    let text = serde_json::to_string(&exported.state).unwrap();
    let state = serde_json::from_str(&text).unwrap();
    assert_eq!(exported.state, state);
    (state, exported.connections)
}

impl World {
    /// Hands everything over to the shard of another process, which is idle already.
    fn hand_over(&mut self, config: ShardConfig, media: Vec<Box<dyn Store>>) {
        assert_eq!(self.shard.busy(), None);
        let (state, connections) = by_text(self.shard.export(self.now).unwrap());
        let mut next = next_shard(self, config, media);
        std::mem::swap(&mut self.shard, &mut next);
        self.plug_in([6; 32]);
        let mut next = std::mem::replace(&mut self.shard, next);
        adopt(self, &mut next, &connections);
        next.resume(self.now, &state, &connections).unwrap();
        self.shard = next;
        assert!(self.shard.poll_event().is_none_or(|event| !format!("{event:?}").contains("SessionUp")));
        self.shard.thaw(self.now);
        self.drain();
    }
}

#[test]
fn sessions_go_on_in_another_process() {
    let (medium, keeper) = held(8 << 20);
    let config = || config(&[(0, 0)], vec![]);
    let mut world = World::new(config(), vec![medium]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let mut bob = Initiator::login(&mut world, BOB, 2);
    bob.clear_attentions(&mut world, 0);
    let data = pattern(40 * BLOCK, 1);
    assert_eq!(alice.write(&mut world, 0, 7, &data, false).status, GOOD);
    // A reservation that no saved state has, and a unit attention that Bob has not received.
    let mut list = [0; 24];
    list[15] = 9;
    assert_eq!(alice.run(&mut world, 0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0).status, GOOD);
    (list[7], list[15]) = (9, 0);
    assert_eq!(alice.run(&mut world, 0, &[0x5f, 1, 5, 0, 0, 0, 0, 0, 24, 0], &list, 0).status, GOOD);
    let mode = alice.run(&mut world, 0, &[0x1a, 8, 0x0a, 0, 255, 0], &[], 255).data;
    let mut mode = [&[0; 4][..], &mode[4..]].concat();
    (mode[4], mode[6]) = (mode[4] & 0x3f, mode[6] | 0x04);
    let len = u8::try_from(mode.len()).unwrap();
    assert_eq!(alice.run(&mut world, 0, &[0x15, 0x10, 0, 0, len, 0], &mode, 0).status, GOOD);
    for round in 0..3 {
        world.shard.freeze(world.now);
        world.drain();
        world.hand_over(config(), vec![keeper.again()]);
        if round == 0 {
            let told = bob.run(&mut world, 0, &[0; 6], &[], 0);
            assert_eq!((told.status, told.code()), (CHECK, (6, 0x2a01)), "mode parameters changed");
        }
        // Neither of them learns that anything has happened.
        assert_eq!(bob.run(&mut world, 0, &[0; 6], &[], 0).status, GOOD);
        assert_eq!(alice.run(&mut world, 0, &[0; 6], &[], 0).status, GOOD);
        assert_eq!(alice.read(&mut world, 0, 7, 40).data, data);
        assert_eq!(bob.write(&mut world, 0, 0, &pattern(BLOCK, 2), false).status, CONFLICT);
        // Longer than any command window.
        for _ in 0..300 {
            assert_eq!(alice.write(&mut world, 0, 90, &pattern(BLOCK, 3), false).status, GOOD);
        }
    }
    assert_eq!(world.shard.sessions().len(), 2);
    assert_eq!(world.shard.wire_stats().bugs, 0);
}

#[test]
fn both_protocols_go_on_in_another_process() {
    let ((first, keeper), (second, other)) = (held(8 << 20), held(8 << 20));
    let mut world = World::new(both(Level::Integrity), vec![first, second]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(&mut world, lun(0));
    let data = pattern(20 * BLOCK, 1);
    assert_eq!(bob.write(&mut world, lun(0), 3, &data).status, GOOD);
    bob.reserve(&mut world);
    for _ in 0..3 {
        world.shard.freeze(world.now);
        let quiet = std::cell::Cell::new(0);
        bob.until(&mut world, |_| quiet.replace(quiet.get() + 1) > 20);
        assert_eq!(world.shard.busy(), None);
        world.hand_over(both(Level::Integrity), vec![keeper.again(), other.again()]);
        assert_eq!(bob.run(&mut world, lun(0), &[0; 6], &[], 0).status, GOOD);
        assert_eq!(alice.run(&mut world, 0, &[0; 6], &[], 0).status, GOOD);
        assert!(bob.read(&mut world, lun(0), 3, 20).data == data);
        assert_eq!(alice.write(&mut world, 0, 0, &pattern(BLOCK, 2), false).status, CONFLICT);
        assert_eq!(bob.write(&mut world, lun(0), 3, &data).status, GOOD);
    }
    let ended = |event: &Event| !matches!(event, Event::Done { .. });
    assert!(bob.host.events.iter().filter(|event| ended(event)).count() < 10);
    assert_eq!(world.shard.frame_stats().bugs + world.shard.wire_stats().bugs, 0);
}

#[test]
fn a_member_of_a_group_that_the_target_does_not_admit_keeps_no_upgrade_from_happening() {
    let ((first, keeper), (second, other)) = (held(8 << 20), held(8 << 20));
    let config = || {
        let mut config = both(Level::Integrity);
        let only_alice =
            InitiatorEntry { pattern: ALICE.into(), luns: None, auth: None, quota: Default::default() };
        config.targets[0].initiators = vec![only_alice];
        config
    };
    let mut world = World::new(config(), vec![first, second]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let mut bob = Member::up(&mut world, BOB, "backup", Some("correct horse battery"));
    let quiet = |bob: &mut Member, world: &mut World| {
        let polled = std::cell::Cell::new(0);
        bob.until(world, |_| polled.replace(polled.get() + 1) > 20);
    };
    let sees_nothing = |bob: &mut Member, world: &mut World| {
        let told = bob.run(world, lun(0), &[0; 6], &[], 0);
        assert_eq!((told.status, told.code()), (CHECK, (5, 0x2500)), "logical unit not supported");
    };
    sees_nothing(&mut bob, &mut world);
    world.shard.freeze(world.now);
    quiet(&mut bob, &mut world);
    world.hand_over(config(), vec![keeper.again(), other.again()]);
    sees_nothing(&mut bob, &mut world);
    assert_eq!(alice.run(&mut world, 0, &[0; 6], &[], 0).status, GOOD);
}

#[test]
fn what_is_under_way_is_told_and_a_thawed_shard_goes_on() {
    let (medium, keeper) = held(8 << 20);
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![medium]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    keeper.hold(true);
    let data = pattern(BLOCK, 1);
    let write = alice.start(&mut world, 0, &[0x2a, 0, 0, 0, 0, 1, 0, 0, 1, 0], &data, 0);
    world.shard.freeze(world.now);
    let busy = world.shard.export(world.now).unwrap_err();
    assert_eq!(busy.to_string(), format!("session of {ALICE}: a command is under way"));
    assert!(busy.can_end());
    world.shard.thaw(world.now);
    keeper.hold(false);
    keeper.release_all(&mut world, 0);
    assert_eq!(alice.finish(&mut world, write, &data).status, GOOD);
    for _ in 0..300 {
        assert_eq!(alice.write(&mut world, 0, 1, &data, false).status, GOOD);
    }
    world.shard.freeze(world.now);
    world.drain();
    // An export changes nothing: the shard goes on after it.
    assert!(world.shard.export(world.now).is_ok());
    world.shard.thaw(world.now);
    world.drain();
    assert_eq!(alice.read(&mut world, 0, 1, 1).data, data);
}

#[test]
fn a_shard_takes_only_what_its_configuration_admits() {
    let (medium, keeper) = held(8 << 20);
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![medium]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    world.shard.freeze(world.now);
    world.drain();
    let (state, connections) = by_text(world.shard.export(world.now).unwrap());
    let resume = |config: ShardConfig, media, connections: &[Vec<ConnId>]| {
        let mut next = next_shard(&world, config, media);
        adopt(&world, &mut next, connections);
        next.resume(world.now, &state, connections)
    };
    let media = || vec![keeper.again()];
    let same = || config(&[(0, 0)], vec![]);
    assert_eq!(resume(same(), media(), &connections), Ok(()));
    assert_eq!(resume(same(), media(), &[]), Err(ResumeError::Connections));
    let mut renamed = same();
    renamed.targets[0].name = "iqn.2026-11.org.targe:other".parse().unwrap();
    assert!(matches!(resume(renamed, media(), &connections), Err(ResumeError::NoTarget(_))));
    let only_bob = InitiatorEntry { pattern: BOB.into(), luns: None, auth: None, quota: Default::default() };
    let refused = resume(config(&[(0, 0)], vec![only_bob]), media(), &connections);
    assert_eq!(refused, Err(ResumeError::Refused(ALICE.into())));
    let mut regrouped = same();
    regrouped.portals[0].group = PortalGroupTag(7);
    assert_eq!(resume(regrouped, media(), &connections), Err(ResumeError::PortalGroup(ALICE.into())));
    let gone = resume(same(), vec![], &connections);
    assert!(matches!(gone, Err(ResumeError::Target(RestoreError::NoUnit(_)))), "{gone:?}");
    let mut twice = serde_json::to_value(&state).unwrap();
    let unit = twice["target"]["units"][0].clone();
    twice["target"]["units"].as_array_mut().unwrap().push(unit);
    let twice: ShardState = serde_json::from_value(twice).unwrap();
    let mut next = next_shard(&world, same(), media());
    adopt(&world, &mut next, &connections);
    let refused = next.resume(world.now, &twice, &connections);
    assert!(matches!(refused, Err(ResumeError::Target(RestoreError::UnitTwice(_)))), "{refused:?}");
}

#[test]
fn an_initiator_learns_of_changed_luns_and_finds_no_other_disk_under_a_lun_that_it_has_used() {
    let ((first, keeper), (second, other)) = (held(8 << 20), held(8 << 20));
    let mut world = World::new(config(&[(0, 0), (3, 1)], vec![]), vec![first, second]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    alice.clear_attentions(&mut world, 0);
    let changed = (CHECK, (6, 0x3f0e));
    let mut told = |world: &mut World, lun| {
        let answer = alice.run(world, lun, &[0; 6], &[], 0);
        (answer.status, answer.code())
    };
    for (luns, expected) in [
        // Nothing has changed.
        (&[(0, 0), (3, 1)][..], [(0, (GOOD, (0, 0))), (3, (CHECK, (6, 0x2900)))]),
        // One more LUN.
        (&[(0, 0), (3, 1), (4, 1)], [(0, changed), (3, changed)]),
        // The used LUN 0 means the other disk now.
        (&[(0, 1), (3, 1)], [(0, (CHECK, (5, 0x2500))), (3, changed)]),
    ] {
        world.shard.freeze(world.now);
        world.drain();
        world.hand_over(config(luns, vec![]), vec![keeper.again(), other.again()]);
        for (lun, answer) in expected {
            assert_eq!(told(&mut world, lun), answer, "LUN {lun} of {luns:?}");
        }
    }
}
