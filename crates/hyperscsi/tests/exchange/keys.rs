//! Tests of key updates that both ends make by themselves while commands run, and of keys that are used up.

use base::time::Duration;
use hyperscsi::aead::KeyLimits;
use hyperscsi::initiator::contract::{SessionLimits, SessionPlan};
use hyperscsi::pdu::parameters::{Levels, Parameters};
use hyperscsi::target::engine::EngineLimits;
use netem::frame::{FramePlan, lossy};
use security::Level;

use crate::world::*;

/// Returns a world in which both ends update their keys after `frames` frames of a generation.
fn world(seed: u64, plan: FramePlan, frames: u64) -> World {
    let key_limits = KeyLimits { frames, ..KeyLimits::default() };
    let limits = EngineLimits { key_limits, ..EngineLimits::default() };
    let mut world = World::with(seed, plan, Some("sesame"), limits, 1500);
    let plan = world.plan_of(1);
    let limits = SessionLimits { key_limits, ..plan.limits };
    world.join(SessionPlan { limits, level: Level::Encrypt, ..plan });
    world.up();
    world
}

#[test]
fn both_ends_change_keys_by_themselves_while_frames_are_lost_and_late() {
    for seed in seeds(4) {
        let mut world = world(seed, lossy(40, Duration::from_micros(300)), 600);
        // For some seconds, slowly enough that keys can be updated before they are used up.
        for round in 0..40_u32 {
            let (write, lba) = (world.write(0, 0, round * 100, 60, seed), round * 100);
            world.good(0, write);
            let read = world.read(0, 0, lba, 60);
            assert!(world.good(0, read) == pattern(0, lba, 60, seed), "seed {seed}, round {round}");
            world.rest(Duration::from_millis(200));
        }
        let (target, initiator) = (world.engine.stats(), world.initiators[0].session.stats());
        assert!(
            target.key_updates >= 2 && initiator.key_updates >= 2,
            "seed {seed}: {target:?} {initiator:?}"
        );
        assert_eq!(target.sessions, 1, "seed {seed}: one session all the time");
        world.rest(Duration::from_secs(1));
        world.is_clean();
    }
}

#[test]
fn keys_that_are_used_up_end_the_session_and_a_new_one_begins() {
    // In one second, far more frames are sent than twice the limit of a generation.
    let mut world = world(1, FramePlan::CLEAN, 40);
    let tasks: Vec<_> = (0..40).map(|at| world.write(0, 0, at * 100, 60, 1)).collect();
    for task in tasks {
        let outcome = world.end(0, task);
        assert!(outcome.end.is_good() || outcome.end == transport::initiator::TaskResult::Lost);
    }
    let events = &world.initiators[0].events;
    let lost = |event: &&hyperscsi::initiator::contract::Event| {
        matches!(event, hyperscsi::initiator::contract::Event::Recovering(_))
    };
    assert!(events.iter().filter(lost).count() > 0, "{events:?}");
    world.up();
    let check = world.count(0, 0, 1, transport::command::TaskAttribute::SIMPLE);
    world.good(0, check);
    assert!(world.engine.stats().sessions > 1);
}

#[test]
fn who_wants_no_protection_where_the_session_always_has_some_takes_the_least_of_it() {
    for levels in [Levels::SEALED, Levels::from(Level::Encrypt)] {
        let limits = EngineLimits {
            parameters: Parameters { levels, ..Parameters::DEFAULT },
            ..EngineLimits::default()
        };
        let mut world = World::with(1, FramePlan::CLEAN, Some("sesame"), limits, 1500);
        world.join(SessionPlan { level: Level::None, ..world.plan_of(1) });
        world.up();
        let write = world.write(0, 0, 8, 60, 5);
        world.good(0, write);
        let read = world.read(0, 0, 8, 60);
        assert!(world.good(0, read) == pattern(0, 8, 60, 5), "{levels:?}");
        assert_eq!(world.initiators[0].session.level(0), levels.lowest_from(Level::None).unwrap());
        world.rest(Duration::from_secs(1));
        world.is_clean();
    }
}
