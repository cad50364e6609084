//! Limits of initiators over the end of their sessions.

use base::time::Duration;
use device::rate_limit::RateLimit;

use crate::transport::SessionEnd;
use crate::world::{BLOCK, Initiator, World, map, read_10};

/// Two operations at once.
const LIMIT: RateLimit = RateLimit { iops: 10, bandwidth: 0, burst: Duration::from_millis(200) };

fn login(world: &mut World, name: &str) -> Initiator {
    let who = world.login(name, map(&[(0, 0)]));
    world.limit(who, LIMIT);
    world.take_attentions(who, 0);
    who
}

/// Returns how many reads an initiator can execute at once, up to four.
fn reads(world: &mut World, who: Initiator) -> usize {
    let tickets = [0, 1, 2, 3].map(|lba| world.start(who, 0, &read_10(lba, BLOCK), &[], BLOCK));
    let ended = tickets.map(|ticket| world.end_of(who, ticket).is_some());
    ended.into_iter().filter(|ended| *ended).count()
}

#[test]
fn a_login_gives_an_initiator_nothing_that_it_has_used_up() {
    let mut world = World::new(1);
    let mut alice = login(&mut world, "alice");
    assert_eq!(reads(&mut world, alice), 2);
    for why in [SessionEnd::LoggedOut, SessionEnd::Lost] {
        world.end(alice, why);
        alice = login(&mut world, "alice");
        assert_eq!(reads(&mut world, alice), 0, "{why:?}");
    }
    // Another initiator has a limit of its own.
    let bob = login(&mut world, "bob");
    assert_eq!(reads(&mut world, bob), 2);
    // A later session finds what was saved up meanwhile, and no more.
    for (ms, saved) in [(100, 1), (10_000, 2)] {
        world.end(alice, SessionEnd::LoggedOut);
        world.pass(Duration::from_millis(ms));
        alice = login(&mut world, "alice");
        assert_eq!(reads(&mut world, alice), saved);
    }
}
