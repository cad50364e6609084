//! Tests of paths that go down and come up during a session.

use base::ether::{EtherPort, Mac};
use base::time::Duration;
use hyperscsi::target::contract::PathChange;
use netem::frame::FramePlan;

use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);

fn up(world: &World) -> usize {
    world.initiators[0].session.paths().filter(|path| path.is_up).count()
}

#[test]
fn a_port_of_the_target_that_was_replaced_is_found_again_and_again() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(15, FramePlan::CLEAN, password);
        world.plug(Who::Target, EtherPort(1));
        world.join(world.plan_of(1));
        world.plug(Who::Initiator(0), EtherPort(1));
        world.up();
        assert!(world.run(10 * SECOND, |world| up(world) == 4));
        for number in 0..20 {
            world.sockets[1].state.mac = Mac([2, 0, 0, 0, 1, number]);
            world.port_up(1);
            let mac = world.sockets[1].state.mac;
            let found = world.run(100 * SECOND, |world| {
                let there = world.initiators[0].session.paths().filter(|path| path.address.mac == mac);
                there.filter(|path| path.is_up).count() == 2
            });
            assert!(found, "number {number}: {:?}", world.initiators[0].session.paths().collect::<Vec<_>>());
            let task = world.write(0, 0, 8, 100, 5);
            world.good(0, task);
        }
        assert_eq!((world.initiators[0].ups, world.initiators[0].down), (1, None));
        assert!(
            world.server.paths.iter().any(|(_, news)| *news == PathChange::Gone),
            "{:?}",
            world.server.paths
        );
        world.rest(2 * SECOND);
        world.is_clean();
    }
}

#[test]
fn the_target_tells_of_paths_that_fall_silent_and_come_back() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(16, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.plug(Who::Initiator(0), EtherPort(1));
        world.up();
        assert!(world.run(10 * SECOND, |world| up(world) == 2));
        let second = world.sockets.len() - 1;
        let mac = world.sockets[second].state.mac;
        assert!(world.run(SECOND, |world| world.server.paths == [(mac, PathChange::Up)]));
        for news in [PathChange::Silent, PathChange::Up] {
            world.server.paths.clear();
            world.sockets[second].unplugged = news == PathChange::Silent;
            let told = world.run(100 * SECOND, |world| !world.server.paths.is_empty());
            assert!(told && world.server.paths == [(mac, news)], "{news:?}: {:?}", world.server.paths);
        }
        let task = world.write(0, 0, 8, 100, 5);
        world.good(0, task);
        world.rest(2 * SECOND);
        world.is_clean();
    }
}
