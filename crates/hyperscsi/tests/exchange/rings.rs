//! Tests of ports that drop frames because their receive rings are full.

use base::ether::{EtherPort, FrameMachine};
use base::time::Duration;
use hyperscsi::connection::PathView;
use netem::frame::FramePlan;
use transport::target::TargetTransport as _;

use crate::world::*;

fn granted(paths: &[PathView]) -> u64 {
    paths[0].stats.granted
}

fn window(paths: &[PathView]) -> u64 {
    paths[0].stats.window
}

#[test]
fn a_ring_that_overflows_halves_what_is_granted_and_slows_the_other_end() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(1, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        let task = world.write(0, 0, 0, 4000, 1);
        world.good(0, task);
        let theirs = |world: &World| granted(&world.engine.sessions().next().unwrap().paths);
        let ours = |world: &World| window(&world.initiators[0].session.paths().collect::<Vec<_>>());
        let (before, fast) = (theirs(&world), ours(&world));
        world.engine.frames_overrun(world.now, EtherPort(0), 3);
        assert_eq!(theirs(&world), before / 2, "at once");
        let task = world.write(0, 0, 0, 8, 2);
        world.good(0, task);
        let slow = ours(&world);
        assert!(slow <= fast * 8 / 10, "the initiator was told: {fast} before, {slow} after");
        // The same in the other direction; an overrun of another port has no effect.
        let read = world.read(0, 0, 0, 2000);
        world.good(0, read);
        let ours = |world: &World| granted(&world.initiators[0].session.paths().collect::<Vec<_>>());
        let before = ours(&world);
        let now = world.now;
        world.initiators[0].session.frames_overrun(now, EtherPort(5), 3);
        assert_eq!(ours(&world), before);
        world.initiators[0].session.frames_overrun(now, EtherPort(0), 3);
        assert_eq!(ours(&world), before / 2);
        world.rest(Duration::from_secs(1));
        world.is_clean();
    }
}

#[test]
fn an_engine_is_quiet_once_the_last_words_of_its_last_session_are_out() {
    let mut world = World::new(1, FramePlan::CLEAN, None);
    assert!(world.engine.is_frame_idle());
    world.join(world.plan_of(1));
    world.up();
    assert!(!world.engine.is_frame_idle());
    let session = world.server.sessions[0];
    world.engine.close_session(world.now, session);
    assert!(!world.engine.is_frame_idle(), "it has to say goodbye");
    // The GOODBYE is lost and not answered: the engine does not wait for ever.
    world.sockets[0].unplugged = true;
    world.run(Duration::from_secs(2), |world| world.engine.is_frame_idle());
    assert!(world.engine.is_frame_idle());
}
