//! Tests that a target executes each command of an initiator once and in order, whatever the wire does.

use base::rng::Rng;
use base::time::Duration;
use hyperscsi::initiator::contract::{LossReason, SessionEnd, SessionPlan};
use hyperscsi::login::initiator::HandshakeError;
use hyperscsi::pdu::parameters::{Illegal, Parameters};
use hyperscsi::target::engine::EngineLimits;
use netem::frame::{FramePlan, lossy};
use security::Level;
use transport::command::TaskAttribute;
use transport::initiator::InitiatorTransport as _;

use crate::world::*;

#[test]
fn an_open_group_is_read_and_written() {
    let mut world = World::new(1, FramePlan::CLEAN, None);
    world.join(world.plan_of(1));
    world.up();
    for (lba, blocks) in [(0, 1), (8, 8), (100, 128), (300, 129), (1000, 2000)] {
        let task = world.write(0, 0, lba, blocks, 5);
        world.good(0, task);
        let task = world.read(0, 0, lba, blocks);
        assert!(world.good(0, task) == pattern(0, lba, blocks, 5), "{lba} {blocks}");
    }
    world.rest(Duration::from_secs(1));
    world.is_clean();
    assert_eq!(world.engine.stats().duplicates, 0);
}

#[test]
fn data_is_asked_for_in_whatever_bursts_both_take() {
    for (burst_max, blocks) in [(1, 4), (100, 400), (512, 2000), (65_536, 2000)] {
        let mut limits = EngineLimits::default();
        (limits.parameters.burst_max, limits.parameters.first_burst) = (burst_max, 0);
        let mut world = World::with(1, FramePlan::CLEAN, None, limits, 1500);
        world.join(world.plan_of(1));
        world.up();
        let task = world.write(0, 0, 3, blocks, 5);
        world.good(0, task);
        let task = world.read(0, 0, 3, blocks);
        assert!(world.good(0, task) == pattern(0, 3, blocks, 5), "{burst_max}");
        world.rest(Duration::from_secs(1));
        world.is_clean();
        assert_eq!(world.initiators[0].ups, 1, "{burst_max}");
    }
}

#[test]
fn a_bad_wire_changes_nothing() {
    for seed in seeds(4) {
        println!("HYPER_SEED={seed}");
        let mut world = World::new(seed, lossy(20, Duration::from_micros(300)), None);
        world.join(world.plan_of(1));
        world.up();
        for (lba, blocks) in [(0, 1), (8, 8), (100, 128), (300, 129), (1000, 1000)] {
            let task = world.write(0, 0, lba, blocks, seed);
            world.good(0, task);
            let task = world.read(0, 0, lba, blocks);
            assert!(world.good(0, task) == pattern(0, lba, blocks, seed), "{lba} {blocks}");
        }
        world.rest(Duration::from_secs(2));
        world.is_clean();
    }
}

#[test]
fn a_group_with_a_password_is_served_at_every_level() {
    for seed in seeds(3) {
        println!("HYPER_SEED={seed}");
        let mut world = World::new(seed, lossy(50, Duration::from_micros(100)), Some("sesame"));
        world.config.levels = [(1, Level::Integrity), (2, Level::Encrypt)].into();
        // With `none` allowed, each logical unit is reached at the level that it demands: a refused command
        // is sent again with more protection.
        for (isid, level) in [(1, Level::None), (2, Level::Integrity), (3, Level::Encrypt)] {
            let plan = SessionPlan { level, ..world.plan_of(isid) };
            world.join(plan);
        }
        world.up();
        for at in 0..3 {
            for lun in 0..3 {
                let task = world.write(at, lun, 50 * at as u32, 40, seed);
                world.good(at, task);
                let task = world.read(at, lun, 50 * at as u32, 40);
                assert!(world.good(at, task) == pattern(lun, 50 * at as u32, 40, seed), "{at} {lun}");
            }
        }
        world.rest(Duration::from_secs(2));
        world.is_clean();
        assert_eq!(world.initiators[0].session.stats().raised, 3, "one step to LUN 1, two to LUN 2");
        assert_eq!(world.engine.stats().refused_level, 4, "{:?}", world.engine.stats());
    }
}

#[test]
fn many_commands_on_many_units_run_once_each_and_move_the_right_bytes() {
    for seed in seeds(6) {
        println!("HYPER_SEED={seed}");
        let odds = [1000, 100, 30, 10][seed as usize % 4];
        let mtu = [1500, 9000][seed as usize % 2];
        let password = (seed % 3 != 0).then_some("sesame");
        let mut world = World::with(
            seed,
            lossy(odds, Duration::from_micros(200)),
            password,
            EngineLimits::default(),
            mtu,
        );
        for isid in 1..=2 {
            let plan = world.plan_of(isid);
            world.join(plan);
        }
        world.up();
        let mut rng = Rng::from_seed(seed ^ 77);
        let mut counted = 0;
        for round in 0..4 {
            let mut tasks = Vec::new();
            for index in 0..60u32 {
                let at = rng.below(2) as usize;
                let (lun, lba) = (rng.below(5), index * 64 + 4000 * at as u32);
                let blocks = 1 + rng.below(60) as u32;
                match rng.below(3) {
                    0 => {
                        counted += 1;
                        let attribute = TaskAttribute(1 + rng.below(3) as u8);
                        tasks.push((at, world.count(at, lun, counted, attribute), None));
                    }
                    _ => {
                        let task = world.write(at, lun, lba, blocks, round);
                        tasks.push((at, task, Some((lun, lba, blocks))));
                    }
                }
            }
            let mut written = Vec::new();
            for (at, task, extent) in tasks {
                world.good(at, task);
                written.extend(extent.map(|extent| (at, extent)));
            }
            let reads: Vec<_> = written
                .into_iter()
                .map(|(at, (lun, lba, blocks))| (at, world.read(1 - at, lun, lba, blocks), lun, lba, blocks))
                .collect();
            for (at, task, lun, lba, blocks) in reads {
                assert!(world.good(1 - at, task) == pattern(lun, lba, blocks, round), "{lun} {lba}");
            }
        }
        world.rest(Duration::from_secs(2));
        assert_eq!(world.server.counts.len(), counted as usize);
        assert!(world.server.counts.values().all(|count| *count == 1), "something ran twice");
        world.is_clean();
    }
}

#[test]
fn what_is_ordered_runs_behind_all_that_was_asked_before() {
    for seed in seeds(4) {
        println!("HYPER_SEED={seed}");
        let mut world = World::new(seed, lossy(8, Duration::from_micros(500)), None);
        world.join(world.plan_of(1));
        world.up();
        world.server.order.clear();
        let mut tasks = Vec::new();
        for number in 0..80 {
            let attribute = if number % 10 == 9 { TaskAttribute::ORDERED } else { TaskAttribute::SIMPLE };
            tasks.push(world.count(0, 0, number, attribute));
        }
        for task in tasks {
            world.good(0, task);
        }
        for barrier in (9..80).step_by(10) {
            let place = world.server.order.iter().position(|number| *number == barrier).unwrap();
            assert_eq!(place, barrier as usize, "{:?}", world.server.order);
        }
        world.rest(Duration::from_secs(2));
        world.is_clean();
    }
}

#[test]
fn short_memory_costs_time_and_busy_answers_and_nothing_hangs() {
    for seed in seeds(4) {
        println!("HYPER_SEED={seed}");
        let limits = EngineLimits {
            data_out_bytes_max: 512 << 10,
            data_in_bytes_max: 256 << 10,
            unsent_bytes_max: 200 << 10,
            ..EngineLimits::default()
        };
        let plan = lossy([0, 50, 10, 200][seed as usize % 4], Duration::from_micros(200));
        let mut world = World::with(seed, plan, (seed % 2 == 0).then_some("sesame"), limits, 1500);
        for isid in 1..=3 {
            world.join(world.plan_of(isid));
        }
        world.up();
        let (mut open, mut busy) = (Vec::new(), 0);
        for index in 0..60u32 {
            let at = index as usize % 3;
            open.push((at, world.write(at, 0, index * 100, 100, seed), index));
            open.push((at, world.read(at, 1, index, 400), u32::MAX));
        }
        while let Some((at, task, index)) = open.pop() {
            let outcome = world.end(at, task);
            if status(&outcome) == Some(8) {
                // The target answered BUSY, and the initiator sends the write again.
                busy += 1;
                assert!(index != u32::MAX, "reads wait");
                open.push((at, world.write(at, 0, index * 100, 100, seed), index));
            } else {
                assert!(outcome.end.is_good(), "{:?}", outcome.end);
            }
        }
        for index in 0..60u32 {
            let task = world.read(0, 0, index * 100, 100);
            assert!(world.good(0, task) == pattern(0, index * 100, 100, seed), "{index}");
        }
        assert_eq!(world.engine.stats().busy, busy);
        world.rest(Duration::from_secs(2));
        world.is_clean();
    }
}

#[test]
fn what_cannot_be_offered_is_said_and_nothing_else_happens() {
    for (first_burst, is_legal) in
        [(u32::MAX, false), (Parameters::FIRST_BURST_MAX + 1, false), (Parameters::FIRST_BURST_MAX, true)]
    {
        let mut world = World::new(16, FramePlan::CLEAN, None);
        world.config.parameters.first_burst = u32::MAX;
        let mut plan = world.plan_of(1);
        plan.parameters.first_burst = first_burst;
        world.join(plan);
        world.rest(Duration::from_secs(1));
        let illegal = LossReason::Handshake(HandshakeError::BadOffer(Illegal::FirstBurst));
        let down = (!is_legal).then_some(SessionEnd::Permanent(illegal));
        assert_eq!((world.initiators[0].down, world.initiators[0].session.is_up()), (down, is_legal));
    }
}
