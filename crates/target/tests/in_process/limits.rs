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

#[test]
fn a_user_has_one_limit_whatever_names_its_initiators_claim() {
    let mut world = World::new(1);
    let names = ["alice-1", "alice-2", "alice-3"];
    for name in names {
        world.users.insert(name.to_owned(), "alice".to_owned());
    }
    let [first, second] = ["alice-1", "alice-2"].map(|name| login(&mut world, name));
    assert_eq!((reads(&mut world, first), reads(&mut world, second)), (2, 0));
    // Nor does a new name help after the sessions have ended.
    world.end(first, SessionEnd::LoggedOut);
    world.end(second, SessionEnd::Lost);
    let third = login(&mut world, "alice-3");
    assert_eq!(reads(&mut world, third), 0);
    // Another user has its own, and so has an initiator without a user that claims the name of a user's.
    world.users.insert("bob".to_owned(), "bob".to_owned());
    let bob = login(&mut world, "bob");
    assert_eq!(reads(&mut world, bob), 2);
    world.users.clear();
    let claimant = login(&mut world, "alice-1");
    assert_eq!(reads(&mut world, claimant), 2);
}

#[test]
fn the_names_of_a_user_share_each_limit_among_those_that_have_it() {
    const OTHER: RateLimit = RateLimit { iops: 30, bandwidth: 0, burst: Duration::from_millis(100) };
    let mut world = World::new(1);
    for name in ["alice-1", "alice-2", "alice-3"] {
        world.users.insert(name.to_owned(), "alice".to_owned());
    }
    let first = login(&mut world, "alice-1");
    let other = world.login("alice-2", map(&[(0, 0)]));
    world.limit(other, OTHER);
    world.take_attentions(other, 0);
    assert_eq!((reads(&mut world, first), reads(&mut world, other)), (2, 3));
    let third = login(&mut world, "alice-3");
    assert_eq!(reads(&mut world, third), 0);
}

#[test]
fn a_new_limit_of_one_name_of_a_user_leaves_the_limits_of_the_others() {
    const OTHER: RateLimit = RateLimit { iops: 30, bandwidth: 0, burst: Duration::from_millis(100) };
    let mut world = World::new(1);
    for name in ["alice-1", "alice-2"] {
        world.users.insert(name.to_owned(), "alice".to_owned());
    }
    let [first, second] = ["alice-1", "alice-2"].map(|name| login(&mut world, name));
    world.limit(first, OTHER);
    assert_eq!((reads(&mut world, first), reads(&mut world, second)), (3, 2));
    // Equal limits are shared again.
    world.limit(second, OTHER);
    assert_eq!(reads(&mut world, second), 0);
}
