//! Whose place a new session takes.

use base::time::Duration;
use hyperscsi::target::contract::Down;
use netem::frame::FramePlan;

use crate::world::*;

#[test]
fn who_says_the_same_name_without_a_password_does_not_end_the_session_of_who_knew_it() {
    let mut world = World::new(1, FramePlan::CLEAN, Some("sesame"));
    world.join(world.plan_of(1));
    world.up();
    world.config.unlock();
    world.join(world.plan_of(1));
    world.rest(Duration::from_secs(3));
    assert!(world.engine.stats().outranked > 0 && world.engine.stats().reinstated == 0);
    assert_eq!(world.engine.sessions().map(|session| session.authenticated).collect::<Vec<_>>(), [true]);
    let task = world.write(0, 0, 8, 1, 5);
    world.good(0, task);
}

#[test]
fn who_begins_again_ends_its_own_older_session() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(1, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        world.restart_initiator(0, world.plan_of(1));
        world.run(Duration::from_secs(5), |world| world.engine.stats().reinstated == 1);
        assert_eq!((world.engine.stats().reinstated, world.engine.stats().outranked), (1, 0));
        assert_eq!(world.server.downs, [Down::Reinstated]);
    }
}
