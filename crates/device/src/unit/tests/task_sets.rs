//! A task set per nexus: the order of tasks of one nexus, and functions on all of its tasks, do not affect
//! the others.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::contract::{NexusId, TaskKey, TaskRules, Tmf, TmfOutcome, UnitConfig, UnitEvent};
use crate::testing::{A, B, BLOCKS, Gate, Rig, Slow, cdb_16, config};
use base::rng::Rng;
use base::time::Instant;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::{Status, TaskAttribute};

use TaskAttribute::{HeadOfQueue, Ordered, Simple};

/// Returns a unit with the default rules.
fn rig() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    (Rig::with(UnitConfig { tasks: TaskRules::default(), ..config() }, Box::new(medium)), gate)
}

fn read(rig: &mut Rig, nexus: NexusId, attribute: TaskAttribute, lba: u64) -> TaskKey {
    rig.start_as(nexus, attribute, &cdb_16(op::READ_16, 0, lba, 1), 512, 0)
}

#[test]
fn an_ordered_write_that_never_sends_its_data_stops_its_own_nexus_alone() {
    let (mut rig, _) = rig();
    rig.start_as(A, Ordered, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    let own = read(&mut rig, A, Simple, 8);
    for attribute in [Simple, Ordered, HeadOfQueue] {
        let other = read(&mut rig, B, attribute, 8);
        rig.finish(other, &[]).good();
    }
    assert!(rig.event_of(own).is_none());
    rig.unit.nexus_lost(Instant::ORIGIN, A);
}

#[test]
fn a_nexus_that_waits_for_its_own_order_does_not_keep_another_from_being_woken() {
    let (mut rig, gate) = rig();
    // A's task waits for data that is never sent; B's tasks wait for the medium.
    rig.start_as(A, Ordered, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    read(&mut rig, A, Simple, 8);
    gate.close();
    let [first, second] = [read(&mut rig, B, Ordered, 16), read(&mut rig, B, Simple, 24)];
    assert_eq!(gate.held(), 1);
    gate.open();
    rig.ready();
    rig.finish(first, &[]).good();
    rig.finish(second, &[]).good();
}

#[test]
fn whatever_the_attributes_everyone_ends_and_order_is_kept_within_a_nexus() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let (mut rig, gate) = rig();
        let mut tasks: Vec<(TaskKey, TaskAttribute, NexusId)> = Vec::new();
        let mut ended: Vec<TaskKey> = Vec::new();
        for lba in 0..30 {
            let attribute = [Simple, Ordered, HeadOfQueue][usize::try_from(rng.below(3)).unwrap()];
            let nexus = if rng.below(2) == 0 { A } else { B };
            if rng.below(3) == 0 {
                gate.open()
            } else {
                gate.close()
            }
            let key = read(&mut rig, nexus, attribute, lba);
            tasks.push((key, attribute, nexus));
            rig.ready();
            if rng.below(8) == 0 {
                rig.unit.task_gone(Instant::ORIGIN, key);
                rig.drain();
                tasks.pop();
            }
            for event in rig.events.drain(..) {
                if let UnitEvent::CommandComplete { key, .. } = event {
                    ended.push(key);
                }
            }
        }
        gate.open();
        rig.ready();
        rig.events.drain(..).for_each(|event| {
            if let UnitEvent::CommandComplete { key, .. } = event {
                ended.push(key);
            }
        });
        let place = |key: TaskKey| ended.iter().position(|other| *other == key);
        for (at, (key, attribute, nexus)) in tasks.iter().enumerate() {
            let mine = place(*key).unwrap_or_else(|| panic!("seed {seed}: a task never ended"));
            for (older, older_attribute, older_nexus) in &tasks[..at] {
                let waits = match attribute {
                    HeadOfQueue => false,
                    Ordered => true,
                    _ => *older_attribute != Simple,
                };
                if waits && older_nexus == nexus {
                    assert!(place(*older) < Some(mine), "seed {seed}: order is not kept");
                }
            }
        }
    }
}

#[test]
fn clearing_a_task_set_reaches_the_tasks_of_its_own_nexus_alone() {
    let (mut rig, gate) = rig();
    gate.close();
    let [own, other] = [read(&mut rig, A, Simple, 0), read(&mut rig, B, Simple, 8)];
    rig.manage(A, Tmf::ClearTaskSet);
    gate.open();
    rig.ready();
    assert!(matches!(rig.event_of(own), Some(UnitEvent::Aborted { .. })));
    rig.finish(other, &[]).good();
    rig.run(B, &[0; 6], 0, &[]).good();
}

/// Two hosts that reset each other: each task that another nexus aborts is answered, and the next command of
/// its initiator receives the unit attention for the reset.
#[test]
fn two_hosts_that_reset_each_other_both_hear_what_became_of_their_tasks() {
    for rules in [TaskRules::default(), TaskRules::SHARED] {
        let (medium, gate) = Slow::new(BLOCKS * 512);
        let mut rig = Rig::with(UnitConfig { tasks: rules, ..config() }, Box::new(medium));
        for _ in 0..3 {
            for (resetter, victim) in [(A, B), (B, A)] {
                gate.close();
                let task = read(&mut rig, victim, Simple, 0);
                rig.manage(resetter, Tmf::LogicalUnitReset);
                gate.open();
                rig.ready();
                match rig.event_of(task) {
                    Some(UnitEvent::CommandComplete { status: Status::TASK_ABORTED, .. }) => {
                        assert!(rules.task_aborted_status);
                    }
                    // The initiator receives only the unit attention: a host that ignores it waits until its
                    // time limit.
                    Some(UnitEvent::Aborted { .. }) => assert!(!rules.task_aborted_status),
                    other => panic!("{other:?}"),
                }
                let managed = |event: &UnitEvent| {
                    matches!(event, UnitEvent::TmfComplete { outcome: TmfOutcome::Complete, .. })
                };
                assert!(rig.events.iter().any(managed));
                rig.events.clear();
                for nexus in [A, B] {
                    rig.run(nexus, &[0; 6], 0, &[])
                        .check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
                    rig.run(nexus, &[0; 6], 0, &[]).good();
                }
            }
        }
    }
}

#[test]
fn a_changed_configuration_changes_the_rules_and_tells_everyone() {
    let (mut rig, _) = rig();
    let rules = |rig: &mut Rig| {
        let page = rig.run(A, &[op::MODE_SENSE_6, 8, 0x0a, 0, 255, 0], 255, &[]).good();
        (page[6] >> 5, page[9] & 0x40)
    };
    assert_eq!(rules(&mut rig), (1, 0x40));
    rig.unit.reconfigure(Instant::ORIGIN, UnitConfig { tasks: TaskRules::SHARED, ..config() });
    for nexus in [A, B] {
        rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    }
    assert_eq!(rules(&mut rig), (0, 0));
    rig.start_as(A, Ordered, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    let waits = read(&mut rig, B, Simple, 8);
    assert!(rig.event_of(waits).is_none());
}
