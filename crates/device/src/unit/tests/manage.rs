//! Task management functions, resets, and the effects of the tasks that they abort.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::contract::{TaskKey, TaskRules, Tmf, TmfKey, TmfOutcome, UnitConfig, UnitEvent};
use crate::testing::{A, B, BLOCKS, Gate, Rig, Slow, cdb_16, config, nexus};
use crate::unit::Reset;
use base::time::Instant;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

const NOW: Instant = Instant::ORIGIN;

fn slow() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    (Rig::with(config(), Box::new(medium)), gate)
}

fn slow_with_tas(tas: bool) -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let tasks = TaskRules { task_aborted_status: tas, ..TaskRules::SHARED };
    (Rig::with(UnitConfig { tasks, ..config() }, Box::new(medium)), gate)
}

fn start_read(rig: &mut Rig, nexus: crate::contract::NexusId) -> TaskKey {
    rig.start(nexus, &cdb_16(op::READ_16, 0, 100, 1), 512, 0)
}

/// Starts a write whose data was received and whose operation was submitted to the medium.
fn start_write(rig: &mut Rig, nexus: crate::contract::NexusId, lba: u64, byte: u8) -> TaskKey {
    let key = rig.start(nexus, &cdb_16(op::WRITE_16, 0, lba, 1), 0, 512);
    assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
    rig.send(key, &[byte; 512], 0, 512);
    key
}

fn aborted(rig: &mut Rig, key: TaskKey) -> bool {
    matches!(rig.event_of(key), Some(UnitEvent::Aborted { .. }))
}

fn any_managed(rig: &mut Rig) -> Option<TmfOutcome> {
    let at = rig.events.iter().position(|event| matches!(event, UnitEvent::TmfComplete { .. }))?;
    match rig.events.remove(at)? {
        UnitEvent::TmfComplete { outcome, .. } => Some(outcome),
        _ => None,
    }
}

#[test]
fn an_abort_is_confirmed_only_when_the_medium_has_let_go() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_write(&mut rig, A, 0, 7);
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), None);
    assert!(rig.events.is_empty(), "neither the task nor the function has ended");
    gate.open();
    rig.ready();
    assert!(aborted(&mut rig, key));
    assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
}

#[test]
fn a_function_for_every_task_waits_for_those_that_were_aborted_before() {
    for function in [Tmf::LogicalUnitReset, Tmf::TargetReset, Tmf::AbortTaskSet] {
        let (mut rig, gate) = slow();
        gate.close();
        let key = start_write(&mut rig, A, 0, 7);
        assert_eq!(rig.manage(A, Tmf::AbortTask(key)), None);
        assert_eq!(rig.manage(A, function), None, "{function:?}: the medium still writes");
        gate.open();
        rig.ready();
        assert!(aborted(&mut rig, key));
        assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
        assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
    }
}

#[test]
fn data_that_comes_after_an_abort_never_reaches_the_medium() {
    let mut rig = Rig::new();
    let key = rig.start(A, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    rig.event_of(key);
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), Some(TmfOutcome::Complete));
    assert!(aborted(&mut rig, key));
    rig.send(key, &[7; 512], 0, 512);
    assert!(rig.events.is_empty());
    assert_eq!(rig.read(0, 1), [0; 512]);
}

#[test]
fn a_later_command_does_not_overtake_what_an_aborted_one_still_writes() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_write(&mut rig, A, 0, 1);
    rig.unit.task_gone(NOW, key);
    let next = start_write(&mut rig, A, 0, 2);
    assert_eq!(gate.held(), 1);
    gate.open();
    rig.ready();
    rig.finish(next, &[]).good();
    assert_eq!(rig.read(0, 1), [2; 512]);
}

#[test]
fn only_ones_own_tasks_can_be_aborted_and_queried() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_read(&mut rig, A);
    assert_eq!(rig.manage(B, Tmf::AbortTask(key)), Some(TmfOutcome::NoSuchTask));
    assert_eq!(rig.manage(B, Tmf::QueryTask(key)), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(B, Tmf::QueryTaskSet), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(A, Tmf::QueryTask(key)), Some(TmfOutcome::Succeeded));
    assert_eq!(rig.manage(A, Tmf::QueryTaskSet), Some(TmfOutcome::Succeeded));
    gate.open();
    rig.ready();
    rig.finish(key, &[]).good();
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), Some(TmfOutcome::NoSuchTask));
    assert_eq!(rig.manage(A, Tmf::QueryTask(key)), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(A, Tmf::QueryTaskSet), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(A, Tmf::ClearAca), Some(TmfOutcome::NotSupported));
}

#[test]
fn aborting_a_task_set_spares_the_tasks_of_others() {
    let (mut rig, gate) = slow();
    gate.close();
    let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
    let dormant =
        rig.start_as(A, scsi::status::TaskAttribute::Ordered, &cdb_16(op::READ_16, 0, 0, 1), 512, 0);
    rig.manage(A, Tmf::AbortTaskSet);
    gate.open();
    rig.ready();
    assert!(aborted(&mut rig, own) && aborted(&mut rig, dormant));
    rig.finish(other, &[]).good();
    rig.run(B, &[0; 6], 0, &[]).good();
}

#[test]
fn clearing_a_task_set_tells_the_others_as_tas_says() {
    for tas in [false, true] {
        let (mut rig, gate) = slow_with_tas(tas);
        gate.close();
        let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
        rig.manage(A, Tmf::ClearTaskSet);
        gate.open();
        rig.ready();
        assert!(aborted(&mut rig, own), "never a status to who asked");
        if tas {
            assert_eq!(rig.finish(other, &[]).status, Status::TASK_ABORTED);
        } else {
            assert!(aborted(&mut rig, other));
            rig.run(B, &[0; 6], 0, &[])
                .check(SenseKey::UNIT_ATTENTION, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
        }
        rig.run(A, &[0; 6], 0, &[]).good();
        rig.run(B, &[0; 6], 0, &[]).good();
    }
}

#[test]
fn a_failed_command_takes_those_with_it_that_qerr_says() {
    // QERR 00b, 01b and 11b.
    for (aborts, only_own, bits) in [(false, false, 0), (true, false, 0x02), (true, true, 0x06)] {
        let (mut rig, gate) = slow();
        if bits != 0 {
            rig.set_control_bits(3, bits);
        }
        gate.close();
        let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
        rig.run(A, &[0xff; 6], 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
        gate.open();
        rig.ready();
        if aborts {
            assert!(aborted(&mut rig, own));
        } else {
            rig.finish(own, &[]).good();
        }
        if aborts && !only_own {
            assert!(aborted(&mut rig, other));
            rig.run(B, &[0; 6], 0, &[])
                .check(SenseKey::UNIT_ATTENTION, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
        } else {
            rig.finish(other, &[]).good();
        }
        rig.run(A, &[0; 6], 0, &[]).good();
        rig.run(B, &[0; 6], 0, &[]).good();
    }
}

#[test]
fn a_reset_ends_every_task_and_everyone_hears_of_it() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# For the LOGICAL UNIT RESET function, the target MUST behave as dictated by the Logical Unit Reset
    //# function in [SAM2].
    for why in [None, Some(Reset::LogicalUnit), Some(Reset::Target)] {
        let (mut rig, gate) = slow();
        gate.close();
        let (own, other) = (start_write(&mut rig, A, 0, 1), start_read(&mut rig, B));
        match why {
            None => assert_eq!(rig.manage(A, Tmf::LogicalUnitReset), None),
            Some(why) => rig.unit.reset(NOW, why),
        }
        gate.open();
        rig.ready();
        assert!(aborted(&mut rig, own) && aborted(&mut rig, other));
        assert_eq!(any_managed(&mut rig), why.is_none().then_some(TmfOutcome::Complete));
        for nexus in [A, B] {
            rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
            rig.run(nexus, &[0; 6], 0, &[]).good();
        }
    }
}

#[test]
fn a_nexus_reset_is_a_nexus_loss_that_the_nexus_survives() {
    let (mut rig, gate) = slow();
    gate.close();
    let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
    rig.manage(A, Tmf::NexusReset);
    gate.open();
    rig.ready();
    assert!(aborted(&mut rig, own));
    rig.finish(other, &[]).good();
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    rig.run(B, &[0; 6], 0, &[]).good();
}

#[test]
fn a_function_for_the_tasks_of_one_nexus_does_not_wait_for_those_of_another() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_write(&mut rig, A, 0, 1);
    rig.unit.execute_tmf(NOW, A, TmfKey(1), Tmf::AbortTask(key));
    rig.unit.execute_tmf(NOW, B, TmfKey(2), Tmf::QueryTaskSet);
    rig.unit.execute_tmf(NOW, B, TmfKey(3), Tmf::AbortTaskSet);
    rig.drain();
    let managed = |rig: &Rig| -> Vec<u64> {
        let key = |event: &UnitEvent| match event {
            UnitEvent::TmfComplete { key, .. } => Some(key.0),
            _ => None,
        };
        rig.events.iter().filter_map(key).collect()
    };
    assert_eq!(managed(&rig), [2, 3]);
    gate.open();
    rig.ready();
    assert_eq!(managed(&rig), [2, 3, 1]);
}

#[test]
fn who_is_gone_hears_nothing_more_and_its_keys_are_free() {
    let (mut rig, gate) = slow();
    gate.close();
    let first = start_write(&mut rig, A, 0, 1);
    let second = start_read(&mut rig, A);
    rig.unit.task_gone(NOW, first);
    rig.unit.task_gone(NOW, first);
    rig.unit.nexus_lost(NOW, A);
    let other = start_read(&mut rig, B);
    gate.open();
    rig.ready();
    assert!(rig.event_of(first).is_none() && rig.event_of(second).is_none());
    rig.finish(other, &[]).good();
    assert_eq!(rig.unit.stats().tasks, 0);
    // An abort that was in progress when the transport dropped the task also ends without a report.
    rig.unit.nexus_established(NOW, nexus(A));
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    gate.close();
    let third = start_write(&mut rig, A, 0, 1);
    rig.manage(A, Tmf::AbortTask(third));
    rig.unit.task_gone(NOW, third);
    gate.open();
    rig.ready();
    assert!(rig.event_of(third).is_none());
    assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
}

#[test]
fn a_nexus_that_is_lost_while_its_aborts_are_under_way_hears_nothing_of_them() {
    for tas in [false, true] {
        let (mut rig, gate) = slow_with_tas(tas);
        gate.close();
        let key = start_write(&mut rig, A, 0, 1);
        rig.manage(B, Tmf::ClearTaskSet);
        rig.unit.nexus_lost(NOW, A);
        gate.open();
        rig.ready();
        assert!(rig.event_of(key).is_none());
        assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
        assert_eq!(rig.unit.stats().tasks, 0);
    }
}
