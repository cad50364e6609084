//! Tests of key updates while frames are under way.

use base::time::Duration;
use netem::frame::FramePlan;
use netem::probability::DurationRange;

use super::faults::GBIT;
use super::pair::{Config, Pair, wire};

//= hyperscsi#section-7.4
//= type=test
//# A sender MUST NOT change keys before a frame that it sealed with the present
//# ones was acknowledged, nor, but for the first keys, within 1 second of the first such acknowledgement.
#[test]
fn keys_that_came_late_are_not_changed_while_those_before_them_are_still_kept() {
    let slow = |ms: u64| FramePlan { delay: DurationRange::exactly(Duration::from_millis(ms)), ..wire(GBIT) };
    let plans = [slow(700), wire(GBIT)];
    let mut pair = Pair::new(&Config { keyed: true, plans, ..Config::lan() });
    let change = |pair: &mut Pair| {
        let now = pair.now;
        pair.sides[0].connection.update_keys(now)
    };
    for _ in 0..10 {
        pair.offer(1, 100, 1);
        pair.run_until_done(Duration::from_secs(10));
    }
    assert!(change(&mut pair), "the first keys were acknowledged");
    let (changed, mut changes) = (pair.now, 1);
    pair.give(0, 100);
    pair.run_for(Duration::from_millis(750));
    // Frames that are sent from now on arrive without the long delay.
    pair.links[0][0].replan(slow(1));
    for _ in 0..100 {
        changes += u32::from(change(&mut pair));
        pair.give(0, 100);
        pair.run_for(Duration::from_millis(20));
    }
    pair.run_until_done(Duration::from_secs(10));
    assert!(changes == 2 && pair.now.since(changed) < Duration::from_secs(4), "{changes}");
    assert_eq!(pair.sides[1].connection.stats().drops.damaged, 0, "{:?}", pair.sides[1]);
}
