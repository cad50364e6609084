//! Tests the aborts of commands that the target ended without a response, or that ABORT TASK does not end.

use super::*;

/// A command waits in a full socket while a later one overtakes it on another connection.
#[test]
fn a_reset_that_a_delayed_command_reports_ends_the_commands_that_were_sent_before_it() {
    let mut world = World::with_connections(1, Rng::from_seed(1), Habits::default(), (0, 0), 2);
    world.settle();
    world.submit_a(Kind::Write, true);
    world.pass_for(LIMIT / 4);
    assert_eq!((world.open(), world.target.ends.len(), world.target.attentions_left()), (0, 2, 0));
    let full = ConnId(0);
    world.full = Some(full);
    world.target.habits.hangs = 1000;
    for _ in 0..2 {
        world.submit_a(Kind::Write, true);
        world.settle();
    }
    assert_eq!(world.target.seen.get("commands that hang"), Some(&1), "only one was sent");
    world.target.habits = Habits::default();
    world.target.reset_by_another();
    world.full = None;
    world.transmit(full);
    world.settle();
    world.pass_for(LIMIT / 4);
    assert_eq!(world.open(), 0, "a command that the reset ended waits for its timeout");
}

#[test]
fn a_command_whose_abort_the_target_rejects_is_aborted_again() {
    let mut world = silent(Kind::Write);
    world.target.habits = Habits { rejects_aborts: true, ..Habits::default() };
    world.pass_for(LIMIT * 5 / 4);
    assert_eq!(world.open(), 1);
    assert!(world.target.seen.get("ABORT TASK").is_some_and(|count| *count > 0), "no abort was rejected");
    world.target.habits = Habits::default();
    world.pass_for(LIMIT / 2);
    assert_eq!((world.open(), &world.given[&0].error), (0, &None));
    assert_eq!(world.target.seen.get("LOGICAL UNIT RESET"), None, "the unit was healthy");
}

#[test]
fn a_command_without_a_timeout_ends_if_the_target_ended_it_and_rejects_every_abort() {
    let mut world = silent(Kind::Once);
    let (id, now) = (world.id, world.now);
    world.sessions.limit_commands(now, id, None);
    world.target.habits = Habits { rejects_aborts: true, ..Habits::default() };
    world.target.reset_by_another();
    world.submit_a(Kind::Write, true);
    world.pass_for(CALM);
    assert_eq!(world.open(), 0, "it hangs for ever");
    let aborts = world.target.seen.get("ABORT TASK").copied().unwrap_or_default();
    assert!((1..=100).contains(&aborts), "{aborts} aborts");
}
