//! The order of the task set: which tasks may start when.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::contract::{TaskKey, UnitConfig, UnitEvent};
use crate::testing::{A, B, BLOCKS, Gate, Rig, Slow, cdb_16, config};
use base::rng::Rng;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::{Status, TaskAttribute};

fn slow() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    (Rig::with(config(), Box::new(medium)), gate)
}

fn read(rig: &mut Rig, attribute: TaskAttribute, lba: u64) -> TaskKey {
    let nexus = if lba.is_multiple_of(2) { A } else { B };
    rig.start_as(nexus, attribute, &cdb_16(op::READ_16, 0, lba, 1), 512, 0)
}

use TaskAttribute::{HeadOfQueue, Ordered, Simple};

/// Starts commands on a medium that does not answer, and returns how many were submitted to it.
fn started(attributes: &[TaskAttribute]) -> usize {
    let (mut rig, gate) = slow();
    gate.close();
    for (lba, attribute) in (0..).zip(attributes) {
        read(&mut rig, *attribute, lba);
    }
    gate.held()
}

#[test]
fn attributes_say_who_waits_for_whom() {
    for (attributes, count) in [
        (&[Simple, Simple, Simple][..], 3),
        (&[Ordered, Simple], 1),
        (&[Simple, Ordered], 1),
        (&[Ordered, Ordered], 1),
        (&[Simple, Simple, Ordered, Simple], 2),
        (&[Ordered, HeadOfQueue], 2),
        (&[HeadOfQueue, Simple], 1),
        (&[HeadOfQueue, Ordered, HeadOfQueue], 2),
        (&[Simple, HeadOfQueue, Simple], 2),
    ] {
        assert_eq!(started(attributes), count, "{attributes:?}");
    }
}

#[test]
fn whatever_the_attributes_everyone_ends_and_order_is_kept() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let (mut rig, gate) = slow();
        let mut tasks: Vec<(TaskKey, TaskAttribute)> = Vec::new();
        let mut ended: Vec<TaskKey> = Vec::new();
        for lba in 0..20 {
            let attribute = [Simple, Ordered, HeadOfQueue][usize::try_from(rng.below(3)).unwrap()];
            gate.close();
            tasks.push((read(&mut rig, attribute, lba), attribute));
            if rng.chance(1, 3) {
                gate.open();
                rig.ready();
            }
            ended.extend(rig.events.drain(..).filter_map(finished));
        }
        gate.open();
        rig.ready();
        ended.extend(rig.events.drain(..).filter_map(finished));
        assert_eq!(ended.len(), tasks.len(), "seed {seed}");
        let place = |key: TaskKey| ended.iter().position(|other| *other == key);
        for (at, (key, attribute)) in tasks.iter().enumerate() {
            for (older, older_attribute) in &tasks[..at] {
                let kept = match (older_attribute, attribute) {
                    (_, HeadOfQueue) | (Simple | HeadOfQueue, Simple) => true,
                    (_, Ordered | TaskAttribute::Aca) | (Ordered | TaskAttribute::Aca, Simple) => {
                        place(*older) < place(*key)
                    }
                };
                assert!(kept, "seed {seed}: {attribute:?} {key:?} overtook {older_attribute:?} {older:?}");
            }
        }
    }
}

fn finished(event: UnitEvent) -> Option<TaskKey> {
    match event {
        UnitEvent::CommandComplete { key, status, .. } => {
            assert_eq!(status, Status::GOOD);
            Some(key)
        }
        _ => None,
    }
}

#[test]
fn a_full_task_set_says_so_and_takes_more_when_there_is_room() {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let mut rig = Rig::with(UnitConfig { task_set_max: 3, ..config() }, Box::new(medium));
    gate.close();
    let keys: Vec<_> = (0..5).map(|lba| read(&mut rig, Simple, lba)).collect();
    for key in &keys[3..] {
        assert_eq!(rig.finish(*key, &[]).status, Status::TASK_SET_FULL);
    }
    gate.open();
    rig.ready();
    for key in &keys[..3] {
        rig.finish(*key, &[]).good();
    }
    rig.read(0, 1);
    assert_eq!(rig.unit.stats().tasks, 0);
}

#[test]
fn an_aca_task_is_refused_where_there_is_no_aca() {
    let mut rig = Rig::new();
    let key = read(&mut rig, TaskAttribute::Aca, 0);
    rig.finish(key, &[]).check(SenseKey::ILLEGAL_REQUEST, Asc::INVALID_MESSAGE_ERROR);
}

/// Some media zero blocks by writing them.
#[test]
fn a_read_and_zeros_of_the_same_block_are_not_with_the_medium_together() {
    /// NDOB of WRITE SAME.
    const ZEROS: u8 = 1;
    let (mut rig, gate) = slow();
    gate.close();
    let zeros = rig.start(A, &cdb_16(op::WRITE_SAME_16, ZEROS, 0, 8), 0, 0);
    let behind = read(&mut rig, Simple, 7);
    assert_eq!(gate.held(), 1, "the read waits for the zeros");
    gate.open();
    rig.ready();
    rig.finish(zeros, &[]).good();
    assert_eq!(rig.finish(behind, &[]).good(), [0; 512]);
}

/// The page cache of Linux shows a reader a block that is partly written, so that a READ of one host would
/// receive half of a WRITE of another.
#[test]
fn a_read_and_a_write_of_the_same_block_are_not_with_the_medium_together() {
    let write = |rig: &mut Rig, lba, byte| {
        let key = rig.start(A, &cdb_16(op::WRITE_16, 0, lba, 8), 0, 4096);
        assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
        rig.send(key, &[byte; 4096], 0, 4096);
        key
    };
    let (mut rig, gate) = slow();
    gate.close();
    let first = write(&mut rig, 0, 1);
    let behind = read(&mut rig, Simple, 7);
    assert_eq!(gate.held(), 1, "the read waits for the write");
    let beside = read(&mut rig, Simple, 9);
    assert_eq!(gate.held(), 2, "a read of another block does not");
    // A later write does not pass the read that waits, nor does a read pass that write.
    let second = write(&mut rig, 0, 2);
    let last = read(&mut rig, Simple, 3);
    gate.open();
    rig.ready();
    for key in [first, second] {
        rig.finish(key, &[]).good();
    }
    rig.finish(beside, &[]).good();
    assert_eq!(rig.finish(behind, &[]).good(), [1; 512]);
    assert_eq!(rig.finish(last, &[]).good(), [2; 512]);
    gate.close();
    let earlier = read(&mut rig, Simple, 1);
    let later = write(&mut rig, 0, 3);
    assert_eq!(gate.held(), 1, "the write waits for the read");
    // A waiting task can be aborted, and the tasks behind it continue.
    rig.unit.task_gone(base::time::Instant::ORIGIN, later);
    gate.open();
    rig.ready();
    assert_eq!(rig.finish(earlier, &[]).good(), [2; 512]);
    assert_eq!(rig.read(0, 1), [2; 512]);
}
