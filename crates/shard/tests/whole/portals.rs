//! Portals that a reload removes while sessions use them.

use base::state_machine::PortalId;
use device::contract::RelativePort;
use iscsi::name::PortalGroupTag;
use shard::config::{Portal, ShardConfig};

use crate::ALICE;
use crate::pair::{BLOCK, Initiator, World, config, pattern, ram};

/// Returns the usual configuration with these portals: number, portal group, and whether the portal serves
/// the target.
fn with(portals: &[(u32, u16, bool)]) -> ShardConfig {
    let mut config = config(&[(0, 0)], vec![]);
    let portal = |(id, group, _): &(u32, u16, bool)| Portal {
        id: PortalId(*id),
        group: PortalGroupTag(*group),
        bound: None,
        announced: None,
        tls: false,
        certificates: None,
    };
    config.portals = portals.iter().map(portal).collect();
    let served = portals.iter().filter(|(.., served)| *served);
    config.targets[0].ports = served.map(|(id, group, _)| (PortalId(*id), RelativePort(*group))).collect();
    config
}

#[test]
fn sessions_of_a_portal_that_goes_stay_while_their_target_port_has_another() {
    for (portals, stays) in [
        (&[(0, 1, true), (1, 1, true)][..], true),
        // The session's portal is removed, and another portal serves its target port.
        (&[(1, 1, true)], true),
        (&[(1, 1, true), (2, 2, true)], true),
        // No portal serves the session's target port any more.
        (&[(2, 2, true)], false),
        (&[(1, 1, false), (2, 2, true)], false),
        // The session's portal exists but does not serve the target any more.
        (&[(0, 1, false), (1, 1, true)], false),
    ] {
        let mut world = World::new(with(&[(0, 1, true), (1, 1, true)]), vec![ram()]);
        let mut alice = Initiator::login(&mut world, ALICE, 1);
        alice.clear_attentions(&mut world, 0);
        assert_eq!(alice.write(&mut world, 0, 0, &pattern(BLOCK, 5), false).status, 0);
        world.shard.apply(world.now, with(portals));
        world.drain();
        assert_eq!(world.is_open(alice.conn), stays, "{portals:?}");
        if stays {
            assert_eq!(alice.read(&mut world, 0, 0, 1).data, pattern(BLOCK, 5), "{portals:?}");
        }
    }
}

#[test]
fn a_plan_names_the_sessions_whose_portal_gets_another_tag() {
    let mut world = World::new(with(&[(0, 1, true), (1, 1, true)]), vec![ram()]);
    let alice = Initiator::login(&mut world, ALICE, 1);
    let other = [(0, 2, true), (1, 1, true)];
    let losses = world.shard.losses(world.now, with(&other));
    let [loss] = losses.as_slice() else { panic!("{losses:?}") };
    assert_eq!((&*loss.initiator, loss.other_tag, loss.ends, &*loss.luns), (ALICE, true, false, &[][..]));
    // The tag of a portal without sessions, and a portal that no longer serves the target.
    assert_eq!(world.shard.losses(world.now, with(&[(0, 1, true), (1, 2, true)])), []);
    let ended = world.shard.losses(world.now, with(&[(0, 2, false), (1, 1, true)]));
    assert_eq!(ended.iter().map(|loss| (loss.ends, loss.other_tag)).collect::<Vec<_>>(), [(true, false)]);
    // The session goes on, and is not named again for what it has lost already.
    world.shard.apply(world.now, with(&other));
    world.drain();
    assert!(world.is_open(alice.conn));
    assert_eq!(world.shard.losses(world.now, with(&[(0, 3, true), (1, 1, true)])), []);
    assert_eq!(world.shard.losses(world.now, with(&[(0, 1, true), (1, 1, true)])), []);
}
