//! Tests the identity checks of guarded units: nothing reaches another device, and no command waits for ever.

use super::target::Absence;
use super::*;
use crate::identity::Identity;
use crate::sessions::DiskCapacity;

/// Creates a run in which the unit is guarded and idle.
fn guarded() -> World {
    let mut world = World::with(1, Rng::from_seed(1), Habits::default(), 0, 0);
    world.settle();
    let (id, now) = (world.id, world.now);
    world.sessions.guard(now, id, Lun(0), identity());
    world.submit_a(Kind::Write, true);
    world.settle();
    world.pass_for(LIMIT / 4);
    assert_eq!((world.open(), world.target.attentions_left()), (0, 0));
    world
}

fn identity() -> Identity {
    Identity::learn(0x80, &[0, 0x80, 0, 1, b'1']).unwrap()
}

fn guard_capacity(world: &mut World) {
    let mut data = [0; 32];
    (data[7], data[10]) = (99, 2);
    let capacity = DiskCapacity::new(&scsi::block::Capacity::parse_16(&data).unwrap(), true);
    let (id, now) = (world.id, world.now);
    world.sessions.guard_capacity(now, id, Lun(0), capacity);
}

/// Submits a write. Returns its token.
fn write(world: &mut World) -> u64 {
    world.submit_a(Kind::Write, true);
    world.given.len() as u64 - 1
}

fn log_out(world: &mut World) {
    let (id, now) = (world.id, world.now);
    world.sessions.session(id).unwrap().services_mut().logout(now);
}

fn is_down(world: &World) -> bool {
    world.sessions.entries[&world.id].down.is_some()
}

/// Reports a reset with a write, and holds the identity check that follows. Returns the token of the write,
/// which waits for the check.
fn hold_check(world: &mut World) -> u64 {
    world.target.habits.slow_inquiries = true;
    world.target.tell_reset();
    let token = write(world);
    world.settle();
    assert_eq!((world.given[&token].ends, world.target.records.contains_key(&token)), (0, false));
    token
}

fn is_other(world: &World, token: u64) -> bool {
    matches!(world.given[&token].error, Some(CommandError::OtherDevice(_)))
}

#[test]
fn a_device_that_took_the_place_of_another_gets_no_command_for_that() {
    let mut world = silent(Kind::Once);
    world.target.habits = Habits::default();
    world.target.exchange_device();
    world.pass_for(LIMIT / 4);
    assert_eq!(world.target.attentions_left(), 0, "the unit is not asked");
    world.submit_a(Kind::Write, true);
    world.settle();
    let is_other = |error: &Option<CommandError>| {
        error.as_ref().and_then(CommandError::sense).map(|sense| sense.asc)
            == Some(Asc::DEVICE_IDENTIFIER_CHANGED)
    };
    assert!(is_other(&world.given[&1].error), "{:?}", world.given[&1].error);
    assert!(!world.target.records.contains_key(&1), "it was written to the new device");
    world.submit_a(Kind::Write, true);
    world.settle();
    world.pass_for(LIMIT / 4);
    assert_eq!((world.given[&2].ends, &world.given[&2].error), (1, &None), "it is told once");
}

#[test]
fn a_guarded_unit_that_says_it_is_another_is_asked_which_before_it_gets_more() {
    for changes in [false, true] {
        let mut world = silent(Kind::Once);
        let (id, now) = (world.id, world.now);
        let identity = Identity::learn(0x80, &[0, 0x80, 0, 1, b'1']).unwrap();
        world.sessions.guard(now, id, Lun(0), identity);
        world.settle();
        world.target.habits = Habits::default();
        world.target.exchange_device();
        if !changes {
            world.target.device = b'1';
        }
        world.pass_for(LIMIT / 4);
        assert_eq!(world.target.attentions_left(), 0, "the unit is not asked");
        world.submit_a(Kind::Write, true);
        world.settle();
        world.pass_for(LIMIT / 4);
        assert_eq!(matches!(world.given[&1].error, Some(CommandError::OtherDevice(_))), changes);
        assert_eq!(world.target.records.contains_key(&1), !changes);
    }
}

/// A caller's function ends the unsent commands of a unit, the identity check among them.
#[test]
fn a_check_that_a_callers_reset_ends_before_it_is_sent_is_made_again() {
    let mut world = guarded();
    let (id, now) = (world.id, world.now);
    world.target.tell_reset();
    let held = write(&mut world);
    world.sessions.process_pending(now, &mut Vec::new());
    let conn = *world.target.ends.keys().next().unwrap();
    world.transmit(conn);
    world.target.read(now, conn);
    let bytes = std::mem::take(&mut world.target.ends.get_mut(&conn).unwrap().outbox);
    world.sessions.received(now, conn, &bytes);
    world.sessions.process_pending(now, &mut Vec::new());
    world.sessions.submit_tmf(now, id, 7, (TmfFunction::LOGICAL_UNIT_RESET, Lun(0), None));
    let later = write(&mut world);
    world.settle();
    world.pass_for(LIMIT);
    assert_eq!((world.given[&later].ends, &world.given[&later].error), (1, &None));
    assert_eq!(world.given[&held].error, Some(CommandError::Aborted), "it was not executed");
    assert!(!world.target.records.contains_key(&held));
}

#[test]
fn a_logout_waits_for_the_check_after_the_session_was_lost_and_ends() {
    let mut world = guarded();
    world.target.habits.hangs = 1000;
    let token = write(&mut world);
    world.settle();
    log_out(&mut world);
    world.settle();
    world.target.habits = Habits::default();
    let conn = *world.target.ends.keys().next().unwrap();
    world.disconnect(conn);
    world.settle();
    world.pass_for(LIMIT);
    assert_eq!(world.given[&token].ends, 1, "the command never ends");
    assert!(is_down(&world), "the session never ends");
}

#[test]
fn a_logout_waits_for_all_of_the_check_and_ends() {
    for changes in [false, true] {
        let mut world = guarded();
        guard_capacity(&mut world);
        if changes {
            world.target.device += 1;
        }
        let token = hold_check(&mut world);
        log_out(&mut world);
        world.target.habits = Habits::default();
        assert_eq!(world.target.answer_inquiries(), 1);
        world.settle();
        if !changes {
            world.pass_for(LIMIT / 4);
        }
        assert_eq!(world.given[&token].ends, 1);
        assert_eq!((is_other(&world, token), world.target.records.contains_key(&token)), (changes, !changes));
        assert!(is_down(&world), "the session does not end");
    }
}

#[test]
fn a_unit_is_held_although_another_one_was_guarded_at_that_moment() {
    let mut world = guarded();
    let (id, now) = (world.id, world.now);
    world.target.habits.slow_inquiries = true;
    world.sessions.guard(now, id, Lun(1 << 48), identity());
    world.settle();
    world.target.device += 1;
    let token = hold_check(&mut world);
    world.target.habits = Habits::default();
    world.target.answer_inquiries();
    world.settle();
    world.pass_for(LIMIT);
    assert!(is_other(&world, token) && !world.target.records.contains_key(&token));
}

/// The check of the lost session is sent again in the new session, beside the check of that session.
#[test]
fn an_answer_from_before_a_change_does_not_confirm_the_device() {
    let mut world = guarded();
    let token = hold_check(&mut world);
    let conn = *world.target.ends.keys().next().unwrap();
    world.disconnect(conn);
    world.settle();
    // An attention check receives the unit attention of the login, and then that of the change.
    world.pass_for(LIMIT / 2);
    assert_eq!(world.target.attentions_left(), 0, "the unit is not asked");
    world.target.device += 1;
    world.target.tell_change();
    world.pass_for(LIMIT / 2);
    assert_eq!(world.target.attentions_left(), 0, "the unit is not asked");
    assert!(world.target.answer_inquiries() > 1);
    world.settle();
    assert!(!world.target.records.contains_key(&token), "it was written to the new device");
    world.target.habits = Habits::default();
    world.target.answer_inquiries();
    world.settle();
    world.pass_for(LIMIT);
    assert!(is_other(&world, token) && !world.target.records.contains_key(&token));
}

#[test]
fn a_unit_that_reports_a_reset_with_every_answer_fails_its_commands_in_the_end() {
    let mut world = guarded();
    guard_capacity(&mut world);
    world.target.habits.resets_at_capacity = true;
    world.target.tell_reset();
    let token = write(&mut world);
    world.settle();
    world.pass_for(CALM + LIMIT);
    let asked = world.target.seen["READ CAPACITY"];
    assert!(asked < 120 * 2 * 16 + 100, "the unit was asked {asked} times");
    assert!(is_unconfirmed(&world, token), "{:?}", world.given[&token].error);
}

fn is_unconfirmed(world: &World, token: u64) -> bool {
    matches!(world.given[&token].error, Some(CommandError::UnconfirmedDevice(_)))
}

/// Replaces the session by a new one, in which the device is not there. Returns the token of a write that
/// waits for it.
fn rebuild_without_device(world: &mut World, absence: Absence) -> u64 {
    world.target.habits.absence = Some(absence);
    let conn = *world.target.ends.keys().next().unwrap();
    world.disconnect(conn);
    world.settle();
    let token = write(world);
    world.settle();
    token
}

const ABSENCES: [Absence; 3] = [Absence::Qualifier, Absence::Refusal, Absence::NoSerialNumber];

#[test]
fn commands_wait_for_a_device_that_comes_after_its_target() {
    for absence in ABSENCES {
        let mut world = guarded();
        let token = rebuild_without_device(&mut world, absence);
        world.pass_for(Duration::from_secs(110));
        assert_eq!(world.given[&token].ends, 0, "{absence:?}: {:?}", world.given[&token].error);
        world.target.habits = Habits::default();
        world.pass_for(LIMIT);
        assert_eq!((world.given[&token].ends, &world.given[&token].error), (1, &None), "{absence:?}");
    }
}

#[test]
fn commands_for_a_device_that_stays_away_fail_until_it_is_back() {
    for (absence, changes) in ABSENCES.into_iter().flat_map(|absence| [(absence, false), (absence, true)]) {
        let mut world = guarded();
        let held = rebuild_without_device(&mut world, absence);
        world.pass_for(Duration::from_secs(125));
        let refused = write(&mut world);
        world.settle();
        for token in [held, refused] {
            assert!(is_unconfirmed(&world, token), "{absence:?}: {:?}", world.given[&token].error);
            assert!(!world.target.records.contains_key(&token));
        }
        world.target.habits = Habits::default();
        world.target.device += u8::from(changes);
        world.pass_for(LIMIT * 5);
        let token = write(&mut world);
        world.settle();
        world.pass_for(LIMIT);
        assert_eq!((world.given[&token].error.is_none(), is_other(&world, token)), (!changes, changes));
        assert_eq!(world.target.records.contains_key(&token), !changes);
    }
}

/// Creates a run in which a disk without a name is guarded and idle.
fn guarded_without_name() -> World {
    let mut world = World::with(1, Rng::from_seed(1), Habits::default(), 0, 0);
    world.settle();
    let inquiry = scsi::inquiry::StandardInquiry::parse(&world.target.standard_inquiry()).unwrap();
    let (id, now) = (world.id, world.now);
    world.sessions.guard(now, id, Lun(0), Identity::of_model(&inquiry));
    guard_capacity(&mut world);
    world.submit_a(Kind::Write, true);
    world.settle();
    world.pass_for(LIMIT / 4);
    assert_eq!((world.open(), world.target.attentions_left()), (0, 0));
    world
}

/// Writes after a change of the target, in a new session if `is_new`. Returns whether the disk counts as
/// another one.
fn is_other_after(is_new: bool, change: impl Fn(&mut World)) -> bool {
    let mut world = guarded_without_name();
    change(&mut world);
    if is_new {
        let conn = *world.target.ends.keys().next().unwrap();
        world.disconnect(conn);
        world.settle();
    }
    let token = write(&mut world);
    world.settle();
    world.pass_for(LIMIT);
    assert_eq!(world.given[&token].ends, 1);
    assert_ne!(is_other(&world, token), world.target.records.contains_key(&token));
    is_other(&world, token)
}

#[test]
fn a_disk_without_a_name_must_have_its_model_and_its_capacity() {
    for is_new in [false, true] {
        assert!(!is_other_after(is_new, |world| world.target.tell_reset()));
        // Larger, smaller, and another model.
        for blocks in [200, 50] {
            let resize = |world: &mut World| {
                world.target.blocks = blocks;
                world.target.tell_reset();
            };
            assert!(is_other_after(is_new, resize), "{blocks}");
        }
        assert!(is_other_after(is_new, |world| {
            world.target.device += 1;
            world.target.tell_change();
        }));
    }
    // In a session that lives, a disk can grow.
    for (blocks, is_other) in [(200, false), (50, true)] {
        let resize = |world: &mut World| {
            world.target.blocks = blocks;
            world.target.tell_capacity();
        };
        assert_eq!(is_other_after(false, resize), is_other, "{blocks}");
        assert!(is_other_after(true, resize), "{blocks}");
        let resize_and_reset = |world: &mut World| {
            resize(world);
            world.target.tell_reset();
        };
        assert!(is_other_after(false, resize_and_reset), "{blocks}");
    }
}

#[test]
fn a_disk_without_a_name_that_does_not_report_its_capacity_gets_no_command() {
    let mut world = guarded_without_name();
    world.target.habits.refuses_capacity = true;
    world.target.tell_reset();
    let token = write(&mut world);
    world.settle();
    world.pass_for(LIMIT / 4);
    assert_eq!((world.given[&token].ends, world.target.records.contains_key(&token)), (0, false));
    world.target.habits = Habits::default();
    world.pass_for(LIMIT);
    assert_eq!((world.given[&token].ends, &world.given[&token].error), (1, &None));
}
