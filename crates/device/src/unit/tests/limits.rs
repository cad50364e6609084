//! Limits of a unit and of initiators: what waits, for how long, and in which order it starts.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::time::{Duration, Instant};
use scsi::opcode as op;
use scsi::status::{Status, TaskAttribute};
use store::ram::Ram;

use crate::contract::{Nexus, NexusId, TaskKey, Tmf, TmfOutcome, UnitConfig, UnitEvent};
use crate::rate_limit::{Limiter, RateLimit};
use crate::testing::{A, B, BLOCKS, Rig, cdb_16, config, nexus};

/// Ten operations per second, and none saved up but one.
const SLOW: RateLimit = RateLimit { iops: 10, bandwidth: 0, burst: Duration::from_millis(100) };

fn limited(limit: RateLimit) -> Rig {
    Rig::with(UnitConfig { limit, ..config() }, Box::new(Ram::new(BLOCKS * 512)))
}

fn read(rig: &mut Rig, nexus: NexusId, lba: u64) -> TaskKey {
    rig.start(nexus, &cdb_16(op::READ_16, 0, lba, 1), 512, 0)
}

/// Returns which of these commands have ended, and forgets their events.
fn ended(rig: &mut Rig, keys: &[TaskKey]) -> Vec<(usize, Status)> {
    let mut ended = Vec::new();
    for event in core::mem::take(&mut rig.events) {
        if let UnitEvent::CommandComplete { key, status, .. } = event
            && let Some(at) = keys.iter().position(|known| *known == key)
        {
            ended.push((at, status));
        }
    }
    ended
}

/// Lets time pass up to the unit's deadline, and returns it in milliseconds.
fn wait(rig: &mut Rig) -> u128 {
    let at = rig.unit.poll_timeout().expect("a command waits");
    rig.unit.handle_timeout(at);
    rig.drain();
    at.since(Instant::ORIGIN).as_millis()
}

const GOOD: Status = Status::GOOD;

#[test]
fn commands_beyond_the_limit_start_as_it_permits() {
    let mut rig = limited(SLOW);
    let keys = [0, 1, 2, 3].map(|lba| read(&mut rig, A, lba));
    assert_eq!(ended(&mut rig, &keys), [(0, GOOD)]);
    assert_eq!(rig.unit.stats().waiting, 3);
    for at in 1..4 {
        assert_eq!(wait(&mut rig), u128::try_from(at).unwrap() * 100);
        assert_eq!(ended(&mut rig, &keys), [(at, GOOD)]);
    }
    let stats = rig.unit.stats();
    assert_eq!((stats.waiting, stats.delays.delayed, stats.delays.delayed_ns), (0, 3, 600_000_000));
    assert_eq!(rig.unit.poll_timeout(), None);
}

#[test]
fn bytes_count_as_operations_too_and_both_limits_hold() {
    let mut rig = limited(RateLimit { iops: 0, bandwidth: 1 << 20, burst: Duration::from_secs(1) });
    let long = |rig: &mut Rig| rig.start(A, &cdb_16(op::READ_16, 0, 0, 2048), 1 << 20, 0);
    let keys = [long(&mut rig), long(&mut rig)];
    assert_eq!(ended(&mut rig, &keys), [(0, GOOD)]);
    assert_eq!(wait(&mut rig), 1000);
    assert_eq!(ended(&mut rig, &keys), [(1, GOOD)]);
    // One MiB is four operations of 256 KiB.
    let mut rig = limited(RateLimit { burst: Duration::from_millis(400), ..SLOW });
    let keys = [long(&mut rig), read(&mut rig, A, 0)];
    assert_eq!(ended(&mut rig, &keys), [(0, GOOD)]);
    assert_eq!(wait(&mut rig), 100);
}

#[test]
fn a_write_that_waits_requests_no_data_and_a_command_that_does_not_count_passes_it() {
    let mut rig = limited(SLOW);
    read(&mut rig, A, 0);
    rig.events.clear();
    let write = rig.start(A, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    assert!(rig.events.is_empty(), "{:?}", rig.events);
    let ready = rig.start(A, &[0; 6], 0, 0);
    assert_eq!(ended(&mut rig, &[write, ready]), [(1, GOOD)]);
    wait(&mut rig);
    assert!(matches!(rig.event_of(write), Some(UnitEvent::FetchDataOut { .. })));
}

#[test]
fn aborts_resets_and_lost_sessions_end_what_waits_at_once() {
    let mut rig = limited(SLOW);
    let keys = [0, 1, 2].map(|lba| read(&mut rig, A, lba));
    let of_b = read(&mut rig, B, 0);
    rig.events.clear();
    assert_eq!(rig.manage(A, Tmf::AbortTask(keys[1])), Some(TmfOutcome::Complete));
    assert_eq!(rig.unit.stats().waiting, 2);
    // The aborted command gave back what it had reserved, so those behind it start earlier.
    assert_eq!((wait(&mut rig), ended(&mut rig, &[of_b])), (100, [(0, GOOD)].into()));
    assert_eq!((wait(&mut rig), ended(&mut rig, &keys)), (200, [(2, GOOD)].into()));
    let of_b = [0, 1].map(|lba| read(&mut rig, B, lba));
    rig.unit.nexus_lost(Instant::ORIGIN, B);
    rig.drain();
    assert!(ended(&mut rig, &of_b).is_empty());
    assert_eq!(rig.unit.stats().waiting, 0);
    let more = [0, 1, 2].map(|lba| read(&mut rig, A, lba));
    assert!(rig.unit.stats().waiting > 0);
    assert_eq!(rig.manage(A, Tmf::LogicalUnitReset), Some(TmfOutcome::Complete));
    assert_eq!((rig.unit.stats().waiting, rig.unit.stats().tasks), (0, 0));
    assert!(ended(&mut rig, &more).iter().all(|(_, status)| *status != Status::TASK_SET_FULL));
    assert_eq!(rig.unit.poll_timeout(), None);
}

#[test]
fn nexuses_take_turns_whatever_their_queue_depths_are() {
    let mut rig = limited(SLOW);
    let mut keys: Vec<TaskKey> = (0..6).map(|lba| read(&mut rig, A, lba)).collect();
    keys.push(read(&mut rig, B, 0));
    let mut order = ended(&mut rig, &keys);
    while rig.unit.poll_timeout().is_some() {
        wait(&mut rig);
        order.extend(ended(&mut rig, &keys));
    }
    let order: Vec<usize> = order.into_iter().map(|(at, _)| at).collect();
    assert_eq!(order, [0, 1, 6, 2, 3, 4, 5]);
}

#[test]
fn head_of_queue_passes_what_waits_and_ordered_commands_keep_their_order() {
    let mut rig = limited(SLOW);
    let mut keys: Vec<TaskKey> = (0..3).map(|lba| read(&mut rig, A, lba)).collect();
    let with = |rig: &mut Rig, attribute| rig.start_as(A, attribute, &cdb_16(op::READ_16, 0, 9, 1), 512, 0);
    keys.push(with(&mut rig, TaskAttribute::Ordered));
    keys.push(read(&mut rig, A, 4));
    keys.push(with(&mut rig, TaskAttribute::HeadOfQueue));
    let mut order = ended(&mut rig, &keys);
    while rig.unit.poll_timeout().is_some() {
        wait(&mut rig);
        order.extend(ended(&mut rig, &keys));
    }
    let order: Vec<usize> = order.into_iter().map(|(at, _)| at).collect();
    assert_eq!(order, [0, 5, 1, 2, 3, 4]);
}

#[test]
fn a_changed_limit_applies_to_what_waits_and_keeps_the_debt() {
    let mut rig = limited(SLOW);
    let keys: Vec<TaskKey> = (0..4).map(|lba| read(&mut rig, A, lba)).collect();
    let change = |rig: &mut Rig, limit| {
        rig.unit.reconfigure(Instant::ORIGIN, UnitConfig { limit, ..config() });
        rig.drain();
    };
    assert_eq!(ended(&mut rig, &keys), [(0, GOOD)]);
    change(&mut rig, RateLimit { iops: 20, ..SLOW });
    assert_eq!(wait(&mut rig), 50);
    assert_eq!(ended(&mut rig, &keys), [(1, GOOD)]);
    change(&mut rig, RateLimit::NONE);
    assert_eq!(ended(&mut rig, &keys), [(2, GOOD), (3, GOOD)]);
    assert_eq!(rig.unit.poll_timeout(), None);
}

#[test]
fn a_wait_that_would_be_too_long_ends_with_task_set_full_but_never_the_only_command() {
    let mut rig = limited(SLOW);
    let keys: Vec<TaskKey> = (0..60).map(|at| read(&mut rig, A, at)).collect();
    let refused = ended(&mut rig, &keys).into_iter().filter(|(_, status)| *status != GOOD);
    let refused: Vec<_> = refused.collect();
    assert!(refused.iter().all(|(at, status)| *at > 50 && *status == Status::TASK_SET_FULL), "{refused:?}");
    assert_eq!(rig.unit.stats().waiting, 59 - u64::try_from(refused.len()).unwrap());
    assert_eq!(rig.unit.stats().task_set_full, u64::try_from(refused.len()).unwrap());
    assert!(refused.len() > 5);
    let only = read(&mut rig, B, 0);
    assert!(ended(&mut rig, &[only]).is_empty());
    // A limit that becomes lower refuses what would wait for too long now, from the end.
    rig.unit.reconfigure(Instant::ORIGIN, UnitConfig { limit: RateLimit { iops: 1, ..SLOW }, ..config() });
    rig.drain();
    let refused = ended(&mut rig, &keys);
    assert!(!refused.is_empty() && refused.iter().all(|(_, status)| *status == Status::TASK_SET_FULL));
    assert!(rig.unit.stats().waiting > 2);
}

#[test]
fn an_initiator_has_one_limit_over_all_units() {
    let limiter = Rc::new(RefCell::new(Limiter::new(Instant::ORIGIN, SLOW)));
    let mut rigs = [Rig::new(), Rig::new()];
    for rig in &mut rigs {
        let own = Nexus { limiter: Some(Rc::clone(&limiter)), ..nexus(A) };
        rig.unit.nexus_limited(Instant::ORIGIN, own);
    }
    let [first, second] = &mut rigs;
    let (a, b) = ([0, 1].map(|lba| read(first, A, lba)), [0, 1].map(|lba| read(second, A, lba)));
    assert_eq!((ended(first, &a), ended(second, &b)), ([(0, GOOD)].into(), [].into()));
    let other = read(second, B, 0);
    assert_eq!(ended(second, &[other]), [(0, GOOD)]);
    // Both units have one reservation at a time.
    assert_eq!((wait(first), wait(second)), (100, 200));
    assert_eq!((ended(first, &a), ended(second, &b)), ([(1, GOOD)].into(), [(0, GOOD)].into()));
    limiter.borrow_mut().change(Instant::ORIGIN, RateLimit::NONE);
    let own = Nexus { limiter: Some(Rc::clone(&limiter)), ..nexus(A) };
    second.unit.nexus_limited(Instant::ORIGIN, own);
    second.drain();
    assert_eq!(ended(second, &b), [(1, GOOD)]);
    assert_eq!(limiter.borrow().stats().delayed, 2);
}
