//! Changes of the saved state: they have all of their effects, or none.

use scsi::pr::{BasicList, Keys, ReservationKey, service_action_in as pr_in, service_action_out as pr_out};
use scsi::status::Status;
use store::api::Durability;

use super::*;
use crate::contract::{TaskKey, Tmf, TmfOutcome};
use crate::unit::Reset;

const K1: ReservationKey = ReservationKey(0x0a0a_0a0a_0a0a_0a0a);
const K2: ReservationKey = ReservationKey(0x0b0b_0b0b_0b0b_0b0b);
const K3: ReservationKey = ReservationKey(0x0c0c_0c0c_0c0c_0c0c);
const NONE: ReservationKey = ReservationKey::NONE;

fn cdb(action: u16, kind: u8) -> [u8; 10] {
    [op::PERSISTENT_RESERVE_OUT, u8::try_from(action).unwrap(), kind, 0, 0, 0, 0, 0, 24, 0]
}

/// Sends a PERSISTENT RESERVE OUT with APTPL and its parameter list.
fn start(rig: &mut Rig, from: NexusId, action: u16, key: ReservationKey, new: ReservationKey) -> TaskKey {
    let persist = matches!(action, pr_out::REGISTER | pr_out::REGISTER_AND_IGNORE_EXISTING_KEY);
    let list = BasicList { key, service_action_key: new, persist, ..BasicList::default() }.encode();
    let task = rig.start(from, &cdb(action, 1), 0, 24);
    send(rig, task, &list);
    task
}

fn send(rig: &mut Rig, task: TaskKey, list: &[u8]) {
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(task) else { panic!("no fetch") };
    rig.send(task, list, 0, u32::try_from(list.len()).unwrap());
}

fn run(rig: &mut Rig, from: NexusId, action: u16, key: ReservationKey, new: ReservationKey) {
    let task = start(rig, from, action, key, new);
    rig.save(true);
    rig.finish(task, &[]).good();
}

fn keys(rig: &mut Rig, from: NexusId) -> Vec<ReservationKey> {
    let cdb = [op::PERSISTENT_RESERVE_IN, u8::try_from(pr_in::READ_KEYS).unwrap(), 0, 0, 0, 0, 0, 1, 0, 0];
    Keys::parse(&rig.run(from, &cdb, 256, &[]).good()).unwrap().keys
}

/// A and B are registered with APTPL; A holds the reservation, and a write of A waits for the medium.
fn reserved() -> (Rig, Rc<RefCell<Recording>>, TaskKey) {
    let (store, recording) = Recorder::new();
    let mut rig = Rig::with(config(), Box::new(store));
    run(&mut rig, A, pr_out::REGISTER, NONE, K1);
    run(&mut rig, B, pr_out::REGISTER, NONE, K2);
    run(&mut rig, A, pr_out::RESERVE, K1, NONE);
    recording.borrow_mut().hold = true;
    let victim = rig.start(A, &WRITE, 0, 512);
    send(&mut rig, victim, &[1; 512]);
    (rig, recording, victim)
}

/// Lets the medium answer again.
fn release(rig: &mut Rig, recording: &Rc<RefCell<Recording>>) {
    recording.borrow_mut().hold = false;
    rig.ready();
}

/// Checks that a preemption of A had no effect: its registration, its task and its reservation remain, and it
/// receives no unit attention.
#[track_caller]
fn nothing_happened(rig: &mut Rig, recording: &Rc<RefCell<Recording>>, victim: TaskKey) {
    release(rig, recording);
    rig.finish(victim, &[]).good();
    rig.ready_for(A).good();
    assert_eq!(keys(rig, A), [K1, K2]);
    write(rig, A).good();
    assert_eq!(write(rig, B).status, Status::RESERVATION_CONFLICT);
}

#[test]
pub(crate) fn a_reservation_that_cannot_be_saved_changes_nothing() {
    let (mut rig, recording, victim) = reserved();
    let preempt = start(&mut rig, B, pr_out::PREEMPT_AND_ABORT, K2, K1);
    rig.save(false);
    rig.finish(preempt, &[]).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    nothing_happened(&mut rig, &recording, victim);
}

#[test]
pub(crate) fn other_commands_meet_the_old_reservation_until_the_new_one_is_saved() {
    let (mut rig, recording, victim) = reserved();
    release(&mut rig, &recording);
    rig.finish(victim, &[]).good();
    let preempt = start(&mut rig, B, pr_out::PREEMPT, K2, K1);
    assert_eq!(write(&mut rig, B).status, Status::RESERVATION_CONFLICT);
    write(&mut rig, A).good();
    assert_eq!(keys(&mut rig, A), [K1, K2]);
    rig.save(true);
    rig.finish(preempt, &[]).good();
    write(&mut rig, B).good();
    rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::REGISTRATIONS_PREEMPTED);
    assert_eq!(write(&mut rig, A).status, Status::RESERVATION_CONFLICT);
}

/// An event that ends a PREEMPT AND ABORT early.
type Abort = fn(&mut Rig, TaskKey);

/// The events that do not themselves abort A's tasks.
const ABORTS: [Abort; 4] = [
    |rig, preempt| {
        assert_eq!(rig.manage(B, Tmf::AbortTask(preempt)), None, "it is being saved");
    },
    |rig, _| assert_eq!(rig.manage(B, Tmf::AbortTaskSet), None),
    |rig, preempt| {
        rig.unit.task_gone(Instant::ORIGIN, preempt);
        rig.drain();
    },
    |rig, _| {
        rig.unit.nexus_lost(Instant::ORIGIN, B);
        rig.drain();
    },
];

#[test]
pub(crate) fn a_preemption_that_is_aborted_while_it_is_saved_aborts_all_the_same() {
    for abort in ABORTS {
        let (mut rig, recording, victim) = reserved();
        let preempt = start(&mut rig, B, pr_out::PREEMPT_AND_ABORT, K2, K1);
        abort(&mut rig, preempt);
        rig.save(true);
        release(&mut rig, &recording);
        let Some(UnitEvent::Aborted { .. } | UnitEvent::CommandComplete { status: Status::TASK_ABORTED, .. }) =
            rig.event_of(victim)
        else {
            panic!("the victim goes on: {:?}", rig.events)
        };
        rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::REGISTRATIONS_PREEMPTED);
        while rig.ready_for(A).status != Status::GOOD {}
        assert_eq!(keys(&mut rig, A), [K2]);
        assert_eq!(write(&mut rig, A).status, Status::RESERVATION_CONFLICT);
    }
}

#[test]
fn a_preemption_that_is_aborted_and_cannot_be_saved_changes_nothing() {
    for abort in ABORTS.into_iter().take(3) {
        let (mut rig, recording, victim) = reserved();
        let preempt = start(&mut rig, B, pr_out::PREEMPT_AND_ABORT, K2, K1);
        abort(&mut rig, preempt);
        rig.save(false);
        nothing_happened(&mut rig, &recording, victim);
    }
}

#[test]
fn a_function_that_aborts_a_preemption_is_answered_when_the_preemption_is_decided() {
    let (mut rig, recording, _) = reserved();
    let preempt = start(&mut rig, B, pr_out::PREEMPT_AND_ABORT, K2, K1);
    rig.manage(B, Tmf::AbortTask(preempt));
    let managed =
        |event: &UnitEvent| matches!(event, UnitEvent::TmfComplete { outcome: TmfOutcome::Complete, .. });
    assert!(!rig.events.iter().any(managed));
    rig.save(true);
    release(&mut rig, &recording);
    assert!(rig.events.iter().any(managed));
}

#[test]
pub(crate) fn two_changes_at_once_are_both_saved() {
    for first_is_saved in [true, false] {
        let mut rig = Rig::new();
        let first = start(&mut rig, A, pr_out::REGISTER, NONE, K1);
        let second = start(&mut rig, B, pr_out::REGISTER, NONE, K2);
        let third = start(&mut rig, A, pr_out::REGISTER_AND_IGNORE_EXISTING_KEY, NONE, K3);
        rig.save(first_is_saved);
        let reply = rig.finish(first, &[]);
        assert_eq!(reply.status == Status::GOOD, first_is_saved);
        assert_eq!(rig.event_of(third).map(drop), None);
        let (both, last) = (rig.save(true), rig.save(true));
        rig.finish(second, &[]).good();
        rig.finish(third, &[]).good();
        let restarted = |state: &[u8]| {
            let store = Box::new(Ram::new(BLOCKS * 512));
            let pool = base::buffer::Pool::new(1 << 20);
            let unit = crate::unit::LogicalUnit::new(config(), store, Some(state), pool);
            let mut keys = keys(&mut Rig::of(unit.unwrap()), A);
            keys.sort_unstable();
            keys
        };
        let first = first_is_saved.then_some(K1);
        assert_eq!(restarted(&both), first.into_iter().chain([K2]).collect::<Vec<_>>());
        assert_eq!(restarted(&last), [K2, K3]);
    }
}

#[test]
fn a_reserve_that_comes_while_a_registration_is_saved_meets_the_registration() {
    let mut rig = Rig::new();
    let register = start(&mut rig, A, pr_out::REGISTER, NONE, K1);
    let reserve = rig.start(B, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, 0);
    assert!(rig.event_of(reserve).is_none());
    rig.save(true);
    rig.finish(register, &[]).good();
    assert_eq!(rig.finish(reserve, &[]).status, Status::RESERVATION_CONFLICT);
}

#[test]
fn a_registration_whose_list_comes_after_a_reserve_meets_the_reserve() {
    let mut rig = Rig::new();
    let register = rig.start(A, &cdb(pr_out::REGISTER, 0), 0, 24);
    rig.run(B, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).good();
    let list = BasicList { service_action_key: K1, ..BasicList::default() }.encode();
    send(&mut rig, register, &list);
    assert_eq!(rig.finish(register, &[]).status, Status::RESERVATION_CONFLICT);
    rig.run(B, &[op::RELEASE_6, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(keys(&mut rig, A), []);
}

#[test]
fn a_command_that_waits_for_its_turn_can_be_aborted() {
    let mut rig = Rig::new();
    let first = start(&mut rig, A, pr_out::REGISTER, NONE, K1);
    let second = start(&mut rig, B, pr_out::REGISTER, NONE, K2);
    assert_eq!(rig.manage(B, Tmf::AbortTask(second)), Some(TmfOutcome::Complete));
    rig.unit.reset(Instant::ORIGIN, Reset::LogicalUnit);
    rig.drain();
    rig.save(true);
    assert!(rig.event_of(first).is_some());
    for nexus in BOTH {
        while rig.ready_for(nexus).status != Status::GOOD {}
    }
    assert_eq!(keys(&mut rig, A), [K1]);
}

/// The control page with SWP set.
const PROTECT: [u8; 16] = [0, 0, 0, 0, 0x0a, 10, 0x02, 0x10, 0x08, 0, 0, 0, 0, 0, 0, 1];

#[test]
pub(crate) fn mode_parameters_that_cannot_be_saved_change_nothing() {
    let mut rig = Rig::new();
    for saved in [false, true] {
        let mut list = PROTECT;
        list[9] = rig.run(A, &[op::MODE_SENSE_6, 8, 0x0a, 0, 255, 0], 255, &[]).good()[9];
        let task = rig.start(A, &[op::MODE_SELECT_6, 0x11, 0, 0, 16, 0], 0, 16);
        send(&mut rig, task, &list);
        write(&mut rig, B).good();
        rig.save(saved);
        let reply = rig.finish(task, &[]);
        if saved {
            reply.good();
            rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
            write(&mut rig, B).check(SenseKey::DATA_PROTECT, Asc::SOFTWARE_WRITE_PROTECTED);
        } else {
            reply.check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
            rig.ready_for(B).good();
            write(&mut rig, B).good();
        }
    }
}

#[test]
fn identifying_information_that_cannot_be_saved_changes_nothing() {
    let mut rig = Rig::new();
    let task = rig.start(A, &[op::MAINTENANCE_OUT, 6, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0], 0, 2);
    send(&mut rig, task, b"me");
    rig.save(false);
    rig.finish(task, &[]).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    rig.ready_for(B).good();
    let told = rig.run(B, &[op::MAINTENANCE_IN, 5, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64, &[]).good();
    assert_eq!(told, [0, 0, 0, 0]);
}

/// Sends MODE SELECT of the caching page with WCE clear.
fn close_cache(rig: &mut Rig) -> TaskKey {
    let mut list = [0; 24];
    (list[4], list[5]) = (0x08, 18);
    let task = rig.start(A, &[op::MODE_SELECT_6, 0x10, 0, 0, 24, 0], 0, 24);
    send(rig, task, &list);
    task
}

fn write_cache(rig: &mut Rig) -> bool {
    rig.run(B, &[op::MODE_SENSE_6, 8, 0x08, 0, 255, 0], 255, &[]).good()[6] & 4 != 0
}

#[test]
fn disabling_the_write_cache_waits_for_writes_under_way_and_flushes_behind_them() {
    let (store, recording) = Recorder::new();
    let mut rig = Rig::with(config(), Box::new(store));
    // The data of this write is still being fetched when the setting changes.
    let late = rig.start(A, &WRITE, 0, 512);
    recording.borrow_mut().hold = true;
    let early = rig.start(B, &WRITE, 0, 512);
    send(&mut rig, early, &[1; 512]);
    let select = close_cache(&mut rig);
    assert_eq!(recording.borrow().flushes, 0, "a write is under way");
    send(&mut rig, late, &[2; 512]);
    assert_eq!(recording.borrow().writes, [Durability::Cached, Durability::Stable]);
    assert!(write_cache(&mut rig), "not yet");
    release(&mut rig, &recording);
    rig.finish(early, &[]).good();
    assert_eq!(recording.borrow().flushes, 1);
    rig.finish(select, &[]).good();
    rig.finish(late, &[]).good();
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
    assert!(!write_cache(&mut rig));
    write(&mut rig, B).good();
    assert_eq!(recording.borrow().writes.last(), Some(&Durability::Stable));
}

#[test]
fn a_write_cache_that_cannot_be_flushed_or_whose_command_is_aborted_stays_enabled() {
    let (store, recording) = Recorder::new();
    let mut rig = Rig::with(config(), Box::new(store));
    recording.borrow_mut().hold = true;
    let early = rig.start(B, &WRITE, 0, 512);
    send(&mut rig, early, &[1; 512]);
    let select = close_cache(&mut rig);
    assert_eq!(rig.manage(A, Tmf::AbortTask(select)), Some(TmfOutcome::Complete));
    release(&mut rig, &recording);
    rig.finish(early, &[]).good();
    assert!(write_cache(&mut rig));
    write(&mut rig, B).good();
    assert_eq!(recording.borrow().writes.last(), Some(&Durability::Cached));
    recording.borrow_mut().fail_flushes = true;
    let select = close_cache(&mut rig);
    assert_eq!(rig.finish(select, &[]).status, Status::CHECK_CONDITION);
    assert!(write_cache(&mut rig));
}

#[test]
fn of_two_sanitize_commands_whose_parameters_come_together_one_is_refused() {
    let mut rig = Rig::new();
    let overwrite = [op::SANITIZE, 0x81, 0, 0, 0, 0, 0, 0, 5, 0];
    let list = [1, 0, 0, 1, 0x55];
    let [first, second] = [A, B].map(|nexus| rig.start(nexus, &overwrite, 0, 5));
    send(&mut rig, first, &list);
    send(&mut rig, second, &list);
    rig.finish(second, &[]).check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
    rig.save(true);
    rig.finish(first, &[]).good();
}
