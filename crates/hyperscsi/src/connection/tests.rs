extern crate std;

mod faults;
mod keys;
mod pair;
mod parts;
mod paths;
mod shares;
mod throughput;

use base::time::Duration;
use netem::frame::FramePlan;
use netem::probability::Probability;
use pair::{Config, Pair, TEN_GBIT, wire};

#[test]
fn every_byte_arrives_at_its_place_and_each_message_is_acknowledged_once() {
    for keyed in [false, true] {
        let mut pair = Pair::new(&Config { keyed, ..Config::lan() });
        pair.offer(200, 70_000, 8);
        pair.run_until_done(Duration::from_secs(2));
    }
}

#[test]
fn the_same_under_every_fault_at_once() {
    for seed in 0..40 {
        let faulty = FramePlan {
            loss: Probability::one_in(20),
            duplicate: Probability::one_in(20),
            reorder: Probability::one_in(20),
            corrupt: Probability::one_in(50),
            ..wire(TEN_GBIT)
        };
        let mut pair = Pair::new(&Config {
            keyed: seed % 2 == 1,
            seed,
            plans: [faulty.clone(), faulty],
            ..Config::lan()
        });
        pair.offer(100, 70_000, 8);
        pair.run_until_done(Duration::from_secs(5));
    }
}

#[test]
fn an_idle_session_costs_a_few_frames_a_minute_and_lives_on() {
    let mut pair = Pair::new(&Config { keyed: true, ..Config::lan() });
    pair.offer(1, 1000, 1);
    pair.run_until_done(Duration::from_secs(1));
    pair.run_for(Duration::from_secs(2));
    let before = pair.frames;
    pair.run_for(Duration::from_secs(60));
    assert!((6..=24).contains(&(pair.frames - before)), "{} frames in a minute", pair.frames - before);
    assert!(pair.sides.iter().all(|side| side.connection.paths().all(|path| path.is_up)));
}
